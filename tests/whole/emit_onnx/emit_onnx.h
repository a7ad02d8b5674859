/* SPDX-License-Identifier: Apache-2.0 */
/* emit_onnx.h: for emit_onnx_test.c and the files of folder emit_onnx. */
#ifndef AMPC_TESTS_WHOLE_EMIT_ONNX_EMIT_ONNX_H
#define AMPC_TESTS_WHOLE_EMIT_ONNX_EMIT_ONNX_H

#include "ir/eval/evaluate.h"
#include "ir/graph/ir_impl.h"

Onnx__ModelProto *onnx_message(void);
void onnx_define(Arena *a, StrMap *names, const char *name, const char *as);

/* Imports the file that onnx_emit writes for g; returns its message if it
   refuses.
 */
Module *onnx_again(Arena *a, const Graph *g, Diag *d);

/* Number of differing elements: parts of an op are rounded to fp32, which
   may change the direction of a rounding to 16 bits. */
void onnx_compare(const char *name, const Type *t, const EvalTensor *want,
                  const EvalTensor *got, int64_t *same, int64_t *other);

#endif
