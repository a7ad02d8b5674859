/* target.c: see target.h.
   Before:  graph train(..)   graph eval(..)
   After:   graph train(..) on cpu   graph eval(..) on cpu
            graph train(..) on cuda  graph eval(..) on cuda                  */
#include "passes/target/target.h"

const TargetInfo target_info[NUM_TARGETS] = {
    [TARGET_CPU] = {.max_buffers = 24,
                    .max_nodes = 96,
                    .max_moved = 3,
                    .max_copies = 8,
                    .min_copied = 8,
                    .rows_enough = 64,
                    .columns_serial = 16384,
                    .small_tensor = 32768,
                    .tiny_tensor = 2048},
    [TARGET_CUDA] = {.epilogue = target_epilogue_cuda,
                     .shares_launches = true,
                     .max_buffers = 24,
                     .max_nodes = 96,
                     .max_moved = 3,
                     .max_copies = 8,
                     .min_copied = 8,
                     .rows_enough = 64,
                     .columns_serial = 16384,
                     .small_tensor = 32768,
                     .tiny_tensor = 2048},
};

static bool wanted(const Options *opt, TargetKind t) {
    bool cuda = t == TARGET_CUDA;
    for (int i = 0; i < opt->targets.len; i++)
        if (opt->targets.data[i].cuda == cuda) return true;
    return cuda ? opt->emit_cuda != NULL : opt->targets.len == 0;
}

void target_split(Module *m, const Options *opt) {
    int n = m->graphs.len;
    bool first = true, split = true;
    for (int i = 0; i < n; i++)
        split &= m->graphs.data[i]->target != TARGET_ANY;
    if (split) return;
    for (TargetKind t = TARGET_CPU; t < NUM_TARGETS; t++) {
        if (!wanted(opt, t)) continue;
        for (int i = 0; i < n; i++) {
            Graph *g = m->graphs.data[i];
            if (!first) g = graph_clone(g, g->name);
            g->target = t;
        }
        first = false;
    }
}
