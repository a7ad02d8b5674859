/* SPDX-License-Identifier: Apache-2.0 */
/* module.h: loaded modules and their kernels. */
#ifndef AMPC_TESTS_SIM_MODULE_H
#define AMPC_TESTS_SIM_MODULE_H

#include "tests/sim/state.h"

enum { SIM_NAME = 96 };

struct CUfunc_st {
    CUmodule module;
    char name[SIM_NAME];
    const SimKernel *kernel;
    bool tile;            /* of CUDA Tile */
    unsigned max_threads; /* launch bounds; 0: none */
    unsigned nparam; /* from a cubin: its parameters; from PTX: the twin's */
    unsigned shared, dynamic_limit; /* bytes: static, and the limit of
                                       dynamic ones */
};

struct CUmod_st {
    Object o;
    SimTwin *twin;
    struct CUfunc_st *fn;
    int nfn;
};

/* image_file.c: the facts in an image. The result is a CUresult. */
typedef struct Image {
    struct CUfunc_st *fn; /* for free() */
    int nfn;
} Image;
CUresult image_read(const void *image, Image *out);

CUresult module_load(CUmodule *out, const void *image);
bool function_is(CUfunction f);
void module_drop(CUmodule m);
/* The most dynamic shared memory that a kernel may opt in to. */
unsigned shared_optin(void);

#endif
