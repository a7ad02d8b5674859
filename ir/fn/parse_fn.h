/* SPDX-License-Identifier: Apache-2.0 */
/* parse_fn.h: parts of the reader of definitions (parse_fn.c) that the
   reader of optimizers (optimizer.c) uses, too. */
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

/* Creates an empty function; lx is at the definition's first word. */
Fn *def_new(Lexer *lx, Arena *a);
/* Reads the first word and the name, which must be new. */
Status def_title(DefParser *p, const char *what);
Status def_name(DefParser *p, const char *what, Str *out);
Status def_names(DefParser *p, const char *what, Names *out);
Status def_expr(DefParser *p, const Expr **out);
/* Reads a number, a name, a call or a list. */
Status def_primary(DefParser *p, const Expr **out);
Status def_operand(DefParser *p);
Status def_attribute(DefParser *p);
/* Reads what follows an attribute that is a key of options: `from LO to HI`
   or `below HI`, and its description. */
Status def_bounds(DefParser *p, FnAttr *a);
/* True if the word is next; it is then consumed. */
Status def_word(Lexer *lx, const char *word, bool *taken);
Status def_number(Lexer *lx, double *out);
/* Reads a block up to its closing brace, which is not consumed. */
Status def_open_block(DefParser *p, Block *b);
void def_add_operand(Fn *f, FnOperand o);
void def_add_result(Fn *f, FnResult r);

#endif
