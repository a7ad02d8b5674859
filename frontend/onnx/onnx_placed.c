/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_placed.c: rows put where a mask selects, as in x[mask] = rows.
   Before:  i = Transpose(NonZero(mask)),
            v = Expand(rows, Concat(ReduceSum(Cast(mask)), d)),
            y = ScatterND(x, i, v)
   After:   v has a row for each element of the mask (onnx_picked.c): the
            rows' own if the same mask selects them, else the next of `rows`
            for each element that is selected,
            y = where(mask, v, x)
   More or fewer rows than the mask selects are an error of the step. */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx_picked.h"

/* ---- as many rows as the mask selects ------------------------------------ */

/* `excess` is 0, or there are too few rows or too many. */
static Status as_many(Ox *ox, ValueId excess, ValueId x, ValueId *y) {
    Attr node = attr_s(attr_key("node", ATTR_STR), ox->node->name);
    return ox_call(ox, "as_many", (ValueId[]){x, excess}, 2, &node, 1, 1, y);
}

/* How many more rows the mask selects than there are; spare: there may be more
   than it selects. */
static Status excess_of(Ox *ox, int pick, ValueId rows, bool spare,
                        ValueId *excess) {
    int64_t axis = 0;
    TRY(ox_cast(ox, ox_pick(ox, pick)->valid, DT_I64, false, excess));
    TRY(ox_reduce(ox, OP_REDUCE_SUM, *excess, &axis, 1, false, excess));
    TRY(ox2(ox, OP_SUB, *excess, rows, excess));
    return spare ? ox2k(ox, OP_MAX, *excess, 0, excess) : OK;
}

/* x has its rows in order along the axis: each comes to the element of the mask
   that it is put to. from: the pick that selects them; 0: all count. */
static Status in_places(Ox *ox, int pick, int from, bool spare, int axis,
                        ValueId x, ValueId *y) {
    ValueId rows = ox_scalar(ox, DT_I64, (double)ox_type(ox, x).dim[axis]);
    ValueId in[] = {x, from ? ox_pick(ox, from)->valid : NO_VALUE}, first[2];
    Attr attr = attr_named_i("axis", axis);
    if (from) {
        TRY(ox_call(ox, "counted_first", in, 2, &attr, 1, 2, first));
        in[0] = first[0];
        rows = first[1];
    }
    in[1] = ox_pick(ox, pick)->valid;
    TRY(ox_call(ox, "rows_in_places", in, 2, &attr, 1, 1, y));
    TRY(excess_of(ox, pick, rows, spare, &rows));
    return as_many(ox, rows, *y, y);
}

/* The mask whose elements v, an integer, counts; NO_VALUE: it counts none. */
static ValueId counted_mask(const Ox *ox, ValueId v) {
    const Node *n;
    while ((n = ox_def(ox, v, OP_RESHAPE)) || (n = ox_def(ox, v, OP_CAST)))
        v = n->in[0];
    n = ox_def(ox, v, OP_REDUCE_SUM);
    if (!n || value_count(ox->g, v) != 1) return NO_VALUE;
    n = ox_def(ox, n->in[0], OP_CAST);
    bool counts = n && ox_type(ox, n->in[0]).dtype == DT_BOOL;
    return counts ? n->in[0] : NO_VALUE;
}

/* A shape with a known number on all axes but the one of rows. */
static Status counted_shape(Ox *ox, ValueId v, Type *t, int *axis, int *pick) {
    const Node *n = ox_def(ox, v, OP_CONCAT);
    ValueId one[] = {v};
    const ValueId *part = n ? n->in : one;
    int parts = n ? n->nin : 1;
    *axis = -1;
    *t = (Type){.dtype = DT_F32};
    for (int i = 0; i < parts; i++) {
        const Tensor *data = ox_data(ox, part[i]);
        const EvalTensor *e = data ? eval_from_tensor(ox->a, data) : NULL;
        int64_t count = value_count(ox->g, part[i]);
        ValueId mask = e ? NO_VALUE : counted_mask(ox, part[i]);
        if (t->rank + count > MAX_RANK || (!e && !is_value(mask)) ||
            (!e && *axis >= 0))
            return ox_fail_unknown(ox, 1, "shape");
        for (int64_t k = 0; k < count && e; k++) t->dim[t->rank++] = e->i[k];
        if (e) continue;
        TRY(ox_find_pick(ox, mask, pick));
        *axis = t->rank;
        t->dim[t->rank++] = ox_pick(ox, *pick)->n;
    }
    const OxName *shape = ox_operand(ox, 1);
    if (*axis < 0 && shape->sized) {
        *axis = shape->sized_at;
        *pick = shape->sized;
    }
    return *axis >= 0 ? OK : ox_fail_unknown(ox, 1, "shape");
}

Status ox_plan_expand(Ox *ox, OxPlan *p) {
    const OxName *x = ox_operand(ox, 0);
    ValueId y = x->value;
    Type from = ox_type(ox, y), to;
    int axis, own;
    TRY(counted_shape(ox, ox_in(ox, 1), &to, &axis, &p->pick));
    own = axis - to.rank + from.rank;
    if (x->pick && x->pick_axis != own)
        return ox_refuse_rows(ox, "has them on another axis");
    if (own >= 0 && x->pick != p->pick && (x->pick || from.dim[own] != 1))
        TRY(in_places(ox, p->pick, x->pick, false, own, y, &y));
    from = ox_type(ox, y);
    Type want = to;
    if (!shape_broadcast(&from, &want, &to))
        return ox_fail(ox, "the operand does not broadcast to its shape");
    TRY(ox_expand(ox, y, to.rank, to.dim, &y));
    p->axis = to.rank - want.rank + axis;
    p->done = true;
    return ox_out(ox, 0, y);
}

Status ox_plan_slice(Ox *ox, OxPlan *p) {
    const OxName *x = ox_operand(ox, 0);
    const int64_t *start, *end, *axis, *step;
    int starts, ends, axes, steps;
    int64_t n = ox_type(ox, x->value).dim[x->pick_axis];
    if (!x->pick) return ox_refuse_rows(ox, "slices by them");
    TRY(ox_const_ints(ox, 1, "starts", &start, &starts));
    TRY(ox_const_ints(ox, 2, "ends", &end, &ends));
    TRY(ox_const_ints(ox, 3, "axes", &axis, &axes));
    TRY(ox_const_ints(ox, 4, "steps", &step, &steps));
    p->axis = x->pick_axis;
    for (int i = 0; i < starts; i++) {
        int at = i;
        if (i < axes)
            TRY(ox_axis(ox, axis[i], ox_type(ox, x->value).rank, &at));
        bool all = start[i] == 0 && i < ends && end[i] >= n &&
                   (i >= steps || step[i] == 1);
        if (at == x->pick_axis && !all)
            return ox_refuse_rows(ox, "takes some of them by their numbers");
    }
    return OK;
}

/* ---- scatters ------------------------------------------------------------ */

typedef struct Merged {
    const char *text;
    OpCode op;
    double none; /* the number that changes nothing */
} Merged;

static const Merged merges[] = {{"none", OP_WHERE, NAN},
                                {"add", OP_ADD, 0},
                                {"mul", OP_MUL, 1},
                                {"max", OP_MAX, -INFINITY},
                                {"min", OP_MIN, INFINITY}};

/* True if the indices name all elements of a mask over the first axes
   of x. */
static bool selects_leading_axes(const Ox *ox) {
    const OxNode *move = ox_maker(ox, ox->node->in[1], "Transpose");
    const OxNode *found = move ? ox_maker(ox, move->in[0], "NonZero") : NULL;
    if (!found) return false;
    Type m = ox_type(ox, ox_name_of(ox, found->in[0])->value);
    Type x = ox_type(ox, ox_in(ox, 0));
    bool same = m.rank <= x.rank;
    for (int k = 0; k < m.rank && same; k++) same = m.dim[k] == x.dim[k];
    return same && ox_type(ox, ox_in(ox, 1)).dim[1] == m.rank;
}

/* Operand k of the node is the number, or absent. */
static bool is_number(const Ox *ox, const OxNode *n, int k, double want) {
    double v;
    return k >= n->nin || !*n->in[k] ||
           (ox_const_scalar(ox, ox_name_of(ox, n->in[k])->value, &v) &&
            v == want);
}

/* True if the updates are the first rows of a list, as many as the mask
   selects, as masked_scatter() takes them. */
static Status takes_first(Ox *ox, int pick, bool *first) {
    const OxNode *cut = ox_maker(ox, ox->node->in[2], "Slice");
    const OxName *end = cut && cut->nin > 2 ? ox_name_of(ox, cut->in[2]) : NULL;
    *first = end && end->sized;
    if (!*first) return OK;
    return end->sized == pick && end->sized_alone && is_number(ox, cut, 1, 0) &&
                   is_number(ox, cut, 3, 0) && is_number(ox, cut, 4, 1)
               ? OK
               : ox_refuse_rows(ox, "takes rows that are cut to another "
                                    "number");
}

/* Each element of the mask is one place of x. */
static Status put_at_mask(Ox *ox, const OxPlan *p, const Merged *how,
                          ValueId rows) {
    ValueId x = ox_in(ox, 0), y;
    Type t = ox_type(ox, x);
    int64_t n = type_count(&t), flat[] = {ox_pick(ox, p->pick)->n, 0};
    flat[1] = flat[0] ? n / flat[0] : 0;
    TRY(ox_reshape(ox, x, 2, flat, &x));
    TRY(ox_reshape(ox, rows, 2, flat, &rows));
    if (how->op == OP_WHERE) {
        ValueId valid;
        TRY(ox_reshape(ox, ox_pick(ox, p->pick)->valid, 2,
                       (int64_t[]){flat[0], 1}, &valid));
        TRY(ox3(ox, OP_WHERE, valid, rows, x, &y));
    } else {
        TRY(ox_masked_rows(ox, rows, 0, p->pick, how->none, &rows));
        TRY(ox2(ox, how->op, x, rows, &y));
    }
    TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}

/* Rows that do not count repeat a row that does, place and number; a number
   that changes nothing takes their part in a sum. */
static Status put_at_indices(Ox *ox, const OxPlan *p, const Merged *how,
                             ValueId rows) {
    OxName *up = ox_operand(ox, 2);
    ValueId before = up->value, any, y;
    int axis = ox_operand(ox, 1)->pick_axis;
    up->value = rows;
    Status s = how->op == OP_WHERE ? OK
                                   : ox_masked_rows(ox, rows, axis, p->pick,
                                                    how->none, &up->value);
    if (s == OK) s = p->run(ox);
    up->value = before;
    TRY(s);
    if (how->op != OP_WHERE) return OK;
    y = ox_name_of(ox, ox->node->out[0])->value;
    TRY(ox2k(ox, OP_GREATER, ox_pick(ox, p->pick)->count, 0, &any));
    TRY(ox3(ox, OP_WHERE, any, y, ox_in(ox, 0), &y));
    return ox_out(ox, 0, y);
}

Status ox_plan_scatter(Ox *ox, OxPlan *p) {
    const OxName *i = ox_operand(ox, 1), *up = ox_operand(ox, 2);
    Str text = ox_str(ox, "reduction", ox_lost_sum(ox) ? "add" : "none");
    const Merged *how = NULL;
    bool nd = !strcmp(ox->node->type, "ScatterND");
    ValueId rows = up->value;
    for (size_t k = 0; k < sizeof merges / sizeof *merges; k++)
        if (!strcmp(merges[k].text, text)) how = &merges[k];
    if (!how) return p->run(ox); /* which refuses it */
    if (ox_operand(ox, 0)->pick) return ox_refuse_rows(ox, "writes to them");
    if (!i->pick) return ox_refuse_rows(ox, "puts them where no mask selects");
    if (nd && i->pick_axis == ox_type(ox, i->value).rank - 1)
        return ox_refuse_rows(ox, "reads their indices as one position");
    p->pick = i->pick;
    p->done = true;
    if (up->pick != i->pick) {
        if (!nd || i->pick_axis || (up->pick && up->pick_axis) ||
            ox_type(ox, rows).rank == 0)
            return ox_refuse_rows(ox, "puts other rows in their places");
        bool spare;
        TRY(takes_first(ox, p->pick, &spare));
        TRY(in_places(ox, p->pick, up->pick, spare, 0, rows, &rows));
    } else if (up->pick_axis != i->pick_axis) {
        return ox_refuse_rows(ox, "puts them along another axis");
    }
    if (!dtype_is_float(ox_type(ox, rows).dtype) && isinf(how->none))
        return ox_refuse_rows(ox, "takes the greatest or least of integers");
    return nd && selects_leading_axes(ox) ? put_at_mask(ox, p, how, rows)
                                          : put_at_indices(ox, p, how, rows);
}
