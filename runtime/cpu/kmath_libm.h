/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_libm.h: what kmath.h needs of math.h, for generated kernels. */
#ifndef AMPC_KMATH_LIBM_H
#define AMPC_KMATH_LIBM_H

#define INFINITY __builtin_inff()
#define NAN      __builtin_nanf("")

#define KM_LIBM(name)                                                          \
    double name(double);                                                       \
    float name##f(float);
KM_LIBM(acos)
KM_LIBM(acosh)
KM_LIBM(asin)
KM_LIBM(asinh)
KM_LIBM(atan)
KM_LIBM(atanh)
KM_LIBM(ceil)
KM_LIBM(cos)
KM_LIBM(cosh)
KM_LIBM(erf)
KM_LIBM(erfc)
KM_LIBM(exp)
KM_LIBM(fabs)
KM_LIBM(floor)
KM_LIBM(log)
KM_LIBM(log1p)
KM_LIBM(rint)
KM_LIBM(sin)
KM_LIBM(sinh)
KM_LIBM(sqrt)
KM_LIBM(tan)
KM_LIBM(tanh)
#undef KM_LIBM

double fmod(double, double);
float fmodf(float, float);
double pow(double, double);
float fmaf(float, float, float);

#endif
