/* SPDX-License-Identifier: Apache-2.0 */
/* emit.h: for emit_test.c and the files of folder emit. */
#ifndef AMPC_TESTS_CODEGEN_EMIT_EMIT_H
#define AMPC_TESTS_CODEGEN_EMIT_EMIT_H

#include "codegen/codegen.h"

typedef struct Run {
    Arena *a;
    Diag d;
    Options opt;
} Run;

Status emit_emit(Run *r, const char *options, const char *path);
/* `options`: NAME=VALUE, words apart. */
void run_options(Run *r, const char *options);
void run_end(Run *r);
char *in_tmp(Arena *a, const char *name);

/* A separate folder for temporary files: emit must leave it empty. */
char *fresh_dir(Arena *a, const char *name);

#endif
