/* SPDX-License-Identifier: Apache-2.0 */
/* passed.h: runs passes over a text, evaluates the result, and checks that its
   plan keeps every value that is still read. A failure ends the test. */
#ifndef AMPC_TESTS_SUPPORT_PASSED_H
#define AMPC_TESTS_SUPPORT_PASSED_H

#include "ir/eval/evaluate.h"
#include "passes/passes.h"

Module *parsed(Arena *a, const char *text);

/* Flags: options and their values in turn; NULL ends them. */
#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL})
extern const char *const no_flags[], *const for_gpus[];
Options options_of(Arena *a, const char *const *flags);
void passed(Arena *a, Module *m, const char *passes, const char *const *flags);
void staged(Arena *a, Module *m, Stage stage, const char *const *flags);
/* From inline to memplan. */
void lowered(Arena *a, Module *m, const char *const *flags);
/* The group that computes the result of that name. */
int group_of(const Graph *g, const char *name);

/* Outputs and new values of variables, for inputs that are always the same.
 */
typedef VEC(const EvalTensor *) Results;
Results results(Arena *a, const Graph *g, EvalMode mode);
/* Within tol, relative if they are above 1. */
void expect_equal(const Results *x, const Results *y, double tol,
                  const char *what);

/* Executes the planned graph, with groups of one launch forwards and
   backwards. Every 64 bytes of the arena and every variable remember whose
   value they hold: overwriting a value that is still needed is detected
   whatever the numbers are. */
void run_in_memory(Arena *a, const Graph *g, const char *what);

#endif
