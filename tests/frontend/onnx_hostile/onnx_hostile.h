/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_hostile.h: for onnx_hostile_test.c and the files of folder onnx_hostile.
 */
#ifndef AMPC_TESTS_FRONTEND_ONNX_HOSTILE_ONNX_HOSTILE_H
#define AMPC_TESTS_FRONTEND_ONNX_HOSTILE_ONNX_HOSTILE_H

#include "tests/support/onnx_util.h"

bool hostile_refuse(Made *m, const char *why);

/* x: f32[dims] -> op -> y */
Onnx__NodeProto *hostile_start(Made *m, const char *dims, const char *op,
                               const char *in);

Onnx__TensorProto *with_weight(Made *m, const char *dims);

#endif
