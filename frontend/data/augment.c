/* SPDX-License-Identifier: Apache-2.0 */
/* augment.c: see augment.h. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/augment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/near.h"
#include "runtime/program/draw.h"

enum { STEPS = 8, CHANNELS = 64 };

typedef struct Step {
    const struct StepKind *kind;
    double a; /* the kinds flip, crop and mixup use it */
    double mean[CHANNELS], std[CHANNELS];
    int n; /* of these */
} Step;

typedef struct Augment {
    Step step[STEPS];
    int n;
    bool training;
    char *scratch; /* a batch */
} Augment;

/* A sample as planes of rows of elements. */
typedef struct Planes {
    char *data, *scratch;
    int64_t n, height, width, channels;
    size_t size; /* of an element */
} Planes;

typedef struct StepKind {
    const char *name, *form;
    bool draws;  /* in training alone */
    bool floats; /* takes f32 alone */
    bool planes; /* needs rows and columns */
    bool (*read)(Step *s, const char *text);
    void (*apply)(const Step *s, Planes *p, uint64_t *state);
} StepKind;

/* ---- steps --------------------------------------------------------------- */

static bool augment_read_number(const char *text, double least, double most,
                                double *x, const char **end) {
    char *stop;
    *x = strtod(text, &stop);
    *end = stop;
    return stop != text && *x >= least && *x <= most;
}

static bool read_augment_one(const char *text, double least, double most,
                             double *x) {
    const char *end;
    return augment_read_number(text, least, most, x, &end) && !*end;
}

static bool read_flip(Step *s, const char *text) {
    s->a = 0.5;
    return !*text || read_augment_one(text, 0, 1, &s->a);
}

static bool read_crop(Step *s, const char *text) {
    return read_augment_one(text, 1, 4096, &s->a) && s->a == floor(s->a);
}

static bool read_mixup(Step *s, const char *text) {
    return read_augment_one(text, 1e-3, 1e3, &s->a);
}

/* A number, or one for each channel: M or M:M:M. */
static bool read_channels(const char **text, double least, double *x, int *n) {
    for (*n = 0; *n < CHANNELS;) {
        if (!augment_read_number(*text, least, 1e30, &x[(*n)++], text))
            return false;
        if (**text != ':') return true;
        ++*text;
    }
    return false;
}

static bool read_normalize(Step *s, const char *text) {
    int n;
    if (!read_channels(&text, -1e30, s->mean, &s->n) || *text++ != '/')
        return false;
    return read_channels(&text, 1e-30, s->std, &n) && n == s->n && !*text;
}

static double uniform(uint64_t *state) {
    return (double)(draw_next(state) >> 11) * 0x1p-53;
}

static void flip(const Step *s, Planes *p, uint64_t *state) {
    char keep[16];
    if (uniform(state) >= s->a) return;
    for (int64_t y = 0; y < p->n * p->height; y++) {
        char *row = p->data + (size_t)(y * p->width) * p->size;
        for (int64_t i = 0, k = p->width - 1; i < k; i++, k--) {
            char *a = row + (size_t)i * p->size, *b = row + (size_t)k * p->size;
            memcpy(keep, a, p->size);
            memcpy(a, b, p->size);
            memcpy(b, keep, p->size);
        }
    }
}

/* With zeros around it the picture is larger by `a` on each side; a window
   of the original size lies at a random position in it. */
static void crop(const Step *s, Planes *p, uint64_t *state) {
    int64_t pad = (int64_t)s->a, h = p->height, w = p->width;
    int64_t dy = (int64_t)(uniform(state) * (double)(2 * pad + 1)) - pad;
    int64_t dx = (int64_t)(uniform(state) * (double)(2 * pad + 1)) - pad;
    size_t all = (size_t)(p->n * h * w) * p->size;
    int64_t left = dx < 0 ? -dx : 0, most = w - (dx < 0 ? -dx : dx);
    memcpy(p->scratch, p->data, all);
    memset(p->data, 0, all);
    for (int64_t k = 0; k < p->n && most > 0; k++)
        for (int64_t y = 0; y < h; y++) {
            int64_t from = y + dy;
            if (from < 0 || from >= h) continue;
            memcpy(p->data + (size_t)((k * h + y) * w + left) * p->size,
                   p->scratch +
                       (size_t)((k * h + from) * w + left + dx) * p->size,
                   (size_t)most * p->size);
        }
}

static void normalize(const Step *s, Planes *p, uint64_t *state) {
    float *x = (float *)p->data;
    int64_t all = p->n * p->height * p->width, each = all / p->channels;
    (void)state;
    for (int64_t i = 0; i < all; i++) {
        int64_t c = s->n == 1 ? 0 : i / each;
        x[i] = (float)((x[i] - s->mean[c]) / s->std[c]);
    }
}

static const StepKind kinds[] = {
    {.name = "flip",
     .form = "flip or flip:SHARE",
     .draws = true,
     .planes = true,
     .read = read_flip,
     .apply = flip},
    {.name = "crop",
     .form = "crop:PIXELS (1 to 4096)",
     .draws = true,
     .floats = true,
     .planes = true,
     .read = read_crop,
     .apply = crop},
    {.name = "normalize",
     .form = "normalize:MEAN/STD, of channels normalize:M:M:M/S:S:S",
     .floats = true,
     .read = read_normalize,
     .apply = normalize},
    {.name = "mixup",
     .form = "mixup:ALPHA",
     .draws = true,
     .floats = true,
     .read = read_mixup},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- reading ------------------------------------------------------------- */

static Status unknown_step(Diag *d, const char *name) {
    StrBuf all = {0};
    char text[NEAR_TEXT];
    Near near = near_to(name);
    for (int i = 0; i < KINDS; i++) {
        near_offer(&near, kinds[i].name);
        sb_printf(&all, "%s%s", i ? "; " : "", kinds[i].form);
    }
    fail(d, (Loc){0}, "--augment: unknown step '%s'; the steps are %s%s", name,
         all.data, near_text(&near, text));
    sb_free(&all);
    return ERR_USAGE;
}

static Status read_step(Diag *d, char *word, Step *s) {
    char *value = strchr(word, ':');
    *s = (Step){.kind = NULL};
    if (value) *value++ = 0;
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(word, kinds[i].name)) s->kind = &kinds[i];
    if (!s->kind) return unknown_step(d, word);
    if (s->kind->read(s, value ? value : "")) return OK;
    fail(d, (Loc){0}, "--augment: '%s%s%s': the form is %s", word,
         value ? ":" : "", value ? value : "", s->kind->form);
    return ERR_USAGE;
}

/* The steps follow the last '=': names may contain one. */
static Status read_spec(Diag *d, const char *spec, Augment *a) {
    char text[512], *save = NULL;
    const char *steps = strrchr(spec, '=') + 1;
    a->n = 0;
    if (strlen(steps) >= sizeof text) return unknown_step(d, steps);
    snprintf(text, sizeof text, "%s", steps);
    for (char *word = strtok_r(text, ",", &save); word;
         word = strtok_r(NULL, ",", &save)) {
        if (a->n == STEPS) {
            fail(d, (Loc){0}, "--augment %s: more than %d steps", spec, STEPS);
            return ERR_USAGE;
        }
        TRY(read_step(d, word, &a->step[a->n++]));
    }
    return a->n ? OK : unknown_step(d, "");
}

Status augment_check(Diag *d, const RunList *specs) {
    Augment a;
    for (int i = 0; i < specs->n; i++) TRY(read_spec(d, specs->at[i], &a));
    return OK;
}

/* ---- inputs -------------------------------------------------------------- */

static Feed *find_feed(const FeedSet *fs, const char *spec) {
    size_t n = (size_t)(strrchr(spec, '=') - spec);
    for (int i = 0; fs && i < fs->n; i++) {
        const char *name = fs->feed[i].want.name;
        if (strlen(name) == n && !strncmp(name, spec, n)) return &fs->feed[i];
    }
    return NULL;
}

static Planes planes_of(const Feed *f) {
    const ampc_tensor_info *t = &f->want;
    Planes p = {.n = 1, .height = 1, .width = 1, .channels = 1};
    p.size = f->want.bytes;
    for (int i = 0; i < t->rank; i++) p.size /= (size_t)t->shape[i];
    if (t->rank >= 3) {
        p.height = t->shape[t->rank - 2];
        p.width = t->shape[t->rank - 1];
    }
    p.n = f->per / (p.height * p.width);
    if (t->rank >= 2) p.channels = t->shape[1];
    return p;
}

static Status augment_misfit(Diag *d, const Feed *f, const Step *s,
                             const char *why) {
    return fail(d, (Loc){0}, "--augment %s=%s: %s", f->want.name, s->kind->name,
                why);
}

static Status check_step(Diag *d, const Feed *f, const Step *s) {
    Planes p = planes_of(f);
    if (!f->per) return augment_misfit(d, f, s, "the input has no samples");
    if (s->kind->floats && f->want.dtype != AMPC_DTYPE_F32)
        return augment_misfit(d, f, s,
                              s->kind->apply
                                  ? "the input is not f32"
                                  : "mixed labels are probabilities: "
                                    "compile with --loss "
                                    "soft_cross_entropy, which takes class "
                                    "numbers from files, too");
    if (s->kind->planes && f->want.rank < 3)
        return augment_misfit(d, f, s, "the input has no rows and columns");
    if (s->n > 1 &&
        (s->n != p.channels ||
         f->per * f->want.shape[0] * (int64_t)p.size != (int64_t)f->want.bytes))
        return augment_misfit(d, f, s,
                              "the input has another number of channels");
    return OK;
}

static Status give(Diag *d, FeedSet *fs, Feed *f, const Augment *a) {
    for (int i = 0; i < a->n; i++) TRY(check_step(d, f, &a->step[i]));
    if (f->augment)
        return fail(d, (Loc){0}, "--augment: '%s' is given twice",
                    f->want.name);
    size_t row = (size_t)f->per * planes_of(f).size;
    f->augment = malloc(sizeof *f->augment);
    if (!f->augment) return fail(d, (Loc){0}, "out of memory");
    *f->augment = *a;
    f->augment->scratch = malloc(row * (size_t)fs->batch + 1);
    return f->augment->scratch ? OK : fail(d, (Loc){0}, "out of memory");
}

static const Step *find_mixup(const Augment *a) {
    for (int i = 0; a && i < a->n; i++)
        if (!a->step[i].kind->apply) return &a->step[i];
    return NULL;
}

/* Labels are mixed like their pictures: input 'target', or the inputs named. */
static Status mix_labels(Diag *d, FeedSet *fs) {
    const Step *mixup = NULL;
    const Feed *first = NULL;
    int n = 0;
    for (int i = 0; i < fs->n; i++) {
        const Step *s = find_mixup(fs->feed[i].augment);
        if (!s) continue;
        if (mixup && mixup->a != s->a)
            return augment_misfit(d, &fs->feed[i], s,
                                  "two inputs have another ALPHA");
        mixup = s;
        first = &fs->feed[i];
        n++;
    }
    if (!mixup) return OK;
    Augment labels = {.step = {*mixup}, .n = 1, .training = true};
    for (int i = 0; i < fs->n; i++) {
        Feed *f = &fs->feed[i];
        if (strncmp(f->want.name, "target", 6) || f->augment) continue;
        TRY(give(d, fs, f, &labels));
        n++;
    }
    return n > 1 ? OK
                 : augment_misfit(
                       d, first, mixup,
                       "no labels are mixed with it: name their input, too, "
                       "--augment LABELS=mixup:ALPHA");
}

static Status augment_no_input(Diag *d, const char *spec, const FeedSet *fs,
                               const FeedSet *known) {
    char text[NEAR_TEXT], *name = strdup(spec);
    if (!name) out_of_memory();
    name[strcspn(name, "=")] = 0;
    Near near = near_to(name);
    for (int i = 0; i < fs->n; i++) near_offer(&near, fs->feed[i].want.name);
    for (int i = 0; known && i < known->n; i++)
        near_offer(&near, known->feed[i].want.name);
    Status st =
        fail(d, (Loc){0}, "--augment %s: the module has no such input%s", spec,
             near_text(&near, text));
    free(name);
    return st;
}

Status augment_open(Diag *d, const RunList *specs, const FeedSet *known,
                    bool training, int64_t seed, FeedSet *fs) {
    Augment a = {.training = training};
    fs->seed = seed;
    for (int i = 0; i < specs->n; i++) {
        TRY(read_spec(d, specs->at[i], &a));
        Feed *f = find_feed(fs, specs->at[i]);
        if (!f && !find_feed(known, specs->at[i]))
            return augment_no_input(d, specs->at[i], fs, known);
        if (f) TRY(give(d, fs, f, &a));
    }
    return training ? mix_labels(d, fs) : OK;
}

void augment_free(FeedSet *fs) {
    for (int i = 0; i < fs->n; i++) {
        if (fs->feed[i].augment) free(fs->feed[i].augment->scratch);
        free(fs->feed[i].augment);
        fs->feed[i].augment = NULL;
    }
}

/* ---- rows ---------------------------------------------------------------- */

static uint64_t state_for(const FeedSet *fs, int64_t sample,
                          const StepKind *kind) {
    uint64_t state = (uint64_t)fs->seed,
             part[3] = {(uint64_t)fs->epoch, (uint64_t)sample,
                        (uint64_t)(kind - kinds)};
    for (int i = 0; i < 3; i++) {
        state = draw_next(&state);
        state ^= part[i] * 0xd1342543de82ef95u;
    }
    draw_next(&state);
    return state;
}

static int64_t sample_at(const int64_t *order, int64_t i) {
    return order ? order[i] : i;
}

static void augment_row(const FeedSet *fs, Feed *f, int64_t row,
                        int64_t sample) {
    Planes p = planes_of(f);
    p.data = f->to + (size_t)(row * f->per) * p.size;
    p.scratch = f->augment->scratch;
    for (int i = 0; i < f->augment->n; i++) {
        const Step *s = &f->augment->step[i];
        if (!s->kind->apply || (s->kind->draws && !f->augment->training))
            continue;
        uint64_t state = state_for(fs, sample, s->kind);
        s->kind->apply(s, &p, &state);
    }
}

static double normal(uint64_t *state) {
    double u = 1 - uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Marsaglia and Tsang's method; shapes below 1 use their boost. */
static double gamma_draw(double shape, uint64_t *state) {
    double boost = shape < 1 ? pow(1 - uniform(state), 1 / shape) : 1;
    double k = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    for (;;) {
        double x = normal(state), v = 1 + x / sqrt(9 * k);
        if (v <= 0) continue;
        v = v * v * v;
        if (log(1 - uniform(state)) < x * x / 2 + k - k * v + k * log(v))
            return boost * k * v;
    }
}

/* Row i becomes share x_i + (1 - share) x_k with a row k of the same batch. */
static void mix(const FeedSet *fs, Feed *f, const Step *s, const int64_t *order,
                int64_t first, int64_t n) {
    float *x = (float *)f->to, *old = (float *)f->augment->scratch;
    memcpy(old, x, (size_t)(n * f->per) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        uint64_t state = state_for(fs, sample_at(order, first + i), s->kind);
        int64_t k = (int64_t)(uniform(&state) * (double)n);
        double a = gamma_draw(s->a, &state), b = gamma_draw(s->a, &state);
        double share = a + b > 0 ? a / (a + b) : 1;
        for (int64_t e = 0; e < f->per; e++)
            x[i * f->per + e] = (float)(share * old[i * f->per + e] +
                                        (1 - share) * old[k * f->per + e]);
    }
}

void augment_rows(FeedSet *fs, const int64_t *order, int64_t first, int64_t n) {
    for (int i = 0; i < fs->n; i++) {
        Feed *f = &fs->feed[i];
        if (!f->augment) continue;
        for (int64_t r = 0; r < n; r++)
            augment_row(fs, f, r, sample_at(order, first + r));
        const Step *mixup = find_mixup(f->augment);
        if (mixup && f->augment->training) mix(fs, f, mixup, order, first, n);
    }
}

/* ---- what is told -------------------------------------------------------- */

void augment_tells(const RunList *specs, StrBuf *sb) {
    for (int i = 0; i < specs->n; i++) {
        const char *steps = strrchr(specs->at[i], '=') + 1;
        bool normal = strstr(steps, "normalize") != NULL;
        sb_printf(sb, "%.*s: %s in training%s\n",
                  (int)(steps - 1 - specs->at[i]), specs->at[i], steps,
                  normal ? "; normalize also in evaluation and prediction"
                         : "; evaluation and prediction take samples as they "
                           "are");
    }
}
