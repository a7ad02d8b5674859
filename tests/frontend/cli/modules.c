/* SPDX-License-Identifier: Apache-2.0 */
/* modules.c: what is compiled, and what `ampc inspect` and
   `ampc opt` say of it. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/frontend/cli/cli.h"
#include "tests/harness.h"

/* The best level of a processor is used without an option. */
TEST_CASE(cli, a_module_is_for_every_level_by_default) {
    static const char text[] = "graph forward(%x: f32[2,5]) {\n"
                               "  param %w: f32[5,5] = 1\n"
                               "  %y = matmul %x, %w : f32[2,5]\n"
                               "  return y=%y\n}\n";
    REQUIRE(test_write_file(test_tmp("plain.amp"), text, sizeof text - 1));
    cli_check(0, "", "plain.amp -o plain.so --loss mse");
    cli_check(0,
              "targets     cpu:x86-64-v4+amx, cpu:x86-64-v4, cpu:x86-64-v3, "
              "cpu:x86-64-v2\n",
              "inspect plain.so");
    REQUIRE(setenv("AMPC_ISA", "v2", 1) == 0);
    cli_check(0, "", "plain.amp -o plain.so --loss mse --target cpu:native");
    REQUIRE(setenv("AMPC_ISA", "v9", 1) == 0);
    cli_check(2, "AMPC_ISA=v9 is unknown: v2, v3, v4, v4-amx, v4-dot or v4-fma",
              "plain.amp -o plain.so --loss mse --target cpu:native");
    REQUIRE(unsetenv("AMPC_ISA") == 0);
    cli_check(0, "targets     cpu:x86-64-v2\n", "inspect plain.so");
}

/* Ranks can share the update of a parameter of any size. */
TEST_CASE(cli, sharded_parameters_of_few_elements) {
    static const char text[] = "model m(x: f32[4,5]) {\n"
                               "  for n in [1, 2, 3, 4, 5, 6, 7, 8, 9] { x = "
                               "tanh(Linear(x, units=n)) }\n"
                               "  return y = x\n}\n";
    static const char *const how[] = {
        "--precision fp32 --optimizer adamw",
        "--precision fp16 --optimizer sgd,momentum=0.9 --clip-norm 1",
        "--precision bf16 --optimizer adam --accumulate 2 --clip-value 1"};
    for (int i = 0; i < 3; i++) {
        char words[300];
        snprintf(words, sizeof words,
                 "few.amp -o few.so --loss mse --shard-optimizer --target "
                 "cpu:x86-64-v2 %s",
                 how[i]);
        REQUIRE(test_write_file(test_tmp("few.amp"), text, sizeof text - 1));
        cli_check(0, "", words);
    }
}

/* Any identifier is accepted, except the names in the module's own code,
   which `check` knows, too. */
TEST_CASE(cli, exported_symbols) {
    static const char text[] =
        "graph forward(%x: f32[2,1]) {\n  %y = relu %x : f32[2,1]\n"
        "  return %y\n}\n";
    static const char *const taken[] = {"tensors", "api_step", "memcpy",
                                        "_init", "_fini"};
    static const char *const free_names[] = {"int", "linux", "my_model"};
    char words[200];
    REQUIRE(test_write_file(test_tmp("s.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(words, sizeof words,
                 "s.amp -o s.so --loss none --target cpu:x86-64-v2 --symbol %s",
                 taken[i]);
        cli_check(1, "the module's own code has that name", words);
        snprintf(words, sizeof words, "check s.amp --loss none --symbol %s",
                 taken[i]);
        cli_check(1, "the module's own code has that name", words);
    }
    for (size_t i = 0; i < sizeof free_names / sizeof *free_names; i++) {
        snprintf(words, sizeof words,
                 "s.amp -o s.so --loss none --target cpu:x86-64-v2 --symbol %s",
                 free_names[i]);
        cli_check(0, "", words);
        cli_check(0, "inputs", "inspect s.so");
    }
    cli_check(1,
              "--symbol int: a C program cannot call a function of that name",
              "s.amp -o s.o --loss none --symbol int");
    cli_check(1, "--symbol __int: a C program cannot call a function",
              "s.amp -o s.o --loss none --symbol __int");
    cli_check(1, "--symbol _Int: a C program cannot call a function",
              "s.amp -o s --target c --loss none --symbol _Int");
    cli_check(1, "--symbol main: a C program cannot call a function",
              "s.amp -o s.c --target c --loss none --symbol main");
}

TEST_CASE(cli, inspect_answers_from_models_and_modules) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o cnn.so --dim batch=4 --loss "
             "cross_entropy --target cpu:x86-64-v2",
             cli_cnn());
    cli_check(0, " products, ", words); /* the summary */
    cli_check(0, "cast input f32[4,1,28,28] -> bf16 for conv",
              "inspect cnn.so --casts");
    cli_check(0, "backward, ", "inspect cnn.so --casts");
    cli_check(0, "f32: a gradient", "inspect cnn.so --casts");
    cli_check(0, "\"saved\":true", "inspect cnn.so --casts --json");
    cli_check(0, "\"program\":\"train\"", "inspect cnn.so --kernels --json");
    cli_check(0,
              "\"loops\":[{\"kind\":\"thread\",\"over\":\"columns\","
              "\"step\":1024},{\"kind\":\"vector\",",
              "inspect cnn.so --kernels --json");
    cli_check(0, "\n          loops: thread columns by 1024, vector i0\n",
              "inspect cnn.so --kernels");
    cli_check(0, "\n          epilogue: serial rows < ",
              "inspect cnn.so --kernels");
    cli_check(0, "arena of train", "inspect cnn.so --memory");
    cli_check(0, "train on cpu, predicted for this machine: ",
              "inspect cnn.so --roofline");
    cli_check(0, "step of one rank, predicted for this machine; ",
              "inspect cnn.so --scaling 8");
    cli_check(0, "{\"world\":8,\"20 us, 1\":{\"ms\":",
              "inspect cnn.so --scaling 8 --link 20,1 --step-ms 5 --json");
    cli_check(2, "cnn.so: error: --precision is for models",
              "inspect cnn.so --precision fp32");
    cli_check(2, "--link goes with --scaling N", "inspect cnn.so --link 20,1");
    cli_check(2, "--step-ms goes with --scaling N",
              "inspect cnn.so --memory --step-ms 5");
    cli_check(2, "--scaling: 'one' is not 2 or more ranks",
              "inspect cnn.so --scaling one");
    cli_check(2, "--link: 'string' is not nvlink, infiniband, ethernet or",
              "inspect cnn.so --scaling 2 --link string");
    cli_check(0, "conv1.weight", "inspect cnn.so --params");
    cli_check(0,
              "inputs      input f32[4,1,28,28], target i64[4]\n"
              "outputs     logits f32[4,10]\n"
              "loss        cross_entropy\n"
              "optimizer   adamw, lr 0.001 constant\n"
              "precision   bf16, loss scale none\n",
              "inspect cnn.so");
    cli_check(0, "targets     cpu:x86-64-v2\n", "inspect cnn.so");
    cli_check(0, "\"targets\":[\"cpu:x86-64-v2\"]},\"bytes\":",
              "inspect cnn.so --json");
    cli_check(0, "graph train", "inspect cnn.so --ir autodiff");
    cli_check(1, "no IR of stage 'nosuch'", "inspect cnn.so --ir nosuch");
    static const char *const questions[] = {
        "--ir autodiff", "--casts", "--kernels",  "--memory",
        "--params",      "--cuda",  "--roofline", "--scaling 2"};
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < i; k++) {
            snprintf(words, sizeof words, "inspect cnn.so %s %s", questions[k],
                     questions[i]);
            cli_check(2, "--roofline, --scaling at a time", words);
        }
    cli_check(1, "no GPU code in it", "inspect cnn.so --cuda");
    cli_check(2, "--scaling: '1' is not 2 or more ranks",
              "inspect cnn.so --scaling 1");
    cli_check(2, "--scaling: '1048577' is not 2 or more ranks",
              "inspect cnn.so --scaling 1048577");
    cli_check(2, "--step-ms: '0' is not milliseconds",
              "inspect cnn.so --scaling 2 --step-ms 0");
    cli_check(2, "--link: '20,' is not nvlink",
              "inspect cnn.so --scaling 2 --link 20,");
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss "
             "cross_entropy --casts",
             cli_cnn());
    cli_check(0, "cast input f32[4,1,28,28] -> bf16 for conv", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --ir autodiff",
             cli_cnn());
    cli_check(0, "graph train", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --ir nosuch",
             cli_cnn());
    cli_check(1, "no pass named 'nosuch' (--list-passes)", words);
    snprintf(words, sizeof words, "inspect '%s' --dim batch=4 --cuda",
             cli_cnn());
    cli_check(1, "--cuda asks a module; --emit-cuda DIR writes", words);
    snprintf(words, sizeof words,
             "inspect '%s' --dim batch=4 --loss cross_entropy --kernels",
             cli_cnn());
    cli_check(0, "\n          loops: thread columns by 1024, vector i0\n",
              words);
}

TEST_CASE(cli, a_fresh_head) {
    char words[1400];
    snprintf(words, sizeof words,
             "'%s' -o head.so --dim batch=4 --loss cross_entropy --target "
             "cpu:x86-64-v2 --replace-head logits=3",
             cli_cnn());
    cli_check(0, "", words);
    cli_check(0, "outputs     logits f32[4,3]", "inspect head.so");
    cli_check(0, "fc2.weight  f32[3,", "inspect head.so --params");
    cli_check(0, "fc2.bias  f32[3]  operand of Gemm",
              "inspect head.so --params");
    cli_check(0, "", "export head.so -o head.onnx");
    cli_check(0, "fc2.weight  f32[3,",
              "inspect head.onnx --params --loss none --dim batch=4");
    /* again, over the exported file */
    cli_check(0, "fc2.weight  f32[7,",
              "inspect head.onnx --params --loss none --dim batch=4 "
              "--replace-head logits=7");
    snprintf(words, sizeof words, "check '%s' --dim batch=4 --loss none ",
             cli_cnn());
    size_t n = strlen(words);
    strcpy(words + n, "--replace-head nosuch=3");
    cli_check(1, "'nosuch' is not an output of the model; its outputs: logits",
              words);
    strcpy(words + n, "--replace-head logits");
    cli_check(2, "'logits' is not OUTPUT=N", words);
    strcpy(words + n, "--replace-head logits=0");
    cli_check(2, "0 is not in 1 ..", words);
    strcpy(words + n, "--replace-head logits=2000000000");
    cli_check(1, "would have too many elements", words);
    cli_check_text(2, "--replace-head is for ONNX models",
                   "graph forward(%x: f32[4,3]) {\n  %y = relu %x : f32[4,3]\n"
                   "  return %y\n}\n",
                   "--replace-head y=3");
}

TEST_CASE(cli, dumped_ir_reads_back) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o d.so --dim batch=4 --loss "
             "cross_entropy --target cpu:x86-64-v2 "
             "--dump-ir stages",
             cli_cnn());
    cli_check(0, "", words);
    cli_check(0, "graph forward", "fmt --expand stages/00-import.amp");
    cli_check(0, "graph forward", "fmt stages/00-import.amp");
    cli_check(2, "only a text, .amp, has a layout", "fmt m.onnx");
    cli_check(0, "group", "fmt --expand stages/*-memplan.amp");
    char *import = test_read_file(test_tmp("stages/00-import.amp"), NULL);
    char *next = test_read_file(test_tmp("stages/01-simplify.amp"), NULL);
    REQUIRE(import && next);
    CHECK_HAS(next, "# (unchanged)\n");
    CHECK_STR(next + strlen("# (unchanged)\n"), import);
    free(import);
    free(next);
}

TEST_CASE(cli, passes_are_timed) {
    char words[1024];
    snprintf(words, sizeof words,
             "check '%s' --dim batch=4 --loss cross_entropy --time-passes",
             cli_cnn());
    cli_check(0, " 1 simplify ", words);
    cli_check(0, "(unchanged)", words);
    cli_check(0, " memplan ", words);
    cli_check_text(0,
                   " ms        2 nodes        5 values (unchanged)\n 2 adapt ",
                   "graph forward(%x: f32[4,3]) {\n"
                   "  param %w: f32[3] = 1\n  buffer %b: f32[3] = 1\n"
                   "  %z = mul %x, %w\n  %y = add %z, %b\n  return y=%y\n}\n",
                   "--loss none --time-passes");
}

TEST_CASE(cli, opt_refuses_a_wrong_order) {
    static const char text[] =
        "graph g(%x: f32[4]) {\n  %y = relu %x\n  return %y\n}\n";
    REQUIRE(test_write_file(test_tmp("relu.amp"), text, strlen(text)));
    cli_check(0, "relu", "opt relu.amp --pass simplify,dce");
    cli_check(2, "'cse' does not run after 'fuse'",
              "opt relu.amp --pass fuse,cse");
    cli_check(2, "--list-passes", "opt relu.amp --pass nosuch");
    cli_check(2, "which pass 'fuse' makes", "opt relu.amp --pass memplan");
}

/* Empty kernels run nothing; two equal kernels run as one launch, and sums of
   many rows as two. */
TEST_CASE(cli, each_kernel_says_what_runs) {
    static const char text[] =
        "graph forward(%x: f32[64,32], %e: f32[0,4]) {\n"
        "  param %w: f32[32,48] = 1, %v: f32[32,48] = 1\n"
        "  %a = tanh %e : f32[0,4]\n"
        "  %q = reduce_sum %x {axes=[0], keepdims=1}\n"
        "  %b = tanh %w : f32[32,48]\n"
        "  %c = tanh %v : f32[32,48]\n"
        "  return a=%a, b=%b, c=%c, q=%q\n}\n";
    static const struct {
        const char *gpu, *op;
    } want[] = {{"tanh -> a f32[0,4]\n          gpu: nothing\n",
                 "\"writes\":[\"a\"],\"cuda\":{\"op\":\"none\","},
                {"tanh -> b f32[32,48]\n          gpu: 2 steps in ",
                 "\"writes\":[\"b\"],\"cuda\":{\"op\":\"many\",\"count\":2,"},
                {"tanh -> c f32[32,48]\n          gpu: in the launch before\n",
                 "\"writes\":[\"c\"],\"cuda\":{\"op\":\"part\","},
                {"reduce_sum -> q f32[1,32]\n          gpu: ",
                 "\"writes\":[\"q\"],\"cuda\":{\"op\":\"launch\","}};
    REQUIRE(test_write_file(test_tmp("idle.amp"), text, strlen(text)));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        cli_check(0, want[i].gpu,
                  "inspect idle.amp --loss none --kernels --target cuda:ptx");
        cli_check(0, want[i].op,
                  "inspect idle.amp --loss none --kernels --json "
                  "--target cuda:ptx");
    }
}

/* Row numbers are divided in 32 bits if these suffice. */
TEST_CASE(cli, numbers_of_many_rows_have_64_bits) {
    for (int side = 46340; side <= 46341; side++) { /* squared: about 2^31 */
        char text[400];
        size_t n;
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[%d,%d,8], %%b: f32[%d,1]) {\n"
                 "  %%q = reduce_max %%x {axes=[2], keepdims=1}\n"
                 "  %%y = add %%q, %%b\n  %%r = mul %%x, %%y\n"
                 "  return r=%%r\n}\n",
                 side, side, side);
        REQUIRE(test_write_file(test_tmp("rows.amp"), text, strlen(text)));
        cli_check(0, "",
                  "rows.amp --loss none -o rows.so --emit-c rows "
                  "--target cpu:x86-64-v3");
        char *c = test_read_file(test_tmp("rows/v3_kernels.c"), &n);
        REQUIRE(c);
        CHECK_EQ_INT(strstr(c, "(uint32_t)u %") != NULL, side == 46340);
        CHECK_EQ_INT(strstr(c, " = u %") != NULL, side == 46341);
        free(c);
    }
}

/* The gradient of a padding sums a term for each position to which an
   element is copied: up to 1,000 terms are compiled; the terms of two axes
   multiply. */
TEST_CASE(cli, terms_of_the_gradient_of_a_padding) {
    static const struct {
        const char *mode;
        int size, pads[4]; /* before and after both axes */
        bool compiles;
    } rows[] = {{"edge", 1, {0, 24, 0, 39}, true},
                {"edge", 1, {24, 0, 40, 0}, false},
                {"edge", 1, {0, 25, 39, 0}, false},
                {"wrap", 2, {2, 2, 2, 2}, true},
                {"constant", 1, {99, 99, 99, 99}, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int *p = rows[i].pads;
        int n = rows[i].size;
        char text[600];
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[1]) {\n  param %%w: f32[%d,%d] = 1\n"
                 "  %%p = pad %%w {mode=\"%s\", pads=[%d,%d,%d,%d], value=0}\n"
                 "  %%y = mul %%p, %%x\n"
                 "  %%l = reduce_sum %%y {axes=[0,1], keepdims=0}\n"
                 "  return %%l\n}\n",
                 n, n, rows[i].mode, p[0], p[2], p[1], p[3]);
        REQUIRE(test_write_file(test_tmp("pad.amp"), text, strlen(text)));
        cli_check(!rows[i].compiles,
                  rows[i].compiles ? "" : "the gradient of padding to",
                  "pad.amp -o pad.so --loss auto --target cpu:x86-64-v2");
    }
    static const char
        axes[] = /* a position comes from one position of a constant */
        "graph forward(%x: f32[1]) {\n  param %w: f32[1,1,1,1,1,1,1,1] = 1\n"
        "  %p = pad %w {mode=\"constant\", value=0, "
        "pads=[1,1,1,1,1,1,1,1,2,2,2,2,2,2,2,2]}\n"
        "  %y = mul %p, %x\n"
        "  %l = reduce_sum %y {axes=[0,1,2,3,4,5,6,7], keepdims=0}\n"
        "  return %l\n}\n";
    REQUIRE(test_write_file(test_tmp("pad.amp"), axes, sizeof axes - 1));
    cli_check(0, "", "pad.amp -o pad.so --loss auto --target cpu:x86-64-v2");
}
