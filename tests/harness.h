/* SPDX-License-Identifier: Apache-2.0 */
/* harness.h: the interface of C test files. GoogleTest runs the cases.

     TEST_CASE(intern, equal_types_share_an_id) {
         CHECK_EQ_INT(a.i, b.i);
     }

   A failed CHECK is recorded with file and line and the case goes on; every
   CHECK is also an expression that is true when it held, so that
   `if (!CHECK(p != NULL)) return;` works.  REQUIRE, FAIL and SKIP end the case
   from any depth of calls (on the thread that runs it, never on another).

   Cases made from data files: a function named by TEST_REGISTRAR runs before
   the tests and calls harness_register once per file.

   A test binary accepts GoogleTest's flags and --bless (or AMPC_BLESS=1),
   which asks tests to rewrite their expectations in the source tree:
     bazel run //tests/passes:golden_test -- --bless */
#ifndef AMPC_TESTS_HARNESS_H
#define AMPC_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- cases --------------------------------------------------------------- */

typedef struct HarnessCase {
    const char *suite, *name, *file;
    int line;
    void (*fn)(void);
    struct HarnessCase *next;
} HarnessCase;

void harness_add(HarnessCase *c);
void harness_add_registrar(void (*fn)(void));

/* Adds one case at run time; only from a registrar.  Names are copied. */
void harness_register(const char *suite, const char *name, void (*fn)(void *),
                      void *arg);

#define TEST_CASE(suite, name)                                                 \
    static void test_##suite##_##name(void);                                   \
    __attribute__((constructor)) static void add_##suite##_##name(void) {      \
        static HarnessCase c = {                                               \
            #suite, #name, __FILE__, __LINE__, test_##suite##_##name, NULL};   \
        harness_add(&c);                                                       \
    }                                                                          \
    static void test_##suite##_##name(void)

#define TEST_REGISTRAR(fn)                                                     \
    __attribute__((constructor)) static void add_registrar_##fn(void) {        \
        harness_add_registrar(fn);                                             \
    }                                                                          \
    struct HarnessCase /* takes the semicolon */

/* ---- checks -------------------------------------------------------------- */

#define CHECK(cond) harness_check(__FILE__, __LINE__, #cond, !!(cond))

/* With a message: CHECK_MSG(n == 3, "case %s", name) */
#define CHECK_MSG(cond, ...)                                                   \
    harness_check_msg(__FILE__, __LINE__, #cond, !!(cond), __VA_ARGS__)

#define CHECK_EQ_INT(a, b)                                                     \
    harness_eq_int(__FILE__, __LINE__, #a, #b, (long long)(a), (long long)(b))

/* |a - b| <= tol.  A NaN on either side fails; equal infinities pass. */
#define CHECK_NEAR(a, b, tol)                                                  \
    harness_near(__FILE__, __LINE__, #a, #b, (double)(a), (double)(b),         \
                 (double)(tol))

/* |a - b| <= tol * max(|a|, |b|) */
#define CHECK_REL(a, b, tol)                                                   \
    harness_rel(__FILE__, __LINE__, #a, #b, (double)(a), (double)(b),          \
                (double)(tol))

/* Equal strings; NULL equals NULL only.  Shows the first differing line. */
#define CHECK_STR(a, b) harness_str(__FILE__, __LINE__, #a, #b, a, b)

/* Equal bytes; shows the first difference. */
#define CHECK_MEM(a, b, n) harness_mem(__FILE__, __LINE__, #a, #b, a, b, n)

/* `needle` occurs in `text`: for messages. */
#define CHECK_HAS(text, needle)                                                \
    harness_has(__FILE__, __LINE__, #text, text, needle)

#define REQUIRE(cond)                                                          \
    do {                                                                       \
        if (!CHECK(cond)) harness_leave();                                     \
    } while (0)

#define FAIL(...) harness_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) harness_skip(__FILE__, __LINE__, __VA_ARGS__)

/* A failure at a place of the caller's choice, such as a line of a data file;
   returns false and does not end the case. */
bool harness_fail_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

bool harness_check(const char *file, int line, const char *cond, bool ok);
bool harness_check_msg(const char *file, int line, const char *cond, bool ok,
                       const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
bool harness_eq_int(const char *file, int line, const char *ta, const char *tb,
                    long long a, long long b);
bool harness_near(const char *file, int line, const char *ta, const char *tb,
                  double a, double b, double tol);
bool harness_rel(const char *file, int line, const char *ta, const char *tb,
                 double a, double b, double tol);
bool harness_str(const char *file, int line, const char *ta, const char *tb,
                 const char *a, const char *b);
bool harness_mem(const char *file, int line, const char *ta, const char *tb,
                 const void *a, const void *b, size_t n);
bool harness_has(const char *file, int line, const char *ta, const char *text,
                 const char *needle);
void harness_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void harness_skip(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void harness_leave(void) __attribute__((noreturn));

/* ---- surroundings -------------------------------------------------------- */
/* Returned strings live as long as the process. */

/* A writable folder of this test process, empty at start. */
const char *test_tmpdir(void);
const char *test_tmp(const char *name); /* a path in it */

/* Number of entries in the folder, including hidden ones; the folder must
   exist. */
int test_entries(const char *folder);
/* Half-written files in the test's folder. */
int test_temporaries(void);
/* Checks that files a and b of the test's folder have the same bytes. */
void test_same_files(const char *a, const char *b);

/* Absolute path of a file named relative to the repository root, in Bazel's
   runfiles or in the tree; when blessing, the file in the source tree. */
const char *test_data_path(const char *rel);

/* The compiler's binary: $AMPC_BIN, the runfiles' copy (data = ["//:ampc"]), or
   out/bin/ampc. */
const char *test_ampc(void);

bool test_bless(void); /* true: expectations are to be rewritten */
bool test_slow(void);  /* true: script/test --slow requests long cases */

/* Calls fn(path, name, arg) for every file of the folder (relative to the root)
   whose name ends in `suffix`, sorted by name, including subfolders. `name` is
   the
   path below the folder without suffix.  Returns the number of files. */
int test_each_file(const char *rel_dir, const char *suffix,
                   void (*fn)(const char *path, const char *name, void *arg),
                   void *arg);

/* The whole file, NUL-terminated; the caller frees it; NULL if it cannot be
   read. */
char *test_read_file(const char *path, size_t *size);
bool test_write_file(const char *path, const void *data, size_t size);

/* Runs a shell command; standard output and error are returned together in
   out (the caller frees it; out may be NULL). Returns the exit status, 128 +
   N for signal N. */
int test_command(char **out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
