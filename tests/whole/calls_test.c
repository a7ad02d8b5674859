/* SPDX-License-Identifier: Apache-2.0 */
/* calls_test.c: calls of the C API in a random order with random arguments:
   arrays that end at a page that may not be read, sizes, dtypes, shapes, names
   and places that do not fit, calls that the module lacks.  A call that fails
   gives a message and leaves every variable as it was; one that only reads
   changes none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/guarded.h"
#include "tests/support/small_model.h"

enum { B = 4, IN = 3, OUT = 3, SESSIONS = 120, CALLS = 25, MOST = 4 };

static uint64_t state;

static unsigned below(unsigned n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % n;
}

static bool once_in(unsigned n) { return below(n) == 0; }

static const char *const words[] = {
    NULL,    "",       "x",     "y",          "target",
    "lr",    "train",  "micro", "predict",    "eval",
    "total", "eval@2", "fc1",   "fc1.weight", "ampc.opt/fc1.weight/exp_avg",
    "\xff",  "cuda:7",
};

static const char *any_word(void) {
    return words[below(sizeof words / sizeof *words)];
}

/* ---- arguments ----------------------------------------------------------- */

typedef struct Array {
    char *data;
    size_t bytes;
} Array;

typedef struct Call {
    const Compiled *c;
    ampc_session *s;
    Guarded memory; /* of the arrays, which end at a page without access */
    Array array[MOST], room;
    int64_t shape[MOST][AMPC_RANK_LIMIT];
    ampc_input in[MOST];
    size_t nin;
    int64_t valid;
    ampc_output out;
    int taken, refused;
} Call;

static Array array_of(Call *k, size_t bytes) {
    Array a = {guarded_alloc(&k->memory, bytes, 1), bytes};
    REQUIRE(a.data != NULL);
    return a;
}

/* What no program takes: one thing of a valid input is changed. */
static void spoil_input(Call *k, int i) {
    ampc_input *in = &k->in[i];
    switch (below(8)) {
    case 0: in->bytes = in->bytes ? below((unsigned)in->bytes) : 0; break;
    case 1: in->dtype = (int32_t)below(40) - 10; break;
    case 2: in->name = any_word(); break;
    case 3: in->data = NULL; break;
    case 4: in->rank = (int32_t)below(20) - 5; break; /* without a shape */
    case 5: in->place = (int32_t)below(4) - 1; break;
    case 6: in->size = below(40); break; /* without all fields */
    default:
        in->rank = 2;
        in->shape = k->shape[i];
        k->shape[i][0] = (int64_t)(state >> below(64));
        k->shape[i][1] = (int64_t)below(9) - 4;
    }
}

/* Input i: x, then the classes or the gradient of y. */
static void make_input(Call *k, int i, bool host, unsigned rows) {
    bool classes = i > 0 && !host;
    size_t bytes = rows * (classes ? sizeof(int64_t) : IN * sizeof(float));
    k->array[i] = array_of(k, bytes);
    char *data = k->array[i].data;
    for (unsigned r = 0; r < rows * (classes ? 1 : IN); r++) {
        int64_t class = once_in(40) ? (int64_t)below(9) - 3 : below(OUT);
        float x = once_in(200) ? NAN : (float)below(200) / 100 - 1;
        if (classes)
            memcpy(data + r * sizeof class, &class, sizeof class);
        else
            memcpy(data + r * sizeof x, &x, sizeof x);
    }
    const char *name = i == 0 ? "x" : host ? "gradient:y" : "target";
    k->in[i] = ampc_in(i < 2 ? name : any_word(), data, bytes,
                       classes ? AMPC_DTYPE_I64 : AMPC_DTYPE_F32);
}

static void make_output(Call *k) {
    k->valid = once_in(3) ? (int64_t)below(12) - 3 : B;
    size_t rows = k->valid > 0 ? (size_t)k->valid : 0;
    k->room = array_of(k, rows * OUT * sizeof(float));
    k->out = ampc_out(once_in(3) ? any_word() : "y", k->room.data,
                      k->room.bytes, AMPC_DTYPE_F32);
    switch (below(24)) {
    case 0: k->out.bytes = below((unsigned)k->room.bytes + 1); break;
    case 1: k->out.dtype = (int32_t)below(30) - 5; break;
    case 2: k->out.data = NULL; break;
    case 3: k->out.place = (int32_t)below(4) - 1; break;
    case 4: k->out.size = below(30); break;
    default: break;
    }
}

static void make_arguments(Call *k, bool host) {
    for (int i = 0; i < MOST; i++)
        make_input(k, i, host, once_in(3) ? below(9) : B);
    if (once_in(2)) spoil_input(k, (int)below(2));
    k->nin = once_in(10) ? below(MOST) : 2;
    make_output(k);
}

static void free_arguments(Call *k) {
    for (int i = 0; i < MOST; i++)
        guarded_free(&k->memory, k->array[i].data, k->array[i].bytes);
    guarded_free(&k->memory, k->room.data, k->room.bytes);
    CHECK_EQ_INT(k->memory.blocks, 0);
}

/* ---- calls --------------------------------------------------------------- */

static ampc_status change(Call *k) {
    const ampc_api *api = k->c->api;
    ampc_metrics m = {.size = once_in(15) ? sizeof m.size : sizeof m};
    double loss;
    switch (below(8)) {
    case 0:
    case 1:
        return api->step(k->s, once_in(30) ? NULL : k->in, k->nin,
                         once_in(4) ? NULL : &m);
    case 2:
        return api->micro_step(k->s, k->in, k->nin, once_in(3) ? NULL : &loss);
    case 3: return api->update(k->s, once_in(3) ? NULL : &m);
    case 4: return api->vjp(k->s, k->in, k->nin);
    case 5: return api->write_variable(k->s, any_word(), &k->in[0]);
    case 6: return api->set_hyper(k->s, any_word(), once_in(2) ? NAN : 0.01);
    default: return api->set_cursor(k->s, once_in(2) ? "{\"a\":[1," : "3");
    }
}

static ampc_status ask(Call *k) {
    const ampc_api *api = k->c->api;
    ampc_memory_info memory = {.size = sizeof memory};
    ampc_device_info device = {.size = sizeof device};
    ampc_nonfinite nonfinite = {.size = sizeof nonfinite};
    ampc_bad_data bad = {.size = sizeof bad};
    const char *name;
    void *at;
    double x;
    switch (below(9)) {
    case 0: return api->get_hyper(k->s, any_word(), once_in(9) ? NULL : &x);
    case 1: return api->memory(k->s, once_in(9) ? NULL : &memory);
    case 2: return api->device(k->s, once_in(9) ? NULL : &device);
    case 3: return api->nonfinite(k->s, &nonfinite);
    case 4: return api->bad_data(k->s, &bad);
    case 5: return api->objective(k->s, any_word());
    case 6: return api->stage(k->s, any_word(), below(9), &at);
    case 7:
        return api->peek(k->s, UINT64_MAX - below(99), k->room.data,
                         once_in(3) ? SIZE_MAX : k->room.bytes);
    default: return api->fit(k->s, any_word(), k->in, k->nin, &name);
    }
}

static ampc_status compute(Call *k) {
    const ampc_api *api = k->c->api;
    ampc_eval sums = {.size = once_in(15) ? sizeof sums.size : sizeof sums};
    switch (below(5)) {
    case 0: return api->evaluate(k->s, k->in, k->nin, k->valid, &sums);
    case 1: return api->outputs(k->s, k->in, 1, k->valid, &k->out, 1);
    case 2: return api->read_output(k->s, any_word(), &k->out);
    case 3: return api->read_variable(k->s, any_word(), &k->out);
    default:
        return api->predict(k->s, k->in, once_in(2) ? k->nin : 1, k->valid,
                            once_in(20) ? NULL : &k->out, below(3) > 0);
    }
}

/* ---- what must hold ------------------------------------------------------ */

/* Every variable that can be read, and the counters. */
typedef struct State {
    void *all;
    size_t bytes;
    ampc_scaler scaler;
} State;

static State state_of(const Call *k) {
    enum { ALL = (1 << AMPC_KIND_CONSTANT) - 1 };
    State s = {.scaler = {.size = sizeof s.scaler}};
    s.all = read_all(k->c, k->s, ALL, &s.bytes);
    CHECK_EQ_INT(k->c->api->scaler(k->s, &s.scaler), AMPC_OK);
    return s;
}

static bool stays(const Call *k, const State *before) {
    State now = state_of(k);
    bool same = now.bytes == before->bytes &&
                !memcmp(now.all, before->all, now.bytes) &&
                now.scaler.tried == before->scaler.tried &&
                now.scaler.micro == before->scaler.micro;
    free(now.all);
    return same;
}

static void call_once(Call *k, bool host, int session, int call) {
    make_arguments(k, host);
    State before = state_of(k);
    bool changes = once_in(2);
    ampc_status status = changes ? change(k) : once_in(2) ? ask(k) : compute(k);
    const char *why = k->c->api->error(k->s);
    CHECK_MSG((status != AMPC_OK) == (*why != 0), "%d:%d: status %d, '%s'",
              session, call, (int)status, why);
    CHECK_MSG(status != AMPC_ERR_INTERNAL, "%d:%d: %s", session, call, why);
    bool counted = status == AMPC_ERR_DATA || status == AMPC_ERR_DIVERGED;
    if (changes ? status != AMPC_OK && !counted : true)
        CHECK_MSG(stays(k, &before), "%d:%d: status %d, '%s' changed it",
                  session, call, (int)status, why);
    *(status == AMPC_OK ? &k->taken : &k->refused) += 1;
    free(before.all);
    free_arguments(k);
}

static void attack(const char *options, bool host) {
    Compiled c = compile_text(small_model, options);
    int taken = 0, refused = 0;
    for (int session = 0; session < SESSIONS; session++) {
        state = (uint64_t)session * 7919 + 1;
        Call k = {.c = &c, .s = open_threads(&c, 1 + session % 2)};
        for (int call = 0; call < CALLS; call++)
            call_once(&k, host, session, call);
        c.api->close(k.s);
        taken += k.taken;
        refused += k.refused;
    }
    CHECK(taken > SESSIONS * CALLS / 10 && refused > SESSIONS * CALLS / 10);
    compiled_close(&c);
}

TEST_CASE(calls, of_a_module) { attack("", false); }
TEST_CASE(calls, with_micro_batches) { attack("--accumulate 2", false); }
TEST_CASE(calls, of_several_batch_sizes) {
    attack("--batch-sizes 1,2 --ema 0.9", false);
}
TEST_CASE(calls, with_a_loss_scale) {
    attack("--precision fp16 --count-underflow", false);
}
TEST_CASE(calls, of_a_host_with_its_own_loss) { attack("--loss host", true); }
