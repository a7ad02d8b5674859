/* print_cuda.c: kernels as CUDA C++.

   cols      one thread per element of the whole domain
   epilogue  a functor of one accumulator
   Kernels whose length is a parameter: print_cuda_flat.c; kernels that reduce:
   print_cuda_reduce.c.

   All loads of an element come before its stores and are made by the thread
   that stores it, so outputs may lie over inputs; nothing is __restrict__.
   Indices are 32-bit where the domain and all offsets are.                  */
#include "codegen/cuda/print_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the printer --------------------------------------------------------- */

void cu_mark_used(const KInst *in, bool *used) {
    for (int d = 0; d < MAX_RANK; d++) used[d] |= in->at.k[d] != 0;
}

bool cu_any_used(const KPrint *p, const int *dim, int n) {
    for (int j = 0; j < n; j++)
        if (p->used[dim[j]]) return true;
    return false;
}

KPrint cu_begin(const Kernel *k, StrBuf *sb) {
    KPrint p = kp_begin(k, sb);
    double total = 1; /* elements */
    for (int d = 0; d < k->ndim; d++) total *= (double)k->dim[d].extent;
    p.wide = k->form == KF_FLAT || total > INT32_MAX - 65536;
    for (int id = 1; id < k->insts.len; id++) {
        const KIndex *at = &kinst_at(k, id)->at;
        double reach = fabs((double)at->c); /* the largest offset */
        for (int d = 0; d < k->ndim; d++)
            reach += fabs((double)at->k[d]) * (double)k->dim[d].extent;
        p.wide |= reach > INT32_MAX;
        cu_mark_used(kinst_at(k, id), p.used);
    }
    return p;
}

const char *cu_unsigned(const KPrint *p) {
    return p->wide ? "uint64_t" : "unsigned";
}

/* ---- parameters ---------------------------------------------------------- */

void cu_item(List *l, const char *fmt, ...) {
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

const char *cu_buffer_type(const Kernel *k, int b) {
    return dtype_info[k->bufs.data[b].dtype].c;
}

void cu_params(const Kernel *k, List *l) {
    for (int b = 0; b < k->bufs.len; b++)
        cu_item(l, "%s%s *b%d", k->bufs.data[b].written ? "" : "const ",
                cu_buffer_type(k, b), b);
}

void print_cuda_params(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    cu_params(k, &l);
}

void print_cuda_initializer(const Kernel *k, StrBuf *sb) {
    List l = {.sb = sb, .indent = 4};
    sb_puts(sb, "{");
    for (int b = 0; b < k->bufs.len; b++) cu_item(&l, "b%d", b);
    sb_puts(sb, "}");
}

List cu_head(KPrint *p, const char *suffix) {
    sb_printf(p->sb,
              "extern \"C\" __global__ void __launch_bounds__(%d)\nk%d%s(",
              cuda_shape(p->k).threads, p->k->index, suffix);
    return (List){.sb = p->sb, .indent = 4};
}

/* ---- kernels ------------------------------------------------------------- */

/* The computation of one element of a kernel that does not reduce. */
static void put_element(KPrint *p) {
    for (int id = 1; id < p->k->insts.len; id++)
        if (kinst_at(p->k, id)->op != K_STORE) kp_inst(p, id, NULL);
    kp_stores(p, true);
    kp_stores(p, false);
}

static bool has_work(const KPrint *p) {
    return p->nrows > 0 && (p->ncols > 0 || kp_has_stores(p, false));
}

static void put_kernel(KPrint *p) {
    List l = cu_head(p, "");
    cu_params(p->k, &l);
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    if (!has_work(p)) {
        for (int b = 0; b < p->k->bufs.len; b++) kp_line(p, "(void)b%d;", b);
    } else if (kernel_reduces(p->k)) {
        cu_put_reduce(p);
    } else {
        int all[MAX_RANK];
        for (int d = 0; d < p->k->ndim; d++) all[d] = d;
        kp_line(p, "const %s e = %sblockIdx.x * %d + threadIdx.x;",
                cu_unsigned(p), p->wide ? "(uint64_t)" : "",
                cuda_shape(p->k).threads);
        kp_line(p, "if (e >= " I64 ") return;", p->nrows * p->ncols);
        kp_dims(p, "e", all, p->k->ndim, p->used);
        put_element(p);
    }
    sb_puts(p->sb, "}\n\n");
}

void print_cuda_kernel(const Kernel *k, StrBuf *sb) {
    KPrint p = cu_begin(k, sb);
    ASSERT(k->form != KF_EPILOGUE);
    sb_put_kernel_comment(sb, k);
    if (k->form == KF_FLAT)
        cu_put_flat(&p);
    else
        put_kernel(&p);
    kp_end(&p);
}

/* ---- epilogues ----------------------------------------------------------- */

/* Row dims from batch and row, column dims from col. */
static void put_functor_dims(KPrint *p) {
    bool rows = cu_any_used(p, p->rows, p->nrow);
    bool cols = cu_any_used(p, p->cols, p->ncol);
    const char *u = cu_unsigned(p);
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
    KPrint p = cu_begin(k, sb);
    bool reads_acc = false;
    ASSERT(k->form == KF_EPILOGUE);
    for (int id = 1; id < k->insts.len; id++)
        reads_acc |= kinst_at(k, id)->op == K_ACC;
    sb_put_kernel_comment(sb, k);
    kp_enter(&p, "struct E%d", k->index);
    for (int b = 0; b < k->bufs.len; b++)
        kp_line(&p, "%s%s *b%d;", k->bufs.data[b].written ? "" : "const ",
                cu_buffer_type(k, b), b);
    kp_line(&p, "__device__ __forceinline__ void");
    kp_enter(&p, "operator()(float acc, long long batch, long long row, long "
                 "long col) const");
    if (has_work(&p)) {
        put_functor_dims(&p);
        if (!reads_acc) kp_line(&p, "(void)acc;");
        put_element(&p);
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
    if (k->form == KF_FLAT) return (CudaShape){(int)threads, 0, block->step};
    int64_t blocks = kernel_units(k, 0);
    return (CudaShape){(int)threads, blocks ? blocks : 1, 0};
}
