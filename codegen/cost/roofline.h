/* SPDX-License-Identifier: Apache-2.0 */
/* roofline.h: predicts the time of a training step on a machine.

   The input is the numbers of cost.h. A machine is a row of data-sheet numbers
   and of the shares of them that such code reaches.  A GPU's launch takes

     launches + the largest of
       memory   bytes / (0.80 bandwidth)
       cache    l2 / (bandwidth of the second-level cache)
       waiting  reads * latency / (threads that run at once * in_flight):
                Little's law; threads at once follow from registers and shared
                memory (32 registers where they are not known)
       tensor   mma / (0.72 peak * rate * share of the last wave of tiles)
       issue    insts / (0.65 * 4 * 32 a clock and SM), the share of busy SMs

   and a CPU's step the largest of bytes / bandwidth, mma / (0.8 peak) and insts
   / (a quarter of the peak), all measured on this machine when the report is
   requested. `% roof` is the ratio of the time that the data sheet alone would
   allow for bytes and FLOPs to the predicted time; MFU is the same ratio for
   the FLOPs of a step.

   Data sheets: NVIDIA H100 (SXM5: 132 SMs, 1.98 GHz boost, 3.35 TB/s, 989
   TFLOP/s dense bf16, 67 fp32, 50 MB of L2), H200 (SXM: 4.8 TB/s, else as the
   H100), A100 (SXM4 80 GB: 108 SMs, 1.41 GHz, 2.04 TB/s, 312 and 19.5 TFLOP/s,
   40 MB).  Shares: a copy reaches 3.0 of 3.35 TB/s and products of 8192 cubed
   798 of 989 TFLOP/s (amp's notes); a step mixes shapes, hence 0.80 and 0.72.
   Latency (650 to 700 ns loaded) and the 0.65 are estimates, as are the
   bandwidths of L2.  Nothing here was measured on a GPU.                     */
#ifndef AMPC_FRONTEND_DRIVER_ROOFLINE_H
#define AMPC_FRONTEND_DRIVER_ROOFLINE_H

#include "ir/base/base.h"

/* Prices section "cost" of a module: every launch (JSON), or equal ones as one
   line, most costly first, for programs that train or, where there are none,
   the one that predicts; totals.                                            */
void roofline_put(Arena *a, const char *cost, bool json, StrBuf *sb);

/* This machine, as its CPUs are (peaks.c). */
typedef struct CpuPeaks {
    int threads;
    double flops, bytes; /* a second, of all threads                         */
} CpuPeaks;
CpuPeaks cpu_peaks(void);

struct StepCost;
/* Predicted for CPUs, or, NULL, for an H100. */
double roofline_seconds(const struct StepCost *c, const CpuPeaks *cpu);

#endif
