/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_case.h: one test of the ONNX backend suites: a folder with a model,
   inputs and outputs.

   Data inputs stay graph inputs. If the op needs some at compile time (a
   shape, axes, k), a second import makes their integers and scalars
   constants, a third (scales, regions) all but the first; for ops whose
   result has as many elements as the data say, a fourth makes all constants. */
#ifndef AMPC_TESTS_SUPPORT_ONNX_CASE_H
#define AMPC_TESTS_SUPPORT_ONNX_CASE_H

#include "frontend/frontend.h"
#include "ir/eval/evaluate.h"
#include "onnx.pb-c.h"

typedef struct OnnxCase {
    Arena *a;
    Diag d;
    const char *dir;
    Onnx__ModelProto *model;
    VEC(Onnx__TensorProto *) in, out;
    const Graph *g; /* as imported, after it has passed */
} OnnxCase;

/* Imports, evaluates by the interpreter and compares. NULL, or a description of
   the difference. */
const char *onnx_case_run(OnnxCase *c);
void onnx_case_free(OnnxCase *c);
/* The data of an input of c->g. */
const EvalTensor *onnx_case_input(OnnxCase *c, Str name);
/* The difference of a result (the interpreter's or compiled code's) from the
   expected output i, with the tolerance of the reference runner; integers
   must be exact, and NaN equals only NaN; NULL if there is none. */
const char *onnx_case_differs(OnnxCase *c, int i, const EvalTensor *got);
/* The output that counts the rows of output i; -1: none, they are all. */
int onnx_case_rows(const OnnxCase *c, const Graph *g, int i);
/* The first n rows of a result, if the expected output i has as many. */
const EvalTensor *onnx_case_counted(OnnxCase *c, int i, const EvalTensor *got,
                                    int64_t n);

/* ---- the suites ---------------------------------------------------------- */

/* Names KIND/CASE of the folders in ROOT/KIND, sorted. */
const char *const *onnx_case_names(Arena *a, const char *root, const char *kind,
                                   int *n);
/* Why tests/onnx/conformance.skip excludes the case; NULL: it does not. */
const char *onnx_case_out_of_scope(const char *set, const char *name);
/* The model's first op that is not supported, or NULL. */
const char *onnx_case_unknown_op(const OnnxCase *c);
/* True if the model is a separate case: it is in scope, and all of its ops
   are supported. The others are rows of onnx_nodes_test's table. */
bool onnx_case_counts(const char *set, const char *name, const char *dir);

#endif
