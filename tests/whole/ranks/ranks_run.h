/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_run.h: data-parallel training, threads as ranks over a host's own
   communicator. */
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

/* Micro-batch `index` of an endless stream, or `parts` of them, one behind the
   other: numbers in -1..1, classes 0..4.                                    */
Batch batch_new(const ampc_api *api, int64_t index, int parts);
void batch_free(Batch *b);

/* A run of some ranks; what each has at the end. */
typedef struct Run {
    const Compiled *of[RANKS_MOST];
    Ranks ranks;
    int steps;
    int64_t from; /* micro-batch to begin with */
    /* Called before a step; may change its input. */
    void (*spoil)(int rank, int step, Batch *b);
    const char *load[RANKS_MOST], *save; /* NULL: none */
    int nameless;    /* rank that saves without a path; 0: none */
    int starved;     /* rank that lacks memory; 0: none .. */
    int refused;     /* .. for which of its allocations at open */
    int fail_in;     /* as in Ranks */
    bool once;       /* as in Ranks */
    bool no_scatter; /* the host's table has none */
    size_t table;   /* bytes of the host's table; 0: as many as ampc_comm has */
    int parts;      /* parts that form a batch, as in the other ranks; 0: one */
    unsigned kinds; /* kinds of variables that are compared; 0: all */
    struct Asked {
        size_t bytes; /* bytes of all allocations at open */
        int calls, refuse;
        int64_t held; /* bytes that nobody gave back */
    } asked[RANKS_MOST];
    const char *device; /* NULL: "cpu" */
    int sums[2];        /* told in profiles: beside backward, later; -1:
                           nobody asks */
    ampc_status status[RANKS_MOST];
    char error[RANKS_MOST][256];
    ampc_metrics metrics[RANKS_MOST][STEPS];
    void *state[RANKS_MOST];
    size_t bytes[RANKS_MOST];
} Run;

Run *run_new(const Compiled *c);
void run(Run *r, int world);
/* .. and all ranks end well. */
void run_ok(Run *r, int world);
Run *run_ranks(const Compiled *c, int world,
               void (*spoil)(int rank, int step, Batch *b));
void run_free(Run *r);

/* Memory behind a host's table belongs to the host. */
void cut(ampc_comm *c, size_t size);

/* Every rank of `got` as the one of `want`. */
void check_same(const Run *got, const Run *want);

#define SMALL "--precision fp32 --optimizer adamw,lr=0.01 "

Compiled compile_for(const char *model, const char *options, int accumulate);

#endif
