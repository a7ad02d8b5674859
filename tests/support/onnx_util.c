/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_util.c: see onnx_util.h. */
#include "tests/support/onnx_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* ---- expectation files --------------------------------------------------- */

static char *next_word(char **s) {
    char *w = *s + strspn(*s, " \n");
    size_t n = strcspn(w, " \n");
    *s = w + n + (w[n] != 0);
    w[n] = 0;
    return w;
}

static EvalTensor *read_tensor(Arena *a, char **s) {
    char *type = next_word(s);
    DType d;
    int64_t dim[MAX_RANK];
    if (!dtype_from_text(type, strlen(type), &d)) return NULL;
    int rank = atoi(next_word(s));
    for (int i = 0; i < rank && i < MAX_RANK; i++) dim[i] = atoll(next_word(s));
    EvalTensor *t = eval_tensor_new(a, type_make(d, rank, dim));
    int64_t n = type_count(type_get(t->type));
    for (int64_t i = 0; i < n; i++) {
        if (t->f)
            t->f[i] = strtod(next_word(s), NULL);
        else
            t->i[i] = atoll(next_word(s));
    }
    return t;
}

bool expected_read(Arena *a, const char *path, ExpectedList *out) {
    size_t n;
    char *text = test_read_file(path, &n), *s = text;
    if (!text) return false;
    while (s < text + n && *s) {
        Expected e = {.kind = intern(next_word(&s))};
        e.name = intern(next_word(&s));
        e.t = read_tensor(a, &s);
        if (!e.t) break;
        vec_push(a, &out->list, e);
    }
    bool whole = s >= text + n || !*s;
    free(text);
    return whole && out->list.len > 0;
}

const EvalTensor *expected_find(const ExpectedList *e, const char *kind,
                                const char *name) {
    for (int i = 0; i < e->list.len; i++) {
        const Expected *x = &e->list.data[i];
        if (!strcmp(x->kind, kind) && !strcmp(x->name, name)) return x->t;
    }
    return NULL;
}

/* ---- comparison ---------------------------------------------------------- */

static bool near(double got, double want, double rtol, double atol) {
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    if (isinf(got) || isinf(want)) return got == want;
    return fabs(got - want) <= atol + rtol * fabs(want);
}

static const char *type_text_of(Arena *a, TypeId t) {
    StrBuf sb = {0};
    sb_put_type(&sb, t);
    const char *r = arena_printf(a, "%s", sb.data);
    sb_free(&sb);
    return r;
}

const char *tensor_differs(Arena *a, const EvalTensor *got,
                           const EvalTensor *want, double rtol, double atol,
                           bool strict) {
    const Type *tg = type_get(got->type), *tw = type_get(want->type);
    int64_t n = type_count(tw);
    if (!shape_equal(tg, tw) || (strict && tg->dtype != tw->dtype) ||
        !got->f != !want->f)
        return arena_printf(a, "is %s, expected %s", type_text_of(a, got->type),
                            type_text_of(a, want->type));
    for (int64_t i = 0; i < n; i++) {
        if (got->f && !near(got->f[i], want->f[i], rtol, atol))
            return arena_printf(a, "element %lld is %.9g, expected %.9g",
                                (long long)i, got->f[i], want->f[i]);
        if (got->i && got->i[i] != want->i[i])
            return arena_printf(a, "element %lld is %lld, expected %lld",
                                (long long)i, (long long)got->i[i],
                                (long long)want->i[i]);
    }
    return NULL;
}

/* ---- models -------------------------------------------------------------- */

void options_inference(Options *o, Arena *a) {
    options_init(o, a);
    o->objectives.data[0].loss.kind = LOSS_NONE;
    o->batchnorm_train = false;
}

ValueId graph_input_named(const Graph *g, const char *name) {
    for (int i = 0; i < g->inputs.len; i++)
        if (!strcmp(value_get(g, g->inputs.data[i])->name, name))
            return g->inputs.data[i];
    return NO_VALUE;
}

uint8_t *model_pack(const Onnx__ModelProto *m, size_t *n) {
    *n = onnx__model_proto__get_packed_size(m);
    uint8_t *p = malloc(*n + 1);
    onnx__model_proto__pack(m, p);
    return p;
}

const Var *var_named(const Module *mod, const char *name) {
    int i = module_find_var(mod, name);
    return i < 0 ? NULL : &mod->vars.data[i];
}

int count_kind(const Module *m, VarKind kind) {
    int n = 0;
    for (int i = 0; i < m->vars.len; i++) n += m->vars.data[i].kind == kind;
    return n;
}
