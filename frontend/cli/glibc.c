/* SPDX-License-Identifier: Apache-2.0 */
/* glibc.c: lets `ampc`, built on a newer system, run with glibc 2.28.

   A linker takes a symbol's newest version, and most newest versions came when
   libpthread and libdl moved into libc (2.34). Here the program has hidden
   functions of these names: its own calls come to them, calls of libraries do
   not. They call the first version, which every glibc has, or the kernel.
   Modules include runtime/base/glibc.h. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__ &&                      \
    !defined __SANITIZE_THREAD__

#if defined __aarch64__
#define FIRST "@GLIBC_2.17"
#define JUMP  "b "
#define PLT   ""
#else
#define FIRST "@GLIBC_2.2.5"
#define JUMP  "jmp "
#define PLT   "@PLT"
#endif

#define HIDDEN __attribute__((visibility("hidden")))

#define FIRST_VERSION(name)                                                    \
    __asm__(".symver first_" #name "," #name FIRST "\n"                        \
            ".pushsection .text." #name ",\"ax\",%progbits\n"                  \
            ".balign 16\n"                                                     \
            ".globl " #name "\n"                                               \
            ".hidden " #name "\n"                                              \
            ".type " #name ",%function\n" #name ": " JUMP "first_" #name PLT   \
            "\n"                                                               \
            ".size " #name ",.-" #name "\n"                                    \
            ".popsection\n")

FIRST_VERSION(dladdr);
FIRST_VERSION(dlclose);
FIRST_VERSION(dlerror);
FIRST_VERSION(dlopen);
FIRST_VERSION(dlsym);
FIRST_VERSION(exp);
FIRST_VERSION(log);
FIRST_VERSION(pow);
FIRST_VERSION(pthread_attr_setstacksize);
FIRST_VERSION(pthread_create);
FIRST_VERSION(pthread_detach);
FIRST_VERSION(pthread_join);
FIRST_VERSION(pthread_mutex_timedlock);
FIRST_VERSION(pthread_mutexattr_destroy);
FIRST_VERSION(pthread_mutexattr_init);
FIRST_VERSION(pthread_mutexattr_settype);
FIRST_VERSION(pthread_once);
FIRST_VERSION(pthread_sigmask);

/* On both processors the kernel's structures are the library's. */
HIDDEN int fstatat(int folder, const char *path, struct stat *st, int flags) {
    return (int)syscall(SYS_newfstatat, folder, path, st, flags);
}

HIDDEN int stat(const char *path, struct stat *st) {
    return fstatat(AT_FDCWD, path, st, 0);
}

HIDDEN int fstat(int fd, struct stat *st) {
    return (int)syscall(SYS_fstat, fd, st);
}

HIDDEN ssize_t getdents64(int fd, void *entries, size_t n) {
    return syscall(SYS_getdents64, fd, entries, n);
}

/* ---- the start of the program -------------------------------------------- */

typedef int Main(int argc, char **argv, char **env);
typedef void Init(int argc, char **argv, char **env);

/* Names of the linker and the C library. */
extern Init *const __init_array_start[] HIDDEN,
    *const __init_array_end[] HIDDEN;
void _init(void) HIDDEN;

int first_start(Main *main, int argc, char **argv, Init *init,
                void (*fini)(void), void (*unload)(void), void *stack_end);
int __libc_start_main(Main *main, int argc, char **argv, Init *init,
                      void (*fini)(void), void (*unload)(void),
                      void *stack_end) HIDDEN;
__asm__(".symver first_start,__libc_start_main" FIRST);

/* Before 2.34 the library runs constructors by this function alone; since then
   it runs them itself where it is given none. */
static void run_constructors(int argc, char **argv, char **env) {
    _init();
    for (Init *const *f = __init_array_start; f < __init_array_end; f++)
        (*f)(argc, argv, env);
}

int __libc_start_main(Main *main, int argc, char **argv, Init *init,
                      void (*fini)(void), void (*unload)(void),
                      void *stack_end) {
    return first_start(main, argc, argv, init ? init : run_constructors, fini,
                       unload, stack_end);
}

#endif
