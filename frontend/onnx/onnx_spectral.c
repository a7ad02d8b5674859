/* onnx_spectral.c: spectral_norm of torch.nn.utils, in files of dynamo.

   In training each of PyTorch's forwards makes power iterations under no_grad,
       u = W v / |W v|,  v = W' u / |W' u|,
   keeps both, and divides W by u' W v (torch/nn/utils/parametrizations.py,
   _SpectralNorm; spectral_norm.py begins with u).  The file has the iterations
   and the vector that they begin with, but neither says that the forward writes
   it nor that no gradient flows through them.                               */
#include <string.h>

#include "frontend/onnx/onnx.h"

static OxInit *vector_of(Ox *ox, const OxName *n) {
    OxInit *x = n && n->kind == OX_INIT ? &ox->inits.data[n->index] : NULL;
    size_t len = x ? strlen(x->name) : 0;
    bool named = len > 2 && (!strcmp(x->name + len - 2, "_u") ||
                             !strcmp(x->name + len - 2, "_v"));
    bool buffer = named && x->mark && !strcmp(x->mark, "BUFFER");
    return buffer && x->proto->n_dims == 1 ? x : NULL;
}

/* What two of them are called but for the ends. */
static bool has_other(Ox *ox, const OxInit *u) {
    size_t len = strlen(u->name) - 1;
    Str v = internf("%.*sv", (int)len, u->name);
    const OxInit *other = vector_of(ox, ox_name_of(ox, v));
    return u->name[len] == 'u' && other && other->live;
}

static const OxNode *maker(const Ox *ox, Str name) {
    const OxName *n = ox_name_of(ox, name);
    return n && n->kind == OX_RESULT ? &ox->nodes.data[n->index] : NULL;
}

/* Is `divisor` the length of `x`, kept from zero and spread? */
static bool is_length(const Ox *ox, Str divisor, Str x) {
    static OxHandler *const moves[] = {onnx_clip, onnx_expand, onnx_identity};
    const OxNode *n = maker(ox, divisor);
    for (size_t i = 0; n && i < sizeof moves / sizeof *moves;)
        if (n->op->handler == moves[i++]) n = maker(ox, n->in[0]), i = 0;
    return n && n->op->fn && !strcmp(n->op->fn, "reduce_l2") && n->in[0] == x;
}

/* Products and divisions alternate; two of each are an iteration. */
enum { STEPS = 4 };

static void follow(Ox *ox, const OxNode *n) {
    OxName *out = ox_name_of(ox, n->out[0]);
    OxName *in = ox_name_of(ox, n->in[n->op->handler == onnx_matmul]);
    if (!out || !in) return;
    OxInit *x = vector_of(ox, in);
    int power = x ? in->index + 1 : in->power;
    bool product = n->op->handler == onnx_matmul && in->power_steps % 2 == 0;
    bool division = n->op->core == OP_DIV && in->power_steps % 2 &&
                    is_length(ox, n->in[1], n->in[0]);
    if (!power || (!product && !division && n->op->handler != onnx_identity))
        return;
    out->power = power;
    out->power_steps = in->power_steps + (product || division);
    out->stops = division;
    if (division && out->power_steps % STEPS == 0)
        ox->inits.data[power - 1].written = out->name;
}

void ox_find_spectral(Ox *ox) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (n->op->handler == onnx_matmul || n->op->handler == onnx_identity ||
            n->op->core == OP_DIV)
            follow(ox, n);
    }
    for (int i = 0; i < ox->inits.len && options_train(ox->opt); i++) {
        const OxInit *x = &ox->inits.data[i];
        if (x->live && x->written == NULL &&
            vector_of(ox, ox_name_of(ox, x->name)) && has_other(ox, x))
            ox_warn_model(ox,
                          "'%s' and the vector beside it stay as they are: "
                          "spectral_norm iterates in files that were exported "
                          "in training mode",
                          ox_quote(ox, x->name));
    }
}

void ox_write_spectral(Ox *ox) {
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (!x->written) continue;
        Write w = {.var = ox_name_of(ox, x->name)->value,
                   .value = ox_name_of(ox, x->written)->value};
        vec_push(ox->a, &ox->g->writes, w);
    }
}
