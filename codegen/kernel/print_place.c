/* SPDX-License-Identifier: Apache-2.0 */
/* print_place.c: addresses of values, for both the C and the CUDA printer:
   indices, loads that widen to the register, stores that narrow from it.    */
#include "codegen/kernel/print.h"

#include <stdio.h>
#include <string.h>

/* ---- indices ------------------------------------------------------------- */

/* Prints one term of a sum; `first` drops the leading plus. marks: the
   kernel whose strides may be marked; NULL: the stride is not marked. */
static void put_term(StrBuf *sb, const Kernel *marks, bool *first, int64_t k,
                     const char *name) {
    if (!*first)
        sb_puts(sb, k < 0 ? " - " : " + ");
    else if (k < 0)
        sb_puts(sb, "-");
    uint64_t m = k < 0 ? 0 - (uint64_t)k : (uint64_t)k;
    if (marks && k > 1)
        sb_put_size(sb, marks, 'i', k);
    else if (m != 1)
        sb_printf(sb, "%" PRIu64, m);
    sb_printf(sb, m == 1 ? "%s" : " * %s", name);
    *first = false;
}

void sb_put_index(StrBuf *sb, const Kernel *k, const KIndex *at,
                  const char *vec) {
    bool first = true;
    char name[24];
    for (int d = 0; d < k->ndim; d++) {
        snprintf(name, sizeof name, "i%d", d);
        if (at->k[d])
            put_term(sb, d == k->vec ? NULL : k, &first, at->k[d],
                     vec && d == k->vec ? vec : name);
    }
    if (at->inst) {
        if (!first) sb_puts(sb, " + ");
        sb_put_operand(sb, k, at->inst);
        first = false;
    }
    if (first)
        sb_printf(sb, I64, at->c);
    else if (at->c < 0)
        sb_printf(sb, " - %" PRIu64, 0 - (uint64_t)at->c);
    else if (at->c) {
        sb_puts(sb, " + ");
        sb_put_size(sb, k, 'i', at->c);
    }
}

void sb_put_buffer(StrBuf *sb, const Kernel *k, const KInst *in) {
    if (in->place)
        sb_printf(sb, "((const %s *)v%d)",
                  dtype_info[k->bufs.data[in->buf].dtype].c, in->place);
    else
        sb_printf(sb, "b%d", in->buf);
}

static void put_kernel_place(StrBuf *sb, const Kernel *k, const KInst *in,
                             const char *place) {
    if (place) {
        sb_puts(sb, place);
        return;
    }
    sb_put_buffer(sb, k, in);
    sb_puts(sb, "[");
    sb_put_index(sb, k, &in->at, NULL);
    sb_puts(sb, "]");
}

/* ---- loads and stores ---------------------------------------------------- */

static void put_load(StrBuf *sb, const Kernel *k, const KInst *in,
                     const char *place) {
    DType d = k->bufs.data[in->buf].dtype;
    if (in->guard) {
        sb_put_operand(sb, k, in->guard);
        sb_puts(sb, " ? ");
    }
    if (dtype_is_low(d)) sb_printf(sb, "%s_TO_F32(", dtype_info[d].macro);
    put_kernel_place(sb, k, in, place);
    if (dtype_is_low(d)) sb_puts(sb, ")");
    if (in->guard) sb_puts(sb, " : 0");
}

/* ---- text ---------------------------------------------------------------- */

void sb_put_kernel_comment(StrBuf *sb, const Kernel *k) {
    const char *s = k->comment ? k->comment : "";
    FactList loops = fact_series(false, ",", ", ");
    sb_puts(sb, "/*");
    while (*s) {
        const char *end = strchr(s, '\n');
        size_t n = end ? (size_t)(end - s) : strlen(s);
        sb_puts(sb, s == k->comment ? " " : "\n   ");
        sb_putn(sb, s, n);
        s += n + (end != NULL);
    }
    sb_puts(sb, "\n   ");
    kernel_loops(k, &loops);
    fact_list_put(&loops, sb);
    sb_puts(sb, " */\n");
}

/* ---- a kernel being printed ---------------------------------------------- */

KPrint kp_begin(const Kernel *k, StrBuf *sb) {
    KPrint p = {.sb = sb, .arena = arena_new(), .acc = "acc"};
    p.k = k = kernel_within(p.arena, k, -1, 0, 0);
    p.sweeps = kernel_sweeps(k, p.arena);
    p.ncol = kernel_col_dims(k, p.cols);
    p.side = kernel_side(k);
    for (int d = 0; d < k->ndim; d++)
        if (!k->dim[d].col && d != p.side &&
            !(k->form == KF_ROWS && d == k->vec))
            p.rows[p.nrow++] = d;
    p.ncols = kernel_cols(k);
    p.nrows = kernel_rows(k);
    for (const KLoop *l = k->loop; l < k->loop + k->nloop; l++) {
        if (l->kind == LOOP_THREAD) p.threads = l;
        if (l->kind == LOOP_LANES) p.lanes = l;
    }
    return p;
}

void kp_end(KPrint *p) { arena_free(p->arena); }

static void put_indented(KPrint *p, const char *fmt, va_list ap,
                         const char *end) {
    sb_printf(p->sb, "%*s", 4 * p->depth, "");
    sb_vprintf(p->sb, fmt, ap);
    sb_puts(p->sb, end);
}

void kp_line(KPrint *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_indented(p, fmt, ap, "\n");
    va_end(ap);
}

void kp_enter(KPrint *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_indented(p, fmt, ap, " {\n");
    va_end(ap);
    p->depth++;
}

void kp_leave(KPrint *p) {
    p->depth--;
    kp_line(p, "}");
}

void kp_text(KPrint *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_indented(p, fmt, ap, "");
    va_end(ap);
}

void kp_inst(KPrint *p, int id, const char *place) {
    const KInst *in = kinst_at(p->k, id);
    if (in->op == K_CONST) return;
    kp_text(p, "const %s v%d = ", ktype_c[in->type], id);
    if (p->piece && p->piece[id] && in->op == K_LOAD)
        sb_printf(p->sb, "h%d[%s]", id, p->piece_at);
    else if (p->piece && p->piece[id])
        sb_put_operand(p->sb, p->k, in->in[0]);
    else if (in->op == K_LOAD)
        put_load(p->sb, p->k, in, place);
    else if (in->op == K_INDEX)
        sb_put_index(p->sb, p->k, &in->at, NULL);
    else if (in->op == K_PLACE)
        sb_printf(p->sb, "(int64_t)buf[%d + v%d]", in->buf, in->in[0]);
    else if (in->op == K_ACC)
        sb_puts(p->sb, p->acc);
    else
        sb_put_kinst(p->sb, p->k, in);
    sb_puts(p->sb, ";\n");
}

void kp_row_insts(KPrint *p, int depth) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (kinst_is_row_value(in) && in->depth == depth) kp_inst(p, id, NULL);
    }
}

int kp_last_depth(const KPrint *p) {
    int last = 0;
    for (int id = 1; id < p->k->insts.len; id++)
        if (kinst_at(p->k, id)->depth > last) last = kinst_at(p->k, id)->depth;
    return last;
}

void kp_sweeps(KPrint *p, void row_values(KPrint *, int depth),
               void sweep(KPrint *, const KSweep *)) {
    int done = 0, last = kp_last_depth(p);
    for (int s = 0; s < p->sweeps.len; s++) {
        for (; done <= p->sweeps.data[s].depth; done++) row_values(p, done);
        sweep(p, &p->sweeps.data[s]);
    }
    for (; done <= last; done++) row_values(p, done);
}

void kp_nest(Nest *n) {
    const Kernel *k = n->p->k;
    if (n->depth == k->nloop) {
        n->spell->element(n);
        return;
    }
    const KLoop *l = &k->loop[n->depth++];
    ASSERT(n->spell->loop[l->kind]);
    n->spell->loop[l->kind](n, l);
    n->depth--;
}

void kp_loop_outside(Nest *n, const KLoop *l) {
    (void)l;
    kp_nest(n);
}

/* What a store of dtype d stores. On a GPU one instruction rounds to 8 bits: of
   a value rounded before, the unrounded one, if it is at hand. */
static int stored_operand(const KPrint *p, const KInst *in, DType d) {
    const KInst *x = kinst_at(p->k, in->in[0]);
    bool early = p->block && x->op == K_ROUND && x->dtype == d &&
                 dtype_info[d].bytes == 1 && x->type == KT_F32 &&
                 x->keep == KEEP_NOT && x->full;
    return early ? x->in[0] : in->in[0];
}

void kp_store(KPrint *p, int id, const char *place) {
    const KInst *in = kinst_at(p->k, id);
    DType d = kinst_dtype(p->k, in);
    int operand = stored_operand(p, in, d);
    bool piece = p->piece && p->piece[id];
    kp_text(p, "%s", "");
    if (piece && p->in_order && !p->lane && dtype_info[d].shuffled) {
        sb_printf(p->sb, "STORE_%s(", dtype_info[d].macro);
        put_kernel_place(p->sb, p->k, in, place);
        sb_printf(p->sb, ", h%d[%s], ", id, p->piece_at);
        sb_put_operand(p->sb, p->k, in->in[0]);
        sb_puts(p->sb, ");\n");
        return;
    }
    if (piece)
        sb_printf(p->sb, "h%d[%s]", id, p->piece_at);
    else
        put_kernel_place(p->sb, p->k, in, place);
    sb_puts(p->sb, " = ");
    if (piece)
        sb_puts(p->sb, "(");
    else if (dtype_is_low(d))
        sb_printf(p->sb, "%s_%s(",
                  kinst_at(p->k, operand)->fits >> d & 1 ? "EXACT" : "F32_TO",
                  dtype_info[d].macro);
    else if (dtype_is_int(d) && dtype_info[d].bytes < 8)
        sb_printf(p->sb, "(%s)(", dtype_info[d].c);
    else
        sb_puts(p->sb, "(");
    sb_put_operand(p->sb, p->k, operand);
    sb_puts(p->sb, ");\n");
}

void kp_add_up(KPrint *p, int id, const char *place) {
    kp_text(p, "%s += ", place);
    sb_put_operand(p->sb, p->k, kinst_at(p->k, id)->in[0]);
    sb_puts(p->sb, ";\n");
}

void kp_stores(KPrint *p, bool full) {
    for (int id = 1; id < p->k->insts.len; id++)
        if (kinst_at(p->k, id)->op == K_STORE &&
            kinst_at(p->k, id)->full == full)
            kp_store(p, id, NULL);
}

bool kp_has_stores(const KPrint *p, bool full) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->op == K_STORE && in->full == full) return true;
    }
    return false;
}

const char *kp_signed(const KPrint *p) { return p->wide ? "int64_t" : "int"; }

static void put_divisor(KPrint *p, bool size, const char *sign, int64_t n) {
    sb_puts(p->sb, sign);
    if (size)
        sb_put_size(p->sb, p->k, 'u', n);
    else
        sb_printf(p->sb, I64, n);
}

void kp_dims(KPrint *p, const char *of, const int *dim, int n,
             const bool *used) {
    int64_t stride = 1;
    /* C: row numbers have 32 bits, which divide faster */
    bool rows = p->k->marks && dim == p->rows && p->nrows <= INT32_MAX;
    for (int j = n - 1; j >= 0; j--) {
        int64_t extent = p->k->dim[dim[j]].extent;
        if (!used || used[dim[j]]) {
            bool narrow = dim == p->cols && p->narrow_cols;
            kp_text(p, "const %s i%d = %s%s", narrow ? "int" : kp_signed(p),
                    dim[j], rows && (stride != 1 || j > 0) ? "(uint32_t)" : "",
                    of);
            if (stride != 1) put_divisor(p, rows, " / ", stride);
            if (j > 0) put_divisor(p, rows, " % ", extent);
            sb_puts(p->sb, ";\n");
        }
        /* an extent of zero: the loop never runs; never print a division by
           zero */
        stride *= extent ? extent : 1;
    }
}
