/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_export_test.c: the files that script/gpu-check takes to a machine with a
   GPU: the ops as one module's text, and inputs as files that plain C reads.
   They go to the folder $AMPC_EXPORT, else to the test's own folder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/text/text.h"
#include "tests/support/device_check.h"
#include "tests/support/ops_bench.h"
#include "tests/support/trace_feed.h"

static const char *export_path(const char *name, const char *suffix) {
    static char path[600];
    const char *dir = getenv("AMPC_EXPORT");
    snprintf(path, sizeof path, "%s/%s%s", dir ? dir : test_tmpdir(), name,
             suffix);
    return path;
}

/* Reads the file back and compares it with what was written. */
static void check_feed(const char *path, int steps, DcFeed *feed, void *ctx) {
    DcFile *f = dc_file_open(path);
    REQUIRE(f && dc_file_steps(f) == steps);
    for (int i = 0; i < steps; i++) {
        size_t nin, nwant;
        const ampc_input *in = dc_file_feed(f, i, &nin);
        const ampc_input *want = feed(ctx, i, &nwant);
        REQUIRE(in && nin == nwant);
        for (size_t k = 0; k < nin; k++) {
            CHECK_STR(in[k].name, want[k].name);
            CHECK_EQ_INT(in[k].dtype, want[k].dtype);
            REQUIRE(in[k].bytes == want[k].bytes);
            CHECK_MEM(in[k].data, want[k].data, in[k].bytes);
        }
    }
    dc_file_free(f);
}

static const ampc_input *ops_inputs(void *ctx, int step, size_t *nin) {
    const OpsData *d = ctx;
    (void)step;
    *nin = (size_t)d->nin;
    return d->in;
}

TEST_CASE(gpu_export, ops) {
    OpsBench b = ops_bench_new();
    OpsData d = ops_data_new(&b, NULL);
    StrBuf text = {0};
    print_module(b.m, &text);
    REQUIRE(test_write_file(export_path("ops", ".amp"), text.data, text.len));
    const char *path = export_path("ops", ".feed");
    REQUIRE(dc_file_write(path, 1, ops_inputs, &d));
    check_feed(path, 1, ops_inputs, &d);
    sb_free(&text);
    arena_free(b.a);
}

typedef struct Steps {
    Trace t;
    TraceFeed now;
} Steps;

static const ampc_input *trace_inputs(void *ctx, int step, size_t *nin) {
    Steps *s = ctx;
    trace_feed_free(&s->now);
    s->now = trace_feed(&s->t, step);
    *nin = 2;
    return s->now.in;
}

/* Traces that step with x and target: they have options. */
static void export_trace(const char *path, const char *name, void *arg) {
    char stem[200], trace[300];
    (void)arg, (void)path;
    snprintf(stem, sizeof stem, "%.*s", (int)strcspn(name, "/"), name);
    snprintf(trace, sizeof trace, "tests/traces/%s/trace.safetensors", stem);
    Steps s = {.t = trace_read(trace)};
    int steps = (int)trace_find(&s.t, "x")->dim[0];
    const char *out = export_path(stem, ".feed");
    REQUIRE(dc_file_write(out, steps, trace_inputs, &s));
    check_feed(out, steps, trace_inputs, &s);
    trace_feed_free(&s.now);
    trace_free(&s.t);
}

TEST_CASE(gpu_export, traces) {
    CHECK(test_each_file("tests/traces", "options.txt", export_trace, NULL) >
          10);
}
