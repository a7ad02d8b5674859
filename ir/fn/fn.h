/* SPDX-License-Identifier: Apache-2.0 */
/* fn.h: functions, the ops that are written in the language itself.

     def softmax(x; axis: axis = -1) -> y class full {
       e = exp(x - reduce_max(x, axes=[axis]))
       y = e / reduce_sum(e, axes=[axis])
     }
     grad (dy) -> dx { dx = y * (dy - reduce_sum(dy * y, axes=[axis])) }

   A body is the formula of one op. It defines the types of a call's results
   (fn.c), its value in the interpreter (eval_call), its expansion (pass inline)
   and, by differentiation of its nodes, its gradient. A `grad` part replaces
   that gradient if it was measured to be better. An `inference` part is the
   form for evaluation and prediction. The `samples` part of a loss defines the
   values that evaluation sums over samples: num, den (their quotient is the
   loss), and for classes correct, count.  Until it is inlined, a call is one
   node with the class of the header; calls of a `whole` function stay until a
   target inlines them.

   parse_fn.c reads a definition into the tree of ast.h; run_fn.c runs a part
   for given operands, and make.c makes its nodes; std.amp has the compiler's
   own.

   A function without a class is a layer: its body is executed as part of the
   model that calls it and may declare variables (model.h); layers.amp has some.
 */
#ifndef AMPC_IR_FN_FN_H
#define AMPC_IR_FN_FN_H

#include "ir/fn/ast.h"
#include "ir/ir.h"
#include "ir/op/rule.h"

/* ---- finding ------------------------------------------------------------- */

/* An op of std.amp; NULL: unknown name. */
const Fn *fn_std(const char *name);
/* The texts of the library (made by ir/BUILD), one string a line; each ends
   with NULL. */
extern const char *const std_amp_lines[],
    *const losses_amp_lines[], *const layers_amp_lines[],
                                   *const optimizers_amp_lines[],
                                       *const microsoft_amp_lines[],
                                           *const quantized_amp_lines[],
                                               *const special_amp_lines[],
                                                   *const linalg_amp_lines[];
/* Reads the library at the first call: std.amp, the gradients that stand in
   ops.def, and so on to layers.amp. Lookups call it; readers of definitions
   call it before they begin. */
void fn_library_read(void);
/* All functions except layers, in the order of the file. */
int fn_std_count(void);
const Fn *fn_std_at(int i);
/* The loss with that name on the command line; NULL: none. */
const Fn *fn_loss(const char *name);
/* The number of a loss's operand `target`; -1: it has none. */
int fn_loss_target(const Fn *loss);
/* A function of the module or of the library; m may be NULL. */
const Fn *fn_find(const Module *m, const char *name, size_t n);
/* The rule by which gradients pass an op of the table; NULL: they do not
   pass. */
const Fn *op_gradient(OpCode op);
/* Attribute of a function by name; NULL: unknown name. */
const FnAttr *fn_attr(const Fn *fn, const char *name);

/* ---- calls --------------------------------------------------------------- */

/* The value of a call's attribute: the node's, else the default; false: it
   is optional and absent. */
bool call_attr(const Graph *g, const Node *call, const char *name, Attr *out);
/* True if n is a call of the library's function `name`. */
bool is_call(const Node *n, const char *name);

/* ---- running ------------------------------------------------------------- */

/* Makes the nodes of fn's body, or of its inference part, for operands
   in[0..nin).  want[i] is the dtype
   of result i, NUM_DTYPES the arithmetic's; out[i] 0: the body gives no such
   result.  flat: calls inside are expanded too.  msg has MSG_TEXT bytes. */
typedef struct FnCall {
    const Fn *fn;
    const ValueId *in;
    int nin;
    const Attr *attrs;
    int nattr;
    int nout;
    const DType *want; /* NULL: dtype of the arithmetic */
    bool flat;
    ValueId closed; /* of a gradient: true where no gradient passes; 0:
                       passes everywhere */
} FnCall;
/* The call that node n makes; it refers to n's lists. Results have the dtype
   of the arithmetic, and calls inside stay calls. */
FnCall fn_call(const Node *n);
Status fn_run(Builder *b, const FnCall *call, const FnPart *part, ValueId *out,
              char *msg);
/* Runs the samples part; a value that it does not set is 0. */
typedef struct FnSamples {
    ValueId num, den, correct, count;
} FnSamples;
Status fn_run_samples(Builder *b, const FnCall *call, FnSamples *out,
                      char *msg);
/* Runs the grad part. result[0..nout): the node's results; gout: their
   gradients (0: none); gin[0..nin): gradients of the operands, of dtypes
   `want`. A rule skips operands whose dtype is NUM_DTYPES, and rounds to the
   other dtypes only where that takes no cast. */
Status fn_run_grad(Builder *b, const FnCall *call, const ValueId *result,
                   const ValueId *gout, ValueId *gin, char *msg);

/* ---- for the files of ir/ ------------------------------------------------ */

struct FnTable {
    VEC(struct FnEntry *) entries;
    VEC(int) slots; /* hash table: entry + 1 */
};
const FnInstance *fn_instance(const Node *call, const Type *const *in);

/* What bodies say of their calls; for OpInfo.call. */
extern const CallRules fn_calls;
/* The default of one attribute; only the shapes of operands in[] are used. */
Status fn_default(const Fn *fn, Graph *g, const ValueId *in, int nin,
                  const FnAttr *attr, Attr *out, char *msg);

#endif
