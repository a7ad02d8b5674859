/* SPDX-License-Identifier: Apache-2.0 */
/* failing_malloc.c: for LD_PRELOAD.  Allocation $FAIL_AT of the process,
   counted from 1, fails, and with $FAIL_ON all later ones, too; at the end the
   number of allocations is written to the file $FAIL_COUNT. Children are not
   affected.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static atomic_long calls;
static long fail_at;
static int fail_on;
static const char *count_file;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("FAIL_AT");
    unsetenv("LD_PRELOAD");
    count_file = getenv("FAIL_COUNT");
    fail_on = getenv("FAIL_ON") != NULL;
    calls = 0;
    fail_at = at ? atol(at) : 0;
}

__attribute__((destructor)) static void end(void) {
    long n = calls;
    fail_at = 0;
    FILE *f = count_file ? fopen(count_file, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", n);
    fclose(f);
}

static int fails(void) {
    long n = ++calls;
    if (!fail_at || (n != fail_at && !(fail_on && n > fail_at))) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }

void *calloc(size_t n, size_t size) {
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    return fails() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    return fails() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **p, size_t align, size_t n) {
    *p = fails() ? NULL : __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}
