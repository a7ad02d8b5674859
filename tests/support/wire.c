/* SPDX-License-Identifier: Apache-2.0 */
/* wire.c: see wire.h */
#include "tests/support/wire.h"

#include <string.h>

static void put_varint(StrBuf *sb, uint64_t n) {
    for (; n >= 128; n >>= 7) sb_putn(sb, (char[]){(char)(n | 128)}, 1);
    sb_putn(sb, (char[]){(char)n}, 1);
}

void wire_number(StrBuf *sb, int field, uint64_t n) {
    put_varint(sb, (uint64_t)field << 3);
    put_varint(sb, n);
}

void wire_bytes(StrBuf *sb, int field, const void *p, size_t n) {
    put_varint(sb, (uint64_t)field << 3 | 2);
    put_varint(sb, n);
    sb_putn(sb, p, n);
}

void wire_text(StrBuf *sb, int field, const char *text) {
    wire_bytes(sb, field, text, strlen(text));
}

void wire_message(StrBuf *sb, int field, StrBuf *message) {
    wire_bytes(sb, field, message->data, message->len);
    sb_free(message);
    *message = (StrBuf){0};
}
