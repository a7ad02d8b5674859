/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_bench.c: speed of the CPU routines.

     cpu_bench [threads] [filter]
     cpu_bench threads serve

   With one thread the time is CPU time, which a busy machine disturbs less.
   The first line gives the machine's fp32 multiply-add peak and its copy speed
   (bytes read and written). Then each shape has a line: best and median time,
   GFLOP/s of the best, and its share of that peak. A filter that matches no
   name leaves only the first line. AMPC_ISA (ampc.h) chooses the level.

   serve: answers each line of the input with a median in milliseconds:
     gemm f32|bf16 SECONDS M N K NN|NT|TN
     conv f32|bf16 SECONDS fwd|dgrad|wgrad N C IMAGE K KERNEL STRIDE PAD
   (models/bench/bench_kernels.py). */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/support/cpu_levels.h"

enum { REPS = 400 };

static AmpcPool *pool;
static int threads = 2;
static const AmpcCpuLib *lib;
static double peak; /* GFLOP/s of all threads together */
static const char *filter = "";
static double budget = 0.4; /* seconds of a shape                           */
static int serves;

static double now(void) {
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef void Bench(void *ctx);

static void report(const char *name, double flops, Bench *fn, void *ctx) {
    double t[REPS], start = now();
    int n = 0;
    if (!strstr(name, filter)) return;
    fn(ctx);
    while (n < REPS && (n < 5 || now() - start < budget)) {
        double t0 = now();
        fn(ctx);
        t[n++] = now() - t0;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    if (serves) {
        printf("%.6g\n", t[n / 2] * 1e3);
        fflush(stdout);
        return;
    }
    printf("%-44s %9.1f us  median %9.1f us", name, t[0] * 1e6, t[n / 2] * 1e6);
    if (flops > 0)
        printf("  %7.1f GFLOP/s  %5.1f %%", flops / t[0] * 1e-9,
               flops / t[0] * 1e-7 / peak);
    printf("\n");
    fflush(stdout);
}

/* ---- peak ---------------------------------------------------------------- */

#define PEAK_STEP(j, FMA)                                                      \
    do {                                                                       \
        a##j = FMA(x, y, a##j);                                                \
        __asm__ volatile("" : "+v"(a##j));                                     \
    } while (0)
#define PEAK(name, features, V, FMA)                                           \
    __attribute__((target(features))) static float name(int64_t n) {           \
        V x = {0}, y = {0}, a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x;    \
        V a6 = x, a7 = x, a8 = x, a9 = x, a10 = x, a11 = x;                    \
        for (int64_t i = 0; i < n; i++) {                                      \
            PEAK_STEP(0, FMA);                                                 \
            PEAK_STEP(1, FMA);                                                 \
            PEAK_STEP(2, FMA);                                                 \
            PEAK_STEP(3, FMA);                                                 \
            PEAK_STEP(4, FMA);                                                 \
            PEAK_STEP(5, FMA);                                                 \
            PEAK_STEP(6, FMA);                                                 \
            PEAK_STEP(7, FMA);                                                 \
            PEAK_STEP(8, FMA);                                                 \
            PEAK_STEP(9, FMA);                                                 \
            PEAK_STEP(10, FMA);                                                \
            PEAK_STEP(11, FMA);                                                \
        }                                                                      \
        return a0[0] + a1[0] + a2[0] + a3[0] + a4[0] + a5[0] + a6[0] + a7[0] + \
               a8[0] + a9[0] + a10[0] + a11[0];                                \
    }
PEAK(peak_v4, "avx512f", __m512, _mm512_fmadd_ps)
PEAK(peak_v3, "fma", __m256, _mm256_fmadd_ps)

static void peak_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)worker;
    for (int64_t i = lo; i < hi; i++)
        *(volatile float *)ctx =
            lib->isa == 4 ? peak_v4(1000000) : peak_v3(1000000);
}

enum { COPY_BYTES = 1 << 26 };

static void copy_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    char *p = ctx;
    (void)worker;
    memcpy(p + COPY_BYTES + lo, p + lo, (size_t)(hi - lo));
}

/* GB/s of all threads together. */
static double measure_copy(void) {
    char *p = malloc(2 * (size_t)COPY_BYTES);
    double best = 1e9;
    if (!p) exit(1);
    memset(p, 1, 2 * (size_t)COPY_BYTES);
    for (int i = 0; i < 10; i++) {
        double t0 = now();
        pool_run(pool, COPY_BYTES, COPY_BYTES / threads, copy_work, p);
        double t = now() - t0;
        if (t < best) best = t;
    }
    free(p);
    return 2e-9 * COPY_BYTES / best;
}

static void measure_peak(void) {
    float sink;
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        double t0 = now();
        pool_run(pool, threads, 1, peak_work, &sink);
        double t = now() - t0;
        if (t < best) best = t;
    }
    peak = 2.0 * 12e6 * (lib->isa == 4 ? 16 : 8) * threads / best * 1e-9;
    printf("level %s, %d threads, fp32 peak %.0f GFLOP/s, copy %.1f GB/s\n",
           cpu_isa_name(lib->isa), threads, peak, measure_copy());
}

/* ---- pool ---------------------------------------------------------------- */

static void nothing(void *ctx, int64_t lo, int64_t hi, int worker) {
    (void)ctx;
    (void)lo;
    (void)hi;
    (void)worker;
}

static void bench_handover(void *ctx) {
    (void)ctx;
    for (int i = 0; i < 1000; i++) pool_run(pool, threads, 1, nothing, NULL);
}

/* ---- buffers ------------------------------------------------------------- */

enum { HUGE_PAGE = 1 << 21 };

static void *buffer(int64_t bytes) {
    int64_t page = bytes < HUGE_PAGE ? 64 : HUGE_PAGE; /* as session.c does */
    void *p =
        aligned_alloc((size_t)page, (size_t)((bytes + page - 1) / page * page));
    if (!p) exit(1);
    if (page == HUGE_PAGE) madvise(p, (size_t)bytes, MADV_HUGEPAGE);
    uint16_t *h = p;
    uint32_t r = 1;
    for (int64_t i = 0; i < bytes / 2; i++) { /* near 1 in all types */
        r = r * 1664525u + 1013904223u;
        h[i] = (uint16_t)(0x3f00 + (r >> 25));
    }
    return p;
}

static int64_t size_of(int64_t dtype) { return dtype == AMPC_F32 ? 4 : 2; }

/* ---- matrix product ------------------------------------------------------ */

typedef struct GemmBench {
    LibGemm g;
    void *a, *b, *c, *scratch;
} GemmBench;

static void run_gemm(void *ctx) {
    GemmBench *x = ctx;
    lib->gemm(lib->isa, pool, &x->g, x->a, x->b, x->c, NULL, x->scratch, NULL);
}

/* ta, tb: the operand is stored transposed. */
static void bench_gemm(int64_t batch, int64_t m, int64_t n, int64_t k, int ta,
                       int tb, int64_t dtype) {
    GemmBench x = {.g = {.m = m, .n = n, .k = k, .nbatch_dim = 1}};
    LibGemm *g = &x.g;
    char name[128];
    g->batch_dim[0] = batch;
    g->a_bs[0] = m * k;
    g->b_bs[0] = k * n;
    g->a_rs = ta ? 1 : k;
    g->a_cs = ta ? m : 1;
    g->b_rs = tb ? 1 : n;
    g->b_cs = tb ? k : 1;
    g->a_dtype = g->b_dtype = g->c_dtype = dtype;
    x.a = buffer(batch * m * k * size_of(dtype));
    x.b = buffer(batch * k * n * size_of(dtype));
    x.c = buffer(batch * m * n * size_of(dtype));
    x.scratch = buffer((int64_t)cpu_gemm_scratch(g, threads) + 64);
    snprintf(name, sizeof name, "gemm %s %dx %dx%dx%d%s%s",
             dtype == AMPC_F32 ? "f32" : "bf16", (int)batch, (int)m, (int)n,
             (int)k, ta ? " At" : "", tb ? " Bt" : "");
    report(name, 2.0 * (double)(batch * m * n * k), run_gemm, &x);
    free(x.a);
    free(x.b);
    free(x.c);
    free(x.scratch);
}

/* ---- convolution --------------------------------------------------------- */

typedef struct ConvBench {
    LibConv c;
    int which;
    void *x, *w, *y, *scratch;
} ConvBench;

static void run_conv(void *ctx) {
    ConvBench *b = ctx;
    if (b->which == 0)
        lib->conv_fwd(lib->isa, pool, &b->c, b->x, b->w, b->y, NULL, b->scratch,
                      NULL);
    else if (b->which == 1)
        lib->conv_dgrad(lib->isa, pool, &b->c, b->y, b->w, b->x, b->scratch);
    else
        lib->conv_wgrad(lib->isa, pool, &b->c, b->x, b->y, b->w, b->scratch);
}

static void bench_conv(int64_t n, int64_t c, int64_t k, int64_t hw,
                       int64_t kernel, int64_t stride, int64_t pad,
                       int64_t group, int64_t dtype) {
    static const char *const names[] = {"fwd", "dgrad", "wgrad"};
    int64_t out = (hw + 2 * pad - kernel) / stride + 1;
    ConvBench b = {.c = {n,
                         c,
                         k,
                         group,
                         {1, hw, hw},
                         {1, out, out},
                         {1, kernel, kernel},
                         {1, stride, stride},
                         {1, 1, 1},
                         {0, pad, pad},
                         dtype,
                         dtype,
                         dtype}};
    double flops =
        2.0 * (double)(n * k * out * out * c / group * kernel * kernel);
    b.x = buffer(n * c * hw * hw * 4);
    b.w = buffer(k * c / group * kernel * kernel * 4);
    b.y = buffer(n * k * out * out * 4);
    for (b.which = 0; b.which < 3; b.which++) {
        size_t need = b.which == 0   ? cpu_conv_fwd_scratch(&b.c, threads)
                      : b.which == 1 ? cpu_conv_dgrad_scratch(&b.c, threads)
                                     : cpu_conv_wgrad_scratch(&b.c, threads);
        b.c.w_dtype = b.which == 2 ? AMPC_F32 : dtype;
        b.scratch = buffer((int64_t)need + 64);
        char name[128];
        snprintf(name, sizeof name, "conv %s %dx%dx%d^2->%d k%d s%d g%d %s",
                 dtype == AMPC_F32 ? "f32" : "bf16", (int)n, (int)c, (int)hw,
                 (int)k, (int)kernel, (int)stride, (int)group, names[b.which]);
        report(name, flops, run_conv, &b);
        free(b.scratch);
    }
    free(b.x);
    free(b.w);
    free(b.y);
}

/* ---- pooling ------------------------------------------------------------- */

typedef struct PoolBench {
    LibPool p;
    int which;
    void *x, *y;
    int32_t *idx;
} PoolBench;

static void run_pool(void *ctx) {
    PoolBench *b = ctx;
    if (b->which == 0)
        lib->maxpool(pool, &b->p, b->x, b->y, b->idx);
    else if (b->which == 1)
        lib->maxpool_grad(pool, &b->p, b->y, b->idx, b->x);
    else if (b->which == 2)
        lib->avgpool(pool, &b->p, b->x, b->y);
    else
        lib->avgpool_grad(pool, &b->p, b->y, b->x);
}

static void bench_pool(int64_t planes, int64_t hw, int64_t kernel,
                       int64_t stride, int64_t pad, int64_t dtype) {
    static const char *const names[] = {"max", "max grad", "avg", "avg grad"};
    int64_t out = (hw + 2 * pad - kernel) / stride + 1;
    PoolBench b = {.p = {planes,
                         {1, hw, hw},
                         {1, out, out},
                         {1, kernel, kernel},
                         {1, stride, stride},
                         {1, 1, 1},
                         {0, pad, pad},
                         {0, pad, pad},
                         1,
                         dtype,
                         AMPC_I8}};
    b.x = buffer(planes * hw * hw * 4);
    b.y = buffer(planes * out * out * 4);
    b.idx = buffer(planes * out * out * 4);
    lib->maxpool(pool, &b.p, b.x, b.y, b.idx);
    for (b.which = 0; b.which < 4; b.which++) {
        char name[128];
        snprintf(name, sizeof name, "pool %s %dx%d^2 k%d s%d %s",
                 dtype == AMPC_F32 ? "f32" : "bf16", (int)planes, (int)hw,
                 (int)kernel, (int)stride, names[b.which]);
        report(name, 0, run_pool, &b);
    }
    free(b.x);
    free(b.y);
    free(b.idx);
}

static void bench_dtype(int64_t dtype) {
    bench_gemm(1, 512, 512, 512, 0, 0, dtype);
    bench_gemm(1, 1024, 1024, 1024, 0, 0, dtype);
    bench_gemm(1, 128, 512, 784, 0, 0, dtype);
    bench_gemm(1, 784, 512, 128, 1, 0, dtype);
    bench_gemm(1, 128, 784, 512, 0, 1, dtype);
    bench_gemm(1, 128, 256, 512, 0, 0, dtype);
    bench_gemm(1, 512, 256, 128, 1, 0, dtype);
    bench_gemm(1, 128, 512, 256, 0, 1, dtype);
    bench_gemm(1, 128, 10, 256, 0, 0, dtype);
    bench_gemm(1, 256, 10, 128, 1, 0, dtype);
    bench_gemm(1, 128, 256, 10, 0, 1, dtype);
    bench_gemm(1, 1, 512, 784, 0, 0, dtype);
    bench_gemm(1, 1, 512, 784, 0, 1, dtype);
    bench_gemm(48, 64, 64, 64, 0, 1, dtype);
    bench_gemm(48, 128, 128, 64, 0, 1, dtype);
    bench_gemm(48, 128, 64, 128, 0, 0, dtype);
    bench_gemm(1, 768, 768, 4096, 1, 0, dtype);
    bench_gemm(1, 1024, 3072, 768, 0, 0, dtype);
    bench_conv(64, 1, 16, 28, 3, 1, 0, 1, dtype);
    bench_conv(64, 1, 32, 28, 3, 1, 0, 1, dtype);
    bench_conv(64, 32, 64, 26, 3, 1, 0, 1, dtype);
    bench_conv(64, 16, 32, 13, 3, 1, 0, 1, dtype);
    bench_conv(64, 32, 64, 14, 3, 1, 1, 1, dtype);
    bench_conv(64, 1, 32, 28, 5, 1, 2, 1, dtype);
    for (int64_t c = 64, hw = 32; c <= 512; c *= 2, hw /= 2) { /* ResNet-18 */
        bench_conv(16, c, c, hw, 3, 1, 1, 1, dtype);
        if (c == 512) break;
        bench_conv(16, c, 2 * c, hw, 3, 2, 1, 1, dtype);
        bench_conv(16, c, 2 * c, hw, 1, 2, 0, 1, dtype);
    }
    bench_conv(8, 64, 64, 56, 3, 1, 1, 1, dtype);
    bench_conv(8, 64, 128, 56, 3, 2, 1, 1, dtype);
    bench_conv(8, 256, 64, 56, 1, 1, 0, 1, dtype);
    bench_conv(8, 512, 512, 7, 3, 1, 1, 1, dtype);
    bench_conv(8, 3, 64, 224, 7, 2, 3, 1, dtype);
    bench_conv(8, 64, 64, 56, 3, 1, 1, 64, dtype);
    bench_pool(64 * 32, 26, 2, 2, 0, dtype);
    bench_pool(50 * 16, 28, 2, 2, 0, dtype);
    bench_pool(50 * 32, 14, 2, 2, 0, dtype);
    bench_pool(8 * 64, 112, 3, 2, 1, dtype);
    bench_pool(8 * 512, 7, 7, 1, 0, dtype);
}

/* ---- shapes on demand ---------------------------------------------------- */

static void serve_line(const char *line) {
    char dtype[8], how[8];
    long n, m, k, s[7];
    if (sscanf(line, "gemm %7s %lf %ld %ld %ld %7s", dtype, &budget, &m, &n, &k,
               how) == 6) {
        filter = "";
        bench_gemm(1, m, n, k, how[0] == 'T', how[1] == 'T',
                   strcmp(dtype, "f32") ? AMPC_BF16 : AMPC_F32);
    } else if (sscanf(line, "conv %7s %lf %7s %ld %ld %ld %ld %ld %ld %ld",
                      dtype, &budget, how, &s[0], &s[1], &s[2], &s[3], &s[4],
                      &s[5], &s[6]) == 10) {
        filter = how;
        bench_conv(s[0], s[1], s[3], s[2], s[4], s[5], s[6], 1,
                   strcmp(dtype, "f32") ? AMPC_BF16 : AMPC_F32);
    } else {
        fprintf(stderr, "what is this: %s", line);
        exit(1);
    }
}

static int serve(void) {
    char line[256];
    serves = 1;
    while (fgets(line, sizeof line, stdin)) serve_line(line);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) threads = atoi(argv[1]);
    if (argc > 2) filter = argv[2];
    pool = pool_create(threads);
    if (!pool) return 1;
    threads = pool_threads(pool);
    lib = cpu_level(cpu_isa_level());
    if (!strcmp(filter, "serve")) return serve();
    measure_peak();
    report("pool: 1000 hand-overs", 0, bench_handover, NULL);
    bench_dtype(AMPC_F32);
    bench_dtype(AMPC_BF16);
    pool_destroy(pool);
    return 0;
}
