/* print_cuda.c: kernels as CUDA C++.

   Blocks and threads find their rows or elements at the top; what runs in a
   thread is the nest of print.h, each loop spelled as its kind says.
     flat      a thread computes N neighbours (LOOP_UNROLLED), 16 bytes of the
               widest operand:
                 k<i>_at<N>  the computation; loads and stores are vectors
                 k<i>_block  one block's share: the last n % N elements,
                             k<i>_at<1>, go to as many threads of the last block
                 k<i>        one tensor
     cols      one thread per element of the whole domain, or per N neighbours
     reducing  a row belongs to a team of threads; its thread t takes columns t,
               t + T, .. of the flattened columns in every sweep (LOOP_LANES),
   or N neighbours there, so that what it stores is what it alone has read; what
   it has kept of an earlier sweep is in h<i>.  Partial results are folded
   in a fixed order (fold.cuh).  A team is neighbouring lanes of one warp or the
   block; form rows: 32 neighbouring rows, one for each lane, T warps.  All
   threads of a team compute the row values; thread 0 stores them when all have
   read the row's inputs. Teams past the last row repeat it and store nothing.
     epilogue  a functor of one accumulator
   k<i>_many does the same for a table of tensors (PLAN_MANY).

   All loads of an element come before its stores and are made by the thread
   that stores it, so outputs may lie over inputs; nothing is __restrict__.
   Indices are 32-bit where the domain and all offsets are.                  */
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the printer --------------------------------------------------------- */

static void mark_used(const KInst *in, bool *used) {
    for (int d = 0; d < MAX_RANK; d++) used[d] |= in->at.k[d] != 0;
}

static bool any_used(const KPrint *p, const int *dim, int n) {
    for (int j = 0; j < n; j++)
        if (p->used[dim[j]]) return true;
    return false;
}

static KPrint begin(const Kernel *k, StrBuf *sb) {
    KPrint p = kp_begin(k, sb);
    double total = 1; /* elements */
    p.block = "blockIdx.x";
    for (int d = 0; d < k->ndim; d++) total *= (double)k->dim[d].extent;
    p.wide = k->form == KF_FLAT || total > INT32_MAX - 65536;
    for (int id = 1; id < k->insts.len; id++) {
        const KIndex *at = &kinst_at(k, id)->at;
        double reach = fabs((double)at->c); /* the largest offset */
        for (int d = 0; d < k->ndim; d++)
            reach += fabs((double)at->k[d]) * (double)k->dim[d].extent;
        p.wide |= reach > INT32_MAX;
        mark_used(kinst_at(k, id), p.used);
    }
    return p;
}

static const char *type_unsigned(const KPrint *p) {
    return p->wide ? "uint64_t" : "unsigned";
}

/* ---- parameters ---------------------------------------------------------- */

/* A list of parameters or arguments, at least `indent` from the left. */
typedef struct List {
    StrBuf *sb;
    int indent;
    bool begun;
} List;

/* One item, on a new line where the line would get too long. */
static void PRINTF_LIKE(2, 3) put_item(List *l, const char *fmt, ...) {
    char item[96];
    size_t at = l->sb->len;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(item, sizeof item, fmt, ap);
    va_end(ap);
    if (l->begun) sb_puts(l->sb, ",");
    while (at > 0 && l->sb->data[at - 1] != '\n') at--;
    if (l->sb->len - at + strlen(item) > 76)
        sb_printf(l->sb, "\n%*s", l->indent, "");
    else if (l->begun)
        sb_puts(l->sb, " ");
    sb_puts(l->sb, item);
    l->begun = true;
}

static const char *buffer_type(const Kernel *k, int b) {
    return dtype_info[k->bufs.data[b].dtype].c;
}

static void put_buffers(const Kernel *k, List *l) {
    for (int b = 0; b < k->bufs.len; b++)
        put_item(l, "%s%s *b%d", k->bufs.data[b].written ? "" : "const ",
                 buffer_type(k, b), b);
}

void print_cuda_params(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    put_buffers(k, &l);
}

void print_cuda_initializer(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    sb_puts(sb, "{");
    for (int b = 0; b < k->bufs.len; b++) put_item(&l, "b%d", b);
    sb_puts(sb, "}");
}

static List put_head(KPrint *p, const char *suffix) {
    sb_printf(p->sb,
              "extern \"C\" __global__ void __launch_bounds__(%d)\nk%d%s(",
              cuda_shape(p->k).threads, p->k->index, suffix);
    return (List){.sb = p->sb, .indent = 4};
}

/* ---- form flat ----------------------------------------------------------- */

/* "static .. k<i><name>(buffers..": up to further parameters. */
static List begin_device(KPrint *p, const char *name) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "static __device__ __forceinline__ void\nk%d%s(",
              p->k->index, name);
    put_buffers(p->k, &l);
    return l;
}

/* "k<i><name>(buffers..": up to further arguments. */
static List begin_call(KPrint *p, const char *name, int n) {
    List l = {.sb = p->sb, .indent = 4 * (p->depth + 1)};
    kp_text(p, "k%d%s", p->k->index, name);
    if (n) sb_printf(p->sb, "<%d>", n);
    sb_puts(p->sb, "(");
    for (int b = 0; b < p->k->bufs.len; b++) put_item(&l, "b%d", b);
    return l;
}

static void put_at(KPrint *p, int n) {
    const Kernel *k = p->k;
    bool index = false; /* it is mentioned */
    char place[32];
    sb_puts(p->sb, "template <int N>\n");
    List l = begin_device(p, "_at");
    put_item(&l, "int64_t e");
    sb_puts(p->sb, ")\n{\n");
    kp_row_insts(p, 0);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        index |= in->at.k[0] && !cuda_packed(k, in, n);
        if (!cuda_packed(k, in, n)) continue;
        if (in->op == K_STORE) {
            kp_line(p, "Pack<N, %s> p%d;", buffer_type(k, in->buf), id);
            continue;
        }
        kp_text(p, "const Pack<N, %s> p%d = pack_load<N>(b%d + e",
                buffer_type(k, in->buf), id, in->buf);
        if (in->at.c) sb_printf(p->sb, " + " I64, in->at.c);
        sb_puts(p->sb, ");\n");
    }
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < N; j++)");
    if (index) kp_line(p, "const int64_t i0 = e + j;");
    for (int store = 0; store < 2; store++)
        for (int id = 1; id < k->insts.len; id++) {
            const KInst *in = kinst_at(k, id);
            const char *at = cuda_packed(k, in, n) ? place : NULL;
            snprintf(place, sizeof place, "p%d.v[j]", id);
            if (store && in->op == K_STORE) kp_store(p, id, at);
            if (!store && in->op != K_STORE && in->full) kp_inst(p, id, at);
        }
    kp_leave(p);
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_at(k, id)->op == K_STORE &&
            cuda_packed(k, kinst_at(k, id), n))
            kp_line(p, "pack_store(b%d + e, p%d);", kinst_at(k, id)->buf, id);
    sb_puts(p->sb, "}\n\n");
}

static void put_at_call(KPrint *p, int n, const char *e) {
    List l = begin_call(p, "_at", n);
    put_item(&l, "%s", e);
    sb_puts(p->sb, ");\n");
}

static void put_flat(KPrint *p) {
    int n = (int)kernel_loop(p->k, LOOP_UNROLLED, LOOP_ANY)->extent;
    int threads = cuda_shape(p->k).threads;
    p->depth = 1;
    put_at(p, n);
    List block = begin_device(p, "_block");
    put_item(&block, "int64_t n");
    put_item(&block, "int64_t block");
    sb_puts(p->sb, ")\n{\n");
    kp_line(p, "const int64_t e = (block * %d + threadIdx.x) * %d;", threads,
            n);
    kp_enter(p, "if (e + %d <= n)", n);
    put_at_call(p, n, "e");
    kp_leave(p);
    if (n > 1) {
        kp_line(p, "const int64_t tail = n %% %d;", n);
        kp_enter(p, "if (n / %d == block && threadIdx.x < tail)", threads * n);
        put_at_call(p, 1, "n - tail + threadIdx.x");
        kp_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
    List head = put_head(p, "");
    put_buffers(p->k, &head);
    put_item(&head, "long long n");
    sb_puts(p->sb, ")\n{\n");
    List call = begin_call(p, "_block", 0);
    put_item(&call, "n");
    put_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

/* ---- rows of a thread -----------------------------------------------------
 */

/* The columns of a row are slices of a block's, one in each of its warps. */
static bool is_sliced(const KPrint *p) { return p->k->form == KF_ROWS; }

/* Some teams are past the last row. */
static bool has_idle(const KPrint *p) {
    int64_t n = is_sliced(p) ? p->k->dim[p->k->vec].extent : p->nrows;
    return p->threads && n % p->threads->extent != 0;
}

/* Row dim `vec` by the lane, the others by the block. */
static void put_rows_of_lanes(KPrint *p) {
    int vec = p->k->vec;
    const KLoop *block = kernel_loop(p->k, LOOP_BLOCK, vec);
    int64_t nb = loop_steps(block);
    const char *u = type_unsigned(p);
    kp_text(p, "const %s r = ", u);
    if (nb > 1)
        sb_printf(p->sb, "%s %% " I64 " * " I64 " + ", p->block, nb,
                  block->step);
    sb_printf(p->sb, "threadIdx.x %% " I64 ";\n", block->step);
    if (has_idle(p)) {
        kp_line(p, "const bool live = r < " I64 ";", block->extent);
        kp_line(p, "const %s i%d = live ? r : " I64 ";", kp_signed(p), vec,
                block->extent - 1);
    } else {
        kp_line(p, "const %s i%d = r;", kp_signed(p), vec);
    }
    if (any_used(p, p->rows, p->nrow))
        kp_line(p, "const %s row = %s / " I64 ";", u, p->block, nb);
}

static void put_rows_of_teams(KPrint *p) {
    const char *u = type_unsigned(p);
    bool used = any_used(p, p->rows, p->nrow), idle = has_idle(p);
    if (!used && !idle) return;
    kp_text(p, "const %s %s = ", u, idle ? "r" : "row");
    if (p->threads && p->threads->extent > 1)
        sb_printf(p->sb, "%s%s * " I64 " + threadIdx.x / " I64 ";\n",
                  p->wide ? "(uint64_t)" : "", p->block, p->threads->extent,
                  p->lanes->step);
    else
        sb_printf(p->sb, "%s;\n", p->block);
    if (idle) kp_line(p, "const bool live = r < " I64 ";", p->nrows);
    if (idle && used)
        kp_line(p, "const %s row = live ? r : " I64 ";", u, p->nrows - 1);
}

/* ---- sweeps -------------------------------------------------------------- */

/* Load `id` was copied to shared memory by a sweep before s. */
static bool is_copied(const KPrint *p, const KSweep *s, int id) {
    if (kinst_at(p->k, id)->keep != KEEP_SHARED) return false;
    for (const KSweep *x = p->sweeps.data; x < s; x++)
        if (kernel_need(p->k, x, NULL, p->arena)[id]) return true;
    return false;
}

/* The last of the row's vectors of n may be cut. */
static bool has_cut(const KPrint *p, int n) { return p->ncols % n != 0; }

/* Vectors along dim vec at index i<vec: those that are read before, those that
   are written after the elements. */
static void put_packs(KPrint *p, const KSweep *s, const bool *need, int n,
                      bool stores) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || !cuda_packed(p->k, in, n)) continue;
        bool copied = is_copied(p, s, id);
        if (in->op == K_STORE && !stores) {
            kp_line(p, "Pack<%d, %s> p%d%s;", n, buffer_type(p->k, in->buf), id,
                    has_cut(p, n) ? " = {}" : "");
            continue;
        }
        if ((in->op == K_STORE) != stores) continue;
        if (stores)
            kp_text(p, "pack_store(b%d + ", in->buf);
        else
            kp_text(p, "const Pack<%d, %s> p%d = pack_load<%d>(%c%d + ", n,
                    buffer_type(p->k, in->buf), id, n, copied ? 's' : 'b',
                    copied ? id : in->buf);
        if (copied)
            sb_puts(p->sb, "c");
        else
            sb_put_index(p->sb, p->k, &in->at, NULL);
        if (stores) sb_printf(p->sb, ", p%d", id);
        sb_puts(p->sb, ");\n");
        if (in->keep == KEEP_SHARED && !copied)
            kp_line(p, "pack_store(s%d + c, p%d);", id, id);
    }
}

/* What a sweep computes at one place of the columns, which is `place` among
   those of the thread. */
static void put_values(KPrint *p, const KSweep *s, int n, const char *place) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena);
    bool live = p->lanes && has_idle(p);
    char pack[32];
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        if (held && held[id]) {
            kp_line(p, "const %s v%d = h%d[%s];", ktype_c[in->type], id, id,
                    place);
            continue;
        }
        bool packed = n > 1 && cuda_packed(p->k, in, n);
        bool shared = !packed && in->keep == KEEP_SHARED;
        if (shared)
            snprintf(pack, sizeof pack, n > 1 ? "s%d[c + u]" : "s%d[c]", id);
        else
            snprintf(pack, sizeof pack, "p%d.v[u]", id);
        if (shared && !is_copied(p, s, id)) {
            kp_text(p, "%s = b%d[", pack, in->buf);
            sb_put_index(p->sb, p->k, &in->at, NULL);
            sb_puts(p->sb, "];\n");
        }
        kp_inst(p, id, packed || shared ? pack : NULL);
        if (in->keep == KEEP_ROW) kp_line(p, "h%d[%s] = v%d;", id, place, id);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p, "v%d = f%d(v%d, ", id, id, id);
        sb_put_operand(p->sb, p->k, kinst_at(p->k, id)->in[0]);
        sb_puts(p->sb, ");\n");
    }
    for (int store = 0; store < 2; store++) { /* of vectors first */
        bool begun = false;
        for (int j = s->nfold; j < s->roots.len; j++) {
            int id = s->roots.data[j];
            bool packed = n > 1 && cuda_packed(p->k, kinst_at(p->k, id), n);
            if (packed == store) continue;
            if (!packed && live && !begun) kp_enter(p, "if (live)");
            begun |= !packed;
            snprintf(pack, sizeof pack, "p%d.v[u]", id);
            kp_store(p, id, packed ? pack : NULL);
        }
        if (live && begun) kp_leave(p);
    }
}

/* The same for n neighbours along dim vec, of which i<vec is the first. */
static void put_neighbours(KPrint *p, const KSweep *s, int n,
                           const char *first) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), index = false;
    bool live = p->lanes && has_idle(p), stores = false;
    char place[48];
    if (n == 1) {
        put_values(p, s, 1, first);
        return;
    }
    for (int id = 1; held && id < p->k->insts.len; id++)
        if (held[id]) need[id] = false;
    for (int j = s->nfold; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool packed = cuda_packed(p->k, in, n);
        stores |= need[id] && packed && in->op == K_STORE;
        index |= need[id] && !packed && in->at.k[p->k->vec];
    }
    put_packs(p, s, need, n, false);
    if (index) kp_line(p, "const %s first = i%d;", kp_signed(p), p->k->vec);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    if (has_cut(p, n)) kp_line(p, "if (c + u >= " I64 ") break;", p->ncols);
    if (index) kp_line(p, "const %s i%d = first + u;", kp_signed(p), p->k->vec);
    snprintf(place, sizeof place, "%s + u", first);
    put_values(p, s, n, place);
    kp_leave(p);
    if (live && stores) kp_enter(p, "if (live)");
    put_packs(p, s, need, n, true);
    if (live && stores) kp_leave(p);
}

static void put_element(Nest *n) {
    put_neighbours(n->p, n->s, n->p->lanes ? 1 : cuda_pack(n->p->k), "");
}

/* Columns t, t + T, .., or n neighbours there; each fold is f<id>(a, b), its
   accumulator v<id>.  Values that are held make the loop one of known length.
 */
static void put_lanes(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), used[MAX_RANK] = {0};
    bool holds = held != NULL;
    int pack = cuda_pack(p->k);
    int64_t step = l->step * pack, loops = (p->ncols + step - 1) / step;
    char place[32];
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        const char *type = ktype_c[r->compute];
        kp_text(p, "const auto f%d = [](%s a, %s b) -> %s { return ", id, type,
                type, type);
        sb_put_fold(p->sb, r->code, r->compute, "a", "b");
        sb_puts(p->sb, "; };\n");
        kp_line(p, "%s v%d = %s;", type, id, fold_start(r->code, r->compute));
    }
    for (int j = 0; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        if ((!held || !held[id]) && !is_copied(p, s, id)) mark_used(in, used);
        if (in->keep != KEEP_ROW) continue;
        holds = true;
        if (!held || !held[id])
            kp_line(p, "%s h%d[" I64 "];", ktype_c[in->type], id, loops * pack);
    }
    if (p->ncols > 0) {
        const char *u = type_unsigned(p);
        bool tail = holds && p->ncols % step;
        snprintf(place, sizeof place, pack > 1 ? "j * %d" : "j", pack);
        if (holds) {
            kp_line(p, "UNROLL");
            kp_enter(p, "for (int j = 0; j < " I64 "; j++)", loops);
            bool index = tail;
            for (int i = 0; i < p->ncol; i++) index |= used[p->cols[i]];
            if (index) {
                kp_text(p, "const %s c = (j * " I64 " + t)", u, l->step);
                if (pack > 1) sb_printf(p->sb, " * %d", pack);
                sb_puts(p->sb, ";\n");
            }
            if (tail) kp_enter(p, "if (c < " I64 ")", p->ncols);
        } else if (pack > 1) {
            kp_enter(p, "for (%s c = t * %d; c < " I64 "; c += " I64 ")", u,
                     pack, p->ncols, step);
        } else {
            kp_enter(p, "for (%s c = t; c < " I64 "; c += " I64 ")", u,
                     p->ncols, step);
        }
        kp_dims(p, "c", p->cols, p->ncol, used);
        put_neighbours(p, s, pack, place);
        if (tail) kp_leave(p);
        kp_leave(p);
    }
    for (int j = 0; j < s->nfold; j++)
        kp_line(p, "v%d = fold_%s<" I64 ">(v%d, f%d);", s->roots.data[j],
                is_sliced(p) ? "slices"
                : p->threads ? "lanes"
                             : "block",
                l->step, s->roots.data[j], s->roots.data[j]);
}

static void put_sweep(KPrint *p, const KSweep *s) {
    static const Spelling cuda = {.element = put_element,
                                  .loop = {[LOOP_BLOCK] = kp_loop_outside,
                                           [LOOP_THREAD] = kp_loop_outside,
                                           [LOOP_UNROLLED] = kp_loop_outside,
                                           [LOOP_LANES] = put_lanes}};
    Nest n = {.p = p, .s = s, .spell = &cuda};
    kp_nest(&n);
}

/* ---- kernels ------------------------------------------------------------- */

/* A thread's element of the whole domain. */
static void put_elements(KPrint *p) {
    int all[MAX_RANK];
    for (int d = 0; d < p->k->ndim; d++) all[d] = d;
    int n = cuda_pack(p->k);
    kp_text(p, "const %s e = %s%s%s * " I64 " + threadIdx.x", type_unsigned(p),
            n > 1 ? "(" : "", p->wide ? "(uint64_t)" : "", p->block,
            loop_steps(p->threads));
    if (n > 1) sb_printf(p->sb, ") * %d", n);
    sb_puts(p->sb, ";\n");
    kp_line(p, "if (e >= " I64 ") return;", p->nrows * p->ncols);
    kp_dims(p, "e", all, p->k->ndim, p->used);
    kp_sweeps(p, kp_row_insts, put_sweep);
    kp_stores(p, false);
}

/* Where copies of a row's loads lie, each read by the threads that wrote it. */
static void put_shared(KPrint *p) {
    if (cuda_shared(p->k, 0) > 0) kp_line(p, "BLOCK_SHARED(shared);");
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->keep != KEEP_SHARED) continue;
        const char *type = buffer_type(p->k, in->buf);
        kp_line(p, "%s *const s%d = (%s *)(shared + " I64 ");", type, id, type,
                cuda_shared(p->k, id));
    }
}

/* A team's row. */
static void put_rows(KPrint *p) {
    bool idle = has_idle(p), shared = p->lanes->step > 1;
    if (p->ncols > 0) {
        kp_text(p, "const unsigned t = threadIdx.x");
        if (p->threads)
            sb_printf(p->sb, is_sliced(p) ? " / " I64 : " %% " I64,
                      is_sliced(p) ? p->threads->extent : p->lanes->step);
        sb_puts(p->sb, ";\n");
    }
    for (int b = 0; p->ncols == 0 && b < p->k->bufs.len; b++)
        if (!p->k->bufs.data[b].written) kp_line(p, "(void)b%d;", b);
    if (is_sliced(p))
        put_rows_of_lanes(p);
    else
        put_rows_of_teams(p);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    put_shared(p);
    kp_sweeps(p, kp_row_insts, put_sweep);
    if (!kp_has_stores(p, false)) return;
    if (shared)
        kp_line(p, p->threads && !is_sliced(p) ? "__syncwarp();"
                                               : "__syncthreads();");
    if (shared || idle)
        kp_enter(p, "if (%s%s%s)", shared ? "t == 0" : "",
                 shared && idle ? " && " : "", idle ? "live" : "");
    kp_stores(p, false);
    if (shared || idle) kp_leave(p);
}

static bool has_work(const KPrint *p) {
    return p->nrows > 0 && (p->ncols > 0 || kp_has_stores(p, false));
}

static void put_body(KPrint *p) {
    p->depth = 1;
    if (has_work(p))
        (p->lanes ? put_rows : put_elements)(p);
    else
        for (int b = 0; b < p->k->bufs.len; b++) kp_line(p, "(void)b%d;", b);
    sb_puts(p->sb, "}\n\n");
}

void print_cuda_kernel(const Kernel *k, StrBuf *sb) {
    KPrint p = begin(k, sb);
    ASSERT(k->form != KF_EPILOGUE);
    sb_put_kernel_comment(sb, k);
    if (k->form == KF_FLAT) {
        put_flat(&p);
    } else {
        List l = put_head(&p, "");
        put_buffers(k, &l);
        sb_puts(sb, ")\n{\n");
        put_body(&p);
    }
    kp_end(&p);
}

void print_cuda_many(const Kernel *k, StrBuf *sb) {
    KPrint p = begin(k, sb);
    bool flat = k->form == KF_FLAT;
    List l = {.sb = sb, .indent = 8};
    if (!flat) {
        sb_put_kernel_comment(sb, k);
        List block = begin_device(&p, "_block");
        put_item(&block, "unsigned block");
        sb_puts(sb, ")\n{\n");
        p.block = "block";
        put_body(&p);
    }
    put_head(&p, "_many");
    sb_printf(sb,
              "const unsigned long long *table, unsigned count)\n{\n"
              "    const unsigned long long *row = many_row(table, count, "
              "%d);\n    k%d_block(",
              2 + k->bufs.len, k->index);
    for (int b = 0; b < k->bufs.len; b++)
        put_item(&l, "(%s%s *)row[%d]", k->bufs.data[b].written ? "" : "const ",
                 buffer_type(k, b), 2 + b);
    if (flat) put_item(&l, "(int64_t)row[1]");
    put_item(&l, "(%s)(blockIdx.x - row[0])", flat ? "int64_t" : "unsigned");
    sb_puts(sb, ");\n}\n\n");
    kp_end(&p);
}

/* ---- epilogues ----------------------------------------------------------- */

/* Row dims from batch and row, column dims from col. */
static void put_functor_dims(KPrint *p) {
    bool rows = any_used(p, p->rows, p->nrow);
    bool cols = any_used(p, p->cols, p->ncol);
    const char *u = type_unsigned(p);
    if (rows && p->k->tile_rows)
        kp_line(p, "const %s u = (%s)(batch * " I64 " + row);", u, u,
                p->k->tile_rows);
    else if (rows)
        kp_line(p, "const %s u = (%s)row;", u, u);
    if (!rows || !p->k->tile_rows) kp_line(p, "(void)batch;");
    if (!rows) kp_line(p, "(void)row;");
    kp_line(p, cols ? "const %s c = (%s)col;" : "(void)col;", u, u);
    kp_dims(p, "u", p->rows, p->nrow, p->used);
    kp_dims(p, "c", p->cols, p->ncol, p->used);
}

void print_cuda_functor(const Kernel *k, StrBuf *sb) {
    KPrint p = begin(k, sb);
    bool reads_acc = false;
    ASSERT(k->form == KF_EPILOGUE);
    for (int id = 1; id < k->insts.len; id++)
        reads_acc |= kinst_at(k, id)->op == K_ACC;
    sb_put_kernel_comment(sb, k);
    kp_enter(&p, "struct E%d", k->index);
    for (int b = 0; b < k->bufs.len; b++)
        kp_line(&p, "%s%s *b%d;", k->bufs.data[b].written ? "" : "const ",
                buffer_type(k, b), b);
    kp_line(&p, "__device__ __forceinline__ void");
    kp_enter(&p, "operator()(float acc, long long batch, long long row, long "
                 "long col) const");
    if (has_work(&p)) {
        put_functor_dims(&p);
        if (!reads_acc) kp_line(&p, "(void)acc;");
        kp_sweeps(&p, kp_row_insts, put_sweep);
        kp_stores(&p, false);
    } else {
        kp_line(&p, "(void)acc, (void)batch, (void)row, (void)col;");
    }
    kp_leave(&p);
    p.depth = 0;
    kp_line(&p, "};\n");
    kp_end(&p);
}

CudaShape cuda_shape(const Kernel *k) {
    const KLoop *block = kernel_loop(k, LOOP_BLOCK, LOOP_ANY);
    const KLoop *thread = kernel_loop(k, LOOP_THREAD, LOOP_ANY);
    const KLoop *lanes = kernel_loop(k, LOOP_LANES, LOOP_ANY);
    int64_t threads = thread ? loop_steps(thread) : 1;
    if (lanes) threads *= lanes->step;
    if (k->form == KF_FLAT) return (CudaShape){(int)threads, 0, block->step, 0};
    int64_t blocks = kernel_units(k, 0);
    return (CudaShape){(int)threads, blocks ? blocks : 1, 0,
                       (uint32_t)cuda_shared(k, 0)};
}
