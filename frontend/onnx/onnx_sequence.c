/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_sequence.c: sequences of tensors.  Their lengths and positions are
   known, so a sequence is a list of values and needs no nodes. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- tensors cut into sequences ------------------------------------------ */

/* A scalar gives the size of every chunk, a list gives all sizes, nothing
   means 1. */
static Status sequence_sizes(Ox *ox, int64_t total, const int64_t **sizes,
                             int *n) {
    const int64_t *v;
    int64_t chunk = 1;
    ValueId s = ox_in(ox, 1);
    if (is_value(s)) {
        TRY(ox_const_ints(ox, 1, "split", &v, n));
        if (ox_type(ox, s).rank == 1) {
            *sizes = v;
            return ox_check_sizes(ox, v, *n, total);
        }
        chunk = v[0];
    }
    if (chunk < 1) return ox_fail(ox, "a chunk of %" PRId64, chunk);
    int64_t count = total / chunk + (total % chunk != 0);
    if (count > 4096)
        return ox_fail(ox, "a sequence of %" PRId64 " parts", count);
    int64_t *made = NEW_ARRAY(ox->a, int64_t, count);
    for (int i = 0; i < count; i++)
        made[i] = i < count - 1 || total % chunk == 0 ? chunk : total % chunk;
    *sizes = made;
    *n = (int)count;
    return OK;
}

static Status drop_axis(Ox *ox, ValueId *v, int axis) {
    Type t = ox_type(ox, *v);
    int64_t dim[MAX_RANK];
    int rank = 0;
    for (int i = 0; i < t.rank; i++)
        if (i != axis) dim[rank++] = t.dim[i];
    return ox_reshape(ox, *v, rank, dim, v);
}

Status onnx_split_to_sequence(Ox *ox) {
    ValueId x = ox_in(ox, 0);
    Type t = ox_type(ox, x);
    const int64_t *sizes = NULL;
    int axis, n = 0;
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), t.rank, &axis));
    TRY(sequence_sizes(ox, t.dim[axis], &sizes, &n));
    ValueId *part = NEW_ARRAY(ox->a, ValueId, n);
    if (n) TRY(ox_split(ox, x, axis, sizes, n, part));
    if (ox_int(ox, "keepdims", 1) == 0 && !is_value(ox_in(ox, 1)))
        for (int i = 0; i < n; i++) TRY(drop_axis(ox, &part[i], axis));
    return ox_out_sequence(ox, 0, part, n);
}

/* ---- sequences made and read --------------------------------------------- */

/* Returns the elements of operand i, a sequence, with room for one more. */
static Status elements(Ox *ox, int i, ValueId **v, int *n) {
    const OxName *seq = ox_name_of(ox, ox->node->in[i]);
    if (!seq->seq)
        return ox_fail(ox, "'%s' is not a sequence",
                       ox_quote(ox, ox->node->in[i]));
    *n = seq->nseq;
    *v = NEW_ARRAY(ox->a, ValueId, *n + 1);
    memcpy(*v, seq->seq, (size_t)*n * sizeof **v);
    return OK;
}

/* A position among n, from an operand; the last if absent. */
static Status position(Ox *ox, int operand, int n, int *at) {
    const int64_t *v;
    int count;
    TRY(ox_const_ints(ox, operand, "position", &v, &count));
    if (count > 1) return ox_fail(ox, "the position must be a scalar");
    return ox_axis(ox, count < 0 ? -1 : v[0], n, at);
}

Status onnx_sequence_empty(Ox *ox) {
    return ox_out_sequence(ox, 0, NEW(ox->a, ValueId), 0);
}

Status onnx_sequence_construct(Ox *ox) {
    int n = ox->node->nin;
    ValueId *v = NEW_ARRAY(ox->a, ValueId, n + 1);
    for (int i = 0; i < n; i++) v[i] = ox_in(ox, i);
    return ox_out_sequence(ox, 0, v, n);
}

Status onnx_sequence_at(Ox *ox) {
    ValueId *v;
    int n, at;
    TRY(elements(ox, 0, &v, &n));
    TRY(position(ox, 1, n, &at));
    return ox_out(ox, 0, v[at]);
}

/* Inserts before the element at the position; at the end without a position. */
Status onnx_sequence_insert(Ox *ox) {
    ValueId *v, x = ox_in(ox, 1);
    const int64_t *where;
    int n, given;
    int64_t at;
    TRY(elements(ox, 0, &v, &n));
    if (!is_value(x)) return ox_fail(ox, "operand 1 is a sequence");
    TRY(ox_const_ints(ox, 2, "position", &where, &given));
    at = given < 0 ? n : where[0];
    if (at < 0) at += n;
    if (at < 0 || at > n)
        return ox_fail(ox, "position %" PRId64 " of %d", where[0], n);
    memmove(v + at + 1, v + at, (size_t)(n - at) * sizeof *v);
    v[at] = x;
    return ox_out_sequence(ox, 0, v, n + 1);
}

Status onnx_sequence_erase(Ox *ox) {
    ValueId *v;
    int n, at;
    TRY(elements(ox, 0, &v, &n));
    TRY(position(ox, 1, n, &at));
    memmove(v + at, v + at + 1, (size_t)(n - at - 1) * sizeof *v);
    return ox_out_sequence(ox, 0, v, n - 1);
}

Status onnx_sequence_length(Ox *ox) {
    ValueId *v, y;
    int n;
    TRY(elements(ox, 0, &v, &n));
    int64_t len = n;
    TRY(ox_const_i64(ox, &len, 0, 1, &y));
    return ox_out(ox, 0, y);
}

/* ConcatFromSequence; new_axis stacks the elements along a new axis. */
Status onnx_sequence_concat(Ox *ox) {
    ValueId *v, y;
    int n, axis;
    bool fresh = ox_int(ox, "new_axis", 0) != 0;
    TRY(elements(ox, 0, &v, &n));
    if (n == 0) return ox_fail(ox, "the sequence is empty");
    TRY(ox_axis(ox, ox_int(ox, "axis", 0), ox_type(ox, v[0]).rank + fresh,
                &axis));
    TRY(ox_concat(ox, v, n, axis, fresh, &y));
    return ox_out(ox, 0, y);
}
