/* SPDX-License-Identifier: Apache-2.0 */
/* cublaslt_product.c: D = act(alpha op(A) op(B) + beta C + bias), one result
   after the other from the definition.

   Accumulation is in fp32 (f64 for f64), in the order of the algorithm's
   kind; fp32 operands are rounded first if the compute type asks; alpha, beta,
   bias and activation are applied to the sum, and the only rounding to D's type
   comes last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "tests/sim/cublaslt_sim.h"
#include "tests/sim/sim.h"

static double load(int type, const char *at, int64_t i) {
    uint16_t h;
    float f;
    double d;
    switch (type) {
    case LT_R_8F_E4M3: return f8e4m3_to_f32((uint8_t)at[i]);
    case LT_R_8F_E5M2: return f8e5m2_to_f32((uint8_t)at[i]);
    case LT_R_16F: return memcpy(&h, at + 2 * i, 2), f16_to_f32(h);
    case LT_R_16BF: return memcpy(&h, at + 2 * i, 2), bf16_to_f32(h);
    case LT_R_32F: return memcpy(&f, at + 4 * i, 4), f;
    default: return memcpy(&d, at + 8 * i, 8), d;
    }
}

static void store(int type, char *at, int64_t i, double v) {
    uint16_t h =
        type == LT_R_16F ? f32_to_f16((float)v) : f32_to_bf16((float)v);
    float f = (float)v;
    if (lt_is_half(type))
        memcpy(at + 2 * i, &h, 2);
    else if (type == LT_R_32F)
        memcpy(at + 4 * i, &f, 4);
    else
        memcpy(at + 8 * i, &v, 8);
}

/* An fp32 operand as tensor cores read it: nearest, ties away from zero in
   TF32. A NaN stays one. */
static float factor(int compute, float x) {
    if (compute == LT_COMPUTE_32F_FAST_16BF) return bf16_to_f32(f32_to_bf16(x));
    if (compute != LT_COMPUTE_32F_FAST_TF32 || !isfinite(x)) return x;
    int exponent = ilogbf(x) < -126 ? -126 : ilogbf(x);
    double unit = scalbn(1, exponent - 10);
    return (float)(round(x / unit) * unit);
}

static double rounded(int type, double v) {
    char cell[8];
    store(type, cell, 0, v);
    return load(type, cell, 0);
}

/* ---- sums over k --------------------------------------------------------- */

static float chain32(const float *a, const float *b, uint64_t n) {
    float s = 0;
    for (uint64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static double chain64(const double *a, const double *b, uint64_t n) {
    double s = 0;
    for (uint64_t i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

static float loose32(const float *a, const float *b, uint64_t n) {
    float s[8] = {0};
    for (uint64_t i = 0; i < n; i++) s[i % 8] += a[i] * b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static uint64_t parts_of(int kind) {
    switch (kind) {
    case LT_KIND_OUTPUT: return 3;
    case LT_KIND_COMPUTE: return 2;
    case LT_KIND_INPLACE: return 4;
    default: return 1;
    }
}

static double dot(const LtCall *c, const void *a, const void *b, uint64_t n) {
    uint64_t parts = parts_of(c->kind);
    bool wide = c->p.desc.compute == LT_COMPUTE_64F;
    double sum = 0;
    if (c->kind == LT_KIND_LOOSE && !wide) return loose32(a, b, n);
    for (uint64_t i = 0; i < parts; i++) {
        uint64_t from = n * i / parts, len = n * (i + 1) / parts - from;
        double part = wide ? chain64((const double *)a + from,
                                     (const double *)b + from, len)
                           : chain32((const float *)a + from,
                                     (const float *)b + from, len);
        if (c->kind == LT_KIND_OUTPUT) part = rounded(c->p.m[3].type, part);
        sum = wide ? sum + part : (float)sum + (float)part;
    }
    return sum;
}

/* ---- one matrix of the batch --------------------------------------------- */

/* The scale of element k of line i. */
static double block_scale(const LtCall *c, int which, uint64_t i, uint64_t k) {
    const unsigned char *at =
        (const unsigned char *)(uintptr_t)c->p.desc.scales[which];
    int code = at[lt_block_at(&c->p, i, k)];
    return code == 255 ? (double)NAN : ldexp(1, code - 127);
}

/* op(matrix) as `n` vectors along k, in the type of sums. */
static void *along_k(const LtCall *c, int which, int64_t batch, uint64_t n,
                     bool k_is_row) {
    const struct LtLayout_st *m = &c->p.m[which];
    const char *at = (const char *)(uintptr_t)c->at[which];
    uint64_t k = lt_k(&c->p);
    size_t size = c->p.desc.compute == LT_COMPUTE_64F ? 8 : 4;
    char *out = malloc(n * k * size);
    for (uint64_t i = 0; i < n && out; i++)
        for (uint64_t j = 0; j < k; j++) {
            int64_t row = (int64_t)(k_is_row ? j : i);
            int64_t col = (int64_t)(k_is_row ? i : j);
            double v = load(m->type, at, batch * m->stride + col * m->ld + row);
            if (size == 4) v = factor(c->p.desc.compute, (float)v);
            if (lt_has_blocks(&c->p)) v *= block_scale(c, which, i, j);
            store(size == 8 ? LT_R_64F : LT_R_32F, out, (int64_t)(i * k + j),
                  v);
        }
    return out;
}

/* In fp32, before v is rounded to D's type (numerics.md). */
static float gelu_sigmoid(float x) {
    return 1 / (1 + expf(-1.5957691f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x) {
    float s = gelu_sigmoid(x);
    float inner = 1.5957691f * (1 + 3 * 0.044715f * x * x);
    return s + x * s * (1 - s) * inner;
}

/* GELU of v, stored where asked for; or v times the slope at the stored
   operand. */
static double with_gelu(const LtCall *c, double v, int64_t row, int64_t col) {
    char *aux = (char *)(uintptr_t)c->p.desc.aux;
    int64_t at = col * c->p.desc.aux_ld + row;
    int type = c->p.m[3].type;
    if (c->p.desc.epilogue == LT_EPILOGUE_DGELU)
        return (float)v * gelu_slope((float)load(type, aux, at));
    if (lt_has_aux(&c->p)) store(type, aux, at, v);
    return (float)v * gelu_sigmoid((float)v);
}

static double finish(const LtCall *c, double sum, int64_t row, int64_t col,
                     int64_t batch) {
    const struct LtLayout_st *m = &c->p.m[2];
    bool wide = c->p.desc.compute == LT_COMPUTE_64F;
    float scale = 1;
    if (c->p.desc.scales[0] && !lt_has_blocks(&c->p))
        memcpy(&scale, (const void *)(uintptr_t)c->p.desc.scales[0], 4);
    double v = c->alpha * sum;
    if (!wide) v = (float)v * scale;
    if (c->beta != 0) {
        int64_t at = batch * m->stride + col * m->ld + row;
        double old = load(m->type, (const char *)(uintptr_t)c->at[2], at);
        v = wide ? v + c->beta * old
                 : (float)v + (float)((float)c->beta * (float)old);
    }
    const char *bias = (const char *)(uintptr_t)c->p.desc.bias;
    if (lt_has_bias(&c->p))
        v = (float)v + (float)load(c->p.m[3].type, bias, row);
    if (lt_gelu(&c->p)) return with_gelu(c, v, row, col);
    return c->p.desc.epilogue & LT_EPILOGUE_RELU && v < 0 ? 0 : v;
}

static bool product(const LtCall *c, int64_t batch) {
    const struct LtLayout_st *d = &c->p.m[3];
    char *out = (char *)(uintptr_t)c->at[3];
    uint64_t k = lt_k(&c->p);
    size_t size = c->p.desc.compute == LT_COMPUTE_64F ? 8 : 4;
    char *a = along_k(c, 0, batch, d->rows, c->p.desc.transa == LT_OP_T);
    char *b = along_k(c, 1, batch, d->cols, c->p.desc.transb == LT_OP_N);
    for (uint64_t j = 0; j < d->cols && a && b; j++)
        for (uint64_t i = 0; i < d->rows; i++) {
            double sum = dot(c, a + i * k * size, b + j * k * size, k);
            double v = finish(c, sum, (int64_t)i, (int64_t)j, batch);
            store(d->type, out,
                  batch * d->stride + (int64_t)j * d->ld + (int64_t)i, v);
        }
    bool ok = a && b;
    free(a);
    free(b);
    return ok;
}

/* Overwrites the data that a split leaves in the workspace: nothing may rely on
   it.
 */
static void spoil_workspace(const LtCall *c) {
    size_t n = lt_kind_workspace(c->kind, &c->p);
    if (n) memset((void *)(uintptr_t)c->workspace, 0xa5, n);
}

int lt_product(void *call) {
    LtCall c = *(const LtCall *)call;
    const char *why;
    if (lt_check_call(&c, &why) ||
        lt_check_tails(&c, &why)) { /* was it freed since it was queued? */
        sim_violation("cublasLtMatmul on the device: %s", why);
        return CUDA_ILLEGAL_ADDRESS;
    }
    if (c.p.desc.pointer_mode == LT_POINTER_DEVICE) {
        c.alpha = load(c.p.desc.scale, (const char *)(uintptr_t)c.alpha_at, 0);
        c.beta = load(c.p.desc.scale, (const char *)(uintptr_t)c.beta_at, 0);
    }
    spoil_workspace(&c);
    sim_reads((const void *)(uintptr_t)c.at[0], lt_extent(&c.p.m[0]),
              (const void *)(uintptr_t)c.at[1], lt_extent(&c.p.m[1]));
    for (int64_t i = 0; i < c.p.m[3].batch; i++)
        if (!product(&c, i)) return CUDA_OUT_OF_MEMORY;
    return CUDA_OK;
}
