/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_random.c: ops that draw random numbers.  All ops read one state
   (seed, counter), and each has its own stream; the counter advances each
   step. */
#include <inttypes.h>

#include "frontend/onnx/onnx.h"

static ValueId random_state(Ox *ox) {
    TypeId type = type_make(DT_I64, 1, (int64_t[]){2});
    int64_t start[2] = {ox->opt->seed, 0};
    Tensor *t = NEW(ox->a, Tensor);
    *t = (Tensor){type, arena_dup(ox->a, start, sizeof start)};
    int var = module_own_var(ox->m, OWN_RNG, intern(""), 0);
    ox->m->vars.data[var].init = t;
    return graph_var(ox->g, var);
}

/* ---- dropout ------------------------------------------------------------- */

/* Ratio and mode are attributes before opset 12, and operands from 12 on. A
   Dropout without a mode was exported in evaluation mode. */
static Status dropout_form(Ox *ox, double *ratio, bool *training) {
    double mode = 0;
    *ratio = ox_float(ox, "ratio", 0.5);
    *training = ox->node->version < 7 && ox_int(ox, "is_test", 0) == 0;
    if (is_value(ox_in(ox, 1)) && !ox_const_scalar(ox, ox_in(ox, 1), ratio))
        return ox_fail_unknown(ox, 1, "ratio");
    if (is_value(ox_in(ox, 2))) {
        if (!ox_const_scalar(ox, ox_in(ox, 2), &mode))
            return ox_fail_unknown(ox, 2, "training_mode");
        *training = mode != 0;
    }
    if (!(*ratio >= 0 && *ratio < 1))
        return ox_fail(ox, "a ratio of %g", *ratio);
    return OK;
}

static Status all_kept(Ox *ox, ValueId x, ValueId *mask) {
    Type t = ox_type(ox, x);
    TypeId type =
        type_make(ox->node->version < 10 ? t.dtype : DT_BOOL, t.rank, t.dim);
    Attr one = attr_f(AK_value, 1);
    return ox_opn(ox, OP_FULL, NULL, 0, &one, 1, 1, &type, mask);
}

Status onnx_dropout(Ox *ox) {
    ValueId in[2] = {ox_in(ox, 0), NO_VALUE}, y, mask;
    double ratio;
    bool training;
    TRY(dropout_form(ox, &ratio, &training));
    if (!ox->opt->dropout || !options_train(ox->opt) || ratio == 0) {
        if (ox_has_out(ox, 1)) {
            TRY(all_kept(ox, in[0], &mask));
            TRY(ox_out(ox, 1, mask));
        }
        return ox_out(ox, 0, in[0]);
    }
    if (ox_has_out(ox, 1))
        return ox_fail(ox, "its mask is used, which is not supported");
    in[1] = random_state(ox);
    Attr attr[] = {attr_named_f("ratio", ratio),
                   attr_i(AK_salt, ox->dropouts++)};
    if (!training && !ox->dropouts_enabled++) ox->enabled = ox->node->name;
    TRY(ox_call(ox, "dropout", in, 2, attr, 2, 1, &y));
    return ox_out(ox, 0, y);
}

/* ---- dropout in parts ---------------------------------------------------- */

/* In dynamo's files, dropout of whole channels, AlphaDropout and stochastic
   depth are arithmetic with random zeros and ones b: x (b / p), or x (a b) +
   (c b + d). In evaluation the product, or the sum, is x. */

static OxName *made_name(const Ox *ox, Str name) {
    return *name ? ox_name_of(ox, name) : NULL;
}

static bool matters(const OxNode *n, int operand) {
    return !ox_among(n->op->nd, operand);
}

/* Their constants are known when the model is compiled if the nodes around
   them tell. */
static bool is_number(const Ox *ox, Str name, int depth) {
    const OxName *x = made_name(ox, name);
    if (!x) return true;
    if (x->kind == OX_INIT) return !ox->inits.data[x->index].is_var;
    if (x->kind != OX_RESULT || depth > 8) return false;
    const OxNode *n = &ox->nodes.data[x->index];
    for (int i = 0; i < n->nin; i++)
        if (matters(n, i) && !is_number(ox, n->in[i], depth + 1)) return false;
    return true;
}

/* The random operand; *alone: all other operands are constants. */
static int drawn_operand(const Ox *ox, const OxNode *n, bool *alone) {
    int drawn = -1;
    *alone = true;
    for (int i = 0; i < n->nin; i++) {
        const OxName *x = made_name(ox, n->in[i]);
        if (x && x->drawn)
            drawn = i;
        else if (matters(n, i))
            *alone &= is_number(ox, n->in[i], 0);
    }
    return drawn;
}

static void find_drop(Ox *ox, const OxNode *n) {
    OxName *out = n->nout == 1 ? made_name(ox, n->out[0]) : NULL;
    bool alone;
    if (!out) return;
    if (n->op->handler == OX_random) {
        out->drawn = ox_torch_node(n, "aten.bernoulli.p") != NULL;
        return;
    }
    int k = drawn_operand(ox, n, &alone);
    if (k < 0) return;
    out->drawn = alone;
    if (alone || n->nin != 2) return;
    OxName *x = made_name(ox, n->in[1 - k]);
    if (n->op->core == OP_MUL) {
        out->drops = n->in[1 - k];
    } else if (n->op->core == OP_ADD && x && x->drops && x->uses == 1) {
        out->drops = x->drops;
        x->drops = NULL;
    }
}

void ox_find_drops(Ox *ox) {
    for (int i = 0; i < ox->order.len; i++)
        find_drop(ox, &ox->nodes.data[ox->order.data[i]]);
}

Status ox_drop(Ox *ox, int result) {
    const OxName *out = ox_name_of(ox, ox->node->out[result]);
    ValueId in[] = {ox_name_of(ox, out->drops)->value, out->value}, y = in[0];
    if (ox->opt->dropout && options_train(ox->opt))
        TRY(ox_call(ox, "in_training", in, 2, NULL, 0, 1, &y));
    return ox_out(ox, result, y);
}

/* ---- draws --------------------------------------------------------------- */

/* The row's function draws from the state and, if it has operands, takes the
   node's first one. */
static Status draw(Ox *ox, int operands, Attr *attr, int n, DType d) {
    ValueId in[2] = {random_state(ox), ox_in(ox, 0)}, y;
    attr[n++] = attr_i(AK_salt, ox->dropouts++);
    TRY(ox_call(ox, ox->node->op->fn, in, 1 + operands, attr, n, 1, &y));
    TRY(ox_cast(ox, y, d, false, &y));
    return ox_out(ox, 0, y);
}

static Status drawn_dtype(Ox *ox, DType dflt, DType *d) {
    int64_t to = ox_int(ox, "dtype", 0);
    *d = dflt;
    return to ? ox_dtype(ox, to < 0 || to > 1000 ? -1 : (int)to, "dtype", d)
              : OK;
}

/* The shape is an attribute, or the shape of the operand. */
Status onnx_random(Ox *ox) {
    Attr attr[MAX_OP_ATTRS];
    int n, rank = 0;
    DType d;
    bool like = ox->node->nin > 0;
    Type t = like ? ox_type(ox, ox_in(ox, 0)) : (Type){.dtype = DT_F32};
    const int64_t *dim = t.dim;
    TypeId whole;
    TRY(drawn_dtype(ox, t.dtype, &d));
    if (!dtype_is_float(d)) return ox_fail(ox, "dtype %s", dtype_info[d].text);
    rank = like ? t.rank : ox_ints(ox, "shape", &dim);
    if (rank < 0) return ox_fail(ox, "attribute 'shape' is missing");
    TRY(ox_type_make(ox, "its result", d, rank, dim, &whole));
    TRY(ox_mapped(ox, attr, &n));
    if (like) attr[n++] = attr_v(AK_shape, dim, rank);
    return draw(ox, 0, attr, n, d);
}

Status onnx_bernoulli(Ox *ox) {
    Attr attr[MAX_OP_ATTRS];
    DType d;
    TRY(drawn_dtype(ox, ox_type(ox, ox_in(ox, 0)).dtype, &d));
    return draw(ox, 1, attr, 0, d);
}

Status onnx_multinomial(Ox *ox) {
    Attr attr[MAX_OP_ATTRS];
    int n;
    DType d;
    TRY(drawn_dtype(ox, DT_I32, &d));
    TRY(ox_mapped(ox, attr, &n));
    return draw(ox, 1, attr, n, d);
}
