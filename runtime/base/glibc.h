/* SPDX-License-Identifier: Apache-2.0 */
/* glibc.h: uses the oldest sufficient symbols of glibc, so that a module linked
   on a newer system loads on glibc 2.17 (RHEL 7) and later.

   A linker takes a symbol's newest version: pthread_create@GLIBC_2.34 came with
   the move of libpthread into libc.  glibc still has the older versions;
   system calls replace functions that were added later. Include this header
   last, in each file that calls one of them; //tests/codegen:emit_test names
   a symbol that is newer. */
#ifndef AMPC_GLIBC_H
#define AMPC_GLIBC_H

#if defined __GLIBC__ && !defined AMPC_PORTABLE &&                             \
    !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The first glibc for AArch64 is 2.17. */
#if defined __aarch64__
#define AMPC_SYMBOL(name, x86_64)                                              \
    __asm__(".symver " #name "," #name "@GLIBC_2.17")
#else
#define AMPC_SYMBOL(name, x86_64)                                              \
    __asm__(".symver " #name "," #name "@GLIBC_" x86_64)
#endif
AMPC_SYMBOL(dladdr, "2.2.5");
AMPC_SYMBOL(dlclose, "2.2.5");
AMPC_SYMBOL(dlerror, "2.2.5");
AMPC_SYMBOL(dlinfo, "2.3.3");
AMPC_SYMBOL(dlopen, "2.2.5");
AMPC_SYMBOL(dlsym, "2.2.5");
AMPC_SYMBOL(glob, "2.2.5");
AMPC_SYMBOL(pthread_create, "2.2.5");
AMPC_SYMBOL(pthread_join, "2.2.5");
AMPC_SYMBOL(pthread_once, "2.2.5");
AMPC_SYMBOL(pthread_rwlock_rdlock, "2.2.5");
AMPC_SYMBOL(pthread_rwlock_unlock, "2.2.5");
AMPC_SYMBOL(pthread_rwlock_wrlock, "2.2.5");
AMPC_SYMBOL(pthread_sigmask, "2.2.5");

/* On both processors the kernel's struct stat is the library's. */
static inline int ampc_fstat(int fd, struct stat *st) {
    return (int)syscall(SYS_fstat, fd, st);
}
static inline int ampc_fstatat(int folder, const char *path, struct stat *st,
                               int flags) {
    return (int)syscall(SYS_newfstatat, folder, path, st, flags);
}
static inline ssize_t ampc_getrandom(void *to, size_t n, unsigned flags) {
    return syscall(SYS_getrandom, to, n, flags);
}
static inline int ampc_renameat2(int from, const char *old, int to,
                                 const char *name, unsigned flags) {
    return (int)syscall(SYS_renameat2, from, old, to, name, flags);
}
#define fstat     ampc_fstat
#define fstatat   ampc_fstatat
#define getrandom ampc_getrandom
#define renameat2 ampc_renameat2
#endif

/* musl 1.2.3 has no function for that system call. */
#if defined __linux__ && !defined __GLIBC__ && !defined RENAME_EXCHANGE &&     \
    !defined AMPC_NO_FILES
#include <sys/syscall.h>
#include <unistd.h>

#define RENAME_EXCHANGE 2
static inline int ampc_renameat2(int from, const char *old, int to,
                                 const char *name, unsigned flags) {
    return (int)syscall(SYS_renameat2, from, old, to, name, flags);
}
#define renameat2 ampc_renameat2
#endif

#endif
