/* SPDX-License-Identifier: Apache-2.0 */
/* scaling.h: predicts how a training step scales over ranks.

   A rank's program micro is walked step by step. Each step takes its predicted
   time (roofline.h, H100) or, if the milliseconds of a whole step were
   measured, its share of them. The sum of a bucket can begin when the step that
   computes its last gradient ends; buckets are summed one after the other,
   concurrently with backward on a GPU, in a thread on a CPU; sums of statistics
   over ranks block.  Program update begins when all sums are complete. So a
   step of N ranks takes

     max(end of micro, end of the last sum) + update

   and the efficiency is the time of a step on one rank divided by that, with
   equally many samples per rank.  A sum of B bytes over M machines of G ranks
   takes

     2 (G-1) a + 2 (G-1)/G B/b        inside a machine: a ring
   + the less of, between machines,
     2 (M-1) A + 2 (M-1)/M B/C        a ring
     2 log2(M) A + 2 B/C              a double binary tree

   with latencies a, A and bandwidths b, C of a machine (Hockney's model).  With
   --shard-optimizer each rank has 1/N of the steps of update that ranks share,
   and afterwards the ranks exchange the updated parts: this takes half of the
   time of a ring sum, as do gradients of which each rank needs only a part of
   the sum (their norms are sums over ranks in update). Rings: Patarasuk and
   Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
   2009.  Trees: Sanders, Speck and Traff, "Two-tree algorithms for full
   bandwidth broadcast, reduction and scan", 2009.

   Links (`--link`): nvlink, one machine whatever its size, 450 GB/s each way of
   a fourth-generation NVLink; infiniband, machines of 8 with 400 Gbit/s each;
   ethernet, machines of 8 that share 100 Gbit/s.  80 % of a data sheet's
   bandwidth are counted, and latencies of 3, 5 and 30 us: estimates.
   Another link is written MICROSECONDS,GB/S; each of its machines has one
   rank. */
#ifndef AMPC_FRONTEND_DRIVER_SCALING_H
#define AMPC_FRONTEND_DRIVER_SCALING_H

#include "ir/base/base.h"

typedef struct Scaling {
    const char *world, *link, *step_ms; /* as given; NULL: not */
    bool json;
} Scaling;

/* Predicts for 2, 4, 8 .. world ranks, from section "cost" of a module.
   ERR_USAGE: an
   option's text is wrong.                                                    */
Status scaling_put(Diag *d, const char *cost, const Scaling *how, StrBuf *sb);

#endif
