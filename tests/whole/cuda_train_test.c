/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_train_test.c: whole training steps on the simulated GPU compared with
   the CPU back end: perceptron, convolutional and residual network,
   transformer, in fp32, bf16 and fp16; graphs, asynchronous steps, failures. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cuda_gpu.h"
#include "tests/support/trace_feed.h"

/* ---- subjects ------------------------------------------------------------ */

typedef struct Subject {
    const char *name, *trace; /* folder of tests/traces */
    const char *precision;
    const char *options; /* options besides the trace's own */
    int steps;
    bool forced;
} Subject;

typedef struct Run {
    Compiled c;
    Trace trace;
    TraceFeed feed;
    bool fed;
    DcTraining t;
} Run;

/* The trace's inputs, repeated; every call shuffles threads and blocks
   again, so that runs whose bits must agree run in different orders. */
static const ampc_input *next_input(void *ctx, int step, size_t *nin) {
    static uint64_t order;
    Run *r = ctx;
    sim()->seed(++order);
    const TraceTensor *x = trace_find(&r->trace, "x");
    if (r->fed) trace_feed_free(&r->feed);
    r->feed = trace_feed(&r->trace, step % x->dim[0]);
    r->fed = true;
    *nin = 2;
    return r->feed.in;
}

static void run_begin(Run *r, const Subject *s) {
    char path[600], rel[200], options[512], all[900];
    size_t n;
    memset(r, 0, sizeof *r);
    snprintf(rel, sizeof rel, "tests/traces/%s/options.txt", s->trace);
    char *text = test_read_file(test_data_path(rel), &n);
    REQUIRE(text);
    snprintf(options, sizeof options, "%.*s", (int)strcspn(text, "\n"), text);
    free(text);
    snprintf(all, sizeof all, "%s --precision %s %s", options, s->precision,
             s->options ? s->options : "");
    snprintf(rel, sizeof rel, "tests/traces/%s/trace.safetensors", s->trace);
    r->trace = trace_read(test_data_path(rel));
    snprintf(rel, sizeof rel, "tests/traces/%s/model.onnx", s->trace);
    snprintf(path, sizeof path, "%s", test_data_path(rel));
    r->c = compile_file_cuda(path, all, GPU_PTX);
    gpu_for(&r->c, 1);
    r->t = (DcTraining){.steps = s->steps,
                        .forced = s->forced,
                        .tolerance = dc_training_tolerance(s->precision),
                        .feed = next_input,
                        .feed_ctx = r};
}

static void run_end(Run *r) {
    if (r->fed) trace_feed_free(&r->feed);
    compiled_close(&r->c);
    trace_free(&r->trace);
}

/* ---- beside the CPU ------------------------------------------------------ */

static void check_subject(void *arg) {
    const Subject *s = arg;
    Run r;
    DcReport report;
    run_begin(&r, s);
    CHECK_MSG(dc_train(r.c.api, "cpu", "cuda", &r.t, &report), "%s",
              report.text);
    CHECK(report.compared > 0);
    printf("%ld numbers and tensors, worst %.3g of what is allowed (%s)\n",
           report.compared, report.worst, report.worst_name);
    gpu_clean(s->name);
    r.t.steps = 4;
    CHECK_MSG(
        dc_same_bits(r.c.api, "cuda", "AMPC_CUDA_GRAPH", "0", &r.t, &report),
        "graph replay against eager: %s", report.text);
    gpu_clean("graph and eager");
    run_end(&r);
}

static const Subject subjects[] = {
    {"mlp_fp32", "mlp_dynamo_adamw", "fp32", NULL, 20, false},
    {"mlp_bf16", "mlp_dynamo_adamw", "bf16", NULL, 6, true},
    {"mlp_fp16", "mlp_dynamo_adamw", "fp16", NULL, 6, true},
    {"mlp_micro_batches", "mlp_torchscript_sgd", "fp32", "--accumulate 2", 6,
     true},
    {"cnn_fp32", "cnn_dynamo_sgd_forced", "fp32", NULL, 3, true},
    {"cnn_bf16", "cnn_dynamo_sgd_forced", "bf16", NULL, 3, true},
    {"cnn_fp16", "cnn_dynamo_sgd_forced", "fp16", NULL, 3, true},
    {"resnet_fp32", "resnet_dynamo_sgd_forced", "fp32", NULL, 3, true},
    {"resnet_bf16", "resnet_dynamo_sgd_forced", "bf16", NULL, 3, true},
    {"gpt_fp32", "gpt_dynamo_sgd", "fp32", NULL, 3, true},
    {"gpt_bf16", "gpt_dynamo_adamw", "bf16", NULL, 3, true},
    {"gpt_fp16", "gpt_dynamo_adamw", "fp16", NULL, 3, true},
    {"gpt_fp32_streams", "gpt_dynamo_adamw", "bf16",
     "--placement exact,residuals=inf", 3, true},
    {"gpt_logit_rows_fp32", "gpt_dynamo_sgd", "fp32", "--logit-rows 5", 3,
     true},
    {"gpt_logit_rows_fp16", "gpt_dynamo_adamw", "fp16", "--logit-rows 16", 3,
     true},
};

/* ---- weights, state and activations of fewer bits ------------------------ */

static const char layers[] =
    "graph forward(%x: f32[B,64]) {\n"
    "  param %a: f32[64,64] = normal(0, 0.1)\n"
    "  param %m: f32[64,64] = normal(0, 0.1)\n"
    "  param %b: f32[64,64] = normal(0, 0.1)\n"
    "  %h = matmul %x, %a : f32[B,64]\n"
    "  %r = gelu %h : f32[B,64]\n"
    "  %t = matmul %r, %m : f32[B,64] !of=\"middle\"\n"
    "  %y = matmul %t, %b : f32[B,64]\n"
    "  %s = mul %y, %y : f32[B,64]\n"
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"
    "  return %loss\n}\n";

static const ampc_input *next_random(void *ctx, int step, size_t *nin) {
    sim()->seed((uint64_t)step + 1);
    return dc_random_feed(ctx, step, nin);
}

/* Losses after several updates, since a code beside another is no error where
   it is drawn; the same bits eager and replayed. */
TEST_CASE(cuda_train, masters_state_and_activations_of_fewer_bits) {
    static const char *const options[] = {
        "--dim B=16 --masters none --state-dtype int8 --optimizer-in-backward",
        "--dim B=16 --masters kahan --state-dtype f8",
        "--dim B=16 --masters none --state-dtype bf16 --clip-norm 1 "
        "--gradient-dtype bf16",
        "--dim B=64 --precision fp16 --keep f8", "--dim B=64 --precision f8"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char all[200];
        DcReport report;
        bool f8 = strstr(options[i], "precision f8") != NULL;
        snprintf(all, sizeof all, "--optimizer adamw,lr=1e-2 %s", options[i]);
        Compiled c = compile_text_cuda(layers, all, GPU_PTX);
        gpu_for(&c, 1);
        DcTraining t = {.steps = 6,
                        .metrics_only = true,
                        .tolerance = dc_training_tolerance(f8 ? "f8" : "bf16"),
                        .feed = next_random,
                        .feed_ctx = dc_random_new(c.api, "train", 1, 1)};
        REQUIRE(t.feed_ctx != NULL);
        CHECK_MSG(dc_train(c.api, "cpu", "cuda", &t, &report), "%s: %s",
                  options[i], report.text);
        t.metrics_only = false;
        CHECK_MSG(
            dc_same_bits(c.api, "cuda", "AMPC_CUDA_GRAPH", "0", &t, &report),
            "%s: graph replay against eager: %s", options[i], report.text);
        gpu_clean(options[i]);
        dc_random_free(t.feed_ctx);
        compiled_close(&c);
    }
}

static void register_subjects(void) {
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        harness_register("cuda_train", subjects[i].name, check_subject,
                         (void *)&subjects[i]);
}
TEST_REGISTRAR(register_subjects);
