/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: modules, their twins, launches. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/module.h"

unsigned shared_optin(void) {
    switch (sim_config.cc) {
    case 80:
    case 87: return 163 << 10;
    case 86:
    case 89:
    case 120: return 99 << 10;
    case 75: return 64 << 10;
    default: return SIM_MAX_SHARED;
    }
}

/* ---- twins --------------------------------------------------------------- */

static bool has_all(const SimTwin *t, const Image *im) {
    for (int i = 0; i < im->nfn; i++)
        if (!sim_twin_find(t, im->fn[i].name)) return false;
    return true;
}

/* The library in the folder that has all kernels of the image. */
static SimTwin *find_twin(const Image *im) {
    const char *dir =
        sim_config.twins ? sim_config.twins : getenv("AMPC_SIM_TWINS");
    char path[1024], err[300];
    SimTwin *found = NULL;
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && !found && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        if (n < 4 || strcmp(e->d_name + n - 3, ".so")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        found = sim_twin_open(path, err, sizeof err);
        if (!found) sim_violation("%s: %s", path, err);
        if (found && !has_all(found, im)) {
            sim_twin_close(found);
            found = NULL;
        }
    }
    if (d) closedir(d);
    if (!found)
        sim_violation("no twin in %s has kernel %s and its unit's others",
                      dir ? dir : "(AMPC_SIM_TWINS)",
                      im->nfn ? im->fn[0].name : "?");
    return found;
}

/* Takes the facts that the image lacks from the twin, and checks the others
   against it. */
static void join_twin(CUmodule m, struct CUfunc_st *f) {
    f->module = m;
    f->kernel = sim_twin_find(m->twin, f->name);
    if (!f->nparam) f->nparam = f->kernel->nparam;
    if (f->nparam != f->kernel->nparam)
        sim_violation("%s: %u parameters, its twin has %u", f->name, f->nparam,
                      f->kernel->nparam);
    if (!f->max_threads) f->max_threads = f->kernel->max_threads;
}

CUresult module_load(CUmodule *out, const void *image) {
    Image im;
    *out = NULL;
    CUresult rc = image ? image_read(image, &im) : CUDA_INVALID_VALUE;
    if (rc) return rc;
    CUmodule m = object_new(OBJ_MODULE, sizeof *m);
    if (m) m->twin = find_twin(&im);
    if (!m || !m->twin) {
        free(im.fn);
        object_free(m);
        return m ? CUDA_INVALID_IMAGE : CUDA_OUT_OF_MEMORY;
    }
    m->fn = im.fn;
    m->nfn = im.nfn;
    for (int i = 0; i < m->nfn; i++) join_twin(m, &m->fn[i]);
    *out = m;
    return CUDA_OK;
}

void module_drop(CUmodule m) {
    sim_twin_close(m->twin);
    free(m->fn);
    object_free(m);
}

bool function_is(CUfunction f) {
    for (Object *o = object_first(); o; o = o->next) {
        CUmodule m = (CUmodule)o;
        if (o->kind == OBJ_MODULE && f >= m->fn && f < m->fn + m->nfn)
            return true;
    }
    return false;
}
