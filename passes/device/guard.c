/* SPDX-License-Identifier: Apache-2.0 */
/* guard.c: see guard.h.
   Before:  %h = matmul %x, %w    %y = where %c, %h, %x    (%c: one truth value)
   After:   %h runs only if %c

   A branch of an If over data, or a turn of a Loop, is read only by selections
   and by nodes of its own: whether a value is needed follows from its readers.
   Where %c is false, %h is not computed, its buffer holds anything, and the
   selection drops it. Of `and %c, %d` the later operand is needed only if the
   earlier one is true, so that a turn that ends a loop also spares the
   conditions of the turns behind it.

   Selections of the update choose between old and new numbers, in the kernel
   that computes the new ones. Almost every step is applied: they guard nothing.

   What does not run cannot be fused with what does: a guard must spare more
   than the buffers between the two cost. Guards that do not pay are dropped,
   and the search begins anew. */
#include "passes/device/guard.h"
#include "passes/device/target.h"

#include <math.h>
#include <string.h>

/* A value is read by nothing, by what runs under a guard, or always. */
typedef struct Need {
    bool read;
    Guard guard; /* `when` NO_VALUE: always */
} Need;

/* The nodes of one guard. */
typedef struct Region {
    Guard guard;
    double spared, costs; /* bytes of memory, or work that takes as long */
} Region;

typedef struct Guards {
    const Graph *g;
    Arena *a;
    Need *need;    /* per value */
    Guard *of;     /* per node */
    int *position; /* per node */
    VEC(Region) regions;
    int *region;  /* by guard_number: its number + 1 */
    bool *banned; /* the same */
} Guards;

static uint32_t guard_number(Guard x) { return 2 * x.when.i + x.unless; }

/* ---- conditions ---------------------------------------------------------- */

/* Where v is true: views and `not` are looked through. */
static Guard where_true(const Graph *g, ValueId v) {
    Guard x = {.when = v};
    for (const Node *n; (n = value_maker(g, x.when)) != NULL;) {
        if (n->op != OP_NOT && node_kind(n) != KIND_VIEW) break;
        x.unless ^= n->op == OP_NOT;
        x.when = n->in[0];
    }
    return x;
}

/* True if b holds wherever a does; `steps` bounds the search. */
static bool guard_implies(const Graph *g, Guard a, Guard b, int *steps) {
    const Node *n = value_maker(g, a.when);
    if (guard_same(a, b)) return true;
    if (!n || n->op != (a.unless ? OP_OR : OP_AND)) return false;
    for (int k = 0; k < 2 && --*steps > 0; k++) {
        Guard part = where_true(g, n->in[k]);
        part.unless ^= a.unless;
        if (guard_implies(g, part, b, steps)) return true;
    }
    return false;
}

static bool holds_with(const Graph *g, Guard a, Guard b) {
    int steps = 64;
    return guard_implies(g, a, b, &steps);
}

/* ---- what is needed ------------------------------------------------------ */

static void add_need(Guards *s, ValueId v, Guard guard) {
    Need *x = &s->need[v.i];
    if (!is_value(v)) return;
    if (!x->read || holds_with(s->g, x->guard, guard))
        x->guard = guard;
    else if (!holds_with(s->g, guard, x->guard))
        x->guard = (Guard){0};
    x->read = true;
}

static bool may_guard(const Guards *s, Guard x) {
    const Type *t = value_type(s->g, x.when);
    return t->dtype == DT_BOOL && type_count(t) == 1 &&
           !s->banned[guard_number(x)] &&
           value_get(s->g, x.when)->kind != VK_CONST;
}

static int position_of(const Guards *s, ValueId v) {
    const Value *x = value_get(s->g, v);
    return x->kind == VK_RESULT ? s->position[x->def.i] : -1;
}

/* Operand v of a node that runs where `outer` says is needed only where
   `inner` says, too. It runs where one of the two says, since a guard is one
   condition: the stronger one, or the one that is computed first. A condition
   is always computed, so it must not be made under the other guard. */
static void need_where(Guards *s, ValueId v, Guard inner, Guard outer) {
    bool fits = may_guard(s, inner) &&
                (!is_value(outer.when) || holds_with(s->g, inner, outer) ||
                 position_of(s, inner.when) < position_of(s, outer.when));
    if (fits) add_need(s, inner.when, (Guard){0});
    add_need(s, v, fits ? inner : outer);
}

static void need_operands(Guards *s, const Node *n, Guard guard) {
    const Graph *g = s->g;
    bool update = n->flags & NODE_UPDATE;
    if (n->op == OP_WHERE && !update && value_count(g, n->in[0]) == 1) {
        Guard taken = where_true(g, n->in[0]), other = taken;
        other.unless ^= true;
        need_where(s, n->in[1], taken, guard);
        need_where(s, n->in[2], other, guard);
        add_need(s, n->in[0], guard);
        return;
    }
    if (n->op == OP_AND && value_count(g, n->out[0]) == 1) {
        int late = position_of(s, n->in[1]) > position_of(s, n->in[0]);
        need_where(s, n->in[late], where_true(g, n->in[!late]), guard);
        add_need(s, n->in[!late], guard);
        return;
    }
    for (int k = 0; k < n->nin; k++) add_need(s, n->in[k], guard);
}

static void find_needs(Guards *s) {
    const Graph *g = s->g;
    memset(s->need, 0, (size_t)g->values.len * sizeof *s->need);
    for (int i = 0; graph_root(g, i); i++)
        add_need(s, *graph_root(g, i), (Guard){0});
    for (int i = g->order.len - 1; i >= 0; i--) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        Need all = {0};
        for (int k = 0; k < n->nout; k++) {
            const Need *x = &s->need[n->out[k].i];
            if (!x->read) continue;
            bool same = !all.read || guard_same(all.guard, x->guard);
            all.guard = same ? x->guard : (Guard){0};
            all.read = true;
        }
        s->of[id.i] = all.guard;
        need_operands(s, n, all.guard);
    }
}

/* ---- what pays ----------------------------------------------------------- */

static Region *guarded_region(Guards *s, Guard guard) {
    int *at = &s->region[guard_number(guard)];
    if (!*at) {
        vec_push(s->a, &s->regions, (Region){.guard = guard});
        *at = s->regions.len;
    }
    return &s->regions.data[*at - 1];
}

static double bytes_of(const Graph *g, ValueId v) {
    return is_value(v) ? (double)type_bytes(value_type(g, v)) : 0;
}

/* The time of a node in bytes of memory. The product of the element counts of
   a product's three matrices is the square of its multiply-adds. */
static double work_in_bytes(const Graph *g, const Node *n) {
    OpKind kind = node_kind(n);
    if (kind == KIND_ANCHOR)
        return 2 *
               sqrt((double)value_count(g, n->in[0]) *
                    (double)value_count(g, n->in[1]) *
                    (double)value_count(g, n->out[0])) /
               target_of(g)->work_of_a_byte;
    if (kind != KIND_LIB && op_info[n->op].cost < COST_LONG) return 0;
    return bytes_of(g, n->out[0]);
}

/* Work of the regions, and values that leave them: these are stored and read
   again. */
static void weigh_regions(Guards *s) {
    const Graph *g = s->g;
    s->regions.len = 0;
    memset(s->region, 0, 2 * (size_t)g->values.len * sizeof *s->region);
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        const Node *n = node_get(g, id);
        Guard own = s->of[id.i];
        if (is_value(own.when))
            guarded_region(s, own)->spared += work_in_bytes(g, n);
        for (int k = 0; k < n->nin; k++) {
            NodeId from = g->values.data[n->in[k].i].def;
            if (!is_value(n->in[k]) || !from.i ||
                guard_same(s->of[from.i], own))
                continue;
            Guard made = s->of[from.i];
            if (is_value(made.when))
                guarded_region(s, made)->costs += 2 * bytes_of(g, n->in[k]);
        }
    }
}

/* Half of a region's work is spared on the average; each of its ends is a step
   more. Bans guards of regions that do not pay, and those whose condition
   comes behind what they guard. */
static bool ban(Guards *s) {
    const Graph *g = s->g;
    double step = 2 * 4 * (double)target_of(g)->small_tensor;
    bool any = false;
    for (int i = 0; i < s->regions.len; i++) {
        const Region *r = &s->regions.data[i];
        if (r->spared / 2 > r->costs + step) continue;
        any = s->banned[guard_number(r->guard)] = true;
    }
    for (int i = 0; i < g->order.len; i++) {
        Guard own = s->of[g->order.data[i].i];
        if (!is_value(own.when) || position_of(s, own.when) < i) continue;
        any = s->banned[guard_number(own)] = true;
    }
    return any;
}

const Guard *guards_of(const Graph *g, Arena *a) {
    Arena *own = arena_new();
    Guards s = {.g = g, .a = own, .of = NEW_ARRAY(own, Guard, g->nodes.len)};
    s.need = NEW_ARRAY(own, Need, g->values.len);
    s.banned = NEW_ARRAY(own, bool, 2 * g->values.len);
    s.region = NEW_ARRAY(own, int, 2 * g->values.len);
    s.position = graph_positions(g, own);
    do {
        find_needs(&s);
        weigh_regions(&s);
    } while (ban(&s));
    const Guard *of =
        s.regions.len ? arena_dup(a, s.of, (size_t)g->nodes.len * sizeof *s.of)
                      : NULL;
    arena_free(own);
    return of;
}
