/* SPDX-License-Identifier: Apache-2.0 */
/* portable_host.c [STEPS [THREADS]]: trains a module on random numbers and
   prints the bits of each loss and a hash of all variables.  With -DMODULE
   it loads that file, else it is linked with the code that --target c wrote;
   with -DOWN_MEMORY=BYTES all memory comes from one array of that size, and
   the last line says how much of it was used. */
#ifdef MODULE
#include "ampc.h"
#else
#include "train.h"
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#define aligned_alloc(align, bytes) _aligned_malloc(bytes, align)
#define free(p)                     _aligned_free(p)
#endif

#ifdef OWN_MEMORY
static _Alignas(64) char arena[OWN_MEMORY];
static size_t used, most;

static void *take(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    size_t at = (used + align - 1) / align * align;
    if (bytes > sizeof arena || at > sizeof arena - bytes) return NULL;
    used = at + bytes;
    if (used > most) most = used;
    return arena + at;
}

/* Memory comes back in the order of a stack, or not at all. */
static void give_back(void *ctx, void *p, size_t bytes) {
    (void)ctx;
    if ((char *)p + bytes == arena + used) used = (size_t)((char *)p - arena);
}
#else
static void *take(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void give_back(void *ctx, void *p, size_t bytes) {
    (void)ctx;
    (void)bytes;
    free(p);
}
#endif

enum { INPUTS = 8 };

static char *data[INPUTS];
static uint32_t seed = 1;

static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static void fill(char *to, const ampc_tensor_info *t) {
    for (uint64_t i = 0; t->dtype == AMPC_DTYPE_F32 && i < t->bytes / 4; i++) {
        float x = (float)draw() / 16777216.0f;
        memcpy(to + 4 * i, &x, 4);
    }
    for (uint64_t i = 0; t->dtype == AMPC_DTYPE_I64 && i < t->bytes / 8; i++) {
        int64_t x = draw() % 10;
        memcpy(to + 8 * i, &x, 8);
    }
}

static uint64_t hash(uint64_t h, const char *p, uint64_t n) {
    while (n--) h = (h ^ (unsigned char)*p++) * UINT64_C(1099511628211);
    return h;
}

static int stop(const char *what, const char *why) {
    printf("%s: %s\n", what, why);
    return 1;
}

static int put_variables(const ampc_api *api, ampc_session *s) {
    uint64_t h = UINT64_C(14695981039346656037);
    ampc_variable_info v = {.size = sizeof v};
    for (uint32_t i = 0; !api->variable(api->module, i, &v); i++) {
        if (v.kind > AMPC_KIND_STATE) continue;
        char *bytes = take(NULL, v.bytes + !v.bytes, 64);
        if (!bytes) return stop("read", "no memory");
        ampc_output out = {.size = sizeof out,
                           .data = bytes,
                           .bytes = v.bytes,
                           .dtype = v.dtype};
        if (api->read_variable(s, v.name, &out))
            return stop("read", api->error(s));
        h = hash(h, bytes, v.bytes);
        give_back(NULL, bytes, v.bytes + !v.bytes);
    }
    printf("variables %08lx%08lx\n", (unsigned long)(h >> 32),
           (unsigned long)(h & 0xffffffff));
    return 0;
}

int main(int argc, char **argv) {
    char err[300] = "no table";
    int steps = argc > 1 ? atoi(argv[1]) : 20;
    ampc_options o = {.size = sizeof o};
    ampc_program_info p = {.size = sizeof p};
    ampc_input in[INPUTS];
    ampc_session *s;
#ifdef _WIN32
    _setmode(1, _O_BINARY); /* lines end as elsewhere */
#endif
    o.threads = argc > 2 ? atoi(argv[2]) : 1;
#ifdef OWN_MEMORY
    o.alloc = take;
    o.free = give_back;
#endif
#ifdef MODULE
    const ampc_api *api = ampc_load(MODULE, NULL, err, sizeof err);
#else
    const ampc_api *api = ampc_module(AMPC_ABI_VERSION);
#endif
    if (!api || api->open(api->module, &o, &s, err, sizeof err))
        return stop("open", err);
    api->program(api->module, "train", &p);
    for (int k = 0; k < steps; k++) {
        ampc_metrics m = {.size = sizeof m};
        for (uint32_t i = 0; i < p.ninput; i++) {
            ampc_tensor_info t = {.size = sizeof t};
            api->input(api->module, "train", i, &t);
            if (!data[i]) data[i] = take(NULL, t.bytes, 64);
            if (!data[i]) return stop("input", "no memory");
            fill(data[i], &t);
            in[i] = ampc_in(t.name, data[i], t.bytes, t.dtype);
        }
        if (api->step(s, in, p.ninput, &m)) return stop("step", api->error(s));
        float loss = (float)m.loss;
        uint32_t bits;
        memcpy(&bits, &loss, sizeof bits);
        printf("%d %08lx\n", k, (unsigned long)bits);
    }
    if (put_variables(api, s)) return 1;
    if (api->save(s, "portable.ckpt")) printf("save: %s\n", api->error(s));
    api->close(s);
#ifdef OWN_MEMORY
    printf("memory %lu\n", (unsigned long)most);
#endif
    return 0;
}
