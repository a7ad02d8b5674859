/* SPDX-License-Identifier: Apache-2.0 */
/* join_test.c: sums of products become one product if that moves fewer
   bytes. */
#include "tests/harness.h"
#include "tests/support/passed.h"

enum { SIDE = 64, MOST = 5 };

/* The extents over which the products of a 64 by 64 sum run after pass join,
   largest first. */
static int joined(const int *k, int n, int64_t *to) {
    Arena *a = arena_new();
    StrBuf sb = {0};
    int found = 0;
    sb_puts(&sb, "graph predict(");
    for (int i = 0; i < n; i++)
        sb_printf(&sb, "%s%%x%d: f32[%d,%d], %%y%d: f32[%d,%d]", i ? ", " : "",
                  i, SIDE, k[i], i, k[i], SIDE);
    sb_puts(&sb, ") {\n");
    for (int i = 0; i < n; i++)
        sb_printf(&sb, "  %%p%d = matmul %%x%d, %%y%d\n", i, i, i);
    sb_puts(&sb, "  %s1 = add %p0, %p1\n");
    for (int i = 2; i < n; i++)
        sb_printf(&sb, "  %%s%d = add %%s%d, %%p%d\n", i, i - 1, i);
    sb_printf(&sb, "  return %%s%d\n}\n", n - 1);
    Module *m = parsed(a, sb.data);
    passed(a, m, "canon,join,dce", no_flags);
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_get(g, g->order.data[i]);
        if (x->op != OP_MATMUL) continue;
        int64_t extent = value_type(g, x->in[0])->dim[1];
        int at = found++;
        REQUIRE(found <= MOST);
        for (; at > 0 && to[at - 1] < extent; at--) to[at] = to[at - 1];
        to[at] = extent;
    }
    sb_free(&sb);
    arena_free(a);
    return found;
}

/* The operands, copied side by side, are to be smaller than the results that
   then need not be added: n * 2 * 64 * k < (n - 1) * 64 * 64.               */
TEST_CASE(join, where_operands_are_smaller_than_results) {
    for (int n = 2; n <= MOST; n++)
        for (int k = 1; k <= 40; k++) {
            int ks[MOST];
            int64_t to[MOST] = {0};
            for (int i = 0; i < n; i++) ks[i] = k;
            bool pays = n * 2 * SIDE * k < (n - 1) * SIDE * SIDE;
            int got = joined(ks, n, to);
            CHECK_MSG(got == (pays ? 1 : n) && to[0] == (pays ? n * k : k),
                      "%d products over %d: %d", n, k, got);
        }
}

/* A kernel no larger than its operands is kept, however small the remainder
   is. */
TEST_CASE(join, large_operands_stay) {
    int64_t to[MOST];
    CHECK_EQ_INT(joined((int[]){4, 40, 4}, 3, to), 2);
    CHECK(to[0] == 40 && to[1] == 8);
    CHECK_EQ_INT(joined((int[]){4, 31, 4}, 3, to), 1);
    CHECK_EQ_INT(to[0], 39);
    CHECK_EQ_INT(joined((int[]){4, 32, 4}, 3, to), 2);
}
