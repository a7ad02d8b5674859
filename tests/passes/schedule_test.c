/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_test.c: the order of groups, compared with the best of all orders.

   Random graphs of few products that do not fuse: the least peak over all
   orders is found by trying them; the order from pass schedule must be close
   to it, and never worse than the order of the source. */
#include "tests/harness.h"
#include "tests/support/passed.h"

#include <string.h>

enum { GROUPS = 10, SIZES = 4 };

/* A value that a group computes. */
typedef struct Made {
    int64_t bytes;
    unsigned readers; /* groups, a bit each */
    bool kept;
} Made;

typedef struct Small {
    Arena *a;
    Module *m;
    Graph *g;
    uint64_t rng;
    Made made[GROUPS]; /* in the order of the source */
    unsigned needs[GROUPS];
} Small;

static int pick(Small *s, int n) {
    s->rng = s->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((s->rng >> 33) % (uint64_t)n);
}

/* Draws an operand with this number of rows from v[0..n), mostly a recent one,
   or an input. */
static ValueId operand(Small *s, const ValueId *v, int n, int64_t rows) {
    for (int tries = 0; tries < 8 && n; tries++) {
        ValueId x = v[pick(s, 2) ? pick(s, n) : n - 1];
        if (!rows || value_type(s->g, x)->dim[0] == rows) return x;
    }
    int64_t dim[] = {rows ? rows : 16, 16 << pick(s, SIZES)};
    Str name = internf("x%d", s->g->inputs.len);
    return graph_input(s->g, name, type_make(DT_F32, 2, dim));
}

static void make_small(Small *s, uint64_t seed) {
    ValueId v[GROUPS];
    *s = (Small){.a = arena_new(), .rng = seed};
    s->m = module_new(s->a, "m");
    s->g = graph_new(s->m, "predict");
    Builder b = {.g = s->g};
    for (int i = 0; i < GROUPS; i++) {
        ValueId x = operand(s, v, i, 0);
        ValueId y = operand(s, v, i, value_type(s->g, x)->dim[1]);
        v[i] = b_matmul(&b, x, y, false, false, DT_F32);
    }
    for (int i = 0; i < GROUPS; i++) {
        Made *x = &s->made[i];
        x->bytes = type_bytes(value_type(s->g, v[i]));
        for (int k = i + 1; k < GROUPS; k++) {
            const Node *n = node_get(s->g, value_get(s->g, v[k])->def);
            if (!same_value(n->in[0], v[i]) && !same_value(n->in[1], v[i]))
                continue;
            x->readers |= 1u << k;
            s->needs[k] |= 1u << i;
        }
        x->kept = !x->readers || !pick(s, 6);
        Output out = {.name = internf("y%d", i), .value = v[i]};
        if (x->kept) vec_push(s->a, &s->g->outputs, out);
    }
    passed(s->a, s->m, "inline,canon,reduce,fuse,schedule", no_flags);
    REQUIRE(s->g->groups.len == GROUPS);
}

/* Bytes that are live when the groups in `ran` have run. */
static int64_t alive(const Small *s, unsigned ran) {
    int64_t sum = 0;
    for (int i = 0; i < GROUPS; i++)
        if (ran >> i & 1 && (s->made[i].kept || s->made[i].readers & ~ran))
            sum += s->made[i].bytes;
    return sum;
}

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The least peak over all orders, by the set of groups that have run. */
static int64_t least_peak(const Small *s) {
    enum { ALL = 1 << GROUPS };
    int64_t *best = NEW_ARRAY(s->a, int64_t, ALL);
    for (unsigned ran = 1; ran < ALL; ran++) {
        best[ran] = INT64_MAX;
        for (int i = 0; i < GROUPS; i++) {
            unsigned before = ran & ~(1u << i);
            if (before == ran || s->needs[i] & ~before ||
                best[before] == INT64_MAX)
                continue;
            int64_t now = alive(s, before) + s->made[i].bytes;
            if (most(best[before], now) < best[ran])
                best[ran] = most(best[before], now);
        }
    }
    return best[ALL - 1];
}

/* The peak of an order; order[i] is a group's number in the source. */
static int64_t peak(const Small *s, const int *order) {
    int64_t p = 0;
    unsigned ran = 0;
    for (int i = 0; i < GROUPS; i++) {
        CHECK_EQ_INT(s->needs[order[i]] & ~ran, 0);
        p = most(p, alive(s, ran) + s->made[order[i]].bytes);
        ran |= 1u << order[i];
    }
    return p;
}

TEST_CASE(schedule, near_the_best_of_all_orders) {
    enum { SEEDS = 300 };
    double taken = 0, least = 0;
    int exact = 0, better = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        Small s;
        int in_source[GROUPS], order[GROUPS];
        make_small(&s, seed * 977);
        for (int i = 0; i < GROUPS; i++) {
            in_source[i] = i;
            /* nodes are numbered from 1 in the order of the source */
            order[i] = (int)s.g->order.data[i].i - 1;
        }
        int64_t p = peak(&s, order), best = least_peak(&s);
        int64_t written = peak(&s, in_source);
        CHECK_MSG(p >= best && p <= written, "seed %d: %lld, %lld, %lld",
                  (int)seed, (long long)p, (long long)best, (long long)written);
        exact += p == best;
        better += p < written;
        taken += (double)p;
        least += (double)best;
        arena_free(s.a);
    }
    CHECK_MSG(taken <= 1.055 * least, "%g times", taken / least);
    CHECK_MSG(exact > 190 && better > 90, "%d best, %d better", exact, better);
}
