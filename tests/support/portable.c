/* SPDX-License-Identifier: Apache-2.0 */
/* portable.c: see portable.h. */
#define _GNU_SOURCE
#include "tests/support/portable.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/harness.h"

/* Everything is in 256 KB: memory for the module, stack, the C library. */
#define CORTEX_M4                                                              \
    "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb -mfpu=fpv4-sp-d16 "             \
    "-mfloat-abi=hard -DAMPC_NO_FILES -DAMPC_NO_MALLOC -DOWN_MEMORY=220000 "   \
    "-ffunction-sections -fdata-sections"
#define CORTEX_M4_LINK                                                         \
    "microcontroller.c -T microcontroller.ld -nostartfiles "                   \
    "--specs=nano.specs -Wl,--gc-sections -Wl,--defsym=STACK_BYTES=24576 "     \
    "-Wl,--defsym=HEAP_BYTES=2048"
#define CORTEX_M4_RUN                                                          \
    "qemu-system-arm -M mps2-an386 -display none -serial none -monitor none "  \
    "-semihosting-config enable=on -kernel"

/* A program in node opens no file. */
#define WASM "clang --target=wasm32-wasi -msimd128 -DAMPC_NO_FILES"
#define NODE "node --no-warnings --experimental-wasi-unstable-preview1"

const PortableCompiler portable_compilers[] = {
    [BY_GCC] = {"x86-64, gcc", "gcc", "", "", "", "gcc"},
    [BY_CLANG] = {"x86-64, clang", "clang", "", "", "", "clang"},
    [BY_TCC] = {"x86-64, tcc", "tcc", "", "", "", "tcc"},
    [BY_GCC_IN_PLAIN_C] = {"x86-64, gcc, plain C", "gcc -DAMPC_PLAIN", "", "",
                           "", "gcc"},
    [WITH_MUSL] = {"x86-64, musl", "musl-gcc", "", "", "", "musl-tools"},
    [ON_I386] = {"i386, gcc", "i686-linux-gnu-gcc -msse2 -mfpmath=sse",
                 "-static", "", "", "gcc-i686-linux-gnu libc6-dev-i386-cross"},
    [ON_ARM64] = {"arm64, gcc", "aarch64-linux-gnu-gcc", "",
                  "qemu-aarch64 -L /usr/aarch64-linux-gnu", "",
                  "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"},
    [ON_ARMV7] = {"armv7, gcc", "arm-linux-gnueabihf-gcc", "",
                  "qemu-arm -L /usr/arm-linux-gnueabihf", "",
                  "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross qemu-user"},
    [ON_RISCV64] = {"riscv64, gcc", "riscv64-linux-gnu-gcc", "",
                    "qemu-riscv64 -L /usr/riscv64-linux-gnu", "",
                    "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross qemu-user"},
    [ON_WASM32] = {"wasm32, clang", WASM,
                   "-Wl,--stack-first,-z,stack-size=131072", NODE " wasm.mjs",
                   "", "clang lld wasi-libc libclang-rt-14-dev-wasm32 nodejs"},
    [ON_WINDOWS] = {"Windows (wine), gcc",
                    "x86_64-w64-mingw32-gcc -DAMPC_NO_FILES",
                    "-static -Wl,-o,host", /* without .exe */
                    "/usr/lib/wine/wine64", "", "gcc-mingw-w64-x86-64 wine64"},
    [ON_CORTEX_M4] = {"cortex-m4, gcc", CORTEX_M4, CORTEX_M4_LINK,
                      CORTEX_M4_RUN, "-append",
                      "gcc-arm-none-eabi libnewlib-arm-none-eabi "
                      "qemu-system-arm"},
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

static char *support_path(const char *name) {
    char path[100];
    snprintf(path, sizeof path, "tests/support/%s", name);
    return strdup(test_data_path(path));
}

static char *host_path(void) { return support_path("portable_host.c"); }

/* What a machine without an operating system needs besides the host. */
static void copy_start(const char *dir) {
    static const char *const names[] = {"microcontroller.c",
                                        "microcontroller.ld"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *from = support_path(names[i]), *command;
        REQUIRE(asprintf(&command, "cp '%s' '%s/%s'", from, dir, names[i]) > 0);
        free(say(command));
        free(command);
        free(from);
    }
}

Portable portable_write(const char *model, const char *options) {
    char path[100], *command;
    Portable p = {.model = model};
    snprintf(path, sizeof path, "models/%s.amp", model);
    char *source = strdup(test_data_path(path)), *host = host_path();
    char *dir;
    static int written;
    REQUIRE(asprintf(&dir, "%s/%s%d", test_tmpdir(), model, written++) > 0);
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
    copy_start(dir);
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
                     "%s ./host %s %s%s%s",
                     p->dir, c->cc, flags, c->cc, flags, host, c->link, c->run,
                     c->args, *c->args ? "'" : "", args,
                     *c->args ? "'" : "") > 0);
    char *out = say(command);
    free(command);
    free(host);
    return out;
}

unsigned long portable_memory(char *out) {
    static const char words[] = "\nmemory ";
    char *at = strstr(out, words);
    if (!at) return 0;
    unsigned long n = strtoul(at + strlen(words), NULL, 10);
    at[1] = 0;
    return n;
}

void portable_needs(const PortableCompiler *c) {
    copy_start(test_tmpdir());
    setenv("WINEPREFIX", test_tmp("wine"), 0);
    setenv("WINEDEBUG", "-all", 0);
    int rc = test_command(NULL,
                          "cd '%s' && echo 'int main(void) { return 0; }' "
                          ">none.c && %s none.c -o none %s -lm",
                          test_tmpdir(), c->cc, c->link);
    if (!rc && *c->run)
        rc = test_command(NULL, "command -v %.*s", (int)strcspn(c->run, " "),
                          c->run);
    if (rc) SKIP("nothing compiles and runs it (Debian: %s)", c->packages);
    if (strstr(c->run, "wine")) /* its first program makes a folder, says so */
        test_command(NULL, "cd '%s' && %s ./host", test_tmpdir(), c->run);
}

/* Milliseconds that `steps` steps take, with the program's start. */
static double run_ms(const Portable *p, const PortableCompiler *c, int steps) {
    struct timespec from, to;
    char *command, args[40];
    snprintf(args, sizeof args, *c->args ? "'%d'" : "%d", steps);
    REQUIRE(asprintf(&command, "cd '%s' && %s ./host %s %s >/dev/null", p->dir,
                     c->run, c->args, args) > 0);
    clock_gettime(CLOCK_MONOTONIC, &from);
    free(say(command));
    clock_gettime(CLOCK_MONOTONIC, &to);
    free(command);
    return (double)(to.tv_sec - from.tv_sec) * 1e3 +
           (double)(to.tv_nsec - from.tv_nsec) / 1e6;
}

static void put_row(const Portable *p, const PortableCompiler *c,
                    unsigned long memory) {
    enum { FEW = 20, MANY = 220 };
    char *command, *size;
    REQUIRE(asprintf(&command,
                     "cd '%s' && { size host 2>/dev/null | "
                     "awk 'NR == 2 { print $1 + $2; n = 1 } "
                     "END { exit !n }' || stat -c %%s host; }",
                     p->dir) > 0);
    size = say(command);
    size[strcspn(size, "\n")] = 0;
    double ms = (run_ms(p, c, MANY) - run_ms(p, c, FEW)) / (MANY - FEW);
    printf("| %s | %s | %s | %lu | equal | %.3f |\n", p->model, c->name, size,
           memory, ms);
    free(command);
    free(size);
}

void portable_check(const Portable *p, const PortableCompiler *c) {
    portable_needs(c);
    char *want, *out = portable_run(p, c, PORTABLE_STRICT " -O1", "20");
    unsigned long memory = portable_memory(out);
    bool files = !strstr(c->cc, "AMPC_NO_FILES");
    REQUIRE(asprintf(&want, "%s%s", p->wanted,
                     files ? "" : PORTABLE_SAVES_NOTHING) > 0);
    CHECK_STR(out, want);
    put_row(p, c, memory);
    free(want);
    free(out);
}
