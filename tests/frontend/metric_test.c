/* SPDX-License-Identifier: Apache-2.0 */
/* metric_test.c: metrics compared with scikit-learn's and torchmetrics'
   values (models/record/metric_values.py), however samples are divided into
   batches and ranks; and refusals. */
#define _POSIX_C_SOURCE 200809L
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/run/metric.h"

enum { SAMPLES = 150 };

/* ---- made-up scores ------------------------------------------------------ */

static uint32_t state;

static int drawn(void) {
    state = (state * 1103515245u + 12345u) & 0x7fffffff;
    return (int)(state >> 8) % 4096;
}

typedef struct Data {
    ampc_tensor_info out, labels;
    float *score;
    int64_t *label;
    float *number; /* labels that are numbers */
} Data;

static int64_t read_shape(const char *text, ampc_tensor_info *t) {
    int64_t n = 1;
    t->size = sizeof *t;
    t->rank = 1;
    t->sample_rows = 1;
    for (char *end; *text; text = *end ? end + 1 : end)
        n *= t->shape[t->rank++] = strtoll(text, &end, 10);
    return n;
}

static void set_batch(ampc_tensor_info *t, int64_t batch) {
    t->shape[0] = batch;
}

/* Data as made() in the script makes. */
static Data make(const char *kind, const char *shape, const char *labels,
                 int classes) {
    Data d = {.out = {.name = "y", .dtype = AMPC_DTYPE_F32},
              .labels = {.name = "target", .dtype = AMPC_DTYPE_I64}};
    int64_t a = read_shape(shape, &d.out), b = read_shape(labels, &d.labels);
    bool numbers = !strcmp(kind, "numbers");
    if (numbers) d.labels.dtype = AMPC_DTYPE_F32;
    d.score = malloc((size_t)(SAMPLES * a) * sizeof *d.score);
    d.label = malloc((size_t)(SAMPLES * b) * sizeof *d.label);
    d.number = malloc((size_t)(SAMPLES * b) * sizeof *d.number);
    REQUIRE(d.score && d.label && d.number);
    state = 1;
    for (int64_t i = 0; i < SAMPLES; i++) {
        for (int64_t k = 0; k < a; k++) {
            float v = (float)drawn();
            d.score[i * a + k] =
                !strcmp(kind, "probabilities") ? v / 4096 : v / 512 - 4;
        }
        for (int64_t k = 0; k < b; k++) {
            int v = drawn();
            d.number[i * b + k] = (float)v / 512 - 4;
            d.label[i * b + k] =
                !strcmp(kind, "ignored") && v % 7 == 0 ? -100 : v % classes;
        }
    }
    return d;
}

static void data_free(Data *d) {
    free(d->score);
    free(d->label);
    free(d->number);
}

static size_t row_bytes(const ampc_tensor_info *t) {
    size_t n = t->dtype == AMPC_DTYPE_I64 ? 8 : 4;
    for (int i = 1; i < t->rank; i++) n *= (size_t)t->shape[i];
    return n;
}

/* ---- measuring ----------------------------------------------------------- */

static void open_metric(const char *text, Data *d, int64_t batch, Metric *m) {
    Diag diag = {0};
    set_batch(&d->out, batch);
    set_batch(&d->labels, batch);
    CHECK_MSG(metric_read(&diag, text, m) == OK &&
                  metric_fit(&diag, m, &d->out, &d->labels, NULL, batch,
                             SAMPLES) == OK,
              "%s: %s", text, diag.text.data ? diag.text.data : "");
    sb_free(&diag.text);
}

/* The batches that `rank` of `ranks` evaluates, the last one first. */
static void add_turn(Metric *m, const Data *d, int64_t batch, int rank,
                     int ranks) {
    Diag diag = {0};
    const char *labels = d->labels.dtype == AMPC_DTYPE_I64
                             ? (const char *)d->label
                             : (const char *)d->number;
    for (int64_t i = (SAMPLES - 1) / batch; i >= 0; i--) {
        int64_t first = i * batch, n = SAMPLES - first;
        if (i % ranks != rank) continue;
        CHECK(metric_add(
                  &diag, m, first, n < batch ? n : batch,
                  (const char *)d->score + (size_t)first * row_bytes(&d->out),
                  labels + (size_t)first * row_bytes(&d->labels), NULL) == OK);
    }
    sb_free(&diag.text);
}

static void add_up(double *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

static double measured(const char *text, Data *d, int64_t batch, int ranks) {
    Metric all, part;
    double value;
    Diag diag = {0};
    open_metric(text, d, batch, &all);
    for (int rank = 0; rank < ranks; rank++) {
        open_metric(text, d, batch, &part);
        add_turn(&part, d, batch, rank, ranks);
        add_up(all.count, part.count, all.ncount);
        add_up(all.part, part.part, 2 * all.nbatch);
        add_up(all.slot, part.slot, all.nslot * all.wide);
        metric_free(&part);
    }
    CHECK_MSG(metric_value(&diag, &all, &value) == OK, "%s: %s", text,
              diag.text.data ? diag.text.data : "");
    metric_free(&all);
    sb_free(&diag.text);
    return value;
}

/* Sums of doubles in another order; torchmetrics uses fp32. */
static const double close_enough = 1e-9;

static void check_row(char *line) {
    char *field[6], *save = NULL;
    int n = 0;
    /* an empty field counts */
    for (char *at = line; n < 6; at = save + 1) {
        field[n++] = at;
        save = strchr(at, '|');
        if (!save) break;
        *save = 0;
    }
    REQUIRE(n == 6);
    double want = strtod(field[5], NULL);
    Data d = make(field[1], field[2], field[3], atoi(field[4]));
    double one = measured(field[0], &d, 16, 1);
    CHECK_MSG(fabs(one - want) <= close_enough * fabs(want),
              "%s %s [%s]: %.12g, expected %.12g", field[0], field[1], field[2],
              one, want);
    CHECK_MSG(measured(field[0], &d, 16, 3) == one, "%s over ranks", field[0]);
    double other = measured(field[0], &d, 150, 1);
    CHECK_MSG(fabs(other - one) <= close_enough * fabs(one),
              "%s in other batches", field[0]);
    data_free(&d);
}

TEST_CASE(metric, has_the_numbers_of_scikit_learn_and_torchmetrics) {
    char *text = test_read_file("tests/metrics/values.csv", NULL), *save = NULL;
    int rows = 0;
    REQUIRE(text);
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save), rows++)
        check_row(line);
    CHECK_MSG(rows > 70, "%d", rows);
    free(text);
}

/* ---- masks, ties, numbers that are none ---------------------------------- */

static double measure_rows(const char *text, const ampc_tensor_info *out,
                           const ampc_tensor_info *labels,
                           const ampc_tensor_info *mask, int n, const float *y,
                           const void *t, const void *w, char why[300]) {
    Metric m;
    Diag diag = {0};
    double value = NAN;
    *why = 0;
    if (metric_read(&diag, text, &m) == OK) {
        if (metric_fit(&diag, &m, out, labels, mask, out->shape[0], n) == OK &&
            metric_add(&diag, &m, 0, n, y, t, w) == OK)
            metric_value(&diag, &m, &value);
        metric_free(&m);
    }
    if (diag.text.data)
        snprintf(why, 300, "%s: %s", text,
                 diag.text.data ? diag.text.data : "");
    sb_free(&diag.text);
    return value;
}

#define TENSOR(NAME, TYPE, RANK, ...)                                          \
    {                                                                          \
        .size = sizeof(ampc_tensor_info), .name = NAME,                        \
        .dtype = AMPC_DTYPE_##TYPE, .rank = RANK, .shape = {__VA_ARGS__},      \
        .sample_rows = 1                                                       \
    }

static const ampc_tensor_info y42 = TENSOR("y", F32, 2, 4, 2),
                              y4 = TENSOR("y", F32, 1, 4),
                              t4 = TENSOR("target", I64, 1, 4),
                              t42 = TENSOR("target", F32, 2, 4, 2),
                              w4 = TENSOR("w", F32, 1, 4);

TEST_CASE(metric, leaves_out_what_the_mask_and_the_padding_leave_out) {
    const float y[8] = {1, 0, 0, 1, 2, 2, 5, 0}, w[4] = {1, 0, 1, 1};
    const int64_t t[4] = {0, 0, 0, 1};
    const float numbers[8] = {1, 0, 9, 9, 2, 0, 9, 9};
    char why[300];
    CHECK_NEAR(measure_rows("accuracy,mask=w", &y42, &t4, &w4, 4, y, t, w, why),
               2.0 / 3, 1e-12);
    CHECK_NEAR(measure_rows("accuracy", &y42, &t4, NULL, 3, y, t, NULL, why),
               2.0 / 3, 1e-12);
    CHECK_NEAR(
        measure_rows("rmse,mask=w", &y42, &t42, &w4, 3, y, numbers, w, why), 1,
        1e-12);
    CHECK_NEAR(
        measure_rows("accuracy,ignore=1", &y42, &t4, NULL, 4, y, t, NULL, why),
        2.0 / 3, 1e-12);
}

TEST_CASE(metric, takes_the_largest_label_as_the_class_with_an_axis) {
    const float y[8] = {1, 0, 0, 1, 2, 1, 5, 0};
    const float soft[8] = {0.6f, 0.4f, 0.9f, 0.1f, 0.2f, 0.8f, 1, 0};
    char why[300];
    CHECK_NEAR(measure_rows("accuracy,axis=1", &y42, &t42, NULL, 4, y, soft,
                            NULL, why),
               0.5, 1e-12);
    CHECK_EQ_INT(*why, 0);
}

TEST_CASE(metric, has_no_value_without_numbers) {
    const float y[10] = {NAN, 0, 0, 1, 2, 2, 5, 0};
    const int64_t zeros[4] = {0};
    char why[300];
    CHECK(isnan(
        measure_rows("accuracy", &y42, &t4, NULL, 4, y, zeros, NULL, why)));
    CHECK(isnan(
        measure_rows("auc", &y42, &t4, NULL, 4, y + 2, zeros, NULL, why)));
    CHECK_EQ_INT(*why, 0);
}

/* ---- refusals ------------------------------------------------------------ */

static void refused(const char *text, const ampc_tensor_info *out,
                    const ampc_tensor_info *labels, const float *y,
                    const void *t, const char *what) {
    char why[300];
    measure_rows(text, out, labels, NULL, 2, y, t, NULL, why);
    CHECK_HAS(why, what);
}

TEST_CASE(metric, refuses_what_it_would_have_to_guess) {
    const float y[8] = {0.5, 0.5, 0.25, 0.75, 0, 1, 1, 0};
    const int64_t t[4] = {0, 7, 0, 1}, good[4] = {0, 1, 1, 0};
    refused("f2", &y42, &t4, y, t,
            "unknown metric 'f2'; the metrics are accuracy, topK, f1");
    refused("acuracy", &y42, &t4, y, t, "did you mean 'accuracy'?");
    refused("top0", &y42, &t4, y, t, "K of topK is a number");
    refused("top3", &y42, &t4, y, t, "fewer classes");
    refused("f1,avrage=macro", &y42, &t4, y, t, "'avrage=macro' is not");
    refused("auc,average=macro", &y42, &t4, y, t, "'average=macro' is not");
    refused("accuracy", &y42, &t42, y, y, "axis=1 (or another) for one-hot");
    refused("rmse", &y42, &t4, y, t, "the shapes differ");
    refused("accuracy", &y42, &t4, y, t, "sample 1 (from 0): 'target' has 7");
    refused("perplexity", &y42, &t4, y, good, "look like probabilities");
    refused("f1", &y4, &t4, y, good, "look like probabilities");
    refused("perplexity,scores=probabilities", &y42, &t4, y + 1, good,
            "are not probabilities");
}
