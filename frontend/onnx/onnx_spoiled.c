/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_spoiled.c: exports in which parameters were fused, folded or merged.
   If state is lost, the model cannot train: a message has the recipe. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx_spoiled.h"

bool ox_was_optimised(const Ox *ox) {
    for (int i = 0; i < ox->inits.len; i++)
        if (!ox->inits.data[i].mark) return true;
    return false;
}

/* ---- signs --------------------------------------------------------------- */

void ox_lose(Ox *ox, Lost *l, Str name, Str into) {
    if (!sb_put_next(&l->names, l->count++)) return;
    sb_printf(&l->names, "'%s'", ox_quote(ox, name));
    if (into) sb_printf(&l->names, " (folded into '%s')", ox_quote(ox, into));
}

static void folded_parameters(Ox *ox, Lost *lost) {
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (!x->live || !x->folded) continue;
        for (int k = 0; k < ox->signature.len; k++) {
            const OxSigned *p = &ox->signature.data[k];
            if (ox_signed_as(p, "PARAMETER") &&
                strstr(x->folded, internf("'%s'", p->target)))
                ox_lose(ox, lost, p->target, x->name);
        }
    }
}

/* The exporter writes LSTM(proj_size=..) as an LSTM without a projection. */
static Status check_projection(Ox *ox) {
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        if (!glob_match("*weight_hr_l*", p->target) ||
            !ox_signed_as(p, "PARAMETER") || ox_is_held(ox, p->target))
            continue;
        return ox_fail_model(ox,
                             "PyTorch's exporter dropped '%s', the projection "
                             "of an LSTM with proj_size, which ONNX lacks: "
                             "write the cell in Python",
                             ox_quote(ox, p->target));
    }
    return OK;
}

static bool is_batch_norm(Str op) {
    return op && strstr(intern_n(op, strcspn(op, "(")), "batch_norm");
}

/* The node that a convolution and its normalisation became keeps the record
   of the latter. Where no record is left, running statistics without any
   normalisation tell. */
static bool lost_batch_norm(const Ox *ox) {
    bool any = false;
    for (int i = 0; i < ox->nodes.len; i++) {
        const OxNode *n = &ox->nodes.data[i];
        bool layer = !strncmp(n->type, "Conv", 4) || !strcmp(n->type, "Gemm");
        if (layer && is_batch_norm(ox_torch_node(n, "aten."))) return true;
        any |= !strcmp(n->type, "BatchNormalization");
    }
    if (any) return false;
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        size_t n = strlen(p->target), m = strlen(".running_mean");
        if (ox_signed_as(p, "BUFFER_MUTATION") && n > m &&
            !strcmp(p->target + n - m, ".running_mean"))
            return true;
    }
    return false;
}

/* PyTorch's InstanceNorm reads the buffer. */
static bool has_reader(const Ox *ox, Str argument) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        Str text = ox_torch_node(n, "aten.instance_norm");
        if (text && ox_torch_reads(text, argument)) return true;
    }
    return false;
}

static void half_copies(Ox *ox, Lost *lost) {
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        DType d;
        if (x->live && !strncmp(x->name, "_to_copy", 8) &&
            dtype_from_onnx(x->proto->data_type, &d) && dtype_is_low(d))
            ox_lose(ox, lost, x->name, NULL);
    }
}

static bool by_tensorflow(const Ox *ox) {
    const char *by = ox->model->producer_name;
    return by && !strncmp(by, "tf2onnx", 7);
}

/* Refuses the file if something is lost, or warns if the user accepts it. */
static Status object(Ox *ox, const char *what, Lost *lost) {
    Status s = OK;
    if (!lost->count) return OK;
    sb_put_more(&lost->names, lost->count);
    const char *list = lost->names.data ? lost->names.data : "";
    if (ox->opt->accept_folded || !options_train(ox->opt))
        ox_warn_model(ox, "%s%s", what, list);
    else
        s = ox_fail_model(ox,
                          "%s%s; re-export for training: %s, or pass "
                          "--accept-folded to train the remaining parameters",
                          what, list, ox_training_recipe(ox));
    sb_free(&lost->names);
    return s;
}

/* ---- statistics merged with weights -------------------------------------- */

static bool used_elsewhere(const Ox *ox, Str name) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        bool bn = n->op && n->op->handler == OX_batch_norm;
        for (int k = 0; k < n->nin; k++)
            if (n->in[k] == name && !(bn && k >= 3)) return true;
    }
    return false;
}

/* Gives the statistics an initializer of their own. */
static void split_role(Ox *ox, OxNode *n, int slot, const OxInit *from) {
    Str fresh =
        internf("%s.%s.%d", from->name,
                slot == 3 ? "running_mean" : "running_var", ox->inits.len);
    OxInit x = {
        .name = fresh, .proto = from->proto, .live = true, .alias = true};
    if (ox_name_of(ox, fresh)) return;
    str_map_put(ox->a, &ox->by_name, fresh, ox->names.len);
    vec_push(
        ox->a, &ox->names,
        (OxName){
            .name = fresh, .kind = OX_INIT, .index = ox->inits.len, .uses = 1});
    vec_push(ox->a, &ox->inits, x);
    n->in[slot] = fresh;
}

static Status merged_statistics(Ox *ox) {
    for (int i = 0; i < ox->order.len; i++) {
        OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (!n->op || n->op->handler != OX_batch_norm) continue;
        for (int k = 3; k < 5; k++) {
            const OxName *name = ox_name_of(ox, n->in[k]);
            if (!name || name->kind != OX_INIT) continue;
            bool twice = k == 4 && n->in[3] == n->in[4];
            if (!twice && !used_elsewhere(ox, name->name)) continue;
            Lost one = {.count = 1};
            sb_printf(&one.names, "'%s' of node '%s'", ox_quote(ox, name->name),
                      ox_quote(ox, n->name));
            TRY(object(ox,
                       "one initializer serves as running statistics and "
                       "as something else (equal tensors were merged): ",
                       &one));
            OxInit from = ox->inits.data[name->index];
            split_role(ox, n, k, &from);
        }
    }
    return OK;
}

/* InstanceNorm's statistics are buffers of the program, but only files of
   model.eval() hold them. */
static void warn_lost_statistics(Ox *ox) {
    Lost lost = {0};
    for (int k = 0; k < ox->signature.len; k++) {
        const OxSigned *p = &ox->signature.data[k];
        size_t n = strlen(p->target), m = strlen(".running_mean");
        if (!ox_signed_as(p, "BUFFER") || n <= m ||
            strcmp(p->target + n - m, ".running_mean"))
            continue;
        if (!ox_name_of(ox, p->target) && has_reader(ox, p->argument))
            ox_lose(ox, &lost, p->target, NULL);
    }
    if (!lost.count || !options_train(ox->opt)) return;
    sb_put_more(&lost.names, lost.count);
    ox_warn_model(ox,
                  "the exporter dropped running statistics of InstanceNorm: "
                  "%s; predict and evaluate use the statistics of their data: "
                  "export model.eval() to keep them",
                  lost.names.data);
    sb_free(&lost.names);
}

/* TorchScript's own folding is allowed, with one note. */
static void warn_anonymous(Ox *ox) {
    Lost folded = {0};
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        DType d;
        if (!x->live || strncmp(x->name, "onnx::", 6) ||
            !dtype_from_onnx(x->proto->data_type, &d) || !dtype_is_float(d))
            continue;
        ox_lose(ox, &folded, x->name, NULL);
    }
    if (!folded.count) return;
    sb_put_more(&folded.names, folded.count);
    ox_warn_model(ox,
                  "a folded export: %s %s no name of the model: ties may be "
                  "broken, weight_norm folded and BatchNormalization fused; "
                  "for training export with training=TrainingMode.TRAINING, "
                  "do_constant_folding=False%s",
                  folded.names.data, folded.count == 1 ? "has" : "have",
                  ox_all_numbered(ox)
                      ? " (Keras' export takes neither: its "
                        "BatchNormalization does not train and keeps its "
                        "running statistics, its Dropout is left out)"
                      : "");
    sb_free(&folded.names);
}

/* Simplifiers drop the metadata, and what inference does not need. */
static void warn_rewritten(Ox *ox) {
    Str by = ox_rewritten_by(ox);
    if (by && options_train(ox->opt))
        ox_warn_model(ox,
                      "%s wrote the exporter's file again: detach(), fused "
                      "BatchNormalization, folded or merged parameters and "
                      "dropout cannot be told any more; to train, give the "
                      "exporter's own file",
                      by);
}

/* ---- TensorFlow ---------------------------------------------------------- */

/* "a/dense_1/" of "a/dense_1/MatMul". */
static Str layer_of(Str name) {
    const char *end = strrchr(name, '/');
    return intern_n(name, end ? (size_t)(end - name) + 1 : 0);
}

static bool has_node(const Ox *ox, Str start, const char *type) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (!strncmp(n->name, start, strlen(start)) && !strcmp(n->type, type))
            return true;
    }
    return false;
}

/* Nodes of a normalisation, without its statistics. */
static void fused_by_tensorflow(Ox *ox, Lost *lost) {
    Str before = NULL;
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (!strstr(n->name, "batch_normalization")) continue;
        Str layer = layer_of(n->name);
        if (layer != before && !has_node(ox, layer, "BatchNormalization") &&
            !has_node(ox, layer, "Sqrt"))
            ox_lose(ox, lost, layer, NULL);
        before = layer;
    }
}

/* Keras computes Dense layers of three axes in a scope of its own. */
static Str dense_layer(Str node) {
    static const char scope[] = "Tensordot/";
    Str layer = layer_of(node);
    size_t n = strlen(layer), k = sizeof scope - 1;
    return n > k && !strcmp(layer + n - k, scope) ? intern_n(layer, n - k)
                                                  : layer;
}

/* Dense and convolutional layers without a bias: a bias of zeros is dropped. */
static void warn_no_bias(Ox *ox) {
    Lost none = {0};
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        Str layer = dense_layer(n->name);
        bool product = !strcmp(n->type, "MatMul") ||
                       (!strcmp(n->type, "Conv") && n->nin < 3);
        if (product && (strstr(layer, "dense") || strstr(layer, "conv")) &&
            !has_node(ox, layer, "Add"))
            ox_lose(ox, &none, layer, NULL);
    }
    if (!none.count) return;
    sb_put_more(&none.names, none.count);
    ox_warn_model(ox,
                  "these layers have no bias in the file: %s; tf2onnx drops "
                  "one that is 0, as it is before training: where the model "
                  "has one, export with biases that are not 0, or with the "
                  "JAX or PyTorch backend of Keras",
                  none.names.data);
    sb_free(&none.names);
}

/* A path without the numbers of calls: "m/dense_1_3/" becomes "m/dense_1/". */
static Str called_layer(Str path) {
    StrBuf sb = {0};
    for (const char *s = path; *s;) {
        size_t n = strcspn(s, "/"), k = n;
        while (k > 0 && isdigit((unsigned char)s[k - 1])) k--;
        sb_putn(&sb, s, k > 1 && k < n && s[k - 1] == '_' ? k - 1 : n);
        sb_puts(&sb, s[n] ? "/" : "");
        s += n + (s[n] == '/');
    }
    Str r = intern(sb.data ? sb.data : "");
    sb_free(&sb);
    return r;
}

/* True if a variable of one layer is read by a node of another. */
static bool of_another_layer(Str variable, Str node) {
    static const char read[] = "/ReadVariableOp:0";
    size_t n = strlen(variable), k = sizeof read - 1;
    if (n > k && !strcmp(variable + n - k, read))
        variable = intern_n(variable, n - k);
    Str a = called_layer(layer_of(variable)), b = called_layer(layer_of(node));
    return *a && *b && strncmp(a, b, strlen(a)) && strncmp(b, a, strlen(b));
}

/* tf2onnx keeps one of equal tensors, and layers begin with equal ones. */
static void warn_merged(Ox *ox) {
    Lost merged = {0};
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        for (int k = 0; k < n->nin; k++) {
            const OxName *x = ox_name_of(ox, n->in[k]);
            if (!x || x->kind != OX_INIT || !ox_among(n->op->weight, k) ||
                !ox->inits.data[x->index].proto->n_dims ||
                !of_another_layer(n->in[k], n->name))
                continue;
            if (sb_put_next(&merged.names, merged.count++))
                sb_printf(&merged.names, "'%s' by '%s'", ox_quote(ox, n->in[k]),
                          ox_quote(ox, n->name));
        }
    }
    if (!merged.count) return;
    sb_put_more(&merged.names, merged.count);
    ox_warn_model(ox,
                  "layers read a tensor of another one: %s; tf2onnx keeps one "
                  "of equal tensors: where each layer has its own, they train "
                  "as one: export with values that differ, or with the JAX or "
                  "PyTorch backend of Keras",
                  merged.names.data);
    sb_free(&merged.names);
}

/* Keras passes some of its constants to tf2onnx as arguments. */
static void warn_constant_inputs(Ox *ox) {
    for (size_t i = 0; i < ox->graph->n_input; i++) {
        Str name = ox_text(ox->graph->input[i]->name);
        const OxName *n = ox_name_of(ox, name);
        if (n && n->kind == OX_INPUT && n->uses && strchr(name, '/'))
            ox_warn_model(ox,
                          "input '%s' is a constant of the model that the "
                          "exporter made an input: give it the constant's "
                          "value in every step",
                          ox_quote(ox, name));
    }
}

static Status check_tensorflow(Ox *ox) {
    Lost fused = {0};
    if (!by_tensorflow(ox) || !options_train(ox->opt)) return OK;
    warn_no_bias(ox);
    warn_merged(ox);
    warn_constant_inputs(ox);
    fused_by_tensorflow(ox, &fused);
    return object(
        ox,
        "the exporter fused BatchNormalization into other layers: ", &fused);
}

/* True if a person may have written the number: it has three digits. */
static bool is_short(float v) {
    char text[32];
    snprintf(text, sizeof text, "%.3g", (double)v);
    return strtof(text, NULL) == v;
}

/* paddle2onnx 2.1 writes a number from elsewhere as the slope. */
static void warn_slopes(Ox *ox) {
    for (int i = 0; i < ox->order.len && ox->is_paddle; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        for (int k = 0; k < n->nattr && !strcmp(n->type, "LeakyRelu"); k++)
            if (!is_short(n->attr[k].p->f))
                ox_warn_node(ox, n,
                             "its slope is %g, which paddle2onnx 2.1 writes "
                             "instead of the model's: write leaky_relu(x, a) "
                             "as paddle.where(x >= 0, x, a * x)",
                             (double)n->attr[k].p->f);
    }
}

Status ox_check_spoiled(Ox *ox) {
    Lost folded = {0}, merged = {0}, half = {0};
    warn_slopes(ox);
    TRY(check_tensorflow(ox));
    TRY(merged_statistics(ox));
    warn_rewritten(ox);
    warn_anonymous(ox);
    ox_warn_lifted(ox);
    warn_lost_statistics(ox);
    half_copies(ox, &half);
    TRY(object(ox, "16-bit copies replaced the parameters: ", &half));
    if (!ox->has_signature) return OK;
    if (ox_was_optimised(ox))
        TRY(object(ox,
                   "the exporter fused BatchNormalization into the "
                   "convolutions before it",
                   &(Lost){.count = lost_batch_norm(ox)}));
    TRY(check_projection(ox));
    folded_parameters(ox, &folded);
    TRY(object(ox, "the exporter folded parameters: ", &folded));
    ox_merged_parameters(ox, &merged);
    return object(ox, "the exporter merged or dropped parameters: ", &merged);
}
