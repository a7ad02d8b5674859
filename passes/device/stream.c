/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: computes a loss over a wide matrix product for some rows at a time,
   forward and backward, so that the product is never whole in memory.
   Before:  %y = matmul %x, %w {trans_b=1} : bf16[2048,50257]
            %m = reduce_max %y ..   %l = .. : f32[2048,1]     the loss of rows
            %d = .. : bf16[2048,50257]                        its gradient
            %dx = matmul %d, %w     %dw = matmul %d, %x {trans_a=1}
   After:   for each of 8 chunks of 256 rows
            %x.1 = slice %x   %y.1 = matmul %x.1, %w {trans_b=1}   ..
            %dx.1 = matmul %d.1, %w    %dw.1 = matmul %d.1, %x.1 {trans_a=1}
            and %l = concat %l.1, ..   %dx = concat %dx.1, ..
                %dw = add .. (add %dw.1, %dw.2) ..
   The gradient of a row's loss depends on nothing but the row, so that a chunk
   can be finished before the next one begins. Chunks of classes would compute
   each logit twice: once for the sum of exponentials and once for the gradient.

   The nodes that move into the chunks are found by their shape: all readers of
   wide values, and the numbers per row between them. Ops may work element by
   element, fold the classes, or fold the rows into a sum: matrix products and
   column sums. If anything else reads the logits, or the gradient needs a
   number that depends on all rows (the square of a mean loss), the graph stays
   unchanged. Rows keep their bits; sums over all rows are added up chunk by
   chunk, in f32.

   requires     stage PRIMITIVE
   establishes  Graph.rows_at_once
   breaks       nothing; leaves dead nodes                                   */
#include "passes/rewrite.h"
#include "ir/fn/fn.h"
#include "passes/passes.h"

#include <string.h>

/* With --logit-rows auto, smaller logits stay whole, .. */
#define AUTO_BYTES ((int64_t)256 << 20)
/* .. and a chunk has so many rows that its products take much longer than
   reading and writing the weight and its gradient once more. */
#define AUTO_ROWS   256
#define AUTO_CHUNKS 8
#define MOST_CHUNKS 256 /* --logit-rows N */

/* The role of a value for the chunks. */
typedef enum Form {
    ONE,  /* the same for all rows: read unchanged */
    LINE, /* a number per class */
    ROWS, /* a number per row: [n,1] */
    WIDE, /* a number per row and class: [n,columns] */
    PART, /* rows of a matrix product: [n,k] */
    SUM,  /* a sum over rows */
    BAD
} Form;

typedef struct Stream {
    Graph *g;
    Arena *a;
    Builder b;
    NodeId product;
    int at; /* its position in the order */
    int64_t rows, columns;
    bool *within;    /* per value: a node of the chunks computes it */
    bool *after;     /* per value: it depends on the product */
    bool *inside;    /* per position: the node moves into the chunks */
    int last;        /* the largest such position */
    uint8_t *form;   /* per value within */
    ValueId *now;    /* per value: its piece in this chunk; 0: not built */
    ValueId *flat;   /* per value from outside: its form with rows in one
                        dimension */
    int64_t from, n; /* rows of this chunk */
    int chunk;       /* number of the chunk, as in Loc.chunk */
} Stream;

/* ---- forms --------------------------------------------------------------- */

static bool is_wide(const Stream *s, const Type *t) {
    return t->rank >= 2 && t->dim[t->rank - 1] == s->columns &&
           type_count(t) == s->rows * s->columns;
}

static bool is_rows(const Stream *s, const Type *t) {
    return type_count(t) == s->rows;
}

/* The role of an operand of shape x for an element-wise result of shape t. */
static Form broadcast_form(const Type *x, const Type *t) {
    int shift = t->rank - x->rank, last = t->rank - 1;
    bool all = shift == 0, one = true;
    for (int i = 0; i < x->rank - 1; i++) {
        all &= x->dim[i] == t->dim[i + shift];
        one &= x->dim[i] == 1;
    }
    bool ends_in_1 = x->rank == 0 || x->dim[x->rank - 1] == 1;
    if (one && ends_in_1) return ONE;
    if (one && x->dim[x->rank - 1] == t->dim[last]) return LINE;
    return !all ? BAD : ends_in_1 ? ROWS : WIDE;
}

/* The only axis that a reduction folds; -1: several; -2: all but the last. */
static int folded_axis(const Node *n, int rank) {
    const int64_t *axes;
    int count = attr_ints(n, AK_axes, &axes);
    if (count == 1 && axes[0] == rank - 1) return rank - 1;
    if (count != rank - 1) return -1;
    for (int i = 0; i < count; i++)
        if (axes[i] == rank - 1) return -1;
    return -2;
}

static bool from_within(const Stream *s, ValueId v) {
    return is_value(v) && s->within[v.i];
}

/* True if operand v, of either side, can be read as `want`. */
static bool fits(const Stream *s, ValueId v, Form want) {
    if (!from_within(s, v)) return !s->after[v.i];
    return s->form[v.i] == want;
}

static Form elem_form(const Stream *s, const Node *n) {
    const Type *t = value_type(s->g, n->out[0]);
    bool wide = is_wide(s, t);
    if (n->nout != 1 || (!wide && !is_rows(s, t))) return BAD;
    for (int i = 0; i < n->nin; i++) {
        if (!is_value(n->in[i])) return BAD;
        const Type *x = value_type(s->g, n->in[i]);
        Form f = wide                 ? broadcast_form(x, t)
                 : shape_equal(x, t)  ? ROWS
                 : type_count(x) == 1 ? ONE
                                      : BAD;
        if (f == BAD || !fits(s, n->in[i], f)) return BAD;
    }
    return wide ? WIDE : ROWS;
}

static Form reduce_form(const Stream *s, const Node *n) {
    if (!from_within(s, n->in[0]) || s->form[n->in[0].i] != WIDE) return BAD;
    int axis = folded_axis(n, value_type(s->g, n->in[0])->rank);
    if (axis >= 0) return ROWS;
    return axis == -2 && n->op == OP_REDUCE_SUM ? SUM : BAD;
}

/* A matrix that is the same for all rows. */
static bool is_matrix(const Stream *s, ValueId v) {
    return fits(s, v, ONE) && value_type(s->g, v)->rank == 2;
}

static Form matmul_form(const Stream *s, const Node *n) {
    bool ta = attr_int(n, AK_trans_a), tb = attr_int(n, AK_trans_b);
    ValueId x = n->in[0], y = n->in[1];
    bool first = from_within(s, x);
    if (first == from_within(s, y)) return BAD;
    if (s->form[first ? x.i : y.i] != WIDE) return BAD;
    if (first && !ta && is_matrix(s, y)) return PART;
    if (value_type(s->g, x)->rank != 2 || !fits(s, first ? y : x, PART) ||
        value_type(s->g, y)->rank != 2)
        return BAD;
    return ta && !tb ? SUM : BAD;
}

static Form reshape_form(const Stream *s, const Node *n) {
    const Type *t = value_type(s->g, n->out[0]);
    if (!from_within(s, n->in[0]) || value_dtype(s->g, n->in[0]) != t->dtype)
        return BAD;
    Form f = s->form[n->in[0].i];
    if (f == WIDE) return is_wide(s, t) ? WIDE : BAD;
    return f == ROWS ? ROWS : BAD;
}

static Form form_of(const Stream *s, const Node *n) {
    const Type *x = n->nin ? value_type(s->g, n->in[0]) : NULL;
    if (n->op == OP_IOTA) {
        const Type *t = value_type(s->g, n->out[0]);
        return attr_int(n, AK_axis) == t->rank - 1 ? WIDE : BAD;
    }
    if (n->op == OP_FULL) return WIDE;
    if (n->op == OP_RESHAPE) return reshape_form(s, n);
    if (n->op == OP_MATMUL) return matmul_form(s, n);
    if (n->op == OP_ARGMAX)
        return from_within(s, n->in[0]) && s->form[n->in[0].i] == WIDE &&
                       attr_int(n, AK_axis) == x->rank - 1
                   ? ROWS
                   : BAD;
    if (node_kind(n) == KIND_REDUCE) return reduce_form(s, n);
    return node_kind(n) == KIND_ELEM ? elem_form(s, n) : BAD;
}

/* ---- what moves into the chunks ------------------------------------------ */

static bool depends(const Stream *s, const Node *n) {
    bool any = false;
    for (int i = 0; i < n->nin; i++)
        any |= is_value(n->in[i]) && s->after[n->in[i].i];
    return any;
}

/* Nodes that compute wide values independent of the product. */
static bool makes_wide(const Stream *s, const Node *n) {
    return n->nout == 1 && is_wide(s, value_type(s->g, n->out[0])) &&
           (node_kind(n) == KIND_ELEM || n->op == OP_FULL ||
            (n->op == OP_IOTA && form_of(s, n) == WIDE));
}

static void stream_take(Stream *s, int at) {
    s->inside[at] = true;
    if (at > s->last) s->last = at;
}

/* All readers of wide values, then the nodes that they need and that depend
   on the product, and wide values that depend only on shapes and labels. */
static void stream_gather(Stream *s) {
    const Graph *g = s->g;
    bool *wide = NEW_ARRAY(s->a, bool, g->values.len);
    bool *read = NEW_ARRAY(s->a, bool, g->values.len);
    for (int i = s->at; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool any = i == s->at;
        for (int k = 0; k < n->nin; k++) any |= wide[n->in[k].i];
        if (any) stream_take(s, i);
        bool on = i == s->at || depends(s, n);
        for (int k = 0; k < n->nout && on; k++) {
            s->after[n->out[k].i] = true;
            wide[n->out[k].i] = is_wide(s, value_type(g, n->out[k]));
        }
    }
    for (int i = s->last; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool any = false;
        for (int k = 0; k < n->nout; k++) any |= read[n->out[k].i];
        if (any && (depends(s, n) || makes_wide(s, n))) stream_take(s, i);
        for (int k = 0; k < n->nin && s->inside[i]; k++)
            read[n->in[k].i] = true;
    }
}

/* A value computed in the chunks that something else reads. */
static bool is_result(const Stream *s, const bool *read, ValueId v) {
    return s->after[v.i] && read[v.i];
}

/* Per value: nodes that stay, or the graph's roots, read it. */
static bool *read_outside(const Stream *s) {
    Graph *g = s->g;
    bool *read = NEW_ARRAY(s->a, bool, g->values.len);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin && !s->inside[i]; k++)
            read[n->in[k].i] = true;
    }
    for (int i = 0; graph_root(g, i); i++) read[graph_root(g, i)->i] = true;
    read[0] = false;
    return read;
}

/* Gives every value its form; false: a node cannot be cut into rows, a wide
   value is read elsewhere, or nothing folds the classes. */
static bool find_forms(Stream *s, const bool *read) {
    bool folds = false;
    for (int i = 0; i <= s->last; i++) {
        const Node *n = node_at(s->g, i);
        if (!s->inside[i]) continue;
        Form f = i == s->at ? WIDE : form_of(s, n);
        if (f == BAD || n->nout != 1) return false;
        ValueId v = n->out[0];
        s->within[v.i] = true;
        s->form[v.i] = (uint8_t)f;
        if (f == WIDE && is_result(s, read, v)) return false;
        folds |= f == ROWS && node_kind(n) == KIND_REDUCE;
    }
    return folds;
}

/* True if chunked logits save more memory than the sums over rows cost,
   which chunks read and write again: gradients of large weights, with few
   rows. */
static bool saves(const Stream *s, const bool *read, int chunks) {
    const Graph *g = s->g;
    const Node *product = node_at(g, s->at);
    int64_t logits = type_bytes(value_type(g, product->out[0])), sums = 0;
    for (int i = 0; i <= s->last; i++) {
        ValueId v = node_at(g, i)->out[0];
        if (s->inside[i] && s->form[v.i] == SUM && is_result(s, read, v))
            sums += value_count(g, v) * dtype_info[DT_F32].bytes;
    }
    return logits / chunks * (chunks - 1) > sums;
}

/* ---- the chunks ---------------------------------------------------------- */

static ValueId stream_rows_of(Stream *s, ValueId v, int64_t columns) {
    int64_t dim[] = {s->rows, columns}, starts[] = {s->from, 0},
            sizes[] = {s->n, columns}, steps[] = {1, 1};
    Attr attrs[] = {attr_v(AK_sizes, sizes, 2), attr_v(AK_starts, starts, 2),
                    attr_v(AK_steps, steps, 2)};
    ValueId *flat = &s->flat[v.i];
    if (!flat->i) *flat = b_reshape(&s->b, v, 2, dim);
    return build(&s->b, OP_SLICE, flat, 1, attrs, 3, value_dtype(s->g, v),
                 NULL);
}

/* Value v in the form that the chunk reads. */
static ValueId piece(Stream *s, ValueId v, Form f) {
    const Type *t = value_type(s->g, v);
    int64_t last = t->rank ? t->dim[t->rank - 1] : 1;
    if (f == LINE || (f == ONE && t->rank > 2))
        return b_reshape(&s->b, v, 1, &last);
    if (f == ONE) return v;
    if (!s->now[v.i].i)
        s->now[v.i] = stream_rows_of(s, v, f == ROWS ? 1 : last);
    return s->now[v.i];
}

static ValueId build_elem(Stream *s, NodeId id, bool wide) {
    const Node *n = node_get(s->g, id);
    Type t = *value_type(s->g, n->out[0]);
    ValueId in[MAX_FN_OPERANDS];
    int nin = n->nin;
    for (int i = 0; i < nin; i++) {
        ValueId v = node_get(s->g, id)->in[i];
        const Type *x = value_type(s->g, v);
        Form f = wide ? broadcast_form(x, &t) : type_count(x) == 1 ? ONE : ROWS;
        in[i] = piece(s, v, f);
    }
    n = node_get(s->g, id);
    return build(&s->b, n->op, in, nin, n->attrs, n->nattr, t.dtype, NULL);
}

static ValueId build_gen_rows(Stream *s, const Node *n) {
    int64_t dim[] = {s->n, s->columns};
    Attr axis = attr_i(AK_axis, 1);
    bool iota = n->op == OP_IOTA;
    return build_gen(&s->b, n->op, NULL, 0, iota ? &axis : n->attrs,
                     iota ? 1 : n->nattr,
                     type_make(value_dtype(s->g, n->out[0]), 2, dim), NULL);
}

/* A 16-bit sum is rounded once, when all rows are added. */
static DType sum_dtype(DType d) { return dtype_is_low(d) ? DT_F32 : d; }

static ValueId build_node(Stream *s, NodeId id) {
    Node n = *node_get(s->g, id);
    Form f = (Form)s->form[n.out[0].i];
    DType d = value_dtype(s->g, n.out[0]);
    s->b.flags = n.flags;
    s->b.loc = n.loc;
    s->b.loc.chunk = s->chunk;
    if (n.op == OP_IOTA || n.op == OP_FULL) return build_gen_rows(s, &n);
    if (n.op == OP_RESHAPE) return piece(s, n.in[0], f);
    if (n.op == OP_MATMUL) {
        bool ta = attr_int(&n, AK_trans_a);
        ValueId x =
            piece(s, n.in[0], id.i == s->product.i || f == SUM ? PART : WIDE);
        ValueId y = piece(s, n.in[1], f == SUM ? PART : ONE);
        return b_matmul(&s->b, x, y, ta, attr_int(&n, AK_trans_b),
                        f == SUM ? sum_dtype(d) : d);
    }
    if (n.op == OP_ARGMAX) {
        Attr attrs[] = {attr_i(AK_axis, 1), attr_i(AK_keepdims, 1)};
        ValueId x = piece(s, n.in[0], WIDE);
        return build(&s->b, OP_ARGMAX, &x, 1, attrs, 2, d, NULL);
    }
    if (node_kind(&n) == KIND_REDUCE) {
        int64_t axis = f == SUM ? 0 : 1;
        return b_reduce(&s->b, n.op, piece(s, n.in[0], WIDE), &axis, 1, true,
                        f == SUM ? sum_dtype(d) : d);
    }
    return build_elem(s, id, f == WIDE);
}

/* ---- results ------------------------------------------------------------- */

/* The last step for one value, after the chunks. */
typedef struct Result {
    ValueId of, sum;
    ValueId *parts;
} Result;

static void keep_piece(Stream *s, Result *r, int chunk) {
    ValueId v = s->now[r->of.i];
    const Node *n = node_get(s->g, value_get(s->g, r->of)->def);
    s->b.flags = n->flags;
    s->b.loc = n->loc;
    s->b.loc.chunk = s->chunk;
    if (s->form[r->of.i] == SUM)
        r->sum = chunk ? b2(&s->b, OP_ADD, r->sum, v, value_dtype(s->g, v)) : v;
    else
        r->parts[chunk] = v;
}

static ValueId finish(Stream *s, Result *r, int chunks) {
    Type t = *value_type(s->g, r->of);
    Attr axis = attr_i(AK_axis, 0);
    ValueId v = r->sum;
    const Node *n = node_get(s->g, value_get(s->g, r->of)->def);
    s->b.flags = n->flags;
    s->b.loc = n->loc;
    if (!v.i)
        v = build(&s->b, OP_CONCAT, r->parts, chunks, &axis, 1, t.dtype, NULL);
    v = b_cast(&s->b, v, t.dtype);
    if (!shape_equal(value_type(s->g, v), &t))
        v = b_reshape(&s->b, v, t.rank, t.dim);
    rewrite_take_name(s->g, r->of, v);
    return v;
}

/* The nodes that stay and depend on the product come after the chunks. */
static void build_chunks(Stream *s, const bool *read, int chunks) {
    Graph *g = s->g;
    int n, nresult = 0, nvalues = g->values.len;
    NodeId *old = order_take(g, s->a, &n);
    Result *results = NEW_ARRAY(s->a, Result, s->last + 1);
    bool *waits = NEW_ARRAY(s->a, bool, n);
    int64_t each = (s->rows + chunks - 1) / chunks;
    chunks = (int)((s->rows + each - 1) / each);
    g->rows_at_once = each;
    g->rows_all = s->rows;
    for (int i = 0; i <= s->last; i++) {
        const Node *x = node_get(g, old[i]);
        ValueId v = x->out[0];
        waits[i] = s->after[v.i];
        if (s->inside[i] && is_result(s, read, v))
            results[nresult++] =
                (Result){.of = v, .parts = NEW_ARRAY(s->a, ValueId, chunks)};
        if (!waits[i]) vec_push(g->arena, &g->order, old[i]);
    }
    for (int c = 0; c < chunks; c++) {
        s->from = c * each;
        s->chunk++;
        s->n = s->from + each < s->rows ? each : s->rows - s->from;
        memset(s->now, 0, (size_t)nvalues * sizeof *s->now);
        for (int i = 0; i <= s->last; i++)
            if (s->inside[i])
                s->now[node_get(g, old[i])->out[0].i] = build_node(s, old[i]);
        for (int i = 0; i < nresult; i++) keep_piece(s, &results[i], c);
    }
    ValueId *map = NEW_ARRAY(s->a, ValueId, nvalues);
    for (int i = 0; i < nresult; i++)
        map[results[i].of.i] = finish(s, &results[i], chunks);
    for (int i = 0; i < n; i++) {
        if (i <= s->last && (!waits[i] || s->inside[i])) continue;
        Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin; k++)
            if (map[x->in[k].i].i) x->in[k] = map[x->in[k].i];
        vec_push(g->arena, &g->order, old[i]);
    }
    for (int i = 0; graph_root(g, i); i++)
        if (map[graph_root(g, i)->i].i)
            *graph_root(g, i) = map[graph_root(g, i)->i];
}

/* ---- the decision -------------------------------------------------------- */

/* True for an operand of 8 bits (pass eight): a layer's, so that its product
   leads to no loss of rows, though the largest numbers of rows may be all that
   leaves its layer. */
static bool reads_codes(const Graph *g, const Node *n) {
    const Node *x = value_maker(g, view_root(g, n->in[0]));
    return x && !x->fn && x->op == OP_CAST &&
           dtype_info[value_dtype(g, x->in[0])].stored;
}

/* The number of chunks for the rows of product n; 1: it stays whole. */
static int chunks_of(const Graph *g, const Node *n, const Options *o) {
    const Type *t = value_type(g, n->out[0]);
    if (n->op != OP_MATMUL || t->rank < 2 || o->logit_rows == 0 ||
        value_type(g, n->in[1])->rank != 2 || attr_int(n, AK_trans_a) ||
        reads_codes(g, n))
        return 1;
    int64_t columns = t->dim[t->rank - 1], count = type_count(t);
    int64_t rows = columns > 1 ? count / columns : 0;
    if (o->logit_rows > 0) {
        int64_t chunks = (rows + o->logit_rows - 1) / o->logit_rows;
        return chunks < MOST_CHUNKS ? (int)chunks : MOST_CHUNKS;
    }
    if (rows < 2 * AUTO_ROWS || columns <= value_type(g, n->in[0])->dim[0] ||
        count < AUTO_BYTES / dtype_info[t->dtype].bytes)
        return 1;
    int64_t chunks = rows / AUTO_ROWS;
    return chunks < AUTO_CHUNKS ? (int)chunks : AUTO_CHUNKS;
}

/* The largest number of a chunk in the graph. */
static int last_chunk(const Graph *g) {
    int last = 0;
    for (int i = 0; i < g->order.len; i++)
        if (node_at(g, i)->loc.chunk > last) last = node_at(g, i)->loc.chunk;
    return last;
}

/* last: number of the last chunk of the graph so far. Numbers of two losses
   are not consecutive, as either may run first. */
static void stream_product(Graph *g, int at, int chunks, bool asked, int *last,
                           Arena *a) {
    const Type *t = value_type(g, node_at(g, at)->out[0]);
    int nv = g->values.len;
    int64_t columns = t->dim[t->rank - 1];
    Stream s = {.g = g,
                .a = a,
                .b = {.g = g},
                .at = at,
                .rows = type_count(t) / columns,
                .columns = columns,
                .within = NEW_ARRAY(a, bool, nv),
                .after = NEW_ARRAY(a, bool, nv),
                .inside = NEW_ARRAY(a, bool, g->order.len),
                .form = NEW_ARRAY(a, uint8_t, nv),
                .now = NEW_ARRAY(a, ValueId, nv),
                .flat = NEW_ARRAY(a, ValueId, nv)};
    s.product = g->order.data[at];
    s.chunk = *last;
    stream_gather(&s);
    const bool *read = read_outside(&s);
    if (!find_forms(&s, read) || (!asked && !saves(&s, read, chunks))) return;
    build_chunks(&s, read, chunks);
    *last = s.chunk + 1;
}

Status pass_stream(Module *m, PassCtx *cx) {
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        VEC(NodeId) products = {0};
        int last = last_chunk(g) ? last_chunk(g) + 1 : 0;
        for (int k = 0; k < g->order.len; k++)
            if (chunks_of(g, node_at(g, k), cx->opt) > 1)
                vec_push(cx->scratch, &products, g->order.data[k]);
        for (int k = 0; k < products.len; k++) {
            NodeId id = products.data[k];
            int at = graph_positions(g, cx->scratch)[id.i];
            if (at >= 0)
                stream_product(g, at, chunks_of(g, node_get(g, id), cx->opt),
                               cx->opt->logit_rows > 0, &last, cx->scratch);
        }
    }
    return OK;
}
