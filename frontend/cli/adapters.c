/* SPDX-License-Identifier: Apache-2.0 */
/* adapters.c: see adapters.h.                                               */
#include "frontend/cli/adapters.h"

#include <math.h>
#include <string.h>

#include "ir/base/files.h"
#include "runtime/program/dtype.h"

/* ---- reading ------------------------------------------------------------- */

static bool text_at(Arena *a, JsonSpan object, const char *key, Str *out) {
    JsonSpan v;
    if (!json_get(object, key, &v)) return false;
    char *text = arena_alloc(a, v.n + 1);
    if (json_text(v, text, v.n + 1) < 0) return false;
    *out = intern(text);
    return true;
}

static bool adapters_number_at(JsonSpan object, const char *key, double *out) {
    JsonSpan v;
    return json_get(object, key, &v) && json_double(v, out);
}

static bool read_adapters_one(Arena *a, JsonSpan v, Adapter *x) {
    double rank, columns, feedforward, axes;
    bool ok = text_at(a, v, "module", &x->module) &&
              text_at(a, v, "weight", &x->weight) &&
              adapters_number_at(v, "rank", &rank) &&
              adapters_number_at(v, "alpha", &x->alpha) &&
              adapters_number_at(v, "dropout", &x->dropout) &&
              adapters_number_at(v, "columns", &columns) &&
              adapters_number_at(v, "feedforward", &feedforward) &&
              adapters_number_at(v, "axes", &axes) && rank >= 0 &&
              rank <= 65536 && axes >= 0 && axes <= MAX_RANK - 2;
    if (!ok) return false;
    x->rank = (int64_t)rank;
    x->columns = columns != 0;
    x->feedforward = feedforward != 0;
    x->axes = (int)axes;
    text_at(a, v, "magnitude", &x->magnitude);
    text_at(a, v, "bias", &x->bias);
    if (text_at(a, v, "factor", &x->factor)) return true;
    return rank >= 1 && text_at(a, v, "a", &x->a) && text_at(a, v, "b", &x->b);
}

bool adapters_read(Arena *a, Diag *d, const char *text, size_t n,
                   Adapters *out) {
    JsonSpan all, list, key, v;
    int count = 0;
    *out = (Adapters){.arena = a, .diag = d};
    if (!json_parse(text, n, &all) || !json_get(all, "adapters", &list))
        return false;
    for (JsonIter it = json_iter(list); json_next(&it, &key, &v);) count++;
    out->at = NEW_ARRAY(a, Adapter, count + 1);
    for (JsonIter it = json_iter(list); json_next(&it, &key, &v);)
        if (!read_adapters_one(a, v, &out->at[out->n++])) return false;
    if (!json_get(all, "trained", &list)) return false;
    for (JsonIter it = json_iter(list); json_next(&it, &key, &v);) {
        char *name = arena_alloc(a, v.n + 1);
        if (json_text(v, name, v.n + 1) < 0) return false;
        vec_push(a, &out->trained, intern(name));
    }
    return true;
}

/* ---- merging ------------------------------------------------------------- */

/* The adapter that changes that weight or bias; NULL: none. */
static const Adapter *adapter_of(const Adapters *x, const char *name) {
    for (int i = 0; i < x->n; i++) {
        const Adapter *a = &x->at[i];
        if (!strcmp(a->weight, name) || (a->bias && !strcmp(a->bias, name)))
            return a;
    }
    return NULL;
}

/* An adapter's numbers, beside its weight of `type`. The axes of a
   convolution's input are one, as in memory. */
typedef struct Parts {
    const Adapter *of;
    const Type *type;
    int64_t in, out;
    float *a, *b, *magnitude; /* NULL: without DoRA */
} Parts;

static Status read_part(const Adapters *x, Str name, const Type *t,
                        AdapterPart *part, void *ctx, float **out) {
    *out = NEW_ARRAY(x->arena, float, (size_t)type_count(t));
    return part(ctx, name, t, *out);
}

/* The type of a parameter of the adapter: of `rank` axes, rows x columns x 1.
 */
static Type part_type(int rank, int64_t rows, int64_t columns) {
    Type t = {.dtype = DT_F32, .rank = rank, .dim = {rows, columns}};
    for (int i = 2; i < rank; i++) t.dim[i] = 1;
    return t;
}

/* Row `out` of the weight with its adapter. */
static void add_delta(const Parts *p, const char *data, int64_t out,
                      double *row) {
    const Adapter *a = p->of;
    size_t size = dtype_bytes((uint32_t)p->type->dtype);
    for (int64_t in = 0; in < p->in; in++) {
        int64_t at = a->columns ? in * p->out + out : out * p->in + in;
        double sum = 0;
        for (int64_t r = 0; r < a->rank; r++)
            sum +=
                (double)p->b[out * a->rank + r] * (double)p->a[r * p->in + in];
        row[in] = float_at((uint32_t)p->type->dtype, data + (size_t)at * size) +
                  a->alpha / (double)a->rank * sum;
    }
}

/* The factor that gives the row its trained norm. */
static double norm_factor(const Parts *p, int64_t out, const double *row) {
    double sum = 0;
    if (!p->magnitude) return 1;
    for (int64_t in = 0; in < p->in; in++) sum += row[in] * row[in];
    return (double)p->magnitude[out] / sqrt(sum);
}

/* False: a number is beyond the weight's type. */
static bool merge_row(const Parts *p, int64_t out, double *row, char *data) {
    size_t size = dtype_bytes((uint32_t)p->type->dtype);
    bool fits = true;
    add_delta(p, data, out, row);
    double factor = norm_factor(p, out, row);
    for (int64_t in = 0; in < p->in; in++) {
        int64_t at = p->of->columns ? in * p->out + out : out * p->in + in;
        fits &= float_put((uint32_t)p->type->dtype, factor * row[in],
                          data + (size_t)at * size);
    }
    return fits;
}

/* Multiplies a weight or bias by IA3's factors. */
static Status merge_factors(const Adapters *x, const Adapter *a,
                            const char *name, const Type *type, char *data,
                            AdapterPart *part, void *ctx) {
    uint32_t d = (uint32_t)type->dtype;
    int axis = type->rank > 1 && a->columns != a->feedforward;
    int64_t n = type->dim[axis], last = 1;
    for (int i = axis + 1; i < type->rank; i++) last *= type->dim[i];
    Type t = a->feedforward || a->axes ? part_type(2 + a->axes, 1, n)
                                       : part_type(2, n, 1);
    float *f;
    TRY(read_part(x, a->factor, &t, part, ctx, &f));
    for (int64_t i = 0; i < type_count(type); i++) {
        char *at = data + (size_t)i * dtype_bytes(d);
        double sum = float_at(d, at) * (double)f[i / last % n];
        if (!float_put(d, sum, at))
            return fail(x->diag, (Loc){0},
                        "'%s' with its adapter is beyond the model's own type",
                        name);
    }
    return OK;
}

Status adapters_merge(const Adapters *x, const char *weight, const Type *type,
                      void *data, AdapterPart *part, void *ctx) {
    const Adapter *a = adapter_of(x, weight);
    if (!a) return OK;
    bool bias = a->bias && !strcmp(a->bias, weight), conv = a->axes > 0;
    if (type->rank != (bias ? 1 : 2 + a->axes) || (conv && a->columns))
        return fail(x->diag, (Loc){0},
                    "damaged module: '%s' has an adapter and is not a weight",
                    weight);
    if (a->factor) return merge_factors(x, a, weight, type, data, part, ctx);
    Parts p = {.of = a, .type = type, .out = type->dim[a->columns ? 1 : 0]};
    p.in = p.out ? type_count(type) / p.out : 0;
    Type down = *type, up = part_type(type->rank, p.out, a->rank),
         norms = conv ? part_type(type->rank, 1, p.out)
                      : (Type){.dtype = DT_F32, .rank = 1, .dim = {p.out}};
    down.dtype = DT_F32;
    down.dim[0] = a->rank;
    if (!conv) down.dim[1] = p.in;
    TRY(read_part(x, a->a, &down, part, ctx, &p.a));
    TRY(read_part(x, a->b, &up, part, ctx, &p.b));
    if (a->magnitude)
        TRY(read_part(x, a->magnitude, &norms, part, ctx, &p.magnitude));
    double *row = NEW_ARRAY(x->arena, double, p.in + 1);
    for (int64_t out = 0; out < p.out; out++)
        if (!merge_row(&p, out, row, data))
            return fail(x->diag, (Loc){0},
                        "'%s' with its adapter is beyond the model's own type",
                        weight);
    return OK;
}

/* ---- PEFT's files -------------------------------------------------------- */

/* "^a" also excludes modules with another number than the first; PEFT
   understands "a" as b.a, too. */
static void put_pattern(const Adapters *x, const char *key, bool rank,
                        StrBuf *sb) {
    const char *before = "";
    sb_printf(sb, "  \"%s\": {", key);
    for (int i = 1; i < x->n; i++) {
        const Adapter *a = &x->at[i], *first = x->at;
        if (rank ? a->rank == first->rank : a->alpha == first->alpha) continue;
        sb_puts(sb, before);
        sb_put_json_string(sb, internf("^%s", a->module));
        sb_printf(sb, ": %.17g", rank ? (double)a->rank : a->alpha);
        before = ", ";
    }
    sb_puts(sb, "},\n");
}

static bool adapters_is_bias(Str name) {
    size_t n = strlen(name);
    return n >= 4 && !strcmp(name + n - 4, "bias");
}

/* A whole layer that trains beside the adapters. */
static Str adapters_layer_of(Str name) {
    const char *dot = strrchr(name, '.');
    return dot ? intern_n(name, (size_t)(dot - name)) : name;
}

static bool is_beside(const Adapters *x, Str name) {
    for (int i = 0; i < x->n; i++)
        if (x->at[i].module == adapters_layer_of(name)) return true;
    return false;
}

/* Biases of layers that are not adapted train only with bias=all. */
static const char *bias_word(const Adapters *x, bool *layers) {
    bool adapted = false, others = false;
    *layers = false;
    for (int i = 0; i < x->trained.len; i++) {
        Str name = x->trained.data[i];
        if (!adapters_is_bias(name))
            *layers = true;
        else
            *(is_beside(x, name) ? &adapted : &others) = true;
    }
    return !adapted ? "none" : others && !*layers ? "all" : "lora_only";
}

/* The settings that LoRA has alone. */
static void put_lora_config(const Adapters *x, const char *bias, StrBuf *sb) {
    sb_puts(sb, "  \"init_lora_weights\": true,\n  \"use_rslora\": false,\n");
    sb_printf(sb, "  \"use_dora\": %s,\n", x->at->magnitude ? "true" : "false");
    sb_printf(sb, "  \"r\": %lld,\n  \"lora_alpha\": %.17g,\n",
              (long long)x->at->rank, x->at->alpha);
    sb_printf(sb, "  \"lora_dropout\": %.17g,\n  \"bias\": \"%s\",\n",
              x->at->dropout, bias);
    put_pattern(x, "rank_pattern", true, sb);
    put_pattern(x, "alpha_pattern", false, sb);
}

/* feedforward: only modules whose inputs have factors. */
static void put_modules(const Adapters *x, const char *key, bool feedforward,
                        StrBuf *sb) {
    const char *before = "";
    sb_printf(sb, "  \"%s\": [", key);
    for (int i = 0; i < x->n; i++) {
        if (feedforward && !x->at[i].feedforward) continue;
        sb_puts(sb, before);
        sb_put_json_string(sb, x->at[i].module);
        before = ", ";
    }
    sb_puts(sb, "]");
}

static void put_layers(const Adapters *x, bool layers, StrBuf *sb) {
    const char *before = "";
    sb_puts(sb, "  \"modules_to_save\": ");
    sb_puts(sb, layers ? "[" : "null,\n");
    for (int i = 0; layers && i < x->trained.len; i++) {
        Str name = x->trained.data[i], layer = adapters_layer_of(name);
        bool told = adapters_is_bias(name) && is_beside(x, name);
        for (int k = 0; k < i; k++)
            told |= adapters_layer_of(x->trained.data[k]) == layer;
        if (told) continue;
        sb_puts(sb, before);
        sb_put_json_string(sb, layer);
        before = ", ";
    }
    if (layers) sb_puts(sb, "],\n");
}

static void put_config(const Adapters *x, StrBuf *sb) {
    bool layers, ia3 = x->at->factor != NULL;
    const char *bias = bias_word(x, &layers);
    sb_printf(sb, "{\n  \"peft_type\": \"%s\",\n", ia3 ? "IA3" : "LORA");
    sb_puts(sb, "  \"task_type\": null,\n"
                "  \"base_model_name_or_path\": null,\n"
                "  \"inference_mode\": true,\n"
                "  \"fan_in_fan_out\": false,\n");
    if (ia3) {
        sb_puts(sb, "  \"init_ia3_weights\": true,\n");
        put_modules(x, "feedforward_modules", true, sb);
        sb_puts(sb, ",\n");
    } else {
        put_lora_config(x, bias, sb);
    }
    put_layers(x, layers, sb);
    put_modules(x, "target_modules", false, sb);
    sb_puts(sb, "\n}\n");
}

/* A file that is being written: header and data. */
typedef struct PeftFile {
    const Adapters *x;
    AdapterPart *part;
    void *ctx;
    StFile *f;
    StrBuf header, data;
} PeftFile;

static Status put_adapters_tensor(PeftFile *p, Str name) {
    Diag *d = p->x->diag;
    const StTensor *t = st_find(p->f, name);
    if (!t || t->foreign || !is_float_dtype(t->dtype) || t->rank > MAX_RANK)
        return fail(d, (Loc){.file = p->f->path},
                    "'%s' is not in it as a parameter of an adapter", name);
    Type type = {.dtype = DT_F32, .rank = (int)t->rank};
    for (uint32_t i = 0; i < t->rank; i++) type.dim[i] = t->dim[i];
    size_t bytes = (size_t)type_count(&type) * sizeof(float);
    float *x = arena_alloc(p->x->arena, bytes + 1);
    TRY(p->part(p->ctx, name, &type, x));
    sb_puts(&p->header, ",\"base_model.model.");
    sb_put_json(&p->header, name);
    sb_puts(&p->header, "\":{\"dtype\":\"F32\",\"shape\":[");
    for (uint32_t i = 0; i < t->rank; i++)
        sb_printf(&p->header, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    sb_printf(&p->header, "],\"data_offsets\":[%zu,%zu]}", p->data.len,
              p->data.len + bytes);
    sb_putn(&p->data, (const char *)x, bytes);
    return OK;
}

static Status put_tensors(PeftFile *p) {
    sb_puts(&p->header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < p->x->n; i++) {
        const Adapter *a = &p->x->at[i];
        const Str parts[] = {a->a, a->b, a->magnitude, a->factor};
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
            if (parts[k]) TRY(put_adapters_tensor(p, parts[k]));
    }
    for (int i = 0; i < p->x->trained.len; i++)
        TRY(put_adapters_tensor(p, p->x->trained.data[i]));
    sb_puts(&p->header, "}");
    while (p->header.len % 8) sb_puts(&p->header, " ");
    return OK;
}

static Status write_tensors(const PeftFile *p, const char *path,
                            FileGuard *guard) {
    OutFile o = {0};
    uint64_t n = p->header.len;
    bool ok = outfile_open(&o, path, 0666, guard, "-o") &&
              outfile_write(&o, &n, sizeof n) &&
              outfile_write(&o, p->header.data, n) &&
              outfile_write(&o, p->data.data, p->data.len) &&
              outfile_commit(&o);
    Status st = ok ? OK : file_failed(p->x->diag, path, &o);
    outfile_abort(&o);
    return st;
}

/* PEFT's files have one kind for all layers. */
static const char *adapters_kind_of(const Adapter *a) {
    return a->factor ? "IA3" : a->magnitude ? "LoRA with dora" : "LoRA";
}

static Status check_alike(const Adapters *x) {
    for (int i = 1; i < x->n; i++)
        if (adapters_kind_of(&x->at[i]) != adapters_kind_of(x->at))
            return fail(x->diag, (Loc){0},
                        "--adapter: PEFT's files have one kind of adapter; "
                        "'%s' has %s and '%s' has %s. ampc export without "
                        "--adapter merges both",
                        x->at->module, adapters_kind_of(x->at), x->at[i].module,
                        adapters_kind_of(&x->at[i]));
    for (int i = 0; x->at->factor && i < x->trained.len; i++)
        if (adapters_is_bias(x->trained.data[i]) &&
            is_beside(x, x->trained.data[i]))
            return fail(x->diag, (Loc){0},
                        "--adapter: PEFT's files of IA3 cannot have '%s', the "
                        "bias of an adapted layer; ampc export without "
                        "--adapter merges both",
                        x->trained.data[i]);
    return OK;
}

Status adapters_write(const Adapters *x, StFile *f, const char *folder,
                      FileGuard *guard, AdapterPart *part, void *ctx) {
    PeftFile p = {.x = x, .part = part, .ctx = ctx, .f = f};
    StrBuf config = {0};
    TRY(check_alike(x));
    const char *path =
        arena_printf(x->arena, "%s/adapter_model.safetensors", folder);
    Status st = put_tensors(&p);
    if (st == OK) st = file_folder(x->diag, folder, guard, "-o");
    if (st == OK) st = write_tensors(&p, path, guard);
    put_config(x, &config);
    path = arena_printf(x->arena, "%s/adapter_config.json", folder);
    if (st == OK)
        st = file_text(x->diag, path, config.data, config.len, guard, "-o");
    sb_free(&config);
    sb_free(&p.header);
    sb_free(&p.data);
    return st;
}
