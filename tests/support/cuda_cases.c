/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_cases.c: see cuda_cases.h. */
#include <stdint.h>
#include <string.h>

#include "passes/device/fold.h"
#include "runtime/program/quantized.h"
#include "tests/support/cuda_cases.h"
#include "tests/support/cuda_shapes.h"

int64_t cuda_volume(const int64_t *v) { return v[0] * v[1] * v[2]; }

/* Product of the batch dims along which a stride moves. */
static int64_t gemm_span(const LibGemm *g, const int64_t *stride,
                         int64_t matrix) {
    int64_t last = matrix - 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++)
        last += (g->batch_dim[i] - 1) * stride[i];
    return matrix ? last + 1 : 0;
}

static void gemm_bufs(const LibGemm *g, CudaBuf *b) {
    int64_t batch = 1;
    for (int64_t i = 0; i < g->nbatch_dim; i++) batch *= g->batch_dim[i];
    b[0] = (CudaBuf){g->a_dtype, gemm_span(g, g->a_bs, g->m * g->k), NULL};
    b[1] = (CudaBuf){g->b_dtype, gemm_span(g, g->b_bs, g->k * g->n), NULL};
    b[2] = (CudaBuf){g->c_dtype, batch * g->m * g->n, NULL};
}

/* Codes of int8: magnitudes of 4-bit codes differ from their levels'. */
static void gemm_quantized_bufs(const LibGemmQuantized *g, CudaBuf *b) {
    b[0] = (CudaBuf){g->a_dtype, g->m * g->k, NULL};
    b[1] = (CudaBuf){g->q_dtype, g->k * g->n, NULL};
    b[2] = (CudaBuf){g->scale_dtype, quantized_blocks(g->k * g->n), NULL};
    if (g->code == QUANTIZED_F32) b[2].count = -1;
    b[3] = (CudaBuf){g->c_dtype, g->m * g->n, NULL};
}

static void conv_bufs(const CudaCase *c, CudaBuf *b) {
    const LibConv *p = &c->p.conv;
    CudaBuf x = {p->x_dtype, p->n * p->c * cuda_volume(p->in), NULL};
    int64_t filter = p->c / p->group * cuda_volume(p->kernel);
    CudaBuf w = {p->w_dtype, p->k * filter, NULL};
    CudaBuf y = {p->y_dtype, p->n * p->k * cuda_volume(p->out), NULL};
    bool fwd = c->lib == PLAN_LIB_CONV_FWD || c->lib == PLAN_LIB_CONV_SUMS;
    bool dgrad = c->lib == PLAN_LIB_CONV_DGRAD;
    b[0] = dgrad ? y : x;
    b[1] = fwd || dgrad ? w : y;
    b[2] = fwd ? y : dgrad ? x : w;
}

static void conv_sums_bufs(const CudaCase *c, CudaBuf *b) {
    const LibConvSums *p = &c->p.conv_sums;
    int64_t strips = (p->n * cuda_volume(p->out) + p->strip - 1) / p->strip;
    conv_bufs(c, b);
    b[3] = b[4] = (CudaBuf){AMPC_F32, strips * p->k, NULL};
}

static void conv_dgrad_sums_bufs(const CudaCase *c, CudaBuf *b) {
    const LibConvDgradSums *p = &c->p.conv_dgrad_sums;
    CudaCase dgrad = {.lib = PLAN_LIB_CONV_DGRAD, .p = c->p};
    int64_t columns = p->n * cuda_volume(p->in), count = columns * p->c;
    int64_t strips = (columns + p->strip - 1) / p->strip;
    CudaBuf channels = {AMPC_F32, p->c, NULL};
    CudaBuf affine = {AMPC_F32, p->gated ? -1 : p->c, NULL};
    conv_bufs(&dgrad, b);
    b[9] = b[2];
    b[2] = (CudaBuf){p->norm_dtype, count, NULL};
    b[3] = b[4] = channels;
    b[5] = (CudaBuf){p->gate_dtype, p->gated ? count : -1, NULL};
    b[6] = b[7] = affine;
    b[8] = (CudaBuf){p->add_dtype, p->adds ? count : -1, NULL};
    b[10] = b[11] = (CudaBuf){AMPC_F32, strips * p->c, NULL};
}

static void pool_bufs(const CudaCase *c, CudaBuf *b) {
    const LibPool *p = &c->p.pool;
    CudaBuf x = {p->dtype, p->planes * cuda_volume(p->in), NULL};
    CudaBuf y = {p->dtype, p->planes * cuda_volume(p->out), NULL};
    CudaBuf idx = {p->idx_dtype, y.count, NULL};
    bool back =
        c->lib == PLAN_LIB_MAXPOOL_GRAD || c->lib == PLAN_LIB_AVGPOOL_GRAD;
    b[0] = back ? y : x;
    b[1] = c->lib == PLAN_LIB_MAXPOOL_GRAD ? idx : back ? x : y;
    b[2] = c->lib == PLAN_LIB_MAXPOOL ? idx : x;
}

static int attend_bufs(const CudaCase *c, CudaBuf *b) {
    const LibAttend *p = &c->p.attend;
    int64_t keys = p->batch / p->group, queries = p->batch * p->t;
    int64_t mask = (p->mask_rows ? p->t : 1) * (p->mask_cols ? p->u : 1);
    int64_t lines = p->batch / p->q_heads * p->t; /* of k and v: of u */
    CudaBuf q = {p->q_dtype, lines * p->q_width * p->d, NULL};
    CudaBuf k = {p->k_dtype, keys / p->kv_heads * p->u * p->k_width * p->d,
                 NULL};
    CudaBuf v = {p->v_dtype, keys / p->kv_heads * p->u * p->v_width * p->e,
                 NULL};
    CudaBuf y = {p->y_dtype, queries * p->e, NULL};
    CudaBuf lse = {p->lse_dtype, 2 * queries, NULL};
    CudaBuf delta = {p->delta_dtype, queries, NULL};
    CudaBuf m = {p->mask_dtype, p->mask_mod ? p->mask_mod * mask : -1, NULL};
    CudaBuf rng = {p->rng_dtype, p->drop ? 2 : -1, NULL};
    if (c->lib == PLAN_LIB_ATTEND) {
        memcpy(b, (CudaBuf[]){q, k, v, m, rng, y, lse}, 7 * sizeof *b);
        return 7;
    }
    memcpy(b, (CudaBuf[]){q, k, v, y, lse, delta, m, rng, q, k, v},
           11 * sizeof *b);
    b[11] =
        (CudaBuf){p->sums_dtype, p->packed == 2 ? q.count / p->t : -1, NULL};
    b[8] = (CudaBuf){p->dq_dtype, queries * p->d, NULL};
    b[9] = (CudaBuf){p->dk_dtype, keys * p->u * p->d, NULL};
    b[10] = (CudaBuf){p->dv_dtype, keys * p->u * p->e, NULL};
    if (p->packed) b[8].count = q.count, b[9].count = b[10].count = -1;
    return 12;
}

int cuda_case_bufs(const CudaCase *c, CudaBuf *b) {
    const LibScatterAdd *s = &c->p.scatter;
    const LibArgmax *a = &c->p.argmax;
    const LibArgsort *o = &c->p.argsort;
    const LibSuppress *u = &c->p.suppress;
    switch (c->lib) {
    case PLAN_LIB_GEMM: gemm_bufs(&c->p.gemm, b); return 3;
    case PLAN_LIB_GEMM_QUANTIZED:
        gemm_quantized_bufs(&c->p.gemm_quantized, b);
        return 4;
    case PLAN_LIB_CONV_FWD:
    case PLAN_LIB_CONV_DGRAD:
    case PLAN_LIB_CONV_WGRAD: conv_bufs(c, b); return 3;
    case PLAN_LIB_CONV_SUMS: conv_sums_bufs(c, b); return 5;
    case PLAN_LIB_CONV_DGRAD_SUMS: conv_dgrad_sums_bufs(c, b); return 12;
    case PLAN_LIB_SCATTER_ADD:
        b[0] = (CudaBuf){s->src_dtype, s->outer * s->nidx * s->inner, NULL};
        b[1] = (CudaBuf){s->idx_dtype, s->nidx, NULL};
        b[2] = (CudaBuf){s->out_dtype, s->outer * s->rows * s->inner, NULL};
        return 3;
    case PLAN_LIB_ARGMAX:
        b[0] = (CudaBuf){a->dtype, a->outer * a->axis * a->inner, NULL};
        b[1] = (CudaBuf){AMPC_I64, a->outer * a->inner, NULL};
        return 2;
    case PLAN_LIB_ARGSORT:
        b[0] = (CudaBuf){o->dtype, o->rows * o->n, NULL};
        b[1] = (CudaBuf){AMPC_I32, o->rows * o->k, NULL};
        return 2;
    case PLAN_LIB_SUPPRESS:
        b[0] = (CudaBuf){AMPC_F32, u->rows * u->n * 4, NULL};
        b[1] = b[3] = (CudaBuf){AMPC_BOOL, u->rows * u->n, NULL};
        b[2] = (CudaBuf){AMPC_F32, 1, NULL};
        return 4;
    case PLAN_LIB_ATTEND:
    case PLAN_LIB_ATTEND_GRAD: return attend_bufs(c, b);
    default:
        pool_bufs(c, b);
        return c->lib == PLAN_LIB_MAXPOOL || c->lib == PLAN_LIB_MAXPOOL_GRAD
                   ? 3
                   : 2;
    }
}

LoweredStep cuda_case_step(const CudaCase *c) {
    return (LoweredStep){.kind = PLAN_LIB,
                         .lib = c->lib,
                         .pars = (int64_t *)(uintptr_t)&c->p,
                         .npar = (int)lib_info(c->lib)->npar,
                         .block_shared = GPU_BLOCK_SHARED,
                         .name = c->name};
}

/* a[m,k] b[k,n], b transposed if tb. */
#define PRODUCT(pars, m_, n_, k_, tb, ...)                                     \
    {                                                                          \
        .pars = {                                                              \
            .m = m_,                                                           \
            .n = n_,                                                           \
            .k = k_,                                                           \
            .b_rs = tb ? 1 : n_,                                               \
            .b_cs = tb ? k_ : 1,                                               \
            __VA_ARGS__                                                        \
        }                                                                      \
    }
#define GEMM(name, m_, n_, k_, ta, tb, a, b, c)                                \
    {                                                                          \
        name, PLAN_LIB_GEMM,                                                   \
            PRODUCT(gemm, m_, n_, k_, tb, .a_rs = ta ? 1 : k_,                 \
                    .a_cs = ta ? m_ : 1, .a_dtype = a, .b_dtype = b,           \
                    .c_dtype = c)                                              \
    }
#define QUANTIZED(name, m_, n_, k_, tb, a)                                     \
    {                                                                          \
        name, PLAN_LIB_GEMM_QUANTIZED,                                         \
            PRODUCT(gemm_quantized, m_, n_, k_, tb, .code = QUANTIZED_INT8,    \
                    .a_dtype = a, .q_dtype = AMPC_I8, .scale_dtype = F32,      \
                    .c_dtype = a)                                              \
    }

#define ROUNDED(name, m_, n_, k_, tb, a)                                       \
    {                                                                          \
        name, PLAN_LIB_GEMM_QUANTIZED,                                         \
            PRODUCT(gemm_quantized, m_, n_, k_, tb, .code = QUANTIZED_F32,     \
                    .a_dtype = a, .q_dtype = F32, .scale_dtype = F32,          \
                    .c_dtype = a)                                              \
    }

static const CudaCase gemm_cases[] = {
    ROUNDED("rounded", 33, 70, 67, 0, BF16),
    ROUNDED("rounded transposed", 65, 19, 130, 1, F16),
    QUANTIZED("codes", 33, 70, 67, 0, F32),
    QUANTIZED("codes transposed", 65, 19, 130, 1, BF16),
    QUANTIZED("codes, f16", 7, 130, 64, 1, F16),
    GEMM("f32", 70, 67, 33, 0, 0, F32, F32, F32),
    GEMM("f32 transposed", 5, 130, 40, 1, 1, F32, F32, BF16),
    GEMM("bf16", 65, 70, 37, 0, 0, BF16, BF16, BF16),
    GEMM("bf16 to f32", 20, 150, 64, 1, 0, BF16, BF16, F32),
    GEMM("f16", 33, 129, 70, 0, 1, F16, F16, F16),
    GEMM("f16 transposed", 90, 1, 31, 1, 1, F16, F16, F32),
    GEMM("mixed", 17, 19, 23, 0, 0, BF16, F32, F32),
    GEMM("mixed 16", 40, 66, 18, 0, 1, F16, BF16, F16),
    GEMM("f64", 45, 67, 21, 0, 1, F64, F64, F64),
    GEMM("k is zero", 34, 3, 0, 0, 0, F32, F32, F32),
    GEMM("k is zero, bf16", 34, 3, 0, 0, 0, BF16, BF16, BF16),
    GEMM("nothing", 0, 3, 5, 0, 0, F32, F32, F32),
    {"batches",
     PLAN_LIB_GEMM,
     {.gemm = {.m = 9,
               .n = 11,
               .k = 5,
               .nbatch_dim = 3,
               .batch_dim = {2, 3, 4},
               .a_bs = {540, 180, 45},
               .b_bs = {220, 0, 55},
               .a_rs = 5,
               .a_cs = 1,
               .b_rs = 11,
               .b_cs = 1,
               .a_dtype = F32,
               .b_dtype = F32,
               .c_dtype = F32}}},
    {"batches bf16",
     PLAN_LIB_GEMM,
     {.gemm = {.m = 9,
               .n = 11,
               .k = 50,
               .nbatch_dim = 2,
               .batch_dim = {2, 3},
               .a_bs = {0, 450},
               .b_bs = {550, 0},
               .a_rs = 50,
               .a_cs = 1,
               .b_rs = 1,
               .b_cs = 50,
               .a_dtype = BF16,
               .b_dtype = BF16,
               .c_dtype = BF16}}},
};
const CudaCases cuda_gemm_cases = {gemm_cases, COUNT(gemm_cases)};

static const CudaCase large_cases[] = {
    GEMM("large f32", 1500, 1470, 3, 0, 0, F32, F32, F32),
    GEMM("large bf16", 1500, 1470, 35, 1, 0, BF16, BF16, F32),
    GEMM("largest bf16", 2900, 1500, 20, 0, 1, BF16, BF16, F32),
};
const CudaCases cuda_large_cases = {large_cases, COUNT(large_cases)};

const PlanLib cuda_pool_libs[4] = {PLAN_LIB_MAXPOOL, PLAN_LIB_MAXPOOL_GRAD,
                                   PLAN_LIB_AVGPOOL, PLAN_LIB_AVGPOOL_GRAD};
const PlanLib cuda_conv_libs[3] = {PLAN_LIB_CONV_FWD, PLAN_LIB_CONV_DGRAD,
                                   PLAN_LIB_CONV_WGRAD};

#define SCATTER(name, ...)                                                     \
    {                                                                          \
        name, PLAN_LIB_SCATTER_ADD, {                                          \
            .scatter = { __VA_ARGS__ }                                         \
        }                                                                      \
    }
#define ARGMAX(name, ...)                                                      \
    {                                                                          \
        name, PLAN_LIB_ARGMAX, {                                               \
            .argmax = { __VA_ARGS__, AMPC_I64 }                                \
        }                                                                      \
    }

/* Exact: the terms of a sum are added in the CPU's order. */
static const CudaCase scatter_cases[] = {
    SCATTER("f32", 1, 50, 200, 30, F32, AMPC_I64, F32),
    SCATTER("more rows than blocks", 1, 700, 900, 3, BF16, AMPC_I32, F32),
    SCATTER("ranges of many rows", 1, 70000, 300, 1, F32, AMPC_I32, F32),
    SCATTER("outer", 3, 17, 90, 300, F16, AMPC_I64, F16),
    SCATTER("few rows", 2, 2, 1000, 5, F32, AMPC_U8, BF16),
    SCATTER("i8", 1, 100, 90, 7, F32, AMPC_I8, F32),
    SCATTER("one index", 1, 6, 1, 5, F32, AMPC_I64, F32),
    SCATTER("no index", 1, 6, 0, 5, F32, AMPC_I64, F32),
    SCATTER("f64", 1, 9, 60, 5, F64, AMPC_I32, F64),
    SCATTER("crowded range", 1, 20000, 1500, 1, F32, AMPC_U8, F32),
    SCATTER("long", 1, 300, 5000, 2, F32, AMPC_I32, F32),
};
const CudaCases cuda_scatter_cases = {scatter_cases, COUNT(scatter_cases)};

static const CudaCase argmax_cases[] = {
    ARGMAX("f32", 30, 40, 1, F32),    ARGMAX("bf16", 5, 100, 1, BF16),
    ARGMAX("f16", 7, 33, 1, F16),     ARGMAX("f64", 9, 64, 1, F64),
    ARGMAX("short", 300, 10, 1, F32), ARGMAX("inner", 5, 40, 3, BF16),
    ARGMAX("one", 3, 1, 1, F16),      ARGMAX("inner f64", 2, 7, 300, F64),
};
const CudaCases cuda_argmax_cases = {argmax_cases, COUNT(argmax_cases)};

#define ARGSORT(name, ...)                                                     \
    {                                                                          \
        name, PLAN_LIB_ARGSORT, {                                              \
            .argsort = { __VA_ARGS__, AMPC_I32 }                               \
        }                                                                      \
    }

static const CudaCase argsort_cases[] = {
    ARGSORT("f32", 30, 40, 40, 1, F32),
    ARGSORT("few of many", 3, 700, 7, 1, F32),
    ARGSORT("more rows than blocks", 270, 257, 257, 0, BF16),
    ARGSORT("one", 3, 1, 1, 0, F16),
    ARGSORT("long f16", 2, 1500, 1500, 1, F16),
    ARGSORT("f64", 2, 600, 500, 0, F64),
    ARGSORT("short f64", 9, 64, 3, 1, F64),
    ARGSORT("i8", 2, 600, 600, 0, AMPC_I8),
    ARGSORT("u64", 2, 300, 300, 1, AMPC_U64),
    ARGSORT("short i32", 5, 70, 70, 1, AMPC_I32),
    ARGSORT("short u16", 5, 70, 9, 0, AMPC_U16),
    ARGSORT("in parts", 1, 4099, 4099, 1, F32),
    ARGSORT("few of parts", 2, 9001, 11, 0, F16),
    ARGSORT("parts of i8", 1, 6200, 6200, 1, AMPC_I8),
    ARGSORT("parts of f64", 1, 4500, 3000, 0, F64),
    ARGSORT("parts of u64", 1, 4097, 2049, 1, AMPC_U64),
};
const CudaCases cuda_argsort_cases = {argsort_cases, COUNT(argsort_cases)};

#define SUPPRESS(name, ...)                                                    \
    {                                                                          \
        name, PLAN_LIB_SUPPRESS, {                                             \
            .suppress = { __VA_ARGS__, F32, AMPC_BOOL, F32, AMPC_BOOL }        \
        }                                                                      \
    }

static const CudaCase suppress_cases[] = {
    SUPPRESS("all", 3, 40, 40),
    SUPPRESS("no box", 3, 0, 0),
    SUPPRESS("none wanted", 2, 50, 0),
    SUPPRESS("few wanted", 5, 700, 9),
    SUPPRESS("more boxes than threads", 2, 1001, 1001),
    SUPPRESS("more rows than blocks", 300, 30, 20),
    SUPPRESS("many", 1, 3000, 2000),
};
const CudaCases cuda_suppress_cases = {suppress_cases, COUNT(suppress_cases)};

#define ATTEND_OF(Q, K, V, Y)                                                  \
    .mask_dtype = F32, .rng_dtype = AMPC_I64, .q_dtype = Q, .k_dtype = K,      \
    .v_dtype = V, .y_dtype = Y, .lse_dtype = F32, .sums_dtype = F32,           \
    .delta_dtype = F32, .dq_dtype = Q, .dk_dtype = K, .dv_dtype = V
#define ATTEND_TYPES(T) ATTEND_OF(T, T, T, T)
#define ATTEND_MIXED(name, Q, K, V, Y, ...)                                    \
    {name,                                                                     \
     PLAN_LIB_ATTEND,                                                          \
     {.attend = {.batch = 4, ATTEND_OF(Q, K, V, Y), __VA_ARGS__}}},            \
    {                                                                          \
        name, PLAN_LIB_ATTEND_GRAD, {                                          \
            .attend = {.batch = 4, ATTEND_OF(Q, K, V, Y), __VA_ARGS__ }        \
        }                                                                      \
    }
#define ATTEND_MANY(name, T, batch_, ...)                                      \
    {name,                                                                     \
     PLAN_LIB_ATTEND,                                                          \
     {.attend = {.batch = batch_, ATTEND_TYPES(T), __VA_ARGS__}}},             \
    {                                                                          \
        name, PLAN_LIB_ATTEND_GRAD, {                                          \
            .attend = {.batch = batch_, ATTEND_TYPES(T), __VA_ARGS__ }         \
        }                                                                      \
    }
#define ATTEND(name, T, ...) ATTEND_MANY(name, T, 4, __VA_ARGS__)
#define SIZES_OF(g, t_, u_, d_, e_)                                            \
    .group = g, .t = t_, .u = u_, .d = d_, .e = e_
#define SIZES(g, t_, u_, d_, e_) SIZES_OF(g, t_, u_, d_, e_), ATTEND_APART
/* 4 / n samples of n heads beside their rows; first head and number of
   heads. */
#define BESIDE(n, g, q0, q, k0, k, v0, v)                                      \
    .trans_b = 1, .q_heads = n, .q_width = q, .q_first = q0,                   \
    .kv_heads = (n) / (g), .k_width = k, .k_first = k0, .v_width = v,          \
    .v_first = v0
/* Bits of a number that is small enough for scores over d features. */
#define TENTH   0x3dcccccd
#define QUARTER 0x3e800000

static const CudaCase attend_cases[] = {
    ATTEND("twice the rows", BF16, SIZES(1, 150, 150, 64, 64), .causal = 1,
           .trans_b = 1, .scale = TENTH),
    ATTEND("scale < 0", F16, SIZES(1, 70, 152, 48, 32),
           .scale = 0x80000000 | TENTH),
    ATTEND("keys as columns", BF16, SIZES(1, 40, 90, 128, 96), .causal = 1,
           .scale = TENTH),
    ATTEND("odd", F16, SIZES(1, 90, 40, 20, 7), .causal = 1, .offset = -3,
           .zeros = 1, .trans_b = 1, .scale = QUARTER),
    ATTEND("one row before", BF16, SIZES(1, 140, 140, 64, 32), .causal = 1,
           .offset = 1, .trans_b = 1, .scale = TENTH),
    ATTEND("padding", BF16, SIZES(2, 65, 129, 80, 128), .trans_b = 1,
           .zeros = 1, .scale = TENTH, .mask_div = 2, .mask_mod = 2,
           .mask_cols = 1),
    ATTEND("mask of all", BF16, SIZES(4, 130, 66, 32, 24), .causal = 1,
           .offset = 5, .zeros = 1, .trans_b = 1, .scale = QUARTER,
           .mask_div = 1, .mask_mod = 4, .mask_rows = 1, .mask_cols = 1),
    ATTEND("dropout", F16, SIZES(1, 40, 70, 16, 16), .trans_b = 1,
           .scale = QUARTER, .drop = 6710887, .keep = 0x3fd55555, .salt = 3),
    ATTEND("one operand", BF16, SIZES_OF(1, 150, 150, 64, 64),
           BESIDE(2, 1, 0, 6, 2, 6, 4, 6), .packed = 1, .causal = 1,
           .scale = TENTH),
    ATTEND("one operand of groups", F16, SIZES_OF(2, 70, 70, 128, 128),
           BESIDE(4, 2, 4, 8, 2, 8, 0, 8), .packed = 1, .scale = TENTH,
           .mask_div = 4, .mask_mod = 1, .mask_cols = 1),
    ATTEND("one operand, its sums", BF16, SIZES_OF(1, 150, 150, 64, 64),
           BESIDE(2, 1, 0, 6, 2, 6, 4, 6), .packed = 2, .causal = 1,
           .scale = TENTH),
    ATTEND("odd features, their sums", F16, SIZES_OF(1, 90, 90, 44, 44),
           BESIDE(4, 1, 8, 12, 0, 12, 4, 12), .packed = 2, .scale = TENTH),
    ATTEND("one operand of groups, its sums", F16, SIZES_OF(2, 70, 70, 32, 32),
           BESIDE(4, 2, 4, 8, 2, 8, 0, 8), .packed = 2, .scale = TENTH),
    ATTEND("heads beside rows", BF16, SIZES_OF(2, 90, 65, 48, 80),
           BESIDE(2, 2, 1, 4, 0, 1, 1, 3), .causal = 1, .offset = 2,
           .scale = TENTH),
    ATTEND("odd heads beside rows", F16, SIZES_OF(1, 40, 50, 12, 20),
           BESIDE(4, 1, 1, 6, 0, 4, 2, 6), .scale = QUARTER),
    ATTEND("beside rows, f32", F32, SIZES_OF(2, 20, 30, 6, 5),
           BESIDE(2, 2, 1, 4, 1, 2, 0, 1), .causal = 1, .scale = QUARTER),
    ATTEND("one operand, f32", F32, SIZES_OF(1, 20, 20, 6, 6),
           BESIDE(1, 1, 2, 3, 0, 3, 1, 3), .packed = 1, .scale = QUARTER),
    ATTEND("one operand, f32, its sums", F32, SIZES_OF(1, 20, 20, 6, 6),
           BESIDE(1, 1, 2, 3, 0, 3, 1, 3), .packed = 2, .scale = QUARTER),
    /* as many matrices as a GPU has blocks, or half of them, so that a block of
       the gradient has several times its keys; rows that see none */
    ATTEND_MANY("blocks of keys", BF16, 264, SIZES(1, 20, 70, 16, 72),
                .causal = 1, .offset = 50, .trans_b = 1, .scale = QUARTER),
    ATTEND_MANY("slices of keys", F16, 140, SIZES(1, 24, 160, 8, 66),
                .causal = 1, .offset = 120, .scale = QUARTER),
    ATTEND("queries without keys", BF16, SIZES(1, 140, 300, 16, 16),
           .causal = 1, .offset = -70, .zeros = 1, .trans_b = 1,
           .scale = QUARTER),
    ATTEND("mask and dropout", BF16, SIZES(2, 40, 140, 64, 64), .trans_b = 1,
           .scale = TENTH, .mask_div = 2, .mask_mod = 2, .mask_cols = 1,
           .drop = 6710887, .keep = 0x3fd55555, .salt = 3),
    ATTEND("f32", F32, SIZES(2, 20, 30, 6, 5), .causal = 1, .trans_b = 1,
           .zeros = 1, .scale = QUARTER, .mask_div = 4, .mask_mod = 1,
           .mask_cols = 1),
    ATTEND("wide", BF16, SIZES(1, 20, 30, 130, 16), .scale = TENTH),
    ATTEND_MIXED("results of f32", BF16, BF16, BF16, F32,
                 SIZES(1, 40, 70, 32, 24), .trans_b = 1, .scale = TENTH),
    ATTEND_MIXED("keys of f16", BF16, F16, BF16, BF16, SIZES(1, 33, 50, 16, 16),
                 .causal = 1, .trans_b = 1, .scale = TENTH),
    ATTEND_MIXED("values of f32", F16, F16, F32, F16, SIZES(2, 20, 35, 16, 8),
                 .zeros = 1, .trans_b = 1, .scale = TENTH),
};
const CudaCases cuda_attend_cases = {attend_cases, COUNT(attend_cases)};

static bool is_of(const PlanLib *libs, int n, PlanLib lib) {
    for (int i = 0; i < n; i++)
        if (libs[i] == lib) return true;
    return false;
}

bool cuda_has_cases(PlanLib lib) {
    const CudaCases *tables[] = {&cuda_gemm_cases,     &cuda_scatter_cases,
                                 &cuda_argmax_cases,   &cuda_argsort_cases,
                                 &cuda_suppress_cases, &cuda_attend_cases};
    for (int i = 0; i < COUNT(tables); i++)
        for (int k = 0; k < tables[i]->len; k++)
            if (tables[i]->data[k].lib == lib) return true;
    return lib == PLAN_LIB_CONV_SUMS || /* as CONV_FWD */
           lib == PLAN_LIB_CONV_DGRAD_SUMS ||
           is_of(cuda_conv_libs, COUNT(cuda_conv_libs), lib) ||
           is_of(cuda_pool_libs, COUNT(cuda_pool_libs), lib);
}
