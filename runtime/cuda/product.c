/* SPDX-License-Identifier: Apache-2.0 */
/* product.c: matrix products as cuBLASLt sees them.

   Row-major C[m,n] = A[m,k] B[k,n] is column-major C'[n,m] = B'[n,k] A'[k,m]:
   the operands are exchanged and nothing is transposed in memory. Matrices are
   described once, at open.                                                   */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/gpu.h"

/* ---- shapes -------------------------------------------------------------- */

static int type_code(int64_t dtype) {
    return dtype >= 0 && dtype < AMPC_NDTYPE ? dtype_info[dtype].cublaslt - 1
                                             : -1;
}

/* op(X) of rows x cols with element (r, c) at r * rs + c * cs: how X is stored.
   False if neither stride is 1. */
static bool operand(int64_t rows, int64_t cols, int64_t rs, int64_t cs,
                    int32_t *op, int64_t *ld) {
    if (rows == 1) rs = 1;
    if (cols == 1) cs = rs == 1 ? rows : 1;
    *op = LT_OP_N;
    *ld = cs;
    if (rs == 1 && cs >= rows) return true;
    if (rows == 1) rs = cols;
    *op = LT_OP_T;
    *ld = rs;
    return cs == 1 && rs >= cols;
}

/* Merges batch axes into one: adjacent axes must have matching steps. Stride 0
   repeats a
   matrix.                                                                    */
static bool one_batch(const LibGemm *g, ProductKey *k) {
    k->batch = 1;
    for (int64_t i = g->nbatch_dim - 1; i >= 0; i--) {
        int64_t dim = g->batch_dim[i];
        if (dim == 1) continue;
        if (k->batch == 1) {
            k->stride_a = g->b_bs[i];
            k->stride_b = g->a_bs[i];
        } else if (g->b_bs[i] != k->stride_a * k->batch ||
                   g->a_bs[i] != k->stride_b * k->batch) {
            return false;
        }
        if (__builtin_mul_overflow(k->batch, dim, &k->batch)) return false;
    }
    k->stride_o = g->m * g->n;
    return k->batch <= INT32_MAX;
}

/* * empty: an empty result or an empty sum. */
static bool dims_ok(const LibGemm *g, uint64_t *result_bytes, bool *empty) {
    bool ok = g->m >= 0 && g->n >= 0 && g->k >= 0 && g->m <= INT32_MAX &&
              g->n <= INT32_MAX && g->k <= INT32_MAX && g->nbatch_dim >= 0 &&
              g->nbatch_dim <= AMPC_MAX_RANK;
    uint64_t n = (uint64_t)g->m * (uint64_t)g->n;
    *empty = g->m == 0 || g->n == 0 || g->k == 0;
    for (int64_t i = 0; ok && i < g->nbatch_dim; i++) {
        ok = g->batch_dim[i] >= 0;
        *empty |= g->batch_dim[i] == 0;
        n *= (uint64_t)g->batch_dim[i];
    }
    *result_bytes = n * dtype_bytes((uint32_t)g->c_dtype);
    return ok;
}

static int32_t align_of(CUdeviceptr p) {
    int32_t align = GPU_ALIGN;
    while (p % (uint32_t)align) align /= 2;
    return align;
}

static ampc_status cannot(ampc_session *s, const PlanStep *t,
                          const char *what) {
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "step '%.200s': cuBLASLt cannot do this product: %s",
                        t->name ? t->name : "", what);
}

static ampc_status make_key(ampc_session *s, const PlanStep *t,
                            const GpuProduct *p, CUdeviceptr bias,
                            ProductKey *k) {
    static const int32_t compute[AMPC_NFACTORS] = {
        [AMPC_FACTORS_F32] = LT_COMPUTE_32F,
        [AMPC_FACTORS_TF32] = LT_COMPUTE_32F_FAST_TF32,
        [AMPC_FACTORS_BF16] = LT_COMPUTE_32F_FAST_16BF};
    const LibGemm *g = (const void *)(s->plan->pars + t->par0);
    k->m = g->n;
    k->n = g->m;
    k->k = g->k;
    k->ldo = g->n;
    k->type_a = type_code(g->b_dtype);
    k->type_b = type_code(g->a_dtype);
    k->type_o = type_code(g->c_dtype);
    k->compute = p->f64 ? LT_COMPUTE_64F : compute[plan_factors(s->plan, t)];
    k->epilogue = bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_DEFAULT;
    k->pointer = p->scale       ? LT_POINTER_SCALE
                 : p->blocks[0] ? LT_POINTER_BLOCKS
                 : p->alpha     ? LT_POINTER_DEVICE
                                : LT_POINTER_HOST;
    k->align_a = align_of(p->a);
    k->align_b = align_of(p->b);
    k->align_o = align_of(p->out | p->add);
    k->align_bias = bias ? align_of(bias) : 0;
    bool eights = lib_is_eight(g->a_dtype) && lib_is_eight(g->b_dtype);
    if (k->type_a < 0 || (k->type_a != k->type_b && !eights) || k->type_o < 0 ||
        (p->f64 && p->alpha))
        return cannot(s, t, "its types");
    if (!one_batch(g, k)) return cannot(s, t, "its batch axes");
    if (!operand(k->m, k->k, g->b_cs, g->b_rs, &k->op_a, &k->lda) ||
        !operand(k->k, k->n, g->a_cs, g->a_rs, &k->op_b, &k->ldb))
        return cannot(s, t, "its strides");
    return AMPC_OK;
}

/* ---- descriptors --------------------------------------------------------- */

static int make_layout(const LtApi *lt, LtLayout *l, int type, int64_t rows,
                       int64_t cols, int64_t ld, int64_t batch,
                       int64_t stride) {
    int32_t count = (int32_t)batch;
    int e = lt->LayoutCreate(l, type, (uint64_t)rows, (uint64_t)cols, ld);
    if (e == 0 && batch > 1)
        e = lt->LayoutSet(*l, LT_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (e == 0 && batch > 1)
        e = lt->LayoutSet(*l, LT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride);
    return e;
}

static int make_layouts(const LtApi *lt, const ProductKey *k, GpuProduct *p) {
    bool ta = k->op_a == LT_OP_T, tb = k->op_b == LT_OP_T;
    int e = make_layout(lt, &p->la, k->type_a, ta ? k->k : k->m,
                        ta ? k->m : k->k, k->lda, k->batch, k->stride_a);
    if (e == 0)
        e = make_layout(lt, &p->lb, k->type_b, tb ? k->n : k->k,
                        tb ? k->k : k->n, k->ldb, k->batch, k->stride_b);
    if (e == 0)
        e = make_layout(lt, &p->lout, k->type_o, k->m, k->n, k->ldo, k->batch,
                        k->stride_o);
    return e;
}

static int make_desc(const LtApi *lt, const ProductKey *k, GpuProduct *p,
                     CUdeviceptr bias) {
    static const int32_t blocks = LT_SCALE_VEC32_UE8M0;
    int e = lt->DescCreate(&p->desc, k->compute, p->f64 ? LT_R_64F : LT_R_32F);
#define SET(attribute, value)                                                  \
    e = e ? e : lt->DescSet(p->desc, attribute, &(value), sizeof(value))
    SET(LT_DESC_TRANSA, k->op_a);
    SET(LT_DESC_TRANSB, k->op_b);
    if (k->epilogue != LT_EPILOGUE_DEFAULT) SET(LT_DESC_EPILOGUE, k->epilogue);
    if (bias) SET(LT_DESC_BIAS_POINTER, bias);
    if (p->aux) SET(LT_DESC_AUX_POINTER, p->aux);
    if (p->aux) SET(LT_DESC_AUX_LD, k->ldaux);
    if (p->alpha) SET(LT_DESC_POINTER_MODE, k->pointer);
    if (p->scale) SET(LT_DESC_A_SCALE_POINTER, p->scale);
    if (p->blocks[0]) {
        SET(LT_DESC_A_SCALE_MODE, blocks);
        SET(LT_DESC_B_SCALE_MODE, blocks);
        SET(LT_DESC_A_SCALE_POINTER, p->blocks[0]);
        SET(LT_DESC_B_SCALE_POINTER, p->blocks[1]);
    }
#undef SET
    return e;
}

int product_unfuse(const LtApi *lt, GpuProduct *p, ProductKey *key) {
    lt->DescDestroy(p->desc);
    p->desc = NULL;
    p->alpha = p->scale = 0;
    key->epilogue = LT_EPILOGUE_DEFAULT;
    key->pointer = p->blocks[0] ? LT_POINTER_BLOCKS : LT_POINTER_HOST;
    key->align_bias = 0;
    return make_desc(lt, key, p, 0);
}

ampc_status product_bind(ampc_session *s, int program, const PlanStep *t,
                         GpuProduct *p, ProductKey *key) {
    const PlanRef *ref = s->plan->refs + t->ref0;
    const LibGemm *g = (const void *)(s->plan->pars + t->par0);
    const LtApi *lt = &gpu_of(s)->lt;
    CUdeviceptr more = 0, bias = 0;
    bool eights = lib_is_eight(g->a_dtype);
    uint64_t result_bytes;
    bool empty;
    if (!dims_ok(g, &result_bytes, &empty)) return cannot(s, t, "its size");
    int adds = product_adds(t->fn);
    if (adds >= 0) more = gpu_address(s, program, ref[3 + adds]);
    if (t->fn == PLAN_PRODUCT_BIAS || t->fn == PLAN_PRODUCT_SCALE_BIAS ||
        t->fn == PLAN_PRODUCT_BLOCKS_BIAS)
        bias = more;
    CUdeviceptr scale =
        product_scales(t->fn) ? gpu_address(s, program, ref[3]) : 0;
    *p = (GpuProduct){.a = gpu_address(s, program, ref[1]),
                      .b = gpu_address(s, program, ref[0]),
                      .out = gpu_address(s, program, ref[2]),
                      .add = more - bias,
                      .alpha = eights ? 0 : scale,
                      .scale = eights ? scale : 0,
                      .own = t->second && g->nbatch_dim <= 1,
                      .after = t->epilogue,
                      .f64 = g->a_dtype == AMPC_F64};
    for (uint32_t i = 0; product_blocks(t->fn) && i < 2; i++)
        p->blocks[i] = gpu_address(s, program, ref[4 - i]);
    if (empty) {
        p->zeros = result_bytes;
        if (p->zeros && t->fn) return cannot(s, t, "it sums nothing");
        return AMPC_OK;
    }
    if (t->fn > PLAN_PRODUCT_ADD && !eights) return cannot(s, t, "its scale");
    TRY(make_key(s, t, p, bias, key));
    int e = make_layouts(lt, key, p);
    if (e == 0) e = make_desc(lt, key, p, bias);
    return e ? lt_fail(s, e, "description of a product", t->name) : AMPC_OK;
}

/* Without a descriptor on older GPUs, and where it is turned off. */
ampc_status product_bind_gelu(ampc_session *s, int program, const PlanStep *t,
                              GpuProduct *p, ProductKey *key) {
    const GpuDevice *d = gpu_of(s);
    const PlanRef *ref = s->plan->refs + t->ref0;
    const LibGemm *g = (const void *)(s->plan->pars + t->par0);
    uint64_t result_bytes;
    bool empty;
    CUdeviceptr bias = gpu_address(s, program, ref[4]);
    *p = (GpuProduct){.by = BY_NOTHING, .gelu = true};
    if (!dims_ok(g, &result_bytes, &empty)) return cannot(s, t, "its size");
    const char *wanted = secure_getenv("AMPC_CUDA_GELU");
    if (empty || 10 * d->major + d->minor < PLAN_GELU_SINCE ||
        (wanted && !strcmp(wanted, "0")))
        return AMPC_OK;
    p->by = BY_LIBRARY;
    p->a = gpu_address(s, program, ref[1]);
    p->b = gpu_address(s, program, ref[0]);
    p->out = gpu_address(s, program, ref[2]);
    p->aux = gpu_address(s, program, ref[3]);
    TRY(make_key(s, t, p, bias, key));
    key->epilogue = t->fn == PLAN_GELU_SLOPE
                        ? LT_EPILOGUE_DGELU
                        : LT_EPILOGUE_GELU + (bias ? LT_EPILOGUE_BIAS : 0) +
                              (p->aux ? LT_EPILOGUE_AUX : 0);
    if (p->aux) {
        int32_t align = align_of(p->aux);
        key->ldaux = key->ldo;
        if (!bias || key->align_bias > align) key->align_bias = align;
    }
    int e = make_layouts(&d->lt, key, p);
    if (e == 0) e = make_desc(&d->lt, key, p, bias);
    return e ? lt_fail(s, e, "description of a product", t->name) : AMPC_OK;
}

int product_launch(const GpuDevice *d, const GpuProduct *p, const LtAlgo *algo,
                   CUstream stream) {
    static const float f32[] = {0, 1};
    static const double f64[] = {0, 1};
    const void *beta = p->f64 ? (const void *)&f64[0] : &f32[0];
    const void *alpha = p->f64 ? (const void *)&f64[1] : &f32[1];
    if (p->add) beta = alpha;
    if (p->alpha) {
        alpha = (const void *)(uintptr_t)p->alpha;
        beta = (const void *)(uintptr_t)d->zero;
    }
#define AT(x) (void *)(uintptr_t)(x)
    return d->lt.Matmul(d->handle, p->desc, alpha, AT(p->a), p->la, AT(p->b),
                        p->lb, beta, AT(p->add ? p->add : p->out), p->lout,
                        AT(p->out), p->lout, algo, AT(d->workspace),
                        d->workspace_bytes, stream);
#undef AT
}

void product_free(const LtApi *lt, GpuProduct *p) {
    if (p->desc) lt->DescDestroy(p->desc);
    if (p->la) lt->LayoutDestroy(p->la);
    if (p->lb) lt->LayoutDestroy(p->lb);
    if (p->lout) lt->LayoutDestroy(p->lout);
    *p = (GpuProduct){.desc = NULL};
}
