/* SPDX-License-Identifier: Apache-2.0 */
/* ampc.h: train, evaluate and run a model that `ampc` compiled into a module
   (train.so).  C99, usable from C++; needs nothing but this file.

     char err[256];
     const ampc_api *api = ampc_load("train.so", NULL, err, sizeof err);
     ampc_session *s = NULL;
     if (!api || api->open(api->module, NULL, &s, err, sizeof err)) ...
     ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                        ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
     ampc_metrics m = {sizeof m};
     if (api->step(s, in, 2, &m)) puts(api->error(s));
     api->save(s, "model.safetensors");
     api->close(s);

   Rules for all functions
   - Arrays are dense, row-major, little-endian, and aligned to their element.
     The batch size is fixed when the module is compiled: axis 0 of the inputs.
     With --batch-sizes evaluate and predict accept several batch sizes: the
     size of the inputs selects one.
   - A module for several sizes (--dim T=64|128) has programs for each, over the
     same weights and state. A call runs the program whose inputs have the given
     shapes, else the smallest in which they have room: --pad says what fills
     them up. Inputs without a shape (rank -1) are whole batches of one of the
     sizes. `fit` names the program.
   - A call that fails returns a status other than AMPC_OK, leaves the session
     as it was, and api->error(s) tells why. Nothing prints, exits or aborts.
     Exceptions: after AMPC_ERR_DEVICE, and after AMPC_ERR_COMM if ranks sum in
     the GPUs' memory, the content of the session is lost; after AMPC_ERR_DATA
     and AMPC_ERR_DIVERGED the step was made and counted as skipped.
   - One thread at a time per session (a second one gets AMPC_ERR_BUSY);
     different sessions, of one module or of several, run in parallel.
   - A call computes with rounding to nearest, subnormals and no traps, whatever
     the thread has set (fesetround, feenableexcept), and gives the thread its
     own way back; functions of the host that it calls run in between.  It needs
     64 KiB of stack (on GPUs the driver needs more).
   - Public structs start with their size: set it to sizeof the struct.  Later
     versions append fields and functions; a field beyond your size is neither
     read nor written.
   - Strings that a call returns belong to the module or the session.

   Environment, for GPUs: AMPC_TUNE=1 (measure cuBLASLt's algorithms, once per
   kind of GPU: often faster, other bits), AMPC_CACHE_DIR (where the choice is
   kept, "none": nowhere; else $XDG_CACHE_HOME/ampc or ~/.cache/ampc),
   AMPC_CUDA_GRAPH=0 (no CUDA graphs), AMPC_LIBCUDA, AMPC_LIBCUBLASLT (a file to
   load instead; "none"). For CPUs: AMPC_ISA=v2|v3|v4|v4-amx (at most), v4-dot,
   v4-fma (no AMX; products of bf16 with or without vdpbf16ps); `open` refuses
   another word.  For many processes:
   AMPC_LIBMPI, AMPC_LIBNCCL (a file to load instead; "none"). A program with
   more rights than its user (setuid) reads none of them. */
#ifndef AMPC_H
#define AMPC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The release. The ABI version alone decides whether a host can load a module.
 */
#define AMPC_VERSION     "0.1.0"
#define AMPC_ABI_VERSION 1
#define AMPC_RANK_LIMIT  8

typedef enum ampc_status {
    AMPC_OK = 0,
    AMPC_ERR_ARGUMENT = 1,    /* wrong name, shape, dtype, size or value */
    AMPC_ERR_MEMORY = 2,      /* out of memory or threads                   */
    AMPC_ERR_FILE = 3,        /* a file cannot be read or written           */
    AMPC_ERR_FORMAT = 4,      /* truncated, foreign or mismatched file      */
    AMPC_ERR_UNSUPPORTED = 5, /* this module or machine cannot do that      */
    AMPC_ERR_BUSY = 6,        /* the session is in use by another thread    */
    AMPC_ERR_INTERNAL = 7,    /* a defect of ampc: please report            */
    AMPC_ERR_DEVICE = 8,      /* the GPU or its driver failed; the session
                                 can only be closed */
    AMPC_ERR_DATA = 9,        /* an input has a class or a row number out of
                                 range, or a loop makes more trips than
                                 --max-trips says: see bad_data */
    AMPC_ERR_DIVERGED = 10,   /* max_skipped steps in a row were skipped
                                 (ampc_options): see nonfinite */
    AMPC_ERR_COMM = 11        /* another rank is gone, late or different, or
                                 the communicator failed: the message names it;
                                 training cannot go on */
} ampc_status;

typedef enum ampc_dtype {
    AMPC_DTYPE_BOOL = 0, /* one byte, 0 or 1 */
    AMPC_DTYPE_U8 = 1,
    AMPC_DTYPE_I8 = 2,
    AMPC_DTYPE_U16 = 3,
    AMPC_DTYPE_I16 = 4,
    AMPC_DTYPE_U32 = 5,
    AMPC_DTYPE_I32 = 6,
    AMPC_DTYPE_U64 = 7,
    AMPC_DTYPE_I64 = 8,
    AMPC_DTYPE_F16 = 9,
    AMPC_DTYPE_BF16 = 10,
    AMPC_DTYPE_F32 = 11,
    AMPC_DTYPE_F64 = 12,
    AMPC_DTYPE_F8E4M3 = 13, /* 8 bits; files and variables have them */
    AMPC_DTYPE_F8E5M2 = 14,
    AMPC_DTYPE_E8M0 = 15 /* a power of two */
} ampc_dtype;

/* Where an array lies. AMPC_IN_DEVICE: `data` is a CUdeviceptr of the session's
   GPU. What writes or reads the array is ordered with the call by
   options.stream, else by the legacy default stream: work that was put there
   before the call is done when the array is read, and work that is put there
   after it finds the array as the call has left it.  Wait for another stream
   of your own before the call, and call `sync` before you use the array on it
   or free it.                                                                */
typedef enum ampc_place { AMPC_IN_HOST = 0, AMPC_IN_DEVICE = 1 } ampc_place;

typedef struct ampc_session ampc_session;
typedef struct ampc_module_t ampc_module_t;

/* ---- what a module is ---------------------------------------------------- */

typedef struct ampc_module_info {
    size_t size;
    const char *model;   /* name of the graph                               */
    const char *info;    /* JSON: compile options, precision, producer ...  */
    uint64_t graph_hash; /* hash of everything that checkpoints depend on: ops,
                            types and options, but not weights or target */
    int64_t batch;       /* samples per call; 0 when inputs have no batch   */
    int64_t accumulate;  /* micro-batches per optimizer step (--accumulate) */
    int64_t seed;        /* --seed                                          */
    int32_t trains, evaluates, predicts; /* 1: the module supports it */
    uint32_t nvariable;
    uint64_t arena; /* bytes of activations, the largest program            */
    int32_t parts;  /* 1: a step accepts fewer samples than `batch` */
    int32_t reserved0;
} ampc_module_info;

typedef struct ampc_program_info {
    size_t size;
    uint32_t ninput, noutput, nstep;
    double flops; /* FLOPs of its matrix products and convolutions: 2 per
                     multiply-add */
} ampc_program_info;

typedef struct ampc_tensor_info {
    size_t size;
    const char *name;
    int32_t dtype; /* ampc_dtype */
    int32_t rank;
    int64_t shape[AMPC_RANK_LIMIT];
    size_t bytes;
    int64_t sample_rows; /* elements of axis 0 that belong to each sample, in
                            the order of the samples; 0: axis 0 is not of
                            samples: the tensor belongs to the whole batch;
                            -1: nor does it depend on them (outputs) */
} ampc_tensor_info;

typedef enum ampc_kind {
    AMPC_KIND_PARAMETER = 0, /* trained; fp32 master                        */
    AMPC_KIND_FROZEN = 1,    /* weights that are not trained */
    AMPC_KIND_BUFFER = 2,    /* running statistics                          */
    AMPC_KIND_STATE = 3,     /* optimizer and loss-scaler state             */
    AMPC_KIND_HYPER = 4,     /* learning rate ...: see set_hyper            */
    AMPC_KIND_SHADOW = 5,    /* 16-bit copy of a parameter: read-only       */
    AMPC_KIND_GRADIENT = 6,  /* accumulated; still multiplied by the loss
                                scale and ampc.shares: read-only */
    AMPC_KIND_CONSTANT = 7   /* read-only                                   */
} ampc_kind;

typedef struct ampc_variable_info {
    size_t size;
    const char *name;
    int32_t kind;  /* ampc_kind  */
    int32_t dtype; /* ampc_dtype */
    int32_t rank;
    int64_t shape[AMPC_RANK_LIMIT];
    size_t bytes;
} ampc_variable_info;

/* ---- many processes ------------------------------------------------------ */

/* Ranks 0 .. world-1 that train one model, each with a session of its own and
   its own part of the batch: one step of all ranks equals one step of a single
   rank that accumulates `world` times as many micro-batches. api->comm_open
   creates a communicator; a host may implement its own. All ranks call these
   functions in the same order. They return 0 on success; after a failure no
   function is called again. If another rank does not answer they must still
   return in time. */
typedef struct ampc_comm {
    size_t size;
    int32_t rank, world;
    int32_t local;      /* rank among those of this machine: it chooses the GPU
                           for "cuda" */
    int32_t any_thread; /* not 0: allreduce may be called by another thread
                           of the process, one call at a time; then gradients
                           are summed during the backward pass */
    void *ctx;
    /* Sums of AMPC_DTYPE_F32 or F64 (and of --comm-dtype), in place: the
       same bits on all ranks. */
    int (*allreduce)(void *ctx, void *data, size_t count, int32_t dtype);
    /* From rank `root` to all others. */
    int (*broadcast)(void *ctx, void *data, size_t bytes, int32_t root);
    int (*barrier)(void *ctx);
    const char *(*error)(void *ctx); /* message of the last failure; may be
                                        NULL */

    /* All NULL, or functions that enqueue the same operations on a CUstream
       of GPU `local`, in that GPU's memory; they also sum 16-bit floats and
       AMPC_DTYPE_I64. Calls between group(ctx, 1) and group(ctx, 0) are
       combined. A training step with its sums is then one CUDA graph. */
    int (*allreduce_on)(void *ctx, uint64_t data, size_t count, int32_t dtype,
                        void *stream);
    int (*broadcast_on)(void *ctx, uint64_t data, size_t bytes, int32_t root,
                        void *stream);
    int (*group)(void *ctx, int32_t begin);
    /* Called when the host has waited that many seconds for a stream. Not 0:
       the wait has failed; work enqueued on streams ends, with any result. */
    int (*waiting)(void *ctx, double seconds);

    /* NULL: broadcasts do it. Sends bytes at[r] to at[r + 1] of `data`,
       which rank r has, to all other ranks; at[0] is 0. */
    int (*gather)(void *ctx, void *data, const uint64_t *at);

    /* NULL: allreduce or allreduce_on is used instead. Sums with the same
       bits, of which each rank needs only some. scatter: rank r needs
       elements at[r] to at[r + 1] of `data`, at[0] is 0; reduce_on: rank
       `root` needs all. The other ranks' elements are undefined afterwards. */
    int (*scatter)(void *ctx, void *data, const uint64_t *at, int32_t dtype);
    int (*reduce_on)(void *ctx, uint64_t data, size_t count, int32_t dtype,
                     int32_t root, void *stream);
} ampc_comm;

typedef struct ampc_comm_options {
    size_t size;
    const char *engine; /* "mpi": Open MPI or MPICH, found at run time; sums
                           are added in the order of ranks.  "nccl": NCCL on
                           the GPUs; its ranks find each other over TCP where
                           MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are
                           set, else through MPI.  "tcp": only through those
                           variables; rank 0 adds, in the order of ranks */
    double deadline;    /* seconds to wait for another rank; 0: 300         */
} ampc_comm_options;

/* ---- opening ------------------------------------------------------------- */

/* Returns `bytes` bytes aligned to `align` (a power of two), or NULL. */
typedef void *(*ampc_alloc_fn)(void *ctx, size_t bytes, size_t align);
typedef void (*ampc_free_fn)(void *ctx, void *p, size_t bytes);
typedef void (*ampc_log_fn)(void *ctx, const char *line);
/* One step of a program that ran; times in nanoseconds of a monotonic clock. */
typedef void (*ampc_profile_fn)(void *ctx, const char *program,
                                const char *step, uint64_t begin_ns,
                                uint64_t end_ns);

typedef struct ampc_options {
    size_t size;
    const char *device; /* "auto" (or NULL): GPU 0 when the module has code
                           for it, else the CPU; "cpu"; "cuda", "cuda:N" */
    int32_t threads;    /* 0: one per CPU that affinity and cgroup allow    */
    int32_t reserved0;
    ampc_alloc_fn alloc; /* both or neither; the calling thread calls them */
    ampc_free_fn free;   /* the API                                         */
    void *alloc_ctx;
    ampc_log_fn log; /* notes of interest to a developer; may be NULL       */
    void *log_ctx;
    void *stream; /* CUstream of the host (in the device's primary context)
                     on which steps are enqueued, in order; NULL: the
                     session's own stream; not allowed with "cpu" */
    /* NULL: a single process. Must outlive the session. All ranks must then
       call open, step, micro_step, update, load, load_weights, resume and
       save alike (and save_weights, in a module compiled with
       --shard-optimizer): rank 0 reads and writes the files, and buffers
       (running statistics) are those of rank 0. Saving between micro-steps
       fails. */
    const ampc_comm *comm;
    int32_t max_skipped; /* after this many skipped steps in a row, each skipped
                            step returns AMPC_ERR_DIVERGED; 0: 100; -1: never */
    int32_t reserved1;
} ampc_options;

/* ---- running ------------------------------------------------------------- */

typedef struct ampc_input {
    size_t size;
    const char *name; /* NULL: by position                                  */
    const void *data;
    size_t bytes;         /* size of `data` in bytes; always checked */
    int32_t dtype;        /* ampc_dtype; always checked.  Classes that --loss
                             added as an i64 input may be i32 or u8, too */
    int32_t rank;         /* -1: shape is not given                         */
    const int64_t *shape; /* rank values, checked                           */
    int32_t place; /* ampc_place. In a device: whole batches, of the dtypes
                      that the program reads; not for write_variable */
    int32_t reserved0;
} ampc_input;

typedef struct ampc_output {
    size_t size;
    const char *name; /* NULL: by position                                  */
    void *data;
    size_t bytes;  /* room in `data`                                        */
    int32_t dtype; /* ampc_dtype; always checked                            */
    int32_t place; /* ampc_place */
} ampc_output;

typedef struct ampc_metrics {
    size_t size;
    double loss;      /* unscaled, mean over all samples of the step */
    double grad_norm; /* unscaled, before clipping                          */
    double scale;     /* loss scale used in this step; 1 without scaling    */
    double lr;        /* learning rate used in this step                    */
    int32_t updated;  /* 1 = an optimizer step was tried (always, unless the
                         module accumulates and more micro-batches are due) */
    int32_t applied;  /* 1 = it was applied; 0 = skipped: not finite, or no
                         label counts (then loss and grad_norm are 0)       */
    int64_t step;     /* optimizer steps applied so far                     */
    int64_t tried;    /* optimizer steps tried so far                       */
    int64_t skipped;
    int64_t bad_forward; /* skipped because the loss itself was not finite */
    int64_t bad_data; /* batches so far with a class or row index that is out of
                         range: their steps were skipped */
    int64_t skip_streak; /* steps skipped since the last one applied        */
} ampc_metrics;

/* The device of a session; strings live as long as the session. */
typedef struct ampc_device_info {
    size_t size;
    const char *kind; /* "cpu" or "cuda"                                      */
    const char *name; /* of the GPU, from its driver; "" for a CPU */
} ampc_device_info;

/* Bytes that a session holds at present, by kind. */
typedef struct ampc_memory_info {
    size_t size;
    uint64_t parameters;  /* parameters, trained or not, and buffers (running
                             statistics) */
    uint64_t copies;      /* 16-bit copies of parameters                      */
    uint64_t state;       /* state of the optimizer, the scaler and the
                             schedule */
    uint64_t gradients;   /* gradients that micro-steps add up; 0 before the
                             first one */
    uint64_t activations; /* activations of the program that needs most */
    uint64_t workspace;   /* scratch, packed weights, copies of inputs .. */
    uint64_t total;       /* sum of the above, in the device's memory */
    uint64_t host;        /* with a GPU: pinned memory of the host */
} ampc_memory_info;

/* Details of AMPC_ERR_DATA. */
typedef struct ampc_bad_data {
    size_t size;
    const char *input;   /* its name; for trips: of the loop's node           */
    int64_t index;       /* position in the input, as an index over all its
                            elements */
    int64_t value;       /* the value at that position; trips, counted up to
                            one too many */
    int64_t least, most; /* legal range; --loss may allow one more value,
                            ignore_index */
    int64_t count;       /* ampc_metrics.bad_data                           */
} ampc_bad_data;

typedef enum ampc_origin {
    AMPC_ORIGIN_NONE = 0,
    AMPC_ORIGIN_INPUT = 1,    /* an input of this call is not finite */
    AMPC_ORIGIN_VARIABLE = 2, /* a parameter or a buffer is not finite */
    AMPC_ORIGIN_LOSS = 3,     /* inputs and variables are finite */
    AMPC_ORIGIN_GRADIENT = 4, /* the loss is finite, too */
    AMPC_ORIGIN_FORWARD = 5,  /* --debug-nonfinite: a value that forward */
    AMPC_ORIGIN_BACKWARD = 6  /* or backward computes                       */
} ampc_origin;

/* Details of AMPC_ERR_DIVERGED: the first value that is not finite in the
   last skipped step, in the order above. A module compiled with
   --debug-nonfinite examines every skipped step, in the order in which it
   computes, and also reports it by api->notice; steps then take about twice
   the time, and a device does not run ahead of the host. */
typedef struct ampc_nonfinite {
    size_t size;
    int32_t origin;   /* ampc_origin                                          */
    int32_t dtype;    /* ampc_dtype of the named value */
    const char *name; /* name of the input, variable or value, or "" */
    int64_t index;    /* index of the element, or -1 */
    double value;     /* the element's value: NaN or an infinity */
    int64_t tried;    /* ampc_metrics.tried at that step */
    const char *op;   /* op that computed the value, or "" */
    const char *source; /* the model's node that it comes from, "line 7" in
                           an .amp file, or "" */
    const char *advice; /* a suggestion; only a guess */
} ampc_nonfinite;

/* For the gradient of one parameter: the number of elements that are not
   zero if backward computes in fp32, and how many of these are zero in the
   module's own arithmetic. */
typedef void (*ampc_underflow_fn)(void *ctx, const char *parameter,
                                  double flushed, double nonzero);

/* Sums over evaluated samples: start from zero, add any number of batches.
   loss = loss_num / loss_den, accuracy = correct / count.                   */
typedef struct ampc_eval {
    size_t size;
    double loss_num, loss_den;
    double correct, count; /* count = 0: the model is not a classifier */
    int64_t samples;
    int32_t exact;      /* 0: the model's own loss is a mean from which samples
                           cannot be left out: loss is the mean over whole batches */
    int32_t top_k;      /* --top-k; 0: not requested */
    double correct_top; /* samples whose class is among the top_k best */
} ampc_eval;

typedef struct ampc_scaler {
    size_t size;
    double scale;
    int64_t good, hysteresis; /* clean steps since the last change; overflows
                                 still allowed before the scale is reduced */
    int64_t step, tried, skipped, bad_forward;
    int64_t micro; /* micro-steps since the last update                     */
} ampc_scaler;

/* Weights from files of any origin. */
typedef struct ampc_weights {
    size_t size;
    const char *const *paths; /* safetensors files, or a JSON index of
                                 several */
    size_t npath;
    const char *const *renames; /* "OLD=NEW": a tensor whose name begins with
                                   OLD is read as if it began with NEW; the
                                   first match counts */
    size_t nrename;
    int32_t partial; /* 1: variables in no file keep their values; 0: that is
                        an error */
    int32_t reserved0;
} ampc_weights;

/* ---- the table ----------------------------------------------------------- */

typedef struct ampc_api {
    size_t size;
    uint32_t abi;
    uint32_t reserved0;
    const ampc_module_t *module;
    const char *version;

    /* Fills *info. */
    ampc_status (*describe)(const ampc_module_t *m, ampc_module_info *info);

    /* Programs are "train", "micro", "update" (of objective NAME "train:NAME"
       and so on), "eval", "predict". For batches of N of --batch-sizes, but for
       the module's own, "eval@N", "predict@N"; for sizes of --dim, but for the
       largest, "train@T=64", "predict@T=64", for both "predict@N,T=64". One
       that the module lacks gives AMPC_ERR_UNSUPPORTED.  Names of outputs that
       start with "ampc." are metrics; all others are outputs of the model.  The
       input that a loss added is called "target".                           */
    ampc_status (*program)(const ampc_module_t *m, const char *program,
                           ampc_program_info *info);
    ampc_status (*input)(const ampc_module_t *m, const char *program,
                         uint32_t index, ampc_tensor_info *info);
    ampc_status (*output)(const ampc_module_t *m, const char *program,
                          uint32_t index, ampc_tensor_info *info);

    /* Variable `index` of ampc_module_info.nvariable. */
    ampc_status (*variable)(const ampc_module_t *m, uint32_t index,
                            ampc_variable_info *info);

    /* Creates a session with the module's initial weights.  options may be
       NULL.  On failure *out is NULL and `err` (may be NULL) holds a message of
       at most err_size - 1 bytes.  Starts threads, which end with `close`. */
    ampc_status (*open)(const ampc_module_t *m, const ampc_options *options,
                        ampc_session **out, char *err, size_t err_size);
    void (*close)(ampc_session *s); /* s may be NULL */

    /* Why the last call failed; "" if it succeeded. */
    const char *(*error)(const ampc_session *s);

    /* Makes one optimizer step on one batch: forward, backward, unscale, check,
       clip, update.  A module that accumulates N micro-batches makes an update
       at every N-th call (metrics->updated). Takes the inputs of program
       "train"
       (or "micro"), named or by position, in any order.  All inputs may hold
       fewer samples than the batch (ampc_module_info.parts): the missing
       ones do not count; with no samples, a micro-batch is left out. metrics
       may be NULL: then a device may still be working when the call returns,
       and `sync` fetches them. */
    ampc_status (*step)(ampc_session *s, const ampc_input *in, size_t nin,
                        ampc_metrics *metrics);

    /* Waits for the device; the metrics of the last step (may be NULL). */
    ampc_status (*sync)(ampc_session *s, ampc_metrics *metrics);

    /* Forward and backward of one micro-batch; adds to the gradients.  *loss
       (may be NULL) is unscaled.  `update` then makes the optimizer step; it
       needs exactly the number of micro-steps that the module accumulates.
       AMPC_ERR_MEMORY: if that number is 1, memory for gradients is allocated
       by the first micro-step. */
    ampc_status (*micro_step)(ampc_session *s, const ampc_input *in, size_t nin,
                              double *loss);
    ampc_status (*update)(ampc_session *s, ampc_metrics *metrics);

    /* A loss computed by the host, in a module compiled with --loss host. The
       inputs are those of program "micro": the model's, and as
       "gradient:OUTPUT" the gradient of the host's loss with respect to each
       output, f32 (see `outputs`). Adds to the gradients like micro_step;
       `step` and micro_step take the same inputs. */
    ampc_status (*vjp)(ampc_session *s, const ampc_input *in, size_t nin);

    /* Evaluates a batch, or any other number of samples, and adds the first
       `valid` samples to *sums; the other rows are ignored. Changes no
       variable. If it fails, as with AMPC_ERR_DATA, *sums is unchanged. */
    ampc_status (*evaluate)(ampc_session *s, const ampc_input *in, size_t nin,
                            int64_t valid, ampc_eval *sums);

    /* Runs the model on a batch, or any other number of samples, and copies
       outputs.  Of outputs of samples (ampc_tensor_info.sample_rows) the first
       `valid` samples are copied, others whole; `bytes` must have room for
       them.  A number of samples that is not the batch is an error for outputs
       that depend on samples but have no rows for each.  nout may be 0: see
       read_output. */
    ampc_status (*predict)(ampc_session *s, const ampc_input *in, size_t nin,
                           int64_t valid, ampc_output *out, size_t nout);

    /* Copies an output of the program that ran last, by name, all rows. */
    ampc_status (*read_output)(ampc_session *s, const char *name,
                               ampc_output *out);

    /* Hyper-parameters, finite: "lr", the base of the schedule, and the keys
       that the schedule was compiled with: "warmup", "total", "min", "every",
       "gamma", "power", "multiply", "rise", "div", "final_div". "averaged", in
       a module compiled with --ema or --swa: not 0 makes evaluate, predict,
       save_weights and load use averages in the place of weights. With several
       objectives they belong to the current `objective`; "lr:NAME" selects
       another one. Checkpoints keep them. For a name that the module lacks, the
       error lists those it has. */
    ampc_status (*get_hyper)(ampc_session *s, const char *name, double *value);
    ampc_status (*set_hyper)(ampc_session *s, const char *name, double value);

    /* Scaler state and counters. */
    ampc_status (*scaler)(ampc_session *s, ampc_scaler *state);

    /* A variable's value by name: parameters and buffers are fp32 under their
       names in the model, optimizer state is "ampc.opt/NAME/exp_avg" and so
       on.  dtype and bytes must be the variable's.  Writing is for kinds
       PARAMETER, FROZEN, BUFFER and STATE.                                  */
    ampc_status (*read_variable)(ampc_session *s, const char *name,
                                 ampc_output *out);
    ampc_status (*write_variable)(ampc_session *s, const char *name,
                                  const ampc_input *in);

    /* Checkpoint: one safetensors file with a checksum, written under a
       temporary name, synced and renamed; the previous one is kept as
       PATH.prev. `resume` restores everything, and the run continues bit for
       bit as if it had not stopped. If PATH is truncated, damaged or missing,
       it reads PATH.prev, and `notice` says so. `load` takes weights and
       buffers by
       name from any safetensors file; `notice` names unused tensors. A file
       that does not match is refused and changes nothing. */
    ampc_status (*save)(ampc_session *s, const char *path);
    ampc_status (*load)(ampc_session *s, const char *path);
    ampc_status (*resume)(ampc_session *s, const char *path);

    /* The host's place in its data: a JSON value that checkpoints carry.
       get_cursor returns "null" until one is set or resumed.                */
    ampc_status (*set_cursor)(ampc_session *s, const char *json);
    const char *(*get_cursor)(const ampc_session *s);

    /* Calls fn after every step of a program; NULL ends profiling. A GPU then
       replays no graph; it times its steps itself, and fn is called for all of
       them when the program ends. Steps whose results a CPU still has, since
       they depend on parameters alone, do not run and are not told. */
    ampc_status (*profile)(ampc_session *s, ampc_profile_fn fn, void *ctx);

    /* A note from the last call, which succeeded; "" if there is none.
       After `open`: why an existing GPU is not used (device "auto"). */
    const char *(*notice)(const ampc_session *s);

    /* Details after a call that trains, evaluates or predicts has returned
       AMPC_ERR_DATA. On an asynchronous device a training step's error is
       returned by the next call that asks for metrics, and describes the
       last bad batch before it. */
    ampc_status (*bad_data)(ampc_session *s, ampc_bad_data *out);

    /* Details after step or update has returned AMPC_ERR_DIVERGED; on an
       asynchronous device the next call that asks for metrics returns it.
       Inputs are examined only if they belong to that call. AMPC_ERR_DATA
       takes precedence. Strings live until the next call. */
    ampc_status (*nonfinite)(ampc_session *s, ampc_nonfinite *out);

    /* `load` from several files at once; floating numbers of any width are
       converted.  `notice` lists missing variables and unused tensors. Files
       without any matching tensor, and shapes that differ, are refused. */
    ampc_status (*load_weights)(ampc_session *s, const ampc_weights *from);

    /* Writes only parameters, frozen weights and buffers, to one safetensors
       file that PyTorch's load_state_dict accepts. */
    ampc_status (*save_weights)(ampc_session *s, const char *path);

    /* For modules compiled with --count-underflow: calls fn for every trained
       parameter with the number of gradient elements that fp16 flushes to zero
       on this (micro-)batch, at the loss scale of the next step.  Changes no
       variable; takes about twice the time of a step.  fn must not use the
       session. */
    ampc_status (*underflow)(ampc_session *s, const ampc_input *in, size_t nin,
                             ampc_underflow_fn fn, void *ctx);

    /* Creates a communicator for ampc_options.comm; all ranks call it together.
       On failure it behaves like `open`. "mpi" initialises MPI unless the host
       did, and then ends it in comm_close, which waits for the other ranks
       unless one of them failed. comm may be NULL in comm_close. */
    ampc_status (*comm_open)(const ampc_comm_options *options, ampc_comm **out,
                             char *err, size_t err_size);
    void (*comm_close)(ampc_comm *comm);

    /* The objectives of a module compiled with --objective NAME,..., in
       order; "" for one without a name; NULL after the last. */
    const char *(*objective_name)(const ampc_module_t *m, uint32_t index);

    /* Selects the objective: from now on step, micro_step, update, vjp and
       underflow run its programs ("train:NAME", ...), and the other functions
       report its loss, counters and learning rate. The first objective is
       selected initially. All objectives share the loss scale. It is updated
       when each has made a step, or when one makes another step first.
       Not allowed between the micro-steps of an update. */
    ampc_status (*objective)(ampc_session *s, const char *name);

    /* Like predict, for a module compiled with --loss host: the outputs as
       the next vjp will compute them, with the batch's statistics and
       dropout as in training. Changes no variable. */
    ampc_status (*outputs)(ampc_session *s, const ampc_input *in, size_t nin,
                           int64_t valid, ampc_output *out, size_t nout);

    /* Memory that a GPU reads: a batch that is written there and passed to the
       next call that runs `program` is not copied by the host. It has the size
       of input `index`, and belongs to the session again after that call.
       *data is NULL on the CPU, which reads the host's arrays.              */
    ampc_status (*stage)(ampc_session *s, const char *program, uint32_t index,
                         void **data);

    /* The device that `auto` chose or options.device named. */
    ampc_status (*device)(ampc_session *s, ampc_device_info *out);

    /* For a function called by `profile`, on the CPU: bytes of the arena as the
       reported step has left them. The IR after pass memplan shows each
       value's offset after its type (`ampc inspect --ir memplan`); `ampc
       bisect` reads values in this way. */
    ampc_status (*peek)(ampc_session *s, uint64_t offset, void *to,
                        size_t bytes);

    /* How much of its device's memory the session holds. */
    ampc_status (*memory)(ampc_session *s, ampc_memory_info *out);

    /* The name of the program that a call with these inputs runs, in a module
       for several sizes, for `program` "train", "micro", "eval", "predict" or
       "outputs": with `output` it tells what room `predict` needs. The inputs'
       data are not read. */
    ampc_status (*fit)(ampc_session *s, const char *program,
                       const ampc_input *in, size_t nin, const char **name);
} ampc_api;

/* The one symbol that a module exports (`ampc --symbol` renames it).  NULL
   if the module cannot serve that version. */
typedef const ampc_api *ampc_module_fn(uint32_t abi_version);

/* ---- conveniences -------------------------------------------------------- */

static inline ampc_input ampc_in(const char *name, const void *data,
                                 size_t bytes, ampc_dtype dtype) {
    ampc_input in;
    in.size = sizeof in;
    in.name = name;
    in.data = data;
    in.bytes = bytes;
    in.dtype = (int32_t)dtype;
    in.rank = -1;
    in.shape = NULL;
    in.place = AMPC_IN_HOST;
    in.reserved0 = 0;
    return in;
}

static inline ampc_output ampc_out(const char *name, void *data, size_t bytes,
                                   ampc_dtype dtype) {
    ampc_output out;
    out.size = sizeof out;
    out.name = name;
    out.data = data;
    out.bytes = bytes;
    out.dtype = (int32_t)dtype;
    out.place = AMPC_IN_HOST;
    return out;
}

#ifdef __cplusplus
}
#endif

/* Loader for hosts that do not link to the module; older C libraries want
   -ldl.  Define AMPC_NO_LOADER to leave it out.                             */
#ifndef AMPC_NO_LOADER
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Loads a module by path ("train.so" means ./train.so).  `symbol` is the name
   given to `ampc --symbol`. NULL on failure, with a message in err (may be
   NULL).  *handle (may be NULL) is for dlclose, after the last session.     */
static inline const ampc_api *ampc_load_symbol(const char *path,
                                               const char *symbol,
                                               void **handle, char *err,
                                               size_t err_size) {
    char local[4096];
    void *lib;
    ampc_module_fn *fn = NULL;
    const ampc_api *api;
    if (handle) *handle = NULL;
    if (!strchr(path, '/') && strlen(path) < sizeof local - 2) {
        local[0] = '.';
        local[1] = '/';
        memcpy(local + 2, path, strlen(path) + 1);
        path = local;
    }
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        if (err && err_size) snprintf(err, err_size, "%s", why ? why : path);
        return NULL;
    }
    {
        void *sym = dlsym(lib, symbol);
        memcpy(&fn, &sym, sizeof fn);
    }
    api = fn ? fn(AMPC_ABI_VERSION) : NULL;
    if (!api) {
        if (err && err_size)
            snprintf(err, err_size,
                     fn ? "%s: made for another version of ampc.h"
                        : "%s: not an ampc module (no symbol '%s')",
                     path, symbol);
        dlclose(lib);
        return NULL;
    }
    if (handle) *handle = lib;
    return api;
}

static inline const ampc_api *ampc_load(const char *path, void **handle,
                                        char *err, size_t err_size) {
    return ampc_load_symbol(path, "ampc_module", handle, err, err_size);
}
#endif /* AMPC_NO_LOADER */

#endif /* AMPC_H */
