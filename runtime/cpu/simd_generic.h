/* SPDX-License-Identifier: Apache-2.0 */
/* simd_generic.h: vectors in C, for any machine: see simd.h.

   Four lanes, which are added up in the order of x86-64-v2, so that results
   have the same bits.  gcc and clang map them to the machine's vectors, or to
   single floats; for other compilers they are arrays (simd_plain.h). */
#ifndef AMPC_CPU_SIMD_GENERIC_H
#define AMPC_CPU_SIMD_GENERIC_H

#include <string.h>

#include "runtime/cpu/kernels.h" /* before ISA, which reads isa.def */

#define ISA(name) ampc_c_##name
#define ISA_LEVEL AMPC_ISA_C

#define HAS_SSE 0

#include "runtime/cpu/simd_four.h"

#ifndef AMPC_PLAIN
INLINE vu vload_u16(const uint16_t *p) {
    vh h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, vu);
}

INLINE void vstore_u16(uint16_t *p, vu v) {
    vh h = __builtin_convertvector(v, vh);
    memcpy(p, &h, sizeof h);
}

INLINE float vsum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }

INLINE vi vload_i8(const int8_t *p, int64_t n) {
    vi v = {0};
    for (int64_t k = 0; k < n && k < VL; k++) v[k] = p[k];
    return v;
}

INLINE vf vgreater(vf a, vf b) { return vselect((a != a) | (a > b), a, b); }
#endif

INLINE void vsum4(float *to, vf a, vf b, vf c, vf d) {
    to[0] = vsum(a);
    to[1] = vsum(b);
    to[2] = vsum(c);
    to[3] = vsum(d);
}

#endif
