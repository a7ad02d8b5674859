/* SPDX-License-Identifier: Apache-2.0 */
/* npz.c: an array of a .npz file, which is a zip archive of .npy files, either
   uncompressed (numpy.savez) or deflated (savez_compressed).

   The directory at the end tells where members are; each has a header of its
   own before its data.  All sizes may be in a 64-bit extension.             */
#include <string.h>

#include "frontend/data/array.h"
#include "frontend/data/foreign.h"

enum {
    END_SIZE = 22,
    LOCATOR_SIZE = 20,
    END64_SIZE = 56,
    ENTRY_SIZE = 46,
    LOCAL_SIZE = 30,
    DIRECTORY_MAX = 16 << 20,
    COMMENT_MAX = 65535
};

static uint64_t npz_number(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = bytes; i--;) v = v << 8 | p[i];
    return v;
}

static bool is_npz(const unsigned char *p, size_t n) {
    return n >= 4 && npz_number(p, 4) == 0x04034b50;
}

static Status npz_damaged(const Source *s) {
    return source_bad(s, "damaged or truncated zip file");
}

/* Finds the directory in the file. */
static Status find_directory(const Source *s, Arena *a, uint64_t *at,
                             uint64_t *bytes, uint64_t *entries) {
    size_t n = s->size < END_SIZE + COMMENT_MAX ? (size_t)s->size
                                                : END_SIZE + COMMENT_MAX;
    unsigned char *p = arena_alloc(a, n + 1), e[END64_SIZE];
    uint64_t from = s->size - n;
    TRY(source_get(s, p, n, from));
    int64_t i = (int64_t)n - END_SIZE;
    while (i >= 0 && npz_number(p + i, 4) != 0x06054b50) i--;
    if (i < 0) return npz_damaged(s);
    *entries = npz_number(p + i + 10, 2);
    *bytes = npz_number(p + i + 12, 4);
    *at = npz_number(p + i + 16, 4);
    if (*at != UINT32_MAX && *entries != UINT16_MAX && *bytes != UINT32_MAX)
        return OK;
    if (i < LOCATOR_SIZE || npz_number(p + i - LOCATOR_SIZE, 4) != 0x07064b50)
        return npz_damaged(s);
    TRY(source_get(s, e, sizeof e, npz_number(p + i - LOCATOR_SIZE + 8, 8)));
    if (npz_number(e, 4) != 0x06064b50) return npz_damaged(s);
    *entries = npz_number(e + 32, 8);
    *bytes = npz_number(e + 40, 8);
    *at = npz_number(e + 48, 8);
    return OK;
}

typedef struct Member {
    const unsigned char *name;
    size_t name_bytes;
    unsigned flags, method;
    uint32_t crc;
    uint64_t packed, raw, at; /* at: offset of the member's own header */
} Member;

/* Sizes that do not fit 32 bits are in extension 1, in this order. */
static bool take_extra(const unsigned char *p, size_t n, Member *m) {
    uint64_t *const wide[] = {&m->raw, &m->packed, &m->at};
    while (n >= 4) {
        size_t id = npz_number(p, 2), k = npz_number(p + 2, 2);
        if (k > n - 4) return false;
        const unsigned char *v = p + 4;
        for (int i = 0; id == 1 && i < 3; i++) {
            if (*wide[i] != UINT32_MAX) continue;
            if (v + 8 > p + 4 + k) return false;
            *wide[i] = npz_number(v, 8);
            v += 8;
        }
        p += 4 + k;
        n -= 4 + k;
    }
    return true;
}

/* Reads the entry at p[*at] and advances *at. */
static bool take_entry(const unsigned char *p, size_t n, size_t *at,
                       Member *m) {
    if (n - *at < ENTRY_SIZE) return false;
    p += *at;
    size_t name = npz_number(p + 28, 2), extra = npz_number(p + 30, 2),
           comment = npz_number(p + 32, 2);
    if (npz_number(p, 4) != 0x02014b50 ||
        n - *at - ENTRY_SIZE < name + extra + comment)
        return false;
    *m = (Member){.name = p + ENTRY_SIZE,
                  .name_bytes = name,
                  .flags = (unsigned)npz_number(p + 8, 2),
                  .method = (unsigned)npz_number(p + 10, 2),
                  .crc = (uint32_t)npz_number(p + 16, 4),
                  .packed = npz_number(p + 20, 4),
                  .raw = npz_number(p + 24, 4),
                  .at = npz_number(p + 42, 4)};
    *at += ENTRY_SIZE + name + extra + comment;
    return take_extra(p + ENTRY_SIZE + name, extra, m);
}

/* The array's name, without ".npy"; NULL for members that are not arrays. */
static bool array_name(const Member *m, char *out, size_t cap) {
    size_t n = m->name_bytes;
    if (n < 4 || n - 4 >= cap || memcmp(m->name + n - 4, ".npy", 4) != 0)
        return false;
    memcpy(out, m->name, n - 4);
    out[n - 4] = 0;
    return strlen(out) == n - 4;
}

/* A zip archive without arrays. */
static Status no_arrays(const Source *s, const unsigned char *p, size_t n) {
    StrBuf text = {0};
    Member x;
    for (size_t at = 0; at < n && !text.len && take_entry(p, n, &at, &x);) {
        char name[256];
        snprintf(name, sizeof name, "%.*s",
                 (int)(x.name_bytes < 255 ? x.name_bytes : 255),
                 (const char *)x.name);
        foreign_member(name, s->path, &text);
    }
    source_bad(s, "%s",
               text.len ? text.data : "a zip file without .npy arrays");
    sb_free(&text);
    return ERR_USER;
}

/* Whether a later entry has the name too: readers disagree on which counts. */
static bool named_again(const unsigned char *p, size_t n, size_t at,
                        const char *want) {
    char name[256];
    Member x;
    while (at < n && take_entry(p, n, &at, &x))
        if (array_name(&x, name, sizeof name) && !strcmp(name, want))
            return true;
    return false;
}

static Status npz_choose(const Source *s, const unsigned char *p, size_t n,
                         const ArrayPick *pick, Member *m) {
    const char *want = pick->part ? pick->part : pick->input;
    StrBuf names = {0};
    char name[256];
    int count = 0;
    Member one = {0}, x;
    for (size_t at = 0; at < n;) {
        if (!take_entry(p, n, &at, &x)) {
            sb_free(&names);
            return npz_damaged(s);
        }
        if (!array_name(&x, name, sizeof name)) continue;
        if (!strcmp(name, want)) {
            *m = x;
            sb_free(&names);
            return named_again(p, n, at, want)
                       ? source_bad(s, "two arrays are named '%s'", want)
                       : OK;
        }
        if (sb_put_next(&names, count++)) sb_printf(&names, "'%s'", name);
        one = x;
    }
    sb_put_more(&names, count);
    *m = one;
    Status st = OK;
    if (count == 0)
        st = no_arrays(s, p, n);
    else if (count > 1 || pick->part)
        st = source_bad(s,
                        "no array '%s' (FILE.npz:ARRAY chooses); the file has "
                        "%d: %s",
                        want, count, names.data);
    sb_free(&names);
    return st;
}

static Status npz_enter(Source *s, const Member *m) {
    unsigned char local[LOCAL_SIZE];
    TRY(source_get(s, local, sizeof local, m->at));
    if (npz_number(local, 4) != 0x04034b50) return npz_damaged(s);
    if (m->flags & 1) return source_bad(s, "the array is encrypted");
    uint64_t at = m->at + LOCAL_SIZE + npz_number(local + 26, 2) +
                  npz_number(local + 28, 2);
    if (m->method == 8)
        return source_deflated(s, at, m->packed, m->raw, m->crc);
    if (m->method != 0)
        return source_bad(s,
                          "the array is compressed by an unsupported method "
                          "(%u); use numpy.savez_compressed",
                          m->method);
    return m->packed == m->raw ? source_part(s, at, m->raw) : npz_damaged(s);
}

static Status npz_read_directory(Source *s, Arena *a, unsigned char **p,
                                 size_t *n) {
    uint64_t at, bytes, entries;
    if (s->packed) return source_bad(s, "a gzipped .npz file is not read");
    TRY(find_directory(s, a, &at, &bytes, &entries));
    if (bytes > DIRECTORY_MAX || at > s->size || bytes > s->size - at)
        return npz_damaged(s);
    *n = (size_t)bytes;
    *p = arena_alloc(a, *n + 1);
    return source_get(s, *p, *n, at);
}

static Status npz_parts(Source *s, const ArrayHead *h, ArrayParts *to) {
    unsigned char *p;
    size_t n;
    char name[256];
    Member x;
    (void)h;
    TRY(npz_read_directory(s, to->arena, &p, &n));
    for (size_t at = 0; at < n;) {
        if (!take_entry(p, n, &at, &x)) return npz_damaged(s);
        if (!array_name(&x, name, sizeof name)) continue;
        const char *part = arena_printf(to->arena, "%s", name);
        vec_push(to->arena, &to->list, (ArrayPart){part, NULL});
    }
    return to->list.len ? OK : no_arrays(s, p, n);
}

static Status find_in(Source *s, Arena *a, const ArrayPick *pick,
                      ArrayHead *h) {
    unsigned char *p;
    size_t n;
    Member m;
    TRY(npz_read_directory(s, a, &p, &n));
    TRY(npz_choose(s, p, n, pick, &m));
    snprintf(h->why, sizeof h->why, "%.*s",
             (int)(m.name_bytes < 90 ? m.name_bytes : 90),
             (const char *)m.name);
    return npz_enter(s, &m);
}

static Status npz_find(Source *s, const ArrayPick *pick, ArrayHead *h) {
    Arena *a = arena_new();
    Status st = find_in(s, a, pick, h);
    arena_free(a);
    return st;
}

const ArrayFormat npz_format = {
    .name = ".npz", .is = is_npz, .find = npz_find, .parts = npz_parts};
