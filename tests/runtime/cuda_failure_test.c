/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_failure_test.c: sessions on the simulated GPU when files, memory, the
   driver or cuBLASLt fail; stored algorithms. */
#define _GNU_SOURCE
#include "tests/support/gpu_session.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/cuda/driver.h"

/* ---- algorithms ---------------------------------------------------------- */

static char *only_file(const char *dir) {
    static char path[900];
    DIR *d = opendir(dir);
    path[0] = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') {
            CHECK_MSG(!path[0], "two files: %s and %s", path, e->d_name);
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        }
    if (d) closedir(d);
    return path;
}

/* Opens once; returns how often cuBLASLt was asked for algorithms and for
   products. */
static void open_counted(const Model *m, const char *dir, uint64_t *asked,
                         uint64_t *tried) {
    const ampc_api *a = machine(m, NULL);
    setenv("AMPC_CACHE_DIR", dir, 1);
    ampc_session *s = open_gpu(a);
    *asked = sim()->calls("cublasLtMatmulAlgoGetHeuristic");
    *tried = sim()->calls("cublasLtMatmul");
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    a->close(s);
    check_clean();
}

TEST_CASE(cuda_failure, algorithms_are_measured_once) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    char first[600], dir[600];
    cache_in(first, "deep/algorithms");
    setenv("AMPC_TUNE", "1", 1);
    open_counted(m, first, &asked, &tried);
    CHECK(asked > 0 && tried > asked);
    struct stat file;
    CHECK(stat(only_file(first), &file) == 0 && !(file.st_mode & 0111));
    open_counted(m, first, &asked, &tried);
    CHECK(asked == 0 && tried == 0);
    cache_in(dir, "another_node");
    REQUIRE(rename(first, dir) == 0);
    open_counted(m, dir, &asked, &tried);
    CHECK(asked == 0 && tried == 0);
    setenv("AMPC_SIM_BLAS_VERSION", "130200", 1);
    remove(only_file(dir));
    open_counted(m, dir, &asked, &tried);
    CHECK(asked > 0 && tried > 0);
    unsetenv("AMPC_SIM_BLAS_VERSION");
    unsetenv("AMPC_TUNE");
}

TEST_CASE(cuda_failure, nothing_is_measured_unasked_or_that_cannot_be_kept) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    char dir[600];
    cache_in(dir, "untuned");
    open_counted(m, dir, &asked, &tried);
    CHECK(asked > 0 && tried == 0);
    setenv("AMPC_TUNE", "1", 1);
    open_counted(m, "/proc/none", &asked, &tried);
    CHECK(asked > 0 && tried == 0);
    unsetenv("AMPC_TUNE");
    CHECK(access(dir, F_OK) != 0);
}

/* Before each timed trial, as many bytes are written as the cache holds, and
   the operands have many different numbers. */
TEST_CASE(cuda_failure, trials_find_the_cache_cold_and_random_numbers) {
    const Model *m = model(&plain);
    char dir[600];
    cache_in(dir, "cold");
    setenv("AMPC_TUNE", "1", 1);
    const ampc_api *a = machine(m, NULL);
    setenv("AMPC_CACHE_DIR", dir, 1);
    ampc_session *s = open_gpu(a);
    uint64_t tried = sim()->calls("cublasLtMatmul");
    uint64_t timed = sim()->calls("cuEventElapsedTime");
    SimStats stats;
    sim()->stats(&stats);
    CHECK_MSG(tried > 0 && timed == tried / 6 * 5 && stats.cold >= timed,
              "%d trials, %d timed, %d cold", (int)tried, (int)timed,
              (int)stats.cold);
    CHECK_EQ_INT(stats.products, tried);
    CHECK_EQ_INT(stats.dull, 0);
    a->close(s);
    check_clean();
    unsetenv("AMPC_TUNE");
}

/* Every truncation of a kept file, and some changes of it. */
TEST_CASE(cuda_failure, damaged_choices_are_not_used) {
    const Model *m = model(&plain);
    uint64_t asked, tried;
    size_t n;
    char dir[600];
    cache_in(dir, "damaged");
    setenv("AMPC_TUNE", "1", 1);
    open_counted(m, dir, &asked, &tried);
    const char *path = only_file(dir);
    char *good = test_read_file(path, &n);
    REQUIRE(good && n > 300);
    for (size_t i = 0; i < 12; i++) {
        char *bad = malloc(n + 1);
        size_t size = i < 6 ? n * i / 6 : n + (i == 11);
        memcpy(bad, good, n);
        bad[n] = 0;
        if (i >= 6 && i < 11) bad[(i - 6) * (n - 1) / 4] ^= 0x40;
        REQUIRE(test_write_file(path, bad, size));
        open_counted(m, dir, &asked, &tried);
        CHECK(asked > 0 && tried == 0);
        CHECK_HAS(log_text, "is damaged and not used");
        free(bad);
    }
    REQUIRE(test_write_file(path, good, n));
    open_counted(m, dir, &asked, &tried);
    CHECK_EQ_INT(asked, 0);
    free(good);
    unsetenv("AMPC_TUNE");
}

/* ---- what cuBLASLt has no algorithm for ---------------------------------- */

/* Losses of some steps, with products by cuBLASLt unless it refuses them. */
static void train_refused(const Model *m, const char *refuse, double loss[4],
                          uint64_t *products) {
    if (refuse) setenv("AMPC_SIM_REFUSE", refuse, 1);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    for (int i = 0; i < 4; i++) {
        ampc_metrics metrics = {.size = sizeof metrics};
        CHECK_EQ_INT(step(m, s, i, &metrics), AMPC_OK);
        loss[i] = metrics.loss;
    }
    *products = sim()->calls("cublasLtMatmul");
    a->close(s);
    check_clean();
    unsetenv("AMPC_SIM_REFUSE");
}

/* Eager, captured and replayed; fp32 products differ in the order of sums. */
TEST_CASE(cuda_failure, refused_products_are_our_own_kernels) {
    Model *const models[] = {&plain, &accumulating, &plain, &plain};
    static const char *const refusals[] = {"products", "products", "7", "8"};
    for (int k = 0; k < 4; k++) { /* an invalid value; a GPU unknown to the
                                     library */
        const Model *m = model(models[k]);
        double want[4], fused[4], own[4], tolerance = k == 1 ? 2e-2 : 1e-5;
        uint64_t all, some, none;
        train_refused(m, NULL, want, &all);
        CHECK(!strstr(log_text, "no algorithm"));
        train_refused(m, "epilogues", fused, &some);
        CHECK_HAS(log_text, "cuBLASLt has no algorithm for ");
        train_refused(m, refusals[k], own, &none);
        CHECK_HAS(log_text, "of them run on our own, slower kernels");
        CHECK_MSG(all > 0 && some > 0 && none == 0, "%d %d %d", (int)all,
                  (int)some, (int)none);
        for (int i = 0; i < 4; i++) {
            CHECK_REL(fused[i], want[i], tolerance);
            CHECK_REL(own[i], want[i], tolerance);
        }
    }
}

/* ---- failures ------------------------------------------------------------ */

/* Everything that calls the driver.  Returns AMPC_OK, or the status of the
   failure. */
static ampc_status use_all(const Model *m, const ampc_api *a) {
    ampc_session *s;
    ampc_metrics metrics = {.size = sizeof metrics};
    ampc_status st = try_open(a, "cuda", NULL, &s);
    const char *path = test_tmp("fails.safetensors");
    if (st != AMPC_OK) {
        CHECK(s == NULL && strlen(open_text) > 10);
        return st;
    }
    for (int i = 0; i < 6 && st == AMPC_OK; i++)
        st = step(m, s, i, i == 3 ? &metrics : NULL);
    if (st == AMPC_OK) st = a->sync(s, &metrics);
    if (st == AMPC_OK) st = a->save(s, path);
    if (st == AMPC_OK) st = a->resume(s, path);
    if (st == AMPC_OK) st = a->set_hyper(s, "lr", 0.1);
    if (st == AMPC_ERR_DEVICE) {
        char *why = strdup(a->error(s));
        CHECK(strlen(why) > 10);
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_ERR_DEVICE);
        CHECK_STR(a->error(s), why);
        free(why);
    }
    a->close(s);
    return st;
}

/* Makes the nth call of an entry point fail; false: there are fewer calls. */
static bool fail_at(const Model *m, const char *entry, int nth, int code,
                    bool sticky) {
    const ampc_api *a = machine(m, NULL);
    sim()->fail(entry, nth, code, sticky);
    ampc_status st = use_all(m, a);
    if (st == AMPC_OK) {
        bool failed = sim()->calls(entry) >= (uint64_t)nth;
        CHECK_MSG(!failed, "%s: call %d failed, and nobody was told", entry,
                  nth);
        return failed;
    }
    CHECK_MSG(st == AMPC_ERR_DEVICE || st == AMPC_ERR_MEMORY ||
                  st == AMPC_ERR_UNSUPPORTED,
              "%s %d: status %d: %s", entry, nth, st, open_text);
    sim()->fail(NULL, 0, 0, false);
    CHECK_MSG(sticky || !*sim()->leaks(), "%s %d: %s", entry, nth,
              sim()->leaks());
    return true;
}

static void fail_each(const Model *m, const char *entry, int code, int other) {
    static const int nths[] = {1, 2, 5, 17};
    for (size_t i = 0; i < sizeof nths / sizeof *nths; i++)
        if (!fail_at(m, entry, nths[i], i % 2 ? other : code, false)) break;
    fail_at(m, entry, 2, code, true);
}

/* Entry points that release something: if they fail, memory leaks. */
static bool gives_back(const char *e) {
    return strstr(e, "Destroy") || strstr(e, "Free") || strstr(e, "Unload") ||
           strstr(e, "Release") || strstr(e, "Pop");
}

TEST_CASE(cuda_failure, every_driver_call_may_fail) {
    static const char *const entries[] = {
#define CU(member, symbol, parameters) symbol,
#include "runtime/cuda/driver.def"
#undef CU
    };
    const Model *m = model(&accumulating);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *e = entries[i];
        if (!gives_back(e) && !strstr(e, "GetError"))
            fail_each(m, e, CUDA_OUT_OF_MEMORY, CUDA_LAUNCH_FAILED);
    }
}

/* ---- failures of what reads back ----------------------------------------- */

typedef ampc_status ReadFn(const Model *m, ampc_session *s);

/* Sums are unchanged if it fails. */
static ampc_status evaluates(const Model *m, ampc_session *s) {
    ampc_eval sums = {.size = sizeof sums}, before = sums;
    size_t n;
    const ampc_input *in = dc_random_feed(m->feed, 0, &n);
    ampc_status st = m->c.api->evaluate(s, in, n, 5, &sums);
    CHECK((memcmp(&sums, &before, sizeof sums) != 0) == (st == AMPC_OK));
    return st;
}

static ampc_status reads_a_loss(const Model *m, ampc_session *s) {
    float loss = 0;
    ampc_output out = {.size = sizeof out,
                       .data = &loss,
                       .bytes = sizeof loss,
                       .dtype = AMPC_DTYPE_F32};
    ampc_status st = step(m, s, 1, NULL);
    if (st == AMPC_OK) st = m->c.api->read_output(s, "ampc.loss", &out);
    CHECK((loss != 0) == (st == AMPC_OK));
    return st;
}

static ampc_status reads_metrics(const Model *m, ampc_session *s) {
    ampc_metrics metrics;
    return step(m, s, 1, &metrics);
}

static ampc_status reads_the_scaler(const Model *m, ampc_session *s) {
    ampc_scaler state = {.size = sizeof state};
    return m->c.api->scaler(s, &state);
}

static ampc_status saves(const Model *m, ampc_session *s) {
    const char *path = test_tmp("unsaved.safetensors");
    unlink(path);
    ampc_status st = m->c.api->save(s, path);
    CHECK((access(path, F_OK) == 0) == (st == AMPC_OK));
    return st;
}

/* The number of times that `entry` failed and the host was told, over each
   of its calls. */
static int fails_in(const Model *m, ReadFn *read, const char *entry) {
    for (int nth = 1;; nth++) {
        const ampc_api *a = machine(m, NULL);
        ampc_session *s = open_gpu(a);
        CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
        uint64_t before = sim()->calls(entry);
        sim()->fail(entry, nth, CUDA_LAUNCH_FAILED, false);
        ampc_status st = read(m, s);
        bool failed = sim()->calls(entry) - before >= (uint64_t)nth;
        CHECK_MSG(st == (failed ? AMPC_ERR_DEVICE : AMPC_OK),
                  "%s %d: status %d", entry, nth, st);
        sim()->fail(NULL, 0, 0, false);
        a->close(s);
        if (!failed || nth > 60) return nth - 1;
    }
}

TEST_CASE(cuda_failure, reading_back_may_fail) {
    static ReadFn *const reads[] = {evaluates, reads_a_loss, reads_metrics,
                                    reads_the_scaler, saves};
    const Model *m = model(&plain);
    for (size_t k = 0; k < sizeof reads / sizeof *reads; k++) {
        CHECK(fails_in(m, reads[k], "cuMemcpyDtoHAsync_v2") > 0);
        fails_in(m, reads[k], "cuStreamSynchronize");
        fails_in(m, reads[k], "cuEventSynchronize");
        fails_in(m, reads[k], "cuLaunchKernel");
    }
}

TEST_CASE(cuda_failure, every_cublaslt_call_may_fail) {
    static const char *const entries[] = {
#define LT(member, symbol, parameters) symbol,
#include "runtime/cuda/cublaslt.def"
#undef LT
    };
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strstr(entries[i], "Destroy"))
            fail_each(m, entries[i], LT_INTERNAL_ERROR, LT_ALLOC_FAILED);
}

TEST_CASE(cuda_failure, algorithms_that_cannot_be_asked_for_end_open) {
    const Model *m = model(&plain);
    for (int nth = 1; nth < 4; nth++) {
        ampc_session *s;
        const ampc_api *a = machine(m, NULL);
        sim()->fail("cublasLtMatmulAlgoGetHeuristic", nth, LT_INTERNAL_ERROR,
                    false);
        CHECK_EQ_INT(try_open(a, "cuda", NULL, &s), AMPC_ERR_DEVICE);
        CHECK_HAS(open_text, "cublasLtMatmulAlgoGetHeuristic");
        check_clean();
    }
}

TEST_CASE(cuda_failure, an_error_names_step_and_cause) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    sim()->fail("cuLaunchKernel", 1, CUDA_LAUNCH_OUT_OF_RESOURCES, false);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_ERR_DEVICE);
    CHECK_HAS(a->error(s), "step '");
    CHECK_HAS(a->error(s),
              "cuLaunchKernel: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
    a->close(s);
    check_clean();
}

/* The message names the call that failed in the eager, the captured or a
   replayed step, not a later one that failed because of it. */
TEST_CASE(cuda_failure, the_call_that_fails_is_named) {
    static const char *const entries[] = {
        "cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent",
        "cuStreamEndCapture", "cuGraphLaunch"};
    const Model *m = model(&plain);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const ampc_api *a = machine(m, NULL);
        ampc_session *s = open_gpu(a);
        ampc_status st = AMPC_OK;
        char want[100];
        sim()->fail(entries[i], 1, CUDA_LAUNCH_OUT_OF_RESOURCES, false);
        for (int k = 0; k < 4 && st == AMPC_OK; k++) st = step(m, s, k, NULL);
        CHECK_EQ_INT(st, AMPC_ERR_DEVICE);
        snprintf(want, sizeof want, "%s: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
                 entries[i]);
        CHECK_HAS(a->error(s), want);
        a->close(s);
        check_clean();
    }
}

/* ---- host memory --------------------------------------------------------- */

typedef struct Hook {
    int calls, fail_at;
    long live;
} Hook;

static void *hook_alloc(void *ctx, size_t bytes, size_t align) {
    Hook *h = ctx;
    if (h->calls++ == h->fail_at) return NULL;
    h->live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void hook_free(void *ctx, void *p, size_t bytes) {
    Hook *h = ctx;
    (void)bytes;
    h->live--;
    free(p);
}

TEST_CASE(cuda_failure, every_allocation_may_fail) {
    const Model *m = model(&plain);
    int n = 0;
    for (bool done = false; !done && n < 300; n++) {
        const ampc_api *a = machine(m, NULL);
        Hook h = {.fail_at = n};
        ampc_options o = {.size = sizeof o,
                          .device = "cuda",
                          .alloc = hook_alloc,
                          .free = hook_free,
                          .alloc_ctx = &h};
        ampc_session *s;
        ampc_status st =
            a->open(a->module, &o, &s, open_text, sizeof open_text);
        done = st == AMPC_OK && h.calls <= n;
        CHECK(st == AMPC_OK || st == AMPC_ERR_MEMORY);
        if (st == AMPC_OK) CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
        a->close(s);
        CHECK_EQ_INT(h.live, 0);
        check_clean();
    }
    CHECK(n > 8 && n < 300);
}
