/* kir.c: building and reading kernels; the set of kernels of a module. */
#include "codegen/kernel/kir.h"

#include <string.h>

/* ---- instructions -------------------------------------------------------- */

KType ktype_of(DType d) {
    if (d == DT_BOOL) return KT_B8;
    if (d == DT_F64) return KT_F64;
    return dtype_is_float(d) ? KT_F32 : KT_I64;
}

KInst kinst(KOp op, KType type) {
    KInst in;
    memset(&in, 0, sizeof in); /* padding too: instructions compare as bytes */
    in.op = op;
    in.type = type;
    return in;
}

/* Every value of dtype d is a value of the dtypes in the mask. */
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
    case DT_F16:
    case DT_BF16: return m | 1u << DT_F32 | 1u << DT_F64;
    case DT_F32: return m | 1u << DT_F64;
    default: return m;
    }
}

static DType widest_of(KType t) {
    return t == KT_B8    ? DT_BOOL
           : t == KT_I64 ? DT_I64
           : t == KT_F32 ? DT_F32
                         : DT_F64;
}

static uint32_t fits_of_const(const KInst *in) {
    uint32_t m = fits_of_dtype(widest_of(in->type));
    if (in->type == KT_I64 && in->i >= INT32_MIN && in->i <= INT32_MAX)
        m |= 1u << DT_I32;
    if (in->type == KT_F32)
        for (DType d = DT_F16; d <= DT_BF16; d++)
            if (in->f != in->f || round_to_dtype(in->f, d) == in->f)
                m |= 1u << d;
    return m;
}

/* Ops whose result is one of the operands (floats: up to sign). */
static bool op_selects(OpCode c, KType t) {
    switch (c) {
    case OP_RELU:
    case OP_MIN:
    case OP_MAX:
    case OP_WHERE:
    case OP_REDUCE_MAX:
    case OP_REDUCE_MIN: return true;
    case OP_NEG:
    case OP_ABS: return t != KT_I64;
    default: return false;
    }
}

static uint32_t fits_of_op(const Kernel *k, const KInst *in) {
    uint32_t m = fits_of_dtype(widest_of(in->type));
    uint32_t all = ~0u;
    if (!op_selects(in->code, in->type)) return m;
    for (int j = in->code == OP_WHERE; j < 3; j++)
        if (in->in[j]) all &= kinst_at(k, in->in[j])->fits;
    return m | all;
}

static uint32_t fits_of_cvt(const Kernel *k, const KInst *in) {
    const KInst *from = kinst_at(k, in->in[0]);
    uint32_t m = fits_of_dtype(widest_of(in->type));
    if (from->type == KT_B8) return ~0u; /* 0 and 1 */
    if (from->type == KT_F32 || from->type == KT_F64) m |= from->fits;
    return m;
}

static uint32_t fits_of(const Kernel *k, const KInst *in) {
    switch (in->op) {
    case K_CONST: return fits_of_const(in);
    case K_LOAD: return fits_of_dtype(k->bufs.data[in->buf].dtype);
    case K_ROUND: return fits_of_dtype(in->dtype);
    case K_OP:
    case K_REDUCE: return fits_of_op(k, in);
    case K_CVT: return fits_of_cvt(k, in);
    default: return fits_of_dtype(widest_of(in->type));
    }
}

static void facts_join(const Kernel *k, KInst *in, int operand) {
    if (!operand) return;
    const KInst *o = kinst_at(k, operand);
    in->full |= o->full;
    if (o->depth > in->depth) in->depth = o->depth;
}

static void facts(const Kernel *k, KInst *in) {
    in->fits = fits_of(k, in);
    in->full = in->op == K_ACC;
    in->depth = 0;
    for (int d = 0; d < k->ndim; d++)
        if (in->at.k[d] && k->dim[d].col) in->full = true;
    for (int j = 0; j < 3; j++) facts_join(k, in, in->in[j]);
    facts_join(k, in, in->guard);
    facts_join(k, in, in->at.inst);
    if (in->op == K_REDUCE) {
        in->full = false;
        in->depth++;
    }
}

int kernel_add(Arena *a, Kernel *k, const KInst *in) {
    KInst n;
    if (k->insts.len == 0) {
        n = kinst(K_CONST, KT_B8);
        vec_push(a, &k->insts, n);
    }
    memcpy(&n, in, sizeof n);
    facts(k, &n);
    if (n.op != K_STORE)
        for (int id = k->insts.len - 1; id > 0; id--)
            if (memcmp(&k->insts.data[id], &n, sizeof n) == 0) return id;
    vec_push(a, &k->insts, n);
    return k->insts.len - 1;
}

/* ---- finishing ----------------------------------------------------------- */

/* Removes instructions that no store reaches; keeps the order. */
static void drop_dead(Arena *a, Kernel *k) {
    int n = k->insts.len, live = 1;
    int *to = NEW_ARRAY(a, int, n);
    bool *keep = NEW_ARRAY(a, bool, n);
    for (int id = n - 1; id > 0; id--) {
        const KInst *in = &k->insts.data[id];
        keep[id] |= in->op == K_STORE;
        if (!keep[id]) continue;
        for (int j = 0; j < 3; j++) keep[in->in[j]] = true;
        keep[in->guard] = keep[in->at.inst] = true;
    }
    for (int id = 1; id < n; id++) {
        if (!keep[id]) continue;
        KInst *in = &k->insts.data[live];
        memmove(in, &k->insts.data[id], sizeof *in);
        for (int j = 0; j < 3; j++) in->in[j] = to[in->in[j]];
        in->guard = to[in->guard];
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

static bool reads_dims(const KInst *in) {
    return in->op == K_INDEX || in->op == K_LOAD || in->op == K_STORE;
}

/* Outer dim `d` and inner dim `e` count as one in every index. */
static bool dims_merge(const Kernel *k, int d, int e) {
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        int64_t step;
        if (!reads_dims(in)) continue;
        if (!mul_ok(in->at.k[e], k->dim[e].extent, &step) ||
            step != in->at.k[d])
            return false;
    }
    return true;
}

static int dims_of(const Kernel *k, bool col, int *dim) {
    int n = 0;
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col == col) dim[n++] = d;
    return n;
}

int kernel_row_dims(const Kernel *k, int *dim) {
    return dims_of(k, false, dim);
}

int kernel_col_dims(const Kernel *k, int *dim) { return dims_of(k, true, dim); }

int64_t kernel_rows(const Kernel *k) {
    int64_t n = 1;
    for (int d = 0; d < k->ndim; d++)
        if (!k->dim[d].col) n *= k->dim[d].extent;
    return n;
}

bool kernel_reduces(const Kernel *k) {
    for (int id = 1; id < k->insts.len; id++)
        if (k->insts.data[id].op == K_REDUCE) return true;
    return false;
}

int kernel_depth(const Kernel *k) {
    int max = 0;
    for (int id = 1; id < k->insts.len; id++)
        if (k->insts.data[id].depth > max) max = k->insts.data[id].depth;
    return max;
}

bool kinst_is_row_value(const KInst *in) {
    return !in->full && in->op != K_STORE && in->op != K_REDUCE &&
           in->op != K_CONST;
}

static bool merge_one(Kernel *k, bool col) {
    int dim[MAX_RANK], n = dims_of(k, col, dim);
    for (int j = n - 1; j > 0; j--) {
        int d = dim[j - 1], e = dim[j];
        if (!dims_merge(k, d, e)) continue;
        k->dim[e].extent *= k->dim[d].extent;
        remove_dim(k, d);
        return true;
    }
    return false;
}

/* Epilogues keep their column dim, reductions one to fold over. */
static void drop_unit_dims(Kernel *k) {
    bool keep_col = k->form == KF_EPILOGUE || kernel_reduces(k);
    for (int d = k->ndim - 1; d >= 0; d--) {
        int cols[MAX_RANK];
        if (k->dim[d].extent != 1) continue;
        if (k->dim[d].col && keep_col && dims_of(k, true, cols) == 1) continue;
        remove_dim(k, d);
    }
}

/* Full loads and stores that jump when dim d moves on by one; *unit counts
   those that go to their neighbour. */
static int strided(const Kernel *k, int d, int *unit) {
    int n = 0;
    *unit = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        if (!in->full || (in->op != K_LOAD && in->op != K_STORE)) continue;
        *unit += in->at.k[d] == 1;
        n += in->at.k[d] != 1 && in->at.k[d] != 0;
    }
    return n;
}

enum { FEW_ROWS = 8 }; /* too few for vectors */

/* The row dim whose neighbours are better computed side by side than the
   columns one after the other; -1: none. */
static int side_by_side(const Kernel *k, int col) {
    int unit, best = -1, least = strided(k, col, &unit);
    for (int d = 0; d < k->ndim; d++) {
        if (k->dim[d].col || k->dim[d].extent < FEW_ROWS) continue;
        int n = strided(k, d, &unit);
        if (n < least && unit > 0) best = d, least = n;
    }
    return best;
}

static bool is_flat(const Kernel *k) {
    if (k->ndim != 1 || !k->dim[0].col || kernel_reduces(k)) return false;
    for (int id = 1; id < k->insts.len; id++) {
        int64_t step = k->insts.data[id].at.k[0];
        if (step != 0 && step != 1) return false;
    }
    return true;
}

/* Neighbouring rows computed side by side: whole vectors, and enough units for
   many threads. */
static int64_t row_block(int64_t extent) {
    return extent >= 512 ? 64 : extent >= 128 ? 32 : 16;
}

enum { FLAT_BLOCK = 1024, COL_BLOCK = 4096 };

static void choose_form(Kernel *k) {
    int cols[MAX_RANK], n = dims_of(k, true, cols);
    k->vec = n ? cols[n - 1] : -1;
    k->block = 0;
    if (k->form == KF_EPILOGUE) return;
    k->form = KF_COLS;
    if (is_flat(k)) {
        k->form = KF_FLAT;
        k->block = FLAT_BLOCK;
        k->dim[0].extent = 0; /* par[0] */
    } else if (!kernel_reduces(k)) {
        if (n && k->dim[k->vec].extent > COL_BLOCK) k->block = COL_BLOCK;
    } else if (side_by_side(k, k->vec) >= 0) {
        k->form = KF_ROWS;
        k->vec = side_by_side(k, k->vec);
        k->block = row_block(k->dim[k->vec].extent);
    }
}

/* Without reductions the innermost dim is the column. */
static void choose_columns(Kernel *k) {
    if (k->form == KF_EPILOGUE || kernel_reduces(k)) return;
    for (int d = 0; d < k->ndim; d++) k->dim[d].col = d == k->ndim - 1;
}

void kernel_finish(Arena *a, Kernel *k) {
    drop_dead(a, k);
    drop_unit_dims(k);
    while (merge_one(k, false) || merge_one(k, true)) {
    }
    choose_columns(k);
    for (int id = 1; id < k->insts.len; id++) facts(k, &k->insts.data[id]);
    choose_form(k);
}

/* ---- sweeps -------------------------------------------------------------- */

static void need_one(const Kernel *k, bool *need, int id) {
    if (id && kinst_at(k, id)->full) need[id] = true;
}

bool *kernel_need(const Kernel *k, const KSweep *s, const bool *cut,
                  const bool *skip, Arena *a) {
    bool *need = NEW_ARRAY(a, bool, k->insts.len);
    for (int j = 0; j < s->roots.len; j++) {
        const KInst *r = kinst_at(k, s->roots.data[j]);
        if (skip && skip[s->roots.data[j]]) continue;
        need_one(k, need, r->in[0]);
        need_one(k, need, r->at.inst);
    }
    for (int id = k->insts.len - 1; id > 0; id--) {
        const KInst *in = &k->insts.data[id];
        if (!need[id] || (cut && cut[id])) continue;
        for (int j = 0; j < 3; j++) need_one(k, need, in->in[j]);
        need_one(k, need, in->guard);
        need_one(k, need, in->at.inst);
    }
    return need;
}

/* The sweep in which root `id` ends; -1: it is a row store. */
static int root_depth(const Kernel *k, int id, int last) {
    const KInst *in = kinst_at(k, id);
    if (in->op == K_REDUCE) return in->depth - 1;
    if (in->op != K_STORE || !in->full) return -1;
    return last;
}

/* Full stores join the last reducing sweep when their values are known by
   then, else they get a sweep of their own. */
static int store_depth(const Kernel *k) {
    int last_reduce = -1, store = -1;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        if (in->op == K_REDUCE && in->depth - 1 > last_reduce)
            last_reduce = in->depth - 1;
        if (in->op == K_STORE && in->full && in->depth > store)
            store = in->depth;
    }
    return store > last_reduce ? store : last_reduce;
}

KSweeps kernel_sweeps(const Kernel *k, Arena *a) {
    int last = store_depth(k);
    KSweeps r = {NEW_ARRAY(a, KSweep, last + 2), 0};
    for (int depth = 0; depth <= last; depth++) {
        KSweep *s = &r.data[r.len];
        s->depth = depth;
        for (int id = 1; id < k->insts.len; id++)
            if (root_depth(k, id, last) == depth) vec_push(a, &s->roots, id);
        if (s->roots.len) r.len++;
    }
    return r;
}

/* ---- cost ---------------------------------------------------------------- */

static double op_ns(OpCode c) {
    switch (c) {
    case OP_EXP:
    case OP_SIGMOID:
    case OP_LOG:
    case OP_TANH: return 1.0;
    case OP_ERF:
    case OP_GELU:
    case OP_GELU_TANH:
    case OP_LOG_SIGMOID:
    case OP_SOFTPLUS: return 1.5;
    case OP_POW:
    case OP_SIN:
    case OP_COS:
    case OP_MOD: return 15;
    case OP_DIV:
    case OP_SQRT:
    case OP_RSQRT:
    case OP_RECIPROCAL: return 0.5;
    default: return 0.1;
    }
}

bool kinst_is_costly(const KInst *in) {
    return in->op == K_PHILOX || (in->op == K_OP && op_ns(in->code) >= 1.0);
}

static double inst_ns(const KInst *in) {
    switch (in->op) {
    case K_LOAD: return in->guard ? 1.0 : 0.3;
    case K_STORE: return 0.4;
    case K_OP: return op_ns(in->code) * (in->compute == KT_F64 ? 4 : 1);
    case K_PHILOX: return 8;
    case K_ROUND: return 0.2;
    default: return 0.05;
    }
}

double kernel_unit_ns(const Kernel *k, int64_t flat_len) {
    double full = 0.1, row = 20, cols = 1, repeat = 1;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = &k->insts.data[id];
        *(in->full || in->op == K_REDUCE ? &full : &row) += inst_ns(in);
    }
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col) cols *= (double)k->dim[d].extent;
    if (k->form == KF_FLAT)
        cols = flat_len < FLAT_BLOCK ? (double)flat_len : FLAT_BLOCK;
    if (k->form == KF_ROWS)
        repeat = (double)k->block;
    else if (k->block && cols > (double)k->block)
        cols = (double)k->block;
    return (row + full * cols) * repeat;
}

static int64_t blocks(int64_t n, int64_t block) {
    return block ? (n + block - 1) / block : 1;
}

int64_t kernel_units(const Kernel *k, int64_t flat_len) {
    int64_t n = kernel_rows(k);
    if (k->form == KF_FLAT) return blocks(flat_len, k->block);
    if (k->vec < 0) return n;
    if (k->form == KF_COLS && k->dim[k->vec].extent == 0 && !kernel_reduces(k))
        return 0;
    int64_t extent = k->dim[k->vec].extent, cut = blocks(extent, k->block);
    if (k->form == KF_COLS) return n * cut;
    return extent ? n / extent * cut : 0;
}

int64_t kernel_grain(const Kernel *k, int64_t flat_len) {
    double n = 12000 / kernel_unit_ns(k, flat_len);
    return n < 1 ? 1 : n > 1e6 ? 1000000 : (int64_t)n;
}

/* ---- text ---------------------------------------------------------------- */

static const char *const kop_text[] = {"const",  "index", "load",  "acc",
                                       "op",     "cvt",   "round", "philox",
                                       "reduce", "store"};
static const char *const ktype_text[] = {"b8", "i64", "f32", "f64"};
static const char *const kform_text[] = {"flat", "cols", "rows", "epilogue"};

static void dump_index(const Kernel *k, const KIndex *at, StrBuf *sb) {
    sb_printf(sb, "[%lld", (long long)at->c);
    for (int d = 0; d < k->ndim; d++)
        if (at->k[d]) sb_printf(sb, " + %lld*i%d", (long long)at->k[d], d);
    if (at->inst) sb_printf(sb, " + %%%d", at->inst);
    sb_puts(sb, "]");
}

static void dump_inst(const Kernel *k, int id, StrBuf *sb) {
    const KInst *in = &k->insts.data[id];
    uint64_t bits;
    sb_puts(sb, in->full ? "  " : " ");
    if (in->op != K_STORE)
        sb_printf(sb, "%%%d:%s = ", id, ktype_text[in->type]);
    sb_puts(sb, kop_text[in->op]);
    if (in->op == K_OP || in->op == K_REDUCE)
        sb_printf(sb, " %s.%s", op_info[in->code].text,
                  ktype_text[in->compute]);
    if (in->op == K_ROUND) sb_printf(sb, " %s", dtype_info[in->dtype].text);
    if (in->op == K_LOAD || in->op == K_STORE) sb_printf(sb, " b%d", in->buf);
    if (reads_dims(in)) dump_index(k, &in->at, sb);
    for (int j = 0; j < 3; j++)
        if (in->in[j]) sb_printf(sb, " %%%d", in->in[j]);
    if (in->guard) sb_printf(sb, " if %%%d", in->guard);
    if (in->i) sb_printf(sb, " %lld", (long long)in->i);
    if (in->f != 0 || in->op == K_CONST) {
        memcpy(&bits, &in->f, sizeof bits); /* tells -0 and NaNs apart */
        sb_printf(sb, " %a", in->f);
        if (in->f == 0 || in->f != in->f)
            sb_printf(sb, "(%llx)", (unsigned long long)bits);
    }
    for (int j = 0; j < 2; j++)
        if (in->p[j] != 0) sb_printf(sb, " P%d=%a", j, in->p[j]);
    sb_puts(sb, "\n");
}

void kernel_dump(const Kernel *k, StrBuf *sb) {
    sb_printf(sb, "%s vec=%d block=%lld tile_rows=%lld\n", kform_text[k->form],
              k->vec, (long long)k->block, (long long)k->tile_rows);
    for (int d = 0; d < k->ndim; d++)
        sb_printf(sb, "%s i%d < %lld\n", k->dim[d].col ? "col" : "row", d,
                  (long long)k->dim[d].extent);
    for (int b = 0; b < k->bufs.len; b++)
        sb_printf(sb, "b%d: %s%s\n", b, dtype_info[k->bufs.data[b].dtype].text,
                  k->bufs.data[b].written ? " written" : "");
    for (int id = 1; id < k->insts.len; id++) dump_inst(k, id, sb);
}

/* ---- kernel set ---------------------------------------------------------- */

typedef VEC(Kernel *) KernelVec;

struct KernelSet {
    Arena *arena;
    KernelVec list[2]; /* kernels, epilogues */
    Kernel **slot;     /* by hash: open addressing, power of two */
    int cap;
};

KernelSet *kernel_set_new(Arena *a) {
    KernelSet *ks = NEW(a, KernelSet);
    ks->arena = a;
    return ks;
}

Arena *kernel_set_arena(const KernelSet *ks) { return ks->arena; }

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
        a->vec != b->vec || a->block != b->block ||
        a->tile_rows != b->tile_rows || a->bufs.len != b->bufs.len ||
        a->insts.len != b->insts.len)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->dim[d].extent != b->dim[d].extent ||
            a->dim[d].col != b->dim[d].col)
            return false;
    for (int i = 0; i < a->bufs.len; i++)
        if (a->bufs.data[i].dtype != b->bufs.data[i].dtype ||
            a->bufs.data[i].written != b->bufs.data[i].written)
            return false;
    return !memcmp(a->insts.data, b->insts.data, inst_bytes(a));
}

/* Where it is, or the free slot where it belongs. */
static Kernel **kernel_slot(const KernelSet *ks, const Kernel *k) {
    for (uint64_t i = k->hash;; i++) {
        Kernel **at = &ks->slot[i & (uint64_t)(ks->cap - 1)];
        if (!*at || kernel_same(*at, k)) return at;
    }
}

static void kernel_set_grow(KernelSet *ks) {
    ks->cap = ks->cap ? 2 * ks->cap : 64;
    ks->slot = NEW_ARRAY(ks->arena, Kernel *, ks->cap);
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < ks->list[e].len; i++)
            *kernel_slot(ks, ks->list[e].data[i]) = ks->list[e].data[i];
}

Kernel *kernel_set_add(KernelSet *ks, Kernel *k) {
    KernelVec *list = &ks->list[k->form == KF_EPILOGUE];
    if (2 * (ks->list[0].len + ks->list[1].len) >= ks->cap) kernel_set_grow(ks);
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
