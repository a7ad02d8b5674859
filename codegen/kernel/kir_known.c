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
        /* constant below `at` and from there on */
        int64_t at = b.minus ? b.shift - b.limit + 1 : b.limit - b.shift;
        int j = 0;
        while (j < n && cut[j] < at) j++;
        if (at <= 0 || at >= k->dim[k->vec].extent || (j < n && cut[j] == at))
            continue;
        if (n == MAX_CUTS) return 0;
        for (int i = n++; i > j; i--) cut[i] = cut[i - 1];
        cut[j] = at;
    }
    return guarded ? n : 0;
}

void kernel_known(const Kernel *k, int64_t from, int64_t to,
                  signed char *known) {
    for (int id = 0; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        Bound b;
        known[id] = -1;
        if (id == 0 || from >= to) continue;
        if (in->op == K_CONST && in->type == KT_B8) {
            known[id] = in->i != 0;
        } else if (bound_of(k, in, &b)) {
            known[id] = bound_holds(&b, from);
        } else if (in->op == K_OP && in->code == OP_AND) {
            signed char x = known[in->in[0]], y = known[in->in[1]];
            known[id] = x == 0 || y == 0 ? 0 : x == 1 && y == 1 ? 1 : -1;
        }
    }
}
