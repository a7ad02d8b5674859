/* SPDX-License-Identifier: Apache-2.0 */
/* utf8.h: characters of UTF-8 (RFC 3629), for the compiler and the module. */
#ifndef AMPC_UTF8_H
#define AMPC_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length of the well-formed character at p, which ends before `end`; 0: it
   is malformed. */
static inline size_t utf8_length(const char *p, const char *end) {
    const unsigned char *s = (const unsigned char *)p;
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    if (n > (size_t)(end - p)) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    /* overlong, a surrogate, beyond U+10FFFF */
    bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

#endif
