/* SPDX-License-Identifier: Apache-2.0 */
/* amx_isa.c: the AMX microkernel and the packing of its left operand. */
#include "runtime/cpu/amx.h"

#if HAS_TILES
#include "runtime/cpu/transpose.h"

/* ---- instructions -------------------------------------------------------- */

/* Inline assembly, because the load intrinsics of gcc 12 do not declare that
   they read memory. */
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, p, step)                                                  \
    __asm__ volatile("tileloadd (%0,%1), %%tmm" #t ::"r"(p),                   \
                     "r"((int64_t)(step))                                      \
                     : "memory")
#define TILE_STORE(t, p, step)                                                 \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1)" ::"r"(p),               \
                     "r"((int64_t)(step))                                      \
                     : "memory")
#define TILE_DOT(c, a, b)                                                      \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

void amx_begin(void) { __asm__ volatile("ldtilecfg %0" ::"m"(cpu_tiles)); }

void amx_end(void) { __asm__ volatile("tilerelease" ::); }

/* ---- product ------------------------------------------------------------- */

/* Tiles 0, 1 and 2, 3 are C's rows, 4 and 5 A's, 6 and 7 B's columns. */
INLINE void amx_panel(int R, int W, int64_t units, const float *a,
                      int64_t a_next, const float *b, int64_t b_step, float *c,
                      int64_t ldc, int add) {
    float *c2 = c + AMX_ROWS * ldc;
    int64_t bld = b_step * 4, cld = ldc * 4;
    if (add) {
        TILE_LOAD(0, c, cld);
        if (W == 2) TILE_LOAD(1, c + VL, cld);
        if (R == 2) TILE_LOAD(2, c2, cld);
        if (R == 2 && W == 2) TILE_LOAD(3, c2 + VL, cld);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t i = 0; i < units; i++) {
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, bld);
        TILE_DOT(0, 4, 6);
        if (W == 2) {
            TILE_LOAD(7, b + VL, bld);
            TILE_DOT(1, 4, 7);
        }
        if (R == 2) {
            TILE_LOAD(5, a + a_next, 64);
            TILE_DOT(2, 5, 6);
            if (W == 2) TILE_DOT(3, 5, 7);
        }
        a += AMX_TILE;
        b += AMX_UNIT * b_step;
    }
    TILE_STORE(0, c, cld);
    if (W == 2) TILE_STORE(1, c + VL, cld);
    if (R == 2) TILE_STORE(2, c2, cld);
    if (R == 2 && W == 2) TILE_STORE(3, c2 + VL, cld);
}

void amx_product(int64_t units, int64_t rows, int w, const float *a,
                 int64_t a_next, const float *b, int64_t b_step, float *c,
                 int64_t ldc, int add) {
    if (rows > AMX_ROWS && w == 2)
        amx_panel(2, 2, units, a, a_next, b, b_step, c, ldc, add);
    else if (rows > AMX_ROWS)
        amx_panel(2, 1, units, a, a_next, b, b_step, c, ldc, add);
    else if (w == 2)
        amx_panel(1, 2, units, a, a_next, b, b_step, c, ldc, add);
    else
        amx_panel(1, 1, units, a, a_next, b, b_step, c, ldc, add);
}

/* ---- packing ------------------------------------------------------------- */

typedef uint32_t pair_out __attribute__((may_alias));

/* Address of pair q of row r in a panel. */
INLINE float *tile_at(float *panel, int64_t r, int64_t q) {
    return panel + q / AMX_UNIT * AMX_TILE + r * AMX_UNIT + q % AMX_UNIT;
}

/* One row contiguous in memory: pairs k0 .., `real` elements at p. */
INLINE void pack_tiles_row(float *panel, int64_t r, const uint16_t *p,
                           int64_t k0, int64_t k, int64_t real) {
    int64_t pairs = min64(k, real / 2);
    for (int64_t q = 0, n; q < k; q += n) {
        n = min64(AMX_UNIT - (k0 + q) % AMX_UNIT, k - q);
        float *to = tile_at(panel, r, k0 + q);
        if (q + n <= pairs) {
            __mmask16 m = (__mmask16)((1u << n) - 1);
            _mm512_mask_storeu_epi32(to, m,
                                     _mm512_maskz_loadu_epi32(m, p + 2 * q));
            continue;
        }
        for (int64_t i = q; i < q + n; i++)
            *(pair_out *)(to + i - q) = 2 * i < real ? pair1(p, 1, i, real) : 0;
    }
}

/* 16 adjacent rows, a whole tile of pairs `cs` elements apart. */
INLINE void pack_tiles_turn(float *to, const uint16_t *p, int64_t cs) {
    uint32_t woven[AMX_UNIT][AMX_ROWS];
    for (int64_t q = 0; q < AMX_UNIT; q++)
        vu_store(woven[q], pairs_of(p + 2 * q * cs, p + (2 * q + 1) * cs));
    for (int y = 0; y < AMX_UNIT; y += TB)
        for (int x = 0; x < AMX_ROWS; x += TB)
            transpose(to + x * AMX_UNIT + y, AMX_UNIT, &woven[y][x], AMPC_F32,
                      sizeof woven[0]);
}

static void pack_tiles_panel(float *panel, const PackSrc *s, int64_t k0,
                             int64_t k, int64_t rows, int64_t real) {
    const uint16_t *p = s->p;
    int64_t q = 0;
    if (s->cs == 1) {
        for (int64_t r = 0; r < rows; r++)
            pack_tiles_row(panel, r, p + r * s->rs, k0, k, real);
        q = k;
    }
    if (s->rs == 1 && rows == AMX_ROWS && k0 % AMX_UNIT == 0)
        for (; q + AMX_UNIT <= min64(k, real / 2); q += AMX_UNIT)
            pack_tiles_turn(tile_at(panel, 0, k0 + q), p + 2 * q * s->cs,
                            s->cs);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = q; i < k; i++)
            *(pair_out *)tile_at(panel, r, k0 + i) =
                2 * i < real ? pair1(p + r * s->rs, s->cs, i, real) : 0;
    for (int64_t r = rows; r < AMX_ROWS; r++)
        for (int64_t i = 0; i < k; i++) *tile_at(panel, r, k0 + i) = 0.0f;
}

void amx_pack_a(float *dst, const PackSrc *s, int64_t k0, int64_t k,
                int64_t k_all, int64_t m, int64_t real) {
    PackSrc panel = *s;
    for (int64_t i = 0; i < m; i += AMX_ROWS, dst += AMX_ROWS * k_all) {
        panel.p = at(s->p, AMPC_BF16, i * s->rs);
        pack_tiles_panel(dst, &panel, k0, k, min64(AMX_ROWS, m - i), real);
    }
}

#endif
