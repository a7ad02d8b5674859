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

/* Elements of a thread: as many as keep its text and its registers small. */
static int flat_pack(const Kernel *k) {
    int widest = 1, weight = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->full) weight += flat_weight(in);
        if (!cuda_packed(in, 1)) continue;
        int bytes = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        if (bytes > widest) widest = bytes;
    }
    for (int n = FLAT_BYTES / widest; n > 1; n /= 2) {
        int bytes = 0; /* in vector registers */
        for (int id = 1; id < k->insts.len; id++)
            if (cuda_packed(kinst_at(k, id), n))
                bytes +=
                    n *
                    dtype_info[k->bufs.data[kinst_at(k, id)->buf].dtype].bytes;
        if (n * weight <= FLAT_WEIGHT && bytes / 4 <= FLAT_REGISTERS) return n;
    }
    return 1;
}

/* ---- rows per block ------------------------------------------------------ */

/* The least power of two that is not below n; at most `max`. */
static int power_of_two(int64_t n, int max) {
    int p = 1;
    while (p < n && p < max) p *= 2;
    return p;
}

void schedule_cuda(Arena *a, Kernel *k) {
    int64_t rows = kernel_rows(k), cols = kernel_cols(k);
    int folds = 0;
    (void)a;
    for (int id = 1; id < k->insts.len; id++)
        folds += kinst_at(k, id)->op == K_REDUCE;
    if (k->form == KF_FLAT) {
        int n = flat_pack(k);
        add_loop(k, LOOP_BLOCK, LOOP_COLS, 0, THREADS * n);
        add_loop(k, LOOP_THREAD, LOOP_COLS, THREADS * n, n);
        add_loop(k, LOOP_UNROLLED, LOOP_COLS, n, 1);
    } else if (!folds) {
        add_loop(k, LOOP_BLOCK, LOOP_ALL, rows * cols, THREADS);
        add_loop(k, LOOP_THREAD, LOOP_ALL, THREADS, 1);
    } else if (k->form == KF_ROWS) {
        int64_t extent = k->dim[k->vec].extent;
        int slices = power_of_two(cols, cols < ROWS_COLS ? 8 : 16);
        while (slices > 1 && folds * slices * WARP * 8 > SLICE_BYTES)
            slices /= 2;
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows / extent, 1);
        add_loop(k, LOOP_BLOCK, k->vec, extent, WARP);
        add_loop(k, LOOP_THREAD, k->vec, WARP, 1);
        add_loop(k, LOOP_LANES, LOOP_COLS, cols, slices);
    } else if (cols <= WARP_COLS) {
        int lanes = power_of_two(cols, WARP);
        int side = power_of_two(rows, THREADS / lanes);
        if (side * lanes < WARP) side = WARP / lanes;
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, side);
        add_loop(k, LOOP_THREAD, LOOP_ROWS, side, 1);
        add_loop(k, LOOP_LANES, LOOP_COLS, cols, lanes);
    } else {
        add_loop(k, LOOP_BLOCK, LOOP_ROWS, rows, 1);
        add_loop(k, LOOP_LANES, LOOP_COLS, cols,
                 cols < WIDE_COLS ? THREADS : 2 * THREADS);
    }
}
