/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: decides how a kernel runs (Kernel.loop).

   schedule.c        the form of the nest, the same everywhere
   loops.c           writing and reading loops
   schedule_cpu.c    threads, vectors, values kept for later sweeps; cost
   schedule_inner.c  the innermost loops of CPUs
   schedule_cuda.c   blocks, threads, elements per thread
   schedule_low.c    functions of fewer instructions on GPUs

   Printers spell the loops and decide nothing.                              */
#ifndef AMPC_CODEGEN_KERNEL_SCHEDULE_H
#define AMPC_CODEGEN_KERNEL_SCHEDULE_H

#include "codegen/kernel/kir.h"

/* Sets form, vec, loops and kept values for the target; sets the numbers
   that the step supplies to the kernel, and returns how many there are. */
enum { MAX_KERNEL_PARS = 2 };
int kernel_schedule(Arena *a, Kernel *k, TargetKind target,
                    int64_t par[MAX_KERNEL_PARS]);

/* ---- loops.c ------------------------------------------------------------- */

/* Finds the first loop of that kind over a dim or LOOP_ROWS, ..; NULL: none. */
const KLoop *kernel_loop(const Kernel *k, KLoopKind kind, int over);
enum { LOOP_ANY = -5 };
/* Form cols: the row dim that together with dim vec is divided into tiles
   for threads; an inner loop runs over a tile's rows; -1: none. */
int kernel_side(const Kernel *k);
/* Steps of a loop. */
int64_t loop_steps(const KLoop *l);
/* Number of iterations of the outermost loops of that kind, which are the
   shares of threads or blocks; par0: the number of elements, if the step
   supplies it. */
int64_t kernel_units(const Kernel *k, int64_t par0);
/* Adds a loop inside the others. */
void add_loop(Kernel *k, KLoopKind kind, int over, int64_t extent,
              int64_t step);

/* ---- schedule_cpu.c ------------------------------------------------------ */

void schedule_cpu(Arena *a, Kernel *k);
/* Least number of units that is worth a thread. */
int64_t cpu_grain(Arena *a, const Kernel *k, int64_t flat_len);

/* ---- schedule_inner.c ---------------------------------------------------- */

/* BLOCK: the number of lanes of FOLD_SUM. LEAST_LENGTH: shorter loops have
   their length written in their text. */
enum { LEAST_LENGTH = 32, BLOCK = 16, CACHE_LINE = 64, ROWS_AHEAD = 16 };

/* How the innermost loop of a sweep runs; bools by instruction. */
typedef struct KInner {
    bool *before;  /* computed before the loop; NULL: nothing */
    bool pieces;   /* the loop is cut in pieces */
    bool *piece;   /* loads, roundings and stores of elements that are converted
                      a piece at a time */
    bool *rest;    /* pieces that are left over after whole blocks */
    bool in_order; /* shuffled types are converted in memory order */
    bool lanes;    /* kernel_adds_lanes */
} KInner;
KInner kernel_inner(Arena *a, const Kernel *k, const KSweeps *all,
                    const KSweep *s, int over);
/* The dim along which loop `over` fetches lines ahead; -1: it does not. */
int kernel_ahead_dim(const Kernel *k, const KSweep *s, int over);
/* True for a load or store whose lines it fetches. */
bool kernel_fetches(const Kernel *k, const KInst *in, int dim);
/* True if a sweep adds up its sums in lanes, with the same bits as FOLD_SUM. */
bool kernel_adds_lanes(const Kernel *k, const KSweep *s);
/* Columns after the blocks of a piece; -1 if their number differs between
   pieces. */
int64_t kernel_left_over(const KLoop *lanes);
/* Fold `id` has its operand in an array of its own; or, folds_kept, in the one
   that is kept for a later sweep. */
bool kernel_folds_array(const Kernel *k, int id);
bool kernel_folds_kept(const Kernel *k, const KInst *r);

/* ---- schedule_cuda.c ----------------------------------------------------- */

void schedule_cuda(Arena *a, Kernel *k);
/* Gives the kernel form fold, with one row per block, and returns the number
   of its step's parameters; 0 if it must have another form. */
int make_fold(Arena *a, Kernel *k, int64_t par[MAX_KERNEL_PARS]);
/* True if the instruction has the same value for all neighbours along dim
   vec. */
static inline bool cuda_uniform(const Kernel *k, const KInst *in) {
    return k->vec >= 0 && !(in->dims >> k->vec & 1);
}
/* True for a row value that is known before the row's columns are computed. */
bool cuda_own_value(const Kernel *k, const KInst *in);
/* True if vectors of n read or write it: n neighbours along dim vec,
   aligned. */
bool cuda_packed(const Kernel *k, const KInst *in, int n);
/* Elements along dim vec that one thread computes together. */
int cuda_pack(const Kernel *k);
/* The load of a kernel that only transposes a matrix of bytes (turn.cuh): dim
   vec of the result lies along the matrix's other axis; 0: it does more. */
int cuda_turned(const Kernel *k);
/* Offset in shared memory of the copy of load `id`; 0: the total size. */
int64_t cuda_shared(const Kernel *k, int id);
/* Load `id` is made for all of a thread's columns before the first sweep. */
bool cuda_fetched(const Kernel *k, int id);
/* Lines of a tile in shared memory, numbers of one; bytes of the tile of a
   store, and of all tiles. */
int cuda_tile_lines(const Kernel *k);
int64_t cuda_tile_line(const Kernel *k);
int64_t cuda_tile_bytes(const Kernel *k, const KInst *in);
int64_t cuda_tiles_bytes(const Kernel *k);
/* Columns of a team's partial column sums in shared memory. */
int64_t cuda_sum_columns(const Kernel *k);

/* ---- schedule_low.c ------------------------------------------------------ */

/* Marks exp and the like that take fewer instructions, since that changes at
   most the last of 16 bits. */
void schedule_low(Arena *a, Kernel *k);

#endif
