/* SPDX-License-Identifier: Apache-2.0 */
/* placement_budget.c: the storage dtypes with the fewest bytes whose predicted
   error keeps a limit.
   Before:  %x.bf16 = cast %x     %h = matmul %x.bf16, %w.bf16 : f32
   After:   %h = matmul %x, %w : f32       if rounding %x or %w costs too much

   The values are the same as in placement.c.  A product is chosen as well: it
   is low if it reads 16 bits.  The measured error of each rounding (sites.h,
   sensitivity.h) replaces the accuracy price; budget.h finds the price of
   error. A value without a measurement is f32, and so is such an operand of a
   product. Programs without gradients take the price of the program that
   trains.

   requires     as pass place; Options.errors
   establishes  as pass place; products read 16 bits or f32                  */
#include <math.h>
#include <string.h>

#include "passes/rewrite.h"
#include "passes/common/sites.h"

static const char budget[] = "the error budget";

/* Variables of the choice: values, products, rounded copies of values, and
   values stored as f32 for products alone. */
typedef struct Spend {
    Graph *g;
    Sites s;
    Errors *e;
    Arena *a;
    Choice c;
    bool trains;
    int *product_reads; /* per value: products that read copies of it */
} Spend;

static int product_var(const Spend *x, NodeId n) {
    return x->g->values.len + (int)n.i;
}

static int copy_var(const Spend *x, ValueId v) {
    return x->g->values.len + x->g->nodes.len + (int)v.i;
}

static int wide_var(const Spend *x, ValueId v) {
    return 2 * x->g->values.len + x->g->nodes.len + (int)v.i;
}

/* ---- errors -------------------------------------------------------------- */

/* false: rounding it was not measured, or makes the loss infinite. */
static bool error_of(const Spend *x, const Site *s, Term *t) {
    const ErrorOf *e = errors_find(x->e, s->key);
    if (!e && !x->trains) e = errors_find(x->e, s->name_key);
    if (!e) return false;
    for (int k = 0; k < NUM_ERRORS; k++) {
        if (!isfinite(e->square[k])) return false;
        t->error[k] = e->square[k];
    }
    /* Errors of samples are independent, and the loss is their mean.  Errors
       of gradients are independent, too, but gradients also become smaller
       with the batch. */
    if (e->count > 0 && site_count(x->g, s) > e->count)
        t->error[ERROR_LOSS] *= (double)e->count / (double)site_count(x->g, s);
    return true;
}

static void put_bytes_budget(Spend *x, Term t) { choice_add(&x->c, x->a, t); }

/* ---- values -------------------------------------------------------------- */

static void force(Spend *x, int var, bool low) {
    put_bytes_budget(
        x, (Term){.kind = low ? TERM_IS_LOW : TERM_IS_HIGH, .x = var});
}

static void implies(Spend *x, int var, int other) {
    put_bytes_budget(x, (Term){.kind = TERM_IMPLIES, .x = var, .y = other});
}

static void add_traffic(Spend *x, ValueId v) {
    static const Traffic none;
    const Place *p = &x->s.p;
    const Traffic *t = &p->traffic[v.i], *copy = &none;
    int64_t half = 2 * value_count(x->g, v);
    if (p->f.cast[v.i].i) copy = &p->traffic[p->f.cast[v.i].i];
    if (t->stored || copy->stored)
        put_bytes_budget(x,
                         (Term){.kind = TERM_LOW,
                                .x = (int)v.i,
                                .bytes = half * (1 + t->reads + copy->reads),
                                .saved = t->saved || copy->saved ? half : 0});
    if (t->stored)
        put_bytes_budget(x, (Term){.kind = TERM_HIGH,
                                   .x = (int)v.i,
                                   .bytes = 2 * half * (1 + t->reads),
                                   .saved = t->saved ? 2 * half : 0});
    if (copy->stored) {
        int others = copy->reads - x->product_reads[v.i];
        put_bytes_budget(x,
                         (Term){.kind = TERM_LOW_HIGH,
                                .x = copy_var(x, v),
                                .y = (int)v.i,
                                .bytes = half * (1 + (others > 0 ? others : 0)),
                                .saved = copy->saved ? half : 0});
    }
}

static void add_rounding(Spend *x, const Site *s) {
    const Node *n = node_get(x->g, s->node);
    ValueId v = n->out[s->at];
    Term t = {.kind = TERM_LOW, .x = (int)v.i};
    if (!error_of(x, s, &t)) {
        force(x, (int)v.i, false);
        return;
    }
    if (!is_selection(n)) {
        put_bytes_budget(x, t);
        return;
    }
    for (int k = 0; k < n->nin; k++) {
        if (!has_float(x->g, n->in[k])) continue;
        t.kind = TERM_LOW_HIGH;
        t.y = (int)n->in[k].i;
        put_bytes_budget(x, t);
    }
}

static void add_values(Spend *x) {
    Graph *g = x->g;
    bool *known = NEW_ARRAY(x->a, bool, g->values.len);
    for (int i = 0; i < x->s.of.len; i++) {
        const Site *s = &x->s.of.data[i];
        if (!s->operand) known[node_get(g, s->node)->out[s->at].i] = true;
    }
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        ValueId id = {v};
        DType d = value_dtype(g, id);
        if (is_updates(g, id)) continue;
        if (x->s.as[v] == NUM_DTYPES)
            force(x, (int)v, d != DT_F32 && dtype_is_low(d));
        if (d == DT_F32 || x->s.as[v] != NUM_DTYPES) add_traffic(x, id);
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        CutCost high, low;
        if (n->flags & NODE_UPDATE) continue;
        ValueId v = n->out[0];
        bool tied = is_tied(&x->s.p, n) ||
                    (shares_type(n) && x->s.as[v.i] != NUM_DTYPES &&
                     dtype_of(g, v) == FINE_TYPE);
        if (tied) {
            implies(x, (int)v.i, (int)n->in[0].i);
            implies(x, (int)n->in[0].i, (int)v.i);
        }
        for (int k = 0; k < n->nout; k++)
            if (x->s.as[n->out[k].i] != NUM_DTYPES && !known[n->out[k].i] &&
                !tied)
                force(x, (int)n->out[k].i, false);
        for (int k = 0; k < n->nin; k++) {
            if (!mask_cost(&x->s.p, n, n->in[k], &high, &low)) continue;
            put_bytes_budget(x, (Term){.kind = TERM_HIGH,
                                       .x = (int)n->in[k].i,
                                       .bytes = high.of[STEP_BYTES],
                                       .saved = high.of[SAVED_BYTES]});
            put_bytes_budget(x, (Term){.kind = TERM_LOW,
                                       .x = (int)n->in[k].i,
                                       .bytes = low.of[STEP_BYTES]});
        }
    }
}

/* ---- products ------------------------------------------------------------ */

/* Operand `s` of a product: whole in f32, or in 16 bits from a copy. */
static void add_operand(Spend *x, const Site *s) {
    Graph *g = x->g;
    const Node *n = node_get(g, s->node);
    ValueId operand = n->in[s->at], v = rounded_from(g, operand);
    int var = product_var(x, s->node);
    int64_t half = 2 * value_count(g, operand);
    bool result = value_get(g, v)->kind == VK_RESULT;
    Term t = {.kind = TERM_LOW, .x = var, .bytes = half};
    if (!error_of(x, s, &t)) force(x, var, false);
    if (result) {
        ValueId copy = x->s.p.f.cast[v.i];
        t.kind = TERM_LOW_HIGH;
        t.y = (int)v.i;
        if (!copy.i || !x->s.p.traffic[copy.i].stored) t.bytes = 0;
        implies(x, (int)v.i, var);
        implies(x, var, copy_var(x, v));
        if (!x->s.p.traffic[v.i].stored) implies(x, wide_var(x, v), var);
    }
    put_bytes_budget(x, t);
    put_bytes_budget(x, (Term){.kind = TERM_HIGH, .x = var, .bytes = 2 * half});
}

/* Products of one model node, such as an attention, and of its gradient have
   one dtype if there are several: a routine computes them together. */
static void join_products(Spend *x) {
    Graph *g = x->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags || !n->loc.named || !chooses_product(g, n)) continue;
        for (int k = i + 1; k < g->order.len; k++) {
            const Node *m = node_at(g, k);
            if (m->flags || m->loc.named != n->loc.named ||
                !chooses_product(g, m))
                continue;
            int first = product_var(x, g->order.data[i]);
            for (int j = 0; j < g->order.len; j++) {
                const Node *o = node_at(g, j);
                int other = product_var(x, g->order.data[j]);
                if (o->loc.named != n->loc.named || other == first ||
                    !chooses_product(g, o))
                    continue;
                implies(x, first, other);
                implies(x, other, first);
            }
            break;
        }
    }
}

static void count_reads(Spend *x) {
    Graph *g = x->g;
    x->product_reads = NEW_ARRAY(x->a, int, g->values.len);
    for (int i = 0; i < x->s.of.len; i++) {
        const Site *s = &x->s.of.data[i];
        if (!s->operand) continue;
        ValueId v = rounded_from(g, node_get(g, s->node)->in[s->at]);
        x->product_reads[v.i]++;
    }
}

/* Finds the parameters that products read, which makes values; afterwards no
   values are made. */
static void build_choice(Spend *x) {
    Graph *g = x->g;
    count_reads(x);
    x->c.variables = 3 * g->values.len + g->nodes.len;
    add_values(x);
    for (int i = 0; i < x->s.of.len; i++) {
        const Site *s = &x->s.of.data[i];
        if (s->operand)
            add_operand(x, s);
        else
            add_rounding(x, s);
    }
    join_products(x);
}

/* ---- the result ---------------------------------------------------------- */

typedef struct Widen {
    Graph *g;
    Builder b;
    ValueId *wide; /* per value: its f32 form; 0: none yet */
    int limit;
} Widen;

static ValueId widened(Widen *w, ValueId v) {
    Graph *g = w->g;
    if (!v.i || !dtype_is_low(value_dtype(g, v))) return v;
    if ((int)v.i < w->limit && w->wide[v.i].i) return w->wide[v.i];
    const Value *x = value_get(g, v);
    ValueId from = rounded_from(g, v), to;
    const Node *n = x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
    if (!from.i) { /* as exact as it is */
        to = b_cast(&w->b, v, DT_F32);
    } else if (!n || n->op == OP_CAST) {
        to = from;
    } else {
        Node move = *n; /* building may move the pool */
        ValueId in = widened(w, move.in[0]);
        to =
            build(&w->b, move.op, &in, 1, move.attrs, move.nattr, DT_F32, NULL);
    }
    if ((int)v.i < w->limit) w->wide[v.i] = to;
    return to;
}

static void widen_products(Spend *x, const bool *low, Errors *note) {
    Graph *g = x->g;
    int n, first = g->values.len; /* see product_var */
    NodeId *old = order_take(g, x->a, &n);
    Widen w = {.g = g,
               .b = {.g = g},
               .wide = NEW_ARRAY(x->a, ValueId, g->values.len),
               .limit = g->values.len};
    for (int i = 0; i < n; i++) {
        Node node = *node_get(g, old[i]);
        bool chosen = chooses_product(g, &node);
        if (chosen && note) note->products++;
        if (chosen && !low[first + (int)old[i].i]) {
            if (note) note->wide++;
            w.b.flags = node.flags & NODE_BACKWARD;
            w.b.loc = node.loc;
            for (int k = 0; k < node.nin; k++) {
                ValueId in = widened(&w, node.in[k]);
                node_get(g, old[i])->in[k] = in;
            }
        }
        vec_push(g->arena, &g->order, old[i]);
    }
}

/* Streams meant for fp16 that are high stay f32: a factor of 1/64 is exact. */
static void widen_streams(Spend *x, const bool *low) {
    Graph *g = x->g;
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        Value *val = value_get(g, (ValueId){v});
        if (x->s.as[v] == NUM_DTYPES || low[v] ||
            type_get(val->type)->dtype != FINE_TYPE)
            continue;
        val->type = type_with_dtype(val->type, DT_F32);
        x->s.p.high[v] = budget;
    }
}

/* ---- the errors of single values ------------------------------------------
 */

static void add_to(Graph *g, ValueId v, const double *square) {
    float *adds = value_get(g, v)->adds;
    for (int k = 0; k < NUM_ERRORS; k++)
        adds[k] = (float)sqrt((double)(adds[k] * adds[k]) + square[k]);
}

/* Records errors at values that are rounded, and at copies that products
   read. */
static void note_errors(const Spend *x, const bool *low) {
    Graph *g = x->g;
    for (int i = 0; i < x->s.of.len; i++) {
        const Site *s = &x->s.of.data[i];
        const Node *n = node_get(g, s->node);
        ValueId v = s->operand ? n->in[s->at] : n->out[s->at];
        Term t = {.kind = TERM_LOW};
        bool rounds = low[v.i];
        if (s->operand)
            rounds = low[product_var(x, s->node)] && !low[rounded_from(g, v).i];
        if (rounds && error_of(x, s, &t)) add_to(g, v, t.error);
    }
}

/* ---- the choice ---------------------------------------------------------- */

/* The squared errors of running the roundings of an assignment. */
static Status simulate(const Spend *x, const bool *low, double *square) {
    Graph *g = x->g;
    uint64_t *on = NEW_ARRAY(x->a, uint64_t, x->s.of.len + 1);
    int n = 0;
    for (int i = 0; i < x->s.of.len; i++) {
        const Site *s = &x->s.of.data[i];
        const Node *node = node_get(g, s->node);
        bool rounds = low[node->out[s->at].i];
        if (s->operand)
            rounds = low[product_var(x, s->node)] &&
                     !low[rounded_from(g, node->in[s->at]).i];
        if (rounds) on[n++] = s->key;
    }
    TRY(x->e->simulate(x->e->ctx, g->objective, on, n, square));
    for (int k = 0; k < NUM_ERRORS; k++) square[k] *= square[k];
    return OK;
}

/* Rounding moves values across the kinks of relu and of maxima, where the
   gradient jumps; the first-order prediction misses this. The measured error
   beyond the first order is divided among the roundings in proportion to
   what they add to the loss. */
static void add_kinks(Spend *x, double times) {
    for (int i = 0; i < x->c.terms.len; i++) {
        double *error = x->c.terms.data[i].error;
        error[ERROR_GRADIENT] += times * error[ERROR_LOSS];
    }
}

static Status find_kinks(Spend *x) {
    static const double none[NUM_ERRORS];
    double square[NUM_ERRORS];
    Chosen all = choice_at(&x->c, none, x->a);
    TRY(simulate(x, all.low, square));
    double beyond = square[ERROR_GRADIENT] - all.error[ERROR_GRADIENT];
    if (all.error[ERROR_LOSS] > 0 && beyond > 0 && isfinite(beyond))
        x->e->kinks = beyond / all.error[ERROR_LOSS];
    add_kinks(x, x->e->kinks);
    return OK;
}

/* True if the mean of n squares of normal random numbers, each of mean
   `square`, is too far from it for chance.  Chernoff's bound: it is below, or
   above, x times its own mean with a probability of at most
   (x exp(1 - x))^(n/2). */
static bool is_no_chance(double mean, double square, int n) {
    const double far = 9, chance = 1.0 / 16;
    double x = mean / square;
    if (!(x > far || x * far < 1)) return false;
    return !(pow(x * exp(1 - x), n / 2.0) >= chance);
}

/* Each repetition gives one error of the loss, which estimates its root mean
   square badly: the prediction is used unless it is far off. */
static void predict(const Spend *x, const Chosen *best, const double *ran,
                    double *square) {
    double loss = best->error[ERROR_LOSS], there = ran[ERROR_LOSS];
    bool wrong =
        loss > 0 ? is_no_chance(there, loss, x->e->repetitions) : there > 0;
    square[ERROR_LOSS] = wrong && !x->e->part ? there : loss;
    square[ERROR_GRADIENT] = ran[ERROR_GRADIENT];
}

/* One try of the search. */
typedef struct Try {
    Chosen now;
    double ran[NUM_ERRORS], square[NUM_ERRORS]; /* run, and predicted */
} Try;

/* How the limit of the first-order error of one kind is found for which the
   error predicted is within `most` and near it. */
typedef struct Aim {
    double most;
    double keeps, fails;  /* limits of tries; 0, infinity: none yet */
    double order, square; /* of the last try that failed; 0: none yet: its
                             first-order error, and what was predicted */
} Aim;

/* An assignment that ran before does not run again. */
static Status run_try(const Spend *x, const Try *before, int n, Try *t) {
    size_t size = (size_t)x->c.variables + 1;
    choice_within(&x->c, x->a, &t->now);
    const Try *same = NULL;
    for (int i = 0; i < n && !same; i++)
        if (!memcmp(before[i].now.low, t->now.low, size)) same = &before[i];
    if (same)
        memcpy(t->ran, same->ran, sizeof t->ran);
    else
        TRY(simulate(x, t->now.low, t->ran));
    predict(x, &t->now, t->ran, t->square);
    return OK;
}

/* A lower limit. Kinks let the error grow slower than its first-order part: by
   the power that two tries show. */
static double lower_limit(Aim *m, double limit, double order, double square) {
    const double aim = 0.7, least = 0.01, flattest = 0.3;
    double power = 1, from = order > 0 ? fmin(limit, order) : limit;
    m->fails = from;
    if (m->order > order && order > 0 && m->square > square)
        power = fmax(fmin(log(m->square / square) / log(m->order / order), 1),
                     flattest);
    m->order = order;
    m->square = square;
    if (m->keeps > 0) return sqrt(m->keeps * m->fails);
    return from * fmax(least, pow(aim * m->most / square, 1 / power));
}

/* Sets the limit for the next try; true if this one's is close enough. */
static bool next_limit(Aim *m, ErrorKind k, const Try *t, bool kept,
                       double *limit) {
    const double near = 0.5; /* fraction of `most`, both squared */
    double square = t->square[k];
    if (!(square <= m->most)) {
        *limit = lower_limit(m, *limit, t->now.error[k], square);
        return m->keeps > 0.9 * m->fails;
    }
    bool other = square > 0 || isfinite(m->fails);
    if (!kept || k != ERROR_GRADIENT || square >= near * m->most || !other)
        return true;
    m->keeps = *limit;
    *limit = isfinite(m->fails) ? sqrt(m->keeps * m->fails)
                                : *limit * m->most / square;
    return m->keeps > 0.9 * m->fails;
}

/* Runs the assignment that the error prediction chose. If its error exceeds
   the limits, or is far below them, the prediction's limits change. */
static Status bytes_budget_search(Spend *x, const Options *o, Chosen *best) {
    enum { TRIES = 8 };
    Aim aim[NUM_ERRORS];
    Try tries[TRIES];
    double none[NUM_ERRORS], square[NUM_ERRORS];
    bool found = false, close = false;
    Errors *e = x->e;
    e->kinks = 0;
    if (o->max_error[ERROR_GRADIENT] > 0) TRY(find_kinks(x));
    for (int k = 0; k < NUM_ERRORS; k++) {
        double most = o->max_error[k] / error_margin[k];
        aim[k] = (Aim){.most = o->max_error[k] > 0 ? most * most : INFINITY,
                       .fails = INFINITY};
        x->c.limit[k] = aim[k].most;
    }
    for (int i = 0; i < TRIES && !close; i++) {
        Try *t = &tries[i];
        bool kept = true;
        TRY(run_try(x, tries, i, t));
        for (int k = 0; k < NUM_ERRORS; k++)
            kept &= t->square[k] <= aim[k].most;
        if (kept && (!found || t->now.bytes < best->bytes)) {
            *best = t->now;
            for (int k = 0; k < NUM_ERRORS; k++)
                e->predicted[k] = sqrt(t->square[k]);
            found = true;
        }
        close = true;
        for (int k = 0; k < NUM_ERRORS; k++)
            if (isfinite(aim[k].most))
                close &= next_limit(&aim[k], k, t, kept, &x->c.limit[k]);
    }
    if (found) return OK;
    for (int k = 0; k < NUM_ERRORS; k++)
        none[k] = isfinite(aim[k].most) ? 1e300 : 0;
    *best = choice_at(&x->c, none, x->a);
    TRY(simulate(x, best->low, square));
    for (int k = 0; k < NUM_ERRORS; k++) e->predicted[k] = sqrt(square[k]);
    return OK;
}

static Status bytes_budget_choose(Spend *x, const Options *o, bool first,
                                  Chosen *best) {
    Errors *e = x->e;
    if (x->g->program != PROGRAM_TRAIN) {
        add_kinks(x, e->kinks);
        *best = choice_at(&x->c, e->price, x->a);
        return OK;
    }
    double before[NUM_ERRORS];
    memcpy(before, e->predicted, sizeof before);
    TRY(bytes_budget_search(x, o, best));
    memcpy(e->price, best->price, sizeof e->price);
    if (!first) memcpy(e->predicted, before, sizeof before);
    if (!first) return OK;
    e->placed = true;
    e->bytes = best->bytes;
    e->bound = best->bound;
    return OK;
}

static void drop_unneeded(Graph *g, Arena *a) {
    VEC(ValueId) roots = {0};
    for (int i = 0; graph_root(g, i); i++)
        vec_push(a, &roots, *graph_root(g, i));
    graph_drop_unneeded(g, 0, 0, roots.data, roots.len);
}

Status place_within(Graph *g, PassCtx *cx) {
    Errors *e = cx->opt->errors;
    Arena *a = cx->scratch;
    if (!e)
        return fail(cx->diag, (Loc){.file = g->module->file},
                    "an error budget needs measurements, which only `ampc "
                    "MODEL -o OUT.so` takes");
    Spend x = {.g = g,
               .e = e,
               .a = a,
               .trains =
                   g->program == PROGRAM_TRAIN || g->program == PROGRAM_MICRO};
    x.s = sites_find(g, cx);
    build_choice(&x);
    bool first = g->program == PROGRAM_TRAIN && !e->placed;
    Chosen best;
    TRY(bytes_budget_choose(&x, cx->opt, first, &best));
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        if (x.s.p.free[v] && !best.low[v]) x.s.p.high[v] = budget;
    note_errors(&x, best.low);
    widen_streams(&x, best.low);
    widen_products(&x, best.low, first ? e : NULL);
    place_apply(&x.s.p, g, best.low, a);
    drop_unneeded(g, a);
    return OK;
}
