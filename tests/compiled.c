/* compiled.c: see compiled.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/compiled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Compiled compile_file(const char *model, const char *options) {
    static int count;
    Compiled c = {{0}, NULL, NULL};
    char *out = NULL, err[256];
    snprintf(c.path, sizeof c.path, "%s/m%d.so", test_tmpdir(), ++count);
    int rc = test_command(&out, "'%s' '%s' -o '%s' %s", test_ampc(), model,
                          c.path, options);
    if (rc) FAIL("ampc %s %s: status %d\n%s", model, options, rc, out);
    free(out);
    c.api = ampc_load(c.path, &c.handle, err, sizeof err);
    if (!c.api) FAIL("%s", err);
    return c;
}

Compiled compile_text(const char *text, const char *options) {
    static int count;
    char path[512];
    snprintf(path, sizeof path, "%s/t%d.amp", test_tmpdir(), ++count);
    REQUIRE(test_write_file(path, text, strlen(text)));
    return compile_file(path, options);
}

ampc_session *open_threads(const Compiled *c, int threads) {
    ampc_options o = {.size = sizeof o, .threads = threads};
    ampc_session *s;
    char err[256];
    if (c->api->open(c->api->module, &o, &s, err, sizeof err))
        FAIL("open: %s", err);
    return s;
}

void compiled_close(Compiled *c) {
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
        bool scalar = !strncmp(v.name, "ampc.", 5) &&
                      strncmp(v.name, "ampc.opt/", 9);
        if (!(kinds >> v.kind & 1) || scalar) continue;
        all = realloc(all, *bytes + v.bytes + 1);
        read_var(c, s, v.name, all + *bytes, v.bytes, (ampc_dtype)v.dtype);
        *bytes += v.bytes;
    }
    return all;
}

/* ---- safetensors: written by PyTorch's library, read here by hand ---------- */

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
    size_t size;
    Trace t = {test_read_file(path, &size), NULL, 0};
    unsigned long long header;
    if (!t.file) FAIL("cannot read %s", path);
    memcpy(&header, t.file, 8);
    REQUIRE(header < size);
    char *text = strndup(t.file + 8, header);
    t.t = calloc(1024, sizeof *t.t);
    for (char *p = text, *q; (p = strchr(p, '"')); p = strchr(q, '}')) {
        TraceTensor *e = &t.t[t.n++];
        q = strchr(p + 1, '"');
        snprintf(e->name, sizeof e->name, "%.*s", (int)(q - p - 1), p + 1);
        read_entry(e, q, t.file + 8 + header);
        if (t.n == 1024) FAIL("too many tensors in %s", path);
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
