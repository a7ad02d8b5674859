/* crc.c: see crc.h. */
#include "runtime/crc.h"

#include <string.h>

void crc_init(Crc *c) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) v = v >> 1 ^ (v & 1 ? 0xedb88320u : 0);
        c->t[0][i] = v;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            c->t[k][i] = c->t[k - 1][i] >> 8 ^ c->t[0][c->t[k - 1][i] & 0xff];
}

uint32_t crc_add(const Crc *c, uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= crc;
        crc = c->t[7][lo & 0xff] ^ c->t[6][lo >> 8 & 0xff] ^
              c->t[5][lo >> 16 & 0xff] ^ c->t[4][lo >> 24] ^
              c->t[3][hi & 0xff] ^ c->t[2][hi >> 8 & 0xff] ^
              c->t[1][hi >> 16 & 0xff] ^ c->t[0][hi >> 24];
    }
    while (n--) crc = crc >> 8 ^ c->t[0][(crc ^ *p++) & 0xff];
    return ~crc;
}
