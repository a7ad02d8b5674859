/* SPDX-License-Identifier: Apache-2.0 */
/* function.h: a function as data. Rooms below ir/fn read its facts; its parts
   are trees that ir/fn reads, runs and checks (ast.h, fn.h). */
#ifndef AMPC_IR_OP_FUNCTION_H
#define AMPC_IR_OP_FUNCTION_H

#include "ir/op/op.h"

typedef struct Fn Fn;
typedef struct Expr Expr;
typedef struct Stmt Stmt;
typedef VEC(Stmt) Block;
typedef VEC(Str) Names;

/* The kinds of operands. ANY accepts bools, too, and autocast never casts
   it. */
typedef enum FnOperandKind { FO_FLOAT, FO_INT, FO_ANY } FnOperandKind;

typedef struct FnOperand {
    Str name;
    FnOperandKind kind;
    bool optional;
} FnOperand;

/* AXIS and AXES count in the first operand's rank and are kept non-negative. */
typedef enum FnAttrKind {
    FA_INT,
    FA_BOOL,
    FA_FLOAT,
    FA_STR,
    FA_INTS,
    FA_AXIS,
    FA_AXES
} FnAttrKind;

typedef struct FnAttr {
    Str name;
    FnAttrKind kind;
    AttrKey key;
    bool optional;    /* may be absent, and then has no value               */
    const Expr *dflt; /* NULL: required, or optional */
    double lo, hi;    /* a key of options: the range of its values */
    bool open;        /* the range excludes hi */
    Str doc;          /* the meaning of the key; NULL */
} FnAttr;

typedef struct FnResult {
    Str name;
    bool optional;
    DType dtype; /* NUM_DTYPES: the dtype of the first floating operand */
} FnResult;

/* Parts beside the body: `grad (in) -> out { .. }`, `inference { .. }`,
   `samples { .. }`. */
typedef struct FnPart {
    bool given;
    Names in, out;
    Block block;
} FnPart;

enum { MAX_FN_OPERANDS = 16 };

/* A definition, or the rule for the gradients of an op of the table; a rule
   has the op's own info, and only the part `grad`. */
struct Fn {
    OpInfo info; /* text, counts, classes and attributes, like a row of
                    ops.def */
    bool layer;  /* has no class: expanded where it is called */
    Str onnx;    /* the file of a layer without a body; else NULL */
    bool whole;  /* inlined only by each target */
    bool rule;
    bool all_in, all_out; /* rule: its one name stands for the list of all */
    Arena *arena;
    VEC(FnOperand) operands;
    VEC(FnAttr) attrs;
    VEC(FnResult) results;
    FnPart body, grad, inference, samples;
    Str file;
    int line;         /* first line of the definition */
    const char *text; /* the text of the definition */
    size_t size;
    struct FnTable *instances;
    Str loss; /* name for --loss and in texts; NULL: it is not a loss */
    const struct Optimizer *optimizer; /* optimizer.h; NULL: an op          */
};

#endif
