/* SPDX-License-Identifier: Apache-2.0 */
/* model_test.c: lines of a model that are not IR: their expansion, and
   messages for wrong lines. */
#include <math.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/harness.h"

/* The graph of a text, without its first line and the module's name; or the
   messages. */
static void expand(const char *text, const TextOptions *opt, StrBuf *out) {
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

static void check_lines(const char *file, int line, const char *text,
                        const char *want) {
    StrBuf got = {0};
    expand(text, NULL, &got);
    if (!strstr(got.data, want))
        harness_fail_at(file, line, "%s\nbecomes\n%s\nnot\n%s", text, got.data,
                        want);
    sb_free(&got);
}
#define BECOMES(text, want) check_lines(__FILE__, __LINE__, (text), (want))

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
    expand(text, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[8,3], %y: f32[16])");
    sb_free(&got);
    BECOMES(text, "m.amp:2:18: error: dimension 'N' has no value; --dim N=64");
    dims[1] = (DimBind){intern("y"), 0, 8};
    expand(text, &opt, &got);
    CHECK_HAS(got.data,
              "m.amp:2:22: error: --dim y:0=8: that dimension is not a symbol");
    sb_free(&got);
    dims[1] = (DimBind){intern("Q"), -1, 8};
    expand(text, &opt, &got);
    CHECK_HAS(got.data,
              "--dim Q: the text has no such symbol; its symbols: B, N");
    sb_free(&got);
    dims[1] = (DimBind){intern("z"), 0, 8};
    expand(text, &opt, &got);
    CHECK_HAS(got.data, "--dim z:0: the model has no such input");
    sb_free(&got);
}

/* ---- messages ------------------------------------------------------------ */

#define LINE(text) "model m(x: f32[2,3]) {\n  " text "\n  return y = x\n}\n"

TEST_CASE(model, mistakes_have_a_place) {
    static const char *const cases[][2] = {
        {LINE("y = relu(x +)"), "m.amp:2:15: error: a value expected, found "
                                "')'\n    y = relu(x +)\n"
                                "                ^\n"},
        {LINE("y = reluu(x)"),
         "2:7: error: 'reluu' is not an op or a function "},
        {LINE("y = relu(z)"), "2:12: error: 'z' has no value here"},
        {LINE("y = %z"), "2:7: error: '%z' is not defined here"},
        {LINE("y = x @ x"), "2:9: error: matmul: f32[2,3] and f32[2,3]: inner"},
        {LINE("y ="), "3:3: error: 'return' has no value here"},
        {LINE("y"), "'=' expected, found 'return'"},
        {LINE("y, z = relu(x)"), "2:10: error: relu: "},
        {LINE("y = relu(x, q=1)"), "2:15: error: relu has no attribute 'q'\n"},
        {LINE("y = Linear(x, unit=4)"),
         "2:17: error: Linear has no attribute 'unit'; there are units"},
        {LINE("for i in 0..2 { autocast low { y = x } }"),
         "autocast off or on"},
        {LINE("k = [i for i in 0..3]\n  y = x * i"),
         "3:11: error: 'i' has no value here"},
        {LINE("y = x * rank(x, axis=1)"), "2:11: error: rank takes 1 operand"},
        {LINE("y = Linear(x)"), "2:7: error: Linear: needs attribute 'units'"},
        {LINE("y = Linear(x, units=0)"), "2:7: error: Linear: x is f32[2,3], "
                                         "units are 0"},
        {LINE("y = Linear(x, x, units=1)"), "2:7: error: Linear takes 1 to 1"},
        {LINE("%y = Linear %x"), "2:8: error: a function without a class is "},
        {LINE("if x { y = x }"),
         "2:6: error: true or false expected, found a "},
        {LINE("for i in 3 { y = x }"), "2:12: error: a list expected, found "},
        {LINE("for i in 0..1000000000 { }"), "2:13: error: the list is too "
                                             "long: at most 4096 elements"},
        {LINE("k = cast(x, i32)\n  y = k + 5000000000"),
         "3:9: error: 5000000000 is outside i32"},
        {LINE("k = cast(x, u8)\n  y = k - -1"), "-1 is outside u8"},
        {LINE("k = cast(x, i64)\n  y = k + 1e300"), "1e+300 is outside i64"},
        {LINE("k = cast(x, i64)\n  y = k + 0.5"), "0.5 meets integers"},
        {LINE("y = where(rng() > 0.5, x, -x)"),
         "2:19: error: rng() is the state of random numbers, not a number: "
         "random_uniform(rng(), shape=[..], salt=salt()) draws numbers"},
        {LINE("k = -rng()"), "2:7: error: rng() is the state of random"},
        {LINE("buffer b: u8[2] = 256"), "2:21: error: 256 is outside u8"},
        {LINE("buffer b: i64[2] = 9007199254740993"), "is beyond 2^53"},
        {LINE("buffer b: i64[2] = -9007199254740993"), "is beyond 2^53"},
        {LINE("buffer b: i64[2] = 9007199254740992\n  buffer c: i64[1] = "
              "-9007199254740992\n  y ="),
         "'return' has no value here"},
        {LINE("for i in 0..1 // 0 { }"), "2:17: error: division by 0"},
        {LINE("for i in 0..(-9223372036854775807 - 1) // -1 { }"),
         "error: the integer is too large"},
        {LINE("for i in 0..1e9 { }"), "2:13: error: an integer expected"},
        {LINE("for i in 0..4096 { for k in 0..4096 { y = x } }"),
         "error: more than 1048576 steps at compile time"},
        {LINE("t = \"a\" for i in 0..30 { t = t + t }"),
         "2:34: error: the text is too long"},
        {LINE("l = [1] for i in 0..40 { l = l + l }"),
         "error: more than 1048576 steps"},
        {LINE("require rank(x) == 1, \"x is \", x"),
         "2:3: error: x is f32[2,3]"},
        {LINE("param w: f32[2"), "3:3: error: ']' expected, found 'return'"},
        {LINE("param w: g32[2]"), "2:12: error: a type such as f32[2,3] expe"},
        {LINE("param w: f32[-1]"), "2:16: error: a dimension of -1"},
        {LINE("param w: f32[x]"), "error: dimension 'x' has no value"},
        {LINE("param w: f32[1,1,1,1,1,1,1,1,1]"), "more than 8 dimensions"},
        {LINE("param w: f32[99999999,99999999,99999999]"),
         "2:3: error: the type is too large"},
        {LINE("param w: f32[2] = kaiming"), "2:21: error: weights of rank 2"},
        {LINE("param w: f32[2] = \"a\""), "2:21: error: a number or an init"},
        {LINE("param w: i64[2] = normal(1)"), "numbers are for floating point"},
        {LINE("param w: f32[2] {speed=2}"), "lr_scale or weight_decay"},
        {LINE("param w: f32[2] {lr_scale=-2}"), "lr_scale is -2"},
        {LINE("param w: f32[2] param w: f32[3]"),
         "2:19: error: 'w' is already a param f32[2]"},
        {LINE("scope \"ampc\" { param w: f32[2] }"), "'ampc.w': names that "},
        {LINE("scope 3 { }"), "text expected, found an integer"},
        {LINE("write x = x"), "2:3: error: 'x' is not a variable"},
        {LINE("buffer b: f32[2] write b = x"),
         "error: the variable is f32[2], the value f32[2,3]"},
        {LINE("autocast up { }"), "2:12: error: autocast off or on"},
        {LINE("checkpoint y"), "2:14: error: '{' expected"},
        {LINE("y = normal(1)\n  z = relu(y)"),
         "3:7: error: a tensor or a number expected, found an initialiser"},
        {"model m(x: f32[2]) { return x }\nmodel n(x: f32[2]) { return x }",
         "2:1: error: a file has one model"},
        {"model m(x: f32[2], x: f32[3]) { return x }",
         "1:20: error: 'x' is already defined"},
        {"dim B = 2, B = 3", "1:12: error: 'B' is already declared"},
        {"dim B = -2", "1:9: error: a symbol must be 0 or more"},
        {"dim B-2", "1:5: error: a symbol's name expected, found 'B-2'"},
        {"train a-b { loss = mse }",
         "1:7: error: the model's name expected, found 'a-b'"},
        {"model m(x: f32[2]) { return y = x * 1e400 }",
         "1:37: error: 1e400 is beyond every type"},
        {"model m(x: f32[2]) { return y = x + 1e39 }",
         "error: 1e+39 is beyond f32"},
        {"model m(x: f32[2]) { return y = x + 1e30 * 1e30 }",
         "error: 1e+60 is beyond f32"},
        {"model m(x: f32[2]) { return y = leaky_relu(x, alpha=1e39) }",
         "is beyond f32"},
        {"model m(x: f32[2]) { param w: f32[2] = 1e39\n return y = x * w }",
         "error: 1e+39 is beyond f32"},
        {"model m(x: f32[2]) { param w: f32[2] = normal(1e39)\n"
         " return y = x * w }",
         "error: 1e+39 is beyond f32"},
        {"def f(x) -> y class follow { param w: f32[2]\n y = x }",
         "1:30: error: a function with a class cannot have variables"},
        {"def f(x) -> y { y = x } grad (dy) -> dx { dx = dy }",
         "1:25: error: only functions with a class have a 'grad'"},
        {"def f(x) -> y {\n  y = exp(x @ x)\n}\nmodel m(x: f32[2,3]) {\n"
         "  return y = f(x)\n}\n",
         "m.amp:5:14: error: f: matmul: f32[2,3] and f32[2,3]: inner"},
        {LINE("y = relu(x, 1 + 1 = 2)"), "an attribute's name expected"},
        {LINE("y = softmax(axis=1, x)"), "operands come before attributes"},
        {LINE("autocast { }"), "2:12: error: autocast off or on"},
        {LINE("n = count([4294967296, 4294967296])"),
         "2:7: error: the integer is too large"},
        {LINE("n = dim(x, 2)"), "2:7: error: axis 2 is outside rank 2"},
        {LINE("n = dim(x, -3)"), "2:7: error: axis -3 is outside rank 2"},
        {LINE("n = [1, 2][2]"), "2:14: error: element 2 of 2"},
        {LINE("n = [1, 2][-3]"), "2:14: error: element -3 of 2"},
        {LINE("n = 3[0]"), "a list expected, found "},
        {LINE("n = \"a\" + true"), "text or an integer expected, found "},
        {LINE("y = full(value=1)"), "full needs shape= and dtype="},
        {LINE("y = full(value=1, shape=[2])"), "full needs shape= and dtype="},
        {LINE("y, z, u = Linear(x, units=1)"), "Linear gives 1 to 1 results"},
        {LINE("require rank(x) == 1, \"got \", [1, 2.5, x]"),
         "2:3: error: got [1, 2.5, f32[2,3]]"},
        {LINE("require rank(x) == 1, \"got \", f16, \" \", 1 == 1"),
         "2:3: error: got f16 true"},
        {"def f(x?, y) -> z { z = y }",
         "1:11: error: optional operands come last"},
        {"def f(x: text) -> z { z = x }", "float, int or any expected"},
        {"def f(x; n) -> z { z = x }", "the attribute needs a kind: NAME: int"},
        {"def f(x; n: number) -> z { z = x }",
         "int, bool, float, str, ints, axis or axes expected"},
        {"def relu(x) -> z { z = x }",
         "1:5: error: 'relu' is a word of the language"},
        {"def f32(x) -> z { z = x }",
         "1:5: error: 'f32' is a word of the language"},
        {"def f(x) -> z { z = x }\ndef f(x) -> z { z = x }",
         "2:5: error: a function 'f' exists already"},
        {"def f(x) -> y class follow { y = x } grad (a, b) -> dx { dx = a }",
         "1 results and 1 operands have gradients"},
        {"def f(x) -> y class follow { y = x } grad (dy) -> dx, dz { dx = dy }",
         "1 results and 1 operands have gradients"},
        {"def f(a, b, c, d, e, g, h, i, j, k, l, m, n, o, p, q, r) -> y {\n"
         "  y = a\n}",
         "operands"},
        {"def f(x) -> y { z = x }\nmodel m(x: f32[2]) { return y = f(x) }",
         "2:33: error: f: gives no result 'y' here"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        BECOMES(cases[i][0], cases[i][1]);
}

/* From the model's line down to the place of the mistake. */
/* Expressions that the compiler evaluates, checked by its message, equal
   Python's results. */
TEST_CASE(model, values_known_to_the_compiler) {
    static const char *const rows[][2] = {
        {"1 + 2 * 3 - 4", "3"},
        {"2 - 3 - 4", "-5"},
        {"7 / 2", "3.5"},
        {"6 / 3", "2"},
        {"7.5 // 2", "3"},
        {"-7.5 // 2", "-4"},
        {"7.5 % 2", "1.5"},
        {"-7.5 % 2", "0.5"},
        {"7.5 % -2", "-0.5"},
        {"1.5 * 2 + 0.25", "3.25"},
        {"1.5 - 2", "-0.5"},
        {"2 * -3", "-6"},
        {"--3", "3"},
        {"-7 // 2", "-4"},
        {"-8 // 2", "-4"},
        {"7 // -2", "-4"},
        {"9 // 3 % 2", "1"},
        {"(9223372036854775806 + 1)", "9223372036854775807"},
        {"-9223372036854775807 - 1", "-9223372036854775808"},
        {"3 * 3074457345618258602", "9223372036854775806"},
        {"1 < 2", "true"},
        {"2 < 2", "false"},
        {"2 <= 2", "true"},
        {"3 <= 2", "false"},
        {"2 > 1", "true"},
        {"2 > 2", "false"},
        {"2 >= 2", "true"},
        {"1.5 >= 2", "false"},
        {"1 == 1.0", "true"},
        {"1 != 1", "false"},
        {"1 != 2", "true"},
        {"\"a\" == \"a\"", "true"},
        {"\"a\" == \"b\"", "false"},
        {"\"a\" == 1", "false"},
        {"none == none", "true"},
        {"f16 == f16", "true"},
        {"f16 == f32", "false"},
        {"[1, 2] == [1, 2]", "true"},
        {"[1, 2] == [1, 3]", "false"},
        {"[2, 2] == [1, 2]", "false"},
        {"[1, 2] == [1, 2, 3]", "false"},
        {"[1, 2] != [1, 2, 3]", "true"},
        {"2 in [1, 2]", "true"},
        {"1 in [1, 2]", "true"},
        {"3 in [1, 2]", "false"},
        {"1 in 0..1", "false"},
        {"not true", "false"},
        {"not 1 == 2", "true"},
        {"true and false", "false"},
        {"true and true", "true"},
        {"false or true", "true"},
        {"false or false", "false"},
        {"false and 1 // 0 == 1", "false"},
        {"true or 1 // 0 == 1", "true"},
        {"true or true and false", "true"},
        {"1 if true else 2", "1"},
        {"1 if false else 2", "2"},
        {"1 if false else 2 if false else 3", "3"},
        {"0..3", "[0, 1, 2]"},
        {"2..5", "[2, 3, 4]"},
        {"-1..1", "[-1, 0]"},
        {"3..3", "[]"},
        {"3..2", "[]"},
        {"[1] + [2, 3]", "[1, 2, 3]"},
        {"[] + [4]", "[4]"},
        {"[i * i for i in 0..4]", "[0, 1, 4, 9]"},
        {"[i for i in 0..6 if i % 2 == 1]", "[1, 3, 5]"},
        {"[5, 6, 7][0]", "5"},
        {"[5, 6, 7][2]", "7"},
        {"[5, 6, 7][-1]", "7"},
        {"[5, 6, 7][-3]", "5"},
        {"[[1, 2], [3, 4]][1][0]", "3"},
        {"\"a\" + 3 + \"b\"", "a3b"},
        {"len([4, 5])", "2"},
        {"len([])", "0"},
        {"count([2, 3, 4])", "24"},
        {"count([])", "1"},
        {"count(x)", "6"},
        {"rank(x)", "2"},
        {"shape(x)", "[2, 3]"},
        {"dim(x, 0)", "2"},
        {"dim(x, -1)", "3"},
        {"dim(x, -2)", "2"},
        {"dtype(x)", "f32"},
        {"dtype(x) == f32", "true"},
        {"present(x)", "true"},
        {"present(none)", "false"},
        {"none", "absent"},
        {"normal(1)", "an initialiser"},
        {"holds(i8, 127)", "true"},
        {"holds(i8, 128)", "false"},
        {"holds(i8, -128)", "true"},
        {"holds(i8, -129)", "false"},
        {"holds(u8, 255)", "true"},
        {"holds(u8, 256)", "false"},
        {"holds(u8, -1)", "false"},
        {"broadcasts(x, [2, 3])", "true"},
        {"broadcasts(x, [4, 2, 3])", "true"},
        {"broadcasts(x, [2, 1])", "false"},
        {"broadcasts(x, [3])", "false"},
        {"broadcasts(x, [4, 3])", "false"},
        {"min(2, 3)", "2"},
        {"min(3, 2)", "2"},
        {"max(2, 3.5)", "3.5"},
        {"max(4, 3.5)", "4"},
        {"sqrt(6.25)", "2.5"},
        {"rsqrt(0.25)", "2"},
        {"exp(0)", "1"},
        {"log(1)", "0"},
        {"tanh(0)", "0"},
        {"abs(-2.5)", "2.5"},
        {"floor(-2.5)", "-3"},
        {"ceil(-2.5)", "-2"},
        {"inf", "inf"},
        {"-inf", "-inf"},
        {"nan == nan", "false"},
        {"1e3", "1000"},
        {"25e-2", "0.25"},
        {"x", "f32[2,3]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[400], want[100];
        snprintf(text, sizeof text, LINE("require false, \"<\", %s, \">\""),
                 rows[i][0]);
        snprintf(want, sizeof want, "2:3: error: <%s>", rows[i][1]);
        BECOMES(text, want);
    }
}

/* Operands and attributes of the wrong kinds. */
TEST_CASE(model, kinds_that_are_not_wanted) {
    static const char *const rows[][2] = {
        {"k = 1 + \"a\"", "a number expected, found text"},
        {"k = \"a\" - 1", "a number expected, found text"},
        {"k = \"a\" + 1.5", "text or an integer expected, found a number"},
        {"k = [1] + 2", "a number expected, found a list"},
        {"k = 1 in 2", "a list expected, found an integer"},
        {"k = 1.5..3", "an integer expected, found a number"},
        {"k = 1..\"a\"", "an integer expected, found text"},
        {"k = 1 and true", "true or false expected, found an integer"},
        {"k = true and 1", "true or false expected, found an integer"},
        {"k = not 1", "true or false expected, found an integer"},
        {"k = 2 if 1 else 3", "true or false expected, found an integer"},
        {"k = [1][1.5]", "an integer expected, found a number"},
        {"k = [1][\"a\"]", "an integer expected, found text"},
        {"k = x and true", "and: operand 0 is f32[2,3], wants bool"},
        {"k = x in [1]",
         "m.amp:2:9: error: a known value expected, found a tensor"},
        {"y = cast(x, 3)", "a dtype expected, found an integer"},
        {"k = holds(f32, 1.5)", "an integer expected, found a number"},
        {"k = holds(3, 1)", "a dtype expected, found an integer"},
        {"k = rank(3)",
         "m.amp:2:7: error: a tensor expected, found an integer"},
        {"y = transpose(x, perm=\"a\")", "a list expected, found text"},
        {"y = transpose(x, perm=[1.5])", "an integer expected, found a number"},
        {"y = relu([1, 2])",
         "m.amp:2:7: error: a tensor or a number expected, found a list"},
        {"y = relu(none)", "relu: operand 0 is absent"},
        {"y = reshape(none, shape=[6])", "reshape: operand 0 is absent"},
        {"y = none + x", "add: operand 0 is absent"},
        {"y = x + none", "add: operand 1 is absent"},
        {"y = x @ none", "matmul: operand 1 is absent"},
        {"y = -none", "m.amp:2:7: error: a number expected, found nothing"},
        {"y = cast(none, f16)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"k = rank(none)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"k = dim(none, 0)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"k = count(none)", "m.amp:2:7: error: a list expected, found nothing"},
        {"k = dtype(none)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"y = sum_to(none, x)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"y = sum_to(x, none)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"k = constant(none)",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"k = broadcasts(none, [1])",
         "m.amp:2:7: error: a tensor expected, found nothing"},
        {"y = softmax(none, axis=0)", "softmax: operand 0 is absent"},
        {"k = 0..4097", "the list is too long: at most 4096 elements"},
        {"k = -9223372036854775807 - 2", "the integer is too large"},
        {"k = 9223372036854775807 + 1", "the integer is too large"},
        {"k = 4611686018427387904 * 2", "the integer is too large"},
        {"k = 0 - (-9223372036854775807 - 1)", "the integer is too large"},
        {"k = 1 % 0", "division by 0"},
        {"buffer b: i64[2] = 1e19", "1e+19 is outside i64"},
        {"buffer b: i8[2] = 127\n  buffer c: i8[2] = 128", "128 is outside i8"},
        {"buffer b: u8[2] = 2.5", "2.5 meets integers"},
        {"k = [i for i in 3]", "a list expected, found an integer"},
        {"k = [i for i of 0..3]", "'in' expected, found 'of'"},
        {"k = 1 if true", "'else' expected"},
        {"k = [i for if in 0..3]", "the name of an element expected"},
        {"k = for", "a value expected, found 'for'"},
        {"y = Linear(x, units=1, foo=\"a\")", "has no attribute 'foo'"},
        {"y = layer_norm(x, x, x, scope=\"a\")", "has no attribute 'scope'"},
        {"y = relu(x, scope=\"a\")", "has no attribute 'scope'"},
        {"y = Linear(x, units=1, scope=3)", "text expected, found an integer"},
        {"k = rng(1)", "rng takes 0 operands"},
        {"k = salt(1)", "salt takes 0 operands"},
        {"y = x + rng()", "m.amp:2:9: error: rng() is the state of random "
                          "numbers, not a number: "},
        {"y = Linear(none, units=3)",
         "m.amp:2:7: error: Linear: a tensor expected, found nothing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[400];
        snprintf(text, sizeof text, LINE("%s"), rows[i][0]);
        BECOMES(text, rows[i][1]);
        BECOMES(text, "m.amp:");
    }
    BECOMES(LINE("k = 0..4096\n  k = i"), "3:7: error: 'i' has no value here");
    BECOMES(
        "def f(x; p = [0, 1], q = -2, r = true, s = \"a\", t = 0.5) -> y {\n"
        "  require s == \"a\" and r and q == -2 and t == 0.5, s\n"
        "  y = transpose(x, perm=p)\n}\n" LINE("x = f(x, p=[1, 0])"),
        "%x.2 = transpose %x {perm=[1,0]} : f32[3,2]");
    BECOMES("def f(x; p = x) -> y { y = x }", "the attribute needs a kind");
    BECOMES("def f(x; p = none) -> y { y = x }", "the attribute needs a kind");
    BECOMES("def f = onnx(\"f.onnx\")\n" LINE("y = f(x)"),
            "m.amp:3:7: error: f: this text cannot refer to files");
}

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
        expand(rows[i].text, &opt, &got);
        CHECK_HAS(got.data, rows[i].want);
        sb_free(&got);
    }
    DimBind dims[] = {{intern("x"), 0, 8}, {intern("y"), 0, 9}};
    TextOptions opt = {.dims = dims, .ndims = 2};
    StrBuf got = {0};
    static const char two[] = "model m(x: f32[B], y: f32[B]) { return x, y }";
    expand(two, &opt, &got);
    CHECK_HAS(got.data, "m.amp:1:20: error: dimension 'B' is bound to 8 and to "
                        "9");
    sb_free(&got);
    opt.batch = 4; /* --batch takes precedence over --dim */
    expand(two, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[4], %y: f32[4])");
    sb_free(&got);
    opt.batch = 0;
    dims[1].value = 8;
    expand(two, &opt, &got);
    CHECK_HAS(got.data, "forward(%x: f32[8], %y: f32[8])");
    sb_free(&got);
    dims[1].axis = 1;
    expand(two, &opt, &got);
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
        expand(text.data, NULL, &got);
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
            expand(text.data, NULL, &got);
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
