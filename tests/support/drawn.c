/* SPDX-License-Identifier: Apache-2.0 */
/* drawn.c: see drawn.h. */
#include "tests/support/drawn.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* 24 bits in [0, 1): splitmix64 of the name's hash and the index */
static double uniform(uint64_t hash, uint64_t i) {
    uint64_t z = hash + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 40) / 0x1p24;
}

static uint64_t hash_of(const char *name, int draw) {
    uint64_t h = 0xcbf29ce484222325u;
    char text[200];
    snprintf(text, sizeof text, "%s/%d", name, draw);
    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    return h;
}

void *drawn_numbers(const char *name, int draw, size_t n, bool whole) {
    uint64_t h = hash_of(name, draw);
    float *f = calloc(n + 1, sizeof *f);
    int64_t *ids = calloc(n + 1, sizeof *ids);
    REQUIRE(f && ids);
    for (size_t i = 0; i < n; i++) {
        double v = uniform(h, i);
        if (whole) {
            ids[i] = (int64_t)floor(v * atoi(name + 1));
        } else if (!strncmp(name, "n_", 2)) {
            v = -2;
            for (uint64_t k = 0; k < 4; k++) v += uniform(h, 4 * i + k);
            f[i] = (float)(v * sqrt(3));
        } else {
            bool input = !strncmp(name, "u_", 2);
            f[i] = (float)(input ? v : (v - 0.5) * 0.6);
        }
    }
    free(whole ? (void *)f : ids);
    return whole ? (void *)ids : f;
}
