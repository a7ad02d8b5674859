/* SPDX-License-Identifier: Apache-2.0 */
/* pack_isa.c: packing, with vector transposition where memory has the other
   order. */
#include "runtime/cpu/pack.h"
#include "runtime/cpu/transpose.h"

/* ---- A ------------------------------------------------------------------- */

/* Stores the lanes of v to all panels that they span, `next` apart. */
INLINE void spread(float *dst, int64_t next, vf v) {
#if SIMD_LANES == 4
    (void)next;
    vstore(dst, v);
#elif SIMD_LANES == 8
    *(v4_any *)dst = __builtin_shufflevector(v, v, 0, 1, 2, 3);
    *(v4_any *)(dst + next) = __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    *(v8_any *)dst = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
    *(v8_any *)(dst + next) =
        __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#endif
}

enum {
    PACK_NEAR = 8
}; /* columns whose cache lines are in the cache
      together */

/* Prefetches element i. */
INLINE void pack_ahead(const void *p, int dtype, int64_t i) {
    __builtin_prefetch(at(p, dtype, i));
}

/* Columns are contiguous (rs == 1): packs VL rows at a time; returns their
   number. */
INLINE int64_t pack_a_cols(float *dst, const PackSrc *s, int dtype, int64_t m,
                           int64_t k) {
    m = m / VL * VL;
    for (int64_t j0 = 0; j0 < k; j0 += PACK_NEAR)
        for (int64_t i = 0; i < m; i += VL)
            for (int64_t j = j0; j < min64(j0 + PACK_NEAR, k); j++) {
                pack_ahead(s->p, dtype, i + (j + PACK_NEAR) * s->cs);
                spread(dst + i * k + j * MR, MR * k,
                       vload_as(s->p, dtype, i + j * s->cs));
            }
    return m;
}

/* Eight columns of four rows of 16 bits, widened when they are adjacent. */
INLINE void pack_a_halves(float *dst, const char *src, int dtype, int64_t ld) {
    uint16_t turned[32];
#if HAS_SSE
    __m128i r[4];
    for (int i = 0; i < 4; i++)
        r[i] = _mm_loadu_si128((const void *)(src + i * ld));
    for (int high = 0; high < 2; high++) {
        __m128i a = high ? _mm_unpackhi_epi16(r[0], r[1])
                         : _mm_unpacklo_epi16(r[0], r[1]);
        __m128i b = high ? _mm_unpackhi_epi16(r[2], r[3])
                         : _mm_unpacklo_epi16(r[2], r[3]);
        __m128i *to = (void *)(turned + 16 * high);
        _mm_storeu_si128(to, _mm_unpacklo_epi32(a, b));
        _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(a, b));
    }
#else
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 8; j++)
            memcpy(turned + 4 * j + i, src + i * ld + 2 * j, 2);
#endif
    for (int i = 0; i < 32; i += VL)
        vstore(dst + i, vload_as(turned, dtype, i));
}

/* Packs MR rows, `ld` bytes apart, as columns; returns the number of columns
   packed. */
INLINE int64_t pack_a_transpose(float *dst, const char *src, int dtype,
                                int64_t ld, int64_t k) {
    int64_t j = 0, size = dtype_size(dtype);
    for (; VL == 8 && size == 2 && j + 8 <= k; j += 8)
        pack_a_halves(dst + j * MR, src + j * size, dtype, ld);
    for (; MR == 8 && j + TB <= k; j += TB)
        transpose(dst + j * MR, MR, src + j * size, dtype, ld);
    for (; MR == 4 && j + 4 <= k; j += 4)
        transpose4(dst + j * MR, MR, src + j * size, dtype, ld);
    return j;
}

/* Rows are contiguous (cs == 1). */
INLINE void pack_a_rows(float *dst, const PackSrc *s, int dtype, int64_t k) {
    int64_t ld = s->rs * dtype_size(dtype);
    int64_t j = pack_a_transpose(dst, s->p, dtype, ld, k);
    for (; j < k; j++)
        for (int r = 0; r < MR; r++)
            dst[j * MR + r] = load1(s->p, dtype, r * s->rs + j);
}

INLINE void pack_a_any(float *dst, const PackSrc *s, int dtype, int rows,
                       int64_t rs, int64_t k) {
    for (int64_t j = 0; j < k; j++)
        for (int r = 0; r < rows; r++)
            dst[j * MR + r] = load1(s->p, dtype, r * rs + j * s->cs);
}

INLINE void pack_a_as(float *dst, const PackSrc *s, int dtype, int64_t m,
                      int64_t k) {
    PackSrc at_row = *s;
    int64_t i = s->rs == 1 ? pack_a_cols(dst, s, dtype, m, k) : 0;
    for (dst += i * k; i < m; i += MR, dst += MR * k) {
        at_row.p = at(s->p, dtype, i * s->rs);
        if (m - i < MR)
            pack_a_any(dst, &at_row, dtype, (int)(m - i), s->rs, k);
        else if (s->cs == 1)
            pack_a_rows(dst, &at_row, dtype, k);
        else
            pack_a_any(dst, &at_row, dtype, MR, s->rs, k);
    }
}

void ISA(pack_a)(float *dst, const PackSrc *s, int64_t m, int64_t k) {
    if (s->dtype == AMPC_F32)
        pack_a_as(dst, s, AMPC_F32, m, k);
    else if (s->dtype == AMPC_BF16)
        pack_a_as(dst, s, AMPC_BF16, m, k);
    else
        pack_a_as(dst, s, AMPC_F16, m, k);
}

/* ---- B ------------------------------------------------------------------- */

/* cs == 1: a panel's row is a piece of the matrix row. */
INLINE void pack_b_rows(float *dst, const PackSrc *s, int dtype, int w,
                        int64_t k, int64_t n) {
    int64_t full = n / VL, rest = n % VL;
    for (int64_t i = 0; i < k; i++, dst += w * VL) {
        int64_t j = 0, from = i * s->rs;
        for (; j < full; j++) {
            pack_ahead(s->p, dtype, from + PACK_NEAR * s->rs + j * VL);
            vstore(dst + j * VL, vload_as(s->p, dtype, from + j * VL));
        }
        if (j == w) continue;
        vstore(dst + j * VL, vset(0.0f));
        for (int64_t c = j * VL; c < j * VL + rest; c++)
            dst[c] = load1(s->p, dtype, from + c);
    }
}

INLINE void pack_b_any(float *dst, const PackSrc *s, int dtype, int64_t pw,
                       int64_t k, int64_t n) {
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < pw; j++)
            dst[i * pw + j] =
                j < n ? load1(s->p, dtype, i * s->rs + j * s->cs) : 0.0f;
}

/* rs == 1: columns are contiguous. The last blocks overlap the ones before.
 */
INLINE void pack_b_blocks(int wide, float *dst, const PackSrc *s, int dtype,
                          int64_t pw, int64_t k, int64_t n) {
    int64_t size = wide ? TW : TB, ld = s->cs * dtype_size(dtype);
    for (int64_t j = 0; j < n; j += size)
        for (int64_t i = 0; i < k; i += size) {
            int64_t col = min64(j, n - size), row = min64(i, k - size);
            const void *from = at(s->p, dtype, row + col * s->cs);
            float *to = dst + row * pw + col;
            if (wide)
                transpose_wide(to, pw, from, dtype, ld);
            else
                transpose(to, pw, from, dtype, ld);
        }
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = n; j < pw; j++) dst[i * pw + j] = 0.0f;
}

INLINE void pack_b_cols(float *dst, const PackSrc *s, int dtype, int64_t pw,
                        int64_t k, int64_t n) {
    if (k >= TW && n >= TW)
        pack_b_blocks(1, dst, s, dtype, pw, k, n);
    else if (k >= TB && n >= TB)
        pack_b_blocks(0, dst, s, dtype, pw, k, n);
    else
        pack_b_any(dst, s, dtype, pw, k, n);
}

INLINE void pack_b_panels(float *dst, const PackSrc *s, int dtype, int64_t k0,
                          int64_t k, int64_t k_all, int64_t n) {
    PackSrc at_col = *s;
    int64_t left = ceil_div(n, VL);
    for (int64_t j = 0; j < n;) {
        int w = tile_width(left);
        int64_t cols = min64(w * VL, n - j);
        float *to = dst + j * k_all + k0 * w * VL;
        at_col.p = at(s->p, dtype, j * s->cs);
        if (s->cs == 1)
            pack_b_rows(to, &at_col, dtype, w, k, cols);
        else if (s->rs == 1)
            pack_b_cols(to, &at_col, dtype, w * VL, k, cols);
        else
            pack_b_any(to, &at_col, dtype, w * VL, k, cols);
        j += w * VL;
        left -= w;
    }
}

/* Contiguous rows are read whole, a few at a time. */
INLINE void pack_b_as(float *dst, const PackSrc *s, int dtype, int64_t k0,
                      int64_t k, int64_t k_all, int64_t n) {
    int64_t step = s->cs == 1 ? PACK_NEAR : k;
    for (int64_t i = 0; i < k; i += step) {
        PackSrc rows = *s;
        rows.p = at(s->p, dtype, i * s->rs);
        pack_b_panels(dst, &rows, dtype, k0 + i, min64(step, k - i), k_all, n);
    }
}

void ISA(pack_b)(float *dst, const PackSrc *s, int64_t k0, int64_t k,
                 int64_t k_all, int64_t n) {
    if (s->dtype == AMPC_F32)
        pack_b_as(dst, s, AMPC_F32, k0, k, k_all, n);
    else if (s->dtype == AMPC_BF16)
        pack_b_as(dst, s, AMPC_BF16, k0, k, k_all, n);
    else
        pack_b_as(dst, s, AMPC_F16, k0, k, k_all, n);
}

/* ---- pairs of bf16 ------------------------------------------------------- */

INLINE void pack_pairs_a_any(uint32_t *dst, const uint16_t *p, int rows,
                             int64_t rs, int64_t cs, int64_t j, int64_t k,
                             int64_t real) {
    for (; j < k; j++)
        for (int r = 0; r < rows; r++)
            dst[j * MR + r] = pair1(p + r * rs, cs, j, real);
}

/* Like pack_a_cols, for k pairs that have both elements; a panel has k_all. */
INLINE int64_t pack_pairs_a_cols(float *dst, const uint16_t *p, int64_t cs,
                                 int64_t m, int64_t k, int64_t k_all) {
    m = m / VL * VL;
    for (int64_t j0 = 0; j0 < k; j0 += PACK_NEAR)
        for (int64_t i = 0; i < m; i += VL)
            for (int64_t j = j0; j < min64(j0 + PACK_NEAR, k); j++) {
                const uint16_t *lo = p + i + 2 * j * cs;
                spread(dst + i * k_all + j * MR, MR * k_all,
                       vu_as_f(pairs_of(lo, lo + cs)));
            }
    return m;
}

void ISA(pack_pairs_a)(float *dst, const PackSrc *s, int64_t m, int64_t k,
                       int64_t real) {
    int64_t pairs = min64(k, real / 2); /* complete pairs */
    int64_t cols =
        s->rs == 1 ? pack_pairs_a_cols(dst, s->p, s->cs, m, pairs, k) : 0;
    for (int64_t i = 0; i < m; i += MR, dst += MR * k) {
        const uint16_t *p = (const uint16_t *)s->p + i * s->rs;
        uint32_t *to = (uint32_t *)(void *)dst;
        int rows = (int)min64(MR, m - i);
        if (rows == MR && s->cs == 1) {
            int64_t j = pack_a_transpose(dst, (const char *)p, AMPC_F32,
                                         s->rs * 2, pairs);
            pack_pairs_a_any(to, p, MR, s->rs, 1, j, k, real);
        } else {
            pack_pairs_a_any(to, p, rows, s->rs, s->cs, i < cols ? pairs : 0, k,
                             real);
        }
    }
}

/* cs == 1: two rows are interleaved. */
INLINE void pack_pairs_b_rows(uint32_t *dst, const uint16_t *p, int64_t rs,
                              int w, int64_t k, int64_t real, int64_t n) {
    for (int64_t i = 0; i < k; i++, dst += w * VL) {
        const uint16_t *lo = p + 2 * i * rs, *hi = lo + rs;
        int both = 2 * i + 1 < real;
        int64_t j = 0;
        for (; j + VL <= n; j += VL) {
            vu v = both ? pairs_of(lo + j, hi + j) : vload_u16(lo + j);
            vu_store(dst + j, v);
        }
        for (; j < w * VL; j++) {
            dst[j] = j < n ? lo[j] : 0;
            if (j < n && both) dst[j] |= (uint32_t)hi[j] << 16;
        }
    }
}

INLINE void pack_pairs_b_any(uint32_t *dst, const uint16_t *p, int64_t rs,
                             int64_t cs, int64_t pw, int64_t i, int64_t k,
                             int64_t real, int64_t j0, int64_t n) {
    for (; i < k; i++)
        for (int64_t j = j0; j < pw; j++)
            dst[i * pw + j] = j < n ? pair1(p + j * cs, rs, i, real) : 0;
}

/* rs == 1: columns are contiguous. */
INLINE void pack_pairs_b_cols(float *dst, const uint16_t *p, int64_t cs,
                              int64_t pw, int64_t k, int64_t real, int64_t n) {
    uint32_t *to = (uint32_t *)(void *)dst;
    int64_t i = 0, jend = n / TB * TB, pairs = min64(k, real / 2);
    for (; i + TB <= pairs; i += TB) {
        for (int64_t j = 0; j < jend; j += TB)
            transpose(dst + i * pw + j, pw, (const char *)(p + 2 * i + j * cs),
                      AMPC_F32, cs * 2);
        pack_pairs_b_any(to, p, 1, cs, pw, i, i + TB, real, jend, n);
    }
    pack_pairs_b_any(to, p, 1, cs, pw, i, k, real, 0, n);
}

void ISA(pack_pairs_b)(int kind, float *dst, const PackSrc *s, int64_t k0,
                       int64_t k, int64_t k_all, int64_t n, int64_t real) {
    int64_t left = ceil_div(n, VL), some = min64(k, ceil_div(real, 2));
    for (int64_t j = 0; j < n;) {
        int w = panel_width(kind, left);
        int64_t cols = min64(w * VL, n - j);
        float *to = dst + j * k_all + k0 * w * VL;
        const uint16_t *p = (const uint16_t *)s->p + j * s->cs;
        if (s->cs == 1)
            pack_pairs_b_rows((uint32_t *)(void *)to, p, s->rs, w, some, real,
                              cols);
        else if (s->rs == 1)
            pack_pairs_b_cols(to, p, s->cs, w * VL, some, real, cols);
        else
            pack_pairs_b_any((uint32_t *)(void *)to, p, s->rs, s->cs, w * VL, 0,
                             some, real, 0, cols);
        for (int64_t i = some * w * VL; i < k * w * VL; i++) to[i] = 0.0f;
        j += w * VL;
        left -= w;
    }
}
