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

bool cuda_gemm_fits(const LoweredStep *s) {
    LibGemm p = gemm_of(s);
    return fits_int(p.m) && fits_int(p.n) && fits_int(p.k) &&
           p.nbatch_dim <= 1 && (!p.nbatch_dim || fits_int(p.batch_dim[0])) &&
           p.a_dtype == p.b_dtype && legal_types(p.a_dtype, p.c_dtype) &&
           plain_matrix(p.m, p.k, p.a_rs, p.a_cs) &&
           plain_matrix(p.k, p.n, p.b_rs, p.b_cs);
}

/* ---- its epilogue -------------------------------------------------------- */

static const KInst *only_store(const Kernel *k) {
    const KInst *store = NULL;
    for (int i = 1; i < k->insts.len; i++) {
        if (k->insts.data[i].op != K_STORE) continue;
        if (store) return NULL;
        store = &k->insts.data[i];
    }
    return store;
}

/* The element at the kernel's own place, all dims contiguous. */
static bool walks_all(const Kernel *k, const KIndex *at) {
    int64_t stride = 1;
    if (at->c || at->inst) return false;
    for (int d = k->ndim - 1; d >= 0; d--) {
        if (at->k[d] != stride) return false;
        stride *= k->dim[d].extent;
    }
    return true;
}

static bool walks_nothing(const Kernel *k, const KIndex *at) {
    for (int d = 0; d < k->ndim; d++)
        if (at->k[d]) return false;
    return !at->c && !at->inst;
}

/* One value per column of a product n wide. */
static bool walks_columns(const Kernel *k, const KIndex *at, int64_t n) {
    int last = k->ndim - 1;
    if (at->c || at->inst || last < 0) return false;
    if (!k->dim[last].col || k->dim[last].extent != n) return false;
    for (int d = 0; d <= last; d++)
        if (at->k[d] != (d == last)) return false;
    return true;
}

static int without_round(const Kernel *k, int id, DType d) {
    const KInst *in = kinst_at(k, id);
    return in->op == K_ROUND && in->dtype == d ? in->in[0] : id;
}

static bool is_op(const KInst *in, OpCode code) {
    return in->op == K_OP && in->code == code && in->compute == KT_F32;
}

static bool is_acc(const Kernel *k, int id) {
    return kinst_at(k, id)->op == K_ACC;
}

/* The load that stands beside the accumulator in a commutative operation. */
static const KInst *beside_acc(const Kernel *k, const KInst *in) {
    int other = is_acc(k, in->in[0])   ? in->in[1]
                : is_acc(k, in->in[1]) ? in->in[0]
                                       : 0;
    if (!other) return NULL;
    const KInst *load = kinst_at(k, other);
    return load->op == K_LOAD && !load->guard ? load : NULL;
}

static PlanCudaFused match(const Kernel *k, const LibGemm *p, DType out, int id,
                           int *operand) {
    const KInst *in = kinst_at(k, without_round(k, id, out));
    if (!is_op(in, OP_ADD) && !is_op(in, OP_MUL)) return PLAN_FUSED_NONE;
    const KInst *load = beside_acc(k, in);
    if (!load) return PLAN_FUSED_NONE;
    *operand = load->buf;
    DType d = k->bufs.data[load->buf].dtype;
    if (in->code == OP_ADD && d == out && walks_columns(k, &load->at, p->n))
        return PLAN_FUSED_BIAS;
    if (in->code == OP_MUL && d == DT_F32 && out == DT_F32 &&
        walks_nothing(k, &load->at))
        return PLAN_FUSED_SCALE;
    return PLAN_FUSED_NONE;
}

PlanCudaFused cuda_gemm_fused(const CudaStepIn *in, int *operand, int *out) {
    const Kernel *k = in->s->epilogue;
    LibGemm p = gemm_of(in->s);
    const KInst *store = only_store(k);
    *operand = 0;
    if (!store || !walks_all(k, &store->at)) return PLAN_FUSED_NONE;
    DType d = k->bufs.data[store->buf].dtype;
    if (!legal_types(p.a_dtype, d)) return PLAN_FUSED_NONE;
    *out = store->buf;
    return match(k, &p, d, store->in[0], operand);
}
