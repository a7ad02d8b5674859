/* SPDX-License-Identifier: Apache-2.0 */
/* towers.c: residual streams that are kept in fp32 for a part of the bytes. */
#include <stdio.h>
#include <string.h>

#include "passes/common/traffic.h"
#include "tests/harness.h"
#include "tests/passes/place/place.h"
#include "tests/support/passed.h"

/* ---- residual streams for a part of the bytes ---------------------------- */

static uint32_t draw(uint32_t *seed, uint32_t n) {
    return ((*seed = *seed * 1664525u + 1013904223u) >> 8) % n;
}

/* One or two towers of different widths, of residual sums that something
   else may read, too, and that may be moved or transformed before the next
   sum. */
static char *random_towers(Arena *a, uint32_t seed) {
    static const char *const between[] = {"reshape", "reshape", "tanh", "relu"},
                             *const rows[] = {"32", "4,8"};
    StrBuf head = {0}, body = {0}, results = {0};
    int towers = 1 + (int)draw(&seed, 2), v = 0, split = 0;
    for (int t = 0; t < towers; t++) {
        int width = 8 + 8 * (int)draw(&seed, 5), sums = 1 + (int)draw(&seed, 3);
        sb_printf(&head, "%s%%r%d: f32[%s,%d]", t ? ", " : "", v, rows[split],
                  width);
        sb_printf(&body, "  param %%w%d: f32[%d,%d]\n", t, width, width);
        for (int last = v + sums; v < last; v++) {
            uint32_t op = draw(&seed, 4);
            sb_printf(&body, "  %%a%d = matmul %%r%d, %%w%d\n", v, v, t);
            sb_printf(&body, "  %%s%d = add %%r%d, %%a%d\n", v, v, v);
            sb_printf(&body, "  %%r%d = %s %%s%d", v + 1, between[op], v);
            if (op < 2) split = !split;
            if (op < 2)
                sb_printf(&body, " {shape=[%s,%d]}", rows[split], width);
            sb_puts(&body, "\n");
            if (draw(&seed, 2)) continue;
            sb_printf(&body, "  %%e%d = gelu %%s%d\n", v, v);
            sb_printf(&body, "  %%b%d = matmul %%e%d, %%w%d\n", v, v, t);
            sb_printf(&results, "b%d=%%b%d, ", v, v);
        }
        sb_printf(&body, "  %%y%d = matmul %%r%d, %%w%d\n", v, v, t);
        sb_printf(&results, "y%d=%%%c%d%s", v, "yr"[draw(&seed, 2)], v,
                  t + 1 < towers ? ", " : "");
        v++;
    }
    char *text = arena_printf(a, "graph predict(%s) {\n%s  return %s\n}\n",
                              head.data, body.data, results.data);
    sb_free(&head), sb_free(&body), sb_free(&results);
    return text;
}

static bool is_stream(const Graph *g, ValueId v) {
    const char *why = value_get(g, v)->why;
    return why && !strcmp(why, "a residual stream");
}

/* Values of one type, some of them residual streams. */
typedef struct Chain {
    ValueId member[4];
    int members;
    int64_t bytes, worth; /* bytes and value of f32 storage; 1 and the number of
                             sums before it */
} Chain;

typedef struct Towers {
    Trial t;
    bool *least; /* by ValueId.i: values that are low if streams get no bytes */
    int64_t bytes;
    Chain chain[12]; /* the highest value per byte first */
    int n;
} Towers;

/* The pass does not choose the dtypes of copies of inputs and parameters. */
static int64_t bytes_with(Towers *w, uint32_t kept) {
    const Graph *g = w->t.g;
    int64_t sum[4], bytes = 0;
    memcpy(w->t.low, w->least, (size_t)w->t.g->values.len);
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->chain[i].members && kept >> i & 1; k++)
            w->t.low[w->chain[i].member[k].i] = false;
    place_total(&w->t, sum);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        const Traffic *copy = &w->t.traffic[n->out[0].i];
        if (is_cast(g, n) && !place_maker(g, n->in[0]) && copy->stored)
            bytes +=
                2 * type_count(value_type(g, n->in[0])) * (1 + copy->reads);
    }
    return bytes + sum[0];
}

static Chain *chain_of(Towers *w, ValueId v) {
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->chain[i].members; k++)
            if (same_value(w->chain[i].member[k], v)) return &w->chain[i];
    return NULL;
}

/* all: placed with every stream in f32. */
static void find_chains(Towers *w, const Graph *all) {
    const Graph *g = w->t.g;
    int64_t sums[64] = {0};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        ValueId v = n->out[0];
        for (int k = 0; k < n->nin; k++)
            if (sums[n->in[k].i] > sums[v.i]) sums[v.i] = sums[n->in[k].i];
        sums[v.i] += n->op == OP_ADD && is_stream(all, v);
        Chain *c = n->op == OP_RESHAPE ? chain_of(w, n->in[0]) : NULL;
        if (!c && !is_stream(all, v)) continue;
        if (!c) c = &w->chain[w->n++];
        REQUIRE(w->n <= 12 && c->members < 4);
        c->member[c->members++] = v;
        c->worth = 1 + sums[v.i];
    }
    for (int i = 0; i < w->n; i++)
        w->chain[i].bytes = bytes_with(w, 1u << i) - w->bytes;
    for (int i = 0; i < w->n; i++) /* later streams before equal ones */
        for (int k = i; k > 0; k--) {
            Chain *x = &w->chain[k - 1], *y = x + 1, swap = *x;
            if (x->worth * y->bytes > y->worth * x->bytes) break;
            *x = *y, *y = swap;
        }
}

/* The first set in this order that fits, among all: with the first chain in
   it if possible, then the second, and so on. */
static uint32_t best_within(Towers *w, double percent) {
    double most = (double)w->bytes * (1 + percent / 100) + 0.5;
    for (uint32_t in = 1u << w->n; in-- > 0;) {
        uint32_t kept = 0;
        for (int i = 0; i < w->n; i++) kept |= (in >> (w->n - 1 - i) & 1) << i;
        if ((double)bytes_with(w, kept) <= most) return kept;
    }
    return 0;
}

static int check_towers(uint32_t seed) {
    static const double percents[] = {0, 3, 7, 12, 20, 40, 1000};
    Arena *a = arena_new();
    char *text = random_towers(a, seed);
    Options o = options_of(a, no_flags);
    Diag d = {0};
    int some = 0;
    o.fp16_residuals = false;
    PassCtx cx = {a, &d, &o};
    Graph *before = place_lifted(a, text)->graphs.data[0];
    Module *all = place_lifted(a, text), *none = place_lifted(a, text);
    int n = before->values.len;
    Traffic *traffic = NEW_ARRAY(a, Traffic, n);
    Towers w = {.t = {.g = before, .traffic = traffic}};
    REQUIRE(n <= 64);
    traffic_join(before, traffic, n, &cx);
    w.t.low = NEW_ARRAY(a, bool, n);
    w.t.copy = NEW_ARRAY(a, ValueId, n);
    w.least = NEW_ARRAY(a, bool, n);
    REQUIRE(pass_place(all, &cx) == OK);
    o.residuals = 0;
    REQUIRE(pass_place(none, &cx) == OK);
    for (int i = 0; i < before->order.len; i++) {
        const Node *x = node_get(before, before->order.data[i]);
        w.least[x->out[0].i] =
            value_dtype(none->graphs.data[0], x->out[0]) == DT_BF16;
        if (is_cast(before, x)) w.t.copy[x->in[0].i] = x->out[0];
    }
    w.bytes = bytes_with(&w, 0);
    find_chains(&w, all->graphs.data[0]);
    for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
        Module *m = place_lifted(a, text);
        const Graph *g = m->graphs.data[0];
        o.residuals = percents[p];
        REQUIRE(pass_place(m, &cx) == OK);
        uint32_t kept = best_within(&w, percents[p]);
        for (int i = 0; i < w.n; i++)
            for (int k = 0; k < w.chain[i].members; k++) {
                ValueId v = w.chain[i].member[k];
                bool f32 = value_dtype(g, v) == DT_F32;
                CHECK_MSG(f32 || !(kept >> i & 1), "%g %%: %s is bf16 in\n%s",
                          percents[p], value_get(g, v)->name, text);
                CHECK_MSG(!is_stream(g, v) || kept >> i & 1,
                          "%g %%: %s is f32 in\n%s", percents[p],
                          value_get(g, v)->name, text);
            }
        some += kept && kept != (1u << w.n) - 1;
    }
    arena_free(a);
    return some;
}

TEST_CASE(place, residual_streams_within_a_part_of_the_bytes) {
    int some = 0;
    for (uint32_t seed = 1; seed <= 200; seed++)
        some += check_towers(seed * 7919);
    CHECK_MSG(some > 200, "%d times some of them and not all", some);
}
