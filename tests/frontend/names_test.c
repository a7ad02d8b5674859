/* SPDX-License-Identifier: Apache-2.0 */
/* names_test.c: a user finds nodes and layers, chooses their precision by
   name, and gets "did you mean" for a wrong name. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "ir/base/near.h"
#include "tests/harness.h"

static const char model[] =
    "model net(x: f32[4,8]) {\n"
    "  h = tanh(Linear(x, units=8, scope=\"body.one\"))\n"
    "  h = gelu(Linear(h, units=8, scope=\"body.two\"))\n"
    "  return y = Linear(h, units=8, scope=\"head\")\n"
    "}\n"
    "train net { loss = mse }\n";

/* Prints both output streams; %s is the program. */
static char *told(const char *arguments, int status) {
    char *out;
    REQUIRE(test_write_file(test_tmp("m.amp"), model, strlen(model)));
    int rc = test_command(&out, "cd '%s' && AMPC_LIBNVRTC=none '%s' %s 2>&1",
                          test_tmpdir(), test_ampc(), arguments);
    CHECK_MSG(rc == status, "%s: %d %s", arguments, rc, out);
    return out;
}

static void says(const char *arguments, int status, const char *what) {
    char *out = told(arguments, status);
    CHECK_HAS(out, what);
    free(out);
}

static void policy(const char *lines) {
    REQUIRE(test_write_file(test_tmp("p.txt"), lines, strlen(lines)));
}

/* Number of occurrences in the text. */
static int count(const char *text, const char *what) {
    int n = 0;
    for (; (text = strstr(text, what)); text += strlen(what)) n++;
    return n;
}

TEST_CASE(near, finds_the_word_that_was_meant) {
    static const struct {
        const char *word, *best;
    } rows[] = {{"crossentropy", "cross_entropy"},
                {"mes", "mse"},
                {"MSE", "mse"},
                {"l2", "l1"},
                {"hubert", "huber"},
                {"zzz", NULL},
                {"", NULL},
                {"focal", NULL}};
    static const char *const words[] = {"mse", "l1", "huber", "cross_entropy",
                                        "nll"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Near near = near_to(rows[i].word);
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            near_offer(&near, words[k]);
        near_offer(&near, NULL);
        CHECK_MSG(rows[i].best ? near.best && !strcmp(near.best, rows[i].best)
                               : !near.best,
                  "%s: %s", rows[i].word, near.best ? near.best : "none");
    }
}

TEST_CASE(names, nodes_are_listed) {
    char *out = told("inspect m.amp --nodes", 0);
    CHECK_HAS(out, "body.one.y  matmul  f32[4,8]  low  of body.one\n");
    CHECK_HAS(out, "head.y  matmul  f32[4,8]  low  of head\n");
    free(out);
    free(told("m.amp -o m.so --target cpu:x86-64-v2", 0));
    out = told("inspect m.so --nodes --json", 0);
    CHECK_HAS(out,
              "\"op\":\"matmul\",\"layer\":\"body.two\",\"class\":\"low\"");
    free(out);
}

TEST_CASE(names, layers_take_words_for_dtypes) {
    policy("node body fp32\n");
    char *out = told("inspect m.amp --ir policy --amp-policy p.txt", 0);
    int all = count(out, "matmul"), programs = all / 3;
    CHECK(all > 0 && all % 3 == 0);
    CHECK_EQ_INT(count(out, "!full !of=\"body.one.y\""), programs);
    CHECK_EQ_INT(count(out, "!full !of=\"body.two.y\""), programs);
    CHECK_EQ_INT(count(out, "!full !of=\"head.y\""), 0);
    free(out);
    policy("node body fp32\nnode body.two bf16\n");
    out = told("inspect m.amp --ir policy --amp-policy p.txt", 0);
    CHECK_EQ_INT(count(out, "!low !of=\"body.two.y\""), programs);
    free(out);
    says("inspect m.amp --ir policy --amp-policy p.txt --precision fp16", 1,
         "the 16 bits of this module are fp16");
}

TEST_CASE(names, layers_freeze_and_have_rates) {
    char *out = told("inspect m.amp --params --freeze body", 0);
    CHECK_EQ_INT(count(out, "frozen body."), 4);
    CHECK_EQ_INT(count(out, "  --freeze body\n"), 4);
    CHECK_HAS(out, "param  head.weight");
    free(out);
    out = told("inspect m.amp --params --freeze body --train body.two", 0);
    CHECK_EQ_INT(count(out, "  --freeze body\n"), 2);
    CHECK_EQ_INT(count(out, "  --train body.two\n"), 2);
    free(out);
    out = told("inspect m.amp --ir memplan --param-group body.one,lr_scale=0.5 "
               "--target cpu:x86-64-v2",
               0);
    CHECK_HAS(out, "%body.one.weight: f32[8,8]");
    free(out);
    says("inspect m.amp --params --freeze bodi", 2, "matches no parameter");
}

TEST_CASE(names, what_was_meant_is_told) {
    says("rum m.so", 2, "did you mean 'run'?");
    says("m.amp -o m.so --precison fp32", 2, "did you mean '--precision'?");
    says("run m.so --epoch 3", 2, "did you mean '--epochs'?");
    says("export m.so --lod x -o y.onnx", 2, "did you mean '--load'?");
    says("m.amp -o m.so --loss crossentropy", 2,
         "did you mean "
         "'cross_entropy'?");
    policy("op tahn full\n");
    says("m.amp -o m.so --amp-policy p.txt", 1, "did you mean 'tanh'?");
    policy("node hed fp32\n");
    says("m.amp -o m.so --amp-policy p.txt", 1, "did you mean 'head'?");
    policy("node head ful\n");
    says("m.amp -o m.so --amp-policy p.txt", 1, "did you mean 'full'?");
    free(told("m.amp -o m.so --target cpu:x86-64-v2", 0));
    says("run m.so --feed tagret=t.npy", 1, "did you mean 'target'?");
}
