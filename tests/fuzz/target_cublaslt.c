/* SPDX-License-Identifier: Apache-2.0 */
/* target_cublaslt.c: the file of chosen algorithms is used completely or not
   at all; its entries are found, and written again unchanged. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "runtime/cuda/gpu.h"
#include "tests/fuzz/fuzz.h"

static size_t version(void) { return 120800; }

static void quiet(void *ctx, const char *line) { (void)ctx, (void)line; }

static void *alloc(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void release(void *ctx, void *p, size_t bytes) {
    (void)ctx, (void)bytes;
    free(p);
}

static ampc_session *session(void) {
    static GpuDevice device;
    static ampc_session s;
    device.lt.GetVersion = version;
    device.sms = 132;
    snprintf(device.name, sizeof device.name, "NVIDIA H100");
    s.device = &device;
    s.opt = (ampc_options){.alloc = alloc, .free = release, .log = quiet};
    return &s;
}

/* The path of this GPU's entry in the cache, which chooses the name itself. */
static const char *place(char path[1024]) {
    char folder[512], *slash;
    Cache c;
    snprintf(folder, sizeof folder, "%s", fuzz_file("cublaslt", "", 0));
    if ((slash = strrchr(folder, '/'))) *slash = 0;
    setenv("AMPC_CACHE_DIR", folder, 1);
    cache_open(session(), &c);
    snprintf(path, 1024, "%s", c.path);
    cache_close(&c);
    return strrchr(path, '/') + 1;
}

static size_t read_back(const char *path, uint8_t *out) {
    FILE *f = fopen(path, "rb");
    fuzz_check(f != NULL, "%s", path);
    size_t n = fread(out, 1, FUZZ_MOST, f);
    fclose(f);
    return n;
}

void cublaslt_run(const uint8_t *p, size_t n) {
    static char path[1024];
    static const char *name;
    static uint8_t again[FUZZ_MOST];
    Cache c;
    if (!name) name = place(path);
    fuzz_file(name, p, n);
    cache_open(session(), &c);
    fuzz_check(!c.damaged || c.n == 0, "damaged, and used");
    for (size_t i = 0; i < c.n; i++)
        fuzz_check(cache_find(&c, c.n, &c.entries[i].key) != NULL,
                   "entry %zu is not found", i);
    if (!c.damaged) {
        fuzz_check(cache_save(&c), "not saved");
        fuzz_check(read_back(path, again) == n && !memcmp(p, again, n),
                   "written otherwise");
        fuzz_taken();
    }
    cache_close(&c);
}

/* The CRC is in the header and counts as 0: it covers the header of 128
   bytes and the `count` entries of 192 bytes after it. */
void cublaslt_fix(uint8_t *p, size_t n) {
    enum { COUNT = 16, CRC = 28, HEAD = 128, ENTRY = 192 };
    uint32_t count, crc = 0;
    if (n < HEAD) return;
    if (fuzz_below(4)) {
        count = (uint32_t)((n - HEAD) / ENTRY);
        memcpy(p + COUNT, &count, 4);
    }
    memcpy(&count, p + COUNT, 4);
    memcpy(p + CRC, &crc, 4);
    size_t size = HEAD + (size_t)count * ENTRY;
    crc = (uint32_t)crc32_z(0, p, size < n ? size : n);
    memcpy(p + CRC, &crc, 4);
}

void cublaslt_seeds(void) {
    static uint8_t bytes[FUZZ_MOST];
    char path[1024];
    place(path);
    for (int entries = 0; entries < 3; entries++) {
        Cache c;
        cache_open(session(), &c);
        ProductKey key;
        LtAlgo algo;
        memset(&key, entries, sizeof key);
        memset(&algo, 7, sizeof algo);
        fuzz_check(cache_add(&c, &key, &algo) && cache_save(&c), "not saved");
        fuzz_seed(bytes, read_back(path, bytes));
        cache_close(&c);
    }
}

const char *const *cublaslt_words(void) {
    static const char *const words[] = {"AMPCLT1", "NVIDIA H100", NULL};
    return words;
}
