/* SPDX-License-Identifier: Apache-2.0 */
/* composites.c: softmax, attention, norms, losses, and whole graphs. */
#include "ir/ir.h"
#include "tests/harness.h"
#include "tests/ir/eval/eval.h"

/* ---- composites ---------------------------------------------------------- */

TEST_CASE(eval, softmax) {
    EXPECT("g(%x: f64[2,3,2]) {\n%y = softmax %x {axis=1}\nreturn %y",
           0.131601647147, 0.293814774711, 0.278600689196, 0.622005882945,
           0.589797663657, 0.0841793423432, 0.703313976022, 0.293814774711,
           0.0951831961492, 0.622005882945, 0.201502827829, 0.0841793423432);
    EXPECT("g(%x: f64[2,3,2]) {\n%y = log_softmax %x {axis=-1}\nreturn %y",
           -1.91022415044, -0.160224150438, -1.91022415044, -0.160224150438,
           -0.313261687518, -1.31326168752, -0.313261687518, -1.31326168752,
           -1.91022415044, -0.160224150438, -0.313261687518, -1.31326168752);
    EXPECT("g() {\nconst %x: f64[2] = [1000, 1001]\n%y = softmax %x\n"
           "return %y",
           0.268941421369995, 0.731058578630005);
}

/* Equal scores: each of four queries gets the mean of those elements of 1,
   2, 4, 8 to which it attends. */
#define SEEN(args, ...)                                                        \
    EXPECT("g() {\nconst %q: f64[1,1,4,1] = 0\n"                               \
           "const %v: f64[1,1,4,1] = [1, 2, 4, 8]\n"                           \
           "const %m: f64[4,2] = 0\n"                                          \
           "%y = attention %q, %q, %v" args " : f64[1,1,4,1]\nreturn %y",      \
           __VA_ARGS__)

TEST_CASE(eval, attention_windows) {
    SEEN("", 3.75, 3.75, 3.75, 3.75);
    SEEN(" {causal=1}", 1, 1.5, 7.0 / 3, 3.75);
    SEEN(" {left=1}", 3.75, 3.75, 14.0 / 3, 6);
    SEEN(" {right=1}", 1.5, 7.0 / 3, 3.75, 3.75);
    SEEN(" {left=0, right=1}", 1.5, 3, 6, 8);
    SEEN(", %m", 1.5, 1.5, 1.5, 1.5);
}

TEST_CASE(eval, layer_norm) {
    EXPECT("g(%x: f64[2,3,4], %s: f64[3,4], %b: f64[3,4]) {\n"
           "%y, %m, %r = layer_norm %x, %s, %b {axis=1, epsilon=0.001}\n"
           "return %y, %m, %r",
           0.938079951767, 0.157014481875, 0.881149826513, -1.21977809631,
           -0.574641484362, 0.75, -1.57611772522, -1.15617091567,
           0.768976708418, -1.7823308192, 1.16242618796, 0.938079951767,
           -0.0475904672343, -1.62924456228, 1.39227834317, -0.202902591296,
           -2.0280397959, 0.75, -0.195892642321, -2.26451295648, 0.270043729864,
           -0.0265606203091, 0.411335955976, -0.0475904672343,
           -0.104166666666667, 0.0416666666666667, 1.20101227945, 1.2985765843);
}

TEST_CASE(eval, batch_norm) {
    EXPECT("g(%x: f64[2,3,4], %s: f64[3], %b: f64[3], %m: f64[3], %v0: f64[3]"
           ") {\n%v = abs %v0\n"
           "%y = batch_norm %x, %s, %b, %m, %v {epsilon=0.001}\nreturn %y",
           1.37443792152, 0.499875093672, 0.999625281016, 0.125062453164,
           -0.389396404073, -1.83181078778, 0.692414383708, -0.75, 1,
           1.87325523256, 1.37425224253, 0.875249252491, 0.499875093672,
           0.999625281016, 0.125062453164, 0.624812640508, -1.83181078778,
           0.692414383708, -0.75, -2.19241438371, 1.87325523256, 1.37425224253,
           0.875249252491, 1.74850448505);
    EXPECT("g(%x: f64[2,3,4], %s: f64[3], %b: f64[3], %m0: f64[3], %v0: f64[3]"
           ") {\n%y, %m, %v = batch_norm %x, %s, %b, %m0, %v0 {training=1, "
           "epsilon=0.001}\nreturn %y, %m, %v",
           1.11868314045, 0.0611558390325, 0.665457154128, -0.392070147289,
           -0.264084889185, -1.99178306097, 1.03168873965, -0.696009432132,
           0.765921980966, 1.31210402538, 1, 0.687895974622, 0.0611558390325,
           0.665457154128, -0.392070147289, 0.212231167807, -1.99178306097,
           1.03168873965, -0.696009432132, -2.42370760392, 1.31210402538, 1,
           0.687895974622, 1.23407801903, 0.1875, -0.03125, -0.25, 0.68359375,
           0.5224609375, 0.640625);
}

#define XENT(extra, attrs, ...)                                                \
    EXPECT("g(%x: f64[4,3]) {\nconst %t: i64[4] = [0, 2, -100, 1]\n"           \
           "const %w: f64[3] = [0.5, 1.5, 2]\n"                                \
           "%l, %lse = softmax_cross_entropy %x, %t" extra                     \
           " {ignore_index=-100, " attrs "}\nreturn %l",                       \
           __VA_ARGS__)

TEST_CASE(eval, cross_entropy) {
    XENT("", "reduction=\"mean\"", 1.99935579859);
    XENT("", "reduction=\"none\"", 2.18285546688, 2.40760596444, 0,
         1.40760596444);
    XENT(", %w", "reduction=\"mean\"", 2.00451215225);
    XENT(", %w", "reduction=\"mean\", label_smoothing=0.1", 1.96128818355);
    XENT("", "reduction=\"sum\", label_smoothing=0.2", 5.6314007291);
    EXPECT("g(%x: f64[4,3]) {\nconst %t: u8[4] = [0, 2, 1, 1]\n"
           "%l, %lse = softmax_cross_entropy %x, %t\nreturn %lse",
           0.932855466879, 1.65760596444, 1.40760596444, 1.15760596444);
    EXPECT("g(%x: f64[2,3,2]) {\nconst %t: i32[2,2] = [0, 2, 1, 1]\n"
           "%l, %lse = softmax_cross_entropy %x, %t {axis=1}\nreturn %l",
           1.832384766);
}

TEST_CASE(eval, nll) {
#define NLL(extra, attrs, ...)                                                 \
    EXPECT("g(%x: f64[4,3]) {\nconst %t: i64[4] = [0, 2, -100, 1]\n"           \
           "const %w: f64[3] = [0.5, 1.5, 2]\n"                                \
           "%l = nll_loss %x, %t" extra " {ignore_index=-100, " attrs "}\n"    \
           "return %l",                                                        \
           __VA_ARGS__)
    NLL(", %w", "reduction=\"mean\"", 0.625);
    NLL("", "reduction=\"none\"", 1.25, 0.75, 0, 0.25);
    EXPECT("g(%x: f64[2,3,2]) {\nconst %t: i64[2,2] = [0, 2, 1, 1]\n"
           "%l = nll_loss %x, %t {axis=1, reduction=\"sum\"}\nreturn %l",
           2.25);
}

/* ---- whole graphs -------------------------------------------------------- */

TEST_CASE(eval, runs_again_with_other_inputs) {
    Arena *a = arena_new();
    Graph *g = eval_parse(a, "g(%x: f32[2]) {\n"
                             "%s = reduce_sum %x {axes=[0], keepdims=0}\n"
                             "return %s");
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    EvalTensor *t = eval_tensor_new(a, value_get(g, g->inputs.data[0])->type);
    Diag d = {0};
    for (int k = 1; k < 4; k++) {
        t->f[0] = t->f[1] = k;
        eval_bind(e, g->inputs.data[0], t);
        REQUIRE(eval_run(e, &d) == OK);
        CHECK(eval_get(e, g->outputs.data[0].value)->f[0] == 2 * k);
    }
    arena_free(a);
}

TEST_CASE(eval, variables_start_from_their_data_and_inputs_are_needed) {
    EXPECT("g() {\nstate %s: f32[2] = 3\n%y = add %s, 1\nreturn %y", 4, 4);
    Arena *a = arena_new();
    Graph *g = eval_parse(a, "g(%x: f32[2]) {\n%y = neg %x\nreturn %y");
    Diag d = {0};
    CHECK(eval_run(eval_new(g, a, EVAL_STORAGE), &d) == ERR_USER);
    CHECK_HAS(d.text.data, "'x' has no data");
    sb_free(&d.text);
    arena_free(a);
}

/* Constant folding calls this function. */
TEST_CASE(eval, folds_one_node) {
    Arena *a = arena_new();
    Graph *g = eval_parse(a, "g() {\nconst %x: i32[2] = [1, 2]\n"
                             "%y = add %x, %x\nreturn %y");
    const Node *n = node_get(g, g->order.data[0]);
    EvalTensor *x = eval_from_tensor(a, value_get(g, n->in[0])->data);
    const EvalTensor *in[] = {x, x};
    EvalTensor *out[1];
    char msg[MSG_TEXT];
    REQUIRE(eval_node(g, g->order.data[0], a, EVAL_STORAGE, in, out, msg) ==
            OK);
    CHECK(out[0]->i[0] == 2 && out[0]->i[1] == 4);
    arena_free(a);
}
