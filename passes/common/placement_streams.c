/* SPDX-License-Identifier: Apache-2.0 */
/* placement_streams.c: residual streams: which are fp32 for a part of the bytes
   of a step, and how they are stored as fp16 (placement.c has the rules). */
#include <stdlib.h>

#include "passes/common/placement_impl.h"
#include "passes/device/target.h"
#include "passes/rewrite.h"

/* ---- fp32 for a part of the bytes ---------------------------------------- */

void place_hold_stream(Place *p, ValueId v, bool high) {
    p->high[v.i] = high ? place_stream : NULL;
    p->free[v.i] = !high;
}

/* Values that must share a dtype, and include a residual stream. */
typedef struct Stream {
    uint32_t first; /* ValueId.i */
    bool any;       /* includes a stream */
    bool bound;     /* high for a reason other than the stream */
    int64_t bytes, sums;
} Stream;

static int by_worth(const void *a, const void *b) {
    const Stream *x = a, *y = b;
    double more =
        (double)x->sums * (double)y->bytes - (double)y->sums * (double)x->bytes;
    if (more != 0) return more > 0 ? -1 : 1;
    return x->first > y->first ? -1 : 1;
}

/* Per value: the first of the values that share its dtype. */
static uint32_t *find_types(const Place *p, Arena *a) {
    const Graph *g = p->g;
    uint32_t *first = NEW_ARRAY(a, uint32_t, g->values.len);
    for (uint32_t v = 0; v < (uint32_t)g->values.len; v++) first[v] = v;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (is_tied(p, n)) first[n->out[0].i] = first[n->in[0].i];
    }
    return first;
}

/* For the first value of each dtype class. */
static Stream *find_streams(const Place *p, const uint32_t *first, Arena *a) {
    const Graph *g = p->g;
    Stream *s = NEW_ARRAY(a, Stream, g->values.len);
    int64_t *sums = NEW_ARRAY(a, int64_t, g->values.len);
    for (uint32_t v = 0; v < (uint32_t)g->values.len; v++)
        s[v] = (Stream){.first = v, .bound = !p->stream[v] && !p->free[v]};
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        ValueId v = n->out[0];
        for (int k = 0; k < n->nin; k++)
            if (sums[n->in[k].i] > sums[v.i]) sums[v.i] = sums[n->in[k].i];
        sums[v.i] += p->stream[v.i] && n->op == OP_ADD;
        if (dtype_of(g, v) != DT_F32) continue;
        Stream *of = &s[first[v.i]];
        of->any |= p->stream[v.i];
        of->bound |= s[v.i].bound;
        of->bytes += place_cost(p, v, false).of[STEP_BYTES] -
                     place_cost(p, v, true).of[STEP_BYTES];
        if (1 + sums[v.i] > of->sums) of->sums = 1 + sums[v.i];
    }
    return s;
}

void place_keep_streams(Place *p, double percent, Arena *a) {
    int n = 0, values = p->g->values.len;
    bool *low = NEW_ARRAY(a, bool, values), *keep = NEW_ARRAY(a, bool, values);
    const uint32_t *first = find_types(p, a);
    Stream *s = find_streams(p, first, a);
    for (int v = 0; v < values; v++) {
        if (p->stream[v]) place_hold_stream(p, (ValueId){(uint32_t)v}, false);
        if (!s[v].any) continue;
        s[n] = s[v];
        if (s[n].bound) s[n].bytes = 0;
        n++;
    }
    double left = percent / 100 * (double)place_cut(p, low, a).of[STEP_BYTES];
    if (n) qsort(s, (size_t)n, sizeof *s, by_worth);
    for (int i = 0; i < n; i++) {
        if ((double)s[i].bytes > left) continue;
        left -= (double)s[i].bytes;
        keep[s[i].first] = true;
    }
    for (int v = 0; v < values; v++)
        if (p->stream[v] && keep[first[v]])
            place_hold_stream(p, (ValueId){(uint32_t)v}, true);
}

/* ---- storage as fp16 ----------------------------------------------------- */

ValueId place_divided_by(const Graph *g, const Node *n, double *eps) {
    *eps = 0;
    for (int k = 0; k < 2 && n->op == OP_MUL; k++) {
        int64_t few = value_count(g, n->out[0]) / 8;
        ValueId x = n->in[1 - k];
        const Node *root = def_of(g, n->in[k], OP_RSQRT);
        if (!root || value_count(g, n->in[k]) > few) continue;
        const Node *sum = def_of(g, root->in[0], OP_ADD);
        if (sum) value_is_splat(g, sum->in[1], eps);
        const Node *centred = def_of(g, x, OP_SUB);
        if (centred && value_count(g, centred->in[1]) <= few)
            x = centred->in[0];
        return x;
    }
    return NO_VALUE;
}

/* True if v is the result of a convolution, with or without its bias, and
   every target can compute the next operations before it stores v. */
static bool ends_a_conv(const Place *p, ValueId v) {
    const Graph *g = p->g;
    const Node *sum = def_of(g, v, OP_ADD);
    for (int k = 0; k < 2 && sum; k++)
        if (p->f.uses[sum->in[k].i] == 1 && broadcasts(g, sum, sum->in[1 - k]))
            v = sum->in[k];
    const Node *conv = def_of(g, v, OP_CONV);
    return conv && target_any_epilogue(g, conv);
}

/* Per value: results of convolutions that only their mean and a norm read.
   fp16 after division by 64 has an error of at most 2^-19; for an eps of
   2^-20 that is at most 2^-9 of the norm's root, which equals the rounding
   error of 1 in bf16. */
static bool *find_divided(const Place *p, Arena *a) {
    const Graph *g = p->g;
    int values = g->values.len;
    int *reads = NEW_ARRAY(a, int, values);
    bool *divided = NEW_ARRAY(a, bool, values);
    /* fp16 keeps more bits */
    bool few_bits = dtype_info[p->low].mantissa < dtype_info[DT_F16].mantissa;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->op == OP_REDUCE_MEAN ||
            (n->op == OP_SUB && broadcasts(g, n, n->in[1])))
            reads[n->in[0].i]++;
    }
    for (int i = 0; i < g->order.len && few_bits; i++) {
        double eps;
        const Node *n = node_at(g, i);
        ValueId v = n->flags ? NO_VALUE : place_divided_by(g, n, &eps);
        if (is_forward(g, v) && eps >= 0x1p-20 && p->free[v.i] &&
            p->f.uses[v.i] > 1 && p->f.uses[v.i] == reads[v.i] &&
            !node_get(g, value_get(g, v)->def)->loc.amp && ends_a_conv(p, v))
            divided[v.i] = true;
    }
    return divided;
}

/* For the first value of each dtype class: true if the class includes a
   stream that fits fp16, or the operand of a norm, and all readers convert
   it as they read. */
static bool *find_fp16(const Place *p, const uint32_t *first, Arena *a) {
    const Graph *g = p->g;
    int values = g->values.len;
    const bool *divided = find_divided(p, a);
    bool *some = NEW_ARRAY(a, bool, values),
         *bound = NEW_ARRAY(a, bool, values);
    for (uint32_t v = 1; v < (uint32_t)values; v++) {
        const Value *val = value_get(g, (ValueId){v});
        some[first[v]] |= divided[v] || (p->stream[v] && p->f.uses[v] > 1);
        bound[first[v]] |= p->stream[v]
                               ? !origin_fits(node_get(g, val->def),
                                              p->f.origins.bound[v], DT_F16)
                               : !p->free[v];
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        if (shares_type(n) ||
            (kind != KIND_LIB && kind != KIND_ANCHOR && n->op != OP_GATHER))
            continue;
        for (int k = 0; k < n->nin; k++) bound[first[n->in[k].i]] = true;
        for (int k = 0; k < n->nout; k++)
            bound[first[n->out[k].i]] |= !divided[n->out[k].i];
    }
    for (int v = 0; v < values; v++) some[v] &= !bound[v];
    return some;
}

static ValueId named(Graph *g, ValueId v, Str of, const char *form) {
    graph_rename(g, v, graph_unique_name(g, internf("%s.%s", of, form)));
    return v;
}

bool *place_streams_as_fp16(Graph *g, Arena *a) {
    const double part = 0x1p-6;
    Place p = place_new(g, NULL, a);
    int values = g->values.len, n;
    const uint32_t *first = find_types(&p, a);
    const bool *held = find_fp16(&p, first, a);
    bool *whole = NEW_ARRAY(a, bool, 3 * values);
    ValueId *stored = NEW_ARRAY(a, ValueId, values),
            *stands = NEW_ARRAY(a, ValueId, values);
    NodeId *old = order_take(g, a, &n);
    for (int i = 0; i < n; i++) {
        Node x = *node_get(g, old[i]); /* building may move the pool */
        ValueId v = x.nout ? x.out[0] : NO_VALUE;
        Str name = value_get(g, v)->name;
        Builder b = {.g = g, .flags = x.flags, .loc = x.loc};
        bool view = held[first[v.i]] && shares_type(&x);
        for (int k = 0; k < x.nin; k++) {
            ValueId in = x.in[k];
            if (stands[in.i].i) x.in[k] = view ? stored[in.i] : stands[in.i];
        }
        vec_push(g->arena, &g->order, old[i]);
        if (!held[first[v.i]]) continue;
        if (view) {
            Value *val = value_get(g, v);
            val->type = type_with_dtype(val->type, DT_F16);
            stored[v.i] = v;
        } else {
            ValueId by = b_scalar(&b, DT_F32, part);
            stored[v.i] = named(g, b2(&b, OP_MUL, v, by, DT_F16), name, "f16");
        }
        ValueId by = b_scalar(&b, DT_F32, 1 / part);
        stands[v.i] =
            named(g, b2(&b, OP_MUL, stored[v.i], by, DT_F32), name, "f32");
        whole[v.i] = whole[stands[v.i].i] = true;
    }
    return whole;
}
