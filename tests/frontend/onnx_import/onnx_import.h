/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_import.h: for onnx_import_test.c and the files of folder onnx_import. */
#ifndef AMPC_TESTS_FRONTEND_ONNX_IMPORT_ONNX_IMPORT_H
#define AMPC_TESTS_FRONTEND_ONNX_IMPORT_ONNX_IMPORT_H

#include "tests/support/onnx_util.h"

Onnx__NodeProto *bn_model(Made *m, const char *operands);
const Node *find_node(const Module *mod, OpCode op);
const Node *find_call(const Module *mod, const char *fn);

#endif
