/* SPDX-License-Identifier: Apache-2.0 */
/* formula.h: expressions of the language in the compiler's own texts: read, and
   made into nodes. Pass code searches graphs for them (passes/pattern.h). */
#ifndef AMPC_IR_FN_FORMULA_H
#define AMPC_IR_FN_FORMULA_H

#include "ir/fn/ast.h"

/* A name stands for a value, a number, or an attribute. */
typedef enum FormulaKind {
    FORMULA_VALUE,
    FORMULA_NUMBER,
    FORMULA_ATTR
} FormulaKind;

typedef struct FormulaName {
    Str name;
    FormulaKind kind;
    ValueId value;
    double number;
    Attr attr;
} FormulaName;

/* expression ["where" name = expression, ..] */
typedef struct Formula {
    const Expr *whole;
    VEC(KeyArg) parts;
} Formula;

/* The text is legal; the formula lives as long as the process. */
Formula formula_read(const char *text);
/* The value of e for n names, as dtype d. */
ValueId formula_make(Builder *b, const Expr *e, const FormulaName *names, int n,
                     DType d);

#endif
