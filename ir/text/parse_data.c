/* parse_data.c: initialisers of constants and variables.

     = 0.5              every element
     = [1, 2, 3, 4]     row-major
     = normal(SEED, STD)      sum of 12 uniforms minus 6, times STD
     = uniform(SEED, LO, HI)  LO + u (HI - LO); rounded down for integers
     = data(0xHASH)     stands for data that the printer left out: made up

   u of element i, draw k is splitmix64 of SEED and 12 i + k, 53 bits: exact
   arithmetic, the same numbers on every machine.                          */
#include "ir/text/parse_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DATA_LIMIT = 1 << 30 }; /* bytes of one tensor */

/* ---- generated data ------------------------------------------------------ */

static double uniform01(uint64_t seed, uint64_t i) {
    uint64_t z = seed * 0xd1342543de82ef95u + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static double normal01(uint64_t seed, uint64_t i) {
    double sum = -6;
    for (uint64_t k = 0; k < 12; k++) sum += uniform01(seed, 12 * i + k);
    return sum;
}

typedef enum Generator { GEN_NORMAL, GEN_UNIFORM, GEN_DATA } Generator;

static void generate(const Tensor *t, Generator gen, uint64_t seed, double a,
                     double b) {
    const Type *type = type_get(t->type);
    int64_t n = type_count(type);
    bool whole = !dtype_is_float(type->dtype);
    for (int64_t i = 0; i < n; i++) {
        double v = gen == GEN_NORMAL
                       ? a * normal01(seed, (uint64_t)i)
                       : a + (b - a) * uniform01(seed, 12 * (uint64_t)i);
        tensor_set(t, i, whole ? floor(v) : v);
    }
}

/* ---- numbers ------------------------------------------------------------- */

static bool int_range(DType d, int64_t *lo, int64_t *hi) {
    int bits = dtype_info[d].bytes * 8;
    if (d == DT_BOOL) return *lo = 0, *hi = 1, true;
    if (dtype_info[d].kind == DK_U) {
        *lo = 0;
        *hi = bits == 64 ? INT64_MAX : (int64_t)(((uint64_t)1 << bits) - 1);
        return true;
    }
    *hi = (int64_t)(((uint64_t)1 << (bits - 1)) - 1);
    *lo = -*hi - 1;
    return dtype_info[d].kind == DK_I;
}

/* One element as its 8-byte image: a double, or an int64 (uint64). */
typedef union Element {
    double f;
    int64_t i;
} Element;

static Status parse_u64(Lexer *lx, int64_t *out) {
    char *end;
    errno = 0;
    uint64_t v = strtoull(lx->tok.text, &end, 10);
    if (lx->tok.kind != T_NUMBER || *end || errno || lx->tok.text[0] == '-')
        return lex_expect_int(lx, out); /* says what is wrong, or reads it */
    *out = (int64_t)v;
    return lex_next(lx);
}

static Status parse_element(Lexer *lx, DType d, Element *out) {
    Token at = lx->tok;
    int64_t lo, hi;
    if (dtype_is_float(d)) return lex_expect_double(lx, &out->f);
    int_range(d, &lo, &hi);
    if (d == DT_U64 && at.text[0] != '-') return parse_u64(lx, &out->i);
    TRY(lex_expect_int(lx, &out->i));
    if (out->i < lo || out->i > hi)
        return lex_fail(lx, &at, "%s is outside %s", at.text,
                        dtype_info[d].text);
    return OK;
}

static void store(const Tensor *t, int64_t i, Element e) {
    if (dtype_is_float(type_get(t->type)->dtype))
        tensor_set(t, i, e.f);
    else
        tensor_set_int(t, i, e.i);
}

/* ":bf16" right behind the number; ": f32[2]" is the type of the result. */
static bool dtype_follows(const Lexer *lx, const Token *number) {
    size_t i = number->at + strlen(number->text);
    if (i >= lx->n || lx->text[i] != ':') return false;
    size_t start = ++i;
    while (i < lx->n && name_char(lx->text[i], 0)) i++;
    return i > start && (i == lx->n || lx->text[i] != '[');
}

Status parse_scalar(Parser *p, ValueId *out) {
    Lexer *lx = &p->lx;
    Token number = lx->tok;
    bool typed = dtype_follows(lx, &number);
    DType d = DT_F32;
    Element e;
    Str word;
    /* the dtype decides how the number is read and stands behind it */
    TRY(lex_next(lx));
    if (typed) {
        TRY(lex_expect(lx, ':'));
        Token at = lx->tok;
        TRY(lex_expect_word(lx, &word, "a dtype"));
        if (!dtype_from_text(word, strlen(word), &d))
            return lex_fail(lx, &at, "unknown dtype '%.40s'", word);
    }
    Lexer again = *lx;
    again.tok = number;
    again.at = lx->n; /* nothing behind the number is read */
    TRY(parse_element(&again, d, &e));
    *out = dtype_is_float(d) ? graph_scalar(p->g, d, e.f)
                             : graph_scalar_int(p->g, d, e.i);
    return OK;
}

/* ---- initialisers -------------------------------------------------------- */

static Status new_tensor(Parser *p, const Token *at, TypeId t, Tensor **out) {
    if (type_bytes(type_get(t)) > DATA_LIMIT)
        return lex_fail(&p->lx, at, "data of %lld bytes is too large for text",
                        (long long)type_bytes(type_get(t)));
    *out = tensor_new(p->m->arena, t);
    return OK;
}

static Status parse_list(Parser *p, TypeId t, Init *init) {
    Token at = p->lx.tok;
    DType d = type_get(t)->dtype;
    int64_t want = type_count(type_get(t));
    VEC(Element) list = {0};
    TRY(lex_expect(&p->lx, '['));
    for (bool more = !lex_is(&p->lx, ']'); more;) {
        Element e;
        if (list.len == want)
            return lex_fail(&p->lx, &p->lx.tok, "more than %lld elements",
                            (long long)want);
        TRY(parse_element(&p->lx, d, &e));
        vec_push(p->scratch, &list, e);
        TRY(lex_take(&p->lx, ',', &more));
    }
    TRY(lex_expect(&p->lx, ']'));
    if (list.len != want)
        return lex_fail(&p->lx, &at, "%d elements, the type has %lld", list.len,
                        (long long)want);
    TRY(new_tensor(p, &at, t, &init->tensor));
    for (int i = 0; i < list.len; i++) store(init->tensor, i, list.data[i]);
    return OK;
}

static Status parse_hash(Lexer *lx, uint64_t *out) {
    char *end;
    if (lx->tok.kind != T_NUMBER || strncmp(lx->tok.text, "0x", 2) != 0)
        return lex_fail(lx, &lx->tok, "a hash 0x.. expected");
    errno = 0;
    *out = strtoull(lx->tok.text, &end, 16);
    if (*end || errno) return lex_fail(lx, &lx->tok, "not a 64-bit hash");
    return lex_next(lx);
}

static Str generator_text(Generator gen, uint64_t seed, double a, double b) {
    StrBuf sb = {0};
    if (gen == GEN_DATA) {
        sb_printf(&sb, "data(0x%llx)", (unsigned long long)seed);
    } else {
        sb_printf(&sb, "%s(%lld, ", gen == GEN_NORMAL ? "normal" : "uniform",
                  (long long)seed);
        sb_put_double(&sb, a, false);
        if (gen == GEN_UNIFORM) {
            sb_puts(&sb, ", ");
            sb_put_double(&sb, b, false);
        }
        sb_puts(&sb, ")");
    }
    Str s = intern_n(sb.data, sb.len);
    sb_free(&sb);
    return s;
}

static Status parse_generator(Parser *p, TypeId t, Init *init) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    Generator gen = lex_is_word(lx, "normal")    ? GEN_NORMAL
                    : lex_is_word(lx, "uniform") ? GEN_UNIFORM
                                                 : GEN_DATA;
    int64_t seed = 0;
    uint64_t hash = 0;
    bool is_float = dtype_is_float(type_get(t)->dtype);
    double a = is_float ? -1 : 0, b = is_float ? 1 : 2;
    if (gen == GEN_NORMAL && !is_float)
        return lex_fail(lx, &at, "normal is for floating point");
    TRY(lex_next(lx));
    TRY(lex_expect(lx, '('));
    if (gen == GEN_DATA) {
        TRY(parse_hash(lx, &hash));
    } else {
        TRY(lex_expect_int(lx, &seed));
        hash = (uint64_t)seed;
        TRY(lex_expect(lx, ','));
        TRY(lex_expect_double(lx, &a));
    }
    if (gen == GEN_UNIFORM) {
        TRY(lex_expect(lx, ','));
        TRY(lex_expect_double(lx, &b));
    }
    TRY(lex_expect(lx, ')'));
    TRY(new_tensor(p, &at, t, &init->tensor));
    generate(init->tensor, gen, hash, a, b);
    init->text = generator_text(gen, hash, a, b);
    return OK;
}

/* The number as a double; false: it is none. */
static bool as_double(DType d, Element e, double *out) {
    if (dtype_is_float(d)) {
        *out = e.f;
        return true;
    }
    if (d == DT_U64) {
        *out = (double)(uint64_t)e.i;
        return *out < 0x1p64 && (uint64_t)*out == (uint64_t)e.i;
    }
    *out = (double)e.i;
    return *out < 0x1p63 && (int64_t)*out == e.i;
}

static Status parse_splat(Parser *p, TypeId t, bool is_const, Init *init) {
    Token at = p->lx.tok;
    DType d = type_get(t)->dtype;
    Element e;
    TRY(parse_element(&p->lx, d, &e));
    int64_t n = type_count(type_get(t));
    bool exact = as_double(d, e, &init->fill);
    if (!is_const && (exact || n == 0)) return OK;
    TRY(new_tensor(p, &at, t, &init->tensor));
    for (int64_t i = 0; i < n; i++) store(init->tensor, i, e);
    return OK;
}

/* Data that print.c would not show in a variable is kept as text. */
static void keep_text(Init *init) {
    StrBuf sb = {0};
    if (!init->tensor || init->text) return;
    put_data(&sb, init->tensor);
    init->text = intern_n(sb.data, sb.len);
    sb_free(&sb);
}

Status parse_init(Parser *p, TypeId t, bool is_const, Init *init) {
    Lexer *lx = &p->lx;
    *init = (Init){0};
    if (lex_is_word(lx, "normal") || lex_is_word(lx, "uniform") ||
        lex_is_word(lx, "data"))
        return parse_generator(p, t, init);
    if (lex_is(lx, '['))
        TRY(parse_list(p, t, init));
    else
        TRY(parse_splat(p, t, is_const, init));
    if (!is_const) keep_text(init);
    return OK;
}
