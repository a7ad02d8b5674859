/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_load.c: a safetensors file to a session.

   The file is first read into a staging block. When all of it is read and
   checked, it is copied to the session, which can fail only with the device
   itself. Resuming needs a complete checkpoint of the same programs; if the
   file is truncated, damaged or missing, the previous checkpoint is used, and a
   notice says so. Loading takes weights by name, from any files: shards,
   other widths of floating numbers, other prefixes. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/try.h"
#include "runtime/files/load.h"

#include "runtime/base/glibc.h" /* last */

/* ---- scalars ------------------------------------------------------------- */

static bool take_float(JsonSpan v, double *out) {
    const struct {
        const char *text;
        double number;
    } words[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *out = words[i].number;
        if (json_equals(v, words[i].text)) return true;
    }
    return json_double(v, out);
}

static bool take_scalar(JsonSpan v, uint32_t dtype, void *p) {
    double x;
    int64_t n;
    switch (dtype) {
    case AMPC_F32: return take_float(v, &x) && float_put(AMPC_F32, x, p);
    case AMPC_F64: return take_float(v, p);
    case AMPC_I32:
        if (!json_int(v, &n) || n < INT32_MIN || n > INT32_MAX) return false;
        *(int32_t *)p = (int32_t)n;
        return true;
    case AMPC_I64: return json_int(v, p);
    case AMPC_BOOL:
        if (!json_int(v, &n) || n < 0 || n > 1) return false;
        *(uint8_t *)p = (uint8_t)n;
        return true;
    default: return false;
    }
}

static bool take_value(JsonSpan value, const PlanVar *v, char *p) {
    JsonSpan key, item;
    uint64_t at = 0;
    if (v->rank == 0) return take_scalar(value, v->dtype, p);
    if (!json_is_array(value)) return false;
    for (JsonIter it = json_iter(value); json_next(&it, &key, &item);) {
        if (at == v->bytes || !take_scalar(item, v->dtype, p + at))
            return false;
        at += dtype_bytes(v->dtype);
    }
    return at == v->bytes;
}

/* ---- loading ------------------------------------------------------------- */

#define NOT_STAGED UINT64_MAX
enum { RENAMES_MAX = 64, LOAD_PART = 8 << 10 };

/* ---- a checkpoint's own facts */

/* For one of the two sides: "'sgd,lr=0.1'", or that the option is not given. */
static void put_said(const char *buf, bool given, char *out, size_t size) {
    snprintf(out, size, given ? "'%.200s'" : "not given", buf);
}

/* The next entry of "T=64|128; B=4", without spaces; *n 0: there is none. */
static const char *next_dim(const char *at, size_t *n) {
    at += strspn(at, "; ");
    *n = strcspn(at, ";");
    return at;
}

/* The entry of `list` for the dimension that x is about; NULL: none. */
static const char *same_dim(const char *list, const char *x, size_t *n) {
    size_t name = strcspn(x, "=") + 1;
    for (const char *at = next_dim(list, n); *n; at = next_dim(at + *n, n))
        if (*n > name && strncmp(at, x, name) == 0) return at;
    return NULL;
}

/* True if each entry of a is in b, but for a dimension that has several sizes
   in one of them: variables, and what a step does, are the same. */
static bool dims_agree(const char *a, const char *b) {
    size_t n, m;
    for (const char *x = next_dim(a, &n); n; x = next_dim(x + n, &n)) {
        const char *y = same_dim(b, x, &m);
        bool sized = memchr(x, '|', n) || (y && memchr(y, '|', m));
        if (!sized && !(y && n == m && memcmp(x, y, n) == 0)) return false;
    }
    return true;
}

/* Names the options that differ between the checkpoint and the module;
   AMPC_OK: none. */
static ampc_status said_differs(Load *l, JsonSpan key, JsonSpan there,
                                JsonSpan here) {
    char name[80], a[300] = "", b[300] = "", was[300], is[300];
    bool in_file = there.n > 0, in_module = here.n > 0;
    if (json_text(key, name, sizeof name) < 0) name[0] = 0;
    if (in_file && json_text(there, a, sizeof a) < 0) a[0] = 0;
    if (in_module && json_text(here, b, sizeof b) < 0) b[0] = 0;
    if (in_file && in_module && there.n == here.n &&
        memcmp(there.p, here.p, here.n) == 0)
        return AMPC_OK;
    if (strcmp(name, "--dim") == 0 && dims_agree(a, b) && dims_agree(b, a))
        return AMPC_OK;
    if (name[0] != '-')
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: a checkpoint of another model: the file that "
                            "this module was compiled from has changed; load "
                            "takes weights alone",
                            load_path(l));
    put_said(a, in_file, was, sizeof was);
    put_said(b, in_module, is, sizeof is);
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: a checkpoint of other options: %s was %s there "
                        "and is %s in this module; load takes weights alone",
                        load_path(l), name, was, is);
}

static ampc_status said_in_both(Load *l, JsonSpan of, JsonSpan other,
                                bool in_file) {
    JsonSpan key, v, w;
    char name[80];
    for (JsonIter it = json_iter(of); json_next(&it, &key, &v);) {
        if (json_text(key, name, sizeof name) < 0) continue;
        if (!json_get(other, name, &w)) w = (JsonSpan){NULL, 0};
        TRY(in_file ? said_differs(l, key, v, w) : said_differs(l, key, w, v));
    }
    return AMPC_OK;
}

/* The graphs differ: another build of the compiler made the checkpoint, if
   model and options are the same.
   The first checkpoints did not name them; then the variables must be the
   same. */
static ampc_status load_other(Load *l) {
    JsonSpan there, here;
    l->told = json_get(l->meta, "said", &there) && json_is_object(there);
    if (!l->told || !module_said(l->s->m, &here)) return AMPC_OK;
    ampc_status status = said_in_both(l, there, here, true);
    return status == AMPC_OK ? said_in_both(l, here, there, false) : status;
}

static ampc_status load_metadata(Load *l) {
    const StFile *f = &l->files[0]->st;
    JsonSpan v;
    int64_t version;
    char hash[32], mine[32];
    if (!f->metadata.n || !json_get(f->metadata, "ampc", &v) ||
        !json_is_string(v))
        return load_foreign(l, "it has no metadata 'ampc'");
    l->text_bytes = v.n + 1;
    l->text = mem_alloc(l->s, l->text_bytes);
    if (!l->text) return load_memory(l);
    int64_t n = json_text(v, l->text, l->text_bytes);
    if (n < 0 || !json_parse(l->text, (size_t)n, &l->meta) ||
        !json_get(l->meta, "version", &v) || !json_int(v, &version))
        return load_foreign(l, "its metadata is malformed");
    if (version != CHECKPOINT_VERSION)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: checkpoint version %lld; this module reads %d",
                            load_path(l), (long long)version,
                            CHECKPOINT_VERSION);
    if (!json_get(l->meta, "graph_hash", &v) ||
        json_text(v, hash, sizeof hash) < 0)
        return load_foreign(l, "its metadata has no graph_hash");
    snprintf(mine, sizeof mine, "%016" PRIx64, l->s->m->graph_hash);
    l->other = strcmp(hash, mine) != 0;
    return l->other ? load_other(l) : AMPC_OK;
}

/* ---- where they are staged */

static bool same_shape(const StTensor *t, const PlanVar *v) {
    return t->rank == v->rank &&
           (v->rank == 0 ||
            memcmp(t->dim, v->dim, v->rank * sizeof *v->dim) == 0);
}

/* True if --replace-head made the variable: old files have the layer that it
   replaced. */
static bool is_fresh(const ampc_session *s, const PlanVar *v) {
    JsonSpan info, options, fresh, key, name;
    const char *json = s->m->info;
    if (!json || !json_parse(json, strlen(json), &info) ||
        !json_get(info, "options", &options) ||
        !json_get(options, "fresh", &fresh) || !json_is_array(fresh))
        return false;
    for (JsonIter it = json_iter(fresh); json_next(&it, &key, &name);)
        if (json_equals(name, v->name)) return true;
    return false;
}

/* Floating dtypes may differ in width, except on resume. */
static ampc_status check_tensor(Load *l, const LoadSource *from,
                                const PlanVar *v) {
    char want[160], got[160];
    const StTensor *t = from->t;
    PlanVar wide;
    int code;
    if (!l->resume && is_float_dtype(t->dtype) &&
        scales_of(l->s->m, v, &code) >= 0) {
        wide = widened_weight(v, code);
        v = &wide;
    }
    shape_text(want, v->dtype, v->rank, v->dim);
    if (t->foreign)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: '%.200s' is %.*s%.*s there, which is not "
                            "read, and %s in this module",
                            from->file->path, v->name,
                            (int)(t->dtype_text.n - 2), t->dtype_text.p + 1,
                            (int)(t->shape_text.n < 80 ? t->shape_text.n : 80),
                            t->shape_text.p, want);
    bool width =
        t->dtype == v->dtype ||
        (!l->resume && is_float_dtype(t->dtype) && is_float_dtype(v->dtype));
    if (width && same_shape(t, v)) return AMPC_OK;
    shape_text(got, t->dtype, t->rank, t->dim);
    return session_fail(
        l->s, AMPC_ERR_FORMAT,
        "%s: '%.200s' is %s in the file and %s in this module%s",
        from->file->path, v->name, got, want,
        l->from->partial ? " (to leave a tensor out, rename it to an unused "
                           "name: --load-map OLD=NEW)"
                         : "");
}

static ampc_status load_layout(Load *l) {
    const AmpcModule *m = l->s->m;
    uint64_t total = 0;
    l->at = mem_alloc(l->s, m->nvar * sizeof *l->at);
    if (!l->at) return load_memory(l);
    for (uint32_t i = 0; i < m->nvar; i++) {
        const PlanVar *v = &m->vars[i];
        l->at[i] = NOT_STAGED;
        if (!load_wants(l, v)) continue;
        if (!section_of(v) && !load_quantizes(l, weight_of_scales(m, v))) {
            bool begins = load_begins(l, i);
            if (!l->sources[i].t && !begins) continue;
            if (!l->resume && !begins && !same_shape(l->sources[i].t, v) &&
                is_fresh(l->s, v)) {
                load_names_add(&l->fresh, v->name);
                continue;
            }
            TRY(begins ? AMPC_OK : check_tensor(l, &l->sources[i], v));
        }
        l->at[i] = total;
        total += (v->bytes + 63) & ~(uint64_t)63;
    }
    l->stage = mem_alloc(l->s, total);
    l->stage_bytes = total;
    return l->stage ? AMPC_OK : load_memory(l);
}

/* ---- reading into the stage */

static ampc_status stage_scalar(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    const char *section = section_of(v);
    JsonSpan members, value;
    char *to = l->stage + l->at[i];
    bool there = json_get(l->meta, section, &members) &&
                 json_get(members, v->name + 5, &value);
    bool later = is_known(v->name, VAR_SHARES) || is_known(v->name, VAR_VALID);
    if (!there && (later || (l->other && l->told))) { /* that build did not
                                                         have it */
        l->at[i] = NOT_STAGED;
        return AMPC_OK;
    }
    if (!there || !take_value(value, v, to))
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: its metadata has no valid '%s.%.100s'",
                            load_path(l), section, v->name + 5);
    if (var_in_range(l->s, i, to)) return AMPC_OK;
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: its '%s.%.100s' = %.*s cannot be", load_path(l),
                        section, v->name + 5,
                        (int)(value.n < 40 ? value.n : 40), value.p);
}

/* Converts elements of one floating dtype to another. */
static ampc_status stage_converted(Load *l, LoadFile *f, const StTensor *t,
                                   const PlanVar *v, char *to) {
    _Alignas(8) char part[LOAD_PART];
    size_t a = dtype_bytes(t->dtype), b = dtype_bytes(v->dtype);
    uint64_t bytes = t->end - t->begin;
    for (uint64_t at = 0; at < bytes; at += LOAD_PART) {
        uint64_t n = bytes - at < LOAD_PART ? bytes - at : LOAD_PART;
        ampc_status status = st_read(&f->st, t, at, n, part);
        if (status != AMPC_OK) return load_failed(l, &f->st, status);
        for (uint64_t i = 0; i < n; i += a, to += b) {
            double x = float_at(t->dtype, part + i);
            if (float_put(v->dtype, x, to)) continue;
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: %g in '%.200s' is beyond %s", f->path, x,
                                v->name, dtype_name(v->dtype));
        }
    }
    return AMPC_OK;
}

static ampc_status stage_tensor(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    LoadFile *f = l->sources[i].file;
    const StTensor *t = l->sources[i].t;
    char *to = l->stage + l->at[i];
    ampc_status status;
    int code;
    if (load_begins(l, i)) {
        memset(to, 0xff, v->bytes); /* NaN, which program refresh replaces */
        return AMPC_OK;
    }
    if (!t) return AMPC_OK; /* scales, which follow from their weight */
    if (load_quantizes(l, (int)i)) {
        int scale = scales_of(l->s->m, v, &code);
        status = quantize_tensor(&f->st, t, code, to,
                                 (float *)(void *)(l->stage + l->at[scale]));
    } else if (t->dtype != v->dtype) {
        return stage_converted(l, f, t, v, to);
    } else {
        status = st_read(&f->st, t, 0, v->bytes, to);
    }
    return status == AMPC_OK ? status : load_failed(l, &f->st, status);
}

static ampc_status load_stage(Load *l) {
    for (uint32_t i = 0; i < l->s->m->nvar; i++) {
        if (l->at[i] == NOT_STAGED) continue;
        TRY(section_of(&l->s->m->vars[i]) ? stage_scalar(l, i)
                                          : stage_tensor(l, i));
    }
    return AMPC_OK;
}

static ampc_status load_cursor(Load *l) {
    JsonSpan v;
    if (!json_get(l->meta, "cursor", &v))
        return load_foreign(l, "its metadata has no cursor");
    l->cursor = mem_alloc(l->s, v.n + 1);
    if (!l->cursor) return load_memory(l);
    memcpy(l->cursor, v.p, v.n);
    l->cursor[v.n] = 0;
    return AMPC_OK;
}

/* Checks and stages the data that resuming needs in addition to weights. If
   a later check fails, memory of gradients may stay allocated, which has no
   visible effect. */
static ampc_status load_resume(Load *l) {
    JsonSpan counts, v;
    for (uint32_t i = 0; i < l->s->m->nvar; i++) { /* for each objective */
        const char *name = l->s->m->vars[i].name;
        int64_t micro;
        if (!is_known(name, VAR_MICRO)) continue;
        if (!json_get(l->meta, "counts", &counts) ||
            !json_get(counts, name + 5, &v) || !json_int(v, &micro) ||
            micro < 0 || micro > l->s->accumulate || (micro && l->micro))
            return load_foreign(l, "its count of micro-steps");
        if (!micro) continue;
        l->micro = micro;
        l->summed = strchr(name, ':');
    }
    if (l->micro > 0) TRY(l->s->backend->need_grads(l->s));
    return load_cursor(l);
}

/* Builds without ampc.shares gave each micro-batch the same weight. */
static ampc_status apply_shares(Load *l) {
    ampc_session *s = l->s;
    int v = s->known[VAR_SHARES];
    float shares = (float)l->micro;
    if (v < 0 || l->at[v] != NOT_STAGED || s->m->vars[v].bytes != sizeof shares)
        return AMPC_OK;
    return s->backend->put(s, var_ref((uint32_t)v, 0), &shares, sizeof shares);
}

static ampc_status load_apply(Load *l) {
    ampc_session *s = l->s;
    s->stale = true;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (l->at[i] == NOT_STAGED) continue;
        TRY(s->backend->put(s, var_ref(i, 0), l->stage + l->at[i],
                            s->m->vars[i].bytes));
    }
    if (!l->resume) return AMPC_OK;
    s->micro = l->micro;
    if (l->summed) s->objective = l->summed + 1;
    session_find_known(s);
    int bad = s->known[VAR_BAD_DATA];
    s->bad.count = 0;
    if (bad >= 0 && l->at[bad] != NOT_STAGED)
        s->bad.count = (int64_t)scalar_number(s->m->vars[bad].dtype,
                                              l->stage + l->at[bad]);
    session_take_cursor(s, l->cursor);
    l->cursor = NULL;
    return apply_shares(l);
}

static void load_free(Load *l) {
    for (size_t i = 0; i < l->nfile; i++) load_close(l, l->files[i]);
    mem_free(l->s, l->files, l->room * sizeof *l->files);
    mem_free(l->s, l->text, l->text_bytes);
    mem_free(l->s, l->sources, l->s->m->nvar * sizeof *l->sources);
    mem_free(l->s, l->at, l->s->m->nvar * sizeof *l->at);
    mem_free(l->s, l->stage, l->stage_bytes);
    if (l->cursor) mem_free(l->s, l->cursor, strlen(l->cursor) + 1);
}

static ampc_status load_files(ampc_session *s, const ampc_weights *from,
                              bool resume, bool *torn) {
    Load l = {.s = s, .from = from, .resume = resume};
    Locale locale = locale_enter();
    ampc_status status = load_open(&l);
    if (status == AMPC_OK && resume) status = load_metadata(&l);
    if (status == AMPC_OK && resume) status = load_resume(&l);
    if (status == AMPC_OK) status = load_resolve(&l);
    if (status == AMPC_OK) status = load_layout(&l);
    if (status == AMPC_OK) status = load_stage(&l);
    locale_leave(locale);
    if (status == AMPC_OK) status = load_apply(&l);
    if (status == AMPC_OK) load_report(&l);
    *torn = status != AMPC_OK && l.torn;
    load_free(&l);
    return status;
}

static ampc_status load_one(ampc_session *s, const char *path, bool resume,
                            bool *torn) {
    ampc_weights from = {.size = sizeof from, .paths = &path, .npath = 1};
    return load_files(s, &from, resume, torn);
}

/* PATH is truncated or damaged, as s->error says: tries its predecessor, if
   that is complete. */
static ampc_status resume_previous(ampc_session *s, const char *path,
                                   ampc_status torn) {
    char why[sizeof s->error];
    bool too;
    size_t room = strlen(path) + sizeof ST_PREVIOUS;
    char *previous = mem_alloc(s, room);
    if (!previous)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    snprintf(previous, room, "%s" ST_PREVIOUS, path);
    memcpy(why, s->error, sizeof why);
    ampc_status status = load_one(s, previous, true, &too);
    if (status == AMPC_OK) {
        s->damaged = path_mark(path);
        session_notice(s, "%.500s; resumed from the checkpoint before it, %s",
                       why, previous);
    } else if (status != AMPC_ERR_DEVICE) {
        memcpy(s->error, why, sizeof why);
        status = torn;
    }
    mem_free(s, previous, room);
    return status;
}

ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume) {
    bool torn;
    ampc_status status = load_one(s, path, resume, &torn);
    if (status == AMPC_OK && resume) s->damaged = 0;
    return torn && resume ? resume_previous(s, path, status) : status;
}

ampc_status checkpoint_load_weights(ampc_session *s, const ampc_weights *from) {
    bool torn;
    if (!from->npath || !from->paths || (from->nrename && !from->renames) ||
        from->nrename > RENAMES_MAX)
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "ampc_weights: no paths, or more than %d renamings",
                            RENAMES_MAX);
    for (size_t i = 0; i < from->nrename; i++)
        if (!from->renames[i] || !strchr(from->renames[i], '='))
            return session_fail(s, AMPC_ERR_ARGUMENT,
                                "renaming '%.200s' is not OLD=NEW",
                                from->renames[i] ? from->renames[i] : "");
    return load_files(s, from, false, &torn);
}

/* Reads a tensor into a variable of the same size. */
static ampc_status read_var(ampc_session *s, StFile *f, const StTensor *t,
                            uint32_t var) {
    char part[LOAD_PART];
    uint64_t bytes = t->end - t->begin;
    for (uint64_t at = 0; at < bytes; at += LOAD_PART) {
        uint64_t n = bytes - at < LOAD_PART ? bytes - at : LOAD_PART;
        ampc_status status = st_read(f, t, at, n, part);
        if (status != AMPC_OK) return session_fail(s, status, "%s", f->why);
        TRY(shard_put(s, var_ref(var, at), part, n));
    }
    return AMPC_OK;
}

/* Loads exactly the file that the module was compiled with; variables that
   are not in it have their constant fill. */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path,
                               const PlanSidecar *want) {
    LoadFile f = {.path = (char *)path};
    ampc_weights from = {.paths = &path, .npath = 1};
    Load l = {.s = s, .from = &from, .resume = true};
    ampc_status status = st_open(&s->opt, path, &f.st);
    if (status == AMPC_OK) status = st_match(&f.st, want->bytes, want->crc);
    if (status != AMPC_OK) status = load_failed(&l, &f.st, status);
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        const PlanVar *v = &s->m->vars[i];
        const StTensor *t = is_weight(v) ? st_find(&f.st, v->name) : NULL;
        if (!t) continue;
        status = check_tensor(&l, &(LoadSource){&f, t, false}, v);
        if (status == AMPC_OK) status = read_var(s, &f.st, t, i);
    }
    st_close(&f.st);
    return status;
}
