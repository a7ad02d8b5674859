/* SPDX-License-Identifier: Apache-2.0 */
/* attend_isa.c: attention and its gradient, block by block: scores stay in the
   cache.

   Queries run along the vector lanes: scores are K Q^T, one row per key, so
   that maxima, sums and scalings go down columns, and the product with V reads
   probabilities in place. A query's sums add keys in order, in blocks of
   ATTEND_KEYS; a key's sums add queries, in blocks of ATTEND_QUERIES, over the
   query heads that it serves.

   If all operands are bf16 and products of pairs are faster (tile kinds 1
   and 2), all matrix products use pairs: probabilities and their gradients
   are rounded to bf16 as operands, not where they are summed. */
#define SIMD_WANTS_DOT
#include "runtime/cpu/amx.h"
#include "runtime/cpu/attend.h"
#include "runtime/cpu/kmath.h"
#include "runtime/cpu/routines.h"
#include "runtime/cpu/transpose.h"

enum { Q_LANES = ATTEND_QUERIES };

typedef struct AttendRun {
    const LibAttend *p;
    const void *q, *k, *v, *dy, *lse, *delta, *mask;
    const int64_t *rng;
    void *y, *dq, *dk, *dv;
    float *lse_out, *scratch;
    AttendBlocks b;
    int kind; /* kind of tiles, the same for all matrix products */
} AttendRun;

/* The gradient's products read dY, whose dtype is y's. */
static int attend_kind(int isa, const LibAttend *p) {
    int kind = product_kind(isa, p->q_dtype, p->k_dtype);
    return kind && product_kind(isa, p->v_dtype, p->y_dtype) ? kind
                                                             : TILE_WIDENED;
}

/* Matrices whose rows are stored as lib.def says, or are columns of
   [batch][cols][rows] (across). */
typedef struct AttendRows {
    int64_t rows, cols, heads, width, first;
    int across;
} AttendRows;

static AttendRows attend_rows_q(const LibAttend *p) {
    return (AttendRows){p->t, p->d, p->q_heads, p->q_width, p->q_first, 0};
}

static AttendRows attend_rows_k(const LibAttend *p) {
    return (AttendRows){p->u,       p->d,       p->kv_heads,
                        p->k_width, p->k_first, !p->trans_b};
}

static AttendRows attend_rows_v(const LibAttend *p) {
    return (AttendRows){p->u, p->e, p->kv_heads, p->v_width, p->v_first, 0};
}

static AttendRows attend_rows_y(const LibAttend *p, int64_t cols) {
    return (AttendRows){p->t, cols, p->q_heads, p->q_heads, 0, 0};
}

/* Rows of an operand's gradient. */
static AttendRows attend_rows_grad(const LibAttend *p, AttendRows r) {
    if (!p->packed) r.width = r.heads, r.first = 0;
    return r;
}

/* Number of elements between rows. */
static int64_t attend_pitch(const AttendRows *r) {
    return r->across ? 1 : r->width * r->cols;
}

/* The first element of row `row` of matrix `batch`. */
static int64_t attend_at(const AttendRows *r, int64_t batch, int64_t row) {
    if (r->across) return batch * r->rows * r->cols + row;
    int64_t line = (batch / r->heads * r->rows + row) * r->width;
    return (line + r->first + batch % r->heads) * r->cols;
}

static PackSrc attend_rows(const void *p, int64_t dtype, AttendRows r,
                           int64_t batch, int64_t row) {
    PackSrc s = {at(p, (int)dtype, attend_at(&r, batch, row)), (int)dtype,
                 attend_pitch(&r), r.across ? r.rows : 1};
    return s;
}

static PackSrc attend_turned(PackSrc s) {
    int64_t rs = s.rs;
    s.rs = s.cs;
    s.cs = rs;
    return s;
}

static PackSrc attend_q(const AttendRun *r, int64_t batch, int64_t row) {
    return attend_rows(r->q, r->p->q_dtype, attend_rows_q(r->p), batch, row);
}

static PackSrc attend_dy(const AttendRun *r, int64_t batch, int64_t row) {
    return attend_rows(r->dy, r->p->y_dtype, attend_rows_y(r->p, r->p->e),
                       batch, row);
}

static PackSrc attend_k(const AttendRun *r, int64_t batch, int64_t row) {
    return attend_rows(r->k, r->p->k_dtype, attend_rows_k(r->p), batch, row);
}

static PackSrc attend_v(const AttendRun *r, int64_t batch, int64_t row) {
    return attend_rows(r->v, r->p->v_dtype, attend_rows_v(r->p), batch, row);
}

static void attend_pack_a(const AttendRun *r, float *to, PackSrc s, int64_t m,
                          int64_t k) {
    panel_pack_a(r->kind, to, &s, m, block_length(r->kind, k), k);
}

static void attend_pack_b(const AttendRun *r, float *to, PackSrc s, int64_t k,
                          int64_t n) {
    int64_t length = block_length(r->kind, k);
    panel_pack_b(r->kind, to, &s, 0, length, length, n, k);
}

/* c[m][n] (+)= a b over k elements: a packed in panels of a_k, b in panels
   of b_k or, if that is 0, in rows ldc apart like c (and attend_pairs). */
static void attend_product(const AttendRun *r, int64_t m, int64_t n, int64_t k,
                           const float *a, int64_t a_k, const float *b,
                           int64_t b_k, float *c, int64_t ldc, int add) {
    int64_t left = ceil_div(n, VL), height = panel_height(r->kind);
    int64_t length = block_length(r->kind, k);
    int64_t a_step = block_length(r->kind, a_k);
    int64_t panel = block_length(r->kind, b_k);
    for (int64_t j = 0; left > 0;) {
        int w = panel_width(r->kind, left);
        const float *bj = b_k ? b + j * panel : b + j;
        for (int64_t i = 0; i < m; i += height)
            panel_product(r->kind, length, min64(height, m - i), w,
                          a + i * a_step, a_step, bj, b_k ? w * VL : ldc,
                          c + i * ldc + j, ldc, add, bj);
        j += w * VL;
        left -= w;
    }
}

/* Rounds s[keys][lanes] in place to the precision that the product over keys
   reads. */
static void attend_pairs(const AttendRun *r, float *s, int64_t keys,
                         int64_t lanes) {
#if HAS_DOT
    if (r->kind == TILE_WIDENED) return;
    for (int64_t i = 0; i < block_length(r->kind, keys); i++)
        for (int64_t j = 0; j < lanes; j += VL) {
            const float *even = s + 2 * i * lanes + j;
            vf low = {0}, high = {0};
            if (2 * i < keys) low = vload(even);
            if (2 * i + 1 < keys) high = vload(even + lanes);
            vstore(s + i * lanes + j, vpairs(low, high));
        }
#else
    (void)r, (void)s, (void)keys, (void)lanes;
#endif
}

/* Rounds s[keys][lanes] for n keys and packs it as the left operand of a
   product over lanes. room: scratch for keys * lanes bf16. */
static void attend_pack_scores(const AttendRun *r, float *to, const float *s,
                               int64_t keys, int64_t n, int64_t lanes,
                               float *room) {
    PackSrc src = {s, AMPC_F32, lanes, 1};
#if HAS_DOT
    if (r->kind) {
        for (int64_t i = 0; i < keys * lanes; i += VL)
            vstore_dot((uint16_t *)(void *)room + i, vload(s + i), VL);
        src.p = room;
        src.dtype = AMPC_BF16;
    }
#else
    (void)room;
#endif
    attend_pack_a(r, to, src, keys, n);
}

/* Keys of a block at k0 that queries up to `last` attend to. */
static int64_t attend_seen(const AttendRun *r, int64_t k0, int64_t last) {
    int64_t n = min64(ATTEND_KEYS, r->p->u - k0);
    return r->p->causal ? max64(0, min64(n, last + r->p->offset + 1 - k0)) : n;
}

/* A block of scores of `keys` keys from k0 on and n queries from q0 on. */
typedef struct AttendBlock {
    int64_t batch, k0, q0, keys, n, lanes;
} AttendBlock;

/* s += the transposed rows of the mask, one row per query. */
static void attend_add_rows(float *restrict s, const void *mask, int dtype,
                            int64_t pitch, int64_t cols, const AttendBlock *b) {
    float t[TB * TB];
    size_t size = (size_t)dtype_size(dtype);
    for (int64_t i = 0; i < b->keys; i += TB)
        for (int64_t j = 0; j < b->n; j += TB) {
            int64_t rows = min64(TB, b->n - j), n = min64(TB, b->keys - i);
            float *to = s + i * b->lanes + j;
            if (cols == 1 || rows < TB || n < TB) {
                for (int64_t x = 0; x < n; x++)
                    for (int64_t y = 0; y < rows; y++)
                        to[x * b->lanes + y] +=
                            load1(mask, dtype,
                                  (j + y) * pitch + (cols > 1) * (i + x));
                continue;
            }
            transpose(t, TB,
                      (const char *)mask + (size_t)(j * pitch + i) * size,
                      dtype, pitch * (int64_t)size);
            for (int64_t x = 0; x < TB; x++)
                for (int64_t y = 0; y < TB; y++)
                    to[x * b->lanes + y] += t[x * TB + y];
        }
}

/* Turns matrix products into scores. */
static void attend_mask_scores(const AttendRun *r, float *restrict s,
                               const AttendBlock *b) {
    const LibAttend *p = r->p;
    const float scale = lib_float(p->scale);
    int64_t rows = p->mask_rows ? p->t : 1, cols = p->mask_cols ? p->u : 1;
    for (int64_t i = 0; scale != 1.0f && i < b->keys * b->lanes; i++)
        s[i] *= scale;
    if (r->mask) {
        int dtype = (int)p->mask_dtype;
        int64_t m = b->batch / p->mask_div % p->mask_mod * rows;
        if (p->mask_rows) m += b->q0;
        const void *mask =
            at(r->mask, dtype, m * cols + (p->mask_cols ? b->k0 : 0));
        if (p->mask_rows) attend_add_rows(s, mask, dtype, cols, cols, b);
        for (int64_t i = 0; !p->mask_rows && i < b->keys; i++) {
            const float x = load1(mask, dtype, p->mask_cols ? i : 0);
            for (int64_t j = 0; j < b->lanes; j++) s[i * b->lanes + j] += x;
        }
    }
    int64_t ahead = b->k0 - b->q0 - p->offset; /* keys before this one are
                                                  visible */
    for (int64_t i = max64(0, 1 - ahead); p->causal && i < b->keys; i++)
        for (int64_t j = 0; j < min64(b->lanes, ahead + i); j++)
            s[i * b->lanes + j] = -INFINITY;
}

/* Writes the factor by which dropout multiplies each probability; may write
   up to three rows more. */
static void attend_kept(const AttendRun *r, float *restrict to,
                        const AttendBlock *b) {
    const LibAttend *p = r->p;
    const float keep = lib_float(p->keep);
    const int64_t seed = r->rng[0], count = r->rng[1], salt = p->salt;
    const int64_t lanes = b->lanes, drop = p->drop;
    int64_t first = (b->batch * p->t + b->q0) * p->u + b->k0;
    if (p->u % 4) {
        for (int64_t i = 0; i < b->keys; i++)
            for (int64_t j = 0; j < lanes; j++)
                to[i * lanes + j] = PHILOX(seed, count, first + j * p->u + i,
                                           salt) < (float)drop * 0x1p-24f
                                        ? 0.0f
                                        : keep;
        return;
    }
    for (int64_t i = 0; i < b->keys; i += 4) {
        float *row = to + i * lanes;
        const uint64_t block = (uint64_t)(first + i) / 4;
        const uint64_t step = (uint64_t)p->u / 4;
        const int32_t least = (int32_t)drop;
        for (int64_t j = 0; j < lanes; j++) {
            KmPhilox w =
                km_philox(seed, count, block + (uint64_t)j * step, salt);
            row[j] = (int32_t)(w.a >> 8) < least ? 0.0f : keep;
            row[j + lanes] = (int32_t)(w.b >> 8) < least ? 0.0f : keep;
            row[j + 2 * lanes] = (int32_t)(w.c >> 8) < least ? 0.0f : keep;
            row[j + 3 * lanes] = (int32_t)(w.d >> 8) < least ? 0.0f : keep;
        }
    }
}

/* s = e^(s - base - more) in each lane. base and more are subtracted one
   after the other: base may be so large that more would be lost in their
   sum. */
static void attend_exp(float *restrict s, const float *restrict base,
                       const float *restrict more, int64_t keys,
                       int64_t lanes) {
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < lanes; j++)
            s[i * lanes + j] = s[i * lanes + j] - base[j] - more[j];
    for (int64_t i = 0; i < keys * lanes; i++) s[i] = km_exp_below(s[i]);
}

/* x[lanes][cols] = the transpose of `from`. */
static void attend_turn(float *x, const float *from, int64_t cols,
                        int64_t lanes) {
    for (int64_t c = 0; c < cols; c += TB)
        for (int64_t j = 0; j < lanes; j += TB)
            transpose(x + j * cols + c, cols, from + c * lanes + j, AMPC_F32,
                      lanes * 4);
}

/* ---- forward ------------------------------------------------------------- */

/* A block of queries while it is multiplied with the keys. */
typedef struct AttendState {
    float top[Q_LANES], sum[Q_LANES];
} AttendState;

/* Scores become probabilities up to a factor, which sum and o contain, too. */
static void attend_softmax(AttendState *a, float *restrict s, int64_t keys,
                           int64_t lanes, float *restrict o, int64_t e,
                           int first) {
    static const float none[Q_LANES];
    float top[Q_LANES], old[Q_LANES];
    for (int64_t j = 0; j < lanes; j++) top[j] = first ? -INFINITY : a->top[j];
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < lanes; j++) {
            float x = s[i * lanes + j];
            top[j] = x > top[j] ? x : top[j];
        }
    for (int64_t j = 0; j < lanes; j++) {
        float base = top[j] > -INFINITY ? top[j] : 0.0f;
        old[j] = first ? 0.0f : EXP_F32(a->top[j] - base);
        a->sum[j] = first ? 0.0f : a->sum[j] * old[j];
        a->top[j] = top[j];
        top[j] = base;
    }
    attend_exp(s, top, none, keys, lanes);
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < lanes; j++) a->sum[j] += s[i * lanes + j];
    for (int64_t i = 0; i < e && !first; i++)
        for (int64_t j = 0; j < lanes; j++) o[i * lanes + j] *= old[j];
}

static void attend_store(const AttendRun *r, AttendState *a, float *o,
                         float *turned, int64_t batch, int64_t q0, int64_t n) {
    const LibAttend *p = r->p;
    int64_t lanes = round_up(n, VL);
    for (int64_t j = 0; p->zeros && j < n; j++)
        if (a->top[j] == -INFINITY) a->sum[j] = 1, a->top[j] = INFINITY;
    for (int64_t i = 0; i < p->e; i++)
        for (int64_t j = 0; j < n; j++) o[i * lanes + j] /= a->sum[j];
    attend_turn(turned, o, r->b.e, lanes);
    const AttendRows y = attend_rows_y(p, p->e);
    const int64_t to = attend_at(&y, batch, q0), pitch = attend_pitch(&y);
    for (int64_t j = 0; j < n; j++) {
        narrow(r->y, (int)p->y_dtype, to + j * pitch, turned + j * r->b.e,
               p->e);
        float *lse = r->lse_out + 2 * (batch * p->t + q0 + j);
        if (r->lse_out) lse[0] = a->top[j], lse[1] = LOG_F32(a->sum[j]);
    }
}

/* At most ATTEND_CHUNK blocks of queries from q0 on, of one matrix. */
static void attend_chunk(const AttendRun *r, int64_t batch, int64_t q0,
                         float *own) {
    const LibAttend *p = r->p;
    const AttendBlocks *b = &r->b;
    AttendState state[ATTEND_CHUNK];
    float *qt = own, *o = qt + ATTEND_CHUNK * b->d * Q_LANES;
    float *s = o + ATTEND_CHUNK * b->e * Q_LANES;
    float *kept = s + ATTEND_KEYS * Q_LANES;
    float *kp = kept + ATTEND_KEYS * Q_LANES, *vp = kp + ATTEND_KEYS * b->d;
    int64_t keys_of = batch / p->group; /* the matrix of keys that they use */
    int64_t end = min64(p->t, q0 + ATTEND_CHUNK * Q_LANES);
    for (int64_t q = q0, c = 0; q < end; q += Q_LANES, c++) {
        attend_pack_b(r, qt + c * b->d * Q_LANES,
                      attend_turned(attend_q(r, batch, q)), p->d,
                      min64(Q_LANES, end - q));
        for (int64_t j = 0; j < Q_LANES; j++)
            state[c].top[j] = -INFINITY, state[c].sum[j] = 0;
        memset(o + c * b->e * Q_LANES, 0, (size_t)(b->e * Q_LANES) * 4);
    }
    for (int64_t k0 = 0; attend_seen(r, k0, end - 1) > 0; k0 += ATTEND_KEYS) {
        int64_t block = attend_seen(r, k0, end - 1);
        attend_pack_a(r, kp, attend_k(r, keys_of, k0), block, p->d);
        attend_pack_a(r, vp, attend_turned(attend_v(r, keys_of, k0)), p->e,
                      block);
        for (int64_t q = q0, c = 0; q < end; q += Q_LANES, c++) {
            int64_t n = min64(Q_LANES, end - q), lanes = round_up(n, VL);
            int64_t keys = attend_seen(r, k0, q + n - 1);
            float *oc = o + c * b->e * Q_LANES;
            AttendBlock at = {batch, k0, q, keys, n, lanes};
            if (!keys) continue;
            attend_product(r, keys, n, p->d, kp, p->d, qt + c * b->d * Q_LANES,
                           p->d, s, lanes, 0);
            attend_mask_scores(r, s, &at);
            attend_softmax(&state[c], s, keys, lanes, oc, p->e, k0 == 0);
            if (p->drop) {
                attend_kept(r, kept, &at);
                for (int64_t i = 0; i < keys * lanes; i++) s[i] *= kept[i];
            }
            attend_pairs(r, s, keys, lanes);
            attend_product(r, p->e, n, keys, vp, block, s, 0, oc, lanes,
                           k0 > 0);
        }
    }
    for (int64_t q = q0, c = 0; q < end; q += Q_LANES, c++)
        attend_store(r, &state[c], o + c * b->e * Q_LANES, vp, batch, q,
                     min64(Q_LANES, end - q));
}

static void attend_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const AttendRun *r = ctx;
    float *own = r->scratch + (size_t)worker * r->b.worker;
    if (on_tiles(r->kind)) amx_begin();
    for (int64_t i = lo; i < hi; i++)
        attend_chunk(r, i / r->b.chunks,
                     i % r->b.chunks * ATTEND_CHUNK * Q_LANES, own);
    if (on_tiles(r->kind)) amx_end();
}

void ISA(attend)(int isa, AmpcPool *pool, const LibAttend *p, const void *q,
                 const void *k, const void *v, const void *mask,
                 const void *rng, void *y, void *lse, void *scratch) {
    AttendRun r = {.p = p,
                   .q = q,
                   .k = k,
                   .v = v,
                   .mask = mask,
                   .rng = rng,
                   .y = y,
                   .lse_out = lse,
                   .scratch = scratch,
                   .b = attend_blocks(p),
                   .kind = attend_kind(isa, p)};
    pool_run(pool, p->batch * r.b.chunks, 1, attend_work, &r);
}

/* ---- gradient ------------------------------------------------------------ */

/* Buffers for a matrix of keys, a block of keys, and a block of queries. */
typedef struct AttendGrad {
    float *dqt;                    /* [group][blocks of queries][d][Q_LANES] */
    float *kp, *kt, *vp, *dk, *dv; /* K by rows and by columns, V       */
    float *qt, *gt, *qr, *gr;      /* Q and dY by columns and by rows   */
    float *s, *dp, *kept, *turned;
} AttendGrad;

static float *attend_take(float **at, int64_t n) {
    float *p = *at;
    *at += n;
    return p;
}

static AttendGrad attend_buffers(const AttendRun *r, float *own) {
    const AttendBlocks *b = &r->b;
    enum { K = ATTEND_KEYS, Q = Q_LANES };
    AttendGrad g = {.dqt =
                        attend_take(&own, r->p->group * b->queries * b->d * Q)};
    g.kp = attend_take(&own, K * b->d);
    g.kt = attend_take(&own, K * b->d);
    g.vp = attend_take(&own, K * b->e);
    g.dk = attend_take(&own, K * b->d);
    g.dv = attend_take(&own, K * b->e);
    g.qt = attend_take(&own, Q * b->d);
    g.gt = attend_take(&own, Q * b->e);
    g.qr = attend_take(&own, Q * b->d);
    g.gr = attend_take(&own, Q * b->e);
    g.s = attend_take(&own, K * Q);
    g.dp = attend_take(&own, K * Q);
    g.kept = attend_take(&own, K * Q);
    g.turned = attend_take(&own, K * Q);
    return g;
}

/* s: products become probabilities; dp: products become gradients of the
   scores.
 */
static void attend_slopes(const AttendRun *r, AttendGrad *g,
                          const AttendBlock *b) {
    float top[Q_LANES] = {0}, sum[Q_LANES] = {0}, delta[Q_LANES] = {0};
    float *restrict s = g->s, *restrict dp = g->dp, *restrict kept = g->kept;
    const float scale = lib_float(r->p->scale);
    int64_t lanes = b->lanes, row = b->batch * r->p->t + b->q0;
    const AttendRows of = attend_rows_y(r->p, 1);
    const int64_t from = attend_at(&of, b->batch, b->q0);
    for (int64_t j = 0; j < b->n; j++) {
        top[j] = load1(r->lse, (int)r->p->lse_dtype, 2 * (row + j));
        sum[j] = load1(r->lse, (int)r->p->lse_dtype, 2 * (row + j) + 1);
        delta[j] = load1(r->delta, (int)r->p->delta_dtype,
                         from + j * attend_pitch(&of));
    }
    attend_mask_scores(r, s, b);
    attend_exp(s, top, sum, b->keys, lanes);
    if (r->p->drop) attend_kept(r, kept, b);
    for (int64_t i = 0; r->p->drop && i < b->keys * lanes; i++)
        dp[i] *= kept[i];
    for (int64_t i = 0; i < b->keys; i++)
        for (int64_t j = 0; j < lanes; j++)
            dp[i * lanes + j] =
                s[i * lanes + j] * (dp[i * lanes + j] - delta[j]) * scale;
    for (int64_t i = 0; r->p->drop && i < b->keys * lanes; i++) s[i] *= kept[i];
}

/* One block of queries from q0 on, with `keys` keys of the block of `block`
   keys. */
static void attend_grad_block(const AttendRun *r, AttendGrad *g, int64_t batch,
                              int64_t k0, int64_t block, int64_t q0) {
    const LibAttend *p = r->p;
    const AttendBlocks *b = &r->b;
    float *dqt = g->dqt + batch % p->group * b->queries * b->d * Q_LANES;
    int64_t n = min64(Q_LANES, p->t - q0), lanes = round_up(n, VL);
    int64_t keys = attend_seen(r, k0, q0 + n - 1);
    PackSrc q = attend_q(r, batch, q0), dy = attend_dy(r, batch, q0);
    attend_pack_b(r, g->qt, attend_turned(q), p->d, n);
    attend_pack_b(r, g->gt, attend_turned(dy), p->e, n);
    attend_pack_b(r, g->qr, q, n, p->d);
    attend_pack_b(r, g->gr, dy, n, p->e);
    attend_product(r, keys, n, p->d, g->kp, p->d, g->qt, p->d, g->s, lanes, 0);
    attend_product(r, keys, n, p->e, g->vp, p->e, g->gt, p->e, g->dp, lanes, 0);
    AttendBlock at = {batch, k0, q0, keys, n, lanes};
    attend_slopes(r, g, &at);
    attend_pack_scores(r, g->turned, g->s, keys, n, lanes, g->kept);
    attend_product(r, keys, p->e, n, g->turned, n, g->gr, n, g->dv, b->e, 1);
    attend_pack_scores(r, g->turned, g->dp, keys, n, lanes, g->kept);
    attend_product(r, keys, p->d, n, g->turned, n, g->qr, n, g->dk, b->d, 1);
    attend_pairs(r, g->dp, keys, lanes);
    attend_product(r, p->d, n, keys, g->kt, block, g->dp, 0, dqt + q0 * b->d,
                   lanes, 1);
}

/* Copies n rows of x, ld apart, to the result's rows from `row` on. */
static void attend_put(void *to, int64_t dtype, AttendRows r, int64_t batch,
                       int64_t row, const float *x, int64_t ld, int64_t n) {
    const int64_t first = attend_at(&r, batch, row), pitch = attend_pitch(&r);
    if (!to) return;
    for (int64_t i = 0; i < n && !r.across; i++)
        narrow(to, (int)dtype, first + i * pitch, x + i * ld, r.cols);
    for (int64_t c = 0; c < r.cols && r.across; c++)
        for (int64_t i = 0; i < n; i++)
            store1(to, (int)dtype, first + c * r.rows + i, x[i * ld + c]);
}

/* One matrix of keys, and the query heads that it serves. */
static void attend_grad_matrix(const AttendRun *r, AttendGrad *g,
                               int64_t batch) {
    const LibAttend *p = r->p;
    const AttendBlocks *b = &r->b;
    int64_t heads = batch * p->group;
    memset(g->dqt, 0, (size_t)(p->group * b->queries * b->d * Q_LANES) * 4);
    for (int64_t k0 = 0; k0 < p->u; k0 += ATTEND_KEYS) {
        int64_t block = min64(ATTEND_KEYS, p->u - k0);
        int64_t first = p->causal ? max64(0, k0 - p->offset) : 0;
        PackSrc k = attend_k(r, batch, k0);
        attend_pack_a(r, g->kp, k, block, p->d);
        attend_pack_a(r, g->kt, attend_turned(k), p->d, block);
        attend_pack_a(r, g->vp, attend_v(r, batch, k0), block, p->e);
        memset(g->dk, 0, (size_t)(block * b->d) * 4);
        memset(g->dv, 0, (size_t)(block * b->e) * 4);
        for (int64_t h = 0; h < p->group; h++)
            for (int64_t q = first / Q_LANES * Q_LANES; q < p->t; q += Q_LANES)
                attend_grad_block(r, g, heads + h, k0, block, q);
        attend_put(r->dk, p->packed ? p->dq_dtype : p->dk_dtype,
                   attend_rows_grad(p, attend_rows_k(p)), batch, k0, g->dk,
                   b->d, block);
        attend_put(r->dv, p->packed ? p->dq_dtype : p->dv_dtype,
                   attend_rows_grad(p, attend_rows_v(p)), batch, k0, g->dv,
                   b->e, block);
    }
    for (int64_t i = 0; i < p->group * b->queries; i++) {
        int64_t q = i % b->queries * Q_LANES, n = min64(Q_LANES, p->t - q);
        attend_turn(g->qt, g->dqt + i * Q_LANES * b->d, b->d, round_up(n, VL));
        attend_put(r->dq, p->dq_dtype, attend_rows_grad(p, attend_rows_q(p)),
                   heads + i / b->queries, q, g->qt, b->d, n);
    }
}

static void attend_grad_work(void *ctx, int64_t lo, int64_t hi, int worker) {
    const AttendRun *r = ctx;
    AttendGrad g =
        attend_buffers(r, r->scratch + (size_t)worker * r->b.worker_grad);
    if (on_tiles(r->kind)) amx_begin();
    for (int64_t i = lo; i < hi; i++) attend_grad_matrix(r, &g, i);
    if (on_tiles(r->kind)) amx_end();
}

void ISA(attend_grad)(int isa, AmpcPool *pool, const LibAttend *p,
                      const void *q, const void *k, const void *v,
                      const void *dy, const void *lse, const void *delta,
                      const void *mask, const void *rng, void *dq, void *dk,
                      void *dv, void *sums, void *scratch) {
    AttendRun r = {.p = p,
                   .q = q,
                   .k = k,
                   .v = v,
                   .mask = mask,
                   .rng = rng,
                   .dy = dy,
                   .lse = lse,
                   .delta = delta,
                   .dq = dq,
                   .dk = p->packed ? dq : dk,
                   .dv = p->packed ? dq : dv,
                   .scratch = scratch,
                   .b = attend_blocks(p),
                   .kind = attend_kind(isa, p)};
    pool_run(pool, p->batch / p->group, 1, attend_grad_work, &r);
    if (p->packed == 2) attend_columns(p, dq, sums);
}
