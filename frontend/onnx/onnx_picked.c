/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_picked.c: axes whose length depends on data, as in x[mask], bounded by
   the size of the mask, and the rows that the turns of a loop give.
   Before:  i = NonZero(mask), y = GatherND(x, Transpose(i)),
            loss = ReduceMean(y)
   After:   y has a row for each element of the mask, in order;
            loss = the mean over the rows that count

   Rows that the mask does not select repeat the first that it selects; if it
   selects none, numbers in them are 0.  So computations on single rows need no
   change, and no number of an unselected row reaches a result or a gradient.
   For each op a rule (`rules`) says which axis of the result has the rows,
   or how a reduction leaves them out. Ops without a rule are refused, and so
   are uses of the number of rows other than in a shape or as a divisor. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx_picked.h"

const OxPick *ox_pick(const Ox *ox, int pick) {
    return &ox->picks.data[pick - 1];
}

OxName *ox_operand(const Ox *ox, int k) {
    return k < ox->node->nin && *ox->node->in[k]
               ? ox_name_of(ox, ox->node->in[k])
               : NULL;
}

static bool is_picked(const Ox *ox, int k) {
    const OxName *x = ox_operand(ox, k);
    return x && x->pick;
}

Status ox_refuse_rows(Ox *ox, const char *why) {
    return ox_fail(ox,
                   "reads rows that a mask selects; their number depends on "
                   "data, and the node %s: multiply by the mask instead of "
                   "selecting, or reduce the rows first",
                   why);
}

/* ---- masks --------------------------------------------------------------- */

/* How often each element of x stands in a row in y, to which it is expanded
   along its last axes; 0: it is not. */
static int64_t times_in_a_row(const Type *x, const Type *y) {
    int64_t times = 1;
    if (x->rank != y->rank) return 0;
    for (int k = 0; k < x->rank; k++) {
        if (x->dim[k] != 1 && times > 1) return 0;
        if (x->dim[k] != 1 && x->dim[k] != y->dim[k]) return 0;
        if (x->dim[k] == 1) times *= y->dim[k];
    }
    return times;
}

/* The mask behind views and repetitions. */
static ValueId mask_key(const Ox *ox, ValueId mask, int64_t *repeats) {
    *repeats = 1;
    for (const Node *n;;) {
        int64_t times = 1;
        if ((n = ox_def(ox, mask, OP_EXPAND)))
            times = times_in_a_row(value_type(ox->g, n->in[0]),
                                   value_type(ox->g, mask));
        else
            n = ox_def(ox, mask, OP_RESHAPE);
        if (!n || times == 0) return mask;
        *repeats *= times;
        mask = n->in[0];
    }
}

/* The mask as bool[n]. */
static Status flat_mask(Ox *ox, ValueId *mask) {
    Type t = ox_type(ox, *mask);
    int64_t n = type_count(&t);
    TRY(ox_reshape(ox, *mask, 1, &n, mask));
    return t.dtype == DT_BOOL ? OK : ox_cast(ox, *mask, DT_BOOL, false, mask);
}

/* The pick of a mask; equal masks share one. */
Status ox_find_pick(Ox *ox, ValueId mask, int *pick) {
    OxPick p = {0};
    ValueId ones, zero = ox_scalar(ox, DT_F32, 0);
    int64_t axis = 0;
    p.key = mask_key(ox, mask, &p.repeats);
    for (*pick = 1; *pick <= ox->picks.len; ++*pick)
        if (same_value(ox_pick(ox, *pick)->key, p.key) &&
            ox_pick(ox, *pick)->repeats == p.repeats)
            return OK;
    TRY(flat_mask(ox, &mask));
    p.n = ox_type(ox, mask).dim[0];
    p.valid = mask;
    TRY(ox3(ox, OP_WHERE, mask, ox_scalar(ox, DT_F32, 1), zero, &ones));
    TRY(ox_reduce(ox, OP_REDUCE_SUM, ones, &axis, 1, false, &p.count));
    vec_push(ox->scratch, &ox->picks, p);
    return OK;
}

/* i64[n]: the element that each row represents. */
static Status rows_of(Ox *ox, const OxPick *p, ValueId *row) {
    TypeId index = type_make(DT_I64, 1, &p->n);
    Attr axis = attr_i(AK_axis, 0), first[] = {axis, attr_i(AK_keepdims, 1)};
    ValueId own, best;
    if (p->n == 0) return ox_refuse_rows(ox, "has a mask without elements");
    TRY(ox_opn(ox, OP_IOTA, NULL, 0, &axis, 1, 1, &index, &own));
    TRY(ox_cast(ox, p->valid, DT_I32, false, &best));
    TRY(ox_op(ox, OP_ARGMAX, &best, 1, first, 2, &best));
    return ox3(ox, OP_WHERE, p->valid, own, best, row);
}

/* [rank, n]: the coordinates of elements. */
static Status coordinates(Ox *ox, const Type *t, ValueId row, ValueId *out) {
    ValueId at[MAX_RANK];
    int64_t stride[MAX_RANK];
    shape_strides(t, stride);
    for (int k = 0; k < t->rank; k++) {
        TRY(ox2k(ox, OP_DIV, row, (double)stride[k], &at[k]));
        if (k) TRY(ox2k(ox, OP_MOD, at[k], (double)t->dim[k], &at[k]));
    }
    return ox_concat(ox, at, t->rank, 0, true, out);
}

/* x, or 0 if no row counts: then the rows repeat an unselected one. */
static Status zero_if_none(Ox *ox, int pick, ValueId x, ValueId *y) {
    ValueId any;
    DType d = ox_type(ox, x).dtype;
    *y = x;
    if (!dtype_is_float(d)) return OK;
    TRY(ox2k(ox, OP_GREATER, ox_pick(ox, pick)->count, 0, &any));
    return ox3(ox, OP_WHERE, any, x, ox_scalar(ox, d, 0), y);
}

static Status non_zero(Ox *ox, OxPlan *p) {
    ValueId mask = ox_in(ox, 0), row, y;
    Type t = ox_type(ox, mask);
    if (t.rank == 0) return ox_refuse_rows(ox, "has a scalar as its mask");
    TRY(ox_find_pick(ox, mask, &p->pick));
    TRY(rows_of(ox, ox_pick(ox, p->pick), &row));
    TRY(coordinates(ox, &t, row, &y));
    p->axis = 1;
    p->done = true;
    return ox_out(ox, 0, y);
}

static Status compress(Ox *ox, OxPlan *p) {
    ValueId x = ox_in(ox, 0), row, y;
    Type t = ox_type(ox, x);
    int64_t all = type_count(&t);
    int axis = 0;
    if (is_picked(ox, 0)) return ox_refuse_rows(ox, "selects from them again");
    if (ox_attr(ox, "axis"))
        TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    else
        TRY(ox_reshape(ox, x, 1, &all, &x));
    TRY(ox_find_pick(ox, ox_in(ox, 1), &p->pick));
    if (ox_pick(ox, p->pick)->n > ox_type(ox, x).dim[axis])
        return ox_fail(ox, "%" PRId64 " conditions", ox_pick(ox, p->pick)->n);
    TRY(rows_of(ox, ox_pick(ox, p->pick), &row));
    Attr attr = attr_i(AK_axis, axis);
    TRY(ox_op(ox, OP_GATHER, (ValueId[]){x, row}, 2, &attr, 1, &y));
    TRY(zero_if_none(ox, p->pick, y, &y));
    p->axis = axis;
    p->done = true;
    return ox_out(ox, 0, y);
}

Status ox_out_rows(Ox *ox, int i, ValueId rows, ValueId valid, int axis) {
    int64_t start[MAX_RANK] = {0}, size[MAX_RANK], step[MAX_RANK];
    Type t = ox_type(ox, rows);
    ValueId first, counts, y;
    int pick;
    for (int k = 0; k < t.rank; k++) {
        size[k] = k == axis ? 1 : t.dim[k];
        step[k] = 1;
    }
    TRY(ox_find_pick(ox, valid, &pick));
    TRY(ox_slice(ox, rows, start, size, step, &first));
    for (int k = 0; k < t.rank; k++) size[k] = k == axis ? t.dim[k] : 1;
    TRY(ox_reshape(ox, valid, t.rank, size, &counts));
    TRY(ox3(ox, OP_WHERE, counts, rows, first, &y));
    TRY(zero_if_none(ox, pick, y, &y));
    TRY(ox_out(ox, i, y));
    OxName *out = ox_name_of(ox, ox->node->out[i]);
    out->pick = pick;
    out->pick_axis = axis;
    return OK;
}

/* x, with `fill` in rows that do not count. */
Status ox_masked_rows(Ox *ox, ValueId x, int axis, int pick, double fill,
                      ValueId *y) {
    int64_t dim[MAX_RANK];
    ValueId valid;
    Type t = ox_type(ox, x);
    for (int k = 0; k < t.rank; k++) dim[k] = k == axis ? t.dim[k] : 1;
    TRY(ox_reshape(ox, ox_pick(ox, pick)->valid, t.rank, dim, &valid));
    return ox3(ox, OP_WHERE, valid, x, ox_scalar(ox, t.dtype, fill), y);
}

/* ---- rules --------------------------------------------------------------- */

/* For broadcasting, the axis counts from the last one. */
static Status elementwise(Ox *ox, OxPlan *p) {
    int rank = 0, from_last = -1;
    for (int k = 0; k < ox->node->nin; k++) {
        const OxName *x = ox_operand(ox, k);
        if (!x || !is_value(x->value)) continue;
        int r = ox_type(ox, x->value).rank;
        if (r > rank) rank = r;
        if (!x->pick) continue;
        if (from_last < 0) from_last = r - x->pick_axis;
        if (x->pick != p->pick || from_last != r - x->pick_axis)
            return ox_refuse_rows(
                ox, "meets rows of another mask or on another axis");
    }
    for (int k = 0; k < ox->node->nin; k++) {
        const OxName *x = ox_operand(ox, k);
        if (!x || x->pick || !is_value(x->value)) continue;
        Type t = ox_type(ox, x->value);
        if (t.rank >= from_last && t.dim[t.rank - from_last] != 1)
            return ox_refuse_rows(ox, "meets a tensor with all rows");
    }
    p->axis = rank - from_last;
    return OK;
}

/* The first operand keeps its axis; the other operands are constants. */
static Status same_axis(Ox *ox, OxPlan *p) {
    if (!is_picked(ox, 0))
        return ox_refuse_rows(ox, "has them in another operand than the first");
    p->axis = ox_operand(ox, 0)->pick_axis;
    return OK;
}

static Status transposed(Ox *ox, OxPlan *p) {
    const int64_t *perm;
    int axis = ox_operand(ox, 0)->pick_axis, n = ox_ints(ox, "perm", &perm);
    int rank = ox_type(ox, ox_in(ox, 0)).rank;
    p->axis = rank - 1 - axis;
    for (int k = 0; k < n; k++)
        if (perm[k] == axis) p->axis = k;
    return OK;
}

/* The pick of rows of `times` elements each, as a pick of the elements. */
static Status elements_of(Ox *ox, int64_t times, int *pick) {
    ValueId valid = ox_pick(ox, *pick)->valid;
    int64_t dim[] = {ox_pick(ox, *pick)->n, 1};
    TRY(ox_reshape(ox, valid, 2, dim, &valid));
    dim[1] = times;
    TRY(ox_expand(ox, valid, 2, dim, &valid));
    return ox_find_pick(ox, valid, pick);
}

/* After a view, the axis with the same length and as many elements before
   it; or the axis to which the rows' elements belong, too. */
static Status found_again(Ox *ox, OxPlan *p) {
    ValueId y = ox_name_of(ox, ox->node->out[0])->value;
    Type a = ox_type(ox, ox_in(ox, 0)), b = ox_type(ox, y);
    int axis = ox_operand(ox, 0)->pick_axis, joined = -1;
    int64_t before = 1, lead = 1, n = a.dim[axis];
    for (int k = 0; k < axis; k++) before *= a.dim[k];
    p->axis = -1;
    for (int k = 0; k < b.rank && p->axis < 0; lead *= b.dim[k++]) {
        if (lead != before) continue;
        if (b.dim[k] == n) p->axis = k;
        if (n && b.dim[k] > n && b.dim[k] % n == 0) joined = k;
    }
    if (p->axis >= 0) return OK;
    if (joined < 0) return ox_refuse_rows(ox, "joins them with another axis");
    p->axis = joined;
    return elements_of(ox, b.dim[joined] / n, &p->pick);
}

static Status view(Ox *ox, OxPlan *p) {
    if (!is_picked(ox, 0))
        return ox_refuse_rows(ox, "has them in another operand than the first");
    TRY(p->run(ox));
    p->done = true;
    return found_again(ox, p);
}

static Status expanded(Ox *ox, OxPlan *p) {
    if (!is_picked(ox, 0))
        return ox_refuse_rows(ox, "has them in another operand than the first");
    TRY(p->run(ox));
    p->done = true;
    Type a = ox_type(ox, ox_in(ox, 0));
    Type b = ox_type(ox, ox_name_of(ox, ox->node->out[0])->value);
    p->axis = ox_operand(ox, 0)->pick_axis + b.rank - a.rank;
    return OK;
}

/* Rows of a matrix product stay rows; along a summed axis they become 0. */
static Status product(Ox *ox, OxPlan *p) {
    bool gemm = !strcmp(ox->node->type, "Gemm");
    bool ta = gemm && ox_int(ox, "transA", 0),
         tb = gemm && ox_int(ox, "transB", 0);
    const OxName *a = ox_operand(ox, 0), *b = ox_operand(ox, 1);
    int ra = ox_type(ox, a->value).rank, rb = ox_type(ox, b->value).rank;
    int rank = ra > rb ? ra : rb;
    if (ra < 2 || rb < 2) return ox_refuse_rows(ox, "multiplies a vector");
    if (is_picked(ox, 2)) return ox_refuse_rows(ox, "adds them to a product");
    int summed_a = ta ? 0 : ra - 1, summed_b = tb ? 1 : rb - 2;
    bool sums = a->pick && a->pick_axis == summed_a;
    if (a->pick && b->pick) {
        if (a->pick != b->pick)
            return ox_refuse_rows(ox, "multiplies two masks' rows");
        bool both = sums && b->pick_axis == summed_b;
        bool batch = a->pick_axis < ra - 2 && b->pick_axis < rb - 2 &&
                     ra - a->pick_axis == rb - b->pick_axis;
        if (!both && !batch)
            return ox_refuse_rows(ox, "multiplies them with each other");
        if (both) p->fill = 0;
        p->axis = both ? -1 : rank - (ra - a->pick_axis);
        return OK;
    }
    if (sums || (b->pick && b->pick_axis == summed_b))
        return ox_refuse_rows(
            ox, "sums over them with a tensor that no mask selects");
    if (a->pick)
        p->axis = a->pick_axis < ra - 2 ? rank - (ra - a->pick_axis) : rank - 2;
    else
        p->axis = b->pick_axis < rb - 2 ? rank - (rb - b->pick_axis) : rank - 1;
    return OK;
}

static double neutral(Str type) {
    if (!strcmp(type, "ReduceMax") || !strcmp(type, "ReduceLogSumExp"))
        return -INFINITY;
    if (!strcmp(type, "ReduceMin")) return INFINITY;
    return !strcmp(type, "ReduceProd");
}

static Status reduction(Ox *ox, OxPlan *p) {
    int axis = ox_operand(ox, 0)->pick_axis, n, before = 0;
    Type t = ox_type(ox, ox_in(ox, 0));
    int64_t axes[MAX_RANK];
    bool keep = ox_int(ox, "keepdims", 1) != 0, reduced = false;
    TRY(ox_axes(ox, ox->node->nin > 1, t.rank, axes, &n));
    if (n <= 0 && ox_int(ox, "noop_with_empty_axes", 0))
        return same_axis(ox, p);
    for (int k = 0; k < n; k++) {
        reduced |= axes[k] == axis;
        before += axes[k] < axis;
    }
    if (n > 0 && !reduced) {
        p->axis = keep ? axis : axis - before;
        return OK;
    }
    p->fill = neutral(ox->node->type);
    if (isinf(p->fill) && !dtype_is_float(t.dtype))
        return ox_refuse_rows(ox, "takes the greatest or least of integers");
    p->mean = !strcmp(ox->node->type, "ReduceMean");
    return OK;
}

static Status softmax(Ox *ox, OxPlan *p) {
    int axis, rank = ox_type(ox, ox_in(ox, 0)).rank;
    int64_t given = ox_int(ox, "axis", ox->node->version < 13 ? 1 : -1);
    TRY(ox_axis(ox, given, rank, &axis));
    if (ox->node->version < 13 && axis != rank - 1)
        return ox_refuse_rows(ox, "takes several axes together");
    TRY(same_axis(ox, p));
    if (axis == p->axis) p->fill = -INFINITY;
    return OK;
}

/* The axes before `axis` are rows. */
static Status row_norm(Ox *ox, OxPlan *p) {
    int axis;
    for (int k = 1; k < ox->node->nin; k++)
        if (is_picked(ox, k)) return ox_refuse_rows(ox, "scales by them");
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), ox_type(ox, ox_in(ox, 0)).rank,
                &axis));
    TRY(same_axis(ox, p));
    return p->axis < axis ? OK : ox_refuse_rows(ox, "normalises over them");
}

static Status gathered(Ox *ox, OxPlan *p) {
    const OxName *x = ox_operand(ox, 0), *i = ox_operand(ox, 1);
    int axis, rank = ox_type(ox, x->value).rank;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), rank, &axis));
    if (x->pick && i->pick) return ox_refuse_rows(ox, "gathers from them");
    p->zero = i->pick != 0;
    if (i->pick) {
        p->axis = axis + i->pick_axis;
        return OK;
    }
    if (x->pick_axis == axis) return ox_refuse_rows(ox, "gathers from them");
    p->axis = x->pick_axis > axis
                  ? x->pick_axis - 1 + ox_type(ox, i->value).rank
                  : x->pick_axis;
    return OK;
}

static Status gathered_nd(Ox *ox, OxPlan *p) {
    const OxName *x = ox_operand(ox, 0), *i = ox_operand(ox, 1);
    if (x->pick || i->pick_axis == ox_type(ox, i->value).rank - 1)
        return ox_refuse_rows(ox, "gathers from them");
    p->axis = i->pick_axis;
    p->zero = true;
    return OK;
}

static Status concatenated(Ox *ox, OxPlan *p) {
    int axis, first = -1;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), ox_type(ox, ox_in(ox, 0)).rank,
                &axis));
    for (int k = 0; k < ox->node->nin; k++) {
        const OxName *x = ox_operand(ox, k);
        if (x->pick != p->pick || x->pick_axis == axis ||
            (first >= 0 && x->pick_axis != first))
            return ox_refuse_rows(ox, "joins them with others");
        first = x->pick_axis;
    }
    p->axis = first;
    return OK;
}

/* Targets of rows that do not count are ignored. */
static Status class_loss(Ox *ox, OxPlan *p) {
    bool nll = ox->node->type == intern("NegativeLogLikelihoodLoss");
    Str reduction = ox_str(ox, "reduction", "mean");
    int64_t ignore = ox_int(ox, "ignore_index", -100);
    const OxName *x = ox_operand(ox, 0), *t = ox_operand(ox, 1);
    ValueId in[3] = {x->value}, y[2];
    if (!x->pick || x->pick != t->pick || x->pick_axis || t->pick_axis)
        return ox_refuse_rows(ox,
                              "has scores and labels that no one mask selects");
    if (ox_has_out(ox, 1))
        return ox_refuse_rows(ox, "gives logs of probabilities, too");
    TRY(ox_masked_rows(ox, t->value, 0, p->pick, (double)ignore, &in[1]));
    if (ox_operand(ox, 2)) in[2] = ox_operand(ox, 2)->value;
    Attr attr[] = {attr_named_i("axis", 1),
                   attr_named_i("ignore_index", ignore),
                   attr_s(attr_key("reduction", ATTR_STR), reduction)};
    TRY(ox_call(ox, nll ? "nll_loss" : "softmax_cross_entropy", in,
                ox_operand(ox, 2) ? 3 : 2, attr, 3, 1, y));
    p->axis = strcmp(reduction, "none") ? -1 : 0;
    p->done = true;
    return ox_out(ox, 0, y[0]);
}

typedef struct Rule {
    const char *types; /* op names with blanks around them */
    Status (*plan)(Ox *ox, OxPlan *p);
} Rule;

static const Rule rules[] = {
    {" Abs Acos Acosh Add And Asin Asinh Atan Atanh Cast CastLike Ceil Clip "
     "Cos "
     "Cosh Div Dropout Elu Celu Equal Erf Exp Floor Gelu Greater "
     "GreaterOrEqual "
     "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual "
     "Log "
     "Max Mean Min Mish Mod Mul Neg Not Or Pow Reciprocal Relu Round Selu "
     "Sigmoid "
     "Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh "
     "ThresholdedRelu Where Xor ",
     elementwise},
    {" Transpose ", transposed},
    {" Flatten Reshape Squeeze Unsqueeze ", view},
    {" Expand ", expanded},
    {" Slice ", ox_plan_slice},
    {" ScatterElements ScatterND ", ox_plan_scatter},
    {" Gemm MatMul ", product},
    {" ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
     "ReduceProd ReduceSum ReduceSumSquare ",
     reduction},
    {" LogSoftmax Softmax ", softmax},
    {" LayerNormalization RMSNormalization ", row_norm},
    {" Gather ", gathered},
    {" GatherND ", gathered_nd},
    {" Concat ", concatenated},
    {" NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss ", class_loss},
};

static const Rule *rule_of(const OxNode *n) {
    Str word = internf(" %s ", n->type);
    for (size_t k = 0; k < sizeof rules / sizeof *rules && !*n->domain; k++)
        if (strstr(rules[k].types, word)) return &rules[k];
    return NULL;
}

/* ---- nodes --------------------------------------------------------------- */

static Status build_planned(Ox *ox, const OxPlan *p) {
    OxName *x = ox_operand(ox, 0);
    ValueId plain = x->value;
    bool fills = p->fill == p->fill && x->pick;
    if (fills)
        TRY(ox_masked_rows(ox, plain, x->pick_axis, p->pick, p->fill,
                           &x->value));
    Status s = p->run(ox);
    x->value = plain;
    if (s != OK || (!p->mean && !p->zero)) return s;
    OxName *out = ox_name_of(ox, ox->node->out[0]);
    const OxPick *pick = ox_pick(ox, p->pick);
    DType d = ox_type(ox, out->value).dtype;
    ValueId factor, y;
    if (p->zero) {
        TRY(zero_if_none(ox, p->pick, out->value, &y));
        return ox_out(ox, 0, y);
    }
    TRY(ox2(ox, OP_DIV, ox_scalar(ox, DT_F32, (double)pick->n), pick->count,
            &factor));
    TRY(ox2(ox, OP_MUL, out->value, factor, &y));
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}

static bool is_unknown(const Ox *ox, int k) {
    ValueId v = ox_in(ox, k);
    return is_value(v) && !ox_data(ox, v) &&
           value_get(ox->g, v)->kind != VK_CONST;
}

/* Expand to a shape that has the number of a mask's rows. */
static bool expands_to_rows(const Ox *ox) {
    const OxName *x = ox_operand(ox, 0), *shape = ox_operand(ox, 1);
    if (*ox->node->domain || strcmp(ox->node->type, "Expand")) return false;
    return is_unknown(ox, 1) ||
           (x && !x->sized && shape && shape->sized && shape->sized_at >= 0);
}

Status ox_make_picked(Ox *ox, OxBuild *run, bool *done) {
    const OxNode *n = ox->node;
    OxPlan p = {.run = run, .axis = -1, .fill = NAN};
    Status (*plan)(Ox *, OxPlan *) = NULL;
    *done = false;
    for (int k = 0; k < n->nin && !p.pick; k++)
        if (is_picked(ox, k)) p.pick = ox_operand(ox, k)->pick;
    if (!*n->domain && !strcmp(n->type, "NonZero") && is_unknown(ox, 0) &&
        !p.pick)
        plan = non_zero;
    if (!*n->domain && !strcmp(n->type, "Compress") && is_unknown(ox, 1))
        plan = compress;
    if (expands_to_rows(ox)) plan = ox_plan_expand;
    if (!plan && !p.pick)
        return ox->picks.len ? ox_counted_rows(ox, run, done) : OK;
    if (p.pick && !strcmp(n->type, "Shape")) {
        *done = true;
        return ox_shape_of_rows(ox, run);
    }
    if (!plan) {
        const Rule *rule = rule_of(n);
        if (!rule) return ox_refuse_rows(ox, "has no rule for them");
        plan = rule->plan;
    }
    TRY(plan(ox, &p));
    if (!p.done) TRY(build_planned(ox, &p));
    *done = true;
    for (int k = 0; k < n->nout && p.axis >= 0; k++) {
        OxName *y = ox_has_out(ox, k) ? ox_name_of(ox, n->out[k]) : NULL;
        if (!y || (k && ox_type(ox, y->value).rank <= p.axis)) continue;
        y->pick = p.pick;
        y->pick_axis = p.axis;
    }
    return OK;
}
