/* SPDX-License-Identifier: Apache-2.0 */
/* device_feed.c: device_check.h's inputs: random ones, and files of them. */
#include <stdlib.h>

#include "tests/support/device_check.h"

/* ---- inputs of one step -------------------------------------------------- */

enum { MAX_INPUTS = 8192 };

typedef struct Inputs {
    ampc_input *in;
    size_t n;
} Inputs;

static bool inputs_new(Inputs *f, size_t n) {
    *f = (Inputs){calloc(n + 1, sizeof *f->in), n};
    return f->in && n <= MAX_INPUTS;
}

static void *inputs_add(Inputs *f, size_t i, const char *name, size_t bytes,
                        int32_t dtype) {
    void *data = calloc(1, bytes + 1);
    char *copy = malloc(strlen(name) + 1);
    if (copy) strcpy(copy, name);
    f->in[i] = ampc_in(copy, data, bytes, (ampc_dtype)dtype);
    return copy ? data : NULL;
}

static void inputs_free(Inputs *f) {
    for (size_t i = 0; f->in && i < f->n; i++) {
        free((void *)(uintptr_t)f->in[i].data);
        free((void *)(uintptr_t)f->in[i].name);
    }
    free(f->in);
}

/* ---- random inputs ------------------------------------------------------- */

struct DcRandom {
    Inputs inputs;
    int64_t int_below;
    const char *bounds;
    uint64_t seed;
};

static uint64_t next(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 33;
}

static int64_t bound_of(const DcRandom *f, const char *name) {
    size_t n = strlen(name);
    for (const char *p = f->bounds; p && *p; p += *p == ',') {
        if (!strncmp(p, name, n) && p[n] == '=') return atoll(p + n + 1);
        p += strcspn(p, ",");
    }
    return f->int_below;
}

static void put_random(int64_t int_below, int32_t dtype, char *p, size_t i,
                       uint64_t *seed) {
    uint64_t v = next(seed);
    double d = (double)v / 1073741824.0 - 1;
    float x = (float)d;
    int64_t n = (int64_t)(v % (uint64_t)int_below);
    int32_t n32 = (int32_t)n;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint16_t top = (uint16_t)(bits >> 16);
    switch (dtype) {
    case AMPC_DTYPE_F32: memcpy(p + 4 * i, &x, 4); break;
    case AMPC_DTYPE_F64: memcpy(p + 8 * i, &d, 8); break;
    case AMPC_DTYPE_BF16: memcpy(p + 2 * i, &top, 2); break;
    case AMPC_DTYPE_I64: memcpy(p + 8 * i, &n, 8); break;
    case AMPC_DTYPE_I32: memcpy(p + 4 * i, &n32, 4); break;
    case AMPC_DTYPE_BOOL: p[i] = (char)(v & 1); break;
    default: break; /* zeroes */
    }
}

static size_t element_size(int32_t dtype) {
    static const uint8_t size[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return size[dtype];
}

const ampc_input *dc_random_feed(void *random, int step, size_t *nin) {
    DcRandom *f = random;
    uint64_t seed = f->seed + (uint64_t)step * 7919;
    *nin = f->inputs.n;
    for (size_t i = 0; i < *nin; i++) {
        const ampc_input *in = &f->inputs.in[i];
        int64_t below = bound_of(f, in->name);
        for (size_t k = 0; k < in->bytes / element_size(in->dtype); k++)
            put_random(below, in->dtype, (char *)(uintptr_t)in->data, k, &seed);
    }
    return f->inputs.in;
}

static bool random_inputs(DcRandom *f, const ampc_api *api,
                          const char *program) {
    ampc_program_info p = {.size = sizeof p};
    if (api->program(api->module, program, &p) ||
        !inputs_new(&f->inputs, p.ninput))
        return false;
    for (uint32_t i = 0; i < p.ninput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        api->input(api->module, program, i, &t);
        if (!inputs_add(&f->inputs, i, t.name, t.bytes, t.dtype)) return false;
    }
    return true;
}

DcRandom *dc_random_new(const ampc_api *api, const char *program,
                        int64_t int_below, uint64_t seed) {
    return dc_random_bounded(api, program, int_below, NULL, seed);
}

DcRandom *dc_random_bounded(const ampc_api *api, const char *program,
                            int64_t int_below, const char *bounds,
                            uint64_t seed) {
    DcRandom *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->int_below = int_below;
    f->bounds = bounds;
    f->seed = seed;
    if (random_inputs(f, api, program)) return f;
    dc_random_free(f);
    return NULL;
}

void dc_random_free(DcRandom *f) {
    if (f) inputs_free(&f->inputs);
    free(f);
}

/* ---- files --------------------------------------------------------------- */

/* "ampc-feed STEPS INPUTS\n"; for each input "DTYPE BYTES NAME\n"; for each
   step the inputs' bytes. */
struct DcFile {
    Inputs inputs;
    FILE *file;
    long begin, step_bytes;
    int steps;
};

bool dc_file_write(const char *path, int steps, DcFeed *feed, void *ctx) {
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL;
    for (int i = 0; i < steps && ok; i++) {
        size_t n;
        const ampc_input *in = feed(ctx, i, &n);
        if (i == 0) ok = fprintf(f, "ampc-feed %d %zu\n", steps, n) > 0;
        for (size_t k = 0; k < n && i == 0; k++)
            fprintf(f, "%d %zu %s\n", in[k].dtype, in[k].bytes, in[k].name);
        for (size_t k = 0; k < n && ok; k++)
            ok = fwrite(in[k].data, 1, in[k].bytes, f) == in[k].bytes;
    }
    return f && !fclose(f) && ok;
}

static bool read_head(DcFile *f) {
    size_t n;
    if (fscanf(f->file, "ampc-feed %d %zu", &f->steps, &n) != 2 ||
        f->steps < 1 || n > MAX_INPUTS || !inputs_new(&f->inputs, n))
        return false;
    for (size_t i = 0; i < n; i++) {
        char name[256];
        int dtype;
        size_t bytes;
        if (fscanf(f->file, "%d %zu %255s", &dtype, &bytes, name) != 3 ||
            !inputs_add(&f->inputs, i, name, bytes, dtype))
            return false;
        f->step_bytes += (long)bytes;
    }
    if (fgetc(f->file) != '\n') return false;
    f->begin = ftell(f->file);
    return true;
}

DcFile *dc_file_open(const char *path) {
    DcFile *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->file = fopen(path, "rb");
    if (f->file && read_head(f)) return f;
    dc_file_free(f);
    return NULL;
}

const ampc_input *dc_file_feed(void *file, int step, size_t *nin) {
    DcFile *f = file;
    *nin = f->inputs.n;
    if (fseek(f->file, f->begin + step % f->steps * f->step_bytes, SEEK_SET))
        return NULL;
    for (size_t i = 0; i < *nin; i++) {
        const ampc_input *in = &f->inputs.in[i];
        if (fread((void *)(uintptr_t)in->data, 1, in->bytes, f->file) !=
            in->bytes)
            return NULL;
    }
    return f->inputs.in;
}

int dc_file_steps(const DcFile *f) { return f->steps; }

void dc_file_free(DcFile *f) {
    if (!f) return;
    inputs_free(&f->inputs);
    if (f->file) fclose(f->file);
    free(f);
}
