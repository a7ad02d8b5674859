/* SPDX-License-Identifier: Apache-2.0 */
/* run_log.c: JSON lines. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"
#include "ir/base/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- JSON ---------------------------------------------------------------- */

/* The shortest text that reads back as the same float; null if not finite. */
static void put_f32(StrBuf *sb, double x) {
    char text[40];
    if (!isfinite(x)) {
        sb_puts(sb, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtof(text, NULL) == (float)x) break;
    }
    sb_puts(sb, text);
}

void log_number(StrBuf *sb, double x) {
    if (isfinite(x))
        sb_printf(sb, "%.9g", x);
    else
        sb_puts(sb, "null");
}

/* ---- open and close ------------------------------------------------------ */

/* A pipe without a reader does not open until there is one. */
static int open_stream(Run *r, const char *path) {
    enum { MODE = O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC };
    int fd = open(path, MODE | O_NONBLOCK);
    if (fd < 0 && errno == ENXIO) {
        log_note(r, "--log %s: waiting for a process that reads it", path);
        return open(path, MODE);
    }
    if (fd >= 0) fcntl(fd, F_SETFL, O_APPEND);
    return fd;
}

/* A log file is written directly, and extended after --resume. A device, a
   pipe or an open descriptor gets lines at once; a reader that closes it
   must not end the run. */
static Status open_lines(Run *r, const char *path) {
    static const char *const standard[] = {"/dev/stdin", "/dev/stdout",
                                           "/dev/stderr"};
    RunLog *log = &r->log;
    struct stat st;
    int fd = -1, number = -1, end = 0;
    for (int i = 1; i < 3; i++)
        if (!strcmp(path, standard[i])) number = i;
    if (sscanf(path, "/dev/fd/%d%n", &number, &end) == 1 && path[end])
        number = -1;
    bool stream = number >= 0 || (stat(path, &st) == 0 &&
                                  !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode));
    if (!stream) {
        if (outfile_append(&log->file, path, r->opt->resume, r->guard, "--log"))
            log->out = outfile_stream(&log->file);
        return log->out ? OK : file_failed(&r->diag, path, &log->file);
    }
    fd = number >= 0 ? fcntl(number, F_DUPFD_CLOEXEC, 3) : open_stream(r, path);
    log->out = log->stream = fd < 0 ? NULL : fdopen(fd, "a");
    if (!log->out)
        return fail(&r->diag, (Loc){.file = path}, "%s", strerror(errno));
    signal(SIGPIPE, SIG_IGN);
    return OK;
}

/* A terminal shows the bar instead of lines; launchers such as mpirun give
   each rank a terminal of its own, whose output they collect. */
static void open_standard(Run *r) {
    if (r->world > 1 || !isatty(STDOUT_FILENO)) r->log.out = stdout;
}

Status log_open(Run *r) {
    RunLog *log = &r->log;
    const char *path = r->opt->log;
    log->quiet = r->opt->quiet;
    log->terminal =
        r->world <= 1 && terminal_redraws(STDERR_FILENO) && !log->quiet;
    log->colour = terminal_colours(STDERR_FILENO);
    if (r->rank) {
        *log = (RunLog){.quiet = true, .silent = true};
        return OK;
    }
    if (path)
        TRY(open_lines(r, path));
    else
        open_standard(r);
    log->mixed = log->out && isatty(fileno(log->out));
    if (log->terminal || r->opt->report) log->curves = curves_new();
    if (r->opt->report && !log->curves)
        return fail(&r->diag, (Loc){0}, "out of memory");
    if (r->opt->tensorboard) TRY(events_open(r));
    if (r->opt->report) TRY(page_open(r));
    return r->opt->profile ? profile_open(r) : OK;
}

/* Lost lines are an error, but only after the work is done. */
static Status close_out(Run *r) {
    RunLog *log = &r->log;
    FILE *out = log->out;
    log->out = NULL;
    if (out == stdout) {
        if (fflush(out) == 0 && !log->lost) return OK;
        return fail(&r->diag, (Loc){0},
                    "standard output: lines of the log "
                    "could not be written");
    }
    if (out && out == log->stream) {
        log->stream = NULL;
        log->streamed = true;
        if (fclose(out) == 0 && !log->lost) return OK;
        return fail(&r->diag, (Loc){.file = r->opt->log},
                    "lines of the log could not be written");
    }
    return !out || outfile_commit(&log->file)
               ? OK
               : file_failed(&r->diag, r->opt->log, &log->file);
}

/* --quiet keeps the numbers of the summary. */
static void log_summary(Run *r, bool logged) {
    StrBuf sb = {0}, curve = {0};
    int width = terminal_columns(STDERR_FILENO) - 6;
    if (r->log.terminal)
        curves_line(r->log.curves, width < 60 ? width : 60, &curve);
    if (curve.len) log_note(r, "loss %s", curve.data);
    log_summary_text(r, logged, &sb);
    if (sb.len && !r->log.silent) fputs(sb.data, stderr);
    sb_free(&sb);
    sb_free(&curve);
}

Status log_close(Run *r) {
    bar_clear(&r->log);
    Status st = close_out(r);
    if (r->log.profile && st == OK) st = profile_close(r);
    if (r->log.events_out && st == OK) st = events_close(r);
    if (r->log.page.open && st == OK) st = page_close(r);
    log_summary(r, st == OK);
    log_abort(r);
    return st;
}

void log_abort(Run *r) {
    RunLog *log = &r->log;
    bar_clear(log);
    if (log->profile) r->api->profile(r->s, NULL, NULL);
    if (log->stream) fclose(log->stream);
    outfile_abort(&log->file);
    outfile_abort(&log->trace);
    outfile_abort(&log->events_file);
    outfile_abort(&log->page);
    free(log->events_path);
    free(log->curves);
    *log = (RunLog){.out = NULL};
}

/* ---- lines --------------------------------------------------------------- */

void log_line(Run *r, StrBuf *sb) {
    RunLog *log = &r->log;
    sb_puts(sb, "\n");
    if (log->mixed) bar_clear(log);
    if (log->out) { /* NULL: only rank 0 logs */
        log->lost |= fwrite(sb->data, 1, sb->len, log->out) != sb->len;
        log->lost |= fflush(log->out) != 0; /* for readers */
    }
    sb_free(sb);
}

void log_scalars(Run *r, int64_t step, const RunScalar *s, int n) {
    events_scalars(r, step, s, n);
    curves_add(r->log.curves, step, s, n);
}

/* Curves and the summary show the first objective. */
void log_step(Run *r, uint32_t objective, const ampc_metrics *m, double ms) {
    StrBuf sb = {0};
    const char *name = run_objective(r, objective);
    sb_printf(&sb, "{\"step\":%lld,", (long long)m->tried);
    if (*name) sb_printf(&sb, "\"objective\":\"%s\",", name);
    sb_puts(&sb, "\"loss\":");
    put_f32(&sb, m->loss);
    sb_puts(&sb, ",\"grad_norm\":");
    put_f32(&sb, m->grad_norm);
    sb_puts(&sb, ",\"scale\":");
    put_f32(&sb, m->scale);
    sb_printf(&sb, ",\"skipped\":%lld,\"skip_streak\":%lld,\"lr\":",
              (long long)m->skipped, (long long)m->skip_streak);
    put_f32(&sb, m->lr);
    sb_printf(&sb, ",\"ms\":%.4g}", ms);
    log_line(r, &sb);
    if (objective) return;
    const RunScalar scalars[] = {{"train/loss", m->loss},
                                 {"train/grad_norm", m->grad_norm},
                                 {"train/lr", m->lr},
                                 {"train/scale", m->scale},
                                 {"train/skipped", (double)m->skipped}};
    log_scalars(r, m->tried, scalars, 5);
    if (r->log.steps++ == 0) r->log.first_loss = m->loss;
    r->log.loss = m->loss;
    r->log.step = m->tried;
    r->log.skipped = m->skipped;
}

/* ,"metrics":{"f1":0.9} */
static void put_metrics(Run *r, StrBuf *sb) {
    for (int i = 0; metric_label(r, i); i++) {
        sb_puts(sb, i ? "," : ",\"metrics\":{");
        sb_put_json_string(sb, metric_label(r, i));
        sb_puts(sb, ":");
        log_number(sb, metric_last(r, i));
    }
    if (r->metrics) sb_puts(sb, "}");
}

void log_eval(Run *r, uint32_t objective, int64_t epoch, const ampc_eval *e) {
    StrBuf sb = {0};
    const char *name = run_objective(r, objective);
    double loss = e->loss_num / e->loss_den;
    double accuracy = e->count > 0 ? e->correct / e->count : NAN;
    double top = e->top_k ? e->correct_top / e->count : NAN;
    char *key = r->log.top_key;
    sb_puts(&sb, "{");
    if (epoch >= 0) sb_printf(&sb, "\"epoch\":%lld,", (long long)epoch);
    if (*name) sb_printf(&sb, "\"objective\":\"%s\",", name);
    sb_puts(&sb, "\"eval_loss\":");
    log_number(&sb, loss);
    sb_puts(&sb, ",\"accuracy\":");
    log_number(&sb, accuracy);
    if (e->top_k) {
        snprintf(key, sizeof r->log.top_key, "eval/accuracy_top%d", e->top_k);
        sb_printf(&sb, ",\"accuracy_top%d\":", e->top_k);
        log_number(&sb, top);
    }
    if (!objective) put_metrics(r, &sb);
    sb_printf(&sb, ",\"samples\":%lld}", (long long)e->samples);
    log_line(r, &sb);
    if (objective) return;
    const RunScalar scalars[] = {
        {"eval/loss", loss}, {"eval/accuracy", accuracy}, {key, top}};
    log_scalars(r, r->log.step, scalars,
                isfinite(top)        ? 3
                : isfinite(accuracy) ? 2
                                     : 1);
    for (int i = 0; metric_label(r, i); i++) {
        RunScalar one = {metric_tag(r, i), metric_last(r, i)};
        if (isfinite(one.value)) log_scalars(r, r->log.step, &one, 1);
    }
    r->log.evaluated = true;
    r->log.eval_loss = loss;
    r->log.accuracy = accuracy;
    r->log.accuracy_top = top;
    r->log.top_k = e->top_k;
}

void log_underflow(Run *r) {
    const RunUnderflow *u = &r->underflow;
    StrBuf sb = {0};
    if (!u->looks) return;
    sb_puts(&sb, "{\"underflow\":{");
    for (int i = 0; i < u->n; i++) {
        sb_puts(&sb, i ? "," : "");
        sb_put_json_string(&sb, u->of[i].parameter);
        sb_puts(&sb, ":");
        log_number(&sb, u->of[i].nonzero > 0
                            ? u->of[i].flushed / u->of[i].nonzero
                            : 0);
    }
    sb_puts(&sb, "}}");
    log_line(r, &sb);
}
