/* SPDX-License-Identifier: Apache-2.0 */
/* adapters.c: see adapters.h.                                               */
#include "frontend/cli/adapters.h"

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

static bool number_at(JsonSpan object, const char *key, double *out) {
    JsonSpan v;
    return json_get(object, key, &v) && json_double(v, out);
}

static bool read_adapters_one(Arena *a, JsonSpan v, Adapter *x) {
    double rank, columns;
    bool ok = text_at(a, v, "module", &x->module) &&
              text_at(a, v, "weight", &x->weight) &&
              text_at(a, v, "a", &x->a) && text_at(a, v, "b", &x->b) &&
              number_at(v, "rank", &rank) && number_at(v, "alpha", &x->alpha) &&
              number_at(v, "dropout", &x->dropout) &&
              number_at(v, "columns", &columns) && rank >= 1 && rank <= 65536;
    if (!ok) return false;
    x->rank = (int64_t)rank;
    x->columns = columns != 0;
    return true;
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

static const Adapter *adapter_of(const Adapters *x, const char *weight) {
    for (int i = 0; i < x->n; i++)
        if (!strcmp(x->at[i].weight, weight)) return &x->at[i];
    return NULL;
}

/* The module with its two matrices' names. */
typedef struct Parts {
    int64_t in, out, rank;
    float *a, *b;
} Parts;

static double delta(const Parts *p, int64_t out, int64_t in) {
    double sum = 0;
    for (int64_t r = 0; r < p->rank; r++)
        sum += (double)p->b[out * p->rank + r] * (double)p->a[r * p->in + in];
    return sum;
}

Status adapters_merge(const Adapters *x, const char *weight, const Type *type,
                      void *data, AdapterPart *part, void *ctx) {
    const Adapter *a = adapter_of(x, weight);
    if (!a) return OK;
    size_t size = dtype_bytes((uint32_t)type->dtype);
    Parts p = {.rank = a->rank};
    if (type->rank != 2)
        return fail(x->diag, (Loc){0},
                    "damaged module: '%s' has an adapter and is not a matrix",
                    weight);
    p.in = type->dim[a->columns ? 0 : 1];
    p.out = type->dim[a->columns ? 1 : 0];
    p.a = NEW_ARRAY(x->arena, float, (size_t)(p.rank * p.in));
    p.b = NEW_ARRAY(x->arena, float, (size_t)(p.out * p.rank));
    TRY(part(ctx, a->a, p.rank, p.in, p.a));
    TRY(part(ctx, a->b, p.out, p.rank, p.b));
    for (int64_t i = 0; i < type->dim[0]; i++)
        for (int64_t k = 0; k < type->dim[1]; k++) {
            char *at = (char *)data + (size_t)(i * type->dim[1] + k) * size;
            double add = a->columns ? delta(&p, k, i) : delta(&p, i, k);
            double sum = float_at((uint32_t)type->dtype, at) +
                         a->alpha / (double)a->rank * add;
            if (!float_put((uint32_t)type->dtype, sum, at))
                return fail(x->diag, (Loc){0},
                            "'%s' with its adapter is beyond the model's own "
                            "type",
                            weight);
        }
    return OK;
}

/* ---- PEFT's files -------------------------------------------------------- */

static void put_adapters_text(StrBuf *sb, const char *before, Str text) {
    sb_printf(sb, "%s\"", before);
    sb_put_json(sb, text);
    sb_puts(sb, "\"");
}

/* "^a" also excludes modules with another number than the first; PEFT
   understands "a" as b.a, too. */
static void put_pattern(const Adapters *x, const char *key, bool rank,
                        StrBuf *sb) {
    const char *before = "";
    sb_printf(sb, "  \"%s\": {", key);
    for (int i = 1; i < x->n; i++) {
        const Adapter *a = &x->at[i], *first = x->at;
        if (rank ? a->rank == first->rank : a->alpha == first->alpha) continue;
        put_adapters_text(sb, before, internf("^%s", a->module));
        sb_printf(sb, ": %.17g", rank ? (double)a->rank : a->alpha);
        before = ", ";
    }
    sb_puts(sb, "},\n");
}

static bool is_bias(Str name) {
    size_t n = strlen(name);
    return n >= 4 && !strcmp(name + n - 4, "bias");
}

/* A whole layer that trains beside the adapters. */
static Str layer_of(Str name) {
    const char *dot = strrchr(name, '.');
    return dot ? intern_n(name, (size_t)(dot - name)) : name;
}

static bool is_beside(const Adapters *x, Str name) {
    for (int i = 0; i < x->n; i++)
        if (x->at[i].module == layer_of(name)) return true;
    return false;
}

/* Biases of layers that are not adapted train only with bias=all. */
static const char *bias_word(const Adapters *x, bool *layers) {
    bool adapted = false, others = false;
    *layers = false;
    for (int i = 0; i < x->trained.len; i++) {
        Str name = x->trained.data[i];
        if (!is_bias(name))
            *layers = true;
        else
            *(is_beside(x, name) ? &adapted : &others) = true;
    }
    return !adapted ? "none" : others && !*layers ? "all" : "lora_only";
}

static void put_config(const Adapters *x, StrBuf *sb) {
    bool layers;
    const char *bias = bias_word(x, &layers), *before = "";
    sb_puts(sb, "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": null,\n"
                "  \"base_model_name_or_path\": null,\n"
                "  \"inference_mode\": true,\n  \"fan_in_fan_out\": false,\n"
                "  \"init_lora_weights\": true,\n  \"use_rslora\": false,\n"
                "  \"use_dora\": false,\n");
    sb_printf(sb, "  \"r\": %lld,\n  \"lora_alpha\": %.17g,\n",
              (long long)x->at->rank, x->at->alpha);
    sb_printf(sb, "  \"lora_dropout\": %.17g,\n  \"bias\": \"%s\",\n",
              x->at->dropout, bias);
    put_pattern(x, "rank_pattern", true, sb);
    put_pattern(x, "alpha_pattern", false, sb);
    sb_puts(sb, "  \"modules_to_save\": ");
    sb_puts(sb, layers ? "[" : "null,\n");
    for (int i = 0; layers && i < x->trained.len; i++) {
        Str name = x->trained.data[i], layer = layer_of(name);
        bool told = is_bias(name) && is_beside(x, name);
        for (int k = 0; k < i; k++)
            told |= layer_of(x->trained.data[k]) == layer;
        if (told) continue;
        put_adapters_text(sb, before, layer);
        before = ", ";
    }
    if (layers) sb_puts(sb, "],\n");
    sb_puts(sb, "  \"target_modules\": [");
    for (int i = 0; i < x->n; i++)
        put_adapters_text(sb, i ? ", " : "", x->at[i].module);
    sb_puts(sb, "]\n}\n");
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
    if (!t || t->foreign || !is_float_dtype(t->dtype) || t->rank > 2)
        return fail(d, (Loc){.file = p->f->path},
                    "'%s' is not in it as a parameter of an adapter", name);
    int64_t rows = t->rank == 2 ? t->dim[0] : 1, columns = 1;
    if (t->rank) columns = t->dim[t->rank - 1];
    size_t bytes = (size_t)(rows * columns) * sizeof(float);
    float *x = arena_alloc(p->x->arena, bytes + 1);
    if (t->rank == 2) {
        TRY(p->part(p->ctx, name, rows, columns, x));
    } else {
        char *raw = arena_alloc(p->x->arena, t->end - t->begin + 1);
        if (st_read(p->f, t, 0, t->end - t->begin, raw) != AMPC_OK)
            return fail(d, (Loc){0}, "%s", p->f->why);
        for (int64_t i = 0; i < columns; i++)
            x[i] = (float)float_at(t->dtype,
                                   raw + (size_t)i * dtype_bytes(t->dtype));
    }
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
        TRY(put_adapters_tensor(p, p->x->at[i].a));
        TRY(put_adapters_tensor(p, p->x->at[i].b));
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

Status adapters_write(const Adapters *x, StFile *f, const char *folder,
                      FileGuard *guard, AdapterPart *part, void *ctx) {
    PeftFile p = {.x = x, .part = part, .ctx = ctx, .f = f};
    StrBuf config = {0};
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
