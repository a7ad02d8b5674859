/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c: the text of each op, and each row of its result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/base.h"
#include "tests/whole/linear/linear.h"

int linear_below(int n) {
    linear_state = linear_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((linear_state >> 33) % (uint64_t)n);
}

int linear_number(void) { return linear_below(7) - 3; }

Val linear_val_new(Made *m, int rank, const int *dim) {
    Val v = {.rank = rank, .n = 1};
    for (int i = 0; i < rank; i++) v.n *= v.dim[i] = dim[i];
    snprintf(v.name, sizeof v.name, "%%v%d", m->nvalue++);
    v.row = calloc((size_t)(v.n ? v.n : 1), sizeof *v.row);
    return v;
}

void linear_put_shape(StrBuf *sb, const Val *v) {
    sb_puts(sb, "[");
    for (int i = 0; i < v->rank; i++)
        sb_printf(sb, "%s%d", i ? "," : "", v->dim[i]);
    sb_puts(sb, "]");
}

void linear_put_ints(StrBuf *sb, const char *key, const int *x, int n) {
    sb_printf(sb, "%s=[", key);
    for (int i = 0; i < n; i++) sb_printf(sb, "%s%d", i ? "," : "", x[i]);
    sb_puts(sb, "]");
}

void linear_put_type(Made *m, const Val *v) {
    sb_puts(&m->body, " : f32");
    linear_put_shape(&m->body, v);
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

Given *linear_give(Made *m, bool index, int n) {
    REQUIRE(m->ngiven < INPUTS && n <= MOST);
    Given *g = &m->given[m->ngiven];
    *g = (Given){.index = index, .n = n};
    snprintf(g->name, sizeof g->name, "g%d", m->ngiven++);
    return g;
}

/* ---- ops: the text, and each row of the result ----------------------------
 */

static Val reshape(Made *m, const Val *x) {
    int dim[RANK], rank = 0, at = linear_below(x->rank);
    for (int d = 0; d < x->rank; d++) {
        int part = x->dim[d];
        if (d == at && x->rank < RANK)
            for (int tries = 0; tries < 8; tries++) {
                int q = 1 + linear_below(x->dim[d]);
                if (x->dim[d] % q == 0) part = q;
            }
        dim[rank++] = part;
        if (part != x->dim[d]) dim[rank++] = x->dim[d] / part;
    }
    if (rank == x->rank && rank > 1) { /* two become one */
        int d = linear_below(rank - 1);
        dim[d] *= dim[d + 1];
        for (rank--, d++; d < rank; d++) dim[d] = dim[d + 1];
    }
    Val v = linear_val_new(m, rank, dim);
    memcpy(v.row, x->row, (size_t)v.n * sizeof *v.row);
    sb_printf(&m->body, "  %s = reshape %s {", v.name, x->name);
    linear_put_ints(&m->body, "shape", dim, rank);
    sb_puts(&m->body, "}");
    return v;
}

static Val transpose(Made *m, const Val *x) {
    int perm[RANK], dim[RANK];
    for (int d = 0; d < x->rank; d++) {
        int at = linear_below(d + 1);
        perm[d] = perm[at];
        perm[at] = d;
    }
    for (int d = 0; d < x->rank; d++) dim[d] = x->dim[perm[d]];
    Val v = linear_val_new(m, x->rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK], from[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++) from[perm[d]] = at[d];
        v.row[k] = x->row[place(x, from)];
    }
    sb_printf(&m->body, "  %s = transpose %s {", v.name, x->name);
    linear_put_ints(&m->body, "perm", perm, x->rank);
    sb_puts(&m->body, "}");
    return v;
}

static Val slice(Made *m, const Val *x) {
    int starts[RANK], steps[RANK], sizes[RANK];
    for (int d = 0; d < x->rank; d++) {
        int from = linear_below(x->dim[d]), to = linear_below(x->dim[d]);
        if (linear_below(2)) from = 0, to = x->dim[d] - 1;
        steps[d] = to < from ? -1 - linear_below(2) : 1 + linear_below(3) / 2;
        if (linear_below(4) == 0 && from <= to) {
            int keep = from;
            from = to, to = keep, steps[d] = -1;
        }
        starts[d] = from;
        sizes[d] = (to - from) / steps[d] + 1;
    }
    Val v = linear_val_new(m, x->rank, sizes);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++) at[d] = starts[d] + at[d] * steps[d];
        v.row[k] = x->row[place(x, at)];
    }
    sb_printf(&m->body, "  %s = slice %s {", v.name, x->name);
    linear_put_ints(&m->body, "starts", starts, x->rank);
    linear_put_ints(&m->body, ", sizes", sizes, x->rank);
    linear_put_ints(&m->body, ", steps", steps, x->rank);
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
    int mode = linear_below(4), pads[2 * RANK], dim[RANK],
        value = linear_number();
    for (int d = 0; d < x->rank; d++) {
        int most = mode == 1 ? x->dim[d] - 1 : mode == 3 ? x->dim[d] : 5;
        for (int side = 0; side < 2; side++) {
            int *p = &pads[d + side * x->rank];
            *p = linear_below(3) ? linear_below((most > 6 ? 6 : most) + 1) : 0;
            if (x->rank > 3 && *p > 1) *p = 1;
        }
        dim[d] = x->dim[d] + pads[d] + pads[d + x->rank];
    }
    Val v = linear_val_new(m, x->rank, dim);
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
    linear_put_ints(&m->body, "pads", pads, 2 * x->rank);
    sb_puts(&m->body, "}");
    return v;
}

/* Row numbers that the program knows, or that are given to it. */
static Val gather(Made *m, const Val *x) {
    int axis = linear_below(x->rank), n = 1 + linear_below(x->dim[axis] * 2),
        dim[RANK];
    bool known = linear_below(2) != 0;
    int first = linear_below(x->dim[axis]);
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] = n;
    Val v = linear_val_new(m, x->rank, dim);
    int64_t rows[2 * MOST];
    for (int i = 0; i < n; i++) {
        rows[i] = linear_below(3) && i
                      ? (rows[i - 1] + 1) % x->dim[axis]
                      : (first + linear_below(2)) % x->dim[axis];
    }
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        at[axis] = (int)rows[at[axis]];
        v.row[k] = x->row[place(x, at)];
    }
    for (int i = 0; i < n; i++)
        if (linear_below(2)) rows[i] -= x->dim[axis];
    char name[24];
    snprintf(name, sizeof name, "k%d", m->nvalue);
    if (known) {
        sb_printf(&m->body, "  const %%%s: i64[%d] = [", name, n);
        for (int i = 0; i < n; i++)
            sb_printf(&m->body, "%s%d", i ? "," : "", (int)rows[i]);
        sb_puts(&m->body, "]\n");
    } else {
        Given *g = linear_give(m, true, n);
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
        if (dim[d] == 1) dim[d] = 1 + linear_below(4);
    int more = rank < RANK && x->n < MOST / 4 ? linear_below(2) : 0;
    if (more) {
        memmove(dim + 1, dim, (RANK - 1) * sizeof *dim);
        dim[0] = 2 + linear_below(2);
        rank++;
    }
    Val v = linear_val_new(m, rank, dim);
    for (int k = 0; k < v.n; k++) {
        int at[RANK];
        split(&v, k, at);
        for (int d = 0; d < x->rank; d++)
            at[d] = x->dim[d] == 1 ? 0 : at[d + more];
        v.row[k] = x->row[place(x, at)];
    }
    sb_printf(&m->body, "  %s = expand %s {", v.name, x->name);
    linear_put_ints(&m->body, "shape", dim, rank);
    sb_puts(&m->body, "}");
    return v;
}

/* x and twice x, concatenated. */
static Val concat(Made *m, const Val *x) {
    int axis = linear_below(x->rank), dim[RANK];
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] *= 2;
    Val v = linear_val_new(m, x->rank, dim);
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
    int rows = x->dim[x->rank - 2], upper = linear_below(2),
        k0 = linear_below(7) - 3;
    if (rows < 3) k0 = 0;
    Val v = linear_val_new(m, x->rank, x->dim);
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
    int axes[RANK], n = 0, dim[RANK], rank = 0, keep = linear_below(2);
    bool folded[RANK] = {0};
    for (int d = 0; d < x->rank; d++)
        if (linear_below(2)) axes[n++] = d, folded[d] = true;
    if (!n) axes[n++] = 0, folded[0] = true;
    if (n == x->rank) keep = 1;
    for (int d = 0; d < x->rank; d++) {
        if (!folded[d]) dim[rank++] = x->dim[d];
        if (folded[d] && keep) dim[rank++] = 1;
    }
    Val v = linear_val_new(m, rank, dim);
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
    linear_put_ints(&m->body, "axes", axes, n);
    sb_puts(&m->body, "}");
    return v;
}

static Val cumsum(Made *m, const Val *x) {
    int axis = linear_below(x->rank), without = linear_below(2),
        reverse = linear_below(2);
    Val v = linear_val_new(m, x->rank, x->dim);
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
    int left = linear_below(2), ta = linear_below(2), tb = linear_below(2),
        other = 1 + linear_below(9);
    int inner = left ? x->dim[tb] : x->dim[!ta];
    int free = left ? x->dim[!tb] : x->dim[ta];
    Val v = linear_val_new(m, 2,
                           left ? (int[]){other, free} : (int[]){free, other});
    Given *w = linear_give(m, false, inner * other);
    for (int i = 0; i < w->n; i++) w->f[i] = (float)(linear_below(3) - 1);
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

Op *const linear_ops[] = {reshape, transpose, slice,  pad,      pad,
                          gather,  gather,    expand, concat,   cumsum,
                          reduce,  trilu,     matmul, transpose};
const int linear_nops = sizeof linear_ops / sizeof *linear_ops;
