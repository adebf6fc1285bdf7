// Defines the variable of `include/fenv.h`, in one module of a package for all of its modules.
__attribute__((visibility("default"))) int rollout_float_status;
