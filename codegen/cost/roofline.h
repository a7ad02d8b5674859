/* SPDX-License-Identifier: Apache-2.0 */
/* roofline.h: predicts the time of a training step on a machine.

   The input is the numbers of cost.h.  A machine is a row of data-sheet numbers
   (runtime/cuda/gpus.def); rates.def holds the shares that code like ours
   reaches: likely, worst and best, each with its source. A GPU's launch takes

     launches + the largest of
       memory   bytes / bandwidth
       cache    l2 / bandwidth of the second-level cache
       waiting  reads * latency / (threads that run at once * in_flight):
                Little's law; threads at once follow from registers and shared
                memory (32 registers where they are not known)
       tensor   a library product: as the best of several tiles does it, which
                differ in speed, in elements past the edge, in the share of the
                last wave and in parts of the sum; odd rows have a speed of
                their own.  A kernel of this compiler: mma / (the peak of
                mma.sync * rate * share of the last wave of tiles)
       shared   wavefronts, one a clock and multiprocessor, less where few
                blocks are resident
       issue    insts / (4 * 32 a clock and multiprocessor), the share of busy
                ones

   and a CPU's step the largest of bytes / bandwidth, mma / (0.8 peak) and insts
   / (a quarter of the peak), all measured on this machine when the report is
   requested. `% roof` is the ratio of the time that the data sheet alone would
   allow for bytes and FLOPs to the predicted time; MFU is the same ratio for
   the FLOPs of a step.  The floor of a plan is the sum over its launches of the
   time of a best product or a best copy, whichever is longer.  The ends of a
   range are sums of the launches' ends, as if every launch went well, or every
   launch badly. Nothing here was
   measured with code of this compiler on a GPU.                              */
#ifndef AMPC_FRONTEND_DRIVER_ROOFLINE_H
#define AMPC_FRONTEND_DRIVER_ROOFLINE_H

#include "ir/base/base.h"

/* Prices section "cost" of a module: every launch (JSON), or equal ones as one
   line, most costly first, for programs that train or, where there are none,
   the one that predicts; totals.                                            */
void roofline_put(Arena *a, const char *cost, bool json, StrBuf *sb);

/* Describes this machine by the measured speed of its CPUs (peaks.c). */
typedef struct CpuPeaks {
    int threads;
    double flops, bytes; /* per second, all threads together */
} CpuPeaks;
CpuPeaks cpu_peaks(void);

struct StepCost;
/* The likely time: on CPUs, or for NULL on an H100. */
double roofline_seconds(const struct StepCost *c, const CpuPeaks *cpu);
/* False for a step of other GPUs than an H100 (`since` in cost.h). */
bool roofline_runs(const struct StepCost *c);

#endif
