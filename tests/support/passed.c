/* SPDX-License-Identifier: Apache-2.0 */
/* passed.c: see passed.h */
#include "tests/support/passed.h"

#include <math.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "ir/text/text.h"
#include "tests/harness.h"

const char *const no_flags[] = {NULL};
const char *const for_gpus[] = {"--target", "cuda:sm_90", NULL};

/* ---- passes -------------------------------------------------------------- */

Module *parsed(Arena *a, const char *text) {
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "test.amp", text, strlen(text), &m) != OK)
        FAIL("%s\n%s", text, d.text.data);
    return m;
}

Options options_of(Arena *a, const char *const *flags) {
    Options o;
    Diag d = {0};
    bool used;
    options_init(&o, a);
    for (; *flags; flags += 1 + used)
        if (options_set(&o, &d, flags[0], flags[1], &used) != OK)
            FAIL("%s", d.text.data);
    return o;
}

void passed(Arena *a, Module *m, const char *passes, const char *const *flags) {
    Diag d = {0};
    Options o = options_of(a, flags);
    if (run_passes(m, &d, &o, passes, false) != OK) FAIL("%s", d.text.data);
    sb_free(&d.text);
}

void staged(Arena *a, Module *m, Stage stage, const char *const *flags) {
    Diag d = {0};
    Options o = options_of(a, flags);
    if (run_pipeline(m, &d, &o, stage, false) != OK) FAIL("%s", d.text.data);
    sb_free(&d.text);
}

void lowered(Arena *a, Module *m, const char *const *flags) {
    passed(a, m, "inline,canon,reduce,cse,dce,fuse,schedule,memplan", flags);
}

int group_of(const Graph *g, const char *name) {
    return node_get(g, value_get(g, graph_find_value(g, name))->def)->group;
}

/* ---- what a graph computes ----------------------------------------------- */

static void bind_inputs(const Graph *g, Evaluator *e, Arena *a) {
    for (int k = 0; k < g->inputs.len; k++) {
        ValueId v = g->inputs.data[k];
        EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
        int64_t n = type_count(value_type(g, v));
        for (int64_t i = 0; i < n; i++)
            if (t->f)
                t->f[i] = (double)((7 * i + 3 * k) % 11 - 5) / 8;
            else
                t->i[i] = (i * 5 + k) % 3;
        eval_bind(e, v, t);
    }
}

Results results(Arena *a, const Graph *g, EvalMode mode) {
    Results r = {0};
    Diag d = {0};
    Evaluator *e = eval_new(g, a, mode);
    bind_inputs(g, e, a);
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    for (int i = 0; i < g->outputs.len; i++)
        vec_push(a, &r, eval_get(e, g->outputs.data[i].value));
    for (int i = 0; i < g->writes.len; i++)
        vec_push(a, &r, eval_get(e, g->writes.data[i].value));
    return r;
}

void expect_equal(const Results *x, const Results *y, double tol,
                  const char *what) {
    if (!CHECK_EQ_INT(x->len, y->len)) return;
    for (int i = 0; i < x->len; i++) {
        int64_t n = type_count(type_get(x->data[i]->type));
        if (!CHECK_MSG(x->data[i]->type.i == y->data[i]->type.i,
                       "%s: result %d has another type", what, i))
            return;
        for (int64_t k = 0; k < n && x->data[i]->f; k++) {
            double p = x->data[i]->f[k], q = y->data[i]->f[k];
            bool same = p == q || (isnan(p) && isnan(q)) ||
                        fabs(p - q) <= tol * fmax(1, fabs(p));
            if (!CHECK_MSG(same, "%s: result %d element %lld: %.17g, %.17g",
                           what, i, (long long)k, p, q))
                return;
        }
    }
}

/* ---- a model of memory --------------------------------------------------- */

typedef struct Memory {
    const Graph *g;
    ValueId *root;   /* root below views, by ValueId.i */
    uint32_t *owner; /* the root stored in each 64 bytes of the arena */
    uint32_t *var;   /* by variable: 0 = old value, else the root stored in
                        it */
    const char *what;
} Memory;

static void find_roots(Memory *m, Arena *a) {
    const Graph *g = m->g;
    m->root = NEW_ARRAY(a, ValueId, g->values.len);
    for (int v = 0; v < g->values.len; v++) m->root[v].i = (uint32_t)v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (op_info[n->op].kind == KIND_VIEW)
            m->root[n->out[0].i] = m->root[n->in[0].i];
    }
}

/* True if v's bytes are still v's. */
static bool holds(const Memory *m, ValueId v) {
    ValueId r = m->root[v.i];
    const Value *x = value_get(m->g, r);
    if (x->kind == VK_VAR) return m->var[x->var] == 0;
    if (x->kind != VK_RESULT) return true;
    if (x->home >= 0) return m->var[x->home] == r.i;
    if (x->offset < 0) return false;
    int64_t end = x->offset + type_bytes(type_get(x->type));
    for (int64_t at = x->offset; at < end; at += 64)
        if (m->owner[at / 64] != r.i) return false;
    return true;
}

static void take(Memory *m, ValueId v) {
    const Value *x = value_get(m->g, v);
    if (x->home >= 0) m->var[x->home] = v.i;
    if (x->offset < 0) return;
    int64_t end = x->offset + type_bytes(type_get(x->type));
    CHECK_MSG(x->offset % 64 == 0 && end <= m->g->arena_bytes, "%s: %s at %lld",
              m->what, x->name, (long long)x->offset);
    for (int64_t at = x->offset; at < end; at += 64) m->owner[at / 64] = v.i;
}

static bool made_in(const Memory *m, ValueId v, int group) {
    const Value *x = value_get(m->g, v);
    return x->kind == VK_RESULT && node_get(m->g, x->def)->group == group;
}

static bool is_immediate(const Memory *m, ValueId v) {
    return value_get(m->g, v)->kind == VK_CONST &&
           value_type(m->g, v)->rank == 0;
}

static bool check_reads(const Memory *m, int group) {
    for (int i = 0; i < m->g->order.len; i++) {
        const Node *n = node_get(m->g, m->g->order.data[i]);
        if (n->group != group) continue;
        for (int k = 0; k < n->nin; k++) {
            if (!is_value(n->in[k]) || made_in(m, n->in[k], group) ||
                is_immediate(m, n->in[k]))
                continue;
            if (!CHECK_MSG(holds(m, n->in[k]), "%s: group %d reads %s, gone",
                           m->what, group, value_get(m->g, n->in[k])->name))
                return false;
        }
    }
    return true;
}

static bool run_group(Memory *m, int group) {
    const Graph *g = m->g;
    if (!check_reads(m, group)) return false;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        for (int k = 0; k < n->nout && n->group == group; k++)
            take(m, n->out[k]);
    }
    return true;
}

/* Groups of one launch run in any order: forwards or backwards; then groups
   that run after others. */
static void run_in_order(Arena *a, const Graph *g, const char *what,
                         bool backwards) {
    Memory m = {.g = g, .what = what};
    find_roots(&m, a);
    m.owner = NEW_ARRAY(a, uint32_t, g->arena_bytes / 64 + 1);
    m.var = NEW_ARRAY(a, uint32_t, g->module->vars.len + 1);
    for (int from = 0, to; from < g->groups.len; from = to) {
        bool after = g->groups.data[from].after;
        to = from + 1;
        while (to < g->groups.len && g->groups.data[to].beside &&
               g->groups.data[to].after == after)
            to++;
        for (int i = from; i < to; i++)
            if (!run_group(&m, backwards ? from + to - 1 - i : i)) return;
    }
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = g->outputs.data[i].value;
        CHECK_MSG(holds(&m, v), "%s: output %d is gone", what, i);
        CHECK_MSG(!is_immediate(&m, m.root[v.i]), "%s: output %d", what, i);
    }
    for (int i = 0; i < g->writes.len; i++)
        CHECK_MSG(holds(&m, g->writes.data[i].value), "%s: write %d is gone",
                  what, i);
}

void run_in_memory(Arena *a, const Graph *g, const char *what) {
    run_in_order(a, g, what, false);
    run_in_order(a, g, what, true);
}
