/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h: for verify_test.c and the files of folder verify. */
#ifndef AMPC_TESTS_IR_VERIFY_VERIFY_H
#define AMPC_TESTS_IR_VERIFY_VERIFY_H

#include "ir/ir.h"

typedef struct Fixture {
    Arena *a;
    Module *m;
    Graph *g;
    Diag d;
} Fixture;

extern const char verify_base[];

Fixture verify_load(const char *text);
Node *verify_node(const Fixture *f, const char *name);
void verify_drop(Fixture *f);
void verify_refused(Fixture *f, const char *want);

#endif
