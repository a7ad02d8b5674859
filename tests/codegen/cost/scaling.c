/* SPDX-License-Identifier: Apache-2.0 */
/* scaling.c: predicted times of steps on several ranks. */
#include <math.h>
#include <string.h>

#include "codegen/cost/cost.h"
#include "codegen/cost/roofline.h"
#include "codegen/cost/scaling.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/codegen/cost/cost.h"
#include "tests/harness.h"

/* Milliseconds with `world` ranks. */
static double scaled_ms(const char *cost_count, const char *world,
                        const char *link, double *efficiency) {
    Diag d = {0};
    StrBuf sb = {0};
    char key[60];
    Scaling how = {.world = world, .link = link, .step_ms = "10", .json = true};
    REQUIRE(scaling_put(&d, cost_count, &how, &sb) == OK);
    snprintf(key, sizeof key, "\"world\":%s,", world);
    const char *at = strstr(sb.data, key);
    REQUIRE(at != NULL);
    double ms = cost_number_after(at, "\"ms\":");
    *efficiency = cost_number_after(at, "\"efficiency\":");
    sb_free(&sb);
    return ms;
}

/* Two steps of 4 ms and an update of 2: the sum of a 4 MB bucket that is
   ready after the first step is hidden by the second; that of a bucket at
   the end is not. */
TEST_CASE(cost, buckets_hide_behind_backward) {
    static const char head[] = "target\tprogram\n";
#define ROW(program, how, mma, bytes)                                          \
    "cuda\t" program "\t" how "\t" mma "\t16\t0\t" bytes                       \
    "\t0\t0\t0\t0\t0\t0\t0\t0\t1" COST_REST "\tx\n"
#define HALF ROW("micro", "cublaslt", "4e12", "1e6")
#define SUM  ROW("micro", "sum", "0", "4e6")
#define LAST ROW("update", "cublaslt", "2e12", "1e6")
    char early[900], late[900];
    double e, alone;
    snprintf(early, sizeof early, "%s%s", head, HALF SUM HALF LAST);
    snprintf(late, sizeof late, "%s%s", head, HALF HALF SUM LAST);
    alone = scaled_ms(early, "2", "1,1000", &e);
    CHECK(fabs(alone - 10) < 0.02 && fabs(e - 1) < 0.002);
    /* 2 * 100 us and 4 MB at 1 GB/s: 4.2 ms, 4 of them hidden */
    CHECK(fabs(scaled_ms(early, "2", "100,1", &e) - 10.2) < 0.02);
    CHECK(fabs(scaled_ms(late, "2", "100,1", &e) - 14.2) < 0.02);
    CHECK(fabs(e - 10 / 14.2) < 0.001);
    /* 8 ranks in a ring: 14 * (100 us + 0.5 ms); as a tree: 6 * 100 us + 8 ms
     */
    CHECK(fabs(scaled_ms(late, "8", "100,1", &e) - 18.4) < 0.02);
    CHECK(fabs(scaled_ms(late, "8", "1000,1", &e) - (10 + 14)) < 0.02);
}

/* As above with a first step in two ways, for GPUs from 9.0 on and for older
   ones: one of them counts. */
TEST_CASE(cost, ranks_take_the_steps_of_one_gpu) {
#define WAY(since)                                                             \
    "cuda\tmicro\tcublaslt\t4e12\t16\t0\t1e6\t0\t0\t0\t0\t0\t0\t0\t0\t1"       \
    "\t0\t0\t0\t0\t0\t" since "\t0\tx\n"
    static const char cost_count[] =
        "target\tprogram\n" WAY("90") WAY("-90") SUM HALF LAST;
    double e;
    CHECK(fabs(scaled_ms(cost_count, "2", "100,1", &e) - 10.2) < 0.02);
}

/* A step of 4 ms, a shared update of 1 ms and an unshared one of 5 ms; at
   the end each rank sends its part of 8 MB to all others. */
TEST_CASE(cost, shards_are_handed_out) {
    static const char cost_count[] =
        "target\tprogram\n" ROW("micro", "cublaslt", "4e12", "1e6")
            ROW("micro", "sum", "0", "4e6")
                ROW("update", "cublaslt", "1e12", "1e6")
                    ROW("update", "hand_out", "0", "8e6")
                        ROW("update", "cublaslt", "5e12", "1e6")
                            ROW("refresh", "hand_out", "0", "8e6");
    double e;
    /* 4, 2 * (100 us + 2 MB at 1 GB/s), 0.5 + 5, 100 us + 4 MB */
    CHECK(fabs(scaled_ms(cost_count, "2", "100,1", &e) - 17.8) < 0.02);
    /* 14 * (100 us + 0.5 ms) or 6 * 100 us + 8 ms, 1 / 8 + 5, 7 * 1.1 ms */
    CHECK(fabs(scaled_ms(cost_count, "8", "100,1", &e) - 25.225) < 0.02);
}

/* Ranks exchange the rounded copy of a weight that products read rounded,
   and the parameter itself if it is read unrounded: 64 x 32 elements and 32. */
TEST_CASE(cost, what_is_handed_out_is_counted_by_hand) {
    static const char *const precisions[] = {"fp32", "bf16"};
    static const double want[2][2] = {{4 * 64 * 32, 4 * 32},
                                      {2 * 64 * 32, 4 * 32}};
    for (int i = 0; i < 2; i++) {
        Costs c = {.a = arena_new()};
        EmitInput in = {.path = "m.so", .model_path = "m.amp"};
        Module *m;
        static const char text[] =
            "graph forward(%x: f32[16,64]) {\n  param %w: f32[64,32]\n"
            "  param %b: f32[32]\n  %h = matmul %x, %w\n  %y = add %h, %b\n"
            "  return %y\n}\n";
        options_init(&c.opt, c.a);
        cost_set(&c, "--loss", "mse");
        cost_set(&c, "--precision", precisions[i]);
        cost_set(&c, "--target", "cuda:sm_90");
        cost_set(&c, "--optimizer", "adamw");
        cost_set(&c, "--shard-optimizer", "");
        if (parse_module(c.a, &c.d, "m.amp", text, strlen(text), &m) != OK ||
            run_pipeline(m, &c.d, &c.opt, STAGE_PLANNED, false) != OK ||
            emit_plan(m, &c.opt, &c.d, &in, c.a, &c.src) != OK)
            FAIL("%s", c.d.text.data);
        cost_put(&c.src, &c.text);
        double all = 0;
        StepCost s;
        for (const char *at = c.text.data; cost_next(&at, &s);)
            if (!strcmp(s.how, "hand_out") && !strcmp(s.program, "update"))
                all += s.bytes;
        CHECK_MSG(all == want[i][0] + want[i][1], "%g in\n%s", all,
                  c.text.data);
        cost_end(&c);
    }
}
