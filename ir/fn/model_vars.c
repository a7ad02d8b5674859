/* SPDX-License-Identifier: Apache-2.0 */
/* model_vars.c: the variables of a model's module, and layers from files, which
   bring variables of their own. */
#include "ir/fn/model.h"
#include "ir/fn/run.h"

/* ---- variables ----------------------------------------------------------- */

/* A new variable, or the existing one. */
Status model_add_var(Run *r, const Var *v, ValueId *out) {
    Module *m = r->model->m;
    int i = module_find_name(m, v->name);
    if (name_is_own(v->name))
        return run_fail(r, NULL,
                        "'%s': names that start with 'ampc.' are the "
                        "compiler's",
                        v->name);
    if (i >= 0) {
        const Var *old = &m->vars.data[i];
        if (old->kind != v->kind || old->type.i != v->type.i)
            return run_fail(r, NULL, "'%s' is already a %s %s", v->name,
                            var_kind_text[old->kind], TXT(type_get(old->type)));
    } else {
        i = module_var(m, v->kind, v->name, v->type, v->init, v->fill);
        m->vars.data[i] = *v;
    }
    *out = graph_var(r->b->g, i);
    return OK;
}

Status model_add_write(Run *r, Write w) {
    Graph *g = r->b->g;
    for (int i = 0; i < g->writes.len; i++)
        if (same_value(g->writes.data[i].var, w.var))
            return run_fail(r, NULL, "'%.60s' is already written",
                            value_get(g, w.var)->name);
    vec_push(g->arena, &g->writes, w);
    return OK;
}

ValueId model_random_state(const Run *r) {
    Model *e = r->model;
    TypeId type = type_make(DT_I64, 1, (int64_t[]){2});
    Tensor *t = tensor_new(e->m->arena, type);
    tensor_set_int(t, 0, e->opt->seed);
    int var = module_own_var(e->m, OWN_RNG, intern(""), 0);
    if (!e->m->vars.data[var].init) e->m->vars.data[var].init = t;
    return graph_var(r->b->g, var);
}

/* ---- layers from files --------------------------------------------------- */

typedef struct Import {
    Run *r;
    const Graph *from;
    Str prefix;
    ValueId *to; /* map by ValueId.i of `from` */
} Import;

static Str import_name(const Import *x, Str name) {
    return internf("%s%s", x->prefix, name);
}

static Status import_value(Import *x, uint32_t i) {
    const Value *v = value_get(x->from, (ValueId){i});
    Graph *g = x->r->b->g;
    if (v->kind == VK_CONST && !v->name) {
        const Tensor *t = v->data;
        DType d = type_get(t->type)->dtype;
        x->to[i] = dtype_is_float(d)
                       ? graph_scalar(g, d, tensor_get(t, 0))
                       : graph_scalar_int(g, d, tensor_get_int(t, 0));
    } else if (v->kind == VK_CONST) {
        Str name = graph_unique_name(g, import_name(x, v->name));
        x->to[i] = graph_const(g, name, v->data);
    } else if (v->kind == VK_VAR) {
        Var var = x->from->module->vars.data[v->var];
        if (name_is_own(var.name)) { /* a random state: the only compiler
                                        variable allowed here */
            x->to[i] = model_random_state(x->r);
            return OK;
        }
        var.name = import_name(x, var.name);
        return model_add_var(x->r, &var, &x->to[i]);
    }
    return OK;
}

/* Each call draws different random numbers. */
static void own_salt(Import *x, Node *n) {
    Attr *attrs = NEW_ARRAY(x->r->a, Attr, n->nattr + 1);
    int k = 0;
    if (!info_takes(node_info(n), AK_salt)) return;
    for (int i = 0; i < n->nattr; i++)
        if (n->attrs[i].key != AK_salt) attrs[k++] = n->attrs[i];
    attrs[k++] = attr_i(AK_salt, x->r->model->salt++);
    n->attrs = attrs;
    n->nattr = k;
}

static void import_node(Import *x, NodeId id) {
    char msg[MSG_TEXT];
    Builder *b = x->r->b;
    Arena *a = x->r->a;
    Node n = *node_get(x->from, id);
    const ValueId *out = n.out;
    ValueId *in = NEW_ARRAY(a, ValueId, n.nin + 1);
    Type *given = NEW_ARRAY(a, Type, n.nout);
    const char **names = NEW_ARRAY(a, const char *, n.nout);
    for (int i = 0; i < n.nin; i++)
        if (is_value(n.in[i])) in[i] = x->to[n.in[i].i];
    for (int i = 0; i < n.nout; i++) {
        given[i] = *value_type(x->from, out[i]);
        names[i] = import_name(x, value_get(x->from, out[i])->name);
    }
    n.in = in;
    n.out = NULL;
    own_salt(x, &n);
    b->loc = (Loc){.file = n.loc.file,
                   .node = n.loc.node,
                   .amp = x->r->model->amp,
                   .region = x->r->model->region};
    Status s = node_make(b, &n, given, names, &id, msg);
    ASSERT(s == OK && "a node of equal operands is legal");
    for (int i = 0; i < n.nout; i++)
        x->to[out[i].i] = node_get(b->g, id)->out[i];
}

static Status import_all(Import *x) {
    const Graph *g = x->from;
    const Module *m = g->module;
    Module *to = x->r->model->m;
    for (int i = 1; i < g->values.len; i++) TRY(import_value(x, (uint32_t)i));
    for (int i = 0; i < g->order.len; i++) import_node(x, g->order.data[i]);
    for (int i = 0; i < g->writes.len; i++)
        TRY(model_add_write(
            x->r, (Write){.var = x->to[g->writes.data[i].var.i],
                          .value = x->to[g->writes.data[i].value.i]}));
    for (int i = 0; i < m->literals.len; i++) {
        Literal l = m->literals.data[i];
        l.name = import_name(x, l.name);
        vec_push(to->arena, &to->literals, l);
    }
    return OK;
}

Status model_layer(Run *r, const Expr *at, const Fn *fn, const Scope *s,
                   const ValueId *in, int nin, ValueId *out, int nout) {
    const TextOptions *opt = r->model->opt;
    TypeId *types = NEW_ARRAY(r->a, TypeId, nin + 1);
    Module *m;
    for (int i = 0; i < nin; i++) {
        if (!is_value(in[i]))
            return run_fail(r, at, "%s: operand %d is absent", fn->info.text,
                            i);
        types[i] = value_get(r->b->g, in[i])->type;
    }
    if (!opt->layer)
        return run_fail(r, at, "%s: this text cannot refer to files",
                        fn->info.text);
    if (opt->layer(opt->ctx, fn->onnx, types, nin, &m))
        return run_fail(r, at, "%s: the file cannot be this layer",
                        fn->info.text);
    const Graph *g = module_graph(m, FORWARD);
    Import x = {.r = r,
                .from = g,
                .prefix = s->prefix,
                .to = NEW_ARRAY(r->a, ValueId, g->values.len)};
    if (nout > g->outputs.len)
        return run_fail(r, at, "%s gives %d results", fn->info.text,
                        g->outputs.len);
    for (int i = 0; i < nin; i++) {
        const Value *input = value_get(g, g->inputs.data[i]);
        x.to[g->inputs.data[i].i] = in[i];
        if (input->type.i != types[i].i)
            return run_fail(r, at, "%s: input '%s' is %s, the operand %s",
                            fn->info.text, input->name,
                            TXT(type_get(input->type)),
                            TXT(value_type(r->b->g, in[i])));
    }
    if (import_all(&x)) {
        run_failed_at(r, at->line, at->col);
        return ERR_USER;
    }
    for (int i = 0; i < nout; i++) out[i] = x.to[g->outputs.data[i].value.i];
    return OK;
}
