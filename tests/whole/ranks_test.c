/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_test.c: data-parallel training, threads as ranks over a host's own
   communicator: the same bits as one rank that accumulates, and what happens
   when ranks differ or fail.                                                */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/api/session.h"
#include "tests/support/on_device.h"
#include "tests/support/ranks.h"
#include "tests/support/samples.h"
#include "tests/support/simulate.h"
#include "tests/tolerance.h"

enum {
    STEPS = 20,
    INPUTS = 4,
    PARTS = 4,
    ALL_KINDS = 1 << AMPC_KIND_PARAMETER | 1 << AMPC_KIND_STATE
};

/* ---- data ---------------------------------------------------------------- */

typedef struct Batch {
    ampc_input in[INPUTS];
    size_t n;
} Batch;

/* Micro-batch `index` of an endless stream, or `parts` of them, one behind the
   other: numbers in -1..1, classes 0..4.                                    */
static Batch batch_new(const ampc_api *api, int64_t index, int parts) {
    Batch b = {.n = 0};
    const char *objective = api->objective_name(api->module, 0);
    char program[40] = "micro"; /* all objectives read the same */
    if (objective && *objective)
        snprintf(program, sizeof program, "micro:%s", objective);
    ampc_tensor_info t = {.size = sizeof t};
    uint32_t state[PARTS];
    for (int p = 0; p < parts; p++)
        state[p] = (uint32_t)(index * parts + p) * 2654435761u + 1;
    for (; api->input(api->module, program, (uint32_t)b.n, &t) == AMPC_OK;) {
        char *data = malloc(t.bytes);
        bool real = t.dtype == AMPC_DTYPE_F32;
        size_t n = t.bytes / (real ? 4 : 8);
        for (size_t i = 0; i < n; i++) {
            double x = samples_random(&state[i / (n / (size_t)parts)]);
            if (real)
                ((float *)data)[i] = (float)(2 * x - 1);
            else
                ((int64_t *)data)[i] = (int64_t)(5 * x);
        }
        b.in[b.n++] = ampc_in(t.name, data, t.bytes, (ampc_dtype)t.dtype);
    }
    return b;
}

static void batch_free(Batch *b) {
    for (size_t i = 0; i < b->n; i++) free((void *)(uintptr_t)b->in[i].data);
}

/* ---- runs ---------------------------------------------------------------- */

/* A run of some ranks; what each has at the end. */
typedef struct Run {
    const Compiled *of[RANKS_MOST];
    Ranks ranks;
    int steps;
    int64_t from; /* micro-batch to begin with */
    /* Called before a step; may change its input. */
    void (*spoil)(int rank, int step, Batch *b);
    const char *load[RANKS_MOST], *save; /* NULL: none */
    int nameless;    /* rank that saves without a path; 0: none */
    int starved;     /* rank that lacks memory; 0: none .. */
    int refused;     /* .. for which of its allocations at open */
    int fail_in;     /* as in Ranks */
    bool once;       /* as in Ranks */
    bool no_scatter; /* the host's table has none */
    size_t table;   /* bytes of the host's table; 0: as many as ampc_comm has */
    int parts;      /* parts that form a batch, as in the other ranks; 0: one */
    unsigned kinds; /* kinds of variables that are compared; 0: all */
    struct Asked {
        size_t bytes; /* bytes of all allocations at open */
        int calls, refuse;
        int64_t held; /* bytes that nobody gave back */
    } asked[RANKS_MOST];
    const char *device; /* NULL: "cpu" */
    int sums[2];        /* told in profiles: beside backward, later; -1:
                           nobody asks */
    ampc_status status[RANKS_MOST];
    char error[RANKS_MOST][256];
    ampc_metrics metrics[RANKS_MOST][STEPS];
    void *state[RANKS_MOST];
    size_t bytes[RANKS_MOST];
} Run;

static void run_step(Run *r, ampc_session *s, int rank, int step,
                     int64_t accumulate) {
    const ampc_api *api = r->of[rank]->api;
    ampc_metrics *m = &r->metrics[rank][step];
    const char *objective = api->objective_name(api->module, step % 2 != 0);
    m->size = sizeof *m;
    if (objective && *objective) r->status[rank] = api->objective(s, objective);
    for (int64_t k = 0; k < accumulate && !r->status[rank]; k++) {
        int64_t index = ((int64_t)step * r->ranks.world + rank) * accumulate;
        Batch b = batch_new(api, r->from + index + k, r->parts);
        if (r->spoil) r->spoil(rank, step, &b);
        r->status[rank] = api->step(s, b.in, b.n, m);
        batch_free(&b);
    }
}

static void *counting(void *ctx, size_t bytes, size_t align) {
    struct Asked *a = ctx;
    if (++a->calls == a->refuse) return NULL;
    a->bytes += bytes;
    a->held += (int64_t)bytes;
    return aligned_alloc(align, (bytes + 63) / 64 * 64);
}

static void give_back(void *ctx, void *p, size_t bytes) {
    struct Asked *a = ctx;
    if (p) a->held -= (int64_t)bytes;
    free(p);
}

/* The checkpoint, and the weights alone, which are then read again. */
static ampc_status save_all(const ampc_api *api, ampc_session *s,
                            const char *path) {
    char weights[300];
    const char *from = weights;
    ampc_weights w = {.size = sizeof w, .paths = &from, .npath = 1};
    snprintf(weights, sizeof weights, "%s.weights", path);
    ampc_status status = api->save(s, path);
    if (!status) status = api->save_weights(s, weights);
    return status ? status : api->load_weights(s, &w);
}

/* Ranks make 16-bit copies of the parameters that they received when a program
   next runs. */
static ampc_status make_copies(const Run *r, ampc_session *s, int64_t batch) {
    const ampc_api *api = r->of[0]->api;
    Batch b = batch_new(api, r->from, r->parts);
    ampc_eval e = {.size = sizeof e};
    ampc_status status = api->evaluate(s, b.in, b.n, batch, &e);
    batch_free(&b);
    return status;
}

/* Sums of rank 0 as profiles tell them: those beside backward, which are over,
   before those that the update waited for. */
typedef struct Told {
    Run *run;
    uint64_t from, to; /* since the session was opened, of the last sum */
} Told;

static void on_profile(void *ctx, const char *program, const char *step,
                       uint64_t begin, uint64_t end) {
    Told *t = ctx;
    bool update = !strcmp(program, "update");
    CHECK(begin >= t->from && end >= begin);
    if (strcmp(step, "sum over ranks") != 0) return;
    CHECK(begin >= t->to && (update || !strcmp(program, "micro")));
    t->to = end;
    t->run->sums[update]++;
}

static void run_rank(void *ctx, int rank) {
    Run *r = ctx;
    Told told = {.run = r, .from = now_ns()};
    const ampc_api *api = r->of[rank]->api;
    ampc_module_info info = {.size = sizeof info};
    ampc_session *s = NULL;
    ampc_options o = {.size = sizeof o,
                      .device = r->device ? r->device : "cpu",
                      .threads = 1};
    if (r->ranks.world > 1) o.comm = &r->ranks.comm[rank];
    struct Asked *asked = &r->asked[rank];
    if (rank && rank == r->starved) asked->refuse = r->refused;
    o.alloc = counting;
    o.alloc_ctx = asked;
    o.free = give_back;
    api->describe(api->module, &info);
    r->status[rank] =
        api->open(api->module, &o, &s, r->error[rank], sizeof r->error[rank]);
    if (!s) return;
    struct Asked at_open = *asked;
    if (!rank && r->sums[0] >= 0) api->profile(s, on_profile, &told);
    if (r->load[rank]) r->status[rank] = api->resume(s, r->load[rank]);
    for (int i = 0; i < r->steps && !r->status[rank]; i++)
        run_step(r, s, rank, i, info.accumulate);
    if (r->save && !r->status[rank])
        r->status[rank] =
            save_all(api, s, rank && rank == r->nameless ? "" : r->save);
    asked->bytes = at_open.bytes;
    asked->calls = at_open.calls;
    if (r->kinds >> AMPC_KIND_SHADOW & 1 && !r->status[rank])
        r->status[rank] = make_copies(r, s, info.batch);
    snprintf(r->error[rank], sizeof r->error[rank], "%s", api->error(s));
    r->state[rank] = read_all(r->of[rank], s, r->kinds, &r->bytes[rank]);
    api->close(s);
}

/* Memory behind a host's table belongs to the host. */
static void cut(ampc_comm *c, size_t size) {
    if (size < sizeof *c) memset((char *)c + size, 0x5a, sizeof *c - size);
    c->size = size;
}

static void run(Run *r, int world) {
    ranks_open(&r->ranks, world);
    r->ranks.fail_in = r->fail_in;
    r->ranks.once = r->once;
    for (int i = 0; i < world && r->no_scatter; i++)
        r->ranks.comm[i].scatter = NULL;
    for (int i = 0; i < world && r->table; i++)
        cut(&r->ranks.comm[i], r->table);
    for (int i = 1; i < world; i++)
        if (!r->of[i]) r->of[i] = r->of[0];
    if (!r->steps) r->steps = STEPS;
    if (!r->parts) r->parts = 1;
    if (!r->kinds) r->kinds = ALL_KINDS;
    ranks_run(&r->ranks, run_rank, r);
    ranks_close(&r->ranks);
}

static void run_free(Run *r) {
    for (int i = 0; i < RANKS_MOST; i++) free(r->state[i]);
    free(r);
}

static Run *run_new(const Compiled *c) {
    Run *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL);
    r->of[0] = c;
    r->sums[0] = -1;
    return r;
}

/* .. and all ranks end well. */
static void run_ok(Run *r, int world) {
    run(r, world);
    for (int i = 0; i < world; i++) {
        CHECK_MSG(r->status[i] == AMPC_OK, "rank %d: %s", i, r->error[i]);
        CHECK_EQ_INT(r->asked[i].held, 0);
    }
}

static Run *run_ranks(const Compiled *c, int world,
                      void (*spoil)(int rank, int step, Batch *b)) {
    Run *r = run_new(c);
    r->spoil = spoil;
    run_ok(r, world);
    return r;
}

/* ---- as one rank --------------------------------------------------------- */

static bool same_metrics(const ampc_metrics *a, const ampc_metrics *b) {
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 &&
           memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm) == 0 &&
           a->scale == b->scale && a->lr == b->lr && a->applied == b->applied &&
           a->step == b->step && a->skipped == b->skipped;
}

/* Every rank of `got` as the one of `want`. */
static void check_same(const Run *got, const Run *want) {
    for (int r = 0; r < got->ranks.world; r++) {
        for (int i = 0; i < got->steps; i++)
            CHECK_MSG(same_metrics(&got->metrics[r][i], &want->metrics[0][i]),
                      "rank %d of %d, step %d: loss %.9g, not %.9g", r,
                      got->ranks.world, i, got->metrics[r][i].loss,
                      want->metrics[0][i].loss);
        REQUIRE(want->bytes[0] > 0 && got->bytes[r] == want->bytes[0]);
        CHECK(memcmp(got->state[r], want->state[0], got->bytes[r]) == 0);
    }
}

/* Sums of sums: in another order than one rank adds. */
static void check_near(const Run *got, const Run *want) {
    for (int i = 0; i < got->steps; i++)
        CHECK_REL(got->metrics[1][i].loss, want->metrics[0][i].loss, TOL_RANKS);
}

static Compiled compile_for(const char *model, const char *options,
                            int accumulate) {
    char all[512], path[256];
    snprintf(all, sizeof all, "--accumulate %d --target cpu:x86-64-v2 %s",
             accumulate, options);
    if (!strstr(model, ".onnx")) return compile_text(model, all);
    snprintf(path, sizeof path, "tests/onnx/%s", model);
    strcat(all, " --dim batch=2");
    return compile_file(test_data_path(path), all);
}

static void spoiled_as_one_rank(const char *model, const char *options,
                                bool skips,
                                void (*spoil)(int rank, int step, Batch *b)) {
    char small_buckets[512];
    snprintf(small_buckets, sizeof small_buckets, "--comm-bucket 500 %s",
             options);
    Compiled one = compile_for(model, small_buckets, 1);
    Compiled two = compile_for(model, options, 2);
    Compiled four = compile_for(model, options, 4);
    Run *alone2 = run_ranks(&two, 1, spoil),
        *alone4 = run_ranks(&four, 1, spoil);
    Run *ranks2 = run_ranks(&one, 2, spoil),
        *ranks4 = run_ranks(&one, 4, spoil);
    Run *both = run_ranks(&two, 2, spoil);
    check_same(ranks2, alone2);
    check_same(ranks4, alone4);
    check_near(both, alone4);
    const ampc_metrics *last = &alone4->metrics[0][STEPS - 1];
    CHECK(last->step > 0 && isfinite(last->loss));
    CHECK_EQ_INT(last->skipped > 0, skips);
    CHECK(last->loss != alone4->metrics[0][1].loss);
    Run *runs[] = {alone2, alone4, ranks2, ranks4, both};
    for (int i = 0; i < 5; i++) run_free(runs[i]);
    compiled_close(&one);
    compiled_close(&two);
    compiled_close(&four);
}

static void as_one_rank(const char *model, const char *options, bool skips) {
    spoiled_as_one_rank(model, options, skips, NULL);
}

TEST_CASE(ranks, mlp_as_one_rank) {
    as_one_rank("mlp.dyn.onnx", "--precision fp32 " FOR_MLP, false);
}

TEST_CASE(ranks, cnn_with_overflows_as_one_rank) {
    as_one_rank("cnn.dyn.onnx", "--precision fp16 " FOR_CNN OVERFLOWS, true);
}

TEST_CASE(ranks, gpt_as_one_rank) {
    as_one_rank("gpt.dyn.onnx", "--precision bf16 " FOR_GPT, false);
}

/* In turns, each with its own optimizer, one scale for both; the second's loss
   overflows now and then.                                                   */
static const char two_losses[] =
    "graph forward(%x: f32[2,4]) {\n"
    "  param %a: f32[4,3] = normal(1, 0.5), %b: f32[3,4] = normal(2, 0.5)\n"
    "  %h = matmul %x, %a : f32[2,3]\n"
    "  %hh = mul %h, %h : f32[2,3]\n"
    "  %la = reduce_sum %hh {axes=[0,1], keepdims=0}\n"
    "  %t = tanh %h : f32[2,3]\n"
    "  %r = matmul %t, %b : f32[2,4]\n"
    "  %d = sub %r, %x : f32[2,4]\n"
    "  %dd = mul %d, %d : f32[2,4]\n"
    "  %lb = reduce_sum %dd {axes=[0,1], keepdims=0}\n"
    "  return %la, %lb\n"
    "}\n";

TEST_CASE(ranks, objectives_as_one_rank) {
    static const char both[] =
        "--objective one,loss=auto:la,params=a,optimizer=sgd,lr=0.02,"
        "momentum=0.5 --objective two,loss=auto:lb,params=b,optimizer=adamw,"
        "lr=0.01 --loss-scale dynamic,init=16384,interval=3 --precision ";
    char options[300];
    snprintf(options, sizeof options, "%sfp32", both);
    as_one_rank(two_losses, options, false);
    snprintf(options, sizeof options, "%sfp16", both);
    as_one_rank(two_losses, options, true);
}

/* One bucket, some, or one a gradient: the same bits; all but the last are
   summed beside backward.                                                   */
TEST_CASE(ranks, buckets_change_no_bit) {
    static const char *const sizes[] = {"26214400", "420", "1"};
    Run *r[3];
    int calls[3];
    for (int i = 0; i < 3; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--precision fp32 --clip-norm 0.3 --comm-bucket %s", sizes[i]);
        Compiled c = compile_for("mlp.dyn.onnx", options, 2);
        r[i] = run_ranks(&c, 3, NULL);
        calls[i] = r[i]->ranks.calls;
        check_same(r[i], r[0]);
        compiled_close(&c);
    }
    CHECK_MSG(calls[0] < calls[1] && calls[1] < calls[2], "%d, %d, %d calls",
              calls[0], calls[1], calls[2]);
    CHECK(r[0]->ranks.beside == 0 && r[1]->ranks.beside > 0);
    CHECK_EQ_INT(r[2]->ranks.beside - r[1]->ranks.beside, calls[2] - calls[1]);
    for (int i = 0; i < 3; i++) run_free(r[i]);
}

TEST_CASE(ranks, profiles_tell_of_sums) {
    Compiled c =
        compile_for("mlp.dyn.onnx", "--precision fp32 --comm-bucket 420", 1);
    Run *r = run_new(&c);
    r->sums[0] = r->sums[1] = 0;
    run_ok(r, 2);
    CHECK_EQ_INT(r->sums[0], STEPS);
    CHECK_EQ_INT(r->sums[1], STEPS);
    run_free(r);
    compiled_close(&c);
}

/* Gradients are rounded before they are sent, so bits differ from a single
   rank's, but not between ranks. */
TEST_CASE(ranks, gradients_in_16_bits) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    Run *r[3];
    for (int i = 0; i < 3; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--precision fp32 --optimizer sgd,lr=0.05 --comm-dtype %s "
                 "--comm-bucket 420",
                 dtypes[i]);
        Compiled c = compile_for("mlp.dyn.onnx", options, 1);
        r[i] = run_ranks(&c, 2, NULL);
        double loss = r[i]->metrics[0][STEPS - 1].loss;
        double exact = r[0]->metrics[0][STEPS - 1].loss;
        CHECK(memcmp(r[i]->state[0], r[i]->state[1], r[i]->bytes[0]) == 0);
        CHECK_MSG(fabs(loss - exact) < 0.01 * exact &&
                      (loss != exact) == (i > 0),
                  "%s: loss %.9g, not %.9g", dtypes[i], loss, exact);
        compiled_close(&c);
    }
    for (int i = 0; i < 3; i++) run_free(r[i]);
}

/* Each micro-step has its own mask, whoever makes it. */
static const char dropping[] =
    "graph forward(%x: f32[2,8], %t: i64[2]) {\n"
    "  param %w: f32[8,5]\n"
    "  state %ampc.rng: i64[2]\n"
    "  %d = dropout %x, %ampc.rng {ratio=0.5, salt=1} : f32[2,8]\n"
    "  %z = matmul %d, %w : f32[2,5]\n"
    "  %loss = softmax_cross_entropy %z, %t : f32[]\n"
    "  return loss=%loss\n"
    "}\n";

TEST_CASE(ranks, dropout_as_one_rank) {
    as_one_rank(dropping, "--precision fp32 --optimizer sgd,lr=0.1", false);
}

/* A number drawn from the batch's first element, which is equal whoever trains
   the batch. */
static uint32_t drawn(const Batch *b) {
    uint32_t x;
    memcpy(&x, b->in[0].data, sizeof x);
    return x >> 8;
}

/* None, one or both samples of the batch. */
static void some_samples(int rank, int step, Batch *b) {
    uint32_t rows = drawn(b) % 3;
    for (size_t i = 0; i < b->n; i++)
        b->in[i].bytes = b->in[i].bytes / 2 * rows;
    (void)rank;
    (void)step;
}

/* ... and labels that do not count. */
static void some_labels(int rank, int step, Batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        int64_t *t = (int64_t *)(uintptr_t)b->in[i].data;
        if (b->in[i].dtype != AMPC_DTYPE_I64) continue;
        for (size_t k = 0; k < b->in[i].bytes / sizeof *t; k++)
            if (drawn(b) >> k % 16 & 1) t[k] = -100;
    }
    some_samples(rank, step, b);
}

TEST_CASE(ranks, samples_that_fill_no_batch_as_one_rank) {
    spoiled_as_one_rank("mlp.dyn.onnx", "--precision fp32 " FOR_MLP, false,
                        some_samples);
    spoiled_as_one_rank(dropping, "--precision fp32 --optimizer sgd,lr=0.1",
                        false, some_samples);
}

TEST_CASE(ranks, labels_that_do_not_count_as_one_rank) {
    spoiled_as_one_rank("mlp.dyn.onnx", "--precision fp16 " FOR_MLP, true,
                        some_labels);
}

/* A step without its inputs: ampc.rng before and after. */
static void step_in_vain(void *ctx, int rank) {
    Run *r = ctx;
    const ampc_api *api = r->of[0]->api;
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    ampc_metrics m = {.size = sizeof m};
    ampc_session *s;
    int64_t *rng = r->state[rank] = calloc(4, sizeof *rng);
    o.comm = &r->ranks.comm[rank];
    if (api->open(api->module, &o, &s, NULL, 0) != AMPC_OK) return;
    for (int i = 0; i < 2; i++) {
        ampc_output out = ampc_out("ampc.rng", rng + 2 * i, 16, AMPC_DTYPE_I64);
        r->bytes[rank] += api->read_variable(s, "ampc.rng", &out) == AMPC_OK;
        if (i == 0) r->status[rank] = api->step(s, NULL, 0, &m);
    }
    api->close(s);
}

TEST_CASE(ranks, a_step_that_fails_draws_nothing) {
    Compiled c = compile_for(dropping, "--precision fp32", 1);
    Run *r = run_new(&c);
    ranks_open(&r->ranks, 2);
    ranks_run(&r->ranks, step_in_vain, r);
    ranks_close(&r->ranks);
    for (int i = 0; i < 2; i++) {
        const int64_t *rng = r->state[i];
        CHECK_EQ_INT(r->status[i], AMPC_ERR_ARGUMENT);
        REQUIRE(r->bytes[i] == 2);
        CHECK_MSG(!memcmp(rng, rng + 2, 16),
                  "rank %d: %lld, %lld, then %lld, "
                  "%lld",
                  i, (long long)rng[0], (long long)rng[1], (long long)rng[2],
                  (long long)rng[3]);
    }
    run_free(r);
    compiled_close(&c);
}

/* Gradients go through the host's memory; two sessions share the simulated
   GPU. */
static void on_a_gpu(void (*spoil)(int rank, int step, Batch *b), int applied) {
    const char *more[] = {"--accumulate 2", "--accumulate 1"};
    Run *r[2];
    for (int i = 0; i < 2; i++) {
        const Compiled *c =
            compile_on("cuda", dropping,
                       "--precision fp32 --optimizer sgd,lr=0.1", more[i]);
        r[i] = run_new(c);
        r[i]->device = "cuda";
        r[i]->steps = 6;
        r[i]->spoil = spoil;
        run_ok(r[i], i + 1);
    }
    check_same(r[1], r[0]);
    CHECK_EQ_INT(r[0]->metrics[0][5].step, applied);
    run_free(r[0]);
    run_free(r[1]);
}

TEST_CASE(ranks, on_a_gpu_as_one_rank) { on_a_gpu(NULL, 6); }

TEST_CASE(ranks, some_samples_on_a_gpu_as_one_rank) {
    on_a_gpu(some_samples, 5);
}

/* ---- statistics of all ranks --------------------------------------------- */

static Run *batch_run(const char *path, const char *options, int world,
                      int parts, int each) {
    char all[300];
    snprintf(all, sizeof all,
             "--dim batch=%d --target cpu:x86-64-v2 --precision fp32 "
             "--optimizer sgd,lr=0.05,momentum=0.9 %s",
             each * parts, options);
    Compiled c = compile_file(path, all);
    Run *r = run_new(&c);
    r->steps = 5;
    r->kinds = ALL_KINDS | 1 << AMPC_KIND_BUFFER;
    r->parts = parts;
    run_ok(r, world);
    compiled_close(&c);
    return r;
}

static Run *norm_run(const char *options, int world, int parts) {
    return batch_run(test_data_path("tests/onnx/cnn.dyn.onnx"), options, world,
                     parts, 2);
}

static double apart(const Run *a, const Run *b) {
    double most = 0;
    CHECK(a->bytes[0] == b->bytes[0]);
    for (size_t i = 0; i < a->bytes[0] / 4; i++) {
        double x = ((float *)a->state[0])[i], y = ((float *)b->state[0])[i];
        double d = fabs(x - y) / (1 + fabs(y));
        if (!(d <= most)) most = d;
    }
    return most;
}

/* Two ranks with two samples each are one with four. */
TEST_CASE(ranks, batch_norm_over_ranks_as_one_batch) {
    Run *one = norm_run("", 1, 2);
    Run *synced = norm_run("--sync-batchnorm --comm-bucket 300", 2, 1);
    Run *alone = norm_run("", 2, 1);
    CHECK_MSG(apart(synced, one) < TOL_RANKS, "%g", apart(synced, one));
    CHECK_MSG(apart(alone, one) > 1e-3, "%g", apart(alone, one));
    CHECK(memcmp(synced->state[0], synced->state[1], one->bytes[0]) == 0);
    run_free(one);
    run_free(synced);
    run_free(alone);
}

/* Four ranks with one sample each equal one rank with four; the variance over
   all samples is unbiased. */
TEST_CASE(ranks, batch_norm_of_one_sample_each) {
    static const char sync[] = "--loss mse --batchnorm train:unbiased "
                               "--sync-batchnorm";
    char path[600];
    snprintf(path, sizeof path, "%s", samples_norm());
    for (int world = 2; world <= 4; world += 2) {
        Run *one = batch_run(path, "--loss mse --batchnorm train:unbiased", 1,
                             world, 1);
        Run *synced = batch_run(path, sync, world, 1, 1);
        CHECK_MSG(apart(synced, one) < TOL_RANKS, "%g", apart(synced, one));
        run_free(one);
        run_free(synced);
    }
    Run *alone = batch_run(path, sync, 1, 1, 1);
    for (size_t i = 0; i < alone->bytes[0] / 4; i++)
        CHECK(isfinite(((float *)alone->state[0])[i]));
    run_free(alone);
}

/* Two sums in one message; the second is read first. (h keeps a from making
   room for sb before sa, and depends on a rank's own samples.) */
static Run *two_sums_run(int world, int parts) {
    char text[800];
    const char *path = test_tmp("sums.amp");
    int n =
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[batch,8]) {\n"
                 "  param %%w: f32[8] = 0.7, %%p: f32[8,8] = normal(0, 0.3)\n"
                 "  param %%q: f32[8,8] = normal(0, 0.3)\n"
                 "  %%u = mul %%x, %%w : f32[batch,8]\n"
                 "  %%v = mul %%u, %%u : f32[batch,8]\n"
                 "  %%a = reduce_sum %%u {axes=[0], keepdims=1} : f32[1,8]\n"
                 "  %%b = reduce_sum %%v {axes=[0], keepdims=1} : f32[1,8]\n"
                 "  %%sa = rank_sum %%a : f32[1,8]\n"
                 "  %%sb = rank_sum %%b : f32[1,8]\n"
                 "  %%t = tanh %%sb : f32[1,8]\n"
                 "  %%m = matmul %%t, %%p : f32[1,8]\n"
                 "  %%z = mul %%m, %%sa : f32[1,8]\n"
                 "  %%h = matmul %%a, %%q : f32[1,8]\n"
                 "  %%n = mul %%h, %g : f32[1,8]\n"
                 "  %%y = add %%z, %%n : f32[1,8]\n"
                 "  %%loss = reduce_sum %%y {axes=[0,1], keepdims=0} : f32[]\n"
                 "  return loss=%%loss\n}\n",
                 0.5 / parts);
    REQUIRE(test_write_file(path, text, (size_t)n));
    return batch_run(path, "--loss auto", world, parts, 2);
}

TEST_CASE(ranks, sums_end_before_any_is_read) {
    Run *one = two_sums_run(1, 2), *two = two_sums_run(2, 1);
    CHECK_MSG(apart(two, one) < TOL_RANKS, "%g", apart(two, one));
    run_free(one);
    run_free(two);
}

/* Without that, all have what rank 0 made of its own batch. */
TEST_CASE(ranks, running_statistics_are_those_of_rank_0) {
    Compiled c = compile_for("cnn.dyn.onnx",
                             "--precision fp32 --optimizer sgd,lr=0.05", 1);
    Run *one = run_new(&c), *r = run_new(&c);
    one->steps = r->steps = 1;
    one->kinds = r->kinds = 1 << AMPC_KIND_BUFFER;
    run_ok(one, 1);
    run_ok(r, 3);
    CHECK(one->bytes[0] > 0);
    for (int i = 0; i < 3; i++)
        CHECK(r->bytes[i] == one->bytes[0] &&
              memcmp(r->state[i], one->state[0], one->bytes[0]) == 0);
    run_free(one);
    run_free(r);
    compiled_close(&c);
}

#define SMALL "--precision fp32 --optimizer adamw,lr=0.01 "

/* ---- optimizer state in parts -------------------------------------------- */

static Compiled wide(const char *options) {
    char all[400];
    snprintf(all, sizeof all, "--target cpu:x86-64-v2 %s", options);
    return compile_file(samples_wide(), all);
}

static Run *shard_run(const Compiled *c, int world, const char *save,
                      ampc_kind kind) {
    Run *r = run_new(c);
    r->kinds = 1u << kind;
    r->save = save;
    r->steps = 8;
    run_ok(r, world);
    return r;
}

/* Compares bits, checkpoints included, with 1/N of the state and of the
   parameters that are read in 16 bits; the traffic equals that of gradients. */
static void sharded(const char *options, double states) {
    char all[300];
    snprintf(all, sizeof all, "%s --shard-optimizer", options);
    Compiled plain = wide(options);
    Compiled split = wide(all);
    Run *alone = shard_run(&plain, 1, NULL, AMPC_KIND_SHADOW);
    for (int world = 2; world <= 4; world += 2) {
        Run *a = shard_run(&plain, world, test_tmp("a"), AMPC_KIND_SHADOW);
        Run *b = shard_run(&split, world, test_tmp("b"), AMPC_KIND_SHADOW);
        check_same(b, a);
        CHECK(b->ranks.cut > 0); /* whole rows of the one gradient in parts */
        CHECK_EQ_INT(b->ranks.cut % SAMPLES_WIDE_ROW, 0);
        test_same_files("a", "b");
        test_same_files("a.weights", "b.weights");
        double state = states * 4 * SAMPLES_WIDE;
        for (int i = 0; i < world; i++) {
            double less = (double)a->asked[i].bytes - (double)b->asked[i].bytes;
            CHECK_MSG(fabs(less / (state * (1 - 1.0 / world)) - 1) < 0.1,
                      "rank %d of %d: %g of %g bytes less", i, world, less,
                      state);
            double more =
                (double)a->asked[i].bytes - (double)alone->asked[0].bytes;
            CHECK_MSG(fabs(more / (4 * SAMPLES_WIDE) - 1) < 0.1,
                      "rank %d of %d: %g bytes more than one", i, world, more);
        }
        run_free(a);
        run_free(b);
    }
    run_free(alone);
    compiled_close(&plain);
    compiled_close(&split);
}

TEST_CASE(ranks, adam_in_parts) {
    sharded("--precision bf16 --clip-norm 0.3 --optimizer adamw,lr=0.01 "
            "--comm-dtype bf16",
            3);
}

TEST_CASE(ranks, momentum_in_parts_with_overflows) {
    sharded("--precision fp16 --optimizer sgd,lr=0.05,momentum=0.9 "
            "--loss-scale dynamic,init=16777216,interval=2,max=1e9",
            2);
}

/* One process that accumulates, with all that decides about a step; and where
   the host's table can only sum all, is of an older interface or a newer one.
 */
TEST_CASE(ranks, parts_as_one_process) {
#define DECIDED                                                                \
    "--precision fp16 " FOR_MLP OVERFLOWS                                      \
    "--comm-bucket 30000 --shard-optimizer --accumulate "
    Compiled one = wide(DECIDED "1"), two = wide(DECIDED "2");
    Run *alone = shard_run(&two, 1, NULL, AMPC_KIND_SHADOW);
    static const size_t tables[] = {0, 0, offsetof(ampc_comm, scatter),
                                    offsetof(ampc_comm, error),
                                    sizeof(ampc_comm) + 64};
    for (int i = 0; i < 5; i++) {
        Run *r = run_new(&one);
        r->kinds = 1u << AMPC_KIND_SHADOW;
        r->steps = alone->steps;
        r->no_scatter = i == 1;
        r->table = tables[i];
        run_ok(r, 2);
        check_same(r, alone);
        CHECK(r->ranks.beside > 0);
        run_free(r);
    }
    CHECK(alone->metrics[0][7].skipped > 0 && alone->metrics[0][7].step > 0);
    run_free(alone);
    compiled_close(&one);
    compiled_close(&two);
}

/* Two ranks, and what sharding must not change. */
static void sharding_changes_nothing(const char *text, const char *options,
                                     ampc_kind kind) {
    Compiled of[2];
    Run *r[2];
    for (int split = 0; split < 2; split++) {
        char all[200];
        snprintf(all, sizeof all, "%s%s", options,
                 split ? " --shard-optimizer" : "");
        of[split] = compile_for(text, all, 1);
        r[split] = shard_run(&of[split], 2, NULL, kind);
    }
    check_same(r[1], r[0]);
    for (int split = 0; split < 2; split++) {
        run_free(r[split]);
        compiled_close(&of[split]);
    }
}

/* Without state all ranks update all parameters, from whole sums. */
TEST_CASE(ranks, nothing_in_parts) {
    sharding_changes_nothing(
        samples_wide_text,
        "--precision fp32 --clip-norm 0.3 --optimizer sgd,lr=0.05",
        AMPC_KIND_PARAMETER);
}

/* Averages, which evaluation reads, are whole on all ranks. */
TEST_CASE(ranks, averages_in_parts) {
    static const char *const options[] = {
        "--precision fp32 --ema 0.5 --optimizer adamw,lr=0.01",
        "--precision bf16 --ema 0.5 --optimizer adamw,lr=0.01",
        "--precision bf16 --swa start=3 --optimizer sgd,lr=0.05"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char parts[200];
        snprintf(parts, sizeof parts, "%s --shard-optimizer", options[i]);
        Compiled of[] = {wide(options[i]), wide(parts)};
        Run *a = shard_run(&of[0], 2, test_tmp("a"), AMPC_KIND_PARAMETER);
        Run *b = shard_run(&of[1], 2, test_tmp("b"), AMPC_KIND_PARAMETER);
        check_same(b, a);
        test_same_files("a", "b"); /* averages, too */
        run_free(a);
        run_free(b);
        compiled_close(&of[0]);
        compiled_close(&of[1]);
    }
}

/* %w is read in 16 bits and in fp32: it is handed out, and copied by all. */
static const char two_ways[] =
    "graph forward(%x: f32[2,80], %y: i64[2]) {\n"
    "  param %u: f32[80,720] = normal(0, 0.1)\n"
    "  param %w: f32[720,5] = normal(0, 0.1)\n"
    "  %h = matmul %x, %u : f32[2,720]\n"
    "  %r = tanh %h : f32[2,720]\n"
    "  %z = matmul %r, %w : f32[2,5]\n"
    "  %l = softmax_cross_entropy %z, %y : f32[]\n"
    "  %e = exp %w : f32[720,5]\n"
    "  %p = reduce_mean %e {axes=[0,1], keepdims=0} : f32[]\n"
    "  %loss = add %l, %p : f32[]\n"
    "  return loss=%loss\n"
    "}\n";

TEST_CASE(ranks, parts_of_what_is_read_two_ways) {
    sharding_changes_nothing(two_ways, "--optimizer adamw,lr=0.01",
                             AMPC_KIND_SHADOW);
}

/* All ranks hold the short vectors %b and %k whole; sums over %v are cut. */
TEST_CASE(ranks, short_and_long_vectors_in_parts) {
    sharding_changes_nothing(
        "graph forward(%x: f32[2,80], %y: i64[2]) {\n"
        "  param %w: f32[80,5] = normal(0, 0.1), %b: f32[5] = 0\n"
        "  param %k: f32[1] = 1\n"
        "  param %v: f32[40000] = normal(1, 0.1)\n"
        "  param %u: f32[16385] = normal(2, 0.1)\n" /* one behind any unit */
        "  %m = matmul %x, %w : f32[2,5]\n"
        "  %n = mul %m, %k : f32[2,5]\n"
        "  %z = add %n, %b : f32[2,5]\n"
        "  %l = softmax_cross_entropy %z, %y : f32[]\n"
        "  %e = exp %v : f32[40000]\n"
        "  %p = reduce_mean %e {axes=[0], keepdims=0} : f32[]\n"
        "  %f = exp %u : f32[16385]\n"
        "  %q = reduce_sum %f {axes=[0], keepdims=0} : f32[]\n"
        "  %lp = add %l, %p : f32[]\n"
        "  %loss = add %lp, %q : f32[]\n"
        "  return loss=%loss\n"
        "}\n",
        "--precision fp32 --clip-norm 0.3 --optimizer adamw,lr=0.01",
        AMPC_KIND_PARAMETER);
}

/* Less than a vector, and one number, which has no parts. */
static const char few_elements[] =
    "graph forward(%x: f32[2,80], %y: i64[2]) {\n"
    "  param %w: f32[80,5] = normal(0, 0.1), %b: f32[5] = 0.5\n"
    "  param %o: f32[1] = 1, %s: f32[] = 1\n"
    "  %h = matmul %x, %w : f32[2,5]\n"
    "  %i = add %h, %b : f32[2,5]\n"
    "  %j = mul %i, %o : f32[2,5]\n"
    "  %z = mul %j, %s : f32[2,5]\n"
    "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
    "  return loss=%loss\n"
    "}\n";

TEST_CASE(ranks, parts_of_few_elements) {
    sharding_changes_nothing(few_elements,
                             "--precision fp32 --optimizer adamw,lr=0.01",
                             AMPC_KIND_PARAMETER);
    sharding_changes_nothing(few_elements,
                             "--precision fp32 --clip-norm 0.3 --optimizer "
                             "sgd,lr=0.05,momentum=0.9",
                             AMPC_KIND_PARAMETER);
}

/* A result that is a parameter is all of it. */
static void predict_parameter(void *ctx, int rank) {
    Run *r = ctx;
    const ampc_api *api = r->of[0]->api;
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    ampc_metrics m = {.size = sizeof m};
    ampc_session *s;
    size_t bytes = SAMPLES_WIDE_SUM * sizeof(float);
    r->state[rank] = calloc(2, bytes);
    ampc_output out = ampc_out("u", r->state[rank], bytes, AMPC_DTYPE_F32);
    o.comm = &r->ranks.comm[rank];
    r->status[rank] =
        api->open(api->module, &o, &s, r->error[rank], sizeof r->error[rank]);
    if (r->status[rank]) return;
    Batch b = batch_new(api, 0, 1);
    for (int i = 0; i < 2 && !r->status[rank]; i++)
        r->status[rank] = api->step(s, b.in, b.n, &m);
    if (!r->status[rank])
        r->status[rank] = api->predict(s, b.in, b.n, 2, &out, 1);
    ampc_output all =
        ampc_out("u", (char *)r->state[rank] + bytes, bytes, AMPC_DTYPE_F32);
    if (!r->status[rank]) r->status[rank] = api->read_variable(s, "u", &all);
    batch_free(&b);
    api->close(s);
}

TEST_CASE(ranks, a_result_in_parts) {
    char text[1000];
    const char *end = strstr(samples_wide_text, "  return");
    snprintf(text, sizeof text, "%.*s  return loss=%%loss, u=%%u\n}\n",
             (int)(end - samples_wide_text), samples_wide_text);
    Compiled c = compile_text(
        text, "--target cpu:x86-64-v2 --shard-optimizer --precision bf16 "
              "--optimizer adamw,lr=0.01");
    Run *r = run_new(&c);
    ranks_open(&r->ranks, 2);
    ranks_run(&r->ranks, predict_parameter, r);
    ranks_close(&r->ranks);
    for (int i = 0; i < 2; i++) {
        const float *u = r->state[i];
        CHECK_EQ_INT(r->status[i], AMPC_OK);
        CHECK(memcmp(u, u + SAMPLES_WIDE_SUM, 4 * SAMPLES_WIDE_SUM) == 0);
        CHECK(memcmp(u, r->state[0], 4 * SAMPLES_WIDE_SUM) == 0);
    }
    run_free(r);
    compiled_close(&c);
}

/* Parameters are handed out through the host's memory; then once more after
   resuming. */
TEST_CASE(ranks, parts_on_a_gpu) {
    const char *more[] = {"", "--shard-optimizer"};
    const char *saved[] = {test_tmp("whole.gpu"), test_tmp("parts.gpu")};
    for (int resumes = 0; resumes < 2; resumes++) {
        Run *r[2];
        double peak[2];
        for (int i = 0; i < 2; i++) {
            SimStats stats;
            r[i] = run_new(compile_on(
                "cuda", samples_wide_text,
                "--precision bf16 --optimizer adamw,lr=0.01", more[i]));
            r[i]->kinds = 1u << AMPC_KIND_SHADOW;
            r[i]->device = "cuda";
            r[i]->steps = 2;
            r[i]->save = saved[i];
            if (resumes) r[i]->load[0] = r[i]->load[1] = saved[i];
            run_ok(r[i], 2);
            sim()->stats(&stats);
            peak[i] = (double)stats.peak;
        }
        check_same(r[1], r[0]);
        CHECK_EQ_INT(r[0]->metrics[0][1].step, resumes ? 4 : 2);
        /* Each of two has half of the moments and of the parameters; one kernel
           updates all. */
        CHECK_REL(peak[0] - peak[1], 2 * 0.5 * 3 * 4.0 * SAMPLES_WIDE, 0.01);
        run_free(r[0]);
        run_free(r[1]);
    }
}

/* Saved by four, resumed by two and by one, whether state is spread or not. */
TEST_CASE(ranks, other_ranks_resume_parts) {
    Compiled plain = wide(SMALL);
    Compiled split = wide(SMALL "--shard-optimizer");
    const char *saved = test_tmp("parts.ckpt");
    Run *then[2][2];
    run_free(shard_run(&split, 4, saved, AMPC_KIND_PARAMETER));
    for (int world = 1; world <= 2; world++)
        for (int k = 0; k < 2; k++) {
            Run *r = then[world - 1][k] = run_new(k ? &split : &plain);
            r->kinds = 1u << AMPC_KIND_PARAMETER;
            r->steps = 3;
            r->load[0] = saved;
            r->load[1] = "nowhere";
            run_ok(r, world);
            CHECK_EQ_INT(r->metrics[0][2].step, 11);
            check_same(r, then[world - 1][0]);
        }
    Run *missing = run_new(&split);
    missing->kinds = 1u << AMPC_KIND_PARAMETER;
    for (int i = 0; i < 2; i++) missing->load[i] = "nowhere";
    run(missing, 2);
    CHECK_EQ_INT(missing->status[0], AMPC_ERR_FILE);
    CHECK_EQ_INT(missing->status[1], AMPC_ERR_COMM);
    run_free(missing);
    for (int resumes = 0; resumes < 2; resumes++) {
        Run *nameless = run_new(&split);
        nameless->kinds = 1u << AMPC_KIND_PARAMETER;
        nameless->steps = 1;
        if (resumes)
            nameless->load[0] = saved, nameless->load[1] = "";
        else
            nameless->save = test_tmp("none.ckpt"), nameless->nameless = 1;
        run(nameless, 2);
        CHECK_EQ_INT(nameless->status[0], AMPC_ERR_COMM);
        CHECK_EQ_INT(nameless->status[1], AMPC_ERR_ARGUMENT);
        run_free(nameless);
    }
    for (int i = 0; i < 4; i++) run_free(then[i / 2][i % 2]);
    compiled_close(&plain);
    compiled_close(&split);
}

/* ---- one verdict --------------------------------------------------------- */

/* Compiled once. */
static const Compiled *small(void) {
    static Compiled c;
    if (!c.api) c = compile_for("mlp.dyn.onnx", SMALL, 1);
    return &c;
}

static void spoil_with_inf(int rank, int step, Batch *b) {
    if (rank == 2 && step == 1)
        ((float *)(uintptr_t)b->in[0].data)[3] = INFINITY;
}

TEST_CASE(ranks, what_one_skips_all_skip) {
    const Compiled *c = small();
    Run *r = run_new(c);
    r->spoil = spoil_with_inf;
    r->steps = 4;
    run(r, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_OK);
        CHECK_EQ_INT(r->metrics[i][0].applied, 1);
        CHECK_EQ_INT(r->metrics[i][1].applied, 0);
        CHECK_EQ_INT(r->metrics[i][3].skipped, 1);
        CHECK(memcmp(r->state[i], r->state[0], r->bytes[i]) == 0);
    }
    run_free(r);
}

static void spoil_labels(int rank, int step, Batch *b) {
    if (rank == 1 && step == 2) ((int64_t *)(uintptr_t)b->in[1].data)[0] = 77;
}

TEST_CASE(ranks, bad_data_of_one_end_all) {
    const Compiled *c = small();
    Run *r = run_new(c);
    r->spoil = spoil_labels;
    run(r, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_DATA);
        CHECK_HAS(r->error[i], i == 1 ? "77" : "rank 1");
        CHECK(memcmp(r->state[i], r->state[0], r->bytes[i]) == 0);
    }
    run_free(r);
}

static void spoil_two(int rank, int step, Batch *b) {
    spoil_labels(1, rank ? step : 0, b);
}

TEST_CASE(ranks, bad_data_of_two_name_the_first) {
    Run *r = run_new(small());
    r->spoil = spoil_two;
    run(r, 3);
    CHECK_EQ_INT(r->status[0], AMPC_ERR_DATA);
    CHECK_HAS(r->error[0], "rank 1");
    run_free(r);
}

TEST_CASE(ranks, another_module_is_named) {
    const Compiled *c = small();
    Compiled other = compile_for("mlp.dyn.onnx", SMALL, 2);
    Compiled options = compile_for("mlp.dyn.onnx", SMALL "--seed 5", 1);
    Compiled *others[] = {&other, &options};
    const char *const why[] = {"rank 2 has another graph than rank 0",
                               "rank 2 has a module of other compile options"};
    for (int k = 0; k < 2; k++) {
        Run *r = run_new(c);
        r->of[2] = others[k];
        run(r, 6);
        for (int i = 0; i < 6; i++) {
            CHECK_EQ_INT(r->status[i], AMPC_ERR_COMM);
            CHECK_HAS(r->error[i], why[k]);
        }
        run_free(r);
        compiled_close(others[k]);
    }
}

/* Whichever of its allocations fails, but for the session itself. */
TEST_CASE(ranks, one_that_cannot_open_is_named) {
    const Compiled *c = small();
    Run *all = run_new(c);
    all->steps = 1;
    run_ok(all, 6);
    CHECK(all->asked[4].calls > 3);
    for (int k = 2; k <= all->asked[4].calls; k++) {
        Run *r = run_new(c);
        r->starved = 4;
        r->refused = k;
        run(r, 6);
        for (int i = 0; i < 6; i++) {
            bool is = i == r->starved;
            CHECK_MSG(r->status[i] == (is ? AMPC_ERR_MEMORY : AMPC_ERR_COMM),
                      "allocation %d: status %d", k, r->status[i]);
            CHECK_HAS(r->error[i], is ? "out of memory"
                                      : "rank 4 could not open its session");
            CHECK_EQ_INT(r->asked[i].held, 0);
        }
        run_free(r);
    }
    run_free(all);
}

/* An engine that fails fails every rank, and no step is half made. */
static void engine_fails(size_t table, const char *why) {
    const Compiled *c = small();
    Run *before = run_new(c), *r = run_new(c);
    before->steps = 3;
    run(before, 2);
    r->fail_in = 5; /* open, three steps, this one */
    r->table = table;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_COMM);
        CHECK_HAS(r->error[i], why);
        CHECK_EQ_INT(r->metrics[i][2].step, 3);
        CHECK_EQ_INT(r->metrics[i][3].updated, 0);
        CHECK(memcmp(r->state[i], before->state[0], r->bytes[i]) == 0);
    }
    run_free(before);
    run_free(r);
}

TEST_CASE(ranks, an_engine_that_fails) {
    engine_fails(0, "the cable was pulled");
    engine_fails(offsetof(ampc_comm, error), "the communicator failed");
}

/* Whichever of a step's sums it is, beside backward or behind it, and though
   those that follow are made. */
TEST_CASE(ranks, one_sum_that_fails) {
    Compiled c = compile_for("mlp.dyn.onnx", SMALL "--comm-bucket 1", 1);
    Run *one = run_new(&c), *two = run_new(&c);
    one->steps = 1;
    two->steps = 2;
    run_ok(one, 2);
    run_ok(two, 2);
    CHECK(two->ranks.beside > 2);
    for (int k = one->ranks.calls + 1; k <= two->ranks.calls; k++) {
        Run *r = run_new(&c);
        r->steps = 2;
        r->fail_in = k;
        r->once = true;
        run(r, 2);
        for (int i = 0; i < 2; i++) {
            CHECK_MSG(r->status[i] == AMPC_ERR_COMM, "call %d: status %d", k,
                      r->status[i]);
            CHECK(memcmp(r->state[i], one->state[0], r->bytes[i]) == 0);
        }
        run_free(r);
    }
    run_free(one);
    run_free(two);
    compiled_close(&c);
}

/* One process alone may save there. */
TEST_CASE(ranks, a_checkpoint_between_micro_steps) {
    Compiled c = compile_for("mlp.dyn.onnx", SMALL, 2);
    const char *path = test_tmp("between.ckpt");
    ampc_session *s = open_threads(&c, 1);
    Batch b = batch_new(c.api, 0, 1);
    ampc_metrics m = step_ok(&c, s, b.in, b.n);
    CHECK_EQ_INT(m.updated, 0);
    REQUIRE(c.api->save(s, path) == AMPC_OK);
    c.api->close(s);
    batch_free(&b);
    Run *r = run_new(&c);
    r->load[0] = r->load[1] = path;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(r->status[i], AMPC_ERR_FORMAT);
        CHECK_HAS(r->error[i], "between micro-steps");
    }
    run_free(r);
    compiled_close(&c);
}

/* One of the functions that all tables have is missing, or a rank is not in the
   world. */
TEST_CASE(ranks, half_a_communicator) {
    const Compiled *c = small();
    Ranks ranks;
    ampc_comm comm;
    ampc_options o = {.size = sizeof o, .comm = &comm};
    ampc_session *s;
    char err[256];
    ranks_open(&ranks, 2);
    for (int i = 0; i < 9; i++) {
        comm = ranks.comm[1];
        if (i == 0) cut(&comm, 0);
        if (i == 1) cut(&comm, offsetof(ampc_comm, barrier));
        if (i == 2) cut(&comm, offsetof(ampc_comm, error) - 1);
        if (i == 3) comm.allreduce = NULL;
        if (i == 4) comm.broadcast = NULL;
        if (i == 5) comm.barrier = NULL;
        if (i == 6) comm.rank = 2;
        if (i == 7) comm.world = 0;
        if (i == 8) comm.local = -1;
        CHECK_EQ_INT(c->api->open(c->api->module, &o, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, "comm: its size, a function, the rank");
    }
    ranks_close(&ranks);
}

TEST_CASE(ranks, no_such_engine) {
    const Compiled *c = small();
    ampc_comm_options engine = {.size = sizeof engine, .engine = "pigeons"};
    ampc_comm *made;
    char err[256];
    CHECK_EQ_INT(c->api->comm_open(&engine, &made, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_HAS(err, "unknown engine");
    CHECK(made == NULL);
    c->api->comm_close(NULL);
}

/* A port that accepts connections but never reads, so that a call waits for
   minutes. */
TEST_CASE(ranks, nobody_answers) {
    const Compiled *c = small();
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0), waiting[4];
    REQUIRE(bind(fd, (void *)&at, sizeof at) == 0 && listen(fd, 0) == 0 &&
            getsockname(fd, (void *)&at, &size) == 0);
    for (int i = 0; i < 4; i++) {
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(waiting[i], (void *)&at, sizeof at);
    }
    char port[16], err[300];
    snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
    const char *const set[][2] = {{"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", port},
                                  {"RANK", "1"},
                                  {"WORLD_SIZE", "2"}};
    for (int i = 0; i < 4; i++) setenv(set[i][0], set[i][1], 1);
    ampc_comm_options engine = {
        .size = sizeof engine, .engine = "nccl", .deadline = 1};
    ampc_comm *made = NULL;
    double begin = comm_seconds();
    CHECK_EQ_INT(c->api->comm_open(&engine, &made, err, sizeof err),
                 AMPC_ERR_COMM);
    CHECK_MSG(comm_seconds() - begin < 4, "%g s", comm_seconds() - begin);
    CHECK_HAS(err, "rank 0 does not answer at 127.0.0.1:");
    for (int i = 0; i < 4; i++) unsetenv(set[i][0]);
    for (int i = 0; i < 4; i++) close(waiting[i]);
    close(fd);
}

/* Variables of launchers hold a number or are ignored. */
TEST_CASE(ranks, variables_that_say_no_number) {
    static const struct {
        const char *rank, *world, *port, *why;
    } cases[] = {
        {"x", "2", "29999", "must be the rank and the number"},
        {"1x", "2", "29999", "must be the rank and the number"},
        {"", "2", "29999", "must be the rank and the number"},
        {"4294967296", "2", "29999", "must be the rank and the number"},
        {"1", "-2", "29999", "must be the rank and the number"},
        {"1", "2", "29999x", "$MASTER_PORT is not a port"},
        {"1", "2", "65536", "$MASTER_PORT is not a port"},
    };
    const Compiled *c = small();
    ampc_comm_options engine = {
        .size = sizeof engine, .engine = "tcp", .deadline = 1};
    ampc_comm *made;
    char err[300];
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("RANK", cases[i].rank, 1);
        setenv("WORLD_SIZE", cases[i].world, 1);
        setenv("MASTER_PORT", cases[i].port, 1);
        CHECK(c->api->comm_open(&engine, &made, err, sizeof err) != AMPC_OK);
        CHECK_HAS(err, cases[i].why);
    }
    unsetenv("MASTER_ADDR");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_PORT");
}

/* Ranks that say what rank 0 says, four in a sum. */
typedef struct Alike {
    double said[16];
    size_t each; /* numbers of a rank; 0: rank 0 has not spoken */
} Alike;

static int as_rank_0(void *ctx, void *data, size_t count, int32_t dtype) {
    Alike *a = ctx;
    if (dtype != AMPC_DTYPE_F64) return 0;
    if (!a->each) {
        a->each = count / 4;
        memcpy(a->said, data, a->each * sizeof *a->said);
    }
    for (size_t i = 0; i < count; i++)
        ((double *)data)[i] = a->said[i % a->each];
    return 0;
}

static int sent(void *ctx, void *data, size_t bytes, int32_t root) {
    (void)ctx, (void)data, (void)bytes, (void)root;
    return 0;
}

static int met(void *ctx) {
    (void)ctx;
    return 0;
}

/* Micro-steps of all ranks are counted in 31 bits. */
TEST_CASE(ranks, micro_steps_of_all_have_a_bound) {
    Compiled c = compile_text("graph forward(%x: f32[2,3]) {\n"
                              "  param %w: f32[3,2] = 1\n"
                              "  %y = matmul %x, %w\n  return %y\n}\n",
                              "--loss mse --accumulate 16777216");
    for (int world = 127; world <= 128; world++) {
        char err[300] = "";
        ampc_session *s = NULL;
        Alike alike = {.each = 0};
        ampc_comm comm = {.size = sizeof comm,
                          .world = world,
                          .ctx = &alike,
                          .allreduce = as_rank_0,
                          .broadcast = sent,
                          .barrier = met};
        ampc_options o = {.size = sizeof o, .device = "cpu", .comm = &comm};
        ampc_status st = c.api->open(c.api->module, &o, &s, err, sizeof err);
        CHECK_MSG(st == (world < 128 ? AMPC_OK : AMPC_ERR_UNSUPPORTED), "%s",
                  err);
        if (s) c.api->close(s);
        if (st) CHECK_HAS(err, "too many micro-steps of all ranks");
    }
    compiled_close(&c);
}

/* ---- checkpoints --------------------------------------------------------- */

/* Four ranks, then two that make twice the micro-steps, from a file that rank 0
   alone can see: the same samples in the same order. */
TEST_CASE(ranks, other_ranks_resume) {
    const Compiled *one = small();
    const char *saved = test_tmp("ranks.ckpt");
    Run *first = run_new(one), *then = run_new(one), *all = run_new(one);
    first->steps = 6;
    first->save = saved;
    run(first, 4);
    then->load[0] = saved;
    for (int i = 1; i < 4; i++) then->load[i] = "nowhere";
    then->from = 6 * 4;
    then->steps = 5;
    run(then, 4);
    all->steps = 11;
    run(all, 4);
    for (int i = 0; i < 4; i++) {
        CHECK_MSG(then->status[i] == AMPC_OK, "%s", then->error[i]);
        CHECK(memcmp(then->state[i], all->state[0], all->bytes[i]) == 0);
    }
    Run *missing = run_new(one);
    for (int i = 0; i < 2; i++) missing->load[i] = "nowhere";
    run(missing, 2);
    CHECK_EQ_INT(missing->status[0], AMPC_ERR_FILE);
    CHECK_EQ_INT(missing->status[1], AMPC_ERR_COMM);
    Run *runs[] = {first, then, all, missing};
    for (int i = 0; i < 4; i++) run_free(runs[i]);
}
