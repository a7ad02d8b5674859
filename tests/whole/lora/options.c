/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: adapters beside --train and --freeze, and dropout before DoRA. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/compiled.h"

#define ADAPTED " --loss mse --precision fp32 --target cpu:x86-64-v2"

static const char two[] = "model net(x: f32[4,6]) {\n"
                          "  h = tanh(Linear(x, units=8, scope=\"fc\"))\n"
                          "  return y = Linear(h, units=3, scope=\"head\")\n"
                          "}\n";

static bool has_lora_var(const Compiled *c, const char *name) {
    ampc_variable_info t = {.size = sizeof t};
    for (uint32_t i = 0; c->api->variable(c->api->module, i, &t) == AMPC_OK;
         i++)
        if (!strcmp(t.name, name)) return true;
    return false;
}

/* The last of --train and --freeze that names a layer counts. */
TEST_CASE(lora, the_last_option_says_what_trains_itself) {
    static const struct {
        const char *options;
        bool fc, head; /* with an adapter */
    } rows[] = {
        {"--train '*' --freeze fc", true, false},
        {"--train '*' --freeze fc --freeze head --train head", true, false},
        {"--train head --freeze '*'", true, true},
        {"--freeze '*' --train fc", false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[300];
        snprintf(options, sizeof options, "--lora '*' %s" ADAPTED,
                 rows[i].options);
        Compiled c = compile_text(two, options);
        bool fc = has_lora_var(&c, "fc.lora_A.weight"),
             head = has_lora_var(&c, "head.lora_A.weight");
        CHECK_MSG(fc == rows[i].fc && head == rows[i].head,
                  "%s: an adapter of fc %d, of head %d", rows[i].options, fc,
                  head);
        compiled_close(&c);
    }
}

/* DoRA as PEFT computes it: y = W x + (scale - 1) W d + .. for x with dropout
   d. The magnitudes are twice the norms, B is 0, and x has one element. The
   loss is that of W x or, if d doubles the element, 9 times that loss. */
TEST_CASE(lora, magnitudes_scale_what_dropout_leaves) {
    static const char one[] = "model net(x: f32[1,4]) {\n"
                              "  return y = Linear(x, units=2, scope=\"fc\", "
                              "bias=false)\n}\n";
    static const float w[] = {3, 0, 4, 0, 0, 12, 5, 0}, twice[] = {10, 26},
                       x[] = {0, 0, 2, 0}, zeros[2] = {0};
    const double least = (8.0 * 8 + 10.0 * 10) / 2;
    Compiled c =
        compile_text(one, "--lora fc,rank=2,dropout=0.5,dora --optimizer "
                          "sgd,lr=1e-30" ADAPTED);
    ampc_session *s = open_threads(&c, 1);
    ampc_input in[] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                       ampc_in("target", zeros, sizeof zeros, AMPC_DTYPE_F32)};
    ampc_eval e = {.size = sizeof e};
    int kept = 0;
    write_var(&c, s, "fc.weight", w, sizeof w, AMPC_DTYPE_F32);
    write_var(&c, s, "fc.lora_magnitude_vector", twice, sizeof twice,
              AMPC_DTYPE_F32);
    for (int i = 0; i < 24; i++) {
        double loss = step_ok(&c, s, in, 2).loss;
        bool all = loss > 5 * least;
        kept += all;
        CHECK_REL(loss, (all ? 9 : 1) * least, 1e-6);
    }
    CHECK(kept > 0 && kept < 24);
    if (c.api->evaluate(s, in, 2, 1, &e)) FAIL("%s", c.api->error(s));
    CHECK_REL(e.loss_num / e.loss_den, 4 * least, 1e-6);
    c.api->close(s);
    compiled_close(&c);
}

/* Dropout of the model and of an adapter behind it leave a quarter of the
   elements: if both left the same half, losses would be 3.9 times as large. */
TEST_CASE(lora, dropout_of_adapters_is_its_own) {
    enum { ROWS = 16, WIDTH = 64 };
    static const char text[] =
        "model net(x: f32[16,64]) {\n"
        "  h = Dropout(x, ratio=0.5)\n"
        "  return y = Linear(h, units=1, scope=\"fc\", bias=false)\n}\n";
    static float ones[ROWS * WIDTH], zeros[WIDTH];
    const double want = 16 * (16 * 16 + 12); /* 4 times a binomial number */
    double sum = 0;
    for (int i = 0; i < ROWS * WIDTH; i++) ones[i] = 1;
    Compiled c = compile_text(text, "--lora fc,rank=1,alpha=1,dropout=0.5 "
                                    "--optimizer sgd,lr=1e-30" ADAPTED);
    ampc_session *s = open_threads(&c, 1);
    ampc_input in[] = {
        ampc_in("x", ones, sizeof ones, AMPC_DTYPE_F32),
        ampc_in("target", zeros, ROWS * sizeof *zeros, AMPC_DTYPE_F32)};
    write_var(&c, s, "fc.weight", zeros, sizeof zeros, AMPC_DTYPE_F32);
    write_var(&c, s, "fc.lora_A.weight", ones, WIDTH * 4, AMPC_DTYPE_F32);
    write_var(&c, s, "fc.lora_B.weight", ones, 4, AMPC_DTYPE_F32);
    for (int i = 0; i < 4; i++) sum += step_ok(&c, s, in, 2).loss;
    CHECK_MSG(fabs(sum / 4 - want) < 0.3 * want, "mean loss %g, not %g",
              sum / 4, want);
    c.api->close(s);
    compiled_close(&c);
}
