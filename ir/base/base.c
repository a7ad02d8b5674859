/* SPDX-License-Identifier: Apache-2.0 */
/* base.c: arena, interned strings, growable text, diagnostics.             */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/base.h"
#include "runtime/files/infile.h"

/* ---- assertions ---------------------------------------------------------- */

static AssertHook *assert_hook;
static void *assert_ctx;

void assert_set_hook(AssertHook *hook, void *ctx) {
    assert_hook = hook;
    assert_ctx = ctx;
}

void assert_failed(const char *cond, const char *file, int line) {
    AssertHook *hook = assert_hook;
    assert_hook = NULL; /* the hook may fail an assertion itself */
    fflush(stdout);
    fprintf(stderr, "%s:%d: internal error: %s\n", file, line, cond);
    if (hook) hook(assert_ctx, stderr);
    fflush(stderr);
    exit(ERR_BUG);
}

_Noreturn void out_of_memory(void) {
    fputs("ampc: error: out of memory\n", stderr);
    exit(ERR_USER);
}

/* ---- arena --------------------------------------------------------------- */

enum { ALIGN = 16, FIRST_CHUNK = 1 << 13, LAST_CHUNK = 1 << 22 };

typedef struct Chunk {
    struct Chunk *next, *prev;
    char *at, *end;
} Chunk;

struct Arena {
    Chunk *chunks; /* the first chunk is the current one */
    size_t next_size;
};

Arena *arena_new(void) {
    Arena *a = calloc(1, sizeof *a);
    if (!a) out_of_memory();
    a->next_size = FIRST_CHUNK;
    return a;
}

void arena_free(Arena *a) {
    if (!a) return;
    for (Chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

static void chunk_link(Arena *a, Chunk *c) {
    *(c->prev ? &c->prev->next : &a->chunks) = c;
    if (c->next) c->next->prev = c;
}

/* A large request gets its own chunk after the current one. */
static Chunk *arena_grow(Arena *a, size_t bytes) {
    bool large = a->chunks && bytes > a->next_size / 4;
    if (!large && bytes < a->next_size) bytes = a->next_size;
    Chunk *c = calloc(1, sizeof *c + bytes);
    if (!c) out_of_memory();
    c->at = (char *)(c + 1);
    c->end = c->at + bytes;
    c->prev = large ? a->chunks : NULL;
    c->next = large ? a->chunks->next : a->chunks;
    chunk_link(a, c);
    if (!large && a->next_size < LAST_CHUNK) a->next_size *= 2;
    return c;
}

void *arena_alloc(Arena *a, size_t bytes) {
    Chunk *c = a->chunks;
    if (bytes > SIZE_MAX / 4) out_of_memory();
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!c || (size_t)(c->end - c->at) < bytes) c = arena_grow(a, bytes);
    void *p = c->at;
    c->at += bytes;
    return p;
}

void *arena_alloc_array(Arena *a, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) out_of_memory();
    return arena_alloc(a, n * size);
}

void *arena_dup(Arena *a, const void *p, size_t bytes) {
    void *q = arena_alloc(a, bytes);
    if (bytes) memcpy(q, p, bytes);
    return q;
}

char *arena_printf(Arena *a, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = fmt ? vsnprintf(NULL, 0, fmt, ap) : -1;
    va_end(ap);
    ASSERT(n >= 0);
    char *s = arena_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

/* Returns the old memory of a grown table if it has a chunk of its own;
   otherwise it stays allocated until the arena ends. bytes: the size that
   was requested. */
static void arena_drop(Arena *a, void *p, size_t bytes) {
    if (bytes <= LAST_CHUNK) return;
    Chunk *c = (Chunk *)p - 1;
    *(c->prev ? &c->prev->next : &a->chunks) = c->next;
    if (c->next) c->next->prev = c->prev;
    free(c);
}

/* A chunk with a single allocation grows as a whole. */
void *vec_grow(Arena *a, void *data, int len, int *cap, size_t size) {
    size_t old = (size_t)*cap * size;
    ASSERT(*cap <= INT32_MAX / 2);
    *cap = *cap ? *cap * 2 : 8;
    if (old > LAST_CHUNK) {
        Chunk *c = realloc((Chunk *)data - 1, sizeof *c + 2 * old);
        if (!c) out_of_memory();
        c->at = c->end = (char *)(c + 1) + 2 * old;
        chunk_link(a, c);
        return c + 1;
    }
    void *p = arena_alloc_array(a, (size_t)*cap, size);
    if (len) memcpy(p, data, (size_t)len * size);
    return p;
}

/* ---- interned strings ---------------------------------------------------- */

typedef struct StrSlot {
    uint32_t hash, id; /* 1 + the number of the string; 0: none */
} StrSlot;

/* Process-wide and never freed; open addressing, power of two.  The four
   bytes before a string hold its number. */
static struct {
    Arena *arena;
    StrSlot *slot;
    Str *text;
    size_t len, cap;
} strings;

static void strings_grow(void) {
    size_t cap = strings.cap ? strings.cap * 2 : 1024;
    StrSlot *slot = calloc(cap, sizeof *slot);
    strings.text = realloc(strings.text, cap / 2 * sizeof *strings.text);
    if (!slot || !strings.text) out_of_memory();
    for (size_t i = 0; i < strings.cap; i++) {
        if (!strings.slot[i].id) continue;
        size_t j = strings.slot[i].hash & (cap - 1);
        while (slot[j].id) j = (j + 1) & (cap - 1);
        slot[j] = strings.slot[i];
    }
    free(strings.slot);
    strings.slot = slot;
    strings.cap = cap;
}

Str intern_n(const char *s, size_t n) {
    if (!strings.arena) strings.arena = arena_new();
    if (strings.len * 2 >= strings.cap) strings_grow();
    uint32_t h = (uint32_t)hash_bytes(0, s, n);
    size_t i = h & (strings.cap - 1);
    for (; strings.slot[i].id; i = (i + 1) & (strings.cap - 1)) {
        if (strings.slot[i].hash != h) continue;
        Str at = strings.text[strings.slot[i].id - 1];
        if (strncmp(at, s, n) == 0 && at[n] == 0) return at;
    }
    uint32_t id = (uint32_t)strings.len++;
    char *copy = arena_alloc(strings.arena, sizeof id + n + 1);
    memcpy(copy, &id, sizeof id);
    copy += sizeof id;
    memcpy(copy, s, n);
    strings.slot[i] = (StrSlot){h, id + 1};
    return strings.text[id] = copy;
}

Str intern(const char *s) { return intern_n(s, strlen(s)); }

Str internf(const char *fmt, ...) {
    char few[256]; /* nearly all */
    StrBuf sb = {0};
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = fmt ? vsnprintf(few, sizeof few, fmt, ap) : -1;
    ASSERT(n >= 0);
    if ((size_t)n >= sizeof few) sb_vprintf(&sb, fmt, again);
    Str s = intern_n(sb.data ? sb.data : few, (size_t)n);
    va_end(again);
    va_end(ap);
    sb_free(&sb);
    return s;
}

/* ---- maps of them -------------------------------------------------------- */

enum { PAGE_BITS = 5, PAGE = 1 << PAGE_BITS };

typedef struct StrPage {
    int *val;    /* for PAGE strings: 1 + the number; 0: none. NULL: no page */
    uint32_t no; /* the first number divided by PAGE */
} StrPage;

static uint32_t str_id(Str s) {
    uint32_t id;
    memcpy(&id, s - sizeof id, sizeof id);
    ASSERT(id < strings.len && strings.text[id] == s);
    return id;
}

static StrPage *page_slot(const StrMap *m, uint32_t no) {
    uint32_t i = no * UINT32_C(0x9e3779b1) >> 7;
    while (m->page[i &= (uint32_t)m->cap - 1].val && m->page[i].no != no) i++;
    return &m->page[i];
}

static void str_map_grow(Arena *a, StrMap *m) {
    StrMap old = *m;
    m->cap = old.cap ? old.cap * 2 : 8;
    m->page = NEW_ARRAY(a, StrPage, m->cap);
    for (int i = 0; i < old.cap; i++)
        if (old.page[i].val) *page_slot(m, old.page[i].no) = old.page[i];
    arena_drop(a, old.page, (size_t)old.cap * sizeof *old.page);
}

void str_map_put(Arena *a, StrMap *m, Str key, int val) {
    uint32_t id = str_id(key);
    if (m->len * 2 >= m->cap) str_map_grow(a, m);
    StrPage *p = page_slot(m, id >> PAGE_BITS);
    if (!p->val) {
        *p = (StrPage){NEW_ARRAY(a, int, PAGE), id >> PAGE_BITS};
        m->len++;
    }
    p->val[id % PAGE] = val + 1;
}

int str_map_get(const StrMap *m, Str key) {
    uint32_t id = str_id(key);
    const StrPage *p = m->cap ? page_slot(m, id >> PAGE_BITS) : NULL;
    return p && p->val ? p->val[id % PAGE] - 1 : -1;
}

StrMap str_map_copy(Arena *a, const StrMap *m) {
    StrMap c = *m;
    c.page = arena_dup(a, m->page, (size_t)m->cap * sizeof *m->page);
    for (int i = 0; i < m->cap; i++)
        if (c.page[i].val)
            c.page[i].val = arena_dup(a, c.page[i].val, PAGE * sizeof(int));
    return c;
}

/* ---- globs --------------------------------------------------------------- */

/* Matches c against the set after '['; *end is behind ']', or NULL if the set
   is not closed (then '[' is an ordinary character). */
static bool set_match(const char *p, char c, const char **end) {
    bool negate = *p == '!' || *p == '^', hit = false;
    if (negate) p++;
    const char *first = p;
    for (; *p && (*p != ']' || p == first); p++) {
        if (p[1] == '-' && p[2] && p[2] != ']') {
            hit |= (unsigned char)c >= (unsigned char)p[0] &&
                   (unsigned char)c <= (unsigned char)p[2];
            p += 2;
        } else {
            hit |= c == *p;
        }
    }
    *end = *p ? p + 1 : NULL;
    return hit != negate;
}

/* Matches one pattern element against one character; returns the rest of the
   pattern, or NULL. */
static const char *glob_step(const char *p, char c) {
    const char *end;
    if (*p == '?') return p + 1;
    if (*p == '[') {
        bool hit = set_match(p + 1, c, &end);
        if (end) return hit ? end : NULL;
    }
    return *p == c ? p + 1 : NULL;
}

bool glob_match(const char *pattern, const char *name) {
    const char *star = NULL, *retry = NULL, *next;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern && (next = glob_step(pattern, *name))) {
            pattern = next;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == 0;
}

bool glob_layer(const char *pattern, const char *name) {
    if (glob_match(pattern, name)) return true;
    for (size_t n = strlen(name); n-- > 1;) {
        if (name[n] != '.' && name[n] != '/') continue;
        if (glob_match(pattern, intern_n(name, n))) return true;
    }
    return false;
}

static void put_loc(StrBuf *sb, Loc loc) {
    if (loc.file) {
        sb_put_path(sb, loc.file);
        sb_puts(sb, ":");
        if (loc.line) sb_printf(sb, "%d:", loc.line);
        if (loc.line && loc.col) sb_printf(sb, "%d:", loc.col);
        sb_puts(sb, " ");
    }
    if (loc.node) {
        sb_puts(sb, "node '");
        sb_put_escaped(sb, loc.node);
        sb_puts(sb, "': ");
    }
}

static void put_diag(Diag *d, Loc loc, const char *kind, const char *fmt,
                     va_list ap) {
    put_loc(&d->text, loc);
    sb_puts(&d->text, kind);
    sb_put_message(&d->text, fmt, ap);
}

Status fail(Diag *d, Loc loc, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_diag(d, loc, "error: ", fmt, ap);
    va_end(ap);
    d->errors++;
    return ERR_USER;
}

void warn(Diag *d, Loc loc, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_diag(d, loc, "warning: ", fmt, ap);
    va_end(ap);
    d->warnings++;
}

void fail_note(Diag *d, Loc loc, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    put_diag(d, loc, "", fmt, ap);
    va_end(ap);
}

/* ---- arithmetic, hashing, files ------------------------------------------ */

bool mul_ok(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}

bool add_ok(int64_t a, int64_t b, int64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

uint64_t hash_bytes(uint64_t seed, const void *p, size_t n) {
    const unsigned char *s = p;
    uint64_t h = (seed ^ n) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    for (; n;) {
        uint64_t w = 0;
        size_t k = n < 8 ? n : 8;
        memcpy(&w, s, k);
        s += k;
        n -= k;
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ h >> 29;
}

/* The file's present bytes; NULL: errno is set, 0 if the file became
   shorter. */
static char *read_open(int fd, size_t bytes) {
    char *text = malloc(bytes + 1);
    size_t at = 0;
    while (text && at < bytes) {
        ssize_t got = read(fd, text + at, bytes - at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            int e = got ? errno : 0;
            free(text);
            errno = e;
            return NULL;
        }
        at += (size_t)got;
    }
    if (text) text[bytes] = 0;
    return text;
}

char *read_file(Diag *d, const char *path, size_t *n) {
    struct stat st;
    char *text = NULL;
    Loc loc = {.file = intern(path)};
    /* O_NONBLOCK: opening a named pipe must not block */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        fail(d, loc, "%s", strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        fail(d, loc,
             S_ISDIR(st.st_mode) ? "is a folder" : "is not a regular file");
    } else {
        text = read_open(fd, (size_t)st.st_size);
        if (!text)
            fail(d, loc, "%s", errno ? strerror(errno) : "became shorter");
        *n = (size_t)st.st_size;
    }
    if (fd >= 0) close(fd);
    const char *instead = text ? infile_instead(text, *n) : NULL;
    if (!instead) return text;
    fail(d, loc, "%s", instead);
    free(text);
    return NULL;
}
