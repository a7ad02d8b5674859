/* SPDX-License-Identifier: Apache-2.0 */
/* emit.h: declarations shared by the files that write a module, in module/
   if no folder is named.

   emit_plan.c      programs to tables and initial values
   emit_tables.c    tables to C text
   emit_weights.c   initial values to a section or to safetensors
   c/emit_cc.c      runs the system's C compiler
   cuda/emit_cuda.c GPU steps and kernels (cuda.h)
   tile_build.c     CUDA Tile kernels to cubins, by NVRTC and tileiras
   cost/cost.c      the work of the steps in numbers (cost.h)
   emit_runtime.c   the runtime for another kind of processor
   emit_so.c        puts it all into one file
   emit_source.c    or writes it as C
   emit_object.c    or as an object to link into a program                  */
#ifndef AMPC_CODEGEN_EMIT_H
#define AMPC_CODEGEN_EMIT_H

#include "codegen/codegen.h"
#include "codegen/levels.h"
#include "codegen/cache/compile_cache.h"
#include "codegen/embed.h"
#include "codegen/section.h"

/* A piece of section "weights". */
typedef struct WeightPiece {
    const void *data;
    int64_t bytes, offset;
} WeightPiece;

/* A group and its target's step. */
typedef struct EmitGroup {
    TargetKind target;
    const LoweredStep *s;
    PlanStep step; /* of a GPU                                              */
    bool idle;     /* the step has no work */
    bool part;     /* the group is part of the previous group's step */
    bool gelu;     /* a PLAN_GELU may replace the step */
    uint32_t tile; /* PlanCuda.tiles + 1 that replaces the step; 0: none */
} EmitGroup;

/* One step of a plan: n groups. */
typedef struct EmitStep {
    const Graph *g;
    const LoweredStep *s;
    int n;
    PlanStep step;
    uint32_t tile; /* as of EmitGroup */
    int since;     /* StepCost.since */
    const LoweredStep
        *both; /* PLAN_TILE, PLAN_GELU: refs of the work of s[0] and s[1] */
} EmitStep;

typedef struct PlanSource {
    StrBuf text;          /* plan.c; freed by the caller */
    KernelTexts *kernels; /* for the CPU; NULL: no code for it */
    VEC(WeightPiece) weights;
    int64_t weight_bytes;
    StrBuf index; /* position of each model variable in the weights, as header
                     of a safetensors file; freed by the caller */
    uint64_t id;  /* AmpcModule.id                              */
    PlanSidecar sidecar;     /* the file written by weights_sidecar */
    struct CudaSource *cuda; /* cuda.h; NULL: not requested */
    VEC(EmitGroup) groups;   /* of all graphs */
    VEC(EmitStep) steps;     /* of all targets */
} PlanSource;

/* True if the text has that word outside of strings that begin with it. */
bool text_has_word(const char *text, const char *word);
#define SYMBOL_TAKEN                                                           \
    "--symbol %s: the module's own code has that name; choose another name"

Status emit_plan(Module *m, const Options *opt, Diag *d, const EmitInput *in,
                 Arena *a, PlanSource *out);

/* ---- emit_weights.c ------------------------------------------------------ */

/* All weight_bytes bytes of the initial values. */
unsigned char *weights_all(Arena *a, const PlanSource *src);
/* The variable's initial values in its own dtype; NULL: a number fills the
   variable. */
const Tensor *weights_initial(Arena *a, const Var *v);
bool weights_in_sidecar(const Options *opt, const Var *v);
/* Sections "weights" and "weights.json". */
void weights_section(SectionWriter *w, const PlanSource *src);
/* One more entry of a safetensors header: the variable at byte `at`. */
void weights_entry(StrBuf *header, const Var *v, int64_t at);
/* Reads the whole file; fills *out. */
bool weights_sidecar(FILE *f, const Module *m, Arena *a, PlanSidecar *out);

/* ---- emit_cc.c ----------------------------------------------------------- */

#define CC_COMMON                                                              \
    "-fPIC -fvisibility=hidden -fno-semantic-interposition -w -g0 "            \
    "-frandom-seed=ampc -I. -Iruntime/cpu -c"
#define CC_PLAN "-std=gnu17 -O1 " CC_COMMON

/* One run of the compiler in folder `dir`; words are separated by blanks and
   contain none. Its messages go to `log` in that folder. */
typedef struct CcJob {
    const char *program; /* a word of binutils, or a path; NULL: the compiler */
    const char *variable; /* NAME=VALUE in its environment; NULL: none */
    const char *arch;     /* the kind of processor, of all jobs of a call */
    const char *words;
    const char *log;
    const char *source, *object; /* NULL: the result is not kept */
    CompileKey key;              /* of the object file */
    int again;  /* times that it starts again if a signal ends it */
    long pid;   /* 0: it does not run */
    int error;  /* errno if it could not be started */
    int status; /* exit status */
} CcJob;

/* Starts all jobs (one at least) at once, except those whose object is in
   `cache` (may be NULL). */
void cc_start(Arena *a, const char *cache, const char *dir, CcJob *jobs, int n);
/* Waits for all jobs and stores their results in the cache. Reports a job
   that fails or a missing compiler. */
Status cc_wait(Diag *d, Arena *a, const char *cache, const char *dir,
               CcJob *jobs, int n);

/* ---- tile_build.c -------------------------------------------------------- */

/* The images of the CUDA Tile kernels, by the tools of folder `tools`, in
   folder dir. */
Status tile_build(Diag *d, Arena *a, const char *tools, const char *cache,
                  const char *dir, struct CudaSource *c);

/* ---- emit_runtime.c ------------------------------------------------------ */

/* The embedded file of that name. */
const EmbedFile *embedded(const char *name);
/* Where the text of embedded file `name` has a line that is `line`. */
bool embedded_lists(const char *name, const char *line);
/* Compiles the runtime's sources for the processors of the module, in folder
   dir, and writes the linker's list of objects. A relocatable object has
   initial values of its own. */
Status emit_runtime(const Options *opt, Diag *d, Arena *a, const char *cache,
                    const char *dir, bool relocatable);
/* What the linker gets: that list, or the archive of `ampc` itself. */
const char *emit_runtime_name(const Options *opt);

/* ---- emit_source.c ------------------------------------------------------- */

/* Writes the module as one C file, or as a folder with that file and ampc.h. */
Status emit_source(const Options *opt, Diag *d, Arena *a, const char *path,
                   const PlanSource *src);

/* ---- emit_object.c ------------------------------------------------------- */

/* Makes an object or an archive (by the ending of `path`) from the compiled
   `objects` in folder dir, where *made is its name. */
Status emit_object(const Options *opt, Diag *d, Arena *a, const char *dir,
                   const char *path, const PlanSource *src, const char *objects,
                   const char **made);

#endif
