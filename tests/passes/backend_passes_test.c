/* backend_passes_test.c: expand, fuse, schedule and memplan change no value.

   Random graphs go through the passes, fused and unfused, in source order and
   shuffled.  Then the planned graph is executed by the interpreter on a model
   of memory in which every 64 bytes of the arena and every variable remember
   whose content they hold: a plan that overwrites something still needed is
   caught whatever the numbers are.  verify.c checks every stage besides.    */
#include "ir/fn/fn.h"
#include "frontend/driver/options_text.h"
#include "passes/passes.h"
#include "tests/harness.h"

#include <math.h>
#include <string.h>

/* ---- random graphs ------------------------------------------------------- */

typedef struct Maker {
    Graph *g;
    Builder b;
    VEC(ValueId) pool; /* floating values to read from */
    uint64_t rng;
} Maker;

static int pick(Maker *m, int n) {
    m->rng = m->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((m->rng >> 33) % (uint64_t)n);
}

static ValueId any(Maker *m) {
    /* mostly recent values, so that chains form */
    int n = m->pool.len;
    return m->pool
        .data[pick(m, 3) ? n - 1 - pick(m, n < 5 ? n : 5) : pick(m, n)];
}

static DType any_float(Maker *m) {
    static const DType d[] = {DT_F32, DT_F32, DT_BF16, DT_F16};
    return d[pick(m, 4)];
}

static ValueId make_elem(Maker *m) {
    static const OpCode one[] = {OP_NEG, OP_RELU, OP_TANH, OP_ABS, OP_SIGMOID};
    static const OpCode two[] = {OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN};
    ValueId x = any(m), y = any(m);
    Type out;
    if (pick(m, 3) == 0) return b1(&m->b, one[pick(m, 5)], x, DT_DEFAULT);
    if (!shape_broadcast(value_type(m->g, x), value_type(m->g, y), &out) ||
        type_count(&out) > 4096)
        return b2(&m->b, OP_MUL, x, b_scalar(&m->b, DT_F32, 0.5), DT_F32);
    return b2(&m->b, two[pick(m, 5)], x, y, any_float(m));
}

static ValueId make_reduce(Maker *m) {
    static const OpCode ops[] = {OP_REDUCE_SUM, OP_REDUCE_MEAN, OP_REDUCE_MAX};
    ValueId x = any(m);
    int rank = value_type(m->g, x)->rank;
    int64_t axes[MAX_RANK];
    int n = 0;
    for (int i = 0; i < rank; i++)
        if (pick(m, 2)) axes[n++] = i;
    if (n == 0) return b_cast(&m->b, x, any_float(m));
    return b_reduce(&m->b, ops[pick(m, 3)], x, axes, n, pick(m, 3) > 0,
                    DT_DEFAULT);
}

static ValueId make_composite(Maker *m) {
    ValueId x = any(m);
    int rank = value_type(m->g, x)->rank;
    if (rank == 0) return x;
    Attr axis = attr_i(AK_axis, pick(m, rank));
    const Fn *fn = fn_std(pick(m, 2) ? "softmax" : "log_softmax");
    DType d = any_float(m);
    NodeId n = build_call(&m->b, fn, &x, 1, &axis, 1, 1, &d);
    return node_get(m->g, n)->out[0];
}

/* Sometimes rounded to another dtype, by the node itself. */
static ValueId stored(Maker *m, ValueId v) {
    Value *x = value_get(m->g, v);
    if (x->kind == VK_RESULT && pick(m, 3) == 0)
        x->type = type_with_dtype(x->type, any_float(m));
    return v;
}

static ValueId make_full(Maker *m) {
    int64_t dim[] = {2 + 2 * pick(m, 4), 2 + 2 * pick(m, 4)};
    return b_full(&m->b, type_make(any_float(m), 2, dim), pick(m, 5) / 3.0);
}

/* An axis in two, two axes in one, or all but the first in one. */
static ValueId make_view(Maker *m) {
    ValueId x = any(m);
    Type t = *value_type(m->g, x);
    if (t.rank < 2) return x;
    int64_t dim[MAX_RANK] = {t.dim[0], type_count(&t) / t.dim[0]};
    int a = pick(m, t.rank - 1), rank = t.rank, how = pick(m, 3);
    int64_t q = 2 + pick(m, 3);
    if (how == 0) return b_reshape(&m->b, x, 2, dim);
    if (how == 1 && (t.dim[a] % q || t.rank > 4)) return x;
    rank += how == 1 ? 1 : -1;
    for (int i = 0; i < rank; i++)
        dim[i] = t.dim[i < a || (how == 1 && i == a) ? i
                       : how == 1                    ? i - 1
                                                     : i + 1];
    if (how == 1) dim[a] = t.dim[a] / q, dim[a + 1] = q;
    if (how == 2) dim[a] = t.dim[a] * t.dim[a + 1];
    return b_reshape(&m->b, x, rank, dim);
}

static ValueId make_slice(Maker *m, ValueId x) {
    Type t = *value_type(m->g, x);
    int64_t starts[MAX_RANK] = {0}, steps[MAX_RANK];
    for (int i = 0; i < t.rank; i++) steps[i] = 1;
    int axis = pick(m, t.rank), extent = (int)t.dim[axis];
    starts[axis] = pick(m, extent);
    t.dim[axis] = 1 + pick(m, extent - (int)starts[axis]);
    if (pick(m, 3) == 0) {
        steps[axis] = 2;
        t.dim[axis] = (t.dim[axis] + 1) / 2;
    }
    Attr a[] = {attr_v(AK_sizes, t.dim, t.rank),
                attr_v(AK_starts, starts, t.rank),
                attr_v(AK_steps, steps, t.rank)};
    return build(&m->b, OP_SLICE, &x, 1, a, 3, DT_DEFAULT, NULL);
}

static ValueId make_concat(Maker *m, ValueId x) {
    const Type *t = value_type(m->g, x);
    ValueId y = any(m);
    if (!shape_equal(t, value_type(m->g, y)) || type_count(t) > 2048) y = x;
    Attr a = attr_i(AK_axis, pick(m, t->rank));
    return build(&m->b, OP_CONCAT, (ValueId[]){x, y}, 2, &a, 1,
                 value_dtype(m->g, x), NULL);
}

static ValueId make_move(Maker *m) {
    ValueId x = any(m);
    Type t = *value_type(m->g, x);
    int64_t perm[MAX_RANK];
    if (t.rank < 2 || type_count(&t) > 2048) return x;
    switch (pick(m, 4)) {
    case 0: return make_concat(m, x);
    case 1:
        for (int i = 0, by = pick(m, t.rank); i < t.rank; i++)
            perm[i] = (i + by) % t.rank;
        return b_transpose(&m->b, x, perm);
    default: return make_slice(m, x);
    }
}

static ValueId make_product(Maker *m) {
    ValueId x = any(m), y = any(m);
    const Type *s = value_type(m->g, x), *t = value_type(m->g, y);
    if (s->rank != 2 || t->rank != 2) return make_elem(m);
    bool tb = s->dim[1] == t->dim[1];
    if (!tb && s->dim[1] != t->dim[0]) return make_elem(m);
    return b_matmul(&m->b, x, y, false, tb, any_float(m));
}

/* Work that is alike on a value which little else reads. */
static ValueId make_alike(Maker *m) {
    ValueId x = b1(&m->b, OP_TANH, any(m), DT_F32);
    ValueId u = b1(&m->b, OP_NEG, x, DT_F32);
    ValueId v = b1(&m->b, OP_SIGMOID, x, DT_F32);
    vec_push(m->g->arena, &m->pool, b2(&m->b, OP_MUL, x, u, DT_F32));
    return b2(&m->b, OP_MUL, x, v, DT_F32);
}

static ValueId make_node(Maker *m) {
    switch (pick(m, 16)) {
    case 0: return make_reduce(m);
    case 1: return make_composite(m);
    case 2:
    case 3: return stored(m, make_view(m));
    case 4:
    case 5:
    case 6: return stored(m, make_move(m));
    case 7:
    case 8: return make_product(m);
    case 9: return make_alike(m);
    case 10: return make_full(m);
    default: return make_elem(m);
    }
}

static void add_output(Maker *m, int i, ValueId v) {
    Output o = {internf("out%d", i), v};
    vec_push(m->g->arena, &m->g->outputs, o);
}

/* A variable that takes any value of its type. */
static void add_write(Maker *m, int var) {
    ValueId v = graph_var(m->g, var);
    for (int tries = 0; tries < 50; tries++) {
        ValueId x = any(m);
        if (value_get(m->g, x)->type.i != value_get(m->g, v)->type.i) continue;
        Write w = {.var = v, .value = x};
        vec_push(m->g->arena, &m->g->writes, w);
        return;
    }
}

static Module *random_module(Arena *a, uint64_t seed) {
    static const int64_t shapes[][3] = {{8, 6, 4}, {6, 8, 0}, {8, 1, 4},
                                        {4, 0, 0}, {6, 8, 0}, {8, 8, 0}};
    Module *mod = module_new(a, "m");
    Maker m = {.g = graph_new(mod, "predict"), .rng = seed * 77 + 5};
    m.b.g = m.g;
    for (int i = 0; i < 6; i++) {
        int rank = shapes[i][1] == 0 ? 1 : shapes[i][2] == 0 ? 2 : 3;
        TypeId t = type_make(i == 1 ? DT_BF16 : DT_F32, rank, shapes[i]);
        Str name = internf("v%d", i);
        ValueId v = i < 3 ? graph_input(m.g, name, t)
                          : graph_var(m.g, module_var(mod, VAR_STATE, name, t,
                                                      NULL, 0.25 * i));
        vec_push(a, &m.pool, v);
    }
    for (int i = 0; i < 28; i++) {
        ValueId v = make_node(&m);
        if (dtype_is_float(value_dtype(m.g, v))) vec_push(a, &m.pool, v);
    }
    for (int i = 0; i < 3; i++) add_output(&m, i, any(&m));
    for (int i = 0; i < 3; i++) add_write(&m, i);
    return mod;
}

/* ---- what a graph computes ----------------------------------------------- */

typedef VEC(const EvalTensor *) Results;

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

static Results results(Arena *a, const Graph *g, EvalMode mode) {
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

static void expect_equal(const Results *x, const Results *y, double tol,
                         const char *what) {
    if (!CHECK_EQ_INT(x->len, y->len)) return;
    for (int i = 0; i < x->len; i++) {
        int64_t n = type_count(type_get(x->data[i]->type));
        if (!CHECK_MSG(x->data[i]->type.i == y->data[i]->type.i,
                       "%s: result %d is of another type", what, i))
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
    ValueId *root;   /* by ValueId.i: below views */
    uint32_t *owner; /* of every 64 bytes: the root that lies there */
    uint32_t *var;   /* by variable: 0 = old content, else the root in it */
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

/* Whether v's bytes are still v's. */
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

/* Groups of one launch run in any order: in theirs, or backwards; then those
   that stand after others. */
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

static void run_in_memory(Arena *a, const Graph *g, const char *what) {
    run_in_order(a, g, what, false);
    run_in_order(a, g, what, true);
}

/* ---- cases --------------------------------------------------------------- */

/* flags: an option and its value, another and its; NULL ends them. */
static void run(Arena *a, Module *m, const char *passes,
                const char *const *flags) {
    Options o;
    Diag d = {0};
    bool used;
    options_init(&o, a);
    for (; *flags; flags += 1 + used)
        REQUIRE(options_set(&o, &d, flags[0], flags[1], &used) == OK);
    if (run_passes(m, &d, &o, passes, false) != OK) FAIL("%s", d.text.data);
}

static Module *parsed(Arena *a, const char *text) {
    Diag d = {0};
    Module *m;
    if (parse_module(a, &d, "test.amp", text, strlen(text), &m) != OK)
        FAIL("%s\n%s", text, d.text.data);
    return m;
}

static void lower(Arena *a, Module *m, const char *const *flags) {
    run(a, m, "inline,canon,reduce,cse,dce,fuse,schedule,memplan", flags);
}

static int shared; /* launches of several groups that random cases had */

static void random_case(uint64_t seed, const char *const *flags) {
    Arena *a = arena_new();
    Module *m = random_module(a, seed);
    Graph *g = m->graphs.data[0];
    Results asked = results(a, g, EVAL_STORAGE);
    char what[64];
    snprintf(what, sizeof what, "seed %d %s", (int)seed, *flags ? *flags : "");
    run(a, m, "simplify,cse,dce", flags);
    Results simple = results(a, g, EVAL_STORAGE);
    expect_equal(&asked, &simple, 0, what);
    Results exact = results(a, g, EVAL_EXACT);
    run(a, m, "inline,canon,reduce,cse,dce", flags);
    Results expanded = results(a, g, EVAL_EXACT);
    expect_equal(&exact, &expanded, 1e-9, what);
    Results stored = results(a, g, EVAL_STORAGE);
    lower(a, m, flags);
    Results lowered = results(a, g, EVAL_STORAGE);
    expect_equal(&stored, &lowered, 0, what);
    run_in_memory(a, g, what);
    for (int i = 0; i < g->groups.len; i++) shared += g->groups.data[i].beside;
    arena_free(a);
}

enum { SEEDS = 300 };

static void random_cases(const char *const *flags) {
    shared = 0;
    for (int seed = 1; seed <= SEEDS; seed++) random_case(seed, flags);
}

static const char *const none[] = {NULL};
static const char *const for_gpus[] = {"--target", "cuda:sm_90", NULL};

TEST_CASE(backend_random, fused) { random_cases(none); }

TEST_CASE(backend_random, fused_for_gpus) {
    random_cases(for_gpus);
    CHECK(shared > 0);
}

TEST_CASE(backend_random, unfused) {
    static const char *const flags[] = {"--no-fuse", NULL};
    random_cases(flags);
}

TEST_CASE(backend_random, unfused_for_gpus) {
    static const char *const flags[] = {"--no-fuse", "--target", "cuda:sm_90",
                                        NULL};
    random_cases(flags);
    CHECK(shared > 0);
}

TEST_CASE(backend_random, shuffled) {
    static const char *const flags[] = {"--shuffle", "11", NULL};
    random_cases(flags);
}

/* The same numbers before and after, in exact arithmetic. */
static void expect_expansion_for(const char *text, const char *const *flags) {
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    lower(a, m, flags);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text); /* constants are f32 */
    run_in_memory(a, g, text);
    arena_free(a);
}

static void expect_expansion(const char *text) {
    expect_expansion_for(text, none);
}

TEST_CASE(expand_values, softmax) {
    expect_expansion("graph predict(%x: f32[3,4,5]) {\n"
                     "  %y = softmax %x {axis=1}\n"
                     "  %z = log_softmax %x {axis=-1}\n"
                     "  return %y, %z\n}\n");
}

TEST_CASE(expand_values, layer_norm) {
    expect_expansion("graph predict(%x: f32[3,4,5], %g: f32[4,5]) {\n"
                     "  %y, %m, %r = layer_norm %x, %g {axis=1, "
                     "epsilon=0.01}\n"
                     "  return %y, %m, %r\n}\n");
}

TEST_CASE(expand_values, batch_norm) {
    static const char text[] =
        "graph train(%%x: f32[%s], %%g: f32[3], %%b: f32[3]) {\n"
        "  buffer %%m: f32[3] = 0.5, %%v: f32[3] = 2\n"
        "  %%y, %%p, %%q = batch_norm %%x, %%g, %%b, %%m, %%v {training=1, "
        "epsilon=0.01}\n"
        "  %%z = batch_norm %%x, %%g, %%b, %%m, %%v {training=0, "
        "epsilon=0.01}\n"
        "  write %%m = %%p\n  write %%v = %%q\n  return %%y, %%z\n}\n";
    static const char *const shapes[] = {"4,3", "4,3,2,3", "70,3,16,16"};
    for (int i = 0; i < 3; i++) {
        StrBuf sb = {0};
        sb_printf(&sb, text, shapes[i]);
        expect_expansion(sb.data);
        sb_free(&sb);
    }
}

TEST_CASE(expand_values, losses) {
    static const char *const calls[] = {
        "%l, %e = softmax_cross_entropy %x, %t, %w {axis=1, ignore_index=2, "
        "label_smoothing=0.2, reduction=\"mean\"}",
        "%l, %e = softmax_cross_entropy %x, %t {axis=1, ignore_index=1, "
        "reduction=\"mean\"}",
        "%l, %e = softmax_cross_entropy %x, %t {axis=1, label_smoothing=0.1, "
        "reduction=\"sum\"}",
        "%l, %e = softmax_cross_entropy %x, %t, %w {axis=1, "
        "reduction=\"none\"}",
        "%l = nll_loss %x, %t, %w {axis=1, ignore_index=0, "
        "reduction=\"mean\"}",
        "%l = nll_loss %x, %t {axis=1, reduction=\"none\"}"};
    for (int i = 0; i < 6; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph train(%%x: f32[6,3,4], %%t: i64[6,4], %%w: f32[3]) "
                  "{\n  %s\n  return %%l%s\n}\n",
                  calls[i], i < 4 ? ", %e" : "");
        expect_expansion(sb.data);
        sb_free(&sb);
    }
}

TEST_CASE(expand_values, reductions) {
    static const char *const ops[] = {"sum",  "mean", "sumsq",
                                      "prod", "max",  "min"};
    for (int i = 0; i < 6; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph predict(%%x: f32[70,300], %%y: f32[20000,2], "
                  "%%z: f32[1,7], %%w: f32[1024,512]) {\n"
                  "  %%a = reduce_%s %%x {axes=[0,1], keepdims=0}\n"
                  "  %%b = reduce_%s %%y {axes=[0], keepdims=1}\n"
                  "  %%c = reduce_%s %%z {axes=[0], keepdims=1}\n"
                  "  %%d = reduce_%s %%w {axes=[0,1], keepdims=0}\n"
                  "  return %%a, %%b, %%c, %%d\n}\n",
                  ops[i], ops[i], ops[i], ops[i]);
        expect_expansion(sb.data);
        expect_expansion_for(sb.data, for_gpus);
        sb_free(&sb);
    }
}

TEST_CASE(expand_values, dropout_and_split) {
    expect_expansion("graph train(%x: f32[40,9]) {\n"
                     "  state %rng: i64[2] = 3\n"
                     "  %d = dropout %x, %rng {ratio=0.3, salt=2}\n"
                     "  %a, %b = split %d {axis=1, sizes=[4,5]}\n"
                     "  return %a, %b\n}\n");
}

/* ---- constants ----------------------------------------------------------- */

/* Rows of a constant table that are none of it are found when they are read. */
TEST_CASE(simplify, rows_of_constants) {
    static const struct {
        const char *rows;
        bool folded;
    } cases[] = {
        {"0, 2", true}, {"-3, -1", true}, {"0, 3", false}, {"-4, 0", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        char text[300];
        bool folded = true;
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[2,2]) {\n"
                 "  const %%t: f32[3,2] = [1, 2, 3, 4, 5, 6]\n"
                 "  const %%i: i64[2] = [%s]\n"
                 "  %%r = gather %%t, %%i {axis=0}\n  %%y = mul %%r, %%x\n"
                 "  return %%y\n}\n",
                 cases[i].rows);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        Results before = {0}, after;
        if (cases[i].folded) before = results(a, g, EVAL_EXACT);
        run(a, m, "simplify,dce", none);
        for (int k = 0; k < g->order.len; k++)
            folded &= node_get(g, g->order.data[k])->op != OP_GATHER;
        CHECK_MSG(folded == cases[i].folded, "%s", text);
        if (folded && cases[i].folded) {
            after = results(a, g, EVAL_EXACT);
            expect_equal(&before, &after, 0, text);
        }
        arena_free(a);
    }
}

/* What is recognised by its numbers (1, 2, epsilon) is so whatever shape these
   have: %c of them repeats x, or does not. */
TEST_CASE(simplify, numbers_of_any_shape) {
    static const struct {
        const char *number, *lines;
    } rows[] = {
        {"1", "%y = mul %x, %c"},
        {"1", "%y = mul %c, %x"},
        {"1", "%y = div %x, %c"},
        {"0", "%y = add %x, %c"},
        {"0", "%y = add %c, %x"},
        {"0", "%y = sub %x, %c"},
        {"1", "%y = pow %x, %c"},
        {"2", "%y = pow %x, %c"},
        {"3", "%y = pow %x, %c"},
        {"0.5", "%a = abs %x\n  %y = pow %a, %c"},
        {"-1", "%a = exp %x\n  %y = pow %a, %c"},
        {"1", "%g = sigmoid %x\n  %a = sub %c, %g\n  %y = log %a"},
        {"1", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, %c\n"
              "  %e = mul %x, %d\n  %y = mul %e, 0.5"},
        {"0.5", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, 1\n"
                "  %e = mul %x, %d\n  %y = mul %e, %c"},
        {"0.5", "%a = div %x, 1.4142135\n  %b = erf %a\n  %d = add %b, 1\n"
                "  %e = mul %x, %c\n  %y = mul %e, %d"},
        {"1.4142135", "%a = div %x, %c\n  %b = erf %a\n  %d = add %b, 1\n"
                      "  %e = mul %x, %d\n  %y = mul %e, 0.5"},
        {"0.01", "%a = mul %x, %x\n  %b = reduce_mean %a {axes=[0]}\n"
                 "  %d = add %b, %c\n  %e = rsqrt %d\n  %y = mul %x, %e"},
        {"1", "%a = mul %x, %x\n  %b = reduce_mean %a {axes=[0]}\n"
              "  %d = add %b, 0.01\n  %e = sqrt %d\n  %f = div %c, %e\n"
              "  %y = mul %x, %f"},
        {"7", "%a = expand %x {shape=[3,5]}\n  %y = add %a, %c"},
        {"7", "%a = full {value=2} : f32[3,5]\n  %y = add %a, %c"},
        {"7", "%a = full {value=2} : f32[3,5]\n  %b = add %a, %c\n"
              "  %y = mul %x, %b"},
        {"7", "%a = greater %x, %c\n  %y = where %a, %x, %c"},
    };
    static const char *const shapes[] = {"", "1", "5", "1,1", "3,1", "2,1,5"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            Arena *a = arena_new();
            char text[500];
            snprintf(text, sizeof text,
                     "graph predict(%%x: f32[5]) {\n  const %%c: f32[%s] = "
                     "%s\n  %s\n  return %%y\n}\n",
                     shapes[k], rows[i].number, rows[i].lines);
            Module *m = parsed(a, text);
            const Graph *g = m->graphs.data[0];
            Results before = results(a, g, EVAL_EXACT);
            run(a, m, "simplify,cse,dce,inline,canon,simplify,cse,dce", none);
            Results after = results(a, g, EVAL_EXACT);
            expect_equal(&before, &after, 1e-5, text);
            arena_free(a);
        }
}

/* ---- moves --------------------------------------------------------------- */

static void put_ints(StrBuf *sb, const char *name, const int64_t *v, int n) {
    sb_printf(sb, "%s[", name);
    for (int i = 0; i < n; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)v[i]);
    sb_puts(sb, "]");
}

/* %x sliced along one axis, cast or not, and then of shape `to`. */
static void check_reshape_of_slice(const int64_t *starts, const int64_t *sizes,
                                   const int64_t *steps, const int64_t *to,
                                   int rank, bool cast) {
    Arena *a = arena_new();
    StrBuf sb = {0};
    sb_puts(&sb, "graph predict(%x: f32[4,6,5]) {\n  %s = slice %x {");
    put_ints(&sb, "starts=", starts, 3);
    put_ints(&sb, ", sizes=", sizes, 3);
    put_ints(&sb, ", steps=", steps, 3);
    sb_puts(&sb, "}\n");
    if (cast) {
        sb_puts(&sb, "  %c = cast %s : bf16");
        put_ints(&sb, "", sizes, 3);
    }
    sb_printf(&sb, "\n  %%y = reshape %%%s {", cast ? "c" : "s");
    put_ints(&sb, "shape=", to, rank);
    sb_puts(&sb, "}\n  return %y\n}\n");
    Module *m = parsed(a, sb.data);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_STORAGE);
    run(a, m, "canon,dce", none);
    Results after = results(a, g, EVAL_STORAGE);
    expect_equal(&before, &after, 0, sb.data);
    sb_free(&sb);
    arena_free(a);
}

/* An axis is split in all ways, or one of one is dropped. */
static void check_reshapes_of_slice(const int64_t *starts, const int64_t *sizes,
                                    const int64_t *steps) {
    for (int a = 0; a < 3; a++)
        for (int64_t q = 1; q <= 3; q++) {
            int64_t to[4];
            int n = 0;
            if (q == 1 ? sizes[a] != 1 : sizes[a] % q) continue;
            for (int d = 0; d < 3; d++) {
                if (d != a) to[n++] = sizes[d];
                if (d == a && q > 1) to[n++] = sizes[d] / q;
                if (d == a && q > 1) to[n++] = q;
            }
            for (int cast = 0; cast < 2; cast++)
                check_reshape_of_slice(starts, sizes, steps, to, n, cast);
        }
}

/* Each slice of each axis, and the same without the first of the next axis. */
TEST_CASE(canon, reshapes_of_slices) {
    static const int64_t whole[] = {4, 6, 5};
    for (int axis = 0; axis < 3; axis++)
        for (int64_t start = 0; start < whole[axis]; start++)
            for (int64_t size = 1; start + size <= whole[axis]; size++)
                for (int64_t step = 1; step <= 2; step++) {
                    int64_t starts[3] = {0}, steps[3] = {1, 1, 1}, sizes[3];
                    memcpy(sizes, whole, sizeof sizes);
                    starts[axis] = start;
                    steps[axis] = step;
                    sizes[axis] = (size + step - 1) / step;
                    check_reshapes_of_slice(starts, sizes, steps);
                    starts[(axis + 1) % 3]++;
                    sizes[(axis + 1) % 3]--;
                    check_reshapes_of_slice(starts, sizes, steps);
                }
}

/* What is written to a variable is computed in it, after all who read it. */
TEST_CASE(schedule, readers_come_before_new_content) {
    static const char text[] =
        "graph train(%x: f32[8,16]) {\n"
        "  param %w: f32[16,16] = 0.5, %b: f32[16] = 0.5\n"
        "  %v = mul %w, 0.875\n  %c = mul %b, 0.75\n"
        "  %y = matmul %x, %w\n  %z = matmul %y, %v {trans_b=1}\n"
        "  %o = add %z, %b\n"
        "  write %w = %v\n  write %b = %c\n  return %o\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lower(a, m, none);
    CHECK_EQ_INT(g->writes.len, 2);
    for (int i = 0; i < g->writes.len; i++) {
        const Value *var = value_get(g, g->writes.data[i].var);
        CHECK_EQ_INT(value_get(g, g->writes.data[i].value)->home, var->var);
    }
    run_in_memory(a, g, text);
    arena_free(a);
}

/* Three large values are made before the first is read: read at once, each lies
   where the one before was. */
TEST_CASE(schedule, takes_the_order_of_least_memory) {
    static const char text[] =
        "graph predict(%x: f32[16,16]) {\n"
        "  param %a: f32[16,1024] = 1, %b: f32[16,1024] = 2\n"
        "  param %c: f32[16,1024] = 3, %d: f32[1024,16] = 4\n"
        "  %xa = matmul %x, %a\n  %xb = matmul %x, %b\n"
        "  %xc = matmul %x, %c\n"
        "  %p = matmul %xa, %d\n  %q = matmul %xb, %d\n"
        "  %r = matmul %xc, %d\n  return %p, %q, %r\n}\n";
    enum { LARGE = 16 * 1024 * 4, SMALL = 16 * 16 * 4 };
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lower(a, m, none);
    CHECK_EQ_INT(g->arena_bytes, LARGE + 3 * SMALL);
    run_in_memory(a, g, text);
    arena_free(a);
}

/* %p and %q are the same work, but at one time both would lie beside %a and %b,
   which others read later: three of those four at most.  Where nothing else
   reads %a and %b, each becomes the other in place.                          */
TEST_CASE(launch, shares_where_little_more_lives) {
    static const char *const rest[] = {
        "  %s = matmul %a, %u\n  %t = matmul %b, %u\n"
        "  return %pr, %qr, %s, %t\n}\n",
        "  return %pr, %qr\n}\n"};
    enum { LARGE = 64 * 8192 * 4, SMALL = 64 * 64 * 4 };
    for (int alone = 0; alone < 2; alone++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        int launches = 0;
        sb_printf(&sb,
                  "graph predict(%%x: f32[64,64]) {\n"
                  "  param %%v: f32[64,8192] = 1, %%w: f32[8192,8192] = 1\n"
                  "  param %%u: f32[8192,64] = 1\n"
                  "  %%b = matmul %%x, %%v\n  %%a = matmul %%b, %%w\n"
                  "  %%p = tanh %%a\n  %%pr = matmul %%p, %%u\n"
                  "  %%q = tanh %%b\n  %%qr = matmul %%q, %%u\n%s",
                  rest[alone]);
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        lower(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++)
            launches += !g->groups.data[i].beside;
        CHECK_EQ_INT(g->groups.len - launches, alone);
        CHECK(g->arena_bytes <= (alone ? 2 : 3) * LARGE + 4 * SMALL);
        run_in_memory(a, g, sb.data);
        sb_free(&sb);
        arena_free(a);
    }
}

/* The squares of %a and of %b, of other shapes, are added up in one launch
   late, when %b is there: where %a is read later still.  Else it would stay for
   it. */
TEST_CASE(launch, folds_of_any_length_wait_for_each_other) {
    static const char *const rest[] = {
        "  %y = mul %a, %s\n  %z = mul %b, %s\n  return %y, %z\n}\n",
        "  return %s\n}\n"};
    enum { LARGE = 64 * 8192 * 4, SMALL = 64 * 1024 };
    for (int alone = 0; alone < 2; alone++) {
        Arena *a = arena_new();
        StrBuf sb = {0};
        int shared_folds = 0;
        sb_printf(&sb,
                  "graph predict(%%x: f32[64,64]) {\n"
                  "  param %%v: f32[64,8192] = 1, %%w: f32[8192,4000] = 1\n"
                  "  %%a = matmul %%x, %%v\n"
                  "  %%m = reduce_sumsq %%a {axes=[0,1]}\n"
                  "  %%b = matmul %%a, %%w\n"
                  "  %%n = reduce_sumsq %%b {axes=[0,1]}\n"
                  "  %%s = add %%m, %%n\n%s",
                  rest[alone]);
        Module *m = parsed(a, sb.data);
        const Graph *g = m->graphs.data[0];
        lower(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++)
            shared_folds += g->groups.data[i].beside &&
                            !g->groups.data[i].after &&
                            g->groups.data[i].kind == GROUP_ROW;
        CHECK_EQ_INT(shared_folds, !alone);
        CHECK(g->arena_bytes <= LARGE + LARGE / 2 + SMALL);
        run_in_memory(a, g, sb.data);
        sb_free(&sb);
        arena_free(a);
    }
}

/* Two kernels of rows alike share a launch, but not where they add up those
   rows as well: that takes two launches, one after the other. */
TEST_CASE(launch, sums_of_columns_stand_alone) {
    static const char *const columns[] = {
        "  return %r0, %r1\n}\n",
        "  %b0 = reduce_sum %g0 {axes=[0], keepdims=1}\n"
        "  %b1 = reduce_sum %g1 {axes=[0], keepdims=1}\n"
        "  return %r0, %r1, %b0, %b1\n}\n"};
    for (int both = 0; both < 2; both++) {
        Arena *a = arena_new();
        int rows = 0, beside = 0;
        char text[800];
        snprintf(text, sizeof text,
                 "graph predict(%%x0: f32[4096,64], %%x1: f32[4096,64]) {\n"
                 "  %%g0 = mul %%x0, %%x0\n"
                 "  %%r0 = reduce_max %%g0 {axes=[1], keepdims=1}\n"
                 "  %%g1 = mul %%x1, %%x1\n"
                 "  %%r1 = reduce_max %%g1 {axes=[1], keepdims=1}\n%s",
                 columns[both]);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        lower(a, m, for_gpus);
        for (int i = 0; i < g->groups.len; i++) {
            rows += g->groups.data[i].kind == GROUP_ROW;
            beside += g->groups.data[i].beside;
        }
        CHECK_MSG(rows == 2 && beside == !both, "%d kernels, %d beside", rows,
                  beside);
        run_in_memory(a, g, text);
        arena_free(a);
    }
}

#define LOSS                                                                   \
    "%l = matmul %x, %w\n%m = reduce_max %l {axes=[1], keepdims=1}\n"          \
    "%d = sub %l, %m\n%e = exp %d\n"                                           \
    "%s = reduce_sum %e {axes=[1], keepdims=1}\n%log = log %s\n"               \
    "%lse = add %log, %m\n%ld = sub %l, %lse !backward\n"                      \
    "%p = exp %ld !backward\n"                                                 \
    "%dx = matmul %p, %w {trans_b=1} !backward\n"

/* Kernels of a graph on either side of what makes one of two. */
TEST_CASE(fuse, kernels_join_up_to_a_bound) {
    static const struct {
        const char *inputs, *body;
        int cpu, gpu; /* kernels */
    } rows[] = {
        /* readers of one value; moved ones share a launch where that is dear */
        {"%x: f32[64,64]", "%a = exp %x\n%b = tanh %x\nreturn %a, %b", 1, 1},
        {"%x: f32[64,64]",
         "%a = exp %x\n%b = transpose %x {perm=[1,0]}\nreturn %a, %b", 2, 1},
        {"%x: f32[64,64]",
         "%b = transpose %x {perm=[1,0]}\n%a = exp %x\nreturn %a, %b", 2, 1},
        /* reductions that share nothing */
        {"%x: f32[2,1024], %z: f32[2,1024]",
         "%a = reduce_sum %x {axes=[1], keepdims=1}\n"
         "%b = reduce_sum %z {axes=[1], keepdims=1}\nreturn %a, %b",
         1, 2},
        {"%x: f32[3,683], %z: f32[3,683]",
         "%a = reduce_sum %x {axes=[1], keepdims=1}\n"
         "%b = reduce_sum %z {axes=[1], keepdims=1}\nreturn %a, %b",
         2, 2},
        /* a loss and its gradient, which lies where the scores were; but not
           where the host reads those */
        {"%x: f32[300,64], %w: f32[64,1000]", LOSS "return %log, %dx", 3, 3},
        {"%x: f32[300,64], %w: f32[64,1000]", LOSS "return %log, %dx, %l", 4,
         4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            Arena *a = arena_new();
            char text[600];
            snprintf(text, sizeof text, "graph predict(%s) {\n%s\n}\n",
                     rows[i].inputs, rows[i].body);
            Module *m = parsed(a, text);
            lower(a, m, gpu ? for_gpus : none);
            int want = gpu ? rows[i].gpu : rows[i].cpu;
            CHECK_MSG(m->graphs.data[0]->groups.len == want,
                      "%d kernels, not %d, for a %s of\n%s",
                      m->graphs.data[0]->groups.len, want, gpu ? "GPU" : "CPU",
                      text);
            arena_free(a);
        }
}

/* Two readers of a large gradient get it scaled, not each what scales it. */
TEST_CASE(fuse, gradients_are_stored_as_they_are_read) {
    static const char text[] =
        "graph predict(%x: f32[4096,64], %w: f32[64,1000], %c: "
        "f32[4096,1]) {\n" LOSS
        "%pd = sub %p, %c !backward\n%g = mul %pd, 0.25 !backward\n"
        "%gp = pad %g {pads=[0,0,0,8]} !backward\n"
        "%dg = matmul %gp, %x {trans_a=1} !backward\n"
        "%db = reduce_sum %g {axes=[0], keepdims=1} !backward\n"
        "return %log, %dg, %db\n}\n";
    for (int gpu = 0; gpu < 2; gpu++) {
        Arena *a = arena_new();
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        lower(a, m, gpu ? for_gpus : none);
        CHECK(value_get(g, graph_find_value(g, "g"))->offset >= 0);
        CHECK(value_get(g, graph_find_value(g, "pd"))->offset < 0);
        arena_free(a);
    }
}

/* ---- reductions in stages ------------------------------------------------ */

/* Where forward folds the rows of %x, a kernel of those rows may add them up as
   well, in as few columns as there are; backward is another kernel, and there
   that would keep two blocks of a GPU busy. */
TEST_CASE(stages, are_left_out_beside_rows_of_one_part) {
    static const char *const part[] = {"", " !backward"};
    for (int other = 0; other < 2; other++) {
        Arena *a = arena_new();
        int n = 0;
        char text[400];
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[4096,64], %%c: f32[4096,64]) {\n"
                 "  %%r = reduce_sum %%x {axes=[1], keepdims=1}\n"
                 "  %%g = mul %%x, %%c%s\n"
                 "  %%b = reduce_sum %%g {axes=[0], keepdims=1}%s\n"
                 "  return %%r, %%b\n}\n",
                 part[other], part[other]);
        Module *m = parsed(a, text);
        run(a, m, "inline,canon,reduce,cse,dce", for_gpus);
        const Graph *g = m->graphs.data[0];
        for (int i = 0; i < g->order.len; i++)
            n += op_info[node_get(g, g->order.data[i])->op].kind == KIND_REDUCE;
        CHECK_EQ_INT(n, other ? 3 : 2);
        arena_free(a);
    }
}

/* %p and %q have the bias in common, which no kernel of theirs shares. */
TEST_CASE(stages, are_not_left_out_for_what_is_spread) {
    Arena *a = arena_new();
    Module *m = parsed(
        a, "graph predict(%x: f32[4096,64], %c: f32[4096,64], %v: f32[64]) {\n"
           "  %p = add %x, %v\n  %q = add %c, %v\n"
           "  %r = reduce_sum %p {axes=[1], keepdims=1}\n"
           "  %b = reduce_sum %q {axes=[0], keepdims=1}\n"
           "  return %r, %b\n}\n");
    int n = 0;
    run(a, m, "inline,canon,reduce,cse,dce", for_gpus);
    const Graph *g = m->graphs.data[0];
    for (int i = 0; i < g->order.len; i++)
        n += op_info[node_get(g, g->order.data[i])->op].kind == KIND_REDUCE;
    CHECK_EQ_INT(n, 3);
    arena_free(a);
}

/* Few long rows are cut into pieces for all multiprocessors, but each is worth
   a block of threads: eight elements of each. */
TEST_CASE(stages, pieces_are_worth_a_block) {
    enum { ROWS = 3, SMS = 132, LEAST = 256 * 8 };
    for (int64_t n = 1 << 12; n <= 1 << 24; n *= 2) {
        Arena *a = arena_new();
        int64_t pieces = 0;
        char text[200];
        snprintf(text, sizeof text,
                 "graph predict(%%x: f32[%d,%lld]) {\n"
                 "  %%y = reduce_sum %%x {axes=[1], keepdims=1}\n"
                 "  return %%y\n}\n",
                 ROWS, (long long)n);
        Module *m = parsed(a, text);
        run(a, m, "inline,canon,reduce,cse,dce", for_gpus);
        const Graph *g = m->graphs.data[0];
        for (int i = 0; i < g->order.len && !pieces; i++) {
            const Node *x = node_get(g, g->order.data[i]);
            if (x->op == OP_REDUCE_SUM)
                pieces = type_count(value_type(g, x->out[0])) / ROWS;
        }
        CHECK_MSG(pieces == 1 || n / pieces >= LEAST, "%lld pieces of %lld",
                  (long long)pieces, (long long)n);
        CHECK_MSG(n < SMS * LEAST || ROWS * pieces >= SMS,
                  "%lld pieces of %lld", (long long)pieces, (long long)n);
        arena_free(a);
    }
}

/* A kernel of rows that adds up columns as well has their sums when it ends:
   what reads %c is another one. */
TEST_CASE(stages, sums_of_columns_are_for_others) {
    static const char text[] =
        "graph predict(%x: f32[64,300]) {\n"
        "  %r = reduce_sum %x {axes=[1], keepdims=1}\n"
        "  %c = reduce_sum %x {axes=[0], keepdims=1}\n"
        "  %d = sub %x, %c\n  %e = reduce_sum %d {axes=[1], keepdims=1}\n"
        "  %f = mul %e, %r\n  return %f\n}\n";
    Arena *a = arena_new();
    int made = -1, reads = -1;
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    lower(a, m, for_gpus);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        const char *name = n->nout ? value_get(g, n->out[0])->name : "";
        if (!strcmp(name, "c")) made = n->group;
        if (!strcmp(name, "d")) reads = n->group;
    }
    CHECK_MSG(made >= 0 && reads > made, "groups %d and %d", made, reads);
    run_in_memory(a, g, text);
    arena_free(a);
}

/* ---- attention ----------------------------------------------------------- */

/* The values of `text` before and after pass attend; how many it has found, of
   gradients as well. */
static int attended(const char *text) {
    Arena *a = arena_new();
    int found = 0;
    Module *m = parsed(a, text);
    if (strstr(text, " grad ")) run(a, m, "grad", none);
    const Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    run(a, m, "inline,canon,simplify,cse,dce,attend,dce", none);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text);
    for (int i = 0; i < g->order.len; i++)
        found += node_get(g, g->order.data[i])->op == OP_ATTEND ||
                 node_get(g, g->order.data[i])->op == OP_ATTEND_GRAD;
    arena_free(a);
    return found;
}

/* Of four queries and keys, which are hidden from which: only triangles are
   taken where keys are few. */
TEST_CASE(attend, masks_hide_what_they_hid) {
    static const struct {
        bool triangle;
        const char *values;
    } masks[] = {
        {1, "0, -inf, -inf, -inf, 0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, 0, -inf, 1, 0, 0, 0, -inf, 0, 0, 0, 0"},
        {0, "0, -inf, -inf, -inf, 0, -inf, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, "
            "0"},
        {1, "0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0, 0, 0, 0, 0"},
        {0, "0, 0, -inf, -inf, 0, 0, 0, -inf, 0, 0, 0, 0, 0, 0, 0, 0.5"}};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,4,3], %%k: f32[2,3,4], %%v: "
                  "f32[2,4,5]) {\n  const %%m: f32[4,4] = [%s]\n"
                  "  %%s = matmul %%q, %%k\n  %%a = add %%s, %%m\n"
                  "  %%p = softmax %%a\n  %%y = matmul %%p, %%v\n"
                  "  return %%y\n}\n",
                  masks[i].values);
        CHECK_EQ_INT(attended(sb.data), masks[i].triangle);
        sb_free(&sb);
    }
}

/* The same written with positions, of columns %j and rows %i; %i1 and %j1 are
   `more` behind them.  where: what is taken where the order holds, or not. */
static void check_order(const char *dtype, const char *more, const char *order,
                        const char *where, bool taken) {
    StrBuf sb = {0};
    sb_printf(&sb,
              "graph eval(%%q: f32[2,4,3], %%k: f32[2,3,4], %%v: f32[2,4,5]) "
              "{\n  const %%low: f32[] = -inf\n"
              "  %%i = iota {axis=0} : %s[4,1]\n"
              "  %%j = iota {axis=1} : %s[1,4]\n"
              "  %%i1 = add %%i, %s\n  %%j1 = add %%j, %s\n"
              "  %%s = matmul %%q, %%k\n  %%c = %s\n"
              "  %%a = where %%c, %s\n  %%p = softmax %%a\n"
              "  %%y = matmul %%p, %%v\n  return %%y\n}\n",
              dtype, dtype, more, more, order, where);
    CHECK_MSG(attended(sb.data) == taken, "%s + %s: %s", dtype, more, order);
    sb_free(&sb);
}

/* What is seen, then what is hidden. */
TEST_CASE(attend, orders_hide_what_they_hid) {
    enum { SEEN = 7 };
    static const char *const orders[] = {
        "less_equal %j, %i",     "less %j, %i1",       "greater_equal %i, %j",
        "greater %i1, %j",       "less_equal %j, %i1", "less_equal %j1, %i1",
        "greater_equal %i1, %j", "greater %j, %i",     "greater_equal %j, %i1",
        "less %i, %j",           "less_equal %i1, %j", "greater %j, %i1",
        "greater_equal %j1, %i1"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        check_order("i32", "1:i32", orders[i],
                    i < SEEN ? "%s, %low" : "%low, %s", true);
}

/* Places beside the integers from 0 on: between them, beyond all keys, too far
   off to be exact; taken or not, they hide what they hid. */
TEST_CASE(attend, orders_of_any_places_hide_what_they_hid) {
    check_order("f32", "0.5", "less %j, %i1", "%s, %low", false);
    check_order("f32", "0.5", "less_equal %j, %i1", "%s, %low", false);
    check_order("f32", "-0.5", "greater_equal %i, %j1", "%s, %low", false);
    check_order("f32", "-0.5", "greater %i, %j1", "%s, %low", false);
    check_order("f32", "1e30", "less_equal %j1, %i1", "%s, %low", false);
    check_order("f32", "nan", "less_equal %j, %i1", "%s, %low", false);
    check_order("i32", "100:i32", "less_equal %j, %i1", "%s, %low", true);
    check_order("i64", "1000000000:i64", "less %j, %i1", "%s, %low", true);
    check_order("i64", "4611686018427387904:i64", "less_equal %j, %i1",
                "%s, %low", false);
    check_order("i8", "127:i8", "less_equal %j, %i1", "%s, %low", false);
}

/* What may be done to scores %s between their product and the softmax of %a,
   and what the routine has no place for; neither changes a value or a gradient.
 */
TEST_CASE(attend, scores_are_what_they_were) {
    static const struct {
        bool taken;
        const char *lines;
    } rows[] = {
        {1, "%a = mul %s, 0.3"},
        {1, "%a = div %s, 3"},
        {1, "%t = div %s, 3\n  %a = mul 2, %t"},
        {0, "%a = div 3, %s"},
        {1, "%a = add %s, 0.5"}, /* a mask for all */
        {1, "%a = add %s, %m"},
        {1, "%t = mul %s, 0.3\n  %a = add %m, %t"},
        {0, "%t = add %s, %m\n  %a = mul %t, 0.3"},
        {0, "%t = add %s, %m\n  %a = add %t, %n"},
        {1, "%a = add %s, %n"},
        {1, "%a = add %s, %keys"},
        {0, "%a = add %s, %twice"},
        {1, "%a = where %seen, %s, %low"},
        {1, "%a = where %seen, %low, %s"},
        {0, "%a = where %seen, %s, -1e31"},
        {0, "%a = where %seen, %s, -5"},
        {0, "%a = where %seen, %s, %s2"},
        {0, "%t = where %seen, %s, %low\n  %a = add %t, %m"},
        {0, "%t = add %s, %m\n  %a = where %seen, %t, %low"},
        {0, "%t = where %seen, %s, %low\n  %a = where %few, %t, %low"},
        {1, "%t = mul %s, 0.3\n  %a = where %seen, %t, %low"},
        {0, "%t = where %seen, %s, %low\n  %a = mul %t, 0.3"},
        {1, "%t = where %order, %s, %low\n  %a = mul %t, 0.3"},
        {1, "%t = where %order, %s, %low\n  %a = add %t, %m"},
        {1, "%t = where %order, %s, -1e31\n  %a = mul %t, 3"},
        {0, "%t = where %order, %s, -1e31\n  %a = add %t, %m"},
        {0, "%t = where %order, %low, %s\n  %a = add %t, %m"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int grads = 0; grads < 2; grads++) {
            StrBuf sb = {0};
            sb_printf(
                &sb,
                "graph eval(%%q: f32[2,2,3,4], %%k: f32[2,2,4,96], %%v: "
                "f32[2,2,96,5], %%m: f32[3,96], %%n: f32[2,1,1,96], %%keys: "
                "f32[96], %%twice: f32[1,1,2,3,96], %%s2: f32[2,2,3,96]) {\n"
                "  const %%low: f32[] = -inf\n"
                "  %%i = iota {axis=0} : i32[3,1]\n"
                "  %%j = iota {axis=1} : i32[1,96]\n"
                "  %%order = less_equal %%j, %%i\n"
                "  %%seen = greater %%m, 0.3\n  %%few = greater %%n, 0.3\n"
                "  %%s = matmul %%q, %%k\n  %s\n"
                "  %%p = softmax %%a\n  %%y = matmul %%p, %%v\n",
                rows[i].lines);
            if (grads)
                sb_puts(&sb, "  %c = sin %y\n  %gq, %gk, %gv = grad %c, %q, "
                             "%k, %v\n  return %gq, %gk, %gv\n}\n");
            else
                sb_puts(&sb, "  return %y\n}\n");
            CHECK_MSG(attended(sb.data) == rows[i].taken * (1 + grads), "%s",
                      sb.data);
            sb_free(&sb);
        }
}

/* What has fewer or more numbers than there are scores: dropout's that heads or
   queries share, and what repeats all of it. */
TEST_CASE(attend, scores_are_not_repeated) {
    static const struct {
        bool taken;
        const char *lines;
    } rows[] = {
        {1, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,1,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[1,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,1,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,3,1]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[3,2,2,3,96]\n  %a = mul %s, 1"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = mul %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = div %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n  %a = add %s, %many"},
        {0, "%u = rand_uniform %r : f32[2,2,3,96]\n"
            "  %i = iota {axis=3} : i32[3,1,1,3,1]\n"
            "  %j = iota {axis=4} : i32[1,1,1,1,96]\n"
            "  %order = less_equal %j, %i\n  %a = where %order, %s, %low"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int drops = 0; drops < 2; drops++) {
            StrBuf sb = {0};
            sb_printf(&sb,
                      "graph eval(%%q: f32[2,2,3,4], %%k: f32[2,2,4,96], %%v: "
                      "f32[2,2,96,5], %%r: i64[2]) {\n"
                      "  const %%low: f32[] = -inf\n"
                      "  const %%many: f32[3,1,1,1,1] = 0.5\n"
                      "  %%s = matmul %%q, %%k\n  %s\n"
                      "  %%p = softmax %%a\n"
                      "  %%c = greater_equal %%u, 0.5\n"
                      "  %%w = where %%c, 2, 0\n  %%d = mul %%p, %%w\n"
                      "  %%y = matmul %s, %%v\n  return %%y\n}\n",
                      rows[i].lines, drops ? "%d" : "%p");
            bool ignored = i > 0 && i < 7 && !drops;
            CHECK_MSG(attended(sb.data) == (rows[i].taken || ignored), "%s",
                      sb.data);
            sb_free(&sb);
        }
}

/* A mask that is a product has the scores' gradient, too: what that is
   multiplied by there is no part of the routine. */
TEST_CASE(attend, products_of_a_mask_are_its_own) {
    static const char *const asked[] = {
        "%q", "%q2", "%q2, %v", "%q2, %k, %v", "%k2, %k, %v", "%k2, %q, %v"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        StrBuf sb = {0};
        sb_puts(&sb,
                "graph eval(%q: f32[2,2,96,4], %k: f32[2,2,4,96], %v: "
                "f32[2,2,96,5], %q2: f32[2,2,96,4], %k2: f32[2,2,4,96]) {\n"
                "  %s = matmul %q, %k\n  %t = matmul %q2, %k2\n"
                "  %a = add %s, %t\n  %p = softmax %a\n"
                "  %y = matmul %p, %v\n  %c = sin %y\n  ");
        int n = 1;
        for (const char *s = asked[i]; *s; s++) n += *s == ',';
        for (int k = 0; k < n; k++) sb_printf(&sb, "%s%%g%d", k ? ", " : "", k);
        sb_printf(&sb, " = grad %%c, %s\n  return ", asked[i]);
        for (int k = 0; k < n; k++) sb_printf(&sb, "%s%%g%d", k ? ", " : "", k);
        sb_puts(&sb, "\n}\n");
        CHECK_MSG(attended(sb.data) == 2 * !strchr(asked[i], '2'), "%s",
                  asked[i]);
        sb_free(&sb);
    }
}

/* Backward reads what is kept of the result moved, if it is moved back with
   rows as they are. */
TEST_CASE(attend, results_may_be_moved) {
    static const char *const perms[] = {"0,1,2,3", "0,2,1,3", "1,0,2,3",
                                        "2,0,1,3", "3,1,0,2"};
    for (size_t i = 0; i < sizeof perms / sizeof *perms; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,3,4,6], %%k: f32[2,3,6,96], %%v: "
                  "f32[2,3,96,5]) {\n"
                  "  %%s = matmul %%q, %%k\n  %%p = softmax %%s\n"
                  "  %%y = matmul %%p, %%v\n"
                  "  %%z = transpose %%y {perm=[%s]}\n  %%c = sin %%z\n"
                  "  %%gq, %%gk, %%gv = grad %%c, %%q, %%k, %%v\n"
                  "  return %%c, %%gq, %%gk, %%gv\n}\n",
                  perms[i]);
        CHECK_MSG(attended(sb.data) == 2, "%s", perms[i]);
        sb_free(&sb);
    }
}

/* Then the routine would only do again what is done anyway.  %o: as PyTorch
   exports it, 0 where all is hidden. */
TEST_CASE(attend, probabilities_that_others_read_stay) {
    static const char *const results_of[] = {"%y",       "%o",     "%y, %p",
                                             "%y, %s",   "%o, %p", "%o, %s",
                                             "%o, %nan", "%o, %w"};
    for (int i = 0; i < 8; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,3,4], %%k: f32[2,4,96], %%v: "
                  "f32[2,96,5]) {\n  %%s = matmul %%q, %%k\n"
                  "  %%p = softmax %%s\n  %%y = matmul %%p, %%v\n"
                  "  %%nan = isnan %%p\n  %%w = where %%nan, 0, %%p\n"
                  "  %%o = matmul %%w, %%v\n  return %s\n}\n",
                  results_of[i]);
        CHECK_MSG(attended(sb.data) == (i < 2), "%s", results_of[i]);
        sb_free(&sb);
    }
}

/* A softmax written out, and the same times a number. */
TEST_CASE(attend, rows_that_add_up_to_1_are_recognised) {
    for (int number = 1; number < 3; number++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,3,4], %%k: f32[2,4,96], %%v: "
                  "f32[2,96,5]) {\n  %%s = matmul %%q, %%k\n"
                  "  %%t = reduce_max %%s {axes=[2], keepdims=1}\n"
                  "  %%d = sub %%s, %%t\n  %%e = exp %%d\n"
                  "  %%sum = reduce_sum %%e {axes=[2], keepdims=1}\n"
                  "  %%by = div %d, %%sum\n  %%p = mul %%e, %%by\n"
                  "  %%y = matmul %%p, %%v\n  return %%y\n}\n",
                  number);
        CHECK_MSG(attended(sb.data) == (number == 1), "%s", sb.data);
        sb_free(&sb);
    }
}

/* A softmax that gives zeros where all is hidden, and its like with another
   number in one place, which is another function. */
TEST_CASE(attend, only_what_hides_rows_is_recognised) {
    static const char *const numbers[][4] = {{"-inf", "0", "0", "1"},
                                             {"-5", "0", "0", "1"},
                                             {"-inf", "1", "0", "1"},
                                             {"-inf", "0", "0.5", "1"},
                                             {"-inf", "0", "0", "2"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        StrBuf sb = {0};
        sb_printf(&sb,
                  "graph eval(%%q: f32[2,3,4], %%k: f32[2,4,96], %%v: "
                  "f32[2,96,5]) {\n  const %%low: f32[] = %s\n"
                  "  %%s = matmul %%q, %%k\n"
                  "  %%t = reduce_max %%s {axes=[2], keepdims=1}\n"
                  "  %%seen = greater %%t, %%low\n"
                  "  %%top = where %%seen, %%t, %s\n"
                  "  %%d = sub %%s, %%top\n  %%e = exp %%d\n"
                  "  %%sum = reduce_sum %%e {axes=[2], keepdims=1}\n"
                  "  %%some = greater %%sum, %s\n"
                  "  %%by = where %%some, %%sum, %s\n"
                  "  %%p = div %%e, %%by\n  %%y = matmul %%p, %%v\n"
                  "  return %%y\n}\n",
                  numbers[i][0], numbers[i][1], numbers[i][2], numbers[i][3]);
        CHECK_MSG(attended(sb.data) == (i == 0), "%s", sb.data);
        sb_free(&sb);
    }
}

/* ---- gradients as values ------------------------------------------------- */

/* Wherever the gradient stands in the function, and however deep that is. */
TEST_CASE(grad, functions_ask_for_none) {
    static const char *const functions[] = {
        "def f(x) -> y class full {\n  y = grad(x, x)\n}\n",
        "def f(x) -> y class full {\n  z = x * x\n  g = grad(z, x)\n"
        "  y = g + x\n}\n",
        "def h(x) -> y class full {\n  y = grad(x, x)\n}\n"
        "def f(x) -> y class full {\n  y = h(x) + 1\n}\n",
        "def h(x) -> y class full {\n  y = x * x\n}\n"
        "def f(x) -> y class full {\n  y = h(x) + 1\n}\n"};
    enum { N = sizeof functions / sizeof *functions };
    for (int i = 0; i < N; i++) {
        char text[400];
        Arena *a = arena_new();
        Options o;
        Diag d = {0};
        snprintf(text, sizeof text,
                 "%sgraph forward(%%x: f32[2]) {\n  %%y = f %%x\n"
                 "  %%z = grad %%y, %%x\n  return %%z\n}\n",
                 functions[i]);
        options_init(&o, a);
        Status s = run_passes(parsed(a, text), &d, &o, "grad", false);
        CHECK_MSG((s == OK) == (i == N - 1), "%s: %s", text,
                  d.text.data ? d.text.data : "");
        if (s != OK) CHECK_HAS(d.text.data, "grad stands inside function");
        sb_free(&d.text);
        arena_free(a);
    }
}

/* y = x x z has the gradients 2 x z and x x, in whatever place of the results
   and in whichever graph they stand. */
TEST_CASE(grad, results_may_be_gradients) {
    static const char *const orders[] = {"%y, %gx, %gz", "%gx, %y, %gz",
                                         "%gz, %gx, %y", "%gz", "%gx"};
    enum { N = 5, GRAPHS = 2 };
    StrBuf sb = {0};
    Arena *a = arena_new();
    for (int k = 0; k < N * GRAPHS; k++)
        sb_printf(
            &sb,
            "graph g%d(%%x: f32[3], %%z: f32[3]) {\n  %%s = mul %%x, %%x\n"
            "  %%y = mul %%s, %%z\n  %%gx, %%gz = grad %%y, %%x, %%z\n"
            "  return %s\n}\n",
            k, orders[k % N]);
    Module *m = parsed(a, sb.data);
    run(a, m, "grad,inline,dce", none);
    for (int k = 0; k < N * GRAPHS; k++) {
        const Graph *g = m->graphs.data[k];
        Evaluator *e = eval_new(g, a, EVAL_EXACT);
        Diag d = {0};
        double in[2][3];
        for (int i = 0; i < 2; i++) {
            EvalTensor *t =
                eval_tensor_new(a, value_get(g, g->inputs.data[i])->type);
            for (int j = 0; j < 3; j++) t->f[j] = in[i][j] = 0.5 + i + 3 * j;
            eval_bind(e, g->inputs.data[i], t);
        }
        if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
        const char *name = orders[k % N] + 1;
        for (int i = 0; i < g->outputs.len;
             i++, name += strcspn(name, "%") + 1) {
            const EvalTensor *t = eval_get(e, g->outputs.data[i].value);
            for (int j = 0; j < 3; j++) {
                double x = in[0][j], z = in[1][j];
                CHECK_NEAR(t->f[j],
                           *name == 'y'     ? x * x * z
                           : name[1] == 'x' ? 2 * x * z
                                            : x * x,
                           1e-12);
            }
        }
    }
    sb_free(&sb);
    arena_free(a);
}

/* ---- sums over ranks ----------------------------------------------------- */

/* Of four layers the last has its gradient first, and its sum begins while the
   others are made. */
TEST_CASE(buckets, are_ready_one_after_the_other) {
    static const char text[] =
        "graph forward(%x: f32[8,16]) {\n"
        "  param %a: f32[16,16] = 0.5, %b: f32[16,16] = 0.5\n"
        "  param %c: f32[16,16] = 0.5, %d: f32[16,16] = 0.5\n"
        "  %p = matmul %x, %a\n  %q = tanh %p\n  %r = matmul %q, %b\n"
        "  %s = tanh %r\n  %t = matmul %s, %c\n  %u = tanh %t\n"
        "  %v = matmul %u, %d\n  return %v\n}\n";
    static const char *const flags[][2] = {{"--comm-bucket", "1024"},
                                           {"--loss", "mse"},
                                           {"--precision", "fp32"},
                                           {"--target", "cpu"}};
    enum { LAYERS = 4 };
    Arena *a = arena_new();
    Options o;
    Diag d = {0};
    Module *m;
    bool used;
    int ready[LAYERS + 1] = {0}, seen = 0;
    options_init(&o, a);
    for (int i = 0; i < 4; i++)
        REQUIRE(options_set(&o, &d, flags[i][0], flags[i][1], &used) == OK);
    if (parse_module(a, &d, "test.amp", text, strlen(text), &m) != OK ||
        run_pipeline(m, &d, &o, STAGE_PLANNED, false) != OK)
        FAIL("%s", d.text.data);
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; k < g->writes.len && !seen; k++) {
            const Write *w = &g->writes.data[k];
            const Value *v = value_get(g, w->value);
            if (!w->bucket) continue;
            REQUIRE(w->bucket <= LAYERS && v->kind == VK_RESULT);
            ready[w->bucket] = node_get(g, v->def)->group + 1;
        }
        seen += ready[LAYERS] > 0;
    }
    for (int i = 1; i <= LAYERS; i++) CHECK(ready[i] > ready[i - 1]);
    arena_free(a);
}

/* Three sums that wait for nothing are one: side by side, and made before what
   reads the first of them, though that would free memory; the fourth waits. */
TEST_CASE(rank_sums, are_made_as_one) {
    static const char text[] =
        "graph update(%x: f32[512], %y: f32[256], %z: f32[128]) {\n"
        "  %u = tanh %x\n  %a = rank_sum %u\n"
        "  %p = reduce_sum %a {axes=[0]}\n"
        "  %v = tanh %y\n  %b = rank_sum %v\n"
        "  %q = reduce_sum %b {axes=[0]}\n"
        "  %w = tanh %z\n  %c = rank_sum %w\n"
        "  %cp = mul %c, %p\n  %r = mul %cp, %q\n  %d = rank_sum %r\n"
        "  return %p, %q, %d, %u, %v, %w\n}\n";
    enum { SUMS = 4 };
    Arena *a = arena_new();
    ValueId sums[SUMS];
    int64_t least = INT64_MAX, end = 0;
    int place[SUMS], n = 0, reader = INT32_MAX;
    Module *m = parsed(a, text);
    const Graph *g = m->graphs.data[0];
    lower(a, m, none);
    for (int i = 0; i < g->order.len; i++) {
        const Node *node = node_get(g, g->order.data[i]);
        if (node->op == OP_REDUCE_SUM && i < reader) reader = i;
        if (node->op != OP_RANK_SUM) continue;
        REQUIRE(n < SUMS);
        sums[n] = node->out[0];
        place[n++] = i;
    }
    REQUIRE(n == SUMS);
    CHECK(place[2] < reader && reader < place[3]);
    for (int i = 0; i < SUMS - 1; i++) {
        int64_t at = value_get(g, sums[i])->offset;
        int64_t to = at + 4 * type_count(value_type(g, sums[i]));
        if (at < least) least = at;
        if (to > end) end = to;
    }
    CHECK_EQ_INT(end - least, 2048 + 1024 + 512);
    run_in_memory(a, g, text);
    arena_free(a);
}

/* ---- memory -------------------------------------------------------------- */

/* Of more values than are sorted: %p of 4 KB lies where %a and %b were, side by
   side, of 1 and 3 KB. */
TEST_CASE(memplan, neighbours_that_end_leave_one_gap) {
    enum { TIMES = 850 };
    Arena *a = arena_new();
    StrBuf sb = {0};
    sb_puts(&sb, "graph predict(%x: f32[16,48]) {\n"
                 "  param %u: f32[48,16] = 0.5, %v: f32[48,48] = 0.5\n"
                 "  param %w: f32[48,64] = 0.5, %t: f32[64,48] = 0.5\n"
                 "  %c0 = matmul %x, %v\n");
    for (int i = 0; i < TIMES; i++)
        sb_printf(&sb,
                  "  %%a%d = matmul %%c%d, %%u\n  %%b%d = matmul %%a%d, %%u "
                  "{trans_b=1}\n"
                  "  %%d%d = matmul %%a%d, %%b%d\n  %%p%d = matmul %%d%d, %%w\n"
                  "  %%c%d = matmul %%p%d, %%t\n",
                  i, i, i, i, i, i, i, i, i, i + 1, i);
    sb_printf(&sb, "  return %%c%d\n}\n", TIMES);
    Module *m = parsed(a, sb.data);
    lower(a, m, none);
    CHECK_EQ_INT(m->graphs.data[0]->arena_bytes, 7 << 10);
    sb_free(&sb);
    arena_free(a);
}

/* %v takes the place of %s, which dies there; %w must not, though %v ends with
   the same launch. */
TEST_CASE(memplan, a_place_is_taken_once) {
    static const char text[] =
        "graph predict(%x: f32[64,50], %y: f32[64,100]) on cuda {\n"
        "  group row {\n"
        "    %s = reduce_sum %x {axes=[1], keepdims=1} : f32[64,1]\n  }\n"
        "  group row {\n"
        "    %t = reduce_sum %y {axes=[1], keepdims=1} : f32[64,1]\n"
        "    %u = add %t, %s : f32[64,1]\n"
        "    %v = exp %u : f32[64,1]\n    %w = tanh %u : f32[64,1]\n  }\n"
        "  group row after {\n"
        "    %p = reduce_sum %v {axes=[0], keepdims=1} : f32[1,1]\n"
        "    %q = reduce_max %w {axes=[0], keepdims=1} : f32[1,1]\n"
        "    %r = add %p, %q : f32[1,1]\n  }\n"
        "  return %r\n}\n";
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    run(a, m, "memplan", for_gpus);
    const Graph *g = m->graphs.data[0];
    CHECK_EQ_INT(g->arena_bytes, 768); /* %v, %w and %r */
    run_in_memory(a, g, text);
    arena_free(a);
}

/* ---- rows that begin anywhere -------------------------------------------- */

/* m, n and k of the product %y that has been padded. */
static void padded_to(const Graph *g, bool ta, bool tb, int64_t to[3]) {
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_get(g, g->order.data[i]);
        if (n->op != OP_MATMUL) continue;
        const Type *x = value_type(g, n->in[0]), *w = value_type(g, n->in[1]);
        to[0] = x->dim[ta ? 1 : 0];
        to[1] = w->dim[tb ? 0 : 1];
        to[2] = x->dim[ta ? 0 : 1];
        CHECK_EQ_INT(w->dim[tb ? 1 : 0], to[2]);
    }
}

/* What memory is read along is a multiple of 8 numbers of two bytes; what it
   is not read along stays, and so does what is one already. */
TEST_CASE(align, what_rows_are_made_of) {
    static const int64_t odd[] = {1030, 1027, 1031},
                         even[] = {1032, 1032, 1032};
    for (int kind = 0; kind < 8; kind++) {
        bool ta = kind & 1, tb = kind & 2;
        const int64_t *n = kind & 4 ? even : odd;
        Arena *a = arena_new();
        StrBuf sb = {0};
        int64_t to[3] = {0};
        sb_printf(&sb,
                  "graph predict(%%x: bf16[%d,%d], %%w: bf16[%d,%d]) {\n"
                  "  %%y = matmul %%x, %%w {trans_a=%d, trans_b=%d}\n"
                  "  return %%y\n}\n",
                  (int)n[ta ? 2 : 0], (int)n[ta ? 0 : 2], (int)n[tb ? 1 : 2],
                  (int)n[tb ? 2 : 1], ta, tb);
        Module *m = parsed(a, sb.data);
        run(a, m, "inline,canon,align,cse,dce", for_gpus);
        padded_to(m->graphs.data[0], ta, tb, to);
        CHECK_EQ_INT(to[0], ta ? 1032 : n[0]);
        CHECK_EQ_INT(to[1], 1032); /* the result's, whatever the operand's */
        CHECK_EQ_INT(to[2], !ta || tb ? 1032 : n[2]);
        sb_free(&sb);
        arena_free(a);
    }
}

/* What else reads the rows that a product reads longer: values stay, and where
   zeros stay behind the columns it reads the longer ones, too. */
TEST_CASE(align, other_readers) {
    static const struct {
        const char *x;
        bool longer;
    } rows[] = {
        {"mul %a, %b", false},
        {"mul %b, %a", false},
        {"mul %a, %column", true},
        {"mul %column, %a", true},
        {"mul %a, %line", false},
        {"mul %line, %a", false},
        {"mul %a, 3", true},
        {"cast %a : f32[6,1027]", true},
        {"where %mask, %a, 0", false},
        {"where %some, %a, 0", true},
        {"where %some, 0, %a", true},
        {"where %some, %a, 1", false},
        {"where %some, %a, %b", false},
        {"where %some, %column, %a", false},
        {"add %a, 1", false},
        {"exp %a", false},
        {"reduce_sum %a {axes=[1], keepdims=1}", true},
        {"reduce_sum %a {axes=[0], keepdims=1}", true},
        {"reduce_max %a {axes=[1], keepdims=1}", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        char text[900];
        bool longer = false;
        snprintf(text, sizeof text,
                 "graph predict(%%i: bf16[6,1027], %%b: bf16[6,1027], "
                 "%%line: bf16[1,1027], %%column: bf16[6,1], "
                 "%%w: bf16[1027,5]) {\n"
                 "  %%a = neg %%i\n  %%y = matmul %%a, %%w\n"
                 "  %%mask = greater %%a, 0\n  %%some = greater %%column, 0\n"
                 "  %%x = %s\n  return %%y, %%x\n}\n",
                 rows[i].x);
        Module *m = parsed(a, text);
        const Graph *g = m->graphs.data[0];
        run(a, m, "inline,canon,dce", for_gpus);
        Results before = results(a, g, EVAL_STORAGE);
        run(a, m, "align,cse,dce", for_gpus);
        Results after = results(a, g, EVAL_STORAGE);
        expect_equal(&before, &after, 0, text);
        const Node *x =
            node_get(g, value_get(g, graph_find_value(g, "x"))->def);
        for (int k = 0; k < x->nin; k++) {
            const Value *v = value_get(g, x->in[k]);
            longer |=
                v->kind == VK_RESULT && node_get(g, v->def)->op == OP_SLICE;
        }
        CHECK_MSG(longer == rows[i].longer, "%s", rows[i].x);
        arena_free(a);
    }
}
