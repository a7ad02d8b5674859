/* onnx_util.h: ONNX models in tests: evaluated by the interpreter, compared
   with expected tensors, edited as messages.                                */
#ifndef AMPC_TESTS_ONNX_UTIL_H
#define AMPC_TESTS_ONNX_UTIL_H

#include "frontend/frontend.h"
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

/* Where two tensors differ beyond atol + rtol*|want| (NaN equals NaN only,
   integers exactly), as text; NULL when they agree.  Types must be equal,
   dtypes only when `strict`. */
const char *tensor_differs(Arena *a, const EvalTensor *got,
                           const EvalTensor *want, double rtol, double atol,
                           bool strict);

/* Options of an inference import: no loss, batch norm as exported. */
void options_inference(Options *o, Arena *a);

/* A graph input by name, NO_VALUE if absent. */
ValueId graph_input_named(const Graph *g, const char *name);

/* Packs a message; *n = its size; for free(). */
uint8_t *model_pack(const Onnx__ModelProto *m, size_t *n);

#endif
