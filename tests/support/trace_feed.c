/* SPDX-License-Identifier: Apache-2.0 */
/* trace_feed.c: inputs of a trace's steps (trace_feed.h). */
#include "tests/support/trace_feed.h"

#include <stdlib.h>
#include <string.h>

size_t trace_slice_bytes(const TraceTensor *t) {
    return t->bytes / (size_t)t->dim[0];
}

const char *trace_slice(const TraceTensor *t, long step) {
    return t->data + trace_slice_bytes(t) * (size_t)step;
}

TraceFeed trace_feed(const Trace *t, long step) {
    static const char *const names[] = {"x", "target"};
    TraceFeed f;
    for (int i = 0; i < 2; i++) {
        const TraceTensor *x = trace_find(t, names[i]);
        f.mem[i] = malloc(trace_slice_bytes(x));
        memcpy(f.mem[i], trace_slice(x, step), trace_slice_bytes(x));
        f.in[i] = ampc_in(names[i], f.mem[i], trace_slice_bytes(x), x->dtype);
    }
    return f;
}

void trace_feed_free(TraceFeed *f) {
    free(f->mem[0]);
    free(f->mem[1]);
}
