/* library.c: libcuda and cuBLASLt, found at run time; their errors as
   statuses.  The libraries stay loaded: drivers do not expect to be unloaded.

   $AMPC_LIBCUDA and $AMPC_LIBCUBLASLT name a file to take instead of the usual
   ones; "none" is never found.                                               */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/gpu.h"

/* ---- finding ------------------------------------------------------------- */

static void *library_find(const char *variable, const char *const *names,
                          size_t n, char *why, size_t why_size) {
    const char *given = secure_getenv(variable);
    void *lib = NULL;
    if (given && strcmp(given, "none") == 0) {
        snprintf(why, why_size, "$%s is \"none\"", variable);
        return NULL;
    }
    if (given && *given) {
        names = &given;
        n = 1;
    }
    why[0] = 0;
    for (size_t i = 0; i < n && !lib; i++) {
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *text = lib ? NULL : dlerror();
        if (text && !why[0]) snprintf(why, why_size, "%s", text);
    }
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

ampc_status cuda_load(ampc_session *s, CudaApi *cu) {
    static const char *const names[] = {"libcuda.so.1"};
    const Symbol symbols[] = {
#define CU(member, symbol, parameters) {symbol, &cu->member},
#include "runtime/cuda/driver.def"
#undef CU
    };
    char why[300];
    cu->lib = library_find("AMPC_LIBCUDA", names, 1, why, sizeof why);
    if (!cu->lib)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "no NVIDIA driver (libcuda.so.1): %s", why);
    const char *missing =
        library_symbols(cu->lib, symbols, sizeof symbols / sizeof *symbols);
    if (!missing) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "the NVIDIA driver is too old: libcuda has no %s",
                        missing);
}

ampc_status lt_load(ampc_session *s, LtApi *lt) {
    static const char *const names[] = {"libcublasLt.so.13",
                                        "libcublasLt.so.12", "libcublasLt.so",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    const Symbol symbols[] = {
        {"cublasLtGetVersion", &lt->GetVersion},
#define LT(member, symbol, parameters) {symbol, &lt->member},
#include "runtime/cuda/cublaslt.def"
#undef LT
    };
    char why[300];
    lt->lib = library_find("AMPC_LIBCUBLASLT", names,
                           sizeof names / sizeof *names, why, sizeof why);
    if (!lt->lib)
        return session_fail(s, AMPC_ERR_UNSUPPORTED,
                            "no cuBLASLt (libcublasLt.so.13 or .12; name its "
                            "file by $AMPC_LIBCUBLASLT): %s",
                            why);
    const char *missing =
        library_symbols(lt->lib, symbols, sizeof symbols / sizeof *symbols);
    if (!missing) return AMPC_OK;
    return session_fail(s, AMPC_ERR_UNSUPPORTED,
                        "cuBLASLt is too old: it has no %s", missing);
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
    d->broken = true;
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
    gpu_of(s)->broken = true;
    snprintf(text, sizeof text, "CUBLAS_STATUS_%s (%d)", name, e);
    return fail_at(s, memory ? AMPC_ERR_MEMORY : AMPC_ERR_DEVICE, call, step,
                   text);
}
