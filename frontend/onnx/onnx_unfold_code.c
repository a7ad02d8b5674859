/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_unfold_code.c: numbers and tables of the model's code that equal a
   parameter, as torch.full((4,), 0.5) beside a gain of 0.5: the exporter keeps
   one of them. The node that read the constant still says so,
   aten.add.Tensor](args = (%mul, %full), kwargs = {}) and gets a constant
   again, which does not train. */
#include <string.h>

#include "frontend/onnx/onnx_unfold.h"

/* Names of nodes of PyTorch's graph that make constants of code. */
static bool makes_constant(Str name) {
    static const char *const ops[] = {"scalar_tensor",
                                      "scalar_tensor_default",
                                      "full",
                                      "full_like",
                                      "ones",
                                      "ones_like",
                                      "zeros",
                                      "zeros_like",
                                      "new_full",
                                      "new_ones",
                                      "new_zeros",
                                      "eye",
                                      "arange",
                                      "linspace",
                                      "val"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ox_torch_counts(name, ops[i])) return true;
    return false;
}

/* What the nodes' common line of Python reads. */
typedef struct Args {
    Str name[MOST];
    int n;
    bool parameters; /* one is a parameter or a buffer */
    bool copies;     /* one is missing, and may have been a copy of a
                        parameter */
} Args;

static void read_args(const Unfold *u, Str text, Args *a) {
    const char *s = strstr(text, "(args = ");
    *a = (Args){.n = 0};
    for (Str name; s && a->n < MOST && (name = ox_torch_next_name(&s));) {
        a->name[a->n++] = name;
        a->parameters |= str_map_get(&u->arguments, name) >= 0;
        a->copies |=
            str_map_get(&u->defined, name) < 0 && !makes_constant(name);
    }
}

/* The operand is a parameter of the file under its own name. */
static bool is_parameter(const Unfold *u, Str name) {
    int line = str_map_get(&u->targets, name);
    int init = str_map_get(&u->inits, name);
    return line >= 0 && init >= 0 && init < u->ninits && !u->folded[init] &&
           ox_signed_as(&u->ox->signature.data[line], "PARAMETER");
}

/* torch.tensor(..) inside a forward is a constant of the signature and a copy
   of it; true if the file lacks such a constant. */
static bool lacks_literal(const Unfold *u) {
    for (int i = 0; i < u->ox->signature.len; i++) {
        const OxSigned *x = &u->ox->signature.data[i];
        if (!ox_signed_as(x, "CONSTANT_TENSOR") ||
            str_map_get(&u->inits, x->target) >= 0)
            continue;
        Str quoted = internf("'%s'", x->target);
        bool folded = false;
        for (int k = 0; k < u->ninits; k++)
            folded |= u->folded[k] && strstr(u->folded[k], quoted);
        if (!folded) return true;
    }
    return false;
}

/* The file lacks the argument, and the model's code made it. */
static bool was_constant(const Unfold *u, Str name) {
    return str_map_get(&u->defined, name) < 0 &&
           (makes_constant(name) ||
            (ox_torch_counts(name, "clone") && lacks_literal(u)));
}

/* The name of each operand, in order; -1: unknown. */
static int argument_of(const Args *a, const Onnx__NodeProto *n, size_t k,
                       bool alone) {
    return alone && n->n_input == (size_t)a->n ? (int)k : -1;
}

static void become_constant(Unfold *u, Onnx__NodeProto *n, size_t k) {
    Str old = ox_text(n->input[k]);
    Str name = internf("%.80s.constant", old);
    if (str_map_get(&u->inits, name) < 0) {
        Onnx__TensorProto *t = NEW(u->a, Onnx__TensorProto);
        *t = *u->g->initializer[str_map_get(&u->inits, old)];
        t->name = unfold_copy(u, name);
        str_map_put(u->a, &u->inits, name, u->ninits + u->tensors.len);
        vec_push(u->a, &u->tensors, t);
    }
    n->input[k] = unfold_copy(u, name);
    u->changes++;
}

Status unfold_code(Unfold *u, size_t first, size_t end, Str text) {
    Args a;
    read_args(u, text, &a);
    for (size_t i = first; i < end; i++) {
        Onnx__NodeProto *n = u->g->node[i];
        for (size_t k = 0; k < n->n_input; k++) {
            if (!is_parameter(u, ox_text(n->input[k]))) continue;
            int at = argument_of(&a, n, k, end == first + 1);
            bool told = at >= 0 && was_constant(u, a.name[at]);
            if (told || (at < 0 && !a.parameters && !a.copies))
                become_constant(u, n, k);
        }
    }
    return OK;
}
