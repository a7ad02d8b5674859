/* SPDX-License-Identifier: Apache-2.0 */
/* canon_test.c: constants and moves that simplify and canon recognise. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

/* ---- constants ----------------------------------------------------------- */

/* Row numbers outside of a constant table are found when they are read. */
TEST_CASE(simplify, rows_of_constants) {
    static const struct {
        const char *rows;
        bool folded;
    } cases[] = {
        {"0, 2", true}, {"-3, -1", true}, {"0, 3", false}, {"-4, 0", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        char text[300];
        bool folded = true;
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[2,2]) {\n"
                 "  const %%t: f32[3,2] = [1, 2, 3, 4, 5, 6]\n"
                 "  const %%i: i64[2] = [%s]\n"
                 "  %%r = gather %%t, %%i {axis=0}\n  %%y = mul %%r, %%x\n"
                 "  return %%y\n}\n",
                 cases[i].rows);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        Results before = {0}, after;
        if (cases[i].folded) before = results(a, g, EVAL_EXACT);
        passed(a, m, "simplify,dce", no_flags);
        for (int k = 0; k < g->order.len; k++)
            folded &= node_get(g, g->order.data[k])->op != OP_GATHER;
        CHECK_MSG(folded == cases[i].folded, "%s", text);
        if (folded && cases[i].folded) {
            after = results(a, g, EVAL_EXACT);
            expect_equal(&before, &after, 0, text);
        }
        arena_free(a);
    }
}

/* Patterns with constants (1, 2, epsilon) are recognised whatever the
   constants' shapes, unless broadcasting by %c repeats x. */
TEST_CASE(simplify, numbers_of_any_shape) {
    static const struct {
        const char *number, *lines;
    } rows[] = {
        {"1", "%y = mul %x, %c"},
        {"1", "%y = mul %c, %x"},
        {"1", "%y = div %x, %c"},
        {"0", "%y = add %x, %c"},
        {"0", "%y = add %c, %x"},
        {"0", "%y = sub %x, %c"},
        {"1", "%y = pow %x, %c"},
        {"2", "%y = pow %x, %c"},
        {"3", "%y = pow %x, %c"},
        {"0.5", "%a = abs %x\n  %y = pow %a, %c"},
        {"-1", "%a = exp %x\n  %y = pow %a, %c"},
        {"1", "%g = sigmoid %x\n  %a = sub %c, %g\n  %y = log %a"},
        {"1", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, %c\n"
              "  %e = mul %x, %d\n  %y = mul %e, 0.5"},
        {"0.5", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, 1\n"
                "  %e = mul %x, %d\n  %y = mul %e, %c"},
        {"0.5", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, 1\n"
                "  %e = mul %x, %c\n  %y = mul %e, %d"},
        {"1.4142135", "%a = div %x, %c\n  %b = erf %a\n  %d = add %b, 1\n"
                      "  %e = mul %x, %d\n  %y = mul %e, 0.5"},
        {"0.01", "%a = mul %x, %x\n  %b = reduce_mean %a {axes=[0]}\n"
                 "  %d = add %b, %c\n  %e = rsqrt %d\n  %y = mul %x, %e"},
        {"1", "%a = mul %x, %x\n  %b = reduce_mean %a {axes=[0]}\n"
              "  %d = add %b, 0.01\n  %e = sqrt %d\n  %f = div %c, %e\n"
              "  %y = mul %x, %f"},
        {"7", "%a = expand %x {shape=[3,5]}\n  %y = add %a, %c"},
        {"7", "%a = full {value=2} : f32[3,5]\n  %y = add %a, %c"},
        {"7", "%a = full {value=2} : f32[3,5]\n  %b = add %a, %c\n"
              "  %y = mul %x, %b"},
        {"7", "%a = greater %x, %c\n  %y = where %a, %x, %c"},
    };
    static const char *const shapes[] = {"", "1", "5", "1,1", "3,1", "2,1,5"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            Arena *a = arena_new();
            char text[500];
            snprintf(text, sizeof text,
                     "graph predict(%%x: f32[5]) {\n  const %%c: f32[%s] = "
                     "%s\n  %s\n  return %%y\n}\n",
                     shapes[k], rows[i].number, rows[i].lines);
            Module *m = parsed(a, text);
            const Graph *g = m->graphs.data[0];
            Results before = results(a, g, EVAL_EXACT);
            passed(a, m, "simplify,cse,dce,inline,canon,simplify,cse,dce",
                   no_flags);
            Results after = results(a, g, EVAL_EXACT);
            expect_equal(&before, &after, 1e-5, text);
            arena_free(a);
        }
}

/* ---- moves --------------------------------------------------------------- */

static void put_ints(StrBuf *sb, const char *name, const int64_t *v, int n) {
    sb_printf(sb, "%s[", name);
    for (int i = 0; i < n; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)v[i]);
    sb_puts(sb, "]");
}

/* %x sliced along one axis, cast or not, and then reshaped to `to`. */
static void check_reshape_of_slice(const int64_t *starts, const int64_t *sizes,
                                   const int64_t *steps, const int64_t *to,
                                   int rank, bool cast) {
    Arena *a = arena_new();
    StrBuf sb = {0};
    sb_puts(&sb, "graph predict(%x: f32[4,6,5]) {\n  %s = slice %x {");
    put_ints(&sb, "starts=", starts, 3);
    put_ints(&sb, ", sizes=", sizes, 3);
    put_ints(&sb, ", steps=", steps, 3);
    sb_puts(&sb, "}\n");
    if (cast) {
        sb_puts(&sb, "  %c = cast %s : bf16");
        put_ints(&sb, "", sizes, 3);
    }
    sb_printf(&sb, "\n  %%y = reshape %%%s {", cast ? "c" : "s");
    put_ints(&sb, "shape=", to, rank);
    sb_puts(&sb, "}\n  return %y\n}\n");
    Module *m = parsed(a, sb.data);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_STORAGE);
    passed(a, m, "canon,dce", no_flags);
    Results after = results(a, g, EVAL_STORAGE);
    expect_equal(&before, &after, 0, sb.data);
    sb_free(&sb);
    arena_free(a);
}

/* Splits an axis in all ways, or drops an axis of length 1. */
static void check_reshapes_of_slice(const int64_t *starts, const int64_t *sizes,
                                    const int64_t *steps) {
    for (int a = 0; a < 3; a++)
        for (int64_t q = 1; q <= 3; q++) {
            int64_t to[4];
            int n = 0;
            if (q == 1 ? sizes[a] != 1 : sizes[a] % q) continue;
            for (int d = 0; d < 3; d++) {
                if (d != a) to[n++] = sizes[d];
                if (d == a && q > 1) to[n++] = sizes[d] / q;
                if (d == a && q > 1) to[n++] = q;
            }
            for (int cast = 0; cast < 2; cast++)
                check_reshape_of_slice(starts, sizes, steps, to, n, cast);
        }
}

/* Each slice of each axis, and the same without the first element of the
   next axis. */
TEST_CASE(canon, reshapes_of_slices) {
    static const int64_t whole[] = {4, 6, 5};
    for (int axis = 0; axis < 3; axis++)
        for (int64_t start = 0; start < whole[axis]; start++)
            for (int64_t size = 1; start + size <= whole[axis]; size++)
                for (int64_t step = 1; step <= 2; step++) {
                    int64_t starts[3] = {0}, steps[3] = {1, 1, 1}, sizes[3];
                    memcpy(sizes, whole, sizeof sizes);
                    starts[axis] = start;
                    steps[axis] = step;
                    sizes[axis] = (size + step - 1) / step;
                    check_reshapes_of_slice(starts, sizes, steps);
                    starts[(axis + 1) % 3]++;
                    sizes[(axis + 1) % 3]--;
                    check_reshapes_of_slice(starts, sizes, steps);
                }
}
