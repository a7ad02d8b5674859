/* SPDX-License-Identifier: Apache-2.0 */
/* saved.c: see saved.h. */
#include "tests/runtime/checkpoint/saved.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/guarded.h"

ampc_session *open_module(const AmpcModule *m) {
    static Guarded memory;
    ampc_options o = {.size = sizeof o,
                      .threads = 1,
                      .alloc = guarded_alloc,
                      .free = guarded_free,
                      .alloc_ctx = &memory};
    ampc_session *s = NULL;
    char err[256];
    ampc_status status =
        tiny_api()->open(tiny_handle(m), &o, &s, err, sizeof err);
    if (!CHECK_MSG(status == AMPC_OK, "%s", err)) harness_leave();
    return s;
}

void train(ampc_session *s, int first, int n) {
    float x[TINY_BATCH * TINY_IN], t[TINY_BATCH * TINY_OUT];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int i = 0; i < n; i++) {
        tiny_batch(first + i, x, t);
        if (!CHECK_EQ_INT(tiny_api()->step(s, in, 2, NULL), AMPC_OK)) return;
    }
}

Snapshot snapshot(ampc_session *s) {
    Snapshot shot = {.n = 0};
    for (uint32_t i = 0; i < s->m->nvar; i++) {
        const PlanVar *v = &s->m->vars[i];
        if (v->kind == PLAN_SHADOW || (v->kind == PLAN_GRAD && !s->micro))
            continue;
        memcpy(shot.bytes + shot.n, cpu_var(s, i), v->bytes);
        shot.n += v->bytes;
    }
    snprintf(shot.cursor, sizeof shot.cursor, "%s", tiny_api()->get_cursor(s));
    return shot;
}

void check_same(const Snapshot *a, const Snapshot *b) {
    CHECK_EQ_INT(a->n, b->n);
    CHECK_MEM(a->bytes, b->bytes, a->n);
    CHECK_STR(a->cursor, b->cursor);
}

void check_ok(ampc_session *s, ampc_status status) {
    CHECK_MSG(status == AMPC_OK, "%s", tiny_api()->error(s));
}

uint32_t crc32_slow(const uint8_t *p, size_t n) {
    uint32_t crc = ~0u;
    for (; n--; p++) {
        crc ^= *p;
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}
