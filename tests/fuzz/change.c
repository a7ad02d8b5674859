/* SPDX-License-Identifier: Apache-2.0 */
/* change.c: changes an input; it knows only a dictionary. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

int64_t fuzz_odd_number(void) {
    static const int64_t odd[] = {0,
                                  1,
                                  -1,
                                  2,
                                  -2,
                                  3,
                                  4,
                                  7,
                                  8,
                                  9,
                                  16,
                                  64,
                                  100,
                                  127,
                                  128,
                                  255,
                                  256,
                                  1024,
                                  65535,
                                  65536,
                                  INT32_MAX,
                                  INT32_MIN,
                                  UINT32_MAX,
                                  (int64_t)1 << 40,
                                  (int64_t)1 << 62,
                                  INT64_MAX,
                                  INT64_MIN};
    int64_t v = odd[fuzz_below(sizeof odd / sizeof *odd)];
    return fuzz_below(4) ? v : (int64_t)((uint64_t)v + fuzz_below(5) - 2);
}

/* Replaces the bytes [at, at + old) by `with`; changes nothing if there is
   not enough room. */
static size_t replace(uint8_t *p, size_t n, size_t at, size_t old,
                      const void *with, size_t size) {
    if (n - old + size > FUZZ_MOST) return n;
    memmove(p + at + size, p + at + old, n - at - old);
    if (size) memcpy(p + at, with, size);
    return n - old + size;
}

static void put_number(uint8_t out[8], uint64_t v, size_t width, bool big) {
    for (size_t i = 0; i < width; i++)
        out[big ? width - 1 - i : i] = (uint8_t)(v >> 8 * i);
}

static size_t flip(uint8_t *p, size_t n) {
    if (n) p[fuzz_below(n)] ^= (uint8_t)(1 << fuzz_below(8));
    return n;
}

static size_t set_byte(uint8_t *p, size_t n) {
    if (n) p[fuzz_below(n)] = (uint8_t)fuzz_random();
    return n;
}

static size_t set_number(uint8_t *p, size_t n) {
    size_t width = (size_t)1 << fuzz_below(4);
    uint8_t number[8];
    if (n < width) return n;
    put_number(number, (uint64_t)fuzz_odd_number(), width, fuzz_below(4) == 0);
    memcpy(p + fuzz_below(n - width + 1), number, width);
    return n;
}

/* Replaces bytes of the input that the program compared by the bytes with
   which it compared them. */
static size_t set_compared(uint8_t *p, size_t n) {
    size_t width = (size_t)1 << fuzz_below(4);
    bool big = fuzz_below(4) == 0;
    uint64_t from, to;
    uint8_t a[8], b[8];
    if (n < width || !cover_compared(&from, &to)) return n;
    put_number(a, from, width, big);
    put_number(b, to, width, big);
    size_t start = fuzz_below(n - width + 1);
    for (size_t i = 0; i + width <= n; i++) {
        size_t at = (start + i) % (n - width + 1);
        if (memcmp(p + at, a, width) != 0) continue;
        memcpy(p + at, b, width);
        break;
    }
    return n;
}

/* A number in decimal. */
static size_t set_digits(uint8_t *p, size_t n) {
    size_t at = fuzz_below(n), end;
    while (at < n && (p[at] < '0' || p[at] > '9')) at++;
    for (end = at; end < n && p[end] >= '0' && p[end] <= '9';) end++;
    if (at == end) return n;
    char text[32];
    int size = snprintf(text, sizeof text, "%" PRId64, fuzz_odd_number());
    return replace(p, n, at, end - at, text, (size_t)size);
}

static size_t cut(uint8_t *p, size_t n) {
    size_t at = fuzz_below(n), size = 1 + fuzz_below(fuzz_below(4) ? 8 : n);
    return n ? replace(p, n, at, size < n - at ? size : n - at, NULL, 0) : 0;
}

static size_t shorten(uint8_t *p, size_t n) {
    (void)p;
    return n ? fuzz_below(n) : 0;
}

static size_t insert(uint8_t *p, size_t n) {
    uint8_t bytes[8];
    uint64_t v = fuzz_below(2) ? fuzz_random() : 0;
    memcpy(bytes, &v, 8);
    return replace(p, n, fuzz_below(n + 1), 0, bytes, 1 + fuzz_below(8));
}

/* Copies bytes of `from` into p: inserts them or overwrites. */
static size_t copy(uint8_t *p, size_t n, const uint8_t *from, size_t m) {
    uint8_t part[512];
    if (!m) return n;
    size_t at = fuzz_below(m), to = fuzz_below(n + 1);
    size_t size = 1 + fuzz_below(fuzz_below(2) ? 16 : sizeof part);
    if (size > m - at) size = m - at;
    memcpy(part, from + at, size);
    size_t over = fuzz_below(2) ? 0 : size < n - to ? size : n - to;
    return replace(p, n, to, over, part, size);
}

static size_t repeat(uint8_t *p, size_t n) { return copy(p, n, p, n); }

static size_t splice(uint8_t *p, size_t n) {
    size_t m;
    const uint8_t *other = fuzz_input(fuzz_below(fuzz_inputs()), &m);
    return copy(p, n, other, m);
}

/* Exchanges two lines, or the texts between zero bytes. */
static size_t move_line(uint8_t *p, size_t n) {
    const uint8_t *from = memchr(p, '\n', n);
    if (!from) return repeat(p, n);
    size_t a = fuzz_below(n);
    while (a && p[a - 1] != '\n') a--;
    size_t end = a;
    while (end < n && p[end] != '\n') end++;
    end += end < n;
    uint8_t line[512];
    size_t size = end - a;
    if (size > sizeof line) return n;
    memcpy(line, p + a, size);
    if (fuzz_below(2)) n = replace(p, n, a, size, NULL, 0);
    size_t to = fuzz_below(n + 1);
    while (to && to < n && p[to - 1] != '\n') to--;
    return replace(p, n, to, 0, line, size);
}

static size_t put_word(uint8_t *p, size_t n, const char *const *words) {
    size_t count = 0, to = fuzz_below(n + 1), end = to;
    while (words[count]) count++;
    if (!count) return n;
    const char *w = words[fuzz_below(count)];
    if (fuzz_below(2)) { /* over an existing word */
        while (end < n && ((p[end] | 32) >= 'a' && (p[end] | 32) <= 'z')) end++;
        while (to && ((p[to - 1] | 32) >= 'a' && (p[to - 1] | 32) <= 'z')) to--;
    }
    return replace(p, n, to, end - to, w, strlen(w));
}

static size_t change_once(uint8_t *p, size_t n, const char *const *words) {
    static size_t (*const ways[])(uint8_t *, size_t) = {
        flip,         set_byte, set_number, set_number, set_compared,
        set_compared, cut,      shorten,    insert,     repeat,
        splice,       splice,   move_line,  set_digits, set_digits};
    enum { WAYS = sizeof ways / sizeof *ways };
    size_t i = fuzz_below(WAYS + 3);
    return i < WAYS ? ways[i](p, n) : put_word(p, n, words);
}

size_t fuzz_change(uint8_t *p, size_t n, const char *const *words) {
    for (size_t k = 1 + fuzz_below(1 + fuzz_below(6)); k; k--)
        n = change_once(p, n, words);
    return n;
}
