/* SPDX-License-Identifier: Apache-2.0 */
/* run_bar.c: what a person sees of a run: the bar, which is drawn over itself,
   and a line for each epoch.

   Both are made of pieces.  If a row of the terminal is too short for all,
   the piece with the highest rank is dropped first. The cursor rests at the
   beginning of the bar: if the window becomes narrower and the terminal
   breaks the bar into several rows, it is still on the first of them. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"
#include "ir/base/terminal.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { PIECES = 16, METRICS = 8, NARROW = 8, WIDE = 30, EPOCH_LINES = 20 };

typedef struct Piece {
    int rank; /* 0: stays */
    const char *colour;
    char text[80];
} Piece;

typedef struct Row {
    Piece piece[PIECES];
    int n;
} Row;

static void bar_add(Row *row, int rank, const char *colour, const char *fmt,
                    ...) {
    va_list ap;
    Piece *p = &row->piece[row->n++];
    p->rank = rank;
    p->colour = colour;
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
}

static int width_of(const Row *row) {
    int width = 0;
    for (int i = 0; i < row->n; i++)
        width += (int)strlen(row->piece[i].text) + (i ? 2 : 0);
    return width;
}

/* Drops pieces until the others fit. */
static void bar_fit(Row *row, int room) {
    while (width_of(row) > room) {
        int worst = 0;
        for (int i = 1; i < row->n; i++)
            if (row->piece[i].rank >= row->piece[worst].rank) worst = i;
        if (row->piece[worst].rank == 0) return;
        row->n--;
        memmove(&row->piece[worst], &row->piece[worst + 1],
                (size_t)(row->n - worst) * sizeof *row->piece);
    }
}

static void put_piece(const RunLog *log, const Piece *p, StrBuf *sb) {
    bool coloured = log->colour && *p->colour;
    if (coloured) sb_printf(sb, "\033[%sm", p->colour);
    sb_puts(sb, p->text);
    if (coloured) sb_puts(sb, "\033[0m");
}

static void put_bar_row(const RunLog *log, const Row *row, int from,
                        StrBuf *sb) {
    for (int i = from; i < row->n; i++) {
        if (i) sb_puts(sb, "  ");
        put_piece(log, &row->piece[i], sb);
    }
}

static void put_bar(const RunLog *log, int width, double part, StrBuf *sb) {
    int filled = (int)(width * part);
    Piece whole = {0, "32", ""}, rest = {0, "", ""};
    for (int i = 0; i < filled; i++) whole.text[i] = '=';
    for (int i = filled; i < width; i++)
        rest.text[i - filled] = i == filled ? '>' : ' ';
    sb_puts(sb, " [");
    put_piece(log, &whole, sb);
    sb_printf(sb, "%s]", rest.text);
}

/* 4:07 or 1:04:07 */
static char *put_clock(char text[UNIT_TEXT], double s) {
    long t = s < 0 || s > 1e8 ? 0 : (long)(s + 0.5);
    if (t >= 3600)
        snprintf(text, UNIT_TEXT, "%ld:%02ld:%02ld", t / 3600, t / 60 % 60,
                 t % 60);
    else
        snprintf(text, UNIT_TEXT, "%ld:%02ld", t / 60, t % 60);
    return text;
}

static void add_epoch(const RunLog *log, Row *row, int64_t epoch) {
    char last[24];
    int digits = snprintf(last, sizeof last, "%lld", (long long)log->epochs);
    bar_add(row, 0, "1", "epoch %*lld/%s", digits, (long long)epoch, last);
}

static double bar_mean_loss(const RunLog *log) {
    return log->loss_n ? log->loss_sum / (double)log->loss_n : NAN;
}

static void add_rate(const Run *r, Row *row, int rank, double steps,
                     double seconds) {
    char text[UNIT_TEXT];
    double samples = steps * (double)run_step_samples(r);
    if (steps > 0 && seconds > 0 && samples > 0)
        bar_add(row, rank, "", "%s samples/s",
                unit_count(text, samples / seconds));
}

/* ---- the bar ------------------------------------------------------------- */

void bar_begin(Run *r, int64_t steps, int64_t first, int64_t last) {
    RunLog *log = &r->log;
    log->goal = steps;
    log->first_epoch = first;
    log->epochs = last;
    log->begin = log->last = log->epoch_begin = now_seconds();
    log->first = -1;
}

static void bar_draw(Run *r, int64_t done, double now) {
    RunLog *log = &r->log;
    Row row = {.n = 0};
    char spent[UNIT_TEXT], left[UNIT_TEXT];
    int room = terminal_columns(STDERR_FILENO) - 1;
    double steps = (double)(done - 1 - log->first), took = now - log->begin;
    double pace = steps > 0 ? took / steps : 0;
    add_epoch(log, &row, r->at.epoch + 1);
    bar_add(&row, 1, "", "loss %.4g", bar_mean_loss(log));
    if (log->evaluated && isfinite(log->accuracy))
        bar_add(&row, 3, "36", "validation %.4g, accuracy %.4f", log->eval_loss,
                log->accuracy);
    else if (log->evaluated)
        bar_add(&row, 3, "36", "validation %.4g", log->eval_loss);
    if (log->best_epoch)
        bar_add(&row, 6, "32", "best: epoch %lld", (long long)log->best_epoch);
    add_rate(r, &row, 5, steps, took);
    put_clock(spent, took);
    put_clock(left, pace * (double)(log->goal - done));
    bar_add(&row, 4, "2", "%s spent", spent);
    bar_add(&row, 2, "", "%s left", left);
    bar_fit(&row, room - NARROW - 3);
    int width = room - width_of(&row) - 3;
    StrBuf sb = {0};
    sb_puts(&sb, "\r");
    put_piece(log, &row.piece[0], &sb);
    if (width >= NARROW)
        put_bar(log, width < WIDE ? width : WIDE,
                (double)done / (double)log->goal, &sb);
    put_bar_row(log, &row, 1, &sb);
    sb_puts(&sb, "\033[J\r");
    fwrite(sb.data, 1, sb.len, stderr);
    fflush(stderr);
    sb_free(&sb);
    log->bar = true;
    log->last = now;
}

void bar_step(Run *r, const ampc_metrics *m, int64_t done) {
    RunLog *log = &r->log;
    double now = now_seconds();
    if (log->first < 0) {
        log->first = done - 1;
        log->begin = now;
    }
    log->epoch_steps++;
    if (isfinite(m->loss)) {
        log->loss_sum += m->loss;
        log->loss_n++;
    }
    if (log->terminal && (now - log->last >= 0.1 || done >= log->goal))
        bar_draw(r, done, now);
}

/* ---- lines of epochs ----------------------------------------------------- */

/* A long run prints lines for some epochs; the log has all. */
static bool has_line(const RunLog *log, int64_t epoch) {
    int64_t n = log->epochs - log->first_epoch;
    int64_t every = (n + EPOCH_LINES - 1) / EPOCH_LINES;
    return every <= 1 || epoch >= log->epochs ||
           (epoch - log->first_epoch) % every == 0;
}

static void add_metric(const Run *r, Row *row, int i) {
    if (metric_told(r, i) || i >= METRICS) return; /* the log has all */
    bar_add(row, 2, "36", "%s %.4g", metric_label(r, i), metric_last(r, i));
}

void bar_epoch(Run *r, int64_t epoch) {
    RunLog *log = &r->log;
    Row row = {.n = 0};
    char text[UNIT_TEXT];
    double took = now_seconds() - log->epoch_begin;
    StrBuf sb = {0};
    add_epoch(log, &row, epoch);
    if (log->loss_n) bar_add(&row, 1, "", "loss %.4g", bar_mean_loss(log));
    if (log->evaluated) {
        bar_add(&row, 0, "36", "validation %.4g", log->eval_loss);
        if (isfinite(log->accuracy))
            bar_add(&row, 1, "36", "accuracy %.4f", log->accuracy);
        if (log->top_k)
            bar_add(&row, 2, "36", "of the best %d %.4f", log->top_k,
                    log->accuracy_top);
        for (int i = 0; metric_label(r, i); i++) add_metric(r, &row, i);
    }
    add_rate(r, &row, 4, (double)log->epoch_steps, took);
    bar_add(&row, 3, "2", "%s", unit_seconds(text, took));
    if (log->best_epoch == epoch) bar_add(&row, 0, "32", "best");
    if (log->terminal) bar_fit(&row, terminal_columns(STDERR_FILENO) - 1);
    put_bar_row(log, &row, 0, &sb);
    if (has_line(log, epoch) && !log->quiet) { /* contains colours, so it is
                                                  not printed as a note */
        bar_clear(log);
        fprintf(stderr, "%s\n", sb.data);
    }
    sb_free(&sb);
    log->loss_sum = 0;
    log->loss_n = log->epoch_steps = 0;
    log->epoch_begin = now_seconds();
}
