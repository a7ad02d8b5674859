/* SPDX-License-Identifier: Apache-2.0 */
/* functions_test.c: functions of std.amp, whose bodies are all that the
   interpreter, the expansion and the gradient know of them, compared with
   loops written here from the documentation of ONNX and PyTorch, on random
   shapes, values and attributes. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "ir/eval/evaluate.h"
#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/functions/functions.h"

/* ---- operands and calls -------------------------------------------------- */

static Operand operands[NAMES];

static int noperand;

static double got[3][MOST];

static uint64_t rng;

int64_t functions_draw(int64_t lo, int64_t hi) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return lo + (int64_t)(rng >> 33) % (hi - lo + 1);
}

double draw_real(double lo, double hi) {
    return lo + (hi - lo) * (double)functions_draw(0, 1 << 24) / (1 << 24);
}

void functions_begin(uint64_t seed) {
    rng = seed * 7919 + 1;
    for (int i = 0; i < 4; i++) functions_draw(0, 1);
    noperand = 0;
}

int64_t functions_count(const Operand *o) {
    int64_t n = 1;
    for (int i = 0; i < o->rank; i++) n *= o->dim[i];
    return n;
}

Operand *functions_operand(const char *dtype, double lo, double hi, int rank,
                           const int64_t *dim) {
    Operand *o = &operands[noperand++];
    REQUIRE(noperand <= NAMES);
    *o = (Operand){.dtype = dtype, .rank = rank};
    memcpy(o->dim, dim, (size_t)rank * sizeof *dim);
    REQUIRE(functions_count(o) <= MOST);
    for (int64_t i = 0; i < functions_count(o); i++)
        o->v[i] = *dtype == 'f'
                      ? draw_real(lo, hi)
                      : (double)functions_draw((int64_t)lo, (int64_t)hi);
    return o;
}

static char text[4000]; /* the text of the last call, for messages */

void functions_call(const char *name, int nout, const char *fmt, ...) {
    char attrs[600];
    StrBuf sb = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(attrs, sizeof attrs, fmt, ap);
    va_end(ap);
    sb_puts(&sb, "graph g(");
    for (int k = 0; k < noperand; k++) {
        sb_printf(&sb, "%s%%%c: %s[", k ? ", " : "", 'a' + k,
                  operands[k].dtype);
        for (int i = 0; i < operands[k].rank; i++)
            sb_printf(&sb, "%s%lld", i ? "," : "",
                      (long long)operands[k].dim[i]);
        sb_puts(&sb, "]");
    }
    sb_puts(&sb, ") {\n");
    for (int k = 0; k < nout; k++) sb_printf(&sb, "%s%%y%d", k ? ", " : "", k);
    sb_printf(&sb, " = %s ", name);
    for (int k = 0; k < noperand; k++)
        sb_printf(&sb, "%s%%%c", k ? ", " : "", 'a' + k);
    if (*attrs) sb_printf(&sb, " {%s}", attrs);
    sb_puts(&sb, "\nreturn ");
    for (int k = 0; k < nout; k++) sb_printf(&sb, "%s%%y%d", k ? ", " : "", k);
    sb_puts(&sb, "\n}\n");
    snprintf(text, sizeof text, "%s", sb.data);
    Arena *a = arena_new();
    Diag d = {0};
    Module *m = NULL;
    if (parse_module(a, &d, "f.amp", sb.data, sb.len, &m) != OK)
        FAIL("%s\n%s", text, d.text.data);
    Graph *g = m->graphs.data[0];
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    for (int k = 0; k < noperand; k++) {
        ValueId v = g->inputs.data[k];
        EvalTensor *t = eval_tensor_new(a, value_get(g, v)->type);
        for (int64_t i = 0; i < functions_count(&operands[k]); i++)
            if (t->f)
                t->f[i] = operands[k].v[i];
            else
                t->i[i] = (int64_t)operands[k].v[i];
        eval_bind(e, v, t);
    }
    if (eval_run(e, &d) != OK) FAIL("%s\n%s", text, d.text.data);
    for (int k = 0; k < nout; k++) {
        const EvalTensor *t = eval_get(e, g->outputs.data[k].value);
        int64_t n = type_count(type_get(t->type));
        REQUIRE(n <= MOST);
        for (int64_t i = 0; i < n; i++)
            got[k][i] = t->f ? t->f[i] : (double)t->i[i];
    }
    sb_free(&sb);
    arena_free(a);
}

void functions_expect(int k, const double *want, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        bool same = isnan(want[i]) ? isnan(got[k][i])
                                   : got[k][i] == want[i] ||
                                         fabs(got[k][i] - want[i]) <=
                                             1e-9 * fmax(1, fabs(want[i]));
        if (CHECK_MSG(same, "%sresult %d, element %lld: %.12g, wanted %.12g",
                      text, k, (long long)i, got[k][i], want[i]))
            continue;
        return;
    }
}
