/* SPDX-License-Identifier: Apache-2.0 */
/* pack.h: copies blocks of strided matrices into the panels that tiles read.

   A: panels of MR rows, each [k][MR]; the last panel has the same pitch, and
   its missing rows are never read. B: panels of tile_width vectors, each
   [k][width * VL], missing columns zero.  16-bit elements are widened.      */
#ifndef AMPC_CPU_PACK_H
#define AMPC_CPU_PACK_H

#include "runtime/cpu/tile.h"

/* One operand block: element (i, j) at p[i * rs + j * cs]. */
typedef struct PackSrc {
    const void *p;
    int dtype;
    int64_t rs, cs;
} PackSrc;

/* Elements 2j and 2j + 1 along k, `step` apart, from p on; the second is
   zero beyond `real` elements. */
INLINE uint32_t pair1(const uint16_t *p, int64_t step, int64_t j,
                      int64_t real) {
    uint32_t lo = p[2 * j * step];
    return 2 * j + 1 < real ? lo | (uint32_t)p[(2 * j + 1) * step] << 16 : lo;
}

/* VL pairs of neighbours. */
INLINE vu pairs_of(const uint16_t *lo, const uint16_t *hi) {
    return vu_or(vload_u16(lo), vu_left(vload_u16(hi), 16));
}

/* m rows of all k columns: panel i at dst + i * MR * k. */
void ISA(pack_a)(float *dst, const PackSrc *src, int64_t m, int64_t k);

/* Rows k0 .. k0 + k - 1 of n columns into panels of k_all rows: the panel that
   begins at column j is at dst + j * k_all.  src is at row k0.              */
void ISA(pack_b)(float *dst, const PackSrc *src, int64_t k0, int64_t k,
                 int64_t k_all, int64_t n);

/* Packs bf16 operands into panels of pairs (tile kinds 1 and 2). k, k0 and
   k_all count pairs; `real` counts the elements from src on; pairs beyond
   them are zero in B. For A of kind 2 see amx.h. */
void ISA(pack_pairs_a)(float *dst, const PackSrc *src, int64_t m, int64_t k,
                       int64_t real);
void ISA(pack_pairs_b)(int kind, float *dst, const PackSrc *src, int64_t k0,
                       int64_t k, int64_t k_all, int64_t n, int64_t real);

#endif
