/* SPDX-License-Identifier: Apache-2.0 */
/* pattern_test.c: trees of ops found in graphs (passes/pattern.h). */
#include "passes/pattern.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* True if the graph's output is the tree; *m: what its names stand for. */
static bool found(Arena *a, const char *tree, double near, const char *lines,
                  Match *m, const Graph **of) {
    StrBuf sb = {0};
    sb_printf(&sb,
              "graph predict(%%x: f32[2,3], %%y: f32[2,3], %%z: f32[3]) {\n"
              "%s  return %%r\n}\n",
              lines);
    *of = parsed(a, sb.data)->graphs.data[0];
    sb_free(&sb);
    Pattern p = {.text = tree, .near = near};
    *m = (Match){0};
    return pattern_matches(&p, *of, (*of)->outputs.data[0].value, m);
}

static bool finds_near(const char *tree, double near, const char *lines) {
    Arena *a = arena_new();
    const Graph *g;
    Match m;
    bool yes = found(a, tree, near, lines, &m, &g);
    arena_free(a);
    return yes;
}

static bool finds(const char *tree, const char *lines) {
    return finds_near(tree, 0, lines);
}

TEST_CASE(pattern, sums_and_products_have_their_operands_in_any_order) {
    const char *both[] = {"  %e = exp %x\n  %r = mul %e, %y\n",
                          "  %e = exp %x\n  %r = mul %y, %e\n"};
    for (int i = 0; i < 2; i++) {
        CHECK(finds("exp(a) * b", both[i]));
        CHECK(finds("b * exp(a)", both[i]));
    }
    CHECK(finds("exp(a) - b", "  %e = exp %x\n  %r = sub %e, %y\n"));
    CHECK(!finds("b - exp(a)", "  %e = exp %x\n  %r = sub %e, %y\n"));
}

/* The order of the outer product follows from the inner one, which is tried
   after it. */
TEST_CASE(pattern, an_order_is_tried_again_when_a_later_one_fails) {
    const char *lines = "  %p = mul %x, %y\n  %q = mul %y, %y\n"
                        "  %r = add %p, %q\n";
    CHECK(finds("a * a + a * b", lines));
    CHECK(finds("b * a + a * a", lines));
    CHECK(!finds("a * a + b * b where a = exp(c)", lines));
    CHECK(!finds("a * a + a * a", lines));
}

TEST_CASE(pattern, a_name_is_one_value) {
    CHECK(finds("a * a", "  %r = mul %x, %x\n"));
    CHECK(!finds("a * a", "  %r = mul %x, %y\n"));
    CHECK(finds("a * b", "  %r = mul %x, %x\n"));
}

TEST_CASE(pattern, numbers_and_capitals_are_constants) {
    const char *plus = "  %r = add %x, 0.5\n";
    CHECK(finds("a + 0.5", plus));
    CHECK(finds("a + E", plus));
    CHECK(!finds("a + 0.25", plus));
    CHECK(!finds("a + E", "  %r = add %x, %y\n"));
    CHECK(finds("a + -inf", "  %r = add %x, -inf\n"));
    CHECK(finds("a + -2", "  %r = add %x, -2\n"));
    CHECK(finds("a + 7", "  %f = full {value=7.0} : f32[3]\n"
                         "  %r = add %x, %f\n"));
    CHECK(!finds("a * 1.4142136", "  %r = mul %x, 1.4142\n"));
    CHECK(finds_near("a * 1.4142136", 1e-4, "  %r = mul %x, 1.4142\n"));
    CHECK(!finds_near("a * 1.4142136", 1e-4, "  %r = mul %x, 1.41\n"));
}

TEST_CASE(pattern, attributes_are_as_written_or_have_their_defaults) {
    const char *kept = "  %r = reduce_sum %x {axes=[1]}\n";
    CHECK(finds("reduce_sum(a, axes=[1])", kept));
    CHECK(finds("reduce_sum(a, axes=[-1])", kept));
    CHECK(finds("reduce_sum(a, axes=axes)", kept));
    CHECK(finds("reduce_sum(a, axes=axes, keepdims=1)", kept));
    CHECK(!finds("reduce_sum(a, axes=[0])", kept));
    CHECK(!finds("reduce_sum(a, axes=[0, 1])", kept));
    CHECK(!finds("reduce_sum(a)", kept));
    CHECK(!finds("reduce_sum(a, axes=[1])",
                 "  %r = reduce_sum %x {axes=[1], keepdims=0}\n"));
    const char *twice = "  %s = reduce_sum %x {axes=[0]}\n"
                        "  %r = reduce_sum %s {axes=[1]}\n";
    CHECK(finds("reduce_sum(reduce_sum(a, axes=b), axes=c)", twice));
    CHECK(!finds("reduce_sum(reduce_sum(a, axes=b), axes=b)", twice));
}

TEST_CASE(pattern, a_function_is_a_node_with_its_attributes) {
    CHECK(finds("log(softmax(a, axis=b))",
                "  %s = softmax %x {axis=1}\n  %r = log %s\n"));
    CHECK(!finds("log(log_softmax(a, axis=b))",
                 "  %s = softmax %x {axis=1}\n  %r = log %s\n"));
    CHECK(!finds("log(softmax(a, axis=0))",
                 "  %s = softmax %x {axis=1}\n  %r = log %s\n"));
}

TEST_CASE(pattern, parts_have_names) {
    Arena *a = arena_new();
    const Graph *g;
    Match m;
    const char *lines = "  %e = exp %x\n"
                        "  %s = reduce_sum %e {axes=[1]}\n"
                        "  %r = div %e, %s\n";
    CHECK(found(a, "e / reduce_sum(e, axes=axes) where e = exp(s)", 0, lines,
                &m, &g));
    CHECK_STR(value_get(g, match_value(&m, "s"))->name, "x");
    CHECK_STR(value_get(g, match_value(&m, "e"))->name, "e");
    CHECK_EQ_INT(m.nodes, 3);
    CHECK(!finds("e / reduce_sum(e, axes=axes) where e = log(s)", lines));
    arena_free(a);
}
