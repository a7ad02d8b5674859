/* SPDX-License-Identifier: Apache-2.0 */
/* peaks.c: the peak performance of this machine's CPUs, measured in a tenth of
   a second: multiply-adds of independent fp32 vectors, and a copy between two
   arrays larger than any cache, on as many threads as may run.  Best of a few
   tries, since
   others may use the machine.                                               */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codegen/cost/roofline.h"

enum {
    MOST_THREADS = 256,
    CHAINS = 12, /* latency of 4 to 5 clocks, two multiply-adds a clock */
    ROUNDS = 1 << 20,
    COPY_BYTES = 256 << 20, /* sum over all threads */
    TRIES = 3
};

typedef struct Probe {
    pthread_t thread;
    char *memory;
    size_t bytes;
    double flops, copied; /* a second */
    float sink;
} Probe;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Separate functions, not clones that the loader chooses among: it would
   call the chooser before a sanitizer is ready. */
#define MULTIPLY_ADD(name, features, lanes)                                    \
    __attribute__((target(features),                                           \
                   optimize("O3,fp-contract=fast"))) static float              \
    name(void) {                                                               \
        typedef float Lanes                                                    \
            __attribute__((vector_size(lanes * sizeof(float))));               \
        Lanes a[CHAINS], x = {0}, sum = {0};                                   \
        for (int i = 0; i < CHAINS; i++) a[i] = x + (float)(2 + i);            \
        x += 0.5f;                                                             \
        for (int r = 0; r < ROUNDS; r++)                                       \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) a[i] =   \
                a[i] * x + x;                                                  \
        for (int i = 0; i < CHAINS; i++) sum += a[i];                          \
        return sum[0];                                                         \
    }
typedef struct Vectors {
    float (*multiply_add)(void);
    int lanes;
} Vectors;

#if defined __aarch64__
MULTIPLY_ADD(multiply_add_v8, "arch=armv8-a", 4)

static Vectors widest(void) { return (Vectors){multiply_add_v8, 4}; }
#else
MULTIPLY_ADD(multiply_add_v2, "sse4.2", 4)
MULTIPLY_ADD(multiply_add_v3, "avx2,fma", 8)
MULTIPLY_ADD(multiply_add_v4, "avx512f", 16)

static Vectors widest(void) {
    if (__builtin_cpu_supports("avx512f"))
        return (Vectors){multiply_add_v4, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (Vectors){multiply_add_v3, 8};
    return (Vectors){multiply_add_v2, 4};
}
#endif

static void *peaks_measure(void *p) {
    Probe *x = p;
    size_t half = x->bytes / 2;
    Vectors v = widest();
    memset(x->memory, 1, x->bytes);
    double start = now();
    x->sink += v.multiply_add();
    x->flops = 2.0 * CHAINS * v.lanes * ROUNDS / (now() - start);
    start = now();
    memcpy(x->memory, x->memory + half, half);
    x->copied = 2.0 * (double)half / (now() - start);
    return NULL;
}

CpuPeaks cpu_peaks(void) {
    cpu_set_t set;
    CpuPeaks best = {.threads = 1};
    if (!sched_getaffinity(0, sizeof set, &set)) best.threads = CPU_COUNT(&set);
    if (best.threads > MOST_THREADS) best.threads = MOST_THREADS;
    size_t each = COPY_BYTES / (size_t)best.threads;
    char *memory = malloc(COPY_BYTES);
    for (int i = 0; i < TRIES && memory; i++) {
        Probe probe[MOST_THREADS] = {0};
        double flops = 0, bytes = 0;
        int made = 0;
        for (; made < best.threads; made++) {
            probe[made].memory = memory + each * (size_t)made;
            probe[made].bytes = each;
            if (pthread_create(&probe[made].thread, NULL, peaks_measure,
                               &probe[made]))
                break;
        }
        for (int k = 0; k < made; k++) {
            pthread_join(probe[k].thread, NULL);
            flops += probe[k].flops;
            bytes += probe[k].copied;
        }
        if (flops > best.flops) best.flops = flops;
        if (bytes > best.bytes) best.bytes = bytes;
    }
    free(memory);
    return best;
}
