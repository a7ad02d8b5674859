/* SPDX-License-Identifier: Apache-2.0 */
/* linear_test.c: random chains of linear ops, values and gradients.

   What a chain computes is kept here as the matrix of its ops' definitions, of
   whole numbers: its values are that matrix times x, and the gradient of
   sum(y * value) is its transpose times y, both exact in f32.  Gathers by
   known and by given rows, pads of every mode and side, steps in both
   directions, permutations, triangles, sums, running sums, and products with
   transposed or plain operands occur in unforeseen combinations. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "tests/support/on_device.h"

enum { CHAINS = 48, STEPS = 4, X = 48, MOST = 640, RANK = 5, INPUTS = 160 };

static uint64_t state;

static int below(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static int number(void) { return below(7) - 3; }

/* ---- a value ------------------------------------------------------------- */

typedef struct Row {
    float of[X], plus; /* factor of each element of x; a constant term */
} Row;

typedef struct Val {
    int rank, dim[RANK], n;
    char name[24];
    Row *row;
} Val;

typedef struct Given { /* an input of the program */
    char name[24];
    bool index;
    int n;
    float f[MOST];
    int64_t i[MOST];
} Given;

typedef struct Made {
    StrBuf sig, params, body, results;
    Val out[CHAINS];
    Given given[INPUTS], *y[CHAINS];
    int ngiven, nvalue, chain;
    float x[CHAINS][X];
} Made;

static Val val_new(Made *m, int rank, const int *dim) {
    Val v = {.rank = rank, .n = 1};
    for (int i = 0; i < rank; i++) v.n *= v.dim[i] = dim[i];
    snprintf(v.name, sizeof v.name, "%%v%d", m->nvalue++);
    v.row = calloc((size_t)(v.n ? v.n : 1), sizeof *v.row);
    return v;
}

static void put_shape(StrBuf *sb, const Val *v) {
    sb_puts(sb, "[");
    for (int i = 0; i < v->rank; i++)
        sb_printf(sb, "%s%d", i ? "," : "", v->dim[i]);
    sb_puts(sb, "]");
}

static void put_ints(StrBuf *sb, const char *key, const int *x, int n) {
    sb_printf(sb, "%s=[", key);
    for (int i = 0; i < n; i++) sb_printf(sb, "%s%d", i ? "," : "", x[i]);
    sb_puts(sb, "]");
}

static void put_type(Made *m, const Val *v) {
    sb_puts(&m->body, " : f32");
    put_shape(&m->body, v);
    sb_puts(&m->body, "\n");
}

static void split(const Val *v, int k, int *at) {
    for (int d = v->rank - 1; d >= 0; d--) {
        at[d] = k % v->dim[d];
        k /= v->dim[d];
    }
}

static int place(const Val *v, const int *at) {
    int k = 0;
    for (int d = 0; d < v->rank; d++) k = k * v->dim[d] + at[d];
    return k;
}

static void row_add(Row *to, const Row *x, float c) {
    for (int i = 0; i < X; i++) to->of[i] += c * x->of[i];
    to->plus += c * x->plus;
}

static Given *give(Made *m, bool index, int n) {
    REQUIRE(m->ngiven < INPUTS && n <= MOST);
    Given *g = &m->given[m->ngiven];
    *g = (Given){.index = index, .n = n};
    snprintf(g->name, sizeof g->name, "g%d", m->ngiven++);
    return g;
}

/* ---- ops: the text, and each row of the result ----------------------------
 */

static Val reshape(Made *m, const Val *x) {
    int dim[RANK], rank = 0, at = below(x->rank);
    for (int d = 0; d < x->rank; d++) {
        int part = x->dim[d];
        if (d == at && x->rank < RANK)
            for (int tries = 0; tries < 8; tries++) {
                int q = 1 + below(x->dim[d]);
                if (x->dim[d] % q == 0) part = q;
            }
        dim[rank++] = part;
        if (part != x->dim[d]) dim[rank++] = x->dim[d] / part;
    }
    if (rank == x->rank && rank > 1) { /* two become one */
        int d = below(rank - 1);
        dim[d] *= dim[d + 1];
        for (rank--, d++; d < rank; d++) dim[d] = dim[d + 1];
    }
    Val v = val_new(m, rank, dim);
    memcpy(v.row, x->row, (size_t)v.n * sizeof *v.row);
    sb_printf(&m->body, "  %s = reshape %s {", v.name, x->name);
    put_ints(&m->body, "shape", dim, rank);
    sb_puts(&m->body, "}");
    return v;
}

static Val transpose(Made *m, const Val *x) {
    int perm[RANK], dim[RANK];
    for (int d = 0; d < x->rank; d++) {
        int at = below(d + 1);
        perm[d] = perm[at];
        perm[at] = d;
    }
    for (int d = 0; d < x->rank; d++) dim[d] = x->dim[perm[d]];
    Val v = val_new(m, x->rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK], from[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++) from[perm[d]] = at[d];
        v.row[k] = x->row[place(x, from)];
    }
    sb_printf(&m->body, "  %s = transpose %s {", v.name, x->name);
    put_ints(&m->body, "perm", perm, x->rank);
    sb_puts(&m->body, "}");
    return v;
}

static Val slice(Made *m, const Val *x) {
    int starts[RANK], steps[RANK], sizes[RANK];
    for (int d = 0; d < x->rank; d++) {
        int from = below(x->dim[d]), to = below(x->dim[d]);
        if (below(2)) from = 0, to = x->dim[d] - 1;
        steps[d] = to < from ? -1 - below(2) : 1 + below(3) / 2;
        if (below(4) == 0 && from <= to) {
            int keep = from;
            from = to, to = keep, steps[d] = -1;
        }
        starts[d] = from;
        sizes[d] = (to - from) / steps[d] + 1;
    }
    Val v = val_new(m, x->rank, sizes);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++) at[d] = starts[d] + at[d] * steps[d];
        v.row[k] = x->row[place(x, at)];
    }
    sb_printf(&m->body, "  %s = slice %s {", v.name, x->name);
    put_ints(&m->body, "starts", starts, x->rank);
    put_ints(&m->body, ", sizes", sizes, x->rank);
    put_ints(&m->body, ", steps", steps, x->rank);
    sb_puts(&m->body, "}");
    return v;
}

/* The source of a padded position among n elements; -1: none. */
static int padded(int mode, int i, int n) {
    if (i >= 0 && i < n) return i;
    switch (mode) {
    case 0: return -1;
    case 1: return i < 0 ? -i : 2 * (n - 1) - i;
    case 2: return i < 0 ? 0 : n - 1;
    default: return (i % n + n) % n;
    }
}

static Val pad(Made *m, const Val *x) {
    static const char *const text[] = {"constant", "reflect", "edge", "wrap"};
    int mode = below(4), pads[2 * RANK], dim[RANK], value = number();
    for (int d = 0; d < x->rank; d++) {
        int most = mode == 1 ? x->dim[d] - 1 : mode == 3 ? x->dim[d] : 5;
        for (int side = 0; side < 2; side++) {
            int *p = &pads[d + side * x->rank];
            *p = below(3) ? below((most > 6 ? 6 : most) + 1) : 0;
            if (x->rank > 3 && *p > 1) *p = 1;
        }
        dim[d] = x->dim[d] + pads[d] + pads[d + x->rank];
    }
    Val v = val_new(m, x->rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        bool none = false;
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++) {
            at[d] = padded(mode, at[d] - pads[d], x->dim[d]);
            none |= at[d] < 0;
        }
        if (none)
            v.row[k].plus = (float)value;
        else
            v.row[k] = x->row[place(x, at)];
    }
    sb_printf(&m->body, "  %s = pad %s {mode=\"%s\", value=%d, ", v.name,
              x->name, text[mode], value);
    put_ints(&m->body, "pads", pads, 2 * x->rank);
    sb_puts(&m->body, "}");
    return v;
}

/* Row numbers that the program knows, or that are given to it. */
static Val gather(Made *m, const Val *x) {
    int axis = below(x->rank), n = 1 + below(x->dim[axis] * 2), dim[RANK];
    bool known = below(2) != 0;
    int first = below(x->dim[axis]);
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] = n;
    Val v = val_new(m, x->rank, dim);
    int64_t rows[2 * MOST];
    for (int i = 0; i < n; i++) {
        rows[i] = below(3) && i ? (rows[i - 1] + 1) % x->dim[axis]
                                : (first + below(2)) % x->dim[axis];
    }
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        at[axis] = (int)rows[at[axis]];
        v.row[k] = x->row[place(x, at)];
    }
    for (int i = 0; i < n; i++)
        if (below(2)) rows[i] -= x->dim[axis];
    char name[24];
    snprintf(name, sizeof name, "k%d", m->nvalue);
    if (known) {
        sb_printf(&m->body, "  const %%%s: i64[%d] = [", name, n);
        for (int i = 0; i < n; i++)
            sb_printf(&m->body, "%s%d", i ? "," : "", (int)rows[i]);
        sb_puts(&m->body, "]\n");
    } else {
        Given *g = give(m, true, n);
        memcpy(g->i, rows, (size_t)n * sizeof *rows);
        memcpy(name, g->name, sizeof name);
        sb_printf(&m->sig, ", %%%s: i64[%d]", name, n);
    }
    sb_printf(&m->body, "  %s = gather %s, %%%s {axis=%d}", v.name, x->name,
              name, axis);
    return v;
}

static Val expand(Made *m, const Val *x) {
    int dim[RANK], rank = x->rank;
    memcpy(dim, x->dim, sizeof dim);
    for (int d = 0; d < rank; d++)
        if (dim[d] == 1) dim[d] = 1 + below(4);
    int more = rank < RANK && x->n < MOST / 4 ? below(2) : 0;
    if (more) {
        memmove(dim + 1, dim, (RANK - 1) * sizeof *dim);
        dim[0] = 2 + below(2);
        rank++;
    }
    Val v = val_new(m, rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++)
            at[d] = x->dim[d] == 1 ? 0 : at[d + more];
        v.row[k] = x->row[place(x, at)];
    }
    sb_printf(&m->body, "  %s = expand %s {", v.name, x->name);
    put_ints(&m->body, "shape", dim, rank);
    sb_puts(&m->body, "}");
    return v;
}

/* x and twice x, concatenated. */
static Val concat(Made *m, const Val *x) {
    int axis = below(x->rank), dim[RANK];
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] *= 2;
    Val v = val_new(m, x->rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK], twice;
        split(&v, k, at);
        twice = at[axis] >= x->dim[axis];
        at[axis] %= x->dim[axis];
        row_add(&v.row[k], &x->row[place(x, at)], twice ? 2 : 1);
    }
    sb_printf(&m->body, "  %s.t = mul %s, 2\n", v.name, x->name);
    sb_printf(&m->body, "  %s = concat %s, %s.t {axis=%d}", v.name, x->name,
              v.name, axis);
    return v;
}

static Val trilu(Made *m, const Val *x) {
    if (x->rank < 2) return reshape(m, x);
    int rows = x->dim[x->rank - 2], upper = below(2), k0 = below(7) - 3;
    if (rows < 3) k0 = 0;
    Val v = val_new(m, x->rank, x->dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        int off = at[x->rank - 1] - at[x->rank - 2];
        if (upper ? off >= k0 : off <= k0) v.row[k] = x->row[k];
    }
    sb_printf(&m->body, "  %s = trilu %s {upper=%d, k=%d}", v.name, x->name,
              upper, k0);
    return v;
}

static Val reduce(Made *m, const Val *x) {
    int axes[RANK], n = 0, dim[RANK], rank = 0, keep = below(2);
    bool folded[RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        if (below(2)) axes[n++] = d, folded[d] = true;
    if (!n) axes[n++] = 0, folded[0] = true;
    if (n == x->rank) keep = 1;
    for (int d = 0; d < x->rank; d++) {
        if (!folded[d]) dim[rank++] = x->dim[d];
        if (folded[d] && keep) dim[rank++] = 1;
    }
    Val v = val_new(m, rank, dim);
    for (int k = 0; k < x->n; k++) {
        int at[RANK], to[RANK], r = 0;
        split(x, k, at);
        for (int d = 0; d < x->rank; d++) {
            if (!folded[d]) to[r++] = at[d];
            if (folded[d] && keep) to[r++] = 0;
        }
        row_add(&v.row[place(&v, to)], &x->row[k], 1);
    }
    sb_printf(&m->body, "  %s = reduce_sum %s {keepdims=%d, ", v.name, x->name,
              keep);
    put_ints(&m->body, "axes", axes, n);
    sb_puts(&m->body, "}");
    return v;
}

static Val cumsum(Made *m, const Val *x) {
    int axis = below(x->rank), without = below(2), reverse = below(2);
    Val v = val_new(m, x->rank, x->dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK], end;
        split(&v, k, at);
        end = at[axis];
        for (int i = 0; i < x->dim[axis]; i++) {
            int before = reverse ? i - end : end - i;
            if (before < without) continue;
            at[axis] = i;
            row_add(&v.row[k], &x->row[place(x, at)], 1);
        }
    }
    sb_printf(&m->body, "  %s = cumsum %s {axis=%d, exclusive=%d, reverse=%d}",
              v.name, x->name, axis, without, reverse);
    return v;
}

/* With a matrix from the host, either operand transposed or not. */
static Val matmul(Made *m, const Val *x) {
    if (x->rank != 2) return transpose(m, x);
    int left = below(2), ta = below(2), tb = below(2), other = 1 + below(9);
    int inner = left ? x->dim[tb] : x->dim[!ta];
    int free = left ? x->dim[!tb] : x->dim[ta];
    Val v = val_new(m, 2, left ? (int[]){other, free} : (int[]){free, other});
    Given *w = give(m, false, inner * other);
    for (int i = 0; i < w->n; i++) w->f[i] = (float)(below(3) - 1);
    for (int i = 0; i < free; i++)
        for (int j = 0; j < other; j++)
            for (int k = 0; k < inner; k++) {
                int turned = left ? tb : ta;
                int at = (left ? !turned : turned) ? k * x->dim[1] + i
                                                   : i * x->dim[1] + k;
                /* w is [inner, other] on the right, [other, inner] on the
                   left */
                int in_rows = left ? ta : !tb;
                float c = w->f[in_rows ? k * other + j : j * inner + k];
                row_add(&v.row[left ? j * free + i : i * other + j],
                        &x->row[at], c);
            }
    int in_rows = left ? ta : !tb;
    sb_printf(&m->sig, ", %%%s: f32[%d,%d]", w->name, in_rows ? inner : other,
              in_rows ? other : inner);
    sb_printf(&m->body, "  %s = matmul ", v.name);
    if (left)
        sb_printf(&m->body, "%%%s, %s", w->name, x->name);
    else
        sb_printf(&m->body, "%s, %%%s", x->name, w->name);
    sb_printf(&m->body, " {trans_a=%d, trans_b=%d}", ta, tb);
    return v;
}

typedef Val Op(Made *m, const Val *x);
static Op *const ops[] = {reshape, transpose, slice,  pad,      pad,
                          gather,  gather,    expand, concat,   cumsum,
                          reduce,  trilu,     matmul, transpose};
enum { NOPS = sizeof ops / sizeof *ops };

/* ---- programs ------------------------------------------------------------ */

static bool exact(const Val *v) {
    for (int k = 0; k < v->n; k++)
        for (int i = 0; i < X; i++)
            if (v->row[k].of[i] > 99 || v->row[k].of[i] < -99) return false;
    return true;
}

static void cut(StrBuf *sb, size_t len) {
    sb->len = len;
    if (sb->data) sb->data[len] = 0;
}

static void add_chain(Made *m) {
    static const int shapes[][RANK] = {
        {X},           {2, X / 2}, {3, X / 3}, {X / 4, 4},       {2, 3, X / 6},
        {4, 1, X / 4}, {1, X},     {X, 1},     {2, 2, 3, X / 12}};
    const int *dim = shapes[below(sizeof shapes / sizeof *shapes)];
    int rank = 0, c = m->chain;
    while (rank < RANK && dim[rank]) rank++;
    Val v = val_new(m, rank, dim);
    snprintf(v.name, sizeof v.name, "%%x%d", c);
    for (int i = 0; i < X; i++) {
        v.row[i].of[i] = 1;
        m->x[c][i] = (float)number();
    }
    sb_printf(&m->params, "  param %s: f32", v.name);
    put_shape(&m->params, &v);
    sb_puts(&m->params, " = 0\n");
    for (int made = 0; made < STEPS;) {
        size_t sig = m->sig.len, body = m->body.len;
        int given = m->ngiven, value = m->nvalue;
        Val next = ops[below(NOPS)](m, &v);
        if (next.n > MOST || !exact(&next)) { /* another one instead */
            cut(&m->sig, sig);
            cut(&m->body, body);
            m->ngiven = given, m->nvalue = value;
            free(next.row);
            continue;
        }
        put_type(m, &next);
        free(v.row);
        v = next;
        made++;
    }
    Given *y = m->y[c] = give(m, false, v.n);
    for (int i = 0; i < v.n; i++) y->f[i] = (float)number();
    sb_printf(&m->sig, ", %%%s: f32", y->name);
    put_shape(&m->sig, &v);
    int axes[RANK] = {0, 1, 2, 3, 4};
    sb_printf(&m->body, "  %%w%d = mul %s, %%%s\n  %%l%d = reduce_sum %%w%d {",
              c, v.name, y->name, c, c);
    put_ints(&m->body, "axes", axes, v.rank);
    sb_puts(&m->body, ", keepdims=0}\n");
    if (c)
        sb_printf(&m->body, "  %%s%d = add %s%d, %%l%d\n", c,
                  c == 1 ? "%l" : "%s", c - 1, c);
    sb_printf(&m->results, ", y%d=%s", c, v.name);
    m->out[c] = v;
    m->chain++;
}

static Made *made_new(uint64_t seed) {
    Made *m = calloc(1, sizeof *m);
    REQUIRE(m);
    state = seed;
    while (m->chain < CHAINS) add_chain(m);
    return m;
}

static void made_free(Made *m) {
    StrBuf *const text[] = {&m->sig, &m->params, &m->body, &m->results};
    for (int i = 0; i < 4; i++) sb_free(text[i]);
    for (int i = 0; i < CHAINS; i++) free(m->out[i].row);
    free(m);
}

static char *program(const Made *m) {
    StrBuf sb = {0};
    sb_printf(&sb, "graph forward(%s) {\n%s%s  return l=%%s%d%s\n}\n",
              m->sig.data + 2, m->params.data, m->body.data, CHAINS - 1,
              m->results.data);
    return sb.data;
}

/* ---- checks -------------------------------------------------------------- */

static float value(const Made *m, int c, int k) {
    const Row *r = &m->out[c].row[k];
    float sum = r->plus;
    for (int i = 0; i < X; i++) sum += r->of[i] * m->x[c][i];
    return sum;
}

static float slope(const Made *m, int c, int i) {
    float sum = 0;
    for (int k = 0; k < m->out[c].n; k++)
        sum += m->out[c].row[k].of[i] * m->y[c]->f[k];
    return sum;
}

static void check_values(const Made *m, const Compiled *c, ampc_session *s) {
    for (int i = 0; i < CHAINS; i++) {
        float got[MOST];
        char name[16];
        int wrong = 0;
        ampc_output out = ampc_out(NULL, got, (size_t)m->out[i].n * sizeof *got,
                                   AMPC_DTYPE_F32);
        snprintf(name, sizeof name, "y%d", i);
        if (c->api->read_output(s, name, &out)) FAIL("%s", c->api->error(s));
        for (int k = 0; k < m->out[i].n && !wrong; k++)
            wrong |=
                !CHECK_MSG(got[k] == value(m, i, k), "%s[%d] is %g, not %g",
                           name, k, (double)got[k], (double)value(m, i, k));
    }
}

static void check_slopes(const Made *m, const Compiled *c, ampc_session *s) {
    for (int i = 0; i < CHAINS; i++) {
        float got[X];
        char name[16];
        int wrong = 0;
        snprintf(name, sizeof name, "x%d", i);
        read_var(c, s, name, got, sizeof got, AMPC_DTYPE_F32);
        for (int k = 0; k < X && !wrong; k++)
            wrong |= !CHECK_MSG(m->x[i][k] - got[k] == slope(m, i, k),
                                "the gradient of x%d[%d] is %g, not %g, of %s",
                                i, k, (double)(m->x[i][k] - got[k]),
                                (double)slope(m, i, k), m->out[i].name);
    }
}

/* A step with learning rate 1 subtracts the gradient. */
static void check(const Made *m, const Compiled *c, ampc_session *s) {
    ampc_input in[INPUTS];
    for (int i = 0; i < m->ngiven; i++) {
        const Given *g = &m->given[i];
        in[i] = g->index ? ampc_in(g->name, g->i, (size_t)g->n * sizeof *g->i,
                                   AMPC_DTYPE_I64)
                         : ampc_in(g->name, g->f, (size_t)g->n * sizeof *g->f,
                                   AMPC_DTYPE_F32);
    }
    for (int i = 0; i < CHAINS; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        write_var(c, s, name, m->x[i], sizeof m->x[i], AMPC_DTYPE_F32);
    }
    if (c->api->predict(s, in, (size_t)m->ngiven, 1, NULL, 0))
        FAIL("%s", c->api->error(s));
    check_values(m, c, s);
    step_ok(c, s, in, (size_t)m->ngiven);
    check_slopes(m, c, s);
    c->api->close(s);
}

#define OPTIONS "--precision fp32 --loss auto:l --optimizer sgd,lr=1 "

static void on_the_cpu(uint64_t seed) {
    static const char *const levels[] = {"v2", "v3", "v4"};
    static const char *const more[] = {
        ALL_LEVELS, "--no-fuse --shuffle 5 --target cpu:x86-64-v3"};
    Made *m = made_new(seed);
    char *text = program(m);
    for (int k = 0; k < 2; k++) {
        char options[200];
        snprintf(options, sizeof options, OPTIONS "%s", more[k]);
        Compiled c = compile_text(text, options);
        for (int i = k ? 1 : 0; i < (k ? 2 : 3); i++) {
            setenv("AMPC_ISA", levels[i], 1);
            check(m, &c, open_threads(&c, 1 + i));
        }
        unsetenv("AMPC_ISA");
        compiled_close(&c);
    }
    free(text);
    made_free(m);
}

/* script/test --slow runs more of them. */
TEST_CASE(linear, chains_on_the_cpu) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 20 : 1); seed++)
        on_the_cpu(seed);
}

TEST_CASE(linear, chains_on_the_gpu) {
    Made *m = made_new(test_slow() ? 4 : 3);
    char *text = program(m);
    const Compiled *c = compile_on("cuda", text, OPTIONS, "");
    check(m, c, open_on(c, "cuda", 0));
    free(text);
    made_free(m);
}
