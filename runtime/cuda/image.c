/* SPDX-License-Identifier: Apache-2.0 */
/* image.c: loads the module's CUDA code.

   The images of one architecture are tried together: first the exact one
   (sm_90 on a 9.0), then those of the same major version and a lower minor,
   highest first, then PTX that this GPU can run, highest first. If the
   driver rejects an image's content, the next architecture is tried. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/cuda/arch.h"
#include "runtime/cuda/gpu.h"
#include "runtime/files/sections.h"

/* How well "sm_90", "sm_90a" or "compute_80" suits this GPU; 0: it cannot run.
   A letter ties code to exactly that GPU.                                    */
static int arch_rank(const GpuDevice *d, const char *arch) {
    int have = d->major * 10 + d->minor;
    bool ptx = strncmp(arch, "compute_", 8) == 0;
    const char *digits = ptx ? arch + 8 : arch + 3;
    char *end;
    if (!ptx && strncmp(arch, "sm_", 3) != 0) return 0;
    long cc = strtol(digits, &end, 10);
    if (end == digits || cc < 10 || cc > have) return 0;
    if (*end) return *end == 'a' && cc == have ? (ptx ? 1 : 3000) : 0;
    if (ptx) return (int)cc;
    if (cc / 10 != d->major) return 0;
    return 1000 + (int)cc;
}

/* The best architecture that ranks below `below`; its rank, or 0. */
static int arch_next(const GpuDevice *d, const PlanCuda *c, int below,
                     const char **arch) {
    int best = 0;
    for (uint32_t i = 0; i < c->narch; i++) {
        int rank = arch_rank(d, c->archs[i]);
        if (rank >= below || rank <= best) continue;
        best = rank;
        *arch = c->archs[i];
    }
    return best;
}

/* ---- one image ----------------------------------------------------------- */

static ampc_status image_take(void *ctx, const uint8_t *p, uint64_t at,
                              uint64_t n) {
    memcpy((char *)ctx + at, p, n);
    return AMPC_OK;
}

/* Loads an image; the log gets the messages of the driver's PTX compiler. */
static CUresult load_image(ampc_session *s, const char *name, const char *image,
                           CUmodule *m) {
    char text[600] = "";
    int options[] = {CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_BYTES};
    void *values[] = {text, (void *)(uintptr_t)sizeof text};
    CUresult e = gpu_of(s)->cu.ModuleLoadDataEx(m, image, 2, options, values);
    text[sizeof text - 1] = 0;
    if (e && *text) session_log(s, "%s: %s", name, text);
    return e;
}

/* Reads and loads one image; *refused is the driver's answer. */
static ampc_status load_section(ampc_session *s, SectionFile *f,
                                const PlanSection *sec, CUmodule *m,
                                CUresult *refused) {
    bool ptx = strncmp(sec->name, "cuda:compute_", 13) == 0;
    char *image = sec->bytes ? mem_alloc(s, sec->bytes) : NULL;
    if (!sec->bytes) return section_damaged(f, "an empty image of CUDA code");
    if (!image) return session_fail(s, AMPC_ERR_MEMORY, "out of memory");
    ampc_status status = section_read(f, sec, image_take, image);
    if (status == AMPC_OK && ptx && image[sec->bytes - 1] != 0)
        status = section_damaged(f, "PTX without its end");
    if (status == AMPC_OK) *refused = load_image(s, sec->name, image, m);
    mem_free(s, image, sec->bytes);
    return status;
}

static ampc_status load_unit(ampc_session *s, SectionFile *f, const char *arch,
                             uint32_t unit, CUresult *refused) {
    char name[80];
    PlanSection sec;
    bool there;
    snprintf(name, sizeof name, "cuda:%.20s:%u", arch, unit);
    TRY(section_find(f, name, &sec, &there));
    if (!there) {
        char what[120];
        snprintf(what, sizeof what, "no section '%s'", name);
        return section_damaged(f, what);
    }
    return load_section(s, f, &sec, &gpu_of(s)->units[unit], refused);
}

static ampc_status load_arch(ampc_session *s, SectionFile *f, const char *arch,
                             CUresult *refused) {
    ampc_status status = AMPC_OK;
    *refused = CUDA_OK;
    for (uint32_t i = 0; i < s->m->cuda->nunit; i++) {
        status = load_unit(s, f, arch, i, refused);
        if (status != AMPC_OK || *refused != CUDA_OK) break;
    }
    if (status != AMPC_OK || *refused != CUDA_OK) image_unload(s);
    return status;
}

/* ---- which one ----------------------------------------------------------- */

static bool is_refusal(CUresult e) {
    return e == CUDA_NO_BINARY_FOR_GPU || e == CUDA_INVALID_IMAGE ||
           e == CUDA_INVALID_PTX || e == CUDA_JIT_COMPILER_NOT_FOUND ||
           e == CUDA_UNSUPPORTED_PTX_VERSION || e == CUDA_JIT_DISABLED;
}

/* The driver's answer in words that say what to do. */
static const char *refusal_text(CUresult e) {
    switch (e) {
    case CUDA_NO_BINARY_FOR_GPU: return "it holds no code for this GPU";
    case CUDA_INVALID_PTX: return "the driver cannot compile this PTX";
    case CUDA_JIT_COMPILER_NOT_FOUND:
        return "the driver's PTX compiler (libnvidia-ptxjitcompiler) is "
               "missing";
    case CUDA_JIT_DISABLED:
        return "compiling PTX is disabled ($CUDA_DISABLE_PTX_JIT)";
    case CUDA_UNSUPPORTED_PTX_VERSION:
        return "the PTX is newer than the driver: update the driver, or "
               "compile with an older NVRTC";
    default: return "the image is invalid";
    }
}

static ampc_status no_image(ampc_session *s, const char *answers) {
    const GpuDevice *d = gpu_of(s);
    const PlanCuda *c = s->m->cuda;
    char held[200] = "", target[60];
    size_t n = 0;
    int driver = 0, least = gpu_archs[0].number;
    d->cu.DriverGetVersion(&driver);
    for (uint32_t i = 0; i < c->narch && n < sizeof held - 1; i++)
        n += (size_t)snprintf(held + n, sizeof held - n, "%s%.20s",
                              i ? ", " : "", c->archs[i]);
    if (d->major * 10 + d->minor < least)
        snprintf(target, sizeof target,
                 "GPUs of compute capability %d.%d and later can", least / 10,
                 least % 10);
    else
        snprintf(target, sizeof target, "compile with --target cuda:sm_%d%d",
                 d->major, d->minor);
    return session_fail(
        s, AMPC_ERR_UNSUPPORTED,
        "GPU '%s' (compute capability %d.%d, driver for CUDA %d.%d) cannot run "
        "this module, which holds %s (made with CUDA %d.%d)%s; %s",
        d->name, d->major, d->minor, driver / 1000, driver % 1000 / 10, held,
        c->toolkit / 1000, c->toolkit % 1000 / 10, answers, target);
}

static ampc_status try_all(ampc_session *s, SectionFile *f) {
    GpuDevice *d = gpu_of(s);
    char answers[600] = "";
    size_t n = 0;
    int rank = 1 << 20;
    const char *arch = NULL;
    while ((rank = arch_next(d, s->m->cuda, rank, &arch)) > 0) {
        char text[200];
        CUresult e;
        TRY(load_arch(s, f, arch, &e));
        d->arch = arch;
        if (e == CUDA_OK) return AMPC_OK;
        if (!is_refusal(e)) return gpu_fail(s, e, "cuModuleLoadDataEx", NULL);
        if (n < sizeof answers - 1)
            n += (size_t)snprintf(answers + n, sizeof answers - n,
                                  "; %s: %s, %s", arch, refusal_text(e),
                                  gpu_error_text(d, e, text));
        session_log(s, "CUDA code for %s is refused: %s", arch,
                    gpu_error_text(d, e, text));
    }
    return no_image(s, answers);
}

/* ---- CUDA Tile ----------------------------------------------------------- */

enum { TILE_DRIVER = 13000 }; /* r580 */

/* The architecture of that image: a Tile image runs on exactly one, since it
   may use what only that one has. */
static const char *tile_arch(const GpuDevice *d, const PlanCuda *c) {
    int have = d->major * 10 + d->minor;
    for (uint32_t i = 0; i < c->ntile_arch; i++)
        if (atoi(c->tile_archs[i] + 3) == have) return c->tile_archs[i];
    return NULL;
}

static ampc_status find_tiles(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    for (uint32_t i = 0; i < s->m->cuda->ntile; i++) {
        const char *name = s->m->cuda->tiles[i].name;
        CUresult e = d->cu.ModuleGetFunction(&d->tiles[i], d->tile, name);
        if (e != CUDA_OK) return gpu_fail(s, e, "cuModuleGetFunction", name);
    }
    return AMPC_OK;
}

/* The steps that the kernels replace are in the module, too: a driver that
   cannot load them runs those. */
static ampc_status load_tiles(ampc_session *s, SectionFile *f) {
    GpuDevice *d = gpu_of(s);
    const PlanCuda *c = s->m->cuda;
    const char *wanted = secure_getenv("AMPC_CUDA_TILE");
    const char *arch = c->ntile ? tile_arch(d, c) : NULL;
    char name[40], text[200];
    PlanSection sec;
    CUresult refused = CUDA_OK;
    int driver = 0;
    bool there;
    if (!arch || (wanted && !strcmp(wanted, "0"))) return AMPC_OK;
    refused = d->cu.DriverGetVersion(&driver);
    if (refused != CUDA_OK)
        return gpu_fail(s, refused, "cuDriverGetVersion", NULL);
    if (driver < TILE_DRIVER) return AMPC_OK;
    snprintf(name, sizeof name, "tile:%.20s", arch);
    TRY(section_find(f, name, &sec, &there));
    if (!there) return section_damaged(f, "no section of CUDA Tile");
    TRY(load_section(s, f, &sec, &d->tile, &refused));
    if (refused == CUDA_OK) {
        d->tile_arch = arch;
        return find_tiles(s);
    }
    if (!is_refusal(refused))
        return gpu_fail(s, refused, "cuModuleLoadDataEx", NULL);
    session_log(s, "%s is refused: %s; other kernels do its work", name,
                gpu_error_text(d, refused, text));
    return AMPC_OK;
}

/* ---- kernels ------------------------------------------------------------- */

/* Every kernel is looked up here: otherwise its first launch could load it
   while a graph is captured. */
static ampc_status find_kernels(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    const PlanCuda *c = s->m->cuda;
    for (uint32_t i = 0; i < c->nkernel; i++) {
        const PlanCudaKernel *k = &c->kernels[i];
        CUfunction *fn = &d->kernels[i];
        CUresult e = d->cu.ModuleGetFunction(fn, d->units[k->unit], k->name);
        if (e != CUDA_OK) return gpu_fail(s, e, "cuModuleGetFunction", k->name);
        if (k->shared <= 48 << 10) continue;
        e = d->cu.FuncSetAttribute(*fn, CUDA_FUNC_MAX_DYNAMIC_SHARED,
                                   (int)k->shared);
        if (e != CUDA_OK) return gpu_fail(s, e, "cuFuncSetAttribute", k->name);
    }
    return AMPC_OK;
}

ampc_status image_load(ampc_session *s) {
    SectionFile f;
    if (s->m->cuda->nunit == 0) return AMPC_OK;
    ampc_status status = section_open(s, &f);
    if (status == AMPC_OK) status = try_all(s, &f);
    if (status == AMPC_OK) status = load_tiles(s, &f);
    section_close(&f);
    return status == AMPC_OK ? find_kernels(s) : status;
}

void image_unload(ampc_session *s) {
    GpuDevice *d = gpu_of(s);
    for (uint32_t i = 0; d->units && i < s->m->cuda->nunit; i++) {
        if (d->units[i]) d->cu.ModuleUnload(d->units[i]);
        d->units[i] = NULL;
    }
    if (d->tile) d->cu.ModuleUnload(d->tile);
    d->tile = NULL;
}
