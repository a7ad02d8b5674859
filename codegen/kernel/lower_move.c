/* SPDX-License-Identifier: Apache-2.0 */
/* lower_move.c: indices as affine functions of the loops, and the index maps
   of the MOVE ops. */
#include "codegen/kernel/lower.h"
#include "ir/eval/evaluate.h"

#include <string.h>

/* ---- index arithmetic ---------------------------------------------------- */

KIndex at_const(int64_t c) {
    KIndex x;
    memset(&x, 0, sizeof x);
    x.c = c;
    return x;
}

KIndex at_loop(int dim) {
    KIndex x = at_const(0);
    x.k[dim] = 1;
    return x;
}

static KIndex at_inst(int inst) {
    KIndex x = at_const(0);
    x.inst = inst;
    return x;
}

static int iop(Lower *l, OpCode code, int a, int b) {
    return lower_op(l, code, KT_I64, a, b, 0);
}

static int iconst(Lower *l, int64_t i) { return lower_const(l, KT_I64, 0, i); }

KIndex at_add(Lower *l, KIndex x, KIndex y) {
    KIndex r = x;
    r.c += y.c;
    for (int d = 0; d < MAX_RANK; d++) r.k[d] += y.k[d];
    r.inst = !x.inst   ? y.inst
             : !y.inst ? x.inst
                       : iop(l, OP_ADD, x.inst, y.inst);
    return r;
}

KIndex at_scale(Lower *l, KIndex x, int64_t s) {
    x.c *= s;
    for (int d = 0; d < MAX_RANK; d++) x.k[d] *= s;
    if (s == 0) x.inst = 0;
    if (x.inst && s != 1) x.inst = iop(l, OP_MUL, x.inst, iconst(l, s));
    return x;
}

static KIndex at_shift(KIndex x, int64_t by) {
    x.c += by;
    return x;
}

/* Least and greatest value of the index; false if an instruction in it hides
   them. */
static bool at_range(const Lower *l, const KIndex *x, int64_t *lo,
                     int64_t *hi) {
    if (x->inst) return false;
    *lo = *hi = x->c;
    for (int d = 0; d < l->k->ndim; d++) {
        int64_t last = l->k->dim[d].extent - 1;
        int64_t end = x->k[d] * (last > 0 ? last : 0);
        *(end < 0 ? lo : hi) += end;
    }
    return true;
}

int at_value(Lower *l, KIndex x) {
    int inst = x.inst, r;
    bool loops = false;
    for (int d = 0; d < MAX_RANK; d++) loops |= x.k[d] != 0;
    if (!loops && inst && x.c == 0) return inst;
    x.inst = 0;
    if (loops) {
        KInst in = kinst(K_INDEX, KT_I64);
        in.at = x;
        r = kernel_add(l->arena, l->k, &in);
        return inst ? iop(l, OP_ADD, r, inst) : r;
    }
    r = iconst(l, x.c);
    return inst ? iop(l, OP_ADD, inst, r) : r;
}

/* ---- guards -------------------------------------------------------------- */

static int never(Lower *l) { return lower_const(l, KT_B8, 0, 0); }

bool guard_is_false(const Lower *l, int guard) {
    if (!guard) return false;
    const KInst *in = kinst_at(l->k, guard);
    return in->op == K_CONST && in->i == 0;
}

static int guard_and(Lower *l, int a, int b) {
    if (!a || guard_is_false(l, b)) return b;
    if (!b || guard_is_false(l, a)) return a;
    return lower_op(l, OP_AND, KT_B8, a, b, 0);
}

/* `guard` and lo <= x < hi, without conditions that are always true. */
static int at_within(Lower *l, KIndex x, int64_t lo, int64_t hi, int guard) {
    int64_t least, most;
    bool known = at_range(l, &x, &least, &most);
    if (known && (most < lo || least >= hi)) return never(l);
    if (known ? least < lo : lo != INT64_MIN) {
        int low = iconst(l, lo);
        guard =
            guard_and(l, guard, iop(l, OP_GREATER_EQUAL, at_value(l, x), low));
    }
    if (known ? most >= hi : hi != INT64_MAX) {
        int high = iconst(l, hi);
        guard = guard_and(l, guard, iop(l, OP_LESS, at_value(l, x), high));
    }
    return guard;
}

/* cond ? yes : no; cond 0 means always true. */
static int where(Lower *l, int cond, int yes, int no) {
    if (!cond || yes == no) return yes;
    if (guard_is_false(l, cond)) return no;
    return lower_op(l, OP_WHERE, kinst_at(l->k, yes)->type, cond, yes, no);
}

/* ---- the ops ------------------------------------------------------------- */

enum {
    MANY_PARTS = 16
}; /* many selects cost more than finding a part by
      its number */

static const Type *type_in(const Lower *l, const Node *n, int j) {
    return value_type(l->g, n->in[j]);
}

static int move_transpose(Lower *l, const Node *n, const KIndex *at,
                          int guard) {
    KIndex src[MAX_RANK];
    const int64_t *perm;
    int rank = type_in(l, n, 0)->rank;
    bool given = attr_ints(n, AK_perm, &perm) > 0;
    for (int d = 0; d < rank; d++) src[given ? perm[d] : rank - 1 - d] = at[d];
    return lower_value(l, n->in[0], src, guard);
}

static int move_expand(Lower *l, const Node *n, const KIndex *at, int guard) {
    return lower_broadcast(l, n->in[0], at, value_type(l->g, n->out[0])->rank,
                           guard);
}

static int move_slice(Lower *l, const Node *n, const KIndex *at, int guard) {
    KIndex src[MAX_RANK];
    const int64_t *starts, *steps;
    int rank = attr_ints(n, AK_starts, &starts);
    int nsteps = attr_ints(n, AK_steps, &steps);
    for (int d = 0; d < rank; d++)
        src[d] =
            at_shift(at_scale(l, at[d], d < nsteps ? steps[d] : 1), starts[d]);
    return lower_value(l, n->in[0], src, guard);
}

/* The operand at `src` where `inside` holds, else zero. */
static int guarded(Lower *l, const Node *n, const KIndex *src, int guard,
                   int inside) {
    int v = lower_value(l, n->in[0], src, guard_and(l, guard, inside));
    return where(l, inside, v, lower_const(l, kinst_at(l->k, v)->type, 0, 0));
}

static int move_slice_grad(Lower *l, const Node *n, const KIndex *at,
                           int guard) {
    KIndex src[MAX_RANK];
    const int64_t *starts, *steps;
    const Type *t = type_in(l, n, 0);
    int nsteps = attr_ints(n, AK_steps, &steps), inside = 0;
    attr_ints(n, AK_starts, &starts);
    for (int d = 0; d < t->rank; d++) {
        int64_t step = d < nsteps ? steps[d] : 1;
        src[d] = at_shift(at[d], -starts[d]);
        if (step == 1 || step == -1) {
            src[d] = at_scale(l, src[d], step);
        } else { /* inside where the stride divides it */
            int v = at_value(l, src[d]), by = iconst(l, step);
            int q = iop(l, OP_DIV, v, by), back = iop(l, OP_MUL, q, by);
            inside = guard_and(l, inside, iop(l, OP_EQUAL, back, v));
            src[d] = at_inst(q);
        }
        inside = at_within(l, src[d], 0, t->dim[d], inside);
    }
    return guarded(l, n, src, guard, inside);
}

/* A concat with few parts along the innermost loop becomes separate loops
   (kernel_cuts), and a GPU's threads select among registers. Otherwise an
   element's part is found by its number, once per row if possible. Returns 0
   in the former two cases. */
static int concat_by_number(Lower *l, const Node *n, int axis, const KIndex *at,
                            int guard) {
    const Type *t = type_in(l, n, 0);
    int64_t size = t->dim[axis], least, most;
    KIndex src[MAX_RANK], x = at[axis];
    bool inmost = x.inst || x.k[l->k->ndim - 1];
    /* an index outside the guard selects no part */
    if (l->target == TARGET_CUDA || guard || size == 0 ||
        (inmost && n->nin < MANY_PARTS) ||
        (at_range(l, &x, &least, &most) && least / size == most / size))
        return 0;
    memcpy(src, at, (size_t)t->rank * sizeof *src);
    int which = at_value(l, x);
    if (size > 1) which = iop(l, OP_DIV, which, iconst(l, size));
    src[axis] = size > 1 ? at_add(l, x, at_scale(l, at_inst(which), -size))
                         : at_const(0);
    return lower_operand(l, n, which, src);
}

static int move_concat(Lower *l, const Node *n, const KIndex *at, int guard) {
    const Type *t = value_type(l->g, n->out[0]);
    int axis = axis_norm(attr_int(n, AK_axis), t->rank), r = 0;
    int64_t end = t->dim[axis];
    KIndex src[MAX_RANK];
    int part = concat_by_number(l, n, axis, at, guard);
    if (part) return lower_as(l, part, t->dtype);
    memcpy(src, at, (size_t)t->rank * sizeof *src);
    for (int j = n->nin - 1; j >= 0; j--) {
        int64_t size = type_in(l, n, j)->dim[axis], start = end - size;
        int inside = at_within(l, at[axis], start, end, 0);
        end = start;
        if (size == 0 || (guard_is_false(l, inside) && (r || j))) continue;
        src[axis] = at_shift(at[axis], -start);
        int v = lower_value(l, n->in[j], src, guard_and(l, guard, inside));
        v = lower_as(l, v, t->dtype);
        if (r)
            r = where(l, at_within(l, at[axis], INT64_MIN, start + size, 0), v,
                      r);
        else
            r = v;
    }
    return r ? r : lower_const(l, ktype_of(t->dtype), 0, 0);
}

/* True for an integer constant in [0, size). */
static bool is_const_below(const Lower *l, ValueId v, int64_t size) {
    const Value *r = value_get(l->g, view_root(l->g, v));
    if (r->kind != VK_CONST) return false;
    const EvalTensor *e = eval_from_tensor(l->arena, r->data);
    for (int64_t i = 0; i < type_count(type_get(r->type)); i++)
        if (e->i[i] < 0 || e->i[i] >= size) return false;
    return true;
}

static int move_gather(Lower *l, const Node *n, const KIndex *at, int guard) {
    const Type *t = type_in(l, n, 0), *ti = type_in(l, n, 1);
    int axis = axis_norm(attr_int(n, AK_axis), t->rank);
    int64_t size = t->dim[axis];
    KIndex src[MAX_RANK];
    int id = lower_as(l, lower_value(l, n->in[1], at + axis, guard), DT_I64);
    int inside = 0;
    if (!is_const_below(l, n->in[1], size)) {
        int from_end = iop(l, OP_ADD, id, iconst(l, size));
        int negative = iop(l, OP_LESS, id, iconst(l, 0));
        id = lower_op(l, OP_WHERE, KT_I64, negative, from_end, id);
        inside = at_within(l, at_inst(id), 0, size, 0);
    }
    memcpy(src, at, (size_t)axis * sizeof *src);
    src[axis] = at_inst(id);
    for (int d = axis + 1; d < t->rank; d++) src[d] = at[d + ti->rank - 1];
    return guarded(l, n, src, guard, inside);
}

static int move_trilu(Lower *l, const Node *n, const KIndex *at, int guard) {
    const Type *t = type_in(l, n, 0);
    int64_t k = attr_int(n, AK_k);
    /* triangle: column - row >= k, or <= k */
    KIndex off = at_add(l, at[t->rank - 1], at_scale(l, at[t->rank - 2], -1));
    bool upper = attr_int(n, AK_upper) != 0;
    int keep = upper
                   ? at_within(l, off, k, INT64_MAX, 0)
                   : at_within(l, off, INT64_MIN, k < INT64_MAX ? k + 1 : k, 0);
    return guarded(l, n, at, guard, keep);
}

/* ---- padding ------------------------------------------------------------- */

/* The source position of padded position x + begin. */
static KIndex pad_source(Lower *l, Str mode, KIndex x, int64_t size) {
    int64_t lo, hi;
    if (at_range(l, &x, &lo, &hi) && lo >= 0 && hi < size) return x;
    int v = at_value(l, x);
    if (strcmp(mode, "edge") == 0) {
        v = iop(l, OP_MAX, v, iconst(l, 0));
        return at_inst(iop(l, OP_MIN, v, iconst(l, size - 1)));
    }
    /* the interpreter's MOD has the divisor's sign */
    if (strcmp(mode, "wrap") == 0)
        return at_inst(iop(l, OP_MOD, v, iconst(l, size)));
    if (size == 1) return at_const(0);
    int period = iconst(l, 2 * (size - 1));
    v = iop(l, OP_MOD, v, period);
    return at_inst(iop(l, OP_MIN, v, iop(l, OP_SUB, period, v)));
}

static int move_pad(Lower *l, const Node *n, const KIndex *at, int guard) {
    const Type *t = type_in(l, n, 0);
    DType to = value_dtype(l->g, n->out[0]);
    Str mode = attr_str(n, AK_mode);
    bool constant = strcmp(mode, "constant") == 0;
    const int64_t *pads;
    KIndex src[MAX_RANK];
    int inside = 0;
    attr_ints(n, AK_pads, &pads);
    for (int d = 0; d < t->rank; d++) {
        KIndex x = at_shift(at[d], -pads[d]);
        src[d] = constant ? x : pad_source(l, mode, x, t->dim[d]);
        if (constant) inside = at_within(l, x, 0, t->dim[d], inside);
    }
    int v = lower_as(
        l, lower_value(l, n->in[0], src, guard_and(l, guard, inside)), to);
    if (!constant) return v;
    int fill = lower_const(l, KT_F64, attr_float(n, AK_value), 0);
    return where(l, inside, v, lower_as(l, fill, to));
}

static int move_block_codes(Lower *l, const Node *n, const KIndex *at,
                            int guard) {
    return lower_block_code(l, n, at, guard);
}

static int move_block_scales(Lower *l, const Node *n, const KIndex *at,
                             int guard) {
    return lower_block_scale(l, n, at, guard);
}

static int move_block_sums(Lower *l, const Node *n, const KIndex *at,
                           int guard) {
    return lower_block_sum(l, n, at, guard);
}

typedef int MoveFn(Lower *l, const Node *n, const KIndex *at, int guard);

#define MOVE_ELEM(lower)      NULL
#define MOVE_GEN(lower)       NULL
#define MOVE_VIEW(lower)      NULL
#define MOVE_MOVE(lower)      move_##lower
#define move_none             NULL
#define MOVE_REDUCE(lower)    NULL
#define MOVE_ANCHOR(lower)    NULL
#define MOVE_LIB(lower)       NULL
#define MOVE_COMPOSITE(lower) NULL
static MoveFn *const move[NUM_OPS] = {
#define OP(E, text, imin, imax, omin, omax, attrs, type, cls, torch, grad,     \
           kind, cost, eval, lower, expr)                                      \
    [OP_##E] = MOVE_##kind(lower),
#include "ir/op/ops.def"
};

int lower_move(Lower *l, const Node *n, const KIndex *at, int guard) {
    ASSERT(move[n->op]);
    return move[n->op](l, n, at, guard);
}

/* ---- gradient of padding ------------------------------------------------- */

/* One padded position that is a copy of a source position, if `ok`. */
typedef struct PadTerm {
    KIndex at;
    int ok;
} PadTerm;
typedef VEC(PadTerm) PadTerms;

static void term(Lower *l, PadTerms *ts, KIndex at, int64_t padded, int ok) {
    PadTerm t = {at, at_within(l, at, 0, padded, ok)};
    if (!guard_is_false(l, t.ok)) vec_push(l->arena, ts, t);
}

/* All padded positions that are copies of source position x, in increasing
   order. */
static PadTerms pad_terms(Lower *l, Str mode, KIndex x, int64_t size,
                          int64_t begin, int64_t padded) {
    PadTerms ts = {0};
    bool edge = strcmp(mode, "edge") == 0, wrap = strcmp(mode, "wrap") == 0;
    int64_t period = wrap ? size : size > 1 ? 2 * (size - 1) : 1;
    KIndex home = at_shift(x, begin);
    if (edge || strcmp(mode, "constant") == 0) {
        int first = edge ? at_within(l, x, 0, 1, 0) : never(l);
        int last = edge ? at_within(l, x, size - 1, size, 0) : never(l);
        for (int64_t p = 0; p < begin && edge; p++)
            term(l, &ts, at_const(p), padded, first);
        term(l, &ts, home, padded, 0);
        for (int64_t p = begin + size; p < padded && edge; p++)
            term(l, &ts, at_const(p), padded, last);
        return ts;
    }
    int64_t from = -(begin / period) - 1, to = padded / period + 1;
    KIndex mirror = at_shift(at_scale(l, x, -1), begin);
    int between = wrap || size < 3 ? never(l) : at_within(l, x, 1, size - 1, 0);
    for (int64_t j = from; j <= to; j++) {
        if (!guard_is_false(l, between))
            term(l, &ts, at_shift(mirror, j * period), padded, between);
        term(l, &ts, at_shift(home, j * period), padded, 0);
    }
    return ts;
}

/* Sums over all combinations of the terms of dims d and above. */
static int pad_sum(Lower *l, const Node *n, const PadTerms *ts, int d,
                   KIndex *src, int guard, int sum) {
    const Type *t = type_in(l, n, 0);
    KType c = ktype_of(t->dtype) == KT_F64 ? KT_F64 : KT_F32;
    if (d == t->rank) {
        int v = lower_value(l, n->in[0], src, guard);
        return sum ? lower_op(l, OP_ADD, c, sum, v, 0) : v;
    }
    for (int j = 0; j < ts[d].len; j++) {
        src[d] = ts[d].data[j].at;
        sum = pad_sum(l, n, ts, d + 1, src,
                      guard_and(l, guard, ts[d].data[j].ok), sum);
    }
    return sum;
}

int lower_pad_grad(Lower *l, const Node *n, const KIndex *at) {
    const Type *in = type_in(l, n, 0), *t = value_type(l->g, n->out[0]);
    Str mode = attr_str(n, AK_mode);
    PadTerms ts[MAX_RANK];
    KIndex src[MAX_RANK];
    const int64_t *pads;
    attr_ints(n, AK_pads, &pads);
    for (int d = 0; d < t->rank; d++)
        ts[d] = pad_terms(l, mode, at[d], t->dim[d], pads[d], in->dim[d]);
    int sum = pad_sum(l, n, ts, 0, src, 0, 0);
    return sum ? sum : lower_const(l, ktype_of(t->dtype), 0, 0);
}
