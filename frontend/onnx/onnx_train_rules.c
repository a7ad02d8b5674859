/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_train_rules.c: the rules that decide which initializers train. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "frontend/onnx/onnx.h"
#include "frontend/onnx/onnx_train.h"

/* An initializer that may train, and its use. */
typedef struct Case {
    Ox *ox;
    const OxInit *x;
    const OxName *name;
    const OxNode *role; /* NULL: it has none, or no gradient reaches it */
    Str from;           /* name that a test found, for the reason */
} Case;

typedef bool Test(Case *c);

static bool always(Case *c) {
    (void)c;
    return true;
}

static bool marked(const Case *c, const char *kind) {
    return c->x->mark && !strcmp(c->x->mark, kind);
}

static bool parameter(Case *c) { return marked(c, "PARAMETER"); }

/* A teacher, a target network: PyTorch leaves its gradient None. */
static bool detached_parameter(Case *c) {
    return parameter(c) && c->name->detached && !c->name->reaches;
}

static bool any_mark(Case *c) {
    c->from = c->x->mark;
    return c->x->mark;
}

/* A signature names it, but it has no mark: BatchNormalization was fused
   into it, or another tool rewrote the file. */
static bool signed_as(Case *c, const char *kind) {
    for (int i = 0; i < c->ox->signature.len; i++) {
        const OxSigned *p = &c->ox->signature.data[i];
        if (p->target == c->x->name && ox_signed_as(p, kind)) return true;
    }
    return false;
}

static bool signed_parameter(Case *c) { return signed_as(c, "PARAMETER"); }
static bool signed_other(Case *c) {
    return signed_as(c, "BUFFER") || signed_as(c, "CONSTANT_TENSOR");
}

/* torch.tensor(..) inside a forward makes a copy first. */
static bool made_by_forward(const Ox *ox, Str name) {
    for (int i = 0; i < ox->order.len; i++) {
        const OxNode *n = &ox->nodes.data[ox->order.data[i]];
        for (int k = 0; k < n->nin; k++)
            if (n->in[k] == name) return ox_torch_node(n, "aten.clone");
    }
    return false;
}

/* A parameter or a plain tensor: torch.export does not record which;
   ampc.torch.export marks the parameters. */
static bool lifted(Case *c) {
    return !ox_by_ampc(c->ox) && marked(c, "CONSTANT_TENSOR") && c->role &&
           !c->x->normalises && !strncmp(c->x->name, "lifted_tensor_", 14) &&
           !made_by_forward(c->ox, c->x->name);
}

/* folded_from is a list as Python prints it. */
static bool listed(Str list, const char *name) {
    const char *quoted = internf("'%s'", name);
    return list && strstr(list, quoted);
}

static bool folded_parameter(Case *c) {
    for (int i = 0; i < c->ox->signature.len; i++) {
        const OxSigned *p = &c->ox->signature.data[i];
        if (!ox_signed_as(p, "PARAMETER") || !listed(c->x->folded, p->target))
            continue;
        c->from = p->target;
        return true;
    }
    return false;
}

static bool in_weights_place(const Case *c) {
    return c->role && !ox_elementwise(c->role) && c->x->proto->n_dims >= 2;
}

static bool folded_lifted(Case *c) {
    if (!c->x->folded || !in_weights_place(c) ||
        strstr(c->x->folded, "'clone") || !strncmp(c->x->name, "clone", 5))
        return false;
    for (int i = 0; i < c->ox->signature.len; i++) {
        const OxSigned *p = &c->ox->signature.data[i];
        if (strncmp(p->target, "lifted_tensor_", 14) ||
            !listed(c->x->folded, p->target))
            continue;
        c->from = p->target;
        return true;
    }
    return false;
}

static bool views_variable(Case *c) {
    if (c->role) c->from = ox_viewed_variable(c->ox, c->x);
    return c->from;
}

static bool rewritten(Case *c) { return !c->x->folded && in_weights_place(c); }

static bool one_element(Case *c) {
    return type_count(type_get(c->x->data->type)) == 1;
}

static bool number(Case *c) { return c->x->proto->n_dims == 0; }

static bool matches(Str name, const char *const *globs) {
    for (; *globs; globs++)
        if (glob_match(*globs, name)) return true;
    return false;
}

/* True if the name is not derived from a variable of TensorFlow. */
static bool no_variable(Case *c) {
    return one_element(c) && !strstr(c->x->name, "ReadVariableOp");
}

static bool named_constant_by_tensorflow(Case *c) {
    static const char *const globs[] = {"Const:0",
                                        "Const_[0-9]*:0",
                                        "*/Const:0",
                                        "*/Const_[0-9]*:0",
                                        "*/[xy]:0",
                                        "*/Cast/[xy]:0",
                                        "ConstantFolding/*_recip:0",
                                        NULL};
    return matches(c->x->name, globs);
}

/* Parameters are called LAYER_N.w_K; assign_value holds tables of the code. */
static bool constant_of_paddle(Case *c) {
    static const char *const globs[] = {"auto.*", "helper.*",
                                        "p2o.pd_op.assign_value*",
                                        "p2o.pd_op.full*", NULL};
    return matches(c->x->name, globs);
}

static bool buffer_of_paddle(Case *c) {
    static const char *const globs[] = {"generated_tensor_*", NULL};
    return matches(c->x->name, globs);
}

static bool constant_of_tensorflow(Case *c) {
    return named_constant_by_tensorflow(c) && !in_weights_place(c);
}

/* What tf2onnx computed beforehand, from variables or from constants; a change
   of shape is of a variable, mostly. The model's own transpose() and slices
   leave tensors that train apart from theirs. */
static bool folded_by_tensorflow(Case *c) {
    static const char *const globs[] = {"*ReadVariableOp*",
                                        "*/Reshape*:0",
                                        "*/Squeeze*:0",
                                        "*/Transpose*:0",
                                        "*const_fold_opt__*",
                                        "*/ExpandDims*:0",
                                        NULL};
    return c->role && !matches(c->x->name, globs);
}

/* jax2onnx writes the forward's own x @ w with a bias of one element, and a
   layer's with the layer's bias. */
static bool bare_product(Case *c) {
    const OxNode *n = c->role;
    if (!n || c->x->proto->n_dims < 2) return false;
    return !strcmp(n->type, "Einsum") ||
           (!strcmp(n->type, "Gemm") && n->nin > 2 &&
            !strncmp(n->in[2], "dot_bias_", 9));
}

/* True if it is named like a node of PyTorch's graph that creates numbers or
   tables. */
static bool counted(Case *c) {
    static const char *const ops[] = {"scalar_tensor", "scalar_tensor_default",
                                      "val",           "arange",
                                      "full",          "ones",
                                      "zeros",         "view",
                                      "linspace"};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ox_torch_counts(c->x->name, ops[i])) return !in_weights_place(c);
    return false;
}

/* The node adds a layer's bias to the product; its name, or NULL. */
static Str bias_of(const OxNode *n, Str product) {
    static const struct {
        const char *type;
        int least, bias; /* operands, and which is the bias; -1: any */
    } all[] = {{"Gemm", 3, 2},     {"FusedGemm", 3, 2},
               {"Add", 2, -1},     {"BiasGelu", 2, 1},
               {"FastGelu", 2, 1}, {"SkipLayerNormalization", 5, 4}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(n->type, all[i].type) || n->nin < all[i].least) continue;
        for (int k = 0; k < n->nin; k++)
            if ((all[i].bias < 0 ? n->in[k] != product : k == all[i].bias) &&
                glob_match("*.bias", n->in[k]))
                return n->in[k];
    }
    return NULL;
}

/* The transposed weight of a Linear, whose bias kept its name. */
static bool biased(Case *c) {
    if (!in_weights_place(c) || !ox_torch_counts(c->x->name, "val"))
        return false;
    Str product = c->role->out[0];
    c->from = bias_of(c->role, product);
    for (int i = 0; i < c->ox->order.len && !c->from; i++) {
        const OxNode *n = &c->ox->nodes.data[c->ox->order.data[i]];
        for (int k = 0; k < n->nin && !c->from; k++)
            if (n->in[k] == product) c->from = bias_of(n, product);
    }
    return c->from;
}

/* .. of a Linear without a bias: only the exporter transposes so. */
static bool transposed_alone(Case *c) {
    return in_weights_place(c) && ox_torch_counts(c->x->name, "val");
}

/* A normalisation of flax without a scale or a bias gets them from jax2onnx. */
static bool filled_in_by_jax(Case *c) {
    static const char *const globs[] = {"scale_c_[0-9]*", "bias_c_[0-9]*",
                                        NULL};
    return matches(c->x->name, globs);
}

static bool coefficient(Case *c) {
    static const char *const globs[] = {"*coef*", "*intercept*", "*weight*",
                                        "*bias*", NULL};
    return c->role && matches(c->x->name, globs);
}

/* onnx::MatMul_12 and the like: weights that were transposed or fused. */
static bool folded_by_script(Case *c) {
    return c->role && !ox_elementwise(c->role) &&
           !strncmp(c->x->name, "onnx::", 6) &&
           (c->x->proto->n_dims >= 2 || strcmp(c->role->type, "MatMul"));
}

/* The bias of a product with a weight. */
static bool numbered_bias(Case *c) {
    if (c->role && ox_all_numbered(c->ox))
        c->from = ox_numbered_weight(c->ox, c->role, c->x->name);
    return c->from;
}

static bool numbered_slope(Case *c) {
    return c->role && ox_all_numbered(c->ox) &&
           ox_numbered_slope(c->ox, c->role, c->x->name);
}

static bool numbered_gain(Case *c) {
    return c->role && ox_all_numbered(c->ox) &&
           ox_numbered_gain(c->ox, c->role, c->x->name);
}

/* A node that multiplies x with the scale of a DynamicQuantizeLinear. */
static bool scales_dynamically(const Ox *ox, const OxNode *n, Str x) {
    if (strcmp(n->type, "Mul") || n->nin != 2) return false;
    Str other = n->in[n->in[0] == x];
    const OxNode *q = ox_maker(ox, other, "DynamicQuantizeLinear");
    return n->in[n->in[0] != x] == x && q && q->nout > 1 && q->out[1] == other;
}

static bool quantises(Case *c) {
    for (int i = 0; i < c->ox->order.len; i++) {
        const OxNode *n = &c->ox->nodes.data[c->ox->order.data[i]];
        bool pair =
            n->op->handler == OX_quantize || n->op->handler == OX_dequantize;
        if (pair && n->nin > 1 && n->in[1] == c->x->name) return true;
        if (scales_dynamically(c->ox, n, c->x->name)) return true;
    }
    return false;
}

/* Scales of packed weights, tables of rotary positions: the fused ops that read
   them have no gradient there. */
static bool fixed_by_fused(Case *c) {
    for (int i = 0; i < c->ox->order.len; i++) {
        const OxNode *n = &c->ox->nodes.data[c->ox->order.data[i]];
        for (int k = 0; k < n->nin && k < 31; k++) {
            if (n->in[k] != c->x->name) continue;
            if (!*n->domain || !ox_among(n->op->nd, k)) return false;
            c->from = n->type;
        }
    }
    return c->from;
}

static bool statistic(Case *c) { return c->x->statistic; }
static bool normalises(Case *c) { return c->x->normalises; }

/* TorchScript writes the tensors of a module together, parameters first; the
   module is the path before the last dot. */
static bool same_module(Str a, Str b) {
    const char *end = strrchr(a, '.');
    size_t n = end ? (size_t)(end - a) : 0;
    const char *other = strrchr(b, '.');
    return (other ? (size_t)(other - b) : 0) == n && !memcmp(a, b, n);
}

static bool is_integer(const OxInit *x) {
    DType d;
    return dtype_from_onnx(x->proto->data_type, &d) && !dtype_is_float(d);
}

static bool is_weight(const Ox *ox, const OxInit *x) {
    const OxName *n = ox_name_of(ox, x->name);
    return n->reaches && n->role && !ox_elementwise(n->role) &&
           !n->statistics_of && !x->normalises && !x->statistic;
}

static bool before_weight(Case *c) {
    const OxInit *end = c->ox->inits.data + c->ox->inits.len;
    if (!c->role || !ox_elementwise(c->role)) return false;
    for (const OxInit *x = c->x + 1; x < end && !c->from; x++)
        if (!x->alias && same_module(c->x->name, x->name) &&
            is_weight(c->ox, x) && glob_match("*weight*", x->name))
            c->from = x->name;
    return c->from;
}

static bool behind_buffer(Case *c) {
    for (const OxInit *x = c->ox->inits.data; x < c->x && !c->from; x++)
        if (!x->alias && same_module(c->x->name, x->name) &&
            (is_integer(x) || x->normalises ||
             ox_name_of(c->ox, x->name)->statistics_of))
            c->from = x->name;
    return c->from;
}

/* The last part of a module's path. */
static Str last_part(Str name) {
    const char *dot = strrchr(name, '.');
    return intern(dot ? dot + 1 : name);
}

/* A tensor with that last part in the initializer's module; NULL: none. */
static const OxInit *beside(const Case *c, const char *last) {
    const OxInit *end = c->ox->inits.data + c->ox->inits.len;
    for (const OxInit *x = c->ox->inits.data; x < end; x++)
        if (same_module(x->name, c->x->name) &&
            !strcmp(last_part(x->name), last))
            return x;
    return NULL;
}

static bool named_like_buffer(Case *c) {
    static const char *const globs[] = {
        "mean",         "std",           "var",        "variance",
        "pixel_mean",   "pixel_std",     "running_*",  "*mask",
        "pe",           "inv_freq",      "freqs",      "freqs_*",
        "cos",          "sin",           "cos_cached", "sin_cached",
        "*_cos",        "*_sin",         "anchor*",    "grid",
        "*_grid",       "stride",        "strides",    "eps",
        "epsilon",      "class_weight*", "pos_weight", "window",
        "ema",          "*_ema",         "ema_*",      "cluster_size",
        "embed_avg",    "*position_ids", "weight_u",   "weight_v",
        "action_scale", "action_bias",   NULL};
    return (!c->role || ox_elementwise(c->role)) &&
           matches(last_part(c->x->name), globs) &&
           !beside(c, "weight_g"); /* of weight_norm, not of spectral_norm */
}

/* sin and cos of 0 alternate in the first row of a table of positions, or
   each fills one half. */
static bool sines(Case *c) {
    const Type *t = type_get(c->x->data->type);
    int64_t n = t->rank ? t->dim[t->rank - 1] : 0, rows = 1;
    bool turns = true, halves = true;
    if (t->rank < 2 || t->dtype != DT_F32 || n < 4 || n % 2) return false;
    const float *v = c->x->data->data;
    for (int k = 0; k < t->rank - 1; k++) rows *= t->dim[k];
    for (int64_t i = 0; i < n; i++) {
        turns &= v[i] == (i % 2 ? 1.0f : 0.0f);
        halves &= v[i] == (i < n / 2 ? 0.0f : 1.0f);
    }
    for (int64_t i = 0; i < rows * n && (turns || halves); i++)
        if (!(fabsf(v[i]) <= 1)) return false;
    return rows > 1 && (turns || halves);
}

static bool digits(const char *s) {
    if (!*s) return false;
    for (; *s; s++)
        if (!isdigit((unsigned char)*s)) return false;
    return true;
}

/* A name given by a module, not by an exporter (the last two: paddle2onnx). */
static bool is_module_path(Str s) {
    return !digits(s) && s[0] != '/' && strncmp(s, "onnx::", 6) &&
           !(strncmp(s, "val_", 4) == 0 && digits(s + 4)) &&
           strncmp(s, "helper.", 7) && strncmp(s, "p2o.", 4);
}

static bool weight(Case *c) { return c->role && is_module_path(c->x->name); }

/* Gain and offset of a frozen BatchNorm in plain arithmetic, as in
   torchvision, and class weights of a loss: buffers that are named weight. */
static bool with_buffer(Case *c) {
    const OxInit *x = beside(c, "running_var");
    if (!x) x = beside(c, "pos_weight");
    if (!x || x == c->x || !c->role || !ox_elementwise(c->role) ||
        ox_name_of(c->ox, x->name)->statistics_of)
        return false;
    c->from = x->name;
    return true;
}

/* True for a product with what a normalisation written as arithmetic may have
   computed, or its own last node. */
static bool of_normalised(const Ox *ox, const OxNode *n, Str weight) {
    static const char *const last[] = {
        "Mul", "Div", "Cast", "Reshape", "*Normalization", NULL};
    for (int k = 0; k < n->nin; k++) {
        const OxNode *from =
            n->in[k] == weight ? NULL : ox_made_by(ox, n->in[k]);
        if (from && matches(from->type, last)) return true;
    }
    return false;
}

/* A gain that multiplies what no normalisation computed, as in a frozen
   BatchNorm whose statistics were folded, or the offset behind it. */
static bool plain_gain(Case *c) {
    if (!weight(c) || !ox_elementwise(c->role)) return false;
    const OxNode *n = c->role;
    Str gain = c->x->name;
    for (int k = 0; !strcmp(n->type, "Add") && k < n->nin; k++) {
        const OxNode *from = ox_maker(c->ox, n->in[k], "Mul");
        const OxInit *w = from ? beside(c, "weight") : NULL;
        if (!w || w == c->x ||
            (from->in[0] != w->name && from->in[1] != w->name))
            continue;
        n = from;
        gain = w->name;
        break;
    }
    return !strcmp(n->type, "Mul") && !of_normalised(c->ox, n, gain);
}

/* A tensor of the model itself, beside layers. */
static bool of_no_layer(Case *c) {
    if (!weight(c) || strchr(c->x->name, '.')) return false;
    const OxInit *end = c->ox->inits.data + c->ox->inits.len;
    for (const OxInit *x = c->ox->inits.data; x < end; x++)
        if (strchr(x->name, '.') && is_module_path(x->name)) return true;
    return false;
}

/* True if PyTorch's layers and parametrizations do not use such a name. */
static bool unlayered(Case *c) {
    static const char *const globs[] = {
        "weight",    "bias",          "weight_*",  "bias_*",
        "in_proj_*", "?_proj_weight", "original*", NULL};
    return weight(c) && !matches(last_part(c->x->name), globs);
}

/* True if it is not named like a weight; flax numbers tensors. */
static bool unweighted(Case *c) {
    static const char *const globs[] = {"*weight*", "*bias*", NULL};
    return weight(c) && !matches(c->x->name, globs);
}

static bool doubtful(Case *c) {
    return unweighted(c) && ox_elementwise(c->role);
}

/* TorchScript writes the code's numbers as Constant nodes, jax2onnx as tensors
   of rank 0: a tensor with a module's name or of higher rank is no number, even
   as an exponent or as the bound of a clamp. */
static bool reached(Case *c) {
    return c->name->reaches && is_module_path(c->x->name);
}

static bool unnamed(Case *c) { return c->role; }
static bool unreached(Case *c) { return !c->name->reaches; }

/* The first row that applies decides. why: %s stands for the op that uses it
   as a weight, or for the name that the test found. */
static const struct {
    unsigned by; /* Exporter */
    Test *holds;
    Verdict verdict;
    const char *why;
} rules[] = {
    {DYNAMO, detached_parameter, FROZEN, "used behind detach or no_grad only"},
    {ANY, parameter, TRAINS, "PARAMETER in the file"},
    {DYNAMO, lifted, GUESSED,
     "operand of %s, kept outside of the module's parameters"},
    {ANY, any_mark, FROZEN, "%s in the file"},
    {DYNAMO, signed_parameter, TRAINS, "PARAMETER of the file's signature"},
    {DYNAMO, signed_other, FROZEN, "no PARAMETER of the file's signature"},
    {DYNAMO, folded_parameter, TRAINS, "folded from '%s'"},
    {DYNAMO, folded_lifted, GUESSED, "folded from '%s'"},
    {DYNAMO, views_variable, GUESSED, "folded from '%s'"},
    {DYNAMO, rewritten, GUESSED, "operand of %s, without a mark"},
    {DYNAMO, always, CODE, "a constant of the model's code"},

    {JAX, number, CODE, "a number, of the code or a parameter"},
    {JAX, filled_in_by_jax, CODE, "a constant that the exporter added"},
    {TF, no_variable, CODE, "a number of the model's code"},
    {TF, constant_of_tensorflow, CODE, "a constant of the model's code"},
    {TF, named_constant_by_tensorflow, GUESSED, "operand of %s, no variable"},
    {TF, folded_by_tensorflow, GUESSED, "operand of %s, computed beforehand"},
    {STRIPPED, biased, TRAINS, "the weight beside '%s'"},
    {STRIPPED, transposed_alone, GUESSED,
     "operand of %s, transposed beforehand"},
    {STRIPPED, counted, CODE, "a constant of the model's code"},
    {PADDLE, constant_of_paddle, CODE, "a constant of the model's code"},
    {PADDLE, buffer_of_paddle, FROZEN, "a tensor without a parameter's name"},
    {SKLEARN, coefficient, TRAINS, "operand of %s"},
    {SKLEARN, always, CODE, "no coefficient or intercept"},

    {ANY, quantises, FROZEN, "a scale of quantisation"},
    {ANY, fixed_by_fused, FROZEN, "operand of %s without a gradient"},
    {ANY, statistic, FROZEN, "running statistics, as %s has them"},
    {ANY, normalises, FROZEN, "normalises an input (%s)"},
    {SCRIPT | STRIPPED, folded_by_script, TRAINS,
     "folded by the exporter: operand of %s"},
    {SCRIPT, numbered_bias, TRAINS, "the bias of the product with '%s'"},
    {SCRIPT, numbered_slope, TRAINS, "the slope of a PReLU, negated"},
    {SCRIPT, numbered_gain, TRAINS, "the gain or the offset of a norm"},
    {SCRIPT, with_buffer, FROZEN, "its module has '%s' in plain arithmetic"},
    {SCRIPT, before_weight, TRAINS, "its module writes it before '%s'"},
    {SCRIPT, behind_buffer, FROZEN, "its module writes it behind '%s'"},
    {SCRIPT | STRIPPED | OTHER, named_like_buffer, FROZEN,
     "named like a buffer"},
    {SCRIPT | STRIPPED | JAX | OTHER, sines, FROZEN,
     "a table of sines and cosines"},
    {SCRIPT | STRIPPED, unlayered, GUESSED, "operand of %s"},
    {SCRIPT, of_no_layer, GUESSED, "operand of %s"},
    {SCRIPT, plain_gain, GUESSED, "operand of %s"},
    {JAX, doubtful, GUESSED, "operand of %s"},
    {JAX, bare_product, GUESSED, "operand of %s, not of a layer"},
    {ANY, weight, TRAINS, "operand of %s"},
    {SCRIPT | JAX, reached, GUESSED, "a gradient reaches it"},
    {ANY, one_element, CODE,
     "one element, in no weight's place: --train overrides"},
    {ANY, unreached, TOLD, "no gradient reaches it"},
    {ANY, unnamed, TOLD, "its name is not a module path"},
    {ANY, always, TOLD, "in no weight's place"},
};

/* The text for %s in a rule's reason. */
static const char *found(const Case *c) {
    const OxNode *n = c->x->statistic    ? c->x->statistic
                      : c->x->normalises ? c->x->normalises
                                         : c->role;
    return c->from ? ox_quote(c->ox, c->from) : n ? n->type : "";
}

/* The verdict of the first rule that applies; *why: its reason. */
Verdict ox_verdict(Ox *ox, const OxInit *x, const OxName *name, Str *why) {
    Exporter by = ox_exporter(ox);
    Case c = {ox, x, name, name->reaches ? name->role : NULL, NULL};
    size_t i = 0;
    while (!(rules[i].by & by) || (c.from = NULL, !rules[i].holds(&c))) i++;
    StrBuf text = {0};
    sb_puts(&text, rules[i].verdict == GUESSED ? GUESS : "");
    const char *hole = strstr(rules[i].why, "%s");
    sb_putn(&text, rules[i].why,
            hole ? (size_t)(hole - rules[i].why) : strlen(rules[i].why));
    if (hole) sb_printf(&text, "%s%s", found(&c), hole + 2);
    *why = intern(text.data);
    sb_free(&text);
    return rules[i].verdict;
}
