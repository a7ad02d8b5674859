/* print_cuda.c: kernels as CUDA C++.

   Blocks and threads find their rows or elements at the top; what runs in a
   thread is the nest of print.h, each loop spelled as its kind says.
     flat      a thread computes N neighbours (LOOP_UNROLLED), 16 bytes of the
               widest operand:
                 k<i>_at<N>  the computation; loads and stores are vectors
                 k<i>_block  one block's share: the last n % N elements,
                             k<i>_at<1>, go to as many threads of the last block
                 k<i>        one tensor
     fold      a block has a row, its threads the row's vectors one after the
               other:
                 k<i>_row<N>  the row, by vectors of N; 1: where they would not
                              be aligned in every row
     cols      one thread per element of the whole domain, or per N neighbours
     reducing  a row belongs to a team of threads; its thread t takes columns t,
               t + T, .. of the flattened columns in every sweep (LOOP_LANES),
   or N neighbours there, so that what it stores is what it alone has read; what
   it has kept of an earlier sweep is in h<i>.  Partial results are folded
   in a fixed order (fold.cuh).  A team is neighbouring lanes of one warp or the
   block; form rows: neighbouring rows, one or N for each lane, T warps.  All
   threads of a team compute the row values; thread 0 stores them when all have
   read the row's inputs. Teams past the last row repeat it and store nothing.
     sums of columns beside the rows: teams of a block take its rows one after
               the other and add to sums of their own in shared memory, a<i>;
               the block's go to `sums`, from where k<i>_2 adds those of all
               blocks
     epilogue  a functor of one accumulator
   k<i>_many does the same for a table of tensors (PLAN_MANY); form fold has
   nothing else (PLAN_ROWS).

   All loads of an element come before its stores and are made by the thread
   that stores it, so outputs may lie over inputs; what never does is
   __restrict__.
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
        put_item(l, "%s%s *%sb%d", k->bufs.data[b].written ? "" : "const ",
                 buffer_type(k, b),
                 k->bufs.data[b].apart ? "__restrict__ " : "", b);
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

static List put_head(KPrint *p, const char *suffix, int threads) {
    sb_printf(p->sb,
              "extern \"C\" __global__ void __launch_bounds__(%d)\nk%d%s(",
              threads, p->k->index, suffix);
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
    List head = put_head(p, "", threads);
    put_buffers(p->k, &head);
    put_item(&head, "long long n");
    sb_puts(p->sb, ")\n{\n");
    List call = begin_call(p, "_block", 0);
    put_item(&call, "n");
    put_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

/* ---- form fold ----------------------------------------------------------- */

/* const auto f<id>: what folds two of a reduction's values. */
static void put_fold_function(KPrint *p, int id) {
    const KInst *r = kinst_at(p->k, id);
    const char *type = ktype_c[r->compute];
    kp_text(p, "const auto f%d = [](%s a, %s b) -> %s { return ", id, type,
            type, type);
    sb_put_fold(p->sb, r->code, r->compute, "a", "b");
    sb_puts(p->sb, "; };\n");
}

/* The vectors of a thread, folded to v<id>. */
static void put_row_vectors(KPrint *p, const KSweep *s, int n, int threads) {
    const Kernel *k = p->k;
    bool *need = kernel_need(k, s, NULL, p->arena);
    char place[32];
    kp_enter(p, "for (unsigned c = threadIdx.x * N; c < n; c += %d * N)",
             threads);
    for (int id = 1; id < k->insts.len; id++)
        if (need[id] && cuda_packed(k, kinst_at(k, id), n))
            kp_line(p, "const Pack<N, %s> p%d = pack_load<N>(b%d + c);",
                    buffer_type(k, kinst_at(k, id)->buf), id,
                    kinst_at(k, id)->buf);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < N; u++)");
    for (int id = 1; id < k->insts.len; id++) {
        snprintf(place, sizeof place, "p%d.v[u]", id);
        if (need[id])
            kp_inst(p, id, cuda_packed(k, kinst_at(k, id), n) ? place : NULL);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p, "v%d = f%d(v%d, ", id, id, id);
        sb_put_operand(p->sb, k, kinst_at(k, id)->in[0]);
        sb_puts(p->sb, ");\n");
    }
    kp_leave(p);
    kp_leave(p);
}

static void put_fold(KPrint *p) {
    const KSweep *s = p->sweeps.data;
    int n = cuda_pack(p->k), threads = cuda_shape(p->k).threads;
    sb_puts(p->sb, "template <int N>\n");
    List l = begin_device(p, "_row");
    put_item(&l, "unsigned n");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_row_insts(p, 0);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        put_fold_function(p, id);
        kp_line(p, "%s v%d = %s;", ktype_c[r->compute], id,
                fold_start(r->code, r->compute));
    }
    put_row_vectors(p, s, n, threads);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_line(p, "v%d = fold_block<%d>(v%d, f%d);", id, threads, id, id);
    }
    kp_line(p, "if (threadIdx.x != 0) return;");
    for (int depth = 1; depth <= kp_last_depth(p); depth++)
        kp_row_insts(p, depth);
    kp_stores(p, false);
    sb_puts(p->sb, "}\n\n");
}

/* k<i>_many of form fold, up to its end: the buffers of the row at hand. */
static void put_fold_rows(KPrint *p) {
    static const char *const walk[] = {
        [WALK_NOT] = "", [WALK_ONE] = " + r", [WALK_ROW] = " + r * n"};
    const Kernel *k = p->k;
    int n = cuda_pack(k);
    p->depth = 1;
    kp_line(p, "const unsigned n = (unsigned)row[1];");
    kp_line(p, "const unsigned long long r = blockIdx.x - row[0];");
    for (int b = 0; b < k->bufs.len; b++) {
        const KBuf *x = &k->bufs.data[b];
        const char *read = x->written ? "" : "const ";
        kp_line(p, "%s%s *const b%d = (%s%s *)row[%d]%s;", read,
                buffer_type(k, b), b, read, buffer_type(k, b), 2 + b,
                walk[x->walk]);
    }
    for (int pack = n; pack; pack = pack > 1 ? 1 : 0) {
        if (n > 1) {
            if (pack > 1)
                kp_enter(p, "if (n %% %d == 0)", n);
            else
                kp_enter(p, "else");
        }
        List l = begin_call(p, "_row", pack);
        put_item(&l, "n");
        sb_puts(p->sb, ");\n");
        if (n > 1) kp_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
}

/* ---- rows of a thread -----------------------------------------------------
 */

/* The columns of a row are slices of a block's, one in each of its warps. */
static bool is_sliced(const KPrint *p) { return p->k->form == KF_ROWS; }

/* Rows of a lane side by side, whose folds are w<id>[u]; 1: v<id>. */
static int lane_rows(const KPrint *p) {
    return is_sliced(p) ? cuda_pack(p->k) : 1;
}

/* The rows of a block that adds up columns; NULL: it does not. */
static const KLoop *sum_rows(const KPrint *p) {
    return kernel_column_sums(p->k) ? kernel_loop(p->k, LOOP_SERIAL, LOOP_ROWS)
                                    : NULL;
}

/* Some teams are past the last row. */
static bool has_idle(const KPrint *p) {
    const KLoop *some = sum_rows(p);
    if (some) return p->nrows % some->extent != 0;
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
    sb_printf(p->sb, "threadIdx.x %% " I64, loop_steps(p->threads));
    if (lane_rows(p) > 1) sb_printf(p->sb, " * %d", lane_rows(p));
    sb_puts(p->sb, ";\n");
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
    const KLoop *some = sum_rows(p);
    bool used = any_used(p, p->rows, p->nrow), idle = has_idle(p);
    bool teams = p->threads && p->threads->extent > 1;
    int64_t each = some ? some->extent : teams ? p->threads->extent : 1;
    if (!used && !idle) return;
    kp_text(p, "const %s %s = %s%s", u, idle ? "r" : "row",
            p->wide && each > 1 ? "(uint64_t)" : "", p->block);
    if (each > 1) sb_printf(p->sb, " * " I64, each);
    if (some) sb_puts(p->sb, " + at");
    if (teams) sb_printf(p->sb, " + threadIdx.x / " I64, p->lanes->step);
    sb_puts(p->sb, ";\n");
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
static bool has_cut(const KPrint *p, int n) {
    return !is_sliced(p) && p->ncols % n != 0;
}

/* The loop over a thread's columns c, of known length; returns the blocks that
   it opens.  index: c is mentioned. */
static int enter_columns(KPrint *p, bool index) {
    int pack = cuda_pack(p->k);
    int64_t lanes = p->lanes->step, step = lanes * pack;
    bool tail = p->ncols % step != 0;
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < " I64 "; j++)",
             (p->ncols + step - 1) / step);
    if (index || tail) {
        kp_text(p, "const %s c = (j * " I64 " + t)", type_unsigned(p), lanes);
        if (pack > 1) sb_printf(p->sb, " * %d", pack);
        sb_puts(p->sb, ";\n");
    }
    if (tail) kp_enter(p, "if (c < " I64 ")", p->ncols);
    return 1 + tail;
}

/* q<i>[j]: what the thread reads of the row, before anything is stored. */
static void put_fetched(KPrint *p) {
    int n = cuda_pack(p->k), found = 0;
    int64_t step = p->lanes->step * n, loops = (p->ncols + step - 1) / step;
    bool used[MAX_RANK] = {0};
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!cuda_fetched(p->k, id)) continue;
        found++;
        mark_used(in, used);
        const char *type = buffer_type(p->k, in->buf);
        if (n > 1)
            kp_text(p, "Pack<%d, %s> q%d", n, type, id);
        else
            kp_text(p, "%s q%d", type, id);
        sb_printf(p->sb, "[" I64 "]%s;\n", loops,
                  p->ncols % step ? " = {}" : "");
    }
    if (!found) return;
    int open = enter_columns(p, true);
    kp_dims(p, "c", p->cols, p->ncol, used);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!cuda_fetched(p->k, id)) continue;
        if (n > 1)
            kp_text(p, "q%d[j] = pack_load<%d>(b%d + ", id, n, in->buf);
        else
            kp_text(p, "q%d[j] = b%d[", id, in->buf);
        sb_put_index(p->sb, p->k, &in->at, NULL);
        sb_puts(p->sb, n > 1 ? ");\n" : "];\n");
    }
    while (open--) kp_leave(p);
}

/* Vectors along dim vec at index i<vec: those that are read before the elements
   and, of what is written, their places. */
static void put_pack_loads(KPrint *p, const KSweep *s, const bool *need,
                           int n) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || !cuda_packed(p->k, in, n)) continue;
        if (in->op == K_ADD_UP) {
            kp_line(p, "Pack<%d, float> p%d = pack_load<%d>(a%d + c);", n, id,
                    n, id);
            continue;
        }
        const char *type = buffer_type(p->k, in->buf);
        if (in->op == K_STORE) {
            kp_line(p, "Pack<%d, %s> p%d%s;", n, type, id,
                    has_cut(p, n) ? " = {}" : "");
            continue;
        }
        if (cuda_fetched(p->k, id)) {
            kp_line(p, "const Pack<%d, %s> p%d = q%d[j];", n, type, id, id);
            continue;
        }
        bool copied = is_copied(p, s, id);
        kp_text(p, "const Pack<%d, %s> p%d = ", n, type, id);
        if (in->guard) {
            sb_put_operand(p->sb, p->k, in->guard);
            sb_puts(p->sb, " ? ");
        }
        sb_printf(p->sb, "pack_load<%d>(%c%d + ", n, copied ? 's' : 'b',
                  copied ? id : in->buf);
        if (copied)
            sb_puts(p->sb, "c");
        else
            sb_put_index(p->sb, p->k, &in->at, NULL);
        sb_puts(p->sb, ")");
        if (in->guard) sb_printf(p->sb, " : Pack<%d, %s>{}", n, type);
        sb_puts(p->sb, ";\n");
        if (in->keep == KEEP_SHARED && !copied)
            kp_line(p, "pack_store(s%d + c, p%d);", id, id);
    }
}

/* Those that are written after the elements. */
static void put_pack_stores(KPrint *p, const bool *need, int n) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || !cuda_packed(p->k, in, n) || !kinst_stores(in))
            continue;
        if (in->op == K_ADD_UP) {
            kp_line(p, "pack_store(a%d + c, p%d);", id, id);
            continue;
        }
        kp_text(p, "pack_store(b%d + ", in->buf);
        sb_put_index(p->sb, p->k, &in->at, NULL);
        sb_printf(p->sb, ", p%d);\n", id);
    }
}

/* By instruction: what vectors of a sweep are read by, computed before them. */
static bool *before_packs(const KPrint *p, const bool *need, int n) {
    bool *early = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int id = p->k->insts.len - 1; id > 0; id--) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        if (early[id])
            for (int j = 0; j < KINST_READS; j++)
                early[kinst_read(in, j)] = true;
        else if (in->op == K_LOAD && cuda_packed(p->k, in, n))
            early[in->guard] = early[in->at.inst] = true;
    }
    for (int id = 0; id < p->k->insts.len; id++) early[id] &= id && need[id];
    return early;
}

/* What a sweep computes at one place of the columns, which is `place` among
   those of the thread; early (may be NULL): what is known already. */
static void put_values(KPrint *p, const KSweep *s, int n, const char *place,
                       const bool *early) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena);
    bool live = p->lanes && has_idle(p);
    char pack[32];
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || (early && early[id])) continue;
        bool fetched = cuda_fetched(p->k, id);
        if (held && held[id] && !fetched) {
            kp_line(p, "const %s v%d = h%d[%s];", ktype_c[in->type], id, id,
                    place);
            continue;
        }
        bool packed = n > 1 && cuda_packed(p->k, in, n);
        bool shared = !packed && in->keep == KEEP_SHARED;
        if (shared)
            snprintf(pack, sizeof pack, n > 1 ? "s%d[c + u]" : "s%d[c]", id);
        else if (fetched && !packed)
            snprintf(pack, sizeof pack, "q%d[j]", id);
        else
            snprintf(pack, sizeof pack, "p%d.v[u]", id);
        if (shared && !is_copied(p, s, id)) {
            kp_text(p, "%s = b%d[", pack, in->buf);
            sb_put_index(p->sb, p->k, &in->at, NULL);
            sb_puts(p->sb, "];\n");
        }
        kp_inst(p, id, packed || shared || fetched ? pack : NULL);
        if (in->keep == KEEP_ROW && !fetched)
            kp_line(p, "h%d[%s] = v%d;", id, place, id);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p,
                lane_rows(p) > 1 ? "w%d[u] = f%d(w%d[u], " : "v%d = f%d(v%d, ",
                id, id, id);
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
            snprintf(pack, sizeof pack, packed ? "p%d.v[u]" : "a%d[c]", id);
            if (kinst_at(p->k, id)->op == K_ADD_UP)
                kp_add_up(p, id, pack);
            else
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
        put_values(p, s, 1, first, NULL);
        return;
    }
    for (int id = 1; held && id < p->k->insts.len; id++)
        if (held[id] && !cuda_fetched(p->k, id)) need[id] = false;
    for (int j = s->nfold; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool packed = cuda_packed(p->k, in, n);
        stores |= need[id] && packed && kinst_stores(in);
        index |= need[id] && !packed && in->at.k[p->k->vec];
    }
    bool *early = before_packs(p, need, n);
    for (int id = 1; id < p->k->insts.len; id++)
        if (early[id]) kp_inst(p, id, NULL);
    put_pack_loads(p, s, need, n);
    if (index) kp_line(p, "const %s first = i%d;", kp_signed(p), p->k->vec);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    if (has_cut(p, n)) kp_line(p, "if (c + u >= " I64 ") break;", p->ncols);
    if (index) kp_line(p, "const %s i%d = first + u;", kp_signed(p), p->k->vec);
    snprintf(place, sizeof place, "%s + u", first);
    put_values(p, s, n, place, early);
    kp_leave(p);
    if (live && stores) kp_enter(p, "if (live)");
    put_pack_stores(p, need, n);
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
    bool holds = held != NULL, sums = false;
    int side = lane_rows(p), pack = cuda_pack(p->k) / side; /* of columns */
    int64_t step = l->step * pack, loops = (p->ncols + step - 1) / step;
    char place[32];
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        const char *type = ktype_c[r->compute];
        put_fold_function(p, id);
        const char *start = fold_start(r->code, r->compute);
        if (side == 1) {
            kp_line(p, "%s v%d = %s;", type, id, start);
            continue;
        }
        kp_line(p, "%s w%d[%d];", type, id, side);
        kp_line(p, "UNROLL");
        kp_line(p, "for (int u = 0; u < %d; u++) w%d[u] = %s;", side, id,
                start);
    }
    for (int j = 0; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        bool fetched = cuda_fetched(p->k, id);
        sums |= in->op == K_ADD_UP;
        if ((!held || !held[id]) && !fetched && !is_copied(p, s, id) &&
            in->op != K_ADD_UP)
            mark_used(in, used);
        holds |= fetched;
        if (in->keep != KEEP_ROW || fetched) continue;
        holds = true;
        if (!held || !held[id])
            kp_line(p, "%s h%d[" I64 "];", ktype_c[in->type], id, loops * pack);
    }
    if (p->ncols > 0) {
        const char *u = type_unsigned(p);
        int open = 1;
        snprintf(place, sizeof place, pack > 1 ? "j * %d" : "j", pack);
        if (holds) {
            bool index = sums;
            for (int i = 0; i < p->ncol; i++) index |= used[p->cols[i]];
            open = enter_columns(p, index);
        } else if (pack > 1) {
            kp_enter(p, "for (%s c = t * %d; c < " I64 "; c += " I64 ")", u,
                     pack, p->ncols, step);
        } else {
            kp_enter(p, "for (%s c = t; c < " I64 "; c += " I64 ")", u,
                     p->ncols, step);
        }
        kp_dims(p, "c", p->cols, p->ncol, used);
        put_neighbours(p, s, pack * side, place);
        while (open--) kp_leave(p);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        if (side > 1) kp_line(p, "UNROLL");
        if (side > 1) kp_enter(p, "for (int u = 0; u < %d; u++)", side);
        kp_line(p,
                side > 1 ? "w%d[u] = fold_%s<" I64 ">(w%d[u], f%d);"
                         : "v%d = fold_%s<" I64 ">(v%d, f%d);",
                id,
                is_sliced(p) ? "slices"
                : p->threads ? "lanes"
                             : "block",
                l->step, id, id);
        if (side > 1) kp_leave(p);
    }
}

static void put_sweep(KPrint *p, const KSweep *s) {
    static const Spelling cuda = {.element = put_element,
                                  .loop = {[LOOP_BLOCK] = kp_loop_outside,
                                           [LOOP_SERIAL] = kp_loop_outside,
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

/* ---- sums of columns ----------------------------------------------------- */

/* The instruction of a kernel's j-th sum. */
static int column_sum(const Kernel *k, int j) {
    int id = 1;
    while (kinst_at(k, id)->op != K_ADD_UP || j-- > 0) id++;
    return id;
}

/* All teams' sums, which begin at 0. */
static void put_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k);
    int n = kernel_column_sums(p->k);
    kp_line(p, "BLOCK_SHARED(shared);");
    kp_line(p, "float *const all = (float *)shared;");
    for (int j = 0; j < n; j++) {
        kp_text(p, "float *const a%d = all", column_sum(p->k, j));
        if (j) sb_printf(p->sb, " + " I64, j * teams * cols);
        if (teams > 1)
            sb_printf(p->sb, " + threadIdx.x / " I64 " * " I64, p->lanes->step,
                      cols);
        sb_puts(p->sb, ";\n");
    }
    kp_line(p,
            "for (unsigned c = threadIdx.x; c < " I64 "; c += %d) all[c] = 0;",
            n * teams * cols, cuda_shape(p->k).threads);
    kp_line(p, "__syncthreads();");
}

/* The sums of all teams of the block. */
static void put_block_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k), blocks = cuda_shape(p->k).blocks;
    int n = kernel_column_sums(p->k);
    kp_line(p, "__syncthreads();");
    kp_enter(p, "for (unsigned c = threadIdx.x; c < " I64 "; c += %d)",
             p->ncols, cuda_shape(p->k).threads);
    for (int j = 0; j < n; j++) {
        kp_line(p, "float v%d = all[c + " I64 "];", j, j * teams * cols);
        for (int64_t w = 1; w < teams; w++)
            kp_line(p, "v%d += all[c + " I64 "];", j, (j * teams + w) * cols);
        kp_line(p, "sums[(" I64 " + %s) * " I64 " + c] = v%d;", j * blocks,
                p->block, p->ncols, j);
    }
    kp_leave(p);
}

/* k<i>_2: a warp has 32 neighbouring columns of one of the sums. */
static void put_finish(KPrint *p) {
    enum { WARP = 32 };
    const Kernel *k = p->k;
    int64_t blocks = cuda_shape(k).blocks, side = (p->ncols - 1) / WARP + 1;
    int n = kernel_column_sums(k), slices = cuda_finish_shape(k).threads / WARP;
    List l = put_head(p, "_2", slices * WARP);
    put_buffers(k, &l);
    put_item(&l, "const float *__restrict__ sums");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_line(
        p, "const unsigned c = blockIdx.x %% " I64 " * 32 + threadIdx.x %% 32;",
        side);
    kp_line(p, "const unsigned sum = blockIdx.x / " I64 ";", side);
    kp_line(p, "const auto f = [](float a, float b) -> float { return a + b; "
               "};");
    kp_line(p, "float v = 0;");
    kp_line(p, "if (c < " I64 ")", p->ncols);
    kp_line(p, "    for (unsigned s = threadIdx.x / 32; s < " I64 "; s += %d)",
            blocks, slices);
    kp_line(p, "        v += sums[(sum * " I64 " + s) * " I64 " + c];", blocks,
            p->ncols);
    kp_line(p, "v = fold_slices<%d>(v, f);", slices);
    kp_line(p, "if (threadIdx.x >= 32 || c >= " I64 ") return;", p->ncols);
    for (int j = 0; j < n; j++) {
        int id = column_sum(k, j), b = kinst_at(k, id)->buf;
        DType d = k->bufs.data[b].dtype;
        kp_line(p, "if (sum == %d) b%d[c] = %s(v);", j, b,
                d == DT_F16    ? "F32_TO_F16"
                : d == DT_BF16 ? "F32_TO_BF16"
                               : "");
    }
    sb_puts(p->sb, "}\n\n");
}

/* ---- rows of a block ----------------------------------------------------- */

/* What a team does of n rows side by side, of which i<vec> is the first: one
   sweep, then what follows of each (row_neighbours). */
static void put_side_by_side(KPrint *p, int n) {
    const KSweep *s = p->sweeps.data;
    kp_row_insts(p, 0);
    put_sweep(p, s);
    kp_line(p, "__syncthreads();");
    kp_line(p, "if (t != 0) return;");
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    kp_line(p, "const %s i%d = r + u;", kp_signed(p), p->k->vec);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_line(p, "const %s v%d = w%d[u];",
                ktype_c[kinst_at(p->k, id)->compute], id, id);
    }
    for (int depth = 1; depth <= kp_last_depth(p); depth++)
        kp_row_insts(p, depth);
    kp_stores(p, false);
    kp_leave(p);
}

/* What a team does of one row. */
static void put_row(KPrint *p) {
    bool idle = has_idle(p), shared = p->lanes->step > 1;
    if (is_sliced(p))
        put_rows_of_lanes(p);
    else
        put_rows_of_teams(p);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    if (lane_rows(p) > 1) {
        put_side_by_side(p, lane_rows(p));
        return;
    }
    if (p->ncols > 0) put_fetched(p);
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

static void put_rows(KPrint *p) {
    const KLoop *some = sum_rows(p);
    if (p->ncols > 0) {
        kp_text(p, "const unsigned t = threadIdx.x");
        if (p->threads)
            sb_printf(p->sb, is_sliced(p) ? " / " I64 : " %% " I64,
                      is_sliced(p) ? loop_steps(p->threads) : p->lanes->step);
        sb_puts(p->sb, ";\n");
    }
    for (int b = 0; p->ncols == 0 && b < p->k->bufs.len; b++)
        if (!p->k->bufs.data[b].written) kp_line(p, "(void)b%d;", b);
    put_shared(p);
    if (!some) {
        put_row(p);
        return;
    }
    put_sums(p);
    kp_enter(p, "for (unsigned at = 0; at < " I64 "; at += " I64 ")",
             some->extent, some->step);
    if (has_idle(p))
        kp_line(p, "if (%s%s * " I64 " + at >= " I64 ") break;",
                p->wide ? "(uint64_t)" : "", p->block, some->extent, p->nrows);
    put_row(p);
    kp_leave(p);
    put_block_sums(p);
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
    ASSERT(k->form != KF_EPILOGUE && k->form != KF_FOLD);
    sb_put_kernel_comment(sb, k);
    if (k->form == KF_FLAT) {
        put_flat(&p);
    } else {
        List l = put_head(&p, "", cuda_shape(k).threads);
        put_buffers(k, &l);
        if (kernel_column_sums(k)) put_item(&l, "float *__restrict__ sums");
        sb_puts(sb, ")\n{\n");
        put_body(&p);
        if (kernel_column_sums(k)) put_finish(&p);
    }
    kp_end(&p);
}

/* "k<i>_many(table, count)": up to what it does of row `row` of the table. */
static void begin_many(KPrint *p) {
    put_head(p, "_many", cuda_shape(p->k).threads);
    sb_printf(p->sb,
              "const unsigned long long *table, unsigned count)\n{\n"
              "    const unsigned long long *row = many_row(table, count, "
              "%d);\n",
              2 + p->k->bufs.len);
}

void print_cuda_many(const Kernel *k, StrBuf *sb) {
    KPrint p = begin(k, sb);
    bool flat = k->form == KF_FLAT, fold = k->form == KF_FOLD;
    List l = {.sb = sb, .indent = 8};
    if (!flat) sb_put_kernel_comment(sb, k);
    if (fold) {
        put_fold(&p);
        begin_many(&p);
        put_fold_rows(&p);
        kp_end(&p);
        return;
    }
    if (!flat) {
        List block = begin_device(&p, "_block");
        put_item(&block, "unsigned block");
        sb_puts(sb, ")\n{\n");
        p.block = "block";
        put_body(&p);
    }
    begin_many(&p);
    sb_printf(sb, "    k%d_block(", k->index);
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
    if (k->form == KF_FLAT || k->form == KF_FOLD)
        return (CudaShape){(int)threads, 0, block->step, 0};
    int64_t blocks = kernel_units(k, 0);
    int64_t sums = 4 * cuda_sum_columns(k) * kernel_column_sums(k);
    if (sums) sums *= threads / lanes->step;
    return (CudaShape){(int)threads, blocks ? blocks : 1, 0,
                       (uint32_t)(cuda_shared(k, 0) + sums)};
}

CudaShape cuda_finish_shape(const Kernel *k) {
    enum { WARP = 32, SLICES = 8 };
    int64_t blocks = kernel_column_sums(k) * ((kernel_cols(k) - 1) / WARP + 1);
    return (CudaShape){SLICES * WARP, blocks, 0, 0};
}

uint64_t cuda_scratch(const Kernel *k) {
    if (!kernel_column_sums(k)) return 0;
    return (uint64_t)(4 * cuda_shape(k).blocks * kernel_column_sums(k) *
                      kernel_cols(k));
}
