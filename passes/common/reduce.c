/* reduce.c: one reduction as the stages that lower well (see expand.h).

   A kernel works on rows in parallel, so a reduction to few rows of many
   columns (a bias gradient, a batch norm, a loss) would run on one core.  It
   is split by a rule over shapes alone, so that its bits depend on nothing
   else: outer reduced axes become rows of a first stage; where one long axis
   is left, it is cut into chunks.  The last stage folds what the first made. */
#include "passes/common/expand.h"

enum {
    ROWS_ENOUGH = 64,      /* rows that keep a machine busy                  */
    COLUMNS_SERIAL = 16384 /* columns that one core may fold                 */
};

/* Axes longer than 1: the others fold nothing. */
static int long_axes(const Type *t, const int64_t *axes, int n, int64_t *out) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (t->dim[axes[i]] != 1) out[kept++] = axes[i];
    return kept;
}

static ValueId fold_nothing(Expand *e, OpCode op, ValueId x, DType dtype) {
    if (op == OP_REDUCE_SUMSQ) return b2(&e->rw->b, OP_MUL, x, x, dtype);
    return b_cast(&e->rw->b, x, dtype);
}

static int64_t columns(const Type *t, const int64_t *axes, int n) {
    int64_t c = 1;
    for (int i = 0; i < n; i++) c *= t->dim[axes[i]];
    return c;
}

/* The op that combines partial results. */
static OpCode combining(OpCode op) {
    return op == OP_REDUCE_SUMSQ || op == OP_REDUCE_MEAN ? OP_REDUCE_SUM : op;
}

/* The least divisor of n that is at least `want`; 0: none nearby. */
static int64_t divisor_from(int64_t n, int64_t want) {
    for (int64_t d = want; d <= n / 2 && d < want + 65536; d++)
        if (n % d == 0) return d;
    return 0;
}

static DType partial_dtype(const Expand *e, DType result) {
    if (result == DT_F64) return DT_F64; /* its range is what is asked for */
    return dtype_is_float(result) ? e->dt : result;
}

/* One long axis: x[.., c, n/c, ..] folded over n/c, then over c. */
static ValueId in_chunks(Expand *e, OpCode op, ValueId x, int64_t axis,
                         int64_t chunks, DType dtype) {
    Builder *b = &e->rw->b;
    Type t = *value_type(e->rw->g, x);
    int64_t dim[MAX_RANK + 1], inner = axis + 1;
    for (int i = 0; i < t.rank; i++) dim[i + (i > axis)] = t.dim[i];
    dim[axis] = chunks;
    dim[axis + 1] = t.dim[axis] / chunks;
    ValueId cut = b_reshape(b, x, t.rank + 1, dim);
    ValueId part =
        b_reduce(b, op, cut, &inner, 1, true, partial_dtype(e, dtype));
    t.dim[axis] = chunks;
    part = b_reshape(b, part, t.rank, t.dim);
    return expand_reduce(e, combining(op), part, &axis, 1, dtype);
}

/* How many of the outer axes must become rows; n: even all are not enough. */
static int outer_axes(const Type *t, const int64_t *axes, int n, int64_t rows) {
    int k = 0;
    while (k < n && rows < ROWS_ENOUGH) rows *= t->dim[axes[k++]];
    return k;
}

static ValueId in_stages(Expand *e, OpCode op, ValueId x, const int64_t *axes,
                         int n, int64_t rows, DType dtype) {
    Builder *b = &e->rw->b;
    Type t = *value_type(e->rw->g, x);
    int k = outer_axes(&t, axes, n, rows);
    if (k == n) k = n - 1;
    if (k > 0) {
        ValueId part =
            b_reduce(b, op, x, axes + k, n - k, true, partial_dtype(e, dtype));
        return expand_reduce(e, combining(op), part, axes, k, dtype);
    }
    int64_t len = t.dim[axes[0]];
    int64_t want = (ROWS_ENOUGH + rows - 1) / rows;
    if (want < len / COLUMNS_SERIAL) want = len / COLUMNS_SERIAL;
    int64_t chunks = t.rank < MAX_RANK ? divisor_from(len, want) : 0;
    if (!chunks) return b_reduce(b, op, x, axes, n, true, dtype);
    return in_chunks(e, op, x, axes[0], chunks, dtype);
}

ValueId expand_reduce(Expand *e, OpCode op, ValueId x, const int64_t *all,
                      int nall, DType dtype) {
    Builder *b = &e->rw->b;
    Type t = *value_type(e->rw->g, x);
    int64_t axes[MAX_RANK];
    int n = long_axes(&t, all, nall, axes);
    if (n == 0) return fold_nothing(e, op, x, dtype);
    int64_t cols = columns(&t, axes, n), rows = 1;
    if (cols > 0) rows = type_count(&t) / cols;
    if (rows >= ROWS_ENOUGH || cols <= COLUMNS_SERIAL || rows == 0)
        return b_reduce(b, op, x, axes, n, true, dtype);
    if (op != OP_REDUCE_MEAN) return in_stages(e, op, x, axes, n, rows, dtype);
    ValueId sum =
        in_stages(e, OP_REDUCE_SUM, x, axes, n, rows, partial_dtype(e, dtype));
    ValueId count =
        graph_scalar(e->rw->g, value_dtype(e->rw->g, sum), (double)cols);
    return b2(b, OP_DIV, sum, count, dtype);
}
