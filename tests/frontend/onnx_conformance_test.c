/* onnx_conformance_test.c: the ONNX backend tests that Debian ships
   (libonnx-testdata): each model is imported, evaluated by the interpreter and
   compared with the stored outputs at the tolerance of the reference runner,
   integers exactly, NaN equal to NaN only.

   Data inputs stay graph inputs; where the op wants them at compile time (a
   shape, axes, k) a second import makes the integers and scalars among them
   constants, a third (scales, regions) all but the first.
   tests/onnx/conformance.skip lists what is out of scope, with the reason; a
   listed model that passes fails its test.                    */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

#define ROOT "/usr/share/libonnx-testdata/data"

typedef struct Case {
    Arena *a;
    Diag d;
    const char *dir;
    Onnx__ModelProto *model;
    VEC(Onnx__TensorProto *) in, out;
} Case;

/* ---- files --------------------------------------------------------------- */

static Onnx__TensorProto *read_proto(Case *c, const char *kind, int i,
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

static bool read_protos(Case *c) {
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

static bool read_case(Case *c) {
    size_t n;
    char *bytes =
        test_read_file(arena_printf(c->a, "%s/model.onnx", c->dir), &n);
    if (!bytes) return false;
    c->model = onnx__model_proto__unpack(NULL, n, (const uint8_t *)bytes);
    free(bytes);
    return c->model && c->model->graph && read_protos(c);
}

static void free_case(Case *c) {
    for (int i = 0; i < c->in.len; i++)
        onnx__tensor_proto__free_unpacked(c->in.data[i], NULL);
    for (int i = 0; i < c->out.len; i++)
        onnx__tensor_proto__free_unpacked(c->out.data[i], NULL);
    if (c->model) onnx__model_proto__free_unpacked(c->model, NULL);
    sb_free(&c->d.text);
    arena_free(c->a);
}

static EvalTensor *tensor_of(Case *c, const Onnx__TensorProto *t) {
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

static void fix_dtypes(Case *c) {
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

typedef enum Known { KNOWN_NONE, KNOWN_SMALL, KNOWN_BUT_FIRST } Known;

static bool is_known(const Onnx__TensorProto *t, int i, Known known) {
    DType d;
    bool is_float = dtype_from_onnx(t->data_type, &d) && dtype_is_float(d);
    if (known == KNOWN_SMALL) return !is_float || one_element(t);
    return known == KNOWN_BUT_FIRST && i > 0;
}

/* The packed model; inputs that are known stand in it as initializers. */
static uint8_t *packed(Case *c, Known known, size_t *n) {
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

static const char *why_failed(Case *c) {
    return arena_printf(c->a, "%.300s",
                        c->d.text.len ? c->d.text.data : "no message");
}

static const char *bind_inputs(Case *c, const Graph *g, Evaluator *e) {
    for (int i = 0; i < c->in.len; i++) {
        if (i >= (int)c->model->graph->n_input) return "too many inputs";
        ValueId v = graph_input_named(g, c->model->graph->input[i]->name);
        if (!is_value(v)) continue;
        EvalTensor *t = tensor_of(c, c->in.data[i]);
        if (!t) return why_failed(c);
        if (!shape_equal(type_get(t->type), value_type(g, v)))
            return "an input's data has another shape";
        eval_bind(e, v, t);
    }
    return NULL;
}

/* As newer reference runners have it: the stored bfloat16 was truncated. */
static double rtol_of(const EvalTensor *want) {
    return type_get(want->type)->dtype == DT_BF16 ? 0x1p-6 : 1e-3;
}

static const char *evaluate(Case *c, const Module *m) {
    const Graph *g = module_graph(m, "forward");
    Evaluator *e = eval_new(g, c->a, EVAL_STORAGE);
    if (verify_module(m, STAGE_TYPED, &c->d) != OK) return why_failed(c);
    const char *bad = bind_inputs(c, g, e);
    if (bad) return bad;
    if (eval_run(e, &c->d) != OK) return why_failed(c);
    for (int i = 0; i < c->out.len && i < g->outputs.len; i++) {
        EvalTensor *want = tensor_of(c, c->out.data[i]);
        if (!want) return why_failed(c);
        const char *diff =
            tensor_differs(c->a, eval_get(e, g->outputs.data[i].value), want,
                           rtol_of(want), 1e-7, true);
        if (diff) return arena_printf(c->a, "output %d: %s", i, diff);
    }
    return c->out.len > g->outputs.len ? "outputs are missing" : NULL;
}

static const char *import_and_run(Case *c, Known known) {
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

/* NULL, or what is wrong. */
static const char *run_model(Case *c) {
    if (!read_case(c)) return "cannot be read: values that are no tensors?";
    fix_dtypes(c);
    const char *first = import_and_run(c, KNOWN_NONE);
    bool wrong = first && import_and_run(c, KNOWN_SMALL) &&
                 import_and_run(c, KNOWN_BUT_FIRST);
    return wrong ? first : NULL;
}

/* ---- skip list ----------------------------------------------------------- */

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

static const SkipRule *skip_of(const char *name) {
    int n;
    const SkipRule *r = skip_rules(&n);
    for (int i = 0; i < n; i++)
        if (glob_match(r[i].glob, name)) return &r[i];
    return NULL;
}

/* The first op of the model that is not imported at all, or NULL. */
static const char *op_without_row(const Case *c) {
    static const char *const rows[] = {
#define ONNX(name, ...)    #name,
#define ONNX_FN(name, ...) #name,
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

static void run(void *arg) {
    const char *name = arg;
    const SkipRule *skip = skip_of(name);
    Case c = {.a = arena_new()};
    c.dir = arena_printf(c.a, "%s/%s", ROOT, name);
    const char *wrong = run_model(&c);
    const char *op = skip ? NULL : op_without_row(&c);
    char text[400] = "";
    if (wrong) snprintf(text, sizeof text, "%s", op ? op : wrong);
    free_case(&c);
    if (skip && !wrong)
        FAIL("%s passes: take it out of tests/onnx/conformance.skip", name);
    if (skip) SKIP("%s", skip->reason);
    if (op && wrong) SKIP("%s has no row in onnx_ops.def", text);
    if (wrong) FAIL("%s: %s", name, text);
}

/* ---- registration -------------------------------------------------------- */

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names live as long as the process. */
static char **all_names;
static int name_count;

static void register_kind(const char *kind) {
    char path[256];
    int first = name_count;
    snprintf(path, sizeof path, "%s/%s", ROOT, kind);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        all_names =
            realloc(all_names, (size_t)(name_count + 1) * sizeof *all_names);
        all_names[name_count] = malloc(strlen(kind) + strlen(e->d_name) + 2);
        sprintf(all_names[name_count++], "%s/%s", kind, e->d_name);
    }
    if (d) closedir(d);
    if (name_count > first)
        qsort(all_names + first, (size_t)(name_count - first),
              sizeof *all_names, by_text);
    for (int i = first; i < name_count; i++)
        harness_register("onnx_conformance", all_names[i], run, all_names[i]);
}

static void register_all(void) {
    register_kind("node");
    register_kind("simple");
    register_kind("pytorch-converted");
    register_kind("pytorch-operator");
}
TEST_REGISTRAR(register_all);

TEST_CASE(onnx_conformance, data_is_installed) {
    DIR *d = opendir(ROOT "/node");
    if (!d) SKIP("package libonnx-testdata is not installed");
    closedir(d);
}
