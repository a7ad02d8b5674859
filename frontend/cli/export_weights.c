/* SPDX-License-Identifier: Apache-2.0 */
/* export_weights.c: see export_weights.h. */
#include "frontend/cli/export_weights.h"

#include <string.h>
#include <unistd.h>

#include "codegen/codegen.h"
#include "frontend/data/array.h"
#include "runtime/program/dtype.h"
#include "runtime/program/quantized.h"

/* ---- opening ------------------------------------------------------------- */

static Status st_failed(Session *s, const StFile *f) {
    return fail(&s->diag, (Loc){0}, "%s", f->why);
}

static Status export_open_file(Weights *w, const char *path) {
    StFile *f = NEW(w->s->arena, StFile);
    bool there;
    if (st_open(&safetensors_memory, path, f) != AMPC_OK)
        return st_failed(w->s, f);
    w->file = f;
    return st_verify(f, &there) == AMPC_OK ? OK : st_failed(w->s, f);
}

static Status export_damaged(const Weights *w, const char *what) {
    return fail(&w->s->diag, (Loc){.file = w->module->path},
                "damaged module: %s", what);
}

Status weights_text(const Weights *w, const char *name, char **text,
                    size_t *n) {
    const PlanSection *p = sections_find(w->module, name);
    *text = NULL;
    *n = 0;
    if (!p) return OK;
    return sections_read(w->s->arena, &w->s->diag, w->module, p, text, n);
}

static Status open_sidecar(Weights *w) {
    char *text, *path, *waiting;
    size_t n;
    PlanSidecar want;
    TRY(weights_text(w, "sidecar", &text, &n));
    if (!text) return OK;
    if (n != sizeof want) return export_damaged(w, "its section 'sidecar'");
    memcpy(&want, text, n);
    path = weights_sidecar_path(w->s->arena, w->module->path);
    waiting = arena_printf(w->s->arena, "%s" PLAN_WAITING, path, want.crc);
    TRY(export_open_file(w, access(waiting, F_OK) == 0 ? waiting : path));
    return st_match(w->file, want.bytes, want.crc) == AMPC_OK
               ? OK
               : st_failed(w->s, w->file);
}

static Status open_initial(Weights *w) {
    char *text;
    size_t n;
    TRY(weights_text(w, "weights", &w->initial, &w->ninitial));
    TRY(weights_text(w, "weights.json", &text, &n));
    if (!text) return OK;
    return json_parse(text, n, &w->index) ? OK
                                          : export_damaged(w, "its section "
                                                              "'weights.json'");
}

/* ---- values -------------------------------------------------------------- */

static Status misfit(const Weights *w, const char *path, const char *name,
                     const char *why) {
    StrBuf quoted = {0};
    sb_put_escaped(&quoted, name);
    fail(&w->s->diag, (Loc){.file = path}, "'%s' %s", quoted.data, why);
    sb_free(&quoted);
    return ERR_USER;
}

/* Converts `n` elements from one dtype to another. */
static bool convert(uint32_t from, const char *p, uint32_t to, char *out,
                    int64_t n) {
    size_t a = dtype_bytes(from), b = dtype_bytes(to);
    if (from == to) {
        memcpy(out, p, (size_t)n * a);
        return true;
    }
    for (int64_t i = 0; i < n; i++)
        if (!float_put(to, float_at(from, p + (size_t)i * a),
                       out + (size_t)i * b))
            return false;
    return true;
}

/* ---- weights in codes (--frozen-dtype) ----------------------------------- */

/* "ampc.int8/NAME", the name of the scales of a weight. */
static const char *scales_name(const Weights *w, int code, const char *name) {
    return arena_printf(
        w->s->arena, "%s",
        family_name((Family)(FAMILY_INT8 + code), intern(name)));
}

/* Converts n elements of `type` to f32. */
static Status widen_codes(const Weights *w, int code, const char *q,
                          const float *scale, const char *name,
                          const Type *type, char *out) {
    size_t size = dtype_bytes(type->dtype);
    for (int64_t i = 0; i < type_count(type); i++) {
        float x = quantized_level(code, q, i) * scale[i / QUANTIZED_BLOCK];
        if (!float_put(type->dtype, x, out + (size_t)i * size))
            return misfit(w, w->module->path, name,
                          "holds numbers beyond the model's own type");
    }
    return OK;
}

/* The number of the weight whose codes are tensor `codes` and whose scales
   are in the file, too; -1: none. */
static int code_in(const Weights *w, const StFile *f, const StTensor *codes,
                   const char *name, const Type *type, const StTensor **scale) {
    if (!dtype_is_float(type->dtype) || codes->foreign ||
        (codes->dtype != AMPC_I8 && codes->dtype != AMPC_U8))
        return -1;
    uint64_t n = (uint64_t)type_count(type);
    for (int code = 0; code < QUANTIZED_CODES; code++) {
        const StTensor *t = st_find(f, scales_name(w, code, name));
        uint64_t bytes = code == QUANTIZED_INT8 ? n : n / 2;
        if (!t || codes->end - codes->begin != bytes || t->dtype != AMPC_F32 ||
            t->end - t->begin != 4 * (uint64_t)quantized_blocks((int64_t)n))
            continue;
        *scale = t;
        return code;
    }
    return -1;
}

static Status from_codes(const Weights *w, StFile *f, const StTensor *codes,
                         int code, const StTensor *scale, const char *name,
                         const Type *type, char *out) {
    char *q = arena_alloc(w->s->arena, codes->end - codes->begin + 1);
    float *x = arena_alloc(w->s->arena, scale->end - scale->begin + 1);
    if (st_read(f, codes, 0, codes->end - codes->begin, q) != AMPC_OK ||
        st_read(f, scale, 0, scale->end - scale->begin, x) != AMPC_OK)
        return st_failed(w->s, f);
    return widen_codes(w, code, q, x, name, type, out);
}

static Status from_file(Weights *w, StFile *f, const StTensor *t,
                        const char *name, const Type *type, char *out) {
    const StTensor *scale;
    int code = code_in(w, f, t, name, type, &scale);
    if (code >= 0) return from_codes(w, f, t, code, scale, name, type, out);
    char *raw = arena_alloc(w->s->arena, t->end - t->begin + 1);
    bool same = (int)t->rank == type->rank;
    for (int i = 0; same && i < type->rank; i++)
        same = t->dim[i] == type->dim[i];
    if (!same)
        return misfit(w, f->path, name, "has another shape in the model");
    if ((int)t->dtype != (int)type->dtype &&
        !(is_float_dtype(t->dtype) && dtype_is_float(type->dtype)))
        return misfit(w, f->path, name, "has another kind of values");
    if (st_read(f, t, 0, t->end - t->begin, raw) != AMPC_OK)
        return st_failed(w->s, f);
    return convert(t->dtype, raw, type->dtype, out, type_count(type))
               ? OK
               : misfit(w, f->path, name,
                        "holds numbers beyond the model's "
                        "own type");
}

/* Reads entry {"dtype":"F32",..,"data_offsets":[..]}, as the compiler wrote it.
 */
static bool read_entry(JsonSpan entry, uint32_t *dtype, int64_t at[2]) {
    JsonSpan v, key, item;
    int n = 0;
    at[0] = at[1] = 0;
    *dtype = 0;
    if (!json_get(entry, "dtype", &v)) return false;
    while (*dtype < AMPC_NDTYPE &&
           !json_equals(v, dtype_info[*dtype].safetensors))
        ++*dtype;
    if (!json_get(entry, "data_offsets", &v)) return false;
    for (JsonIter it = json_iter(v); json_next(&it, &key, &item) && n < 2; n++)
        if (!json_int(item, &at[n])) break;
    return n == 2 && *dtype < AMPC_NDTYPE && at[0] >= 0 && at[1] >= at[0];
}

/* * done: the module has codes and scales of the weight, which become f32. */
static Status module_codes(const Weights *w, uint32_t dtype, const int64_t *at,
                           const char *name, const Type *type, char *out,
                           bool *done) {
    JsonSpan entry;
    int64_t scale[2], n = type_count(type);
    uint32_t of;
    *done = false;
    if (!dtype_is_float(type->dtype) || (dtype != AMPC_I8 && dtype != AMPC_U8))
        return OK;
    for (int code = 0; code < QUANTIZED_CODES; code++) {
        int64_t bytes = code == QUANTIZED_INT8 ? n : n / 2;
        if (!json_get(w->index, scales_name(w, code, name), &entry) ||
            !read_entry(entry, &of, scale) || of != AMPC_F32 ||
            at[1] - at[0] != bytes || (uint64_t)at[1] > w->ninitial ||
            (uint64_t)scale[1] > w->ninitial ||
            scale[1] - scale[0] != 4 * quantized_blocks(n))
            continue;
        float *x = arena_alloc(w->s->arena, (size_t)(scale[1] - scale[0]) + 1);
        memcpy(x, w->initial + scale[0], (size_t)(scale[1] - scale[0]));
        *done = true;
        return widen_codes(w, code, w->initial + at[0], x, name, type, out);
    }
    return OK;
}

static Status from_module(Weights *w, JsonSpan entry, const char *name,
                          const Type *type, char *out) {
    int64_t at[2];
    uint32_t dtype;
    bool done;
    if (!read_entry(entry, &dtype, at))
        return export_damaged(w, "its section 'weights.json'");
    TRY(module_codes(w, dtype, at, name, type, out, &done));
    if (done) return OK;
    int64_t bytes = type_count(type) * (int64_t)dtype_bytes(dtype);
    bool fits = at[1] - at[0] == bytes && (uint64_t)at[1] <= w->ninitial &&
                (dtype == (uint32_t)type->dtype ||
                 (is_float_dtype(dtype) && dtype_is_float(type->dtype)));
    if (!fits) return export_damaged(w, "its weights do not fit its model");
    return convert(dtype, w->initial + at[0], type->dtype, out,
                   type_count(type))
               ? OK
               : misfit(w, w->module->path, name,
                        "holds numbers beyond the "
                        "model's own type");
}

/* An initial value of an .amp text, such as normal(0.02). */
static Status from_text(const Weights *w, const Var *v, const Type *type,
                        void *data) {
    const Tensor *t = var_initial(w->s->arena, v);
    if (!t) {
        t = tensor_new(w->s->arena, v->type);
        if (type_count(type)) tensor_set(t, 0, v->fill);
        tensor_repeat(t);
    }
    memcpy(data, t->data, (size_t)type_bytes(type));
    return OK;
}

static const StTensor *export_find_tensor(Weights *w, const char *name) {
    static const char *const ends[] = {"evaluated", "average"};
    const StTensor *t = NULL;
    for (int i = 0; w->file && !t && i < 1 + w->averaged; i++)
        t = st_find(w->file,
                    arena_printf(w->s->arena, "ampc.opt/%s/%s", name, ends[i]));
    w->averages += t != NULL;
    return w->file && !t ? st_find(w->file, name) : t;
}

static Status part_of(void *ctx, const char *name, const Type *type,
                      float *out) {
    Weights *w = ctx;
    const StTensor *t = export_find_tensor(w, name);
    if (!t) return misfit(w, w->file->path, name, "is not in it");
    return from_file(w, w->file, t, name, type, (char *)out);
}

/* Names as in PEFT's adapter files. */
static bool is_peft(const StFile *f) {
    static const char peft[] = "base_model.model.";
    char name[1024];
    for (size_t i = 0; i < f->ntensor; i++)
        if (f->tensors[i].name.n &&
            json_text(f->tensors[i].name, name, sizeof name) >= 0 &&
            !strncmp(name, peft, sizeof peft - 1))
            return true;
    return false;
}

/* A checkpoint has all of them. Our programs compute adapters themselves; in
   the user's graph the weights contain them. */
Status weights_of(void *ctx, const char *name, const Type *type, void *data) {
    Weights *w = ctx;
    JsonSpan entry;
    const StTensor *t = export_find_tensor(w, name);
    if (t) {
        TRY(from_file(w, w->file, t, name, type, data));
        return w->m
                   ? OK
                   : adapters_merge(&w->adapters, name, type, data, part_of, w);
    }
    if (w->file)
        return misfit(w, w->file->path, name,
                      is_peft(w->file)
                          ? "is not in it, a file of adapters alone: ampc run "
                            "MODULE --load FILE --steps 0 --save CKPT, with "
                            "--feed, makes a checkpoint of all weights"
                          : "is not in it: saved by another model, or under "
                            "other names");
    if (json_get(w->index, name, &entry))
        return from_module(w, entry, name, type, data);
    int var = w->m ? module_find_var(w->m, intern(name)) : -1;
    if (var < 0)
        return export_damaged(
            w, "its weights do not include all tensors of its model");
    return from_text(w, &w->m->vars.data[var], type, data);
}

static Status read_adapters(Weights *w) {
    Session *s = w->s;
    char *text;
    size_t n;
    TRY(weights_text(w, "adapters", &text, &n));
    if (text && !adapters_read(s->arena, &s->diag, text, n, &w->adapters))
        return export_damaged(w, "its section 'adapters'");
    return OK;
}

Status weights_adapters(Weights *w, const char *out) {
    Session *s = w->s;
    if (!w->adapters.n)
        return fail(
            &s->diag, (Loc){.file = w->module->path},
            "--adapter: compiled without --lora and --ia3 or written by ampc "
            "export --module, the module has no adapters");
    if (!w->file || !s->own.load) {
        fail(&s->diag, (Loc){0}, "--adapter needs --load CKPT");
        return ERR_USAGE;
    }
    return adapters_write(&w->adapters, w->file, out, s->opt.guard, part_of, w);
}

Status weights_open(Weights *w, const char *load) {
    if (w->averaged && !load) {
        fail(&w->s->diag, (Loc){0}, "--averaged needs --load CKPT");
        return ERR_USAGE;
    }
    TRY(read_adapters(w));
    TRY(load ? export_open_file(w, load) : open_sidecar(w));
    return w->file ? OK : open_initial(w);
}

Status weights_close(Weights *w, Status st) {
    if (st == OK && w->averaged && !w->averages)
        st = fail(&w->s->diag, (Loc){.file = w->file->path},
                  "--averaged: no tensor of the checkpoint is an average (ampc "
                  "--ema or --swa)");
    if (w->file) st_close(w->file);
    return st;
}
