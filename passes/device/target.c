/* SPDX-License-Identifier: Apache-2.0 */
/* target.c: see target.h.
   Before:  graph train(..)   graph eval(..)
   After:   graph train(..) on cpu   graph eval(..) on cpu
            graph train(..) on cuda  graph eval(..) on cuda                  */
#include "passes/device/target.h"
#include "passes/device/fold.h"
#include "runtime/cuda/tile.h"

/* CPU: cores with 90-180 GFLOP/s fp32 and 15-20 GB/s, tens of them; a step
   costs a hand-over to threads (microseconds).

   CUDA: one H100 or H200 SXM: 132 multiprocessors (SM) of 65,536 registers and
   67 TFLOP/s fp32 on 3.35 TB/s, so 25 GB/s for each SM and 80 operations for
   each float that moves.  A launch from a graph costs about 2 us, in which an
   SM reads 50 KB and all SMs 6 MB. The cost of a launch is an estimate. */
const TargetInfo target_info[NUM_TARGETS] = {
    [TARGET_CPU] = {.pools = true,
                    .attend_keys = 96, /* 64 keys: steps take 1.00 to 1.03 */
                    .attend_keys_alone = 64, /* predictions 0.95 to 1.01 */
                    .work_of_a_byte = 8,
                    .max_buffers = 24,
                    .max_numbers = 24,
                    .max_nodes = 96,
                    .max_moved = 3,
                    .costly_parts = {1, 9}, /* MAX_CUTS of kir.h        */
                    .max_copies = 8,
                    .min_copied = 8,
                    .rows_enough = 64,
                    .rows_beside = 1, /* included in rows_enough */
                    .columns_serial = 16384,
                    .least_share = 1,
                    .short_row = 0,
                    .small_tensor = 32768,
                    .tiny_tensor = 2048},
    [TARGET_CUDA] =
        {.epilogue = target_epilogue_cuda,
         .attend_keys = 32, /* costs a step of the kernel */
         .attend_keys_alone = 32,
         .attend_columns = FLASH_MOST,
         .attend_heads = true,
         .shares_launches = true,
         /* fp32 multiply-adds by CUDA cores; 16-bit products take a tenth */
         .work_of_a_byte = 20,
         /* 16 bytes in flight for each: 96 of the 128 registers that a
            thread has with two blocks of 256 per SM */
         .max_buffers = 24,
         /* a launch may have 512 pointers */
         .max_numbers = 256,
         /* 8 elements per thread, 16 bytes of code each: 12 KB of 32 KB */
         .max_nodes = 96,
         /* the text may have 80 operations; each node has a few */
         .max_moved = 8,
         .max_padded = 64,
         .costly_parts = {16, 16}, /* the same limit of 80 operations */
         .max_copies = 16,
         .min_copied = 2, /* a number costs a launch, whatever its size */
         /* bytes bound a product of so few channels, whoever multiplies */
         .sums_depth = 512,
         .row_bytes = 16,
         .long_row = 1024,
         .large_output = 1 << 30, /* logits of 5,000 rows of GPT-2 */
         .turns_codes = true,
         .column_sums = GPU_BLOCK_SHARED - GPU_SHARED_APART,
         .rows_enough = GPU_BLOCKS,
         .rows_beside = 32,       /* lanes of a warp (schedule_cuda.c)       */
         .columns_serial = 16384, /* 64 KB: a launch                         */
         .least_share = 2048,     /* 256 threads with 8 elements each */
         .short_row = 4096,       /* three times 16 KB: as long as a launch */
         .row_held = GPU_BLOCK_SHARED - (1 << 10),
         .small_tensor = 262144, /* 1 MB: a sixth of a launch               */
         .tiny_tensor = 8192},   /* 32 KB: less than a launch               */
};

const TargetInfo *target_smallest(const Graph *g, const Options *opt,
                                  Arena *a) {
    int64_t less = GPU_BLOCK_SHARED - gpu_block_shared(opt);
    if (g->target != TARGET_CUDA || !less) return target_of(g);
    TargetInfo *t = arena_dup(a, target_of(g), sizeof *t);
    t->column_sums -= less;
    t->row_held -= less;
    return t;
}

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
