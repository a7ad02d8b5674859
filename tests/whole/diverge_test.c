/* SPDX-License-Identifier: Apache-2.0 */
/* diverge_test.c: runs whose steps are all skipped, on the CPU and on the
   simulated GPU.

   Each case breaks one thing and knows what must be named. */
#include <math.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/whole/diverge/diverge.h"

/* %c and %far do not train, and %far is larger than the part that is
   examined at a time; the forward pass writes %mean. */
static const char model[] =
    "graph forward(%x: f32[4,3]) {\n"
    "  param %w: f32[3,2] = 0.5\n"
    "  frozen %c: f32[3] = 1\n"
    "  frozen %far: f32[5003] = 0\n"
    "  buffer %mean: f32[3] = 0\n"
    "  %s = reduce_sum %far {axes=[0], keepdims=0} : f32[]\n"
    "  %xs = add %x, %s : f32[4,3]\n"
    "  %xc = mul %xs, %c : f32[4,3]\n"
    "  %m = reduce_mean %xc {axes=[0], keepdims=0} : f32[3]\n"
    "  %b = add %xc, %mean : f32[4,3]\n"
    "  %y = matmul %b, %w : f32[4,2]\n"
    "  write %mean = %m\n"
    "  return %y\n"
    "}\n";

Data *diverge_data(Data *d) {
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] = (float)i / 8;
    for (int i = 0; i < BATCH * 2; i++) d->target[i] = (float)(i % 3);
    d->in[0] = ampc_in("x", d->x, sizeof d->x, AMPC_DTYPE_F32);
    d->in[1] = ampc_in("target", d->target, sizeof d->target, AMPC_DTYPE_F32);
    return d;
}

const Compiled *diverge_compile(const char *device, const char *options) {
    return compile_on(device, model, OPTIONS, options);
}

static void named(const Compiled *c, ampc_session *s, const char *text,
                  ampc_origin origin, const char *name, int64_t index,
                  int64_t tried) {
    ampc_nonfinite x = {.size = sizeof x};
    CHECK_HAS(c->api->error(s), text);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, origin);
    CHECK_STR(x.name, name);
    CHECK_EQ_INT(x.index, index);
    CHECK(!isfinite(x.value));
    CHECK_EQ_INT(x.tried, tried);
}

/* ---- what is named ------------------------------------------------------- */

/* One element of an input or a variable. */
static const struct Fault {
    const char *name;
    int bytes, index; /* index of a variable; bytes 0: it is an input */
    float value;
    const char *text;
    ampc_origin origin;
} faults[] = {
    {"x", 0, 7, NAN, "input 'x' holds nan at position 7", AMPC_ORIGIN_INPUT},
    {"x", 0, 7, -NAN, "input 'x' holds nan at position 7", AMPC_ORIGIN_INPUT},
    {"target", 0, 2, -INFINITY, "input 'target' holds -inf at position 2",
     AMPC_ORIGIN_INPUT},
    {"w", 24, 5, INFINITY, "parameter 'w' holds inf at position 5",
     AMPC_ORIGIN_VARIABLE},
    {"c", 12, 1, NAN, "frozen weight 'c' holds nan at position 1",
     AMPC_ORIGIN_VARIABLE},
    {"far", 4 * FAR, 4096, NAN,
     "frozen weight 'far' holds nan at position 4096", AMPC_ORIGIN_VARIABLE},
    {"far", 4 * FAR, FAR - 1, INFINITY,
     "frozen weight 'far' holds inf at position 5002", AMPC_ORIGIN_VARIABLE},
    {"mean", 12, 2, INFINITY, "buffer 'mean' holds inf at position 2",
     AMPC_ORIGIN_VARIABLE},
    {"w", 24, 0, 3.2e38f, "the loss is inf, though", AMPC_ORIGIN_LOSS},
    {"x", 0, 0, 1e9f, "gradients are not finite, though the loss is",
     AMPC_ORIGIN_GRADIENT},
};

static void set(const Compiled *c, ampc_session *s, Data *d,
                const struct Fault *f) {
    float v[FAR];
    if (!f->bytes) {
        (strcmp(f->name, "x") ? d->target : d->x)[f->index] = f->value;
        return;
    }
    read_var(c, s, f->name, v, (size_t)f->bytes, AMPC_DTYPE_F32);
    v[f->index] = f->value;
    write_var(c, s, f->name, v, (size_t)f->bytes, AMPC_DTYPE_F32);
}

static void faulty(const char *device, const struct Fault *f) {
    const Compiled *c = diverge_compile(device, "--loss-scale static=1e30");
    ampc_session *s = open_on(c, device, 3);
    ampc_metrics m = {.size = sizeof m};
    Data d, good;
    bool is_variable = f->origin == AMPC_ORIGIN_VARIABLE;
    const char *name =
        is_variable || f->origin == AMPC_ORIGIN_INPUT ? f->name : "";
    step_ok(c, s, diverge_data(&good)->in, 2);
    set(c, s, diverge_data(&d), f);
    for (int i = 1; i <= 5; i++) {
        ampc_status status = c->api->step(s, d.in, 2, &m);
        CHECK_MSG(status == (i < 3 ? AMPC_OK : AMPC_ERR_DIVERGED),
                  "%s, step %d: %d %s", f->text, i, (int)status,
                  c->api->error(s));
        CHECK_EQ_INT(m.applied, 0);
        CHECK_EQ_INT(m.skip_streak, i);
        CHECK_EQ_INT(m.tried, 1 + i);
        CHECK_STR(c->api->notice(s), ""); /* nobody asked where */
        if (i < 3) continue;
        CHECK_HAS(c->api->error(s),
                  i == 3 ? "3 steps in a row were skipped" : "steps in a row");
        named(c, s, f->text, f->origin, name, *name ? f->index : -1, 1 + i);
    }
    c->api->close(s);
}

static void all_faults(const char *device) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        faulty(device, &faults[i]);
}

TEST_CASE(diverge, the_first_that_is_not_finite_is_named_cpu) {
    all_faults("cpu");
}

TEST_CASE(diverge, the_first_that_is_not_finite_is_named_gpu) {
    all_faults("cuda");
}

/* ---- when ---------------------------------------------------------------- */

/* An applied step restarts the count. */
static void recovery(const char *device) {
    const Compiled *c = diverge_compile(device, "--loss-scale static=1");
    ampc_session *s = open_on(c, device, 2);
    ampc_metrics m = {.size = sizeof m};
    Data d, bad;
    diverge_data(&bad)->x[0] = NAN;
    for (int round = 0; round < 2; round++) {
        CHECK_EQ_INT(c->api->step(s, bad.in, 2, &m), AMPC_OK);
        CHECK_EQ_INT(c->api->step(s, bad.in, 2, &m), AMPC_ERR_DIVERGED);
        CHECK_EQ_INT(c->api->step(s, diverge_data(&d)->in, 2, &m), AMPC_OK);
        CHECK_EQ_INT(m.applied, 1);
        CHECK_EQ_INT(m.skip_streak, 0);
    }
    CHECK_EQ_INT(m.skipped, 4);
    c->api->close(s);
}

TEST_CASE(diverge, a_good_step_begins_anew_cpu) { recovery("cpu"); }

TEST_CASE(diverge, a_good_step_begins_anew_gpu) { recovery("cuda"); }

static int first_failure(int max_skipped, int steps) {
    const Compiled *c = diverge_compile("cpu", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cpu", max_skipped);
    Data d;
    int first = 0;
    diverge_data(&d)->x[0] = NAN;
    for (int i = 1; i <= steps; i++)
        if (c->api->step(s, d.in, 2, NULL) && !first) first = i;
    c->api->close(s);
    return first;
}

TEST_CASE(diverge, after_a_hundred_or_as_many_as_asked) {
    ampc_options o = {.size = sizeof o, .max_skipped = -2};
    const Compiled *c = diverge_compile("cpu", "--loss-scale static=1");
    ampc_session *s;
    char err[200];
    CHECK_EQ_INT(first_failure(0, 120), 100);
    CHECK_EQ_INT(first_failure(1, 3), 1);
    CHECK_EQ_INT(first_failure(110, 120), 110);
    CHECK_EQ_INT(first_failure(-1, 300), 0);
    CHECK_EQ_INT(c->api->open(c->api->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_HAS(err, "max_skipped");
}

/* Optimizer steps count, not micro-batches. */
static void accumulation(const char *device) {
    const Compiled *c = diverge_compile(device, "--accumulate 2");
    ampc_session *s = open_on(c, device, 2);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    diverge_data(&d)->x[4] = INFINITY;
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_OK);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, &m), AMPC_ERR_DIVERGED);
    CHECK_EQ_INT(m.skip_streak, 2);
    named(c, s, "input 'x' holds inf at position 4", AMPC_ORIGIN_INPUT, "x", 4,
          2);
    c->api->close(s);
}

TEST_CASE(diverge, accumulated_steps_cpu) { accumulation("cpu"); }

TEST_CASE(diverge, accumulated_steps_gpu) { accumulation("cuda"); }

/* No metrics are requested: sync reports the error, and no longer knows the
   inputs. */
TEST_CASE(diverge, steps_that_nobody_waits_for) {
    const Compiled *c = diverge_compile("cuda", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cuda", 4);
    ampc_metrics m = {.size = sizeof m};
    Data d;
    diverge_data(&d)->x[1] = NAN;
    for (int i = 0; i < 6; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
    memset(&d, 0, sizeof d);
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_ERR_DIVERGED);
    CHECK_EQ_INT(m.skip_streak, 6);
    named(c, s, "the loss is nan", AMPC_ORIGIN_LOSS, "", -1, 6);
    CHECK_EQ_INT(c->api->sync(s, &m), AMPC_OK);
    c->api->close(s);
}

TEST_CASE(diverge, the_count_is_in_checkpoints) {
    const Compiled *c = diverge_compile("cpu", "--loss-scale static=1");
    ampc_session *s = open_on(c, "cpu", 3);
    Data d;
    const char *path = test_tmp("skips.safetensors");
    diverge_data(&d)->x[0] = NAN;
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
    CHECK_EQ_INT(c->api->save(s, path), AMPC_OK);
    c->api->close(s);
    s = open_on(c, "cpu", 3);
    CHECK_EQ_INT(c->api->resume(s, path), AMPC_OK);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DIVERGED);
    c->api->close(s);
}
