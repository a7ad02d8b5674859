/* SPDX-License-Identifier: Apache-2.0 */
/* run_cmd.h: `ampc run`, a host that drives a module from data files through
   the API of ampc.h alone.

   run_cmd.c   command line and order of work
   run_open.c  finds the module's entry
   run_ranks.c as one of many ranks
   run_adapter.c  the settings beside a file of adapters
   run_hyper.c learning rates and schedules that change
   run_train.c the training loop;  run_eval.c  evaluation and prediction
   run_order.c the samples of an epoch;  run_batch.c  what is wrong with one
   run_checkpoint.c  saving, keeping, resuming, the position in the data
   run_claim.c one run at a time writes a checkpoint
   run_log.c   log lines, notes, summary;  run_bar.c  bar, lines of epochs
   run_events.c  the same numbers for TensorBoard;  run_page.c  as curves
   run_fetch.c outputs to .npy files;  run_data.c  what is said of data
   generate.c  text, with sample.c
   run_metric.c  --metric, over metric.h
   run_underflow.c  what fp16 flushes to zero                                */
#ifndef AMPC_FRONTEND_DRIVER_RUN_CMD_H
#define AMPC_FRONTEND_DRIVER_RUN_CMD_H

#include "frontend/data/augment.h"
#include "frontend/data/feed.h"
#include "frontend/data/feed_size.h"
#include "frontend/run/metric.h"
#include "ir/base/files.h"

/* argv[0] is "run". api is NULL except in tests; then argv names the
   module's file. Returns the exit status. */
int run_cmd(int argc, char **argv, const ampc_api *api);

/* The compiler's option for what an unknown one says, or NULL; set by whoever
   knows the compiler. */
extern const char *(*run_hint)(const char *name);

/* Steps or seconds; the other one is 0. */
typedef struct RunPeriod {
    int64_t steps;
    double seconds;
} RunPeriod;

typedef struct RunOptions {
    const char *module, *device;
    const char *devices; /* "0,1": a rank for each GPU; NULL: not requested */
    const char *comm;    /* engine; NULL: the launcher decides */
    RunList feed, eval_feed, load, load_map, hyper, metric, augment;
    int64_t steps, epochs; /* -1: not given */
    RunPeriod save_every;  /* period 0: only at the end */
    int64_t keep;          /* number of older checkpoints to keep; 0: none */
    int64_t patience;      /* epochs without a better evaluation; 0: no limit */
    int64_t threads;
    int64_t max_skipped; /* as in ampc_options */
    int64_t deadline;    /* seconds to wait for another rank; 0: the default */
    const char *save, *save_best, *save_weights, *fetch, *log, *profile,
        *tensorboard, *report;
    const char *plateau;    /* --reduce-on-plateau; NULL: not requested */
    const char *best_by;    /* a --metric; NULL: the loss */
    const char *vocabulary; /* a token a line; NULL: bytes */
    const char *generate, *sample; /* a prompt, and how to sample
                                      (generate.h) */
    bool shuffle, sort_by_length, eval, resume, quiet, averaged;
    bool auto_resume; /* resume is set if there is a checkpoint */
    double lr;        /* NaN: the module's */
    double spikes;    /* standard deviations; 0: not reported */
    int64_t update_ratios, noise_scale; /* measured every N steps; 0: never */
} RunOptions;

/* State of the log, and of the terminal's last line. */
typedef struct RunLog {
    FILE *out;     /* stream of log lines; NULL: lines are not written */
    FILE *stream;  /* `out`, if it is a device, a pipe or a descriptor */
    bool lost;     /* a line could not be written */
    bool streamed; /* lines were written to `stream`, which is now closed */
    OutFile file, trace;
    bool terminal, quiet;        /* the bar is shown; notes are not */
    bool silent;                 /* neither notes nor the summary: rank > 0 */
    bool colour, bar;            /* a bar is on the terminal */
    bool mixed;                  /* log lines go to a terminal, too        */
    double begin, last;          /* start of the clock; time of the last bar */
    int64_t first, goal;         /* step at which the clock started; number
                                    of steps */
    int64_t first_epoch, epochs; /* steps done before this run; last step */
    double epoch_begin,
        loss_sum; /* start of the epoch; sum of its finite losses */
    int64_t loss_n, epoch_steps;
    FILE *profile; /* over `trace` */
    int64_t events;
    uint64_t profile_zero;
    double flops, device_s; /* profiled training steps on a GPU */
    OutFile events_file;    /* --tensorboard */
    FILE *events_out;       /* over it; NULL: not requested */
    char *events_path;
    OutFile page;             /* --report */
    struct RunCurves *curves; /* NULL: not needed */
    /* for the summary */
    int64_t steps, samples;  /* of this run */
    double first_loss, loss; /* of the first and the last step in this run */
    double trained;          /* seconds */
    int64_t step, skipped;   /* as in ampc_metrics; the last value */
    bool evaluated;
    double eval_loss, accuracy; /* the last; NaN: the model is not a
                                   classifier */
    double accuracy_top;        /* --top-k, or NaN */
    int32_t top_k;
    char top_key[40];   /* name of accuracy_top among the scalars */
    int64_t best_epoch; /* 0: none */
    int64_t best_step;  /* the step after which it was evaluated */
} RunLog;

/* One number at one step. */
typedef struct RunScalar {
    const char *tag;
    double value;
} RunScalar;

/* A position in the training data; stored as the checkpoint's cursor. */
typedef struct RunCursor {
    int64_t epoch, done; /* samples of this epoch that have trained         */
    int64_t samples;     /* in the data                                     */
    double best;         /* lowest value so far of the evaluation loss or of
                            --best-by; infinity: none */
    int64_t stale;       /* evaluations since then */
    bool due;            /* the last finished epoch must still be evaluated */
    double plateau_best; /* --reduce-on-plateau: lowest loss; infinity: none */
    int64_t plateau_bad; /* evaluations since then */
} RunCursor;

/* Gradient elements that fp16 flushed to zero in the examined batches. */
typedef struct RunFlushed {
    const char *parameter;
    double flushed, nonzero;
} RunFlushed;

typedef struct RunUnderflow {
    RunFlushed *of; /* n parameters, at most `limit`; NULL: the module does
                       not count */
    int n, limit;
    int64_t steps, looks;
} RunUnderflow;

typedef struct Run {
    Diag diag;
    FileGuard *guard;
    const RunOptions *opt;
    const ampc_api *api;
    void *lib;
    ampc_module_info info;
    ampc_session *s;
    const char *gpu;  /* name of the GPU; NULL: the CPU is used */
    char device[200]; /* the session's line about what it runs on, or "" */
    ampc_comm *comm;  /* NULL: a single process */
    int rank, world;
    FeedSet train, eval;
    KnownClasses classes; /* of the checkpoint */
    FeedSet *others;      /* data of the second and further objectives */
    uint32_t nother;
    RunLog log;
    RunCursor at;
    bool stopped; /* by a signal, between two steps or during an evaluation */
    RunUnderflow underflow;
    struct RunWatch *watch;     /* NULL: not training */
    struct RunMetrics *metrics; /* NULL: not asked for */
    struct Fetch *fetch; /* NULL: outputs are not requested, or another rank
                            writes them */
    int64_t *order;      /* samples of this epoch; NULL: in the file's order */
    unsigned char *size_of; /* --sort-by-length: the size of each sample, and */
    int64_t *sorted;        /* room for two numbers for each; else NULL */
} Run;

/* ---- run_cmd.c, for commands that run modules, too ------------------------
 */

void run_options_init(RunOptions *o);
/* Reads option argv[0] of `left` words; *used: the number of words, 0 if it is
   another option.
 */
Status run_arg(RunOptions *o, Diag *d, char **argv, int left, int *used);
/* Loads the code of opt->module and opens a session. */
Status run_session(Run *r);
/* Applies --load, --resume and --lr. */
Status run_load(Run *r);

/* ---- run_call.c ---------------------------------------------------------- */

/* The message of a call that failed. */
Status run_api_fail(Run *r, const char *what);

/* Logs even with --quiet: the note of a call that succeeded. */
void run_print_notice(Run *r);

/* Name of objective i; NULL after the last one. Modules compiled before
   objectives existed have one without a name. */
const char *run_objective(const Run *r, uint32_t i);
/* Selects the objective of the next calls. */
Status run_choose(Run *r, uint32_t objective);
/* Samples of one optimizer step, of all ranks. */
int64_t run_step_samples(const Run *r);

/* run_adapter.c: scales the adapters of an adapter_model.safetensors
   (--load) for the module's --lora, if there is an adapter_config.json
   beside the file. */
Status run_check_adapters(Run *r);

/* ---- run_classes.c ------------------------------------------------------- */

/* Adds ,"classes":{..} to a cursor if labels that train have names. */
void run_classes_put(const Run *r, StrBuf *sb);
/* Reads the names that --resume or, for a run that does not train, --load
   brings. */
Status run_classes_read(Run *r, bool trains);
void run_classes_free(Run *r);
/* Says that loaded weights have no names of classes. */
void run_classes_tell(const Run *r, StrBuf *sb);
/* A number of all names, to compare. */
double run_classes_hash(const Run *r);

/* ---- run_note.c ---------------------------------------------------------- */

double now_seconds(void);
void log_note(Run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Removes the bar from the terminal's last line. */
void bar_clear(RunLog *log);

/* run_open.c: sets lib and api from opt->module. */
Status run_open_code(Run *r);

/* run_data.c: lists the conversions of the data, once for each input that is
   read. */
void run_tell_data(const Run *r, const FeedSet *const *sets, int n, StrBuf *sb);

/* ---- run_devices.c ------------------------------------------------------- */

Status devices_check(const RunOptions *o, Diag *d);
/* Runs the command argv ("run" and its words) as a process for each of
   o->devices, and returns when all have ended: the status of the first that
   failed. */
Status devices_run(const RunOptions *o, Diag *d, int argc, char **argv);

/* ---- run_ranks.c --------------------------------------------------------- */

/* The variable that says that a launcher has started several processes; NULL:
   none has. */
const char *ranks_launched(void);
/* Makes this process rank `rank` of those that a launcher such as torchrun has
   started on this machine, and no other launcher. local: its GPU. */
void ranks_put(int rank, int world, int local, int port);
/* If a launcher has started several processes: sets comm, rank and world. */
Status ranks_open(Run *r);
/* Checks that all ranks have the same command and the same number of
   samples. */
Status ranks_agree(Run *r);
/* Sums over all ranks, in place. */
Status ranks_sum(Run *r, double *x, size_t n, const char *what);
/* Waits until all ranks end with that status. */
Status ranks_close(Run *r, Status st);

/* ---- run_train.c --------------------------------------------------------- */

Status run_training(Run *r);
/* Ends the run after the step when a signal comes, and keeps a checkpoint to
   continue from. */
bool run_may_stop(const Run *r);

/* ---- run_eval.c ---------------------------------------------------------- */

/* Evaluates all samples of r->eval for each objective in turn, logs the sums
   and returns the first objective's. epoch < 0: the evaluation of --eval, which
   writes outputs to opt->fetch. */
Status run_evaluate(Run *r, int64_t epoch, ampc_eval *first);
Status run_predict(Run *r, FeedSet *fs);

/* ---- run_order.c --------------------------------------------------------- */

/* The number of an epoch's samples that train. An incomplete batch is filled
   up if the module can mask samples. Otherwise only whole batches train, and
   all ranks take equally many, since they may sum statistics. */
int64_t run_trained_samples(const Run *r);
Status run_order_open(Run *r);
/* Puts the samples of epoch r->at.epoch into r->order, if there is one. */
void run_order_epoch(Run *r);

/* ---- run_batch.c --------------------------------------------------------- */

/* A batch of samples of `fs`, from order[first] on. */
typedef struct RunBatch {
    const FeedSet *fs;
    const int64_t *order; /* NULL: in the file's order */
    int64_t first;
} RunBatch;

/* A call with that batch failed: if a number in it is the cause, the message
   names file and sample. */
Status run_batch_fail(Run *r, RunBatch b, ampc_status status, const char *what);

/* ---- run_checkpoint.c ---------------------------------------------------- */

/* Saves the checkpoint, with the position in the data if there are training
   data; rank 0 does it. */
Status run_save(Run *r, const char *path);
/* Keeps a copy of the checkpoint just saved under its own name, and removes
   old ones. */
Status run_keep(Run *r, int64_t step);
/* Resumes from the --save file; if it cannot be read, from the newest
   readable checkpoint of --keep, with a note. */
Status run_resume(Run *r);
/* True if there is a checkpoint that run_resume would read. */
bool run_can_resume(const RunOptions *o);
/* Restores the position that a resumed checkpoint holds. */
void run_cursor_read(Run *r);

/* ---- run_claim.c --------------------------------------------------------- */

/* Refuses files of --save, --save-best and --save-weights that another run of
   this machine writes. */
Status run_claim(Run *r);

/* ---- run_hyper.c --------------------------------------------------------- */

/* Optimizer steps from the start of training to the end of this run;
   optimizer steps per epoch. */
typedef struct RunLength {
    int64_t all, epoch;
} RunLength;

/* What --hyper says. */
Status hyper_apply(Run *r, RunLength length);
Status plateau_check(Diag *d, const char *text);
/* Call after an evaluation with this loss: may lower learning rates. */
Status plateau_step(Run *r, double loss);

/* ---- run_metric.c -------------------------------------------------------- */

Status metric_options(Diag *d, const RunOptions *o);
/* Finds outputs and labels in program "eval" and its fed inputs. */
Status metrics_open(Run *r);
void metrics_close(Run *r);
void metrics_clear(Run *r); /* call before an evaluation */
/* Call after the evaluation of samples [first, first + n) of r->eval. */
Status metrics_batch(Run *r, int64_t first, int64_t n);
/* sum: over ranks, each of which has evaluated other samples. */
Status metrics_end(Run *r, bool sum);
/* The last value of metric i, or NULL after the last one. */
const char *metric_label(const Run *r, int i);
const char *metric_tag(const Run *r, int i); /* its name among scalars */
double metric_last(const Run *r, int i);
/* The accuracy that is printed beside the loss anyway. */
bool metric_told(const Run *r, int i);
/* The value that decides on the best epoch, lower is better: the loss, or
   the metric of --best-by, negated if `*higher` is set. */
double metrics_best(const Run *r, double loss, bool *higher);

/* ---- run_underflow.c ----------------------------------------------------- */

Status run_underflow_open(Run *r);
/* Counts on the batch that trains next. */
Status run_underflow_look(Run *r);
void run_underflow_close(Run *r);

/* ---- run_watch.c --------------------------------------------------------- */

Status watch_open(Run *r);
/* Call these around a step of the first objective, which trains `samples`
   samples from r->at.done on, and after each of its micro-batches. */
Status watch_before(Run *r);
Status watch_micro(Run *r, int64_t micro);
Status watch_after(Run *r, const ampc_metrics *m, int64_t samples);
/* What the page tells of spikes and ratios. */
void watch_text(const Run *r, StrBuf *sb);
void watch_close(Run *r);

/* ---- run_log.c ----------------------------------------------------------- */

/* Writes a line, which it frees. */
void log_line(Run *r, StrBuf *sb);
void log_number(StrBuf *sb, double x); /* null if it is not finite */
/* Numbers for the curves and --tensorboard. */
void log_scalars(Run *r, int64_t step, const RunScalar *s, int n);
Status log_open(Run *r);
Status log_close(Run *r); /* gives the profile its name */
void log_abort(Run *r);
void log_step(Run *r, uint32_t objective, const ampc_metrics *m, double ms);
/* epoch < 0: the last line of --eval */
void log_eval(Run *r, uint32_t objective, int64_t epoch, const ampc_eval *e);
/* {"underflow":{"w":0.25}}: the share for every parameter */
void log_underflow(Run *r);
/* run_summary.c: a summary of the run for the terminal. logged: the log files
   are mentioned, too. */
void log_summary_text(Run *r, bool logged, StrBuf *sb);

/* ---- run_bar.c ----------------------------------------------------------- */

/* Call before the first of `steps` steps: `first` epochs are done, the run
   ends in epoch `last`. */
void bar_begin(Run *r, int64_t steps, int64_t first, int64_t last);
/* Draws at most ten times a second; time left from the speed since the
   start. */
void bar_step(Run *r, const ampc_metrics *m, int64_t done);
/* Prints the line of a finished epoch, evaluated or not. */
void bar_epoch(Run *r, int64_t epoch);

/* ---- run_profile.c ------------------------------------------------------- */

Status profile_open(Run *r);
Status profile_close(Run *r);
/* One line: the share of a GPU's peak that training reached; empty on a CPU. */
void profile_text(const Run *r, StrBuf *sb);

/* ---- run_page.c ---------------------------------------------------------- */

typedef struct RunCurves RunCurves;
RunCurves *curves_new(void); /* NULL: out of memory; the caller frees it */
/* Curves skip numbers that are not finite; all may be NULL. Tags are kept,
   not copied.                                                               */
void curves_add(RunCurves *all, int64_t step, const RunScalar *s, int n);
/* The training loss as one line of text of at most that width; empty without a
   curve. */
void curves_line(const RunCurves *all, int width, StrBuf *sb);
Status page_open(Run *r);
Status page_close(Run *r);

/* ---- run_events.c -------------------------------------------------------- */

Status events_open(Run *r);
void events_scalars(Run *r, int64_t step, const RunScalar *scalars, int n);
Status events_close(Run *r);

/* ---- run_fetch.c --------------------------------------------------------- */

typedef struct Fetch Fetch;

/* Creates one file per model output of `program` for that many samples,
   before any work begins; sets r->fetch. */
Status fetch_open(Run *r, const char *program, int64_t samples);
/* Appends the outputs of the last program run: its first n samples. */
Status fetch_batch(Run *r, Fetch *f, int64_t n);
Status fetch_close(Run *r); /* renames the files into place                 */
void fetch_abort(Run *r);

#endif
