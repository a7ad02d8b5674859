/* SPDX-License-Identifier: Apache-2.0 */
/* samples.h: data for `ampc run`, in .npy files of the test's folder. */
#ifndef AMPC_TESTS_SUPPORT_SAMPLES_H
#define AMPC_TESTS_SUPPORT_SAMPLES_H

#include "tests/support/compiled.h"

/* Options for everything that decides a step: clipping, a schedule, and with
   the first a loss scale that overflows fp16. */
#define OVERFLOWS "--loss-scale dynamic,init=16777216,interval=4,max=1e9 "
#define FOR_MLP                                                                \
    "--clip-norm 0.3 --optimizer adamw,lr=0.01 "                               \
    "--lr-schedule cosine,warmup=3,total=20,min=0.001 "
#define FOR_CNN                                                                \
    "--clip-norm 0.5 --optimizer sgd,lr=0.05,momentum=0.9 "                    \
    "--lr-schedule step,every=3,gamma=0.7 "
#define FOR_GPT                                                                \
    "--clip-norm 1 --optimizer adamw,lr=0.003 "                                \
    "--lr-schedule linear,warmup=2,total=20,min=0 "

/* Samples [first, first + n) of an endless stream for every input of program
   micro, as NAME.PREFIX.npy: numbers in -1..1, classes 0..4.                */
void samples_write(const Compiled *c, const char *prefix, int first, int n);

/* Writes NAME.all.npy: 8 samples; the fourth has a class out of range. */
void samples_write_bad(const Compiled *c);

/* Writes NAME.all.npy: n samples; one has an infinite number. */
void samples_write_inf(const Compiled *c, int n, int where);

/* The small MLP with another number in one weight, in a file of the same
   name. */
const char *samples_other_mlp(void);

/* A model with only batch normalisation: rows of three numbers, [batch,3]. */
const char *samples_norm(void);

/* In 0..1. */
double samples_random(uint32_t *state);

/* Enough elements that ranks can share each update; the rows of the first
   parameter's gradient are longer than an update kernel's unit. The file
   always has the same name, which checkpoints contain. */
enum {
    SAMPLES_WIDE_ROW = 2048,
    SAMPLES_WIDE_SUM = 67 * SAMPLES_WIDE_ROW,
    SAMPLES_WIDE = SAMPLES_WIDE_SUM + 2048 + 2048 * 5 /* its parameters */
};
extern const char samples_wide_text[];
const char *samples_wide(void);

#endif
