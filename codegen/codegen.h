/* SPDX-License-Identifier: Apache-2.0 */
/* codegen.h: turns a PLANNED module into train.so.

   fuse.c promises about groups (verify.c checks at stage FUSED):
   - Each group becomes exactly one plan step.  VIEW nodes are in no group: the
     result shares the operand's buffer (view_root).  Rank-0 constants are
     immediates, never buffers.  GEN nodes are copied into the groups that use
     them.
   - GROUP_POINT: ELEM, GEN and MOVE nodes.  All values that leave the group
     have one shape, the domain, or are codes of that shape, transposed, or made
     of blocks of such a value (node_by_tile), which no node of the group reads.
     Inner values are computed at whatever index their users ask for (an index
     map is a composition of MOVE ops and broadcasts).
   - GROUP_ROW: additionally REDUCE nodes (keepdims=1), all with one operand
     shape S and one axis set A.  Inner values are "full" (shape S after
     broadcasting) or "row" (S with the A dims 1).  Values that leave have shape
     S or the row shape, are a pad of a few zeros behind rows of S
     (node_pads_rows), by tiles as above, if rows are the last axis, or
     sums over all rows (node_sums_columns) that no node of the group reads. The
     operand of another MOVE never depends on a REDUCE of the same group.
   - GROUP_ANCHOR: one ANCHOR node and ELEM/GEN nodes of its result shape
     (external operands broadcast to it), no MOVE.  The anchor reads operands of
     other groups only. After a convolution the last node may be a pool of the
     group's result (node_pools).
   - GROUP_LIB: one LIB node, alone.
   - A group marked `beside` (POINT or ROW, on a GPU) computes the same as the
     group before it on other operands: both share a kernel; if that is flat,
     their lengths may differ.  A group marked `after` folds the results of one
     of them. */
#ifndef AMPC_CODEGEN_CODEGEN_H
#define AMPC_CODEGEN_CODEGEN_H

#include "ir/ir.h"
#include "passes/options.h"
#include "passes/device/product.h"
#include "runtime/program/plan.h"

typedef struct Kernel Kernel; /* kir.h */

/* A plan step to be. */
typedef struct LoweredStep {
    PlanStepKind kind;
    PlanLib lib;             /* PLAN_LIB                                     */
    const Kernel *kernel;    /* PLAN_KERNEL                                  */
    const Kernel *epilogue;  /* PLAN_LIB, NULL: none                         */
    ProductEnd end;          /* the epilogue's buffers, if cuBLASLt computes
                                the whole epilogue */
    const ProductGelu *gelu; /* with the next step; NULL: none               */
    const struct LoweredStep *sums; /* .. the kernel of gelu->sums alone */
    ValueId blocks[2];       /* scales of blocks of a product's operands     */
    uint32_t fn, second;     /* fields of PlanStep, as is scratch; for GPUs */
    uint32_t after;          /* PLAN_PRODUCT: PlanStep.epilogue              */
    ValueId *refs, *ep_refs; /* 0 = PLAN_NONE                                */
    int nref, nep_ref;
    int64_t *pars;
    int npar;
    AmpcFactors factors; /* PLAN_LIB on a GPU, of f32 operands */
    int64_t units, grain;
    uint64_t scratch;
    const char *name;
    bool empty;                       /* PLAN_LIB: every result is */
    bool summed;                      /* the result is then summed over ranks */
    bool largest;                     /* .. or their largest one taken */
    const struct LoweredStep *behind; /* Group.after; NULL: none              */
    int64_t unit;         /* kernels of form flat: elements per unit */
    int64_t block_shared; /* as for kernel_set_new */
    Guard guard;          /* of the group */
} LoweredStep;

/* lower.c: the step of every group.  Kernels are shared structurally through
   the kernel set: equal text, equal Kernel pointer, so that 60 parameters
   share one update kernel (flat kernels take their length from par[0]).
   Lowering refuses only with a message. */
typedef struct KernelSet KernelSet;
/* block_shared: bytes of shared memory that a block of each GPU has. */
KernelSet *kernel_set_new(Arena *a, TargetKind target, int64_t block_shared);
int kernel_set_count(const KernelSet *ks, bool epilogues);
const Kernel *kernel_set_get(const KernelSet *ks, bool epilogues, int i);
int kernel_index(const Kernel *k); /* position in its list */
Status lower_graph(const Graph *g, KernelSet *ks, Diag *d,
                   LoweredStep **out /* per group, in the set's arena */);

/* The printed C must be compiled without contraction and reassociation, and
   without errno and traps, which keep comparisons, square roots and selects
   from being vectorised. kmath.h selects further optimisations of gcc. Outputs
   may share bytes with inputs of another type, hence no-strict-aliasing. */
#define KERNEL_CFLAGS                                                          \
    "-std=gnu17 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math "     \
    "-fno-strict-aliasing"

/* Kernels call the runtime's routines of the level with that prefix
   (runtime/cpu/kmath_calls.h). */
#define KERNEL_CALLS "-DKM_ROUTINES=\"ampc_%s\""

/* For --quick: gcc's -Og without the optimisations that kmath.h selects. */
#define KERNEL_QUICK " -Og -DKM_QUICK"

/* Kernels with little work take long to compile for the little that they do:
   all levels use the kernels of the lowest level. Those with an exponential or
   another long function are not among them: their last bits depend on the level
   (km_fma), and a level's bits do not depend on a module's other levels. */
bool kernel_is_small(const Kernel *k);

/* share_c.c: a kernel as a function in C. */
typedef struct KernelText {
    const Kernel *kernel;
    bool small;
    const char *text;               /* after the function's head */
    VEC(const char *) sizes;        /* its table; each begins with its kind */
    uint64_t hash;                  /* of the text */
    const struct KernelText *first; /* the first one with that text */
} KernelText;

typedef struct KernelTexts {
    VEC(KernelText) list;
    int kernels; /* those after them are epilogues */
} KernelTexts;

KernelTexts *kernel_texts(Arena *a, const KernelSet *ks);
const KernelText *kernel_text(const KernelTexts *all, bool epilogue, int i);

/* A text: number `part` of the `parts` that those kernels are in. All kernels
   have comments, to be read. */
typedef enum KernelKinds {
    KERNELS_LARGE,
    KERNELS_SMALL,
    KERNELS_ALL
} KernelKinds;
typedef struct KernelPart {
    KernelKinds kinds;
    int part, parts;
} KernelPart;

/* Prints the functions of a part and returns their number; `prefix` starts
   every name. The text includes nothing but "kmath.h". */
int print_c_kernels(const KernelTexts *all, StrBuf *sb, const char *prefix,
                    KernelPart part);
/* The tables; the text includes "kmath_size.h". */
void print_c_sizes(const KernelTexts *all, StrBuf *sb, const char *prefix);
/* The name of a function, of a table (0: there is none), without a prefix. */
void sb_put_kernel_name(StrBuf *sb, const KernelText *t);
void sb_put_kernel_table(StrBuf *sb, const KernelText *t);

/* emit_plan.c: programs to tables, as C source defining `const AmpcModule
   ampc_plan` and the exported symbol; weights to a blob. */
typedef struct EmitSection {
    const char *name; /* at most 31 bytes */
    const char *data;
    size_t size;
} EmitSection;

typedef struct EmitInput {
    const char *path;       /* out.so */
    const char *model_path; /* the user's file; data: what section "model",
                               or "model.amp", keeps of it */
    const char *model_data;
    bool model_is_text;
    const char
        *options;     /* the compile options as JSON, for the module's info */
    const char *said; /* the model and the options given, as JSON, for what
                         checkpoints ask                                     */
    size_t model_size;
    const EmitSection *sections; /* further sections at the end of the file:
                                    reports; the texts of m->texts are added
                                    as "ir:PASS" */
    int nsection;
    /* Called, if set, when everything is compiled and before the sections are
       written: notes[json][i] describes how the i-th group of all graphs runs,
       its loops and its launch on the GPU: lines of text, or members of a JSON
       object; empty if a library does all of the work.  cost: section "cost"
       (module/cost.h).                                                      */
    Status (*compiled)(void *ctx, const char *const *const notes[2],
                       const char *cost);
    void *ctx;
} EmitInput;

/* emit_weights.c: OUT.weights.safetensors for module OUT.so. */
char *weights_sidecar_path(Arena *a, const char *module);

/* cuda_target.c: sets the default targets if none is given, and warns if GPU
   code is left out because NVRTC is missing. Refuses GPU targets that this
   machine cannot compile, and every GPU target for the output `object`,
   which cannot hold GPU code (NULL: the output is no object). */
Status cuda_targets(Options *opt, Diag *d, const char *object);
/* Refuses --tile DIR where DIR lacks a tool; cuda_targets does so, too. */
Status cuda_tile_check(const Options *opt, Diag *d);

/* emit_so.c: everything: lower, print, compile with the system compiler (CC,
   default cc) for each target level in parallel, link with the embedded
   runtime, append sections, rename into place.  GPU code is compiled by NVRTC
   meanwhile.  On failure no files are left, and an existing module and its
   weights stay unchanged. */
Status emit_so(Module *m, const Options *opt, Diag *d, const EmitInput *in);
/* Runs emit_so up to the sources, which are dropped, and reports everything
   that lowering refuses. Reads only `compiled` and ctx of `in`. */
Status emit_check(Module *m, const Options *opt, Diag *d, const EmitInput *in);

/* emit_object.c: -o FILE.o or FILE.a asks for an object to link with; the check
   refuses options that an object cannot have and, for C text too, a --symbol
   that no C program can call. */
bool emit_is_object(const char *path);
Status emit_object_check(const Options *opt, Diag *d, const char *path);

/* emit_source.c: with --target c emit_so writes C text instead.
   emit_source_check refuses options that do not go with C text, and an
   output that can be neither a folder nor FILE.c; it claims the file. */
bool emit_is_source(const Options *opt);
Status emit_source_check(const Options *opt, Diag *d, const char *path);

#endif
