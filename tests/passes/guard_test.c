/* SPDX-License-Identifier: Apache-2.0 */
/* guard_test.c: groups that run only where a truth value says so. */
#include <string.h>

#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* "always", "if NAME", "unless NAME": where the group of that value runs. */
static const char *runs(const Graph *g, const char *name) {
    Guard x = g->groups.data[group_of(g, name)].guard;
    if (!is_value(x.when)) return "always";
    return internf("%s %s", x.unless ? "unless" : "if",
                   value_get(g, x.when)->name);
}

/* Two branches; %both is read by each, %s and the selection by none. */
#define BRANCHES(SIZE, CONDITION)                                              \
    "graph predict(%x: f32[" SIZE "," SIZE "], %n: i64[]) {\n"                 \
    "  param %a: f32[" SIZE "," SIZE "] = 1, %b: f32[" SIZE "," SIZE "] = 2\n" \
    "  const %zero: i64[] = 0\n"                                               \
    "  %c = greater %n, %zero : bool[]\n"                                      \
    "  %not = not %c : bool[]\n"                                               \
    "  %both = matmul %x, %a\n"                                                \
    "  %p = matmul %both, %a\n  %q = matmul %both, %b\n"                       \
    "  %r = matmul %q, %q\n"                                                   \
    "  %y = where " CONDITION "\n"                                             \
    "  %z = matmul %y, %a\n"                                                   \
    "  return %z\n}\n"

static void expect(const char *text, const char *const *flags, int n,
                   const char *const (*want)[2]) {
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lowered(a, m, flags);
    for (int i = 0; i < n; i++) CHECK_STR(runs(g, want[i][0]), want[i][1]);
    run_in_memory(a, g, text);
    arena_free(a);
}

TEST_CASE(guard, branches_run_where_they_are_taken) {
    static const char *const want[][2] = {{"both", "always"}, {"p", "if c"},
                                          {"q", "unless c"},  {"r", "unless c"},
                                          {"y", "always"},    {"z", "always"}};
    static const char *const turned[][2] = {{"p", "if c"}, {"r", "unless c"}};
    expect(BRANCHES("512", "%c, %p, %r"), no_flags, 6, want);
    expect(BRANCHES("512", "%not, %r, %p"), no_flags, 2, turned);
    expect(BRANCHES("512", "%c, %p, %r"), FLAGS("--no-fuse"), 6, want);
    expect(BRANCHES("512", "%c, %p, %r"), for_gpus, 6, want);
}

/* Little work is done in both branches; a GPU has more of it in that time. */
TEST_CASE(guard, cheap_branches_always_run) {
    static const char *const want[][2] = {
        {"p", "always"}, {"q", "always"}, {"r", "always"}};
    expect(BRANCHES("32", "%c, %p, %r"), no_flags, 3, want);
    expect(BRANCHES("128", "%c, %p, %r"), for_gpus, 3, want);
}

/* The selection's own result decides on it: nothing is left out. */
TEST_CASE(guard, a_condition_is_always_there) {
    static const char text[] =
        "graph predict(%x: f32[512,512]) {\n"
        "  param %a: f32[512,512] = 1\n"
        "  %p = matmul %x, %a\n"
        "  %low = reduce_min %p {axes=[0,1], keepdims=0} : f32[]\n"
        "  %c = less %low, 0 : bool[]\n"
        "  %y = where %c, %p, %x\n  return %y\n}\n";
    static const char *const want[][2] = {{"p", "always"}};
    expect(text, no_flags, 1, want);
}

/* Three turns of a loop that ends where no element is above 1: a turn that
   does not count spares those behind it, with their conditions. */
TEST_CASE(guard, turns_behind_the_last_one_are_spared) {
    static const char text[] =
        "graph predict(%h0: f32[512,512]) {\n"
        "  param %w: f32[512,512] = 0.001\n"
        "  %t0 = reduce_max %h0 {axes=[0,1], keepdims=0} : f32[]\n"
        "  %g1 = greater %t0, 1 : bool[]\n"
        "  %h1 = matmul %h0, %w\n"
        "  %s1 = where %g1, %h1, %h0\n"
        "  %t1 = reduce_max %h1 {axes=[0,1], keepdims=0} : f32[]\n"
        "  %m1 = greater %t1, 1 : bool[]\n"
        "  %g2 = and %g1, %m1 : bool[]\n"
        "  %h2 = matmul %h1, %w\n"
        "  %s2 = where %g2, %h2, %s1\n"
        "  %t2 = reduce_max %h2 {axes=[0,1], keepdims=0} : f32[]\n"
        "  %m2 = greater %t2, 1 : bool[]\n"
        "  %g3 = and %g2, %m2 : bool[]\n"
        "  %h3 = matmul %h2, %w\n"
        "  %s3 = where %g3, %h3, %s2\n"
        "  return %s3\n}\n";
    static const char *const want[][2] = {
        {"g1", "always"}, {"g2", "always"}, {"g3", "always"}, {"h1", "if g1"},
        {"h2", "if g2"},  {"h3", "if g3"},  {"m1", "if g1"},  {"m2", "if g2"}};
    expect(text, no_flags, 8, want);
}

/* A branch in a branch, whose condition is made in the outer one: all of it
   runs where the outer one does. */
TEST_CASE(guard, a_branch_in_a_branch) {
    static const char text[] =
        "graph predict(%x: f32[512,512], %n: i64[]) {\n"
        "  param %a: f32[512,512] = 1\n"
        "  const %zero: i64[] = 0\n"
        "  %c = greater %n, %zero : bool[]\n"
        "  %p = matmul %x, %a\n"
        "  %low = reduce_min %p {axes=[0,1], keepdims=0} : f32[]\n"
        "  %d = less %low, 0 : bool[]\n"
        "  %q = matmul %p, %a\n"
        "  %i = where %d, %q, %p\n"
        "  %y = where %c, %i, %x\n  return %y\n}\n";
    static const char *const want[][2] = {
        {"p", "if c"}, {"q", "if c"}, {"y", "always"}};
    expect(text, no_flags, 3, want);
}

/* Texts hold what passes decided. */
TEST_CASE(guard, texts_keep_guards) {
    Arena *a = arena_new();
    Module *m = parsed(a, BRANCHES("512", "%c, %p, %r"));
    lowered(a, m, no_flags);
    StrBuf sb = {0};
    print_module(m, &sb);
    CHECK_HAS(sb.data, "group anchor if %c {");
    CHECK_HAS(sb.data, "group anchor unless %c {");
    Module *again = parsed(a, sb.data);
    CHECK_STR(runs(again->graphs.data[0], "p"), "if c");
    CHECK_STR(runs(again->graphs.data[0], "q"), "unless c");
    sb_free(&sb);
    arena_free(a);
}

/* A group that a GPU may leave out shares no launch with equal work. */
TEST_CASE(guard, guarded_groups_share_no_launch) {
#define CHAIN(N, FROM)                                                         \
    "  %" N "1 = sin %" FROM "\n  %" N "2 = tanh %" N "1\n  %" N "3 = exp %" N \
    "2\n  %" N "4 = sin %" N "3\n  %" N "5 = tanh %" N "4\n"                   \
    "  %" N " = reduce_sum %" N "5 {axes=[1], keepdims=1} : f32[1024,1]\n"
    static const char text[] =
        "graph predict(%x: f32[1024,1024], %z: f32[1024,1024], %n: i64[]) {\n"
        "  const %zero: i64[] = 0\n"
        "  %c = greater %n, %zero : bool[]\n" CHAIN("p", "x")
            CHAIN("q", "z") "  %y = where %c, %p, %q\n  return %y\n}\n";
    static const char *const want[][2] = {{"p", "if c"}, {"q", "unless c"}};
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    StrBuf sb = {0};
    lowered(a, m, for_gpus);
    for (int i = 0; i < 2; i++)
        CHECK_STR(runs(m->graphs.data[0], want[i][0]), want[i][1]);
    print_module(m, &sb);
    CHECK_MSG(!strstr(sb.data, "beside"), "%s", sb.data);
    sb_free(&sb);
    arena_free(a);
}
