/* SPDX-License-Identifier: Apache-2.0 */
/* models_test.c: the models of models/, with small dimensions: all of them
   learn one batch; MLP, CNN and GPT train as PyTorch does
   (models/record/amp_traces.py).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/trace_feed.h"
#include "tests/tolerance.h"

typedef struct Case {
    const char *file, *options;
    int integers; /* integer inputs are below it */
    int steps;
    double falls; /* the last loss is at most this fraction of the first */
} Case;

#define FAST                                                                   \
    " --precision fp32 --target cpu:x86-64-v2 --lr-schedule constant "         \
    "--dropout off --optimizer adamw,lr=0.01 "

static const Case cases[] = {
    {"mlp.amp", FAST "--dim B=4 --dim H=16", 10, 12, 0.5},
    {"cnn.amp", FAST "--dim B=4 --dim W=2", 10, 12, 0.5},
    {"resnet18.amp", FAST "--dim B=4 --dim W=4", 10, 8, 0.5},
    {"resnet50.amp", FAST "--dim B=2 --dim SIZE=32 --dim W=2", 10, 8, 0.7},
    {"gpt.amp",
     FAST "--dim B=2 --dim T=8 --dim VOCAB=20 --dim D=16 --dim HEADS=2 "
          "--dim L=2",
     20, 15, 0.5},
    {"llama.amp",
     FAST "--dim B=2 --dim T=8 --dim VOCAB=20 --dim D=16 --dim HEADS=4 "
          "--dim KV=2 --dim FF=24 --dim L=2",
     20, 15, 0.5},
    {"vit.amp",
     FAST "--dim B=4 --dim SIZE=8 --dim D=12 --dim L=2 --dim HEADS=3", 10, 15,
     0.7},
    {"bert.amp",
     FAST "--dim B=2 --dim T=8 --dim VOCAB=20 --dim D=16 --dim HEADS=2 "
          "--dim L=2",
     20, 15, 0.5},
    {"unet.amp", FAST "--dim B=2 --dim SIZE=8 --dim W=8 --dim DEPTH=1", 2, 15,
     0.8},
    {"finetune.amp", "--target cpu:x86-64-v2 --dim batch=4 --precision fp32",
     10, 12, 0.5}};

static double draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53;
}

enum { MAX_IN = 4 };

typedef struct Batch {
    ampc_input in[MAX_IN];
    size_t n;
} Batch;

/* Normal numbers with variance 1; integers below a bound, which is 1 or 2
   for masks and for types of tokens. */
static Batch make_batch(const Compiled *c, const char *program, int integers) {
    Batch b = {.n = 0};
    uint64_t seed = 1;
    ampc_program_info info = {.size = sizeof info};
    REQUIRE(!c->api->program(c->api->module, program, &info));
    REQUIRE(info.ninput <= MAX_IN);
    for (uint32_t i = 0; i < info.ninput; i++) {
        ampc_tensor_info t = {.size = sizeof t};
        REQUIRE(!c->api->input(c->api->module, program, i, &t));
        int most = !strcmp(t.name, "mask")    ? 1
                   : !strcmp(t.name, "kinds") ? 2
                                              : integers;
        char *data = malloc(t.bytes);
        bool real = t.dtype == AMPC_DTYPE_F32;
        for (size_t k = 0; k < t.bytes / (real ? 4 : 8); k++) {
            double u = draw(&seed);
            int64_t whole = most == 1 ? 1 : (int64_t)(u * most);
            float x = (float)((2 * u - 1) * sqrt(3));
            memcpy(data + k * (real ? 4 : 8), real ? (void *)&x : &whole,
                   real ? 4 : 8);
        }
        b.in[b.n++] = ampc_in(t.name, data, t.bytes, t.dtype);
    }
    return b;
}

static void free_batch(Batch *b) {
    for (size_t i = 0; i < b->n; i++) free((void *)b->in[i].data);
}

static Compiled compile_model(const char *file, const char *options) {
    char path[200];
    snprintf(path, sizeof path, "models/%s", file);
    return compile_file_optimised(test_data_path(path), options);
}

static void learns_one_batch(void *arg) {
    const Case *k = arg;
    Compiled c = compile_model(k->file, k->options);
    ampc_session *s = open_threads(&c, 1);
    Batch b = make_batch(&c, "train", k->integers);
    double first = 0, last = 0;
    for (int i = 0; i < k->steps; i++) {
        last = step_ok(&c, s, b.in, b.n).loss;
        if (i == 0) first = last;
    }
    CHECK_MSG(isfinite(first) && last <= k->falls * first, "%s: %g to %g",
              k->file, first, last);
    c.api->close(s);
    free_batch(&b);
    compiled_close(&c);
}

static void register_cases(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        harness_register("models", cases[i].file, learns_one_batch,
                         (void *)&cases[i]);
}
TEST_REGISTRAR(register_cases);

/* Each objective lowers its own loss and leaves the other's parameters
   unchanged. */
TEST_CASE(models, wgan_gp) {
    static const char *const names[] = {"d", "g"};
    static const char *const others[] = {"G.fc1.weight", "D.fc1.weight"};
    Compiled c = compile_model("wgan_gp.amp",
                               "--precision fp32 --target cpu:x86-64-v2 "
                               "--dim B=4 --dim Z=8 --dim X=8 --dim H=16");
    for (int o = 0; o < 2; o++) {
        ampc_session *s = open_threads(&c, 1);
        double first = 0, last = 0;
        float before[16 * 8], after[16 * 8];
        Batch b = make_batch(&c, o ? "train:g" : "train:d", 0);
        REQUIRE(!c.api->objective(s, names[o]));
        REQUIRE(!c.api->set_hyper(s, o ? "lr:g" : "lr:d", 0.01));
        read_var(&c, s, others[o], before, sizeof before, AMPC_DTYPE_F32);
        for (int i = 0; i < 20; i++) {
            last = step_ok(&c, s, b.in, b.n).loss;
            if (i == 0) first = last;
        }
        CHECK_MSG(last < first - 0.1, "%s: %g to %g", names[o], first, last);
        read_var(&c, s, others[o], after, sizeof after, AMPC_DTYPE_F32);
        CHECK_MEM(before, after, sizeof before);
        c.api->close(s);
        free_batch(&b);
    }
    compiled_close(&c);
}

/* ---- beside PyTorch ------------------------------------------------------ */

static void set_first(const Compiled *c, ampc_session *s, const Trace *t) {
    for (int i = 0; i < t->n; i++) {
        const TraceTensor *p = &t->t[i];
        if (strncmp(p->name, "init/", 5)) continue;
        void *copy = malloc(p->bytes);
        memcpy(copy, p->data, p->bytes);
        write_var(c, s, p->name + 5, copy, p->bytes, AMPC_DTYPE_F32);
        free(copy);
    }
}

static void as_pytorch(const char *name, const char *input,
                       const char *options) {
    char file[100], path[200];
    snprintf(file, sizeof file, "%s.amp", name);
    snprintf(path, sizeof path, "tests/models/%s.safetensors", name);
    Trace t = trace_read(test_data_path(path));
    Compiled c = compile_model(file, options);
    ampc_session *s = open_threads(&c, 2);
    const TraceTensor *loss = trace_find(&t, "loss");
    const TraceTensor *norm = trace_find(&t, "grad_norm");
    set_first(&c, s, &t);
    for (long i = 0; i < loss->dim[0]; i++) {
        TraceFeed f = trace_feed(&t, i);
        f.in[0].name = input;
        ampc_metrics m = step_ok(&c, s, f.in, 2);
        CHECK_REL(m.loss, trace_f64(loss, i), TOL_TRACE_LOSS);
        CHECK_REL(m.grad_norm, trace_f64(norm, i), TOL_TRACE_NORM);
        trace_feed_free(&f);
    }
    c.api->close(s);
    compiled_close(&c);
    trace_free(&t);
}

#define PLAIN                                                                  \
    "--precision fp32 --target cpu:x86-64-v2 --lr-schedule constant "          \
    "--dropout off "

TEST_CASE(models, mlp_trains_as_pytorch) {
    as_pytorch("mlp", "x",
               PLAIN "--dim B=2 --dim H=8 --optimizer adamw,lr=0.01");
}

TEST_CASE(models, cnn_trains_as_pytorch) {
    as_pytorch("cnn", "x", PLAIN "--dim B=2 --dim W=2");
}

TEST_CASE(models, gpt_trains_as_pytorch) {
    as_pytorch("gpt", "tokens",
               PLAIN "--dim B=2 --dim T=8 --dim VOCAB=20 --dim D=16 "
                     "--dim HEADS=2 --dim L=2");
}

/* Inputs of the objective's program at step i, by name. */
static Batch gan_batch(const Compiled *c, const Trace *t, const char *program,
                       long i) {
    Batch b = {.n = 0};
    ampc_program_info info = {.size = sizeof info};
    REQUIRE(!c->api->program(c->api->module, program, &info));
    REQUIRE(info.ninput <= MAX_IN);
    for (uint32_t k = 0; k < info.ninput; k++) {
        ampc_tensor_info in = {.size = sizeof in};
        REQUIRE(!c->api->input(c->api->module, program, k, &in));
        const TraceTensor *x = trace_find(t, in.name);
        size_t bytes = trace_slice_bytes(x);
        void *copy = malloc(bytes);
        memcpy(copy, trace_slice(x, i), bytes);
        b.in[b.n++] = ampc_in(in.name, copy, bytes, in.dtype);
    }
    return b;
}

/* Critic and generator in turn, like PyTorch with create_graph. */
static void gan_as_pytorch(Compiled c, bool set) {
    static const char *const names[] = {"d", "g"};
    Trace t = trace_read(test_data_path("tests/models/wgan_gp.safetensors"));
    ampc_session *s = open_threads(&c, 1);
    if (set) set_first(&c, s, &t);
    for (long i = 0; i < trace_find(&t, "loss/d")->dim[0]; i++)
        for (int o = 0; o < 2; o++) {
            char name[20];
            snprintf(name, sizeof name, "lr:%s", names[o]);
            REQUIRE(!c.api->set_hyper(s, name, 0.01));
            REQUIRE(!c.api->objective(s, names[o]));
            snprintf(name, sizeof name, "train:%s", names[o]);
            Batch b = gan_batch(&c, &t, name, i);
            ampc_metrics m = step_ok(&c, s, b.in, b.n);
            snprintf(name, sizeof name, "loss/%s", names[o]);
            CHECK_REL(m.loss, trace_f64(trace_find(&t, name), i),
                      TOL_TRACE_LOSS);
            snprintf(name, sizeof name, "grad_norm/%s", names[o]);
            CHECK_REL(m.grad_norm, trace_f64(trace_find(&t, name), i),
                      TOL_TRACE_NORM);
            free_batch(&b);
        }
    c.api->close(s);
    compiled_close(&c);
    trace_free(&t);
}

#define GAN "--precision fp32 --target cpu:x86-64-v2 --dim B=4 "

TEST_CASE(models, wgan_gp_trains_as_pytorch) {
    gan_as_pytorch(
        compile_model("wgan_gp.amp", GAN "--dim Z=16 --dim X=64 --dim H=32"),
        true);
}

TEST_CASE(models, wgan_gp_of_onnx_files_trains_as_pytorch) {
    gan_as_pytorch(compile_model("wgan_gp_onnx.amp", GAN), false);
}

/* The recipe, applied to the files of the other exporter. */
TEST_CASE(models, wgan_gp_of_torchscript_files_trains_as_pytorch) {
    static const char *const files[] = {"generator.onnx", "critic.onnx"};
    size_t n;
    char *text = test_read_file(test_data_path("models/wgan_gp_onnx.amp"), &n);
    for (int i = 0; i < 2; i++) {
        char path[100];
        snprintf(path, sizeof path, "tests/models/torchscript/%s", files[i]);
        const char *full = test_data_path(path);
        char *longer = malloc(n + strlen(full) + 1);
        char *at = text ? strstr(text, files[i]) : NULL;
        REQUIRE(at && longer);
        n = (size_t)sprintf(longer, "%.*s%s%s", (int)(at - text), text, full,
                            at + strlen(files[i]));
        free(text);
        text = longer;
    }
    gan_as_pytorch(compile_text_optimised(text, GAN), false);
    free(text);
}

/* ---- computed again ------------------------------------------------------ */

/* The text of a model, with its loop's line `call` inside a region. */
static char *with_region(const char *file, const char *call) {
    char path[200];
    size_t n;
    snprintf(path, sizeof path, "models/%s", file);
    char *text = test_read_file(test_data_path(path), &n);
    REQUIRE(text && (text = realloc(text, n + 32)));
    char *at = strstr(text, call), *end = at ? strchr(at, '\n') : NULL;
    REQUIRE(at && end);
    memmove(end + 15, end, strlen(end) + 1);
    memmove(at + 13, at, (size_t)(end - at));
    memcpy(at, "checkpoint { ", 13);
    memcpy(end + 13, " }", 2);
    return text;
}

/* All variables after three steps; the arena's bytes. */
static void *trained(const char *text, const char *options, int integers,
                     size_t *bytes, uint64_t *arena) {
    ampc_module_info info = {.size = sizeof info};
    Compiled c = compile_text_optimised(text, options);
    ampc_session *s = open_threads(&c, 2);
    Batch b = make_batch(&c, "train", integers);
    for (int i = 0; i < 3; i++) step_ok(&c, s, b.in, b.n);
    void *state = read_all(&c, s, ~0u, bytes);
    REQUIRE(!c.api->describe(c.api->module, &info));
    *arena = info.arena;
    c.api->close(s);
    free_batch(&b);
    compiled_close(&c);
    return state;
}

/* Includes dropout: everything kept; regions; a budget in bytes. */
static void same_bits(const char *file, const char *call, int integers,
                      const char *options, const char *budget) {
    const char *remat[] = {"none", "auto", budget};
    char *region = with_region(file, call), path[200], with[400];
    size_t bytes[3];
    uint64_t arena[3];
    void *state[3];
    snprintf(path, sizeof path, "models/%s", file);
    char *plain = test_read_file(test_data_path(path), bytes);
    for (int i = 0; i < 3; i++) {
        snprintf(with, sizeof with,
                 "--precision fp32 --target cpu:x86-64-v2 "
                 "--lr-schedule constant --remat %s %s",
                 remat[i], options);
        state[i] = trained(i == 1 ? region : plain, with, integers, &bytes[i],
                           &arena[i]);
        CHECK(bytes[i] == bytes[0]);
        CHECK_MEM(state[i], state[0], bytes[0]);
        CHECK_MSG(!i || arena[i] < arena[0], "%s, %s: %llu bytes, kept %llu",
                  file, remat[i], (unsigned long long)arena[i],
                  (unsigned long long)arena[0]);
    }
    for (int i = 0; i < 3; i++) free(state[i]);
    free(region);
    free(plain);
}

TEST_CASE(models, checkpoints_of_gpt_have_the_same_bits) {
    same_bits("gpt.amp", "x = block(", 20,
              "--dim B=2 --dim T=16 --dim VOCAB=20 --dim D=32 --dim HEADS=2 "
              "--dim L=4 --dim DROP=20",
              "100000");
}

TEST_CASE(models, checkpoints_of_resnet18_have_the_same_bits) {
    same_bits("resnet18.amp", "x = basic_block(", 10, "--dim B=4 --dim W=4",
              "600000");
}
