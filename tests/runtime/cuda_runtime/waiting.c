/* SPDX-License-Identifier: Apache-2.0 */
/* waiting.c: which calls wait for the device, sessions side by side, profiles.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/program/plan.h"
#include "tests/support/gpu_session.h"

/* ---- what waits ---------------------------------------------------------- */

/* Only calls that request a result wait for the device: no other call waits
   for the stream, or for events, except for the slot of two steps before. */
TEST_CASE(cuda_runtime, steps_do_not_wait) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    ampc_metrics want[6], got;
    for (int i = 0; i < 6; i++) CHECK_EQ_INT(step(m, s, i, &want[i]), AMPC_OK);
    a->close(s);
    s = open_gpu(a);
    CHECK_EQ_INT(step(m, s, 0, NULL), AMPC_OK);
    uint64_t waits = sim()->calls("cuStreamSynchronize");
    for (int i = 1; i < 6; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    CHECK_EQ_INT(sim()->calls("cuStreamSynchronize") - waits, 0);
    got.size = sizeof got;
    CHECK_EQ_INT(a->sync(s, &got), AMPC_OK);
    CHECK_MEM(&got, &want[5], sizeof got);
    a->close(s);
    check_clean();
}

/* The loss of step 4, with each step's inputs overwritten as soon as it
   returns. */
static double loss_with_reuse(const Model *m, uint64_t seed, bool reuse) {
    const ampc_api *a = machine(m, &(SimConfig){.seed = seed});
    ampc_session *s = open_gpu(a);
    ampc_metrics last = {.size = sizeof last};
    for (int i = 0; i < 5; i++) {
        size_t n;
        const ampc_input *in = dc_random_feed(m->feed, i, &n);
        CHECK_EQ_INT(a->step(s, in, n, NULL), AMPC_OK);
        for (size_t k = 0; reuse && k < n; k++)
            memset((void *)(uintptr_t)in[k].data, 0, in[k].bytes);
    }
    CHECK_EQ_INT(a->sync(s, &last), AMPC_OK);
    a->close(s);
    check_clean();
    return last.loss;
}

TEST_CASE(cuda_runtime, inputs_are_the_callers_again_at_once) {
    const Model *m = model(&plain);
    double want = loss_with_reuse(m, 1, false);
    for (uint64_t seed = 1; seed < 4; seed++)
        CHECK(loss_with_reuse(m, seed, true) == want);
}

/* Five steps on inputs written to staged memory, which is overwritten after
   each; or, misplaced, only the target, at the address of the first input. */
static double loss_of_staged(const Model *m, uint64_t seed, bool spoil,
                             bool misplaced) {
    const ampc_api *a = machine(m, &(SimConfig){.seed = seed});
    ampc_session *s = open_gpu(a);
    ampc_metrics last = {.size = sizeof last};
    for (int i = 0; i < 5; i++) {
        ampc_input in[4];
        size_t n;
        const ampc_input *from = dc_random_feed(m->feed, i, &n);
        REQUIRE(n == 2);
        for (uint32_t k = 0; k < n; k++) {
            void *to = NULL;
            in[k] = from[k];
            if (misplaced && k == 0) continue;
            uint32_t place = misplaced ? 0 : k;
            REQUIRE(a->stage(s, "train", place, &to) == AMPC_OK && to);
            memcpy(to, from[k].data, from[k].bytes);
            in[k].data = to;
        }
        CHECK_EQ_INT(a->step(s, in, n, i < 4 ? NULL : &last), AMPC_OK);
        for (size_t k = 0; k < n && spoil; k++)
            memset((void *)(uintptr_t)in[k].data, 0, in[k].bytes);
    }
    a->close(s);
    check_clean();
    return last.loss;
}

TEST_CASE(cuda_runtime, staged_inputs_are_read_where_they_lie) {
    const Model *m = model(&plain);
    double want = loss_with_reuse(m, 1, false);
    int changed = 0;
    for (uint64_t seed = 1; seed < 9; seed++) {
        CHECK(loss_of_staged(m, seed, false, false) == want);
        CHECK(loss_of_staged(m, seed, false, true) == want);
        changed += loss_of_staged(m, seed, true, false) != want;
    }
    CHECK(changed > 0);
}

TEST_CASE(cuda_runtime, only_a_gpu_has_a_stage) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_options o = {.size = sizeof o, .device = "cpu"};
    ampc_session *s = NULL;
    void *to = &s;
    REQUIRE(a->open(a->module, &o, &s, NULL, 0) == AMPC_OK);
    CHECK(a->stage(s, "train", 0, &to) == AMPC_OK && !to);
    CHECK_EQ_INT(a->stage(s, "train", 9, &to), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->stage(s, "none", 0, &to), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->stage(s, "train", 0, NULL), AMPC_ERR_ARGUMENT);
    a->close(s);
}

/* ---- sessions side by side ----------------------------------------------- */

static ampc_metrics alone[3];

static void *train_alone(void *number) {
    const Model *m = model(&plain);
    ampc_metrics *out = number;
    ampc_session *s;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    if (m->c.api->open(m->c.api->module, &o, &s, NULL, 0)) return NULL;
    DcRandom *feed = dc_random_new(m->c.api, "train", 3, 1);
    out->size = sizeof *out;
    for (int i = 0; i < 5; i++) {
        size_t n;
        const ampc_input *in = dc_random_feed(feed, i, &n);
        m->c.api->step(s, in, n, i < 4 ? NULL : out);
    }
    dc_random_free(feed);
    m->c.api->close(s);
    return NULL;
}

TEST_CASE(cuda_runtime, sessions_run_in_parallel) {
    pthread_t t[3];
    machine(model(&plain), NULL);
    for (int i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&t[i], NULL, train_alone, &alone[i]));
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK(alone[0].step == 5 && alone[0].loss > 0);
    for (int i = 1; i < 3; i++) CHECK_MEM(&alone[0], &alone[i], sizeof *alone);
    check_clean();
}

static bool opened, opened_early;

static void *open_beside(void *unused) {
    const ampc_api *a = model(&plain)->c.api;
    ampc_options o = {.size = sizeof o, .device = "cuda"};
    ampc_session *s = NULL;
    char err[300] = "";
    (void)unused;
    CHECK_MSG(a->open(a->module, &o, &s, err, sizeof err) == AMPC_OK, "%s",
              err);
    a->close(s);
    __atomic_store_n(&opened, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A thread begins to open a session while this one captures. */
static void open_in_capture(void *thread) {
    const struct timespec moment = {.tv_nsec = 50000000};
    REQUIRE(!pthread_create(thread, NULL, open_beside, NULL));
    nanosleep(&moment, NULL);
    opened_early = __atomic_load_n(&opened, __ATOMIC_SEQ_CST);
}

/* cuBLASLt finds no algorithm while a stream is captured. */
TEST_CASE(cuda_runtime, sessions_open_while_others_capture) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    ampc_metrics out;
    pthread_t other;
    opened = opened_early = false;
    CHECK_EQ_INT(step(m, s, 0, &out), AMPC_OK);
    sim()->at_capture(open_in_capture, &other);
    CHECK_EQ_INT(step(m, s, 1, &out), AMPC_OK);
    CHECK(!opened_early);
    pthread_join(other, NULL);
    CHECK(opened);
    a->close(s);
    check_clean();
}

static uint64_t waited(void) {
    return sim()->calls("cuStreamSynchronize") +
           sim()->calls("cuEventSynchronize") +
           sim()->calls("cuCtxSynchronize");
}

static int profiled;

static uint64_t profiled_to;

/* One after the other, as on the device. */
static void on_step(void *ctx, const char *program, const char *name,
                    uint64_t begin, uint64_t end) {
    (void)ctx;
    CHECK(program && name && end >= begin && begin >= profiled_to);
    profiled_to = end;
    profiled++;
}

/* Times are those between events on the device, and the host waits once. */
TEST_CASE(cuda_runtime, profiles_every_step) {
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    ampc_session *s = open_gpu(a);
    const AmpcModule *plan = (const void *)a->module;
    uint32_t train = 0;
    while (strcmp(plan->programs[train].name, "train")) train++;
    int nstep = (int)plan->cuda->plan->runs[train].nstep;
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(step(m, s, i, NULL), AMPC_OK);
    profiled = 0;
    a->profile(s, on_step, NULL);
    uint64_t timed = sim()->calls("cuEventElapsedTime"), waits = waited();
    CHECK_EQ_INT(step(m, s, 3, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, nstep);
    CHECK(sim()->calls("cuEventElapsedTime") - timed >= (uint64_t)nstep);
    CHECK_MSG(waited() - waits <= 2, "%d waits", (int)(waited() - waits));
    a->profile(s, NULL, NULL);
    CHECK_EQ_INT(step(m, s, 4, NULL), AMPC_OK);
    CHECK_EQ_INT(profiled, nstep);
    a->close(s);
    check_clean();
}

/* Counters have 64 bits all the way to the host. */
TEST_CASE(cuda_runtime, counters_beyond_32_bits) {
    static const struct {
        const char *name;
        size_t field;
        int more; /* after a step that is applied */
    } rows[] = {{"ampc.step", offsetof(ampc_metrics, step), 1},
                {"ampc.tried", offsetof(ampc_metrics, tried), 1},
                {"ampc.skipped", offsetof(ampc_metrics, skipped), 0},
                {"ampc.bad_forward", offsetof(ampc_metrics, bad_forward), 0},
                {"ampc.bad_data", offsetof(ampc_metrics, bad_data), 0}};
    enum { ROWS = sizeof rows / sizeof *rows };
    const Model *m = model(&plain);
    const ampc_api *a = machine(m, NULL);
    for (int device = 0; device < 2; device++) {
        ampc_session *s;
        ampc_metrics now = {.size = sizeof now};
        REQUIRE(try_open(a, device ? "cuda" : "cpu", NULL, &s) == AMPC_OK);
        for (int i = 0; i < ROWS; i++) {
            int64_t far = ((int64_t)1 << 40) + i;
            ampc_input in = ampc_in(NULL, &far, sizeof far, AMPC_DTYPE_I64);
            CHECK_EQ_INT(a->write_variable(s, rows[i].name, &in), AMPC_OK);
        }
        for (int k = 1; k <= 3; k++) { /* eager, captured, replayed */
            CHECK_EQ_INT(step(m, s, k, &now), AMPC_OK);
            for (int i = 0; i < ROWS; i++) {
                int64_t got;
                memcpy(&got, (char *)&now + rows[i].field, sizeof got);
                CHECK_MSG(got == ((int64_t)1 << 40) + i + k * rows[i].more,
                          "%s: %lld", rows[i].name, (long long)got);
            }
        }
        a->close(s);
    }
    check_clean();
}
