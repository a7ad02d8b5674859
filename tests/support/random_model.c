/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.c: see random_model.h. */
#include "tests/support/random_model.h"

#include <math.h>
#include <string.h>

#include "ir/eval/evaluate.h"
#include "ir/text/text.h"
#include "tests/support/parts.h"
#include "tests/support/random_graph.h"
#include "tests/tolerance.h"

enum { NODES = 16 };

/* ---- making models ------------------------------------------------------- */

static ValueId fresh_param(RandomGraph *p, int rank, const int64_t *dim) {
    Part *part = p->ctx;
    Model *m = part->model;
    int k = part->first + part->nparam++;
    TypeId t = type_make(DT_F32, rank, dim);
    int n = (int)type_count(type_get(t));
    Str name = internf("p%d.%d", part->number, k);
    if (k >= UPDATE_PARAMS || n > UPDATE_ELEMENTS)
        FAIL("a parameter %d of %d elements", k, n);
    m->name[k] = name;
    m->type[k] = t;
    if (part->alone) return graph_input(p->b.g, name, t);
    int var = module_var(m->m, VAR_PARAM, name, t, NULL, 0);
    m->m->vars.data[var].init_text = internf("normal(%d, 0.5)", k);
    return graph_var(p->b.g, var);
}

static void add_input(RandomGraph *p, int rank, const int64_t *dim) {
    Part *part = p->ctx;
    Model *m = part->model;
    Str name = internf("x%d.%d", part->number, p->n);
    TypeId t = type_make(DT_F32, rank, dim);
    random_keep(p, graph_input(p->b.g, name, t));
    if (part->alone) return;
    m->input[m->ninput] = name;
    m->input_type[m->ninput++] = t;
}

static ValueId mean_of(Builder *b, ValueId v) {
    int64_t axes[MAX_RANK];
    int rank = value_type(b->g, v)->rank;
    for (int i = 0; i < rank; i++) axes[i] = i;
    return b_reduce(b, OP_REDUCE_MEAN, v, axes, rank, false, DT_DEFAULT);
}

/* Means of v (v + 1) or v v, over values without readers and some others:
   their gradients are not constants, which 16 bits would always round alike. */
static ValueId loss_of(RandomGraph *p, Arena *a) {
    ValueId loss = NO_VALUE;
    int *uses = graph_use_counts(p->b.g, a);
    for (int i = p->nleaf; i < p->n; i++) {
        ValueId v = p->v[i];
        if (uses[v.i] && random_below(6)) continue;
        ValueId one = b_scalar(&p->b, DT_F32, 1), w = v;
        if (random_below(2)) w = b2(&p->b, OP_ADD, v, one, DT_DEFAULT);
        v = b2(&p->b, OP_MUL, v, w, DT_DEFAULT);
        v = mean_of(&p->b, v);
        loss = loss.i ? b2(&p->b, OP_ADD, loss, v, DT_DEFAULT) : v;
    }
    return loss;
}

int random_model_elements(const Model *m, int param) {
    return (int)type_count(type_get(m->type[param]));
}

static void read_initial(Model *m) {
    StrBuf text = {0};
    Diag d = {0};
    Module *read;
    print_module(m->m, &text);
    m->text = arena_printf(m->a, "%s", text.data);
    if (parse_module(m->a, &d, "random", text.data, text.len, &read) != OK)
        FAIL("%s", d.text.data);
    for (int k = 0; k < m->nparam; k++) {
        const Var *v = &read->vars.data[module_find_var(read, m->name[k])];
        const Tensor *t = var_initial(m->a, v);
        for (int i = 0; i < random_model_elements(m, k); i++)
            m->initial[k][i] = tensor_get(t, i);
    }
    sb_free(&text);
}

/* The part draws the same numbers in whichever graph it is built. */
static ValueId build_part(Part *part, Graph *g, uint64_t seed) {
    Model *m = part->model;
    RandomGraph p = {.b = {.g = g}, .param = fresh_param, .ctx = part};
    random_seed(seed * 1000 + (uint64_t)part->number);
    part->nparam = 0;
    int64_t r = 1 + random_below(7), c = 1 + random_below(19);
    int64_t few = 1 + random_below(3), many = 30 + random_below(70);
    int64_t b = part->number ? few : many; /* rows for more than one block */
    add_input(&p, 2, (int64_t[]){r, c});
    add_input(&p, 1, (int64_t[]){c});
    add_input(&p, 2, (int64_t[]){r, 1});
    add_input(&p, 3, (int64_t[]){b, r, c});
    p.nleaf = p.n;
    random_keep(&p, fresh_param(&p, 1, (int64_t[]){c}));
    random_keep(&p, fresh_param(&p, 2, (int64_t[]){r, c}));
    random_nodes(&p, p.n + NODES);
    return loss_of(&p, m->a);
}

/* The parameter of the gradient; -1: an input's. */
static int gradient_of(const Part *p, Str output) {
    const char *name = output + strlen("grad.");
    int k = p->first;
    if (*name != 'p') return -1;
    while (strcmp(p->model->name[k], name) != 0) k++;
    return k;
}

static void find_gradients(Part *p) {
    Diag d = {0};
    p->grads = graph_clone(p->alone->graphs.data[0], "gradients");
    if (parts_to_gradients(p->grads, &d) != OK) FAIL("%s", d.text.data);
    for (int i = 0; i < p->grads->outputs.len; i++) {
        int k = gradient_of(p, p->grads->outputs.data[i].name);
        if (k >= 0) p->model->trains[k] = true;
    }
}

void random_model_make(Model *m, uint64_t seed) {
    memset(m, 0, sizeof *m);
    m->a = arena_new();
    m->m = module_new(m->a, "random");
    Graph *g = graph_new(m->m, "forward");
    Builder b = {.g = g};
    ValueId loss = NO_VALUE;
    for (int i = 0; i < PARTS; i++) {
        Part *p = &m->part[i];
        *p = (Part){.model = m, .number = i, .first = m->nparam};
        ValueId v = build_part(p, g, seed);
        loss = loss.i ? b2(&b, OP_ADD, loss, v, DT_DEFAULT) : v;
        p->alone = module_new(m->a, "part");
        Graph *alone = graph_new(p->alone, "part");
        graph_add_output(alone, intern("loss"), build_part(p, alone, seed));
        find_gradients(p);
        m->nparam += p->nparam;
    }
    graph_add_output(g, intern("loss"), loss);
    read_initial(m);
}

/* ---- data ---------------------------------------------------------------- */

static float *fill_input(const Model *m, int input, int batch, size_t *bytes) {
    const Type *t = type_get(m->input_type[input]);
    int64_t n = type_count(t);
    float *x = arena_alloc(m->a, (size_t)n * 4 + 4);
    uint64_t s = 77 + (uint64_t)(batch * 101 + input);
    for (int64_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(s >> 40) / (1 << 22) - 2);
    }
    *bytes = (size_t)n * 4;
    return x;
}

Batch random_batch(const Model *m, int number) {
    Batch b;
    for (int i = 0; i < m->ninput; i++) {
        size_t bytes;
        float *x = fill_input(m, i, number, &bytes);
        b.in[i] = ampc_in(m->input[i], x, bytes, AMPC_DTYPE_F32);
    }
    return b;
}

static void bind_numbers(Arena *a, Evaluator *e, ValueId v, TypeId type,
                         const double *p, const float *x) {
    EvalTensor *t = eval_tensor_new(a, type);
    int64_t n = type_count(type_get(type));
    for (int64_t i = 0; i < n; i++) t->f[i] = p ? p[i] : (double)x[i];
    eval_bind(e, v, t);
}

/* ---- the oracle in double ------------------------------------------------ */

static Evaluator *run_part(const Part *p, Arena *a, const Graph *g,
                           const UpdateOracle *o, const Batch *b) {
    const Model *m = p->model;
    Evaluator *e = eval_new(g, a, EVAL_EXACT);
    Diag d = {0};
    for (int i = 0, k = p->first, x = 0; i < g->inputs.len; i++) {
        const Value *v = value_get(g, g->inputs.data[i]);
        bool param = v->name[0] == 'p';
        while (!param && strcmp(m->input[x], v->name) != 0) x++;
        bind_numbers(a, e, g->inputs.data[i], v->type, param ? o->p[k++] : NULL,
                     param ? NULL : b->in[x].data);
    }
    if (eval_run(e, &d) != OK) FAIL("%s", d.text.data);
    return e;
}

static double part_loss(const Part *p, const UpdateOracle *o, const Batch *b) {
    Arena *a = arena_new();
    const Graph *g = p->alone->graphs.data[0];
    Evaluator *e = run_part(p, a, g, o, b);
    double loss = eval_get(e, g->outputs.data[0].value)->f[0];
    arena_free(a);
    return loss;
}

/* The loss with every parameter moved by h times random numbers. */
static double loss_beside(const Part *p, const UpdateOracle *o, const Batch *b,
                          double h) {
    static UpdateOracle moved;
    moved = *o;
    random_seed((uint64_t)o->tried + 5);
    for (int k = p->first; k < p->first + p->nparam; k++)
        for (int i = 0; i < random_model_elements(p->model, k); i++)
            moved.p[k][i] += h * random_number();
    return part_loss(p, &moved, b);
}

/* Adds the part's gradient, and checks it in one direction. */
static void add_gradient(const Part *p, UpdateOracle *o, const Batch *b) {
    const double h = 1e-6;
    const EvalTensor *grad[UPDATE_PARAMS] = {0};
    double slope = 0, size = 1;
    Arena *a = arena_new();
    Evaluator *e = run_part(p, a, p->grads, o, b);
    for (int i = 0; i < p->grads->outputs.len; i++) {
        const Output *out = &p->grads->outputs.data[i];
        int k = gradient_of(p, out->name);
        if (k >= 0) grad[k] = eval_get(e, out->value);
    }
    random_seed((uint64_t)o->tried + 5);
    for (int k = p->first; k < p->first + p->nparam; k++)
        for (int i = 0; i < random_model_elements(p->model, k); i++) {
            double v = random_number();
            if (!grad[k]) continue;
            double x = grad[k]->f[i] / parts_weight(0);
            o->g[k][i] += x;
            slope += x * v;
            size += fabs(x * v);
        }
    double differ = loss_beside(p, o, b, h) - loss_beside(p, o, b, -h);
    CHECK_MSG(fabs(differ / (2 * h) - slope) <= TOL_SLOPE * size,
              "part %d: slope %.9g, differences say %.9g", p->number, slope,
              differ / (2 * h));
    arena_free(a);
}

void random_model_feed(const Model *m, UpdateOracle *o, const Batch *b) {
    for (int i = 0; i < PARTS; i++) {
        o->loss += part_loss(&m->part[i], o, b);
        add_gradient(&m->part[i], o, b);
    }
}

void random_model_begin(const Model *m, UpdateOracle *o, const UpdateRule *r) {
    update_begin(o, r);
    o->nparam = m->nparam;
    memcpy(o->p, m->initial, sizeof o->p);
    for (int k = 0; k < o->nparam; k++)
        o->count[k] = m->trains[k] ? random_model_elements(m, k) : 0;
}
