/* SPDX-License-Identifier: Apache-2.0 */
/* attend.h: how attention divides its work. */
#ifndef AMPC_CPU_ATTEND_H
#define AMPC_CPU_ATTEND_H

#include "runtime/cpu/kernels.h"

/* ATTEND_QUERIES is a multiple of every level's widest tile. */
enum { ATTEND_QUERIES = 48, ATTEND_KEYS = 128, ATTEND_CHUNK = 4 };

typedef struct AttendBlocks {
    int64_t chunks;  /* chunks (ATTEND_CHUNK blocks of queries) per matrix */
    int64_t queries; /* blocks of queries per matrix */
    int64_t d, e;    /* features, rounded up                                 */
    int64_t worker, worker_grad; /* floats that each worker needs            */
} AttendBlocks;

AttendBlocks attend_blocks(const LibAttend *p);

#endif
