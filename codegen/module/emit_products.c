/* SPDX-License-Identifier: Apache-2.0 */
/* emit_products.c: refuses matrix products and convolutions that a GPU of the
   options cannot compute (emit_plan.h). */
#include "codegen/module/emit_plan.h"
#include "passes/device/fold.h"

static Status multiplies(const Options *o, const Node *n, unsigned tensor,
                         const char *instead, const char *what, Diag *d) {
    const Target *t = gpu_without(o, tensor);
    if (!t) return OK;
    int number = gpu_arch_of(t->arch)->number;
    return fail(d, n->loc,
                "%s: GPUs of compute capability %d.%d do not multiply %s: %s "
                "--target cuda:%s",
                op_info[n->op == OP_CONV_SUMS ? OP_CONV : n->op].text,
                number / 10, number % 10, what, instead, t->arch);
}

static Status check_product(const Graph *g, const Node *n, const Options *o,
                            Diag *d) {
    static const unsigned by_factors[AMPC_NFACTORS] = {
        [AMPC_FACTORS_TF32] = TENSOR_TF32, [AMPC_FACTORS_BF16] = TENSOR_BF16};
    if (op_info[n->op].amp != AMP_LOW && node_kind(n) != KIND_ANCHOR) return OK;
    TRY(multiplies(o, n, by_factors[n->loc.factors],
                   "leave out --matmul-precision or", "rounded fp32", d));
    for (int i = 0; i < n->nin && i < 2; i++) {
        if (!is_value(n->in[i])) continue;
        const DTypeInfo *of = &dtype_info[value_dtype(g, n->in[i])];
        TRY(multiplies(o, n, of->tensor,
                       "compile for them with --precision fp16 or fp32, or "
                       "leave out",
                       of->text, d));
    }
    return OK;
}

Status emit_check_products(const Module *m, const Options *o, Diag *d) {
    for (int i = 0; i < m->graphs.len; i++) {
        const Graph *g = m->graphs.data[i];
        for (int k = 0; g->target == TARGET_CUDA && k < g->order.len; k++)
            TRY(check_product(g, node_at(g, k), o, d));
    }
    return OK;
}
