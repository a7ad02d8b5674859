/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_cpu.c: loops for cores with vectors (schedule.h).

     flat, cols   threads take blocks of columns, or rows; the innermost loop is
                  a vector loop over columns.  Operands of a reduction are
                  written to a small array, chunk by chunk, which is folded in
                  lanes.  Costly values that a later sweep needs again are kept
                  for the row. A kernel that reads neighbouring rows from
                  adjacent memory, but columns far apart, runs over tiles, so
                  that each cache line is read once.
     rows         threads take blocks of neighbouring rows, which the innermost
                  loop runs over; row values and accumulators are arrays.  Long
                  sums are cut in runs, each summed on its own, for accuracy.
     epilogue     the rows of a tile, one after the other. */
#include "codegen/kernel/schedule.h"

#include <stdlib.h>

enum {
    FLAT_BLOCK = 1024,
    COL_BLOCK = 4096,
    CHUNK = 1024, /* columns folded at once */
    RUN = 128,    /* columns summed into one partial sum, form rows */
    TILE_ROWS = 16,
    TILE_COLS = 128,
    KEEP_COLS = 4096, /* longest row whose values are kept */
    KEEP_MAX = 4      /* largest number of such values */
};

/* ---- loops --------------------------------------------------------------- */

/* Rows that are neighbours along dim d share a cache line, while at most two
   columns do: without tiles, a row of many columns evicts the line before the
   next row needs it.
   */
static bool turned(const Kernel *k, const KInst *in, int d) {
    int64_t bytes = dtype_info[k->bufs.data[in->buf].dtype].bytes;
    return in->op == K_LOAD && in->full && !k->dim[d].col && in->at.k[d] != 0 &&
           llabs(in->at.k[d]) * bytes <= CACHE_LINE / 4 &&
           llabs(in->at.k[k->vec]) * bytes >= CACHE_LINE / 2;
}

/* The row dim along which most transposed loads of a kernel without folds
   are contiguous; -1 if there is none, or if columns are so few that their
   cache lines stay in the cache. */
static int side_of_tiles(const Kernel *k) {
    int side = -1, most = 0;
    if (kernel_reduces(k) || k->vec < 0 || k->dim[k->vec].extent < TILE_COLS)
        return -1;
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_stores(kinst_at(k, id)) && !kinst_at(k, id)->full) return -1;
    for (int d = 0; d < k->ndim; d++) {
        int n = 0;
        for (int id = 1; id < k->insts.len; id++)
            n += turned(k, kinst_at(k, id), d);
        if (n > most && k->dim[d].extent >= TILE_ROWS / 2) most = n, side = d;
    }
    return side;
}

/* Loops over tiles of columns and rows of dim `side`, row by row. Loads
 * whose address depends on indices only are made first, line by line
 * (KEEP_TILE). */
static void loops_of_tiles(Kernel *k, int side) {
    int64_t rows = k->dim[side].extent, cols = k->dim[k->vec].extent;
    add_loop(k, LOOP_THREAD, LOOP_ROWS, kernel_rows(k) / rows, 1);
    add_loop(k, LOOP_THREAD, side, rows, TILE_ROWS);
    add_loop(k, LOOP_THREAD, k->vec, cols, TILE_COLS);
    add_loop(k, LOOP_SERIAL, side, rows, 1);
    add_loop(k, LOOP_VECTOR, k->vec, cols, 1);
    for (int id = 1; id < k->insts.len; id++) {
        KInst *in = kinst_at(k, id);
        if (turned(k, in, side) && !in->guard && !in->place && !in->at.inst)
            in->keep = KEEP_TILE;
    }
}

/* Columns innermost, with dim vec as vectors. */
static void loops_of_columns(Kernel *k, const int *col, int n) {
    bool folds = kernel_reduces(k);
    int side = side_of_tiles(k);
    if (side >= 0) {
        loops_of_tiles(k, side);
        return;
    }
    add_loop(k, LOOP_THREAD, LOOP_ROWS, kernel_rows(k), 1);
    if (n == 0) return;
    int64_t extent = k->dim[k->vec].extent;
    if (!folds && extent > COL_BLOCK)
        add_loop(k, LOOP_THREAD, k->vec, extent, COL_BLOCK);
    for (int j = 0; j < n - 1; j++)
        add_loop(k, LOOP_SERIAL, col[j], k->dim[col[j]].extent, 1);
    if (folds) add_loop(k, LOOP_LANES, k->vec, extent, CHUNK);
    add_loop(k, LOOP_VECTOR, k->vec, extent, 1);
}

/* Neighbouring rows form vectors: whole vectors, and enough units for many
   threads. */
static void loops_of_rows(Kernel *k, const int *col, int n) {
    int64_t rows = k->dim[k->vec].extent, last = k->dim[col[n - 1]].extent;
    int64_t block = rows >= 512   ? 64
                    : rows >= 128 ? 32
                    : rows >= 16  ? 16
                                  : rows;
    add_loop(k, LOOP_THREAD, LOOP_ROWS, kernel_rows(k) / rows, 1);
    add_loop(k, LOOP_THREAD, k->vec, rows, block);
    for (int j = 0; j < n - 1; j++)
        add_loop(k, LOOP_SERIAL, col[j], k->dim[col[j]].extent, 1);
    if (kernel_cols(k) > RUN) add_loop(k, LOOP_LANES, col[n - 1], last, RUN);
    add_loop(k, LOOP_SERIAL, col[n - 1], last, 1);
    add_loop(k, LOOP_VECTOR, k->vec, block, 1);
}

/* ---- kept values --------------------------------------------------------- */

/* True for an expensive function. */
static bool is_costly(const Kernel *k, const KInst *in) {
    (void)k;
    return in->op == K_PHILOX || kinst_is_long(in);
}

/* True for loads of 16-bit elements along dim vec: kept as fp32, they need
 * no conversion in later sweeps. */
static bool is_widened(const Kernel *k, const KInst *in) {
    if (in->op != K_LOAD || in->guard || in->place || in->at.inst) return false;
    DType d = k->bufs.data[in->buf].dtype;
    return dtype_is_low(d) && in->full && in->at.k[k->vec] == 1;
}

/* Keeps the wanted values that several sweeps of a row need, at most
   KEEP_MAX. */
static void keep_row(Arena *a, Kernel *k, int *n,
                     bool (*wanted)(const Kernel *, const KInst *)) {
    KSweeps sweeps = kernel_sweeps(k, a);
    bool *seen = NEW_ARRAY(a, bool, k->insts.len);
    for (int s = 0; s < sweeps.len; s++) {
        const KSweep *sweep = &sweeps.data[s];
        const bool *held = kernel_held(k, &sweeps, sweep, a);
        bool *need = kernel_need(k, sweep, held, a);
        for (int id = 1; id < k->insts.len; id++) {
            KInst *in = kinst_at(k, id);
            if (!need[id]) continue;
            if (seen[id] && in->keep == KEEP_NOT && *n < KEEP_MAX &&
                wanted(k, in)) {
                in->keep = KEEP_ROW;
                ++*n;
            }
            seen[id] = true;
        }
    }
}

static void keep_values(Arena *a, Kernel *k) {
    int n = 0;
    keep_row(a, k, &n, is_costly);
    keep_row(a, k, &n, is_widened);
}

static void choose_kept(Arena *a, Kernel *k) {
    for (int id = 1; id < k->insts.len; id++) {
        KInst *in = kinst_at(k, id);
        /* cheap to compute again without other instructions */
        bool cheap = in->op == K_INDEX || (in->op == K_LOAD && !in->guard &&
                                           !in->at.inst && !in->place);
        const KInst *x = in->op == K_REDUCE ? kinst_at(k, in->in[0]) : NULL;
        /* the operand is contiguous in memory */
        if (x && k->form == KF_COLS && x->op == K_LOAD && !x->guard &&
            !x->place &&
            k->bufs.data[x->buf].dtype == dtype_of_ktype(in->compute) &&
            x->at.k[k->vec] == 1 &&
            (!x->at.inst || !kinst_at(k, x->at.inst)->full))
            in->keep = KEEP_BUFFER;
        if (k->form == KF_ROWS &&
            (in->op == K_REDUCE || (kinst_is_row_value(in) && !cheap)))
            in->keep = KEEP_BLOCK;
    }
    if (k->form == KF_COLS && kernel_cols(k) > 0 && kernel_cols(k) <= KEEP_COLS)
        keep_values(a, k);
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
    case KF_FOLD: ASSERT(!"a form of CPUs"); break;
    case KF_EPILOGUE:
        add_loop(k, LOOP_SERIAL, LOOP_ROWS, kernel_rows(k), 1);
        add_loop(k, LOOP_VECTOR, n == 1 ? k->vec : LOOP_COLS, kernel_cols(k),
                 1);
        break;
    }
    choose_kept(a, k);
}

/* ---- cost ---------------------------------------------------------------- */

static double inst_ns(const KInst *in) {
    static const double op_ns[] = {[COST_CHEAP] = 0.1,
                                   [COST_DIVIDE] = 0.5,
                                   [COST_LONG] = 1.2,
                                   [COST_SLOW] = 15};
    switch (in->op) {
    case K_LOAD: return in->guard ? 1.0 : 0.3;
    case K_STORE: return 0.4;
    case K_OP:
        return op_ns[op_info[in->code].cost] * (in->compute == KT_F64 ? 4 : 1);
    case K_PHILOX: return 8;
    case K_ROUND: return 0.2;
    case K_CONST: return 0;
    default: return 0.05;
    }
}

/* Derived from the estimated nanoseconds of a unit on one core. */
int64_t cpu_grain(Arena *a, const Kernel *k, int64_t flat_len) {
    double full = 0.1, row = 20, cols = (double)kernel_cols(k), repeat = 1;
    const KLoop *block = kernel_loop(k, LOOP_THREAD, k->vec);
    int side = kernel_side(k);
    KParts parts = kernel_row_parts(a, k);
    for (const KPart *x = parts.data; x < parts.data + parts.len; x++)
        for (int id = 1; id < k->insts.len; id++) {
            const KInst *in = kinst_at(x->k, id);
            *(in->full || in->op == K_REDUCE ? &full : &row) +=
                inst_ns(in) * x->share;
        }
    if (k->form == KF_FLAT)
        cols = flat_len < FLAT_BLOCK ? (double)flat_len : FLAT_BLOCK;
    if (k->form == KF_ROWS)
        repeat = (double)block->step;
    else if (block && cols > (double)block->step)
        cols = (double)block->step;
    if (side >= 0) repeat = TILE_ROWS;
    double n = 12000 / ((row + full * cols) * repeat);
    return n < 1 ? 1 : n > 1e6 ? 1000000 : (int64_t)n;
}
