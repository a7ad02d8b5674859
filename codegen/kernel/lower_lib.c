/* lower_lib.c: parameters and operands of the library routines (lib.def) from
   nodes.  Operands and dtypes follow from a routine's row, and so does the rest
   where its column `shape` is not `own`.                                    */
#include "codegen/kernel/lower.h"
#include "runtime/lib.h"

#include <string.h>

static const Type *type_of(const Graph *g, ValueId v) {
    return value_type(g, v);
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
static void add_batch(LibGemm *p, int64_t size, int64_t as, int64_t bs) {
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
static void fold_rows(LibGemm *p) {
    while (p->nbatch_dim > 0) {
        int64_t j = p->nbatch_dim - 1;
        if (p->b_bs[j] != 0 || p->a_bs[j] != p->m * p->a_rs) return;
        p->m *= p->batch_dim[j];
        p->batch_dim[j] = p->a_bs[j] = 0;
        p->nbatch_dim--;
    }
}

static void shape_GEMM(const Graph *g, const Node *n, LibGemm *p) {
    const Type *x = type_of(g, n->in[0]), *w = type_of(g, n->in[1]);
    const Type *y = type_of(g, n->out[0]);
    bool ta = attr_int(n, AK_trans_a, 0) != 0;
    bool tb = attr_int(n, AK_trans_b, 0) != 0;
    p->m = y->dim[y->rank - 2];
    p->n = y->dim[y->rank - 1];
    p->k = x->dim[x->rank - (ta ? 2 : 1)];
    p->a_rs = ta ? 1 : p->k;
    p->a_cs = ta ? p->m : 1;
    p->b_rs = tb ? 1 : p->n;
    p->b_cs = tb ? p->k : 1;
    for (int j = 0; j < y->rank - 2; j++)
        add_batch(p, y->dim[j], batch_stride(x, y->rank, j, p->m * p->k),
                  batch_stride(w, y->rank, j, p->k * p->n));
    fold_rows(p);
}

/* ---- convolution --------------------------------------------------------- */

/* x, w, y: the values in the roles of input, weight and output. */
static void conv(const Graph *g, const Node *n, LibConv *p, ValueId x,
                 ValueId w, ValueId y) {
    const Type *tx = type_of(g, x), *tw = type_of(g, w), *ty = type_of(g, y);
    int rank = tx->rank - 2;
    p->n = tx->dim[0];
    p->c = tx->dim[1];
    p->k = tw->dim[0];
    p->group = attr_int(n, AK_group, 1);
    spatial_dims(tx, p->in);
    spatial_dims(ty, p->out);
    spatial_dims(tw, p->kernel);
    spatial(n, AK_strides, rank, 1, p->stride);
    spatial(n, AK_dilations, rank, 1, p->dilation);
    spatial(n, AK_pads, rank, 0, p->pad);
}

static void shape_CONV_FWD(const Graph *g, const Node *n, LibConv *p) {
    conv(g, n, p, n->in[0], n->in[1], n->out[0]);
}

static void shape_CONV_DGRAD(const Graph *g, const Node *n, LibConv *p) {
    conv(g, n, p, n->out[0], n->in[1], n->in[0]);
}

static void shape_CONV_WGRAD(const Graph *g, const Node *n, LibConv *p) {
    conv(g, n, p, n->in[0], n->out[0], n->in[1]);
}

/* ---- pools --------------------------------------------------------------- */

/* x, y: the values in the roles of input and output. */
static void pool(const Graph *g, const Node *n, LibPool *p, ValueId x,
                 ValueId y) {
    const Type *tx = type_of(g, x);
    const int64_t *pads;
    int rank = tx->rank - 2, npads = attr_ints(n, AK_pads, &pads);
    p->planes = tx->dim[0] * tx->dim[1];
    spatial_dims(tx, p->in);
    spatial_dims(type_of(g, y), p->out);
    spatial(n, AK_kernel_shape, rank, 1, p->kernel);
    spatial(n, AK_strides, rank, 1, p->stride);
    spatial(n, AK_dilations, rank, 1, p->dilation);
    spatial(n, AK_pads, rank, 0, p->pad);
    for (int j = 0; j < rank && npads == 2 * rank; j++)
        p->pad_end[3 - rank + j] = pads[rank + j];
    p->idx_dtype = AMPC_I32;
}

static void shape_MAXPOOL(const Graph *g, const Node *n, LibPool *p) {
    pool(g, n, p, n->in[0], n->out[0]);
}

static void shape_MAXPOOL_GRAD(const Graph *g, const Node *n, LibPool *p) {
    pool(g, n, p, n->out[0], n->in[0]);
}

static void shape_AVGPOOL(const Graph *g, const Node *n, LibPool *p) {
    pool(g, n, p, n->in[0], n->out[0]);
}

static void shape_AVGPOOL_GRAD(const Graph *g, const Node *n, LibPool *p) {
    pool(g, n, p, n->out[0], n->in[0]);
}

/* ---- axes ---------------------------------------------------------------- */

static int64_t dims_product(const Type *t, int from, int to) {
    int64_t p = 1;
    for (int d = from; d < to; d++) p *= t->dim[d];
    return p;
}

static void shape_SCATTER_ADD(const Graph *g, const Node *n, LibScatterAdd *p) {
    const Type *out = type_of(g, n->out[0]), *idx = type_of(g, n->in[1]);
    int axis = axis_norm(attr_int(n, AK_axis, 0), out->rank);
    p->outer = dims_product(out, 0, axis);
    p->rows = out->dim[axis];
    p->nidx = type_count(idx);
    p->inner = dims_product(out, axis + 1, out->rank);
}

/* ---- all ----------------------------------------------------------------- */

int64_t lower_tile_rows(const LoweredStep *s) {
    if (s->lib == PLAN_LIB_GEMM) {
        const LibGemm *p = (const void *)s->pars;
        return p->nbatch_dim ? p->m : 0;
    }
    ASSERT(s->lib == PLAN_LIB_CONV_FWD);
    const LibConv *p = (const void *)s->pars;
    return p->n == 1 ? 0 : p->k;
}

/* Parameters that are called as an attribute of the op. */
static void attributes(const Node *n, const LibInfo *lib, int64_t *par) {
    for (uint32_t i = 0, at = 0; i < lib->nfield; at += lib->fields[i++].n)
        for (int k = 0; k < op_info[n->op].nattr; k++) {
            AttrKey key = op_info[n->op].attrs[k];
            if (!strcmp(attr_get(key)->text, lib->fields[i].name) &&
                attr_get(key)->kind == ATTR_INT)
                par[at] = attr_int(n, key, 0);
        }
}

#define SHAPE_own(E) shape_##E(g, n, p)
#define SHAPE_axis(E)                                                          \
    const Type *x = type_of(g, n->in[0]);                                      \
    int axis = axis_norm(attr_int(n, AK_axis, 0), x->rank);                    \
    p->outer = dims_product(x, 0, axis);                                       \
    p->axis = x->dim[axis];                                                    \
    p->inner = dims_product(x, axis + 1, x->rank)
#define SHAPE_none(E) ASSERT(p && !"an op's routine")

static void shape(const Graph *g, const Node *n, PlanLib lib, LibParams *par) {
    switch (lib) {
#define LIB(E, name, S, operands, shape, scratch, cuda, threads)               \
    case PLAN_LIB_##E: {                                                       \
        S *p = &par->as_##S;                                                   \
        SHAPE_##shape(E);                                                      \
        break;                                                                 \
    }
#include "runtime/lib.def"
    case PLAN_NLIB: ASSERT(!"a routine"); break;
    }
}

/* Operands are the node's own, in order, results after inputs. */
static Status operands(const Graph *g, const Node *n, Diag *d,
                       const LibInfo *lib, LoweredStep *s) {
    int in = 0, out = 0, wide = -1;
    for (uint32_t i = 0; i < lib->noperand; i++) {
        const LibOperand *o = &lib->operands[i];
        ValueId v = lib_writes(lib, (int)i) ? n->out[out++] : n->in[in++];
        DType t = value_dtype(g, v);
        if (!(o->dtypes >> t & 1))
            return fail(d, n->loc, "there is no %s of %s: cast to f32",
                        op_info[n->op].text, dtype_info[t].text);
        if (o->dtypes == LIB_FLOAT && wide >= 0 && wide != (t == DT_F64))
            return fail(d, n->loc, "%s mixes f64 and %s: cast one operand",
                        op_info[n->op].text,
                        dtype_info[wide ? t : value_dtype(g, n->in[0])].text);
        if (o->dtypes == LIB_FLOAT) wide = t == DT_F64;
        s->refs[i] = o->role == LIB_ROLE_IN ? view_root(g, v) : v;
        s->pars[o->dtype_at] = t;
    }
    ASSERT(in == n->nin && out == n->nout);
    return OK;
}

/* PlanLib + 1 of the rows of kind ANCHOR and LIB; 0: a generated kernel. */
enum { PLAN_LIB_kernel = -1 };
#define ROUTINE_ELEM(lower)      0
#define ROUTINE_GEN(lower)       0
#define ROUTINE_VIEW(lower)      0
#define ROUTINE_MOVE(lower)      0
#define ROUTINE_REDUCE(lower)    0
#define ROUTINE_ANCHOR(lower)    PLAN_LIB_##lower + 1
#define ROUTINE_LIB(lower)       PLAN_LIB_##lower + 1
#define ROUTINE_COMPOSITE(lower) 0
static const int routine[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, grad, kind,      \
           cost, eval, lower, expr)                                            \
    [OP_##E] = ROUTINE_##kind(lower),
#include "ir/op/ops.def"
};

bool lower_has_routine(OpCode op) { return routine[op] != 0; }

Status lower_lib_call(const Graph *g, const Node *n, Arena *a, Diag *d,
                      LoweredStep *out) {
    LibParams p;
    ASSERT(lower_has_routine(n->op));
    out->kind = PLAN_LIB;
    out->lib = (PlanLib)(routine[n->op] - 1);
    const LibInfo *lib = lib_info(out->lib);
    memset(&p, 0, sizeof p);
    attributes(n, lib, (int64_t *)(void *)&p);
    shape(g, n, out->lib, &p);
    out->npar = (int)lib->npar;
    out->pars = arena_dup(a, &p, lib->npar * sizeof(int64_t));
    out->nref = (int)lib->noperand;
    out->refs = NEW_ARRAY(a, ValueId, out->nref);
    return operands(g, n, d, lib, out);
}
