/* SPDX-License-Identifier: Apache-2.0 */
/* cse_test.c: pass cse leaves one node for each computation, whatever the order
   of equal ones. The test counts distinct computations by its own value
   numbers. */
#include "tests/harness.h"
#include "tests/support/passed.h"

enum { STEPS = 60, COPIES = 3, SOURCES = 4 };

/* A computation's number, and the numbers of its operands. */
typedef struct Step {
    OpCode op;
    int in[2], number;
} Step;

typedef struct Maker {
    Graph *g;
    Builder b;
    Step step[SOURCES + STEPS];
    ValueId value[COPIES][SOURCES + STEPS];
    uint64_t rng;
} Maker;

static int pick(Maker *m, int n) {
    m->rng = m->rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((m->rng >> 33) % (uint64_t)n);
}

/* Draws mostly from the last values: chains with few other readers. */
static int operand(Maker *m, int before) {
    int near = before < 3 ? before : 3;
    return pick(m, 5) ? before - 1 - pick(m, near) : pick(m, before);
}

/* Steps with equal ops and operand numbers get one number; returns how many
   numbers there are. */
static int number_steps(Maker *m) {
    static const OpCode ops[] = {OP_TANH, OP_NEG, OP_MUL, OP_ADD};
    int count = 0;
    for (int i = SOURCES; i < SOURCES + STEPS; i++) {
        Step *s = &m->step[i], *t = &m->step[SOURCES];
        *s = (Step){ops[pick(m, 4)], {operand(m, i), operand(m, i)}, i};
        bool two = s->op == OP_MUL || s->op == OP_ADD;
        while (t < s &&
               (t->op != s->op ||
                m->step[t->in[0]].number != m->step[s->in[0]].number ||
                (two && m->step[t->in[1]].number != m->step[s->in[1]].number)))
            t++;
        s->number = t->number;
        count += t == s;
    }
    return count;
}

/* A copy of the next missing step, with operands from any copy. */
static void make_next(Maker *m, int copy, int i) {
    const Step *s = &m->step[i];
    ValueId in[2];
    for (int k = 0; k < 2; k++) {
        int of = pick(m, COPIES);
        in[k] = m->value[of][s->in[k]];
        if (!is_value(in[k])) in[k] = m->value[copy][s->in[k]];
    }
    m->value[copy][i] = s->op == OP_MUL || s->op == OP_ADD
                            ? b2(&m->b, s->op, in[0], in[1], DT_F32)
                            : b1(&m->b, s->op, in[0], DT_F32);
}

/* Odd sources are inputs; even ones constants, whose copies are equal. */
static ValueId source(Maker *m, int i, int copy) {
    TypeId t = type_make(DT_F32, 1, (int64_t[]){8});
    if (i % 2) return graph_input(m->g, internf("x%d", i), t);
    Tensor *data = tensor_new(m->g->arena, t);
    float *x = data->data;
    for (int k = 0; k < 8; k++) x[k] = (float)(i + k % 3);
    return graph_const(m->g, internf("c%d.%d", i, copy), data);
}

/* Constants that nodes read; equal ones are one. */
static int constants(const Graph *g) {
    bool *seen = NEW_ARRAY(g->arena, bool, g->values.len);
    int n = 0;
    for (int i = 0; i < g->order.len; i++) {
        const Node *x = node_at(g, i);
        for (int k = 0; k < x->nin; k++) {
            bool *met = &seen[x->in[k].i];
            n += !*met && value_get(g, x->in[k])->kind == VK_CONST;
            *met = true;
        }
    }
    return n;
}

static void one_graph(uint64_t seed) {
    Arena *a = arena_new();
    Module *mod = module_new(a, "m");
    Maker m = {.g = graph_new(mod, "predict"), .rng = seed * 77 + 5};
    m.b.g = m.g;
    for (int i = 0; i < SOURCES; i++) {
        m.step[i].number = i;
        for (int c = 0; c < COPIES; c++)
            m.value[c][i] = i % 2 && c ? m.value[0][i] : source(&m, i, c);
    }
    int count = number_steps(&m), next[COPIES] = {SOURCES, SOURCES, SOURCES};
    for (int left = COPIES * STEPS; left > 0;) {
        int c = pick(&m, COPIES);
        if (next[c] == SOURCES + STEPS) continue;
        make_next(&m, c, next[c]++);
        left--;
    }
    for (int c = 0; c < COPIES; c++) {
        Output out = {.name = internf("y%d", c),
                      .value = m.value[c][SOURCES + STEPS - 1]};
        vec_push(a, &m.g->outputs, out);
    }
    passed(a, mod, "cse", no_flags);
    CHECK_MSG(m.g->order.len == count, "seed %d: %d nodes of %d computations",
              (int)seed, m.g->order.len, count);
    CHECK_MSG(constants(m.g) <= SOURCES / 2, "seed %d: %d constants of %d",
              (int)seed, constants(m.g), SOURCES / 2);
    for (int c = 1; c < COPIES; c++)
        CHECK_EQ_INT(m.g->outputs.data[c].value.i,
                     m.g->outputs.data[0].value.i);
    arena_free(a);
}

TEST_CASE(cse, one_node_for_each_computation) {
    for (uint64_t seed = 0; seed < 200; seed++) one_graph(seed);
}
