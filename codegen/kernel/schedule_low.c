/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_low.c: which functions of a kernel are computed for 16 bits alone
   (LOW of ops.def). */
#include "codegen/kernel/schedule.h"

/* How exactly a value is needed: of it come numbers of 16 bits, by factors and
   choices alone; or also by a difference from 0 or 1; or others. */
typedef enum LowNeed { NEED_LOW, NEED_LOW_NEAR_ONE, NEED_EXACT } LowNeed;

static bool is_unit(const Kernel *k, int id) {
    const KInst *in = kinst_at(k, id);
    if (in->op == K_CONST) return in->f == 0 || in->f == 1;
    return in->op == K_OP && in->code == OP_WHERE && is_unit(k, in->in[1]) &&
           is_unit(k, in->in[2]);
}

/* What reader `in`, whose own result is needed so exactly, needs of operand j.
 */
static LowNeed need_of(const Kernel *k, const KInst *in, int j, LowNeed need) {
    if (in->op == K_ROUND)
        return dtype_is_low(in->dtype) ? NEED_LOW : NEED_EXACT;
    if (in->op != K_OP || in->type != KT_F32) return NEED_EXACT;
    if (op_growth[in->code] == GROWTH_CHOICE) return j ? need : NEED_EXACT;
    if (in->code == OP_NEG) return need;
    if (need != NEED_LOW) return NEED_EXACT;
    if (in->code == OP_SUB)
        return !j && is_unit(k, in->in[1]) ? NEED_LOW_NEAR_ONE : NEED_EXACT;
    return in->code == OP_MUL ? need : NEED_EXACT;
}

/* Per instruction: it follows from a function of op_low. Errors of two such
   factors would add up. */
static bool *find_low(Arena *a, const Kernel *k) {
    bool *from = NEW_ARRAY(a, bool, k->insts.len);
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (in->op != K_OP) continue;
        from[id] = op_low[in->code].insts > 0;
        for (int j = 0; j < KINST_READS; j++)
            from[id] |= from[kinst_read(in, j)];
    }
    return from;
}

void schedule_low(Arena *a, Kernel *k) {
    LowNeed *need = NEW_ARRAY(a, LowNeed, k->insts.len);
    const bool *from = find_low(a, k);
    for (int id = k->insts.len - 1; id > 0; id--) {
        KInst *in = kinst_at(k, id);
        const OpLow *low = &op_low[in->op == K_OP ? in->code : 0];
        if (in->op == K_OP && in->code == OP_MUL && from[in->in[0]] &&
            from[in->in[1]])
            need[id] = NEED_EXACT;
        for (int j = 0; j < KINST_READS; j++) {
            int x = kinst_read(in, j);
            LowNeed n = x ? need_of(k, in, j, need[id]) : NEED_LOW;
            if (n > need[x]) need[x] = n;
        }
        in->low = in->op == K_OP && in->type == KT_F32 && low->insts > 0 &&
                  need[id] <= (low->near_one ? NEED_LOW_NEAR_ONE : NEED_LOW);
    }
}
