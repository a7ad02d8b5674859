/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h: the interpreter; rounding to a dtype. */
#ifndef AMPC_IR_EVAL_EVALUATE_H
#define AMPC_IR_EVAL_EVALUATE_H

#include "ir/ir.h"

/* Evaluates in double (integers in int64).  EVAL_STORAGE rounds every value
   to its declared dtype (what compiled code does); EVAL_EXACT never rounds
   (finite differences). */
typedef enum EvalMode { EVAL_STORAGE, EVAL_EXACT } EvalMode;

typedef struct EvalTensor {
    TypeId type;
    double *f;  /* float dtypes */
    int64_t *i; /* bool and integer dtypes */
} EvalTensor;

typedef struct Evaluator Evaluator;
Evaluator *eval_new(const Graph *g, Arena *a, EvalMode mode);
/* Bind inputs/variables by value id before running; unbound variables take
   their init; unbound inputs are an error. */
void eval_bind(Evaluator *e, ValueId v, const EvalTensor *t);
Status eval_run(Evaluator *e, Diag *d);
const EvalTensor *eval_get(const Evaluator *e, ValueId v);
EvalTensor *eval_from_tensor(Arena *a, const Tensor *t);
Tensor *eval_to_tensor(Arena *a, const EvalTensor *t, TypeId as);
EvalTensor *eval_tensor_new(Arena *a, TypeId t);
/* Folding: evaluates one node from given operands. Fails with a message
   (integer division by zero, ...). */
Status eval_node(const Graph *g, NodeId n, Arena *a, EvalMode mode,
                 const EvalTensor *const *in, EvalTensor **out, char *msg);
/* The expression of an ELEM or REDUCE row without attributes; REDUCE: a is the
   result so far, b the next element. */
double eval_expr_f(OpCode op, double a, double b);
double round_to_dtype(double v, DType d);
/* False for a finite number that becomes infinite in that dtype. */
bool dtype_can_hold(DType d, double v);

#endif
