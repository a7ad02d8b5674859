/* SPDX-License-Identifier: Apache-2.0 */
/* compile.h: compiles the module of a fuzz target with options chosen by the
   input's bytes. */
#ifndef AMPC_TESTS_FUZZ_COMPILE_H
#define AMPC_TESTS_FUZZ_COMPILE_H

#include "passes/passes.h"
#include "tests/fuzz/fuzz.h"

typedef struct Compile {
    Arena *a;
    Diag d;
    Options opt;
    Module *m;
    uint64_t hash; /* of the input */
} Compile;

void compile_begin(Compile *c, const uint8_t *p, size_t n);
/* Parses .amp text into c->m, with all checks that a text allows. */
Status compile_parse(Compile *c, const uint8_t *p, size_t n);
/* compile_begin, and then the same. */
bool compile_read(Compile *c, const uint8_t *p, size_t n);
/* A model of hundreds of layers compiles, too, but not within the time of
   one execution: that is not a finding. */
bool compile_is_short(const Compile *c);
/* Runs passes and lowering, up to the sources. */
void compile_all(Compile *c);
/* Checks that a refusal has a message and is the user's mistake. */
void compile_check(const Compile *c, Status s);
void compile_end(Compile *c);

#endif
