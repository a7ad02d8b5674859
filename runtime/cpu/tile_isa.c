/* SPDX-License-Identifier: Apache-2.0 */
/* tile_isa.c: the register tiles, one instance per height and width. */
#define SIMD_WANTS_DOT
#include "runtime/cpu/tile.h"

/* The loops below are unrolled completely: R, W and C are constants. */
#define UNROLL SIMD_UNROLL(32)
/* A loop with a second condition: some gcc warn that they do not unroll it. */
#ifdef AMPC_PORTABLE
#define UNROLL_IF
#else
#define UNROLL_IF UNROLL
#endif

/* A step of a small tile has no time for prefetches. */
INLINE void tile_fetch(const float *ahead, int64_t k) {
    if (SIMD_FETCHES) __builtin_prefetch(ahead + k * TILE_LINE, 0, 2);
}

INLINE void tile_begin(int R, int W, vf acc[MR][NV], const float *c,
                       int64_t ldc, int add) {
    if (!add) {
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int w = 0; w < W; w++)
            acc[r][w] = vset(0.0f);
        return;
    }
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int w = 0; w < W; w++) acc[r][w] = vload(c + w * VL);
        c += ldc;
        SIMD_HIDE(c);
    }
}

typedef int32_t pair_any __attribute__((may_alias, aligned(2)));

/* c + a * b, or c + a0 * b0 + a1 * b1 for pairs of bf16. */
INLINE vf tile_fma(int kind, vf a, vf b, vf c) {
#if HAS_DOT
    if (kind == 1) return vdot(a, b, c);
#endif
    (void)kind;
    return vfma(a, b, c);
}

INLINE vf tile_set(int kind, const float *a) {
    if (kind == 1) return vi_as_f(vi_set(*(const pair_any *)a));
    return vset(*a);
}

INLINE void tile_step(int kind, int R, int W, vf acc[MR][NV], const float *a,
                      const float *b) {
    vf row[NV];
    UNROLL for (int w = 0; w < W; w++) row[w] = vload(b + w * VL);
    UNROLL for (int r = 0; r < R; r++) {
        vf x = tile_set(kind, a + r);
        UNROLL for (int w = 0; w < W; w++) acc[r][w] =
            tile_fma(kind, x, row[w], acc[r][w]);
    }
}

/* One step of k with unpacked rows of A: element i of each row. */
INLINE void tile_step_rows(int kind, int R, int W, vf acc[MR][NV],
                           const float *const p[MR], int64_t i,
                           const float *b) {
    vf row[NV];
    UNROLL for (int w = 0; w < W; w++) row[w] = vload(b + w * VL);
    UNROLL for (int r = 0; r < R; r++) {
        vf x = tile_set(kind, p[r] + i);
        UNROLL for (int w = 0; w < W; w++) acc[r][w] =
            tile_fma(kind, x, row[w], acc[r][w]);
    }
}

INLINE void tile_end(int R, int W, vf acc[MR][NV], float *c, int64_t ldc) {
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int w = 0; w < W; w++) vstore(c + w * VL, acc[r][w]);
        c += ldc;
        SIMD_HIDE(c);
    }
}

INLINE void tile_panel_rw(int kind, int R, int W, int64_t k, const float *a,
                          const float *b, int64_t b_step, float *c, int64_t ldc,
                          int add, const float *ahead) {
    vf acc[MR][NV];
    tile_begin(R, W, acc, c, ldc, add);
    SIMD_STEPS for (int64_t i = 0; i < k; i++) {
        tile_fetch(ahead, i);
        tile_step(kind, R, W, acc, a, b);
        a += MR;
        b += b_step;
    }
    tile_end(R, W, acc, c, ldc);
}

INLINE void tile_rows_rw(int kind, int R, int W, int64_t k, const float *a,
                         int64_t lda, const float *b, int64_t b_step, float *c,
                         int64_t ldc, int add, const float *ahead) {
    vf acc[MR][NV];
    const float *p[MR];
    UNROLL for (int r = 0; r < R; r++) p[r] = a + r * lda;
    tile_begin(R, W, acc, c, ldc, add);
    SIMD_STEPS for (int64_t i = 0; i < k; i++, b += b_step) {
        tile_fetch(ahead, i);
        tile_step_rows(kind, R, W, acc, p, i, b);
    }
    tile_end(R, W, acc, c, ldc);
}

INLINE void tile_slice_rw(int kind, int R, int W, int64_t k, const float *a,
                          const float *b, const int32_t *off, float *c,
                          int64_t ldc, int add) {
    vf acc[MR][NV];
    tile_begin(R, W, acc, c, ldc, add);
    SIMD_STEPS for (int64_t i = 0; i < k; i++) {
        tile_step(kind, R, W, acc, a, b + off[i]);
        a += MR;
    }
    tile_end(R, W, acc, c, ldc);
}

/* ---- channels-last tiles ------------------------------------------------- */

INLINE void tile_points_rw(int kind, int R, int W, const TilePoints *t) {
    vf acc[MR][NV];
    const float *block = t->w, *src = t->src;
    float *c[MR];
    int32_t at[MR];
    UNROLL for (int r = 0; r < R; r++) {
        at[r] = t->row[t->at[r]];
        c[r] = t->c + t->at[r] * t->ldc;
        UNROLL for (int i = 0; i < W; i++) acc[r][i] =
            t->add ? vload(c[r] + i * VL) : vset(0.0f);
    }
    for (int64_t left = t->channels; left > 0; left -= t->cb) {
        int64_t n = min64(left, t->cb);
        for (int64_t k = 0; k < t->used; k++) {
            const float *p[MR], *w = block + t->tap[k] * n * t->w_step;
            UNROLL for (int r = 0; r < R; r++) p[r] =
                src + t->shift[t->tap[k]] + at[r];
            SIMD_STEPS for (int64_t j = 0; j < n; j++, w += t->w_step)
                tile_step_rows(kind, R, W, acc, p, j, w);
        }
        src += t->block_step;
        block += t->taps * n * t->w_step;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int i = 0; i < W; i++)
        vstore(c[r] + i * VL, acc[r][i]);
}

INLINE void tile_outer_rw(int kind, int R, int W, int64_t n, const int32_t *at,
                          const float *a, const int32_t *row, const float *b,
                          int64_t b_step, float *c, int64_t ldc, int add) {
    vf acc[MR][NV];
    tile_begin(R, W, acc, c, ldc, 0);
    SIMD_STEPS for (int64_t i = 0; i < n; i++)
        tile_step(kind, R, W, acc, a + row[at[i]], b + at[i] * b_step);
    UNROLL_IF for (int r = 0; add && r < R; r++)
        UNROLL for (int w = 0; w < W; w++) acc[r][w] =
            vadd(vload(c + r * ldc + w * VL), acc[r][w]);
    tile_end(R, W, acc, c, ldc);
}

/* ---- lines of one channel ------------------------------------------------ */

/* Line y of the source, for lines [from, to) of the result. */
INLINE void tile_line(int W, const TileLines *t, vf acc[TILE_LINES][NV],
                      int64_t y, int64_t from, int64_t to) {
    const float *src = t->src + y * t->pitch, *w = t->w + y * t->wide * MR;
    for (int64_t x = 0; x < t->wide; x++, src++, w += MR) {
        vf v[NV];
        UNROLL for (int i = 0; i < W; i++) v[i] = vload(src + i * VL);
        UNROLL for (int l = 0; l < TILE_LINES; l++) {
            if (l < from || l >= to) continue;
            vf tap = vset(w[-l * t->wide * MR]);
            UNROLL for (int i = 0; i < W; i++) acc[l][i] =
                vfma(tap, v[i], acc[l][i]);
        }
    }
}

INLINE void tile_lines_w(int W, const TileLines *t) {
    vf acc[TILE_LINES][NV];
    UNROLL for (int l = 0; l < TILE_LINES; l++)
        UNROLL for (int i = 0; i < W; i++) acc[l][i] = vset(0.0f);
    for (int64_t y = 0; y < t->high + t->lines - 1; y++) {
        int64_t from = max64(0, y - t->high + 1), to = min64(t->lines, y + 1);
        if (from == 0 && to == TILE_LINES)
            tile_line(W, t, acc, y, 0, TILE_LINES);
        else
            tile_line(W, t, acc, y, from, to);
    }
    UNROLL for (int l = 0; l < TILE_LINES; l++) {
        if (l >= t->lines) continue;
        UNROLL for (int i = 0; i < W; i++)
            vstore(t->c + l * t->pitch + i * VL, acc[l][i]);
    }
}

/* ---- dot tiles ----------------------------------------------------------- */

/* Keeps a loaded vector in a register instead of loading it for each use. */
#ifdef SIMD_REGISTER
#define KEEP(v) __asm__("" : SIMD_REGISTER(v))
#else
#define KEEP(v) (void)(v)
#endif

INLINE const void *dot_at(int kind, const void *p, int64_t i) {
    return (const char *)p + i * (kind == 1 ? 2 : 4);
}

INLINE void tile_dot_rc(int kind, int R, int C, const TileDot *t) {
    vf acc[DOT_R * DOT_C + 3]; /* acc[r * C + j] */
    UNROLL for (int i = 0; i < R * C + 3; i++) acc[i] = vset(0.0f);
    const void *a = t->a, *b[DOT_C];
    UNROLL for (int j = 0; j < C; j++) b[j] = dot_at(kind, t->b, t->off[j]);
    for (int64_t n = 0; n < t->images; n++) {
        for (int64_t i = 0; i < t->len; i += kind == 1 ? 2 * VL : VL) {
            vf x[DOT_R];
            UNROLL for (int r = 0; r < R; r++) x[r] =
                vload(dot_at(kind, a, r * t->lda + i));
            UNROLL for (int j = 0; j < C; j++) {
                vf y = vload(dot_at(kind, b[j], i));
                KEEP(y);
                UNROLL for (int r = 0; r < R; r++) acc[r * C + j] =
                    tile_fma(kind, x[r], y, acc[r * C + j]);
            }
        }
        a = dot_at(kind, a, t->a_image);
        UNROLL for (int j = 0; j < C; j++) b[j] =
            dot_at(kind, b[j], t->b_image);
    }
    float sum[DOT_R * DOT_C + 3];
    UNROLL for (int i = 0; i < R * C; i += 4)
        vsum4(sum + i, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
    for (int r = 0; r < R; r++)
        for (int j = 0; j < C; j++) t->c[r * t->ldc + j] += sum[r * C + j];
}

/* ---- instances ----------------------------------------------------------- */

#define PANEL_OF(kind, R, W)                                                   \
    static void tile_panel##kind##_##R##_##W(                                  \
        int64_t k, const float *a, const float *b, int64_t b_step, float *c,   \
        int64_t ldc, int add, const float *ahead) {                            \
        tile_panel_rw(kind, R, W, k, a, b, b_step, c, ldc, add, ahead);        \
    }                                                                          \
    static void tile_rows##kind##_##R##_##W(                                   \
        int64_t k, const float *a, int64_t lda, const float *b,                \
        int64_t b_step, float *c, int64_t ldc, int add, const float *ahead) {  \
        tile_rows_rw(kind, R, W, k, a, lda, b, b_step, c, ldc, add, ahead);    \
    }                                                                          \
    static void tile_slice##kind##_##R##_##W(                                  \
        int64_t k, const float *a, const float *b, const int32_t *off,         \
        float *c, int64_t ldc, int add) {                                      \
        tile_slice_rw(kind, R, W, k, a, b, off, c, ldc, add);                  \
    }                                                                          \
    static void tile_points##kind##_##R##_##W(const TilePoints *t) {           \
        tile_points_rw(kind, R, W, t);                                         \
    }                                                                          \
    static void tile_outer##kind##_##R##_##W(                                  \
        int64_t n, const int32_t *at, const float *a, const int32_t *row,      \
        const float *b, int64_t b_step, float *c, int64_t ldc, int add) {      \
        tile_outer_rw(kind, R, W, n, at, a, row, b, b_step, c, ldc, add);      \
    }
#define DOT_OF(kind, R, C)                                                     \
    static void tile_dot##kind##_##R##_##C(const TileDot *t) {                 \
        tile_dot_rc(kind, R, C, t);                                            \
    }
#if HAS_DOT
#define PANEL(R, W) PANEL_OF(0, R, W) PANEL_OF(1, R, W)
#define DOT(R, C)   DOT_OF(0, R, C) DOT_OF(1, R, C)
#define KINDS(rows, P)                                                         \
    { rows(P##0), rows(P##1) }
#else
#define PANEL(R, W) PANEL_OF(0, R, W)
#define DOT(R, C)   DOT_OF(0, R, C)
#define KINDS(rows, P)                                                         \
    { rows(P##0) }
#endif

#if SIMD_VECTORS == 2
#define PANELS(X, R) X(R, 1) X(R, 2)
#define PANEL_ROW(P, R)                                                        \
    { P##_##R##_1, P##_##R##_2 }
#else
#define PANELS(X, R) X(R, 1) X(R, 2) X(R, 3)
#define PANEL_ROW(P, R)                                                        \
    { P##_##R##_1, P##_##R##_2, P##_##R##_3 }
#endif

static void tile_lines_1(const TileLines *t) { tile_lines_w(1, t); }
static void tile_lines_2(const TileLines *t) { tile_lines_w(2, t); }
#if SIMD_VECTORS == 3
static void tile_lines_3(const TileLines *t) { tile_lines_w(3, t); }
TileLinesFn *const ISA(tile_lines)[NV] = {tile_lines_1, tile_lines_2,
                                          tile_lines_3};
#else
TileLinesFn *const ISA(tile_lines)[NV] = {tile_lines_1, tile_lines_2};
#endif

PANELS(PANEL, 1)
PANELS(PANEL, 2)
PANELS(PANEL, 3)
PANELS(PANEL, 4)
#if SIMD_ROWS == 8
PANELS(PANEL, 5)
PANELS(PANEL, 6)
PANELS(PANEL, 7)
PANELS(PANEL, 8)
#define PANEL_ROWS(P)                                                          \
    {                                                                          \
        PANEL_ROW(P, 1), PANEL_ROW(P, 2), PANEL_ROW(P, 3), PANEL_ROW(P, 4),    \
            PANEL_ROW(P, 5), PANEL_ROW(P, 6), PANEL_ROW(P, 7), PANEL_ROW(P, 8) \
    }
#else
#define PANEL_ROWS(P)                                                          \
    { PANEL_ROW(P, 1), PANEL_ROW(P, 2), PANEL_ROW(P, 3), PANEL_ROW(P, 4) }
#endif

TilePanelFn *const ISA(tile_panel)[TILE_KINDS][MR][NV] = KINDS(PANEL_ROWS,
                                                               tile_panel);
TileRowsFn *const ISA(tile_rows)[TILE_KINDS][MR][NV] = KINDS(PANEL_ROWS,
                                                             tile_rows);
TileSliceFn *const ISA(tile_slice)[TILE_KINDS][MR][NV] = KINDS(PANEL_ROWS,
                                                               tile_slice);

TilePointsFn *const ISA(tile_points)[TILE_KINDS][MR][NV] = KINDS(PANEL_ROWS,
                                                                 tile_points);
TileOuterFn *const ISA(tile_outer)[TILE_KINDS][MR][NV] = KINDS(PANEL_ROWS,
                                                               tile_outer);

#if SIMD_DOT_COLS == 6
#define DOTS(R) DOT(R, 1) DOT(R, 2) DOT(R, 3) DOT(R, 4) DOT(R, 5) DOT(R, 6)
#define DOT_ROW(P, R)                                                          \
    {                                                                          \
        P##_##R##_1, P##_##R##_2, P##_##R##_3, P##_##R##_4, P##_##R##_5,       \
            P##_##R##_6                                                        \
    }
#define DOT_ROWS(P)                                                            \
    { DOT_ROW(P, 1), DOT_ROW(P, 2), DOT_ROW(P, 3), DOT_ROW(P, 4) }
DOTS(3)
DOTS(4)
#else
#define DOTS(R) DOT(R, 1) DOT(R, 2) DOT(R, 3) DOT(R, 4)
#define DOT_ROW(P, R)                                                          \
    { P##_##R##_1, P##_##R##_2, P##_##R##_3, P##_##R##_4 }
#if SIMD_DOT_ROWS == 3
#define DOT_ROWS(P)                                                            \
    { DOT_ROW(P, 1), DOT_ROW(P, 2), DOT_ROW(P, 3) }
DOTS(3)
#else
#define DOT_ROWS(P)                                                            \
    { DOT_ROW(P, 1), DOT_ROW(P, 2) }
#endif
#endif
DOTS(1)
DOTS(2)
TileDotFn *const ISA(tile_dot)[TILE_KINDS][DOT_R][DOT_C] = KINDS(DOT_ROWS,
                                                                 tile_dot);
