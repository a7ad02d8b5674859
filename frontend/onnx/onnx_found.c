/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_found.c: ops that find as many rows as data says, and outputs that have
   them: all rows that there may be, those that count first, zeros behind them,
   and one more output, `NAME.rows`, with their number.                      */
#include "frontend/onnx/onnx.h"

/* No box is wanted: [0,3]. */
static Status no_boxes(Ox *ox) {
    const int64_t dim[] = {0, 3};
    ValueId y;
    TRY(ox_const_i64(ox, NULL, 1, 0, &y));
    TRY(ox_reshape(ox, y, 2, dim, &y));
    return ox_out(ox, 0, y);
}

Status onnx_non_max_suppression(Ox *ox) {
    ValueId in[5], y[2];
    Type t = ox_type(ox, ox_in(ox, 1));
    int64_t steps = t.rank == 3 ? t.dim[2] : 1;
    double most;
    if (!is_value(ox_in(ox, 2))) return no_boxes(ox);
    for (int k = 0; k < 5; k++) in[k] = ox_in(ox, k);
    if (ox_const_scalar(ox, in[2], &most)) {
        in[2] = NO_VALUE;
        if (most < (double)steps) steps = most > 0 ? (int64_t)most : 0;
    }
    if (steps == 0) return no_boxes(ox);
    Attr attr[] = {attr_named_i("steps", steps),
                   attr_named_i("centred", ox_int(ox, "center_point_box", 0))};
    TRY(ox_call(ox, "nms", in, 5, attr, 2, 2, y));
    return ox_out_rows(ox, 0, y[0], y[1], 0);
}

Status onnx_unique_of_data(Ox *ox) {
    ValueId x = ox_in(ox, 0), y[5];
    Type t = ox_type(ox, x);
    int64_t all = type_count(&t);
    int axis = 0;
    if (ox_attr(ox, "axis"))
        TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    else
        TRY(ox_reshape(ox, x, 1, &all, &x));
    Attr attr[] = {attr_named_i("axis", axis),
                   attr_named_i("sorted", ox_int(ox, "sorted", 1) != 0)};
    TRY(ox_call(ox, "unique", &x, 1, attr, 2, 5, y));
    TRY(ox_out_rows(ox, 0, y[0], y[1], axis));
    if (ox_has_out(ox, 1)) TRY(ox_out_rows(ox, 1, y[2], y[1], 0));
    if (ox_has_out(ox, 2)) TRY(ox_out(ox, 2, y[3]));
    return ox_has_out(ox, 3) ? ox_out_rows(ox, 3, y[4], y[1], 0) : OK;
}

Status ox_put_rows(Ox *ox, Str output, ValueId *y, ValueId *n) {
    const OxName *x = ox_name_of(ox, output);
    Attr axis = attr_named_i("axis", x->pick_axis);
    ValueId in[] = {x->value, NO_VALUE}, made[2];
    *y = x->value;
    *n = NO_VALUE;
    if (!x->pick) return OK;
    in[1] = ox->picks.data[x->pick - 1].valid;
    TRY(ox_call(ox, "counted_first", in, 2, &axis, 1, 2, made));
    *y = made[0];
    *n = made[1];
    return OK;
}
