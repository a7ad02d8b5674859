/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_rows.c: kernels with constant extents: a thread's
   elements, and the rows that threads fold (print_cuda.h).                  */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>

/* ---- rows of a thread -----------------------------------------------------
 */

/* The columns of a row are divided into slices; each warp of the block has
   one. */
static bool is_sliced(const KPrint *p) { return p->k->form == KF_ROWS; }

/* Rows of a lane side by side; w<id>[u] holds the fold of row u. 1: one row,
   in v<id>. */
static int lane_rows(const KPrint *p) {
    return is_sliced(p) ? cuda_pack(p->k) : 1;
}

/* The rows of a block that adds up columns; NULL: the kernel has no such
   sums. */
static const KLoop *sum_rows(const KPrint *p) {
    return kernel_column_sums(p->k) ? kernel_loop(p->k, LOOP_SERIAL, LOOP_ROWS)
                                    : NULL;
}

/* Some teams are past the last row. */
static bool has_idle(const KPrint *p) {
    const KLoop *some = sum_rows(p);
    if (some) return p->nrows % some->extent != 0;
    int64_t n = is_sliced(p) ? p->k->dim[p->k->vec].extent : p->nrows;
    return p->threads && n % p->threads->extent != 0;
}

/* The lane selects the row along dim `vec`, the block selects the other
   dims. */
static void put_rows_of_lanes(KPrint *p) {
    int vec = p->k->vec;
    const KLoop *block = kernel_loop(p->k, LOOP_BLOCK, vec);
    int64_t nb = loop_steps(block);
    const char *u = cp_unsigned(p);
    kp_text(p, "const %s r = ", u);
    if (nb > 1)
        sb_printf(p->sb, "%s %% " I64 " * " I64 " + ", p->block, nb,
                  block->step);
    sb_printf(p->sb, "threadIdx.x %% " I64, loop_steps(p->threads));
    if (lane_rows(p) > 1) sb_printf(p->sb, " * %d", lane_rows(p));
    sb_puts(p->sb, ";\n");
    if (has_idle(p)) {
        kp_line(p, "const bool live = r < " I64 ";", block->extent);
        kp_line(p, "const %s i%d = live ? r : " I64 ";", kp_signed(p), vec,
                block->extent - 1);
    } else {
        kp_line(p, "const %s i%d = r;", kp_signed(p), vec);
    }
    if (cp_any_used(p, p->rows, p->nrow))
        kp_line(p, "const %s row = %s / " I64 ";", u, p->block, nb);
}

static void put_rows_of_teams(KPrint *p) {
    const char *u = cp_unsigned(p);
    const KLoop *some = sum_rows(p);
    bool used = cp_any_used(p, p->rows, p->nrow), idle = has_idle(p);
    bool teams = p->threads && p->threads->extent > 1;
    int64_t each = some ? some->extent : teams ? p->threads->extent : 1;
    if (!used && !idle) return;
    kp_text(p, "const %s %s = %s%s", u, idle ? "r" : "row",
            p->wide && each > 1 ? "(uint64_t)" : "", p->block);
    if (each > 1) sb_printf(p->sb, " * " I64, each);
    if (some) sb_puts(p->sb, " + at");
    if (teams) sb_printf(p->sb, " + threadIdx.x / " I64, p->lanes->step);
    sb_puts(p->sb, ";\n");
    if (idle) kp_line(p, "const bool live = r < " I64 ";", p->nrows);
    if (idle && used)
        kp_line(p, "const %s row = live ? r : " I64 ";", u, p->nrows - 1);
}

/* ---- sweeps -------------------------------------------------------------- */

/* True if a sweep before s has copied load `id` to shared memory. */
static bool is_copied(const KPrint *p, const KSweep *s, int id) {
    if (kinst_at(p->k, id)->keep != KEEP_SHARED) return false;
    for (const KSweep *x = p->sweeps.data; x < s; x++)
        if (kernel_need(p->k, x, NULL, p->arena)[id]) return true;
    return false;
}

/* Types of a row's columns: as counts and as indices. */
static const char *columns_unsigned(const KPrint *p) {
    return p->narrow_cols ? "unsigned" : cp_unsigned(p);
}

static const char *neighbours_signed(const KPrint *p) {
    return p->narrow_cols && p->k->dim[p->k->vec].col ? "int" : kp_signed(p);
}

/* If `in` compares a column index with a number that is constant in a row,
   returns the number's instruction and sets *index; else returns 0. */
static int compared_column(const KPrint *p, const KInst *in, int *index) {
    const Kernel *k = p->k;
    if (in->op != K_OP || in->code != OP_EQUAL || in->compute != KT_I64 ||
        !p->narrow_cols)
        return 0;
    for (int j = 0; j < 2; j++) {
        const KInst *x = kinst_at(k, in->in[j]);
        const KInst *y = kinst_at(k, in->in[!j]);
        bool columns = x->op == K_INDEX && !x->at.inst && x->at.c == 0;
        for (int d = 0; d < k->ndim; d++)
            columns &= k->dim[d].col || x->at.k[d] == 0;
        *index = in->in[j];
        if (columns && !y->full) return in->in[!j];
    }
    return 0;
}

/* The last vector of n elements in a row may be incomplete. */
static bool has_cut(const KPrint *p, int n) {
    return !is_sliced(p) && p->ncols % n != 0;
}

/* The loop over a thread's columns c, of known length; returns the blocks that
   it opens.  index: c is mentioned. */
static int enter_columns(KPrint *p, bool index) {
    int pack = cuda_pack(p->k);
    int64_t lanes = p->lanes->step, step = lanes * pack;
    bool tail = p->ncols % step != 0;
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < " I64 "; j++)",
             (p->ncols + step - 1) / step);
    if (index || tail) {
        kp_text(p, "const %s c = (j * " I64 " + t)", columns_unsigned(p),
                lanes);
        if (pack > 1) sb_printf(p->sb, " * %d", pack);
        sb_puts(p->sb, ";\n");
    }
    if (tail && p->ncols < step)
        kp_enter(p, "if (c < " I64 ")", p->ncols);
    else if (tail) /* only the last vector needs a check */
        kp_enter(p, "if (j < " I64 " || c < " I64 ")", p->ncols / step,
                 p->ncols);
    return 1 + tail;
}

/* q<i>[j]: elements of the row that the thread loads before anything is
   stored. */
static void put_fetched(KPrint *p) {
    int n = cuda_pack(p->k), found = 0;
    int64_t step = p->lanes->step * n, loops = (p->ncols + step - 1) / step;
    bool used[MAX_RANK] = {0};
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!cuda_fetched(p->k, id)) continue;
        found++;
        cp_mark_used(in, used);
        const char *type = cp_type(p->k, in->buf);
        if (n > 1)
            kp_text(p, "Pack<%d, %s> q%d", n, type, id);
        else
            kp_text(p, "%s q%d", type, id);
        sb_printf(p->sb, "[" I64 "]%s;\n", loops,
                  p->ncols % step ? " = {}" : "");
    }
    if (!found) return;
    int open = enter_columns(p, true);
    kp_dims(p, "c", p->cols, p->ncol, used);
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!cuda_fetched(p->k, id)) continue;
        if (n > 1)
            kp_text(p, "q%d[j] = pack_load<%d>(b%d + (", id, n, in->buf);
        else
            kp_text(p, "q%d[j] = b%d[", id, in->buf);
        sb_put_index(p->sb, p->k, &in->at, NULL);
        sb_puts(p->sb, n > 1 ? "));\n" : "];\n");
    }
    while (open--) kp_leave(p);
}

/* Vectors along dim vec at index i<vec: loads those that are read before the
   elements are computed, and declares those that are written. */
static void put_pack_loads(KPrint *p, const KSweep *s, const bool *need,
                           int n) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || !cuda_packed(p->k, in, n)) continue;
        if (in->op == K_ADD_UP) {
            kp_line(p, "Pack<%d, float> p%d = pack_load<%d>(a%d + c);", n, id,
                    n, id);
            continue;
        }
        const char *type = cp_type(p->k, in->buf);
        if (in->op == K_STORE) {
            kp_line(p, "Pack<%d, %s> p%d%s;", n, type, id,
                    has_cut(p, n) ? " = {}" : "");
            continue;
        }
        if (cuda_fetched(p->k, id)) {
            kp_line(p, "const Pack<%d, %s> p%d = q%d[j];", n, type, id, id);
            continue;
        }
        bool copied = is_copied(p, s, id);
        kp_text(p, "const Pack<%d, %s> p%d = ", n, type, id);
        if (in->guard) {
            sb_put_operand(p->sb, p->k, in->guard);
            sb_puts(p->sb, " ? ");
        }
        sb_printf(p->sb, "pack_load<%d>(", n);
        if (copied) {
            sb_printf(p->sb, "s%d + c)", id);
        } else {
            sb_printf(p->sb, "b%d + (", in->buf);
            sb_put_index(p->sb, p->k, &in->at, NULL);
            sb_puts(p->sb, "))");
        }
        if (in->guard) sb_printf(p->sb, " : Pack<%d, %s>{}", n, type);
        sb_puts(p->sb, ";\n");
        if (in->keep == KEEP_SHARED && !copied)
            kp_line(p, "pack_keep(s%d + c, p%d);", id, id);
    }
}

/* Stores the vectors that are written, after the elements. */
static void put_pack_stores(KPrint *p, const bool *need, int n) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || !cuda_packed(p->k, in, n) || !kinst_stores(in))
            continue;
        if (in->op == K_ADD_UP) {
            kp_line(p, "pack_keep(a%d + c, p%d);", id, id);
            continue;
        }
        kp_text(p, "pack_store(b%d + (", in->buf);
        sb_put_index(p->sb, p->k, &in->at, NULL);
        sb_printf(p->sb, "), p%d);\n", id);
    }
}

/* Per instruction: true if a vector load of a sweep needs it (address,
   guard), so that it is computed before the loads. */
static bool *before_packs(const KPrint *p, const bool *need, int n) {
    bool *early = NEW_ARRAY(p->arena, bool, p->k->insts.len);
    for (int id = p->k->insts.len - 1; id > 0; id--) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        if (early[id])
            for (int j = 0; j < KINST_READS; j++)
                early[kinst_read(in, j)] = true;
        else if (in->op == K_LOAD && cuda_packed(p->k, in, n))
            early[in->guard] = early[in->at.inst] = true;
    }
    for (int id = 0; id < p->k->insts.len; id++) early[id] &= id && need[id];
    return early;
}

/* ---- values of rows side by side ----------------------------------------- */

/* Per instruction: values of single rows that are read by the sweep or by
   the instructions after the sweep; r<id>[u] holds the value of row u. */
static bool *own_values(const KPrint *p, bool sweep) {
    const Kernel *k = p->k;
    bool *reads = NEW_ARRAY(p->arena, bool, k->insts.len);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        bool inside = in->full || in->op == K_REDUCE;
        if (inside == sweep && (inside || in->depth || kinst_stores(in)))
            for (int j = 0; j < KINST_READS; j++)
                reads[kinst_read(in, j)] = true;
    }
    for (int id = 0; id < k->insts.len; id++)
        reads[id] = id && reads[id] && cuda_own_value(k, kinst_at(k, id));
    return reads;
}

static void take_own_values(KPrint *p, bool sweep) {
    const bool *reads = own_values(p, sweep);
    for (int id = 1; id < p->k->insts.len; id++)
        if (reads[id])
            kp_line(p, "const %s v%d = r%d[u];",
                    ktype_c[kinst_at(p->k, id)->type], id, id);
}

/* Computes the row values for n rows from i<vec> on, before the sweep. */
static void put_own_values(KPrint *p, int n) {
    const Kernel *k = p->k;
    const bool *inside = own_values(p, true), *behind = own_values(p, false);
    bool any = false, index = false;
    char place[32];
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (kinst_is_row_value(in) && in->depth == 0 && cuda_uniform(k, in))
            kp_inst(p, id, NULL);
        if (!cuda_own_value(k, in)) continue;
        any = true;
        index |= in->op != K_LOAD && in->at.k[k->vec];
        if (inside[id] || behind[id])
            kp_line(p, "%s r%d[%d];", ktype_c[in->type], id, n);
        if (in->op != K_LOAD) continue;
        kp_text(p, "const Pack<%d, %s> p%d = ", n, cp_type(k, in->buf), id);
        sb_printf(p->sb, "pack_load<%d>(b%d + (", n, in->buf);
        sb_put_index(p->sb, k, &in->at, NULL);
        sb_puts(p->sb, "));\n");
    }
    if (!any) return;
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    if (index) kp_line(p, "const %s i%d = r + u;", kp_signed(p), k->vec);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (!cuda_own_value(k, in)) continue;
        snprintf(place, sizeof place, "p%d.v[u]", id);
        kp_inst(p, id, in->op == K_LOAD ? place : NULL);
        if (inside[id] || behind[id]) kp_line(p, "r%d[u] = v%d;", id, id);
    }
    kp_leave(p);
}

/* ---- elements ------------------------------------------------------------ */

/* Computes a sweep's values at one position of the columns; `place` is the
   position's number among the thread's columns. early (may be NULL): values
   that are computed already. */
static void put_cuda_values(KPrint *p, const KSweep *s, int n,
                            const char *place, const bool *early) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena);
    bool live = p->lanes && has_idle(p);
    char pack[32];
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id] || (early && early[id])) continue;
        bool fetched = cuda_fetched(p->k, id);
        if (held && held[id] && !fetched) {
            kp_line(p, "const %s v%d = h%d[%s];", ktype_c[in->type], id, id,
                    place);
            continue;
        }
        bool packed = n > 1 && cuda_packed(p->k, in, n);
        bool shared = !packed && in->keep == KEEP_SHARED;
        if (shared)
            snprintf(pack, sizeof pack, n > 1 ? "s%d[c + u]" : "s%d[c]", id);
        else if (fetched && !packed)
            snprintf(pack, sizeof pack, "q%d[j]", id);
        else
            snprintf(pack, sizeof pack, "p%d.v[u]", id);
        if (shared && !is_copied(p, s, id)) {
            kp_text(p, "%s = b%d[", pack, in->buf);
            sb_put_index(p->sb, p->k, &in->at, NULL);
            sb_puts(p->sb, "];\n");
        }
        int column, number = compared_column(p, in, &column);
        if (number) {
            kp_text(p, "const uint8_t v%d = (int)v%d == column_of(", id,
                    column);
            sb_put_operand(p->sb, p->k, number);
            sb_puts(p->sb, ");\n");
        } else {
            kp_inst(p, id, packed || shared || fetched ? pack : NULL);
        }
        if (in->keep == KEEP_ROW && !fetched)
            kp_line(p, "h%d[%s] = v%d;", id, place, id);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_text(p,
                lane_rows(p) > 1 ? "w%d[u] = f%d(w%d[u], " : "v%d = f%d(v%d, ",
                id, id, id);
        sb_put_operand(p->sb, p->k, kinst_at(p->k, id)->in[0]);
        sb_puts(p->sb, ");\n");
    }
    for (int store = 0; store < 2; store++) { /* vectors are stored first */
        bool begun = false;
        for (int j = s->nfold; j < s->roots.len; j++) {
            int id = s->roots.data[j];
            bool packed = n > 1 && cuda_packed(p->k, kinst_at(p->k, id), n);
            if (packed == store) continue;
            if (!packed && live && !begun) kp_enter(p, "if (live)");
            begun |= !packed;
            snprintf(pack, sizeof pack, packed ? "p%d.v[u]" : "a%d[c]", id);
            if (kinst_at(p->k, id)->op == K_ADD_UP)
                kp_add_up(p, id, pack);
            else
                kp_store(p, id, packed ? pack : NULL);
        }
        if (live && begun) kp_leave(p);
    }
}

/* Prints the sweep for n neighbours along dim vec from i<vec> on. */
static void put_neighbours(KPrint *p, const KSweep *s, int n,
                           const char *first) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), index = false;
    bool live = p->lanes && has_idle(p), stores = false;
    char place[48];
    if (n == 1) {
        put_cuda_values(p, s, 1, first, NULL);
        return;
    }
    for (int id = 1; held && id < p->k->insts.len; id++)
        if (held[id] && !cuda_fetched(p->k, id)) need[id] = false;
    for (int j = s->nfold; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool packed = cuda_packed(p->k, in, n);
        stores |= need[id] && packed && kinst_stores(in);
        index |= need[id] && !packed && in->at.k[p->k->vec];
    }
    bool *early = before_packs(p, need, n);
    for (int id = 1; id < p->k->insts.len; id++)
        if (early[id]) kp_inst(p, id, NULL);
    put_pack_loads(p, s, need, n);
    if (index)
        kp_line(p, "const %s first = i%d;", neighbours_signed(p), p->k->vec);
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    if (has_cut(p, n)) kp_line(p, "if (u >= left) break;");
    if (index)
        kp_line(p, "const %s i%d = first + u;", neighbours_signed(p),
                p->k->vec);
    if (lane_rows(p) > 1) take_own_values(p, true);
    snprintf(place, sizeof place, "%s + u", first);
    put_cuda_values(p, s, n, place, early);
    kp_leave(p);
    if (live && stores) kp_enter(p, "if (live)");
    put_pack_stores(p, need, n);
    if (live && stores) kp_leave(p);
}

static void put_cuda_element(Nest *n) {
    put_neighbours(n->p, n->s, n->p->lanes ? 1 : cuda_pack(n->p->k), "");
}

/* Prints the end of part<depth>, and the vectors that a thread stores
   through it: whole ones without a check, and the row's last with one. */
static void put_parts(KPrint *p, const KSweep *s, const char *type, int pack,
                      int64_t step) {
    p->depth--;
    kp_line(p, "};");
    kp_line(p, "%s c%d = t * %d;", type, s->depth, pack);
    kp_line(p, "for (; c%d + %d <= " I64 "; c%d += " I64 ")", s->depth, pack,
            p->ncols, s->depth, step);
    kp_line(p, "    part%d(c%d, %d);", s->depth, s->depth, pack);
    kp_line(p, "if (c%d < " I64 ")", s->depth, p->ncols);
    kp_line(p, "    part%d(c%d, (int)(" I64 " - c%d));", s->depth, s->depth,
            p->ncols, s->depth);
}

/* A thread takes columns t, t + T, .., or n neighbours there; each fold is
   f<id>(a, b), its accumulator v<id>. Held values require a loop of known
   length.
 */
static void put_lanes(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), used[MAX_RANK] = {0};
    bool holds = held != NULL, sums = false;
    int side = lane_rows(p), pack = cuda_pack(p->k) / side; /* of columns */
    int64_t step = l->step * pack, loops = (p->ncols + step - 1) / step;
    char place[32];
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        const char *type = ktype_c[r->compute];
        cp_fold_function(p, id);
        const char *start = fold_start(r->code, r->compute);
        if (side == 1) {
            kp_line(p, "%s v%d = %s;", type, id, start);
            continue;
        }
        kp_line(p, "%s w%d[%d];", type, id, side);
        kp_line(p, "UNROLL");
        kp_line(p, "for (int u = 0; u < %d; u++) w%d[u] = %s;", side, id,
                start);
    }
    for (int j = 0; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        bool fetched = cuda_fetched(p->k, id);
        sums |= in->op == K_ADD_UP;
        if ((!held || !held[id]) && !fetched && !is_copied(p, s, id) &&
            in->op != K_ADD_UP)
            cp_mark_used(in, used);
        holds |= fetched;
        if (in->keep != KEEP_ROW || fetched) continue;
        holds = true;
        if (!held || !held[id])
            kp_line(p, "%s h%d[" I64 "];", ktype_c[in->type], id, loops * pack);
    }
    if (p->ncols > 0) {
        const char *u = columns_unsigned(p);
        bool cut = !holds && has_cut(p, pack * side);
        int open = 1;
        snprintf(place, sizeof place, pack > 1 ? "j * %d" : "j", pack);
        if (holds) {
            bool index = sums;
            for (int i = 0; i < p->ncol; i++) index |= used[p->cols[i]];
            open = enter_columns(p, index);
        } else if (cut) { /* the last vector is printed separately */
            kp_enter(p, "const auto part%d = [&](%s c, int left)", s->depth, u);
        } else if (pack > 1) {
            kp_enter(p, "for (%s c = t * %d; c < " I64 "; c += " I64 ")", u,
                     pack, p->ncols, step);
        } else {
            kp_enter(p, "for (%s c = t; c < " I64 "; c += " I64 ")", u,
                     p->ncols, step);
        }
        kp_dims(p, "c", p->cols, p->ncol, used);
        if (holds && has_cut(p, pack * side))
            kp_line(p, "const int left = (int)(" I64 " - c);", p->ncols);
        put_neighbours(p, s, pack * side, place);
        if (cut)
            put_parts(p, s, u, pack, step);
        else
            while (open--) kp_leave(p);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        if (side > 1) kp_line(p, "UNROLL");
        if (side > 1) kp_enter(p, "for (int u = 0; u < %d; u++)", side);
        kp_line(p,
                side > 1 ? "w%d[u] = fold_%s<" I64 ">(w%d[u], f%d);"
                         : "v%d = fold_%s<" I64 ">(v%d, f%d);",
                id,
                is_sliced(p) ? "slices"
                : p->threads ? "lanes"
                             : "block",
                l->step, id, id);
        if (side > 1) kp_leave(p);
    }
}

void cp_sweep(KPrint *p, const KSweep *s) {
    static const Spelling cuda = {.element = put_cuda_element,
                                  .loop = {[LOOP_BLOCK] = kp_loop_outside,
                                           [LOOP_SERIAL] = kp_loop_outside,
                                           [LOOP_THREAD] = kp_loop_outside,
                                           [LOOP_UNROLLED] = kp_loop_outside,
                                           [LOOP_LANES] = put_lanes}};
    Nest n = {.p = p, .s = s, .spell = &cuda};
    kp_nest(&n);
}

/* ---- kernels ------------------------------------------------------------- */

void cp_elements(KPrint *p) {
    int all[MAX_RANK];
    for (int d = 0; d < p->k->ndim; d++) all[d] = d;
    int n = cuda_pack(p->k);
    kp_text(p, "const %s e = %s%s%s * " I64 " + threadIdx.x", cp_unsigned(p),
            n > 1 ? "(" : "", p->wide ? "(uint64_t)" : "", p->block,
            loop_steps(p->threads));
    if (n > 1) sb_printf(p->sb, ") * %d", n);
    sb_puts(p->sb, ";\n");
    kp_line(p, "if (e >= " I64 ") return;", p->nrows * p->ncols);
    kp_dims(p, "e", all, p->k->ndim, p->used);
    kp_sweeps(p, kp_row_insts, cp_sweep);
    kp_stores(p, false);
}

/* Declares shared memory for copies of a row's loads; each copy is read by
   the thread that wrote it. */
static void put_shared(KPrint *p) {
    if (cuda_shared(p->k, 0) > 0) kp_line(p, "BLOCK_SHARED(shared);");
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->keep != KEEP_SHARED) continue;
        const char *type = cp_type(p->k, in->buf);
        kp_line(p, "%s *const s%d = (%s *)(shared + " I64 ");", type, id, type,
                cuda_shared(p->k, id));
    }
}

/* ---- sums of columns ----------------------------------------------------- */

/* The instruction of a kernel's j-th sum. */
static int column_sum(const Kernel *k, int j) {
    int id = 1;
    while (kinst_at(k, id)->op != K_ADD_UP || j-- > 0) id++;
    return id;
}

/* Declares the sums of all teams, which begin at 0. */
static void put_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k);
    int n = kernel_column_sums(p->k);
    kp_line(p, "BLOCK_SHARED(shared);");
    kp_line(p, "float *const all = (float *)shared;");
    for (int j = 0; j < n; j++) {
        kp_text(p, "float *const a%d = all", column_sum(p->k, j));
        if (j) sb_printf(p->sb, " + " I64, j * teams * cols);
        if (teams > 1)
            sb_printf(p->sb, " + threadIdx.x / " I64 " * " I64, p->lanes->step,
                      cols);
        sb_puts(p->sb, ";\n");
    }
    kp_line(p,
            "for (unsigned c = threadIdx.x; c < " I64 "; c += %d) all[c] = 0;",
            n * teams * cols, cuda_shape(p->k).threads);
    kp_line(p, "__syncthreads();");
}

/* Adds up the sums of all teams of the block. */
static void put_block_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k), blocks = cuda_shape(p->k).blocks;
    int n = kernel_column_sums(p->k);
    kp_line(p, "__syncthreads();");
    kp_enter(p, "for (unsigned c = threadIdx.x; c < " I64 "; c += %d)",
             p->ncols, cuda_shape(p->k).threads);
    for (int j = 0; j < n; j++) {
        kp_line(p, "float v%d = all[c + " I64 "];", j, j * teams * cols);
        for (int64_t w = 1; w < teams; w++)
            kp_line(p, "v%d += all[c + " I64 "];", j, (j * teams + w) * cols);
        kp_line(p, "sums[(" I64 " + %s) * " I64 " + c] = v%d;", j * blocks,
                p->block, p->ncols, j);
    }
    kp_leave(p);
}

void cp_finish(KPrint *p) {
    enum { WARP = 32 };
    const Kernel *k = p->k;
    int64_t blocks = cuda_shape(k).blocks, side = (p->ncols - 1) / WARP + 1;
    int n = kernel_column_sums(k), slices = cuda_finish_shape(k).threads / WARP;
    CudaList l = cp_head(p, "_2", slices * WARP);
    cp_buffers(k, &l);
    cp_item(&l, "const float *__restrict__ sums");
    sb_puts(p->sb, ")\n{\n");
    p->depth = 1;
    kp_line(
        p, "const unsigned c = blockIdx.x %% " I64 " * 32 + threadIdx.x %% 32;",
        side);
    kp_line(p, "const unsigned sum = blockIdx.x / " I64 ";", side);
    kp_line(p, "const auto f = [](float a, float b) -> float { return a + b; "
               "};");
    kp_line(p, "float v = 0;");
    kp_line(p, "if (c < " I64 ")", p->ncols);
    kp_line(p, "    for (unsigned s = threadIdx.x / 32; s < " I64 "; s += %d)",
            blocks, slices);
    kp_line(p, "        v += sums[(sum * " I64 " + s) * " I64 " + c];", blocks,
            p->ncols);
    kp_line(p, "v = fold_slices<%d>(v, f);", slices);
    kp_line(p, "if (threadIdx.x >= 32 || c >= " I64 ") return;", p->ncols);
    for (int j = 0; j < n; j++) {
        int id = column_sum(k, j), b = kinst_at(k, id)->buf;
        DType d = k->bufs.data[b].dtype;
        kp_line(p, "if (sum == %d) b%d[c] = %s%s(v);", j, b,
                dtype_is_low(d) ? "F32_TO_" : "",
                dtype_is_low(d) ? dtype_info[d].macro : "");
    }
    sb_puts(p->sb, "}\n\n");
}

/* ---- rows of a block ----------------------------------------------------- */

/* A team's work on n adjacent rows from i<vec> on: one sweep, then the row
   instructions of each (row_neighbours). */
static void put_side_by_side(KPrint *p, int n) {
    const KSweep *s = p->sweeps.data;
    put_own_values(p, n);
    cp_sweep(p, s);
    kp_line(p, "__syncthreads();");
    kp_line(p, "if (t != 0) return;");
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    kp_line(p, "const %s i%d = r + u;", kp_signed(p), p->k->vec);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_line(p, "const %s v%d = w%d[u];",
                ktype_c[kinst_at(p->k, id)->compute], id, id);
    }
    take_own_values(p, false);
    for (int depth = 1; depth <= kp_last_depth(p); depth++)
        kp_row_insts(p, depth);
    kp_stores(p, false);
    kp_leave(p);
}

/* A team's work on one row. */
static void put_cuda_row(KPrint *p) {
    bool idle = has_idle(p), shared = p->lanes->step > 1;
    if (is_sliced(p))
        put_rows_of_lanes(p);
    else
        put_rows_of_teams(p);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    if (lane_rows(p) > 1) {
        put_side_by_side(p, lane_rows(p));
        return;
    }
    if (p->ncols > 0) put_fetched(p);
    kp_sweeps(p, kp_row_insts, cp_sweep);
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

void cp_rows(KPrint *p) {
    const KLoop *some = sum_rows(p);
    if (p->ncols > 0) {
        kp_text(p, "const unsigned t = threadIdx.x");
        if (p->threads)
            sb_printf(p->sb, is_sliced(p) ? " / " I64 : " %% " I64,
                      is_sliced(p) ? loop_steps(p->threads) : p->lanes->step);
        sb_puts(p->sb, ";\n");
    }
    for (int b = 0; p->ncols == 0 && b < p->k->bufs.len; b++)
        if (!p->k->bufs.data[b].written) kp_line(p, "(void)b%d;", b);
    put_shared(p);
    if (!some) {
        put_cuda_row(p);
        return;
    }
    put_sums(p);
    kp_enter(p, "for (unsigned at = 0; at < " I64 "; at += " I64 ")",
             some->extent, some->step);
    if (has_idle(p))
        kp_line(p, "if (%s%s * " I64 " + at >= " I64 ") break;",
                p->wide ? "(uint64_t)" : "", p->block, some->extent, p->nrows);
    put_cuda_row(p);
    kp_leave(p);
    put_block_sums(p);
}
