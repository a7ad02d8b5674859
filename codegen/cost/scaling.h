/* SPDX-License-Identifier: Apache-2.0 */
/* scaling.h: how a training step should scale over ranks, predicted.

   A rank's program micro is walked step by step, each at its price
   (roofline.h, H100) or, where a step's milliseconds were measured, at its
   share of these.  A bucket of gradients can be summed from the end of the step
   that makes its last; buckets follow each other, beside backward on a GPU, in
   a thread on a CPU; statistics over ranks are waited for.  Program update
   begins when all are summed.  So a step of N ranks takes

     max(end of micro, end of the last sum) + update

   and the efficiency is the step of one rank over it, each rank having as many
   samples as the one.  A sum of B bytes over M machines of G ranks takes

     2 (G-1) a + 2 (G-1)/G B/b        inside a machine: a ring
   + the less of, between machines,
     2 (M-1) A + 2 (M-1)/M B/C        a ring
     2 log2(M) A + 2 B/C              a double binary tree

   with latencies a, A and bandwidths b, C of a machine (Hockney's model).  With
   --shard-optimizer each rank has 1/N of the steps of update that ranks share,
   and what they hand out follows: half of what rings take for a sum, as do
   gradients of which each rank needs a part of the sum (their norms are sums
   over ranks in update).
   Rings: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
   clusters of workstations", 2009.  Trees: Sanders, Speck and Traff, "Two-tree
   algorithms for full bandwidth broadcast, reduction and scan", 2009.

   Links (`--link`): nvlink, one machine whatever its size, 450 GB/s each way of
   a fourth-generation NVLink; infiniband, machines of 8 with 400 Gbit/s each;
   ethernet, machines of 8 that share 100 Gbit/s.  80 % of a data sheet's
   bandwidth are counted, and latencies of 3, 5 and 30 us: estimates.  Another
   link is MICROSECONDS,GB/S, of machines of one rank.                        */
#ifndef AMPC_FRONTEND_DRIVER_SCALING_H
#define AMPC_FRONTEND_DRIVER_SCALING_H

#include "ir/base/base.h"

typedef struct Scaling {
    const char *world, *link, *step_ms; /* as given; NULL: not */
    bool json;
} Scaling;

/* 2, 4, 8 .. world ranks, from section "cost" of a module.  ERR_USAGE: an
   option's text is wrong.                                                    */
Status scaling_put(Diag *d, const char *cost, const Scaling *how, StrBuf *sb);

#endif
