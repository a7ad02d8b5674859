/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_case.c: see onnx_case.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/onnx_case.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* ---- files --------------------------------------------------------------- */

static Onnx__TensorProto *read_proto(OnnxCase *c, const char *kind, int i,
                                     bool *exists) {
    size_t n;
    char *bytes = test_read_file(
        arena_printf(c->a, "%s/test_data_set_0/%s_%d.pb", c->dir, kind, i), &n);
    *exists = bytes != NULL;
    if (!bytes) return NULL;
    Onnx__TensorProto *t =
        onnx__tensor_proto__unpack(NULL, n, (const uint8_t *)bytes);
    free(bytes);
    return t;
}

static bool read_protos(OnnxCase *c) {
    bool exists;
    for (int i = 0;; i++) {
        Onnx__TensorProto *t = read_proto(c, "input", i, &exists);
        if (!exists) break;
        if (!t) return false;
        vec_push(c->a, &c->in, t);
    }
    for (int i = 0;; i++) {
        Onnx__TensorProto *t = read_proto(c, "output", i, &exists);
        if (!exists) break;
        if (!t) return false;
        vec_push(c->a, &c->out, t);
    }
    return c->out.len > 0;
}

static bool read_model(OnnxCase *c) {
    size_t n;
    char *bytes =
        test_read_file(arena_printf(c->a, "%s/model.onnx", c->dir), &n);
    if (!bytes) return false;
    c->model = onnx__model_proto__unpack(NULL, n, (const uint8_t *)bytes);
    free(bytes);
    return c->model && c->model->graph;
}

static bool read_case(OnnxCase *c) { return read_model(c) && read_protos(c); }

void onnx_case_free(OnnxCase *c) {
    for (int i = 0; i < c->in.len; i++)
        onnx__tensor_proto__free_unpacked(c->in.data[i], NULL);
    for (int i = 0; i < c->out.len; i++)
        onnx__tensor_proto__free_unpacked(c->out.data[i], NULL);
    if (c->model) onnx__model_proto__free_unpacked(c->model, NULL);
    sb_free(&c->d.text);
    arena_free(c->a);
}

static EvalTensor *tensor_of(OnnxCase *c, const Onnx__TensorProto *t) {
    Ox ox = {.a = c->a, .d = &c->d, .file = intern("data"), .dir = intern(".")};
    const Tensor *r;
    if (ox_tensor(&ox, t, "data", &r) != OK) return NULL;
    return eval_from_tensor(c->a, r);
}

/* Version 1.12 of the data stores bfloat16 as UINT16. */
static void fix_bf16(Onnx__TensorProto *t, const Onnx__ValueInfoProto *v) {
    if (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__UINT16 && v->type &&
        v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
        v->type->tensor_type->elem_type ==
            ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16)
        t->data_type = ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16;
}

static void fix_dtypes(OnnxCase *c) {
    const Onnx__GraphProto *g = c->model->graph;
    for (int i = 0; i < c->in.len && i < (int)g->n_input; i++)
        fix_bf16(c->in.data[i], g->input[i]);
    for (int i = 0; i < c->out.len && i < (int)g->n_output; i++)
        fix_bf16(c->out.data[i], g->output[i]);
}

/* ---- editing the model --------------------------------------------------- */

/* Symbolic dimensions take the sizes of the data. */
static void fix_dims(Onnx__ValueInfoProto *v, const Onnx__TensorProto *t) {
    if (!v->type ||
        v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
        !v->type->tensor_type->shape ||
        v->type->tensor_type->shape->n_dim != t->n_dims)
        return;
    for (size_t i = 0; i < t->n_dims; i++) {
        Onnx__TensorShapeProto__Dimension *d =
            v->type->tensor_type->shape->dim[i];
        if (d->value_case ==
            ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
            free(d->dim_param);
        d->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        d->dim_value = t->dims[i];
    }
}

static bool one_element(const Onnx__TensorProto *t) {
    for (size_t i = 0; i < t->n_dims; i++)
        if (t->dims[i] > 1) return false;
    return true;
}

typedef enum Known {
    KNOWN_NONE,
    KNOWN_SMALL,
    KNOWN_BUT_FIRST,
    KNOWN_ALL
} Known;

static bool is_known(const Onnx__TensorProto *t, int i, Known known) {
    DType d;
    bool is_float = dtype_from_onnx(t->data_type, &d) && dtype_is_float(d);
    if (known == KNOWN_SMALL) return !is_float || one_element(t);
    return known == KNOWN_ALL || (known == KNOWN_BUT_FIRST && i > 0);
}

/* The packed model; it contains known inputs as initializers. */
static uint8_t *packed(OnnxCase *c, Known known, size_t *n) {
    Onnx__GraphProto *g = c->model->graph;
    size_t had = g->n_initializer;
    Onnx__TensorProto **old = g->initializer;
    g->initializer = NEW_ARRAY(c->a, Onnx__TensorProto *, had + 64);
    for (size_t i = 0; i < had; i++) g->initializer[i] = old[i];
    for (int i = 0; i < c->in.len && i < (int)g->n_input && i < 64; i++) {
        Onnx__TensorProto *t = c->in.data[i];
        fix_dims(g->input[i], t);
        if (!is_known(t, i, known)) continue;
        free(t->name);
        t->name = strdup(g->input[i]->name);
        g->initializer[g->n_initializer++] = t;
    }
    uint8_t *p = model_pack(c->model, n);
    g->initializer = old;
    g->n_initializer = had;
    return p;
}

/* ---- running ------------------------------------------------------------- */

static const char *why_failed(OnnxCase *c) {
    return arena_printf(c->a, "%.300s",
                        c->d.text.len ? c->d.text.data : "no message");
}

static const Onnx__TensorProto *data_of(const OnnxCase *c, Str name) {
    const Onnx__GraphProto *g = c->model->graph;
    for (int i = 0; i < c->in.len && i < (int)g->n_input; i++)
        if (!strcmp(g->input[i]->name, name)) return c->in.data[i];
    return NULL;
}

const EvalTensor *onnx_case_input(OnnxCase *c, Str name) {
    const Onnx__TensorProto *t = data_of(c, name);
    return t ? tensor_of(c, t) : NULL;
}

static const char *bind_inputs(OnnxCase *c, const Graph *g, Evaluator *e) {
    for (int i = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        const EvalTensor *t = onnx_case_input(c, v->name);
        if (!t) return why_failed(c);
        if (!shape_equal(type_get(t->type), type_get(v->type)))
            return "an input's data has another shape";
        eval_bind(e, g->inputs.data[i], t);
    }
    return NULL;
}

/* Compares like newer reference runners: the stored bfloat16 was truncated.
   binary16: two units in the last place, since sums were rounded elsewhere. */
static double rtol_of(const EvalTensor *want) {
    DType d = type_get(want->type)->dtype;
    return d == DT_BF16 ? 0x1p-6 : d == DT_F16 ? 0x1p-9 : 1e-3;
}

/* The elements of x from the first of each axis, as many as type t has. */
static const EvalTensor *beginning(Arena *a, const EvalTensor *x,
                                   const Type *t) {
    const Type *from = type_get(x->type);
    EvalTensor *y = eval_tensor_new(a, type_make(from->dtype, t->rank, t->dim));
    for (int64_t i = 0; i < type_count(t); i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int k = t->rank - 1; k >= 0; k--) {
            at += rest % t->dim[k] * stride;
            rest /= t->dim[k];
            stride *= from->dim[k];
        }
        if (y->f)
            y->f[i] = x->f[at];
        else
            y->i[i] = x->i[at];
    }
    return y;
}

int onnx_case_rows(const OnnxCase *c, const Graph *g, int i) {
    Str rows = internf("%s.rows", g->outputs.data[i].name);
    for (int k = c->out.len; k < g->outputs.len; k++)
        if (g->outputs.data[k].name == rows) return k;
    return -1;
}

const EvalTensor *onnx_case_counted(OnnxCase *c, int i, const EvalTensor *got,
                                    int64_t n) {
    const EvalTensor *want = tensor_of(c, c->out.data[i]);
    if (!want) return got;
    const Type *t = type_get(want->type), *all = type_get(got->type);
    if (t->rank != all->rank) return got;
    for (int k = 0; k < t->rank; k++)
        if (t->dim[k] != all->dim[k] &&
            (t->dim[k] > all->dim[k] || t->dim[k] != n))
            return got;
    return beginning(c->a, got, t);
}

const char *onnx_case_differs(OnnxCase *c, int i, const EvalTensor *got) {
    const EvalTensor *want = tensor_of(c, c->out.data[i]);
    if (!want) return why_failed(c);
    const char *diff =
        tensor_differs(c->a, got, want, rtol_of(want), 1e-7, true);
    return diff ? arena_printf(c->a, "output %d: %s", i, diff) : NULL;
}

static const char *evaluate(OnnxCase *c, const Module *m) {
    const Graph *g = module_graph(m, "forward");
    Arena *tmp = arena_new();
    Evaluator *e = eval_new(g, tmp, EVAL_STORAGE);
    const char *bad = bind_inputs(c, g, e);
    if (verify_module(m, STAGE_TYPED, &c->d) != OK) bad = why_failed(c);
    if (!bad && eval_run(e, &c->d) != OK) bad = why_failed(c);
    if (c->out.len > g->outputs.len) bad = "outputs are missing";
    for (int i = 0; i < c->out.len && !bad; i++) {
        const EvalTensor *y = eval_get(e, g->outputs.data[i].value);
        int rows = onnx_case_rows(c, g, i);
        if (rows >= 0)
            y = onnx_case_counted(
                c, i, y, eval_get(e, g->outputs.data[rows].value)->i[0]);
        bad = onnx_case_differs(c, i, y);
    }
    arena_free(tmp);
    c->g = bad ? NULL : g;
    return bad;
}

static const char *import_and_run(OnnxCase *c, Known known) {
    size_t n;
    Options o;
    Module *m = NULL;
    uint8_t *bytes = packed(c, known, &n);
    sb_free(&c->d.text);
    c->d = (Diag){0};
    options_inference(&o, c->a);
    Status s = import_onnx(c->a, &c->d, "model.onnx", bytes, n, &o, &m);
    free(bytes);
    return s == OK ? evaluate(c, m) : why_failed(c);
}

/* The shape of its result depends on the values of its first operand. */
static bool counts(const OnnxCase *c) {
    const char *op =
        c->model->graph->n_node ? c->model->graph->node[0]->op_type : "";
    return !strcmp(op, "NonZero") || !strcmp(op, "Unique");
}

const char *onnx_case_run(OnnxCase *c) {
    if (!read_case(c)) return "cannot be read: values that are no tensors?";
    fix_dtypes(c);
    const char *first = import_and_run(c, KNOWN_NONE);
    bool wrong = first && import_and_run(c, KNOWN_SMALL) &&
                 import_and_run(c, KNOWN_BUT_FIRST);
    if (wrong && counts(c)) wrong = import_and_run(c, KNOWN_ALL);
    return wrong ? first : NULL;
}

/* ---- the suites ---------------------------------------------------------- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *const *onnx_case_names(Arena *a, const char *root, const char *kind,
                                   int *n) {
    VEC(const char *) names = {0};
    DIR *d = opendir(arena_printf(a, "%s/%s", root, kind));
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            vec_push(a, &names, arena_printf(a, "%s/%s", kind, e->d_name));
    if (d) closedir(d);
    *n = names.len;
    if (*n) qsort(names.data, (size_t)*n, sizeof *names.data, by_text);
    return names.data;
}

typedef struct SkipRule {
    char glob[96], reason[128];
} SkipRule;

static const SkipRule *skip_rules(int *n) {
    static SkipRule *rules;
    static int count;
    if (!rules) {
        char *text =
            test_read_file(test_data_path("tests/onnx/conformance.skip"), NULL);
        rules = calloc(512, sizeof *rules);
        for (char *s = text; s && *s && count < 512;) {
            size_t len = strcspn(s, "\n");
            SkipRule *r = &rules[count];
            if (*s != '#' &&
                sscanf(s, "%95s %127[^\n]", r->glob, r->reason) == 2)
                count++;
            s += len + (s[len] == '\n');
        }
        free(text);
    }
    *n = count;
    return rules;
}

const char *onnx_case_out_of_scope(const char *set, const char *name) {
    int n;
    const SkipRule *r = skip_rules(&n);
    const char *whole = internf("%s/%s", set, name);
    for (int i = 0; i < n; i++)
        if (glob_match(r[i].glob, name) || glob_match(r[i].glob, whole))
            return r[i].reason;
    return NULL;
}

const char *onnx_case_unknown_op(const OnnxCase *c) {
    static const char *const rows[] = {
#define ONNX(name, ...)    #name,
#define ONNX_FN(name, ...) #name,
#include "frontend/onnx/onnx_ampc.def"
#include "frontend/onnx/onnx_contrib.def"
#include "frontend/onnx/onnx_ml.def"
#include "frontend/onnx/onnx_ops.def"
#undef ONNX
#undef ONNX_FN
    };
    const int nrow = sizeof rows / sizeof *rows;
    for (size_t i = 0; c->model && i < c->model->graph->n_node; i++) {
        const char *op = c->model->graph->node[i]->op_type;
        int row = 0;
        while (row < nrow && strcmp(rows[row], op)) row++;
        if (row == nrow) return op;
    }
    return NULL;
}

bool onnx_case_counts(const char *set, const char *name, const char *dir) {
    if (onnx_case_out_of_scope(set, name)) return false;
    OnnxCase c = {.a = arena_new(), .dir = dir};
    bool known = !read_model(&c) || !onnx_case_unknown_op(&c);
    onnx_case_free(&c);
    return known;
}
