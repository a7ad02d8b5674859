/* SPDX-License-Identifier: Apache-2.0 */
/* exchange.c: a program for ranks: sums, broadcasts and gathers of many sizes
   through the engine that is named, each compared with what one process
   computes in the order of ranks.

     exchange ENGINE [LIBRARY]

   With a library of MPI the program itself starts that and ends it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"

/* A piece of the engine has 2^20 fp32 numbers. */
static const size_t sizes[] = {
    0, 1, 2, 3, 5, 1000, (1 << 20) - 1, (1 << 20) + 1, 3000001};
enum { NSIZE = sizeof sizes / sizeof *sizes };

/* Numbers of many magnitudes, so that the order of a sum shows. */
static double number(int rank, size_t i) {
    uint64_t x = ((uint64_t)i * 8 + (uint64_t)rank + 1) * 0x9e3779b97f4a7c15u;
    double v = (double)(x >> 40) / 16777216.0 - 0.5;
    return x & 4096 ? v * 1000 : v;
}

static bool sums(ampc_comm *c, size_t n, void *data, bool wide) {
    for (size_t i = 0; i < n; i++)
        if (wide)
            ((double *)data)[i] = number(c->rank, i);
        else
            ((float *)data)[i] = (float)number(c->rank, i);
    if (c->allreduce(c->ctx, data, n, wide ? AMPC_DTYPE_F64 : AMPC_DTYPE_F32))
        return false;
    for (size_t i = 0; i < n; i++) {
        double sum = number(0, i);
        float narrow = (float)sum;
        for (int r = 1; r < c->world; r++) {
            sum += number(r, i);
            narrow += (float)number(r, i);
        }
        if (wide ? ((double *)data)[i] != sum : ((float *)data)[i] != narrow)
            return false;
    }
    return true;
}

/* Sums of 16-bit numbers: added in f32, rounded once. */
static bool half_sums(ampc_comm *c, size_t n, uint16_t *data, uint32_t dtype) {
    for (size_t i = 0; i < n; i++)
        data[i] = half_of_f32(dtype, (float)number(c->rank, i));
    if (c->allreduce(c->ctx, data, n, (int32_t)dtype)) return false;
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < c->world; r++) {
            uint16_t h = half_of_f32(dtype, (float)number(r, i));
            sum = r ? sum + half_to_f32(dtype, h) : half_to_f32(dtype, h);
        }
        if (data[i] != half_of_f32(dtype, sum)) return false;
    }
    return true;
}

static bool broadcasts(ampc_comm *c, size_t n, char *data) {
    for (int root = 0; root < c->world; root++) {
        memset(data, c->rank == root ? root + 1 : 0, n);
        if (c->broadcast(c->ctx, data, n, root)) return false;
        for (size_t i = 0; i < n; i++)
            if (data[i] != root + 1) return false;
    }
    return true;
}

/* Rank r has r + 1 shares of n, except the second rank, which has none. */
static bool gathers(ampc_comm *c, size_t n) {
    uint64_t at[9] = {0};
    if (!c->gather) return true;
    for (int r = 0; r < c->world; r++)
        at[r + 1] = at[r] + (r == 1 ? 0 : n * (size_t)(r + 1));
    char *data = malloc(at[c->world] + 1);
    memset(data, 0, at[c->world]);
    for (uint64_t i = at[c->rank]; i < at[c->rank + 1]; i++)
        data[i] = (char)(i % 251);
    bool ok = c->gather(c->ctx, data, at) == 0;
    for (uint64_t i = 0; i < at[c->world] && ok; i++)
        ok = data[i] == (char)(i % 251);
    free(data);
    return ok;
}

/* Each rank gets the sum of its share; one of the first two ranks has an
   empty share. */
static bool scatters(ampc_comm *c, size_t n, uint32_t dtype) {
    uint64_t at[9] = {0}, each = dtype_bytes(dtype);
    if (!c->scatter) return true;
    for (int r = 0; r < c->world; r++)
        at[r + 1] = at[r] + (r == (int)(n % 2) ? 0 : n / (size_t)(r + 1));
    char *data = malloc(at[c->world] * each + 1);
    for (uint64_t i = 0; i < at[c->world]; i++)
        float_put(dtype, number(c->rank, i), data + i * each);
    bool ok = c->scatter(c->ctx, data, at, (int32_t)dtype) == 0;
    for (uint64_t i = at[c->rank]; i < at[c->rank + 1] && ok; i++) {
        float sum = 0;
        char want[8];
        for (int r = 0; r < c->world; r++) {
            float_put(dtype, number(r, i), want);
            float x = (float)float_at(dtype, want);
            sum = r ? sum + x : x;
        }
        float_put(dtype, sum, want);
        ok = memcmp(want, data + i * each, each) == 0;
    }
    free(data);
    return ok;
}

/* ---- MPI of the program's own -------------------------------------------- */

typedef int InitFn(int *argc, char ***argv);
typedef int FinalizedFn(int *flag);
typedef int FinalizeFn(void);

static void *own;
#define OWN(type, name) ((type *)(uintptr_t)dlsym(own, name))

static bool start_own(const char *lib) {
    own = dlopen(lib, RTLD_NOW | RTLD_GLOBAL);
    return own && OWN(InitFn, "MPI_Init")(NULL, NULL) == 0;
}

/* Only the program ends it. */
static bool end_own(void) {
    int ended = 1;
    return OWN(FinalizedFn, "MPI_Finalized")(&ended) == 0 && !ended &&
           OWN(FinalizeFn, "MPI_Finalize")() == 0;
}

/* ---- all ----------------------------------------------------------------- */

int main(int argc, char **argv) {
    ampc_comm_options o = {
        .size = sizeof o, .engine = argc > 1 ? argv[1] : NULL, .deadline = 60};
    ampc_comm *c;
    char err[400];
    if (argc > 2 && !start_own(argv[2])) {
        puts("the program's own MPI does not start");
        return 1;
    }
    if (comm_open(&o, &c, err, sizeof err) != AMPC_OK) {
        puts(err);
        return 1;
    }
    bool ok = true;
    for (int i = 0; i < NSIZE && ok; i++) { /* exactly as much as is passed */
        size_t n = sizes[i];
        void *data = malloc(n * sizeof(double));
        ok = sums(c, n, data, true) &&
             broadcasts(c, n * sizeof(double), data) && gathers(c, n);
        free(data);
        data = malloc(n * sizeof(float));
        ok = ok && sums(c, n, data, false) && c->barrier(c->ctx) == 0;
        free(data);
        data = malloc(n * sizeof(uint16_t));
        ok = ok && half_sums(c, n, data, AMPC_BF16) &&
             half_sums(c, n, data, AMPC_F16);
        free(data);
        ok = ok && scatters(c, n, AMPC_F32) && scatters(c, n, AMPC_F16);
        if (!ok)
            printf("rank %d of %d: %zu numbers: %s\n", c->rank, c->world, n,
                   c->error(c->ctx));
    }
    bool tells = c->rank == 0;
    int world = c->world;
    comm_close(c);
    ok = ok && (argc < 3 || end_own());
    if (tells && ok) printf("%d ranks, %d sizes\n", world, NSIZE);
    return !ok;
}
