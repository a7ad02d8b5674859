/* SPDX-License-Identifier: Apache-2.0 */
/* compile_cache.c: see compile_cache.h. */
#define _GNU_SOURCE
#include "codegen/cache/compile_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/files/cache_folder.h"
#include "runtime/files/infile.h"
#include "runtime/files/outfile.h"

enum { PATH_SIZE = 4096, HEX = SHA256_DIGEST_STRING_LENGTH - 1 };

typedef struct Header {
    char magic[8];
    uint64_t size; /* bytes after the header */
    uint64_t crc;  /* CRC-32 of it */
} Header;

static const char magic[8] = "AMPCOBJ";

/* ---- keys ---------------------------------------------------------------- */

CompileKey compile_key(const char *what) {
    CompileKey k;
    SHA256Init(&k);
    compile_key_text(&k, what);
    return k;
}

/* The size comes first, so that two different lists of parts never give the
   same bytes. */
void compile_key_add(CompileKey *k, const void *p, size_t n) {
    uint64_t size = n;
    SHA256Update(k, (const uint8_t *)&size, sizeof size);
    SHA256Update(k, p, n);
}

void compile_key_text(CompileKey *k, const char *s) {
    compile_key_add(k, s, strlen(s));
}

void compile_key_file(CompileKey *k, const char *path) {
    struct stat st;
    int64_t facts[4] = {-1};
    if (stat(path, &st) == 0) {
        facts[0] = st.st_size;
        facts[1] = st.st_mtim.tv_sec;
        facts[2] = st.st_mtim.tv_nsec;
        facts[3] = (int64_t)st.st_ino;
    }
    compile_key_add(k, facts, sizeof facts);
}

/* ---- one result ---------------------------------------------------------- */

static void path_of(char path[PATH_SIZE], const char *folder, CompileKey key) {
    char hex[HEX + 1];
    snprintf(path, PATH_SIZE, "%s/%s", folder, SHA256End(&key, hex));
}

const char *compile_cache_open(Arena *a, const char *want) {
    char folder[1024];
    struct stat st;
    if (want && !strcmp(want, "none")) return NULL;
    if (want)
        snprintf(folder, sizeof folder, "%.900s", want);
    else if (!cache_folder(folder, sizeof folder))
        return NULL;
    const char *objects = arena_printf(a, "%s/objects", folder);
    bool ours = cache_folders_make(arena_printf(a, "%s/", objects)) &&
                stat(objects, &st) == 0 && st.st_uid == geteuid() &&
                !(st.st_mode & (S_IWGRP | S_IWOTH));
    return ours ? objects : NULL;
}

char *compile_cache_get(const char *folder, CompileKey key, size_t *n) {
    char path[PATH_SIZE], *data = NULL;
    struct stat st;
    Header h;
    if (!folder) return NULL;
    path_of(path, folder, key);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return NULL;
    bool ok = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
              st.st_uid == geteuid() && infile_whole(fd, &h, sizeof h, 0) &&
              !memcmp(h.magic, magic, sizeof magic) && h.size > 0 &&
              h.size < COMPILE_CACHE_MOST &&
              (uint64_t)st.st_size == sizeof h + h.size &&
              (data = malloc(h.size)) &&
              infile_whole(fd, data, h.size, sizeof h) &&
              crc32_z(0, (const Bytef *)data, h.size) == h.crc;
    if (ok) futimens(fd, NULL);
    close(fd);
    if (ok) {
        *n = h.size;
        return data;
    }
    free(data);
    return NULL;
}

void compile_cache_put(const char *folder, CompileKey key, const void *p,
                       size_t n) {
    char path[PATH_SIZE];
    OutFile o = {0};
    Header h = {.size = n, .crc = crc32_z(0, p, n)};
    if (!folder || !n || n >= COMPILE_CACHE_MOST) return;
    memcpy(h.magic, magic, sizeof magic);
    path_of(path, folder, key);
    if (outfile_open(&o, path, 0600, NULL, NULL)) {
        o.loose = true;
        if (outfile_write(&o, &h, sizeof h) && outfile_write(&o, p, n))
            (void)outfile_commit(&o);
    }
    outfile_abort(&o);
}

/* ---- all of them --------------------------------------------------------- */

typedef struct Entry {
    char name[HEX + 1];
    int64_t bytes, used; /* ns */
} Entry;

static int by_use(const void *a, const void *b) {
    int64_t x = ((const Entry *)a)->used, y = ((const Entry *)b)->used;
    return (x > y) - (x < y);
}

void compile_cache_trim(const char *folder, int64_t most) {
    DIR *d = folder ? opendir(folder) : NULL;
    Arena *a = arena_new();
    VEC(Entry) all = {0};
    int64_t sum = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        Entry x = {0};
        if (strlen(e->d_name) != HEX ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        memcpy(x.name, e->d_name, HEX);
        x.bytes = st.st_size;
        x.used = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        sum += x.bytes;
        vec_push(a, &all, x);
    }
    if (sum > most) qsort(all.data, (size_t)all.len, sizeof *all.data, by_use);
    for (int i = 0; i < all.len && sum > most; i++)
        if (unlinkat(dirfd(d), all.data[i].name, 0) == 0)
            sum -= all.data[i].bytes;
    if (d) closedir(d);
    arena_free(a);
}
