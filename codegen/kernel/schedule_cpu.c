/* schedule_cpu.c: loops for cores with vectors (schedule.h).

     flat, cols   threads take blocks of columns, or rows; the innermost loop is
                  a vector loop over columns.  What is folded is written to a
                  small array, chunk by chunk, which is folded in lanes.  Costly
                  values that a later sweep needs again are kept for the row.
     rows         threads take blocks of neighbouring rows, which the innermost
                  loop runs over; row values and accumulators are arrays.  Long
                  sums are cut in runs, each summed on its own, for accuracy.
     epilogue     the rows of a tile, one after the other. */
#include "codegen/kernel/schedule.h"

enum {
    FLAT_BLOCK = 1024,
    COL_BLOCK = 4096,
    CHUNK = 1024,     /* columns folded at once */
    RUN = 128,        /* columns summed into one partial sum, form rows */
    KEEP_COLS = 4096, /* longest row of which values are kept */
    KEEP_MAX = 4      /* how many such values */
};

/* ---- loops --------------------------------------------------------------- */

/* Neighbouring rows computed side by side: whole vectors, and enough units for
   many threads. */
static int64_t row_block(int64_t extent) {
    return extent >= 512 ? 64 : extent >= 128 ? 32 : 16;
}

static void outer_columns(Kernel *k, const int *col, int n) {
    for (int j = 0; j < n - 1; j++)
        add_loop(k, LOOP_SERIAL, col[j], k->dim[col[j]].extent, 1);
}

static void loops_of_columns(Kernel *k, const int *col, int n) {
    bool folds = kernel_reduces(k);
    add_loop(k, LOOP_THREAD, LOOP_ROWS, kernel_rows(k), 1);
    if (n == 0) return;
    int64_t extent = k->dim[k->vec].extent;
    if (!folds && extent > COL_BLOCK)
        add_loop(k, LOOP_THREAD, k->vec, extent, COL_BLOCK);
    outer_columns(k, col, n);
    if (folds) add_loop(k, LOOP_LANES, k->vec, extent, CHUNK);
    add_loop(k, LOOP_VECTOR, k->vec, extent, 1);
}

static void loops_of_rows(Kernel *k, const int *col, int n) {
    int64_t rows = k->dim[k->vec].extent, cols = 1;
    int last = col[n - 1];
    for (int j = 0; j < n; j++) cols *= k->dim[col[j]].extent;
    add_loop(k, LOOP_THREAD, LOOP_ROWS, kernel_rows(k) / rows, 1);
    add_loop(k, LOOP_THREAD, k->vec, rows, row_block(rows));
    outer_columns(k, col, n);
    if (cols > RUN) add_loop(k, LOOP_LANES, last, k->dim[last].extent, RUN);
    add_loop(k, LOOP_SERIAL, last, k->dim[last].extent, 1);
    add_loop(k, LOOP_VECTOR, k->vec, row_block(rows), 1);
}

/* ---- what is kept -------------------------------------------------------- */

/* The operand lies in memory as the fold wants it. */
static bool folds_buffer(const Kernel *k, const KInst *r) {
    const KInst *x = kinst_at(k, r->in[0]);
    DType want = r->compute == KT_F64   ? DT_F64
                 : r->compute == KT_F32 ? DT_F32
                                        : DT_I64;
    return k->form == KF_COLS && x->op == K_LOAD && !x->guard &&
           k->bufs.data[x->buf].dtype == want && x->at.k[k->vec] == 1 &&
           (!x->at.inst || !kinst_at(k, x->at.inst)->full);
}

static void keep_costly(Arena *a, Kernel *k) {
    KSweeps sweeps = kernel_sweeps(k, a);
    bool *seen = NEW_ARRAY(a, bool, k->insts.len);
    bool *kept = NEW_ARRAY(a, bool, k->insts.len);
    int n = 0;
    for (int s = 0; s < sweeps.len; s++) {
        bool *need = kernel_need(k, &sweeps.data[s], kept, a);
        for (int id = 1; id < k->insts.len; id++) {
            if (!need[id]) continue;
            if (seen[id] && !kept[id] && n < KEEP_MAX &&
                kinst_is_costly(kinst_at(k, id))) {
                kinst_at(k, id)->keep = KEEP_ROW;
                kept[id] = true;
                n++;
            }
            seen[id] = true;
        }
    }
}

/* Cheap enough to compute wherever it is used, without other instructions. */
static bool recomputed(const KInst *in) {
    return in->op == K_INDEX ||
           (in->op == K_LOAD && !in->guard && !in->at.inst);
}

static void choose_kept(Arena *a, Kernel *k) {
    int col[MAX_RANK], n = kernel_col_dims(k, col);
    int64_t cols = 1;
    for (int j = 0; j < n; j++) cols *= k->dim[col[j]].extent;
    for (int id = 1; id < k->insts.len; id++) {
        KInst *in = kinst_at(k, id);
        if (in->op == K_REDUCE && folds_buffer(k, in)) in->keep = KEEP_BUFFER;
        if (k->form == KF_ROWS &&
            (in->op == K_REDUCE || (kinst_is_row_value(in) && !recomputed(in))))
            in->keep = KEEP_BLOCK;
    }
    if (k->form == KF_COLS && cols > 0 && cols <= KEEP_COLS) keep_costly(a, k);
}

void schedule_cpu(Arena *a, Kernel *k) {
    int col[MAX_RANK], n = kernel_col_dims(k, col);
    switch (k->form) {
    case KF_FLAT:
        add_loop(k, LOOP_THREAD, LOOP_COLS, 0, FLAT_BLOCK);
        add_loop(k, LOOP_VECTOR, k->vec, 0, 1);
        break;
    case KF_COLS: loops_of_columns(k, col, n); break;
    case KF_ROWS: loops_of_rows(k, col, n); break;
    case KF_EPILOGUE:
        add_loop(k, LOOP_SERIAL, LOOP_ROWS, kernel_rows(k), 1);
        add_loop(k, LOOP_VECTOR, n == 1 ? k->vec : LOOP_COLS, kernel_cols(k),
                 1);
        break;
    }
    choose_kept(a, k);
}

/* ---- cost ---------------------------------------------------------------- */

static double op_ns(OpCode c) {
    static const double ns[] = {[COST_CHEAP] = 0.1,
                                [COST_DIVIDE] = 0.5,
                                [COST_LONG] = 1.2,
                                [COST_SLOW] = 15};
    return ns[op_info[c].cost];
}

bool kinst_is_costly(const KInst *in) {
    return in->op == K_PHILOX ||
           (in->op == K_OP && op_info[in->code].cost >= COST_LONG);
}

static double inst_ns(const KInst *in) {
    switch (in->op) {
    case K_LOAD: return in->guard ? 1.0 : 0.3;
    case K_STORE: return 0.4;
    case K_OP: return op_ns(in->code) * (in->compute == KT_F64 ? 4 : 1);
    case K_PHILOX: return 8;
    case K_ROUND: return 0.2;
    default: return 0.05;
    }
}

/* Estimated nanoseconds of one unit on one core. */
static double unit_ns(const Kernel *k, int64_t flat_len) {
    double full = 0.1, row = 20, cols = (double)kernel_cols(k), repeat = 1;
    const KLoop *block = kernel_loop(k, LOOP_THREAD, k->vec);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        *(in->full || in->op == K_REDUCE ? &full : &row) += inst_ns(in);
    }
    if (k->form == KF_FLAT)
        cols = flat_len < FLAT_BLOCK ? (double)flat_len : FLAT_BLOCK;
    if (k->form == KF_ROWS)
        repeat = (double)block->step;
    else if (block && cols > (double)block->step)
        cols = (double)block->step;
    return (row + full * cols) * repeat;
}

int64_t cpu_grain(const Kernel *k, int64_t flat_len) {
    double n = 12000 / unit_ns(k, flat_len);
    return n < 1 ? 1 : n > 1e6 ? 1000000 : (int64_t)n;
}
