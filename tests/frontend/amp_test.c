/* SPDX-License-Identifier: Apache-2.0 */
/* amp_test.c: compile options change a text's model. */
#include <string.h>

#include "frontend/cli/options_text.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "tests/harness.h"

#define NORMS                                                                  \
    "model m(x: f32[4,3]) {\n"                                                 \
    "  a = BatchNorm(x, scope=\"one\")\n  b = BatchNorm(a, scope=\"two\")\n"   \
    "  return y = b\n}\n"
#define DROPS                                                                  \
    "model m(x: f32[4,3]) {\n  a = Dropout(x, ratio=0.5)\n"                    \
    "  b = Dropout(a, ratio=0.5)\n  c = relu(b)\n  return y = c, z = b\n}\n"
#define WEIGHTS                                                                \
    "model m(x: f32[2]) {\n  param w: f32[2]\n  param v: f32[2]\n"             \
    "  buffer n: i64[2]\n  return y = x * w * v\n}\n"

typedef struct Row {
    const char *text;
    const char *set[4][2]; /* options */
    const char *want;      /* a part of the message, or of the IR */
    const char * not ;     /* not in the IR */
} Row;

static const Row rows[] = {
    {"graph g(%x: f32[2]) { return y=%x }", {{NULL}}, "graph forward(", NULL},
    {"graph g(%x: f32[2]) { return y=%x }\ngraph h(%x: f32[2]) { return %x }",
     {{NULL}},
     "m.amp: error: graphs 'g' and 'h': a file has one model; if 'g' is it, "
     "call it 'forward'",
     NULL},
    {"graph g(%x: f32[2]) { return y=%x }\n"
     "graph forward(%x: f32[2]) { return %x }",
     {{NULL}},
     "graph g(",
     NULL},
    {"graph predict(%x: f32[2]) { return y=%x }\n"
     "graph g(%x: f32[2]) { return %x }",
     {{NULL}},
     "graph 'g' is neither a program nor named 'forward', beside programs that "
     "were made from a model",
     NULL},
    {"graph predict(%x: f32[2]) { return y=%x }",
     {{NULL}},
     "graph predict(",
     "forward"},
    {"graph predict(%x: f32[2]) { return y=%x }",
     {{"--loss", "mse"}},
     "a loss: no graph of the file is a model, called 'forward'",
     NULL},
    {"graph predict(%x: f32[2]) { return y=%x }",
     {{"--freeze", "*"}},
     "--train and --freeze: no graph",
     NULL},
    {"graph predict(%x: f32[2]) { return y=%x }",
     {{"--batchnorm", "frozen"}},
     "--batchnorm: no graph",
     NULL},
    {"graph predict(%x: f32[2]) { return y=%x }",
     {{"--dropout", "off"}},
     "--dropout: no graph",
     NULL},
    {WEIGHTS, {{NULL}}, "param %w: f32[2], %v: f32[2]", NULL},
    {WEIGHTS, {{"--freeze", "w"}}, "frozen %w: f32[2]", "frozen %v"},
    {WEIGHTS, {{"--freeze", "w"}}, "param %v: f32[2]", NULL},
    {WEIGHTS, {{"--freeze", "*"}, {"--train", "v"}}, "param %v: f32[2]", NULL},
    {WEIGHTS, {{"--freeze", "n"}}, "--freeze 'n' matches no parameter", NULL},
    {WEIGHTS, {{"--freeze", "q*"}}, "--freeze 'q*' matches no parameter", NULL},
    {WEIGHTS, {{"--train", "q*"}}, "--train 'q*' matches no parameter", NULL},
    {NORMS, {{NULL}}, "write %two.running_mean", NULL},
    {NORMS, {{NULL}}, "write %one.running_mean", NULL},
    {NORMS, {{"--batchnorm", "frozen"}}, "return y=%b", "write "},
    {NORMS,
     {{"--batchnorm", "frozen:one.*"}},
     "write %two.running_mean",
     "write %one"},
    {NORMS,
     {{"--batchnorm", "frozen:b"}},
     "write %one.running_var",
     "write %two"},
    {NORMS,
     {{"--batchnorm", "frozen:three"}},
     "--batchnorm frozen:three matches no batch_norm",
     NULL},
    {WEIGHTS, {{"--batchnorm", "frozen"}}, "return y", NULL},
    {NORMS,
     {{"--batchnorm", "train:unbiased"}},
     "--batchnorm train:unbiased: this is for ONNX models",
     NULL},
    {NORMS,
     {{"--batchnorm", "train:population"}},
     "--batchnorm train:population: this is for ONNX models",
     NULL},
    {NORMS,
     {{"--batchnorm", "train:momentum"}},
     "--batchnorm train:momentum: this is for ONNX models",
     NULL},
    {NORMS, {{"--batchnorm", "train"}}, "write %one.running_mean", NULL},
    {NORMS,
     {{"--sync-batchnorm", ""}},
     "--sync-batchnorm: this is for ONNX models",
     NULL},
    {NORMS,
     {{"--replace-head", "y=5"}},
     "--replace-head is for ONNX models: a .amp file is edited",
     NULL},
    {"graph forward(%x: f32[64,64]) on cuda {\n"
     "  %c = cast %x : f8e4m3[64,64]\n"
     "  %y = matmul %c, %c : f32[64,64]\n  return %y\n}",
     {{NULL}},
     "graph 'forward' is on cuda: leave 'on cuda' out and give --target cuda",
     NULL},
    {DROPS, {{NULL}}, "dropout %a", NULL},
    {DROPS, {{"--dropout", "off"}}, "%c = relu %x", "dropout"},
    {DROPS, {{"--dropout", "off"}}, "return y=%c, z=%x", "dropout"},
};

static void check_row(const Row *r) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o;
    Module *m = NULL;
    StrBuf got = {0};
    bool used;
    options_init(&o, a);
    for (int i = 0; i < 4 && r->set[i][0]; i++)
        if (options_set(&o, &d, r->set[i][0], r->set[i][1], &used) != OK)
            FAIL("%s", d.text.data);
    Status s =
        import_amp(a, &d, "m.amp", r->text, strlen(r->text), &o, false, &m);
    if (s == OK) print_module(m, &got);
    const char *text = s == OK ? got.data : d.text.data;
    CHECK_MSG(strstr(text, r->want), "%s\n%s %s gives\n%s\nwithout %s", r->text,
              r->set[0][0] ? r->set[0][0] : "",
              r->set[0][0] ? r->set[0][1] : "", text, r->want);
    if (r->not ) CHECK_MSG(!strstr(text, r->not ), "%s\nhas %s", text, r->not );
    sb_free(&got);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(amp, options_change_a_text) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i]);
}
