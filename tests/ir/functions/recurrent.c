/* SPDX-License-Identifier: Apache-2.0 */
/* recurrent.c: sequences and recurrent networks, by ONNX's formulas. */
#include <math.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/ir/functions/functions.h"

/* ---- sequences ----------------------------------------------------------- */

TEST_CASE(functions, steps_are_reversed_up_to_a_length) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        functions_begin(seed);
        int time_axis = (int)functions_draw(0, 1);
        int64_t t = functions_draw(1, 5), b = functions_draw(1, 4),
                r = functions_draw(1, 3);
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
        functions_call("reverse_sequence", 1, "batch_axis=%d, time_axis=%d",
                       1 - time_axis, time_axis);
        functions_expect(0, want, functions_count(x));
    }
}

TEST_CASE(functions, steps_are_written_where_they_begin) {
    for (uint64_t seed = 0; seed < 30; seed++) {
        functions_begin(seed);
        int axis = (int)functions_draw(1, 2);
        bool starts = functions_draw(0, 3) > 0, circular = functions_draw(0, 1);
        int64_t dim[3] = {functions_draw(1, 3), functions_draw(1, 4),
                          functions_draw(1, 4)},
                n[3];
        Operand *x = functions_operand("f64", -2, 2, 3, dim);
        memcpy(n, dim, sizeof n);
        n[axis] = functions_draw(1, dim[axis]);
        Operand *u = functions_operand("f64", -2, 2, 3, n);
        double most = (double)(circular ? dim[axis] - 1 : dim[axis] - n[axis]);
        const Operand *start = starts ? WHOLE(0, most, dim[0]) : NULL;
        double want[MOST];
        memcpy(want, x->v, sizeof want);
        for (int64_t i = 0; i < functions_count(u); i++) {
            int64_t at[3] = {i / n[2] / n[1], i / n[2] % n[1], i % n[2]};
            at[axis] += start ? (int64_t)start->v[at[0]] : 0;
            at[axis] %= dim[axis];
            want[(at[0] * dim[1] + at[1]) * dim[2] + at[2]] = u->v[i];
        }
        functions_call("write_steps", 1, "axis=%d, mode=\"%s\"", axis,
                       circular ? "circular" : "linear");
        functions_expect(0, want, functions_count(x));
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
    return kinds[functions_draw(0, 5)];
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
        functions_begin(seed);
        int cell = (int)(seed % 3), way = (int)(seed / 3 % 3);
        int given =
            (int)functions_draw(0, cell == 2 ? 5 : 3); /* optional operands */
        Net n = {.time = functions_draw(1, 4),
                 .batch = functions_draw(1, 3),
                 .in = functions_draw(1, 3),
                 .hidden = functions_draw(1, 4),
                 .cell = gates[cell],
                 .batch_first = functions_draw(0, 1),
                 .input_forget = cell == 2 && functions_draw(0, 2) == 0,
                 .reset_after = cell == 1 && functions_draw(0, 1),
                 .limit = functions_draw(0, 2) ? 0 : 0.5,
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
        functions_call(
            "recurrent", 3,
            "cell=\"%s\", direction=\"%s\", f=\"%s\", g=\"%s\", out=\"%s\", "
            "f_back=\"%s\", g_back=\"%s\", out_back=\"%s\", "
            "batch_first=%d, input_forget=%d, reset_after=%d%s",
            cells[cell], ways[way], n.f[0], n.g[0], n.out[0], n.f[1], n.g[1],
            n.out[1], n.batch_first, n.input_forget, n.reset_after, more);
        double y[MOST], h[MOST], c[MOST];
        net_run(&n, y, h, c);
        int64_t states = n.ways * n.batch * n.hidden;
        functions_expect(0, y, n.time * states);
        functions_expect(1, h, states);
        functions_expect(2, c, states);
    }
}
