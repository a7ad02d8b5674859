/* SPDX-License-Identifier: Apache-2.0 */
/* feed.c: see feed.h. */
#define _POSIX_C_SOURCE 200809L
#include "frontend/data/feed.h"
#include "ir/base/near.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/data/augment.h"
#include "frontend/data/feed_size.h"
#include "frontend/data/images.h"
#include "ir/base/files.h"
#include "runtime/program/dtype.h"

/* ---- names --------------------------------------------------------------- */

/* The file of "INPUT=FILE" if the input is `name`; names may contain '='. */
static const char *spec_file(const char *spec, const char *name) {
    size_t n = strlen(name);
    return strncmp(spec, name, n) == 0 && spec[n] == '=' ? spec + n + 1 : NULL;
}

static bool input_info(const ampc_api *api, const char *program, uint32_t i,
                       ampc_tensor_info *t) {
    *t = (ampc_tensor_info){.size = sizeof *t};
    return api->input(api->module, program, i, t) == AMPC_OK;
}

/* Program eval has the inputs of every objective. */
static const char *const programs[] = {"train", "micro", "eval", "predict",
                                       "outputs"};
enum { PROGRAM_COUNT = sizeof programs / sizeof *programs };

static bool spec_known(const ampc_api *api, const char *spec) {
    ampc_tensor_info t;
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t i = 0; input_info(api, programs[p], i, &t); i++)
            if (spec_file(spec, t.name)) return true;
    return false;
}

static const char *option_of(const RunList *specs) {
    return specs->option ? specs->option : "--feed";
}

/* "; did you mean 'x'?", for the name in NAME=FILE. */
static const char *like_input(const ampc_api *api, const char *program,
                              const char *spec, char text[NEAR_TEXT]) {
    char name[100];
    ampc_tensor_info t;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, "="), spec);
    Near near = near_to(name);
    for (uint32_t i = 0; input_info(api, program, i, &t); i++)
        near_offer(&near, t.name);
    return near_text(&near, text);
}

static Status check_specs(Diag *d, const ampc_api *api, const char *program,
                          const RunList *specs) {
    ampc_tensor_info t;
    StrBuf names = {0};
    for (int k = 0; k < specs->n; k++) {
        if (spec_known(api, specs->at[k])) continue;
        int n = 0;
        for (; input_info(api, program, (uint32_t)n, &t); n++)
            if (sb_put_next(&names, n)) sb_put_escaped(&names, t.name);
        sb_put_more(&names, n);
        char text[NEAR_TEXT];
        fail(d, (Loc){0}, "%s '%s': no such input; the module's inputs: %s%s",
             option_of(specs), specs->at[k], names.data ? names.data : "none",
             like_input(api, program, specs->at[k], text));
        sb_free(&names);
        return ERR_USER;
    }
    return OK;
}

/* The file for an input; NULL: none. *twice: set if two specs name it. */
static const char *feed_find_file(const RunList *specs, const char *name,
                                  bool *twice) {
    const char *found = NULL;
    *twice = false;
    for (int k = 0; k < specs->n; k++) {
        const char *file = spec_file(specs->at[k], name);
        if (!file) continue;
        *twice = found != NULL;
        found = file;
    }
    return found;
}

/* ---- does a file fit? ---------------------------------------------------- */

/* A file may have a colon in its name. */
const char *file_part(char *file) {
    char *colon = access(file, F_OK) == 0 ? NULL : strrchr(file, ':');
    if (!colon) return NULL;
    *colon = 0;
    if (access(file, F_OK) == 0) return colon + 1;
    *colon = ':';
    return NULL;
}

static size_t elem_bytes(int dtype) { return dtype_bytes((uint32_t)dtype); }

static bool feed_is_integer(int t) {
    return t >= AMPC_DTYPE_U8 && t <= AMPC_DTYPE_I64;
}

static bool converts(int from, int to) {
    return from == to || is_float_dtype((uint32_t)to) ||
           (feed_is_integer(from) && feed_is_integer(to));
}

static int64_t integer_at(const char *p, int t) {
    switch (t) {
    case AMPC_DTYPE_U8: return *(const uint8_t *)p;
    case AMPC_DTYPE_I8: return *(const int8_t *)p;
    case AMPC_DTYPE_U16: return *(const uint16_t *)p;
    case AMPC_DTYPE_I16: return *(const int16_t *)p;
    case AMPC_DTYPE_U32: return *(const uint32_t *)p;
    case AMPC_DTYPE_I32: return *(const int32_t *)p;
    default: return *(const int64_t *)p; /* u64: its bits */
    }
}

static void integer_put(char *p, int t, int64_t v) {
    switch (t) {
    case AMPC_DTYPE_U8: *(uint8_t *)p = (uint8_t)v; break;
    case AMPC_DTYPE_I8: *(int8_t *)p = (int8_t)v; break;
    case AMPC_DTYPE_U16: *(uint16_t *)p = (uint16_t)v; break;
    case AMPC_DTYPE_I16: *(int16_t *)p = (int16_t)v; break;
    case AMPC_DTYPE_U32: *(uint32_t *)p = (uint32_t)v; break;
    case AMPC_DTYPE_I32: *(int32_t *)p = (int32_t)v; break;
    default: *(int64_t *)p = v; break;
    }
}

static void shape_put(StrBuf *sb, int dtype, int rank, const int64_t *dim) {
    sb_printf(sb, "%s[", dtype_info[dtype].text);
    for (int i = 0; i < rank; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)dim[i]);
    sb_puts(sb, "]");
}

Fed feed_facts(const Feed *f, int64_t samples) {
    return (Fed){&f->a, &f->want, f->per, samples, f->classes};
}

static Status feed_misfit(Diag *d, const Feed *f, const char *hint) {
    StrBuf sb = {0};
    shape_put(&sb, f->a.dtype, f->a.rank, f->a.dim);
    sb_printf(&sb, " does not fit input '%s' ", f->want.name);
    shape_put(&sb, f->want.dtype, f->want.rank, f->want.shape);
    sb_printf(&sb, ": %s", hint);
    Fed fed = feed_facts(f, 0);
    fed_hint(&fed, &sb);
    fail(d, (Loc){.file = f->file}, "%s", sb.data);
    sb_free(&sb);
    return ERR_USER;
}

static Status integers_fit(Diag *d, const Feed *f, const char *p, int64_t first,
                           int64_t n) {
    int from = f->a.dtype, to = f->want.dtype;
    size_t size = elem_bytes(from);
    for (int64_t k = 0; k < n; k++) {
        int64_t v = integer_at(p + (size_t)k * size, from);
        _Alignas(8) char back[8] = {0};
        bool sign = v < 0 && (from == AMPC_DTYPE_U64 || to == AMPC_DTYPE_U64);
        integer_put(back, to, v);
        if (integer_at(back, to) == v && !sign) continue;
        int64_t at = f->per ? (first + k) / f->per : 0;
        char text[24];
        snprintf(text, sizeof text,
                 from == AMPC_DTYPE_U64 ? "%" PRIu64 : "%" PRId64, v);
        return fail(d, (Loc){.file = f->file},
                    "sample %" PRId64 ": the value %s does not fit input '%s', "
                    "%s",
                    at, text, f->want.name, dtype_info[to].text);
    }
    return OK;
}

/* True for every value of the type. */
static bool feed_widens(int from, int to) {
    bool sign_from = dtype_info[from].npy[0] == 'i';
    bool sign_to = dtype_info[to].npy[0] == 'i';
    if (sign_from == sign_to) return elem_bytes(from) <= elem_bytes(to);
    return sign_to && elem_bytes(from) < elem_bytes(to);
}

/* True if every value can be stored in the other width. */
static Status feed_check_integers(Diag *d, const Feed *f) {
    enum { PART = 8192 };
    _Alignas(8) char part[PART * 8];
    int from = f->a.dtype, to = f->want.dtype;
    if (from == to || !feed_is_integer(from) || !feed_is_integer(to)) return OK;
    if (feed_widens(from, to)) return OK;
    for (int64_t at = 0; at < f->a.count; at += PART) {
        int64_t n = f->a.count - at < PART ? f->a.count - at : PART;
        TRY(array_get(d, f->file, &f->a, at, n, part));
        TRY(integers_fit(d, f, part, at, n));
    }
    return OK;
}

static bool has_shape_of(const Array *a, const ampc_tensor_info *t) {
    return a->rank == (int)t->rank && (int)t->rank <= AMPC_RANK_LIMIT &&
           !memcmp(a->dim, t->shape, t->rank * sizeof *a->dim);
}

/* Number of samples without elements; -1: they have another shape. */
static int64_t count_empty(const Feed *f, int64_t batch) {
    ampc_tensor_info t = f->want;
    if (t.rank == 0 || batch <= 0 || t.shape[0] != batch || f->a.rank < 1)
        return -1;
    t.shape[0] = f->a.dim[0];
    return has_shape_of(&f->a, &t) ? f->a.dim[0] : -1;
}

/* Number of samples in the file for an input that takes `batch` of them at
   once; -1 if the shapes do not match. If the first axis of an input is k
   times the batch, a sample has k rows, in a file of either layout. If the
   first axis is not a multiple of the batch, or the input has no elements, the
   whole array is passed with each batch. */
static int64_t count_samples(Feed *f, int64_t batch) {
    int64_t elems = (int64_t)(f->want.bytes / elem_bytes(f->want.dtype));
    const Array *a = &f->a;
    if (elems == 0) {
        f->per = 0;
        return has_shape_of(a, &f->want) ? 0 : count_empty(f, batch);
    }
    if (f->want.rank == 0 || batch <= 0 || f->want.shape[0] % batch) {
        f->per = 0;
        return a->count == elems ? 0 : -1;
    }
    int64_t rows = f->want.shape[0] / batch, all;
    f->per = elems / batch;
    if (a->rank == 0) return -1;
    if (a->windows) return a->count / f->per;
    int64_t samples = a->dim[0];
    if (samples && a->count / samples != f->per && rows > 1 &&
        samples % rows == 0)
        samples /= rows;
    return mul_ok(samples, f->per, &all) && all == a->count ? samples : -1;
}

/* For labels [batch, classes, ..] of probabilities and a file with one class
   number for each label: number of samples in it; -1: another kind of file. */
static int64_t count_labels(Feed *f, int64_t batch) {
    const Array *a = &f->a;
    const ampc_tensor_info *t = &f->want;
    int64_t all;
    if (strncmp(t->name, "target", 6) || t->dtype != AMPC_DTYPE_F32 ||
        t->rank < 2 || t->shape[0] != batch || t->shape[1] < 1 ||
        !feed_is_integer(a->dtype) || a->windows || a->rank < 1)
        return -1;
    f->classes = t->shape[1];
    return mul_ok(a->dim[0], f->per / f->classes, &all) && all == a->count
               ? a->dim[0]
               : -1;
}

/* Stores n samples of class numbers, from `sample` on, as probabilities. */
static Status put_classes(Diag *d, const Feed *f, int64_t sample, int64_t n,
                          char *out) {
    int64_t each = f->per / f->classes;
    size_t size = elem_bytes(f->a.dtype);
    memset(out, 0, (size_t)(n * f->per) * sizeof(float));
    for (int64_t i = 0; i < n * each; i++) {
        int64_t c = integer_at(f->raw + (size_t)i * size, f->a.dtype);
        int64_t row = i / each, at = i % each;
        if (c < 0 || c >= f->classes)
            return fail(d, (Loc){.file = f->file},
                        "sample %" PRId64 ": class %" PRId64
                        " is not one of the %" PRId64 " of input '%s'",
                        sample + row, c, f->classes, f->want.name);
        ((float *)out)[row * f->per + c * each + at] = 1;
    }
    return OK;
}

static Status check_fit(Diag *d, FeedSet *fs, Feed *f) {
    int from = f->a.dtype, to = f->want.dtype;
    if (!converts(from, to)) return feed_misfit(d, f, "another kind of values");
    int64_t samples = count_samples(f, fs->batch);
    if (samples < 0) samples = count_labels(f, fs->batch);
    if (samples < 0) {
        char why[100];
        snprintf(why, sizeof why, "element counts differ%s",
                 feed_sizes_hint(fs, f));
        return feed_misfit(d, f, why);
    }
    Fed fed = feed_facts(f, samples);
    if (f->per && !fed_lies_right(&fed))
        return feed_misfit(d, f, "shapes differ");
    TRY(feed_check_integers(d, f));
    if (f->per == 0 && samples == 0) return OK;
    if (samples == 0)
        return fail(d, (Loc){.file = f->file}, "the file has 0 samples");
    if (fs->samples >= 0 && samples != fs->samples)
        return fail(d, (Loc){.file = f->file},
                    "%lld samples; the other inputs have %lld",
                    (long long)samples, (long long)fs->samples);
    fs->samples = samples;
    return OK;
}

/* ---- open ---------------------------------------------------------------- */

/* The same input in the set that trains. */
static const Feed *trained_feed(const FeedHow *how, const char *input) {
    for (int i = 0; how->like && i < how->like->n; i++)
        if (!strcmp(how->like->feed[i].want.name, input))
            return &how->like->feed[i];
    return NULL;
}

static const Classes *known_classes(const FeedHow *how, const char *input) {
    const Feed *f = trained_feed(how, input);
    if (f && f->a.classes.name) return &f->a.classes;
    return how->recorded ? classes_known(how->recorded, input) : NULL;
}

/* Labels with names beside labels that train as numbers. */
static Status feed_check_names(Diag *d, const FeedSet *fs, const Feed *f) {
    const Feed *trained = trained_feed(&fs->how, f->want.name);
    if (!trained || trained->a.classes.name || !f->a.classes.name) return OK;
    return fail(d, (Loc){.file = f->file},
                "its classes have names, and those that train (%s) are "
                "numbers: which name has which number is not known",
                trained->file);
}

/* A folder contains pictures, and a column of a table may name them. */
static Status open_data(Diag *d, Feed *f) {
    struct stat st;
    bool pictures;
    if (stat(f->path, &st) == 0 && S_ISDIR(st.st_mode))
        return images_open(d, f->path, &f->want, f->pick.known, &f->a);
    TRY(images_of_table(d, f->path, f->pick.part, &f->want, &f->a, &pictures));
    return pictures ? OK : array_open(d, f->path, &f->pick, &f->a);
}

static Status open_feed_one(Diag *d, FileGuard *guard, const char *option,
                            FeedSet *fs, Feed *f) {
    f->path = strdup(f->file);
    if (!f->path) return fail(d, (Loc){0}, "out of memory");
    f->pick.part = file_part(f->path);
    TRY(file_reads(d, guard, f->path, option));
    f->pick.input = f->want.name;
    f->pick.integers = !is_float_dtype((uint32_t)f->want.dtype);
    f->pick.labels = takes_labels(&f->want);
    f->pick.known = known_classes(&fs->how, f->want.name);
    f->pick.vocabulary = fs->how.vocabulary;
    TRY(open_data(d, f));
    TRY(feed_check_names(d, fs, f));
    feed_sizes_shrink(fs, f);
    TRY(check_fit(d, fs, f));
    size_t elems = f->want.bytes / elem_bytes(f->want.dtype);
    f->to = f->batch = calloc(f->want.bytes ? f->want.bytes : 1, 1);
    if ((int)f->a.dtype != f->want.dtype)
        f->raw = calloc(elems ? elems : 1, elem_bytes(f->a.dtype));
    return f->batch && (f->raw || (int)f->a.dtype == f->want.dtype)
               ? OK
               : fail(d, (Loc){.file = f->file}, "out of memory");
}

static Status feed_begin(Diag *d, const ampc_api *api, const char *program,
                         FeedSet *fs, uint32_t *ninput) {
    ampc_program_info p = {.size = sizeof p};
    ampc_module_info m = {.size = sizeof m};
    *fs = (FeedSet){.program = program, .samples = -1};
    if (api->program(api->module, program, &p) != AMPC_OK ||
        api->describe(api->module, &m) != AMPC_OK)
        return fail(d, (Loc){0}, "this module has no program '%s'", program);
    fs->batch = m.batch;
    fs->feed = calloc(p.ninput + 1, sizeof *fs->feed);
    fs->in = calloc(p.ninput + 1, sizeof *fs->in);
    *ninput = p.ninput;
    return fs->feed && fs->in ? OK : fail(d, (Loc){0}, "out of memory");
}

static Feed *add_feed(const ampc_api *api, uint32_t index, FeedSet *fs) {
    Feed *f = &fs->feed[fs->n++];
    f->a.fd = -1;
    input_info(api, fs->program, index, &f->want);
    return f;
}

Status feed_try(Diag *d, FileGuard *guard, const ampc_api *api,
                const char *program, uint32_t index, const char *file,
                FeedSet *fs) {
    uint32_t n;
    TRY(feed_begin(d, api, program, fs, &n));
    TRY(feed_sizes_open(d, api, fs, index, 1));
    Feed *f = add_feed(api, index, fs);
    f->file = file;
    return open_feed_one(d, guard, f->want.name, fs, f);
}

static Status open_all(Diag *d, FileGuard *guard, const ampc_api *api,
                       const char *program, const RunList *specs, bool sizes,
                       const FeedHow *how, FeedSet *fs) {
    uint32_t n;
    *fs = (FeedSet){.n = 0};
    TRY(check_specs(d, api, program, specs));
    TRY(feed_begin(d, api, program, fs, &n));
    if (how) fs->how = *how;
    if (sizes) TRY(feed_sizes_open(d, api, fs, 0, n));
    for (uint32_t i = 0; i < n; i++) {
        Feed *f = add_feed(api, i, fs);
        bool twice;
        f->file = feed_find_file(specs, f->want.name, &twice);
        if (!f->file || twice)
            return fail(d, (Loc){0}, "input '%s' %s (%s %s=FILE)", f->want.name,
                        twice ? "is fed twice" : "is not fed", option_of(specs),
                        f->want.name);
        TRY(open_feed_one(d, guard, option_of(specs), fs, f));
    }
    if (fs->samples < 0) /* every array is passed whole: one batch */
        fs->samples = fs->batch > 0 ? fs->batch : 1;
    return OK;
}

Status feeds_open(Diag *d, FileGuard *guard, const ampc_api *api,
                  const char *program, const RunList *specs, FeedSet *fs) {
    return open_all(d, guard, api, program, specs, false, NULL, fs);
}

Status feeds_open_sizes(Diag *d, FileGuard *guard, const ampc_api *api,
                        const char *program, const RunList *specs,
                        const FeedHow *how, FeedSet *fs) {
    return open_all(d, guard, api, program, specs, true, how, fs);
}

void feeds_free(FeedSet *fs) {
    augment_free(fs);
    feed_sizes_free(fs);
    for (int i = 0; i < fs->n; i++) {
        array_close(&fs->feed[i].a);
        free(fs->feed[i].path);
        free(fs->feed[i].batch);
        free(fs->feed[i].raw);
    }
    free(fs->feed);
    free(fs->in);
    *fs = (FeedSet){.n = 0};
}

/* ---- fill ---------------------------------------------------------------- */

static double plain_number(const char *p, int t) {
    switch (t) {
    case AMPC_DTYPE_BOOL: return *(const uint8_t *)p != 0;
    case AMPC_DTYPE_U64: return (double)*(const uint64_t *)p;
    default:
        return feed_is_integer(t) ? (double)integer_at(p, t)
                                  : float_at((uint32_t)t, p);
    }
}

static double feed_number_at(const char *p, int t) {
    return t == AMPC_DTYPE_U8 ? *(const uint8_t *)p / 255.0
                              : plain_number(p, t);
}

void numbers_of(int dtype, const void *data, int64_t first, int64_t n,
                double *to) {
    size_t size = elem_bytes(dtype);
    const char *p = (const char *)data + (size_t)first * size;
    for (int64_t i = 0; i < n; i++)
        to[i] = plain_number(p + (size_t)i * size, dtype);
}

/* A finite number must not become infinite: returns the index where one
   does, or -1. */
static int64_t convert_numbers(char *out, int to, const char *p, int from,
                               int64_t n) {
    size_t a = elem_bytes(from), b = elem_bytes(to);
    int64_t bad = -1;
    for (int64_t i = 0; i < n; i++) {
        double v = feed_number_at(p + (size_t)i * a, from);
        if (!float_put((uint32_t)to, v, out + (size_t)i * b) && bad < 0)
            bad = i;
    }
    return bad;
}

/* Converts elements [first, first + n) of the file, read to f->raw, to
   `out`. */
static Status feed_convert(Diag *d, const Feed *f, int64_t first, int64_t n,
                           char *out) {
    int from = f->a.dtype, to = f->want.dtype;
    if (!is_float_dtype((uint32_t)to)) {
        size_t a = elem_bytes(from), b = elem_bytes(to);
        for (int64_t i = 0; i < n; i++)
            integer_put(out + (size_t)i * b, to,
                        integer_at(f->raw + (size_t)i * a, from));
        return OK;
    }
    if (from == AMPC_DTYPE_U8 && to == AMPC_DTYPE_F32) { /* most images */
        const uint8_t *p = (const uint8_t *)f->raw;
        for (int64_t i = 0; i < n; i++) ((float *)out)[i] = p[i] / 255.0f;
        return OK;
    }
    int64_t bad = convert_numbers(out, to, f->raw, from, n);
    if (bad < 0) return OK;
    return fail(d, (Loc){.file = f->file},
                "sample %" PRId64 ": the value %g does not fit input '%s', %s",
                f->per ? (first + bad) / f->per : 0,
                feed_number_at(f->raw + (size_t)bad * elem_bytes(from), from),
                f->want.name, dtype_info[to].text);
}

/* Fills rows [row, row + n) of the batch with samples from `sample` on. */
static Status fill_rows(Diag *d, Feed *f, int64_t row, int64_t sample,
                        int64_t n) {
    size_t to = (size_t)f->per * elem_bytes(f->want.dtype);
    char *out = f->to + (size_t)row * to;
    if (f->classes) {
        int64_t each = f->per / f->classes;
        TRY(array_get(d, f->file, &f->a, sample * each, n * each, f->raw));
        return put_classes(d, f, sample, n, out);
    }
    TRY(array_get(d, f->file, &f->a, sample * f->per, n * f->per,
                  f->raw ? f->raw : out));
    return f->raw ? feed_convert(d, f, sample * f->per, n * f->per, out) : OK;
}

static Status fill_one(Diag *d, Feed *f, const int64_t *order, int64_t first,
                       int64_t n) {
    if (!order) TRY(fill_rows(d, f, 0, first, n));
    for (int64_t r = 0; r < n && order; r++)
        TRY(fill_rows(d, f, r, order[first + r], 1));
    return OK;
}

/* Rows beyond n repeat the last one. */
static void feed_pad_one(Feed *f, int64_t batch, int64_t n) {
    size_t row = (size_t)f->per * elem_bytes(f->want.dtype);
    for (int64_t r = n; r < batch; r++)
        memcpy(f->to + (size_t)r * row, f->to + (size_t)(n - 1) * row, row);
}

static Status fill_value(Diag *d, Feed *f) {
    char *to = f->raw ? f->raw : f->to;
    TRY(array_get(d, f->file, &f->a, 0, f->a.count, to));
    return f->raw ? feed_convert(d, f, 0, f->a.count, f->to) : OK;
}

void feeds_stage(FeedSet *fs, const ampc_api *api, ampc_session *s) {
    bool stages = api->size >= offsetof(ampc_api, stage) + sizeof api->stage;
    if (!stages || fs->sizes) return;
    for (int i = 0; i < fs->n; i++) {
        void *to = NULL;
        Feed *f = &fs->feed[i];
        bool staged =
            api->stage(s, fs->program, (uint32_t)i, &to) == AMPC_OK && to;
        f->to = staged ? to : f->batch;
    }
}

Status feeds_fill(Diag *d, FeedSet *fs, const int64_t *order, int64_t first,
                  int64_t n) {
    for (int i = 0; i < fs->n; i++) {
        Feed *f = &fs->feed[i];
        TRY(f->per ? fill_one(d, f, order, first, n) : fill_value(d, f));
        fs->in[i] = ampc_in(f->want.name, f->to, f->want.bytes,
                            (ampc_dtype)f->want.dtype);
    }
    augment_rows(fs, order, first, n);
    for (int i = 0; i < fs->n; i++)
        if (fs->feed[i].per) feed_pad_one(&fs->feed[i], fs->batch, n);
    feed_sizes_cut(fs, n);
    return OK;
}

void feeds_keep(FeedSet *fs, int64_t n) {
    for (int i = 0; i < fs->n && n < fs->batch; i++) {
        ampc_input *in = &fs->in[i];
        if (fs->feed[i].per <= 0) continue;
        in->bytes = in->bytes / (size_t)fs->batch * (size_t)n;
        if (in->rank > 0) feed_sizes_keep(fs, i, n);
    }
}

Status feeds_size(Diag *d, FeedSet *fs, int64_t sample, int *size) {
    for (int i = 0; i < fs->n; i++)
        if (fs->feed[i].per) TRY(fill_rows(d, &fs->feed[i], 0, sample, 1));
    *size = feed_sizes_of(fs, 1);
    return OK;
}
