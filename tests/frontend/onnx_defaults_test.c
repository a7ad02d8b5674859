/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_defaults_test.c: a node without an attribute equals the node with the
   default of ONNX's schemas (tests/onnx/defaults.txt), in every version of
   its op. The nodes are those of the onnx package's node tests, imported
   without and with the attribute. */
#define _POSIX_C_SOURCE 200809L
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

enum { MOST = 1000, SINCE = 64, NAME = 40, VALUE = 40, LIST = 8 };

typedef struct Default {
    char op[NAME], name[NAME], value[VALUE];
    int since;
    char kind;
    int compared;
} Default;

static Default rows[MOST];
static int nrow;

static void read_defaults(void) {
    char *text =
        test_read_file(test_data_path("tests/onnx/defaults.txt"), NULL);
    REQUIRE(text != NULL);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        Default *d = &rows[nrow];
        if (*line == '#') continue;
        REQUIRE(nrow < MOST &&
                sscanf(line, "%39s %d %39s %c %39s", d->op, &d->since, d->name,
                       &d->kind, d->value) == 5);
        if (!strcmp(d->value, "bilinear")) /* the older name of */
            strcpy(d->value, "linear");
        nrow++;
    }
    free(text);
}

/* ---- a node with and without an attribute -------------------------------- */

static void fill(const Default *d, Onnx__AttributeProto *a, int64_t *list) {
    onnx__attribute_proto__init(a);
    a->name = (char *)d->name;
    a->has_type = 1;
    const char *at = d->value;
    bool empty = !strcmp(at, "-");
    switch (d->kind) {
    case 'i':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        a->has_i = 1;
        a->i = strtoll(at, NULL, 10);
        break;
    case 'f':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
        a->has_f = 1;
        a->f = strtof(at, NULL);
        break;
    case 's':
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
        a->has_s = 1;
        a->s.data = (uint8_t *)(empty ? "" : d->value);
        a->s.len = empty ? 0 : strlen(at);
        break;
    default:
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
        for (; !empty && *at && a->n_ints < LIST; at += strspn(at, ","))
            list[a->n_ints++] = strtoll(at, (char **)&at, 10);
        a->ints = list;
    }
}

typedef struct Imported {
    Arena *a;
    Module *m; /* NULL: refused */
    StrBuf text;
} Imported;

static Imported imported(const Onnx__ModelProto *m) {
    Imported x = {.a = arena_new()};
    Diag d = {0};
    Options o;
    size_t n;
    uint8_t *bytes = model_pack(m, &n);
    options_inference(&o, x.a);
    if (import_onnx(x.a, &d, "m.onnx", bytes, n, &o, &x.m) != OK) x.m = NULL;
    if (x.m) print_module(x.m, &x.text);
    sb_free(&d.text);
    free(bytes);
    return x;
}

/* The results of the model for inputs from -2 to 2; NULL: it gives no
   results. */
static Evaluator *evaluated(const Imported *x) {
    const Graph *g = module_graph(x->m, "forward");
    Evaluator *e = eval_new(g, x->a, EVAL_EXACT);
    Diag d = {0};
    for (int i = 0; i < g->inputs.len; i++) {
        TypeId of = value_get(g, g->inputs.data[i])->type;
        EvalTensor *t = eval_tensor_new(x->a, of);
        for (int64_t k = 0; k < type_count(type_get(of)); k++) {
            double v = (double)(k * 37 % 41) / 10 - 2;
            if (t->f)
                t->f[k] = v;
            else
                t->i[k] = (int64_t)v & 1;
        }
        eval_bind(e, g->inputs.data[i], t);
    }
    bool ok = eval_run(e, &d) == OK;
    sb_free(&d.text);
    return ok ? e : NULL;
}

/* Equal texts, or equal results: 0.01 is a float in one case. */
static bool same(const Imported *x, const Imported *y) {
    if (!x->m || !y->m) return !x->m == !y->m;
    if (!strcmp(x->text.data, y->text.data)) return true;
    const Graph *g = module_graph(x->m, "forward");
    const Graph *h = module_graph(y->m, "forward");
    Evaluator *e = evaluated(x), *f = evaluated(y);
    bool equal = e && f && g->outputs.len == h->outputs.len;
    for (int i = 0; equal && i < g->outputs.len; i++)
        equal = !tensor_differs(x->a, eval_get(e, g->outputs.data[i].value),
                                eval_get(f, h->outputs.data[i].value), 1e-6,
                                1e-9, true);
    return equal;
}

static void end(Imported *x) {
    sb_free(&x->text);
    arena_free(x->a);
}

static void compare(const char *path, const Onnx__ModelProto *m,
                    Onnx__NodeProto *n, Default *d) {
    Onnx__NodeProto was = *n;
    Onnx__AttributeProto own, *attrs[64];
    int64_t list[LIST];
    size_t k = 0;
    REQUIRE(n->n_attribute < 63);
    for (size_t i = 0; i < n->n_attribute; i++)
        if (strcmp(n->attribute[i]->name, d->name) != 0)
            attrs[k++] = n->attribute[i];
    n->attribute = attrs;
    n->n_attribute = k;
    Imported without = imported(m);
    fill(d, &own, list);
    attrs[n->n_attribute++] = &own;
    Imported with = imported(m);
    CHECK_MSG(same(&without, &with),
              "%s, opset %lld: %s without %s:\n%s\nwith %s:\n%s", path,
              (long long)m->opset_import[0]->version, d->op, d->name,
              without.m ? without.text.data : "refused", d->value,
              with.m ? with.text.data : "refused");
    d->compared += without.m && with.m;
    end(&without);
    end(&with);
    *n = was;
}

/* Old versions of an op take no integers, and do not document the attribute
   for them. */
static bool reads_floats(const Onnx__GraphProto *g) {
    if (!g->n_input || !g->input[0]->type || !g->input[0]->type->tensor_type)
        return false;
    int of = g->input[0]->type->tensor_type->elem_type;
    return of == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
           of == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16 ||
           of == ONNX__TENSOR_PROTO__DATA_TYPE__DOUBLE ||
           of == ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16;
}

static void try_model(const char *path) {
    size_t size;
    char *bytes = test_read_file(path, &size);
    Onnx__ModelProto *m =
        bytes ? onnx__model_proto__unpack(NULL, size, (uint8_t *)bytes) : NULL;
    free(bytes);
    if (!m) return;
    bool one = m->n_opset_import == 1 && !m->n_functions &&
               !*m->opset_import[0]->domain && m->graph->n_node == 1;
    int64_t opset = m->opset_import[0]->version;
    Onnx__NodeProto *n = one ? m->graph->node[0] : NULL;
    for (int i = 0; n && i < nrow; i++) {
        if (strcmp(rows[i].op, n->op_type) != 0 || rows[i].since > opset ||
            (rows[i].kind == 'f' && !reads_floats(m->graph)))
            continue;
        m->opset_import[0]->version = rows[i].since;
        compare(path, m, n, &rows[i]);
    }
    m->opset_import[0]->version = opset;
    onnx__model_proto__free_unpacked(m, NULL);
}

TEST_CASE(onnx_defaults, are_those_of_the_schemas) {
    const char *root = getenv("AMPC_ONNX_NODES");
    char pattern[4096];
    glob_t all;
    int models = 0, compared = 0;
    if (!root) SKIP("AMPC_ONNX_NODES is not set");
    read_defaults();
    snprintf(pattern, sizeof pattern, "%s/node/*/model.onnx", root);
    REQUIRE(glob(pattern, 0, NULL, &all) == 0);
    for (size_t i = 0; i < all.gl_pathc; i++, models++)
        try_model(all.gl_pathv[i]);
    globfree(&all);
    for (int i = 0; i < nrow; i++) compared += rows[i].compared > 0;
    printf("ONNX defaults: %d of %d rows in %d models\n", compared, nrow,
           models);
    CHECK_MSG(compared >= 300, "%d", compared);
}
