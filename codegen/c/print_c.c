/* SPDX-License-Identifier: Apache-2.0 */
/* print_c.c: kernels as C that gcc and clang vectorise.

   Every kernel is one function: the threads' loops are its loop over units [lo,
   hi), and in it every sweep is a nest of the others, whose innermost loop is
   marked ivdep: outputs may share the bytes of inputs at the same index, so
   nothing is `restrict`; iterations share nothing else.
     flat, cols   the innermost loop runs over columns.  A reduction writes its
                  operand to a small array, piece by piece, and a helper of
                  kmath.h folds the array in 16 fixed lanes; sums of cheap
                  values are added up directly in registers, one block of 16
                  columns after the other. Costly values that a later sweep
                  needs again are kept for the row. A tile has a loop over rows
                  around this.
     rows         the innermost loop runs over neighbouring rows, with an
                  accumulator for each; long sums are cut in runs, each summed
                  on its own, for accuracy.
     epilogue     the rows and columns of a tile.
   Kernels whose texts differ only in sizes (sb_put_size: sizes that do not
   decide how a loop is vectorised or unrolled) are compiled once: they read
   these sizes from a table (share_c.c). Compiler flags: KERNEL_CFLAGS in
   codegen.h. */
#include "codegen/c/print_c.h"

/* The text of one element of a sweep. */
static void put_c_element(Nest *n) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held, *need = pc_computed(p, s, &held);
    if (pc_is_rows(p)) {
        bool *of = arena_dup(p->arena, need, (size_t)len * sizeof *of);
        for (int j = 0; j < s->roots.len; j++) of[s->roots.data[j]] = true;
        pc_put_row_operands(p, of);
    }
    for (int id = 1; id < len; id++) {
        if (!need[id] || (p->before && p->before[id])) continue;
        bool kept = held && held[id];
        if (pc_keeps(p, id, KEEP_TILE))
            pc_put_in_tile(p, id, true);
        else if (!kept)
            kp_inst(p, id, NULL);
        if (pc_keeps(p, id, KEEP_ROW)) pc_put_kept(p, id, kept);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        StrBuf operand = {0};
        sb_put_operand(&operand, p->k, kinst_at(p->k, id)->in[0]);
        if (pc_is_rows(p))
            pc_put_accumulate(p, p->lanes ? 'q' : 'r', "j", id, operand.data);
        else if (kernel_folds_array(p->k, id) && p->lane)
            pc_put_accumulate(p, p->sums, p->lane, id, operand.data);
        else if (kernel_folds_array(p->k, id))
            kp_line(p, "t%d[j] = %s;", id, operand.data);
        sb_free(&operand);
    }
    if (s->roots.len > s->nfold) kp_stores(p, true);
}

/* Prints the columns in parts in which guards are constant, if that helps. */
static void put_vector(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const Kernel *whole = p->k;
    int64_t cut[MAX_CUTS + 1];
    bool beside = pc_is_rows(p) || n->s->nfold;
    int ncut = n->s->nfold ? 0 : kernel_cuts(p->k, cut);
    if (!ncut) {
        bool all = l->over != n->cut;
        pc_put_range(n, l, beside || all ? "0" : n->from,
                     beside ? "n"
                     : all  ? pc_length_text(p, l->extent)
                            : n->to);
        return;
    }
    cut[ncut] = pc_extent(p, l->over);
    for (int j = 0; j <= ncut; j++) {
        int64_t from = j ? cut[j - 1] : 0;
        p->k = kernel_within(p->arena, whole, l->over, from, cut[j]);
        pc_put_range(n, l, arena_printf(p->arena, I64, from),
                     arena_printf(p->arena, I64, cut[j]));
    }
    p->k = whole;
}

/* t<id>: lanes; u<id>: lanes of the remainder. */
static void put_lanes_at_0(KPrint *p, int id, bool over) {
    kp_line(p, over ? "%s t%d[%d], u%d[%d];" : "%s t%d[%d];",
            pc_compute_c(p, id), id, BLOCK, id, BLOCK);
    kp_line(p,
            over ? "for (int l = 0; l < %d; l++) t%d[l] = u%d[l] = 0;"
                 : "for (int l = 0; l < %d; l++) t%d[l] = 0;",
            BLOCK, id, id);
}

static void put_lanes_sum(KPrint *p, int id, bool over) {
    if (over)
        kp_line(p, "for (int l = 0; l < %d; l++) t%d[l] += u%d[l];", BLOCK, id,
                id);
    kp_line(p, "v%d = SUM_LANES%s(v%d, t%d);", id,
            ktype_suffix[kinst_at(p->k, id)->compute], id, id);
}

/* Folds each piece of columns as soon as it is computed. An operand that
   lies in memory is folded first, because a result may overwrite it. */
static void put_pieces(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t e = l->extent, step = l->step;
    bool computes = n->s->roots.len > n->s->nfold;
    if (e > step) {
        kp_enter(p, "for (int64_t c0 = 0; c0 < %s; c0 += " I64 ")",
                 pc_size_text(p, e), step);
        pc_put_length(p, e, step);
    } else {
        kp_line(p, "{");
        p->depth++;
        kp_line(p, "const int64_t c0 = 0, n = %s;", pc_length_text(p, e));
    }
    bool lanes = kernel_adds_lanes(p->k, n->s);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        computes |= !pc_keeps(p, id, KEEP_BUFFER);
        if (pc_keeps(p, id, KEEP_BUFFER)) pc_put_fold_call(p, id);
        if (kernel_folds_array(p->k, id) && lanes)
            put_lanes_at_0(p, id, kernel_left_over(p->lanes));
        else if (kernel_folds_array(p->k, id))
            kp_line(p, "%s t%d[" I64 "];", pc_compute_c(p, id), id,
                    e == 0             ? 1
                    : e < LEAST_LENGTH ? e
                                       : step);
    }
    if (computes) kp_nest(n);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        if (lanes && kernel_folds_array(p->k, id))
            put_lanes_sum(p, id, kernel_left_over(p->lanes));
        else if (!pc_keeps(p, id, KEEP_BUFFER))
            pc_put_fold_call(p, id);
    }
    kp_leave(p);
}

/* Runs of columns, each summed on its own. */
static void put_runs(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t e = l->extent, step = l->step;
    kp_enter(p, "for (int64_t p0 = 0; p0 < %s; p0 += " I64 ")",
             pc_size_text(p, e), step);
    pc_put_end(p, 'p', e, step);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        kp_line(p, "%s q%d[" I64 "];", pc_compute_c(p, id), id,
                p->threads->step);
    }
    pc_put_start(n, 'q');
    n->cut = l->over, n->from = "p0", n->to = "p1";
    kp_nest(n);
    pc_ivdep(p);
    kp_enter(p, "for (int64_t j = 0; j < n; j++)");
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        pc_put_accumulate(p, 'r', "j", id,
                          arena_printf(p->arena, "q%d[j]", id));
    }
    kp_leave(p);
    kp_leave(p);
}

static void put_lanes(Nest *n, const KLoop *l) {
    if (!n->s->nfold)
        kp_nest(n);
    else if (pc_is_rows(n->p))
        put_runs(n, l);
    else
        put_pieces(n, l);
}

static void put_serial(Nest *n, const KLoop *l) {
    if (l->over == n->p->side) {
        kp_enter(n->p, "for (int64_t i%d = y0; i%d < y1; i%d++)", l->over,
                 l->over, l->over);
        kp_row_insts(n->p, 0);
    } else {
        pc_enter_loop(n, l->over);
    }
    kp_nest(n);
    kp_leave(n->p);
}

static const Spelling c_loops = {.element = put_c_element,
                                 .loop = {[LOOP_SERIAL] = put_serial,
                                          [LOOP_VECTOR] = put_vector,
                                          [LOOP_THREAD] = kp_loop_outside,
                                          [LOOP_LANES] = put_lanes}};

/* ---- units --------------------------------------------------------------- */

/* The loop that threads share within a row or within neighbouring rows;
   NULL: threads share whole rows. */
static const KLoop *shares(const KPrint *p) {
    return p->threads->over == LOOP_ROWS ? NULL : p->threads;
}

static void put_sweep(KPrint *p, const KSweep *s) {
    Nest n = {p, s, &c_loops, 0, -1, "c0", "c1"};
    if (!pc_is_rows(p) && shares(p)) n.cut = p->k->vec;
    if (pc_is_rows(p)) pc_put_start(&n, 'r');
    kp_nest(&n);
}

/* Prints the row values of one depth; -1: the row stores. */
static void put_values_of_rows(KPrint *p, int depth) {
    bool *of = NEW_ARRAY(p->arena, bool, p->k->insts.len), any = false;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        of[id] = depth < 0 ? in->op == K_STORE && !in->full
                           : kinst_is_row_value(in) && in->depth == depth &&
                                 in->keep == KEEP_BLOCK;
        any |= of[id];
    }
    if (!any) return;
    pc_enter_neighbours(p, "0", "n");
    pc_put_row_operands(p, of);
    for (int id = 1; depth >= 0 && id < p->k->insts.len; id++) {
        if (!of[id]) continue;
        kp_inst(p, id, NULL);
        kp_line(p, "r%d[j] = v%d;", id, id);
    }
    if (depth < 0) kp_stores(p, false);
    kp_leave(p);
}

/* Prints the unit's row and, if threads share dim vec, its part of it: [c0,
   c1), or n neighbouring rows from c0 on; the rows of a tile are [y0, y1). */
static void put_unit(KPrint *p) {
    const KLoop *l = shares(p);
    if (p->side >= 0) {
        const KLoop *y = kernel_loop(p->k, LOOP_THREAD, p->side);
        const char *nx = pc_size_text(p, loop_steps(l));
        const char *ny = pc_size_text(p, loop_steps(y));
        kp_line(p, "const int64_t tile = u / %s, c0 = u %% %s * " I64 ";", nx,
                nx, l->step);
        kp_line(p, "const int64_t row = tile / %s, y0 = tile %% %s * " I64 ";",
                ny, ny, y->step);
        kp_line(p, "(void)row;");
        pc_put_end(p, 'c', l->extent, l->step);
        pc_put_end(p, 'y', y->extent, y->step);
    } else if (l) {
        int64_t e = l->extent, step = l->step, nb = loop_steps(l);
        if (nb == 1)
            kp_line(p, "const int64_t row = u, c0 = 0;");
        else if (p->nrow == 0)
            kp_line(p, "const int64_t row = 0, c0 = u * " I64 ";", step);
        else
            kp_line(p, "const int64_t row = u / %s, c0 = u %% %s * " I64 ";",
                    pc_size_text(p, nb), pc_size_text(p, nb), step);
        kp_line(p, "(void)row;");
        if (!pc_is_rows(p))
            pc_put_end(p, 'c', e, step);
        else if (e % step == 0)
            kp_line(p, "const int64_t n = " I64 ";", step);
        else
            pc_put_length(p, e, step);
    }
    kp_dims(p, l ? "row" : "u", p->rows, p->nrow, NULL);
}

/* Elements reserved for a row that is kept. The number is rounded up, so
   that kernels with slightly different rows have one text. */
static int64_t place_of_row(const KPrint *p) {
    int64_t n = 1;
    while (n < p->ncols) n *= 2;
    return n;
}

/* Declares accumulators, arrays s<id> (values kept for the row) and arrays
   r<id> (values of the rows of a block). gcc keeps accumulators in memory
   while it indexes another array, unless each array has a pointer of its
   own. */
static void put_declarations(KPrint *p) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->keep == KEEP_BLOCK)
            kp_line(p, "%s r%d[" I64 "];", ktype_c[in->type], id,
                    p->threads->step);
        else if (in->op == K_REDUCE)
            kp_line(p, "%s v%d = %s;", ktype_c[in->compute], id,
                    fold_start(in->code, in->compute));
    }
    for (int id = 1; id < p->k->insts.len; id++)
        if (pc_keeps(p, id, KEEP_ROW))
            kp_line(p, "%s a%d[" I64 "], *restrict const s%d = a%d;",
                    ktype_c[kinst_at(p->k, id)->type], id, place_of_row(p), id,
                    id);
}

/* Prints everything that is computed for the current row or rows. */
static void put_rows(KPrint *p) {
    put_declarations(p);
    if (p->side >= 0)
        pc_put_tile_loads(p), put_sweep(p, p->sweeps.data);
    else
        kp_sweeps(p, pc_is_rows(p) ? put_values_of_rows : kp_row_insts,
                  put_sweep);
    if (pc_is_rows(p))
        put_values_of_rows(p, -1);
    else
        kp_stores(p, false);
}

/* Prints n parts of the rows, a branch for each part. */
static void put_parts(KPrint *p, int dim, const KPart *part, int n) {
    const Kernel *whole = p->k;
    KSweeps all = p->sweeps;
    if (n == 1) {
        p->k = part->k;
        p->sweeps = kernel_sweeps(p->k, p->arena);
        put_rows(p);
        p->k = whole, p->sweeps = all;
        return;
    }
    kp_enter(p, "if (i%d < %s)", dim, pc_size_text(p, part[n / 2].from));
    put_parts(p, dim, part, n / 2);
    kp_leave(p);
    kp_enter(p, "else");
    put_parts(p, dim, part + n / 2, n - n / 2);
    kp_leave(p);
}

static void put_c_body(KPrint *p) {
    KParts parts = kernel_row_parts(p->arena, p->k);
    Nest tile = {p,         p->sweeps.data, &c_loops,    0,
                 p->k->vec, "col",          "col + cols"};
    switch (p->k->form) {
    case KF_FLAT:
        kp_line(p, "const int64_t c0 = lo * " I64 ";", p->threads->step);
        kp_line(p,
                "const int64_t c1 = hi * " I64 " < par[0] ? hi * " I64
                " : par[0];",
                p->threads->step, p->threads->step);
        kp_sweeps(p, kp_row_insts, put_sweep);
        break;
    case KF_EPILOGUE: kp_nest(&tile); break;
    case KF_FOLD: ASSERT(!"a form of CPUs"); break;
    case KF_COLS:
    case KF_ROWS:
        kp_enter(p, "for (int64_t u = lo; u < hi; u++)");
        put_unit(p);
        put_parts(p, parts.dim, parts.data, parts.len);
        kp_leave(p);
        break;
    }
}

/* ---- functions ----------------------------------------------------------- */

void pc_body(const Kernel *k, StrBuf *sb) {
    Kernel marked = *k;
    marked.marks = true;
    KPrint p = kp_begin(&marked, sb);
    p.wide = true;
    p.acc = p.ncol == 1 ? arena_printf(p.arena, "acc[i%d - col]", k->vec)
                        : "acc[c - col]";
    p.depth = 1;
    p.sums = 't';
    kp_line(&p,
            k->form == KF_EPILOGUE ? "(void)batch, (void)row;" : "(void)par;");
    for (int b = 0; b < k->bufs.len; b++)
        kp_line(&p, "%s%s *const b%d = buf[%d];",
                k->bufs.data[b].written ? "" : "const ",
                dtype_info[k->bufs.data[b].dtype].c, b, b);
    if (k->bufs.len == 0) kp_line(&p, "(void)buf;");
    put_c_body(&p);
    sb_puts(sb, "}\n\n");
    kp_end(&p);
}
