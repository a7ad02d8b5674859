/* SPDX-License-Identifier: Apache-2.0 */
/* memplan_test.c: addresses of values in the arena. */
#include "tests/harness.h"
#include "tests/support/passed.h"

/* More values than are sorted: %p of 4 KB takes the memory of %a and %b, of
   1 and 3 KB, which are adjacent. */
TEST_CASE(memplan, neighbours_that_end_leave_one_gap) {
    enum { TIMES = 850 };
    Arena *a = arena_new();
    StrBuf sb = {0};
    sb_puts(&sb, "graph predict(%x: f32[16,48]) {\n"
                 "  param %u: f32[48,16] = 0.5, %v: f32[48,48] = 0.5\n"
                 "  param %w: f32[48,64] = 0.5, %t: f32[64,48] = 0.5\n"
                 "  %c0 = matmul %x, %v\n");
    for (int i = 0; i < TIMES; i++)
        sb_printf(&sb,
                  "  %%a%d = matmul %%c%d, %%u\n  %%b%d = matmul %%a%d, %%u "
                  "{trans_b=1}\n"
                  "  %%d%d = matmul %%a%d, %%b%d\n  %%p%d = matmul %%d%d, %%w\n"
                  "  %%c%d = matmul %%p%d, %%t\n",
                  i, i, i, i, i, i, i, i, i, i + 1, i);
    sb_printf(&sb, "  return %%c%d\n}\n", TIMES);
    Module *m = parsed(a, sb.data);
    lowered(a, m, no_flags);
    CHECK_EQ_INT(m->graphs.data[0]->arena_bytes, 7 << 10);
    sb_free(&sb);
    arena_free(a);
}

/* Eight layers; the gradient of each weight has 4 MiB. */
static void put_layers(StrBuf *sb) {
    for (int i = 0; i < 8; i++)
        sb_printf(sb, "  param %%w%d: f32[1024,1024] = normal(%d, 0.02)\n", i,
                  i);
    for (int i = 0; i < 8; i++)
        sb_printf(sb, "  %%y%d = matmul %%x%d, %%w%d\n  %%x%d = tanh %%y%d\n",
                  i, i, i, i + 1, i);
}

/* The arena of program train. */
static int64_t arena_of(const char *text, const char *const *flags) {
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    staged(a, m, STAGE_PLANNED, flags);
    const Graph *g = module_program(m, PROGRAM_TRAIN, intern(""));
    int64_t bytes = g->arena_bytes;
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        if (value_var(g, w->var)->kind == VAR_PARAM)
            CHECK_EQ_INT(value_get(g, w->value)->home,
                         value_get(g, w->var)->var);
    }
    arena_free(a);
    return bytes;
}

static int64_t train_arena(const char *const *flags) {
    StrBuf sb = {0};
    sb_puts(&sb, "graph forward(%x0: f32[1,1024]) {\n");
    put_layers(&sb);
    sb_puts(&sb, "  return %x8\n}\n");
    int64_t bytes = arena_of(sb.data, flags);
    sb_free(&sb);
    return bytes;
}

/* A table of 4 MiB, too, which the first and the last operation read. */
static int64_t tied_arena(int rows, const char *const *flags) {
    StrBuf sb = {0};
    sb_printf(&sb,
              "graph forward(%%ids: i64[%d]) {\n"
              "  param %%table: f32[1024,1024] = normal(9, 0.02)\n"
              "  %%x0 = gather %%table, %%ids {axis=0}\n",
              rows);
    put_layers(&sb);
    sb_puts(&sb, "  %y = matmul %x8, %table {trans_b=1}\n  return %y\n}\n");
    int64_t bytes = arena_of(sb.data, flags);
    sb_free(&sb);
    return bytes;
}

/* With updates in the backward pass two gradients are in memory at a time: a
   finished one, and the next. Updates are still computed in place. */
TEST_CASE(memplan, early_updates_free_gradients) {
    int64_t all = train_arena(FLAGS("--loss", "mse"));
    int64_t early =
        train_arena(FLAGS("--loss", "mse", "--optimizer-in-backward"));
    CHECK_MSG(all >= 32 << 20, "%lld", (long long)all);
    CHECK_MSG(early <= 9 << 20, "%lld", (long long)early);
}

/* .. also if the norm of all gradients comes first: they are computed again. */
TEST_CASE(memplan, a_first_pass_for_the_norm_frees_gradients) {
    int64_t first = train_arena(
        FLAGS("--loss", "mse", "--clip-norm", "1", "--optimizer-in-backward"));
    CHECK_MSG(first <= 9 << 20, "%lld", (long long)first);
}

#define TIED(rows, ...)                                                        \
    tied_arena(rows, FLAGS("--loss", "cross_entropy", "--optimizer", "adamw",  \
                           "--clip-norm", "1", __VA_ARGS__))

/* A gradient that two operations add up grows in one place. */
TEST_CASE(memplan, a_tied_weight_has_one_gradient) {
    int64_t all = TIED(8, "--precision", "bf16");
    CHECK_MSG(all <= (9 << 22) + (1 << 20), "%lld", (long long)all);
}

/* Checks of the inputs and the loss come before the first part of the update,
   and a skipped step needs no second copy of parameters and state. */
TEST_CASE(memplan, early_updates_wait_for_few_bytes) {
    int64_t previous = TIED(256, "--optimizer-in-backward", "--clip-previous"),
            twice = TIED(256, "--optimizer-in-backward");
    CHECK_MSG(previous <= 14 << 20, "%lld", (long long)previous);
    CHECK_MSG(twice <= 20 << 20, "%lld", (long long)twice);
}

/* Gradients of one product in bf16 are half of the bytes. */
TEST_CASE(memplan, gradients_in_bf16) {
    int64_t all = TIED(8, "--gradient-dtype", "bf16");
    CHECK_MSG(all <= (5 << 22) + (1 << 20), "%lld", (long long)all);
    all = train_arena(FLAGS("--loss", "mse", "--gradient-dtype", "bf16"));
    CHECK_MSG(all <= (4 << 22) + (1 << 20), "%lld", (long long)all);
}

/* %v may take the memory of %s, whose last use is there; %w must not, though
   %v's lifetime ends with the same launch. */
TEST_CASE(memplan, a_place_is_taken_once) {
    static const char text[] =
        "graph predict(%x: f32[64,50], %y: f32[64,100]) on cuda {\n"
        "  group row {\n"
        "    %s = reduce_sum %x {axes=[1], keepdims=1} : f32[64,1]\n  }\n"
        "  group row {\n"
        "    %t = reduce_sum %y {axes=[1], keepdims=1} : f32[64,1]\n"
        "    %u = add %t, %s : f32[64,1]\n"
        "    %v = exp %u : f32[64,1]\n    %w = tanh %u : f32[64,1]\n  }\n"
        "  group row after {\n"
        "    %p = reduce_sum %v {axes=[0], keepdims=1} : f32[1,1]\n"
        "    %q = reduce_max %w {axes=[0], keepdims=1} : f32[1,1]\n"
        "    %r = add %p, %q : f32[1,1]\n  }\n"
        "  return %r\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    passed(a, m, "memplan", for_gpus);
    const Graph *g = m->graphs.data[0];
    CHECK_EQ_INT(g->arena_bytes, 768); /* %v, %w and %r */
    run_in_memory(a, g, text);
    arena_free(a);
}
