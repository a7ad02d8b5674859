/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_inner.c: the innermost loop of a sweep on a CPU (schedule.h): which
   values are computed before it, which elements are converted in pieces, which
   sums are added up in lanes, which lines are fetched ahead. */
#include "codegen/kernel/schedule.h"

static bool any_long(const Kernel *k) {
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_is_long(kinst_at(k, id))) return true;
    return false;
}

/* ---- elements in memory order -------------------------------------------- */

/* True if the address of a load is computed for every element. */
static bool jumps(const Kernel *k, const KInst *in) {
    return (in->at.inst && kinst_at(k, in->at.inst)->full) ||
           (in->place && kinst_at(k, in->place)->full);
}

static const DTypeInfo *stored_as(const Kernel *k, const KInst *in) {
    return &dtype_info[k->bufs.data[in->buf].dtype];
}

static bool is_walked(const Kernel *k, const KInst *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && in->full &&
           in->at.k[k->vec] == 1 &&
           !(k->form == KF_ROWS && (in->at.inst || in->place)) &&
           !jumps(k, in) && !in->guard;
}

/* True for elements of a 16-bit type that are converted a vector at a time,
   in memory order or shuffled. */
static bool is_ordered(const Kernel *k, const KInst *in) {
    return is_walked(k, in) && dtype_is_low(k->bufs.data[in->buf].dtype) &&
           !stored_as(k, in)->shuffled;
}

static bool is_shuffled(const Kernel *k, const KInst *in) {
    return is_walked(k, in) && stored_as(k, in)->shuffled;
}

/* ---- lines fetched ahead ------------------------------------------------- */

/* A row takes many instructions, so only few rows wait for memory at the same
   time. So the kernel fetches what a later row will read and write. */
int kernel_ahead_dim(const Kernel *k, const KSweep *s, int over) {
    int col[MAX_RANK], n = kernel_col_dims(k, col), row = -1;
    for (int d = 0; d < k->ndim; d++)
        if (!k->dim[d].col) row = d;
    if (over == LOOP_ROWS) return n == 1 ? row : -1;
    return k->form == KF_ROWS && s->nfold && over == col[n - 1] &&
                   k->dim[over].extent >= 4 * ROWS_AHEAD
               ? over
               : -1;
}

bool kernel_fetches(const Kernel *k, const KInst *in, int dim) {
    return is_walked(k, in) && !in->place && in->at.k[dim] != 0;
}

/* ---- sums in lanes ------------------------------------------------------- */

bool kernel_folds_kept(const Kernel *k, const KInst *r) {
    int col[MAX_RANK];
    const KInst *x = kinst_at(k, r->in[0]);
    return x->keep == KEEP_ROW && x->type == r->compute &&
           kernel_col_dims(k, col) == 1;
}

bool kernel_folds_array(const Kernel *k, int id) {
    const KInst *r = kinst_at(k, id);
    return r->keep != KEEP_BUFFER && !kernel_folds_kept(k, r);
}

bool kernel_adds_lanes(const Kernel *k, const KSweep *s) {
    bool any = false;
    if (k->form == KF_ROWS || k->vec < 0 ||
        k->dim[k->vec].extent < LEAST_LENGTH || any_long(k))
        return false;
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        if (!kernel_folds_array(k, id)) continue;
        const KInst *r = kinst_at(k, id);
        if (op_info[r->code].fold != FOLD_SUM ||
            (r->compute != KT_F32 && r->compute != KT_F64))
            return false;
        any = true;
    }
    return any;
}

int64_t kernel_left_over(const KLoop *lanes) {
    int64_t e = lanes->extent, rest = e % BLOCK;
    return rest && (e > lanes->step || lanes->step % BLOCK) ? -1 : rest;
}

/* ---- pieces -------------------------------------------------------------- */

/* Compilers do not vectorise conversions of fp16 and need shuffles for
   conversions of bf16. So elements that the innermost loop reads or writes one
   by one are converted by calls, a piece at a time, in arrays. bf16 operands
   that are only read are as fast in place. */
enum { LEAST_PIECE = 16, LEAST_BF16 = 128, LEAST_WAIT = 64 };

/* True if the elements of a piece may be in any order: only converted bf16
   values depend on their position. Elements that are only moved are not
   converted. */
static bool any_order(const Kernel *k, const KInst *in) {
    switch (in->op) {
    case K_STORE:
        if (kinst_at(k, in->in[0])->op == K_LOAD) return false;
        /* fall through */
    case K_LOAD:
        if (in->keep == KEEP_ROW) return false;
        return is_shuffled(k, in) || (!in->at.k[k->vec] && !jumps(k, in));
    case K_INDEX: return !in->at.k[k->vec];
    case K_ACC: return false;
    default: return in->keep != KEEP_ROW;
    }
}

/* True if the value is rounded to the buffer's type and only stores read the
   result. */
static bool only_stored(const Kernel *k, const bool *piece, int store) {
    const KInst *to = kinst_at(k, store), *r = kinst_at(k, to->in[0]);
    if (r->op != K_ROUND || r->dtype != k->bufs.data[to->buf].dtype)
        return false;
    for (int id = 1; id < k->insts.len; id++)
        for (int j = 0; j < KINST_READS; j++)
            if (kinst_read(kinst_at(k, id), j) == to->in[0] && !piece[id])
                return false;
    return true;
}

/* A flat kernel's only dim has no known extent. */
static bool shorter_than(const Kernel *k, int64_t least) {
    return k->form != KF_FLAT && k->dim[k->vec].extent < least;
}

/* bf16 may be rounded after each piece of the loop (STORE_BF16): in an
   epilogue, whose pieces are short, if it computes long functions. */
static bool may_wait(const Kernel *k) {
    return k->form != KF_ROWS && !shorter_than(k, LEAST_WAIT) &&
           (k->form != KF_EPILOGUE || any_long(k));
}

/* here: what the sweep needs and stores; held: what earlier ones have kept. */
static bool find_pieces(const Kernel *k, const KSweep *s, const bool *here,
                        const bool *held, KInner *to) {
    bool any = false, *piece = to->piece;
    to->in_order = k->form == KF_ROWS || shorter_than(k, LEAST_BF16) ||
                   s->roots.len == s->nfold;
    for (int id = 1; id < k->insts.len; id++)
        to->in_order |= here[id] && !any_order(k, kinst_at(k, id));
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        bool shuffled =
            is_shuffled(k, in) &&
            (!to->in_order || (in->op == K_LOAD ? to->lanes : may_wait(k)));
        piece[id] =
            here[id] && !(held && held[id]) && (is_ordered(k, in) || shuffled);
    }
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        bool store = piece[id] && in->op == K_STORE;
        if (store && only_stored(k, piece, id))
            piece[in->in[0]] = true;
        else if (store && to->in_order && is_shuffled(k, in))
            piece[id] = false;
        any |= piece[id];
    }
    return any;
}

/* The remainder has few elements, so shuffled types are converted in place. */
static bool *pieces_of_rest(Arena *a, const Kernel *k, const bool *piece) {
    bool *rest = NEW_ARRAY(a, bool, k->insts.len);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        rest[id] =
            piece[id] && !(in->op == K_ROUND ? dtype_info[in->dtype].shuffled
                                             : stored_as(k, in)->shuffled);
    }
    return rest;
}

/* ---- what is computed before --------------------------------------------- */

/* True if instruction `id` and its operands are the same for all iterations
   of the innermost loop. */
static bool is_uniform(const Kernel *k, const bool *before, int id) {
    const KInst *in = kinst_at(k, id);
    if (in->op == K_CONST) return true;
    if (in->full) return before[id];
    return !(in->dims >> k->vec & 1) && in->keep != KEEP_BLOCK;
}

/* Compilers must leave loop-invariant values inside, since a store could change
   the loaded memory, and a byte loaded inside made them use vectors of 8 bytes
   for floats. */
static bool *find_before(Arena *a, const Kernel *k, const bool *here,
                         const bool *held) {
    bool *before = NEW_ARRAY(a, bool, k->insts.len), any = false;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        before[id] = here[id] && in->full && !(in->dims >> k->vec & 1) &&
                     in->keep == KEEP_NOT && in->op != K_CONST &&
                     in->op != K_ACC && in->op != K_REDUCE &&
                     !kinst_stores(in) && !(held && held[id]);
        for (int j = 0; before[id] && j < KINST_READS; j++)
            if (kinst_read(in, j) && !is_uniform(k, before, kinst_read(in, j)))
                before[id] = false;
        any |= before[id];
    }
    return any ? before : NULL;
}

/* ---- the loop ------------------------------------------------------------ */

KInner kernel_inner(Arena *a, const Kernel *k, const KSweeps *all,
                    const KSweep *s, int over) {
    int len = k->insts.len;
    KInner to = {.lanes = kernel_adds_lanes(k, s),
                 .piece = NEW_ARRAY(a, bool, len)};
    bool beside = k->form == KF_ROWS || s->nfold;
    const bool *held = kernel_held(k, all, s, a);
    bool *here = kernel_need(k, s, held, a);
    if (over == k->vec) to.before = find_before(a, k, here, held);
    for (int id = 1; id < len; id++)
        if (kinst_at(k, id)->op == K_STORE)
            here[id] = kinst_at(k, id)->full && s->roots.len > s->nfold;
    to.pieces = k->vec >= 0 && !shorter_than(k, LEAST_PIECE) &&
                (beside || over == k->vec) &&
                find_pieces(k, s, here, held, &to);
    to.rest = pieces_of_rest(a, k, to.piece);
    return to;
}
