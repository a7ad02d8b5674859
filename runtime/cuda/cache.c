/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c: stores chosen algorithms in a file, one per kind of GPU and version
   of cuBLASLt (cache_folder.h).

   A file that differs in any way from what was written is neither used nor
   changed. A new file is written under a temporary name and renamed; of
   sessions that measure at the same time, the first to store its choice
   decides for all. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files/cache_folder.h"
#include "runtime/cuda/gpu.h"
#include "runtime/files/infile.h"
#include "runtime/files/outfile.h"
#include "runtime/files/sections.h"

#include "runtime/base/glibc.h" /* last */

enum { CACHE_MOST = 1 << 16 };

typedef struct CacheHeader {
    char magic[8];
    uint64_t version;                      /* of cuBLASLt */
    uint32_t count, entry_bytes, sms, crc; /* crc: of the whole file, with
                                              this field 0 */
    char device[96];
} CacheHeader;

_Static_assert(sizeof(ProductKey) == 136 && sizeof(CacheEntry) == 200 &&
                   sizeof(CacheHeader) == 128,
               "stored structs have no padding");

static CacheHeader header_of(const Cache *c) {
    const GpuDevice *d = gpu_of(c->s);
    CacheHeader h = {.magic = "AMPCLT1",
                     .version = d->lt.GetVersion(),
                     .count = (uint32_t)c->n,
                     .entry_bytes = sizeof(CacheEntry),
                     .sms = (uint32_t)d->sms};
    snprintf(h.device, sizeof h.device, "%s", d->name);
    return h;
}

static uint32_t crc_of(CacheHeader h, const CacheEntry *entries) {
    h.crc = 0;
    uint32_t crc = crc_add(0, (const uint8_t *)&h, sizeof h);
    return crc_add(crc, (const uint8_t *)entries, h.count * sizeof *entries);
}

/* ---- the name ------------------------------------------------------------ */

/* Sets c->path to FOLDER/cublaslt-HASH, with the hash of the file's header
   (GPU, library, versions). */
static bool cache_name(Cache *c) {
    CacheHeader h = header_of(c);
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (!cache_folder(c->path, sizeof c->path)) return false;
    h.count = 0;
    for (size_t i = 0; i < sizeof h; i++)
        hash = (hash ^ ((const uint8_t *)&h)[i]) * UINT64_C(0x100000001b3);
    size_t n = strlen(c->path);
    snprintf(c->path + n, sizeof c->path - n, "/cublaslt-%016llx",
             (unsigned long long)hash);
    return true;
}

/* ---- reading ------------------------------------------------------------- */

static bool cache_grow(Cache *c, size_t room) {
    CacheEntry *more = mem_alloc(c->s, room * sizeof *more);
    if (!more) return false;
    if (c->n) memcpy(more, c->entries, c->n * sizeof *more);
    mem_free(c->s, c->entries, c->room * sizeof *more);
    c->entries = more;
    c->room = room;
    return true;
}

static bool read_file(Cache *c, int fd) {
    CacheHeader h, want;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        !infile_whole(fd, &h, sizeof h, 0) || h.count > CACHE_MOST ||
        st.st_size != (off_t)(sizeof h + h.count * sizeof(CacheEntry)))
        return false;
    if (!cache_grow(c, h.count + 16u) ||
        !infile_whole(fd, c->entries, h.count * sizeof(CacheEntry), sizeof h))
        return false;
    want = header_of(c);
    want.count = h.count;
    want.crc = crc_of(h, c->entries);
    if (memcmp(&h, &want, sizeof h) != 0) return false;
    c->n = c->loaded = h.count;
    return true;
}

/* Also true if the file does not exist. */
static bool read_path(Cache *c) {
    int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR;
    bool ok = read_file(c, fd);
    close(fd);
    return ok;
}

void cache_open(ampc_session *s, Cache *c) {
    *c = (Cache){.s = s};
    if (!cache_name(c)) {
        c->path[0] = 0;
        return;
    }
    c->damaged = !read_path(c);
    if (c->damaged)
        session_log(s, "%s is damaged and not used; remove it", c->path);
}

const LtAlgo *cache_find(const Cache *c, size_t n, const ProductKey *key) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&c->entries[i].key, key, sizeof *key) == 0)
            return &c->entries[i].algo;
    return NULL;
}

/* ---- writing ------------------------------------------------------------- */

bool cache_writable(const Cache *c) {
    return c->path[0] && !c->damaged && c->n < CACHE_MOST &&
           cache_folders_make(c->path);
}

bool cache_add(Cache *c, const ProductKey *key, const LtAlgo *algo) {
    if (c->n == c->room && !cache_grow(c, c->room + 64)) return false;
    c->entries[c->n++] = (CacheEntry){*key, *algo};
    return true;
}

/* Entries that another process has written meanwhile take precedence. */
static bool merge(Cache *now, const Cache *c) {
    bool ok = read_path(now);
    for (size_t i = c->loaded; i < c->n && ok; i++)
        if (!cache_find(now, now->n, &c->entries[i].key))
            ok = cache_add(now, &c->entries[i].key, &c->entries[i].algo);
    return ok && now->n <= CACHE_MOST;
}

/* Holds the folder's lock briefly; never waits long for another holder.
   If a file system has no locks, the last writer wins. */
static bool lock_folder(const OutFile *o) {
    struct timespec pause = {0, 10000000};
    for (int i = 0; i < 100; i++) {
        if (flock(o->folder, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool write_file(const Cache *c, OutFile *o) {
    CacheHeader h = header_of(c);
    h.crc = crc_of(h, c->entries);
    return outfile_write(o, &h, sizeof h) &&
           outfile_write(o, c->entries, c->n * sizeof *c->entries) &&
           outfile_commit(o);
}

bool cache_save(Cache *c) {
    OutFile o;
    Cache now = {.s = c->s};
    memcpy(now.path, c->path, sizeof now.path);
    bool ok = outfile_open(&o, c->path, 0666, NULL, NULL) && lock_folder(&o) &&
              merge(&now, c) && write_file(&now, &o);
    outfile_abort(&o);
    if (ok) {
        cache_close(c);
        *c = now;
    } else {
        cache_close(&now);
    }
    return ok;
}

void cache_close(Cache *c) {
    mem_free(c->s, c->entries, c->room * sizeof *c->entries);
    c->entries = NULL;
    c->n = c->loaded = c->room = 0;
}
