/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c: checks the promises of the IR's current stage. Runs after every
   pass (passes/pipeline/pipeline.c).

   From TYPED on
    1  every node in order exists and stands there once
    2  operands exist, are defined before the node, and are only absent where
       the op allows it
    3  results and their nodes point at each other; every result has one node
    4  attributes are the op's own, sorted; types are as the type rule says
    5  every name has one value; only rank-0 constants may be unnamed
    6  variables: type and name of the module's variable, one value per graph;
       one with a name of the compiler has its kind and type
    7  constants have data of their type
    8  inputs, outputs and writes name values that are defined; a variable is
       written once, with its own type, and summed over ranks if it is an f32
       gradient; output names differ; no input has a name of the compiler's
   From CAST to STEP (verify_stage.c)
    9  where autocast is on, no LOW op of the forward pass reads f32; no op
       grad is left
   In DIFF
   10  a program that trains returns its loss, f32[], and gradients, f32 with
       the shapes of their parameters
   11  forward nodes read no backward ones
   In STEP to PRIMITIVE, where the passes made the programs
   12  parameters and optimizer state are written by update nodes, depending on
       the finite flag, which is an output
   13  every attempt is counted; micro-batches and their losses are summed
   14  a program that writes a variable also writes its 16-bit copies
   15  refresh writes copies only, and parameters that begin as NaN
   From INLINED on (verify_stage.c)
   16  only calls of whole functions are left; from FUSED on none
   From PRIMITIVE on (verify_stage.c)
   17  no SPLIT is left; reductions keep their dimensions
   From FUSED on (verify_group.c)
   18  every node but VIEW is in one group; groups stand together in order and
       are not empty
   19  a group keeps the promises of its kind (codegen/codegen.h); groups of one
       launch are POINT and read no results of each other
   From PLANNED on (verify_group.c)
   20  every value that leaves a group has an offset inside the arena or a home
   21  buffers that live at the same time do not overlap; a result may take the
       place of an operand that dies there and is read at the same index only
   22  a home is a written variable whose other readers run before            */
#include "ir/graph/verify.h"

#include <stdlib.h>
#include <string.h>

static void put_node(StrBuf *sb, const Graph *g, const Node *n) {
    for (int i = 0; i < n->nout && i < 3; i++) {
        bool known = n->out[i].i && n->out[i].i < (uint32_t)g->values.len;
        Str name = known ? g->values.data[n->out[i].i].name : NULL;
        sb_puts(sb, i ? ", %" : ": %");
        sb_put_escaped(sb, name ? name : "?");
    }
    sb_printf(sb, " = %s", n->op < NUM_OPS ? node_info(n)->text : "?");
}

Status verify_fail(Verifier *v, const Node *n, const char *fmt, ...) {
    StrBuf sb = {0};
    va_list ap;
    sb_printf(&sb, "graph %s, stage %s", v->g->name, stage_text[v->stage]);
    if (n) put_node(&sb, v->g, n);
    sb_puts(&sb, ": ");
    va_start(ap, fmt);
    sb_vprintf(&sb, fmt, ap);
    va_end(ap);
    Status s = fail(v->diag, n ? n->loc : (Loc){.file = v->g->module->file},
                    "%s", sb.data);
    sb_free(&sb);
    return s;
}

static bool exists(const Verifier *v, ValueId x) {
    return x.i && x.i < (uint32_t)v->g->values.len;
}

/* ---- values -------------------------------------------------------------- */

static Status check_var(Verifier *v, uint32_t i, uint32_t *reader) {
    const Value *x = &v->g->values.data[i];
    const Module *m = v->g->module;
    if (x->var < 0 || x->var >= m->vars.len)
        return verify_fail(v, NULL, "%%%s reads variable %d of %d", x->name,
                           x->var, m->vars.len);
    const Var *var = &m->vars.data[x->var];
    if (var->type.i != x->type.i)
        return verify_fail(v, NULL, "%%%s is %s, the variable is %s", x->name,
                           TXT(type_get(x->type)), TXT(type_get(var->type)));
    if (var->name != x->name)
        return verify_fail(v, NULL, "variable %s is called %%%s", var->name,
                           x->name ? x->name : "?");
    if (reader[x->var])
        return verify_fail(v, NULL, "variable %s has two values", var->name);
    reader[x->var] = i;
    return OK;
}

static Status check_const(Verifier *v, const Value *x) {
    const char *name = x->name ? x->name : "constant";
    if (!x->data || !x->data->data)
        return verify_fail(v, NULL, "%s has no data", name);
    if (x->data->type.i != x->type.i)
        return verify_fail(v, NULL, "%s is %s, its data %s", name,
                           TXT(type_get(x->type)),
                           TXT(type_get(x->data->type)));
    if (!x->name && type_get(x->type)->rank != 0)
        return verify_fail(v, NULL, "a constant of type %s has no name",
                           TXT(type_get(x->type)));
    return OK;
}

/* Leaves are defined from the start.  the type rule checks it */
static Status check_leaves(Verifier *v) {
    uint32_t *reader = NEW_ARRAY(v->a, uint32_t, v->g->module->vars.len + 1);
    for (int i = 1; i < v->g->values.len; i++) {
        const Value *x = &v->g->values.data[i];
        if (x->kind == VK_RESULT) continue;
        if (!x->type.i) return verify_fail(v, NULL, "value %d has no type", i);
        if (x->kind == VK_INPUT) continue;
        if (x->kind == VK_VAR) TRY(check_var(v, (uint32_t)i, reader));
        if (x->kind == VK_CONST) TRY(check_const(v, x));
        v->defined[i] = true;
    }
    for (int i = 0; i < v->g->inputs.len; i++) {
        ValueId x = v->g->inputs.data[i];
        if (!exists(v, x) || value_get(v->g, x)->kind != VK_INPUT)
            return verify_fail(v, NULL, "input %d is not an input value", i);
        if (v->defined[x.i])
            return verify_fail(v, NULL, "input %d is listed twice", i);
        if (name_is_own(value_get(v->g, x)->name))
            return verify_fail(v, NULL,
                               "input %%%s: names that start with 'ampc.' are "
                               "the compiler's",
                               value_get(v->g, x)->name);
        v->defined[x.i] = true;
    }
    return OK;
}

/* ---- nodes --------------------------------------------------------------- */

static Status check_operands(Verifier *v, const Node *n) {
    for (int i = 0; i < n->nin; i++) {
        ValueId x = n->in[i];
        if (!is_value(x)) continue; /* the type rule's business */
        if (!exists(v, x))
            return verify_fail(v, n, "operand %d is value %u of %d", i, x.i,
                               v->g->values.len);
        if (!v->defined[x.i]) {
            Str name = value_get(v->g, x)->name;
            return verify_fail(v, n,
                               "operand %%%s is used before its "
                               "definition",
                               name ? name : "?");
        }
    }
    return OK;
}

static Status check_results(Verifier *v, NodeId id) {
    const Node *n = node_get(v->g, id);
    for (int i = 0; i < n->nout; i++) {
        ValueId y = n->out[i];
        if (!exists(v, y)) return verify_fail(v, n, "result %d is missing", i);
        const Value *x = value_get(v->g, y);
        if (x->kind != VK_RESULT || x->def.i != id.i || x->result != i)
            return verify_fail(v, n, "result %d does not point back", i);
        if (v->defined[y.i])
            return verify_fail(v, n, "result %d is defined twice", i);
        if (!x->name) return verify_fail(v, n, "result %d has no name", i);
        v->defined[y.i] = true;
    }
    return OK;
}

static Status check_nodes(Verifier *v) {
    const Graph *g = v->g;
    char msg[MSG_TEXT];
    for (int i = 0; i < g->nodes.len; i++) v->pos[i] = -1;
    for (int i = 0; i < g->order.len; i++) {
        NodeId id = g->order.data[i];
        if (!id.i || id.i >= (uint32_t)g->nodes.len)
            return verify_fail(v, NULL, "node %u in order does not exist",
                               id.i);
        const Node *n = node_get(g, id);
        if (n->op >= NUM_OPS) return verify_fail(v, n, "op %d", (int)n->op);
        if (v->pos[id.i] >= 0)
            return verify_fail(v, n, "occurs twice in the order");
        v->pos[id.i] = i;
        TRY(check_operands(v, n));
        TRY(check_results(v, id));
        if (node_check_types(g, n, msg) != OK)
            return verify_fail(v, n, "%s", msg);
    }
    return OK;
}

/* ---- names --------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
    const Str *p = a, *q = b;
    uintptr_t x = (uintptr_t)*p, y = (uintptr_t)*q;
    return (x > y) - (x < y);
}

/* Checks only values that the text shows: dead constants may share a name. */
static Status check_names(Verifier *v) {
    const Graph *g = v->g;
    int *uses = graph_use_counts(g, v->a), n = g->outputs.len;
    for (uint32_t i = 1; i < (uint32_t)g->values.len; i++) {
        const Value *x = &g->values.data[i];
        bool shown = x->kind == VK_CONST ? uses[i] > 0 : v->defined[i];
        if (shown && x->name && graph_find_name(g, x->name).i != i)
            return verify_fail(v, NULL, "%%%s names two values", x->name);
    }
    Str *names = NEW_ARRAY(v->a, Str, n);
    for (int i = 0; i < n; i++) names[i] = g->outputs.data[i].name;
    if (n) qsort(names, (size_t)n, sizeof *names, by_address);
    for (int i = 1; i < n; i++)
        if (names[i] == names[i - 1])
            return verify_fail(v, NULL, "two outputs named %s", names[i]);
    return OK;
}

/* ---- effects ------------------------------------------------------------- */

static Status check_write(Verifier *v, const Write *w, bool *written) {
    const Graph *g = v->g;
    if (!exists(v, w->var) || value_get(g, w->var)->kind != VK_VAR)
        return verify_fail(v, NULL,
                           "a write to a value that is not a variable");
    const Value *var = value_get(g, w->var);
    if (!exists(v, w->value) || !v->defined[w->value.i])
        return verify_fail(v, NULL, "%%%s is written from an undefined value",
                           var->name);
    const Value *x = value_get(g, w->value);
    if (x->type.i != var->type.i)
        return verify_fail(v, NULL, "%%%s is %s, written with %s", var->name,
                           TXT(type_get(var->type)), TXT(type_get(x->type)));
    if (written[var->var])
        return verify_fail(v, NULL, "%%%s is written twice", var->name);
    const Var *of = value_var(g, w->var);
    bool sums = of->kind == VAR_GRAD && type_get(of->type)->dtype == DT_F32;
    if (w->bucket && !sums)
        return verify_fail(v, NULL,
                           "%%%s is summed over ranks, but no f32 "
                           "gradient",
                           var->name);
    written[var->var] = true;
    return OK;
}

static Status check_effects(Verifier *v) {
    const Graph *g = v->g;
    bool *written = NEW_ARRAY(v->a, bool, g->module->vars.len + 1);
    for (int i = 0; i < g->writes.len; i++)
        TRY(check_write(v, &g->writes.data[i], written));
    for (int i = 0; i < g->outputs.len; i++) {
        const Output *o = &g->outputs.data[i];
        if (!o->name) return verify_fail(v, NULL, "output %d has no name", i);
        if (!exists(v, o->value) || !v->defined[o->value.i])
            return verify_fail(v, NULL, "output %s is not defined", o->name);
    }
    return OK;
}

/* ---- the verifier -------------------------------------------------------- */

static Status verify_all(Verifier *v) {
    TRY(check_leaves(v));
    TRY(check_nodes(v));
    TRY(check_effects(v));
    TRY(check_names(v));
    bool made = v->g->module->given < STAGE_STEP;
    bool step = v->stage >= STAGE_STEP && v->stage <= STAGE_PRIMITIVE;
    bool cast = v->stage >= STAGE_CAST && v->stage <= STAGE_STEP;
    if (cast) TRY(verify_cast(v));
    if (v->stage == STAGE_DIFF) TRY(verify_diff(v));
    if (made && step) TRY(verify_step(v));
    if (v->stage >= STAGE_INLINED) TRY(verify_inlined(v));
    if (v->stage >= STAGE_PRIMITIVE) TRY(verify_primitive(v));
    if (v->stage >= STAGE_FUSED) TRY(verify_groups(v));
    if (v->stage >= STAGE_PLANNED) TRY(verify_plan(v));
    return OK;
}

Status verify_graph(const Graph *g, Stage s, Diag *d) {
    Verifier v = {.g = g, .stage = s, .diag = d, .a = arena_new()};
    v.defined = NEW_ARRAY(v.a, bool, g->values.len);
    v.pos = NEW_ARRAY(v.a, int, g->nodes.len);
    Status r = verify_all(&v);
    arena_free(v.a);
    return r;
}

static Status check_module(const Module *m, Diag *d) {
    Loc loc = {.file = m->file};
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        if (module_graph_on(m, g->name, g->target) != g)
            return fail(d, loc, "two graphs named %s on %s", g->name,
                        target_text[g->target]);
    }
    for (int i = 0; i < m->vars.len; i++) {
        const Var *v = &m->vars.data[i];
        if (!v->type.i) return fail(d, loc, "variable %s has no type", v->name);
        if (v->init && v->init->type.i != v->type.i)
            return fail(d, loc, "variable %s is %s, its initial value %s",
                        v->name, TXT(type_get(v->type)),
                        TXT(type_get(v->init->type)));
        if (module_find_name(m, v->name) != i)
            return fail(d, loc, "two variables named %s", v->name);
        const char *defect = own_var_defect(m, v);
        if (defect) return fail(d, loc, "variable %s %s", v->name, defect);
    }
    return OK;
}

Status verify_module(const Module *m, Stage s, Diag *d) {
    TRY(check_module(m, d));
    for (int i = 0; i < m->graphs.len; i++)
        TRY(verify_graph(m->graphs.data[i], s, d));
    return OK;
}
