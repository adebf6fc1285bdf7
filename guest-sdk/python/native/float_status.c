// What `include/fenv.h` declares: in one of a package's modules, for all of them.
__attribute__((visibility("default"))) int rollout_float_status;
