/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: see page.h. */
#include "frontend/page/page.h"

#include <string.h>

/* "<" occurs only in strings and must not end the element around them. */
static void put_inert(const char *json, StrBuf *sb) {
    while (*json) {
        size_t n = strcspn(json, "<");
        sb_putn(sb, json, n);
        json += n;
        if (!*json) return;
        sb_puts(sb, "\\u003c");
        json++;
    }
}

void page_put(const char *const *page, const char *json, StrBuf *sb) {
    static const char hole[] = "@DATA@";
    for (; *page; page++) {
        const char *at = strstr(*page, hole);
        sb_putn(sb, *page, at ? (size_t)(at - *page) : strlen(*page));
        if (!at) continue;
        put_inert(json, sb);
        sb_puts(sb, at + strlen(hole));
    }
}
