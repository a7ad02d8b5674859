/* SPDX-License-Identifier: Apache-2.0 */
/* guarded.c: see guarded.h.  A page for the header; the pages of the block,
   whose end is the end of the last; a page without access. */
#define _DEFAULT_SOURCE
#include "tests/support/guarded.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/harness.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   (void)(p)
#define ASAN_UNPOISON_MEMORY_REGION(p, n) (void)(p)
#endif

enum { PAGE = 4096, UNTOUCHED = 0xa5 };

typedef struct Header {
    size_t bytes, mapped;
    char *data, *block,
        *end; /* data .. block and block + bytes .. end: slack */
} Header;

void *guarded_alloc(void *ctx, size_t bytes, size_t align) {
    Guarded *m = ctx;
    size_t padded = (bytes + align - 1) / align * align;
    size_t own = (padded + PAGE - 1) / PAGE * PAGE, all = own + 2 * PAGE;
    char *map = mmap(NULL, all, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return NULL;
    char *end = map + PAGE + own, *block = end - padded;
    if (mprotect(end, PAGE, PROT_NONE)) {
        munmap(map, all);
        return NULL;
    }
    *(Header *)map = (Header){bytes, all, map + PAGE, block, end};
    memset(map + PAGE, UNTOUCHED, (size_t)(block - map) - PAGE);
    memset(block, 0xff, bytes);
    memset(block + bytes, UNTOUCHED, padded - bytes);
    ASAN_POISON_MEMORY_REGION(block + bytes, padded - bytes);
    m->blocks++;
    m->bytes += (long)bytes;
    return block;
}

static void check_slack(const char *from, const char *to, const Header *h) {
    for (; from < to; from++)
        if ((unsigned char)*from != UNTOUCHED)
            FAIL("a block of %zu bytes is written at byte %td", h->bytes,
                 from - h->block);
}

void guarded_free(void *ctx, void *p, size_t bytes) {
    Guarded *m = ctx;
    if (!p) return;
    Header *h = (Header *)((uintptr_t)p / PAGE * PAGE - PAGE);
    CHECK_MSG(bytes == h->bytes, "a block of %zu bytes is freed as one of %zu",
              h->bytes, bytes);
    ASAN_UNPOISON_MEMORY_REGION(h->block + h->bytes,
                                (size_t)(h->end - h->block) - h->bytes);
    check_slack(h->data, h->block, h);
    check_slack(h->block + h->bytes, h->end, h);
    m->blocks--;
    m->bytes -= (long)h->bytes;
    munmap(h, h->mapped);
}
