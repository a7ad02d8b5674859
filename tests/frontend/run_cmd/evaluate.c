/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.c: runs that evaluate and predict, and their metrics. */
#define _GNU_SOURCE
#include "tests/frontend/run_cmd/ran.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/program/dtype.h"
#include "runtime/api/session.h"

/* ---- evaluating and predicting ------------------------------------------- */

TEST_CASE(run, evaluates_every_sample) {
    char *out;
    write_data(41);
    free(good(&tiny_module, FEEDS "--epochs 30 --save @c"));
    out = good(&tiny_module, FEEDS "--eval --load @c");
    CHECK_EQ_INT(count_lines(out), 1);
    CHECK_EQ_INT(field(out, 0, "samples"), 41);
    double loss = field(out, 0, "eval_loss");
    CHECK(loss > 0 && loss < 0.05);
    CHECK_HAS(out, "\"accuracy\":null");
    free(out);
    /* computed here from the predictions */
    free(good(&tiny_module, "--feed x=@x.npy --load @c --fetch @d"));
    Diag d = {0};
    Array y, t;
    REQUIRE(array_open(&d, test_tmp("d/y%2Fout.npy"), NULL, &y) == OK);
    REQUIRE(array_open(&d, test_tmp("t.npy"), NULL, &t) == OK);
    CHECK(y.rank == 2 && y.dim[0] == 41 && y.dim[1] == 2);
    double sum = 0;
    for (int i = 0; i < 82; i++)
        sum += pow(((float *)y.memory)[i] - ((float *)t.memory)[i], 2);
    CHECK_REL(loss, sum / 82, 1e-5);
    free(good(&tiny_module, FEEDS "--load @c --eval --fetch @e"));
    same_files("d/y%2Fout.npy", "e/y%2Fout.npy");
    array_close(&y);
    array_close(&t);
}

/* At the end of each epoch, and of a run that ends within an epoch. */
TEST_CASE(run, evaluates_as_the_epoch_it_is_in) {
    static const int lines[] = {
        10, 21, 25}; /* line numbers: of the 23 steps and of the other lines */
    write_data(40);
    char *out = good(&tiny_module, FEEDS EVAL_FEEDS "--steps 23");
    CHECK_EQ_INT(count_lines(out), 26);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(field(out, lines[i], "epoch"), i + 1);
    free(out);
    out = good(&tiny_module, FEEDS EVAL_FEEDS "--steps 20");
    CHECK_EQ_INT(count_lines(out), 22);
    CHECK_EQ_INT(field(out, 21, "epoch"), 2);
    free(out);
}

TEST_CASE(run, keeps_the_best) {
    write_data(40);
    char *out = good(&tiny_module,
                     FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "
                           "--epochs 3 --save-best @best --save @last");
    CHECK_EQ_INT(count_lines(out), 33);
    CHECK_EQ_INT(field(out, 10, "epoch"), 1);
    double first = field(out, 10, "eval_loss");
    CHECK(field(out, 32, "eval_loss") < first);
    free(out);
    same_files("best", "last");
    /* a learning rate that diverges: the first epoch stays the best */
    out = good(&tiny_module,
               FEEDS "--eval-feed x=@x.npy --eval-feed target=@t.npy "
                     "--epochs 4 --save-best @worse --save @last --lr 9");
    free(out);
    size_t na = 0, nb = 0;
    char *x = test_read_file(test_tmp("worse"), &na);
    char *y = test_read_file(test_tmp("last"), &nb);
    CHECK(na != nb || memcmp(x, y, na) != 0);
    free(x);
    free(y);
}

/* The first number with that key. */
static double number(const char *text, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    return at ? strtod(at + strlen(quoted), NULL) : NAN;
}

TEST_CASE(run, measures_metrics) {
    write_data(42); /* the last batch is padded */
    char *out = good(&tiny_module, FEEDS "--eval --metric rmse");
    double loss = field(out, 0, "eval_loss");
    CHECK_NEAR(number(out, "rmse"), sqrt(loss), 1e-6 * sqrt(loss));
    free(out);
    bad(&tiny_module, FEEDS "--metric rmse", 2, "--eval-feed or --eval");
    bad(&tiny_module, FEEDS "--eval --metric rmse:z", 1,
        "the model lacks this output; the model's outputs: y");
    bad(&tiny_module, FEEDS "--eval --metric rmse,target=z", 1,
        "no input is called 'z'; those of an evaluation: x, target");
    bad(&tiny_module, FEEDS "--eval --metric rmse --metric rmse", 1,
        "is given twice");
}

TEST_CASE(run, augments_and_resumes_with_the_same_bits) {
    write_data(42);
    char *out = good(&tiny_module, FEEDS "--shuffle --epochs 3 --save @whole "
                                         "--augment x=mixup:0.4");
    free(out);
    for (int i = 0; i < 2; i++) /* the first run ends within an epoch */
        free(good(&tiny_module,
                  i ? FEEDS "--shuffle --epochs 3 --save @parts --resume "
                            "--augment x=mixup:0.4"
                    : FEEDS "--shuffle --steps 14 --save @parts "
                            "--augment x=mixup:0.4"));
    same_files("whole", "parts");
    free(good(&tiny_module, FEEDS "--shuffle --epochs 3 --save @plain"));
    size_t na, nb;
    char *a = test_read_file(test_tmp("whole"), &na);
    char *b = test_read_file(test_tmp("plain"), &nb);
    CHECK(na != nb || memcmp(a, b, na));
    free(a);
    free(b);
}

TEST_CASE(run, normalizes_what_it_evaluates_too) {
    float x[8 * TINY_IN], t[8 * TINY_OUT];
    write_data(8);
    for (int i = 0; i < 2; i++)
        tiny_batch(i, x + i * TINY_BATCH * TINY_IN,
                   t + i * TINY_BATCH * TINY_OUT);
    for (int i = 0; i < 8 * TINY_IN; i++) x[i] = (x[i] - 0.25f) / 2;
    write_npy("n.npy", AMPC_DTYPE_F32, 2, (int64_t[]){8, TINY_IN}, x);
    char *a = good(&tiny_module, "--feed x=@n.npy --feed target=@t.npy --eval");
    Ran r = run_module(&tiny_module, FEEDS "--eval --augment "
                                           "x=normalize:0.25/2,mixup:1");
    CHECK_STR(r.out, a);
    CHECK_HAS(r.err, "normalize also in evaluation and prediction");
    ran_free(&r);
    free(a);
    bad(&tiny_module, FEEDS "--augment x=flipp", 2, "did you mean 'flip'?");
    bad(&tiny_module, FEEDS "--augment z=flip", 1, "has no such input");
    bad(&tiny_module, FEEDS "--augment x=flip", 1, "no rows and columns");
    bad(&tiny_labels, FEEDS "--augment x=mixup:1", 1, "does not fit");
}

TEST_CASE(run, keeps_the_best_by_a_metric) {
    write_data(40);
    /* diverges: the loss is best in the first epoch, and so is rmse */
    char *out = good(&tiny_module,
                     FEEDS EVAL_FEEDS "--epochs 4 --lr 9 --metric rmse "
                                      "--best-by rmse --patience 2 --spikes 0 "
                                      "--save @c");
    CHECK_EQ_INT(count_lines(out), 33); /* 3 epochs */
    free(out);
    Ran r = run_module(&tiny_module,
                       FEEDS EVAL_FEEDS "--epochs 4 --save @c --resume");
    CHECK_EQ_INT(r.status, 0);
    CHECK_HAS(r.err, "--best-by differs from the checkpoint's");
    ran_free(&r);
    bad(&tiny_module, FEEDS EVAL_FEEDS "--metric rmse --best-by f1", 2,
        "names none of the --metric options");
}

TEST_CASE(run, accuracy_from_idx_and_gzip) {
    unsigned char idx[16 + 9 * 3] = {0, 0, 8, 3, 0, 0, 0, 9,
                                     0, 0, 0, 1, 0, 0, 0, 3};
    unsigned char labels[8 + 9] = {0, 0, 8, 1, 0, 0, 0, 9};
    for (int i = 0; i < 9; i++) {
        labels[8 + i] = (unsigned char)(i % 2);
        for (int k = 0; k < 3; k++)
            idx[16 + 3 * i + k] = (unsigned char)(i % 2 ? 255 : 10 * k);
    }
    REQUIRE(test_write_file(test_tmp("img"), idx, sizeof idx));
    gzFile f = gzopen(test_tmp("lab.gz"), "wb");
    gzwrite(f, labels, sizeof labels);
    gzclose(f);
    char *out = good(&tiny_labels,
                     "--feed x=@img --feed target=@lab.gz --epochs 200 --eval "
                     "--metric top1");
    int last = count_lines(out) - 1;
    CHECK_EQ_INT(last, 400);
    CHECK(field(out, last, "accuracy") == 1);
    CHECK(number(out, "top1") == 1);
    CHECK_EQ_INT(field(out, last, "samples"), 9);
    free(out);
}

/* ---- names of classes ---------------------------------------------------- */

enum { LABELS = 4 };

/* A file of weights whose cursor has that text. */
static void write_cursor(const char *path, const char *cursor) {
    StrBuf head = {0}, ampc = {0};
    sb_printf(&ampc, "{\"cursor\":{\"sample\":0%s}}", cursor);
    sb_puts(&head, "{\"__metadata__\":{\"ampc\":");
    sb_put_json_string(&head, ampc.data);
    sb_puts(&head, "},\"b\":{\"dtype\":\"F32\",\"shape\":[0],"
                   "\"data_offsets\":[0,0]}}");
    uint64_t n = head.len;
    StrBuf all = {0};
    sb_putn(&all, (const char *)&n, sizeof n);
    sb_putn(&all, head.data, head.len);
    REQUIRE(test_write_file(path, all.data, all.len));
    sb_free(&all);
    sb_free(&ampc);
    sb_free(&head);
}

/* Names of classes come back from a checkpoint for each of several inputs. */
TEST_CASE(run, classes_of_each_input_are_kept) {
    static const char *const input[LABELS] = {"kind", "x", "side \"b\"", "y"};
    static const char *const names[LABELS][3] = {{"ant", "bee", "cat"},
                                                 {NULL},
                                                 {"left", "r\xc3\xa9\\", NULL},
                                                 {"one", NULL}};
    const char *path = test_tmp("named.safetensors");
    RunOptions o = {.load = {{path}, 1}};
    Run trained = {.opt = &o}, later = {.opt = &o};
    Feed feed[LABELS] = {0};
    StrBuf sb = {0};
    for (int i = 0; i < LABELS; i++) {
        int n = 0;
        while (n < 3 && names[i][n]) n++;
        feed[i].want.name = input[i];
        if (n) REQUIRE(classes_make(&feed[i].a.classes, names[i], n));
    }
    trained.train = (FeedSet){.feed = feed, .n = LABELS};
    run_classes_put(&trained, &sb);
    write_cursor(path, sb.data);
    if (run_classes_read(&later, false) != OK) FAIL("%s", later.diag.text.data);
    CHECK_EQ_INT(later.classes.n, 3);
    for (int i = 0; i < LABELS; i++) {
        const Classes *want = &feed[i].a.classes,
                      *got = classes_known(&later.classes, input[i]);
        CHECK((got != NULL) == (want->n > 0));
        for (int k = 0; got && k < want->n; k++)
            CHECK_MSG(got->n == want->n && !strcmp(got->name[k], want->name[k]),
                      "%s: class %d", input[i], k);
        classes_free(&feed[i].a.classes);
    }
    run_classes_free(&later);
    sb_free(&sb);
}

/* The numbers of classes are their places in order; other files are damaged. */
TEST_CASE(run, classes_that_no_run_wrote) {
    static const char *const lists[] = {
        "[\"bee\",\"ant\"]", "[\"ant\",\"ant\"]", "[\"ant\",1]", "[[]]",
        "\"ant\"",           "{\"ant\":\"bee\"}",
    };
    const char *path = test_tmp("disordered.safetensors");
    RunOptions o = {.load = {{path}, 1}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        Run r = {.opt = &o};
        char text[100];
        snprintf(text, sizeof text, ",\"classes\":{\"kind\":%s}", lists[i]);
        write_cursor(path, text);
        CHECK_MSG(run_classes_read(&r, false) != OK, "%s", lists[i]);
        CHECK_HAS(r.diag.text.data, "damaged: its names of classes");
        sb_free(&r.diag.text);
        run_classes_free(&r);
    }
}
