/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: small models, one per row, that are imported or refused. */
#ifndef AMPC_TESTS_FRONTEND_ONNX_BOUNDS_ROWS_H
#define AMPC_TESTS_FRONTEND_ONNX_BOUNDS_ROWS_H

#include <stddef.h>

#include "tests/harness.h"

/* operands: a, b, c .. in order: f32[2,3] is an input, i64{1,2} a known
   list, i64:1 a known number, i4 and u4 known alone. nodes:
   OP(operands)>results attributes, terminated by ';'; attributes are 1, 1.5,
   [1,2], 'text', ('text','text') or a body, {operands|nodes|results}. want: the
   type of y after '=', possibly with its values, where operand i has 100 i, 100
   i + 1, ..; else a part of the message. */
typedef struct Row {
    int version;
    const char *operands, *nodes, *want;
} Row;

void check_row(const Row *r);

#define CHECK_ROWS(rows)                                                       \
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)              \
    check_row(&rows[row])

#define MOST "9223372036854775807"

#endif
