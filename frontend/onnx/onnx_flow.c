/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_flow.c: If, Loop, Scan: bodies become nodes, with new names each time.
   A branch or a number of trips that is known when the model is compiled takes
   what runs; else both branches, and as many turns as --max-trips says, are
   there, and results are selected (onnx_taken.c). */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* Names for a body's initializers, whose values are constants. */
static Status body_constants(Ox *ox, const Onnx__GraphProto *g, Str *name) {
    for (size_t i = 0; i < g->n_initializer; i++) {
        const Tensor *t;
        ValueId v;
        TRY(ox_tensor(ox, g->initializer[i], ox_text(g->initializer[i]->name),
                      &t));
        TRY(ox_const(ox, t, &v));
        TRY(ox_define_value(ox, v, &name[i]));
    }
    return OK;
}

/* Builds the nodes of a body; in: names of its operands, out: names of its
   results. */
static Status build_body(Ox *ox, const Onnx__GraphProto *g, const Str *in,
                         int nin, Str *out) {
    const OxNode *self = ox->node;
    int first = ox->nodes.len, n;
    Str *inits = NEW_ARRAY(ox->scratch, Str, g->n_initializer + 1);
    TRY(body_constants(ox, g, inits));
    TRY(ox_flatten_body(ox, self, g, in, nin, inits, out));
    TRY(ox_define_results(ox, first));
    for (size_t i = 0; i < g->n_output; i++)
        if (!ox_name_of(ox, out[i]))
            return ox_fail(ox, "result '%s' of its body is never defined",
                           ox_quote(ox, out[i]));
    for (int i = first; i < ox->nodes.len; i++)
        for (int k = 0; k < ox->nodes.data[i].nin; k++) {
            Str name = ox->nodes.data[i].in[k];
            if (*name && !ox_name_of(ox, name))
                return ox_fail(ox, "operand '%s' in its body is never defined",
                               ox_quote(ox, name));
        }
    int *order = ox_needed(ox, first, out, (int)g->n_output, &n);
    TRY(ox_check_nodes(ox, order, n));
    TRY(ox_make_nodes(ox, order, n));
    ox->node = self;
    ox->b.loc = ox_loc(ox, self);
    for (size_t i = 0; i < g->n_output; i++) {
        const OxName *name = ox_name_of(ox, out[i]);
        if (!is_value(name->value) && !name->seq)
            return ox_fail(ox, "its body needs '%s' before it is computed",
                           ox_quote(ox, out[i]));
    }
    return OK;
}

/* A body that counts only where `taken`; NO_VALUE: everywhere. */
static Status run_body(Ox *ox, ValueId taken, const Onnx__GraphProto *g,
                       const Str *in, int nin, Str *out) {
    const OxNode *n = ox->node;
    Str *read = NEW_ARRAY(ox->scratch, Str, n->nin + nin + 1);
    OxShield shield;
    for (int i = 0; i < n->nin; i++) read[i] = n->in[i];
    for (int i = 0; i < nin; i++) read[n->nin + i] = in[i];
    TRY(ox_shield(ox, taken, read, n->nin + nin, &shield));
    TRY(build_body(ox, g, in, nin, out));
    return ox_unshield(ox, &shield);
}

static Status body_of(Ox *ox, const char *attr, const Onnx__GraphProto **g) {
    const Onnx__AttributeProto *p = ox_attr(ox, attr);
    if (!p) return ox_fail(ox, "attribute '%s' is missing", attr);
    *g = p->g;
    return OK;
}

static ValueId value_of(const Ox *ox, Str name) {
    return ox_name_of(ox, name)->value;
}

static Status branch(Ox *ox, const char *attr, ValueId taken, Str **out) {
    const Onnx__GraphProto *g;
    TRY(body_of(ox, attr, &g));
    if ((int)g->n_output != ox->node->nout)
        return ox_fail(ox, "a branch gives %zu results", g->n_output);
    *out = NEW_ARRAY(ox->a, Str, g->n_output + 1);
    return run_body(ox, taken, g, NULL, 0, *out);
}

static Status both_branches(Ox *ox) {
    ValueId taken, other, y;
    Str *then, *otherwise;
    TRY(ox_condition(ox, ox_in(ox, 0), &taken));
    TRY(ox1(ox, OP_NOT, taken, &other));
    TRY(branch(ox, "then_branch", taken, &then));
    TRY(branch(ox, "else_branch", other, &otherwise));
    for (int i = 0; i < ox->node->nout; i++) {
        if (!ox_has_out(ox, i)) continue;
        TRY(ox_select(ox, taken, then[i], otherwise[i], &y));
        TRY(ox_out(ox, i, y));
    }
    return OK;
}

Status onnx_if(Ox *ox) {
    double which;
    Str *out;
    if (!ox_const_scalar(ox, ox_in(ox, 0), &which)) return both_branches(ox);
    TRY(branch(ox, which != 0 ? "then_branch" : "else_branch", NO_VALUE, &out));
    for (int i = 0; i < ox->node->nout; i++) TRY(ox_out_name(ox, i, out[i]));
    return OK;
}

/* ---- loops --------------------------------------------------------------- */

/* A scan output has an element per iteration. */
typedef struct Stack {
    VEC(ValueId) turn;
} Stack;

static Status push_results(Ox *ox, Stack *stack, int n, const Str *name) {
    for (int i = 0; i < n; i++) {
        ValueId v = value_of(ox, name[i]);
        if (!is_value(v)) return ox_fail(ox, "a scan output is a sequence");
        vec_push(ox->a, &stack[i].turn, v);
    }
    return OK;
}

static Status stacked(Ox *ox, Stack *s, int64_t axis, bool backward,
                      ValueId *y) {
    int n = s->turn.len, at;
    if (n == 0) return ox_fail(ox, "its body does not run once");
    TRY(ox_axis(ox, axis, ox_type(ox, s->turn.data[0]).rank + 1, &at));
    for (int i = 0; i < n / 2 && backward; i++) {
        ValueId other = s->turn.data[n - 1 - i];
        s->turn.data[n - 1 - i] = s->turn.data[i];
        s->turn.data[i] = other;
    }
    return ox_concat(ox, s->turn.data, n, at, true, y);
}

/* A loop whose turns are being built. */
typedef struct Turns {
    int64_t made;
    bool stops;          /* no further turn runs */
    ValueId go;          /* the next turn counts; NO_VALUE: for certain */
    ValueId count;       /* i64[]: turns that count */
    ValueId limit;       /* operand M where it depends on data */
    double most;         /* else its number */
    VEC(ValueId) counts; /* per turn: its `go` */
    Str *result;   /* names of the states after the last turn that counts */
    bool too_many; /* `count` may exceed `bound` */
    int64_t bound;
} Turns;

/* The next turn counts only if this condition holds, too. */
static Status also(Ox *ox, Turns *t, ValueId cond) {
    double known;
    if (!is_value(cond)) return OK;
    if (ox_const_scalar(ox, cond, &known)) {
        t->stops |= known == 0;
        return OK;
    }
    TRY(ox_condition(ox, cond, &cond));
    if (!is_value(t->go))
        t->go = cond;
    else
        TRY(ox2(ox, OP_AND, t->go, cond, &t->go));
    return OK;
}

/* The option that holds for this loop; 0: none. */
static int64_t max_trips(Ox *ox) {
    int64_t most = 0;
    for (int i = 0; i < ox->opt->max_trips.len; i++) {
        TripBound *b = &ox->opt->max_trips.data[i];
        if (b->glob && !glob_match(b->glob, ox->node->name)) continue;
        b->used = true;
        most = b->most;
    }
    return most;
}

/* Decides whether another turn is built. */
static Status next_turn(Ox *ox, Turns *t) {
    ValueId number, below;
    if ((double)t->made >= t->most) t->stops = true;
    if (is_value(t->limit)) {
        TRY(ox_const_i64(ox, &t->made, 0, 1, &number));
        TRY(ox2(ox, OP_LESS, number, t->limit, &below));
        TRY(also(ox, t, below));
    }
    if (t->stops) return OK;
    if (is_value(t->go) && !t->bound) {
        t->bound = max_trips(ox);
        if (!t->bound && t->most > MOST_TRIPS)
            return ox_fail(ox,
                           "its number of trips depends on data: say the most "
                           "that there are with --max-trips N, or --max-trips "
                           "'%s=N'%s",
                           ox_quote(ox, ox->node->name),
                           ox_set_remedy(ox, t->go));
        if (!t->bound) t->bound = MOST_TRIPS;
    }
    t->too_many = is_value(t->go) && t->made >= t->bound;
    t->stops = t->too_many;
    if (t->made == MOST_TRIPS && !t->stops)
        return ox_fail(ox, "more than %d iterations", MOST_TRIPS);
    return OK;
}

/* The turn that is decided on counts where `go` says. */
static Status count_turn(Ox *ox, Turns *t) {
    ValueId one = ox_scalar(ox, DT_I64, 1);
    if (is_value(t->go)) TRY(ox_cast(ox, t->go, DT_I64, false, &one));
    return ox2(ox, OP_ADD, t->count, one, &t->count);
}

/* The states after a turn. */
static Status keep_states(Ox *ox, Turns *t, int n, const Str *state) {
    for (int i = 0; i < n; i++) {
        ValueId y;
        if (!is_value(t->go)) {
            t->result[i] = state[i];
            continue;
        }
        TRY(ox_select(ox, t->go, state[i], t->result[i], &y));
        TRY(ox_define_value(ox, y, &t->result[i]));
    }
    return OK;
}

/* v, where more turns than the bound are an error of the step. */
static Status checked(Ox *ox, const Turns *t, ValueId v, ValueId *y) {
    Attr attr[] = {attr_named_i("most", t->bound),
                   attr_s(attr_key("loop", ATTR_STR), ox->node->name)};
    *y = v;
    if (!t->too_many) return OK;
    return ox_call(ox, "ended", (ValueId[]){v, t->count}, 2, attr, 2, 1, y);
}

static Status loop_states(Ox *ox, const Turns *t, int n) {
    for (int i = 0; i < n; i++) {
        ValueId v = value_of(ox, t->result[i]);
        if (!is_value(v)) {
            TRY(ox_out_name(ox, i, t->result[i]));
            continue;
        }
        TRY(checked(ox, t, v, &v));
        TRY(ox_out(ox, i, v));
    }
    return OK;
}

/* bool[turns]: which of them count; NO_VALUE: all. */
static Status turns_that_count(Ox *ox, Turns *t, ValueId *valid) {
    bool all = true;
    *valid = NO_VALUE;
    for (int i = 0; i < t->counts.len; i++) {
        ValueId *v = &t->counts.data[i];
        all &= !is_value(*v);
        if (!is_value(*v)) *v = ox_scalar(ox, DT_BOOL, 1);
    }
    if (all) return OK;
    return ox_concat(ox, t->counts.data, t->counts.len, 0, true, valid);
}

static Status loop_stacks(Ox *ox, Turns *t, int first, int n, Stack *stack) {
    ValueId valid, y;
    TRY(turns_that_count(ox, t, &valid));
    for (int i = 0; i < n; i++) {
        if (!ox_has_out(ox, first + i)) continue;
        TRY(stacked(ox, &stack[i], 0, false, &y));
        TRY(checked(ox, t, y, &y));
        TRY(is_value(valid) ? ox_out_rows(ox, first + i, y, valid, 0)
                            : ox_out(ox, first + i, y));
    }
    return OK;
}

/* What a turn reads and gives. */
typedef struct LoopBody {
    const Onnx__GraphProto *g;
    int nstate, nstack;
    Str *in, *out; /* names of operands, of results */
    Stack *stack;
} LoopBody;

static Status loop_body(Ox *ox, LoopBody *b) {
    const OxNode *n = ox->node;
    b->nstate = n->nin - n->captured - 2;
    TRY(body_of(ox, "body", &b->g));
    b->nstack = (int)b->g->n_output - 1 - b->nstate;
    if (b->nstack < 0 || n->nout != b->nstate + b->nstack)
        return ox_fail(ox, "its body gives %zu results", b->g->n_output);
    b->in = NEW_ARRAY(ox->a, Str, b->nstate + 2);
    b->out = NEW_ARRAY(ox->a, Str, b->g->n_output);
    b->stack = NEW_ARRAY(ox->a, Stack, b->nstack + 1);
    memcpy(b->in + 2, n->in + 2, (size_t)b->nstate * sizeof *b->in);
    return OK;
}

static Status turn(Ox *ox, Turns *t, const LoopBody *b) {
    size_t states = (size_t)b->nstate * sizeof *b->in;
    ValueId number;
    TRY(ox_const_i64(ox, &t->made, 0, 1, &number));
    TRY(ox_define_value(ox, number, &b->in[0]));
    TRY(ox_define_value(ox, ox_scalar(ox, DT_BOOL, 1), &b->in[1]));
    TRY(run_body(ox, t->go, b->g, b->in, b->nstate + 2, b->out));
    TRY(count_turn(ox, t));
    TRY(keep_states(ox, t, b->nstate, b->out + 1));
    TRY(push_results(ox, b->stack, b->nstack, b->out + 1 + b->nstate));
    vec_push(ox->a, &t->counts, t->go);
    memcpy(b->in + 2, b->out + 1, states);
    t->made++;
    return also(ox, t, value_of(ox, b->out[0]));
}

Status onnx_loop(Ox *ox) {
    Turns t = {.most = MOST_TRIPS + 1, .count = ox_scalar(ox, DT_I64, 0)};
    ValueId most = ox_in(ox, 0);
    LoopBody b;
    TRY(loop_body(ox, &b));
    t.result = arena_dup(ox->a, b.in + 2, (size_t)b.nstate * sizeof *b.in);
    if (is_value(most) && !ox_const_scalar(ox, most, &t.most))
        TRY(ox_reshape(ox, most, 0, NULL, &t.limit));
    TRY(also(ox, &t, ox_in(ox, 1)));
    TRY(next_turn(ox, &t));
    while (!t.stops) {
        TRY(turn(ox, &t, &b));
        TRY(next_turn(ox, &t));
    }
    if (t.too_many) {
        TRY(count_turn(ox, &t));
        TRY(ox_read_if_taken(ox, t.count, &t.count));
    }
    TRY(loop_states(ox, &t, b.nstate));
    return loop_stacks(ox, &t, b.nstate, b.nstack, b.stack);
}

/* Entry i of a list attribute that may be absent. */
static Status entry(Ox *ox, const char *name, int i, int64_t *v) {
    const int64_t *list;
    int n = ox_ints(ox, name, &list);
    *v = 0;
    if (n > 0 && i >= n) return ox_fail(ox, "%s is too short", name);
    if (n > 0) *v = list[i];
    return OK;
}

/* Element `turn` of a scanned operand, without the scanned axis. */
static Status element(Ox *ox, ValueId x, int axis, int64_t turn, Str *name) {
    Type t = ox_type(ox, x);
    int64_t start[MAX_RANK] = {0}, size[MAX_RANK], step[MAX_RANK];
    int64_t dim[MAX_RANK];
    for (int k = 0; k < t.rank; k++) {
        size[k] = k == axis ? 1 : t.dim[k];
        step[k] = 1;
        if (k != axis) dim[k - (k > axis)] = t.dim[k];
    }
    start[axis] = turn;
    TRY(ox_slice(ox, x, start, size, step, &x));
    TRY(ox_reshape(ox, x, t.rank - 1, dim, &x));
    return ox_define_value(ox, x, name);
}

/* Appends the operands of one iteration to the states. */
static Status scan_operands(Ox *ox, int nstate, int nscan, int64_t turn,
                            int64_t *turns, Str *in) {
    for (int i = 0; i < nscan; i++) {
        ValueId x = ox_in(ox, nstate + i);
        int64_t at, backward;
        int axis;
        if (!is_value(x)) return ox_fail(ox, "a scanned operand is a sequence");
        TRY(entry(ox, "scan_input_axes", i, &at));
        TRY(entry(ox, "scan_input_directions", i, &backward));
        TRY(ox_axis(ox, at, ox_type(ox, x).rank, &axis));
        int64_t n = ox_type(ox, x).dim[axis];
        if (i && n != *turns)
            return ox_fail(ox, "its operands differ in length");
        *turns = n;
        if (turn < n)
            TRY(element(ox, x, axis, backward ? n - 1 - turn : turn,
                        &in[nstate + i]));
    }
    return OK;
}

Status onnx_scan(Ox *ox) {
    const OxNode *n = ox->node;
    int64_t nscan = ox_int(ox, "num_scan_inputs", 0), turns = 0;
    int own = n->nin - n->captured;
    const Onnx__GraphProto *g;
    if (n->version < 9) return ox_fail(ox, "Scan before opset 9");
    if (nscan < 1 || nscan > own)
        return ox_fail(ox, "num_scan_inputs is %" PRId64, nscan);
    TRY(body_of(ox, "body", &g));
    int nstate = own - (int)nscan, nstack = (int)g->n_output - nstate;
    if (nstack < 0 || n->nout != nstate + nstack)
        return ox_fail(ox, "its body gives %zu results", g->n_output);
    Str *in = NEW_ARRAY(ox->a, Str, own);
    Str *out = NEW_ARRAY(ox->a, Str, g->n_output);
    Stack *stack = NEW_ARRAY(ox->a, Stack, nstack + 1);
    memcpy(in, n->in, (size_t)nstate * sizeof *in);
    for (int64_t turn = 0; turn == 0 || turn < turns; turn++) {
        TRY(scan_operands(ox, nstate, (int)nscan, turn, &turns, in));
        if (turns == 0 || turns > MOST_TRIPS)
            return ox_fail(ox, "%" PRId64 " turns", turns);
        TRY(run_body(ox, NO_VALUE, g, in, own, out));
        memcpy(in, out, (size_t)nstate * sizeof *in);
        TRY(push_results(ox, stack, nstack, out + nstate));
    }
    for (int i = 0; i < nstate; i++) TRY(ox_out_name(ox, i, in[i]));
    for (int i = 0; i < nstack; i++) {
        int64_t axis, backward;
        ValueId y;
        TRY(entry(ox, "scan_output_axes", i, &axis));
        TRY(entry(ox, "scan_output_directions", i, &backward));
        TRY(stacked(ox, &stack[i], axis, backward != 0, &y));
        TRY(ox_out(ox, nstate + i, y));
    }
    return OK;
}
