/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_cuda.c: loops for a grid of blocks of threads (schedule.h).

     flat      a thread has neighbours of 16 bytes of the narrowest operand, 32
               at most of the widest
     fold      a block has a row, a thread neighbours as above
     cols      a thread has an element of the whole domain, or neighbours as
               above along the innermost dim; where it reduces, lanes share a
               row: neighbours in a warp, several rows in a block, or from
               WARP_COLS columns on the whole block.  Values that later sweeps
               over a row need stay in registers (KEEP_ROW), and all of them are
               loaded before anything is stored; for long rows, operands read
               from memory stay in shared memory (KEEP_SHARED). If columns are
               also added up over rows, a block has several rows one after the
               other, and its part of the sums in shared memory
               A transposed matrix of bytes goes through shared memory, 64 x 64
               bytes a block. Codes that are stored in both layouts do so, too,
               and numbers that become codes of blocks: 64 rows of some
               columns, or where lanes share rows, 16 or 32 whole rows
     rows      neighbouring rows, one for each lane of a warp, or neighbours as
               above; the warps of a block share the columns                 */
#include "codegen/kernel/schedule.h"
#include "passes/device/fold.h"
#include "runtime/cuda/tile.h"
#include "runtime/program/blocks.h"

enum {
    THREADS = 256, /* per block, unless the kernel reduces */
    WARP = 32,
    WARP_COLS = 1024,    /* longest row of one warp */
    WIDE_COLS = 4096,    /* from here on, a block has twice the threads */
    SLICE_BYTES = 32768, /* shared memory of all folds, form rows */
    ROWS_COLS = 512,     /* form rows: from here on, 16 threads per row */
    FLAT_BYTES = 16,     /* bytes of the narrowest operand, per thread, ... */
    WIDEST_BYTES = 32,   /* ... and at most in the widest */
    FLAT_REGISTERS = 64, /* registers for one thread's elements */
    FLAT_WEIGHT = 48,    /* see flat_weight */
    ROW_WEIGHT = 32,     /* limit if lanes share a row */
    HELD_EACH = 32,      /* columns per thread whose values are held, ... */
    HELD_REGISTERS = 96, /* ... in this many registers */
    FETCHED_REGISTERS = 64, /* registers of a row that is loaded ahead */
    SUM_ROWS = 2            /* rows per team, at least */
};

/* ---- folds of any length ------------------------------------------------- */

/* How an access's address moves from row to row of `cols` elements; -1: not
   by a constant. */
static int walk_of(const Kernel *k, const KInst *in, int row, int64_t cols) {
    int64_t step = row < 0 ? 0 : in->at.k[row];
    int col = k->vec;
    if (in->guard || in->place || in->at.inst || in->at.c) return -1;
    if (in->op == K_STORE) return row < 0 || step == 1 ? WALK_ONE : -1;
    if (!in->full) return step == 0 ? WALK_NOT : step == 1 ? WALK_ONE : -1;
    return in->at.k[col] == 1 && (row < 0 || step == cols) ? WALK_ROW : -1;
}

/* True if rows follow each other in memory, only folds read their elements,
   and no index depends on the number or length of rows. */
static bool walk_buffers(Arena *a, Kernel *k, int row, int64_t cols) {
    enum { UNKNOWN = -1 };
    int *walk = NEW_ARRAY(a, int, k->bufs.len);
    for (int b = 0; b < k->bufs.len; b++) walk[b] = UNKNOWN;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        switch (in->op) {
        case K_CONST:
        case K_OP:
        case K_CVT:
        case K_ROUND:
        case K_REDUCE: continue;
        case K_LOAD:
        case K_STORE: break;
        default: return false;
        }
        int w = in->full && in->op == K_STORE ? -1 : walk_of(k, in, row, cols);
        if (w < 0 || (walk[in->buf] != UNKNOWN && walk[in->buf] != w))
            return false;
        walk[in->buf] = w;
    }
    for (int b = 0; b < k->bufs.len; b++) k->bufs.data[b].walk = (KWalk)walk[b];
    return true;
}

int make_fold(Arena *a, Kernel *k, int64_t par[MAX_KERNEL_PARS]) {
    int dims[MAX_RANK], row = -1;
    int64_t rows = kernel_rows(k), cols = kernel_cols(k);
    if (k->form == KF_EPILOGUE || kernel_col_dims(k, dims) != 1 ||
        k->ndim > 2 || !folds_alike(rows, cols) || kernel_sweeps(k, a).len != 1)
        return 0;
    k->vec = dims[0];
    if (k->ndim == 2) row = 1 - k->vec;
    if (!walk_buffers(a, k, row, cols)) return 0;
    k->form = KF_FOLD;
    if (row >= 0) kernel_remove_dim(k, row);
    k->vec = 0;
    k->dim[0].extent = 0;
    par[0] = rows;
    par[1] = cols;
    return 2;
}

/* ---- elements per thread ------------------------------------------------- */

/* True if the value that instruction adds to an index (0: none) is the same
   for all neighbours and a multiple of n. */
static bool steps_by(const Kernel *k, int id, int n) {
    const KInst *in = id ? kinst_at(k, id) : NULL;
    if (!in || n == 1) return !in || cuda_uniform(k, in);
    if (in->op == K_CONST) return in->i % n == 0;
    if (in->op != K_OP || !cuda_uniform(k, in)) return false;
    if (in->code == OP_MUL)
        return steps_by(k, in->in[0], n) || steps_by(k, in->in[1], n);
    return in->code == OP_ADD && steps_by(k, in->in[0], n) &&
           steps_by(k, in->in[1], n);
}

bool cuda_packed(const Kernel *k, const KInst *in, int n) {
    if (in->op == K_ADD_UP || in->tile) /* in shared memory */
        return k->vec >= 0;
    bool packed = (in->op == K_LOAD || in->op == K_STORE) && k->vec >= 0 &&
                  in->at.k[k->vec] == 1 && in->at.c % n == 0;
    if (kernel_any_length(k))
        packed = packed && !in->at.inst && !in->guard;
    else
        packed = packed && steps_by(k, in->at.inst, n) &&
                 (!in->guard || cuda_uniform(k, kinst_at(k, in->guard)));
    int64_t row = 0; /* from one neighbour to the next */
    for (int d = 0; packed && d < k->ndim; d++) {
        int64_t step = d == k->vec ? 0 : in->at.k[d];
        packed = step % n == 0 && step >= 0;
        if (step && (!row || step < row)) row = step;
    }
    if (!packed || kernel_any_length(k) || k->dim[k->vec].extent % n == 0)
        return packed;
    /* the last vector of a row may extend beyond the row, but not into the
       next row */
    int64_t end = (k->dim[k->vec].extent + n - 1) / n * n;
    return row > 0 && in->at.c % row + end <= row;
}

int cuda_pack(const Kernel *k) {
    const KLoop *l = kernel_loop(k, LOOP_UNROLLED, LOOP_ANY);
    return l ? (int)l->extent : 1;
}

/* Bytes of one element in memory. */
static int memory_bytes(const Kernel *k, const KInst *in) {
    DType d = in->op == K_ADD_UP ? DT_F32 : kinst_dtype(k, in);
    return dtype_info[d].bytes;
}

int cuda_turned(const Kernel *k) {
    int load = 0, row = 1 - k->vec;
    if (k->form != KF_COLS || k->ndim != 2 || k->vec < 0 || kernel_reduces(k))
        return 0;
    int64_t rows = k->dim[row].extent, cols = k->dim[k->vec].extent;
    if (rows % TURN_NEAR || cols % TURN_NEAR || rows * cols == 0) return 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        const KIndex *at = &in->at;
        if (in->op == K_CONST) continue;
        bool read = in->op == K_LOAD && !load;
        if ((!read && in->op != K_STORE) || in->guard || in->place ||
            at->inst || at->c || k->bufs.len != 2 || memory_bytes(k, in) != 1)
            return 0;
        if (read && (at->k[row] != 1 || at->k[k->vec] < rows ||
                     at->k[k->vec] % TURN_NEAR))
            return 0;
        if (!read &&
            (at->k[k->vec] != 1 || at->k[row] != cols || in->in[0] != load))
            return 0;
        if (read) load = id;
    }
    return load;
}

/* Size of an instruction's text: long functions should not be repeated
   often, and division and square root become calls, around which registers
   are saved. */
static int flat_weight(const KInst *in) {
    if (in->op == K_PHILOX) return 2;
    if (in->op != K_OP) return 0;
    OpCost cost = op_info[in->code].cost;
    if (cost == COST_CHEAP) return 0;
    if (cost == COST_SLOW) return FLAT_WEIGHT;
    if (cost == COST_DIVIDE) return 2;
    return in->compute == KT_F64 ? FLAT_WEIGHT : 2;
}

/* Elements per thread: few enough to keep text and registers small, with at
   most one unaligned access per vector access. tail: the last vector of a
   row may be incomplete. */
static int choose_pack(const Kernel *k, int most, bool tail) {
    int narrowest = FLAT_BYTES, widest = 1, weight = 0;
    int64_t extent = kernel_any_length(k) ? 0 : k->dim[k->vec].extent;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->full) weight += flat_weight(in);
        if (!in->full || in->shares || !cuda_packed(k, in, 1)) continue;
        int bytes = memory_bytes(k, in);
        if (bytes < narrowest) narrowest = bytes;
        if (bytes > widest) widest = bytes;
    }
    int n = FLAT_BYTES / narrowest;
    while (n * widest > WIDEST_BYTES) n /= 2;
    for (; n > 1; n /= 2) {
        int bytes = 0, packs = 0, others = 0; /* bytes that it takes in
                                                 vector registers */
        for (int id = 1; id < k->insts.len; id++) {
            const KInst *in = kinst_at(k, id);
            bool access = (in->op == K_LOAD || kinst_stores(in)) && in->full;
            if (in->shares) continue;
            if (in->full && cuda_packed(k, in, n))
                bytes += n * memory_bytes(k, in), packs++;
            else
                others += access && in->at.k[k->vec];
        }
        if (n * weight <= most && bytes / 4 <= FLAT_REGISTERS &&
            (tail || extent % n == 0) &&
            (kernel_any_length(k) || others < packs))
            return n;
    }
    return 1;
}

/* ---- values of a row ------------------------------------------------------
 */

/* Keeps values that one sweep computes and a later one reads, if all of them
   fit the registers for `each` columns. */
static void hold_values(Arena *a, Kernel *k, int64_t each) {
    KSweeps sweeps = kernel_sweeps(k, a);
    bool *seen = NEW_ARRAY(a, bool, k->insts.len);
    bool *held = NEW_ARRAY(a, bool, k->insts.len);
    int64_t registers = 0;
    for (const KSweep *s = sweeps.data; s < sweeps.data + sweeps.len; s++) {
        bool *need = kernel_need(k, s, held, a);
        bool *now = arena_dup(a, need, (size_t)k->insts.len * sizeof *now);
        for (int j = 0; j < s->roots.len; j++) now[s->roots.data[j]] = true;
        for (int id = 1; id < k->insts.len; id++) {
            for (int j = 0; now[id] && !seen[id] && j < KINST_READS; j++) {
                int x = kinst_read(kinst_at(k, id), j);
                if (!x || !seen[x] || held[x] ||
                    cuda_uniform(k, kinst_at(k, x)))
                    continue;
                KType t = kinst_at(k, x)->type;
                held[x] = true;
                registers += each * (t == KT_F64 || t == KT_I64 ? 2 : 1);
            }
        }
        for (int id = 1; id < k->insts.len; id++)
            seen[id] |= need[id] && kinst_at(k, id)->op != K_INDEX;
    }
    for (int id = 1; id < k->insts.len && registers <= HELD_REGISTERS; id++)
        if (held[id]) kinst_at(k, id)->keep = KEEP_ROW;
}

int64_t cuda_shared(const Kernel *k, int id) {
    enum { ALIGN = WIDEST_BYTES };
    int64_t bytes = 0, cols = kernel_cols(k);
    for (int i = 1; i < k->insts.len && i != id; i++) {
        const KInst *in = kinst_at(k, i);
        if (in->keep != KEEP_SHARED) continue;
        int64_t size = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        int64_t unit = ALIGN / size;
        bytes += (cols + unit - 1) / unit * ALIGN;
    }
    return bytes;
}

static bool may_fetch(const Kernel *k, const KInst *in) {
    bool holds = false, moves = false; /* from row to row */
    int pack = cuda_pack(k);
    if (in->op != K_LOAD || !in->full || in->guard || in->at.inst ||
        in->keep == KEEP_SHARED || (pack > 1 && !cuda_packed(k, in, pack)))
        return false;
    for (int i = 1; i < k->insts.len; i++)
        holds |= kinst_at(k, i)->keep == KEEP_ROW;
    for (int d = 0; d < k->ndim; d++) moves |= !k->dim[d].col && in->at.k[d];
    return holds && moves;
}

bool cuda_fetched(const Kernel *k, int id) {
    int64_t registers = 0; /* registers of all fetched values, per thread */
    const KLoop *lanes = kernel_loop(k, LOOP_LANES, LOOP_ANY);
    if (!lanes || !may_fetch(k, kinst_at(k, id))) return false;
    int64_t each = (kernel_cols(k) - 1) / lanes->step + 1;
    for (int i = 1; i < k->insts.len; i++) {
        if (!may_fetch(k, kinst_at(k, i))) continue;
        int64_t bytes = memory_bytes(k, kinst_at(k, i));
        if (cuda_pack(k) == 1 && bytes < 4) bytes = 4;
        registers += each * bytes / 4;
    }
    return registers <= FETCHED_REGISTERS;
}

/* Keeps operands that several sweeps read in shared memory, if all of them
   fit beside the folds. */
static bool share_values(Arena *a, Kernel *k, int folds) {
    enum { FOLD = 4 * THREADS / WARP * 8 };
    KSweeps sweeps = kernel_sweeps(k, a);
    int *times = NEW_ARRAY(a, int, k->insts.len);
    for (int s = 0; s < sweeps.len; s++) {
        bool *need = kernel_need(k, &sweeps.data[s], NULL, a);
        for (int id = 1; id < k->insts.len; id++) times[id] += need[id];
    }
    for (int pass = 0; pass < 2; pass++) { /* 1: they do not fit */
        for (int id = 1; id < k->insts.len; id++) {
            KInst *in = kinst_at(k, id);
            if (in->op == K_LOAD && !in->guard && !in->at.inst && times[id] > 1)
                in->keep = pass ? KEEP_NOT : KEEP_SHARED;
        }
        int64_t bytes = cuda_shared(k, 0);
        if (bytes + folds * FOLD <= k->block_shared) return bytes > 0;
    }
    return false;
}

/* The least power of two that is not below n; at most `max`. */
static int power_of_two(int64_t n, int max) {
    int p = 1;
    while (p < n && p < max) p *= 2;
    return p;
}

/* Number of adjacent elements that a lane takes along a row. */
static int row_pack(const Kernel *k) {
    int dims[MAX_RANK];
    return choose_pack(k, ROW_WEIGHT, kernel_col_dims(k, dims) == 1);
}

/* Lanes of a warp for a row with that many columns: all lanes, or for a
   shorter row one lane per whole vector; a few elements per lane if there
   are enough rows to fill the machine. */
static int row_lanes(const Kernel *k, int64_t rows, int64_t cols) {
    enum { EACH = 8 };
    int n = row_pack(k);
    while (n > 1 && cols % n) n /= 2;
    int most = power_of_two(cols / n, WARP);
    int lanes = power_of_two(cols / EACH, most);
    return rows * lanes < GPU_BLOCKS * THREADS ? most : lanes;
}

/* Lanes that share a row of `cols` columns. */
static void share_row(Arena *a, Kernel *k, int64_t cols, int lanes) {
    int n = row_pack(k);
    while (n > 1 && cols <= (int64_t)lanes * n / 2) n /= 2;
    add_loop(k, LOOP_LANES, LOOP_COLS, cols, lanes);
    if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    int64_t step = (int64_t)lanes * n, each = (cols + step - 1) / step * n;
    if (each <= HELD_EACH) hold_values(a, k, each);
}

/* ---- sums of columns ----------------------------------------------------- */

int64_t cuda_sum_columns(const Kernel *k) {
    enum { PACK = WIDEST_BYTES / 4 };
    return (kernel_cols(k) + PACK - 1) / PACK * PACK;
}

/* Bytes of the sums of one team. */
static int64_t team_sums(const Kernel *k) {
    return 4 * cuda_sum_columns(k) * kernel_column_sums(k);
}

static bool has_blocks(const Kernel *k) {
    bool any = false;
    for (int id = 1; id < k->insts.len; id++)
        any |= kinst_blocks(kinst_at(k, id));
    return any;
}

int cuda_tile_lines(const Kernel *k) {
    int64_t rows = kernel_rows(k), n = kernel_tiles(k);
    if (!n) return 0;
    if (has_blocks(k)) return kernel_reduces(k) ? BLOCKS_ROWS : BLOCKS_LINES;
    if (!kernel_reduces(k)) return TURN_SIDE;
    int64_t more = 2 * TURN_NEAR * kernel_cols(k) * n;
    bool two = rows % (2 * TURN_NEAR) == 0 &&
               more + team_sums(k) <= k->block_shared - GPU_SHARED_APART;
    return two ? 2 * TURN_NEAR : TURN_NEAR;
}

int64_t cuda_tile_line(const Kernel *k) {
    const KLoop *l = kernel_loop(k, LOOP_BLOCK, k->vec);
    return kernel_reduces(k) ? kernel_cols(k) : l->step;
}

int64_t cuda_tile_bytes(const Kernel *k, const KInst *in) {
    enum { ALIGN = 32 };
    int64_t lines = cuda_tile_lines(k), line = cuda_tile_line(k), bytes;
    if (kinst_blocks(in))
        bytes = lines * (line * memory_bytes(k, in) + BLOCKS_APART);
    else
        bytes = lines * line + (lines / TURN_NEAR - 1) * TURN_SHIFT(lines);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

int64_t cuda_tiles_bytes(const Kernel *k) {
    int64_t bytes = 0;
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_has_tile(kinst_at(k, id)))
            bytes += cuda_tile_bytes(k, kinst_at(k, id));
    return bytes;
}

/* Rows per block: few enough that there are enough blocks, many enough that
   few partial sums are left to add; whole tiles of turned codes. At most
   `side` teams per block, limited by the room for their sums; returns their
   number. */
static int share_sums(Kernel *k, int64_t rows, int side) {
    int64_t each = team_sums(k), lines = cuda_tile_lines(k), block = lines;
    int64_t room = k->block_shared - GPU_SHARED_APART - cuda_tiles_bytes(k);
    while (side > 1 && (side * each > room || (lines && side > lines)))
        side /= 2;
    if (each) block = (rows + GPU_BLOCKS - 1) / GPU_BLOCKS;
    if (each && block < SUM_ROWS * side) block = SUM_ROWS * side;
    int64_t unit = lines ? lines : side;
    block = (block + unit - 1) / unit * unit;
    add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, block);
    add_loop(k, LOOP_SERIAL, LOOP_ROWS, block, side);
    return side;
}

/* ---- rows side by side --------------------------------------------------- */

bool cuda_own_value(const Kernel *k, const KInst *in) {
    return kinst_is_row_value(in) && in->depth == 0 && !cuda_uniform(k, in);
}

/* Rows per lane: as many as fill warps and leave enough blocks; more than
   one only if a single sweep reads them and the row values needed before it
   can be read as vectors, too. */
static int row_neighbours(Arena *a, const Kernel *k) {
    KSweeps sweeps = kernel_sweeps(k, a);
    int64_t rows = kernel_rows(k), extent = k->dim[k->vec].extent;
    if (sweeps.len != 1) return 1;
    int n = choose_pack(k, ROW_WEIGHT, false);
    while (n > 1 && (extent % (WARP * n) || rows / (WARP * n) < GPU_BLOCKS))
        n /= 2;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        while (n > 1 && in->op == K_LOAD && cuda_own_value(k, in) &&
               (in->guard || !cuda_packed(k, in, n)))
            n /= 2;
    }
    return n;
}

/* Threads that share a row in form rows: if blocks fill only a part of the
   machine, as many threads as leave a few elements to each. */
static int row_slices(int64_t blocks, int64_t cols) {
    enum { MOST = 32, EACH = 8 };
    int n = power_of_two(cols, cols < ROWS_COLS ? 8 : 16);
    if (blocks < GPU_BLOCKS / 2 && cols >= EACH * n)
        n = power_of_two(cols / EACH, MOST);
    return n;
}

/* ---- all ----------------------------------------------------------------- */

void schedule_cuda(Arena *a, Kernel *k) {
    int64_t rows = kernel_rows(k), cols = kernel_cols(k);
    int folds = 0;
    schedule_low(a, k);
    for (int id = 1; id < k->insts.len; id++)
        folds += kinst_at(k, id)->op == K_REDUCE;
    if (k->form == KF_FOLD) {
        int n = choose_pack(k, ROW_WEIGHT, true);
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, 0, 1);
        add_loop(k, LOOP_LANES, LOOP_COLS, 0, 2 * THREADS);
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (k->form == KF_FLAT) {
        int n = choose_pack(k, FLAT_WEIGHT, true);
        add_loop(k, LOOP_BLOCK, LOOP_COLS, 0, THREADS * n);
        add_loop(k, LOOP_THREAD, LOOP_COLS, THREADS * n, n);
        add_loop(k, LOOP_UNROLLED, LOOP_COLS, n, 1);
    } else if (k->form == KF_EPILOGUE) {
        int n = k->vec >= 0 ? choose_pack(k, FLAT_WEIGHT, false) : 1;
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (!folds && cuda_turned(k)) {
        add_loop(k, LOOP_BLOCK, 1 - k->vec, k->dim[1 - k->vec].extent,
                 TURN_SIDE);
        add_loop(k, LOOP_BLOCK, k->vec, k->dim[k->vec].extent, TURN_SIDE);
        add_loop(k, LOOP_THREAD, LOOP_ALL, TURN_SIDE * TURN_SIDE, TURN_NEAR);
    } else if (!folds && has_blocks(k)) {
        int n = choose_pack(k, FLAT_WEIGHT, false);
        int64_t down = block_tiles(rows, BLOCK_ROWS) * BLOCK_ROWS;
        int64_t across = block_tiles(cols, BLOCKS_LINE) * BLOCKS_LINE;
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, down, BLOCKS_LINES);
        add_loop(k, LOOP_BLOCK, k->vec, across, BLOCKS_LINE);
        add_loop(k, LOOP_SERIAL, LOOP_ALL, BLOCKS_LINES * BLOCKS_LINE,
                 THREADS * n);
        add_loop(k, LOOP_THREAD, LOOP_ALL, THREADS * n, n);
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (!folds && kernel_tiles(k)) {
        enum { PARTS = THREADS / TURN_SIDE };
        int n = choose_pack(k, FLAT_WEIGHT, false);
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, TURN_SIDE);
        add_loop(k, LOOP_BLOCK, k->vec, cols, PARTS * n);
        add_loop(k, LOOP_THREAD, LOOP_ALL, TURN_SIDE * PARTS * n, n);
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (!folds) {
        bool cols_side = k->form == KF_COLS && k->vec >= 0;
        int n = cols_side ? choose_pack(k, FLAT_WEIGHT, false) : 1;
        add_loop(k, LOOP_BLOCK, LOOP_ALL, rows * cols, THREADS * n);
        add_loop(k, LOOP_THREAD, LOOP_ALL, THREADS * n, n);
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (k->form == KF_ROWS) {
        int64_t extent = k->dim[k->vec].extent;
        int n = row_neighbours(a, k);
        int slices = row_slices(rows / (WARP * n), cols);
        while (slices > 1 && folds * slices * WARP * 8 > SLICE_BYTES)
            slices /= 2;
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows / extent, 1);
        add_loop(k, LOOP_BLOCK, k->vec, extent, WARP * n);
        add_loop(k, LOOP_THREAD, k->vec, WARP * n, n);
        add_loop(k, LOOP_LANES, LOOP_COLS, cols, slices);
        if (n > 1) add_loop(k, LOOP_UNROLLED, k->vec, n, 1);
    } else if (cols <= WARP_COLS) {
        int lanes = row_lanes(k, rows, cols);
        int side = power_of_two(rows, THREADS / lanes);
        if (side * lanes < WARP) side = WARP / lanes;
        if (kernel_column_sums(k) || kernel_tiles(k))
            side = share_sums(k, rows, side);
        else
            add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, side);
        add_loop(k, LOOP_THREAD, LOOP_ROWS, side, 1);
        share_row(a, k, cols, lanes);
    } else if (kernel_column_sums(k) || kernel_tiles(k)) {
        share_sums(k, rows, 1);
        share_row(a, k, cols, cols < WIDE_COLS ? THREADS : 2 * THREADS);
    } else {
        bool shared =
            cols > 2 * THREADS * HELD_EACH && share_values(a, k, folds);
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, 1);
        share_row(a, k, cols,
                  shared             ? 4 * THREADS
                  : cols < WIDE_COLS ? THREADS
                                     : 2 * THREADS);
    }
}
