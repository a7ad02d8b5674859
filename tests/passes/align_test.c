/* SPDX-License-Identifier: Apache-2.0 */
/* align_test.c: products whose rows are unaligned. */
#include "tests/harness.h"
#include "tests/support/passed.h"

/* m, n and k of the padded product %y. */
static void padded_to(const Graph *g, bool ta, bool tb, int64_t to[3]) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (n->op != OP_MATMUL) continue;
        const Type *x = value_type(g, n->in[0]), *w = value_type(g, n->in[1]);
        to[0] = x->dim[ta ? 1 : 0];
        to[1] = w->dim[tb ? 0 : 1];
        to[2] = x->dim[ta ? 0 : 1];
        CHECK_EQ_INT(w->dim[tb ? 1 : 0], to[2]);
    }
}

/* The contiguous axis in memory becomes a multiple of 8 two-byte elements;
   other axes, and axes that are multiples already, stay. */
TEST_CASE(align, what_rows_are_made_of) {
    static const int64_t odd[] = {1030, 1027, 1031},
                         even[] = {1032, 1032, 1032};
    for (int kind = 0; kind < 8; kind++) {
        bool ta = kind & 1, tb = kind & 2;
        const int64_t *n = kind & 4 ? even : odd;
        Arena *a = arena_new();
        StrBuf sb = {0};
        int64_t to[3] = {0};
        sb_printf(&sb,
                  "graph predict(%%x: bf16[%d,%d], %%w: bf16[%d,%d]) {\n"
                  "  %%y = matmul %%x, %%w {trans_a=%d, trans_b=%d}\n"
                  "  return %%y\n}\n",
                  (int)n[ta ? 2 : 0], (int)n[ta ? 0 : 2], (int)n[tb ? 1 : 2],
                  (int)n[tb ? 2 : 1], ta, tb);
        Module *m = parsed(a, sb.data);
        passed(a, m, "inline,canon,align,cse,dce", for_gpus);
        padded_to(m->graphs.data[0], ta, tb, to);
        CHECK_EQ_INT(to[0], ta ? 1032 : n[0]);
        CHECK_EQ_INT(to[1], 1032); /* the result's alignment, whatever the
                                      operand's */
        CHECK_EQ_INT(to[2], !ta || tb ? 1032 : n[2]);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Other readers of rows that a product reads padded: their values stay the
   same, and if the zeros after the columns change nothing they read the
   padded rows, too. */
TEST_CASE(align, other_readers) {
    static const struct {
        const char *x;
        bool longer;
    } rows[] = {
        {"mul %a, %b", false},
        {"mul %b, %a", false},
        {"mul %a, %column", true},
        {"mul %column, %a", true},
        {"mul %a, %line", false},
        {"mul %line, %a", false},
        {"mul %a, 3", true},
        {"cast %a : f32[6,1027]", true},
        {"where %mask, %a, 0", false},
        {"where %some, %a, 0", true},
        {"where %some, 0, %a", true},
        {"where %some, %a, 1", false},
        {"where %some, %a, %b", false},
        {"where %some, %column, %a", false},
        {"add %a, 1", false},
        {"exp %a", false},
        {"reduce_sum %a {axes=[1], keepdims=1}", true},
        {"reduce_sum %a {axes=[0], keepdims=1}", true},
        {"reduce_max %a {axes=[1], keepdims=1}", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        char text[900];
        bool longer = false;
        snprintf(text, sizeof text,
                 "graph predict(%%i: bf16[6,1027], %%b: bf16[6,1027], "
                 "%%line: bf16[1,1027], %%column: bf16[6,1], "
                 "%%w: bf16[1027,5]) {\n"
                 "  %%a = neg %%i\n  %%y = matmul %%a, %%w\n"
                 "  %%mask = greater %%a, 0\n  %%some = greater %%column, 0\n"
                 "  %%x = %s\n  return %%y, %%x\n}\n",
                 rows[i].x);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        passed(a, m, "inline,canon,dce", for_gpus);
        Results before = results(a, g, EVAL_STORAGE);
        passed(a, m, "align,cse,dce", for_gpus);
        Results after = results(a, g, EVAL_STORAGE);
        expect_equal(&before, &after, 0, text);
        const Node *x =
            node_get(g, value_get(g, graph_find_value(g, "x"))->def);
        for (int k = 0; k < x->nin; k++) {
            const Value *v = value_get(g, x->in[k]);
            longer |=
                v->kind == VK_RESULT && node_get(g, v->def)->op == OP_SLICE;
        }
        CHECK_MSG(longer == rows[i].longer, "%s", rows[i].x);
        arena_free(a);
    }
}
