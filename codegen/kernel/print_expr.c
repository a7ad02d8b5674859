/* SPDX-License-Identifier: Apache-2.0 */
/* print_expr.c: scalar instructions as C expressions, the same for the C and
   the CUDA printer.  An upper-case function F of the op table becomes F_F32,
   F_F64, F_I64 or F_B8 by the type it computes in: runtime/cpu/kmath.h defines
   them.                                                                     */
#include "codegen/kernel/print.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

const char *const ktype_c[] = {"uint8_t", "int64_t", "float", "double"};
const char *const ktype_suffix[] = {"_B8", "_I64", "_F32", "_F64"};

/* ---- numbers ------------------------------------------------------------- */

static void put_int(StrBuf *sb, int64_t i) {
    if (i == INT64_MIN)
        sb_puts(sb, "INT64_MIN");
    else if (i < INT32_MIN || i > INT32_MAX)
        sb_printf(sb, "INT64_C(" I64 ")", i);
    else
        sb_printf(sb, i < 0 ? "(" I64 ")" : I64, i);
}

/* Smaller numbers are constants in the text, since they often decide how
   loops are unrolled. */
enum { LEAST_SIZE = 8 };

void sb_put_size(StrBuf *sb, const Kernel *k, char kind, int64_t n) {
    bool mark = k->marks && n >= LEAST_SIZE;
    if (mark) sb_printf(sb, "\1%c", kind);
    sb_printf(sb, I64, n);
    if (mark) sb_puts(sb, "\2");
}

static void put_expr_float(StrBuf *sb, const Kernel *k, double f, bool f64) {
    bool mark = k && k->marks && isfinite(f);
    if (!f64) f = (double)(float)f;
    if (mark) sb_puts(sb, f64 ? "\1d" : "\1f");
    if (f != f)
        sb_puts(sb, f64 ? "(double)NAN" : "NAN");
    else if (isinf(f))
        sb_printf(sb, "(%s%sINFINITY)", f < 0 ? "-" : "",
                  f64 ? "(double)" : "");
    else if (f == rint(f) && fabs(f) < 1e6 && !(f == 0 && signbit(f)))
        sb_printf(sb, "%.1f%s", f, f64 ? "" : "f");
    else
        sb_printf(sb, "%a%s", f, f64 ? "" : "f");
    if (mark) sb_puts(sb, "\2");
}

void sb_put_operand(StrBuf *sb, const Kernel *k, int id) {
    const KInst *in = kinst_at(k, id);
    if (in->op != K_CONST)
        sb_printf(sb, "v%d", id);
    else if (in->type == KT_F32 || in->type == KT_F64)
        put_expr_float(sb, k, in->f, in->type == KT_F64);
    else if (k->marks && in->i >= LEAST_SIZE)
        sb_put_size(sb, k, 'i', in->i);
    else
        put_int(sb, in->i);
}

/* ---- expressions of the op table ----------------------------------------- */

/* The meaning of names in an expression. */
typedef struct Names {
    const Kernel *k;
    const KInst *in;        /* operands and parameters, or */
    const char *operand[3]; /* operands as text */
    KType type;
    bool wraps; /* true: integers are computed as unsigned, so that overflow
                   wraps */
} Names;

/* One identifier of an expression: operand, parameter or function. */
static void put_expr_word(StrBuf *sb, const Names *s, const char *w, size_t n) {
    if (n == 1 && *w >= 'a' && *w <= 'c') {
        if (s->wraps) sb_puts(sb, "(uint64_t)");
        if (s->in)
            sb_put_operand(sb, s->k, s->in->in[*w - 'a']);
        else
            sb_puts(sb, s->operand[*w - 'a']);
    } else if (n == 2 && *w == 'P') {
        double p = s->in ? s->in->p[w[1] - '0'] : 0;
        if (s->type == KT_F32 || s->type == KT_F64)
            put_expr_float(sb, s->k, p, s->type == KT_F64);
        else
            put_int(sb, int_of_float(p));
    } else {
        sb_putn(sb, w, n);
        if (s->in && s->in->low) sb_puts(sb, "_LOW");
        sb_puts(sb, ktype_suffix[s->type]);
    }
}

static void put_op(StrBuf *sb, OpCode c, Names *s) {
    s->wraps = s->type == KT_I64 &&
               (c == OP_ADD || c == OP_SUB || c == OP_MUL || c == OP_NEG ||
                c == OP_REDUCE_SUM || c == OP_REDUCE_PROD);
    if (s->wraps) sb_puts(sb, "(int64_t)(");
    for (const char *e = op_info[c].expr; *e;) {
        size_t n = 0;
        while (isalnum((unsigned char)e[n]) || e[n] == '_') n++;
        if (n && !isdigit((unsigned char)*e))
            put_expr_word(sb, s, e, n);
        else
            sb_putn(sb, e, n ? n : 1);
        e += n ? n : 1;
    }
    if (s->wraps) sb_puts(sb, ")");
}

void sb_put_fold(StrBuf *sb, OpCode code, KType t, const char *a,
                 const char *b) {
    Names s = {.operand = {a, b, ""}, .type = t};
    put_op(sb, code, &s);
}

const char *fold_start(OpCode code, KType t) {
    bool is_int = t == KT_I64 || t == KT_B8;
    switch (op_info[code].fold) {
    case FOLD_PROD: return "1";
    case FOLD_MAX: return is_int ? "INT64_MIN" : "-INFINITY";
    case FOLD_MIN: return is_int ? "INT64_MAX" : "INFINITY";
    case FOLD_SUM:
    case FOLD_NONE: break;
    }
    return "0";
}

/* ---- instructions -------------------------------------------------------- */

void sb_put_kinst(StrBuf *sb, const Kernel *k, const KInst *in) {
    Names s = {.k = k, .in = in, .type = in->compute};
    const KInst *x = kinst_at(k, in->in[0]);
    switch (in->op) {
    case K_CVT:
        if (in->type == KT_B8)
            sb_puts(sb, "0 != ");
        else if (in->type == KT_I64 && x->type != KT_B8)
            sb_printf(sb, "%s%s", in->fits >> DT_I32 & 1 ? "TO_I32" : "TO_I64",
                      ktype_suffix[x->type]);
        else if (x->type == KT_I64 && x->fits >> DT_I32 & 1)
            sb_printf(sb, "(%s)(int32_t)", ktype_c[in->type]);
        else
            sb_printf(sb, "(%s)", ktype_c[in->type]);
        break;
    case K_ROUND:
        if (dtype_is_low(in->dtype))
            sb_printf(sb, "ROUND_%s", dtype_info[in->dtype].macro);
        else
            sb_printf(sb, "(%s)", dtype_info[in->dtype].c);
        break;
    case K_PHILOX: sb_puts(sb, "PHILOX"); break;
    default:
        ASSERT(in->op == K_OP);
        put_op(sb, in->code, &s);
        return;
    }
    sb_puts(sb, "(");
    for (int j = 0; j < 3 && in->in[j]; j++) {
        if (j) sb_puts(sb, ", ");
        sb_put_operand(sb, k, in->in[j]);
    }
    if (in->op == K_PHILOX) {
        sb_puts(sb, ", ");
        put_int(sb, in->i);
    }
    sb_puts(sb, ")");
}
