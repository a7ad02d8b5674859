/* SPDX-License-Identifier: Apache-2.0 */
/* trace_test.c: training compared with PyTorch 2.11 (models/record/traces.py).

   Every folder of tests/traces is one case: free-running loss and gradient
   norm in fp32, or, with parameters set before every step, loss and every
   gradient; and the free-running loss in bf16. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/tolerance.h"
#include "tests/support/trace_feed.h"

typedef struct Case {
    char name[128], folder[512], options[512];
} Case;

static void free_running(const Compiled *c, const Trace *t) {
    ampc_session *s = open_threads(c, 2);
    const TraceTensor *loss = trace_find(t, "loss");
    const TraceTensor *norm = trace_find(t, "grad_norm");
    for (long i = 0; i < loss->dim[0]; i++) {
        TraceFeed f = trace_feed(t, i);
        ampc_metrics m = step_ok(c, s, f.in, 2);
        CHECK_REL(m.loss, trace_f64(loss, i), TOL_TRACE_LOSS);
        CHECK_REL(m.grad_norm, trace_f64(norm, i), TOL_TRACE_NORM);
        trace_feed_free(&f);
    }
    c->api->close(s);
}

static void set_parameters(const Compiled *c, ampc_session *s, const Trace *t,
                           long step) {
    for (int i = 0; i < t->n; i++) {
        const TraceTensor *p = &t->t[i];
        if (strncmp(p->name, "p/", 2)) continue;
        void *copy = malloc(trace_slice_bytes(p));
        memcpy(copy, trace_slice(p, step), trace_slice_bytes(p));
        write_var(c, s, p->name + 2, copy, trace_slice_bytes(p),
                  AMPC_DTYPE_F32);
        free(copy);
    }
}

static void check_gradient(const Compiled *c, ampc_session *s,
                           const TraceTensor *g, long step, double whole,
                           double tolerance) {
    size_t bytes = trace_slice_bytes(g), n = bytes / 4;
    float *want = malloc(bytes), *got = malloc(bytes);
    char name[200];
    double norm = 0, diff = 0;
    memcpy(want, trace_slice(g, step), bytes);
    snprintf(name, sizeof name, "ampc.grad/%s", g->name + 2);
    read_var(c, s, name, got, bytes, AMPC_DTYPE_F32);
    for (size_t i = 0; i < n; i++) {
        norm += (double)want[i] * want[i];
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    }
    double bound = tolerance * sqrt(norm) + TOL_FORCED_FLOOR * whole;
    CHECK_MSG(sqrt(diff) <= bound, "step %ld %s: off by %g of %g", step,
              g->name, sqrt(diff), sqrt(norm));
    free(want);
    free(got);
}

static void teacher_forced(const Compiled *c, const Trace *t) {
    ampc_session *s = open_threads(c, 2);
    const TraceTensor *loss = trace_find(t, "loss");
    const TraceTensor *norm = trace_find(t, "grad_norm");
    for (long i = 0; i < loss->dim[0]; i++) {
        TraceFeed f = trace_feed(t, i);
        double got;
        set_parameters(c, s, t, i);
        if (c->api->micro_step(s, f.in, 2, &got))
            FAIL("micro_step: %s", c->api->error(s));
        CHECK_REL(got, trace_f64(loss, i), TOL_FORCED_LOSS);
        for (int k = 0; k < t->n; k++)
            if (!strncmp(t->t[k].name, "g/", 2))
                check_gradient(c, s, &t->t[k], i, trace_f64(norm, i),
                               TOL_FORCED_GRAD);
        REQUIRE(!c->api->update(s, NULL));
        trace_feed_free(&f);
    }
    c->api->close(s);
}

static void bf16_distance(const Compiled *c, const Trace *t) {
    ampc_session *s = open_threads(c, 2);
    const TraceTensor *loss = trace_find(t, "loss");
    const TraceTensor *dist = trace_find(t, "bf16_dist");
    double allowed = TOL_BF16_FLOOR;
    for (long i = 0; i < loss->dim[0]; i++) {
        TraceFeed f = trace_feed(t, i);
        double bound = TOL_BF16_FACTOR * trace_f64(dist, i);
        double off = fabs(step_ok(c, s, f.in, 2).loss - trace_f64(loss, i));
        allowed = fmax(allowed, bound); /* the largest so far */
        CHECK_MSG(off <= allowed, "step %ld: %g from fp32, allowed %g", i, off,
                  allowed);
        trace_feed_free(&f);
    }
    c->api->close(s);
}

static void run_case(void *arg) {
    const Case *k = arg;
    char model[600], trace[600], options[600];
    snprintf(model, sizeof model, "%s/model.onnx", k->folder);
    snprintf(trace, sizeof trace, "%s/trace.safetensors", k->folder);
    snprintf(options, sizeof options, "--precision fp32 %s", k->options);
    Trace t = trace_read(trace);
    Compiled c = compile_file_optimised(model, options);
    bool forced = strstr(k->name, "forced") != NULL;
    if (forced)
        teacher_forced(&c, &t);
    else
        free_running(&c, &t);
    compiled_close(&c);
    if (!forced) {
        snprintf(options, sizeof options, "--precision bf16 %s", k->options);
        c = compile_file_optimised(model, options);
        bf16_distance(&c, &t);
        compiled_close(&c);
    }
    trace_free(&t);
}

/* ---- a gradient penalty ---------------------------------------------------
 */

static ampc_input trace_input(const Trace *t, const char *name) {
    const TraceTensor *x = trace_find(t, name);
    void *copy = malloc(trace_slice_bytes(x)); /* aligned */
    memcpy(copy, trace_slice(x, 0), trace_slice_bytes(x));
    return ampc_in(name, copy, trace_slice_bytes(x), AMPC_DTYPE_F32);
}

/* Each objective's loss and gradients compared with PyTorch's with
   create_graph. */
TEST_CASE(trace, wgan_with_a_gradient_penalty) {
    static const char *const nets[] = {"D", "G"};
    Trace t = trace_read("tests/traces/wgan_gp/trace.safetensors");
    Compiled c = compile_file_optimised(
        "tests/traces/wgan_gp/model.amp",
        "--precision fp32 --target cpu:x86-64-v2 "
        "--objective D,loss=auto:d_loss,params=D.*,optimizer=sgd,lr=0 "
        "--objective G,loss=auto:g_loss,params=G.*,optimizer=sgd,lr=0");
    ampc_session *s = open_threads(&c, 2);
    ampc_input in[] = {trace_input(&t, "z"), trace_input(&t, "real"),
                       trace_input(&t, "u")};
    set_parameters(&c, s, &t, 0);
    for (int net = 0; net < 2; net++) {
        char name[8];
        double got;
        REQUIRE(!c.api->objective(s, nets[net]));
        if (c.api->micro_step(s, in, net ? 1 : 3, &got))
            FAIL("micro_step: %s", c.api->error(s));
        snprintf(name, sizeof name, "loss/%s", nets[net]);
        CHECK_REL(got, trace_f64(trace_find(&t, name), 0), TOL_FORCED_LOSS);
        for (int k = 0; k < t.n; k++)
            if (!strncmp(t.t[k].name, "g/", 2) && t.t[k].name[2] == *nets[net])
                check_gradient(&c, s, &t.t[k], 0, 0, TOL_SECOND_GRAD);
        REQUIRE(!c.api->update(s, NULL));
    }
    for (int i = 0; i < 3; i++) free((void *)in[i].data);
    c.api->close(s);
    compiled_close(&c);
    trace_free(&t);
}

/* ---- Apex's levels ------------------------------------------------------ */

static void run_level(char *line) {
    char *save, model[600], options[600], *name = strtok_r(line, " ", &save);
    char *level = strtok_r(NULL, " ", &save), *word;
    snprintf(model, sizeof model, "tests/traces/%s/trace.safetensors", name);
    Trace t = trace_read(model);
    snprintf(model, sizeof model, "tests/traces/%s/options.txt", name);
    size_t size;
    char *given = test_read_file(model, &size);
    snprintf(model, sizeof model, "tests/traces/%s/model.onnx", name);
    snprintf(options, sizeof options,
             "--target cpu:x86-64-v2 --precision %s %.*s", level,
             (int)strcspn(given, "\n"), given);
    free(given);
    Compiled c = compile_file_optimised(model, options);
    ampc_session *s = open_threads(&c, 2);
    for (long i = 0; (word = strtok_r(NULL, " ", &save)); i++) {
        TraceFeed f = trace_feed(&t, i);
        double want = strtod(word, NULL), got = step_ok(&c, s, f.in, 2).loss;
        CHECK_MSG(fabs(got - want) <= TOL_LEVEL_LOSS * want,
                  "%s %s step %ld: %g, not %g", name, level, i, got, want);
        trace_feed_free(&f);
    }
    c.api->close(s);
    compiled_close(&c);
    trace_free(&t);
}

/* O2 and O3 compared with an emulation of them in PyTorch
   (models/record/autocast.py). */
TEST_CASE(trace, apex_levels_train_as_apex_does) {
    size_t size;
    char *all = test_read_file("tests/traces/levels.txt", &size), *save;
    for (char *line = strtok_r(all, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        run_level(line);
    free(all);
}

/* ---- the folders --------------------------------------------------------- */

static void add_case(const char *path, const char *name, void *arg) {
    (void)arg;
    static Case cases[64]; /* lives as long as the process: the harness keeps
                              k */
    static int count;
    REQUIRE(count < 64);
    Case *k = &cases[count++];
    size_t size;
    char *options = test_read_file(path, &size);
    snprintf(k->name, sizeof k->name, "%.*s", (int)strcspn(name, "/"), name);
    snprintf(k->folder, sizeof k->folder, "%.*s",
             (int)(strrchr(path, '/') - path), path);
    snprintf(k->options, sizeof k->options, "%.*s", (int)strcspn(options, "\n"),
             options);
    free(options);
    harness_register("trace", k->name, run_case, k);
}

static void register_cases(void) {
    test_each_file("tests/traces", "options.txt", add_case, NULL);
}
TEST_REGISTRAR(register_cases);
