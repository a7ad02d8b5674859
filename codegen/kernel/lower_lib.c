/* lower_lib.c: parameters of the library routines from operand shapes.  The
   structs are those of runtime/cpu/kernels.h, passed field by field.        */
#include "codegen/kernel/lower.h"
#include "runtime/cpu/kernels.h"

#include <string.h>

static const Type *type_of(const Graph *g, ValueId v) {
    return value_type(g, v);
}

static void set_refs(Arena *a, LoweredStep *s, ValueId x, ValueId y, ValueId z,
                     int n) {
    ValueId v[3] = {x, y, z};
    s->refs = arena_dup(a, v, sizeof v);
    s->nref = n;
}

/* All fields of the structs are int64_t. */
static void set_pars(Arena *a, LoweredStep *s, PlanLib lib, const void *par,
                     size_t bytes) {
    s->kind = PLAN_LIB;
    s->lib = lib;
    s->pars = arena_dup(a, par, bytes);
    s->npar = (int)(bytes / sizeof(int64_t));
}

/* Attribute ints with a default, right-aligned in three spatial dims. */
static void spatial(const Node *n, AttrKey key, int s, int64_t dflt,
                    int64_t *to) {
    const int64_t *v;
    int have = attr_ints(n, key, &v);
    for (int i = 0; i < 3; i++) {
        int j = i - (3 - s);
        to[i] = j < 0 ? dflt : j < have ? v[j] : dflt;
    }
}

static void spatial_dims(const Type *t, int64_t *to) {
    int s = t->rank - 2;
    for (int i = 0; i < 3; i++) to[i] = i < 3 - s ? 1 : t->dim[i - (3 - s) + 2];
}

/* ---- matrix product ------------------------------------------------------ */

static int64_t batch_stride(const Type *t, int rank, int d, int64_t each) {
    int64_t s = each;
    int own = d - (rank - t->rank);
    if (own < 0 || t->dim[own] == 1) return 0;
    for (int e = own + 1; e < t->rank - 2; e++) s *= t->dim[e];
    return s;
}

/* Appends a batch dim, or merges it with the one before. */
static void add_batch(CpuGemm *p, int64_t size, int64_t as, int64_t bs) {
    int64_t j = p->nbatch_dim - 1;
    if (size == 1) return;
    if (j >= 0 && p->a_bs[j] == as * size && p->b_bs[j] == bs * size) {
        p->batch_dim[j] *= size;
    } else {
        j = p->nbatch_dim++;
        p->batch_dim[j] = size;
    }
    p->a_bs[j] = as;
    p->b_bs[j] = bs;
}

/* Rows of A that follow each other over the batch, times one B, are one
   product: [b,t,k] x [k,n] has b*t rows. */
static void fold_rows(CpuGemm *p) {
    while (p->nbatch_dim > 0) {
        int64_t j = p->nbatch_dim - 1;
        if (p->b_bs[j] != 0 || p->a_bs[j] != p->m * p->a_rs) return;
        p->m *= p->batch_dim[j];
        p->batch_dim[j] = p->a_bs[j] = 0;
        p->nbatch_dim--;
    }
}

static Status gemm(const Graph *g, const Node *n, Arena *a, Diag *d,
                   LoweredStep *s) {
    const Type *x = type_of(g, n->in[0]), *w = type_of(g, n->in[1]);
    const Type *y = type_of(g, n->out[0]);
    bool ta = attr_int(n, AK_trans_a, 0) != 0;
    bool tb = attr_int(n, AK_trans_b, 0) != 0;
    CpuGemm p;
    memset(&p, 0, sizeof p);
    p.m = y->dim[y->rank - 2];
    p.n = y->dim[y->rank - 1];
    p.k = x->dim[x->rank - (ta ? 2 : 1)];
    p.a_rs = ta ? 1 : p.k;
    p.a_cs = ta ? p.m : 1;
    p.b_rs = tb ? 1 : p.n;
    p.b_cs = tb ? p.k : 1;
    p.a_dtype = x->dtype;
    p.b_dtype = w->dtype;
    p.c_dtype = y->dtype;
    if ((x->dtype == DT_F64) != (w->dtype == DT_F64))
        return fail(d, n->loc, "matmul of %s and %s: cast one operand",
                    dtype_info[x->dtype].text, dtype_info[w->dtype].text);
    for (int j = 0; j < y->rank - 2; j++)
        add_batch(&p, y->dim[j], batch_stride(x, y->rank, j, p.m * p.k),
                  batch_stride(w, y->rank, j, p.k * p.n));
    fold_rows(&p);
    set_pars(a, s, PLAN_LIB_GEMM, &p, sizeof p);
    set_refs(a, s, view_root(g, n->in[0]), view_root(g, n->in[1]), n->out[0],
             3);
    return OK;
}

/* ---- convolution --------------------------------------------------------- */

/* x, w, y: the values in the roles of input, weight and output. */
static void conv_pars(const Graph *g, const Node *n, Arena *a, LoweredStep *s,
                      PlanLib lib, ValueId x, ValueId w, ValueId y) {
    const Type *tx = type_of(g, x), *tw = type_of(g, w), *ty = type_of(g, y);
    int rank = tx->rank - 2;
    CpuConv p;
    memset(&p, 0, sizeof p);
    p.n = tx->dim[0];
    p.c = tx->dim[1];
    p.k = tw->dim[0];
    p.group = attr_int(n, AK_group, 1);
    spatial_dims(tx, p.in);
    spatial_dims(ty, p.out);
    spatial_dims(tw, p.kernel);
    spatial(n, AK_strides, rank, 1, p.stride);
    spatial(n, AK_dilations, rank, 1, p.dilation);
    spatial(n, AK_pads, rank, 0, p.pad);
    p.x_dtype = tx->dtype;
    p.w_dtype = tw->dtype;
    p.y_dtype = ty->dtype;
    set_pars(a, s, lib, &p, sizeof p);
}

static Status conv(const Graph *g, const Node *n, Arena *a, LoweredStep *s,
                   Diag *d) {
    ValueId p = n->in[0], q = n->in[1], r = n->out[0];
    if (value_dtype(g, p) == DT_F64 || value_dtype(g, q) == DT_F64 ||
        value_dtype(g, r) == DT_F64)
        return fail(d, n->loc, "there is no convolution in f64: cast to f32");
    set_refs(a, s, view_root(g, p), view_root(g, q), r, 3);
    if (n->op == OP_CONV)
        conv_pars(g, n, a, s, PLAN_LIB_CONV_FWD, p, q, r);
    else if (n->op == OP_CONV_DGRAD)
        conv_pars(g, n, a, s, PLAN_LIB_CONV_DGRAD, r, q, p);
    else
        conv_pars(g, n, a, s, PLAN_LIB_CONV_WGRAD, p, r, q);
    return OK;
}

/* ---- pools --------------------------------------------------------------- */

static void pool_pars(const Graph *g, const Node *n, Arena *a, LoweredStep *s,
                      PlanLib lib, ValueId x, ValueId y) {
    const Type *tx = type_of(g, x);
    const int64_t *pads;
    int rank = tx->rank - 2, npads = attr_ints(n, AK_pads, &pads);
    CpuPool p;
    memset(&p, 0, sizeof p);
    p.planes = tx->dim[0] * tx->dim[1];
    spatial_dims(tx, p.in);
    spatial_dims(type_of(g, y), p.out);
    spatial(n, AK_kernel_shape, rank, 1, p.kernel);
    spatial(n, AK_strides, rank, 1, p.stride);
    spatial(n, AK_dilations, rank, 1, p.dilation);
    spatial(n, AK_pads, rank, 0, p.pad);
    for (int j = 0; j < rank && npads == 2 * rank; j++)
        p.pad_end[3 - rank + j] = pads[rank + j];
    p.count_include_pad = attr_int(n, AK_count_include_pad, 0);
    p.dtype = tx->dtype;
    set_pars(a, s, lib, &p, sizeof p);
}

static void pool(const Graph *g, const Node *n, Arena *a, LoweredStep *s) {
    ValueId x = view_root(g, n->in[0]);
    switch (n->op) {
    case OP_MAX_POOL:
        set_refs(a, s, x, n->out[0], n->out[1], 3);
        pool_pars(g, n, a, s, PLAN_LIB_MAXPOOL, n->in[0], n->out[0]);
        break;
    case OP_MAX_POOL_GRAD:
        set_refs(a, s, x, view_root(g, n->in[1]), n->out[0], 3);
        pool_pars(g, n, a, s, PLAN_LIB_MAXPOOL_GRAD, n->out[0], n->in[0]);
        break;
    case OP_AVG_POOL:
        set_refs(a, s, x, n->out[0], NO_VALUE, 2);
        pool_pars(g, n, a, s, PLAN_LIB_AVGPOOL, n->in[0], n->out[0]);
        break;
    default:
        set_refs(a, s, x, n->out[0], NO_VALUE, 2);
        pool_pars(g, n, a, s, PLAN_LIB_AVGPOOL_GRAD, n->out[0], n->in[0]);
    }
}

/* ---- scatter, argmax ----------------------------------------------------- */

static int64_t dims_product(const Type *t, int from, int to) {
    int64_t p = 1;
    for (int d = from; d < to; d++) p *= t->dim[d];
    return p;
}

static void scatter_add(const Graph *g, const Node *n, Arena *a,
                        LoweredStep *s) {
    const Type *out = type_of(g, n->out[0]), *idx = type_of(g, n->in[1]);
    int axis = axis_norm(attr_int(n, AK_axis, 0), out->rank);
    CpuScatterAdd p;
    memset(&p, 0, sizeof p);
    p.outer = dims_product(out, 0, axis);
    p.rows = out->dim[axis];
    p.nidx = type_count(idx);
    p.inner = dims_product(out, axis + 1, out->rank);
    p.src_dtype = type_of(g, n->in[0])->dtype;
    p.idx_dtype = idx->dtype;
    p.out_dtype = out->dtype;
    set_pars(a, s, PLAN_LIB_SCATTER_ADD, &p, sizeof p);
    set_refs(a, s, view_root(g, n->in[0]), view_root(g, n->in[1]), n->out[0],
             3);
}

static void argmax(const Graph *g, const Node *n, Arena *a, LoweredStep *s) {
    const Type *x = type_of(g, n->in[0]);
    int axis = axis_norm(attr_int(n, AK_axis, 0), x->rank);
    CpuArgmax p;
    memset(&p, 0, sizeof p);
    p.outer = dims_product(x, 0, axis);
    p.axis = x->dim[axis];
    p.inner = dims_product(x, axis + 1, x->rank);
    p.dtype = x->dtype;
    set_pars(a, s, PLAN_LIB_ARGMAX, &p, sizeof p);
    set_refs(a, s, view_root(g, n->in[0]), n->out[0], NO_VALUE, 2);
}

/* ---- all ----------------------------------------------------------------- */

int64_t lower_tile_rows(const LoweredStep *s) {
    if (s->lib == PLAN_LIB_GEMM) {
        CpuGemm p;
        memcpy(&p, s->pars, sizeof p);
        return p.nbatch_dim ? p.m : 0;
    }
    CpuConv p;
    ASSERT(s->lib == PLAN_LIB_CONV_FWD);
    memcpy(&p, s->pars, sizeof p);
    return p.n == 1 ? 0 : p.k;
}

/* The routines that sum or pool know no integers. */
static Status need_floats(const Graph *g, const Node *n, Diag *d) {
    DType t = value_dtype(g, n->in[0]);
    if (dtype_is_float(t)) return OK;
    return fail(d, n->loc, "there is no %s of %s: cast to f32",
                op_info[n->op].text, dtype_info[t].text);
}

Status lower_lib_call(const Graph *g, const Node *n, Arena *a, Diag *d,
                      LoweredStep *out) {
    switch (n->op) {
    case OP_MATMUL: return gemm(g, n, a, d, out);
    case OP_CONV:
    case OP_CONV_DGRAD:
    case OP_CONV_WGRAD: return conv(g, n, a, out, d);
    case OP_MAX_POOL:
    case OP_MAX_POOL_GRAD:
    case OP_AVG_POOL:
    case OP_AVG_POOL_GRAD:
        TRY(need_floats(g, n, d));
        pool(g, n, a, out);
        return OK;
    case OP_SCATTER_ADD:
        TRY(need_floats(g, n, d));
        scatter_add(g, n, a, out);
        return OK;
    default:
        ASSERT(n->op == OP_ARGMAX);
        argmax(g, n, a, out);
        return OK;
    }
}
