/* SPDX-License-Identifier: Apache-2.0 */
/* loss_values_test.c: losses of --loss and sums of them compared with values
   and gradients that models/record/loss_values.py records with PyTorch in fp64:
   one step, and evaluation of parts of a batch, whose other rows contain
   garbage. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"

enum { BATCH = 4, MOST = 3, ROOM = 1 << 12 };

typedef struct Case {
    char name[80], option[160], dims[40];
    int outputs;
} Case;

static Trace values;

/* NULL: the case has none. */
static const TraceTensor *tensor(const Case *c, const char *what) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", c->name, what);
    for (int i = 0; i < values.n; i++)
        if (!strcmp(values.t[i].name, name)) return &values.t[i];
    return NULL;
}

static double number(const Case *c, const char *what) {
    const TraceTensor *t = tensor(c, what);
    REQUIRE(t);
    return trace_f64(t, 0);
}

/* "graph forward(%x0: ..) { .. return %y0, .. }" */
static void put_model(const Case *c, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "graph forward(");
    for (int k = 0; k < c->outputs; k++)
        n += (size_t)snprintf(text + n, size - n, "%s%%x%d: f32[%d,%s]",
                              k ? ", " : "", k, BATCH, c->dims);
    n += (size_t)snprintf(text + n, size - n, ") {\n  param %%w: f32[%s] = 1\n",
                          c->dims);
    for (int k = 0; k < c->outputs; k++)
        n += (size_t)snprintf(text + n, size - n,
                              "  %%y%d = mul %%x%d, %%w : f32[%d,%s]\n", k, k,
                              BATCH, c->dims);
    for (int k = 0; k < c->outputs; k++)
        n += (size_t)snprintf(text + n, size - n, "%s %%y%d",
                              k ? "," : "  return", k);
    snprintf(text + n, size - n, "\n}\n");
}

/* The inputs, with garbage in rows after `valid`. */
typedef struct Inputs {
    ampc_input in[2 * MOST];
    size_t n;
    char name[2 * MOST][32], data[2 * MOST][ROOM];
    int64_t dim[2 * MOST][8];
} Inputs;

static void add_input(Inputs *to, const TraceTensor *t, const char *name,
                      int valid) {
    size_t k = to->n++;
    REQUIRE(t->bytes <= ROOM);
    snprintf(to->name[k], sizeof to->name[k], "%s", name);
    memcpy(to->data[k], t->data, t->bytes);
    size_t row = t->bytes / BATCH;
    bool real = t->dtype == AMPC_DTYPE_F32;
    for (size_t i = (size_t)valid * row; i < t->bytes; i += real ? 4 : 8)
        memcpy(to->data[k] + i,
               real ? (void *)&(float){-1e20f} : (void *)&(int64_t){0},
               real ? 4 : 8);
    to->in[k] = ampc_in(to->name[k], to->data[k], t->bytes, t->dtype);
}

static void put_inputs(const Case *c, int valid, Inputs *to) {
    char what[32], name[32];
    to->n = 0;
    for (int k = 0; k < c->outputs; k++) {
        snprintf(what, sizeof what, "x%d", k);
        add_input(to, tensor(c, what), what, valid);
    }
    for (int k = 0; k < MOST; k++) {
        snprintf(what, sizeof what, "target%d", k);
        snprintf(name, sizeof name, c->outputs == 1 ? "target" : "target:y%d",
                 k);
        if (tensor(c, what)) add_input(to, tensor(c, what), name, valid);
    }
}

static void check_step(const Compiled *m, ampc_session *s, const Case *c) {
    const TraceTensor *want = tensor(c, "grad");
    long n = (long)(want->bytes / 8);
    float grad[ROOM / 4], shares;
    double loss, largest = 0;
    Inputs in;
    put_inputs(c, BATCH, &in);
    if (m->api->micro_step(s, in.in, in.n, &loss)) FAIL("%s", m->api->error(s));
    CHECK_REL(loss, number(c, "loss"), TOL_LOSS);
    read_var(m, s, "ampc.grad/w", grad, (size_t)n * 4, AMPC_DTYPE_F32);
    read_var(m, s, "ampc.shares", &shares, sizeof shares, AMPC_DTYPE_F32);
    for (long i = 0; i < n; i++) grad[i] /= shares;
    for (long i = 0; i < n; i++)
        largest = fmax(largest, fabs(trace_f64(want, i)));
    CHECK_MSG(largest > 1e-3, "%s: %g", c->name, largest);
    for (long i = 0; i < n; i++)
        CHECK_MSG(fabs((double)grad[i] - trace_f64(want, i)) <=
                      TOL_LOSS * largest,
                  "%s: gradient %ld is %.9g, not %.9g", c->name, i,
                  (double)grad[i], trace_f64(want, i));
}

static void check_part(const Compiled *m, ampc_session *s, const Case *c,
                       int valid) {
    char part[20], hits[20];
    ampc_eval e = {.size = sizeof e};
    Inputs in;
    snprintf(part, sizeof part, "part.%d", valid);
    snprintf(hits, sizeof hits, "hits.%d", valid);
    if (!tensor(c, part)) return; /* everything is ignored */
    put_inputs(c, valid, &in);
    if (m->api->evaluate(s, in.in, in.n, valid, &e))
        FAIL("%s", m->api->error(s));
    CHECK_MSG(e.exact, "%s: no part of a batch is evaluated", c->name);
    CHECK_MSG(fabs(e.loss_num / e.loss_den - number(c, part)) <=
                  TOL_LOSS * fabs(number(c, part)),
              "%s: %d samples have %.9g, not %.9g", c->name, valid,
              e.loss_num / e.loss_den, number(c, part));
    if (tensor(c, hits)) CHECK_NEAR(e.correct, number(c, hits), 0);
}

static void run(void *arg) {
    const Case *c = arg;
    char text[2000], options[300];
    put_model(c, text, sizeof text);
    snprintf(options, sizeof options,
             "--precision fp32 --target cpu:x86-64-v2 --loss '%s'", c->option);
    Compiled m = compile_text(text, options);
    ampc_session *s = open_threads(&m, 1);
    const TraceTensor *w = tensor(c, "w");
    float *aligned = malloc(w->bytes);
    memcpy(aligned, w->data, w->bytes);
    write_var(&m, s, "w", aligned, w->bytes, AMPC_DTYPE_F32);
    free(aligned);
    check_step(&m, s, c);
    if (strncmp(c->option, "info_nce", 8)) { /* not a mean over samples */
        check_part(&m, s, c, 1);
        check_part(&m, s, c, 3);
    }
    m.api->close(s);
    compiled_close(&m);
}

static void add_cases(void) {
    static Case cases[100];
    char *text =
             test_read_file(test_data_path("tests/losses/values.csv"), NULL),
         *save = NULL;
    values = trace_read(test_data_path("tests/losses/values.safetensors"));
    int n = 0;
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        Case *c = &cases[n++];
        if (sscanf(line, "%79[^|]|%159[^|]|%d|%39[^\n]", c->name, c->option,
                   &c->outputs, c->dims) != 4)
            continue;
        for (char *p = c->dims; *p; p++)
            if (*p == 'x') *p = ',';
        harness_register("loss_values", c->name, run, c);
    }
    free(text);
}
TEST_REGISTRAR(add_cases);
