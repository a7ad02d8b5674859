/* SPDX-License-Identifier: Apache-2.0 */
/* outfile_test.c: how files are written (runtime/files/outfile.h), seen from
   outside: the folder's content afterwards, and the files that must not
   change. */
#define _GNU_SOURCE
#include "runtime/files/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

/* A new folder per case makes counting its entries simple. */
static char folder[500];

static void new_folder(void) {
    static int n;
    snprintf(folder, sizeof folder, "%s/f%d", test_tmpdir(), n++);
    REQUIRE(mkdir(folder, 0755) == 0);
}

static const char *in(const char *name) {
    static char path[8][600];
    static int next;
    char *p = path[next++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void put(const char *name, const char *text) {
    REQUIRE(test_write_file(in(name), text, strlen(text)));
}

static void holds(const char *name, const char *text) {
    char *got = test_read_file(in(name), NULL);
    CHECK_STR(got ? got : "(none)", text);
    free(got);
}

static bool save(OutFile *o, const char *name, const char *text) {
    bool ok = outfile_open(o, in(name), 0666, NULL, NULL) &&
              outfile_write(o, text, strlen(text)) && outfile_commit(o);
    if (!ok) outfile_abort(o);
    return ok;
}

static void refuses(const char *name, const char *why) {
    OutFile o;
    CHECK_MSG(!save(&o, name, "new"), "%s", name);
    CHECK_HAS(o.why, why);
    CHECK(!outfile_append(&o, in(name), false, NULL, NULL));
    CHECK_HAS(o.why, why);
    outfile_abort(&o);
}

/* ---- one file ------------------------------------------------------------ */

TEST_CASE(outfile, old_or_new_and_nothing_else) {
    OutFile o;
    new_folder();
    REQUIRE(save(&o, "a", "one"));
    holds("a", "one");
    REQUIRE(outfile_open(&o, in("a"), 0666, NULL, NULL));
    CHECK(outfile_write(&o, "two", 3));
    holds("a", "one");
    outfile_abort(&o);
    outfile_abort(&o);
    holds("a", "one");
    CHECK_EQ_INT(test_entries(folder), 1);
    REQUIRE(save(&o, "a", "three"));
    holds("a", "three");
    CHECK_EQ_INT(test_entries(folder), 1);
}

TEST_CASE(outfile, the_umask_decides_the_mode) {
    struct stat st;
    OutFile o;
    new_folder();
    mode_t old = umask(027);
    REQUIRE(outfile_open(&o, in("a"), 0777, NULL, NULL) && outfile_commit(&o));
    umask(old);
    REQUIRE(stat(in("a"), &st) == 0);
    CHECK_EQ_INT(st.st_mode & 0777, 0750);
}

TEST_CASE(outfile, a_relative_path_and_a_change_of_folder) {
    OutFile o;
    char old[600];
    new_folder();
    REQUIRE(getcwd(old, sizeof old) && chdir(folder) == 0);
    REQUIRE(outfile_open(&o, "a", 0666, NULL, NULL));
    REQUIRE(chdir("/") == 0);
    CHECK(outfile_write(&o, "x", 1) && outfile_commit(&o));
    REQUIRE(chdir(old) == 0);
    holds("a", "x");
}

TEST_CASE(outfile, paths_that_cannot_be) {
    char name[400], why[160];
    FileGuard *g = file_guard_new();
    new_folder();
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    refuses(name, "File name too long");
    refuses("", "is a folder");
    refuses(".", "is a folder");
    refuses("none/x", "No such file");
    CHECK(!file_guard_claim(g, "", "it", why));
    CHECK_HAS(why, "empty");
    file_guard_free(g);
}

TEST_CASE(outfile, what_is_no_regular_file_is_refused_and_stays) {
    struct stat st;
    new_folder();
    put("real", "keep");
    REQUIRE(mkfifo(in("fifo"), 0600) == 0);
    REQUIRE(mkdir(in("dir"), 0755) == 0);
    REQUIRE(symlink(in("real"), in("link")) == 0);
    REQUIRE(symlink("/dev/null", in("null")) == 0);
    REQUIRE(symlink(in("nowhere"), in("dangling")) == 0);
    refuses("fifo", "not a regular file");
    refuses("dir", "is a folder");
    refuses("link", "symbolic link");
    refuses("null", "symbolic link");
    refuses("dangling", "symbolic link");
    holds("real", "keep");
    CHECK(lstat(in("fifo"), &st) == 0 && S_ISFIFO(st.st_mode));
    CHECK(lstat(in("null"), &st) == 0 && S_ISLNK(st.st_mode));
    CHECK_EQ_INT(test_entries(folder), 6);
    if (mknod(in("device"), S_IFCHR | 0600, makedev(1, 3)) != 0) return;
    refuses("device", "not a regular file");
    CHECK(lstat(in("device"), &st) == 0 && S_ISCHR(st.st_mode));
}

/* Names that another program, or an older version, might use. */
TEST_CASE(outfile, files_of_others_beside_it_stay) {
    OutFile o;
    new_folder();
    put("victim", "keep");
    put("a.tmp", "mine");
    REQUIRE(symlink(in("victim"), in("b.tmp")) == 0);
    REQUIRE(save(&o, "a", "x") && save(&o, "b", "x"));
    holds("a.tmp", "mine");
    holds("victim", "keep");
}

TEST_CASE(outfile, locks_of_others_do_not_block) {
    OutFile o;
    new_folder();
    put("a", "old");
    int file = open(in("a"), O_RDONLY), dir = open(folder, O_RDONLY);
    REQUIRE(flock(file, LOCK_EX) == 0 && flock(dir, LOCK_EX) == 0);
    alarm(20);
    CHECK(save(&o, "a", "new"));
    alarm(0);
    holds("a", "new");
    close(file);
    close(dir);
}

TEST_CASE(outfile, leftovers_go_and_living_writers_stay) {
    OutFile o;
    new_folder();
    put(".ampc-0123456789abcdef", "left");
    put(".ampc-0123456789abcdee", "alive");
    put(".ampc-notes", "the user's");
    int alive = open(in(".ampc-0123456789abcdee"), O_RDONLY);
    REQUIRE(flock(alive, LOCK_EX) == 0);
    REQUIRE(save(&o, "a", "x"));
    CHECK(access(in(".ampc-0123456789abcdef"), F_OK) != 0);
    holds(".ampc-0123456789abcdee", "alive");
    holds(".ampc-notes", "the user's");
    close(alive);
}

/* Runs fn in a separate process; it must end with status 0. */
static void in_child(void (*fn)(void)) {
    int status;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        fn();
        _exit(0);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(status == 0, "wait status %d", status);
}

static void limited(void) {
    static char data[100000];
    struct rlimit l = {50000, 50000};
    OutFile o;
    setrlimit(RLIMIT_FSIZE, &l);
    if (!outfile_open(&o, in("a"), 0666, NULL, NULL)) _exit(1);
    if (outfile_write(&o, data, sizeof data)) _exit(2);
    if (!strstr(o.why, strerror(EFBIG))) _exit(3);
    outfile_abort(&o);
}

TEST_CASE(outfile, a_limit_on_file_sizes_is_a_failure_not_a_signal) {
    new_folder();
    put("a", "old");
    in_child(limited);
    holds("a", "old");
    CHECK_EQ_INT(test_entries(folder), 1);
}

/* A patch whose end exceeds the limit is written in part. */
static void limited_patch(void) {
    static char data[60000];
    struct rlimit l = {50000, 50000};
    OutFile o;
    if (!outfile_open(&o, in("a"), 0666, NULL, NULL) ||
        !outfile_write(&o, data, sizeof data) ||
        !outfile_patch(&o, "new", 3, 1) || setrlimit(RLIMIT_FSIZE, &l))
        _exit(1);
    if (!outfile_patch(&o, data, 8, 49992)) _exit(2);
    if (outfile_patch(&o, data, 8, 49993)) _exit(3);
    if (!*o.why) _exit(4);
    outfile_abort(&o);
}

TEST_CASE(outfile, half_a_patch_is_a_failure) {
    new_folder();
    put("a", "old");
    in_child(limited_patch);
    holds("a", "old");
    CHECK_EQ_INT(test_entries(folder), 1);
}

/* ---- where files need a name --------------------------------------------- */

/* openat(.., O_TMPFILE ..) fails, as on a network file system. */
static bool forbid_nameless(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

static int heard;

static void hear(int dir, const char *tmp, bool there) {
    (void)dir;
    (void)tmp;
    heard += there ? 1 : 100;
}

static void named(void) {
    OutFile o;
    if (!forbid_nameless()) _exit(1);
    outfile_set_hook(hear);
    if (!outfile_open(&o, in("a"), 0666, NULL, NULL) || heard != 1 || !o.named)
        _exit(2);
    if (!outfile_write(&o, "new", 3)) _exit(3);
    outfile_abort(&o);
    if (heard != 101 || !save(&o, "a", "new") || heard != 202) _exit(4);
    if (!outfile_open(&o, in("b"), 0666, NULL, NULL)) _exit(5);
    _exit(0); /* like a killed process: the name stays */
}

TEST_CASE(outfile, with_a_name_all_is_the_same) {
    OutFile o;
    new_folder();
    put("a", "old");
    in_child(named);
    holds("a", "new");
    CHECK_EQ_INT(test_entries(folder), 2);
    REQUIRE(save(&o, "c", "x"));
    CHECK_EQ_INT(test_entries(folder), 2);
}

/* flock fails, as on file systems without locks. */
static void without_locks(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    OutFile o;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0)
        _exit(1);
    if (flock(0, LOCK_UN) == 0 || !save(&o, "a", "new")) _exit(2);
    if (!outfile_append(&o, in("log"), false, NULL, NULL) ||
        !outfile_write(&o, "x", 1) || !outfile_commit(&o))
        _exit(3);
}

TEST_CASE(outfile, without_locks_all_goes_on) {
    new_folder();
    put("a", "old");
    put(".ampc-0123456789abcdef", "whose?");
    in_child(without_locks);
    holds("a", "new");
    holds("log", "x");
    holds(".ampc-0123456789abcdef", "whose?");
}

/* ---- a file that grows --------------------------------------------------- */

TEST_CASE(outfile, appending_goes_on_or_starts_anew) {
    OutFile o, second;
    new_folder();
    put("log", "one\n");
    REQUIRE(outfile_append(&o, in("log"), true, NULL, NULL));
    CHECK(outfile_write(&o, "two\n", 4));
    holds("log", "one\ntwo\n");
    CHECK(!outfile_append(&second, in("log"), false, NULL, NULL));
    CHECK_HAS(second.why, "another process is writing it");
    outfile_abort(&second);
    CHECK(outfile_commit(&o));
    holds("log", "one\ntwo\n");
    REQUIRE(outfile_append(&o, in("log"), false, NULL, NULL));
    CHECK(outfile_write(&o, "x", 1) && outfile_commit(&o));
    holds("log", "x");
}

/* ---- several files ------------------------------------------------------- */

static void clashes(FileGuard *g, const char *path, const char *why) {
    char text[160] = "";
    CHECK_MSG(!file_guard_claim(g, path, "the new one", text), "%s", path);
    CHECK_HAS(text, why);
}

TEST_CASE(outfile, the_guard_keeps_files_apart) {
    char why[160];
    OutFile o;
    new_folder();
    FileGuard *g = file_guard_new();
    put("model", "m");
    put("other", "o");
    REQUIRE(mkdir(in("sub"), 0755) == 0);
    REQUIRE(symlink(folder, in("here")) == 0);
    REQUIRE(symlink(in("other"), in("alias")) == 0);
    REQUIRE(link(in("model"), in("hard")) == 0);
    CHECK(file_guard_input(g, in("model"), "the model", why));
    CHECK(file_guard_input(g, in("alias"), "a feed", why));
    CHECK(file_guard_input(g, in("none"), "nothing", why));
    clashes(g, in("model"), "the new one would overwrite the model");
    clashes(g, in("sub/../model"), "the model");
    clashes(g, in("here/model"), "the model");
    clashes(g, in("hard"), "the model");
    clashes(g, in("other"), "a feed");
    CHECK(file_guard_claim(g, in("out"), "the module", why));
    clashes(g, in("out"), "the module");
    clashes(g, in("here/out"), "the module");
    CHECK(outfile_open(&o, in("sub/out"), 0666, g, "the report"));
    outfile_abort(&o);
    clashes(g, in("sub/out"), "the report");
    CHECK(file_guard_claim(g, in("none"), "not read after all", why));
    put("out", "x");
    CHECK(!file_guard_input(g, in("out"), "the data", why));
    CHECK_HAS(why, "the module would overwrite the data");
    holds("model", "m");
    file_guard_free(g);
}
