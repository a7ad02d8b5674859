/* SPDX-License-Identifier: Apache-2.0 */
/* amx.h: matrix products of bf16 on AMX tiles (level v4+amx).

   A tile has 16 rows of 64 bytes.  TDPBF16PS adds to 16 x 16 fp32 the products
   of 16 rows of 32 bf16 with 16 rows of 16 pairs of bf16, which is what panels
   of pairs hold (pack.h).  Per element of C, for each 32 bf16 of k: one chain
   of fused multiply-adds of the even and one of the odd elements, from zero,
   both added, and the sum added to C; subnormal numbers count as zero (Intel
   SDM, TDPBF16PS).  So the bits depend only on the order of k.

   Each thread has its own tiles.  Code that multiplies calls amx_begin before
   and amx_end after it: the kernel takes longer to switch a thread whose tiles
   are in use. The code exists at level v4 only; it is called if cpu_isa_level()
   allows.
 */
#ifndef AMPC_CPU_AMX_H
#define AMPC_CPU_AMX_H

#include "runtime/cpu/pack.h"

enum {
    AMX_ROWS = BLOCK_TALL / 2,      /* rows of C in a tile */
    AMX_UNIT = BLOCK_UNIT,          /* pairs of k in a tile                */
    AMX_TILE = AMX_ROWS * AMX_UNIT, /* floats of a tile */
    AMX_HEIGHT = BLOCK_TALL         /* rows of C multiplied at a time      */
};

/* A constant at other levels, so that the compiler drops code that depends
   on it. */
INLINE int on_tiles(int kind) { return HAS_TILES && kind == TILE_AMX; }

/* How a level multiplies two operands: on tiles or in pairs if both are bf16
   and that is faster. */
INLINE int product_kind(int isa, int64_t a_dtype, int64_t b_dtype) {
    if (!HAS_DOT || a_dtype != AMPC_BF16 || b_dtype != AMPC_BF16)
        return TILE_WIDENED;
    return isa == AMPC_ISA_AMX ? TILE_AMX
           : cpu_bf16_dot()    ? TILE_PAIRS
                               : TILE_WIDENED;
}

void amx_begin(void);
void amx_end(void);

/* C[rows][w * VL] (+)= A * B with `units` tiles along k; 1 or 2 tiles high and
   wide. rows <= AMX_HEIGHT, but whole tiles of C are written. a: consecutive
   tiles; the tiles of the second 16 rows begin at a + a_next. b: pairs; row k
   is at b + k * b_step. */
void amx_product(int64_t units, int64_t rows, int w, const float *a,
                 int64_t a_next, const float *b, int64_t b_step, float *c,
                 int64_t ldc, int add);

/* Pairs k0 .. k0 + k - 1 of m rows into panels of 16 rows and k_all pairs, each
   [k_all / 16] tiles; panel i at dst + i * 16 * k_all.  Missing rows, and
   elements beyond the `real` ones of src, become zero. */
void amx_pack_a(float *dst, const PackSrc *src, int64_t k0, int64_t k,
                int64_t k_all, int64_t m, int64_t real);

/* ---- panels of any kind -------------------------------------------------- */

/* Rows of a panel of A, and the number multiplied at a time. */
INLINE int64_t panel_rows(int kind) { return on_tiles(kind) ? AMX_ROWS : MR; }
INLINE int64_t panel_height(int kind) {
    return on_tiles(kind) ? AMX_HEIGHT : MR;
}

/* Packs m rows into panels of that length; `real` elements exist from src
   on. */
INLINE void panel_pack_a(int kind, float *dst, const PackSrc *src, int64_t m,
                         int64_t length, int64_t real) {
    if (on_tiles(kind))
        amx_pack_a(dst, src, 0, length, length, m, real);
    else if (kind == TILE_PAIRS)
        ISA(pack_pairs_a)(dst, src, m, length, real);
    else
        ISA(pack_a)(dst, src, m, length);
}

/* Like pack_b and pack_pairs_b. */
INLINE void panel_pack_b(int kind, float *dst, const PackSrc *src, int64_t k0,
                         int64_t k, int64_t k_all, int64_t n, int64_t real) {
    if (kind == TILE_WIDENED)
        ISA(pack_b)(dst, src, k0, k, k_all, n);
    else
        ISA(pack_pairs_b)(kind, dst, src, k0, k, k_all, n, real);
}

/* C[rows][w * VL] (+)= A * B over `length` elements of k. Panels of A are
   a_step long; row k of B is at b + k * b_step. */
INLINE void panel_product(int kind, int64_t length, int64_t rows, int w,
                          const float *a, int64_t a_step, const float *b,
                          int64_t b_step, float *c, int64_t ldc, int add,
                          const float *ahead) {
    if (on_tiles(kind)) {
        amx_product(length / AMX_UNIT, rows, w, a, AMX_ROWS * a_step, b, b_step,
                    c, ldc, add);
        return;
    }
    TilePanelFn *tile = ISA(tile_panel)[kind][rows - 1][w - 1];
    tile(length, a, b, b_step, c, ldc, add, ahead);
}

#endif
