/* lower.c: one group to one plan step.

   A group becomes a kernel over its domain (point-wise: the shape of the
   values that leave; row-wise: the reduced shape) or a library call, whose
   element-wise followers become an epilogue kernel.                         */
#include "codegen/kernel/lower.h"
#include "codegen/kernel/schedule.h"
#include "runtime/lib.h"

#include <ctype.h>
#include <string.h>

/* ---- what is in the group ------------------------------------------------ */

typedef struct GroupFacts {
    int group;
    VEC(NodeId) nodes;
    VEC(ValueId) leave; /* values used outside, in order of definition */
} GroupFacts;

/* The nodes of a group stand together in the order; `left` = read by another
   group, a view or the host, by ValueId.i. */
static void find_left(const Graph *g, bool *left) {
    for (int j = 0; j < g->order.len; j++) {
        const Node *n = node_get(g, g->order.data[j]);
        for (int i = 0; i < n->nin; i++) {
            if (!is_value(n->in[i])) continue;
            const Value *v = value_get(g, n->in[i]);
            if (v->kind == VK_RESULT && node_get(g, v->def)->group != n->group)
                left[n->in[i].i] = true;
        }
    }
    for (int j = 0; j < g->outputs.len; j++)
        left[g->outputs.data[j].value.i] = true;
    for (int j = 0; j < g->writes.len; j++)
        left[g->writes.data[j].value.i] = true;
}

static GroupFacts group_facts(const Graph *g, int first, const bool *left,
                              Arena *a) {
    GroupFacts f = {.group = node_get(g, g->order.data[first])->group};
    for (int j = first; j < g->order.len; j++) {
        const Node *n = node_get(g, g->order.data[j]);
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
static void put_name(const Graph *g, ValueId v, StrBuf *sb) {
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

static void put_node(const Graph *g, const Node *n, StrBuf *sb) {
    for (int i = 0; i < n->nout; i++) {
        if (i) sb_puts(sb, ", ");
        put_name(g, n->out[i], sb);
    }
    sb_printf(sb, " = %s", op_info[n->op].text);
    for (int i = 0; i < n->nin; i++) {
        sb_puts(sb, i ? ", " : " ");
        put_name(g, n->in[i], sb);
    }
    sb_puts(sb, " : ");
    sb_put_type(sb, value_get(g, n->out[0])->type);
    sb_puts(sb, "\n");
}

static const char *group_comment(const Graph *g, const GroupFacts *f,
                                 Arena *a) {
    StrBuf sb = {0};
    for (int j = 0; j < f->nodes.len; j++)
        put_node(g, node_get(g, f->nodes.data[j]), &sb);
    const char *r = arena_printf(a, "%s", sb.data ? sb.data : "");
    sb_free(&sb);
    return r;
}

/* ---- kernels ------------------------------------------------------------- */

static void domain(Lower *l, const Type *t) {
    l->k->ndim = t->rank;
    for (int d = 0; d < t->rank; d++)
        l->k->dim[d] = (KDim){.extent = t->dim[d], .col = true};
}

/* Everything is made in scratch memory; the set keeps what is new to it. */
static Lower lower_begin(const Graph *g, const GroupFacts *f, Arena *scratch) {
    Lower l = {.g = g, .group = f->group, .arena = scratch};
    l.k = NEW(scratch, Kernel);
    return l;
}

static const Kernel *keep_kernel(const Lower *l, const GroupFacts *f,
                                 KernelSet *ks, ValueId **refs, int *nref) {
    Arena *a = kernel_set_arena(ks);
    kernel_finish(l->arena, l->k);
    kernel_schedule(l->arena, l->k, kernel_set_target(ks));
    Kernel *k = kernel_set_add(ks, l->k);
    if (!k->comment) k->comment = group_comment(l->g, f, a);
    *nref = l->refs.len;
    *refs =
        arena_dup(a, l->refs.data, (size_t)l->refs.len * sizeof *l->refs.data);
    return k;
}

/* Stores v, whose dims are those loops of the domain that `rows` keeps. */
static void store_value(Lower *l, ValueId v, const bool *folded) {
    const Type *t = value_type(l->g, v);
    KIndex at[MAX_RANK];
    bool same = t->rank == l->k->ndim;
    for (int d = 0, e = 0; d < l->k->ndim; d++) {
        if (folded[d] && !same) continue;
        ASSERT(e < t->rank);
        at[e++] = folded[d] ? at_const(0) : at_loop(d);
    }
    int inst = lower_value(l, v, at, 0);
    lower_store(l, v, inst, lower_flatten(l, t, at));
}

static void lower_end(Lower *l, const GroupFacts *f, KernelSet *ks,
                      LoweredStep *out) {
    int64_t count = 1;
    for (int d = 0; d < l->k->ndim; d++) count *= l->k->dim[d].extent;
    out->kind = PLAN_KERNEL;
    out->kernel = keep_kernel(l, f, ks, &out->refs, &out->nref);
    out->units = kernel_units(l->k, count);
    bool cuda = kernel_set_target(ks) == TARGET_CUDA;
    out->grain = cuda ? 1 : cpu_grain(l->k, count);
    out->npar = l->k->form == KF_FLAT;
    out->pars = arena_dup(kernel_set_arena(ks), &count, sizeof count);
}

static void lower_point(Lower *l, const GroupFacts *f) {
    bool folded[MAX_RANK] = {0};
    if (f->leave.len == 0) return;
    domain(l, value_type(l->g, f->leave.data[0]));
    for (int j = 0; j < f->leave.len; j++) {
        ASSERT(shape_equal(value_type(l->g, f->leave.data[j]),
                           value_type(l->g, f->leave.data[0])));
        store_value(l, f->leave.data[j], folded);
    }
}

static const Node *find_kind(const Graph *g, const GroupFacts *f, OpKind k) {
    for (int j = 0; j < f->nodes.len; j++) {
        const Node *n = node_get(g, f->nodes.data[j]);
        if (op_info[n->op].kind == k) return n;
    }
    return NULL;
}

static void lower_row(Lower *l, const GroupFacts *f) {
    static const bool none[MAX_RANK] = {0};
    const Node *r = find_kind(l->g, f, KIND_REDUCE);
    bool folded[MAX_RANK] = {0};
    const int64_t *axes;
    ASSERT(r);
    l->reduced = *value_type(l->g, r->in[0]);
    domain(l, &l->reduced);
    int na = attr_ints(r, AK_axes, &axes);
    for (int j = 0; j < na; j++) folded[axes[j]] = true;
    for (int d = 0; d < l->k->ndim; d++) l->k->dim[d].col = folded[d];
    for (int j = 0; j < f->leave.len; j++) {
        const Type *t = value_type(l->g, f->leave.data[j]);
        bool full = shape_equal(t, &l->reduced);
        store_value(l, f->leave.data[j], full ? none : folded);
    }
}

static bool leaves(const GroupFacts *f, ValueId v) {
    for (int j = 0; j < f->leave.len; j++)
        if (same_value(f->leave.data[j], v)) return true;
    return false;
}

/* Operands of a role that are not to be stored: all, or those that do not
   leave. */
static void drop_refs(LoweredStep *s, LibRole role, const GroupFacts *f) {
    const LibInfo *lib = lib_info(s->lib);
    for (int i = 0; i < s->nref; i++)
        if (lib->operands[i].role == role && !(f && leaves(f, s->refs[i])))
            s->refs[i] = NO_VALUE;
}

/* Element-wise followers of a matrix product or convolution.  Column dims are
   what the routine calls columns: the last dim of a product, the spatial dims
   of a convolution. */
static void lower_epilogue(Lower *l, const Node *anchor, const GroupFacts *f,
                           KernelSet *ks, LoweredStep *out) {
    bool folded[MAX_RANK] = {0};
    const Type *t = value_type(l->g, anchor->out[0]);
    l->k->form = KF_EPILOGUE;
    l->k->tile_rows = lower_tile_rows(out);
    l->anchor = anchor->out[0];
    domain(l, t);
    for (int d = 0; d < t->rank; d++)
        l->k->dim[d].col = d >= (anchor->op == OP_CONV ? 2 : t->rank - 1);
    for (int j = 0; j < f->leave.len; j++) {
        ASSERT(shape_equal(value_type(l->g, f->leave.data[j]), t));
        store_value(l, f->leave.data[j], folded);
    }
    drop_refs(out, LIB_ROLE_RESULT, NULL);
    out->epilogue = keep_kernel(l, f, ks, &out->ep_refs, &out->nep_ref);
}

/* The gradient of padding is a sum of loads, one for every padded position
   that a source position can feed. */
static Status check_pad_grad(const Graph *g, const Node *n, Diag *d) {
    const Type *in = value_type(g, n->in[0]), *out = value_type(g, n->out[0]);
    Str mode = attr_str(n, AK_mode, "constant");
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

static const char *step_name(const Graph *g, const GroupFacts *f) {
    ValueId v =
        f->leave.len ? f->leave.data[0] : node_get(g, f->nodes.data[0])->out[0];
    const char *s = value_get(g, v)->name;
    return s ? s : op_info[node_get(g, f->nodes.data[0])->op].text;
}

static Status lower_group(const Graph *g, const GroupFacts *f, KernelSet *ks,
                          Arena *scratch, Diag *d, LoweredStep *out) {
    const Node *anchor = find_kind(g, f, KIND_ANCHOR);
    const Node *lib = find_kind(g, f, KIND_LIB);
    out->name = step_name(g, f);
    if (anchor || (lib && lower_has_routine(lib->op))) {
        TRY(lower_lib_call(g, anchor ? anchor : lib, kernel_set_arena(ks), d,
                           out));
        drop_refs(out, LIB_ROLE_OPT_OUT, f);
        if (f->nodes.len == 1) return OK;
        Lower l = lower_begin(g, f, scratch);
        lower_epilogue(&l, anchor, f, ks, out);
        return OK;
    }
    if (lib) TRY(check_pad_grad(g, lib, d));
    Lower l = lower_begin(g, f, scratch);
    if (find_kind(g, f, KIND_REDUCE))
        lower_row(&l, f);
    else
        lower_point(&l, f);
    lower_end(&l, f, ks, out);
    return OK;
}

Status lower_graph(const Graph *g, KernelSet *ks, Diag *d, LoweredStep **out) {
    Arena *a = kernel_set_arena(ks);
    Status status = OK;
    bool *left = NEW_ARRAY(a, bool, g->values.len);
    *out = NEW_ARRAY(a, LoweredStep, g->groups.len + 1);
    find_left(g, left);
    for (int j = 0, n = 1; j < g->order.len; j += n, n = 1) {
        if (node_get(g, g->order.data[j])->group < 0) continue;
        Arena *scratch = arena_new();
        GroupFacts f = group_facts(g, j, left, scratch);
        n = f.nodes.len;
        if (lower_group(g, &f, ks, scratch, d, &(*out)[f.group]) != OK)
            status = ERR_USER;
        arena_free(scratch);
    }
    return status;
}
