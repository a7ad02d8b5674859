/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_random_test.c: kernels of random graphs compute the interpreter's
   results (subject.h). */
#include "tests/harness.h"
#include "tests/support/subject.h"

#include <string.h>

/* ---- random graphs ------------------------------------------------------- */

static int pick(int n) { return (int)(random_bits() % (uint32_t)n); }

/* Rank-2 values of a random graph, all with shape rows x cols or (transposed
   = 1) cols x rows. */
typedef struct RandomGraph {
    StrBuf sb;
    int n, shape[64];
} RandomGraph;

static int pick_shaped(const RandomGraph *r, int shape) {
    for (;;) { /* mostly recent values, so that most nodes are used */
        int v = pick(4) ? r->n - 1 - pick(r->n < 6 ? r->n : 6) : pick(r->n);
        if (r->shape[v] == shape) return v;
    }
}

static void random_node(RandomGraph *r) {
    static const char *const unary[] = {"neg",  "abs",   "relu",
                                        "sign", "floor", "round"};
    static const char *const binary[] = {"add", "sub", "mul", "max", "min"};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    int shape = pick(2), a = pick_shaped(r, shape), b = pick_shaped(r, shape);
    const char *dims = shape ? "23,6" : "6,23";
    int c = r->n;
    switch (pick(10)) {
    case 0:
        sb_printf(&r->sb, "%%v%d = transpose %%v%d {perm=[1,0]} ", c, a);
        shape = !shape;
        break;
    case 1:
        sb_printf(&r->sb, "%%v%d = cast %%v%d : %s[%s] ", c, a, dtypes[pick(3)],
                  dims);
        break;
    case 2: sb_printf(&r->sb, "%%v%d = %s %%v%d ", c, unary[pick(6)], a); break;
    case 3: /* a slice, moved by one row */
        sb_printf(&r->sb,
                  "%%s%d = slice %%v%d {starts=[1,0], sizes=[%s], "
                  "steps=[1,1]} %%v%d = pad %%s%d {pads=[0,0,1,0], "
                  "value=0.5} ",
                  c, a, shape ? "22,6" : "5,23", c, c);
        break;
    case 4: /* turned round */
        sb_printf(&r->sb,
                  "%%s%d = slice %%v%d {starts=[0,0], sizes=[%s], "
                  "steps=[1,1]} %%t%d = slice %%v%d {starts=[0,%s], "
                  "sizes=[%s], steps=[1,1]} "
                  "%%v%d = concat %%t%d, %%s%d {axis=1} ",
                  c, a, shape ? "23,2" : "6,9", c, a, shape ? "2" : "9",
                  shape ? "23,4" : "6,14", c, c, c);
        break;
    case 5:
        sb_printf(&r->sb, "%%v%d = gather %%v%d, %%i%d {axis=0} ", c, a, shape);
        break;
    default:
        sb_printf(&r->sb, "%%v%d = %s %%v%d, %%v%d ", c, binary[pick(5)], a, b);
    }
    r->shape[r->n++] = shape;
}

static const char *random_graph(Arena *a) {
    RandomGraph r = {.n = 4, .shape = {0, 1, 0, 1}};
    StrBuf text = {0};
    int nodes = 4 + pick(24);
    for (int i = 0; i < nodes; i++) random_node(&r);
    sb_printf(&text, "graph g(%%v0: f32[6,23], %%v1: bf16[23,6], "
                     "%%v2: f16[6,23]"
                     ", %%v3: f32[23,6]) { const %%i0: i64[6] = [4,0,5,5,-6,2] "
                     "const %%i1: i32[23] = [7,1,1,0,22,3,9,-1,20,5,6,8,13,14,"
                     "10,17,12,-23,2,4,19,21,11] group point { ");
    sb_putn(&text, r.sb.data, r.sb.len);
    int y = r.n - 1;
    sb_printf(&text, "%%z = add %%v%d, %%v%d } return %%z }", y,
              pick_shaped(&r, r.shape[y]));
    const char *s = arena_printf(a, "%s", text.data);
    sb_free(&r.sb);
    sb_free(&text);
    return s;
}

TEST_CASE(kernel_random, graphs) {
    enum { N = 60 };
    static Subject s[N];
    Arena *a = arena_new();
    random_start(2);
    for (int i = 0; i < N; i++) s[i] = (Subject){.text = random_graph(a)};
    check_batch(s, N, "");
    arena_free(a);
}

/* ---- random reductions --------------------------------------------------- */

/* Two levels of reductions over the same axes.  All numbers are integers
   below 2^24, so that sums are exact in any order. */
static const char *random_rows(Arena *a) {
    static const int dims[] = {5, 1, 20, 70};
    static const char *const folds[] = {"sum", "max", "min"};
    static const char *const ops[] = {"add", "sub", "max", "min"};
    static const char *const axes[] = {"0",   "1",   "2",    "0,1",
                                       "0,2", "1,2", "0,1,2"};
    int d[3] = {dims[pick(4)], dims[pick(4)], dims[pick(3)]};
    bool large = d[0] * d[1] * d[2] > 1500; /* sums of sums would be too
                                               large */
    const char *ax = axes[pick(7)], *dt = pick(2) ? "f32" : "bf16";
    return arena_printf(
        a,
        "graph g(%%x: %s[%d,%d,%d], %%z: f32[%d,%d,%d], %%w: f32[%d]) {"
        " group row { %%a = round %%x %%b = round %%z %%v = round %%w "
        "%%c = %s %%a, %%v : f32[%d,%d,%d] "
        "%%r = reduce_%s %%c {axes=[%s]} %%q = reduce_%s %%b {axes=[%s]} "
        "%%n = neg %%r %%e = %s %%n, %%b %%f = %s %%e, %%q "
        "%%s = reduce_%s %%f {axes=[%s]} %%y = %s %%s, %%f %%t = add %%s, %%q }"
        " return %s }",
        dt, d[0], d[1], d[2], d[0], d[1], d[2], d[2], ops[pick(4)], d[0], d[1],
        d[2], folds[pick(3)], ax, folds[pick(3)], ax, ops[pick(4)],
        ops[pick(4)], folds[large ? 1 : pick(3)], ax, ops[pick(4)],
        pick(3) == 0   ? "%y, %s, %t"
        : pick(2) == 0 ? "%y, %c"
                       : "%t, %f, %r");
}

TEST_CASE(kernel_random, reductions) {
    enum { N = 50 };
    static Subject s[N];
    Arena *a = arena_new();
    random_start(3);
    for (int i = 0; i < N; i++) s[i] = (Subject){.text = random_rows(a)};
    check_batch(s, N, "");
    arena_free(a);
}
