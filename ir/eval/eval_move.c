/* SPDX-License-Identifier: Apache-2.0 */
/* eval_move.c: generators and the ops that move elements.

   rand_uniform is Philox4x32-10.  With i the row-major index of an element:
     key     = (low32(seed), high32(seed))
     counter = (low32(i / 4), high32(i / 4), low32(rng[1]), low32(salt))
     value   = (word[i % 4] >> 8) * 2^-24
   where seed = rng[0].  Generated kernels follow the same definition.       */
#include "ir/eval/eval_impl.h"

#include <string.h>

/* ---- generators ---------------------------------------------------------- */

Status eval_full(EvalCx *cx) {
    EvalTensor *out = cx->out[0];
    int64_t n = type_count(type_get(out->type));
    double v = attr_float(cx->n, AK_value);
    for (int64_t k = 0; k < n; k++) eval_put(out, k, v);
    return OK;
}

Status eval_iota(EvalCx *cx) {
    EvalTensor *out = cx->out[0];
    const Type *t = type_get(out->type);
    int64_t n = type_count(t);
    EvalAxis ax = eval_axis(t, (int)attr_int(cx->n, AK_axis));
    for (int64_t k = 0; k < n; k++) {
        int64_t v = k / ax.inner % ax.n;
        if (out->f)
            out->f[k] = (double)v;
        else
            out->i[k] = v;
    }
    return OK;
}

static void philox(uint32_t key[2], uint32_t ctr[4]) {
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)ctr[0] * 0xD2511F53u;
        uint64_t p1 = (uint64_t)ctr[2] * 0xCD9E8D57u;
        uint32_t c1 = ctr[1], c3 = ctr[3];
        ctr[0] = (uint32_t)(p1 >> 32) ^ c1 ^ key[0];
        ctr[1] = (uint32_t)p1;
        ctr[2] = (uint32_t)(p0 >> 32) ^ c3 ^ key[1];
        ctr[3] = (uint32_t)p0;
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
}

double eval_uniform(const int64_t rng[2], int64_t salt, int64_t i) {
    uint64_t seed = (uint64_t)rng[0], block = (uint64_t)i / 4;
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t ctr[4] = {(uint32_t)block, (uint32_t)(block >> 32),
                       (uint32_t)rng[1], (uint32_t)salt};
    philox(key, ctr);
    return (ctr[i % 4] >> 8) * 0x1p-24;
}

Status eval_rand_uniform(EvalCx *cx) {
    EvalTensor *out = cx->out[0];
    int64_t n = type_count(type_get(out->type));
    int64_t salt = attr_int(cx->n, AK_salt);
    for (int64_t k = 0; k < n; k++)
        out->f[k] = eval_uniform(cx->in[0]->i, salt, k);
    return OK;
}

/* ---- copying ------------------------------------------------------------- */

static void copy_elem(EvalTensor *to, int64_t k, const EvalTensor *from,
                      int64_t j) {
    if (to->f)
        to->f[k] = eval_at(from, j);
    else
        to->i[k] = from->i[j];
}

static void add_elem(EvalTensor *to, int64_t k, const EvalTensor *from,
                     int64_t j) {
    if (to->f)
        to->f[k] += eval_at(from, j);
    else
        to->i[k] = (int64_t)((uint64_t)to->i[k] + (uint64_t)from->i[j]);
}

Status eval_reshape(EvalCx *cx) {
    int64_t n = type_count(type_get(cx->out[0]->type));
    for (int64_t k = 0; k < n; k++) copy_elem(cx->out[0], k, cx->in[0], k);
    return OK;
}

/* A move maps the index space of one side (`dom`) to positions of the other
   side's data (`src`), -1 for none. Forward: dom is the result; adjoint: dom
   is the operand, added into the result. */
typedef struct Move {
    const Type *dom, *src;
    int64_t stride[MAX_RANK];      /* of src */
    int64_t first, step[MAX_RANK]; /* the map, where it is first + idx * step */
    int64_t p[MAX_RANK];
    Str mode;
    int axis;
    int64_t k;
    bool upper;
    const EvalTensor *index;
} Move;
typedef int64_t MapFn(const Move *m, const int64_t *idx);

static Move move_init(const EvalTensor *dom, const EvalTensor *src) {
    Move m = {.dom = type_get(dom->type), .src = type_get(src->type)};
    shape_strides(m.src, m.stride);
    return m;
}

static void forward(EvalTensor *out, const EvalTensor *in, const Move *m,
                    MapFn *map, double fill) {
    int64_t n = type_count(m->dom), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(m->dom, idx)) {
        int64_t j = map(m, idx);
        if (j >= 0)
            copy_elem(out, k, in, j);
        else
            eval_put(out, k, fill);
    }
}

typedef void PutFn(EvalTensor *to, int64_t k, const EvalTensor *from,
                   int64_t j);

/* put: add_elem, or copy_elem if every position is written once. */
static void adjoint(EvalTensor *out, const EvalTensor *in, const Move *m,
                    MapFn *map, PutFn *put) {
    int64_t n = type_count(m->dom), idx[MAX_RANK] = {0};
    for (int64_t k = 0; k < n; k++, eval_step(m->dom, idx)) {
        int64_t j = map(m, idx);
        if (j >= 0) put(out, j, in, k);
    }
}

static int64_t map_steps(const Move *m, const int64_t *idx) {
    int64_t at = m->first;
    for (int d = 0; d < m->dom->rank; d++) at += idx[d] * m->step[d];
    return at;
}

Status eval_transpose(EvalCx *cx) {
    Move m = move_init(cx->out[0], cx->in[0]);
    const int64_t *perm;
    bool given = attr_ints(cx->n, AK_perm, &perm) > 0;
    for (int d = 0; d < m.dom->rank; d++)
        m.step[d] = m.stride[given ? perm[d] : m.dom->rank - 1 - d];
    forward(cx->out[0], cx->in[0], &m, map_steps, 0);
    return OK;
}

Status eval_expand(EvalCx *cx) {
    Move m = move_init(cx->out[0], cx->in[0]);
    int lead = m.dom->rank - m.src->rank;
    for (int d = 0; d < m.src->rank; d++)
        m.step[lead + d] = m.src->dim[d] == 1 ? 0 : m.stride[d];
    forward(cx->out[0], cx->in[0], &m, map_steps, 0);
    return OK;
}

static Move slice_move(EvalCx *cx, const EvalTensor *dom,
                       const EvalTensor *src) {
    Move m = move_init(dom, src);
    int64_t starts[MAX_RANK];
    eval_ints(cx->n, AK_starts, m.dom->rank, 0, starts);
    eval_ints(cx->n, AK_steps, m.dom->rank, 1, m.step);
    for (int d = 0; d < m.dom->rank; d++) {
        m.first += starts[d] * m.stride[d];
        m.step[d] *= m.stride[d];
    }
    return m;
}

Status eval_slice(EvalCx *cx) {
    Move m = slice_move(cx, cx->out[0], cx->in[0]);
    forward(cx->out[0], cx->in[0], &m, map_steps, 0);
    return OK;
}

Status eval_slice_grad(EvalCx *cx) {
    Move m = slice_move(cx, cx->in[0], cx->out[0]);
    adjoint(cx->out[0], cx->in[0], &m, map_steps, add_elem);
    return OK;
}

/* `part` occupies positions from `*at` on along the axis of `whole`;
   advances *at to the next part. */
static Move part_move(EvalCx *cx, const EvalTensor *part,
                      const EvalTensor *whole, int64_t *at) {
    Move m = move_init(part, whole);
    int axis = axis_norm(attr_int(cx->n, AK_axis), m.dom->rank);
    memcpy(m.step, m.stride, sizeof m.step);
    m.first = *at * m.stride[axis];
    *at += m.dom->dim[axis];
    return m;
}

Status eval_concat(EvalCx *cx) {
    int64_t at = 0;
    for (int k = 0; k < cx->n->nin; k++) {
        Move m = part_move(cx, cx->in[k], cx->out[0], &at);
        adjoint(cx->out[0], cx->in[k], &m, map_steps, copy_elem);
    }
    return OK;
}

Status eval_split(EvalCx *cx) {
    int64_t at = 0;
    for (int k = 0; k < cx->n->nout; k++) {
        Move m = part_move(cx, cx->out[k], cx->in[0], &at);
        forward(cx->out[k], cx->in[0], &m, map_steps, 0);
    }
    return OK;
}

static int64_t floor_mod(int64_t a, int64_t n) { return (a % n + n) % n; }

/* The source position of position i, counted from the first unpadded
   element; -1 if the pad is a constant. */
static int64_t pad_source(int64_t i, int64_t n, Str mode) {
    if (i >= 0 && i < n) return i;
    if (n == 0 || strcmp(mode, "constant") == 0) return -1;
    if (strcmp(mode, "edge") == 0) return i < 0 ? 0 : n - 1;
    if (strcmp(mode, "wrap") == 0) return floor_mod(i, n);
    if (n == 1) return 0; /* reflect */
    i = floor_mod(i, 2 * (n - 1));
    return i < n ? i : 2 * (n - 1) - i;
}

/* p = begin pads */
static int64_t map_pad(const Move *m, const int64_t *idx) {
    int64_t at = 0;
    for (int d = 0; d < m->dom->rank; d++) {
        int64_t j = pad_source(idx[d] - m->p[d], m->src->dim[d], m->mode);
        if (j < 0) return -1;
        at += j * m->stride[d];
    }
    return at;
}

static Move pad_move(EvalCx *cx, const EvalTensor *dom, const EvalTensor *src) {
    Move m = move_init(dom, src);
    eval_ints(cx->n, AK_pads, m.dom->rank, 0, m.p);
    m.mode = attr_str(cx->n, AK_mode);
    return m;
}

Status eval_pad(EvalCx *cx) {
    Move m = pad_move(cx, cx->out[0], cx->in[0]);
    forward(cx->out[0], cx->in[0], &m, map_pad, attr_float(cx->n, AK_value));
    return OK;
}

Status eval_pad_grad(EvalCx *cx) {
    Move m = pad_move(cx, cx->in[0], cx->out[0]);
    adjoint(cx->out[0], cx->in[0], &m, map_pad, add_elem);
    return OK;
}

static int64_t map_trilu(const Move *m, const int64_t *idx) {
    int r = m->dom->rank;
    int64_t diag = idx[r - 1] - idx[r - 2];
    bool outside = m->upper ? diag < m->k : diag > m->k;
    return outside ? -1 : map_steps(m, idx);
}

Status eval_trilu(EvalCx *cx) {
    Move m = move_init(cx->out[0], cx->in[0]);
    memcpy(m.step, m.stride, sizeof m.step);
    m.upper = attr_int(cx->n, AK_upper) != 0;
    m.k = attr_int(cx->n, AK_k);
    forward(cx->out[0], cx->in[0], &m, map_trilu, 0);
    return OK;
}

/* idx = data index before the axis, index of `index`, data index after it */
static int64_t map_gather(const Move *m, const int64_t *idx) {
    const Type *it = type_get(m->index->type);
    int64_t k = 0, at = 0, rows = m->src->dim[m->axis];
    for (int d = 0; d < it->rank; d++) k = k * it->dim[d] + idx[m->axis + d];
    int64_t row = m->index->i[k];
    if (row < 0) row += rows;
    if (row < 0 || row >= rows) return -1;
    for (int d = 0; d < m->src->rank; d++)
        at += m->stride[d] * (d < m->axis    ? idx[d]
                              : d == m->axis ? row
                                             : idx[d - 1 + it->rank]);
    return at;
}

static Move gather_move(EvalCx *cx, const EvalTensor *dom,
                        const EvalTensor *src) {
    Move m = move_init(dom, src);
    m.axis = (int)attr_int(cx->n, AK_axis);
    m.index = cx->in[1];
    return m;
}

Status eval_gather(EvalCx *cx) {
    Move m = gather_move(cx, cx->out[0], cx->in[0]);
    forward(cx->out[0], cx->in[0], &m, map_gather, 0);
    return OK;
}

/* operands: the terms to add, and their positions */
Status eval_scatter_add(EvalCx *cx) {
    Move m = gather_move(cx, cx->in[0], cx->out[0]);
    adjoint(cx->out[0], cx->in[0], &m, map_gather, add_elem);
    return OK;
}
