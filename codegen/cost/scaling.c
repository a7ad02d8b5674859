/* SPDX-License-Identifier: Apache-2.0 */
/* scaling.c: see scaling.h. */
#include "codegen/cost/scaling.h"

#include <stdlib.h>
#include <string.h>

#include "codegen/cost/cost.h"
#include "codegen/cost/roofline.h"
#include "ir/base/facts.h"

typedef struct Link {
    char name[40];
    int ranks;             /* per machine */
    double inside, within; /* latency, bandwidth of a rank: seconds, bytes/s */
    double outside, between; /* traffic between machines */
} Link;

static const Link links[] = {
    {"nvlink", 1 << 30, 3e-6, 0.8 * 450e9, 0, 1},
    {"infiniband", 8, 3e-6, 0.8 * 450e9, 5e-6, 0.8 * 400e9},
    {"ethernet", 8, 3e-6, 0.8 * 450e9, 30e-6, 0.8 * 12.5e9}};
enum { NLINK = sizeof links / sizeof *links, MOST_WORLD = 1 << 20 };

/* ---- bytes that move ----------------------------------------------------- */

/* Each rank sends its part to all ranks. */
static double ring(double n, double latency, double bandwidth, double bytes) {
    return (n - 1) * (latency + bytes / n / bandwidth);
}

/* Seconds of a sum, in which data circle twice, or of an exchange of parts,
   in which data circle once. */
static double move_seconds(const Link *l, int world, double bytes, bool sum) {
    int inside = world < l->ranks ? world : l->ranks;
    int machines = (world + inside - 1) / inside, levels = 0;
    while (1 << levels < machines) levels++;
    double times = sum ? 2 : 1;
    double t = times * ring(inside, l->inside, l->within, bytes);
    if (machines == 1) return t;
    double around = times * ring(machines, l->outside, l->between, bytes);
    double tree = 2 * (levels * l->outside + bytes / l->between);
    return t + (around < tree || !sum ? around : tree);
}

/* ---- a step -------------------------------------------------------------- */

typedef struct Step {
    double micro, update;        /* seconds of computation */
    double bytes, parts, handed; /* bytes of gradients as sent; the share
                                    sent in parts; bytes exchanged after
                                    update */
    int buckets, now; /* sums concurrent with backward; sums that block */
} Step;

/* Seconds of a step of `world` ranks; scale: factor for all predicted times. */
static double scaling_walk(const char *cost, const char *target,
                           const CpuPeaks *peaks, double scale, const Link *l,
                           int world, Step *s) {
    StepCost c;
    double now = 0, summed = 0, last = 0;
    *s = (Step){0};
    for (const char *at = cost; cost_next(&at, &c);) {
        bool micro = !strcmp(c.program, "micro");
        if (strcmp(c.target, target) || (!micro && strcmp(c.program, "update")))
            continue;
        if (!peaks && !roofline_runs(&c)) continue;
        bool sum = strcmp(c.how, "scatter");
        double t = l ? move_seconds(l, world, c.bytes, sum) : 0;
        if (!sum || !strcmp(c.how, "sum")) {
            summed = (summed > now ? summed : now) + (c.bytes > 0 ? t : 0);
            s->bytes += c.bytes;
            s->parts += sum ? 0 : c.bytes;
            s->buckets += sum;
        } else if (!strcmp(c.how, "sum_now")) {
            if (micro) now = (summed > now ? summed : now) + t;
            s->update += micro ? 0 : t;
            s->now++;
        } else if (!strcmp(c.how, "hand_out")) {
            s->update -= micro ? 0 : last * (1 - 1.0 / world);
            s->handed += micro ? 0 : c.bytes;
        } else {
            t = last = scale * roofline_seconds(&c, peaks);
            *(micro ? &s->micro : &s->update) += t;
            now += micro ? t : 0;
        }
    }
    double out =
        l && s->handed > 0 ? move_seconds(l, world, s->handed, false) : 0;
    return (summed > now ? summed : now) + s->update + out;
}

/* ---- options ------------------------------------------------------------- */

static Status wrong(Diag *d, const char *option, const char *text,
                    const char *wants) {
    fail(d, (Loc){0}, "%s: '%s' is not %s", option, text, wants);
    return ERR_USAGE;
}

static bool positive(const char *text, char stop, double *x, const char **end) {
    char *p;
    *x = strtod(text, &p);
    *end = p + 1;
    return p != text && *p == stop && *x > 0 && *x < 1e9;
}

/* Sets the links to predict for; *n: their number. */
static Status read_links(Diag *d, const char *text, Link *out, int *n) {
    const char *next;
    double us, gb;
    *n = 0;
    for (int i = 0; i < NLINK; i++)
        if (!text || !strcmp(text, links[i].name)) out[(*n)++] = links[i];
    if (*n) return OK;
    if (!positive(text, ',', &us, &next) || !positive(next, 0, &gb, &next))
        return wrong(d, "--link", text,
                     "nvlink, infiniband, ethernet or MICROSECONDS,GB/S");
    out[(*n)++] = (Link){"", 1, 0, 1, us * 1e-6, gb * 1e9};
    snprintf(out->name, sizeof out->name, "%g us, %g", us, gb);
    return OK;
}

/* ---- the table ----------------------------------------------------------- */

/* Milliseconds of a step, and its efficiency. */
static void add_link(Facts *row, const char *link, double one, double step) {
    Facts f = {.json = row->json};
    fact_form(&f, "ms", "%.4f", "  %10.3f", 1e3 * step);
    fact_json(&f, "efficiency", "%.4f", one / step);
    fact_words(&f, "percent", " %6.1f %%", 100 * one / step);
    fact_part(row, link, &f, NULL);
}

/* The heads of the table that people read. */
static void put_heads(const Link *to, int n, StrBuf *sb) {
    for (int i = 0; i < n; i++) sb_printf(sb, i ? "%21s" : "%28s", to[i].name);
    sb_puts(sb, "\n  ranks");
    for (int i = 0; i < n; i++) sb_puts(sb, "  ms a step efficiency");
}

Status scaling_put(Diag *d, const char *cost, const Scaling *how, StrBuf *sb) {
    Link to[NLINK];
    const char *end, *target = strstr(cost, "\ncuda\tmicro\t") ? "cuda" : "cpu";
    bool gpu = !strcmp(target, "cuda");
    int n;
    double most, ms = 0, scale = 1;
    Step s;
    Facts f = {.json = how->json};
    FactList ranks = fact_lines(how->json);
    StrBuf heads = {0};
    if (!positive(how->world, 0, &most, &end) || most < 2 || most > MOST_WORLD)
        return wrong(d, "--scaling", how->world, "2 or more ranks");
    if (how->step_ms && !positive(how->step_ms, 0, &ms, &end))
        return wrong(d, "--step-ms", how->step_ms, "milliseconds");
    TRY(read_links(d, how->link, to, &n));
    CpuPeaks cpu = gpu ? (CpuPeaks){0} : cpu_peaks();
    const CpuPeaks *peaks = gpu ? NULL : &cpu;
    double one = scaling_walk(cost, target, peaks, 1, NULL, 1, &s);
    if (!s.buckets)
        return fail(d, (Loc){0}, "no program of the module sums gradients");
    if (ms > 0) scale = ms * 1e-3 / one;
    one *= scale;
    fact_word(&f, "target", target, NULL);
    fact_form(&f, "ms", "%.4f", "%.3f", 1e3 * one);
    fact_form(&f, "measured", ms > 0 ? "true" : "false",
              ms > 0 ? "measured"
              : gpu  ? "predicted for an H100"
                     : "predicted for this machine");
    fact_form(&f, "bytes", "%.0f", "%.0f", s.bytes);
    fact_form(&f, "in_parts", "%.0f", "%.0f", s.parts);
    fact_int(&f, "buckets", s.buckets, NULL);
    fact_int(&f, "waited_for", s.now, NULL);
    fact_form(&f, "handed_out", "%.0f", "%.0f", s.handed);
    for (double world = 2; world <= most; world *= 2) {
        Facts row = {.json = how->json};
        fact_form(&row, "world", "%.0f", "\n%7.0f", world);
        for (int i = 0; i < n; i++)
            add_link(&row, to[i].name, one,
                     scaling_walk(cost, target, peaks, scale, &to[i],
                                  (int)world, &s));
        facts_put(&row, NULL, fact_next(&ranks));
    }
    put_heads(to, n, &heads);
    fact_words(&f, "heads", "%s", heads.data);
    fact_list(&f, "ranks", &ranks);
    facts_put(&f,
              "train on {target}, {ms} ms a step of one rank, {measured}; "
              "{bytes} bytes of gradients, {in_parts} of them summed in parts, "
              "in {buckets} buckets, {waited_for} sums waited for, "
              "{handed_out} bytes handed out\n{heads}{ranks}",
              sb);
    sb_puts(sb, "\n");
    sb_free(&heads);
    return OK;
}
