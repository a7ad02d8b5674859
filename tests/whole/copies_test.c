/* SPDX-License-Identifier: Apache-2.0 */
/* copies_test.c: tensors of several times the size in which they are copied, on
   both devices: the host, files, predictions and updates find each element in
   its own place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/on_device.h"

/* 2.5 MiB of weights, 1.5 MiB of outputs; pieces on GPUs are of 1 MiB. */
enum { BATCH = 600, ROWS = 1000, COLS = 655, WEIGHTS = ROWS * COLS };

static const char model[] = "graph forward(%x: f32[600,1000]) {\n"
                            "  param %w: f32[1000,655] = normal(1, 0.05)\n"
                            "  %y = matmul %x, %w\n  return %y\n}\n";

#define OPTIONS "--loss mse --precision fp32 --optimizer sgd,lr=0.5 "

typedef struct Host {
    const Compiled *c;
    ampc_session *s;
    float w[WEIGHTS], x[BATCH * ROWS], y[BATCH * COLS], target[BATCH * COLS];
    float again[WEIGHTS];
} Host;

static Host host;

/* Numbers that are exact in fp32 and differ from all others. */
static float own(int i) { return (float)i / 1024; }

static void begin(Host *h, const char *device) {
    h->c = compile_on(device, model, OPTIONS, "");
    h->s = open_on(h->c, device, 0);
    for (int i = 0; i < WEIGHTS; i++) h->w[i] = own(i);
    write_var(h->c, h->s, "w", h->w, sizeof h->w, AMPC_DTYPE_F32);
}

/* Sample r picks row of(r) of the weights; other rows stay unread. */
static int row_of(int r) { return (r * 7 + 13) % ROWS; }

static void pick_rows(Host *h) {
    memset(h->x, 0, sizeof h->x);
    for (int r = 0; r < BATCH; r++) h->x[r * ROWS + row_of(r)] = 1;
}

static void check_weights(Host *h, const char *device, const char *after) {
    int bad = 0;
    read_var(h->c, h->s, "w", h->again, sizeof h->again, AMPC_DTYPE_F32);
    for (int i = 0; i < WEIGHTS && bad < 3; i++)
        bad += !CHECK_MSG(h->again[i] == h->w[i],
                          "%s, after %s: element %d of w is %g, not %g", device,
                          after, i, (double)h->again[i], (double)h->w[i]);
}

static void check_files(Host *h, const char *device) {
    const char *path = test_tmp("copies.safetensors");
    REQUIRE(h->c->api->save(h->s, path) == AMPC_OK);
    memset(h->again, 0, sizeof h->again);
    write_var(h->c, h->s, "w", h->again, sizeof h->again, AMPC_DTYPE_F32);
    REQUIRE(h->c->api->resume(h->s, path) == AMPC_OK);
    check_weights(h, device, "save and resume");
}

static void check_outputs(Host *h, const char *device) {
    ampc_input in = ampc_in("x", h->x, sizeof h->x, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("y", h->y, sizeof h->y, AMPC_DTYPE_F32);
    int bad = 0;
    pick_rows(h);
    REQUIRE(h->c->api->predict(h->s, &in, 1, BATCH, &out, 1) == AMPC_OK);
    for (int i = 0; i < BATCH * COLS && bad < 3; i++) {
        int from = row_of(i / COLS) * COLS + i % COLS;
        bad += !CHECK_MSG(h->y[i] == h->w[from],
                          "%s: element %d of y is %g, not element %d of w, %g",
                          device, i, (double)h->y[i], from, (double)h->w[from]);
    }
}

/* Where y is the target no weight moves; where it is one above, each weight of
   the rows that were picked moves by the same amount, and no other does. */
static void check_updates(Host *h, const char *device) {
    ampc_input in[] = {
        ampc_in("x", h->x, sizeof h->x, AMPC_DTYPE_F32),
        ampc_in("target", h->target, sizeof h->target, AMPC_DTYPE_F32)};
    double moved = 0;
    memcpy(h->target, h->y, sizeof h->y);
    CHECK(step_ok(h->c, h->s, in, 2).loss == 0);
    check_weights(h, device, "a step without error");
    for (int i = 0; i < BATCH * COLS; i++) h->target[i] = h->y[i] - 1;
    CHECK_NEAR(step_ok(h->c, h->s, in, 2).loss, 1, 1e-6);
    read_var(h->c, h->s, "w", h->again, sizeof h->again, AMPC_DTYPE_F32);
    static bool picked[ROWS];
    for (int r = 0; r < BATCH; r++) picked[row_of(r)] = true;
    /* lr * 2 / elements of y */
    moved = 0.5 * 2 / ((double)BATCH * COLS);
    for (int i = 0, bad = 0; i < WEIGHTS && bad < 3; i++) {
        double want = own(i) - (picked[i / COLS] ? moved : 0);
        bad += !CHECK_MSG(fabs(h->again[i] - want) <= 0x1p-24 * want + 1e-12,
                          "%s: element %d of w is %.9g, not %.9g", device, i,
                          (double)h->again[i], want);
    }
}

static void all_copies(const char *device) {
    Host *h = &host;
    begin(h, device);
    check_weights(h, device, "a write");
    check_files(h, device);
    check_outputs(h, device);
    check_updates(h, device);
    h->c->api->close(h->s);
}

TEST_CASE(copies, on_the_cpu) { all_copies("cpu"); }

TEST_CASE(copies, on_the_gpu) { all_copies("cuda"); }
