/* SPDX-License-Identifier: Apache-2.0 */
/* eval.h: for eval_test.c and the files of folder eval. */
#ifndef AMPC_TESTS_IR_EVAL_EVAL_H
#define AMPC_TESTS_IR_EVAL_EVAL_H

#include "ir/eval/evaluate.h"
#include "ir/ir.h"

Graph *eval_parse(Arena *a, const char *text);

/* Runs the graph; its concatenated outputs must be want[0..n). */
void expect_at(const char *file, int line, EvalMode mode, const char *text,
               int n, const double *want);

#define COUNT(...) (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double))
#define EXPECT(text, ...)                                                      \
    expect_at(__FILE__, __LINE__, EVAL_EXACT, text, COUNT(__VA_ARGS__),        \
              (double[]){__VA_ARGS__})
#define EXPECT_STORED(text, ...)                                               \
    expect_at(__FILE__, __LINE__, EVAL_STORAGE, text, COUNT(__VA_ARGS__),      \
              (double[]){__VA_ARGS__})

#endif
