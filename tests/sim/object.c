/* SPDX-License-Identifier: Apache-2.0 */
/* object.c: handles, contexts, leaks, injected failures, sim_reset. */
#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/state.h"

enum { MAX_ENTRY = 128, MAX_FAIL = 16 };

const char *const object_name[OBJ_NKIND] = {"context", "module", "stream",
                                            "event",   "graph",  "graph exec"};

SimConfig sim_config;
static Object *objects;
static int numbers;
static char twins[1024];
static char leaks[8192]; /* found when their context was destroyed */
static char all_leaks[16384];

static struct {
    const char *entry;
    uint64_t calls;
} entries[MAX_ENTRY];
static struct {
    char entry[64];
    int nth, code;
    bool sticky;
} fails[MAX_FAIL];
static int nfail;

/* ---- objects ------------------------------------------------------------- */

void *object_new(ObjectKind kind, size_t size) {
    Object *o = calloc(1, size);
    if (!o) return NULL;
    *o = (Object){kind, ++numbers, context_current(), objects};
    objects = o;
    return o;
}

bool object_is(ObjectKind kind, const void *handle) {
    for (const Object *o = objects; o; o = o->next)
        if (o == handle) return o->kind == kind;
    return false;
}

void object_free(void *p) {
    for (Object **o = &objects; *o; o = &(*o)->next)
        if (*o == p) {
            *o = (*o)->next;
            free(p);
            return;
        }
}

Object *object_first(void) { return objects; }

/* ---- leaks --------------------------------------------------------------- */

void leak(const char *fmt, ...) {
    va_list ap;
    size_t n = strlen(leaks);
    va_start(ap, fmt);
    if (n + 200 < sizeof leaks) vsnprintf(leaks + n, 200, fmt, ap);
    va_end(ap);
}

const char *sim_leaks(void) {
    sim_lock();
    size_t n = (size_t)snprintf(all_leaks, sizeof all_leaks, "%s", leaks);
    for (const Object *o = objects; o && n + 80 < sizeof all_leaks; o = o->next)
        if (o->kind != OBJ_CONTEXT || ((CUcontext)o)->retained)
            n += (size_t)snprintf(all_leaks + n, sizeof all_leaks - n,
                                  "%s #%d\n", object_name[o->kind], o->number);
    memory_leaks(all_leaks, sizeof all_leaks);
    sim_unlock();
    return all_leaks;
}

/* ---- calls and failures -------------------------------------------------- */

static uint64_t *calls_of(const char *entry) {
    for (int i = 0; i < MAX_ENTRY; i++) {
        if (!entries[i].entry) entries[i].entry = strdup(entry);
        if (!strcmp(entries[i].entry, entry)) return &entries[i].calls;
    }
    return &entries[0].calls;
}

uint64_t sim_calls(const char *entry) {
    sim_lock();
    uint64_t n = *calls_of(entry);
    sim_unlock();
    return n;
}

int call_enter(const char *entry) {
    ++*calls_of(entry);
    for (int i = 0; i < nfail; i++) {
        if (strcmp(fails[i].entry, entry) || --fails[i].nth) continue;
        if (fails[i].sticky && context_current())
            context_current()->sticky = fails[i].code;
        return fails[i].code;
    }
    return CUDA_OK;
}

int sim_entered(const char *entry) {
    sim_lock();
    int code = call_enter(entry);
    sim_unlock();
    return code;
}

void sim_fail(const char *entry, int nth, int code, bool sticky) {
    sim_lock();
    if (nfail < MAX_FAIL) {
        snprintf(fails[nfail].entry, sizeof fails[nfail].entry, "%s", entry);
        fails[nfail].nth = nth;
        fails[nfail].code = code;
        fails[nfail++].sticky = sticky;
    }
    sim_unlock();
}

void sim_stats(SimStats *s) {
    sim_lock();
    *s = sim_counts;
    sim_unlock();
}

/* ---- settings ------------------------------------------------------------ */

static uint64_t setting(const char *name, uint64_t otherwise) {
    const char *v = getenv(name);
    return v && *v ? strtoull(v, NULL, 0) : otherwise;
}

static void complete(SimConfig *c) {
    if (!c->cc) c->cc = 90;
    if (!c->driver) c->driver = 13000;
    if (!c->sms) c->sms = 4;
    if (!c->devices) c->devices = 1;
    if (c->devices < 0) c->devices = 0;
    if (!c->memory) c->memory = (size_t)4 << 30;
}

/* AMPC_SIM_FAIL: ENTRY:NTH:CODE[:sticky] */
static void fail_by_setting(void) {
    const char *v = getenv("AMPC_SIM_FAIL");
    char entry[64], sticky[8] = "";
    int nth, code;
    if (v && sscanf(v, "%63[^:]:%d:%d:%7s", entry, &nth, &code, sticky) >= 3)
        sim_fail(entry, nth, code, !strcmp(sticky, "sticky"));
}

/* For programs that do not know the simulator. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("AMPC_SIM_REPORT");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f,
            "launches %llu, graph launches %llu, copies %llu, bytes %llu\n"
            "%s%s",
            (unsigned long long)sim_counts.launches,
            (unsigned long long)sim_counts.graph_launches,
            (unsigned long long)sim_counts.copies,
            (unsigned long long)sim_counts.peak, sim_errors(), sim_leaks());
    fclose(f);
}

__attribute__((constructor)) static void configure(void) {
    sim_config = (SimConfig){
        .seed = setting("AMPC_SIM_SEED", 1),
        .cc = (int)setting("AMPC_SIM_CC", 0),
        .driver = (int)setting("AMPC_SIM_DRIVER", 0),
        .sms = (int)setting("AMPC_SIM_SMS", 0),
        .devices = (int)setting("AMPC_SIM_DEVICES", 0),
        .memory = (size_t)setting("AMPC_SIM_MEMORY", 0),
        .ptx_only = setting("AMPC_SIM_PTX_ONLY", 0) != 0,
    };
    complete(&sim_config);
    sim_random_seed(sim_config.seed);
    fail_by_setting();
}

static void forget(void) {
    capture_forget();
    work_forget();
    for (Object *o = objects, *next; o; o = next) {
        next = o->next;
        if (o->kind == OBJ_CONTEXT) {
            context_drop((CUcontext)o);
            next = objects;
        }
    }
    memory_forget();
    for (int i = 0; i < MAX_ENTRY; i++) entries[i].calls = 0;
    nfail = 0;
    driver_forget();
    leaks[0] = 0;
    sim_errors_clear();
    sim_counts = (SimStats){0};
}

void sim_reset(const SimConfig *c) {
    sim_lock();
    forget();
    sim_config = c ? *c : (SimConfig){.seed = 1};
    if (sim_config.twins) {
        snprintf(twins, sizeof twins, "%s", sim_config.twins);
        sim_config.twins = twins;
    }
    complete(&sim_config);
    sim_random_seed(sim_config.seed);
    sim_unlock();
}
