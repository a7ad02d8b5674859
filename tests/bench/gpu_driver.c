/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_driver.c: loads the driver for gpu_check from the place where the
   runtime finds it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu_check.h"

static void *open_library(const char *variable, const char *usual) {
    const char *given = getenv(variable);
    return dlopen(given && *given ? given : usual, RTLD_NOW | RTLD_LOCAL);
}

static bool find(void *lib, const char *symbol, void *field) {
    void *p = dlsym(lib, symbol);
    memcpy(field, &p, sizeof p);
    return p != NULL;
}

static bool load(Gpu *g) {
    void *lib = open_library("AMPC_LIBCUDA", "libcuda.so.1");
    if (!lib) {
        snprintf(g->why, sizeof g->why, "no NVIDIA driver: %s", dlerror());
        return false;
    }
#define CU(member, symbol, parameters)                                         \
    if (!find(lib, symbol, &g->member)) {                                      \
        snprintf(g->why, sizeof g->why, "the driver has no %s", symbol);       \
        return false;                                                          \
    }
#include "runtime/cuda/driver.def"
#undef CU
    return true;
}

static bool failed(Gpu *g, const char *what, CUresult e) {
    const char *text = NULL;
    if (!e) return false;
    g->GetErrorString(e, &text);
    snprintf(g->why, sizeof g->why, "%s: %s (%d)", what, text ? text : "error",
             e);
    return true;
}

static void describe(Gpu *g) {
    size_t unused;
    g->DeviceGetName(g->name, sizeof g->name, g->device);
    g->DeviceGetAttribute(&g->major, CUDA_ATTR_COMPUTE_MAJOR, g->device);
    g->DeviceGetAttribute(&g->minor, CUDA_ATTR_COMPUTE_MINOR, g->device);
    g->DeviceGetAttribute(&g->sms, CUDA_ATTR_MULTIPROCESSOR_COUNT, g->device);
    g->DriverGetVersion(&g->driver);
    g->MemGetInfo(&unused, &g->memory);
}

bool gpu_open(Gpu *g, int ordinal) {
    int n = 0;
    *g = (Gpu){0};
    if (!load(g) || failed(g, "cuInit", g->Init(0)) ||
        failed(g, "cuDeviceGetCount", g->DeviceGetCount(&n)))
        return false;
    if (ordinal >= n) {
        snprintf(g->why, sizeof g->why, "no GPU %d among %d", ordinal, n);
        return false;
    }
    if (failed(g, "cuDeviceGet", g->DeviceGet(&g->device, ordinal)) ||
        failed(g, "context", g->PrimaryCtxRetain(&g->ctx, g->device)) ||
        failed(g, "context", g->CtxPushCurrent(g->ctx)))
        return false;
    describe(g);
    return true;
}

void gpu_close(Gpu *g) {
    CUcontext c;
    g->CtxPopCurrent(&c);
    g->PrimaryCtxRelease(g->device);
}
