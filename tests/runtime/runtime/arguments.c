/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.c: arguments that the host may pass, and messages for those it
   may not. */
#define _GNU_SOURCE
#include "tests/support/tiny_session.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

TEST_CASE(runtime, wrong_inputs_have_messages) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    int64_t shape[] = {4, 2};
    float before[6], after[6];
    Batch b;
    read_w(s, before);
    batch(&b, 0);
    CHECK_EQ_INT(a->step(s, b.in, 1, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "1 inputs given, 2 needed");
    CHECK_HAS(a->error(s), "x, target");
    b.in[0].bytes--;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "'x': 47 bytes given, 48 needed (f32[4,3])");
    b.in[0].bytes += 2;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "'x': 49 bytes given, 48 needed (f32[4,3])");
    batch(&b, 0);
    b.in[0].dtype = AMPC_DTYPE_F64;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "dtype f64 given, f32[4,3] needed");
    batch(&b, 0);
    b.in[0].rank = 2;
    b.in[0].shape = shape;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "'x': shape f32[4,2] given, f32[4,3] needed");
    CHECK(!strstr(a->error(s), "would fit"));
    b.in[0].shape = (const int64_t[]){3, 4};
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "shape f32[3,4] given, f32[4,3] needed; its axes in "
                           "the order (1, 0) would fit");
    b.in[0].shape = (const int64_t[]){3, 7}; /* seven samples */
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "in the order (1, 0) would fit");
    b.in[0].rank = 9;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "shape unknown given");
    batch(&b, 0);
    b.in[1].name = "x";
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "twice given: input 'x'");
    b.in[1].name = "labels";
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    batch(&b, 0);
    b.in[0].data = (const char *)b.x + 1;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "not aligned");
    b.in[0].data = NULL;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->vjp(s, b.in, 2), AMPC_ERR_UNSUPPORTED);
    CHECK_EQ_INT(a->step(NULL, b.in, 2, NULL), AMPC_ERR_ARGUMENT);
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    b.in[0].name = b.in[1].name = NULL; /* by position */
    b.in[0].data = b.x;
    CHECK_EQ_INT(a->step(s, b.in, 2, NULL), AMPC_OK);
    a->close(s);
}

/* Variables of every type begin with their number, also beyond the part that
   is written at once. */
TEST_CASE(runtime, variables_of_every_type_begin_as_given) {
    enum { COUNT = 33001 };
    static const struct {
        uint32_t dtype;
        double fill;
        uint64_t bits;
    } rows[] = {{AMPC_BOOL, 7, 1},
                {AMPC_U8, 200, 200},
                {AMPC_I8, -56, 200},
                {AMPC_U16, 40000, 40000},
                {AMPC_I16, -2, 0xfffe},
                {AMPC_U32, 3e9, 3000000000},
                {AMPC_I32, -2, 0xfffffffe},
                {AMPC_U64, 9007199254740992.0, 9007199254740992},
                {AMPC_I64, -2, UINT64_MAX - 1},
                {AMPC_F16, -2, 0xc000},
                {AMPC_BF16, -2, 0xc000},
                {AMPC_F32, -2, 0xc0000000},
                {AMPC_F64, -2, UINT64_C(0xc000000000000000)},
                {AMPC_F32, 0, 0}};
    PlanVar vars[32];
    AmpcModule m = tiny_module;
    memcpy(vars, m.vars, m.nvar * sizeof *vars);
    m.vars = vars;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t size = dtype_bytes(rows[i].dtype);
        vars[tiny_module.nvar] = (PlanVar){.name = "v",
                                           .kind = PLAN_BUFFER,
                                           .dtype = rows[i].dtype,
                                           .stored_dtype = rows[i].dtype,
                                           .rank = 1,
                                           .dim = {COUNT},
                                           .bytes = COUNT * size,
                                           .init = -1,
                                           .fill = rows[i].fill};
        m.nvar = tiny_module.nvar + 1;
        ampc_session *s = open_module(&m, 1);
        const char *p = cpu_var(s, tiny_module.nvar);
        int wrong = 0;
        for (int k = 0; k < COUNT; k++)
            wrong += memcmp(p + (size_t)k * size, &rows[i].bits, size) != 0;
        CHECK_MSG(!wrong, "%s: %d are wrong", dtype_name(rows[i].dtype), wrong);
        tiny_api()->close(s);
    }
}

/* Invalid arguments: each call reports them and changes nothing. A refused
   call leaves its message in the session; a successful one leaves none. */
TEST_CASE(runtime, wrong_arguments_have_messages) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_session *fresh = open_module(&tiny_module, 1);
    ampc_session *micro = open_module(&tiny_accumulating, 1);
    float w[6] = {0}, before[6], after[6], one[1] = {2}, y[8];
    int64_t shape[] = {3, 2}, other[] = {2, 3};
    double x;
    void *data;
    Batch b;
    ampc_metrics m = {.size = 0};
    ampc_eval e = {.size = 0}, sums = {.size = sizeof sums};
    ampc_input in = ampc_in(NULL, w, sizeof w, AMPC_DTYPE_F32);
    ampc_output out = ampc_out("w", w, sizeof w, AMPC_DTYPE_F32);
    ampc_weights from = {.size = sizeof from - 1};
    ampc_input more = in, less = in, wide = in, flat = in, deep = in;
    ampc_input turned = in, short_in = in, nothing = in, number = in;
    ampc_output unsized = out, small = out, none = out, odd = out;
    ampc_output two[2] = {ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32),
                          ampc_out(NULL, y, sizeof y, AMPC_DTYPE_F32)};
    more.bytes++, less.bytes--, wide.dtype = AMPC_DTYPE_F64;
    flat.rank = 1, flat.shape = shape, deep.rank = 2, deep.shape = NULL;
    turned.rank = 2, turned.shape = other,
    short_in.size = offsetof(ampc_input, place) - 1, nothing.data = NULL;
    number.data = one, number.bytes = sizeof one;
    unsized.size = 0, small.bytes--, none.data = NULL, odd.dtype = 0;
    batch(&b, 0);
    read_w(s, before);
#define REFUSED(call, status, text)                                            \
    do {                                                                       \
        CHECK_EQ_INT(a->call, status);                                         \
        CHECK_HAS(a->error(s), text);                                          \
    } while (0)
#define WRONG(call, text) REFUSED(call, AMPC_ERR_ARGUMENT, text)
#define CANNOT(call, text)                                                     \
    REFUSED(call, AMPC_ERR_UNSUPPORTED, "this module cannot " text "; its")
    WRONG(step(s, b.in, 2, &m), "ampc_metrics.size is not set");
    WRONG(sync(s, &m), "ampc_metrics.size is not set");
    WRONG(evaluate(s, b.in, 2, 4, &e), "ampc_eval.size is not set");
    WRONG(evaluate(s, b.in, 2, 5, &sums), "5 valid samples in a batch of 4");
    WRONG(evaluate(s, b.in, 2, -1, &sums), "-1 valid samples in a batch of 4");
    WRONG(scaler(s, &(ampc_scaler){.size = 0}), "ampc_scaler.size is not set");
    WRONG(bad_data(s, &(ampc_bad_data){.size = 0}), "ampc_bad_data.size is");
    WRONG(nonfinite(s, &(ampc_nonfinite){.size = 0}), "ampc_nonfinite.size is");
    WRONG(device(s, &(ampc_device_info){.size = 0}), "ampc_device_info.size");
    WRONG(memory(s, &(ampc_memory_info){.size = 0}), "ampc_memory_info.size");
    WRONG(load_weights(s, NULL), "ampc_weights.size is not set");
    WRONG(load_weights(s, &from), "ampc_weights.size is not set");
    WRONG(predict(s, b.in, 1, 4, NULL, 1), "ampc_output.size is not set");
    WRONG(predict(s, b.in, 1, 4, &unsized, 1), "ampc_output.size is not set");
    WRONG(predict(s, b.in, 1, 4, two, 2), "no output '(by position)'");
    WRONG(predict(s, b.in, 1, 4, &out, 1), "no output 'w'");
    WRONG(predict(s, b.in, 1, 5, two, 1), "5 valid samples in a batch of 4");
    WRONG(read_output(s, "y/out", two),
          "no output 'y/out' of the program that");
    WRONG(read_variable(s, "z", &out), "no variable 'z'");
    WRONG(read_variable(s, NULL, &out), "no variable ''");
    WRONG(read_variable(s, "w", &unsized), "ampc_output.size is not set");
    WRONG(read_variable(s, "w", &small), "needs 24 bytes; 23 given");
    WRONG(read_variable(s, "w", &none), "needs 24 bytes; 0 given");
    WRONG(read_variable(s, "w", &odd), "'w' is f32; bool was asked for");
    WRONG(write_variable(s, "z", &in), "no variable 'z'");
    WRONG(write_variable(s, NULL, &in), "no variable ''");
    WRONG(write_variable(s, "ampc.lr", &number), "'ampc.lr': set_hyper sets");
    WRONG(write_variable(s, "w.bf16", &in), "'w.bf16' is read-only");
    WRONG(write_variable(s, "w", &short_in), "ampc_input.size is not set");
    WRONG(write_variable(s, "w", &more),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &less),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &wide),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &flat),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(write_variable(s, "w", &deep),
          "is f32[3,2], 24 bytes: the data given differ");
    WRONG(
        write_variable(s, "w", &turned),
        "the data given differ: f32[2,3], 24 bytes; its axes in the order (1, "
        "0) would fit");
    WRONG(write_variable(s, "w", &nothing),
          "is f32[3,2], 24 bytes: the data given differ");
    one[0] = -1;
    WRONG(write_variable(s, "ampc.scale", &number),
          "'ampc.scale' cannot be -1");
    WRONG(set_hyper(s, "z", 1),
          "unknown hyper-parameter 'z'; the module has: lr");
    WRONG(set_hyper(s, NULL, 1),
          "unknown hyper-parameter ''; the module has: lr");
    WRONG(set_hyper(s, "lr", INFINITY), "'lr' (f32) cannot be inf");
    WRONG(set_hyper(s, "lr", -1),
          "'lr' (f32) cannot be -1; it is a number from 0 to 1e+38");
    WRONG(set_hyper(s, "seed", 2.5), "'seed' (i64) cannot be 2.5");
    WRONG(get_hyper(s, "z", &x), "unknown hyper-parameter 'z'");
    WRONG(get_hyper(s, "lr", NULL), "unknown hyper-parameter 'lr'");
    WRONG(set_cursor(s, NULL), "the cursor is not JSON");
    WRONG(set_cursor(s, "{"), "the cursor is not JSON");
    WRONG(save(s, ""), "no path given");
    WRONG(load(s, NULL), "no path given");
    WRONG(resume(s, ""), "no path given");
    for (int i = 0; i < 2; i++) {
        const char *const path = i ? "" : NULL;
        WRONG(load_weights(s, &((ampc_weights){.size = sizeof(ampc_weights),
                                               .paths = &path,
                                               .npath = 1})),
              "no path given");
    }
    WRONG(save_weights(s, NULL), "no path given");
    WRONG(stage(s, "train", 0, NULL), "data is NULL");
    WRONG(stage(s, "train", 2, &data), "program 'train' has no input 2");
    REFUSED(stage(s, "micro", 0, &data), AMPC_ERR_UNSUPPORTED,
            "this module has no program 'micro'");
    WRONG(objective(s, "z"), "no objective 'z'");
    WRONG(objective(s, NULL), "no objective ''");
    CANNOT(micro_step(s, b.in, 2, NULL), "make micro-steps");
    CANNOT(update(s, NULL), "accumulate");
    CANNOT(vjp(s, b.in, 2), "take gradients from the host");
    CANNOT(outputs(s, b.in, 1, 4, two, 1),
           "give outputs to a loss of the host's");
    CHECK_EQ_INT(a->stage(s, "train", 1, &data), AMPC_OK);
    CHECK(data == NULL);
    CHECK_STR(a->error(s), "");
    deep.shape = shape;
    read_w(s, after);
    CHECK_MEM(before, after, sizeof before);
    CHECK(train(s, 0, 3).loss == train(fresh, 0, 3).loss);
    CHECK_EQ_INT(a->write_variable(s, "w", &deep), AMPC_OK);
    a->close(s);
    s = micro;
    WRONG(update(s, NULL), "update needs 2 micro-steps; 0 were made");
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    WRONG(update(s, NULL), "update needs 2 micro-steps; 1 were made");
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    WRONG(micro_step(s, b.in, 2, NULL),
          "2 micro-steps were made: update is due");
    CHECK_EQ_INT(a->update(s, NULL), AMPC_OK);
    CHECK_EQ_INT(a->micro_step(s, b.in, 2, NULL), AMPC_OK);
    a->close(s);
    a->close(fresh);
}

TEST_CASE(runtime, hyper_parameters) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    double lr;
    CHECK_EQ_INT(a->set_hyper(s, "lr", 0.5), AMPC_OK);
    CHECK_EQ_INT(a->get_hyper(s, "ampc.lr", &lr), AMPC_OK);
    CHECK(lr == 0.5 && train(s, 0, 1).lr == 0.5);
    CHECK_EQ_INT(a->set_hyper(s, "lr", NAN), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->set_hyper(s, "seed", 0.5), AMPC_ERR_ARGUMENT);
    CHECK_EQ_INT(a->set_hyper(s, "seed", 5), AMPC_OK);
    CHECK_EQ_INT(a->set_hyper(s, "w", 1), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "the module has: lr seed");
    a->close(s);
}

static void read_copy(ampc_session *s, uint16_t w16[6]) {
    ampc_output out = ampc_out(NULL, w16, 12, AMPC_DTYPE_BF16);
    CHECK_EQ_INT(tiny_api()->read_variable(s, "w.bf16", &out), AMPC_OK);
}

TEST_CASE(runtime, writes_refresh_the_16_bit_copies) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_module, 1);
    float w[6] = {1, 2, 3, 4, 5, 6}, y[8];
    uint16_t w16[6];
    Batch b;
    ampc_output out = ampc_out("y/out", y, sizeof y, AMPC_DTYPE_F32);
    ampc_input in = ampc_in(NULL, w, sizeof w, AMPC_DTYPE_F32);
    CHECK_EQ_INT(a->predict(s, batch(&b, 0), 1, 4, &out, 1), AMPC_OK);
    read_copy(s, w16);
    CHECK_EQ_INT(w16[0], 0x3e80); /* 0.25 */
    CHECK_EQ_INT(a->write_variable(s, "w", &in), AMPC_OK);
    CHECK_EQ_INT(a->predict(s, b.in, 1, 4, &out, 1), AMPC_OK);
    read_copy(s, w16);
    CHECK_EQ_INT(w16[0], 0x3f80);
    CHECK_EQ_INT(w16[5], 0x40c0);
    in.bytes = 20;
    CHECK_EQ_INT(a->write_variable(s, "w", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "f32[3,2], 24 bytes");
    CHECK_EQ_INT(a->write_variable(s, "w.bf16", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "read-only");
    CHECK_EQ_INT(a->write_variable(s, "ampc.lr", &in), AMPC_ERR_ARGUMENT);
    CHECK_HAS(a->error(s), "set_hyper");
    CHECK_EQ_INT(a->write_variable(s, "nope", &in), AMPC_ERR_ARGUMENT);
    a->close(s);
}

TEST_CASE(runtime, gradients_can_be_read) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    float g[6];
    ampc_output out = ampc_out(NULL, g, sizeof g, AMPC_DTYPE_F32);
    Batch b;
    CHECK_EQ_INT(a->read_variable(s, "ampc.grad/w", &out), AMPC_OK);
    CHECK(g[0] == 0 && g[5] == 0);
    CHECK_EQ_INT(a->micro_step(s, batch(&b, 0), 2, NULL), AMPC_OK);
    CHECK_EQ_INT(a->read_variable(s, "ampc.grad/w", &out), AMPC_OK);
    CHECK(g[0] != 0);
    a->close(s);
}

/* With a learning rate of 0 all rounds of micro-steps are equal. */
TEST_CASE(runtime, gradients_start_from_zero) {
    const ampc_api *a = tiny_api();
    ampc_session *s = open_module(&tiny_accumulating, 1);
    ampc_metrics m[2] = {{.size = sizeof *m}, {.size = sizeof *m}};
    Batch b;
    CHECK_EQ_INT(a->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 4; i++)
        CHECK_EQ_INT(a->step(s, batch(&b, i % 2), 2, &m[i / 2]), AMPC_OK);
    CHECK(m[0].grad_norm > 0 && m[0].grad_norm == m[1].grad_norm);
    CHECK(m[0].loss == m[1].loss);
    a->close(s);
}

TEST_CASE(runtime, inputs_may_move) {
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_metrics m[4];
    Batch b[2];
    CHECK_EQ_INT(tiny_api()->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 4; i++) {
        m[i].size = sizeof *m;
        tiny_api()->step(s, batch(&b[i % 2], i % 2), 2, &m[i]);
    }
    CHECK(m[0].loss != m[1].loss);
    CHECK(m[0].loss == m[2].loss && m[1].loss == m[3].loss);
    tiny_api()->close(s);
}

TEST_CASE(runtime, one_input_may_move_alone) {
    ampc_session *s = open_module(&tiny_module, 1);
    ampc_metrics m[4];
    Batch b[2];
    CHECK_EQ_INT(tiny_api()->set_hyper(s, "lr", 0), AMPC_OK);
    for (int i = 0; i < 2; i++) batch(&b[i], i);
    for (int i = 0; i < 4; i++) {
        ampc_input in[] = {b[0].in[0], b[i % 2].in[1]};
        m[i].size = sizeof *m;
        CHECK_EQ_INT(tiny_api()->step(s, in, 2, &m[i]), AMPC_OK);
    }
    CHECK(m[0].loss != m[1].loss);
    CHECK(m[0].loss == m[2].loss && m[1].loss == m[3].loss);
    tiny_api()->close(s);
}

#ifdef __SSE__
/* Flushing of subnormals, rounding towards zero: kernels compute in another
   mode. */
TEST_CASE(runtime, the_host_keeps_its_way_to_round) {
    enum { OWN = 0xffc0, FLAGS = 0x3f };
    ampc_session *s = open_module(&tiny_module, 2);
    ampc_metrics m = {.size = sizeof m};
    Batch b;
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(OWN);
    ampc_status status = tiny_api()->step(s, batch(&b, 0), 2, &m);
    unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before);
    CHECK_EQ_INT(status, AMPC_OK);
    CHECK_EQ_INT(after & ~(unsigned)FLAGS, OWN);
    tiny_api()->close(s);
}
#endif
