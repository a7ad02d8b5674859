/* SPDX-License-Identifier: Apache-2.0 */
/* passes.h: the passes, in pipeline order (pipeline.c has the table).

   A pass is one file with one exported function; it works on the whole module
   (every graph it cares about), never prints, verifies or exits: the runner
   does the chores (verify, time, dump, name the pass in a bug report). */
#ifndef AMPC_PASSES_PASSES_H
#define AMPC_PASSES_PASSES_H

#include "passes/options.h"

typedef struct PassCtx {
    Arena *scratch; /* reset after every pass */
    Diag *diag;
    const Options *opt;
} PassCtx;

typedef Status PassFn(Module *m, PassCtx *cx);

PassFn pass_simplify, pass_cse, pass_dce; /* any stage before FUSED    */
PassFn pass_adapt; /* low-rank adapters; storage of frozen weights */
/* The module's adapters and its other trained parameters as JSON. */
void adapters_put(const Module *m, StrBuf *sb);
PassFn pass_loss;     /* forward gets `loss`                               */
PassFn pass_programs; /* forward -> train, eval, predict                   */
PassFn pass_grad;     /* op grad: the nodes that compute the gradient */
PassFn pass_checks;   /* checks that class and row numbers in inputs are in
                         range */
/* The layer whose parameter a node reads: "fc1" for fc1.weight; NULL: none. */
Str node_layer(const Graph *g, const Node *n);
PassFn pass_samples; /* shares of micro-batches, masks of samples         */
/* step_samples.c, for later passes. sum: the loss is a sum over samples. Others
   remove the pass's outputs. weigh: with masks, and returns the share of the
   micro-batch. all: all samples count, in one batch; returns whether the
   share depends on the data. */
bool samples_sum(const Graph *g);
ValueId samples_weigh(Graph *g);
bool samples_all(Graph *g);
PassFn pass_perturb;   /* train: the loss where a wrapper wants its gradient */
PassFn pass_policy;    /* classes from --amp-policy */
PassFn pass_rules;     /* types by PyTorch's or Apex's rule                */
PassFn pass_factors;   /* f32 products that GPUs may round           */
PassFn pass_eight;     /* products read 8 bits, for --precision f8    */
PassFn pass_autocast;  /* casts by class                                    */
PassFn pass_ranges;    /* warns of constants that change in 16 bits */
PassFn pass_autodiff;  /* train: loss -> gradients of trained parameters    */
PassFn pass_probes;    /* train -> locate, underflow                        */
PassFn pass_optimizer; /* train -> train, micro, update, refresh            */
PassFn pass_inline;    /* calls to their bodies                             */
PassFn pass_canon;     /* primitives in the forms that fuse and lower       */
PassFn pass_lift;      /* makes values f32 again, except operands of matrix
                          products */
PassFn pass_join;      /* joins matrix products that are summed */
PassFn pass_place;     /* chooses 16 bits where they save traffic */
PassFn pass_remat;     /* recomputation in backward */
PassFn pass_keep;      /* 8-bit codes of what backward alone reads later */
PassFn pass_locate;    /* finds values that are not finite */
PassFn pass_underflow; /* counts gradients that fp16 flushes to zero */
PassFn pass_buckets;  /* groups gradients that are summed over ranks together */
PassFn pass_stream;   /* losses of wide matrix products, some rows at a time */
PassFn pass_attend;   /* attention as one node                             */
PassFn pass_heads;    /* attention reads and writes heads beside rows      */
PassFn pass_sums;     /* convolutions add up their results for batch norms */
PassFn pass_reduce;   /* reductions in stages                              */
PassFn pass_quantize; /* matrix products of quantized weights */
PassFn pass_masters;  /* matrix products round fp32 weights */
PassFn pass_eights;   /* matrix products of numbers of 8 bits */
PassFn pass_align;    /* pads rows of matrix products to multiples of 16
                         bytes */
PassFn pass_fuse;     /* groups                                            */
PassFn pass_schedule; /* order of groups                                   */
PassFn pass_memplan;  /* offsets                                           */

/* autodiff.c, for passes and tests: appends to g, as nodes with these flags,
   the gradients of <seed, loss> with respect to want[0..n). A seed has as
   many elements as the loss; NULL is allowed for a loss of one element and
   means 1. grads[i] = 0 if no gradient reaches want[i]. */
Status autodiff(Graph *g, Diag *d, Arena *scratch, uint32_t flags, ValueId loss,
                ValueId seed, const ValueId *want, int n, ValueId *grads);

/* autodiff.c: the variables that the objective trains and `loss` depends on;
   params has an entry for each variable of the module. */
int trained_params(const Graph *g, Arena *scratch, const Objective *j,
                   ValueId loss, ValueId *params);

/* autocast.c: multiply-adds of a matrix product; 0 for gradients of a
   convolution's weight, and for calls. */
double product_work(const Graph *g, const Node *n);

/* step_scale.c, for passes perturb and autodiff: the scale of this step's
   loss. */
ValueId optimizer_scale(Builder *b, const Options *o);
/* The variable that holds the 16-bit copy of variable v; none: it has no
   copy. */
ValueId shadow_of(Graph *g, ValueId v, DType d);
/* Makes a program that writes a parameter also write its 16-bit copies,
   unless it does already; refresh writes all copies. */
void shadows_write(Graph *g, Arena *scratch);

/* ---- the runner (pipeline.c) --------------------------------------------- */

typedef enum PassSide {
    PASS_COMMON, /* runs once: types, casts, gradients, the training step */
    PASS_TARGET  /* runs for each target on its own graphs */
} PassSide;
extern const char *const pass_side_text[];

/* The rows in execution order; a pass may have several rows. */
typedef struct PassRow {
    const char *name;
    PassFn *fn;
    PassSide side;
    Stage stage; /* verified after it */
    const char *purpose;
} PassRow;
extern const PassRow pipeline[];
extern const int pipeline_length;

/* Checks the rows against the reasons for their order, and names
   contradictions. */
bool pipeline_defect(const PassRow *rows, int n, StrBuf *why);

/* Runs the rows that the module has not passed yet, up to stage `last`.
   Verifies after each; writes dumps into opt->dump_ir when set; keeps the
   text after the last of each name in m->texts when `keep`. */
Status run_pipeline(Module *m, Diag *d, const Options *opt, Stage last,
                    bool keep);
/* For a module read from the text before pass `first`: runs the rows from it
   to pass `last`; both are in the same list. */
Status run_until(Module *m, Diag *d, const Options *opt, const char *next,
                 bool keep);
/* Runs only the passes that all targets share. */
Status run_common(Module *m, Diag *d, const Options *opt, bool keep);
/* Of a module that was read from the text before pass `first`: the rows from
   that to pass `last`, both of which stand in one row. */
Status run_between(Module *m, Diag *d, const Options *opt, const char *first,
                   const char *last);
/* Runs some rows, comma-separated in the pipeline's order; the module may be
   at any stage that the first of them reads. */
Status run_passes(Module *m, Diag *d, const Options *opt, const char *names,
                  bool keep);

#endif
