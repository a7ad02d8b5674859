/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c: the form of a kernel's nest (schedule.h). */
#include "codegen/kernel/schedule.h"

/* ---- form ---------------------------------------------------------------- */

/* Full loads and stores whose address jumps when dim d advances by one;
 *unit counts those whose address advances by one element. */
static int strided(const Kernel *k, int d, int *unit) {
    int n = 0;
    *unit = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        if (!in->full || in->tile || (in->op != K_LOAD && !kinst_stores(in)))
            continue;
        *unit += in->at.k[d] == 1;
        n += in->at.k[d] != 1 && in->at.k[d] != 0;
    }
    return n;
}

enum { FEW_ROWS = 8 }; /* too few for vectors */

/* Returns the number of the kernel's parameters that the step supplies. */
static int choose_form(Kernel *k, int64_t *par) {
    int cols[MAX_RANK], n = kernel_col_dims(k, cols);
    bool reduces = kernel_reduces(k);
    k->vec = n ? cols[n - 1] : -1;
    if (k->form == KF_EPILOGUE) return 0;
    /* row dim whose neighbours should be computed together as vectors,
       instead of columns; -1: none */
    int rows = -1, unit, least = reduces ? strided(k, k->vec, &unit) : 0;
    bool apart = reduces && !kernel_column_sums(k) && !kernel_tiles(k);
    for (int d = 0; d < k->ndim && apart; d++) {
        if (k->dim[d].col || k->dim[d].extent < FEW_ROWS) continue;
        int jumps = strided(k, d, &unit);
        if (jumps < least && unit > 0) rows = d, least = jumps;
    }
    bool flat = k->ndim == 1 && k->dim[0].col && !reduces;
    for (int id = 1; id < k->insts.len && flat; id++) {
        int64_t step = k->insts.data[id].at.k[0];
        flat = step == 0 || step == 1;
    }
    k->form = flat ? KF_FLAT : rows >= 0 ? KF_ROWS : KF_COLS;
    if (rows >= 0) k->vec = rows;
    if (!flat) return 0;
    par[0] = k->dim[0].extent;
    k->dim[0].extent = 0;
    return 1;
}

/* ---- target -------------------------------------------------------------- */

int kernel_schedule(Arena *a, Kernel *k, TargetKind target,
                    int64_t par[MAX_KERNEL_PARS]) {
    static void (*const schedule[NUM_TARGETS])(Arena *, Kernel *) = {
        [TARGET_ANY] = schedule_cpu,
        [TARGET_CPU] = schedule_cpu,
        [TARGET_CUDA] = schedule_cuda};
    int npar = target == TARGET_CUDA ? make_fold(a, k, par) : 0;
    if (!npar) npar = choose_form(k, par);
    schedule[target](a, k);
    return npar;
}
