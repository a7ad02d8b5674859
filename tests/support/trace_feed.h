/* SPDX-License-Identifier: Apache-2.0 */
/* trace_feed.h: the traces of tests/traces as inputs, step by step. */
#ifndef AMPC_TESTS_SUPPORT_TRACE_FEED_H
#define AMPC_TESTS_SUPPORT_TRACE_FEED_H

#include "tests/support/compiled.h"

/* Bytes of one step's part: all dims except the first. */
size_t trace_slice_bytes(const TraceTensor *t);
const char *trace_slice(const TraceTensor *t, long step);

/* "x" and "target" of one step, copied to aligned memory. */
typedef struct TraceFeed {
    ampc_input in[2];
    void *mem[2];
} TraceFeed;
TraceFeed trace_feed(const Trace *t, long step);
void trace_feed_free(TraceFeed *f);

#endif
