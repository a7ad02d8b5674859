/* SPDX-License-Identifier: Apache-2.0 */
/* eval_sums.c: convolutions that add up their results. */
#include "ir/eval/eval_impl.h"
#include "runtime/program/strip.h"

/* The sums of one channel's strip, over results as they are stored. */
static void sum_strip(EvalCx *cx, int64_t channel, int64_t from, int64_t to) {
    const EvalTensor *y = cx->out[0];
    const Type *t = type_get(y->type);
    int64_t k = t->dim[1], plane = type_count(t) / t->dim[0] / k;
    double sum = 0, squares = 0;
    for (int pass = 0; pass < 2; pass++) {
        double mean = sum / (double)(to - from);
        for (int64_t i = from; i < to; i++) {
            int64_t at = (i / plane * k + channel) * plane + i % plane;
            double v = round_to_dtype(y->f[at], t->dtype);
            if (pass == 0)
                sum += v;
            else
                squares += (v - mean) * (v - mean);
        }
    }
    int64_t at = from / CONV_STRIP * k + channel;
    cx->out[1]->f[at] = sum;
    cx->out[2]->f[at] = squares;
}

Status eval_conv_sums(EvalCx *cx) {
    const Type *t = type_get(cx->out[0]->type);
    int64_t columns = type_count(t) / (t->dim[1] ? t->dim[1] : 1), end;
    TRY(eval_conv(cx));
    for (int64_t i = 0; i < type_count(t); i++)
        cx->out[0]->f[i] *= attr_float(cx->n, AK_scale);
    for (int64_t at = 0; at < columns; at = end) {
        end = at + CONV_STRIP < columns ? at + CONV_STRIP : columns;
        for (int64_t c = 0; c < t->dim[1]; c++) sum_strip(cx, c, at, end);
    }
    return OK;
}

/* The element at `at`, of that channel, before it is rounded; *norm: the batch
   norm's. */
static double gated(const EvalCx *cx, int64_t at, int64_t channel,
                    double *norm) {
    enum { X = 2, MEAN, RSTD, GATE, GAIN, SHIFT, ADD };
    const EvalTensor *const *in = cx->in;
    const int n = cx->n->nin;
    double x = in[X]->f[at] * attr_float(cx->n, AK_scale);
    *norm = (x - in[MEAN]->f[channel]) * in[RSTD]->f[channel];
    double gate = in[GATE]
                      ? in[GATE]->f[at]
                      : *norm * in[GAIN]->f[channel] + in[SHIFT]->f[channel];
    double add = n > ADD && in[ADD] ? in[ADD]->f[at] : 0;
    return gate <= 0 ? 0 : cx->out[0]->f[at] + add;
}

Status eval_conv_dgrad_sums(EvalCx *cx) {
    const Type *t = type_get(cx->out[0]->type);
    TRY(eval_conv_dgrad(cx));
    if (!type_count(t)) return OK;
    int64_t c = t->dim[1], plane = type_count(t) / t->dim[0] / c;
    for (int64_t at = 0; at < type_count(t); at++) {
        int64_t channel = at / plane % c, image = at / plane / c;
        int64_t strip = (image * plane + at % plane) / CONV_STRIP;
        double norm, v = gated(cx, at, channel, &norm);
        cx->out[0]->f[at] = v;
        v = round_to_dtype(v, t->dtype);
        cx->out[1]->f[strip * c + channel] += v;
        cx->out[2]->f[strip * c + channel] += v * norm;
    }
    return OK;
}
