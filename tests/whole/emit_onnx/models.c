/* SPDX-License-Identifier: Apache-2.0 */
/* models.c: whole models and the option. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/passes.h"
#include "tests/support/device_check.h"
#include "tests/support/onnx_util.h"
#include "tests/support/ops_bench.h"
#include "tests/whole/emit_onnx/emit_onnx.h"

/* ---- whole models -------------------------------------------------------- */

static int count(const Onnx__GraphProto *g, const char *op) {
    int n = 0;
    for (size_t i = 0; i < g->n_node; i++)
        n += !strcmp(g->node[i]->op_type, op);
    return n;
}

static bool has_node(const Onnx__GraphProto *g, const char *op,
                     const char *name) {
    for (size_t i = 0; i < g->n_node; i++)
        if (!strcmp(g->node[i]->op_type, op) && !strcmp(g->node[i]->name, name))
            return true;
    return false;
}

static const EvalTensor *logits(const Graph *g, Arena *a) {
    Evaluator *e = eval_new(g, a, EVAL_STORAGE);
    Diag d = {0};
    for (int i = 0; i < g->inputs.len; i++) {
        EvalTensor *t =
            eval_tensor_new(a, value_get(g, g->inputs.data[i])->type);
        for (int64_t k = 0; k < type_count(type_get(t->type)); k++)
            t->i ? (t->i[k] = k * 7 % 3) : (t->f[k] = (double)(k % 64) / 32);
        eval_bind(e, g->inputs.data[i], t);
    }
    for (int i = 1; i < g->values.len; i++) { /* program refresh fills them */
        ValueId v = {(uint32_t)i};
        const Module *m = g->module;
        if (value_get(g, v)->kind != VK_VAR) continue;
        int from = shadow_source(m, value_var(g, v));
        if (from < 0) continue;
        EvalTensor *t = eval_from_tensor(a, m->vars.data[from].init);
        t->type = value_get(g, v)->type;
        for (int64_t k = 0; k < type_count(type_get(t->type)); k++)
            t->f[k] = round_to_dtype(t->f[k], type_get(t->type)->dtype);
        eval_bind(e, v, t);
    }
    REQUIRE(eval_run(e, &d) == OK);
    return eval_get(e, graph_output(g, "logits"));
}

/* PyTorch's names stay, 16-bit values stay 16 bits in the file, and the file
   computes the program's numbers. */
static void whole_model(const char *file, Precision precision,
                        const char *product, const char *name) {
    Arena *a = arena_new();
    Diag d = {0};
    Options opt;
    Module *m;
    size_t n;
    int64_t same = 0, other = 0;
    char *bytes = test_read_file(test_data_path(file), &n);
    options_inference(&opt, a);
    opt.precision = precision;
    vec_push(a, &opt.dims,
             (DimBind){.name = intern("batch"), .axis = -1, .value = 4});
    REQUIRE(import_onnx(a, &d, file, (uint8_t *)bytes, n, &opt, &m) == OK);
    REQUIRE(run_common(m, &d, &opt, false) == OK);
    free(bytes);
    const Graph *g = module_graph(m, "predict");
    Module *got = onnx_again(a, g, &d);
    if (!got) FAIL("%s", d.text.data);
    onnx_compare(file, value_type(g, graph_output(g, "logits")), logits(g, a),
                 logits(module_graph(got, "forward"), a), &same, &other);
    Onnx__ModelProto *p = onnx_message();
    CHECK(has_node(p->graph, product, name));
    CHECK(count(p->graph, "Cast") > count(p->graph, product));
    for (size_t i = 0; i < p->graph->n_initializer; i++)
        CHECK(strncmp(p->graph->initializer[i]->name, "ampc.", 5));
    onnx__model_proto__free_unpacked(p, NULL);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(emit_onnx, gpt_in_bf16) {
    whole_model("tests/onnx/gpt.ts.onnx", PREC_BF16, "MatMul",
                "/h.0/qkv/MatMul");
}

TEST_CASE(emit_onnx, resnet_in_fp16) {
    whole_model("tests/onnx/resnet.ts.onnx", PREC_FP16, "Conv",
                "/layer1/conv1/Conv");
}

/* ---- the option ---------------------------------------------------------- */

static void check_option(int status, const char *says, const char *text,
                         const char *words) {
    char *out;
    test_write_file(test_tmp("m.amp"), text, strlen(text));
    int rc = test_command(&out,
                          "cd '%s' && rm -f m.onnx && '%s' m.amp -o m.so "
                          "--loss none --target cpu:x86-64-v2 %s",
                          test_tmpdir(), test_ampc(), words);
    CHECK_MSG(rc == status, "%s: status %d\n%s", words, rc, out);
    CHECK_HAS(out, says);
    CHECK_EQ_INT(access(test_tmp("m.onnx"), F_OK) == 0, status == 0);
    free(out);
}

TEST_CASE(emit_onnx, option) {
    const char *plain = "graph forward(%x: f32[2,3]) {\n  %y = exp %x\n"
                        "  return %y\n}\n";
    check_option(0, "", plain, "--emit-onnx m.onnx");
    check_option(1, "--emit-onnx would overwrite the model", plain,
                 "--emit-onnx m.amp");
    check_option(1, "m.amp:2:8: error: scatter_add: has no form in ONNX",
                 "graph forward(%x: f32[3,4], %i: i64[3]) {\n"
                 "  %y = scatter_add %x, %i {axis=0, shape=[5,4]}\n"
                 "  return %y\n}\n",
                 "--emit-onnx m.onnx");
}
