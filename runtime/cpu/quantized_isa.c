/* SPDX-License-Identifier: Apache-2.0 */
/* quantized_isa.c: quantised weights (quantized.h), widened as a whole or by
   matrix products while they pack a piece, which round fp32 weights, too. */
#define SIMD_WANTS_DOT
#include "runtime/cpu/amx.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/routines.h"
#include "runtime/program/quantized.h"

enum { BLOCK = QUANTIZED_BLOCK };

/* The levels of both codes in a byte. */
typedef struct Levels {
    float pair[256][2];
} Levels;

static void levels_of(int64_t code, Levels *to) {
    for (unsigned i = 0; i < 256; i++) {
        to->pair[i][0] = quantized_level4((int)code, i);
        to->pair[i][1] = quantized_level4((int)code, i >> 4);
    }
}

typedef struct Weight {
    int64_t code;
    const void *q;
    const float *scale;
    Levels levels; /* of four bits */
} Weight;

static void weight_of(int64_t code, const void *q, const void *scale,
                      Weight *to) {
    to->code = code;
    to->q = q;
    to->scale = scale;
    if (code == QUANTIZED_INT4 || code == QUANTIZED_NF4)
        levels_of(code, &to->levels);
}

/* n elements of one block from element i on. */
INLINE void widen_int8(const Weight *w, int64_t i, int64_t n, float *to) {
    const int8_t *q = (const int8_t *)w->q + i;
    float scale = w->scale[i / BLOCK];
    for (int64_t j = 0; j < n; j++) to[j] = (float)q[j] * scale;
}

INLINE void widen_pairs(const Weight *w, int64_t i, int64_t n, float *to) {
    const uint8_t *q = (const uint8_t *)w->q;
    float scale = w->scale[i / BLOCK];
    int64_t j = 0;
    if (i % 2 && n) to[j++] = w->levels.pair[q[i / 2]][1] * scale;
    for (; j + 2 <= n; j += 2) {
        const float *pair = w->levels.pair[q[(i + j) / 2]];
        to[j] = pair[0] * scale;
        to[j + 1] = pair[1] * scale;
    }
    if (j < n) to[j] = w->levels.pair[q[(i + j) / 2]][0] * scale;
}

/* n elements from element i on. */
static void widen_elements(const Weight *w, int64_t i, int64_t n, float *to) {
    while (n > 0) {
        int64_t some = min64(n, BLOCK - i % BLOCK);
        if (w->code == QUANTIZED_INT8)
            widen_int8(w, i, some, to);
        else
            widen_pairs(w, i, some, to);
        i += some;
        to += some;
        n -= some;
    }
}

/* ---- whole --------------------------------------------------------------- */

typedef struct Whole {
    Weight w;
    const LibWidenQuantized *p;
    void *y;
} Whole;

static void widen_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const Whole *r = ctx;
    float x[BLOCK];
    (void)worker;
    for (int64_t i = lo * BLOCK; i < min64(hi * BLOCK, r->p->n); i += BLOCK) {
        int64_t n = min64(BLOCK, r->p->n - i);
        widen_elements(&r->w, i, n, x);
        narrow(r->y, (int)r->p->y_dtype, i, x, n);
    }
}

void ISA(widen_quantized)(AmpcPool *pool, const LibWidenQuantized *p,
                          const void *q, const void *scale, void *y) {
    Whole r = {.p = p, .y = y};
    weight_of(p->code, q, scale, &r.w);
    pool_run(pool, quantized_blocks(p->n), 64, widen_work, &r);
}

/* ---- products ------------------------------------------------------------ */

/* Elements of B while it is packed: some rows of all columns of an item, twice
   as many of 16 bits. */
enum { PIECE_K = 32, PIECE_N = 432 };

static int64_t piece_rows(const LibGemmQuantized *p) {
    return p->a_dtype == AMPC_F32 ? PIECE_K : 2 * PIECE_K;
}

typedef struct Right {
    GemmMade made;
    const LibGemmQuantized *p;
    Weight w;
} Right;

/* Rows [k0, k0 + k) of columns [n0, n0 + n), in memory order and in the
   dtype of A. */
static PackSrc piece_of(const Right *r, int64_t n0, int64_t n, int64_t k0,
                        int64_t k, void *piece) {
    const LibGemmQuantized *p = r->p;
    int along_k = p->b_rs == 1, dtype = (int)p->a_dtype;
    int64_t lines = along_k ? n : k, length = along_k ? k : n;
    int64_t ld = along_k ? piece_rows(p) : PIECE_N;
    float x[PIECE_N];
    for (int64_t i = 0; i < lines; i++) {
        int64_t at =
            along_k ? (n0 + i) * p->b_cs + k0 : (k0 + i) * p->b_rs + n0;
        const float *from = x;
        if (p->code == QUANTIZED_F32)
            from = (const float *)r->w.q + at;
        else
            widen_elements(&r->w, at, length, x);
        narrow(piece, dtype, i * ld, from, length);
    }
    return (PackSrc){piece, dtype, along_k ? 1 : ld, along_k ? ld : 1};
}

static void pack_right(const GemmMade *b, int kind, float *dst, int64_t n0,
                       int64_t n, int64_t k0, int64_t k, int64_t to,
                       int64_t k_all) {
    const Right *r = (const Right *)b;
    float piece[PIECE_K * PIECE_N];
    int64_t rows = piece_rows(r->p), unit = kind ? rows / 2 : rows;
    int64_t all = block_length(kind, k);
    for (int64_t i = 0; i < all; i += unit) {
        int64_t from = kind ? 2 * i : i, real = min64(rows, k - from);
        PackSrc s = piece_of(r, n0, n, k0 + from, max64(real, 0), piece);
        panel_pack_b(kind, dst, &s, to + i, min64(unit, all - i), k_all, n,
                     max64(real, 0));
    }
}

void ISA(gemm_quantized)(int isa, AmpcPool *pool, const LibGemmQuantized *p,
                         const void *a, const void *q, const void *scale,
                         void *c, const CpuEpilogue *ep, void *scratch) {
    Right r = {.made.pack = pack_right, .p = p};
    LibGemm g = gemm_of_quantized(p);
    weight_of(p->code, q, scale, &r.w);
    ISA(gemm_made)(isa, pool, &g, a, &r.made, c, ep, scratch);
}
