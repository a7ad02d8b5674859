/* checkpoint.c: a session to a safetensors file and back (design.md 8).

   Tensors: parameters, frozen weights, buffers, optimizer state, and, between
   micro-steps, the gradients.  Scalars of the scaler and the schedule are in
   __metadata__.ampc, a JSON text:
     {"version":1, "model":.., "graph_hash":"16 hex digits", "scaler":{..},
      "counts":{..}, "rng":{..}, "schedule":{..}, "state":{..}, "cursor":..}
   Reading goes to a staging block first; when all of it has been read and
   checked, it is copied over, which can fail only with the device itself.   */
#define _GNU_SOURCE
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/backend.h"
#include "runtime/safetensors.h"

enum { CHECKPOINT_VERSION = 1, RNG_MAX = 16 };

/* ---- what goes where ----------------------------------------------------- */

static const char *const sections[] = {"scaler", "counts", "rng", "schedule",
                                       "state"};
enum { SECTION_COUNT = sizeof sections / sizeof *sections };

/* The section in the JSON for scalars and the random state (a few numbers);
   NULL: the variable is a tensor.                                           */
static const char *section_of(const PlanVar *v) {
    static const char *const counts[] = {"ampc.step",    "ampc.tried",
                                         "ampc.skipped", "ampc.bad_forward",
                                         "ampc.micro",   "ampc.loss_sum"};
    if (strncmp(v->name, "ampc.", 5) != 0 ||
        strncmp(v->name, "ampc.opt/", 9) == 0)
        return NULL;
    if (strcmp(v->name, "ampc.rng") == 0 && v->kind == PLAN_STATE &&
        v->rank == 1 && v->dim[0] <= RNG_MAX)
        return "rng";
    if (v->rank != 0) return NULL;
    if (v->kind == PLAN_HYPER)
        return strcmp(v->name, "ampc.seed") == 0 ? "rng" : "schedule";
    if (v->kind != PLAN_STATE) return NULL;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (strcmp(v->name, counts[i]) == 0) return "counts";
    return strcmp(v->name, "ampc.scale") == 0 ||
                   strcmp(v->name, "ampc.good") == 0 ||
                   strcmp(v->name, "ampc.hyst") == 0
               ? "scaler"
               : "state";
}

static bool is_weight(const PlanVar *v) {
    return v->kind == PLAN_PARAM || v->kind == PLAN_FROZEN ||
           v->kind == PLAN_BUFFER;
}

/* Gradients count only between micro-steps. */
static bool is_saved(const PlanVar *v, int64_t micro) {
    return is_weight(v) || v->kind == PLAN_STATE || v->kind == PLAN_HYPER ||
           (v->kind == PLAN_GRAD && micro > 0);
}

/* Decimal points are points in files, whatever the host's locale. */
typedef struct Locale {
    locale_t c, host;
} Locale;

static Locale locale_enter(void) {
    Locale l = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
    if (l.c) l.host = uselocale(l.c);
    return l;
}

static void locale_leave(Locale l) {
    if (!l.c) return;
    uselocale(l.host);
    freelocale(l.c);
}

/* ---- scalars ------------------------------------------------------------- */

static void put_float(Text *t, double x, int digits) {
    if (isnan(x))
        text_printf(t, "\"nan\"");
    else if (isinf(x))
        text_printf(t, x < 0 ? "\"-inf\"" : "\"inf\"");
    else
        text_printf(t, "%.*g", digits, x);
}

static void put_scalar(Text *t, uint32_t dtype, const void *p) {
    switch (dtype) {
    case AMPC_F32: put_float(t, *(const float *)p, 9); break;
    case AMPC_F64: put_float(t, *(const double *)p, 17); break;
    case AMPC_I32: text_printf(t, "%" PRId32, *(const int32_t *)p); break;
    case AMPC_I64: text_printf(t, "%" PRId64, *(const int64_t *)p); break;
    case AMPC_BOOL: text_printf(t, "%d", *(const uint8_t *)p); break;
    default: text_printf(t, "null"); break;
    }
}

/* A number, or an array of them when the variable has an axis. */
static void put_value(Text *t, const PlanVar *v, const char *p) {
    if (v->rank == 0) {
        put_scalar(t, v->dtype, p);
        return;
    }
    size_t size = dtype_bytes(v->dtype);
    for (uint64_t at = 0; at < v->bytes; at += size) {
        text_printf(t, at ? "," : "[");
        put_scalar(t, v->dtype, p + at);
    }
    text_printf(t, v->bytes ? "]" : "[]");
}

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

/* ---- saving -------------------------------------------------------------- */

static ampc_status put_section(ampc_session *s, Text *t, const char *section) {
    _Alignas(8) char value[RNG_MAX * 8];
    bool first = true;
    text_printf(t, ",\"%s\":{", section);
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        const char *in = section_of(v);
        if (!in || strcmp(in, section) != 0) continue;
        ampc_status status =
            s->backend->get(s, var_ref(i, 0), value, v->bytes);
        if (status != AMPC_OK) return status;
        if (!first) text_printf(t, ",");
        first = false;
        text_quoted(t, v->name + 5);
        text_printf(t, ":");
        put_value(t, v, value);
    }
    text_printf(t, "}");
    return AMPC_OK;
}

static ampc_status put_metadata(ampc_session *s, Text *t) {
    ampc_status status = AMPC_OK;
    text_printf(t, "{\"version\":%d,\"model\":", CHECKPOINT_VERSION);
    text_quoted(t, s->m->model ? s->m->model : "");
    text_printf(t, ",\"graph_hash\":\"%016" PRIx64 "\"", s->m->graph_hash);
    for (int i = 0; i < SECTION_COUNT && status == AMPC_OK; i++)
        status = put_section(s, t, sections[i]);
    const char *cursor = s->cursor ? s->cursor : "null";
    text_printf(t, ",\"cursor\":");
    text_put(t, cursor, strlen(cursor));
    text_printf(t, "}");
    return status;
}

static size_t list_tensors(const ampc_session *s, StItem *items) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (!is_saved(v, s->micro) || section_of(v)) continue;
        items[n++] =
            (StItem){v->name, v->dtype, v->rank, v->dim, i, v->bytes};
    }
    return n;
}

ampc_status checkpoint_save(ampc_session *s, const char *path) {
    Text metadata = {.s = s};
    size_t bytes = s->m->nvar * sizeof(StItem);
    StItem *items = mem_alloc(s, bytes);
    Locale l = locale_enter();
    ampc_status status = put_metadata(s, &metadata);
    locale_leave(l);
    if (status == AMPC_OK && (!items || metadata.failed))
        status = session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    if (status == AMPC_OK)
        status = st_write(s, path, items, list_tensors(s, items), metadata.p);
    text_free(&metadata);
    mem_free(s, items, bytes);
    return status;
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
    bool same_graph, resume;
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
    l->same_graph = strcmp(hash, mine) == 0;
    return AMPC_OK;
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

/* Tensors that the module does not know show that it is another model, or,
   when resuming, another optimizer.                                         */
static ampc_status check_extra(Load *l) {
    char name[200] = "";
    for (size_t i = 0; i < l->f.ntensor; i++) {
        const StTensor *t = &l->f.tensors[i];
        if (!t->name.n) continue;
        bool known = json_text(t->name, name, sizeof name) < 0;
        bool own = strncmp(name, "ampc.", 5) == 0;
        for (uint32_t k = 0; k < l->s->m->nvar && !known; k++)
            known = json_equals(t->name, l->s->m->vars[k].name);
        if (known || (!l->resume && (own || l->same_graph))) continue;
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: its tensor '%.100s' is unknown to this "
                            "module: saved by another model or with other "
                            "options",
                            l->f.path, name);
    }
    return AMPC_OK;
}

/* ---- reading into the stage */

static ampc_status stage_scalar(Load *l, uint32_t i) {
    const PlanVar *v = &l->s->m->vars[i];
    const char *section = section_of(v);
    JsonSpan members, value;
    if (json_get(l->meta, section, &members) &&
        json_get(members, v->name + 5, &value) &&
        take_value(value, v, l->stage + l->at[i]))
        return AMPC_OK;
    return session_fail(l->s, AMPC_ERR_FORMAT,
                        "%s: its metadata lacks a good '%s.%.100s': saved with "
                        "other options",
                        l->f.path, section, v->name + 5);
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
    if (!l->same_graph)
        return session_fail(l->s, AMPC_ERR_FORMAT,
                            "%s: a checkpoint of another graph; load takes "
                            "weights alone",
                            l->f.path);
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
    ampc_status status = load_metadata(l);
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
        ampc_status status =
            s->backend->put(s, var_ref(i, 0), l->stage + l->at[i],
                            s->m->vars[i].bytes);
        if (status != AMPC_OK) return status;
    }
    if (!l->resume) return AMPC_OK;
    s->micro = l->micro;
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

ampc_status checkpoint_load(ampc_session *s, const char *path, bool resume) {
    Load l = {.s = s, .resume = resume};
    ampc_status status = st_open(s, path, &l.f);
    if (status != AMPC_OK) return status;
    Locale locale = locale_enter();
    status = load_all(&l);
    locale_leave(locale);
    if (status == AMPC_OK) status = load_apply(&l);
    load_free(&l);
    return status;
}

/* No metadata; variables that it lacks keep their constant fill, but a trained
   parameter must be there.                                                  */
ampc_status checkpoint_sidecar(ampc_session *s, const char *path) {
    StFile f;
    ampc_status status = st_open(s, path, &f);
    if (status != AMPC_OK) return status;
    Load l = {.s = s, .f = f};
    for (uint32_t i = 0; i < s->m->nvar && status == AMPC_OK; i++) {
        const PlanVar *v = &s->m->vars[i];
        const StTensor *t = is_weight(v) ? st_find(&f, v->name) : NULL;
        if (!t && v->kind != PLAN_PARAM) continue;
        status = check_tensor(&l, v);
        if (status == AMPC_OK) status = st_read_var(s, &f, t, i);
    }
    st_close(s, &f);
    return status;
}
