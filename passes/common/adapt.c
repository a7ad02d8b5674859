/* SPDX-License-Identifier: Apache-2.0 */
/* adapt.c: adapters beside frozen weights (--lora, --ia3), with the names,
   shapes, initial values and scaling of PEFT, and how frozen weights are stored
   (frozen.h).
   Before:  param %fc.weight: f32[out,in]
            %y = matmul %x, %fc.weight {trans_b=1}
   After:   frozen %fc.weight: bf16[out,in]
            param %fc.lora_A.weight: f32[rank,in] = uniform(±1/sqrt(in))
            param %fc.lora_B.weight: f32[out,rank] = 0
            %y = matmul %x, %fc.weight {trans_b=1}
            %a = matmul (dropout %x), %fc.lora_A.weight {trans_b=1}
            %b = matmul %a, %fc.lora_B.weight {trans_b=1}
            %z = add %y, (mul %b, alpha/rank)        read in the place of %y
   With dora each output of the adapted layer has a trained norm
   (dora.h), and %z is multiplied by it.
   With --ia3 %z = (%y + bias) * %fc.ia3_l, whose factors begin as 1, or with
   feedforward the product reads %x * %fc.ia3_l.  Those of a convolution are
   [1,out,1,1] or [1,in,1,1], as DoRA's norms.
   A weight [in,out], without trans_b or through a transposition, has the same
   adapter. That of a convolution's weight [out,in,kh,kw] is two convolutions:
   lora_A [rank,in,kh,kw] with all of its attributes, and lora_B [out,rank,1,1]
   (PEFT's lora_A has no dilation, so that what it merges differs from what it
   trains). Everything else freezes but what --train names, new heads and the
   biases that bias= asks for. What freezes here is kept once, in the 16 bits
   of the precision: no update needs an fp32 master of it. Norms, biases and
   other small parameters, and what the file had frozen, stay as they are: a
   table of angles has no phase in 16 bits.
   requires     stage TYPED, graph forward and its copies for other batches
   establishes  the module's list of adapters                               */
#include <math.h>
#include <string.h>

#include "passes/common/adapt.h"
#include "passes/common/frozen.h"
#include "passes/rewrite.h"

/* ---- which weights ------------------------------------------------------- */

/* The weight of a matrix product or a convolution; -1: n is neither. */
static int adapted_of(const Graph *g, const Node *n, bool *columns) {
    if (n->fn || n->op != OP_CONV) return weight_of(g, n, columns);
    const Value *w = value_get(g, n->in[1]);
    *columns = false;
    return w->kind == VK_VAR ? w->var : -1;
}

static void note_reader(Adapt *x, const Graph *g, const Node *n) {
    bool columns = false, ignored = false;
    int w = adapted_of(g, n, &columns);
    if (w >= 0) {
        Use *u = &x->use[w];
        if (u->product && u->columns != columns)
            u->other = "products as [in, out] and as [out, in]";
        u->product = n->op == OP_MATMUL;
        u->columns = columns;
        if (!u->product) u->conv = n;
    }
    for (int k = 0; k < n->nin; k++) {
        if ((w >= 0 && k == 1) || !n->in[k].i) continue;
        int v = weight_at(g, n->in[k], &ignored);
        if (v >= 0 && (n->fn || n->op != OP_TRANSPOSE))
            x->use[v].other = node_info(n)->text;
    }
}

static bool adapt_is_weight(const Var *v) {
    return (v->kind == VAR_PARAM || v->kind == VAR_FROZEN) &&
           dtype_is_float(type_get(v->type)->dtype);
}

static bool adapt_is_named(const Options *o, Str name) {
    bool named = false;
    for (int i = 0; i < o->train_rules.len; i++)
        if (glob_layer(o->train_rules.data[i].glob, name))
            named = o->train_rules.data[i].train;
    for (int i = 0; i < o->fresh.len; i++) named |= o->fresh.data[i] == name;
    return named;
}

static void find_uses(Adapt *x) {
    const Options *o = x->cx->opt;
    for (int i = 0; i < x->nvar; i++) {
        Use *u = &x->use[i];
        u->adapter = -1;
        u->whole = adapt_is_named(o, x->m->vars.data[i].name);
        if (!adapt_is_weight(&x->m->vars.data[i])) continue;
        for (int k = 0; k < o->adapters.len; k++)
            if (glob_layer(o->adapters.data[k].glob, x->m->vars.data[i].name))
                u->spec = &o->adapters.data[k];
    }
    for (int i = 0; i < x->m->graphs.len; i++) {
        const Graph *g = x->m->graphs.data[i];
        for (int k = 0; graph_is_model(g) && k < g->order.len; k++)
            note_reader(x, g, node_at(g, k));
    }
}

/* The reason why the weight of a convolution has no adapter. */
static const char *why_no_conv(const Use *u) {
    if (attr_int(u->conv, AK_group) == 1) return NULL;
    return u->spec->ia3 && !u->spec->feedforward
               ? NULL
               : "is a convolution's with groups, beside which none can be "
                 "merged";
}

static const char *why_not(const Adapt *x, int var) {
    const Use *u = &x->use[var];
    const char *why = u->conv ? why_no_conv(u) : NULL;
    if (!u->conv && type_get(x->m->vars.data[var].type)->rank != 2)
        return "is no matrix";
    if (why) return why;
    if (u->whole) return "trains itself (--train, --replace-head)";
    if (u->other) {
        StrBuf sb = {0};
        sb_printf(&sb, "is read by %s", u->other);
        Str s = intern(sb.data);
        sb_free(&sb);
        return s;
    }
    return u->product || u->conv ? NULL : "is the right operand of no matmul";
}

/* "fc" of fc.weight, as PEFT names modules. */
static Str module_of(Str weight) {
    static const char end[] = ".weight";
    size_t n = strlen(weight), k = sizeof end - 1;
    return n > k && !strcmp(weight + n - k, end) ? intern_n(weight, n - k)
                                                 : weight;
}

static Str part_name(Str module, const char *part) {
    return internf("%s.lora_%s.weight", module, part);
}

/* ---- the variables ------------------------------------------------------- */

static Status adapt_add_part(Adapt *x, const Use *u, Str name, TypeId t,
                             Var **out) {
    Module *m = x->m;
    if (module_find_var(m, name) >= 0)
        return fail(x->cx->diag, (Loc){.file = m->file},
                    "%s '%s': the model has a variable '%s' already",
                    u->spec->option, u->spec->glob, name);
    int i = module_var(m, VAR_PARAM, name, t, NULL, 0);
    *out = &m->vars.data[i];
    (*out)->why = internf("%s %s", u->spec->option, u->spec->glob);
    return OK;
}

/* Kaiming's uniform distribution with a = sqrt(5) */
static Draw kaiming(const Adapt *x, Str name, int64_t in) {
    double bound = 1 / sqrt((double)in);
    return (Draw){
        .kind = DRAW_UNIFORM,
        .seed = hash_bytes((uint64_t)x->cx->opt->seed, name, strlen(name)) >> 1,
        .a = -bound,
        .b = bound};
}

/* [1,n,1,..], as PEFT has numbers of a convolution's channels. */
static TypeId channels(const Adapter *a, int64_t n) {
    int64_t dim[MAX_RANK] = {1, n};
    for (int i = 0; i < a->axes; i++) dim[2 + i] = 1;
    return type_make(DT_F32, 2 + a->axes, dim);
}

/* t: the weight's type, [out,in] or [out,in,kh,kw]; what lora_A and lora_B
   have. */
static Status add_lora_parts(Adapt *x, const Use *u, Adapter *a, Type t) {
    int64_t out = t.dim[0], in = type_count(&t) / (out ? out : 1);
    int64_t up[MAX_RANK] = {out, u->spec->rank};
    Var *v;
    for (int i = 2; i < t.rank; i++) up[i] = 1;
    t.dim[0] = u->spec->rank;
    a->rank = u->spec->rank;
    a->alpha = u->spec->alpha;
    a->dropout = u->spec->dropout;
    a->a = part_name(a->module, "A");
    a->b = part_name(a->module, "B");
    TRY(adapt_add_part(x, u, a->a, type_make(DT_F32, t.rank, t.dim), &v));
    v->draw = kaiming(x, a->a, in);
    TRY(adapt_add_part(x, u, a->b, type_make(DT_F32, t.rank, up), &v));
    if (!u->spec->dora) return OK;
    a->magnitude = internf("%s.lora_magnitude_vector", a->module);
    TRY(adapt_add_part(x, u, a->magnitude,
                       a->axes ? channels(a, out) : type_make(DT_F32, 1, &out),
                       &v));
    v->fill = NAN; /* until program refresh has run (dora.h) */
    return OK;
}

/* The parameter [out] that v adds to the outputs of product n; -1: none. For a
   convolution v is [out,1,..]. */
static int bias_beside(const Graph *g, const Node *n, ValueId v) {
    if (n->op == OP_CONV) {
        const Node *channels = def_of(g, v, OP_RESHAPE);
        const Type *t = value_type(g, v);
        int axis = t->rank + 1 - value_type(g, n->out[0])->rank;
        if (!channels || axis < 0 || t->dim[axis] != value_count(g, v))
            return -1;
        v = channels->in[0];
    }
    const Value *x = value_get(g, v);
    return x->kind == VK_VAR && type_get(x->type)->rank == 1 ? x->var : -1;
}

/* The node that adds a parameter [out] to the result of product n, and to
   nothing else; NULL: none. */
static const Node *bias_add(const Graph *g, const Node *n, int *bias) {
    const Node *found = NULL;
    int uses = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *r = node_at(g, i);
        for (int k = 0; k < r->nin; k++) {
            if (r->in[k].i != n->out[0].i) continue;
            uses++;
            if (r->fn || r->op != OP_ADD) continue;
            int var = bias_beside(g, n, r->in[1 - k]);
            if (var >= 0 && value_get(g, r->out[0])->type.i ==
                                value_get(g, n->out[0])->type.i) {
                found = r;
                *bias = var;
            }
        }
    }
    return uses == 1 ? found : NULL;
}

static int readers_of_var(const Graph *g, int var) {
    int n = 0;
    for (int i = 0; i < g->order.len; i++)
        for (int k = 0; k < node_at(g, i)->nin; k++) {
            const Value *v = value_get(g, node_at(g, i)->in[k]);
            n += v->kind == VK_VAR && v->var == var;
        }
    return n;
}

/* The bias is merged with the factors, therefore nothing else may read it. */
static Status find_bias(const Adapt *x, int weight, Adapter *a) {
    const Graph *g = module_graph(x->m, FORWARD);
    for (int i = 0; i < g->order.len; i++) {
        bool columns;
        int bias;
        const Node *n = node_at(g, i);
        if (adapted_of(g, n, &columns) != weight || !bias_add(g, n, &bias))
            continue;
        a->bias = x->m->vars.data[bias].name;
        if (readers_of_var(g, bias) == 1) continue;
        return fail(x->cx->diag, (Loc){.file = x->m->file},
                    "--ia3: the factors of '%s' multiply its bias '%s', too, "
                    "which other nodes read: leave the layer out",
                    a->weight, a->bias);
    }
    return OK;
}

static Status add_ia3_parts(Adapt *x, const Use *u, int var, Adapter *a,
                            int64_t in, int64_t out) {
    const int64_t inputs[] = {1, in}, outputs[] = {out, 1};
    Var *v;
    a->feedforward = u->spec->feedforward;
    a->factor = internf("%s.ia3_l", a->module);
    TypeId t = type_make(DT_F32, 2, a->feedforward ? inputs : outputs);
    if (a->axes) t = channels(a, a->feedforward ? in : out);
    TRY(adapt_add_part(x, u, a->factor, t, &v));
    v->fill = 1;
    return a->feedforward ? OK : find_bias(x, var, a);
}

static Status adapt_add_adapter(Adapt *x, int var) {
    Use *u = &x->use[var];
    Type t = *type_get(x->m->vars.data[var].type);
    if (u->columns) {
        int64_t in = t.dim[0];
        t.dim[0] = t.dim[1];
        t.dim[1] = in;
    }
    Adapter a = {.weight = x->m->vars.data[var].name, .columns = u->columns};
    a.module = module_of(a.weight);
    a.axes = u->conv ? t.rank - 2 : 0;
    TRY(u->spec->ia3 ? add_ia3_parts(x, u, var, &a, t.dim[1], t.dim[0])
                     : add_lora_parts(x, u, &a, t));
    u->adapter = x->m->adapters.len;
    vec_push(x->m->arena, &x->m->adapters, a);
    return OK;
}

/* Each option adapts at least one weight; the matrices that it skips are
   listed. */
static Status add_adapters(Adapt *x, const AdapterSpec *spec) {
    Diag *d = x->cx->diag;
    Loc loc = {.file = x->m->file};
    bool exact = !strpbrk(spec->glob, "*?["), named = false;
    int adapted = 0, matched = 0, matrix = -1;
    StrBuf left = {0};
    Status st = OK;
    for (int i = 0; i < x->nvar && st == OK; i++) {
        const Var *v = &x->m->vars.data[i];
        named |= adapt_is_weight(v) && glob_layer(spec->glob, v->name);
        if (x->use[i].spec != spec) continue;
        const char *why = why_not(x, i);
        matched++;
        if (!why) {
            st = adapt_add_adapter(x, i);
            adapted++;
        } else if (type_get(v->type)->rank >= 2) {
            matrix = i;
            sb_printf(&left, "%s'%s' %s", left.len ? ", " : "", v->name, why);
        }
    }
    if (st == OK && (!adapted || (exact && matrix >= 0))) {
        fail(d, loc, "%s '%s' %s%s%s", spec->option, spec->glob,
             matched ? "matches no weight that matrix products or convolutions "
                       "alone read"
             : named ? "is left with no weight by the options after it"
                     : "matches no parameter of the model (ampc inspect "
                       "MODEL --params lists them)",
             left.len ? ": " : "", left.len ? left.data : "");
        st = ERR_USAGE;
    } else if (st == OK && left.len) {
        fail_note(d, loc, "%s '%s': without an adapter: %s", spec->option,
                  spec->glob, left.data);
    }
    sb_free(&left);
    return st;
}

/* ---- what freezes -------------------------------------------------------- */

static bool is_bias(Str name) {
    const char *dot = strrchr(name, '.');
    return strstr(dot ? dot : name, "bias") != NULL;
}

static bool bias_trains(const Adapt *x, Str name) {
    const Options *o = x->cx->opt;
    if (!is_bias(name)) return false;
    for (int i = 0; i < o->adapters.len; i++)
        if (o->adapters.data[i].bias == LORA_BIAS_ALL) return true;
    for (int i = 0; i < x->nvar; i++) {
        const Use *u = &x->use[i];
        if (u->adapter < 0 || u->spec->bias != LORA_BIAS_ADAPTED) continue;
        Str module = x->m->adapters.data[u->adapter].module;
        if (!strcmp(name, internf("%s.bias", module))) return true;
    }
    return false;
}

static bool is_left_out(const Options *o, Str name) {
    bool out = false;
    for (int i = 0; i < o->train_rules.len; i++)
        if (glob_layer(o->train_rules.data[i].glob, name))
            out = !o->train_rules.data[i].train;
    return out;
}

/* ours: per variable, whether an adapter's option froze it or, with
   --frozen-dtype, --freeze did. */
static void freeze(const Adapt *x, bool *ours) {
    const Options *o = x->cx->opt;
    for (int i = 0; i < x->nvar; i++) {
        Var *v = &x->m->vars.data[i];
        if (o->adapters.len && v->kind == VAR_PARAM && !x->use[i].whole &&
            !bias_trains(x, v->name)) {
            v->kind = VAR_FROZEN;
            v->why = intern(o->adapters.data[0].option);
            ours[i] = true;
        }
        ours[i] |= x->use[i].adapter >= 0 ||
                   (o->frozen_dtype && is_left_out(o, v->name));
        if (x->use[i].adapter >= 0) v->kind = VAR_FROZEN;
    }
}

/* The place of the node whose result an adapter of product `at` changes. */
static int changed_by(const Graph *g, int at, const Adapter *a) {
    int bias;
    const Node *n = node_at(g, at), *add;
    if (!a->factor || a->feedforward || !(add = bias_add(g, n, &bias)))
        return at;
    while (node_at(g, at) != add) at++;
    return at;
}

/* Finds the adapter of each node in order, or -1, while weights still have
   their own types. */
static int *adapters_of(const Adapt *x, const Graph *g) {
    int *adapter = NEW_ARRAY(x->cx->scratch, int, g->order.len + 1);
    for (int i = 0; i < g->order.len; i++) adapter[i] = -1;
    for (int i = 0; i < g->order.len; i++) {
        bool columns;
        int v = adapted_of(g, node_at(g, i), &columns);
        int k = v < 0 ? -1 : x->use[v].adapter;
        if (k >= 0) adapter[changed_by(g, i, &x->m->adapters.data[k])] = k;
    }
    return adapter;
}

/* ---- the pass ------------------------------------------------------------ */

Status pass_adapt(Module *m, PassCtx *cx) {
    const Options *o = cx->opt;
    Adapt x = {.m = m, .cx = cx, .nvar = m->vars.len};
    if ((!o->adapters.len && !o->frozen_dtype) || m->adapters.len) return OK;
    if (!module_graph(m, FORWARD))
        return fail(cx->diag, (Loc){.file = m->file},
                    "%s: no graph of the file is a model, called '%s'",
                    o->adapters.len ? o->adapters.data[0].option
                                    : "--frozen-dtype",
                    FORWARD);
    x.use = NEW_ARRAY(cx->scratch, Use, x.nvar + 1);
    find_uses(&x);
    for (int i = 0; i < o->adapters.len; i++)
        TRY(add_adapters(&x, &o->adapters.data[i]));
    bool *ours = NEW_ARRAY(cx->scratch, bool, x.nvar + 1);
    int **adapter = NEW_ARRAY(cx->scratch, int *, m->graphs.len);
    for (int i = 0; i < m->graphs.len; i++)
        adapter[i] = adapters_of(&x, m->graphs.data[i]);
    freeze(&x, ours);
    const Stored *stored = frozen_store(m, cx, ours, x.nvar);
    for (int i = 0; i < m->graphs.len; i++)
        if (graph_is_model(m->graphs.data[i]))
            adapt_graph(&x, m->graphs.data[i], adapter[i], stored);
    return OK;
}

static bool adapter_has(const Adapter *a, Str name) {
    const Str parts[] = {a->a, a->b, a->magnitude, a->factor};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (name && parts[i] == name) return true;
    return false;
}

static void put_adapter(const Adapter *a, StrBuf *sb) {
    static const char *const keys[] = {"module",    "weight", "a",   "b",
                                       "magnitude", "factor", "bias"};
    const Str texts[] = {a->module,    a->weight, a->a,   a->b,
                         a->magnitude, a->factor, a->bias};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        if (!texts[k]) continue;
        sb_put_json_field(sb, keys[k], texts[k]);
        sb_puts(sb, ",");
    }
    sb_printf(sb, "\"rank\":%lld,\"alpha\":%.17g,\"dropout\":%.17g,",
              (long long)a->rank, a->alpha, a->dropout);
    sb_printf(sb, "\"columns\":%d,\"feedforward\":%d,\"axes\":%d}", a->columns,
              a->feedforward, a->axes);
}

void adapters_put(const Module *m, StrBuf *sb) {
    sb_puts(sb, "{\"adapters\":[");
    for (int i = 0; i < m->adapters.len; i++) {
        sb_puts(sb, i ? ",\n{" : "{");
        put_adapter(&m->adapters.data[i], sb);
    }
    sb_puts(sb, "],\n\"trained\":[");
    for (int i = 0, n = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        bool part = false;
        if (v->kind != VAR_PARAM) continue;
        for (int k = 0; k < m->adapters.len; k++)
            part |= adapter_has(&m->adapters.data[k], v->name);
        if (part) continue;
        sb_puts(sb, n++ ? "," : "");
        sb_put_json_string(sb, v->name);
    }
    sb_puts(sb, "]}\n");
}
