/* SPDX-License-Identifier: Apache-2.0 */
/* portable_test.c: code from `ampc --target c`: no warnings, the bits of the
   x86-64-v2 module, and no unwanted system calls; ampc.js.
   portable_slow_test.c tests other machines. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/portable.h"

static const Portable *mlp(void) {
    static Portable p;
    if (!p.dir) p = portable_write("mlp", "--dim B=8 --dim H=32");
    return &p;
}

TEST_CASE(portable, threads_do_not_change_bits) {
    static const char flags[] = PORTABLE_STRICT " -O0 -DAMPC_THREADS -pthread";
    CHECK_STR(portable_run(mlp(), portable_compilers, flags, "20 3"),
              mlp()->wanted);
}

TEST_CASE(portable, clang_has_no_warning) {
    char *out;
    if (test_command(NULL, "command -v clang")) SKIP("no clang");
    int rc = test_command(
        &out, "cd '%s' && clang " PORTABLE_STRICT " -fsyntax-only train.c",
        mlp()->dir);
    CHECK_MSG(rc == 0, "%s", out);
}

/* The C that compilers without vectors, attributes and atomics read. */
TEST_CASE(portable, plain_c_has_the_same_bits_and_no_warning) {
    static const char flags[] =
        PORTABLE_STRICT " -pedantic-errors -Wvla -O0 -DAMPC_PLAIN";
    CHECK_STR(portable_run(mlp(), portable_compilers, flags, "20"),
              mlp()->wanted);
}

/* tcc knows nothing of GNU C: it sees what gcc accepts in plain C, too. */
TEST_CASE(portable, tcc_has_the_same_bits) {
    portable_needs(&portable_compilers[BY_TCC]);
    CHECK_STR(
        portable_run(mlp(), &portable_compilers[BY_TCC], PORTABLE_STRICT, "20"),
        mlp()->wanted);
}

/* Memory from an array, no files, no threads: checks which system functions
   remain. */
TEST_CASE(portable, asks_for_nothing_that_is_not_wanted) {
    static const char flags[] = "-std=c11 -O0 -DAMPC_NO_FILES -DAMPC_NO_MALLOC "
                                "-DOWN_MEMORY=16777216";
    static const char *const never[] = {
        "malloc",         "calloc",  "access",        "free",
        "open",           "fopen",   "read",          "pread",
        "write",          "dlopen",  "syscall",       "getenv",
        "pthread_create", "sysconf", "mmap",          "exit",
        "abort",          "printf",  "aligned_alloc", "pthread_mutex_lock"};
    char want[4000], *out = portable_run(mlp(), portable_compilers, flags, "");
    CHECK(portable_memory(out) > 0);
    snprintf(want, sizeof want, "%s" PORTABLE_SAVES_NOTHING, mlp()->wanted);
    CHECK_STR(out, want);
    int rc = test_command(&out, "cd '%s' && nm -u train.o", mlp()->dir);
    CHECK_EQ_INT(rc, 0);
    CHECK_HAS(out, "U memcpy");
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        char name[60];
        snprintf(name, sizeof name, "U %s\n", never[i]);
        CHECK_MSG(!strstr(out, name), "the text asks for %s", never[i]);
    }
}

/* Sizes of ampc.h's structs and their last fields that ampc.js has, in the
   order of its STRUCTS. */
static const char struct_sizes[] =
    "#define AMPC_NO_LOADER\n"
    "#include \"ampc.h\"\n"
    "#define OF(type, last) sizeof(type), offsetof(type, last)\n"
    "const size_t *struct_sizes(void) {\n"
    "    static const size_t sizes[] = {\n"
    "        OF(ampc_module_info, reserved0), OF(ampc_program_info, flops),\n"
    "        OF(ampc_tensor_info, sample_rows),\n"
    "        OF(ampc_variable_info, bytes),\n"
    "        OF(ampc_input, reserved0), OF(ampc_output, place),\n"
    "        OF(ampc_metrics, skip_streak), OF(ampc_eval, correct_top),\n"
    "        OF(ampc_api, write_variable)};\n"
    "    return sizes;\n"
    "}\n";

/* The host in JavaScript (portable_host.mjs) does the same steps as the host in
 * C. */
TEST_CASE(portable, javascript_trains_as_c_does) {
    static const char link[] =
        "-mexec-model=reactor -Wl,--export=ampc_module,--export=malloc,"
        "--export=free,--export-table,--stack-first,-z,stack-size=131072";
    char *out, *want;
    const PortableCompiler *c = &portable_compilers[ON_WASM32];
    char *script = strdup(test_data_path("runtime/js/ampc.js"));
    portable_needs(c);
    REQUIRE(asprintf(&want, "%s/sizes.c", mlp()->dir) > 0);
    REQUIRE(test_write_file(want, struct_sizes, sizeof struct_sizes - 1));
    free(want);
    int rc = test_command(
        &out,
        "cd '%s' && cp '%s' ampc.mjs && %s -std=c11 %s "
        "-Wl,--export=struct_sizes sizes.c train.c -o train.wasm && "
        "node '%s' $PWD/ampc.mjs train.wasm 20",
        mlp()->dir, script, c->cc, link,
        test_data_path("tests/support/portable_host.mjs"));
    if (rc) FAIL("status %d\n%s", rc, out);
    REQUIRE(asprintf(&want, "%sok\n", mlp()->wanted) > 0);
    CHECK_STR(out, want);
    free(want);
    free(out);
    free(script);
}

/* The module's text, its header, and the API's header in a folder. */
TEST_CASE(portable, one_file_is_the_text_of_the_folder) {
    int rc =
        test_command(NULL,
                     "cd '%s' && '%s' '%s' --dim B=8 --dim H=32 --target "
                     "c -o one.c && cmp one.c train.c",
                     mlp()->dir, test_ampc(), test_data_path("models/mlp.amp"));
    CHECK_EQ_INT(rc, 0);
}

TEST_CASE(portable, refuses_what_does_not_go_together) {
    static const struct {
        const char *options, *message;
    } cases[] = {
        {"--target cpu:armv8-a,cpu:x86-64-v2 -o x",
         "--target cpu:x86-64-v2,cpu:armv8-a: a module is for one kind of "
         "processor"},
        {"--target c,cpu -o x", "--target c stands alone: compile once more"},
        {"--target c --weights sidecar -o x",
         "--weights sidecar does not go with --target c"},
        {"--target c -o x.so",
         "-o x.so: --target c writes a folder (-o DIR) or one file"},
        {"--target c -o x.h", "-o x.h: ampc writes libraries"},
        {"--target c --symbol session_open -o x",
         "--symbol session_open: the module's own code has that name; choose "
         "another name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        int rc = test_command(
            &out,
            "cd '%s' && '%s' '%s' %s; s=$?; test ! -e x || exit 9; "
            "exit $s",
            test_tmpdir(), test_ampc(), test_data_path("models/mlp.amp"),
            cases[i].options);
        CHECK_EQ_INT(rc, 1);
        CHECK_HAS(out, cases[i].message);
    }
}

/* The message names the missing program and the environment variable for
 * another. */
TEST_CASE(portable, another_processor_needs_a_cross_compiler) {
    char *out;
    int rc = test_command(&out,
                          "cd '%s' && CC_aarch64=missing-cc '%s' '%s' "
                          "--target cpu:armv8-a -o arm.so",
                          test_tmpdir(), test_ampc(),
                          test_data_path("models/mlp.amp"));
    CHECK_EQ_INT(rc, 1);
    CHECK_HAS(out, "no C compiler for aarch64: 'missing-cc' was not found");
    CHECK_HAS(out, "or set CC_aarch64");
}
