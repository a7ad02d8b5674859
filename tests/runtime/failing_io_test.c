/* SPDX-License-Identifier: Apache-2.0 */
/* failing_io_test.c: saving while a system call fails.

   In a child process the kernel refuses the call (seccomp) during a save:
   the save reports it, the existing checkpoint stays, nothing is left
   behind, and the session continues. */
#define _GNU_SOURCE
#include "tests/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/files/safetensors.h"
#include "tests/support/tiny_module.h"

typedef struct Refusal {
    const char *name;
    int call[3]; /* numbers of system calls; 0: no more (read is not refused) */
    int error;
} Refusal;

static const Refusal refusals[] = {
    {"a full disk", {SYS_write}, ENOSPC},
    {"a full disk at the end", {SYS_pwrite64}, ENOSPC},
    {"a disk that loses data", {SYS_fsync, SYS_fdatasync}, EIO},
    {"no file descriptor", {SYS_openat, SYS_open}, EMFILE},
    {"no second rename", {SYS_rename, SYS_renameat}, EIO},
    {"no rename", {SYS_rename, SYS_renameat, SYS_renameat2}, EIO},
};

/* Refuses them from now on; false if the kernel does not support that. */
static bool refuse(const Refusal *r) {
    struct sock_filter code[16];
    unsigned short n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (int i = 0; i < 3 && r->call[i]; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 (unsigned)r->call[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(
            BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)r->error);
    }
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool train(ampc_session *s, int batch) {
    float x[TINY_BATCH * TINY_IN], t[TINY_BATCH * TINY_OUT];
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    tiny_batch(batch, x, t);
    return tiny_api()->step(s, in, 2, NULL) == AMPC_OK;
}

static ampc_session *session(void) {
    ampc_options o = {.size = sizeof o, .threads = 1};
    ampc_session *s = NULL;
    return tiny_api()->open(tiny_handle(&tiny_module), &o, &s, NULL, 0) ? NULL
                                                                        : s;
}

/* The child's finding, as its exit status. */
enum { FINE, NO_FILTER, NO_SESSION, NOT_TOLD, NOT_SAID, STUCK };

static int save_while(const Refusal *r, const char *path) {
    const ampc_api *a = tiny_api();
    ampc_session *s = session();
    if (!s || !train(s, 0) || a->save(s, path) || !train(s, 1))
        return NO_SESSION;
    if (!refuse(r)) return NO_FILTER;
    if (a->save(s, path) != AMPC_ERR_FILE) return NOT_TOLD;
    if (!strstr(a->error(s), strerror(r->error))) return NOT_SAID;
    return train(s, 2) ? FINE : STUCK;
}

/* The weights after this number of steps from the start. */
static void weights_after(int steps, const char *path, float w[6]) {
    ampc_session *s = session();
    REQUIRE(s);
    for (int i = 0; i < steps; i++) REQUIRE(train(s, i));
    if (path && tiny_api()->resume(s, path))
        FAIL("resume: %s", tiny_api()->error(s));
    ampc_output out =
        ampc_out("w", w, TINY_IN * TINY_OUT * sizeof *w, AMPC_DTYPE_F32);
    REQUIRE(!tiny_api()->read_variable(s, "w", &out));
    tiny_api()->close(s);
}

static void check_refusal(const Refusal *r, int number) {
    char folder[600], path[700];
    float want[6], got[6];
    int status;
    snprintf(folder, sizeof folder, "%s/refusal%d", test_tmpdir(), number);
    snprintf(path, sizeof path, "%s/w.safetensors", folder);
    REQUIRE(test_command(NULL, "mkdir '%s'", folder) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(save_while(r, path));
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTER)
        SKIP("the kernel takes no seccomp filter");
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == FINE, "%s: status %x",
              r->name, (unsigned)status);
    CHECK_MSG(test_entries(folder) == 1, "%s leaves files", r->name);
    weights_after(1, NULL, want);
    weights_after(0, path, got);
    CHECK_MEM(got, want, sizeof want);
}

TEST_CASE(failing_io, saving_is_told_and_the_former_checkpoint_stays) {
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        check_refusal(&refusals[i], (int)i);
}

static void *give(void *ctx, size_t bytes, size_t align) {
    (void)ctx;
    (void)align;
    return calloc(1, bytes);
}

static void take(void *ctx, void *p, size_t bytes) {
    (void)ctx;
    (void)bytes;
    free(p);
}

/* "On failure nothing is left to close": a descriptor with the number of a
   refused file's is not closed with it. */
TEST_CASE(failing_io, a_refused_file_is_closed_once) {
    static const char damaged[] = "\x08\0\0\0\0\0\0\0no json!";
    ampc_options mem = {.size = sizeof mem, .alloc = give, .free = take};
    StFile f = {.fd = -1};
    const char *path = test_tmp("damaged");
    REQUIRE(test_write_file(path, damaged, sizeof damaged - 1));
    int before = open("/dev/null", O_RDONLY);
    close(before);
    CHECK(st_open(&mem, path, &f) != AMPC_OK);
    int other = open("/dev/null", O_RDONLY);
    CHECK_EQ_INT(other, before); /* no descriptor is left open */
    st_close(&f);
    CHECK(fcntl(other, F_GETFD) >= 0);
    close(other);
}
