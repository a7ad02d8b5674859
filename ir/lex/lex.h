/* SPDX-License-Identifier: Apache-2.0 */
/* lex.h: tokens of the text form, and messages that point at them. */
#ifndef AMPC_IR_LEX_LEX_H
#define AMPC_IR_LEX_LEX_H

#include "ir/op/type.h"

typedef enum TokenKind {
    T_EOF,
    T_NAME,   /* %x, %"any bytes": text without % */
    T_WORD,   /* graph, f32, _, nan, inf */
    T_STRING, /* "..." */
    T_NUMBER, /* 1, -0.5, 1e-05, 0xff, -inf */
    T_PUNCT   /* one character: ch; two in definitions: a LexPair */
} TokenKind;

/* Token.ch of tokens of two characters. */
typedef enum LexPair {
    LEX_RANGE = 1, /* .. */
    LEX_ARROW,     /* -> */
    LEX_EQ,        /* == */
    LEX_NE,        /* != */
    LEX_LE,        /* <= */
    LEX_GE,        /* >= */
    LEX_FLOORDIV   /* // */
} LexPair;

typedef struct Token {
    TokenKind kind;
    char ch;
    Str text;      /* T_NAME, T_WORD, T_STRING unescaped; T_NUMBER as written;
                      T_PUNCT of two characters */
    int line, col; /* 1-based; col counts characters */
    size_t at;     /* byte offset */
} Token;

typedef struct Lexer {
    Diag *diag;
    Str file;
    const char *text;
    size_t n, at;
    size_t counted; /* col is the column of byte `counted` */
    int line, col;
    Token tok;     /* the next token */
    int prev_line; /* line of the last token read */
    bool infix;    /* inside a definition: names are letters, digits and _;
                      other characters are operators */
} Lexer;

/* Reads the first token.  A byte-order mark is skipped. */
Status lex_start(Lexer *lx, Diag *d, const char *file, const char *text,
                 size_t n);
Status lex_next(Lexer *lx);
/* Reads again from a token on, in or out of infix mode. */
Status lex_again(Lexer *lx, const Token *from, bool infix);
/* Moves lx->at over these characters and over comments. */
void lex_skip(Lexer *lx, const char *blank);
/* The position lx->at as a token without content. */
Token lex_here(Lexer *lx);
/* The token at a line and column of the text. */
Token lex_token_at(const Lexer *lx, int line, int col);
/* A message with the source line and a caret below it. */
Status lex_fail(Lexer *lx, const Token *at, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
/* Source line and caret only, for a message already in diag. */
void lex_show(Lexer *lx, const Token *at);
/* True if c may occur in an unquoted name, given the character after it. */
bool name_char(char c, char next);
Loc lex_loc(const Lexer *lx, const Token *t);

bool lex_is(const Lexer *lx, char ch);
bool lex_is_word(const Lexer *lx, const char *word);
bool lex_is_dtype(const Lexer *lx, DType *out);
/* The first non-blank byte after the token; 0: none. */
char lex_behind(const Lexer *lx);
/* Consumes ch if it is next. */
Status lex_take(Lexer *lx, char ch, bool *taken);
Status lex_expect(Lexer *lx, char ch);
/* "WHAT expected, found .." */
Status lex_expected(Lexer *lx, const char *what);
/* `open item, .. close`: true if a first item follows; true if another item
   follows. */
Status lex_open(Lexer *lx, char open, char close, bool *more);
Status lex_more(Lexer *lx, char close, bool *more);
Status lex_expect_word(Lexer *lx, Str *out, const char *what);
/* A word that is a word in infix mode, too. */
bool lex_is_plain(const Token *t);
Status lex_expect_string(Lexer *lx, Str *out);
Status lex_expect_dtype(Lexer *lx, DType *out);
/* An integer that fits int64. */
Status lex_expect_int(Lexer *lx, int64_t *out);
/* A number, nan, inf or -inf. */
Status lex_expect_double(Lexer *lx, double *out);
/* lx is at the `=` of a model or a definition; *end: end of the text. */
Status lex_import(Lexer *lx, Str *file, size_t *end);
/* "'%x'", "end of file": for messages; buf of 80 bytes is returned. */
const char *lex_describe(const Token *t, char *buf);

#endif
