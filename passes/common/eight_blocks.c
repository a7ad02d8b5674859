/* SPDX-License-Identifier: Apache-2.0 */
/* eight_blocks.c: see eight.h.
   Before:  %x: bf16[96,64]
   After:   %m = reduce_max(abs %x as [96,2,32]) : f32[96,2,1]
            %s = cast(max(%m / 448, 2^-126) * 1.4999999) {user=1} : e8m0[..]
            %c = cast(%x * 1 / %s) {user=1} : f8e4m3[96,2,32]
            %y = mul(cast %c, cast %s) : bf16[96,64]
   and the same of [3,32,64]. The cast to e8m0 rounds to the nearest power of
   two and 1.5 up: behind the factor, the largest number below 1.5, it rounds
   up what is no power of two. So no code overflows. bf16 holds the numbers that
   codes and scales stand for, but for magnitudes below 2^-117 and near the
   largest. */
#include "passes/common/eight.h"

enum { ROWS, COLUMNS }; /* what blocks lie along */

typedef struct Blocks {
    int64_t dim[3], axis;
} Blocks;

static Blocks blocks_along(const Type *t, int64_t columns, int along) {
    int64_t rows = type_count(t) / columns;
    return along == ROWS
               ? (Blocks){{rows, columns / BLOCK_SIZE, BLOCK_SIZE}, 2}
               : (Blocks){{rows / BLOCK_SIZE, BLOCK_SIZE, columns}, 1};
}

/* The scale of blocks whose largest magnitudes are m, as e8m0. */
static ValueId block_scale(Builder *b, ValueId m) {
    Attr kept = attr_i(AK_user, 1); /* a rounding that no pass removes */
    ValueId x = b2(b, OP_MUL, m, b_scalar(b, DT_F32, BLOCK_OF_LARGEST), DT_F32);
    x = b2(b, OP_MAX, x, b_scalar(b, DT_F32, BLOCK_LEAST), DT_F32);
    x = b2(b, OP_MUL, x, b_scalar(b, DT_F32, BLOCK_UP), DT_F32);
    return build(b, OP_CAST, &x, 1, &kept, 1, DT_E8M0, NULL);
}

static void make_blocks(Builder *b, ValueId v, EightBlocks *to, int along) {
    Graph *g = b->g;
    Attr kept = attr_i(AK_user, 1);
    Blocks of = blocks_along(value_type(g, v), to->columns, along);
    ValueId x = b_cast(b, b_reshape(b, v, 3, of.dim), DT_F32);
    ValueId m = b_reduce(b, OP_REDUCE_MAX, b1(b, OP_ABS, x, DT_F32), &of.axis,
                         1, true, DT_F32);
    to->scale[along] = block_scale(b, m);
    ValueId inverse =
        b1(b, OP_RECIPROCAL, b_cast(b, to->scale[along], DT_F32), DT_F32);
    x = b2(b, OP_MUL, x, inverse, DT_F32);
    to->code[along] = build(b, OP_CAST, &x, 1, &kept, 1, DT_F8E4M3, NULL);
    value_get(g, to->scale[along])->why = "scales of blocks of 32";
    value_get(g, to->code[along])->why =
        "codes of 8 bits, with scales of blocks of 32";
}

void eight_blocks(Builder *b, ValueId v, int64_t columns, EightBlocks *to) {
    *to = (EightBlocks){.columns = columns};
    make_blocks(b, v, to, ROWS);
    make_blocks(b, v, to, COLUMNS);
}

ValueId eight_blocks_read(Builder *b, EightBlocks *of, bool down) {
    bool backward = (b->flags & NODE_BACKWARD) != 0;
    ValueId *read = &of->read[down][backward];
    if (read->i) return *read;
    uint32_t flags = b->flags;
    const Node *n = value_maker(b->g, of->code[down]);
    int64_t dim[] = {type_count(value_type(b->g, of->code[down])) / of->columns,
                     of->columns};
    if (backward && !(n->flags & NODE_BACKWARD)) b->flags |= NODE_AGAIN;
    ValueId x = b_cast(b, of->code[down], DT_F32),
            s = b_cast(b, of->scale[down], DT_F32);
    *read = b_reshape(b, b2(b, OP_MUL, x, s, DT_BF16), 2, dim);
    b->flags = flags;
    return *read;
}
