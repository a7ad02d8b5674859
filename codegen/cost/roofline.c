/* SPDX-License-Identifier: Apache-2.0 */
/* roofline.c: see roofline.h. */
#include "codegen/cost/roofline.h"
#include "codegen/cost/cost.h"
#include "runtime/cuda/peak.h"

#include <stdlib.h>
#include <string.h>

/* ---- machines ------------------------------------------------------------ */

typedef struct Machine {
    const char *name;
    double bandwidth, cache; /* bytes a second                               */
    double tensor, single;   /* FLOPs a second: 16 bits, fp32                */
    double clock, latency, launch; /* Hz, seconds                            */
    int sms, shared; /* bytes of shared memory of an SM              */
} Machine;

static const Machine gpus[] = {{"H100", 3.35e12, 5.5e12, PEAK_H100, 67e12,
                                1.755e9, 680e-9, 1e-6, 132, 228 << 10},
                               {"H200", 4.8e12, 5.5e12, PEAK_H200, 67e12,
                                1.755e9, 680e-9, 1e-6, 132, 228 << 10},
                               {"A100", 2.04e12, 4.0e12, PEAK_A100, 19.5e12,
                                1.41e9, 600e-9, 1e-6, 108, 164 << 10}};
enum { NGPU = sizeof gpus / sizeof *gpus };

typedef enum Bound {
    BY_MEMORY,
    BY_CACHE,
    BY_WAITING,
    BY_TENSOR,
    BY_ISSUE,
    BY_LAUNCH,
    NBOUND
} Bound;
static const char *const bound_text[] = {"memory", "cache", "waiting",
                                         "tensor", "issue", "launch"};

typedef struct Price {
    double seconds, roof;
    double flops; /* seconds that its FLOPs take at the peak                 */
    Bound bound;
} Price;

static double least(double a, double b) { return a < b ? a : b; }

/* Blocks that one SM holds. */
static double resident(const Machine *m, const StepCost *c) {
    double regs = c->registers > 0 ? c->registers : c->mma > 0 ? 128 : 32;
    double n = 65536 / (regs * c->threads);
    if (c->shared > 0) n = least(n, m->shared / c->shared);
    n = least(least(n, 2048 / c->threads), 32);
    return n < 1 ? 1 : (double)(int)n;
}

/* Share of the time in which the SMs have equal work: some get one block more
   than others. */
static double filled(double blocks, int sms) {
    double waves = blocks / sms;
    return waves / (double)(int64_t)(waves + 0.999999);
}

static Price price_gpu(const Machine *m, const StepCost *c) {
    bool library = c->threads == 0 && c->mma > 0;
    double peak = c->bits == 16 ? m->tensor : m->single;
    double t[NBOUND] = {[BY_MEMORY] = c->bytes / (0.8 * m->bandwidth),
                        [BY_CACHE] = c->l2 / m->cache,
                        [BY_LAUNCH] = m->launch * c->launches};
    if (c->bits == 64) peak /= 2;
    if (c->threads > 0) {
        double each = resident(m, c), at_once = each * m->sms;
        double blocks = least(c->blocks, at_once);
        double warps = blocks * c->threads / 32 / m->sms / 4;
        /* an instruction waits 4 clocks for the one before */
        double busy = least(warps / 4, 1);
        t[BY_ISSUE] = c->insts / (0.65 * 128 * m->sms * m->clock * busy);
        if (c->in_flight > 0)
            t[BY_WAITING] =
                c->reads * m->latency / (blocks * c->threads * c->in_flight);
        if (c->mma > 0)
            t[BY_TENSOR] = c->mma / (0.72 * peak * c->rate / 100 *
                                     filled(c->blocks, m->sms));
    } else if (library) {
        t[BY_TENSOR] = c->mma / (0.72 * peak * c->rate / 100);
    }
    Price p = {.bound = BY_LAUNCH};
    for (int i = 0; i < NBOUND; i++)
        if (t[i] > t[p.bound]) p.bound = (Bound)i;
    p.seconds = t[p.bound] + (p.bound == BY_LAUNCH ? 0 : t[BY_LAUNCH]);
    double byte = c->bytes / m->bandwidth;
    p.flops = c->mma / (c->bits == 16 ? m->tensor : m->single);
    p.roof = (p.flops > byte ? p.flops : byte) / p.seconds;
    return p;
}

static Price price_cpu(const CpuPeaks *m, const StepCost *c) {
    double t[NBOUND] = {[BY_MEMORY] = c->bytes / m->bytes,
                        [BY_TENSOR] = c->mma / (0.8 * m->flops),
                        [BY_ISSUE] = c->insts / (m->flops / 4)};
    Price p = {.bound = BY_MEMORY};
    for (int i = 0; i < NBOUND; i++)
        if (t[i] > t[p.bound]) p.bound = (Bound)i;
    p.seconds = t[p.bound];
    p.flops = c->mma / m->flops;
    if (p.seconds > 0)
        p.roof = (p.flops > t[BY_MEMORY] ? p.flops : t[BY_MEMORY]) / p.seconds;
    return p;
}

double roofline_seconds(const StepCost *c, const CpuPeaks *cpu) {
    return (cpu ? price_cpu(cpu, c) : price_gpu(gpus, c)).seconds;
}

/* ---- the table ----------------------------------------------------------- */

typedef struct Line {
    StepCost c;
    Price p[NGPU]; /* on each GPU; for a CPU only the first is used */
    int n;         /* equal launches                                         */
    int at;
} Line;

typedef struct Table {
    Line *data;
    int len, cap;
} Table;

static bool same_program(const StepCost *a, const StepCost *b) {
    return !strcmp(a->target, b->target) && !strcmp(a->program, b->program);
}

static bool same_cost(const StepCost *a, const StepCost *b) {
    bool same = !strcmp(a->how, b->how);
#define FIELD(f) same &= a->f == b->f;
    COST_FIELDS(FIELD)
#undef FIELD
    return same;
}

static int by_time(const void *x, const void *y) {
    const Line *a = x, *b = y;
    double s = a->n * a->p->seconds, t = b->n * b->p->seconds;
    return s != t ? (s < t) - (s > t) : a->at - b->at;
}

static void put_lines(const Table *all, StrBuf *sb) {
    sb_puts(sb, "    n        us   share  % roof  bound        MB    GFLOP  "
                "blocks  regs  how           first\n");
    double total = 0;
    for (int i = 0; i < all->len; i++)
        total += all->data[i].n * all->data[i].p->seconds;
    for (int i = 0; i < all->len; i++) {
        const Line *l = &all->data[i];
        double us = 1e6 * l->p->seconds;
        if (l->n * l->p->seconds < 1e-3 * total && i >= 40) continue;
        sb_printf(sb,
                  "%5d %9.1f  %5.1f%%  %6.1f  %-7s %9.1f %8.1f %7.0f %5.0f  "
                  "%-12s  %s\n",
                  l->n, us, l->n * us / total / 1e4, 100 * l->p->roof,
                  bound_text[l->p->bound], l->c.bytes / 1e6, l->c.mma / 1e9,
                  l->c.blocks, l->c.registers, l->c.how, l->c.name);
    }
}

static void put_json(const Table *all, bool gpu, StrBuf *sb) {
    for (int i = 0; i < all->len; i++) {
        const Line *l = &all->data[i];
        sb_puts(sb, i ? ",\n{\"name\":\"" : "\n{\"name\":\"");
        sb_put_json(sb, l->c.name);
        sb_printf(sb, "\",\"how\":\"%s\"", l->c.how);
#define FIELD(f) sb_printf(sb, ",\"" #f "\":%.12g", l->c.f);
        COST_FIELDS(FIELD)
#undef FIELD
        for (int m = 0; m < (gpu ? NGPU : 1); m++)
            sb_printf(sb,
                      ",\"%s\":{\"us\":%.3f,\"roof\":%.4f,\"bound\":\"%s\"}",
                      gpu ? gpus[m].name : "cpu", 1e6 * l->p[m].seconds,
                      l->p[m].roof, bound_text[l->p[m].bound]);
        sb_puts(sb, "}");
    }
}

/* Launches that cost the same become one line. */
static void join_equal(Table *t) {
    int kept = 0;
    for (int i = 0, j; i < t->len; i++) {
        for (j = 0; j < kept; j++)
            if (same_cost(&t->data[j].c, &t->data[i].c)) break;
        if (j < kept)
            t->data[j].n++;
        else
            t->data[kept++] = t->data[i];
    }
    t->len = kept;
    if (kept) qsort(t->data, (size_t)kept, sizeof *t->data, by_time);
}

static void put_program(Arena *a, const char *cost, const StepCost *of,
                        const CpuPeaks *peaks, bool json, StrBuf *sb) {
    bool gpu = !peaks;
    Table t = {0};
    StepCost c;
    double sum[NGPU] = {0}, mfu[NGPU] = {0}, mma = 0, bytes = 0, launches = 0;
    for (const char *at = cost; cost_next(&at, &c);) {
        Line l = {.c = c, .n = 1, .at = t.len};
        if (!same_program(&c, of)) continue;
        for (int m = 0; m < NGPU; m++) {
            l.p[m] = gpu ? price_gpu(&gpus[m], &c) : price_cpu(peaks, &c);
            sum[m] += l.p[m].seconds;
            mfu[m] += l.p[m].flops;
        }
        mma += c.mma;
        bytes += c.bytes;
        launches += c.launches;
        vec_push(a, &t, l);
    }
    for (int m = 0; m < NGPU; m++) mfu[m] /= sum[m] > 0 ? sum[m] : 1;
    if (!json) join_equal(&t);
    if (json) {
        sb_printf(sb,
                  "%s{\"target\":\"%s\",\"program\":\"%s\",\"launches\":"
                  "%.0f,\"mma\":%.12g,\"bytes\":%.12g",
                  sb->len > 1 ? ",\n" : "", of->target, of->program, launches,
                  mma, bytes);
        for (int m = 0; m < (gpu ? NGPU : 1); m++) {
            const char *name = gpu ? gpus[m].name : "cpu";
            sb_printf(sb, ",\"%s_ms\":%.3f,\"%s_mfu\":%.4f", name, 1e3 * sum[m],
                      name, mfu[m]);
        }
        if (!gpu)
            sb_printf(sb, ",\"threads\":%d,\"flops\":%.4g,\"bandwidth\":%.4g",
                      peaks->threads, peaks->flops, peaks->bytes);
        sb_puts(sb, ",\"steps\":[");
        put_json(&t, gpu, sb);
        sb_puts(sb, "]}");
        return;
    }
    if (gpu)
        sb_printf(sb, "%s on cuda, predicted for one %s\n", of->program,
                  gpus[0].name);
    else
        sb_printf(sb,
                  "%s on cpu, predicted for this machine: %d threads, "
                  "measured %.0f GFLOP/s fp32, %.1f GB/s\n",
                  of->program, peaks->threads, peaks->flops / 1e9,
                  peaks->bytes / 1e9);
    put_lines(&t, sb);
    sb_printf(sb, "%.0f %s, %.2f TFLOP, %.1f GB: ", launches,
              gpu ? "launches" : "steps", mma / 1e12, bytes / 1e9);
    for (int m = 0; m < (gpu ? NGPU : 1); m++)
        sb_printf(sb, "%s%.1f ms%s%s (MFU %.0f%%)", m ? ", " : "", 1e3 * sum[m],
                  gpu ? " on " : "", gpu ? gpus[m].name : "", 100 * mfu[m]);
    sb_puts(sb, "\n");
}

static bool trains(const StepCost *c) {
    return !strncmp(c->program, "train", 5);
}

/* Programs that train, of a module that does not those that predict. */
void roofline_put(Arena *a, const char *cost, bool json, StrBuf *sb) {
    struct {
        StepCost *data;
        int len, cap;
    } all = {0};
    StepCost c;
    bool training = false;
    CpuPeaks peaks = {0};
    for (const char *at = cost; cost_next(&at, &c);) {
        bool seen = false;
        for (int i = 0; i < all.len && !seen; i++)
            seen = same_program(&all.data[i], &c);
        if (!seen) vec_push(a, &all, c);
        training |= trains(&c);
    }
    if (json) sb_puts(sb, "[");
    for (int i = 0; i < all.len; i++) {
        const StepCost *of = &all.data[i];
        bool gpu = !strcmp(of->target, "cuda");
        if (training ? !trains(of) : strcmp(of->program, "predict") != 0)
            continue;
        if (!gpu && !peaks.threads) peaks = cpu_peaks();
        put_program(a, cost, of, gpu ? NULL : &peaks, json, sb);
    }
    if (json) sb_puts(sb, "]\n");
}
