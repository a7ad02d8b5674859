/* SPDX-License-Identifier: Apache-2.0 */
/* loops.c: writing and reading the loops of a kernel (schedule.h). */
#include "codegen/kernel/schedule.h"

void add_loop(Kernel *k, KLoopKind kind, int over, int64_t extent,
              int64_t step) {
    ASSERT(k->nloop < MAX_LOOPS && step > 0);
    k->loop[k->nloop++] = (KLoop){kind, over, extent, step};
}

const KLoop *kernel_loop(const Kernel *k, KLoopKind kind, int over) {
    for (int i = 0; i < k->nloop; i++)
        if (k->loop[i].kind == kind &&
            (over == LOOP_ANY || k->loop[i].over == over))
            return &k->loop[i];
    return NULL;
}

int kernel_side(const Kernel *k) {
    for (int d = 0; d < k->ndim && k->form == KF_COLS; d++)
        if (!k->dim[d].col && kernel_loop(k, LOOP_THREAD, d)) return d;
    return -1;
}

int64_t loop_steps(const KLoop *l) {
    return (l->extent + l->step - 1) / l->step;
}

int64_t kernel_units(const Kernel *k, int64_t par0) {
    int64_t n = 1;
    for (int d = 0; d < k->ndim && !kernel_any_length(k); d++)
        if (k->dim[d].extent == 0 && !(k->dim[d].col && kernel_reduces(k)))
            return 0;
    for (int i = 0; i < k->nloop && k->loop[i].kind == k->loop[0].kind; i++) {
        KLoop l = k->loop[i];
        if (kernel_any_length(k)) l.extent = par0;
        n *= loop_steps(&l);
    }
    return n;
}
