/* SPDX-License-Identifier: Apache-2.0 */
/* placement.c: the storage dtype of every value, at least cost.
   Before:  %h = matmul %x.bf16, %w.bf16 : f32    %r = relu %h : f32
            %r.bf16 = cast %r                      %z = matmul %r.bf16, ..
   After:   %h = matmul %x.bf16, %w.bf16 : f32    %r = relu %h : bf16
            %z = matmul %r, ..

   Arithmetic other than matrix products and convolutions ("products") is f32,
   whatever the storage, so 16 bits only help values that reach memory. A value
   is low (16 bits) or high (f32); a high value that a product reads has a cast
   beside it.  The pass chooses the cheapest assignment, in this order:
     1. bytes read and written in a step
     2. bytes stored for the backward pass
     3. the accuracy price of rounding: 1, plus 1 for each reader that amplifies
        relative errors (exp, log, pow, differences), plus 1 for each later sum
        that the value passes through, as residuals do
     4. the number of roundings; f32 if all else is equal
   Always high are
     - values that leave the program, gradients of parameters, the whole update
     - sums, values computed from sums alone, and values that their reader
       broadcasts: they are few elements, and many results share their error
     - results of exp and log, operands of log, sin and cos, random numbers
     - operands of products that pass autocast left in f32
     - values computed from constants and integers alone, and sums with such
       numbers next to which 16 bits lose the data
     - residual streams that PyTorch keeps in fp32, because all later layers see
       their rounding errors.  They are stored as fp16 after division by 64,
       which gives 11 significant bits (bf16: 8) for magnitudes from 1/256 to
       4.19e6 and an absolute step of 3.8e-6 below; products read a 16-bit copy.
       Streams that a routine, a gather or the host reads are f32. All streams
       in f32 would add 4 to 7 % to the bytes of transformers
       (docs/numerics.md). --placement exact,residuals=inf: all streams in f32.
       =N: f32 for streams as long as the bytes of a step grow by at most N %,
       bf16 for the others. Streams behind most sums per byte come first: a
       rounding error is relative to the stream, which grows with each sum, so
       the last streams weigh most.
     - in fp16, because of its short range: powers, roots, reciprocals, squares,
       and forward products that are then scaled down, such as attention scores;
       the loss scale keeps gradients in range
     - log-softmax values that no forward product reads, and values computed
       from them with at most 1/8 as many elements: PyTorch has them in fp32
     - values after the last forward product, such as class scores, if they are
       small: nearest the loss first, while this adds at most 1/128 to the bytes
       of a step, or if they have at most 2,048 elements.  Errors of earlier
       values average out; these reach the loss.
     - operands of a softmax that a product reads, such as scores of attention
       that no target keeps in its cache, nearest the loss first, while this
       adds at most 1/64 to the bytes of a step: PyTorch's fused attention has
       them in fp32, and exp amplifies their errors
     - values of wide.h: torch.autocast has them in fp32, and a reader would
       amplify their rounding error
   A view has the dtype of its source, as do operand and result of a pool.  Low
   is the module's 16-bit dtype, with two exceptions: slopes of GELU are fp16,
   and so, in bf16 and divided by 64 like streams, are results of convolutions
   that only a norm reads: the batch norms of a ResNet then read 11 bits in as
   many bytes.

   A normalised value has magnitude 1.  If backward needs only the normalised
   form of a residual stream, a rounded copy of that is stored instead of the
   stream.  Values that are linear in it and not in memory (such as the operand
   of a second norm) are recomputed in backward from the copy.

   If a product and its bias are rounded together, the bias is read as 16 bits,
   as in PyTorch: libraries add no other bias to a 16-bit result.

   requires     stage PRIMITIVE, as pass lift leaves it, no equal or dead nodes
   establishes  16 bits wherever they save traffic                           */
#include <math.h>
#include <stdlib.h>

#include "passes/common/placement_impl.h"
#include "passes/rewrite.h"
#include "passes/device/target.h"

static const char stream[] = "a residual stream";
/* ---- what must be high --------------------------------------------------- */

static bool leaves_short_range(const Node *n) {
    return op_numeric[n->op].leaves_short_range ||
           (n->op == OP_MUL && same_value(n->in[0], n->in[1]));
}

/* The reason why result k of n is high (from the type rule; an op's own
   reason holds for the first result); NULL: none. */
static const char *must_be_high(const Place *p, const Node *n, int k) {
    OpKind kind = node_kind(n);
    ValueId v = n->out[0];
    if (n->flags & NODE_UPDATE) return "the update is fp32";
    if (k && dtype_of(p->g, n->out[k]) == DT_F32 &&
        !node_may_store(p->g, n, k, p->low))
        return "a sum";
    if (n->loc.amp && node_class(n) <= AMP_FULLOUT && node_class(n) != AMP_LOW)
        return "the policy";
    if (n->loc.amp && value_count(p->g, v) > 1) return NULL;
    if (p->f.origins.of[v.i] != FROM_DATA) return "made of integers";
    if (p->whole && p->whole[v.i]) return stream;
    if (p->f.few[v.i] || value_count(p->g, v) == 1) return "a sum";
    if (kind == KIND_GEN) return "made by a generator";
    if (op_numeric[n->op].stores) return op_numeric[n->op].stores;
    if (n->op == OP_RANK_SUM) return "a sum";
    if (dtype_is_short(p->low) && leaves_short_range(n)) return "range of fp16";
    if (kind == KIND_ELEM && !origin_fits(n, p->f.origins.bound[v.i], p->low))
        return "huge constants";
    return p->f.exact[v.i];
}

/* True if n multiplies v by a constant of magnitude below 1. */
static bool takes_a_part(const Graph *g, const Node *n, ValueId v) {
    double c;
    if (n->op == OP_DIV)
        return same_value(n->in[0], v) && value_is_splat(g, n->in[1], &c) &&
               fabs(c) > 1;
    for (int k = 0; k < 2 && n->op == OP_MUL; k++)
        if (value_is_splat(g, n->in[k], &c) && fabs(c) < 1) return true;
    return false;
}

static const char *demand(const Place *p, const Node *reader, ValueId v) {
    if (reader->flags & NODE_UPDATE) return "a gradient";
    if (reader->loc.amp && node_class(reader) == AMP_FULL) return "the policy";
    if (broadcasts(p->g, reader, v) &&
        !(reader->op == OP_EXPAND && p->f.copied[reader->out[0].i]))
        return "broadcast";
    if (op_numeric[reader->op].reads) return op_numeric[reader->op].reads;
    if (reader->op == OP_RANK_SUM) return "a sum";
    if (op_info[reader->op].amp == AMP_LOW && dtype_of(p->g, v) == DT_F32)
        return "a product that reads fp32";
    if (dtype_is_short(p->low) && !reader->flags &&
        def_of(p->g, v, OP_MATMUL) && takes_a_part(p->g, reader, v))
        return "range of fp16";
    return NULL;
}

static void hold_stream(Place *p, ValueId v, bool high) {
    p->high[v.i] = high ? stream : NULL;
    p->free[v.i] = !high;
}

static void find_free(Place *p) {
    Graph *g = p->g;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin; k++)
            if (n->in[k].i && !p->high[n->in[k].i])
                p->high[n->in[k].i] = demand(p, n, n->in[k]);
        for (int k = 0; k < n->nout; k++) {
            ValueId v = n->out[k];
            if (!p->high[v.i]) p->high[v.i] = must_be_high(p, n, k);
            p->free[v.i] = dtype_of(g, v) == DT_F32;
        }
    }
    for (int i = 0; i < g->outputs.len; i++)
        p->high[g->outputs.data[i].value.i] = "an output";
    for (int i = 0; i < g->writes.len; i++)
        p->high[g->writes.data[i].value.i] = "a variable";
    for (uint32_t v = 0; v < (uint32_t)g->values.len; v++) {
        p->free[v] &= !p->high[v];
        p->stream[v] = p->f.stream[v] && p->free[v];
        if (p->stream[v]) hold_stream(p, (ValueId){v}, true);
    }
}

static Place place_new(Graph *g, const bool *whole, Arena *a) {
    int n = g->values.len;
    Place p = {.g = g, .values = n, .low = g->module->low, .whole = whole};
    p.f = facts_of(g, a);
    p.high = NEW_ARRAY(a, const char *, n);
    p.free = NEW_ARRAY(a, bool, n);
    p.stream = NEW_ARRAY(a, bool, n);
    p.price = NEW_ARRAY(a, int, n);
    find_free(&p);
    return p;
}

/* Per value: true if a forward product depends on the value. Pools count
   as products, since their operand would become high, too. */
static bool *find_ahead(const Place *p, Arena *a) {
    const Graph *g = p->g;
    bool *ahead = NEW_ARRAY(a, bool, g->values.len);
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool any = op_info[n->op].amp == AMP_LOW || n->op == OP_MAX_POOL ||
                   n->op == OP_AVG_POOL;
        if (n->flags) continue;
        for (int k = 0; k < n->nout; k++) any |= ahead[n->out[k].i];
        for (int k = 0; k < n->nin; k++) ahead[n->in[k].i] |= any;
    }
    return ahead;
}

static void spare(Place *p, ValueId v, const char *why) {
    p->free[v.i] = false;
    p->high[v.i] = why;
}

/* Makes log-softmax values high, and values computed from them with at most
   1/8 as many elements. */
static void spare_logs(Place *p, const bool *ahead, Arena *a) {
    const Graph *g = p->g;
    int64_t *of = NEW_ARRAY(a, int64_t, g->values.len); /* elements; 0: none */
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        OpKind kind = node_kind(n);
        ValueId v = n->out[0];
        if (n->flags || ahead[v.i] ||
            (kind != KIND_ELEM && kind != KIND_MOVE && kind != KIND_VIEW))
            continue;
        for (int k = 0; k < n->nin; k++)
            if (of[n->in[k].i] > of[v.i]) of[v.i] = of[n->in[k].i];
        bool log = n->op == OP_SUB && def_of(g, n->in[1], OP_LOG) &&
                   p->f.few[n->in[1].i] && broadcasts(g, n, n->in[1]);
        if (log) of[v.i] = value_count(g, v);
        if ((log || value_count(g, v) * 8 <= of[v.i]) && p->free[v.i] &&
            !n->loc.amp && !shares_type(n))
            spare(p, v, "the log of a softmax");
    }
}

/* Bytes that v adds to a step if it is high. */
static int64_t bytes_of_high(const Place *p, ValueId v) {
    return 2 * value_count(p->g, v) * (1 + p->traffic[v.i].reads);
}

enum { FEW = 2048 };

/* Makes the result of n high if it has few elements or if `*left` bytes
   suffice for it. */
static void spare_cheap(Place *p, const Node *n, int64_t *left,
                        const char *why) {
    ValueId v = n->out[0];
    bool few = value_count(p->g, v) <= FEW;
    int64_t more = few ? 0 : bytes_of_high(p, v);
    if (more > *left) return;
    *left -= more;
    spare(p, v, why);
}

static void spare_few_bytes(Place *p, Arena *a) {
    enum { LOSS_PART = 128, SCORES_PART = 64, LARGE_PART = 8 };
    const Graph *g = p->g;
    const bool *ahead = find_ahead(p, a);
    int64_t all = 0 /* in 16 bits */, large = FEW * LARGE_PART;
    spare_logs(p, ahead, a);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++) {
        ValueId id = {v};
        if (!p->free[v] || !p->traffic[v].stored) continue;
        all += bytes_of_high(p, id);
        if (value_count(g, id) > large) large = value_count(g, id);
    }
    int64_t of_loss = all / LOSS_PART, of_scores = all / SCORES_PART;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        ValueId v = n->out[0];
        if (n->flags || n->loc.amp || shares_type(n) || !p->free[v.i] ||
            !p->traffic[v.i].stored)
            continue;
        if (p->f.scores[v.i])
            spare_cheap(p, n, &of_scores, "the operand of a softmax");
        else if (!ahead[v.i] && value_count(g, v) * LARGE_PART <= large)
            spare_cheap(p, n, &of_loss, "near the loss");
    }
}

/* ---- the accuracy price -------------------------------------------------- */

static void find_prices(Place *p) {
    Graph *g = p->g;
    for (int i = g->order.len - 1; i >= 0; i--) {
        const Node *n = node_at(g, i);
        bool sum = n->op == OP_ADD, moves = op_info[n->op].amp == AMP_ANY;
        for (int k = 0; k < n->nin; k++) {
            int behind = sum || moves ? p->price[n->out[0].i] + sum : 0;
            int *price = &p->price[n->in[k].i];
            if (behind > *price) *price = behind;
            *price += op_numeric[n->op].grows;
        }
    }
    for (int v = 0; v < g->values.len; v++) p->price[v]++;
}

/* ---- the cut ------------------------------------------------------------- */

/* Cost of v. Low: one 16-bit form serves all readers. High: readers get an
   f32 form, and matrix products a 16-bit copy. */
static CutCost traffic_cost(const Place *p, ValueId v, bool low) {
    static const Traffic none;
    const Traffic *t = &p->traffic[v.i], *copy = &none;
    int64_t n = value_count(p->g, v), half = 2 * n, full = 4 * n;
    CutCost c = {{0}};
    if (p->f.cast[v.i].i) copy = &p->traffic[p->f.cast[v.i].i];
    if (low && (t->stored || copy->stored)) {
        c.of[STEP_BYTES] = half * (1 + t->reads + copy->reads);
        c.of[SAVED_BYTES] = t->saved || copy->saved ? half : 0;
    }
    if (low) return c;
    if (t->stored) c.of[STEP_BYTES] += full * (1 + t->reads);
    if (copy->stored) c.of[STEP_BYTES] += half * (1 + copy->reads);
    c.of[SAVED_BYTES] = (t->saved ? full : 0) + (copy->saved ? half : 0);
    return c;
}

static CutCost rounding(const Place *p, ValueId v) {
    CutCost c = {{0}};
    c.of[PRICE] = p->price[v.i];
    c.of[ROUNDINGS] = 1;
    return c;
}

static void agree(Place *p, ValueId v, ValueId w) {
    cut_low_implies_low(p->cut, (int)v.i, (int)w.i);
    cut_low_implies_low(p->cut, (int)w.i, (int)v.i);
}

bool is_tied(const Place *p, const Node *n) {
    return shares_type(n) && dtype_of(p->g, n->in[0]) == DT_F32 &&
           dtype_of(p->g, n->out[0]) == DT_F32;
}

bool is_selection(const Node *n) {
    OpKind kind = node_kind(n);
    return kind == KIND_MOVE || kind == KIND_VIEW || n->op == OP_RELU ||
           n->op == OP_MAX_POOL;
}

static void add_node(Place *p, const Node *n) {
    ValueId v = n->out[0];
    if (dtype_of(p->g, v) != DT_F32) return;
    if (is_tied(p, n)) agree(p, v, n->in[0]);
    if (!is_selection(n)) {
        cut_if_low(p->cut, (int)v.i, rounding(p, v));
        return;
    }
    for (int k = 0; k < n->nin; k++)
        if (dtype_is_float(dtype_of(p->g, n->in[k])))
            cut_if_low_high(p->cut, (int)v.i, (int)n->in[k].i, rounding(p, v));
}

/* Forward stores this mask for backward, of a value whose 16-bit copy is
   stored, too: if the value is low, backward can read it instead of the
   mask. */
bool mask_cost(const Place *p, const Node *n, ValueId v, CutCost *high,
               CutCost *low) {
    const Traffic *mask = &p->traffic[n->out[0].i];
    int64_t count = value_count(p->g, n->out[0]);
    ValueId copy = p->f.cast[v.i];
    if (!(n->flags & NODE_BACKWARD) || dtype_of(p->g, n->out[0]) != DT_BOOL ||
        !mask->stored || !copy.i || !p->traffic[copy.i].stored ||
        !is_forward(p->g, v) || value_count(p->g, v) != count)
        return false;
    *high = *low = (CutCost){{0}};
    high->of[STEP_BYTES] = count * (1 + mask->reads);
    high->of[SAVED_BYTES] = count;
    low->of[STEP_BYTES] = 2 * count * mask->reads;
    return true;
}

static void add_mask(Place *p, const Node *n) {
    CutCost high, low;
    for (int k = 0; k < n->nin; k++) {
        if (!mask_cost(p, n, n->in[k], &high, &low)) continue;
        cut_if_high(p->cut, (int)n->in[k].i, high);
        cut_if_low(p->cut, (int)n->in[k].i, low);
    }
}

static void build_cut(Place *p, Arena *a) {
    Graph *g = p->g;
    p->cut = cut_new(a, g->values.len);
    for (int v = 1; v < g->values.len; v++) {
        ValueId id = {(uint32_t)v};
        DType d = value_dtype(g, id);
        if (is_updates(g, id)) continue;
        if (!p->free[v]) cut_force(p->cut, v, d == p->low);
        if (d != DT_F32) continue;
        cut_if_low(p->cut, v, traffic_cost(p, id, true));
        cut_if_high(p->cut, v, traffic_cost(p, id, false));
        if (p->f.cast[v].i) cut_if_high(p->cut, v, rounding(p, id));
    }
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        if (n->flags & NODE_UPDATE) continue;
        add_node(p, n);
        add_mask(p, n);
    }
}

static CutCost solve(Place *p, bool *low, Arena *a) {
    CutCost total;
    build_cut(p, a);
    bool possible = cut_solve(p->cut, low, &total);
    ASSERT(possible && "what is forced does not contradict itself");
    return total;
}

/* ---- residual streams for a part of the bytes ---------------------------- */

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
        of->bytes += traffic_cost(p, v, false).of[STEP_BYTES] -
                     traffic_cost(p, v, true).of[STEP_BYTES];
        if (1 + sums[v.i] > of->sums) of->sums = 1 + sums[v.i];
    }
    return s;
}

static void keep_streams(Place *p, double percent, Arena *a) {
    int n = 0, values = p->g->values.len;
    bool *low = NEW_ARRAY(a, bool, values), *keep = NEW_ARRAY(a, bool, values);
    const uint32_t *first = find_types(p, a);
    Stream *s = find_streams(p, first, a);
    for (int v = 0; v < values; v++) {
        if (p->stream[v]) hold_stream(p, (ValueId){(uint32_t)v}, false);
        if (!s[v].any) continue;
        s[n] = s[v];
        if (s[n].bound) s[n].bytes = 0;
        n++;
    }
    double left = percent / 100 * (double)solve(p, low, a).of[STEP_BYTES];
    if (n) qsort(s, (size_t)n, sizeof *s, by_worth);
    for (int i = 0; i < n; i++) {
        if ((double)s[i].bytes > left) continue;
        left -= (double)s[i].bytes;
        keep[s[i].first] = true;
    }
    for (int v = 0; v < values; v++)
        if (p->stream[v] && keep[first[v]])
            hold_stream(p, (ValueId){(uint32_t)v}, true);
}

/* ---- storage as fp16 ----------------------------------------------------- */

/* The value that n, a norm, divides by the root of its mean square (about
   the mean or about 0); NO_VALUE if n is not a norm. *eps: the constant
   added to the mean square. */
static ValueId divided_by(const Graph *g, const Node *n, double *eps) {
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
        ValueId v = n->flags ? NO_VALUE : divided_by(g, n, &eps);
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

/* Before:  %s = add %r, %a : f32             %t = tanh %s
   After:   %s = add %r, %a : f32             %s.f16 = mul %s, 1/64 : f16
            %s.f32 = mul %s.f16, 64 : f32     %t = tanh %s.f32
   By ValueId.i: values like %s and %s.f32, which stay in registers. */
static bool *streams_as_fp16(Graph *g, Arena *a) {
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

/* ---- the result ---------------------------------------------------------- */

/* Per value: slopes of GELU that only element-wise arithmetic reads, not
   products. They are between -1 and 2, where fp16 has 11 significant bits
   and bf16 has 8. */
bool *find_slopes(const Place *p, const Graph *g, Arena *a) {
    bool *slope = NEW_ARRAY(a, bool, g->values.len);
    for (int v = 1; v < g->values.len; v++)
        slope[v] =
            def_of(g, (ValueId){(uint32_t)v}, OP_GELU_SLOPE) && !p->f.cast[v].i;
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < n->nin && node_kind(n) != KIND_ELEM; k++)
            slope[n->in[k].i] = false;
    }
    return slope;
}

void place_apply(const Place *p, Graph *g, const bool *low, Arena *a) {
    const int *uses = graph_use_counts(g, a);
    const bool *slope = find_slopes(p, g, a);
    int kept = 0;
    ValueId *stands = NEW_ARRAY(a, ValueId, g->values.len);
    for (uint32_t v = 1; v < (uint32_t)p->values; v++) {
        Value *val = value_get(g, (ValueId){v});
        bool only_copy = p->free[v] && p->f.cast[v].i && uses[v] == 1 &&
                         !shares_type(node_get(g, val->def));
        val->why = p->high[v] ? p->high[v] : "16 bits save nothing";
        if (!p->free[v] || !(low[v] || only_copy)) continue;
        val->type = type_with_dtype(val->type, slope[v] ? DT_F16 : p->low);
        if (p->f.cast[v].i) stands[p->f.cast[v].i] = (ValueId){v};
    }
    for (int i = 0; i < g->order.len; i++) {
        Node *n = node_at(g, i);
        if (n->nout && stands[n->out[0].i].i) continue;
        for (int k = 0; k < n->nin; k++)
            if (stands[n->in[k].i].i) n->in[k] = stands[n->in[k].i];
        g->order.data[kept++] = g->order.data[i];
    }
    g->order.len = kept;
}

/* Makes biases 16 bits: parameters with one element per column that are
   added only to a matrix product, before it is rounded. */
static void narrow_biases(Graph *g, Arena *a) {
    DType low = g->module->low;
    const int *uses = graph_use_counts(g, a);
    for (int i = 0; i < g->order.len; i++) {
        const Node *n = node_at(g, i);
        for (int k = 0; k < 2 && n->op == OP_ADD; k++) {
            ValueId product = n->in[k], bias = n->in[1 - k];
            const Type *t = value_type(g, bias);
            if (dtype_of(g, n->out[0]) != low || t->dtype != DT_F32 ||
                dtype_of(g, product) != DT_F32 ||
                !def_of(g, product, OP_MATMUL) || uses[product.i] != 1 ||
                t->rank == 0 || type_count(t) != t->dim[t->rank - 1] ||
                type_count(t) == 1)
                continue;
            ValueId narrow = shadow_of(g, bias, low);
            if (is_value(narrow)) node_at(g, i)->in[1 - k] = narrow;
        }
    }
}

/* The f32 stream that the norm n divides; NO_VALUE: n divides no stream. */
static ValueId normalised(const Place *p, const Node *n) {
    const Graph *g = p->g;
    double eps;
    ValueId x = n->flags ? NO_VALUE : divided_by(g, n, &eps);
    bool is = is_forward(g, x) && dtype_of(g, x) == DT_F32 &&
              !(p->whole && p->whole[x.i]) &&
              dtype_of(g, n->out[0]) == DT_F32 && n->loc.amp != 1 + AMP_FULL &&
              (p->traffic[x.i].stored || p->high[x.i] == stream);
    return is ? x : NO_VALUE;
}

typedef struct Keep {
    const Place *p;
    Graph *g;
    ValueId *stands; /* per value: its replacement in backward */
} Keep;

/* The replacement of v in backward, computed from a rounded copy; NO_VALUE
   unless v is a quotient with such a copy, or linear in one with small
   factors and terms. */
static ValueId from_copy(Keep *k, ValueId v) {
    Graph *g = k->g;
    if (k->stands[v.i].i || !is_forward(g, v) || k->p->high[v.i] ||
        k->p->traffic[v.i].stored || dtype_of(g, v) != DT_F32)
        return k->stands[v.i];
    NodeId id = value_get(g, v)->def;
    Node n = *node_get(g, id); /* building may move the pool */
    ValueId in[2] = {NO_VALUE};
    int large = 0;
    if (n.op != OP_ADD && n.op != OP_SUB && n.op != OP_MUL) return NO_VALUE;
    for (int i = 0; i < 2; i++) {
        in[i] = n.in[i];
        if (value_count(g, in[i]) * 8 <= value_count(g, v)) continue;
        large++;
        in[i] = from_copy(k, in[i]);
    }
    if (large != 1 || !in[0].i || !in[1].i) return NO_VALUE;
    Builder b = {.g = g, .flags = NODE_BACKWARD | NODE_AGAIN, .loc = n.loc};
    ValueId again = node_get(g, build_again(&b, id, in))->out[0];
    value_get(g, again)->why = value_get(g, v)->why;
    return k->stands[v.i] = again;
}

static void keep_normalised(const Place *p, Graph *g, Arena *a) {
    int n = g->order.len, values = g->values.len;
    NodeId *old = arena_dup(a, g->order.data, (size_t)n * sizeof *old);
    bool *factor = NEW_ARRAY(a, bool, values),
         *read = NEW_ARRAY(a, bool, values);
    Keep keep = {p, g, NEW_ARRAY(a, ValueId, values)};
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++)
            (x->op == OP_MUL ? factor : read)[x->in[k].i] = true;
    }
    g->order.len = 0;
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, old[i]);
        ValueId of = normalised(p, x), v = x->out[0], copy = p->f.cast[v.i];
        for (int k = 0; k < x->nin && x->flags & NODE_BACKWARD; k++) {
            ValueId instead = from_copy(&keep, x->in[k]);
            x = node_get(g, old[i]);
            if (instead.i) x->in[k] = instead;
        }
        vec_push(g->arena, &g->order, old[i]);
        if (!of.i || read[of.i] || factor[of.i] || read[v.i] || !factor[v.i])
            continue;
        Builder b = {.g = g, .loc = x->loc};
        keep.stands[v.i] =
            is_forward(g, copy) ? copy : b1(&b, OP_CAST, v, p->low);
    }
}

/* The traffic is measured on f32 kernels, where values in registers have
   none. */
Place place_begin(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    const bool *whole = cx->opt->fp16_residuals ? streams_as_fp16(g, a) : NULL;
    Place p = place_new(g, whole, a);
    find_prices(&p);
    p.traffic = NEW_ARRAY(a, Traffic, g->values.len);
    traffic_join(g, p.traffic, g->values.len, cx);
    spare_few_bytes(&p, a);
    if (!whole && cx->opt->residuals < INFINITY)
        keep_streams(&p, cx->opt->residuals, a);
    return p;
}

static Status place_graph(Graph *g, PassCtx *cx) {
    Arena *a = cx->scratch;
    if (options_budget(cx->opt)) return place_within(g, cx);
    Place p = place_begin(g, cx);
    bool *low = NEW_ARRAY(a, bool, g->values.len);
    solve(&p, low, a);
    place_apply(&p, g, low, a);
    keep_normalised(&p, g, a);
    narrow_biases(g, a);
    return OK;
}

Status pass_place(Module *m, PassCtx *cx) {
    if (m->low == NUM_DTYPES || m->rule) return OK;
    for (int i = 0; i < m->graphs.len; i++) {
        Graph *g = m->graphs.data[i];
        if (g->program == PROGRAM_UPDATE || g->program == PROGRAM_REFRESH)
            continue; /* all fp32 */
        TRY(place_graph(g, cx));
    }
    for (int i = 0; i < m->graphs.len; i++)
        shadows_write(m->graphs.data[i], cx->scratch);
    return OK;
}
