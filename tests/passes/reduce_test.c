/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_test.c: sums in stages, where that is faster. */
#include "tests/harness.h"
#include "tests/support/passed.h"

/* If forward folds the rows of %x, a kernel of these rows may sum them as
   well, over the same few columns; backward is another kernel, and there two
   blocks of a GPU would do all the work. */
TEST_CASE(stages, are_left_out_beside_rows_of_one_part) {
    static const char *const part[] = {"", " !backward"};
    for (int other = 0; other < 2; other++) {
        Arena *a = arena_new();
        int n = 0;
        char text[400];
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[4096,64], %%c: f32[4096,64]) {\n"
                 "  %%r = reduce_sum %%x {axes=[1], keepdims=1}\n"
                 "  %%g = mul %%x, %%c%s\n"
                 "  %%b = reduce_sum %%g {axes=[0], keepdims=1}%s\n"
                 "  return %%r, %%b\n}\n",
                 part[other], part[other]);
        Module *m = parsed(a, text);
        passed(a, m, "inline,canon,reduce,cse,dce", for_gpus);
        const Graph *g = m->graphs.data[0];
        for (int i = 0; i < g->order.len; i++)
            n += op_info[node_get(g, g->order.data[i])->op].kind == KIND_REDUCE;
        CHECK_EQ_INT(n, other ? 3 : 2);
        arena_free(a);
    }
}

/* %p and %q have only the bias in common, which their kernels do not share. */
TEST_CASE(stages, are_not_left_out_for_what_is_spread) {
    Arena *a = arena_new();
    Module *m = parsed(
        a, "graph predict(%x: f32[4096,64], %c: f32[4096,64], %v: f32[64]) {\n"
           "  %p = add %x, %v\n  %q = add %c, %v\n"
           "  %r = reduce_sum %p {axes=[1], keepdims=1}\n"
           "  %b = reduce_sum %q {axes=[0], keepdims=1}\n"
           "  return %r, %b\n}\n");
    int n = 0;
    passed(a, m, "inline,canon,reduce,cse,dce", for_gpus);
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < g->order.len; i++)
        n += op_info[node_get(g, g->order.data[i])->op].kind == KIND_REDUCE;
    CHECK_EQ_INT(n, 3);
    arena_free(a);
}

/* Few long rows are cut into pieces for all multiprocessors, but each piece
   is worth a block of threads: eight elements per thread. */
TEST_CASE(stages, pieces_are_worth_a_block) {
    enum { ROWS = 3, SMS = 132, LEAST = 256 * 8 };
    for (int64_t n = 1 << 12; n <= 1 << 24; n *= 2) {
        Arena *a = arena_new();
        int64_t pieces = 0;
        char text[200];
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[%d,%lld]) {\n"
                 "  %%y = reduce_sum %%x {axes=[1], keepdims=1}\n"
                 "  return %%y\n}\n",
                 ROWS, (long long)n);
        Module *m = parsed(a, text);
        passed(a, m, "inline,canon,reduce,cse,dce", for_gpus);
        const Graph *g = m->graphs.data[0];
        for (int i = 0; i < g->order.len && !pieces; i++) {
            const Node *x = node_get(g, g->order.data[i]);
            if (x->op == OP_REDUCE_SUM)
                pieces = type_count(value_type(g, x->out[0])) / ROWS;
        }
        CHECK_MSG(pieces == 1 || n / pieces >= LEAST, "%lld pieces of %lld",
                  (long long)pieces, (long long)n);
        CHECK_MSG(n < SMS * LEAST || ROWS * pieces >= SMS,
                  "%lld pieces of %lld", (long long)pieces, (long long)n);
        arena_free(a);
    }
}

/* A kernel of rows that also sums columns has their sums only at its end:
   the reader of %c is another kernel. */
TEST_CASE(stages, sums_of_columns_are_for_others) {
    static const char text[] =
        "graph predict(%x: f32[64,300]) {\n"
        "  %r = reduce_sum %x {axes=[1], keepdims=1}\n"
        "  %c = reduce_sum %x {axes=[0], keepdims=1}\n"
        "  %d = sub %x, %c\n  %e = reduce_sum %d {axes=[1], keepdims=1}\n"
        "  %f = mul %e, %r\n  return %f\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    lowered(a, m, for_gpus);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text);
    int made = group_of(g, "c"), reads = group_of(g, "d");
    CHECK_MSG(made >= 0 && reads > made, "groups %d and %d", made, reads);
    run_in_memory(a, g, text);
    arena_free(a);
}
