/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the compile options as a record.  Their text form is the command
   line's and `train` blocks' (frontend/cli/options_text.h). */
#ifndef AMPC_PASSES_OPTIONS_H
#define AMPC_PASSES_OPTIONS_H

#include "ir/ir.h"
#include "ir/graph/names.h"
#include "ir/fn/dims.h"

struct Fn;
struct FnAttr;

typedef enum Precision { PREC_FP32, PREC_BF16, PREC_FP16 } Precision;
extern const DType precision_dtype[]; /* what products read */

typedef enum Remat { REMAT_AUTO, REMAT_NONE, REMAT_BYTES } Remat;

/* How an update reads a 16-bit parameter. */
typedef enum Masters {
    MASTERS_F32,
    MASTERS_KAHAN, /* the parameter and a 16-bit remainder */
    MASTERS_NONE
} Masters;

typedef enum Placement { PLACE_EXACT, PLACE_PYTORCH } Placement;

typedef enum LossKind {
    LOSS_AUTO,
    LOSS_NONE,
    LOSS_HOST,
    LOSS_FN /* a function of the library */
} LossKind;

typedef VEC(double) Reals;
typedef VEC(Str) Strs;

/* A key, from its function's definition. */
typedef struct LossKey {
    const struct FnAttr *key;
    double value;
} LossKey;

typedef struct LossSpec {
    LossKind kind;
    const struct Fn *fn; /* LOSS_FN */
    double factor;
    VEC(Str)
    outputs; /* graph outputs to which it is applied; empty: the
                only ones */
    VEC(LossKey) keys;
    Reals class_weights; /* empty: all 1 */
} LossSpec;

typedef struct OptimizerKey {
    const struct FnAttr *key;
    double value;
} OptimizerKey;

typedef struct OptimizerSpec {
    const struct Fn *fn;    /* the update function: optimizer.h */
    double lr;              /* a wrapper's: 1, which nothing reads */
    VEC(OptimizerKey) keys; /* all keys except lr, from the definition */
} OptimizerSpec;

/* A function gradient_NAME(g, p; keys) of optimizers.amp that transforms
   each gradient before the optimizer reads it. Operands behind p, by name: t,
   the number of the step, and rng, the key of random numbers of the step; key
   salt is their stream, and no user's. */
typedef struct TransformSpec {
    const struct Fn *fn;
    VEC(OptimizerKey) keys;
} TransformSpec;

enum { MAX_WRAPPERS = 8 };

typedef struct ParamGroup {
    Str glob;
    double lr_scale, weight_decay; /* NaN: unchanged */
} ParamGroup;

typedef enum ScheduleKey {
#define SCHEDULE_KEY(id, name) KEY_##id,
#include "passes/schedules.def"
    SCHEDULE_KEYS
} ScheduleKey;

/* A key, the same for all schedules. */
typedef struct ScheduleKeyRow {
    const char *name;
    OwnVar variable;
} ScheduleKeyRow;
extern const ScheduleKeyRow schedule_keys[SCHEDULE_KEYS];

/* A schedule, and the keys that it takes; a row without a word ends the
   table. */
typedef struct ScheduleRow {
    const char *word, *fn;
    const Module *own; /* NULL, or the user's text, with fn as its last
                          function */
    int n;
    struct {
        ScheduleKey key;
        double preset; /* NaN: required */
    } keys[SCHEDULE_KEYS];
} ScheduleRow;
extern const ScheduleRow schedule_rows[];

typedef struct ScheduleSpec {
    const ScheduleRow *row;
    double key[SCHEDULE_KEYS];
    VEC(OptimizerKey) fixed; /* attributes of the user's function */
} ScheduleSpec;

/* One loss and the parameters that it trains. All objectives share one loss
   scaler. */
typedef struct Objective {
    Str name; /* "": the only one */
    LossSpec loss;
    VEC(LossSpec) added; /* to it */
    VEC(Str)
    params; /* globs; empty: every parameter that the loss depends
               on */
    OptimizerSpec optimizer;
    VEC(OptimizerSpec) wrappers; /* around it, in order; at most MAX_WRAPPERS */
    VEC(ParamGroup) param_groups;
    ScheduleSpec schedule;
    double clip_norm, clip_value;  /* 0: off */
    VEC(TransformSpec) transforms; /* applied after clipping, in order */
} Objective;

/* An average of the parameters, stored beside them, which evaluation may
   read. */
enum { AVERAGE_KEYS = 5 };
typedef struct AverageSpec {
    const char *fn; /* function of std.amp: the share of the average that a
                       step replaces; NULL: there is no average */
    struct {
        const char *name; /* NULL: no more */
        double value;
    } keys[AVERAGE_KEYS];
    bool buffers; /* true: buffers have averages, too */
} AverageSpec;

/* Adapters for the weights that match `glob` (--lora, --ia3). */
typedef enum LoraBias {
    LORA_BIAS_NONE,
    LORA_BIAS_ADAPTED, /* true: biases of layers with an adapter train */
    LORA_BIAS_ALL      /* all biases train */
} LoraBias;
typedef struct AdapterSpec {
    const char *option; /* "--lora" */
    Str glob;
    int64_t rank;
    double alpha, dropout;
    LoraBias bias;
    bool dora;             /* a trained norm for each output */
    bool ia3, feedforward; /* --ia3: a factor for each output, or input */
} AdapterSpec;

/* How frozen weights are stored (--frozen-dtype). */
typedef enum FrozenDtype {
    FROZEN_AS_PRECISION, /* 16 bits with adapters, else unchanged */
    FROZEN_BF16,
    FROZEN_INT8, /* this and the following ones: codes of quantized.h, in
                    order */
    FROZEN_INT4,
    FROZEN_NF4
} FrozenDtype;

typedef enum ScaleKind {
    SCALE_DEFAULT,
    SCALE_NONE,
    SCALE_STATIC,
    SCALE_DYNAMIC
} ScaleKind;

typedef struct ScaleSpec {
    ScaleKind kind;
    double init, growth, backoff, min, max;
    int64_t interval, hysteresis;
} ScaleSpec;

typedef struct GlobRule {
    Str glob;
    bool train; /* --train or --freeze */
} GlobRule;

typedef struct Target {
    bool cuda;
    int isa;  /* cpu: a level of runtime/cpu/isa.def */
    Str arch; /* cuda: "sm_90", ..., "ptx" */
} Target;

/* Errors that `--max-loss-error` and `--max-gradient-error` limit. */
typedef enum ErrorKind { ERROR_LOSS, ERROR_GRADIENT, NUM_ERRORS } ErrorKind;

/* --pad INPUT=VALUE */
typedef struct Pad {
    Str input;
    double value;
} Pad;

/* A file that an option names, and its text. */
typedef struct OptionFile {
    Str name;
    const char *text;
} OptionFile;

/* Turns of a loop are nodes of their own. */
enum { MOST_TRIPS = 4096 };

/* --max-trips [GLOB=]N */
typedef struct TripBound {
    Str glob; /* of Loop nodes; NULL: all */
    int64_t most;
    bool used; /* a loop was read */
} TripBound;

typedef struct SetNumber {
    double real;
    int64_t whole; /* if is_whole: the same, exactly */
    bool is_whole;
} SetNumber;

/* --set INPUT=NUMBER,NUMBER.. */
typedef struct InputValue {
    Str name;
    VEC(SetNumber) numbers; /* one: it fills the input */
} InputValue;

/* --f8-scales: from the largest number of a tensor in this step, in earlier
   ones, or of each block of 32 */
typedef enum F8Scales { F8_CURRENT, F8_DELAYED, F8_BLOCK } F8Scales;

typedef struct Options {
    Arena *arena;
    Precision precision;
    bool f8_products;   /* .. and products of layers read f8 (pass eight), .. */
    F8Scales f8_scales; /* .. with these scales */
    bool half_model;    /* O2, O3: the model itself is 16 bits, .. */
    bool keep_batchnorm, master_weights; /* .. but for these */
    Placement placement;
    bool fp16_residuals; /* PLACE_EXACT: residual streams are fp16, and in bf16
                            so are operands of norms, .. */
    double residuals;    /* else streams are fp32 until a step's bytes have
                            grown by this percentage; infinite: all streams */
    double max_error[NUM_ERRORS]; /* relative; 0: no limit */
    Strs calibrate;               /* --calibrate INPUT=FILE */
    struct Errors *errors;        /* measurements for these limits (budget.h);
                                     NULL: not yet measured */
    AmpcFactors factors;          /* of f32 products on GPUs */
    bool wide_head; /* PLACE_EXACT: a small product nearest the loss reads
                       fp32, or a weight in two parts */
    Remat remat;
    int64_t remat_bytes;       /* REMAT_BYTES */
    bool keep_f8;              /* true: f8 codes for what backward alone reads
                                  later */
    int64_t logit_rows;        /* rows of logits per chunk; 0: all rows, -1:
                                  auto */
    VEC(Objective) objectives; /* at least one */
    bool loss_given;           /* --loss was */
    bool only_given;           /* true: an option of the only objective was
                                  given */
    uint64_t lines;            /* true: a block gave this row of options.def */
    int64_t accumulate;
    Masters masters;
    DType state_dtype;          /* of the optimizer's state: a row of dtypes.def
                                   with the column `state` */
    DType gradient_dtype;       /* in which a step keeps gradients that one
                                   matrix product computes */
    bool clip_previous;         /* clip_norm limits by the norm of the last
                                   applied step */
    bool optimizer_in_backward; /* true: updates do not wait for all
                                   gradients */
    bool equal_batches;         /* true: the mean of the micro-batches' means */
    AverageSpec average;
    FrozenDtype frozen_dtype;
    VEC(AdapterSpec) adapters; /* if several match a weight, the last counts */
    ScaleSpec scale;
    int64_t comm_bucket; /* bytes of gradients, counted as f32, that ranks
                            sum together, and the dtype in which they send */
    DType comm_dtype;
    bool shard_optimizer; /* true: optimizer state and updates are divided
                             among ranks */
    bool sync_batchnorm;  /* true: statistics over all ranks */
    VEC(DimBind) dims;
    VEC(DimSizes) dim_sizes; /* of those with several sizes */
    VEC(Pad) pads;           /* values that fill inputs up to a size */
    /* Number of list entries that come from the .amp file. --dim adds to its
       entries; for the other lists the command line replaces them. */
    int model_dims, model_frozen, model_targets, model_batches;
    VEC(int64_t) batch_sizes; /* --batch-sizes, without repetitions */
    int64_t batch;      /* the model is compiled for this one of them; 0: for
                           its own */
    VEC(DimBind) heads; /* --replace-head: an output, its units */
    VEC(Str) fresh;     /* the parameters of these layers */
    VEC(GlobRule) train_rules; /* in command-line order */
    bool batchnorm_train;      /* default true */
    bool batchnorm_said;       /* .. and requested: also layers that the file
                                  has frozen while others train */
    int batchnorm_unbiased;    /* -1 by producer, 0 population, 1 unbiased */
    int batchnorm_cumulative;  /* a momentum that the file does not tell from
                                  None: -1 by mode, 0 the number, 1 None */
    VEC(Str) batchnorm_frozen; /* globs; "*" when frozen without a glob */
    bool dropout;
    VEC(TripBound) max_trips;   /* if several match a loop, the last counts */
    VEC(InputValue) set_inputs; /* if several name an input, the last counts */
    bool accept_folded;
    VEC(Target) targets; /* empty: default */
    bool sidecar_weights;
    Str no_cuda; /* reason why GPU code is missing although no option asked for
                    that; NULL: it is not missing */
    int64_t top_k; /* --top-k; 0: accuracy counts the best class only */
    bool time_passes;
    bool debug_nonfinite; /* true: program locate is made */
    bool count_underflow; /* true: program underflow is made */
    Str amp_policy;       /* a file, NULL: none */
    Str dump_ir, emit_c, emit_cuda, emit_onnx, report;
    Str tile;  /* --tile: folder of NVRTC and tileiras; NULL: no CUDA Tile */
    Str cache; /* --cache: folder of compilers' results, or "none"; NULL: the
                  default folder */
    VEC(Str)
    said; /* each option given and its value, "" for a flag; two "" separate
             sources */
    VEC(OptionFile)
    texts;                   /* the files that options read, by their words:
                                a module keeps them */
    struct FileGuard *guard; /* keeps outputs apart from inputs; may be NULL */
    Str symbol;              /* "ampc_module" */
    int64_t seed;
    /* testing aids, not in --help's main list */
    bool quick;       /* CPU kernels are compiled with few optimisations */
    bool no_fuse;     /* every node its own group */
    uint64_t shuffle; /* nonzero: shuffle independent nodes by this seed */
} Options;

void options_init(Options *o, Arena *a);
LossSpec loss_default(LossKind kind);
/* Every key has its default. */
ScheduleSpec schedule_default(const ScheduleRow *row);
/* A schedule of the user's, the last function of m, whose operands are keys.
   Returns an operand that is no key; NULL: all are. */
Str schedule_own(Arena *a, const Module *m, ScheduleSpec *out);
const struct Fn *schedule_fn(const ScheduleSpec *s);
void schedule_attrs(const ScheduleSpec *s, Attr *to);
/* Whether the function takes numbers and gives one; else msg says why not. */
Status schedule_check(const ScheduleSpec *s, Arena *a, char *msg);
/* The value of a key, or `other` if it has none. */
double loss_key(const LossSpec *l, const char *name, double other);
ScaleSpec scale_default(ScaleKind kind);
/* Every key has its default. */
OptimizerSpec optimizer_default(Arena *a, const struct Fn *fn);
TransformSpec transform_default(Arena *a, const struct Fn *fn);
/* The value of a key; NULL: the optimizer lacks it. */
const double *optimizer_key(const OptimizerSpec *o, const char *name);
/* The keys as attributes of a call; weight_decay is returned separately if
   not NULL. */
void optimizer_attrs(const OptimizerSpec *o, const double *weight_decay,
                     Attr *to);
/* True if the optimizer allows those values; else msg says why not. */
Status optimizer_check(const OptimizerSpec *o, Arena *a, char *msg);
const Objective *options_objective(const Options *o, Str name); /* NULL */
bool objective_trains(const Objective *j, const char *parameter);
/* The largest of --batch-sizes; 0 without the option. */
int64_t options_largest_batch(const Options *o);
/* "fp32", "bf16", "fp16" or "f8". */
const char *options_precision(const Options *o);
bool options_has_scaler(const Options *o); /* with the precision's default
                                              applied */
bool options_train(const Options *o);      /* some objective has a loss   */
bool options_budget(
    const Options *o); /* some error is limited, and dtypes keep the limit */

#endif
