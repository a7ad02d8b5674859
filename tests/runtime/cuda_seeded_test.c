/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_seeded_test.c: deliberate mistakes in the product, one of each kind,
   which the tests on the simulated GPU must detect: a removed barrier, a
   missing event, a call that was not captured, a leaked allocation, a wrong
   leading dimension. (An index past the end: cuda_bounds_test.c.)

   A driver call is taken out by SIM_LEFT_OUT: it reports success and does
   nothing.                                                                  */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/kernels.h"
#include "tests/support/cuda_gpu.h"

/* ---- a module ------------------------------------------------------------ */

enum { STEPS = 5, SEEDS = 3 };

static Compiled module(void) {
    Compiled c = compile_file_cuda(
        test_data_path("tests/traces/mlp_dynamo_sgd/model.onnx"),
        "--dim batch=16 --optimizer sgd,lr=0.05,momentum=0.9 "
        "--precision fp32",
        GPU_PTX);
    gpu_for(&c, 1);
    return c;
}

static ampc_status try_open(const Compiled *c, const AmpcModule *m,
                            ampc_session **s) {
    char err[600];
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    const void *module = m ? (const void *)m : (const void *)c->api->module;
    return c->api->open(module, &o, s, err, sizeof err);
}

/* Losses of STEPS asynchronous steps, each read at the step after the next;
   `at` is called before each step.  False if a call failed. */
static bool losses(const Compiled *c, ampc_session *s, double *loss,
                   void (*at)(int step)) {
    DcRandom *feed = dc_random_new(c->api, "train", 3, 1);
    bool ok = true;
    for (int i = 0; i < STEPS && ok; i++) {
        size_t nin;
        ampc_metrics m = {.size = sizeof m};
        const ampc_input *in = dc_random_feed(feed, i, &nin);
        if (at) at(i);
        ok = !c->api->step(s, in, nin, i == STEPS - 1 ? &m : NULL);
        if (ok && i == STEPS - 1) *loss = m.loss;
    }
    dc_random_free(feed);
    return ok;
}

/* The last loss without any mistake. */
static double reference(const Compiled *c) {
    double loss = NAN;
    gpu_reset(c, 1);
    ampc_session *s = gpu_open(c);
    REQUIRE(losses(c, s, &loss, NULL));
    c->api->close(s);
    gpu_clean("no mistake");
    return loss;
}

/* Whether a run shows its mistake: another loss, a failed call, or a
   violation that the simulator reports. */
static bool is_seen(const Compiled *c, uint64_t seed, double right,
                    void (*at)(int step)) {
    ampc_session *s;
    double loss = NAN;
    gpu_reset(c, seed);
    if (try_open(c, NULL, &s)) return true;
    bool ok = losses(c, s, &loss, at);
    c->api->close(s);
    return !ok || loss != right || *sim()->errors();
}

/* ---- a barrier removed --------------------------------------------------- */

/* The emitted text, with a fold.cuh from which the barriers are removed. */
static void without_barriers(const Compiled *c, const char *dir) {
    char path[700];
    size_t n;
    REQUIRE(!test_command(NULL, "mkdir -p %s && cp %s/*.cu %s/*.cuh %s/*.h %s",
                          dir, c->cuda_dir, c->cuda_dir, c->cuda_dir, dir));
    snprintf(path, sizeof path, "%s/fold.cuh", dir);
    char *text = test_read_file(path, &n);
    int removed = 0;
    static const char barrier[] = "__syncthreads();";
    for (char *p = text; (p = strstr(p, barrier)); removed++)
        memset(p, ' ', sizeof barrier - 1);
    REQUIRE(removed > 0 && test_write_file(path, text, n));
    free(text);
    sim_build_twins(dir);
}

TEST_CASE(cuda_seeded, a_removed_barrier) {
    Compiled c =
        compile_text_cuda("graph predict(%x: f32[3,3000]) {\n"
                          "  %m = reduce_max %x {axes=[1]} : f32[3,1]\n"
                          "  %d = sub %x, %m : f32[3,3000]\n"
                          "  %e = exp %d : f32[3,3000]\n"
                          "  %s = reduce_sum %e {axes=[1]} : f32[3,1]\n"
                          "  %y = div %e, %s : f32[3,3000]\n"
                          "  return y=%y\n"
                          "}\n",
                          "--precision fp32", GPU_PTX);
    char dir[sizeof c.cuda_dir];
    int seen = 0;
    gpu_for(&c, 1);
    DcReport r;
    DcRandom *feed = dc_random_new(c.api, "predict", 3, 1);
    size_t nin;
    const ampc_input *in = dc_random_feed(feed, 0, &nin);
    CHECK_MSG(dc_predict(c.api, "cpu", "cuda", in, nin, &r), "%s", r.text);
    snprintf(dir, sizeof dir, "%s/mutant", test_tmpdir());
    without_barriers(&c, dir);
    memcpy(c.cuda_dir, dir, sizeof dir);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        gpu_reset(&c, seed);
        bool agrees = dc_predict(c.api, "cpu", "cuda", in, nin, &r);
        seen += !agrees || *sim()->errors();
    }
    CHECK_EQ_INT(seen, SEEDS);
    dc_random_free(feed);
    compiled_close(&c);
}

/* ---- calls taken out ----------------------------------------------------- */

static const char *entry;
static int which;

static void take_out_at_third(int step) {
    if (step == 2) sim()->fail(entry, which, SIM_LEFT_OUT, false);
}

static void take_out_at_second(int step) {
    if (step == 1) sim()->fail(entry, which, SIM_LEFT_OUT, false);
}

static int count_seen(const Compiled *c, double right, void (*at)(int)) {
    int seen = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        seen += is_seen(c, seed, right, at);
    return seen;
}

TEST_CASE(cuda_seeded, a_missing_event) {
    Compiled c = module();
    double right = reference(&c);
    static const char *const entries[] = {"cuStreamWaitEvent", "cuEventRecord",
                                          "cuEventSynchronize"};
    for (int i = 0; i < 3; i++) {
        int seen = 0;
        entry = entries[i];
        for (which = 1; which <= 3; which++)
            seen += count_seen(&c, right, take_out_at_third);
        CHECK_MSG(seen > 0, "%s left out and nothing noticed", entry);
    }
    compiled_close(&c);
}

/* The second step captures the program: a launch or product missing there is
   missing in every replay. */
TEST_CASE(cuda_seeded, an_uncaptured_call) {
    Compiled c = module();
    double right = reference(&c);
    entry = "cuLaunchKernel";
    /* one of them makes the mask of samples, the same in every step */
    int noticed = 0;
    for (which = 1; which <= 5; which++)
        noticed += count_seen(&c, right, take_out_at_second) == SEEDS;
    CHECK_MSG(noticed >= 4, "%d of 5 launches are missed if not captured",
              noticed);
    entry = "cublasLtMatmul";
    which = 2;
    CHECK_EQ_INT(count_seen(&c, right, take_out_at_second), SEEDS);
    compiled_close(&c);
}

TEST_CASE(cuda_seeded, a_leaked_allocation) {
    static const char *const entries[] = {"cuMemFree_v2",
                                          "cuMemFreeHost",
                                          "cuModuleUnload",
                                          "cuStreamDestroy_v2",
                                          "cuGraphExecDestroy",
                                          "cuEventDestroy_v2",
                                          "cuDevicePrimaryCtxRelease_v2"};
    Compiled c = module();
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        double loss;
        gpu_reset(&c, 1);
        ampc_session *s = gpu_open(&c);
        REQUIRE(losses(&c, s, &loss, NULL));
        sim()->fail(entries[i], 1, SIM_LEFT_OUT, false);
        c.api->close(s);
        CHECK_MSG(*sim()->leaks(), "%s left out, no leak seen", entries[i]);
    }
    compiled_close(&c);
}

/* ---- a wrong leading dimension ------------------------------------------- */

/* A copy of the plan in which the first products by cuBLASLt have one column
   too many between rows of the operand whose stride is `field`. */
typedef struct Wrong {
    AmpcModule m;
    PlanCuda cuda;
    PlanTarget plan;
} Wrong;

static void wrong_stride(Wrong *w, const AmpcModule *m, size_t field,
                         int64_t by) {
    *w = (Wrong){*m, *m->cuda, *m->cuda->plan};
    int64_t *pars = malloc(w->plan.npar * sizeof *pars);
    memcpy(pars, w->plan.pars, w->plan.npar * sizeof *pars);
    const PlanRun *r = NULL;
    for (uint32_t i = 0; i < m->nprogram; i++)
        if (!strcmp(m->programs[i].name, "train")) r = &w->plan.runs[i];
    REQUIRE(r);
    for (uint32_t i = r->step0; i < r->step0 + r->nstep; i++)
        if (w->plan.steps[i].kind == PLAN_PRODUCT)
            pars[w->plan.steps[i].par0 + field / sizeof *pars] += by;
    w->plan.pars = pars;
    w->cuda.plan = &w->plan;
    w->m.cuda = &w->cuda;
}

TEST_CASE(cuda_seeded, a_wrong_leading_dimension) {
    static const size_t fields[] = {
        offsetof(LibGemm, a_rs), offsetof(LibGemm, b_rs),
        offsetof(LibGemm, a_cs), offsetof(LibGemm, b_cs)};
    Compiled c = module();
    double right = reference(&c);
    const AmpcModule *m = (const void *)c.api->module;
    for (int i = 0; i < 8; i++) {
        Wrong w;
        wrong_stride(&w, m, fields[i / 2], i % 2 ? -1 : 1);
        ampc_session *s = NULL;
        double loss = NAN;
        gpu_reset(&c, 1);
        bool ok = !try_open(&c, &w.m, &s) && losses(&c, s, &loss, NULL);
        c.api->close(s);
        CHECK_MSG(!ok || loss != right || *sim()->errors(),
                  "stride %d off by one and nothing noticed", i / 2);
        free((void *)w.plan.pars);
    }
    compiled_close(&c);
}
