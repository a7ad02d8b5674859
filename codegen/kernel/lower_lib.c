/* SPDX-License-Identifier: Apache-2.0 */
/* lower_lib.c: parameters and operands of the library routines (lib.def) from
   nodes.  A routine's row gives operands and dtypes, and the parameters too
   unless its column `shape` is `own`. */
#include "codegen/kernel/lower.h"
#include "passes/device/product.h"
#include "runtime/program/lib.h"
#include "runtime/program/strip.h"

#include <math.h>
#include <string.h>

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

static int64_t dims_product(const Type *t, int from, int to) {
    int64_t p = 1;
    for (int d = from; d < to; d++) p *= t->dim[d];
    return p;
}

/* ---- convolution --------------------------------------------------------- */

static void conv(const Node *n, LibConv *p, const Type *x, const Type *w,
                 const Type *y) {
    int rank = x->rank - 2;
    p->n = x->dim[0];
    p->c = x->dim[1];
    p->k = w->dim[0];
    p->group = attr_int(n, AK_group);
    spatial_dims(x, p->in);
    spatial_dims(y, p->out);
    spatial_dims(w, p->kernel);
    spatial(n, AK_strides, rank, 1, p->stride);
    spatial(n, AK_dilations, rank, 1, p->dilation);
    spatial(n, AK_pads, rank, 0, p->pad);
}

static void conv_sums(const Node *n, LibConvSums *p, const Type *const *t) {
    conv(n, (LibConv *)(void *)p, t[0], t[1], t[2]);
    p->strip = CONV_STRIP;
    p->scale = lib_bits((float)attr_float(n, AK_scale));
}

static void conv_dgrad_sums(const Node *n, LibConvDgradSums *p,
                            const Type *const *t) {
    enum { GATE = 5, ADD = 8, DX };
    conv(n, (LibConv *)(void *)p, t[DX], t[1], t[0]);
    p->strip = CONV_STRIP;
    p->scale = lib_bits((float)attr_float(n, AK_scale));
    p->gated = t[GATE] != NULL;
    p->adds = t[ADD] != NULL;
}

/* ---- quantized weights --------------------------------------------------- */

static void gemm_quantized(const Node *n, LibGemmQuantized *p, const Type *x,
                           const Type *y) {
    bool tb = attr_int(n, AK_trans_b);
    p->k = x->dim[x->rank - 1];
    p->n = y->dim[y->rank - 1];
    p->m = dims_product(y, 0, y->rank - 1);
    p->b_rs = tb ? 1 : p->n;
    p->b_cs = tb ? p->k : 1;
}

/* ---- pools --------------------------------------------------------------- */

static void pool(const Node *n, LibPool *p, const Type *x, const Type *y) {
    const int64_t *pads;
    int rank = x->rank - 2, npads = attr_ints(n, AK_pads, &pads);
    p->planes = x->dim[0] * x->dim[1];
    spatial_dims(x, p->in);
    spatial_dims(y, p->out);
    spatial(n, AK_kernel_shape, rank, 1, p->kernel);
    spatial(n, AK_strides, rank, 1, p->stride);
    spatial(n, AK_dilations, rank, 1, p->dilation);
    spatial(n, AK_pads, rank, 0, p->pad);
    for (int j = 0; j < rank && npads == 2 * rank; j++)
        p->pad_end[3 - rank + j] = pads[rank + j];
    p->idx_dtype = AMPC_I32;
}

/* ---- axes ---------------------------------------------------------------- */

static void scatter_add(const Node *n, LibScatterAdd *p, const Type *idx,
                        const Type *out) {
    int axis = axis_norm(attr_int(n, AK_axis), out->rank);
    p->outer = dims_product(out, 0, axis);
    p->rows = out->dim[axis];
    p->nidx = type_count(idx);
    p->inner = dims_product(out, axis + 1, out->rank);
}

static void argsort(LibArgsort *p, const Type *x) {
    p->rows = dims_product(x, 0, x->rank - 1);
    p->n = x->dim[x->rank - 1];
}

static void suppress(LibSuppress *p, const Type *mask) {
    p->rows = mask->dim[0];
    p->n = mask->dim[1];
}

/* ---- attention ----------------------------------------------------------- */

/* mask: NULL if there is none. */
static void attend(const Node *n, LibAttend *p, const Type *const *t,
                   const Type *mask) {
    double ratio = attr_float(n, AK_ratio);
    const AttendPart qs = attend_part(n, 0, t[0]), ks = attend_part(n, 1, t[1]),
                     vs = attend_part(n, 2, t[2]);
    const Type *q = &qs.type, *v = &vs.type;
    p->q_heads = qs.heads;
    p->q_width = qs.width;
    p->q_first = qs.first;
    p->kv_heads = vs.heads;
    p->k_width = ks.width;
    p->k_first = ks.first;
    p->v_width = vs.width;
    p->v_first = vs.first;
    p->packed = n->op == OP_ATTEND_GRAD && n->nout < 3 ? n->nout : 0;
    p->batch = dims_product(q, 0, q->rank - 2);
    p->group =
        v->dim[v->rank - 3] ? q->dim[q->rank - 3] / v->dim[v->rank - 3] : 1;
    p->scale = lib_bits((float)attr_float(n, AK_scale));
    p->drop = (int64_t)ceil((double)(float)ratio * 0x1p24);
    p->keep = lib_bits((float)(1 / (1 - ratio)));
    if (mask) {
        attend_mask(q, v, mask, &p->mask_div, &p->mask_mod);
        p->mask_rows = mask->rank > 1 && mask->dim[mask->rank - 2] > 1;
        p->mask_cols = mask->rank > 0 && mask->dim[mask->rank - 1] > 1;
    }
    p->t = q->dim[q->rank - 2];
    p->d = q->dim[q->rank - 1];
    p->u = v->dim[v->rank - 2];
    p->e = v->dim[v->rank - 1];
}

/* ---- all ----------------------------------------------------------------- */

int64_t lower_tile_rows(const LoweredStep *s) {
    if (s->lib == PLAN_LIB_GEMM) {
        const LibGemm *p = (const void *)s->pars;
        return p->nbatch_dim ? p->m : 0;
    }
    if (s->lib == PLAN_LIB_GEMM_QUANTIZED) return 0;
    ASSERT(s->lib == PLAN_LIB_CONV_FWD);
    const LibConv *p = (const void *)s->pars;
    return p->n == 1 ? 0 : p->k;
}

/* Column `shape` of lib.def; t: the operands' types. */
#define shape_GEMM(n, p, t)            product_shape(n, p, t)
#define shape_WIDEN_QUANTIZED(n, p, t) ((p)->n = type_count(t[2]))
#define shape_GEMM_QUANTIZED(n, p, t)  gemm_quantized(n, p, t[0], t[3])
#define shape_CONV_FWD(n, p, t)        conv(n, p, t[0], t[1], t[2])
#define shape_CONV_SUMS(n, p, t)       conv_sums(n, p, t)
#define shape_CONV_DGRAD_SUMS(n, p, t) conv_dgrad_sums(n, p, t)
#define shape_CONV_DGRAD(n, p, t)      conv(n, p, t[2], t[1], t[0])
#define shape_CONV_WGRAD(n, p, t)      conv(n, p, t[0], t[2], t[1])
#define shape_MAXPOOL(n, p, t)         pool(n, p, t[0], t[1])
#define shape_MAXPOOL_GRAD(n, p, t)    pool(n, p, t[2], t[0])
#define shape_AVGPOOL(n, p, t)         pool(n, p, t[0], t[1])
#define shape_AVGPOOL_GRAD(n, p, t)    pool(n, p, t[1], t[0])
#define shape_SCATTER_ADD(n, p, t)     scatter_add(n, p, t[1], t[2])
#define shape_ARGSORT(n, p, t)         argsort(p, t[0])
#define shape_SUPPRESS(n, p, t)        suppress(p, t[1])
#define shape_ATTEND(n, p, t)          attend(n, p, t, t[3])
#define shape_ATTEND_GRAD(n, p, t)     attend(n, p, t, t[6])
#define shape_COPY(n, p, t)            ((p)->bytes = type_bytes(t[0]))
#define SHAPE_own(E)                   shape_##E(n, p, t)
#define SHAPE_axis(E)                                                          \
    int axis = axis_norm(attr_int(n, AK_axis), t[0]->rank);                    \
    p->outer = dims_product(t[0], 0, axis);                                    \
    p->axis = t[0]->dim[axis];                                                 \
    p->inner = dims_product(t[0], axis + 1, t[0]->rank)

static void shape(const Node *n, PlanLib lib, const Type *const *t,
                  LibParams *par) {
    switch (lib) {
#define LIB(E, name, S, operands, shape, scratch, tiles, cuda, threads)        \
    case PLAN_LIB_##E: {                                                       \
        S *p = &par->as_##S;                                                   \
        SHAPE_##shape(E);                                                      \
        break;                                                                 \
    }
#include "runtime/program/lib.def"
    case PLAN_NLIB: ASSERT(!"a routine"); break;
    }
}

/* Sets the dtypes and refs of the routine's operands. */
static Status operands(const Graph *g, const Node *n, Diag *d,
                       const LibInfo *lib, const ValueId *v, LoweredStep *s) {
    int wide = -1;
    for (uint32_t i = 0; i < lib->noperand; i++) {
        const LibOperand *o = &lib->operands[i];
        if (!is_value(v[i])) { /* absent: any dtype that the routine allows */
            s->refs[i] = NO_VALUE;
            while (!(o->dtypes >> s->pars[o->dtype_at] & 1))
                s->pars[o->dtype_at]++;
            continue;
        }
        DType t = value_dtype(g, v[i]);
        if (!(o->dtypes >> t & 1))
            return fail(d, n->loc, "%s of %s is not supported: cast to f32",
                        op_info[n->op].text, dtype_info[t].text);
        bool floats = o->dtypes == LIB_FLOAT || o->dtypes == LIB_FACTOR;
        if (floats && wide >= 0 && wide != (t == DT_F64))
            return fail(d, n->loc, "%s mixes f64 and %s: cast one operand",
                        op_info[n->op].text,
                        dtype_info[wide ? t : value_dtype(g, n->in[0])].text);
        if (floats) wide = t == DT_F64;
        s->refs[i] = lib_writes(lib, (int)i) ? v[i] : view_root(g, v[i]);
        s->pars[o->dtype_at] = t;
    }
    return OK;
}

/* PlanLib + 1 for nodes of kind ANCHOR and LIB; 0: the node becomes a
   generated kernel. */
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
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    [OP_##E] = ROUTINE_##kind(lower),
#include "ir/op/ops.def"
};

bool lower_has_routine(OpCode op) { return routine[op] != 0; }

/* A result that a packed gradient of attention does not have by itself: its
   second one are the sums. */
static bool is_packed_away(const Node *n, const LibInfo *lib, int i, int nout) {
    return n->op == OP_ATTEND_GRAD && n->nout == 2 && nout == 1 &&
           i + 1 < (int)lib->noperand;
}

/* Operands are the node's own, in order, results after inputs. */
Status lower_lib_call(const Graph *g, const Node *n, Arena *a, Diag *d,
                      LoweredStep *out) {
    LibParams p;
    ASSERT(lower_has_routine(n->op));
    out->kind = PLAN_LIB;
    out->lib = (PlanLib)(routine[n->op] - 1);
    out->largest = n->op == OP_RANK_MAX;
    out->summed = op_of_ranks(n->op);
    const LibInfo *lib = lib_info(out->lib);
    ValueId *v = NEW_ARRAY(a, ValueId, (int)lib->noperand);
    const Type **t = NEW_ARRAY(a, const Type *, (int)lib->noperand);
    int nin = 0, nout = 0;
    out->empty = true;
    for (int i = 0; i < (int)lib->noperand; i++) {
        if (is_packed_away(n, lib, i, nout)) continue; /* dk, dv: in dq */
        v[i] = lib_writes(lib, i) ? nout < n->nout ? n->out[nout++] : NO_VALUE
               : nin < n->nin     ? n->in[nin++]
                                  : NO_VALUE;
        t[i] = is_value(v[i]) ? value_type(g, v[i]) : NULL;
        if (lib_writes(lib, i) && t[i] && type_count(t[i])) out->empty = false;
    }
    for (int i = 0; n->op == OP_MATMUL && nin < n->nin; i++)
        out->blocks[i] = view_root(g, n->in[nin++]);
    ASSERT(nin == n->nin && nout == n->nout);
    memset(&p, 0, sizeof p);
    int64_t *par = (int64_t *)(void *)&p; /* named like their attributes */
    for (uint32_t i = 0; i < lib->nfield; par += lib->fields[i++].n)
        for (int k = 0; k < op_info[n->op].nattr; k++) {
            AttrKey key = op_info[n->op].attrs[k];
            if (!strcmp(attr_get(key)->text, lib->fields[i].name) &&
                attr_get(key)->kind == ATTR_INT)
                *par = attr_int(n, key);
        }
    shape(n, out->lib, t, &p);
    out->npar = (int)lib->npar;
    out->pars = arena_dup(a, &p, lib->npar * sizeof(int64_t));
    out->nref = (int)lib->noperand;
    out->refs = NEW_ARRAY(a, ValueId, out->nref);
    return operands(g, n, d, lib, v, out);
}
