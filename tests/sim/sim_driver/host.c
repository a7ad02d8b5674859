/* SPDX-License-Identifier: Apache-2.0 */
/* host.c: forbidden accesses of the host, and settings. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_driver/sim_driver.h"
#include "tests/support/simulate.h"

/* ---- what the host must not do ------------------------------------------- */

static void touch(void *arg) {
    const Rig *r = arg;
    volatile float *p = (volatile float *)(uintptr_t)r->x;
    *p = 1;
    fprintf(stderr, "it went on");
}

TEST_CASE(sim_driver, the_host_cannot_touch_device_memory) {
    Rig r = driver_begin(1);
    char *words = sim_last_words(touch, &r);
    CHECK(!strstr(words, "it went on"));
    free(words);
    driver_end(&r);
}

TEST_CASE(sim_driver, a_symbol_may_be_missing) {
    const char *path = sim_without("cuGraphLaunch");
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(h);
    CHECK(dlsym(h, "cuGraphDestroy"));
    CHECK(!dlsym(h, "cuGraphLaunch"));
    dlclose(h);
}

TEST_CASE(sim_driver, the_legacy_stream_waits_for_the_others) {
    for (unsigned seed = 1; seed < 6; seed++) {
        Rig r = driver_begin(seed);
        CUstream s;
        OK(driver_cu.StreamCreate(&s, 0));
        OK(driver_fill(&r, r.x, 1, s));
        OK(driver_fill(&r, r.y, 1, s));
        OK(driver_add(&r, 1, NULL));
        OK(driver_add(&r, 1, s));
        CHECK_NEAR(read_one(r.y, NULL), 3, 0);
        CUgraph g;
        OK(driver_cu.StreamBeginCapture(s, CUDA_CAPTURE_THREAD_LOCAL));
        CHECK_EQ_INT(driver_fill(&r, r.x, 1, NULL), 906);
        CHECK_EQ_INT(driver_cu.StreamEndCapture(s, &g), 901);
        OK(driver_cu.StreamDestroy(s));
        driver_end(&r);
    }
}

TEST_CASE(sim_driver, copies_stay_in_their_allocation) {
    Rig r = driver_begin(1);
    CHECK_EQ_INT(driver_cu.MemcpyDtoDAsync(r.x, r.y + 4, 1024, r.s), 1);
    CHECK_EQ_INT(driver_cu.MemsetD8Async(r.x + 1000, 0, 25, r.s), 1);
    OK(driver_cu.MemsetD8Async(r.x + 1000, 0, 24, r.s));
    CHECK_NEAR(read_one(r.x + 1000, r.s), 0, 0);
    float v = read_one(r.x, r.s);
    CHECK(v != v); /* new memory is NaN */
    CHECK_HAS(sim()->errors(), "are not in one allocation");
    driver_end(&r);
}

TEST_CASE(sim_driver, work_behind_the_free_of_its_memory) {
    Rig r = driver_begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(driver_cu.MemcpyDtoDAsync(r.x, r.y, 1024, r.s));
    OK(driver_cu.StreamEndCapture(r.s, &g));
    OK(driver_cu.GraphInstantiate(&x, g, 0));
    OK(driver_cu.GraphDestroy(g));
    OK(driver_cu.MemFree(r.y));
    OK(driver_cu.GraphLaunch(x, r.s));
    CHECK_EQ_INT(driver_cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "not allocated any more");
    driver_cu.GraphExecDestroy(x);
    r.y = 0;
    driver_end(&r);
}

TEST_CASE(sim_driver, a_graph_does_not_outlive_its_module) {
    Rig r = driver_begin(1);
    CUgraph g;
    CUgraphExec x;
    OK(driver_cu.StreamBeginCapture(r.s, CUDA_CAPTURE_THREAD_LOCAL));
    OK(driver_fill(&r, r.x, 1, r.s));
    OK(driver_cu.StreamEndCapture(r.s, &g));
    OK(driver_cu.GraphInstantiate(&x, g, 0));
    OK(driver_cu.GraphDestroy(g));
    OK(driver_cu.ModuleUnload(r.m));
    OK(driver_cu.GraphLaunch(x, r.s));
    CHECK_EQ_INT(driver_cu.StreamSynchronize(r.s), CUDA_ILLEGAL_ADDRESS);
    CHECK_HAS(sim()->errors(), "whose module was unloaded");
    driver_cu.GraphExecDestroy(x);
    driver_end(&r);
}

/* Bytes beside an allocation: checked when it is freed, if no page or
   sanitizer has caught the access. */
#ifndef __SANITIZE_ADDRESS__

TEST_CASE(sim_driver, writes_beside_an_allocation_show) {
    int seen = 0;
    for (unsigned seed = 1; seed < 9; seed++) {
        Rig r = driver_begin(seed);
        OK(driver_fill(&r, r.x - 32, 1, r.s));
        CUresult rc = driver_cu.StreamSynchronize(r.s);
        CHECK(rc == 0 || rc == CUDA_ILLEGAL_ADDRESS);
        driver_end(&r);
        bool beside = strstr(sim()->errors(), "beside an allocation") != NULL;
        CHECK(rc || beside);
        seen += beside;
    }
    CHECK(seen > 0 && seen < 8);
}

#endif

/* ---- settings ------------------------------------------------------------ */

static void with_settings(void *arg) {
    const char *library = sim_without("no such symbol");
    setenv("AMPC_SIM_FAIL", "cuInit:1:100", 1);
    setenv("AMPC_SIM_REPORT", arg, 1);
    void *h = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CUresult (*init)(unsigned);
    if (!h) return;
    *(void **)&init = dlsym(h, "cuInit");
    fprintf(stderr, "first %d, ", init(0));
    fprintf(stderr, "second %d", init(0));
    dlclose(h);
}

TEST_CASE(sim_driver, the_environment_fails_and_reports) {
    char path[300];
    snprintf(path, sizeof path, "%s/report", test_tmpdir());
    char *words = sim_last_words(with_settings, path);
    char *report = test_read_file(path, NULL);
    CHECK_STR(words, "first 100, second 0");
    CHECK_STR(report, "launches 0, graph launches 0, copies 0, bytes 0\n");
    free(report);
    free(words);
}
