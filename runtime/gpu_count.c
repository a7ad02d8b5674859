/* gpu_count.c: GPUs of this machine, for modules without code for any. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/session.h"

/* As runtime/cuda/library.c finds the driver, which a module without GPU code
   does not have. */
int gpu_count(void) {
    const char *name = secure_getenv("AMPC_LIBCUDA");
    int (*init)(unsigned) = NULL, (*count)(int *) = NULL, n = 0;
    if (!name || !*name) name = "libcuda.so.1";
    if (!strcmp(name, "none")) return 0;
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib) return 0;
    void *address = dlsym(lib, "cuInit");
    memcpy(&init, &address, sizeof init);
    address = dlsym(lib, "cuDeviceGetCount");
    memcpy(&count, &address, sizeof count);
    if (!init || !count || init(0) != 0 || count(&n) != 0) n = 0;
    dlclose(lib);
    return n > 0 ? n : 0;
}
