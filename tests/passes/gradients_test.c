/* SPDX-License-Identifier: Apache-2.0 */
/* gradients_test.c: gradients as values in a graph. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

/* Wherever the gradient is in the function, and however deeply nested. */
TEST_CASE(grad, functions_ask_for_none) {
    static const char *const functions[] = {
        "def f(x) -> y class full {\n  y = grad(x, x)\n}\n",
        "def f(x) -> y class full {\n  z = x * x\n  g = grad(z, x)\n"
        "  y = g + x\n}\n",
        "def h(x) -> y class full {\n  y = grad(x, x)\n}\n"
        "def f(x) -> y class full {\n  y = h(x) + 1\n}\n",
        "def h(x) -> y class full {\n  y = x * x\n}\n"
        "def f(x) -> y class full {\n  y = h(x) + 1\n}\n"};
    enum { N = sizeof functions / sizeof *functions };
    for (int i = 0; i < N; i++) {
        char text[400];
        Arena *a = arena_new();
        Options o = options_of(a, no_flags);
        Diag d = {0};
        snprintf(text, sizeof text,
                 "%sgraph forward(%%x: f32[2]) {\n  %%y = f %%x\n"
                 "  %%z = grad %%y, %%x\n  return %%z\n}\n",
                 functions[i]);
        Status s = run_passes(parsed(a, text), &d, &o, "grad", false);
        CHECK_MSG((s == OK) == (i == N - 1), "%s: %s", text,
                  d.text.data ? d.text.data : "");
        if (s != OK) CHECK_HAS(d.text.data, "grad is used inside function");
        sb_free(&d.text);
        arena_free(a);
    }
}

/* y = x x z has the gradients 2 x z and x x, at any position of the results
   and in any graph. */
TEST_CASE(grad, results_may_be_gradients) {
    static const char *const orders[] = {"%y, %gx, %gz", "%gx, %y, %gz",
                                         "%gz, %gx, %y", "%gz", "%gx"};
    enum { N = 5, GRAPHS = 2 };
    StrBuf sb = {0};
    Arena *a = arena_new();
    for (int k = 0; k < N * GRAPHS; k++)
        sb_printf(
            &sb,
            "graph g%d(%%x: f32[3], %%z: f32[3]) {\n  %%s = mul %%x, %%x\n"
            "  %%y = mul %%s, %%z\n  %%gx, %%gz = grad %%y, %%x, %%z\n"
            "  return %s\n}\n",
            k, orders[k % N]);
    Module *m = parsed(a, sb.data);
    passed(a, m, "grad,inline,dce", no_flags);
    for (int k = 0; k < N * GRAPHS; k++) {
        const Graph *g = m->graphs.data[k];
        Evaluator *e = eval_new(g, a, EVAL_EXACT);
        Diag d = {0};
        double in[2][3];
        for (int i = 0; i < 2; i++) {
            EvalTensor *t =
                eval_tensor_new(a, value_get(g, g->inputs.data[i])->type);
            for (int j = 0; j < 3; j++) t->f[j] = in[i][j] = 0.5 + i + 3 * j;
            eval_bind(e, g->inputs.data[i], t);
        }
        if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
        const char *name = orders[k % N] + 1;
        for (int i = 0; i < g->outputs.len;
             i++, name += strcspn(name, "%") + 1) {
            const EvalTensor *t = eval_get(e, g->outputs.data[i].value);
            for (int j = 0; j < 3; j++) {
                double x = in[0][j], z = in[1][j];
                CHECK_NEAR(t->f[j],
                           *name == 'y'     ? x * x * z
                           : name[1] == 'x' ? 2 * x * z
                                            : x * x,
                           1e-12);
            }
        }
    }
    sb_free(&sb);
    arena_free(a);
}
