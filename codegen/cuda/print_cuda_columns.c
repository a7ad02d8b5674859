/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_columns.c: a thread's elements of a row: vectors of neighbours,
   values of rows side by side (print_cuda.h). */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>

bool cp_is_sliced(const KPrint *p) { return p->k->form == KF_ROWS; }

int cp_lane_rows(const KPrint *p) {
    return cp_is_sliced(p) ? cuda_pack(p->k) : 1;
}

const KLoop *cp_sum_rows(const KPrint *p) {
    return kernel_loop(p->k, LOOP_SERIAL, LOOP_ROWS);
}

bool cp_has_idle(const KPrint *p) {
    const KLoop *some = cp_sum_rows(p);
    if (some) return p->nrows % some->extent != 0;
    int64_t n = cp_is_sliced(p) ? p->k->dim[p->k->vec].extent : p->nrows;
    return p->threads && n % p->threads->extent != 0;
}
bool cp_is_copied(const KPrint *p, const KSweep *s, int id) {
    if (kinst_at(p->k, id)->keep != KEEP_SHARED) return false;
    for (const KSweep *x = p->sweeps.data; x < s; x++)
        if (kernel_need(p->k, x, NULL, p->arena)[id]) return true;
    return false;
}

const char *cp_columns_unsigned(const KPrint *p) {
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

bool cp_has_cut(const KPrint *p, int n) {
    return !cp_is_sliced(p) && p->ncols % n != 0;
}

int cp_enter_columns(KPrint *p, bool index) {
    int pack = cuda_pack(p->k);
    int64_t lanes = p->lanes->step, step = lanes * pack;
    bool tail = p->ncols % step != 0;
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int j = 0; j < " I64 "; j++)",
             (p->ncols + step - 1) / step);
    if (index || tail) {
        kp_text(p, "const %s c = (j * " I64 " + t)", cp_columns_unsigned(p),
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

void cp_fetched(KPrint *p) {
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
    int open = cp_enter_columns(p, true);
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
        const char *type = dtype_info[kinst_dtype(p->k, in)].c;
        if (in->op == K_STORE) {
            kp_line(p, "Pack<%d, %s> p%d%s;", n, type, id,
                    cp_has_cut(p, n) ? " = {}" : "");
            continue;
        }
        if (cuda_fetched(p->k, id)) {
            kp_line(p, "const Pack<%d, %s> p%d = q%d[j];", n, type, id, id);
            continue;
        }
        bool copied = cp_is_copied(p, s, id);
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
        if (in->tile) {
            kp_line(p, "pack_keep(l%d + c, p%d);", id, id);
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

void cp_take_own_values(KPrint *p, bool sweep) {
    const bool *reads = own_values(p, sweep);
    for (int id = 1; id < p->k->insts.len; id++)
        if (reads[id])
            kp_line(p, "const %s v%d = r%d[u];",
                    ktype_c[kinst_at(p->k, id)->type], id, id);
}

void cp_own_values(KPrint *p, int n) {
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

static bool adds_zero(const Kernel *k, const KInst *fold) {
    const KInst *x = kinst_at(k, fold->in[0]);
    return fold->code == OP_REDUCE_SUM && x->op == K_CONST && x->f == 0 &&
           x->i == 0;
}

/* Computes a sweep's values at one position of the columns; `place` is the
   position's number among the thread's columns. early (may be NULL): values
   that are computed already. */
static void put_cuda_values(KPrint *p, const KSweep *s, int n,
                            const char *place, const bool *early) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena);
    bool live = p->lanes && cp_has_idle(p);
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
        if (shared && !cp_is_copied(p, s, id)) {
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
        if (adds_zero(p->k, kinst_at(p->k, id))) continue;
        kp_text(p,
                cp_lane_rows(p) > 1 ? "w%d[u] = f%d(w%d[u], "
                                    : "v%d = f%d(v%d, ",
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
            const KInst *in = kinst_at(p->k, id);
            snprintf(pack, sizeof pack,
                     packed     ? "p%d.v[u]"
                     : in->tile ? "l%d[c]"
                                : "a%d[c]",
                     id);
            if (in->op == K_ADD_UP)
                kp_add_up(p, id, pack);
            else
                kp_store(p, id, packed || in->tile ? pack : NULL);
        }
        if (live && begun) kp_leave(p);
    }
}

/* The values of n neighbours, one after the other. */
static void put_each(KPrint *p, const KSweep *s, int n, const char *first,
                     const bool *early) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), index = false;
    char place[48];
    for (int j = s->nfold; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        bool taken = held && held[id] && !cuda_fetched(p->k, id);
        index |= need[id] && !taken && !cuda_packed(p->k, in, n) &&
                 in->at.k[p->k->vec];
    }
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    if (cp_has_cut(p, n)) kp_line(p, "if (u >= left) break;");
    if (index)
        kp_line(p, "const %s i%d = first + u;", neighbours_signed(p),
                p->k->vec);
    if (cp_lane_rows(p) > 1) cp_take_own_values(p, true);
    snprintf(place, sizeof place, "%s + u", first);
    put_cuda_values(p, s, n, place, early);
    kp_leave(p);
}

/* Likewise, if one column of the row at most is something else: only the thread
   that has it asks which. */
static void put_others_apart(KPrint *p, const KSweep *s, int n,
                             const char *first, const bool *early, int one) {
    const Kernel *k = p->k;
    int column, number = compared_column(p, kinst_at(k, one), &column);
    kp_text(p, "if ((unsigned)(column_of(");
    sb_put_operand(p->sb, k, number);
    sb_printf(p->sb, ") - first) < %d) {\n", n);
    p->depth++;
    put_each(p, s, n, first, early);
    kp_leave(p);
    kp_enter(p, "else");
    p->k = kernel_other_columns(p->arena, k, one);
    put_each(p, s, n, first, early);
    p->k = k;
    kp_leave(p);
}

void cp_neighbours(KPrint *p, const KSweep *s, int n, const char *first) {
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), index = false;
    bool live = p->lanes && cp_has_idle(p), stores = false;
    int one = p->narrow_cols ? kernel_one_column(p->k) : 0;
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
    if (need[one])
        put_others_apart(p, s, n, first, early, one);
    else
        put_each(p, s, n, first, early);
    if (live && stores) kp_enter(p, "if (live)");
    put_pack_stores(p, need, n);
    if (live && stores) kp_leave(p);
}
