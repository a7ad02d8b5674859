/* SPDX-License-Identifier: Apache-2.0 */
/* target_onnx.c: ONNX models, imported, through all passes, lowered.  The
   mutator works on messages: it changes nodes, names, attributes and
   tensors, and copies nodes from other models. */
#define _GNU_SOURCE
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/frontend.h"
#include "onnx.pb-c.h"
#include "tests/fuzz/compile.h"

static void bind_dims(Compile *c, const uint8_t *p, size_t n);

/* The path of the model: in the folder of its external data. */
static const char *model_path(void) {
    static const uint8_t numbers[1024];
    static char path[300];
    if (!*path) {
        snprintf(path, sizeof path, "%s", fuzz_file("data", numbers, 1024));
        snprintf(strrchr(path, '/'), 20, "/input.onnx");
    }
    return path;
}

void onnx_run(const uint8_t *p, size_t n) {
    Compile c;
    compile_begin(&c, p, n);
    bind_dims(&c, p, n);
    Status s = onnx_unfold(c.a, &c.d, model_path(), &c.opt, &p, &n);
    if (s == OK) s = import_onnx(c.a, &c.d, model_path(), p, n, &c.opt, &c.m);
    compile_check(&c, s);
    if (s == OK) {
        fuzz_check(verify_module(c.m, STAGE_TYPED, &c.d) == OK,
                   "the import does not verify: %s", c.d.text.data);
        compile_all(&c);
    }
    compile_end(&c);
}

/* ---- the tables of ops --------------------------------------------------- */

typedef struct OnnxRow {
    const char *name;
    int inputs;        /* at most */
    const char *attrs; /* "name:kind ..." */
} OnnxRow;

static const OnnxRow rows[] = {
#define ONNX(name, imin, imax, omin, omax, attrs, nd, weight, handler, core)   \
    {#name, imax, attrs},
#define ONNX_FN(name, imin, imax, omin, omax, attrs, nd, weight, handler, fn,  \
                map)                                                           \
    {#name, imax, attrs},
#include "frontend/onnx/onnx_ops.def"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* ---- messages in an arena ------------------------------------------------ */

static void *take(void *arena, size_t n) { return arena_alloc(arena, n); }
static void forget(void *arena, void *p) { (void)arena, (void)p; }

typedef struct Edit {
    Arena *a;
    ProtobufCAllocator memory;
    Onnx__ModelProto *model;
    Onnx__GraphProto *g;
} Edit;

/* NULL: another kind, or none */
static Onnx__TypeProto__Tensor *tensor_type(const Onnx__ValueInfoProto *v) {
    return v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
               ? v->type->tensor_type
               : NULL;
}

#define DIM(kind) ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_##kind

static bool known_dim(const Onnx__TensorShapeProto__Dimension *d) {
    return d->value_case == DIM(VALUE);
}

static bool named_dim(const Onnx__TensorShapeProto__Dimension *d) {
    return d->value_case == DIM(PARAM) && *d->dim_param;
}

static Onnx__ModelProto *unpack(Edit *e, const uint8_t *p, size_t n) {
    Onnx__ModelProto *m = onnx__model_proto__unpack(&e->memory, n, p);
    e->g = m ? m->graph : NULL;
    return e->g ? m : NULL;
}

/* Sets each symbolic dimension of an input to a small number. */
static void bind_dims(Compile *c, const uint8_t *p, size_t n) {
    Edit e = {.memory = {take, forget, c->a}};
    Onnx__ModelProto *m = unpack(&e, p, n);
    for (size_t i = 0; m && i < m->graph->n_input; i++) {
        const Onnx__TypeProto__Tensor *t = tensor_type(m->graph->input[i]);
        for (size_t k = 0; t && t->shape && k < t->shape->n_dim; k++) {
            const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[k];
            if (!named_dim(d)) continue;
            DimBind b = {intern(d->dim_param), -1,
                         1 + (int64_t)(hash_bytes(0, d->dim_param, 1) & 3)};
            vec_push(c->a, &c->opt.dims, b);
        }
    }
}

static char *text(Edit *e, const char *s) {
    return arena_dup(e->a, s, strlen(s) + 1);
}

/* Inserts one more entry in a list of pointers, at `at`. */
static void insert(Edit *e, void ***list, size_t *n, size_t at, void *item) {
    void **more = NEW_ARRAY(e->a, void *, *n + 1);
    if (at) memcpy(more, *list, at * sizeof *more);
    if (*n - at) memcpy(more + at + 1, *list + at, (*n - at) * sizeof *more);
    more[at] = item;
    *list = more;
    ++*n;
}

/* ---- names --------------------------------------------------------------- */

/* The name of an input, an initializer or a result; sometimes a name that
   the file lacks. */
static char *some_name(Edit *e) {
    Onnx__GraphProto *g = e->g;
    Onnx__NodeProto *n = g->n_node ? g->node[fuzz_below(g->n_node)] : NULL;
    size_t way = fuzz_below(16);
    char *name = text(e, way && !n ? "x" : "");
    if (way == 0) return name;
    if (way < 5 && g->n_input)
        name = g->input[fuzz_below(g->n_input)]->name;
    else if (way < 8 && g->n_initializer)
        name = g->initializer[fuzz_below(g->n_initializer)]->name;
    else if (n && n->n_output)
        name = n->output[fuzz_below(n->n_output)];
    return name ? name : text(e, "");
}

static Onnx__NodeProto *some_node(Edit *e) {
    return e->g->n_node ? e->g->node[fuzz_below(e->g->n_node)] : NULL;
}

/* ---- attributes and tensors ---------------------------------------------- */

static int64_t small_or_odd(void) {
    return fuzz_below(3) ? (int64_t)fuzz_below(6) - 1 : fuzz_odd_number();
}

static void edit_tensor(Onnx__TensorProto *t) {
    size_t count = t->has_raw_data ? t->raw_data.len / 8 : 0;
    switch (fuzz_below(5)) {
    case 0:
        if (t->n_dims) t->dims[fuzz_below(t->n_dims)] = small_or_odd();
        break;
    case 1: t->data_type = (int32_t)fuzz_below(20); break;
    case 2: t->n_dims -= t->n_dims > 0; break;
    case 3:
        if (t->n_int64_data)
            t->int64_data[fuzz_below(t->n_int64_data)] = small_or_odd();
        if (t->n_float_data)
            t->float_data[fuzz_below(t->n_float_data)] =
                fuzz_below(2) ? NAN : (float)small_or_odd();
        break;
    default:
        if (count) {
            int64_t v = small_or_odd();
            memcpy(t->raw_data.data + 8 * fuzz_below(count), &v, 8);
        } else if (t->raw_data.len) {
            t->raw_data.data[fuzz_below(t->raw_data.len)] =
                (uint8_t)fuzz_random();
        }
    }
}

/* Moves numbers to another file. */
static void make_external(Edit *e, Onnx__TensorProto *t) {
    static const char *const keys[] = {"location", "offset", "length",
                                       "checksum"};
    static const char *const places[] = {"data", "./data", "../data", "none",
                                         ""};
    enum { KEYS = sizeof keys / sizeof *keys };
    size_t n = 1 + fuzz_below(KEYS);
    t->has_data_location = 1;
    t->data_location = ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL;
    t->has_raw_data = 0;
    t->n_float_data = t->n_int64_data = t->n_external_data = 0;
    for (size_t i = 0; i < n; i++) {
        Onnx__StringStringEntryProto *entry =
            NEW(e->a, Onnx__StringStringEntryProto);
        onnx__string_string_entry_proto__init(entry);
        entry->key = text(e, keys[i]);
        int64_t v =
            fuzz_below(3) ? 4 * (int64_t)fuzz_below(20) : fuzz_odd_number();
        entry->value = i ? arena_printf(e->a, "%" PRId64, v)
                         : text(e, places[fuzz_below(fuzz_below(2) ? 5 : 1)]);
        insert(e, (void ***)&t->external_data, &t->n_external_data, i, entry);
    }
}

static void edit_attribute(Onnx__AttributeProto *p) {
    if (p->has_i) p->i = small_or_odd();
    if (p->has_f) p->f = fuzz_below(2) ? (float)small_or_odd() : NAN;
    if (p->n_ints && fuzz_below(3))
        p->ints[fuzz_below(p->n_ints)] = small_or_odd();
    else if (p->n_ints)
        p->n_ints--;
    if (p->t) edit_tensor(p->t);
    if (p->has_s && p->s.len) p->s.len -= fuzz_below(2);
}

/* An attribute that the node's op has, of its kind. */
static void give_attribute(Edit *e, Onnx__NodeProto *n) {
    const char *attrs = "";
    char name[64], kind;
    for (int i = 0; i < ROWS; i++)
        if (n->op_type && !strcmp(rows[i].name, n->op_type))
            attrs = rows[i].attrs;
    size_t spaces = 0;
    for (const char *p = attrs; *p; p++) spaces += *p == ' ';
    for (size_t skip = fuzz_below(spaces + 1); skip; skip--)
        attrs = strchr(attrs, ' ') + 1;
    if (sscanf(attrs, "%63[^:]:%c", name, &kind) != 2) return;
    Onnx__AttributeProto *p = NEW(e->a, Onnx__AttributeProto);
    onnx__attribute_proto__init(p);
    p->name = text(e, name);
    p->has_type = 1;
    switch (kind) {
    case 'i':
        p->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
        p->has_i = 1;
        p->i = small_or_odd();
        break;
    case 'f':
        p->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT;
        p->has_f = 1;
        p->f = (float)small_or_odd();
        break;
    case 'I':
        p->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
        p->n_ints = 1 + fuzz_below(4);
        p->ints = NEW_ARRAY(e->a, int64_t, p->n_ints);
        for (size_t i = 0; i < p->n_ints; i++) p->ints[i] = small_or_odd();
        break;
    case 's': {
        static const char *const words[] = {
            "constant", "edge", "reflect", "SAME_UPPER", "VALID",
            "sum",      "mean", "none",    "tanh",       "ij,jk->ik"};
        const char *w = words[fuzz_below(sizeof words / sizeof *words)];
        p->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
        p->has_s = 1;
        p->s.data = (uint8_t *)text(e, w);
        p->s.len = strlen(w);
        break;
    }
    default: return;
    }
    insert(e, (void ***)&n->attribute, &n->n_attribute, 0, p);
}

/* ---- nodes --------------------------------------------------------------- */

static void add_output(Edit *e, char *name) {
    Onnx__ValueInfoProto *v = NEW(e->a, Onnx__ValueInfoProto);
    onnx__value_info_proto__init(v);
    v->name = name;
    insert(e, (void ***)&e->g->output, &e->g->n_output, 0, v);
}

/* Makes the node's result an output, or an operand of another node. */
static void use_result(Edit *e, Onnx__NodeProto *n) {
    Onnx__NodeProto *user = some_node(e);
    if (!n->n_output) return;
    if (fuzz_below(3) && user && user->n_input)
        user->input[fuzz_below(user->n_input)] = n->output[0];
    else if (e->g->n_output < 8)
        add_output(e, n->output[0]);
}

/* A name that is not in use. */
static char *new_name(Edit *e) {
    return arena_printf(e->a, "n%x", (unsigned)fuzz_random());
}

static void add_node(Edit *e) {
    const OnnxRow *row = &rows[fuzz_below(ROWS)];
    Onnx__NodeProto *n = NEW(e->a, Onnx__NodeProto);
    onnx__node_proto__init(n);
    n->op_type = text(e, row->name);
    n->n_input = row->inputs < 0 ? 2 : (size_t)row->inputs;
    if (n->n_input > 3) n->n_input = 1 + fuzz_below(n->n_input);
    n->input = NEW_ARRAY(e->a, char *, n->n_input + 1);
    for (size_t i = 0; i < n->n_input; i++) n->input[i] = some_name(e);
    n->n_output = 1;
    n->output = NEW(e->a, char *);
    n->output[0] = new_name(e);
    for (size_t k = fuzz_below(3); k; k--) give_attribute(e, n);
    insert(e, (void ***)&e->g->node, &e->g->n_node, e->g->n_node, n);
    use_result(e, n);
}

static Onnx__TensorProto *initializer(const Onnx__GraphProto *g,
                                      const char *name) {
    for (size_t i = 0; i < g->n_initializer; i++)
        if (g->initializer[i]->name && !strcmp(g->initializer[i]->name, name))
            return g->initializer[i];
    return NULL;
}

/* Copies a node of another input, with the initializers that it reads. */
static void take_node(Edit *e) {
    size_t size;
    const uint8_t *p = fuzz_input(fuzz_below(fuzz_inputs()), &size);
    Edit other = {.a = e->a, .memory = e->memory};
    Onnx__ModelProto *from = unpack(&other, p, size);
    if (!from || !from->graph->n_node) return;
    Onnx__NodeProto *n = from->graph->node[fuzz_below(from->graph->n_node)];
    for (size_t i = 0; i < n->n_input; i++) {
        Onnx__TensorProto *t = initializer(from->graph, n->input[i]);
        if (t) {
            t->name = new_name(e);
            insert(e, (void ***)&e->g->initializer, &e->g->n_initializer, 0, t);
        }
        n->input[i] = t ? t->name : some_name(e);
    }
    for (size_t i = 0; i < n->n_output; i++)
        if (n->output[i][0]) n->output[i] = new_name(e);
    insert(e, (void ***)&e->g->node, &e->g->n_node, e->g->n_node, n);
    use_result(e, n);
}

/* 1.5 everywhere, in the shape of an f32 input; NULL: another dtype, or too
   large.
 */
static Onnx__TensorProto *weight_like(Edit *e, const Onnx__ValueInfoProto *v) {
    enum { MOST = 256 };
    const Onnx__TypeProto__Tensor *t = tensor_type(v);
    int64_t n = 1;
    if (!t || t->elem_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT || !t->shape)
        return NULL;
    Onnx__TensorProto *w = NEW(e->a, Onnx__TensorProto);
    onnx__tensor_proto__init(w);
    w->name = new_name(e);
    w->has_data_type = 1;
    w->data_type = t->elem_type;
    w->n_dims = t->shape->n_dim;
    w->dims = NEW_ARRAY(e->a, int64_t, w->n_dims + 1);
    for (size_t i = 0; i < w->n_dims; i++) {
        int64_t d = t->shape->dim[i]->dim_value;
        if (!known_dim(t->shape->dim[i]) || d < 1 || d > MOST || n * d > MOST)
            return NULL;
        n *= w->dims[i] = d;
    }
    w->n_float_data = (size_t)n;
    w->float_data = NEW_ARRAY(e->a, float, n);
    for (int64_t i = 0; i < n; i++) w->float_data[i] = 1.5f;
    return w;
}

/* Adds a weight to an input for all its readers, so that there is something to
   train. */
static void add_weight(Edit *e) {
    Onnx__GraphProto *g = e->g;
    if (!g->n_input) return;
    const Onnx__ValueInfoProto *v = g->input[fuzz_below(g->n_input)];
    Onnx__TensorProto *w = weight_like(e, v);
    if (!w || !v->name) return;
    Onnx__NodeProto *add = NEW(e->a, Onnx__NodeProto);
    onnx__node_proto__init(add);
    add->op_type = text(e, "Add");
    add->n_input = 2;
    add->input = NEW_ARRAY(e->a, char *, 2);
    add->input[0] = v->name;
    add->input[1] = w->name;
    add->n_output = 1;
    add->output = NEW(e->a, char *);
    add->output[0] = new_name(e);
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_input; k++)
            if (!strcmp(g->node[i]->input[k], v->name))
                g->node[i]->input[k] = add->output[0];
    insert(e, (void ***)&g->initializer, &g->n_initializer, 0, w);
    insert(e, (void ***)&g->node, &g->n_node, 0, add);
}

/* A loss needs one output. */
static void keep_output(Edit *e) {
    if (!e->g->n_output) return;
    e->g->output[0] = e->g->output[fuzz_below(e->g->n_output)];
    e->g->n_output = 1;
}

static void edit_node(Edit *e, Onnx__NodeProto *n) {
    Onnx__NodeProto *o = some_node(e);
    switch (fuzz_below(9)) {
    case 0: n->op_type = o->op_type; break;
    case 1: n->op_type = text(e, rows[fuzz_below(ROWS)].name); break;
    case 2:
        if (n->n_input) n->input[fuzz_below(n->n_input)] = some_name(e);
        break;
    case 3:
        insert(e, (void ***)&n->input, &n->n_input, n->n_input, some_name(e));
        break;
    case 4: n->n_input -= n->n_input > 0; break;
    case 5:
    case 6:
        if (n->n_attribute)
            edit_attribute(n->attribute[fuzz_below(n->n_attribute)]);
        else
            give_attribute(e, n);
        break;
    case 7: give_attribute(e, n); break;
    default: n->n_attribute -= n->n_attribute > 0; break;
    }
}

static void edit_value(Onnx__ValueInfoProto *v) {
    Onnx__TypeProto__Tensor *t = tensor_type(v);
    if (!t) return;
    if (fuzz_below(6) == 0) t->elem_type = (int32_t)fuzz_below(17);
    Onnx__TensorShapeProto *s = t->shape;
    if (!s || !s->n_dim) return;
    Onnx__TensorShapeProto__Dimension *d = s->dim[fuzz_below(s->n_dim)];
    d->value_case = DIM(VALUE);
    d->dim_value = small_or_odd();
    if (fuzz_below(4) == 0) s->n_dim--;
}

static void edit(Edit *e) {
    Onnx__GraphProto *g = e->g;
    Onnx__NodeProto *n = some_node(e);
    switch (fuzz_below(14)) {
    case 12: add_weight(e); break;
    case 13: keep_output(e); break;
    case 0: add_node(e); break;
    case 1:
    case 2: take_node(e); break;
    case 3:
        if (g->n_initializer) {
            Onnx__TensorProto *t = g->initializer[fuzz_below(g->n_initializer)];
            fuzz_below(8) ? edit_tensor(t) : make_external(e, t);
        }
        break;
    case 4:
        if (g->n_input) edit_value(g->input[fuzz_below(g->n_input)]);
        break;
    case 5:
        if (n) use_result(e, n);
        break;
    case 6:
        if (g->n_node > 1) { /* away with one */
            size_t i = fuzz_below(g->n_node);
            g->node[i] = g->node[--g->n_node];
        } else if (e->model->n_opset_import) {
            e->model->opset_import[0]->version = 6 + (int64_t)fuzz_below(23);
        }
        break;
    default:
        if (n) edit_node(e, n);
    }
}

/* 0: too large */
static size_t pack(Edit *e, uint8_t *p) {
    size_t size = onnx__model_proto__get_packed_size(e->model);
    if (size > FUZZ_MOST) return 0;
    return onnx__model_proto__pack(e->model, p);
}

size_t onnx_mutate(uint8_t *p, size_t n) {
    Edit e = {.a = arena_new()};
    e.memory = (ProtobufCAllocator){take, forget, e.a};
    e.model = unpack(&e, p, n);
    size_t size = 0;
    if (e.model) {
        for (size_t k = 1 + fuzz_below(1 + fuzz_below(4)); k; k--) edit(&e);
        size = pack(&e, p);
    }
    arena_free(e.a);
    return size;
}

/* ---- seeds --------------------------------------------------------------- */

#define NODES "/usr/share/libonnx-testdata/data/node"

static void begin_edit(Edit *e) {
    *e = (Edit){.a = arena_new()};
    e->memory = (ProtobufCAllocator){take, forget, e->a};
}

static void seed_model(Edit *e) {
    static uint8_t bytes[FUZZ_MOST];
    size_t n = pack(e, bytes);
    if (n) fuzz_seed(bytes, n);
}

/* Inputs after the first that are few numbers, such as sizes and axes,
   become the constants given with the test. */
static void make_known(Edit *e, const char *test) {
    enum { FEW = 16 };
    Onnx__GraphProto *g = e->g;
    size_t kept = 0;
    for (size_t i = 0; i < g->n_input; i++) {
        char path[400];
        Diag d = {0};
        size_t n;
        snprintf(path, sizeof path, "%s/test_data_set_0/input_%zu.pb", test, i);
        char *bytes = i ? read_file(&d, path, &n) : NULL;
        Onnx__TensorProto *t =
            bytes ? onnx__tensor_proto__unpack(&e->memory, n, (uint8_t *)bytes)
                  : NULL;
        if (t && t->n_dims <= 1 && (!t->n_dims || t->dims[0] <= FEW)) {
            t->name = g->input[i]->name;
            insert(e, (void ***)&g->initializer, &g->n_initializer, 0, t);
        } else {
            g->input[kept++] = g->input[i];
        }
        free(bytes);
        sb_free(&d.text);
    }
    g->n_input = kept;
}

/* A test of one node unchanged, with its sizes known, and in a form that
   trains. */
static void seed_node_test(const char *name) {
    char test[300], path[320];
    Diag d = {0};
    Edit e;
    size_t n;
    snprintf(test, sizeof test, NODES "/%s", name);
    snprintf(path, sizeof path, "%s/model.onnx", test);
    char *bytes = read_file(&d, path, &n);
    begin_edit(&e);
    if (bytes) fuzz_seed(bytes, n);
    if (bytes && (e.model = unpack(&e, (uint8_t *)bytes, n))) {
        size_t inputs = e.g->n_input;
        make_known(&e, test);
        if (e.g->n_input < inputs) seed_model(&e);
        keep_output(&e);
        for (int i = 0; i < 3; i++) add_weight(&e);
        seed_model(&e);
    }
    free(bytes);
    sb_free(&d.text);
    arena_free(e.a);
}

static void seed_node_tests(void) {
    struct dirent **entry;
    int n = scandir(NODES, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.') seed_node_test(entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

void onnx_seeds(void) {
    fuzz_seed_files("tests/onnx", "p.dyn.onnx");
    fuzz_seed_files("tests/onnx", "p.ts.onnx");
    fuzz_seed_files("tests/onnx", "n.ts.onnx");
    fuzz_seed_files("tests/onnx", "n.opt.onnx"); /* BatchNorm folded */
    seed_node_tests(); /* the folder of Debian's package */
}

const char *const *onnx_words(void) {
    static const char *words[ROWS + 1];
    for (int i = 0; i < ROWS; i++) words[i] = rows[i].name;
    return words;
}
