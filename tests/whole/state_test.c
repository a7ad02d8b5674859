/* SPDX-License-Identifier: Apache-2.0 */
/* state_test.c: state that changes in training besides parameters, compared
   with PyTorch (models/record/state.py wrote tests/onnx/state): modes of
   BatchNorm, means over all batches, running statistics of InstanceNorm,
   dropouts that a file contains in parts; frozen weights, which keep all their
   bits; and a warning. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/support/onnx_util.h"
#include "tests/tolerance.h"

enum { STEPS = 4, NX = 4 * 2 * 5 * 5, NT = 4 * 2 * 3 * 3 };
#define FP32 "--loss auto --precision fp32 --target cpu:x86-64-v2 "

/* Like numbers() of models/record/state.py. */
typedef struct Batch {
    float x[NX], t[NT];
    ampc_input in[2];
} Batch;

static void fill(Batch *b) {
    for (int i = 0; i < NX; i++) b->x[i] = (float)((i * 37 + 5) % 64) / 32 - 1;
    for (int i = 0; i < NT; i++) b->t[i] = (float)((i * 29 + 3) % 64) / 32 - 1;
    b->in[0] = ampc_in("x", b->x, sizeof b->x, AMPC_DTYPE_F32);
    b->in[1] = ampc_in("t", b->t, sizeof b->t, AMPC_DTYPE_F32);
}

static const char *file_of(Arena *a, const char *name, const char *end) {
    return arena_printf(
        a, "%s",
        test_data_path(arena_printf(a, "tests/onnx/state/%s%s", name, end)));
}

static double evaluated(const Compiled *c, ampc_session *s, const Batch *b) {
    ampc_eval e = {.size = sizeof e};
    if (c->api->evaluate(s, b->in, 2, 4, &e) != AMPC_OK)
        FAIL("%s", c->api->error(s));
    return e.loss_num / e.loss_den;
}

/* ---- beside PyTorch ------------------------------------------------------ */

static void check_buffer(const Compiled *c, ampc_session *s,
                         const Expected *want) {
    int64_t n = type_count(type_get(want->t->type));
    float got[8];
    REQUIRE(n <= 8);
    read_var(c, s, want->name, got, (size_t)n * sizeof *got, AMPC_DTYPE_F32);
    for (int64_t i = 0; i < n; i++)
        CHECK_NEAR(got[i], want->t->f[i], TOL_STATE);
}

/* The steps' losses, the loss evaluated after them, and all buffers. */
static void trains_as(const char *model, const char *options) {
    Arena *a = arena_new();
    ExpectedList e = {{0}};
    Batch b;
    fill(&b);
    REQUIRE(expected_read(a, file_of(a, model, ".fp32"), &e));
    const EvalTensor *want = expected_find(&e, "output", "losses");
    Compiled c = compile_file(
        file_of(a, model, ".onnx"),
        arena_printf(a, FP32 "--optimizer sgd,lr=0.05 %s", options));
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < STEPS; i++)
        CHECK_NEAR(step_ok(&c, s, b.in, 2).loss, want->f[i], TOL_STATE);
    CHECK_NEAR(evaluated(&c, s, &b), want->f[STEPS], TOL_STATE);
    for (int i = 0; i < e.list.len; i++)
        if (!strcmp(e.list.data[i].kind, "buffer"))
            check_buffer(&c, s, &e.list.data[i]);
    c.api->close(s);
    compiled_close(&c);
    arena_free(a);
}

TEST_CASE(state, batch_norm_frozen_beside_training) { trains_as("mixed", ""); }

TEST_CASE(state, batch_norm_frozen_beside_training_in_torchscript) {
    trains_as("mixed.ts", "");
}

TEST_CASE(state, batch_norm_of_cumulative_momentum) {
    trains_as("cumulative", "");
}

TEST_CASE(state, instance_norm_moves_its_statistics) {
    trains_as("instance", "");
}

TEST_CASE(state, dropout_of_channels_off) {
    trains_as("dropout2d", "--dropout off");
}

TEST_CASE(state, alpha_dropout_off) { trains_as("alpha", "--dropout off"); }

/* Messages name the modes, and the option trains all. */
TEST_CASE(state, the_user_trains_all) {
    static const struct {
        const char *option;
        bool moves;
    } rows[] = {{"", false}, {"--batchnorm train", true}};
    for (int i = 0; i < 2; i++) {
        Arena *a = arena_new();
        Batch b;
        float mean[3];
        char *says;
        const char *model = file_of(a, "mixed", ".onnx");
        fill(&b);
        REQUIRE(!test_command(&says, "'%s' '%s' -o '%s' " FP32 "%s",
                              test_ampc(), model, test_tmp("said.so"),
                              rows[i].option));
        CHECK_MSG(rows[i].moves ==
                      !strstr(says, "1 BatchNormalization trains and 1 stays "
                                    "frozen, 'layer.weight', as the file has "
                                    "them; --batchnorm train trains all"),
                  "%s", says);
        free(says);
        Compiled c =
            compile_file(model, arena_printf(a, FP32 "%s", rows[i].option));
        ampc_session *s = open_threads(&c, 1);
        step_ok(&c, s, b.in, 2);
        read_var(&c, s, "layer.running_mean", mean, sizeof mean,
                 AMPC_DTYPE_F32);
        CHECK((mean[0] != 0.5f) == rows[i].moves);
        c.api->close(s);
        compiled_close(&c);
        arena_free(a);
    }
}

/* A file in which all are in evaluation mode trains them, and says so. */
TEST_CASE(state, a_file_of_evaluation_trains_and_says_so) {
    static const char note[] =
        "1 BatchNormalization trains ('layer.weight'), though in evaluation "
        "mode in the file; --batchnorm frozen keeps the statistics";
    static const struct {
        const char *option;
        bool says;
    } rows[] = {{"", true},
                {"--batchnorm train", false},
                {"--batchnorm frozen", false},
                {"--loss none", false}};
    Arena *a = arena_new();
    const char *model = file_of(a, "cumulative", ".onnx");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *says;
        test_command(&says, "'%s' '%s' -o '%s' " FP32 "%s", test_ampc(), model,
                     test_tmp("said.so"), rows[i].option);
        CHECK_MSG(rows[i].says == !!strstr(says, note), "%s: %s",
                  rows[i].option, says);
        free(says);
    }
    arena_free(a);
}

/* ---- dropouts draw in training alone ------------------------------------- */

static void draws_in_training_alone(const char *model) {
    Arena *a = arena_new();
    ExpectedList e = {{0}};
    Batch b;
    fill(&b);
    REQUIRE(expected_read(a, file_of(a, model, ".fp32"), &e));
    double without = expected_find(&e, "output", "losses")->f[0], last = 0;
    Compiled c =
        compile_file(file_of(a, model, ".onnx"), FP32 "--optimizer sgd,lr=0");
    ampc_session *s = open_threads(&c, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(evaluated(&c, s, &b), without, TOL_STATE);
        double loss = step_ok(&c, s, b.in, 2).loss;
        CHECK(loss != last && loss != without);
        last = loss;
    }
    c.api->close(s);
    compiled_close(&c);
    arena_free(a);
}

TEST_CASE(state, dropout_of_channels_draws_in_training_alone) {
    draws_in_training_alone("dropout2d");
}

TEST_CASE(state, alpha_dropout_draws_in_training_alone) {
    draws_in_training_alone("alpha");
}

/* ---- frozen weights ------------------------------------------------------ */

enum { NW = 3 * 2 * 3 * 3 };

static void weight_in_model(const char *path, float *out) {
    size_t n;
    char *bytes = test_read_file(path, &n);
    REQUIRE(bytes != NULL);
    Onnx__ModelProto *m =
        onnx__model_proto__unpack(NULL, n, (const uint8_t *)bytes);
    REQUIRE(m != NULL);
    bool found = false;
    for (size_t i = 0; i < m->graph->n_initializer; i++) {
        const Onnx__TensorProto *t = m->graph->initializer[i];
        if (strcmp(t->name, "conv.weight")) continue;
        REQUIRE(t->raw_data.len == NW * sizeof(float));
        memcpy(out, t->raw_data.data, t->raw_data.len);
        found = true;
    }
    CHECK(found);
    onnx__model_proto__free_unpacked(m, NULL);
    free(bytes);
}

/* The tensor's bytes in a safetensors file. */
static void check_file(const char *path, const float *want) {
    size_t n;
    uint64_t header, from, to;
    char *file = test_read_file(path, &n);
    REQUIRE(file && n > sizeof header);
    memcpy(&header, file, sizeof header);
    const char *at = strstr(file + sizeof header, "\"conv.weight\":{");
    REQUIRE(at != NULL);
    CHECK(strstr(at, "\"dtype\":\"F32\"") < strchr(at, '}'));
    const char *offsets = strstr(at, "\"data_offsets\":[");
    REQUIRE(offsets && sscanf(strchr(offsets, '['), "[%" SCNu64 ",%" SCNu64,
                              &from, &to) == 2);
    REQUIRE(to - from == NW * sizeof *want && sizeof header + header + to <= n);
    CHECK_MEM(file + sizeof header + header + from, want, NW * sizeof *want);
    free(file);
}

/* Products read the weight as bf16; files have the model's values. */
TEST_CASE(state, frozen_weights_leave_with_all_their_bits) {
    Arena *a = arena_new();
    Batch b;
    float want[NW], got[NW];
    char *out;
    fill(&b);
    weight_in_model(file_of(a, "dropout2d", ".onnx"), want);
    uint32_t low = 0, bits;
    for (int i = 0; i < NW; i++)
        memcpy(&bits, &want[i], sizeof bits), low |= bits & 0xffff;
    CHECK(low != 0); /* bits that bf16 does not have */
    Compiled c = compile_file(file_of(a, "dropout2d", ".onnx"),
                              "--loss auto --precision bf16 --target "
                              "cpu:x86-64-v2 --freeze 'conv.*'");
    ampc_session *s = open_threads(&c, 1);
    step_ok(&c, s, b.in, 2);
    CHECK(c.api->save(s, test_tmp("all")) == AMPC_OK);
    CHECK(c.api->save_weights(s, test_tmp("weights")) == AMPC_OK);
    check_file(test_tmp("all"), want);
    check_file(test_tmp("weights"), want);
    int rc =
        test_command(&out, "cd '%s' && '%s' export '%s' --load all -o x.onnx",
                     test_tmpdir(), test_ampc(), c.path);
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
    weight_in_model(test_tmp("x.onnx"), got);
    CHECK_MEM(got, want, sizeof want);
    c.api->close(s);
    compiled_close(&c);
    arena_free(a);
}

/* ---- probabilities before a loss of logits ------------------------------- */

TEST_CASE(state, probabilities_before_a_loss_of_logits) {
    static const struct {
        const char *output, *loss, *says; /* NULL: nothing */
    } rows[] = {{"softmax(z, axis=1)", "cross_entropy",
                 "the output is a Softmax's result, probabilities, and "
                 "softmax_cross_entropy takes the softmax of it again"},
                {"reshape(softmax(z, axis=1), shape=[4, 3])", "cross_entropy",
                 "a Softmax's result"},
                {"sigmoid(z)", "bce_with_logits",
                 "the output is a Sigmoid's result, probabilities, and "
                 "bce_with_logits_loss takes the sigmoid of it again"},
                {"sigmoid(z)", "cross_entropy", "a Sigmoid's result"},
                {"softmax(z, axis=1)", "cross_entropy",
                 "--loss nll is the loss of probabilities"},
                {"softmax(z, axis=1)", "nll", "its log is taken"},
                {"sigmoid(z)", "bce", NULL},
                {"softmax(z, axis=1)", "mse", NULL},
                {"sigmoid(z)", "mse", NULL},
                {"z", "cross_entropy", NULL},
                {"log_softmax(z, axis=1)", "cross_entropy", NULL},
                {"sigmoid(z) * 4", "bce_with_logits", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[400], *out;
        const char *path = test_tmp("m.amp");
        snprintf(text, sizeof text,
                 "model m(x: f32[4,5]) {\n  z = Linear(x, units=3)\n"
                 "  return y = %s\n}\n",
                 rows[i].output);
        REQUIRE(test_write_file(path, text, strlen(text)));
        int rc = test_command(
            &out, "'%s' '%s' -o '%s' --loss %s --target cpu:x86-64-v2",
            test_ampc(), path, test_tmp("m.so"), rows[i].loss);
        CHECK_MSG(rc == 0, "%s", out);
        if (rows[i].says)
            CHECK_HAS(out, rows[i].says);
        else
            CHECK_MSG(!strstr(out, "probabilities"), "%s: %s", rows[i].output,
                      out);
        free(out);
    }
}

/* A loss of probabilities equals the loss of the logits from which they were
   computed. */
TEST_CASE(state, losses_of_probabilities) {
    static const struct {
        const char *output, *loss, *of_logits;
    } rows[] = {{"sigmoid(z)", "bce", "bce_with_logits"},
                {"reshape(sigmoid(z), shape=[4, 3])", "bce", "bce_with_logits"},
                {"softmax(z, axis=1)", "nll", "cross_entropy"}};
    static const float x[20] = {90, -80, 70, 60, -50, 1, 2, -3};
    static const float share[12] = {1, 0, 1, 0, 0.5f, 0.25f, 0, 1};
    static const int64_t label[4] = {2, 0, 1, 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ampc_metrics m[2];
        bool classes = !strcmp(rows[i].loss, "nll");
        ampc_input in[] = {
            ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
            classes ? ampc_in("target", label, sizeof label, AMPC_DTYPE_I64)
                    : ampc_in("target", share, sizeof share, AMPC_DTYPE_F32)};
        for (int k = 0; k < 2; k++) {
            char text[300], options[200];
            const char *path = test_tmp("p.amp");
            snprintf(text, sizeof text,
                     "model m(x: f32[4,5]) {\n  z = Linear(x, units=3)\n"
                     "  return y = %s\n}\n",
                     k ? "z" : rows[i].output);
            snprintf(options, sizeof options,
                     "--loss %s --precision fp32 --target cpu:x86-64-v2 "
                     "--optimizer sgd,lr=0.5",
                     k ? rows[i].of_logits : rows[i].loss);
            REQUIRE(test_write_file(path, text, strlen(text)));
            Compiled c = compile_file(path, options);
            ampc_session *s = open_threads(&c, 1);
            for (int step = 0; step < 3; step++) m[k] = step_ok(&c, s, in, 2);
            c.api->close(s);
            compiled_close(&c);
        }
        CHECK_MSG(m[0].loss == m[1].loss, "%s: %.9g, %.9g", rows[i].output,
                  (double)m[0].loss, (double)m[1].loss);
    }
}
