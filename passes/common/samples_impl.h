/* SPDX-License-Identifier: Apache-2.0 */
/* samples_impl.h: shared by samples.c and samples_loss.c. */
#ifndef AMPC_PASSES_COMMON_SAMPLES_IMPL_H
#define AMPC_PASSES_COMMON_SAMPLES_IMPL_H

#include "passes/common/rows.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

typedef enum PoolKind {
    POOL_NONE,   /* it is the same for all samples */
    POOL_EACH,   /* has the axis of samples  */
    POOL_MEAN,   /* the mean over samples */
    POOL_SUM,    /* their sum */
    POOL_LABELS, /* a mean whose weights depend on the data: `share` */
    POOL_OTHER
} PoolKind;

/* How a value depends on the samples of the batch. */
typedef struct Pool {
    PoolKind kind;
    ValueId value;  /* masked; MEAN and LABELS: multiplied by the share */
    ValueId share;  /* LABELS: f32[] */
    double nominal; /* number of elements that MEAN and SUM add */
} Pool;

typedef struct Samples {
    Graph *g;
    Builder b;
    const Options *opt;
    int64_t batch;
    const Rows *rows;    /* number of values when the pass began */
    const bool *trained; /* per value: depends on a parameter */
    bool masks, fails;   /* true: masks samples; true: it cannot */
    ValueId stand_in;    /* f32[]: multiplied into losses of kind LABELS */
    ValueId valid;       /* f32[batch]: 1 for samples that count */
    ValueId part;        /* f32[]: the share of the batch that counts; 0: no
                            masks */
    Reals *nominals; /* of the objective's shares, in order; NULL: a trial */
    int shares;      /* made so far */
} Samples;

/* A value whose dependence on the samples is not known. */
static inline Pool pool_other(void) { return (Pool){.kind = POOL_OTHER}; }
/* s->valid along the axis of v, for broadcasting. */
ValueId samples_mask(Samples *s, ValueId v, Rows r);
/* True if samples of v can be masked; if any cannot, none is. */
bool samples_maskable(Samples *s, ValueId v);
/* v times a number f32[]. */
ValueId samples_times(Samples *s, ValueId v, ValueId by);
/* f32[]: the sum of all elements. */
ValueId samples_add_up(Samples *s, ValueId v);
/* The weight of `sum`: its ratio to a sum of as many ones; f32[]. */
ValueId samples_share_of(Samples *s, ValueId sum, double nominal);

/* samples_loss.c: the call of a loss, of the library or of the user. */
Pool samples_call_loss(Samples *s, NodeId id);

#endif
