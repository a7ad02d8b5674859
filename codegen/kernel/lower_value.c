/* SPDX-License-Identifier: Apache-2.0 */
/* lower_value.c: one element of one value as kernel instructions. */
#include "codegen/kernel/lower.h"
#include "ir/eval/evaluate.h"

#include <math.h>
#include <string.h>

/* ---- small instructions -------------------------------------------------- */

static int lower_add(Lower *l, const KInst *in) {
    return kernel_add(l->arena, l->k, in);
}

int lower_const(Lower *l, KType t, double f, int64_t i) {
    KInst in = kinst(K_CONST, t);
    if (t == KT_F32 || t == KT_F64)
        in.f = f;
    else
        in.i = i;
    return lower_add(l, &in);
}

static bool op_tests(OpCode c) {
    const char *rule = op_info[c].type_text;
    return strcmp(rule, "compare") == 0 || strcmp(rule, "logic") == 0 ||
           strcmp(rule, "test_f") == 0;
}

int lower_op(Lower *l, OpCode code, KType compute, int a, int b, int c) {
    KInst in = kinst(K_OP, op_tests(code) ? KT_B8 : compute);
    in.code = code;
    in.compute = compute;
    in.in[0] = a;
    in.in[1] = b;
    in.in[2] = c;
    return lower_add(l, &in);
}

/* A constant in another dtype is a new constant. */
static int const_as(Lower *l, const KInst *in, DType d) {
    bool was_float = in->type == KT_F32 || in->type == KT_F64;
    if (dtype_is_float(d)) {
        double v = was_float ? in->f : (double)in->i;
        return lower_const(l, ktype_of(d), round_to_dtype(v, d), 0);
    }
    int64_t i = was_float ? int_of_float(in->f) : in->i;
    int spare = 64 - dtype_info[d].bytes * 8;
    if (d == DT_BOOL)
        i = was_float ? in->f != 0 : in->i != 0;
    else if (dtype_info[d].kind == DK_U)
        i = (int64_t)((uint64_t)i << spare >> spare);
    else
        i = (int64_t)((uint64_t)i << spare) >> spare;
    return lower_const(l, d == DT_BOOL ? KT_B8 : KT_I64, 0, i);
}

int lower_as(Lower *l, int inst, DType d) {
    KType t = ktype_of(d);
    KInst in = *kinst_at(l->k, inst);
    if (in.op == K_CONST) return const_as(l, &in, d);
    if (in.type != t) {
        KInst cvt = kinst(K_CVT, t);
        cvt.in[0] = inst;
        inst = lower_add(l, &cvt);
    }
    if (!(kinst_at(l->k, inst)->fits >> d & 1)) {
        KInst round = kinst(K_ROUND, t);
        round.dtype = d;
        round.in[0] = inst;
        inst = lower_add(l, &round);
    }
    return inst;
}

static int to_ktype(Lower *l, int inst, KType t) {
    return lower_as(l, inst, dtype_of_ktype(t));
}

/* ---- memory -------------------------------------------------------------- */

KIndex lower_flatten(Lower *l, const Type *t, const KIndex *at) {
    int64_t stride[MAX_RANK] = {0};
    KIndex r = at_const(0);
    shape_strides(t, stride);
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] != 1) r = at_add(l, r, at_scale(l, at[d], stride[d]));
    return r;
}

static int buffer_of(Lower *l, ValueId root, DType d, bool written) {
    for (int b = 0; b < l->refs.len; b++)
        if (same_value(l->refs.data[b], root)) return b;
    KBuf buf = {.dtype = d, .written = written};
    vec_push(l->arena, &l->refs, root);
    vec_push(l->arena, &l->k->bufs, buf);
    return l->refs.len - 1;
}

void lower_store(Lower *l, ValueId v, int inst, KIndex at) {
    DType d = value_dtype(l->g, v);
    const KInst *x = kinst_at(l->k, inst);
    KInst in = kinst(K_STORE, x->type);
    /* the store of an integer wraps anyway, in its own type */
    bool wraps = x->op == K_ROUND && x->dtype == d && dtype_is_int(d);
    in.in[0] = wraps ? x->in[0] : inst;
    in.buf = buffer_of(l, v, d, true);
    in.at = at;
    lower_add(l, &in);
}

void lower_add_up(Lower *l, ValueId v, int inst, KIndex at) {
    KInst in = kinst(K_ADD_UP, KT_F32);
    in.in[0] = inst;
    in.buf = buffer_of(l, v, value_dtype(l->g, v), true);
    in.at = at;
    lower_add(l, &in);
}

/* ---- leaves -------------------------------------------------------------- */

/* A value that another step has stored in memory; scalars are immediates. */
static int external(Lower *l, ValueId v, const KIndex *at, int guard) {
    ValueId root = view_root(l->g, v);
    const Value *r = value_get(l->g, root);
    const Type *t = value_type(l->g, v);
    if (r->kind == VK_CONST && type_get(r->type)->rank == 0) {
        const EvalTensor *e = eval_from_tensor(l->arena, r->data);
        return lower_const(l, ktype_of(type_get(r->type)->dtype),
                           e->f ? e->f[0] : 0, e->i ? e->i[0] : 0);
    }
    KInst in = kinst(K_LOAD, ktype_of(t->dtype));
    in.at = lower_flatten(l, t, at);
    if (guard_is_false(l, guard)) return lower_const(l, in.type, 0, 0);
    in.buf = buffer_of(l, root, t->dtype, false);
    in.guard = guard;
    return lower_add(l, &in);
}

/* The node of this group that computes v; NULL if another step has stored v,
   or the value of which v is a view, in memory. */
static const Node *own_node(const Lower *l, ValueId v) {
    const Value *val = value_get(l->g, v);
    const Node *n = val->kind == VK_RESULT ? node_get(l->g, val->def) : NULL;
    return n && !same_value(v, l->stored) && n->group == l->group &&
                   node_kind(n) != KIND_VIEW
               ? n
               : NULL;
}

/* True if v is read from memory and is not an immediate. */
static bool in_memory(const Lower *l, ValueId v) {
    const Value *r = value_get(l->g, view_root(l->g, v));
    return !own_node(l, v) &&
           !(r->kind == VK_CONST && type_get(r->type)->rank == 0);
}

int lower_operand(Lower *l, const Node *n, int which, const KIndex *src) {
    const Type *t = value_type(l->g, n->in[0]);
    for (int j = 0; j < n->nin; j++) {
        const Type *tj = value_type(l->g, n->in[j]);
        if (!in_memory(l, n->in[j]) || tj->dtype != t->dtype ||
            !shape_equal(tj, t))
            return 0;
    }
    KInst place = kinst(K_PLACE, KT_I64),
          in = kinst(K_LOAD, ktype_of(t->dtype));
    place.buf = in.buf = l->refs.len;
    for (int j = 0; j < n->nin; j++) {
        KBuf buf = {.dtype = t->dtype};
        vec_push(l->arena, &l->refs, view_root(l->g, n->in[j]));
        vec_push(l->arena, &l->k->bufs, buf);
    }
    place.in[0] = which;
    in.place = lower_add(l, &place);
    in.at = lower_flatten(l, t, src);
    return lower_add(l, &in);
}

static int generate(Lower *l, const Node *n, const Type *t, const KIndex *at) {
    if (n->op == OP_FULL) {
        double v = attr_float(n, AK_value);
        return lower_as(l, lower_const(l, KT_F64, v, 0), t->dtype);
    }
    if (n->op == OP_IOTA) {
        int axis = axis_norm(attr_int(n, AK_axis), t->rank);
        KIndex zero = at_const(0);
        return lower_as(l, at_value(l, t->rank ? at[axis] : zero), t->dtype);
    }
    ASSERT(n->op == OP_RAND_UNIFORM);
    KInst in = kinst(K_PHILOX, KT_F32);
    for (int j = 0; j < 2; j++) {
        KIndex word = at_const(j);
        in.in[j] = lower_value(l, n->in[0], &word, 0);
    }
    in.in[2] = at_value(l, lower_flatten(l, t, at));
    in.i = attr_int(n, AK_salt);
    return lower_as(l, lower_add(l, &in), t->dtype);
}

/* ---- element-wise -------------------------------------------------------- */

/* The register type in which an element-wise node computes. */
static KType elem_compute(const Lower *l, const Node *n, DType result) {
    bool any_float = false, any_int = false, any_f64 = false;
    for (int j = n->op == OP_WHERE; j < n->nin; j++) {
        DType d = value_dtype(l->g, n->in[j]);
        any_float |= dtype_is_float(d);
        any_int |= dtype_is_int(d);
        any_f64 |= d == DT_F64;
    }
    if (strcmp(op_info[n->op].type_text, "logic") == 0) return KT_B8;
    if (any_float) return any_f64 || result == DT_F64 ? KT_F64 : KT_F32;
    return any_int ? KT_I64 : KT_B8;
}

int lower_broadcast(Lower *l, ValueId v, const KIndex *at, int rank,
                    int guard) {
    const Type *t = value_type(l->g, v);
    KIndex src[MAX_RANK];
    for (int d = 0; d < t->rank; d++)
        src[d] = t->dim[d] == 1 ? at_const(0) : at[d + rank - t->rank];
    return lower_value(l, v, src, guard);
}

/* Maps floats to integers in the same order. */
static double float_of_order(int64_t order) {
    int32_t bits = (int32_t)(order >= 0 ? order : INT32_MIN - order);
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* The largest x that is below c after rounding to d (`equal`: at most c);
   NaN if there is none. Rounding is monotonic. */
static double last_below(DType d, double c, bool equal) {
    const int64_t infinity = INT64_C(0xff) << 23;
    int64_t low = -infinity - 1, high = infinity + 1;
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        double x = round_to_dtype(float_of_order(mid), d);
        if (equal ? x <= c : x < c)
            low = mid;
        else
            high = mid;
    }
    return low < -infinity ? NAN : float_of_order(low);
}

/* A comparison of a value rounded to 16 bits with a constant becomes a
   comparison of the unrounded value with another constant. */
static void compare_unrounded(Lower *l, KInst *in) {
    bool less = in->code == OP_LESS || in->code == OP_LESS_EQUAL;
    bool equal = in->code == OP_LESS_EQUAL || in->code == OP_GREATER;
    bool more = in->code == OP_GREATER || in->code == OP_GREATER_EQUAL;
    if ((!less && !more) || in->compute != KT_F32) return;
    const KInst *x = kinst_at(l->k, in->in[0]), *c = kinst_at(l->k, in->in[1]);
    if (x->op != K_ROUND || c->op != K_CONST || c->f != c->f) return;
    if (!dtype_is_low(x->dtype)) return;
    double last = last_below(x->dtype, c->f, equal);
    if (last != last) return;
    in->code = less ? OP_LESS_EQUAL : OP_GREATER;
    in->in[0] = x->in[0];
    in->in[1] = lower_const(l, KT_F32, last, 0);
}

static int elem(Lower *l, const Node *n, const Type *t, const KIndex *at,
                int guard) {
    KType c = elem_compute(l, n, t->dtype);
    KInst in = kinst(K_OP, op_tests(n->op) ? KT_B8 : c);
    in.code = n->op;
    in.compute = c;
    node_expr_params(n, in.p);
    for (int j = 0; j < n->nin; j++)
        in.in[j] = lower_broadcast(l, n->in[j], at, t->rank, guard);
    if (n->op == OP_CAST) return lower_as(l, in.in[0], t->dtype);
    for (int j = 0; j < n->nin; j++) {
        bool cond = n->op == OP_WHERE && j == 0;
        in.in[j] = to_ktype(l, in.in[j], cond ? KT_B8 : c);
    }
    compare_unrounded(l, &in);
    return lower_as(l, lower_add(l, &in), t->dtype);
}

/* ---- reductions ---------------------------------------------------------- */

/* A mean is a sum divided by the count, a sum of squares a sum. */
static int reduce(Lower *l, const Node *n, const Type *t) {
    const Type *s = value_type(l->g, n->in[0]);
    bool f64 = s->dtype == DT_F64 || t->dtype == DT_F64;
    KType c = !dtype_is_float(s->dtype) ? KT_I64 : f64 ? KT_F64 : KT_F32;
    KInst in = kinst(K_REDUCE, c);
    KIndex at[MAX_RANK];
    const int64_t *axes;
    int64_t count = 1;
    int na = attr_ints(n, AK_axes, &axes);
    ASSERT(shape_equal(s, &l->domain));
    for (int j = 0; j < na; j++) count *= s->dim[axes[j]];
    for (int d = 0; d < s->rank; d++) at[d] = at_loop(d);
    int x = to_ktype(l, lower_value(l, n->in[0], at, 0), c);
    bool squares = n->op == OP_REDUCE_SUMSQ, mean = n->op == OP_REDUCE_MEAN;
    in.code = squares || mean ? OP_REDUCE_SUM : n->op;
    in.compute = c;
    in.in[0] = squares ? lower_op(l, OP_MUL, c, x, x, 0) : x;
    x = lower_add(l, &in);
    if (mean)
        x = lower_op(l, OP_DIV, c, x, lower_const(l, c, (double)count, count),
                     0);
    return lower_as(l, x, t->dtype);
}

/* ---- any value ----------------------------------------------------------- */

static int inner(Lower *l, ValueId v, const Node *n, const KIndex *at,
                 int guard) {
    const Type *t = value_type(l->g, v);
    if (same_value(v, l->anchor)) {
        KInst acc = kinst(K_ACC, KT_F32);
        return lower_as(l, lower_add(l, &acc), t->dtype);
    }
    switch (node_kind(n)) {
    case KIND_ELEM: return elem(l, n, t, at, guard);
    case KIND_GEN: return generate(l, n, t, at);
    case KIND_MOVE: return lower_as(l, lower_move(l, n, at, guard), t->dtype);
    case KIND_REDUCE: return reduce(l, n, t);
    default:
        ASSERT(n->op == OP_PAD_GRAD);
        return lower_as(l, lower_pad_grad(l, n, at), t->dtype);
    }
}

int lower_value(Lower *l, ValueId v, const KIndex *at, int guard) {
    const Value *val = value_get(l->g, v);
    size_t bytes = (size_t)type_get(val->type)->rank * sizeof *at;
    const Node *n = own_node(l, v);
    LowerMemo m = {.v = v, .guard = guard};
    for (int j = 0; j < l->memo.len; j++) {
        const LowerMemo *o = &l->memo.data[j];
        if (same_value(o->v, v) && (o->guard == 0 || o->guard == guard) &&
            memcmp(o->at, at, bytes) == 0)
            return o->inst;
    }
    m.inst = n ? inner(l, v, n, at, guard) : external(l, v, at, guard);
    memcpy(m.at, at, bytes);
    vec_push(l->arena, &l->memo, m);
    return m.inst;
}
