/* ast.h: definitions as trees, and their reader.

     def    = "def" name "(" [operand, ..] [";" attribute, ..] ")" "->"
              result, .. "class" word ["whole"] block part*
     operand   = name ["?"] [":" float | int | any]
     attribute = name ["?"] [":" int | bool | float | str | ints | axis | axes]
                 ["=" expression]
     result    = name ["?"] [":" dtype]
     grad      = "grad" "(" name, .. ")" "->" name, .. block
     part      = grad | "inference" block | "samples" block
                 (whole: in std.amp only)
     rule      = "gradient" op, .. "(" name [".."], .. ")" "->" name [".."], ..
                 block            gradients of primitive ops, in std.amp only
     block  = "{" statement* "}"
     statement = name, .. "=" expression
            | "if" expression block ["else" (block | if)]
            | "for" name "in" expression block
            | "require" expression, part, ..
     expression, loosest first:
              a if c else b (on one line);  or;  and;  not;  == != < <= > >= in;
   ..;
              + -;  * / // %;  -a;  a[i];
              number, "string", true, false, none, name, (a), [a, ..],
              [a for i in list if c], name(a, .., key=a, ..)

   Names are bound where they are assigned and may be bound again.  A function
   calls core ops, functions defined above it, and the built-ins of run_fn.c
   (its parts may call the function itself): who is called is known once the
   text is read.                                                             */
#ifndef AMPC_IR_FN_AST_H
#define AMPC_IR_FN_AST_H

#include "ir/op/op.h"
#include "ir/text/lex.h"

typedef struct Fn Fn;
typedef struct Expr Expr;
typedef struct Stmt Stmt;
typedef VEC(Stmt) Block;
typedef VEC(Str) Names;

typedef enum ExprKind {
    E_INT,
    E_FLOAT,
    E_STR,
    E_BOOL,
    E_NONE,
    E_NAME,
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
    B_MOD
} BinaryOp;

typedef enum CalleeKind { CALLEE_OP, CALLEE_FN, CALLEE_BUILTIN } CalleeKind;

typedef struct KeyArg {
    Str name;
    const Expr *value;
} KeyArg;

struct Expr {
    ExprKind kind;
    int line, col;
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

typedef enum StmtKind { S_ASSIGN, S_IF, S_FOR, S_REQUIRE } StmtKind;

struct Stmt {
    StmtKind kind;
    Names names;             /* assigned; the loop's variable              */
    const Expr *value;       /* or condition, or list                      */
    VEC(const Expr *) parts; /* of the message                             */
    Block body, other;
};

struct Module;
/* lx stands at `def`; the function is made in arena a.  m: whose functions
   may be called beside the library's so far; NULL: the library's alone. */
Status parse_def(Lexer *lx, Arena *a, const struct Module *m, Fn **out);
/* lx stands at the `gradient` of a rule; ops[0..*n) are those that it is for.
 */
enum { MAX_RULE_OPS = 8 };
Status parse_rule(Lexer *lx, Arena *a, Fn **out, OpCode *ops, int *n);

/* Index of a built-in, -1: there is none of this name. */
int fn_builtin(Str name);

#endif
