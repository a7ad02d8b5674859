/* SPDX-License-Identifier: Apache-2.0 */
/* kept.c: results that only the end of a program reads. */
#include <string.h>

#include "codegen/emit.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "runtime/program/plan.h"
#include "tests/codegen/emit/emit.h"
#include "tests/harness.h"

/* %s is read after %z is computed, so that %z cannot lie there. */
static const char gelu[] =
    "graph forward(%x: bf16[24,40]) {\n"
    "  param %a: bf16[104,40] = normal(0, 0.1)\n"
    "  state %s: bf16[24,104] = 0\n"
    "  %z = matmul %x, %a {trans_b=1}\n  %u = gelu_tanh %z\n"
    "  %y = matmul %u, %a\n  %v = matmul %s, %a\n  %k = add %y, %v\n"
    "  return %k\n}\n";

/* Whether cuBLASLt computes GELU and stores no product. */
static bool leaves_product_out(bool writes) {
    Run r = {.a = arena_new()};
    EmitInput in = {.path = "m.so", .model_path = "m.amp"};
    PlanSource src = {0};
    Module *m;
    bool leaves = false;
    options_init(&r.opt, r.a);
    run_options(&r, "--loss=none --precision=bf16 --target=cuda:sm_90");
    if (parse_module(r.a, &r.d, "m.amp", gelu, strlen(gelu), &m) != OK ||
        run_pipeline(m, &r.d, &r.opt, STAGE_PLANNED, false) != OK)
        FAIL("%s", r.d.text.data);
    Graph *g = module_graph_on(m, "predict", TARGET_CUDA);
    REQUIRE(g != NULL);
    Write w = {.var = graph_find_value(g, "s"),
               .value = graph_find_value(g, "z")};
    if (writes) vec_push(r.a, &g->writes, w);
    REQUIRE(emit_plan(m, &r.opt, &r.d, &in, r.a, &src) == OK);
    for (int i = 0; i < src.steps.len; i++)
        if (src.steps.data[i].step.kind == PLAN_GELU)
            leaves |= !is_value(src.steps.data[i].both->refs[3]);
    sb_free(&src.text);
    sb_free(&src.index);
    run_end(&r);
    return leaves;
}

/* The write becomes a copy after the last step. */
TEST_CASE(emit, a_product_that_is_copied_at_the_end_is_stored) {
    CHECK(leaves_product_out(false));
    CHECK(!leaves_product_out(true));
}
