/* SPDX-License-Identifier: Apache-2.0 */
/* run_page.c: the numbers of a run as curves: one HTML file that needs nothing
   else (--report), and a line of the summary.                               */
#define _POSIX_C_SOURCE 200809L
#include "frontend/run/run_cmd.h"

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

static void halve(Curve *c) {
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
        halve(c); /* the pending numbers are now half of the next mean */
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

enum { PAGE_WIDTH = 860, PAGE_HEIGHT = 220, MARGIN = 70 };

static void put_html(FILE *f, const char *text) {
    for (; *text; text++) switch (*text) {
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '&': fputs("&amp;", f); break;
        default: putc(*text, f);
        }
}

static void put_curve(FILE *f, const Curve *c) {
    double lo, hi, width = PAGE_WIDTH - MARGIN - 10, height = PAGE_HEIGHT - 40;
    bounds(c, &lo, &hi);
    double from = (double)c->step[0], to = (double)c->step[c->n - 1];
    fprintf(f, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\">\n", c->tag, PAGE_WIDTH,
            PAGE_HEIGHT);
    fprintf(f,
            "<rect x=\"%d\" y=\"10\" width=\"%g\" height=\"%g\" "
            "class=\"frame\"/>\n<text x=\"%d\" y=\"20\">%.4g</text>\n"
            "<text x=\"%d\" y=\"%g\">%.4g</text>\n",
            MARGIN, width, height, MARGIN - 6, hi, MARGIN - 6, 10 + height, lo);
    fprintf(f,
            "<text x=\"%d\" y=\"%d\" class=\"step\">step %.0f</text>\n"
            "<text x=\"%d\" y=\"%d\">%.0f</text>\n<polyline points=\"",
            MARGIN, PAGE_HEIGHT - 10, from, PAGE_WIDTH - 10, PAGE_HEIGHT - 10,
            to);
    for (int i = 0; i < c->n; i++) {
        double x = to > from ? ((double)c->step[i] - from) / (to - from) : 0.5;
        double y = hi > lo ? (hi - c->mean[i]) / (hi - lo) : 0.5;
        fprintf(f, "%s%.1f,%.1f", i ? " " : "", MARGIN + x * width,
                10 + y * height);
    }
    fputs("\"/>\n</svg>\n", f);
}

static void put_page(Run *r, FILE *f) {
    const RunCurves *all = r->log.curves;
    StrBuf summary = {0};
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>",
          f);
    put_html(f, r->opt->module);
    fputs("</title>\n<style>\nbody { font: 15px sans-serif; max-width: 900px; "
          "margin: 2em auto; }\nh2 { font-size: 15px; margin: 1.5em 0 0; }\n"
          "svg { width: 100%; }\npolyline { fill: none; stroke: #15c; "
          "stroke-width: 1.5; }\n.frame { fill: none; stroke: #ccc; }\n"
          "text { font-size: 12px; fill: #666; text-anchor: end; }\n"
          ".step { text-anchor: start; }\n</style>\n<h1>",
          f);
    put_html(f, r->opt->module);
    fputs("</h1>\n<pre>", f);
    log_summary_text(r, true, &summary);
    watch_text(r, &summary);
    put_html(f, summary.data ? summary.data : "");
    sb_free(&summary);
    fputs("</pre>\n", f);
    for (int i = 0; i < all->n; i++)
        if (all->of[i].n) put_curve(f, &all->of[i]);
    fputs("</html>\n", f);
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
    put_page(r, r->log.page.stream);
    return outfile_commit(&r->log.page)
               ? OK
               : file_failed(&r->diag, r->opt->report, &r->log.page);
}
