/* SPDX-License-Identifier: Apache-2.0 */
/* roundtrip.h: for roundtrip_test.c and the files of folder roundtrip. */
#ifndef AMPC_TESTS_IR_ROUNDTRIP_ROUNDTRIP_H
#define AMPC_TESTS_IR_ROUNDTRIP_ROUNDTRIP_H

#include "ir/ir.h"

typedef struct Rng {
    uint64_t s;
} Rng;

uint64_t roundtrip_draw(Rng *r);
int roundtrip_below(Rng *r, int n);
char *roundtrip_printed(const Module *m);

extern const char roundtrip_sample[];

#endif
