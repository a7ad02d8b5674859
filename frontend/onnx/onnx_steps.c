/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_steps.c: warnings about a file that has a model's forward but whose
   gradient is known to differ. Two causes: step functions in what trains,
   beside which most models have a detach() that the exporter drops, or which
   have a gradient of their own in JAX; and functions of
   torch.autograd.Function, whose backward no exporter keeps. */
#include <string.h>

#include "frontend/onnx/onnx.h"

static bool makes_steps(const OxNode *n) {
    static const OpCode steps[] = {OP_ROUND, OP_SIGN, OP_FLOOR, OP_CEIL};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (n->op->handler == OX_elem && n->op->core == steps[i]) return true;
    return n->op->handler == OX_argmax;
}

static bool compares(const OxNode *n) {
    static const OpCode ops[] = {OP_GREATER, OP_LESS, OP_GREATER_EQUAL,
                                 OP_LESS_EQUAL};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (n->op->handler == OX_elem && n->op->core == ops[i]) return true;
    return false;
}

/* By name: it depends on parameters that train; the loss depends on it. */
typedef struct Flow {
    const Ox *ox;
    bool *trained, *matters;
} Flow;

static bool steps_marked(const Flow *f, const bool *marks, Str name) {
    const OxName *n = ox_name_of(f->ox, name);
    return n && marks[n - f->ox->names.data];
}

static void steps_mark(const Flow *f, bool *marks, Str name) {
    const OxName *n = ox_name_of(f->ox, name);
    if (n) marks[n - f->ox->names.data] = true;
}

static void find_flow(const Flow *f) {
    const Ox *ox = f->ox;
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (x->is_var && x->kind == VAR_PARAM)
            steps_mark(f, f->trained, x->name);
    }
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool trained = false;
        for (int k = 0; k < n->nin; k++)
            trained |= steps_marked(f, f->trained, n->in[k]);
        for (int r = 0; r < n->nout && trained; r++)
            if (!ox_stops(ox, n, r)) steps_mark(f, f->trained, n->out[r]);
    }
    for (size_t i = 0; i < ox->graph->n_output; i++) {
        const Onnx__ValueInfoProto *v = ox->graph->output[i];
        DType d;
        bool known =
            v->type &&
            v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE &&
            v->type->tensor_type &&
            dtype_from_onnx(v->type->tensor_type->elem_type, &d);
        if (!known || dtype_is_float(d))
            steps_mark(f, f->matters, ox_text(v->name));
    }
    for (int i = ox->order.len - 1; i >= 0; i--) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool matters = false;
        for (int r = 0; r < n->nout; r++)
            matters |= steps_marked(f, f->matters, n->out[r]);
        for (int k = 0; k < n->nin && matters; k++)
            steps_mark(f, f->matters, n->in[k]);
    }
}

/* A step function in what trains: in PyTorch models most are used with a
   detach(). */
static bool is_step(const Flow *f, const OxNode *n) {
    if (!n->nin || !n->nout || !steps_marked(f, f->trained, n->in[0]) ||
        !steps_marked(f, f->matters, n->out[0]))
        return false;
    if (makes_steps(n)) return true;
    const OxName *x = ox_name_of(f->ox, n->in[0]);
    return n->op->handler == OX_cast && x && x->kind == OX_RESULT &&
           compares(&f->ox->nodes.data[x->index]);
}

/* jax2onnx keeps stop_gradient: a step to which a gradient comes may have one
   of its own, by custom_vjp; choices such as argmax have none in JAX either. */
static bool is_step_of_jax(const Flow *f, const OxNode *n) {
    const OxName *out = n->nout ? ox_name_of(f->ox, n->out[0]) : NULL;
    return n->op->handler == OX_elem && out && out->reaches && is_step(f, n);
}

static bool touches(const Flow *f, const OxNode *n) {
    bool trained = false, matters = false;
    for (int k = 0; k < n->nin; k++)
        trained |= steps_marked(f, f->trained, n->in[k]);
    for (int r = 0; r < n->nout; r++)
        matters |= steps_marked(f, f->matters, n->out[r]);
    return trained && matters;
}

static int count_text(const char *s, const char *text) {
    int n = 0;
    for (; (s = strstr(s, text)); s += strlen(text)) n++;
    return n;
}

static Str torch_told(const OxNode *n, const char *what) {
    return ox_text(ox_metadata(n->proto->metadata_props,
                               n->proto->n_metadata_props,
                               internf("pkg.torch.onnx.%s", what)));
}

/* The stack trace enters more forward() than there are modules around the node
   (the last class is the op's), and the last one has no self: it is the
   static forward() of a function, which a helper may have applied. Blocks and
   loops have frames of their own, and one forward() may call another. */
static bool enters_function(Str trace, Str classes) {
    static const char frame[] = ", in forward\n";
    int modules = count_text(classes, "'") / 2 - 1;
    if (modules < 1 || count_text(trace, frame) <= modules ||
        strstr(trace, "<eval_with_key>") || strstr(trace, ".forward("))
        return false;
    const char *last = trace;
    for (const char *s = trace; (s = strstr(s, frame));)
        last = s += strlen(frame);
    return !strstr(last, "self");
}

/* A line of the stack trace is a call F.apply(..), or the forward of one.
   ampc.torch.export writes the backward, too, or refuses the Function. */
static bool is_function(const Flow *f, const OxNode *n) {
    Str trace = torch_told(n, "stack_trace");
    if (ox_by_ampc(f->ox) ||
        (!strstr(trace, ".apply(") &&
         !enters_function(trace, torch_told(n, "class_hierarchy"))))
        return false;
    return touches(f, n);
}

/* The first node for which `is` holds, and the number of such nodes. */
static const OxNode *steps_first_of(const Flow *f,
                                    bool (*is)(const Flow *f, const OxNode *n),
                                    int *count) {
    const OxNode *first = NULL;
    *count = 0;
    for (int i = 0; i < f->ox->order.len; i++) {
        const OxNode *n = &f->ox->nodes.data[f->ox->order.data[i]];
        if (is(f, n) && !(*count)++) first = n;
    }
    return first;
}

/* What the file lacks beside a step function. */
static const char *lost_at_step(const Ox *ox, bool jax) {
    if (jax)
        return "the file lacks a gradient that jax.custom_vjp or "
               "jax.custom_jvp defines; if the model does so, write x + "
               "stop_gradient(f(x) - x), which jax2onnx keeps";
    return ox->is_torch
               ? "a detach(), no_grad() or stop_gradient beside it (a "
                 "straight-through estimator, a codebook) is not in files of "
                 "this exporter, and the gradient passes; export with "
                 "dynamo=True, optimize=False, which keeps it"
               : "a detach(), no_grad() or stop_gradient beside it (a "
                 "straight-through estimator, a codebook) is not in files of "
                 "this exporter, and the gradient passes; jax2onnx and "
                 "PyTorch's dynamo=True keep it";
}

void ox_warn_steps(Ox *ox) {
    const char *by = ox->model->producer_name;
    bool jax = by && !strncmp(by, "jax2onnx", 8);
    if (!options_train(ox->opt) || !ox->inits.len || !by || !*by) return;
    Arena *tmp = arena_new();
    Flow f = {ox, NEW_ARRAY(tmp, bool, ox->names.len + 1),
              NEW_ARRAY(tmp, bool, ox->names.len + 1)};
    int count, functions;
    find_flow(&f);
    const OxNode *step =
        steps_first_of(&f, jax ? is_step_of_jax : is_step, &count);
    const OxNode *function = steps_first_of(&f, is_function, &functions);
    arena_free(tmp);
    if (step && !ox->has_signature)
        ox_warn_node(ox, step,
                     "a step function (gradient 0) of trained tensors%s%s: %s",
                     count > 1 ? ", the first of " : "",
                     count > 1 ? arena_printf(ox->scratch, "%d", count) : "",
                     lost_at_step(ox, jax));
    if (function)
        ox_warn_node(
            ox, function,
            "part of a torch.autograd.Function (by its stack trace), of "
            "which a file has the forward alone: the gradient is that of the "
            "forward's ops, not its backward(); write the function with "
            "detach(), as x + (f(x) - x).detach() for one that passes the "
            "gradient straight through");
}
