/* SPDX-License-Identifier: Apache-2.0 */
/* cli_test.c: the command line from a user's view: messages, exit status,
   and no files left after an error. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/op/op.h"
#include "runtime/ampc.h"
#include "tests/harness.h"

static const char *cnn(void) { return test_data_path("models/mnist_cnn.onnx"); }

/* Runs ampc with those words; the output must contain `says`. */
static void check_run(int status, const char *says, const char *words) {
    char *out;
    int rc = test_command(&out, "cd '%s' && AMPC_LIBNVRTC=none '%s' %s",
                          test_tmpdir(), test_ampc(), words);
    CHECK_MSG(rc == status, "ampc %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

/* Compiles the CNN with more options; a failure must leave no output. */
static void check_refused(int status, const char *says, const char *options) {
    char words[1024], so[600];
    snprintf(words, sizeof words, "'%s' -o refused.so %s", cnn(), options);
    snprintf(so, sizeof so, "%s/refused.so", test_tmpdir());
    check_run(status, says, words);
    CHECK_MSG(access(so, F_OK), "ampc %s left an output", options);
}

TEST_CASE(cli, help_version_and_tables) {
    check_run(0, "usage: ampc MODEL.onnx", "--help");
    check_run(0, "ampc " AMPC_VERSION "\n", "--version");
    check_run(0, "softmax_cross_entropy", "--list-ops");
    check_run(0,
              "huber_loss(x, target; delta = 1.0 from 1e-37 \"where it "
              "becomes linear\", reduction = \"mean\")",
              "--list-ops huber_loss");
    check_run(0, "Linear(x; units: int", "--list-ops relu Linear");
    check_run(0,
              "concat(1 or more operands; axis: int) -> 1 result class "
              "widest\n",
              "--list-ops concat");
    check_run(0, "iota(0 operands; axis: int, shape: ints, dtype) -> 1 result",
              "--list-ops iota");
    check_run(0, "adamw: PyTorch 2.15", "--list-optimizers");
    check_run(0, "exp_avg = exp_avg * beta2 + g * (1 - beta2)",
              "--list-optimizers adam lion");
    check_run(1, "no optimizer is called 'lionn'", "--list-optimizers lionn");
    check_run(1, "no op is called 'softmx'", "--list-ops softmx relu");
    for (int op = 0; op < NUM_OPS; op++) {
        const char *name = op_info[op].text;
        char words[80], says[80];
        snprintf(words, sizeof words, "--list-ops %s", name);
        snprintf(says, sizeof says, "%s(", name);
        if (op == OP_CALL)
            check_run(1, "no op is called 'call'", words);
        else
            check_run(0, says, words);
    }
    check_run(2, "usage: ampc", "");
    check_run(0, "usage: ampc MODEL.onnx", "m.onnx --help");
    check_run(0, "usage: ampc run OUT.so", "run --help");
    check_run(0, "usage: ampc inspect OUT.so", "inspect m.so --help");
    check_run(0, "usage: ampc check MODEL.onnx", "check -h");
    check_run(0, "usage: ampc opt MODEL.onnx", "opt --help");
    check_run(0, "usage: ampc export OUT.so", "export --help");
    check_run(0, "usage: ampc fmt MODEL.amp", "fmt --help");
}

/* ampc.h has the version; files that cannot include it repeat it. */
TEST_CASE(cli, python_has_the_same_version) {
    char *text =
        test_read_file(test_data_path("runtime/python/ampc/__init__.py"), NULL);
    REQUIRE(text);
    CHECK_HAS(text, "\n__version__ = \"" AMPC_VERSION "\"\n");
    free(text);
}

/* Odd models are reported as the user's mistakes, never as ours. */
static void check_text(int status, const char *says, const char *text,
                       const char *options) {
    char words[600];
    REQUIRE(test_write_file(test_tmp("odd.amp"), text, strlen(text)));
    snprintf(words, sizeof words, "check odd.amp %s", options);
    check_run(status, says, words);
}

TEST_CASE(cli, classes_may_be_along_axis_0) {
    static const char one[] = "graph forward(%x: f32[5,5]) {\n"
                              "  param %w: f32[5] = 1, %v: f32[3] = 1\n"
                              "  buffer %a: f32[2] = 1, %b: f32[] = 1\n"
                              "  buffer %c: f32[5,2] = 1\n"
                              "  %y = mul %x, %w : f32[5,5]\n"
                              "  return y=%y\n}\n";
    REQUIRE(test_write_file(test_tmp("one.amp"), one, strlen(one)));
    check_run(0, "",
              "one.amp -o one.so --loss cross_entropy,axis=0 --freeze v "
              "--target cpu:x86-64-v2");
    check_run(0,
              "inputs      x f32[5,5], target i64[5]\n"
              "outputs     y f32[5,5]\n"
              "loss        cross_entropy\n"
              "optimizer   adamw, lr 0.001 constant\n"
              "precision   bf16, loss scale none\n"
              "class axis  0\n"
              "trained     1 (5 elements)\n"
              "frozen      1 (3 elements)\n"
              "buffers     3 (13 elements)\n"
              "targets     cpu:x86-64-v2\n"
              "file ",
              "inspect one.so");
    check_run(0,
              "\"class_axis\":0,\"trained\":[1,5],\"frozen\":[1,3],"
              "\"buffers\":[3,13],\"options\":{",
              "inspect one.so --json");
}

/* Messages say that the class axis of tokens is the last, and axis 1 for all
   other models. */
TEST_CASE(cli, class_axis_is_said) {
    static const char tokens[] = "graph forward(%x: f32[2,3,5]) {\n"
                                 "  param %w: f32[5,5] = 1\n"
                                 "  %y = matmul %x, %w : f32[2,3,5]\n"
                                 "  return y=%y\n}\n";
    check_text(0,
               "odd.amp: --loss: classes are along the last axis, 2, of "
               "f32[2,3,5]; axis=1 takes the other",
               tokens, "--loss cross_entropy");
    check_text(1, "axis= is not an axis of the output; outputs: y f32[2,3,5]",
               tokens, "--loss cross_entropy,axis=3");
    check_run(0, "",
              "odd.amp -o axis.so --loss cross_entropy,axis=1 --target "
              "cpu:x86-64-v2");
    check_run(0, "class axis  1", "inspect axis.so");
    check_run(0, "\"class_axis\":1", "inspect axis.so --json");
    check_run(0, "{\"ir\":\"loss\",\"text\":\"graph forward(%x",
              "inspect axis.so --ir loss --json");
    check_run(0, "{\"ir\":\"loss\",\"text\":\"graph forward(%x",
              "inspect odd.amp --loss nll,axis=1 --ir loss --json");
}

/* The best level of a processor is used without an option. */
TEST_CASE(cli, a_module_is_for_every_level_by_default) {
    static const char text[] = "graph forward(%x: f32[2,5]) {\n"
                               "  param %w: f32[5,5] = 1\n"
                               "  %y = matmul %x, %w : f32[2,5]\n"
                               "  return y=%y\n}\n";
    REQUIRE(test_write_file(test_tmp("plain.amp"), text, sizeof text - 1));
    check_run(0, "", "plain.amp -o plain.so --loss mse");
    check_run(0,
              "targets     cpu:x86-64-v4+amx, cpu:x86-64-v4, cpu:x86-64-v3, "
              "cpu:x86-64-v2\n",
              "inspect plain.so");
    REQUIRE(setenv("AMPC_ISA", "v2", 1) == 0);
    check_run(0, "", "plain.amp -o plain.so --loss mse --target cpu:native");
    REQUIRE(setenv("AMPC_ISA", "v9", 1) == 0);
    check_run(2, "AMPC_ISA=v9 is unknown: v2, v3, v4, v4-amx, v4-dot or v4-fma",
              "plain.amp -o plain.so --loss mse --target cpu:native");
    REQUIRE(unsetenv("AMPC_ISA") == 0);
    check_run(0, "targets     cpu:x86-64-v2\n", "inspect plain.so");
}

/* Types of ONNX nodes are given by the names that the model's author knows. */
TEST_CASE(cli, a_policy_names_types_of_the_model) {
    static const char policy[] = "op Gemm full\n";
    char words[900];
    REQUIRE(test_write_file(test_tmp("p.txt"), policy, sizeof policy - 1));
    snprintf(words, sizeof words,
             "opt '%s' --dim batch=4 --pass policy --amp-policy p.txt", cnn());
    check_run(0, "!full", words);
    REQUIRE(test_write_file(test_tmp("p.txt"), "op LSTM full", 12));
    check_run(1, "p.txt:1: error: no op of the model is 'LSTM'", words);
}

/* Ranks can share the update of a parameter of any size. */
TEST_CASE(cli, sharded_parameters_of_few_elements) {
    static const char text[] = "model m(x: f32[4,5]) {\n"
                               "  for n in [1, 2, 3, 4, 5, 6, 7, 8, 9] { x = "
                               "tanh(Linear(x, units=n)) }\n"
                               "  return y = x\n}\n";
    static const char *const how[] = {
        "--precision fp32 --optimizer adamw",
        "--precision fp16 --optimizer sgd,momentum=0.9 --clip-norm 1",
        "--precision bf16 --optimizer adam --accumulate 2 --clip-value 1"};
    for (int i = 0; i < 3; i++) {
        char words[300];
        snprintf(words, sizeof words,
                 "few.amp -o few.so --loss mse --shard-optimizer --target "
                 "cpu:x86-64-v2 %s",
                 how[i]);
        REQUIRE(test_write_file(test_tmp("few.amp"), text, sizeof text - 1));
        check_run(0, "", words);
    }
}

TEST_CASE(cli, batch_sizes_of_a_text) {
    static const char fixed[] =
        "model m(x: f32[4,3]) { return y = Linear(x, units=2) }\n";
    static const char shaped[] = "dim B = 4\nmodel m(x: f32[B,3]) {\n"
                                 "  param p: f32[B,3]\n  return y = x + p\n}\n";
    check_text(1,
               "odd.amp:1:9: error: --batch-sizes 1: the first dimension of "
               "'x' is not a symbol",
               fixed, "--loss mse --batch-sizes 4,1");
    check_text(1, "--batch-sizes 2: 'p' is of another shape there", shaped,
               "--loss mse --batch-sizes 4,2");
    check_text(
        1, "no graph of the file is a model",
        "graph predict(%x: f32[2,2]) {\n  %y = relu %x\n  return %y\n}\n",
        "--batch-sizes 1");
}

TEST_CASE(cli, sizes_of_a_text) {
    static const char text[] =
        "dim B = 4\ndim T = 2\nmodel m(x: f32[B,T,3], u: f32[B]) {\n"
        "  return y = Linear(x, units=2) * mean(u)\n}\n";
    static const char rows[] = "dim T = 2\nmodel m(x: f32[4,T]) {\n"
                               "  param p: f32[T]\n  return y = x * p\n}\n";
    check_text(
        1,
        "--dim T=1: 'p' is of another shape there: give it the shape of the "
        "largest size, and let the model cut it (slice)",
        rows, "--loss mse --dim 'T=1|2'");
    check_text(1, "--dim B=2: training has one batch size; --batch-sizes gives",
               text, "--loss mse --dim 'B=2|4'");
    check_text(1, "--pad v: the model has no such input", text,
               "--loss mse --dim 'T=1|2' --pad v=0");
    check_text(1, "--pad u: the input has one size; --dim", text,
               "--loss mse --dim 'T=1|2' --pad u=0");
    check_text(1, "--pad x=1e+300: f32 has no 1e+300", text,
               "--loss mse --dim 'T=1|2' --pad x=1e300");
    check_text(1, "the sizes have more than 64 combinations", text,
               "--loss mse --dim "
               "'T=1|2|3|4|5|6|7|8|9' --dim 'B=1|2|3|4|5|6|7|8'");
    check_text(1, "this is for --dim T=1",
               "dim T = 2\nmodel m(x: f32[4,T,3]) {\n"
               "  return y = Linear(reshape(x, shape=[4, 6]), units=2)\n}\n",
               "--loss mse --dim 'T=1|2'");
}

/* The losses in a log, one for each line. */
static int log_losses(const char *name, double *to) {
    size_t n;
    int count = 0;
    char *file = test_read_file(test_tmp(name), &n);
    REQUIRE(file);
    for (char *p = file; (p = strstr(p, "loss\":")); p++)
        to[count++] = strtod(p + strlen("loss\":"), NULL);
    free(file);
    return count;
}

/* Samples that are filled up with the values of --pad train in the smallest
   size, with the losses of the largest. */
TEST_CASE(cli, runs_sentences_of_several_sizes) {
    static const char text[] =
        "dim B = 2\ndim T\nmodel m(x: i64[B,T]) {\n"
        "  return y = Linear(Embedding(x, size=9, width=4), units=3)\n}\n";
    static const char x[] = "1,2,0,0,0,0\n3,0,0,0,0,0\n1,2,3,4,5,6\n"
                            "7,8,1,0,0,0\n5,4,0,0,0,0\n6,0,0,0,0,0\n";
    static const char t[] =
        "0,1,-100,-100,-100,-100\n2,-100,-100,-100,-100,-100\n0,1,2,0,1,2\n"
        "1,1,2,-100,-100,-100\n0,2,-100,-100,-100,-100\n"
        "1,-100,-100,-100,-100,-100\n";
    double one[16], some[16];
    REQUIRE(test_write_file(test_tmp("s.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("sx.csv"), x, strlen(x)) &&
            test_write_file(test_tmp("st.csv"), t, strlen(t)));
#define SENTENCES                                                              \
    "--loss cross_entropy,axis=2 --precision fp32 --optimizer sgd,lr=1 "       \
    "--target cpu:x86-64-v2"
#define SENTENCE_FEED "--feed x=sx.csv --feed target=st.csv --quiet "
    check_run(0, "", "s.amp -o s1.so --dim T=6 " SENTENCES);
    check_run(
        0, "",
        "s.amp -o s3.so --dim 'T=2|4|6' --pad x=0,target=-100 " SENTENCES);
    check_run(0, "",
              "run s1.so " SENTENCE_FEED "--epochs 2 --eval --log s1.jsonl");
    check_run(0, "",
              "run s3.so " SENTENCE_FEED "--epochs 2 --eval --log s3.jsonl "
              "--profile s3.json");
    int n = log_losses("s1.jsonl", one);
    CHECK_EQ_INT(n, 7);
    CHECK_EQ_INT(log_losses("s3.jsonl", some), n);
    for (int i = 0; i < n; i++)
        CHECK_MSG(some[i] > one[i] - 1e-6 && some[i] < one[i] + 1e-6,
                  "line %d: %g, not %g", i, some[i], one[i]);
    size_t bytes;
    char *trace = test_read_file(test_tmp("s3.json"), &bytes);
    CHECK_HAS(trace, "train@T=2");
    free(trace);
    check_run(0, "samples by size, from the smallest on: 4, 1, 1",
              "run s3.so --feed x=sx.csv --feed target=st.csv --epochs 1 "
              "--sort-by-length --log sorted.jsonl");
    check_run(1, "--sort-by-length: the module has one size",
              "run s1.so " SENTENCE_FEED "--sort-by-length");
}

/* Names of dimensions have any length; --feed and `ampc data` say what a file
   that fits no size lacks. */
TEST_CASE(cli, sizes_of_long_names) {
#define LONG(c) c "_of_a_name_that_fills_more_than_half_of_a_line_of_text"
    static const char text[] = "dim B = 2\ndim " LONG("q") "\ndim " LONG(
        "k") "\n"
             "model m(x: i64[B," LONG("q") "], k: i64[B," LONG(
                 "k") "]) {\n"
                      "  h = reduce_sum(Embedding(k, size=9, width=4), "
                      "axes=[1])\n"
                      "  return y = Linear(Embedding(x, size=9, width=4) + h, "
                      "units=3)\n}\n";
    static const char x[] = "1,2,0,0\n3,0,0,0\n1,2,3,4\n7,0,0,0\n";
    static const char t[] = "0,1,-100,-100\n2,-100,-100,-100\n0,1,2,0\n"
                            "1,-100,-100,-100\n";
    REQUIRE(test_write_file(test_tmp("l.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("lx.csv"), x, strlen(x)) &&
            test_write_file(test_tmp("short.csv"), "1,2,3\n4,5,6\n", 12) &&
            test_write_file(test_tmp("over.csv"), "1,2,3,4,5\n", 10) &&
            test_write_file(test_tmp("lt.csv"), t, strlen(t)));
    check_run(
        0, "",
        "l.amp -o l.so --dim '" LONG("q") "=2|4' --dim '" LONG(
            "k") "=2|4' --pad x=0,target=-100 --loss cross_entropy,axis=2 "
                 "--precision fp32 --target cpu:x86-64-v2");
    check_run(0, "samples by size, from the smallest on: 0, 3, 0, 1",
              "run l.so --feed x=lx.csv --feed k=lx.csv --feed target=lt.csv "
              "--epochs 1 --sort-by-length");
    check_run(0, "for x i64[2,4]: fits: 2 samples", "data short.csv l.so");
    check_run(1, "for k i64[2,4]: no: i64[2,3] does not fit",
              "data k=short.csv l.so");
    check_run(1, "differ; shorter samples need a value of --pad",
              "data k=short.csv l.so");
    check_run(1,
              "differ; a larger size of --dim, or shorter samples, would fit",
              "data x=over.csv l.so");
}

/* 10 samples in batches of 4 give an output without a sample axis three times.
 */
TEST_CASE(cli, fetches_what_has_no_samples) {
    static const char text[] =
        "graph forward(%x: f32[4,2]) {\n  param %w: f32[2] = 1\n"
        "  %y = mul %x, %w : f32[4,2]\n"
        "  %s = reduce_sum %y {axes=[0], keepdims=0} : f32[2]\n"
        "  return y=%y, s=%s\n}\n";
    static const char rows[] = "0,0\n1,10\n2,20\n3,30\n4,40\n5,50\n6,60\n"
                               "7,70\n8,80\n9,90\n";
    static const float sums[] = {6, 60, 22, 220};
    size_t n = 0;
    REQUIRE(test_write_file(test_tmp("sums.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("ten.csv"), rows, strlen(rows)));
    check_run(0, "",
              "sums.amp -o sums.so --loss none --precision fp32 "
              "--target cpu:x86-64-v2");
    check_run(0, "", "run sums.so --feed x=ten.csv --fetch got");
    char *file = test_read_file(test_tmp("got/s.npy"), &n);
    REQUIRE(file && n > 6 * sizeof *sums);
    char *items = file + n - 6 * sizeof *sums;
    CHECK_HAS(file + 10, "'shape': (3, 2)");
    CHECK(items[-1] == '\n');
    CHECK_MEM(items, sums, sizeof sums);
    free(file);
}

/* Each of several losses finds the model's only output. */
TEST_CASE(cli, objectives_of_one_output) {
    static const char layers[] = "graph forward(%x: f32[4,3]) {\n"
                                 "  param %v: f32[3,3], %w: f32[3,2]\n"
                                 "  %h = matmul %x, %v : f32[4,3]\n"
                                 "  %y = matmul %h, %w : f32[4,2]\n"
                                 "  return %y\n}\n";
    static const char sum[] = "graph forward(%x: f32[4,3]) {\n"
                              "  param %v: f32[3], %w: f32[3]\n"
                              "  %h = mul %x, %v\n  %i = mul %h, %w\n"
                              "  %y = reduce_sum %i {axes=[0,1]}\n"
                              "  return %y\n}\n";
    check_text(0, "can be compiled", layers,
               "--objective a,loss=mse,params=v --objective "
               "b,loss=l1,params=w");
    check_text(0, "no --objective trains 'v': it keeps its value", layers,
               "--objective b,loss=l1,params=w");
    check_text(0, "can be compiled", sum,
               "--objective a,loss=auto,params=v --objective "
               "b,loss=auto,params=w");
}

/* With y = x and targets of 0 the mean square is 2.5 and the mean distance
   1.5, at the end of the run as well as after an epoch. */
TEST_CASE(cli, each_objective_is_evaluated) {
    static const char text[] =
        "graph forward(%x: f32[2,1]) {\n  param %v: f32[1] = 1, %w: f32[1] = "
        "1\n"
        "  %a = mul %x, %v : f32[2,1]\n  %y = mul %a, %w : f32[2,1]\n"
        "  return %y\n}\n";
    REQUIRE(test_write_file(test_tmp("two.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("x.csv"), "1\n2\n1\n2\n", 8) &&
            test_write_file(test_tmp("t.csv"), "0\n0\n0\n0\n", 8));
    check_run(0, "",
              "two.amp -o two.so --target cpu:x86-64-v2 --precision fp32 "
              "--objective a,loss=mse,params=v,optimizer=sgd,lr=0 "
              "--objective b,loss=l1,params=w,optimizer=sgd,lr=0");
    check_run(0,
              "{\"objective\":\"a\",\"eval_loss\":2.5,\"accuracy\":null,"
              "\"samples\":4}\n"
              "{\"objective\":\"b\",\"eval_loss\":1.5,\"accuracy\":null,"
              "\"samples\":4}\n",
              "run two.so --eval --feed x=x.csv --feed target:y=t.csv");
    check_run(0, "{\"epoch\":1,\"objective\":\"b\",\"eval_loss\":1.5,",
              "run two.so --feed x=x.csv --feed target:y=t.csv --eval-feed "
              "x=x.csv --eval-feed target:y=t.csv");
    /* a key of the schedule is set for both objectives */
    check_run(0,
              "\"objective\":\"b\",\"loss\":2.25,\"grad_norm\":2.25,"
              "\"scale\":1,\"skipped\":0,\"skip_streak\":0,\"lr\":0.5,",
              "run two.so --feed x=x.csv --feed target:y=t.csv --steps 1 "
              "--hyper lr=0.5");
}

/* A checkpoint resumes only with exactly the options with which it was made. */
TEST_CASE(cli, resumes_with_the_same_options) {
    static const char text[] =
        "graph forward(%x: f32[2,1]) {\n  param %w: f32[1] = 1\n"
        "  %y = mul %x, %w : f32[2,1]\n  return %y\n}\n";
#define RESUMED " --feed x=x.csv --feed target=t.csv --save "
    REQUIRE(test_write_file(test_tmp("one.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("x.csv"), "1\n2\n", 4) &&
            test_write_file(test_tmp("t.csv"), "0\n0\n", 4));
#define ONE "one.amp --target cpu:x86-64-v2 --precision fp32 --loss mse -o "
    check_run(0, "", ONE "plain.so");
    check_run(0, "", ONE "clip.so --clip-norm 1");
    check_run(0, "", "run plain.so" RESUMED "plain.ck");
    check_run(0, "", "run clip.so" RESUMED "clip.ck");
    check_run(1, "--clip-norm was '1' there and is not given in this module",
              "run plain.so" RESUMED "clip.ck --resume");
    check_run(1, "--clip-norm was not given there and is '1' in this module",
              "run clip.so" RESUMED "plain.ck --resume");
#undef ONE
#undef RESUMED
}

/* Any identifier is accepted, except the names in the module's own code,
   which `check` knows, too. */
TEST_CASE(cli, exported_symbols) {
    static const char text[] =
        "graph forward(%x: f32[2,1]) {\n  %y = relu %x : f32[2,1]\n"
        "  return %y\n}\n";
    static const char *const taken[] = {"tensors", "api_step", "memcpy",
                                        "_init", "_fini"};
    static const char *const free_names[] = {"int", "linux", "my_model"};
    char words[200];
    REQUIRE(test_write_file(test_tmp("s.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(words, sizeof words,
                 "s.amp -o s.so --loss none --target cpu:x86-64-v2 --symbol %s",
                 taken[i]);
        check_run(1, "the module's own code has that name", words);
        snprintf(words, sizeof words, "check s.amp --loss none --symbol %s",
                 taken[i]);
        check_run(1, "the module's own code has that name", words);
    }
    for (size_t i = 0; i < sizeof free_names / sizeof *free_names; i++) {
        snprintf(words, sizeof words,
                 "s.amp -o s.so --loss none --target cpu:x86-64-v2 --symbol %s",
                 free_names[i]);
        check_run(0, "", words);
        check_run(0, "inputs", "inspect s.so");
    }
    check_run(1,
              "--symbol int: a C program cannot call a function of that name",
              "s.amp -o s.o --loss none --symbol int");
    check_run(1, "--symbol main: a C program cannot call a function",
              "s.amp -o s.c --target c --loss none --symbol main");
}

/* An .amp file's message explains what would be different for an ONNX model. */
TEST_CASE(cli, a_text_takes_the_options_of_a_model) {
    static const char mlp[] = "graph mlp(%x: f32[4,3]) {\n"
                              "  param %v: f32[3,3], %w: f32[3,2]\n"
                              "  frozen %b: f32[2]\n"
                              "  %h = matmul %x, %v\n"
                              "  %z = matmul %h, %w\n"
                              "  %y = add %z, %b\n"
                              "  return %y\n}\n";
    static const char nine[] =
        "graph f(%x: f32[]) {\n"
        "  return a=%x, b=%x, c=%x, d=%x, e=%x, f=%x, g=%x, h=%x, "
        "i=%x\n}\n";
    static const char two[] = "graph a(%x: f32[]) {\n  return %x\n}\n"
                              "graph b(%x: f32[]) {\n  return %x\n}\n";
    check_text(1, "the model has no output with a single element", mlp, "");
    check_text(1, "f32[], h f32[] and 1 more. Choose", nine, "--loss auto");
    check_text(1, "3 class_weights for 2 classes", mlp,
               "--loss cross_entropy,class_weights=1/2/3");
    check_text(1, "--top-k 2: the loss is not a classification loss", mlp,
               "--loss mse --top-k 2");
    check_text(0, "can be compiled", mlp, "--loss mse");
    check_text(1, "'no' is not an output, inner value, node or layer", mlp,
               "--loss mse:no");
    check_text(1, "'no' is not an output, inner value, node or layer", mlp,
               "--loss auto:no");
    check_text(0, "no loss depends on w: it keeps its value", mlp,
               "--loss mse:h");
    check_text(1,
               "'no' is not an output of the model that --loss host can take",
               mlp, "--loss host:no");
    check_text(2, "residuals=N is for bf16", mlp,
               "--loss mse --precision fp16 --placement exact,residuals=2");
    check_text(2, "residuals=N is for bf16", mlp,
               "--loss mse --precision O2 --placement exact,residuals=2");
    check_text(2, "a model of 16 bits (--precision O2, O3) has no casts", mlp,
               "--loss mse --precision O3 --placement pytorch");
    check_text(0, "can be compiled", mlp,
               "--loss mse --precision fp16 --placement exact,residuals=inf");
    check_text(2, "--freeze 'u' matches no parameter", mlp,
               "--loss mse --freeze u");
    check_text(1, "graphs 'a' and 'b': a file has one model", two, "");
    check_text(2, "--dim B: the text has no such symbol; its symbols: (none)",
               mlp, "--loss mse --dim B=4");
    check_text(2, "--batchnorm train:unbiased: this is for ONNX models", mlp,
               "--loss mse --batchnorm train:unbiased");
    check_text(2, "--batchnorm frozen:bn* matches no batch_norm", mlp,
               "--loss mse --batchnorm 'frozen:bn*'");
    check_text(0, "", mlp, "--loss mse --batchnorm 'frozen:*'");
    REQUIRE(test_write_file(test_tmp("mlp.amp"), mlp, strlen(mlp)));
    check_run(0, "--train b", "inspect mlp.amp --params --train b");
    check_run(0, "--freeze v", "inspect mlp.amp --params --freeze v");
    check_run(1, "a loss: no graph of the file is a model, called 'forward'",
              "opt mlp.amp --pass loss --loss mse");
    check_text(1, "--freeze: no graph",
               "graph predict(%x: f32[2]) {\n  return %x\n}\n", "--freeze w");
}

TEST_CASE(cli, a_text_drops_and_normalises_as_asked) {
    static const char text[] =
        "graph forward(%x: f32[4,3]) {\n"
        "  param %s: f32[3] = 1, %b: f32[3]\n"
        "  buffer %mean: f32[3], %var: f32[3] = 1\n"
        "  state %r: i64[2]\n"
        "  %y, %m, %v = batch_norm %x, %s, %b, %mean, %var {training=1}\n"
        "  %old = mul %mean, 0.9\n  %new = mul %m, 0.1\n"
        "  %next = add %old, %new\n  %d = dropout %y, %r {ratio=0.5}\n"
        "  write %mean = %next\n  return %d\n}\n";
    REQUIRE(test_write_file(test_tmp("bn.amp"), text, strlen(text)));
    check_run(0, "batch_norm %x, %s, %b, %mean, %var : f32[4,3]",
              "opt bn.amp --pass simplify --batchnorm frozen");
    check_run(0, "return d=%y",
              "opt bn.amp --pass simplify --dropout off --batchnorm frozen:s");
    check_run(0, "write %mean = %next", "opt bn.amp --pass simplify");
}

/* A file with options of its own; options of the command line take
   precedence. */
TEST_CASE(cli, a_model_brings_its_options) {
    static const char mlp[] =
        "dim B = 4\n"
        "train m {\n"
        "  loss = cross_entropy, label_smoothing=0.1\n"
        "  optimizer = sgd, lr=0.25; clip_norm = 2\n"
        "  freeze = a.*   # not b\n"
        "  precision = fp32\n}\n"
        "policy m { op relu full }\n"
        "model m(x: f32[B,3]) {\n"
        "  h = relu(Linear(x, units=3, scope=\"a\"))\n"
        "  return y = Linear(h, units=2, scope=\"b\")\n}\n";
    check_text(0, "can be compiled", mlp, "");
    REQUIRE(test_write_file(test_tmp("own.amp"), mlp, strlen(mlp)));
    check_run(0, "--freeze a.*", "inspect own.amp --params");
    check_run(0, " !full", "opt own.amp --pass loss,programs,policy --dim B=2");
    check_run(0, "", "own.amp -o own.so --target cpu:x86-64-v2");
    check_run(0, "optimizer   sgd, lr 0.25 constant, clip-norm 2",
              "inspect own.so");
    check_run(0, "= mse_loss %", "opt own.amp --pass loss --loss mse");
}

TEST_CASE(cli, mistakes_of_blocks_have_a_place) {
    static const char *const cases[][2] = {
        {"train m { loss = l3 }",
         "odd.amp:1:11: error: --loss: 'l3' is not one of auto, none, host, "
         "cross_entropy, nll, mse, l1, huber, bce_with_logits, bce, "
         "soft_cross_entropy, focal, sigmoid_focal, dice, sigmoid_dice, "
         "triplet, info_nce, cosine, kl_div, hinge, multi_margin, quantile, "
         "smooth_l1, poisson_nll, ctc; did you mean 'l1'?\n"
         "  train m { loss = l3 }\n            ^\n"},
        {"train m { speed = 3 }", "1:11: error: --speed: unknown option"},
        {"train m { loss }", "1:11: error: --loss: needs a value"},
        {"train m { loss mse }", "error: --loss: '=' expected"},
        {"train m { loss = mse; seed = 1; seed = 1 }",
         "1:33: error: --seed: is given twice"},
        {"train m { clip-norm = 1 }\ntrain m { clip_norm = 1 }",
         "2:11: error: --clip-norm: is given twice"},
        {"train m { accept_folded = 1 }", "takes no value"},
        {"train m { dump_ir = x }",
         "--dump-ir: is an option of the command line"},
        {"train n { loss = mse }", "1:7: error: the file has no model 'n'"},
        {"train m { loss = mse", "2:1: error: --model: '=' expected"},
        {"policy m { op relu }", "1:12: error: 'op NAME CLASS', "},
        {"policy m { op tanh low }", "1:12: error: no op of the model is"}};
    check_text(1, "2:1: error: '}' expected, found end of file",
               "train m { loss = mse\n", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "%s\nmodel m(x: f32[2]) { return y = mean(relu(x)) }\n",
                 cases[i][0]);
        check_text(1, cases[i][1], text, "");
    }
}

/* An imported ONNX file trains as the importing text says. */
TEST_CASE(cli, a_recipe_over_an_onnx_file) {
    char text[1000];
    snprintf(text, sizeof text,
             "model ft = onnx(\"%s\")\n"
             "train ft { dim = batch=4; loss = cross_entropy\n"
             "  batchnorm = frozen; freeze = conv*\n}\n"
             "policy ft { op relu full }\n",
             test_data_path("models/mnist_cnn.onnx"));
    check_text(0, "odd.amp: can be compiled", text, "");
    check_run(0, "--freeze", "inspect odd.amp --params");
    check_text(1, "the file has no model 'x'",
               "model ft = onnx(\"a.onnx\")\ntrain x { }\n", "");
    check_text(1, "a.onnx: error: No such file",
               "model ft = onnx(\"a.onnx\")\n", "");
    check_text(1, "cannot have a graph",
               "model ft = onnx(\"a.onnx\")\ngraph g() { }\n", "");
    check_text(1, "onnx(\"FILE\") expected", "model ft = torch(\"a\")\n", "");
}

TEST_CASE(cli, odd_models) {
    static const char no_class[] = "graph forward(%x: f32[4,3]) {\n"
                                   "  param %w: f32[3,0]\n"
                                   "  %y = matmul %x, %w : f32[4,0]\n"
                                   "  return %y\n}\n";
    check_text(1, "the file has no model", "", "");
    check_text(1,
               "odd.amp: error: the batch is 0: input 'x' is f32[0,3]; --dim",
               "dim B = 0\nmodel m(x: f32[B,3]) {\n"
               "  return y = Linear(x, units=2)\n}\n"
               "train m { loss = mse }\n",
               "");
    check_text(1, "the file has no model", "module \"m\"\n", "");
    check_text(1, "the loss depends on no trained parameter",
               "model m() { return y = 1 }\n", "");
    check_text(1, "odd.amp:1:40: error: an output 'y' exists already",
               "model m(x: f32[4]) { return y = x, y = x }\n", "--loss none");
    check_text(1, "class axis is empty", no_class, "--loss cross_entropy");
    check_text(1, "class axis is empty", no_class, "--loss nll");
    check_text(1, "has no classes",
               "graph forward(%x: f32[4,0], %t: i64[4]) {\n"
               "  %l, %e = softmax_cross_entropy %x, %t {axis=1} :"
               " f32[], f32[4]\n"
               "  return %l\n}\n",
               "");
}

TEST_CASE(cli, usage_errors_give_status_2) {
    check_refused(2, "--nonsense: unknown option", "--nonsense");
    check_refused(2, "not one of fp32, bf16, fp16", "--precision fp8");
    check_refused(2,
                  "unknown key 'keep'; its keys are keep_batchnorm, "
                  "master_weights",
                  "--precision O2,keep=1");
    check_refused(2, "unknown key 'keep_batchnorm'; it has no keys",
                  "--precision O1,keep_batchnorm=0");
    check_refused(2, "is not one of fp32", "--precision O0:bf16");
    check_refused(2, "is not one of exact, pytorch", "--placement torch");
    check_refused(2, "not one of sgd, adam, adamw, rmsprop, ",
                  "--optimizer lionn");
    check_refused(2, "muon, FILE.amp; keys follow it: WORD,KEY=VALUE",
                  "--optimizer adamw:lr=1e-4");
    check_refused(2, "unknown key 'beta3'", "--optimizer adam,beta3=1");
    check_refused(2, "is not NAME=N", "--dim batch");
    check_refused(2, "needs a value", "--loss");
    check_refused(2, "not for 'cuda:sm_9x'", "--target cuda:sm_9x");
    check_refused(2, "--objective NAME,loss=L", "--loss mse --loss l1");
    check_refused(2, "--lr: unknown option; use --optimizer O,lr=X",
                  "--lr 0.1");
    check_run(2, "a file is missing", "check");
    check_run(2, "-o OUT.so is missing", "model.onnx");
}

TEST_CASE(cli, a_second_loss_is_no_silent_choice) {
    check_refused(2, "given twice: '-o'", "-o other.so");
    check_run(2, "given twice: '--pass'",
              "opt m.amp --pass simplify --pass cse");
    check_run(2, "--dim needs --expand", "fmt m.amp --dim B=2");
    check_refused(2,
                  "--loss: was given already; a sum is --loss \"A:OUTPUT + "
                  "0.5*B:OUTPUT\"; several losses in one module are "
                  "--objective",
                  "--loss mse --loss l1");
}

TEST_CASE(cli, numbers_are_numbers_in_range) {
    check_refused(2, "beta1=1 is not in [0, 1)", "--optimizer adam,beta1=1");
    check_refused(2, "lr=-1 is not in [0,", "--optimizer sgd,lr=-1");
    check_refused(2, "'1e999' is outside the range",
                  "--optimizer sgd,lr=1e999");
    check_refused(2, "'nan' is not a number", "--optimizer sgd,lr=nan");
    check_refused(2, "'' is not a number", "--optimizer sgd,lr=");
    check_refused(2, "' 1' is not a number", "--clip-norm ' 1'");
    check_refused(2, "'1x' is not a number", "--clip-norm 1x");
    check_refused(2, "1e39 is not in [1e-37, 1e+38]", "--clip-norm 1e39");
    check_refused(2, "0 is not in", "--clip-value 0");
    check_refused(2, "static=1e31 is not in", "--loss-scale static=1e31");
    check_refused(2, "max= is below min=", "--loss-scale dynamic,min=8,max=4");
    check_refused(2, "init=2 is not in [4, 1.67772e+07]",
                  "--loss-scale dynamic,init=2,min=4");
    check_refused(2, "axis=1.5 is not an integer",
                  "--loss cross_entropy,axis=1.5");
    check_refused(2, "'1.5' is not an integer", "--accumulate 1.5");
    check_refused(2, "'a.pdf' does not end in .html, .txt, .json",
                  "--loss cross_entropy --dim batch=4 --report a.pdf");
    check_refused(2, "--batch-sizes: '' is not an integer",
                  "--loss cross_entropy --batch-sizes 1,");
    check_refused(2, "0 is not in 1 .. 16777216", "--accumulate 0");
    check_refused(2, "99999999999999999999 is not in 0 ..",
                  "--seed 99999999999999999999");
    check_refused(2, "99999999999999999999 is not in 0 ..",
                  "--dim batch=99999999999999999999");
    check_refused(1, "--dim batch=0: the batch has no samples",
                  "--loss cross_entropy --dim batch=0");
    check_refused(2, "--dim: 0 is less than 1, the smallest value",
                  "--dim 'batch=2|0'");
    check_refused(2, "a name is missing before '='", "--dim =5");
    check_refused(2, "a name is missing before ':'", "--dim :0=5");
    check_refused(2, "'' is not an integer", "--dim batch=");
    check_refused(2, "'' is not an integer", "--dim input:=5");
    check_refused(2, "a path is missing", "--report ''");
}

TEST_CASE(cli, globs_match_something) {
    const char *globs[] = {"--train 'nosuch*'", "--freeze 'nosuch*'",
                           "--batchnorm 'frozen:nosuch*'",
                           "--param-group 'nosuch*,lr_scale=2'"};
    for (size_t i = 0; i < sizeof globs / sizeof *globs; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--dim batch=8 --loss cross_entropy %s", globs[i]);
        check_refused(2, "matches no", options);
    }
}

TEST_CASE(cli, input_errors_give_status_1) {
    check_run(1, "No such file", "nosuch.onnx -o x.so");
    check_refused(1, "--dim batch=64", "");
    check_refused(1, "batch", "--dim bach=64");
    check_refused(1, "Choose with --loss", "--dim batch=8");
    check_refused(1, "'nosuch' is not an output, inner value, node or layer",
                  "--dim batch=8 --loss cross_entropy:nosuch");
    check_refused(1, "needs NVRTC",
                  "--dim batch=8 --loss cross_entropy --target cuda:sm_90");
}

TEST_CASE(cli, without_nvrtc_there_is_a_warning) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o w.so --dim batch=4 --loss cross_entropy", cnn());
    check_run(0, "warning: no GPU code", words);
    check_run(0, "no GPU code: NVRTC was not found", "inspect w.so --kernels");
    snprintf(words, sizeof words,
             "'%s' -o w.so --dim batch=4 --loss cross_entropy --emit-cuda text "
             "--target cpu:x86-64-v2",
             cnn());
    check_run(0, "", words);
    snprintf(words, sizeof words, "%s/text/unit0.cu", test_tmpdir());
    CHECK(access(words, F_OK) == 0);
}

/* Each result is within the limit of a type, but all of them together are
   not. */
TEST_CASE(cli, sizes_are_those_of_machines) {
    StrBuf text = {0}, out = {0};
    check_text(1, "Linear: the type is too large",
               "model m(x: f32[1,784]) {\n"
               "  return y = Linear(x, units=4294967296, scope=\"fc\")\n}\n",
               "--loss none");
    sb_puts(&text, "model m(x: f32[1048576,1048576]) {\n");
    for (int i = 0; i < 260; i++) {
        sb_printf(&text, "  y%d = softmax(x * %d.5)\n", i, i);
        sb_printf(&out, "%s o%d = y%d", i ? "," : "", i, i);
    }
    sb_printf(&text, "  return%s\n}\n", out.data);
    check_text(1, "program 'predict' stores more than 1125899906842624 bytes",
               text.data, "--loss none");
    sb_free(&text);
    sb_free(&out);
}

TEST_CASE(cli, convolution_in_f64_is_refused) {
    static const char text[] =
        "graph predict(%x: f64[1,2,5,5], %w: f64[3,2,3,3]) {\n"
        "  %y = conv %x, %w {dilations=[1,1], group=1, pads=[1,1,1,1], "
        "strides=[1,1]} : f64[1,3,5,5]\n  return %y\n}\n";
    const char *path = test_tmp("wide.amp");
    REQUIRE(test_write_file(path, text, strlen(text)));
    check_run(1, "conv of f64 is not supported", "wide.amp -o wide.so");
}

TEST_CASE(cli, inspect_answers_from_models_and_modules) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o cnn.so --dim batch=4 --loss "
             "cross_entropy --target cpu:x86-64-v2",
             cnn());
    check_run(0, " products, ", words); /* the summary */
    check_run(0, "cast input f32[4,1,28,28] -> bf16 for conv",
              "inspect cnn.so --casts");
    check_run(0, "backward, ", "inspect cnn.so --casts");
    check_run(0, "f32: a gradient", "inspect cnn.so --casts");
    check_run(0, "\"saved\":true", "inspect cnn.so --casts --json");
    check_run(0, "\"program\":\"train\"", "inspect cnn.so --kernels --json");
    check_run(0,
              "\"loops\":[{\"kind\":\"thread\",\"over\":\"columns\","
              "\"step\":1024},{\"kind\":\"vector\",",
              "inspect cnn.so --kernels --json");
    check_run(0, "\n          loops: thread columns by 1024, vector i0\n",
              "inspect cnn.so --kernels");
    check_run(0, "\n          epilogue: serial rows < ",
              "inspect cnn.so --kernels");
    check_run(0, "arena of train", "inspect cnn.so --memory");
    check_run(0, "train on cpu, predicted for this machine: ",
              "inspect cnn.so --roofline");
    check_run(0, "step of one rank, predicted for this machine; ",
              "inspect cnn.so --scaling 8");
    check_run(0, "{\"world\":8,\"20 us, 1\":{\"ms\":",
              "inspect cnn.so --scaling 8 --link 20,1 --step-ms 5 --json");
    check_run(2, "cnn.so: error: --precision is for models",
              "inspect cnn.so --precision fp32");
    check_run(2, "--link goes with --scaling N", "inspect cnn.so --link 20,1");
    check_run(2, "--step-ms goes with --scaling N",
              "inspect cnn.so --memory --step-ms 5");
    check_run(2, "--scaling: 'one' is not 2 or more ranks",
              "inspect cnn.so --scaling one");
    check_run(2, "--link: 'string' is not nvlink, infiniband, ethernet or",
              "inspect cnn.so --scaling 2 --link string");
    check_run(0, "conv1.weight", "inspect cnn.so --params");
    check_run(0,
              "inputs      input f32[4,1,28,28], target i64[4]\n"
              "outputs     logits f32[4,10]\n"
              "loss        cross_entropy\n"
              "optimizer   adamw, lr 0.001 constant\n"
              "precision   bf16, loss scale none\n",
              "inspect cnn.so");
    check_run(0, "targets     cpu:x86-64-v2\n", "inspect cnn.so");
    check_run(0, "\"targets\":[\"cpu:x86-64-v2\"]},\"bytes\":",
              "inspect cnn.so --json");
    check_run(0, "graph train", "inspect cnn.so --ir autodiff");
    check_run(1, "no IR of stage 'nosuch'", "inspect cnn.so --ir nosuch");
    static const char *const questions[] = {
        "--ir autodiff", "--casts", "--kernels",  "--memory",
        "--params",      "--cuda",  "--roofline", "--scaling 2"};
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < i; k++) {
            snprintf(words, sizeof words, "inspect cnn.so %s %s", questions[k],
                     questions[i]);
            check_run(2, "--roofline, --scaling at a time", words);
        }
    check_run(1, "no GPU code in it", "inspect cnn.so --cuda");
    check_run(2, "--scaling: '1' is not 2 or more ranks",
              "inspect cnn.so --scaling 1");
    check_run(2, "--scaling: '1048577' is not 2 or more ranks",
              "inspect cnn.so --scaling 1048577");
    check_run(2, "--step-ms: '0' is not milliseconds",
              "inspect cnn.so --scaling 2 --step-ms 0");
    check_run(2, "--link: '20,' is not nvlink",
              "inspect cnn.so --scaling 2 --link 20,");
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss "
             "cross_entropy --casts",
             cnn());
    check_run(0, "cast input f32[4,1,28,28] -> bf16 for conv", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --ir autodiff",
             cnn());
    check_run(0, "graph train", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --ir nosuch",
             cnn());
    check_run(1, "no pass named 'nosuch' (--list-passes)", words);
    snprintf(words, sizeof words, "inspect '%s' --dim batch=4 --cuda", cnn());
    check_run(1, "--cuda asks a module; --emit-cuda DIR writes", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --kernels",
             cnn());
    check_run(0, "\n          loops: thread columns by 1024, vector i0\n",
              words);
}

/* Writes an .npy file of zeros. */
static void put_zeros(const char *name, const char *type, const char *shape,
                      size_t bytes) {
    char *file = calloc(128 + bytes, 1);
    REQUIRE(file);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    memset(file + 10, ' ', 118);
    int n = snprintf(file + 10, 118,
                     "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                     type, shape);
    file[10 + n] = ' ';
    file[127] = '\n';
    REQUIRE(test_write_file(test_tmp(name), file, 128 + bytes));
    free(file);
}

#define TRAINED                                                                \
    "--feed input=in.npy --feed target=t.npy --threads 1 --device cpu "        \
    "--steps 1 "

/* Weights of the old model are loaded into one with another head. */
TEST_CASE(cli, weights_under_a_fresh_head) {
    char words[1400];
    size_t n = (size_t)snprintf(words, sizeof words,
                                "'%s' --dim batch=4 --loss cross_entropy "
                                "--target cpu:x86-64-v2 ",
                                cnn());
    put_zeros("in.npy", "<f4", "(4, 1, 28, 28)", 4 * 28 * 28 * 4);
    put_zeros("t.npy", "<i8", "(4,)", 4 * 8);
    strcpy(words + n, "-o old.so");
    check_run(0, "", words);
    check_run(0, "wrote old.st", "run old.so " TRAINED "--save old.st");
    strcpy(words + n, "-o new.so --replace-head logits=3 --freeze 'bn*'");
    check_run(0,
              "--freeze: 2 batch normalisations ('bn1.weight', ..) still use "
              "statistics of the batch and move their running ones",
              words);
    check_run(0,
              "weights loaded; 'fc2.weight', 'fc2.bias': of another shape in "
              "the file, as --replace-head made them",
              "run new.so " TRAINED "--load old.st --save new.st");
    check_run(0, "{\"step\":1,", "run new.so " TRAINED "--load new.st");
    strcpy(words + n, "-o other.so --freeze 'bn*' --batchnorm frozen");
    check_run(0, "trains ", words);
    check_run(1, "'fc2.weight' is f32[3,",
              "run other.so " TRAINED "--load new.st");
}

TEST_CASE(cli, a_fresh_head) {
    char words[1400];
    snprintf(words, sizeof words,
             "'%s' -o head.so --dim batch=4 --loss cross_entropy --target "
             "cpu:x86-64-v2 --replace-head logits=3",
             cnn());
    check_run(0, "", words);
    check_run(0, "outputs     logits f32[4,3]", "inspect head.so");
    check_run(0, "fc2.weight  f32[3,", "inspect head.so --params");
    check_run(0, "fc2.bias  f32[3]  operand of Gemm",
              "inspect head.so --params");
    check_run(0, "", "export head.so -o head.onnx");
    check_run(0, "fc2.weight  f32[3,",
              "inspect head.onnx --params --loss none --dim batch=4");
    /* again, over the exported file */
    check_run(0, "fc2.weight  f32[7,",
              "inspect head.onnx --params --loss none --dim batch=4 "
              "--replace-head logits=7");
    snprintf(words, sizeof words, "check '%s' --dim batch=4 --loss none ",
             cnn());
    size_t n = strlen(words);
    strcpy(words + n, "--replace-head nosuch=3");
    check_run(1, "'nosuch' is not an output of the model; its outputs: logits",
              words);
    strcpy(words + n, "--replace-head logits");
    check_run(2, "'logits' is not OUTPUT=N", words);
    strcpy(words + n, "--replace-head logits=0");
    check_run(2, "0 is not in 1 ..", words);
    strcpy(words + n, "--replace-head logits=2000000000");
    check_run(1, "would have too many elements", words);
    check_text(1, "--replace-head is for ONNX models",
               "graph forward(%x: f32[4,3]) {\n  %y = relu %x : f32[4,3]\n"
               "  return %y\n}\n",
               "--replace-head y=3");
}

TEST_CASE(cli, dumped_ir_reads_back) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o d.so --dim batch=4 --loss "
             "cross_entropy --target cpu:x86-64-v2 "
             "--dump-ir stages",
             cnn());
    check_run(0, "", words);
    check_run(0, "graph forward", "fmt --expand stages/00-import.amp");
    check_run(0, "graph forward", "fmt stages/00-import.amp");
    check_run(2, "only a text, .amp, has a layout", "fmt m.onnx");
    check_run(0, "group", "fmt --expand stages/*-memplan.amp");
    char *import = test_read_file(test_tmp("stages/00-import.amp"), NULL);
    char *next = test_read_file(test_tmp("stages/01-simplify.amp"), NULL);
    REQUIRE(import && next);
    CHECK_HAS(next, "# (unchanged)\n");
    CHECK_STR(next + strlen("# (unchanged)\n"), import);
    free(import);
    free(next);
}

TEST_CASE(cli, passes_are_timed) {
    char words[1024];
    snprintf(words, sizeof words,
             "check '%s' --dim batch=4 --loss cross_entropy --time-passes",
             cnn());
    check_run(0, " 1 simplify ", words);
    check_run(0, "(unchanged)", words);
    check_run(0, " memplan ", words);
    check_text(0, " ms        2 nodes        5 values (unchanged)\n 2 adapt ",
               "graph forward(%x: f32[4,3]) {\n"
               "  param %w: f32[3] = 1\n  buffer %b: f32[3] = 1\n"
               "  %z = mul %x, %w\n  %y = add %z, %b\n  return y=%y\n}\n",
               "--loss none --time-passes");
}

TEST_CASE(cli, opt_refuses_a_wrong_order) {
    static const char text[] =
        "graph g(%x: f32[4]) {\n  %y = relu %x\n  return %y\n}\n";
    REQUIRE(test_write_file(test_tmp("relu.amp"), text, strlen(text)));
    check_run(0, "relu", "opt relu.amp --pass simplify,dce");
    check_run(2, "'cse' does not run after 'fuse'",
              "opt relu.amp --pass fuse,cse");
    check_run(2, "--list-passes", "opt relu.amp --pass nosuch");
    check_run(2, "which pass 'fuse' makes", "opt relu.amp --pass memplan");
}

/* ---- data in another order ----------------------------------------------- */

/* With two samples, one per step, either may be the first of an epoch. */
TEST_CASE(cli, two_samples_come_in_both_orders) {
    static const char csv[] = "a,b,class\n1,2,0\n-3,0.5,1\n";
    static const char text[] = "graph forward(%x: f32[1,2]) {\n"
                               "  param %w: f32[2] = [0.5, -1]\n"
                               "  %y = mul %x, %w : f32[1,2]\n"
                               "  return %y\n}\n";
    enum { EPOCHS = 24 };
    char *out;
    double loss[2 * EPOCHS], first = 0, second = 0;
    int n = 0, swapped = 0;
    REQUIRE(test_write_file(test_tmp("two.csv"), csv, strlen(csv)));
    REQUIRE(test_write_file(test_tmp("two.amp"), text, strlen(text)));
    check_run(0, "",
              "two.amp -o two.so --target cpu:x86-64-v2 --precision "
              "fp32 --loss cross_entropy --optimizer sgd,lr=0");
    REQUIRE(test_command(&out,
                         "cd '%s' && '%s' run two.so --feed x=two.csv:a,b "
                         "--feed target=two.csv:class --epochs 24 --shuffle",
                         test_tmpdir(), test_ampc()) == 0);
    for (char *p = out; (p = strstr(p, "\"loss\":")) && n < 2 * EPOCHS; p++)
        loss[n++] = strtod(p + 7, NULL);
    free(out);
    REQUIRE(n == 2 * EPOCHS);
    first = loss[0];
    second = loss[1];
    CHECK(first != second);
    for (int i = 0; i < EPOCHS; i++) {
        bool same = loss[2 * i] == first;
        CHECK(loss[2 * i] == (same ? first : second) &&
              loss[2 * i + 1] == (same ? second : first));
        swapped += !same;
    }
    CHECK_MSG(swapped >= 4 && swapped <= EPOCHS - 4, "%d of %d", swapped,
              EPOCHS);
}

/* Empty kernels run nothing; two equal kernels run as one launch, and sums of
   many rows as two. */
TEST_CASE(cli, each_kernel_says_what_runs) {
    static const char text[] =
        "graph forward(%x: f32[64,32], %e: f32[0,4]) {\n"
        "  param %w: f32[32,48] = 1, %v: f32[32,48] = 1\n"
        "  %a = tanh %e : f32[0,4]\n"
        "  %q = reduce_sum %x {axes=[0], keepdims=1}\n"
        "  %b = tanh %w : f32[32,48]\n"
        "  %c = tanh %v : f32[32,48]\n"
        "  return a=%a, b=%b, c=%c, q=%q\n}\n";
    static const struct {
        const char *gpu, *op;
    } want[] = {{"tanh -> a f32[0,4]\n          gpu: nothing\n",
                 "\"writes\":[\"a\"],\"cuda\":{\"op\":\"none\","},
                {"tanh -> b f32[32,48]\n          gpu: 2 steps in ",
                 "\"writes\":[\"b\"],\"cuda\":{\"op\":\"many\",\"count\":2,"},
                {"tanh -> c f32[32,48]\n          gpu: in the launch before\n",
                 "\"writes\":[\"c\"],\"cuda\":{\"op\":\"part\","},
                {"reduce_sum -> q f32[1,32]\n          gpu: ",
                 "\"writes\":[\"q\"],\"cuda\":{\"op\":\"launch\","}};
    REQUIRE(test_write_file(test_tmp("idle.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        check_run(0, want[i].gpu,
                  "inspect idle.amp --loss none --kernels --target cuda:ptx");
        check_run(0, want[i].op,
                  "inspect idle.amp --loss none --kernels --json "
                  "--target cuda:ptx");
    }
}

/* Row numbers are divided in 32 bits if these suffice. */
TEST_CASE(cli, numbers_of_many_rows_have_64_bits) {
    for (int side = 46340; side <= 46341; side++) { /* squared: about 2^31 */
        char text[400];
        size_t n;
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[%d,%d,8], %%b: f32[%d,1]) {\n"
                 "  %%q = reduce_max %%x {axes=[2], keepdims=1}\n"
                 "  %%y = add %%q, %%b\n  %%r = mul %%x, %%y\n"
                 "  return r=%%r\n}\n",
                 side, side, side);
        REQUIRE(test_write_file(test_tmp("rows.amp"), text, strlen(text)));
        check_run(0, "",
                  "rows.amp --loss none -o rows.so --emit-c rows "
                  "--target cpu:x86-64-v3");
        char *c = test_read_file(test_tmp("rows/v3_kernels.c"), &n);
        REQUIRE(c);
        CHECK_EQ_INT(strstr(c, "(uint32_t)u %") != NULL, side == 46340);
        CHECK_EQ_INT(strstr(c, " = u %") != NULL, side == 46341);
        free(c);
    }
}

/* The gradient of a padding sums a term for each position to which an
   element is copied: up to 1,000 terms are compiled; the terms of two axes
   multiply. */
TEST_CASE(cli, terms_of_the_gradient_of_a_padding) {
    static const struct {
        const char *mode;
        int size, pads[4]; /* before and after both axes */
        bool compiles;
    } rows[] = {{"edge", 1, {0, 24, 0, 39}, true},
                {"edge", 1, {24, 0, 40, 0}, false},
                {"edge", 1, {0, 25, 39, 0}, false},
                {"wrap", 2, {2, 2, 2, 2}, true},
                {"constant", 1, {99, 99, 99, 99}, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int *p = rows[i].pads;
        int n = rows[i].size;
        char text[600];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[1]) {\n  param %%w: f32[%d,%d] = 1\n"
                 "  %%p = pad %%w {mode=\"%s\", pads=[%d,%d,%d,%d], value=0}\n"
                 "  %%y = mul %%p, %%x\n"
                 "  %%l = reduce_sum %%y {axes=[0,1], keepdims=0}\n"
                 "  return %%l\n}\n",
                 n, n, rows[i].mode, p[0], p[2], p[1], p[3]);
        REQUIRE(test_write_file(test_tmp("pad.amp"), text, strlen(text)));
        check_run(!rows[i].compiles,
                  rows[i].compiles ? "" : "the gradient of padding to",
                  "pad.amp -o pad.so --loss auto --target cpu:x86-64-v2");
    }
    static const char
        axes[] = /* a position comes from one position of a constant */
        "graph forward(%x: f32[1]) {\n  param %w: f32[1,1,1,1,1,1,1,1] = 1\n"
        "  %p = pad %w {mode=\"constant\", value=0, "
        "pads=[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2]}\n"
        "  %y = mul %p, %x\n"
        "  %l = reduce_sum %y {axes=[0,1,2,3,4,5,6,7], keepdims=0}\n"
        "  return %l\n}\n";
    REQUIRE(test_write_file(test_tmp("pad.amp"), axes, sizeof axes - 1));
    check_run(0, "", "pad.amp -o pad.so --loss auto --target cpu:x86-64-v2");
}
