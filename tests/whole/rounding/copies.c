/* SPDX-License-Identifier: Apache-2.0 */
/* copies.c: 16-bit copies of parameters follow their parameters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/whole/rounding/rounding.h"

/* ---- 16-bit copies of parameters ----------------------------------------- */

enum { IN = 6, OUT = 4 };

typedef struct Copies {
    Compiled c;
    ampc_session *s;
    float x[IN][IN], target[IN][OUT]; /* x = 1: the output is the copy */
    ampc_input in[2];
} Copies;

static void copies_open(Copies *k, const char *options) {
    char all[256];
    snprintf(all, sizeof all,
             "--precision bf16 --target cpu:x86-64-v2 --loss mse "
             "--optimizer sgd,lr=0.7 %s",
             options);
    k->c = compile_text("graph forward(%x: f32[6,6]) {\n"
                        "  param %w: f32[6,4] = uniform(3, -1, 1)\n"
                        "  %y = matmul %x, %w : f32[6,4]\n  return %y\n}\n",
                        all);
    k->s = open_threads(&k->c, 1);
    for (int i = 0; i < IN; i++) {
        for (int j = 0; j < IN; j++) k->x[i][j] = i == j;
        for (int j = 0; j < OUT; j++) k->target[i][j] = (float)(i - 2 * j);
    }
    k->in[0] = ampc_in("x", k->x, sizeof k->x, AMPC_DTYPE_F32);
    k->in[1] = ampc_in("target", k->target, sizeof k->target, AMPC_DTYPE_F32);
}

/* The model computes with the parameter's present value, rounded. */
static void check_copy(Copies *k, const char *after) {
    static double closest;
    Rounder r = {"w", 8, &closest, NULL, 0};
    float w[IN * OUT], y[IN * OUT];
    ampc_output out = ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32);
    read_var(&k->c, k->s, "w", w, sizeof w, AMPC_DTYPE_F32);
    if (k->c.api->predict(k->s, k->in, 1, IN, &out, 1))
        FAIL("%s", k->c.api->error(k->s));
    for (int i = 0; i < IN * OUT; i++)
        if (!CHECK_MSG((double)y[i] == rounding_at(&r, 'w', (double)w[i]),
                       "after %s: %g is used for %.9g", after, (double)y[i],
                       (double)w[i]))
            break;
}

static void train(Copies *k, int steps, bool applied) {
    for (int i = 0; i < steps; i++)
        CHECK_EQ_INT(step_ok(&k->c, k->s, k->in, 2).applied, applied);
}

TEST_CASE(rounding, copies_follow_their_parameters) {
    Copies k;
    float w[IN * OUT];
    double lr;
    ampc_eval e = {.size = sizeof e};
    const char *path = test_tmp("copies.safetensors");
    copies_open(&k, "");
    check_copy(&k, "open");
    train(&k, 2, true);
    check_copy(&k, "training");
    REQUIRE(!k.c.api->set_hyper(k.s, "lr", 0.7 / 3));
    REQUIRE(!k.c.api->save(k.s, path));
    REQUIRE(!k.c.api->set_hyper(k.s, "lr", 0.7));
    for (int i = 0; i < IN * OUT; i++) w[i] = 0.1f * (float)i;
    write_var(&k.c, k.s, "w", w, sizeof w, AMPC_DTYPE_F32);
    check_copy(&k, "writing");
    train(&k, 1, true);
    REQUIRE(!k.c.api->load(k.s, path));
    check_copy(&k, "loading");
    train(&k, 3, true);
    REQUIRE(!k.c.api->resume(k.s, path));
    REQUIRE(!k.c.api->get_hyper(k.s, "lr", &lr));
    CHECK(lr == 0.7 / 3);
    REQUIRE(!k.c.api->evaluate(k.s, k.in, 2, IN, &e));
    check_copy(&k, "resuming");
    k.target[0][0] = NAN;
    train(&k, 1, false);
    check_copy(&k, "a skipped step");
    k.c.api->close(k.s);
    compiled_close(&k.c);
}

TEST_CASE(rounding, copies_change_with_the_update_alone) {
    Copies k;
    float before[IN * OUT], after[IN * OUT];
    copies_open(&k, "--accumulate 2");
    read_var(&k.c, k.s, "w", before, sizeof before, AMPC_DTYPE_F32);
    step_ok(&k.c, k.s, k.in, 2);
    check_copy(&k, "a micro-step");
    read_var(&k.c, k.s, "w", after, sizeof after, AMPC_DTYPE_F32);
    CHECK_MEM(after, before, sizeof before);
    CHECK_EQ_INT(step_ok(&k.c, k.s, k.in, 2).applied, 1);
    check_copy(&k, "an update");
    read_var(&k.c, k.s, "w", after, sizeof after, AMPC_DTYPE_F32);
    CHECK(memcmp(after, before, sizeof before) != 0);
    k.c.api->close(k.s);
    compiled_close(&k.c);
}
