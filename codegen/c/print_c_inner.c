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
           !(pc_is_rows(p) && (in->at.inst || in->place)) && !jumps(p, in) &&
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
        sb_printf(p->sb, " + %s));\n", pc_size_text(p, AHEAD * in->at.k[over]));
    }
}

void pc_enter_loop(const Nest *n, int over) {
    KPrint *p = n->p;
    if (over == LOOP_ROWS) {
        kp_enter(p, "for (int64_t r = 0; r < rows; r++, acc += ld)");
        kp_text(p, "const int64_t u = ");
        if (p->k->tile_rows)
            sb_printf(p->sb, "batch * %s + ", pc_size_text(p, p->k->tile_rows));
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
        const char *all = over == p->k->vec
                              ? pc_length_text(p, pc_extent(p, over))
                              : pc_size_text(p, pc_extent(p, over));
        bool piece = over == n->cut;
        kp_enter(p, "for (int64_t i%d = %s; i%d < %s; i%d++)", over,
                 piece ? n->from : "0", over, piece ? n->to : all, over);
        if (pc_is_rows(p) && n->s->nfold && over == p->cols[p->ncol - 1] &&
            pc_extent(p, over) >= 4 * AHEAD)
            put_ahead(p, over, "0", "n", "(c0 + j)");
    }
}

bool *pc_computed(const KPrint *p, const KSweep *s, const bool **held) {
    *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    return kernel_need(p->k, s, *held, p->arena);
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
    return p->k->form != KF_FLAT && pc_extent(p, p->k->vec) < least;
}

/* bf16 may be rounded after each piece of the loop (STORE_BF16): in an
   epilogue, whose pieces are short, if it computes long functions. */
static bool may_wait(const KPrint *p) {
    return !pc_is_rows(p) && !is_short(p, LEAST_WAIT) &&
           (p->k->form != KF_EPILOGUE || pc_takes_long(p));
}

/* Fills p->piece; returns false if the sweep converts nothing. */
static bool find_pieces(const Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    int len = p->k->insts.len;
    const bool *held, blocks = pc_adds_lanes(p, s);
    bool *here = pc_computed(p, s, &held);
    bool any = false, beside = pc_is_rows(p) || s->nfold;
    p->piece = NEW_ARRAY(p->arena, bool, len);
    if (p->k->vec < 0 || is_short(p, LEAST_PIECE) ||
        (!beside && l->over != p->k->vec))
        return false;
    bool ordered =
        pc_is_rows(p) || is_short(p, LEAST_BF16) || s->roots.len == s->nfold;
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
    const char *at = pc_is_rows(p) || n->s->nfold ? "(c0 + w0)" : "w0";
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
    const bool *held, *need = pc_computed(p, n->s, &held);
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
    pc_put_row_operands(p, before);
    for (int id = 1; id < len; id++)
        if (before[id]) kp_inst(p, id, NULL);
    p->before = before;
    return true;
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

/* The remainder has few elements, so shuffled types are converted in place. */
static void put_left_over(Nest *n) {
    KPrint *p = n->p;
    int64_t rest = pc_left_over(p);
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
    if (pc_left_over(p)) put_left_over(n);
    kp_enter(p, "for (int64_t w0 = 0; w0 + %d <= n; w0 += %d)", BLOCK, BLOCK);
    put_block(n, NULL);
    kp_leave(p);
    p->lane = NULL;
}

void pc_put_range(Nest *n, const KLoop *l, const char *from, const char *to) {
    KPrint *p = n->p;
    bool before = l->over == p->k->vec && put_before(n);
    bool pieces = find_pieces(n, l);
    if (pc_adds_lanes(p, n->s))
        put_blocks(n);
    else if (pieces)
        put_long_pieces(n, l, from, to);
    else
        put_innermost(n, l, from, to);
    if (before) kp_leave(p);
    p->piece = p->before = NULL;
}
