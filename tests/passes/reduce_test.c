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

/* Heads of %x are other axes of its rows, whose kernel then sums the columns,
   too; rows that a view cuts or joins are not those of the kernel. */
TEST_CASE(stages, are_left_out_beside_rows_of_the_same_view) {
    static const struct {
        const char *view, *axes;
        int reductions;
    } cases[] = {{"1,4096,64", "0,1", 2},  {"1,4096,8,8", "0,1", 2},
                 {"1,2048,128", "0,1", 3}, {"1,8192,32", "1", 3},
                 {"4096,8,8", "0", 3},     {"1,4096,8,8", "1", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        int n = 0;
        char *text =
            arena_printf(a,
                         "graph predict(%%x: f32[1,4096,64]) {\n"
                         "  %%r = reduce_sum %%x {axes=[2], keepdims=1}\n"
                         "  %%v = reshape %%x {shape=[%s]}\n"
                         "  %%b = reduce_sum %%v {axes=[%s], keepdims=1}\n"
                         "  return %%r, %%b\n}\n",
                         cases[i].view, cases[i].axes);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        Results before = results(a, g, EVAL_EXACT);
        passed(a, m, "inline,canon,reduce,cse,dce", for_gpus);
        Results after = results(a, g, EVAL_EXACT);
        expect_equal(&before, &after, 1e-6, text);
        for (int k = 0; k < g->order.len; k++)
            n += node_kind(node_get(g, g->order.data[k])) == KIND_REDUCE;
        CHECK_MSG(n == cases[i].reductions, "%d: %s", n, text);
        arena_free(a);
    }
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

static void put_batch_norm(char *text, size_t size, const char *shape,
                           int channels) {
    snprintf(text, size,
             "graph predict(%%x: f32[%s], %%s: f32[%d], %%b: f32[%d], "
             "%%m: f32[%d], %%v: f32[%d]) {\n"
             "  %%y, %%mean, %%var = batch_norm %%x, %%s, %%b, %%m, %%v "
             "{epsilon=1e-05, training=1}\n"
             "  return %%y, %%mean, %%var\n}\n",
             shape, channels, channels, channels, channels);
}

/* Number of kernels that read that input. */
static int groups_reading(const Graph *g, const char *input) {
    ValueId v = graph_find_value(g, input);
    int number = 0, last = -1;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        bool reads = false;
        for (int k = 0; k < n->nin; k++) reads |= same_value(n->in[k], v);
        if (reads && n->group != last) number++;
        if (reads) last = n->group;
    }
    return number;
}

/* The variance of parts around their own means and of these means is the
   variance of all. */
TEST_CASE(variance, of_parts_is_that_of_all) {
    static const char *const shapes[] = {"8,2,64,64", "3,2,8,64,16",
                                         "300,2,70"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        Arena *a = arena_new();
        char text[400];
        put_batch_norm(text, sizeof text, shapes[i], 2);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        Results before = results(a, g, EVAL_EXACT);
        lowered(a, m, for_gpus);
        Results after = results(a, g, EVAL_EXACT);
        expect_equal(&before, &after, 1e-12, text);
        CHECK_MSG(groups_reading(g, "x") == 2, "%s: %d kernels read x",
                  shapes[i], groups_reading(g, "x"));
        run_in_memory(a, g, text);
        arena_free(a);
    }
}

/* Channels that a block cannot hold are read once for both statistics and once
   for the result; shorter ones are read once. */
TEST_CASE(variance, reads_long_channels_twice) {
    static const struct {
        const char *shape;
        int reads;
    } cases[] = {{"256,512,14,14", 2}, {"64,512,14,14", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        char text[400];
        put_batch_norm(text, sizeof text, cases[i].shape, 512);
        Module *m = parsed(a, text);
        lowered(a, m, for_gpus);
        CHECK_EQ_INT(groups_reading(m->graphs.data[0], "x"), cases[i].reads);
        arena_free(a);
    }
}
