/* SPDX-License-Identifier: Apache-2.0 */
/* kinks_test.c: the table of gradients at kinks, ties and singular points,
   docs/coverage/subgradients.csv, cell by cell.

   Each file in tests/onnx/kinks is a sum of functions, each of an input named
   like its row; models/record/kinks.py wrote the files with PyTorch and JAX and
   recorded their gradients in the table. The last two columns say where ampc
   differs and why: there the gradient must be the one in that column. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/frontend.h"
#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"
#include "tests/tolerance.h"

enum { NAME, AT, AMP = 4, TORCH211, TORCH215, JAX, DIFFERS, WHY, NCOLUMNS };
enum { MOST_ROWS = 512, MOST_NUMBERS = 8 };

typedef struct Row {
    const char *cell[NCOLUMNS];
} Row;

typedef struct Table {
    Arena *a;
    Row row[MOST_ROWS];
    int n;
} Table;

typedef struct Numbers {
    double x[MOST_NUMBERS];
    int n;
} Numbers;

/* ---- the table ----------------------------------------------------------- */

/* Terminates the cell at *s, without its quotes, and moves *s after it. */
static char *next_cell(char **s) {
    char *from = *s, *cell = from, *to = from;
    bool quoted = *from == '"';
    for (from += quoted; *from; from++) {
        bool quote = quoted && *from == '"';
        if (quote && from[1] != '"') quoted = false;
        if (quote && from[1] != '"') continue;
        if (!quoted && (*from == ',' || *from == '\n')) break;
        from += quote;
        *to++ = *from;
    }
    *s = from + (*from != 0);
    *to = 0;
    return cell;
}

static void read_table(Table *t) {
    const char *path = test_data_path("docs/coverage/subgradients.csv");
    char *text = test_read_file(path, NULL);
    REQUIRE(text != NULL);
    *t = (Table){.a = arena_new()};
    char *s = arena_dup(t->a, text, strlen(text) + 1);
    free(text);
    while (*s && t->n < MOST_ROWS) {
        for (int k = 0; k < NCOLUMNS; k++) t->row[t->n].cell[k] = next_cell(&s);
        t->n++;
    }
    REQUIRE(t->n > 100 && !*s);
    CHECK_STR(t->row[0].cell[DIFFERS], "ampc differs");
}

static const Row *row_named(const Table *t, const char *name) {
    for (int i = 1; i < t->n; i++)
        if (!strcmp(t->row[i].cell[NAME], name)) return &t->row[i];
    FAIL("the table has no row %s", name);
}

static Numbers numbers(const char *s) {
    Numbers r = {.n = 0};
    char *end;
    for (; r.n < MOST_NUMBERS; s = end) {
        double x = strtod(s, &end);
        if (end == s) break;
        r.x[r.n++] = x;
    }
    return r;
}

/* The expected numbers for this file: "FILE: NUMBERS" of the last column,
   else the framework's. */
static Numbers wanted(const Row *r, const char *file, int column) {
    const char *s = r->cell[DIFFERS];
    size_t n = strlen(file);
    while (s && *s) {
        if (!strncmp(s, file, n) && s[n] == ':') return numbers(s + n + 1);
        s = strchr(s, ';');
        if (s) s += strspn(s, "; ");
    }
    return numbers(r->cell[column]);
}

/* ---- gradients ----------------------------------------------------------- */

typedef struct Gradients {
    Graph *g;
    ValueId in[MOST_ROWS], grad[MOST_ROWS];
    Evaluator *e;
} Gradients;

static ValueId sum_of(Graph *g, ValueId y) {
    Builder b = {.g = g};
    int64_t axes[MAX_RANK];
    for (int i = 0; i < MAX_RANK; i++) axes[i] = i;
    int rank = value_type(g, y)->rank;
    if (!rank) return y;
    return b_reduce(&b, OP_REDUCE_SUM, y, axes, rank, false, DT_F32);
}

/* An input is named at.ROW, so that no node's result has that name. */
static const char *row_of(const Gradients *x, int i) {
    return value_get(x->g, x->in[i])->name + strlen("at.");
}

/* Differentiates the sum of the output, at each input's point in the table. The
   compiler simplifies before it differentiates. */
static void differentiate(Table *t, Module *m, const Options *o,
                          const char *only, Gradients *x) {
    Diag d = {0};
    PassCtx cx = {t->a, &d, o};
    if (pass_simplify(m, &cx) != OK) FAIL("%s", d.text.data);
    Graph *g = x->g = module_graph(m, "forward");
    int n = g->inputs.len;
    REQUIRE(g->outputs.len == 1 && n <= MOST_ROWS);
    for (int i = 0; i < n; i++) x->in[i] = g->inputs.data[i];
    ValueId loss = sum_of(g, g->outputs.data[0].value);
    if (autodiff(g, &d, t->a, NODE_BACKWARD, loss, NO_VALUE, x->in, n,
                 x->grad) != OK)
        FAIL("%s", d.text.data);
    x->e = eval_new(g, t->a, EVAL_STORAGE);
    for (int i = 0; i < n; i++) {
        const Value *v = value_get(g, x->in[i]);
        EvalTensor *point = eval_tensor_new(t->a, v->type);
        Numbers at =
            numbers(row_named(t, only ? only : row_of(x, i))->cell[AT]);
        REQUIRE(at.n == type_count(type_get(v->type)));
        for (int k = 0; k < at.n; k++) point->f[k] = (double)(float)at.x[k];
        eval_bind(x->e, x->in[i], point);
    }
    if (eval_run(x->e, &d) != OK) FAIL("%s", d.text.data);
}

static bool same(double got, double want) {
    if (isnan(want)) return isnan(got);
    if (isinf(want)) return got == want;
    return fabs(got - want) <= TOL_KINK * (1 + fabs(want));
}

static void compare(const Gradients *x, int i, const char *name,
                    const char *file, Numbers want) {
    const EvalTensor *got =
        is_value(x->grad[i]) ? eval_get(x->e, x->grad[i]) : NULL;
    REQUIRE(want.n == type_count(type_get(value_get(x->g, x->in[i])->type)));
    for (int k = 0; k < want.n; k++) {
        double v = got ? got->f[k] : 0;
        CHECK_MSG(same(v, want.x[k]), "%s, %s: element %d is %.9g, not %.9g",
                  file, name, k, v, want.x[k]);
    }
}

/* ---- files --------------------------------------------------------------- */

static void walk_file(const char *file, int column, int least) {
    static Table t;
    read_table(&t);
    Options o;
    Diag d = {0};
    Module *m = NULL;
    size_t n;
    Gradients *x = NEW(t.a, Gradients);
    const char *path =
        test_data_path(arena_printf(t.a, "tests/onnx/kinks/%s.onnx", file));
    char *bytes = test_read_file(path, &n);
    REQUIRE(bytes != NULL);
    options_inference(&o, t.a);
    if (import_onnx(t.a, &d, path, (const uint8_t *)bytes, n, &o, &m) != OK)
        FAIL("%s", d.text.data);
    sb_free(&d.text); /* warnings */
    free(bytes);
    differentiate(&t, m, &o, NULL, x);
    CHECK(x->g->inputs.len >= least);
    for (int i = 0; i < x->g->inputs.len; i++) {
        const char *name = row_of(x, i);
        compare(x, i, name, file, wanted(row_named(&t, name), file, column));
    }
    arena_free(t.a);
}

TEST_CASE(kinks, files_of_pytorch_2_11) {
    walk_file("torch211", TORCH211, 275);
}
TEST_CASE(kinks, files_of_torchscript) {
    walk_file("torch211-torchscript", TORCH211, 237);
}
TEST_CASE(kinks, files_of_pytorch_2_15) {
    walk_file("torch215", TORCH215, 276);
}
/* Functions that torch.onnx.export refuses: with the rows above each gradient
   of PyTorch in the table is tested. */
TEST_CASE(kinks, files_of_our_own_export) {
    walk_file("torch211-own", TORCH211, 7);
    walk_file("torch215-own", TORCH215, 6);
}
TEST_CASE(kinks, files_of_jax) { walk_file("jax", JAX, 97); }

/* As PyTorch 2.15. */
static void walk_text(Table *t, const Row *r) {
    Options o;
    Diag d = {0};
    Module *m = NULL;
    Gradients *x = NEW(t->a, Gradients);
    const char *text =
        arena_printf(t->a, "model m(x: f32[%d]) {\n  return y = %s\n}\n",
                     numbers(r->cell[AT]).n, r->cell[AMP]);
    options_inference(&o, t->a);
    if (import_amp(t->a, &d, "m.amp", text, strlen(text), &o, false, &m) != OK)
        FAIL("%s: %s", r->cell[NAME], d.text.data);
    differentiate(t, m, &o, r->cell[NAME], x);
    compare(x, 0, r->cell[NAME], "amp", wanted(r, "amp", TORCH215));
}

TEST_CASE(kinks, texts) {
    static Table t;
    int n = 0;
    read_table(&t);
    for (int i = 1; i < t.n; i++)
        if (strcmp(t.row[i].cell[AMP], "-")) walk_text(&t, &t.row[i]), n++;
    CHECK(n > 60);
    arena_free(t.a);
}
