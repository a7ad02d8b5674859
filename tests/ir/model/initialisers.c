/* SPDX-License-Identifier: Apache-2.0 */
/* initialisers.c: initial values, outputs and batches of a text; bounds of
 * depth. */
#include <math.h>
#include <string.h>

#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/model/model.h"

/* Initial values of variables are in the IR, which reads back the same numbers.
 */
TEST_CASE(model, initialisers_are_printed) {
    static const char text[] = "model m(x: f32[4,4]) {\n"
                               "  param n: f32[4,4] = normal(0.5)\n"
                               "  param u: f32[4,4] = uniform(-2, 3)\n"
                               "  param k: f32[4,4] = kaiming\n"
                               "  param c: f32[4,4] = 0.25\n"
                               "  buffer o: f32[4,4] = ones\n"
                               "  return y = x @ n @ u @ k @ c @ o\n}\n";
    Arena *a = arena_new();
    Diag d = {0};
    Module *m, *back;
    StrBuf sb = {0};
    TextOptions opt = {.seed = 3};
    REQUIRE(parse_model(a, &d, "t", text, sizeof text - 1, &opt, &m) == OK);
    print_module(m, &sb);
    if (parse_module(a, &d, "t", sb.data, sb.len, &back) != OK)
        FAIL("%s", d.text.data);
    CHECK_EQ_INT(m->vars.len, 5);
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i], *w = &back->vars.data[i];
        const Tensor *s = var_initial(a, v), *t = var_initial(a, w);
        CHECK_STR(v->name, w->name);
        CHECK((s == NULL) == (t == NULL));
        for (int k = 0; k < 16; k++)
            CHECK_NEAR(s ? tensor_get(s, k) : v->fill,
                       t ? tensor_get(t, k) : w->fill, 0);
    }
    sb_free(&sb);
    arena_free(a);
}

/* An output's name: the given one, else the variable's, else the value's. */
TEST_CASE(model, outputs_are_named) {
    BECOMES("model m(x: f32[2]) {\n  b = x\n  c = relu(x)\n  d = c\n"
            "  return q = b, b, c, r = d, d, w = c + 1\n}\n",
            "  return q=%x, b=%x, %c, r=%c, d=%c, w=%c.add\n");
    BECOMES(
        "model m(x: f32[2]) {\n  return y = (x), z = (x + 1), w = [x][0]\n}\n",
        "  %x.add = add %x, 1 : f32[2]\n"
        "  return y=%x, z=%x.add, w=%x\n");
    BECOMES("model m(x: f32[2]) {\n  return relu(x), exp(x)\n}\n",
            "  return %x.relu, %x.exp\n");
    BECOMES("model m(x: f32[2]) {\n  return relu(x), -x, -relu(-x)\n}\n",
            "  return %x.relu, %x.neg, %x.neg.3\n");
    BECOMES("model m(x: f32[2]) {\n  return -x\n}\n", "  return %x.neg\n");
    BECOMES(LINE("y = x != 2"), "return y=%x\n");
    BECOMES("model m(x: f32[2]) {\n  return y = x != 2, z = x == 2\n}\n",
            "  %x.equal = equal %x, 2 : bool[2]\n"
            "  %x.not = not %x.equal : bool[2]\n"
            "  %x.equal.2 = equal %x, 2 : bool[2]\n"
            "  return y=%x.not, z=%x.equal.2\n");
    BECOMES("model m(x: f32[2]) {\n  return x = x, x = x\n}\n",
            "m.amp:2:21: error: an output 'x' exists already");
}

/* --batch-sizes: the first dimension of the first input. */
TEST_CASE(model, the_batch_is_bound) {
    static const struct {
        const char *text;
        int64_t batch, otherwise;
        const char *want;
    } rows[] = {
        {"model m(x: f32[B,2], y: f32[B]) { return x, y }", 5, 0,
         "forward(%x: f32[5,2], %y: f32[5])"},
        {"dim B = 3\nmodel m(x: f32[B,2]) { return x }", 5, 0,
         "forward(%x: f32[5,2])"},
        {"dim B = 3\nmodel m(x: f32[B,2]) { return x }", 0, 7,
         "forward(%x: f32[3,2])"},
        {"dim B\nmodel m(x: f32[B,2]) { return x }", 0, 7,
         "forward(%x: f32[7,2])"},
        {"model m(x: f32[B,2], y: f32[T]) { return x }", 0, 7,
         "dimension 'T' has no value"},
        {"model m(x: f32[4,2]) { return x }", 5, 0,
         "m.amp:1:9: error: --batch-sizes 5: the first dimension of 'x' is not "
         "a symbol"},
        {"model m(x: f32[2*B,2]) { return x }", 5, 0, "of 'x' is not a symbol"},
        {"model m(x: f32[4,2]) { return x }", 0, 5, "forward(%x: f32[4,2])"},
        {"model m(x: f32[], y: f32[B]) { return x, y }", 5, 0,
         "forward(%x: f32[], %y: f32[5])"},
        {"model m(x: f32[B], y: f32[T]) { return x, y }", 5, 0,
         "dimension 'T' has no value"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TextOptions opt = {.batch = rows[i].batch,
                           .batch_else = rows[i].otherwise};
        StrBuf got = {0};
        model_expand(rows[i].text, &opt, &got);
        CHECK_HAS(got.data, rows[i].want);
        sb_free(&got);
    }
    DimBind dims[] = {{intern("x"), 0, 8}, {intern("y"), 0, 9}};
    TextOptions opt = {.dims = dims, .ndims = 2};
    StrBuf got = {0};
    static const char two[] = "model m(x: f32[B], y: f32[B]) { return x, y }";
    model_expand(two, &opt, &got);
    CHECK_HAS(got.data, "m.amp:1:20: error: dimension 'B' is bound to 8 and to "
                        "9");
    sb_free(&got);
    opt.batch = 4; /* --batch takes precedence over --dim */
    model_expand(two, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[4], %y: f32[4])");
    sb_free(&got);
    opt.batch = 0;
    dims[1].value = 8;
    model_expand(two, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[8], %y: f32[8])");
    sb_free(&got);
    dims[1].axis = 1;
    model_expand(two, &opt, &got);
    CHECK_HAS(got.data, "--dim y:1=8: that dimension is not a symbol");
    sb_free(&got);
}

TEST_CASE(model, mistakes_in_layers_have_a_trace) {
    BECOMES("def head(x; units: int) -> y {\n"
            "  y = Linear(x, units=units, scope=\"out\")\n}\n"
            "def block(x; units: int) -> y {\n"
            "  h = relu(x)\n"
            "  y = head(h, units=units)\n}\n"
            "model m(x: f32[2,3]) {\n"
            "  for i in 0..2 {\n"
            "    x = block(x, units=1 - i, scope=\"h.\" + i)\n"
            "  }\n"
            "  return x\n}\n",
            "m.amp:10:9: error: Linear: x is f32[2,1], units are 0\n"
            "      x = block(x, units=1 - i, scope=\"h.\" + i)\n"
            "          ^\n"
            "m.amp:6:7: in block of h.1\n"
            "    y = head(h, units=units)\n"
            "        ^\n"
            "m.amp:2:7: in head of h.1.head\n"
            "    y = Linear(x, units=units, scope=\"out\")\n"
            "        ^\n"
            "layers.amp:16:3: in Linear of h.1.head.out\n"
            "    require rank(x) >= 1 and units >= 1, \"x \n    ^\n");
    BECOMES("def f(x) -> y {\n"
            "  param w: f32[2,2] = ones\n"
            "  scope \"in\" { y = x @ w }\n}\n"
            "model m(x: f32[2,3]) { return y = f(x, scope=\"\") }\n",
            "m.amp:5:35: error: f: matmul: f32[2,3] and f32[2,2]: inner");
    BECOMES("def f(x) -> y {\n"
            "  param w: f32[2,2] = ones\n"
            "  scope \"in\" { y = x @ w }\n}\n"
            "model m(x: f32[2,3]) { return y = f(x, scope=\"\") }\n",
            "m.amp:3:22: in f of in\n"
            "    scope \"in\" { y = x @ w }\n"
            "                       ^\n");
}

static void repeated(StrBuf *sb, const char *what, int n) {
    for (int i = 0; i < n; i++) sb_puts(sb, what);
}

/* The nesting of expressions and the length of chains are limited. */
TEST_CASE(model, depth_is_bounded) {
    static const struct {
        const char *before, *again, *behind;
    } cases[] = {{"y = ", "(", "x"},          {"y = ", "-", "x"},
                 {"y = x", " + x", ""},       {"y = x", "[0]", ""},
                 {"y = ", "[", "1"},          {"", "if true { ", ""},
                 {"y = ", "exp(", "x"},       {"y = 1", " if 1 else 2", ""},
                 {"", "autocast off { ", ""}, {"", "scope \"a\" { ", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StrBuf text = {0}, got = {0};
        sb_puts(&text, "model m(x: f32[2]) {\n  ");
        sb_puts(&text, cases[i].before);
        repeated(&text, cases[i].again, 100000);
        sb_puts(&text, cases[i].behind);
        model_expand(text.data, NULL, &got);
        CHECK_MSG(strstr(got.data, "error: more than ") ||
                      strstr(got.data, "not deeper than 64"),
                  "'%s': %.200s", cases[i].again, got.data);
        sb_free(&text);
        sb_free(&got);
    }
}

/* A function of n operands, which adds the first and the last one. */
static Status define_many(int n, Diag *d) {
    Arena *a = arena_new();
    Module *m;
    StrBuf text = {0};
    sb_puts(&text, "def many(");
    for (int i = 0; i < n; i++) sb_printf(&text, "%sx%d", i ? ", " : "", i);
    sb_printf(&text,
              ") -> y class follow { y = x0 + x%d }\n"
              "graph forward(%%x: f32[2]) {\n  %%y = many ",
              n - 1);
    for (int i = 0; i < n; i++) sb_puts(&text, i ? ", %x" : "%x");
    sb_puts(&text, "\n  return %y\n}\n");
    Status s = parse_module(a, d, "m.amp", text.data, text.len, &m);
    sb_free(&text);
    arena_free(a);
    return s;
}

/* 256 operators deep, whichever operand is the deep one. */
TEST_CASE(model, deep_operands_count_with_what_reads_them) {
    static const char *const wheres[][2] = {{"(", ")"},
                                            {"0 + (", ")"},
                                            {"exp(x + (", "))"},
                                            {"[1, ", "][1]"},
                                            {"1 if true else ", ""},
                                            {"x if 0 == (", ") else x"},
                                            {"softmax(x, axis=", ")"},
                                            {"[0][", "]"},
                                            {"not 0 == (", ")"},
                                            {"-(", ")"},
                                            {"[i for i in [", "]]"}};
    for (size_t i = 0; i < sizeof wheres / sizeof *wheres; i++)
        for (int many = 0; many < 2; many++) {
            StrBuf text = {0}, got = {0};
            sb_puts(&text, "model m(x: f32[2]) {\n  y = ");
            sb_puts(&text, wheres[i][0]);
            sb_puts(&text, "0");
            repeated(&text, " + 0", many ? 256 : 250);
            sb_puts(&text, wheres[i][1]);
            sb_puts(&text, "\n  return x = x\n}\n");
            model_expand(text.data, NULL, &got);
            bool refused = strstr(got.data, "more than 256 operators") != NULL;
            bool alone = i == 0; /* the surrounding text adds no depth */
            CHECK_MSG(refused == (many && !alone), "%s: %.300s", wheres[i][0],
                      got.data);
            sb_free(&text);
            sb_free(&got);
        }
    BECOMES("def f(; n: int = 2) -> y { y = full(value=1, shape=[n], "
            "dtype=f32) }\n" LINE("x = x + f(n=3)"),
            "full");
}

TEST_CASE(model, sixteen_operands_are_most) {
    Diag d = {0};
    CHECK(define_many(16, &d) == OK);
    CHECK(define_many(17, &d) == ERR_USER);
    CHECK_HAS(d.text.data, "more than 16 operands");
    sb_free(&d.text);
}

/* Like PyTorch's: uniform in 1 / sqrt(number of elements that make one
   result). */
TEST_CASE(model, weights_of_a_convolution_begin_as_pytorchs) {
    static const char text[] =
        "model m(x: f32[2,6,8,8]) {\n"
        "  return y = Conv2d(x, channels=40, size=3, groups=2)\n}\n";
    const double bound = 1 / sqrt(3 * 3 * 3);
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "m.amp", text, sizeof text - 1, &m) != OK)
        FAIL("%s", d.text.data);
    CHECK_EQ_INT(m->vars.len, 2);
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        const Tensor *t = var_initial(a, v);
        double most = 0;
        for (int64_t k = 0; k < type_count(type_get(v->type)); k++)
            most = fmax(most, fabs(tensor_get(t, k)));
        CHECK_MSG(most <= bound * (1 + 1e-6) && most > 0.8 * bound,
                  "%s: %g of %g", v->name, most, bound);
    }
    arena_free(a);
}
