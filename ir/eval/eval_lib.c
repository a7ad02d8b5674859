/* SPDX-License-Identifier: Apache-2.0 */
/* eval_lib.c: reductions, products, convolutions and pools of the
   interpreter, each as the loop nest of its definition.                     */
#include "ir/eval/eval_impl.h"
#include "runtime/program/quantized.h"

#include <math.h>

/* ---- reductions ---------------------------------------------------------- */

Status eval_reduce(EvalCx *cx) {
    OpCode op = cx->n->op;
    OpFold fold = op_info[op].fold;
    EvalTensor *out = cx->out[0];
    const EvalTensor *in = cx->in[0];
    const Type *t = type_get(in->type);
    int64_t n = type_count(t), m = type_count(type_get(out->type));
    int64_t stride[MAX_RANK], idx[MAX_RANK] = {0}, step = 1;
    const int64_t *axes;
    int naxes = attr_ints(cx->n, AK_axes, &axes);
    for (int d = t->rank - 1; d >= 0; d--) { /* strides of the result; 0:
                                                reduced */
        bool reduced = false;
        for (int k = 0; k < naxes; k++) reduced |= axes[k] == d;
        stride[d] = reduced ? 0 : step;
        if (!reduced) step *= t->dim[d];
    }
    double start = fold == FOLD_PROD  ? 1
                   : fold == FOLD_MAX ? -INFINITY
                   : fold == FOLD_MIN ? INFINITY
                                      : 0;
    for (int64_t k = 0; k < m; k++) eval_put(out, k, start);
    for (int64_t k = 0; k < n; k++, eval_step(t, idx)) {
        int64_t at = 0;
        for (int d = 0; d < t->rank; d++) at += idx[d] * stride[d];
        if (out->f)
            out->f[at] = eval_expr_f(op, out->f[at], eval_at(in, k));
        else
            out->i[at] = eval_expr_i(
                op, &(EvalInts){.a = out->i[at], .b = in->i[k]}, NULL);
    }
    for (int64_t k = 0; k < m && op == OP_REDUCE_MEAN; k++)
        if (out->f)
            out->f[k] /= (double)(n / m);
        else if (n / m)
            out->i[k] /= n / m;
    return OK;
}

/* Position of the first maximum; the first NaN counts as the maximum. */
static int64_t argmax_row(const EvalTensor *in, int64_t at, int64_t n,
                          int64_t step) {
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++) {
        if (in->i) {
            if (in->i[at + k * step] > in->i[at + best * step]) best = k;
            continue;
        }
        double v = in->f[at + k * step], b = in->f[at + best * step];
        if (b == b && (v > b || v != v)) best = k;
    }
    return best;
}

Status eval_argmax(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    EvalAxis ax = eval_axis(t, axis_norm(attr_int(cx->n, AK_axis), t->rank));
    for (int64_t o = 0; o < ax.outer; o++)
        for (int64_t k = 0; k < ax.inner; k++)
            cx->out[0]->i[o * ax.inner + k] =
                argmax_row(cx->in[0], o * ax.n * ax.inner + k, ax.n, ax.inner);
    return OK;
}

/* True if element a of a row is sorted before element b. */
static bool stands_before(const EvalTensor *x, int64_t row, int64_t a,
                          int64_t b, bool descending) {
    if (x->i) {
        int64_t p = x->i[row + a], q = x->i[row + b];
        bool more = type_get(x->type)->dtype == DT_U64
                        ? (uint64_t)p > (uint64_t)q
                        : p > q;
        return p == q ? a < b : more == descending;
    }
    double p = x->f[row + a], q = x->f[row + b];
    if (isnan(p) != isnan(q)) return isnan(p) == descending;
    return isnan(p) || p == q ? a < b : (p > q) == descending;
}

Status eval_argsort(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    int64_t n = t->dim[t->rank - 1], k = attr_int(cx->n, AK_k);
    bool descending = attr_int(cx->n, AK_descending) != 0;
    int64_t rows = n ? type_count(t) / n : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t a = 0; a < n; a++) {
            int64_t place = 0;
            for (int64_t b = 0; b < n; b++)
                place +=
                    b != a && stands_before(cx->in[0], r * n, b, a, descending);
            if (place < k) cx->out[0]->i[r * k + place] = a;
        }
    return OK;
}

/* Whether boxes a and b, lower and upper corner each, overlap by more than
   `most` of their union. */
static bool boxes_overlap(const double *a, const double *b, double most) {
    double both = 1, area_a = 1, area_b = 1;
    for (int k = 0; k < 2; k++) {
        double low = a[k] > b[k] ? a[k] : b[k];
        double high = a[k + 2] < b[k + 2] ? a[k + 2] : b[k + 2];
        if (!(high > low)) return false;
        both *= high - low;
        area_a *= a[k + 2] - a[k];
        area_b *= b[k + 2] - b[k];
    }
    return area_a > 0 && area_b > 0 && both / (area_a + area_b - both) > most;
}

Status eval_suppress(EvalCx *cx) {
    const double *box = cx->in[0]->f;
    const Type *t = type_get(cx->in[1]->type);
    int64_t n = t->dim[1], most = attr_int(cx->n, AK_k), *kept = cx->out[0]->i;
    for (int64_t r = 0; r < t->dim[0]; r++) {
        int64_t found = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) {
            kept[i] = cx->in[1]->i[i] && found < most;
            for (int64_t j = r * n; j < i && kept[i]; j++)
                kept[i] = !kept[j] || !boxes_overlap(box + 4 * j, box + 4 * i,
                                                     cx->in[2]->f[0]);
            found += kept[i];
        }
    }
    return OK;
}

Status eval_cumsum(EvalCx *cx) {
    const EvalTensor *x = cx->in[0];
    EvalTensor *y = cx->out[0];
    const Type *t = type_get(x->type);
    EvalAxis ax = eval_axis(t, axis_norm(attr_int(cx->n, AK_axis), t->rank));
    bool reverse = attr_int(cx->n, AK_reverse) != 0;
    bool exclusive = attr_int(cx->n, AK_exclusive) != 0;
    for (int64_t o = 0; o < ax.outer * ax.inner; o++) {
        int64_t first = o / ax.inner * ax.n * ax.inner + o % ax.inner;
        double f = 0, with_f = 0;
        uint64_t i = 0, with_i = 0;
        for (int64_t k = 0; k < ax.n; k++, f = with_f, i = with_i) {
            int64_t at = first + (reverse ? ax.n - 1 - k : k) * ax.inner;
            if (x->f) {
                with_f = f + x->f[at];
                y->f[at] = exclusive ? f : with_f;
            } else {
                with_i = i + (uint64_t)x->i[at];
                y->i[at] = (int64_t)(exclusive ? i : with_i);
            }
        }
    }
    return OK;
}

/* ---- matrix product ------------------------------------------------------ */

/* One operand as batch + row * rs + column * cs. */
typedef struct Mat {
    const EvalTensor *t;
    const Type *type;
    int64_t rs, cs, rows, cols;
} Mat;

static Mat mat(const EvalTensor *t, bool trans) {
    const Type *ty = type_get(t->type);
    int64_t r = ty->dim[ty->rank - 2], c = ty->dim[ty->rank - 1];
    Mat m = {t, ty, c, 1, r, c};
    if (trans) m = (Mat){t, ty, 1, c, c, r};
    return m;
}

/* Offset of the operand's matrix for batch index idx of the result. */
static int64_t mat_batch(const Mat *m, const Type *out, const int64_t *idx) {
    int64_t at = 0, s = m->rows * m->cols;
    for (int d = m->type->rank - 3; d >= 0; d--) {
        if (m->type->dim[d] != 1) at += s * idx[d + out->rank - m->type->rank];
        s *= m->type->dim[d];
    }
    return at;
}

Status eval_matmul(EvalCx *cx) {
    Mat a = mat(cx->in[0], attr_int(cx->n, AK_trans_a));
    Mat b = mat(cx->in[1], attr_int(cx->n, AK_trans_b));
    if (cx->n->nin > 2) return eval_scaled_blocks(cx);
    Type batch = *type_get(cx->out[0]->type);
    const Type *out = type_get(cx->out[0]->type);
    int64_t idx[MAX_RANK] = {0}, one = a.rows * b.cols;
    batch.rank -= 2;
    int64_t n = type_count(&batch);
    for (int64_t c0 = 0; n-- > 0; c0 += one, eval_step(&batch, idx)) {
        int64_t a0 = mat_batch(&a, out, idx), b0 = mat_batch(&b, out, idx);
        for (int64_t i = 0; i < a.rows; i++)
            for (int64_t k = 0; k < a.cols; k++)
                for (int64_t j = 0; j < b.cols; j++)
                    cx->out[0]->f[c0 + i * b.cols + j] +=
                        a.t->f[a0 + i * a.rs + k * a.cs] *
                        b.t->f[b0 + k * b.rs + j * b.cs];
    }
    return OK;
}

/* ---- quantized weights --------------------------------------------------- */

/* Element i of the quantized weight in operands q and q + 1. */
static double quantized_at(const EvalCx *cx, int q, int64_t i) {
    int code = (int)attr_int(cx->n, AK_code);
    const int64_t *codes = cx->in[q]->i;
    if (code == QUANTIZED_F32) return cx->in[q]->f[i];
    double level = code == QUANTIZED_INT8
                       ? (double)codes[i]
                       : (double)quantized_level4(
                             code, (unsigned)(codes[i / 2] >> 4 * (i % 2)));
    return (double)(float)(level * cx->in[q + 1]->f[i / QUANTIZED_BLOCK]);
}

Status eval_widen_quantized(EvalCx *cx) {
    int64_t n = type_count(type_get(cx->out[0]->type));
    for (int64_t i = 0; i < n; i++) cx->out[0]->f[i] = quantized_at(cx, 0, i);
    return OK;
}

Status eval_matmul_quantized(EvalCx *cx) {
    const Type *x = type_get(cx->in[0]->type), *y = type_get(cx->out[0]->type);
    int64_t k = x->dim[x->rank - 1], n = y->dim[y->rank - 1];
    int64_t rows = n ? type_count(y) / n : 0;
    bool tb = attr_int(cx->n, AK_trans_b);
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < n; j++) {
            double w = dtype_nearest(
                x->dtype, quantized_at(cx, 1, tb ? j * k + p : p * n + j));
            for (int64_t i = 0; i < rows; i++)
                cx->out[0]->f[i * n + j] += cx->in[0]->f[i * k + p] * w;
        }
    return OK;
}

/* ---- attention ----------------------------------------------------------- */

/* Matrices q[t, d] and dy[t, e], k[u, d] with columns kcol apart, v[u, e];
   part: the position of the rows of q, k and v. */
typedef struct Attend {
    int64_t batch, group, t, u, d, e, kcol;
    AttendPart part[3];
    int64_t seen; /* number of keys that query 0 attends to; u: all queries
                     attend to all */
    int64_t mask_div, mask_mod, mask_row, mask_col;
    const EvalTensor *mask, *rng;
    double scale, ratio;
    int64_t salt;
    bool one; /* the gradient is a single result */
} Attend;

static Attend attend(const EvalCx *cx, int at) {
    const Node *n = cx->n;
    Attend a = {.batch = 1,
                .mask = n->nin > at ? cx->in[at] : NULL,
                .rng = n->nin > at + 1 ? cx->in[at + 1] : NULL,
                .scale = attr_float(n, AK_scale),
                .ratio = attr_float(n, AK_ratio),
                .salt = attr_int(n, AK_salt),
                .one = n->nout < 3};
    for (int i = 0; i < 3; i++)
        a.part[i] = attend_part(n, i, type_get(cx->in[i]->type));
    const Type *q = &a.part[0].type, *v = &a.part[2].type;
    int r = q->rank;
    a.t = q->dim[r - 2];
    a.u = v->dim[r - 2];
    a.d = q->dim[r - 1];
    a.e = v->dim[r - 1];
    for (int i = 0; i < r - 2; i++) a.batch *= q->dim[i];
    a.group = v->dim[r - 3] ? q->dim[r - 3] / v->dim[r - 3] : 1;
    a.kcol = attr_int(n, AK_trans_b) ? 1 : a.u;
    a.seen = attr_int(n, AK_causal) ? attr_int(n, AK_offset) + 1 : a.u + a.t;
    if (a.mask) {
        const Type *m = type_get(a.mask->type);
        attend_mask(q, v, m, &a.mask_div, &a.mask_mod);
        a.mask_col = m->rank > 0 && m->dim[m->rank - 1] > 1;
        a.mask_row =
            m->rank > 1 && m->dim[m->rank - 2] > 1 ? m->dim[m->rank - 1] : 0;
    }
    return a;
}

/* The offset of row i of the operand, counted over all matrices. */
static int64_t attend_line(const AttendPart *p, int64_t i) {
    int64_t rows = p->type.dim[p->type.rank - 2], b = i / rows;
    return (b / p->heads * rows + i % rows) * p->width + p->first +
           b % p->heads;
}

/* The same for y, which has only q's heads. */
static int64_t attend_result(const Attend *a, int64_t i) {
    AttendPart y = a->part[0];
    y.width = y.heads;
    y.first = 0;
    return attend_line(&y, i);
}

/* Offsets of row i of q, and of the j-th key and value that it reads. */
static int64_t attend_query(const Attend *a, int64_t i) {
    return attend_line(&a->part[0], i) * a->d;
}
static int64_t attend_key(const Attend *a, int64_t i, int64_t j) {
    int64_t m = i / a->t / a->group;
    if (a->kcol > 1) return m * a->u * a->d + j;
    return attend_line(&a->part[1], m * a->u + j) * a->d;
}
static int64_t attend_value(const Attend *a, int64_t i, int64_t j) {
    int64_t m = i / a->t / a->group;
    return attend_line(&a->part[2], m * a->u + j) * a->e;
}

/* The score of key j for row i, counted over all matrices. */
static double attend_score(const EvalCx *cx, const Attend *a, int64_t i,
                           int64_t j) {
    int64_t b = i / a->t, row = i % a->t;
    const double *q = cx->in[0]->f + attend_query(a, i);
    const double *k = cx->in[1]->f + attend_key(a, i, j);
    double s = 0;
    for (int64_t c = 0; c < a->d; c++) s += q[c] * k[c * a->kcol];
    s *= a->scale;
    if (a->mask) {
        int64_t rows = a->mask_row ? a->t : 1, cols = a->mask_col ? a->u : 1;
        s += eval_at(a->mask, b / a->mask_div % a->mask_mod * rows * cols +
                                  row * a->mask_row + j * a->mask_col);
    }
    return j >= row + a->seen ? -INFINITY : s;
}

/* The factor by which dropout multiplies the probability. */
static double eval_attend_kept(const Attend *a, int64_t i, int64_t j) {
    if (a->ratio == 0) return 1;
    bool kept = eval_uniform(a->rng->i, a->salt, i * a->u + j) >=
                (double)(float)a->ratio;
    return kept ? 1 / (1 - a->ratio) : 0;
}

Status eval_attend(EvalCx *cx) {
    Attend a = attend(cx, 3);
    bool zeros = attr_int(cx->n, AK_zeros) != 0;
    for (int64_t i = 0; i < a.batch * a.t; i++) {
        double *y = cx->out[0]->f + attend_result(&a, i) * a.e;
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < a.u; j++)
            top = fmax(top, attend_score(cx, &a, i, j));
        bool none = top == -INFINITY; /* no key is seen */
        for (int64_t j = 0; j < a.u; j++)
            sum += exp(attend_score(cx, &a, i, j) - top);
        for (int64_t c = 0; c < a.e; c++) y[c] = none && !zeros ? NAN : 0;
        for (int64_t j = 0; j < a.u && !none; j++)
            for (int64_t c = 0; c < a.e; c++)
                y[c] += exp(attend_score(cx, &a, i, j) - top) / sum *
                        eval_attend_kept(&a, i, j) *
                        cx->in[2]->f[attend_value(&a, i, j) + c];
        cx->out[1]->f[2 * i] = none && zeros ? INFINITY : top;
        cx->out[1]->f[2 * i + 1] = none ? 0 : log(sum);
    }
    return OK;
}

Status eval_attend_grad(EvalCx *cx) {
    Attend a = attend(cx, 6), to = a;
    double *out[3];
    for (int i = 0; i < 3; i++) {
        out[i] = cx->out[a.one ? 0 : i]->f;
        if (a.one) continue;
        to.part[i].width = to.part[i].heads;
        to.part[i].first = 0;
    }
    for (int64_t i = 0; i < a.batch * a.t; i++)
        for (int64_t j = 0; j < a.u; j++) {
            int64_t row = attend_result(&a, i);
            int64_t q = attend_query(&a, i), k = attend_key(&a, i, j);
            const double *dy = cx->in[3]->f + row * a.e;
            const double *v = cx->in[2]->f + attend_value(&a, i, j);
            const double *lse = cx->in[4]->f + 2 * i;
            double *dv = out[2] + attend_value(&to, i, j);
            double p = exp(attend_score(cx, &a, i, j) - lse[0] - lse[1]);
            double kept = eval_attend_kept(&a, i, j), dp = 0;
            for (int64_t c = 0; c < a.e; c++) {
                dp += dy[c] * v[c];
                dv[c] += p * kept * dy[c];
            }
            double ds = p * (dp * kept - cx->in[5]->f[row]) * a.scale;
            for (int64_t c = 0; c < a.d; c++) {
                out[0][attend_query(&to, i) + c] +=
                    ds * cx->in[1]->f[k + c * a.kcol];
                out[1][attend_key(&to, i, j) + c * a.kcol] +=
                    ds * cx->in[0]->f[q + c];
            }
        }
    int64_t all = type_count(type_get(cx->out[0]->type));
    int64_t row = a.part[0].width * a.d;
    for (int64_t i = 0; i < all && cx->n->nout == 2; i++)
        cx->out[1]->f[i / (row * a.t) * row + i % row] += cx->out[0]->f[i];
    return OK;
}

/* ---- windows: what convolutions and pools share -------------------------- */

typedef struct Window {
    int s; /* spatial dims */
    int64_t in[MAX_RANK], stride[MAX_RANK], dilation[MAX_RANK];
    int64_t pad[2 * MAX_RANK];
    Type taps;   /* the kernel's shape */
    int64_t *at; /* per tap: its position in the input plane; -1: outside */
    int64_t ntap, inside, padded; /* taps of the window; those inside the
                                     input, and inside its padding */
} Window;

static Window window(EvalCx *cx, const Type *x, const int64_t *kernel) {
    Window w = {.s = x->rank - 2, .taps = {.rank = x->rank - 2}};
    for (int d = 0; d < w.s; d++) {
        w.in[d] = x->dim[2 + d];
        w.taps.dim[d] = kernel[d];
    }
    eval_ints(cx->n, AK_strides, w.s, 1, w.stride);
    eval_ints(cx->n, AK_dilations, w.s, 1, w.dilation);
    eval_ints(cx->n, AK_pads, 2 * w.s, 0, w.pad);
    w.ntap = type_count(&w.taps);
    w.at = NEW_ARRAY(cx->a, int64_t, w.ntap);
    return w;
}

static Window pool_window(EvalCx *cx, const Type *x) {
    int64_t kernel[MAX_RANK];
    eval_ints(cx->n, AK_kernel_shape, x->rank - 2, 1, kernel);
    return window(cx, x, kernel);
}

/* Moves the window to output o: sets the positions that its taps read. */
static void window_move(Window *w, const int64_t *o) {
    int64_t k[MAX_RANK] = {0};
    w->inside = w->padded = 0;
    for (int64_t t = 0; t < w->ntap; t++, eval_step(&w->taps, k)) {
        int64_t at = 0;
        bool inside = true, padded = true;
        for (int d = 0; d < w->s; d++) {
            int64_t i = o[d] * w->stride[d] - w->pad[d] + k[d] * w->dilation[d];
            inside = inside && i >= 0 && i < w->in[d];
            padded = padded && i < w->in[d] + w->pad[w->s + d];
            at = at * w->in[d] + i;
        }
        w->at[t] = inside ? at : -1;
        w->inside += inside;
        w->padded += padded;
    }
}

static int64_t plane_size(const Type *t) {
    int64_t n = 1;
    for (int d = 2; d < t->rank; d++) n *= t->dim[d];
    return n;
}

/* ---- convolution --------------------------------------------------------- */

/* The three convolutions compute y += x*w, dx += dy*w and dw += x*dy over
   the same triples of positions; the op decides which of x, w, y is the sum. */
static Status eval_conv_run(EvalCx *cx, EvalTensor *x, EvalTensor *w,
                            EvalTensor *y) {
    const EvalTensor *sum = cx->out[0];
    const Type *xt = type_get(x->type), *wt = type_get(w->type);
    const Type *yt = type_get(y->type);
    Window win = window(cx, xt, wt->dim + 2);
    int64_t cg = wt->dim[1];
    int64_t per = yt->dim[1] / attr_int(cx->n, AK_group);
    int64_t n = type_count(yt), idx[MAX_RANK] = {0};
    for (int64_t at = 0; at < n; at++, eval_step(yt, idx)) {
        window_move(&win, idx + 2);
        for (int64_t ch = 0; ch < cg; ch++) {
            int64_t x0 = idx[0] * xt->dim[1] + idx[1] / per * cg + ch;
            double *xv = x->f + x0 * plane_size(xt), *yv = y->f + at;
            double *wv = w->f + (idx[1] * cg + ch) * win.ntap;
            for (int64_t t = 0; t < win.ntap; t++) {
                if (win.at[t] < 0) continue;
                if (sum == y)
                    *yv += xv[win.at[t]] * wv[t];
                else if (sum == x)
                    xv[win.at[t]] += *yv * wv[t];
                else
                    wv[t] += xv[win.at[t]] * *yv;
            }
        }
    }
    return OK;
}

Status eval_conv(EvalCx *cx) {
    return eval_conv_run(cx, (EvalTensor *)cx->in[0], (EvalTensor *)cx->in[1],
                         cx->out[0]);
}

Status eval_conv_dgrad(EvalCx *cx) {
    return eval_conv_run(cx, cx->out[0], (EvalTensor *)cx->in[1],
                         (EvalTensor *)cx->in[0]);
}

Status eval_conv_wgrad(EvalCx *cx) {
    return eval_conv_run(cx, (EvalTensor *)cx->in[0], cx->out[0],
                         (EvalTensor *)cx->in[1]);
}

/* ---- pools --------------------------------------------------------------- */

/* The first maximum of each window and its number in the window; NaN wins;
   -1: empty. */
Status eval_max_pool(EvalCx *cx) {
    const Type *x = type_get(cx->in[0]->type);
    const Type *y = type_get(cx->out[0]->type);
    Window w = pool_window(cx, x);
    int64_t n = type_count(y), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(y, idx)) {
        int64_t plane = idx[0] * x->dim[1] + idx[1], best = -1, tap = -1;
        const double *v = cx->in[0]->f + plane * plane_size(x);
        window_move(&w, idx + 2);
        for (int64_t t = 0; t < w.ntap; t++) {
            int64_t at = w.at[t];
            if (at < 0 || (best >= 0 && (v[best] != v[best] ||
                                         (v[at] <= v[best] && v[at] == v[at]))))
                continue;
            best = at;
            tap = t;
        }
        cx->out[0]->f[k] = best < 0 ? -INFINITY : v[best];
        cx->out[1]->i[k] = tap;
    }
    return OK;
}

Status eval_max_pool_grad(EvalCx *cx) {
    const Type *x = type_get(cx->out[0]->type);
    const Type *y = type_get(cx->in[0]->type);
    Window w = pool_window(cx, x);
    int64_t n = type_count(y), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(y, idx)) {
        int64_t tap = cx->in[1]->i[k];
        int64_t plane = idx[0] * x->dim[1] + idx[1];
        window_move(&w, idx + 2);
        if (tap >= 0 && tap < w.ntap && w.at[tap] >= 0)
            cx->out[0]->f[plane * plane_size(x) + w.at[tap]] += cx->in[0]->f[k];
    }
    return OK;
}

/* y += share * x over each window, or the adjoint x += share * y. */
static Status avg_pool(EvalCx *cx, EvalTensor *x, EvalTensor *y) {
    const Type *xt = type_get(x->type), *yt = type_get(y->type);
    Window w = pool_window(cx, xt);
    bool pads = attr_int(cx->n, AK_count_include_pad) != 0;
    int64_t n = type_count(yt), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(yt, idx)) {
        int64_t plane = idx[0] * xt->dim[1] + idx[1];
        double *xv = x->f + plane * plane_size(xt);
        window_move(&w, idx + 2);
        double share = 1.0 / (double)(pads ? w.padded : w.inside);
        for (int64_t t = 0; t < w.ntap; t++) {
            if (w.at[t] < 0) continue;
            if (y == cx->out[0])
                y->f[k] += share * xv[w.at[t]];
            else
                xv[w.at[t]] += share * y->f[k];
        }
    }
    return OK;
}

Status eval_avg_pool(EvalCx *cx) {
    return avg_pool(cx, (EvalTensor *)cx->in[0], cx->out[0]);
}

Status eval_avg_pool_grad(EvalCx *cx) {
    return avg_pool(cx, cx->out[0], (EvalTensor *)cx->in[0]);
}
