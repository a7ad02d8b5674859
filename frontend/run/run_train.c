/* SPDX-License-Identifier: Apache-2.0 */
/* run_train.c: training, evaluation and prediction over fed files.

   The position in the data is (epoch, samples of the epoch already used for
   training). Together with the seed it determines the next samples, so that
   a resumed run continues as if it had not stopped, also with another number
   of ranks. In each step all ranks take equally many micro-batches, in turn:
   together the same ones that a single rank would take. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/base/leave.h"
#include "runtime/program/draw.h"

/* ---- order of samples ---------------------------------------------------- */

/* A permutation that depends only on the seed and the epoch. */
static void shuffle(int64_t *order, int64_t n, int64_t seed, int64_t epoch) {
    uint64_t state = (uint64_t)seed * 0xd1342543de82ef95u + (uint64_t)epoch;
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t bound = (uint64_t)i + 1;
        uint64_t limit = UINT64_MAX - UINT64_MAX % bound, x;
        do x = draw_next(&state);
        while (x >= limit);
        int64_t j = (int64_t)(x % bound), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
}

/* ---- the cursor ---------------------------------------------------------- */

/* ,"KEY":"TEXT", or nothing for NULL. */
static void put_said(StrBuf *sb, const char *key, const char *text) {
    if (!text) return;
    sb_puts(sb, ",");
    sb_put_json_field(sb, key, text);
}

/* All texts of --augment; NULL: none. For free(). */
static char *augment_text(const Run *r) {
    StrBuf all = {0};
    for (int i = 0; i < r->opt->augment.n; i++)
        sb_printf(&all, "%s%s", i ? " " : "", r->opt->augment.at[i]);
    return all.data;
}

static Status cursor_write(Run *r) {
    StrBuf sb = {0};
    char *augment = augment_text(r);
    sb_printf(&sb,
              "{\"epoch\":%" PRId64 ",\"done\":%" PRId64 ",\"samples\":%" PRId64
              ",\"best\":",
              r->at.epoch, r->at.done, r->at.samples);
    if (isfinite(r->at.best))
        sb_printf(&sb, "%.17g,\"stale\":%" PRId64, r->at.best, r->at.stale);
    else
        sb_puts(&sb, "null");
    if (isfinite(r->at.plateau_best))
        sb_printf(&sb, ",\"plateau\":%.17g,\"bad\":%" PRId64,
                  r->at.plateau_best, r->at.plateau_bad);
    put_said(&sb, "by", r->opt->best_by);
    put_said(&sb, "augment", augment);
    sb_puts(&sb, r->at.due ? ",\"due\":1}" : "}");
    ampc_status status = r->api->set_cursor(r->s, sb.data);
    free(augment);
    sb_free(&sb);
    return status == AMPC_OK ? OK : run_api_fail(r, "cursor");
}

/* True if the checkpoint was made with the same text for that key. */
static bool said_same(const char *cursor, const char *key, const char *text) {
    char begin[40];
    StrBuf want = {0};
    snprintf(begin, sizeof begin, ",\"%s\":\"", key);
    const char *found = strstr(cursor, begin);
    if (!text) return !found;
    put_said(&want, key, text);
    bool same = found && !strncmp(found, want.data, want.len);
    sb_free(&want);
    return same;
}

static void check_augment(Run *r, const char *cursor) {
    char *augment = augment_text(r);
    if (!said_same(cursor, "augment", augment))
        log_note(r, "--augment differs from the checkpoint's: from here on "
                    "samples are changed in another way than before");
    free(augment);
}

void run_cursor_read(Run *r) {
    RunCursor c = {.best = INFINITY, .plateau_best = INFINITY};
    const char *text = r->api->get_cursor(r->s);
    int n = sscanf(text,
                   "{\"epoch\":%" SCNd64 ",\"done\":%" SCNd64
                   ",\"samples\":%" SCNd64 ",\"best\":%lf,\"stale\":%" SCNd64,
                   &c.epoch, &c.done, &c.samples, &c.best, &c.stale);
    if (n < 3 || c.epoch < 0 || c.done < 0 || c.done > c.samples) {
        log_note(r, "the checkpoint has no position in the data: starting at "
                    "the first sample");
        return;
    }
    c.due = strstr(text, "\"due\":1") != NULL;
    if (isfinite(c.best) && !said_same(text, "by", r->opt->best_by)) {
        log_note(r, "--best-by differs from the checkpoint's: the search for "
                    "the best epoch begins anew");
        c.best = INFINITY;
        c.stale = 0;
    }
    if (r->train.n) check_augment(r, text);
    const char *plateau = strstr(text, "\"plateau\":");
    if (plateau && sscanf(plateau, "\"plateau\":%lf,\"bad\":%" SCNd64,
                          &c.plateau_best, &c.plateau_bad) != 2)
        c.plateau_best = INFINITY;
    if (r->train.n && c.samples != r->train.samples) {
        log_note(r,
                 "the checkpoint was made with %lld samples, not %lld: "
                 "starting at the beginning of epoch %lld",
                 (long long)c.samples, (long long)r->train.samples,
                 (long long)c.epoch + 1);
        c.done = 0;
        c.samples = r->train.samples;
    }
    r->at = c;
}

Status run_save(Run *r, const char *path) {
    if (r->train.n) TRY(cursor_write(r));
    leave_hold(); /* an interruption waits until the file is complete */
    ampc_status status = r->api->save(r->s, path);
    leave_release();
    return status == AMPC_OK ? OK : run_api_fail(r, "--save");
}

/* ---- data that must not train -------------------------------------------- */

/* A batch of samples of `fs`, from order[first] on. */
typedef struct Batch {
    const FeedSet *fs;
    const int64_t *order; /* NULL: in the file's order */
    int64_t first;
} Batch;

/* The file that fed an input with samples, and the file with element
   `index`; NULL if there is none. */
static const Feed *find_sample(const Batch *b, const char *input, int64_t index,
                               int64_t *sample) {
    for (int i = 0; i < b->fs->n; i++) {
        const Feed *f = &b->fs->feed[i];
        if (strcmp(f->want.name, input) != 0 || f->per <= 0) continue;
        int64_t at = b->first + index / f->per;
        *sample = b->order ? b->order[at] : at;
        return f;
    }
    return NULL;
}

static Status bad_data_fail(Run *r, const Batch *batch, const char *what) {
    ampc_bad_data b = {.size = sizeof b};
    int64_t sample;
    StrBuf why = {0};
    sb_puts(&why, r->api->error(r->s));
    bool told = r->api->bad_data(r->s, &b) == AMPC_OK && *b.input;
    if (!told) fail(&r->diag, (Loc){0}, "%s: %s", what, why.data);
    sb_free(&why);
    if (!told) return ERR_USER; /* the sample is another rank's */
    const Feed *f = find_sample(batch, b.input, b.index, &sample);
    if (f)
        return fail(&r->diag, (Loc){.file = intern(f->file)},
                    "sample %lld (from 0) has %lld; input '%s' takes %lld to "
                    "%lld",
                    (long long)sample, (long long)b.value, b.input,
                    (long long)b.least, (long long)b.most);
    return fail(&r->diag, (Loc){0}, "%s: %lld in '%s' is outside %lld..%lld",
                what, (long long)b.value, b.input, (long long)b.least,
                (long long)b.most);
}

static Status diverged_fail(Run *r, const Batch *batch, const char *what) {
    ampc_nonfinite x = {.size = sizeof x};
    int64_t sample;
    Status st = run_api_fail(r, what);
    if (r->api->nonfinite(r->s, &x) != AMPC_OK || x.origin != AMPC_ORIGIN_INPUT)
        return st;
    const Feed *f = find_sample(batch, x.name, x.index, &sample);
    if (!f) return st;
    return fail(&r->diag, (Loc){.file = intern(f->file)},
                "sample %lld (from 0) has %g", (long long)sample, x.value);
}

/* A batch failed: if a number in it is the cause, the message names file and
   sample. */
static Status batch_fail(Run *r, Batch b, ampc_status status,
                         const char *what) {
    if (status == AMPC_ERR_DATA) return bad_data_fail(r, &b, what);
    if (status == AMPC_ERR_DIVERGED) return diverged_fail(r, &b, what);
    return run_api_fail(r, what);
}

/* ---- one step ------------------------------------------------------------ */

/* The number of an epoch's samples that train. An incomplete batch is filled
   up if the module can mask samples. Otherwise only whole batches train, and
   all ranks take equally many, since they may sum statistics. */
static int64_t trained_samples(const Run *r) {
    int64_t n = r->train.samples;
    if (r->info.parts) return n;
    return n - n % (r->world > 1 ? run_step_samples(r) : r->info.batch);
}

static int64_t steps_for(const Run *r, int64_t samples) {
    int64_t need = run_step_samples(r);
    return need > 0 ? (samples + need - 1) / need : 0;
}

/* ---- an epoch ------------------------------------------------------------ */

/* --sort-by-length: the samples of a step have one size, as far as they can;
   with --shuffle whole steps are in another order in each epoch. A step that
   is not full stays the last one. */
static void group_by_size(Run *r) {
    int64_t n = trained_samples(r), need = run_step_samples(r), at = 0;
    int64_t whole = r->opt->shuffle ? n / need : 0;
    int64_t *sorted = r->sorted, *step = sorted + r->train.samples;
    for (int k = 0; k < feed_sizes_count(&r->train); k++)
        for (int64_t i = 0; i < n; i++)
            if (r->size_of[r->order[i]] == k) sorted[at++] = r->order[i];
    shuffle(step, whole, r->info.seed + 1, r->at.epoch);
    for (int64_t i = 0; i < whole; i++)
        memcpy(r->order + i * need, sorted + step[i] * need,
               (size_t)need * sizeof *sorted);
    memcpy(r->order + whole * need, sorted + whole * need,
           (size_t)(n - whole * need) * sizeof *sorted);
}

static void begin_epoch(Run *r) {
    int64_t n = r->train.samples;
    if (r->opt->shuffle) shuffle(r->order, n, r->info.seed, r->at.epoch);
    for (int64_t i = 0; i < n && r->order && !r->opt->shuffle; i++)
        r->order[i] = i;
    if (r->size_of) group_by_size(r);
}

/* The size of each sample, for --sort-by-length. */
static Status find_sizes(Run *r) {
    int64_t n = r->train.samples, count[64] = {0};
    int sizes = feed_sizes_count(&r->train), size;
    StrBuf told = {0};
    if (sizes == 1)
        return fail(&r->diag, (Loc){0},
                    "--sort-by-length: the module has one size; ampc --dim "
                    "NAME=N|N compiles it for several");
    r->size_of = malloc((size_t)n);
    r->sorted = malloc(2 * (size_t)n * sizeof *r->sorted);
    if (!r->size_of || !r->sorted)
        return fail(&r->diag, (Loc){0}, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        TRY(feeds_size(&r->diag, &r->train, i, &size));
        r->size_of[i] = (unsigned char)size;
        count[size]++;
    }
    for (int k = 0; k < sizes; k++)
        sb_printf(&told, "%s%lld", k ? ", " : "", (long long)count[k]);
    log_note(r, "--sort-by-length: samples by size, from the smallest on: %s",
             told.data);
    sb_free(&told);
    return OK;
}

/* The n samples from `first` on; n = 0: the inputs without samples. */
static Status fill_part(Run *r, FeedSet *fs, int64_t first, int64_t n) {
    TRY(feeds_fill(&r->diag, fs, r->order, n ? first : 0, n ? n : 1));
    feeds_keep(fs, n);
    return OK;
}

static Status step_objective(Run *r, uint32_t i, ampc_metrics *m) {
    int64_t n = r->info.accumulate, batch = r->info.batch;
    FeedSet *fs = i ? &r->others[i - 1] : &r->train;
    double begin = now_seconds();
    TRY(run_choose(r, i));
    if (i == 0) TRY(watch_before(r));
    for (int64_t k = 0; k < n; k++) {
        int64_t first = r->at.done + (r->rank * n + k) * batch;
        int64_t left = trained_samples(r) - first;
        left = left < 0 ? 0 : left < batch ? left : batch;
        feeds_stage(fs, r->api, r->s);
        fs->epoch = r->at.epoch;
        TRY(fill_part(r, fs, first, left));
        if (k == 0 && i == 0 && left == batch) TRY(run_underflow_look(r));
        ampc_status status = r->api->step(r->s, fs->in, (size_t)fs->n, m);
        if (status != AMPC_OK)
            return batch_fail(r, (Batch){fs, r->order, first}, status, "step");
        if (i == 0) TRY(watch_micro(r, k));
    }
    run_print_notice(r);
    log_step(r, i, m, (now_seconds() - begin) * 1e3);
    if (i) return OK;
    int64_t left = trained_samples(r) - r->at.done, all = run_step_samples(r);
    return watch_after(r, m, left < all ? left : all);
}

bool run_may_stop(const Run *r) { return r->opt->save || r->opt->save_weights; }

/* The request of a signal, agreed among all ranks. */
static Status look_for_stop(Run *r) {
    double asked = leave_requested() != 0;
    if (!run_may_stop(r)) return OK;
    TRY(ranks_sum(r, &asked, 1, "step"));
    r->stopped = asked != 0;
    return OK;
}

static Status end_epoch(Run *r, int64_t epoch) {
    ampc_eval e = {.size = sizeof e};
    if (!r->eval.n || !r->opt->eval_feed.n) return OK;
    r->at.due = true;
    TRY(run_evaluate(r, epoch, &e));
    if (r->stopped) return OK;
    r->at.due = false;
    double loss = e.loss_num / e.loss_den;
    TRY(plateau_step(r, loss));
    r->at.stale++;
    bool higher;
    double score = metrics_best(r, loss, &higher);
    if (!(score < r->at.best)) return OK;
    r->at.best = score;
    r->at.stale = 0;
    r->log.best_epoch = epoch;
    r->log.best_step = r->log.step;
    return r->opt->save_best ? run_save(r, r->opt->save_best) : OK;
}

/* ---- checkpoints kept ---------------------------------------------------- */

/* The step of "NAME.step-STEP", or -1. */
static int64_t kept_step(const char *file, const char *name) {
    char *end;
    size_t n = strlen(name);
    if (strncmp(file, name, n) != 0 || strncmp(file + n, ".step-", 6) != 0 ||
        !file[n + 6] ||
        strspn(file + n + 6, "0123456789") != strlen(file + n + 6))
        return -1;
    errno = 0;
    long long step = strtoll(file + n + 6, &end, 10);
    return errno ? -1 : step;
}

/* The step of the oldest, or the newest, kept checkpoint up to step `last`;
   count: their number. */
static int64_t end_of_kept(const char *dir, const char *name, bool newest,
                           int64_t last, int64_t *count) {
    int64_t found = -1;
    DIR *d = opendir(dir);
    *count = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step = kept_step(e->d_name, name);
        if (step < 0 || step > last) continue;
        ++*count;
        if (found < 0 || (newest ? step > found : step < found)) found = step;
    }
    if (d) closedir(d);
    return found;
}

/* The folder of the checkpoint; returns the file's name in it. */
static const char *kept_beside(const char *save, StrBuf *dir) {
    const char *slash = strrchr(save, '/');
    sb_printf(dir, "%.*s", slash ? (int)(slash + 1 - save) : 2,
              slash ? save : "./");
    return slash ? slash + 1 : save;
}

Status run_resume(Run *r) {
    const char *save = r->opt->save;
    char why[1024];
    StrBuf dir = {0}, path = {0};
    int64_t count, step = INT64_MAX;
    bool done = r->api->resume(r->s, save) == AMPC_OK;
    snprintf(why, sizeof why, "%s", done ? "" : r->api->error(r->s));
    const char *name = kept_beside(save, &dir);
    while (!done && r->opt->keep && step > 0) {
        step = end_of_kept(dir.data, name, true, step - 1, &count);
        if (step < 0) break;
        path.len = 0;
        sb_printf(&path, "%s.step-%lld", save, (long long)step);
        done = r->api->resume(r->s, path.data) == AMPC_OK;
    }
    Status st = OK;
    if (!done)
        st = fail(&r->diag, (Loc){0}, "--resume: %s", why);
    else if (*why)
        fprintf(stderr, "%s; resumed from %s\n", why, path.data);
    sb_free(&dir);
    sb_free(&path);
    return st;
}

bool run_can_resume(const RunOptions *o) {
    StrBuf dir = {0}, prev = {0};
    int64_t count;
    const char *name = kept_beside(o->save, &dir);
    sb_printf(&prev, "%s.prev", o->save);
    bool found =
        access(o->save, F_OK) == 0 || access(prev.data, F_OK) == 0 ||
        (o->keep && end_of_kept(dir.data, name, true, INT64_MAX, &count) >= 0);
    sb_free(&dir);
    sb_free(&prev);
    return found;
}

static Status keep_failed(Run *r, const char *path) {
    return fail(&r->diag, (Loc){.file = intern(path)}, "--keep: %s",
                strerror(errno));
}

static bool copy_all(int from, OutFile *to) {
    char part[1 << 16];
    ssize_t n;
    while ((n = read(from, part, sizeof part)) > 0)
        if (!outfile_write(to, part, (uint64_t)n)) return false;
    return n == 0;
}

static Status copy_file(Run *r, const char *from, const char *path) {
    OutFile to;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return keep_failed(r, path);
    bool ok = outfile_open(&to, path, 0666, NULL, "--keep") &&
              copy_all(fd, &to) && outfile_commit(&to);
    Status st = ok        ? OK
                : *to.why ? file_failed(&r->diag, path, &to)
                          : keep_failed(r, path);
    outfile_abort(&to);
    close(fd);
    return st;
}

/* Gives the checkpoint a second name, or copies it if the file system has no
   hard links. */
static Status keep_as(Run *r, const char *save, const char *path) {
    if (unlink(path) != 0 && errno != ENOENT) return keep_failed(r, path);
    if (link(save, path) == 0) return OK;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS ||
        errno == EMLINK)
        return copy_file(r, save, path);
    return keep_failed(r, path);
}

/* Keeps a copy of the checkpoint just saved under its own name, and removes
   old ones. */
static Status keep_checkpoint(Run *r, int64_t step) {
    if (r->rank) return OK;
    const char *save = r->opt->save;
    StrBuf path = {0}, dir = {0};
    int64_t count;
    sb_printf(&path, "%s.step-%lld", save, (long long)step);
    const char *name = kept_beside(save, &dir);
    Status st = file_writes(&r->diag, r->guard, path.data, "--keep");
    if (st == OK) st = keep_as(r, save, path.data);
    while (st == OK) {
        int64_t old = end_of_kept(dir.data, name, false, step, &count);
        if (count <= r->opt->keep) break;
        path.len = 0;
        sb_printf(&path, "%s.step-%lld", save, (long long)old);
        if (unlink(path.data) != 0) break;
    }
    sb_free(&path);
    sb_free(&dir);
    return st;
}

/* ---- the loop ------------------------------------------------------------ */

/* The step or epoch at which to stop, counted from the start of training. If
   a resumed run is already past it, that many more are trained, unless a
   signal ended the run in its last evaluation. */
static int64_t goal(const Run *r, int64_t asked, int64_t made) {
    if (made < asked) return asked;
    return r->at.due ? made : made + asked;
}

/* Optimizer steps to do in this run. */
static Status plan_steps(Run *r, int64_t *steps) {
    ampc_scaler sc = {.size = sizeof sc};
    int64_t most = trained_samples(r), per_epoch = steps_for(r, most);
    if (per_epoch == 0)
        return fail(
            &r->diag, (Loc){0}, "%lld samples: one optimizer step needs %lld",
            (long long)r->train.samples,
            (long long)(r->world > 1 ? run_step_samples(r) : r->info.batch));
    if (r->at.done >= most) {
        r->at.epoch++; /* other ranks made the checkpoint: too few samples
                          are left */
        r->at.done = 0;
    }
    r->api->scaler(r->s, &sc);
    int64_t made = r->opt->resume ? sc.tried : 0;
    if (r->opt->steps >= 0) {
        *steps = goal(r, r->opt->steps, made) - made;
        return OK;
    }
    int64_t epochs = r->opt->epochs >= 0 ? r->opt->epochs : 1;
    if (r->opt->resume) epochs = goal(r, epochs, r->at.epoch);
    *steps = (epochs - r->at.epoch - 1) * per_epoch +
             steps_for(r, most - r->at.done);
    return OK;
}

/* * ends: evaluations have not improved for the time of --patience. */
static Status evaluate_epoch(Run *r, bool *ends) {
    TRY(end_epoch(r, r->at.epoch));
    if (!r->stopped) bar_epoch(r, r->at.epoch);
    *ends = !r->stopped && r->opt->patience && r->at.stale >= r->opt->patience;
    if (*ends)
        log_note(r, "%s has not %s for %lld epochs: stopped after epoch %lld",
                 r->opt->best_by ? r->opt->best_by : "the evaluation loss",
                 r->opt->best_by ? "improved" : "fallen",
                 (long long)r->at.stale, (long long)r->at.epoch);
    return OK;
}

/* Prints which samples do not fill a step. */
static void tell_left(Run *r) {
    long long need = run_step_samples(r), all = r->train.samples;
    long long lost = all - trained_samples(r), part = (all - lost) % need;
    if (part)
        log_note(
            r,
            "%lld samples are %lld step%s of %lld, which leaves %lld: the last "
            "step of every epoch trains them",
            all, (all - lost) / need, (all - lost) / need == 1 ? "" : "s", need,
            part);
    if (lost)
        log_note(
            r,
            "%lld samples, the last of every epoch, are not trained%s: a %s "
            "needs %lld, and rows that only fill it cannot be masked, "
            "because samples of this model affect each other (BatchNorm) "
            "or its loss does not add up over samples",
            lost,
            r->opt->shuffle ? ", others each time"
                            : " (--shuffle: others each time)",
            r->world > 1 ? "step" : "batch",
            r->world > 1 ? need : (long long)r->info.batch);
}

/* Prints the notes that a user should read before a long run, once. */
static void tell_plan(Run *r, int64_t steps) {
    int64_t here = steps_for(r, trained_samples(r) - r->at.done);
    ampc_scaler sc = {.size = sizeof sc};
    double total, last;
    if (steps >= here) tell_left(r);
    if (r->api->get_hyper(r->s, "total", &total) != AMPC_OK ||
        r->api->get_hyper(r->s, "min", &last) != AMPC_OK ||
        r->api->scaler(r->s, &sc) != AMPC_OK ||
        (double)(sc.step + steps) <= total)
        return;
    log_note(r,
             "the schedule ends after step %.0f (its total=): this run goes to "
             "step %lld, from there on with a learning rate of %g (--hyper "
             "total=100%% ends both together)",
             total, (long long)(sc.step + steps), last);
}

/* The epoch, counted from 1, in which the run is after that many further
   steps. */
static int64_t last_epoch(const Run *r, int64_t steps) {
    int64_t most = trained_samples(r), per_epoch = steps_for(r, most);
    int64_t later = steps - steps_for(r, most - r->at.done);
    return r->at.epoch + 1 +
           (later > 0 ? (later + per_epoch - 1) / per_epoch : 0);
}

/* True if --save-every asks for a checkpoint after a step: on all ranks as
   soon as one rank's time is up. */
static Status is_save_due(Run *r, int64_t tried, double *last, bool *due) {
    RunPeriod p = r->opt->save_every;
    *due = p.steps && tried % p.steps == 0;
    if (!(p.seconds > 0)) return OK;
    double over = now_seconds() - *last >= p.seconds;
    TRY(ranks_sum(r, &over, 1, "step"));
    *due = over != 0;
    if (*due) *last = now_seconds();
    return OK;
}

static Status train_loop(Run *r, int64_t steps) {
    ampc_metrics m = {.size = sizeof m};
    int64_t evaluated = -1;
    double saved = now_seconds();
    bool ends = false, due;
    begin_epoch(r);
    bar_begin(r, steps, r->at.epoch, last_epoch(r, steps));
    if (r->at.due) TRY(evaluate_epoch(r, &ends));
    for (int64_t done = 1; done <= steps && !ends; done++) {
        if (!r->stopped) TRY(look_for_stop(r));
        if (r->stopped) return OK;
        /* every objective in turn on the same samples */
        for (uint32_t i = 0; run_objective(r, i); i++)
            TRY(step_objective(r, i, &m));
        r->log.samples += run_step_samples(r);
        r->at.done += run_step_samples(r);
        if (r->at.done > trained_samples(r))
            r->log.samples -= r->at.done - trained_samples(r);
        TRY(run_choose(r, 0));
        bar_step(r, &m, done);
        if (r->at.done >= trained_samples(r)) {
            r->at.epoch++;
            r->at.done = 0;
            begin_epoch(r);
            TRY(evaluate_epoch(r, &ends));
            evaluated = done;
            if (ends || r->stopped) return OK;
        }
        TRY(is_save_due(r, m.tried, &saved, &due));
        if (due) {
            if (done < steps || r->opt->keep) TRY(run_save(r, r->opt->save));
            if (r->opt->keep) TRY(keep_checkpoint(r, m.tried));
        }
    }
    if (steps <= 0 || evaluated == steps || ends) return OK;
    TRY(end_epoch(r, r->at.epoch + 1));
    if (!r->stopped) bar_epoch(r, r->at.epoch + 1);
    return OK;
}

Status run_training(Run *r) {
    int64_t steps;
    r->at.samples = r->train.samples;
    TRY(plan_steps(r, &steps));
    if (r->opt->sort_by_length) TRY(find_sizes(r));
    if (r->opt->shuffle || r->size_of) {
        r->order = malloc((size_t)r->train.samples * sizeof *r->order);
        if (!r->order) return fail(&r->diag, (Loc){0}, "out of memory");
    }
    ampc_scaler sc = {.size = sizeof sc};
    if (r->api->scaler(r->s, &sc) != AMPC_OK) return run_api_fail(r, "step");
    TRY(hyper_apply(r, (RunLength){sc.step + steps,
                                   r->train.samples / run_step_samples(r)}));
    tell_plan(r, steps);
    TRY(run_underflow_open(r));
    TRY(watch_open(r));
    double begin = now_seconds();
    TRY(train_loop(r, steps));
    r->log.trained = now_seconds() - begin;
    run_underflow_close(r);
    return r->opt->save ? run_save(r, r->opt->save) : OK;
}

/* ---- evaluation and prediction ------------------------------------------- */

static int64_t valid_rows(const FeedSet *fs, int64_t first) {
    int64_t left = fs->samples - first;
    return left < fs->batch ? left : fs->batch;
}

/* Adds the sums of one batch. */
typedef struct EvalPart {
    double loss_num, loss_den, correct, count, inexact, top_k, correct_top;
} EvalPart;

static Status evaluate_batch(Run *r, FeedSet *fs, int64_t first, EvalPart *p) {
    ampc_eval e = {.size = sizeof e};
    int64_t n = valid_rows(fs, first);
    feeds_stage(fs, r->api, r->s);
    TRY(feeds_fill(&r->diag, fs, NULL, first, n));
    ampc_status status = r->api->evaluate(r->s, fs->in, (size_t)fs->n, n, &e);
    if (status != AMPC_OK)
        return batch_fail(r, (Batch){fs, NULL, first}, status, "evaluate");
    *p = (EvalPart){e.loss_num, e.loss_den, e.correct,    e.count,
                    !e.exact,   e.top_k,    e.correct_top};
    return OK;
}

/* Ranks evaluate batches in turn. If outputs are written, rank 0 runs all
   batches, and the others run as many. Sums are added in the order of
   batches, so that they do not depend on the number of ranks. */
static Status evaluate_parts(Run *r, FeedSet *fs, bool all, bool measured,
                             Fetch *f, EvalPart *part, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int64_t first = (int64_t)i * fs->batch;
        /* ranks that take turns cannot agree to stop here */
        r->stopped |=
            r->at.due && run_may_stop(r) && r->world == 1 && leave_requested();
        if (r->stopped) return OK;
        if (!all && (int64_t)i % r->world != r->rank) continue;
        TRY(evaluate_batch(r, fs, first, &part[i]));
        if (measured) TRY(metrics_batch(r, first, valid_rows(fs, first)));
        if (f) TRY(fetch_batch(r, f, valid_rows(fs, first)));
    }
    if (all) return OK;
    return ranks_sum(r, &part->loss_num, n * (sizeof *part / sizeof(double)),
                     "evaluate");
}

static Status evaluate_all(Run *r, FeedSet *fs, bool all, bool measured,
                           Fetch *f, ampc_eval *sums) {
    size_t n = (size_t)((fs->samples + fs->batch - 1) / fs->batch);
    EvalPart *part = calloc(n, sizeof *part);
    if (!part) return fail(&r->diag, (Loc){0}, "out of memory");
    if (measured) metrics_clear(r);
    Status st = evaluate_parts(r, fs, all, measured, f, part, n);
    if (st == OK && measured && !r->stopped) st = metrics_end(r, !all);
    sums->exact = 1;
    sums->samples = fs->samples;
    for (size_t i = 0; i < n; i++) {
        sums->loss_num += part[i].loss_num;
        sums->loss_den += part[i].loss_den;
        sums->correct += part[i].correct;
        sums->count += part[i].count;
        sums->correct_top += part[i].correct_top;
        sums->top_k = (int32_t)part[i].top_k;
        if (part[i].inexact != 0) sums->exact = 0;
    }
    free(part);
    if (st == OK && !sums->exact && !r->stopped)
        log_note(r, "the model computes its own mean loss: the last, partial "
                    "batch is left out");
    return st;
}

/* Metrics are measured once, with the first objective. */
static Status evaluate_objective(Run *r, bool fetch, bool measured,
                                 ampc_eval *sums) {
    TRY(evaluate_all(r, &r->eval, fetch, measured, fetch ? r->fetch : NULL,
                     sums));
    return fetch ? fetch_close(r) : OK;
}

Status run_evaluate(Run *r, int64_t epoch, ampc_eval *first) {
    if (r->eval.batch <= 0) return fail(&r->diag, (Loc){0}, "no batch axis");
    for (uint32_t i = 0; run_objective(r, i); i++) {
        ampc_eval e = {.size = sizeof e};
        bool fetch = i == 0 && epoch < 0 && r->opt->fetch;
        TRY(run_choose(r, i));
        TRY(evaluate_objective(r, fetch, i == 0, &e));
        if (r->stopped) break;
        log_eval(r, i, epoch, &e);
        if (i == 0) *first = e;
    }
    return run_choose(r, 0);
}

static Status predict_all(Run *r, FeedSet *fs, Fetch *f) {
    for (int64_t i = 0; i < fs->samples; i += fs->batch) {
        int64_t n = valid_rows(fs, i);
        feeds_stage(fs, r->api, r->s);
        TRY(feeds_fill(&r->diag, fs, NULL, i, n));
        ampc_status status =
            r->api->predict(r->s, fs->in, (size_t)fs->n, n, NULL, 0);
        if (status != AMPC_OK)
            return batch_fail(r, (Batch){fs, NULL, i}, status, "predict");
        if (f) TRY(fetch_batch(r, f, n));
    }
    return OK;
}

Status run_predict(Run *r, FeedSet *fs) {
    if (fs->batch <= 0) return fail(&r->diag, (Loc){0}, "no batch axis");
    TRY(predict_all(r, fs, r->fetch));
    return fetch_close(r);
}
