/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_check.c: one check of a module on a GPU; script/gpu-check calls it.

     gpu_check device                        what the machine has
     gpu_check library MODULE                the file of cuBLASLt that it takes
     gpu_check ops MODULE FEED               "predict" beside the CPU
     gpu_check train MODULE FEED PRECISION forced|free|metrics STEPS
     gpu_check graph MODULE FEED STEPS       captured beside eager: equal bits
     gpu_check twice MODULE FEED STEPS       equal bits
     gpu_check leaks MODULE FEED STEPS       device memory and the process's
     gpu_check run MODULE FEED STEPS         nothing compared (for sanitizers)
     gpu_check time MODULE STEPS BOUNDS      milliseconds of a training step;
                                             BOUNDS: "tokens=50257,.." of
                                             integers (others: 10), or ""
     gpu_check steps MODULE STEPS BOUNDS     each of its steps, beside a copy
                                             and the best product; needs
                                             MODULE.json (gpu_steps.c)
     gpu_check threads MODULE FEED STEPS     two sessions in two threads: the
                                             bits of one alone
     gpu_check gemm SIZE                     what cuBLASLt supports
     gpu_check products MODULE               its products by cuBLASLt alone
   FEED is a file, or random:BOUNDS.

   Prints a line of JSON per result.  AMPC_CHECK_DEVICE (default cuda:0) names
   the device; with cpu the program checks itself.  Exit status 0: no
   difference; 1: a difference; 2: usage; 3: no GPU. Plain C: gpu_*.c,
   tests/support/device_*.c and headers of runtime. */
#define _POSIX_C_SOURCE 200809L
#include "tests/bench/gpu_check.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/cuda/peak.h"
#include "tests/support/device_check.h"

static Gpu gpu;
static const char *device = "cuda:0";

/* ---- JSON ---------------------------------------------------------------- */

static void print_text(const char *s) {
    putchar('"');
    for (; *s; s++) /* without escapes, for simple readers */
        if (*s == '\n')
            fputs(s[1] ? "; " : "", stdout);
        else if (*s == '"' || *s == '\\')
            putchar('\'');
        else
            putchar((unsigned char)*s < 32 ? ' ' : *s);
    putchar('"');
}

static int print_report(const char *check, const char *module,
                        const DcReport *r) {
    const char *name = strrchr(module, '/');
    printf("{\"check\":\"%s\",\"ok\":%s,\"module\":", check,
           r->failed ? "false" : "true");
    print_text(name ? name + 1 : module);
    printf(",\"compared\":%ld,\"failed\":%ld,\"worst\":%.3g,\"worst_name\":",
           r->compared, r->failed, r->worst);
    print_text(r->worst_name);
    fputs(",\"text\":", stdout);
    print_text(r->text);
    puts("}");
    return r->failed ? 1 : 0;
}

static int fail_report(const char *check, const char *module, const char *why) {
    DcReport r = {.failed = 1};
    snprintf(r.text, sizeof r.text, "%s", why);
    return print_report(check, module, &r);
}

/* ---- modules and their inputs -------------------------------------------- */

typedef struct Subject {
    const char *check, *module;
    const ampc_api *api;
    void *handle;
    DcFile *feed;
    DcRandom *random;
    DcTraining t;
} Subject;

/* Feeds the inputs of program `program`. */
static bool subject_feed(Subject *s, const char *feed, const char *program) {
    static const char word[] = "random:";
    if (!strncmp(feed, word, sizeof word - 1)) {
        s->random =
            dc_random_bounded(s->api, program, 10, feed + sizeof word - 1, 1);
        s->t.feed = dc_random_feed;
        s->t.feed_ctx = s->random;
        return s->random != NULL;
    }
    s->feed = dc_file_open(feed);
    s->t.feed = dc_file_feed;
    s->t.feed_ctx = s->feed;
    return s->feed != NULL;
}

static bool subject_open(Subject *s, char **argv, const char *feed) {
    char err[300] = "the file of inputs cannot be read";
    *s = (Subject){.check = argv[1], .module = argv[2]};
    s->api = ampc_load(s->module, &s->handle, err, sizeof err);
    bool predicts = !strcmp(s->check, "ops");
    if (s->api &&
        (!feed || subject_feed(s, feed, predicts ? "predict" : "train")))
        return true;
    fail_report(s->check, s->module, err);
    return false;
}

static int subject_end(Subject *s, const DcReport *r) {
    dc_file_free(s->feed);
    dc_random_free(s->random);
    return print_report(s->check, s->module, r);
}

/* ---- checks -------------------------------------------------------------- */

static int check_ops(int argc, char **argv) {
    Subject s;
    DcReport r;
    size_t nin;
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    const ampc_input *in = s.t.feed(s.t.feed_ctx, 0, &nin);
    if (!in) return fail_report(s.check, s.module, "truncated inputs");
    dc_predict(s.api, "cpu", device, in, nin, &r);
    return subject_end(&s, &r);
}

static int check_train(int argc, char **argv) {
    Subject s;
    DcReport r;
    char label[32];
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    snprintf(label, sizeof label, "train %s", argv[5]);
    s.check = label;
    s.t.tolerance = dc_training_tolerance(argv[4]);
    s.t.forced = strcmp(argv[5], "free") != 0;
    s.t.metrics_only = !strcmp(argv[5], "metrics");
    s.t.steps = atoi(argv[6]);
    dc_train(s.api, "cpu", device, &s.t, &r);
    return subject_end(&s, &r);
}

static int check_bits(int argc, char **argv) {
    Subject s;
    DcReport r;
    bool eager = !strcmp(argv[1], "graph");
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    s.t.steps = atoi(argv[4]);
    dc_same_bits(s.api, device, eager ? "AMPC_CUDA_GRAPH" : NULL, "0", &s.t,
                 &r);
    return subject_end(&s, &r);
}

static size_t device_memory(void *ctx) {
    size_t free_bytes = 0, total = 0;
    (void)ctx;
    if (gpu.ctx) gpu.MemGetInfo(&free_bytes, &total);
    return total - free_bytes;
}

/* Drivers count memory in units of 2 MiB, and the process's allocator is
   noisy. */
static int check_leaks(int argc, char **argv) {
    Subject s;
    DcReport r;
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    s.t.steps = atoi(argv[4]);
    if (dc_leaks(s.api, device, &s.t, device_memory, NULL, 2 << 20, &r))
        dc_leaks(s.api, device, &s.t, dc_process_memory, NULL, 8 << 20, &r);
    return subject_end(&s, &r);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Runs steps without waiting between them; returns the average time of one,
   or a number below 0. */
static double time_steps(Subject *s, ampc_session *session, int steps) {
    double start = now_ms();
    for (int i = 0; i < steps; i++) {
        size_t nin;
        const ampc_input *in = s->t.feed(s->t.feed_ctx, 0, &nin);
        if (!in || s->api->step(session, in, nin, NULL)) return -1;
    }
    if (s->api->sync(session, NULL)) return -1;
    return (now_ms() - start) / steps;
}

static ampc_session *session_new(Subject *s) {
    ampc_options o = {.size = sizeof o, .device = device};
    ampc_session *session = NULL;
    char err[300];
    if (s->api->open(s->api->module, &o, &session, err, sizeof err))
        fail_report(s->check, s->module, err);
    return session;
}

static int check_run(int argc, char **argv) {
    Subject s;
    DcReport r = {0};
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    ampc_session *session = session_new(&s);
    if (!session) return 1;
    if (time_steps(&s, session, atoi(argv[4])) < 0) {
        r.failed = 1;
        snprintf(r.text, sizeof r.text, "%s", s.api->error(session));
    }
    s.api->close(session);
    return subject_end(&s, &r);
}

/* ---- speed --------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { ROUNDS = 5, WARM_STEPS = 20 };

/* Inputs that are generated once and fed at every step: the time contains
   only the copy to the device and the step. */
static const ampc_input *fixed_feed(void *random, int step, size_t *nin) {
    static const ampc_input *in;
    static size_t n;
    (void)step;
    if (!in) in = dc_random_feed(random, 0, &n);
    *nin = n;
    return in;
}

/* The unit for counting samples: the tokens of a text, else one sample. */
static int64_t sample_tokens(const ampc_api *api, const char **unit) {
    ampc_tensor_info x = {.size = sizeof x};
    if (api->input(api->module, "train", 0, &x) || x.rank != 2 ||
        (x.dtype != AMPC_DTYPE_I64 && x.dtype != AMPC_DTYPE_I32))
        return 1;
    *unit = "tokens";
    return x.shape[1];
}

/* Numbers that train. */
static int64_t count_parameters(const ampc_api *api, uint32_t nvariable) {
    int64_t sum = 0;
    for (uint32_t i = 0; i < nvariable; i++) {
        ampc_variable_info x = {.size = sizeof x};
        if (api->variable(api->module, i, &x) || x.kind != AMPC_KIND_PARAMETER)
            continue;
        int64_t n = 1;
        for (int d = 0; d < x.rank; d++) n *= x.shape[d];
        sum += n;
    }
    return sum;
}

/* before: the device's memory in use without the session. */
static int print_time(Subject *s, ampc_session *session, int steps,
                      size_t before) {
    double ms[ROUNDS];
    const char *name = strrchr(s->module, '/');
    ampc_module_info info = {.size = sizeof info};
    if (time_steps(s, session, WARM_STEPS) < 0)
        return fail_report(s->check, s->module, s->api->error(session));
    for (int i = 0; i < ROUNDS; i++)
        if ((ms[i] = time_steps(s, session, steps)) < 0)
            return fail_report(s->check, s->module, s->api->error(session));
    qsort(ms, ROUNDS, sizeof *ms, by_value);
    s->api->describe(s->api->module, &info);
    ampc_program_info program = {.size = sizeof program};
    s->api->program(s->api->module, "train", &program);
    double least = ms[ROUNDS / 2], tflop = 1e-12 * program.flops;
    double peak = 1e-12 * peak_of(gpu.name), samples = (double)info.batch;
    const char *unit = "samples";
    int64_t each = sample_tokens(s->api, &unit);
    printf("{\"check\":\"time\",\"ok\":true,\"module\":\"%s\",\"batch\":%lld,"
           "\"steps\":%d,\"ms\":%.4f,\"best\":%.4f,\"mib\":%zu,"
           "\"parameters\":%lld,"
           "\"each\":%lld,\"unit\":\"%s\",\"per_s\":%.1f,\"tflop\":%.4f,"
           "\"peak\":%.0f,\"mfu\":%.2f}\n",
           name ? name + 1 : s->module, (long long)info.batch, steps, least,
           ms[0], (device_memory(NULL) - before) >> 20,
           (long long)count_parameters(s->api, info.nvariable), (long long)each,
           unit, 1e3 * samples * (double)each / least, tflop, peak,
           peak > 0 ? 1e5 * tflop / least / peak : 0);
    return 0;
}

static int check_time(int argc, char **argv) {
    Subject s;
    (void)argc;
    if (!subject_open(&s, argv, NULL)) return 1;
    s.random = dc_random_bounded(s.api, "train", 10, argv[4], 1);
    s.t.feed = fixed_feed;
    s.t.feed_ctx = s.random;
    size_t before = device_memory(NULL);
    ampc_session *session = s.random ? session_new(&s) : NULL;
    int rc = session ? print_time(&s, session, atoi(argv[3]), before) : 1;
    s.api->close(session);
    dc_random_free(s.random);
    return rc;
}

static int check_steps(int argc, char **argv) {
    Subject s;
    size_t nin = 0;
    (void)argc;
    if (!subject_open(&s, argv, NULL)) return 1;
    s.random = dc_random_bounded(s.api, "train", 10, argv[4], 1);
    const ampc_input *in = s.random ? dc_random_feed(s.random, 0, &nin) : NULL;
    ampc_session *session = in ? session_new(&s) : NULL;
    int rc = !session;
    const char *why =
        rc ? NULL
           : gpu_steps(&gpu, s.module, s.api, session, in, nin, atoi(argv[3]));
    if (why) rc = fail_report(s.check, s.module, why);
    s.api->close(session);
    dc_random_free(s.random);
    return rc;
}

/* ---- threads ------------------------------------------------------------- */

enum { THREAD_STEPS = 32 };

typedef struct Worker {
    Subject *s;
    char **argv;
    int steps;
    double loss[THREAD_STEPS];
    bool ok;
} Worker;

static void *work(void *ctx) {
    Worker *w = ctx;
    Subject own = *w->s;
    ampc_session *session = NULL;
    ampc_options o = {.size = sizeof o, .device = device};
    w->ok = subject_feed(&own, w->argv[3], "train") &&
            !own.api->open(own.api->module, &o, &session, NULL, 0);
    for (int i = 0; i < w->steps && w->ok; i++) {
        ampc_metrics m = {.size = sizeof m};
        size_t nin;
        const ampc_input *in = own.t.feed(own.t.feed_ctx, i, &nin);
        w->ok = in && !own.api->step(session, in, nin, &m);
        w->loss[i] = m.loss;
    }
    own.api->close(session);
    dc_file_free(own.feed);
    dc_random_free(own.random);
    return NULL;
}

static int check_threads(int argc, char **argv) {
    Subject s;
    Worker w[3];
    pthread_t thread[2];
    DcReport r = {0};
    (void)argc;
    if (!subject_open(&s, argv, argv[3])) return 1;
    int steps = atoi(argv[4]);
    if (steps > THREAD_STEPS) steps = THREAD_STEPS;
    for (int i = 0; i < 3; i++)
        w[i] = (Worker){.s = &s, .argv = argv, .steps = steps};
    work(&w[2]); /* alone */
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, work, &w[i])) return 1;
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) {
        bool same = w[i].ok && w[2].ok &&
                    !memcmp(w[i].loss, w[2].loss, sizeof w[i].loss);
        r.compared += steps;
        if (same) continue;
        r.failed++;
        snprintf(r.text, sizeof r.text, "thread %d has another loss than alone",
                 i);
    }
    return subject_end(&s, &r);
}

/* ---- the machine --------------------------------------------------------- */

static int print_device(int argc, char **argv) {
    (void)argc;
    (void)argv;
    fputs("{\"check\":\"device\",\"ok\":true,\"name\":", stdout);
    print_text(gpu.name);
    printf(",\"cc\":\"%d.%d\",\"sms\":%d,\"memory\":%zu,\"driver\":%d,"
           "\"cublaslt\":%zu}\n",
           gpu.major, gpu.minor, gpu.sms, gpu.memory, gpu.driver,
           gpu_cublaslt_version(&gpu));
    return 0;
}

/* The file, if the log line names it. */
static void find_library(void *ctx, const char *line) {
    const char *at = strstr(line, "cuBLASLt "),
               *file = at ? strchr(at, '/') : 0;
    if (file) snprintf(ctx, 600, "%s", file);
}

static int print_library(int argc, char **argv) {
    char file[600] = "";
    Subject s;
    ampc_session *session = NULL;
    (void)argc;
    if (!subject_open(&s, argv, NULL)) return 1;
    ampc_options o = {.size = sizeof o,
                      .device = device,
                      .log = find_library,
                      .log_ctx = file};
    s.api->open(s.api->module, &o, &session, NULL, 0);
    s.api->close(session);
    puts(file);
    return *file ? 0 : 1;
}

static int check_gemm(int argc, char **argv) {
    (void)argc;
    if (!gpu.ctx) return fail_report(argv[1], "", "needs a GPU");
    return gpu_gemm_table(&gpu, atoi(argv[2]));
}

static int check_products(int argc, char **argv) {
    Subject s;
    (void)argc;
    if (!gpu.ctx) return fail_report(argv[1], argv[2], "needs a GPU");
    if (!subject_open(&s, argv, NULL)) return 1;
    const char *slash = strrchr(argv[2], '/');
    return gpu_gemm_module(&gpu, slash ? slash + 1 : argv[2],
                           (const void *)s.api->module);
}

static const struct {
    const char *name;
    int argc;
    int (*fn)(int argc, char **argv);
} commands[] = {{"device", 2, print_device},    {"library", 3, print_library},
                {"ops", 4, check_ops},          {"train", 7, check_train},
                {"graph", 5, check_bits},       {"twice", 5, check_bits},
                {"leaks", 5, check_leaks},      {"run", 5, check_run},
                {"time", 5, check_time},        {"steps", 5, check_steps},
                {"threads", 5, check_threads},  {"gemm", 3, check_gemm},
                {"products", 3, check_products}};

static int ordinal(void) {
    const char *colon = strchr(device, ':');
    return colon ? atoi(colon + 1) : 0;
}

int main(int argc, char **argv) {
    const char *given = getenv("AMPC_CHECK_DEVICE");
    if (given && *given) device = given;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (argc != commands[i].argc || strcmp(argv[1], commands[i].name))
            continue;
        if (strcmp(device, "cpu") && !gpu_open(&gpu, ordinal())) {
            fprintf(stderr, "gpu_check: %s\n", gpu.why);
            return 3;
        }
        int rc = commands[i].fn(argc, argv);
        if (gpu.ctx) gpu_close(&gpu);
        return rc;
    }
    fprintf(stderr, "usage: see the head of gpu_check.c\n");
    return 2;
}
