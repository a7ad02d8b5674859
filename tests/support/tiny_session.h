/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_session.h: sessions of the hand-written plan of tiny_module.c. */
#ifndef AMPC_TESTS_SUPPORT_TINY_SESSION_H
#define AMPC_TESTS_SUPPORT_TINY_SESSION_H

#include "runtime/api/session.h"
#include "tests/harness.h"
#include "tests/support/tiny_module.h"

typedef struct Batch {
    float x[TINY_BATCH * TINY_IN], target[TINY_BATCH * TINY_OUT];
    ampc_input in[2];
} Batch;

/* Batch i in *b, in the form that step() takes. */
const ampc_input *batch(Batch *b, int i);

ampc_session *open_module(const AmpcModule *m, int threads);
/* Trains on n batches from `first` on; the metrics of the last step. */
ampc_metrics train(ampc_session *s, int first, int n);
void read_w(ampc_session *s, float w[6]);

#endif
