/* SPDX-License-Identifier: Apache-2.0 */
/* saved.c: see saved.h. */
#include "tests/runtime/checkpoint/saved.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

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
