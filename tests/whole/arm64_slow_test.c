/* SPDX-License-Identifier: Apache-2.0 */
/* arm64_slow_test.c: modules for the levels of AArch64 under qemu-user: every
   op beside the interpreter, training beside PyTorch's traces, bf16 with bfdot
   beside bf16 without.  qemu's arithmetic is a model of the processor's.    */
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

static void check_ops(const char *target) {
    OpsBench b = ops_bench_new();
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    const char *text = ops_text(&b);
    char *amp = strdup(test_tmp("ops.amp"));
    REQUIRE(test_write_file(amp, text, strlen(text)));
    char *module = foreign_compile(amp, target, "--precision fp32");
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

TEST_CASE(arm64, every_op_has_the_values_of_the_interpreter) {
    check_ops("cpu:armv8-a");
}

TEST_CASE(arm64, every_op_with_bfdot_has_the_values_of_the_interpreter) {
    check_ops("cpu:armv8.6-a+bf16");
}

/* ---- training ------------------------------------------------------------ */

/* Model and batches of tests/traces/NAME. */
typedef struct Example {
    char model[1000], options[500];
    Trace t;
    Bytes in;
} Example;

static Example example(const char *name) {
    Example x = {.in = {NULL, 0}};
    char path[200];
    size_t size;
    snprintf(path, sizeof path, "tests/traces/%s/options.txt", name);
    char *given = test_read_file(path, &size);
    snprintf(x.options, sizeof x.options, "%.*s", (int)strcspn(given, "\n"),
             given);
    snprintf(path, sizeof path, "tests/traces/%s/trace.safetensors", name);
    x.t = trace_read(path);
    snprintf(path, sizeof path, "tests/traces/%s/model.onnx", name);
    snprintf(x.model, sizeof x.model, "%s", test_data_path(path));
    for (long i = 0; i < trace_find(&x.t, "loss")->dim[0]; i++) {
        TraceFeed f = trace_feed(&x.t, i);
        for (int k = 0; k < 2; k++) add(&x.in, f.in[k].data, f.in[k].bytes);
        trace_feed_free(&f);
    }
    free(given);
    return x;
}

static void example_free(Example *x) {
    free(x->in.data);
    trace_free(&x->t);
}

static char *module_of(const Example *x, const char *target,
                       const char *precision) {
    char options[600];
    snprintf(options, sizeof options, "%s --precision %s", x->options,
             precision);
    return foreign_compile(x->model, target, options);
}

/* Loss and norm of the gradients of each step, as fp64. */
static char *trained(const Example *x, const char *module, int threads) {
    size_t n;
    char *got = foreign_run(module, threads, "train", x->in.data, x->in.n, &n);
    REQUIRE(n == (size_t)trace_find(&x->t, "loss")->dim[0] * 16);
    return got;
}

static void check_threads(const Example *x, const char *module,
                          const char *one) {
    char *three = trained(x, module, 3);
    CHECK(!memcmp(one, three, (size_t)trace_find(&x->t, "loss")->dim[0] * 16));
    free(three);
}

static void check_trace(const char *name) {
    Example x = example(name);
    char *module = module_of(&x, "cpu:armv8-a", "fp32");
    const TraceTensor *loss = trace_find(&x.t, "loss");
    const TraceTensor *norm = trace_find(&x.t, "grad_norm");
    char *one = trained(&x, module, 1);
    check_threads(&x, module, one);
    for (long i = 0; i < loss->dim[0]; i++) {
        double got[2];
        memcpy(got, one + 16 * i, sizeof got);
        CHECK_REL(got[0], trace_f64(loss, i), TOL_TRACE_LOSS);
        CHECK_REL(got[1], trace_f64(norm, i), TOL_TRACE_NORM);
    }
    free(one), free(module);
    example_free(&x);
}

TEST_CASE(arm64, mlp_trains_as_pytorch) { check_trace("mlp_dynamo_adamw"); }
TEST_CASE(arm64, cnn_trains_as_pytorch) { check_trace("cnn_dynamo_slow"); }
TEST_CASE(arm64, gpt_trains_as_pytorch) { check_trace("gpt_dynamo_adamw"); }

/* ---- levels -------------------------------------------------------------- */

/* One module with both levels takes what the processor and AMPC_ISA allow; the
   first step of either is as near to the other as one device is to another. */
static void check_levels(const char *name, bool multiplies_pairs) {
    static const double near[] = TOL_DEVICE_BF16;
    Example x = example(name);
    size_t size = (size_t)trace_find(&x.t, "loss")->dim[0] * 16;
    char *both = module_of(&x, "cpu:armv8-a,cpu:armv8.6-a+bf16", "bf16");
    char *old = module_of(&x, "cpu:armv8-a", "bf16");
    char *dots = trained(&x, both, 1), *plain = trained(&x, old, 1);
    check_threads(&x, both, dots);
    foreign_machine("cortex-a72", NULL);
    char *there = trained(&x, both, 1);
    foreign_machine(NULL, "v8");
    char *asked = trained(&x, both, 1);
    foreign_machine(NULL, NULL);
    CHECK(!memcmp(there, plain, size));
    CHECK(!memcmp(asked, plain, size));
    CHECK(!!memcmp(dots, plain, size) == multiplies_pairs);
    double a[2], b[2];
    memcpy(a, dots, sizeof a);
    memcpy(b, plain, sizeof b);
    CHECK_REL(a[0], b[0], near[0]);
    CHECK_REL(a[1], b[1], near[1]);
    free(dots), free(plain), free(there), free(asked), free(both), free(old);
    example_free(&x);
}

TEST_CASE(arm64, mlp_takes_the_level_of_the_processor) {
    check_levels("mlp_dynamo_adamw", true);
}

TEST_CASE(arm64, cnn_takes_the_level_of_the_processor) {
    check_levels("cnn_dynamo_slow", false);
}

TEST_CASE(arm64, gpt_takes_the_level_of_the_processor) {
    check_levels("gpt_dynamo_adamw", true);
}
