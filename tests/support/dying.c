/* SPDX-License-Identifier: Apache-2.0 */
/* dying.c: for LD_PRELOAD.  The process ends with status 9 instead of making
   call $DIE_AT (counted from 1) that renames to a name containing $DIE_NAME.
   Its children are not affected. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int renameat(int a, const char *from, int b, const char *to);
int rename(const char *from, const char *to);

static const char *name;
static int left;

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("DIE_AT");
    name = getenv("DIE_NAME");
    left = at && name ? atoi(at) : 0;
    unsetenv("LD_PRELOAD");
}

int renameat(int a, const char *from, int b, const char *to) {
    if (left && strstr(to, name) && --left == 0) _exit(9);
    return (int)syscall(SYS_renameat, a, from, b, to);
}

int rename(const char *from, const char *to) {
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}
