/* SPDX-License-Identifier: Apache-2.0 */
/* portable.c: see portable.h. */
#define _GNU_SOURCE
#include "tests/support/portable.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

/* A program in node opens no file. */
#define WASM "clang --target=wasm32-wasi -msimd128 -DAMPC_NO_FILES"
#define NODE "node --no-warnings --experimental-wasi-unstable-preview1"

const PortableCompiler portable_compilers[] = {
    [BY_GCC] = {"x86-64, gcc", "gcc", "", "", "gcc"},
    [BY_CLANG] = {"x86-64, clang", "clang", "", "", "clang"},
    [WITH_MUSL] = {"x86-64, musl", "musl-gcc", "", "", "musl-tools"},
    [ON_I386] = {"i386, gcc", "i686-linux-gnu-gcc -msse2 -mfpmath=sse",
                 "-static", "", "gcc-i686-linux-gnu libc6-dev-i386-cross"},
    [ON_ARM64] = {"arm64, gcc", "aarch64-linux-gnu-gcc", "",
                  "qemu-aarch64 -L /usr/aarch64-linux-gnu",
                  "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"},
    [ON_ARMV7] = {"armv7, gcc", "arm-linux-gnueabihf-gcc", "",
                  "qemu-arm -L /usr/arm-linux-gnueabihf",
                  "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user"},
    [ON_RISCV64] = {"riscv64, gcc", "riscv64-linux-gnu-gcc", "",
                    "qemu-riscv64 -L /usr/riscv64-linux-gnu",
                    "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user"},
    [ON_WASM32] = {"wasm32, clang", WASM,
                   "-Wl,--stack-first,-z,stack-size=131072", NODE " wasm.mjs",
                   "clang lld wasi-libc libclang-rt-14-dev-wasm32 nodejs"},
};

/* Runs a program of wasm32-wasi in node. */
static const char wasm_runner[] =
    "import { readFileSync } from 'node:fs';\n"
    "import { WASI } from 'node:wasi';\n"
    "const args = process.argv.slice(2);\n"
    "const wasi = new WASI({ version: 'preview1', args, returnOnExit: true "
    "});\n"
    "const module = await WebAssembly.compile(readFileSync(args[0]));\n"
    "process.exitCode = wasi.start(await WebAssembly.instantiate(module,\n"
    "    { wasi_snapshot_preview1: wasi.wasiImport }));\n";

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
    char *runner;
    REQUIRE(asprintf(&runner, "%s/wasm.mjs", dir) > 0);
    REQUIRE(test_write_file(runner, wasm_runner, sizeof wasm_runner - 1));
    free(runner);
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
                     "%s %s -I. train.o '%s' -o host %s -lm && "
                     "%s ./host %s",
                     p->dir, c->cc, flags, c->cc, flags, host, c->link, c->run,
                     args) > 0);
    char *out = say(command);
    free(command);
    free(host);
    return out;
}

void portable_needs(const PortableCompiler *c) {
    int rc = test_command(NULL,
                          "cd '%s' && echo 'int main(void) { return 0; }' "
                          ">none.c && %s none.c -o none %s -lm",
                          test_tmpdir(), c->cc, c->link);
    if (!rc && *c->run)
        rc = test_command(NULL, "command -v %.*s", (int)strcspn(c->run, " "),
                          c->run);
    if (rc) SKIP("nothing compiles and runs it (Debian: %s)", c->packages);
}

void portable_check(const Portable *p, const PortableCompiler *c) {
    portable_needs(c);
    char *want, *out = portable_run(p, c, PORTABLE_STRICT " -O1", "20");
    bool files = !strstr(c->cc, "AMPC_NO_FILES");
    REQUIRE(asprintf(&want, "%s%s", p->wanted,
                     files ? "" : PORTABLE_SAVES_NOTHING) > 0);
    CHECK_STR(out, want);
    free(want);
    free(out);
}
