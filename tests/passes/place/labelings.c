/* SPDX-License-Identifier: Apache-2.0 */
/* labelings.c: the placement's cost beside the cost of every labeling of small
 * random graphs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "passes/common/traffic.h"
#include "tests/harness.h"
#include "tests/passes/place/place.h"
#include "tests/support/passed.h"

/* ---- against all labelings ------------------------------------------------
 */

bool is_cast(const Graph *g, const Node *n) {
    return n->op == OP_CAST && value_dtype(g, n->in[0]) == DT_F32;
}

static bool selects(const Node *n) {
    return n->op == OP_RELU || n->op == OP_TRANSPOSE || n->op == OP_RESHAPE;
}

void place_total(const Trial *t, int64_t sum[4]) {
    const Graph *g = t->g;
    memset(sum, 0, 4 * sizeof *sum);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        ValueId v = n->out[0], c = t->copy[v.i];
        if (value_dtype(g, v) != DT_F32) continue;
        const Traffic *a = &t->traffic[v.i], none = {0};
        const Traffic *b = c.i ? &t->traffic[c.i] : &none;
        int64_t count = type_count(value_type(g, v)), rounded = 0;
        if (t->low[v.i]) {
            if (a->stored || b->stored)
                sum[0] += 2 * count * (1 + a->reads + b->reads);
            if ((a->stored || b->stored) && (a->saved || b->saved))
                sum[1] += 2 * count;
            for (int k = 0; k < n->nin && selects(n); k++)
                rounded += !t->low[n->in[k].i];
            if (!selects(n)) rounded = 1;
        } else {
            sum[0] += a->stored ? 4 * count * (1 + a->reads) : 0;
            sum[0] += b->stored ? 2 * count * (1 + b->reads) : 0;
            sum[1] += (a->saved ? 4 * count : 0) + (b->saved ? 2 * count : 0);
            rounded = c.i != 0;
        }
        sum[2] += rounded * t->price[v.i];
        sum[3] += rounded;
    }
}

static bool allowed(const Trial *t) {
    for (int i = 0; i < t->g->order.len; i++) {
        const Node *n = node_get(t->g, t->g->order.data[i]);
        if (n->op == OP_RESHAPE && t->low[n->in[0].i] != t->low[n->out[0].i])
            return false;
    }
    return true;
}

static int compare_cost(const int64_t *a, const int64_t *b) {
    for (int i = 0; i < 4; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

static void find_labels(Trial *t) {
    const Graph *g = t->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_get(g, g->order.data[i]);
        bool sum = n->op == OP_ADD;
        bool amplifies = n->op == OP_SUB || n->op == OP_DIV || n->op == OP_EXP;
        for (int k = 0; k < n->nin; k++) {
            int *p = &t->price[n->in[k].i];
            int behind = sum || n->op == OP_RESHAPE || n->op == OP_TRANSPOSE ||
                                 n->op == OP_RELU
                             ? t->price[n->out[0].i] + sum
                             : 0;
            *p = (behind > *p ? behind : *p) + amplifies;
            t->high[n->in[k].i] |= n->loc.amp == 1 + AMP_FULL;
        }
        t->high[n->out[0].i] |= n->loc.amp == 1 + AMP_FULL;
        if (is_cast(g, n)) t->copy[n->in[0].i] = n->out[0];
    }
    for (int i = 0; i < g->outputs.len; i++)
        t->high[g->outputs.data[i].value.i] = true;
    for (int i = 0; i < g->order.len; i++) {
        ValueId v = node_get(g, g->order.data[i])->out[0];
        bool f32 = value_dtype(g, v) == DT_F32;
        t->low[v.i] = value_dtype(g, v) == DT_BF16;
        if (f32 && !t->high[v.i] && t->nfree < 16) t->free[t->nfree++] = v;
    }
    for (int v = 0; v < 64; v++) t->price[v]++;
}

/* A dozen nodes over [80,80], each reads the previous one. */
static char *random_graph(Arena *a, uint32_t seed) {
    static const char *const ops[][2] = {{"add", ""},
                                         {"mul", ""},
                                         {"sub", ""},
                                         {"div", ""},
                                         {"matmul", ""},
                                         {"matmul", ""},
                                         {"add", ""},
                                         {"relu", ""},
                                         {"exp", ""},
                                         {"tanh", ""},
                                         {"transpose", "{perm=[1,0]}"},
                                         {"reshape", "{shape=[80,80]}"}};
    char *text = arena_printf(a, "graph predict(%%v0: f32[80,80], %%v1: "
                                 "f32[80,80]) {\n");
    for (int i = 2; i < 15; i++) {
        uint32_t r[3];
        for (int k = 0; k < 3; k++)
            r[k] = (seed = seed * 1664525u + 1013904223u) >> 8;
        uint32_t op = r[0] % 12, recent = (uint32_t)(i < 6 ? i : 6);
        char second[16] = "";
        if (op < 7)
            snprintf(second, sizeof second, ", %%v%u",
                     (uint32_t)i - 1 - r[1] % recent);
        text = arena_printf(a, "%s  %%v%d = %s %%v%d%s %s%s%s\n", text, i,
                            ops[op][0], i - 1, second, ops[op][1],
                            !strcmp(ops[op][0], "matmul") ? ""
                            : r[2] % 6                    ? " !any"
                                                          : " !full",
                            i < 9 ? "" : " !backward");
    }
    return arena_printf(a, "%s  return a=%%v14, b=%%v8\n}\n", text);
}

Module *place_lifted(Arena *a, const char *text) {
    Module *m = parsed(a, text);
    passed(a, m, "cse,dce,autocast,inline,canon,dce,lift,cse,dce", no_flags);
    return m;
}

static void check_random(uint32_t seed) {
    Arena *a = arena_new();
    char *text = random_graph(a, seed);
    Options o = options_of(a, no_flags);
    Diag d = {0};
    Module *m = place_lifted(a, text);
    PassCtx cx = {a, &d, &o};
    Graph *g = m->graphs.data[0];
    int n = g->values.len;
    REQUIRE(n <= 64);
    Traffic *traffic = NEW_ARRAY(a, Traffic, n);
    traffic_join(g, traffic, n, &cx);
    Trial t = {.g = graph_clone(g, "before"), .traffic = traffic};
    t.low = NEW_ARRAY(a, bool, n);
    t.high = NEW_ARRAY(a, bool, n);
    t.copy = NEW_ARRAY(a, ValueId, n);
    find_labels(&t);
    module_remove_graph(m, "before");
    int64_t best[4], got[4], one[4];
    for (uint32_t bits = 0; bits < 1u << t.nfree; bits++) {
        for (int i = 0; i < t.nfree; i++) t.low[t.free[i].i] = bits >> i & 1;
        if (!allowed(&t)) continue;
        place_total(&t, one);
        if (!bits || compare_cost(one, best) < 0) memcpy(best, one, sizeof one);
    }
    REQUIRE(pass_place(m, &cx) == OK);
    for (int i = 0; i < t.nfree; i++)
        t.low[t.free[i].i] = value_dtype(g, t.free[i]) == DT_BF16;
    CHECK_MSG(allowed(&t), "%s", text);
    place_total(&t, got);
    CHECK_MSG(!compare_cost(got, best),
              "cost %d %d %d %d, best %d %d %d %d of\n%s", (int)got[0],
              (int)got[1], (int)got[2], (int)got[3], (int)best[0], (int)best[1],
              (int)best[2], (int)best[3], text);
    arena_free(a);
}

TEST_CASE(place, costs_the_least_of_all_labelings) {
    for (uint32_t seed = 1; seed <= 300; seed++) check_random(seed * 7919);
}
