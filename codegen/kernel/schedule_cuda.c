/* schedule_cuda.c: loops for a grid of blocks of threads (schedule.h).

     flat      a thread has neighbours of 16 bytes of the widest operand
     cols      a thread has an element of the whole domain; where it reduces,
               lanes share a row: neighbours in a warp, several rows in a block,
               or from WARP_COLS columns on the whole block
     rows      32 neighbouring rows, one for each lane of a warp; the warps of a
               block share the columns                                       */
#include "codegen/kernel/schedule.h"

enum {
    THREADS = 256, /* of a block, unless the kernel reduces */
    WARP = 32,
    WARP_COLS = 1024,    /* longest row of one warp */
    WIDE_COLS = 4096,    /* from here on, a block has twice the threads */
    SLICE_BYTES = 32768, /* shared memory of all folds, form rows */
    ROWS_COLS = 512,     /* form rows: from here on, 16 threads per row */
    FLAT_BYTES = 16,     /* of the widest operand, one thread */
    FLAT_REGISTERS = 64, /* that one thread's elements may take */
    FLAT_WEIGHT = 12     /* see flat_weight */
};

/* ---- elements per thread ------------------------------------------------- */

bool cuda_packed(const KInst *in, int n) {
    return (in->op == K_LOAD || in->op == K_STORE) && in->at.k[0] == 1 &&
           in->at.inst == 0 && in->guard == 0 && in->at.c % n == 0;
}

static int flat_registers(const Kernel *k, int n) {
    int bytes = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (cuda_packed(in, n))
            bytes += n * dtype_info[k->bufs.data[in->buf].dtype].bytes;
    }
    return bytes / 4;
}

/* How much text an instruction becomes: long functions are not to be written
   out many times, and division and square root call functions around which
   registers are saved.                                                      */
static int flat_weight(const KInst *in) {
    if (in->op == K_PHILOX) return 2;
    if (in->op != K_OP) return 0;
    OpCost cost = op_info[in->code].cost;
    if (cost == COST_CHEAP) return 0;
    if (cost == COST_SLOW) return FLAT_WEIGHT;
    if (cost == COST_DIVIDE) return 2;
    return in->compute == KT_F64 ? FLAT_WEIGHT : 2;
}

static int flat_pack(const Kernel *k) {
    int widest = 1, weight = 0, n;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->full) weight += flat_weight(in);
        if (!cuda_packed(in, 1)) continue;
        int bytes = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        if (bytes > widest) widest = bytes;
    }
    n = FLAT_BYTES / widest;
    while (n > 1 &&
           (n * weight > FLAT_WEIGHT || flat_registers(k, n) > FLAT_REGISTERS))
        n /= 2;
    return n;
}

/* ---- rows per block ------------------------------------------------------ */

/* The least power of two that is not below n; at most `max`. */
static int power_of_two(int64_t n, int max) {
    int p = 1;
    while (p < n && p < max) p *= 2;
    return p;
}

static int count_reductions(const Kernel *k) {
    int n = 0;
    for (int id = 1; id < k->insts.len; id++)
        n += kinst_at(k, id)->op == K_REDUCE;
    return n;
}

/* Threads that share a row, form rows. */
static int slices_of_rows(const Kernel *k, int64_t ncols) {
    int slices = power_of_two(ncols, ncols < ROWS_COLS ? 8 : 16);
    while (slices > 1 && count_reductions(k) * slices * WARP * 8 > SLICE_BYTES)
        slices /= 2;
    return slices;
}

static void loops_of_rows(Kernel *k, int64_t ncols) {
    int64_t extent = k->dim[k->vec].extent;
    add_loop(k, LOOP_BLOCK, LOOP_ROWS, kernel_rows(k) / extent, 1);
    add_loop(k, LOOP_BLOCK, k->vec, extent, WARP);
    add_loop(k, LOOP_THREAD, k->vec, WARP, 1);
    add_loop(k, LOOP_LANES, LOOP_COLS, ncols, slices_of_rows(k, ncols));
}

static void loops_of_lanes(Kernel *k, int64_t ncols) {
    int lanes = power_of_two(ncols, WARP);
    int rows = power_of_two(kernel_rows(k), THREADS / lanes);
    if (rows * lanes < WARP) rows = WARP / lanes;
    add_loop(k, LOOP_BLOCK, LOOP_ROWS, kernel_rows(k), rows);
    add_loop(k, LOOP_THREAD, LOOP_ROWS, rows, 1);
    add_loop(k, LOOP_LANES, LOOP_COLS, ncols, lanes);
}

static void loops_of_block(Kernel *k, int64_t ncols) {
    add_loop(k, LOOP_BLOCK, LOOP_ROWS, kernel_rows(k), 1);
    add_loop(k, LOOP_LANES, LOOP_COLS, ncols,
             ncols < WIDE_COLS ? THREADS : 2 * THREADS);
}

void schedule_cuda(Arena *a, Kernel *k) {
    int64_t ncols = kernel_cols(k);
    (void)a;
    if (k->form == KF_FLAT) {
        int n = flat_pack(k);
        add_loop(k, LOOP_BLOCK, LOOP_COLS, 0, THREADS * n);
        add_loop(k, LOOP_THREAD, LOOP_COLS, THREADS * n, n);
        add_loop(k, LOOP_UNROLLED, LOOP_COLS, n, 1);
    } else if (!kernel_reduces(k)) {
        add_loop(k, LOOP_BLOCK, LOOP_ALL, kernel_rows(k) * ncols, THREADS);
        add_loop(k, LOOP_THREAD, LOOP_ALL, THREADS, 1);
    } else if (k->form == KF_ROWS) {
        loops_of_rows(k, ncols);
    } else if (ncols <= WARP_COLS) {
        loops_of_lanes(k, ncols);
    } else {
        loops_of_block(k, ncols);
    }
}
