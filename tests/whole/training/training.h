/* SPDX-License-Identifier: Apache-2.0 */
/* training.h: for training_test.c and the files of folder training. */
#ifndef AMPC_TESTS_WHOLE_TRAINING_TRAINING_H
#define AMPC_TESTS_WHOLE_TRAINING_TRAINING_H

#include "tests/support/compiled.h"

enum { BATCH = 16, FEATURES = 20, CLASSES = 10 };

/* The 16-bit copies follow from the parameters, at the next step at the
   latest. */
#define STATE_KINDS                                                            \
    (1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_BUFFER | 1u << AMPC_KIND_STATE)

typedef struct Batch {
    float x[BATCH * FEATURES];
    int64_t t[BATCH];
    ampc_input in[2];
} Batch;

float training_noise(uint64_t *state);
void batch_fill(Batch *b, uint64_t seed, float scale);
const char *training_mlp(void);

#endif
