/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c: allocations that fail. */
#define _GNU_SOURCE
#include "tests/support/tiny_session.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- memory -------------------------------------------------------------- */

typedef struct Hook {
    int calls, fail_at; /* -1: never */
    bool rest;          /* all behind it, too */
    int64_t live, bytes;
} Hook;

static void *hook_alloc(void *ctx, size_t bytes, size_t align) {
    Hook *h = ctx;
    int at = h->calls++;
    if (at == h->fail_at) return NULL;
    if (h->rest && h->fail_at >= 0 && at > h->fail_at) return NULL;
    h->live++;
    h->bytes += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void hook_free(void *ctx, void *p, size_t bytes) {
    Hook *h = ctx;
    h->live--;
    h->bytes -= (int64_t)bytes;
    free(p);
}

/* All allocations of an accumulating session; false if some call returned
   AMPC_ERR_MEMORY. */
static bool use_all(Hook *h, const char *path) {
    const ampc_api *a = tiny_api();
    ampc_options o = {.size = sizeof o,
                      .threads = 1,
                      .alloc = hook_alloc,
                      .free = hook_free,
                      .alloc_ctx = h};
    ampc_session *s = NULL;
    char err[200];
    float before[6], after[6], y[8];
    bool ok = true;
    Batch b;
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    ampc_status st =
        a->open(tiny_handle(&tiny_accumulating), &o, &s, err, sizeof err);
    if (st != AMPC_OK) {
        CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
        CHECK_HAS(err, "out of memory");
        return false;
    }
    read_w(s, before);
#define TRY_MEMORY(call)                                                       \
    do {                                                                       \
        st = (call);                                                           \
        CHECK_MSG(st == AMPC_OK || st == AMPC_ERR_MEMORY, "%s", a->error(s));  \
        if (st == AMPC_ERR_MEMORY) {                                           \
            ok = false;                                                        \
            read_w(s, after);                                                  \
            CHECK_MEM(before, after, sizeof before);                           \
            CHECK_EQ_INT((call), AMPC_OK); /* memory is back */                \
        }                                                                      \
        read_w(s, before);                                                     \
    } while (0)
    TRY_MEMORY(a->step(s, batch(&b, 0), 2, NULL));
    TRY_MEMORY(a->step(s, batch(&b, 1), 2, NULL));
    TRY_MEMORY(a->predict(s, batch(&b, 1), 1, 4, &out, 1));
    TRY_MEMORY(a->set_cursor(s, "{\"epoch\":1}"));
    TRY_MEMORY(a->save(s, path));
    TRY_MEMORY(a->load(s, path));
    TRY_MEMORY(a->resume(s, path));
    a->close(s);
    return ok;
}

TEST_CASE(runtime, every_allocation_may_fail) {
    int n = 0;
    const char *path = test_tmp("memory.safetensors");
    for (bool done = false; !done && n < 1000; n++) {
        Hook h = {.fail_at = n};
        done = use_all(&h, path);
        CHECK_EQ_INT(h.live, 0);
        CHECK_EQ_INT(h.bytes, 0);
    }
    CHECK(n > 12 && n < 1000);
}

typedef enum Call { OPEN, STEP, PREDICT, SAVE, RESUME, CALLS } Call;

static ampc_status call(Call c, ampc_session *s, const char *path, int i) {
    const ampc_api *a = tiny_api();
    float y[8];
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    Batch b;
    batch(&b, i);
    return c == STEP      ? a->step(s, b.in, 2, NULL)
           : c == PREDICT ? a->predict(s, b.in, 1, TINY_BATCH, &out, 1)
           : c == SAVE    ? a->save(s, path)
                          : a->resume(s, path);
}

/* Allocation number `at` of a call fails, alone or with all later ones;
   false: there are fewer. i: which module, how many threads. */
static bool fails_at(Call c, int at, int i, const char *path) {
    static const AmpcModule *const modules[] = {
        &tiny_module, &tiny_accumulating, &tiny_other};
    const AmpcModule *m = modules[i % 3];
    const ampc_api *a = tiny_api();
    Hook h = {.fail_at = c == OPEN ? at : -1, .rest = i / 3 % 2};
    ampc_options o = {.size = sizeof o,
                      .threads = 1 + i / 6 % 3,
                      .alloc = hook_alloc,
                      .free = hook_free,
                      .alloc_ctx = &h};
    ampc_session *s = NULL;
    char err[200] = "";
    float before[6], after[6];
    ampc_status st = a->open(tiny_handle(m), &o, &s, err, sizeof err);
    if (c == OPEN && st != AMPC_OK) {
        CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
        CHECK_HAS(err, "out of memory");
    } else if (CHECK_EQ_INT(st, AMPC_OK) && c != OPEN) {
        if (c != STEP) CHECK_EQ_INT(call(STEP, s, path, i), AMPC_OK);
        CHECK_EQ_INT(call(SAVE, s, path, 0), AMPC_OK);
        read_w(s, before);
        h.fail_at = h.calls + at;
        st = call(c, s, path, i + 1);
        h.fail_at = -1;
        if (st != AMPC_OK) {
            CHECK_EQ_INT(st, AMPC_ERR_MEMORY);
            CHECK_HAS(a->error(s), "out of memory");
            read_w(s, after);
            CHECK_MEM(before, after, sizeof before);
            /* the saved state is unchanged, and memory is freed */
            CHECK_EQ_INT(call(RESUME, s, path, 0), AMPC_OK);
            read_w(s, after);
            CHECK_MEM(before, after, sizeof before);
            CHECK_EQ_INT(call(c, s, path, i + 1), AMPC_OK);
        }
    }
    a->close(s);
    CHECK_EQ_INT(h.live, 0);
    CHECK_EQ_INT(h.bytes, 0);
    return st != AMPC_OK;
}

/* Bytes from the host's allocator, without the session itself. */
TEST_CASE(runtime, memory_by_kind) {
    enum { SESSION = 64 << 10 };
    Hook h = {.fail_at = -1};
    const ampc_api *a = tiny_api();
    ampc_options o = {.size = sizeof o,
                      .threads = 1,
                      .alloc = hook_alloc,
                      .free = hook_free,
                      .alloc_ctx = &h};
    ampc_session *s = NULL;
    Batch b;
    REQUIRE(a->open(tiny_handle(&tiny_accumulating), &o, &s, NULL, 0) ==
            AMPC_OK);
    for (int i = 0; i < 3; i++) {
        ampc_memory_info m = {.size = sizeof m};
        CHECK_EQ_INT(a->memory(s, &m), AMPC_OK);
        CHECK((int64_t)m.total <= h.bytes);
        CHECK((int64_t)m.total + SESSION >= h.bytes);
        CHECK_EQ_INT(m.total, m.parameters + m.copies + m.state + m.gradients +
                                  m.activations + m.workspace);
        CHECK(m.parameters && m.state && m.activations);
        CHECK(m.workspace < SESSION && m.host == 0);
        CHECK(m.gradients || i == 0);
        CHECK_EQ_INT(a->step(s, batch(&b, i), 2, NULL), AMPC_OK);
    }
    a->close(s);
    CHECK_EQ_INT(h.bytes, 0);
}

TEST_CASE(runtime, allocations_of_each_call_fail) {
    static const char *const names[] = {"open", "step", "predict", "save",
                                        "resume"};
    const char *path = test_tmp("call.safetensors");
    int want = test_slow() ? 1000 : 40;
    for (Call c = OPEN; c < CALLS; c++) {
        int failed = 0, at = 0;
        for (int i = 0; failed < want; i++) {
            if (fails_at(c, at, i, path)) {
                failed++, at++;
            } else {
                if (!CHECK_MSG(at > 0, "%s allocates nothing", names[c])) break;
                at = 0;
            }
        }
        printf("%s: %d failed allocations\n", names[c], failed);
    }
    CHECK_EQ_INT(test_temporaries(), 0);
}
