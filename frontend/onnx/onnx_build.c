/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_build.c: used by handlers: operands and attributes of the node being
   imported, and functions that make nodes. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "ir/fn/fn.h"

/* ---- operands ------------------------------------------------------------ */

ValueId ox_in(const Ox *ox, int i) {
    if (i >= ox->node->nin || !*ox->node->in[i]) return NO_VALUE;
    return ox_name_of(ox, ox->node->in[i])->value;
}

bool ox_has_out(const Ox *ox, int i) {
    return i < ox->node->nout && *ox->node->out[i] &&
           ox_uses(ox, ox->node->out[i]) > 0;
}

Type ox_type(const Ox *ox, ValueId v) { return *value_type(ox->g, v); }

const Tensor *ox_data(const Ox *ox, ValueId v) {
    if (!is_value(v)) return NULL;
    const Value *val = value_get(ox->g, v);
    if (val->kind == VK_CONST) return val->data;
    if (val->kind != VK_VAR) return NULL;
    const Var *var = &ox->m->vars.data[val->var];
    return var->kind == VAR_FROZEN ? var->init : NULL;
}

Status ox_const_ints(Ox *ox, int operand, const char *what, const int64_t **v,
                     int *n) {
    ValueId x = ox_in(ox, operand);
    *n = -1;
    *v = NULL;
    if (!is_value(x)) return OK;
    Type t = ox_type(ox, x);
    const Tensor *data = ox_data(ox, x);
    if (!data) return ox_fail_unknown(ox, operand, what);
    if (!dtype_is_int(t.dtype) || t.rank > 1)
        return ox_fail(ox, "its %s must be a list of integers", what);
    if (type_count(&t) > 4096)
        return ox_fail(ox, "its %s has %" PRId64 " entries", what,
                       type_count(&t));
    *v = eval_from_tensor(ox->a, data)->i;
    *n = (int)type_count(&t);
    return OK;
}

/* The number that the user wrote: the shortest decimal that rounds to the
   float, so that 1 - 0.9 is 0.1. */
static double as_written(float f) {
    char text[32];
    if (!isfinite(f)) return (double)f;
    for (int digits = 6; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        double d = strtod(text, NULL);
        if ((float)d == f) return d;
    }
    return (double)f;
}

bool ox_const_scalar(const Ox *ox, ValueId v, double *out) {
    const Tensor *t = ox_data(ox, v);
    if (!t || type_count(type_get(t->type)) != 1) return false;
    const EvalTensor *e = eval_from_tensor(ox->a, t);
    *out = e->f ? e->f[0] : (double)e->i[0];
    if (type_get(t->type)->dtype == DT_F32) *out = as_written((float)e->f[0]);
    return true;
}

/* ---- attributes ---------------------------------------------------------- */

const Onnx__AttributeProto *ox_attr(const Ox *ox, const char *name) {
    for (int i = 0; i < ox->node->nattr; i++)
        if (!strcmp(ox->node->attr[i].name, name)) return ox->node->attr[i].p;
    return NULL;
}

int64_t ox_int(const Ox *ox, const char *name, int64_t dflt) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    return !p ? dflt : p->has_f ? (int64_t)p->f : p->i;
}

bool ox_is_whole(float x) { return x == floorf(x) && fabsf(x) < 0x1p24f; }

double ox_float(const Ox *ox, const char *name, double dflt) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    return p ? as_written(p->f) : dflt;
}

Str ox_str(const Ox *ox, const char *name, const char *dflt) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    if (!p) return intern(dflt);
    size_t n = p->s.data ? strnlen((const char *)p->s.data, p->s.len) : 0;
    return intern_n(n ? (const char *)p->s.data : "", n);
}

int ox_ints(const Ox *ox, const char *name, const int64_t **v) {
    const Onnx__AttributeProto *p = ox_attr(ox, name);
    *v = p ? p->ints : NULL;
    return p ? (int)(p->n_ints < 4096 ? p->n_ints : 4096) : -1;
}

Status ox_axis(Ox *ox, int64_t axis, int rank, int *out) {
    *out = axis_norm(axis, rank);
    if (*out < 0)
        return ox_fail(ox, "axis %" PRId64 " is out of range for rank %d", axis,
                       rank);
    return OK;
}

Status ox_axes(Ox *ox, bool from_input, int rank, int64_t *axes, int *n) {
    const int64_t *v;
    if (from_input)
        TRY(ox_const_ints(ox, 1, "axes", &v, n));
    else
        *n = ox_ints(ox, "axes", &v);
    if (*n < 0) return OK;
    bool seen[MAX_RANK] = {0};
    for (int i = 0; i < *n; i++) {
        int k;
        TRY(ox_axis(ox, v[i], rank, &k));
        if (seen[k]) return ox_fail(ox, "axis %d is given twice", k);
        seen[k] = true;
    }
    *n = 0;
    for (int k = 0; k < rank; k++)
        if (seen[k]) axes[(*n)++] = k;
    return OK;
}

const Node *ox_def(const Ox *ox, ValueId v, OpCode op) {
    const Value *val = value_get(ox->g, v);
    if (val->kind != VK_RESULT) return NULL;
    const Node *n = node_get(ox->g, val->def);
    return n->op == op ? n : NULL;
}

/* ---- results ------------------------------------------------------------- */

Status ox_out(Ox *ox, int i, ValueId v) {
    if (i >= ox->node->nout || !*ox->node->out[i]) return OK;
    Str name = ox->node->out[i];
    const Value *val = value_get(ox->g, v);
    bool ours = val->kind == VK_CONST ||
                (val->kind == VK_RESULT && val->def.i >= ox->first_node);
    ox_name_of(ox, name)->value = v;
    /* a value that this node built gets the name of the ONNX result */
    if (ours && v.i >= ox->first_value && val->name && val->name != name)
        graph_rename(ox->g, v, graph_unique_name(ox->g, name));
    return OK;
}

Status ox_out_sequence(Ox *ox, int i, const ValueId *v, int n) {
    if (i >= ox->node->nout || !*ox->node->out[i]) return OK;
    OxName *out = ox_name_of(ox, ox->node->out[i]);
    out->seq = v;
    out->nseq = n;
    return OK;
}

Status ox_out_name(Ox *ox, int i, Str name) {
    const OxName *from = ox_name_of(ox, name);
    return from->seq ? ox_out_sequence(ox, i, from->seq, from->nseq)
                     : ox_out(ox, i, from->value);
}

/* ---- making nodes -------------------------------------------------------- */

/* An op that does nothing returns its operand. */
static bool is_noop(const Ox *ox, OpCode op, const ValueId *in, const Node *n) {
    if (op != OP_RESHAPE && op != OP_EXPAND && op != OP_TRANSPOSE &&
        op != OP_SLICE)
        return false;
    const Type *from = value_type(ox->g, in[0]);
    const Type *to = value_type(ox->g, n->out[0]);
    if (!shape_equal(from, to)) return false;
    const int64_t *v;
    int k = attr_ints(n, op == OP_TRANSPOSE ? AK_perm : AK_steps, &v);
    for (int i = 0; i < k; i++)
        if (op == OP_TRANSPOSE ? v[i] != i : v[i] != 1) return false;
    return true;
}

Status ox_make(Ox *ox, Callee callee, const ValueId *in, int nin,
               const Attr *attrs, int nattr, int nout, const TypeId *types,
               const char *const *names, ValueId *out) {
    NodeId id;
    ValueId rows[2];
    if (callee.op == OP_GATHER && is_value(ox->taken)) { /* see checks.c */
        rows[0] = in[0];
        TRY(ox_read_if_taken(ox, in[1], &rows[1]));
        in = rows;
    }
    TRY(build_checked(&ox->b, ox->d, callee, in, nin, attrs, nattr, nout, types,
                      names, &id));
    const Node *n = node_get(ox->g, id);
    for (int i = 0; i < nout; i++) {
        int64_t count = value_count(ox->g, n->out[i]);
        if (count > OX_MAX_ELEMENTS)
            return ox_fail(ox,
                           "a result of %" PRId64 " elements; at most %" PRId64,
                           count, OX_MAX_ELEMENTS);
        out[i] = n->out[i];
    }
    if (is_noop(ox, callee.op, in, n)) {
        out[0] = in[0];
        ox->g->order.len--;
        return OK;
    }
    return ox_foldable(ox, id) ? ox_fold(ox, id, out) : OK;
}

Status ox_opn(Ox *ox, OpCode op, const ValueId *in, int nin, const Attr *attrs,
              int nattr, int nout, const TypeId *types, ValueId *out) {
    return ox_make(ox, callee_op(op), in, nin, attrs, nattr, nout, types, NULL,
                   out);
}

Status ox_call(Ox *ox, const char *fn, const ValueId *in, int nin,
               const Attr *attrs, int nattr, int nout, ValueId *out) {
    Callee callee = {OP_CALL, fn_std(fn)};
    ASSERT(callee.fn);
    return ox_make(ox, callee, in, nin, attrs, nattr, nout, NULL, NULL, out);
}

Status ox_op(Ox *ox, OpCode op, const ValueId *in, int nin, const Attr *attrs,
             int nattr, ValueId *out) {
    return ox_opn(ox, op, in, nin, attrs, nattr, 1, NULL, out);
}

Status ox1(Ox *ox, OpCode op, ValueId x, ValueId *out) {
    return ox_op(ox, op, &x, 1, NULL, 0, out);
}

Status ox2(Ox *ox, OpCode op, ValueId x, ValueId y, ValueId *out) {
    return ox_op(ox, op, (ValueId[]){x, y}, 2, NULL, 0, out);
}

Status ox3(Ox *ox, OpCode op, ValueId x, ValueId y, ValueId z, ValueId *out) {
    return ox_op(ox, op, (ValueId[]){x, y, z}, 3, NULL, 0, out);
}

ValueId ox_scalar(Ox *ox, DType d, double v) {
    if (dtype_is_float(d)) return graph_scalar(ox->g, d, v);
    return graph_scalar_int(ox->g, d, (int64_t)v);
}

Status ox2k(Ox *ox, OpCode op, ValueId x, double k, ValueId *out) {
    return ox2(ox, op, x, ox_scalar(ox, ox_type(ox, x).dtype, k), out);
}

Status ox_cast(Ox *ox, ValueId x, DType d, bool user, ValueId *out) {
    Type t = ox_type(ox, x);
    *out = x;
    if (t.dtype == d) return OK;
    TypeId to = type_make(d, t.rank, t.dim);
    Attr attr = attr_i(AK_user, 1);
    return ox_opn(ox, OP_CAST, &x, 1, &attr, user ? 1 : 0, 1, &to, out);
}

Status ox_reshape(Ox *ox, ValueId x, int rank, const int64_t *dim,
                  ValueId *out) {
    TypeId t;
    TRY(ox_type_make(ox, "its result", DT_F32, rank, dim, &t));
    Attr attr = attr_v(AK_shape, dim, rank);
    return ox_op(ox, OP_RESHAPE, &x, 1, &attr, 1, out);
}

Status ox_transpose(Ox *ox, ValueId x, const int64_t *perm, ValueId *out) {
    Attr attr = attr_v(AK_perm, perm, ox_type(ox, x).rank);
    return ox_op(ox, OP_TRANSPOSE, &x, 1, &attr, 1, out);
}

Status ox_expand(Ox *ox, ValueId x, int rank, const int64_t *dim,
                 ValueId *out) {
    TypeId t;
    TRY(ox_type_make(ox, "its result", DT_F32, rank, dim, &t));
    Attr attr = attr_v(AK_shape, dim, rank);
    return ox_op(ox, OP_EXPAND, &x, 1, &attr, 1, out);
}

Status ox_reduce(Ox *ox, OpCode op, ValueId x, const int64_t *axes, int n,
                 bool keepdims, ValueId *out) {
    Attr attr[] = {attr_v(AK_axes, axes, n), attr_i(AK_keepdims, keepdims)};
    return ox_op(ox, op, &x, 1, attr, 2, out);
}

Status ox_slice(Ox *ox, ValueId x, const int64_t *starts, const int64_t *sizes,
                const int64_t *steps, ValueId *out) {
    int rank = ox_type(ox, x).rank;
    Attr attr[] = {attr_v(AK_starts, starts, rank),
                   attr_v(AK_sizes, sizes, rank),
                   attr_v(AK_steps, steps, rank)};
    return ox_op(ox, OP_SLICE, &x, 1, attr, 3, out);
}

Status ox_concat(Ox *ox, const ValueId *v, int n, int axis, bool fresh,
                 ValueId *out) {
    ValueId *in = arena_dup(ox->a, v, (size_t)n * sizeof *v);
    Attr attr = attr_i(AK_axis, axis);
    for (int i = 0; i < n && fresh; i++) {
        Type t = ox_type(ox, in[i]);
        int64_t dim[MAX_RANK + 1];
        for (int k = 0; k <= t.rank; k++)
            dim[k] = k == axis ? 1 : t.dim[k - (k > axis)];
        if (t.rank == MAX_RANK)
            return ox_fail(ox, "a result of rank %d", t.rank + 1);
        TRY(ox_reshape(ox, in[i], t.rank + 1, dim, &in[i]));
    }
    *out = in[0];
    return n == 1 ? OK : ox_op(ox, OP_CONCAT, in, n, &attr, 1, out);
}

Status ox_split(Ox *ox, ValueId x, int axis, const int64_t *sizes, int n,
                ValueId *out) {
    Attr attr[] = {attr_i(AK_axis, axis), attr_v(AK_sizes, sizes, n)};
    if (n == 1) {
        out[0] = x;
        return OK;
    }
    return ox_opn(ox, OP_SPLIT, &x, 1, attr, 2, n, NULL, out);
}

Status ox_wrap_negative(Ox *ox, ValueId *i, ValueId d) {
    ValueId below, moved;
    TRY(ox2k(ox, OP_LESS, *i, 0, &below));
    TRY(ox2(ox, OP_ADD, *i, d, &moved));
    return ox3(ox, OP_WHERE, below, moved, *i, i);
}

Status ox_const(Ox *ox, const Tensor *t, ValueId *out) {
    *out = ox_make_const(ox, ox->node->name, t);
    return OK;
}

Status ox_const_i64(Ox *ox, const int64_t *v, int rank, int64_t n,
                    ValueId *out) {
    Tensor *t = NEW(ox->a, Tensor);
    t->type = type_make(DT_I64, rank, &n);
    t->data =
        n ? arena_dup(ox->a, v, (size_t)n * sizeof *v) : arena_alloc(ox->a, 1);
    return ox_const(ox, t, out);
}
