/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_export.c: ampc export OUT.so [--load CKPT] -o trained.onnx.

   The module keeps the user's ONNX graph without its tensors; they come from
   the checkpoint, or are those that the module begins with.  The module is
   read, never loaded as code.                                               */
#include <string.h>
#include <unistd.h>

#include "codegen/codegen.h"
#include "codegen/module/section.h"
#include "frontend/cli/adapters.h"
#include "frontend/cli/cmd.h"
#include "frontend/data/array.h"
#include "ir/base/files.h"
#include "runtime/program/dtype.h"
#include "runtime/files/safetensors.h"

/* Source of the weights. */
typedef struct Weights {
    Session *s;
    const SectionFile *module;
    StFile *file;  /* --load, or the file beside a module without weights */
    char *initial; /* else section "weights" */
    size_t ninitial;
    JsonSpan index; /* header: their positions in it */
    bool averaged;  /* --averaged */
    int averages;   /* tensors that were one */
    Adapters adapters;
} Weights;

/* ---- opening ------------------------------------------------------------- */

static Status st_failed(Session *s, const StFile *f) {
    return fail(&s->diag, (Loc){0}, "%s", f->why);
}

static Status open_file(Weights *w, const char *path) {
    StFile *f = NEW(w->s->arena, StFile);
    bool there;
    if (st_open(&safetensors_memory, path, f) != AMPC_OK)
        return st_failed(w->s, f);
    w->file = f;
    return st_verify(f, &there) == AMPC_OK ? OK : st_failed(w->s, f);
}

static Status damaged(const Weights *w, const char *what) {
    return fail(&w->s->diag, (Loc){.file = w->module->path},
                "damaged module: %s", what);
}

static Status section_text(const Weights *w, const char *name, char **text,
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
    TRY(section_text(w, "sidecar", &text, &n));
    if (!text) return OK;
    if (n != sizeof want) return damaged(w, "its section 'sidecar'");
    memcpy(&want, text, n);
    path = weights_sidecar_path(w->s->arena, w->module->path);
    waiting = arena_printf(w->s->arena, "%s" PLAN_WAITING, path, want.crc);
    TRY(open_file(w, access(waiting, F_OK) == 0 ? waiting : path));
    return st_match(w->file, want.bytes, want.crc) == AMPC_OK
               ? OK
               : st_failed(w->s, w->file);
}

static Status open_initial(Weights *w) {
    char *text;
    size_t n;
    TRY(section_text(w, "weights", &w->initial, &w->ninitial));
    TRY(section_text(w, "weights.json", &text, &n));
    if (!text) return OK;
    return json_parse(text, n, &w->index) ? OK
                                          : damaged(w, "its section "
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

static Status from_file(Weights *w, StFile *f, const StTensor *t,
                        const char *name, const Type *type, char *out) {
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

/* Entry {"dtype":"F32",..,"data_offsets":[..]} as the compiler wrote it. */
static Status from_module(Weights *w, JsonSpan entry, const char *name,
                          const Type *type, char *out) {
    JsonSpan v, key, item;
    int64_t at[2] = {0, 0}, n = 0;
    uint32_t dtype = 0;
    if (!json_get(entry, "dtype", &v))
        return damaged(w, "its section 'weights.json'");
    while (dtype < AMPC_NDTYPE &&
           !json_equals(v, dtype_info[dtype].safetensors))
        dtype++;
    if (!json_get(entry, "data_offsets", &v))
        return damaged(w, "its section 'weights.json'");
    for (JsonIter it = json_iter(v); json_next(&it, &key, &item) && n < 2; n++)
        if (!json_int(item, &at[n])) break;
    int64_t bytes = type_count(type) * (int64_t)dtype_bytes(dtype);
    bool fits = n == 2 && dtype < AMPC_NDTYPE && at[0] >= 0 &&
                at[1] - at[0] == bytes && (uint64_t)at[1] <= w->ninitial &&
                (dtype == (uint32_t)type->dtype ||
                 (is_float_dtype(dtype) && dtype_is_float(type->dtype)));
    if (!fits) return damaged(w, "its weights do not fit its model");
    return convert(dtype, w->initial + at[0], type->dtype, out,
                   type_count(type))
               ? OK
               : misfit(w, w->module->path, name,
                        "holds numbers beyond the "
                        "model's own type");
}

static const StTensor *find_tensor(Weights *w, const char *name) {
    const StTensor *t = NULL;
    if (w->averaged) {
        const char *mean =
            arena_printf(w->s->arena, "ampc.opt/%s/average", name);
        t = st_find(w->file, mean);
        w->averages += t != NULL;
    }
    return w->file && !t ? st_find(w->file, name) : t;
}

/* Reads a parameter of an adapter as f32. */
static Status part_of(void *ctx, const char *name, int64_t rows,
                      int64_t columns, float *out) {
    Weights *w = ctx;
    Type type = {.dtype = DT_F32, .rank = 2, .dim = {rows, columns}};
    const StTensor *t = find_tensor(w, name);
    if (!t) return misfit(w, w->file->path, name, "is not in it");
    return from_file(w, w->file, t, name, &type, (char *)out);
}

/* A checkpoint that is given has them all. */
static Status weight_of(void *ctx, const char *name, const Type *type,
                        void *data) {
    Weights *w = ctx;
    JsonSpan entry;
    const StTensor *t = find_tensor(w, name);
    if (t) {
        TRY(from_file(w, w->file, t, name, type, data));
        return adapters_merge(&w->adapters, name, type, data, part_of, w);
    }
    if (w->file)
        return misfit(w, w->file->path, name,
                      "is not in it: saved by another model, or under other "
                      "names");
    if (json_get(w->index, name, &entry))
        return from_module(w, entry, name, type, data);
    return damaged(w, "its weights do not include all tensors of its model");
}

/* ---- the command --------------------------------------------------------- */

static Status write_model(Weights *w, const char *out) {
    Session *s = w->s;
    char *skeleton;
    size_t n;
    OutFile o = {0};
    TRY(section_text(w, "model", &skeleton, &n));
    if (!outfile_open(&o, out, 0666, NULL, NULL))
        return file_failed(&s->diag, out, &o);
    Status st =
        onnx_export(s->arena, &s->diag, out, skeleton, n, weight_of, w, &o);
    if (st == OK && w->averaged && !w->averages)
        st = fail(&s->diag, (Loc){.file = w->file->path},
                  "--averaged: no tensor of the checkpoint is an average (ampc "
                  "--ema or --swa)");
    if (st == OK && !outfile_commit(&o)) st = file_failed(&s->diag, out, &o);
    outfile_abort(&o);
    return st;
}

static Status read_adapters(Weights *w) {
    Session *s = w->s;
    char *text;
    size_t n;
    TRY(section_text(w, "adapters", &text, &n));
    if (text && !adapters_read(s->arena, &s->diag, text, n, &w->adapters))
        return damaged(w, "its section 'adapters'");
    return OK;
}

/* --adapter: the adapters alone, as PEFT has them. */
static Status write_adapters(Weights *w, const char *load, const char *out) {
    Session *s = w->s;
    if (!w->adapters.n)
        return fail(&s->diag, (Loc){.file = w->module->path},
                    "--adapter: compiled without --lora, the module has no "
                    "adapters");
    if (!load) {
        fail(&s->diag, (Loc){0}, "--adapter needs --load CKPT");
        return ERR_USAGE;
    }
    TRY(open_file(w, load));
    return adapters_write(&w->adapters, w->file, out, s->opt.guard, part_of, w);
}

static Status export_from(Session *s, const SectionFile *f, const char *load,
                          const char *out) {
    Weights w = {.s = s, .module = f, .averaged = s->own.averaged};
    Status st = OK;
    if (w.averaged && !load) {
        fail(&s->diag, (Loc){0}, "--averaged needs --load CKPT");
        return ERR_USAGE;
    }
    TRY(read_adapters(&w));
    if (s->own.adapter) {
        st = write_adapters(&w, load, out);
        if (w.file) st_close(w.file);
        return st;
    }
    if (!sections_find(f, "model"))
        st = fail(&s->diag, (Loc){.file = f->path},
                  "compiled from a .amp file: there is no ONNX graph to write "
                  "weights into");
    if (st == OK) st = load ? open_file(&w, load) : open_sidecar(&w);
    if (st == OK && !w.file) st = open_initial(&w);
    if (st == OK) st = write_model(&w, out);
    if (w.file) st_close(w.file);
    return st;
}

int cmd_export(int argc, char **argv) {
    Session s;
    SectionFile f;
    const char *module = NULL;
    session_init(&s);
    s.own_only = true;
    Status st = session_args(&s, argc, argv, "export", &module);
    const char *load = s.own.load, *out = s.own.out;
    if (st == OK && !out) {
        fail(&s.diag, (Loc){0}, "-o MODEL.onnx is missing (see ampc --help)");
        st = ERR_USAGE;
    }
    FileGuard *g = s.opt.guard;
    if (st == OK) st = file_reads(&s.diag, g, module, "the module");
    if (st == OK) st = file_reads(&s.diag, g, load, "--load");
    if (st == OK && !s.own.adapter) st = file_writes(&s.diag, g, out, "-o");
    if (st == OK) st = sections_open(s.arena, &s.diag, module, &f);
    if (st == OK) {
        st = export_from(&s, &f, load, out);
        sections_close(&f);
    }
    return session_end(&s, st);
}
