/* SPDX-License-Identifier: Apache-2.0 */
/* checks.c: checks integer inputs that are class or row indices, and the number
   of turns of loops.
   Before:  %y = gather %table, %ids
   After:   %bad = %ids < -4 or %ids > 3            element by element
            %at = the first such position, or -1;  %value = its element
            return ..., ampc.check/0/-4/3/ids=%at,
                   ampc.checked/0/-4/3/ids=%value
   Positions count in the input, also if the model reads a slice or a
   transpose of it; an input that is read several times with the same bounds is
   checked once, and as a whole if slices of it are read that make it up.
   Training also keeps ampc.bad_data, the number of bad batches, and for the
   last bad batch the failed check (ampc.bad_check, from 0), ampc.bad_at and
   ampc.bad_value.  It returns ampc.bad, by which the optimizer skips the step.
   The model's kernels contain no checks: an index out of range reads zeros,
   which are not used.  Constants are refused here. A loop that wants more than
   its bound of turns (function `ended`) is checked in the same way:
   ampc.trips/0/0/8/LOOP is 0 if it does, or -1; and so are rows that are not as
   many as a mask selects (`as_many`): ampc.selected. A graph that has such
   outputs was checked, and stays unchanged.

   requires     stage TYPED, one graph per program */
#include "ir/fn/fn.h"
#include "passes/passes.h"

#include <string.h>

/* Operand 1 holds row numbers (gather: negative ones count from the end) or
   classes (a loss of the library) along `axis` of operand 0. */
static bool reads_indices(const Node *n) {
    if (!n->fn) return n->op == OP_GATHER;
    return n->fn->loss && fn_loss_target(n->fn) == 1 &&
           n->fn->operands.data[1].kind == FO_INT;
}

/* One check of a graph. */
typedef struct Check {
    ValueId checked;     /* the index operand of the op */
    ValueId root;        /* the input it comes from                         */
    int64_t least, most; /* legal numbers                                   */
    bool ignores;        /* true: `ignore` is legal, too */
    int64_t ignore;
    Family family;
    Str node; /* whose turns or rows are checked, or NULL */
    Loc loc;
} Check;
typedef VEC(Check) Checks;

typedef struct Cx {
    Graph *g;
    Builder b;
    PassCtx *pass;
    Checks checks;
    VEC(bool) fed; /* per value: computed from inputs, as far as known */
} Cx;

/* ---- the indices --------------------------------------------------------- */

/* The only operand that is not a constant; 0 if there are several. */
static ValueId only_operand(const Graph *g, const Node *n) {
    ValueId found = NO_VALUE;
    for (int i = 0; i < n->nin; i++) {
        if (!n->in[i].i || value_get(g, n->in[i])->kind == VK_CONST) continue;
        if (found.i && !same_value(found, n->in[i])) return NO_VALUE;
        found = n->in[i];
    }
    return found;
}

/* True if node n preserves positions: element-wise, or a move. */
static bool keeps_elements(const Graph *g, const Node *n, ValueId from) {
    OpKind kind = node_kind(n);
    if (n->nout != 1) return false;
    if (is_call(n, "read_if")) return true;
    if (kind == KIND_ELEM)
        return shape_equal(value_type(g, from), value_type(g, n->out[0]));
    return n->op == OP_RESHAPE || n->op == OP_TRANSPOSE || n->op == OP_SLICE ||
           n->op == OP_EXPAND;
}

static bool is_fed(const Cx *cx, ValueId v) {
    if (!v.i || value_get(cx->g, v)->kind != VK_RESULT)
        return v.i && value_get(cx->g, v)->kind == VK_INPUT;
    return cx->fed.data[v.i];
}

/* The value from which a node computes or takes its elements; 0: several. */
static ValueId origin_of(const Graph *g, const Node *n) {
    return is_call(n, "read_if") ? n->in[0] : only_operand(g, n);
}

/* Follows v back to the input from which it is computed element by element;
   v itself if there is none. */
static ValueId find_root(const Graph *g, ValueId v) {
    for (ValueId at = v;;) {
        const Value *val = value_get(g, at);
        if (val->kind == VK_INPUT && dtype_is_int(value_dtype(g, at)))
            return at;
        if (val->kind != VK_RESULT) return v;
        const Node *n = node_get(g, val->def);
        ValueId from = origin_of(g, n);
        if (!from.i || !keeps_elements(g, n, from)) return v;
        at = from;
    }
}

static Status check_constant(const Cx *cx, const Check *c) {
    const Value *v = value_get(cx->g, c->checked);
    int64_t n = type_count(type_get(v->type));
    for (int64_t i = 0; i < n; i++) {
        int64_t x = tensor_get_int(v->data, i);
        if ((x >= c->least && x <= c->most) || (c->ignores && x == c->ignore))
            continue;
        return fail(cx->pass->diag, c->loc,
                    "index %lld at position %lld is outside %lld..%lld",
                    (long long)x, (long long)i, (long long)c->least,
                    (long long)c->most);
    }
    return OK;
}

static bool known(const Cx *cx, const Check *c) {
    for (int i = 0; i < cx->checks.len; i++) {
        const Check *o = &cx->checks.data[i];
        if (same_value(o->checked, c->checked) && o->least == c->least &&
            o->most == c->most && o->ignores == c->ignores &&
            o->ignore == c->ignore)
            return true;
    }
    return false;
}

static Status add_check(Cx *cx, const Node *n) {
    const Type *table = value_type(cx->g, n->in[0]);
    Attr ignore, axis = attr_i(AK_axis, attr_int(n, AK_axis));
    if (n->fn) call_attr(cx->g, n, "axis", &axis);
    int64_t size = table->dim[axis_norm(axis.u.i, table->rank)];
    Check c = {.checked = n->in[1],
               .least = n->fn ? 0 : -size,
               .most = size - 1,
               .family = FAMILY_CHECK,
               .loc = n->loc};
    c.ignores = n->fn && fn_attr(n->fn, "ignore_index") &&
                call_attr(cx->g, n, "ignore_index", &ignore);
    if (c.ignores) c.ignore = ignore.u.i;
    if (value_get(cx->g, c.checked)->kind == VK_CONST)
        return check_constant(cx, &c);
    if (!is_fed(cx, c.checked) || known(cx, &c) ||
        !value_count(cx->g, c.checked))
        return OK;
    c.root = find_root(cx->g, c.checked);
    vec_push(cx->pass->scratch, &cx->checks, c);
    return OK;
}

/* The turns of a loop or the rows of a mask, which no element of an input
   has. */
static void add_number(Cx *cx, const Node *n, Family family) {
    Attr most = {0}, name;
    bool trips = family == FAMILY_TRIPS;
    bool has = (!trips || call_attr(cx->g, n, "most", &most)) &&
               call_attr(cx->g, n, trips ? "loop" : "node", &name);
    ASSERT(has);
    Check c = {.checked = n->in[1],
               .root = n->in[1],
               .most = most.u.i,
               .family = family,
               .node = name.u.s,
               .loc = n->loc};
    if (!known(cx, &c)) vec_push(cx->pass->scratch, &cx->checks, c);
}

/* Appends the body of a function that the model defines, because its nodes
   may read inputs, too; nodes that no check needs are dead. */
static void open_call(Cx *cx, const Node *n) {
    char msg[MSG_TEXT];
    ValueId *out = NEW_ARRAY(cx->pass->scratch, ValueId, n->nout);
    FnCall call = fn_call(n);
    cx->b.loc = n->loc;
    Status s = fn_run(&cx->b, &call, &call.fn->body, out, msg);
    ASSERT(s == OK && "the call was checked when it was made");
}

/* Nodes come in order, so their operands' `fed` is known. */
static Status find_checks(Cx *cx) {
    for (int i = 0; i < cx->g->order.len; i++) {
        Node n = *node_at(cx->g, i);
        bool fed = false;
        for (int k = 0; k < n.nin; k++) fed |= is_fed(cx, n.in[k]);
        while (cx->fed.len < cx->g->values.len)
            vec_push(cx->pass->scratch, &cx->fed, false);
        for (int k = 0; k < n.nout; k++) cx->fed.data[n.out[k].i] = fed;
        if (reads_indices(&n)) TRY(add_check(cx, &n));
        if (is_call(&n, "ended")) add_number(cx, &n, FAMILY_TRIPS);
        if (is_call(&n, "as_many")) add_number(cx, &n, FAMILY_SELECTED);
        if (n.fn && !is_call(&n, n.fn->info.text)) open_call(cx, &n);
    }
    return OK;
}

/* ---- one check for several ----------------------------------------------- */

/* A check reads [first, end) of its root along `axis`. */
typedef struct Extent {
    int axis;
    int64_t first, end;
} Extent;

/* False: it reads the root in another way. A root as a whole: axis -1. */
static bool find_extent(const Graph *g, const Check *c, Extent *x) {
    const Type *t = value_type(g, c->root);
    const int64_t *starts, *sizes, *steps;
    *x = (Extent){.axis = -1};
    for (ValueId v = c->checked; !same_value(v, c->root);) {
        const Node *n = node_get(g, value_get(g, v)->def);
        v = n->in[0];
        if (!n->fn && (n->op == OP_RESHAPE || n->op == OP_TRANSPOSE)) continue;
        if (n->fn || n->op != OP_SLICE || !same_value(v, c->root)) return false;
        attr_ints(n, AK_starts, &starts);
        attr_ints(n, AK_sizes, &sizes);
        attr_ints(n, AK_steps, &steps);
        for (int d = 0; d < t->rank; d++) {
            if (sizes[d] == t->dim[d] && steps[d] == 1) continue;
            if (x->axis >= 0 || steps[d] != 1) return false;
            *x = (Extent){d, starts[d], starts[d] + sizes[d]};
        }
    }
    return true;
}

static bool same_bounds(const Check *a, const Check *b) {
    return a->family == FAMILY_CHECK && b->family == FAMILY_CHECK &&
           same_value(a->root, b->root) && a->least == b->least &&
           a->most == b->most && a->ignores == b->ignores &&
           a->ignore == b->ignore;
}

/* Marks in `like` the checks that are alike to check i and read a part along
   the same axis as it. True: together they read all of its root. */
static bool make_up(const Cx *cx, int i, bool *like) {
    const Checks *all = &cx->checks;
    const Check *c = &all->data[i];
    Extent first, x;
    if (c->family != FAMILY_CHECK || !find_extent(cx->g, c, &first) ||
        first.axis < 0)
        return false;
    for (int k = i; k < all->len; k++)
        like[k] = same_bounds(c, &all->data[k]) &&
                  find_extent(cx->g, &all->data[k], &x) && x.axis == first.axis;
    int64_t end = 0, before = -1; /* rows 0 .. end - 1 are read */
    while (end != before) {
        before = end;
        for (int k = i; k < all->len; k++)
            if (like[k] && find_extent(cx->g, &all->data[k], &x) &&
                x.first <= end && x.end > end)
                end = x.end;
    }
    return end == value_type(cx->g, c->root)->dim[first.axis];
}

/* Checks an input as a whole in place of slices that make it up. */
static void join_checks(Cx *cx) {
    Checks *all = &cx->checks;
    bool *like = NEW_ARRAY(cx->pass->scratch, bool, all->len + 1);
    for (int i = 0; i < all->len; i++) {
        int kept = i + 1;
        if (!make_up(cx, i, like)) continue;
        all->data[i].checked = all->data[i].root;
        for (int k = i + 1; k < all->len; k++)
            if (!like[k]) all->data[kept++] = all->data[k];
        all->len = kept;
    }
}

/* ---- the check ----------------------------------------------------------- */

static ValueId checks_bin(Cx *cx, OpCode op, ValueId x, ValueId y) {
    return b2(&cx->b, op, x, y, DT_DEFAULT);
}

static ValueId checks_i64c(Cx *cx, int64_t v) {
    return graph_scalar_int(cx->g, DT_I64, v);
}

static ValueId flat(Cx *cx, ValueId v) {
    int64_t n = value_count(cx->g, v);
    return b_reshape(&cx->b, b_cast(&cx->b, v, DT_I64), 1, &n);
}

/* The positions in `root` of the elements of v: root's own, moved like v. */
static ValueId positions(Cx *cx, ValueId v, ValueId root) {
    Type t = *value_type(cx->g, root);
    int64_t n = type_count(&t);
    Attr axis = attr_i(AK_axis, 0);
    ValueId at = build_gen(&cx->b, OP_IOTA, NULL, 0, &axis, 1,
                           type_make(DT_I64, 1, &n), NULL);
    VEC(NodeId) moves = {0};
    at = b_reshape(&cx->b, at, t.rank, t.dim);
    while (!same_value(v, root)) {
        NodeId id = value_get(cx->g, v)->def;
        const Node *move = node_get(cx->g, id);
        if (node_kind(move) != KIND_ELEM && !is_call(move, "read_if"))
            vec_push(cx->pass->scratch, &moves, id);
        v = origin_of(cx->g, move);
    }
    while (moves.len > 0) {
        Node m = *node_get(cx->g, moves.data[--moves.len]);
        at = build(&cx->b, m.op, &at, 1, m.attrs, m.nattr, DT_I64, NULL);
    }
    return at;
}

/* Position of the first number that is out of range, or -1. */
static ValueId first_bad(Cx *cx, const Check *c) {
    ValueId x = flat(cx, c->checked);
    ValueId at = flat(cx, positions(cx, c->checked, c->root));
    ValueId high = checks_bin(cx, OP_GREATER, x, checks_i64c(cx, c->most));
    ValueId low = checks_bin(cx, OP_LESS, x, checks_i64c(cx, c->least));
    ValueId bad = checks_bin(cx, OP_OR, low, high);
    if (c->ignores && !(c->ignore >= c->least && c->ignore <= c->most)) {
        ValueId same = checks_bin(cx, OP_EQUAL, x, checks_i64c(cx, c->ignore));
        bad = checks_bin(cx, OP_AND, bad, b1(&cx->b, OP_NOT, same, DT_DEFAULT));
    }
    ValueId none = checks_i64c(cx, INT64_MAX);
    int64_t axis = 0;
    ValueId first =
        b_reduce(&cx->b, OP_REDUCE_MIN, b_where(&cx->b, bad, at, none), &axis,
                 1, false, DT_DEFAULT);
    ValueId absent = checks_i64c(cx, -1);
    return b_where(&cx->b, checks_bin(cx, OP_EQUAL, first, none), absent,
                   first);
}

static void output(Cx *cx, Family f, const Check *c, ValueId v) {
    Str of = internf("%d/%lld/%lld/%s", (int)(c - cx->checks.data),
                     (long long)c->least, (long long)c->most,
                     c->node ? c->node : value_get(cx->g, c->root)->name);
    graph_add_output(cx->g, family_name(f, of), v);
}

/* ---- what training keeps ------------------------------------------------- */

static void checks_keep(Cx *cx, OwnVar v, ValueId any, ValueId value) {
    ValueId var = graph_own_var(cx->g, v, 0);
    graph_write(cx->g, var, b_where(&cx->b, any, value, var));
}

static void checks_emit(Cx *cx, bool trains) {
    ValueId which = checks_i64c(cx, -1), bad_at = which,
            bad_value = checks_i64c(cx, 0);
    Attr axis = attr_i(AK_axis, 0);
    int n = cx->checks.len;
    ValueId *at = NEW_ARRAY(cx->pass->scratch, ValueId, n);
    ValueId *value = NEW_ARRAY(cx->pass->scratch, ValueId, n);
    for (int i = 0; i < n; i++) {
        const Check *c = &cx->checks.data[i];
        cx->b.loc = c->loc;
        at[i] = first_bad(cx, c);
        value[i] =
            build(&cx->b, OP_GATHER, (ValueId[]){flat(cx, c->root), at[i]}, 2,
                  &axis, 1, DT_DEFAULT, NULL);
        output(cx, c->family, c, at[i]);
        output(cx, FAMILY_CHECKED, c, value[i]);
    }
    if (!trains) return;
    for (int i = n; i-- > 0;) { /* the first check that fails; -1: none */
        ValueId bad =
            checks_bin(cx, OP_GREATER_EQUAL, at[i], checks_i64c(cx, 0));
        which = b_where(&cx->b, bad, checks_i64c(cx, i), which);
        bad_at = b_where(&cx->b, bad, at[i], bad_at);
        bad_value = b_where(&cx->b, bad, value[i], bad_value);
    }
    ValueId any = checks_bin(cx, OP_GREATER_EQUAL, which, checks_i64c(cx, 0));
    ValueId count = graph_own_var(cx->g, OWN_BAD_DATA, 0);
    checks_keep(cx, OWN_BAD_DATA, any,
                checks_bin(cx, OP_ADD, count, checks_i64c(cx, 1)));
    checks_keep(cx, OWN_BAD_CHECK, any, which);
    checks_keep(cx, OWN_BAD_AT, any, bad_at);
    checks_keep(cx, OWN_BAD_VALUE, any, bad_value);
    graph_add_output(cx->g, own_output(OUT_BAD, cx->g->objective), any);
}

static bool is_checked(const Graph *g) {
    int number;
    for (int i = 0; i < g->outputs.len; i++) {
        Family f = family_of(g->module, g->outputs.data[i].name, &number);
        if (f == FAMILY_CHECK || f == FAMILY_TRIPS || f == FAMILY_SELECTED)
            return true;
    }
    return false;
}

Status pass_checks(Module *m, PassCtx *pass) {
    for (int i = 0; i < m->graphs.len; i++) {
        if (is_checked(m->graphs.data[i])) continue;
        Cx cx = {.g = m->graphs.data[i],
                 .b = {.g = m->graphs.data[i]},
                 .pass = pass};
        TRY(find_checks(&cx));
        join_checks(&cx);
        if (cx.checks.len) checks_emit(&cx, cx.g->program == PROGRAM_TRAIN);
    }
    return OK;
}
