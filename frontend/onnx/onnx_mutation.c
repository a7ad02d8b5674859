/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_mutation.c: buffers, and parameters such as a teacher's, that PyTorch's
   forward writes in training.

   Files of dynamo name them in their signature, with the values that are
   written to them; onnx_norm.c handles the running statistics of
   BatchNormalization. No gradient flows through such a value into the previous
   forward, whose graph is gone. So a model that trains has no_grad or detach()
   around it, and no_grad leaves no trace in the file.

   spectral_norm makes power iterations under no_grad,
       u = W v / |W v|,  v = W' u / |W' u|,
   writes both, and divides W by u' W v (torch/nn/utils/parametrizations.py,
   _SpectralNorm; spectral_norm.py begins with u).  With several iterations,
   or in a layer that is called twice, only the last write is in the
   signature. */
#include <string.h>

#include "frontend/onnx/onnx.h"

static OxInit *init_of(Ox *ox, const OxName *n) {
    return n && n->kind == OX_INIT ? &ox->inits.data[n->index] : NULL;
}

/* ---- power iterations ---------------------------------------------------- */

static OxPower power_of(Ox *ox, const OxName *n) {
    const OxInit *x = init_of(ox, n);
    if (x) return x->written && x->proto->n_dims == 1 ? OX_UNIT : OX_NO_POWER;
    return n ? n->power : OX_NO_POWER;
}

/* True if `divisor` is the length of `x`, bounded away from zero and
   broadcast. */
static bool is_length(const Ox *ox, Str divisor, Str x) {
    for (int steps = 0; steps < 4; steps++) {
        const OxName *name = ox_name_of(ox, divisor);
        if (!name || name->kind != OX_RESULT) return false;
        const OxNode *n = &ox->nodes.data[name->index];
        if (n->op->fn && !strcmp(n->op->fn, "reduce_l2")) return n->in[0] == x;
        if (n->op->handler != OX_clip && n->op->handler != OX_expand)
            return false;
        divisor = n->in[0];
    }
    return false;
}

static void follow_power(Ox *ox, const OxNode *n) {
    OxName *out = ox_name_of(ox, n->out[0]);
    if (!out) return;
    if (n->op->handler == OX_matmul) {
        if (power_of(ox, ox_name_of(ox, n->in[1])) == OX_UNIT)
            out->power = OX_PRODUCT;
    } else if (n->op->handler == OX_identity) {
        out->power = power_of(ox, ox_name_of(ox, n->in[0]));
    } else if (n->op->core == OP_DIV &&
               power_of(ox, ox_name_of(ox, n->in[0])) == OX_PRODUCT &&
               is_length(ox, n->in[1], n->in[0])) {
        out->power = OX_UNIT;
        out->stops = true;
    }
}

/* ---- the signature ------------------------------------------------------- */

static bool is_float(const OxInit *x) {
    DType d;
    return dtype_from_onnx(x->proto->data_type, &d) && dtype_is_float(d);
}

static void find_mutation(Ox *ox, const OxSigned *s) {
    const OxName *target = ox_name_of(ox, s->target);
    OxName *value = ox_name_of(ox, s->argument);
    OxInit *x = init_of(ox, target);
    bool known = value && value->kind == OX_RESULT && value->uses;
    if (target && target->statistics_of) return;
    if (known) value->stops = true;
    if (!x || !x->live || !options_train(ox->opt)) return;
    if (known && is_float(x))
        x->written = value->name;
    else
        ox_warn_model(ox,
                      "the model's forward writes '%s', but %s: it keeps the "
                      "value of the file",
                      ox_quote(ox, x->name),
                      known ? "it holds integers" : "the file lacks the value");
}

/* True for the buffer u of spectral_norm in evaluation mode, together with
   its v. */
static bool reads_both(Ox *ox, const OxInit *u) {
    size_t n = strlen(u->name);
    if (!u->live || u->proto->n_dims != 1 || n < 2 ||
        strcmp(u->name + n - 2, "_u") || !u->mark || strcmp(u->mark, "BUFFER"))
        return false;
    Str v = internf("%.*sv", (int)(n - 1), u->name);
    const OxInit *x = init_of(ox, ox_name_of(ox, v));
    return x && x->live && x->proto->n_dims == 1 && !u->written && !x->written;
}

static bool counts_batches(Str name) {
    static const char last[] = "num_batches_tracked";
    size_t n = strlen(name), m = strlen(last);
    return n >= m && !strcmp(name + n - m, last);
}

/* A buffer that the forward writes in training and reads only in evaluation
   is missing from files of models in training mode. Power iterations begin
   with either vector. */
static void warn_lost_buffers(Ox *ox) {
    StrBuf names = {0};
    int n = 0;
    for (int i = 0; i < ox->signature.len; i++) {
        const OxSigned *s = &ox->signature.data[i];
        if (!ox_signed_as(s, "BUFFER_MUTATION") || ox_name_of(ox, s->target) ||
            counts_batches(s->target) ||
            power_of(ox, ox_name_of(ox, s->argument)) ||
            !sb_put_next(&names, n++))
            continue;
        sb_printf(&names, "'%s'", ox_quote(ox, s->target));
    }
    sb_put_more(&names, n);
    if (n && options_train(ox->opt))
        ox_warn_model(ox,
                      "the model's forward writes %s in training, but the file "
                      "lacks %s: predict and evaluate compute as training does",
                      names.data, n == 1 ? "the buffer" : "the buffers");
    sb_free(&names);
}

void ox_find_mutations(Ox *ox) {
    for (int i = 0; i < ox->signature.len; i++)
        if (ox_signed_as(&ox->signature.data[i], "BUFFER_MUTATION") ||
            ox_signed_as(&ox->signature.data[i], "PARAMETER_MUTATION"))
            find_mutation(ox, &ox->signature.data[i]);
    for (int i = 0; i < ox->order.len; i++)
        follow_power(ox, &ox->nodes.data[ox->order.data[i]]);
    warn_lost_buffers(ox);
    for (int i = 0; i < ox->inits.len && options_train(ox->opt); i++)
        if (reads_both(ox, &ox->inits.data[i]))
            ox_warn_model(ox,
                          "'%s' and the vector beside it stay as they are: "
                          "spectral_norm iterates in files that were exported "
                          "in training mode",
                          ox_quote(ox, ox->inits.data[i].name));
}

Status ox_write_mutations(Ox *ox) {
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (!x->written) continue;
        Write w = {.var = ox_name_of(ox, x->name)->value,
                   .value = ox_name_of(ox, x->written)->value};
        if (!is_value(w.value) || value_get(ox->g, w.var)->type.i !=
                                      value_get(ox->g, w.value)->type.i)
            return ox_fail_model(
                ox,
                "the value that the forward writes to '%s' has another type",
                ox_quote(ox, x->name));
        vec_push(ox->a, &ox->g->writes, w);
    }
    return OK;
}
