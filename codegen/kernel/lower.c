/* SPDX-License-Identifier: Apache-2.0 */
/* lower.c: one group to one plan step.

   A group becomes a kernel over its domain (point-wise: the shape of the
   values that leave; row-wise: the reduced shape) or a library call, whose
   element-wise followers become an epilogue kernel.                         */
#include "codegen/kernel/lower.h"
#include "runtime/program/lib.h"

#include <ctype.h>
#include <string.h>

/* ---- nodes and results of the group -------------------------------------- */

typedef struct GroupFacts {
    int group;
    VEC(NodeId) nodes;
    VEC(ValueId)
    leave; /* values that leave the group, in order of
              definition */
} GroupFacts;

/* The nodes of a group are adjacent in the order. */
static GroupFacts group_facts(const Graph *g, int first, const bool *left,
                              Arena *a) {
    GroupFacts f = {.group = node_at(g, first)->group};
    for (int j = first; j < g->order.len; j++) {
        const Node *n = node_at(g, j);
        if (n->group != f.group) break;
        vec_push(a, &f.nodes, g->order.data[j]);
        for (int i = 0; i < n->nout; i++)
            if (left[n->out[i].i]) vec_push(a, &f.leave, n->out[i]);
    }
    return f;
}

/* ---- text for readers of the generated code ------------------------------ */

/* Names come from the model and may hold anything: only harmless ones are
   shown, others by number. */
static void put_lower_name(const Graph *g, ValueId v, StrBuf *sb) {
    const char *s = is_value(v) ? value_get(g, v)->name : NULL;
    size_t n = s ? strlen(s) : 0;
    bool plain = n > 0 && n <= 48;
    for (size_t i = 0; i < n && plain; i++)
        plain = isalnum((unsigned char)s[i]) || s[i] == '_' || s[i] == '.';
    if (plain)
        sb_printf(sb, "%%%s", s);
    else
        sb_printf(sb, "%%#%u", v.i);
}

static const char *group_comment(const Graph *g, const GroupFacts *f,
                                 Arena *a) {
    StrBuf sb = {0};
    for (int j = 0; j < f->nodes.len; j++) {
        const Node *n = node_get(g, f->nodes.data[j]);
        for (int i = 0; i < n->nout; i++) {
            if (i) sb_puts(&sb, ", ");
            put_lower_name(g, n->out[i], &sb);
        }
        sb_printf(&sb, " = %s", op_info[n->op].text);
        for (int i = 0; i < n->nin; i++) {
            sb_puts(&sb, i ? ", " : " ");
            put_lower_name(g, n->in[i], &sb);
        }
        sb_puts(&sb, " : ");
        sb_put_type(&sb, value_get(g, n->out[0])->type);
        sb_puts(&sb, "\n");
    }
    const char *r = arena_printf(a, "%s", sb.data ? sb.data : "");
    sb_free(&sb);
    return r;
}

/* ---- kernels ------------------------------------------------------------- */

static const Node *find_kind(const Graph *g, const GroupFacts *f, OpKind k) {
    for (int j = 0; j < f->nodes.len; j++) {
        const Node *n = node_get(g, f->nodes.data[j]);
        if (node_kind(n) == k) return n;
    }
    return NULL;
}

/* The first reduction along the rows, else the first reduction. */
static const Node *find_reduction(const Graph *g, const GroupFacts *f) {
    const Node *first = NULL;
    for (int j = 0; j < f->nodes.len; j++) {
        const Node *n = node_get(g, f->nodes.data[j]);
        if (node_kind(n) == KIND_REDUCE &&
            (!first || node_sums_columns(g, n, first)))
            first = n;
    }
    return first;
}

/* Chooses the domain and its columns. Columns are the folded dims, or the
   routine's columns for an epilogue (last dim of a matrix product, spatial
   dims of a convolution), or all dims. */
static void choose_domain(Lower *l, const GroupFacts *f, const Node *anchor) {
    const Node *r = l->rows = find_reduction(l->g, f);
    const int64_t *axes;
    int na = r ? attr_ints(r, AK_axes, &axes) : 0, first = 0;
    if (anchor) {
        l->k->form = KF_EPILOGUE;
        l->anchor = anchor->out[0];
        l->domain = *value_type(l->g, anchor->out[0]);
        first = anchor->op == OP_CONV ? 2 : l->domain.rank - 1;
    } else if (r) {
        l->domain = *value_type(l->g, r->in[0]);
        first = l->domain.rank;
    } else if (f->leave.len) {
        const Node *n = node_get(l->g, value_get(l->g, f->leave.data[0])->def);
        bool tile = node_by_tile(l->g, n);
        l->domain = *value_type(l->g, tile ? n->in[0] : f->leave.data[0]);
    }
    l->k->ndim = l->domain.rank;
    for (int d = 0; d < l->domain.rank; d++)
        l->k->dim[d] = (KDim){.extent = l->domain.dim[d], .col = d >= first};
    for (int j = 0; j < na; j++) l->k->dim[axes[j]].col = true;
}

/* Stores v, the result of a pad of rows: the domain's elements, then zeros. */
static void store_padded(Lower *l, ValueId v, const Node *pad) {
    const Type *t = value_type(l->g, v);
    KIndex at[MAX_RANK];
    int last = t->rank - 1;
    for (int d = 0; d <= last; d++) at[d] = at_loop(d);
    int inst = lower_as(l, lower_value(l, pad->in[0], at, 0), t->dtype);
    lower_store(l, v, inst, lower_flatten(l, t, at));
    inst = lower_as(l, lower_const(l, KT_F64, 0, 0), t->dtype);
    for (int64_t c = l->domain.dim[last]; c < t->dim[last]; c++) {
        at[last] = at_const(c);
        lower_store(l, v, inst, lower_flatten(l, t, at));
    }
}

/* Sums v over the rows: one number per column. */
static void add_columns(Lower *l, ValueId v, const Node *n) {
    const Type *t = value_type(l->g, v);
    KIndex at[MAX_RANK];
    for (int d = 0; d < l->k->ndim; d++) at[d] = at_loop(d);
    int inst = lower_as(l, lower_value(l, n->in[0], at, 0), DT_F32);
    for (int d = 0; d < l->k->ndim; d++)
        if (!l->k->dim[d].col) at[d] = at_const(0);
    lower_add_up(l, v, inst, lower_flatten(l, t, at));
}

/* Stores v for each element of the domain, or for each row. */
static void store_value(Lower *l, ValueId v) {
    const Type *t = value_type(l->g, v);
    const Node *def = node_get(l->g, value_get(l->g, v)->def);
    KIndex at[MAX_RANK];
    if (def->op == OP_PAD && !shape_equal(t, &l->domain)) {
        store_padded(l, v, def);
        return;
    }
    if (l->rows && node_sums_columns(l->g, l->rows, def)) {
        add_columns(l, v, def);
        return;
    }
    if (node_by_tile(l->g, def)) {
        lower_tile(l, v, def);
        return;
    }
    bool full = shape_equal(t, &l->domain), keepdims = t->rank == l->k->ndim;
    for (int d = 0, e = 0; d < l->k->ndim; d++) {
        bool folded = !full && l->k->dim[d].col;
        if (folded && !keepdims) continue;
        ASSERT(e < t->rank && t->dim[e] == (folded ? 1 : l->domain.dim[d]));
        at[e++] = folded ? at_const(0) : at_loop(d);
    }
    int inst = lower_value(l, v, at, 0);
    lower_store(l, v, inst, lower_flatten(l, t, at));
}

/* Lowers all values that leave the group. The kernel is built in scratch
   memory; the set copies it if it is new. */
static const Kernel *lower_kernel(Lower *l, const GroupFacts *f, KernelSet *ks,
                                  ValueId **refs, int *nref) {
    for (int j = 0; j < f->leave.len; j++) store_value(l, f->leave.data[j]);
    kernel_finish(l->arena, l->k);
    l->k->block_shared = ks->block_shared;
    l->npar = kernel_schedule(l->arena, l->k, ks->target, l->par);
    Kernel *k = kernel_set_add(ks, l->k);
    if (!k->comment) k->comment = group_comment(l->g, f, ks->arena);
    *nref = l->refs.len;
    *refs = arena_dup(ks->arena, l->refs.data,
                      (size_t)l->refs.len * sizeof *l->refs.data);
    return k;
}

/* Sets the operands of a role that are not to be stored: all, or those that
   do not leave. */
static void drop_refs(LoweredStep *s, LibRole role, const GroupFacts *f) {
    for (int i = 0; i < s->nref; i++) {
        bool leaves = false;
        if (lib_info(s->lib)->operands[i].role != role) continue;
        for (int j = 0; f && j < f->leave.len; j++)
            leaves |= same_value(f->leave.data[j], s->refs[i]);
        if (!leaves) s->refs[i] = NO_VALUE;
    }
}

/* The pool of the group's result: its refs and parameters follow the
   convolution's own. A value that only the pool reads is not stored. */
static Status lower_pool(const Graph *g, const GroupFacts *f, const Node *pool,
                         Arena *a, Diag *d, LoweredStep *out) {
    LoweredStep tail = {0};
    bool stored = false;
    TRY(lower_lib_call(g, pool, a, d, &tail));
    drop_refs(&tail, LIB_ROLE_OPT_OUT, f);
    for (int j = 0; j < f->leave.len; j++)
        stored |= same_value(f->leave.data[j], pool->in[0]);
    for (int i = 0; i < out->nep_ref && !stored; i++)
        if (same_value(out->ep_refs[i], pool->in[0]))
            out->ep_refs[i] = NO_VALUE;
    if (!stored) tail.refs[0] = NO_VALUE;
    if (!stored && !out->epilogue) drop_refs(out, LIB_ROLE_RESULT, NULL);
    ValueId *refs = NEW_ARRAY(a, ValueId, out->nref + tail.nref);
    int64_t *pars = NEW_ARRAY(a, int64_t, out->npar + tail.npar);
    memcpy(refs, out->refs, (size_t)out->nref * sizeof *refs);
    memcpy(refs + out->nref, tail.refs, (size_t)tail.nref * sizeof *refs);
    memcpy(pars, out->pars, (size_t)out->npar * sizeof *pars);
    memcpy(pars + out->npar, tail.pars, (size_t)tail.npar * sizeof *pars);
    out->refs = refs;
    out->pars = pars;
    out->nref += tail.nref;
    out->npar += tail.npar;
    out->second = tail.lib + 1;
    return OK;
}

/* The values that the epilogue stores if a pool follows the convolution. */
static GroupFacts pooled_facts(const GroupFacts *f, const Node *pool,
                               Arena *a) {
    GroupFacts x = {.group = f->group, .nodes = f->nodes};
    bool found = false;
    for (int j = 0; j < f->leave.len; j++) {
        ValueId v = f->leave.data[j];
        bool own = false;
        for (int i = 0; i < pool->nout; i++) own |= same_value(v, pool->out[i]);
        found |= same_value(v, pool->in[0]);
        if (!own) vec_push(a, &x.leave, v);
    }
    if (!found) vec_push(a, &x.leave, pool->in[0]);
    return x;
}

/* The gradient of padding is a sum of loads, one for every padded position
   that a source position can feed. */
static Status check_pad_grad(const Graph *g, const Node *n, Diag *d) {
    const Type *in = value_type(g, n->in[0]), *out = value_type(g, n->out[0]);
    Str mode = attr_str(n, AK_mode);
    bool edge = strcmp(mode, "edge") == 0;
    double loads = 1;
    if (strcmp(mode, "constant") == 0) return OK;
    for (int j = 0; j < out->rank; j++) {
        double added = (double)(in->dim[j] - out->dim[j]);
        double size = out->dim[j] > 1 ? (double)out->dim[j] : 1;
        loads *= edge ? added + 1 : 2 * (added / size) + 1;
    }
    if (loads <= 1000) return OK;
    return fail(d, n->loc,
                "the gradient of padding to %lld elements has too "
                "many terms",
                (long long)type_count(in));
}

/* ---- a group ------------------------------------------------------------- */

/* The step of a group without a routine. */
static void lower_step(Lower *l, const GroupFacts *f, KernelSet *ks,
                       LoweredStep *out) {
    out->kind = PLAN_KERNEL;
    out->kernel = lower_kernel(l, f, ks, &out->refs, &out->nref);
    out->units = kernel_units(l->k, l->par[0]);
    out->grain =
        ks->target == TARGET_CUDA ? 1 : cpu_grain(ks->arena, l->k, l->par[0]);
    out->npar = l->npar;
    out->unit = l->k->form == KF_FLAT ? l->k->loop[0].step : 0;
    out->pars = arena_dup(ks->arena, l->par, sizeof l->par);
}

static Status lower_group(const Graph *g, const GroupFacts *f, KernelSet *ks,
                          Arena *scratch, Diag *d, LoweredStep *out) {
    const Node *anchor = find_kind(g, f, KIND_ANCHOR);
    const Node *lib = find_kind(g, f, KIND_LIB);
    const Node *pool = anchor ? lib : NULL;
    const Node *first = node_get(g, f->nodes.data[0]);
    Lower l = {
        .g = g, .group = f->group, .target = ks->target, .arena = scratch};
    out->name =
        value_get(g, f->leave.len ? f->leave.data[0] : first->out[0])->name;
    if (!out->name) out->name = op_info[first->op].text;
    if (anchor || (lib && lower_has_routine(lib->op))) {
        const Node *called = anchor ? anchor : lib;
        TRY(lower_lib_call(g, called, ks->arena, d, out));
        if (g->target == TARGET_CUDA)
            out->factors = (AmpcFactors)called->loc.factors;
        drop_refs(out, LIB_ROLE_OPT_OUT, f);
        if (f->nodes.len == 1) return OK;
        if (pool && f->nodes.len == 2)
            return lower_pool(g, f, pool, ks->arena, d, out);
    } else if (lib) {
        TRY(check_pad_grad(g, lib, d));
    }
    l.k = NEW(scratch, Kernel);
    choose_domain(&l, f, anchor);
    if (anchor) { /* the element-wise nodes after it */
        l.k->tile_rows = lower_tile_rows(out);
        drop_refs(out, LIB_ROLE_RESULT, NULL);
        GroupFacts made = pool ? pooled_facts(f, pool, scratch) : *f;
        out->epilogue =
            lower_kernel(&l, &made, ks, &out->ep_refs, &out->nep_ref);
        if (pool) return lower_pool(g, f, pool, ks->arena, d, out);
        if (product_is_library(g, anchor))
            out->end =
                product_end(g, anchor, f->nodes.data + 1, f->nodes.len - 1);
        return OK;
    }
    lower_step(&l, f, ks, out);
    return OK;
}

/* A kernel that sums x->out, which is in memory, as its group does. */
static const LoweredStep *lower_sums(const Graph *g, const ProductGelu *x,
                                     KernelSet *ks, Arena *scratch) {
    LoweredStep *out = NEW(ks->arena, LoweredStep);
    NodeId id = value_get(g, x->sums)->def;
    GroupFacts f = {.group = node_get(g, id)->group};
    Lower l = {.g = g,
               .group = f.group,
               .target = ks->target,
               .arena = scratch,
               .stored = x->out};
    vec_push(scratch, &f.nodes, id);
    vec_push(scratch, &f.leave, x->sums);
    l.k = NEW(scratch, Kernel);
    choose_domain(&l, &f, NULL);
    lower_step(&l, &f, ks, out);
    out->name = value_get(g, x->sums)->name;
    out->block_shared = ks->block_shared;
    return out;
}

/* GELU, or its slope, that cuBLASLt computes with product s, whose group begins
   at node `first`; the next group begins at `next` or later. */
static void lower_gelu(const Graph *g, int first, int next, KernelSet *ks,
                       Arena *scratch, LoweredStep *s) {
    ProductGelu x;
    if (g->target != TARGET_CUDA || s->lib != PLAN_LIB_GEMM || s->kernel)
        return;
    while (next < g->order.len && node_at(g, next)->group < 0) next++;
    if (next >= g->order.len || !product_gelu(g, first, next, &x)) return;
    s->gelu = arena_dup(ks->arena, &x, sizeof x);
    if (is_value(x.sums)) s->sums = lower_sums(g, &x, ks, scratch);
}

/* Per value: read by another group, a view or the host. */
static bool *values_left(const Graph *g, Arena *a) {
    bool *left = NEW_ARRAY(a, bool, g->values.len);
    for (int j = 0; j < g->order.len; j++) {
        const Node *n = node_at(g, j);
        for (int i = 0; i < n->nin; i++) {
            if (!is_value(n->in[i])) continue;
            const Value *v = value_get(g, n->in[i]);
            if (v->kind == VK_RESULT && node_get(g, v->def)->group != n->group)
                left[n->in[i].i] = true;
        }
    }
    for (int j = 0; j < g->groups.len; j++)
        left[g->groups.data[j].guard.when.i] = true;
    for (int j = 0; j < g->outputs.len; j++)
        left[g->outputs.data[j].value.i] = true;
    for (int j = 0; j < g->writes.len; j++)
        left[g->writes.data[j].value.i] = true;
    return left;
}

Status lower_graph(const Graph *g, KernelSet *ks, Diag *d, LoweredStep **out) {
    Status status = OK;
    const bool *left = values_left(g, ks->arena);
    *out = NEW_ARRAY(ks->arena, LoweredStep, g->groups.len + 1);
    for (int j = 0, n = 1; j < g->order.len; j += n, n = 1) {
        if (node_at(g, j)->group < 0) continue;
        Arena *scratch = arena_new();
        GroupFacts f = group_facts(g, j, left, scratch);
        LoweredStep *s = &(*out)[f.group];
        n = f.nodes.len;
        if (lower_group(g, &f, ks, scratch, d, s) != OK) status = ERR_USER;
        lower_gelu(g, j, j + n, ks, scratch, s);
        s->guard = g->groups.data[f.group].guard;
        s->block_shared = ks->block_shared;
        arena_free(scratch);
    }
    return status;
}
