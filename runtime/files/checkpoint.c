/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c: a session to a safetensors file and back
   (docs/reference/files.md).

   Tensors: parameters, frozen weights, buffers, optimizer state, and, between
   micro-steps, the gradients.  Scalars of the scaler and the schedule are in
   __metadata__.ampc, a JSON text:
     {"version":1, "model":.., "graph_hash":"16 hex digits", "made_by":"0.1.0",
      "said":{what the user said: the model, the options}, "scaler":{..},
      "counts":{..}, "rng":{..}, "schedule":{..}, "state":{..}, "cursor":..}
   checkpoint_load.c reads it.                                               */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/try.h"
#include "runtime/files/checkpoint.h"
#include "runtime/program/quantized.h"

/* ---- what goes where ----------------------------------------------------- */

static const char *const sections[IN_COUNT] = {[IN_SCALER] = "scaler",
                                               [IN_COUNTS] = "counts",
                                               [IN_RNG] = "rng",
                                               [IN_SCHEDULE] = "schedule",
                                               [IN_STATE] = "state"};

const char *section_of(const PlanVar *v) {
    bool state = v->kind == PLAN_STATE || v->kind == PLAN_HYPER;
    Section in = state ? section_of_name(v->name) : IN_COUNT;
    bool few =
        v->rank == 0 || (in == IN_RNG && v->rank == 1 && v->dim[0] <= RNG_MAX);
    return few && in != IN_COUNT ? sections[in] : NULL;
}

bool is_weight(const PlanVar *v) {
    return v->kind == PLAN_PARAM || v->kind == PLAN_FROZEN ||
           v->kind == PLAN_BUFFER;
}

/* Gradients are saved only between micro-steps. */
bool is_saved(const PlanVar *v, int64_t micro) {
    return is_weight(v) || v->kind == PLAN_STATE || v->kind == PLAN_HYPER ||
           (v->kind == PLAN_GRAD && micro > 0);
}

Locale locale_enter(void) {
    Locale l = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
    if (l.c) l.host = uselocale(l.c);
    return l;
}

void locale_leave(Locale l) {
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

/* ---- saving -------------------------------------------------------------- */

static ampc_status put_section(ampc_session *s, Text *t, const char *section) {
    _Alignas(8) char value[RNG_MAX * 8];
    bool first = true;
    text_printf(t, ",\"%s\":{", section);
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        const char *in = section_of(v);
        if (!in || strcmp(in, section) != 0) continue;
        TRY(s->backend->get(s, var_ref(i, 0), value, v->bytes));
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
    text_printf(t, ",\"made_by\":\"" AMPC_VERSION "\"");
    JsonSpan said;
    if (module_said(s->m, &said)) {
        text_printf(t, ",\"said\":");
        text_put(t, said.p, said.n);
    }
    for (int i = 0; i < IN_COUNT && status == AMPC_OK; i++)
        status = put_section(s, t, sections[i]);
    const char *cursor = s->cursor ? s->cursor : "null";
    text_printf(t, ",\"cursor\":");
    text_json(t, cursor); /* from an older checkpoint, possibly not UTF-8 */
    text_printf(t, "}");
    return status;
}

const char *evaluated_for(const char *name, bool asked, char *buf, size_t cap) {
    static const char state[] = "ampc.opt/";
    const char *slash = strrchr(name, '/'), *of = name + sizeof state - 1;
    if (strncmp(name, state, sizeof state - 1) != 0 || slash <= of ||
        (size_t)(slash - of) >= cap ||
        (strcmp(slash, "/evaluated") != 0 &&
         !(asked && !strcmp(slash, "/average"))))
        return NULL;
    memcpy(buf, of, (size_t)(slash - of));
    buf[slash - of] = 0;
    return buf;
}

ampc_status averages_asked(ampc_session *s, bool *asked) {
    int v = find_var(s->m, "ampc.averaged");
    double x = 0;
    ampc_status status = v < 0 ? AMPC_OK : var_number(s, v, 0, &x);
    *asked = x > 0;
    return status;
}

/* True if every objective has made a step: before, averages are empty. */
static ampc_status averages_there(ampc_session *s, bool *there) {
    ampc_status status = AMPC_OK;
    *there = true;
    for (uint32_t i = 0; i < s->m->nvar && *there && status == AMPC_OK; i++) {
        const char *name = s->m->vars[i].name;
        double steps = 1;
        if (!strcmp(name, "ampc.step") || !strncmp(name, "ampc.step:", 10))
            status = var_number(s, (int)i, 0, &steps);
        *there = steps > 0;
    }
    return status;
}

static void put_item(const ampc_session *s, const char *name, uint32_t var,
                     StItem *to) {
    const PlanVar *v = &s->m->vars[var];
    *to = (StItem){.name = name,
                   .dtype = v->dtype,
                   .rank = v->rank,
                   .var = var,
                   .bytes = v->bytes,
                   .scales = -1};
    memcpy(to->dim, v->dim, sizeof to->dim);
}

/* Codes are written as the numbers that they stand for. */
static void put_weight(const ampc_session *s, uint32_t var, StItem *to) {
    const PlanVar *v = &s->m->vars[var];
    int code, scales = scales_of(s->m, v, &code);
    put_item(s, v->name, var, to);
    if (scales < 0) return;
    PlanVar wide = widened_weight(v, code);
    memcpy(to->dim, wide.dim, sizeof to->dim);
    to->dtype = wide.dtype;
    to->scales = scales;
    to->code = code;
    to->bytes *= code == QUANTIZED_INT8 ? 4 : 8;
}

static size_t list_tensors(const ampc_session *s, bool all, StItem *items) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (section_of(v)) continue;
        if (all && is_saved(v, s->micro))
            put_item(s, v->name, i, &items[n++]);
        else if (!all && is_weight(v) && weight_of_scales(s->m, v) < 0)
            put_weight(s, i, &items[n++]);
    }
    return n;
}

/* What evaluation reads takes the place of the weights. */
static void take_averages(const ampc_session *s, bool asked, StItem *items,
                          size_t n) {
    char of[1024];
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        if (!evaluated_for(s->m->vars[i].name, asked, of, sizeof of)) continue;
        for (size_t k = 0; k < n; k++)
            if (!strcmp(items[k].name, of))
                put_item(s, items[k].name, i, &items[k]);
    }
}

uint64_t path_mark(const char *path) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *path; path++) h = (h ^ (unsigned char)*path) * 1099511628211u;
    return h | 1;
}

/* A damaged file does not become the checkpoint before the new one: that would
   replace the only good one. */
ampc_status checkpoint_save(ampc_session *s, const char *path) {
    bool damaged = s->damaged == path_mark(path);
    Text metadata = {.s = s};
    size_t bytes = s->m->nvar * sizeof(StItem);
    StItem *items = mem_alloc(s, bytes);
    Locale l = locale_enter();
    ampc_status status = put_metadata(s, &metadata);
    locale_leave(l);
    if (status == AMPC_OK && (!items || metadata.failed))
        status = session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    if (status == AMPC_OK)
        status = st_write(
            s, path, items, list_tensors(s, true, items),
            &(StOutput){"ampc", metadata.p, damaged ? NULL : ST_PREVIOUS});
    if (status == AMPC_OK && damaged) s->damaged = 0;
    text_free(&metadata);
    mem_free(s, items, bytes);
    return status;
}

/* PyTorch's readers of such files expect "format". */
ampc_status checkpoint_save_weights(ampc_session *s, const char *path) {
    size_t bytes = s->m->nvar * sizeof(StItem);
    StItem *items = mem_alloc(s, bytes);
    bool asked, there = false;
    if (!items)
        return session_fail(s, AMPC_ERR_MEMORY, "%s: out of memory", path);
    size_t n = list_tensors(s, false, items);
    ampc_status status = averages_asked(s, &asked);
    if (status == AMPC_OK) status = averages_there(s, &there);
    if (there) take_averages(s, asked, items, n);
    if (status == AMPC_OK)
        status = st_write(s, path, items, n, &(StOutput){"format", "pt", NULL});
    mem_free(s, items, bytes);
    return status;
}
