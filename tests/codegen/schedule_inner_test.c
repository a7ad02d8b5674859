/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_inner_test.c: what the innermost loops of CPUs do, by the kernel IR:
   values computed before them, pieces of 16-bit elements, sums in lanes, lines
   fetched ahead. */
#include "codegen/kernel/schedule.h"
#include "ir/text/text.h"
#include "passes/device/fold.h"
#include "tests/harness.h"

#include <string.h>

static const Kernel *inner_kernel(Arena *a, const char *text) {
    Diag d = {0};
    Module *m;
    LoweredStep *s;
    if (parse_module(a, &d, "t.amp", text, strlen(text), &m) != OK ||
        verify_module(m, STAGE_FUSED, &d) != OK ||
        lower_graph(m->graphs.data[0],
                    kernel_set_new(a, TARGET_CPU, GPU_BLOCK_SHARED), &d,
                    &s) != OK)
        FAIL("%s", d.text.data);
    sb_free(&d.text);
    return s->epilogue ? s->epilogue : s->kernel;
}

static int count_of(const Kernel *k, const bool *of, KOp op) {
    int n = 0;
    for (int id = 1; of && id < k->insts.len; id++)
        n += of[id] && kinst_at(k, id)->op == op;
    return n;
}

/* The sweep `at` of the kernel: "before" values, "load"s, "round"ings and
   "store"s in pieces; how pieces are converted. */
static void check_inner(const char *text, int at, const char *want) {
    Arena *a = arena_new();
    const Kernel *k = inner_kernel(a, text);
    KSweeps sweeps = kernel_sweeps(k, a);
    REQUIRE(at < sweeps.len);
    KInner in = kernel_inner(a, k, &sweeps, &sweeps.data[at], k->vec);
    int before = 0;
    for (int id = 1; in.before && id < k->insts.len; id++)
        before += in.before[id];
    char got[100];
    snprintf(
        got, sizeof got, "before %d, load %d, round %d, store %d%s%s%s", before,
        count_of(k, in.piece, K_LOAD), count_of(k, in.piece, K_ROUND),
        count_of(k, in.piece, K_STORE), in.pieces ? ", pieces" : "",
        in.pieces && in.in_order ? " in order" : "", in.lanes ? ", lanes" : "");
    CHECK_STR(got, want);
    arena_free(a);
}

/* bf16 in any order; operands of bf16 that are only read stay in place. */
TEST_CASE(schedule_inner, elements_of_16_bits_are_converted_in_pieces) {
    check_inner("graph g(%x: bf16[64,100]) {\n"
                "  group point { %e = exp %x : f32[64,100]\n"
                "    %y = cast %e : bf16[64,100] }\n"
                "  return %y\n}\n",
                0, "before 0, load 1, round 1, store 1, pieces");
    check_inner("graph g(%x: f16[64,100]) {\n"
                "  group point { %e = exp %x : f32[64,100]\n"
                "    %y = cast %e : f16[64,100] }\n"
                "  return %y\n}\n",
                0, "before 0, load 1, round 1, store 1, pieces in order");
    check_inner("graph g(%x: bf16[64,100]) {\n"
                "  group point { %y = exp %x : f32[64,100] }\n"
                "  return %y\n}\n",
                0, "before 0, load 0, round 0, store 0");
}

/* Numbers of columns tell elements apart. */
TEST_CASE(schedule_inner, elements_that_know_their_place_stay_in_order) {
    check_inner("graph g(%x: bf16[64,200]) {\n"
                "  group point { %i = iota {axis=1} : f32[64,200]\n"
                "    %s = add %x, %i : f32[64,200]\n"
                "    %y = cast %s : bf16[64,200] }\n"
                "  return %y\n}\n",
                0, "before 0, load 0, round 1, store 1, pieces in order");
}

/* The store rounds a piece only if nothing else reads what is rounded. */
TEST_CASE(schedule_inner, roundings_that_others_read_are_no_pieces) {
    check_inner("graph g(%x: f32[64,100]) {\n"
                "  group point { %e = exp %x\n"
                "    %r = cast %e : bf16[64,100]\n"
                "    %y = neg %r : f32[64,100] }\n"
                "  return %r, %y\n}\n",
                0, "before 0, load 0, round 0, store 0");
}

/* The second sweep reads the first one's fp32 numbers. */
TEST_CASE(schedule_inner, kept_rows_are_not_converted_again) {
    const char *text =
        "graph g(%x: f16[40,300]) {\n"
        "  group row { %m = reduce_max %x {axes=[1], keepdims=1}\n"
        "    %d = sub %x, %m : f32[40,300]   %y = cast %d : f16[40,300] }\n"
        "  return %y\n}\n";
    check_inner(text, 0, "before 0, load 1, round 0, store 0, pieces in order");
    check_inner(text, 1, "before 0, load 0, round 1, store 1, pieces in order");
}

TEST_CASE(schedule_inner, short_loops_have_no_pieces) {
    const char *text = "graph g(%%x: f16[64,%d], %%b: f16[64,1]) {\n"
                       "  group point { %%y = mul %%x, %%b : f16[64,%d] }\n"
                       "  return %%y\n}\n";
    char of[200];
    snprintf(of, sizeof of, text, 15, 15);
    check_inner(of, 0, "before 0, load 0, round 0, store 0");
    snprintf(of, sizeof of, text, 16, 16);
    check_inner(of, 0, "before 0, load 1, round 1, store 1, pieces in order");
}

/* Sums of cheap values: one block of 16 columns after the other. */
TEST_CASE(schedule_inner, sums_of_cheap_values_are_added_in_lanes) {
    const char *text = "graph g(%%x: f32[40,%d]) {\n"
                       "  group row { %%e = %s %%x\n"
                       "    %%y = reduce_sum %%e {axes=[1], keepdims=1} }\n"
                       "  return %%y\n}\n";
    const struct {
        int columns;
        const char *op;
        bool lanes;
    } row[] = {{300, "neg", true},
               {32, "neg", true},
               {31, "neg", false},
               {300, "exp", false}};
    for (int i = 0; i < 4; i++) {
        char of[200];
        snprintf(of, sizeof of, text, row[i].columns, row[i].op);
        check_inner(of, 0,
                    row[i].lanes ? "before 0, load 0, round 0, store 0, lanes"
                                 : "before 0, load 0, round 0, store 0");
    }
}

TEST_CASE(schedule_inner, columns_behind_the_last_block) {
    KLoop l = {.extent = 64, .step = 1024};
    CHECK_EQ_INT(kernel_left_over(&l), 0);
    l.extent = 100;
    CHECK_EQ_INT(kernel_left_over(&l), 4);
    l.extent = 1024 + 100; /* 0 in the first piece */
    CHECK_EQ_INT(kernel_left_over(&l), -1);
    l.extent = 2048;
    CHECK_EQ_INT(kernel_left_over(&l), 0);
}

/* A value that only an outer column has an index of. */
TEST_CASE(schedule_inner, values_of_outer_columns_are_computed_before) {
    check_inner("graph g(%x: f32[8,64,100], %b: f32[64,1]) {\n"
                "  group row { %s = exp %b   %m = mul %x, %s\n"
                "    %y = reduce_sum %m {axes=[1,2], keepdims=1} }\n"
                "  return %y\n}\n",
                0, "before 2, load 0, round 0, store 0");
}

static void check_ahead(const char *text, int over, int dim, int fetched) {
    Arena *a = arena_new();
    const Kernel *k = inner_kernel(a, text);
    KSweeps sweeps = kernel_sweeps(k, a);
    int at = kernel_ahead_dim(k, sweeps.data, over), n = 0;
    CHECK_EQ_INT(at, dim);
    for (int id = 1; at >= 0 && id < k->insts.len; id++)
        n += kernel_fetches(k, kinst_at(k, id), at);
    CHECK_EQ_INT(n, fetched);
    arena_free(a);
}

/* A tile: its second operand and its result, but not the bias of all rows. Sums
   over rows: at least 64 of them. */
TEST_CASE(schedule_inner, later_rows_are_fetched_ahead) {
    check_ahead("graph g(%x: f32[8,16], %w: f32[16,32], %r: f32[8,32], "
                "%b: f32[32]) {\n"
                "  group anchor { %h = matmul %x, %w   %s = add %h, %r\n"
                "    %y = add %s, %b }\n"
                "  return %y\n}\n",
                LOOP_ROWS, 0, 2);
    const char *sums = "graph g(%%x: f32[%d,64]) {\n"
                       "  group row { %%y = reduce_sum %%x {axes=[0], "
                       "keepdims=1} }\n"
                       "  return %%y\n}\n";
    char of[200];
    snprintf(of, sizeof of, sums, 64);
    check_ahead(of, 0, 0, 1);
    snprintf(of, sizeof of, sums, 63);
    check_ahead(of, 0, -1, 0);
}
