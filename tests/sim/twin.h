/* SPDX-License-Identifier: Apache-2.0 */
/* twin.h: the interface between a twin library and the engine that runs it.
   C for the engine, C++ for the twin (device_sim.h).                        */
#ifndef AMPC_TESTS_SIM_TWIN_H
#define AMPC_TESTS_SIM_TWIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_TWIN_VERSION 1
#define SIM_TWIN_SYMBOL  "sim_twin_table"

typedef struct SimDim {
    unsigned x, y, z;
} SimDim;

/* The built-in variables of the running thread. */
typedef struct SimNow {
    SimDim thread, block, block_dim, grid_dim;
    void *dynamic; /* dynamic shared memory */
    size_t dynamic_size;
} SimNow;

/* Combines the requests of all lanes of `mask` (request[lane]) at once. */
typedef void SimCombine(void **request, uint32_t mask);

typedef struct SimEngine {
    /* __syncthreads */
    void (*barrier)(const char *file, int line);
    /* A warp collective: returns when fn, called once for all lanes of the
       mask, has answered the request.  NULL: __syncwarp.                    */
    void (*warp)(uint32_t mask, const char *name, SimCombine *fn,
                 void *request);
    uint32_t (*active)(void); /* lanes of the warp that have not exited */
    /* Ends the launch with a CUresult. */
    void (*fault)(int code, const char *fmt, ...)
        __attribute__((format(printf, 2, 3), noreturn));
} SimEngine;

typedef struct SimKernel {
    const char *name;
    void (*call)(void **params);
    unsigned nparam;
    const unsigned *param_size;
    unsigned max_threads; /* __launch_bounds__; 0: none */
} SimKernel;

typedef struct SimTwinTable {
    int version;
    const SimEngine **engine; /* the engine stores itself here */
    SimNow *now;
    char *shared, *shared_end; /* all static shared arrays of the unit */
    const SimKernel *kernels;
    int nkernel;
} SimTwinTable;

#ifdef __cplusplus
}
#endif
#endif
