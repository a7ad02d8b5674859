/* SPDX-License-Identifier: Apache-2.0 */
/* run_page.c: the numbers of a run as curves: one HTML file that needs nothing
   else (--report), and a line of the summary.                               */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"
#include "frontend/page/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- curves -------------------------------------------------------------- */

enum { POINTS = 1024, CURVES = 16 };

/* Means of `stride` numbers each, at most POINTS of them. */
typedef struct Curve {
    const char *tag;
    int n;
    int64_t stride, pending;
    double sum;
    int64_t step[POINTS]; /* the last number of each mean */
    double mean[POINTS];
} Curve;

struct RunCurves {
    Curve of[CURVES];
    int n;
};

static void page_halve(Curve *c) {
    c->n /= 2;
    c->stride *= 2;
    for (int i = 0; i < c->n; i++) {
        c->step[i] = c->step[2 * i + 1];
        c->mean[i] = (c->mean[2 * i] + c->mean[2 * i + 1]) / 2;
    }
}

static void curve_add(Curve *c, int64_t step, double value) {
    c->sum += value;
    if (++c->pending < c->stride) return;
    if (c->n == POINTS) {
        page_halve(c); /* the pending numbers are now half of the next mean */
        return;
    }
    c->step[c->n] = step;
    c->mean[c->n++] = c->sum / (double)c->pending;
    c->sum = 0;
    c->pending = 0;
}

static Curve *curve_of(RunCurves *all, const char *tag) {
    for (int i = 0; i < all->n; i++)
        if (!strcmp(all->of[i].tag, tag)) return &all->of[i];
    if (all->n == CURVES) return NULL;
    all->of[all->n] = (Curve){.tag = tag, .stride = 1};
    return &all->of[all->n++];
}

void curves_add(RunCurves *all, int64_t step, const RunScalar *s, int n) {
    for (int i = 0; all && i < n; i++) {
        Curve *c = isfinite(s[i].value) ? curve_of(all, s[i].tag) : NULL;
        if (c) curve_add(c, step, s[i].value);
    }
}

RunCurves *curves_new(void) { return calloc(1, sizeof(RunCurves)); }

static void bounds(const Curve *c, double *lo, double *hi) {
    *lo = *hi = c->mean[0];
    for (int i = 1; i < c->n; i++) {
        *lo = fmin(*lo, c->mean[i]);
        *hi = fmax(*hi, c->mean[i]);
    }
}

/* ---- on the terminal ----------------------------------------------------- */

/* Prints the training loss from left to right, in eight levels. */
void curves_line(const RunCurves *all, int most, StrBuf *sb) {
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    for (int k = 0; all && k < all->n; k++) {
        const Curve *c = &all->of[k];
        double lo, hi;
        int width = c->n < most ? c->n : most;
        if (strcmp(c->tag, "train/loss") != 0 || c->n < 2) continue;
        bounds(c, &lo, &hi);
        for (int i = 0; i < width; i++) {
            int from = i * c->n / width, to = (i + 1) * c->n / width;
            double sum = 0;
            for (int j = from; j < to; j++) sum += c->mean[j];
            double part = hi > lo ? (sum / (to - from) - lo) / (hi - lo) : 0;
            sb_puts(sb, bars[(int)(part * 7.999)]);
        }
    }
}

/* ---- the page ------------------------------------------------------------ */

static void put_curve(StrBuf *sb, const Curve *c) {
    sb_puts(sb, "{\"tag\":");
    sb_put_json_string(sb, c->tag);
    sb_puts(sb, ",\"steps\":[");
    for (int i = 0; i < c->n; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)c->step[i]);
    sb_puts(sb, "],\"means\":[");
    for (int i = 0; i < c->n; i++) {
        sb_puts(sb, i ? "," : "");
        log_number(sb, c->mean[i]);
    }
    sb_puts(sb, "]}");
}

static void put_best(const Run *r, StrBuf *sb) {
    const RunLog *log = &r->log;
    const char *tag = "eval/loss";
    if (!log->best_epoch) {
        sb_puts(sb, "null");
        return;
    }
    for (int i = 0; metric_label(r, i); i++)
        if (r->opt->best_by && !strcmp(metric_label(r, i), r->opt->best_by))
            tag = metric_tag(r, i);
    sb_printf(sb, "{\"epoch\":%lld,\"step\":%lld,\"tag\":",
              (long long)log->best_epoch, (long long)log->best_step);
    sb_put_json_string(sb, tag);
    sb_puts(sb, "}");
}

/* What --feed and --eval-feed say, and how the files are read. */
static void put_data(const Run *r, StrBuf *sb) {
    const struct {
        const char *option;
        const RunList *list;
        const FeedSet *set;
    } rows[] = {{"--feed", &r->opt->feed, &r->train},
                {"--eval-feed", &r->opt->eval_feed, &r->eval}};
    StrBuf told = {0};
    for (int k = 0; k < 2; k++) {
        if (!rows[k].list->n) continue;
        sb_puts(sb, k ? "\\n" : "");
        for (int i = 0; i < rows[k].list->n; i++) {
            sb_printf(sb, "%s ", rows[k].option);
            sb_put_json(sb, rows[k].list->at[i]);
            sb_puts(sb, " ");
        }
        if (rows[k].set->samples > 0)
            sb_printf(sb, "(%lld samples)", (long long)rows[k].set->samples);
    }
    run_tell_data(r, (const FeedSet *[]){&r->train, &r->eval}, 2, &told);
    if (told.len) sb_puts(sb, "\\n");
    if (told.len) sb_put_json(sb, told.data);
    sb_free(&told);
}

static void put_page(Run *r, StrBuf *sb) {
    const RunCurves *all = r->log.curves;
    StrBuf text = {0};
    bool first = true;
    log_summary_text(r, true, &text);
    watch_text(r, &text);
    sb_puts(sb, "{\"module\":");
    sb_put_json_string(sb, r->opt->module);
    sb_puts(sb, ",\"model\":");
    sb_put_json_string(sb, r->info.model);
    sb_printf(sb, ",\"info\":%s,\"device\":",
              r->info.info && *r->info.info ? r->info.info : "{}");
    sb_put_json_string(sb, *r->device ? r->device : r->gpu ? r->gpu : "CPU");
    sb_puts(sb, ",\"data\":\"");
    put_data(r, sb);
    sb_puts(sb, "\",\"best\":");
    put_best(r, sb);
    sb_puts(sb, ",\"text\":");
    sb_put_json_string(sb, text.data);
    sb_puts(sb, ",\"curves\":[");
    for (int i = 0; i < all->n; i++) {
        if (!all->of[i].n) continue;
        sb_puts(sb, first ? "\n" : ",\n");
        put_curve(sb, &all->of[i]);
        first = false;
    }
    sb_puts(sb, "]}");
    sb_free(&text);
}

/* The file is created when the run begins, so that a mistake shows at once. */
Status page_open(Run *r) {
    RunLog *log = &r->log;
    if (outfile_open(&log->page, r->opt->report, 0666, r->guard, "--report") &&
        outfile_stream(&log->page))
        return OK;
    return file_failed(&r->diag, r->opt->report, &log->page);
}

Status page_close(Run *r) {
    StrBuf json = {0}, page = {0};
    put_page(r, &json);
    page_put(page_run, json.data, &page);
    fwrite(page.data, 1, page.len, r->log.page.stream);
    sb_free(&json);
    sb_free(&page);
    return outfile_commit(&r->log.page)
               ? OK
               : file_failed(&r->diag, r->opt->report, &r->log.page);
}
