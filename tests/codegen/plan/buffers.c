/* SPDX-License-Identifier: Apache-2.0 */
/* buffers.c: buffers of a plan, and which ops share a kernel. */
#include "tests/codegen/plan/plan.h"
#include "tests/harness.h"

/* ---- buffers ------------------------------------------------------------- */

static ValueId below_views(const Graph *g, ValueId v) {
    for (;;) {
        const Value *x = value_get(g, v);
        const Node *n = x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
        if (!n || op_info[n->op].kind != KIND_VIEW) return v;
        v = n->in[0];
    }
}

const Node *plan_maker(const Graph *g, ValueId v) {
    const Value *x = value_get(g, v);
    return x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
}

/* By group: true if it holds a forward node. */
static bool *forward_groups(const Whole *w) {
    bool *forward = NEW_ARRAY(w->a, bool, w->g->groups.len + 1);
    for (int i = 0; i < w->g->order.len; i++) {
        const Node *n = node_get(w->g, w->g->order.data[i]);
        if (n->group >= 0) forward[n->group] |= !n->flags;
    }
    return forward;
}

/* Not a gradient: computed from forward values. */
static bool is_forwards(const Graph *g, const Node *n) {
    for (int k = 0; k < n->nin && n->flags; k++) {
        const Node *from = n->in[k].i ? plan_maker(g, n->in[k]) : NULL;
        if (from && from->flags) return false;
    }
    return true;
}

static void note_read(Buffers *b, const Node *n, ValueId r, int now) {
    const Node *def = plan_maker(b->g, r);
    const Type *t = value_type(b->g, r);
    Buffer *x = &b->of[r.i];
    bool number = value_get(b->g, r)->kind == VK_CONST && t->rank == 0;
    if (number || (def && def->group == n->group)) return;
    x->reads += !x->reads || x->reader != n->group;
    x->reader = n->group;
    x->by |= n->flags;
    x->bytes = type_bytes(t);
    if (now > x->dies) x->dies = now;
}

Buffers buffers_of(const Whole *w) {
    const Graph *g = w->g;
    Buffers b = {g, NEW_ARRAY(w->a, Buffer, g->values.len), g->values.len, 0};
    int *time = NEW_ARRAY(w->a, int, g->groups.len + 1);
    const bool *forward = forward_groups(w);
    for (int i = 0; i < g->groups.len; i++) {
        b.end += i == 0 || !g->groups.data[i].beside;
        time[i] = b.end - 1;
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nout && n->group >= 0; k++) {
            const Value *v = value_get(g, n->out[k]);
            Buffer *x = &b.of[n->out[k].i];
            x->born = x->dies = time[n->group];
            x->arena = v->offset >= 0;
            x->made = v->offset >= 0 || v->home >= 0;
            if (x->made) x->bytes = type_bytes(type_get(v->type));
        }
        for (int k = 0; k < n->nin && n->group >= 0; k++) {
            ValueId r = n->in[k].i ? below_views(g, n->in[k]) : NO_VALUE;
            const Node *def = r.i ? plan_maker(g, r) : NULL;
            if (r.i) note_read(&b, n, r, time[n->group]);
            if (def && def->group >= 0 && forward[def->group] &&
                is_forwards(g, def) && n->flags & NODE_BACKWARD)
                b.of[r.i].kept |= !forward[n->group];
        }
    }
    for (int i = 0; graph_root(g, i); i++) {
        Buffer *x = &b.of[below_views(g, *graph_root(g, i)).i];
        x->outlives = true;
        x->dies = b.end;
    }
    return b;
}

double plan_moved(const Buffers *b) {
    double sum = 0;
    for (int v = 1; v < b->n; v++)
        sum += (double)b->of[v].bytes * (b->of[v].reads + b->of[v].made);
    return sum;
}

int64_t plan_kept(const Buffers *b) {
    int64_t sum = 0;
    for (int v = 1; v < b->n; v++)
        if (b->of[v].made && b->of[v].by & NODE_BACKWARD &&
            !plan_maker(b->g, (ValueId){(uint32_t)v})->flags)
            sum += b->of[v].bytes;
    return sum;
}

/* The largest number of live bytes in the arena. together: the operands that
   a launch reads for the last time and its results both count, otherwise the
   larger of the two. */
static int64_t most_alive(const Buffers *b, Arena *a, bool together) {
    int64_t *change = NEW_ARRAY(a, int64_t, b->end + 3), most = 0, alive = 0;
    for (int v = 1; v < b->n; v++) {
        const Buffer *x = &b->of[v];
        int64_t bytes = (x->bytes + ARENA_ALIGN - 1) & -(int64_t)ARENA_ALIGN;
        if (!x->arena) continue;
        change[x->born] += bytes;
        change[x->dies + (together || x->dies == x->born)] -= bytes;
    }
    for (int i = 0; i <= b->end; i++) {
        alive += change[i];
        if (alive > most) most = alive;
    }
    return most;
}

/* ---- memory -------------------------------------------------------------- */

void check_arena(const Whole *w, const Buffers *b) {
    int64_t all = most_alive(b, w->a, true), least = most_alive(b, w->a, false);
    CHECK_MSG(w->g->arena_bytes >= least, "%lld bytes for %lld",
              (long long)w->g->arena_bytes, (long long)least);
    CHECK_MSG((double)w->g->arena_bytes <= 1.04 * (double)all,
              "%lld bytes for %lld", (long long)w->g->arena_bytes,
              (long long)all);
}

/* ---- fusion -------------------------------------------------------------- */

bool has_moves(const Graph *g, int group) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (n->group == group && op_info[n->op].kind == KIND_MOVE) return true;
    }
    return false;
}

void check_chains(const Buffers *b) {
    enum { LARGE = 1 << 18 };
    const Group *groups = b->g->groups.data;
    int missed = 0;
    for (uint32_t v = 1; v < (uint32_t)b->n; v++) {
        const Buffer *x = &b->of[v];
        if (!x->arena || x->outlives || x->reads != 1 || x->bytes < LARGE)
            continue;
        int from = plan_maker(b->g, (ValueId){v})->group;
        missed += groups[from].kind == GROUP_POINT &&
                  groups[x->reader].kind == GROUP_POINT &&
                  !has_moves(b->g, x->reader);
    }
    CHECK_MSG(missed <= 1, "%d chains in two kernels", missed);
}

typedef struct Rows {
    const Graph *g;
    int group;
    int *depth; /* by node: largest number of reductions on a path to its
                   group's end */
    unsigned
        *sweeps; /* by node: the sweeps over the columns that need the node */
} Rows;

static void need(Rows *r, ValueId v, int sweep) {
    const Node *n = v.i ? plan_maker(r->g, v) : NULL;
    if (!n || n->group != r->group || op_info[n->op].kind == KIND_REDUCE)
        return;
    uint32_t id = value_get(r->g, v)->def.i;
    if (r->sweeps[id] >> sweep & 1) return;
    r->sweeps[id] |= 1u << sweep;
    for (int k = 0; k < n->nin; k++) need(r, n->in[k], sweep);
}

void check_rows(const Buffers *b, Arena *a) {
    const Graph *g = b->g;
    Rows r = {.g = g};
    r.depth = NEW_ARRAY(a, int, g->nodes.len);
    r.sweeps = NEW_ARRAY(a, unsigned, g->nodes.len);
    for (int i = 0; i < g->order.len; i++) {
        uint32_t id = g->order.data[i].i;
        const Node *n = node_get(g, g->order.data[i]);
        bool reduce = op_info[n->op].kind == KIND_REDUCE;
        for (int k = 0; k < n->nin && n->group >= 0; k++) {
            const Node *from = n->in[k].i ? plan_maker(g, n->in[k]) : NULL;
            if (!from || from->group != n->group) continue;
            int d = r.depth[value_get(g, n->in[k])->def.i];
            if (d > r.depth[id]) r.depth[id] = d;
        }
        r.group = n->group;
        if (n->group >= 0 && n->nout && b->of[n->out[0].i].made && !reduce)
            need(&r, n->out[0], r.depth[id]);
        for (int k = 0; k < n->nin && reduce; k++)
            need(&r, n->in[k], r.depth[id]);
        r.depth[id] += reduce;
    }
    for (int i = 0; i < g->order.len; i++) {
        uint32_t id = g->order.data[i].i;
        const Node *n = node_get(g, g->order.data[i]);
        bool dear = op_info[n->op].cost >= COST_LONG && !r.depth[id];
        CHECK_MSG(!dear || !(r.sweeps[id] & (r.sweeps[id] - 1)),
                  "%s is computed by several sweeps of group %d",
                  value_get(g, n->out[0])->name, n->group);
    }
}
