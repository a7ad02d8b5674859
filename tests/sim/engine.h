/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h: runs kernels of twin libraries, block by block, with a fiber for
   every thread. One launch at a time: callers hold the simulator's lock. */
#ifndef AMPC_TESTS_SIM_ENGINE_H
#define AMPC_TESTS_SIM_ENGINE_H

#include <stdarg.h>

#include "tests/sim/sim.h"
#include "tests/sim/twin.h"

enum {
    SIM_MAX_THREADS = 1024,
    SIM_WARP = 32,
    SIM_L2_BYTES = 1 << 16,
    SIM_STATIC_SHARED = 48 << 10, /* without cuFuncSetAttribute */
    SIM_MAX_SHARED = 227 << 10
};

struct SimTwin {
    void *handle;
    char *path;
    SimTwinTable *table;
};

const SimKernel *sim_twin_find(const SimTwin *t, const char *kernel);

typedef struct SimLaunch {
    const SimTwin *twin;
    const SimKernel *kernel;
    SimDim grid, block;
    unsigned shared;
    void **params;
} SimLaunch;

/* Returns a CUresult; sim_errors has the reason. */
int sim_launch(const SimLaunch *l);

/* ---- common.c: random numbers, the texts of errors ----------------------- */

void sim_lock(void);
void sim_unlock(void);
uint64_t sim_random_below(uint64_t n);
void sim_random_seed(uint64_t seed);
void sim_errors_clear(void);
void sim_violation_va(const char *fmt, va_list ap);
extern SimStats sim_counts;

#endif
