/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: declarations shared by the runtime's own files; hosts see only
   ampc.h.

   plan_facts.c  facts about a plan; known.c names shared with the compiler;
                 dtype.c element types
   run.c         inputs, the loop over steps, scalars
   backend.h     what a device offers: cpu/backend.c, cpu/run.c; cuda/gpu.h
   session.c     open and close
   api.c         the table of ampc.h;  train.c, infer.c  its main functions
   sizes.c, rows.c  inputs of other sizes, and of other numbers of samples
   data.c        class and row indices that are out of range
   diverge.c     runs whose steps are all skipped, and why
   locate.c      program locate: which value is not finite
   underflow.c   program underflow: counts elements that fp16 flushes to zero
   comm.c        a session as one of many ranks;  sums.c  gradients over ranks
   shards.c      optimizer state spread over ranks
   comm_mpi.c    MPI;  comm_tcp.c  how ranks without MPI find each other
   sections.c    the module's own file;  weights.c  initial values from it
   safetensors.c the file format;  safetensors_write.c, checkpoint.c,
                 checkpoint_load.c  save and load a session */
#ifndef AMPC_SESSION_H
#define AMPC_SESSION_H

#include <fenv.h>
#include <stdbool.h>
#include <sys/types.h>

#include "runtime/base/flag.h"
#include "runtime/program/backend.h"
#include "runtime/cpu/kernels.h"
#include "runtime/program/dtype.h"
#include "runtime/program/plan_facts.h"

/* Programs that the API runs by name (names.def). */
typedef enum ProgramId {
#define PROGRAM(id, text) PROG_##id,
#include "runtime/program/names.def"
    PROG_COUNT
} ProgramId;

/* Variables that the API reads by name. */
typedef enum KnownVar {
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most) VAR_##id,
#include "runtime/program/names.def"
    VAR_KNOWN
} KnownVar;

/* Outputs that the API reads by name. */
typedef enum KnownOutput {
#define OUTPUT(id, text) OUT_##id,
#include "runtime/program/names.def"
    OUT_KNOWN
} KnownOutput;

/* The section of a checkpoint's JSON that holds a variable. */
typedef enum Section {
    IN_SCALER,
    IN_COUNTS,
    IN_RNG,
    IN_SCHEDULE,
    IN_STATE,
    IN_COUNT
} Section;

typedef enum DeviceKind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceKind;

/* Memory of a session that calls fill anew. */
typedef struct Room {
    char *data;
    size_t bytes;
} Room;

/* The inputs of the current call. */
typedef struct SessionInputs {
    const void **addr; /* one for each */
    bool *device;      /* true where they lie there; behind addr */
    size_t bytes;      /* allocated for both */
    int64_t *labels;   /* inputs that were given in narrower types, converted;
                          NULL: none */
    size_t labels_bytes;
    int program; /* the program whose inputs `addr` holds, or -1 */
    Room rows;   /* inputs filled up to a batch (rows.c) */
    Room padded; /* .. and to a size (sizes.c) */
} SessionInputs;

/* Place of a value that is not finite (locate.c). */
typedef struct SessionLocated {
    ampc_nonfinite what;    /* details of the last examined step */
    int64_t step;           /* ampc.nonfinite of this optimizer step, or
                               INT64_MAX */
    char name[256], op[64]; /* strings that `what` points to */
} SessionLocated;

/* A session as one of many ranks (comm.c). */
typedef struct SessionRanks {
    struct Shards *shards; /* NULL: state is not divided among ranks */
    struct Sums *sums;     /* NULL: a single process */
    bool on_device;        /* sums are made in the GPU's memory
                              (ampc_comm.allreduce_on) */
    bool whole;         /* .. and the last micro-step and the following program
                           update are one run */
    int64_t random;     /* ampc.rng's counter between steps; -1: unknown */
    int64_t *bad_of;    /* on_device: each rank's number of bad batches at the
                           last check */
    int64_t bad_agreed; /* ampc.bad_data summed over ranks */
    int bad_rank;       /* the first other rank with bad data in the last step,
                           if this rank's data were good; -1: none */
} SessionRanks;

struct ampc_session {
    const AmpcModule *m;
    ampc_options opt;
    DeviceKind want;
    int ordinal; /* number of the GPU, for DEVICE_CUDA */
    const AmpcBackend *backend;
    const PlanTarget *plan; /* the plan that the backend runs */
    void *device;           /* the backend's */
    int pid;                /* threads and GPUs do not survive fork */
    HostFlag busy;          /* a thread is in a call */
    fenv_t host_mode;       /* rounding mode of the thread that is in a call */
    bool stale;             /* 16-bit copies must be made again from their
                               parameters */
    int64_t accumulate;
    int64_t batch, own_batch; /* batch size of the evaluating or predicting
                                 program, and of the module */
    int64_t valid;            /* samples of this micro-step that count */
    int64_t first;         /* number of the call's sample with which this batch
                              begins */
    const char *objective; /* current objective of steps; "": the only one */
    int64_t micro;         /* micro-steps since the last update */
    int program[PROG_COUNT]; /* index in m->programs or -1 */
    int own[PROG_COUNT];     /* those for the module's own sizes */
    int known[VAR_KNOWN];    /* index in m->vars or -1 */
    int last;                /* program that ran last or -1 */
    ampc_metrics metrics;
    int due_update, due_loss; /* programs whose metrics are not yet fetched,
                                 or -1 */
    bool gpu_is_there;        /* the requested GPU, usable or not */
    char *cursor;             /* JSON or NULL */
    uint64_t damaged; /* path_mark of the checkpoint in whose place the one
                         before it was resumed; 0: none */
    ampc_profile_fn profile;
    void *profile_ctx;
    bool spared;       /* the CPU's last step was left out (PlanStep.when) */
    int told;          /* 1 + the program whose step is being reported, or 0 */
    ampc_bad_data bad; /* details of the last AMPC_ERR_DATA; count: number
                          reported */
    ampc_status found; /* AMPC_ERR_DATA or AMPC_ERR_DIVERGED, if fetched metrics
                          say so, until the call returns it */
    SessionInputs in;
    SessionLocated located;
    SessionRanks ranks;
    char error[1024];
    char notice[1024]; /* message of the current call, or "" */
};

/* ---- cuda/library.c ------------------------------------------------------ */

/* Number of GPUs that the driver reports; 0: none. */
int gpu_count(void);

/* ---- names (known.c) ----------------------------------------------------- */

extern const char *const program_names[PROG_COUNT];
bool own_name(const char *name);
/* True for KIND, KIND:OBJECTIVE, and both followed by @SIZE. */
bool program_is(const PlanProgram *p, ProgramId id);
/* The batch of a program for another size than the module's own, as 8 of
   "predict@8,T=64"; else 0. */
int64_t batch_of(const PlanProgram *p);
/* True if program i is `own` at another size. */
bool size_is_other(const AmpcModule *m, int own, uint32_t i);
/* True if the program has that kind, at any size. */
bool sizes_has(const ampc_session *s, ProgramId id, int program);
/* True if the module trains with several sizes. */
bool sizes_several(const ampc_session *s);
/* What such a module says of its sizes (AmpcSizes); "" for others. */
const char *sizes_text(const ampc_session *s, char buf[200]);
/* The objective of a program with that kind, "train" or "train:NAME"; NULL
   if the kind differs, and for sizes other than the own ones. */
const char *objective_of(const PlanProgram *p, ProgramId id);
/* The module's objectives in order, "" for the only one without a name;
   NULL: no more. */
const char *objective_at(const AmpcModule *m, uint32_t index);
/* Programs and variables of the session's objective by number. */
void session_find_known(ampc_session *s);
int find_output(const AmpcModule *m, int program, const char *name);
/* The index of the program's output; -1: none has that name. */
int find_known_output(const ampc_session *s, int program, KnownOutput o);
/* True if the name is that of this variable for some objective. */
bool is_known(const char *name, KnownVar v);
/* True if x is a legal value of that variable; "; it is a number from .. to
   ..", or "" where any is. */
bool known_in_range(const char *name, double x);
void known_range_text(const char *name, char *text, size_t n);
/* IN_COUNT: in no section; it is stored as a tensor. */
Section section_of_name(const char *name);

/* ---- session ------------------------------------------------------------- */

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
ampc_status
session_fail(ampc_session *s, ampc_status status, const char *fmt, ...);
ampc_status session_unsized(ampc_session *s, const char *type);
/* The session frees it; NULL: none. */
void session_take_cursor(ampc_session *s, char *text);
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
void session_log(ampc_session *s, const char *fmt, ...);
/* A note of a call that succeeds: kept for api->notice, and logged. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
void session_notice(ampc_session *s, const char *fmt, ...);

/* 64-byte aligned, not cleared; NULL without a message. */
void *mem_alloc(const ampc_session *s, size_t bytes);
void mem_free(const ampc_session *s, void *p, size_t bytes);
/* At least that many bytes; what was in them is lost when they grow. */
ampc_status room_for(ampc_session *s, Room *r, size_t bytes);
void room_close(const ampc_session *s, Room *r);

ampc_status session_open(const AmpcModule *m, const ampc_options *options,
                         ampc_session **out, char *err, size_t err_size);
void session_close(ampc_session *s);

/* True if the program reads and writes no 16-bit copies (PlanRun.masters). */
bool session_on_masters(const ampc_session *s, ProgramId id);
/* Checks inputs, binds them, refreshes outdated 16-bit copies, and runs the
   program. All failures except the device's happen before anything runs. */
ampc_status session_run(ampc_session *s, ProgramId id, const ampc_input *in,
                        size_t nin);
uint64_t now_ns(void); /* for profiles */
/* Runs program refresh if 16-bit copies are outdated. */
ampc_status session_refresh(ampc_session *s);
/* Allocates everything that the next session_run of a program needs. */
ampc_status session_prepare(ampc_session *s, ProgramId id);

/* Whether the struct has all fields of the first version. */
bool input_sized(const ampc_input *in);
/* Input i: the host's structs may be of a later version, and longer. */
const ampc_input *input_at(const ampc_input *in, size_t i);
bool input_in_device(const ampc_input *in);
/* Refuses an ampc_place that the session's device does not have. */
ampc_status place_check(ampc_session *s, const char *name, int32_t place);
/* True for a dtype in which the host may give the input. */
uint32_t given_dtype(const PlanTensor *t, const ampc_input *in);
/* The program input to which an argument belongs; -1 if there is none. */
int input_place(const AmpcModule *m, const PlanProgram *p, const ampc_input *in,
                size_t position);

/* The address of a scalar after a program has run; false: it does not exist. */
bool session_watch(const ampc_session *s, int program, Watch w, PlanRef *ref,
                   uint32_t *dtype);

/* The address of output i after the program has run. */
PlanRef output_ref(const ampc_session *s, int program, int i);
PlanRef var_ref(uint32_t var, uint64_t offset);
static inline int session_rank(const ampc_session *s) {
    return s->opt.comm ? s->opt.comm->rank : 0;
}
double scalar_number(uint32_t dtype, const void *p);
/* False if the type cannot represent x. */
bool scalar_encode(uint32_t dtype, double x, void *out);
/* False for a scalar that would spoil every step: a scale of NaN or 0, a
   negative count, more micro-steps than an update has. */
bool var_in_range(const ampc_session *s, uint32_t var, const void *value);
/* Scalar variables as numbers; dflt if var is -1 or not a scalar. */
ampc_status var_number(ampc_session *s, int var, double dflt, double *out);

/* enter.c: one thread at a time, on the session's device. */
ampc_status api_enter(ampc_session *s);
ampc_status api_leave(ampc_session *s, ampc_status status);

#define ENTER(s)                                                               \
    do {                                                                       \
        ampc_status enter_ = api_enter(s);                                     \
        if (enter_ != AMPC_OK) return enter_;                                  \
    } while (0)

/* Copies a struct out, up to the size that its reader gave. */
#define PUT(out, value)                                                        \
    do {                                                                       \
        size_t size_ = (out)->size;                                            \
        (value).size = size_;                                                  \
        memcpy((out), &(value),                                                \
               size_ < sizeof(value) ? size_ : sizeof(value));                 \
    } while (0)

#define SIZED(p) ((p) && (p)->size >= sizeof(size_t))

ampc_status api_unsupported(ampc_session *s, const char *what);

/* train.c */
ampc_status api_step(ampc_session *s, const ampc_input *in, size_t nin,
                     ampc_metrics *metrics);
ampc_status api_sync(ampc_session *s, ampc_metrics *metrics);
ampc_status api_micro_step(ampc_session *s, const ampc_input *in, size_t nin,
                           double *loss);
ampc_status api_vjp(ampc_session *s, const ampc_input *in, size_t nin);
ampc_status api_update(ampc_session *s, ampc_metrics *metrics);
ampc_status api_objective(ampc_session *s, const char *name);

/* sizes.c: what only modules with programs for other sizes need and link.
   choose  sets s->program[id] to the program for the sizes of the inputs: the
           module's own, those of --batch-sizes or --dim; the smallest in which
           the inputs have room
   pad     fills the inputs up to that program's sizes
   text    "; smaller sizes of this module: T=64, T=128", or "" */
typedef struct AmpcSizes {
    void (*choose)(ampc_session *s, ProgramId id, const ampc_input *in,
                   size_t nin);
    ampc_status (*pad)(ampc_session *s, ProgramId id, const ampc_input **in,
                       size_t nin);
    const char *(*text)(const ampc_session *s, char buf[200]);
} AmpcSizes;
extern const AmpcSizes ampc_sizes; /* only such modules refer to it */

/* The same for any module. */
void sizes_choose(ampc_session *s, ProgramId id, const ampc_input *in,
                  size_t nin);
ampc_status sizes_pad(ampc_session *s, ProgramId id, const ampc_input **in,
                      size_t nin);
ampc_status api_fit(ampc_session *s, const char *program, const ampc_input *in,
                    size_t nin, const char **name);

/* rows.c.
   given  the number of samples that all inputs hold; -1: they do not agree
   take   samples first .. first + n - 1 as a batch
   begin  before a micro-step: sets s->valid; the inputs are a batch then
   end    after it and program update; passes its status
   skip   instead of a micro-step without samples */
int64_t rows_given(const ampc_session *s, int program, const ampc_input *in,
                   size_t nin);
/* True if axis 0 of the input counts samples. */
bool rows_has(const ampc_session *s, const PlanTensor *t);
ampc_status rows_take(ampc_session *s, int program, const ampc_input *in,
                      size_t nin, int64_t first, int64_t n,
                      const ampc_input **out);
ampc_status rows_begin(ampc_session *s, const ampc_input **in, size_t nin);
ampc_status rows_end(ampc_session *s, ampc_status status);
ampc_status rows_skip(ampc_session *s);

/* api_files.c */
ampc_status api_save(ampc_session *s, const char *path);
ampc_status api_load(ampc_session *s, const char *path);
ampc_status api_load_weights(ampc_session *s, const ampc_weights *from);
ampc_status api_save_weights(ampc_session *s, const char *path);
ampc_status api_resume(ampc_session *s, const char *path);
ampc_status api_set_cursor(ampc_session *s, const char *json);
const char *api_get_cursor(const ampc_session *s);

/* infer.c */
ampc_status api_evaluate(ampc_session *s, const ampc_input *in, size_t nin,
                         int64_t valid, ampc_eval *sums);
ampc_status api_predict(ampc_session *s, const ampc_input *in, size_t nin,
                        int64_t valid, ampc_output *out, size_t nout);
ampc_status api_outputs(ampc_session *s, const ampc_input *in, size_t nin,
                        int64_t valid, ampc_output *out, size_t nout);
ampc_status api_read_output(ampc_session *s, const char *name,
                            ampc_output *out);
/* Checks that `out` has room for a value with that type. */
ampc_status out_fits(ampc_session *s, const char *name, uint32_t dtype,
                     uint64_t bytes, const ampc_output *out);
/* Copies bytes to out->data + at, wherever that lies. */
ampc_status out_get(ampc_session *s, PlanRef from, const ampc_output *out,
                    uint64_t at, uint64_t bytes);

/* data.c: return AMPC_ERR_DATA. data_trained: if training has counted more
   bad batches than were reported. data_ran: if the last program found a bad
   index in its first `valid` samples. */
ampc_status data_trained(ampc_session *s, int64_t count);
ampc_status data_ran(ampc_session *s, int64_t valid);

/* diverge.c: returns AMPC_ERR_DIVERGED when the number of steps skipped in a
   row reaches the session's limit. In a module with program locate, leaves a
   notice of every skipped step. */
ampc_status diverge_trained(ampc_session *s);

/* locate.c, for modules with program locate: runs it on the inputs of a step
   (or of its first or next micro-batch) without changing them. */
ampc_status locate_run(ampc_session *s, const ampc_input *in, size_t nin);
/* The first value of the step that is not finite; false if there is none. */
bool locate_read(ampc_session *s, ampc_nonfinite *x);

/* underflow.c */
ampc_status api_underflow(ampc_session *s, const ampc_input *in, size_t nin,
                          ampc_underflow_fn fn, void *ctx);

/* comm.c, for sessions with ampc_options.comm. comm_join: called by all
   ranks, also by one that failed to open its session (it passes the status);
   checks that modules are equal. */
ampc_status comm_join(ampc_session *s, ampc_status status);
/* Broadcasts rank 0's status of reading a file, and the loaded data, to all
   ranks. */
ampc_status comm_share(ampc_session *s, ampc_status status);
/* Sets the random state for this rank's micro-step of the common step. */
ampc_status comm_random(ampc_session *s, int64_t micro_steps);
/* Called after program update. */
ampc_status comm_updated(ampc_session *s);
/* True if the communicator has its three required functions, and rank and
   world fit. */
bool comm_is_whole(const ampc_comm *c);
/* True if the communicator sums in the memory of GPUs. */
bool comm_sums_on_device(const ampc_comm *c);
/* The number of bad batches on all ranks, from the ranks' counts `each`;
   bad_rank: the first other rank whose count grew. */
int64_t comm_bad(ampc_session *s, const int64_t *each);
/* Reduces gradients, loss and counts of bad batches over ranks, before
   program update. */
ampc_status comm_reduce(ampc_session *s);
/* AMPC_ERR_COMM, with the communicator's own message. */
ampc_status comm_failed(ampc_session *s, const char *what);
ampc_status comm_broadcast(ampc_session *s, void *data, size_t bytes, int root,
                           const char *what);
/* Like ampc_comm.gather. */
ampc_status comm_gather(ampc_session *s, char *data, const uint64_t *at,
                        const char *what);
/* Like ampc_comm.scatter and reduce_on. */
int comm_scatter(const ampc_comm *c, void *data, const uint64_t *at,
                 int32_t dtype);
int comm_reduce_on(const ampc_comm *c, uint64_t data, size_t count,
                   int32_t dtype, int root, void *stream);
/* OK if all ranks have that status; "another rank WHAT". */
ampc_status comm_agree(ampc_session *s, ampc_status status, const char *what);
/* PLAN_SUM_NOW. */
ampc_status comm_sum_now(ampc_session *s, void *data, const LibCopy *what,
                         bool largest);
ampc_status comm_open(const ampc_comm_options *options, ampc_comm **out,
                      char *err, size_t err_size);
void comm_close(ampc_comm *comm);

/* sums.c; all functions but open accept a session without ranks.  Calls in an
   update: begin before its micro-steps; ready at each PLAN_SUM; wait after the
   last micro-step (it returns the communicator's failure, if any); finish just
   before program update. Then the gradients are sums over all ranks, or this
   rank's
   part of the sums and zeros, and the tail (2 + world numbers) is summed.   */
ampc_status sums_open(ampc_session *s);
void sums_close(ampc_session *s);
void sums_begin(ampc_session *s);
void sums_ready(ampc_session *s);
ampc_status sums_wait(ampc_session *s);
ampc_status sums_finish(ampc_session *s);
float *sums_tail(const ampc_session *s);
/* Memory for use between steps, large enough for efficient network
   transfers. */
float *sums_scratch(const ampc_session *s, size_t *bytes);

/* shards.c; all functions accept a session without shards.
   elements   of a tensor of step t: those that the rank updates
   range      bytes of a variable that this rank has
   whole      place of a variable while rank 0 has all of it, else NULL
   put        stores those of n bytes that this rank has
   sum        bytes of a gradient whose sum the rank needs; false: all ranks
              need all of it
   hand_out   sends updated parameters, or their copies, to all ranks
   next       the next part that the rank sends after a program, from {0} on
   refresh    the copies on all ranks, after parameters were read or created
   gather     rank 0 gets everything that is spread, until shards_part, to save
              or to fill it.  All ranks call it, also a rank that has failed
              before, which passes its status. */
ampc_status shards_open(ampc_session *s);
void shards_close(ampc_session *s);
void shard_elements(const ampc_session *s, const PlanStep *t, uint32_t tensor,
                    int rank, int64_t *lo, int64_t *hi);
bool shard_is(const ampc_session *s, uint32_t var);
void shard_range(const ampc_session *s, uint32_t var, uint64_t *lo,
                 uint64_t *hi);
char *shard_whole(const ampc_session *s, PlanRef r);
bool shard_sum(const ampc_session *s, uint32_t var, int rank, uint64_t *lo,
               uint64_t *hi);
typedef struct ShardPart {
    uint32_t step, ref; /* to look at next */
    PlanRef at;
    uint64_t bytes;
} ShardPart;
bool shard_next(const ampc_session *s, ProgramId id, int rank, ShardPart *p);
ampc_status shard_put(ampc_session *s, PlanRef to, const void *from,
                      uint64_t n);
ampc_status shards_allgather(ampc_session *s);
ampc_status shards_refresh(ampc_session *s);
ampc_status shards_gather(ampc_session *s, ampc_status status, bool saving);
bool shards_gathered(const ampc_session *s);
ampc_status shards_part(ampc_session *s, ampc_status status);

/* A backend that moves bytes between ranks; close also accepts one that
   failed. The ctx of a communicator begins with a CommHead. */
typedef struct CommEngine {
    const char *name;
    ampc_status (*open)(double deadline, ampc_comm **out, char *err,
                        size_t err_size);
    void (*close)(ampc_comm *comm);
} CommEngine;
typedef struct CommHead {
    const CommEngine *engine;
    double deadline; /* seconds */
} CommHead;
extern const CommEngine comm_mpi;  /* comm_mpi.c */
extern const CommEngine comm_nccl; /* cuda/nccl.c */
extern const CommEngine comm_tcp;  /* comm_tcp.c: only for comm_nccl */
bool comm_tcp_possible(void);      /* true if the launcher's variables
                                      suffice */
/* The number in the first variable that is set; -1: not a number from 0 on;
   dflt: none is set. */
int comm_number(const char *const *names, size_t n, int dflt);
int comm_local_rank(void); /* rank among this machine's; 0 if unknown */
/* sum[i] += x[i]; x of 16 bits is added to fp32. */
void comm_add(void *sum, const void *x, size_t n, int32_t dtype);
/* fp32 to 16 bits in place, and back. */
void comm_narrow(void *data, size_t n, int32_t dtype);
void comm_widen(void *data, size_t n, int32_t dtype);
double comm_seconds(void); /* time of a monotonic clock */

/* The table for ampc.h, which an exported function of the module returns;
   NULL for a version that we do not support. A copy of the runtime serves
   one module. */
const ampc_api *ampc_module_api(const AmpcModule *m, uint32_t abi);

/* weights.c: initial values of all variables but gradients. */
ampc_status weights_init(ampc_session *s);

/* checkpoint.c */
ampc_status checkpoint_save(ampc_session *s, const char *path);
ampc_status checkpoint_save_weights(ampc_session *s, const char *path);
ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume);
ampc_status checkpoint_load_weights(ampc_session *s, const ampc_weights *from);
/* A plain safetensors file beside the module (--weights sidecar). */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path,
                               const PlanSidecar *want);

#endif
