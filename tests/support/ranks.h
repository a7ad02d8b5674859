/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h: threads of the test as the ranks of one communicator, which sums
   in the order of ranks. */
#ifndef AMPC_TESTS_SUPPORT_RANKS_H
#define AMPC_TESTS_SUPPORT_RANKS_H

#include <pthread.h>
#include <stdbool.h>

#include "runtime/ampc.h"

enum { RANKS_MOST = 8 };

typedef struct Ranks {
    int world;
    ampc_comm comm[RANKS_MOST];
    int fail_in;       /* number of calls until one fails on all ranks; 0:
                          never */
    bool once;         /* the later ones do not fail */
    uint64_t cut;      /* start of rank 1's part in the last scatter */
    int calls, beside; /* calls made; sums by other threads than ranks_run's */
    /* the rest is its own */
    pthread_t thread[RANKS_MOST];
    struct RankOf {
        struct Ranks *all;
        int rank;
    } of[RANKS_MOST];
    pthread_barrier_t meet;
    void *data[RANKS_MOST];
    void *sum;
} Ranks;

void ranks_open(Ranks *r, int world);
void ranks_close(Ranks *r);

/* Runs fn(ctx, rank) on a thread for each rank; it must not use the
   harness's FAIL, SKIP and REQUIRE. */
void ranks_run(Ranks *r, void (*fn)(void *ctx, int rank), void *ctx);

#endif
