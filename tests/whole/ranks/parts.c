/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c: optimizer state divided into parts. */
#define _GNU_SOURCE
#include "tests/whole/ranks/ranks_run.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/samples.h"
#include "tests/support/simulate.h"

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

/* Compares bits, including checkpoints, with 1/N of the state and of the
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
        CHECK(b->ranks.cut > 0); /* whole rows of the only gradient that is
                                    divided */
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

/* Compared with one process that accumulates, with everything that decides a
   step; also if the host's table can only sum, or has an older or newer
   interface.
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

/* Two ranks, and results that sharding must not change. */
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

/* Without state all ranks update all parameters, from complete sums. */
TEST_CASE(ranks, nothing_in_parts) {
    sharding_changes_nothing(
        samples_wide_text,
        "--precision fp32 --clip-norm 0.3 --optimizer sgd,lr=0.05",
        AMPC_KIND_PARAMETER);
}

/* Averages, which evaluation reads, are complete on all ranks. */
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

/* %w is read in 16 bits and in fp32: it is exchanged, and every rank makes
   the copy. */
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

/* All ranks have the short vectors %b and %k completely; sums over %v are
   divided. */
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

/* Less than a vector, and a single number, which cannot be divided. */
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

/* A result that is a parameter is complete. */
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

/* ---- an optimizer that a stranger wrote ---------------------------------- */

static const char strangers[] =
    "# The mean of gradients divided by the mean of their sizes.\n"
    "optimizer mine(p, g; lr = 0.01 \"learning rate\", keep = 0.9 below 1)\n"
    "  source \"a stranger\"\n"
    "  state mean\n"
    "  state size\n"
    "{\n"
    "  mean = mean * keep + g * (1 - keep)\n"
    "  size = size * keep + abs(g) * (1 - keep)\n"
    "  p = p - mean / (size + 1e-6) * lr\n"
    "}\n";

/* A run that a checkpoint cuts in two ends with the bits of a whole run. */
static void cut_in_two(const char *device, const char *options,
                       const char *more) {
    const Compiled *c = compile_on(device, samples_wide_text, options, more);
    const char *half = test_tmp("half");
    Run *r[3];
    for (int i = 0; i < 3; i++) {
        r[i] = run_new(c);
        r[i]->device = device;
        r[i]->steps = i ? 2 : 4;
    }
    r[1]->save = half;
    r[2]->load[0] = half;
    r[2]->from = 2;
    for (int i = 0; i < 3; i++) run_ok(r[i], 1);
    REQUIRE(r[0]->bytes[0] > 0 && r[0]->bytes[0] == r[2]->bytes[0]);
    CHECK(memcmp(r[0]->state[0], r[2]->state[0], r[0]->bytes[0]) == 0);
    CHECK(memcmp(r[0]->state[0], r[1]->state[0], r[0]->bytes[0]) != 0);
    for (int i = 0; i < 3; i++) run_free(r[i]);
}

/* It trains on both devices, resumes with the same bits, and is divided among
   ranks. */
TEST_CASE(ranks, a_strangers_optimizer) {
    char options[400];
    const char *path = test_tmp("mine.amp");
    REQUIRE(test_write_file(path, strangers, sizeof strangers - 1));
    snprintf(options, sizeof options,
             "--precision bf16 --optimizer %s,keep=0.75", path);
    sharded(options, 3);
    cut_in_two("cpu", options, "--target cpu:x86-64-v2");
    cut_in_two("cuda", options, "");
}

/* Parameters are exchanged through the host's memory; then again after
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
        /* Each of two ranks has half of the moments and of the parameters;
           one kernel updates all. */
        CHECK_REL(peak[0] - peak[1], 2 * 0.5 * 3 * 4.0 * SAMPLES_WIDE, 0.01);
        run_free(r[0]);
        run_free(r[1]);
    }
}

/* Saved by four ranks, resumed by two and by one, whether state is divided
   or not. */
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
