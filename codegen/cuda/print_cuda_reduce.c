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

#include <inttypes.h>

/* How the threads of a block share the rows. */
typedef struct Team {
    const KLoop *rows;  /* of the block, side by side; NULL: it has one      */
    const KLoop *lanes; /* that share a row                                  */
    bool slices;        /* one lane in each warp, not neighbours             */
} Team;

static Team team_of(const Kernel *k) {
    return (Team){.rows = kernel_loop(k, LOOP_THREAD, LOOP_ANY),
                  .lanes = kernel_loop(k, LOOP_LANES, LOOP_ANY),
                  .slices = k->form == KF_ROWS};
}

static int64_t team_rows(const Team *t) {
    return t->rows ? t->rows->extent : 1;
}

/* ---- rows ---------------------------------------------------------------- */

/* Whether some teams are past the last row. */
static bool has_idle(const KPrint *p, const Team *t) {
    int64_t n = p->k->form == KF_ROWS ? p->k->dim[p->k->vec].extent : p->nrows;
    return n % team_rows(t) != 0;
}

/* Row dim `vec` by the lane, the others by the block. */
static void put_rows_of_lanes(KPrint *p, const Team *t) {
    int others[MAX_RANK], n = 0, vec = p->k->vec;
    const KLoop *block = kernel_loop(p->k, LOOP_BLOCK, vec);
    int64_t extent = block->extent, nb = loop_steps(block);
    int warp = (int)block->step;
    const char *u = cu_unsigned(p);
    for (int j = 0; j < p->nrow; j++)
        if (p->rows[j] != vec) others[n++] = p->rows[j];
    if (nb == 1)
        kp_line(p, "const %s r = threadIdx.x %% %d;", u, warp);
    else
        kp_line(p,
                "const %s r = blockIdx.x %% %" PRId64 " * %d + threadIdx.x"
                " %% %d;",
                u, nb, warp, warp);
    if (has_idle(p, t)) {
        kp_line(p, "const bool live = r < %" PRId64 ";", extent);
        kp_line(p, "const %s i%d = live ? r : %" PRId64 ";", kp_signed(p), vec,
                extent - 1);
    } else {
        kp_line(p, "const %s i%d = r;", kp_signed(p), vec);
    }
    if (cu_any_used(p, others, n))
        kp_line(p, "const %s row = blockIdx.x / %" PRId64 ";", u, nb);
    kp_dims(p, "row", others, n, p->used);
}

static void put_rows_of_teams(KPrint *p, const Team *t) {
    const char *u = cu_unsigned(p);
    bool used = cu_any_used(p, p->rows, p->nrow), idle = has_idle(p, t);
    if (!used && !idle) return;
    sb_printf(p->sb, "    const %s %s = ", u, idle ? "r" : "row");
    if (team_rows(t) > 1)
        sb_printf(p->sb,
                  "%sblockIdx.x * %" PRId64 " + threadIdx.x / %" PRId64 ";\n",
                  p->wide ? "(uint64_t)" : "", team_rows(t), t->lanes->step);
    else
        sb_puts(p->sb, "blockIdx.x;\n");
    if (idle) kp_line(p, "const bool live = r < %" PRId64 ";", p->nrows);
    if (idle && used)
        kp_line(p, "const %s row = live ? r : %" PRId64 ";", u, p->nrows - 1);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
}

static void put_thread(KPrint *p, const Team *t) {
    if (p->ncols == 0) return;
    if (t->slices)
        kp_line(p, "const unsigned t = threadIdx.x / %d;", (int)team_rows(t));
    else if (t->rows)
        kp_line(p, "const unsigned t = threadIdx.x %% %d;",
                (int)t->lanes->step);
    else
        kp_line(p, "const unsigned t = threadIdx.x;");
}

/* ---- sweeps -------------------------------------------------------------- */

/* f<id>(a, b) and the accumulator v<id>. */
static void put_accumulator(KPrint *p, int id) {
    const KInst *r = kinst_at(p->k, id);
    const char *type = ktype_c[r->compute];
    sb_printf(p->sb, "    const auto f%d = [](%s a, %s b) -> %s { return ", id,
              type, type, type);
    sb_put_fold(p->sb, r->code, r->compute, "a", "b");
    sb_puts(p->sb, "; };\n");
    kp_line(p, "%s v%d = %s;", type, id, fold_start(r->code, r->compute));
}

static void put_accumulate(KPrint *p, int id) {
    kp_text(p, "v%d = f%d(v%d, ", id, id, id);
    sb_put_operand(p->sb, p->k, kinst_at(p->k, id)->in[0]);
    sb_puts(p->sb, ");\n");
}

static void put_fold(KPrint *p, const Team *t, int id) {
    kp_line(p, "v%d = fold_%s<%" PRId64 ">(v%d, f%d);", id,
            t->slices ? "slices"
            : t->rows ? "lanes"
                      : "block",
            t->lanes->step, id, id);
}

static bool is_fold(const KPrint *p, int id) {
    return kinst_at(p->k, id)->op == K_REDUCE;
}

/* The dims of column c that the sweep mentions. */
static void put_column(KPrint *p, const KSweep *s, const bool *need) {
    bool used[MAX_RANK] = {0};
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) cu_mark_used(kinst_at(p->k, id), used);
    for (int j = 0; j < s->roots.len; j++)
        cu_mark_used(kinst_at(p->k, s->roots.data[j]), used);
    kp_dims(p, "c", p->cols, p->ncol, used);
}

static void put_sweep_stores(KPrint *p, const Team *t, const KSweep *s) {
    bool stores = false;
    for (int j = 0; j < s->roots.len; j++)
        stores |= !is_fold(p, s->roots.data[j]);
    if (!stores) return;
    if (has_idle(p, t)) kp_enter(p, "if (live)");
    kp_stores(p, true);
    if (has_idle(p, t)) kp_leave(p);
}

static void put_loop(KPrint *p, const Team *t, const KSweep *s) {
    bool *need = kernel_need(p->k, s, NULL, p->arena);
    kp_enter(p, "for (%s c = t; c < %" PRId64 "; c += %" PRId64 ")",
             cu_unsigned(p), p->ncols, t->lanes->step);
    put_column(p, s, need);
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) kp_inst(p, id, NULL);
    for (int j = 0; j < s->roots.len; j++)
        if (is_fold(p, s->roots.data[j])) put_accumulate(p, s->roots.data[j]);
    put_sweep_stores(p, t, s);
    kp_leave(p);
}

static void put_sweep(KPrint *p, const Team *t, const KSweep *s) {
    for (int j = 0; j < s->roots.len; j++)
        if (is_fold(p, s->roots.data[j])) put_accumulator(p, s->roots.data[j]);
    if (p->ncols > 0) put_loop(p, t, s);
    for (int j = 0; j < s->roots.len; j++)
        if (is_fold(p, s->roots.data[j])) put_fold(p, t, s->roots.data[j]);
}

/* ---- the kernel ---------------------------------------------------------- */

static void put_row_stores(KPrint *p, const Team *t) {
    bool idle = has_idle(p, t), shared = t->lanes->step > 1;
    if (!kp_has_stores(p, false)) return;
    if (shared)
        kp_line(p,
                t->rows && !t->slices ? "__syncwarp();" : "__syncthreads();");
    if (shared || idle)
        kp_enter(p, "if (%s%s%s)", shared ? "t == 0" : "",
                 shared && idle ? " && " : "", idle ? "live" : "");
    kp_stores(p, false);
    if (shared || idle) kp_leave(p);
}

/* Without columns nothing reads most buffers. */
static void put_unread(KPrint *p) {
    if (p->ncols > 0) return;
    for (int b = 0; b < p->k->bufs.len; b++)
        if (!p->k->bufs.data[b].written) kp_line(p, "(void)b%d;", b);
}

void cu_put_reduce(KPrint *p) {
    Team t = team_of(p->k);
    KSweeps sweeps = kernel_sweeps(p->k, p->arena);
    int done = 0, last = kernel_depth(p->k);
    put_unread(p);
    put_thread(p, &t);
    if (p->k->form == KF_ROWS)
        put_rows_of_lanes(p, &t);
    else
        put_rows_of_teams(p, &t);
    for (int s = 0; s < sweeps.len; s++) {
        for (; done <= sweeps.data[s].depth; done++) kp_row_insts(p, done);
        put_sweep(p, &t, &sweeps.data[s]);
    }
    for (; done <= last; done++) kp_row_insts(p, done);
    put_row_stores(p, &t);
}
