/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.c: device memory and pinned host memory.

   Device addresses come from one reserved range and are never reused.
   Its pages are inaccessible (PROT_NONE), except live allocations while
   simulated work runs. Pages between allocations always stay inaccessible;
   within the pages of an allocation the bytes around it hold a pattern, which
   is checked, and under ASan they are poisoned. Allocations start or end (by
   seed) at a page boundary. Large ones use huge pages if available: changing
   the access costs time per page. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/sim/state.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   __asan_poison_memory_region(p, n)
#define UNPOISON(p, n) __asan_unpoison_memory_region(p, n)
#else
#define POISON(p, n)   ((void)(p))
#define UNPOISON(p, n) ((void)(p))
#endif

#define RESERVED ((size_t)1 << 38)
#define HUGE     ((size_t)2 << 20)
enum { PAGE = 4096, GAP = 16 * PAGE, ALIGN = 256, SLACK = 0xa5, NEW = 0xff };

typedef struct Block {
    char *p, *page; /* first byte, first page */
    size_t bytes, pages;
    struct Block *next;
} Block;

typedef struct Pinned {
    void *p;
    size_t bytes;
    struct Pinned *next;
} Pinned;

static char *base;
static size_t used;
static Block *blocks;
static Pinned *pins;
static int opened;

static bool reserve(void) {
    if (base) return true;
    char *p = mmap(NULL, RESERVED + HUGE, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    base = p + (-(uintptr_t)p & (HUGE - 1));
    return true;
}

static void protect(const Block *b, bool open) {
    mprotect(b->page, b->pages, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void memory_open(bool open) {
    if (open ? opened++ : --opened) return;
    for (Block *b = blocks; b; b = b->next) protect(b, open);
}

static size_t page_up(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }

static char *after(const Block *b) { return b->p + b->bytes; }
static size_t slack(const Block *b) {
    return (size_t)(b->page + b->pages - after(b));
}

static void fill(const Block *b) {
    protect(b, true);
    memset(b->page, SLACK, (size_t)(b->p - b->page));
    memset(b->p, NEW, b->bytes);
    memset(after(b), SLACK, slack(b));
    POISON(b->page, (size_t)(b->p - b->page));
    POISON(after(b), slack(b));
    protect(b, opened > 0);
}

static void place(Block *b, size_t bytes) {
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    b->pages = page_up(room);
    used += GAP;
    if (room >= HUGE) used = (used + HUGE - 1) & ~(HUGE - 1);
    b->page = base + used;
    b->bytes = bytes;
    b->p = b->page + (sim_random() & 1 ? b->pages - room : 0);
    used += b->pages;
    if (room >= HUGE) madvise(b->page, b->pages, MADV_HUGEPAGE);
}

CUresult memory_alloc(size_t bytes, CUdeviceptr *p) {
    *p = 0;
    if (!bytes) return CUDA_INVALID_VALUE;
    if (bytes > sim_config.memory - sim_counts.allocated || !reserve() ||
        bytes > RESERVED - used - 2 * HUGE)
        return CUDA_OUT_OF_MEMORY;
    Block *b = calloc(1, sizeof *b);
    if (!b) return CUDA_OUT_OF_MEMORY;
    place(b, bytes);
    b->next = blocks;
    blocks = b;
    fill(b);
    sim_counts.allocated += bytes;
    if (sim_counts.allocated > sim_counts.peak)
        sim_counts.peak = sim_counts.allocated;
    *p = (CUdeviceptr)(uintptr_t)b->p;
    return CUDA_OK;
}

bool memory_is(CUdeviceptr p) {
    const char *at = (const char *)(uintptr_t)p;
    for (const Block *b = blocks; b; b = b->next)
        if (at >= b->p && (size_t)(at - b->p) < b->bytes) return true;
    return false;
}

static bool pattern_kept(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != SLACK) return false;
    return true;
}

static void release(Block *b) {
    protect(b, true);
    UNPOISON(b->page, b->pages);
    if (!pattern_kept(b->page, (size_t)(b->p - b->page)) ||
        !pattern_kept(after(b), slack(b)))
        sim_violation("bytes beside an allocation of %zu were written",
                      b->bytes);
    mmap(b->page, b->pages, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    sim_counts.allocated -= b->bytes;
    free(b);
}

CUresult memory_free(CUdeviceptr p) {
    for (Block **b = &blocks; *b; b = &(*b)->next) {
        Block *found = *b;
        if (found->p != (char *)(uintptr_t)p) continue;
        *b = found->next;
        release(found);
        return CUDA_OK;
    }
    sim_violation("cuMemFree of %#llx, which is no allocation",
                  (unsigned long long)p);
    return CUDA_INVALID_VALUE;
}

bool sim_device_range(CUdeviceptr p, size_t bytes) {
    uintptr_t at = (uintptr_t)p;
    for (const Block *b = blocks; b; b = b->next) {
        uintptr_t start = (uintptr_t)b->p;
        if (at >= start && at - start <= b->bytes &&
            bytes <= b->bytes - (at - start))
            return true;
    }
    return false;
}

/* ---- pinned -------------------------------------------------------------- */

CUresult pinned_alloc(size_t bytes, void **p) {
    Pinned *n = calloc(1, sizeof *n);
    *p = NULL;
    if (!n || posix_memalign(&n->p, PAGE, bytes)) {
        free(n);
        return CUDA_OUT_OF_MEMORY;
    }
    memset(n->p, NEW, bytes);
    n->bytes = bytes;
    n->next = pins;
    pins = n;
    *p = n->p;
    return CUDA_OK;
}

CUresult pinned_free(void *p) {
    for (Pinned **n = &pins; *n; n = &(*n)->next) {
        Pinned *found = *n;
        if (found->p != p) continue;
        *n = found->next;
        free(found->p);
        free(found);
        return CUDA_OK;
    }
    sim_violation("cuMemFreeHost of %p, which is no allocation", p);
    return CUDA_INVALID_VALUE;
}

bool pinned_has(const void *p, size_t bytes) {
    uintptr_t at = (uintptr_t)p;
    for (const Pinned *n = pins; n; n = n->next) {
        uintptr_t start = (uintptr_t)n->p;
        if (at >= start && at - start <= n->bytes &&
            bytes <= n->bytes - (at - start))
            return true;
    }
    return false;
}

/* ---- what is left -------------------------------------------------------- */

void memory_leaks(char *text, size_t size) {
    size_t n = strlen(text);
    for (const Block *b = blocks; b && n + 80 < size; b = b->next)
        n += (size_t)snprintf(text + n, size - n, "device memory: %zu bytes\n",
                              b->bytes);
    for (const Pinned *p = pins; p && n + 80 < size; p = p->next)
        n += (size_t)snprintf(text + n, size - n, "pinned memory: %zu bytes\n",
                              p->bytes);
}

void memory_forget(void) {
    while (blocks) {
        Block *b = blocks;
        blocks = b->next;
        release(b);
    }
    while (pins) pinned_free(pins->p);
    used = 0;
}
