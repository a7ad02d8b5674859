/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h: optimizers, as functions of the language.

     optimizer NAME(p, g; lr = 0.001, KEY = DEFAULT from LO to HI "what", ..)
       source "whose formula"
       state NAME if CONDITION
       state NAME[DIM, ..] = INITIAL
       once (lr, t) -> NAME, .. { .. }
     { p = ..  NAME = .. }

   p is a parameter and g its gradient, both f32: unscaled and clipped.  The
   body gives both p and the state their new values; where a gradient is not
   finite all keep the old ones.  State has its parameter's shape, or its own;
   it is f32, or of the dtype behind a colon, begins as 0 or INITIAL, and
   is there where CONDITION holds, of the keys and of p's shape.  State called
   `evaluated` is read in the place of p by evaluation, predictions, files of
   weights and exports, from the first step on.

   `once` computes numbers that parameters with equal keys share: from lr, the
   rate of this step, and t, its number (1, 2, ..).  It works in f64 and
   rounds its results to f32, as PyTorch's numbers of Python are.  Without it
   the body reads lr.

   Of a key, `from` and `to` (or `below`, which leaves HI out) bound the values.
   A definition becomes two functions (fn.h), of one call each: NAME_once and
   NAME, which is whole where each element is computed by itself. */
#ifndef AMPC_IR_FN_OPTIMIZER_H
#define AMPC_IR_FN_OPTIMIZER_H

#include "ir/fn/fn.h"

typedef struct OptimizerState {
    Str name;
    DType dtype;
    const Expr *shape; /* a list; NULL: the parameter's */
    double initial;
    const Expr *when; /* NULL: always */
} OptimizerState;

typedef struct Optimizer {
    const Fn *once;   /* operands lr, t */
    const Fn *update; /* operands p, g, whether all is finite, the results of
                         once, the state; results p, the state */
    FnAttr lr;        /* no attribute of the functions */
    VEC(OptimizerState) states;
    Str source; /* NULL */
} Optimizer;

/* An optimizer of std.amp or of the module; NULL: there is none. */
const Fn *optimizer_find(const Module *m, const char *name);
/* The next one of the library behind `f`, or the first; NULL: no more. */
const Fn *optimizer_next(const Fn *f);

/* Whether there is a state `evaluated`. */
bool optimizer_evaluates(const Optimizer *o);

/* The functions of a text, which are definitions and one optimizer at the end;
   into m. */
Status optimizer_read(Module *m, Diag *d, const char *file, const char *text,
                      size_t n, const Fn **out);

/* Whether the update takes the same steps of operands in another shape, `part`
   in place of `whole`, each step for one element at a time.  types: those of
   the operands; 0: absent. */
bool optimizer_can_reshape(const Fn *update, const Attr *attrs, int nattr,
                           const TypeId *types, int n, TypeId whole,
                           TypeId part);

/* The state that update has of parameter p, for those attributes: type[i] is 0
   where state i is not there.  types has one for each of o->states. */
Status optimizer_types(const Optimizer *o, Graph *g, ValueId p,
                       const Attr *attrs, int nattr, TypeId *types, char *msg);

/* A call of o->once, or of o->update, of which result i has the shape of
   want[i] where that is not 0; want NULL: any shapes. */
Status optimizer_call(Builder *b, const Fn *fn, ValueId *in, int nin,
                      const Attr *attrs, int nattr, const TypeId *want,
                      NodeId *out, char *msg);

/* Whether the body computes each element by itself. */
bool call_is_elementwise(const Graph *g, const Node *call);
/* Whether the update does, and state has the shape of its parameter: ranks may
   then share it. */
bool optimizer_can_share(const Optimizer *o, const Graph *g, NodeId update);

#endif
