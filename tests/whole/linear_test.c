/* SPDX-License-Identifier: Apache-2.0 */
/* linear_test.c: random chains of linear ops, values and gradients.

   What a chain computes is kept here as the matrix of its ops' definitions, of
   whole numbers: its values are that matrix times x, and the gradient of
   sum(y * value) is its transpose times y, both exact in f32.  Gathers by
   known and by given rows, pads of every mode and side, steps in both
   directions, permutations, triangles, sums, running sums, and products with
   transposed or plain operands occur in unforeseen combinations. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "ir/base/base.h"
#include "tests/support/on_device.h"
#include "tests/whole/linear/linear.h"

uint64_t linear_state;

/* ---- programs ------------------------------------------------------------ */

static bool exact(const Val *v) {
    for (int k = 0; k < v->n; k++)
        for (int i = 0; i < X; i++)
            if (v->row[k].of[i] > 99 || v->row[k].of[i] < -99) return false;
    return true;
}

static void cut(StrBuf *sb, size_t len) {
    sb->len = len;
    if (sb->data) sb->data[len] = 0;
}

static void add_chain(Made *m) {
    static const int shapes[][RANK] = {
        {X},           {2, X / 2}, {3, X / 3}, {X / 4, 4},       {2, 3, X / 6},
        {4, 1, X / 4}, {1, X},     {X, 1},     {2, 2, 3, X / 12}};
    const int *dim = shapes[linear_below(sizeof shapes / sizeof *shapes)];
    int rank = 0, c = m->chain;
    while (rank < RANK && dim[rank]) rank++;
    Val v = linear_val_new(m, rank, dim);
    snprintf(v.name, sizeof v.name, "%%x%d", c);
    for (int i = 0; i < X; i++) {
        v.row[i].of[i] = 1;
        m->x[c][i] = (float)linear_number();
    }
    sb_printf(&m->params, "  param %s: f32", v.name);
    linear_put_shape(&m->params, &v);
    sb_puts(&m->params, " = 0\n");
    for (int made = 0; made < STEPS;) {
        size_t sig = m->sig.len, body = m->body.len;
        int given = m->ngiven, value = m->nvalue;
        Val next = linear_ops[linear_below(linear_nops)](m, &v);
        if (next.n > MOST || !exact(&next)) { /* another one instead */
            cut(&m->sig, sig);
            cut(&m->body, body);
            m->ngiven = given, m->nvalue = value;
            free(next.row);
            continue;
        }
        linear_put_type(m, &next);
        free(v.row);
        v = next;
        made++;
    }
    Given *y = m->y[c] = linear_give(m, false, v.n);
    for (int i = 0; i < v.n; i++) y->f[i] = (float)linear_number();
    sb_printf(&m->sig, ", %%%s: f32", y->name);
    linear_put_shape(&m->sig, &v);
    int axes[RANK] = {0, 1, 2, 3, 4};
    sb_printf(&m->body, "  %%w%d = mul %s, %%%s\n  %%l%d = reduce_sum %%w%d {",
              c, v.name, y->name, c, c);
    linear_put_ints(&m->body, "axes", axes, v.rank);
    sb_puts(&m->body, ", keepdims=0}\n");
    if (c)
        sb_printf(&m->body, "  %%s%d = add %s%d, %%l%d\n", c,
                  c == 1 ? "%l" : "%s", c - 1, c);
    sb_printf(&m->results, ", y%d=%s", c, v.name);
    m->out[c] = v;
    m->chain++;
}

static Made *made_new(uint64_t seed) {
    Made *m = calloc(1, sizeof *m);
    REQUIRE(m);
    linear_state = seed;
    while (m->chain < CHAINS) add_chain(m);
    return m;
}

static void made_free(Made *m) {
    StrBuf *const text[] = {&m->sig, &m->params, &m->body, &m->results};
    for (int i = 0; i < 4; i++) sb_free(text[i]);
    for (int i = 0; i < CHAINS; i++) free(m->out[i].row);
    free(m);
}

static char *program(const Made *m) {
    StrBuf sb = {0};
    sb_printf(&sb, "graph forward(%s) {\n%s%s  return l=%%s%d%s\n}\n",
              m->sig.data + 2, m->params.data, m->body.data, CHAINS - 1,
              m->results.data);
    return sb.data;
}

/* ---- checks -------------------------------------------------------------- */

static float value(const Made *m, int c, int k) {
    const Row *r = &m->out[c].row[k];
    float sum = r->plus;
    for (int i = 0; i < X; i++) sum += r->of[i] * m->x[c][i];
    return sum;
}

static float slope(const Made *m, int c, int i) {
    float sum = 0;
    for (int k = 0; k < m->out[c].n; k++)
        sum += m->out[c].row[k].of[i] * m->y[c]->f[k];
    return sum;
}

static void check_values(const Made *m, const Compiled *c, ampc_session *s) {
    for (int i = 0; i < CHAINS; i++) {
        float got[MOST];
        char name[16];
        int wrong = 0;
        ampc_output out = ampc_out(NULL, got, (size_t)m->out[i].n * sizeof *got,
                                   AMPC_DTYPE_F32);
        snprintf(name, sizeof name, "y%d", i);
        if (c->api->read_output(s, name, &out)) FAIL("%s", c->api->error(s));
        for (int k = 0; k < m->out[i].n && !wrong; k++)
            wrong |=
                !CHECK_MSG(got[k] == value(m, i, k), "%s[%d] is %g, not %g",
                           name, k, (double)got[k], (double)value(m, i, k));
    }
}

static void check_slopes(const Made *m, const Compiled *c, ampc_session *s) {
    for (int i = 0; i < CHAINS; i++) {
        float got[X];
        char name[16];
        int wrong = 0;
        snprintf(name, sizeof name, "x%d", i);
        read_var(c, s, name, got, sizeof got, AMPC_DTYPE_F32);
        for (int k = 0; k < X && !wrong; k++)
            wrong |= !CHECK_MSG(m->x[i][k] - got[k] == slope(m, i, k),
                                "the gradient of x%d[%d] is %g, not %g, of %s",
                                i, k, (double)(m->x[i][k] - got[k]),
                                (double)slope(m, i, k), m->out[i].name);
    }
}

/* A step with learning rate 1 subtracts the gradient. */
static void check(const Made *m, const Compiled *c, ampc_session *s) {
    ampc_input in[INPUTS];
    for (int i = 0; i < m->ngiven; i++) {
        const Given *g = &m->given[i];
        in[i] = g->index ? ampc_in(g->name, g->i, (size_t)g->n * sizeof *g->i,
                                   AMPC_DTYPE_I64)
                         : ampc_in(g->name, g->f, (size_t)g->n * sizeof *g->f,
                                   AMPC_DTYPE_F32);
    }
    for (int i = 0; i < CHAINS; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%d", i);
        write_var(c, s, name, m->x[i], sizeof m->x[i], AMPC_DTYPE_F32);
    }
    if (c->api->predict(s, in, (size_t)m->ngiven, 1, NULL, 0))
        FAIL("%s", c->api->error(s));
    check_values(m, c, s);
    step_ok(c, s, in, (size_t)m->ngiven);
    check_slopes(m, c, s);
    c->api->close(s);
}

#define OPTIONS "--precision fp32 --loss auto:l --optimizer sgd,lr=1 "

static void on_the_cpu(uint64_t seed) {
    static const char *const levels[] = {"v2", "v3", "v4"};
    static const char *const more[] = {
        ALL_LEVELS, "--no-fuse --shuffle 5 --target cpu:x86-64-v3"};
    Made *m = made_new(seed);
    char *text = program(m);
    for (int k = 0; k < 2; k++) {
        char options[200];
        snprintf(options, sizeof options, OPTIONS "%s", more[k]);
        Compiled c = compile_text(text, options);
        for (int i = k ? 1 : 0; i < (k ? 2 : 3); i++) {
            setenv("AMPC_ISA", levels[i], 1);
            check(m, &c, open_threads(&c, 1 + i));
        }
        unsetenv("AMPC_ISA");
        compiled_close(&c);
    }
    free(text);
    made_free(m);
}

/* script/test --slow runs more of them. */
TEST_CASE(linear, chains_on_the_cpu) {
    for (uint64_t seed = 1; seed <= (test_slow() ? 20 : 1); seed++)
        on_the_cpu(seed);
}

TEST_CASE(linear, chains_on_the_gpu) {
    Made *m = made_new(test_slow() ? 4 : 3);
    char *text = program(m);
    const Compiled *c = compile_on("cuda", text, OPTIONS, "");
    check(m, c, open_on(c, "cuda", 0));
    free(text);
    made_free(m);
}
