/* SPDX-License-Identifier: Apache-2.0 */
/* host_thread_test.c: the rounding mode, traps and stack size of a host's
   thread do not change a module's results, and each call restores the
   thread's mode. The trial calls every function of ampc_api. */
#define _GNU_SOURCE
#include <fenv.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/compiled.h"

static const char model[] =
    "dim B = 4\n"
    "model m(x: f32[B,3]) {\n"
    "  h = LayerNorm(Linear(x, units=5, scope=\"a\"), scope=\"n\")\n"
    "  return y = Linear(tanh(h), units=3, scope=\"b\")\n}\n";

#define OPTIONS                                                                \
    "--loss cross_entropy --precision fp16 --target cpu:x86-64-v2 "            \
    "--optimizer adamw,lr=0.013 --accumulate 2 --count-underflow"
#define HOST_OPTIONS                                                           \
    "--loss host --precision bf16 --target cpu:x86-64-v2 --optimizer "         \
    "sgd,lr=0.1"

/* ---- every call, one after the other ------------------------------------- */

/* The place of a function in ampc_api, in pointers. */
#define PLACE(f)    (offsetof(ampc_api, f) / sizeof(void *))
#define PLACES      (sizeof(ampc_api) / sizeof(void *))
#define FIRST_PLACE PLACE(describe)

/* Results of the calls, as bytes in order. */
typedef struct Played {
    const Compiled *c, *host; /* the latter has its loss outside */
    const char *folder;
    void (*set)(void);  /* the host's floating-point mode; NULL: the mode in
                           which processes start */
    const char *failed; /* the first call with a wrong result */
    const char *lost;   /* the first call after which the host's mode had
                           changed */
    bool called[PLACES];
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

/* A call of a function of `api`, in the host's mode. */
#define IN_MODE(api, f, assign, ...)                                           \
    do {                                                                       \
        Way way_;                                                              \
        p->called[PLACE(f)] = true;                                            \
        way_enter(p, &way_);                                                   \
        assign(api)->f(__VA_ARGS__);                                           \
        way_leave(p, &way_, #f);                                               \
    } while (0)
#define CALL_GIVES(want, api, f, ...)                                          \
    do {                                                                       \
        ampc_status status_ = AMPC_OK;                                         \
        IN_MODE(api, f, status_ =, __VA_ARGS__);                               \
        if (status_ != (want) && !p->failed) p->failed = #f;                   \
    } while (0)
#define CALL(f, ...)      CALL_GIVES(AMPC_OK, p->c->api, f, __VA_ARGS__)
#define CALL_HOST(f, ...) CALL_GIVES(AMPC_OK, p->host->api, f, __VA_ARGS__)
#define CALL_TEXT(f, ...)                                                      \
    do {                                                                       \
        const char *text_ = NULL;                                              \
        IN_MODE(p->c->api, f, text_ =, __VA_ARGS__);                           \
        if (text_) put(p, text_, strlen(text_));                               \
    } while (0)

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
    ampc_metrics m = {.size = sizeof m};
    ampc_eval e = {.size = sizeof e};
    ampc_scaler sc = {.size = sizeof sc};
    float y[12];
    double lr;
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    for (int i = 0; i < 4; i++) CALL(step, s, in, 2, &m);
    put(p, &m.loss, sizeof m.loss);
    put(p, &m.grad_norm, sizeof m.grad_norm);
    CALL(evaluate, s, in, 2, 3, &e);
    put(p, &e.loss_num, sizeof e.loss_num);
    CALL(predict, s, in, 1, 4, &out, 1);
    put(p, y, sizeof y);
    CALL(set_hyper, s, "lr", 0.1);
    CALL(get_hyper, s, "lr", &lr);
    put(p, &lr, sizeof lr);
    CALL(micro_step, s, in, 2, &m.loss);
    CALL(micro_step, s, in, 2, NULL);
    CALL(update, s, &m);
    CALL(scaler, s, &sc);
    put(p, &sc.scale, sizeof sc.scale);
    CALL(sync, s, &m);
    put(p, &m.lr, sizeof m.lr);
    CALL(underflow, s, in, 2, take_underflow, p);
}

/* The loss of this session's module is the host's. */
static void play_host_loss(Played *p, const ampc_options *o, ampc_input *in) {
    ampc_session *s = NULL;
    float y[12], g[12];
    ampc_output out = ampc_out("y", y, sizeof y, AMPC_DTYPE_F32);
    ampc_input of[] = {in[0],
                       ampc_in("gradient:y", g, sizeof g, AMPC_DTYPE_F32)};
    CALL_HOST(open, p->host->api->module, o, &s, NULL, 0);
    if (!s) return;
    CALL_HOST(outputs, s, in, 1, 4, &out, 1);
    put(p, y, sizeof y);
    for (int i = 0; i < 12; i++) g[i] = y[i] / 3;
    CALL_HOST(vjp, s, of, 2);
    CALL_HOST(update, s, NULL);
    CALL_HOST(predict, s, in, 1, 4, &out, 1);
    put(p, y, sizeof y);
    IN_MODE(p->host->api, close, , s);
}

/* ---- calls that describe ------------------------------------------------- */

static void play_module(Played *p) {
    const ampc_module_t *m = p->c->api->module;
    ampc_module_info module = {.size = sizeof module};
    ampc_program_info program = {.size = sizeof program};
    ampc_tensor_info tensor = {.size = sizeof tensor};
    ampc_variable_info variable = {.size = sizeof variable};
    CALL(describe, m, &module);
    CALL(program, m, "train", &program);
    put(p, &program.flops, sizeof program.flops);
    CALL(input, m, "train", 0, &tensor);
    CALL(output, m, "eval", 0, &tensor);
    CALL(variable, m, 0, &variable);
    CALL_TEXT(objective_name, m, 0);
}

typedef struct Peeking {
    Played *p;
    ampc_session *s;
} Peeking;

/* The function of `profile`. */
static void peek_once(void *ctx, const char *program, const char *step,
                      uint64_t begin, uint64_t end) {
    Peeking *x = ctx;
    Played *p = x->p;
    char byte;
    (void)program, (void)step, (void)begin, (void)end;
    if (!p->called[PLACE(peek)]) CALL(peek, x->s, 0, &byte, 1);
}

static void play_session(Played *p, ampc_session *s, const ampc_input *in) {
    ampc_bad_data bad = {.size = sizeof bad};
    ampc_device_info device = {.size = sizeof device};
    ampc_memory_info memory = {.size = sizeof memory};
    Peeking peeking = {p, s};
    const char *name = NULL;
    void *staged;
    float y[12];
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
    CALL(objective, s, "");
    CALL(device, s, &device);
    CALL(memory, s, &memory);
    CALL(fit, s, "predict", in, 1, &name);
    if (name) put(p, name, strlen(name));
    CALL(stage, s, "predict", 0, &staged);
    CALL(profile, s, peek_once, &peeking);
    CALL(predict, s, in, 1, 4, NULL, 0);
    CALL(profile, s, NULL, NULL);
    CALL(read_output, s, "y", &out);
    put(p, y, sizeof y);
    CALL(bad_data, s, &bad);
    CALL_TEXT(error, s);
    CALL_TEXT(notice, s);
    CALL_TEXT(get_cursor, s);
}

/* A port on which no process listens. */
static void choose_port(void) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof a;
    char text[16];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(fd >= 0 && bind(fd, (void *)&a, sizeof a) == 0);
    REQUIRE(getsockname(fd, (void *)&a, &size) == 0);
    snprintf(text, sizeof text, "%d", ntohs(a.sin_port));
    close(fd);
    setenv("MASTER_PORT", text, 1);
}

static void play_ranks(Played *p) {
    ampc_comm_options o = {.size = sizeof o, .engine = "tcp"};
    ampc_comm *comm = NULL;
    choose_port();
    CALL(comm_open, &o, &comm, NULL, 0);
    IN_MODE(p->c->api, comm_close, , comm);
}

static void play_files(Played *p, ampc_session *s) {
    char path[600], weights[600];
    file_of(p, "thread.safetensors", path);
    file_of(p, "thread_f64.safetensors", weights);
    const char *paths[] = {weights};
    ampc_weights from = {
        .size = sizeof from, .paths = paths, .npath = 1, .partial = 1};
    float b[3];
    ampc_output out = ampc_out(NULL, b, sizeof b, AMPC_DTYPE_F32);
    ampc_input in = ampc_in(NULL, b, sizeof b, AMPC_DTYPE_F32);
    CALL(set_cursor, s, "{\"at\":0.1}");
    CALL(save, s, path);
    put_file(p, path);
    CALL(resume, s, path);
    CALL(load, s, path);
    CALL(load_weights, s, &from);
    CALL(read_variable, s, "b.bias", &out);
    put(p, b, sizeof b);
    CALL(write_variable, s, "b.bias", &in);
    CALL(save_weights, s, path);
    put_file(p, path);
}

static void *play(void *ctx) {
    Played *p = ctx;
    ampc_options o = {
        .size = sizeof o, .device = "cpu", .threads = 1, .max_skipped = 1};
    ampc_session *s = NULL;
    char err[256];
    float x[12], w[15];
    int64_t t[4] = {0, 1, 2, 1};
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
    ampc_output out = ampc_out(NULL, w, sizeof w, AMPC_DTYPE_F32);
    ampc_metrics m = {.size = sizeof m};
    for (int i = 0; i < 12; i++) x[i] = (float)(i * 7 % 5) / 3 - 0.6f;
    play_module(p);
    CALL(open, p->c->api->module, &o, &s, err, sizeof err);
    if (!s) return NULL;
    CALL(read_variable, s, "a.weight", &out);
    put(p, w, sizeof w);
    play_training(p, s, in);
    play_session(p, s, in);
    play_files(p, s);
    play_host_loss(p, &o, in);
    x[5] = NAN;
    CALL(step, s, in, 2, &m);
    CALL_GIVES(AMPC_ERR_DIVERGED, p->c->api, step, s, in, 2, &m);
    ampc_nonfinite what = {.size = sizeof what};
    CALL(nonfinite, s, &what);
    put(p, &what.index, sizeof what.index);
    IN_MODE(p->c->api, close, , s);
    return NULL;
}

static Played played_new(const Compiled *c, const Compiled *host,
                         void (*set)(void)) {
    Played p = {.c = c, .host = host, .folder = test_tmpdir(), .set = set};
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
    Compiled host = compile_text(model, HOST_OPTIONS);
    Played plain = played_new(&c, &host, NULL);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    play(&plain);
    play_ranks(&plain);
    CHECK_MSG(!plain.failed, "%s", plain.failed);
    CHECK(plain.n > 1000);
    for (size_t i = FIRST_PLACE; i < PLACES; i++)
        CHECK_MSG(plain.called[i],
                  "the function at byte %zu of ampc_api is "
                  "not called here",
                  i * sizeof(void *));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        Played p = played_new(&c, &host, ways[i].set);
        play(&p);
        play_ranks(&p);
        CHECK_MSG(!p.failed, "%s: %s", ways[i].name, p.failed);
        CHECK_MSG(!p.lost, "%s: %s", ways[i].name, p.lost);
        size_t same = 0;
        while (same < p.n && p.bytes[same] == plain.bytes[same]) same++;
        CHECK_MSG(p.n == plain.n && same == p.n, "%s: other bytes from %zu on",
                  ways[i].name, same);
    }
    compiled_close(&host);
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
    Compiled host = compile_text(model, HOST_OPTIONS);
    Played p = played_new(&c, &host, NULL);
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    REQUIRE(pthread_attr_setstacksize(&attr, STACK) == 0);
    REQUIRE(pthread_create(&thread, &attr, play, &p) == 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    CHECK_MSG(!p.failed, "%s", p.failed);
    compiled_close(&host);
    compiled_close(&c);
}
