/* SPDX-License-Identifier: Apache-2.0 */
/* opening.c: options of open, and modules that it refuses. */
#define _GNU_SOURCE
#include "runtime/cpu/isa.h"
#include "tests/support/tiny_session.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- opening ------------------------------------------------------------- */

TEST_CASE(runtime, open_refuses) {
    const ampc_api *a = tiny_api();
    ampc_session *s = (ampc_session *)&s;
    ampc_options o = {.size = sizeof o, .device = "cuda:1"};
    char err[80];
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK(s == NULL);
    CHECK_HAS(err, "CPU only");
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, 10), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(strlen(err), 9);
    CHECK_EQ_INT(a->open(a->module, &o, &s, NULL, 0), AMPC_ERR_UNSUPPORTED);
    o = (ampc_options){.size = sizeof o, .device = "tpu"};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = sizeof o, .threads = -1};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = sizeof o, .stream = &o};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    o = (ampc_options){.size = 0};
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->open(NULL, NULL, &s, err, sizeof err), AMPC_ERR_ARGUMENT);
    a->close(NULL);
}

static void *plain_alloc(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void plain_free(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    free(p);
}

/* A word that the user got wrong would leave the level as it is. */
TEST_CASE(runtime, open_refuses_an_unknown_level) {
    const ampc_api *a = tiny_api();
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    ampc_session *s = NULL;
    char err[200];
    setenv("AMPC_ISA", "v4_amx", 1);
    CHECK_EQ_INT(a->open(a->module, NULL, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "AMPC_ISA=v4_amx is unknown: v2, v3, v4, v4-amx, v4-dot or "
                   "v4-fma");
    CHECK(!s);
    setenv("AMPC_ISA", "", 1);
    CHECK_EQ_INT(a->open(a->module, NULL, &s, err, sizeof err), AMPC_OK);
    a->close(s);
    if (kept)
        setenv("AMPC_ISA", kept, 1);
    else
        unsetenv("AMPC_ISA");
    free(kept);
}

/* Illegal values of options, beside legal ones. */
TEST_CASE(runtime, options_have_bounds) {
    const ampc_api *a = tiny_api();
    const struct {
        ampc_options bad, good;
        const char *why;
    } rows[] = {
        {{.threads = -1}, {.threads = 0}, "threads: use 0 (all) to 1024"},
        {{.threads = 1025}, {.threads = 3}, "threads: use 0 (all) to 1024"},
        {{.max_skipped = -2},
         {.max_skipped = -1},
         "max_skipped: -1 (no limit)"},
        {{.alloc = plain_alloc},
         {.alloc = plain_alloc, .free = plain_free},
         "alloc and free: set both or neither"},
        {{.free = plain_free}, {.threads = 1}, "alloc and free: set both or"},
        {{.stream = &a}, {.stream = NULL}, "this module has no CUDA code"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_options bad = rows[i].bad, good = rows[i].good;
        ampc_session *s = NULL;
        char err[200];
        bad.size = good.size = sizeof bad;
        CHECK_EQ_INT(a->open(a->module, &bad, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, rows[i].why);
        CHECK(!s);
        CHECK_EQ_INT(a->open(a->module, &good, &s, err, sizeof err), AMPC_OK);
        CHECK_STR(err, "");
        a->close(s);
    }
    ampc_options o = {.size = sizeof o.size - 1};
    ampc_session *s;
    char err[200];
    CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "ampc_options.size is not set");
    CHECK_EQ_INT(a->open(a->module, NULL, NULL, err, sizeof err),
                 AMPC_ERR_ARGUMENT);
    CHECK_STR(err, "out is NULL");
}

TEST_CASE(runtime, devices_by_name) {
    const ampc_api *a = tiny_api();
    static const char *const unknown[] = {"tpu",     "cuda:",   "cuda:x",
                                          "cuda:-1", "cuda:1x", "cuda:99999",
                                          "cpu:0",   ""};
    static const char *const absent[] = {"cuda", "cuda:0", "cuda:7"};
    static const char *const fine[] = {NULL, "auto", "cpu"};
    ampc_session *s;
    char err[200];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        ampc_options o = {.size = sizeof o, .device = unknown[i]};
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                     AMPC_ERR_ARGUMENT);
        CHECK_HAS(err, "or 'cuda:N'");
    }
    for (size_t i = 0; i < 3; i++) {
        ampc_options o = {.size = sizeof o, .device = absent[i]};
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err),
                     AMPC_ERR_UNSUPPORTED);
        CHECK_HAS(err, "for the CPU only");
        o.device = fine[i];
        CHECK_EQ_INT(a->open(a->module, &o, &s, err, sizeof err), AMPC_OK);
        a->close(s);
    }
}

TEST_CASE(runtime, open_refuses_other_levels) {
    static const PlanIsa v9[] = {{9, NULL, NULL, NULL}};
    AmpcModule m = tiny_module;
    ampc_session *s;
    char err[200];
    m.isas = v9;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_UNSUPPORTED);
    CHECK_HAS(err, "compiled for an unknown level");
}

TEST_CASE(runtime, open_refuses_a_damaged_plan) {
    AmpcModule m = tiny_module;
    PlanTarget plan = *tiny_module.cpu;
    PlanRef refs[200];
    ampc_session *s;
    char err[200];
    m.cpu = &plan;
    plan.nref -= 20;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
    plan = *tiny_module.cpu;
    memcpy(refs, plan.refs, plan.nref * sizeof *refs);
    plan.refs = refs;
    refs[1].index = 1000;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
    CHECK_HAS(err, "'y'");
    refs[1].index = 0;
    refs[3].offset = 1 << 20;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_INTERNAL);
}

/* The operands of library steps must match the routine's row. */
TEST_CASE(runtime, open_refuses_a_damaged_library_step) {
    AmpcModule m = tiny_module;
    PlanStep steps[32];
    PlanRef refs[200];
    int64_t pars[16];
    ampc_session *s;
    char err[200];
    uint32_t at = 0;
    PlanTarget plan = *m.cpu;
    memcpy(steps, plan.steps, plan.nstep * sizeof *steps);
    memcpy(refs, plan.refs, plan.nref * sizeof *refs);
    memcpy(pars, plan.pars, plan.npar * sizeof *pars);
    plan.steps = steps;
    plan.refs = refs;
    plan.pars = pars;
    m.cpu = &plan;
    while (steps[at].kind != PLAN_LIB) at++;
    for (int damage = 0; damage < 6; damage++) {
        PlanStep step = steps[at];
        PlanRef ref = refs[step.ref0];
        int64_t *dtype = &pars[step.par0 + 1], good = *dtype;
        if (damage == 0) steps[at].fn = PLAN_NLIB;
        if (damage == 1) steps[at].nref--;
        if (damage == 2) refs[step.ref0].space = PLAN_NONE;
        if (damage == 3) *dtype = AMPC_NDTYPE;
        if (damage == 4) steps[at].when = (int32_t)plan.nref + 1;
        if (damage == 5) { /* the largest of all ranks, of f32 alone */
            steps[at].kind = PLAN_SUM_NOW;
            steps[at].nref = 1;
            steps[at].second = 1;
            *dtype = AMPC_BF16;
        }
        CHECK_EQ_INT(
            tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
            AMPC_ERR_INTERNAL);
        CHECK_HAS(err, "'copy'");
        steps[at] = step;
        refs[step.ref0] = ref;
        *dtype = good;
    }
}

/* A module that needs weights from a file without any: the test binary. */
TEST_CASE(runtime, open_refuses_a_module_without_its_tail) {
    AmpcModule m = tiny_module;
    PlanVar vars[32];
    ampc_session *s;
    char err[400];
    memcpy(vars, m.vars, m.nvar * sizeof *vars);
    vars[0].init = 0;
    m.vars = vars;
    CHECK_EQ_INT(tiny_api()->open(tiny_handle(&m), NULL, &s, err, sizeof err),
                 AMPC_ERR_FILE); /* a plan on the stack belongs to no file */
    CHECK(s == NULL);
}

/* A word of AMPC_ISA lowers the level to its own, and raises it never. */
TEST_CASE(runtime, a_level_that_is_not_there_is_not_taken) {
    char *old = getenv("AMPC_ISA"), *kept = old ? strdup(old) : NULL;
    unsetenv("AMPC_ISA");
    int most = cpu_isa_level();
    for (const CpuIsaWord *w = cpu_isa_words; w->name[0]; w++) {
        setenv("AMPC_ISA", w->name, 1);
        CHECK_MSG(cpu_isa_level() == (w->level < most ? w->level : most),
                  "AMPC_ISA=%s: level %d, of %d", w->name, cpu_isa_level(),
                  most);
    }
    unsetenv("AMPC_ISA");
    if (kept) setenv("AMPC_ISA", kept, 1);
    free(kept);
}
