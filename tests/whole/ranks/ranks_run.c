/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_run.c: see ranks_run.h. */
#define _GNU_SOURCE
#include "tests/whole/ranks/ranks_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/api/session.h"
#include "tests/support/samples.h"

Batch batch_new(const ampc_api *api, int64_t index, int parts) {
    Batch b = {.n = 0};
    const char *objective = api->objective_name(api->module, 0);
    char program[40] = "micro"; /* all objectives read the same inputs */
    if (objective && *objective)
        snprintf(program, sizeof program, "micro:%s", objective);
    ampc_tensor_info t = {.size = sizeof t};
    uint32_t state[PARTS];
    for (int p = 0; p < parts; p++)
        state[p] = (uint32_t)(index * parts + p) * 2654435761u + 1;
    for (; api->input(api->module, program, (uint32_t)b.n, &t) == AMPC_OK;) {
        char *data = malloc(t.bytes);
        bool real = t.dtype == AMPC_DTYPE_F32;
        size_t n = t.bytes / (real ? 4 : 8);
        for (size_t i = 0; i < n; i++) {
            double x = samples_random(&state[i / (n / (size_t)parts)]);
            if (real)
                ((float *)data)[i] = (float)(2 * x - 1);
            else
                ((int64_t *)data)[i] = (int64_t)(5 * x);
        }
        b.in[b.n++] = ampc_in(t.name, data, t.bytes, (ampc_dtype)t.dtype);
    }
    return b;
}

void batch_free(Batch *b) {
    for (size_t i = 0; i < b->n; i++) free((void *)(uintptr_t)b->in[i].data);
}

static void run_step(Run *r, ampc_session *s, int rank, int step,
                     int64_t accumulate) {
    const ampc_api *api = r->of[rank]->api;
    ampc_metrics *m = &r->metrics[rank][step];
    const char *objective = api->objective_name(api->module, step % 2 != 0);
    m->size = sizeof *m;
    if (objective && *objective) r->status[rank] = api->objective(s, objective);
    for (int64_t k = 0; k < accumulate && !r->status[rank]; k++) {
        int64_t index = ((int64_t)step * r->ranks.world + rank) * accumulate;
        Batch b = batch_new(api, r->from + index + k, r->parts);
        if (r->spoil) r->spoil(rank, step, &b);
        r->status[rank] = api->step(s, b.in, b.n, m);
        batch_free(&b);
    }
}

static void *counting(void *ctx, size_t bytes, size_t align) {
    struct Asked *a = ctx;
    if (++a->calls == a->refuse) return NULL;
    a->bytes += bytes;
    a->held += (int64_t)bytes;
    return aligned_alloc(align, (bytes + 63) / 64 * 64);
}

static void give_back(void *ctx, void *p, size_t bytes) {
    struct Asked *a = ctx;
    if (p) a->held -= (int64_t)bytes;
    free(p);
}

/* The checkpoint, and the weights alone, which are then read again. */
static ampc_status save_all(const ampc_api *api, ampc_session *s,
                            const char *path) {
    char weights[300];
    const char *from = weights;
    ampc_weights w = {.size = sizeof w, .paths = &from, .npath = 1};
    snprintf(weights, sizeof weights, "%s.weights", path);
    ampc_status status = api->save(s, path);
    if (!status) status = api->save_weights(s, weights);
    return status ? status : api->load_weights(s, &w);
}

/* Ranks make 16-bit copies of the parameters that they received when a program
   next runs. */
static ampc_status make_copies(const Run *r, ampc_session *s, int64_t batch) {
    const ampc_api *api = r->of[0]->api;
    Batch b = batch_new(api, r->from, r->parts);
    ampc_eval e = {.size = sizeof e};
    ampc_status status = api->evaluate(s, b.in, b.n, batch, &e);
    batch_free(&b);
    return status;
}

/* Sums of rank 0 in profiles: those during backward, which are complete,
   before those for which the update waited. */
typedef struct Told {
    Run *run;
    uint64_t from, to; /* since the session was opened, by the last sum */
} Told;

static void on_profile(void *ctx, const char *program, const char *step,
                       uint64_t begin, uint64_t end) {
    Told *t = ctx;
    bool update = !strcmp(program, "update");
    CHECK(begin >= t->from && end >= begin);
    if (strcmp(step, "sum over ranks") != 0) return;
    CHECK(begin >= t->to && (update || !strcmp(program, "micro")));
    t->to = end;
    t->run->sums[update]++;
}

static void run_rank(void *ctx, int rank) {
    Run *r = ctx;
    Told told = {.run = r, .from = now_ns()};
    const ampc_api *api = r->of[rank]->api;
    ampc_module_info info = {.size = sizeof info};
    ampc_session *s = NULL;
    ampc_options o = {.size = sizeof o,
                      .device = r->device ? r->device : "cpu",
                      .threads = 1};
    if (r->ranks.world > 1) o.comm = &r->ranks.comm[rank];
    struct Asked *asked = &r->asked[rank];
    if (rank && rank == r->starved) asked->refuse = r->refused;
    o.alloc = counting;
    o.alloc_ctx = asked;
    o.free = give_back;
    api->describe(api->module, &info);
    r->status[rank] =
        api->open(api->module, &o, &s, r->error[rank], sizeof r->error[rank]);
    if (!s) return;
    struct Asked at_open = *asked;
    if (!rank && r->sums[0] >= 0) api->profile(s, on_profile, &told);
    if (r->load[rank]) r->status[rank] = api->resume(s, r->load[rank]);
    for (int i = 0; i < r->steps && !r->status[rank]; i++)
        run_step(r, s, rank, i, info.accumulate);
    if (r->save && !r->status[rank])
        r->status[rank] =
            save_all(api, s, rank && rank == r->nameless ? "" : r->save);
    asked->bytes = at_open.bytes;
    asked->calls = at_open.calls;
    if (r->kinds >> AMPC_KIND_SHADOW & 1 && !r->status[rank])
        r->status[rank] = make_copies(r, s, info.batch);
    snprintf(r->error[rank], sizeof r->error[rank], "%s", api->error(s));
    r->state[rank] = read_all(r->of[rank], s, r->kinds, &r->bytes[rank]);
    api->close(s);
}

void cut(ampc_comm *c, size_t size) {
    if (size < sizeof *c) memset((char *)c + size, 0x5a, sizeof *c - size);
    c->size = size;
}

void run(Run *r, int world) {
    ranks_open(&r->ranks, world);
    r->ranks.fail_in = r->fail_in;
    r->ranks.once = r->once;
    for (int i = 0; i < world && r->no_scatter; i++)
        r->ranks.comm[i].scatter = NULL;
    for (int i = 0; i < world && r->table; i++)
        cut(&r->ranks.comm[i], r->table);
    for (int i = 1; i < world; i++)
        if (!r->of[i]) r->of[i] = r->of[0];
    if (!r->steps) r->steps = STEPS;
    if (!r->parts) r->parts = 1;
    if (!r->kinds) r->kinds = ALL_KINDS;
    ranks_run(&r->ranks, run_rank, r);
    ranks_close(&r->ranks);
}

void run_free(Run *r) {
    for (int i = 0; i < RANKS_MOST; i++) free(r->state[i]);
    free(r);
}

Run *run_new(const Compiled *c) {
    Run *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL);
    r->of[0] = c;
    r->sums[0] = -1;
    return r;
}

void run_ok(Run *r, int world) {
    run(r, world);
    for (int i = 0; i < world; i++) {
        CHECK_MSG(r->status[i] == AMPC_OK, "rank %d: %s", i, r->error[i]);
        CHECK_EQ_INT(r->asked[i].held, 0);
    }
}

Run *run_ranks(const Compiled *c, int world,
               void (*spoil)(int rank, int step, Batch *b)) {
    Run *r = run_new(c);
    r->spoil = spoil;
    run_ok(r, world);
    return r;
}

static bool same_metrics(const ampc_metrics *a, const ampc_metrics *b) {
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 &&
           memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm) == 0 &&
           a->scale == b->scale && a->lr == b->lr && a->applied == b->applied &&
           a->step == b->step && a->skipped == b->skipped;
}

void check_same(const Run *got, const Run *want) {
    for (int r = 0; r < got->ranks.world; r++) {
        for (int i = 0; i < got->steps; i++)
            CHECK_MSG(same_metrics(&got->metrics[r][i], &want->metrics[0][i]),
                      "rank %d of %d, step %d: loss %.9g, not %.9g", r,
                      got->ranks.world, i, got->metrics[r][i].loss,
                      want->metrics[0][i].loss);
        REQUIRE(want->bytes[0] > 0 && got->bytes[r] == want->bytes[0]);
        CHECK(memcmp(got->state[r], want->state[0], got->bytes[r]) == 0);
    }
}

Compiled compile_for(const char *model, const char *options, int accumulate) {
    char all[512], path[256];
    snprintf(all, sizeof all, "--accumulate %d --target cpu:x86-64-v2 %s",
             accumulate, options);
    if (!strstr(model, ".onnx")) return compile_text(model, all);
    snprintf(path, sizeof path, "tests/onnx/%s", model);
    strcat(all, " --dim batch=2");
    return compile_file(test_data_path(path), all);
}
