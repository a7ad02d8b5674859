/* emit_plan.c: the programs of a planned module as tables (emit.h).

   Every graph is a program, its groups the steps.  A write whose value was not
   computed in the variable itself becomes a copy at the program's end.      */
#include "codegen/module/emit_plan.h"
#include "runtime/lib.h"

#include <string.h>

/* ---- variables ----------------------------------------------------------- */

static bool always_there(VarKind k) { return k != VAR_SHADOW && k != VAR_GRAD; }

static bool used_by_programs(const Module *m, int var) {
    for (int i = 0; i < m->graphs.len; i++)
        if (is_value(graph_find_var(m->graphs.data[i], var))) return true;
    return false;
}

static int64_t add_weight(Emit *e, const Tensor *t) {
    PlanSource *o = e->out;
    int64_t bytes = type_bytes(type_get(t->type));
    WeightPiece p = {t->data, bytes, (o->weight_bytes + 63) & ~INT64_C(63)};
    vec_push(e->a, &o->weights, p);
    o->weight_bytes = p.offset + bytes;
    return p.offset;
}

static void add_variables(Emit *e) {
    e->var_number = NEW_ARRAY(e->a, int, e->m->vars.len + 1);
    for (int i = 0; i < e->m->vars.len; i++) {
        const Var *v = &e->m->vars.data[i];
        e->var_number[i] = -1;
        if (!always_there(v->kind) && !used_by_programs(e->m, i)) continue;
        EmitVar x = {.var = v, .init = -1};
        if (v->kind != VAR_GRAD) x.data = weights_initial(e->a, v);
        if (x.data && !weights_in_sidecar(e->opt, v))
            x.init = add_weight(e, x.data);
        e->var_number[i] = e->vars.len;
        vec_push(e->a, &e->vars, x);
    }
}

/* Equal constants of all programs share one PlanVar. */
static int add_constant(Emit *e, const Tensor *t) {
    size_t bytes = (size_t)type_bytes(type_get(t->type));
    uint64_t h = hash_bytes(t->type.i, t->data, bytes);
    for (int i = 0; i < e->vars.len; i++) {
        const EmitVar *x = &e->vars.data[i];
        if (!x->var && x->hash == h && x->data->type.i == t->type.i &&
            !memcmp(x->data->data, t->data, bytes))
            return i;
    }
    EmitVar x = {.data = t, .hash = h, .init = add_weight(e, t)};
    vec_push(e->a, &e->vars, x);
    return e->vars.len - 1;
}

/* ---- where values are ---------------------------------------------------- */

static uint32_t input_number(const Graph *g, ValueId v) {
    for (int i = 0; i < g->inputs.len; i++)
        if (same_value(g->inputs.data[i], v)) return (uint32_t)i;
    ASSERT(!"an input that the graph does not list");
    return 0;
}

/* max_pool's positions have no place in programs without backward: PLAN_NONE.
 */
static PlanRef ref_of(Emit *e, const Graph *g, ValueId v) {
    PlanRef r = {.space = PLAN_NONE};
    if (!is_value(v)) return r;
    ValueId root = view_root(g, v);
    const Value *x = value_get(g, root);
    switch (x->kind) {
    case VK_INPUT:
        r.space = PLAN_INPUT;
        r.index = input_number(g, root);
        return r;
    case VK_VAR:
        r.space = PLAN_VAR;
        r.index = (uint32_t)e->var_number[x->var];
        return r;
    case VK_CONST:
        if (e->const_number[root.i] < 0)
            e->const_number[root.i] = add_constant(e, x->data);
        r.space = PLAN_VAR;
        r.index = (uint32_t)e->const_number[root.i];
        return r;
    case VK_RESULT: break;
    }
    if (x->home >= 0) {
        r.space = PLAN_VAR;
        r.index = (uint32_t)e->var_number[x->home];
    } else if (x->offset >= 0) {
        r.space = PLAN_ARENA;
        r.offset = (uint64_t)x->offset;
    } else {
        ASSERT(node_get(g, x->def)->op == OP_MAX_POOL && x->result == 1);
    }
    return r;
}

static int add_refs(Emit *e, const Graph *g, const ValueId *v, int n) {
    int at = e->refs.len;
    for (int i = 0; i < n; i++) {
        int64_t bytes = is_value(v[i]) ? type_bytes(value_type(g, v[i])) : 0;
        vec_push(e->a, &e->refs, ref_of(e, g, v[i]));
        vec_push(e->a, &e->ref_bytes, bytes);
    }
    return at;
}

static int add_pars(Emit *e, const int64_t *p, int n) {
    int at = e->pars.len;
    for (int i = 0; i < n; i++) vec_push(e->a, &e->pars, p[i]);
    return at;
}

static void add_step(Emit *e, const Graph *g, const LoweredStep *s) {
    EmitStep x = {.s = *s};
    x.ref0 = add_refs(e, g, s->refs, s->nref);
    x.ep_ref0 = add_refs(e, g, s->ep_refs, s->nep_ref);
    x.par0 = add_pars(e, s->pars, s->npar);
    x.ep_par0 = add_pars(e, s->ep_pars, s->nep_par);
    vec_push(e->a, &e->steps, x);
}

/* ---- programs ------------------------------------------------------------ */

static void add_tensor(Emit *e, const Graph *g, Str name, ValueId v) {
    const Type *t = value_type(g, v);
    PlanTensor x = {.name = name,
                    .dtype = t->dtype,
                    .rank = (uint32_t)t->rank,
                    .ref = ref_of(e, g, v)};
    memcpy(x.dim, t->dim, sizeof x.dim);
    vec_push(e->a, &e->tensors, x);
}

/* Copies what was not computed in place; fuse.c saw to it that no source is a
   variable that this program writes. */
static void add_copies(Emit *e, const Graph *g) {
    for (int i = 0; i < g->writes.len; i++) {
        const Write *w = &g->writes.data[i];
        const Value *root = value_get(g, view_root(g, w->value));
        int var = value_get(g, w->var)->var;
        if (root->kind == VK_RESULT && root->home == var) continue;
        if (root->kind == VK_VAR && root->var == var) continue;
        ValueId refs[] = {w->value, w->var};
        const Type *t = value_type(g, w->var);
        LibCopy par = {.bytes = type_bytes(t), .dtype = t->dtype};
        LoweredStep s = {.kind = PLAN_LIB,
                         .lib = PLAN_LIB_COPY,
                         .refs = refs,
                         .nref = 2,
                         .pars = (int64_t *)(void *)&par,
                         .npar = sizeof par / sizeof(int64_t),
                         .name = value_var(g, w->var)->name};
        if (par.bytes > 0) add_step(e, g, &s);
    }
}

static Status add_program(Emit *e, const Graph *g) {
    EmitProgram p = {.g = g, .step0 = e->steps.len};
    LoweredStep *steps;
    TRY(lower_graph(g, e->out->kernels, e->d, &steps));
    e->const_number = NEW_ARRAY(e->a, int, g->values.len);
    memset(e->const_number, -1, (size_t)g->values.len * sizeof(int));
    for (int i = 0; i < g->groups.len; i++) {
        vec_push(e->a, &e->out->group_steps, e->steps.len);
        vec_push(e->a, &e->out->group_n, steps[i].npar ? steps[i].pars[0] : 0);
        add_step(e, g, &steps[i]);
    }
    add_copies(e, g);
    p.nstep = e->steps.len - p.step0;
    p.in0 = e->tensors.len;
    p.nin = g->inputs.len;
    for (int i = 0; i < p.nin; i++)
        add_tensor(e, g, value_get(g, g->inputs.data[i])->name,
                   g->inputs.data[i]);
    p.out0 = e->tensors.len;
    p.nout = g->outputs.len;
    for (int i = 0; i < p.nout; i++)
        add_tensor(e, g, g->outputs.data[i].name, g->outputs.data[i].value);
    vec_push(e->a, &e->programs, p);
    return OK;
}

/* ---- the same steps on a GPU --------------------------------------------- */

static CudaStepIn cuda_step(const Emit *e, const EmitStep *x) {
    return (CudaStepIn){.s = &x->s,
                        .refs = e->refs.data + x->ref0,
                        .ep_refs = e->refs.data + x->ep_ref0,
                        .ref_bytes = e->ref_bytes.data + x->ref0,
                        .ep_bytes = e->ref_bytes.data + x->ep_ref0};
}

static CudaStepIn *cuda_steps(const Emit *e) {
    CudaStepIn *in = NEW_ARRAY(e->a, CudaStepIn, e->steps.len + 1);
    for (int i = 0; i < e->steps.len; i++)
        in[i] = cuda_step(e, &e->steps.data[i]);
    return in;
}

/* Step i becomes step order[i] as it was. */
static void reorder_steps(Emit *e, const int *order) {
    int n = e->steps.len, *now = NEW_ARRAY(e->a, int, n + 1);
    EmitStep *old = NEW_ARRAY(e->a, EmitStep, n + 1);
    for (int i = 0; i < n; i++) {
        old[i] = e->steps.data[i];
        now[order[i]] = i;
    }
    for (int i = 0; i < n; i++) e->steps.data[i] = old[order[i]];
    for (int i = 0; i < e->out->group_steps.len; i++)
        e->out->group_steps.data[i] = now[e->out->group_steps.data[i]];
}

static void add_cuda(Emit *e) {
    CudaArchs archs = cuda_archs(e->opt, e->a);
    if (!archs.len && !e->opt->emit_cuda) return;
    CudaStepIn *in = cuda_steps(e);
    int *order = NEW_ARRAY(e->a, int, e->steps.len + 1);
    int *end = NEW_ARRAY(e->a, int, e->programs.len + 1);
    for (int i = 0; i < e->programs.len; i++) {
        end[i] = e->programs.data[i].step0 + e->programs.data[i].nstep;
        cuda_order(in, e->programs.data[i].step0, end[i], order);
    }
    reorder_steps(e, order);
    in = cuda_steps(e);
    e->out->cuda = NEW(e->a, CudaSource);
    e->out->cuda->archs = archs;
    emit_cuda(e->a, in, e->steps.len, end, e->programs.len, e->out->cuda);
}

/* ---- all ----------------------------------------------------------------- */

Status emit_plan(Module *m, const Options *opt, Diag *d, const EmitInput *in,
                 Arena *a, PlanSource *out) {
    Emit e = {.m = m, .opt = opt, .d = d, .a = a, .out = out};
    Status status = OK;
    out->kernels = kernel_set_new(a);
    add_variables(&e);
    for (int i = 0; i < m->graphs.len; i++)
        if (add_program(&e, m->graphs.data[i]) != OK) status = ERR_USER;
    TRY(status);
    add_cuda(&e);
    put_plan(&out->text, &e, in);
    return OK;
}
