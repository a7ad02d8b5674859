/* eval_nn.c: composite ops of the interpreter, from their definitions and not
   from the expansion that pass expand makes of them.                        */
#include "ir/eval/eval_impl.h"

#include <math.h>
#include <string.h>

/* ---- softmax ------------------------------------------------------------- */

static double row_max(const double *x, int64_t n, int64_t step) {
    double m = -INFINITY;
    for (int64_t k = 0; k < n; k++)
        if (x[k * step] > m || x[k * step] != x[k * step]) m = x[k * step];
    return m;
}

/* log sum exp over n elements; -inf when all are */
static double row_lse(const double *x, int64_t n, int64_t step) {
    double m = row_max(x, n, step), sum = 0;
    for (int64_t k = 0; k < n; k++) sum += exp(x[k * step] - m);
    return m + log(sum);
}

Status eval_softmax(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    bool logs = cx->n->op == OP_LOG_SOFTMAX;
    EvalAxis ax =
        eval_axis(t, axis_norm(attr_int(cx->n, AK_axis, -1), t->rank));
    for (int64_t r = 0; r < ax.outer * ax.inner; r++) {
        int64_t at = r / ax.inner * ax.n * ax.inner + r % ax.inner;
        const double *x = cx->in[0]->f + at;
        double *y = cx->out[0]->f + at, lse = row_lse(x, ax.n, ax.inner);
        for (int64_t k = 0; k < ax.n; k++) {
            double v = x[k * ax.inner] - lse;
            y[k * ax.inner] = logs ? v : exp(v);
        }
    }
    return OK;
}

/* ---- normalisation ------------------------------------------------------- */

/* Position in an operand that broadcasts against the last dims of x. */
static int64_t tail_at(const Type *t, const Type *x, const int64_t *idx) {
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++)
        at = at * t->dim[d] + (t->dim[d] == 1 ? 0 : idx[x->rank - t->rank + d]);
    return at;
}

static void moments(const double *x, int64_t n, double *mean, double *var) {
    double s = 0, q = 0;
    for (int64_t k = 0; k < n; k++) s += x[k];
    *mean = s / (double)n;
    for (int64_t k = 0; k < n; k++) q += (x[k] - *mean) * (x[k] - *mean);
    *var = q / (double)n;
}

Status eval_layer_norm(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    const EvalTensor *scale = cx->in[1];
    const EvalTensor *bias = cx->n->nin > 2 ? cx->in[2] : NULL;
    int axis = axis_norm(attr_int(cx->n, AK_axis, -1), t->rank);
    double eps = attr_float(cx->n, AK_epsilon, 1e-5);
    int64_t row = 1, n = type_count(t), idx[MAX_RANK] = {0};
    for (int d = axis; d < t->rank; d++) row *= t->dim[d];
    double *mean = cx->out[1]->f, *rstd = cx->out[2]->f;
    for (int64_t r = 0; row && r < n / row; r++) {
        double var;
        moments(cx->in[0]->f + r * row, row, &mean[r], &var);
        rstd[r] = 1 / sqrt(var + eps);
    }
    for (int64_t k = 0; k < n; k++, eval_step(t, idx)) {
        double y = (cx->in[0]->f[k] - mean[k / row]) * rstd[k / row];
        y *= eval_at(scale, tail_at(type_get(scale->type), t, idx));
        if (bias) y += eval_at(bias, tail_at(type_get(bias->type), t, idx));
        cx->out[0]->f[k] = y;
    }
    return OK;
}

/* Batch statistics of every channel, population variance. */
static void batch_moments(const double *x, EvalAxis ax, double *mean,
                          double *var) {
    double n = (double)(ax.outer * ax.inner);
    for (int64_t c = 0; c < ax.n; c++) {
        double s = 0, q = 0;
        for (int64_t o = 0; o < ax.outer; o++)
            for (int64_t k = 0; k < ax.inner; k++)
                s += x[(o * ax.n + c) * ax.inner + k];
        mean[c] = s / n;
        for (int64_t o = 0; o < ax.outer; o++)
            for (int64_t k = 0; k < ax.inner; k++) {
                double d = x[(o * ax.n + c) * ax.inner + k] - mean[c];
                q += d * d;
            }
        var[c] = q / n;
    }
}

Status eval_batch_norm(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    EvalAxis ax = eval_axis(t, 1);
    const double *x = cx->in[0]->f, *mean = cx->in[3]->f, *var = cx->in[4]->f;
    double eps = attr_float(cx->n, AK_epsilon, 1e-5);
    int64_t n = type_count(t);
    if (attr_int(cx->n, AK_training, 0)) {
        batch_moments(x, ax, cx->out[1]->f, cx->out[2]->f);
        mean = cx->out[1]->f;
        var = cx->out[2]->f;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t c = k / ax.inner % ax.n;
        cx->out[0]->f[k] =
            (x[k] - mean[c]) / sqrt(var[c] + eps) * cx->in[1]->f[c] +
            cx->in[2]->f[c];
    }
    return OK;
}

/* ---- losses -------------------------------------------------------------- */

/* Rows of class scores and their targets, shared by the two losses. */
typedef struct Loss {
    const double *x, *weight; /* weight NULL: 1 each */
    const int64_t *target;
    EvalAxis ax;
    bool ignores;
    int64_t ignore;
    Str reduction;
} Loss;

static Loss loss_init(EvalCx *cx) {
    const Type *t = type_get(cx->in[0]->type);
    int axis = axis_norm(attr_int(cx->n, AK_axis, 1), t->rank);
    Loss l = {.x = cx->in[0]->f,
              .target = cx->in[1]->i,
              .ax = eval_axis(t, axis),
              .ignores = attr_find(cx->n, AK_ignore_index) != NULL,
              .ignore = attr_int(cx->n, AK_ignore_index, 0),
              .reduction = attr_str(cx->n, AK_reduction, "mean")};
    if (cx->n->nin > 2 && cx->in[2]) l.weight = cx->in[2]->f;
    return l;
}

static const double *loss_row(const Loss *l, int64_t r) {
    return l->x + r / l->ax.inner * l->ax.n * l->ax.inner + r % l->ax.inner;
}

static bool loss_in_range(const Loss *l, int64_t r) {
    return l->target[r] >= 0 && l->target[r] < l->ax.n;
}

/* Score of the target, 0 when it is out of range (as gather has it). */
static double loss_score(const Loss *l, int64_t r) {
    if (!loss_in_range(l, r)) return 0;
    return loss_row(l, r)[l->target[r] * l->ax.inner];
}

static double loss_weight(const Loss *l, int64_t r) {
    if (!l->weight) return 1;
    return loss_in_range(l, r) ? l->weight[l->target[r]] : 0;
}

typedef double LossFn(const Loss *l, int64_t r, double smoothing);

/* Reduces the per-row losses into out; ignored rows count nothing. */
static void loss_reduce(const Loss *l, LossFn *fn, double smoothing,
                        EvalTensor *out) {
    int64_t rows = l->ax.outer * l->ax.inner;
    bool each = strcmp(l->reduction, "none") == 0;
    double sum = 0, weight = 0;
    for (int64_t r = 0; r < rows; r++) {
        bool keep = !l->ignores || l->target[r] != l->ignore;
        double v = keep ? fn(l, r, smoothing) : 0;
        if (each) out->f[r] = v;
        sum += v;
        weight += keep ? loss_weight(l, r) : 0;
    }
    if (each) return;
    out->f[0] = strcmp(l->reduction, "mean") == 0 ? sum / weight : sum;
}

/* (1-s) w[t] (lse - x[t]) + s/C sum_c w[c] (lse - x[c]) */
static double xent_row(const Loss *l, int64_t r, double s) {
    const double *x = loss_row(l, r);
    double lse = row_lse(x, l->ax.n, l->ax.inner), rest = 0;
    for (int64_t c = 0; s != 0 && c < l->ax.n; c++)
        rest += (l->weight ? l->weight[c] : 1) * (lse - x[c * l->ax.inner]);
    return (1 - s) * loss_weight(l, r) * (lse - loss_score(l, r)) +
           s / (double)l->ax.n * rest;
}

Status eval_xent(EvalCx *cx) {
    Loss l = loss_init(cx);
    for (int64_t r = 0; r < l.ax.outer * l.ax.inner; r++)
        cx->out[1]->f[r] = row_lse(loss_row(&l, r), l.ax.n, l.ax.inner);
    loss_reduce(&l, xent_row, attr_float(cx->n, AK_label_smoothing, 0),
                cx->out[0]);
    return OK;
}

static double nll_row(const Loss *l, int64_t r, double s) {
    (void)s;
    return -loss_weight(l, r) * loss_score(l, r);
}

Status eval_nll(EvalCx *cx) {
    Loss l = loss_init(cx);
    loss_reduce(&l, nll_row, 0, cx->out[0]);
    return OK;
}

/* ---- dropout ------------------------------------------------------------- */

Status eval_dropout(EvalCx *cx) {
    double ratio = attr_float(cx->n, AK_ratio, 0.5);
    double limit = (double)(float)ratio; /* the stream is fp32 */
    int64_t salt = attr_int(cx->n, AK_salt, 0);
    int64_t n = type_count(type_get(cx->in[0]->type));
    for (int64_t k = 0; k < n; k++) {
        bool keep = eval_uniform(cx->in[1]->i, salt, k) >= limit;
        cx->out[0]->f[k] = keep ? cx->in[0]->f[k] / (1 - ratio) : 0;
    }
    return OK;
}
