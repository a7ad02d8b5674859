/* SPDX-License-Identifier: Apache-2.0 */
/* mincut_test.c: the cut, compared with all assignments of small problems. */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "passes/common/mincut.h"
#include "tests/harness.h"

enum { MOST = 11, TERMS = 48, PROBLEMS = 4000 };

typedef enum Kind {
    IF_LOW,
    IF_HIGH,
    IF_LOW_HIGH,
    FORCE_LOW,
    FORCE_HIGH,
    IMPLIES,
    NUM_KINDS
} Kind;

typedef struct Term {
    Kind kind;
    int x, y;
    CutCost cost;
} Term;

typedef struct Problem {
    int n, terms;
    Term t[TERMS];
} Problem;

static uint64_t state = 1;

static int pick(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

/* Small numbers, so that ties are common, and gaps in every component. */
static CutCost random_cost(void) {
    CutCost c = {{0}};
    int64_t unit = pick(8) ? 1 : INT64_C(1) << 40;
    for (int i = 0; i < CUT_RANKS; i++)
        if (pick(2)) c.of[i] = pick(5) * unit;
    return c;
}

static Problem random_problem(bool constrained) {
    Problem p = {.n = 1 + pick(MOST), .terms = 1 + pick(TERMS)};
    for (int i = 0; i < p.terms; i++) {
        Term *t = &p.t[i];
        bool bound = constrained && !pick(5);
        t->kind = (Kind)(bound ? FORCE_LOW + pick(3) : pick(3));
        t->x = pick(p.n);
        t->y = pick(p.n);
        t->cost = random_cost();
    }
    return p;
}

static int compare(const CutCost *x, const CutCost *y) {
    for (int i = 0; i < CUT_RANKS; i++)
        if (x->of[i] != y->of[i]) return x->of[i] < y->of[i] ? -1 : 1;
    return 0;
}

/* false: the assignment is forbidden */
static bool cost_of(const Problem *p, unsigned low, CutCost *sum) {
    memset(sum, 0, sizeof *sum);
    for (int i = 0; i < p->terms; i++) {
        const Term *t = &p->t[i];
        bool x = low >> t->x & 1, y = low >> t->y & 1, pays = false;
        switch (t->kind) {
        case IF_LOW: pays = x; break;
        case IF_HIGH: pays = !x; break;
        case IF_LOW_HIGH: pays = x && !y; break;
        case FORCE_LOW:
            if (!x) return false;
            break;
        case FORCE_HIGH:
            if (x) return false;
            break;
        case IMPLIES:
            if (x && !y) return false;
            break;
        case NUM_KINDS: break;
        }
        for (int k = 0; pays && k < CUT_RANKS; k++) sum->of[k] += t->cost.of[k];
    }
    return true;
}

/* Finds the cheapest assignments: their cost, and the variables that are low in
   all of them. */
static bool enumerate(const Problem *p, CutCost *best, unsigned *low) {
    bool found = false;
    for (unsigned i = 0; i < 1u << p->n; i++) {
        CutCost c;
        if (!cost_of(p, i, &c)) continue;
        int order = found ? compare(&c, best) : -1;
        if (order < 0) *low = i;
        if (order == 0) *low &= i;
        if (order < 0) *best = c;
        found = true;
    }
    return found;
}

static void add(Cut *c, const Term *t) {
    switch (t->kind) {
    case IF_LOW: cut_if_low(c, t->x, t->cost); break;
    case IF_HIGH: cut_if_high(c, t->x, t->cost); break;
    case IF_LOW_HIGH: cut_if_low_high(c, t->x, t->y, t->cost); break;
    case FORCE_LOW: cut_force(c, t->x, true); break;
    case FORCE_HIGH: cut_force(c, t->x, false); break;
    case IMPLIES: cut_low_implies_low(c, t->x, t->y); break;
    case NUM_KINDS: break;
    }
}

static bool solve(const Problem *p, bool backwards, CutCost *total,
                  unsigned *low) {
    Arena *a = arena_new();
    Cut *c = cut_new(a, p->n);
    bool label[MOST];
    for (int i = 0; i < p->terms; i++)
        add(c, &p->t[backwards ? p->terms - 1 - i : i]);
    bool solved = cut_solve(c, label, total);
    *low = 0;
    for (int i = 0; i < p->n; i++) *low |= (unsigned)label[i] << i;
    arena_free(a);
    return solved;
}

static void compare_problems(bool constrained, int *contradictions) {
    for (int i = 0; i < PROBLEMS; i++) {
        Problem p = random_problem(constrained);
        CutCost want = {{0}}, got;
        unsigned all = 0, low;
        bool possible = enumerate(&p, &want, &all);
        *contradictions += !possible;
        for (int back = 0; back < 2; back++) {
            CHECK_EQ_INT(solve(&p, back, &got, &low), possible);
            if (!possible) continue;
            CHECK_EQ_INT(compare(&got, &want), 0);
            CHECK_EQ_INT(low, all);
        }
    }
}

TEST_CASE(mincut, equals_enumeration) {
    int contradictions = 0;
    compare_problems(false, &contradictions);
    CHECK_EQ_INT(contradictions, 0);
    compare_problems(true, &contradictions);
    CHECK(contradictions > PROBLEMS / 10 && contradictions < PROBLEMS);
}

/* An alternating chain with one long path: no recursion, and no search whose
   time grows with the capacities. */
TEST_CASE(mincut, thousands_of_variables) {
    enum { N = 4000 };
    Arena *a = arena_new();
    Cut *c = cut_new(a, N);
    bool *low = NEW_ARRAY(a, bool, N);
    CutCost total, one = {{INT64_C(1) << 40, 0, 0, 1}};
    for (int i = 0; i + 1 < N; i++) {
        cut_if_low_high(c, i, i + 1, one);
        if (i % 3) cut_if_low(c, i, (CutCost){{0, 1, 0, 0}});
    }
    cut_force(c, 0, true);
    cut_force(c, N - 1, false);
    CHECK(cut_solve(c, low, &total));
    CHECK(low[0] && !low[1] && !low[N - 1]);
    CHECK_EQ_INT(compare(&total, &one), 0);
    arena_free(a);
}

/* All of the flow from one costly arc goes to costs in the second component,
   each farther away than the one before: time is linear in the chain. */
TEST_CASE(mincut, a_chain_of_small_costs) {
    enum { N = 200000 };
    Arena *a = arena_new();
    Cut *c = cut_new(a, N);
    bool *low = NEW_ARRAY(a, bool, N);
    CutCost total, costly = {{64, 0, 0, 0}}, small = {{0, 1, 0, 0}};
    for (int i = 0; i + 2 < N; i += 2) {
        cut_if_low_high(c, i, i + 1, costly);
        cut_if_low(c, i + 1, small);
        cut_low_implies_low(c, i + 1, i + 2);
    }
    cut_force(c, 0, true);
    double begin = (double)clock() / CLOCKS_PER_SEC;
    CHECK(cut_solve(c, low, &total));
    double took = (double)clock() / CLOCKS_PER_SEC - begin;
    CHECK_MSG(took < 5, "%g s", took);
    CHECK(low[0] && low[1] && low[N - 3]);
    CHECK(total.of[0] == 0 && total.of[1] == N / 2 - 1);
    arena_free(a);
}
