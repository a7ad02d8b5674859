/* print_c.c: kernels as C that gcc and clang vectorise.

   Every kernel is one function with one innermost loop per sweep, marked
   ivdep: outputs may lie over inputs of the same index, so nothing is
   `restrict`, and nothing else is shared between iterations.
     flat, cols   the innermost loop runs over columns.  A reduction writes its
                  operand to a small array, chunk by chunk, and a helper of
                  kmath.h folds the array in 16 fixed lanes.  Costly values
                  that a later sweep needs again are kept for the row.
     rows         the innermost loop runs over neighbouring rows, with an
                  accumulator for each; long sums are cut in runs, each summed
                  on its own, for accuracy.
   Flags this text is meant for: KERNEL_CFLAGS in codegen.h.                 */
#include "codegen/kernel/print.h"

#include <inttypes.h>
#include <string.h>

#define I64 "%" PRId64

static int64_t extent(const KPrint *p, int d) { return p->k->dim[d].extent; }

static bool keeps(const KPrint *p, int id, KKeep keep) {
    return kinst_at(p->k, id)->keep == keep;
}

/* Of what threads share out within a row, or of neighbouring rows; 0: none. */
static int64_t block_step(const KPrint *p) {
    const KLoop *l = p->k->form == KF_FLAT
                         ? &p->k->loop[0]
                         : kernel_loop(p->k, LOOP_THREAD, p->k->vec);
    return l ? l->step : 0;
}

/* Columns that are folded together; 0: all of them at once. */
static int64_t lanes_step(const KPrint *p) {
    const KLoop *l = kernel_loop(p->k, LOOP_LANES, LOOP_ANY);
    return l ? l->step : 0;
}

/* ---- reductions over columns --------------------------------------------- */

static const char *fold_name(OpCode c) {
    static const char *const text[] = {[FOLD_SUM] = "SUM",
                                       [FOLD_PROD] = "PROD",
                                       [FOLD_MAX] = "MAX",
                                       [FOLD_MIN] = "MIN"};
    return text[op_info[c].fold];
}

/* The operand is kept for a later sweep: that array is folded. */
static bool folds_kept(const KPrint *p, const KInst *r) {
    const KInst *x = kinst_at(p->k, r->in[0]);
    return x->keep == KEEP_ROW && p->ncol == 1 && x->type == r->compute;
}

static bool needs_array(const KPrint *p, int id) {
    return !keeps(p, id, KEEP_BUFFER) && !folds_kept(p, kinst_at(p->k, id));
}

static void put_fold_call(KPrint *p, int id) {
    const KInst *r = kinst_at(p->k, id);
    kp_text(p, "v%d = FOLD_%s%s(v%d, ", id, fold_name(r->code),
            ktype_suffix[r->compute], id);
    if (r->keep == KEEP_BUFFER) {
        const KInst *x = kinst_at(p->k, r->in[0]);
        sb_printf(p->sb, "b%d + (", x->buf);
        sb_put_index(p->sb, p->k, &x->at, "c0");
        sb_puts(p->sb, ")");
    } else if (folds_kept(p, r)) {
        sb_printf(p->sb, "s%d + c0", r->in[0]);
    } else {
        sb_printf(p->sb, "t%d", id);
    }
    sb_puts(p->sb, ", n);\n");
}

/* ---- one sweep, columns innermost ---------------------------------------- */

static void put_col_flat(KPrint *p) {
    int64_t stride = 1;
    for (int j = p->ncol - 1; j >= 0; j--) {
        if (j < p->ncol - 1) sb_puts(p->sb, " + ");
        if (stride == 1)
            sb_printf(p->sb, "i%d", p->cols[j]);
        else
            sb_printf(p->sb, I64 " * i%d", stride, p->cols[j]);
        stride *= extent(p, p->cols[j]);
    }
}

static void put_kept(KPrint *p, int id, bool load) {
    if (load)
        kp_text(p, "const %s v%d = s%d[", ktype_c[kinst_at(p->k, id)->type], id,
                id);
    else
        kp_text(p, "s%d[", id);
    put_col_flat(p);
    if (load)
        sb_puts(p->sb, "];\n");
    else
        sb_printf(p->sb, "] = v%d;\n", id);
}

/* Values that an earlier sweep has kept. */
static bool *kept_before(KPrint *p, int sweep) {
    bool *cut = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int s = 0; s < sweep; s++) {
        bool *need = kernel_need(p->k, &p->sweeps.data[s], cut, p->arena);
        for (int id = 1; id < p->k->insts.len; id++)
            cut[id] |= need[id] && keeps(p, id, KEEP_ROW);
    }
    return cut;
}

/* The statements of one element. */
static void put_body(KPrint *p, int sweep) {
    const KSweep *s = &p->sweeps.data[sweep];
    bool *cut = kept_before(p, sweep);
    bool *need = kernel_need(p->k, s, cut, p->arena);
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!need[id]) continue;
        if (cut[id]) {
            put_kept(p, id, true);
            continue;
        }
        kp_inst(p, id, NULL);
        if (keeps(p, id, KEEP_ROW)) put_kept(p, id, false);
    }
}

/* Full stores end in one sweep. */
static void put_stores(KPrint *p, const KSweep *s) {
    for (int j = 0; j < s->roots.len; j++)
        if (kinst_at(p->k, s->roots.data[j])->op == K_STORE) {
            kp_stores(p, true);
            return;
        }
}

/* Reductions of the sweep; with `buffered` those that need an array. */
static int folds(const KPrint *p, const KSweep *s, bool buffered, int *out) {
    int n = 0;
    for (int j = 0; j < s->roots.len; j++) {
        int id = s->roots.data[j];
        if (kinst_at(p->k, id)->op != K_REDUCE) continue;
        if (buffered && keeps(p, id, KEEP_BUFFER)) continue;
        out[n++] = id;
    }
    return n;
}

static void ivdep(KPrint *p) { sb_puts(p->sb, "#pragma GCC ivdep\n"); }

static void put_chunk(KPrint *p, int sweep, const int *fold, int nfold,
                      bool loop) {
    const KSweep *s = &p->sweeps.data[sweep];
    int vec = p->k->vec;
    int64_t e = extent(p, vec), chunk = lanes_step(p);
    for (int j = 0; j < nfold; j++)
        if (needs_array(p, fold[j]))
            kp_line(p, "%s t%d[" I64 "];",
                    ktype_c[kinst_at(p->k, fold[j])->compute], fold[j],
                    e == 0      ? 1
                    : e < chunk ? e
                                : chunk);
    if (loop) {
        ivdep(p);
        kp_enter(p, "for (int64_t j = 0; j < n; j++)");
        kp_line(p, "const int64_t i%d = c0 + j;", vec);
        kp_line(p, "(void)i%d;", vec);
        put_body(p, sweep);
        for (int j = 0; j < nfold; j++) {
            if (!needs_array(p, fold[j])) continue;
            kp_text(p, "t%d[j] = ", fold[j]);
            sb_put_operand(p->sb, p->k, kinst_at(p->k, fold[j])->in[0]);
            sb_puts(p->sb, ";\n");
        }
        put_stores(p, s);
        kp_leave(p);
    }
    for (int j = 0; j < nfold; j++) put_fold_call(p, fold[j]);
}

static void open_outer_cols(KPrint *p) {
    for (int j = 0; j < p->ncol - 1; j++)
        kp_enter(p, "for (int64_t i%d = 0; i%d < " I64 "; i%d++)", p->cols[j],
                 p->cols[j], extent(p, p->cols[j]), p->cols[j]);
}

static void close_outer_cols(KPrint *p) {
    for (int j = 0; j < p->ncol - 1; j++) kp_leave(p);
}

static void put_fold_sweep(KPrint *p, int sweep, const int *fold, int nfold) {
    int64_t e = extent(p, p->k->vec), chunk = lanes_step(p);
    int *some = NEW_ARRAY(p->arena, int, nfold + 1);
    bool loop = folds(p, &p->sweeps.data[sweep], true, some) > 0 ||
                p->sweeps.data[sweep].roots.len > nfold;
    open_outer_cols(p);
    if (e > chunk) {
        kp_enter(p, "for (int64_t c0 = 0; c0 < " I64 "; c0 += " I64 ")", e,
                 chunk);
        kp_line(p,
                "const int64_t n = " I64 " - c0 < " I64 " ? " I64 " - c0 : " I64
                ";",
                e, chunk, e, chunk);
    } else {
        kp_line(p, "{");
        p->depth++;
        kp_line(p, "const int64_t c0 = 0, n = " I64 ";", e);
    }
    put_chunk(p, sweep, fold, nfold, loop);
    kp_leave(p);
    close_outer_cols(p);
}

static void put_store_loop(KPrint *p, int sweep, const char *from,
                           const char *to) {
    ivdep(p);
    kp_enter(p, "for (int64_t i%d = %s; i%d < %s; i%d++)", p->k->vec, from,
             p->k->vec, to, p->k->vec);
    put_body(p, sweep);
    put_stores(p, &p->sweeps.data[sweep]);
    kp_leave(p);
}

static void put_sweep(KPrint *p, int sweep, const char *from, const char *to) {
    const KSweep *s = &p->sweeps.data[sweep];
    int *fold = NEW_ARRAY(p->arena, int, s->roots.len + 1);
    int nfold = folds(p, s, false, fold);
    int64_t cut[MAX_CUTS];
    if (nfold) {
        put_fold_sweep(p, sweep, fold, nfold);
        return;
    }
    int ncut = kernel_cuts(p->k, cut);
    open_outer_cols(p);
    if (!ncut) put_store_loop(p, sweep, from, to);
    for (int j = 0; ncut && j <= ncut; j++) { /* parts with constant guards */
        int64_t lo = j ? cut[j - 1] : 0;
        int64_t hi = j < ncut ? cut[j] : extent(p, p->k->vec);
        kernel_known(p->k, lo, hi, p->known);
        put_store_loop(p, sweep, arena_printf(p->arena, I64, lo),
                       arena_printf(p->arena, I64, hi));
    }
    kernel_known(p->k, 0, 0, p->known);
    close_outer_cols(p);
}

/* ---- form cols ----------------------------------------------------------- */

/* A unit is a row and one of its nb blocks. */
static void put_unit(KPrint *p, int64_t nb) {
    if (nb == 1)
        kp_line(p, "const int64_t row = u, c0 = 0;");
    else if (p->nrow - (p->k->form == KF_ROWS) == 0)
        kp_line(p, "const int64_t row = 0, c0 = u * " I64 ";", block_step(p));
    else
        kp_line(p,
                "const int64_t row = u / " I64 ", c0 = u %% " I64 " * " I64 ";",
                nb, nb, block_step(p));
    kp_line(p, "(void)row;");
}

/* Accumulators; arrays s<id> of what is kept for the row and r<id> for the
   rows of a block. */
static void put_declarations(KPrint *p) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->keep == KEEP_BLOCK)
            kp_line(p, "%s r%d[" I64 "];", ktype_c[in->type], id,
                    block_step(p));
        else if (in->op == K_REDUCE)
            kp_line(p, "%s v%d = %s;", ktype_c[in->compute], id,
                    fold_start(in->code, in->compute));
    }
    for (int id = 1; id < p->k->insts.len; id++)
        if (keeps(p, id, KEEP_ROW))
            kp_line(p, "%s s%d[" I64 "];", ktype_c[kinst_at(p->k, id)->type],
                    id, p->ncols);
}

static void put_cols(KPrint *p) {
    const Kernel *k = p->k;
    char to[32] = "";
    const char *from = "0";
    kp_enter(p, "for (int64_t u = lo; u < hi; u++)");
    if (k->vec >= 0) snprintf(to, sizeof to, I64, extent(p, k->vec));
    if (block_step(p)) {
        int64_t e = extent(p, k->vec),
                nb = (e + block_step(p) - 1) / block_step(p);
        put_unit(p, nb);
        kp_line(p,
                "const int64_t c1 = c0 + " I64 " < " I64 " ? c0 + " I64
                " : " I64 ";",
                block_step(p), e, block_step(p), e);
        from = "c0";
        strcpy(to, "c1");
    }
    kp_dims(p, block_step(p) ? "row" : "u", p->rows, p->nrow, NULL);
    put_declarations(p);
    int done = 0, last = kernel_depth(p->k);
    for (int s = 0; s < p->sweeps.len; s++) {
        for (; done <= p->sweeps.data[s].depth; done++) kp_row_insts(p, done);
        put_sweep(p, s, from, to);
    }
    for (; done <= last; done++) kp_row_insts(p, done);
    kp_stores(p, false);
    kp_leave(p);
}

static void put_flat(KPrint *p) {
    int64_t b = block_step(p);
    kp_line(p, "const int64_t c0 = lo * " I64 ";", b);
    kp_line(p,
            "const int64_t c1 = hi * " I64 " < par[0] ? hi * " I64 " : par[0];",
            b, b);
    kp_row_insts(p, 0);
    for (int s = 0; s < p->sweeps.len; s++) put_sweep(p, s, "c0", "c1");
}

/* ---- form rows ----------------------------------------------------------- */

static void want_row(const KPrint *p, bool *want, int id) {
    if (!id || want[id]) return;
    const KInst *in = kinst_at(p->k, id);
    if (!in->full && in->op != K_CONST) want[id] = true;
}

static void want_operands(const KPrint *p, bool *want, const KInst *in) {
    for (int j = 0; j < 3; j++) want_row(p, want, in->in[j]);
    want_row(p, want, in->guard);
    want_row(p, want, in->at.inst);
}

/* Row values that a loop body reads, from their arrays or anew. */
static void put_wanted(KPrint *p, const bool *want) {
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!want[id]) continue;
        if (keeps(p, id, KEEP_BLOCK))
            kp_line(p, "const %s v%d = r%d[j];",
                    ktype_c[kinst_at(p->k, id)->type], id, id);
        else
            kp_inst(p, id, NULL);
    }
}

static void open_rows(KPrint *p) {
    ivdep(p);
    kp_enter(p, "for (int64_t j = 0; j < n; j++)");
    kp_line(p, "const int64_t i%d = c0 + j;", p->k->vec);
    kp_line(p, "(void)i%d;", p->k->vec);
}

/* Row instructions of one depth, and with `stores` the row stores. */
static void put_row_section(KPrint *p, int depth, bool stores) {
    bool *want = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    bool *here = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    bool any = false;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        here[id] = kinst_is_row_value(in) && in->depth == depth &&
                   keeps(p, id, KEEP_BLOCK) && !stores;
        bool store = stores && in->op == K_STORE && !in->full;
        if (here[id] || store) want_operands(p, want, in);
        any |= here[id] || store;
    }
    if (!any) return;
    open_rows(p);
    for (int id = 1; id < p->k->insts.len; id++) want[id] &= !here[id];
    put_wanted(p, want);
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!here[id]) continue;
        kp_inst(p, id, NULL);
        kp_line(p, "r%d[j] = v%d;", id, id);
    }
    if (stores) kp_stores(p, false);
    kp_leave(p);
}

static void put_start(KPrint *p, char prefix, const int *fold, int nfold) {
    for (int j = 0; j < nfold; j++) {
        const KInst *r = kinst_at(p->k, fold[j]);
        kp_line(p, "for (int64_t j = 0; j < n; j++) %c%d[j] = %s;", prefix,
                fold[j], fold_start(r->code, r->compute));
    }
}

static void put_accumulate(KPrint *p, char to, int id, const char *value) {
    const KInst *r = kinst_at(p->k, id);
    char acc[32];
    snprintf(acc, sizeof acc, "%c%d[j]", to, id);
    kp_text(p, "%s = ", acc);
    sb_put_fold(p->sb, r->code, r->compute, acc, value);
    sb_puts(p->sb, ";\n");
}

/* The loop over the rows of the block for one column. */
static void put_rows_body(KPrint *p, const KSweep *s, const int *fold,
                          int nfold, char acc) {
    bool *need = kernel_need(p->k, s, NULL, p->arena);
    bool *want = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) want_operands(p, want, kinst_at(p->k, id));
    for (int j = 0; j < s->roots.len; j++)
        want_operands(p, want, kinst_at(p->k, s->roots.data[j]));
    open_rows(p);
    put_wanted(p, want);
    for (int id = 1; id < p->k->insts.len; id++)
        if (need[id]) kp_inst(p, id, NULL);
    for (int j = 0; j < nfold; j++) {
        StrBuf value = {0};
        sb_put_operand(&value, p->k, kinst_at(p->k, fold[j])->in[0]);
        put_accumulate(p, acc, fold[j], value.data);
        sb_free(&value);
    }
    put_stores(p, s);
    kp_leave(p);
}

static void put_rows_sweep(KPrint *p, const KSweep *s) {
    int *fold = NEW_ARRAY(p->arena, int, s->roots.len + 1);
    int nfold = folds(p, s, false, fold), last = p->cols[p->ncol - 1];
    int64_t e = extent(p, last), run = nfold ? lanes_step(p) : 0;
    put_start(p, 'r', fold, nfold);
    open_outer_cols(p);
    if (run) {
        kp_enter(p, "for (int64_t p0 = 0; p0 < " I64 "; p0 += " I64 ")", e,
                 run);
        kp_line(p,
                "const int64_t p1 = p0 + " I64 " < " I64 " ? p0 + " I64
                " : " I64 ";",
                run, e, run, e);
        for (int j = 0; j < nfold; j++)
            kp_line(p, "%s q%d[" I64 "];",
                    ktype_c[kinst_at(p->k, fold[j])->compute], fold[j],
                    block_step(p));
        put_start(p, 'q', fold, nfold);
        kp_enter(p, "for (int64_t i%d = p0; i%d < p1; i%d++)", last, last,
                 last);
    } else {
        kp_enter(p, "for (int64_t i%d = 0; i%d < " I64 "; i%d++)", last, last,
                 e, last);
    }
    put_rows_body(p, s, fold, nfold, run ? 'q' : 'r');
    kp_leave(p);
    if (run) {
        ivdep(p);
        kp_enter(p, "for (int64_t j = 0; j < n; j++)");
        for (int j = 0; j < nfold; j++) {
            char part[32];
            snprintf(part, sizeof part, "q%d[j]", fold[j]);
            put_accumulate(p, 'r', fold[j], part);
        }
        kp_leave(p);
        kp_leave(p);
    }
    close_outer_cols(p);
}

static void put_rows(KPrint *p) {
    const Kernel *k = p->k;
    int others[MAX_RANK], nother = 0;
    int64_t e = extent(p, k->vec), nb = (e + block_step(p) - 1) / block_step(p);
    for (int j = 0; j < p->nrow; j++)
        if (p->rows[j] != k->vec) others[nother++] = p->rows[j];
    kp_enter(p, "for (int64_t u = lo; u < hi; u++)");
    put_unit(p, nb);
    if (e % block_step(p) == 0)
        kp_line(p, "const int64_t n = " I64 ";", block_step(p));
    else
        kp_line(p,
                "const int64_t n = " I64 " - c0 < " I64 " ? " I64 " - c0 : " I64
                ";",
                e, block_step(p), e, block_step(p));
    kp_dims(p, "row", others, nother, NULL);
    put_declarations(p);
    int done = 0, last = kernel_depth(p->k);
    for (int s = 0; s < p->sweeps.len; s++) {
        for (; done <= p->sweeps.data[s].depth; done++)
            put_row_section(p, done, false);
        put_rows_sweep(p, &p->sweeps.data[s]);
    }
    for (; done <= last; done++) put_row_section(p, done, false);
    put_row_section(p, last, true);
    kp_leave(p);
}

/* ---- epilogues ----------------------------------------------------------- */

static void put_epilogue(KPrint *p) {
    const Kernel *k = p->k;
    kp_enter(p, "for (int64_t r = 0; r < rows; r++, acc += ld)");
    if (k->tile_rows)
        kp_line(p, "const int64_t u = batch * " I64 " + row + r;",
                k->tile_rows);
    else
        kp_line(p, "const int64_t u = row + r;");
    kp_line(p, "(void)u;");
    kp_dims(p, "u", p->rows, p->nrow, NULL);
    kp_row_insts(p, 0);
    if (p->ncol == 1) {
        put_sweep(p, 0, "col", "col + cols");
    } else {
        ivdep(p);
        kp_enter(p, "for (int64_t c = col; c < col + cols; c++)");
        kp_dims(p, "c", p->cols, p->ncol, NULL);
        put_body(p, 0);
        put_stores(p, &p->sweeps.data[0]);
        kp_leave(p);
    }
    kp_leave(p);
}

/* ---- functions ----------------------------------------------------------- */

static void put_buffers(KPrint *p) {
    for (int b = 0; b < p->k->bufs.len; b++) {
        const KBuf *buf = &p->k->bufs.data[b];
        const char *c = dtype_info[buf->dtype].c;
        kp_line(p, "%s%s *const b%d = buf[%d];", buf->written ? "" : "const ",
                c, b, b);
    }
    if (p->k->bufs.len == 0) kp_line(p, "(void)buf;");
    if (p->k->form != KF_FLAT) kp_line(p, "(void)par;");
}

static void put_head(KPrint *p, const char *prefix) {
    if (p->k->form == KF_EPILOGUE) {
        sb_printf(p->sb,
                  "void %se%d(void *const *buf, const int64_t *par,\n"
                  "    const float *acc, int64_t ld, int64_t batch, int64_t "
                  "row,\n    int64_t col, int64_t rows, int64_t cols)\n{\n",
                  prefix, p->k->index);
        p->depth = 1;
        kp_line(p, "(void)batch, (void)row;");
        return;
    }
    sb_printf(p->sb,
              "void %sk%d(void *const *buf, const int64_t *par, int64_t lo,\n"
              "    int64_t hi)\n{\n",
              prefix, p->k->index);
    p->depth = 1;
}

static void print_kernel(const Kernel *k, StrBuf *sb, const char *prefix) {
    KPrint p = kp_begin(k, sb);
    p.wide = true;
    p.acc = p.ncol == 1 ? arena_printf(p.arena, "acc[i%d - col]", k->vec)
                        : "acc[c - col]";
    sb_put_kernel_comment(sb, k);
    put_head(&p, prefix);
    put_buffers(&p);
    switch (k->form) {
    case KF_FLAT: put_flat(&p); break;
    case KF_COLS: put_cols(&p); break;
    case KF_ROWS: put_rows(&p); break;
    case KF_EPILOGUE: put_epilogue(&p); break;
    }
    sb_puts(sb, "}\n\n");
    kp_end(&p);
}

void print_c_kernels(const KernelSet *ks, StrBuf *sb, const char *prefix) {
    sb_puts(sb, "#include \"kmath.h\"\n\n");
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++)
            print_kernel(kernel_set_get(ks, e, i), sb, prefix);
}
