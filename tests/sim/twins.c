/* SPDX-License-Identifier: Apache-2.0 */
/* twins.c: twin libraries, and single kernels on host memory. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/engine.h"

SimTwin *sim_twin_open(const char *path, char *err, size_t size) {
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        snprintf(err, size, "%s", dlerror());
        return NULL;
    }
    SimTwinTable *table = dlsym(h, SIM_TWIN_SYMBOL);
    SimTwin *t = calloc(1, sizeof *t);
    if (!table || table->version != SIM_TWIN_VERSION || !t) {
        snprintf(err, size, "%s is no twin of this version", path);
        dlclose(h);
        free(t);
        return NULL;
    }
    *t = (SimTwin){h, strdup(path), table};
    return t;
}

void sim_twin_close(SimTwin *t) {
    if (!t) return;
    dlclose(t->handle);
    free(t->path);
    free(t);
}

const SimKernel *sim_twin_find(const SimTwin *t, const char *kernel) {
    for (int i = 0; i < t->table->nkernel; i++)
        if (!strcmp(t->table->kernels[i].name, kernel))
            return &t->table->kernels[i];
    return NULL;
}

int sim_run(SimTwin *t, const char *kernel, unsigned blocks, unsigned threads,
            unsigned shared, void **params) {
    const SimKernel *k = sim_twin_find(t, kernel);
    SimLaunch l = {t, k, {blocks, 1, 1}, {threads, 1, 1}, shared, params};
    if (!k) {
        sim_violation("%s has no kernel %s", t->path, kernel);
        return CUDA_NOT_FOUND;
    }
    if (!blocks || !threads || threads > SIM_MAX_THREADS ||
        shared > SIM_MAX_SHARED) {
        sim_violation("%s: %u blocks of %u threads, %u bytes", kernel, blocks,
                      threads, shared);
        return CUDA_INVALID_VALUE;
    }
    if (k->max_threads && threads > k->max_threads) {
        sim_violation("%s: %u threads, launch bounds %u", kernel, threads,
                      k->max_threads);
        return CUDA_LAUNCH_OUT_OF_RESOURCES;
    }
    sim_lock();
    int rc = sim_launch(&l);
    sim_unlock();
    return rc;
}
