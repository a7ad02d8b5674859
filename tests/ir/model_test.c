/* SPDX-License-Identifier: Apache-2.0 */
/* model_test.c: lines of a model that are not IR: their expansion, and
   messages for wrong lines. */
#include <string.h>

#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/model/model.h"

void model_expand(const char *text, const TextOptions *opt, StrBuf *out) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    static const TextOptions none = {0};
    if (parse_model(a, &d, "m.amp", text, strlen(text), opt ? opt : &none,
                    &m) != OK)
        sb_puts(out, d.text.data);
    else
        print_graph(m->graphs.data[0], out);
    sb_free(&d.text);
    arena_free(a);
}

void check_lines(const char *file, int line, const char *text,
                 const char *want) {
    StrBuf got = {0};
    model_expand(text, NULL, &got);
    if (!strstr(got.data, want))
        harness_fail_at(file, line, "%s\nbecomes\n%s\nnot\n%s", text, got.data,
                        want);
    sb_free(&got);
}

TEST_CASE(model, lines_become_nodes) {
    BECOMES("model m(x: f32[2,3], y: f32[2,3]) {\n"
            "  z = x * y + 2 * x\n"
            "  return out = z - 1\n}\n",
            "graph forward(%x: f32[2,3], %y: f32[2,3]) {\n"
            "  %x.mul = mul %x, %y : f32[2,3]\n"
            "  %x.mul.2 = mul 2, %x : f32[2,3]\n"
            "  %z = add %x.mul, %x.mul.2 : f32[2,3]\n"
            "  %z.sub = sub %z, 1 : f32[2,3]\n"
            "  return out=%z.sub\n}\n");
}

TEST_CASE(model, ir_lines_stand_among_others) {
    BECOMES("graph g(%x: f32[2,3]) {\n"
            "  param %w: f32[3,3] = 1\n"
            "  %a = matmul %x, %w\n"
            "  b = relu(a) % 2\n"
            "  c = %b + %\"x\"\n"
            "  %d = neg %c\n"
            "  return %d, b, e=%c\n}\n",
            "  %a = matmul %x, %w : f32[2,3]\n"
            "  %a.relu = relu %a : f32[2,3]\n"
            "  %b = mod %a.relu, 2 : f32[2,3]\n"
            "  %c = add %b, %x : f32[2,3]\n"
            "  %d = neg %c : f32[2,3]\n"
            "  return %d, %b, e=%c\n");
}

TEST_CASE(model, known_values_choose_and_repeat) {
    BECOMES("dim L = 2\n"
            "model m(x: f32[4]) {\n"
            "  for i in 0..L {\n"
            "    if i == 0 { x = exp(x) } else { x = log(x) }\n"
            "  }\n"
            "  return x = x\n}\n",
            "  %x.2 = exp %x : f32[4]\n"
            "  %x.3 = log %x.2 : f32[4]\n"
            "  return x=%x.3\n");
}

/* Like Python's: the quotient rounds towards minus infinity, the remainder
   has the divisor's sign. */
TEST_CASE(model, integers_divide_downwards) {
    BECOMES("model m(x: i64[2]) {\n"
            "  L = -9223372036854775807\n"
            "  return a = x + -7 // 2, b = x + -7 % 2, c = x + 7 // -2,\n"
            "         d = x + 7 % -2, e = x + 6 // -1, f = x + 6 % -1,\n"
            "         g = x + L % 3, h = x + L // 3, i = x + (L - 1) % -1\n}\n",
            "  %x.add = add %x, -4:i64 : i64[2]\n"
            "  %x.add.2 = add %x, 1:i64 : i64[2]\n"
            "  %x.add.3 = add %x, -4:i64 : i64[2]\n"
            "  %x.add.4 = add %x, -1:i64 : i64[2]\n"
            "  %x.add.5 = add %x, -6:i64 : i64[2]\n"
            "  %x.add.6 = add %x, 0:i64 : i64[2]\n"
            "  %x.add.7 = add %x, 2:i64 : i64[2]\n"
            "  %x.add.8 = add %x, -3074457345618258603:i64 : i64[2]\n"
            "  %x.add.9 = add %x, 0:i64 : i64[2]\n");
}

TEST_CASE(model, layers_have_scopes) {
    BECOMES("def twice(x; n: int) -> y {\n"
            "  param w: f32[n, n] = ones {weight_decay=0}\n"
            "  y = x @ w @ w\n}\n"
            "model m(x: f32[2,3]) {\n"
            "  x = twice(x, n=3)\n"
            "  x = twice(x, n=dim(x, 1))\n"
            "  scope \"a\" { x = twice(x, n=3, scope=\"b.\" + 1) }\n"
            "  return y = x\n}\n",
            "  param %twice.w: f32[3,3] = 1 {weight_decay=0}\n"
            "  param %twice2.w: f32[3,3] = 1 {weight_decay=0}\n"
            "  param %a.b.1.w: f32[3,3] = 1 {weight_decay=0}\n");
}

TEST_CASE(model, one_scope_is_one_parameter) {
    BECOMES("model m(x: f32[2,3]) {\n"
            "  x = Linear(x, units=3, bias=false, scope=\"fc\")\n"
            "  x = Linear(x, units=3, bias=false, scope=\"fc\")\n"
            "  return y = x\n}\n",
            "  %x.2 = matmul %x, %fc.weight {trans_b=1} : f32[2,3]\n"
            "  %x.3 = matmul %x.2, %fc.weight {trans_b=1} : f32[2,3]\n");
}

TEST_CASE(model, regions_give_classes) {
    BECOMES("model m(x: f32[2,2]) {\n"
            "  autocast off {\n"
            "    y = x @ x\n"
            "    if true { autocast on { z = y @ x } }\n"
            "  }\n"
            "  return y, z\n}\n",
            "  %y = matmul %x, %x : f32[2,2] !full\n"
            "  %z = matmul %y, %x : f32[2,2]\n");
}

TEST_CASE(model, outputs_are_expressions) {
    BECOMES("model m(x: f32[2]) {\n"
            "  return a = -x, b=2:i64, x, c = 1 - x, \"d e\"=-inf,\n"
            "         f.g=%x, h = 1/x\n}\n",
            "  return a=%x.neg, b=2:i64, %x, c=%x.sub, \"d e\"=-inf, f.g=%x, "
            "h=%x.div\n");
}

TEST_CASE(model, gradients_are_values) {
    BECOMES("model m(x: f32[2], y: f32[2]) {\n"
            "  z = x * y\n"
            "  g = 2 * grad(z, x)\n"
            "  a, b = grad(z, x, y)\n"
            "  return g, a, b\n}\n",
            "  %z.grad = grad %z, %x : f32[2]\n"
            "  %g = mul 2, %z.grad : f32[2]\n"
            "  %a, %b = grad %z, %x, %y : f32[2], f32[2]\n");
}

TEST_CASE(model, running_statistics_are_written) {
    BECOMES(
        "model m(x: f32[4,2]) {\n  return y = BatchNorm(x, scope=\"bn\")\n}",
        "  write %bn.running_mean = ");
    BECOMES(
        "model m(x: f32[4,2]) {\n"
        "  x = BatchNorm(x, scope=\"bn\")\n"
        "  x = BatchNorm(x, scope=\"bn\")\n  return x\n}",
        "m.amp:3:7: error: BatchNorm: 'bn.running_mean' is already written");
}

/* Checks mean, variance and bounds of the drawn numbers. */
static void check_init(const char *init, double mean, double var, double most) {
    char text[200];
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    double sum = 0, square = 0, top = 0;
    snprintf(text, sizeof text,
             "model m(x: f32[1,48]) {\n  param w: f32[64,48] = %s\n"
             "  return y = matmul(x, w, trans_b=1)\n}\n",
             init);
    TextOptions opt = {.seed = 7};
    REQUIRE(parse_model(a, &d, "t", text, strlen(text), &opt, &m) == OK);
    const Var *v = &m->vars.data[0];
    const Tensor *t = var_initial(a, v);
    int n = 64 * 48;
    for (int i = 0; i < n; i++) {
        double x = t ? tensor_get(t, i) : v->fill;
        sum += x / n;
        square += x * x / n;
        top = x > top ? x : top;
    }
    CHECK_NEAR(sum, mean, 0.02);
    CHECK_NEAR(square - sum * sum, var, 0.06 * var + 1e-12);
    CHECK_MSG(top <= most, "%s: %g", init, top);
    arena_free(a);
}

TEST_CASE(model, initialisers) {
    check_init("zeros", 0, 0, 0);
    check_init("ones", 1, 0, 1);
    check_init("0.5", 0.5, 0, 0.5);
    check_init("normal(0.1)", 0, 0.01, 1);
    check_init("uniform(-1, 3)", 1, 16.0 / 12, 3);
    check_init("kaiming", 0, 2.0 / 48, 2);
    check_init("xavier", 0, 2.0 / (64 + 48), 0.2315);
}

TEST_CASE(model, symbols_are_bound) {
    static const char text[] =
        "dim B = 4\nmodel m(x: f32[B,N], y: f32[2*B]) {\n  return x, y\n}\n";
    DimBind dims[] = {{intern("N"), -1, 3}, {intern("x"), 0, 8}};
    TextOptions opt = {.dims = dims, .ndims = 2};
    StrBuf got = {0};
    model_expand(text, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[8,3], %y: f32[16])");
    sb_free(&got);
    BECOMES(text, "m.amp:2:18: error: dimension 'N' has no value; --dim N=64");
    dims[1] = (DimBind){intern("y"), 0, 8};
    model_expand(text, &opt, &got);
    CHECK_HAS(got.data,
              "m.amp:2:22: error: --dim y:0=8: that dimension is not a symbol");
    sb_free(&got);
    dims[1] = (DimBind){intern("Q"), -1, 8};
    model_expand(text, &opt, &got);
    CHECK_HAS(got.data,
              "--dim Q: the text has no such symbol; its symbols: B, N");
    sb_free(&got);
    dims[1] = (DimBind){intern("z"), 0, 8};
    model_expand(text, &opt, &got);
    CHECK_HAS(got.data, "--dim z:0: the model has no such input");
    sb_free(&got);
}
