/* print_cuda_reduce.c: kernels that reduce, as CUDA C++.

   A row belongs to a team of threads; its thread t takes columns t, t + T, ..
   of the flattened columns in every sweep, so that what it stores is what it
   alone has read.  Partial results are folded in a fixed order (fold.cuh).
     cols   up to 1024 columns: neighbouring lanes of one warp, several rows in
            a block; more: the block
     rows   32 neighbouring rows, one for each lane, T warps
   All threads of a team compute the row values; thread 0 stores them when all
   have read the row's inputs.  Teams past the last row repeat it and store
   nothing.                                                                  */
#include "codegen/cuda/print_cuda.h"

/* The columns of a row are slices of a block's, one in each of its warps. */
static bool is_sliced(const KPrint *p) { return p->k->form == KF_ROWS; }

/* Some teams are past the last row. */
static bool has_idle(const KPrint *p) {
    int64_t n = is_sliced(p) ? p->k->dim[p->k->vec].extent : p->nrows;
    return p->threads && n % p->threads->extent != 0;
}

/* ---- rows ---------------------------------------------------------------- */

/* Row dim `vec` by the lane, the others by the block. */
static void put_rows_of_lanes(KPrint *p) {
    int vec = p->k->vec;
    const KLoop *block = kernel_loop(p->k, LOOP_BLOCK, vec);
    int64_t nb = loop_steps(block);
    const char *u = cu_unsigned(p);
    kp_text(p, "const %s r = ", u);
    if (nb > 1)
        sb_printf(p->sb, "blockIdx.x %% " I64 " * " I64 " + ", nb, block->step);
    sb_printf(p->sb, "threadIdx.x %% " I64 ";\n", block->step);
    if (has_idle(p)) {
        kp_line(p, "const bool live = r < " I64 ";", block->extent);
        kp_line(p, "const %s i%d = live ? r : " I64 ";", kp_signed(p), vec,
                block->extent - 1);
    } else {
        kp_line(p, "const %s i%d = r;", kp_signed(p), vec);
    }
    if (cu_any_used(p, p->rows, p->nrow))
        kp_line(p, "const %s row = blockIdx.x / " I64 ";", u, nb);
}

static void put_rows_of_teams(KPrint *p) {
    const char *u = cu_unsigned(p);
    bool used = cu_any_used(p, p->rows, p->nrow), idle = has_idle(p);
    if (!used && !idle) return;
    kp_text(p, "const %s %s = ", u, idle ? "r" : "row");
    if (p->threads && p->threads->extent > 1)
        sb_printf(p->sb, "%sblockIdx.x * " I64 " + threadIdx.x / " I64 ";\n",
                  p->wide ? "(uint64_t)" : "", p->threads->extent,
                  p->lanes->step);
    else
        sb_puts(p->sb, "blockIdx.x;\n");
    if (idle) kp_line(p, "const bool live = r < " I64 ";", p->nrows);
    if (idle && used)
        kp_line(p, "const %s row = live ? r : " I64 ";", u, p->nrows - 1);
}

/* ---- sweeps -------------------------------------------------------------- */

/* Columns t, t + T, .. */
static void put_loop(KPrint *p, const KSweep *s) {
    bool *need = kernel_need(p->k, s, NULL, p->arena), used[MAX_RANK] = {0};
    bool live = has_idle(p);
    kp_enter(p, "for (%s c = t; c < " I64 "; c += " I64 ")", cu_unsigned(p),
             p->ncols, p->lanes->step);
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) cu_mark_used(kinst_at(p->k, id), used);
    for (int j = 0; j < s->roots.len; j++)
        cu_mark_used(kinst_at(p->k, s->roots.data[j]), used);
    kp_dims(p, "c", p->cols, p->ncol, used);
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) kp_inst(p, id, NULL);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p, "v%d = f%d(v%d, ", id, id, id);
        sb_put_operand(p->sb, p->k, kinst_at(p->k, id)->in[0]);
        sb_puts(p->sb, ");\n");
    }
    if (s->roots.len > s->nfold) {
        if (live) kp_enter(p, "if (live)");
        kp_stores(p, true);
        if (live) kp_leave(p);
    }
    kp_leave(p);
}

/* Each fold is f<id>(a, b), its accumulator v<id>. */
static void put_sweep(KPrint *p, const KSweep *s) {
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
    if (p->ncols > 0) put_loop(p, s);
    for (int j = 0; j < s->nfold; j++)
        kp_line(p, "v%d = fold_%s<" I64 ">(v%d, f%d);", s->roots.data[j],
                is_sliced(p) ? "slices"
                : p->threads ? "lanes"
                             : "block",
                p->lanes->step, s->roots.data[j], s->roots.data[j]);
}

/* ---- the kernel ---------------------------------------------------------- */

void cu_put_reduce(KPrint *p) {
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
