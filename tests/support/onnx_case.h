/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_case.h: one test of the ONNX backend suites: a folder with a model,
   inputs and outputs.

   Data inputs stay graph inputs; where the op wants them at compile time (a
   shape, axes, k) a second import makes the integers and scalars among them
   constants, a third (scales, regions) all but the first; of ops whose result
   has as many elements as the data say, a fourth all.                       */
#ifndef AMPC_TESTS_SUPPORT_ONNX_CASE_H
#define AMPC_TESTS_SUPPORT_ONNX_CASE_H

#include "frontend/frontend.h"
#include "onnx.pb-c.h"

typedef struct OnnxCase {
    Arena *a;
    Diag d;
    const char *dir;
    Onnx__ModelProto *model;
    VEC(Onnx__TensorProto *) in, out;
    const Graph *g; /* as imported, once it has passed */
} OnnxCase;

/* Imports, evaluates by the interpreter and compares. NULL, or a description of
   the difference. */
const char *onnx_case_run(OnnxCase *c);
void onnx_case_free(OnnxCase *c);
/* The data of an input of c->g. */
const EvalTensor *onnx_case_input(OnnxCase *c, Str name);
/* How a result, the interpreter's or compiled code's, differs from what output
   i should be, at the tolerance of the reference runner, integers exactly, NaN
   equal to NaN only; NULL when it does not. */
const char *onnx_case_differs(OnnxCase *c, int i, const EvalTensor *got);

/* ---- the suites ---------------------------------------------------------- */

/* Names KIND/CASE of the folders in ROOT/KIND, sorted. */
const char *const *onnx_case_names(Arena *a, const char *root, const char *kind,
                                   int *n);
/* Why tests/onnx/conformance.skip leaves the case out; NULL: it does not. */
const char *onnx_case_out_of_scope(const char *set, const char *name);
/* The first op of the model that is not imported at all, or NULL. */
const char *onnx_case_unknown_op(const OnnxCase *c);
/* Whether the model is a case of its own: it is in scope, and all of its ops
   are imported. The others are rows of onnx_nodes_test's table. */
bool onnx_case_counts(const char *set, const char *name, const char *dir);

#endif
