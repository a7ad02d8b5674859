/* SPDX-License-Identifier: Apache-2.0 */
/* run_cmd.c: `ampc run`: its command line and the order of work: open, load or
   resume, train, evaluate, fetch, save.                                     */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"
#include "frontend/run/generate.h"
#include "ir/base/near.h"
#include "ir/graph/names.h"
#include "runtime/files/cache_folder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/leave.h"

/* ---- command line -------------------------------------------------------- */

static Status run_usage(Diag *d, const char *what, const char *arg) {
    fail(d, (Loc){0}, "%s '%s' (see ampc run --help)", what, arg);
    return ERR_USAGE;
}

static Status take_count(Diag *d, const char *name, const char *text,
                         int64_t least, int64_t *out) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || errno || n < least) {
        fail(d, (Loc){0}, "%s: '%s' is not a whole number >= %lld", name, text,
             (long long)least);
        return ERR_USAGE;
    }
    *out = n;
    return OK;
}

static Status take_rate(Diag *d, const char *name, const char *text,
                        double *out) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && !*end && isfinite(*out) && *out >= 0) return OK;
    fail(d, (Loc){0}, "%s: '%s' is not a number >= 0", name, text);
    return ERR_USAGE;
}

/* N, Ns (seconds), Nm or Nh. */
static Status take_period(Diag *d, const char *name, const char *text,
                          RunPeriod *out) {
    size_t n = strlen(text);
    char unit = n ? text[n - 1] : 0, number[32];
    int64_t count;
    *out = (RunPeriod){0};
    if (!unit || !strchr("smh", unit))
        return take_count(d, name, text, 1, &out->steps);
    snprintf(number, sizeof number, "%.*s", (int)n - 1, text);
    TRY(take_count(d, name, number, 1, &count));
    out->seconds = (double)count * (unit == 's' ? 1 : unit == 'm' ? 60 : 3600);
    return OK;
}

static bool has_period(RunPeriod p) { return p.steps || p.seconds > 0; }

typedef enum RunKind {
    RUN_FLAG,
    RUN_TEXT,
    RUN_FILE,
    RUN_COUNT,
    RUN_PERIOD,
    RUN_RATE,
    RUN_LIST,
    RUN_PAIRS
} RunKind;

static const struct RunOption {
    const char *name;
    RunKind kind;
    size_t field;
    int64_t least;    /* RUN_COUNT */
    const char *form; /* RUN_PAIRS: the required form of each value */
} run_options[] = {
#define RUN(flag, kind, field, least, value, preset, text)                     \
    {flag, RUN_##kind, offsetof(RunOptions, field), least, value},
#include "frontend/cli/options.def"
    {0},
};

static Status take_option(const struct RunOption *o, RunOptions *to, Diag *d,
                          const char *value) {
    void *field = (char *)to + o->field;
    RunList *list = field;
    switch (o->kind) {
    case RUN_FLAG: *(bool *)field = true; return OK;
    case RUN_TEXT:
    case RUN_FILE: *(const char **)field = value; return OK;
    case RUN_COUNT: return take_count(d, o->name, value, o->least, field);
    case RUN_PERIOD: return take_period(d, o->name, value, field);
    case RUN_RATE: return take_rate(d, o->name, value, field);
    case RUN_LIST:
    case RUN_PAIRS: break;
    }
    if (o->kind == RUN_PAIRS && !strchr(value, '=')) {
        fail(d, (Loc){0}, "%s: %s is needed, not '%s' (see ampc run --help)",
             o->name, o->form, value);
        return ERR_USAGE;
    }
    if (list->n == RUN_MAX_LIST) return run_usage(d, "too many times", o->name);
    list->at[list->n++] = value;
    return OK;
}

/* --eval, --fetch or --generate alone do not train. */
static bool asks_to_train(const RunOptions *o) {
    return o->steps >= 0 || o->epochs >= 0 ||
           (!o->eval && !o->fetch && !o->generate);
}

/* Refuses options that have no effect without training. */
static Status check_untrained(const RunOptions *o, Diag *d) {
    const struct {
        bool given;
        const char *name;
    } rows[] = {{o->shuffle, "--shuffle"},
                {has_period(o->save_every), "--save-every"},
                {o->patience, "--patience"},
                {o->hyper.n, "--hyper"},
                {o->plateau, "--reduce-on-plateau"},
                {o->update_ratios, "--update-ratios"},
                {o->noise_scale, "--noise-scale"},
                {o->save_best, "--save-best"},
                {o->best_by, "--best-by"},
                {o->eval_feed.n && !o->eval, "--eval-feed"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].given && !asks_to_train(o))
            return run_usage(
                d,
                "--eval, --fetch and --generate alone do not train "
                "(--epochs N does), so this has no effect:",
                rows[i].name);
    return OK;
}

static Status check_comm(const RunOptions *o, Diag *d) {
    static const char *const engines[] = {"mpi", "nccl", "tcp"};
    for (size_t i = 0; o->comm && i < sizeof engines / sizeof *engines; i++)
        if (!strcmp(o->comm, engines[i])) return OK;
    return o->comm ? run_usage(d, "--comm is mpi, nccl or tcp, not", o->comm)
                   : OK;
}

static Status sample_check(Diag *d, const char *text) {
    Arena *a = arena_new();
    Sampling s;
    Status st = sampling_read(a, d, text, &s);
    arena_free(a);
    return st;
}

static Status check_options(const RunOptions *o, Diag *d) {
    if (!o->module)
        return run_usage(d, "a module is missing after", "ampc run");
    if (o->steps >= 0 && o->epochs >= 0)
        return run_usage(d, "give --steps or --epochs, not both", "--epochs");
    if (o->resume && !o->save)
        return run_usage(
            d, "--resume needs the checkpoint to go on from:", "--save");
    if (o->auto_resume && !o->save)
        return run_usage(
            d, "--auto-resume needs the checkpoint to go on from:", "--save");
    if (o->resume && o->load.n)
        return run_usage(
            d, "--resume restores everything and cannot be combined with",
            "--load");
    if (o->load_map.n && !o->load.n)
        return run_usage(d, "--load-map renames the tensors of", "--load");
    if (has_period(o->save_every) && !o->save)
        return run_usage(d, "--save-every needs a file:", "--save");
    if (o->keep && !has_period(o->save_every))
        return run_usage(d,
                         "--keep needs checkpoints to keep:", "--save-every");
    if (o->patience && !o->eval_feed.n)
        return run_usage(d,
                         "--patience needs data to evaluate:", "--eval-feed");
    if (o->plateau && !o->eval_feed.n)
        return run_usage(
            d, "--reduce-on-plateau needs data to evaluate:", "--eval-feed");
    if (o->generate && o->feed.n && !o->eval && !o->fetch && !asks_to_train(o))
        return run_usage(d, "--generate alone reads no data:", "--feed");
    if (o->sample && !o->generate)
        return run_usage(d, "--sample says how to generate:", "--generate");
    TRY(sample_check(d, o->sample));
    TRY(plateau_check(d, o->plateau));
    if (o->save_best && !o->eval_feed.n)
        return run_usage(d,
                         "--save-best needs data to evaluate:", "--eval-feed");
    TRY(metric_options(d, o));
    TRY(augment_check(d, &o->augment));
    if (o->threads > 1024) return run_usage(d, "at most 1024:", "--threads");
    if (o->deadline > 1000000000)
        return run_usage(d, "too long:", "--deadline");
    if (o->max_skipped > INT32_MAX)
        return run_usage(d, "too many:", "--max-skipped");
    TRY(check_comm(o, d));
    TRY(devices_check(o, d));
    return check_untrained(o, d);
}

void run_options_init(RunOptions *o) {
    *o = (RunOptions){.steps = -1, .epochs = -1, .lr = NAN, .spikes = 6};
}

Status run_arg(RunOptions *o, Diag *d, char **argv, int left, int *used) {
    const struct RunOption *row = run_options;
    *used = 0;
    while (row->name && strcmp(row->name, argv[0])) row++;
    if (!row->name) return OK;
    *used = row->kind == RUN_FLAG ? 1 : 2;
    if (*used > left) return run_usage(d, "a value is missing after", argv[0]);
    return take_option(row, o, d, argv[*used - 1]);
}

const char *(*run_hint)(const char *name);

static Status unknown_option(Diag *d, const char *arg) {
    char text[NEAR_TEXT];
    const char *hint = run_hint ? run_hint(arg) : NULL;
    if (hint) {
        fail(d, (Loc){0},
             "%s: is fixed when the model is compiled: ampc MODEL -o OUT.so %s",
             arg, hint);
        return ERR_USAGE;
    }
    Near near = near_to(arg);
    for (const struct RunOption *o = run_options; o->name; o++)
        near_offer(&near, o->name);
    fail(d, (Loc){0}, "unknown option '%s'%s (see ampc run --help)", arg,
         near_text(&near, text));
    return ERR_USAGE;
}

static Status unexpected(Diag *d, const char *arg, const char *before) {
    if (before[0] != '-') return run_usage(d, "unexpected argument", arg);
    fail(d, (Loc){0}, "%s takes no value, '%s' was given%s", before, arg,
         strcmp(before, "--resume") ? ""
                                    : ": the checkpoint is that of --save");
    return ERR_USAGE;
}

static Status parse_args(RunOptions *o, Diag *d, int argc, char **argv) {
    run_options_init(o);
    for (int i = 1, used; i < argc; i += used) {
        used = 1;
        if (argv[i][0] == '-') {
            TRY(run_arg(o, d, argv + i, argc - i, &used));
            if (!used) return unknown_option(d, argv[i]);
        } else if (o->module) {
            return unexpected(d, argv[i], argv[i - 1]);
        } else {
            o->module = argv[i];
        }
    }
    TRY(check_options(o, d));
    if (o->auto_resume && run_can_resume(o)) {
        o->resume = true;
        o->load.n = 0; /* the checkpoint has these weights, trained further */
    }
    return OK;
}

/* ---- opening ------------------------------------------------------------- */

/* True if this machine has not printed the note before. Also true if there
   is no folder in which to remember it. */
static bool first_time(const char *mark) {
    char path[1024];
    if (!cache_folder(path, sizeof path)) return true;
    strcat(strcat(path, "/"), mark);
    if (!cache_folders_make(path)) return true;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0 || errno != EEXIST;
}

/* Logs the device in use, and why another is not used. */
static void take_note(void *ctx, const char *line) {
    Run *r = ctx;
    bool missing = !strncmp(line, "no GPU", 6);
    if (!missing) snprintf(r->device, sizeof r->device, "%s", line);
    if (r->opt->quiet) return;
    if (!missing || first_time("no-gpu-was-told")) log_note(r, "%s", line);
}

static void ask_device(Run *r) {
    ampc_device_info d = {.size = sizeof d};
    const ampc_api *api = r->api;
    if (api->size < offsetof(ampc_api, device) + sizeof api->device) return;
    if (api->device(r->s, &d) == AMPC_OK && strcmp(d.kind, "cuda") == 0)
        r->gpu = d.name;
}

Status run_session(Run *r) {
    char err[1024];
    if (!r->api) TRY(run_open_code(r));
    r->info = (ampc_module_info){.size = sizeof r->info};
    r->api->describe(r->api->module, &r->info);
    TRY(ranks_open(r));
    ampc_options o = {.size = sizeof o,
                      .device = r->opt->device,
                      .threads = (int32_t)r->opt->threads,
                      .log = r->rank ? NULL : take_note,
                      .log_ctx = r,
                      .comm = r->comm,
                      .max_skipped = (int32_t)r->opt->max_skipped};
    if (r->api->open(r->api->module, &o, &r->s, err, sizeof err) != AMPC_OK)
        return fail(&r->diag, (Loc){.file = r->opt->module}, "%s", err);
    run_print_notice(r);
    ask_device(r);
    return OK;
}

/* Clears the settings that an earlier run made in the module. */
static Status choose_averages(Run *r) {
    double now;
    if (r->api->get_hyper(r->s, "averaged", &now) != AMPC_OK)
        return r->opt->averaged
                   ? fail(&r->diag, (Loc){.file = r->opt->module},
                          "--averaged: compiled without an average (ampc --ema "
                          "or --swa)")
                   : OK;
    return r->api->set_hyper(r->s, "averaged", r->opt->averaged) == AMPC_OK
               ? OK
               : run_api_fail(r, "--averaged");
}

Status run_load(Run *r) {
    const RunOptions *o = r->opt;
    TRY(choose_averages(r));
    TRY(run_check_adapters(r));
    ampc_weights from = {.size = sizeof from,
                         .paths = o->load.at,
                         .npath = (size_t)o->load.n,
                         .renames = o->load_map.at,
                         .nrename = (size_t)o->load_map.n,
                         .partial = 1};
    if (o->load.n && r->api->load_weights(r->s, &from) != AMPC_OK)
        return run_api_fail(r, "--load");
    if (o->resume) TRY(run_resume(r));
    if (o->auto_resume && !o->resume && !o->quiet && !r->rank)
        log_note(r, "--auto-resume: %s does not exist: starting at step 1",
                 o->save);
    run_print_notice(r);
    if (o->resume) TRY(choose_averages(r));
    for (uint32_t i = 0; !isnan(o->lr) && (i == 0 || run_objective(r, i));
         i++) {
        TRY(run_choose(r, i));
        if (r->api->set_hyper(r->s, "lr", o->lr) != AMPC_OK)
            return run_api_fail(r, "--lr");
    }
    return run_choose(r, 0);
}

/* ---- order of work ------------------------------------------------------- */

typedef struct Work {
    bool train, eval, predict;
} Work;

static Status plan_work(Run *r, Work *w) {
    const RunOptions *o = r->opt;
    w->train = asks_to_train(o);
    w->eval = o->eval;
    w->predict = o->fetch && !o->eval;
    if (w->train && !r->info.trains)
        return fail(&r->diag, (Loc){.file = o->module},
                    "compiled without a loss: it cannot train (--fetch DIR "
                    "predicts)");
    if ((w->eval || o->eval_feed.n) && !r->info.evaluates)
        return fail(&r->diag, (Loc){.file = o->module},
                    "compiled without a loss: it cannot evaluate");
    if ((w->predict || o->generate) && !r->info.predicts)
        return fail(&r->diag, (Loc){.file = o->module}, "it cannot predict");
    return run_claim(r);
}

static Status claim_files(Run *r) {
    const RunOptions *o = r->opt;
    StrBuf prev = {0}, best = {0}; /* paths of previous checkpoints */
    if (o->save) sb_printf(&prev, "%s.prev", o->save);
    if (o->save_best) sb_printf(&best, "%s.prev", o->save_best);
    const struct {
        const char *path, *role;
    } outputs[] = {{o->save, "--save"},
                   {prev.data, "--save"},
                   {o->save_best, "--save-best"},
                   {best.data, "--save-best"},
                   {o->save_weights, "--save-weights"}};
    Status st = OK;
    for (int i = 0; i < o->load.n && st == OK; i++)
        st = file_reads(&r->diag, r->guard, o->load.at[i], "--load");
    if (st == OK) st = file_reads(&r->diag, r->guard, o->module, "the module");
    if (st == OK && o->vocabulary)
        st = file_reads(&r->diag, r->guard, o->vocabulary, "--vocabulary");
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs && st == OK; i++)
        st = file_writes(&r->diag, r->guard, outputs[i].path, outputs[i].role);
    sb_free(&prev);
    sb_free(&best);
    return st;
}

/* Each set of samples may feed only some of the inputs. */
static Status open_augment(Run *r, const Work *w, FeedSet *predict) {
    const RunList *specs = &r->opt->augment;
    const FeedSet *known = w->train ? &r->train : NULL;
    int64_t seed = r->info.seed;
    for (uint32_t i = 0; w->train && i <= r->nother; i++)
        TRY(augment_open(&r->diag, specs, i ? &r->train : &r->eval, true, seed,
                         i ? &r->others[i - 1] : &r->train));
    if (r->eval.n)
        TRY(augment_open(&r->diag, specs, known, false, seed, &r->eval));
    if (w->predict)
        TRY(augment_open(&r->diag, specs, known ? known : &r->eval, false, seed,
                         predict));
    return OK;
}

/* All data are opened before any work begins, so that a mistake shows at once.
 */
static Status open_feeds(Run *r, const Work *w, FeedSet *predict) {
    const RunOptions *o = r->opt;
    const FeedHow how = {NULL, &r->classes, o->vocabulary},
                  as_trained = {w->train ? &r->train : NULL, &r->classes,
                                o->vocabulary};
    ProgramKind train = r->info.accumulate == 1 ? PROGRAM_TRAIN : PROGRAM_MICRO;
    while (run_objective(r, r->nother + 1)) r->nother++;
    r->others = calloc(r->nother + 1, sizeof *r->others);
    if (!r->others) return fail(&r->diag, (Loc){0}, "out of memory");
    for (uint32_t i = 0; w->train && i <= r->nother; i++) {
        const char *name = run_objective(r, i);
        FeedSet *fs = i ? &r->others[i - 1] : &r->train;
        TRY(feeds_open_sizes(&r->diag, r->guard, r->api,
                             program_name(train, intern(name)), &o->feed, &how,
                             fs));
        if (fs->samples != r->train.samples)
            return fail(&r->diag, (Loc){0},
                        "objective %s is fed %lld samples, %s %lld", name,
                        (long long)fs->samples, run_objective(r, 0),
                        (long long)r->train.samples);
    }
    if (o->eval_feed.n)
        TRY(feeds_open_sizes(&r->diag, r->guard, r->api, "eval", &o->eval_feed,
                             &as_trained, &r->eval));
    else if (w->eval)
        TRY(feeds_open_sizes(&r->diag, r->guard, r->api, "eval", &o->feed, &how,
                             &r->eval));
    if (w->predict)
        TRY(feeds_open_sizes(&r->diag, r->guard, r->api, "predict", &o->feed,
                             &how, predict));
    TRY(open_augment(r, w, predict));
    predict->whole = true; /* outputs of all batches have one shape */
    r->eval.whole = o->metric.n || (o->fetch && !w->predict);
    TRY(metrics_open(r));
    if (!o->fetch || r->rank) return OK;
    const FeedSet *fetched = w->predict ? predict : &r->eval;
    return fetch_open(r, feed_program(fetched), fetched->samples);
}

static void tell_data(Run *r, const FeedSet *predict) {
    StrBuf all = {0};
    run_tell_data(r, (const FeedSet *[]){&r->train, &r->eval, predict}, 3,
                  &all);
    if (all.len && !r->opt->quiet && !r->rank)
        log_note(r, "%.*s", (int)all.len - 1, all.data);
    sb_free(&all);
}

static Status save_weights(Run *r) {
    leave_hold(); /* as in run_save */
    ampc_status status = r->api->save_weights(r->s, r->opt->save_weights);
    leave_release();
    return status == AMPC_OK ? OK : run_api_fail(r, "--save-weights");
}

static Status generate_text(Run *r) {
    StrBuf told = {0};
    if (r->rank) return OK;
    Status st = generate(&r->diag, r->api, r->s, r->opt->generate,
                         r->opt->vocabulary, r->opt->sample, stdout, &told);
    if (st == OK) log_note(r, "%s", told.data);
    sb_free(&told);
    return st;
}

static Status do_work(Run *r, const Work *w, FeedSet *predict) {
    if (r->opt->resume) run_cursor_read(r);
    if (w->train) TRY(run_training(r));
    if (r->opt->save_weights) TRY(save_weights(r));
    leave_on_request(NULL); /* everything that a signal would lose is written */
    if (leave_requested()) return OK;
    if (w->eval) {
        ampc_eval e = {.size = sizeof e};
        TRY(run_evaluate(r, -1, &e));
    }
    if (w->predict) TRY(run_predict(r, predict));
    if (r->opt->generate) TRY(generate_text(r));
    return !w->train && r->opt->save ? run_save(r, r->opt->save) : OK;
}

/* Printed when a signal asks the run to end; NULL: the signal ends the run
   at once. */
static void await_signals(const Run *r) {
    const RunOptions *o = r->opt;
    StrBuf sb = {0};
    if (!run_may_stop(r) || !asks_to_train(o)) return;
    sb_printf(&sb,
              "a signal: the step ends, then %s is written; a second one ends "
              "the run at once",
              o->save ? o->save : o->save_weights);
    leave_on_request(r->rank ? "" : sb.data);
    sb_free(&sb);
}

/* Prints how to continue a run that a signal has ended. */
static void tell_stopped(const Run *r) {
    const RunOptions *o = r->opt;
    ampc_scaler sc = {.size = sizeof sc};
    if (r->rank || !leave_requested() || r->api->scaler(r->s, &sc)) return;
    fprintf(stderr, "ended by %s after step %lld%s: %s is written%s\n",
            leave_requested() == SIGINT   ? "SIGINT"
            : leave_requested() == SIGHUP ? "SIGHUP"
                                          : "SIGTERM",
            (long long)sc.tried, r->stopped ? "" : ", the last",
            o->save ? o->save : o->save_weights,
            !o->save || !r->stopped ? ""
            : o->resume             ? "; the same command goes on"
                        : "; the same command with --resume goes on");
}

static Status run_all(Run *r, FeedSet *predict) {
    Work w;
    r->guard = file_guard_new();
    if (!r->guard) return fail(&r->diag, (Loc){0}, "out of memory");
    TRY(claim_files(r));
    await_signals(r);
    TRY(run_session(r));
    await_signals(r); /* by rank 0 alone */
    TRY(plan_work(r, &w));
    TRY(run_classes_read(r, w.train));
    TRY(open_feeds(r, &w, predict));
    TRY(ranks_agree(r));
    tell_data(r, predict);
    TRY(run_load(r));
    TRY(log_open(r));
    TRY(do_work(r, &w, predict));
    TRY(log_close(r));
    tell_stopped(r);
    return OK;
}

int run_cmd(int argc, char **argv, const ampc_api *api) {
    RunOptions o;
    FeedSet predict = {.n = 0};
    Run r = {.opt = &o,
             .api = api,
             .world = 1,
             .at = {.best = INFINITY, .plateau_best = INFINITY}};
    Status st = parse_args(&o, &r.diag, argc, argv);
    if (st == OK)
        st = o.devices ? devices_run(&o, &r.diag, argc, argv)
                       : run_all(&r, &predict);
    log_abort(&r);
    fetch_abort(&r);
    feeds_free(&r.train);
    for (uint32_t i = 0; r.others && i < r.nother; i++)
        feeds_free(&r.others[i]);
    free(r.others);
    feeds_free(&r.eval);
    feeds_free(&predict);
    free(r.order);
    free(r.size_of);
    free(r.sorted);
    free(r.underflow.of);
    run_classes_free(&r);
    metrics_close(&r);
    watch_close(&r);
    file_guard_free(r.guard);
    if (r.s) r.api->close(r.s);
    st = ranks_close(&r, st);
    if (r.lib) dlclose(r.lib);
    if (r.diag.text.data && r.comm) fprintf(stderr, "rank %d: ", r.rank);
    if (r.diag.text.data) fputs(r.diag.text.data, stderr);
    sb_free(&r.diag.text);
    if (st == OK) leave_as_requested();
    return (int)st;
}
