/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_low.c: which functions of a kernel are computed for 16 bits alone
   (LOW of ops.def). */
#include "codegen/kernel/schedule.h"

/* How exactly a value is needed: of it come numbers of 16 bits, by factors and
   choices alone; or also by a difference from 0 or 1; or others. */
typedef enum LowNeed { NEED_LOW, NEED_LOW_NEAR_ONE, NEED_EXACT } LowNeed;

/* Facts of an instruction. */
typedef struct Low {
    LowNeed need;
    bool unit; /* 0 or 1, or a choice of these */
    bool from; /* it follows from a function of op_low */
} Low;

/* What reader `in`, whose own result is needed so exactly, needs of operand j.
 */
static LowNeed need_of(const Low *low, const KInst *in, int j, LowNeed need) {
    if (in->op == K_ROUND)
        return dtype_is_low(in->dtype) ? NEED_LOW : NEED_EXACT;
    if (in->op != K_OP || in->type != KT_F32) return NEED_EXACT;
    if (op_growth[in->code] == GROWTH_CHOICE) return j ? need : NEED_EXACT;
    if (in->code == OP_NEG) return need;
    if (need != NEED_LOW) return NEED_EXACT;
    if (in->code == OP_SUB)
        return !j && low[in->in[1]].unit ? NEED_LOW_NEAR_ONE : NEED_EXACT;
    return in->code == OP_MUL ? need : NEED_EXACT;
}

static Low *low_facts(Arena *a, const Kernel *k) {
    Low *low = NEW_ARRAY(a, Low, k->insts.len);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        low[id].unit = in->op == K_CONST && (in->f == 0 || in->f == 1);
        if (in->op != K_OP) continue;
        if (in->code == OP_WHERE)
            low[id].unit = low[in->in[1]].unit && low[in->in[2]].unit;
        low[id].from = op_low[in->code].insts > 0;
        for (int j = 0; j < KINST_READS; j++)
            low[id].from |= low[kinst_read(in, j)].from;
    }
    return low;
}

/* exp of numbers less the largest of them. Of n columns the sum of such is at
   least 1, and is wrong by (6 + 1.25 ln n) 2^-24 of itself at most if exp is by
   (6 + 1.25 |x|) 2^-24: the mean of |x|, weighted by exp, is the entropy less
   the sum's logarithm. */
static bool below_largest(const Kernel *k, const KInst *in) {
    if (in->op != K_OP || in->code != OP_EXP) return false;
    const KInst *d = kinst_at(k, in->in[0]);
    if (d->op != K_OP || d->code != OP_SUB) return false;
    const KInst *top = kinst_at(k, d->in[1]);
    return top->op == K_REDUCE && top->code == OP_REDUCE_MAX &&
           top->in[0] == d->in[0];
}

void schedule_low(Arena *a, Kernel *k) {
    Low *low = low_facts(a, k);
    for (int id = k->insts.len - 1; id > 0; id--) {
        KInst *in = kinst_at(k, id);
        const OpLow *of = &op_low[in->op == K_OP ? in->code : 0];
        /* errors of two such factors would add up */
        if (in->op == K_OP && in->code == OP_MUL && low[in->in[0]].from &&
            low[in->in[1]].from)
            low[id].need = NEED_EXACT;
        for (int j = 0; j < KINST_READS; j++) {
            int x = kinst_read(in, j);
            LowNeed n = x ? need_of(low, in, j, low[id].need) : NEED_LOW;
            if (x && in->op == K_REDUCE && in->code == OP_REDUCE_SUM &&
                below_largest(k, kinst_at(k, x)))
                n = NEED_LOW;
            if (n > low[x].need) low[x].need = n;
        }
        in->low = in->op == K_OP && in->type == KT_F32 && of->insts > 0 &&
                  low[id].need <= (of->near_one ? NEED_LOW_NEAR_ONE : NEED_LOW);
    }
}
