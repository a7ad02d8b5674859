/* SPDX-License-Identifier: Apache-2.0 */
/* saved.h: saves sessions and compares their whole content. */
#ifndef AMPC_TESTS_RUNTIME_CHECKPOINT_SAVED_H
#define AMPC_TESTS_RUNTIME_CHECKPOINT_SAVED_H

#include "runtime/api/session.h"
#include "tests/harness.h"
#include "tests/support/tiny_session.h"

/* Every variable's bytes, and the cursor. */
typedef struct Snapshot {
    char bytes[1024];
    size_t n;
    char cursor[64];
} Snapshot;

Snapshot snapshot(ampc_session *s);
void check_same(const Snapshot *a, const Snapshot *b);
void check_ok(ampc_session *s, ampc_status status);

/* The checksum of a file, computed bit by bit. */
uint32_t crc32_slow(const uint8_t *p, size_t n);

#endif
