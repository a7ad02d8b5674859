/* SPDX-License-Identifier: Apache-2.0 */
/* roofline.c: see roofline.h. */
#include "codegen/cost/roofline.h"
#include "codegen/cost/cost.h"
#include "ir/base/facts.h"
#include "runtime/cuda/peak.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rates --------------------------------------------------------------- */

typedef enum RateName {
#define RATE(name, ...) RATE_##name,
#include "codegen/cost/rates.def"
#undef RATE
    NRATE
} RateName;

/* The pessimistic, likely and optimistic estimate. */
typedef enum Guess { WORST, LIKELY, BEST, NGUESS } Guess;

typedef struct Rate {
    double share[NGUESS];
    const char *of, *source;
} Rate;

static const Rate rates[] = {
#define RATE(name, worst, likely, best, of, source)                            \
    {{worst, likely, best}, of, source},
#include "codegen/cost/rates.def"
#undef RATE
};

/* ---- prices -------------------------------------------------------------- */

typedef enum Bound {
    BY_MEMORY,
    BY_CACHE,
    BY_WAITING,
    BY_TENSOR,
    BY_SHARED,
    BY_ISSUE,
    BY_LAUNCH,
    NBOUND
} Bound;
static const char *const bound_text[] = {"memory", "cache", "waiting", "tensor",
                                         "shared", "issue", "launch"};

/* Times are in seconds; bound and roof belong to the likely estimate. */
typedef struct Price {
    double seconds[NGUESS], roof;
    double flops; /* the FLOPs at peak speed */
    double floor; /* the time of the best product or the best copy */
    Bound bound;
} Price;

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

/* Blocks that one multiprocessor holds. */
static double resident(const GpuSheet *m, const StepCost *c) {
    double regs = c->registers > 0 ? c->registers : c->mma > 0 ? 128 : 32;
    double n = 65536 / (regs * c->threads);
    if (c->shared > 0) n = least(n, m->arch->shared / c->shared);
    n = least(least(n, m->arch->threads / c->threads), 32);
    return n < 1 ? 1 : (double)(int)n;
}

/* Share of the time in which the multiprocessors have equal work: some get one
   block more than others. */
static double filled(double blocks, int sms) {
    double waves = blocks / sms;
    return waves / (double)(int64_t)(waves + 0.999999);
}

/* True if tensor cores do it. */
static bool on_tensor(const StepCost *c) { return c->bits < 32; }

static double peak_for(const GpuSheet *m, const StepCost *c) {
    if (c->bits == 8) return 2 * m->tensor;
    if (on_tensor(c)) return c->bits == 16 ? m->tensor : m->tensor / 2;
    return c->bits == 64 ? m->single / 2 : m->single;
}

/* Seconds that a library's matrix product takes with one of its tile sizes,
   at `speed` FLOPs a second. A tile fills and empties its pipeline once;
   splitting the sum adds partial sums. */
static double tiled(const GpuSheet *m, const StepCost *c, double speed,
                    double tile_rows, double tile_cols, double parts) {
    enum { PIPELINE = 96 }; /* steps of k                                    */
    double rows = ceil(c->rows / tile_rows) * tile_rows;
    double cols = ceil(c->cols / tile_cols) * tile_cols;
    double tiles = rows / tile_rows * (cols / tile_cols) * c->products * parts;
    double depth = c->depth / parts;
    double sums = parts > 1 ? 8 * c->rows * c->cols * c->products * parts : 0;
    return 2 * rows * cols * c->depth * c->products / speed *
               ((depth + PIPELINE) / depth) / filled(tiles, m->sms) +
           sums / m->cache;
}

/* Seconds of a library's matrix product with the best of its tile sizes,
   bounded by FLOPs alone. */
static double library(const GpuSheet *m, const StepCost *c, Guess g) {
    static const struct {
        double rows, cols, speed; /* relative to the largest tile: estimates */
    } tile[] = {{256, 128, 1},   {128, 256, 1},   {128, 128, 0.93},
                {128, 64, 0.75}, {64, 128, 0.75}, {64, 64, 0.55}};
    enum { MOST_PARTS = 16, LEAST_DEPTH = 512 };
    RateName rate = c->bits == 8    ? RATE_F8_PRODUCT
                    : c->bits == 19 ? RATE_TF32_PRODUCT
                                    : RATE_PRODUCT;
    double top = rates[rate].share[g] * peak_for(m, c);
    double odd = rates[RATE_ODD_PRODUCT].share[g] * peak_for(m, c);
    double time = INFINITY;
    if (!on_tensor(c)) odd = rates[RATE_ODD_SINGLE].share[g] * top;
    for (size_t i = 0; i < sizeof tile / sizeof *tile && c->depth > 0; i++)
        for (int n = 1;
             n == 1 || (n <= MOST_PARTS && c->depth / n >= LEAST_DEPTH); n++)
            time = least(time, tiled(m, c, top * tile[i].speed, tile[i].rows,
                                     tile[i].cols, n));
    if (c->depth == 0) time = c->mma / top;
    return c->odd ? most(time, c->mma / odd) : time;
}

/* FLOPs a second that a kernel of this compiler reaches. */
static double own_speed(const GpuSheet *m, const StepCost *c, Guess g) {
    double peak = peak_for(m, c) * (on_tensor(c) ? m->arch->mma : 1);
    if (!strcmp(c->how, "attend")) peak *= rates[RATE_FLASH].share[g];
    if (!strcmp(c->how, "attend_grad")) peak *= rates[RATE_FLASH_GRAD].share[g];
    return c->rate > 0 ? peak * c->rate / 100 : peak;
}

static void bounds_of_kernel(const GpuSheet *m, const StepCost *c, Guess g,
                             double *t) {
    double each = resident(m, c), at_once = each * m->sms;
    double blocks = least(c->blocks, at_once);
    double warps = blocks * c->threads / 32 / m->sms / 4;
    /* an instruction waits 4 clocks for the previous one, unless loops are
       unrolled into independent ones, as loops of tiles are */
    double busy = least(c->wavefronts > 0 ? warps : warps / 4, 1);
    RateName shared = each < 2   ? RATE_SHARED_ONE
                      : each < 3 ? RATE_SHARED_TWO
                                 : RATE_SHARED_MORE;
    double even = c->mma > 0 ? filled(c->blocks, m->sms) : 1;
    t[BY_ISSUE] = c->insts / (rates[RATE_ISSUE].share[g] * 128 * m->sms *
                              m->clock * busy * even);
    t[BY_SHARED] =
        c->wavefronts / (rates[shared].share[g] * m->sms * m->clock * even);
    if (c->in_flight > 0)
        t[BY_WAITING] =
            c->reads * m->arch->latency /
            (rates[RATE_LATENCY].share[g] * blocks * c->threads * c->in_flight);
    if (c->mma > 0) t[BY_TENSOR] = c->mma / (own_speed(m, c, g) * even);
}

static Price price_gpu(const GpuSheet *m, const StepCost *c) {
    static const double launch = 1.1e-6;
    Price p = {0};
    for (int g = 0; g < NGUESS; g++) {
        double t[NBOUND] = {
            [BY_MEMORY] =
                c->bytes / (rates[RATE_MEMORY].share[g] * m->bandwidth),
            [BY_CACHE] = c->l2 / (rates[RATE_CACHE].share[g] * m->cache),
            [BY_LAUNCH] = launch * c->launches / rates[RATE_LAUNCH].share[g]};
        Bound bound = BY_LAUNCH;
        if (c->threads > 0)
            bounds_of_kernel(m, c, (Guess)g, t);
        else if (c->mma > 0)
            t[BY_TENSOR] = library(m, c, (Guess)g);
        if (!strcmp(c->how, "tile")) t[BY_TENSOR] /= rates[RATE_TILE].share[g];
        if (!strcmp(c->how, "tile") || !strcmp(c->how, "gelu"))
            t[BY_TENSOR] += c->insts / (rates[RATE_ISSUE].share[g] * 128 *
                                        m->sms * m->clock);
        for (int i = 0; i < NBOUND; i++)
            if (t[i] > t[bound]) bound = (Bound)i;
        p.seconds[g] = t[bound] + (bound == BY_LAUNCH ? 0 : t[BY_LAUNCH]);
        if (g == LIKELY) p.bound = bound;
    }
    double byte = c->bytes / m->bandwidth;
    p.flops = c->mma / (on_tensor(c) ? peak_for(m, c) : m->single);
    p.floor = most(p.flops / rates[RATE_BEST_PRODUCT].share[LIKELY],
                   byte / rates[RATE_BEST_COPY].share[LIKELY]);
    p.roof = most(p.flops, byte) / p.seconds[LIKELY];
    return p;
}

static Price price_cpu(const CpuPeaks *m, const StepCost *c) {
    double t[NBOUND] = {[BY_MEMORY] = c->bytes / m->bytes,
                        [BY_TENSOR] = c->mma / (0.8 * m->flops),
                        [BY_ISSUE] = c->insts / (m->flops / 4)};
    Price p = {.bound = BY_MEMORY};
    for (int i = 0; i < NBOUND; i++)
        if (t[i] > t[p.bound]) p.bound = (Bound)i;
    for (int g = 0; g < NGUESS; g++) p.seconds[g] = t[p.bound];
    p.flops = c->mma / m->flops;
    p.floor = most(p.flops, t[BY_MEMORY]);
    if (t[p.bound] > 0) p.roof = p.floor / t[p.bound];
    return p;
}

/* The data sheet for which tables are printed. */
static const GpuSheet *main_gpu(void) { return gpu_sheet("H100"); }

static bool runs_on(const GpuSheet *m, const StepCost *c) {
    int number = m->arch->number;
    return c->since == 0 ||
           (c->since > 0 ? number >= c->since : number < -c->since);
}

double roofline_seconds(const StepCost *c, const CpuPeaks *cpu) {
    return (cpu ? price_cpu(cpu, c) : price_gpu(main_gpu(), c)).seconds[LIKELY];
}

bool roofline_runs(const StepCost *c) { return runs_on(main_gpu(), c); }

/* ---- the table ----------------------------------------------------------- */

typedef struct Line {
    StepCost c;
    Price p; /* on the main GPU, or the CPU                                  */
    int n;   /* equal launches                                               */
    int at;
} Line;

typedef struct Table {
    Line *data;
    int len, cap;
} Table;

/* All steps of a program on one machine. */
typedef struct Total {
    double seconds[NGUESS], flops, floor;
} Total;

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

static double time_of(const Line *l) { return l->n * l->p.seconds[LIKELY]; }

static int by_time(const void *x, const void *y) {
    const Line *a = x, *b = y;
    double s = time_of(a), t = time_of(b);
    return s != t ? (s < t) - (s > t) : a->at - b->at;
}

/* Microseconds of a launch, and what limits it. */
static void price_facts(Facts *f, const Price *p) {
    fact_form(f, "us", "%.3f", "%9.1f", 1e6 * p->seconds[LIKELY]);
    fact_form(f, "least_us", "%.3f", "%7.0f", 1e6 * p->seconds[BEST]);
    fact_form(f, "most_us", "%.3f", "%7.0f", 1e6 * p->seconds[WORST]);
    fact_form(f, "roof", "%.4f", "%6.1f", f->json ? p->roof : 100 * p->roof);
    fact_word(f, "bound", bound_text[p->bound], "%-7s");
}

/* In JSON a launch has its price on every machine. */
static void prices_of(Facts *f, const Line *l, bool gpu) {
    for (int m = 0; m < (gpu ? NGPU_SHEET : 1); m++) {
        Facts of = {.json = true};
        Price p = gpu ? price_gpu(&gpu_sheets[m], &l->c) : l->p;
        price_facts(&of, &p);
        fact_part(f, gpu ? gpu_sheets[m].name : "cpu", &of, NULL);
    }
}

/* `total`: seconds of all launches. */
static void put_launch(const Line *l, bool gpu, double total, bool json,
                       StrBuf *sb) {
    const StepCost *c = &l->c;
    Facts f = {.json = json};
    fact_word(&f, "name", c->name, NULL);
    fact_word(&f, "how", c->how, "%-12s");
#define FIELD(field) fact_json(&f, #field, "%.12g", c->field);
    COST_FIELDS(FIELD)
#undef FIELD
    fact_words(&f, "n", "%5d", l->n);
    fact_words(&f, "share", "%5.1f%%", 100 * time_of(l) / total);
    fact_words(&f, "bytes", "%9.1f", c->bytes / 1e6);
    fact_words(&f, "mma", "%8.1f", c->mma / 1e9);
    fact_words(&f, "blocks", "%7.0f", c->blocks);
    fact_words(&f, "registers", "%5.0f", c->registers);
    if (json)
        prices_of(&f, l, gpu);
    else
        price_facts(&f, &l->p);
    facts_put(&f,
              "{n} {us} {least_us} {most_us}  {share}  {roof}  {bound} {bytes} "
              "{mma} {blocks} {registers}  {how}  {name}\n",
              sb);
}

/* Launches that cost the same become one line; `gpu`: without those that the
   main GPU leaves out. */
static void join_equal(Table *t, bool gpu) {
    int kept = 0;
    for (int i = 0, j; i < t->len; i++) {
        if (gpu && !roofline_runs(&t->data[i].c)) continue;
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

static void add_price(Total *t, const Price *p) {
    for (int g = 0; g < NGUESS; g++) t->seconds[g] += p->seconds[g];
    t->flops += p->flops;
    t->floor += p->floor;
}

static double mfu(const Total *t) {
    double s = t->seconds[LIKELY];
    return s > 0 ? t->flops / s : 0;
}

/* Milliseconds of all launches on a machine; in JSON, keys begin with its
   name. */
static void put_total(Arena *a, const char *name, const Total *t, Facts *f) {
#define KEY(key) (f->json ? arena_printf(a, "%s_" key, name) : key)
    fact_form(f, KEY("ms"), "%.3f", "%.1f ms", 1e3 * t->seconds[LIKELY]);
    fact_form(f, KEY("least_ms"), "%.3f", "%.1f", 1e3 * t->seconds[BEST]);
    fact_form(f, KEY("most_ms"), "%.3f", "%.1f", 1e3 * t->seconds[WORST]);
    fact_form(f, KEY("floor_ms"), "%.3f", "%.1f", 1e3 * t->floor);
    fact_form(f, KEY("mfu"), "%.4f", "MFU %.0f%%",
              f->json ? mfu(t) : 100 * mfu(t));
#undef KEY
}

static void put_rates(StrBuf *sb) {
    sb_puts(sb, "\nassumed:  worst  likely   best  share of, and source\n");
    for (int i = 0; i < NRATE; i++)
        sb_printf(sb, "          %5.2f  %6.2f  %5.2f  %s: %s\n",
                  rates[i].share[WORST], rates[i].share[LIKELY],
                  rates[i].share[BEST], rates[i].of, rates[i].source);
}

/* The sum of all steps of a program. */
typedef struct Sums {
    Table steps;
    Total on[NGPU_SHEET]; /* a CPU is the first                              */
    double mma, bytes, launches;
} Sums;

static Sums sums_of(Arena *a, const char *cost, const StepCost *of,
                    const CpuPeaks *peaks) {
    Sums s = {0};
    StepCost c;
    for (const char *at = cost; cost_next(&at, &c);) {
        Line l = {.c = c, .n = 1, .at = s.steps.len};
        if (!same_program(&c, of)) continue;
        l.p = peaks ? price_cpu(peaks, &c) : price_gpu(main_gpu(), &c);
        if (peaks) add_price(s.on, &l.p);
        for (int m = 0; m < NGPU_SHEET && !peaks; m++) {
            if (!runs_on(&gpu_sheets[m], &c)) continue;
            Price p = price_gpu(&gpu_sheets[m], &c);
            add_price(&s.on[m], &p);
        }
        vec_push(a, &s.steps, l);
        if (!peaks && !roofline_runs(&c)) continue;
        s.mma += c.mma;
        s.bytes += c.bytes;
        s.launches += c.launches;
    }
    return s;
}

static void put_launches(Sums *s, bool gpu, Facts *f) {
    FactList launches = fact_lines(f->json);
    double total = 0;
    if (!f->json) join_equal(&s->steps, gpu);
    for (int i = 0; i < s->steps.len; i++) total += time_of(&s->steps.data[i]);
    for (int i = 0; i < s->steps.len; i++) {
        const Line *l = &s->steps.data[i];
        if (!f->json && time_of(l) < 1e-3 * total && i >= 40) continue;
        put_launch(l, gpu, total, f->json, fact_next(&launches));
    }
    fact_list(f, "steps", &launches);
}

static void put_gpus(Arena *a, const Sums *s, Facts *f) {
    StrBuf all = {0};
    for (int m = 0; m < NGPU_SHEET; m++) {
        const GpuSheet *gpu = &gpu_sheets[m];
        Facts of = {.json = f->json};
        put_total(a, gpu->name, &s->on[m], &of);
        fact_words(&of, "name", "%-9s", gpu->name);
        fact_words(&of, "types", "%s",
                   gpu->arch->tensor & TENSOR_BF16 ? ""
                                                   : "; with --precision fp16");
        sb_puts(&all, f->json && m ? "," : "");
        facts_put_members(&of,
                          "  {name}  {ms} ({least_ms} to {most_ms}), floor "
                          "{floor_ms}, {mfu}{types}\n",
                          &all);
    }
    fact_members(f, "gpus", &all);
    if (!f->json)
        put_total(a, main_gpu()->name, &s->on[main_gpu() - gpu_sheets], f);
}

static void put_cpu(Arena *a, const Sums *s, const CpuPeaks *peaks, Facts *f) {
    put_total(a, "cpu", s->on, f);
    fact_int(f, "threads", peaks->threads, NULL);
    fact_form(f, "flops", "%.4g", "%.0f GFLOP/s",
              f->json ? peaks->flops : peaks->flops / 1e9);
    fact_form(f, "bandwidth", "%.4g", "%.1f GB/s",
              f->json ? peaks->bytes : peaks->bytes / 1e9);
}

static void put_program(Arena *a, Sums *s, const StepCost *of,
                        const CpuPeaks *peaks, bool json, StrBuf *sb) {
    Facts f = {.json = json};
    fact_word(&f, "target", of->target, NULL);
    fact_word(&f, "program", of->program, NULL);
    fact_form(&f, "launches", "%.0f", "%.0f", s->launches);
    fact_form(&f, "mma", "%.12g", "%.2f TFLOP", json ? s->mma : s->mma / 1e12);
    fact_form(&f, "bytes", "%.12g", "%.1f GB",
              json ? s->bytes : s->bytes / 1e9);
    if (peaks)
        put_cpu(a, s, peaks, &f);
    else
        put_gpus(a, s, &f);
    put_launches(s, !peaks, &f);
    fact_words(&f, "gpu", "%s", main_gpu()->name);
    fact_words(&f, "heads", "%s",
               "    n        us   least    most   share  % roof  bound        "
               "MB    GFLOP  blocks  regs  how           first\n");
    facts_put(&f,
              peaks ? "{program} on cpu, predicted for this machine: {threads} "
                      "threads, measured {flops} fp32, {bandwidth}\n"
                      "{heads}{steps}{launches} steps, {mma}, {bytes}: {ms} "
                      "({mfu})\n"
                    : "{program} on cuda, predicted for one {gpu}\n"
                      "{heads}{steps}{launches} launches, {mma}, {bytes}: {ms} "
                      "on {gpu}\n{gpus}",
              sb);
}

static bool trains(const StepCost *c) {
    return !strncmp(c->program, "train", 5);
}

/* Programs that train; for a module that does not train, programs that
   predict. */
void roofline_put(Arena *a, const char *cost, bool json, StrBuf *sb) {
    struct {
        StepCost *data;
        int len, cap;
    } all = {0};
    StepCost c;
    bool training = false, any_gpu = false;
    CpuPeaks peaks = {0};
    for (const char *at = cost; cost_next(&at, &c);) {
        bool seen = false;
        for (int i = 0; i < all.len && !seen; i++)
            seen = same_program(&all.data[i], &c);
        if (!seen) vec_push(a, &all, c);
        training |= trains(&c);
    }
    FactList programs = fact_series(json, ",\n", "");
    for (int i = 0; i < all.len; i++) {
        const StepCost *of = &all.data[i];
        bool gpu = !strcmp(of->target, "cuda");
        if (training ? !trains(of) : strcmp(of->program, "predict") != 0)
            continue;
        if (!gpu && !peaks.threads) peaks = cpu_peaks();
        Sums s = sums_of(a, cost, of, gpu ? NULL : &peaks);
        put_program(a, &s, of, gpu ? NULL : &peaks, json, fact_next(&programs));
        any_gpu |= gpu;
    }
    fact_list_put(&programs, sb);
    if (any_gpu && !json) put_rates(sb);
}
