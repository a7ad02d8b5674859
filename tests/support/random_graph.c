/* SPDX-License-Identifier: Apache-2.0 */
/* random_graph.c: see random_graph.h. */
#include "tests/support/random_graph.h"

#include <math.h>

#include "ir/eval/evaluate.h"
#include "ir/fn/fn.h"
#include "tests/harness.h"

static uint64_t state;

void random_seed(uint64_t seed) { state = seed; }

int random_below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static const Type *type_of(const RandomGraph *p, ValueId v) {
    return value_type(p->b.g, v);
}

double random_number(void) { return random_below(1 << 20) / 524288.0 - 1; }

DType random_dtype(const RandomGraph *p) {
    static const DType d[] = {DT_F32, DT_BF16, DT_F32, DT_F16};
    return p->low ? d[random_below(4)] : DT_F32;
}

void random_keep(RandomGraph *p, ValueId v) { p->v[p->n++] = v; }

static ValueId any(const RandomGraph *p) { return p->v[random_below(p->n)]; }

static bool broadcasts(const Type *a, const Type *b) {
    for (int i = 1; i <= a->rank && i <= b->rank; i++) {
        int64_t x = a->dim[a->rank - i], y = b->dim[b->rank - i];
        if (x != y && x != 1 && y != 1) return false;
    }
    return true;
}

/* A value that can be combined with x; x itself if none is found. */
static ValueId partner(const RandomGraph *p, ValueId x, int among) {
    for (int tries = 0; tries < 20; tries++) {
        ValueId y = p->v[random_below(among)];
        if (broadcasts(type_of(p, x), type_of(p, y))) return y;
    }
    return x;
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

/* A well-conditioned op of floats without attributes. */
static OpCode some_unary(void) {
    static OpCode tame[NUM_OPS];
    static int n, next;
    for (; next < NUM_OPS; next++) {
        const OpInfo *x = &op_info[next];
        if (x->kind == KIND_ELEM && x->in_max == 1 && x->nattr == 0 &&
            x->amp != AMP_NONE && is_tame((OpCode)next))
            tame[n++] = (OpCode)next;
    }
    return tame[random_below(n)];
}

/* Multiplies by about `by`: a power of two, so that no type rounds. */
static ValueId scaled(RandomGraph *p, ValueId v, double by) {
    ValueId c = b_scalar(&p->b, DT_F32, exp2(nearbyint(log2(by))));
    return b2(&p->b, OP_MUL, v, c, DT_DEFAULT);
}

static void make_unary(RandomGraph *p) {
    random_keep(p, b1(&p->b, some_unary(), any(p), random_dtype(p)));
}

static void make_binary(RandomGraph *p) {
    static const OpCode op[] = {OP_ADD, OP_SUB, OP_MUL, OP_MAX, OP_MIN};
    ValueId x = any(p), y = partner(p, x, p->n);
    OpCode c = op[random_below(5)];
    ValueId z = b2(&p->b, c, x, y, random_dtype(p));
    if (c == OP_ADD || c == OP_SUB || c == OP_MUL)
        z = b1(&p->b, OP_TANH, z, random_dtype(p));
    random_keep(p, z);
}

static void make_where(RandomGraph *p) {
    ValueId a = p->v[random_below(p->nleaf)], b = partner(p, a, p->nleaf);
    ValueId c = b2(&p->b, OP_LESS, a, b, DT_DEFAULT), x = any(p), y;
    if (!broadcasts(type_of(p, c), type_of(p, x))) x = a;
    y = partner(p, x, p->n);
    if (broadcasts(type_of(p, c), type_of(p, y)))
        random_keep(p, b_where(&p->b, c, x, y));
}

static void make_reduce(RandomGraph *p) {
    static const OpCode op[] = {OP_REDUCE_MEAN, OP_REDUCE_MAX, OP_REDUCE_MIN,
                                OP_REDUCE_SUM};
    ValueId x = any(p);
    int64_t axes[MAX_RANK];
    Type t = *type_of(p, x);
    int n = 0;
    double count = 1;
    for (int i = 0; i < t.rank; i++)
        if (random_below(2)) axes[n++] = i;
    if (!n) axes[n++] = t.rank - 1;
    for (int i = 0; i < n; i++) count *= (double)t.dim[axes[i]];
    OpCode c = op[random_below(4)];
    ValueId r = b_reduce(&p->b, c, x, axes, n, true, DT_DEFAULT);
    if (c == OP_REDUCE_SUM) r = scaled(p, r, 1 / count);
    random_keep(p, r);
}

static void make_softmax(RandomGraph *p) {
    Attr axis = attr_i(AK_axis, -1);
    ValueId x = any(p);
    const Fn *fn = fn_std(random_below(2) ? "softmax" : "log_softmax");
    DType d = random_dtype(p);
    NodeId n = build_call(&p->b, fn, &x, 1, &axis, 1, 1, &d);
    random_keep(p, node_get(p->b.g, n)->out[0]);
}

static void make_transpose(RandomGraph *p) {
    ValueId x = any(p);
    int64_t perm[MAX_RANK];
    int rank = type_of(p, x)->rank, turn = random_below(rank);
    for (int i = 0; i < rank; i++) perm[i] = (i + turn) % rank;
    random_keep(p, b_transpose(&p->b, x, perm));
}

static void make_slice(RandomGraph *p) {
    ValueId x = any(p);
    Type t = *type_of(p, x);
    int64_t start[MAX_RANK], size[MAX_RANK], step[MAX_RANK];
    for (int i = 0; i < t.rank; i++) {
        int64_t from = random_below((int)t.dim[i]),
                to = random_below((int)t.dim[i]);
        step[i] = to < from ? -1 : 1 + random_below(2);
        start[i] = from;
        size[i] = (to < from ? from - to : (to - from) / step[i]) + 1;
    }
    Attr attrs[] = {attr_v(AK_starts, start, t.rank),
                    attr_v(AK_sizes, size, t.rank),
                    attr_v(AK_steps, step, t.rank)};
    random_keep(p, build(&p->b, OP_SLICE, &x, 1, attrs, 3, DT_DEFAULT, NULL));
}

static void make_concat(RandomGraph *p) {
    ValueId x = any(p), pair[2];
    Type t = *type_of(p, x);
    int axis = random_below(t.rank);
    if (t.dim[axis] > 64) return;
    Attr a = attr_i(AK_axis, axis);
    pair[0] = x;
    pair[1] = b1(&p->b, OP_NEG, x, DT_DEFAULT);
    random_keep(p, build(&p->b, OP_CONCAT, pair, 2, &a, 1, DT_DEFAULT, NULL));
}

/* x times itself, transposed, or an equal value. */
static void make_matmul(RandomGraph *p) {
    ValueId x = any(p);
    Type t = *type_of(p, x);
    if (t.rank < 2 || t.dim[t.rank - 2] > 64) return;
    DType d = t.dtype == DT_F32 || random_below(2) ? DT_F32 : t.dtype;
    ValueId z = b_matmul(&p->b, x, x, false, true, d);
    z = scaled(p, z, 1.0 / (double)t.dim[t.rank - 1]);
    random_keep(p, b1(&p->b, OP_TANH, z, random_dtype(p)));
}

static void make_cast(RandomGraph *p) {
    ValueId x = any(p);
    if (p->low) random_keep(p, b_cast(&p->b, x, random_dtype(p)));
}

/* ---- layers -------------------------------------------------------------- */

static ValueId param(RandomGraph *p, int rank, int64_t a, int64_t b) {
    return p->param(p, rank, (int64_t[]){a, b});
}

/* x times weights, transposed or not, possibly plus a vector. */
static void make_dense(RandomGraph *p) {
    static const int64_t widths[] = {1, 3, 5, 8, 16, 17};
    ValueId x = any(p);
    Type t = *type_of(p, x);
    if (t.rank < 2) return;
    int64_t k = t.dim[t.rank - 1], n = widths[random_below(6)];
    bool turned = random_below(2);
    if (k * n > RANDOM_ELEMENTS) return;
    ValueId w = turned ? param(p, 2, n, k) : param(p, 2, k, n);
    ValueId z = b_matmul(&p->b, x, w, false, turned, DT_DEFAULT);
    z = scaled(p, z, 1 / sqrt((double)k));
    if (random_below(2))
        z = b2(&p->b, OP_ADD, z, param(p, 1, n, 0), DT_DEFAULT);
    random_keep(p,
                random_below(3) ? b1(&p->b, some_unary(), z, DT_DEFAULT) : z);
}

static void make_norm(RandomGraph *p) {
    ValueId x = any(p);
    Type t = *type_of(p, x);
    int64_t k = t.dim[t.rank - 1];
    if (k < 4) return;
    ValueId in[] = {x, param(p, 1, k, 0), param(p, 1, k, 0)};
    Attr eps[] = {attr_named_f("epsilon", 0.25)};
    bool rms = random_below(2);
    NodeId n =
        rms ? build_call(&p->b, fn_std("rms_norm"), in, 2, eps, 1, 1, NULL)
            : build_call(&p->b, fn_std("layer_norm"), in, 3, eps, 1, 3, NULL);
    random_keep(p, node_get(p->b.g, n)->out[0]);
}

/* ---- all of them --------------------------------------------------------- */

typedef void Make(RandomGraph *p);
static Make *const makers[] = {
    make_unary,  make_binary,    make_binary, make_where,  make_reduce,
    make_reduce, make_transpose, make_slice,  make_concat, make_matmul,
    make_cast,   make_softmax,   make_dense,  make_dense,  make_norm};
enum { MAKERS = sizeof makers / sizeof *makers, LAYERS = 3 /* the last */ };

void random_nodes(RandomGraph *p, int values) {
    while (p->n < values)
        makers[random_below(p->param ? MAKERS : MAKERS - LAYERS)](p);
}
