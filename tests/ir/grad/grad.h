/* SPDX-License-Identifier: Apache-2.0 */
/* grad.h: for grad_test.c and the files of folder grad. */
#ifndef AMPC_TESTS_IR_GRAD_GRAD_H
#define AMPC_TESTS_IR_GRAD_GRAD_H

#include "ir/eval/evaluate.h"
#include "passes/passes.h"

/* Magnitudes of 0.3 .. 1.5, with random signs except for POSITIVE; UNIT:
   times 0.6; ABOVE_1: larger by 1, without signs. */
typedef enum Range { SIGNED, POSITIVE, UNIT, ABOVE_1, NRANGE } Range;

typedef struct GradCase {
    const char *name;
    Range range;
    const char *inputs, *body, *results;
} GradCase;

const char *grad_format(const char *fmt, ...);
const char *grad_replace(Arena *a, const char *s, const char *from,
                         const char *to);
Module *parse_text(Arena *a, const char *text);

enum { MOST_WANTED = 24 };

/* One graph under test: forward as parsed, and full, with the gradient
   appended. */
typedef struct Trial {
    Arena *a;
    const GradCase *c;
    Graph *g;
    ValueId want[MOST_WANTED], grads[MOST_WANTED];
    int n;
} Trial;

bool is_float(const Graph *g, ValueId v);

/* Sums <value, fresh random input> over the values */
ValueId weighed_sum(Graph *g, const ValueId *v, int n);

/* squares: and the squares, so that the slope is not constant */
ValueId results_sum(Graph *g, bool squares);

Trial grad_trial(Arena *a, const GradCase *c, const char *dtype);
void grad_differentiate(Trial *t, ValueId loss);
uint32_t next_random(uint32_t *s);
Evaluator *grad_evaluator(const Trial *t, const Graph *g);
double value_of(Evaluator *e, ValueId v);

/* A gradient requested alone equals the one computed together with all
   others. given: an evaluator of t->g with its inputs. */
void compare_alone(const Trial *t, const Graph *fwd, ValueId loss,
                   Evaluator *given);

PassCtx pass_context(Arena *a, Diag *d);
Graph *train_graph(Arena *a, const char *text);

#endif
