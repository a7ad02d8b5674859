/* eval_lib.c: reductions, products, convolutions and pools of the
   interpreter, each as the loop nest of its definition.                     */
#include "ir/eval/eval_impl.h"

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
    for (int d = t->rank - 1; d >= 0; d--) { /* of the result; 0: reduced */
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

/* Position of the first largest; the first NaN is larger than all. */
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
    EvalAxis ax = eval_axis(t, axis_norm(attr_int(cx->n, AK_axis, 0), t->rank));
    for (int64_t o = 0; o < ax.outer; o++)
        for (int64_t k = 0; k < ax.inner; k++)
            cx->out[0]->i[o * ax.inner + k] =
                argmax_row(cx->in[0], o * ax.n * ax.inner + k, ax.n, ax.inner);
    return OK;
}

Status eval_cumsum(EvalCx *cx) {
    const EvalTensor *x = cx->in[0];
    EvalTensor *y = cx->out[0];
    const Type *t = type_get(x->type);
    EvalAxis ax = eval_axis(t, axis_norm(attr_int(cx->n, AK_axis, 0), t->rank));
    bool reverse = attr_int(cx->n, AK_reverse, 0) != 0;
    bool exclusive = attr_int(cx->n, AK_exclusive, 0) != 0;
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
    Mat a = mat(cx->in[0], attr_int(cx->n, AK_trans_a, 0));
    Mat b = mat(cx->in[1], attr_int(cx->n, AK_trans_b, 0));
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

/* ---- windows: what convolutions and pools share -------------------------- */

typedef struct Window {
    int s; /* spatial dims */
    int64_t in[MAX_RANK], kernel[MAX_RANK];
    int64_t stride[MAX_RANK], dilation[MAX_RANK], pad[2 * MAX_RANK];
} Window;

static Window window(const Node *n, const Type *x, const int64_t *kernel) {
    Window w = {.s = x->rank - 2};
    for (int d = 0; d < w.s; d++) {
        w.in[d] = x->dim[2 + d];
        w.kernel[d] = kernel[d];
    }
    eval_ints(n, AK_strides, w.s, 1, w.stride);
    eval_ints(n, AK_dilations, w.s, 1, w.dilation);
    eval_ints(n, AK_pads, 2 * w.s, 0, w.pad);
    return w;
}

/* Position in the input plane of tap k of output o, -1 outside.  *padded: the
   tap lies within the input and its pads. */
static int64_t window_at(const Window *w, const int64_t *o, const int64_t *k,
                         bool *padded) {
    int64_t at = 0;
    bool inside = true;
    *padded = true;
    for (int d = 0; d < w->s; d++) {
        int64_t i = o[d] * w->stride[d] - w->pad[d] + k[d] * w->dilation[d];
        inside = inside && i >= 0 && i < w->in[d];
        *padded = *padded && i < w->in[d] + w->pad[w->s + d];
        at = at * w->in[d] + i;
    }
    return inside ? at : -1;
}

static Type window_taps(const Window *w) {
    Type t = {.dtype = DT_F32, .rank = w->s};
    for (int d = 0; d < w->s; d++) t.dim[d] = w->kernel[d];
    return t;
}

static int64_t plane_size(const Type *t) {
    int64_t n = 1;
    for (int d = 2; d < t->rank; d++) n *= t->dim[d];
    return n;
}

/* ---- convolution --------------------------------------------------------- */

/* The three convolutions are the sums y += x*w, dx += dy*w and dw += x*dy over
   the same triples of positions. */
typedef struct Conv {
    const Type *x, *w, *y;
    const double *xv, *wv, *yv; /* the two that are read */
    double *sum;                /* the third */
} Conv;

static void conv_tap(const Conv *c, int64_t x, int64_t w, int64_t y) {
    if (!c->yv)
        c->sum[y] += c->xv[x] * c->wv[w];
    else if (!c->xv)
        c->sum[x] += c->yv[y] * c->wv[w];
    else
        c->sum[w] += c->xv[x] * c->yv[y];
}

/* Everything that meets output position y = [n, k, o...]. */
static void conv_output(const Conv *c, const Window *win, int64_t group,
                        const int64_t *idx, int64_t y) {
    Type taps = window_taps(win);
    int64_t cg = c->w->dim[1], per = c->y->dim[1] / group;
    int64_t xplane = plane_size(c->x), ntap = type_count(&taps);
    for (int64_t ch = 0; ch < cg; ch++) {
        int64_t k[MAX_RANK] = {0};
        int64_t x0 = idx[0] * c->x->dim[1] + idx[1] / per * cg + ch;
        int64_t w0 = idx[1] * cg + ch;
        for (int64_t t = 0; t < ntap; t++, eval_step(&taps, k)) {
            bool padded;
            int64_t at = window_at(win, idx + 2, k, &padded);
            if (at >= 0) conv_tap(c, x0 * xplane + at, w0 * ntap + t, y);
        }
    }
}

static Status conv_run(EvalCx *cx, const Conv *c) {
    Window win = window(cx->n, c->x, c->w->dim + 2);
    int64_t group = attr_int(cx->n, AK_group, 1);
    int64_t n = type_count(c->y), idx[MAX_RANK] = {0};
    for (int64_t y = 0; y < n; y++, eval_step(c->y, idx))
        conv_output(c, &win, group, idx, y);
    return OK;
}

Status eval_conv(EvalCx *cx) {
    Conv c = {.x = type_get(cx->in[0]->type),
              .w = type_get(cx->in[1]->type),
              .y = type_get(cx->out[0]->type),
              .xv = cx->in[0]->f,
              .wv = cx->in[1]->f,
              .sum = cx->out[0]->f};
    return conv_run(cx, &c);
}

Status eval_conv_dgrad(EvalCx *cx) {
    Conv c = {.x = type_get(cx->out[0]->type),
              .w = type_get(cx->in[1]->type),
              .y = type_get(cx->in[0]->type),
              .yv = cx->in[0]->f,
              .wv = cx->in[1]->f,
              .sum = cx->out[0]->f};
    return conv_run(cx, &c);
}

Status eval_conv_wgrad(EvalCx *cx) {
    Conv c = {.x = type_get(cx->in[0]->type),
              .w = type_get(cx->out[0]->type),
              .y = type_get(cx->in[1]->type),
              .xv = cx->in[0]->f,
              .yv = cx->in[1]->f,
              .sum = cx->out[0]->f};
    return conv_run(cx, &c);
}

/* ---- pools --------------------------------------------------------------- */

static Window pool_window(EvalCx *cx, const Type *x) {
    int64_t kernel[MAX_RANK];
    eval_ints(cx->n, AK_kernel_shape, x->rank - 2, 1, kernel);
    return window(cx->n, x, kernel);
}

/* First largest of the window in x's plane at x0; NaN wins; -1: empty. */
static int64_t pool_best(const Window *w, const double *x, const int64_t *o) {
    Type taps = window_taps(w);
    int64_t n = type_count(&taps), k[MAX_RANK] = {0}, best = -1;
    for (int64_t t = 0; t < n; t++, eval_step(&taps, k)) {
        bool padded;
        int64_t at = window_at(w, o, k, &padded);
        if (at < 0) continue;
        if (best < 0 ||
            (x[best] == x[best] && (x[at] > x[best] || x[at] != x[at])))
            best = at;
    }
    return best;
}

Status eval_max_pool(EvalCx *cx) {
    const Type *x = type_get(cx->in[0]->type);
    const Type *y = type_get(cx->out[0]->type);
    Window w = pool_window(cx, x);
    int64_t n = type_count(y), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(y, idx)) {
        const double *plane =
            cx->in[0]->f + (idx[0] * x->dim[1] + idx[1]) * plane_size(x);
        int64_t best = pool_best(&w, plane, idx + 2);
        cx->out[0]->f[k] = best < 0 ? -INFINITY : plane[best];
        cx->out[1]->i[k] = best;
    }
    return OK;
}

Status eval_max_pool_grad(EvalCx *cx) {
    int64_t dx = plane_size(type_get(cx->out[0]->type));
    int64_t dy = plane_size(type_get(cx->in[0]->type));
    int64_t n = type_count(type_get(cx->in[0]->type));
    for (int64_t k = 0; k < n; k++) {
        int64_t at = cx->in[1]->i[k];
        if (at >= 0 && at < dx)
            cx->out[0]->f[k / dy * dx + at] += cx->in[0]->f[k];
    }
    return OK;
}

/* Average pooling and its adjoint: sum or spread over each window. */
static int64_t pool_divisor(const Window *w, const int64_t *o, bool pads) {
    Type taps = window_taps(w);
    int64_t n = type_count(&taps), k[MAX_RANK] = {0}, count = 0;
    for (int64_t t = 0; t < n; t++, eval_step(&taps, k)) {
        bool padded;
        int64_t at = window_at(w, o, k, &padded);
        count += at >= 0 || (pads && padded);
    }
    return count;
}

static void pool_spread(const Window *w, const int64_t *o, double share,
                        const double *x, double *y, double *dx) {
    Type taps = window_taps(w);
    int64_t n = type_count(&taps), k[MAX_RANK] = {0};
    for (int64_t t = 0; t < n; t++, eval_step(&taps, k)) {
        bool padded;
        int64_t at = window_at(w, o, k, &padded);
        if (at < 0) continue;
        if (dx)
            dx[at] += share * *y;
        else
            *y += share * x[at];
    }
}

static Status avg_pool(EvalCx *cx, const Type *xt, const Type *yt,
                       const double *x, double *y, double *dx) {
    Window w = pool_window(cx, xt);
    bool pads = attr_int(cx->n, AK_count_include_pad, 0) != 0;
    int64_t n = type_count(yt), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(yt, idx)) {
        int64_t at = (idx[0] * xt->dim[1] + idx[1]) * plane_size(xt);
        int64_t count = pool_divisor(&w, idx + 2, pads);
        if (count)
            pool_spread(&w, idx + 2, 1.0 / (double)count, x ? x + at : NULL,
                        y + k, dx ? dx + at : NULL);
    }
    return OK;
}

Status eval_avg_pool(EvalCx *cx) {
    return avg_pool(cx, type_get(cx->in[0]->type), type_get(cx->out[0]->type),
                    cx->in[0]->f, cx->out[0]->f, NULL);
}

Status eval_avg_pool_grad(EvalCx *cx) {
    return avg_pool(cx, type_get(cx->out[0]->type), type_get(cx->in[0]->type),
                    NULL, cx->in[0]->f, cx->out[0]->f);
}
