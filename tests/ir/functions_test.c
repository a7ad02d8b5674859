/* SPDX-License-Identifier: Apache-2.0 */
/* functions_test.c: functions of std.amp, whose bodies are all that the
   interpreter, the expansion and the gradient know of them, compared with
   loops written here from the documentation of ONNX and PyTorch, on random
   shapes, values and attributes. */
#include "ir/ir.h"
#include "tests/harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- operands and calls -------------------------------------------------- */

enum { MOST = 4096, NAMES = 8 };

typedef struct Operand {
    const char *dtype;
    int rank;
    int64_t dim[5];
    double v[MOST];
} Operand;

static Operand operands[NAMES];
static int noperand;
static double got[3][MOST];
static uint64_t rng;

static int64_t draw(int64_t lo, int64_t hi) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return lo + (int64_t)(rng >> 33) % (hi - lo + 1);
}

static double draw_real(double lo, double hi) {
    return lo + (hi - lo) * (double)draw(0, 1 << 24) / (1 << 24);
}

static void begin(uint64_t seed) {
    rng = seed * 7919 + 1;
    for (int i = 0; i < 4; i++) draw(0, 1);
    noperand = 0;
}

static int64_t count(const Operand *o) {
    int64_t n = 1;
    for (int i = 0; i < o->rank; i++) n *= o->dim[i];
    return n;
}

/* The next operand, %a, %b ..; numbers in lo .. hi, integers for "i64". */
static Operand *operand(const char *dtype, double lo, double hi, int rank,
                        const int64_t *dim) {
    Operand *o = &operands[noperand++];
    REQUIRE(noperand <= NAMES);
    *o = (Operand){.dtype = dtype, .rank = rank};
    memcpy(o->dim, dim, (size_t)rank * sizeof *dim);
    REQUIRE(count(o) <= MOST);
    for (int64_t i = 0; i < count(o); i++)
        o->v[i] = *dtype == 'f' ? draw_real(lo, hi)
                                : (double)draw((int64_t)lo, (int64_t)hi);
    return o;
}

#define REAL(lo, hi, ...)                                                      \
    operand("f64", lo, hi, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
            (int64_t[]){__VA_ARGS__})
#define WHOLE(lo, hi, ...)                                                     \
    operand("i64", lo, hi, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
            (int64_t[]){__VA_ARGS__})

static char text[4000]; /* the text of the last call, for messages */

/* Computes a function of all operands, with attributes fmt; the results are
   in got[]. */
static void call(const char *name, int nout, const char *fmt, ...) {
    char attrs[600];
    StrBuf sb = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(attrs, sizeof attrs, fmt, ap);
    va_end(ap);
    sb_puts(&sb, "graph g(");
    for (int k = 0; k < noperand; k++) {
        sb_printf(&sb, "%s%%%c: %s[", k ? ", " : "", 'a' + k,
                  operands[k].dtype);
        for (int i = 0; i < operands[k].rank; i++)
            sb_printf(&sb, "%s%lld", i ? "," : "",
                      (long long)operands[k].dim[i]);
        sb_puts(&sb, "]");
    }
    sb_puts(&sb, ") {\n");
    for (int k = 0; k < nout; k++) sb_printf(&sb, "%s%%y%d", k ? ", " : "", k);
    sb_printf(&sb, " = %s ", name);
    for (int k = 0; k < noperand; k++)
        sb_printf(&sb, "%s%%%c", k ? ", " : "", 'a' + k);
    if (*attrs) sb_printf(&sb, " {%s}", attrs);
    sb_puts(&sb, "\nreturn ");
    for (int k = 0; k < nout; k++) sb_printf(&sb, "%s%%y%d", k ? ", " : "", k);
    sb_puts(&sb, "\n}\n");
    snprintf(text, sizeof text, "%s", sb.data);
    Arena *a = arena_new();
    Diag d = {0};
    Module *m = NULL;
    if (parse_module(a, &d, "f.amp", sb.data, sb.len, &m) != OK)
        FAIL("%s\n%s", text, d.text.data);
    Graph *g = m->graphs.data[0];
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    for (int k = 0; k < noperand; k++) {
        ValueId v = g->inputs.data[k];
        EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
        for (int64_t i = 0; i < count(&operands[k]); i++)
            if (t->f)
                t->f[i] = operands[k].v[i];
            else
                t->i[i] = (int64_t)operands[k].v[i];
        eval_bind(e, v, t);
    }
    if (eval_run(e, &d) != OK) FAIL("%s\n%s", text, d.text.data);
    for (int k = 0; k < nout; k++) {
        const EvalTensor *t = eval_get(e, g->outputs.data[k].value);
        int64_t n = type_count(type_get(t->type));
        REQUIRE(n <= MOST);
        for (int64_t i = 0; i < n; i++)
            got[k][i] = t->f ? t->f[i] : (double)t->i[i];
    }
    sb_free(&sb);
    arena_free(a);
}

static void expect(int k, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(want[i]) ? isnan(got[k][i])
                                   : got[k][i] == want[i] ||
                                         fabs(got[k][i] - want[i]) <=
                                             1e-9 * fmax(1, fabs(want[i]));
        if (CHECK_MSG(same, "%sresult %d, element %lld: %.12g, wanted %.12g",
                      text, k, (long long)i, got[k][i], want[i]))
            continue;
        return;
    }
}

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

/* ---- sequences ----------------------------------------------------------- */

TEST_CASE(functions, steps_are_reversed_up_to_a_length) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        begin(seed);
        int time_axis = (int)draw(0, 1);
        int64_t t = draw(1, 5), b = draw(1, 4), r = draw(1, 3);
        Operand *x = time_axis ? REAL(-2, 2, b, t, r) : REAL(-2, 2, t, b, r);
        const Operand *lens = WHOLE(0, (double)t, b);
        double want[MOST];
        for (int64_t i = 0; i < t; i++)
            for (int64_t k = 0; k < b; k++)
                for (int64_t c = 0; c < r; c++) {
                    int64_t n = (int64_t)lens->v[k];
                    int64_t from = i < n ? n - 1 - i : i;
                    want[(time_axis ? k * t + i : i * b + k) * r + c] =
                        x->v[(time_axis ? k * t + from : from * b + k) * r + c];
                }
        call("reverse_sequence", 1, "batch_axis=%d, time_axis=%d",
             1 - time_axis, time_axis);
        expect(0, want, count(x));
    }
}

TEST_CASE(functions, steps_are_written_where_they_begin) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        begin(seed);
        int axis = (int)draw(1, 2);
        bool starts = draw(0, 3) > 0, circular = draw(0, 1);
        int64_t dim[3] = {draw(1, 3), draw(1, 4), draw(1, 4)}, n[3];
        Operand *x = operand("f64", -2, 2, 3, dim);
        memcpy(n, dim, sizeof n);
        n[axis] = draw(1, dim[axis]);
        Operand *u = operand("f64", -2, 2, 3, n);
        double most = (double)(circular ? dim[axis] - 1 : dim[axis] - n[axis]);
        const Operand *start = starts ? WHOLE(0, most, dim[0]) : NULL;
        double want[MOST];
        memcpy(want, x->v, sizeof want);
        for (int64_t i = 0; i < count(u); i++) {
            int64_t at[3] = {i / n[2] / n[1], i / n[2] % n[1], i % n[2]};
            at[axis] += start ? (int64_t)start->v[at[0]] : 0;
            at[axis] %= dim[axis];
            want[(at[0] * dim[1] + at[1]) * dim[2] + at[2]] = u->v[i];
        }
        call("write_steps", 1, "axis=%d, mode=\"%s\"", axis,
             circular ? "circular" : "linear");
        expect(0, want, count(x));
    }
}

/* ---- recurrent networks, by ONNX's formulas ------------------------------ */

typedef struct Net {
    int64_t time, batch, in, hidden;
    int cell; /* number of gates: 1 rnn, 3 gru, 4 lstm */
    bool batch_first, input_forget, reset_after;
    double limit;
    const Operand *x, *w, *r, *bias, *lens, *h0, *c0, *p;
    const char *f[2], *g[2], *out[2]; /* forward, back */
    int ways, back;                   /* back: result of the backward
                                         direction */
} Net;

static double activation(const char *kind, double x) {
    switch (*kind) {
    case 't': return tanh(x);
    case 'r': return x > 0 ? x : 0;
    case 'e': return x > 0 ? x : expm1(x);
    case 'h': return fmin(fmax(0.2 * x + 0.5, 0), 1);
    }
    return strcmp(kind, "sigmoid") ? x / (1 + fabs(x)) : 1 / (1 + exp(-x));
}

static const char *draw_activation(void) {
    static const char *const kinds[] = {"sigmoid", "tanh",     "relu",
                                        "elu",     "softsign", "hard_sigmoid"};
    return kinds[draw(0, 5)];
}

/* The sum at gate k of unit j, of the input or of a state. */
static double from_input(const Net *n, int way, const double *x, int k,
                         int64_t j) {
    int64_t rows = n->cell * n->hidden, row = k * n->hidden + j;
    double sum = n->bias ? n->bias->v[way * 2 * rows + row] : 0;
    for (int64_t i = 0; i < n->in; i++)
        sum += x[i] * n->w->v[(way * rows + row) * n->in + i];
    return sum;
}

static double from_state(const Net *n, int way, const double *h, int k,
                         int64_t j) {
    int64_t rows = n->cell * n->hidden, row = k * n->hidden + j;
    double sum = n->bias ? n->bias->v[way * 2 * rows + rows + row] : 0;
    for (int64_t i = 0; i < n->hidden; i++)
        sum += h[i] * n->r->v[(way * rows + row) * n->hidden + i];
    return sum;
}

static double gate_of(const Net *n, const char *kind, double x) {
    double most = n->limit > 0 ? n->limit : INFINITY;
    return activation(kind, fmin(fmax(x, -most), most));
}

static void net_step(const Net *n, int way, const double *x, double *h,
                     double *c) {
    int b = way || n->back;
    const char *f = n->f[b], *g = n->g[b], *out = n->out[b];
    double next[16], reset[16];
    const double *p = n->p ? n->p->v + way * 3 * n->hidden : NULL;
    for (int64_t j = 0; j < n->hidden && n->cell == 3; j++)
        reset[j] = gate_of(
            n, f, from_input(n, way, x, 1, j) + from_state(n, way, h, 1, j));
    for (int64_t j = 0; j < n->hidden; j++) {
        double s[4], own[16];
        for (int k = 0; k < n->cell; k++)
            s[k] = from_input(n, way, x, k, j) + from_state(n, way, h, k, j);
        if (n->cell == 1) {
            next[j] = gate_of(n, f, s[0]);
        } else if (n->cell == 3) {
            for (int64_t i = 0; i < n->hidden; i++) own[i] = reset[i] * h[i];
            double part = n->reset_after
                              ? reset[j] * from_state(n, way, h, 2, j)
                              : from_state(n, way, own, 2, j);
            double z = gate_of(n, f, s[0]);
            double m = gate_of(n, g, from_input(n, way, x, 2, j) + part);
            next[j] = (1 - z) * m + z * h[j];
        } else { /* input, output, forget, cell */
            double i = gate_of(n, f, s[0] + (p ? p[j] * c[j] : 0));
            double keep =
                gate_of(n, f, s[2] + (p ? p[2 * n->hidden + j] * c[j] : 0));
            if (n->input_forget) keep = 1 - i;
            c[j] = keep * c[j] + i * gate_of(n, g, s[3]);
            double o = gate_of(n, f, s[1] + (p ? p[n->hidden + j] * c[j] : 0));
            next[j] = o * activation(out, c[j]);
        }
    }
    memcpy(h, next, (size_t)n->hidden * sizeof *h);
}

static void net_run(const Net *n, double *y, double *hs, double *cs) {
    for (int way = 0; way < n->ways; way++)
        for (int64_t b = 0; b < n->batch; b++) {
            int64_t len = n->lens ? (int64_t)n->lens->v[b] : n->time;
            int64_t state =
                (n->batch_first ? b * n->ways + way : way * n->batch + b) *
                n->hidden;
            double h[16] = {0}, c[16] = {0};
            for (int64_t j = 0; j < n->hidden; j++) {
                if (n->h0) h[j] = n->h0->v[state + j];
                if (n->c0) c[j] = n->c0->v[state + j];
            }
            for (int64_t k = 0; k < n->time; k++) {
                int64_t t = way || n->back ? n->time - 1 - k : k;
                int64_t at_x =
                    (n->batch_first ? b * n->time + t : t * n->batch + b) *
                    n->in;
                int64_t at_y =
                    (n->batch_first ? (b * n->time + t) * n->ways + way
                                    : (t * n->ways + way) * n->batch + b) *
                    n->hidden;
                if (t < len) net_step(n, way, n->x->v + at_x, h, c);
                for (int64_t j = 0; j < n->hidden; j++)
                    y[at_y + j] = t < len ? h[j] : 0;
            }
            memcpy(hs + state, h, (size_t)n->hidden * sizeof *h);
            memcpy(cs + state, c, (size_t)n->hidden * sizeof *c);
        }
}

TEST_CASE(functions, recurrent_networks) {
    static const int gates[] = {1, 3, 4};
    static const char *const cells[] = {"rnn", "gru", "lstm"};
    static const char *const ways[] = {"forward", "reverse", "bidirectional"};
    for (uint64_t seed = 0; seed < 72; seed++) {
        begin(seed);
        int cell = (int)(seed % 3), way = (int)(seed / 3 % 3);
        int given = (int)draw(0, cell == 2 ? 5 : 3); /* optional operands */
        Net n = {.time = draw(1, 4),
                 .batch = draw(1, 3),
                 .in = draw(1, 3),
                 .hidden = draw(1, 4),
                 .cell = gates[cell],
                 .batch_first = draw(0, 1),
                 .input_forget = cell == 2 && draw(0, 2) == 0,
                 .reset_after = cell == 1 && draw(0, 1),
                 .limit = draw(0, 2) ? 0 : 0.5,
                 .ways = way == 2 ? 2 : 1,
                 .back = way == 1};
        int64_t rows = n.cell * n.hidden;
        n.x = n.batch_first ? REAL(-1, 1, n.batch, n.time, n.in)
                            : REAL(-1, 1, n.time, n.batch, n.in);
        n.w = REAL(-1, 1, n.ways, rows, n.in);
        n.r = REAL(-1, 1, n.ways, rows, n.hidden);
        if (given > 0) n.bias = REAL(-1, 1, n.ways, 2 * rows);
        if (given > 1) n.lens = WHOLE(0, (double)n.time, n.batch);
        for (int k = 0; k < 2; k++)
            if (given > 2 + k)
                *(k ? &n.c0 : &n.h0) =
                    n.batch_first ? REAL(-1, 1, n.batch, n.ways, n.hidden)
                                  : REAL(-1, 1, n.ways, n.batch, n.hidden);
        if (given > 4) n.p = REAL(-1, 1, n.ways, 3 * n.hidden);
        for (int k = 0; k < 2; k++) {
            n.f[k] = draw_activation();
            n.g[k] = draw_activation();
            n.out[k] = draw_activation();
        }
        char more[100] = "";
        if (n.limit > 0) snprintf(more, sizeof more, ", limit=%g", n.limit);
        call("recurrent", 3,
             "cell=\"%s\", direction=\"%s\", f=\"%s\", g=\"%s\", out=\"%s\", "
             "f_back=\"%s\", g_back=\"%s\", out_back=\"%s\", "
             "batch_first=%d, input_forget=%d, reset_after=%d%s",
             cells[cell], ways[way], n.f[0], n.g[0], n.out[0], n.f[1], n.g[1],
             n.out[1], n.batch_first, n.input_forget, n.reset_after, more);
        double y[MOST], h[MOST], c[MOST];
        net_run(&n, y, h, c);
        int64_t states = n.ways * n.batch * n.hidden;
        expect(0, y, n.time * states);
        expect(1, h, states);
        expect(2, c, states);
    }
}

/* ---- along an axis ------------------------------------------------------- */

TEST_CASE(functions, running_products) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        begin(seed);
        int axis = (int)draw(0, 2);
        bool exclusive = draw(0, 1), reverse = draw(0, 1);
        const Operand *x = REAL(-2, 2, draw(1, 9), draw(1, 5), draw(1, 9));
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
        call("cumprod", 1, "axis=%d, exclusive=%d, reverse=%d",
             draw(0, 1) ? axis : axis - 3, exclusive, reverse);
        expect(0, want, count(x));
    }
}

TEST_CASE(functions, greatest_and_least) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        begin(seed);
        int axis = (int)draw(0, 2);
        bool largest = draw(0, 1);
        Operand *x = REAL(-2, 2, draw(1, 4), draw(1, 6), draw(1, 4));
        for (int64_t i = 0; i < count(x); i++)
            x->v[i] = rint(x->v[i]); /* ties */
        Axis s = axis_of(x, axis);
        int64_t k = draw(1, s.n);
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
        call("topk", 2, "axis=%d, k=%d, largest=%d", axis, (int)k, largest);
        expect(0, want, s.outer * k * s.inner);
        expect(1, index, s.outer * k * s.inner);
    }
}

/* Rows with infinities, and rows of only -inf. */
TEST_CASE(functions, softmaxes) {
    static const char *const names[] = {"softmax", "log_softmax",
                                        "masked_softmax"};
    for (uint64_t seed = 0; seed < 30; seed++) {
        begin(seed);
        int axis = (int)draw(0, 2), kind = (int)(seed % 3);
        Operand *x = REAL(-40, 40, draw(1, 4), draw(1, 4), draw(1, 4));
        for (int64_t i = 0; i < count(x) && kind == 2; i++)
            if (draw(0, 1)) x->v[i] = -INFINITY;
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
        call(names[kind], 1, "axis=%d", draw(0, 1) ? axis : axis - 3);
        expect(0, want, count(x));
    }
}

TEST_CASE(functions, norms_of_axes) {
    static const char *const names[] = {"reduce_l1", "reduce_l2",
                                        "reduce_log_sum", "reduce_log_sum_exp"};
    for (uint64_t seed = 0; seed < 48; seed++) {
        begin(seed);
        int kind = (int)(seed % 4), mask = (int)draw(0, 7),
            keep = (int)draw(0, 1);
        const Operand *x =
            REAL(kind == 2 ? 0.1 : -2, 2, draw(1, 4), draw(1, 4), draw(1, 4));
        int64_t kept[3];
        char axes[40] = "";
        for (int d = 0; d < 3; d++) {
            kept[d] = mask >> d & 1 ? 1 : x->dim[d];
            if (mask >> d & 1)
                snprintf(axes + strlen(axes), sizeof axes - strlen(axes),
                         "%s%d", *axes ? ", " : "", draw(0, 1) ? d : d - 3);
        }
        double want[MOST] = {0};
        int64_t n = kept[0] * kept[1] * kept[2];
        for (int64_t i = 0; i < count(x); i++) {
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
        call(names[kind], 1, "axes=[%s], keepdims=%d", axes, keep);
        expect(0, want, n);
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
        begin(seed);
        int kind = (int)(seed % 4); /* layer, rms, group, instance */
        double epsilon = draw_real(0.01, 1), z[MOST];
        int64_t groups = draw(1, 3), c = groups * draw(1, 3);
        const Operand *x = REAL(-2, 2, draw(1, 3), c, draw(1, 4), draw(1, 3));
        int axis = kind < 2 ? (int)draw(1, 3) : 1;
        bool each = kind == 2 && draw(0, 1);
        int64_t run = x->dim[2] * x->dim[3];
        if (kind < 2)
            run = count(x) / axis_of(x, axis).outer;
        else if (kind == 2)
            run *= c / groups;
        const Operand *scale =
            kind < 2 ? operand("f64", -2, 2, 4 - axis, x->dim + axis)
                     : REAL(-2, 2, each ? groups : c);
        const Operand *bias =
            kind == 1   ? NULL
            : kind == 0 ? operand("f64", -2, 2, 4 - axis, x->dim + axis)
                        : REAL(-2, 2, each ? groups : c);
        for (int64_t i = 0; i < count(x); i += run)
            standard(x->v + i, run, epsilon, kind == 1, z + i);
        for (int64_t i = 0; i < count(x); i++) {
            int64_t channel = i / x->dim[2] / x->dim[3] % c;
            int64_t at = kind < 2 ? i % run
                         : each   ? channel / (c / groups)
                                  : channel;
            z[i] = z[i] * scale->v[at] + (bias ? bias->v[at] : 0);
        }
        if (kind == 0)
            call("layer_norm", 3, "axis=%d, epsilon=%.17g", axis, epsilon);
        else if (kind == 1)
            call("rms_norm", 1, "axis=%d, epsilon=%.17g", axis, epsilon);
        else if (kind == 2)
            call("group_norm", 1, "groups=%d, epsilon=%.17g, per_group=%d",
                 (int)groups, epsilon, each);
        else
            call("instance_norm", 1, "epsilon=%.17g", epsilon);
        expect(0, z, count(x));
    }
}

TEST_CASE(functions, responses_of_neighbouring_channels) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        begin(seed);
        int64_t size = draw(1, 5);
        double alpha = draw_real(0.1, 1), beta = draw_real(0.3, 1), want[MOST];
        const Operand *x = REAL(-2, 2, draw(1, 2), draw(1, 7), draw(1, 3));
        for (int64_t i = 0; i < count(x); i++) {
            int64_t r = x->dim[2], c = i / r % x->dim[1], first = i - c * r;
            double sum = 0;
            for (int64_t k = c - (size - 1) / 2; k <= c + size / 2; k++)
                if (k >= 0 && k < x->dim[1])
                    sum += x->v[first + k * r] * x->v[first + k * r];
            want[i] = x->v[i] / pow(2 + alpha / (double)size * sum, beta);
        }
        call("local_response_norm", 1,
             "size=%d, alpha=%.17g, beta=%.17g, bias=2.0", (int)size, alpha,
             beta);
        expect(0, want, count(x));
    }
}

/* ---- windows ------------------------------------------------------------- */

TEST_CASE(functions, blocks_add_up_to_an_image) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        begin(seed);
        int64_t image[2], block[2], step[2], wide[2], pad[4], n[2];
        for (int d = 0; d < 2; d++) {
            block[d] = draw(1, 3), step[d] = draw(1, 3), wide[d] = draw(1, 2);
            pad[d] = draw(0, 1), pad[2 + d] = draw(0, 1);
            int64_t span = wide[d] * (block[d] - 1) + 1;
            image[d] = draw(span, span + 3);
            n[d] = (image[d] + pad[d] + pad[2 + d] - span) / step[d] + 1;
        }
        int64_t c = draw(1, 2), taps = block[0] * block[1];
        const Operand *x = REAL(-2, 2, draw(1, 2), c * taps, n[0] * n[1]);
        double want[MOST] = {0};
        for (int64_t i = 0; i < count(x); i++) {
            int64_t place = i % (n[0] * n[1]), row = i / (n[0] * n[1]);
            int64_t tap = row % taps, at[2];
            at[0] = place / n[1] * step[0] - pad[0] + tap / block[1] * wide[0];
            at[1] = place % n[1] * step[1] - pad[1] + tap % block[1] * wide[1];
            if (at[0] >= 0 && at[0] < image[0] && at[1] >= 0 &&
                at[1] < image[1])
                want[(row / taps * image[0] + at[0]) * image[1] + at[1]] +=
                    x->v[i];
        }
        call("col2im", 1,
             "image=[%d, %d], block=[%d, %d], strides=[%d, %d], "
             "pads=[%d, %d, %d, %d], dilations=[%d, %d]",
             (int)image[0], (int)image[1], (int)block[0], (int)block[1],
             (int)step[0], (int)step[1], (int)pad[0], (int)pad[1], (int)pad[2],
             (int)pad[3], (int)wide[0], (int)wide[1]);
        expect(0, want, x->dim[0] * c * image[0] * image[1]);
    }
}

/* ---- attention ----------------------------------------------------------- */

/* Query head h reads key head h / (heads / own); masks, causal order and the
   window hide key j. */
TEST_CASE(functions, attention) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        begin(seed);
        int64_t b = draw(1, 2), own = draw(1, 2), heads = own * draw(1, 3);
        int64_t tq = draw(1, 4), tk = draw(1, 5), d = draw(1, 3),
                e = draw(1, 3);
        bool causal = draw(0, 1), masked = draw(0, 1);
        int left = draw(0, 2) ? -1 : (int)draw(0, 2);
        int right = draw(0, 2) ? -1 : (int)draw(0, 2);
        double scale = draw_real(0.2, 2), cap = draw(0, 2) ? 0 : 1.5;
        const Operand *q = REAL(-2, 2, b, heads, tq, d);
        const Operand *k = REAL(-2, 2, b, own, tk, d);
        const Operand *v = REAL(-2, 2, b, own, tk, e);
        Operand *mask = masked ? REAL(-2, 2, tq, tk) : NULL;
        for (int64_t i = 0; masked && i < tq * tk; i++)
            if (draw(0, 3) == 0) mask->v[i] = -INFINITY;
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
        call("attention", 1,
             "scale=%.17g, causal=%d, left=%d, right=%d, softcap=%.17g", scale,
             causal, left, right, cap);
        expect(0, want, b * heads * tq * e);
    }
}
