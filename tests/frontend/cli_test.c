/* SPDX-License-Identifier: Apache-2.0 */
/* cli_test.c: the command line from a user's view: messages, exit status,
   and no files left after an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/op/op.h"
#include "runtime/ampc.h"
#include "tests/frontend/cli/cli.h"
#include "tests/harness.h"

const char *cli_cnn(void) { return test_data_path("models/mnist_cnn.onnx"); }

/* Runs ampc with those words; the output must contain `says`. */
void cli_check(int status, const char *says, const char *words) {
    char *out;
    int rc = test_command(&out, "cd '%s' && AMPC_LIBNVRTC=none '%s' %s",
                          test_tmpdir(), test_ampc(), words);
    CHECK_MSG(rc == status, "ampc %s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

/* Compiles the CNN with more options; a failure must leave no output. */
static void check_refused(int status, const char *says, const char *options) {
    char words[1024], so[600];
    snprintf(words, sizeof words, "'%s' -o refused.so %s", cli_cnn(), options);
    snprintf(so, sizeof so, "%s/refused.so", test_tmpdir());
    cli_check(status, says, words);
    CHECK_MSG(access(so, F_OK), "ampc %s left an output", options);
}

TEST_CASE(cli, help_version_and_tables) {
    cli_check(0, "usage: ampc MODEL.onnx", "--help");
    cli_check(0, "ampc " AMPC_VERSION "\n", "--version");
    cli_check(0, "softmax_cross_entropy", "--list-ops");
    cli_check(0,
              "huber_loss(x, target; delta = 1.0 from 1e-37 \"where it "
              "becomes linear\", reduction = \"mean\")",
              "--list-ops huber_loss");
    cli_check(0, "Linear(x; units: int", "--list-ops relu Linear");
    cli_check(0,
              "concat(1 or more operands; axis: int) -> 1 result class "
              "widest\n",
              "--list-ops concat");
    cli_check(0, "iota(0 operands; axis: int, shape: ints, dtype) -> 1 result",
              "--list-ops iota");
    cli_check(0, "adamw: PyTorch 2.15", "--list-optimizers");
    cli_check(0, "exp_avg = exp_avg * beta2 + g * (1 - beta2)",
              "--list-optimizers adam lion");
    cli_check(1, "no optimizer is called 'lionn'", "--list-optimizers lionn");
    cli_check(1, "no op is called 'softmx'", "--list-ops softmx relu");
    for (int op = 0; op < NUM_OPS; op++) {
        const char *name = op_info[op].text;
        char words[80], says[80];
        snprintf(words, sizeof words, "--list-ops %s", name);
        snprintf(says, sizeof says, "%s(", name);
        if (op == OP_CALL)
            cli_check(1, "no op is called 'call'", words);
        else
            cli_check(0, says, words);
    }
    cli_check(2, "usage: ampc", "");
    cli_check(0, "usage: ampc MODEL.onnx", "m.onnx --help");
    cli_check(0, "usage: ampc run OUT.so", "run --help");
    cli_check(0, "usage: ampc inspect OUT.so", "inspect m.so --help");
    cli_check(0, "usage: ampc check MODEL.onnx", "check -h");
    cli_check(0, "usage: ampc opt MODEL.onnx", "opt --help");
    cli_check(0, "usage: ampc export OUT.so", "export --help");
    cli_check(0, "usage: ampc fmt MODEL.amp", "fmt --help");
}

/* ampc.h has the version; files that cannot include it repeat it. */
TEST_CASE(cli, python_has_the_same_version) {
    char *text =
        test_read_file(test_data_path("runtime/python/ampc/__init__.py"), NULL);
    REQUIRE(text);
    CHECK_HAS(text, "\n__version__ = \"" AMPC_VERSION "\"\n");
    free(text);
}

/* Odd models are reported as the user's mistakes, never as ours. */
void cli_check_text(int status, const char *says, const char *text,
                    const char *options) {
    char words[600];
    REQUIRE(test_write_file(test_tmp("odd.amp"), text, strlen(text)));
    snprintf(words, sizeof words, "check odd.amp %s", options);
    cli_check(status, says, words);
}

/* Types of ONNX nodes are given by the names that the model's author knows. */
TEST_CASE(cli, a_policy_names_types_of_the_model) {
    static const char policy[] = "op Gemm full\n";
    char words[900];
    REQUIRE(test_write_file(test_tmp("p.txt"), policy, sizeof policy - 1));
    snprintf(words, sizeof words,
             "opt '%s' --dim batch=4 --pass policy --amp-policy p.txt",
             cli_cnn());
    cli_check(0, "!full", words);
    REQUIRE(test_write_file(test_tmp("p.txt"), "op LSTM full", 12));
    cli_check(1, "p.txt:1: error: no op of the model is 'LSTM'", words);
}

TEST_CASE(cli, usage_errors_give_status_2) {
    check_refused(2, "--nonsense: unknown option", "--nonsense");
    check_refused(2, "not one of fp32, bf16, fp16", "--precision fp8");
    check_refused(2,
                  "unknown key 'keep'; its keys are keep_batchnorm, "
                  "master_weights",
                  "--precision O2,keep=1");
    check_refused(2, "unknown key 'keep_batchnorm'; it has no keys",
                  "--precision O1,keep_batchnorm=0");
    check_refused(2, "is not one of fp32", "--precision O0:bf16");
    check_refused(2, "is not one of exact, pytorch", "--placement torch");
    check_refused(2, "not one of sgd, adam, adamw, rmsprop, ",
                  "--optimizer lionn");
    check_refused(2, "muon, FILE.amp; keys follow it: WORD,KEY=VALUE",
                  "--optimizer adamw:lr=1e-4");
    check_refused(2, "unknown key 'beta3'", "--optimizer adam,beta3=1");
    check_refused(2, "is not NAME=N", "--dim batch");
    check_refused(2, "needs a value", "--loss");
    check_refused(2, "not for 'cuda:sm_9x'", "--target cuda:sm_9x");
    check_refused(2,
                  "unknown level 'cpu:armv8.2-a+fp16+dotprod'; the nearest is "
                  "cpu:armv8-a",
                  "--target cpu:armv8.2-a+fp16+dotprod");
    check_refused(2, "'cpu:armv8.7-a+bf16+sve'; the nearest is cpu:armv8.6-a",
                  "--target cpu:armv8.7-a+bf16+sve");
    check_refused(2,
                  "unknown level 'cpu:x86-64-v5'; the nearest is cpu:x86-64-v4",
                  "--target cpu:x86-64-v5");
    check_refused(2, "not for 'cpu:armv7-a' (c is C11 for every machine)",
                  "--target cpu:armv7-a");
    check_refused(2, "--objective NAME,loss=L", "--loss mse --loss l1");
    check_refused(2, "--lr: unknown option; use --optimizer O,lr=X",
                  "--lr 0.1");
    cli_check(2, "a file is missing", "check");
    cli_check(2, "-o OUT.so is missing", "model.onnx");
}

TEST_CASE(cli, a_second_loss_is_no_silent_choice) {
    check_refused(2, "given twice: '-o'", "-o other.so");
    cli_check(2, "given twice: '--pass'",
              "opt m.amp --pass simplify --pass cse");
    cli_check(2, "--dim needs --expand", "fmt m.amp --dim B=2");
    check_refused(2,
                  "--loss: was given already; a sum is --loss \"A:OUTPUT + "
                  "0.5*B:OUTPUT\"; several losses in one module are "
                  "--objective",
                  "--loss mse --loss l1");
}

TEST_CASE(cli, switches_are_words_or_numbers) {
    static const char *const keys[] = {"nesterov", "nesterov=1",
                                       "nesterov=true"};
    char option[60];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(option, sizeof option, "--optimizer sgd,%s", keys[i]);
        check_refused(2, "nesterov wants a momentum", option);
    }
    check_refused(2, "unknown key 'nesterof'",
                  "--optimizer sgd,nesterov=false,nesterof");
}

TEST_CASE(cli, numbers_are_numbers_in_range) {
    check_refused(2, "beta1=1 is not in [0, 1)", "--optimizer adam,beta1=1");
    check_refused(2, "lr=-1 is not in [0,", "--optimizer sgd,lr=-1");
    check_refused(2, "'1e999' is outside the range",
                  "--optimizer sgd,lr=1e999");
    check_refused(2, "'nan' is not a number", "--optimizer sgd,lr=nan");
    check_refused(2, "'' is not a number", "--optimizer sgd,lr=");
    check_refused(2, "' 1' is not a number", "--clip-norm ' 1'");
    check_refused(2, "'1x' is not a number", "--clip-norm 1x");
    check_refused(2, "1e39 is not in [1e-37, 1e+38]", "--clip-norm 1e39");
    check_refused(2, "0 is not in", "--clip-value 0");
    check_refused(2, "static=1e31 is not in", "--loss-scale static=1e31");
    check_refused(2, "max= is below min=", "--loss-scale dynamic,min=8,max=4");
    check_refused(2, "init=2 is not in [4, 1.67772e+07]",
                  "--loss-scale dynamic,init=2,min=4");
    check_refused(2, "axis=1.5 is not an integer",
                  "--loss cross_entropy,axis=1.5");
    check_refused(2, "'1.5' is not an integer", "--accumulate 1.5");
    check_refused(2, "'a.pdf' does not end in .html, .txt, .json",
                  "--loss cross_entropy --dim batch=4 --report a.pdf");
    check_refused(2, "--batch-sizes: '' is not an integer",
                  "--loss cross_entropy --batch-sizes 1,");
    check_refused(2, "0 is not in 1 .. 16777216", "--accumulate 0");
    check_refused(2, "99999999999999999999 is not in 0 ..",
                  "--seed 99999999999999999999");
    check_refused(2, "99999999999999999999 is not in 0 ..",
                  "--dim batch=99999999999999999999");
    check_refused(1, "--dim batch=0: the batch has no samples",
                  "--loss cross_entropy --dim batch=0");
    check_refused(2, "--dim: 0 is less than 1, the smallest value",
                  "--dim 'batch=2|0'");
    check_refused(2, "a name is missing before '='", "--dim =5");
    check_refused(2, "a name is missing before ':'", "--dim :0=5");
    check_refused(2, "'' is not an integer", "--dim batch=");
    check_refused(2, "'' is not an integer", "--dim input:=5");
    check_refused(2, "a path is missing", "--report ''");
}

TEST_CASE(cli, globs_match_something) {
    const char *globs[] = {"--train 'nosuch*'", "--freeze 'nosuch*'",
                           "--batchnorm 'frozen:nosuch*'",
                           "--param-group 'nosuch*,lr_scale=2'"};
    for (size_t i = 0; i < sizeof globs / sizeof *globs; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--dim batch=8 --loss cross_entropy %s", globs[i]);
        check_refused(2, "matches no", options);
    }
}

/* As a clone without Git LFS and a browser leave them. */
static void check_no_model(const char *file, const char *text,
                           const char *says) {
    char words[80];
    REQUIRE(test_write_file(test_tmp(file), text, strlen(text)));
    snprintf(words, sizeof words, "check %s", file);
    cli_check(1, says, words);
}

TEST_CASE(cli, input_errors_give_status_1) {
    static const char *const models[] = {"model.onnx", "model.amp"};
    for (int i = 0; i < 2; i++) {
        check_no_model(models[i],
                       "version https://git-lfs.github.com/spec/v1\n",
                       "error: a pointer of Git LFS, not the file itself");
        check_no_model(models[i], "<!DOCTYPE html>\n",
                       "error: a web page about the file: fetch");
    }
    cli_check(1, "No such file", "nosuch.onnx -o x.so");
    check_refused(1, "--dim batch=64", "");
    check_refused(1, "batch", "--dim bach=64");
    check_refused(1, "Choose with --loss", "--dim batch=8");
    check_refused(1, "'nosuch' is not an output, inner value, node or layer",
                  "--dim batch=8 --loss cross_entropy:nosuch");
    check_refused(1, "needs NVRTC",
                  "--dim batch=8 --loss cross_entropy --target cuda:sm_90");
}

TEST_CASE(cli, without_nvrtc_there_is_a_warning) {
    char words[1024];
    snprintf(words, sizeof words,
             "'%s' -o w.so --dim batch=4 --loss cross_entropy", cli_cnn());
    cli_check(0, "warning: no GPU code", words);
    cli_check(0, "no GPU code: NVRTC was not found", "inspect w.so --kernels");
    snprintf(words, sizeof words,
             "'%s' -o w.so --dim batch=4 --loss cross_entropy --emit-cuda text "
             "--target cpu:x86-64-v2",
             cli_cnn());
    cli_check(0, "", words);
    snprintf(words, sizeof words, "%s/text/unit0.cu", test_tmpdir());
    CHECK(access(words, F_OK) == 0);
}
