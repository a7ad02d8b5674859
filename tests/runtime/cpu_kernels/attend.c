/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: attention of every level beside its formula. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <string.h>

#include "runtime/cpu/kmath.h"
#include "tests/harness.h"
#include "tests/support/cpu_cases.h"

/* ---- attention ----------------------------------------------------------- */

/* q, k, v, dy, mask; lse, delta; and the expected results. */
typedef struct AttendCase {
    LibAttend p;
    void *in[5];
    int64_t rng[2];
    float *sums[2];
    double *want[5];  /* y, lse, dq, dk, dv */
    double *terms[5]; /* sums of absolute values of each sum's terms */
    int64_t count[5];
    void *first[5]; /* results of one thread */
} AttendCase;

/* The element at column c of row i of matrix b. */
static int64_t attend_q(const LibAttend *p, int64_t b, int64_t i, int64_t c) {
    int64_t line = b / p->q_heads * p->t + i;
    return (line * p->q_width + p->q_first + b % p->q_heads) * p->d + c;
}

static int64_t attend_y(const LibAttend *p, int64_t b, int64_t i, int64_t c) {
    int64_t line = b / p->q_heads * p->t + i;
    return (line * p->q_heads + b % p->q_heads) * p->e + c;
}

static int64_t attend_key(const LibAttend *p, int64_t b, int64_t j, int64_t c) {
    int64_t line = b / p->kv_heads * p->u + j;
    if (!p->trans_b) return (b * p->d + c) * p->u + j;
    return (line * p->k_width + p->k_first + b % p->kv_heads) * p->d + c;
}

static int64_t attend_value(const LibAttend *p, int64_t b, int64_t j,
                            int64_t c) {
    int64_t line = b / p->kv_heads * p->u + j;
    return (line * p->v_width + p->v_first + b % p->kv_heads) * p->e + c;
}

/* The layout of the gradients. */
static LibAttend attend_grads(const LibAttend *p) {
    LibAttend g = *p;
    if (p->packed) return g;
    g.q_width = g.q_heads;
    g.k_width = g.v_width = g.kv_heads;
    g.q_first = g.k_first = g.v_first = 0;
    return g;
}

static double attend_score(const AttendCase *c, int64_t b, int64_t i,
                           int64_t j) {
    const LibAttend *p = &c->p;
    double s = 0;
    if (p->causal && j > i + p->offset) return -(double)INFINITY;
    for (int64_t f = 0; f < p->d; f++)
        s += array_get(c->in[0], p->q_dtype, attend_q(p, b, i, f)) *
             array_get(c->in[1], p->k_dtype, attend_key(p, b / p->group, j, f));
    s *= (double)lib_float(p->scale);
    if (!c->in[4]) return s;
    int64_t rows = p->mask_rows ? p->t : 1, cols = p->mask_cols ? p->u : 1;
    int64_t m = b / p->mask_div % p->mask_mod * rows * cols;
    return s + array_get(c->in[4], p->mask_dtype,
                         m + (p->mask_rows ? i * cols : 0) +
                             (p->mask_cols ? j : 0));
}

static void attend_add(AttendCase *c, int result, int64_t i, double x) {
    c->want[result][i] += x;
    c->terms[result][i] += fabs(x);
}

/* Adds one row of scores to the results. */
static void attend_row(AttendCase *c, int64_t b, int64_t i, double *s) {
    const LibAttend *p = &c->p, to = attend_grads(p);
    int64_t row = b * p->t + i, m = b / p->group;
    double top = -(double)INFINITY, sum = 0, delta = 0;
    for (int64_t j = 0; j < p->u; j++)
        top = fmax(top, s[j] = attend_score(c, b, i, j));
    bool none = top == -(double)INFINITY;
    for (int64_t j = 0; j < p->u; j++) sum += s[j] = none ? 0 : exp(s[j] - top);
    c->want[1][2 * row] = none ? (double)INFINITY : top;
    c->want[1][2 * row + 1] = none ? 0 : log(sum);
    for (int64_t j = 2 * row; j < 2 * row + 2; j++)
        c->sums[0][j] = (float)c->want[1][j];
    if (none) sum = 1;
    double *kept = zeros(p->u);
    for (int64_t j = 0; j < p->u; j++)
        kept[j] = PHILOX(c->rng[0], c->rng[1], row * p->u + j, p->salt) <
                          (float)p->drop * 0x1p-24f
                      ? 0
                      : (double)lib_float(p->keep);
    for (int64_t f = 0; f < p->e; f++) {
        int64_t at = attend_y(p, b, i, f);
        for (int64_t j = 0; j < p->u; j++)
            attend_add(
                c, 0, at,
                s[j] / sum * kept[j] *
                    array_get(c->in[2], p->v_dtype, attend_value(p, m, j, f)));
        delta += c->want[0][at] * array_get(c->in[3], p->y_dtype, at);
    }
    c->sums[1][attend_y(p, b, i, 0) / p->e] = (float)delta;
    for (int64_t j = 0; j < p->u; j++) {
        double dp = 0, g;
        for (int64_t f = 0; f < p->e; f++) {
            g = array_get(c->in[3], p->y_dtype, attend_y(p, b, i, f));
            dp += g * array_get(c->in[2], p->v_dtype, attend_value(p, m, j, f));
            attend_add(c, p->packed ? 2 : 4, attend_value(&to, m, j, f),
                       s[j] / sum * kept[j] * g);
        }
        dp = s[j] / sum * (dp * kept[j] - delta) * (double)lib_float(p->scale);
        for (int64_t f = 0; f < p->d; f++) {
            int64_t key = attend_key(p, m, j, f);
            attend_add(c, 2, attend_q(&to, b, i, f),
                       dp * array_get(c->in[1], p->k_dtype, key));
            attend_add(
                c, p->packed ? 2 : 3, attend_key(&to, m, j, f),
                dp * array_get(c->in[0], p->q_dtype, attend_q(p, b, i, f)));
        }
    }
    block_free(kept);
}

/* In products of bf16 pairs one factor of each term is rounded; the other is
   exact. */
static void attend_close(const AttendCase *c, int i, const void *got,
                         int64_t dtype, int level) {
    static const char *const name[] = {"y", "lse", "dq", "dk", "dv"};
    const LibAttend *p = &c->p;
    int pairs = level >= AMPC_ISA_V4 && p->q_dtype == AMPC_BF16 &&
                p->k_dtype == AMPC_BF16 && p->v_dtype == AMPC_BF16 &&
                p->y_dtype == AMPC_BF16;
    for (int64_t k = 0; k < c->count[i]; k++) {
        double want = c->want[i][k], x = array_get(got, dtype, k);
        double tol = 2e-4 + unit(dtype) * fabs(want) +
                     (pairs ? unit(AMPC_BF16) * c->terms[i][k] : 0);
        if (!CHECK_MSG(x == want || fabs(x - want) <= tol, "%s %d: %g want %g",
                       name[i], (int)k, x, want))
            return;
    }
}

/* Sums of packed gradients, beside sums over dq. */
static void attend_sums_close(const LibAttend *p, const void *dq,
                              const float *sums) {
    int64_t line = p->q_width * p->d;
    for (int64_t i = 0; i < p->batch / p->q_heads * line; i++) {
        double want = 0, terms = 0;
        for (int64_t row = 0; row < p->t; row++) {
            int64_t at = (i / line * p->t + row) * line + i % line;
            double x = array_get(dq, p->dq_dtype, at);
            want += x, terms += fabs(x);
        }
        if (!CHECK_MSG(fabs(sums[i] - want) <= (double)p->t * 0x1p-24 * terms,
                       "sums %d: %g want %g", (int)i, sums[i], want))
            return;
    }
}

static void attend_compare(AttendCase *c, int level, AmpcPool *pool,
                           int threads) {
    const LibAttend *p = &c->p;
    const AmpcCpuLib *lib = lib_of(level);
    size_t need[] = {cpu_attend_scratch(p, threads),
                     cpu_attend_grad_scratch(p, threads)};
    const int64_t dtype[] = {p->y_dtype, AMPC_F32, p->dq_dtype, p->dk_dtype,
                             p->dv_dtype};
    void *out[5], *scratch[] = {scratch_of(need[0]), scratch_of(need[1])};
    for (int i = 0; i < 5; i++) out[i] = array(dtype[i], c->count[i]);
    int64_t lines = p->packed == 2 ? p->batch / p->q_heads * p->q_width : 0;
    float *sums = block((size_t)(lines * p->d + 1) * sizeof *sums);
    lib->attend(lib->isa, pool, p, c->in[0], c->in[1], c->in[2], c->in[4],
                c->rng, out[0], out[1], scratch[0]);
    lib->attend_grad(lib->isa, pool, p, c->in[0], c->in[1], c->in[2], c->in[3],
                     c->sums[0], c->sums[1], c->in[4], c->rng, out[2], out[3],
                     out[4], sums, scratch[1]);
    if (lines) attend_sums_close(p, out[2], sums);
    block_free(sums);
    for (int i = 0; i < 5; i++) {
        size_t bytes = (size_t)c->count[i] * size_of(dtype[i]);
        attend_close(c, i, out[i], dtype[i], level);
        if (threads > 1)
            CHECK_MSG(!memcmp(out[i], c->first[i], bytes),
                      "result %d: %d threads", i, threads);
        block_free(threads > 1 ? out[i] : c->first[i]);
        if (threads == 1) c->first[i] = out[i];
    }
    for (int i = 0; i < 2; i++) scratch_check(scratch[i], need[i]);
}

static int past_blocks;

/* Heads are stored beside rows, with others around them; or one value has
   all heads. */
static void attend_beside(LibAttend *p, int64_t heads) {
    p->trans_b = 1;
    p->kv_heads = heads;
    p->q_heads = heads * p->group;
    p->packed = rnd() % 3;
    p->q_first = rnd_in(0, 2);
    p->k_first = rnd_in(0, 2);
    p->v_first = rnd_in(0, 2);
    p->q_width = p->q_first + p->q_heads + rnd_in(0, 2);
    p->k_width = p->k_first + heads + rnd_in(0, 2);
    p->v_width = p->v_first + heads + rnd_in(0, 2);
    if (!p->packed) return;
    p->u = p->t;
    p->e = p->d;
    p->q_width = p->k_width = p->v_width = p->q_heads + 2 * heads;
    p->v_first = 0;
    p->q_first = heads;
    p->k_first = heads + p->q_heads;
}

/* size: of the largest shapes */
static void attend_case(int64_t size) {
    int64_t group = rnd_in(1, 3), heads = rnd_in(1, 2), samples = rnd_in(1, 2);
    AttendCase c = {.p = {.batch = samples * heads * group,
                          .group = group,
                          .t = rnd_in(1, size),
                          .u = rnd_in(1, size),
                          .d = rnd_in(1, 40),
                          .e = rnd_in(1, 40),
                          .q_heads = 1,
                          .q_width = 1,
                          .kv_heads = 1,
                          .k_width = 1,
                          .v_width = 1,
                          .causal = rnd() % 2,
                          .offset = rnd() % 2 ? rnd_in(-20, 20) : 0,
                          .trans_b = rnd() % 2,
                          .zeros = 1,
                          .scale = lib_bits(rnd() % 2 ? 1.0f : 0.4f),
                          .drop = rnd() % 2 ? rnd_in(1, 12) << 20 : 0,
                          .keep = lib_bits(1.0f),
                          .salt = rnd_in(0, 9),
                          .mask_div = 1,
                          .mask_mod = 1,
                          .mask_rows = rnd() % 2,
                          .mask_cols = rnd() % 2,
                          .mask_dtype = rnd_float(),
                          .rng_dtype = AMPC_I64,
                          .q_dtype = rnd_float(),
                          .k_dtype = rnd_float(),
                          .v_dtype = rnd_float(),
                          .y_dtype = rnd_float(),
                          .lse_dtype = AMPC_F32,
                          .sums_dtype = AMPC_F32,
                          .delta_dtype = AMPC_F32,
                          .dq_dtype = rnd_float(),
                          .dk_dtype = rnd_float(),
                          .dv_dtype = rnd_float()},
                    .rng = {rnd(), rnd()}};
    LibAttend *p = &c.p;
    if (past_blocks) { /* parts of keys and of queries */
        p->causal = 1;
        p->t = rnd_in(size / 2, size), p->u = rnd_in(size / 2, size);
        p->offset = rnd_in(-p->t, p->u);
    }
    if (p->drop) p->keep = lib_bits(1.0f / (1.0f - (float)p->drop * 0x1p-24f));
    if (rnd() % 2) attend_beside(p, heads);
    if (rnd() % 2) p->mask_div = heads * group; /* one for each sample */
    if (rnd() % 2) p->mask_mod = p->batch / p->mask_div;
    int64_t q = p->batch * p->t, k = p->batch / group * p->u;
    int64_t q_lines = q / p->q_heads, k_lines = k / p->kv_heads;
    const int64_t count[] = {
        q * p->e, 2 * q, p->packed ? q_lines * p->q_width * p->d : q * p->d,
        p->packed ? 0 : k * p->d, p->packed ? 0 : k * p->e};
    for (int i = 0; i < 5; i++) {
        c.want[i] = zeros(c.count[i] = count[i]);
        c.terms[i] = zeros(count[i]);
    }
    c.in[0] = array(p->q_dtype, q_lines * p->q_width * p->d);
    c.in[1] = array(p->k_dtype, k_lines * p->k_width * p->d);
    c.in[2] = array(p->v_dtype, k_lines * p->v_width * p->e);
    c.in[3] = array(p->y_dtype, q * p->e);
    if (rnd() % 3)
        c.in[4] = array(p->mask_dtype, p->mask_mod * (p->mask_rows ? p->t : 1) *
                                           (p->mask_cols ? p->u : 1));
    for (int i = 0; i < 2; i++) c.sums[i] = array(AMPC_F32, 2 * q);
    double *scores = zeros(p->u);
    for (int64_t i = 0; i < q; i++) attend_row(&c, i / p->t, i % p->t, scores);
    int top = top_level();
    for (int level = 2; level <= top; level++)
        for (int t = 0; t < 3; t++)
            attend_compare(&c, level, pools[t], thread_counts[t]);
    for (int i = 0; i < 5; i++) block_free(c.in[i]);
    for (int i = 0; i < 2; i++) block_free(c.sums[i]);
    for (int i = 0; i < 5; i++) {
        block_free(c.want[i]);
        block_free(c.terms[i]);
        block_free(c.first[i]);
    }
    block_free(scores);
}

TEST_CASE(attend, random_shapes) {
    rng = 47;
    pools_open();
    for (int i = 0; i < 48; i++) attend_case(i % 6 ? 60 : 300);
    pools_close();
}

TEST_CASE(attend, windows_past_blocks) {
    rng = 49;
    pools_open();
    past_blocks = 1;
    for (int i = 0; i < 8; i++) attend_case(280);
    past_blocks = 0;
    pools_close();
}

TEST_CASE(attend, pairs_of_bf16) {
    rng = 48;
    pools_open();
    only_bf16 = 1;
    for (int i = 0; i < 30; i++) attend_case(i % 6 ? 60 : 300);
    only_bf16 = 0;
    pools_close();
}
