/* SPDX-License-Identifier: Apache-2.0 */
/* kmath_isa.c: the routines that generated kernels of this level call
   (kmath_calls.h). */
#include "runtime/cpu/simd.h"

#define KM_TEXT(name)   #name
#define KM_PREFIX(name) KM_TEXT(name)
#define KM_ROUTINES     KM_PREFIX(ISA())
#define KM_CALLED
#include "runtime/cpu/kmath.h"
