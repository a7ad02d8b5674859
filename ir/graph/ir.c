/* SPDX-License-Identifier: Apache-2.0 */
/* ir.c: modules, graphs, values, variables, attributes, rewriting.  The
   builder is in build.c. */
#include "ir/graph/ir_impl.h"

#include <math.h>
#include <string.h>

const char *const var_kind_text[] = {"param", "frozen", "buffer", "state",
                                     "hyper", "shadow", "grad"};
const char *const group_kind_text[] = {"point", "row", "anchor", "lib"};
const char *const target_text[] = {"any", "cpu", "cuda"};
const char *const stage_text[] = {"typed",   "cast",      "diff",  "step",
                                  "inlined", "primitive", "fused", "planned"};

/* ---- names of a graph ---------------------------------------------------- */

typedef struct Name {
    int next; /* the number to try first for the next value with that name */
    uint32_t value;
} Name;

/* For a graph: names in use, the value that reads each variable, and shared
   scalars. For a module: names of its variables. */
struct NameMap {
    StrMap at; /* index of the name; in a module, of its variable */
    VEC(Name) names;
    VEC(ValueId) vars; /* by variable; 0: the graph does not read it */
    struct {
        ValueId *slot; /* hash table: size a power of two; 0 = free */
        int len, cap;
    } scalars;
};

static Name *name_find(const struct NameMap *m, Str name) {
    int i = str_map_get(&m->at, name);
    return i < 0 ? NULL : &m->names.data[i];
}

static Name *name_add(Arena *a, struct NameMap *m, Str name) {
    Name *old = name_find(m, name);
    if (old) return old;
    str_map_put(a, &m->at, name, m->names.len);
    vec_push(a, &m->names, (Name){.next = 2});
    return &m->names.data[m->names.len - 1];
}

static bool name_taken(const Graph *g, Str name) {
    return name_find(g->names, name) || module_find_name(g->module, name) >= 0;
}

/* The name is reserved at once.  Names of variables stay reserved. */
Str graph_unique_name(Graph *g, Str base) {
    if (!name_taken(g, base)) {
        name_add(g->arena, g->names, base);
        return base;
    }
    int n = name_add(g->arena, g->names, base)->next;
    Str fresh;
    do fresh = internf("%s.%d", base, n++);
    while (name_taken(g, fresh));
    name_find(g->names, base)->next = n;
    name_add(g->arena, g->names, fresh);
    return fresh;
}

void graph_rename(Graph *g, ValueId v, Str name) {
    value_get(g, v)->name = name;
    name_add(g->arena, g->names, name)->value = v.i;
}

ValueId graph_find_name(const Graph *g, Str name) {
    const Name *n = name_find(g->names, name);
    if (!n || g->values.data[n->value].name != name) return NO_VALUE;
    return (ValueId){n->value};
}

ValueId graph_find_value(const Graph *g, const char *name) {
    return graph_find_name(g, intern(name));
}

/* ---- modules and graphs -------------------------------------------------- */

Module *module_new(Arena *a, const char *name) {
    Module *m = NEW(a, Module);
    m->arena = a;
    m->name = intern(name ? name : "");
    m->class_axis = -1;
    m->low = NUM_DTYPES;
    m->names = NEW(a, struct NameMap);
    return m;
}

void graph_append(Module *m, Graph *g, const char *name) {
    g->name = intern(name);
    g->program = program_of_name(name, &g->objective, &g->size);
    vec_push(m->arena, &m->graphs, g);
}

Graph *graph_new(Module *m, const char *name) {
    Graph *g = NEW(m->arena, Graph);
    g->module = m;
    g->arena = m->arena;
    g->names = NEW(m->arena, struct NameMap);
    vec_push(g->arena, &g->values, (Value){.offset = -1, .home = -1});
    vec_push(g->arena, &g->nodes, (Node){.group = -1});
    graph_append(m, g, name);
    return g;
}

Graph *module_graph(const Module *m, const char *name) {
    for (int i = 0; i < m->graphs.len; i++)
        if (strcmp(m->graphs.data[i]->name, name) == 0)
            return m->graphs.data[i];
    return NULL;
}

Graph *module_graph_on(const Module *m, const char *name, TargetKind t) {
    for (int i = 0; i < m->graphs.len; i++)
        if (m->graphs.data[i]->target == t &&
            strcmp(m->graphs.data[i]->name, name) == 0)
            return m->graphs.data[i];
    return NULL;
}

void module_remove_graph(Module *m, const char *name) {
    int n = 0;
    for (int i = 0; i < m->graphs.len; i++)
        if (strcmp(m->graphs.data[i]->name, name) != 0)
            m->graphs.data[n++] = m->graphs.data[i];
    m->graphs.len = n;
}

bool graph_is_model(const Graph *g) {
    return g->name == name_at_size(intern(FORWARD), g->size);
}

Graph *module_program(const Module *m, ProgramKind p, Str objective) {
    return module_graph(m, program_name(p, objective));
}

#define COPY_VEC(a, to, from)                                                  \
    do {                                                                       \
        (to)->len = (to)->cap = (from)->len;                                   \
        (to)->data = arena_dup((a), (from)->data,                              \
                               (size_t)(from)->len * sizeof *(from)->data);    \
    } while (0)

void node_own_ids(Arena *a, Node *n) {
    ValueId *ids = NEW_ARRAY(a, ValueId, n->nin + n->nout);
    if (n->nin) memcpy(ids, n->in, (size_t)n->nin * sizeof *ids);
    if (n->out) memcpy(ids + n->nin, n->out, (size_t)n->nout * sizeof *ids);
    n->in = ids;
    n->out = ids + n->nin;
}

Graph *graph_clone(const Graph *g, const char *name) {
    Graph *c = graph_new(g->module, name);
    COPY_VEC(c->arena, &c->values, &g->values);
    COPY_VEC(c->arena, &c->nodes, &g->nodes);
    COPY_VEC(c->arena, &c->order, &g->order);
    COPY_VEC(c->arena, &c->inputs, &g->inputs);
    COPY_VEC(c->arena, &c->outputs, &g->outputs);
    COPY_VEC(c->arena, &c->writes, &g->writes);
    COPY_VEC(c->arena, &c->groups, &g->groups);
    c->arena_bytes = g->arena_bytes;
    c->nfixed = g->nfixed;
    for (int i = 1; i < c->nodes.len; i++)
        node_own_ids(c->arena, &c->nodes.data[i]);
    *c->names = *g->names;
    c->names->at = str_map_copy(c->arena, &g->names->at);
    COPY_VEC(c->arena, &c->names->names, &g->names->names);
    COPY_VEC(c->arena, &c->names->vars, &g->names->vars);
    c->names->scalars.slot =
        arena_dup(c->arena, g->names->scalars.slot,
                  (size_t)g->names->scalars.cap * sizeof(ValueId));
    return c;
}

Graph *graph_clone_aside(const Graph *g, Module *aside, Arena *a) {
    Graph of = *g;
    *aside = *g->module;
    aside->arena = a;
    memset(&aside->graphs, 0, sizeof aside->graphs);
    of.module = aside;
    return graph_clone(&of, g->name);
}

/* ---- values -------------------------------------------------------------- */

ValueId value_new(Graph *g, Value v) {
    uint32_t id = (uint32_t)g->values.len;
    v.offset = v.home = -1;
    vec_push(g->arena, &g->values, v);
    if (v.name) graph_rename(g, (ValueId){id}, v.name);
    return (ValueId){id};
}

ValueId graph_input(Graph *g, const char *name, TypeId t) {
    Str unique = graph_unique_name(g, intern(name));
    ValueId v =
        value_new(g, (Value){.name = unique, .type = t, .kind = VK_INPUT});
    vec_push(g->arena, &g->inputs, v);
    return v;
}

ValueId graph_const(Graph *g, const char *name, const Tensor *t) {
    Str unique = graph_unique_name(g, intern(name ? name : "const"));
    return value_new(
        g,
        (Value){.name = unique, .type = t->type, .kind = VK_CONST, .data = t});
}

/* The slot of a scalar, or the free slot for it. Scalars are equal if their
   bits are: -0 differs from 0, and a NaN equals itself. */
static ValueId *scalar_slot(const Graph *g, const Tensor *t) {
    const struct NameMap *m = g->names;
    size_t bytes = (size_t)dtype_info[type_get(t->type)->dtype].bytes;
    uint64_t i = hash_bytes(t->type.i, t->data, bytes);
    for (;; i++) {
        ValueId *at = &m->scalars.slot[i & (uint64_t)(m->scalars.cap - 1)];
        if (!at->i) return at;
        const Value *v = value_get(g, *at);
        if (v->type.i == t->type.i && !memcmp(v->data->data, t->data, bytes))
            return at;
    }
}

static void grow_scalars(Graph *g) {
    struct NameMap *m = g->names;
    const ValueId *old = m->scalars.slot;
    int cap = m->scalars.cap;
    m->scalars.cap = cap ? 2 * cap : 16;
    m->scalars.slot = NEW_ARRAY(g->arena, ValueId, m->scalars.cap);
    for (int i = 0; i < cap; i++)
        if (old[i].i) *scalar_slot(g, value_get(g, old[i])->data) = old[i];
}

static ValueId shared_scalar(Graph *g, const Tensor *t) {
    struct NameMap *m = g->names;
    if (2 * m->scalars.len >= m->scalars.cap) grow_scalars(g);
    ValueId *at = scalar_slot(g, t);
    if (at->i) return *at;
    Tensor *own = tensor_new(g->arena, t->type);
    memcpy(own->data, t->data,
           (size_t)dtype_info[type_get(t->type)->dtype].bytes);
    m->scalars.len++;
    return *at = value_new(
               g, (Value){.type = own->type, .kind = VK_CONST, .data = own});
}

ValueId graph_scalar(Graph *g, DType d, double v) {
    Tensor t = {type_scalar(d), &(int64_t){0}};
    tensor_set(&t, 0, v);
    return shared_scalar(g, &t);
}

ValueId graph_scalar_int(Graph *g, DType d, int64_t v) {
    Tensor t = {type_scalar(d), &(int64_t){0}};
    tensor_set_int(&t, 0, v);
    return shared_scalar(g, &t);
}

bool value_is_splat(const Graph *g, ValueId v, double *out) {
    if (!is_value(v)) return false;
    const Value *x = value_get(g, v);
    if (x->kind != VK_CONST) return false;
    int64_t n = type_count(type_get(x->type));
    size_t size = (size_t)dtype_info[type_get(x->type)->dtype].bytes;
    const char *p = x->data->data;
    for (int64_t i = 1; i < n; i++)
        if (memcmp(p, p + (size_t)i * size, size) != 0) return false;
    if (n == 0) return false;
    *out = tensor_get(x->data, 0);
    return true;
}

bool value_is_immediate(const Graph *g, ValueId v) {
    return value_get(g, v)->kind == VK_CONST && value_type(g, v)->rank == 0;
}

ValueId view_root(const Graph *g, ValueId v) {
    for (;;) {
        const Value *x = value_get(g, v);
        if (x->kind != VK_RESULT) return v;
        const Node *n = node_get(g, x->def);
        if (node_kind(n) != KIND_VIEW) return v;
        v = n->in[0];
    }
}

int var_scaled(const Graph *g, ValueId v) {
    for (;;) {
        const Value *x = value_get(g, v = view_root(g, v));
        if (x->kind != VK_RESULT) return x->kind == VK_VAR ? x->var : -1;
        const Node *n = node_get(g, x->def);
        if (n->op != OP_MUL) return -1;
        bool number = value_count(g, n->in[0]) == 1;
        if (!number && value_count(g, n->in[1]) != 1) return -1;
        v = n->in[number];
    }
}

int node_sums_squares(const Graph *g, const Node *n, int64_t *row) {
    if (n->op != OP_RANK_SUM) return -1;
    const Value *x = value_get(g, view_root(g, n->in[0]));
    const Node *sum = x->kind == VK_RESULT ? node_get(g, x->def) : NULL;
    if (!sum || sum->op != OP_REDUCE_SUMSQ) return -1;
    *row = value_count(g, sum->in[0]) / value_count(g, sum->out[0]);
    return var_scaled(g, sum->in[0]);
}

int64_t rank_unit(int64_t row) {
    enum { AT_ONCE = 16 };
    int64_t unit = row;
    while (unit % AT_ONCE) unit += row;
    return unit;
}

bool rank_parts(int64_t n, int64_t row) {
    enum { ENOUGH = 64 };
    return rank_unit(row) <= n / ENOUGH;
}

bool node_cuts_rows(const Graph *g, const Node *n) {
    const int64_t *starts, *steps;
    if (n->op != OP_SLICE) return false;
    const Type *t = value_type(g, n->in[0]), *u = value_type(g, n->out[0]);
    attr_ints(n, AK_starts, &starts);
    attr_ints(n, AK_steps, &steps);
    for (int d = 0; d < t->rank; d++)
        if (starts[d] != 0 || steps[d] != 1 ||
            (d < t->rank - 1 && t->dim[d] != u->dim[d]))
            return false;
    return true;
}

bool node_pools(const Node *n) {
    return n->op == OP_MAX_POOL || n->op == OP_AVG_POOL;
}

/* ---- variables ----------------------------------------------------------- */

int module_find_name(const Module *m, Str name) {
    return str_map_get(&m->names->at, name);
}

int module_find_var(const Module *m, const char *name) {
    return module_find_name(m, intern(name));
}

int module_var(Module *m, VarKind k, const char *name, TypeId t,
               const Tensor *init, double fill) {
    int i = module_find_var(m, name);
    if (i >= 0) {
        ASSERT(m->vars.data[i].kind == k && m->vars.data[i].type.i == t.i);
        return i;
    }
    vec_push(m->arena, &m->vars,
             (Var){.name = intern(name),
                   .kind = k,
                   .type = t,
                   .init = init,
                   .fill = fill,
                   .stored_dtype = type_get(t)->dtype,
                   .lr_scale = 1,
                   .weight_decay = (double)NAN});
    str_map_put(m->arena, &m->names->at, intern(name), m->vars.len - 1);
    return m->vars.len - 1;
}

ValueId graph_find_var(const Graph *g, int var) {
    ASSERT(var >= 0 && var < g->module->vars.len);
    if (var >= g->names->vars.len) return NO_VALUE;
    return g->names->vars.data[var];
}

static void set_reader(Graph *g, int var, ValueId v) {
    while (g->names->vars.len <= var)
        vec_push(g->arena, &g->names->vars, NO_VALUE);
    g->names->vars.data[var] = v;
}

ValueId graph_var(Graph *g, int var) {
    ValueId v = graph_find_var(g, var);
    if (is_value(v)) return v;
    const Var *x = &g->module->vars.data[var];
    /* a value that got the name before the variable existed is renamed */
    ValueId taken = graph_find_name(g, x->name);
    if (is_value(taken)) graph_rename(g, taken, graph_unique_name(g, x->name));
    v = value_new(
        g,
        (Value){.name = x->name, .type = x->type, .kind = VK_VAR, .var = var});
    set_reader(g, var, v);
    return v;
}

void graph_write(Graph *g, ValueId var, ValueId value) {
    Write w = {.var = var, .value = value};
    vec_push(g->arena, &g->writes, w);
}

const Var *graph_move(Graph *g, Module *m, const char *name) {
    const Module *from = g->module;
    for (int i = 0; i < from->vars.len; i++) {
        const Var *v = &from->vars.data[i];
        int at = module_find_name(m, v->name);
        const Var *same = at < 0 ? NULL : &m->vars.data[at];
        if (!same || same->type.i != v->type.i || same->kind != v->kind)
            return v;
    }
    memset(&g->names->vars, 0, sizeof g->names->vars);
    g->module = m;
    for (int i = 1; i < g->values.len; i++) {
        Value *v = &g->values.data[i];
        if (v->kind != VK_VAR) continue;
        v->var = module_find_name(m, from->vars.data[v->var].name);
        set_reader(g, v->var, (ValueId){(uint32_t)i});
    }
    graph_append(m, g, name);
    return NULL;
}

ValueId graph_output(const Graph *g, const char *name) {
    for (int i = 0; i < g->outputs.len; i++)
        if (!strcmp(g->outputs.data[i].name, name))
            return g->outputs.data[i].value;
    return NO_VALUE;
}

int64_t graph_samples(const Graph *g) {
    for (int i = 0; i < g->inputs.len; i++) {
        const Type *t = value_type(g, g->inputs.data[i]);
        if (t->rank) return t->dim[0];
    }
    return 0;
}

void graph_add_output(Graph *g, Str name, ValueId v) {
    Output o = {.name = name, .value = v};
    vec_push(g->arena, &g->outputs, o);
}

ValueId graph_take_output(Graph *g, const char *name) {
    ValueId v = NO_VALUE;
    int kept = 0;
    for (int i = 0; i < g->outputs.len; i++)
        if (!strcmp(g->outputs.data[i].name, name))
            v = g->outputs.data[i].value;
        else
            g->outputs.data[kept++] = g->outputs.data[i];
    g->outputs.len = kept;
    return v;
}

/* ---- rewriting ----------------------------------------------------------- */

int *graph_use_counts(const Graph *g, Arena *scratch) {
    int *uses = NEW_ARRAY(scratch, int, g->values.len);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int j = 0; j < n->nin; j++) uses[n->in[j].i]++;
    }
    for (int i = 0; graph_root(g, i); i++) uses[graph_root(g, i)->i]++;
    uses[0] = 0;
    return uses;
}

UserIndex graph_users(const Graph *g, Arena *scratch) {
    int nv = g->values.len, total = 0;
    UserIndex x = {.first = NEW_ARRAY(scratch, int, nv + 2)};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++) x.first[n->in[k].i + 1]++;
        total += n->nin;
    }
    for (int v = 0; v < nv; v++) x.first[v + 1] += x.first[v];
    x.node = NEW_ARRAY(scratch, NodeId, total + 1);
    int *next = arena_dup(scratch, x.first, (size_t)nv * sizeof *next);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            x.node[next[n->in[k].i]++] = g->order.data[i];
    }
    return x;
}

int *graph_positions(const Graph *g, Arena *scratch) {
    int *pos = NEW_ARRAY(scratch, int, g->nodes.len);
    for (int i = 0; i < g->nodes.len; i++) pos[i] = -1;
    for (int i = 0; i < g->order.len; i++) pos[g->order.data[i].i] = i;
    return pos;
}

/* Marks the node that computes v if it is not one of the older nodes. */
static void ir_need(const Graph *g, uint32_t first, bool *needed, ValueId v) {
    if (!is_value(v) || value_get(g, v)->kind != VK_RESULT) return;
    uint32_t id = value_get(g, v)->def.i;
    if (id >= first) needed[id - first] = true;
}

void graph_drop_unneeded(Graph *g, uint32_t first, int start,
                         const ValueId *root, int n) {
    Arena *scratch = arena_new();
    bool *needed = NEW_ARRAY(scratch, bool, g->nodes.len - (int)first + 1);
    int kept = start;
    for (int i = 0; i < n; i++) ir_need(g, first, needed, root[i]);
    for (int i = g->order.len - 1; i >= start; i--) {
        const Node *x = node_at(g, i);
        if (!needed[g->order.data[i].i - first]) continue;
        for (int k = 0; k < x->nin; k++) ir_need(g, first, needed, x->in[k]);
    }
    for (int i = start; i < g->order.len; i++)
        if (needed[g->order.data[i].i - first])
            g->order.data[kept++] = g->order.data[i];
    g->order.len = kept;
    arena_free(scratch);
}
