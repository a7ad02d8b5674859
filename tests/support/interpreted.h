/* SPDX-License-Identifier: Apache-2.0 */
/* interpreted.h: the programs of a module, or of a model that need not be
   compiled, in the form common to all targets, executed by the interpreter,
   with their shared variables. */
#ifndef AMPC_TESTS_SUPPORT_INTERPRETED_H
#define AMPC_TESTS_SUPPORT_INTERPRETED_H

#include "ir/eval/evaluate.h"
#include "ir/ir.h"
#include "tests/support/compiled.h"

typedef struct Interpreted {
    Arena *a;
    Module *m;
    EvalMode mode;
    EvalTensor **var;          /* by position in the module's list */
    const EvalTensor **output; /* outputs of the last program run */
    Graph *ran;
    Arena *scratch; /* which output is in */
} Interpreted;

/* The module in that file, from its initial weights. */
Interpreted interpreted_new(const char *path, EvalMode mode);
/* An ONNX file with these options of `ampc`, separated by blanks. */
Interpreted interpreted_onnx(const char *path, const char *options,
                             EvalMode mode);
/* Inputs of f32 and i64 numbers, by name. */
void interpreted_run(Interpreted *x, const char *program, const ampc_input *in,
                     int nin);
/* An output of the program that ran last; the first element of it. */
const EvalTensor *interpreted_result(const Interpreted *x, const char *name);
double interpreted_output(const Interpreted *x, const char *name);
/* NULL: unknown name. */
const Var *interpreted_find(const Interpreted *x, const char *name);
const EvalTensor *interpreted_var(const Interpreted *x, const char *name);
void interpreted_free(Interpreted *x);

#endif
