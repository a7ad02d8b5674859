/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_train.c: decides which initializers train. The first rule that applies
   decides: the user's globs; tensors that cannot train are constant; running
   statistics of BatchNormalization and tensors that the forward writes are
   buffers; the exporter's marks; else the role of the tensor and its name. The
   reason is kept for
   `inspect --params`.                                                       */
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "frontend/onnx/onnx_train.h"

Exporter ox_exporter(const Ox *ox) {
    static const struct {
        const char *producer;
        Exporter exporter;
    } all[] = {{"jax2onnx", JAX}, {"tf2onnx", TF}, {"skl2onnx", SKLEARN}};
    const char *by = ox->model->producer_name;
    if (ox->has_signature) return DYNAMO;
    if (ox->is_torch) return ox_rewritten_by(ox) ? STRIPPED : SCRIPT;
    if (ox->is_paddle) return PADDLE;
    for (size_t i = 0; by && i < sizeof all / sizeof *all; i++)
        if (!strncmp(by, all[i].producer, strlen(all[i].producer)))
            return all[i].exporter;
    return OTHER;
}

/* ---- decisions ----------------------------------------------------------- */

typedef enum Content { ALL_FINITE, HAS_INF, HAS_NAN } Content;

static Content content_of(const Tensor *t) {
    const Type *type = type_get(t->type);
    int64_t n = type_count(type);
    Content worst = ALL_FINITE;
    Arena *tmp = arena_new();
    const float *f = type->dtype == DT_F32 ? t->data : NULL;
    const double *g = f ? NULL : eval_from_tensor(tmp, t)->f;
    for (int64_t i = 0; i < n && worst != HAS_NAN; i++) {
        double v = f ? (double)f[i] : g[i];
        if (!isfinite(v)) worst = isnan(v) ? HAS_NAN : HAS_INF;
    }
    arena_free(tmp);
    return worst;
}

static void become(OxInit *x, VarKind kind, Str why) {
    x->is_var = true;
    x->kind = kind;
    x->why = why;
}

/* --train and --freeze: the last match wins.  A pattern selects tensors that
   can train; the name of a tensor that cannot train is an error. */
static bool by_user(Ox *ox, OxInit *x, bool trainable, bool *used) {
    const GlobRule *hit = NULL;
    for (int i = 0; i < ox->opt->train_rules.len; i++) {
        const GlobRule *r = &ox->opt->train_rules.data[i];
        if (!glob_layer(r->glob, x->name)) continue;
        used[i] = true;
        if (trainable || !r->train || !strpbrk(r->glob, "*?")) hit = r;
    }
    if (!hit) return false;
    become(x, hit->train ? VAR_PARAM : VAR_FROZEN,
           internf("%s %s", hit->train ? "--train" : "--freeze", hit->glob));
    return true;
}

static void by_rule(Ox *ox, OxInit *x, const OxName *name) {
    Str why;
    Verdict verdict = ox_verdict(ox, x, name, &why);
    switch (verdict) {
    case TRAINS:
    case GUESSED: become(x, VAR_PARAM, why); break;
    case FROZEN:
    case TOLD: become(x, VAR_FROZEN, why); break;
    case CODE: x->why = why; break;
    }
    if (verdict == TOLD && options_train(ox->opt))
        ox_warn_model(ox, "'%s' does not train: %s (--train '%s' overrides)",
                      ox_quote(ox, x->name), x->why, ox_quote(ox, x->name));
}

static bool is_cut_off(const Ox *ox, const OxInit *x) {
    return x->live && x->is_var && x->kind == VAR_PARAM &&
           !ox_name_of(ox, x->name)->reaches;
}

static Status check_reach(Ox *ox) {
    StrBuf names = {0}, options = {0};
    int n = 0;
    for (int i = 0; i < ox->inits.len && options_train(ox->opt); i++) {
        const OxInit *x = &ox->inits.data[i];
        if (!is_cut_off(ox, x) || !sb_put_next(&names, n++)) continue;
        sb_printf(&names, "'%s'", ox_quote(ox, x->name));
        sb_printf(&options, "%s--freeze '%s'", options.len ? " " : "",
                  ox_quote(ox, x->name));
    }
    sb_put_more(&names, n);
    if (n)
        ox_fail_model(ox,
                      "parameter%s %s reach%s the outputs only through "
                      "non-differentiable operands; %s keeps %s",
                      n == 1 ? "" : "s", names.data, n == 1 ? "es" : "",
                      options.data,
                      n == 1 ? "it as it is" : "them as they are");
    sb_free(&names);
    sb_free(&options);
    return n ? ERR_USER : OK;
}

/* In PyTorch the gradient of such a parameter is that of the written value. */
static Status check_written(Ox *ox, const OxInit *x, bool frozen) {
    const OxName *value = x->written ? ox_name_of(ox, x->written) : NULL;
    if (!value || !value->reaches || frozen || !x->mark ||
        strcmp(x->mark, "PARAMETER"))
        return OK;
    return ox_fail_model(ox,
                         "the model's forward writes the parameter '%s' and a "
                         "gradient reaches it; a tensor that trains cannot be "
                         "written as well: --freeze '%s' leaves it to the "
                         "forward",
                         ox_quote(ox, x->name), ox_quote(ox, x->name));
}

static Status decide(Ox *ox, OxInit *x, bool *used) {
    const OxName *name = ox_name_of(ox, x->name);
    TRY((ox_is_nibbles(x->proto) ? ox_nibbles : ox_tensor)(ox, x->proto,
                                                           x->name, &x->data));
    bool is_float = dtype_is_float(type_get(x->data->type)->dtype);
    Content content = is_float ? content_of(x->data) : ALL_FINITE;
    bool finite = content == ALL_FINITE;
    bool user = by_user(ox, x, is_float && finite && name->reaches, used);
    TRY(check_written(ox, x, user && x->kind == VAR_FROZEN));
    if (!is_float) {
        x->is_var = false;
    } else if (name->statistics_of) {
        become(x, VAR_BUFFER,
               internf("running statistics of '%s'",
                       ox_quote(ox, name->statistics_of->name)));
    } else if (x->written) {
        become(x, VAR_BUFFER, intern("written by the forward"));
    } else if (!user && !finite &&
               !(x->mark && !strcmp(x->mark, "PARAMETER"))) {
        x->is_var = false;
        x->why = intern("not finite: a mask");
    } else if (!user) {
        by_rule(ox, x, name);
    }
    if (content == HAS_NAN || (x->is_var && !finite)) /* -inf: a mask */
        ox_warn_model(ox, "'%s' holds %s%s", ox_quote(ox, x->name),
                      content == HAS_NAN ? "NaN" : "infinity",
                      x->is_var ? "" : " and does not train");
    return OK;
}

Str ox_keeps_no_stops(const Ox *ox) {
    switch (ox_exporter(ox)) {
    case DYNAMO:
        return ox_by_ampc(ox)
                   ? NULL
                   : intern("torch.onnx.export does not write "
                            "requires_grad=False (--freeze GLOB), "
                            "inference_mode(), gradient hooks or the "
                            "backward() of an autograd.Function");
    case SCRIPT:
        return intern("TorchScript keeps no detach(), no_grad() or "
                      "autograd.Function, and does not tell a buffer from a "
                      "parameter");
    case STRIPPED:
        return intern("without PyTorch's metadata no detach() is left");
    case TF:
        return intern("tf2onnx keeps no stop_gradient and no trainable=False");
    case JAX:
        return intern("jax2onnx keeps no custom_vjp or custom_jvp, and does "
                      "not tell what trains");
    case PADDLE:
        return intern("paddle2onnx keeps no no_grad() and no "
                      "stop_gradient=True");
    default: return NULL;
    }
}

/* Such a normalisation is not one node, which could train. */
static void warn_statistics(Ox *ox) {
    const OxInit *first = NULL;
    int n = 0;
    for (int i = 0; i < ox->inits.len; i++) {
        const OxInit *x = &ox->inits.data[i];
        if (!x->live || !x->is_var || !x->statistic) continue;
        if (!n++) first = x;
    }
    if (n && ox_exporter(ox) == JAX && options_train(ox->opt))
        ox_warn_model(ox,
                      "%d tensors are running statistics of normalisations in "
                      "the arithmetic of evaluation, first '%s': they stay, "
                      "and training does not use the statistics of its batches",
                      n, ox_quote(ox, first->name));
}

Status ox_decide(Ox *ox) {
    bool *used = NEW_ARRAY(ox->scratch, bool, ox->opt->train_rules.len + 1);
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        TRY(ox_check_nibbles(ox, n));
        if (n->op->handler != OX_batch_norm) continue;
        for (int k = 3; k < 5; k++)
            ox_name_of(ox, ox_statistics(ox, n, k))->statistics_of = n;
    }
    ox_find_modes(ox);
    ox_find_mutations(ox);
    ox_find_uses(ox);
    for (int i = 0; i < ox->inits.len; i++)
        if (ox->inits.data[i].live) TRY(decide(ox, &ox->inits.data[i], used));
    TRY(check_reach(ox));
    warn_statistics(ox);
    for (int i = 0; i < ox->opt->train_rules.len; i++) {
        const GlobRule *r = &ox->opt->train_rules.data[i];
        if (used[i]) continue;
        ox_fail_model(ox,
                      "%s '%s' matches no initializer of the model (ampc "
                      "inspect MODEL --params lists them)",
                      r->train ? "--train" : "--freeze", ox_quote(ox, r->glob));
        return ERR_USAGE;
    }
    return OK;
}
