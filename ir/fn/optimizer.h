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
   finite all keep the old ones.  State has its parameter's shape, or a declared
   one. It is f32 unless a dtype follows a colon, begins as 0 or INITIAL, and
   exists if CONDITION, on the keys and on p's shape, holds. State called
   `evaluated` is read in the place of p by evaluation, predictions, files of
   weights and exports, from the first step on.

   `once` computes numbers that parameters with equal keys share: from lr, the
   rate of this step, and t, its number (1, 2, ..).  It computes in f64 and
   rounds its results to f32, like PyTorch's Python numbers. Without `once` the
   body reads lr.

   A line NAME = total(x) of the body, not inside `if` or `for`, gives the sum
   of x over all elements of all parameters that the optimizer trains: an f32
   number, added up in f64. The lines before it are computed for all parameters
   first; none of them assigns NAME.

   `from` and `to` (or `below`, which excludes HI) limit the values of a key.
   A definition becomes functions (fn.h): NAME_once, NAME_TOTAL for each total,
   and NAME, which has the totals as operands; NAME is `whole` if each element
   is computed by itself.

   A wrapper has the same form, but for lr, which is no key of it:

     wrapper before NAME(p, g; ..)     gives the p at which the optimizer's
                                       gradient is computed, from the gradient
                                       g at p; without `once` and state
     wrapper after NAME(p, old; ..)    changes the p that the optimizer has
                                       made of old */
#ifndef AMPC_IR_FN_OPTIMIZER_H
#define AMPC_IR_FN_OPTIMIZER_H

#include "ir/fn/fn.h"

/* The state that is read in the place of the parameter. */
#define OPTIMIZER_EVALUATED "evaluated"

typedef struct OptimizerState {
    Str name;
    DType dtype;
    const Expr *shape; /* a list; NULL: the parameter's shape */
    double initial;
    const Expr *when; /* NULL: always */
} OptimizerState;

typedef enum OptimizerRole {
    ROLE_OPTIMIZER,
    WRAPPER_BEFORE,
    WRAPPER_AFTER,
    NUM_ROLES
} OptimizerRole;

typedef struct Optimizer {
    OptimizerRole role;
    const Fn *once; /* operands lr, t */
    VEC(const Fn *)
    totals;           /* operands as update, without totals that come
                         later; result: the sum for one parameter */
    const Fn *update; /* operands p, g, whether all is finite, the results of
                         once, the totals, the state; results p, the state */
    FnAttr lr;        /* not an attribute of the functions; wrappers lack it */
    VEC(OptimizerState) states;
    VEC(const Fn *) helpers; /* functions above it that it may call */
    Str source;              /* NULL */
} Optimizer;

/* An optimizer of std.amp or of the module; NULL: unknown name. */
const Fn *optimizer_find(const Module *m, const char *name);
/* The library's next optimizer of that role after `f`, or the first; NULL: no
   more. */
const Fn *optimizer_next(const Fn *f, OptimizerRole role);
/* The option that takes it. */
const char *optimizer_option(const Fn *update);
/* True if a definition begins at the current token. */
bool optimizer_begins(const Lexer *lx);

/* The functions of the definition, each behind those that it needs; NULL: no
   more. */
const Fn *optimizer_part(const Optimizer *o, int i);
/* Adds a function to the module's; false: another one has its name. */
bool fn_keep(Module *m, const Fn *f);
/* Adds them to the module's functions, behind those that they may call.
   Returns the name that another function of the module has; NULL: none. */
Str optimizer_keep(Module *m, const Fn *update);

/* The name of a state that both have; NULL: none. */
Str optimizer_shares_state(const Optimizer *a, const Optimizer *b);
/* Whether there is a state `evaluated`. */
bool optimizer_evaluates(const Optimizer *o);

/* Reads the functions of a text, which are definitions followed by one
   optimizer, into m. */
Status optimizer_read(Module *m, Diag *d, const char *file, const char *text,
                      size_t n, const Fn **out);

/* Whether the update takes the same steps of operands in another shape, `part`
   in place of `whole`, each step for one element at a time.  types: those of
   the operands; 0: absent. */
bool optimizer_can_reshape(const Fn *update, const Attr *attrs, int nattr,
                           const TypeId *types, int n, TypeId whole,
                           TypeId part);

/* The state that update has for parameter p with those attributes: type[i]
   is 0 if state i does not exist. types has one entry for each of o->states. */
Status optimizer_types(const Optimizer *o, Graph *g, ValueId p,
                       const Attr *attrs, int nattr, TypeId *types, char *msg);

/* Makes a call of o->once, o->update or a schedule; result i has the shape of
   want[i] if that is not 0; want NULL: any shapes. */
Status optimizer_call(Builder *b, const Fn *fn, ValueId *in, int nin,
                      const Attr *attrs, int nattr, const TypeId *want,
                      NodeId *out, char *msg);

/* True if the body computes each element by itself. */
bool call_is_elementwise(const Graph *g, const Node *call);
/* True if also the state has its parameter's shape: ranks may then share the
   update. */
bool optimizer_can_share(const Optimizer *o, const Graph *g, NodeId update);

#endif
