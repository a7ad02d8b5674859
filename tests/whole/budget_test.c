/* SPDX-License-Identifier: Apache-2.0 */
/* budget_test.c: what --max-loss-error and --max-gradient-error promise.

   tests/losses/budget.csv holds what models/precision/budget.py has measured in
   12 draws; the predictions are made again here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "tests/support/compiled.h"
#include "tests/support/drawn.h"
#include "tests/tolerance.h"

enum { BATCHES = 4, DRAWS = 12 };
enum { LOSS, GRADIENT, KINDS };

typedef struct Row {
    char name[40], max_loss[16], max_gradient[16];
    double predicted[KINDS], measured[KINDS], worst[KINDS];
} Row;

/* Rows of the table; *n: their number. */
static Row *read_rows(int *n) {
    char *all = test_read_file(test_data_path("tests/losses/budget.csv"), NULL);
    REQUIRE(all);
    Row *rows = calloc(1000, sizeof *rows);
    REQUIRE(rows);
    *n = 0;
    for (char *line = strtok(all, "\n"); line; line = strtok(NULL, "\n")) {
        Row r = {.name = ""};
        char *at = strchr(line, ',');
        REQUIRE(at && *n < 1000);
        snprintf(r.name, sizeof r.name, "%.*s", (int)(at - line), line);
        char *next = strchr(at + 1, ',');
        REQUIRE(next);
        snprintf(r.max_loss, sizeof r.max_loss, "%.*s", (int)(next - at - 1),
                 at + 1);
        char *rest = strchr(next + 1, ',');
        REQUIRE(rest);
        snprintf(r.max_gradient, sizeof r.max_gradient, "%.*s",
                 (int)(rest - next - 1), next + 1);
        if (sscanf(rest, ",%lf,%lf,%lf,%lf,%lf,%lf", &r.predicted[LOSS],
                   &r.measured[LOSS], &r.worst[LOSS], &r.predicted[GRADIENT],
                   &r.measured[GRADIENT], &r.worst[GRADIENT]) == 6)
            rows[(*n)++] = r; /* else the header */
    }
    free(all);
    return rows;
}

/* Within a factor of two; fp32 itself has errors of 2^-22. */
static bool near(double predicted, double measured) {
    double low = fmin(predicted, measured), high = fmax(predicted, measured);
    return high <= TOL_BUDGET * fmax(low, 0x1p-22);
}

/* ---- the table ----------------------------------------------------------- */

/* Without a limit on the gradient, its error in these small models comes
   from one or two relus whose kink a repetition crosses, or from none: a
   root mean square of 12 repetitions says little. */
TEST_CASE(budget, nine_of_ten_recorded_predictions_are_within_a_factor_of_2) {
    int n, models[2] = {0}, good[2][KINDS] = {{0}};
    Row *rows = read_rows(&n);
    for (int i = 0; i < n; i++) {
        int limited = *rows[i].max_gradient != 0;
        models[limited]++;
        for (int k = 0; k < KINDS; k++)
            good[limited][k] += near(rows[i].predicted[k], rows[i].measured[k]);
    }
    for (int limited = 0; limited < 2; limited++) {
        CHECK(models[limited] >= 40);
        for (int k = 0; k < KINDS; k++) {
            double part = limited || k == LOSS ? 0.9 : 2.0 / 3;
            CHECK_MSG(good[limited][k] >= models[limited] * part,
                      "%s%s: %d of %d", k == LOSS ? "loss" : "gradient",
                      limited ? ", limited" : "", good[limited][k],
                      models[limited]);
        }
    }
    free(rows);
}

TEST_CASE(budget, recorded_losses_keep_their_limit_in_every_draw) {
    int n;
    Row *rows = read_rows(&n);
    for (int i = 0; i < n; i++)
        CHECK_MSG(rows[i].worst[LOSS] <= atof(rows[i].max_loss), "%s: %g",
                  rows[i].name, rows[i].worst[LOSS]);
    free(rows);
}

/* ---- predictions --------------------------------------------------------- */

static void append(StrBuf *sb, const char *from, const char *to) {
    sb_putn(sb, from, (size_t)(to - from));
}

/* A copy in which parameter K begins as uniform(K, -0.3, 0.3). */
static const char *with_weights(const char *name) {
    static char path[600], file[100];
    StrBuf sb = {0};
    int k = 0;
    snprintf(file, sizeof file, "tests/losses/%s.amp", name);
    char *text = test_read_file(test_data_path(file), NULL);
    REQUIRE(text);
    for (char *line = text; *line;) {
        char *end = strchr(line, '\n'), *type = end;
        REQUIRE(end);
        if (!strncmp(line, "  param %", 9)) {
            while (*type != ']') type--;
            append(&sb, line, type + 1);
            sb_printf(&sb, " = uniform(%d, -0.3, 0.3)", k++);
            line = type + 1;
        }
        append(&sb, line, end + 1);
        line = end + 1;
    }
    snprintf(path, sizeof path, "%s", test_tmp("model.amp"));
    REQUIRE(test_write_file(path, sb.data, sb.len));
    sb_free(&sb);
    free(text);
    return path;
}

/* "--calibrate NAME=FILE" for an input; writes the file. */
static void add_data(StrBuf *options, const ampc_tensor_info *t, int64_t rows) {
    StrBuf sb = {0};
    char file[140], path[600];
    bool whole = t->dtype == AMPC_DTYPE_I64;
    size_t size = whole ? 8 : 4;
    int64_t dim[AMPC_RANK_LIMIT];
    int batches = t->shape[0] == rows ? BATCHES : 1;
    memcpy(dim, t->shape, sizeof dim);
    dim[0] *= batches;
    npy_header(&sb, (ampc_dtype)t->dtype, t->rank, dim);
    for (int b = 0; b < batches; b++) {
        void *x = drawn_numbers(t->name, 1000 + b, t->bytes / size, whole);
        sb_putn(&sb, x, t->bytes);
        free(x);
    }
    snprintf(file, sizeof file, "%s.npy", t->name);
    snprintf(path, sizeof path, "%s", test_tmp(file));
    REQUIRE(test_write_file(path, sb.data, sb.len));
    sb_printf(options, " --calibrate '%s=%s'", t->name, path);
    sb_free(&sb);
}

/* The output of compiling the model with these options. */
static char *said(const char *model, const char *options, int status) {
    char *out;
    int rc = test_command(&out,
                          "AMPC_LIBNVRTC=none '%s' '%s' -o '%s' --target "
                          "cpu:x86-64-v3 %s 2>&1",
                          test_ampc(), model, test_tmp("m.so"), options);
    CHECK_MSG(rc == status, "%s: %d: %s", model, rc, out);
    return out;
}

static void read_predicted(const char *out, double *predicted) {
    const char *loss = strstr(out, "predicted error of the loss ");
    const char *gradient = loss ? strstr(loss, "of the gradient ") : NULL;
    CHECK_MSG(gradient, "%s", out);
    REQUIRE(gradient);
    predicted[LOSS] = atof(loss + strlen("predicted error of the loss "));
    predicted[GRADIENT] = atof(gradient + strlen("of the gradient "));
}

static void predict(const Row *row, double *predicted) {
    const char *model = with_weights(row->name);
    StrBuf options = {0};
    ampc_tensor_info t = {.size = sizeof t};
    Compiled c = compile_file(model, "--precision fp32 --target cpu:x86-64-v2");
    int64_t rows = 0;
    for (uint32_t i = 0; !c.api->input(c.api->module, "train", i, &t); i++) {
        if (!i) rows = t.shape[0];
        add_data(&options, &t, rows);
    }
    compiled_close(&c);
    sb_printf(&options, " --max-loss-error %s", row->max_loss);
    if (*row->max_gradient)
        sb_printf(&options, " --max-gradient-error %s", row->max_gradient);
    char *out = said(model, options.data, 0);
    read_predicted(out, predicted);
    free(out);
    sb_free(&options);
}

/* One model in six, to save time. */
TEST_CASE(budget, predictions_made_now_are_within_a_factor_of_2) {
    int n, all = 0, good[KINDS] = {0};
    Row *rows = read_rows(&n);
    for (int i = 0; i < n; i++) {
        const Row *r = &rows[i];
        bool example = !strcmp(r->name, "mlp") || !strcmp(r->name, "cnn") ||
                       !strcmp(r->name, "gpt");
        double predicted[KINDS];
        if (!*r->max_gradient || example || i / 2 % 6) continue;
        predict(r, predicted);
        all++;
        for (int k = 0; k < KINDS; k++) {
            bool is = near(predicted[k], r->measured[k]);
            good[k] += is;
            if (!is)
                printf("%s: predicted %.2e, measured %.2e\n", r->name,
                       predicted[k], r->measured[k]);
        }
    }
    CHECK(all >= 10);
    CHECK_MSG(good[LOSS] * 10 >= all * 9, "%d of %d", good[LOSS], all);
    CHECK_MSG(good[GRADIENT] * 10 >= all * 9, "%d of %d", good[GRADIENT], all);
    free(rows);
}

/* ---- a limit in every draw ----------------------------------------------- */

static double loss_of(const Compiled *c, int draw, int classes) {
    ampc_session *s = open_threads(c, 1);
    ampc_module_info info = {.size = sizeof info};
    ampc_variable_info v = {.size = sizeof v};
    ampc_tensor_info t = {.size = sizeof t};
    ampc_input in[4];
    uint32_t n = 0;
    char name[200];
    REQUIRE(!c->api->describe(c->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) { /* other signs */
        REQUIRE(!c->api->variable(c->api->module, i, &v));
        if (v.kind != AMPC_KIND_PARAMETER) continue;
        float *w = malloc(v.bytes);
        snprintf(name, sizeof name, "u_%s", v.name);
        float *u = drawn_numbers(name, draw, v.bytes / 4, false);
        REQUIRE(w);
        read_var(c, s, v.name, w, v.bytes, AMPC_DTYPE_F32);
        for (size_t k = 0; k < v.bytes / 4; k++)
            if (u[k] < 0.5 && fabsf(w[k]) < 0.99F) w[k] = -w[k];
        write_var(c, s, v.name, w, v.bytes, AMPC_DTYPE_F32);
        free(w), free(u);
    }
    for (; !c->api->input(c->api->module, "train", n, &t); n++) {
        bool whole = t.dtype == AMPC_DTYPE_I64;
        if (whole)
            snprintf(name, sizeof name, "i%d_%s", classes, t.name);
        else
            snprintf(name, sizeof name, "n_%s", t.name);
        REQUIRE(n < 4);
        in[n] = ampc_in(
            t.name, drawn_numbers(name, draw, t.bytes / (whole ? 8 : 4), whole),
            t.bytes, (ampc_dtype)t.dtype);
    }
    double loss = step_ok(c, s, in, n).loss;
    for (uint32_t i = 0; i < n; i++) free((void *)(uintptr_t)in[i].data);
    c->api->close(s);
    return loss;
}

static void kept(const char *model, const char *dims, int classes) {
    char options[300];
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v3 %s", dims);
    Compiled wide = compile_file(test_data_path(model), options);
    snprintf(options, sizeof options,
             "--max-loss-error 1e-4 --target cpu:x86-64-v3 %s", dims);
    Compiled c = compile_file(test_data_path(model), options);
    bool differs = false;
    for (int d = 0; d < DRAWS; d++) {
        double want = loss_of(&wide, d, classes), is = loss_of(&c, d, classes);
        CHECK_MSG(fabs(is - want) <= 1e-4 * fabs(want), "draw %d: %g for %g", d,
                  is, want);
        differs |= is != want;
    }
    CHECK(differs); /* some values have 16 bits */
    compiled_close(&wide);
    compiled_close(&c);
}

TEST_CASE(budget, a_cnn_keeps_1e_4_in_12_of_12_draws) {
    kept("models/cnn.amp", "--dim B=16 --dim W=16", 10);
}

TEST_CASE(budget, gpt_keeps_1e_4_in_12_of_12_draws) {
    kept("models/gpt.amp",
         "--dim B=2 --dim T=32 --dim D=64 --dim HEADS=2 --dim L=2 --dim "
         "VOCAB=128",
         128);
}

/* A step that is measured in one repetition: that one's error may be small by
   chance. 5.7e-6 is what models/precision/budget.py --keeps 1e-4 measures. */
TEST_CASE(budget, one_repetition_does_not_lower_the_prediction) {
    double predicted[KINDS];
    char *out = said(test_data_path("models/cnn.amp"),
                     "--max-loss-error 1e-4 --quick", 0);
    read_predicted(out, predicted);
    CHECK_MSG(near(predicted[LOSS], 5.7e-6), "%s", out);
    free(out);
}

/* ---- what is said -------------------------------------------------------- */

static const char perceptron[] =
    "model mlp(x: f32[16,8]) {\n"
    "  h = gelu(Linear(x, units=32, scope=\"one\"))\n"
    "  return y = Linear(h, units=8, scope=\"two\")\n"
    "}\n"
    "train mlp { loss = mse\n%s }\n";

static const char *text_model(const char *more) {
    static char path[600];
    char text[1000];
    snprintf(text, sizeof text, perceptron, more);
    snprintf(path, sizeof path, "%s", test_tmp("t.amp"));
    REQUIRE(test_write_file(path, text, strlen(text)));
    return path;
}

static void refused(const char *more, const char *options, int status,
                    const char *message) {
    char *out = said(text_model(more), options, status);
    CHECK_MSG(strstr(out, message), "%s", out);
    free(out);
}

TEST_CASE(budget, tighter_limits_take_more_fp32_down_to_all_of_it) {
    static const char *const limits[] = {"1", "1e-3", "1e-4", "1e-6"};
    double last = INFINITY;
    for (int i = 0; i < 4; i++) {
        char options[100];
        double predicted[KINDS];
        snprintf(options, sizeof options,
                 "--max-loss-error %s --max-gradient-error %s", limits[i],
                 limits[i]);
        char *out = said(text_model(""), options, 0);
        read_predicted(out, predicted);
        CHECK(3 * predicted[LOSS] <= atof(limits[i]) + 1e-12);
        CHECK(1.5 * predicted[GRADIENT] <= atof(limits[i]) + 1e-12);
        CHECK(predicted[GRADIENT] <= last);
        last = predicted[GRADIENT];
        if (i == 3) CHECK_MSG(strstr(out, "0 of 5 products, "), "%s", out);
        free(out);
    }
}

TEST_CASE(budget, a_train_block_has_the_limits_and_casts_show_errors) {
    char *block = said(text_model("max_gradient_error = 1e-3\n"), "", 0);
    char *option = said(text_model(""), "--max-gradient-error 1e-3", 0);
    CHECK_STR(block, option);
    free(block), free(option);
    char *out;
    said(text_model(""), "--max-loss-error 1", 0);
    int rc = test_command(&out, "'%s' inspect '%s' --casts", test_ampc(),
                          test_tmp("m.so"));
    CHECK(rc == 0);
    CHECK_MSG(strstr(out, "adds ") &&
                  strstr(out, " to the error of the loss\n") &&
                  !strstr(out, " to the error of the gradient"),
              "%s", out);
    free(out);
    said(text_model(""), "--max-gradient-error 1", 0);
    rc = test_command(&out, "'%s' inspect '%s' --casts", test_ampc(),
                      test_tmp("m.so"));
    CHECK(rc == 0);
    CHECK_MSG(strstr(out, " to the error of the loss, adds ") &&
                  strstr(out, " to the error of the gradient\n"),
              "%s", out);
    free(out);
}

TEST_CASE(budget, what_cannot_be_is_refused) {
    refused("", "--max-loss-error 1e-9", 1, "fp32 itself is about");
    refused("", "--max-loss-error 0", 2, "is not in");
    refused("", "--calibrate x=x.npy", 2, "nothing is measured without");
    refused("", "--max-loss-error 1e-3 --precision f8", 2,
            "do not count what --precision f8 rounds");
    refused("", "--max-loss-error 1e-3 --calibrate y=x.npy", 1,
            "training has no input 'y'");
    refused("",
            "--max-loss-error 1e-3 --calibrate x=/no/such.npy "
            "--calibrate target=/no/such.npy",
            1, "/no/such.npy");
    refused("", "--max-loss-error 1e-3 --placement pytorch", 1,
            "needs --placement exact");
    refused("", "--max-loss-error 1e-3 --loss none", 1,
            "limits the error of a loss");
}
