/* SPDX-License-Identifier: Apache-2.0 */
/* wide.c: see wide.h.

   Autocast's types follow from the primitives: a product gives 16 bits, what
   is computed element by element of 16 bits alone has them too, and an fp32
   operand that is more than a number widens the result (a product's bias and
   the gains of a norm do not), as do functions that autocast has in fp32 on
   GPUs (exp, log, softplus, ..).  Where autocast has 16 bits it has rounded the
   value itself, so another rounding adds an error of the same size.

   What it has in fp32 may be rounded only where no reader can make more of the
   error than autocast makes of its own roundings:
     - a product rounds its operand anyway
     - moves, products with a number of each element, and functions without a
       singular point pass on a relative error as it is; it counts what
       they end in
     - a sum with what autocast has rounded: where the two cancel, the error of
       the other is as large
     - a norm divides by what it takes from all elements of a row
     - a sum of two residual streams, as measured (docs/numerics.md)
   Differences of two fp32 values or with a number, logarithms, exponentials,
   powers, roots, quotients, comparisons and positions may cancel or amplify.
   After the last matrix product of forward the loss is computed, and no
   product rounds there: all values that autocast has in fp32 stay fp32, as
   do the gradients up to the first product of backward, and gradients
   computed from values that must be exact. */
#include "passes/common/wide.h"

#include <math.h>

#include "passes/common/wide_products.h"
#include "passes/rewrite.h"

static const char near_loss[] = "fp32 in autocast, no product reads it";
static const char amplified[] = "fp32 in autocast, and its error would grow";
static const char position[] = "a position";
static const char cancels[] = "a moment, which cancels";

bool is_leaf(const Graph *g, ValueId v) {
    ValueKind kind = value_get(g, v)->kind;
    return kind == VK_VAR || kind == VK_CONST;
}

DType dtype_of(const Graph *g, ValueId v) {
    return v.i ? value_dtype(g, v) : NUM_DTYPES;
}

bool has_float(const Graph *g, ValueId v) {
    return is_value(v) && dtype_is_float(value_dtype(g, v));
}

bool broadcasts(const Graph *g, const Node *n, ValueId v) {
    OpKind kind = node_kind(n);
    return (kind == KIND_ELEM || n->op == OP_EXPAND) &&
           value_count(g, v) < value_count(g, n->out[0]);
}

bool shares_type(const Node *n) {
    return node_kind(n) == KIND_VIEW || n->op == OP_MAX_POOL ||
           n->op == OP_MAX_POOL_GRAD || n->op == OP_AVG_POOL ||
           n->op == OP_AVG_POOL_GRAD;
}

static bool wide_is_float(const Graph *g, ValueId v) {
    return v.i && dtype_is_float(value_dtype(g, v));
}

static bool wide_is_activation(const Graph *g, const Node *n, ValueId v) {
    return !is_leaf(g, v) && !broadcasts(g, n, v);
}

/* The 16-bit copy that products read. */
static bool is_copy(const Facts *f, const Node *n) {
    return n->op == OP_CAST && !attr_int(n, AK_user) &&
           !(n->flags & NODE_UPDATE) && dtype_of(f->g, n->in[0]) == DT_F32 &&
           dtype_of(f->g, n->out[0]) == f->low;
}

/* ---- products of vectors ------------------------------------------------- */

static bool is_line(const Type *t) {
    return t->rank == 2 && (t->dim[0] == 1 || t->dim[1] == 1);
}

bool is_vector_view(const Graph *g, ValueId v) {
    const Node *n = value_maker(g, v);
    return n && n->op == OP_RESHAPE && is_line(value_type(g, v)) &&
           value_type(g, n->in[0])->rank == 1;
}

/* Matrix products that read f32 (autocast.c) and their gradients: those of
   wide_products.h, products with a vector (a linear layer with one output is
   not one), with a computed constant, such as the matrix of a Fourier
   transform, and of functions that autocast has in fp32, such as a
   determinant. */
static void note_wide_products(Facts *f, Arena *a) {
    enum { FEW = 2048 };
    const Graph *g = f->g;
    bool *line = NEW_ARRAY(a, bool, g->values.len); /* read as a vector */
    const bool *fixed = fixed_values(g, false, a);
    f->wide = wide_products(g, INFINITY, a); /* autocast.c has decided */
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        if (n->op == OP_RESHAPE && n->flags &&
            value_type(g, n->out[0])->rank == 1 &&
            is_line(value_type(g, n->in[0])))
            line[n->in[0].i] = true;
        if (n->op != OP_MATMUL || dtype_of(g, n->in[0]) != DT_F32 ||
            dtype_of(g, n->in[1]) != DT_F32)
            continue;
        f->wide[n->out[0].i] |=
            n->loc.inside || fixed[n->in[0].i] || fixed[n->in[1].i] ||
            (value_count(g, n->out[0]) <= FEW &&
             (line[n->out[0].i] || is_vector_view(g, n->in[0]) ||
              is_vector_view(g, n->in[1])));
    }
}

/* A matrix product that rounds its operands. */
static bool is_low_product(const Facts *f, const Node *n) {
    return op_info[n->op].amp == AMP_LOW && !f->wide[n->out[0].i];
}

/* ---- what is few --------------------------------------------------------- */

static bool is_own(const Facts *f, ValueId v) {
    return !is_value(v) || f->own[v.i] || is_leaf(f->g, v);
}

static void note_few(Facts *f, const Node *n) {
    ValueId v = n->out[0];
    OpKind kind = node_kind(n);
    bool few = kind == KIND_REDUCE, own = n->nin > 0;
    for (int k = 0; k < n->nin; k++) {
        ValueId x = n->in[k];
        own &= is_own(f, x);
        if (kind != KIND_ANCHOR && kind != KIND_LIB)
            few |= f->few[x.i] && value_count(f->g, x) == value_count(f->g, v);
    }
    for (int k = 0; k < n->nin && kind != KIND_REDUCE; k++)
        few &= !has_float(f->g, n->in[k]) || f->few[n->in[k].i] ||
               is_own(f, n->in[k]);
    f->few[v.i] = few;
    f->own[v.i] = own;
}

/* ---- autocast's types ---------------------------------------------------- */

/* True if v is the result of a matrix product, possibly moved. */
static bool wide_is_product(const Facts *f, ValueId v) {
    const Graph *g = f->g;
    const Node *n = value_maker(g, v);
    while (n && node_moves(n) && n->nin == 1) n = value_maker(g, n->in[0]);
    return n && is_low_product(f, n);
}

/* True if v is the result of a norm: a quotient by a root, possibly times
   its gain. */
static bool is_normed(const Graph *g, ValueId v) {
    for (int hops = 0; hops < 3; hops++) {
        const Node *n = value_maker(g, v);
        if (!n || n->op != OP_MUL) return false;
        for (int k = 0; k < 2; k++) {
            const Node *root = value_maker(g, n->in[k]);
            while (root && node_moves(root)) root = value_maker(g, root->in[0]);
            if (root && root->op == OP_RSQRT &&
                value_count(g, n->in[k]) < value_count(g, v))
                return true;
        }
        v = is_leaf(g, n->in[0]) ? n->in[1] : n->in[0];
    }
    return false;
}

/* One number per column or channel. */
static bool wide_is_vector(const Graph *g, ValueId v) {
    const Type *t = value_type(g, v);
    int axes = 0;
    for (int i = 0; i < t->rank; i++) axes += t->dim[i] > 1;
    return axes <= 1;
}

/* True if v is a factor of a norm that inference computes from parameters: a
   root in it. */
static bool has_root(const Graph *g, ValueId v, int depth) {
    const Node *n = value_maker(g, v);
    bool any = n && n->op == OP_RSQRT;
    for (int k = 0; n && k < n->nin && depth > 0; k++)
        any |= has_root(g, n->in[k], depth - 1);
    return any;
}

/* True if operand k alone would make the result fp32. */
static bool widens(const Facts *f, const Node *n, int k) {
    const Graph *g = f->g;
    ValueId v = n->in[k];
    bool product = false, normed = false;
    if (!wide_is_float(g, v) || value_count(g, v) == 1 ||
        value_type(g, v)->rank == 0)
        return false;
    /* a mask of zeros and infinities does not change the other elements */
    if (n->op == OP_ADD && f->origins.of[v.i] != FROM_DATA &&
        f->origins.bound[v.i] == 0)
        return false;
    if (!broadcasts(g, n, v) && !is_own(f, v)) return true;
    if (f->few[v.i] && !is_own(f, v)) return false; /* axes of the rows */
    if (is_own(f, v) && wide_is_vector(g, v) && has_root(g, v, 4)) return false;
    bool sum = n->op == OP_ADD || n->op == OP_SUB;
    for (int j = 0; j < n->nin && is_own(f, v) && wide_is_vector(g, v); j++) {
        product |= j != k && sum && wide_is_product(f, n->in[j]);
        normed |= j != k && is_normed(g, n->in[j]);
    }
    return !product && !normed;
}

static void note_half(Facts *f, const Node *n) {
    const Graph *g = f->g;
    bool wide = false, any = false;
    OpKind kind = node_kind(n);
    for (int k = 0; k < n->nin; k++) {
        ValueId v = n->in[k];
        if (!wide_is_float(g, v)) continue;
        if (f->half[v.i])
            any = true;
        else
            wide |= widens(f, n, k);
    }
    bool half = is_low_product(f, n) ||
                (kind != KIND_GEN && any && !wide && !f->wide[n->out[0].i] &&
                 op_info[n->op].torch != TORCH_WIDE);
    if (n->op == OP_CAST && attr_int(n, AK_user))
        half = dtype_is_low(value_dtype(g, n->out[0]));
    for (int k = 0; k < n->nout; k++) f->half[n->out[k].i] = half;
}

/* ---- residual streams ---------------------------------------------------- */

/* Sums in forward of two activations of which PyTorch has one in fp32; values
   that both they and others read; and values that only additions and moves
   bring into them.
 */
static void note_streams(Facts *f) {
    const Graph *g = f->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool sum = n->op == OP_ADD, two = sum;
        bool *high = &f->stream[n->out[0].i];
        if (n->flags || n->loc.amp || f->few[n->out[0].i] ||
            !(sum || node_moves(n)))
            continue;
        for (int k = 0; k < n->nin; k++)
            two &= wide_is_activation(g, n, n->in[k]);
        if (two && !f->half[n->out[0].i]) *high = true;
        for (int k = 0; k < n->nin; k++) {
            ValueId v = n->in[k];
            if (dtype_of(g, v) == DT_F32 && !f->half[v.i] &&
                wide_is_activation(g, n, v) &&
                (*high || (two && f->uses[v.i] > 1)))
                f->stream[v.i] = true;
        }
    }
}

/* ---- what products read -------------------------------------------------- */

/* Values that, possibly moved, are read only as rounded copies. */
static void note_copied(Facts *f) {
    const Graph *g = f->g;
    for (int v = 0; v < g->values.len; v++) f->copied[v] = true;
    for (int i = 0; graph_root(g, i); i++)
        f->copied[graph_root(g, i)->i] = false;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (!is_copy(f, n) && !(node_moves(n) && f->copied[n->out[0].i]))
                f->copied[n->in[k].i] = false;
    }
}

/* ---- whose error does not grow ------------------------------------------- */

typedef struct Growth {
    Facts *f;
    bool *safe;  /* by ValueId.i: no reader amplifies its error */
    bool *ahead; /* by ValueId.i: a forward product is computed from it */
    bool *past;  /* by ValueId.i: computed from a backward product's result */
    bool *read; /* by ValueId.i: a product reads a copy of it, possibly moved */
} Growth;

/* True if o is the mean of v that a norm subtracts from v. */
static bool is_mean_of(const Graph *g, ValueId o, ValueId v) {
    const Node *n = value_maker(g, o);
    while (n && node_moves(n)) n = value_maker(g, n->in[0]);
    return n && n->op == OP_REDUCE_MEAN && same_value(n->in[0], v);
}

/* n is the sum or difference of v and another value. */
static bool sum_is_safe(const Growth *w, const Node *n, ValueId v) {
    const Facts *f = w->f;
    ValueId o = same_value(n->in[0], v) ? n->in[1] : n->in[0], out = n->out[0];
    if (f->few[v.i] && broadcasts(f->g, n, v)) return w->safe[out.i];
    if (same_value(n->in[0], n->in[1])) return w->safe[out.i];
    if (is_own(f, o)) /* a bias; v may be close to a constant */
        return w->safe[out.i] && n->op == OP_ADD &&
               (value_count(f->g, o) > 1 || f->few[v.i]);
    if (is_mean_of(f->g, o, v)) return w->safe[out.i];
    if (f->half[o.i] && !broadcasts(f->g, n, o)) return w->safe[out.i];
    if (n->flags & NODE_BACKWARD) return w->safe[out.i];
    return n->op == OP_ADD && f->stream[out.i] && w->safe[out.i];
}

/* True if n, which reads v, does not amplify an error of v. */
static bool reader_is_safe(const Growth *w, const Node *n, ValueId v) {
    const Facts *f = w->f;
    bool next = w->safe[n->out[0].i];
    if (is_copy(f, n) || is_low_product(f, n)) return true;
    if (f->wide[n->out[0].i]) return next;
    if (n->flags & NODE_UPDATE) return true;
    if (node_moves(n))
        return n->op == OP_GATHER && same_value(n->in[1], v) ? false : next;
    switch (op_growth[n->op]) {
    case GROWTH_NONE: return true;
    case GROWTH_SAME:
        return next && (n->op != OP_CAST || wide_is_float(f->g, n->out[0]));
    case GROWTH_SUM: return sum_is_safe(w, n, v);
    case GROWTH_QUOTIENT:
        return next && (same_value(n->in[0], v) || f->few[v.i]) &&
               !same_value(n->in[0], n->in[1]);
    case GROWTH_ROOT: return f->few[v.i] && next;
    case GROWTH_CHOICE: return next && !same_value(n->in[0], v);
    case GROWTH_SIGN: return is_number(f->g, n->in[same_value(n->in[0], v)], 0);
    case GROWTH_MORE: break;
    }
    return false;
}

static void find_safe(Growth *w) {
    const Graph *g = w->f->g;
    for (int v = 0; v < g->values.len; v++) w->safe[v] = true;
    for (int i = 0; graph_root(g, i); i++) { /* gradients are sums */
        ValueId v = *graph_root(g, i);
        const Node *n = value_maker(g, v);
        w->safe[v.i] = n && n->flags;
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].i && !reader_is_safe(w, n, n->in[k]))
                w->safe[n->in[k].i] = false;
    }
}

static void find_products(Growth *w) {
    const Facts *f = w->f;
    const Graph *g = f->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool past = is_low_product(f, n);
        if (!(n->flags & NODE_BACKWARD)) continue;
        for (int k = 0; k < n->nin; k++) past |= w->past[n->in[k].i];
        for (int k = 0; k < n->nout; k++) w->past[n->out[k].i] = past;
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool moved = node_moves(n) && n->nin == 1 && w->read[n->out[0].i];
        if (moved || is_copy(w->f, n)) w->read[n->in[0].i] = true;
    }
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool any = is_low_product(f, n);
        if (n->flags) continue;
        for (int k = 0; k < n->nout; k++) any |= w->ahead[n->out[k].i];
        for (int k = 0; k < n->nin; k++) w->ahead[n->in[k].i] |= any;
    }
}

/* A gradient that n computes from a value which must be exact. */
static bool reads_exact(const Facts *f, const Node *n) {
    for (int k = 0; k < n->nin && node_kind(n) == KIND_ELEM; k++)
        if (f->exact[n->in[k].i] && !broadcasts(f->g, n, n->in[k])) return true;
    return false;
}

/* Positions computed by floor or a cast to integers. */
static void note_positions(Facts *f) {
    const Graph *g = f->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        bool whole = n->op == OP_FLOOR ||
                     (n->op == OP_CAST && wide_is_float(g, n->in[0]) &&
                      dtype_is_int(value_dtype(g, n->out[0])));
        if (n->flags) continue;
        whole |= (kind == KIND_ELEM || node_moves(n)) &&
                 wide_is_float(g, n->out[0]) &&
                 f->exact[n->out[0].i] == position;
        for (int k = 0; k < n->nin && whole; k++)
            if (wide_is_float(g, n->in[k]) && !is_leaf(g, n->in[k]))
                f->exact[n->in[k].i] = position;
    }
}

/* If n is exp(s - max(s)) of a softmax: s; NO_VALUE otherwise. */
static ValueId softmax_operand(const Graph *g, const Node *n) {
    const Node *sub = n->op == OP_EXP ? value_maker(g, n->in[0]) : NULL;
    if (!sub || sub->op != OP_SUB) return NO_VALUE;
    const Node *max = value_maker(g, sub->in[1]);
    while (max && node_moves(max)) max = value_maker(g, max->in[0]);
    bool fits =
        max && max->op == OP_REDUCE_MAX && same_value(max->in[0], sub->in[0]);
    return fits ? sub->in[0] : NO_VALUE;
}

/* Scores of attention, and the nodes that scale and mask them. */
static void note_scores(const Growth *w) {
    Facts *f = w->f;
    const Graph *g = f->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        ValueId v = n->out[0];
        if (n->flags) continue;
        if (w->ahead[v.i]) f->scores[softmax_operand(g, n).i] = true;
        bool from =
            f->scores[v.i] && (node_kind(n) == KIND_ELEM || node_moves(n));
        for (int k = 0; k < n->nin && from; k++)
            if (f->half[n->in[k].i] && wide_is_activation(g, n, n->in[k]))
                f->scores[n->in[k].i] = true;
    }
    f->scores[0] = false; /* NO_VALUE */
}

static void note_exact(Facts *f, Arena *a) {
    const Graph *g = f->g;
    int values = g->values.len;
    Growth w = {f, NEW_ARRAY(a, bool, values), NEW_ARRAY(a, bool, values),
                NEW_ARRAY(a, bool, values), NEW_ARRAY(a, bool, values)};
    note_positions(f);
    note_moments(g, cancels, f->exact);
    find_products(&w);
    note_scores(&w);
    find_safe(&w);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        bool back = n->flags & NODE_BACKWARD;
        if (n->flags & NODE_UPDATE) continue;
        for (int k = 0; k < n->nout; k++) {
            ValueId v = n->out[k];
            if (dtype_of(g, v) != DT_F32 || f->exact[v.i]) continue;
            /* autocast has the gradient of a matrix product's result in 16
               bits */
            if (f->half[v.i] || f->copied[v.i] || (back && w.read[v.i]))
                continue;
            if (back ? !w.past[v.i] : !w.ahead[v.i])
                f->exact[v.i] = near_loss;
            else if (back ? reads_exact(f, n) : !w.safe[v.i])
                f->exact[v.i] = amplified;
        }
    }
}

Facts facts_of(const Graph *g, Arena *a) {
    int n = g->values.len;
    Facts f = {.g = g, .low = g->module->low, .origins = origins_of(g, a)};
    f.uses = graph_use_counts(g, a);
    f.cast = NEW_ARRAY(a, ValueId, n);
    f.half = NEW_ARRAY(a, bool, n);
    f.few = NEW_ARRAY(a, bool, n);
    f.own = NEW_ARRAY(a, bool, n);
    f.copied = NEW_ARRAY(a, bool, n);
    f.stream = NEW_ARRAY(a, bool, n);
    f.scores = NEW_ARRAY(a, bool, n);
    f.exact = NEW_ARRAY(a, const char *, n);
    for (int i = 0; i < g->inputs.len; i++)
        f.half[g->inputs.data[i].i] =
            dtype_is_low(value_dtype(g, g->inputs.data[i]));
    note_wide_products(&f, a);
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        note_few(&f, x);
        note_half(&f, x);
        if (is_copy(&f, x)) f.cast[x->in[0].i] = x->out[0];
    }
    note_streams(&f);
    note_copied(&f);
    note_exact(&f, a);
    return f;
}
