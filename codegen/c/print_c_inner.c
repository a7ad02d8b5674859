/* SPDX-License-Identifier: Apache-2.0 */
/* print_c_inner.c: the innermost loop of a sweep, in pieces whose 16-bit
   elements are converted by calls. */
#include "codegen/c/print_c.h"

/* ---- the nest of a sweep ------------------------------------------------- */

void pc_enter_neighbours(KPrint *p, const char *from, const char *to) {
    pc_ivdep(p);
    kp_enter(p, "for (int64_t j = %s; j < %s; j++)", from, to);
    kp_line(p, "const int64_t i%d = c0 + j;", p->k->vec);
    kp_line(p, "(void)i%d;", p->k->vec);
}

static DType stored_dtype(const KPrint *p, const KInst *in) {
    return p->k->bufs.data[in->buf].dtype;
}

/* Fetches what a later row (along dim `over`) will read and write. j counts
   columns in [from, to). */
static void put_ahead(KPrint *p, int over, const char *from, const char *to,
                      const char *column) {
    const Kernel *k = p->k;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (!kernel_fetches(k, in, over)) continue;
        kp_text(p, "for (int64_t j = %s; j < %s; j += %d)\n", from, to,
                CACHE_LINE / dtype_info[stored_dtype(p, in)].bytes);
        kp_text(p, "    __builtin_prefetch(b%d + (", in->buf);
        sb_put_index(p->sb, k, &in->at, column);
        sb_printf(p->sb, " + %s));\n",
                  pc_size_text(p, ROWS_AHEAD * in->at.k[over]));
    }
}

void pc_enter_loop(const Nest *n, int over) {
    KPrint *p = n->p;
    int ahead = kernel_ahead_dim(p->k, n->s, over);
    if (over == LOOP_ROWS) {
        kp_enter(p, "for (int64_t r = 0; r < rows; r++, acc += ld)");
        kp_text(p, "const int64_t u = ");
        if (p->k->tile_rows)
            sb_printf(p->sb, "batch * %s + ", pc_size_text(p, p->k->tile_rows));
        sb_puts(p->sb, "row + r;\n");
        kp_line(p, "(void)u;");
        kp_dims(p, "u", p->rows, p->nrow, NULL);
        kp_row_insts(p, 0);
        if (ahead >= 0) put_ahead(p, ahead, "col", "col + cols", "j");
    } else if (over == LOOP_COLS) {
        kp_enter(p, "for (int64_t c = col; c < col + cols; c++)");
        kp_dims(p, "c", p->cols, p->ncol, NULL);
    } else {
        const char *all = over == p->k->vec
                              ? pc_length_text(p, pc_extent(p, over))
                              : pc_size_text(p, pc_extent(p, over));
        bool piece = over == n->cut;
        kp_enter(p, "for (int64_t i%d = %s; i%d < %s; i%d++)", over,
                 piece ? n->from : "0", over, piece ? n->to : all, over);
        if (ahead >= 0) put_ahead(p, ahead, "0", "n", "(c0 + j)");
    }
}

bool *pc_computed(const KPrint *p, const KSweep *s, const bool **held) {
    *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    return kernel_need(p->k, s, *held, p->arena);
}

/* ---- 16-bit floats ------------------------------------------------------- */

enum { PIECE = 512 };

/* The functions of kmath_calls.h and kmath_arrays.h that convert elements, by
   what is known of them; "16" and "_REST" follow for a block and the rest. */
typedef enum PieceOrder {
    ANY_ORDER, /* a type that is never shuffled */
    IN_ORDER,
    SHUFFLED,
} PieceOrder;
static const struct {
    const char *load, *store, *exact; /* exact: values that the type has */
} conversions[] = {[ANY_ORDER] = {"WIDEN", "NARROW", "NARROW"},
                   [IN_ORDER] = {"GET", "PUT", "PUT"},
                   [SHUFFLED] = {"WIDEN", "NARROW", "PACK"}};

static PieceOrder piece_order(const KPrint *p, DType dtype) {
    if (!dtype_info[dtype].shuffled) return ANY_ORDER;
    return p->in_order ? IN_ORDER : SHUFFLED;
}

/* True if x, which is stored, needs no rounding to the type. */
static bool piece_is_exact(const KPrint *p, int x, DType dtype) {
    const KInst *in = kinst_at(p->k, x);
    return in->fits >> dtype & 1 && !(in->op == K_ROUND && p->piece[x]);
}

/* Prints the calls that convert a piece from w0 on between arrays and
   buffers; `what` follows their names, `end` ends them. */
static void move_pieces(const Nest *n, KOp op, const char *what,
                        const char *end) {
    KPrint *p = n->p;
    const char *at = pc_is_rows(p) || n->s->nfold ? "(c0 + w0)" : "w0";
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!p->piece[id] || in->op != op) continue;
        StrBuf place = {0};
        sb_put_buffer(&place, p->k, in);
        sb_puts(&place, " + (");
        sb_put_index(&place, p->k, &in->at, at);
        DType dtype = stored_dtype(p, in);
        PieceOrder order = piece_order(p, dtype);
        const char *d = dtype_info[dtype].macro;
        if (op == K_LOAD)
            kp_line(p, "%s%s_%s(h%d, %s)%s", conversions[order].load, what, d,
                    id, place.data, end);
        else
            kp_line(p, "%s%s_%s(%s), h%d%s",
                    piece_is_exact(p, in->in[0], dtype)
                        ? conversions[order].exact
                        : conversions[order].store,
                    what, d, place.data, id, end);
        sb_free(&place);
    }
}

static void put_before(KPrint *p, bool *before) {
    kp_line(p, "{");
    p->depth++;
    pc_put_row_operands(p, before);
    for (int id = 1; id < p->k->insts.len; id++)
        if (before[id]) kp_inst(p, id, NULL);
}

/* Prints the innermost loop over [from, to). */
static void put_innermost(Nest *n, const KLoop *l, const char *from,
                          const char *to) {
    Nest in = *n;
    if (pc_is_rows(n->p) || n->s->nfold) {
        pc_enter_neighbours(n->p, from, to);
    } else {
        in.cut = l->over, in.from = from, in.to = to;
        pc_ivdep(n->p);
        pc_enter_loop(&in, l->over);
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
    pc_ivdep(p);
    if (!count) sb_puts(p->sb, "#pragma GCC unroll 2\n"); /* vectors of 8 */
    kp_enter(p, "for (int l = 0; l < %s; l++)", count ? count : "16");
    kp_line(p, "const int64_t i%d = c0 + w0 + l;", x);
    kp_line(p, "(void)i%d;", x);
    kp_nest(n);
    kp_leave(p);
    move_pieces(n, K_STORE, what, end);
}

static void put_left_over(Nest *n, bool *pieces) {
    KPrint *p = n->p;
    int64_t rest = kernel_left_over(p->lanes);
    bool *whole = p->piece;
    p->piece = pieces, p->sums = 'u';
    kp_line(p, "{");
    p->depth++;
    kp_line(p, "const int64_t w0 = n & -%d;", BLOCK);
    put_block(n, rest > 0 ? arena_printf(p->arena, I64, rest) : "n - w0");
    kp_leave(p);
    p->piece = whole, p->sums = 't';
}

/* Prints the current piece block by block: compilers keep the array of one
   block in registers. The remainder comes first: reading lanes as vectors
   right after storing them in parts would stall (store forwarding). */
static void put_blocks(Nest *n, bool *rest) {
    KPrint *p = n->p;
    p->lane = p->piece_at = "l";
    if (kernel_left_over(p->lanes)) put_left_over(n, rest);
    kp_enter(p, "for (int64_t w0 = 0; w0 + %d <= n; w0 += %d)", BLOCK, BLOCK);
    put_block(n, NULL);
    kp_leave(p);
    p->lane = NULL;
}

void pc_put_range(Nest *n, const KLoop *l, const char *from, const char *to) {
    KPrint *p = n->p;
    KInner how = kernel_inner(p->arena, p->k, &p->sweeps, n->s, l->over);
    bool beside = pc_is_rows(p) || n->s->nfold;
    if (how.before) put_before(p, how.before);
    p->before = how.before;
    p->piece = how.piece;
    p->in_order = how.in_order;
    p->piece_at =
        beside ? "j - w0" : arena_printf(p->arena, "i%d - w0", l->over);
    if (how.lanes)
        put_blocks(n, how.rest);
    else if (how.pieces)
        put_long_pieces(n, l, from, to);
    else
        put_innermost(n, l, from, to);
    if (how.before) kp_leave(p);
    p->piece = p->before = NULL;
}
