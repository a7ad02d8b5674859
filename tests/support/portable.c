/* SPDX-License-Identifier: Apache-2.0 */
/* portable.c: see portable.h. */
#define _GNU_SOURCE
#include "tests/support/portable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

const PortableCompiler portable_compilers[] = {
    {"x86-64, gcc", "gcc", "", "gcc"},
    {"x86-64, clang", "clang", "", "clang"},
    {"x86-64, musl", "musl-gcc", "", "musl-tools"},
    {"arm64, gcc", "aarch64-linux-gnu-gcc",
     "qemu-aarch64 -L /usr/aarch64-linux-gnu",
     "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"},
    {"armv7, gcc", "arm-linux-gnueabihf-gcc",
     "qemu-arm -L /usr/arm-linux-gnueabihf",
     "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user"},
    {"riscv64, gcc", "riscv64-linux-gnu-gcc",
     "qemu-riscv64 -L /usr/riscv64-linux-gnu",
     "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user"},
    {NULL, NULL, NULL, NULL},
};

/* The host of a module with sanitizers has them, too. */
#ifdef __SANITIZE_ADDRESS__
#define HOST_CC "gcc -fsanitize=address,undefined"
#else
#define HOST_CC "gcc"
#endif

static char *say(const char *command) {
    char *out;
    int rc = test_command(&out, "%s", command);
    if (rc) FAIL("%s: status %d\n%s", command, rc, out);
    return out;
}

static char *host_path(void) {
    return strdup(test_data_path("tests/support/portable_host.c"));
}

Portable portable_write(const char *model, const char *options) {
    char path[100], *command;
    Portable p = {.dir = NULL};
    snprintf(path, sizeof path, "models/%s.amp", model);
    char *source = strdup(test_data_path(path)), *host = host_path();
    char *dir;
    REQUIRE(asprintf(&dir, "%s/%s", test_tmpdir(), model) > 0);
    REQUIRE(asprintf(&command,
                     "cd '%s' && '%s' '%s' %s --target c -o '%s' && "
                     "'%s' '%s' %s --target cpu:x86-64-v2 -o '%s/v2.so'",
                     test_tmpdir(), test_ampc(), source, options, dir,
                     test_ampc(), source, options, dir) > 0);
    say(command);
    free(command);
    REQUIRE(asprintf(&command,
                     "cd '%s' && " HOST_CC
                     " -DMODULE='\"./v2.so\"' -I. -o v2 '%s' "
                     "-ldl && ./v2",
                     dir, host) > 0);
    p.wanted = say(command);
    p.dir = dir;
    free(command);
    free(source);
    free(host);
    return p;
}

char *portable_run(const Portable *p, const PortableCompiler *c,
                   const char *flags, const char *args) {
    char *command, *host = host_path();
    REQUIRE(asprintf(&command,
                     "cd '%s' && %s %s -c train.c && "
                     "%s %s -I. train.o '%s' -o host -lm && %s ./host %s",
                     p->dir, c->cc, flags, c->cc, flags, host, c->run,
                     args) > 0);
    char *out = say(command);
    free(command);
    free(host);
    return out;
}

void portable_check(const Portable *p, const PortableCompiler *c) {
    char run[20] = "true";
    if (*c->run)
        snprintf(run, sizeof run, "%.*s", (int)strcspn(c->run, " "), c->run);
    if (test_command(NULL, "command -v %s && command -v %s", c->cc, run))
        SKIP("no %s or no %s (Debian: %s)", c->cc, run, c->packages);
    CHECK_STR(portable_run(p, c, PORTABLE_STRICT " -O1", "20"), p->wanted);
}
