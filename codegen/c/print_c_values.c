/* SPDX-License-Identifier: Apache-2.0 */
/* print_c_values.c: values that a kernel keeps, and the folds of its
   reductions. */
#include "codegen/c/print_c.h"

int64_t pc_extent(const KPrint *p, int d) { return p->k->dim[d].extent; }

bool pc_keeps(const KPrint *p, int id, KKeep keep) {
    return kinst_at(p->k, id)->keep == keep;
}

bool pc_is_rows(const KPrint *p) { return p->k->form == KF_ROWS; }

const char *pc_size_text(KPrint *p, int64_t n) {
    StrBuf sb = {0};
    sb_put_size(&sb, p->k, 'i', n);
    const char *text = arena_printf(p->arena, "%s", sb.data);
    sb_free(&sb);
    return text;
}

const char *pc_length_text(KPrint *p, int64_t n) {
    return n < LEAST_LENGTH ? arena_printf(p->arena, I64, n)
                            : pc_size_text(p, n);
}

const char *pc_compute_c(const KPrint *p, int id) {
    return ktype_c[kinst_at(p->k, id)->compute];
}

void pc_put_length(KPrint *p, int64_t e, int64_t step) {
    const char *end = pc_size_text(p, e);
    kp_line(p, "const int64_t n = %s - c0 < " I64 " ? %s - c0 : " I64 ";", end,
            step, end, step);
}

void pc_put_end(KPrint *p, char c, int64_t e, int64_t step) {
    const char *end = pc_size_text(p, e);
    kp_line(p, "const int64_t %c1 = %c0 + " I64 " < %s ? %c0 + " I64 " : %s;",
            c, c, step, end, c, step, end);
}

void pc_ivdep(KPrint *p) { sb_puts(p->sb, "#pragma GCC ivdep\n"); }

/* ---- values that are kept ------------------------------------------------ */

void pc_put_kept(KPrint *p, int id, bool load) {
    int64_t stride = 1;
    StrBuf at = {0};
    for (int j = p->ncol - 1; j >= 0; j--) {
        if (j < p->ncol - 1) sb_puts(&at, " + ");
        if (stride != 1) sb_printf(&at, "%s * ", pc_size_text(p, stride));
        sb_printf(&at, "i%d", p->cols[j]);
        stride *= pc_extent(p, p->cols[j]);
    }
    if (load)
        kp_line(p, "const %s v%d = s%d[%s];", ktype_c[kinst_at(p->k, id)->type],
                id, id, at.data);
    else
        kp_line(p, "s%d[%s] = v%d;", id, at.data, id);
    sb_free(&at);
}

void pc_put_in_tile(KPrint *p, int id, bool load) {
    const char *at =
        arena_printf(p->arena, "t%d[(i%d - y0) * " I64 " + i%d - c0]", id,
                     p->side, p->threads->step, p->k->vec);
    if (load)
        kp_line(p, "const %s v%d = %s;", ktype_c[kinst_at(p->k, id)->type], id,
                at);
    else
        kp_line(p, "%s = v%d;", at, id);
}

void pc_put_tile_loads(KPrint *p) {
    int x = p->k->vec, y = p->side;
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!pc_keeps(p, id, KEEP_TILE)) continue;
        int64_t rows = kernel_loop(p->k, LOOP_THREAD, y)->step;
        kp_line(p, "%s t%d[" I64 "];", ktype_c[kinst_at(p->k, id)->type], id,
                rows * p->threads->step);
        kp_enter(p, "for (int64_t i%d = c0; i%d < c1; i%d++)", x, x, x);
        pc_ivdep(p);
        kp_enter(p, "for (int64_t i%d = y0; i%d < y1; i%d++)", y, y, y);
        kp_inst(p, id, NULL);
        pc_put_in_tile(p, id, false);
        kp_leave(p);
        kp_leave(p);
    }
}

void pc_put_row_operands(KPrint *p, const bool *of) {
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
        if (pc_keeps(p, id, KEEP_BLOCK))
            kp_line(p, "const %s v%d = r%d[j];",
                    ktype_c[kinst_at(p->k, id)->type], id, id);
        else
            kp_inst(p, id, NULL);
    }
}

/* ---- folds --------------------------------------------------------------- */

void pc_put_fold_call(KPrint *p, int id) {
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
    } else if (kernel_folds_kept(p->k, r)) {
        sb_printf(p->sb, "s%d + c0", r->in[0]);
    } else {
        sb_printf(p->sb, "t%d", id);
    }
    sb_puts(p->sb, ", n);\n");
}

void pc_put_start(const Nest *n, char acc) {
    for (int j = 0; j < n->s->nfold; j++) {
        int id = n->s->roots.data[j];
        const KInst *r = kinst_at(n->p->k, id);
        kp_line(n->p, "for (int64_t j = 0; j < n; j++) %c%d[j] = %s;", acc, id,
                fold_start(r->code, r->compute));
    }
}

void pc_put_accumulate(KPrint *p, char acc, const char *at, int id,
                       const char *value) {
    const KInst *r = kinst_at(p->k, id);
    const char *to = arena_printf(p->arena, "%c%d[%s]", acc, id, at);
    kp_text(p, "%s = ", to);
    sb_put_fold(p->sb, r->code, r->compute, to, value);
    sb_puts(p->sb, ";\n");
}
