/* SPDX-License-Identifier: Apache-2.0 */
/* device_repeat.c: device_check.h's checks of one device against itself: the
   same bits twice, no leaks.                                                */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/device_check.h"

static bool problem(DcReport *r, const char *what, const char *why) {
    r->failed++;
    snprintf(r->text, sizeof r->text, "%s: %s\n", what, why);
    return false;
}

static ampc_session *open_on(const ampc_api *api, const char *device,
                             DcReport *r) {
    ampc_options o = {.size = sizeof o, .device = device};
    ampc_session *s = NULL;
    char err[300] = "";
    if (api->open(api->module, &o, &s, err, sizeof err))
        problem(r, "open", err);
    return s;
}

static bool step(const ampc_api *api, ampc_session *s, const DcTraining *t,
                 int i, ampc_metrics *m, DcReport *r) {
    size_t nin;
    const ampc_input *in = t->feed(t->feed_ctx, i, &nin);
    *m = (ampc_metrics){.size = sizeof *m};
    if (!in) return problem(r, "step", "no inputs");
    return !api->step(s, in, nin, m) || problem(r, "step", api->error(s));
}

/* ---- the same bits ------------------------------------------------------- */

/* For each step a hash of the metrics, then one of every variable. */
typedef struct Record {
    uint64_t *hash;
    size_t columns;
} Record;

static uint64_t hash_of(const void *data, size_t n) {
    const unsigned char *p = data;
    uint64_t h = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static bool hash_variable(const ampc_api *api, ampc_session *s, uint32_t i,
                          uint64_t *h, DcReport *r) {
    ampc_variable_info v = {.size = sizeof v};
    api->variable(api->module, i, &v);
    char *p = malloc(v.bytes + 1);
    if (!p) return problem(r, v.name, "out of memory");
    ampc_output out = ampc_out(v.name, p, v.bytes, (ampc_dtype)v.dtype);
    bool ok = !api->read_variable(s, v.name, &out) ||
              problem(r, v.name, api->error(s));
    if (ok) *h = hash_of(p, v.bytes);
    free(p);
    return ok;
}

static bool record(const ampc_api *api, const char *device, const DcTraining *t,
                   Record *rec, DcReport *r) {
    ampc_session *s = open_on(api, device, r);
    bool ok = s != NULL;
    for (int i = 0; i < t->steps && ok; i++) {
        uint64_t *row = rec->hash + rec->columns * (size_t)i;
        ampc_metrics m;
        ok = step(api, s, t, i, &m, r);
        row[0] = hash_of(&m, sizeof m);
        for (uint32_t k = 0; k + 1 < rec->columns && ok; k++)
            ok = hash_variable(api, s, k, &row[k + 1], r);
    }
    api->close(s);
    return ok;
}

static const char *column_name(const ampc_api *api, size_t column) {
    ampc_variable_info v = {.size = sizeof v, .name = "?"};
    if (!column) return "metrics";
    api->variable(api->module, (uint32_t)column - 1, &v);
    return v.name;
}

static void compare_records(const ampc_api *api, const Record *a,
                            const Record *b, int steps, DcReport *r) {
    for (size_t i = 0; i < a->columns * (size_t)steps; i++) {
        r->compared++;
        if (a->hash[i] == b->hash[i]) continue;
        size_t at = strlen(r->text);
        if (!r->failed++ || at < sizeof r->text - 200)
            snprintf(r->text + at, sizeof r->text - at,
                     "step %zu: other bits in %.120s\n", i / a->columns,
                     column_name(api, i % a->columns));
    }
}

/* Runs `record` with an environment variable set. */
static bool record_with(const ampc_api *api, const char *device,
                        const char *name, const char *value,
                        const DcTraining *t, Record *rec, DcReport *r) {
    const char *old = name ? getenv(name) : NULL;
    char *keep = old ? strdup(old) : NULL;
    if (name) setenv(name, value, 1);
    bool ok = record(api, device, t, rec, r);
    if (name && keep)
        setenv(name, keep, 1);
    else if (name)
        unsetenv(name);
    free(keep);
    return ok;
}

bool dc_same_bits(const ampc_api *api, const char *device, const char *name,
                  const char *value, const DcTraining *t, DcReport *r) {
    ampc_module_info m = {.size = sizeof m};
    *r = (DcReport){0};
    api->describe(api->module, &m);
    Record a = {NULL, m.nvariable + 1}, b = a;
    a.hash = calloc(a.columns * (size_t)t->steps + 1, sizeof *a.hash);
    b.hash = calloc(b.columns * (size_t)t->steps + 1, sizeof *b.hash);
    if (!a.hash || !b.hash)
        problem(r, "comparison", "out of memory");
    else if (record(api, device, t, &a, r) &&
             record_with(api, device, name, value, t, &b, r))
        compare_records(api, &a, &b, t->steps, r);
    free(a.hash);
    free(b.hash);
    return !r->failed;
}

/* ---- leaks --------------------------------------------------------------- */

size_t dc_process_memory(void *ctx) {
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    (void)ctx;
    if (!f) return 0;
    if (fscanf(f, "%lu %lu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void check_growth(DcReport *r, const char *what, size_t before,
                         size_t after, size_t slack) {
    size_t at = strlen(r->text);
    r->compared++;
    if (after <= before + slack) return;
    r->failed++;
    snprintf(r->text + at, sizeof r->text - at,
             "%s: memory grew from %zu to %zu bytes\n", what, before, after);
}

static bool steps(const ampc_api *api, ampc_session *s, const DcTraining *t,
                  int n, DcReport *r) {
    ampc_metrics m;
    for (int i = 0; i < n; i++)
        if (!step(api, s, t, i % t->steps, &m, r)) return false;
    return true;
}

/* Open, some steps, close. */
static bool short_life(const ampc_api *api, const char *device,
                       const DcTraining *t, DcReport *r) {
    ampc_session *s = open_on(api, device, r);
    bool ok = s && steps(api, s, t, 3, r);
    api->close(s);
    return ok;
}

enum { WARM = 10, LIVES = 5 };

bool dc_leaks(const ampc_api *api, const char *device, const DcTraining *t,
              DcMemory *memory, void *ctx, size_t slack, DcReport *r) {
    *r = (DcReport){0};
    if (!short_life(api, device, t, r)) return false;
    size_t closed = memory(ctx);
    ampc_session *s = open_on(api, device, r);
    if (s && steps(api, s, t, WARM, r)) {
        size_t warm = memory(ctx);
        if (steps(api, s, t, t->steps, r))
            check_growth(r, "steps", warm, memory(ctx), slack);
    }
    api->close(s);
    for (int i = 0; i < LIVES && !r->failed; i++) short_life(api, device, t, r);
    if (!r->failed) check_growth(r, "sessions", closed, memory(ctx), slack);
    return !r->failed;
}
