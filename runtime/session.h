/* session.h: what the runtime's own files share; hosts see ampc.h only.

   run.c         memory, binding of programs, the loop over steps
   session.c     open and close
   api.c         the table of ampc.h
   weights.c     initial values from the module's own file
   safetensors.c the file format;  checkpoint.c  a session to and from it    */
#ifndef AMPC_SESSION_H
#define AMPC_SESSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/cpu/kernels.h"
#include "runtime/plan.h"

/* Programs that the API runs by name. */
typedef enum ProgramId {
    PROG_TRAIN,
    PROG_MICRO,
    PROG_UPDATE,
    PROG_EVAL,
    PROG_PREDICT,
    PROG_REFRESH,
    PROG_VJP,
    PROG_COUNT
} ProgramId;

/* Variables that the API reads by name (run.c has the names). */
typedef enum KnownVar {
    VAR_SCALE,
    VAR_GOOD,
    VAR_HYST,
    VAR_STEP,
    VAR_TRIED,
    VAR_SKIPPED,
    VAR_BAD_FORWARD,
    VAR_MICRO,
    VAR_KNOWN
} KnownVar;

/* One step with its operands resolved. */
typedef struct BoundStep {
    uint32_t kind, lib;
    PlanKernelFn *kernel;
    void **buf;
    const int64_t *par;
    int64_t units, grain;
    CpuEpilogue epilogue;
    const char *name;
} BoundStep;

/* A table entry that follows an input's address. */
typedef struct BoundPatch {
    void **slot;
    uint32_t input;
    uint64_t offset;
} BoundPatch;

/* A program ready to run; `memory` holds all its tables.  NULL: not bound. */
typedef struct Bound {
    void *memory;
    size_t bytes;
    BoundStep *steps;
    BoundPatch *patches;
    const void **inputs; /* addresses that the tables hold now              */
    void **outputs;      /* NULL for one that is an input, passed through   */
    uint32_t npatch;
} Bound;

struct ampc_session {
    const AmpcModule *m;
    ampc_options opt;
    const PlanIsa *isa;
    AmpcPool *pool;
    pid_t pid; /* threads do not survive fork */
    atomic_int busy;
    bool stale; /* 16-bit copies lag behind their masters */
    int64_t accumulate, batch;
    int64_t micro; /* micro-steps since the last update */
    int program[PROG_COUNT]; /* index in m->programs or -1 */
    int known[VAR_KNOWN];    /* index in m->vars or -1 */
    int last;                /* program that ran last or -1 */
    void **var;              /* address of each variable; gradients: late */
    const void **addr;       /* inputs of the call, while it is checked   */
    void *vars, *grads, *arena, *scratch;
    size_t vars_bytes, grads_bytes, arena_bytes, scratch_bytes;
    Bound *bound; /* per program */
    ampc_metrics metrics;
    char *cursor; /* JSON or NULL */
    ampc_profile_fn profile;
    void *profile_ctx;
    char error[1024];
};

/* ---- plan facts (run.c) -------------------------------------------------- */

size_t dtype_bytes(uint32_t dtype); /* 0: no such dtype */
const char *dtype_name(uint32_t dtype);
/* Bytes of a dense array; false on overflow or a bad dtype, rank or dim. */
bool dense_bytes(uint32_t dtype, uint32_t rank, const int64_t *dim,
                 uint64_t *bytes);
/* "f32[64,10]" */
const char *shape_text(char buf[160], uint32_t dtype, uint32_t rank,
                       const int64_t *dim);
int find_program(const AmpcModule *m, const char *name);
int find_var(const AmpcModule *m, const char *name);
/* A member of m->info, or of its "options"; dflt when absent. */
int64_t info_int(const AmpcModule *m, const char *key, int64_t dflt);
int64_t module_batch(const AmpcModule *m);
/* NULL, or what is wrong with the tables. */
const char *plan_defect(const AmpcModule *m);

/* ---- session ------------------------------------------------------------- */

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
ampc_status session_fail(ampc_session *s, ampc_status status, const char *fmt,
                         ...);
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
void session_log(ampc_session *s, const char *fmt, ...);

/* 64-byte aligned, not cleared; NULL without a message. */
void *mem_alloc(const ampc_session *s, size_t bytes);
void mem_free(const ampc_session *s, void *p, size_t bytes);

ampc_status session_open(const AmpcModule *m, const ampc_options *options,
                         ampc_session **out, char *err, size_t err_size);
void session_close(ampc_session *s);

/* Checks inputs, binds, refreshes 16-bit copies if they lag, runs.  A failure
   happens before anything runs.                                             */
ampc_status session_run(ampc_session *s, ProgramId id, const ampc_input *in,
                        size_t nin);
/* Makes the next session_run of a program unable to run out of memory. */
ampc_status session_prepare(ampc_session *s, ProgramId id);
/* Gives every gradient variable its memory. */
ampc_status session_need_grads(ampc_session *s);
void session_zero_grads(ampc_session *s);
size_t session_scratch_bytes(const AmpcModule *m, int threads);

void session_find_known(ampc_session *s);
/* Scalar variables as numbers; dflt when var is -1.  Setting fails when the
   type cannot hold the value.                                               */
double var_number(const ampc_session *s, int var, double dflt);
bool var_set_number(const ampc_session *s, int var, double value);

/* The table for ampc.h; the emitted module exports a function that returns it.
   NULL for a version that we do not serve.  One copy of the runtime serves one
   module.                                                                   */
const ampc_api *ampc_module_api(const AmpcModule *m, uint32_t abi);

/* weights.c: initial values of all variables but gradients. */
ampc_status weights_init(ampc_session *s);

/* checkpoint.c */
ampc_status checkpoint_save(ampc_session *s, const char *path);
ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume);
/* A plain safetensors file beside the module (--weights sidecar). */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path);

#endif
