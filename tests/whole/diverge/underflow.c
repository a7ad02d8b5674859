/* SPDX-License-Identifier: Apache-2.0 */
/* underflow.c: --count-underflow, and what `ampc run` prints of both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/whole/diverge/diverge.h"

/* ---- --count-underflow --------------------------------------------------- */

/* x = 1, 1, 0: y = 1, so that row 2 of w has no gradient, and the gradient
   of column 1 is 2^-25, since its target is 2^-23 below 1: the largest
   number that fp16 rounds to 0. */
static const char flat[] = "graph forward(%x: f32[4,3]) {\n"
                           "  param %w: f32[3,2] = 0.5, %b: f32[2] = 0\n"
                           "  %h = matmul %x, %w : f32[4,2]\n"
                           "  %y = add %h, %b : f32[4,2]\n"
                           "  return %y\n"
                           "}\n";

static Data *flat_data(Data *d) {
    diverge_data(d);
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] = i % WIDTH < 2;
    for (int i = 0; i < BATCH * 2; i++) d->target[i] = i % 2 ? 1 - 0x1p-23f : 0;
    return d;
}

typedef struct Flushed {
    int calls;
    double flushed[2], nonzero[2]; /* of w, of b */
} Flushed;

static void note_flushed(void *ctx, const char *parameter, double flushed,
                         double nonzero) {
    Flushed *f = ctx;
    int i = !strcmp(parameter, "b");
    f->calls++;
    f->flushed[i] = flushed;
    f->nonzero[i] = nonzero;
}

static void flushing(const char *device, const char *options, double lost) {
    const Compiled *c = compile_on(device, flat, OPTIONS, options);
    ampc_session *s = open_on(c, device, 0);
    Flushed f = {0};
    Data d;
    CHECK_MSG(c->api->underflow(s, flat_data(&d)->in, 2, note_flushed, &f) ==
                  AMPC_OK,
              "%s", c->api->error(s));
    CHECK_EQ_INT(f.calls, 2);
    CHECK_EQ_INT(f.nonzero[0], 4);
    CHECK_EQ_INT(f.nonzero[1], 2);
    CHECK_EQ_INT(f.flushed[0], 2 * lost);
    CHECK_EQ_INT(f.flushed[1], lost);
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 1);
    c->api->close(s);
}

#define COUNT "--count-underflow --precision fp16 --loss-scale "

TEST_CASE(diverge, what_fp16_flushes_is_counted_cpu) {
    flushing("cpu", COUNT "static=1", 1);
    flushing("cpu", COUNT "static=1.5", 0);
    flushing("cpu", COUNT "none", 1);
}

TEST_CASE(diverge, what_fp16_flushes_is_counted_gpu) {
    flushing("cuda", COUNT "static=1", 1);
}

/* A module that counts refuses checkpoints of a module that does not. */
TEST_CASE(diverge, counting_changes_no_bit) {
    const char *const options[] = {COUNT "static=8",
                                   "--precision fp16 --loss-scale static=8"};
    char path[600], *state[2];
    size_t n[2];
    snprintf(path, sizeof path, "%s/uncounted.safetensors", test_tmpdir());
    for (int k = 2; k-- > 0;) {
        const Compiled *c =
            compile_on("cpu", diverge_deep, OPTIONS, options[k]);
        ampc_session *s = open_on(c, "cpu", 0);
        Flushed f = {0};
        Data d;
        if (!k) CHECK_EQ_INT(c->api->resume(s, path), AMPC_OK);
        for (int i = k ? 0 : 2; i < 5; i++) {
            if (k && i == 2) CHECK_EQ_INT(c->api->save(s, path), AMPC_OK);
            diverge_spoil(c, s, &d, NULL);
            CHECK_EQ_INT(c->api->underflow(s, d.in, 2, note_flushed, &f),
                         k ? AMPC_ERR_UNSUPPORTED : AMPC_OK);
            step_ok(c, s, d.in, 2);
        }
        state[k] = read_all(c, s, 1u << AMPC_KIND_PARAMETER, &n[k]);
        c->api->close(s);
    }
    if (CHECK_EQ_INT(n[0], n[1])) CHECK_MEM(state[0], state[1], n[0]);
    free(state[0]);
    free(state[1]);
}

static void check_refused(const char *options, const char *says) {
    char path[600], *out = NULL;
    snprintf(path, sizeof path, "%s/flat.amp", test_tmpdir());
    REQUIRE(test_write_file(path, flat, sizeof flat - 1));
    CHECK_EQ_INT(
        test_command(&out, "'%s' check '%s' %s", test_ampc(), path, options),
        2);
    CHECK_HAS(out, says);
    free(out);
}

TEST_CASE(diverge, counting_and_debugging_want_something_to_look_at) {
    check_refused("--loss mse --count-underflow",
                  "--count-underflow: only fp16 flushes gradients");
    check_refused("--loss none --count-underflow --precision fp16",
                  "--count-underflow: nothing trains");
    check_refused("--loss none --debug-nonfinite",
                  "--debug-nonfinite: nothing trains");
}

TEST_CASE(diverge, a_module_counts_and_locates) {
    char path[600], *out = NULL;
    snprintf(path, sizeof path, "%s/both.amp", test_tmpdir());
    REQUIRE(test_write_file(path, flat, sizeof flat - 1));
    int rc = test_command(&out,
                          "'%s' inspect '%s' --loss mse --target cpu --ir "
                          "underflow --debug-nonfinite " COUNT "static=1",
                          test_ampc(), path);
    CHECK_MSG(rc == 0, "%s", out);
    CHECK_HAS(out, "graph locate(");
    CHECK_HAS(out, "graph underflow(");
    free(out);
}

/* ---- the driver ---------------------------------------------------------- */

static void write_floats(const char *name, int columns, const float *v,
                         int rows) {
    char file[4096], path[600];
    size_t n = (size_t)(rows * columns) * sizeof *v;
    REQUIRE(128 + n <= sizeof file);
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\x01\x00\x76\x00", 10);
    snprintf(file + 10, 100,
             "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }",
             rows, columns);
    file[10 + strlen(file + 10)] = ' ';
    file[127] = '\n';
    memcpy(file + 128, v, n);
    snprintf(path, sizeof path, "%s/%s", test_tmpdir(), name);
    REQUIRE(test_write_file(path, file, 128 + n));
}

static char *run(const Compiled *c, const char *options, int status) {
    char *out = NULL;
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --quiet --device cpu "
                              "--feed x=x.npy --feed target=t.npy %s 2>&1",
                              test_tmpdir(), test_ampc(), c->path, options),
                 status);
    return out;
}

TEST_CASE(diverge, run_prints_what_debug_finds) {
    const Compiled *c =
        compile_on("cpu", diverge_deep, OPTIONS, DEBUG "--precision fp32");
    float x[BATCH * WIDTH], t[BATCH * 2] = {0};
    for (int i = 0; i < BATCH * WIDTH; i++) x[i] = i == 1 ? -9.f : 1;
    write_floats("x.npy", WIDTH, x, BATCH);
    write_floats("t.npy", 2, t, BATCH);
    char *out = run(c, "--steps 2", 0);
    CHECK_HAS(out, "step 1 was skipped: forward, 's' (f32 sqrt, line 7) holds "
                   "nan; keep its operand");
    CHECK_HAS(out, "step 2 was skipped: ");
    free(out);
}

TEST_CASE(diverge, run_tells_what_fp16_flushes) {
    const Compiled *c = compile_on("cpu", flat, OPTIONS, COUNT "static=1");
    char *out;
    Data d;
    flat_data(&d);
    write_floats("x.npy", WIDTH, d.x, BATCH);
    write_floats("t.npy", 2, d.target, BATCH);
    out = run(c, "--steps 3", 0);
    CHECK_HAS(out, "{\"underflow\":{\"w\":0.5,\"b\":0.5}}");
    free(out);
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' run '%s' --steps 1 --device cpu "
                              "--feed x=x.npy --feed target=t.npy 2>&1",
                              test_tmpdir(), test_ampc(), c->path),
                 0);
    CHECK_HAS(out, "fp16 flushes 50 % of the gradient of 'w' to zero");
    CHECK_HAS(out, "a larger loss scale or --precision bf16");
    free(out);
}

TEST_CASE(diverge, run_ends_and_names_the_sample) {
    enum { SAMPLES = 8 };
    const Compiled *c = diverge_compile("cpu", "--loss-scale static=1");
    float x[SAMPLES * WIDTH], t[SAMPLES * 2] = {0};
    for (int i = 0; i < SAMPLES * WIDTH; i++) x[i] = (float)i / 8;
    x[6 * WIDTH + 1] = NAN; /* and x[2, 0]: each batch has one */
    x[2 * WIDTH] = INFINITY;
    write_floats("x.npy", WIDTH, x, SAMPLES);
    write_floats("t.npy", 2, t, SAMPLES);
    char *out = run(c, "--steps 9 --max-skipped 4", 1);
    CHECK_HAS(out, "\"step\":3,\"loss\":null,");
    CHECK_HAS(out, "\"skipped\":3,\"skip_streak\":3,");
    CHECK_HAS(out, "4 steps in a row were skipped: input 'x' holds nan at "
                   "position 7");
    CHECK_HAS(out, "x.npy: error: sample 6 (from 0) has nan");
    free(out);
    out = run(c, "--steps 9 --max-skipped 5", 1);
    CHECK_HAS(out, "x.npy: error: sample 2 (from 0) has inf");
    free(out);
    free(run(c, "--steps 120 --max-skipped -1", 0));
    out = run(c, "--steps 120", 1);
    CHECK_HAS(out, "100 steps in a row");
    free(out);
}
