/* SPDX-License-Identifier: Apache-2.0 */
/* texts.c: models in text: their options, sizes and mistakes. */
#include <stdio.h>
#include <string.h>

#include "ir/base/base.h"
#include "tests/frontend/cli/cli.h"
#include "tests/harness.h"

TEST_CASE(cli, classes_may_be_along_axis_0) {
    static const char one[] = "graph forward(%x: f32[5,5]) {\n"
                              "  param %w: f32[5] = 1, %v: f32[3] = 1\n"
                              "  buffer %a: f32[2] = 1, %b: f32[] = 1\n"
                              "  buffer %c: f32[5,2] = 1\n"
                              "  %y = mul %x, %w : f32[5,5]\n"
                              "  return y=%y\n}\n";
    REQUIRE(test_write_file(test_tmp("one.amp"), one, strlen(one)));
    cli_check(0, "",
              "one.amp -o one.so --loss cross_entropy,axis=0 --freeze v "
              "--target cpu:x86-64-v2");
    cli_check(0,
              "inputs      x f32[5,5], target i64[5]\n"
              "outputs     y f32[5,5]\n"
              "loss        cross_entropy\n"
              "optimizer   adamw, lr 0.001 constant\n"
              "precision   bf16, loss scale none\n"
              "class axis  0\n"
              "trained     1 (5 elements)\n"
              "frozen      1 (3 elements)\n"
              "buffers     3 (13 elements)\n"
              "targets     cpu:x86-64-v2\n"
              "file ",
              "inspect one.so");
    cli_check(0,
              "\"class_axis\":0,\"trained\":[1,5],\"frozen\":[1,3],"
              "\"buffers\":[3,13],\"options\":{",
              "inspect one.so --json");
}

/* Messages say that the class axis of tokens is the last, and axis 1 for all
   other models. */
TEST_CASE(cli, class_axis_is_said) {
    static const char tokens[] = "graph forward(%x: f32[2,3,5]) {\n"
                                 "  param %w: f32[5,5] = 1\n"
                                 "  %y = matmul %x, %w : f32[2,3,5]\n"
                                 "  return y=%y\n}\n";
    cli_check_text(0,
                   "odd.amp: --loss: classes are along the last axis, 2, of "
                   "f32[2,3,5]; axis=1 takes the other",
                   tokens, "--loss cross_entropy");
    cli_check_text(1,
                   "axis= is not an axis of the output; outputs: y f32[2,3,5]",
                   tokens, "--loss cross_entropy,axis=3");
    cli_check(0, "",
              "odd.amp -o axis.so --loss cross_entropy,axis=1 --target "
              "cpu:x86-64-v2");
    cli_check(0, "class axis  1", "inspect axis.so");
    cli_check(0, "\"class_axis\":1", "inspect axis.so --json");
    cli_check(0, "{\"ir\":\"loss\",\"text\":\"graph forward(%x",
              "inspect axis.so --ir loss --json");
    cli_check(0, "{\"ir\":\"loss\",\"text\":\"graph forward(%x",
              "inspect odd.amp --loss nll,axis=1 --ir loss --json");
}

TEST_CASE(cli, batch_sizes_of_a_text) {
    static const char fixed[] =
        "model m(x: f32[4,3]) { return y = Linear(x, units=2) }\n";
    static const char shaped[] = "dim B = 4\nmodel m(x: f32[B,3]) {\n"
                                 "  param p: f32[B,3]\n  return y = x + p\n}\n";
    cli_check_text(
        1,
        "odd.amp:1:9: error: --batch-sizes 1: the first dimension of "
        "'x' is not a symbol",
        fixed, "--loss mse --batch-sizes 4,1");
    cli_check_text(1, "--batch-sizes 2: 'p' is of another shape there", shaped,
                   "--loss mse --batch-sizes 4,2");
    cli_check_text(
        1, "no graph of the file is a model",
        "graph predict(%x: f32[2,2]) {\n  %y = relu %x\n  return %y\n}\n",
        "--batch-sizes 1");
}

TEST_CASE(cli, sizes_of_a_text) {
    static const char text[] =
        "dim B = 4\ndim T = 2\nmodel m(x: f32[B,T,3], u: f32[B]) {\n"
        "  return y = Linear(x, units=2) * mean(u)\n}\n";
    static const char rows[] = "dim T = 2\nmodel m(x: f32[4,T]) {\n"
                               "  param p: f32[T]\n  return y = x * p\n}\n";
    cli_check_text(
        1,
        "--dim T=1: 'p' is of another shape there: give it the shape of the "
        "largest size, and let the model cut it (slice)",
        rows, "--loss mse --dim 'T=1|2'");
    cli_check_text(
        1, "--dim B=2: training has one batch size; --batch-sizes gives", text,
        "--loss mse --dim 'B=2|4'");
    cli_check_text(1, "--pad v: the model has no such input", text,
                   "--loss mse --dim 'T=1|2' --pad v=0");
    cli_check_text(1, "--pad u: the input has one size; --dim", text,
                   "--loss mse --dim 'T=1|2' --pad u=0");
    cli_check_text(1, "--pad x=1e+300: f32 has no 1e+300", text,
                   "--loss mse --dim 'T=1|2' --pad x=1e300");
    cli_check_text(1, "the sizes have more than 64 combinations", text,
                   "--loss mse --dim "
                   "'T=1|2|3|4|5|6|7|8|9' --dim 'B=1|2|3|4|5|6|7|8'");
    cli_check_text(
        1, "this is for --dim T=1",
        "dim T = 2\nmodel m(x: f32[4,T,3]) {\n"
        "  return y = Linear(reshape(x, shape=[4, 6]), units=2)\n}\n",
        "--loss mse --dim 'T=1|2'");
}

/* Each of several losses finds the model's only output. */
TEST_CASE(cli, objectives_of_one_output) {
    static const char layers[] = "graph forward(%x: f32[4,3]) {\n"
                                 "  param %v: f32[3,3], %w: f32[3,2]\n"
                                 "  %h = matmul %x, %v : f32[4,3]\n"
                                 "  %y = matmul %h, %w : f32[4,2]\n"
                                 "  return %y\n}\n";
    static const char sum[] = "graph forward(%x: f32[4,3]) {\n"
                              "  param %v: f32[3], %w: f32[3]\n"
                              "  %h = mul %x, %v\n  %i = mul %h, %w\n"
                              "  %y = reduce_sum %i {axes=[0,1]}\n"
                              "  return %y\n}\n";
    cli_check_text(0, "can be compiled", layers,
                   "--objective a,loss=mse,params=v --objective "
                   "b,loss=l1,params=w");
    cli_check_text(0, "no --objective trains 'v': it keeps its value", layers,
                   "--objective b,loss=l1,params=w");
    cli_check_text(0, "can be compiled", sum,
                   "--objective a,loss=auto,params=v --objective "
                   "b,loss=auto,params=w");
}

/* An .amp file's message explains what would be different for an ONNX model. */
TEST_CASE(cli, a_text_takes_the_options_of_a_model) {
    static const char mlp[] = "graph mlp(%x: f32[4,3]) {\n"
                              "  param %v: f32[3,3], %w: f32[3,2]\n"
                              "  frozen %b: f32[2]\n"
                              "  %h = matmul %x, %v\n"
                              "  %z = matmul %h, %w\n"
                              "  %y = add %z, %b\n"
                              "  return %y\n}\n";
    static const char nine[] =
        "graph f(%x: f32[]) {\n"
        "  return a=%x, b=%x, c=%x, d=%x, e=%x, f=%x, g=%x, h=%x, "
        "i=%x\n}\n";
    static const char two[] = "graph a(%x: f32[]) {\n  return %x\n}\n"
                              "graph b(%x: f32[]) {\n  return %x\n}\n";
    cli_check_text(1, "the model has no output with a single element", mlp, "");
    cli_check_text(1, "f32[], h f32[] and 1 more. Choose", nine, "--loss auto");
    cli_check_text(1, "3 class_weights for 2 classes", mlp,
                   "--loss cross_entropy,class_weights=1/2/3");
    cli_check_text(1, "--top-k 2: the loss is not a classification loss", mlp,
                   "--loss mse --top-k 2");
    cli_check_text(0, "can be compiled", mlp, "--loss mse");
    cli_check_text(1, "'no' is not an output, inner value, node or layer", mlp,
                   "--loss mse:no");
    cli_check_text(1, "'no' is not an output, inner value, node or layer", mlp,
                   "--loss auto:no");
    cli_check_text(0, "no loss depends on w: it keeps its value", mlp,
                   "--loss mse:h");
    cli_check_text(
        1, "'no' is not an output of the model that --loss host can take", mlp,
        "--loss host:no");
    cli_check_text(2, "residuals=N is for bf16", mlp,
                   "--loss mse --precision fp16 --placement exact,residuals=2");
    cli_check_text(2, "residuals=N is for bf16", mlp,
                   "--loss mse --precision O2 --placement exact,residuals=2");
    cli_check_text(2, "a model of 16 bits (--precision O2, O3) has no casts",
                   mlp, "--loss mse --precision O3 --placement pytorch");
    cli_check_text(
        0, "can be compiled", mlp,
        "--loss mse --precision fp16 --placement exact,residuals=inf");
    cli_check_text(2, "--freeze 'u' matches no parameter", mlp,
                   "--loss mse --freeze u");
    cli_check_text(1, "graphs 'a' and 'b': a file has one model", two, "");
    cli_check_text(2,
                   "--dim B: the text has no such symbol; its symbols: (none)",
                   mlp, "--loss mse --dim B=4");
    cli_check_text(2, "--batchnorm train:unbiased: this is for ONNX models",
                   mlp, "--loss mse --batchnorm train:unbiased");
    cli_check_text(2, "--max-trips: no loop of the model has a number of trips",
                   mlp, "--loss mse --max-trips 3");
    cli_check_text(2, "--max-trips turns: no loop of that name", mlp,
                   "--loss mse --max-trips turns=3");
    cli_check_text(2, "--set x is for ONNX models", mlp,
                   "--loss mse --set x=1");
    cli_check_text(2, "--dim B=0: the dimensions of a .amp file", mlp,
                   "--loss mse --dim B=0");
    cli_check_text(2, "--batchnorm frozen:bn* matches no batch_norm", mlp,
                   "--loss mse --batchnorm 'frozen:bn*'");
    cli_check_text(0, "", mlp, "--loss mse --batchnorm 'frozen:*'");
    REQUIRE(test_write_file(test_tmp("mlp.amp"), mlp, strlen(mlp)));
    cli_check(0, "--train b", "inspect mlp.amp --params --train b");
    cli_check(0, "--freeze v", "inspect mlp.amp --params --freeze v");
    cli_check(2, "a loss: no graph of the file is a model, called 'forward'",
              "opt mlp.amp --pass loss --loss mse");
    cli_check_text(2, "--freeze: no graph",
                   "graph predict(%x: f32[2]) {\n  return %x\n}\n",
                   "--freeze w");
}

TEST_CASE(cli, a_text_drops_and_normalises_as_asked) {
    static const char text[] =
        "graph forward(%x: f32[4,3]) {\n"
        "  param %s: f32[3] = 1, %b: f32[3]\n"
        "  buffer %mean: f32[3], %var: f32[3] = 1\n"
        "  state %r: i64[2]\n"
        "  %y, %m, %v = batch_norm %x, %s, %b, %mean, %var {training=1}\n"
        "  %old = mul %mean, 0.9\n  %new = mul %m, 0.1\n"
        "  %next = add %old, %new\n  %d = dropout %y, %r {ratio=0.5}\n"
        "  write %mean = %next\n  return %d\n}\n";
    REQUIRE(test_write_file(test_tmp("bn.amp"), text, strlen(text)));
    cli_check(0, "batch_norm %x, %s, %b, %mean, %var : f32[4,3]",
              "opt bn.amp --pass simplify --batchnorm frozen");
    cli_check(0, "return d=%y",
              "opt bn.amp --pass simplify --dropout off --batchnorm frozen:s");
    cli_check(0, "write %mean = %next", "opt bn.amp --pass simplify");
}

/* A file with options of its own; options of the command line take
   precedence. */
TEST_CASE(cli, a_model_brings_its_options) {
    static const char mlp[] =
        "dim B = 4\n"
        "train m {\n"
        "  loss = cross_entropy, label_smoothing=0.1\n"
        "  optimizer = sgd, lr=0.25; clip_norm = 2\n"
        "  freeze = a.*   # not b\n"
        "  precision = fp32\n}\n"
        "policy m { op relu full }\n"
        "model m(x: f32[B,3]) {\n"
        "  h = relu(Linear(x, units=3, scope=\"a\"))\n"
        "  return y = Linear(h, units=2, scope=\"b\")\n}\n";
    cli_check_text(0, "can be compiled", mlp, "");
    REQUIRE(test_write_file(test_tmp("own.amp"), mlp, strlen(mlp)));
    cli_check(0, "--freeze a.*", "inspect own.amp --params");
    cli_check(0, " !full", "opt own.amp --pass loss,programs,policy --dim B=2");
    cli_check(0, "", "own.amp -o own.so --target cpu:x86-64-v2");
    cli_check(0, "optimizer   sgd, lr 0.25 constant, clip-norm 2",
              "inspect own.so");
    cli_check(0, "= mse_loss %", "opt own.amp --pass loss --loss mse");
}

TEST_CASE(cli, mistakes_of_blocks_have_a_place) {
    static const char *const cases[][2] = {
        {"train m { loss = l3 }",
         "odd.amp:1:11: error: --loss: 'l3' is not one of auto, none, host, "
         "cross_entropy, nll, mse, l1, huber, bce_with_logits, bce, "
         "soft_cross_entropy, focal, sigmoid_focal, dice, sigmoid_dice, "
         "triplet, info_nce, cosine, kl_div, hinge, multi_margin, quantile, "
         "smooth_l1, poisson_nll, ctc; did you mean 'l1'?\n"
         "  train m { loss = l3 }\n            ^\n"},
        {"train m { speed = 3 }", "1:11: error: --speed: unknown option"},
        {"train m { loss }", "1:11: error: --loss: needs a value"},
        {"train m { loss mse }", "error: --loss: '=' expected"},
        {"train m { loss = mse; seed = 1; seed = 1 }",
         "1:33: error: --seed: is given twice"},
        {"train m { clip-norm = 1 }\ntrain m { clip_norm = 1 }",
         "2:11: error: --clip-norm: is given twice"},
        {"train m { accept_folded = 1 }", "takes no value"},
        {"train m { dump_ir = x }",
         "--dump-ir: is an option of the command line"},
        {"train n { loss = mse }", "1:7: error: the file has no model 'n'"},
        {"train m { loss = mse", "2:1: error: --model: '=' expected"},
        {"policy m { op relu }", "1:12: error: 'op NAME CLASS', "},
        {"policy m { op tanh low }", "1:12: error: no op of the model is"}};
    cli_check_text(1, "2:1: error: '}' expected, found end of file",
                   "train m { loss = mse\n", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        snprintf(text, sizeof text,
                 "%s\nmodel m(x: f32[2]) { return y = mean(relu(x)) }\n",
                 cases[i][0]);
        cli_check_text(1, cases[i][1], text, "");
    }
}

/* An imported ONNX file trains as the importing text says. */
TEST_CASE(cli, a_recipe_over_an_onnx_file) {
    char text[1000];
    snprintf(text, sizeof text,
             "model ft = onnx(\"%s\")\n"
             "train ft { dim = batch=4; loss = cross_entropy\n"
             "  batchnorm = frozen; freeze = conv*\n}\n"
             "policy ft { op relu full }\n",
             test_data_path("models/mnist_cnn.onnx"));
    cli_check_text(0, "odd.amp: can be compiled", text, "");
    cli_check(0, "--freeze", "inspect odd.amp --params");
    cli_check_text(1, "the file has no model 'x'",
                   "model ft = onnx(\"a.onnx\")\ntrain x { }\n", "");
    cli_check_text(1, "a.onnx: error: No such file",
                   "model ft = onnx(\"a.onnx\")\n", "");
    cli_check_text(1, "cannot have a graph",
                   "model ft = onnx(\"a.onnx\")\ngraph g() { }\n", "");
    cli_check_text(1, "onnx(\"FILE\") expected", "model ft = torch(\"a\")\n",
                   "");
}

TEST_CASE(cli, odd_models) {
    static const char no_class[] = "graph forward(%x: f32[4,3]) {\n"
                                   "  param %w: f32[3,0]\n"
                                   "  %y = matmul %x, %w : f32[4,0]\n"
                                   "  return %y\n}\n";
    cli_check_text(1, "the file has no model", "", "");
    cli_check_text(
        1, "odd.amp: error: the batch is 0: input 'x' is f32[0,3]; --dim",
        "dim B = 0\nmodel m(x: f32[B,3]) {\n"
        "  return y = Linear(x, units=2)\n}\n"
        "train m { loss = mse }\n",
        "");
    cli_check_text(1, "the file has no model", "module \"m\"\n", "");
    cli_check_text(1, "the loss depends on no trained parameter",
                   "model m() { return y = 1 }\n", "");
    cli_check_text(1, "odd.amp:1:40: error: an output 'y' exists already",
                   "model m(x: f32[4]) { return y = x, y = x }\n",
                   "--loss none");
    cli_check_text(1, "class axis is empty", no_class, "--loss cross_entropy");
    cli_check_text(1, "class axis is empty", no_class, "--loss nll");
    cli_check_text(1, "has no classes",
                   "graph forward(%x: f32[4,0], %t: i64[4]) {\n"
                   "  %l, %e = softmax_cross_entropy %x, %t {axis=1} :"
                   " f32[], f32[4]\n"
                   "  return %l\n}\n",
                   "");
}

/* Each result is within the limit of a type, but all of them together are
   not. */
TEST_CASE(cli, sizes_are_those_of_machines) {
    StrBuf text = {0}, out = {0};
    cli_check_text(
        1, "Linear: the type is too large",
        "model m(x: f32[1,784]) {\n"
        "  return y = Linear(x, units=4294967296, scope=\"fc\")\n}\n",
        "--loss none");
    sb_puts(&text, "model m(x: f32[1048576,1048576]) {\n");
    for (int i = 0; i < 260; i++) {
        sb_printf(&text, "  y%d = softmax(x * %d.5)\n", i, i);
        sb_printf(&out, "%s o%d = y%d", i ? "," : "", i, i);
    }
    sb_printf(&text, "  return%s\n}\n", out.data);
    cli_check_text(1,
                   "program 'predict' stores more than 1125899906842624 bytes",
                   text.data, "--loss none");
    sb_free(&text);
    sb_free(&out);
}

TEST_CASE(cli, convolution_in_f64_is_refused) {
    static const char text[] =
        "graph predict(%x: f64[1,2,5,5], %w: f64[3,2,3,3]) {\n"
        "  %y = conv %x, %w {dilations=[1,1], group=1, pads=[1,1,1,1], "
        "strides=[1,1]} : f64[1,3,5,5]\n  return %y\n}\n";
    const char *path = test_tmp("wide.amp");
    REQUIRE(test_write_file(path, text, strlen(text)));
    cli_check(1, "conv of f64 is not supported", "wide.amp -o wide.so");
}
