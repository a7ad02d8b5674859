/* SPDX-License-Identifier: Apache-2.0 */
/* interpreted.h: the programs of a module as they are before each target has
   its own, executed by the interpreter, with the variables that they share. */
#ifndef AMPC_TESTS_SUPPORT_INTERPRETED_H
#define AMPC_TESTS_SUPPORT_INTERPRETED_H

#include "ir/ir.h"
#include "tests/support/compiled.h"

typedef struct Interpreted {
    Arena *a;
    Module *m;
    EvalMode mode;
    EvalTensor **var;          /* by position in the module's list */
    const EvalTensor **output; /* outputs of the program that ran last */
    Graph *ran;
    Arena *scratch; /* which output is in */
} Interpreted;

/* The module in that file, from its initial weights. */
Interpreted interpreted_new(const char *path, EvalMode mode);
/* Inputs of floats in f32 and of i64, by name. */
void interpreted_run(Interpreted *x, const char *program, const ampc_input *in,
                     int nin);
double interpreted_output(const Interpreted *x, const char *name);
const EvalTensor *interpreted_var(const Interpreted *x, const char *name);
void interpreted_free(Interpreted *x);

#endif
