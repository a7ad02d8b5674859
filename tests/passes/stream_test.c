/* SPDX-License-Identifier: Apache-2.0 */
/* stream_test.c: losses of wide products in chunks of rows compute the same
   as whole ones, and no value is wide any more. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

enum { ROWS = 12, CLASSES = 40 };

/* Number of elements of the largest stored value with all classes. */
static int64_t widest(const Graph *g) {
    int64_t most = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        const Type *t = value_type(g, n->out[0]);
        bool wide = t->rank && t->dim[t->rank - 1] == CLASSES &&
                    value_get(g, n->out[0])->offset >= 0;
        if (wide && type_count(t) > most) most = type_count(t);
    }
    return most;
}

/* Before and after the pass, with that many rows at a time, the graph
   computes the same, also in its planned memory. Returns the number of rows
   of the widest value. */
static int64_t streamed(const char *text, const char *rows) {
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    passed(a, m, "grad", no_flags);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    const char *const *flags = FLAGS("--logit-rows", rows);
    passed(a, m, "inline,canon,simplify,join,cse,dce,stream,simplify,cse,dce",
           flags);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-12, text);
    passed(a, m, "inline,fuse,schedule,memplan", flags);
    run_in_memory(a, g, text);
    int64_t most = widest(g) / CLASSES;
    arena_free(a);
    return most;
}

#define CROSS "  %l = softmax_cross_entropy %z, %t {axis=1, "
#define GRADS                                                                  \
    "  %dx, %dw, %db = grad %l, %x, %w, %b\n  return %l, %dx, %dw, %db\n"

static int64_t loss_of(const char *lines, const char *rows) {
    StrBuf sb = {0};
    sb_printf(&sb,
              "graph eval(%%x: f32[%d,6], %%w: f32[%d,6], %%b: f32[%d], "
              "%%t: i64[%d], %%c: f32[%d], %%s: f32[%d,%d]) {\n"
              "  %%y = matmul %%x, %%w {trans_b=1}\n%s}\n",
              ROWS, CLASSES, CLASSES, ROWS, CLASSES, ROWS, CLASSES, lines);
    int64_t most = streamed(sb.data, rows);
    sb_free(&sb);
    return most;
}

/* Every option of cross entropy, other losses, numbers of rows that divide the
   batch and ones that do not. */
TEST_CASE(stream, losses_are_what_they_were) {
    static const char *const losses[] = {
        "  %z = add %y, %b\n" CROSS "reduction=\"mean\"}\n" GRADS,
        "  %z = add %y, %b\n" CROSS "reduction=\"sum\"}\n" GRADS,
        "  %z = add %y, %b\n" CROSS "ignore_index=1}\n" GRADS,
        "  %z = add %y, %b\n" CROSS "label_smoothing=0.2}\n" GRADS,
        "  %z = add %y, %b\n  %l = softmax_cross_entropy %z, %t, %c "
        "{axis=1, ignore_index=2, label_smoothing=0.1}\n" GRADS,
        "  %z = add %y, %b\n  %p = softmax %s {axis=1}\n  %q = log_softmax %z "
        "{axis=1}\n"
        "  %m = mul %p, %q\n  %r = reduce_sum %m {axes=[1], keepdims=0}\n"
        "  %l = reduce_mean %r {axes=[0], keepdims=0}\n" GRADS,
    };
    static const char *const rows[] = {"1", "3", "5", "11", "12"};
    static const int64_t most[] = {1, 3, 4, 6, 12};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            CHECK_MSG(loss_of(losses[i], rows[k]) == most[k], "%s: %s rows",
                      losses[i], rows[k]);
}

/* Logits stay whole if a reader needs them whole: another reader, a gradient
   that depends on all rows, or classes along another axis than the last. */
TEST_CASE(stream, what_needs_all_rows_stays_whole) {
    static const char *const losses[] = {
        "  %z = add %y, %b\n" CROSS "reduction=\"mean\"}\n"
        "  %dx = grad %l, %x\n  return %l, %dx, %z\n",
        "  %z = add %y, %b\n" CROSS "reduction=\"mean\"}\n"
        "  %q = mul %l, %l\n  %dx = grad %q, %x\n  return %q, %dx\n",
        "  %z = reduce_max %y {axes=[0]}\n  %l = reduce_sum %z {axes=[0,1], "
        "keepdims=0}\n  %dx = grad %l, %x\n  return %l, %dx\n",
        "  %z = add %y, %b\n  %l = reduce_sum %z {axes=[0], keepdims=0}\n"
        "  return %l\n"};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        CHECK_MSG(loss_of(losses[i], "3") == ROWS, "%s", losses[i]);
}

/* Tokens of several texts, and a head that two losses read. */
TEST_CASE(stream, shapes_of_logits) {
    CHECK_EQ_INT(
        streamed("graph eval(%x: f32[3,4,6], %w: f32[40,6], %t: i64[3,4]) {\n"
                 "  %y = matmul %x, %w {trans_b=1}\n"
                 "  %l = softmax_cross_entropy %y, %t {axis=2, "
                 "ignore_index=1}\n"
                 "  %dx, %dw = grad %l, %x, %w\n"
                 "  return %l, %dx, %dw\n}\n",
                 "2"),
        2);
    CHECK_EQ_INT(
        streamed("graph eval(%x: f32[12,6], %w: f32[40,6], %t: i64[12], "
                 "%v: f32[40,6]) {\n"
                 "  %y = matmul %x, %w {trans_b=1}\n"
                 "  %z = matmul %x, %v {trans_b=1}\n"
                 "  %k = softmax_cross_entropy %y, %t {axis=1}\n"
                 "  %m = softmax_cross_entropy %z, %t {axis=1}\n"
                 "  %l = add %k, %m\n"
                 "  %dx, %dw, %dv = grad %l, %x, %w, %v\n"
                 "  return %l, %dx, %dw, %dv\n}\n",
                 "4"),
        4);
}

/* --logit-rows auto keeps small logits whole, and logits with so few rows
   that the gradient of the weight takes more memory than they do. */
TEST_CASE(stream, auto_asks_for_size) {
    static const struct {
        int rows, columns, inner;
        bool cut;
    } cases[] = {{2048, 40000, 64, true},
                 {2048, 20000, 64, false},
                 {511, 200000, 64, false},
                 {2048, 40000, 2048, false},
                 {512, 150000, 64, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%x: f32[%d,%d], %%w: f32[%d,%d], %%t: i64[%d]) "
                  "{\n  %%y = matmul %%x, %%w {trans_b=1}\n"
                  "  %%l = softmax_cross_entropy %%y, %%t {axis=1}\n"
                  "  %%dw = grad %%l, %%w\n  return %%l, %%dw\n}\n",
                  cases[i].rows, cases[i].inner, cases[i].columns,
                  cases[i].inner, cases[i].rows);
        Module *m = parsed(a, sb.data);
        passed(a, m, "grad,inline,canon,simplify,cse,dce,stream,dce", no_flags);
        CHECK_EQ_INT(m->graphs.data[0]->rows_all > 0, cases[i].cut);
        sb_free(&sb);
        arena_free(a);
    }
}
