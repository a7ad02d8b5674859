/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_util.h: ONNX models in tests: evaluated by the interpreter, compared
   with expected tensors, edited as messages.                                */
#ifndef AMPC_TESTS_SUPPORT_ONNX_UTIL_H
#define AMPC_TESTS_SUPPORT_ONNX_UTIL_H

#include "frontend/frontend.h"
#include "ir/eval/evaluate.h"
#include "onnx.pb-c.h"

/* A tensor of an expectation file: "KIND NAME DTYPE RANK DIMS... VALUES...",
   one a line; KIND is input, output or buffer. */
typedef struct Expected {
    Str kind, name;
    EvalTensor *t;
} Expected;

typedef struct ExpectedList {
    VEC(Expected) list;
} ExpectedList;

bool expected_read(Arena *a, const char *path, ExpectedList *out);
const EvalTensor *expected_find(const ExpectedList *e, const char *kind,
                                const char *name);

/* Describes a position where two tensors differ by more than atol + rtol
   |want| (NaN equals only NaN, integers must be exact); NULL if they agree.
   Shapes must be equal, dtypes only if `strict`. */
const char *tensor_differs(Arena *a, const EvalTensor *got,
                           const EvalTensor *want, double rtol, double atol,
                           bool strict);

/* Options of an inference import: no loss, batch norm as exported. */
void options_inference(Options *o, Arena *a);

/* A graph input by name, NO_VALUE if absent. */
ValueId graph_input_named(const Graph *g, const char *name);

/* NULL if absent. */
const Var *var_named(const Module *m, const char *name);
int count_kind(const Module *m, VarKind kind);

/* ---- models made in C ---------------------------------------------------- */

typedef struct Made {
    Arena *a;
    Onnx__ModelProto model;
    Onnx__GraphProto graph;
    Onnx__OperatorSetIdProto opset;
    Diag d;
    Options opt; /* with a loss, so that parameters train */
} Made;

/* A model of opset `version`; freed by made_end. */
void made_start(Made *m, int version);
void made_end(Made *m);
/* dims: "4,batch,?" -- a number, a dim_param, nothing. */
void made_input(Made *m, const char *name, DType d, const char *dims);
void made_output(Made *m, const char *name);
/* Operand and result names are comma-separated; empty means absent. */
Onnx__NodeProto *made_node(Made *m, const char *op, const char *in,
                           const char *out);
void made_int(Made *m, Onnx__NodeProto *n, const char *name, int64_t v);
void made_ints(Made *m, Onnx__NodeProto *n, const char *name, int count,
               const int64_t *v);
void made_float(Made *m, Onnx__NodeProto *n, const char *name, float v);
void made_str(Made *m, Onnx__NodeProto *n, const char *name, const char *v);
Onnx__AttributeProto *made_attr(Made *m, Onnx__NodeProto *n, const char *name,
                                int type);
/* Initializers; f32 values count up from `first` by 0.25. */
Onnx__TensorProto *made_f32(Made *m, const char *name, const char *dims,
                            float first);
Onnx__TensorProto *made_i64(Made *m, const char *name, int count,
                            const int64_t *v);
/* Marks an initializer as the dynamo exporter does. */
void made_mark(Made *m, const char *name, const char *key, const char *value);
void made_metadata(Made *m, Onnx__StringStringEntryProto ***list, size_t *n,
                   const char *key, const char *value);
char *made_text(Made *m, const char *s);
/* Whole models: relu(x), with x of those dims; and (x W + b + val_7) ^ half,
   with its parameters named as exporters do. */
void made_relu(Made *m, const char *dims);
void made_linear(Made *m);
/* NULL if refused; the message is m->d.text. */
Module *made_import(Made *m);
const char *made_message(const Made *m);

/* Packs a message; *n = its size; for free(). */
uint8_t *model_pack(const Onnx__ModelProto *m, size_t *n);

/* ---- what trains (onnx_rules_test.c) ------------------------------------- */

void made_by(Made *m, const char *by); /* the producer's name */
/* Adds tensors of 0.5 and more, "name dims; .."; a number has the dims "-". */
void made_weights(Made *m, const char *rows);
/* Adds nodes, "Op inputs output; .."; y is the model's output. */
void made_nodes(Made *m, const char *rows);

typedef enum Becomes { TRAINS, FROZEN, CONSTANT } Becomes;
void made_becomes(Made *m, const char *name, Becomes want, const char *why);

#endif
