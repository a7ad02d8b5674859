/* SPDX-License-Identifier: Apache-2.0 */
/* kir_known.c: conditions that are constant over a range of one dim.
   Pads and concats guard every load by a condition on the index. A loop that
   is cut where a condition changes becomes parts without guards; for a
   concat along the rows, each row then computes only its own part. */
#include "codegen/kernel/schedule.h"

/* A comparison of the index i of one dim with a number: i + shift or shift - i,
   >= or < limit. */
typedef struct Bound {
    int64_t shift, limit;
    bool minus, less;
} Bound;

static bool bound_of(const Kernel *k, const KInst *in, int dim, Bound *b) {
    if (in->op != K_OP || in->compute != KT_I64) return false;
    if (in->code != OP_LESS && in->code != OP_GREATER_EQUAL) return false;
    const KInst *x = kinst_at(k, in->in[0]), *y = kinst_at(k, in->in[1]);
    if (x->op != K_INDEX || x->at.inst || y->op != K_CONST) return false;
    for (int d = 0; d < k->ndim; d++)
        if (d != dim && x->at.k[d]) return false;
    if (x->at.k[dim] != 1 && x->at.k[dim] != -1) return false;
    *b = (Bound){x->at.c, y->i, x->at.k[dim] < 0, in->code == OP_LESS};
    return true;
}

static bool bound_holds(const Bound *b, int64_t i) {
    int64_t x = b->minus ? b->shift - i : b->shift + i;
    return b->less ? x < b->limit : x >= b->limit;
}

/* Finds the indices of dim at which a condition changes, ascending; returns
   their number, or -1 if there are more than `most`. */
static int find_cuts(const Kernel *k, int dim, int most, int64_t *cut) {
    int n = 0;
    for (int id = 1; id < k->insts.len; id++) {
        Bound b;
        if (!bound_of(k, kinst_at(k, id), dim, &b)) continue;
        /* constant below `at`, and constant from `at` on */
        int64_t at = b.minus ? b.shift - b.limit + 1 : b.limit - b.shift;
        int j = 0;
        while (j < n && cut[j] < at) j++;
        if (at <= 0 || at >= k->dim[dim].extent || (j < n && cut[j] == at))
            continue;
        if (n == most) return -1;
        for (int i = n++; i > j; i--) cut[i] = cut[i - 1];
        cut[j] = at;
    }
    return n;
}

int kernel_cuts(const Kernel *k, int64_t *cut) {
    bool guarded = false;
    if (k->form != KF_COLS || k->vec < 0 || kernel_loop(k, LOOP_THREAD, k->vec))
        return 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->op == K_LOAD && in->guard)
            guarded |= kinst_at(k, in->guard)->full;
    }
    int n = guarded ? find_cuts(k, k->vec, MAX_CUTS, cut) : 0;
    return n < 0 ? 0 : n;
}

/* Number of loads that run or not depending on a condition on row dim d. */
static int guarded_loads(const Kernel *k, int d, Arena *a) {
    bool *on = NEW_ARRAY(a, bool, k->insts.len);
    int n = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        Bound b;
        on[id] =
            bound_of(k, in, d, &b) || (in->op == K_OP && in->code == OP_AND &&
                                       (on[in->in[0]] || on[in->in[1]]));
        n += in->op == K_LOAD && on[in->guard];
    }
    return n;
}

static void become(KInst *in, double f, int64_t i) {
    KType type = in->type;
    *in = kinst(K_CONST, type);
    in->f = f, in->i = i;
}

static bool is_known(const Kernel *k, int id, bool is) {
    return id && kinst_at(k, id)->op == K_CONST &&
           (kinst_at(k, id)->i != 0) == is;
}

const Kernel *kernel_within(Arena *a, const Kernel *k, int dim, int64_t from,
                            int64_t to) {
    Kernel *r = arena_dup(a, k, sizeof *k);
    int *is = NEW_ARRAY(a, int, k->insts.len);
    r->insts.data = arena_dup(a, k->insts.data,
                              (size_t)k->insts.len * sizeof *k->insts.data);
    for (int id = 1; id < r->insts.len; id++) {
        KInst *in = kinst_at(r, id);
        Bound b;
        for (int j = 0; j < 3; j++) in->in[j] = is[in->in[j]];
        in->guard = is[in->guard];
        in->place = is[in->place];
        in->at.inst = is[in->at.inst];
        is[id] = id;
        if (dim >= 0 && bound_of(r, in, dim, &b)) {
            if (bound_holds(&b, from) == bound_holds(&b, to - 1))
                become(in, 0, bound_holds(&b, from));
        } else if (in->op == K_OP && in->code == OP_AND) {
            bool left = is_known(r, in->in[0], true);
            if (is_known(r, in->in[0], false) || is_known(r, in->in[1], false))
                become(in, 0, 0);
            else if (left || is_known(r, in->in[1], true))
                is[id] = in->in[left];
        } else if (in->op == K_OP && in->code == OP_WHERE) {
            if (is_known(r, in->in[0], true)) is[id] = in->in[1];
            if (is_known(r, in->in[0], false)) is[id] = in->in[2];
        } else if (in->op == K_LOAD && is_known(r, in->guard, true)) {
            in->guard = 0;
        } else if (in->op == K_LOAD && is_known(r, in->guard, false)) {
            become(in, 0, 0);
        }
    }
    bool *live = kernel_live(a, r);
    for (int id = 1; id < r->insts.len; id++)
        if (!live[id]) become(kinst_at(r, id), 0, 0);
    return r;
}

int kernel_one_column(const Kernel *k) {
    int found = 0, dims[MAX_RANK];
    if (k->form != KF_COLS || kernel_col_dims(k, dims) != 1 ||
        dims[0] != k->vec || cuda_pack(k) == 1 ||
        !kernel_loop(k, LOOP_LANES, LOOP_ANY))
        return 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->keep == KEEP_ROW ||
            (in->keep == KEEP_SHARED && !cuda_packed(k, in, cuda_pack(k))))
            return 0;
        if (in->op != K_OP || in->code != OP_EQUAL || in->compute != KT_I64)
            continue;
        for (int j = 0; j < 2; j++) {
            const KInst *x = kinst_at(k, in->in[j]);
            bool column = x->op == K_INDEX && !x->at.inst && !x->at.c;
            for (int d = 0; d < k->ndim; d++)
                column &= x->at.k[d] == (d == k->vec);
            if (!column || kinst_at(k, in->in[!j])->full) continue;
            if (found) return 0;
            found = id;
        }
    }
    return found;
}

const Kernel *kernel_other_columns(Arena *a, const Kernel *k, int one) {
    Kernel others = *k;
    others.insts.data = arena_dup(a, k->insts.data,
                                  (size_t)k->insts.len * sizeof *k->insts.data);
    become(kinst_at(&others, one), 0, 0);
    return kernel_within(a, &others, -1, 0, 0);
}

KParts kernel_row_parts(Arena *a, const Kernel *k) {
    KParts r = {.dim = -1};
    int64_t cut[MAX_ROW_CUTS + 1], from = 0;
    int most = 1, n = 0;
    for (int d = 0; d < k->ndim; d++) {
        int loads = k->dim[d].col ? 0 : guarded_loads(k, d, a);
        if (loads > most) most = loads, r.dim = d;
    }
    if (r.dim >= 0 && k->form == KF_COLS && kernel_side(k) < 0)
        n = find_cuts(k, r.dim, MAX_ROW_CUTS, cut);
    if (n <= 0) {
        vec_push(a, &r, ((KPart){k, 0, 0, 1}));
        return r;
    }
    cut[n] = k->dim[r.dim].extent;
    for (int j = 0; j <= n; from = cut[j++])
        vec_push(a, &r,
                 ((KPart){kernel_within(a, k, r.dim, from, cut[j]), from,
                          cut[j], (double)(cut[j] - from) / (double)cut[n]}));
    return r;
}
