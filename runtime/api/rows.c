/* SPDX-License-Identifier: Apache-2.0 */
/* rows.c: inputs with more or fewer samples than a batch.

   Fewer samples than a batch are filled up with copies of the last one; more
   are taken batch by batch.  The copies do not count: program micro masks
   rows from ampc.valid on, and evaluation and prediction leave them out. */
#include <string.h>

#include "runtime/api/session.h"
#include "runtime/base/contract.h"
#include "runtime/base/try.h"

bool rows_has(const ampc_session *s, const PlanTensor *t) {
    return t->rank > 0 && s->batch > 0 && t->dim[0] == s->batch;
}

/* Bytes of one sample, in the given dtype; 0: the input has no samples. */
static uint64_t sample_bytes(const ampc_session *s, const PlanTensor *t,
                             const ampc_input *in) {
    uint64_t bytes = 0;
    if (!rows_has(s, t)) return 0;
    dense_bytes(given_dtype(t, in), t->rank, t->dim, &bytes);
    return bytes / (uint64_t)s->batch;
}

static bool shape_fits(const PlanTensor *t, const ampc_input *in, int64_t n) {
    if (in->rank == -1) return true;
    bool same = (uint32_t)in->rank == t->rank && in->shape && in->shape[0] == n;
    for (uint32_t i = 1; same && i < t->rank; i++)
        same = in->shape[i] == t->dim[i];
    return same;
}

int64_t rows_given(const ampc_session *s, int program, const ampc_input *in,
                   size_t nin) {
    int64_t n = -1;
    if (program < 0 || !in || !nin || !input_sized(in)) return -1;
    const PlanProgram *p = &s->m->programs[program];
    for (size_t i = 0; i < nin; i++) {
        const ampc_input *a = input_at(in, i);
        int at = input_place(s->m, p, a, i);
        if (at < 0) return -1;
        const PlanTensor *t = &s->m->tensors[p->in0 + (uint32_t)at];
        uint64_t each = sample_bytes(s, t, a);
        if (!each) continue;
        int64_t k = (int64_t)(a->bytes / each);
        if (a->bytes % each || (n >= 0 && k != n) || !shape_fits(t, a, k))
            return -1;
        n = k;
    }
    return n;
}

static size_t rounded(size_t n) { return (n + 63) & ~(size_t)63; }

ampc_status rows_take(ampc_session *s, int program, const ampc_input *in,
                      size_t nin, int64_t first, int64_t n,
                      const ampc_input **out) {
    const PlanProgram *p = &s->m->programs[program];
    CONTRACT(first >= 0 && n > 0 && n <= s->batch);
    size_t need = rounded(nin * sizeof *in);
    for (uint32_t i = 0; i < p->nin; i++) {
        uint64_t bytes = 0;
        const PlanTensor *t = &s->m->tensors[p->in0 + i];
        dense_bytes(t->dtype, t->rank, t->dim, &bytes);
        need += rounded((size_t)bytes);
    }
    TRY(room_for(s, &s->in.rows, need));
    ampc_input *to = (ampc_input *)(void *)s->in.rows.data;
    char *room = s->in.rows.data + rounded(nin * sizeof *in);
    for (size_t i = 0; i < nin; i++) {
        const ampc_input *a = input_at(in, i);
        int at = input_place(s->m, p, a, i);
        const PlanTensor *t = &s->m->tensors[p->in0 + (uint32_t)at];
        size_t each = (size_t)sample_bytes(s, t, a);
        memset(&to[i], 0, sizeof *to);
        memcpy(&to[i], a, a->size < sizeof *to ? a->size : sizeof *to);
        to[i].size = sizeof *to;
        if (!each) continue;
        const char *from = (const char *)a->data + (size_t)first * each;
        to[i].rank = -1;
        to[i].bytes = each * (size_t)s->batch;
        to[i].data = from;
        if (n == s->batch || !a->data) continue;
        if (input_in_device(a))
            return session_fail(s, AMPC_ERR_ARGUMENT,
                                "input '%.200s' lies in the memory of a "
                                "device: give whole batches of %lld samples",
                                t->name, (long long)s->batch);
        to[i].data = room;
        memcpy(room, from, (size_t)n * each);
        for (int64_t k = n; k < s->batch; k++)
            memcpy(room + (size_t)k * each, from + (size_t)(n - 1) * each,
                   each);
        room += rounded(to[i].bytes);
        CONTRACT(room <= s->in.rows.data + s->in.rows.bytes);
    }
    *out = to;
    return AMPC_OK;
}

/* ---- training ------------------------------------------------------------ */

static ampc_status set_valid(ampc_session *s, int64_t n) {
    CONTRACT(n > 0 && n <= s->own_batch);
    uint64_t value = 0;
    int v = s->known[VAR_VALID];
    if (v < 0 || !scalar_encode(s->m->vars[v].dtype, (double)n, &value))
        return AMPC_OK;
    return s->backend->put(s, var_ref((uint32_t)v, 0), &value,
                           s->m->vars[v].bytes);
}

ampc_status rows_begin(ampc_session *s, const ampc_input **in, size_t nin) {
    static const ProgramId ids[] = {PROG_TRAIN, PROG_LOCATE, PROG_MICRO};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        sizes_choose(s, ids[i], *in, nin);
    s->valid = s->batch;
    TRY(sizes_pad(s, PROG_MICRO, in, nin));
    int64_t n = rows_given(s, s->program[PROG_MICRO], *in, nin);
    if (n < 0 || n >= s->batch) return AMPC_OK;
    if (n && !info_int(s->m, "masks", 0))
        return session_fail(s, AMPC_ERR_ARGUMENT,
                            "%lld samples given: a step takes %lld; rows that "
                            "only fill a batch cannot be masked, because "
                            "samples of this model affect each other "
                            "(BatchNorm) or its loss does not add up over "
                            "samples",
                            (long long)n, (long long)s->batch);
    s->valid = n;
    if (!n) return AMPC_OK;
    ampc_status status =
        rows_take(s, s->program[PROG_MICRO], *in, nin, 0, n, in);
    return status == AMPC_OK ? set_valid(s, n) : status;
}

ampc_status rows_end(ampc_session *s, ampc_status status) {
    bool part = s->valid > 0 && s->valid < s->own_batch;
    s->valid = s->own_batch;
    if (!part) return status;
    ampc_status reset = set_valid(s, s->own_batch);
    return status == AMPC_OK ? reset : status;
}

/* A micro-step without samples still draws its random numbers, so that later
   ones do not depend on the number of ranks. */
ampc_status rows_skip(ampc_session *s) {
    int v = s->known[VAR_RNG];
    int64_t count;
    if (v < 0 || s->m->vars[v].bytes != 2 * sizeof count) return AMPC_OK;
    PlanRef at = var_ref((uint32_t)v, sizeof count);
    ampc_status status = s->backend->get(s, at, &count, sizeof count);
    count++;
    return status == AMPC_OK ? s->backend->put(s, at, &count, sizeof count)
                             : status;
}
