/* SPDX-License-Identifier: Apache-2.0 */
/* audit_test.c: `ampc audit` measures the cost of 16 bits, and its policy lines
   halve it.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "runtime/base/json.h"
#include "tests/harness.h"

/* The log-probability of a squashed normal: 1 - tanh^2 cancels, so that
   rounding tanh to 16 bits changes the loss. */
static const char squashed[] =
    "model sac(x: f32[64,8], e: f32[64,4]) {\n"
    "  mu = Linear(x, units=4, scope=\"mu\")\n"
    "  ls = Linear(x, units=4, scope=\"ls\")\n"
    "  squashed = tanh(mu + exp(ls) * e)\n"
    "  return loss = mean(0 - log(1.000001 - squashed * squashed) - squashed)\n"
    "}\n"
    "train sac { optimizer = sgd, lr=0.1 }\n";

static const char perceptron[] =
    "model mlp(x: f32[16,8]) {\n"
    "  h = Dropout(relu(Linear(x, units=32, scope=\"one\")), ratio=0.25)\n"
    "  return y = Linear(h, units=8, scope=\"two\")\n"
    "}\n"
    "train mlp { loss = mse }\n";

/* `spread` times random numbers in -1..1. */
static void write_npy(const char *name, int rows, int columns, double spread) {
    StrBuf sb = {0};
    uint32_t state = (uint32_t)(rows * columns);
    npy_header(&sb, AMPC_DTYPE_F32, 2, (int64_t[]){rows, columns});
    for (int i = 0; i < rows * columns; i++) {
        state = state * 1664525u + 1013904223u;
        double x = (double)(state >> 8) / 8388608.0 - 1;
        float v = (float)(spread * x);
        sb_putn(&sb, (char *)&v, sizeof v);
    }
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

static char *compiled(const char *text, const char *options) {
    char *out;
    REQUIRE(test_write_file(test_tmp("m.amp"), text, strlen(text)));
    int rc = test_command(&out,
                          "cd '%s' && AMPC_LIBNVRTC=none '%s' m.amp -o m.so "
                          "--target cpu:x86-64-v2 %s",
                          test_tmpdir(), test_ampc(), options);
    CHECK_MSG(rc == 0, "%s", out);
    return out;
}

/* The output of `ampc audit m.so`, which must end with this status. */
static char *audited(const char *options, int status) {
    char *out;
    int rc = test_command(&out, "cd '%s' && '%s' audit m.so %s 2>&1",
                          test_tmpdir(), test_ampc(), options);
    CHECK_MSG(rc == status, "%d: %s", rc, out);
    return out;
}

typedef struct Answer {
    char *text;
    JsonSpan json;
} Answer;

static Answer answer(const char *options) {
    char all[300];
    snprintf(all, sizeof all, "--json %s", options);
    Answer a = {audited(all, 0), {NULL, 0}};
    REQUIRE(json_parse(a.text, strlen(a.text), &a.json));
    return a;
}

static double number(JsonSpan v, const char *key) {
    double x = NAN;
    JsonSpan at;
    if (CHECK_MSG(json_get(v, key, &at), "no '%s'", key)) json_double(at, &x);
    return x;
}

static JsonSpan first_of(JsonSpan v, const char *key) {
    JsonSpan at = {0}, name, item = {0};
    if (!CHECK(json_get(v, key, &at))) return at;
    JsonIter it = json_iter(at);
    CHECK_MSG(json_next(&it, &name, &item), "'%s' is empty", key);
    return item;
}

static bool names(JsonSpan v, const char *key, const char *text) {
    JsonSpan at;
    return json_get(v, key, &at) && json_equals(at, text);
}

static const char feeds[] = "--feed x=x.npy --feed e=e.npy";

/* Another placement may round other values: tanh or its square. */
TEST_CASE(audit, names_what_cancels_and_its_lines_halve_it) {
    write_npy("x.npy", 64, 8, 4);
    write_npy("e.npy", 64, 4, 2);
    free(compiled(squashed, "--placement exact,residuals=2"));
    Answer a = answer("--feed x=x.npy --feed e=e.npy --policy lines.txt");
    double loss = number(a.json, "loss"), grad = number(a.json, "gradient");
    JsonSpan with;
    REQUIRE(json_get(a.json, "with", &with));
    CHECK(number(with, "loss") <= loss / 2);
    CHECK(number(with, "gradient") <= grad / 2);
    CHECK(number(with, "bytes") > 0);
    free(compiled(squashed,
                  "--placement exact,residuals=2 --amp-policy lines.txt"));
    Answer b = answer(feeds);
    CHECK_MSG(fabs(number(b.json, "gradient") - number(with, "gradient")) <=
                  1e-3 * number(with, "gradient"),
              "%g, promised %g", number(b.json, "gradient"),
              number(with, "gradient"));
    free(a.text);
    free(b.text);
}

/* The step compiled anew has every rounding of the module, and dropout draws
   the same numbers. */
TEST_CASE(audit, computes_what_the_module_does) {
    static const char *const precisions[] = {"bf16", "fp16", "fp32"};
    write_npy("x.npy", 40, 8, 1);
    write_npy("y.npy", 40, 8, 1);
    for (int i = 0; i < 3; i++) {
        char options[60];
        snprintf(options, sizeof options, "--precision %s", precisions[i]);
        free(compiled(perceptron, options));
        Answer a = answer("--feed x=x.npy --feed target=y.npy --batches 3");
        double own = number(a.json, "own_loss");
        CHECK_MSG(own == number(a.json, "first_loss"), "%s: %.9g, %.9g",
                  precisions[i], own, number(a.json, "first_loss"));
        bool wide = i == 2;
        CHECK((own == number(a.json, "first_loss_fp32")) == wide);
        CHECK((number(a.json, "gradient") == 0) == wide);
        if (!wide) CHECK(number(first_of(a.json, "roundings"), "gradient") > 0);
        CHECK(names(first_of(a.json, "parameters"), "name", "one.weight"));
        free(a.text);
    }
    char *text = audited("--feed x=x.npy --feed target=y.npy", 0);
    CHECK_HAS(text, "nothing is rounded to 16 bits");
    free(text);
}

/* Backward reads codes of 8 bits: the loss is as without, the gradient is not,
   and a policy line takes a value's codes away. Rounding to 4 significant bits
   changes a number by 2 to 3 % on average. */
TEST_CASE(audit, codes_of_8_bits_count) {
    static const char wide[] =
        "model mlp(x: f32[64,64]) {\n"
        "  h = relu(Linear(x, units=64, scope=\"one\"))\n"
        "  h = relu(Linear(h, units=64, scope=\"two\"))\n"
        "  return y = Linear(h, units=64, scope=\"three\")\n"
        "}\n"
        "train mlp { loss = mse }\n";
    static const char *const precisions[] = {"fp32", "bf16"};
    write_npy("x.npy", 64, 64, 1);
    write_npy("y.npy", 64, 64, 1);
    for (int i = 0; i < 2; i++) {
        char options[60];
        JsonSpan same, with, list, key, item;
        int codes = 0;
        snprintf(options, sizeof options, "--keep f8 --precision %s",
                 precisions[i]);
        free(compiled(wide, options));
        Answer a = answer("--feed x=x.npy --feed target=y.npy --policy p.txt");
        REQUIRE(json_get(a.json, "without_codes", &same) &&
                json_get(a.json, "with", &with));
        CHECK(number(a.json, "own_loss") == number(a.json, "first_loss"));
        CHECK(number(a.json, "loss") == number(same, "loss"));
        double all = number(a.json, "gradient"),
               rest = number(same, "gradient");
        CHECK_MSG(all > 0.01 && all < 0.05, "%g", all);
        CHECK_MSG(i ? rest > 0 && rest < all : rest == 0, "%g", rest);
        REQUIRE(json_get(a.json, "roundings", &list));
        for (JsonIter it = json_iter(list); json_next(&it, &key, &item);) {
            if (!names(item, "dtype", "f8e4m3")) continue;
            CHECK(number(item, "loss") == 0 && number(item, "gradient") > 0);
            codes++;
        }
        CHECK_MSG(codes >= 2, "%d", codes);
        CHECK_MSG(number(with, "gradient") <= all / 2, "%g of %g",
                  number(with, "gradient"), all);
        free(a.text);
    }
}

/* Each rounding alone explains a part of the difference: none is a multiple of
   the whole, and together they explain it. */
TEST_CASE(audit, roundings_explain_the_whole) {
    write_npy("x.npy", 16, 8, 1);
    write_npy("y.npy", 16, 8, 1);
    free(compiled(perceptron, ""));
    Answer a = answer("--feed x=x.npy --feed target=y.npy");
    double all = number(a.json, "gradient"), sum = 0;
    JsonSpan list, key, item;
    REQUIRE(json_get(a.json, "roundings", &list));
    for (JsonIter it = json_iter(list); json_next(&it, &key, &item);) {
        double its = number(item, "gradient");
        CHECK_MSG(its <= 2 * all, "%g of %g", its, all);
        sum += its * its;
    }
    CHECK_MSG(sqrt(sum) >= all / 2 && sqrt(sum) <= 4 * all, "%g, %g", sqrt(sum),
              all);
    free(a.text);
}

/* The lines of the text, made again from the JSON. */
static const char says_again[] =
    "import json\n"
    "j, text = json.load(open('a.json')), open('a.txt').read()\n"
    "lines = ['loss      %.1e  (' % j['loss'], 'gradient  %.1e\\n' %\n"
    "         j['gradient'], 'first batch: loss %.9g, its step compiled anew "
    "'\n"
    "         '%.9g\\n' % (j['own_loss'], j['first_loss']),\n"
    "         ': %d batch' % j['batches']] + ['  ' + p for p in j['policy']]\n"
    "for p in j['parameters']:\n"
    "    lines.append('%8.1e  %s\\n' % (p['gradient'], p['name']))\n"
    "for r in j['roundings'][:20]:\n"
    "    lines.append('  %8.1e  %8.1e  %10d  %s %s %s  (%s' % (r['gradient'],\n"
    "                 r['loss'], r['bytes'], r['dtype'], r['part'],\n"
    "                 r['value'], r['node'] + ')' if r['node'] else\n"
    "                 'read by '))\n"
    "for line in lines: assert line in text, line\n"
    "p = [p['gradient'] for p in j['parameters']]\n"
    "assert min(p) <= j['gradient'] <= max(p), (p, j['gradient'])\n"
    "assert any(r['node'] != r['value'] for r in j['roundings'] if r['node'])\n"
    "print(len(lines), 'lines')\n";

TEST_CASE(audit, tells_both_people_and_tools) {
    static const char *const precisions[] = {"bf16", "fp16"};
    write_npy("x.npy", 32, 8, 1);
    write_npy("y.npy", 32, 8, 1);
    REQUIRE(test_write_file(test_tmp("a.py"), says_again, strlen(says_again)));
    for (int i = 0; i < 2; i++) {
        char options[100], *out;
        snprintf(options, sizeof options, "--precision %s", precisions[i]);
        free(compiled(perceptron, options));
        free(audited("--feed x=x.npy --feed target=y.npy >a.txt", 0));
        free(audited("--feed x=x.npy --feed target=y.npy --json >a.json", 0));
        int rc =
            test_command(&out, "cd '%s' && python3 a.py 2>&1", test_tmpdir());
        CHECK_MSG(rc == 0, "%s: %s", precisions[i], out);
        CHECK_HAS(out, " lines");
        free(out);
    }
}

TEST_CASE(audit, weights_are_those_loaded) {
    char *out;
    write_npy("x.npy", 16, 8, 1);
    write_npy("y.npy", 16, 8, 1);
    free(compiled(perceptron, "--optimizer sgd,lr=0.5"));
    CHECK(test_command(&out,
                       "cd '%s' && '%s' run m.so --feed x=x.npy --feed "
                       "target=y.npy --steps 20 --save w.st --quiet",
                       test_tmpdir(), test_ampc()) == 0);
    free(out);
    Answer a = answer("--feed x=x.npy --feed target=y.npy");
    Answer b = answer("--feed x=x.npy --feed target=y.npy --load w.st");
    CHECK(number(b.json, "own_loss") < number(a.json, "own_loss"));
    CHECK(number(b.json, "own_loss") == number(b.json, "first_loss"));
    free(a.text);
    free(b.text);
}

TEST_CASE(audit, refuses) {
    static const struct {
        const char *options, *says;
        int status;
    } rows[] = {
        {"", "input 'x' is not fed", 1},
        {"--feed x=x.npy --feed target=y.npy --steps 3", "unknown option", 2},
        {"--feed x=x.npy --feed target=y.npy --batches 0", "no number from 1",
         2},
        {"--feed x=x.npy --feed target=y.npy --objective dis",
         "none called "
         "'dis'",
         1},
        {"--feed x=x.npy --feed target=y.npy --policy m.so", "would overwrite",
         1},
    };
    write_npy("x.npy", 16, 8, 1);
    write_npy("y.npy", 16, 8, 1);
    free(compiled(perceptron, ""));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *out;
        int rc = test_command(&out, "cd '%s' && '%s' audit m.so %s 2>&1",
                              test_tmpdir(), test_ampc(), rows[i].options);
        CHECK_MSG(rc == rows[i].status, "%s: %d", rows[i].options, rc);
        CHECK_HAS(out, rows[i].says);
        free(out);
    }
    free(compiled(perceptron, "--precision f8"));
    char *text = audited("--feed x=x.npy --feed target=y.npy", 1);
    CHECK_HAS(text, "does not measure what --precision f8 rounds");
    free(text);
}

/* Training lowers a loss scale that overflows; audit measures at such a scale
   and does not call the gradient infinite. A static scale stays. */
TEST_CASE(audit, loss_scale_settles_as_in_training) {
    static const char feed[] = "--feed x=x.npy --feed target=y.npy";
    static const char line[] =
        "model line(x: f32[16,8]) { return y = Linear(x, "
        "units=8) }\ntrain line { loss = mse }\n";
    double scale = 0, first = 0;
    char *out, *log, said[60];
    write_npy("x.npy", 16, 8, 1);
    write_npy("y.npy", 16, 8, 1e4);
    free(compiled(line, "--precision fp16 --optimizer sgd,lr=1e-9"));
    out = audited(feed, 0);
    const char *at = strstr(out, "loss scale ");
    CHECK_MSG(at &&
                  sscanf(at, "loss scale %lf: at the module's %lf", &scale,
                         &first) == 2 &&
                  scale < first,
              "%s", out);
    CHECK_MSG(!strstr(out, "inf"), "%s", out);
    snprintf(said, sizeof said, "\"scale\":%g,", scale);
    CHECK(test_command(&log,
                       "cd '%s' && '%s' run m.so %s --steps 40 --log log.jsonl "
                       "--quiet && tail -n 1 log.jsonl",
                       test_tmpdir(), test_ampc(), feed) == 0);
    CHECK_HAS(log, said);
    free(out), free(log);
    free(compiled(line, "--precision fp16 --loss-scale static=65536"));
    out = audited(feed, 0);
    CHECK_HAS(out,
              "at loss scale 65536 the gradient overflows: training skips");
    CHECK_MSG(!strstr(out, "nan"), "%s", out);
    free(out);
}

/* fp32 itself has no roundings, so that there is nothing to compare. */
TEST_CASE(audit, infinite_in_fp32_is_told) {
    write_npy("x.npy", 16, 8, 1e38);
    write_npy("y.npy", 16, 8, 1);
    free(compiled(perceptron, ""));
    char *out = audited("--feed x=x.npy --feed target=y.npy", 1);
    CHECK_HAS(out, "not finite in fp32");
    free(out);
}
