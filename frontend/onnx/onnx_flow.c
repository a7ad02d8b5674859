/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_flow.c: If, Loop, Scan.  The branch that is taken and the number of
   iterations are known when the model is compiled, so bodies become nodes,
   with new names each time. */
#include <inttypes.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

enum { MAX_TURNS = 4096 };

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
static Status run_body(Ox *ox, const Onnx__GraphProto *g, const Str *in,
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

static Status body_of(Ox *ox, const char *attr, const Onnx__GraphProto **g) {
    const Onnx__AttributeProto *p = ox_attr(ox, attr);
    if (!p) return ox_fail(ox, "attribute '%s' is missing", attr);
    *g = p->g;
    return OK;
}

static ValueId value_of(const Ox *ox, Str name) {
    return ox_name_of(ox, name)->value;
}

Status onnx_if(Ox *ox) {
    const Onnx__GraphProto *g;
    double which;
    if (!ox_const_scalar(ox, ox_in(ox, 0), &which))
        return ox_fail(ox, "its condition depends on data");
    TRY(body_of(ox, which != 0 ? "then_branch" : "else_branch", &g));
    if ((int)g->n_output != ox->node->nout)
        return ox_fail(ox, "a branch gives %zu results", g->n_output);
    Str *out = NEW_ARRAY(ox->a, Str, g->n_output + 1);
    TRY(run_body(ox, g, NULL, 0, out));
    for (size_t i = 0; i < g->n_output; i++)
        TRY(ox_out_name(ox, (int)i, out[i]));
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

/* The condition of the loop, which must be known. */
static Status goes_on(Ox *ox, ValueId cond, bool *yes) {
    double v;
    if (!ox_const_scalar(ox, cond, &v))
        return ox_fail(ox, "its trip count is not known at compile time");
    *yes = v != 0;
    return OK;
}

Status onnx_loop(Ox *ox) {
    const OxNode *n = ox->node;
    int nstate = n->nin - n->captured - 2;
    const Onnx__GraphProto *g;
    double most = MAX_TURNS + 1;
    bool go = true;
    TRY(body_of(ox, "body", &g));
    int nstack = (int)g->n_output - 1 - nstate;
    if (nstack < 0 || n->nout != nstate + nstack)
        return ox_fail(ox, "its body gives %zu results", g->n_output);
    Str *in = NEW_ARRAY(ox->a, Str, nstate + 2);
    Str *out = NEW_ARRAY(ox->a, Str, g->n_output);
    Stack *stack = NEW_ARRAY(ox->a, Stack, nstack + 1);
    memcpy(in + 2, n->in + 2, (size_t)nstate * sizeof *in);
    if (is_value(ox_in(ox, 0)) && !ox_const_scalar(ox, ox_in(ox, 0), &most))
        return ox_fail(ox, "its trip count is not known at compile time");
    if (is_value(ox_in(ox, 1))) TRY(goes_on(ox, ox_in(ox, 1), &go));
    for (int64_t turn = 0; go && (double)turn < most; turn++) {
        ValueId number;
        if (turn == MAX_TURNS)
            return ox_fail(ox, "more than %d iterations", MAX_TURNS);
        TRY(ox_const_i64(ox, &turn, 0, 1, &number));
        TRY(ox_define_value(ox, number, &in[0]));
        TRY(ox_define_value(ox, ox_scalar(ox, DT_BOOL, 1), &in[1]));
        TRY(run_body(ox, g, in, nstate + 2, out));
        TRY(goes_on(ox, value_of(ox, out[0]), &go));
        memcpy(in + 2, out + 1, (size_t)nstate * sizeof *in);
        TRY(push_results(ox, stack, nstack, out + 1 + nstate));
    }
    for (int i = 0; i < nstate; i++) TRY(ox_out_name(ox, i, in[2 + i]));
    for (int i = 0; i < nstack; i++) {
        ValueId y;
        if (!ox_has_out(ox, nstate + i)) continue;
        TRY(stacked(ox, &stack[i], 0, false, &y));
        TRY(ox_out(ox, nstate + i, y));
    }
    return OK;
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
        if (turns == 0 || turns > MAX_TURNS)
            return ox_fail(ox, "%" PRId64 " turns", turns);
        TRY(run_body(ox, g, in, own, out));
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
