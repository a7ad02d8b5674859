/* SPDX-License-Identifier: Apache-2.0 */
/* module_file_test.c: a module as a file: replaced or removed while it is
   loaded, under odd names, beside its weights; and what does not affect its
   bytes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/ampc.h"
#include "tests/harness.h"

/* ---- helpers ------------------------------------------------------------- */

enum { WEIGHTS = 64 };
#define OPTIONS "--loss mse --target cpu:x86-64-v2 "

/* Other seeds give other weights. */
static void compile_to(int status, const char *name, int seed,
                       const char *setting, const char *options) {
    char text[2000], list[1500], *out;
    int n = 0;
    for (int i = 0; i < WEIGHTS; i++)
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%g", i ? ", " : "",
                      sin(seed + 0.7 * i));
    n = snprintf(text, sizeof text,
                 "graph forward(%%x: f32[4,8]) {\n"
                 "  param %%w: f32[8,8] = [%s]\n"
                 "  param %%b: f32[8] = 0.5\n"
                 "  %%h = matmul %%x, %%w : f32[4,8]\n"
                 "  %%y = add %%h, %%b : f32[4,8]\n  return %%y\n}\n",
                 list);
    REQUIRE(test_write_file(test_tmp("model.amp"), text, (size_t)n));
    int rc = test_command(&out, "AMPC_LIBNVRTC=none %s '%s' '%s' -o '%s' %s %s",
                          setting, test_ampc(), test_tmp("model.amp"),
                          test_tmp(name), OPTIONS, options);
    if (rc != status) FAIL("ampc: status %d\n%s", rc, out);
    free(out);
}

static void compile(const char *name, int seed, const char *setting,
                    const char *options) {
    compile_to(0, name, seed, setting, options);
}

static const ampc_api *load(const char *name, void **lib) {
    char err[300];
    const ampc_api *api = ampc_load(test_tmp(name), lib, err, sizeof err);
    if (!api) FAIL("%s", err);
    return api;
}

/* The weights of a new session. */
static void weights_of(const ampc_api *api, float w[WEIGHTS]) {
    ampc_session *s;
    float b[8] = {0};
    char err[300];
    if (api->open(api->module, NULL, &s, err, sizeof err) != AMPC_OK)
        FAIL("%s", err);
    ampc_output out = ampc_out("w", w, WEIGHTS * sizeof *w, AMPC_DTYPE_F32);
    ampc_output bias = ampc_out("b", b, sizeof b, AMPC_DTYPE_F32);
    CHECK_EQ_INT(api->read_variable(s, "w", &out), AMPC_OK);
    CHECK_EQ_INT(api->read_variable(s, "b", &bias), AMPC_OK);
    CHECK(b[0] == 0.5f && b[7] == 0.5f);
    api->close(s);
}

static void refuses(const ampc_api *api, const char *why) {
    ampc_session *s;
    char err[300];
    CHECK(api->open(api->module, NULL, &s, err, sizeof err) != AMPC_OK);
    CHECK_HAS(err, why);
}

/* ---- numbers that are in no file ----------------------------------------- */

enum { MANY = 4096 * 160 };

static double number(ampc_dtype dtype, const void *p, int i) {
    __extension__ _Float16 h;
    if (dtype == AMPC_DTYPE_I32) return ((const int32_t *)p)[i];
    if (dtype == AMPC_DTYPE_F32) return ((const float *)p)[i];
    memcpy(&h, (const char *)p + 2 * i, 2);
    return (double)h;
}

/* The same formula in Python gives these numbers, in every storage dtype;
   they take no space in the module. */
TEST_CASE(module_file, random_values_are_made_when_opened) {
    static const char text[] =
        "graph forward(%x: f32[4096,160]) {\n"
        "  param %u: f32[4096,160] = uniform(7, -3, 1)\n"
        "  param %n: f32[4096,160] = normal(7, 2)\n"
        "  frozen %h: f16[4096,160] = normal(7, 2)\n"
        "  frozen %i: i32[4096,160] = uniform(1, 0, 10)\n"
        "  %a = cast %h : f32[4096,160]\n  %b = cast %i : f32[4096,160]\n"
        "  %c = mul %x, %u : f32[4096,160]\n  %d = add %c, %n : f32[4096,160]\n"
        "  %e = add %d, %a : f32[4096,160]\n  %y = add %e, %b : f32[4096,160]\n"
        "  return %y\n}\n";
    static const int at[] = {0, 8191, 262143, 262144, 300000, 655359};
    static const struct {
        const char *name;
        ampc_dtype dtype;
        size_t bytes;
        double want[6];
    } var[] = {{"u",
                AMPC_DTYPE_F32,
                4,
                {0.32576948404312134, -0.16924729943275452, -0.5938555598258972,
                 -2.7220962047576904, -1.9309736490249634, 0.2178916186094284}},
               {"n",
                AMPC_DTYPE_F32,
                4,
                {1.6724047660827637, -2.3174972534179688, -0.23186983168125153,
                 1.0456161499023438, -0.4945880174636841, 0.8048378229141235}},
               {"h",
                AMPC_DTYPE_F16,
                2,
                {1.6728515625, -2.318359375, -0.2318115234375, 1.0458984375,
                 -0.49462890625, 0.8046875}},
               {"i", AMPC_DTYPE_I32, 4, {9, 8, 1, 8, 2, 0}}};
    static char data[4 * MANY];
    char err[300], *out;
    void *lib;
    ampc_session *s;
    struct stat st;
    REQUIRE(test_write_file(test_tmp("drawn.amp"), text, sizeof text - 1));
    int rc =
        test_command(&out, "AMPC_LIBNVRTC=none %s '%s' -o '%s' %s", test_ampc(),
                     test_tmp("drawn.amp"), test_tmp("drawn.so"), OPTIONS);
    if (rc) FAIL("ampc: status %d\n%s", rc, out);
    free(out);
    const ampc_api *api = load("drawn.so", &lib);
    REQUIRE(api->open(api->module, NULL, &s, err, sizeof err) == AMPC_OK);
    for (int v = 0; v < 4; v++) {
        ampc_output o =
            ampc_out(var[v].name, data, var[v].bytes * MANY, var[v].dtype);
        CHECK_EQ_INT(api->read_variable(s, var[v].name, &o), AMPC_OK);
        for (int k = 0; k < 6; k++)
            CHECK_NEAR(number(var[v].dtype, data, at[k]), var[v].want[k], 0);
    }
    api->close(s);
    dlclose(lib);
    REQUIRE(!stat(test_tmp("drawn.so"), &st));
    off_t with = st.st_size;
    compile("few.so", 1, "", "");
    REQUIRE(!stat(test_tmp("few.so"), &st));
    CHECK_MSG(with < st.st_size + 4 * MANY, "%ld, %ld", (long)with,
              (long)st.st_size);
}

typedef struct Hook {
    int calls, refuse;
    int64_t held;
} Hook;

static void *hook_alloc(void *ctx, size_t bytes, size_t align) {
    Hook *h = ctx;
    if (++h->calls == h->refuse) return NULL;
    h->held += (int64_t)bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void hook_free(void *ctx, void *p, size_t bytes) {
    Hook *h = ctx;
    if (p) h->held -= (int64_t)bytes;
    free(p);
}

/* Some numbers are generated and others read: no session opens without both. */
TEST_CASE(module_file, every_allocation_of_open_may_fail) {
    static const char text[] = "graph forward(%x: f32[4,2]) {\n"
                               "  param %w: f32[4,2] = normal(7, 2)\n"
                               "  param %b: f32[2] = [1.5, -0.25]\n"
                               "  %h = mul %x, %w : f32[4,2]\n"
                               "  %y = add %h, %b : f32[4,2]\n"
                               "  return %y\n}\n";
    char err[300], *out;
    void *lib;
    int n = 1;
    REQUIRE(test_write_file(test_tmp("both.amp"), text, sizeof text - 1));
    int rc =
        test_command(&out, "AMPC_LIBNVRTC=none %s '%s' -o '%s' %s", test_ampc(),
                     test_tmp("both.amp"), test_tmp("both.so"), OPTIONS);
    if (rc) FAIL("ampc: status %d\n%s", rc, out);
    free(out);
    const ampc_api *api = load("both.so", &lib);
    for (ampc_status status = AMPC_ERR_MEMORY; status && n < 100; n++) {
        Hook h = {.refuse = n};
        ampc_options o = {.size = sizeof o,
                          .alloc = hook_alloc,
                          .free = hook_free,
                          .alloc_ctx = &h};
        ampc_session *s;
        status = api->open(api->module, &o, &s, err, sizeof err);
        if (status == AMPC_OK) {
            CHECK_MSG(h.calls < n, "allocation %d failed unnoticed", n);
            api->close(s);
        } else {
            CHECK_EQ_INT(status, AMPC_ERR_MEMORY);
            CHECK_HAS(err, "out of memory");
        }
        CHECK_EQ_INT(h.held, 0);
    }
    CHECK(n > 5 && n < 100);
    dlclose(lib);
}

/* ---- the file changes ---------------------------------------------------- */

TEST_CASE(module_file, replaced_while_it_is_loaded) {
    float first[WEIGHTS], again[WEIGHTS], other[WEIGHTS];
    void *lib;
    compile("replaced.so", 1, "", "");
    const ampc_api *api = load("replaced.so", &lib);
    weights_of(api, first);
    compile("replaced.so", 2, "", "");
    weights_of(api, again);
    CHECK_MEM(again, first, sizeof first);
    REQUIRE(unlink(test_tmp("replaced.so")) == 0);
    weights_of(api, again);
    CHECK_MEM(again, first, sizeof first);
    dlclose(lib);
    compile("replaced.so", 2, "", "");
    api = load("replaced.so", &lib);
    weights_of(api, other);
    CHECK(memcmp(other, first, sizeof first) != 0);
    dlclose(lib);
}

static int descriptors(void) {
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int descriptor_of(const char *name) {
    struct stat file, st;
    REQUIRE(stat(test_tmp(name), &file) == 0);
    for (int fd = 3; fd < 256; fd++)
        if (fstat(fd, &st) == 0 && st.st_ino == file.st_ino) return fd;
    FAIL("%s is not open", name);
}

/* The descriptor that a loaded module keeps is closed with it, and no other. */
TEST_CASE(module_file, descriptors_are_given_back) {
    void *lib;
    compile("kept.so", 1, "", "");
    int before = descriptors();
    const ampc_api *api = load("kept.so", &lib);
    float first[WEIGHTS], again[WEIGHTS];
    weights_of(api, first);
    dlclose(lib);
    CHECK_EQ_INT(descriptors(), before);
    api = load("kept.so", &lib);
    int kept = descriptor_of("kept.so");
    /* the host closes an unknown descriptor and opens its own */
    int own = open("/dev/null", O_RDONLY);
    REQUIRE(own >= 0 && dup2(own, kept) == kept);
    weights_of(api, again);
    CHECK_MEM(again, first, sizeof first);
    dlclose(lib);
    CHECK(fcntl(kept, F_GETFD) >= 0);
    close(kept);
    close(own);
}

/* A host that closes unknown descriptors does not change the path: either
   the file there is still the module, or sessions report why they cannot
   open. */
TEST_CASE(module_file, another_file_in_its_place_is_refused) {
    void *lib;
    float first[WEIGHTS];
    compile("place.so", 1, "", "");
    const ampc_api *api = load("place.so", &lib);
    weights_of(api, first);
    close(descriptor_of("place.so"));
    weights_of(api, first);
    compile("place.so", 2, "", "");
    refuses(api, "replaced by another module after this one was loaded");
    REQUIRE(test_write_file(test_tmp("place.so"), first, sizeof first));
    refuses(api, "no tail");
    REQUIRE(test_write_file(test_tmp("place.so"), first, 1));
    refuses(api, "too short");
    REQUIRE(unlink(test_tmp("place.so")) == 0);
    refuses(api, "No such file or directory");
    dlclose(lib);
}

TEST_CASE(module_file, odd_names) {
    static const char *const names[] = {"new\nline.so", "back\\012slash.so",
                                        "both\n\\012.so", "is (deleted)",
                                        "sp ace.so"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        float w[WEIGHTS];
        void *lib;
        compile("plain.so", 1, "", "");
        REQUIRE(rename(test_tmp("plain.so"), test_tmp(names[i])) == 0);
        const ampc_api *api = load(names[i], &lib);
        weights_of(api, w);
        dlclose(lib);
    }
    char *out;
    int rc = test_command(&out, "'%s' run '%s' --feed x=none", test_ampc(),
                          test_tmp(names[0]));
    CHECK_EQ_INT(rc, 1);
    CHECK_HAS(out, "none");
    free(out);
}

/* ---- its weights beside it ----------------------------------------------- */

TEST_CASE(module_file, weights_beside_it_belong_to_it) {
    void *lib;
    float first[WEIGHTS], again[WEIGHTS];
    char beside[700];
    snprintf(beside, sizeof beside, "%s", test_tmp("s.weights.safetensors"));
    compile("t.so", 2, "", "--weights sidecar");
    compile("s.so", 3, "", "--weights sidecar");
    const ampc_api *api = load("s.so", &lib);
    weights_of(api, first);
    size_t n;
    char *own = test_read_file(beside, &n);
    REQUIRE(own && n > sizeof first);
    CHECK_EQ_INT(own[0] % 8, 0); /* length of the header: data are aligned */
    CHECK_MEM(own + n - sizeof first, first, sizeof first);
    own[n - 2] ^= 1;
    REQUIRE(test_write_file(beside, own, n));
    refuses(api, "not the weights that the module was compiled with");
    own[n - 2] ^= 1;
    REQUIRE(test_write_file(beside, own, n));
    weights_of(api, again);
    CHECK_MEM(again, first, sizeof first);
    REQUIRE(rename(test_tmp("t.weights.safetensors"), beside) == 0);
    refuses(api, "not the weights that the module was compiled with");
    REQUIRE(unlink(beside) == 0);
    refuses(api, "No such file");
    free(own);
    dlclose(lib);
}

/* One renaming each: the weights wait, the module is in place, the weights too.
   If a compilation ended early, the next one ends early, too, in every order
   of the three. */
TEST_CASE(module_file, an_interrupted_compilation_leaves_a_pair) {
    enum { DIED = 9 };
    static const int ends[] = {1, 1, 2, 1, 3, 2, 2, 3, 3, 1};
    float first[WEIGHTS], again[WEIGHTS];
    void *lib;
    compile("pair.so", 1, "", "--weights sidecar");
    weights_of(load("pair.so", &lib), first);
    dlclose(lib);
    for (int i = 0; i < (int)(sizeof ends / sizeof *ends); i++) {
        char dying[1600]; /* its temporary folder stays, in this folder */
        snprintf(dying, sizeof dying,
                 "ASAN_OPTIONS=verify_asan_link_order=0 DIE_AT=%d "
                 "DIE_NAME=pair. LD_PRELOAD='%s' TMPDIR='%s'",
                 ends[i], test_data_path("tests/support/libdying.so"),
                 test_tmpdir());
        compile_to(DIED, "pair.so", 2 + i, dying, "--weights sidecar");
        weights_of(load("pair.so", &lib), again);
        dlclose(lib);
        bool replaced = memcmp(first, again, sizeof first) != 0;
        CHECK_MSG(replaced == (ends[i] == 3), "end %d, at %d", i, ends[i]);
        memcpy(first, again, sizeof first);
    }
    compile("pair.so", 99, "", "--weights sidecar");
    weights_of(load("pair.so", &lib), again);
    dlclose(lib);
    CHECK(memcmp(first, again, sizeof first) != 0);
    CHECK(access(test_tmp("pair.weights.safetensors"), F_OK) == 0);
}

/* ---- what its bytes do not depend on ------------------------------------- */

TEST_CASE(module_file, the_environment_is_not_in_it) {
    char *out;
    compile("plain.so", 1, "", "");
    compile("other.so", 1,
            "LD_RUN_PATH=/nonexistent/lib GCC_COMPARE_DEBUG=1 "
            "SOURCE_DATE_EPOCH=1 DEPENDENCIES_OUTPUT=/nonexistent/deps",
            "");
    test_same_files("plain.so", "other.so");
    REQUIRE(test_command(&out, "readelf -dlW '%s'", test_tmp("other.so")) == 0);
    CHECK(!strstr(out, "RUNPATH") && !strstr(out, "RPATH"));
    CHECK_HAS(out, "BIND_NOW");
    CHECK_HAS(out, "GNU_RELRO");
    free(out);
}

/* In a program with more rights than its user (setuid), the user's
   environment has no effect. */
TEST_CASE(module_file, the_environment_is_read_with_care) {
    char *out;
    compile("plain.so", 1, "", "");
    REQUIRE(test_command(&out, "nm -D '%s'", test_tmp("plain.so")) == 0);
    CHECK(!strstr(out, " getenv"));
    CHECK_HAS(out, "secure_getenv");
    free(out);
}

/* ---- an output that is an input ------------------------------------------ */

TEST_CASE(module_file, an_output_may_be_an_input_unchanged) {
    static const char text[] = "graph forward(%x: f32[4,8]) {\n"
                               "  param %w: f32[8,2] = 1\n"
                               "  %y = matmul %x, %w : f32[4,2]\n"
                               "  %r = reshape %x {shape=[2,16]} : f32[2,16]\n"
                               "  return %y, same=%x, flat=%r\n}\n";
    static const char head[] = "\x93NUMPY\1\0v\0{'descr': '<f4', "
                               "'fortran_order': False, 'shape': (4, 8), }";
    char npy[128 + 128], *out;
    float x[32];
    for (int i = 0; i < 32; i++) x[i] = (float)i - 7;
    memset(npy, ' ', 128);
    memcpy(npy, head, sizeof head - 1);
    npy[127] = '\n';
    memcpy(npy + 128, x, sizeof x);
    REQUIRE(test_write_file(test_tmp("x.npy"), npy, sizeof npy) &&
            test_write_file(test_tmp("in.amp"), text, strlen(text)));
    int rc = test_command(
        &out,
        "cd '%s' && AMPC_LIBNVRTC=none '%s' in.amp -o in.so --loss none "
        "--precision fp32 --target cpu:x86-64-v2 && '%s' run in.so --feed "
        "x=x.npy --fetch got",
        test_tmpdir(), test_ampc(), test_ampc());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    static const char *const names[] = {"got/same.npy", "got/flat.npy"};
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        char *got = test_read_file(test_tmp(names[i]), &n);
        REQUIRE(got && n >= sizeof x);
        CHECK_MEM(got + n - sizeof x, x, sizeof x);
        free(got);
    }
}
