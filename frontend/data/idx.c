/* SPDX-License-Identifier: Apache-2.0 */
/* idx.c: the format of MNIST's files: two zeros, a type byte, the rank, each
   axis as a big-endian u32, the elements big-endian.                        */
#include "frontend/data/array.h"

static int idx_type_of(unsigned char byte) {
    for (int i = 0; i < AMPC_NDTYPE; i++)
        if (byte && dtype_info[i].idx == byte) return i;
    return -1;
}

static bool is_idx(const unsigned char *p, size_t n) {
    return n >= 4 && !p[0] && !p[1] && idx_type_of(p[2]) >= 0;
}

static bool idx_parse(const unsigned char *p, size_t n, ArrayHead *h) {
    h->dtype = (ampc_dtype)idx_type_of(p[2]);
    h->rank = p[3];
    h->data = 4 + 4 * (size_t)p[3];
    h->big = true;
    if (h->rank > AMPC_RANK_LIMIT) {
        snprintf(h->why, sizeof h->why, "IDX file: its rank is %d", h->rank);
        return false;
    }
    if (n < h->data) {
        snprintf(h->why, sizeof h->why, "truncated IDX file");
        return false;
    }
    for (int i = 0; i < h->rank; i++) {
        const unsigned char *q = p + 4 + 4 * i;
        h->dim[i] = (int64_t)q[0] << 24 | q[1] << 16 | q[2] << 8 | q[3];
    }
    return true;
}

const ArrayFormat idx_format = {
    .name = "IDX", .is = is_idx, .parse = idx_parse};
