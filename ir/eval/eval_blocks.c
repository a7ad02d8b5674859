/* SPDX-License-Identifier: Apache-2.0 */
/* eval_blocks.c: matmul of codes whose blocks have scales. */
#include "ir/eval/eval_impl.h"
#include "runtime/program/blocks.h"

/* Number k of line i of operand `which`, whose lines have `columns`. */
static double scaled_number(const EvalCx *cx, int which, int64_t i, int64_t k,
                            int64_t columns) {
    return cx->in[which]->f[i * columns + k] *
           cx->in[2 + which]->f[block_scale_at(i, k, columns)];
}

Status eval_scaled_blocks(EvalCx *cx) {
    const Type *x = type_get(cx->in[0]->type), *w = type_get(cx->in[1]->type);
    int64_t columns = x->dim[x->rank - 1], n = w->dim[0];
    int64_t lines = type_count(x) / columns;
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < columns; k++)
                cx->out[0]->f[i * n + j] +=
                    scaled_number(cx, 0, i, k, columns) *
                    scaled_number(cx, 1, j, k, columns);
    return OK;
}
