/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: declarations shared by the files that run bodies: run_fn.c executes
   them, known.c has compile-time values, make.c builds nodes, model.c has
   the statements that only models have. */
#ifndef AMPC_IR_FN_RUN_H
#define AMPC_IR_FN_RUN_H

#include "ir/fn/fn.h"
#include "ir/graph/ir_impl.h"

typedef enum ValKind {
    V_NONE, /* absent */
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_DTYPE,
    V_LIST,
    V_TENSOR,
    V_INIT /* initial value of a variable */
} ValKind;

typedef struct Val Val;
struct Val {
    ValKind kind;
    int64_t i; /* BOOL, INT; DTYPE; INIT: a Builtin */
    double f;
    Str s;
    ValueId t;
    const Val *list; /* INIT: numbers */
    int n;
    bool typed; /* TENSOR: the text declares the dtype */
};

typedef struct Binding {
    Str name;
    Val val;
} Binding;

/* MAX_WORK: limits of expressions and list elements: of one body with
   everything that it expands; of one model. */
enum { MAX_CALLS = 64, MAX_LIST = 4096, MAX_ARGS = 64, MAX_WORK = 1 << 20 };

/* The nesting depth of a scope, and how often a layer was called in it. */
typedef struct Scope Scope;
struct Scope {
    Str prefix; /* "block.fc1." */
    VEC(Binding) calls;
};

typedef struct Run {
    const FnCall *call;
    const Fn *fn;
    Builder *b;
    Arena *a;
    VEC(Binding) env;
    DType wide;
    uint32_t first; /* node of this run */
    int start;      /* position of its first node in the order */
    int depth;      /* of calls */
    int64_t *work, own_work;
    struct Model *model; /* NULL: an op's body */
    Scope *scope;        /* of a model */
    char *msg;
} Run;

typedef enum Builtin {
#define BUILTIN(name, takes) F_##name,
#include "ir/fn/builtins.def"
    NUM_BUILTINS
} Builtin;

/* ---- known.c ------------------------------------------------------------- */

/* An error at a place in the text, or NULL: in the call as a whole. */
Status run_fail(Run *r, const Expr *at, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Of a model: the place in r that the message belongs to; one that is known
 * stays. */
void run_failed_at(const Run *r, int line, int col);
/* "WHAT expected, found .." */
Status run_wants(Run *r, const Expr *at, const char *what, const Val *v);
bool val_is_number(const Val *v);
double val_number(const Val *v);
Val val_bool(bool b);
Val val_int(int64_t i);
Val val_float(double f);
Val val_dtype(DType d);
Val val_tensor(ValueId t);
Val val_list(Run *r, const ValueId *v, int n);
Val val_ints(Run *r, const int64_t *v, int n);
const Type *val_type(const Run *r, const Val *tensor);
/* "a list" */
const char *val_kind(const Val *v);
Status run_want_bool(Run *r, const Expr *at, const Val *v, bool *out);
Status run_want_int(Run *r, const Expr *at, const Val *v, int64_t *out);
/* A whole number in the range of the integer dtype d. */
Status run_want_element(Run *r, const Expr *at, const Val *v, DType d,
                        int64_t *out);
/* A number in the range of the floating dtype d. */
Status run_want_number(Run *r, const Expr *at, const Val *v, DType d,
                       double *out);
/* A number as a constant of the floating dtype d. */
Status run_scalar(Run *r, const Expr *at, const Val *v, DType d, ValueId *out);
/* A list of integers; a single integer counts as a list. */
Status run_want_ints(Run *r, const Expr *at, const Val *v, int64_t **out,
                     int *n);
Status run_want_shape(Run *r, const Expr *at, const Val *v, Type *out);
Status run_want_dtype(Run *r, const Expr *at, const Val *v, DType *out);
/* Counts n more steps; an error if there are too many. */
Status run_count(Run *r, const Expr *at, int64_t n);
/* The value as messages show it. */
void run_put(Run *r, StrBuf *sb, const Val *v);
Status known_binary(Run *r, const Expr *e, const Val *a, const Val *b,
                    Val *out);
/* sqrt(2.0): evaluates an element-wise op on known numbers; false: it must
   become a node. */
bool known_op(OpCode op, const Val *v, int n, Val *out);

/* ---- make.c -------------------------------------------------------------- */

Status make_elementwise(Run *r, const Expr *at, OpCode op, const Val *v, int n,
                        Val *out);
/* Call e, of an op or a function, with n operands and nout results. */
Status make_call(Run *r, const Expr *e, int nout, const Val *v, int n,
                 Val *out);
Status make_attr(Run *r, const Expr *at, AttrKey key, const Val *v, Attr *out);
/* v rounded to d (NUM_DTYPES: unchanged), by the node that computes it if
   possible; cast: a named value keeps its dtype. */
ValueId make_rounded(Run *r, ValueId v, DType d);
ValueId make_cast(Run *r, ValueId v, DType d);

/* ---- run_fn.c ------------------------------------------------------------ */

Val *run_lookup(Run *r, Str name);
void run_bind(Run *r, Str name, Val v);
Status run_eval(Run *r, const Expr *e, Val *out);
/* A tensor, or a number in place of one, as a value of the graph. */
Status run_value(Run *r, const Expr *e, ValueId *out);
Status run_block(Run *r, const Block *b);
/* The caller has set r->depth, work, model and scope. */
void run_open(Run *r, const FnCall *call, Builder *b, char *msg);
/* Starts a run: binds attributes and checks operands. */
Status run_start(Run *r, const FnCall *call, Builder *b, char *msg);
Status run_results(Run *r, ValueId *out);
/* The attribute's value in the call, else its default; *found: it has one. */
Status run_attr(Run *r, const FnAttr *a, Attr *x, bool *found);
/* A value as a result of dtype d. */
Status run_take_value(Run *r, const Val *v, Str name, DType d, ValueId *out);

/* ---- model.c ------------------------------------------------------------- */

/* Runs a statement that only models have. */
Status run_model_stmt(Run *r, const Stmt *s);
/* The meaning of an unbound name; false: unknown. */
bool model_lookup(Run *r, Str name, Val *out);
/* rng, salt, initialisers */
Status model_builtin(Run *r, const Expr *e, const Val *v, Val *out);
/* True if a value is what rng() gives. */
bool model_random(const Run *r, const Val *v);
/* The scope of a call of fn: `name`, or a generated name if NULL. */
Scope *model_call_scope(Run *r, const Fn *fn, Str name);
/* A tensor made by this statement takes the name to which it is bound. */
void model_name(Run *r, uint32_t first, Str name, const Val *v);

/* ---- model_vars.c -------------------------------------------------------- */

/* The model's module gets a variable; *out: its value. */
Status model_add_var(Run *r, const Var *v, ValueId *out);
Status model_add_write(Run *r, Write w);
/* The state of the model's random numbers. */
ValueId model_random_state(const Run *r);
/* Makes the nodes of fn's file for operands in[0..nin), in scope s. */
Status model_layer(Run *r, const Expr *at, const Fn *fn, const Scope *s,
                   const ValueId *in, int nin, ValueId *out, int nout);

#endif
