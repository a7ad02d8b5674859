/* emit_order.c: steps that touch different bytes may change places: steps of
   one flat kernel are brought together, so that they share a launch
   (cuda.h).                                                                 */
#include "codegen/cuda/cuda.h"
#include "runtime/lib.h"

#include <string.h>

/* ---- who touches which bytes --------------------------------------------- */

bool cuda_refs_overlap(const PlanRef *a, int64_t a_bytes, const PlanRef *b,
                       int64_t b_bytes) {
    if (a->space == PLAN_NONE || a->space != b->space || a->index != b->index)
        return false;
    return a->offset < b->offset + (uint64_t)b_bytes &&
           b->offset < a->offset + (uint64_t)a_bytes;
}

typedef struct Operand {
    const PlanRef *ref;
    int64_t bytes;
    bool written;
} Operand;

static bool is_written(const LoweredStep *s, int ref) {
    if (s->kind == PLAN_KERNEL) return s->kernel->bufs.data[ref].written;
    return lib_writes(lib_info(s->lib), ref);
}

/* The i-th of the step's refs and of its epilogue's. */
static Operand operand(const CudaStepIn *x, int i) {
    int e = i - x->s->nref;
    if (e < 0)
        return (Operand){&x->refs[i], x->ref_bytes[i], is_written(x->s, i)};
    return (Operand){&x->ep_refs[e], x->ep_bytes[e],
                     x->s->epilogue->bufs.data[e].written};
}

bool cuda_steps_conflict(const CudaStepIn *x, const CudaStepIn *y) {
    int nx = x->s->nref + x->s->nep_ref, ny = y->s->nref + y->s->nep_ref;
    for (int i = 0; i < nx; i++) {
        Operand p = operand(x, i);
        for (int j = 0; j < ny; j++) {
            Operand q = operand(y, j);
            if ((p.written || q.written) &&
                cuda_refs_overlap(p.ref, p.bytes, q.ref, q.bytes))
                return true;
        }
    }
    return false;
}

bool cuda_may_share(const CudaStepIn *x, const CudaStepIn *y) {
    return x->s->kind == PLAN_KERNEL && y->s->kind == PLAN_KERNEL &&
           x->s->kernel == y->s->kernel && x->s->kernel->form == KF_FLAT &&
           x->s->units > 0 && y->s->units > 0 && !cuda_steps_conflict(x, y);
}

/* ---- order --------------------------------------------------------------- */

enum { REACH = 256 }; /* how far ahead a partner is looked for */

/* Whether step order[at] may stand at `to`, behind a run that starts at
   `from`. */
static bool may_move(const CudaStepIn *in, const int *order, int from, int to,
                     int at) {
    const CudaStepIn *x = &in[order[at]];
    for (int i = from; i < to; i++)
        if (!cuda_may_share(&in[order[i]], x)) return false;
    for (int i = to; i < at; i++)
        if (cuda_steps_conflict(&in[order[i]], x)) return false;
    return true;
}

void cuda_order(const CudaStepIn *in, int first, int end, int *order) {
    for (int i = first; i < end; i++) order[i] = i;
    for (int from = first, to; from < end; from = to) {
        to = from + 1;
        for (int at = to; at < end && at < to + REACH; at++) {
            if (!may_move(in, order, from, to, at)) continue;
            int x = order[at];
            memmove(&order[to + 1], &order[to],
                    (size_t)(at - to) * sizeof *order);
            order[to++] = x;
        }
    }
}
