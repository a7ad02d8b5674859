/* SPDX-License-Identifier: Apache-2.0 */
/* library.c: libcuda, cuBLASLt and NCCL, found at run time; their errors as
   statuses.  The libraries stay loaded: drivers do not expect to be unloaded.

   $AMPC_LIBCUDA, $AMPC_LIBCUBLASLT and $AMPC_LIBNCCL name a file to take
   instead of the usual ones; "none" is never found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/gpu.h"

#include "runtime/base/glibc.h" /* last */

/* ---- finding ------------------------------------------------------------- */

/* The value of $VARIABLE, unless it is empty. */
static const char *given_name(const char *variable) {
    const char *name = secure_getenv(variable);
    return name && *name ? name : NULL;
}

/* True if the environment variable is "none": the library is not to be
   loaded. */
static bool given_none(const char *variable, char *why, size_t why_size) {
    const char *name = given_name(variable);
    if (!name || strcmp(name, "none") != 0) return false;
    snprintf(why, why_size, "$%s is \"none\"", variable);
    return true;
}

/* `why` keeps the first library's message. */
static void *library_open(const char *name, char *why, size_t why_size) {
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *text = lib ? NULL : dlerror();
    if (text && !why[0]) snprintf(why, why_size, "%s", text);
    return lib;
}

typedef struct Symbol {
    const char *name;
    void *slot; /* a pointer to a function */
} Symbol;

/* The first name that the library lacks, or NULL. */
static const char *library_symbols(void *lib, const Symbol *symbols, size_t n) {
    for (size_t i = 0; i < n; i++) {
        void *address = dlsym(lib, symbols[i].name);
        if (!address) return symbols[i].name;
        memcpy(symbols[i].slot, &address, sizeof address);
    }
    return NULL;
}

void library_unload(void *lib) {
    if (lib) dlclose(lib);
}

/* A library that lacks a symbol is rejected. */
static void *library_take(const char *name, const Symbol *symbols, size_t n,
                          char *why, size_t why_size) {
    void *lib = library_open(name, why, why_size);
    const char *missing = lib ? library_symbols(lib, symbols, n) : NULL;
    if (!missing) return lib;
    if (!why[0]) snprintf(why, why_size, "%.200s has no %s", name, missing);
    library_unload(lib);
    return NULL;
}

/* Loads a file below a folder that matches the pattern and is accepted. */
static bool take_below(const char *root, const char *pattern,
                       bool (*take)(void *ctx, const char *name), void *ctx) {
    char path[600];
    glob_t found;
    bool taken = false;
    if (!root || (size_t)snprintf(path, sizeof path, "%s%s", root, pattern) >=
                     sizeof path)
        return false;
    if (glob(path, 0, NULL, &found) != 0) return false;
    for (size_t i = 0; i < found.gl_pathc && !taken; i++)
        taken = take(ctx, found.gl_pathv[i]);
    globfree(&found);
    return taken;
}

/* Tries the loader's path, the toolkit, then NVIDIA's Python packages, in
   which the library is below `in`. */
static bool take_usual(const char *in, const char *name,
                       bool (*take)(void *ctx, const char *name), void *ctx) {
    char toolkit[80], package[120], user[130], debian[120];
    snprintf(toolkit, sizeof toolkit, "/usr/local/cuda*/lib64/%s", name);
    snprintf(package, sizeof package,
             "/lib/python3*/site-packages/nvidia/%s/lib/%s", in, name);
    snprintf(user, sizeof user, "/.local%s", package);
    snprintf(debian, sizeof debian,
             "/lib/python3*/dist-packages/nvidia/%s/lib/%s", in, name);
    return take(ctx, name) || take_below("", toolkit, take, ctx) ||
           take_below(secure_getenv("VIRTUAL_ENV"), package, take, ctx) ||
           take_below(secure_getenv("CONDA_PREFIX"), package, take, ctx) ||
           take_below(secure_getenv("HOME"), user, take, ctx) ||
           take_below("/usr/local", debian, take, ctx) ||
           take_below("/usr/local", package, take, ctx);
}

bool cuda_find(CudaApi *cu, char *text, size_t size) {
    const Symbol symbols[] = {
#define CU(member, symbol, parameters) {symbol, &cu->member},
#include "runtime/cuda/driver.def"
#undef CU
    };
    const char *name = given_name("AMPC_LIBCUDA"), *missing;
    char why[300] = "";
    if (!given_none("AMPC_LIBCUDA", why, sizeof why))
        cu->lib = library_open(name ? name : "libcuda.so.1", why, sizeof why);
    if (!cu->lib) {
        bool absent = !name && strstr(why, "cannot open shared object file");
        snprintf(text, size, "no NVIDIA driver (libcuda.so.1)%s%s",
                 absent ? "" : ": ", absent ? "" : why);
        return false;
    }
    missing =
        library_symbols(cu->lib, symbols, sizeof symbols / sizeof *symbols);
    if (missing)
        snprintf(text, size, "the NVIDIA driver is too old: libcuda has no %s",
                 missing);
    return !missing;
}

int gpu_count(void) {
    CudaApi cu = {0};
    char why[400];
    int n = 0;
    bool counted = cuda_find(&cu, why, sizeof why) && cu.Init(0) == CUDA_OK &&
                   cu.DeviceGetCount(&n) == CUDA_OK;
    return counted ? n : 0;
}

/* ---- cuBLASLt ------------------------------------------------------------ */

typedef struct LtSearch {
    LtApi *lt;
    int driver; /* CUDA 12.8 is 12080 */
    char why[300];
} LtSearch;

/* A library that is too new for the driver is rejected, too. */
static bool lt_take(void *ctx, const char *name) {
    LtSearch *f = ctx;
    LtApi *lt = f->lt;
    const Symbol symbols[] = {
        {"cublasLtGetVersion", &lt->GetVersion},
#define LT(member, symbol, parameters) {symbol, &lt->member},
#include "runtime/cuda/cublaslt.def"
#undef LT
    };
    lt->lib = library_take(name, symbols, sizeof symbols / sizeof *symbols,
                           f->why, sizeof f->why);
    if (!lt->lib) return false;
    /* 13.1.0 is 130100; it does not work with a driver for CUDA 12 */
    if (lt->GetVersion() / 10000 <= (size_t)f->driver / 1000) return true;
    if (!f->why[0])
        snprintf(f->why, sizeof f->why, "the driver is too old for %.200s",
                 name);
    library_unload(lt->lib);
    lt->lib = NULL;
    return false;
}

static bool lt_take_version(LtSearch *f, int major) {
    char name[40];
    snprintf(name, sizeof name, "libcublasLt.so.%d", major);
    return take_usual(major == 12 ? "cublas" : "cu13", name, lt_take, f);
}

static bool lt_find(LtSearch *f) {
    const char *name = given_name("AMPC_LIBCUBLASLT");
    if (given_none("AMPC_LIBCUBLASLT", f->why, sizeof f->why)) return false;
    if (name) return lt_take(f, name);
    return lt_take_version(f, 13) || lt_take_version(f, 12) ||
           lt_take(f, "libcublasLt.so");
}

ampc_status lt_load(ampc_session *s, const CudaApi *cu, LtApi *lt) {
    LtSearch f = {.lt = lt};
    Dl_info info = {.dli_fname = NULL};
    void *in;
    cu->DriverGetVersion(&f.driver);
    if (!lt_find(&f))
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "no cuBLASLt (libcublasLt.so.13 or .12; name its "
                            "file by $AMPC_LIBCUBLASLT): %s",
                            f.why);
    memcpy(&in, &lt->Create, sizeof in);
    dladdr(in, &info);
    session_log(s, "cuBLASLt %zu: %s", lt->GetVersion(),
                info.dli_fname ? info.dli_fname : "?");
    return AMPC_OK;
}

/* ---- NCCL ---------------------------------------------------------------- */

typedef struct NcclSearch {
    NcclApi *nccl;
    char why[300];
} NcclSearch;

static bool nccl_take(void *ctx, const char *name) {
    NcclSearch *f = ctx;
    NcclApi *n = f->nccl;
    const Symbol symbols[] = {
        {"ncclGetErrorString", &n->GetErrorString},
#define NCCL(member, symbol, parameters) {symbol, &n->member},
#include "runtime/cuda/nccl.def"
#undef NCCL
    };
    n->lib = library_take(name, symbols, sizeof symbols / sizeof *symbols,
                          f->why, sizeof f->why);
    return n->lib != NULL;
}

bool nccl_find(NcclApi *nccl, char *text, size_t size) {
    NcclSearch f = {.nccl = nccl};
    const char *name = given_name("AMPC_LIBNCCL");
    if (!given_none("AMPC_LIBNCCL", f.why, sizeof f.why) &&
        (name ? nccl_take(&f, name)
              : take_usual("nccl", "libnccl.so.2", nccl_take, &f)))
        return true;
    snprintf(text, size,
             "no NCCL (libnccl.so.2 from 2.14 on; name its file by "
             "$AMPC_LIBNCCL): %s",
             f.why);
    return false;
}

/* ---- errors -------------------------------------------------------------- */

const char *gpu_error_text(const GpuDevice *d, CUresult e, char text[200]) {
    const char *name = NULL, *meaning = NULL;
    if (d->cu.GetErrorName(e, &name) != CUDA_OK || !name) name = "error";
    if (d->cu.GetErrorString(e, &meaning) != CUDA_OK || !meaning) meaning = "";
    snprintf(text, 200, "%.60s (%d%s%.110s)", name, e, *meaning ? ": " : "",
             meaning);
    return text;
}

static ampc_status fail_at(ampc_session *s, ampc_status status,
                           const char *call, const char *step,
                           const char *text) {
    GpuDevice *d = gpu_of(s);
    return session_fail(s, status, "GPU '%s'%s%.200s%s: %s: %s", d->name,
                        step ? ", step '" : "", step ? step : "",
                        step ? "'" : "", call, text);
}

ampc_status gpu_fail(ampc_session *s, CUresult e, const char *call,
                     const char *step) {
    char text[200];
    GpuDevice *d = gpu_of(s);
    bool memory = e == CUDA_OUT_OF_MEMORY && !d->ready;
    d->broken = AMPC_ERR_DEVICE;
    return fail_at(s, memory ? AMPC_ERR_MEMORY : AMPC_ERR_DEVICE, call, step,
                   gpu_error_text(d, e, text));
}

ampc_status lt_fail(ampc_session *s, int e, const char *call,
                    const char *step) {
    static const struct {
        int e;
        const char *name;
    } names[] = {{LT_NOT_INITIALIZED, "NOT_INITIALIZED"},
                 {LT_ALLOC_FAILED, "ALLOC_FAILED"},
                 {LT_INVALID_VALUE, "INVALID_VALUE"},
                 {LT_ARCH_MISMATCH, "ARCH_MISMATCH"},
                 {LT_EXECUTION_FAILED, "EXECUTION_FAILED"},
                 {LT_INTERNAL_ERROR, "INTERNAL_ERROR"},
                 {LT_NOT_SUPPORTED, "NOT_SUPPORTED"}};
    char text[80];
    const char *name = "error";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].e == e) name = names[i].name;
    bool memory = e == LT_ALLOC_FAILED && !gpu_of(s)->ready;
    gpu_of(s)->broken = AMPC_ERR_DEVICE;
    snprintf(text, sizeof text, "CUBLAS_STATUS_%s (%d)", name, e);
    return fail_at(s, memory ? AMPC_ERR_MEMORY : AMPC_ERR_DEVICE, call, step,
                   text);
}
