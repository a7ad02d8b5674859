/* kir_known.c: conditions that are constant over a range of the inner loop.
   Padding and concatenation along the inner dim guard every load by where the
   index is; cut at those places, the loop falls into parts without guards.   */
#include "codegen/kernel/schedule.h"

/* A comparison of the inner index i with a number: i + shift or shift - i,
   >= or < limit. */
typedef struct Bound {
    int64_t shift, limit;
    bool minus, less;
} Bound;

static bool bound_of(const Kernel *k, const KInst *in, Bound *b) {
    if (in->op != K_OP || in->compute != KT_I64) return false;
    if (in->code != OP_LESS && in->code != OP_GREATER_EQUAL) return false;
    const KInst *x = kinst_at(k, in->in[0]), *y = kinst_at(k, in->in[1]);
    if (x->op != K_INDEX || x->at.inst || y->op != K_CONST) return false;
    for (int d = 0; d < k->ndim; d++)
        if (d != k->vec && x->at.k[d]) return false;
    if (x->at.k[k->vec] != 1 && x->at.k[k->vec] != -1) return false;
    *b = (Bound){x->at.c, y->i, x->at.k[k->vec] < 0, in->code == OP_LESS};
    return true;
}

static bool bound_holds(const Bound *b, int64_t i) {
    int64_t x = b->minus ? b->shift - i : b->shift + i;
    return b->less ? x < b->limit : x >= b->limit;
}

/* Where the comparison changes: it is constant below and from there on. */
static int64_t bound_cut(const Bound *b) {
    return b->minus ? b->shift - b->limit + 1 : b->limit - b->shift;
}

static void add_cut(int64_t *cut, int *n, int64_t at) {
    int j = *n;
    for (int i = 0; i < *n; i++)
        if (cut[i] == at) return;
    for (; j > 0 && cut[j - 1] > at; j--) cut[j] = cut[j - 1];
    cut[j] = at;
    ++*n;
}

int kernel_cuts(const Kernel *k, int64_t *cut) {
    int n = 0;
    bool guarded = false;
    if (k->form != KF_COLS || k->vec < 0 || kernel_loop(k, LOOP_THREAD, k->vec))
        return 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        Bound b;
        if (in->op == K_LOAD && in->guard)
            guarded |= kinst_at(k, in->guard)->full;
        if (!bound_of(k, in, &b)) continue;
        int64_t at = bound_cut(&b);
        if (at <= 0 || at >= k->dim[k->vec].extent) continue;
        if (n == MAX_CUTS) return 0;
        add_cut(cut, &n, at);
    }
    return guarded ? n : 0;
}

/* AND of two conditions of which one may be unknown. */
static signed char known_and(signed char a, signed char b) {
    if (a == 0 || b == 0) return 0;
    return a == 1 && b == 1 ? 1 : -1;
}

static signed char known_of(const Kernel *k, const KInst *in,
                            const signed char *known, int64_t from,
                            int64_t to) {
    Bound b;
    if (in->op == K_CONST && in->type == KT_B8) return in->i != 0;
    if (bound_of(k, in, &b)) {
        bool first = bound_holds(&b, from);
        return first == bound_holds(&b, to - 1) ? first : -1;
    }
    if (in->op == K_OP && in->code == OP_AND)
        return known_and(known[in->in[0]], known[in->in[1]]);
    return -1;
}

void kernel_known(const Kernel *k, int64_t from, int64_t to,
                  signed char *known) {
    for (int id = 0; id < k->insts.len; id++)
        known[id] = id && from < to
                        ? known_of(k, kinst_at(k, id), known, from, to)
                        : -1;
}
