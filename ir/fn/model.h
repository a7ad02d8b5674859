/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: the lines of a model that are not IR: statements of ast.h. Each line
   makes its nodes and variables as soon as it is read.

   A call of a layer, a function without a class, opens a scope, named by
   `scope=` or else after the function; the full name of a variable joins the
   names of the enclosing scopes and its own with dots: "block.fc1.weight".
   Declaring a name again refers to the same variable. */
#ifndef AMPC_IR_FN_MODEL_H
#define AMPC_IR_FN_MODEL_H

#include "ir/fn/fn.h"
#include "ir/fn/dims.h"

/* A dimension or another number that the command line may set. */
typedef struct Symbol {
    Str name;
    int64_t value; /* -1: none yet */
    bool given;    /* by --dim */
} Symbol;

/* A line being executed when a mistake is found, of the model or of a layer. */
typedef struct Frame {
    const Fn *fn;
    Str prefix; /* prefix of the enclosing scope */
    int depth;  /* of calls */
    int line, col;
} Frame;

typedef struct Model {
    Lexer *lx;
    Module *m;
    Str file;
    const TextOptions *opt;
    VEC(Symbol) symbols;
    Str batch; /* the symbol whose value is opt->batch; NULL: not yet known */
    struct Run *top;
    Fn *fn; /* function that contains the current lines */
    Builder b;
    int64_t work; /* so far */
    int64_t salt;
    unsigned char amp; /* Loc.amp and Loc.region of the enclosing regions */
    int region, regions;
    VEC(Frame) failed; /* lines from the mistake to the model's own line */
    char msg[MSG_TEXT];
} Model;

void model_open(Model *e, Lexer *lx, Module *m, const TextOptions *opt);
/* The next lines belong to g. */
void model_begin(Model *e, Graph *g);
void model_close(Model *e);

/* `dim NAME = value`, -1: without a value; --dim overrides it. NULL: the
   name exists already. */
Symbol *model_declare(Model *e, Str name, int64_t value);
/* The value of a symbol; a symbol that is not declared takes --dim's value. */
bool model_symbol(Model *e, Str name, int64_t *value);
/* Applies --dim INPUT:AXIS if that dimension is a single symbol; checks that
   every --dim is used. */
Status model_bind_axes(Model *e, Str input, const Stmt *type);
Status model_check_dims(Model *e);

/* parse_model_line, .. has read s */
Status model_run(Model *e, const Stmt *s);
Status model_value(Model *e, const Expr *x, ValueId *out);
Status model_type(Model *e, const Stmt *s, TypeId *out);

/* The region of nodes inside one more `checkpoint`. */
static inline int model_region(Model *e) {
    return e->region ? e->region : ++e->regions;
}

#endif
