/* SPDX-License-Identifier: Apache-2.0 */
/* host_thread_test.c: the rounding mode, traps and stack size of a host's
   thread do not change a module's results, and each call restores the
   thread's mode. */
#define _GNU_SOURCE
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"

static const char model[] =
    "dim B = 4\n"
    "model m(x: f32[B,3]) {\n"
    "  h = LayerNorm(Linear(x, units=5, scope=\"a\"), scope=\"n\")\n"
    "  return y = Linear(tanh(h), units=3, scope=\"b\")\n}\n";

#define OPTIONS                                                                \
    "--loss cross_entropy --precision fp16 --target cpu:x86-64-v2 "            \
    "--optimizer adamw,lr=0.013 --accumulate 2 --count-underflow"

/* ---- every call, one after the other ------------------------------------- */

/* Results of the calls, as bytes in order. */
typedef struct Played {
    const Compiled *c;
    const char *folder;
    void (*set)(void);  /* the host's floating-point mode; NULL: the mode in
                           which processes start */
    const char *failed; /* the first call with a wrong result */
    const char *lost;   /* the first call after which the host's mode had
                           changed */
    char bytes[8192];
    size_t n;
} Played;

static void put(Played *p, const void *data, size_t n) {
    if (n > sizeof p->bytes - p->n) n = sizeof p->bytes - p->n;
    memcpy(p->bytes + p->n, data, n);
    p->n += n;
}

/* Between these two the thread is in the host's mode: only the call
   computes. */
typedef struct Way {
    fenv_t plain, own;
} Way;

static void way_enter(const Played *p, Way *w) {
    fegetenv(&w->plain);
    if (p->set) p->set();
    fegetenv(&w->own);
}

static void way_leave(Played *p, const Way *w, const char *call) {
    enum { FLAGS = 0x3f };
    fenv_t now;
    fegetenv(&now);
    fesetenv(&w->plain);
    if (!p->lost && (now.__control_word != w->own.__control_word ||
                     (now.__mxcsr | FLAGS) != (w->own.__mxcsr | FLAGS)))
        p->lost = call;
}

#define CALL_GIVES(want, call)                                                 \
    do {                                                                       \
        Way way_;                                                              \
        way_enter(p, &way_);                                                   \
        ampc_status status_ = (call);                                          \
        way_leave(p, &way_, #call);                                            \
        if (status_ != (want) && !p->failed) p->failed = #call;                \
    } while (0)
#define CALL(call) CALL_GIVES(AMPC_OK, call)

static const char *file_of(const Played *p, const char *name, char path[600]) {
    snprintf(path, 600, "%s/%s", p->folder, name);
    return path;
}

static void put_file(Played *p, const char *path) {
    char part[4096];
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(part, 1, sizeof part, f) : 0;
    if (f) fclose(f);
    put(p, part, n);
}

/* f64, which has more digits than the module stores. */
static void write_weights(const char *path) {
    static const char header[] = "{\"b.bias\":{\"dtype\":\"F64\",\"shape\":[3],"
                                 "\"data_offsets\":[0,24]}}   ";
    const double w[] = {1.0 / 3, -2.0 / 7, 1e-3 / 9};
    uint64_t n = sizeof header - 1;
    FILE *f = fopen(path, "w");
    if (!f) return;
    fwrite(&n, 8, 1, f);
    fwrite(header, n, 1, f);
    fwrite(w, sizeof w, 1, f);
    fclose(f);
}

static void take_underflow(void *ctx, const char *parameter, double flushed,
                           double nonzero) {
    (void)parameter;
    put(ctx, &flushed, sizeof flushed);
    put(ctx, &nonzero, sizeof nonzero);
}

static void play_training(Played *p, ampc_session *s, ampc_input *in) {
    const ampc_api *a = p->c->api;
    ampc_metrics m = {.size = sizeof m};
    ampc_eval e = {.size = sizeof e};
    ampc_scaler sc = {.size = sizeof sc};
    float y[12];
    double lr;
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    for (int i = 0; i < 4; i++) CALL(a->step(s, in, 2, &m));
    put(p, &m.loss, sizeof m.loss);
    put(p, &m.grad_norm, sizeof m.grad_norm);
    CALL(a->evaluate(s, in, 2, 3, &e));
    put(p, &e.loss_num, sizeof e.loss_num);
    CALL(a->predict(s, in, 1, 4, &out, 1));
    put(p, y, sizeof y);
    CALL(a->set_hyper(s, "lr", 0.1));
    CALL(a->get_hyper(s, "lr", &lr));
    put(p, &lr, sizeof lr);
    CALL(a->micro_step(s, in, 2, &m.loss));
    CALL(a->micro_step(s, in, 2, NULL));
    CALL(a->update(s, &m));
    CALL(a->scaler(s, &sc));
    put(p, &sc.scale, sizeof sc.scale);
    CALL(a->sync(s, &m));
    put(p, &m.lr, sizeof m.lr);
    CALL(a->underflow(s, in, 2, take_underflow, p));
}

static void play_files(Played *p, ampc_session *s) {
    const ampc_api *a = p->c->api;
    char path[600], weights[600];
    file_of(p, "thread.safetensors", path);
    file_of(p, "thread_f64.safetensors", weights);
    const char *paths[] = {weights};
    ampc_weights from = {
        .size = sizeof from, .paths = paths, .npath = 1, .partial = 1};
    float b[3];
    ampc_output out = ampc_out(NULL, b, sizeof b, AMPC_DTYPE_F32);
    ampc_input in = ampc_in(NULL, b, sizeof b, AMPC_DTYPE_F32);
    CALL(a->set_cursor(s, "{\"at\":0.1}"));
    CALL(a->save(s, path));
    put_file(p, path);
    CALL(a->resume(s, path));
    CALL(a->load(s, path));
    CALL(a->load_weights(s, &from));
    CALL(a->read_variable(s, "b.bias", &out));
    put(p, b, sizeof b);
    CALL(a->write_variable(s, "b.bias", &in));
    CALL(a->save_weights(s, path));
    put_file(p, path);
}

static void *play(void *ctx) {
    Played *p = ctx;
    const ampc_api *a = p->c->api;
    ampc_options o = {
        .size = sizeof o, .device = "cpu", .threads = 1, .max_skipped = 1};
    ampc_module_info info = {.size = sizeof info};
    ampc_session *s = NULL;
    char err[256];
    float x[12], w[15];
    int64_t t[4] = {0, 1, 2, 1};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
    ampc_output out = ampc_out(NULL, w, sizeof w, AMPC_DTYPE_F32);
    ampc_metrics m = {.size = sizeof m};
    for (int i = 0; i < 12; i++) x[i] = (float)(i * 7 % 5) / 3 - 0.6f;
    CALL(a->describe(a->module, &info));
    CALL(a->open(a->module, &o, &s, err, sizeof err));
    if (!s) return NULL;
    CALL(a->read_variable(s, "a.weight", &out));
    put(p, w, sizeof w);
    play_training(p, s, in);
    play_files(p, s);
    x[5] = NAN;
    CALL(a->step(s, in, 2, &m));
    CALL_GIVES(AMPC_ERR_DIVERGED, a->step(s, in, 2, &m));
    ampc_nonfinite what = {.size = sizeof what};
    CALL(a->nonfinite(s, &what));
    put(p, &what.index, sizeof what.index);
    CALL((a->close(s), AMPC_OK));
    return NULL;
}

static Played played_new(const Compiled *c, void (*set)(void)) {
    Played p = {.c = c, .folder = test_tmpdir(), .set = set};
    write_weights(test_tmp("thread_f64.safetensors"));
    return p;
}

/* ---- ways to round ------------------------------------------------------- */

static void upward(void) { fesetround(FE_UPWARD); }
static void to_zero(void) { fesetround(FE_TOWARDZERO); }
static void trapping(void) { feenableexcept(FE_ALL_EXCEPT); }
static void hunting_nan(void) {
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
}
#ifdef __SSE__
static void without_subnormals(void) { __builtin_ia32_ldmxcsr(0x9fc0); }
static void all_of_it(void) {
    fesetround(FE_DOWNWARD);
    feenableexcept(FE_ALL_EXCEPT);
    __builtin_ia32_ldmxcsr(0xa040); /* traps for subnormal operands, too */
}
#endif

TEST_CASE(thread, the_hosts_way_to_compute_changes_nothing) {
    static const struct {
        const char *name;
        void (*set)(void);
    } ways[] = {{"upward", upward},
                {"to zero", to_zero},
                {"traps", trapping},
                {"traps for NaN", hunting_nan},
#ifdef __SSE__
                {"no subnormals", without_subnormals},
                {"all", all_of_it}
#endif
    };
    Compiled c = compile_text(model, OPTIONS);
    Played plain = played_new(&c, NULL);
    play(&plain);
    CHECK_MSG(!plain.failed, "%s", plain.failed);
    CHECK(plain.n > 1000);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        Played p = played_new(&c, ways[i].set);
        play(&p);
        CHECK_MSG(!p.failed, "%s: %s", ways[i].name, p.failed);
        CHECK_MSG(!p.lost, "%s: %s", ways[i].name, p.lost);
        size_t same = 0;
        while (same < p.n && p.bytes[same] == plain.bytes[same]) same++;
        CHECK_MSG(p.n == plain.n && same == p.n, "%s: other bytes from %zu on",
                  ways[i].name, same);
    }
    compiled_close(&c);
}

/* ---- stack --------------------------------------------------------------- */

/* The stack size that ampc.h promises is sufficient. */
TEST_CASE(thread, a_small_stack_is_enough) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("instrumented code takes more stack");
#endif
    enum { STACK = 64 << 10 };
    Compiled c = compile_text(model, OPTIONS);
    Played p = played_new(&c, NULL);
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    REQUIRE(pthread_attr_setstacksize(&attr, STACK) == 0);
    REQUIRE(pthread_create(&thread, &attr, play, &p) == 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    CHECK_MSG(!p.failed, "%s", p.failed);
    compiled_close(&c);
}
