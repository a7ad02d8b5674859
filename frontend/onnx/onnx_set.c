/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_set.c: inputs that --set gives numbers when the model is compiled, and
   messages that say where one is needed. */
#include <inttypes.h>
#include <math.h>

#include "frontend/onnx/onnx.h"
#include "ir/base/near.h"

const InputValue *ox_set_of(const Ox *ox, Str name) {
    for (int i = ox->opt->set_inputs.len - 1; i >= 0; i--)
        if (ox->opt->set_inputs.data[i].name == name)
            return &ox->opt->set_inputs.data[i];
    return NULL;
}

static bool is_input(const Ox *ox, Str name) {
    const OxName *n = ox_name_of(ox, name);
    return n && n->kind == OX_INPUT;
}

Status ox_check_set(Ox *ox) {
    for (int i = 0; i < ox->opt->set_inputs.len; i++) {
        Str name = ox->opt->set_inputs.data[i].name;
        char text[NEAR_TEXT];
        Near near = near_to(name);
        if (is_input(ox, name)) continue;
        for (size_t k = 0; k < ox->graph->n_input; k++) {
            Str input = intern(ox->graph->input[k]->name);
            if (is_input(ox, input)) near_offer(&near, ox_quote(ox, input));
        }
        ox_fail_model(ox, "--set %s: the model has no such input%s",
                      ox_quote(ox, name), near_text(&near, text));
        return ERR_USAGE;
    }
    return OK;
}

static bool has_number(DType d, const SetNumber *x) {
    const DTypeInfo *info = &dtype_info[d];
    if (info->kind == DK_F)
        return isinf(x->real) || fabs(x->real) <= info->most;
    if (!x->is_whole) return false;
    if (info->kind == DK_B) return x->whole == 0 || x->whole == 1;
    if (info->bytes == 8) return info->kind == DK_I || x->whole >= 0;
    int64_t span = INT64_C(1) << 8 * info->bytes;
    int64_t least = info->kind == DK_U ? 0 : -span / 2;
    return x->whole >= least && x->whole - least < span;
}

/* A single number fills the input. */
Status ox_set_value(Ox *ox, const InputValue *x, TypeId type, ValueId *out) {
    const Type *t = type_get(type);
    int n = x->numbers.len;
    if (n != 1 && n != type_count(t)) {
        ox_fail_model(
            ox, "--set %s: %d numbers for an input of %" PRId64 " elements",
            ox_quote(ox, x->name), n, type_count(t));
        return ERR_USAGE;
    }
    Tensor *c = tensor_new(ox->a, n == 1 ? type_make(t->dtype, 0, NULL) : type);
    for (int i = 0; i < n; i++) {
        const SetNumber *v = &x->numbers.data[i];
        if (!has_number(t->dtype, v)) {
            ox_fail_model(
                ox, "--set %s: the input's type, %s, cannot hold %.17g",
                ox_quote(ox, x->name), dtype_info[t->dtype].text, v->real);
            return ERR_USAGE;
        }
        if (dtype_is_float(t->dtype))
            tensor_set(c, i, v->real);
        else
            tensor_set_int(c, i, v->whole);
    }
    *out = ox_make_const(ox, x->name, c);
    return n == 1 && t->rank ? ox_expand(ox, *out, t->rank, t->dim, out) : OK;
}

/* ---- messages ------------------------------------------------------------ */

/* Marks what v is computed from. */
static void mark_sources(const Ox *ox, ValueId v, bool *seen) {
    VEC(ValueId) todo = {0};
    vec_push(ox->scratch, &todo, v);
    while (todo.len) {
        v = todo.data[--todo.len];
        if (!is_value(v) || seen[v.i]) continue;
        seen[v.i] = true;
        const Value *x = value_get(ox->g, v);
        if (x->kind != VK_RESULT) continue;
        const Node *n = node_get(ox->g, x->def);
        for (int i = 0; i < n->nin; i++) vec_push(ox->scratch, &todo, n->in[i]);
    }
}

const char *ox_set_remedy(Ox *ox, ValueId v) {
    enum { MOST_INPUTS = 4, MOST_ELEMENTS = 16, SHOWN = 4 };
    StrBuf sb = {0};
    int inputs = 0;
    bool *seen = NEW_ARRAY(ox->scratch, bool, ox->g->values.len);
    if (ox->is_layer) return "";
    mark_sources(ox, v, seen);
    for (int i = 0; i < ox->g->inputs.len; i++) {
        const Value *x = value_get(ox->g, ox->g->inputs.data[i]);
        int64_t n = type_count(type_get(x->type));
        if (!seen[ox->g->inputs.data[i].i]) continue;
        if (n > MOST_ELEMENTS || ++inputs > MOST_INPUTS) {
            inputs = 0;
            break;
        }
        sb_printf(&sb, " --set %s=N", ox_quote(ox, x->name));
        for (int64_t k = 1; k < n && k < SHOWN; k++) sb_puts(&sb, ",N");
        if (n > SHOWN) sb_puts(&sb, "..");
    }
    const char *r =
        inputs ? arena_printf(ox->a,
                              "; if it is the same in every call, compile "
                              "with%s",
                              sb.data)
               : "";
    sb_free(&sb);
    return r;
}

Status ox_fail_unknown(Ox *ox, int operand, const char *what) {
    return ox_fail(ox,
                   "its %s must be known at compile time, but '%s' depends on "
                   "data%s",
                   what, ox_quote(ox, ox->node->in[operand]),
                   ox_set_remedy(ox, ox_in(ox, operand)));
}
