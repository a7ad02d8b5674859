/* SPDX-License-Identifier: Apache-2.0 */
/* interpreted.c: see interpreted.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/interpreted.h"

#include <stdlib.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "passes/passes.h"

static void copy(EvalTensor *to, const EvalTensor *from) {
    size_t n = (size_t)type_count(type_get(to->type));
    REQUIRE(!to->f == !from->f);
    if (to->f) memcpy(to->f, from->f, n * sizeof *to->f);
    if (to->i) memcpy(to->i, from->i, n * sizeof *to->i);
}

static EvalTensor *initial(Arena *a, const Var *v) {
    const Tensor *t = var_initial(a, v);
    if (t) return eval_from_tensor(a, t);
    EvalTensor *x = eval_tensor_new(a, v->type);
    for (int64_t i = 0; i < type_count(type_get(v->type)); i++) {
        if (x->f) x->f[i] = v->fill;
        if (x->i) x->i[i] = (int64_t)v->fill;
    }
    return x;
}

static void start(Interpreted *x) {
    x->var = NEW_ARRAY(x->a, EvalTensor *, x->m->vars.len + 1);
    for (int i = 0; i < x->m->vars.len; i++)
        x->var[i] = initial(x->a, &x->m->vars.data[i]);
    if (module_graph(x->m, "refresh")) interpreted_run(x, "refresh", NULL, 0);
}

Interpreted interpreted_new(const char *path, EvalMode mode) {
    Interpreted x = {.a = arena_new(), .mode = mode};
    char *text = NULL;
    Diag d = {0};
    int rc = test_command(&text, "'%s' inspect '%s' --ir buckets", test_ampc(),
                          path);
    if (rc) FAIL("inspect --ir: %s", text);
    if (parse_module(x.a, &d, "buckets", text, strlen(text), &x.m) != OK)
        FAIL("%s", d.text.data);
    free(text);
    start(&x);
    return x;
}

static void set_options(Options *o, Arena *a, Diag *d, const char *options) {
    char *text = arena_dup(a, options, strlen(options) + 1), *save = NULL;
    options_init(o, a);
    for (char *w = strtok_r(text, " ", &save); w;) {
        char *next = strtok_r(NULL, " ", &save);
        bool took = false;
        if (options_set(o, d, w, next, &took) != OK) FAIL("%s", d->text.data);
        w = took ? strtok_r(NULL, " ", &save) : next;
    }
}

Interpreted interpreted_onnx(const char *path, const char *options,
                             EvalMode mode) {
    Interpreted x = {.a = arena_new(), .mode = mode};
    Diag d = {0};
    Options o;
    size_t size;
    char *file = test_read_file(path, &size);
    const uint8_t *bytes = (const uint8_t *)file;
    set_options(&o, x.a, &d, options);
    if (onnx_unfold(x.a, &d, path, &o, &bytes, &size) != OK ||
        import_onnx(x.a, &d, path, bytes, size, &o, &x.m) != OK ||
        run_common(x.m, &d, &o, false) != OK)
        FAIL("%s", d.text.data);
    sb_free(&d.text);
    start(&x);
    free(file);
    return x;
}

static EvalTensor *given(Arena *a, const ampc_input *in, TypeId type) {
    EvalTensor *t = eval_tensor_new(a, type);
    for (int64_t i = 0; i < type_count(type_get(type)); i++) {
        if (t->f) t->f[i] = (double)((const float *)in->data)[i];
        if (t->i) t->i[i] = ((const int64_t *)in->data)[i];
    }
    return t;
}

static void bind(Interpreted *x, Evaluator *e, ValueId v, const ampc_input *in,
                 int nin) {
    const Value *val = value_get(x->ran, v);
    if (val->kind == VK_VAR) eval_bind(e, v, x->var[val->var]);
    for (int i = 0; i < nin && val->kind == VK_INPUT; i++)
        if (strcmp(in[i].name, val->name) == 0)
            eval_bind(e, v, given(x->scratch, &in[i], val->type));
}

void interpreted_run(Interpreted *x, const char *program, const ampc_input *in,
                     int nin) {
    Graph *g = x->ran = module_graph(x->m, program);
    Diag d = {0};
    REQUIRE(g != NULL);
    if (x->scratch) arena_free(x->scratch);
    x->scratch = arena_new();
    Evaluator *e = eval_new(g, x->scratch, x->mode);
    for (uint32_t v = 1; v < (uint32_t)g->values.len; v++)
        bind(x, e, (ValueId){v}, in, nin);
    if (eval_run(e, &d) != OK) FAIL("%s: %s", program, d.text.data);
    for (int i = 0; i < g->writes.len; i++)
        copy(x->var[value_get(g, g->writes.data[i].var)->var],
             eval_get(e, g->writes.data[i].value));
    x->output = NEW_ARRAY(x->scratch, const EvalTensor *, g->outputs.len + 1);
    for (int i = 0; i < g->outputs.len; i++)
        x->output[i] = eval_get(e, g->outputs.data[i].value);
}

const EvalTensor *interpreted_result(const Interpreted *x, const char *name) {
    for (int i = 0; i < x->ran->outputs.len; i++)
        if (strcmp(x->ran->outputs.data[i].name, name) == 0)
            return x->output[i];
    FAIL("no output %s", name);
}

double interpreted_output(const Interpreted *x, const char *name) {
    const EvalTensor *t = interpreted_result(x, name);
    return t->f ? t->f[0] : (double)t->i[0];
}

const Var *interpreted_find(const Interpreted *x, const char *name) {
    int i = module_find_var(x->m, name);
    return i < 0 ? NULL : &x->m->vars.data[i];
}

const EvalTensor *interpreted_var(const Interpreted *x, const char *name) {
    int i = module_find_var(x->m, name);
    REQUIRE(i >= 0);
    return x->var[i];
}

void interpreted_free(Interpreted *x) {
    if (x->scratch) arena_free(x->scratch);
    arena_free(x->a);
}
