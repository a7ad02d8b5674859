/* SPDX-License-Identifier: Apache-2.0 */
/* debug.c: --debug-nonfinite names the value. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/on_device.h"
#include "tests/whole/diverge/diverge.h"

/* ---- --debug-nonfinite --------------------------------------------------- */

const char diverge_deep[] = "graph forward(%x: f32[4,3]) {\n"     /* line 1 */
                            "  param %w: f32[3,2] = 0.5\n"        /* 2 */
                            "  const %mask: f32[2] = [0, -inf]\n" /* 3 */
                            "  %h = matmul %x, %w : f32[4,2]\n"   /* 4 */
                            "  %m = add %h, %mask : f32[4,2]\n"   /* 5 */
                            "  %p = softmax %m {axis=1} : f32[4,2]\n" /* 6 */
                            "  %s = sqrt %h : f32[4,2]\n"             /* 7 */
                            "  %e = exp %h : f32[4,2]\n"              /* 8 */
                            "  %ps = add %p, %s : f32[4,2]\n"         /* 9 */
                            "  %se = add %ps, %e : f32[4,2]\n"        /* 10 */
                            "  %k = isnan %h\n"
                            "  %far = where %k, 0, -inf : f32[4,2]\n"
                            "  %turned = transpose %far {perm=[1,0]}\n"
                            "  %none = exp %turned : f32[2,4]\n"
                            "  %back = transpose %none {perm=[1,0]}\n"
                            "  %y = add %se, %back : f32[4,2]\n"
                            "  return %y\n"
                            "}\n";

static const Place places[] = {
    {INFINITY, 0, AMPC_ORIGIN_INPUT, "x", "", "", 3, "look at the data"},
    {0, INFINITY, AMPC_ORIGIN_VARIABLE, NULL, "", "", 2, ""},
    {-1, 0, AMPC_ORIGIN_FORWARD, "s", "sqrt", "line 7", -1, "away from 0"},
    {99, 0, AMPC_ORIGIN_FORWARD, "e", "exp", "line 8", -1, "88.7"},
    {NAN, 0, AMPC_ORIGIN_BACKWARD, NULL, NULL, "line 7", -1, ""},
};

void diverge_spoil(const Compiled *c, ampc_session *s, Data *d,
                   const Place *p) {
    float w[6];
    diverge_data(d);
    for (int i = 0; i < BATCH * WIDTH; i++) d->x[i] += 0.125f;
    for (int i = 3; i < 6 && p && p->row != 0; i++)
        d->x[i] = isnan(p->row) ? 0 : p->row;
    if (!p || p->w == 0) return;
    read_var(c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
    w[2] = p->w;
    write_var(c, s, "w", w, sizeof w, AMPC_DTYPE_F32);
}

static void check_place(const Compiled *c, ampc_session *s, const Place *p) {
    ampc_nonfinite x = {.size = sizeof x};
    char notice[1024];
    snprintf(notice, sizeof notice, "%s", c->api->notice(s));
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, p->origin);
    if (p->name) CHECK_STR(x.name, p->name);
    if (p->op) CHECK_STR(x.op, p->op);
    if (p->source) CHECK_STR(x.source, p->source);
    if (p->index >= 0) CHECK_EQ_INT(x.index, p->index);
    CHECK(!isfinite(x.value));
    CHECK_HAS(x.advice, p->advice);
    CHECK_HAS(notice, "step 2 was skipped: ");
    if (p->origin == AMPC_ORIGIN_VARIABLE) {
        bool shadow = strchr(x.name, '/') != NULL;
        CHECK_HAS(notice,
                  shadow ? "skipped: 16-bit copy '" : "skipped: parameter '");
    }
    CHECK_HAS(notice, x.name);
    CHECK_HAS(notice, x.source);
    CHECK_HAS(notice, x.advice);
}

static void locating(const char *device, const char *options) {
    const Compiled *c = compile_on(device, diverge_deep, OPTIONS, options);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ampc_session *s = open_on(c, device, 0);
        Data d;
        diverge_spoil(c, s, &d, NULL);
        CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 1);
        CHECK_STR(c->api->notice(s), "");
        diverge_spoil(c, s, &d, &places[i]);
        CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        check_place(c, s, &places[i]);
        c->api->close(s);
    }
}

TEST_CASE(diverge, debug_names_the_value_fp32) {
    locating("cpu", DEBUG "--precision fp32");
}

TEST_CASE(diverge, debug_names_the_value_bf16) {
    locating("cpu", DEBUG "--precision bf16");
}

TEST_CASE(diverge, debug_names_the_value_gpu) {
    locating("cuda", DEBUG "--precision bf16");
}

/* Either micro-batch of a step may be the cause. */
static void locating_micro(const char *device) {
    const Compiled *c =
        compile_on(device, diverge_deep, OPTIONS, DEBUG "--accumulate 2");
    for (int which = 0; which < 2; which++) {
        ampc_session *s = open_on(c, device, 0);
        Data d;
        for (int i = 0; i < 4; i++) {
            diverge_spoil(c, s, &d, i == 2 + which ? &places[2] : NULL);
            CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_OK);
        }
        check_place(c, s, &places[2]);
        c->api->close(s);
    }
}

TEST_CASE(diverge, debug_names_the_value_of_a_micro_batch_cpu) {
    locating_micro("cpu");
}

TEST_CASE(diverge, debug_names_the_value_of_a_micro_batch_gpu) {
    locating_micro("cuda");
}

/* The message names a function's result and nothing inside the function,
   even if it ends with a cast in mixed precision. */
static const char scores[] =
    "graph forward(%x: f32[4,3], %target: f32[1,1,4,4]) {\n"
    "  param %w: f32[3] = 1\n"
    "  %xw = mul %x, %w : f32[4,3]\n"
    "  %h = reshape %xw {shape=[1,1,4,3]} : f32[1,1,4,3]\n"
    "  %a, %k, %v, %scores = attention %h, %h, %h {stage=2}\n"
    "  %st = mul %scores, %target : f32[1,1,4,4]\n"
    "  %loss = reduce_sum %st {axes=[0,1,2,3], keepdims=0} : f32[]\n"
    "  return %loss\n"
    "}\n";

static void locating_result(const char *precision) {
    const Compiled *c =
        compile_on("cpu", scores, "--debug-nonfinite ", precision);
    ampc_session *s = open_on(c, "cpu", 0);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    float target[BATCH * BATCH];
    for (int i = 0; i < BATCH * BATCH; i++) target[i] = 1;
    for (int i = 0; i < BATCH * WIDTH; i++) d.x[i] = 3e30f;
    d.in[0] = ampc_in("x", d.x, sizeof d.x, AMPC_DTYPE_F32);
    d.in[1] = ampc_in("target", target, sizeof target, AMPC_DTYPE_F32);
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 0);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, AMPC_ORIGIN_FORWARD);
    CHECK_STR(x.name, "scores");
    CHECK_STR(x.source, "line 5");
    c->api->close(s);
}

TEST_CASE(diverge, debug_names_the_result_of_a_function) {
    locating_result("--precision fp32");
    locating_result("--precision bf16");
}

TEST_CASE(diverge, debug_knows_what_fp16_cannot_hold) {
    const Compiled *c = compile_on("cpu", diverge_deep, OPTIONS,
                                   "--debug-nonfinite --precision fp16 "
                                   "--loss-scale static=1e9");
    ampc_session *s = open_on(c, "cpu", 1);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    diverge_spoil(c, s, &d, NULL);
    CHECK_EQ_INT(c->api->step(s, d.in, 2, NULL), AMPC_ERR_DIVERGED);
    CHECK_HAS(c->api->error(s), "1 steps in a row were skipped: backward, ");
    CHECK_HAS(c->api->error(s), "the loss scale is too large for this step");
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_EQ_INT(x.origin, AMPC_ORIGIN_BACKWARD);
    CHECK_EQ_INT(x.dtype, AMPC_DTYPE_F16);
    c->api->close(s);
}

static const char stream[] =
    "graph forward(%x: f32[4,3]) {\n  param %w: f32[3,3] = 0.5\n"
    "  param %v: f32[3,2] = 0.5\n  %h = matmul %x, %w : f32[4,3]\n"
    "  %r = add %x, %h : f32[4,3]\n  %t = mul %r, 0.001 : f32[4,3]\n"
    "  %k = matmul %t, %w : f32[4,3]\n  %s = add %r, %k : f32[4,3]\n"
    "  %u = mul %s, 0.001 : f32[4,3]\n  %y = matmul %u, %v : f32[4,2]\n"
    "  return %y\n}\n";

static const char divided[] =
    "graph forward(%x: f32[4,3]) {\n  param %w: f32[3,1,3] = 0.5\n"
    "  param %v: f32[3,2] = 0.5\n"
    "  %h = reshape %x {shape=[4,1,3]} : f32[4,1,3]\n"
    "  %r = conv %h, %w {strides=[1], pads=[0,0], dilations=[1], group=1} : "
    "f32[4,3,1]\n"
    "  %m = reduce_mean %r {axes=[0,1,2], keepdims=1} : f32[1,1,1]\n"
    "  %d = sub %r, %m : f32[4,3,1]\n  %s = mul %d, %d : f32[4,3,1]\n"
    "  %a = reduce_mean %s {axes=[0,1,2], keepdims=1} : f32[1,1,1]\n"
    "  %e = add %a, 1e-5 : f32[1,1,1]\n  %o = rsqrt %e : f32[1,1,1]\n"
    "  %n = mul %d, %o : f32[4,3,1]\n"
    "  %z = reshape %n {shape=[4,3]} : f32[4,3]\n"
    "  %y = matmul %z, %v : f32[4,2]\n  return %y\n}\n";

static void check_where_fp16_ends(const char *text) {
    const Compiled *c =
        compile_on("cpu", text, OPTIONS, DEBUG "--precision bf16");
    ampc_session *s = open_on(c, "cpu", 2);
    ampc_nonfinite x = {.size = sizeof x};
    Data d;
    CHECK_EQ_INT(step_ok(c, s, diverge_data(&d)->in, 2).applied, 1);
    d.x[2 * WIDTH] = 9e6f;
    CHECK_EQ_INT(step_ok(c, s, d.in, 2).applied, 0);
    CHECK_EQ_INT(c->api->nonfinite(s, &x), AMPC_OK);
    CHECK_STR(x.name, "r.f16");
    CHECK_EQ_INT(x.dtype, AMPC_DTYPE_F16);
    CHECK_HAS(x.advice, "--placement exact,residuals=inf");
    c->api->close(s);
}

TEST_CASE(diverge, debug_knows_where_fp16_streams_end) {
    check_where_fp16_ends(stream);
}

TEST_CASE(diverge, debug_knows_where_what_norms_divide_ends) {
    check_where_fp16_ends(divided);
}

/* Good steps, bad steps and a checkpoint of the module without the option. */
static void same_bits(const char *device, const char *with,
                      const char *without) {
    const unsigned kinds = 1u << AMPC_KIND_PARAMETER | 1u << AMPC_KIND_BUFFER |
                           1u << AMPC_KIND_STATE;
    const Compiled *c[] = {compile_on(device, diverge_deep, OPTIONS, with),
                           compile_on(device, diverge_deep, OPTIONS, without)};
    char path[600], *state[2];
    size_t n[2];
    snprintf(path, sizeof path, "%s/plain.safetensors", test_tmpdir());
    for (int k = 2; k-- > 0;) { /* without it first */
        if (strcmp(device, "cpu") != 0)
            c[k] =
                compile_on(device, diverge_deep, OPTIONS, k ? without : with);
        ampc_session *s = open_on(c[k], device, 0);
        if (!k) CHECK_EQ_INT(c[k]->api->resume(s, path), AMPC_OK);
        for (int i = k ? 0 : 3; i < 8; i++) {
            Data d;
            if (k && i == 3) CHECK_EQ_INT(c[k]->api->save(s, path), AMPC_OK);
            diverge_spoil(c[k], s, &d, i % 3 == 1 ? &places[2] : NULL);
            ampc_metrics m = step_ok(c[k], s, d.in, 2);
            CHECK_EQ_INT(m.applied, i % 3 != 1);
        }
        state[k] = read_all(c[k], s, kinds, &n[k]);
        c[k]->api->close(s);
    }
    if (CHECK_EQ_INT(n[0], n[1])) CHECK_MEM(state[0], state[1], n[0]);
    free(state[0]);
    free(state[1]);
}

TEST_CASE(diverge, debug_changes_no_bit_cpu) {
    same_bits("cpu", DEBUG "--precision bf16", SLOW "--precision bf16");
}

TEST_CASE(diverge, debug_changes_no_bit_gpu) {
    same_bits("cuda", DEBUG "--precision bf16", SLOW "--precision bf16");
}
