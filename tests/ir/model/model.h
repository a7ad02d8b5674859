/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: for model_test.c and the files of folder model. */
#ifndef AMPC_TESTS_IR_MODEL_MODEL_H
#define AMPC_TESTS_IR_MODEL_MODEL_H

#include "ir/fn/fn.h"
#include "ir/text/text.h"

/* The graph of a text, without its first line and the module's name; or the
   messages. */
void model_expand(const char *text, const TextOptions *opt, StrBuf *out);

void check_lines(const char *file, int line, const char *text,
                 const char *want);

#define BECOMES(text, want) check_lines(__FILE__, __LINE__, (text), (want))

#define LINE(text) "model m(x: f32[2,3]) {\n  " text "\n  return y = x\n}\n"

#endif
