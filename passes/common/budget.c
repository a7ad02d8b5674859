/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c: see budget.h. */
#include "passes/common/budget.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/op/op.h"
#include "passes/common/mincut.h"

const double error_margin[NUM_ERRORS] = {
    [ERROR_LOSS] = 3, [ERROR_GRADIENT] = 1.5};

/* Costs are integers, in fractions of a byte. */
enum { PARTS = 256 };

void choice_add(Choice *c, Arena *a, Term t) { vec_push(a, &c->terms, t); }

/* ---- one price ----------------------------------------------------------- */

static double sum_bytes(const Choice *c) {
    double sum = 1;
    for (int i = 0; i < c->terms.len; i++)
        sum += (double)c->terms.data[i].bytes;
    return sum;
}

/* A higher price than twice all bytes gives the same assignment. */
static int64_t budget_in_parts(double bytes, double most) {
    return (int64_t)llround(PARTS * fmin(bytes, 2 * most));
}

static double priced(const Term *t, const double *price) {
    double sum = 0;
    for (int k = 0; k < NUM_ERRORS; k++)
        if (price[k] > 0 && t->error[k] > 0) sum += price[k] * t->error[k];
    return sum;
}

static CutCost cost_of(const Choice *c, const Term *t, const double *price,
                       double most) {
    CutCost cost = {{0}};
    double part = 0;
    for (int k = 0; k < NUM_ERRORS; k++)
        if (isfinite(c->limit[k]) && c->limit[k] > 0)
            part += t->error[k] / c->limit[k];
    cost.of[0] = t->bytes * PARTS + budget_in_parts(priced(t, price), most);
    cost.of[1] = t->saved;
    cost.of[2] = (int64_t)llround(fmin(part, 1024) * 0x1p30);
    cost.of[3] = t->error[ERROR_LOSS] > 0 || t->error[ERROR_GRADIENT] > 0;
    return cost;
}

static Cut *cut_of(const Choice *c, const double *price, Arena *a) {
    Cut *cut = cut_new(a, c->variables);
    double most = sum_bytes(c);
    for (int i = 0; i < c->terms.len; i++) {
        const Term *t = &c->terms.data[i];
        CutCost cost = cost_of(c, t, price, most);
        switch (t->kind) {
        case TERM_LOW: cut_if_low(cut, t->x, cost); break;
        case TERM_HIGH: cut_if_high(cut, t->x, cost); break;
        case TERM_LOW_HIGH: cut_if_low_high(cut, t->x, t->y, cost); break;
        case TERM_IMPLIES: cut_low_implies_low(cut, t->x, t->y); break;
        case TERM_IS_LOW: cut_force(cut, t->x, true); break;
        case TERM_IS_HIGH: cut_force(cut, t->x, false); break;
        }
    }
    return cut;
}

static bool applies(const Term *t, const bool *low) {
    switch (t->kind) {
    case TERM_LOW: return low[t->x];
    case TERM_HIGH: return !low[t->x];
    case TERM_LOW_HIGH: return low[t->x] && !low[t->y];
    default: return false;
    }
}

static double budget_bound_of(const Choice *c, const Chosen *x, int64_t parts) {
    /* rounding changed each term by at most half a unit */
    double bound = ((double)parts - c->terms.len) / PARTS;
    for (int k = 0; k < NUM_ERRORS; k++)
        if (x->price[k] > 0) bound -= x->price[k] * c->limit[k];
    return bound;
}

Chosen choice_at(const Choice *c, const double *price, Arena *a) {
    Arena *scratch = arena_new();
    CutCost total;
    Chosen x = {.low = NEW_ARRAY(a, bool, c->variables + 1), .cuts = 1};
    Cut *cut = cut_of(c, price, scratch);
    bool possible = cut_solve(cut, x.low, &total);
    ASSERT(possible && "what is forced does not contradict itself");
    for (int i = 0; i < c->terms.len; i++) {
        const Term *t = &c->terms.data[i];
        if (!applies(t, x.low)) continue;
        x.bytes += t->bytes;
        for (int k = 0; k < NUM_ERRORS; k++) x.error[k] += t->error[k];
    }
    memcpy(x.price, price, sizeof x.price);
    x.bound = budget_bound_of(c, &x, total.of[0]);
    arena_free(scratch);
    return x;
}

/* ---- the price that keeps the limits ------------------------------------- */

typedef struct Search {
    const Choice *c;
    Arena *a;
    Chosen best;
    bool found;
    double bound;
    int cuts;
} Search;

static bool keeps(const Choice *c, const Chosen *x) {
    for (int k = 0; k < NUM_ERRORS; k++)
        if (!(x->error[k] <= c->limit[k])) return false;
    return true;
}

/* share: the part of the price that each limit's error gets. */
static bool try_price(Search *s, double price, const double *share) {
    double of[NUM_ERRORS];
    for (int k = 0; k < NUM_ERRORS; k++)
        of[k] = share[k] > 0 ? price * share[k] / s->c->limit[k] : 0;
    Chosen x = choice_at(s->c, of, s->a);
    s->cuts++;
    if (x.bound > s->bound) s->bound = x.bound;
    if (!keeps(s->c, &x)) return false;
    if (!s->found || x.bytes < s->best.bytes) s->best = x;
    s->found = true;
    return true;
}

/* The lowest price that keeps the limits, to within 1 %; a higher price
   gives smaller errors but more bytes. */
static void budget_search(Search *s, const double *share) {
    const double start = 1, most = 1e60;
    double lo = 0, hi = start;
    while (!try_price(s, hi, share)) {
        lo = hi;
        hi *= 64;
        if (hi > most) return;
    }
    if (lo == 0) lo = start * 1e-6;
    while (hi > lo * 1.01) {
        double mid = sqrt(lo * hi);
        if (try_price(s, mid, share))
            hi = mid;
        else
            lo = mid;
    }
}

bool choice_within(const Choice *c, Arena *a, Chosen *best) {
    static const double shares[] = {1, 0.9, 0.7, 0.5, 0.3, 0.1, 0};
    static const double none[NUM_ERRORS];
    Search s = {.c = c, .a = a, .bound = -INFINITY};
    int limits = 0;
    if (!try_price(&s, 0, none)) {
        for (int k = 0; k < NUM_ERRORS; k++) limits += isfinite(c->limit[k]);
        for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
            double share[NUM_ERRORS] = {shares[i], 1 - shares[i]};
            bool sense = true;
            for (int k = 0; k < NUM_ERRORS; k++)
                sense &= share[k] == 0 || isfinite(c->limit[k]);
            if (sense && (limits > 1 || shares[i] == 0 || shares[i] == 1))
                budget_search(&s, share);
        }
    }
    if (!s.found) {
        double dear[NUM_ERRORS];
        for (int k = 0; k < NUM_ERRORS; k++)
            dear[k] = isfinite(c->limit[k]) ? 1e300 : 0;
        s.best = choice_at(c, dear, a);
        s.found = keeps(c, &s.best);
    }
    *best = s.best;
    best->bound = fmin(fmax(s.bound, 0), (double)best->bytes);
    best->cuts = s.cuts;
    return s.found;
}

/* ---- what was measured --------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    const ErrorOf *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

void errors_sort(Errors *e) {
    if (e->of.len)
        qsort(e->of.data, (size_t)e->of.len, sizeof *e->of.data, by_key);
}

const ErrorOf *errors_find(const Errors *e, uint64_t key) {
    ErrorOf want = {.key = key};
    return e->of.len ? bsearch(&want, e->of.data, (size_t)e->of.len,
                               sizeof want, by_key)
                     : NULL;
}

static uint64_t budget_hash_text(uint64_t h, Str s) {
    return s ? hash_bytes(h, s, strlen(s) + 1) : hash_bytes(h, "", 1);
}

/* The number of earlier occurrences of each key. */
typedef struct Seen {
    uint64_t *key; /* hash table; 0: free */
    int *times;
    size_t room; /* a power of 2 */
} Seen;

static uint64_t nth(Seen *s, uint64_t key) {
    if (!key) key = 1;
    size_t i = key & (s->room - 1);
    while (s->key[i] && s->key[i] != key) i = (i + 1) & (s->room - 1);
    s->key[i] = key;
    int n = s->times[i]++;
    return n ? hash_bytes(key, &n, sizeof n) : key;
}

static uint64_t leaf_key(uint64_t h, const Graph *g, const Value *v) {
    DType d = type_get(v->type)->dtype;
    h = hash_bytes(h, &v->kind, sizeof v->kind);
    h = hash_bytes(h, &d, sizeof d);
    if (v->kind == VK_VAR)
        return budget_hash_text(h, g->module->vars.data[v->var].name);
    return v->kind == VK_CONST ? h : budget_hash_text(h, v->name);
}

/* Shapes differ between batches. */
static uint64_t hash_attr(uint64_t h, const Attr *a) {
    if (a->key == AK_shape || a->key == AK_sizes) return h;
    h = hash_bytes(h, &a->key, sizeof a->key);
    if (attr_get(a->key)->kind != ATTR_INTS)
        return hash_bytes(h, &a->u.i, sizeof a->u.i);
    return hash_bytes(h, a->u.ints.v, (size_t)a->u.ints.n * sizeof(int64_t));
}

uint64_t *value_keys(const Graph *g, Str objective, Arena *a) {
    uint64_t *key = NEW_ARRAY(a, uint64_t, g->values.len);
    uint64_t first = budget_hash_text(7, objective);
    Seen seen = {.room = 64};
    while (seen.room < 2 * (size_t)g->values.len) seen.room *= 2;
    seen.key = NEW_ARRAY(a, uint64_t, seen.room);
    seen.times = NEW_ARRAY(a, int, seen.room);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        const Value *x = value_get(g, (ValueId){v});
        if (x->kind != VK_RESULT) key[v] = leaf_key(first, g, x);
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags & NODE_UPDATE) continue;
        uint64_t h = hash_bytes(first, &n->op, sizeof n->op);
        h = hash_bytes(h, &n->fn, sizeof n->fn);
        for (int k = 0; k < n->nin; k++)
            h = hash_bytes(h, &key[n->in[k].i], sizeof *key);
        for (int k = 0; k < n->nattr; k++) h = hash_attr(h, &n->attrs[k]);
        h = nth(&seen, h);
        for (int k = 0; k < n->nout; k++)
            key[n->out[k].i] = hash_bytes(h, &k, sizeof k);
    }
    return key;
}

uint64_t operand_key(uint64_t product, int operand) {
    return hash_bytes(product, &operand, sizeof operand);
}

uint64_t name_key(const Graph *g, Str objective, ValueId v) {
    const Value *x = value_get(g, v);
    uint64_t h = budget_hash_text(budget_hash_text(11, objective), x->name);
    if (x->kind == VK_RESULT)
        h = hash_bytes(h, &node_get(g, x->def)->op, sizeof(OpCode));
    return h;
}
