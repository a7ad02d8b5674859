/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_counted.c: the number of rows that a mask selects (onnx_picked.c), where
   the model reads it. */
#include <string.h>

#include "frontend/onnx/onnx_picked.h"

/* The element of the result that is the number of rows; -1: several are, or
   none is known to be. */
static int counted_at(const Ox *ox) {
    const OxNode *n = ox->node;
    int at = -1, before = 0;
    if (!strcmp(n->type, "Identity") || !strcmp(n->type, "Cast"))
        return ox_operand(ox, 0)->sized_at;
    for (int k = 0; k < n->nin && !strcmp(n->type, "Concat"); k++) {
        const OxName *x = ox_operand(ox, k);
        if (x->sized) {
            if (at >= 0 || x->sized_at < 0) return -1;
            at = before + x->sized_at;
        }
        before += (int)value_count(ox->g, x->value);
    }
    return at;
}

/* Shape returns the bound, which is right for reshapes but wrong as a
   number. The element that holds the number of rows is followed to its cast
   to floating point, whose result becomes the count of selected rows. */
Status ox_counted_rows(Ox *ox, OxBuild *run, bool *done) {
    const OxNode *n = ox->node;
    const OxName *x = ox_operand(ox, 0);
    OxName *y = ox_name_of(ox, n->out[0]);
    static const char passes[] = " Gather Squeeze Unsqueeze Reshape Identity ";
    static const char lengths[] =
        " Concat Reshape Expand Slice Gather Squeeze Unsqueeze Identity "
        "ConstantOfShape Shape ";
    Str word = internf(" %s ", n->type);
    int sized = 0;
    for (int k = 0; k < n->nin; k++)
        if (ox_operand(ox, k) && ox_operand(ox, k)->sized)
            sized = ox_operand(ox, k)->sized;
    if (!sized) return OK;
    DType to = DT_I64;
    bool cast = !strcmp(n->type, "Cast");
    if (cast) TRY(ox_dtype(ox, (int)ox_int(ox, "to", 0), "to", &to));
    if (cast && dtype_is_float(to) && x->sized_alone) {
        ValueId v = ox_pick(ox, sized)->count;
        Type t = ox_type(ox, x->value);
        TRY(ox_reshape(ox, v, t.rank, t.dim, &v));
        TRY(ox_cast(ox, v, to, true, &v));
        *done = true;
        return ox_out(ox, 0, v);
    }
    if (!(cast && !dtype_is_float(to)) && !strstr(lengths, word))
        return ox_refuse_rows(ox, "computes with their number");
    TRY(run(ox));
    *done = true;
    Type t = ox_type(ox, y->value);
    const Tensor *data = ox_data(ox, y->value);
    if (t.dtype != DT_I64 && !cast) return OK; /* a tensor of that length */
    if (!data || x->pick) return OK;
    if (!strcmp(n->type, "Gather") && x->sized && !x->sized_alone) {
        double at;
        bool one = ox_const_scalar(ox, ox_in(ox, 1), &at);
        if (at < 0) at += (double)ox_type(ox, x->value).dim[0];
        bool known = one && x->sized_at >= 0;
        if (known && (int)at != x->sized_at) return OK; /* another length */
        y->sized_alone = known;
    } else {
        y->sized_alone = x->sized_alone && (strstr(passes, word) || cast);
    }
    y->sized = sized;
    y->sized_at = y->sized_alone ? 0 : counted_at(ox);
    return OK;
}

Status ox_shape_of_rows(Ox *ox, OxBuild *run) {
    OxName *y = ox_name_of(ox, ox->node->out[0]);
    const OxName *x = ox_operand(ox, 0);
    int rank = ox_type(ox, x->value).rank;
    int64_t start = ox_int(ox, "start", 0);
    TRY(run(ox));
    if (start < 0) start += rank;
    int at = x->pick_axis - (int)start;
    if (at < 0 || at >= ox_type(ox, y->value).dim[0]) return OK;
    y->sized = x->pick;
    y->sized_at = at;
    y->sized_alone = ox_type(ox, y->value).dim[0] == 1;
    return OK;
}
