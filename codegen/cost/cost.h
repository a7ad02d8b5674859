/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: the work of a plan's steps in numbers that do not depend on a
   machine.

   One line of text a step, after a line that names the fields; a module carries
   them as section "cost", and `ampc inspect --roofline` prices them
   (codegen/cost/roofline.c).  Counts are exact where shapes decide them, and
   estimates where the compilers do (insts, in_flight). */
#ifndef AMPC_CODEGEN_MODULE_COST_H
#define AMPC_CODEGEN_MODULE_COST_H

#include "codegen/emit.h"

/* FIELD(name): numbers of one step.
     mma        FLOPs of a product or convolution, 2 for each multiply-add
     bits       bits of the wider factor of those: 8, 16, 19 (TF32), 32, 64; 0:
                none
     rate       percent of the peak of mma.sync, or of fp32 multiply-adds, that
                the kernel reaches by published or counted figures; 0: the
                other fields say it
     bytes      of memory: every operand and result once, and once more for each
                later sweep over rows that no cache keeps
     reads      bytes of memory that a thread waits for
     l2         bytes through the second-level cache: 32 for each group of
                neighbouring threads' elements that lie together, every sweep
     insts      instructions of all threads (GPU), scalar operations (CPU)
     blocks, threads, registers (0: not known), shared
     in_flight  bytes that one thread asks for before it waits, of sweeps that
                differ as many as give the same time
     launches   one after the other
     rows, cols, depth, products   of a library product; else 0
     odd        1: a row of one of its operands begins at no multiple of 16
                bytes
     since      not 0: only GPUs of that compute capability, times 10, and newer
                ones run the step; below 0: only older ones
     wavefronts of accesses to shared and global memory that tensor cores'
                tiles take, 128 bytes each                                    */
#define COST_FIELDS(FIELD)                                                     \
    FIELD(mma)                                                                 \
    FIELD(bits)                                                                \
    FIELD(rate)                                                                \
    FIELD(bytes)                                                               \
    FIELD(reads)                                                               \
    FIELD(l2)                                                                  \
    FIELD(insts)                                                               \
    FIELD(blocks)                                                              \
    FIELD(threads)                                                             \
    FIELD(registers)                                                           \
    FIELD(shared)                                                              \
    FIELD(in_flight)                                                           \
    FIELD(launches)                                                            \
    FIELD(rows)                                                                \
    FIELD(cols)                                                                \
    FIELD(depth)                                                               \
    FIELD(products)                                                            \
    FIELD(odd)                                                                 \
    FIELD(since)                                                               \
    FIELD(wavefronts)

typedef struct StepCost {
    char target[8], program[16], how[16], name[64];
#define FIELD(f) double f;
    COST_FIELDS(FIELD)
#undef FIELD
} StepCost;

/* All steps of all programs; what a CUDA Tile kernel does ("tile") instead of
   the steps that it replaces; what cuBLASLt does with GELU ("gelu"), and the
   steps of older GPUs. "sum" and "sum_now" are sums over ranks.
   "scatter" precedes a sum that is split among the ranks; its bytes count
   only these gradients. "hand_out" follows a step that ranks share
   (--shard-optimizer); its bytes are exchanged by all ranks afterwards. */
void cost_put(const PlanSource *src, StrBuf *sb);
/* FLOPs of a step's matrix product or convolution; 0 for other steps. */
double cost_flops(const EmitStep *e);
/* Reads the next line; false at the end. Advances *at. */
bool cost_next(const char **at, StepCost *out);

#endif
