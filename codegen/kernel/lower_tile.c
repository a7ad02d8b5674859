/* SPDX-License-Identifier: Apache-2.0 */
/* lower_tile.c: results that kernels of GPUs make of tiles in shared memory,
   and codes, scales and sums of blocks element by element, elsewhere. */
#include "codegen/kernel/lower.h"
#include "runtime/program/blocks.h"

#include <string.h>

/* ---- by tiles ------------------------------------------------------------ */

static KTile tile_of(const Node *n) {
    bool down = node_makes_blocks(n) && attr_int(n, AK_down);
    if (n->op == OP_BLOCK_CODES) return down ? TILE_CODES_DOWN : TILE_CODES;
    if (n->op == OP_BLOCK_SUMS) return TILE_SUMS;
    if (n->op == OP_BLOCK_SCALES) return down ? TILE_SCALES_DOWN : TILE_SCALES;
    return TILE_TURNED;
}

/* True if the store belongs to the tile of an earlier one, of the same numbers:
   each result has one place there. */
static bool has_earlier(const Kernel *k, const KInst *store) {
    bool found = false, taken = false;
    for (int id = 1; kinst_at(k, id) != store; id++) {
        const KInst *in = kinst_at(k, id);
        if (!kinst_blocks(in) || in->in[0] != store->in[0] ||
            in->dtype != store->dtype)
            continue;
        if (!in->shares) found = true, taken = false;
        taken |= in->tile == store->tile;
    }
    return found && !taken;
}

void lower_tile(Lower *l, ValueId v, const Node *n) {
    KIndex at[MAX_RANK], to[MAX_RANK];
    const Type *t = value_type(l->g, n->in[0]);
    int rank = l->k->ndim, rows = node_tiles(l->g, n);
    Type turned = *t;
    for (int d = 0; d < rank; d++) at[d] = at_loop(d);
    for (int d = 0; d < rank; d++) {
        to[d] = at[(rows + d) % rank];
        turned.dim[d] = t->dim[(rows + d) % rank];
    }
    int inst = lower_value(l, n->in[0], at, 0);
    lower_store(l, v, inst, lower_flatten(l, &turned, to));
    KInst *store = kinst_at(l->k, l->k->insts.len - 1);
    store->tile = tile_of(n);
    if (!node_makes_blocks(n)) return;
    store->in[0] = inst;
    store->dtype = t->dtype;
    store->shares = has_earlier(l->k, store);
}

/* ---- by elements --------------------------------------------------------- */

static int of_floats(Lower *l, OpCode code, int a, int b) {
    return lower_op(l, code, KT_F32, a, b, 0);
}

static int of_integers(Lower *l, OpCode code, int a, int64_t b) {
    return lower_op(l, code, KT_I64, a, lower_const(l, KT_I64, 0, b), 0);
}

static KIndex at_of(int inst) {
    KIndex x = at_const(0);
    x.inst = inst;
    return x;
}

/* Lines of blocks: rows of the operand, or its columns. */
typedef struct LinesOf {
    const Node *n;
    int64_t columns, lines, numbers;
    bool down;
} LinesOf;

static LinesOf lower_lines(const Lower *l, const Node *n) {
    int64_t columns = attr_int(n, AK_columns);
    int64_t rows = type_count(value_type(l->g, n->in[0])) / columns;
    bool down = attr_int(n, AK_down) != 0;
    return (LinesOf){n, columns, down ? columns : rows, down ? rows : columns,
                     down};
}

/* Number k of a line, as f32. */
static int number_of_block(Lower *l, const LinesOf *x, KIndex line, KIndex k,
                           int guard) {
    const Type *t = value_type(l->g, x->n->in[0]);
    KIndex flat = x->down ? at_add(l, at_scale(l, k, x->columns), line)
                          : at_add(l, at_scale(l, line, x->columns), k);
    KIndex at[MAX_RANK];
    int rest = at_value(l, flat);
    for (int d = t->rank - 1; d > 0; d--) {
        int whole = of_integers(l, OP_DIV, rest, t->dim[d]);
        at[d] = at_of(lower_op(l, OP_SUB, KT_I64, rest,
                               of_integers(l, OP_MUL, whole, t->dim[d]), 0));
        rest = whole;
    }
    at[0] = at_of(rest);
    return lower_as(l, lower_value(l, x->n->in[0], at, guard), DT_F32);
}

/* The scale of the block whose first number is k. */
static int lower_scale(Lower *l, const LinesOf *x, KIndex line, KIndex k,
                       int guard) {
    int most = 0;
    for (int i = 0; i < BLOCK_SIZE; i++) {
        int v = number_of_block(l, x, line, at_add(l, k, at_const(i)), guard);
        v = of_floats(l, OP_ABS, v, 0);
        most = most ? of_floats(l, OP_MAX, most, v) : v;
    }
    int s = of_floats(
        l, OP_MUL, most,
        lower_as(l, lower_const(l, KT_F64, BLOCK_OF_LARGEST, 0), DT_F32));
    s = of_floats(l, OP_MAX, s, lower_const(l, KT_F32, BLOCK_LEAST, 0));
    s = of_floats(l, OP_MUL, s, lower_const(l, KT_F32, BLOCK_UP, 0));
    return lower_as(l, s, DT_E8M0);
}

int lower_block_code(Lower *l, const Node *n, const KIndex *at, int guard) {
    LinesOf x = lower_lines(l, n);
    int k = at_value(l, at[1]);
    int first = of_integers(l, OP_DIV, k, BLOCK_SIZE);
    first = of_integers(l, OP_MUL, first, BLOCK_SIZE);
    int s = lower_scale(l, &x, at[0], at_of(first), guard);
    return of_floats(l, OP_DIV, number_of_block(l, &x, at[0], at_of(k), guard),
                     s);
}

static int rest_of(Lower *l, int x, int64_t by) {
    int whole = of_integers(l, OP_MUL, of_integers(l, OP_DIV, x, by), by);
    return lower_op(l, OP_SUB, KT_I64, x, whole, 0);
}

int lower_block_scale(Lower *l, const Node *n, const KIndex *at, int guard) {
    enum { TILE = BLOCK_ROWS * BLOCK_COLUMNS, LINE = 16, NEAR = 32 };
    LinesOf x = lower_lines(l, n);
    int64_t across = block_tiles(x.numbers, BLOCK_SIZE * BLOCK_COLUMNS);
    int i = at_value(l, at[0]), tile = of_integers(l, OP_DIV, i, TILE);
    int in = rest_of(l, i, TILE), near = rest_of(l, in, LINE);
    int line = of_integers(l, OP_MUL, of_integers(l, OP_DIV, tile, across),
                           BLOCK_ROWS);
    line =
        lower_op(l, OP_ADD, KT_I64, line, of_integers(l, OP_DIV, in, LINE), 0);
    line =
        lower_op(l, OP_ADD, KT_I64, line,
                 of_integers(l, OP_MUL,
                             of_integers(l, OP_DIV, near, BLOCK_COLUMNS), NEAR),
                 0);
    int k = of_integers(l, OP_MUL, rest_of(l, tile, across), BLOCK_COLUMNS);
    k = lower_op(l, OP_ADD, KT_I64, k, rest_of(l, near, BLOCK_COLUMNS), 0);
    k = of_integers(l, OP_MUL, k, BLOCK_SIZE);
    int inside =
        lower_op(l, OP_AND, KT_B8, of_integers(l, OP_LESS, line, x.lines),
                 of_integers(l, OP_LESS, k, x.numbers), 0);
    int all = guard ? lower_op(l, OP_AND, KT_B8, guard, inside, 0) : inside;
    int s = lower_scale(l, &x, at_of(line), at_of(k), all);
    int none = lower_as(l, lower_const(l, KT_F32, 0, 0), DT_E8M0);
    return lower_op(l, OP_WHERE, KT_F32, inside, s, none);
}

int lower_block_sum(Lower *l, const Node *n, const KIndex *at, int guard) {
    LinesOf x = lower_lines(l, n);
    int sum = 0;
    for (int i = 0; i < BLOCK_SIZE; i++) {
        KIndex row = at_add(l, at_scale(l, at[0], BLOCK_SIZE), at_const(i));
        int v = number_of_block(l, &x, row, at[1], guard);
        sum = sum ? of_floats(l, OP_ADD, sum, v) : v;
    }
    return sum;
}
