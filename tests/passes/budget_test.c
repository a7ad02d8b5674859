/* SPDX-License-Identifier: Apache-2.0 */
/* budget_test.c: the choice within error limits, compared with all
   assignments of small problems. */
#include <math.h>
#include <string.h>

#include "passes/common/budget.h"
#include "tests/harness.h"

enum { MOST = 9, TERMS = 24, PROBLEMS = 600 };

static uint64_t state = 1;

static int pick(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static Choice random_choice(Arena *a) {
    Choice c = {.variables = 1 + pick(MOST)};
    for (int i = 0, n = 1 + pick(TERMS); i < n; i++) {
        Term t = {.kind = pick(9) ? (TermKind)pick(3) : TERM_IMPLIES,
                  .x = pick(c.variables),
                  .y = pick(c.variables)};
        if (t.kind == TERM_HIGH)
            t.bytes = pick(1000);
        else if (t.kind != TERM_IMPLIES)
            for (int k = 0; k < NUM_ERRORS; k++)
                t.error[k] = pick(3) ? pow(10, -pick(8)) * pick(10) : 0;
        choice_add(&c, a, t);
    }
    return c;
}

/* false: the assignment is forbidden */
static bool cost_of(const Choice *c, unsigned low, double *bytes,
                    double *error) {
    *bytes = 0;
    memset(error, 0, NUM_ERRORS * sizeof *error);
    for (int i = 0; i < c->terms.len; i++) {
        const Term *t = &c->terms.data[i];
        bool x = low >> t->x & 1, y = low >> t->y & 1;
        if (t->kind == TERM_IMPLIES && x && !y) return false;
        if ((t->kind == TERM_LOW && x) || (t->kind == TERM_HIGH && !x) ||
            (t->kind == TERM_LOW_HIGH && x && !y)) {
            *bytes += (double)t->bytes;
            for (int k = 0; k < NUM_ERRORS; k++) error[k] += t->error[k];
        }
    }
    return true;
}

/* The least bytes + price * error of all assignments. */
static double cheapest(const Choice *c, const double *price) {
    double least = INFINITY;
    for (unsigned i = 0; i < 1u << c->variables; i++) {
        double bytes, error[NUM_ERRORS];
        if (!cost_of(c, i, &bytes, error)) continue;
        for (int k = 0; k < NUM_ERRORS; k++) bytes += price[k] * error[k];
        least = fmin(least, bytes);
    }
    return least;
}

/* The least bytes of the assignments within the limits; infinity: none. */
static double fewest(const Choice *c) {
    double least = INFINITY;
    for (unsigned i = 0; i < 1u << c->variables; i++) {
        double bytes, error[NUM_ERRORS];
        bool keeps = cost_of(c, i, &bytes, error);
        for (int k = 0; k < NUM_ERRORS; k++) keeps &= error[k] <= c->limit[k];
        if (keeps) least = fmin(least, bytes);
    }
    return least;
}

TEST_CASE(budget, each_price_gives_the_cheapest_of_all_assignments) {
    for (int i = 0; i < PROBLEMS; i++) {
        Arena *a = arena_new();
        Choice c = random_choice(a);
        double price[] = {pow(10, pick(8)), pick(2) ? pow(10, pick(8)) : 0};
        for (int k = 0; k < NUM_ERRORS; k++) c.limit[k] = 1;
        Chosen got = choice_at(&c, price, a);
        double want = cheapest(&c, price);
        double is = (double)got.bytes + price[0] * got.error[0] +
                    price[1] * got.error[1];
        /* costs are rounded to 1/256 byte; above twice all bytes they make
           no difference */
        bool dear = want > 24000;
        CHECK_MSG(dear || fabs(is - want) <= 0.1, "%g, all %g", is, want);
        arena_free(a);
    }
}

TEST_CASE(budget, limits_are_kept_and_the_gap_is_bounded) {
    int kept = 0, best = 0, none = 0;
    double gap = 0;
    for (int i = 0; i < PROBLEMS; i++) {
        Arena *a = arena_new();
        Choice c = random_choice(a);
        Chosen got;
        for (int k = 0; k < NUM_ERRORS; k++)
            c.limit[k] = pick(3) ? pow(10, -pick(8)) * 10 : INFINITY;
        double want = fewest(&c);
        bool found = choice_within(&c, a, &got);
        if (isinf(want)) {
            none++;
            CHECK(!found);
            arena_free(a);
            continue;
        }
        REQUIRE(found);
        kept++;
        for (int k = 0; k < NUM_ERRORS; k++) CHECK(got.error[k] <= c.limit[k]);
        CHECK((double)got.bytes >= want);
        CHECK_MSG(got.bound <= want + 1e-6, "bound %g, fewest %g", got.bound,
                  want);
        best += (double)got.bytes == want;
        gap += ((double)got.bytes - want) / fmax(want, 1);
        arena_free(a);
    }
    CHECK(none < PROBLEMS / 4);
    CHECK_MSG(best > kept * 3 / 4, "%d of %d are the best, gap %g", best, kept,
              gap / kept);
}

TEST_CASE(budget, without_need_nothing_is_paid) {
    Arena *a = arena_new();
    Choice c = {.variables = 1, .limit = {1, INFINITY}};
    choice_add(&c, a, (Term){.kind = TERM_LOW, .x = 0, .error = {0.5, 9}});
    choice_add(&c, a, (Term){.kind = TERM_HIGH, .x = 0, .bytes = 10});
    Chosen got;
    CHECK(choice_within(&c, a, &got) && got.low[0] && got.bound == 0);
    c.limit[0] = 0.25;
    CHECK(choice_within(&c, a, &got) && !got.low[0] && got.bytes == 10);
    arena_free(a);
}

TEST_CASE(budget, errors_are_found_by_their_key) {
    Arena *a = arena_new();
    Errors e = {.placed = false};
    CHECK(!errors_find(&e, 5));
    for (uint64_t k = 0; k < 50; k++)
        vec_push(a, &e.of,
                 (ErrorOf){.key = k * 7919 % 101, .count = (int64_t)k});
    errors_sort(&e);
    for (uint64_t k = 0; k < 50; k++) {
        const ErrorOf *of = errors_find(&e, k * 7919 % 101);
        CHECK(of && of->count == (int64_t)k);
    }
    arena_free(a);
}
