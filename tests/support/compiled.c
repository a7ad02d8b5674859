/* SPDX-License-Identifier: Apache-2.0 */
/* compiled.c: see compiled.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/compiled.h"
#include "codegen/cuda/cuda.h"
#include "runtime/cpu/kernels.h"
#include "tests/support/guarded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void require_nvrtc(void) {
    NvrtcFacts f;
    Arena *a = arena_new();
    char reason[400];
    bool there = nvrtc_facts(a, &f);
    snprintf(reason, sizeof reason, "no NVRTC: %s", there ? "" : f.why);
    arena_free(a);
    if (!there) SKIP("%s", reason);
}

static char *text_file(const char *text) {
    static char path[512];
    static int count;
    snprintf(path, sizeof path, "%s/t%d.amp", test_tmpdir(), ++count);
    REQUIRE(test_write_file(path, text, strlen(text)));
    return path;
}

/* `setting` precedes the command. What the compilers made for other tests of
   this run is taken from where script/test says. */
static void compile(Compiled *c, const char *setting, const char *model,
                    const char *speed, const char *options) {
    char *out = NULL, err[256];
    const char *kept = getenv("AMPC_TEST_KEPT");
    int rc = test_command(&out, "%s '%s' '%s' -o '%s' --cache '%s' %s %s",
                          setting, test_ampc(), model, c->path,
                          kept ? kept : "none", speed, options);
    if (rc) FAIL("ampc %s %s: status %d\n%s", model, options, rc, out);
    free(out);
    c->api = ampc_load(c->path, &c->handle, err, sizeof err);
    if (!c->api) FAIL("%s", err);
}

static Compiled new_module(void) {
    static int count;
    Compiled c = {.handle = NULL};
    count++;
    snprintf(c.path, sizeof c.path, "%s/m%d.so", test_tmpdir(), count);
    snprintf(c.cuda_dir, sizeof c.cuda_dir, "%s/m%d.cuda", test_tmpdir(),
             count);
    return c;
}

/* Without NVRTC there is one target less, and a warning. */
static Compiled without_gpu(const char *model, const char *speed,
                            const char *options) {
    Compiled c = new_module();
    compile(&c, "AMPC_LIBNVRTC=none", model, speed, options);
    return c;
}

Compiled compile_defaults(const char *model, const char *options) {
    return without_gpu(model, "--quick", options);
}

static Compiled for_one_level(const char *model, const char *speed,
                              const char *options) {
    char all[4096];
    if (strstr(options, "--target")) return without_gpu(model, speed, options);
    int n = snprintf(all, sizeof all, "%s --target cpu:%s", options,
                     cpu_isa_name(cpu_isa_level()));
    REQUIRE(n > 0 && (size_t)n < sizeof all);
    return without_gpu(model, speed, all);
}

Compiled compile_file(const char *model, const char *options) {
    return for_one_level(model, "--quick", options);
}

Compiled compile_file_optimised(const char *model, const char *options) {
    return for_one_level(model, "", options);
}

void text_in_dtype(char *text, size_t size, const char *from,
                   const char *dtype) {
    size_t n = 0;
    for (const char *p = from; *p && n < size;) {
        bool mark = !strncmp(p, "$T", 2);
        n += (size_t)snprintf(text + n, size - n, "%.*s",
                              mark ? (int)strlen(dtype) : 1, mark ? dtype : p);
        p += 1 + mark;
    }
    REQUIRE(n < size);
}

Compiled compile_text(const char *text, const char *options) {
    return compile_file(text_file(text), options);
}

Compiled compile_text_optimised(const char *text, const char *options) {
    return compile_file_optimised(text_file(text), options);
}

static Compiled for_targets(const char *model, const char *speed,
                            const char *options, const char *cpu,
                            const char *archs) {
    char all[1024];
    Compiled c = new_module();
    require_nvrtc();
    snprintf(all, sizeof all, "%s --target %s%s --emit-cuda '%s'", options, cpu,
             archs, c.cuda_dir);
    compile(&c, "", model, speed, all);
    return c;
}

Compiled compile_file_cuda(const char *model, const char *options,
                           const char *archs) {
    return for_targets(model, "--quick", options, "cpu:x86-64-v2,",
                       archs ? archs : "cuda");
}

Compiled compile_file_gpu_optimised(const char *model, const char *options) {
    return for_targets(model, "", options, "", GPU_PTX);
}

Compiled compile_file_gpu(const char *model, const char *options) {
    return for_targets(model, "--quick", options, "", GPU_PTX);
}

Compiled compile_text_gpu(const char *text, const char *options) {
    return compile_file_gpu(text_file(text), options);
}

Compiled compile_text_cuda(const char *text, const char *options,
                           const char *archs) {
    return compile_file_cuda(text_file(text), options, archs);
}

/* ---- memory of a session ------------------------------------------------- */

typedef struct Memory {
    Guarded of;
    const ampc_api *api;
    struct Memory *next;
} Memory;
static Memory *memories; /* memory of the loaded modules */
static pthread_mutex_t memories_lock = PTHREAD_MUTEX_INITIALIZER;

static Memory *memory_new(const ampc_api *api) {
    Memory *m = calloc(1, sizeof *m);
    pthread_mutex_lock(&memories_lock);
    m->api = api;
    m->next = memories;
    memories = m;
    pthread_mutex_unlock(&memories_lock);
    return m;
}

static void memories_check(const ampc_api *api) {
    for (Memory **at = &memories, *m; (m = *at);) {
        if (m->api != api) {
            at = &m->next;
            continue;
        }
        CHECK_MSG(m->of.blocks == 0 && m->of.bytes == 0,
                  "a session left %ld bytes in %ld blocks", m->of.bytes,
                  m->of.blocks);
        *at = m->next;
        free(m);
    }
}

void compiled_guarded(const Compiled *c, ampc_options *o) {
    o->alloc = guarded_alloc;
    o->free = guarded_free;
    o->alloc_ctx = &memory_new(c->api)->of;
}

ampc_session *open_threads(const Compiled *c, int threads) {
    ampc_options o = {.size = sizeof o, .threads = threads};
    compiled_guarded(c, &o);
    ampc_session *s;
    char err[256];
    if (c->api->open(c->api->module, &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    return s;
}

void compiled_close(Compiled *c) {
    if (c->api) memories_check(c->api);
    if (c->handle) dlclose(c->handle);
    remove(c->path);
    c->handle = NULL;
}

ampc_metrics step_ok(const Compiled *c, ampc_session *s, const ampc_input *in,
                     size_t nin) {
    ampc_metrics m = {.size = sizeof m};
    if (c->api->step(s, in, nin, &m)) FAIL("step: %s", c->api->error(s));
    return m;
}

void read_var(const Compiled *c, ampc_session *s, const char *name, void *data,
              size_t bytes, ampc_dtype dtype) {
    ampc_output out = ampc_out(name, data, bytes, dtype);
    if (c->api->read_variable(s, name, &out))
        FAIL("%s: %s", name, c->api->error(s));
}

void write_var(const Compiled *c, ampc_session *s, const char *name,
               const void *data, size_t bytes, ampc_dtype dtype) {
    ampc_input in = ampc_in(name, data, bytes, dtype);
    if (c->api->write_variable(s, name, &in))
        FAIL("%s: %s", name, c->api->error(s));
}

void *read_all(const Compiled *c, ampc_session *s, unsigned kinds,
               size_t *bytes) {
    ampc_module_info info = {.size = sizeof info};
    char *all = NULL;
    *bytes = 0;
    REQUIRE(!c->api->describe(c->api->module, &info));
    for (uint32_t i = 0; i < info.nvariable; i++) {
        ampc_variable_info v = {.size = sizeof v};
        REQUIRE(!c->api->variable(c->api->module, i, &v));
        bool counts = !strncmp(v.name, "ampc.", 5) && !strchr(v.name, '/');
        if (!(kinds >> v.kind & 1) || counts) continue;
        all = realloc(all, *bytes + v.bytes + 1);
        read_var(c, s, v.name, all + *bytes, v.bytes, (ampc_dtype)v.dtype);
        *bytes += v.bytes;
    }
    return all;
}

/* ---- safetensors: written by PyTorch's library, read here by hand -------- */

static ampc_dtype dtype_of(const char *s) {
    if (!strncmp(s, "F32", 3)) return AMPC_DTYPE_F32;
    if (!strncmp(s, "F64", 3)) return AMPC_DTYPE_F64;
    if (!strncmp(s, "I64", 3)) return AMPC_DTYPE_I64;
    FAIL("dtype %.4s in a trace", s);
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} */
static void read_entry(TraceTensor *t, const char *p, const char *data) {
    const char *shape = strstr(p, "\"shape\":[");
    const char *offs = strstr(p, "\"data_offsets\":[");
    char *end;
    REQUIRE(shape && offs);
    t->dtype = dtype_of(strstr(p, "\"dtype\":\"") + 9);
    for (p = shape + 9; *p != ']' && t->rank < 8; p = end + (*end == ','))
        t->dim[t->rank++] = strtol(p, &end, 10);
    unsigned long from = strtoul(offs + 16, &end, 10);
    t->data = data + from;
    t->bytes = strtoul(end + 1, NULL, 10) - from;
}

Trace trace_read(const char *path) {
    enum { MOST = 8192 };
    size_t size;
    Trace t = {test_read_file(path, &size), NULL, 0};
    unsigned long long header;
    if (!t.file) FAIL("cannot read %s", path);
    memcpy(&header, t.file, 8);
    REQUIRE(header < size);
    char *text = strndup(t.file + 8, header);
    t.t = calloc(MOST, sizeof *t.t);
    for (char *p = text, *q; (p = strchr(p, '"')); p = strchr(q, '}')) {
        TraceTensor *e = &t.t[t.n++];
        q = strchr(p + 1, '"');
        snprintf(e->name, sizeof e->name, "%.*s", (int)(q - p - 1), p + 1);
        read_entry(e, q, t.file + 8 + header);
        if (t.n == MOST) FAIL("too many tensors in %s", path);
    }
    free(text);
    return t;
}

void trace_free(Trace *t) {
    free(t->file);
    free(t->t);
}

const TraceTensor *trace_find(const Trace *t, const char *name) {
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->t[i].name, name)) return &t->t[i];
    FAIL("no tensor %s in the trace", name);
}

double trace_f64(const TraceTensor *t, long i) {
    double v;
    REQUIRE(t->dtype == AMPC_DTYPE_F64 && (size_t)i < t->bytes / 8);
    memcpy(&v, t->data + 8 * i, 8);
    return v;
}
