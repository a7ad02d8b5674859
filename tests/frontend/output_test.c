/* SPDX-License-Identifier: Apache-2.0 */
/* output_test.c: `ampc` writes its outputs, but never over inputs, other
   outputs or non-files; full disks; old outputs stay if a new one fails. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

#define COMPILE "--loss mse --target cpu:x86-64-v2 "

static void put(const char *name, const char *text) {
    REQUIRE(test_write_file(test_tmp(name), text, strlen(text)));
}

static void put_model(const char *name) {
    put(name, "graph forward(%x: f32[4,3]) {\n"
              "  param %w: f32[3,2] = normal(1, 0.5)\n"
              "  %y = matmul %x, %w : f32[4,2]\n  return %y\n}\n");
}

/* Runs a shell command in the test's folder with $AMPC: checks its status,
   and that its output contains `says`. */
static void check(int status, const char *says, const char *command) {
    char *out;
    int rc = test_command(
        &out, "cd '%s' && export AMPC='%s' AMPC_LIBNVRTC=none && %s",
        test_tmpdir(), test_ampc(), command);
    CHECK_MSG(rc == status, "%s: status %d\n%s", command, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

/* ---- one file must not be two -------------------------------------------- */

TEST_CASE(output, the_model_is_not_overwritten) {
    put_model("m.amp");
    put_model("kept");
    check(1, "-o would overwrite the model", "$AMPC m.amp -o m.amp " COMPILE);
    check(1, "-o would overwrite the model", "$AMPC m.amp -o ./m.amp " COMPILE);
    check(1, "--report would overwrite the model",
          "$AMPC m.amp -o m.so --report m.amp " COMPILE);
    check(0, "", "mkdir -p ir && cp m.amp ir/00-import.amp");
    check(1, "--dump-ir would overwrite the model",
          "$AMPC ir/00-import.amp -o m.so --dump-ir ir " COMPILE);
    test_same_files("m.amp", "kept");
    test_same_files("ir/00-import.amp", "kept");
    CHECK(access(test_tmp("m.so"), F_OK) != 0);
}

TEST_CASE(output, two_outputs_are_two_files) {
    put_model("m.amp");
    check(1, "--report would overwrite -o",
          "$AMPC m.amp -o two.so --report two.so " COMPILE);
    check(1, "--report would overwrite --weights sidecar",
          "$AMPC m.amp -o two.so --weights sidecar --report "
          "two.weights.safetensors " COMPILE);
    CHECK(access(test_tmp("two.so"), F_OK) != 0);
}

TEST_CASE(output, what_is_no_file_stays) {
    struct stat st;
    put_model("m.amp");
    REQUIRE(mkfifo(test_tmp("pipe"), 0600) == 0);
    REQUIRE(symlink("/dev/null", test_tmp("null")) == 0);
    check(1, "not a regular file", "$AMPC m.amp -o pipe " COMPILE);
    check(1, "symbolic link", "$AMPC m.amp -o null " COMPILE);
    check(1, "is a folder", "$AMPC m.amp -o . " COMPILE);
    check(1, "not a regular file",
          "$AMPC m.amp -o x.so --report pipe " COMPILE);
    check(1, "No such file", "$AMPC m.amp -o no/x.so " COMPILE);
    CHECK(lstat(test_tmp("pipe"), &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK(lstat(test_tmp("null"), &st) == 0 && S_ISLNK(st.st_mode));
    CHECK(access(test_tmp("x.so"), F_OK) != 0);
    if (mknod(test_tmp("device"), S_IFCHR | 0600, makedev(1, 3)) != 0) return;
    check(1, "not a regular file", "$AMPC m.amp -o device " COMPILE);
    CHECK(lstat(test_tmp("device"), &st) == 0 && S_ISCHR(st.st_mode));
}

/* ---- reading ------------------------------------------------------------- */

/* The file is opened once: the bytes that are checked are the bytes that the
   module keeps. */
TEST_CASE(output, the_model_is_read_once) {
    char events[4096];
    int opened = 0;
    put_model("once.amp");
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd < 0 || inotify_add_watch(fd, test_tmp("once.amp"), IN_OPEN) < 0)
        SKIP("no inotify");
    check(0, "", "$AMPC once.amp -o once.so " COMPILE);
    ssize_t n = read(fd, events, sizeof events);
    for (ssize_t at = 0; at < n; opened++)
        at += (ssize_t)sizeof(struct inotify_event) +
              ((struct inotify_event *)(void *)(events + at))->len;
    CHECK_EQ_INT(opened, 1);
    close(fd);
}

TEST_CASE(output, models_are_files) {
    REQUIRE(mkfifo(test_tmp("pipe.onnx"), 0600) == 0);
    REQUIRE(mkfifo(test_tmp("pipe.so"), 0600) == 0);
    REQUIRE(symlink("/dev/zero", test_tmp("zero.onnx")) == 0);
    check(1, "is not a regular file", "timeout 20 $AMPC check pipe.onnx");
    check(1, "is not a regular file", "timeout 20 $AMPC check zero.onnx");
    check(1, "is a folder", "$AMPC check . 2>&1");
    check(1, "the file is empty", ": > e.so; $AMPC inspect e.so");
    check(1, "the file is empty", "$AMPC run e.so");
    check(1, "error: is a folder, not a module of ampc", "$AMPC run .");
    check(1, "not a module", "timeout 20 $AMPC inspect pipe.so");
    check(1, "not a module", "timeout 20 $AMPC run pipe.so");
}

/* ---- failure ------------------------------------------------------------- */

/* The compiler's temporary files are not the user's. */
TEST_CASE(output, the_temporary_folder_is_named) {
    put_model("t.amp");
    check(
        1,
        "error: a temporary folder in tmp: File too large; $TMPDIR names the "
        "place",
        "mkdir tmp && trap '' XFSZ && ulimit -f 100 && TMPDIR=tmp $AMPC t.amp "
        "-o t.so " COMPILE);
    check(1, "a temporary folder in none: No such file or directory",
          "TMPDIR=none $AMPC t.amp -o t.so " COMPILE);
    check(0, "0", "ls tmp | wc -l");
}

/* 16 MB of weights; all other outputs are smaller. */
static void put_large_model(void) {
    static const char head[] = "graph forward(%x: f32[4,2048]) {\n"
                               "  param %w: f32[2048,2048] = [";
    static const char tail[] =
        "]\n  %y = matmul %x, %w : f32[4,2048]\n  return %y\n}\n";
    enum { N = 2048 * 2048, HEAD = sizeof head - 1 };
    char *text = malloc(HEAD + 2 * N + sizeof tail), *at = text + HEAD;
    REQUIRE(text != NULL);
    memcpy(text, head, HEAD);
    for (int i = 0; i < N; i++, at += 2) memcpy(at, i % 3 ? "1," : "2,", 2);
    strcpy(at - 1, tail);
    put("large.amp", text);
    free(text);
}

TEST_CASE(output, a_failed_compile_leaves_the_former_module) {
    put_large_model();
    check(0, "",
          "$AMPC large.amp -o l.so --weights sidecar " COMPILE
          "&& cp l.so l.old && cp l.weights.safetensors w.old");
    check(1, "File too large",
          "ulimit -f 12000 && $AMPC large.amp -o l.so --weights sidecar "
          "--seed 2 --precision fp32 " COMPILE);
    test_same_files("l.so", "l.old");
    test_same_files("l.weights.safetensors", "w.old");
    check(1, "File too large",
          "ulimit -f 12000 && $AMPC large.amp -o l.so --report r.txt " COMPILE);
    test_same_files("l.so", "l.old");
    CHECK(access(test_tmp("r.txt"), F_OK) != 0);
    CHECK_EQ_INT(test_temporaries(), 0);
}

/* Folders with several files, if a later file cannot be written. */
TEST_CASE(output, a_failed_folder_is_taken_back) {
    put_model("m.amp");
    put("d.csv", "1,2,3\n4,5,6\n7,8,9\n1,2,300000000000000000000\n");
    check(1, "File too large",
          "ulimit -f 4 && $AMPC m.amp -o x.so --dump-ir made/ " COMPILE);
    CHECK(access(test_tmp("made"), F_OK) != 0);
    check(1, "File too large",
          "ulimit -f 30 && $AMPC m.amp -o x.so --emit-c made " COMPILE);
    CHECK(access(test_tmp("made"), F_OK) != 0);
    check(1, "is a folder",
          "mkdir -p ir/04-programs.amp && echo mine > ir/mine && "
          "$AMPC m.amp -o x.so --dump-ir ir " COMPILE);
    CHECK_EQ_INT(test_entries(test_tmp("ir")), 2);
    check(1, "src/runtime/program: error: exists and is not a folder",
          "mkdir -p src/runtime && echo mine > src/runtime/program && "
          "$AMPC m.amp -o x.so --emit-c src " COMPILE);
    CHECK_EQ_INT(test_entries(test_tmp("src/runtime")), 1);
    check(0, "", "$AMPC m.amp -o f.so " COMPILE);
    check(1, "error", "$AMPC run f.so --feed x=d.csv:0-1 --fetch got");
    check(1, "error",
          "ulimit -f 0 && $AMPC run f.so --feed x=d.csv --fetch got");
    CHECK(access(test_tmp("got"), F_OK) != 0);
    check(1, "is a folder",
          "mkdir -p got/y.npy && $AMPC run f.so --feed x=d.csv --fetch got");
    CHECK_EQ_INT(test_entries(test_tmp("got")), 1);
}

TEST_CASE(output, a_full_standard_output_is_an_error) {
    put_model("m.amp");
    check(0, "", "$AMPC m.amp -o full.so " COMPILE);
    check(1, "standard output: No space left", "$AMPC --help > /dev/full");
    check(1, "standard output: No space left", "$AMPC --list-ops > /dev/full");
    check(1, "standard output: No space left", "$AMPC fmt m.amp > /dev/full");
    check(1, "standard output: No space left",
          "$AMPC inspect full.so --memory > /dev/full");
    check(1, "standard output: No space left",
          "$AMPC check m.amp --loss mse > /dev/full");
    put("d.csv", "1,2,3\n4,5,6\n7,8,9\n1,2,3\n");
    put("t.csv", "1,2\n4,5\n7,8\n1,2\n");
    check(1, "wrote w.st\nl.jsonl: error: ",
          "ulimit -f 8 && $AMPC run full.so --feed x=d.csv --feed target=t.csv "
          "--save w.st --steps 400 --log l.jsonl");
}

/* ---- a module that is overwritten while it runs -------------------------- */

/* The kernel takes the pages of a file that becomes shorter from those who
   have mapped it. The run waits for the reader of its log meanwhile. */
TEST_CASE(output, a_module_that_becomes_shorter) {
    put_model("m.amp");
    put("x.csv", "1,2,3\n4,5,6\n7,8,9\n1,2,3\n");
    put("t.csv", "1,2\n4,5\n7,8\n1,2\n");
    check(0, "", "$AMPC m.amp -o short.so " COMPILE);
    check(1, "short.so: error: the file became shorter while it was in use",
          "mkfifo log && (timeout 60 $AMPC run short.so --feed x=x.csv "
          "--feed target=t.csv --log log > said 2>&1 & run=$!; "
          "until grep -q 'waiting for a process' said; do sleep 0.05; done; "
          ": > short.so; cat log; wait $run; rc=$?; cat said; exit $rc)");
}
