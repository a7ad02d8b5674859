/* target.c: see target.h.
   Before:  graph train(..)   graph eval(..)
   After:   graph train(..) on cpu   graph eval(..) on cpu                    */
#include "passes/target/target.h"

const TargetInfo target_info[NUM_TARGETS] = {
    [TARGET_CPU] = {.max_buffers = 24,
                    .max_nodes = 96,
                    .rows_enough = 64,
                    .columns_serial = 16384,
                    .small_tensor = 32768,
                    .tiny_tensor = 2048},
    [TARGET_CUDA] = {.max_buffers = 24,
                     .max_nodes = 96,
                     .rows_enough = 64,
                     .columns_serial = 16384,
                     .small_tensor = 32768,
                     .tiny_tensor = 2048},
};

void target_split(Module *m) {
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->target == TARGET_ANY)
            m->graphs.data[i]->target = TARGET_CPU;
}
