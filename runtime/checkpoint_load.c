/* checkpoint_load.c: a safetensors file to a session.

   Reading goes to a staging block first; when all of it has been read and
   checked, it is copied over, which can fail only with the device itself.
   Resuming wants a checkpoint of the same programs, whole; when the file is
   cut off, damaged or gone, the one saved before it serves, and the session
   says so.  Loading wants the weights by name, from any file.               */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/backend.h"
#include "runtime/checkpoint.h"

/* ---- scalars ------------------------------------------------------------- */

static bool take_float(JsonSpan v, double *out) {
    if (json_equals(v, "nan")) return *out = NAN, true;
    if (json_equals(v, "inf")) return *out = INFINITY, true;
    if (json_equals(v, "-inf")) return *out = -INFINITY, true;
    return json_double(v, out);
}

static bool take_scalar(JsonSpan v, uint32_t dtype, void *p) {
    double x;
    int64_t n;
    switch (dtype) {
    case AMPC_F32:
        if (!take_float(v, &x)) return false;
        *(float *)p = (float)x;
        return true;
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

/* A load in progress. */
typedef struct Load {
    ampc_session *s;
    StFile f;
    char *text; /* the metadata JSON, decoded */
    size_t text_bytes;
    JsonSpan meta;
    bool resume;
    int64_t micro;
    uint64_t *at; /* per variable: place in `stage` */
    char *stage;
    size_t stage_bytes;
    char *cursor; /* NULL: leave it */
} Load;

static ampc_status load_memory(Load *l) {
    return session_fail(l->s, AMPC_ERR_MEMORY, "%s: out of memory", l->f.path);
}

static ampc_status load_foreign(Load *l, const char *why) {
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: not a checkpoint of ampc: %s", l->f.path, why);
}

/* What says `ampc` has a checksum, or it was damaged. */
static ampc_status load_verify(Load *l) {
    JsonSpan v;
    bool there;
    ampc_status status = st_verify(l->s, &l->f, &there);
    if (status != AMPC_OK || there || !l->f.metadata.n ||
        !json_get(l->f.metadata, "ampc", &v))
        return status;
    l->f.torn = true;
    return load_foreign(l, "it has no checksum");
}

static ampc_status load_metadata(Load *l) {
    JsonSpan v;
    int64_t version;
    char hash[32], mine[32];
    if (!l->f.metadata.n || !json_get(l->f.metadata, "ampc", &v) ||
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
                            l->f.path, (long long)version, CHECKPOINT_VERSION);
    if (!json_get(l->meta, "graph_hash", &v) ||
        json_text(v, hash, sizeof hash) < 0)
        return load_foreign(l, "its metadata has no graph_hash");
    snprintf(mine, sizeof mine, "%016" PRIx64, l->s->m->graph_hash);
    if (strcmp(hash, mine) == 0) return AMPC_OK;
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: a checkpoint of another graph or of other "
                        "options; load takes weights alone",
                        l->f.path);
}

/* ---- which variables, and where they are staged */

static bool load_wants(const Load *l, const PlanVar *v) {
    return l->resume ? is_saved(v, l->micro) : is_weight(v);
}

static ampc_status check_tensor(Load *l, const PlanVar *v) {
    char want[160], got[160];
    const StTensor *t = st_find(&l->f, v->name);
    if (!t)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: it has no tensor '%.200s', or two: saved by "
                            "another model or with other options",
                            l->f.path, v->name);
    if (t->dtype == v->dtype && t->rank == v->rank &&
        (v->rank == 0 || memcmp(t->dim, v->dim, v->rank * sizeof *v->dim) == 0))
        return AMPC_OK;
    shape_text(want, v->dtype, v->rank, v->dim);
    shape_text(got, t->dtype, t->rank, t->dim);
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: '%.200s' is %s there and %s in this module",
                        l->f.path, v->name, got, want);
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
        if (!section_of(v)) {
            ampc_status status = check_tensor(l, v);
            if (status != AMPC_OK) return status;
        }
        l->at[i] = total;
        total += (v->bytes + 63) & ~(uint64_t)63;
    }
    l->stage = mem_alloc(l->s, total);
    l->stage_bytes = total;
    return l->stage ? AMPC_OK : load_memory(l);
}

static bool is_known(const Load *l, const StTensor *t) {
    for (uint32_t k = 0; k < l->s->m->nvar; k++)
        if (json_equals(t->name, st_name(l->s->m->vars[k].name))) return true;
    return false;
}

/* Tensors that the module does not know: nothing of the same programs, and
   worth a note when only weights are wanted.                                */
static ampc_status check_extra(Load *l) {
    char name[200], first[200] = "";
    size_t n = 0;
    for (size_t i = 0; i < l->f.ntensor; i++) {
        const StTensor *t = &l->f.tensors[i];
        if (!t->name.n || is_known(l, t)) continue;
        if (json_text(t->name, name, sizeof name) < 0)
            snprintf(name, sizeof name, "?");
        if (l->resume)
            return session_fail(l->s, AMPC_ERR_FORMAT,
                                "%s: its tensor '%.100s' is unknown to this "
                                "module",
                                l->f.path, name);
        if (own_name(name)) continue;
        if (n++ == 0) memcpy(first, name, sizeof first);
    }
    if (n)
        session_notice(l->s,
                       "%s: %zu tensors are not in this module: '%.100s'%s",
                       l->f.path, n, first, n > 1 ? ", ..." : "");
    return AMPC_OK;
}

/* ---- reading into the stage */

static ampc_status stage_scalar(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    const char *section = section_of(v);
    JsonSpan members, value;
    char *to = l->stage + l->at[i];
    if (!json_get(l->meta, section, &members) ||
        !json_get(members, v->name + 5, &value) || !take_value(value, v, to))
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: its metadata lacks a good '%s.%.100s'",
                            l->f.path, section, v->name + 5);
    if (var_in_range(l->s, i, to)) return AMPC_OK;
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: its '%s.%.100s' = %.*s cannot be", l->f.path,
                        section, v->name + 5,
                        (int)(value.n < 40 ? value.n : 40), value.p);
}

static ampc_status load_stage(Load *l) {
    for (uint32_t i = 0; i < l->s->m->nvar; i++) {
        const PlanVar *v = &l->s->m->vars[i];
        ampc_status status;
        if (l->at[i] == NOT_STAGED) continue;
        if (section_of(v))
            status = stage_scalar(l, i);
        else
            status = st_read(l->s, &l->f, st_find(&l->f, v->name),
                             l->stage + l->at[i]);
        if (status != AMPC_OK) return status;
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

/* What resuming needs beyond weights.  The gradients' memory may stay behind
   when a later check fails: nobody can see it.                              */
static ampc_status load_resume(Load *l) {
    JsonSpan counts, v;
    if (l->s->known[VAR_MICRO] >= 0 &&
        (!json_get(l->meta, "counts", &counts) ||
         !json_get(counts, "micro", &v) || !json_int(v, &l->micro) ||
         l->micro < 0 || l->micro > l->s->accumulate))
        return load_foreign(l, "its count of micro-steps");
    if (l->micro > 0) {
        ampc_status status = l->s->backend->need_grads(l->s);
        if (status != AMPC_OK) return status;
    }
    return load_cursor(l);
}

static ampc_status load_all(Load *l) {
    ampc_status status = load_verify(l);
    if (status == AMPC_OK && l->resume) status = load_metadata(l);
    if (status == AMPC_OK && l->resume) status = load_resume(l);
    if (status == AMPC_OK) status = check_extra(l);
    if (status == AMPC_OK) status = load_layout(l);
    if (status == AMPC_OK) status = load_stage(l);
    return status;
}

static ampc_status load_apply(Load *l) {
    ampc_session *s = l->s;
    s->stale = true;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (l->at[i] == NOT_STAGED) continue;
        ampc_status status = s->backend->put(
            s, var_ref(i, 0), l->stage + l->at[i], s->m->vars[i].bytes);
        if (status != AMPC_OK) return status;
    }
    if (!l->resume) return AMPC_OK;
    s->micro = l->micro;
    int bad = s->known[VAR_BAD_DATA];
    s->bad.count = 0;
    if (bad >= 0 && l->at[bad] != NOT_STAGED)
        s->bad.count = (int64_t)scalar_number(s->m->vars[bad].dtype,
                                              l->stage + l->at[bad]);
    if (s->cursor) mem_free(s, s->cursor, strlen(s->cursor) + 1);
    s->cursor = l->cursor;
    l->cursor = NULL;
    return AMPC_OK;
}

static void load_free(Load *l) {
    mem_free(l->s, l->text, l->text_bytes);
    mem_free(l->s, l->at, l->s->m->nvar * sizeof *l->at);
    mem_free(l->s, l->stage, l->stage_bytes);
    if (l->cursor) mem_free(l->s, l->cursor, strlen(l->cursor) + 1);
    st_close(l->s, &l->f);
}

static ampc_status load_file(ampc_session *s, const char *path, bool resume,
                             bool *torn) {
    Load l = {.s = s, .resume = resume};
    ampc_status status = st_open(s, path, &l.f);
    if (status == AMPC_OK) {
        Locale locale = locale_enter();
        status = load_all(&l);
        locale_leave(locale);
        if (status == AMPC_OK) status = load_apply(&l);
        load_free(&l);
    }
    *torn = status != AMPC_OK && l.f.torn;
    return status;
}

/* PATH is torn, as s->error tells: its predecessor, if that is whole. */
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
    ampc_status status = load_file(s, previous, true, &too);
    if (status == AMPC_OK) {
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
    ampc_status status = load_file(s, path, resume, &torn);
    return torn && resume ? resume_previous(s, path, status) : status;
}

/* Exactly the file that the module was compiled with; what is not in it has its
   constant fill.                                                            */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path,
                               const PlanSidecar *want) {
    StFile f;
    ampc_status status = st_open(s, path, &f);
    if (status != AMPC_OK) return status;
    status = st_match(s, &f, want->bytes, want->crc);
    Load l = {.s = s, .f = f};
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        const PlanVar *v = &s->m->vars[i];
        const StTensor *t = is_weight(v) ? st_find(&f, v->name) : NULL;
        if (!t) continue;
        status = check_tensor(&l, v);
        if (status == AMPC_OK) status = st_read_var(s, &f, t, i);
    }
    st_close(s, &f);
    return status;
}
