/* SPDX-License-Identifier: Apache-2.0 */
/* beside.c: what a kernel may compute beside its rows or elements. */
#include "ir/ir.h"
#include "runtime/program/blocks.h"

#include <string.h>

/* The axes that a reduction folds, as a bit mask. */
static unsigned folded_axes(const Node *n) {
    const int64_t *axes;
    unsigned bits = 0;
    int count = attr_ints(n, AK_axes, &axes);
    for (int i = 0; i < count; i++) bits |= 1u << axes[i];
    return bits;
}

bool node_sums_columns(const Graph *g, const Node *reduce, const Node *n) {
    bool row = false, column = false;
    if (n->op != OP_REDUCE_SUM || node_kind(reduce) != KIND_REDUCE)
        return false;
    const Type *t = value_type(g, n->in[0]);
    DType sum = value_dtype(g, n->out[0]);
    if (!dtype_is_float(sum) || sum == DT_F64 || t->dtype == DT_F64 ||
        !shape_equal(t, value_type(g, reduce->in[0])))
        return false;
    unsigned across = folded_axes(n), along = folded_axes(reduce);
    for (int d = 0; d < t->rank; d++) {
        bool a = across >> d & 1, b = along >> d & 1;
        if (t->dim[d] == 1) continue;
        if (t->dim[d] == 0 || a == b || (a && column)) return false;
        row |= a;
        column |= b;
    }
    return row && column;
}

bool node_pads_rows(const Graph *g, const Node *reduce, const Node *n) {
    enum { FEW = 8 };
    const int64_t *pads, *axes;
    if (n->op != OP_PAD) return false;
    const Type *full = value_type(g, reduce->in[0]);
    const Type *t = value_type(g, n->out[0]);
    int last = full->rank - 1;
    if (strcmp(attr_str(n, AK_mode), "constant") != 0 ||
        attr_float(n, AK_value) != 0 ||
        !shape_equal(value_type(g, n->in[0]), full) ||
        attr_ints(reduce, AK_axes, &axes) != 1 || axes[0] != last)
        return false;
    attr_ints(n, AK_pads, &pads);
    for (int i = 0; i <= 2 * last; i++)
        if (pads[i] != 0) return false;
    return t->dim[last] - full->dim[last] <= FEW;
}

/* ---- tiles --------------------------------------------------------------- */

/* The leading axes that have all but `columns` elements; 0: one has a part. */
static int axes_of_rows(const Type *t, int64_t columns) {
    int rows = t->rank;
    int64_t n = 1;
    while (rows > 0 && n < columns) n *= t->dim[--rows];
    return n == columns ? rows : 0;
}

static int turned_rows(const Graph *g, const Node *n) {
    enum { UNIT = 16 };
    const int64_t *perm;
    const Type *t = value_type(g, n->in[0]);
    bool given = attr_ints(n, AK_perm, &perm) > 0;
    int rows = given ? (int)perm[0] : t->rank - 1;
    int64_t count = type_count(t), columns = 1;
    if (rows < 1 || !dtype_is_float(t->dtype) ||
        dtype_info[t->dtype].bytes != 1 ||
        value_dtype(g, n->out[0]) != t->dtype)
        return 0;
    for (int d = 0; d < t->rank; d++)
        if ((given ? perm[d] : t->rank - 1 - d) != (rows + d) % t->rank)
            return 0;
    for (int d = rows; d < t->rank; d++) columns *= t->dim[d];
    bool fits = count > 0 && columns % UNIT == 0 && count / columns % UNIT == 0;
    return fits ? rows : 0;
}

bool node_makes_blocks(const Node *n) {
    return n->op == OP_BLOCK_CODES || n->op == OP_BLOCK_SCALES ||
           n->op == OP_BLOCK_SUMS;
}

int node_tiles(const Graph *g, const Node *n) {
    if (n->op == OP_TRANSPOSE) return turned_rows(g, n);
    if (!node_makes_blocks(n)) return 0;
    const Type *t = value_type(g, n->in[0]);
    bool fits = t->dtype == DT_F32 ||
                (dtype_is_low(t->dtype) && dtype_info[t->dtype].bytes == 2);
    return fits ? axes_of_rows(t, attr_int(n, AK_columns)) : 0;
}

bool node_tiles_rows(const Graph *g, const Node *reduce, const Node *n) {
    const Type *full = value_type(g, reduce->in[0]);
    int rows = node_tiles(g, n);
    unsigned columns = (1u << full->rank) - (1u << rows);
    if (!rows || !shape_equal(value_type(g, n->in[0]), full) ||
        folded_axes(reduce) != columns)
        return false;
    if (!node_makes_blocks(n)) return true;
    int64_t across = attr_int(n, AK_columns);
    return across % (BLOCK_SIZE * BLOCK_COLUMNS) == 0 &&
           type_count(full) / across % BLOCK_ROWS == 0;
}

bool node_reads_alike(const Graph *g, const Node *n, bool by_tile,
                      int64_t count) {
    OpKind k = node_kind(n);
    if (k == KIND_GEN || (k == KIND_MOVE && !by_tile)) return false;
    for (int i = 0; i < n->nin; i++) {
        int64_t u = is_value(n->in[i]) ? value_count(g, n->in[i]) : 1;
        if (u != 1 && u != count) return false;
    }
    return true;
}

bool node_by_tile(const Graph *g, const Node *n) {
    if (g->target != TARGET_CUDA || n->group < 0 || !node_tiles(g, n))
        return false;
    const Value *v = value_get(g, n->in[0]);
    return node_makes_blocks(n) ||
           (v->kind == VK_RESULT && node_get(g, v->def)->group == n->group);
}
