/* SPDX-License-Identifier: Apache-2.0 */
/* statistics.c: batch normalisation over ranks. */
#define _GNU_SOURCE
#include "tests/whole/ranks/ranks_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/samples.h"
#include "tests/tolerance.h"

/* ---- statistics of all ranks --------------------------------------------- */

static Run *batch_run(const char *path, const char *options, int world,
                      int parts, int each) {
    char all[300];
    snprintf(all, sizeof all,
             "--dim batch=%d --target cpu:x86-64-v2 --precision fp32 "
             "--optimizer sgd,lr=0.05,momentum=0.9 %s",
             each * parts, options);
    Compiled c = compile_file(path, all);
    Run *r = run_new(&c);
    r->steps = 5;
    r->kinds = ALL_KINDS | 1 << AMPC_KIND_BUFFER;
    r->parts = parts;
    run_ok(r, world);
    compiled_close(&c);
    return r;
}

static Run *norm_run(const char *options, int world, int parts) {
    return batch_run(test_data_path("tests/onnx/cnn.dyn.onnx"), options, world,
                     parts, 2);
}

static double apart(const Run *a, const Run *b) {
    double most = 0;
    CHECK(a->bytes[0] == b->bytes[0]);
    for (size_t i = 0; i < a->bytes[0] / 4; i++) {
        double x = ((float *)a->state[0])[i], y = ((float *)b->state[0])[i];
        double d = fabs(x - y) / (1 + fabs(y));
        if (!(d <= most)) most = d;
    }
    return most;
}

/* Two ranks with two samples each equal one rank with four. */
TEST_CASE(ranks, batch_norm_over_ranks_as_one_batch) {
    Run *one = norm_run("", 1, 2);
    Run *synced = norm_run("--sync-batchnorm --comm-bucket 300", 2, 1);
    Run *alone = norm_run("", 2, 1);
    CHECK_MSG(apart(synced, one) < TOL_RANKS, "%g", apart(synced, one));
    CHECK_MSG(apart(alone, one) > 1e-3, "%g", apart(alone, one));
    CHECK(memcmp(synced->state[0], synced->state[1], one->bytes[0]) == 0);
    run_free(one);
    run_free(synced);
    run_free(alone);
}

/* Four ranks with one sample each equal one rank with four; the variance over
   all samples is unbiased. */
TEST_CASE(ranks, batch_norm_of_one_sample_each) {
    static const char sync[] = "--loss mse --batchnorm train:unbiased "
                               "--sync-batchnorm";
    char path[600];
    snprintf(path, sizeof path, "%s", samples_norm());
    for (int world = 2; world <= 4; world += 2) {
        Run *one = batch_run(path, "--loss mse --batchnorm train:unbiased", 1,
                             world, 1);
        Run *synced = batch_run(path, sync, world, 1, 1);
        CHECK_MSG(apart(synced, one) < TOL_RANKS, "%g", apart(synced, one));
        run_free(one);
        run_free(synced);
    }
    Run *alone = batch_run(path, sync, 1, 1, 1);
    for (size_t i = 0; i < alone->bytes[0] / 4; i++)
        CHECK(isfinite(((float *)alone->state[0])[i]));
    run_free(alone);
}

/* Two sums in one message; the second is read first. (h prevents sa from
   coming after sb, and depends on a rank's own samples.) */
static Run *two_sums_run(int world, int parts) {
    char text[800];
    const char *path = test_tmp("sums.amp");
    int n =
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[batch,8]) {\n"
                 "  param %%w: f32[8] = 0.7, %%p: f32[8,8] = normal(0, 0.3)\n"
                 "  param %%q: f32[8,8] = normal(0, 0.3)\n"
                 "  %%u = mul %%x, %%w : f32[batch,8]\n"
                 "  %%v = mul %%u, %%u : f32[batch,8]\n"
                 "  %%a = reduce_sum %%u {axes=[0], keepdims=1} : f32[1,8]\n"
                 "  %%b = reduce_sum %%v {axes=[0], keepdims=1} : f32[1,8]\n"
                 "  %%sa = rank_sum %%a : f32[1,8]\n"
                 "  %%sb = rank_sum %%b : f32[1,8]\n"
                 "  %%t = tanh %%sb : f32[1,8]\n"
                 "  %%m = matmul %%t, %%p : f32[1,8]\n"
                 "  %%z = mul %%m, %%sa : f32[1,8]\n"
                 "  %%h = matmul %%a, %%q : f32[1,8]\n"
                 "  %%n = mul %%h, %g : f32[1,8]\n"
                 "  %%y = add %%z, %%n : f32[1,8]\n"
                 "  %%loss = reduce_sum %%y {axes=[0,1], keepdims=0} : f32[]\n"
                 "  return loss=%%loss\n}\n",
                 0.5 / parts);
    REQUIRE(test_write_file(path, text, (size_t)n));
    return batch_run(path, "--loss auto", world, parts, 2);
}

TEST_CASE(ranks, sums_end_before_any_is_read) {
    Run *one = two_sums_run(1, 2), *two = two_sums_run(2, 1);
    CHECK_MSG(apart(two, one) < TOL_RANKS, "%g", apart(two, one));
    run_free(one);
    run_free(two);
}

/* ---- scales of numbers of 8 bits ----------------------------------------- */

static const char eights[] =
    "graph forward(%x: f32[64,64]) {\n"
    "  param %a: f32[64,64] = normal(0, 0.1)\n"
    "  param %m: f32[64,64] = normal(0, 0.1)\n"
    "  param %b: f32[64,64] = normal(0, 0.1)\n"
    "  %h = matmul %x, %a {trans_b=1} : f32[64,64]\n"
    "  %t = matmul %h, %m {trans_b=1} : f32[64,64] !of=\"middle\"\n"
    "  %y = matmul %t, %b {trans_b=1} : f32[64,64]\n"
    "  %s = mul %y, %y : f32[64,64]\n"
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"
    "  return %loss\n}\n";

/* Histories after some steps, which begin with that micro-batch. */
static Run *histories(const char *device, int world, int steps, int64_t from) {
    Run *r = run_new(compile_on(device, eights,
                                "--precision f8 --f8-scales delayed "
                                "--optimizer sgd,lr=0.1",
                                ""));
    r->device = device;
    r->steps = steps;
    r->from = from;
    r->kinds = 1 << AMPC_KIND_STATE;
    run_ok(r, world);
    return r;
}

/* The history of activations has the largest number of both ranks; all
   histories of all ranks are equal. */
static void share_histories(const char *device) {
    Run *both = histories(device, 2, 1, 0), *more = histories(device, 2, 5, 0),
        *first = histories(device, 1, 1, 0),
        *second = histories(device, 1, 1, 1);
    const float *all = both->state[0], *a = first->state[0],
                *b = second->state[0];
    REQUIRE(both->bytes[0] == 128 && first->bytes[0] == 128);
    CHECK(a[0] > 0 && b[0] > 0 && a[0] != b[0]);
    CHECK_MSG(all[0] == fmaxf(a[0], b[0]), "%g, of %g and %g", (double)all[0],
              (double)a[0], (double)b[0]);
    CHECK_MEM(both->state[1], both->state[0], 128);
    CHECK_MEM(more->state[1], more->state[0], 128);
    run_free(both);
    run_free(more);
    run_free(first);
    run_free(second);
}

TEST_CASE(ranks, histories_are_of_all_ranks) { share_histories("cpu"); }
TEST_CASE(ranks, histories_on_a_gpu) { share_histories("cuda"); }

/* Without the option, all ranks have the statistics of rank 0's batch. */
TEST_CASE(ranks, running_statistics_are_those_of_rank_0) {
    Compiled c = compile_for("cnn.dyn.onnx",
                             "--precision fp32 --optimizer sgd,lr=0.05", 1);
    Run *one = run_new(&c), *r = run_new(&c);
    one->steps = r->steps = 1;
    one->kinds = r->kinds = 1 << AMPC_KIND_BUFFER;
    run_ok(one, 1);
    run_ok(r, 3);
    CHECK(one->bytes[0] > 0);
    for (int i = 0; i < 3; i++)
        CHECK(r->bytes[i] == one->bytes[0] &&
              memcmp(r->state[i], one->state[0], one->bytes[0]) == 0);
    run_free(one);
    run_free(r);
    compiled_close(&c);
}
