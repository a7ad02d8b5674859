/* SPDX-License-Identifier: Apache-2.0 */
/* ast.h: definitions as trees, and their reader.

     def    = "def" name "=" "onnx" "(" "FILE" ")"      a layer
            | "def" name "(" [operand, ..] [";" attribute, ..] ")" "->"
              result, .. ["class" word ["torch" word] ["whole"] ["loss" name]]
              block part*
              (without a class: expanded where it is called; torch, whole and
              loss: in the library only; a function of class low is low to
   torch, too) operand   = name ["?"] [":" float | int | any] attribute = name
   ["?"] [":" int | bool | float | str | ints | axis | axes]
                 ["=" expression]
     result    = name ["?"] [":" dtype]
     grad      = "grad" "(" name, .. ")" "->" name, .. block
     part      = grad | "inference" block | "samples" block
     rule      = "gradient" op, .. "(" name [".."], .. ")" "->" name [".."], ..
                 block            gradients of primitive ops, in std.amp only
     block  = "{" statement* "}"
     statement = name, .. "=" expression
            | "if" expression block ["else" (block | if)]
            | "for" name "in" expression block
            | "require" expression, part, ..
            and in models and what is expanded there:
            | variable name ":" dtype "[" expression, .. "]" ["=" expression]
              ["{" option "=" expression, .. "}"]
                              variable: param, frozen, buffer, state
            | "write" name "=" expression
            | "scope" expression block
            | "autocast" ("off" | "on") block
            | "checkpoint" block
     expression, loosest first:
              a if c else b (on one line);  or;  and;  not;  == != < <= > >= in;
   ..;
              + -;  * / // % @;  -a;  a[i];
              number, "string", true, false, none, name, %name (of a node in
              the text), (a), [a, ..], [a for i in list if c],
              name(a, .., key=a, ..)

   Names are bound where they are assigned and may be bound again.  A function
   calls core ops, functions defined above it, and the built-ins of run_fn.c
   (its parts may call the function itself): who is called is known once the
   text is read.                                                             */
#ifndef AMPC_IR_FN_AST_H
#define AMPC_IR_FN_AST_H

#include "ir/ir.h"
#include "ir/lex/lex.h"
#include "ir/op/function.h"

typedef enum ExprKind {
    E_INT,
    E_FLOAT,
    E_STR,
    E_BOOL,
    E_NONE,
    E_NAME,
    E_VALUE,  /* %name                                                      */
    E_LIST,   /* args                                                       */
    E_EACH,   /* [a for name in b if c]                                     */
    E_NEG,    /* -a                                                         */
    E_NOT,    /* not a                                                      */
    E_BINARY, /* a op b                                                     */
    E_COND,   /* a if c else b                                              */
    E_INDEX,  /* a[b]                                                       */
    E_CALL    /* name(args, keys)                                           */
} ExprKind;

typedef enum BinaryOp {
    B_OR,
    B_AND,
    B_EQ,
    B_NE,
    B_LT,
    B_LE,
    B_GT,
    B_GE,
    B_IN,
    B_RANGE,
    B_ADD,
    B_SUB,
    B_MUL,
    B_DIV,
    B_FLOORDIV,
    B_MOD,
    B_MATMUL
} BinaryOp;

typedef enum CalleeKind { CALLEE_OP, CALLEE_FN, CALLEE_BUILTIN } CalleeKind;

typedef struct KeyArg {
    Str name;
    const Expr *at; /* the name in the call, for messages */
    const Expr *value;
} KeyArg;

struct Expr {
    ExprKind kind;
    int line, col;
    int depth; /* nesting depth of expressions */
    Str name;
    BinaryOp op;
    int64_t i;
    double f;
    const Expr *a, *b, *c;
    VEC(const Expr *) args;
    VEC(KeyArg) keys;
    CalleeKind callee;
    OpCode code;
    const Fn *fn;
    int builtin;
};

typedef enum StmtKind {
    S_ASSIGN,
    S_IF,
    S_FOR,
    S_REQUIRE,
    S_VAR,
    S_WRITE,
    S_SCOPE,
    S_REGION,
    S_CHECKPOINT
} StmtKind;

struct Stmt {
    StmtKind kind;
    int line, col;
    Names names;             /* assigned; the loop's variable              */
    const Expr *value;       /* or condition, or list                      */
    VEC(const Expr *) parts; /* of message, dims */
    Block body, other;
    VarKind var;
    DType dtype;
    VEC(KeyArg) keys; /* a variable's options */
    bool off;         /* a region's autocast */
};

struct Module;
/* lx is at `def`; the function is allocated in arena a. It may call the
   library's functions above it, and the functions of m (NULL: none). */
Status parse_def(Lexer *lx, Arena *a, const struct Module *m, Fn **out);
/* lx is at `optimizer` or `wrapper` (optimizer.h). */
Status parse_optimizer(Lexer *lx, Arena *a, const struct Module *m,
                       const Fn **update);
/* lx is at the `gradient` of a rule; ops[0..*n) receives the ops that the
   rule is for. */
enum { MAX_RULE_OPS = 8 };
Status parse_rule(Lexer *lx, Arena *a, Fn **out, OpCode *ops, int *n);

/* Parse one line of a model up to the next token; an expression of such a
   line; the type of an input. lx is at the first token, in infix mode. */
Status parse_model_line(Lexer *lx, Arena *a, const struct Module *m, Stmt *out);
Status parse_model_expr(Lexer *lx, Arena *a, const struct Module *m,
                        const Expr **out);
Status parse_model_type(Lexer *lx, Arena *a, const struct Module *m, Stmt *out);

/* Index of a built-in; -1: unknown name. */
int fn_builtin(Str name);
/* The op of an operator between tensors (of != before a not); NUM_OPS: none. */
OpCode binary_op(BinaryOp op);

#endif
