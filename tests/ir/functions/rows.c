/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: functions along an axis, norms, windows, attention. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/ir/functions/functions.h"

/* x viewed as [outer, n, inner] around an axis. */
typedef struct Axis {
    int64_t outer, n, inner;
} Axis;

static Axis axis_of(const Operand *x, int axis) {
    Axis s = {1, x->dim[axis], 1};
    for (int i = 0; i < axis; i++) s.outer *= x->dim[i];
    for (int i = axis + 1; i < x->rank; i++) s.inner *= x->dim[i];
    return s;
}

/* ---- along an axis ------------------------------------------------------- */

TEST_CASE(functions, running_products) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        functions_begin(seed);
        int axis = (int)functions_draw(0, 2);
        bool exclusive = functions_draw(0, 1), reverse = functions_draw(0, 1);
        const Operand *x = REAL(-2, 2, functions_draw(1, 9),
                                functions_draw(1, 5), functions_draw(1, 9));
        Axis s = axis_of(x, axis);
        double want[MOST];
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t i = 0; i < s.inner; i++) {
                double product = 1;
                for (int64_t k = 0; k < s.n; k++) {
                    int64_t t = reverse ? s.n - 1 - k : k;
                    int64_t at = (o * s.n + t) * s.inner + i;
                    if (!exclusive) product *= x->v[at];
                    want[at] = product;
                    if (exclusive) product *= x->v[at];
                }
            }
        functions_call("cumprod", 1, "axis=%d, exclusive=%d, reverse=%d",
                       functions_draw(0, 1) ? axis : axis - 3, exclusive,
                       reverse);
        functions_expect(0, want, functions_count(x));
    }
}

TEST_CASE(functions, greatest_and_least) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        functions_begin(seed);
        int axis = (int)functions_draw(0, 2);
        bool largest = functions_draw(0, 1);
        Operand *x = REAL(-2, 2, functions_draw(1, 4), functions_draw(1, 6),
                          functions_draw(1, 4));
        for (int64_t i = 0; i < functions_count(x); i++)
            x->v[i] = rint(x->v[i]); /* ties */
        Axis s = axis_of(x, axis);
        int64_t k = functions_draw(1, s.n);
        double want[MOST], index[MOST];
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t i = 0; i < s.inner; i++) {
                bool taken[16] = {false};
                for (int64_t j = 0; j < k; j++) {
                    int64_t best = -1;
                    for (int64_t t = 0; t < s.n; t++) {
                        const double *at = x->v + (o * s.n + t) * s.inner + i;
                        const double *now =
                            x->v + (o * s.n + best) * s.inner + i;
                        if (!taken[t] &&
                            (best < 0 || (largest ? *at > *now : *at < *now)))
                            best = t;
                    }
                    taken[best] = true;
                    want[(o * k + j) * s.inner + i] =
                        x->v[(o * s.n + best) * s.inner + i];
                    index[(o * k + j) * s.inner + i] = (double)best;
                }
            }
        functions_call("topk", 2, "axis=%d, k=%d, largest=%d", axis, (int)k,
                       largest);
        functions_expect(0, want, s.outer * k * s.inner);
        functions_expect(1, index, s.outer * k * s.inner);
    }
}

/* Rows with infinities, and rows of only -inf. */
TEST_CASE(functions, softmaxes) {
    static const char *const names[] = {"softmax", "log_softmax",
                                        "masked_softmax"};
    for (uint64_t seed = 0; seed < 30; seed++) {
        functions_begin(seed);
        int axis = (int)functions_draw(0, 2), kind = (int)(seed % 3);
        Operand *x = REAL(-40, 40, functions_draw(1, 4), functions_draw(1, 4),
                          functions_draw(1, 4));
        for (int64_t i = 0; i < functions_count(x) && kind == 2; i++)
            if (functions_draw(0, 1)) x->v[i] = -INFINITY;
        Axis s = axis_of(x, axis);
        double want[MOST];
        for (int64_t o = 0; o < s.outer; o++)
            for (int64_t i = 0; i < s.inner; i++) {
                double top = -INFINITY, sum = 0;
                for (int64_t t = 0; t < s.n; t++)
                    top = fmax(top, x->v[(o * s.n + t) * s.inner + i]);
                for (int64_t t = 0; t < s.n; t++)
                    sum += exp(x->v[(o * s.n + t) * s.inner + i] - top);
                for (int64_t t = 0; t < s.n; t++) {
                    int64_t at = (o * s.n + t) * s.inner + i;
                    double log_p = x->v[at] - top - log(sum);
                    want[at] = top == -INFINITY ? 0
                               : kind == 1      ? log_p
                                                : exp(log_p);
                }
            }
        functions_call(names[kind], 1, "axis=%d",
                       functions_draw(0, 1) ? axis : axis - 3);
        functions_expect(0, want, functions_count(x));
    }
}

TEST_CASE(functions, norms_of_axes) {
    static const char *const names[] = {"reduce_l1", "reduce_l2",
                                        "reduce_log_sum", "reduce_log_sum_exp"};
    for (uint64_t seed = 0; seed < 48; seed++) {
        functions_begin(seed);
        int kind = (int)(seed % 4), mask = (int)functions_draw(0, 7),
            keep = (int)functions_draw(0, 1);
        const Operand *x = REAL(kind == 2 ? 0.1 : -2, 2, functions_draw(1, 4),
                                functions_draw(1, 4), functions_draw(1, 4));
        int64_t kept[3];
        char axes[40] = "";
        for (int d = 0; d < 3; d++) {
            kept[d] = mask >> d & 1 ? 1 : x->dim[d];
            if (mask >> d & 1)
                snprintf(axes + strlen(axes), sizeof axes - strlen(axes),
                         "%s%d", *axes ? ", " : "",
                         functions_draw(0, 1) ? d : d - 3);
        }
        double want[MOST] = {0};
        int64_t n = kept[0] * kept[1] * kept[2];
        for (int64_t i = 0; i < functions_count(x); i++) {
            int64_t at[3] = {i / x->dim[2] / x->dim[1],
                             i / x->dim[2] % x->dim[1], i % x->dim[2]};
            for (int d = 0; d < 3; d++)
                if (kept[d] == 1) at[d] = 0;
            double v = x->v[i];
            want[(at[0] * kept[1] + at[1]) * kept[2] + at[2]] +=
                kind == 0   ? fabs(v)
                : kind == 1 ? v * v
                : kind == 2 ? v
                            : exp(v);
        }
        for (int64_t i = 0; i < n; i++)
            want[i] = kind == 0   ? want[i]
                      : kind == 1 ? sqrt(want[i])
                                  : log(want[i]);
        functions_call(names[kind], 1, "axes=[%s], keepdims=%d", axes, keep);
        functions_expect(0, want, n);
    }
}

/* ---- normalisations ------------------------------------------------------ */

/* x[from .. from + n) minus its mean, divided by its standard deviation;
   rms: divided by its root mean square only. */
static void standard(const double *x, int64_t n, double epsilon, bool rms,
                     double *z) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n && !rms; i++) mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        z[i] = (x[i] - mean) / sqrt(square + epsilon);
}

TEST_CASE(functions, normalisations) {
    for (uint64_t seed = 0; seed < 40; seed++) {
        functions_begin(seed);
        int kind = (int)(seed % 4); /* layer, rms, group, instance */
        double epsilon = draw_real(0.01, 1), z[MOST];
        int64_t groups = functions_draw(1, 3),
                c = groups * functions_draw(1, 3);
        const Operand *x = REAL(-2, 2, functions_draw(1, 3), c,
                                functions_draw(1, 4), functions_draw(1, 3));
        int axis = kind < 2 ? (int)functions_draw(1, 3) : 1;
        bool each = kind == 2 && functions_draw(0, 1);
        int64_t run = x->dim[2] * x->dim[3];
        if (kind < 2)
            run = functions_count(x) / axis_of(x, axis).outer;
        else if (kind == 2)
            run *= c / groups;
        const Operand *scale =
            kind < 2 ? functions_operand("f64", -2, 2, 4 - axis, x->dim + axis)
                     : REAL(-2, 2, each ? groups : c);
        const Operand *bias =
            kind == 1 ? NULL
            : kind == 0
                ? functions_operand("f64", -2, 2, 4 - axis, x->dim + axis)
                : REAL(-2, 2, each ? groups : c);
        for (int64_t i = 0; i < functions_count(x); i += run)
            standard(x->v + i, run, epsilon, kind == 1, z + i);
        for (int64_t i = 0; i < functions_count(x); i++) {
            int64_t channel = i / x->dim[2] / x->dim[3] % c;
            int64_t at = kind < 2 ? i % run
                         : each   ? channel / (c / groups)
                                  : channel;
            z[i] = z[i] * scale->v[at] + (bias ? bias->v[at] : 0);
        }
        if (kind == 0)
            functions_call("layer_norm", 3, "axis=%d, epsilon=%.17g", axis,
                           epsilon);
        else if (kind == 1)
            functions_call("rms_norm", 1, "axis=%d, epsilon=%.17g", axis,
                           epsilon);
        else if (kind == 2)
            functions_call("group_norm", 1,
                           "groups=%d, epsilon=%.17g, per_group=%d",
                           (int)groups, epsilon, each);
        else
            functions_call("instance_norm", 1, "epsilon=%.17g", epsilon);
        functions_expect(0, z, functions_count(x));
    }
}

TEST_CASE(functions, responses_of_neighbouring_channels) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        functions_begin(seed);
        int64_t size = functions_draw(1, 5);
        double alpha = draw_real(0.1, 1), beta = draw_real(0.3, 1), want[MOST];
        const Operand *x = REAL(-2, 2, functions_draw(1, 2),
                                functions_draw(1, 7), functions_draw(1, 3));
        for (int64_t i = 0; i < functions_count(x); i++) {
            int64_t r = x->dim[2], c = i / r % x->dim[1], first = i - c * r;
            double sum = 0;
            for (int64_t k = c - (size - 1) / 2; k <= c + size / 2; k++)
                if (k >= 0 && k < x->dim[1])
                    sum += x->v[first + k * r] * x->v[first + k * r];
            want[i] = x->v[i] / pow(2 + alpha / (double)size * sum, beta);
        }
        functions_call("local_response_norm", 1,
                       "size=%d, alpha=%.17g, beta=%.17g, bias=2.0", (int)size,
                       alpha, beta);
        functions_expect(0, want, functions_count(x));
    }
}

/* ---- windows ------------------------------------------------------------- */

TEST_CASE(functions, blocks_add_up_to_an_image) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        functions_begin(seed);
        int64_t image[2], block[2], step[2], wide[2], pad[4], n[2];
        for (int d = 0; d < 2; d++) {
            block[d] = functions_draw(1, 3), step[d] = functions_draw(1, 3),
            wide[d] = functions_draw(1, 2);
            pad[d] = functions_draw(0, 1), pad[2 + d] = functions_draw(0, 1);
            int64_t span = wide[d] * (block[d] - 1) + 1;
            image[d] = functions_draw(span, span + 3);
            n[d] = (image[d] + pad[d] + pad[2 + d] - span) / step[d] + 1;
        }
        int64_t c = functions_draw(1, 2), taps = block[0] * block[1];
        const Operand *x =
            REAL(-2, 2, functions_draw(1, 2), c * taps, n[0] * n[1]);
        double want[MOST] = {0};
        for (int64_t i = 0; i < functions_count(x); i++) {
            int64_t place = i % (n[0] * n[1]), row = i / (n[0] * n[1]);
            int64_t tap = row % taps, at[2];
            at[0] = place / n[1] * step[0] - pad[0] + tap / block[1] * wide[0];
            at[1] = place % n[1] * step[1] - pad[1] + tap % block[1] * wide[1];
            if (at[0] >= 0 && at[0] < image[0] && at[1] >= 0 &&
                at[1] < image[1])
                want[(row / taps * image[0] + at[0]) * image[1] + at[1]] +=
                    x->v[i];
        }
        functions_call("col2im", 1,
                       "image=[%d, %d], block=[%d, %d], strides=[%d, %d], "
                       "pads=[%d, %d, %d, %d], dilations=[%d, %d]",
                       (int)image[0], (int)image[1], (int)block[0],
                       (int)block[1], (int)step[0], (int)step[1], (int)pad[0],
                       (int)pad[1], (int)pad[2], (int)pad[3], (int)wide[0],
                       (int)wide[1]);
        functions_expect(0, want, x->dim[0] * c * image[0] * image[1]);
    }
}

/* ---- attention ----------------------------------------------------------- */

/* Query head h reads key head h / (heads / own); masks, causal order and the
   window hide key j. */
TEST_CASE(functions, attention) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        functions_begin(seed);
        int64_t b = functions_draw(1, 2), own = functions_draw(1, 2),
                heads = own * functions_draw(1, 3);
        int64_t tq = functions_draw(1, 4), tk = functions_draw(1, 5),
                d = functions_draw(1, 3), e = functions_draw(1, 3);
        bool causal = functions_draw(0, 1), masked = functions_draw(0, 1);
        int left = functions_draw(0, 2) ? -1 : (int)functions_draw(0, 2);
        int right = functions_draw(0, 2) ? -1 : (int)functions_draw(0, 2);
        double scale = draw_real(0.2, 2), cap = functions_draw(0, 2) ? 0 : 1.5;
        const Operand *q = REAL(-2, 2, b, heads, tq, d);
        const Operand *k = REAL(-2, 2, b, own, tk, d);
        const Operand *v = REAL(-2, 2, b, own, tk, e);
        Operand *mask = masked ? REAL(-2, 2, tq, tk) : NULL;
        for (int64_t i = 0; masked && i < tq * tk; i++)
            if (functions_draw(0, 3) == 0) mask->v[i] = -INFINITY;
        double want[MOST] = {0};
        for (int64_t row = 0; row < b * heads * tq; row++) {
            int64_t i = row % tq, h = row / tq % heads, n = row / tq / heads;
            int64_t from = (n * own + h / (heads / own)) * tk;
            double p[8], top = -INFINITY, sum = 0;
            for (int64_t j = 0; j < tk; j++) {
                double s = 0;
                for (int64_t c = 0; c < d; c++)
                    s += q->v[row * d + c] * k->v[(from + j) * d + c] * scale;
                if (cap > 0) s = tanh(s / cap) * cap;
                if (mask) s += mask->v[i * tk + j];
                bool hidden = (causal && j > i) ||
                              (left >= 0 && i - j > left) ||
                              (right >= 0 && j - i > right);
                p[j] = hidden ? -INFINITY : s;
                top = fmax(top, p[j]);
            }
            for (int64_t j = 0; j < tk; j++)
                sum += p[j] = top > -INFINITY ? exp(p[j] - top) : 0;
            for (int64_t j = 0; j < tk && sum > 0; j++)
                for (int64_t c = 0; c < e; c++)
                    want[row * e + c] += p[j] / sum * v->v[(from + j) * e + c];
        }
        functions_call(
            "attention", 1,
            "scale=%.17g, causal=%d, left=%d, right=%d, softcap=%.17g", scale,
            causal, left, right, cap);
        functions_expect(0, want, b * heads * tq * e);
    }
}
