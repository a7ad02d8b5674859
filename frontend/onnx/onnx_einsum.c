/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_einsum.c: Einsum as transposes, sums and matrix products. Operands
   are taken from the left. Each pair is multiplied and summed at once over
   the labels that are no longer needed, as a matrix product if there are
   any. */
#include <ctype.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum {
    MAX_OPERANDS = 16,
    DOTS = 'z' + 1
}; /* labels from DOTS on stand for
      "..." */

/* A tensor whose axes have labels. */
typedef struct Term {
    ValueId v;
    int rank;
    unsigned char label[MAX_RANK];
} Term;

static int einsum_find(const Term *t, int label) {
    for (int i = 0; i < t->rank; i++)
        if (t->label[i] == label) return i;
    return -1;
}

static int64_t size_of(const Ox *ox, const Term *t, int axis) {
    return ox_type(ox, t->v).dim[axis];
}

/* ---- the equation -------------------------------------------------------- */

/* One term of n characters; `dots` is how many axes "..." covers. */
static Status read_term(Ox *ox, const char *s, size_t n, int dots, Term *t) {
    t->rank = 0;
    for (size_t i = 0; i < n; i++) {
        bool ellipsis = n - i >= 3 && !strncmp(s + i, "...", 3);
        int count = ellipsis ? dots : 1;
        if (s[i] == ' ') continue;
        if (!ellipsis && !isalpha((unsigned char)s[i]))
            return ox_fail(ox,
                           "the equation has a stray '%s' at a term's "
                           "position %zu",
                           ox_quote(ox, intern_n(s + i, 1)), i);
        for (int k = 0; k < count; k++) {
            if (t->rank == MAX_RANK)
                return ox_fail(ox,
                               "a term of the equation has more than %d "
                               "labels",
                               MAX_RANK);
            /* aligned at the right, so that shorter shapes broadcast */
            int label = ellipsis ? DOTS + dots - 1 - k : s[i];
            t->label[t->rank++] = (unsigned char)label;
        }
        if (ellipsis) i += 2;
    }
    return OK;
}

static Status read_operand(Ox *ox, const char *s, size_t n, int i, Term *t,
                           int *dots) {
    t->v = ox_in(ox, i);
    int rank = ox_type(ox, t->v).rank, extra = rank;
    bool ellipsis = false;
    for (size_t k = 0; k < n; k++) {
        extra -= isalpha((unsigned char)s[k]) != 0;
        ellipsis |= n - k >= 3 && !strncmp(s + k, "...", 3);
    }
    bool fits = extra == 0 || (extra > 0 && ellipsis);
    if (fits && extra > *dots) *dots = extra;
    if (fits) TRY(read_term(ox, s, n, extra, t));
    if (fits && t->rank == rank) return OK;
    return ox_fail(ox, "operand %d has rank %d, its term another", i, rank);
}

/* Without "->" the result has the labels that occur once, in order, after
   the dots. */
static void implicit_output(const Term *in, int n, int dots, Term *out) {
    out->rank = 0;
    for (int k = dots; k-- > 0 && out->rank < MAX_RANK;)
        out->label[out->rank++] = (unsigned char)(DOTS + k);
    for (int c = 'A'; c <= 'z'; c++) {
        int count = 0;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < in[i].rank; k++) count += in[i].label[k] == c;
        if (count == 1 && out->rank < MAX_RANK)
            out->label[out->rank++] = (unsigned char)c;
    }
}

static Status read_equation(Ox *ox, Term *in, Term *out) {
    Str s = ox_str(ox, "equation", "");
    const char *arrow = strstr(s, "->");
    const char *end = arrow ? arrow : s + strlen(s);
    int n = ox->node->nin, dots = 0;
    if (n > MAX_OPERANDS)
        return ox_fail(ox, "more than %d operands", MAX_OPERANDS);
    for (int i = 0; i < n; i++) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        if ((i < n - 1) != (comma != NULL))
            return ox_fail(ox, "the equation does not have %d terms", n);
        size_t len = (size_t)((comma ? comma : end) - s);
        TRY(read_operand(ox, s, len, i, &in[i], &dots));
        s = comma ? comma + 1 : end;
    }
    if (arrow) return read_term(ox, arrow + 2, strlen(arrow + 2), dots, out);
    implicit_output(in, n, dots, out);
    return OK;
}

/* ---- steps --------------------------------------------------------------- */

static Status sum_axis(Ox *ox, Term *t, int axis) {
    int64_t a = axis;
    TRY(ox_reduce(ox, OP_REDUCE_SUM, t->v, &a, 1, false, &t->v));
    t->rank--;
    for (int i = axis; i < t->rank; i++) t->label[i] = t->label[i + 1];
    return OK;
}

/* A label that occurs twice in one term selects the diagonal: all other
   elements become 0, then one of the axes is summed. */
static Status diagonal(Ox *ox, Term *t, int a, int b) {
    Type x = ox_type(ox, t->v);
    int64_t d = x.dim[a], dim[MAX_RANK];
    if (x.dim[b] != d || d > 4096)
        return ox_fail(ox, "a diagonal of %lld by %lld", (long long)d,
                       (long long)x.dim[b]);
    for (int i = 0; i < t->rank; i++) dim[i] = i == a || i == b ? d : 1;
    TypeId type = type_make(DT_BOOL, t->rank, dim);
    EvalTensor *e = eval_tensor_new(ox->a, type);
    for (int64_t i = 0; i < d; i++) e->i[i * d + i] = 1;
    ValueId eye;
    TRY(ox_const(ox, eval_to_tensor(ox->a, e, type), &eye));
    TRY(ox3(ox, OP_WHERE, eye, t->v, ox_scalar(ox, x.dtype, 0), &t->v));
    return sum_axis(ox, t, b);
}

static Status take_diagonals(Ox *ox, Term *t) {
    for (int a = 0; a < t->rank; a++)
        for (int b = t->rank - 1; b > a; b--)
            if (t->label[a] == t->label[b]) TRY(diagonal(ox, t, a, b));
    return OK;
}

/* Sums over the labels that neither `other` nor `needed` has. */
static Status sum_unneeded(Ox *ox, Term *t, const Term *other,
                           const bool *needed) {
    for (int i = t->rank - 1; i >= 0; i--)
        if (!needed[t->label[i]] &&
            (!other || einsum_find(other, t->label[i]) < 0))
            TRY(sum_axis(ox, t, i));
    return OK;
}

/* Orders the axes as in `want`; with `pad`, missing axes get size 1. */
static Status arrange(Ox *ox, Term *t, const Term *want, bool pad) {
    int64_t perm[MAX_RANK], dim[MAX_RANK];
    int n = 0;
    for (int i = 0; i < want->rank; i++) {
        int k = einsum_find(t, want->label[i]);
        dim[i] = k < 0 ? 1 : size_of(ox, t, k);
        if (k >= 0)
            perm[n++] = k;
        else if (!pad)
            return ox_fail(ox, "a label of the result is in no term");
    }
    TRY(ox_transpose(ox, t->v, perm, &t->v));
    if (n < want->rank) TRY(ox_reshape(ox, t->v, want->rank, dim, &t->v));
    t->rank = want->rank;
    memcpy(t->label, want->label, sizeof t->label);
    return OK;
}

/* Labels of a pair, sorted by their role. */
typedef struct Roles {
    Term batch, left, right, gone;
} Roles;

static Status add_label(Ox *ox, Term *t, int label) {
    if (t->rank == MAX_RANK)
        return ox_fail(ox, "more than %d labels in one product", MAX_RANK);
    t->label[t->rank++] = (unsigned char)label;
    return OK;
}

static Status find_roles(Ox *ox, const Term *a, const Term *b,
                         const bool *needed, Roles *r) {
    for (int i = 0; i < a->rank; i++) {
        int c = a->label[i], k = einsum_find(b, c);
        bool same = k >= 0 && size_of(ox, a, i) == size_of(ox, b, k);
        TRY(add_label(ox,
                      k < 0       ? &r->left
                      : needed[c] ? &r->batch
                      : same      ? &r->gone
                                  : &r->batch,
                      c));
    }
    for (int k = 0; k < b->rank; k++)
        if (einsum_find(a, b->label[k]) < 0)
            TRY(add_label(ox, &r->right, b->label[k]));
    return OK;
}

static Status einsum_join(Ox *ox, const Term *const *parts, int n, Term *out) {
    out->rank = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < parts[i]->rank; k++)
            TRY(add_label(ox, out, parts[i]->label[k]));
    return OK;
}

/* Reshapes to three axes: batch, rows, columns. */
static Status flatten(Ox *ox, Term *t, int first, int second) {
    int64_t dim[3] = {1, 1, 1};
    for (int i = 0; i < t->rank; i++)
        dim[i < first ? 0 : i < second ? 1 : 2] *= size_of(ox, t, i);
    return ox_reshape(ox, t->v, 3, dim, &t->v);
}

/* batch x left x gone times batch x gone x right. */
static Status matrix_product(Ox *ox, Term *a, Term *b, const Roles *r,
                             const Term *to) {
    Term wa, wb;
    int64_t dim[MAX_RANK];
    TRY(einsum_join(ox, (const Term *[]){&r->batch, &r->left, &r->gone}, 3,
                    &wa));
    TRY(einsum_join(ox, (const Term *[]){&r->batch, &r->gone, &r->right}, 3,
                    &wb));
    TRY(arrange(ox, a, &wa, false));
    TRY(arrange(ox, b, &wb, false));
    for (int i = 0; i < to->rank; i++) {
        int k = einsum_find(a, to->label[i]);
        dim[i] = k >= 0 ? size_of(ox, a, k)
                        : size_of(ox, b, einsum_find(b, to->label[i]));
    }
    TRY(flatten(ox, a, r->batch.rank, r->batch.rank + r->left.rank));
    TRY(flatten(ox, b, r->batch.rank, r->batch.rank + r->gone.rank));
    TRY(ox2(ox, OP_MATMUL, a->v, b->v, &a->v));
    return ox_reshape(ox, a->v, to->rank, dim, &a->v);
}

/* a = a times b, summed over labels that are no longer needed. */
static Status contract(Ox *ox, Term *a, Term *b, const bool *needed) {
    Roles r = {0};
    Term to = {0};
    TRY(sum_unneeded(ox, a, b, needed));
    TRY(sum_unneeded(ox, b, a, needed));
    TRY(find_roles(ox, a, b, needed, &r));
    TRY(einsum_join(ox, (const Term *[]){&r.batch, &r.left, &r.right}, 3, &to));
    bool broadcast = false;
    for (int i = 0; i < r.batch.rank; i++)
        broadcast |= size_of(ox, a, einsum_find(a, r.batch.label[i])) !=
                     size_of(ox, b, einsum_find(b, r.batch.label[i]));
    bool floats = dtype_is_float(ox_type(ox, a->v).dtype);
    if (r.gone.rank && floats && !broadcast) {
        TRY(matrix_product(ox, a, b, &r, &to));
    } else {
        TRY(einsum_join(ox,
                        (const Term *[]){&r.batch, &r.left, &r.right, &r.gone},
                        4, &to));
        TRY(arrange(ox, a, &to, true));
        TRY(arrange(ox, b, &to, true));
        TRY(ox2(ox, OP_MUL, a->v, b->v, &a->v));
    }
    a->rank = to.rank;
    memcpy(a->label, to.label, sizeof to.label);
    return sum_unneeded(ox, a, NULL, needed);
}

Status onnx_einsum(Ox *ox) {
    Term in[MAX_OPERANDS] = {0}, out = {0};
    int n = ox->node->nin;
    TRY(read_equation(ox, in, &out));
    for (int k = 0; k < out.rank; k++)
        if (einsum_find(&out, out.label[k]) < k)
            return ox_fail(ox, "a label occurs twice in the result");
    for (int i = 0; i < n; i++) TRY(take_diagonals(ox, &in[i]));
    for (int i = 0; i < n; i++) {
        bool needed[256] = {0};
        for (int k = 0; k < out.rank; k++) needed[out.label[k]] = true;
        for (int j = i + 1; j < n; j++)
            for (int k = 0; k < in[j].rank; k++) needed[in[j].label[k]] = true;
        if (i == 0)
            TRY(sum_unneeded(ox, &in[0], NULL, needed));
        else
            TRY(contract(ox, &in[0], &in[i], needed));
    }
    TRY(arrange(ox, &in[0], &out, false));
    return ox_out(ox, 0, in[0].v);
}
