/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: from what a kernel computes to how it runs (Kernel.loop).

   schedule.c        the form of the nest, the same everywhere; reading loops
   schedule_cpu.c    threads, vectors, what is kept for a later sweep; cost
   schedule_cuda.c   blocks, threads, elements per thread

   Printers spell the loops and decide nothing.                              */
#ifndef AMPC_CODEGEN_KERNEL_SCHEDULE_H
#define AMPC_CODEGEN_KERNEL_SCHEDULE_H

#include "codegen/kernel/kir.h"

/* Sets form, vec, loops and what instructions keep, by the target; returns how
   many numbers the kernel takes from its step, and sets them.               */
enum { MAX_KERNEL_PARS = 2 };
int kernel_schedule(Arena *a, Kernel *k, TargetKind target,
                    int64_t par[MAX_KERNEL_PARS]);

/* The first loop of that kind over a dim or LOOP_ROWS, ..; NULL: none. */
const KLoop *kernel_loop(const Kernel *k, KLoopKind kind, int over);
enum { LOOP_ANY = -5 };
/* Form cols: the row dim of which threads share out pieces, in tiles with those
   of dim vec, as a loop inside runs over them; -1: none. */
int kernel_side(const Kernel *k);
/* Steps of a loop. */
int64_t loop_steps(const KLoop *l);
/* Times that the outermost loops of one kind run: threads' or blocks' shares
   of the work; par0: where the kernel takes it from its step. */
int64_t kernel_units(const Kernel *k, int64_t par0);
/* One more loop inside the others. */
void add_loop(Kernel *k, KLoopKind kind, int over, int64_t extent,
              int64_t step);

/* ---- schedule_cpu.c ------------------------------------------------------ */

void schedule_cpu(Arena *a, Kernel *k);
/* Units worth handing to a thread. */
int64_t cpu_grain(Arena *a, const Kernel *k, int64_t flat_len);

/* ---- schedule_cuda.c ----------------------------------------------------- */

void schedule_cuda(Arena *a, Kernel *k);
/* Makes it one of form fold, of which every block has a row, and returns how
   many numbers its step has; 0: it has another form. */
int make_fold(Arena *a, Kernel *k, int64_t par[MAX_KERNEL_PARS]);
/* It has one value for all neighbours along dim vec. */
static inline bool cuda_uniform(const Kernel *k, const KInst *in) {
    return k->vec >= 0 && !(in->dims >> k->vec & 1);
}
/* A row's own value that is known before its columns are. */
bool cuda_own_value(const Kernel *k, const KInst *in);
/* Read or written by vectors of n: neighbours along dim vec, aligned. */
bool cuda_packed(const Kernel *k, const KInst *in, int n);
/* Elements of a thread side by side, along dim vec. */
int cuda_pack(const Kernel *k);
/* Bytes of a row that lie in shared memory before the copy of load `id`; 0: all
   of them. */
int64_t cuda_shared(const Kernel *k, int id);
/* Load `id` is made for all of a thread's columns before the first sweep. */
bool cuda_fetched(const Kernel *k, int id);
/* Columns of a team's part of a column sum, as they lie in shared memory. */
int64_t cuda_sum_columns(const Kernel *k);

#endif
