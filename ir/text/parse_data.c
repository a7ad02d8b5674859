/* SPDX-License-Identifier: Apache-2.0 */
/* parse_data.c: initialisers of constants and variables.

     = 0.5              every element
     = [1, 2, 3, 4]     row-major
     = normal(SEED, STD), uniform(SEED, LO, HI)    runtime/program/draw.h
     = data(0xHASH)     stands for data that the printer left out: made up */
#include "ir/eval/evaluate.h"
#include "ir/text/parse_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DATA_LIMIT = 1 << 30, /* bytes of one tensor                            */
    MADE_LIMIT = 1 << 26  /* limit for all constants: about a second */
};

/* ---- numbers ------------------------------------------------------------- */

/* One element as its 8-byte image: a double, or an int64 (uint64). */
typedef union Element {
    double f;
    int64_t i;
} Element;

/* A number in base 10 or 16 that needs the 64th bit; false: another token. */
static bool as_u64(const Token *t, int base, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(t->text, &end, base);
    return t->kind == T_NUMBER && !*end && !errno && t->text[0] != '-';
}

static Status parse_element(Lexer *lx, DType d, Element *out) {
    Token at = lx->tok;
    uint64_t u;
    if (dtype_is_float(d)) {
        TRY(lex_expect_double(lx, &out->f));
        return dtype_can_hold(d, out->f)
                   ? OK
                   : lex_fail(lx, &at, "%.40s is beyond %s", at.text,
                              dtype_info[d].text);
    }
    if (d == DT_U64 && as_u64(&at, 10, &u)) {
        out->i = (int64_t)u;
        return lex_next(lx);
    }
    TRY(lex_expect_int(lx, &out->i));
    if (!dtype_holds(d, out->i))
        return lex_fail(lx, &at, "%s is outside %s", at.text,
                        dtype_info[d].text);
    return OK;
}

static void data_store(const Tensor *t, int64_t i, Element e) {
    if (dtype_is_float(type_get(t->type)->dtype))
        tensor_set(t, i, e.f);
    else
        tensor_set_int(t, i, e.i);
}

/* ":bf16" directly after the number; ": f32[2]" is the type of the result. */
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
    /* the dtype, which follows the number, decides how it is read */
    TRY(lex_next(lx));
    if (typed) {
        TRY(lex_expect(lx, ':'));
        TRY(lex_expect_dtype(lx, &d));
    }
    Lexer again = *lx;
    again.tok = number;
    again.at = again.counted = lx->n; /* the text after it is not consumed */
    TRY(parse_element(&again, d, &e));
    *out = dtype_is_float(d) ? graph_scalar(p->g, d, e.f)
                             : graph_scalar_int(p->g, d, e.i);
    return OK;
}

/* ---- initialisers -------------------------------------------------------- */

static Status too_large(Parser *p, const Token *at, TypeId t) {
    return lex_fail(&p->lx, at, "data of %lld bytes is too large for text",
                    (long long)type_bytes(type_get(t)));
}

static Status new_tensor(Parser *p, const Token *at, TypeId t, Tensor **out) {
    if (type_bytes(type_get(t)) > DATA_LIMIT) return too_large(p, at, t);
    *out = tensor_new(p->m->arena, t);
    return OK;
}

/* A few characters can fill a whole constant. */
static Status data_count_made(Parser *p, const Token *at, TypeId t) {
    if (type_bytes(type_get(t)) > DATA_LIMIT) return too_large(p, at, t);
    p->made += type_count(type_get(t));
    if (p->made <= MADE_LIMIT) return OK;
    return lex_fail(&p->lx, at,
                    "the constants hold %lld numbers that are not written out, "
                    "at most %d: a frozen variable is filled when the module "
                    "is opened",
                    (long long)p->made, (int)MADE_LIMIT);
}

static Status parse_list(Parser *p, TypeId t, Init *init) {
    Token at = p->lx.tok;
    DType d = type_get(t)->dtype;
    int64_t want = type_count(type_get(t));
    VEC(Element) list = {0};
    bool more;
    TRY(lex_open(&p->lx, '[', ']', &more));
    while (more) {
        Element e;
        if (list.len == want)
            return lex_fail(&p->lx, &p->lx.tok, "more than %lld elements",
                            (long long)want);
        TRY(parse_element(&p->lx, d, &e));
        vec_push(p->scratch, &list, e);
        TRY(lex_more(&p->lx, ']', &more));
    }
    if (list.len != want)
        return lex_fail(&p->lx, &at, "%d elements, the type has %lld", list.len,
                        (long long)want);
    TRY(new_tensor(p, &at, t, &init->tensor));
    for (int i = 0; i < list.len; i++)
        data_store(init->tensor, i, list.data[i]);
    return OK;
}

static Status parse_generator(Parser *p, TypeId t, Generator gen, bool is_const,
                              Init *init) {
    Lexer *lx = &p->lx;
    Token at = lx->tok;
    int64_t seed;
    uint64_t hash;
    bool is_float = dtype_is_float(type_get(t)->dtype);
    double range[] = {is_float ? -1 : 0, is_float ? 1 : 2};
    if (gen == GEN_NORMAL && !is_float)
        return lex_fail(lx, &at, "normal is for floating point");
    TRY(lex_next(lx));
    TRY(lex_expect(lx, '('));
    if (gen == GEN_DATA) {
        if (strncmp(lx->tok.text, "0x", 2) != 0)
            return lex_fail(lx, &lx->tok, "a hash 0x.. expected");
        if (!as_u64(&lx->tok, 16, &hash))
            return lex_fail(lx, &lx->tok, "not a 64-bit hash");
        TRY(lex_next(lx));
    } else {
        TRY(lex_expect_int(lx, &seed));
        hash = (uint64_t)seed;
    }
    for (int i = 0; i < generator_numbers[gen]; i++) {
        TRY(lex_expect(lx, ','));
        Element e = {.f = 0};
        TRY(parse_element(lx, is_float ? type_get(t)->dtype : DT_F64, &e));
        range[i] = e.f;
    }
    TRY(lex_expect(lx, ')'));
    init_draw(gen, hash, range, init);
    if (!is_const) return OK;
    TRY(data_count_made(p, &at, t));
    init->tensor = tensor_drawn(p->m->arena, t, &init->draw);
    return OK;
}

/* The number as a double; false: not a number. */
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
    if (is_const) TRY(data_count_made(p, &at, t));
    TRY(new_tensor(p, &at, t, &init->tensor));
    if (n) data_store(init->tensor, 0, e);
    tensor_repeat(init->tensor);
    return OK;
}

/* Data that print.c would not show for a variable are kept as text. */
Status parse_init(Parser *p, TypeId t, bool is_const, Init *init) {
    StrBuf text = {0};
    *init = (Init){0};
    for (int k = 0; k <= GEN_DATA; k++)
        if (lex_is_word(&p->lx, generator_text[k]))
            return parse_generator(p, t, (Generator)k, is_const, init);
    TRY(lex_is(&p->lx, '[') ? parse_list(p, t, init)
                            : parse_splat(p, t, is_const, init));
    if (is_const || !init->tensor) return OK;
    put_data(&text, init->tensor);
    init->text = intern_n(text.data, text.len);
    sb_free(&text);
    return OK;
}
