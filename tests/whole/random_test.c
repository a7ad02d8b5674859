/* random_test.c: random graphs, so that ops meet in groups that nobody thought
   of.  Every graph is a part of one program "predict":
     - shuffled versions have the same bits; unfused ones may sum in another
       order;
     - the CPU agrees with the interpreter, the simulated GPU with the CPU.
   Values stay within a few units: products pass through tanh, sums are scaled.
   Operands of comparisons are inputs, so that no rounding decides a branch.  */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/fn/fn.h"
#include "tests/support/cuda_gpu.h"
#include "tests/support/ops_bench.h"
#include "tests/tolerance.h"

enum { GRAPHS = 24, NODES = 24 };

/* ---- making graphs ------------------------------------------------------- */

static uint64_t state;

static int below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

typedef struct Pool {
    Builder b;
    OpsBench *bench;
    ValueId v[NODES * 3 + 8];
    int n, ninput;
    bool low; /* 16-bit values too */
} Pool;

static const Type *type_of(const Pool *p, ValueId v) {
    return value_type(p->b.g, v);
}

static DType some_dtype(const Pool *p) {
    static const DType d[] = {DT_F32, DT_BF16, DT_F32, DT_F16};
    return p->low ? d[below(4)] : DT_F32;
}

static void keep(Pool *p, ValueId v) { p->v[p->n++] = v; }

static ValueId any(const Pool *p) { return p->v[below(p->n)]; }

static bool broadcasts(const Type *a, const Type *b) {
    for (int i = 1; i <= a->rank && i <= b->rank; i++) {
        int64_t x = a->dim[a->rank - i], y = b->dim[b->rank - i];
        if (x != y && x != 1 && y != 1) return false;
    }
    return true;
}

/* A value that goes with x; x itself if none is found. */
static ValueId partner(const Pool *p, ValueId x, int among) {
    for (int tries = 0; tries < 20; tries++) {
        ValueId y = p->v[below(among)];
        if (broadcasts(type_of(p, x), type_of(p, y))) return y;
    }
    return x;
}

static void add_input(Pool *p, int graph, int rank, const int64_t *dim) {
    char name[32];
    OpsRange range = {"", -2, 2};
    snprintf(name, sizeof name, "x%d.%d", graph, p->n);
    keep(p, graph_input(p->b.g, intern(name),
                        type_make(some_dtype(p), rank, dim)));
    vec_push(p->bench->a, &p->bench->ranges, range);
}

/* Finite everywhere and nowhere steep, so that small differences stay small. */
static bool is_tame(OpCode op) {
    double before = eval_expr_f(op, -8, 0);
    for (double x = -8; x <= 8; x += 1.0 / 64) {
        double y = eval_expr_f(op, x, 0);
        if (!(fabs(y - before) <= 2.0 / 64)) return false;
        before = y;
    }
    return true;
}

/* A tame op of floats without attributes. */
static OpCode some_unary(void) {
    static OpCode tame[NUM_OPS];
    static int n, next;
    for (; next < NUM_OPS; next++) {
        const OpInfo *x = &op_info[next];
        if (x->kind == KIND_ELEM && x->in_max == 1 && x->nattr == 0 &&
            x->amp != AMP_NONE && is_tame((OpCode)next))
            tame[n++] = (OpCode)next;
    }
    return tame[below(n)];
}

static void make_unary(Pool *p) {
    keep(p, b1(&p->b, some_unary(), any(p), some_dtype(p)));
}

static void make_binary(Pool *p) {
    static const OpCode op[] = {OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN};
    ValueId x = any(p), y = partner(p, x, p->n);
    OpCode c = op[below(5)];
    ValueId z = b2(&p->b, c, x, y, some_dtype(p));
    if (c == OP_ADD || c == OP_SUB || c == OP_MUL)
        z = b1(&p->b, OP_TANH, z, some_dtype(p));
    keep(p, z);
}

static void make_where(Pool *p) {
    ValueId a = p->v[below(p->ninput)], b = partner(p, a, p->ninput);
    ValueId c = b2(&p->b, OP_LESS, a, b, DT_DEFAULT), x = any(p), y;
    if (!broadcasts(type_of(p, c), type_of(p, x))) x = a;
    y = partner(p, x, p->n);
    if (broadcasts(type_of(p, c), type_of(p, y)))
        keep(p, b_where(&p->b, c, x, y));
}

static void make_reduce(Pool *p) {
    static const OpCode op[] = {OP_REDUCE_MEAN, OP_REDUCE_MAX, OP_REDUCE_MIN,
                                OP_REDUCE_SUM};
    ValueId x = any(p);
    int64_t axes[MAX_RANK];
    Type t = *type_of(p, x);
    int n = 0;
    double count = 1;
    for (int i = 0; i < t.rank; i++)
        if (below(2)) axes[n++] = i;
    if (!n) axes[n++] = t.rank - 1;
    for (int i = 0; i < n; i++) count *= (double)t.dim[axes[i]];
    OpCode c = op[below(4)];
    ValueId r = b_reduce(&p->b, c, x, axes, n, true, DT_DEFAULT);
    if (c == OP_REDUCE_SUM)
        r = b2(&p->b, OP_MUL, r, b_scalar(&p->b, DT_F32, 1 / count),
               DT_DEFAULT);
    keep(p, r);
}

static void make_softmax(Pool *p) {
    Attr axis = attr_i(AK_axis, -1);
    ValueId x = any(p);
    const Fn *fn = fn_std(below(2) ? "softmax" : "log_softmax");
    DType d = some_dtype(p);
    NodeId n = build_call(&p->b, fn, &x, 1, &axis, 1, 1, &d);
    keep(p, node_get(p->b.g, n)->out[0]);
}

static void make_transpose(Pool *p) {
    ValueId x = any(p);
    int64_t perm[MAX_RANK];
    int rank = type_of(p, x)->rank, turn = below(rank);
    for (int i = 0; i < rank; i++) perm[i] = (i + turn) % rank;
    keep(p, b_transpose(&p->b, x, perm));
}

static void make_slice(Pool *p) {
    ValueId x = any(p);
    Type t = *type_of(p, x);
    int64_t start[MAX_RANK], size[MAX_RANK], step[MAX_RANK];
    for (int i = 0; i < t.rank; i++) {
        int64_t from = below((int)t.dim[i]), to = below((int)t.dim[i]);
        step[i] = to < from ? -1 : 1 + below(2);
        start[i] = from;
        size[i] = (to < from ? from - to : (to - from) / step[i]) + 1;
    }
    Attr attrs[] = {attr_v(AK_starts, start, t.rank),
                    attr_v(AK_sizes, size, t.rank),
                    attr_v(AK_steps, step, t.rank)};
    keep(p, build(&p->b, OP_SLICE, &x, 1, attrs, 3, DT_DEFAULT, NULL));
}

static void make_concat(Pool *p) {
    ValueId x = any(p), pair[2];
    Type t = *type_of(p, x);
    int axis = below(t.rank);
    if (t.dim[axis] > 64) return;
    Attr a = attr_i(AK_axis, axis);
    pair[0] = x;
    pair[1] = b1(&p->b, OP_NEG, x, DT_DEFAULT);
    keep(p, build(&p->b, OP_CONCAT, pair, 2, &a, 1, DT_DEFAULT, NULL));
}

/* x times itself, transposed, or an equal one. */
static void make_matmul(Pool *p) {
    ValueId x = any(p);
    Type t = *type_of(p, x);
    if (t.rank < 2 || t.dim[t.rank - 2] > 64) return;
    DType d = t.dtype == DT_F32 || below(2) ? DT_F32 : t.dtype;
    ValueId z = b_matmul(&p->b, x, x, false, true, d);
    z = b2(&p->b, OP_MUL, z,
           b_scalar(&p->b, DT_F32, 1.0 / (double)t.dim[t.rank - 1]),
           DT_DEFAULT);
    keep(p, b1(&p->b, OP_TANH, z, some_dtype(p)));
}

static void make_cast(Pool *p) {
    ValueId x = any(p);
    if (p->low) keep(p, b_cast(&p->b, x, some_dtype(p)));
}

typedef void Make(Pool *p);
static Make *const makers[] = {make_unary,     make_binary, make_binary,
                               make_where,     make_reduce, make_reduce,
                               make_transpose, make_slice,  make_concat,
                               make_matmul,    make_cast,   make_softmax};

static void add_outputs(Pool *p, int graph) {
    int *uses = graph_use_counts(p->b.g, p->bench->a);
    for (int i = p->ninput; i < p->n; i++) {
        if (uses[p->v[i].i] && below(6)) continue;
        Output o = {internf("g%d.%d", graph, i), p->v[i]};
        vec_push(p->bench->a, &p->b.g->outputs, o);
    }
}

static void add_graph(OpsBench *bench, int graph, bool low) {
    Pool p = {.b = {.g = bench->all}, .bench = bench, .low = low};
    int64_t r = 1 + below(12), c = below(4) ? 1 + below(40) : 200 + below(1200);
    int64_t b = 1 + below(5);
    add_input(&p, graph, 2, (int64_t[]){r, c});
    add_input(&p, graph, 1, (int64_t[]){c});
    add_input(&p, graph, 2, (int64_t[]){r, 1});
    add_input(&p, graph, 3, (int64_t[]){b, r, c});
    p.ninput = p.n;
    while (p.n < NODES) makers[below(sizeof makers / sizeof *makers)](&p);
    add_outputs(&p, graph);
    bench->instances++;
}

static OpsBench random_bench(uint64_t seed, bool low) {
    OpsBench b = {.a = arena_new()};
    state = seed;
    b.m = module_new(b.a, "random");
    b.all = graph_new(b.m, "predict");
    for (int i = 0; i < GRAPHS; i++) add_graph(&b, i, low);
    return b;
}

/* ---- running ------------------------------------------------------------- */

static const char *print_bench(OpsBench *b) {
    StrBuf text = {0};
    print_module(b->m, &text);
    const char *r = arena_printf(b->a, "%s", text.data);
    sb_free(&text);
    return r;
}

static void run_cpu(const Compiled *c, OpsData *d) {
    ampc_session *s = open_threads(c, 2);
    ops_run(c, s, d);
    c->api->close(s);
}

static double allowed(bool low) {
    return low ? TOL_RANDOM_LOW : TOL_RANDOM_F32;
}

static void compare(const OpsBench *b, const EvalTensor **want,
                    const OpsData *d, bool low) {
    for (int i = 0; i < d->nout; i++) {
        const Output *o = &b->all->outputs.data[i];
        Tensor got = {value_get(b->all, o->value)->type, d->out[i].data};
        double scale = 0, worst = 0;
        int64_t n = type_count(type_get(got.type));
        for (int64_t k = 0; k < n; k++) {
            double w = want[i]->f[k], g = tensor_get(&got, k);
            if (isnan(w) && isnan(g)) continue;
            scale = fmax(scale, fabs(w));
            if (!(fabs(w - g) <= worst)) worst = fabs(w - g);
        }
        CHECK_MSG(worst <= allowed(low) * scale + TOL_RANDOM_FLOOR,
                  "%s: off by %g of %g", o->name, worst, scale);
    }
}

static void check_random(uint64_t seed, bool low) {
    OpsBench b = random_bench(seed, low);
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    char options[200];
    size_t n;
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    const char *text = print_bench(&b);
    const char *level = "--precision fp32 --target cpu:x86-64-v2";
    Compiled c = compile_text(text, level);
    run_cpu(&c, &d);
    compare(&b, want, &d, low);
    char *bits = ops_all_bytes(&d, &n);
    compiled_close(&c);
    snprintf(options, sizeof options, "%s --shuffle 3", level);
    c = compile_text(text, options);
    run_cpu(&c, &d);
    ops_check_same_bits(&d, bits, "shuffling");
    compiled_close(&c);
    snprintf(options, sizeof options, "%s --no-fuse", level);
    c = compile_text(text, options);
    run_cpu(&c, &d);
    compare(&b, want, &d, low);
    compiled_close(&c);
    free(bits);
    arena_free(b.a);
}

/* More of them with script/test --slow. */
static void for_seeds(void (*check)(uint64_t seed, bool low), bool low) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 20 : 1); seed++)
        check(seed, low);
}

TEST_CASE(random_graphs, fp32_on_the_cpu) { for_seeds(check_random, false); }

TEST_CASE(random_graphs, mixed_on_the_cpu) { for_seeds(check_random, true); }

static void check_gpu(uint64_t seed, bool low) {
    OpsBench b = random_bench(seed, low);
    Diag diag = {0};
    Evaluator *e = eval_new(b.all, b.a, EVAL_STORAGE);
    OpsData d = ops_data_new(&b, e);
    if (eval_run(e, &diag) != OK) FAIL("%s", diag.text.data);
    const EvalTensor **want = ops_wanted(&b, e);
    Compiled c =
        compile_text_cuda(print_bench(&b), "--precision fp32", "cuda:sm_80");
    gpu_for(&c, seed);
    ampc_session *s = gpu_open(&c);
    ops_run(&c, s, &d);
    compare(&b, want, &d, low);
    c.api->close(s);
    gpu_clean("random graphs");
    compiled_close(&c);
    arena_free(b.a);
}

TEST_CASE(random_graphs, fp32_on_the_gpu) { for_seeds(check_gpu, false); }

TEST_CASE(random_graphs, mixed_on_the_gpu) { for_seeds(check_gpu, true); }
