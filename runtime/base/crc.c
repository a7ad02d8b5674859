/* SPDX-License-Identifier: Apache-2.0 */
/* crc.c: see crc.h. */
#include "runtime/base/crc.h"

#include <string.h>

#include "runtime/base/host.h"

#include "runtime/base/glibc.h" /* last */

/* t[k][i]: the CRC of byte i followed by k zero bytes */
static uint32_t t[8][256];
static HostOnce once = HOST_ONCE;

static void make_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int k = 0; k < 8; k++) v = v >> 1 ^ (v & 1 ? 0xedb88320u : 0);
        t[0][i] = v;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 0xff];
}

uint32_t crc_add(uint32_t crc, const uint8_t *p, size_t n) {
    host_once(&once, make_table);
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= crc;
        crc = t[7][lo & 0xff] ^ t[6][lo >> 8 & 0xff] ^ t[5][lo >> 16 & 0xff] ^
              t[4][lo >> 24] ^ t[3][hi & 0xff] ^ t[2][hi >> 8 & 0xff] ^
              t[1][hi >> 16 & 0xff] ^ t[0][hi >> 24];
    }
    while (n--) crc = crc >> 8 ^ t[0][(crc ^ *p++) & 0xff];
    return ~crc;
}
