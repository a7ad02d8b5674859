/* cuda_gemm.c: what cuBLASLt can do of a matrix product and of the generated
   epilogue behind it (cuda.h).

   An epilogue is fused only where every rounding stays: between the product
   and what follows nothing may be rounded.  cuBLASLt's relu is left alone: what
   it makes of NaN is not documented, and a NaN may not go unseen.           */
#include "codegen/cuda/cuda.h"
#include "runtime/lib.h"

#include <string.h>

/* ---- the product --------------------------------------------------------- */

static LibGemm gemm_of(const LoweredStep *s) {
    LibGemm p;
    ASSERT(s->npar * sizeof(int64_t) == sizeof p);
    memcpy(&p, s->pars, sizeof p);
    return p;
}

/* Of a rows x cols matrix: rows or columns are contiguous and disjoint. */
static bool plain_matrix(int64_t rows, int64_t cols, int64_t rs, int64_t cs) {
    return (cs == 1 && rs >= cols) || (rs == 1 && cs >= rows);
}

static bool legal_types(int64_t in, int64_t out) {
    if (in == DT_F64) return out == DT_F64;
    if (in != DT_F32 && in != DT_F16 && in != DT_BF16) return false;
    return out == in || out == DT_F32;
}

static bool fits_int(int64_t n) { return n > 0 && n <= INT32_MAX; }

/* As many as a grid has in its third dim; more are refused (INVALID_VALUE). */
static bool fits_batch(int64_t n) { return n > 0 && n <= 65535; }

bool cuda_gemm_fits(const LoweredStep *s) {
    LibGemm p = gemm_of(s);
    return fits_int(p.m) && fits_int(p.n) && fits_int(p.k) &&
           p.nbatch_dim <= 1 && (!p.nbatch_dim || fits_batch(p.batch_dim[0])) &&
           p.a_dtype == p.b_dtype && legal_types(p.a_dtype, p.c_dtype) &&
           plain_matrix(p.m, p.k, p.a_rs, p.a_cs) &&
           plain_matrix(p.k, p.n, p.b_rs, p.b_cs);
}

/* ---- its epilogue -------------------------------------------------------- */

/* Where it stands in terms of the kernel's place: everywhere the same, by the
   column alone, or at the place itself, all dims contiguous. */
typedef enum Walk { WALK_NOTHING, WALK_COLUMNS, WALK_ALL } Walk;

static bool walks(const Kernel *k, const KIndex *at, Walk how) {
    int64_t stride = how != WALK_NOTHING;
    if (at->c || at->inst) return false;
    for (int d = k->ndim - 1; d >= 0; d--) {
        if (at->k[d] != stride) return false;
        stride *= how == WALK_ALL ? k->dim[d].extent : 0;
    }
    return true;
}

/* The epilogue's only store; NULL: it has several. */
static const KInst *only_store(const Kernel *k) {
    const KInst *store = NULL;
    for (int i = 1; i < k->insts.len; i++) {
        if (k->insts.data[i].op != K_STORE) continue;
        if (store) return NULL;
        store = &k->insts.data[i];
    }
    return store;
}

/* The load that stands beside the accumulator in fp32 operation `code`; NULL:
   it is something else. */
static const KInst *beside_acc(const Kernel *k, const KInst *in, OpCode code) {
    if (in->op != K_OP || in->code != code || in->compute != KT_F32)
        return NULL;
    const KInst *x = kinst_at(k, in->in[0]), *y = kinst_at(k, in->in[1]);
    const KInst *load = x->op == K_ACC ? y : x;
    if (x->op != K_ACC && y->op != K_ACC) return NULL;
    return load->op == K_LOAD && !load->guard ? load : NULL;
}

PlanCudaFused cuda_gemm_fused(const LoweredStep *s, int *operand, int *out) {
    const Kernel *k = s->epilogue;
    LibGemm p = gemm_of(s);
    const KInst *store = only_store(k);
    int last = k->ndim - 1;
    *operand = 0;
    if (!store || !walks(k, &store->at, WALK_ALL)) return PLAN_FUSED_NONE;
    DType d = k->bufs.data[store->buf].dtype;
    if (!legal_types(p.a_dtype, d)) return PLAN_FUSED_NONE;
    *out = store->buf;
    const KInst *value = kinst_at(k, store->in[0]);
    if (value->op == K_ROUND && value->dtype == d)
        value = kinst_at(k, value->in[0]);
    const KInst *bias = beside_acc(k, value, OP_ADD);
    const KInst *scale = beside_acc(k, value, OP_MUL);
    if (bias) *operand = bias->buf;
    if (scale) *operand = scale->buf;
    if (bias && k->bufs.data[bias->buf].dtype == d && last >= 0 &&
        k->dim[last].col && k->dim[last].extent == p.n &&
        walks(k, &bias->at, WALK_COLUMNS))
        return PLAN_FUSED_BIAS;
    if (scale && k->bufs.data[scale->buf].dtype == DT_F32 && d == DT_F32 &&
        walks(k, &scale->at, WALK_NOTHING))
        return PLAN_FUSED_SCALE;
    return PLAN_FUSED_NONE;
}
