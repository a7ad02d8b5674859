/* SPDX-License-Identifier: Apache-2.0 */
/* backend_passes_test.c: expand, fuse, schedule and memplan change no value.

   Random graphs go through the passes, fused and unfused, in source order
   and shuffled; then the planned graph is executed on a model of memory.
   verify.c also checks every stage. */
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* ---- random graphs ------------------------------------------------------- */

typedef struct Maker {
    Graph *g;
    Builder b;
    VEC(ValueId) pool; /* floating-point values that can be read */
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

/* Sometimes the node itself rounds to another dtype. */
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

/* Splits an axis in two, merges two axes, or merges all but the first. */
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

/* Equal work on a value that few other nodes read. */
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
    Output o = {.name = internf("out%d", i), .value = v};
    vec_push(m->g->arena, &m->g->outputs, o);
}

/* A variable that may take any value of its type. */
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

/* ---- cases --------------------------------------------------------------- */

static int shared; /* number of launches of several groups in random cases */

static void random_case(uint64_t seed, const char *const *flags) {
    Arena *a = arena_new();
    Module *m = random_module(a, seed);
    Graph *g = m->graphs.data[0];
    Results asked = results(a, g, EVAL_STORAGE);
    char what[64];
    snprintf(what, sizeof what, "seed %d %s", (int)seed, *flags ? *flags : "");
    passed(a, m, "simplify,cse,dce", flags);
    Results simple = results(a, g, EVAL_STORAGE);
    expect_equal(&asked, &simple, 0, what);
    Results exact = results(a, g, EVAL_EXACT);
    passed(a, m, "inline,canon,reduce,cse,dce", flags);
    Results expanded = results(a, g, EVAL_EXACT);
    expect_equal(&exact, &expanded, 1e-9, what);
    Results stored = results(a, g, EVAL_STORAGE);
    lowered(a, m, flags);
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

TEST_CASE(backend_random, fused) { random_cases(no_flags); }

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

/* Requires the same numbers before and after, in exact arithmetic. */
static void expect_expansion_for(const char *text, const char *const *flags) {
    Arena *a = arena_new();
    Module *m = parsed(a, text);
    Graph *g = m->graphs.data[0];
    Results before = results(a, g, EVAL_EXACT);
    lowered(a, m, flags);
    Results after = results(a, g, EVAL_EXACT);
    expect_equal(&before, &after, 1e-6, text); /* constants are f32 */
    run_in_memory(a, g, text);
    arena_free(a);
}

static void expect_expansion(const char *text) {
    expect_expansion_for(text, no_flags);
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
