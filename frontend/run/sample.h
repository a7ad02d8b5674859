/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h: draws the next token from a language model's logits. */
#ifndef AMPC_FRONTEND_RUN_SAMPLE_H
#define AMPC_FRONTEND_RUN_SAMPLE_H

#include "ir/base/base.h"

/* The keys of `ampc run --sample`. */
typedef struct Sampling {
    int64_t tokens;     /* to generate */
    double temperature; /* logits are divided by it; 0: the largest logit
                           wins */
    int64_t top_k;      /* samples only from the K largest; 0: from all */
    double top_p;       /* samples only from the largest that together have
                           this probability */
    int64_t seed;       /* -1: the module's */
    const char *output; /* NULL: not given */
} Sampling;

/* "KEY=VALUE,..", or NULL; texts are kept in the arena. */
Status sampling_read(Arena *a, Diag *d, const char *text, Sampling *s);

/* Draws a token from n finite logits by u, uniform in [0, 1); equal logits
   are ordered by token number. `order` has room for n. */
int64_t sampling_pick(const Sampling *s, const double *logits, int64_t n,
                      double u, int64_t *order);

#endif
