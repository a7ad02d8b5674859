/* SPDX-License-Identifier: Apache-2.0 */
/* ranks.h: `ampc run` as several processes, each on its own simulated GPU, with
   the simulated NCCL, connected over TCP by torchrun's variables.
 */
#ifndef AMPC_TESTS_FRONTEND_NCCL_RANKS_H
#define AMPC_TESTS_FRONTEND_NCCL_RANKS_H

#include "tests/support/compiled.h"
#include "tests/support/simulate.h"

enum { BATCH = 2 };

/* A module that is compiled once. */
typedef struct Trained {
    const char *model, *options;
    Compiled of[5]; /* by --accumulate */
} Trained;

typedef struct Launch {
    const Compiled *c;
    int world;          /* 1: no ranks */
    const char *words;  /* of `ampc run` */
    const char *before; /* shell text that each rank runs before its command;
                           it may use $RANK NULL: nothing */
    bool in_rank_order; /* are numbers added */
} Launch;

/* A module of an .amp or .onnx file for the simulated GPU. */
Compiled ranks_compile(const char *path, const char *options);

/* A module of tests/onnx/MODEL. */
Compiled ranks_model(const char *model, const char *options, int accumulate,
                     int batch);

/* The module of `t` that accumulates so often; compiled at the first call. */
const Compiled *ranks_trained(Trained *t, int accumulate);

/* The environment of a machine with that many GPUs; returns its length. */
size_t ranks_machine(char *to, size_t size, const Compiled *c, int devices,
                     bool in_rank_order);

/* The shell command of each rank; returns the status of the first rank that
   failed. When rank 0 is done it creates file `ended`. */
int ranks_launch(const Launch *l, char **out);

/* All ranks succeed, and the simulated machine reports no error. */
char *ranks_run(const Launch *l);

#endif
