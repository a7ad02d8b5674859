/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_test.c: the kernels and launches of groups, and their order. */
#include "tests/harness.h"
#include "tests/support/passed.h"

/* The new value of a variable is computed in place, after all readers of the
   old one. */
TEST_CASE(schedule, readers_come_before_new_content) {
    static const char text[] =
        "graph train(%x: f32[8,16]) {\n"
        "  param %w: f32[16,16] = 0.5, %b: f32[16] = 0.5\n"
        "  %v = mul %w, 0.875\n  %c = mul %b, 0.75\n"
        "  %y = matmul %x, %w\n  %z = matmul %y, %v {trans_b=1}\n"
        "  %o = add %z, %b\n"
        "  write %w = %v\n  write %b = %c\n  return %o\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lowered(a, m, no_flags);
    CHECK_EQ_INT(g->writes.len, 2);
    for (int i = 0; i < g->writes.len; i++) {
        const Value *var = value_get(g, g->writes.data[i].var);
        CHECK_EQ_INT(value_get(g, g->writes.data[i].value)->home, var->var);
    }
    run_in_memory(a, g, text);
    arena_free(a);
}

/* Three large values are computed before the first is read: if each is read
   at once, all share the same memory. */
TEST_CASE(schedule, takes_the_order_of_least_memory) {
    static const char text[] =
        "graph predict(%x: f32[16,16]) {\n"
        "  param %a: f32[16,1024] = 1, %b: f32[16,1024] = 2\n"
        "  param %c: f32[16,1024] = 3, %d: f32[1024,16] = 4\n"
        "  %xa = matmul %x, %a\n  %xb = matmul %x, %b\n"
        "  %xc = matmul %x, %c\n"
        "  %p = matmul %xa, %d\n  %q = matmul %xb, %d\n"
        "  %r = matmul %xc, %d\n  return %p, %q, %r\n}\n";
    enum { LARGE = 16 * 1024 * 4, SMALL = 16 * 16 * 4 };
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lowered(a, m, no_flags);
    CHECK_EQ_INT(g->arena_bytes, LARGE + 3 * SMALL);
    run_in_memory(a, g, text);
    arena_free(a);
}

/* %p and %q share work, but %a and %b, which others read later, would then
   be live beside both: three of the four at most. If nothing else reads %a
   and %b, each is overwritten in place. */
TEST_CASE(launch, shares_where_little_more_lives) {
    static const char *const rest[] = {
        "  %s = matmul %a, %u\n  %t = matmul %b, %u\n"
        "  return %pr, %qr, %s, %t\n}\n",
        "  return %pr, %qr\n}\n"};
    enum { LARGE = 64 * 8192 * 4, SMALL = 64 * 64 * 4 };
    for (int alone = 0; alone < 2; alone++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        int launches = 0;
        sb_printf(&sb,
                  "graph predict(%%x: f32[64,64]) {\n"
                  "  param %%v: f32[64,8192] = 1, %%w: f32[8192,8192] = 1\n"
                  "  param %%u: f32[8192,64] = 1\n"
                  "  %%b = matmul %%x, %%v\n  %%a = matmul %%b, %%w\n"
                  "  %%p = tanh %%a\n  %%pr = matmul %%p, %%u\n"
                  "  %%q = tanh %%b\n  %%qr = matmul %%q, %%u\n%s",
                  rest[alone]);
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        lowered(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++)
            launches += !g->groups.data[i].beside;
        CHECK_EQ_INT(g->groups.len - launches, alone);
        CHECK(g->arena_bytes <= (alone ? 2 : 3) * LARGE + 4 * SMALL);
        run_in_memory(a, g, sb.data);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Sums of squares of %a and of %b, which have other shapes, share one late
   launch if %a is also read later. Otherwise %a would stay in memory only
   for it. */
TEST_CASE(launch, folds_of_any_length_wait_for_each_other) {
    static const char *const rest[] = {
        "  %y = mul %a, %s\n  %z = mul %b, %s\n  return %y, %z\n}\n",
        "  return %s\n}\n"};
    enum { LARGE = 64 * 8192 * 4, SMALL = 64 * 1024 };
    for (int alone = 0; alone < 2; alone++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        int shared_folds = 0;
        sb_printf(&sb,
                  "graph predict(%%x: f32[64,64]) {\n"
                  "  param %%v: f32[64,8192] = 1, %%w: f32[8192,4000] = 1\n"
                  "  %%a = matmul %%x, %%v\n"
                  "  %%m = reduce_sumsq %%a {axes=[0,1]}\n"
                  "  %%b = matmul %%a, %%w\n"
                  "  %%n = reduce_sumsq %%b {axes=[0,1]}\n"
                  "  %%s = add %%m, %%n\n%s",
                  rest[alone]);
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        lowered(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++)
            shared_folds += g->groups.data[i].beside &&
                            !g->groups.data[i].after &&
                            g->groups.data[i].kind == GROUP_ROW;
        CHECK_EQ_INT(shared_folds, !alone);
        CHECK(g->arena_bytes <= LARGE + LARGE / 2 + SMALL);
        run_in_memory(a, g, sb.data);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Two equal row kernels share a launch, but not if they also sum the rows:
   that takes two launches, one after the other. */
TEST_CASE(launch, sums_of_columns_stand_alone) {
    static const char *const columns[] = {
        "  return %r0, %r1\n}\n",
        "  %b0 = reduce_sum %g0 {axes=[0], keepdims=1}\n"
        "  %b1 = reduce_sum %g1 {axes=[0], keepdims=1}\n"
        "  return %r0, %r1, %b0, %b1\n}\n"};
    for (int both = 0; both < 2; both++) {
        Arena *a = arena_new();
        int rows = 0, beside = 0;
        char text[800];
        snprintf(text, sizeof text,
                 "graph predict(%%x0: f32[4096,64], %%x1: f32[4096,64]) {\n"
                 "  %%g0 = mul %%x0, %%x0\n"
                 "  %%r0 = reduce_max %%g0 {axes=[1], keepdims=1}\n"
                 "  %%g1 = mul %%x1, %%x1\n"
                 "  %%r1 = reduce_max %%g1 {axes=[1], keepdims=1}\n%s",
                 columns[both]);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        lowered(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++) {
            rows += g->groups.data[i].kind == GROUP_ROW;
            beside += g->groups.data[i].beside;
        }
        CHECK_MSG(rows == 2 && beside == !both, "%d kernels, %d beside", rows,
                  beside);
        run_in_memory(a, g, text);
        arena_free(a);
    }
}

#define LOSS                                                                   \
    "%l = matmul %x, %w\n%m = reduce_max %l {axes=[1], keepdims=1}\n"          \
    "%d = sub %l, %m\n%e = exp %d\n"                                           \
    "%s = reduce_sum %e {axes=[1], keepdims=1}\n%log = log %s\n"               \
    "%lse = add %log, %m\n%ld = sub %l, %lse !backward\n"                      \
    "%p = exp %ld !backward\n"                                                 \
    "%dx = matmul %p, %w {trans_b=1} !backward\n"

/* Kernels of a graph with and without the pass that joins two kernels. */
TEST_CASE(fuse, kernels_join_up_to_a_bound) {
    static const struct {
        const char *inputs, *body;
        int cpu, gpu; /* kernels */
    } rows[] = {
        /* readers of one value; moved readers share a launch if launches are
           expensive */
        {"%x: f32[64,64]", "%a = exp %x\n%b = tanh %x\nreturn %a, %b", 1, 1},
        {"%x: f32[64,64]",
         "%a = exp %x\n%b = transpose %x {perm=[1,0]}\nreturn %a, %b", 2, 1},
        {"%x: f32[64,64]",
         "%b = transpose %x {perm=[1,0]}\n%a = exp %x\nreturn %a, %b", 2, 1},
        /* reductions without common operands */
        {"%x: f32[2,1024], %z: f32[2,1024]",
         "%a = reduce_sum %x {axes=[1], keepdims=1}\n"
         "%b = reduce_sum %z {axes=[1], keepdims=1}\nreturn %a, %b",
         1, 2},
        {"%x: f32[3,683], %z: f32[3,683]",
         "%a = reduce_sum %x {axes=[1], keepdims=1}\n"
         "%b = reduce_sum %z {axes=[1], keepdims=1}\nreturn %a, %b",
         2, 2},
        /* a loss and its gradient, which overwrites the scores, unless the
           host reads those */
        {"%x: f32[300,64], %w: f32[64,1000]", LOSS "return %log, %dx", 3, 3},
        {"%x: f32[300,64], %w: f32[64,1000]", LOSS "return %log, %dx, %l", 4,
         4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            Arena *a = arena_new();
            char text[600];
            snprintf(text, sizeof text, "graph predict(%s) {\n%s\n}\n",
                     rows[i].inputs, rows[i].body);
            Module *m = parsed(a, text);
            lowered(a, m, gpu ? for_gpus : no_flags);
            int want = gpu ? rows[i].gpu : rows[i].cpu;
            CHECK_MSG(m->graphs.data[0]->groups.len == want,
                      "%d kernels, not %d, for a %s of\n%s",
                      m->graphs.data[0]->groups.len, want, gpu ? "GPU" : "CPU",
                      text);
            arena_free(a);
        }
}

/* Sums of columns are complete when the last row is done: their readers,
   even those with the shape of the rows, are in another kernel. */
TEST_CASE(fuse, sums_of_columns_are_read_in_another_kernel) {
    static const char text[] = "graph predict(%x: f32[4096,64]) {\n"
                               "  %g = mul %x, %x\n"
                               "  %r = reduce_max %g {axes=[1], keepdims=1}\n"
                               "  %b = reduce_sum %g {axes=[0], keepdims=1}\n"
                               "  %z = add %g, %b\n"
                               "  return %r, %b, %z\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lowered(a, m, for_gpus);
    CHECK_EQ_INT(group_of(g, "r"), group_of(g, "b"));
    CHECK(group_of(g, "z") != group_of(g, "b"));
    run_in_memory(a, g, text);
    arena_free(a);
}

/* Two readers of a large gradient read it scaled, instead of each scaling
   it. */
TEST_CASE(fuse, gradients_are_stored_as_they_are_read) {
    static const char text[] =
        "graph predict(%x: f32[4096,64], %w: f32[64,1000], %c: "
        "f32[4096,1]) {\n" LOSS
        "%pd = sub %p, %c !backward\n%g = mul %pd, 0.25 !backward\n"
        "%gp = pad %g {pads=[0,0,0,8]} !backward\n"
        "%dg = matmul %gp, %x {trans_a=1} !backward\n"
        "%db = reduce_sum %g {axes=[0], keepdims=1} !backward\n"
        "return %log, %dg, %db\n}\n";
    for (int gpu = 0; gpu < 2; gpu++) {
        Arena *a = arena_new();
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        lowered(a, m, gpu ? for_gpus : no_flags);
        CHECK(value_get(g, graph_find_value(g, "g"))->offset >= 0);
        CHECK(value_get(g, graph_find_value(g, "pd"))->offset < 0);
        arena_free(a);
    }
}
