/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.c: see simulate.h. */
#define _POSIX_C_SOURCE 200809L
#include "tests/support/simulate.h"
#include "codegen/cache/compile_cache.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#define SANITIZE                                                               \
    "-fsanitize=address,undefined -fno-sanitize-recover=undefined "            \
    "-fno-omit-frame-pointer "
#else
#define SANITIZE ""
#endif
#define TWIN_FLAGS                                                             \
    "-std=c++17 -g1 -fPIC -shared -nostartfiles -fvisibility=hidden "          \
    "-ffp-contract=off -fno-math-errno -fno-strict-aliasing "                  \
    "-fstack-clash-protection -fmax-errors=9 -Wall -Wextra -Wshadow "          \
    "-Wno-unused-function -Wno-unused-parameter "

/* ---- the libraries ------------------------------------------------------- */

/* The folder that `rel` is relative to. */
static char *root_of(const char *rel) {
    char *path = strdup(test_data_path(rel));
    path[strlen(path) - strlen(rel)] = 0;
    return path;
}

static const char *find_or_build(const char *name, const char *sources,
                                 const char *libs) {
    char rel[128], out[512], *log = NULL;
    snprintf(rel, sizeof rel, "tests/sim/%s", name);
    const char *path = test_data_path(rel);
    if (!access(path, R_OK)) return path;
    snprintf(out, sizeof out, "%s/%s", test_tmpdir(), name);
    char *root = root_of("tests/sim/sim.h");
    int rc = test_command(&log,
                          "cd '%s' && gcc -std=c17 -O1 -g -fPIC -shared "
                          "-fvisibility=hidden " SANITIZE
                          "-I. %s -o '%s' -Wl,-Bsymbolic,-soname,%s -L'%s' "
                          "-Wl,-rpath,'$ORIGIN' %s -ldl -lpthread -lm",
                          root, sources, out, name, test_tmpdir(), libs);
    if (rc) FAIL("%s: %s", name, log);
    free(log);
    free(root);
    return strdup(out);
}

static void load(Sim *s) {
    s->path = find_or_build(
        "libcuda_sim.so",
        "$(ls tests/sim/*.c | grep -Ev '/cublaslt|/nccl|_test.c')", "");
    s->cublaslt = find_or_build("libcublaslt_sim.so", "tests/sim/cublaslt*.c",
                                "-lcuda_sim");
    s->nccl =
        find_or_build("libnccl_sim.so", "tests/sim/nccl_sim.c", "-lcuda_sim");
    s->handle = dlopen(s->path, RTLD_NOW | RTLD_LOCAL);
    if (!s->handle) FAIL("%s", dlerror());
#define SIM_LOOK_UP(name)                                                      \
    if (!(*(void **)&s->name = dlsym(s->handle, "sim_" #name)))                \
        FAIL("libcuda_sim.so has no sim_" #name);
    SIM_FUNCTIONS(SIM_LOOK_UP)
}

const Sim *sim(void) {
    static Sim s;
    if (!s.handle) load(&s);
    return &s;
}

/* The name is broken in the string table: its hash finds it no more. */
const char *sim_without(const char *symbol) {
    static int count;
    static char path[512];
    size_t n, len = strlen(symbol);
    char *image = test_read_file(sim()->path, &n);
    snprintf(path, sizeof path, "%s/without%d.so", test_tmpdir(), ++count);
    for (size_t i = 1; i + len < n; i++)
        if (!image[i - 1] && !memcmp(image + i, symbol, len + 1))
            image[i + len - 1] ^= 1;
    REQUIRE(test_write_file(path, image, n));
    free(image);
    return path;
}

char *sim_last_words(void (*fn)(void *), void *arg) {
    int status;
    const char *path = test_tmp("words");
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        if (!freopen(path, "w", stderr)) _exit(1);
        fn(arg);
        fflush(NULL);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return test_read_file(path, NULL);
}

/* ---- twins --------------------------------------------------------------- */

/* The kernel declared at p, after `extern "C" __global__`: its name, and its
   launch bound if that is a number. */
static const char *read_kernel(const char *p, char name[128], int *bound) {
    for (*bound = 0;; p++) {
        size_t n = 0;
        while (isalnum((unsigned char)p[n]) || p[n] == '_') n++;
        const char *q = p + n;
        while (n && isspace((unsigned char)*q)) q++;
        bool call = n && *q == '(';
        if (call && n == 17 && !strncmp(p, "__launch_bounds__", n)) {
            *bound = atoi(q + 1);
            p = strchr(q, ')');
        } else if (call) {
            snprintf(name, 128, "%.*s", (int)n, p);
            return q;
        } else if (n) {
            p += n - 1;
        }
        if (!p || !*p) return NULL;
    }
}

/* The kernels whose declarations begin with `mark`. most: of their threads, if
   they do not say it. */
static void list_kernels(FILE *f, const char *text, const char *mark,
                         int most) {
    char name[128];
    int bound;
    for (const char *p = text; (p = strstr(p, mark)) != NULL;) {
        p = read_kernel(p + strlen(mark), name, &bound);
        if (!p) break;
        fprintf(f, "SIM_KERNEL(%s, %d)\n", name, bound ? bound : most);
    }
}

static void write_wrapper(const char *dir, const char *unit, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.twin.cc", dir, unit);
    FILE *f = fopen(path, "w");
    if (!f) FAIL("%s", path);
    fprintf(f,
            "#include \"device_sim.h\"\nnamespace {\n#include "
            "\"%s.cu\"\n}\nSIM_TWIN(\n",
            unit);
    list_kernels(f, text, "extern \"C\" __global__", 0);
    list_kernels(f, text, "extern \"C\" __tile_global__", 1);
    fprintf(f, ")\n");
    fclose(f);
}

/* An earlier build, found by its text and the text of the headers beside it:
   modules of one model share most units. */
typedef struct Twin {
    char *text, path[512];
    struct Twin *next;
} Twin;

static Twin *built;
static const char *optimise = "-O1 ";

void sim_twins_compile_fast(void) { optimise = "-O0 "; }

/* The key of an image that g++ made for another test of this run
   (script/test). */
static CompileKey key_of_twin(const char *text, const char *headers) {
    CompileKey key = compile_key("twin");
    compile_key_text(&key, SANITIZE);
    compile_key_text(&key, optimise);
    compile_key_text(&key, text);
    compile_key_text(&key, headers);
    return key;
}

static Twin *twin_of(const char *unit, const char *headers) {
    size_t n = strlen(unit), size = n + strlen(headers) + 1;
    Twin *t = built;
    while (t && (strncmp(t->text, unit, n) || strcmp(t->text + n, headers)))
        t = t->next;
    if (t) return t;
    t = malloc(sizeof *t);
    REQUIRE(t != NULL);
    *t = (Twin){.text = malloc(size), .next = built};
    REQUIRE(t->text != NULL);
    snprintf(t->text, size, "%s%s", unit, headers);
    return built = t;
}

static void build_twin(const char *dir, const char *unit, const char *text) {
    char *log = NULL, *root = root_of("tests/sim/sim.h");
    write_wrapper(dir, unit, text);
    int rc = test_command(&log,
                          "g++ %s" TWIN_FLAGS SANITIZE
                          "-I'%s' -I'%stests/sim' -I'%sruntime/cuda' "
                          "-I'%sruntime/cpu' -I'%sruntime/program' "
                          "'%s/%s.twin.cc' -o '%s/%s.so'",
                          optimise, dir, root, root, root, root, dir, unit, dir,
                          unit);
    if (rc) FAIL("%s/%s.cu: %s", dir, unit, log);
    if (*log) fprintf(stderr, "%s", log);
    free(log);
    free(root);
}

static bool add_unit(const char *dir, const char *unit, const char *headers) {
    char path[512];
    size_t n;
    snprintf(path, sizeof path, "%s/%s.cu", dir, unit);
    char *text = test_read_file(path, NULL);
    if (!text) return false;
    Twin *t = twin_of(text, headers);
    Arena *a = arena_new();
    const char *kept = getenv("AMPC_TEST_KEPT");
    const char *folder = compile_cache_open(a, kept ? kept : "none");
    CompileKey key = key_of_twin(text, headers);
    char *image = *t->path ? test_read_file(t->path, &n)
                           : compile_cache_get(folder, key, &n);
    snprintf(path, sizeof path, "%s/%s.so", dir, unit);
    for (Twin *x = built; x; x = x->next)
        if (!strcmp(x->path, path)) *x->path = 0;
    unlink(path); /* it may be loaded */
    if (image)
        REQUIRE(test_write_file(path, image, n));
    else
        build_twin(dir, unit, text);
    if (!image && (image = test_read_file(path, &n)))
        compile_cache_put(folder, key, image, n);
    free(image);
    arena_free(a);
    free(text);
    memcpy(t->path, path, sizeof path);
    return true;
}

int sim_build_twins(const char *dir) {
    char *headers, unit[32] = "unit0";
    int n = 0;
    test_command(&headers, "cd '%s' && cat *.cuh *.h 2>/dev/null", dir);
    while (add_unit(dir, unit, headers))
        snprintf(unit, sizeof unit, "unit%d", ++n);
    add_unit(dir, "tile", headers); /* of CUDA Tile */
    free(headers);
    return n;
}

char *sim_build_text(const char *text) {
    static int count;
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s/twin%d", test_tmpdir(), ++count);
    snprintf(path, sizeof path, "%s/unit0.cu", dir);
    mkdir(dir, 0777);
    REQUIRE(test_write_file(path, text, strlen(text)));
    sim_build_twins(dir);
    return strdup(dir);
}
