/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda.c: kernels as CUDA C++ (print_cuda.h), one or many tensors a
   launch; epilogues. */
#include "codegen/cuda/print_cuda.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the printer --------------------------------------------------------- */

/* A column's part of an index is a non-negative 32-bit number, up to one
   vector beyond the last column. */
static bool narrow_columns(const Kernel *k) {
    enum { BEHIND = 65536 };
    if (kernel_cols(k) > INT32_MAX - BEHIND) return false;
    for (int id = 1; id < k->insts.len; id++) {
        const KIndex *at = &kinst_at(k, id)->at;
        double reach = 0;
        for (int d = 0; d < k->ndim; d++) {
            if (!k->dim[d].col) continue;
            reach += (double)at->k[d] * (double)(k->dim[d].extent + BEHIND);
            if (at->k[d] < 0) return false;
        }
        if (reach > INT32_MAX) return false;
    }
    return true;
}

static KPrint cuda_begin(const Kernel *k, StrBuf *sb) {
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
        cp_mark_used(kinst_at(k, id), p.used);
    }
    p.narrow_cols = p.lanes && narrow_columns(k);
    return p;
}

/* ---- parameters ---------------------------------------------------------- */

void print_cuda_params(const Kernel *k, StrBuf *sb) {
    CudaList l = {.sb = sb, .indent = 4};
    cp_buffers(k, &l);
}

void print_cuda_initializer(const Kernel *k, StrBuf *sb) {
    CudaList l = {.sb = sb, .indent = 4};
    sb_puts(sb, "{");
    for (int b = 0; b < k->bufs.len; b++) cp_item(&l, "b%d", b);
    sb_puts(sb, "}");
}

/* ---- kernels ------------------------------------------------------------- */

static bool has_work(const KPrint *p) {
    return p->nrows > 0 && (p->ncols > 0 || kp_has_stores(p, false));
}

/* A transposed matrix of bytes. */
static void put_turned(KPrint *p) {
    const Kernel *k = p->k;
    const KInst *in = kinst_at(k, cuda_turned(k));
    kp_line(p, "turn_bytes<" I64 ", " I64 ", " I64 ">(b%d, b%d, %s);",
            k->dim[1 - k->vec].extent, k->dim[k->vec].extent, in->at.k[k->vec],
            in->buf, 1 - in->buf, p->block);
}

static void put_cuda_body(KPrint *p) {
    p->depth = 1;
    if (cuda_turned(p->k))
        put_turned(p);
    else if (has_work(p))
        (p->lanes ? cp_rows : kernel_tiles(p->k) ? cp_tile : cp_elements)(p);
    else
        for (int b = 0; b < p->k->bufs.len; b++) kp_line(p, "(void)b%d;", b);
    sb_puts(p->sb, "}\n\n");
}

void print_cuda_block(const Kernel *k, StrBuf *sb) {
    KPrint p = cuda_begin(k, sb);
    sb_put_kernel_comment(sb, k);
    cp_flat_block(&p);
    kp_end(&p);
}

void print_cuda_kernel(const Kernel *k, bool guarded, StrBuf *sb) {
    KPrint p = cuda_begin(k, sb);
    ASSERT(k->form != KF_EPILOGUE && k->form != KF_FOLD);
    if (k->form == KF_FLAT) {
        print_cuda_block(k, sb);
        cp_flat(&p, guarded);
    } else {
        sb_put_kernel_comment(sb, k);
        CudaList l = cp_head(&p, "", cuda_shape(k).threads);
        cp_buffers(k, &l);
        if (kernel_column_sums(k)) cp_item(&l, "float *__restrict__ sums");
        print_cuda_guard(guarded, sb);
        put_cuda_body(&p);
        if (kernel_column_sums(k)) cp_finish(&p, guarded);
    }
    kp_end(&p);
}

/* Begins a kernel "(table, count)" for many tensors, up to the work on row
   `row` of the table; a row has `words` words. */
static void begin_many(KPrint *p, const char *suffix, bool guarded, int words) {
    cp_head(p, suffix, cuda_shape(p->k).threads);
    sb_puts(p->sb, "const unsigned long long *table, unsigned count");
    print_cuda_guard(guarded, p->sb);
    sb_printf(p->sb,
              "    const unsigned long long *row = many_row(table, count, "
              "%d);\n",
              words);
}

/* Operands of `after` were written by other blocks of the same launch, so
   none of its buffers is __restrict__. */
static KPrint begin_after(const Kernel *after, StrBuf *sb) {
    KPrint p = cuda_begin(after, sb);
    Kernel *k = arena_dup(p.arena, p.k, sizeof *k);
    k->bufs.data = arena_dup(p.arena, k->bufs.data,
                             (size_t)k->bufs.len * sizeof *k->bufs.data);
    for (int b = 0; b < k->bufs.len; b++) k->bufs.data[b].apart = false;
    p.k = k;
    return p;
}

void print_cuda_many_after(const Kernel *k, const Kernel *after, bool guarded,
                           StrBuf *sb) {
    KPrint p = cuda_begin(k, sb), q = begin_after(after, sb);
    int refs = k->bufs.len, all = refs + after->bufs.len;
    char suffix[32], space[48];
    ASSERT(k->form == KF_FOLD && after->form == KF_FOLD &&
           cuda_shape(k).threads == cuda_shape(after).threads);
    sb_printf(sb, "namespace k%d_%d {\n", k->index, after->index);
    if (k != after) {
        sb_put_kernel_comment(sb, k);
        cp_fold(&p);
    }
    sb_put_kernel_comment(sb, after);
    cp_fold(&q);
    sb_puts(sb, "}\n\n");
    snprintf(suffix, sizeof suffix, "_%d_many", after->index);
    snprintf(space, sizeof space, "k%d_%d::", k->index, after->index);
    begin_many(&p, suffix, guarded, 4 + all);
    kp_line(&p, "const unsigned rows = (unsigned)row[%d];", 2 + all);
    kp_line(&p, "unsigned *const done = global_at<unsigned>(row[%d]);",
            3 + all);
    kp_line(&p, "%sk%d_rows(row + 2, (unsigned)row[1], blockIdx.x - row[0]);",
            space, k->index);
    kp_line(&p, "if (row[%d] && last_block(done, rows))", 2 + refs);
    kp_line(&p, "    %sk%d_rows(row + %d, rows, 0);", space, after->index,
            2 + refs);
    sb_puts(sb, "}\n\n");
    kp_end(&q);
    kp_end(&p);
}

void print_cuda_many(const Kernel *k, bool guarded, StrBuf *sb) {
    KPrint p = cuda_begin(k, sb);
    bool flat = k->form == KF_FLAT, fold = k->form == KF_FOLD;
    CudaList l = {.sb = sb, .indent = 8};
    if (!flat) sb_put_kernel_comment(sb, k);
    if (fold) {
        cp_fold(&p);
        begin_many(&p, "_many", guarded, 2 + k->bufs.len);
        sb_printf(sb,
                  "    k%d_rows(row + 2, (unsigned)row[1], blockIdx.x - "
                  "row[0]);\n}\n\n",
                  k->index);
        kp_end(&p);
        return;
    }
    if (!flat) {
        CudaList block = cp_device(&p, "_block");
        cp_item(&block, "unsigned block");
        sb_puts(sb, ")\n{\n");
        p.block = "block";
        put_cuda_body(&p);
    }
    begin_many(&p, "_many", guarded, 2 + k->bufs.len);
    sb_printf(sb, "    k%d_block(", k->index);
    for (int b = 0; b < k->bufs.len; b++)
        cp_item(&l, "global_at<%s%s>(row[%d])",
                k->bufs.data[b].written ? "" : "const ", cp_type(k, b), 2 + b);
    if (flat) cp_item(&l, "(int64_t)row[1]");
    cp_item(&l, "(%s)(blockIdx.x - row[0])", flat ? "int64_t" : "unsigned");
    sb_puts(sb, ");\n}\n\n");
    kp_end(&p);
}

/* ---- epilogues ----------------------------------------------------------- */

/* Row dims from batch and row, column dims from col. */
static void put_functor_dims(KPrint *p) {
    bool rows = cp_any_used(p, p->rows, p->nrow);
    bool cols = cp_any_used(p, p->cols, p->ncol);
    const char *u = cp_unsigned(p);
    if (rows && p->k->tile_rows)
        kp_line(p, "const %s r = (%s)(batch * " I64 " + row);", u, u,
                p->k->tile_rows);
    else if (rows)
        kp_line(p, "const %s r = (%s)row;", u, u);
    if (!rows || !p->k->tile_rows) kp_line(p, "(void)batch;");
    if (!rows) kp_line(p, "(void)row;");
    kp_line(p, cols ? "const %s c = (%s)col;" : "(void)col;", u, u);
    kp_dims(p, "r", p->rows, p->nrow, p->used);
    kp_dims(p, "c", p->cols, p->ncol, p->used);
}

void print_cuda_functor(const Kernel *k, StrBuf *sb) {
    KPrint p = cuda_begin(k, sb);
    bool reads_acc = false;
    int near = cuda_pack(k);
    ASSERT(k->form == KF_EPILOGUE);
    p.acc = near > 1 ? "acc.v[u]" : "acc.v[0]";
    for (int id = 1; id < k->insts.len; id++)
        reads_acc |= kinst_at(k, id)->op == K_ACC;
    sb_put_kernel_comment(sb, k);
    kp_enter(&p, "struct E%d", k->index);
    for (int b = 0; b < k->bufs.len; b++)
        kp_line(&p, "%s%s *b%d;", k->bufs.data[b].written ? "" : "const ",
                cp_type(k, b), b);
    kp_line(&p, "static constexpr int near = %d;", near);
    kp_line(&p, "__device__ __forceinline__ void");
    kp_enter(
        &p,
        "operator()(const Pack<%d, float> &acc, long long batch, long long "
        "row, long long col) const",
        near);
    if (has_work(&p)) {
        put_functor_dims(&p);
        if (!reads_acc) kp_line(&p, "(void)acc;");
        kp_sweeps(&p, kp_row_insts, cp_sweep);
        kp_stores(&p, false);
    } else {
        kp_line(&p, "(void)acc, (void)batch, (void)row, (void)col;");
    }
    kp_leave(&p);
    p.depth = 0;
    kp_line(&p, "};\n");
    kp_end(&p);
}
