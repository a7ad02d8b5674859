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
   decide how a loop is vectorised or unrolled) are compiled once, as a function
   with these sizes as parameters. Compiler flags: KERNEL_CFLAGS in
   codegen.h. */
#include "codegen/kernel/print.h"

#include <string.h>

/* BLOCK: the number of lanes of FOLD_SUM. */
enum { LEAST_LENGTH = 32, BLOCK = 16 };

static int64_t extent(const KPrint *p, int d) { return p->k->dim[d].extent; }

static bool keeps(const KPrint *p, int id, KKeep keep) {
    return kinst_at(p->k, id)->keep == keep;
}

static bool is_c_rows(const KPrint *p) { return p->k->form == KF_ROWS; }

static bool takes_long(const KPrint *p) {
    for (int id = 1; id < p->k->insts.len; id++)
        if (kinst_is_long(kinst_at(p->k, id))) return true;
    return false;
}

static const char *size_text(KPrint *p, int64_t n) {
    StrBuf sb = {0};
    sb_put_size(&sb, p->k, 'i', n);
    const char *text = arena_printf(p->arena, "%s", sb.data);
    sb_free(&sb);
    return text;
}

/* A loop's length as text: a small one as a number, others as a size that
   kernels may share. */
static const char *length_text(KPrint *p, int64_t n) {
    return n < LEAST_LENGTH ? arena_printf(p->arena, I64, n) : size_text(p, n);
}

static const char *compute_c(const KPrint *p, int id) {
    return ktype_c[kinst_at(p->k, id)->compute];
}

/* The length of a piece that begins at c0: `step`, or less at the end. */
static void put_length(KPrint *p, int64_t e, int64_t step) {
    const char *end = size_text(p, e);
    kp_line(p, "const int64_t n = %s - c0 < " I64 " ? %s - c0 : " I64 ";", end,
            step, end, step);
}

/* c1 or p1, its end. */
static void put_end(KPrint *p, char c, int64_t e, int64_t step) {
    const char *end = size_text(p, e);
    kp_line(p, "const int64_t %c1 = %c0 + " I64 " < %s ? %c0 + " I64 " : %s;",
            c, c, step, end, c, step, end);
}

static void ivdep(KPrint *p) { sb_puts(p->sb, "#pragma GCC ivdep\n"); }

/* ---- values that are kept ------------------------------------------------ */

/* Copies v<id> from or to its element s<id> of the row. */
static void put_kept(KPrint *p, int id, bool load) {
    int64_t stride = 1;
    StrBuf at = {0};
    for (int j = p->ncol - 1; j >= 0; j--) {
        if (j < p->ncol - 1) sb_puts(&at, " + ");
        if (stride != 1) sb_printf(&at, "%s * ", size_text(p, stride));
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

/* Copies v<id> from or to its element t<id> of the tile. */
static void put_in_tile(KPrint *p, int id, bool load) {
    const char *at =
        arena_printf(p->arena, "t%d[(i%d - y0) * " I64 " + i%d - c0]", id,
                     p->side, p->threads->step, p->k->vec);
    if (load)
        kp_line(p, "const %s v%d = %s;", ktype_c[kinst_at(p->k, id)->type], id,
                at);
    else
        kp_line(p, "%s = v%d;", at, id);
}

/* t<id>: the elements of the tile that a KEEP_TILE load reads, one row of
   dim side after the other; they are read in memory order. */
static void put_tile_loads(KPrint *p) {
    int x = p->k->vec, y = p->side;
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!keeps(p, id, KEEP_TILE)) continue;
        int64_t rows = kernel_loop(p->k, LOOP_THREAD, y)->step;
        kp_line(p, "%s t%d[" I64 "];", ktype_c[kinst_at(p->k, id)->type], id,
                rows * p->threads->step);
        kp_enter(p, "for (int64_t i%d = c0; i%d < c1; i%d++)", x, x, x);
        ivdep(p);
        kp_enter(p, "for (int64_t i%d = y0; i%d < y1; i%d++)", y, y, y);
        kp_inst(p, id, NULL);
        put_in_tile(p, id, false);
        kp_leave(p);
        kp_leave(p);
    }
}

/* Form rows: loads or recomputes the row values that instructions `of` read
   and do not compute themselves. */
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

/* True if a sweep adds up its sums in lanes t<id>, with the same bits as
   FOLD_SUM. */
static bool adds_lanes(const KPrint *p, const KSweep *s) {
    bool any = false;
    if (is_c_rows(p) || p->k->vec < 0 || extent(p, p->k->vec) < LEAST_LENGTH ||
        takes_long(p))
        return false;
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        if (!folds_array(p, id)) continue;
        const KInst *r = kinst_at(p->k, id);
        if (op_info[r->code].fold != FOLD_SUM ||
            (r->compute != KT_F32 && r->compute != KT_F64))
            return false;
        any = true;
    }
    return any;
}

/* Columns after the blocks of a piece; -1 if their number differs between
   pieces. */
static int64_t left_over(const KPrint *p) {
    int64_t e = p->lanes->extent, rest = e % BLOCK;
    return rest && (e > p->lanes->step || p->lanes->step % BLOCK) ? -1 : rest;
}

/* The n elements of v<id> from column c0 on. */
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

static void put_accumulate(KPrint *p, char acc, const char *at, int id,
                           const char *value) {
    const KInst *r = kinst_at(p->k, id);
    const char *to = arena_printf(p->arena, "%c%d[%s]", acc, id, at);
    kp_text(p, "%s = ", to);
    sb_put_fold(p->sb, r->code, r->compute, to, value);
    sb_puts(p->sb, ";\n");
}

/* ---- the nest of a sweep ------------------------------------------------- */

/* j counts from c0 on, in arrays. */
static void enter_neighbours(KPrint *p, const char *from, const char *to) {
    ivdep(p);
    kp_enter(p, "for (int64_t j = %s; j < %s; j++)", from, to);
    kp_line(p, "const int64_t i%d = c0 + j;", p->k->vec);
    kp_line(p, "(void)i%d;", p->k->vec);
}

/* True if the address of a load is computed for every element. */
static bool jumps(const KPrint *p, const KInst *in) {
    return (in->at.inst && kinst_at(p->k, in->at.inst)->full) ||
           (in->place && kinst_at(p->k, in->place)->full);
}

static DType stored_dtype(const KPrint *p, const KInst *in) {
    return p->k->bufs.data[in->buf].dtype;
}

static bool is_walked(const KPrint *p, const KInst *in) {
    return (in->op == K_LOAD || in->op == K_STORE) && in->full &&
           in->at.k[p->k->vec] == 1 &&
           !(is_c_rows(p) && (in->at.inst || in->place)) && !jumps(p, in) &&
           !in->guard;
}

/* True for elements of a 16-bit type that are converted a vector at a time,
   in memory order or shuffled. */
static bool is_ordered(const KPrint *p, const KInst *in) {
    return is_walked(p, in) && dtype_is_low(stored_dtype(p, in)) &&
           !dtype_info[stored_dtype(p, in)].shuffled;
}

static bool is_shuffled(const KPrint *p, const KInst *in) {
    return is_walked(p, in) && dtype_info[stored_dtype(p, in)].shuffled;
}

/* A row takes many instructions, so only few rows wait for memory at the same
   time. So the kernel prefetches what a later row (along dim `over`) will
   read and write. j counts columns in [from, to). */
enum { AHEAD = 16, LINE = 64 };

static void put_ahead(KPrint *p, int over, const char *from, const char *to,
                      const char *column) {
    const Kernel *k = p->k;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        DType d = k->bufs.data[in->buf].dtype;
        if (!is_walked(p, in) || in->place || !in->at.k[over]) continue;
        kp_text(p, "for (int64_t j = %s; j < %s; j += %d)\n", from, to,
                LINE / dtype_info[d].bytes);
        kp_text(p, "    __builtin_prefetch(b%d + (", in->buf);
        sb_put_index(p->sb, k, &in->at, column);
        sb_printf(p->sb, " + %s));\n", size_text(p, AHEAD * in->at.k[over]));
    }
}

/* Opens a loop over all of a dim, over the current piece, or over the rows
   or columns of a tile. */
static void enter_loop(const Nest *n, int over) {
    KPrint *p = n->p;
    if (over == LOOP_ROWS) {
        kp_enter(p, "for (int64_t r = 0; r < rows; r++, acc += ld)");
        kp_text(p, "const int64_t u = ");
        if (p->k->tile_rows)
            sb_printf(p->sb, "batch * %s + ", size_text(p, p->k->tile_rows));
        sb_puts(p->sb, "row + r;\n");
        kp_line(p, "(void)u;");
        kp_dims(p, "u", p->rows, p->nrow, NULL);
        kp_row_insts(p, 0);
        if (p->ncol == 1 && p->nrow)
            put_ahead(p, p->rows[p->nrow - 1], "col", "col + cols", "j");
    } else if (over == LOOP_COLS) {
        kp_enter(p, "for (int64_t c = col; c < col + cols; c++)");
        kp_dims(p, "c", p->cols, p->ncol, NULL);
    } else {
        const char *all = over == p->k->vec ? length_text(p, extent(p, over))
                                            : size_text(p, extent(p, over));
        bool piece = over == n->cut;
        kp_enter(p, "for (int64_t i%d = %s; i%d < %s; i%d++)", over,
                 piece ? n->from : "0", over, piece ? n->to : all, over);
        if (is_c_rows(p) && n->s->nfold && over == p->cols[p->ncol - 1] &&
            extent(p, over) >= 4 * AHEAD)
            put_ahead(p, over, "0", "n", "(c0 + j)");
    }
}

/* Per instruction: full values that the sweep computes. *held: row values
   kept by earlier sweeps, or NULL. */
static bool *computed(const KPrint *p, const KSweep *s, const bool **held) {
    *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    return kernel_need(p->k, s, *held, p->arena);
}

/* The text of one element of a sweep. */
static void put_c_element(Nest *n) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held, *need = computed(p, s, &held);
    if (is_c_rows(p)) {
        bool *of = arena_dup(p->arena, need, (size_t)len * sizeof *of);
        for (int j = 0; j < s->roots.len; j++) of[s->roots.data[j]] = true;
        put_row_operands(p, of);
    }
    for (int id = 1; id < len; id++) {
        if (!need[id] || (p->before && p->before[id])) continue;
        bool kept = held && held[id];
        if (keeps(p, id, KEEP_TILE))
            put_in_tile(p, id, true);
        else if (!kept)
            kp_inst(p, id, NULL);
        if (keeps(p, id, KEEP_ROW)) put_kept(p, id, kept);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        StrBuf operand = {0};
        sb_put_operand(&operand, p->k, kinst_at(p->k, id)->in[0]);
        if (is_c_rows(p))
            put_accumulate(p, p->lanes ? 'q' : 'r', "j", id, operand.data);
        else if (folds_array(p, id) && p->lane)
            put_accumulate(p, p->sums, p->lane, id, operand.data);
        else if (folds_array(p, id))
            kp_line(p, "t%d[j] = %s;", id, operand.data);
        sb_free(&operand);
    }
    if (s->roots.len > s->nfold) kp_stores(p, true);
}

/* ---- 16-bit floats ------------------------------------------------------- */

/* Compilers do not vectorise conversions of fp16 and need shuffles for
   conversions of bf16. So elements that the innermost loop reads or writes one
   by one are converted by calls, a piece at a time, in arrays h<id>. bf16
   operands that are only read are as fast in place. */
enum { PIECE = 512, LEAST_PIECE = 16, LEAST_BF16 = 128, LEAST_WAIT = 64 };

/* True if the elements of a piece may be in any order: only converted bf16
   values depend on their position. Elements that are only moved are not
   converted. */
static bool any_order(const KPrint *p, const KInst *in) {
    switch (in->op) {
    case K_STORE:
        if (kinst_at(p->k, in->in[0])->op == K_LOAD) return false;
        /* fall through */
    case K_LOAD:
        if (in->keep == KEEP_ROW) return false;
        return is_shuffled(p, in) || (!in->at.k[p->k->vec] && !jumps(p, in));
    case K_INDEX: return !in->at.k[p->k->vec];
    case K_ACC: return false;
    default: return in->keep != KEEP_ROW;
    }
}

/* True if the value is rounded to the buffer's type and only stores read the
   result. */
static bool only_stored(const KPrint *p, int store) {
    const KInst *to = kinst_at(p->k, store), *r = kinst_at(p->k, to->in[0]);
    if (r->op != K_ROUND || r->dtype != p->k->bufs.data[to->buf].dtype)
        return false;
    for (int id = 1; id < p->k->insts.len; id++)
        for (int j = 0; j < KINST_READS; j++)
            if (kinst_read(kinst_at(p->k, id), j) == to->in[0] && !p->piece[id])
                return false;
    return true;
}

/* A flat kernel's only dim has no known extent. */
static bool is_short(const KPrint *p, int64_t least) {
    return p->k->form != KF_FLAT && extent(p, p->k->vec) < least;
}

/* bf16 may be rounded after each piece of the loop (STORE_BF16): in an
   epilogue, whose pieces are short, if it computes long functions. */
static bool may_wait(const KPrint *p) {
    return !is_c_rows(p) && !is_short(p, LEAST_WAIT) &&
           (p->k->form != KF_EPILOGUE || takes_long(p));
}

/* Fills p->piece; returns false if the sweep converts nothing. */
static bool find_pieces(const Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held, blocks = adds_lanes(p, s);
    bool *here = computed(p, s, &held);
    bool any = false, beside = is_c_rows(p) || s->nfold;
    p->piece = NEW_ARRAY(p->arena, bool, len);
    if (p->k->vec < 0 || is_short(p, LEAST_PIECE) ||
        (!beside && l->over != p->k->vec))
        return false;
    bool ordered =
        is_c_rows(p) || is_short(p, LEAST_BF16) || s->roots.len == s->nfold;
    for (int id = 1; id < len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op == K_STORE) here[id] = in->full && s->roots.len > s->nfold;
        ordered |= here[id] && !any_order(p, in);
        here[id] &= !(held && held[id]);
    }
    p->in_order = ordered;
    for (int id = 1; id < len; id++) {
        const KInst *in = kinst_at(p->k, id);
        p->piece[id] =
            here[id] &&
            (is_ordered(p, in) ||
             (is_shuffled(p, in) &&
              (!ordered || (in->op == K_LOAD ? blocks : may_wait(p)))));
    }
    for (int id = 1; id < len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool store = p->piece[id] && in->op == K_STORE;
        if (store && only_stored(p, id))
            p->piece[in->in[0]] = true;
        else if (store && ordered && is_shuffled(p, in))
            p->piece[id] = false;
        any |= p->piece[id];
    }
    p->piece_at =
        beside ? "j - w0" : arena_printf(p->arena, "i%d - w0", l->over);
    return any;
}

/* Prints the calls that convert a piece from w0 on between arrays and
   buffers; `what` follows their names, `end` ends them. */
static void move_pieces(const Nest *n, KOp op, const char *what,
                        const char *end) {
    KPrint *p = n->p;
    const char *at = is_c_rows(p) || n->s->nfold ? "(c0 + w0)" : "w0";
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!p->piece[id] || in->op != op) continue;
        StrBuf place = {0};
        sb_put_buffer(&place, p->k, in);
        sb_puts(&place, " + (");
        sb_put_index(&place, p->k, &in->at, at);
        DType dtype = stored_dtype(p, in);
        bool shuffled = dtype_info[dtype].shuffled;
        const char *d = dtype_info[dtype].macro;
        int x = in->in[0];
        if (op == K_LOAD) {
            kp_line(p, "%s%s_%s(h%d, %s)%s",
                    shuffled && p->in_order ? "GET" : "WIDEN", what, d, id,
                    place.data, end);
        } else {
            bool exact = kinst_at(p->k, x)->fits >> dtype & 1 &&
                         !(kinst_at(p->k, x)->op == K_ROUND && p->piece[x]);
            kp_line(p, "%s%s_%s(%s), h%d%s",
                    !shuffled     ? "NARROW"
                    : p->in_order ? "PUT"
                    : exact       ? "PACK"
                                  : "NARROW",
                    what, d, place.data, id, end);
        }
        sb_free(&place);
    }
}

/* True if instruction `id` and its operands are the same for all iterations
   of the innermost loop. */
static bool is_uniform(const KPrint *p, const bool *before, int id) {
    const KInst *in = kinst_at(p->k, id);
    if (in->op == K_CONST) return true;
    if (in->full) return before[id];
    return !(in->dims >> p->k->vec & 1) && in->keep != KEEP_BLOCK;
}

/* Prints loop-invariant values before the innermost loop. Compilers must leave
   them inside, since a store could change the loaded memory, and a byte loaded
   inside made them use vectors of 8 bytes for floats. */
static bool put_before(const Nest *n) {
    KPrint *p = n->p;
    int len = p->k->insts.len;
    bool *before = NEW_ARRAY(p->arena, bool, len), any = false;
    const bool *held, *need = computed(p, n->s, &held);
    for (int id = 1; id < len; id++) {
        const KInst *in = kinst_at(p->k, id);
        before[id] = need[id] && in->full && !(in->dims >> p->k->vec & 1) &&
                     in->keep == KEEP_NOT && in->op != K_CONST &&
                     in->op != K_ACC && in->op != K_REDUCE &&
                     !kinst_stores(in) && !(held && held[id]);
        for (int j = 0; before[id] && j < KINST_READS; j++)
            if (kinst_read(in, j) && !is_uniform(p, before, kinst_read(in, j)))
                before[id] = false;
        any |= before[id];
    }
    if (!any) return false;
    kp_line(p, "{");
    p->depth++;
    put_row_operands(p, before);
    for (int id = 1; id < len; id++)
        if (before[id]) kp_inst(p, id, NULL);
    p->before = before;
    return true;
}

/* Prints the innermost loop over [from, to). */
static void put_innermost(Nest *n, const KLoop *l, const char *from,
                          const char *to) {
    Nest in = *n;
    if (is_c_rows(n->p) || n->s->nfold) {
        enter_neighbours(n->p, from, to);
    } else {
        in.cut = l->over, in.from = from, in.to = to;
        ivdep(n->p);
        enter_loop(&in, l->over);
    }
    kp_nest(&in);
    kp_leave(n->p);
}

static void put_piece_arrays(KPrint *p, int length) {
    for (int id = 1; p->piece && id < p->k->insts.len; id++)
        if (p->piece[id] && kinst_at(p->k, id)->op != K_ROUND)
            kp_line(p, "float h%d[%d];", id, length);
}

static void put_long_pieces(Nest *n, const KLoop *l, const char *from,
                            const char *to) {
    KPrint *p = n->p;
    kp_enter(p, "for (int64_t w0 = %s, w1; w0 < %s; w0 = w1)", from, to);
    kp_line(p, "w1 = w0 + %d < %s ? w0 + %d : %s;", PIECE, to, PIECE, to);
    put_piece_arrays(p, PIECE);
    move_pieces(n, K_LOAD, "", ", w1 - w0);");
    put_innermost(n, l, "w0", "w1");
    move_pieces(n, K_STORE, "", ", w1 - w0);");
    kp_leave(p);
}

/* `count` columns from w0 on; NULL: a block. */
static void put_block(Nest *n, const char *count) {
    KPrint *p = n->p;
    int x = p->k->vec;
    const char *what = count ? "_REST" : "16";
    const char *end = count ? arena_printf(p->arena, ", %s);", count) : ");";
    put_piece_arrays(p, BLOCK);
    move_pieces(n, K_LOAD, what, end);
    ivdep(p);
    if (!count) sb_puts(p->sb, "#pragma GCC unroll 2\n"); /* vectors of 8 */
    kp_enter(p, "for (int l = 0; l < %s; l++)", count ? count : "16");
    kp_line(p, "const int64_t i%d = c0 + w0 + l;", x);
    kp_line(p, "(void)i%d;", x);
    kp_nest(n);
    kp_leave(p);
    move_pieces(n, K_STORE, what, end);
}

/* The remainder has few elements, so shuffled types are converted in place. */
static void put_left_over(Nest *n) {
    KPrint *p = n->p;
    int64_t rest = left_over(p);
    bool *piece = p->piece,
         *ordered = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        DType d = in->op == K_ROUND ? in->dtype : stored_dtype(p, in);
        ordered[id] = piece[id] && !dtype_info[d].shuffled;
    }
    p->piece = ordered, p->sums = 'u';
    kp_line(p, "{");
    p->depth++;
    kp_line(p, "const int64_t w0 = n & -%d;", BLOCK);
    put_block(n, rest > 0 ? arena_printf(p->arena, I64, rest) : "n - w0");
    kp_leave(p);
    p->piece = piece, p->sums = 't';
}

/* Prints the current piece block by block: compilers keep the array of one
   block in registers. The remainder comes first: reading lanes as vectors
   right after storing them in parts would stall (store forwarding). */
static void put_blocks(Nest *n) {
    KPrint *p = n->p;
    p->lane = p->piece_at = "l";
    if (left_over(p)) put_left_over(n);
    kp_enter(p, "for (int64_t w0 = 0; w0 + %d <= n; w0 += %d)", BLOCK, BLOCK);
    put_block(n, NULL);
    kp_leave(p);
    p->lane = NULL;
}

/* Prints the innermost loop over [from, to). */
static void put_range(Nest *n, const KLoop *l, const char *from,
                      const char *to) {
    KPrint *p = n->p;
    bool before = l->over == p->k->vec && put_before(n);
    bool pieces = find_pieces(n, l);
    if (adds_lanes(p, n->s))
        put_blocks(n);
    else if (pieces)
        put_long_pieces(n, l, from, to);
    else
        put_innermost(n, l, from, to);
    if (before) kp_leave(p);
    p->piece = p->before = NULL;
}

/* Prints the columns in parts in which guards are constant, if that helps. */
static void put_vector(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const Kernel *whole = p->k;
    int64_t cut[MAX_CUTS + 1];
    bool beside = is_c_rows(p) || n->s->nfold;
    int ncut = n->s->nfold ? 0 : kernel_cuts(p->k, cut);
    if (!ncut) {
        bool all = l->over != n->cut;
        put_range(n, l, beside || all ? "0" : n->from,
                  beside ? "n"
                  : all  ? length_text(p, l->extent)
                         : n->to);
        return;
    }
    cut[ncut] = extent(p, l->over);
    for (int j = 0; j <= ncut; j++) {
        int64_t from = j ? cut[j - 1] : 0;
        p->k = kernel_within(p->arena, whole, l->over, from, cut[j]);
        put_range(n, l, arena_printf(p->arena, I64, from),
                  arena_printf(p->arena, I64, cut[j]));
    }
    p->k = whole;
}

/* t<id>: lanes; u<id>: lanes of the remainder. */
static void put_lanes_at_0(KPrint *p, int id, bool over) {
    kp_line(p, over ? "%s t%d[%d], u%d[%d];" : "%s t%d[%d];", compute_c(p, id),
            id, BLOCK, id, BLOCK);
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
                 size_text(p, e), step);
        put_length(p, e, step);
    } else {
        kp_line(p, "{");
        p->depth++;
        kp_line(p, "const int64_t c0 = 0, n = %s;", length_text(p, e));
    }
    bool lanes = adds_lanes(p, n->s);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        computes |= !keeps(p, id, KEEP_BUFFER);
        if (keeps(p, id, KEEP_BUFFER)) put_fold_call(p, id);
        if (folds_array(p, id) && lanes)
            put_lanes_at_0(p, id, left_over(p));
        else if (folds_array(p, id))
            kp_line(p, "%s t%d[" I64 "];", compute_c(p, id), id,
                    e == 0             ? 1
                    : e < LEAST_LENGTH ? e
                                       : step);
    }
    if (computes) kp_nest(n);
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        if (lanes && folds_array(p, id))
            put_lanes_sum(p, id, left_over(p));
        else if (!keeps(p, id, KEEP_BUFFER))
            put_fold_call(p, id);
    }
    kp_leave(p);
}

/* Runs of columns, each summed on its own. */
static void put_runs(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    int64_t e = l->extent, step = l->step;
    kp_enter(p, "for (int64_t p0 = 0; p0 < %s; p0 += " I64 ")", size_text(p, e),
             step);
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
        put_accumulate(p, 'r', "j", id, arena_printf(p->arena, "q%d[j]", id));
    }
    kp_leave(p);
    kp_leave(p);
}

static void put_lanes(Nest *n, const KLoop *l) {
    if (!n->s->nfold)
        kp_nest(n);
    else if (is_c_rows(n->p))
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
        enter_loop(n, l->over);
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
    if (!is_c_rows(p) && shares(p)) n.cut = p->k->vec;
    if (is_c_rows(p)) put_start(&n, 'r');
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

/* Prints the unit's row and, if threads share dim vec, its part of it: [c0,
   c1), or n neighbouring rows from c0 on; the rows of a tile are [y0, y1). */
static void put_unit(KPrint *p) {
    const KLoop *l = shares(p);
    if (p->side >= 0) {
        const KLoop *y = kernel_loop(p->k, LOOP_THREAD, p->side);
        const char *nx = size_text(p, loop_steps(l));
        const char *ny = size_text(p, loop_steps(y));
        kp_line(p, "const int64_t tile = u / %s, c0 = u %% %s * " I64 ";", nx,
                nx, l->step);
        kp_line(p, "const int64_t row = tile / %s, y0 = tile %% %s * " I64 ";",
                ny, ny, y->step);
        kp_line(p, "(void)row;");
        put_end(p, 'c', l->extent, l->step);
        put_end(p, 'y', y->extent, y->step);
    } else if (l) {
        int64_t e = l->extent, step = l->step, nb = loop_steps(l);
        if (nb == 1)
            kp_line(p, "const int64_t row = u, c0 = 0;");
        else if (p->nrow == 0)
            kp_line(p, "const int64_t row = 0, c0 = u * " I64 ";", step);
        else
            kp_line(p, "const int64_t row = u / %s, c0 = u %% %s * " I64 ";",
                    size_text(p, nb), size_text(p, nb), step);
        kp_line(p, "(void)row;");
        if (!is_c_rows(p))
            put_end(p, 'c', e, step);
        else if (e % step == 0)
            kp_line(p, "const int64_t n = " I64 ";", step);
        else
            put_length(p, e, step);
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
        if (keeps(p, id, KEEP_ROW))
            kp_line(p, "%s a%d[" I64 "], *restrict const s%d = a%d;",
                    ktype_c[kinst_at(p->k, id)->type], id, place_of_row(p), id,
                    id);
}

/* Prints everything that is computed for the current row or rows. */
static void put_rows(KPrint *p) {
    put_declarations(p);
    if (p->side >= 0)
        put_tile_loads(p), put_sweep(p, p->sweeps.data);
    else
        kp_sweeps(p, is_c_rows(p) ? put_values_of_rows : kp_row_insts,
                  put_sweep);
    if (is_c_rows(p))
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
    kp_enter(p, "if (i%d < %s)", dim, size_text(p, part[n / 2].from));
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

/* Prints the text after the function's head. */
static void print_body(const Kernel *k, StrBuf *sb) {
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

/* ---- kernels of one text ------------------------------------------------- */

/* A text with sizes between marks: \1, a kind, the number, \2. */
typedef struct Body {
    const Kernel *k;
    const char *text;
    VEC(const char *) sizes;  /* each with its kind */
    uint64_t hash;            /* hash of the text without the sizes */
    const struct Body *first; /* first kernel with that text */
    bool shared;              /* other kernels have that text, too */
    const int *par; /* in the first: for each size its parameter, n<number>; -1:
                       printed as a constant */
} Body;

typedef VEC(Body) Bodies;

/* The text after the size that begins at s. */
static const char *after_size(const char *s) { return strchr(s, 2) + 1; }

static Body read_body(Arena *a, const Kernel *k) {
    StrBuf sb = {0};
    print_body(k, &sb);
    Body b = {.k = k, .text = arena_dup(a, sb.data, sb.len + 1)};
    sb_free(&sb);
    b.hash = (uint64_t)(k->form == KF_EPILOGUE);
    for (const char *s = b.text; *s;) {
        size_t n = strcspn(s, "\1");
        b.hash = hash_bytes(b.hash, s, n);
        if (!*(s += n)) break;
        const char *end = after_size(s);
        char *size = arena_printf(a, "%.*s", (int)(end - s - 2), s + 1);
        b.hash = hash_bytes(b.hash, size, 1);
        vec_push(a, &b.sizes, size);
        s = end;
    }
    return b;
}

static bool same_text(const Body *x, const Body *y) {
    const char *s = x->text, *t = y->text;
    if (x->hash != y->hash || x->sizes.len != y->sizes.len) return false;
    for (;;) {
        size_t n = strcspn(s, "\1");
        if (strncmp(s, t, n + (s[n] ? 2 : 1))) return false;
        if (!s[n]) return true;
        s = after_size(s + n), t = after_size(t + n);
    }
}

/* True if sizes i and j are equal in every body with that text. */
static bool same_size(const Bodies *all, const Body *first, int i, int j) {
    for (const Body *b = first; b < all->data + all->len; b++)
        if (b->first == first && strcmp(b->sizes.data[i], b->sizes.data[j]))
            return false;
    return true;
}

/* True if size i differs among the bodies with that text. */
static bool varies(const Bodies *all, const Body *first, int i) {
    for (const Body *b = first; b < all->data + all->len; b++)
        if (b->first == first && strcmp(b->sizes.data[i], first->sizes.data[i]))
            return true;
    return false;
}

static int *parameters(Arena *a, const Bodies *all, const Body *first) {
    int *par = NEW_ARRAY(a, int, first->sizes.len + 1), count = 0;
    for (int i = 0; i < first->sizes.len; i++) {
        par[i] = first->shared && varies(all, first, i) ? count : -1;
        for (int j = 0; j < i && par[i] == count; j++)
            if (par[j] >= 0 && same_size(all, first, i, j)) par[i] = par[j];
        count += par[i] == count;
    }
    return par;
}

static void put_c_head(StrBuf *sb, const Kernel *k, const char *prefix,
                       const char *more, const char *last) {
    if (k->form == KF_EPILOGUE)
        sb_printf(sb,
                  "void %se%d%s(void *const *buf, const float *acc, int64_t ld,"
                  "\n    int64_t batch, int64_t row, int64_t col, int64_t rows,"
                  "\n    int64_t cols%s)\n{\n",
                  prefix, k->index, more, last);
    else
        sb_printf(sb,
                  "void %sk%d%s(void *const *buf, const int64_t *par, int64_t "
                  "lo,\n    int64_t hi%s)\n{\n",
                  prefix, k->index, more, last);
}

static void put_c_text(StrBuf *sb, const Body *b, const int *par) {
    const char *s = b->text;
    for (int i = 0; i < b->sizes.len; i++) {
        size_t n = strcspn(s, "\1");
        sb_putn(sb, s, n);
        if (par[i] < 0)
            sb_puts(sb, b->sizes.data[i] + 1);
        else
            sb_printf(sb, "n%d", par[i]);
        s = after_size(s + n);
    }
    sb_puts(sb, s);
}

/* The function that all kernels of the text call: <name>_of. */
static void put_shared(StrBuf *sb, const Body *b, const char *prefix) {
    int n = 0;
    sb_puts(sb, "KM_SHARED ");
    put_c_head(sb, b->k, prefix, "_of", ", const km_size *size");
    for (int i = 0; i < b->sizes.len; i++) {
        char kind = b->sizes.data[i][0];
        if (b->par[i] != n) continue;
        sb_printf(sb, "    const %s n%d = size[%d].%c;\n",
                  kind == 'i'   ? "int64_t"
                  : kind == 'u' ? "uint32_t"
                  : kind == 'f' ? "float"
                                : "double",
                  n, n, kind);
        n++;
    }
    put_c_text(sb, b, b->par);
}

static void put_kernel(StrBuf *sb, const Body *b, const char *prefix) {
    const Kernel *k = b->k;
    const int *par = b->first->par;
    int n = 0;
    if (b->shared && b->first == b) put_shared(sb, b, prefix);
    sb_put_kernel_comment(sb, k);
    put_c_head(sb, k, prefix, "", "");
    if (!b->shared) {
        put_c_text(sb, b, par);
        return;
    }
    sb_puts(sb, "    static const km_size size[] = {");
    for (int i = 0; i < b->sizes.len; i++)
        if (par[i] == n)
            sb_printf(sb, "%s{.%c = %s}", n++ ? ", " : "", b->sizes.data[i][0],
                      b->sizes.data[i] + 1);
    sb_printf(sb, n ? "};\n" : "{0}};\n");
    sb_printf(sb,
              k->form == KF_EPILOGUE
                  ? "    %se%d_of(buf, acc, ld, batch, row, col, rows, cols, "
                    "size);\n}\n\n"
                  : "    %sk%d_of(buf, par, lo, hi, size);\n}\n\n",
              prefix, b->first->k->index);
}

void print_c_kernels(const KernelSet *ks, StrBuf *sb, const char *prefix,
                     bool scalars) {
    Arena *a = arena_new();
    Bodies all = {0};
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < kernel_set_count(ks, e); i++) {
            const Kernel *k = kernel_set_get(ks, e, i);
            if (scalars || !kernel_is_scalar(k))
                vec_push(a, &all, read_body(a, k));
        }
    for (Body *b = all.data; b < all.data + all.len; b++) {
        for (Body *c = all.data; c < b && !b->first; c++)
            if (c->first == c && same_text(b, c))
                b->first = c, b->shared = c->shared = true;
        if (!b->first) b->first = b;
    }
    sb_puts(sb, "#define KM_KERNELS\n#include \"kmath.h\"\n\n");
    for (Body *b = all.data; b < all.data + all.len; b++)
        if (b->first == b) b->par = parameters(a, &all, b);
    for (const Body *b = all.data; b < all.data + all.len; b++)
        put_kernel(sb, b, prefix);
    arena_free(a);
}
