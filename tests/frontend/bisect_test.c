/* SPDX-License-Identifier: Apache-2.0 */
/* bisect_test.c: `ampc bisect` names the only difference between two
   modules: the op, constant, option or compiled code that was changed. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "runtime/base/json.h"
#include "tests/harness.h"

/* ---- models of which one line is changed --------------------------------- */

static uint32_t drawn(uint32_t *state, uint32_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

/* A line of a model, and the same line with another op or constant; %s: the
   value before, %d: an older one. */
static const struct {
    const char *text, *changed;
} forms[] = {
    {"tanh %%v%d", "sigmoid %%v%d"},
    {"mul %%v%d, 0.75", "mul %%v%d, 0.875"},
    {"add %%v%d, 0.125", "add %%v%d, 0.25"},
    {"matmul %%v%d, %%w", "matmul %%v%d, %%u"},
    {"sigmoid %%v%d", "tanh %%v%d"},
    {"softmax %%v%d {axis=1}", "softmax %%v%d {axis=0}"},
    {"add %%v%d, %%x", "sub %%v%d, %%x"},
    {"matmul %%v%d, %%u", "matmul %%v%d, %%u {trans_b=1}"},
    {"mul %%v%d, %%x", "add %%v%d, %%x"},
    {"gelu %%v%d", "elu %%v%d"},
    {"max %%v%d, 0.0625", "max %%v%d, 0.1875"},
    {"exp %%v%d", "cos %%v%d"},
};
enum { FORMS = sizeof forms / sizeof *forms, LINES = 16 };

/* Changes line `changed`; -1: none. */
static void put_model(StrBuf *sb, uint32_t seed, int changed) {
    uint32_t state = seed * 7919 + 1;
    sb_puts(sb, "graph forward(%x: f32[8,16]) {\n"
                "  param %w: f32[16,16] = normal(1, 0.25)\n"
                "  param %u: f32[16,16] = normal(2, 0.25)\n"
                "  %v0 = matmul %x, %w\n");
    for (int i = 1; i <= LINES; i++) {
        uint32_t form = drawn(&state, FORMS);
        sb_printf(sb, "  %%v%d = ", i);
        sb_printf(sb, changed == i ? forms[form].changed : forms[form].text,
                  i - 1);
        sb_puts(sb, "\n");
    }
    sb_printf(sb, "  return y=%%v%d\n}\n", LINES);
}

static void compile(const char *module, const char *text, const char *options) {
    char *out;
    REQUIRE(test_write_file(test_tmp("m.amp"), text, strlen(text)));
    int rc = test_command(&out,
                          "cd '%s' && AMPC_LIBNVRTC=none '%s' m.amp -o %s.so "
                          "--target cpu:x86-64-v2 %s",
                          test_tmpdir(), test_ampc(), module, options);
    CHECK_MSG(rc == 0, "%s\n%s", text, out);
    free(out);
}

static void write_npy(const char *name) {
    StrBuf sb = {0};
    uint32_t state = (uint32_t)name[0];
    npy_header(&sb, AMPC_DTYPE_F32, 2, (int64_t[]){32, 16});
    for (int i = 0; i < 32 * 16; i++) {
        float v = (float)drawn(&state, 4096) / 2048 - 1;
        sb_putn(&sb, (char *)&v, sizeof v);
    }
    REQUIRE(test_write_file(test_tmp(name), sb.data, sb.len));
    sb_free(&sb);
}

static char *bisected(const char *options, int *status) {
    char *out;
    *status = test_command(&out,
                           "cd '%s' && '%s' bisect a.so b.so --feed x=x.npy "
                           "--feed target=t.npy %s",
                           test_tmpdir(), test_ampc(), options);
    return out;
}

static void field(const char *json, const char *key, char *to, size_t n) {
    JsonSpan all, v;
    *to = 0;
    if (CHECK_MSG(json_parse(json, strlen(json), &all), "%s", json) &&
        CHECK_MSG(json_get(all, key, &v), "no '%s' in %s", key, json))
        json_text(v, to, n);
}

static double number_of(const char *json, const char *key) {
    char text[40];
    snprintf(text, sizeof text, "\"%s\":", key);
    const char *at = strstr(json, text);
    return at ? strtod(at + strlen(text), NULL) : INFINITY;
}

/* ---- planted changes ----------------------------------------------------- */

/* Changes that change no bit of any value, as max(x, 0.2) for larger
   numbers. */
static int no_effect;

static void plant(uint32_t seed, int line, const char *options) {
    char value[100], node[100], cause[100], name[16];
    StrBuf text = {0};
    int status;
    put_model(&text, seed, line);
    compile("b", text.data, options);
    char *out = bisected("--json", &status);
    if (status == 0) { /* less than the tolerance, or no difference */
        free(out);
        out = bisected("--json --tolerance 0", &status);
    }
    if (status == 0) no_effect++;
    CHECK_MSG(status <= 1, "seed %u, line %d, %s: %d %s", seed, line, options,
              status, out);
    if (status == 1) {
        field(out, "value", value, sizeof value);
        field(out, "node", node, sizeof node);
        field(out, "cause", cause, sizeof cause);
        snprintf(name, sizeof name, "v%d", line);
        CHECK_MSG(!strcmp(node, name) || !strcmp(value, name),
                  "seed %u, line %d, %s: named %s of %s\n%s\n%s", seed, line,
                  options, value, node, text.data, out);
        CHECK_MSG(!strcmp(cause, "model"), "seed %u, line %d: %s", seed, line,
                  out);
        CHECK_MSG(number_of(out, "apart") > number_of(out, "limit"), "%s", out);
    }
    free(out);
    sb_free(&text);
}

static void plant_all(int models) {
    static const char *const options[] = {"--loss mse --precision fp32",
                                          "--loss mse --precision bf16"};
    write_npy("x.npy");
    write_npy("t.npy");
    for (int i = 0; i < models; i++) {
        StrBuf text = {0};
        put_model(&text, (uint32_t)i, -1);
        compile("a", text.data, options[i % 2]);
        sb_free(&text);
        for (int line = 1; line <= LINES; line++)
            plant((uint32_t)i, line, options[i % 2]);
    }
    CHECK_MSG(no_effect <= models, "%d", no_effect);
}

/* script/test --slow runs more of them. */
TEST_CASE(bisect, names_each_planted_change) { plant_all(test_slow() ? 7 : 2); }

/* ---- options, weights, code ---------------------------------------------- */

static void compile_pair(const char *a, const char *b) {
    StrBuf text = {0};
    write_npy("x.npy");
    write_npy("t.npy");
    put_model(&text, 3, -1);
    compile("a", text.data, a);
    compile("b", text.data, b);
    sb_free(&text);
}

TEST_CASE(bisect, equal_modules_do_not_part) {
    int status;
    compile_pair("--loss mse", "--loss mse --no-fuse");
    char *out = bisected("--steps 12 --tolerance 0", &status);
    CHECK_MSG(status == 0, "%s", out);
    CHECK_HAS(out, "no difference above 0 in 12 steps");
    free(out);
}

TEST_CASE(bisect, names_options) {
    static const struct {
        const char *a, *b, *value, *cause;
    } rows[] = {
        {"sgd,lr=0.1", "sgd,lr=0.2", "ampc.lr", "start"},
        {"adamw,lr=0.1", "adamw,lr=0.1,beta2=0.99", "pow", "model"},
        {"sgd,lr=0.1,momentum=0.5", "sgd,lr=0.1,momentum=0.75", "w", "model"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char a[80], b[80], value[100], cause[100];
        int status;
        snprintf(a, sizeof a, "--loss mse --optimizer %s", rows[i].a);
        snprintf(b, sizeof b, "--loss mse --optimizer %s", rows[i].b);
        compile_pair(a, b);
        char *out = bisected("--json", &status);
        CHECK_MSG(status == 1, "%s", out);
        field(out, "value", value, sizeof value);
        field(out, "cause", cause, sizeof cause);
        CHECK_HAS(value, rows[i].value);
        CHECK_STR(cause, rows[i].cause);
        free(out);
    }
}

TEST_CASE(bisect, two_precisions_part_by_rounding_alone) {
    int status;
    compile_pair("--loss mse --precision fp32", "--loss mse --precision bf16");
    char *out = bisected("--tolerance 0.5", &status);
    CHECK_MSG(status == 0, "%s", out);
    free(out);
    out = bisected("--tolerance 1e-4", &status);
    CHECK_MSG(status == 1, "%s", out);
    CHECK_HAS(out, "step 1, program train, value ");
    free(out);
}

/* Gradients of fp16 are multiplied by the loss scale. */
TEST_CASE(bisect, a_loss_scale_is_no_difference) {
    static const char *const pairs[][2] = {{"fp32", "fp16"}, {"fp16", "bf16"}};
    for (int i = 0; i < 2; i++) {
        char a[80], b[80];
        int status;
        snprintf(a, sizeof a, "--loss mse --precision %s", pairs[i][0]);
        snprintf(b, sizeof b, "--loss mse --precision %s", pairs[i][1]);
        compile_pair(a, b);
        char *out = bisected("--tolerance 0.2 --steps 3", &status);
        CHECK_MSG(status == 0, "%s, %s: %s", a, b, out);
        free(out);
    }
}

/* The gradients of a bias in front of a batch norm, and of the keys' bias of
   attention, are 0: what modules compute is nothing but rounding error. */
TEST_CASE(bisect, rounding_alone_is_nobodys_fault) {
    static const char model[] =
        "model m(x: f32[8,16]) {\n"
        "  h = tanh(BatchNorm(Linear(x, units=16, scope=\"a\"), "
        "scope=\"n\"))\n"
        "  q = Linear(h, units=16, scope=\"q\")\n"
        "  k = Linear(h, units=16, scope=\"k\")\n"
        "  return y = softmax(matmul(q, k, trans_b=1)) @ h\n"
        "}\n";
    static const char *const pairs[][2] = {
        {"fp32", "fp16"}, {"fp32", "bf16"}, {"fp16", "bf16"}};
    write_npy("x.npy");
    write_npy("t.npy");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char a[80], b[80];
        int status;
        snprintf(a, sizeof a, "--loss mse --precision %s", pairs[i][0]);
        snprintf(b, sizeof b, "--loss mse --precision %s", pairs[i][1]);
        compile("a", model, a);
        compile("b", model, b);
        char *out = bisected("--steps 2", &status);
        CHECK_MSG(status == 0 || strstr(out, "amplifies their difference"),
                  "%s, %s: %s", a, b, out);
        CHECK_HAS(out, "left out, as nothing but rounding error");
        CHECK_HAS(out, "a.bias");
        CHECK_HAS(out, "k.bias");
        free(out);
    }
}

/* Rounding decides which of nearly equal elements of a window is the largest,
   and the gradient goes to another place: no module is at fault. What is
   changed behind such an index is still named. */
TEST_CASE(bisect, rounding_moves_the_largest_element) {
    static const char model[] =
        "model m(x: f32[8,16]) {\n"
        "  h = Conv2d(reshape(x, shape=[8,1,4,4]), channels=128, size=3, "
        "pad=1, scope=\"a\")\n"
        "  h = tanh(Conv2d(h, channels=64, size=3, pad=1, scope=\"b\"))\n"
        "  h = Conv2d(relu(max_pool2d(h)) * %s, channels=16, size=3, pad=1, "
        "scope=\"c\")\n"
        "  return y = Linear(reshape(h, shape=[8,64]), units=16)\n"
        "}\n";
    static const char *const pairs[][2] = {
        {"fp32", "bf16"}, {"bf16", "fp32"}, {"fp16", "bf16"}};
    char a[80], b[80], text[600], *out;
    int status;
    write_npy("x.npy");
    write_npy("t.npy");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        snprintf(a, sizeof a, "--loss mse --precision %s", pairs[i][0]);
        snprintf(b, sizeof b, "--loss mse --precision %s", pairs[i][1]);
        snprintf(text, sizeof text, model, "1.5");
        compile("a", text, a);
        compile("b", text, b);
        out = bisected("--steps 2", &status);
        CHECK_MSG(status == 0, "%s, %s: %s", a, b, out);
        CHECK_HAS(out, "left out, as rounding decides which of nearly equal");
        CHECK_HAS(out, "max_pool2d.index");
        free(out);
    }
    snprintf(text, sizeof text, model, "1.75");
    compile("b", text, b);
    out = bisected("--json", &status);
    CHECK_MSG(status == 1, "%s", out);
    CHECK_HAS(out, "\"cause\":\"model\"");
    CHECK_HAS(out, "= mul %");
    CHECK_HAS(out, "\"chosen\":[\"max_pool2d.index\"]");
    free(out);
}

TEST_CASE(bisect, other_initial_weights_are_named) {
    int status;
    char *out;
    StrBuf text = {0};
    compile_pair("--loss mse", "--loss mse");
    put_model(&text, 3, -1);
    char *at = strstr(text.data, "normal(2,");
    REQUIRE(at);
    at[7] = '9';
    compile("b", text.data, "--loss mse");
    sb_free(&text);
    out = bisected("", &status);
    CHECK(status == 1);
    CHECK_HAS(out, "before the first step, variable u: ");
    free(out);
    CHECK(test_command(&out,
                       "cd '%s' && '%s' run a.so --feed x=x.npy --feed "
                       "target=t.npy --steps 2 --save w.st --quiet",
                       test_tmpdir(), test_ampc()) == 0);
    free(out);
    out = bisected("--load w.st", &status); /* from one checkpoint */
    CHECK_MSG(status == 0, "%s", out);
    free(out);
}

/* The constant of a kernel is changed only in the machine code of B. */
TEST_CASE(bisect, code_that_is_not_what_the_ir_says_is_blamed) {
    static const char model[] =
        "graph forward(%x: f32[8,16]) {\n"
        "  param %w: f32[16,16] = normal(1, 0.25)\n"
        "  %h = matmul %x, %w\n  %t = tanh %h\n"
        "  %s = mul %t, 0.7734375\n  %y = matmul %s, %w\n"
        "  return %y\n}\n";
    static const float from = 0.7734375f, to = 0.5f;
    size_t n, changed = 0;
    int status;
    write_npy("x.npy");
    write_npy("t.npy");
    compile("a", model, "--loss mse --precision fp32");
    char *file = test_read_file(test_tmp("a.so"), &n);
    REQUIRE(file);
    for (size_t i = 0; i + sizeof from <= n; i++)
        if (!memcmp(file + i, &from, sizeof from)) {
            memcpy(file + i, &to, sizeof to);
            changed++;
        }
    REQUIRE(changed > 0);
    REQUIRE(test_write_file(test_tmp("b.so"), file, n));
    free(file);
    char *out = bisected("", &status);
    CHECK_MSG(status == 1, "%s", out);
    CHECK_HAS(out, "value %s of node s");
    CHECK_HAS(out, "B stores other numbers than its IR says");
    CHECK_HAS(out, "which differs most, B stores ");
    free(out);
}

TEST_CASE(bisect, refuses) {
    int status;
    char *out;
    compile_pair("--loss mse", "--loss none");
    out = bisected("", &status);
    CHECK(status == 1);
    CHECK_HAS(out, "compiled without a loss");
    free(out);
    out = bisected("--steps 0", &status);
    CHECK(status == 2);
    CHECK_HAS(out, "expected a number from 1");
    free(out);
    CHECK(test_command(&out, "cd '%s' && '%s' bisect a.so", test_tmpdir(),
                       test_ampc()) == 2);
    CHECK_HAS(out, "two modules are needed");
    free(out);
    /* modules first, then data */
    CHECK(test_command(&out,
                       "cd '%s' && '%s' bisect a.so absent.so --feed x=no.npy",
                       test_tmpdir(), test_ampc()) == 1);
    CHECK_HAS(out, "absent.so");
    free(out);
}
