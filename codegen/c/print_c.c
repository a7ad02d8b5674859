/* print_c.c: kernels as C that gcc and clang vectorise.

   Every kernel is one function: the threads' loops are its loop over units
   [lo, hi), and in it every sweep is a nest of the others, whose innermost loop
   is marked ivdep: outputs may lie over inputs of the same index, so nothing is
   `restrict`, and nothing else is shared between iterations.
     flat, cols   the innermost loop runs over columns.  A reduction writes its
                  operand to a small array, piece by piece, and a helper of
                  kmath.h folds the array in 16 fixed lanes.  Costly values
                  that a later sweep needs again are kept for the row.
     rows         the innermost loop runs over neighbouring rows, with an
                  accumulator for each; long sums are cut in runs, each summed
                  on its own, for accuracy.
     epilogue     the rows and columns of a tile.
   Flags this text is meant for: KERNEL_CFLAGS in codegen.h.                 */
#include "codegen/kernel/print.h"

static int64_t extent(const KPrint *p, int d) { return p->k->dim[d].extent; }

static bool keeps(const KPrint *p, int id, KKeep keep) {
    return kinst_at(p->k, id)->keep == keep;
}

static bool is_rows(const KPrint *p) { return p->k->form == KF_ROWS; }

static const char *compute_c(const KPrint *p, int id) {
    return ktype_c[kinst_at(p->k, id)->compute];
}

/* n, of a piece of at most `step` from c0 on. */
static void put_length(KPrint *p, int64_t e, int64_t step) {
    kp_line(
        p, "const int64_t n = " I64 " - c0 < " I64 " ? " I64 " - c0 : " I64 ";",
        e, step, e, step);
}

/* c1 or p1, its end. */
static void put_end(KPrint *p, char c, int64_t e, int64_t step) {
    kp_line(p,
            "const int64_t %c1 = %c0 + " I64 " < " I64 " ? %c0 + " I64 " : " I64
            ";",
            c, c, step, e, c, step, e);
}

/* ---- values that are kept ------------------------------------------------ */

/* v<id> from or to its place in the row: s<id>. */
static void put_kept(KPrint *p, int id, bool load) {
    int64_t stride = 1;
    StrBuf at = {0};
    for (int j = p->ncol - 1; j >= 0; j--) {
        if (j < p->ncol - 1) sb_puts(&at, " + ");
        if (stride != 1) sb_printf(&at, I64 " * ", stride);
        sb_printf(&at, "i%d", p->cols[j]);
        stride *= extent(p, p->cols[j]);
    }
    if (load)
        kp_line(p, "const %s v%d = s%d[%s];", ktype_c[kinst_at(p->k, id)->type],
                id, id, at.data);
    else
        kp_line(p, "s%d[%s] = v%d;", id, at.data, id);
    sb_free(&at);
}

/* Form rows: the row values that instructions `of` read and that are not among
   them, from the arrays of the block or anew. */
static void put_row_operands(KPrint *p, const bool *of) {
    bool *want = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        for (int j = 0; of[id] && j < KINST_READS; j++) {
            int x = kinst_read(in, j);
            if (x && !of[x] && !kinst_at(p->k, x)->full) want[x] = true;
        }
    }
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!want[id]) continue;
        if (keeps(p, id, KEEP_BLOCK))
            kp_line(p, "const %s v%d = r%d[j];",
                    ktype_c[kinst_at(p->k, id)->type], id, id);
        else
            kp_inst(p, id, NULL);
    }
}

/* ---- folds --------------------------------------------------------------- */

/* The operand is kept for a later sweep: that array is folded. */
static bool folds_kept(const KPrint *p, const KInst *r) {
    const KInst *x = kinst_at(p->k, r->in[0]);
    return x->keep == KEEP_ROW && p->ncol == 1 && x->type == r->compute;
}

/* The operand is written to t<id>. */
static bool folds_array(const KPrint *p, int id) {
    return !keeps(p, id, KEEP_BUFFER) && !folds_kept(p, kinst_at(p->k, id));
}

/* v<id>, of n columns from c0 on. */
static void put_fold_call(KPrint *p, int id) {
    static const char *const name[] = {[FOLD_SUM] = "SUM",
                                       [FOLD_PROD] = "PROD",
                                       [FOLD_MAX] = "MAX",
                                       [FOLD_MIN] = "MIN"};
    const KInst *r = kinst_at(p->k, id);
    kp_text(p, "v%d = FOLD_%s%s(v%d, ", id, name[op_info[r->code].fold],
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

/* Accumulators of neighbouring rows: r<id>, of a run q<id>. */
static void put_start(const Nest *n, char acc) {
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        const KInst *r = kinst_at(n->p->k, id);
        kp_line(n->p, "for (int64_t j = 0; j < n; j++) %c%d[j] = %s;", acc, id,
                fold_start(r->code, r->compute));
    }
}

static void put_accumulate(KPrint *p, char acc, int id, const char *value) {
    const KInst *r = kinst_at(p->k, id);
    const char *to = arena_printf(p->arena, "%c%d[j]", acc, id);
    kp_text(p, "%s = ", to);
    sb_put_fold(p->sb, r->code, r->compute, to, value);
    sb_puts(p->sb, ";\n");
}

/* ---- the nest of a sweep ------------------------------------------------- */

static void ivdep(KPrint *p) { sb_puts(p->sb, "#pragma GCC ivdep\n"); }

/* j counts from c0 on, in arrays. */
static void enter_neighbours(KPrint *p, const char *from, const char *to) {
    ivdep(p);
    kp_enter(p, "for (int64_t j = %s; j < %s; j++)", from, to);
    kp_line(p, "const int64_t i%d = c0 + j;", p->k->vec);
    kp_line(p, "(void)i%d;", p->k->vec);
}

/* Over all of a dim or the piece at hand, or the rows or columns of a tile. */
static void enter_loop(const Nest *n, int over) {
    KPrint *p = n->p;
    if (over == LOOP_ROWS) {
        kp_enter(p, "for (int64_t r = 0; r < rows; r++, acc += ld)");
        kp_text(p, "const int64_t u = ");
        if (p->k->tile_rows)
            sb_printf(p->sb, "batch * " I64 " + ", p->k->tile_rows);
        sb_puts(p->sb, "row + r;\n");
        kp_line(p, "(void)u;");
        kp_dims(p, "u", p->rows, p->nrow, NULL);
        kp_row_insts(p, 0);
    } else if (over == LOOP_COLS) {
        kp_enter(p, "for (int64_t c = col; c < col + cols; c++)");
        kp_dims(p, "c", p->cols, p->ncol, NULL);
    } else {
        const char *all = arena_printf(p->arena, I64, extent(p, over));
        bool piece = over == n->cut;
        kp_enter(p, "for (int64_t i%d = %s; i%d < %s; i%d++)", over,
                 piece ? n->from : "0", over, piece ? n->to : all, over);
    }
}

/* What the sweep computes of one element. */
static void put_element(Nest *n) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    const bool *need = kernel_need(p->k, s, held, p->arena);
    if (is_rows(p)) {
        bool *of = arena_dup(p->arena, need, (size_t)len * sizeof *of);
        for (int j = 0; j < s->roots.len; j++) of[s->roots.data[j]] = true;
        put_row_operands(p, of);
    }
    for (int id = 1; id < len; id++) {
        if (!need[id]) continue;
        bool kept = held && held[id];
        if (!kept) kp_inst(p, id, NULL);
        if (keeps(p, id, KEEP_ROW)) put_kept(p, id, kept);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        StrBuf operand = {0};
        sb_put_operand(&operand, p->k, kinst_at(p->k, id)->in[0]);
        if (is_rows(p))
            put_accumulate(p, p->lanes ? 'q' : 'r', id, operand.data);
        else if (folds_array(p, id))
            kp_line(p, "t%d[j] = %s;", id, operand.data);
        sb_free(&operand);
    }
    if (s->roots.len > s->nfold) kp_stores(p, true);
}

/* ---- fp16 ---------------------------------------------------------------- */

/* Compilers vectorise no conversion of fp16: what the innermost loop walks one
   by one is widened and narrowed by calls, in arrays h<id> of a piece. */
enum { PIECE = 128, LEAST_PIECE = 16 };

static bool is_walked(const KPrint *p, const KInst *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && in->full &&
           p->k->bufs.data[in->buf].dtype == DT_F16 &&
           in->at.k[p->k->vec] == 1 && !(is_rows(p) && in->at.inst) &&
           !(in->at.inst && kinst_at(p->k, in->at.inst)->full) &&
           (!in->guard || p->known[in->guard] == 1);
}

/* The rounding of a value that is only stored is left to the store. */
static void leave_rounding(KPrint *p, int store) {
    int x = kinst_at(p->k, store)->in[0];
    const KInst *r = kinst_at(p->k, x);
    bool left = r->op == K_ROUND && r->dtype == DT_F16;
    for (int id = 1; id < p->k->insts.len; id++)
        for (int j = 0; j < KINST_READS; j++)
            left &= kinst_read(kinst_at(p->k, id), j) != x || p->piece[id];
    p->piece[x] = left;
}

/* Fills p->piece; false: the sweep walks no fp16. */
static bool find_pieces(const Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    const bool *need = kernel_need(p->k, s, held, p->arena);
    bool any = false, beside = is_rows(p) || s->nfold;
    p->piece = NEW_ARRAY(p->arena, bool, len);
    if (p->k->vec < 0 || extent(p, p->k->vec) < LEAST_PIECE ||
        (!beside && l->over != p->k->vec))
        return false;
    for (int id = 1; id < len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool here = in->op == K_STORE ? s->roots.len > s->nfold : need[id];
        p->piece[id] = here && is_walked(p, in);
        any |= p->piece[id];
    }
    for (int id = 1; id < len; id++)
        if (p->piece[id] && kinst_at(p->k, id)->op == K_STORE)
            leave_rounding(p, id);
    p->piece_at =
        beside ? "j - w0" : arena_printf(p->arena, "i%d - w0", l->over);
    return any;
}

/* Calls that move the piece from w0 on between arrays and buffers. */
static void move_pieces(const Nest *n, KOp op) {
    KPrint *p = n->p;
    const char *at = is_rows(p) || n->s->nfold ? "(c0 + w0)" : "w0";
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!p->piece[id] || in->op != op) continue;
        StrBuf place = {0};
        sb_printf(&place, "b%d + (", in->buf);
        sb_put_index(&place, p->k, &in->at, at);
        if (op == K_LOAD)
            kp_line(p, "WIDEN_F16(h%d, %s), w1 - w0);", id, place.data);
        else
            kp_line(p, "NARROW_F16(%s), h%d, w1 - w0);", place.data, id);
        sb_free(&place);
    }
}

/* Over [from, to) of the innermost loop. */
static void put_range(Nest *n, const KLoop *l, const char *from,
                      const char *to) {
    KPrint *p = n->p;
    Nest in = *n;
    bool pieces = find_pieces(n, l);
    if (pieces) {
        kp_enter(p, "for (int64_t w0 = %s, w1; w0 < %s; w0 = w1)", from, to);
        kp_line(p, "w1 = w0 + %d < %s ? w0 + %d : %s;", PIECE, to, PIECE, to);
        for (int id = 1; id < p->k->insts.len; id++)
            if (p->piece[id] && kinst_at(p->k, id)->op != K_ROUND)
                kp_line(p, "float h%d[%d];", id, PIECE);
        move_pieces(n, K_LOAD);
        from = "w0", to = "w1";
    }
    if (is_rows(p) || n->s->nfold) {
        enter_neighbours(p, from, to);
    } else {
        in.cut = l->over, in.from = from, in.to = to;
        ivdep(p);
        enter_loop(&in, l->over);
    }
    kp_nest(&in);
    kp_leave(p);
    if (pieces) {
        move_pieces(n, K_STORE);
        kp_leave(p);
    }
    p->piece = NULL;
}

/* Over columns in parts in which guards are constant, if that helps. */
static void put_vector(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t cut[MAX_CUTS + 1];
    bool beside = is_rows(p) || n->s->nfold;
    int ncut = n->s->nfold ? 0 : kernel_cuts(p->k, cut);
    if (!ncut) {
        bool all = l->over != n->cut;
        put_range(n, l, beside || all ? "0" : n->from,
                  beside ? "n"
                  : all  ? arena_printf(p->arena, I64, l->extent)
                         : n->to);
        return;
    }
    cut[ncut] = extent(p, l->over);
    for (int j = 0; j <= ncut; j++) {
        int64_t from = j ? cut[j - 1] : 0;
        kernel_known(p->k, from, cut[j], p->known);
        put_range(n, l, arena_printf(p->arena, I64, from),
                  arena_printf(p->arena, I64, cut[j]));
    }
    kernel_known(p->k, 0, 0, p->known);
}

/* Columns piece by piece, each folded when it is computed. */
static void put_pieces(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t e = l->extent, step = l->step;
    bool computes = n->s->roots.len > n->s->nfold;
    if (e > step) {
        kp_enter(p, "for (int64_t c0 = 0; c0 < " I64 "; c0 += " I64 ")", e,
                 step);
        put_length(p, e, step);
    } else {
        kp_line(p, "{");
        p->depth++;
        kp_line(p, "const int64_t c0 = 0, n = " I64 ";", e);
    }
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        computes |= !keeps(p, id, KEEP_BUFFER);
        if (folds_array(p, id))
            kp_line(p, "%s t%d[" I64 "];", compute_c(p, id), id,
                    e == 0     ? 1
                    : e < step ? e
                               : step);
    }
    if (computes) kp_nest(n);
    for (int j = 0; j < n->s->nfold; j++) put_fold_call(p, n->s->roots.data[j]);
    kp_leave(p);
}

/* Runs of columns, each summed on its own. */
static void put_runs(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t e = l->extent, step = l->step;
    kp_enter(p, "for (int64_t p0 = 0; p0 < " I64 "; p0 += " I64 ")", e, step);
    put_end(p, 'p', e, step);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        kp_line(p, "%s q%d[" I64 "];", compute_c(p, id), id, p->threads->step);
    }
    put_start(n, 'q');
    n->cut = l->over, n->from = "p0", n->to = "p1";
    kp_nest(n);
    ivdep(p);
    kp_enter(p, "for (int64_t j = 0; j < n; j++)");
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        put_accumulate(p, 'r', id, arena_printf(p->arena, "q%d[j]", id));
    }
    kp_leave(p);
    kp_leave(p);
}

static void put_lanes(Nest *n, const KLoop *l) {
    if (!n->s->nfold)
        kp_nest(n);
    else if (is_rows(n->p))
        put_runs(n, l);
    else
        put_pieces(n, l);
}

static void put_serial(Nest *n, const KLoop *l) {
    enter_loop(n, l->over);
    kp_nest(n);
    kp_leave(n->p);
}

static const Spelling c_loops = {.element = put_element,
                                 .loop = {[LOOP_SERIAL] = put_serial,
                                          [LOOP_VECTOR] = put_vector,
                                          [LOOP_THREAD] = kp_loop_outside,
                                          [LOOP_LANES] = put_lanes}};

/* ---- units --------------------------------------------------------------- */

/* What threads share out of a row, or neighbouring rows; NULL: whole rows. */
static const KLoop *shares(const KPrint *p) {
    return p->threads->over == LOOP_ROWS ? NULL : p->threads;
}

static void put_sweep(KPrint *p, const KSweep *s) {
    Nest n = {p, s, &c_loops, 0, -1, "c0", "c1"};
    if (!is_rows(p) && shares(p)) n.cut = p->k->vec;
    if (is_rows(p)) put_start(&n, 'r');
    kp_nest(&n);
}

/* Row values of one depth; -1: the row stores. */
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
    enter_neighbours(p, "0", "n");
    put_row_operands(p, of);
    for (int id = 1; depth >= 0 && id < p->k->insts.len; id++) {
        if (!of[id]) continue;
        kp_inst(p, id, NULL);
        kp_line(p, "r%d[j] = v%d;", id, id);
    }
    if (depth < 0) kp_stores(p, false);
    kp_leave(p);
}

/* The unit's row and, where threads share dim vec, its part of it: [c0, c1) or
   n neighbouring rows from c0 on. */
static void put_unit(KPrint *p) {
    const KLoop *l = shares(p);
    if (l) {
        int64_t e = l->extent, step = l->step, nb = loop_steps(l);
        if (nb == 1)
            kp_line(p, "const int64_t row = u, c0 = 0;");
        else if (p->nrow == 0)
            kp_line(p, "const int64_t row = 0, c0 = u * " I64 ";", step);
        else
            kp_line(p,
                    "const int64_t row = u / " I64 ", c0 = u %% " I64 " * " I64
                    ";",
                    nb, nb, step);
        kp_line(p, "(void)row;");
        if (!is_rows(p))
            put_end(p, 'c', e, step);
        else if (e % step == 0)
            kp_line(p, "const int64_t n = " I64 ";", step);
        else
            put_length(p, e, step);
    }
    kp_dims(p, l ? "row" : "u", p->rows, p->nrow, NULL);
}

/* Accumulators; arrays s<id> of what is kept for the row and r<id> for the
   rows of a block. */
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
        if (keeps(p, id, KEEP_ROW))
            kp_line(p, "%s s%d[" I64 "];", ktype_c[kinst_at(p->k, id)->type],
                    id, p->ncols);
}

static void put_body(KPrint *p) {
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
    case KF_COLS:
    case KF_ROWS:
        kp_enter(p, "for (int64_t u = lo; u < hi; u++)");
        put_unit(p);
        put_declarations(p);
        kp_sweeps(p, is_rows(p) ? put_values_of_rows : kp_row_insts, put_sweep);
        if (is_rows(p))
            put_values_of_rows(p, -1);
        else
            kp_stores(p, false);
        kp_leave(p);
        break;
    }
}

/* ---- functions ----------------------------------------------------------- */

static void print_kernel(const Kernel *k, StrBuf *sb, const char *prefix) {
    KPrint p = kp_begin(k, sb);
    p.wide = true;
    p.acc = p.ncol == 1 ? arena_printf(p.arena, "acc[i%d - col]", k->vec)
                        : "acc[c - col]";
    p.depth = 1;
    sb_put_kernel_comment(sb, k);
    if (k->form == KF_EPILOGUE)
        sb_printf(sb,
                  "void %se%d(void *const *buf, const float *acc, int64_t ld,\n"
                  "    int64_t batch, int64_t row, int64_t col, int64_t rows,\n"
                  "    int64_t cols)\n{\n"
                  "    (void)batch, (void)row;\n",
                  prefix, k->index);
    else
        sb_printf(sb,
                  "void %sk%d(void *const *buf, const int64_t *par, int64_t "
                  "lo,\n    int64_t hi)\n{\n",
                  prefix, k->index);
    for (int b = 0; b < k->bufs.len; b++)
        kp_line(&p, "%s%s *const b%d = buf[%d];",
                k->bufs.data[b].written ? "" : "const ",
                dtype_info[k->bufs.data[b].dtype].c, b, b);
    if (k->bufs.len == 0) kp_line(&p, "(void)buf;");
    if (k->form != KF_FLAT && k->form != KF_EPILOGUE) kp_line(&p, "(void)par;");
    put_body(&p);
    sb_puts(sb, "}\n\n");
    kp_end(&p);
}

void print_c_kernels(const KernelSet *ks, StrBuf *sb, const char *prefix,
                     bool scalars) {
    sb_puts(sb, "#include \"kmath.h\"\n\n");
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++)
            if (scalars || !kernel_is_scalar(kernel_set_get(ks, e, i)))
                print_kernel(kernel_set_get(ks, e, i), sb, prefix);
}
