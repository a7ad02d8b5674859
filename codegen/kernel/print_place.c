/* print_place.c: where values lie, the same for the C and the CUDA printer:
   indices, loads that widen to the register, stores that narrow from it.    */
#include "codegen/kernel/kir.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- indices ------------------------------------------------------------- */

/* One term of a sum; `first` drops the leading plus. */
static void put_term(StrBuf *sb, bool *first, int64_t k, const char *name) {
    if (!*first)
        sb_puts(sb, k < 0 ? " - " : " + ");
    else if (k < 0)
        sb_puts(sb, "-");
    uint64_t m = k < 0 ? 0 - (uint64_t)k : (uint64_t)k;
    if (m == 1)
        sb_puts(sb, name);
    else
        sb_printf(sb, "%" PRIu64 " * %s", m, name);
    *first = false;
}

void sb_put_index(StrBuf *sb, const Kernel *k, const KIndex *at,
                  const char *vec) {
    bool first = true;
    char name[24];
    for (int d = 0; d < k->ndim; d++) {
        snprintf(name, sizeof name, "i%d", d);
        if (at->k[d])
            put_term(sb, &first, at->k[d], vec && d == k->vec ? vec : name);
    }
    snprintf(name, sizeof name, "v%d", at->inst);
    if (at->inst && kinst_at(k, at->inst)->op == K_CONST) {
        if (!first) sb_puts(sb, " + ");
        sb_put_operand(sb, k, at->inst);
        first = false;
    } else if (at->inst) {
        put_term(sb, &first, 1, name);
    }
    if (first)
        sb_printf(sb, "%" PRId64, at->c);
    else if (at->c)
        sb_printf(sb, at->c < 0 ? " - %" PRIu64 : " + %" PRIu64,
                  at->c < 0 ? 0 - (uint64_t)at->c : (uint64_t)at->c);
}

static void put_place(StrBuf *sb, const Kernel *k, const KInst *in,
                      const char *place) {
    if (place) {
        sb_puts(sb, place);
        return;
    }
    sb_printf(sb, "b%d[", in->buf);
    sb_put_index(sb, k, &in->at, NULL);
    sb_puts(sb, "]");
}

/* ---- loads and stores ---------------------------------------------------- */

void sb_put_load(StrBuf *sb, const Kernel *k, const KInst *in,
                 const char *place, int known) {
    DType d = k->bufs.data[in->buf].dtype;
    if (known == 0) {
        sb_puts(sb, "0");
        return;
    }
    if (known < 0) {
        sb_put_operand(sb, k, in->guard);
        sb_puts(sb, " ? ");
    }
    if (dtype_is_16(d))
        sb_printf(sb, "%s_TO_F32(", d == DT_F16 ? "F16" : "BF16");
    put_place(sb, k, in, place);
    if (dtype_is_16(d)) sb_puts(sb, ")");
    if (known < 0) sb_puts(sb, " : 0");
}

void sb_put_store(StrBuf *sb, const Kernel *k, const KInst *in,
                  const char *place) {
    DType d = k->bufs.data[in->buf].dtype;
    put_place(sb, k, in, place);
    sb_puts(sb, " = ");
    if (dtype_is_16(d))
        sb_printf(sb, "%s_%s(",
                  kinst_at(k, in->in[0])->fits >> d & 1 ? "EXACT" : "F32_TO",
                  d == DT_F16 ? "F16" : "BF16");
    else if (dtype_is_int(d) && dtype_info[d].bytes < 8)
        sb_printf(sb, "(%s)(", dtype_info[d].c);
    else
        sb_puts(sb, "(");
    sb_put_operand(sb, k, in->in[0]);
    sb_puts(sb, ");\n");
}

/* ---- text ---------------------------------------------------------------- */

void sb_put_line(StrBuf *sb, int depth, const char *fmt, va_list ap,
                 const char *end) {
    sb_printf(sb, "%*s", 4 * depth, "");
    sb_vprintf(sb, fmt, ap);
    sb_puts(sb, end);
}

void sb_put_kernel_comment(StrBuf *sb, const Kernel *k) {
    const char *s = k->comment ? k->comment : "";
    sb_puts(sb, "/*");
    while (*s) {
        const char *end = strchr(s, '\n');
        size_t n = end ? (size_t)(end - s) : strlen(s);
        sb_puts(sb, s == k->comment ? " " : "\n   ");
        sb_putn(sb, s, n);
        s += n + (end != NULL);
    }
    sb_puts(sb, "\n   ");
    kernel_dump_loops(k, sb);
    sb_puts(sb, " */\n");
}
