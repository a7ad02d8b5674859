/* order_test.c: steps that change places compute the same.

   Random steps on few bytes, with the bytes that each reads and writes kept as
   sets of bits: whatever order cuda_order gives, two steps of which one writes
   what the other touches stay in the order they had.                        */
#include "codegen/cuda/cuda.h"
#include "codegen/kernel/kir.h"
#include "tests/harness.h"

#include <string.h>

enum { STEPS = 40, REFS = 3, BYTES = 64, ROUNDS = 400 };

typedef struct Steps {
    Kernel kernel[3];
    LoweredStep lowered[STEPS];
    CudaStepIn in[STEPS];
    PlanRef refs[STEPS][REFS];
    int64_t bytes[STEPS][REFS];
    uint64_t reads[STEPS][2], writes[STEPS][2]; /* arena, variable 0 */
} Steps;

static uint64_t rng;

static int below(int n) {
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((rng >> 33) % (uint64_t)n);
}

static uint64_t bits(uint64_t from, int64_t n) {
    return ((UINT64_C(1) << n) - 1) << from;
}

/* The last buffer of every kernel is written, the first one of kernel 2 too. */
static void make_kernels(Steps *s, Arena *a) {
    for (int k = 0; k < 3; k++) {
        s->kernel[k].form = KF_FLAT;
        for (int b = 0; b < REFS; b++) {
            KBuf buf = {DT_F32, b == REFS - 1 || (k == 2 && b == 0)};
            vec_push(a, &s->kernel[k].bufs, buf);
        }
    }
}

static void make_step(Steps *s, int i) {
    const Kernel *k = &s->kernel[below(3)];
    for (int r = 0; r < REFS; r++) {
        int space = below(3) == 0;
        int64_t n = 4 * (1 + below(3));
        uint64_t at = 4 * (uint64_t)below((int)(BYTES - n) / 4);
        s->refs[i][r] = (PlanRef){space ? PLAN_VAR : PLAN_ARENA, 0, at};
        s->bytes[i][r] = n;
        bool written = k->bufs.data[r].written;
        *(written ? &s->writes[i][space] : &s->reads[i][space]) |= bits(at, n);
    }
    s->lowered[i] = (LoweredStep){
        .kind = PLAN_KERNEL, .kernel = k, .nref = REFS, .units = 1};
    s->in[i] = (CudaStepIn){
        .s = &s->lowered[i], .refs = s->refs[i], .ref_bytes = s->bytes[i]};
}

static bool depend(const Steps *s, int i, int j) {
    for (int k = 0; k < 2; k++)
        if ((s->writes[i][k] & (s->reads[j][k] | s->writes[j][k])) ||
            (s->reads[i][k] & s->writes[j][k]))
            return true;
    return false;
}

static bool check_order(const Steps *s, const int *order, int *moved) {
    int place[STEPS];
    bool ok = true;
    memset(place, -1, sizeof place);
    for (int i = 0; i < STEPS; i++) {
        ok = ok && CHECK(order[i] >= 0 && order[i] < STEPS);
        if (ok) place[order[i]] = i;
        *moved += order[i] != i;
    }
    for (int i = 0; ok && i < STEPS; i++) ok = CHECK(place[i] >= 0);
    for (int i = 0; i < STEPS && ok; i++)
        for (int j = i + 1; j < STEPS && ok; j++)
            ok = CHECK_MSG(!depend(s, i, j) || place[i] < place[j],
                           "step %d runs before step %d, which it needs", j, i);
    return ok;
}

TEST_CASE(order, dependent_steps_keep_theirs) {
    int moved = 0;
    bool ok = true;
    rng = 5;
    for (int round = 0; round < ROUNDS && ok; round++) {
        static Steps s;
        int order[STEPS];
        Arena *a = arena_new();
        memset(&s, 0, sizeof s);
        make_kernels(&s, a);
        for (int i = 0; i < STEPS; i++) make_step(&s, i);
        cuda_order(s.in, 0, STEPS, order);
        ok = check_order(&s, order, &moved);
        arena_free(a);
    }
    CHECK_MSG(moved > ROUNDS, "only %d steps moved", moved);
}
