/* SPDX-License-Identifier: Apache-2.0 */
/* runs.c: `ampc run`: sizes, losses, checkpoints and weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/frontend/cli/cli.h"
#include "tests/harness.h"

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
    cli_check(0, "", "s.amp -o s1.so --dim T=6 " SENTENCES);
    cli_check(
        0, "",
        "s.amp -o s3.so --dim 'T=2|4|6' --pad x=0,target=-100 " SENTENCES);
    cli_check(0, "",
              "run s1.so " SENTENCE_FEED "--epochs 2 --eval --log s1.jsonl");
    cli_check(0, "",
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
    cli_check(0, "samples by size, from the smallest on: 4, 1, 1",
              "run s3.so --feed x=sx.csv --feed target=st.csv --epochs 1 "
              "--sort-by-length --log sorted.jsonl");
    cli_check(1, "--sort-by-length: the module has one size",
              "run s1.so " SENTENCE_FEED "--sort-by-length");
}

/* Images of zeros to n - 1, as many as 4 times the size. */
static void put_images(const char *name, int height, int width) {
    enum { SAMPLES = 4, HEAD = 128 };
    char file[HEAD + 4096] = "\x93NUMPY\1";
    int n = SAMPLES * height * width;
    int used = snprintf(file + 10, HEAD - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': "
                        "(%d, 1, %d, %d)}",
                        SAMPLES, height, width);
    memset(file + 10 + used, ' ', (size_t)(HEAD - 11 - used));
    file[HEAD - 1] = '\n';
    file[8] = HEAD - 10;
    for (int i = 0; i < n; i++) {
        float x = (float)(i % 7) / 7;
        memcpy(file + HEAD + (size_t)i * sizeof x, &x, sizeof x);
    }
    REQUIRE(test_write_file(test_tmp(name), file,
                            HEAD + (size_t)n * sizeof(float)));
}

/* Without --pad a file trains that has one of the sizes, with the losses of a
   module that has only this one. */
TEST_CASE(cli, images_of_several_sizes) {
    static const struct {
        const char *dims, *module;
    } modules[] = {{"--dim 'H=4|8' --dim 'W=6|12'", "i.so"},
                   {"--dim H=4 --dim W=6", "i46.so"},
                   {"--dim H=8 --dim W=6", "i86.so"}};
    static const char text[] =
        "dim B = 2\ndim H\ndim W\nmodel m(x: f32[B,1,H,W]) {\n"
        "  h = relu(BatchNorm(Conv2d(x, channels=3, size=3, pad=1)))\n"
        "  return y = Linear(reduce_mean(h, axes=[2,3], keepdims=0), "
        "units=2)\n}\n";
    char words[400];
    REQUIRE(test_write_file(test_tmp("i.amp"), text, strlen(text)) &&
            test_write_file(test_tmp("it.csv"), "0\n1\n1\n0\n", 8));
    for (int i = 0; i < 3; i++) {
        snprintf(words, sizeof words,
                 "i.amp -o %s %s --loss cross_entropy --precision fp32 "
                 "--optimizer sgd,lr=1 --target cpu:x86-64-v2",
                 modules[i].module, modules[i].dims);
        cli_check(0, "", words);
    }
    for (int i = 1; i < 3; i++) {
        double one[8], some[8];
        put_images("i.npy", 4 * i, 6);
        snprintf(
            words, sizeof words,
            "run %s --feed x=i.npy --feed target=it.csv --epochs 2 --quiet "
            "--log one.jsonl",
            modules[i].module);
        cli_check(0, "", words);
        cli_check(0, "",
                  "run i.so --feed x=i.npy --feed target=it.csv --epochs 2 "
                  "--quiet --log some.jsonl --eval");
        int n = log_losses("one.jsonl", one);
        REQUIRE(n >= 4 && log_losses("some.jsonl", some) >= n);
        for (int k = 0; k < 2; k++) CHECK_NEAR(some[k], one[k], 1e-6);
    }
    put_images("i.npy", 4, 8);
    cli_check(1, "differ; other sizes need a value of --pad",
              "run i.so --feed x=i.npy --feed target=it.csv");
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
    cli_check(
        0, "",
        "l.amp -o l.so --dim '" LONG("q") "=2|4' --dim '" LONG(
            "k") "=2|4' --pad x=0,target=-100 --loss cross_entropy,axis=2 "
                 "--precision fp32 --target cpu:x86-64-v2");
    cli_check(0, "samples by size, from the smallest on: 0, 3, 0, 1",
              "run l.so --feed x=lx.csv --feed k=lx.csv --feed target=lt.csv "
              "--epochs 1 --sort-by-length");
    cli_check(0, "for x i64[2,4]: fits: 2 samples", "data short.csv l.so");
    cli_check(1, "for k i64[2,4]: no: i64[2,3] does not fit",
              "data k=short.csv l.so");
    cli_check(1, "differ; other sizes need a value of --pad",
              "data k=short.csv l.so");
    cli_check(1,
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
    cli_check(0, "",
              "sums.amp -o sums.so --loss none --precision fp32 "
              "--target cpu:x86-64-v2");
    cli_check(0, "", "run sums.so --feed x=ten.csv --fetch got");
    char *file = test_read_file(test_tmp("got/s.npy"), &n);
    REQUIRE(file && n > 6 * sizeof *sums);
    char *items = file + n - 6 * sizeof *sums;
    CHECK_HAS(file + 10, "'shape': (3, 2)");
    CHECK(items[-1] == '\n');
    CHECK_MEM(items, sums, sizeof sums);
    free(file);
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
    cli_check(0, "",
              "two.amp -o two.so --target cpu:x86-64-v2 --precision fp32 "
              "--objective a,loss=mse,params=v,optimizer=sgd,lr=0 "
              "--objective b,loss=l1,params=w,optimizer=sgd,lr=0");
    cli_check(0,
              "{\"objective\":\"a\",\"eval_loss\":2.5,\"accuracy\":null,"
              "\"samples\":4}\n"
              "{\"objective\":\"b\",\"eval_loss\":1.5,\"accuracy\":null,"
              "\"samples\":4}\n",
              "run two.so --eval --feed x=x.csv --feed target:y=t.csv");
    cli_check(0, "{\"epoch\":1,\"objective\":\"b\",\"eval_loss\":1.5,",
              "run two.so --feed x=x.csv --feed target:y=t.csv --eval-feed "
              "x=x.csv --eval-feed target:y=t.csv");
    /* a key of the schedule is set for both objectives */
    cli_check(0,
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
    cli_check(0, "", ONE "plain.so");
    cli_check(0, "", ONE "clip.so --clip-norm 1");
    cli_check(0, "", "run plain.so" RESUMED "plain.ck");
    cli_check(0, "", "run clip.so" RESUMED "clip.ck");
    cli_check(1, "--clip-norm was '1' there and is not given in this module",
              "run plain.so" RESUMED "clip.ck --resume");
    cli_check(1, "--clip-norm was not given there and is '1' in this module",
              "run clip.so" RESUMED "plain.ck --resume");
#undef ONE
#undef RESUMED
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
                                cli_cnn());
    put_zeros("in.npy", "<f4", "(4, 1, 28, 28)", 4 * 28 * 28 * 4);
    put_zeros("t.npy", "<i8", "(4,)", 4 * 8);
    strcpy(words + n, "-o old.so");
    cli_check(0, "", words);
    cli_check(0, "wrote old.st", "run old.so " TRAINED "--save old.st");
    strcpy(words + n, "-o new.so --replace-head logits=3 --freeze 'bn*'");
    cli_check(0,
              "--freeze: 2 batch normalisations ('bn1.weight', ..) still use "
              "statistics of the batch and move their running ones",
              words);
    cli_check(0,
              "weights loaded; 'fc2.weight', 'fc2.bias': of another shape in "
              "the file, as --replace-head made them",
              "run new.so " TRAINED "--load old.st --save new.st");
    cli_check(0, "{\"step\":1,", "run new.so " TRAINED "--load new.st");
    strcpy(words + n, "-o other.so --freeze 'bn*' --batchnorm frozen");
    cli_check(0, "trains ", words);
    cli_check(1, "'fc2.weight' is f32[3,",
              "run other.so " TRAINED "--load new.st");
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
    cli_check(0, "",
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
