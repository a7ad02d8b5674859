/* SPDX-License-Identifier: Apache-2.0 */
/* probes.c: adds programs that examine a training step.
   Before:  graph train: forward and backward
   After:   graph locate, with --debug-nonfinite: the same
            graph underflow, with --count-underflow: the same
   These copies take the same passes as graph train until dtypes are chosen, so
   they get the same dtypes; then passes locate and underflow add their probes.
   requires     stage DIFF                                                   */
#include "passes/passes.h"

static Status probe(Module *m, PassCtx *cx, ProgramKind kind,
                    const char *option) {
    int n = m->graphs.len;
    for (int i = 0; i < n; i++) {
        const Graph *g = m->graphs.data[i];
        if (g->program != PROGRAM_TRAIN) continue;
        Str name = program_name(kind, g->objective);
        Graph *copy = graph_clone(g, name_at_size(name, g->size));
        if (kind == PROGRAM_UNDERFLOW && cx->opt->accumulate == 1)
            samples_all(copy);
        else
            samples_weigh(copy);
    }
    if (m->graphs.len > n) return OK;
    fail(cx->diag, (Loc){.file = m->file},
         "%s: nothing trains, so no step can be examined", option);
    return ERR_USAGE;
}

Status pass_probes(Module *m, PassCtx *cx) {
    const Options *o = cx->opt;
    if (o->count_underflow && o->precision != PREC_FP16) {
        fail(cx->diag, (Loc){0},
             "--count-underflow: only fp16 flushes gradients to zero; it needs "
             "--precision fp16");
        return ERR_USAGE;
    }
    if (o->count_underflow)
        TRY(probe(m, cx, PROGRAM_UNDERFLOW, "--count-underflow"));
    if (!o->debug_nonfinite) return OK;
    return probe(m, cx, PROGRAM_LOCATE, "--debug-nonfinite");
}
