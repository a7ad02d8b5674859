/* SPDX-License-Identifier: Apache-2.0 */
/* tiny_session.c: see tiny_session.h. */
#include "tests/support/tiny_session.h"

#include "tests/support/guarded.h"

const ampc_input *batch(Batch *b, int i) {
    tiny_batch(i, b->x, b->target);
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("target", b->target, sizeof b->target, AMPC_DTYPE_F32);
    return b->in;
}

ampc_session *open_module(const AmpcModule *m, int threads) {
    static Guarded memory;
    ampc_options o = {.size = sizeof o,
                      .threads = threads,
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

ampc_metrics train(ampc_session *s, int first, int n) {
    ampc_metrics m = {.size = sizeof m};
    Batch b;
    for (int i = 0; i < n; i++)
        CHECK_EQ_INT(tiny_api()->step(s, batch(&b, first + i), 2, &m), AMPC_OK);
    return m;
}

void read_w(ampc_session *s, float w[6]) {
    ampc_output out = ampc_out(NULL, w, 24, AMPC_DTYPE_F32);
    CHECK_EQ_INT(tiny_api()->read_variable(s, "w", &out), AMPC_OK);
}
