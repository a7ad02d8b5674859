/* SPDX-License-Identifier: Apache-2.0 */
/* emit_test.c: a module as a file: its sections, reproducible bytes, its
   dependencies, and failures while compiling or writing. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codegen/codegen.h"
#include "codegen/embed.h"
#include "codegen/section.h"
#include "frontend/cli/options_text.h"
#include "ir/base/files.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "runtime/ampc.h"
#include "tests/codegen/emit/emit.h"
#include "tests/harness.h"

static const char model[] =
    "graph forward(%x: f32[8,6]) {\n"
    "  param %w: f32[6,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7,"
    " 8, 9, 1, 2, 3, 4, 5, 6], %b: f32[4] = 0\n"
    "  %h = matmul %x, %w\n"
    "  %z = add %h, %b\n"
    "  return %z\n"
    "}\n";

/* ---- helpers ------------------------------------------------------------- */

void run_options(Run *r, const char *options) {
    char *copy = arena_dup(r->a, options, strlen(options) + 1), *word;
    for (char *name = strtok_r(copy, " ", &word); name;
         name = strtok_r(NULL, " ", &word)) {
        char *value = strchr(name, '=');
        bool used;
        if (value) *value++ = 0;
        if (options_set(&r->opt, &r->d, name, value, &used) != OK)
            FAIL("%s", r->d.text.data);
    }
}

Status emit_emit(Run *r, const char *options, const char *path) {
    Module *m;
    *r = (Run){.a = arena_new()};
    options_init(&r->opt, r->a);
    run_options(r, "--loss=cross_entropy");
    run_options(r, options);
    if (parse_module(r->a, &r->d, "m.amp", model, strlen(model), &m) != OK ||
        run_pipeline(m, &r->d, &r->opt, STAGE_PLANNED, true) != OK)
        FAIL("%s", r->d.text.data);
    EmitSection report = {"txt:casts", "none\n", 5};
    EmitInput in = {.path = path,
                    .model_path = "some/where/m.amp",
                    .model_data = model,
                    .model_is_text = true,
                    .model_size = strlen(model),
                    .sections = &report,
                    .nsection = 1};
    return emit_so(m, &r->opt, &r->d, &in);
}

void run_end(Run *r) {
    sb_free(&r->d.text);
    arena_free(r->a);
}

char *in_tmp(Arena *a, const char *name) {
    return arena_printf(a, "%s/%s", test_tmpdir(), name);
}

char *fresh_dir(Arena *a, const char *name) {
    char *dir = in_tmp(a, name);
    REQUIRE(mkdir(dir, 0777) == 0);
    return dir;
}

static void emit_ok(const char *options, const char *path) {
    Run r;
    if (emit_emit(&r, options, path) != OK) FAIL("%s", r.d.text.data);
    run_end(&r);
}

/* ---- cases --------------------------------------------------------------- */

/* A section is found only by its whole name. */
static void check_names(const SectionFile *f) {
    char name[sizeof f->dir->name + 2];
    for (int i = 0; i < f->n; i++) {
        size_t n = strlen(f->dir[i].name);
        CHECK(sections_find(f, f->dir[i].name) == &f->dir[i]);
        for (size_t k = 0; k <= n + 1; k++) { /* a prefix of it; one more
                                                 character */
            snprintf(name, sizeof name, "%sx", f->dir[i].name);
            name[k] = 0;
            const PlanSection *s = sections_find(f, name);
            CHECK(!s || !strcmp(s->name, name));
        }
    }
}

TEST_CASE(emit, sections) {
    Arena *a = arena_new();
    Diag d = {0};
    char *path = in_tmp(a, "sections.so"), *text;
    size_t n;
    SectionFile f;
    emit_ok("--target=cpu:x86-64-v2", path);
    REQUIRE(sections_open(a, &d, path, &f) == OK);
    const PlanSection *s = sections_find(&f, "model.amp");
    REQUIRE(s != NULL && sections_read(a, &d, &f, s, &text, &n) == OK);
    CHECK_EQ_INT(n, strlen(model));
    CHECK_STR(text, model);
    s = sections_find(&f, "ir:memplan");
    REQUIRE(s != NULL && sections_read(a, &d, &f, s, &text, &n) == OK);
    CHECK_HAS(text, "group anchor");
    s = sections_find(&f, "txt:casts");
    REQUIRE(s != NULL && sections_read(a, &d, &f, s, &text, &n) == OK);
    CHECK_STR(text, "none\n");
    s = sections_find(&f, "weights");
    REQUIRE(s != NULL);
    CHECK_EQ_INT(s->offset % 64, 0);
    CHECK_EQ_INT(s->packed, 0);
    CHECK(sections_find(&f, "nothing") == NULL);
    check_names(&f);
    sections_close(&f);
    arena_free(a);
}

TEST_CASE(emit, equal_input_equal_bytes) {
    Arena *a = arena_new();
    size_t n, m;
    char *p = in_tmp(a, "one.so"), *q = in_tmp(a, "two.so");
    emit_ok("", p);
    REQUIRE(setenv("TMPDIR", fresh_dir(a, "elsewhere"), 1) == 0);
    emit_ok("", q);
    unsetenv("TMPDIR");
    char *x = test_read_file(p, &n), *y = test_read_file(q, &m);
    REQUIRE(x && y);
    if (CHECK_EQ_INT(n, m)) CHECK_MEM(x, y, n);
    free(x);
    free(y);
    arena_free(a);
}

TEST_CASE(emit, needs_only_libc) {
    Arena *a = arena_new();
    char *path = in_tmp(a, "needs.so"), *out;
    emit_ok("--symbol=my_module", path);
    REQUIRE(test_command(&out, "readelf -d %s | grep NEEDED", path) == 0);
    char *save;
    for (char *line = strtok_r(out, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        CHECK_MSG(strstr(line, "[libc.so") || strstr(line, "[libm.so") ||
                      strstr(line, "[libpthread.so") || strstr(line, "asan") ||
                      strstr(line, "ubsan"),
                  "%s", line);
    free(out);
    REQUIRE(test_command(&out, "nm -D --defined-only %s", path) == 0);
    CHECK_HAS(out, " T my_module\n");
    CHECK(strchr(out, '\n') == out + strlen(out) - 1); /* one symbol */
    free(out);
    arena_free(a);
}

/* Only symbols of glibc 2.17 and older, which RHEL 7 and later have. */
static void check_old_symbols(const char *path) {
    char *out, *save;
    int minor, symbols = 0;
    REQUIRE(test_command(&out, "nm -D --undefined-only %s", path) == 0);
    if (strstr(out, "san_")) {
        free(out);
        SKIP("a module with sanitizers");
    }
    for (char *line = strtok_r(out, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        const char *version = strstr(line, "@GLIBC_2.");
        if (!version) continue;
        minor = atoi(version + strlen("@GLIBC_2."));
        CHECK_MSG(minor <= 17, "%s", line);
        symbols++;
    }
    CHECK(symbols > 50);
    free(out);
}

TEST_CASE(emit, loads_on_an_old_glibc) {
    Arena *a = arena_new();
    char *path = in_tmp(a, "old.so");
    emit_ok("--symbol=my_module", path);
    check_old_symbols(path);
    arena_free(a);
}

/* Whatever a module takes from the runtime, such as the code for GPUs. */
TEST_CASE(emit, all_of_the_runtime_loads_on_an_old_glibc) {
    Arena *a = arena_new();
    Diag d = {0};
    char *archive = in_tmp(a, "runtime.a"), *path = in_tmp(a, "whole.so"), *out;
    REQUIRE(file_text(&d, archive, (const char *)embed_runtime_a,
                      embed_runtime_a_size, NULL, NULL) == OK);
    int rc = test_command(&out,
                          "cc -shared -o %s -Wl,--whole-archive %s "
                          "-Wl,--no-whole-archive -lm -lpthread -ldl",
                          path, archive);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    check_old_symbols(path);
    arena_free(a);
}

TEST_CASE(emit, trains) {
    Arena *a = arena_new();
    char *path = in_tmp(a, "trains.so"), err[8192];
    void *handle;
    emit_ok("--precision=fp32", path);
    const ampc_api *api = ampc_load(path, &handle, err, sizeof err);
    if (!api) FAIL("%s", err);
    ampc_session *s;
    if (api->open(api->module, NULL, &s, err, sizeof err) != AMPC_OK)
        FAIL("%s", err);
    float x[48];
    int64_t t[8];
    for (int i = 0; i < 48; i++) x[i] = (float)(i % 7) / 7;
    for (int i = 0; i < 8; i++) t[i] = i % 4;
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", t, sizeof t, AMPC_DTYPE_I64)};
    ampc_metrics first = {.size = sizeof first}, last = {.size = sizeof last};
    REQUIRE(api->step(s, in, 2, &first) == AMPC_OK);
    for (int i = 0; i < 50; i++) REQUIRE(api->step(s, in, 2, &last) == AMPC_OK);
    CHECK_MSG(last.loss < first.loss, "%g %g", first.loss, last.loss);
    CHECK_EQ_INT(last.step, 51);
    api->close(s);
    arena_free(a);
}

/* A host that is linked with two modules, or loads one. */
static const char program[] =
    "#include \"runtime/ampc.h\"\n"
    "#include <stdio.h>\n"
    "const ampc_api *one(uint32_t), *two(uint32_t);\n"
    "static int train(const ampc_api *api) {\n"
    "    char err[256];\n"
    "    float x[48];\n"
    "    int64_t t[8];\n"
    "    ampc_session *s;\n"
    "    if (!api || api->open(api->module, NULL, &s, err, sizeof err))\n"
    "        return 1;\n"
    "    for (int i = 0; i < 48; i++) x[i] = (float)(i % 7) / 7;\n"
    "    for (int i = 0; i < 8; i++) t[i] = i % 4;\n"
    "    ampc_input in[] = {ampc_in(\"x\", x, sizeof x, AMPC_DTYPE_F32),\n"
    "                       ampc_in(\"target\", t, sizeof t, "
    "AMPC_DTYPE_I64)};\n"
    "    for (int i = 0; i < 5; i++) {\n"
    "        ampc_metrics m = {.size = sizeof m};\n"
    "        if (api->step(s, in, 2, &m)) return 1;\n"
    "        printf(\"%a\\n\", m.loss);\n"
    "    }\n"
    "    return api->close(s), 0;\n"
    "}\n"
    "int main(int argc, char **argv) {\n"
    "    char err[256];\n"
    "    if (argc > 1) return train(ampc_load(argv[1], NULL, err, 256));\n"
    "    return train(one(AMPC_ABI_VERSION)) || train(two(AMPC_ABI_VERSION));\n"
    "}\n";

TEST_CASE(emit, links_into_a_program) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("objects with sanitizers need and define more symbols");
#endif
    Arena *a = arena_new();
    Diag d = {0};
    char *dir = in_tmp(a, "linked"), *linked, *loaded, *symbols;
    emit_ok(arena_printf(a, "--symbol=one --emit-c=%s", dir),
            in_tmp(a, "one.o"));
    emit_ok("--symbol=two", in_tmp(a, "two.a"));
    emit_ok("", in_tmp(a, "loaded.so"));
    REQUIRE(test_command(&symbols, "nm --defined-only -g %s/one.o",
                         test_tmpdir()) == 0);
    CHECK_HAS(symbols, " T one\n");
    CHECK(strchr(symbols, '\n') == symbols + strlen(symbols) - 1);
    free(symbols);
    REQUIRE(file_text(&d, arena_printf(a, "%s/host.c", dir), program,
                      strlen(program), NULL, NULL) == OK);
    int rc = test_command(&linked,
                          "cd %s && cc -I. host.c ../one.o ../two.a -o host "
                          "-lm -lpthread -ldl && ./host",
                          dir);
    if (rc) FAIL("%s", linked);
    REQUIRE(test_command(&loaded, "%s/host ./loaded.so", dir) != 0);
    free(loaded);
    REQUIRE(test_command(&loaded, "%s/host %s/loaded.so", dir, test_tmpdir()) ==
            0);
    CHECK_STR(linked, arena_printf(a, "%s%s", loaded, loaded));
    free(linked);
    free(loaded);
    arena_free(a);
}

TEST_CASE(emit, an_object_holds_neither_a_file_nor_gpu_code) {
    Run r;
    Diag d = {0};
    r = (Run){.a = arena_new()};
    options_init(&r.opt, r.a);
    run_options(&r, "--weights=sidecar --target=cuda");
    CHECK(emit_object_check(&r.opt, &d, "train.o") == ERR_USER);
    CHECK_HAS(d.text.data, "--weights sidecar does not go with -o train.o");
    CHECK(emit_object_check(&r.opt, &d, "train.so") == OK);
    CHECK(emit_object_check(&r.opt, &d, "train.c") == ERR_USER);
    CHECK_HAS(d.text.data,
              "-o train.c: a module is a library (-o OUT.so) or an "
              "object (-o OUT.o, OUT.a); --target c writes C");
    CHECK(emit_object_check(&r.opt, &d, "train.dll") == ERR_USER);
    CHECK_HAS(d.text.data, "-o train.dll: ampc writes libraries (-o OUT.so)");
    static const char *const shouted[] = {"train.DLL", "a.b/train.Onnx",
                                          "train.O", "train.A"};
    for (int i = 0; i < 4; i++)
        CHECK(emit_object_check(&r.opt, &d, shouted[i]) == ERR_USER);
    CHECK(emit_object_check(&r.opt, &d, "a.dll/train") == OK);
    CHECK(cuda_targets(&r.opt, &d, "train.a") == ERR_USER);
    CHECK_HAS(d.text.data, "an object cannot hold GPU code");
    sb_free(&d.text);
    run_end(&r);
}

TEST_CASE(emit, an_object_has_no_name_of_the_c_library) {
    static const char *const taken[] = {"printf", "cosf", "environ"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        Diag d = {0};
        Run r = {.a = arena_new()};
        options_init(&r.opt, r.a);
        run_options(&r, arena_printf(r.a, "--symbol=%s", taken[i]));
        CHECK(emit_object_check(&r.opt, &d, "train.o") == ERR_USER);
        CHECK_HAS(d.text.data, "the C library has a function of that name");
        CHECK(emit_object_check(&r.opt, &d, "train.so") == OK);
        sb_free(&d.text);
        run_end(&r);
    }
}

/* A word about GPUs changes nothing in a module without code for them. */
TEST_CASE(emit, matmul_precision_without_gpu_code_warns) {
    static const char *const words[] = {"highest", "high", "medium"};
    for (int i = 0; i < 3; i++) {
        Diag d = {0};
        Run r = {.a = arena_new()};
        options_init(&r.opt, r.a);
        run_options(&r, arena_printf(r.a,
                                     "--target=cpu:x86-64-v3 "
                                     "--matmul-precision=%s",
                                     words[i]));
        CHECK(cuda_targets(&r.opt, &d, NULL) == OK);
        if (i)
            CHECK_HAS(d.text.data, "warning: --matmul-precision is for GPUs");
        else
            CHECK(!d.text.len);
        sb_free(&d.text);
        run_end(&r);
    }
}

TEST_CASE(emit, sources_compile_as_they_are) {
    Arena *a = arena_new();
    char *dir = in_tmp(a, "sources"), *out;
    emit_ok(arena_printf(a, "--target=cpu:x86-64-v3 --emit-c=%s", dir),
            in_tmp(a, "emitted.so"));
    int rc = test_command(&out,
                          "cd %s && cc -I. -Iruntime/cpu -march=x86-64-v3 "
                          "-fsyntax-only plan.c v3_kernels.c",
                          dir);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    arena_free(a);
}

/* A parameter's initial value in a module that was opened. */
static void read_initial(const char *path, const char *name, void *to,
                         size_t bytes) {
    char err[1000];
    void *handle;
    ampc_session *s;
    const ampc_api *api = ampc_load(path, &handle, err, sizeof err);
    if (!api || api->open(api->module, NULL, &s, err, sizeof err) != AMPC_OK)
        FAIL("%s", err);
    ampc_output out = ampc_out(name, to, bytes, AMPC_DTYPE_F32);
    CHECK_EQ_INT(api->read_variable(s, name, &out), AMPC_OK);
    api->close(s);
    dlclose(handle);
}

TEST_CASE(emit, sidecar) {
    Arena *a = arena_new();
    char *path = in_tmp(a, "side.so");
    char *weights = in_tmp(a, "side.weights.safetensors");
    size_t n;
    emit_ok("--weights=sidecar --target=cpu:x86-64-v2", path);
    char *st = test_read_file(weights, &n);
    REQUIRE(st && n > 8);
    CHECK_HAS(st + 8, "\"w\":{\"dtype\":\"F32\",\"shape\":[6,4]");
    free(st);
    float w[24], b[4] = {1, 1, 1, 1};
    read_initial(path, "w", w, sizeof w);
    read_initial(path, "b", b, sizeof b);
    for (int i = 0; i < 24; i++) CHECK(w[i] == (float)(i % 9 + 1));
    for (int i = 0; i < 4; i++) CHECK(b[i] == 0);
    arena_free(a);
}

/* zstd runs out of memory in a place where the arena does not. */
static void pack_without_memory(void) {
    Arena *a = arena_new();
    SectionWriter w = {.file = tmpfile(), .arena = a};
    struct rlimit none = {0, 0};
    if (!w.file || !freopen("/dev/null", "w", stderr)) _exit(10);
    section_begin(&w, "first"); /* facts that the list of sections needs */
    section_end(&w);
    void *room = malloc(100000); /* a chunk of an arena, not of a compressor */
    setrlimit(RLIMIT_AS, &none);
    for (size_t n = 1 << 20; n >= 16; n /= 2)
        while (malloc(n)) {
        }
    free(room);
    section_add_text(&w, "second", "text", 4);
    section_finish(&w, 0);
    _exit(11);
}

TEST_CASE(emit, memory_exhausted_while_packing) {
    int status = 0;
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) pack_without_memory();
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == ERR_USER,
              "wait status %#x", status);
}
