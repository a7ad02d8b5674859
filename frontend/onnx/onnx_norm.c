/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_norm.c: batch normalisation and softmax.

   BatchNormalization in training normalises by the *batch's statistics, and the
   program updates its running statistics: new = momentum old + (1-momentum)
   batch.
   ONNX uses the population variance here, torch the unbiased one. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/onnx/onnx.h"

/* ---- batch normalisation ------------------------------------------------- */

static bool frozen_by_user(const Ox *ox, const OxNode *n) {
    bool frozen = false;
    for (int i = 0; i < ox->opt->batchnorm_frozen.len; i++) {
        const char *glob = ox->opt->batchnorm_frozen.data[i];
        if (!glob_match(glob, n->name) && !glob_match(glob, n->in[1])) continue;
        frozen = ox->frozen_used[i] = true;
    }
    return frozen;
}

static const Onnx__AttributeProto *attr_of(const OxNode *n, const char *name) {
    for (int i = 0; i < n->nattr; i++)
        if (!strcmp(n->attr[i].name, name)) return n->attr[i].p;
    return NULL;
}

static int64_t int_of(const OxNode *n, const char *name) {
    const Onnx__AttributeProto *p = attr_of(n, name);
    return p ? p->i : 0;
}

static double momentum_of(const OxNode *n) {
    const Onnx__AttributeProto *p = attr_of(n, "momentum");
    return p ? (double)p->f : 0.9;
}

/* The signature says that the forward writes the buffer. */
static bool is_written(const Ox *ox, Str buffer) {
    for (int i = 0; i < ox->signature.len; i++)
        if (ox_signed_as(&ox->signature.data[i], "BUFFER_MUTATION") &&
            ox->signature.data[i].target == buffer)
            return true;
    return false;
}

/* The argument `training` of the node of PyTorch. */
static bool torch_trains(const OxNode *n) {
    Str s = ox_torch_node(n, "aten._native_batch_norm_legit_functional")
                ? ox_torch_argument(n, 5)
                : NULL;
    return s && !strcmp(s, "True");
}

/* Takes the mode of the file. Files of dynamo may have an inference node for
   a module in training mode: the forward writes its statistics, or those that a
   function made, or it has none and the file computes them. */
static bool file_trains(const Ox *ox, const OxNode *n) {
    if (is_written(ox, ox_statistics(ox, n, 3)) || torch_trains(n) ||
        ox_torch_node(n, "aten._native_batch_norm_legit.no_stats"))
        return true;
    if (n->version < 7) return int_of(n, "is_test") == 0;
    if (n->version < 14) return n->nout > 1;
    return int_of(n, "training_mode") != 0;
}

static bool in_training(const Ox *ox, const OxNode *n) {
    if (frozen_by_user(ox, n)) return false;
    if (ox->opt->batchnorm_train && options_train(ox->opt) && !ox->mixed_modes)
        return true;
    return file_trains(ox, n);
}

/* Statistics of each sample and channel, repeated: an InstanceNorm. */
static bool is_instance_norm(const Ox *ox, const OxNode *n) {
    return ox_statistics(ox, n, 3) != n->in[3];
}

/* PyTorch's exporters write 1 - momentum, and a momentum of None as one of 0.
   A node in eval(), which has 1, was one of None or of 0; a node of TorchScript
   in train(), which has 0, was one of None or of 1.  Other files and modes have
   one meaning: dynamo exports no None in train(), and None is 0 to
   InstanceNorm.
 */
static bool momentum_is_ambiguous(const Ox *ox, const OxNode *n) {
    double m = momentum_of(n);
    bool trains = file_trains(ox, n);
    return ox->is_torch && !ox_by_ampc(ox) && n->nin == 5 &&
           !is_instance_norm(ox, n) &&
           (trains ? m == 0 && !ox->has_signature : m == 1);
}

/* Number of batches before the first step, which ampc.torch.export writes for a
   momentum of None; NULL: none. */
static const char *batches_before(const OxNode *n) {
    return ox_metadata(n->proto->metadata_props, n->proto->n_metadata_props,
                       "ampc.batches");
}

/* Running statistics are means over all batches (PyTorch's momentum=None). */
static bool is_cumulative(const Ox *ox, const OxNode *n) {
    if (batches_before(n)) return ox->opt->batchnorm_cumulative != 0;
    if (!momentum_is_ambiguous(ox, n)) return false;
    return ox->opt->batchnorm_cumulative >= 0
               ? ox->opt->batchnorm_cumulative != 0
               : momentum_of(n) == 1;
}

static const char *statistics_of_momentum(const Ox *ox, const OxNode *n) {
    return is_cumulative(ox, n)  ? "means over all batches"
           : momentum_of(n) == 1 ? "held"
                                 : "those of the last batch";
}

/* One line, unless the user said which is meant. */
static void say_ambiguous_momentum(Ox *ox) {
    const OxNode *first = NULL;
    int count = 0;
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (n->op->handler != OX_batch_norm || !in_training(ox, n) ||
            !momentum_is_ambiguous(ox, n))
            continue;
        first = count++ ? first : n;
    }
    if (!count || ox->opt->batchnorm_cumulative >= 0) return;
    bool cumulative = is_cumulative(ox, first);
    fail_note(ox->d, (Loc){.file = ox->file},
              "the file does not tell PyTorch's momentum=None from momentum=%d "
              "(BatchNormalization '%s'%s): running statistics are %s, as of "
              "%s; --batchnorm train:%s is the other",
              momentum_of(first) == 0, ox_quote(ox, first->in[1]),
              count > 1 ? " and others" : "", statistics_of_momentum(ox, first),
              cumulative ? "None" : "the number",
              cumulative ? "momentum" : "cumulative");
}

/* checkpoint(..), also by its module, or checkpoint_sequential(..), not
   load_checkpoint(..); an alias is not seen. */
static bool calls_checkpoint(Str trace) {
    static const char name[] = "checkpoint";
    for (Str at = trace; (at = strstr(at, name)); at += strlen(name)) {
        Str end = at + strlen(name);
        bool word =
            at == trace || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (word && (*end == '(' || !strncmp(end, "_sequential(", 12)))
            return true;
    }
    return false;
}

/* torch.utils.checkpoint runs the forward once more for the backward, which
   updates running statistics twice; it leaves no node. */
static void say_checkpointed(Ox *ox) {
    const OxNode *first = NULL;
    int count = 0;
    for (int i = 0; i < ox->order.len && options_train(ox->opt); i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (n->op->handler != OX_batch_norm || !in_training(ox, n)) continue;
        Str trace = ox_text(ox_metadata(n->proto->metadata_props,
                                        n->proto->n_metadata_props,
                                        "pkg.torch.onnx.stack_trace"));
        if (!calls_checkpoint(trace)) continue;
        first = count++ ? first : n;
    }
    if (count)
        ox_warn_model(ox,
                      "BatchNormalization '%s'%s lies under checkpoint() by "
                      "its stack trace: PyTorch then updates the running "
                      "statistics twice in a step, and here once",
                      ox_quote(ox, first->in[1]),
                      count > 1 ? " and others" : "");
}

/* If all nodes of a file have one mode, all train, with a note if that is not
   the file's mode. If some are frozen beside others that train, as after
   bn.eval(), each keeps the file's mode. */
static void find_mixed_modes(Ox *ox) {
    int trains = 0, frozen = 0;
    const OxNode *first = NULL;
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (n->op->handler != OX_batch_norm) continue;
        bool t = file_trains(ox, n);
        trains += t;
        if (t || frozen_by_user(ox, n)) continue;
        first = frozen++ ? first : n;
    }
    if (!frozen || !options_train(ox->opt) || !ox->opt->batchnorm_train ||
        ox->opt->batchnorm_said)
        return;
    ox->mixed_modes = trains || ox_by_ampc(ox);
    const char *name = ox_quote(ox, first->in[1]);
    const char *others = frozen > 1 ? " and others" : "";
    if (ox->mixed_modes)
        fail_note(ox->d, (Loc){.file = ox->file},
                  "%d BatchNormalization train%s and %d stay%s frozen, '%s'%s, "
                  "as the file has them; --batchnorm train trains all",
                  trains, trains == 1 ? "s" : "", frozen,
                  frozen == 1 ? "s" : "", name, others);
    else
        fail_note(
            ox->d, (Loc){.file = ox->file},
            "%d BatchNormalization train%s ('%s'%s), though in evaluation "
            "mode in the file; --batchnorm frozen keeps the statistics",
            frozen, frozen == 1 ? "s" : "", name, others);
}

void ox_find_modes(Ox *ox) {
    find_mixed_modes(ox);
    say_ambiguous_momentum(ox);
    say_checkpointed(ox);
}

/* batch variance, as running statistics define it */
static Status unbiased(Ox *ox, ValueId x, ValueId *var) {
    Type t = ox_type(ox, x);
    double n = t.dim[1] ? (double)(type_count(&t) / t.dim[1]) : 0;
    bool wanted = ox->opt->batchnorm_unbiased >= 0
                      ? ox->opt->batchnorm_unbiased != 0
                      : ox->is_torch;
    if (wanted && n > 0 && ox->opt->sync_batchnorm) {
        Attr attr = attr_named_f("n", n);
        return ox_call(ox, "unbiased_over_ranks", var, 1, &attr, 1, 1, var);
    }
    return wanted && n > 1 ? ox2k(ox, OP_MUL, *var, n / (n - 1), var) : OK;
}

/* A module called twice updates its statistics twice. */
static ValueId *pending_write(Ox *ox, ValueId buffer) {
    for (int i = 0; i < ox->g->writes.len; i++)
        if (same_value(ox->g->writes.data[i].var, buffer))
            return &ox->g->writes.data[i].value;
    return NULL;
}

Str ox_statistics(const Ox *ox, const OxNode *n, int k) {
    Str buffer = n->in[k];
    const OxName *x;
    while ((x = ox_name_of(ox, buffer)) && x->kind == OX_RESULT) {
        const OxNode *from = &ox->nodes.data[x->index];
        if (from->op->handler != OX_tile && from->op->handler != OX_expand)
            break;
        buffer = from->in[0];
    }
    return x && x->kind == OX_INIT ? buffer : n->in[k];
}

/* The batch's statistics, computed for each sample and channel, as means
   over samples. */
static Status over_samples(Ox *ox, ValueId buffer, ValueId *batch) {
    int64_t each = ox_type(ox, buffer).dim[0], axis = 0;
    int64_t dim[] = {each ? ox_type(ox, *batch).dim[0] / each : 0, each};
    if (dim[0] == 1) return OK;
    TRY(ox_reshape(ox, *batch, 2, dim, batch));
    return ox_reduce(ox, OP_REDUCE_MEAN, *batch, &axis, 1, false, batch);
}

/* The count before the first step; 0 where the file tells none. */
static Status first_count(Ox *ox, double *count) {
    const char *text = batches_before(ox->node);
    *count = text ? strtod(text, NULL) : 0;
    if (!text || (*text && !text[strspn(text, "0123456789")])) return OK;
    return ox_fail(ox,
                   "metadata 'ampc.batches' is '%s', not a number of batches "
                   "(0 or more); --batchnorm train:momentum does not read it",
                   ox_quote(ox, text));
}

/* PyTorch's own buffer counts the batches. */
static Status cumulative_average(Ox *ox, ValueId buffer, ValueId old,
                                 ValueId batch, ValueId *out) {
    Str of = value_var(ox->g, buffer)->name;
    const char *dot = strrchr(of, '.');
    Str name =
        internf("%.*snum_batches_tracked", dot ? (int)(dot + 1 - of) : 0, of);
    double before;
    TRY(first_count(ox, &before));
    int var = module_find_var(ox->m, name);
    if (var >= 0 && (ox->m->vars.data[var].kind != VAR_BUFFER ||
                     ox->m->vars.data[var].type.i != type_scalar(DT_F64).i))
        return ox_fail(ox, "'%s' does not count batches", ox_quote(ox, name));
    var =
        module_var(ox->m, VAR_BUFFER, name, type_scalar(DT_F64), NULL, before);
    ValueId n = graph_var(ox->g, var), more, part;
    TRY(ox2k(ox, OP_ADD, n, 1, &more));
    if (!pending_write(ox, n))
        vec_push(ox->a, &ox->g->writes, (Write){.var = n, .value = more});
    TRY(ox_cast(ox, more, DT_F32, false, &more));
    TRY(ox2(ox, OP_SUB, batch, old, &part));
    TRY(ox2(ox, OP_DIV, part, more, &part));
    return ox2(ox, OP_ADD, old, part, out);
}

static Status run_average(Ox *ox, int operand, ValueId batch, ValueId *out) {
    double m = momentum_of(ox->node);
    ValueId buffer =
        ox_name_of(ox, ox_statistics(ox, ox->node, operand))->value;
    const Value *b = value_get(ox->g, buffer);
    bool is_state =
        b->kind == VK_VAR && value_var(ox->g, buffer)->kind == VAR_BUFFER;
    ValueId *write = pending_write(ox, buffer), old = write ? *write : buffer;
    TRY(over_samples(ox, buffer, &batch));
    if (is_state && is_cumulative(ox, ox->node)) {
        TRY(cumulative_average(ox, buffer, old, batch, out));
        write = pending_write(ox, buffer); /* the list may have moved */
    } else {
        TRY(ox2k(ox, OP_MUL, old, m, &old));
        TRY(ox2k(ox, OP_MUL, batch, 1 - m, &batch));
        TRY(ox2(ox, OP_ADD, old, batch, out));
    }
    if (!is_state) return OK;
    if (write)
        *write = *out;
    else
        vec_push(ox->a, &ox->g->writes, (Write){.var = buffer, .value = *out});
    return OK;
}

/* Result 0 in the shape of the operand. */
static Status normalised(Ox *ox, ValueId y) {
    Type t = ox_type(ox, ox_in(ox, 0));
    TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}

static Status train_batch_norm(Ox *ox, const ValueId *in, const Attr *attr,
                               int nattr) {
    ValueId out[3], mean, var;
    TRY(ox_call(ox, "batch_norm", in, 5, attr, nattr, 3, out));
    var = out[2];
    TRY(normalised(ox, out[0]));
    TRY(unbiased(ox, in[0], &var));
    TRY(run_average(ox, 3, out[1], &mean));
    TRY(run_average(ox, 4, var, &var));
    TRY(ox_out(ox, 1, mean));
    TRY(ox_out(ox, 2, var));
    TRY(ox_out(ox, 3, out[1]));
    return ox_out(ox, 4, out[2]);
}

Status onnx_batch_norm(Ox *ox) {
    ValueId in[5], y;
    for (int i = 0; i < 5; i++) in[i] = ox_in(ox, i);
    Type t = ox_type(ox, in[0]);
    if (t.rank == 1) /* one channel, says the standard */
        TRY(ox_reshape(ox, in[0], 2, (int64_t[]){t.dim[0], 1}, &in[0]));
    if (ox->node->version < 9 && ox_int(ox, "spatial", 1) == 0)
        return ox_fail(ox, "spatial=0 is not supported");
    bool training = in_training(ox, ox->node);
    Attr attr[MAX_OP_ATTRS + 2];
    int n;
    TRY(ox_mapped(ox, attr, &n));
    attr[n++] = attr_named_i("training", training);
    if (training && ox->opt->sync_batchnorm)
        attr[n++] = attr_named_i("ranks", 1);
    if (training) return train_batch_norm(ox, in, attr, n);
    for (int i = 1; i < ox->node->nout; i++)
        if (ox_has_out(ox, i))
            return ox_fail(ox, "result %d exists in training only", i);
    TRY(ox_call(ox, "batch_norm", in, 5, attr, n, 1, &y));
    return normalised(ox, y);
}

/* If scale or bias have more axes than are normalised, such as the scale of
   ones that PyTorch's exporter writes for rms_norm without weight, they are
   multiplied and added afterwards. */
Status onnx_row_norm(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), ox_in(ox, 1)}, bias = ox_in(ox, 2), y[3];
    Type x = ox_type(ox, in[0]), scale = ox_type(ox, in[1]);
    Attr attr[MAX_OP_ATTRS];
    int n, axis, rank = scale.rank;
    TRY(ox_axis(ox, ox_int(ox, "axis", -1), x.rank, &axis));
    if (is_value(bias) && ox_type(ox, bias).rank > rank)
        rank = ox_type(ox, bias).rank;
    if (rank <= x.rank - axis) return onnx_call(ox);
    TRY(ox_mapped(ox, attr, &n));
    ValueId one = ox_scalar(ox, scale.dtype, 1);
    TRY(ox_expand(ox, one, x.rank - axis, x.dim + axis, &in[1]));
    int nout = callee_info(ox_callee(ox->node->op))->out_min;
    TRY(ox_call(ox, ox->node->op->fn, in, 2, attr, n, nout, y));
    TRY(ox2(ox, OP_MUL, y[0], ox_in(ox, 1), &y[0]));
    if (is_value(bias)) TRY(ox2(ox, OP_ADD, y[0], bias, &y[0]));
    Type made = ox_type(ox, y[0]);
    if (!shape_equal(&made, &x))
        return ox_fail(ox, "scale or bias do not broadcast to %s",
                       ox_type_text(ox, in[0]));
    for (int k = 0; k < ox->node->nout; k++) TRY(ox_out(ox, k, y[k]));
    return OK;
}

/* ---- softmax ------------------------------------------------------------- */

/* ---- attention of PyTorch ------------------------------------------------ */

/* x times the square root of the scale: TorchScript's form of the function. */
static bool times_root(const Ox *ox, Str name) {
    const OxNode *n = ox_maker(ox, name, "Mul");
    return n &&
           (ox_maker(ox, n->in[0], "Sqrt") || ox_maker(ox, n->in[1], "Sqrt"));
}

/* The softmax inside F.scaled_dot_product_attention. */
static bool is_torch_attention(const Ox *ox) {
    if (ox_torch_node(ox->node, "aten.scaled_dot_product_attention"))
        return true;
    const OxNode *sum = ox_maker(ox, ox->node->in[0], "Add");
    for (int k = 0; ox->is_torch && sum && k < 2; k++) {
        const OxNode *n = ox_maker(ox, sum->in[k], "MatMul");
        if (n && times_root(ox, n->in[0]) && times_root(ox, n->in[1]))
            return true;
    }
    return false;
}

/* The mask that the exporter's optimiser computed from one of keys that are
   seen: 0, or the lowest finite number for -inf, with which a query without
   any key would get the mean of all values. Masks of the model have names of
   PyTorch's graph. NULL: another mask. */
static const Tensor *folded_mask(const Ox *ox, Str name) {
    const OxName *x = ox_name_of(ox, name);
    const Tensor *t = x && x->kind == OX_INIT && ox_torch_counts(name, "val")
                          ? ox_data(ox, x->value)
                          : NULL;
    int64_t n = t ? type_count(type_get(t->type)) : 0;
    for (int64_t i = 0; i < n; i++) {
        double v = tensor_get(t, i);
        if (v && !(isfinite(v) && v <= -65504)) return NULL;
    }
    return n ? t : NULL;
}

/* Gives the mask of attention its -inf back, as hide_keys does (onnx_math.c)
   where the mask is not folded. */
static Status hide_folded(Ox *ox, ValueId *x) {
    const OxNode *sum = ox_maker(ox, ox->node->in[0], "Add");
    for (int k = 0; sum && k < 2; k++) {
        const Tensor *t = folded_mask(ox, sum->in[k]);
        if (!t || !ox_torch_node(ox->node, "aten.scaled_dot_product_attention"))
            continue;
        Tensor *mask = tensor_new(ox->a, t->type);
        ValueId in[2] = {ox_name_of(ox, sum->in[1 - k])->value};
        for (int64_t i = 0; i < type_count(type_get(t->type)); i++)
            tensor_set(mask, i, tensor_get(t, i) ? -INFINITY : 0);
        TRY(ox_const(ox, mask, &in[1]));
        return ox2(ox, OP_ADD, in[0], in[1], x);
    }
    return OK;
}

static bool has_hidden_row(const Tensor *t) {
    const Type *type = type_get(t->type);
    int64_t count = type_count(type);
    int64_t row = type->rank ? type->dim[type->rank - 1] : 1;
    for (int64_t i = 0; row && i < count; i += row) {
        int64_t k = 0;
        while (k < row && tensor_get(t, i + k) == -INFINITY) k++;
        if (k == row) return true;
    }
    return false;
}

static bool is_checked_for_nan(const Ox *ox) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        if (!strcmp(n->type, "IsNaN") && n->in[0] == ox->node->out[0])
            return true;
    }
    return false;
}

/* PyTorch's function gives zeros for a query without any key; the exported
   form of an additive mask gives NaN. */
static bool may_hide_rows(const Ox *ox, ValueId x) {
    const Node *sum = ox_def(ox, x, OP_ADD);
    if (!sum || !is_torch_attention(ox) || is_checked_for_nan(ox)) return false;
    for (int k = 0; k < 2; k++) {
        const Tensor *t = ox_data(ox, sum->in[k]);
        if (t) return has_hidden_row(t);
    }
    return true;
}

/* Before opset 13 all axes from `axis` on were treated as one, and the
   default was 1. */
Status onnx_softmax(Ox *ox) {
    ValueId x = ox_in(ox, 0), y = x;
    Type t = ox_type(ox, x);
    bool flat = ox->node->version < 13;
    int axis;
    TRY(ox_axis(ox, ox_int(ox, "axis", flat ? 1 : -1), t.rank, &axis));
    flat = flat && axis < t.rank - 1;
    if (flat) {
        int64_t dim[2] = {1, 1};
        for (int i = 0; i < t.rank; i++) dim[i >= axis] *= t.dim[i];
        TRY(ox_reshape(ox, x, 2, dim, &y));
        axis = 1;
    }
    Attr attr = attr_i(AK_axis, axis);
    if (!flat) TRY(hide_folded(ox, &y));
    bool hides = !flat && axis == t.rank - 1 && may_hide_rows(ox, y);
    TRY(ox_call(ox, hides ? "masked_softmax" : ox->node->op->fn, &y, 1, &attr,
                1, 1, &y));
    if (flat) TRY(ox_reshape(ox, y, t.rank, t.dim, &y));
    return ox_out(ox, 0, y);
}
