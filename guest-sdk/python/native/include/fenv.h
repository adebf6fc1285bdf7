// Exceptions of floating point, for numpy: WebAssembly has none, and the C library's functions do nothing. These
// keep what is *said* to have happened (a singular matrix, an integer divided by zero), in one place for all of a
// package's modules. What a single operation of floating point meets is still not seen.
#ifndef ROLLOUT_FENV_H
#define ROLLOUT_FENV_H

#define FE_INVALID 1
#define FE_DIVBYZERO 2
#define FE_OVERFLOW 4
#define FE_UNDERFLOW 8
#define FE_INEXACT 16

#include_next <fenv.h>

#undef FE_ALL_EXCEPT
#define FE_ALL_EXCEPT 31

#ifdef __cplusplus
extern "C"
#else
extern
#endif
    int rollout_float_status;

static inline int rollout_test(int which) { return rollout_float_status & which; }
static inline int rollout_clear(int which) { return rollout_float_status &= ~which, 0; }
static inline int rollout_raise(int which) { return rollout_float_status |= which, 0; }

#define fetestexcept rollout_test
#define feclearexcept rollout_clear
#define feraiseexcept rollout_raise

#endif
