/* feed.c: see feed.h. */
#include "frontend/driver/feed.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/half.h"

/* ---- names --------------------------------------------------------------- */

/* The file of "INPUT=FILE" if the input is `name`; names may hold '='. */
static const char *spec_file(const char *spec, const char *name) {
    size_t n = strlen(name);
    return strncmp(spec, name, n) == 0 && spec[n] == '=' ? spec + n + 1 : NULL;
}

static bool input_info(const ampc_api *api, const char *program, uint32_t i,
                       ampc_tensor_info *t) {
    *t = (ampc_tensor_info){.size = sizeof *t};
    return api->input(api->module, program, i, t) == AMPC_OK;
}

static const char *const programs[] = {"train", "micro", "eval", "predict",
                                       "vjp"};
enum { PROGRAM_COUNT = sizeof programs / sizeof *programs };

static bool spec_known(const ampc_api *api, const char *spec) {
    ampc_tensor_info t;
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t i = 0; input_info(api, programs[p], i, &t); i++)
            if (spec_file(spec, t.name)) return true;
    return false;
}

static Status check_specs(Diag *d, const ampc_api *api, const char *program,
                          const char *const *specs, int nspec) {
    ampc_tensor_info t;
    StrBuf names = {0};
    for (int k = 0; k < nspec; k++) {
        if (spec_known(api, specs[k])) continue;
        for (uint32_t i = 0; input_info(api, program, i, &t); i++)
            sb_printf(&names, "%s%s", i ? ", " : "", t.name);
        fail(d, (Loc){0}, "--feed '%s': no such input; the module's inputs: %s",
             specs[k], names.data ? names.data : "none");
        sb_free(&names);
        return ERR_USER;
    }
    return OK;
}

/* The file for an input; NULL: none. *twice when there are two. */
static const char *find_file(const char *const *specs, int nspec,
                             const char *name, bool *twice) {
    const char *found = NULL;
    *twice = false;
    for (int k = 0; k < nspec; k++) {
        const char *file = spec_file(specs[k], name);
        if (!file) continue;
        *twice = found != NULL;
        found = file;
    }
    return found;
}

/* ---- does a file fit? ---------------------------------------------------- */

static bool is_float(int t) {
    return t == AMPC_DTYPE_F16 || t == AMPC_DTYPE_BF16 || t == AMPC_DTYPE_F32 ||
           t == AMPC_DTYPE_F64;
}

static bool is_integer(int t) {
    return t >= AMPC_DTYPE_U8 && t <= AMPC_DTYPE_I64;
}

static bool converts(int from, int to) {
    if (from == to) return true;
    if (from == AMPC_DTYPE_U8 && is_float(to)) return true;
    if (from == AMPC_DTYPE_F32 && to == AMPC_DTYPE_BF16) return true;
    return is_integer(from) && is_integer(to);
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

/* Every value survives the change of width. */
static bool integers_fit(const Array *a, int to) {
    size_t size = array_elem_bytes(a->dtype);
    for (int64_t k = 0; k < a->count; k++) {
        _Alignas(8) char back[8] = {0};
        int64_t v = integer_at(a->data + (size_t)k * size, a->dtype);
        integer_put(back, to, v);
        bool sign =
            v < 0 && (a->dtype == AMPC_DTYPE_U64 || to == AMPC_DTYPE_U64);
        if (integer_at(back, to) != v || sign) return false;
    }
    return true;
}

static void shape_put(StrBuf *sb, int dtype, int rank, const int64_t *dim) {
    sb_printf(sb, "%s[", array_dtype_name(dtype));
    for (int i = 0; i < rank; i++)
        sb_printf(sb, "%s%lld", i ? "," : "", (long long)dim[i]);
    sb_puts(sb, "]");
}

static Status misfit(Diag *d, const char *file, const Feed *f,
                     const char *hint) {
    StrBuf sb = {0};
    shape_put(&sb, f->a.dtype, f->a.rank, f->a.dim);
    sb_printf(&sb, " does not fit input '%s' ", f->want.name);
    shape_put(&sb, f->want.dtype, f->want.rank, f->want.shape);
    fail(d, (Loc){.file = file}, "%s: %s", sb.data, hint);
    sb_free(&sb);
    return ERR_USER;
}

static Status check_dtype(Diag *d, const char *file, const Feed *f) {
    int from = f->a.dtype, to = f->want.dtype;
    if (!converts(from, to))
        return misfit(d, file, f,
                      is_float(from) && is_float(to)
                          ? "convert the file to the input's type"
                          : "another kind of values");
    if (from != to && is_integer(from) && is_integer(to) &&
        !integers_fit(&f->a, to))
        return misfit(d, file, f, "a value does not fit that type");
    return OK;
}

/* Samples in the file for an input that takes `batch` of them at once; -1 when
   the shapes do not agree.  An input whose first axis is k times the batch
   takes k rows per sample, from files of either layout.                     */
static int64_t count_samples(Feed *f, int64_t batch) {
    int64_t elems = (int64_t)(f->want.bytes / array_elem_bytes(f->want.dtype));
    const Array *a = &f->a;
    if (f->want.rank == 0 || batch <= 0) {
        f->per = 0;
        return a->count == elems ? 0 : -1;
    }
    int64_t rows = f->want.shape[0] / batch;
    f->per = elems / batch;
    if (a->rank == 0 || f->want.shape[0] % batch || f->per == 0) return -1;
    int64_t samples = a->dim[0];
    if (samples && a->count / samples != f->per && rows > 1 &&
        samples % rows == 0)
        samples /= rows;
    return samples * f->per == a->count ? samples : -1;
}

static Status check_fit(Diag *d, const char *file, FeedSet *fs, Feed *f) {
    TRY(check_dtype(d, file, f));
    int64_t samples = count_samples(f, fs->batch);
    if (samples < 0) return misfit(d, file, f, "element counts differ");
    if (f->per == 0) return OK;
    if (fs->samples >= 0 && samples != fs->samples)
        return fail(d, (Loc){.file = file},
                    "%lld samples; the other inputs have %lld",
                    (long long)samples, (long long)fs->samples);
    fs->samples = samples;
    return OK;
}

/* ---- open ---------------------------------------------------------------- */

static Status open_one(Diag *d, FeedSet *fs, Feed *f, const char *file) {
    TRY(array_read(d, file, &f->a));
    TRY(check_fit(d, file, fs, f));
    f->batch = calloc(f->want.bytes ? f->want.bytes : 1, 1);
    return f->batch ? OK : fail(d, (Loc){.file = file}, "out of memory");
}

Status feeds_open(Diag *d, const ampc_api *api, const char *program,
                  const char *const *specs, int nspec, FeedSet *fs) {
    ampc_program_info p = {.size = sizeof p};
    ampc_module_info m = {.size = sizeof m};
    *fs = (FeedSet){.samples = -1};
    TRY(check_specs(d, api, program, specs, nspec));
    if (api->program(api->module, program, &p) != AMPC_OK ||
        api->describe(api->module, &m) != AMPC_OK)
        return fail(d, (Loc){0}, "this module has no program '%s'", program);
    fs->batch = m.batch;
    fs->feed = calloc(p.ninput + 1, sizeof *fs->feed);
    fs->in = calloc(p.ninput + 1, sizeof *fs->in);
    if (!fs->feed || !fs->in) return fail(d, (Loc){0}, "out of memory");
    for (uint32_t i = 0; i < p.ninput; i++) {
        Feed *f = &fs->feed[fs->n++];
        bool twice;
        input_info(api, program, i, &f->want);
        const char *file = find_file(specs, nspec, f->want.name, &twice);
        if (!file || twice)
            return fail(d, (Loc){0}, "input '%s' %s (--feed %s=FILE)",
                        f->want.name, twice ? "is fed twice" : "is not fed",
                        f->want.name);
        TRY(open_one(d, fs, f, file));
    }
    if (fs->samples <= 0)
        return fail(d, (Loc){0}, "the fed files hold no samples");
    return OK;
}

void feeds_free(FeedSet *fs) {
    for (int i = 0; i < fs->n; i++) {
        array_free(&fs->feed[i].a);
        free(fs->feed[i].batch);
    }
    free(fs->feed);
    free(fs->in);
    *fs = (FeedSet){.n = 0};
}

/* ---- fill ---------------------------------------------------------------- */

static void convert_pixels(char *out, int to, const uint8_t *p, int64_t n) {
    switch (to) {
    case AMPC_DTYPE_F32:
        for (int64_t i = 0; i < n; i++) ((float *)out)[i] = p[i] / 255.0f;
        break;
    case AMPC_DTYPE_F64:
        for (int64_t i = 0; i < n; i++) ((double *)out)[i] = p[i] / 255.0;
        break;
    case AMPC_DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = f32_to_f16(p[i] / 255.0f);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = f32_to_bf16(p[i] / 255.0f);
        break;
    }
}

static void convert(char *out, int to, const char *p, int from, int64_t n) {
    if (from == to) {
        memcpy(out, p, (size_t)n * array_elem_bytes(to));
    } else if (is_float(to) && from == AMPC_DTYPE_U8) {
        convert_pixels(out, to, (const uint8_t *)p, n);
    } else if (is_float(to)) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)out)[i] = f32_to_bf16(((const float *)p)[i]);
    } else {
        size_t a = array_elem_bytes(from), b = array_elem_bytes(to);
        for (int64_t i = 0; i < n; i++)
            integer_put(out + (size_t)i * b, to,
                        integer_at(p + (size_t)i * a, from));
    }
}

static void fill_one(Feed *f, int64_t batch, const int64_t *order,
                     int64_t first, int64_t n) {
    size_t from = (size_t)f->per * array_elem_bytes(f->a.dtype);
    size_t to = (size_t)f->per * array_elem_bytes(f->want.dtype);
    for (int64_t r = 0; r < batch; r++) {
        int64_t at = first + (r < n ? r : n - 1);
        if (order) at = order[at];
        convert(f->batch + (size_t)r * to, f->want.dtype,
                f->a.data + (size_t)at * from, f->a.dtype, f->per);
    }
}

void feeds_fill(FeedSet *fs, const int64_t *order, int64_t first, int64_t n) {
    for (int i = 0; i < fs->n; i++) {
        Feed *f = &fs->feed[i];
        const char *data = f->batch;
        size_t row = (size_t)f->per * array_elem_bytes(f->a.dtype);
        if (f->per == 0)
            convert(f->batch, f->want.dtype, f->a.data, f->a.dtype, f->a.count);
        else if (!order && n == fs->batch && (int)f->a.dtype == f->want.dtype)
            data = f->a.data + (size_t)first * row; /* as it lies */
        else
            fill_one(f, fs->batch, order, first, n);
        fs->in[i] = ampc_in(f->want.name, data, f->want.bytes,
                            (ampc_dtype)f->want.dtype);
    }
}
