/* SPDX-License-Identifier: Apache-2.0 */
/* ran.h: `ampc run` on the hand-written plan of tiny_module.c, through its
   command line. */
#ifndef AMPC_TESTS_FRONTEND_RUN_CMD_RAN_H
#define AMPC_TESTS_FRONTEND_RUN_CMD_RAN_H

#include "frontend/run/run_cmd.h"
#include "tests/harness.h"
#include "tests/support/tiny_module.h"

#define FEEDS      "--feed x=@x.npy --feed target=@t.npy "
#define EVAL_FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "

extern bool no_links; /* link() fails like on a file system without links */

void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
               const void *data);
/* Writes n samples of x and target as x.npy and t.npy. */
void write_data(int n);

ampc_api api_for(const AmpcModule *m);

/* Runs "run tiny.so WORDS..."; words that begin with '@' name files of the
   test's folder, also in FEED=@NAME. Keeps standard output and standard
   error. */
typedef struct Ran {
    int status;
    char *out, *err;
} Ran;

Ran run_api(const ampc_api *a, const char *words);
Ran run_module(const AmpcModule *m, const char *words);
void ran_free(Ran *r);

/* Standard output of a run that must succeed; for free(). */
char *good(const AmpcModule *m, const char *words);
void bad(const AmpcModule *m, const char *words, int status, const char *why);

int count_lines(const char *text);
/* The number after `key` in line i of a log. */
double field(const char *log, int line, const char *key);
void same_files(const char *a, const char *b);

#endif
