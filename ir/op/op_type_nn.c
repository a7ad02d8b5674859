/* SPDX-License-Identifier: Apache-2.0 */
/* op_type_nn.c: type rules of library ops.                                */
#include "ir/op/rule.h"
#include "runtime/program/blocks.h"
#include "runtime/program/quantized.h"
#include "runtime/program/strip.h"

#include <string.h>

/* ---- matrix product ------------------------------------------------------ */

/* Scales of the blocks of codes in operands 0 and 1. */
static Status block_scales_fit(TypeCtx *cx) {
    if (cx->n->nin != 4)
        return type_error(cx, "%d operands given, takes 2, or 4 with scales",
                          cx->n->nin);
    for (int i = 0; i < 2; i++) {
        const Type *codes = cx->ins[i], *s = cx->ins[2 + i];
        int64_t k = codes->dim[codes->rank - 1];
        if (!s || !dtype_info[codes->dtype].stored || k == 0 ||
            k % BLOCK_SIZE || (i == 1 && codes->rank != 2) ||
            attr_int(cx->n, AK_trans_a) || !attr_int(cx->n, AK_trans_b))
            return type_error(cx,
                              "scales of blocks want codes of 8 bits, "
                              "trans_b and whole blocks of %d",
                              BLOCK_SIZE);
        int64_t want = block_scales(type_count(codes) / k, k);
        if (s->dtype != DT_E8M0 || type_count(s) != want)
            return type_error(cx, "scales are %s, want %lld of e8m0", TXT(s),
                              (long long)want);
    }
    return OK;
}

/* Rows and columns of operand 0. */
static Status matrix_of_blocks(TypeCtx *cx, int64_t *rows, int64_t *columns) {
    int64_t n = type_count(cx->ins[0]);
    TRY(type_want(cx, WANT_FLOAT, 0));
    *columns = attr_int(cx->n, AK_columns);
    if (*columns < 1 || *columns % BLOCK_SIZE || n == 0 || n % *columns ||
        n / *columns % BLOCK_SIZE)
        return type_error(cx,
                          "%s with %lld columns does not divide into blocks "
                          "of %d along both sides",
                          TXT(cx->ins[0]), (long long)*columns, BLOCK_SIZE);
    *rows = n / *columns;
    return OK;
}

Status ty_block_codes(TypeCtx *cx) {
    int64_t rows, columns;
    TRY(matrix_of_blocks(cx, &rows, &columns));
    bool down = attr_int(cx->n, AK_down) != 0;
    Type t = {.dtype = DT_F8E4M3,
              .rank = 2,
              .dim = {down ? columns : rows, down ? rows : columns}};
    return type_result(cx, 0, &t);
}

Status ty_block_scales(TypeCtx *cx) {
    int64_t rows, columns;
    TRY(matrix_of_blocks(cx, &rows, &columns));
    bool down = attr_int(cx->n, AK_down) != 0;
    Type t = {.dtype = DT_E8M0,
              .rank = 1,
              .dim = {down ? block_scales(columns, rows)
                           : block_scales(rows, columns)}};
    return type_result(cx, 0, &t);
}

Status ty_block_sums(TypeCtx *cx) {
    int64_t rows, columns;
    TRY(matrix_of_blocks(cx, &rows, &columns));
    Type t = {.dtype = DT_F32, .rank = 2, .dim = {rows / BLOCK_SIZE, columns}};
    return type_result(cx, 0, &t);
}

Status ty_matmul(TypeCtx *cx) {
    const Type *a = cx->ins[0], *b = cx->ins[1];
    bool ta = attr_int(cx->n, AK_trans_a);
    bool tb = attr_int(cx->n, AK_trans_b);
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(type_want(cx, WANT_FLOAT, 1));
    if (a->rank < 2 || b->rank < 2)
        return type_error(cx, "operands %s and %s, wants rank 2 or more",
                          TXT(a), TXT(b));
    int64_t m = a->dim[a->rank - 2 + ta], k = a->dim[a->rank - 1 - ta];
    int64_t k2 = b->dim[b->rank - 2 + tb], n = b->dim[b->rank - 1 - tb];
    if (k != k2)
        return type_error(cx, "%s and %s: inner dimensions %lld and %lld",
                          TXT(a), TXT(b), (long long)k, (long long)k2);
    Type ba = *a, bb = *b, t = {0};
    ba.rank -= 2;
    bb.rank -= 2;
    if (!shape_broadcast(&ba, &bb, &t))
        return type_error(cx, "batch dimensions of %s and %s do not broadcast",
                          TXT(a), TXT(b));
    t.dtype = dtype_info[a->dtype].stored ? DT_F32
                                          : dtype_promote(a->dtype, b->dtype);
    t.dim[t.rank++] = m;
    t.dim[t.rank++] = n;
    if (cx->n->nin > 2) TRY(block_scales_fit(cx));
    return type_result(cx, 0, &t);
}

/* ---- quantized weights --------------------------------------------------- */

/* The type of the quantized weight in operands q and q + 1. */
static Status quantized_type(TypeCtx *cx, int q, Type *out) {
    const Type *codes = cx->ins[q], *scale = cx->ins[q + 1];
    int64_t code = attr_int(cx->n, AK_code);
    DType want = code == QUANTIZED_INT8 ? DT_I8 : DT_U8;
    if (code < 0 || code >= QUANTIZED_CODES)
        return type_error(cx, "attribute 'code' is %lld, wants 0 to %d",
                          (long long)code, QUANTIZED_CODES - 1);
    if (codes->dtype != want || codes->rank < 1)
        return type_error(cx, "codes are %s, want %s and an axis", TXT(codes),
                          dtype_info[want].text);
    *out = *codes;
    out->dtype = DT_F32;
    if (code != QUANTIZED_INT8) out->dim[out->rank - 1] *= 2;
    if (scale->dtype != DT_F32 ||
        type_count(scale) != quantized_blocks(type_count(out)))
        return type_error(cx, "scales are %s, want %lld of f32", TXT(scale),
                          (long long)quantized_blocks(type_count(out)));
    return OK;
}

Status ty_widen_quantized(TypeCtx *cx) {
    Type t;
    TRY(quantized_type(cx, 0, &t));
    return type_result(cx, 0, &t);
}

/* The type of the weight of a matrix multiplication, which may be f32. */
static Status weight_type(TypeCtx *cx, Type *out) {
    bool f32 = attr_int(cx->n, AK_code) == QUANTIZED_F32;
    if (cx->n->nin != (f32 ? 2 : 3))
        return type_error(cx, "code %lld has %s scales",
                          (long long)attr_int(cx->n, AK_code),
                          f32 ? "no" : "f32");
    if (!f32) return quantized_type(cx, 1, out);
    *out = *cx->ins[1];
    if (out->dtype == DT_F32) return OK;
    return type_error(cx, "the weight is %s, code %d wants f32", TXT(out),
                      QUANTIZED_F32);
}

Status ty_matmul_quantized(TypeCtx *cx) {
    const Type *x = cx->ins[0];
    bool tb = attr_int(cx->n, AK_trans_b);
    Type w, y = *x;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(weight_type(cx, &w));
    if (x->rank < 2 || w.rank != 2)
        return type_error(cx, "operands %s and %s, wants rank 2 or more, and 2",
                          TXT(x), TXT(&w));
    if (x->dim[x->rank - 1] != w.dim[tb])
        return type_error(cx, "%s and %s: inner dimensions %lld and %lld",
                          TXT(x), TXT(&w), (long long)x->dim[x->rank - 1],
                          (long long)w.dim[tb]);
    y.dim[y.rank - 1] = w.dim[!tb];
    return type_result(cx, 0, &y);
}

/* ---- attention ----------------------------------------------------------- */

bool attend_mask(const Type *q, const Type *v, const Type *mask, int64_t *div,
                 int64_t *mod) {
    int r = q->rank;
    bool ended = false;
    *div = *mod = 1;
    for (int d = r - 1; d >= 0; d--) {
        int own = d - (r - mask->rank);
        int64_t size = d == r - 1 ? v->dim[r - 2] : q->dim[d];
        bool has = own >= 0 && mask->dim[own] != 1;
        if (has && mask->dim[own] != size) return false;
        if (d >= r - 2 || size == 1) continue;
        if (has && ended) return false;
        ended |= !has && *mod > 1;
        if (!has && *mod == 1) *div *= size;
        if (has) *mod *= size;
    }
    return mask->rank <= r;
}

/* [.., rows, heads, features] from [.., heads, rows, features], or back. */
static Type heads_moved(const Type *t) {
    Type to = *t;
    to.dim[t->rank - 3] = t->dim[t->rank - 2];
    to.dim[t->rank - 2] = t->dim[t->rank - 3];
    return to;
}

AttendPart attend_part(const Node *n, int at, const Type *t) {
    const int64_t *heads;
    AttendPart p = {*t, 1, 1, 0};
    if (!attr_ints(n, AK_heads, &heads)) return p;
    p.width = t->dim[t->rank - 2];
    p.first = heads[2 * at];
    p.heads = heads[2 * at + 1];
    p.type = heads_moved(t);
    p.type.dim[t->rank - 3] = p.heads;
    return p;
}

/* Checks that attribute `heads` names heads that the operands have. */
static Status attend_heads(TypeCtx *cx) {
    const int64_t *heads;
    if (!attr_find(cx->n, AK_heads)) return OK;
    TRY(type_want_ints(cx, AK_heads, 6, &heads));
    if (!attr_int(cx->n, AK_trans_b))
        return type_error(cx, "attribute 'heads' wants trans_b=1");
    for (int i = 0; i < 3; i++) {
        const Type *t = cx->ins[i];
        int64_t first = heads[2 * i], n = heads[2 * i + 1];
        if (t->rank < 3 || first < 0 || n < 1 || n > t->dim[t->rank - 2] ||
            first > t->dim[t->rank - 2] - n)
            return type_error(cx, "operand %d, %s, has no %lld heads from %lld",
                              i, TXT(t), (long long)n, (long long)first);
    }
    return OK;
}

/* Types of q[.., t, d], its k and v, mask and random numbers from operand
   `at` on; y: the result of attend(q, k, v). */
static Status attend_shape(TypeCtx *cx, int at, Type *y) {
    AttendPart part[3];
    TRY(attend_heads(cx));
    for (int i = 0; i < 3; i++) {
        TRY(type_want(cx, WANT_FLOAT, i));
        part[i] = attend_part(cx->n, i, cx->ins[i]);
    }
    const Type *q = &part[0].type, *k = &part[1].type, *v = &part[2].type;
    int r = q->rank;
    bool tb = attr_int(cx->n, AK_trans_b), ok = r >= 3;
    ok = ok && k->rank == r && v->rank == r &&
         k->dim[r - 1 - !tb] == q->dim[r - 1] &&
         k->dim[r - 2 + !tb] == v->dim[r - 2];
    for (int d = 0; ok && d < r - 3; d++)
        ok = k->dim[d] == q->dim[d] && v->dim[d] == q->dim[d];
    if (ok) { /* heads */
        int64_t own = k->dim[r - 3], heads = q->dim[r - 3];
        ok = v->dim[r - 3] == own && (own ? heads % own == 0 : heads == 0);
    }
    if (!ok)
        return type_error(cx, "no attention of %s on %s and %s", TXT(q), TXT(k),
                          TXT(v));
    const Type *mask = cx->n->nin > at ? cx->ins[at] : NULL;
    const Type *rng = cx->n->nin > at + 1 ? cx->ins[at + 1] : NULL;
    int64_t div, mod;
    if (mask &&
        (!dtype_is_float(mask->dtype) || !attend_mask(q, v, mask, &div, &mod)))
        return type_error(cx, "%s is not a mask for %s on %s", TXT(mask),
                          TXT(q), TXT(v));
    if (rng && (rng->dtype != DT_I64 || type_count(rng) != 2))
        return type_error(cx,
                          "the operand of random numbers is %s, wants "
                          "i64[2]",
                          TXT(rng));
    double ratio = attr_float(cx->n, AK_ratio);
    if (!(ratio >= 0 && ratio < 1) || (ratio > 0 && !rng))
        return type_error(cx,
                          "attribute 'ratio' has %g, wants 0 to 1 and "
                          "an operand of random numbers",
                          ratio);
    int64_t offset = attr_int(cx->n, AK_offset), behind = v->dim[r - 2];
    if (offset < -q->dim[r - 2] || offset > behind)
        return type_error(cx, "attribute 'offset' is %lld, wants %lld to %lld",
                          (long long)offset, -(long long)q->dim[r - 2],
                          (long long)behind);
    *y = *q;
    y->dim[r - 1] = v->dim[r - 1];
    return OK;
}

/* n numbers per query. */
static Type attend_sums(const Type *q, int64_t n) {
    Type t = *q;
    t.dim[t.rank - 1] = n;
    t.dtype = dtype_compute(q->dtype, q->dtype);
    return t;
}

Status ty_attend(TypeCtx *cx) {
    Type y;
    TRY(attend_shape(cx, 3, &y));
    Type lse = attend_sums(&y, 2);
    if (attr_find(cx->n, AK_heads)) y = heads_moved(&y);
    type_result(cx, 0, &y);
    type_result(cx, 1, &lse);
    cx->free_dtype[1] = false;
    return OK;
}

/* The gradient of the single value that contains q, k and v. */
static Status attend_one_gradient(TypeCtx *cx) {
    const int64_t *heads;
    const ValueId *in = cx->n->in;
    int64_t all = 0, last = 0;
    bool ok = attr_ints(cx->n, AK_heads, &heads) == 6 &&
              same_value(in[0], in[1]) && same_value(in[0], in[2]);
    for (int i = 0; ok && i < 3; i++) {
        int64_t end = heads[2 * i] + heads[2 * i + 1];
        all += heads[2 * i + 1];
        if (end > last) last = end;
        for (int j = 0; j < i; j++)
            ok &= heads[2 * j] >= end ||
                  heads[2 * i] >= heads[2 * j] + heads[2 * j + 1];
    }
    const Type *t = cx->ins[0];
    if (!ok || all != t->dim[t->rank - 2] || last != all)
        return type_error(cx, "has no gradient of its own for each operand, "
                              "wants attribute 'heads' that names each head of "
                              "one operand once");
    type_result(cx, 0, t);
    if (cx->n->nout == 1) return OK;
    Type sums = *t;
    sums.dim[t->rank - 3] = 1;
    sums.dtype = dtype_compute(t->dtype, t->dtype);
    cx->free_dtype[1] = false;
    if (t->dim[t->rank - 3] == 0)
        return type_error(cx, "sums rows, wants one at least");
    return type_result(cx, 1, &sums);
}

Status ty_attend_grad(TypeCtx *cx) {
    Type y;
    TRY(attend_shape(cx, 6, &y));
    bool beside = attr_find(cx->n, AK_heads) != NULL;
    Type lse = attend_sums(&y, 2);
    if (beside) y = heads_moved(&y);
    Type d = attend_sums(&y, 1);
    const Type *want[] = {&y, &lse, &d};
    for (int i = 3; i < 6; i++) {
        TRY(type_want(cx, WANT_FLOAT, i));
        if (!shape_equal(cx->ins[i], want[i - 3]))
            return type_error(cx, "operand %d is %s, wants the shape of %s", i,
                              TXT(cx->ins[i]), TXT(want[i - 3]));
    }
    if (cx->n->nout < 3) return attend_one_gradient(cx);
    for (int i = 0; i < cx->n->nout; i++) {
        Type t = attend_part(cx->n, i, cx->ins[i]).type;
        if (beside) t = heads_moved(&t);
        type_result(cx, i, &t);
    }
    return OK;
}

/* ---- windows: what convolutions and pools share -------------------------- */

typedef struct Window {
    int n; /* spatial dimensions */
    int64_t kernel[3], stride[3], dilation[3], begin[3], end[3];
} Window;

/* An attribute of n positive numbers; they default to 1. */
static Status window_attr(TypeCtx *cx, AttrKey key, int n, int64_t *to) {
    const int64_t *v = NULL;
    if (attr_find(cx->n, key)) TRY(type_want_ints(cx, key, n, &v));
    for (int i = 0; i < n; i++) {
        to[i] = v ? v[i] : 1;
        if (to[i] < 1)
            return type_error(cx, "attribute '%s' has %lld, wants 1 or more",
                              attr_get(key)->text, (long long)to[i]);
    }
    return OK;
}

/* x: [n, c, spatial..]; kernel is filled by the caller. */
static Status window_read(TypeCtx *cx, const Type *x, Window *w) {
    w->n = x->rank - 2;
    if (w->n < 1 || w->n > 3)
        return type_error(cx, "input is %s, wants 1 to 3 spatial dimensions",
                          TXT(x));
    TRY(window_attr(cx, AK_strides, w->n, w->stride));
    TRY(window_attr(cx, AK_dilations, w->n, w->dilation));
    const int64_t *v = NULL;
    if (attr_find(cx->n, AK_pads))
        TRY(type_want_ints(cx, AK_pads, 2 * w->n, &v));
    for (int i = 0; i < w->n; i++) {
        w->begin[i] = v ? v[i] : 0;
        w->end[i] = v ? v[i + w->n] : 0;
        if (w->begin[i] < 0 || w->end[i] < 0)
            return type_error(cx, "attribute 'pads' has a negative number");
    }
    return OK;
}

/* Padded input minus the span of the kernel, along spatial axis i: the last
   position where a whole window may start; negative if none. */
static Status window_room(TypeCtx *cx, const Window *w, const Type *x, int i,
                          int64_t *room) {
    int64_t span, len = x->dim[i + 2];
    bool ok = w->kernel[i] > 0 &&
              mul_ok(w->kernel[i] - 1, w->dilation[i], &span) &&
              add_ok(len, w->begin[i], &len) && add_ok(len, w->end[i], &len);
    if (!ok)
        return type_error(cx,
                          "kernel %lld, dilation %lld, pads %lld and %lld "
                          "on %lld elements",
                          (long long)w->kernel[i], (long long)w->dilation[i],
                          (long long)w->begin[i], (long long)w->end[i],
                          (long long)x->dim[i + 2]);
    *room = len - span - 1;
    return OK;
}

/* ---- convolution --------------------------------------------------------- */

/* The result of conv(x, w). */
static Status conv_shape(TypeCtx *cx, const Type *x, const Type *w, Type *out) {
    int64_t group = attr_int(cx->n, AK_group);
    Window win;
    TRY(window_read(cx, x, &win));
    if (w->rank != x->rank)
        return type_error(cx, "input %s and weight %s differ in rank", TXT(x),
                          TXT(w));
    if (group < 1 || x->dim[1] % group || w->dim[0] % group ||
        w->dim[1] != x->dim[1] / group)
        return type_error(cx, "input %s, weight %s, %lld groups", TXT(x),
                          TXT(w), (long long)group);
    *out = (Type){.dtype = dtype_promote(x->dtype, w->dtype), .rank = x->rank};
    out->dim[0] = x->dim[0];
    out->dim[1] = w->dim[0];
    for (int i = 0; i < win.n; i++) {
        int64_t room = 0;
        win.kernel[i] = w->dim[i + 2];
        TRY(window_room(cx, &win, x, i, &room));
        if (room < 0)
            return type_error(cx,
                              "kernel of %s is larger than input %s, "
                              "spatial axis %d",
                              TXT(w), TXT(x), i);
        out->dim[i + 2] = room / win.stride[i] + 1;
    }
    return OK;
}

Status ty_conv(TypeCtx *cx) {
    Type t;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(type_want(cx, WANT_FLOAT, 1));
    TRY(conv_shape(cx, cx->ins[0], cx->ins[1], &t));
    return type_result(cx, 0, &t);
}

/* The sums of strips of y. */
static Type strip_sums(const Type *y) {
    int64_t columns = 1;
    Type sums = {.dtype = DT_F32, .rank = y->rank};
    for (int d = 0; d < y->rank; d++) {
        sums.dim[d] = d == 1 ? y->dim[1] : 1;
        if (d != 1) columns *= y->dim[d];
    }
    sums.dim[0] = (columns + CONV_STRIP - 1) / CONV_STRIP;
    return sums;
}

Status ty_conv_sums(TypeCtx *cx) {
    Type y;
    TRY(conv_shape(cx, cx->ins[0], cx->ins[1], &y));
    for (int i = 0; i < 2; i++)
        if (!dtype_is_low(cx->ins[i]->dtype) ||
            cx->ins[i]->dtype != cx->ins[0]->dtype)
            return type_error(cx,
                              "operands are %s and %s, want one 16-bit type",
                              TXT(cx->ins[0]), TXT(cx->ins[1]));
    TRY(type_result(cx, 0, &y));
    cx->out[1] = cx->out[2] = strip_sums(&y);
    return OK;
}

/* conv_dgrad(dy, w) -> dx, conv_wgrad(x, dy) -> dw; shape = the result's. */
Status ty_conv_grad(TypeCtx *cx) {
    bool dgrad = cx->n->op != OP_CONV_WGRAD;
    const Type *dy = cx->ins[!dgrad];
    Type t, y;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(type_want(cx, WANT_FLOAT, 1));
    DType d = dtype_promote(cx->ins[0]->dtype, cx->ins[1]->dtype);
    TRY(type_want_shape(cx, d, &t));
    TRY(conv_shape(cx, dgrad ? &t : cx->ins[0], dgrad ? cx->ins[1] : &t, &y));
    if (!shape_equal(&y, dy))
        return type_error(cx, "gradient is %s, the convolution gives %s",
                          TXT(dy), TXT(&y));
    return type_result(cx, 0, &t);
}

/* Operands: of 16 bits, but of each channel f32. */
Status ty_conv_dgrad_sums(TypeCtx *cx) {
    enum { X = 2, MEAN, RSTD, GATE, GAIN, SHIFT, ADD, OPERANDS };
    const Type *const *in = cx->ins;
    const int n = cx->n->nin;
    bool gate = n > GATE && in[GATE], affine = n > SHIFT && in[GAIN];
    TRY(ty_conv_grad(cx));
    const Type t = cx->out[0];
    Type channel = strip_sums(&t);
    channel.dim[0] = 1;
    if (gate == affine || (affine && !in[SHIFT]))
        return type_error(cx, "wants a gate, or a gain and a shift");
    for (int i = 0; i < n && i < OPERANDS; i++) {
        bool each = i == MEAN || i == RSTD || i == GAIN || i == SHIFT;
        if (!in[i]) continue;
        if (each ? in[i]->dtype != DT_F32 || !shape_equal(in[i], &channel)
                 : !dtype_is_low(in[i]->dtype) ||
                       (i >= X && !shape_equal(in[i], &t)))
            return type_error(cx, "operand %d is %s, want %s%s", i, TXT(in[i]),
                              each ? TXT(&channel) : "16 bits",
                              each || i < X ? "" : " of the result's shape");
    }
    if (in[0]->dtype != in[1]->dtype)
        return type_error(cx, "operands are %s and %s, want one 16-bit type",
                          TXT(in[0]), TXT(in[1]));
    cx->out[1] = cx->out[2] = strip_sums(&t);
    return OK;
}

/* ---- pools --------------------------------------------------------------- */

/* The result of pooling x.  Windows may extend beyond the end (ceil_mode),
   but start inside the padded input. */
static Status pool_shape(TypeCtx *cx, const Type *x, Type *out) {
    Window w;
    const int64_t *sizes;
    TRY(window_read(cx, x, &w));
    if (!attr_find(cx->n, AK_kernel_shape))
        return type_error(cx, "needs attribute 'kernel_shape'");
    TRY(window_attr(cx, AK_kernel_shape, w.n, w.kernel));
    TRY(type_want_ints(cx, AK_sizes, w.n, &sizes));
    *out = *x;
    for (int i = 0; i < w.n; i++) {
        int64_t room = 0, last;
        TRY(window_room(cx, &w, x, i, &room));
        int64_t len = x->dim[i + 2] + w.begin[i] + w.end[i];
        if (sizes[i] < 0 || !mul_ok(sizes[i] - 1, w.stride[i], &last) ||
            last >= len)
            return type_error(cx,
                              "size %lld along spatial axis %d: windows by "
                              "%lld leave %lld elements",
                              (long long)sizes[i], i, (long long)w.stride[i],
                              (long long)len);
        out->dim[i + 2] = sizes[i];
    }
    return OK;
}

/* The dtype for the number of an element in a window; -1: the window is too
   large. */
static Status tap_dtype(TypeCtx *cx, DType *d) {
    const int64_t *kernel;
    int64_t taps = 1, n = attr_ints(cx->n, AK_kernel_shape, &kernel);
    for (int64_t i = 0; i < n; i++)
        if (!mul_ok(taps, kernel[i], &taps) || taps > INT32_MAX)
            return type_error(cx, "windows of more than 2^31 elements");
    *d = taps <= INT8_MAX ? DT_I8 : DT_I32;
    return OK;
}

Status ty_max_pool(TypeCtx *cx) {
    Type t;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(pool_shape(cx, cx->ins[0], &t));
    type_result(cx, 0, &t);
    TRY(tap_dtype(cx, &t.dtype));
    return type_result(cx, 1, &t);
}

/* Operand 0 is the gradient of the pool of an input of `shape`. */
static Status pool_grad(TypeCtx *cx) {
    Type x, y;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(type_want_shape(cx, cx->ins[0]->dtype, &x));
    TRY(pool_shape(cx, &x, &y));
    if (!shape_equal(&y, cx->ins[0]))
        return type_error(cx, "gradient is %s, the pool gives %s",
                          TXT(cx->ins[0]), TXT(&y));
    return type_result(cx, 0, &x);
}

Status ty_max_pool_grad(TypeCtx *cx) {
    const Type *index = cx->ins[1];
    DType d;
    TRY(tap_dtype(cx, &d));
    if (index->dtype != d || !shape_equal(index, cx->ins[0]))
        return type_error(cx, "indices are %s, gradient is %s", TXT(index),
                          TXT(cx->ins[0]));
    return pool_grad(cx);
}

Status ty_avg_pool(TypeCtx *cx) {
    Type t;
    TRY(type_want(cx, WANT_FLOAT, 0));
    TRY(pool_shape(cx, cx->ins[0], &t));
    return type_result(cx, 0, &t);
}

Status ty_avg_pool_grad(TypeCtx *cx) { return pool_grad(cx); }
