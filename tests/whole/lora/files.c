/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: adapters alone in PEFT's files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/compiled.h"
#include "tests/tolerance.h"
#include "tests/whole/lora/lora.h"

/* PEFT's two files; the tensors load again by PEFT's names. */
TEST_CASE(lora, adapters_alone_as_peft_has_them) {
    char words[1400];
    float want[16], got[16];
    size_t n;
    Compiled c =
        compile_text(lora_model, "--lora fc,rank=2,alpha=4 --lora "
                                 "proj,rank=3,alpha=4 --train head" LORA_SMALL);
    ampc_session *s = lora_begin(&c);
    for (int i = 0; i < 3; i++) lora_step(&c, s, i);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    read_var(&c, s, "fc.lora_B.weight", want, sizeof want, AMPC_DTYPE_F32);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    lora_ampc(0, "", words);
    char *config = test_read_file(test_tmp("adapter/adapter_config.json"), &n);
    REQUIRE(config);
    CHECK_HAS(config, "\"r\": 2,");
    CHECK_HAS(config, "\"rank_pattern\": {\"^proj\": 3}");
    CHECK_HAS(config, "\"modules_to_save\": [\"head\"]");
    CHECK_HAS(config, "\"target_modules\": [\"fc\", \"proj\"]");
    CHECK_HAS(config, "\"bias\": \"none\"");
    free(config);
    const char *file = test_tmp("adapter/adapter_model.safetensors");
    Trace t = trace_read(file);
    for (int i = 0; i < t.n; i++) /* nothing frozen */
        CHECK(!strstr(t.t[i].name, ".fc.weight") &&
              !strstr(t.t[i].name, ".bias") ==
                  !strstr(t.t[i].name, "head.bias"));
    CHECK(trace_find(&t, "base_model.model.fc.lora_A.weight"));
    CHECK(trace_find(&t, "base_model.model.head.bias"));
    trace_free(&t);
    snprintf(words, sizeof words,
             "export '%s' --load adapter/adapter_model.safetensors -o w.onnx",
             c.path);
    lora_ampc(1, "a file of adapters alone: ampc run MODULE", words);
    s = open_threads(&c, 1);
    ampc_weights from = {
        .size = sizeof from, .paths = &file, .npath = 1, .partial = 1};
    if (c.api->load_weights(s, &from)) FAIL("load: %s", c.api->error(s));
    read_var(&c, s, "fc.lora_B.weight", got, sizeof got, AMPC_DTYPE_F32);
    CHECK_MEM(got, want, sizeof want);
    c.api->close(s);
    compiled_close(&c);
}

/* With dora, magnitudes are in both files, and begin again beside weights that
   are loaded without them. */
TEST_CASE(lora, magnitudes_in_files) {
    char words[1400];
    float want[8], got[8];
    size_t n;
    Compiled c = compile_text(lora_model, "--lora '*,rank=2,dora'" LORA_SMALL);
    ampc_session *s = lora_begin(&c);
    for (int i = 0; i < 3; i++) lora_step(&c, s, i);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    read_var(&c, s, "fc.lora_magnitude_vector", want, sizeof want,
             AMPC_DTYPE_F32);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    lora_ampc(0, "", words);
    char *config = test_read_file(test_tmp("adapter/adapter_config.json"), &n);
    REQUIRE(config);
    CHECK_HAS(config, "\"use_dora\": true");
    free(config);
    const char *file = test_tmp("adapter/adapter_model.safetensors"),
               *base = test_tmp("base.safetensors");
    Trace t = trace_read(file);
    CHECK(trace_find(&t, "base_model.model.fc.lora_magnitude_vector"));
    trace_free(&t);
    ampc_weights from = {
        .size = sizeof from, .paths = &file, .npath = 1, .partial = 1};
    ampc_session *u = open_threads(&c, 1);
    if (c.api->load_weights(u, &from)) FAIL("load: %s", c.api->error(u));
    read_var(&c, u, "fc.lora_magnitude_vector", got, sizeof got,
             AMPC_DTYPE_F32);
    CHECK_MEM(got, want, sizeof want);
    c.api->close(u);
    c.api->close(s);
    Compiled plain = compile_text(lora_model, LORA_SMALL);
    s = lora_begin(&plain);
    REQUIRE(plain.api->save_weights(s, base) == AMPC_OK);
    plain.api->close(s);
    compiled_close(&plain);
    u = open_threads(&c, 1);
    lora_step(&c, u, 0);
    from.paths = &base;
    if (c.api->load_weights(u, &from)) FAIL("load: %s", c.api->error(u));
    REQUIRE(c.api->save(u, test_tmp("again")) == AMPC_OK);
    read_var(&c, u, "fc.lora_magnitude_vector", got, sizeof got,
             AMPC_DTYPE_F32);
    for (int i = 0; i < 8; i++) { /* the norms of the weights in begin() */
        double sum = 0;
        for (int k = 6 * i; k < 6 * i + 6; k++)
            sum += pow(((37 * k + 11) % 64 - 32) / 64.0, 2);
        CHECK_REL(got[i], sqrt(sum), TOL_LORA);
    }
    c.api->close(u);
    compiled_close(&c);
}

/* PEFT has one use_dora for all layers. */
TEST_CASE(lora, magnitudes_of_some_layers) {
    char words[1400];
    Compiled c = compile_text(
        lora_model, "--lora fc,rank=2 --lora proj,rank=2,dora" LORA_SMALL);
    ampc_session *s = lora_begin(&c);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    lora_ampc(
        1, "one kind of adapter; 'fc' has LoRA and 'proj' has LoRA with dora",
        words);
    snprintf(words, sizeof words, "export '%s' --load trained -o w.onnx",
             c.path);
    lora_ampc(0, "", words);
    compiled_close(&c);
}

/* x.npy: 4 samples. */
static void write_zeros(void) {
    char file[128 + 24 * 4] = "\x93NUMPY\x01\x00\x76\x00"
                              "{'descr': '<f4', 'fortran_order': False, "
                              "'shape': (4, 6)}";
    size_t head = 10 + strlen(file + 10);
    memset(file + head, ' ', 127 - head);
    file[127] = '\n';
    REQUIRE(test_write_file(test_tmp("x.npy"), file, sizeof file));
}

/* adapter_config.json has the scale that the tensor file lacks: it is
   compared with the module's, whoever wrote the file. */
TEST_CASE(lora, another_scale_than_beside_the_file) {
    static const struct {
        int status;
        const char *config, *says;
    } rows[] = {
        {0, "{\"r\":2,\"lora_alpha\":4}", "2 of 8 weights loaded"},
        {1, "{\"r\":2,\"lora_alpha\":8}", "'fc,rank=2,alpha=8'"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"use_rslora\":true}",
         "trained with alpha=5.65685, and this module has alpha=4"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"alpha_pattern\":{\"^fc\":1}}",
         "'fc,rank=2,alpha=1'"},
        {0,
         "{\"r\":9,\"rank_pattern\":{\"fc\":2},\"lora_alpha\":1,"
         "\"alpha_pattern\":{\"c\":1,\"^b.fc\":1,\"fc\":4}}",
         "2 of 8 weights loaded"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"alpha_pattern\":{\"f.*\":4}}",
         "'alpha_pattern' has a regular expression"},
        {1, "{\"r\":2,\"lora_alpha\":4,\"use_dora\":true}",
         "with DoRA, and this module has it without: compile with --lora "
         "'fc,rank=2,alpha=4,dora'"},
        {1, "{\"r\":2,\"lora_alpha\":\"4\"}", "'lora_alpha' is not a number"},
        {1, "{\"r\":1e400,\"lora_alpha\":4}", "'r' is not a number"},
        {1, "[", "not a JSON object"},
    };
    char words[1400];
    Compiled c =
        compile_text(lora_model, "--lora fc,rank=2,alpha=4" LORA_SMALL);
    ampc_session *s = lora_begin(&c);
    REQUIRE(c.api->save(s, test_tmp("trained")) == AMPC_OK);
    c.api->close(s);
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter -o adapter", c.path);
    lora_ampc(0, "", words);
    snprintf(words, sizeof words,
             "run '%s' --feed x=x.npy --load "
             "adapter/adapter_model.safetensors --fetch y",
             c.path);
    write_zeros();
    lora_ampc(0, "2 of 8 weights loaded", words);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        REQUIRE(test_write_file(test_tmp("adapter/adapter_config.json"),
                                rows[i].config, strlen(rows[i].config)));
        lora_ampc(rows[i].status, rows[i].says, words);
    }
    snprintf(words, sizeof words,
             "export '%s' --load trained --adapter --module -o b", c.path);
    lora_ampc(2, "--adapter and --module", words);
    compiled_close(&c);
}
