/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_run.h: data-parallel training with threads as ranks and the host's
   own communicator. */
#ifndef AMPC_TESTS_WHOLE_RANKS_RANKS_RUN_H
#define AMPC_TESTS_WHOLE_RANKS_RANKS_RUN_H

#include "tests/support/on_device.h"
#include "tests/support/ranks.h"

enum {
    STEPS = 20,
    INPUTS = 4,
    PARTS = 4,
    ALL_KINDS = 1 << AMPC_KIND_PARAMETER | 1 << AMPC_KIND_STATE
};

typedef struct Batch {
    ampc_input in[INPUTS];
    size_t n;
} Batch;

/* Micro-batch `index` of an endless stream, or `parts` of them concatenated:
   numbers in -1..1, classes 0..4. */
Batch batch_new(const ampc_api *api, int64_t index, int parts);
void batch_free(Batch *b);

/* A run of some ranks; the state of each at the end. */
typedef struct Run {
    const Compiled *of[RANKS_MOST];
    Ranks ranks;
    int steps;
    int64_t from; /* first micro-batch */
    /* Called before a step; may change its input. */
    void (*spoil)(int rank, int step, Batch *b);
    const char *load[RANKS_MOST], *save; /* NULL: none */
    int nameless;    /* rank that saves without a path; 0: none */
    int starved;     /* rank that runs out of memory; 0: none .. */
    int refused;     /* .. and the number of the allocation at open */
    int fail_in;     /* as in Ranks */
    bool once;       /* as in Ranks */
    bool no_scatter; /* the host's table lacks it */
    size_t table;    /* bytes of the host's table; 0: the size of ampc_comm */
    int parts;       /* number of parts in a batch, as on the other ranks; 0:
                        one */
    unsigned kinds;  /* kinds of variables that are compared; 0: all */
    struct Asked {
        size_t bytes; /* bytes of all allocations at open */
        int calls, refuse;
        int64_t held; /* bytes that were not freed */
    } asked[RANKS_MOST];
    const char *device; /* NULL: "cpu" */
    int sums[2];        /* sums reported in profiles: during backward, later;
                           -1: no profile */
    ampc_status status[RANKS_MOST];
    char error[RANKS_MOST][256];
    ampc_metrics metrics[RANKS_MOST][STEPS];
    void *state[RANKS_MOST];
    size_t bytes[RANKS_MOST];
} Run;

Run *run_new(const Compiled *c);
void run(Run *r, int world);
/* .. and all ranks succeed. */
void run_ok(Run *r, int world);
Run *run_ranks(const Compiled *c, int world,
               void (*spoil)(int rank, int step, Batch *b));
void run_free(Run *r);

/* Memory of a host's table belongs to the host. */
void cut(ampc_comm *c, size_t size);

/* Compares every rank of `got` with the one of `want`. */
void check_same(const Run *got, const Run *want);

#define SMALL "--precision fp32 --optimizer adamw,lr=0.01 "

Compiled compile_for(const char *model, const char *options, int accumulate);

#endif
