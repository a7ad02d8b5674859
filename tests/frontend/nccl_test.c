/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_test.c: processes with a simulated GPU each (nccl/ranks.h) make the
   steps of one process that accumulates; and all end when one fails.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/frontend/nccl/ranks.h"
#include "tests/support/samples.h"
#include "tests/tolerance.h"

enum { SAMPLES = 67, STEPS = 6, MANY = 20 };

/* ---- as one process ------------------------------------------------------ */

#define IN_TURN "--device cuda --feed x=x.all.npy --feed y=y.all.npy --quiet "
#define FEEDS   IN_TURN "--shuffle "

#define WORDS(x) FEEDS "--steps 6 --log l" x " --save-weights w" x
#define WORDS_MANY(x)                                                          \
    FEEDS "--eval --eval-feed x=x.all.npy --eval-feed y=y.all.npy "            \
          "--steps 20 --log l" x " --save-weights w" x

static double number_behind(const char **text, const char *key) {
    const char *p = *text ? strstr(*text, key) : NULL;
    *text = p ? p + strlen(key) : NULL;
    return p ? strtod(*text, NULL) : NAN;
}

/* Logs with `steps` steps. */
static void same_logs(const char *got, const char *want, int steps,
                      double near) {
    static const char *const keys[] = {
        "\"loss\":", "\"grad_norm\":", "\"scale\":", "\"skipped\":"};
    char *a = test_read_file(test_tmp(got), NULL);
    char *b = test_read_file(test_tmp(want), NULL);
    const char *p = a, *q = b;
    for (int i = 0; i < steps; i++)
        for (int k = 0; k < 4; k++) {
            double x = number_behind(&p, keys[k]),
                   y = number_behind(&q, keys[k]);
            if (p && strncmp(p, "null", 4) == 0) x = y = strncmp(q, "null", 4);
            CHECK_MSG(fabs(x - y) <= near * (1 + fabs(y)),
                      "step %d: %s %.9g, not %.9g", i + 1, keys[k], x, y);
        }
    free(a);
    free(b);
}

static void same_weights(const char *got, const char *want, double near) {
    Trace a = trace_read(test_tmp(got)), b = trace_read(test_tmp(want));
    CHECK_EQ_INT(a.n, b.n);
    for (int i = 0; i < a.n; i++) {
        const TraceTensor *x = &a.t[i], *y = trace_find(&b, x->name);
        for (size_t k = 0; x->dtype == AMPC_DTYPE_F32 && k < x->bytes / 4;
             k++) {
            float u, v;
            memcpy(&u, x->data + 4 * k, 4);
            memcpy(&v, y->data + 4 * k, 4);
            if (fabsf(u - v) <= near * (1 + fabsf(v))) continue;
            CHECK_MSG(false, "%s[%zu]: %.9g, not %.9g", x->name, k, (double)u,
                      (double)v);
            break;
        }
    }
    trace_free(&a);
    trace_free(&b);
}

/* Logs without times, and weights: the same bits. */
static void same_bits(const char *got, const char *want) {
    char *out;
    int rc =
        test_command(&out,
                     "cd '%s' && for f in %s %s; do "
                     "sed 's/,\"ms\":[^}]*//' l$f > lines.$f; done; "
                     "diff lines.%s lines.%s && cmp w%s w%s && "
                     "test $(wc -l < lines.%s) -ge %d",
                     test_tmpdir(), got, want, got, want, got, want, got, MANY);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}

/* n ranks compute what one rank does with n times the micro-batches: the same
   bits, or nearly. */
static void as_one(const Compiled *one, const Compiled *all, int n,
                   bool in_rank_order, double near) {
    samples_write(one, "all", 0, SAMPLES);
    free(ranks_run(&(Launch){all, 1, WORDS_MANY("a"), NULL, false}));
    char *report =
        ranks_run(&(Launch){one, n, WORDS_MANY("r"), NULL, in_rank_order});
    /* eager, captured, replayed: each step after the first is one graph */
    const char *p = report;
    for (int k = 0; k < n; k++)
        CHECK_MSG(number_behind(&p, "graph launches ") >= MANY - 1, "%s",
                  report);
    free(report);
    if (near == 0) {
        same_bits("r", "a");
    } else {
        same_logs("lr", "la", MANY, near);
        same_weights("wr", "wa", near);
    }
}

/* Two numbers have the same sum in any order; four are added in the ranks'
   order. The optimizer multiplies a gradient by at most lr/eps. */
#define FP16     "--precision fp16 " OVERFLOWS
#define FP32     "--precision fp32 "
#define CALM_MLP FOR_MLP "--optimizer adamw,lr=0.01,eps=0.01 "
#define CALM_GPT FOR_GPT "--optimizer adamw,lr=0.003,eps=0.003 "
#define SGD_MLP  FOR_MLP "--optimizer sgd,lr=0.05,momentum=0.9 "

static Trained mlp = {.model = "mlp.dyn.onnx",
                      .options = FP16 CALM_MLP "--comm-bucket 420"};
/* Running statistics come from rank 0. */
static Trained cnn = {.model = "cnn.dyn.onnx",
                      .options =
                          FP16 FOR_CNN "--batchnorm frozen --comm-bucket 300"};
static Trained gpt = {.model = "gpt.dyn.onnx", .options = FP16 CALM_GPT};

/* Some steps were skipped, and learning rates differ. */
static void overflowed(const Trained *t) {
    char *out;
    int rc =
        test_command(&out,
                     "cd '%s' && grep -q '\"skipped\":[1-9]' lr && "
                     "test $(grep -o '\"lr\":[^,}]*' lr | uniq | wc -l) -gt 3",
                     test_tmpdir());
    CHECK_MSG(rc == 0, "%s: nothing skipped, or one rate", t->model);
    free(out);
}

static void trained_as_one(Trained *t, int n) {
    as_one(ranks_trained(t, 1), ranks_trained(t, n), n, n > 2, 0);
    overflowed(t);
}

TEST_CASE(nccl, mlp_of_two_as_one) { trained_as_one(&mlp, 2); }
TEST_CASE(nccl, mlp_of_four_as_one) { trained_as_one(&mlp, 4); }
TEST_CASE(nccl, cnn_of_four_as_one) { trained_as_one(&cnn, 4); }
TEST_CASE(nccl, gpt_of_two_as_one) { trained_as_one(&gpt, 2); }

/* A shell of one task under Slurm. */
static void one_task(const char *value) {
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
                                        "SLURM_LOCALID"};
    for (int i = 0; i < 3; i++)
        if (value)
            setenv(names[i], i ? "0" : value, 1);
        else
            unsetenv(names[i]);
}

/* One command that starts its ranks itself, on a machine with two GPUs. */
static int on_devices(const Compiled *c, const char *list, const char *words,
                      char **out) {
    char command[4000];
    size_t n = ranks_machine(command, sizeof command, c, 2, true);
    snprintf(command + n, sizeof command - n,
             "exec timeout -k 5 150 %s run %s --devices %s %s 2>&1",
             test_ampc(), c->path, list, words);
    return test_command(out, "%s", command);
}

#define NO_DEVICE(x)                                                           \
    "--feed x=x.all.npy --feed y=y.all.npy --quiet --shuffle --steps 20 "      \
    "--log "                                                                   \
    "l" x " --save-weights w" x

TEST_CASE(nccl, one_command_trains_on_two_gpus) {
    const Compiled *c = ranks_trained(&mlp, 1);
    char *out, *report;
    samples_write(c, "all", 0, SAMPLES);
    free(ranks_run(&(Launch){
        c, 2, FEEDS "--steps 20 --log lr --save-weights wr", NULL, true}));
    one_task("1");
    int rc = on_devices(c, "0,1", NO_DEVICE("d"), &out);
    one_task(NULL);
    CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
    free(out);
    report = test_read_file(test_tmp("report"), NULL);
    int lines = 0;
    for (const char *p = report; p && *p; p++) lines += *p == '\n';
    CHECK_MSG(lines == 2, "%s", report);
    free(report);
    same_bits("d", "r");
}

/* The first rank ends, too, and does not wait for --deadline. */
TEST_CASE(nccl, one_command_ends_with_its_ranks) {
    const Compiled *c = ranks_trained(&mlp, 1);
    char *out;
    time_t begin = time(NULL);
    samples_write(c, "all", 0, SAMPLES);
    CHECK_EQ_INT(on_devices(c, "0,5", NO_DEVICE("d"), &out), 1);
    CHECK_HAS(out, "no GPU 5: the driver shows 2");
    CHECK(time(NULL) - begin < 100);
    free(out);
    static const struct {
        const char *list, *words, *says;
    } wrong[] = {{"0,0", "", "a GPU is named twice"},
                 {"0,x", "", "numbers of GPUs are wanted, as 0,1"},
                 {"0,", "", "numbers of GPUs are wanted, as 0,1"},
                 {"64", "", "numbers of GPUs are wanted, as 0,1"},
                 {"0,1", "--device cpu", "give --device or --devices"},
                 {"0,1", "--comm mpi", "--comm mpi"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ_INT(on_devices(c, wrong[i].list, wrong[i].words, &out), 2);
        CHECK_HAS(out, wrong[i].says);
        free(out);
    }
    one_task("2");
    CHECK_EQ_INT(on_devices(c, "0,1", "", &out), 2);
    one_task(NULL);
    CHECK_HAS(out, "$SLURM_STEP_NUM_TASKS says that a launcher has started "
                   "this process as one of several");
    free(out);
}

/* Sums in any order: a difference in the last bit stays one in fp32; in fp16
   it occasionally rounds a 16-bit copy the other way. */
static void in_any_order(Trained *t) {
    bool half = strstr(t->options, FP16) != NULL;
    as_one(ranks_trained(t, 1), ranks_trained(t, 4), 4, false,
           half ? TOL_RANKS_16 : TOL_RANKS);
    if (half) overflowed(t);
}

static Trained mlp_fp32 = {.model = "mlp.dyn.onnx", .options = FP32 CALM_MLP};

TEST_CASE(nccl, mlp_of_four_in_any_order) {
    static Trained sgd = {.model = "mlp.dyn.onnx", .options = FP16 SGD_MLP};
    in_any_order(&mlp_fp32);
    in_any_order(&sgd);
    in_any_order(&mlp);
}

TEST_CASE(nccl, cnn_of_four_in_any_order) {
    static Trained fp32 = {.model = "cnn.dyn.onnx",
                           .options = FP32 FOR_CNN "--batchnorm frozen"};
    in_any_order(&fp32);
    in_any_order(&cnn);
}

TEST_CASE(nccl, gpt_of_four_in_any_order) {
    static Trained fp32 = {.model = "gpt.dyn.onnx", .options = FP32 CALM_GPT};
    in_any_order(&fp32);
}

/* .. and of sums. */
TEST_CASE(nccl, mlp_of_two_that_accumulate_as_one) {
    as_one(ranks_trained(&mlp_fp32, 2), ranks_trained(&mlp_fp32, 4), 2, false,
           TOL_RANKS);
}

/* Statistics of all ranks inside the graph of a step: two ranks with two
   samples equal one rank with four. */
TEST_CASE(nccl, batch_norm_over_ranks_as_one_batch) {
    static const char options[] =
        "--precision fp32 --optimizer sgd,lr=0.01,momentum=0.9 "
        "--sync-batchnorm";
    Compiled two = ranks_model("cnn.dyn.onnx", options, 1, 2);
    Compiled four = ranks_model("cnn.dyn.onnx", options, 1, 4);
    samples_write(&two, "all", 0, 4 * STEPS);
    free(ranks_run(&(Launch){&four, 1, WORDS("a"), NULL, false}));
    free(ranks_run(&(Launch){&two, 2, WORDS("r"), NULL, false}));
    same_logs("lr", "la", STEPS, TOL_RANKS);
    same_weights("wr", "wa", TOL_RANKS);
    compiled_close(&two);
    compiled_close(&four);
}

/* Compares bits, including checkpoints, if sums do not depend on the order
   (two ranks), with 1/N of the state in a GPU's memory; and again after
   resuming. */
#define AGAIN(x)                                                               \
    FEEDS "--steps 9 --resume --save s" x " --log l" x " --save-weights w" x

static void in_parts(const char *options, int n, double states) {
    char split[300];
    snprintf(split, sizeof split, "%s --shard-optimizer", options);
    Compiled a = ranks_compile(samples_wide(), options);
    Compiled b = ranks_compile(samples_wide(), split);
    double bytes = states * 4 * SAMPLES_WIDE * (1 - 1.0 / n);
    samples_write(&a, "all", 0, SAMPLES);
    char *all =
        ranks_run(&(Launch){&a, n, WORDS("a") " --save sa", NULL, false});
    char *part =
        ranks_run(&(Launch){&b, n, WORDS("b") " --save sb", NULL, false});
    same_logs("lb", "la", STEPS, TOL_RANKS);
    if (n == 2) test_same_files("sa", "sb");
    const char *p = all, *q = part;
    for (int k = 0; k < n; k++) {
        double less = number_behind(&p, "bytes ") - number_behind(&q, "bytes ");
        CHECK_MSG(fabs(less / bytes - 1) < 0.1, "%g of %g bytes less", less,
                  bytes);
    }
    free(all);
    free(part);
    free(ranks_run(&(Launch){&a, n, AGAIN("a"), NULL, false}));
    free(ranks_run(&(Launch){&b, n, AGAIN("b"), NULL, false}));
    same_logs("lb", "la", 3, TOL_RANKS);
    same_weights("wb", "wa", TOL_RANKS);
    if (n == 2) test_same_files("sa", "sb");
    compiled_close(&a);
    compiled_close(&b);
}

TEST_CASE(nccl, adam_in_parts) {
    in_parts("--precision bf16 --clip-norm 0.3 --optimizer adamw,lr=0.01 "
             "--comm-dtype bf16",
             2, 3);
}

TEST_CASE(nccl, momentum_in_parts_with_overflows) {
    in_parts("--precision fp16 --optimizer sgd,lr=0.05,momentum=0.9 "
             "--loss-scale dynamic,init=16777216,interval=2,max=1e9",
             4, 2);
}

/* Each gradient is rounded twice on its way; if a sum did not come back, a
   rank would have its own gradient, about half of the sum. */
static void in_16_bits(const char *path, const char *more) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    double loss[3], norm[3];
    for (int i = 0; i < 3; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--precision fp32 --optimizer sgd,lr=0.05 --comm-dtype %s "
                 "--comm-bucket 420 %s",
                 dtypes[i], more);
        Compiled c = ranks_compile(path, options);
        samples_write(&c, "all", 0, SAMPLES);
        free(ranks_run(&(Launch){&c, 2, WORDS("r"), NULL, false}));
        char *log = test_read_file(test_tmp("lr"), NULL);
        const char *p = log;
        norm[i] = number_behind(&p, "\"grad_norm\":");
        CHECK_MSG(fabs(norm[i] / norm[0] - 1) < 0.005,
                  "%s: norm %.9g, not %.9g", dtypes[i], norm[i], norm[0]);
        for (int k = 1; k < STEPS; k++)
            loss[i] = number_behind(&p, "\"loss\":");
        CHECK_MSG(fabs(loss[i] - loss[0]) < 0.01 * loss[0] &&
                      (loss[i] != loss[0]) == (i > 0),
                  "%s: loss %.9g, not %.9g", dtypes[i], loss[i], loss[0]);
        free(log);
        compiled_close(&c);
    }
}

TEST_CASE(nccl, gradients_in_16_bits) {
    char dim[40];
    snprintf(dim, sizeof dim, "--dim batch=%d", BATCH);
    in_16_bits(test_data_path("tests/onnx/mlp.dyn.onnx"), dim);
}

/* The first bucket that is ready needs a thousand times the memory of the last.
 */
TEST_CASE(nccl, buckets_of_all_sizes_in_16_bits) {
    static const char text[] =
        "graph forward(%x: f32[2,3], %y: i64[2]) {\n"
        "  param %u: f32[3,8] = normal(0, 1), %w: f32[8,4096] = normal(0, 1)\n"
        "  %h = matmul %x, %u : f32[2,8]\n  %t = tanh %h : f32[2,8]\n"
        "  %z = matmul %t, %w : f32[2,4096]\n"
        "  %loss = softmax_cross_entropy %z, %y : f32[]\n"
        "  return loss=%loss\n}\n";
    REQUIRE(test_write_file(test_tmp("last.amp"), text, sizeof text - 1));
    in_16_bits(test_tmp("last.amp"), "");
}

/* ---- what goes wrong ----------------------------------------------------- */

/* Runs two ranks, one of them faulty: both end in time with message `why`;
   the earlier checkpoint is intact. */
static void ends(const Compiled *c, const char *before, const char *words,
                 const char *why) {
    char *out, all[600];
    time_t begin = time(NULL);
    snprintf(all, sizeof all, FEEDS "--deadline 3 %s", words);
    int rc = ranks_launch(&(Launch){c, 2, all, before, false}, &out);
    CHECK(rc != 0 && time(NULL) - begin < 60);
    CHECK_HAS(out, why);
    free(out);
}

static const Compiled *small(int accumulate) {
    static Trained t = {.model = "mlp.dyn.onnx", .options = FP32};
    const Compiled *c = ranks_trained(&t, accumulate);
    samples_write(c, "all", 0, SAMPLES);
    return c;
}

/* When the checkpoint exists, this rank sends itself the signal. */
#define LATER(rank, signal)                                                    \
    "test $RANK = " rank                                                       \
    " && (while ! test -s s; do sleep 0.1; done; kill -" signal " $$) &"
#define FOREVER "--steps 100000000 --log l --save-every 3 --save s"

static void ends_after(const char *before, const char *why) {
    const Compiled *c = small(1);
    unlink(test_tmp("s"));
    ends(c, before, FOREVER, why);
    free(ranks_run(&(Launch){c, 1, FEEDS "--steps 1 --resume --save s --log l",
                             NULL, false}));
}

TEST_CASE(nccl, a_rank_dies) {
    ends_after(LATER("1", "KILL"), "rank 1 is gone");
    ends_after(LATER("0", "KILL"), "rank 0 is gone");
}

TEST_CASE(nccl, a_rank_hangs) {
    ends_after(LATER("1", "STOP") " test $RANK = 1 && "
                                  "(while ! test -e ended; do sleep 0.1; done; "
                                  "kill -KILL $$) &",
               "rank 1 did not answer within 3 s");
}

/* NCCL fails on one rank. */
TEST_CASE(nccl, calls_that_fail) {
    const Compiled *c = small(1);
    static const struct {
        const char *fail, *why;
    } cases[] = {
        {"ncclAllReduce:1:3", "ncclAllReduce: internal error"},
        {"ncclAllReduce:5:1", "ncclAllReduce: unhandled cuda error"},
        {"ncclGroupEnd:3:2", "ncclGroupEnd: unhandled system error"},
        {"ncclCommInitRankConfig:1:3",
         "ncclCommInitRankConfig: internal error"},
        {"ncclCommGetAsyncError:200:6", "another rank: remote process"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char before[200];
        snprintf(before, sizeof before,
                 "test $RANK = 1 && export AMPC_SIM_FAIL=%s;", cases[i].fail);
        ends(c, before, "--steps 50 --log l", cases[i].why);
    }
}

TEST_CASE(nccl, ranks_without_a_gpu_or_nccl) {
    const Compiled *c = small(1);
    ends(c, "test $RANK = 1 && export AMPC_LIBNCCL=none;", "",
         "rank 1 has no GPU or no NCCL");
    ends(c, "test $RANK = 1 && export AMPC_LIBCUDA=none;", "",
         "$AMPC_LIBCUDA is \"none\"");
    ends(c, "test $RANK = 1 && exit 3;", "",
         "rank 1 did not connect within 3 s");
}

TEST_CASE(nccl, bad_data_of_one_rank) {
    const Compiled *c = small(1);
    char *out;
    samples_write_bad(c);
    int rc = ranks_launch(
        &(Launch){c, 2, IN_TURN "--deadline 9 --log l", NULL, false}, &out);
    CHECK_EQ_INT(rc, 1);
    CHECK_HAS(out, "rank 1: ");
    CHECK_HAS(out, "rank 1 got a class");
    free(out);
}

/* All ranks name the rank that differs. */
static void differs(const Compiled *other, const char *why) {
    char before[600];
    snprintf(before, sizeof before, "test $RANK = 1 && M=%s;", other->path);
    ends(small(1), before, "--steps 3", why);
}

TEST_CASE(nccl, ranks_that_differ) {
    const Compiled *c = small(1);
    Compiled seed = ranks_model("mlp.dyn.onnx", FP32 "--seed 5", 1, BATCH);
    Compiled weight = ranks_compile(samples_other_mlp(),
                                    "--dim batch=2 --accumulate 1 " FP32);
    differs(small(2), "rank 1 has another graph than rank 0");
    differs(&seed, "rank 1 has a module of other compile options than rank 0");
    differs(&weight, "rank 1 has another module than rank 0");
    ends(c, NULL, "--steps $RANK",
         "rank 1 was started with another --steps than rank 0");
    ends(c, NULL, "--comm pigeons",
         "--comm is mpi, nccl or tcp, not 'pigeons'");
    compiled_close(&seed);
    compiled_close(&weight);
}

/* ---- one verdict --------------------------------------------------------- */

/* The sample is the first one of rank 1 in the second step. */
TEST_CASE(nccl, what_one_skips_all_skip) {
    const Compiled *one = small(1), *two = small(2);
    samples_write_inf(one, 2 * MANY * BATCH, 3 * BATCH);
    free(ranks_run(&(Launch){
        two, 1, IN_TURN "--steps 20 --log la --save-weights wa", NULL, true}));
    free(ranks_run(&(Launch){
        one, 2, IN_TURN "--steps 20 --log lr --save-weights wr", NULL, true}));
    same_bits("r", "a");
    char *log = test_read_file(test_tmp("lr"), NULL);
    const char *p = log;
    for (int k = 0; k < MANY; k++)
        CHECK_EQ_INT(number_behind(&p, "\"skipped\":"), k > 0);
    free(log);
}

/* ---- resuming ------------------------------------------------------------ */

/* Three steps with four ranks, then one with two, on the following samples. */
TEST_CASE(nccl, two_ranks_resume_what_four_saved) {
    const Compiled *c = small(1);
    samples_write(c, "next", 3 * 4 * BATCH, 2 * BATCH);
    free(ranks_run(&(Launch){c, 4,
                             IN_TURN "--steps 3 --log l "
                                     "--save c",
                             NULL, false}));
    free(ranks_run(&(Launch){c, 1,
                             "--device cuda --feed x=x.next.npy --feed "
                             "y=y.next.npy --load c --quiet --eval "
                             "--log first",
                             NULL, false}));
    free(ranks_run(&(Launch){c, 2,
                             IN_TURN "--steps 4 --resume "
                                     "--save c --log next",
                             NULL, false}));
    char *eval = test_read_file(test_tmp("first"), NULL);
    char *log = test_read_file(test_tmp("next"), NULL);
    const char *p = log, *q = eval;
    CHECK_EQ_INT(number_behind(&p, "\"step\":"), 4);
    CHECK_REL(number_behind(&p, "\"loss\":"),
              number_behind(&q, "\"eval_loss\":"), TOL_RANKS);
    free(log);
    free(eval);
}
