/* SPDX-License-Identifier: Apache-2.0 */
/* host.h: the runtime's calls of the system, besides files and threads.

   AMPC_PORTABLE is set by `ampc --target c`: then only C11 is used. */
#ifndef AMPC_HOST_H
#define AMPC_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/base/flag.h"

#ifdef AMPC_PORTABLE
#ifndef AMPC_NO_FILES
#include <unistd.h>
#endif
#ifdef _WIN32
#include <malloc.h>
#endif

typedef HostFlag HostLock;
#define HOST_UNLOCKED 0

static inline void host_lock(HostLock *l) {
    while (host_take(l)) {
    }
}

static inline void host_unlock(HostLock *l) { host_drop(l); }

typedef struct HostOnce {
    HostLock lock;
    int done;
} HostOnce;
#define HOST_ONCE                                                              \
    { HOST_UNLOCKED, 0 }

static inline void host_once(HostOnce *o, void (*work)(void)) {
    host_lock(&o->lock);
    if (!o->done) work();
    o->done = 1;
    host_unlock(&o->lock);
}

/* Tells a forked child from its parent: portable code does not fork. */
static inline int host_process(void) { return 0; }

static inline void *host_alloc(size_t bytes, size_t align) {
#if defined AMPC_NO_MALLOC
    (void)bytes;
    (void)align;
    return NULL;
#elif defined _WIN32
    return _aligned_malloc(bytes, align);
#else
    size_t whole = (bytes + align - 1) / align * align;
    return whole < bytes ? NULL : aligned_alloc(align, whole);
#endif
}

static inline void host_free(void *p) {
#if defined AMPC_NO_MALLOC
    (void)p;
#elif defined _WIN32
    _aligned_free(p);
#else
    free(p);
#endif
}

/* Without files: the text has no parts in other files. */
static inline int host_exists(const char *path) {
#ifdef AMPC_NO_FILES
    (void)path;
    return 0;
#else
    return access(path, F_OK) == 0;
#endif
}

/* For profiles; 0 without a clock, as in newlib. */
static inline uint64_t host_clock(void) {
#ifdef TIME_UTC
    struct timespec ts;
    if (!timespec_get(&ts, TIME_UTC)) return 0;
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
#else
    return 0;
#endif
}

#else
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

typedef pthread_mutex_t HostLock;
#define HOST_UNLOCKED       PTHREAD_MUTEX_INITIALIZER

static inline void host_lock(HostLock *l) { pthread_mutex_lock(l); }
static inline void host_unlock(HostLock *l) { pthread_mutex_unlock(l); }

typedef pthread_once_t HostOnce;
#define HOST_ONCE           PTHREAD_ONCE_INIT
#define host_once(once, fn) pthread_once(once, fn)

static inline int host_process(void) { return (int)getpid(); }

static inline int host_exists(const char *path) {
    return access(path, F_OK) == 0;
}

enum { HOST_HUGE_PAGE = 2 << 20 };

static inline void *host_alloc(size_t bytes, size_t align) {
    void *p = NULL;
    int big = bytes >= 2 * (size_t)HOST_HUGE_PAGE;
    if (posix_memalign(&p, big ? HOST_HUGE_PAGE : align, bytes) != 0)
        return NULL;
    /* reduces page faults to a tenth */
    if (big) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static inline void host_free(void *p) { free(p); }

static inline uint64_t host_clock(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
#endif

#endif
