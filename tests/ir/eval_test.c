/* SPDX-License-Identifier: Apache-2.0 */
/* eval_test.c: the interpreter compared with independent numbers: by hand, from
   libm's documented values, and from PyTorch 2.11 in fp64 (convolutions, pools,
   norms, losses). Floating inputs of a graph are filled with
   ((7 i + 3 k) mod 11 - 5) / 4, element i of input k.                       */
#include <math.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/eval/eval.h"

Graph *eval_parse(Arena *a, const char *text) {
    Diag d = {0};
    Module *m = NULL;
    StrBuf sb = {0};
    sb_printf(&sb, "graph %s\n}\n", text);
    if (parse_module(a, &d, "test.amp", sb.data, sb.len, &m) != OK)
        FAIL("%s\n%s", sb.data, d.text.data);
    sb_free(&sb);
    return m->graphs.data[0];
}

static void bind_inputs(const Graph *g, Evaluator *e, Arena *a) {
    for (int k = 0; k < g->inputs.len; k++) {
        ValueId v = g->inputs.data[k];
        EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
        int64_t n = type_count(value_type(g, v));
        for (int64_t i = 0; i < n; i++)
            t->f[i] = (double)((7 * i + 3 * k) % 11 - 5) / 4;
        eval_bind(e, v, t);
    }
}

static double element(const EvalTensor *t, int64_t i) {
    return t->f ? t->f[i] : (double)t->i[i];
}

void expect_at(const char *file, int line, EvalMode mode, const char *text,
               int n, const double *want) {
    Arena *a = arena_new();
    Graph *g = eval_parse(a, text);
    Evaluator *e = eval_new(g, a, mode);
    Diag d = {0};
    int at = 0;
    bind_inputs(g, e, a);
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    for (int k = 0; k < g->outputs.len; k++) {
        ValueId v = g->outputs.data[k].value;
        const EvalTensor *t = eval_get(e, v);
        for (int64_t i = 0; i < type_count(type_get(t->type)); i++, at++) {
            double got = element(t, i), w = at < n ? want[at] : NAN;
            bool same = isnan(w) ? at < n && isnan(got)
                                 : got == w || fabs(got - w) <=
                                                   1e-11 * fmax(1, fabs(w));
            if (!same)
                harness_fail_at(file, line, "element %d: %.17g, wanted %.17g",
                                at, got, w);
        }
    }
    if (at != n) harness_fail_at(file, line, "%d elements, not %d", at, n);
    arena_free(a);
}

/* y = op of the constants -2, -0.5, 0, 0.75, 3 */
#define EXPECT_FN(op, ...)                                                     \
    EXPECT("g() {\nconst %x: f64[5] = [-2, -0.5, 0, 0.75, 3]\n"                \
           "%y = " op " : f64[5]\nreturn %y",                                  \
           __VA_ARGS__)

/* ---- element-wise -------------------------------------------------------- */

TEST_CASE(eval, functions) {
    EXPECT_FN("neg %x", 2, 0.5, 0, -0.75, -3);
    EXPECT_FN("abs %x", 2, 0.5, 0, 0.75, 3);
    EXPECT_FN("sign %x", -1, -1, 0, 1, 1);
    EXPECT_FN("relu %x", 0, 0, 0, 0.75, 3);
    EXPECT_FN("exp %x", 0.135335283236613, 0.606530659712633, 1,
              2.11700001661267, 20.0855369231877);
    EXPECT_FN("erf %x", -0.995322265018953, -0.520499877813047, 0,
              0.711155633653515, 0.999977909503001);
    EXPECT_FN("tanh %x", -0.964027580075817, -0.462117157260010, 0,
              0.635148952387287, 0.995054753686730);
    EXPECT_FN("sin %x", -0.909297426825682, -0.479425538604203, 0,
              0.681638760023334, 0.141120008059867);
    EXPECT_FN("cos %x", -0.416146836547142, 0.877582561890373, 1,
              0.731688868873821, -0.989992496600445);
    EXPECT_FN("sigmoid %x", 0.119202922022118, 0.377540668798145, 0.5,
              0.679178699175393, 0.952574126822433);
    EXPECT_FN("log_sigmoid %x", -2.12692801104297, -0.974076984180107,
              -0.693147180559945, -0.386871006114808, -0.0485873515737421);
    EXPECT_FN("softplus %x", 0.126928011042973, 0.474076984180107,
              0.693147180559945, 1.13687100611481, 3.04858735157374);
    EXPECT_FN("gelu %x", -0.0455002638963584, -0.154268769363299, 0,
              0.580029485717, 2.99595030591);
    EXPECT_FN("gelu_tanh %x", -0.0454023059122, -0.154285990175, 0,
              0.579960555166, 2.99636260792);
    EXPECT_FN("leaky_relu %x {alpha=0.1}", -0.2, -0.05, 0, 0.75, 3);
    EXPECT_FN("clip %x {min=-1, max=0.5}", -1, -0.5, 0, 0.5, 0.5);
    EXPECT_FN("clip %x {min=-1}", -1, -0.5, 0, 0.75, 3);
    EXPECT_FN("reciprocal %x", -0.5, -2, INFINITY, 4.0 / 3, 1.0 / 3);
    EXPECT_FN("sqrt %x", NAN, NAN, 0, 0.866025403784439, 1.73205080756888);
    EXPECT_FN("rsqrt %x", NAN, NAN, INFINITY, 1.15470053837925,
              0.577350269189626);
    EXPECT_FN("log %x", NAN, NAN, -INFINITY, -0.287682072451781,
              1.09861228866811);
}

TEST_CASE(eval, rounding_functions) {
#define ROUNDED(op, ...)                                                       \
    EXPECT("g() {\nconst %x: f64[6] = [-2.5, -1.5, -0.2, 0.5, 1.5, 2.7]\n"     \
           "%y = " op " %x : f64[6]\nreturn %y",                               \
           __VA_ARGS__)
    ROUNDED("floor", -3, -2, -1, 0, 1, 2);
    ROUNDED("ceil", -2, -1, 0, 1, 2, 3);
    ROUNDED("round", -2, -2, 0, 0, 2, 3); /* half to even */
}

TEST_CASE(eval, far_out) {
#define FAR(op, ...)                                                           \
    EXPECT("g() {\nconst %x: f64[3] = [-800, 800, nan]\n"                      \
           "%y = " op " %x : f64[3]\nreturn %y",                               \
           __VA_ARGS__)
    FAR("sigmoid", 0, 1, NAN);
    FAR("log_sigmoid", -800, 0, NAN);
    FAR("softplus", 0, 800, NAN);
    FAR("relu", 0, 800, NAN);
    FAR("gelu", 0, 800, NAN);
    FAR("clip", -800, 800, NAN);
    FAR("sign", -1, 1, NAN);
}

TEST_CASE(eval, tests) {
    EXPECT("g() {\nconst %x: f32[4] = [1, nan, inf, -inf]\n"
           "%a = isnan %x\n%b = isinf %x\n%c = isfinite %x\n"
           "%d = not %c\nreturn %a, %b, %c, %d",
           0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1);
}

TEST_CASE(eval, binary) {
#define BINARY(op, ...)                                                        \
    EXPECT("g() {\nconst %a: f64[4] = [7, -7, 7, 0.5]\n"                       \
           "const %b: f64[4] = [2, 2, -2, nan]\n%y = " op " %a, %b\n"          \
           "return %y",                                                        \
           __VA_ARGS__)
    BINARY("add", 9, -5, 5, NAN);
    BINARY("sub", 5, -9, 9, NAN);
    BINARY("mul", 14, -14, -14, NAN);
    BINARY("div", 3.5, -3.5, -3.5, NAN);
    BINARY("mod", 1, -1, 1, NAN); /* fmod: takes the dividend's sign */
    BINARY("pow", 49, 49, 1.0 / 49, NAN);
    BINARY("min", 2, -7, -2, NAN);
    BINARY("max", 7, 2, 7, NAN);
    EXPECT("g() {\nconst %a: f64[1] = [4]\n%b = mul %a, 5E-1:f64\n"
           "%c = mul %a, 5e-1:f64\n%d = mul %a, 5E+1:f64\n"
           "%e = mul %a, -2.5e+0:f64\nreturn %b, %c, %d, %e",
           2, 2, 200, -10);
    BINARY("equal", 0, 0, 0, 0);
    BINARY("greater", 1, 0, 1, 0);
    BINARY("less", 0, 1, 0, 0);
    BINARY("greater_equal", 1, 0, 1, 0);
    BINARY("less_equal", 0, 1, 0, 0);
}

TEST_CASE(eval, integers) {
#define INTS(op, ...)                                                          \
    EXPECT("g() {\nconst %a: i32[4] = [7, -7, 7, -7]\n"                        \
           "const %b: i32[4] = [2, 2, -2, -2]\n%y = " op " %a, %b\n"           \
           "return %y",                                                        \
           __VA_ARGS__)
    INTS("div", 3, -3, -3, 3); /* truncates */
    INTS("mod", 1, 1, -1, -1); /* the divisor's sign */
    INTS("min", 2, -7, -2, -7);
    INTS("max", 7, 2, 7, -2);
    INTS("less", 0, 1, 0, 1);
    EXPECT("g() {\nconst %a: i64[2] = [3, -2]\nconst %b: i64[2] = [4, 3]\n"
           "%y = pow %a, %b\nreturn %y",
           81, -8);
    /* exact beyond 2^53 */
    EXPECT("g() {\nconst %a: i64[1] = [9007199254740993]\n"
           "const %b: i64[1] = [9007199254740992]\n"
           "%y = sub %a, %b\nreturn %y",
           1);
    /* wraps to the dtype */
    EXPECT("g() {\nconst %a: u8[2] = [200, 100]\nconst %b: u8[2] = [100, 7]\n"
           "%y = add %a, %b\nreturn %y",
           44, 107);
    EXPECT("g() {\nconst %a: i64[1] = [9223372036854775807]\n"
           "%y = mul %a, %a\nreturn %y",
           1);
    EXPECT("g() {\nconst %a: i32[3] = [-3, 0, 4]\n%n = neg %a\n%b = abs %a\n"
           "%s = sign %a\n%c = clip %a {min=-1, max=2}\n%r = relu %a\n"
           "return %n, %b, %s, %c, %r",
           3, 0, -4, 3, 0, 4, -1, 0, 1, -1, 0, 2, 0, 0, 4);
}

/* Converts as in C: keeps the low bits, with or without a sign. */
TEST_CASE(eval, integers_of_every_width) {
#define WIDTH(dtype, ...)                                                      \
    EXPECT("g() {\nconst %x: i64[5] = [127, 128, 32768, 65535, 4294967297]\n"  \
           "%y = cast %x : " dtype "[5]\nreturn %y",                           \
           __VA_ARGS__)
    WIDTH("bool", 1, 1, 1, 1, 1);
    WIDTH("u8", 127, 128, 0, 255, 1);
    WIDTH("i8", 127, -128, 0, -1, 1);
    WIDTH("u16", 127, 128, 32768, 65535, 1);
    WIDTH("i16", 127, 128, -32768, -1, 1);
    WIDTH("u32", 127, 128, 32768, 65535, 1);
    WIDTH("i32", 127, 128, 32768, 65535, 1);
    WIDTH("i64", 127, 128, 32768, 65535, 4294967297);
    WIDTH("u64", 127, 128, 32768, 65535, 4294967297);
    EXPECT("g() {\nconst %x: i64[2] = [2147483648, -1]\n"
           "%y = cast %x : i32[2]\n%z = cast %x : u32[2]\nreturn %y, %z",
           -2147483648., -1, 2147483648, 4294967295);
    EXPECT("g() {\nconst %a: i64[6] = [2, 0, 1, -1, -1, 5]\n"
           "const %b: i64[6] = [-1, 0, -7, -3, -4, 1]\n"
           "%y = pow %a, %b\nreturn %y",
           0, 1, 1, -1, 1, 5);
    EXPECT("g() {\nconst %x: u64[4] = [18446744073709551615, 1, 0, 2]\n"
           "%i = argsort %x {k=4}\n%j = argsort %x {k=4, descending=1}\n"
           "return %i, %j",
           2, 1, 3, 0, 0, 3, 1, 2);
    EXPECT("g() {\nconst %x: i64[4] = [-1, 1, 0, 1]\n"
           "%i = argsort %x {k=4}\n%j = argsort %x {k=3, descending=1}\n"
           "return %i, %j",
           0, 2, 1, 3, 1, 3, 2);
    EXPECT("g() {\nconst %x: f32[5] = [1, nan, -1, nan, 1]\n"
           "%i = argsort %x {k=5}\n%j = argsort %x {k=5, descending=1}\n"
           "return %i, %j",
           2, 0, 4, 1, 3, 1, 3, 0, 4, 2);
    EXPECT("g() {\nconst %x: i32[2,3] = [1, 2, 3, -4, 5, 7]\n"
           "%m = reduce_mean %x {axes=[1], keepdims=0}\n"
           "%n = reduce_mean %x {axes=[0], keepdims=0}\n"
           "%c = cumsum %x {axis=1}\n%d = cumsum %x {axis=0, exclusive=1}\n"
           "%e = cumsum %x {axis=1, reverse=1}\n"
           "%f = cumsum %x {axis=1, reverse=1, exclusive=1}\n"
           "return %m, %n, %c, %d, %e, %f",
           2, 2, -1, 3, 5, 1, 3, 6, -4, 1, 8, 0, 0, 0, 1, 2, 3, 6, 5, 3, 8, 12,
           7, 5, 3, 0, 12, 7, 0);
    EXPECT("g() {\nconst %x: i64[3] = [1, 9223372036854775807, 1]\n"
           "%c = cumsum %x {axis=0}\nreturn %c",
           1, -0x1p63, -0x1p63 + 1);
    EXPECT("g() {\nconst %x: i32[3,2] = [1, 2, 3, 4, 5, 6]\n"
           "const %i: i64[3] = [1, 1, 0]\n"
           "%y = scatter_add %x, %i {axis=0, shape=[2,2]}\nreturn %y",
           5, 6, 4, 6);
    EXPECT("g() {\nconst %x: f32[6] = [1, nan, 7, nan, 7, 2]\n"
           "%y = argmax %x {axis=0}\nconst %z: i32[4] = [3, 9, 9, -1]\n"
           "%w = argmax %z {axis=0}\nreturn %y, %w",
           1, 1);
}

TEST_CASE(eval, integer_division_by_zero_is_an_error) {
    const char *const ops[] = {"div", "mod"};
    for (int k = 0; k < 2; k++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        Diag d = {0};
        sb_printf(&sb,
                  "g() {\nconst %%a: i32[1] = [1]\n"
                  "const %%b: i32[1] = [0]\n%%y = %s %%a, %%b\nreturn %%y",
                  ops[k]);
        Graph *g = eval_parse(a, sb.data);
        CHECK(eval_run(eval_new(g, a, EVAL_STORAGE), &d) == ERR_USER);
        CHECK_HAS(d.text.data, "division by zero");
        sb_free(&d.text);
        sb_free(&sb);
        arena_free(a);
    }
}

TEST_CASE(eval, logic_and_select) {
    EXPECT("g() {\nconst %a: bool[4] = [0, 0, 1, 1]\n"
           "const %b: bool[4] = [0, 1, 0, 1]\n"
           "%x = and %a, %b\n%y = or %a, %b\n%z = xor %a, %b\n"
           "return %x, %y, %z",
           0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 1, 0);
    EXPECT("g() {\nconst %c: bool[2,1] = [1, 0]\n"
           "const %a: f32[2] = [1, inf]\nconst %b: f32[] = nan\n"
           "%y = where %c, %a, %b\nreturn %y",
           1, INFINITY, NAN, NAN);
}

TEST_CASE(eval, broadcasting) {
    EXPECT("g() {\nconst %a: f32[2,1,3] = [1, 2, 3, 4, 5, 6]\n"
           "const %b: f32[2,1] = [10, 20]\n%y = add %a, %b\nreturn %y",
           11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26);
}

TEST_CASE(eval, casts) {
    EXPECT("g() {\nconst %x: f32[5] = [-1.7, 0.5, 2.9, nan, 0]\n"
           "%i = cast %x : i32[5]\n%b = cast %x : bool[5]\n"
           "%f = cast %i : f64[5]\nreturn %i, %b, %f",
           -1, 0, 2, 0, 0, 1, 1, 1, 1, 0, -1, 0, 2, 0, 0);
}

/* ---- storage ------------------------------------------------------------- */

TEST_CASE(eval, storage_rounds_every_value) {
    /* bf16 cannot represent 1 + 2^-9, nor f16 1 + 2^-12: ties go to even */
    EXPECT_STORED("g() {\nconst %x: f32[2] = [1.001953125, 1.00390625]\n"
                  "%b = cast %x : bf16[2]\n%h = cast %x : f16[2]\n"
                  "return %b, %h",
                  1, 1, 1.001953125, 1.00390625);
    EXPECT_STORED("g() {\nconst %x: bf16[2] = [256, 1]\n"
                  "%y = add %x, 1 : bf16[2]\nreturn %y",
                  256, 2);
    EXPECT("g() {\nconst %x: bf16[2] = [256, 1]\n"
           "%y = add %x, 1 : bf16[2]\nreturn %y",
           257, 2);
    EXPECT_STORED("g() {\nconst %x: f16[1] = [60000]\n"
                  "%y = add %x, %x : f16[1]\n%z = add %x, %x : f32[1]\n"
                  "return %y, %z",
                  INFINITY, 120000);
}

TEST_CASE(eval, round_to_dtype) {
    CHECK(round_to_dtype(1 + 0x1p-25, DT_F32) == 1);
    CHECK(round_to_dtype(65519, DT_F16) == 65504);
    CHECK(isinf(round_to_dtype(65520, DT_F16)));
    CHECK(round_to_dtype(0x1p-25, DT_F16) == 0);
    CHECK(round_to_dtype(0x1.8p-25, DT_F16) == 0x1p-24);
    CHECK(round_to_dtype(0x1.03p0, DT_BF16) == 0x1.04p0);
    CHECK(round_to_dtype(0x1.01p0, DT_BF16) == 1);
    CHECK(round_to_dtype(-3e38, DT_BF16) < -2.98e38);
    CHECK(isinf(round_to_dtype(3.4e38, DT_BF16)));
    CHECK(isnan(round_to_dtype(NAN, DT_F16)));
    CHECK(round_to_dtype(0.1, DT_F64) == 0.1);
}

TEST_CASE(eval, tensors_keep_every_16_bit_pattern) {
    Arena *a = arena_new();
    DType kinds[] = {DT_F16, DT_BF16};
    int64_t n = 65536;
    for (int k = 0; k < 2; k++) {
        Tensor *t = tensor_new(a, type_make(kinds[k], 1, &n));
        uint16_t *bits = t->data;
        for (int i = 0; i < n; i++) bits[i] = (uint16_t)i;
        EvalTensor *e = eval_from_tensor(a, t);
        Tensor *back = eval_to_tensor(a, e, t->type);
        int bad = 0;
        for (int i = 0; i < n; i++)
            bad += !isnan(e->f[i]) && ((uint16_t *)back->data)[i] != bits[i];
        CHECK_EQ_INT(bad, 0);
    }
    arena_free(a);
}

/* ---- generators and moves ------------------------------------------------ */

TEST_CASE(eval, generators) {
    EXPECT("g() {\n%a = full {value=2.5} : f32[2]\n"
           "%b = iota {axis=1} : i32[2,3]\nreturn %a, %b",
           2.5, 2.5, 0, 1, 2, 0, 1, 2);
    /* published results of philox4x32-10 for zeros and for pi */
    EXPECT("g() {\nconst %r: i64[2] = [0, 0]\n"
           "%u = rand_uniform %r {salt=0} : f64[4]\nreturn %u",
           (0x6627e8d5u >> 8) * 0x1p-24, (0xe169c58du >> 8) * 0x1p-24,
           (0xbc57ac4cu >> 8) * 0x1p-24, (0x9b00dbd8u >> 8) * 0x1p-24);
    EXPECT("g() {\nconst %r: i64[2] = [2999170649027065890, 5]\n"
           "%u = rand_uniform %r {salt=7} : f64[6]\nreturn %u",
           0.418570637703, 0.917384505272, 0.167499601841, 0.256680130959,
           0.150984466076, 0.563755631447);
}

TEST_CASE(eval, dropout) {
    /* the stream above compared with ratio 0.25 */
    EXPECT("g() {\nconst %r: i64[2] = [2999170649027065890, 5]\n"
           "const %x: f64[6] = [3, 6, 9, 12, 15, 18]\n"
           "%y = dropout %x, %r {salt=7, ratio=0.25}\nreturn %y",
           4, 8, 0, 16, 0, 24);
}

TEST_CASE(eval, moves) {
#define MOVED(op, ...)                                                         \
    EXPECT("g() {\nconst %x: f32[2,3] = [1, 2, 3, 4, 5, 6]\n%y = " op "\n"     \
           "return %y",                                                        \
           __VA_ARGS__)
    MOVED("reshape %x {shape=[3,2]}", 1, 2, 3, 4, 5, 6);
    MOVED("transpose %x {perm=[1,0]}", 1, 4, 2, 5, 3, 6);
    MOVED("expand %x {shape=[2,2,3]}", 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6);
    MOVED("slice %x {starts=[0,2], sizes=[2,2], steps=[1,-2]}", 3, 1, 6, 4);
    MOVED("slice_grad %x {shape=[2,6], starts=[0,4], steps=[1,-2]}", 3, 0, 2, 0,
          1, 0, 6, 0, 5, 0, 4, 0);
    MOVED("trilu %x {upper=1, k=1}", 0, 2, 3, 0, 0, 6);
    MOVED("trilu %x {upper=0, k=0}", 1, 0, 0, 4, 5, 0);
    MOVED("concat %x, %x {axis=1}", 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    MOVED("concat %x, %x {axis=0}", 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6);
    EXPECT("g() {\nconst %x: f32[1] = [-0]\n%c = concat %x, %x {axis=0}\n"
           "%y = reciprocal %c\nreturn %y",
           -INFINITY, -INFINITY);
    EXPECT("g() {\nconst %x: f32[2,3] = [1, 2, 3, 4, 5, 6]\n"
           "%a, %b = split %x {axis=1, sizes=[1,2]}\nreturn %a, %b",
           1, 4, 2, 3, 5, 6);
    EXPECT("g() {\nconst %x: i64[2,2] = [1, 2, 3, 4]\n"
           "%y = transpose %x {perm=[1,0]}\nreturn %y",
           1, 3, 2, 4);
}

TEST_CASE(eval, pads) {
#define PADDED(attrs, ...)                                                     \
    EXPECT("g() {\nconst %x: f32[3] = [1, 2, 3]\n"                             \
           "%y = pad %x {pads=[2,2], " attrs "}\nreturn %y",                   \
           __VA_ARGS__)
    PADDED("mode=\"constant\", value=9", 9, 9, 1, 2, 3, 9, 9);
    PADDED("mode=\"reflect\"", 3, 2, 1, 2, 3, 2, 1);
    PADDED("mode=\"edge\"", 1, 1, 1, 2, 3, 3, 3);
    PADDED("mode=\"wrap\"", 2, 3, 1, 2, 3, 1, 2);
    EXPECT("g() {\nconst %x: f32[1,2] = [1, 2]\n"
           "%y = pad %x {pads=[1,0,0,1], value=0}\nreturn %y",
           0, 0, 0, 1, 2, 0);
#define UNPADDED(attrs, ...)                                                   \
    EXPECT("g() {\nconst %x: f32[7] = [1, 10, 100, 1000, 2, 20, 200]\n"        \
           "%y = pad_grad %x {shape=[3], pads=[2,2], " attrs "}\nreturn %y",   \
           __VA_ARGS__)
    UNPADDED("mode=\"reflect\"", 300, 1030, 3);
    UNPADDED("mode=\"edge\"", 111, 1000, 222);
    UNPADDED("mode=\"wrap\"", 120, 1201, 12);
    UNPADDED("mode=\"constant\"", 100, 1000, 2);
}

TEST_CASE(eval, gather_and_scatter) {
    EXPECT("g() {\nconst %x: f32[3,2] = [1, 2, 3, 4, 5, 6]\n"
           "const %i: i32[2,2] = [2, 0, -1, 7]\n"
           "%y = gather %x, %i {axis=0}\nreturn %y",
           5, 6, 1, 2, 5, 6, 0, 0);
    EXPECT("g() {\nconst %x: f32[2,3] = [1, 2, 3, 4, 5, 6]\n"
           "const %i: i64[2] = [2, 1]\n%y = gather %x, %i {axis=1}\n"
           "return %y",
           3, 2, 6, 5);
    EXPECT("g() {\nconst %x: f32[2,3] = [1, 2, 3, 4, 5, 6]\n"
           "const %i: i64[] = 1\n%y = gather %x, %i {axis=0}\nreturn %y",
           4, 5, 6);
    EXPECT("g() {\nconst %x: f32[3] = [1, 2, 3]\n" /* both ends */
           "const %i: i64[7] = [0, 2, 3, -1, -3, -4, 4]\n"
           "%y = gather %x, %i {axis=0}\nreturn %y",
           1, 3, 0, 3, 1, 0, 0);
    EXPECT("g() {\nconst %u: f32[7] = [1, 2, 4, 8, 16, 32, 64]\n"
           "const %i: i64[7] = [0, 2, 3, -1, -3, -4, 4]\n"
           "%y = scatter_add %u, %i {axis=0, shape=[3]}\nreturn %y",
           17, 0, 10);
    EXPECT("g() {\nconst %u: f32[4,2] = [1, 2, 3, 4, 5, 6, 7, 8]\n"
           "const %i: i32[4] = [2, 0, -1, 7]\n"
           "%y = scatter_add %u, %i {axis=0, shape=[3,2]}\nreturn %y",
           3, 4, 0, 0, 6, 8);
}
