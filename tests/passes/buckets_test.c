/* SPDX-License-Identifier: Apache-2.0 */
/* buckets_test.c: what ranks sum, and when. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

/* The last of four layers has its gradient first, and its sum begins while the
   other gradients are computed. */
TEST_CASE(buckets, are_ready_one_after_the_other) {
    static const char text[] =
        "graph forward(%x: f32[8,16]) {\n"
        "  param %a: f32[16,16] = 0.5, %b: f32[16,16] = 0.5\n"
        "  param %c: f32[16,16] = 0.5, %d: f32[16,16] = 0.5\n"
        "  %p = matmul %x, %a\n  %q = tanh %p\n  %r = matmul %q, %b\n"
        "  %s = tanh %r\n  %t = matmul %s, %c\n  %u = tanh %t\n"
        "  %v = matmul %u, %d\n  return %v\n}\n";
    enum { LAYERS = 4 };
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    int ready[LAYERS + 1] = {0}, seen = 0;
    staged(a, m, STAGE_PLANNED,
           FLAGS("--comm-bucket", "1024", "--loss", "mse", "--precision",
                 "fp32", "--target", "cpu"));
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->writes.len && !seen; k++) {
            const Write *w = &g->writes.data[k];
            const Value *v = value_get(g, w->value);
            if (!w->bucket) continue;
            REQUIRE(w->bucket <= LAYERS && v->kind == VK_RESULT);
            ready[w->bucket] = node_get(g, v->def)->group + 1;
        }
        seen += ready[LAYERS] > 0;
    }
    for (int i = 1; i <= LAYERS; i++) CHECK(ready[i] > ready[i - 1]);
    arena_free(a);
}

/* Three sums that wait for nothing are one: adjacent, and computed before
   the first reader, though another order would free memory; the fourth
   waits. */
TEST_CASE(rank_sums, are_made_as_one) {
    static const char text[] =
        "graph update(%x: f32[512], %y: f32[256], %z: f32[128]) {\n"
        "  %u = tanh %x\n  %a = rank_sum %u\n"
        "  %p = reduce_sum %a {axes=[0]}\n"
        "  %v = tanh %y\n  %b = rank_sum %v\n"
        "  %q = reduce_sum %b {axes=[0]}\n"
        "  %w = tanh %z\n  %c = rank_sum %w\n"
        "  %cp = mul %c, %p\n  %r = mul %cp, %q\n  %d = rank_sum %r\n"
        "  return %p, %q, %d, %u, %v, %w\n}\n";
    enum { SUMS = 4 };
    Arena *a = arena_new();
    ValueId sums[SUMS];
    int64_t least = INT64_MAX, end = 0;
    int place[SUMS], n = 0, reader = INT32_MAX;
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lowered(a, m, no_flags);
    for (int i = 0; i < g->order.len; i++) {
        const Node *node = node_get(g, g->order.data[i]);
        if (node->op == OP_REDUCE_SUM && i < reader) reader = i;
        if (node->op != OP_RANK_SUM) continue;
        REQUIRE(n < SUMS);
        sums[n] = node->out[0];
        place[n++] = i;
    }
    REQUIRE(n == SUMS);
    CHECK(place[2] < reader && reader < place[3]);
    for (int i = 0; i < SUMS - 1; i++) {
        int64_t at = value_get(g, sums[i])->offset;
        int64_t to = at + 4 * type_count(value_type(g, sums[i]));
        if (at < least) least = at;
        if (to > end) end = to;
    }
    CHECK_EQ_INT(end - least, 2048 + 1024 + 512);
    run_in_memory(a, g, text);
    arena_free(a);
}

/* Ranks share the state of updates that treat each element alone, in fp32:
   other updates need the norm, the rows or the matrix of a whole parameter,
   have one number for all of it, or random numbers for all of its elements. */
TEST_CASE(shards, are_of_updates_of_single_elements) {
    static const char text[] =
        "graph forward(%x: f32[8,16]) {\n  param %w: f32[16,16] = 0.5\n"
        "  %y = matmul %x, %w\n  return %y\n}\n";
    static const struct {
        const char *optimizer;
        bool alone;
    } rows[] = {{"sgd", true},
                {"sgd,momentum=0.9", true},
                {"adam", true},
                {"adamw", true},
                {"rmsprop", true},
                {"adagrad", true},
                {"asgd", false},
                {"rprop", true},
                {"adamax", true},
                {"nadam", false},
                {"radam", true},
                {"lion", true},
                {"adan", true},
                {"ademamix", true},
                {"lars", true},
                {"lars,weight_decay=0.1", false},
                {"lars,always_adapt", false},
                {"prodigy", false},
                {"lamb", false},
                {"lamb,weight_decay=0", true},
                {"adafactor", false},
                {"muon", false}};
    static const char *const dtypes[] = {"fp32", "bf16", "int8"};
    for (size_t i = 0; i < 3 * (sizeof rows / sizeof *rows); i++) {
        const char *dtype = dtypes[i % 3], *name = rows[i / 3].optimizer;
        Arena *a = arena_new();
        Diag d = {0};
        Module *m = parsed(a, text);
        Options o = options_of(a, FLAGS("--loss", "mse", "--precision", "bf16",
                                        "--optimizer", name, "--state-dtype",
                                        dtype, "--shard-optimizer"));
        bool taken = run_pipeline(m, &d, &o, STAGE_STEP, false) == OK;
        CHECK_MSG(taken == (rows[i / 3].alone && i % 3 == 0), "%s, %s: %s",
                  name, dtype, taken ? "taken" : d.text.data);
        if (!taken)
            CHECK_HAS(d.text.data,
                      rows[i / 3].alone ? "--state-dtype" : "whole parameters");
        sb_free(&d.text);
        arena_free(a);
    }
}
