/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_gelu_test.c: products that cuBLASLt computes with GELU, or with its
   slope (PLAN_GELU), train as the CPU does; older GPUs, and libraries without
   an algorithm, run the steps that they replace. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "runtime/program/lib.h"
#include "runtime/program/plan.h"
#include "tests/support/cuda_gpu.h"

/* Two layers of `n` units: with a bias, with three axes; and without. */
#define LAYERS(n, gelu, more)                                                  \
    "graph forward(%x: f32[B,3,40]) {\n"                                       \
    "  param %a: f32[" n ",40] = normal(0, 0.1)\n"                             \
    "  param %c: f32[" n "] = normal(0, 0.1)\n"                                \
    "  param %m: f32[" n ",72] = normal(0, 0.1)\n"                             \
    "  param %b: f32[72,40] = normal(0, 0.1)\n"                                \
    "  %g = matmul %x, %a {trans_b=1} : f32[B,3," n "]\n"                      \
    "  %h = add %g, %c : f32[B,3," n "]\n"                                     \
    "  %r = " gelu " %h : f32[B,3," n "]\n"                                    \
    "  %t = matmul %r, %m : f32[B,3,72]\n"                                     \
    "  %u = " gelu " %t : f32[B,3,72]\n"                                       \
    "  %y = matmul %u, %b : f32[B,3,40]\n"                                     \
    "  %s = mul %y, %y : f32[B,3,40]\n"                                        \
    "  %loss = reduce_mean %s {axes=[0,1,2], keepdims=0}\n" more               \
    "  return %loss\n}\n"

enum { STEPS = 4, OF = 2, SLOPES = 2 };

static const char usual[] = LAYERS("104", "gelu_tanh", "");

/* Steps of a program that are a PLAN_GELU. */
static int gelus_of(const Compiled *c, const char *program, PlanGelu fn) {
    const AmpcModule *m = (const void *)c->api->module;
    const PlanTarget *p = m->cuda->plan;
    int n = 0;
    for (uint32_t i = 0; i < m->nprogram; i++)
        for (uint32_t k = 0; k < p->runs[i].nstep; k++) {
            const PlanStep *t = &p->steps[p->runs[i].step0 + k];
            n += !strcmp(m->programs[i].name, program) &&
                 t->kind == PLAN_GELU && t->fn == fn;
        }
    return n;
}

static const ampc_input *feed_gelu(void *ctx, int step, size_t *nin) {
    sim()->seed((uint64_t)step + 1);
    return dc_random_feed(ctx, step, nin);
}

/* Returns the simulator's counts. */
static SimStats train(const Compiled *c, const char *precision, int cc,
                      const char *refused) {
    DcReport report;
    SimStats stats;
    const char *what = refused ? refused : "nothing refused";
    if (refused) setenv("AMPC_SIM_REFUSE", refused, 1);
    sim()->reset(&(SimConfig){.seed = 1, .cc = cc, .twins = c->cuda_dir});
    DcTraining t = {.steps = STEPS,
                    .forced = true,
                    .tolerance = dc_training_tolerance(precision),
                    .feed = feed_gelu,
                    .feed_ctx = dc_random_new(c->api, "train", 1, 1)};
    REQUIRE(t.feed_ctx != NULL);
    CHECK_MSG(dc_train(c->api, "cpu", "cuda", &t, &report), "%s, %d, %s: %s",
              precision, cc, what, report.text);
    sim()->stats(&stats);
    CHECK_MSG(dc_same_bits(c->api, "cuda", "AMPC_CUDA_GRAPH", "0", &t, &report),
              "%s, graph and eager: %s", what, report.text);
    gpu_clean(what);
    dc_random_free(t.feed_ctx);
    unsetenv("AMPC_SIM_REFUSE");
    return stats;
}

/* The kernel of a slope that sums its results is replaced by one that sums
   alone. */
TEST_CASE(cuda_gelu, trains_as_the_cpu) {
    static const char *const precisions[] = {"bf16", "fp16"};
    for (int i = 0; i < 2; i++) {
        char options[64];
        snprintf(options, sizeof options, "--dim B=24 --precision %s",
                 precisions[i]);
        Compiled c = compile_text_cuda(usual, options, "cuda:sm_80,cuda:sm_90");
        CHECK_EQ_INT(gelus_of(&c, "train", PLAN_GELU_OF), OF);
        CHECK_EQ_INT(gelus_of(&c, "train", PLAN_GELU_SLOPE), SLOPES);
        CHECK_EQ_INT(gelus_of(&c, "eval", PLAN_GELU_OF), OF);
        gpu_for(&c, 1);
        SimStats with = train(&c, precisions[i], 90, NULL);
        SimStats refused = train(&c, precisions[i], 90, "gelu");
        SimStats old = train(&c, precisions[i], 80, NULL);
        CHECK_EQ_INT(with.products, refused.products);
        CHECK_EQ_INT(with.launches + STEPS * (OF + SLOPES - 1),
                     refused.launches);
        CHECK_EQ_INT(refused.launches, old.launches);
        setenv("AMPC_CUDA_GELU", "0", 1);
        CHECK_EQ_INT(train(&c, precisions[i], 90, NULL).launches, old.launches);
        unsetenv("AMPC_CUDA_GELU");
        train(&c, precisions[i], 90, "products");
        compiled_close(&c);
    }
}

static void has(const char *text, const char *options, const char *gpu, int of,
                int slopes) {
    Compiled c = compile_text_cuda(text, options, gpu);
    CHECK_EQ_INT(gelus_of(&c, "train", PLAN_GELU_OF), of);
    CHECK_EQ_INT(gelus_of(&c, "train", PLAN_GELU_SLOPE), slopes);
    compiled_close(&c);
}

/* Products without such an epilogue, modules without such a GPU. */
TEST_CASE(cuda_gelu, other_products_stay_as_they_are) {
    has(LAYERS("104", "gelu", ""), "--dim B=24 --precision bf16", "cuda:sm_90",
        0, 0);
    has(LAYERS("100", "gelu_tanh", ""), "--dim B=24 --precision bf16",
        "cuda:sm_90", 1, 1);
    has(usual, "--dim B=24 --precision bf16", "cuda:sm_80", 0, 0);
    has(usual, "--dim B=24 --precision bf16", "cuda:ptx", OF, SLOPES);
    has(usual, "--dim B=24 --precision fp32", "cuda:sm_90", 0, 0);
}

/* The slope at %z, written out, times a product; its kernel stores %q, too. */
static const char stored[] =
    "graph forward(%x: f32[B,3,40], %w: f32[B,3,40]) {\n"
    "  param %a: f32[104,40] = normal(0, 0.1)\n"
    "  param %b: f32[40,104] = normal(0, 0.1)\n"
    "  %z = matmul %x, %a {trans_b=1}\n  %p = matmul %w, %b\n"
    "  %q = mul %z, %z\n"
    "  %t1 = mul %q, 0.044715\n  %t2 = add %t1, 1\n"
    "  %t3 = mul %z, %t2\n  %t4 = mul %t3, 1.5957691\n"
    "  %s = sigmoid %t4\n"
    "  %u1 = mul %q, 0.134145\n  %u2 = add %u1, 1\n"
    "  %u3 = mul %z, %u2\n  %u4 = mul %u3, 1.5957691\n"
    "  %v1 = sub 1, %s\n  %v2 = mul %s, %v1\n  %v3 = mul %u4, %v2\n"
    "  %v4 = add %s, %v3\n  %d = mul %p, %v4\n  %o = matmul %d, %a\n"
    "  return %o, %q\n}\n";

TEST_CASE(cuda_gelu, a_kernel_that_stores_more_stays) {
    Compiled c = compile_text_cuda(
        stored, "--dim B=24 --precision bf16 --loss none", "cuda:sm_90");
    CHECK_EQ_INT(gelus_of(&c, "predict", PLAN_GELU_SLOPE), 0);
    compiled_close(&c);
}

/* The bias trains, the weight before it does not: only the gradient's sum is
   stored. */
TEST_CASE(cuda_gelu, a_kernel_that_stores_less_stays) {
    has(usual, "--dim B=24 --precision bf16 --freeze a", "cuda:sm_90", OF, 1);
}

/* Steps that go with it or are replaced lie in its program; a slope needs its
   operand; matrices are single. */
TEST_CASE(cuda_gelu, a_damaged_plan_is_refused) {
    enum { DAMAGES = 8 };
    char text[400];
    Compiled c =
        compile_text_cuda(usual, "--dim B=24 --precision bf16", "cuda:sm_90");
    gpu_for(&c, 1);
    for (int damage = 0; damage <= DAMAGES; damage++) {
        AmpcModule m = *(const AmpcModule *)(const void *)c.api->module;
        PlanCuda cuda = *m.cuda;
        PlanTarget plan = *cuda.plan;
        size_t steps = plan.nstep * sizeof *plan.steps;
        size_t refs = plan.nref * sizeof *plan.refs;
        size_t pars = plan.npar * sizeof *plan.pars;
        PlanStep *step = memcpy(malloc(steps), plan.steps, steps), *t = step;
        PlanRef *ref = memcpy(malloc(refs), plan.refs, refs);
        int64_t *par = memcpy(malloc(pars), plan.pars, pars);
        while (t->kind != PLAN_GELU || t->fn != PLAN_GELU_SLOPE) t++;
        int64_t *end = par + t->par0 + t->npar;
        if (damage == 1) t->fn = PLAN_GELU_SLOPE + 1;
        if (damage == 2) t->nref--;
        if (damage == 3) end[-2] = -1;
        if (damage == 4) end[-2] = plan.nstep;
        if (damage == 5) end[-1] = 0;
        if (damage == 6) end[-1] = plan.nstep;
        if (damage == 7) ref[t->ref0 + 3].space = PLAN_NONE;
        if (damage == 8) ((LibGemm *)(void *)(par + t->par0))->nbatch_dim = 1;
        plan.steps = step, plan.refs = ref, plan.pars = par;
        cuda.plan = &plan;
        m.cuda = &cuda;
        ampc_session *s = NULL;
        ampc_options o = {.size = sizeof o, .device = "cuda"};
        ampc_status st =
            c.api->open((const void *)&m, &o, &s, text, sizeof text);
        CHECK_MSG((st == AMPC_ERR_INTERNAL) == (damage > 0), "damage %d: %d %s",
                  damage, (int)st, text);
        if (s) c.api->close(s);
        free(step);
        free(ref);
        free(par);
    }
    compiled_close(&c);
}

TEST_CASE(cuda_gelu, notes_say_where_it_is) {
    char *out;
    Compiled c =
        compile_text_cuda(usual, "--dim B=24 --precision bf16", "cuda:sm_90");
    REQUIRE(test_command(&out, "'%s' inspect '%s' --kernels", test_ampc(),
                         c.path) == 0);
    CHECK_HAS(out, "from compute capability 9.0 on cuBLASLt with GELU; else "
                   "cuBLASLt with bias");
    free(out);
    compiled_close(&c);
}

/* It pairs the kernels of `inspect --kernels` with the steps of `inspect
   --roofline`, and says where these differ. */
TEST_CASE(cuda_gelu, instructions_are_counted_of_kernels_that_have_a_step) {
    char *out;
    Compiled c =
        compile_text_cuda(usual, "--dim B=24 --precision bf16", "cuda:sm_90");
    int rc = test_command(
        &out,
        "PYTHONPATH='%s' python3 -B -c 'import sys, gpu_instructions as g; "
        "print(len(list(g.launches(*sys.argv[1:]))))' '%s' '%s'",
        test_data_path("models/bench"), test_ampc(), c.path);
    CHECK_MSG(rc == 0 && atoi(out) > 0, "status %d\n%s", rc, out);
    free(out);
    compiled_close(&c);
}
