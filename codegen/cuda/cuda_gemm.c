/* cuda_gemm.c: what cuBLASLt does of a matrix product and of the generated
   epilogue behind it, and of convolutions that are products (cuda.h).

   An epilogue is fused only where every rounding stays: between the product
   and what follows nothing may be rounded.  Fusion gives such products no other
   (passes/target/epilogue.c); all others are kernels of our own.            */
#include "codegen/cuda/cuda.h"
#include "runtime/lib.h"

#include <string.h>

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

static bool product_fits(const LibGemm *p) {
    return fits_int(p->m) && fits_int(p->n) && fits_int(p->k) &&
           p->nbatch_dim <= 1 &&
           (!p->nbatch_dim || fits_batch(p->batch_dim[0])) &&
           p->a_dtype == p->b_dtype && legal_types(p->a_dtype, p->c_dtype) &&
           plain_matrix(p->m, p->k, p->a_rs, p->a_cs) &&
           plain_matrix(p->k, p->n, p->b_rs, p->b_cs);
}

/* acc + bias[column] or acc * number, rounded once when it is stored; gives the
   buffers of the operand and of the result. */
static PlanProduct fused(const LibGemm *p, const Kernel *k, int *operand,
                         int *out) {
    int last = k->ndim - 1;
    const KInst *store = kinst_at(k, k->insts.len - 1);
    const KInst *op = kinst_at(k, store->in[0]);
    DType to = k->bufs.data[store->buf].dtype;
    if (op->op == K_ROUND && op->dtype == to) op = kinst_at(k, op->in[0]);
    bool bias = op->code == OP_ADD;
    if (k->bufs.len != 2 || op->op != K_OP || (!bias && op->code != OP_MUL))
        return PLAN_PRODUCT_PLAIN;
    const KInst *x = kinst_at(k, op->in[0]), *y = kinst_at(k, op->in[1]);
    const KInst *load = x->op == K_ACC ? y : x;
    if ((load == y ? x : y)->op != K_ACC || load->op != K_LOAD || load->guard ||
        load->at.c || load->at.inst)
        return PLAN_PRODUCT_PLAIN;
    for (int d = 0; d <= last; d++)
        if (load->at.k[d] != (bias && d == last)) return PLAN_PRODUCT_PLAIN;
    DType from = k->bufs.data[load->buf].dtype;
    *operand = load->buf;
    *out = store->buf;
    if (bias)
        return from == to && legal_types(p->a_dtype, to) && last >= 0 &&
                       k->dim[last].col && k->dim[last].extent == p->n
                   ? PLAN_PRODUCT_BIAS
                   : PLAN_PRODUCT_PLAIN;
    return from == DT_F32 && to == DT_F32 ? PLAN_PRODUCT_SCALE
                                          : PLAN_PRODUCT_PLAIN;
}

bool cuda_product(Arena *a, const LoweredStep *s, LoweredStep *out) {
    LibGemm *p = arena_dup(a, s->pars, sizeof *p);
    int operand, result;
    ASSERT(s->npar * sizeof(int64_t) == sizeof *p);
    if (!product_fits(p)) return false;
    if (s->epilogue) {
        out->fn = fused(p, s->epilogue, &operand, &result);
        if (out->fn == PLAN_PRODUCT_PLAIN) return false;
        p->c_dtype = s->epilogue->bufs.data[result].dtype;
        out->refs =
            arena_dup(a,
                      (ValueId[]){s->refs[0], s->refs[1], s->ep_refs[result],
                                  s->ep_refs[operand]},
                      4 * sizeof(ValueId));
        out->nref = 4;
    }
    out->kind = PLAN_PRODUCT;
    out->pars = (int64_t *)(void *)p;
    return true;
}

bool cuda_conv_points(const LibConv *c) {
    return lib_volume(c->kernel) == 1 && lib_volume(c->stride) == 1 &&
           !c->pad[0] && !c->pad[1] && !c->pad[2] &&
           lib_volume(c->in) == lib_volume(c->out);
}

/* In NCHW an image is a row-major matrix of channels by positions. */
bool cuda_conv_product(Arena *a, const LoweredStep *s, LoweredStep *out) {
    const LibConv *c = (const void *)s->pars;
    bool fwd = s->lib == PLAN_LIB_CONV_FWD;
    if ((!fwd && s->lib != PLAN_LIB_CONV_DGRAD) || s->epilogue ||
        c->group != 1 || !cuda_conv_points(c))
        return false;
    int64_t positions = lib_volume(c->out);
    LibGemm p = {.m = fwd ? c->k : c->c,
                 .n = positions,
                 .k = fwd ? c->c : c->k,
                 .nbatch_dim = 1,
                 .batch_dim = {c->n},
                 .b_bs = {(fwd ? c->c : c->k) * positions},
                 .a_rs = fwd ? c->c : 1,
                 .a_cs = fwd ? 1 : c->c,
                 .b_rs = positions,
                 .b_cs = 1,
                 .a_dtype = c->w_dtype,
                 .b_dtype = fwd ? c->x_dtype : c->y_dtype,
                 .c_dtype = fwd ? c->y_dtype : c->x_dtype};
    ValueId refs[] = {s->refs[1], s->refs[0], s->refs[2]};
    *out = *s;
    out->lib = PLAN_LIB_GEMM;
    out->pars = arena_dup(a, &p, sizeof p);
    out->npar = sizeof p / sizeof(int64_t);
    out->refs = arena_dup(a, refs, sizeof refs);
    return product_fits(&p);
}
