/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h: draws the next token from a language model's logits. */
#ifndef AMPC_FRONTEND_RUN_SAMPLE_H
#define AMPC_FRONTEND_RUN_SAMPLE_H

#include "ir/base/base.h"

/* As `ampc run --sample` has it. */
typedef struct Sampling {
    int64_t tokens;     /* to generate */
    double temperature; /* logits are divided by it; 0: the largest wins */
    int64_t top_k;      /* only the K largest; 0: all */
    double top_p;       /* only the largest that have this probability */
    int64_t seed;       /* -1: the module's */
    const char *vocabulary, *output; /* NULL: not given */
} Sampling;

/* "KEY=VALUE,..", or NULL; texts are kept in the arena. */
Status sampling_read(Arena *a, Diag *d, const char *text, Sampling *s);

/* The token that u of [0, 1) draws, of n finite logits; equal ones in the order
   of their numbers. `order` has room for n. */
int64_t sampling_pick(const Sampling *s, const double *logits, int64_t n,
                      double u, int64_t *order);

#endif
