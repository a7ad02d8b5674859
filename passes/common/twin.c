/* SPDX-License-Identifier: Apache-2.0 */
/* twin.c: see twin.h.
   Before:  graph micro: %h = relu %y : bf16[4,3]   %z = matmul %h, %w : f32[..]
            write %ampc.grad/w = add %ampc.grad/w, %dw
   After:   graph predict(.., %round.0: bool[]):
            %h = relu %y : f32[4,3]   %r = cast (cast %h : bf16) : f32
            %h.2 = where %round.0, %r, %h   %z = matmul %h.2, %w : f32[..]
            return loss=.., grad/w=%dw
   What backward computes again is rounded if what it repeats is. What it reads
   from codes of 8 bits (passes/codes.h) is the coded value itself, unless an
   input says that the value is rounded to codes.
   requires     stage PRIMITIVE, types chosen                                */
#include "passes/common/twin.h"

#include "passes/codes.h"
#include "passes/again.h"

#include <string.h>

typedef struct Twin {
    Graph *g;
    Builder b;
    Arena *scratch;
    ValueId *wide;     /* per value: the value that its readers read instead, or
                          0 */
    int *site;         /* per value: 1 + the number of its rounding, or 0 */
    ValueId *original; /* again.h */
    int limit;         /* length of these */
    TwinSites *sites;
    VEC(ValueId) on; /* per rounding: its input */
} Twin;

/* ---- a rounding ---------------------------------------------------------- */

/* The number of a new rounding, of `old`. */
static int new_site(Twin *t, ValueId old, TwinSite s) {
    Str name = internf("round.%d", t->sites->len);
    ValueId on = graph_input(t->g, name, type_scalar(DT_BOOL));
    s.input = value_get(t->g, on)->name;
    vec_push(t->g->arena, t->sites, s);
    vec_push(t->scratch, &t->on, on);
    return t->site[old.i] = t->sites->len;
}

/* v, rounded to d where the input of that rounding says so. */
static ValueId rounded_at(Twin *t, ValueId v, DType d, int site) {
    ValueId low = b_cast(&t->b, b_cast(&t->b, v, d), DT_F32);
    return b_where(&t->b, t->on.data[site - 1], low, v);
}

/* The copy of a parameter is computed here from the parameter. */
static ValueId twin_copy_of(Twin *t, ValueId v) {
    const Var *var = value_var(t->g, v);
    int source =
        var->kind == VAR_SHADOW ? shadow_source(t->g->module, var) : -1;
    if (source < 0) return b_cast(&t->b, v, DT_F32);
    TwinSite s = {.value = t->g->module->vars.data[source].name,
                  .dtype = type_get(var->type)->dtype,
                  .bytes = type_bytes(type_get(var->type)),
                  .parameter = true};
    ValueId from = graph_var(t->g, source);
    from = b_cast(&t->b, from, DT_F32);
    return rounded_at(t, from, s.dtype, new_site(t, v, s));
}

/* Codes stay what they are. */
static bool is_rounded(DType d) {
    return dtype_is_low(d) && !dtype_info[d].stored;
}

static ValueId twin_operand(Twin *t, ValueId v) {
    if (!v.i || (int)v.i >= t->limit) return v;
    if (!t->wide[v.i].i) {
        const Value *val = value_get(t->g, v);
        if (!is_rounded(value_dtype(t->g, v)))
            t->wide[v.i] = v;
        else if (val->kind == VK_VAR)
            t->wide[v.i] = twin_copy_of(t, v);
        else /* an input or a constant: it is as exact as given */
            t->wide[v.i] = b_cast(&t->b, v, DT_F32);
    }
    return t->wide[v.i];
}

/* ---- the program --------------------------------------------------------- */

static NodeId made_again(Twin *t, const Node *n, const ValueId *in,
                         const DType *out) {
    if (n->fn)
        return build_call(&t->b, n->fn, in, n->nin, n->attrs, n->nattr, n->nout,
                          out);
    return build_multi(&t->b, n->op, in, n->nin, n->attrs, n->nattr, n->nout,
                       out, NULL);
}

/* True if n only moves elements, so that its result is rounded if its
   operand was. */
static bool only_moves(const Twin *t, const Node *n) {
    OpKind kind = node_kind(n);
    return (kind == KIND_VIEW || kind == KIND_MOVE) &&
           is_rounded(value_dtype(t->g, n->in[0]));
}

/* The rounding that decides whether `old`, a result of n in 16 bits, is
   rounded. */
static int site_of(Twin *t, const Node *n, ValueId old) {
    ValueId from = t->original[old.i];
    bool codes = codes_source(t->g, old).i != 0; /* cast from f32 */
    int site = codes ? t->site[n->in[0].i] : t->site[from.i];
    const Type *was = value_type(t->g, old);
    if (site && (codes || t->sites->data[site - 1].dtype == was->dtype))
        return t->site[old.i] = site;
    TwinSite s = {.value = value_get(t->g, old)->name,
                  .node = n->loc.named,
                  .dtype = was->dtype,
                  .bytes = type_bytes(was),
                  .backward =
                      n->flags & NODE_BACKWARD && !(n->flags & NODE_AGAIN)};
    return new_site(t, old, s);
}

/* n has read `old` from codes: it is the value that has the codes, unless this
   is rounded. */
static void read_codes_or_value(Twin *t, const Node *n) {
    Graph *g = t->g;
    ValueId old = n->out[0], from = t->original[old.i];
    const Node *maker = value_maker(g, from);
    const Value *code =
        value_get(g, node_get(g, value_get(g, n->in[0])->def)->in[0]);
    TwinSite s = {.value = value_get(g, from)->name,
                  .node = maker ? maker->loc.named : NULL,
                  .dtype = type_get(code->type)->dtype,
                  .bytes = type_bytes(type_get(code->type))};
    ValueId read = twin_operand(t, old);
    int site = new_site(t, old, s);
    t->wide[old.i] = b_where(&t->b, t->on.data[site - 1], read,
                             b_cast(&t->b, twin_operand(t, from), DT_F32));
}

static void widen_twin_node(Twin *t, NodeId id) {
    Node n = *node_get(t->g, id); /* building may move the pool */
    ValueId *in = NEW_ARRAY(t->scratch, ValueId, n.nin + 1);
    DType *out = NEW_ARRAY(t->scratch, DType, n.nout);
    bool same = true;
    t->b.loc = n.loc;
    t->b.flags = n.flags;
    for (int i = 0; i < n.nin; i++) {
        in[i] = twin_operand(t, n.in[i]);
        same &= same_value(in[i], n.in[i]);
    }
    for (int i = 0; i < n.nout; i++) {
        out[i] = value_dtype(t->g, n.out[i]);
        if (is_rounded(out[i])) out[i] = DT_F32;
        same &= out[i] == value_dtype(t->g, n.out[i]);
    }
    if (same) {
        vec_push(t->g->arena, &t->g->order, id);
    } else if (n.op == OP_CAST && value_dtype(t->g, in[0]) == out[0]) {
        t->wide[n.out[0].i] = in[0];
    } else {
        NodeId to = made_again(t, &n, in, out);
        for (int i = 0; i < n.nout; i++)
            t->wide[n.out[i].i] = node_get(t->g, to)->out[i];
    }
    if (n.op == OP_MUL && codes_source(t->g, n.out[0]).i)
        read_codes_or_value(t, &n);
    for (int i = 0; i < n.nout; i++) {
        DType was = value_dtype(t->g, n.out[i]);
        if (!is_rounded(was) || only_moves(t, &n)) continue;
        t->wide[n.out[i].i] =
            rounded_at(t, t->wide[n.out[i].i], was, site_of(t, &n, n.out[i]));
    }
}

static void add_reader(Arena *a, TwinSite *s, Str node) {
    for (int i = 0; i < s->readers.len; i++)
        if (s->readers.data[i] == node) return;
    vec_push(a, &s->readers, node);
}

/* Finds the readers of rounded values, also through moves. */
static void find_readers(Twin *t, const NodeId *order, int n) {
    const Graph *g = t->g;
    for (int i = 0; i < n; i++) {
        const Node *x = node_get(g, order[i]);
        bool product = op_info[x->op].amp == AMP_LOW, moves = only_moves(t, x);
        if (moves) t->site[x->out[0].i] = t->site[x->in[0].i];
        for (int k = 0; k < x->nin && x->loc.named && !moves; k++) {
            int of = t->site[x->in[k].i];
            TwinSite *s = of ? &t->sites->data[of - 1] : NULL;
            if (s && (product || s->parameter))
                add_reader(g->arena, s, x->loc.named);
        }
    }
}

/* ---- results ------------------------------------------------------------- */

/* Finds %dw in: write %ampc.grad/w = add %ampc.grad/w, %dw. */
static ValueId summand(const Graph *g, Write w) {
    const Value *v = value_get(g, w.value);
    const Node *n = v->kind == VK_RESULT ? node_get(g, v->def) : NULL;
    if (!n || n->op != OP_ADD) return w.value;
    return same_value(n->in[0], w.var) ? n->in[1] : n->in[0];
}

static void set_outputs(Twin *t) {
    Graph *g = t->g;
    ValueId loss = graph_output(g, own_output(OUT_LOSS, g->objective));
    int n = g->writes.len;
    Write *writes = g->writes.data;
    g->outputs.len = g->writes.len = 0;
    if (loss.i) graph_add_output(g, intern("loss"), twin_operand(t, loss));
    for (int i = 0; i < n; i++) {
        Str of = family_member(FAMILY_GRAD, value_var(g, writes[i].var)->name);
        if (!of) continue;
        ValueId v = summand(g, writes[i]);
        graph_add_output(g, internf("grad/%s", of), twin_operand(t, v));
    }
}

Status twin_make(Module *m, Diag *d, Str objective, TwinSites *sites) {
    Graph *g = module_program(m, PROGRAM_MICRO, objective);
    if (!g)
        return fail(d, (Loc){.file = m->file},
                    "nothing trains, so that there is no step to look into");
    m->graphs.data[0] = g;
    m->graphs.len = 1;
    Twin t = {.g = g,
              .b = {.g = g},
              .scratch = arena_new(),
              .limit = g->values.len,
              .sites = sites};
    t.original = again_originals(g, t.scratch, true);
    int n = g->order.len;
    NodeId *order = NEW_ARRAY(t.scratch, NodeId, n + 1);
    memcpy(order, g->order.data, (size_t)n * sizeof *order);
    g->order.len = 0;
    t.wide = NEW_ARRAY(t.scratch, ValueId, t.limit);
    t.site = NEW_ARRAY(t.scratch, int, t.limit);
    for (int i = 0; i < n; i++) widen_twin_node(&t, order[i]);
    find_readers(&t, order, n);
    set_outputs(&t);
    VEC(ValueId) roots = {0};
    for (int i = 0; graph_root(g, i); i++)
        vec_push(t.scratch, &roots, *graph_root(g, i));
    graph_drop_unneeded(g, 0, 0, roots.data, roots.len);
    g->name = intern("predict");
    g->program = PROGRAM_PREDICT;
    g->objective = intern("");
    arena_free(t.scratch);
    return OK;
}
