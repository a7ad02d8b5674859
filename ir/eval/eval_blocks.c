/* SPDX-License-Identifier: Apache-2.0 */
/* eval_blocks.c: codes whose blocks have scales, and their products. */
#include "ir/eval/eval_impl.h"
#include "runtime/program/blocks.h"
#include "runtime/program/half.h"

#include <math.h>

/* ---- codes and scales ---------------------------------------------------- */

/* The operand as lines of blocks: its rows, or its columns. */
typedef struct Lines {
    const double *x;
    int64_t line, each; /* from one line to the next, from number to number */
    int64_t lines, numbers;
} Lines;

static Lines lines_of_blocks(const EvalCx *cx) {
    int64_t columns = attr_int(cx->n, AK_columns);
    int64_t rows = type_count(type_get(cx->in[0]->type)) / columns;
    bool down = attr_int(cx->n, AK_down) != 0;
    return down ? (Lines){cx->in[0]->f, 1, columns, columns, rows}
                : (Lines){cx->in[0]->f, columns, 1, rows, columns};
}

static double number_of_line(const Lines *l, int64_t line, int64_t k) {
    return l->x[line * l->line + k * l->each];
}

/* The scale of a block of a line, before it is rounded to e8m0. */
static float scale_of_block(const Lines *l, int64_t line, int64_t block) {
    double most = 0;
    for (int64_t k = block * BLOCK_SIZE; k < (block + 1) * BLOCK_SIZE; k++) {
        double x = fabs(number_of_line(l, line, k));
        if (x != x || x > most) most = x;
        if (x != x) break;
    }
    float s = (float)most * (float)BLOCK_OF_LARGEST;
    if (s < (float)BLOCK_LEAST) s = (float)BLOCK_LEAST;
    return s * (float)BLOCK_UP;
}

Status eval_block_codes(EvalCx *cx) {
    Lines l = lines_of_blocks(cx);
    for (int64_t i = 0; i < l.lines; i++)
        for (int64_t k = 0; k < l.numbers; k++) {
            float s = scale_of_block(&l, i, k / BLOCK_SIZE);
            cx->out[0]->f[i * l.numbers + k] =
                number_of_line(&l, i, k) / e8m0_to_f32(f32_to_e8m0(s));
        }
    return OK;
}

Status eval_block_scales(EvalCx *cx) {
    Lines l = lines_of_blocks(cx);
    for (int64_t i = 0; i < l.lines; i++)
        for (int64_t k = 0; k < l.numbers; k += BLOCK_SIZE)
            cx->out[0]->f[block_scale_at(i, k, l.numbers)] =
                scale_of_block(&l, i, k / BLOCK_SIZE);
    return OK;
}

Status eval_block_sums(EvalCx *cx) {
    int64_t columns = attr_int(cx->n, AK_columns), of = BLOCK_SIZE * columns;
    for (int64_t i = 0; i < type_count(type_get(cx->in[0]->type)); i++)
        cx->out[0]->f[i / of * columns + i % columns] += cx->in[0]->f[i];
    return OK;
}

/* ---- products ------------------------------------------------------------ */

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
