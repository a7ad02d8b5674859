/* SPDX-License-Identifier: Apache-2.0 */
/* fixture.h: for ir_test.c and the files of folder ir. */
#ifndef AMPC_TESTS_IR_IR_FIXTURE_H
#define AMPC_TESTS_IR_IR_FIXTURE_H

#include "ir/ir.h"

TypeId ir_make(DType d, int rank, int64_t a, int64_t b, int64_t c);

typedef struct Fixture {
    Arena *a;
    Module *m;
    Graph *g;
    Builder b;
    ValueId x; /* f32[4,3] */
} Fixture;

Fixture ir_start(void);
const char *name_of(const Fixture *f, ValueId v);

#endif
