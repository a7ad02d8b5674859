/* SPDX-License-Identifier: Apache-2.0 */
/* parse_fn.h: the reader of definitions: parse_expr.c, parse_stmt.c and
   parse_fn.c, and the reader of optimizers (optimizer_read.c). */
#ifndef AMPC_IR_FN_PARSE_FN_H
#define AMPC_IR_FN_PARSE_FN_H

#include "ir/fn/fn.h"

typedef struct DefParser {
    Lexer *lx;
    Arena *a;
    const Module *m;
    Fn *fn;
    bool in_part; /* behind the body */
    int depth;
} DefParser;

/* ---- parse_expr.c -------------------------------------------------------- */

/* True if the word is next; it is then consumed. */
Status def_word(Lexer *lx, const char *word, bool *taken);
Status def_expect_word(DefParser *p, const char *word);
Status def_expect_arrow(DefParser *p);
Status def_name(DefParser *p, const char *what, Str *out);
/* name, .. */
Status def_names(DefParser *p, const char *what, Names *out);
/* Enters one more expression or block; the caller decrements the depth
   afterwards. */
Status def_deeper(DefParser *p);
Status def_expr(DefParser *p, const Expr **out);
/* Reads operators of that level or tighter ones; 0: all, but not `a if c else
   b`. */
Status def_binary(DefParser *p, int level, const Expr **out);
/* Reads a number, a name, a call or a list. */
Status def_primary(DefParser *p, const Expr **out);

/* ---- parse_stmt.c -------------------------------------------------------- */

Status def_stmt(DefParser *p, Stmt *s);
/* dtype "[" expression, .. "]" */
Status def_dims(DefParser *p, Stmt *s);
/* Reads a block up to its closing brace, which is not consumed. */
Status def_open_block(DefParser *p, Block *b);

/* ---- parse_fn.c ---------------------------------------------------------- */

/* Creates an empty function; lx is at the definition's first word. */
Fn *def_new(Lexer *lx, Arena *a);
/* Reads the first word and the name, which must be new. */
Status def_title(DefParser *p, const char *what);
Status def_operand(DefParser *p);
Status def_attribute(DefParser *p);
/* Reads what follows an attribute that is a key of options: `from LO to HI`
   or `below HI`, and its description. */
Status def_bounds(DefParser *p, FnAttr *a);
Status def_number(Lexer *lx, double *out);
void def_add_operand(Fn *f, FnOperand o);
void def_add_result(Fn *f, FnResult r);

#endif
