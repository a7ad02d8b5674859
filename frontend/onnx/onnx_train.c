/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_train.c: which initializers train.  The first rule that fires decides:
   the user's globs; what cannot train is constant; running statistics of
   BatchNormalization and what the forward writes are buffers; the exporter's
   marks; else the role of the tensor and its name.  The reason is kept for
   `inspect --params`.                                                       */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- roles --------------------------------------------------------------- */

static bool bit(unsigned mask, int slot) {
    return mask >> (slot < 30 ? slot : 30) & 1;
}

/* A subgraph, and what its inputs stand for in the model (a weight that a loop
   hands on); NULL: made in the one around it. */
typedef struct Body {
    const struct Body *up;
    StrMap formal; /* an input's name to its index in `actual` */
    OxName *const *actual;
} Body;

/* What a name inside the innermost of some bodies of `owner` stands for; NULL:
   made inside. */
static OxName *outside(const Ox *ox, const OxNode *owner, const Body *body,
                       const char *name) {
    for (; body; body = body->up) {
        int i = str_map_get(&body->formal, ox_text(name));
        if (i >= 0) return body->actual[i];
    }
    return ox_name_of(ox, ox_scoped(owner, name));
}

/* Weights that the body of an If, a Loop or a Scan reads; a number among what
   it reads is a bound or a step. */
static void find_body_roles(Ox *ox, const OxNode *owner, const Body *up,
                            OxName *const *actual, size_t n,
                            const Onnx__GraphProto *g) {
    Body body = {.up = up, .actual = actual};
    for (size_t i = 0; i < g->n_input && i < n; i++)
        str_map_put(ox->scratch, &body.formal, ox_text(g->input[i]->name),
                    (int)i);
    for (size_t i = g->n_node; i-- > 0;) {
        const Onnx__NodeProto *p = g->node[i];
        const OxOp *op = ox_op_find(ox_text(p->op_type));
        OxName **in = NEW_ARRAY(ox->scratch, OxName *, p->n_input);
        for (size_t k = 0; k < p->n_input; k++) {
            in[k] = outside(ox, owner, &body, p->input[k]);
            if (op && in[k] && in[k]->kind == OX_INIT && !in[k]->role &&
                bit(op->weight, (int)k) &&
                onnx_may_be_weight(ox->inits.data[in[k]->index].proto))
                in[k]->role = owner;
        }
        for (size_t k = 0; k < p->n_attribute; k++)
            if (p->attribute[k]->g)
                find_body_roles(ox, owner, &body, in, p->n_input,
                                p->attribute[k]->g);
    }
}

static void find_roles_inside(Ox *ox, const OxNode *n) {
    OxName **in = NULL;
    for (int k = 0; k < n->nattr; k++) {
        if (!n->attr[k].p->g) continue;
        if (!in) {
            in = NEW_ARRAY(ox->scratch, OxName *, n->nin);
            for (int i = 0; i < n->nin; i++) in[i] = ox_name_of(ox, n->in[i]);
        }
        find_body_roles(ox, n, NULL, in, (size_t)n->nin, n->attr[k].p->g);
    }
}

/* Backwards over the live nodes: what reaches an output through differentiable
   operands, and which of it stands in a weight's place. */
static void find_roles(Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_output; i++)
        ox_name_of(ox, intern(ox->graph->output[i]->name))->reaches = true;
    for (int i = ox->order.len - 1; i >= 0; i--) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool reaches = false;
        const OxNode *role = NULL;
        for (int r = 0; r < n->nout; r++) {
            const OxName *out = ox_name_of(ox, n->out[r]);
            if (!out) continue;
            reaches |= out->reaches && !ox_stops(ox, n, r);
            if (!role) role = out->role;
        }
        for (int k = 0; k < n->nin && reaches; k++) {
            OxName *in = ox_name_of(ox, n->in[k]);
            if (!in || bit(n->op->nd, k)) continue;
            in->reaches = true;
            if (bit(n->op->weight, k))
                in->role = n;
            else if (n->op->weight >> 31 && !in->role)
                in->role = role;
        }
        if (reaches) find_roles_inside(ox, n);
    }
}

static bool digits(const char *s) {
    if (!*s) return false;
    for (; *s; s++)
        if (!isdigit((unsigned char)*s)) return false;
    return true;
}

/* A name that a module gave, not an exporter (the last two: paddle2onnx). */
static bool is_module_path(Str s) {
    return !digits(s) && s[0] != '/' && strncmp(s, "onnx::", 6) &&
           !(strncmp(s, "val_", 4) == 0 && digits(s + 4)) &&
           strncmp(s, "helper.", 7) && strncmp(s, "p2o.", 4);
}

/* tf2onnx writes the literals of a graph (an eps, the 0.5 of a GELU) as
   initializers; variables are read by an op of that name. */
static bool is_literal(const Ox *ox, const OxInit *x) {
    const char *by = ox->model->producer_name;
    return by && !strcmp(by, "tf2onnx") &&
           type_count(type_get(x->data->type)) == 1 &&
           !strstr(x->name, "ReadVariableOp");
}

/* ---- decisions ----------------------------------------------------------- */

typedef enum Content { ALL_FINITE, HAS_INF, HAS_NAN } Content;

static Content content_of(const Tensor *t) {
    const Type *type = type_get(t->type);
    int64_t n = type_count(type);
    Content worst = ALL_FINITE;
    Arena *tmp = arena_new();
    const float *f = type->dtype == DT_F32 ? t->data : NULL;
    const double *g = f ? NULL : eval_from_tensor(tmp, t)->f;
    for (int64_t i = 0; i < n && worst != HAS_NAN; i++) {
        double v = f ? (double)f[i] : g[i];
        if (!isfinite(v)) worst = isnan(v) ? HAS_NAN : HAS_INF;
    }
    arena_free(tmp);
    return worst;
}

static void become(OxInit *x, VarKind kind, Str why) {
    x->is_var = true;
    x->kind = kind;
    x->why = why;
}

/* --train and --freeze: the last match wins.  A pattern trains what can train,
   a name is an error where it cannot. */
static bool by_user(Ox *ox, OxInit *x, bool trainable) {
    const GlobRule *hit = NULL;
    for (int i = 0; i < ox->opt->train_rules.len; i++) {
        const GlobRule *r = &ox->opt->train_rules.data[i];
        if (!glob_match(r->glob, x->name)) continue;
        ox->rule_used[i] = true;
        if (trainable || !r->train || !strpbrk(r->glob, "*?")) hit = r;
    }
    if (!hit) return false;
    become(x, hit->train ? VAR_PARAM : VAR_FROZEN,
           internf("%s %s", hit->train ? "--train" : "--freeze", hit->glob));
    return true;
}

static bool by_mark(OxInit *x) {
    if (!x->mark) return false;
    bool param = !strcmp(x->mark, "PARAMETER");
    become(x, param ? VAR_PARAM : VAR_FROZEN,
           internf("%s in the file", x->mark));
    return true;
}

/* An unmarked file: a weight's place and a module's name. */
static void by_role(Ox *ox, OxInit *x, const OxName *name) {
    const OxNode *role = name->reaches ? name->role : NULL;
    if (is_literal(ox, x)) {
        x->why = intern("a literal of the graph: --train overrides");
        return;
    }
    if (role && is_module_path(x->name)) {
        become(x, VAR_PARAM, internf("operand of %s", role->type));
        return;
    }
    if (type_count(type_get(x->data->type)) == 1) {
        x->why = intern("one element, in no weight's place: --train overrides");
        return;
    }
    become(x, VAR_FROZEN,
           intern(!name->reaches ? "no gradient reaches it"
                  : role         ? "its name is no module path"
                                 : "in no weight's place"));
    if (options_train(ox->opt))
        ox_warn_model(ox, "'%s' does not train: %s (--train '%s' overrides)",
                      ox_quote(ox, x->name), x->why, ox_quote(ox, x->name));
}

static Status check_reach(Ox *ox, const OxInit *x, const OxName *name) {
    if (x->kind != VAR_PARAM || name->reaches || !options_train(ox->opt))
        return OK;
    return ox_fail_model(ox,
                         "parameter '%s' reaches the outputs only through "
                         "non-differentiable operands; --freeze '%s' keeps it "
                         "as it is",
                         ox_quote(ox, x->name), ox_quote(ox, x->name));
}

static Status decide(Ox *ox, OxInit *x) {
    const OxName *name = ox_name_of(ox, x->name);
    TRY(ox_tensor(ox, x->proto, x->name, &x->data));
    bool is_float = dtype_is_float(type_get(x->data->type)->dtype);
    Content content = is_float ? content_of(x->data) : ALL_FINITE;
    bool finite = content == ALL_FINITE;
    bool user = by_user(ox, x, is_float && finite && name->reaches);
    if (!is_float) {
        x->is_var = false;
    } else if (name->statistics_of) {
        become(x, VAR_BUFFER,
               internf("running statistics of '%s'",
                       ox_quote(ox, name->statistics_of->name)));
    } else if (x->written) {
        become(x, VAR_BUFFER, intern("written by the forward"));
    } else if (!user && !finite &&
               !(x->mark && !strcmp(x->mark, "PARAMETER"))) {
        x->is_var = false;
        x->why = intern("not finite: a mask");
    } else if (!user && !by_mark(x)) {
        by_role(ox, x, name);
    }
    if (content == HAS_NAN || (x->is_var && !finite)) /* -inf: a mask */
        ox_warn_model(ox, "'%s' holds %s%s", ox_quote(ox, x->name),
                      content == HAS_NAN ? "NaN" : "infinity",
                      x->is_var ? "" : " and does not train");
    return x->is_var ? check_reach(ox, x, name) : OK;
}

Status ox_decide(Ox *ox) {
    ox->rule_used = NEW_ARRAY(ox->a, bool, ox->opt->train_rules.len + 1);
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (n->op->handler != onnx_batch_norm) continue;
        for (int k = 3; k < 5; k++) ox_name_of(ox, n->in[k])->statistics_of = n;
    }
    ox_find_mutations(ox);
    find_roles(ox);
    for (int i = 0; i < ox->inits.len; i++)
        if (ox->inits.data[i].live) TRY(decide(ox, &ox->inits.data[i]));
    for (int i = 0; i < ox->opt->train_rules.len; i++) {
        const GlobRule *r = &ox->opt->train_rules.data[i];
        if (ox->rule_used[i]) continue;
        ox_fail_model(ox, "%s '%s' matches no initializer of the model",
                      r->train ? "--train" : "--freeze", ox_quote(ox, r->glob));
        return ERR_USAGE;
    }
    return OK;
}
