/* SPDX-License-Identifier: Apache-2.0 */
/* target_passes.c: passes keep what a program computes.  When a stage is
   reached, the interpreter evaluates every program without rounding: a value
   with the name of an output or of a written variable of an earlier stage must
   have the same numbers. That compares IR with IR by numbers alone; no pass
   judges itself.

   Two more evaluations, with slightly changed operands and constants,
   distinguish differences caused only by the order of sums from errors:
   values that change much in them are not compared. */
#include "tests/fuzz/compile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "ir/eval/evaluate.h"
#include "tests/support/changed_graph.h"

enum {
    SHAKEN = 3,             /* evaluations: unchanged, and with operands
                               moved */
    MOST_NUMBERS = 1 << 13, /* of a model's values */
    MOST_WORK = 1 << 20     /* ... of all programs of a stage */
};

typedef struct Known {
    Str graph, name;
    bool write;
    const EvalTensor *t[SHAKEN];
    const char *after; /* the stage */
} Known;

typedef struct Keeper {
    Compile c;
    VEC(Known) known;
    const char *stage;
    int compared;
} Keeper;

/* ---- operands ------------------------------------------------------------ */

static double unit(uint64_t h) { return (double)(h >> 11) * 0x1p-53; }

static double moved(double x, const uint64_t key[2], int shake) {
    uint64_t h = hash_bytes(1 + (uint64_t)shake, key, 2 * sizeof *key);
    return shake ? x * (1 + 1e-6 * (unit(h) - 0.5)) : x;
}

/* Element i of the value with this name, in [least, least + 2). */
static double number(Str name, int64_t i, double least, int shake) {
    uint64_t key[2] = {hash_bytes(0, name, strlen(name)), (uint64_t)i};
    return moved(least + 2 * unit(hash_bytes(1, key, sizeof key)), key, shake);
}

/* Class and row numbers for integers: the only one that is surely legal, or
   some that may not be. */
static int most_int(const Keeper *k) {
    return (int)(k->c.hash >> 10 & 0xff) % 3;
}

static void bind(const Keeper *k, Evaluator *e, Arena *a, ValueId v,
                 TypeId type, Str name, double least, int shake) {
    EvalTensor *t = eval_tensor_new(a, type);
    int64_t n = type_count(type_get(type));
    bool truth = type_get(type)->dtype == DT_BOOL;
    int most = truth ? 1 : most_int(k);
    for (int64_t i = 0; i < n; i++)
        if (t->f)
            t->f[i] = number(name, i, least, shake);
        else
            t->i[i] = (int64_t)(number(name, i, 0, 0) * (most + 1) / 2);
    eval_bind(e, v, t);
}

/* Binds a variable: the compiler's counters and scalars get their initial
   values; statistics and optimizer states are not negative; a copy equals its
   original. */
static void bind_var(const Keeper *k, Evaluator *e, Arena *a, const Graph *g,
                     ValueId v, int shake) {
    const Module *m = g->module;
    const Var *var = value_var(g, v);
    int parameter;
    bool own = name_is_own(var->name);
    if (!strcmp(var->name, "ampc.shares")) { /* the share, until pass step */
        EvalTensor *one = eval_tensor_new(a, value_get(g, v)->type);
        one->f[0] = 1;
        eval_bind(e, v, one);
        return;
    }
    if (own && family_of(m, var->name, &parameter) == NUM_FAMILIES) return;
    int source = var->kind == VAR_SHADOW ? shadow_source(m, var) : -1;
    bool positive = k->c.hash >> 8 & 1;
    if (source < 0) positive |= own || var->kind == VAR_BUFFER;
    if (source >= 0) var = &m->vars.data[source];
    bind(k, e, a, v, value_get(g, v)->type, var->name, positive ? 0.25 : -1,
         shake);
}

/* Folded constants are rounded. */
static void move_const(Evaluator *e, Arena *a, const Graph *g, ValueId v,
                       int shake) {
    EvalTensor *t = eval_from_tensor(a, value_get(g, v)->data);
    int64_t n = type_count(type_get(t->type));
    for (int64_t i = 0; i < n && t->f; i++)
        t->f[i] = moved(t->f[i], (uint64_t[]){v.i, (uint64_t)i}, shake);
    eval_bind(e, v, t);
}

static Evaluator *evaluate(const Keeper *k, const Graph *g, Arena *a,
                           int shake) {
    Diag d = {0};
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    double least = k->c.hash >> 9 & 1 ? 0.25 : -1;
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        const Value *x = value_get(g, v);
        bind(k, e, a, v, x->type, x->name, least, shake);
    }
    for (uint32_t i = 1; i < (uint32_t)g->values.len; i++) {
        ValueKind kind = g->values.data[i].kind;
        if (kind == VK_VAR) bind_var(k, e, a, g, (ValueId){i}, shake);
        if (kind == VK_CONST && shake) move_const(e, a, g, (ValueId){i}, shake);
    }
    Status s = eval_run(e, &d);
    if (s != OK && fuzz_replaying) fputs(d.text.data, stderr);
    sb_free(&d.text);
    return s == OK ? e : NULL;
}

/* Shortens constants to values that 16 bits represent, if 16-bit types are
   in use: constants are folded in them. */
static void shorten_constants(const Module *m) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int v = 1; v < g->values.len; v++) {
            const Tensor *t = g->values.data[v].data;
            if (!t || !dtype_is_float(type_get(t->type)->dtype)) continue;
            int64_t n = type_count(type_get(t->type));
            for (int64_t at = 0; at < n; at++) {
                double x = tensor_get(t, at);
                if (fabs(x) > 60000) x = copysign(60000, x);
                if (fabs(x) < 0x1p-14) x = 0;
                tensor_set(t, at, bf16_to_double(double_to_bf16(x)));
            }
        }
    }
}

/* ---- comparison ---------------------------------------------------------- */

static double greatest(const EvalTensor *t, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(t->f[i])) most = fmax(most, fabs(t->f[i]));
    return most;
}

static bool same_float(const Keeper *k, const Known *x, double q, int64_t i,
                       double most) {
    bool rounds = k->c.opt.precision != PREC_FP32; /* what is folded */
    double p = x->t[0]->f[i], moves = 0;
    for (int s = 0; s < SHAKEN; s++) {
        double shaken = x->t[s]->f[i];
        if (!isfinite(shaken)) return true;
        moves = fmax(moves, fabs(shaken - p));
    }
    return fabs(p - q) <= (rounds ? 0.05 : 1e-4) * most + 1000 * moves;
}

static bool same_int(const Known *x, int64_t q, int64_t i) {
    int64_t p = x->t[0]->i[i];
    for (int s = 1; s < SHAKEN; s++)
        if (x->t[s]->i[i] != p) return true;
    return p == q;
}

static void compare(Keeper *k, const Known *x, const Graph *g,
                    const EvalTensor *t) {
    const Type *was = type_get(x->t[0]->type), *is = type_get(t->type);
    const char *what = x->write ? "variable" : "output";
    fuzz_check(shape_equal(was, is) && !x->t[0]->f == !t->f,
               "%s of %s (%s): %s %s has another type", k->stage, g->name,
               target_text[g->target], what, x->name);
    int64_t n = type_count(was);
    double most = t->f ? greatest(x->t[0], n) : 0;
    for (int64_t i = 0; i < n; i++) {
        bool same =
            t->f ? same_float(k, x, t->f[i], i, most) : same_int(x, t->i[i], i);
        fuzz_check(same,
                   "%s of %s (%s): element %lld of %s %s is %.9g, and was "
                   "%.9g (%s)",
                   k->stage, g->name, target_text[g->target], (long long)i,
                   what, x->name, t->f ? t->f[i] : (double)t->i[i],
                   t->f ? x->t[0]->f[i] : (double)x->t[0]->i[i], x->after);
    }
    k->compared++;
}

static const Known *find(const Keeper *k, const Graph *g, Str name,
                         bool write) {
    for (int i = 0; i < k->known.len; i++) {
        const Known *x = &k->known.data[i];
        if (x->graph == g->name && x->name == name && x->write == write)
            return x;
    }
    return NULL;
}

static const EvalTensor *kept(Arena *a, const EvalTensor *t) {
    EvalTensor *r = eval_tensor_new(a, t->type);
    size_t n = (size_t)type_count(type_get(t->type));
    if (t->f) memcpy(r->f, t->f, n * sizeof *t->f);
    if (t->i) memcpy(r->i, t->i, n * sizeof *t->i);
    return r;
}

static void look_at(Keeper *k, const Graph *g, Evaluator *const e[SHAKEN],
                    Str name, bool write, ValueId v) {
    const Known *x = find(k, g, name, write);
    if (x) {
        compare(k, x, g, eval_get(e[0], v));
        return;
    }
    Known now = {g->name, name, write, {NULL}, k->stage};
    for (int s = 0; s < SHAKEN; s++) now.t[s] = kept(k->c.a, eval_get(e[s], v));
    vec_push(k->c.a, &k->known, now);
}

static bool all_known(const Keeper *k, const Graph *g) {
    for (int i = 0; i < g->outputs.len; i++)
        if (!find(k, g, g->outputs.data[i].name, false)) return false;
    for (int i = 0; i < g->writes.len; i++)
        if (!find(k, g, value_var(g, g->writes.data[i].var)->name, true))
            return false;
    return true;
}

static bool any_known(const Keeper *k, const Graph *g) {
    for (int i = 0; i < k->known.len; i++)
        if (k->known.data[i].graph == g->name) return true;
    return false;
}

/* A step with class or row numbers out of range, or with a loss that is not
   finite, writes nothing. */
static bool skips(const Keeper *k, const Graph *g) {
    const Known *bad = find(k, g, own_output(OUT_BAD, g->objective), false);
    const Known *loss = find(k, g, own_output(OUT_LOSS, g->objective), false);
    if (bad && bad->t[0]->i && bad->t[0]->i[0]) return true;
    for (int s = 0; s < SHAKEN && loss && loss->t[0]->f; s++)
        if (!isfinite(loss->t[s]->f[0])) return true;
    return false;
}

static void look_at_graph(Keeper *k, const Graph *g) {
    if (skips(k, g)) return;
    Arena *a = arena_new();
    Evaluator *e[SHAKEN] = {NULL};
    int n = all_known(k, g) ? 1 : SHAKEN, ran = 0;
    while (ran < n && (e[ran] = evaluate(k, g, a, ran))) ran++;
    fuzz_check(ran || !any_known(k, g), "%s of %s (%s): is not evaluated",
               k->stage, g->name, target_text[g->target]);
    for (int i = 0; i < g->outputs.len && ran == n; i++)
        look_at(k, g, e, g->outputs.data[i].name, false,
                g->outputs.data[i].value);
    for (int i = 0; i < g->writes.len && ran == n; i++)
        look_at(k, g, e, value_var(g, g->writes.data[i].var)->name, true,
                g->writes.data[i].value);
    arena_free(a);
}

static int64_t numbers(const Module *m) {
    int64_t sum = 0;
    for (int i = 0; i < m->graphs.len; i++)
        sum += graph_numbers(m->graphs.data[i]);
    return sum;
}

static bool look(Keeper *k, const char *stage) {
    const Module *m = k->c.m;
    k->stage = stage;
    if (numbers(m) > MOST_WORK) return false;
    for (int i = 0; i < m->graphs.len; i++) look_at_graph(k, m->graphs.data[i]);
    return true;
}

/* ---- the target ---------------------------------------------------------- */

/* Scales steps to the length of gradients, so that a wrong gradient shows. */
static void long_steps(Compile *c) {
    static const char *const optimizers[] = {
        "sgd,lr=1", "sgd,lr=1,momentum=0.5,weight_decay=0.25",
        "adamw,lr=0.5,eps=0.125"};
    bool used;
    Status s =
        options_set(&c->opt, &c->d, "--optimizer",
                    optimizers[c->hash >> 4 & 1 ? 0 : c->hash % 3], &used);
    fuzz_check(s == OK, "%s", c->d.text.data);
}

static void read_instead(Graph *g, ValueId v, ValueId with) {
    ValueId *root;
    for (int i = 0; i < g->order.len; i++) {
        Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (same_value(n->in[k], v)) n->in[k] = with;
    }
    for (int i = 0; (root = graph_root(g, i)); i++)
        if (same_value(*root, v)) *root = with;
}

/* Gradients of everything: f32 inputs are parameters, and the loss is the
   sum of everything the model returns. */
static void train_all(Compile *c, Graph *g) {
    Builder b = {.g = g};
    ValueId loss = NO_VALUE;
    int kept = 0;
    for (int i = 0; i < g->inputs.len; i++) {
        ValueId v = g->inputs.data[i];
        const Value *x = value_get(g, v);
        bool trains = type_get(x->type)->dtype == DT_F32 &&
                      module_find_var(c->m, x->name) < 0;
        if (!trains) g->inputs.data[kept++] = v;
        if (!trains) continue;
        int var = module_var(c->m, VAR_PARAM, x->name, x->type, NULL, 0.5);
        read_instead(g, v, graph_var(g, var));
    }
    g->inputs.len = kept;
    for (int i = 0; i < g->outputs.len; i++) {
        ValueId v = g->outputs.data[i].value;
        if (value_dtype(g, v) != DT_F32) continue;
        ValueId weight = b_scalar(&b, DT_F32, 1 - 0.25 * (i % 4));
        v = b2(&b, OP_MUL, b1(&b, OP_SIN, v, DT_DEFAULT), weight, DT_DEFAULT);
        v = b_sum_to(&b, v, weight, DT_F32);
        loss = loss.i ? b2(&b, OP_ADD, loss, v, DT_DEFAULT) : v;
    }
    if (!loss.i) return;
    g->outputs.len = 0;
    graph_add_output(g, intern("sum"), loss);
    c->opt.objectives.data[0].loss = loss_default(LOSS_AUTO);
}

static bool compile_and_look(Keeper *k) {
    Compile *c = &k->c;
    Graph *g = c->m->graphs.data[0];
    if (c->hash >> 12 & 1)
        train_all(c, g);
    else if (g->outputs.len != 1) /* a loss wants one */
        c->opt.objectives.data[0].loss = loss_default(LOSS_NONE);
    if (c->opt.precision != PREC_FP32) shorten_constants(c->m);
    if (most_int(k) == 0) look(k, "import"); /* no pass has checked them yet */
    Status s = run_passes(c->m, &c->d, &c->opt, "simplify", false);
    if (s == ERR_USAGE)
        s = ERR_USER; /* IR of a later stage counts as the user's mistake */
    if (s == OK) look(k, "simplify");
    for (Stage stage = STAGE_TYPED; stage <= STAGE_PLANNED && s == OK;
         stage++) {
        if (stage == STAGE_PRIMITIVE) {
            s = run_common(c->m, &c->d, &c->opt, false);
            if (s != OK || !look(k, "the common passes")) break;
        }
        s = run_pipeline(c->m, &c->d, &c->opt, stage, false);
        if (s == OK && !look(k, stage_text[stage])) return false;
    }
    compile_check(c, s);
    return s == OK;
}

/* Excludes results of passes of a later stage, and IR that itself rounds to
   16 bits: folding rounds, too. */
static bool is_model(const Module *m) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        if (g->target != TARGET_ANY) return false;
        for (int v = 1; v < g->values.len; v++)
            if (dtype_is_low(type_get(g->values.data[v].type)->dtype))
                return false;
    }
    return !m->onnx && numbers(m) <= MOST_NUMBERS;
}

void passes_run(const uint8_t *p, size_t n) {
    Keeper k = {0};
    Compile *c = &k.c;
    if (compile_read(c, p, n) && compile_is_short(c) && is_model(c->m)) {
        long_steps(c);
        if (compile_and_look(&k)) fuzz_taken();
    }
    if (fuzz_replaying) fprintf(stderr, "%d compared\n", k.compared);
    compile_end(c);
}
