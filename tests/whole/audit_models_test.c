/* SPDX-License-Identifier: Apache-2.0 */
/* audit_models_test.c: the policy lines that `ampc audit` writes halve the
   difference from fp32 at the bytes that it says, in models of models/; three
   of the five run with --slow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/data/array.h"
#include "runtime/base/json.h"
#include "tests/support/compiled.h"
#include "tests/support/drawn.h"
#include "tests/tolerance.h"
typedef struct Audited {
    double loss, gradient, bytes;                /* of the module */
    double with_loss, with_gradient, with_bytes; /* promised with the lines */
} Audited;

/* "--feed NAME=FILE" for an input; writes the file. */
static void add_feed(StrBuf *feeds, const ampc_tensor_info *t) {
    StrBuf sb = {0};
    char file[160], name[200];
    bool whole = t->dtype == AMPC_DTYPE_I64;
    snprintf(name, sizeof name, "%s_%s", whole ? "i2" : "n", t->name);
    snprintf(file, sizeof file, "%s.npy", t->name);
    npy_header(&sb, (ampc_dtype)t->dtype, t->rank, t->shape);
    void *x = drawn_numbers(name, 1, t->bytes / (whole ? 8 : 4), whole);
    sb_putn(&sb, x, t->bytes);
    free(x);
    REQUIRE(test_write_file(test_tmp(file), sb.data, sb.len));
    sb_printf(feeds, " --feed '%s=%s'", t->name, test_tmp(file));
    sb_free(&sb);
}

static double number(JsonSpan v, const char *key) {
    double x = NAN;
    JsonSpan at;
    if (CHECK_MSG(json_get(v, key, &at), "no '%s'", key)) json_double(at, &x);
    return x;
}

/* Runs `ampc audit` on the module; its lines go to lines.txt. */
static Audited audited(const Compiled *c) {
    StrBuf feeds = {0};
    ampc_tensor_info t = {.size = sizeof t};
    JsonSpan all, with;
    char *out;
    for (uint32_t i = 0; !c->api->input(c->api->module, "train", i, &t); i++)
        add_feed(&feeds, &t);
    int rc = test_command(&out,
                          "cd '%s' && '%s' audit '%s' --json %s "
                          "--policy lines.txt --batches 1",
                          test_tmpdir(), test_ampc(), c->path, feeds.data);
    sb_free(&feeds);
    CHECK_MSG(rc == 0, "%s", out);
    REQUIRE(rc == 0 && json_parse(out, strlen(out), &all));
    Audited a = {.loss = number(all, "loss"),
                 .gradient = number(all, "gradient"),
                 .bytes = number(all, "bytes")};
    if (CHECK_MSG(json_get(all, "with", &with), "%s", out)) {
        a.with_loss = number(with, "loss");
        a.with_gradient = number(with, "gradient");
        a.with_bytes = number(with, "bytes");
    }
    free(out);
    return a;
}

/* The lines are applied by compiling again, and that module is audited. */
static void halved(const char *model, const char *options) {
    char with_lines[400];
    Compiled c = compile_file(test_data_path(model), options);
    Audited a = audited(&c);
    compiled_close(&c);
    CHECK_MSG(a.with_loss <= a.loss / 2, "%s: %g of %g", model, a.with_loss,
              a.loss);
    CHECK_MSG(a.with_gradient <= a.gradient / 2, "%s: %g of %g", model,
              a.with_gradient, a.gradient);
    CHECK(a.with_bytes > a.bytes);
    snprintf(with_lines, sizeof with_lines, "%s --amp-policy '%s'", options,
             test_tmp("lines.txt"));
    c = compile_file(test_data_path(model), with_lines);
    Audited b = audited(&c);
    compiled_close(&c);
    CHECK_MSG(fabs(b.loss - a.with_loss) <= TOL_AUDIT * a.loss,
              "%s: %g, promised %g", model, b.loss, a.with_loss);
    CHECK_MSG(fabs(b.gradient - a.with_gradient) <= TOL_AUDIT * a.gradient,
              "%s: %g, promised %g", model, b.gradient, a.with_gradient);
    CHECK_MSG(b.bytes == a.with_bytes, "%s: %g bytes, promised %g", model,
              b.bytes, a.with_bytes);
}

TEST_CASE(audit_models, cnn) {
    halved("models/cnn.amp", "--quick --dim B=8 --dim W=8");
}

TEST_CASE(audit_models, resnet18) {
    if (test_slow())
        halved("models/resnet18.amp", "--quick --dim B=4 --dim W=8");
}

TEST_CASE(audit_models, vit) {
    if (test_slow())
        halved("models/vit.amp",
               "--quick --dim B=4 --dim D=48 --dim HEADS=2 --dim L=2");
}

TEST_CASE(audit_models, bert) {
    halved("models/bert.amp", "--quick --dim B=2 --dim T=16 --dim VOCAB=64 "
                              "--dim D=32 --dim HEADS=2 --dim L=1");
}

TEST_CASE(audit_models, an_onnx_file) {
    if (test_slow())
        halved("models/mnist_cnn.onnx",
               "--quick --dim batch=8 --loss cross_entropy --precision fp16");
}
