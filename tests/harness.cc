// SPDX-License-Identifier: Apache-2.0
// harness.cc: hands the C cases of harness.h to GoogleTest; owns main.

#include "tests/harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fs = std::filesystem;

// Texts that tests keep until their process ends: what a command printed, names
// of cases. All other memory is released, or the leak sanitizer tells.
extern "C" const char *__lsan_default_suppressions() {
    return "leak:^test_command$\nleak:^add_rows$\nleak:^portable_\n";
}

namespace {

// Constructors of C files run before those of this file, so they may use only
// plain data.
HarnessCase *first_case, **last_case = &first_case;
void (*registrars[64])(void);
int nregistrar;

const int kMaxFailures = 5; // shown per case; the first ones tell most

jmp_buf leave;
int failures;
bool bless;
std::string root;

const char *keep(const std::string &s) {
    static std::set<std::string> strings;
    return strings.insert(s).first->c_str();
}

std::string format(const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(nullptr, 0, fmt, again);
    va_end(again);
    std::string s(n < 0 ? 0 : n + 1, '\0');
    vsnprintf(&s[0], s.size(), fmt, ap);
    if (!s.empty()) s.pop_back();
    return s;
}

// Data files are shown by their path in the tree, not in the runfiles.
bool report(const char *path, int line, const std::string &text) {
    bool under = !root.empty() && !strncmp(path, root.c_str(), root.size());
    const char *file = under ? path + root.size() + 1 : path;
    int n = __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    if (n <= kMaxFailures) ADD_FAILURE_AT(file, line) << text;
    return false;
}

class CCase : public testing::Test {
  public:
    explicit CCase(std::function<void()> fn) : fn_(std::move(fn)) {}
    void TestBody() override {
        failures = 0;
        if (setjmp(leave) == 0) fn_();
        if (failures > kMaxFailures)
            ADD_FAILURE() << failures - kMaxFailures
                          << " more failures of this case, not shown";
    }

  private:
    std::function<void()> fn_;
};

double cpu_seconds() {
    double s = 0;
    for (int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
        rusage u = {};
        getrusage(who, &u);
        for (const timeval &t : {u.ru_utime, u.ru_stime})
            s += (double)t.tv_sec + (double)t.tv_usec / 1e6;
    }
    return s;
}

// For script/mutate (tests/mutate/judge.py): the bytes of AMPC_REACHED tell
// which faults a case reached; AMPC_REACHED.log gets a line for each case.
class Reached : public testing::EmptyTestEventListener {
  public:
    explicit Reached(const std::string &path) : path_(path) {}
    void OnTestStart(const testing::TestInfo &) override {
        std::fstream f(path_, std::ios::in | std::ios::out | std::ios::binary);
        f << std::string(fs::file_size(path_), '\0');
        began_ = cpu_seconds();
    }
    void OnTestEnd(const testing::TestInfo &info) override {
        std::ifstream f(path_, std::ios::binary);
        std::ofstream log(path_ + ".log", std::ios::app);
        log << (info.result()->Passed() ? "ok " : "failed ")
            << cpu_seconds() - began_ << ' ' << info.test_suite_name() << '.'
            << info.name();
        for (int k = 0, byte; (byte = f.get()) >= 0; k++)
            if (byte) log << ' ' << k;
        log << '\n';
    }

  private:
    std::string path_;
    double began_ = 0;
};

void add(const char *suite, const char *name, const char *file, int line,
         std::function<void()> fn) {
    testing::RegisterTest(suite, name, nullptr, nullptr, file, line,
                          [fn]() -> CCase * { return new CCase(fn); });
}

std::string first_difference(const std::string &a, const std::string &b) {
    size_t at =
        std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()),
                      b.begin())
            .first -
        a.begin();
    size_t line = std::count(a.begin(), a.begin() + at, '\n') + 1;
    size_t start = at == 0 ? 0 : a.rfind('\n', at - 1);
    start = start == std::string::npos || at == 0 ? 0 : start + 1;
    auto rest = [&](const std::string &s) {
        return s.substr(start, s.find('\n', at) - start);
    };
    return "first difference in line " + std::to_string(line) + ", column " +
           std::to_string(at - start + 1) + ":\n  <" + rest(a) + "\n  >" +
           rest(b);
}

std::string env(const char *name) {
    const char *s = getenv(name);
    return s ? s : "";
}

// The folder of test data: bazel's runfiles, else the current folder, which
// `bazel run` sets to the runfiles and a person to the repository's root.
std::string find_root() {
    std::string src = env("TEST_SRCDIR"), ws = env("TEST_WORKSPACE");
    if (bless && !env("BUILD_WORKSPACE_DIRECTORY").empty())
        return env("BUILD_WORKSPACE_DIRECTORY");
    if (!src.empty()) return src + "/" + (ws.empty() ? "ampc" : ws);
    return fs::current_path().string();
}

struct TmpDir {
    std::string path;
    bool ours = false;
    TmpDir() {
        path = env("TEST_TMPDIR");
        if (!path.empty()) return;
        char buf[] = "/tmp/ampc-test-XXXXXX";
        if (!mkdtemp(buf)) {
            perror(buf);
            exit(1);
        }
        path = buf;
        ours = true;
    }
    ~TmpDir() {
        std::error_code ignored;
        if (ours) fs::remove_all(path, ignored);
    }
};

} // namespace

/* ---- cases --------------------------------------------------------------- */

void harness_add(HarnessCase *c) {
    *last_case = c;
    last_case = &c->next;
}

void harness_add_registrar(void (*fn)(void)) {
    if (nregistrar == 64) abort();
    registrars[nregistrar++] = fn;
}

void harness_register(const char *suite, const char *name, void (*fn)(void *),
                      void *arg) {
    add(keep(suite), keep(name), __FILE__, __LINE__, [fn, arg] { fn(arg); });
}

/* ---- checks -------------------------------------------------------------- */

void harness_leave(void) { longjmp(leave, 1); }

bool harness_check(const char *file, int line, const char *cond, bool ok) {
    return ok || report(file, line, std::string("failed: ") + cond);
}

bool harness_check_msg(const char *file, int line, const char *cond, bool ok,
                       const char *fmt, ...) {
    if (ok) return true;
    va_list ap;
    va_start(ap, fmt);
    std::string text = format(fmt, ap);
    va_end(ap);
    return report(file, line, std::string("failed: ") + cond + "\n" + text);
}

bool harness_eq_int(const char *file, int line, const char *ta, const char *tb,
                    long long a, long long b) {
    if (a == b) return true;
    return report(file, line,
                  std::string(ta) + " is " + std::to_string(a) + "\n" + tb +
                      " is " + std::to_string(b));
}

static bool apart(const char *file, int line, const char *ta, const char *tb,
                  double a, double b, double allowed, const char *kind,
                  double tol) {
    char buf[200];
    snprintf(buf, sizeof buf, " is %.9g, ", a);
    std::string text = std::string(ta) + buf + tb;
    snprintf(buf, sizeof buf,
             " is %.9g\n%s tolerance %.3g: %.3g apart, %.3g allowed", b, kind,
             tol, fabs(a - b), allowed);
    return report(file, line, text + buf);
}

bool harness_near(const char *file, int line, const char *ta, const char *tb,
                  double a, double b, double tol) {
    if (a == b || fabs(a - b) <= tol) return true;
    return apart(file, line, ta, tb, a, b, tol, "absolute", tol);
}

bool harness_rel(const char *file, int line, const char *ta, const char *tb,
                 double a, double b, double tol) {
    double allowed = tol * fmax(fabs(a), fabs(b));
    if (a == b || (fabs(a - b) <= allowed && isfinite(allowed))) return true;
    return apart(file, line, ta, tb, a, b, allowed, "relative", tol);
}

bool harness_str(const char *file, int line, const char *ta, const char *tb,
                 const char *a, const char *b) {
    if (a == b || (a && b && strcmp(a, b) == 0)) return true;
    std::string text = std::string("< ") + ta + "\n> " + tb + "\n";
    if (!a || !b)
        return report(file, line, text + (a ? b ? "" : ">" : "<") + " is NULL");
    text += first_difference(a, b);
    if (strlen(a) + strlen(b) < 8000)
        text += std::string("\n---- <\n") + a + "\n---- >\n" + b + "\n----";
    return report(file, line, text);
}

bool harness_mem(const char *file, int line, const char *ta, const char *tb,
                 const void *a, const void *b, size_t n) {
    const unsigned char *x = (const unsigned char *)a;
    const unsigned char *y = (const unsigned char *)b;
    size_t i = 0, ndiff = 0, first = 0;
    for (; i < n; i++)
        if (x[i] != y[i] && ndiff++ == 0) first = i;
    if (ndiff == 0) return true;
    char buf[160];
    snprintf(buf, sizeof buf,
             "\n%zu of %zu bytes differ; first at %zu: %02x and %02x", ndiff, n,
             first, x[first], y[first]);
    return report(file, line, std::string(ta) + ", " + tb + buf);
}

bool harness_has(const char *file, int line, const char *ta, const char *text,
                 const char *needle) {
    if (text && strstr(text, needle)) return true;
    return report(file, line,
                  std::string(ta) + " lacks \"" + needle + "\":\n" +
                      (text ? text : "NULL"));
}

bool harness_fail_at(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    std::string text = format(fmt, ap);
    va_end(ap);
    return report(file, line, text);
}

// The text is copied and freed before the jump, which runs no destructors.
void harness_fail(const char *file, int line, const char *fmt, ...) {
    {
        va_list ap;
        va_start(ap, fmt);
        report(file, line, format(fmt, ap));
        va_end(ap);
    }
    harness_leave();
}

static void skip_with(const char *file, int line, const std::string &text) {
    testing::internal::AssertHelper(testing::TestPartResult::kSkip, file, line,
                                    "") = testing::Message() << text;
}

void harness_skip(const char *file, int line, const char *fmt, ...) {
    {
        va_list ap;
        va_start(ap, fmt);
        skip_with(file, line, format(fmt, ap));
        va_end(ap);
    }
    harness_leave();
}

/* ---- surroundings -------------------------------------------------------- */

const char *test_tmpdir(void) {
    static TmpDir dir;
    return dir.path.c_str();
}

const char *test_tmp(const char *name) {
    return keep(std::string(test_tmpdir()) + "/" + name);
}

int test_entries(const char *folder) {
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    if (error) harness_fail(__FILE__, __LINE__, "%s: no folder", folder);
    return static_cast<int>(std::distance(begin(entries), end(entries)));
}

int test_temporaries(void) {
    int n = 0;
    for (const fs::directory_entry &e : fs::directory_iterator(test_tmpdir()))
        n += e.path().filename().string().compare(0, 6, ".ampc-") == 0;
    return n;
}

void test_same_files(const char *a, const char *b) {
    size_t na = 0, nb = 0;
    char *x = test_read_file(test_tmp(a), &na);
    char *y = test_read_file(test_tmp(b), &nb);
    CHECK_MSG(x && y && na == nb && !memcmp(x, y, na), "%s and %s differ", a,
              b);
    free(x);
    free(y);
}

const char *test_data_path(const char *rel) { return keep(root + "/" + rel); }

const char *test_ampc(void) {
    if (!env("AMPC_BIN").empty()) return keep(env("AMPC_BIN"));
    const char *path = test_data_path("ampc");
    if (fs::is_regular_file(path)) return path;
    return test_data_path("out/bin/ampc");
}

bool test_bless(void) { return bless; }

bool test_slow(void) {
    return !env("AMPC_SLOW").empty() && env("AMPC_SLOW") != "0";
}

int test_each_file(const char *rel_dir, const char *suffix,
                   void (*fn)(const char *path, const char *name, void *arg),
                   void *arg) {
    const char *dir = test_data_path(rel_dir);
    const std::string end = suffix;
    std::vector<std::string> names;
    std::error_code none;
    for (fs::recursive_directory_iterator
             it(dir, fs::directory_options::follow_directory_symlink, none),
         stop;
         !none && it != stop; it.increment(none)) {
        std::string name = fs::path(it->path()).lexically_relative(dir);
        if (it->is_regular_file() && name.size() > end.size() &&
            name.compare(name.size() - end.size(), end.size(), end) == 0)
            names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    for (const std::string &n : names)
        fn(keep(std::string(dir) + "/" + n),
           keep(n.substr(0, n.size() - end.size())), arg);
    return (int)names.size();
}

static std::string read_all(FILE *f) {
    std::string s;
    char buf[4096];
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0;) s.append(buf, n);
    return s;
}

char *test_read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) return nullptr;
    std::string s = read_all(f);
    bool whole = !ferror(f); /* a process in /proc may end meanwhile */
    if (fclose(f) || !whole) return nullptr;
    char *p = (char *)malloc(s.size() + 1);
    if (!p) return nullptr;
    memcpy(p, s.c_str(), s.size() + 1);
    if (size) *size = s.size();
    return p;
}

bool test_write_file(const char *path, const void *data, size_t size) {
    std::ofstream f(path, std::ios::binary);
    f.write((const char *)data, (std::streamsize)size);
    f.flush();
    return bool(f);
}

int test_command(char **out, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    std::string command = "{ " + format(fmt, ap) + "\n} 2>&1";
    va_end(ap);
    FILE *p = popen(command.c_str(), "r");
    if (!p) return 127;
    std::string text = read_all(p);
    int rc = pclose(p);
    if (out) *out = strdup(text.c_str());
    return WIFSIGNALED(rc) ? 128 + WTERMSIG(rc) : WEXITSTATUS(rc);
}

// Runs this program again with glibc's checks of the heap: writes behind a
// block are told when it is freed, new and freed memory has other contents.
// Sanitizers have checks of their own; programs that the cases start run
// without.
static void check_heap(char **argv) {
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    const char *lib = "libc_malloc_debug.so.0";
    if (env("AMPC_HEAP").empty() && dlopen(lib, RTLD_LAZY)) {
        setenv("AMPC_HEAP", "checked", 1);
        setenv("LD_PRELOAD", lib, 1);
        setenv("GLIBC_TUNABLES",
               "glibc.malloc.check=3:glibc.malloc.perturb=165", 1);
        execv("/proc/self/exe", argv);
    }
    unsetenv("LD_PRELOAD");
    unsetenv("GLIBC_TUNABLES");
#endif
    (void)argv;
}

int main(int argc, char **argv) {
    check_heap(argv);
    testing::InitGoogleTest(&argc, argv);
    bless = !env("AMPC_BLESS").empty() && env("AMPC_BLESS") != "0";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bless") == 0) {
            bless = true;
            continue;
        }
        fprintf(stderr, "%s: unknown argument '%s'\n", argv[0], argv[i]);
        return 2;
    }
    root = find_root();
    for (HarnessCase *c = first_case; c; c = c->next)
        add(c->suite, c->name, c->file, c->line, c->fn);
    for (int i = 0; i < nregistrar; i++) registrars[i]();
    if (!env("AMPC_REACHED").empty())
        testing::UnitTest::GetInstance()->listeners().Append(
            new Reached(env("AMPC_REACHED")));
    return RUN_ALL_TESTS();
}
