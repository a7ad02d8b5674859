/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.c: see foreign.h. */
#define _GNU_SOURCE
#include "tests/support/foreign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

#define CC   "aarch64-linux-gnu-gcc"
#define QEMU "qemu-aarch64"
/* Its own libraries, not those of a system with arm64 as a second
   architecture, whose loader is another one. */
#define ROOT "/usr/aarch64-linux-gnu"

static void say(const char *command) {
    char *out;
    int rc = test_command(&out, "%s", command);
    if (rc) FAIL("%s: status %d\n%s", command, rc, out);
    free(out);
}

static void need_tools(void) {
    if (test_command(NULL, "command -v " CC " && command -v " QEMU))
        SKIP("no " CC " or no " QEMU " (Debian: gcc-aarch64-linux-gnu "
             "libc6-dev-arm64-cross qemu-user)");
}

/* The objects of the runtime are kept beside the modules of this test. */
char *foreign_compile(const char *model, const char *target,
                      const char *options) {
    static int count;
    char *path, *command;
    need_tools();
    REQUIRE(asprintf(&path, "%s/a%d.so", test_tmpdir(), ++count) > 0);
    REQUIRE(asprintf(
                &command, "'%s' '%s' -o '%s' --target %s --cache '%s/cache' %s",
                test_ampc(), model, path, target, test_tmpdir(), options) > 0);
    say(command);
    free(command);
    return path;
}

static void build_host(void) {
    static bool built;
    char *command,
        *host = strdup(test_data_path("tests/support/foreign_host.c"));
    char *api = strdup(test_data_path("runtime/ampc.h"));
    if (!built) {
        REQUIRE(asprintf(&command,
                         CC " -O1 -I\"$(dirname '%s')\" -o '%s/foreign' '%s' "
                            "-ldl",
                         api, test_tmpdir(), host) > 0);
        say(command);
        free(command);
    }
    built = true;
    free(host);
    free(api);
}

static const char *cpu_of = "max", *isa_of = "";

void foreign_machine(const char *cpu, const char *isa) {
    cpu_of = cpu ? cpu : "max";
    isa_of = isa ? isa : "";
}

char *foreign_run(const char *module, int threads, const char *what,
                  const void *bytes, size_t size, size_t *n) {
    char *command;
    build_host();
    REQUIRE(test_write_file(test_tmp("foreign.in"), bytes, size));
    REQUIRE(asprintf(&command,
                     "cd '%s' && AMPC_ISA='%s' " QEMU " -cpu %s "
                     "-L " ROOT " -E LD_LIBRARY_PATH=" ROOT "/lib ./foreign "
                     "'%s' %d %s <foreign.in 2>&1 >foreign.out",
                     test_tmpdir(), isa_of, cpu_of, module, threads, what) > 0);
    say(command);
    free(command);
    char *out = test_read_file(test_tmp("foreign.out"), n);
    REQUIRE(out != NULL);
    return out;
}
