/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_hostile_test.c: broken and hostile ONNX files.  Every row of the
   importer's contract has a case with its message; tests/fuzz uses damaged
   copies of good models. */
#define _GNU_SOURCE
#include "tests/frontend/onnx_hostile/onnx_hostile.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

bool hostile_refuse(Made *m, const char *why) {
    Module *mod = made_import(m);
    bool ok = CHECK(mod == NULL);
    ok = ok && CHECK_HAS(made_message(m), why);
    made_end(m);
    return ok;
}

Onnx__NodeProto *hostile_start(Made *m, const char *dims, const char *op,
                               const char *in) {
    made_start(m, 18);
    made_input(m, "x", DT_F32, dims);
    made_output(m, "y");
    return made_node(m, op, in, "y");
}
