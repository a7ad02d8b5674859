/* SPDX-License-Identifier: Apache-2.0 */
/* arm64_slow_test.c: modules of --target cpu:armv8-a under qemu-user: every op
   beside the interpreter, training beside PyTorch's
   traces.  qemu's arithmetic is a model of the processor's.                 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "tests/support/foreign.h"
#include "tests/support/ops_bench.h"
#include "tests/support/trace_feed.h"
#include "tests/tolerance.h"

typedef struct Bytes {
    char *data;
    size_t n;
} Bytes;

static void add(Bytes *b, const void *p, size_t n) {
    b->data = realloc(b->data, b->n + n + 1);
    memcpy(b->data + b->n, p, n);
    b->n += n;
}

/* ---- ops ----------------------------------------------------------------- */

TEST_CASE(arm64, every_op_has_the_values_of_the_interpreter) {
    OpsBench b = ops_bench_new();
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    const char *text = ops_text(&b);
    char *amp = strdup(test_tmp("ops.amp"));
    REQUIRE(test_write_file(amp, text, strlen(text)));
    char *module = foreign_compile(amp, "--precision fp32");
    Bytes in = {NULL, 0};
    for (int i = 0; i < d.nin; i++) add(&in, d.in[i].data, d.in[i].bytes);
    size_t one_n, three_n;
    char *one = foreign_run(module, 1, "predict", in.data, in.n, &one_n);
    char *three = foreign_run(module, 3, "predict", in.data, in.n, &three_n);
    REQUIRE(one_n == three_n);
    CHECK(!memcmp(one, three, one_n));
    const char *p = one;
    for (int i = 0; i < d.nout; p += d.out[i++].bytes)
        memcpy(d.out[i].data, p, d.out[i].bytes);
    REQUIRE(p == one + one_n);
    ops_compare(&b, want, &d);
    free(one), free(three), free(in.data);
    free(module), free(amp);
    arena_free(b.a);
}

/* ---- training ------------------------------------------------------------ */

static void check_trace(const char *name) {
    char model[200], path[200], options[600];
    size_t size, n1, n3;
    snprintf(path, sizeof path, "tests/traces/%s/options.txt", name);
    char *given = test_read_file(path, &size);
    snprintf(options, sizeof options, "--precision fp32 %.*s",
             (int)strcspn(given, "\n"), given);
    snprintf(path, sizeof path, "tests/traces/%s/trace.safetensors", name);
    Trace t = trace_read(path);
    snprintf(path, sizeof path, "tests/traces/%s/model.onnx", name);
    snprintf(model, sizeof model, "%s", test_data_path(path));
    char *module = foreign_compile(model, options);
    const TraceTensor *loss = trace_find(&t, "loss");
    const TraceTensor *norm = trace_find(&t, "grad_norm");
    Bytes in = {NULL, 0};
    for (long i = 0; i < loss->dim[0]; i++) {
        TraceFeed f = trace_feed(&t, i);
        for (int k = 0; k < 2; k++) add(&in, f.in[k].data, f.in[k].bytes);
        trace_feed_free(&f);
    }
    char *one = foreign_run(module, 1, "train", in.data, in.n, &n1);
    char *three = foreign_run(module, 3, "train", in.data, in.n, &n3);
    REQUIRE(n1 == n3 && n1 == (size_t)loss->dim[0] * 16);
    CHECK(!memcmp(one, three, n1));
    for (long i = 0; i < loss->dim[0]; i++) {
        double got[2];
        memcpy(got, one + 16 * i, sizeof got);
        CHECK_REL(got[0], trace_f64(loss, i), TOL_TRACE_LOSS);
        CHECK_REL(got[1], trace_f64(norm, i), TOL_TRACE_NORM);
    }
    free(one), free(three), free(in.data), free(module), free(given);
    trace_free(&t);
}

TEST_CASE(arm64, mlp_trains_as_pytorch) { check_trace("mlp_dynamo_adamw"); }
TEST_CASE(arm64, cnn_trains_as_pytorch) { check_trace("cnn_dynamo_slow"); }
TEST_CASE(arm64, gpt_trains_as_pytorch) { check_trace("gpt_dynamo_adamw"); }
