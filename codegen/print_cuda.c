/* print_cuda.c: kernels as CUDA C++.

   flat      one thread computes N neighbours, 16 bytes of the widest operand:
             k<i>_at<N> is the computation; the last n % N elements, k<i>_at<1>,
             go to as many threads of the last block.
   cols      one thread per element of the whole domain.
   epilogue  one thread per accumulator, or a functor.
   Kernels that reduce: print_cuda_reduce.c.

   All loads of an element come before its stores and are made by the thread
   that stores it, so outputs may lie over inputs; nothing is __restrict__.
   Indices are 32-bit where the domain and all offsets are.                  */
#include "codegen/print_cuda.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 256,
    FLAT_BYTES = 16,     /* of the widest operand, one thread */
    FLAT_REGISTERS = 64, /* that one thread's elements may take */
    FLAT_WEIGHT = 12     /* see flat_weight */
};

/* ---- the printer --------------------------------------------------------- */

/* The largest offset within `at`; saturates. */
static double reach(const Kernel *k, const KIndex *at) {
    double r = at->c < 0 ? -(double)at->c : (double)at->c;
    for (int d = 0; d < k->ndim; d++)
        r += (at->k[d] < 0 ? -(double)at->k[d] : (double)at->k[d]) *
             (double)k->dim[d].extent;
    return r;
}

static bool needs_wide(const Kernel *k) {
    double total = 1;
    for (int d = 0; d < k->ndim; d++) total *= (double)k->dim[d].extent;
    if (k->form == KF_FLAT || total > INT32_MAX - 65536) return true;
    for (int id = 1; id < k->insts.len; id++)
        if (reach(k, &k->insts.data[id].at) > INT32_MAX) return true;
    return false;
}

void cu_mark_used(const KInst *in, bool *used) {
    for (int d = 0; d < MAX_RANK; d++) used[d] |= in->at.k[d] != 0;
}

CuPrint cu_begin(const Kernel *k, StrBuf *sb) {
    CuPrint p = {.k = k, .sb = sb, .arena = arena_new(), .ncols = 1};
    p.ncol = kernel_col_dims(k, p.cols);
    p.nrow = kernel_row_dims(k, p.rows);
    p.nrows = kernel_rows(k);
    for (int j = 0; j < p.ncol; j++) p.ncols *= k->dim[p.cols[j]].extent;
    p.wide = needs_wide(k);
    for (int id = 1; id < k->insts.len; id++)
        cu_mark_used(kinst_at(k, id), p.used);
    return p;
}

void cu_end(CuPrint *p) { arena_free(p->arena); }

void cu_line(CuPrint *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sb_put_line(p->sb, p->depth, fmt, ap, "\n");
    va_end(ap);
}

void cu_enter(CuPrint *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    sb_put_line(p->sb, p->depth++, fmt, ap, " {\n");
    va_end(ap);
}

void cu_leave(CuPrint *p) {
    p->depth--;
    cu_line(p, "}");
}

const char *cu_signed(const CuPrint *p) { return p->wide ? "int64_t" : "int"; }

const char *cu_unsigned(const CuPrint *p) {
    return p->wide ? "uint64_t" : "unsigned";
}

void cu_dims(CuPrint *p, const char *of, const int *dim, int n,
             const bool *used) {
    int64_t stride = 1;
    for (int j = n - 1; j >= 0; stride *= p->k->dim[dim[j--]].extent) {
        if (!used[dim[j]]) continue;
        sb_printf(p->sb, "%*sconst %s i%d = %s", 4 * p->depth, "",
                  cu_signed(p), dim[j], of);
        if (stride != 1) sb_printf(p->sb, " / %" PRId64, stride);
        if (j > 0) sb_printf(p->sb, " %% %" PRId64, p->k->dim[dim[j]].extent);
        sb_puts(p->sb, ";\n");
    }
}

/* ---- instructions -------------------------------------------------------- */

void cu_inst(CuPrint *p, int id, const char *place) {
    const KInst *in = kinst_at(p->k, id);
    if (in->op == K_CONST) return;
    sb_printf(p->sb, "%*sconst %s v%d = ", 4 * p->depth, "", ktype_c[in->type],
              id);
    if (in->op == K_LOAD)
        sb_put_load(p->sb, p->k, in, place, in->guard ? -1 : 1);
    else if (in->op == K_INDEX)
        sb_put_index(p->sb, p->k, &in->at, NULL);
    else if (in->op == K_ACC)
        sb_puts(p->sb, "acc");
    else
        sb_put_kinst(p->sb, p->k, in);
    sb_puts(p->sb, ";\n");
}

void cu_stores(CuPrint *p, bool full) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op != K_STORE || in->full != full) continue;
        sb_printf(p->sb, "%*s", 4 * p->depth, "");
        sb_put_store(p->sb, p->k, in, NULL);
    }
}

bool cu_has_stores(const CuPrint *p, bool full) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op == K_STORE && in->full == full) return true;
    }
    return false;
}

void cu_row_insts(CuPrint *p, int depth) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (kinst_is_row_value(in) && in->depth == depth)
            cu_inst(p, id, NULL);
    }
}

/* The computation of one element of a kernel that does not reduce. */
static void put_element(CuPrint *p) {
    for (int id = 1; id < p->k->insts.len; id++)
        if (kinst_at(p->k, id)->op != K_STORE) cu_inst(p, id, NULL);
    cu_stores(p, true);
    cu_stores(p, false);
}

/* ---- functions ----------------------------------------------------------- */

/* A list of parameters or arguments, at least `indent` from the left. */
typedef struct List {
    StrBuf *sb;
    int indent;
    bool begun;
} List;

/* One item, on a new line where the line would get too long. */
PRINTF_LIKE(2, 3) static void put_item(List *l, const char *fmt, ...) {
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

static void put_params(const Kernel *k, List *l) {
    for (int b = 0; b < k->bufs.len; b++)
        put_item(l, "%s%s *b%d",
                 k->bufs.data[b].written ? "" : "const ", buffer_type(k, b), b);
}

static void put_names(const Kernel *k, List *l) {
    for (int b = 0; b < k->bufs.len; b++) put_item(l, "b%d", b);
}

void print_cuda_params(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    put_params(k, &l);
}

void print_cuda_initializer(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    sb_puts(sb, "{");
    put_names(k, &l);
    sb_puts(sb, "}");
}

static void put_kernel_head(CuPrint *p, const char *name) {
    sb_printf(p->sb, "extern \"C\" __global__ void __launch_bounds__(%d)\n%s(",
              cuda_shape(p->k).threads, name);
}

/* ---- form flat ----------------------------------------------------------- */

/* Read or written by vectors: neighbours of the element, aligned. */
static bool is_packed(const KInst *in, int n) {
    return (in->op == K_LOAD || in->op == K_STORE) && in->at.k[0] == 1 &&
           in->at.inst == 0 && in->guard == 0 && in->at.c % n == 0;
}

static int flat_registers(const Kernel *k, int n) {
    int bytes = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (is_packed(in, n))
            bytes += n * dtype_info[k->bufs.data[in->buf].dtype].bytes;
    }
    return bytes / 4;
}

/* How much text an instruction becomes: long functions are not to be written
   out many times, and division and square root call functions around which
   registers are saved.                                                      */
static int flat_weight(const KInst *in) {
    if (in->op == K_PHILOX) return 2;
    if (in->op != K_OP) return 0;
    switch (in->code) {
    case OP_POW: case OP_SIN: case OP_COS: case OP_MOD: return FLAT_WEIGHT;
    case OP_DIV: case OP_SQRT: case OP_RSQRT: case OP_RECIPROCAL: return 2;
    default: break;
    }
    if (!kinst_is_costly(in)) return 0;
    return in->compute == KT_F64 ? FLAT_WEIGHT : 2;
}

/* Elements per thread. */
static int flat_pack(const Kernel *k) {
    int widest = 1, weight = 0, n;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->full) weight += flat_weight(in);
        if (!is_packed(in, 1)) continue;
        int bytes = dtype_info[k->bufs.data[in->buf].dtype].bytes;
        if (bytes > widest) widest = bytes;
    }
    n = FLAT_BYTES / widest;
    while (n > 1 && (n * weight > FLAT_WEIGHT ||
                     flat_registers(k, n) > FLAT_REGISTERS))
        n /= 2;
    return n;
}

static void put_packs(CuPrint *p, int n) {
    const Kernel *k = p->k;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (!is_packed(in, n)) continue;
        if (in->op == K_STORE) {
            cu_line(p, "Pack<N, %s> p%d;", buffer_type(k, in->buf), id);
            continue;
        }
        sb_printf(p->sb, "    const Pack<N, %s> p%d = pack_load<N>(b%d + e",
                  buffer_type(k, in->buf), id, in->buf);
        if (in->at.c) sb_printf(p->sb, " + %" PRId64, in->at.c);
        sb_puts(p->sb, ");\n");
    }
}

static bool flat_mentions_index(const Kernel *k, int n) {
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->at.k[0] && !is_packed(in, n)) return true;
    }
    return false;
}

static void put_flat_element(CuPrint *p, int n) {
    char place[32];
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        snprintf(place, sizeof place, "p%d.v[j]", id);
        if (!in->full || in->op == K_STORE) continue;
        cu_inst(p, id, is_packed(in, n) ? place : NULL);
    }
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        snprintf(place, sizeof place, "p%d.v[j]", id);
        if (in->op != K_STORE) continue;
        sb_printf(p->sb, "%*s", 4 * p->depth, "");
        sb_put_store(p->sb, p->k, in, is_packed(in, n) ? place : NULL);
    }
}

static void put_flat_at(CuPrint *p, int n) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "template <int N>\nstatic __device__ __forceinline__ void"
                     "\nk%d_at(", p->k->index);
    put_params(p->k, &l);
    put_item(&l, "int64_t e");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    cu_row_insts(p, 0);
    put_packs(p, n);
    cu_line(p, "UNROLL");
    cu_enter(p, "for (int j = 0; j < N; j++)");
    if (flat_mentions_index(p->k, n)) cu_line(p, "const int64_t i0 = e + j;");
    put_flat_element(p, n);
    cu_leave(p);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op == K_STORE && is_packed(in, n))
            cu_line(p, "pack_store(b%d + e, p%d);", in->buf, id);
    }
    sb_puts(p->sb, "}\n\n");
}

static void put_at_call(CuPrint *p, int n, const char *e) {
    List l = {.sb = p->sb, .indent = 4 * (p->depth + 1)};
    sb_printf(p->sb, "%*sk%d_at<%d>(", 4 * p->depth, "", p->k->index, n);
    put_names(p->k, &l);
    put_item(&l, "%s", e);
    sb_puts(p->sb, ");\n");
}

static void put_flat_block(CuPrint *p, int n) {
    List l = {.sb = p->sb, .indent = 4};
    sb_printf(p->sb, "static __device__ __forceinline__ void\nk%d_block(",
              p->k->index);
    put_params(p->k, &l);
    put_item(&l, "int64_t n");
    put_item(&l, "int64_t block");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    cu_line(p, "const int64_t e = (block * %d + threadIdx.x) * %d;", THREADS,
            n);
    cu_enter(p, "if (e + %d <= n)", n);
    put_at_call(p, n, "e");
    cu_leave(p);
    if (n > 1) {
        cu_line(p, "const int64_t tail = n %% %d;", n);
        cu_enter(p, "if (n / %d == block && threadIdx.x < tail)", THREADS * n);
        put_at_call(p, 1, "n - tail + threadIdx.x");
        cu_leave(p);
    }
    sb_puts(p->sb, "}\n\n");
}

static void put_flat(CuPrint *p) {
    char name[32];
    List head = {.sb = p->sb, .indent = 4}, call = head;
    int n = flat_pack(p->k);
    put_flat_at(p, n);
    put_flat_block(p, n);
    snprintf(name, sizeof name, "k%d", p->k->index);
    put_kernel_head(p, name);
    put_params(p->k, &head);
    put_item(&head, "long long n");
    sb_printf(p->sb, ")\n{\n    k%d_block(", p->k->index);
    call.indent = 8;
    put_names(p->k, &call);
    put_item(&call, "n");
    put_item(&call, "blockIdx.x");
    sb_puts(p->sb, ");\n}\n\n");
}

void print_cuda_many(const Kernel *k, StrBuf *sb) {
    CuPrint p = cu_begin(k, sb);
    char name[32];
    List l = {.sb = sb, .indent = 8};
    ASSERT(k->form == KF_FLAT);
    snprintf(name, sizeof name, "k%d_many", k->index);
    put_kernel_head(&p, name);
    sb_printf(sb, "const unsigned long long *table, unsigned count)\n{\n"
                  "    const unsigned long long *row = many_row(table, count, "
                  "%d);\n    k%d_block(", 2 + k->bufs.len, k->index);
    for (int b = 0; b < k->bufs.len; b++)
        put_item(&l, "(%s%s *)row[%d]",
                 k->bufs.data[b].written ? "" : "const ", buffer_type(k, b),
                 2 + b);
    put_item(&l, "(int64_t)row[1]");
    put_item(&l, "(int64_t)(blockIdx.x - row[0])");
    sb_puts(sb, ");\n}\n\n");
    cu_end(&p);
}

/* ---- forms cols and epilogue --------------------------------------------- */

/* `e` is the number of the thread's element of the whole domain. */
static void put_number(CuPrint *p) {
    cu_line(p, "const %s e = %sblockIdx.x * %d + threadIdx.x;", cu_unsigned(p),
            p->wide ? "(uint64_t)" : "", THREADS);
    cu_line(p, "if (e >= %" PRId64 ") return;", p->nrows * p->ncols);
}

static void put_point(CuPrint *p) {
    int all[MAX_RANK];
    for (int d = 0; d < p->k->ndim; d++) all[d] = d;
    put_number(p);
    cu_dims(p, "e", all, p->k->ndim, p->used);
    put_element(p);
}

static bool reads_acc(const Kernel *k) {
    for (int id = 1; id < k->insts.len; id++)
        if (kinst_at(k, id)->op == K_ACC) return true;
    return false;
}

static void put_epilogue(CuPrint *p, DType raw) {
    int all[MAX_RANK];
    memcpy(all, p->rows, sizeof all);
    for (int j = 0; j < p->ncol; j++) all[p->nrow + j] = p->cols[j];
    put_number(p);
    cu_dims(p, "e", all, p->nrow + p->ncol, p->used);
    if (!reads_acc(p->k))
        cu_line(p, "(void)raw;");
    else if (dtype_is_16(raw))
        cu_line(p, "const float acc = %s_TO_F32(raw[e]);",
                raw == DT_F16 ? "F16" : "BF16");
    else
        cu_line(p, "const float acc = (float)raw[e];");
    put_element(p);
}

/* ---- kernels ------------------------------------------------------------- */

static bool has_work(const CuPrint *p) {
    return p->nrows > 0 && (p->ncols > 0 || cu_has_stores(p, false));
}

static void put_kernel(CuPrint *p, DType raw) {
    char name[32];
    bool epilogue = p->k->form == KF_EPILOGUE;
    List l = {.sb = p->sb, .indent = 4};
    snprintf(name, sizeof name, "%c%d", epilogue ? 'e' : 'k', p->k->index);
    put_kernel_head(p, name);
    if (epilogue) put_item(&l, "const %s *raw", dtype_info[raw].c);
    put_params(p->k, &l);
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    if (!has_work(p)) {
        for (int b = 0; b < p->k->bufs.len; b++) cu_line(p, "(void)b%d;", b);
        if (epilogue) cu_line(p, "(void)raw;");
    } else if (epilogue) {
        put_epilogue(p, raw);
    } else if (kernel_reduces(p->k)) {
        cu_put_reduce(p);
    } else {
        put_point(p);
    }
    sb_puts(p->sb, "}\n\n");
}

void print_cuda_kernel(const Kernel *k, DType raw, StrBuf *sb) {
    CuPrint p = cu_begin(k, sb);
    sb_put_kernel_comment(sb, k);
    if (k->form == KF_FLAT)
        put_flat(&p);
    else
        put_kernel(&p, raw);
    cu_end(&p);
}

static bool any_used(const CuPrint *p, const int *dim, int n) {
    for (int j = 0; j < n; j++)
        if (p->used[dim[j]]) return true;
    return false;
}

/* Row dims from batch and row, column dims from col. */
static void put_functor_dims(CuPrint *p) {
    bool rows = any_used(p, p->rows, p->nrow);
    bool cols = any_used(p, p->cols, p->ncol);
    const char *u = cu_unsigned(p);
    if (rows && p->k->tile_rows)
        cu_line(p, "const %s u = (%s)(batch * %" PRId64 " + row);", u, u,
                p->k->tile_rows);
    else if (rows)
        cu_line(p, "const %s u = (%s)row;", u, u);
    if (!rows || !p->k->tile_rows) cu_line(p, "(void)batch;");
    if (!rows) cu_line(p, "(void)row;");
    cu_line(p, cols ? "const %s c = (%s)col;" : "(void)col;", u, u);
    cu_dims(p, "u", p->rows, p->nrow, p->used);
    cu_dims(p, "c", p->cols, p->ncol, p->used);
}

void print_cuda_functor(const Kernel *k, StrBuf *sb) {
    CuPrint p = cu_begin(k, sb);
    ASSERT(k->form == KF_EPILOGUE);
    sb_put_kernel_comment(sb, k);
    cu_enter(&p, "struct E%d", k->index);
    for (int b = 0; b < k->bufs.len; b++)
        cu_line(&p, "%s%s *b%d;", k->bufs.data[b].written ? "" : "const ",
                buffer_type(k, b), b);
    cu_line(&p, "__device__ __forceinline__ void");
    cu_enter(&p, "operator()(float acc, long long batch, long long row, long "
                 "long col) const");
    if (has_work(&p)) {
        put_functor_dims(&p);
        if (!reads_acc(k)) cu_line(&p, "(void)acc;");
        put_element(&p);
    } else {
        cu_line(&p, "(void)acc, (void)batch, (void)row, (void)col;");
    }
    cu_leave(&p);
    p.depth = 0;
    cu_line(&p, "};\n");
    cu_end(&p);
}

CudaShape cuda_shape(const Kernel *k) {
    int64_t total = kernel_rows(k);
    if (k->form == KF_FLAT)
        return (CudaShape){THREADS, 0, (int64_t)THREADS * flat_pack(k)};
    if (kernel_reduces(k)) return cu_reduce_shape(k);
    for (int d = 0; d < k->ndim; d++)
        if (k->dim[d].col) total *= k->dim[d].extent;
    int64_t blocks = (total + THREADS - 1) / THREADS;
    return (CudaShape){THREADS, blocks ? blocks : 1, 0};
}
