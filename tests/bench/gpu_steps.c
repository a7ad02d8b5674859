/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_steps.c: times every step of a training step by events, beside a copy and
   the best product in the same run.

   It reads the compiler's facts about the steps from `ampc inspect
   --roofline --json`: one line per step, in order. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/peak.h"
#include "tests/bench/gpu_check.h"

/* ---- what the compiler knows --------------------------------------------- */

typedef struct Fact {
    char name[64], how[16];
    double mma, bytes, predicted; /* FLOPs, bytes, us */
    double us;                    /* measured, over all repetitions */
} Fact;

typedef struct Facts {
    Fact *step;
    int n, room;
    double mma; /* of all */
} Facts;

/* The machine in the predictions that is most like the device. */
static const char *machine_of(const Gpu *g) {
    const GpuSheet *sheet = gpu_sheet(g->name);
    return sheet ? sheet->name : "H100";
}

static double number_behind(const char *line, const char *key) {
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

static void text_behind(const char *line, const char *key, char *out,
                        size_t size) {
    const char *at = strstr(line, key), *end = NULL;
    if (at) end = strchr(at += strlen(key), '"');
    snprintf(out, size, "%.*s", end ? (int)(end - at) : 0, end ? at : "");
}

static bool add_fact(Facts *f, const Fact *x) {
    if (f->n == f->room) {
        int room = f->room ? 2 * f->room : 256;
        Fact *more = realloc(f->step, (size_t)room * sizeof *more);
        if (!more) return false;
        f->step = more;
        f->room = room;
    }
    f->step[f->n++] = *x;
    f->mma += x->mma;
    return true;
}

/* True if a GPU of that compute capability, times 10, runs the step (cost.h).
 */
static bool runs_there(const char *line, int capability) {
    int since = (int)number_behind(line, "\"since\":");
    return since < 0 ? capability < -since : capability >= since;
}

/* Reads the facts of program "train" on a GPU. */
static bool read_facts(const char *path, const Gpu *g, Facts *f) {
    FILE *in = fopen(path, "r");
    char *line = NULL, us[24];
    size_t size = 0;
    bool here = false, ok = in != NULL;
    *f = (Facts){0};
    snprintf(us, sizeof us, "\"%s\":{\"us\":", machine_of(g));
    while (ok && getline(&line, &size, in) > 0) {
        if (strstr(line, "{\"target\":"))
            here = strstr(line, "\"target\":\"cuda\",\"program\":\"train\"");
        if (!here || strncmp(line, "{\"name\":\"", 9)) continue;
        Fact x = {.mma = number_behind(line, "\"mma\":"),
                  .bytes = number_behind(line, "\"bytes\":"),
                  .predicted = number_behind(line, us)};
        text_behind(line, "{\"name\":\"", x.name, sizeof x.name);
        text_behind(line, "\"how\":\"", x.how, sizeof x.how);
        if (runs_there(line, 10 * g->major + g->minor)) ok = add_fact(f, &x);
    }
    free(line);
    if (in) fclose(in);
    return ok && f->n > 0;
}

/* MODULE.so becomes MODULE.json. */
static void facts_path(const char *module, char path[600]) {
    size_t n = strlen(module);
    if (n > 3 && !strcmp(module + n - 3, ".so")) n -= 3;
    snprintf(path, 600, "%.*s.json", (int)(n < 590 ? n : 590), module);
}

/* ---- a copy -------------------------------------------------------------- */

/* GB/s, read and written; 0: it failed. */
static double copy_speed(Gpu *g) {
    enum { REPEATS = 10 };
    CUdeviceptr from = 0, to = 0;
    CUstream s = NULL;
    CUevent a = NULL, b = NULL;
    float ms = 0;
    size_t bytes = (size_t)512 << 20, free_bytes = 0, all = 0;
    g->MemGetInfo(&free_bytes, &all);
    while (bytes > free_bytes / 4) bytes /= 2;
    bool ok = !g->MemAlloc(&from, bytes) && !g->MemAlloc(&to, bytes) &&
              !g->StreamCreate(&s, CUDA_STREAM_NON_BLOCKING) &&
              !g->EventCreate(&a, 0) && !g->EventCreate(&b, 0) &&
              !g->MemsetD8Async(from, 0x3c, bytes, s) &&
              !g->MemcpyDtoDAsync(to, from, bytes, s) && !g->EventRecord(a, s);
    for (int i = 0; i < REPEATS && ok; i++)
        ok = !g->MemcpyDtoDAsync(to, from, bytes, s);
    ok = ok && !g->EventRecord(b, s) && !g->EventSynchronize(b) &&
         !g->EventElapsedTime(&ms, a, b);
    if (a) g->EventDestroy(a);
    if (b) g->EventDestroy(b);
    if (s) g->StreamDestroy(s);
    if (from) g->MemFree(from);
    if (to) g->MemFree(to);
    return ok && ms > 0 ? 2.0 * REPEATS * (double)bytes / (1e6 * ms) : 0;
}

/* ---- the steps ----------------------------------------------------------- */

typedef struct Timer {
    Facts *f;
    int at, wrong; /* number of the next step; number of steps without facts */
} Timer;

static void count_time(void *ctx, const char *program, const char *step,
                       uint64_t begin, uint64_t end) {
    Timer *t = ctx;
    (void)step;
    if (strcmp(program, "train")) return;
    if (t->at < t->f->n)
        t->f->step[t->at].us += (double)(end - begin) * 1e-3;
    else
        t->wrong++;
    t->at++;
}

static bool time_all(const ampc_api *api, ampc_session *s, const ampc_input *in,
                     size_t nin, int steps, Facts *f) {
    Timer t = {.f = f};
    bool ok = !api->step(s, in, nin, NULL) && !api->sync(s, NULL) &&
              !api->profile(s, count_time, &t);
    for (int i = 0; i < steps && ok; i++) {
        t.at = 0;
        ok = !api->step(s, in, nin, NULL) && t.at == f->n;
    }
    api->profile(s, NULL, NULL);
    return ok && !t.wrong;
}

static double percent(double a, double b) { return b > 0 ? 100 * a / b : 0; }

static void print_steps(const Facts *f, const char *module, int steps,
                        double copy, double peak, const char *machine) {
    double best = 0, ms = 0, predicted = 0;
    for (int i = 0; i < f->n; i++) {
        const Fact *x = &f->step[i];
        double tflops = x->us > 0 ? 1e-6 * x->mma * steps / x->us : 0;
        if (tflops > best) best = tflops;
        ms += 1e-3 * x->us / steps;
        predicted += 1e-3 * x->predicted;
    }
    printf("{\"check\":\"steps\",\"ok\":true,\"module\":\"%s\",\"steps\":%d,"
           "\"ms\":%.4f,\"copy_gbs\":%.1f,\"best_tflops\":%.1f,"
           "\"tflop\":%.4f,\"mfu\":%.2f,\"predicted_ms\":%.4f,"
           "\"predicted_for\":\"%s\"}\n",
           module, f->n, ms, copy, best, 1e-12 * f->mma,
           ms > 0 ? percent(1e-9 * f->mma / ms, peak) : 0, predicted, machine);
    for (int i = 0; i < f->n; i++) {
        const Fact *x = &f->step[i];
        double us = x->us / steps, gbs = us > 0 ? 1e-3 * x->bytes / us : 0;
        double tflops = us > 0 ? 1e-6 * x->mma / us : 0;
        printf("{\"check\":\"step\",\"ok\":true,\"module\":\"%s\",\"place\":%d,"
               "\"name\":\"%s\",\"how\":\"%s\",\"us\":%.2f,\"mb\":%.3f,"
               "\"gflop\":%.3f,\"gbs\":%.1f,\"of_copy\":%.1f,"
               "\"tflops\":%.1f,\"of_best\":%.1f,\"predicted_us\":%.2f}\n",
               module, i, x->name, x->how, us, 1e-6 * x->bytes, 1e-9 * x->mma,
               gbs, percent(gbs, copy), tflops, percent(tflops, best),
               x->predicted);
    }
}

const char *gpu_steps(Gpu *g, const char *path, const ampc_api *api,
                      ampc_session *s, const ampc_input *in, size_t nin,
                      int steps) {
    char facts[600];
    const char *name = strrchr(path, '/');
    Facts f;
    facts_path(path, facts);
    if (!read_facts(facts, g, &f)) {
        free(f.step);
        return "what the compiler knows of its steps cannot be read";
    }
    bool ok = time_all(api, s, in, nin, steps, &f);
    if (ok)
        print_steps(&f, name ? name + 1 : path, steps, copy_speed(g),
                    1e-12 * peak_of(g->name), machine_of(g));
    free(f.step);
    if (ok) return NULL;
    return *api->error(s) ? api->error(s) : "its steps are others";
}
