/* sha1.c: FIPS 180-4, section 6.1. */
#include "frontend/onnx/sha1.h"

void sha1_init(Sha1 *s) {
    *s = (Sha1){
        .h = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

static uint32_t rot(uint32_t x, int n) { return x << n | x >> (32 - n); }

static void round_function(int t, const uint32_t v[5], uint32_t *f,
                           uint32_t *k) {
    if (t < 20) {
        *f = (v[1] & v[2]) | (~v[1] & v[3]);
        *k = 0x5a827999;
    } else if (t < 40) {
        *f = v[1] ^ v[2] ^ v[3];
        *k = 0x6ed9eba1;
    } else if (t < 60) {
        *f = (v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3]);
        *k = 0x8f1bbcdc;
    } else {
        *f = v[1] ^ v[2] ^ v[3];
        *k = 0xca62c1d6;
    }
}

static void compress(Sha1 *s) {
    uint32_t w[80], v[5], f, k;
    for (int t = 0; t < 16; t++) {
        const uint8_t *b = s->block + 4 * t;
        w[t] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 |
               (uint32_t)b[2] << 8 | b[3];
    }
    for (int t = 16; t < 80; t++)
        w[t] = rot(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int i = 0; i < 5; i++) v[i] = s->h[i];
    for (int t = 0; t < 80; t++) {
        round_function(t, v, &f, &k);
        uint32_t x = rot(v[0], 5) + f + v[4] + k + w[t];
        v[4] = v[3];
        v[3] = v[2];
        v[2] = rot(v[1], 30);
        v[1] = v[0];
        v[0] = x;
    }
    for (int i = 0; i < 5; i++) s->h[i] += v[i];
}

void sha1_add(Sha1 *s, const void *p, size_t n) {
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        s->block[s->len++ % 64] = b[i];
        if (s->len % 64 == 0) compress(s);
    }
}

void sha1_end(Sha1 *s, uint8_t digest[20]) {
    uint64_t bits = s->len * 8;
    uint8_t one = 0x80, zero = 0, tail[8];
    sha1_add(s, &one, 1);
    while (s->len % 64 != 56) sha1_add(s, &zero, 1);
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha1_add(s, tail, 8);
    for (int i = 0; i < 20; i++)
        digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
