/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: lets attention read and write heads that are stored beside rows.
   Before:  %s = slice %x {sizes=[2,64,4,16], starts=[0,0,0,0]}
            %q = transpose %s {perm=[0,2,1,3]}      %f = mul %q, 0.25
            (%k and %v are later heads of %x)
            %y, %lse = attend %f, %k, %v {trans_b=1} : bf16[2,4,64,16]
            %z = transpose %y {perm=[0,2,1,3]}
   After:   %z, %lse = attend %x, %x, %x {heads=[0,4,4,4,8,4], scale=0.25,
                                          trans_b=1} : bf16[2,64,4,16]
   The gradient of such an attention is likewise; one concat that puts its three
   results together becomes its one result.  This saves copies into another
   order.

   A factor of q or k that is a power of two joins `scale`: where a product of
   16 bits would be subnormal, scores are more exact than before.

   requires     stage PRIMITIVE
   establishes  nothing
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "passes/passes.h"
#include "passes/device/target.h"

#include <math.h>

/* ---- where a value's elements come from ---------------------------------- */

enum { MAX_PIECES = 4 * MAX_RANK, DEPTH = 16 };

/* `size` elements, which are `of` apart in the value and `at` apart in its
   source. */
typedef struct Piece {
    int64_t size, of, at;
} Piece;

/* A value whose elements are `factor` times elements of `source`, at other
   positions. */
typedef struct View {
    ValueId source;
    Piece piece[MAX_PIECES];
    int n;
    int64_t first; /* index in the source of the value's element 0 */
    double factor;
} View;

static void strides_of(const Type *t, int64_t *stride) {
    int64_t n = 1;
    for (int d = t->rank - 1; d >= 0; n *= t->dim[d--]) stride[d] = n;
}

static View view_of(const Graph *g, ValueId v) {
    const Type *t = value_type(g, v);
    View w = {.source = v, .factor = 1};
    int64_t stride[MAX_RANK];
    strides_of(t, stride);
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] > 1)
            w.piece[w.n++] = (Piece){t->dim[d], stride[d], stride[d]};
    return w;
}

/* Describes a source of type t with step[d] between elements of dim d. False
   if a piece crosses dims that are not contiguous. */
static bool view_through(View *w, const Type *t, const int64_t *step) {
    int64_t stride[MAX_RANK], last[MAX_RANK], first = 0;
    strides_of(t, stride);
    for (int d = 0; d < t->rank; d++) {
        last[d] = t->dim[d] ? w->first / stride[d] % t->dim[d] : 0;
        first += last[d] * step[d];
    }
    for (int i = 0; i < w->n; i++) {
        Piece *p = &w->piece[i];
        int d = t->rank - 1;
        while (d > 0 && p->at >= stride[d] * t->dim[d]) d--;
        if (d < 0 || p->at % stride[d]) return false;
        int64_t each = p->at / stride[d];
        if ((p->size - 1) * each >= t->dim[d]) { /* continues in the dim
                                                    before */
            int64_t here = t->dim[d] / each;
            if (t->dim[d] % each || p->size % here || w->n == MAX_PIECES)
                return false;
            w->piece[w->n++] =
                (Piece){p->size / here, p->of * here, p->at * here};
            p->size = here;
        }
        last[d] += (p->size - 1) * each;
        p->at = each * step[d];
    }
    for (int d = 0; d < t->rank; d++)
        if (last[d] >= t->dim[d]) return false;
    w->first = first;
    return true;
}

static bool is_power_of_2(double c) {
    int e;
    return c > 0 && isfinite(c) && frexp(c, &e) == 0.5;
}

/* One node further towards the source; false: there is none, or it is not a
   move. */
static bool view_deeper(const Graph *g, View *w) {
    const Value *v = value_get(g, w->source);
    if (v->kind != VK_RESULT || v->held) return false;
    const Node *n = node_get(g, v->def);
    const Type *t = type_get(v->type);
    int64_t step[MAX_RANK], from[MAX_RANK];
    const int64_t *perm, *starts, *steps;
    double c;
    for (int i = 0; n->op == OP_MUL && i < 2; i++)
        if (value_is_splat(g, n->in[i], &c) && is_power_of_2(c) &&
            shape_equal(t, value_type(g, n->in[1 - i]))) {
            w->factor *= c;
            w->source = n->in[1 - i];
            return true;
        }
    if (n->op == OP_RESHAPE) return w->source = n->in[0], true;
    if (n->op != OP_TRANSPOSE && n->op != OP_SLICE) return false;
    strides_of(value_type(g, n->in[0]), from);
    int64_t begin = 0;
    if (n->op == OP_TRANSPOSE) {
        attr_ints(n, AK_perm, &perm);
        for (int d = 0; d < t->rank; d++) step[d] = from[perm[d]];
    } else {
        attr_ints(n, AK_starts, &starts);
        attr_ints(n, AK_steps, &steps);
        for (int d = 0; d < t->rank; d++) {
            step[d] = from[d] * steps[d];
            begin += from[d] * starts[d];
        }
    }
    if (!view_through(w, t, step)) return false;
    w->first += begin;
    w->source = n->in[0];
    return true;
}

/* ---- heads beside rows --------------------------------------------------- */

/* Matrices [.., heads, rows, features]; turned: [.., heads, features, rows]. */
typedef struct Matrices {
    int64_t outer, heads, rows, features;
    bool turned;
} Matrices;

static Matrices matrices_of(const Type *t, bool turned) {
    Matrices m = {1, t->dim[t->rank - 3], t->dim[t->rank - 2],
                  t->dim[t->rank - 1], turned};
    if (turned) {
        m.rows = t->dim[t->rank - 1];
        m.features = t->dim[t->rank - 2];
    }
    for (int d = 0; d < t->rank - 3; d++) m.outer *= t->dim[d];
    return m;
}

/* Values [.., rows, width, features]: heads from `first` on, times factor. */
typedef struct Beside {
    ValueId source;
    int64_t width, first;
    double factor;
} Beside;

/* True if w has the heads of matrices m beside their rows, in `count`
   elements. */
static bool lies_beside(const View *w, const Matrices *m, int64_t count,
                        Beside *to) {
    int64_t lines = m->outer * m->rows * m->features;
    if (!lines || !m->heads || count % lines) return false;
    int64_t width = count / lines, each = m->rows * m->features;
    const int64_t row = width * m->features;
    const struct {
        int64_t from, size, step;
    } level[] = {{1, m->turned ? m->rows : m->features, m->turned ? row : 1},
                 {m->turned ? m->rows : m->features,
                  m->turned ? m->features : m->rows, m->turned ? 1 : row},
                 {each, m->heads, m->features},
                 {each * m->heads, m->outer, m->rows * row}};
    for (int i = 0; i < w->n; i++) {
        const Piece *p = &w->piece[i];
        int l = 3;
        while (l > 0 && p->of < level[l].from) l--;
        if (p->of % level[l].from ||
            p->of * p->size > level[l].from * level[l].size ||
            p->at != p->of / level[l].from * level[l].step)
            return false;
    }
    to->width = width;
    to->first = w->first / m->features;
    return w->first % m->features == 0 && to->first + m->heads <= width;
}

/* The earliest value that has v's matrices beside their rows. 16-bit values
   stay exact if fp32 is between. */
static bool find_beside(const Graph *g, ValueId v, const Matrices *m,
                        Beside *to) {
    bool found = false;
    View w = view_of(g, v);
    for (int i = 0; i < DEPTH; i++) {
        Beside b;
        DType d = value_dtype(g, w.source);
        if (d != value_dtype(g, v) && d != DT_F32) break;
        if (d == value_dtype(g, v) &&
            lies_beside(&w, m, value_count(g, w.source), &b)) {
            b.source = w.source;
            b.factor = w.factor;
            *to = b;
            found = true;
        }
        if (!view_deeper(g, &w)) break;
    }
    return found;
}

/* ---- the pass ------------------------------------------------------------ */

/* The concat of an attention's gradients: the positions of q's, k's and v's. */
typedef struct Packed {
    NodeId concat;
    Beside part[3];
} Packed;

typedef struct Heads {
    const Graph *g;
    UserIndex users;
    int *uses;
    Packed *packed;   /* per node: the concat of its gradient; concat 0: none */
    ValueId *instead; /* per node: the value that replaces its result */
    uint32_t limit;   /* number of nodes before the pass */
} Heads;

/* `at`: q, k or v. */
static Matrices operand_matrices(const Graph *g, const Node *n, int at) {
    return matrices_of(value_type(g, n->in[at]),
                       at == 1 && !attr_int(n, AK_trans_b));
}

/* The part i of concat c that result `*at` of an attention's gradient is. */
static bool find_part(const Heads *h, const Node *c, int i, NodeId *grad,
                      int *at, Beside *to) {
    const Graph *g = h->g;
    const Type *all = value_type(g, c->out[0]), *t = value_type(g, c->in[i]);
    int axis = axis_norm(attr_int(c, AK_axis), all->rank);
    int64_t step[MAX_RANK], before = 0;
    View w = view_of(g, c->in[i]);
    for (int deep = 0;; deep++) {
        const Value *v = value_get(g, w.source);
        if (h->uses[w.source.i] != 1 || v->kind != VK_RESULT || deep == DEPTH)
            return false;
        const Node *n = node_get(g, v->def);
        if (n->op == OP_ATTEND_GRAD && n->nout == 3) {
            *grad = v->def;
            for (*at = 0; !same_value(n->out[*at], w.source);) ++*at;
            break;
        }
        if (!view_deeper(g, &w)) return false;
    }
    if (value_dtype(g, w.source) != all->dtype || w.first ||
        value_count(g, w.source) != type_count(t))
        return false;
    for (int k = 0; k < i; k++) before += value_type(g, c->in[k])->dim[axis];
    for (int k = 0; k < w.n; k++) {
        Piece p = w.piece[k];
        w.piece[k] = (Piece){p.size, p.at, p.of};
    }
    strides_of(all, step);
    Matrices m = operand_matrices(g, node_get(g, *grad), *at);
    to->factor = w.factor;
    if (!view_through(&w, t, step)) return false;
    w.first += before * step[axis];
    return lies_beside(&w, &m, type_count(all), to);
}

static void find_packed(Heads *h, NodeId id) {
    const Node *c = node_get(h->g, id);
    Packed p = {.concat = id};
    NodeId grad = {0};
    bool has[3] = {false};
    if (c->op != OP_CONCAT || c->nin != 3) return;
    for (int i = 0; i < 3; i++) {
        Beside b;
        int at;
        NodeId of;
        if (!find_part(h, c, i, &of, &at, &b) || (i && of.i != grad.i)) return;
        grad = of;
        p.part[at] = b;
        has[at] = true;
    }
    if (has[0] && has[1] && has[2]) h->packed[grad.i] = p;
}

/* Exchanges heads and rows, in both directions. */
static ValueId exchanged(Builder *b, ValueId v) {
    int64_t perm[MAX_RANK];
    int r = value_type(b->g, v)->rank;
    for (int d = 0; d < r; d++) perm[d] = d;
    perm[r - 3] = r - 2;
    perm[r - 2] = r - 3;
    return b_transpose(b, v, perm);
}

/* The source as [.., rows, width, features]; t: type of the matrices. */
static ValueId as_lines(Builder *b, const Beside *s, const Type *t,
                        const Matrices *m) {
    int64_t dim[MAX_RANK];
    for (int d = 0; d < t->rank; d++) dim[d] = t->dim[d];
    dim[t->rank - 3] = m->rows;
    dim[t->rank - 2] = s->width;
    dim[t->rank - 1] = m->features;
    return b_reshape(b, s->source, t->rank, dim);
}

/* A value with the matrices of v, one of `heads` for each row, at that
   position. */
static bool find_result(const Graph *g, ValueId v, Beside *s) {
    Matrices m = matrices_of(value_type(g, v), false);
    return find_beside(g, v, &m, s) && s->width == m.heads && s->factor == 1;
}

static ValueId result_lines(Builder *b, ValueId v, const Beside *s) {
    const Type *t = value_type(b->g, v);
    Matrices m = matrices_of(t, false);
    return as_lines(b, s, t, &m);
}

/* True if q, k and v of the node are stored beside rows. */
static bool find_operands(const Graph *g, const Node *n, Beside *s) {
    if (attr_find(n, AK_heads)) return false;
    for (int i = 0; i < 3; i++) {
        Matrices m = operand_matrices(g, n, i);
        if (!dtype_is_low(value_dtype(g, n->in[i])) ||
            !find_beside(g, n->in[i], &m, &s[i]))
            return false;
    }
    return s[2].factor == 1;
}

enum { NATTR = 8 };

/* Sets in[0..2] and the attributes for operands stored as s says. */
static int heads_operands(Rewriter *rw, const Node *n, const Beside *s,
                          ValueId *in, int64_t *heads, Attr *to) {
    const Graph *g = rw->g;
    int count = 0;
    double scale = attr_float(n, AK_scale) * s[0].factor * s[1].factor;
    for (int i = 0; i < 3; i++) {
        Matrices m = operand_matrices(g, n, i);
        bool again = i && same_value(s[i].source, s[0].source) &&
                     s[i].width == s[0].width;
        in[i] = again ? in[0]
                      : as_lines(&rw->b, &s[i], value_type(g, n->in[i]), &m);
        heads[2 * i] = s[i].first;
        heads[2 * i + 1] = m.heads;
    }
    static const AttrKey flags[] = {AK_causal, AK_offset, AK_zeros, AK_salt};
    for (int i = 0; i < 4; i++)
        if (attr_int(n, flags[i]))
            to[count++] = attr_i(flags[i], attr_int(n, flags[i]));
    to[count++] = attr_v(AK_heads, heads, 6);
    to[count++] = attr_i(AK_trans_b, 1);
    if (scale != 1) to[count++] = attr_f(AK_scale, scale);
    if (attr_float(n, AK_ratio) > 0)
        to[count++] = attr_f(AK_ratio, attr_float(n, AK_ratio));
    return count;
}

/* True if a node that exchanges heads and rows reads v. */
static bool is_exchanged(const Heads *h, ValueId v) {
    const int64_t *perm;
    for (Users u = users_of(&h->users, v); u.at < u.end; u.at++) {
        const Node *n = node_get(h->g, *u.at);
        int r = n->op == OP_TRANSPOSE ? attr_ints(n, AK_perm, &perm) : 0;
        bool same = r >= 3 && perm[r - 3] == r - 2 && perm[r - 2] == r - 3 &&
                    perm[r - 1] == r - 1;
        for (int d = 0; same && d < r - 3; d++) same = perm[d] == d;
        if (same) return true;
    }
    return false;
}

static bool heads_forward(Rewriter *rw, const Node *old, ValueId *with) {
    Beside s[3];
    Graph *g = rw->g;
    Node n = *old;
    ValueId in[5];
    int64_t heads[6];
    Attr attrs[NATTR];
    if (!is_exchanged(rw->user, n.out[0]) || !find_operands(g, &n, s))
        return false;
    int nattr = heads_operands(rw, &n, s, in, heads, attrs);
    for (int i = 3; i < n.nin; i++) in[i] = n.in[i];
    DType d[] = {value_dtype(g, n.out[0]), value_dtype(g, n.out[1])};
    NodeId id =
        build_multi(&rw->b, OP_ATTEND, in, n.nin, attrs, nattr, 2, d, NULL);
    with[1] = node_get(g, id)->out[1];
    with[0] = exchanged(&rw->b, node_get(g, id)->out[0]);
    rewrite_take_name(g, n.out[0], with[0]);
    rewrite_take_name(g, n.out[1], with[1]);
    return true;
}

/* delta, the sums of dy * y, beside rows. */
static ValueId moved_delta(Rewriter *rw, ValueId delta) {
    Beside s[2];
    const Graph *g = rw->g;
    const int64_t *axes;
    const Node *r = def_of(g, delta, OP_REDUCE_SUM);
    const Node *m = r ? def_of(g, r->in[0], OP_MUL) : NULL;
    int64_t last = value_type(g, delta)->rank - 1;
    if (!m || attr_ints(r, AK_axes, &axes) != 1 || axes[0] != last)
        return exchanged(&rw->b, delta);
    ValueId x[] = {m->in[0], m->in[1]};
    for (int i = 0; i < 2; i++)
        if (!shape_equal(value_type(g, x[i]), value_type(g, r->in[0])) ||
            !find_result(g, x[i], &s[i]))
            return exchanged(&rw->b, delta);
    for (int i = 0; i < 2; i++) x[i] = result_lines(&rw->b, x[i], &s[i]);
    return b_reduce(&rw->b, OP_REDUCE_SUM,
                    b2(&rw->b, OP_MUL, x[0], x[1], DT_F32), &last, 1, true,
                    DT_F32);
}

/* True if the concat of gradients is the gradient of the single value that
   contains all three operands. */
static bool is_packed(const Packed *p, const Beside *s, const int64_t *heads) {
    int64_t all = 0;
    for (int i = 0; i < 3; i++) {
        all += heads[2 * i + 1];
        if (!p->concat.i || !same_value(s[i].source, s[0].source) ||
            s[i].width != p->part[i].width || s[i].first != p->part[i].first ||
            s[i].factor != p->part[i].factor)
            return false;
    }
    return all == s[0].width;
}

/* Result i of the node for the old readers; its operand x is stored as s
   says. */
static void replace_result(Rewriter *rw, const Node *n, int i, ValueId x,
                           const Beside *s, ValueId *with) {
    Heads *h = rw->user;
    Graph *g = rw->g;
    ValueId v = exchanged(&rw->b, x);
    if (i == 1 && !attr_int(n, AK_trans_b)) {
        int64_t perm[MAX_RANK];
        int r = value_type(g, v)->rank;
        for (int d = 0; d < r; d++) perm[d] = d;
        perm[r - 2] = r - 1;
        perm[r - 1] = r - 2;
        v = b_transpose(&rw->b, v, perm);
    }
    *with = v;
    if (s->factor == 1) return;
    Users u = users_of(&h->users, n->out[i]);
    const Node *m =
        h->uses[n->out[i].i] == 1 && u.at < u.end ? node_get(g, *u.at) : NULL;
    for (int k = 0; m && m->op == OP_MUL && k < 2; k++)
        if (is_number(g, m->in[k], s->factor) &&
            value_get(g, m->out[0])->type.i == value_get(g, v)->type.i)
            h->instead[u.at->i] = v;
    *with = b2(&rw->b, OP_MUL, v, b_scalar(&rw->b, DT_F32, 1 / s->factor),
               value_dtype(g, n->out[i]));
}

static bool heads_backward(Rewriter *rw, NodeId old, ValueId *with) {
    Beside s[3], dy;
    Heads *h = rw->user;
    Graph *g = rw->g;
    Node n = *node_get(g, old);
    ValueId in[8];
    int64_t heads[6];
    Attr attrs[NATTR];
    DType d[3];
    if (n.nout != 3 || !find_operands(g, &n, s) ||
        !find_result(g, n.in[3], &dy))
        return false;
    int nattr = heads_operands(rw, &n, s, in, heads, attrs);
    in[3] = result_lines(&rw->b, n.in[3], &dy);
    in[4] = n.in[4];
    in[5] = moved_delta(rw, n.in[5]);
    for (int i = 6; i < n.nin; i++) in[i] = n.in[i];
    for (int i = 0; i < 3; i++) d[i] = value_dtype(g, n.out[i]);
    const Packed *p = &h->packed[old.i];
    bool packed = is_packed(p, s, heads);
    NodeId id = build_multi(&rw->b, OP_ATTEND_GRAD, in, n.nin, attrs, nattr,
                            packed ? 1 : 3, d, NULL);
    if (packed) {
        h->instead[p->concat.i] = node_get(g, id)->out[0];
        return false; /* the old node's results have no readers */
    }
    for (int i = 0; i < 3; i++)
        replace_result(rw, &n, i, node_get(g, id)->out[i], &s[i], &with[i]);
    return true;
}

static bool heads_rule(Rewriter *rw, NodeId id, ValueId *with) {
    Heads *h = rw->user;
    if (id.i >= h->limit) return false;
    const Node *n = node_get(rw->g, id);
    if (n->op == OP_ATTEND) return heads_forward(rw, n, with);
    if (n->op == OP_ATTEND_GRAD) return heads_backward(rw, id, with);
    if (!is_value(h->instead[id.i])) return false;
    const Type t = *value_type(rw->g, n->out[0]);
    with[0] = b_reshape(&rw->b, h->instead[id.i], t.rank, t.dim);
    rewrite_take_name(rw->g, node_get(rw->g, id)->out[0], with[0]);
    return true;
}

Status pass_heads(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        Heads h = {.g = g, .limit = (uint32_t)g->nodes.len};
        bool any = false;
        for (int k = 0; k < g->order.len; k++)
            any |= node_at(g, k)->op == OP_ATTEND ||
                   node_at(g, k)->op == OP_ATTEND_GRAD;
        if (!any || !target_of(g)->attend_heads) continue;
        h.uses = graph_use_counts(g, cx->scratch);
        h.users = graph_users(g, cx->scratch);
        h.packed = NEW_ARRAY(cx->scratch, Packed, g->nodes.len);
        h.instead = NEW_ARRAY(cx->scratch, ValueId, g->nodes.len);
        for (int k = 0; k < g->order.len; k++)
            find_packed(&h, g->order.data[k]);
        rewrite_graph(g, cx->scratch, heads_rule, &h);
    }
    return OK;
}
