/* SPDX-License-Identifier: Apache-2.0 */
/* kir.c: building and reading kernels; the set of kernels of a module. */
#include "codegen/kernel/kir.h"
#include "ir/eval/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- instructions -------------------------------------------------------- */

KType ktype_of(DType d) {
    if (d == DT_BOOL) return KT_B8;
    if (d == DT_F64) return KT_F64;
    return dtype_is_float(d) ? KT_F32 : KT_I64;
}

KInst kinst(KOp op, KType type) {
    KInst in;
    memset(&in, 0, sizeof in); /* padding must be zero too: instructions are
                                  compared as bytes */
    in.op = op;
    in.type = type;
    return in;
}

int64_t int_of_float(double f) {
    if (f != f) return 0;
    return f >= 0x1p63 ? INT64_MAX : f < -0x1p63 ? INT64_MIN : (int64_t)f;
}

/* dtypes that can represent every value of dtype d, as a mask. */
static uint32_t fits_of_dtype(DType d) {
    uint32_t m = 1u << d;
    switch (d) {
    case DT_BOOL: return m;
    case DT_U8: m |= 1u << DT_U16 | 1u << DT_I16;  /* fall through */
    case DT_U16: m |= 1u << DT_U32 | 1u << DT_I32; /* fall through */
    case DT_U32: return m | 1u << DT_U64 | 1u << DT_I64;
    case DT_I8: m |= 1u << DT_I16;  /* fall through */
    case DT_I16: m |= 1u << DT_I32; /* fall through */
    case DT_I32: return m | 1u << DT_I64;
    case DT_U64:
    case DT_I64: return 1u << DT_U64 | 1u << DT_I64;
    default:
        for (DType to = 0; to < NUM_DTYPES; to++)
            if (dtype_is_float(to) && dtype_widens(d, to)) m |= 1u << to;
        return m;
    }
}

DType dtype_of_ktype(KType t) {
    static const DType dtype[] = {[KT_B8] = DT_BOOL,
                                  [KT_I64] = DT_I64,
                                  [KT_F32] = DT_F32,
                                  [KT_F64] = DT_F64};
    return dtype[t];
}

/* The integer types that have all integers between bounds of a clip; NaN
   becomes 0. */
static uint32_t fits_of_bounds(const KInst *x) {
    uint32_t m = 0;
    if (x->op != K_OP || x->code != OP_CLIP || !(fabs(x->p[0]) < 0x1p31) ||
        !(fabs(x->p[1]) < 0x1p31))
        return 0;
    for (DType d = 0; d < NUM_DTYPES; d++)
        if (dtype_is_int(d) && dtype_holds(d, 0) &&
            dtype_holds(d, (int64_t)x->p[0]) &&
            dtype_holds(d, (int64_t)x->p[1]))
            m |= 1u << d;
    return m;
}

/* The dtypes that have 0 and 1: powers of two have no 0. */
static uint32_t fits_of_bool(void) {
    uint32_t m = ~0u;
    for (DType d = 0; d < NUM_DTYPES; d++)
        if (dtype_is_low(d) && round_to_dtype(0, d) != 0) m &= ~(1u << d);
    return m;
}

static uint32_t fits_of(const Kernel *k, const KInst *in) {
    uint32_t m = fits_of_dtype(dtype_of_ktype(in->type)), all = ~0u;
    const KInst *x = in->in[0] ? kinst_at(k, in->in[0]) : NULL;
    OpSelects how = op_selects[in->code];
    switch (in->op) {
    case K_CONST:
        if (in->type == KT_I64 && in->i >= INT32_MIN && in->i <= INT32_MAX)
            m |= 1u << DT_I32;
        for (DType d = 0; in->type == KT_F32 && d < NUM_DTYPES; d++)
            if (dtype_is_low(d) &&
                (in->f != in->f || round_to_dtype(in->f, d) == in->f))
                m |= 1u << d;
        return m;
    case K_LOAD: return fits_of_dtype(k->bufs.data[in->buf].dtype);
    case K_ROUND: return fits_of_dtype(in->dtype);
    case K_OP:
    case K_REDUCE:
        if (how == SELECTS_NONE) return m;
        if (how == SELECTS_SIGN && in->type == KT_I64) return m;
        for (int j = in->code == OP_WHERE; j < 3; j++)
            if (in->in[j]) all &= kinst_at(k, in->in[j])->fits;
        return m | all;
    case K_CVT:
        if (x->type == KT_B8) return fits_of_bool();
        if (in->type == KT_I64) return m | fits_of_bounds(x);
        return x->type == KT_I64 ? m : m | x->fits;
    default: return m;
    }
}

static void facts(const Kernel *k, KInst *in) {
    in->fits = fits_of(k, in);
    uint32_t cols = 0;
    in->dims = in->op == K_ACC ? (1u << k->ndim) - 1 : 0;
    in->depth = 0;
    for (int d = 0; d < k->ndim; d++) {
        if (in->at.k[d]) in->dims |= 1u << d;
        if (k->dim[d].col) cols |= 1u << d;
    }
    for (int j = 0; j < KINST_READS; j++) {
        int id = kinst_read(in, j);
        if (!id) continue;
        in->dims |= kinst_at(k, id)->dims;
        if (kinst_at(k, id)->depth > in->depth)
            in->depth = kinst_at(k, id)->depth;
    }
    if (in->op == K_REDUCE) {
        in->dims &= ~cols;
        in->depth++;
    }
    in->full = (in->dims & cols) != 0;
}

int kernel_add(Arena *a, Kernel *k, const KInst *in) {
    KInst n;
    if (k->insts.len == 0) {
        n = kinst(K_CONST, KT_B8);
        vec_push(a, &k->insts, n);
    }
    memcpy(&n, in, sizeof n);
    facts(k, &n);
    if (!kinst_stores(&n))
        for (int id = k->insts.len - 1; id > 0; id--)
            if (memcmp(&k->insts.data[id], &n, sizeof n) == 0) return id;
    vec_push(a, &k->insts, n);
    return k->insts.len - 1;
}

/* ---- finishing ----------------------------------------------------------- */

bool *kernel_live(Arena *a, const Kernel *k) {
    bool *live = NEW_ARRAY(a, bool, k->insts.len);
    for (int id = k->insts.len - 1; id > 0; id--) {
        const KInst *in = kinst_at(k, id);
        live[id] |= kinst_stores(in);
        for (int j = 0; live[id] && j < KINST_READS; j++)
            live[kinst_read(in, j)] = true;
    }
    return live;
}

/* Removes instructions that no store reaches; keeps the order. */
static void drop_dead(Arena *a, Kernel *k) {
    int n = k->insts.len, live = 1;
    int *to = NEW_ARRAY(a, int, n);
    bool *keep = kernel_live(a, k);
    for (int id = 1; id < n; id++) {
        if (!keep[id]) continue;
        KInst *in = &k->insts.data[live];
        memmove(in, &k->insts.data[id], sizeof *in);
        for (int j = 0; j < 3; j++) in->in[j] = to[in->in[j]];
        in->guard = to[in->guard];
        in->place = to[in->place];
        in->at.inst = to[in->at.inst];
        to[id] = live++;
    }
    k->insts.len = live;
}

static void remove_dim(Kernel *k, int d) {
    for (int e = d; e + 1 < k->ndim; e++) k->dim[e] = k->dim[e + 1];
    k->ndim--;
    for (int id = 1; id < k->insts.len; id++) {
        KIndex *at = &k->insts.data[id].at;
        for (int e = d; e < k->ndim; e++) at->k[e] = at->k[e + 1];
        at->k[k->ndim] = 0;
    }
}

static int dims_of(const Kernel *k, bool col, int *dim) {
    int n = 0;
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col == col) dim[n++] = d;
    return n;
}

int kernel_col_dims(const Kernel *k, int *dim) { return dims_of(k, true, dim); }

static int64_t extent_of(const Kernel *k, bool col) {
    int64_t n = 1;
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col == col) n *= k->dim[d].extent;
    return n;
}

int64_t kernel_rows(const Kernel *k) { return extent_of(k, false); }

int64_t kernel_cols(const Kernel *k) { return extent_of(k, true); }

bool kernel_reduces(const Kernel *k) {
    for (int id = 1; id < k->insts.len; id++)
        if (k->insts.data[id].op == K_REDUCE) return true;
    return false;
}

int kernel_column_sums(const Kernel *k) {
    int n = 0;
    for (int id = 1; id < k->insts.len; id++)
        n += k->insts.data[id].op == K_ADD_UP;
    return n;
}

int kernel_tiles(const Kernel *k) {
    int n = 0;
    for (int id = 1; id < k->insts.len; id++)
        n += kinst_has_tile(kinst_at(k, id));
    return n;
}

bool kernel_is_small(const Kernel *k) {
    enum { SMALL = 1024 };
    if ((k->form != KF_COLS && k->form != KF_ROWS) ||
        kernel_rows(k) * kernel_cols(k) > SMALL)
        return false;
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_is_long(kinst_at(k, id))) return false;
    return true;
}

bool kinst_is_row_value(const KInst *in) {
    return !in->full && !kinst_stores(in) && in->op != K_REDUCE &&
           in->op != K_CONST;
}

/* Two neighbouring dims of one kind that every index walks as one dim. */
static bool merge_one(Kernel *k, bool col) {
    int dim[MAX_RANK], n = dims_of(k, col, dim);
    for (int j = n - 1; j > 0; j--) {
        int outer = dim[j - 1], inner = dim[j];
        bool one = true;
        for (int id = 1; id < k->insts.len && one; id++) {
            const int64_t *step = k->insts.data[id].at.k;
            int64_t all;
            one = mul_ok(step[inner], k->dim[inner].extent, &all) &&
                  all == step[outer];
        }
        if (!one) continue;
        k->dim[inner].extent *= k->dim[outer].extent;
        remove_dim(k, outer);
        return true;
    }
    return false;
}

/* Epilogues keep their column dim; reductions keep one dim to fold over;
   other kernels use the innermost dim as the column. */
void kernel_finish(Arena *a, Kernel *k) {
    int cols[MAX_RANK];
    drop_dead(a, k);
    bool keep_col = k->form == KF_EPILOGUE || kernel_reduces(k);
    for (int d = k->ndim - 1; d >= 0; d--)
        if (k->dim[d].extent == 1 &&
            !(k->dim[d].col && keep_col && kernel_col_dims(k, cols) == 1))
            remove_dim(k, d);
    while (merge_one(k, false) || merge_one(k, true)) {
    }
    for (int d = 0; d < k->ndim && !keep_col; d++)
        k->dim[d].col = d == k->ndim - 1;
    for (int id = 1; id < k->insts.len; id++) facts(k, &k->insts.data[id]);
}

void kernel_remove_dim(Kernel *k, int d) {
    remove_dim(k, d);
    for (int id = 1; id < k->insts.len; id++) facts(k, &k->insts.data[id]);
}

/* ---- sweeps -------------------------------------------------------------- */

bool *kernel_need(const Kernel *k, const KSweep *s, const bool *cut, Arena *a) {
    bool *need = NEW_ARRAY(a, bool, k->insts.len);
    bool *reads = NEW_ARRAY(a, bool, k->insts.len);
    for (int j = 0; j < s->roots.len; j++)
        reads[s->roots.data[j]] =
            kinst_at(k, s->roots.data[j])->keep != KEEP_BUFFER;
    for (int id = k->insts.len - 1; id > 0; id--) {
        const KInst *in = &k->insts.data[id];
        if (!reads[id] && (!need[id] || (cut && cut[id]))) continue;
        for (int j = 0; j < KINST_READS; j++) {
            int x = kinst_read(in, j);
            if (x && kinst_at(k, x)->full) need[x] = true;
        }
    }
    return need;
}

const bool *kernel_held(const Kernel *k, const KSweeps *all, const KSweep *s,
                        Arena *a) {
    bool *held = NULL;
    for (const KSweep *x = all->data; x < s; x++) {
        bool *need = kernel_need(k, x, held, a), *more = held;
        for (int id = 1; id < k->insts.len; id++) {
            if (kinst_at(k, id)->keep != KEEP_ROW || !need[id]) continue;
            if (!more) more = NEW_ARRAY(a, bool, k->insts.len);
            more[id] = true;
        }
        held = more;
    }
    return held;
}

KSweeps kernel_sweeps(const Kernel *k, Arena *a) {
    int last = -1;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->op == K_REDUCE && in->depth - 1 > last) last = in->depth - 1;
        if (kinst_stores(in) && in->full && in->depth > last) last = in->depth;
    }
    KSweeps r = {NEW_ARRAY(a, KSweep, last + 2), 0};
    for (int depth = 0; depth <= last; depth++) {
        KSweep *s = &r.data[r.len];
        s->depth = depth;
        for (int id = 1; id < k->insts.len; id++)
            if (kinst_at(k, id)->op == K_REDUCE &&
                kinst_at(k, id)->depth - 1 == depth)
                vec_push(a, &s->roots, id);
        s->nfold = s->roots.len;
        for (int id = 1; depth == last && id < k->insts.len; id++)
            if (kinst_stores(kinst_at(k, id)) && kinst_at(k, id)->full &&
                !kinst_at(k, id)->shares)
                vec_push(a, &s->roots, id);
        if (s->roots.len) r.len++;
    }
    return r;
}

/* ---- text ---------------------------------------------------------------- */

void kernel_loops(const Kernel *k, FactList *loops) {
    static const char *const kind[] = {"serial", "vector", "thread",
                                       "block",  "lanes",  "unrolled"};
    for (int i = 0; i < k->nloop; i++) {
        const KLoop *l = &k->loop[i];
        Facts f = {.json = loops->json};
        char dim[16];
        snprintf(dim, sizeof dim, "i%d", l->over);
        fact_word(&f, "kind", kind[l->kind], NULL);
        fact_word(&f, "over",
                  l->over >= 0           ? dim
                  : l->over == LOOP_ROWS ? "rows"
                  : l->over == LOOP_COLS ? "columns"
                                         : "elements",
                  NULL);
        if (l->extent) fact_int(&f, "extent", l->extent, " < %lld");
        fact_int(&f, "step", l->step, l->step > 1 ? " by %lld" : "");
        facts_put(&f, "{kind} {over}{extent}{step}", fact_next(loops));
    }
}

/* ---- kernel set ---------------------------------------------------------- */

KernelSet *kernel_set_new(Arena *a, TargetKind target, int64_t block_shared) {
    KernelSet *ks = NEW(a, KernelSet);
    ks->arena = a;
    ks->target = target;
    ks->block_shared = block_shared;
    return ks;
}

int kernel_set_count(const KernelSet *ks, bool epilogues) {
    return ks->list[epilogues].len;
}

const Kernel *kernel_set_get(const KernelSet *ks, bool epilogues, int i) {
    ASSERT(i >= 0 && i < ks->list[epilogues].len);
    return ks->list[epilogues].data[i];
}

int kernel_index(const Kernel *k) { return k->index; }

static size_t inst_bytes(const Kernel *k) {
    return (size_t)k->insts.len * sizeof *k->insts.data;
}

static bool kernel_same(const Kernel *a, const Kernel *b) {
    if (a->hash != b->hash || a->form != b->form || a->ndim != b->ndim ||
        a->vec != b->vec || a->tile_rows != b->tile_rows ||
        a->bufs.len != b->bufs.len || a->insts.len != b->insts.len)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d].extent != b->dim[d].extent ||
            a->dim[d].col != b->dim[d].col)
            return false;
    for (int i = 0; i < a->bufs.len; i++)
        if (a->bufs.data[i].dtype != b->bufs.data[i].dtype ||
            a->bufs.data[i].written != b->bufs.data[i].written ||
            a->bufs.data[i].walk != b->bufs.data[i].walk)
            return false;
    return !memcmp(a->insts.data, b->insts.data, inst_bytes(a));
}

/* The slot of kernel k, or the free slot where it belongs. */
static Kernel **kernel_slot(const KernelSet *ks, const Kernel *k) {
    for (uint64_t i = k->hash;; i++) {
        Kernel **at = &ks->slot[i & (uint64_t)(ks->cap - 1)];
        if (!*at || kernel_same(*at, k)) return at;
    }
}

Kernel *kernel_set_add(KernelSet *ks, Kernel *k) {
    KernelVec *list = &ks->list[k->form == KF_EPILOGUE];
    if (2 * (ks->list[0].len + ks->list[1].len) >= ks->cap) {
        ks->cap = ks->cap ? 2 * ks->cap : 64;
        ks->slot = NEW_ARRAY(ks->arena, Kernel *, ks->cap);
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < ks->list[e].len; i++)
                *kernel_slot(ks, ks->list[e].data[i]) = ks->list[e].data[i];
    }
    k->hash = hash_bytes((uint64_t)k->form, k->insts.data, inst_bytes(k));
    Kernel **at = kernel_slot(ks, k);
    if (*at) return *at;
    *at = arena_dup(ks->arena, k, sizeof *k);
    (*at)->bufs.data = arena_dup(ks->arena, k->bufs.data,
                                 (size_t)k->bufs.len * sizeof *k->bufs.data);
    (*at)->insts.data = arena_dup(ks->arena, k->insts.data, inst_bytes(k));
    (*at)->index = list->len;
    vec_push(ks->arena, list, *at);
    return *at;
}
