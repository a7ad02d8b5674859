/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_test.c: the same bits as one rank that accumulates; ranks/ has the
   other subjects. */
#define _GNU_SOURCE
#include "tests/whole/ranks/ranks_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/samples.h"
#include "tests/support/simulate.h"
#include "tests/tolerance.h"

/* ---- as one rank --------------------------------------------------------- */

/* Sums of sums: added in another order than on one rank. */
static void check_near(const Run *got, const Run *want) {
    for (int i = 0; i < got->steps; i++)
        CHECK_REL(got->metrics[1][i].loss, want->metrics[0][i].loss, TOL_RANKS);
}

static Compiled in_small_buckets(const char *model, const char *options) {
    char all[512];
    snprintf(all, sizeof all, "--comm-bucket 500 %s", options);
    return compile_for(model, all, 1);
}

/* Four ranks of `one` compared with one rank that accumulates four
   micro-batches. */
static void check_four(const Compiled *one, const char *model,
                       const char *options, bool skips,
                       void (*spoil)(int rank, int step, Batch *b)) {
    Compiled four = compile_for(model, options, 4);
    Run *alone = run_ranks(&four, 1, spoil), *ranks = run_ranks(one, 4, spoil);
    check_same(ranks, alone);
    const ampc_metrics *last = &alone->metrics[0][STEPS - 1];
    CHECK(last->step > 0 && isfinite(last->loss));
    CHECK_EQ_INT(last->skipped > 0, skips);
    CHECK(last->loss != alone->metrics[0][1].loss);
    run_free(alone);
    run_free(ranks);
    compiled_close(&four);
}

static void four_as_one(const char *model, const char *options, bool skips,
                        void (*spoil)(int rank, int step, Batch *b)) {
    Compiled one = in_small_buckets(model, options);
    check_four(&one, model, options, skips, spoil);
    compiled_close(&one);
}

/* .. two ranks compared with one that accumulates two, and two ranks that
   accumulate two with one that accumulates four. */
static void as_one_rank(const char *model, const char *options, bool skips) {
    Compiled one = in_small_buckets(model, options);
    Compiled two = compile_for(model, options, 2);
    check_four(&one, model, options, skips, NULL);
    Run *alone = run_ranks(&two, 1, NULL), *ranks = run_ranks(&one, 2, NULL);
    Run *both = run_ranks(&two, 2, NULL), *four = run_ranks(&one, 4, NULL);
    check_same(ranks, alone);
    check_near(both, four);
    Run *runs[] = {alone, ranks, both, four};
    for (int i = 0; i < 4; i++) run_free(runs[i]);
    compiled_close(&one);
    compiled_close(&two);
}

TEST_CASE(ranks, mlp_as_one_rank) {
    as_one_rank("mlp.dyn.onnx", "--precision fp32 " FOR_MLP, false);
}

TEST_CASE(ranks, cnn_with_overflows_as_one_rank) {
    four_as_one("cnn.dyn.onnx", "--precision fp16 " FOR_CNN OVERFLOWS, true,
                NULL);
}

TEST_CASE(ranks, gpt_as_one_rank) {
    four_as_one("gpt.dyn.onnx", "--precision bf16 " FOR_GPT, false, NULL);
}

/* In turns, each with its own optimizer and one scale for both; the second's
   loss occasionally overflows. */
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

/* One bucket, several, or one per gradient: the same bits; all but the last
   are summed during backward. */
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
   rank's, but not between ranks. Losses are sent in fp32: the first
   step's loss is the same. */
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
        double first = r[i]->metrics[0][0].loss;
        CHECK(memcmp(r[i]->state[0], r[i]->state[1], r[i]->bytes[0]) == 0);
        CHECK_MSG(first == r[0]->metrics[0][0].loss, "%s: first loss %.9g",
                  dtypes[i], first);
        CHECK_MSG(fabs(loss - exact) < 0.01 * exact &&
                      (loss != exact) == (i > 0),
                  "%s: loss %.9g, not %.9g", dtypes[i], loss, exact);
        compiled_close(&c);
    }
    for (int i = 0; i < 3; i++) run_free(r[i]);
}

/* Each micro-step has its own mask, whichever rank makes it. */
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

/* A random number that depends on the batch's first element, so that it is
   equal whichever rank trains the batch. */
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
    four_as_one("mlp.dyn.onnx", "--precision fp32 " FOR_MLP, false,
                some_samples);
    four_as_one(dropping, "--precision fp32 --optimizer sgd,lr=0.1", false,
                some_samples);
}

TEST_CASE(ranks, labels_that_do_not_count_as_one_rank) {
    four_as_one("mlp.dyn.onnx", "--precision fp16 " FOR_MLP, true, some_labels);
}

/* A step without inputs: ampc.rng before and after. */
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
   GPU. The CPU has the same losses. */
static void on_a_gpu(const char *text, const char *options,
                     void (*spoil)(int rank, int step, Batch *b), int applied) {
    const char *more[] = {"--accumulate 2", "--accumulate 1",
                          "--accumulate 2 --target cpu:x86-64-v2"};
    Run *r[3];
    for (int i = 0; i < 3; i++) {
        const char *device = i == 2 ? "cpu" : "cuda";
        r[i] = run_new(compile_on(device, text, options, more[i]));
        r[i]->device = device;
        r[i]->steps = 6;
        r[i]->spoil = spoil;
        run_ok(r[i], i == 1 ? 2 : 1);
    }
    check_same(r[1], r[0]);
    CHECK_EQ_INT(r[0]->metrics[0][5].step, applied);
    for (int i = 0; i < 6; i++)
        CHECK_REL(r[0]->metrics[0][i].loss, r[2]->metrics[0][i].loss, 1e-5);
    for (int i = 0; i < 3; i++) run_free(r[i]);
}

#define PLAIN "--precision fp32 --optimizer sgd,lr=0.1"

TEST_CASE(ranks, on_a_gpu_as_one_rank) { on_a_gpu(dropping, PLAIN, NULL, 6); }

TEST_CASE(ranks, some_samples_on_a_gpu_as_one_rank) {
    on_a_gpu(dropping, PLAIN, some_samples, 5);
}

/* LoRA and DoRA, with an optimizer that sums over all parameters. */
static const char adapted[] = "model net(x: f32[2,8]) {\n"
                              "  h = tanh(Linear(x, units=6, scope=\"one\"))\n"
                              "  return y = Linear(h, units=5, scope=\"two\")\n"
                              "}\n";

TEST_CASE(ranks, adapters_and_totals_as_one_rank) {
    static const char options[] =
        "--precision fp32 --loss cross_entropy --optimizer prodigy,d0=0.01 "
        "--lora one,rank=2,dora --lora two,rank=2";
    four_as_one(adapted, options, false, NULL);
    on_a_gpu(adapted, options, NULL, 6);
}

#define EACH                                                                   \
    "--precision fp32 --loss cross_entropy --optimizer adamw,lr=0.05 "         \
    "--lora conv,rank=2 --lora one,rank=2,dora --ia3 two "                     \
    "--ia3 three,feedforward"

/* LoRA of a convolution, factors and magnitudes; ranks share the optimizer. */
TEST_CASE(ranks, each_kind_of_adapter_as_one_rank) {
    static const char text[] =
        "model net(x: f32[2,8]) {\n"
        "  h = reshape(x, shape=[2, 2, 2, 2])\n"
        "  h = tanh(Conv2d(h, channels=3, size=3, pad=1, scope=\"conv\"))\n"
        "  h = reshape(h, shape=[2, 12])\n"
        "  h = tanh(Linear(h, units=6, scope=\"one\"))\n"
        "  h = tanh(Linear(h, units=6, scope=\"two\"))\n"
        "  return y = Linear(h, units=5, scope=\"three\")\n"
        "}\n";
    on_a_gpu(text, EACH, NULL, 6);
    four_as_one(text, EACH, false, NULL);
    Compiled c[] = {compile_for(text, EACH " --shard-optimizer", 4),
                    compile_for(text, EACH " --shard-optimizer", 1)};
    Run *r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = run_new(&c[i]);
        r[i]->kinds = 1u << AMPC_KIND_PARAMETER;
        run_ok(r[i], i ? 4 : 1);
    }
    check_same(r[1], r[0]);
    for (int i = 0; i < 2; i++) {
        run_free(r[i]);
        compiled_close(&c[i]);
    }
}

/* Random numbers of updates; an ascent of each micro-batch. */
TEST_CASE(ranks, noise_and_wrappers_as_one_rank) {
    static const char options[] =
        "--precision fp32 --loss cross_entropy --optimizer sgd,lr=0.1 "
        "--gradient noise,eta=0.1 --wrapper sam --wrapper lookahead,k=2";
    four_as_one(adapted, options, false, NULL);
}

TEST_CASE(ranks, stochastic_rounding_as_one_rank) {
    static const char wide[] =
        "model net(x: f32[2,8]) {\n"
        "  h = tanh(Linear(x, units=512, scope=\"one\"))\n"
        "  return y = Linear(h, units=5, scope=\"two\")\n"
        "}\n";
    four_as_one(wide, "--loss cross_entropy --masters none --state-dtype bf16",
                false, NULL);
}
