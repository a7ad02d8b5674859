/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_import_test.c: batch normalisation, dropout, the form of graphs,
   functions, version rules.                                                 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "tests/frontend/onnx_import/onnx_import.h"
#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* A model is named like its file, without folders and the last suffix. */
TEST_CASE(onnx_graph, modules_are_named_by_their_file) {
    static const char *const rows[][2] = {
        {"net.onnx", "net"}, {"a/b.c/net.v2.onnx", "net.v2"}, {"/net", "net"},
        {"a.b/net", "net"},  {"dir/.onnx", ".onnx"},          {"n.", "n"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        Module *mod;
        size_t n;
        made_relu(&m, "2");
        uint8_t *bytes = model_pack(&m.model, &n);
        Status s = import_onnx(m.a, &m.d, rows[i][0], bytes, n, &m.opt, &mod);
        if (CHECK_MSG(s == OK, "%s", made_message(&m)))
            CHECK_STR(mod->name, rows[i][1]);
        free(bytes);
        made_end(&m);
    }
}

/* ---- spoiled exports ----------------------------------------------------- */

Onnx__NodeProto *bn_model(Made *m, const char *operands) {
    made_start(m, 17);
    made_input(m, "x", DT_F32, "4,2,3");
    made_f32(m, "bn.scale", "2", 1);
    made_f32(m, "bn.bias", "2", 0);
    made_f32(m, "bn.mean", "2", 0);
    made_f32(m, "bn.var", "2", 1);
    Onnx__NodeProto *n = made_node(m, "BatchNormalization", operands, "y");
    made_output(m, "y");
    return n;
}

TEST_CASE(onnx_spoiled, statistics_merged_with_weights) {
    Made m;
    bn_model(&m, "x,bn.scale,bn.bias,bn.mean,bn.scale");
    CHECK(!made_import(&m));
    CHECK_HAS(made_message(&m), "running statistics and as something else");
    m.opt.accept_folded = true;
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK_EQ_INT(var_named(mod, "bn.scale")->kind, VAR_PARAM);
    CHECK_EQ_INT(count_kind(mod, VAR_BUFFER), 2);
    made_end(&m);
}

TEST_CASE(onnx_spoiled, an_inference_module_does_not_care) {
    Made m;
    bn_model(&m, "x,bn.scale,bn.bias,bn.mean,bn.scale");
    m.opt.objectives.data[0].loss.kind = LOSS_NONE;
    CHECK(made_import(&m) != NULL);
    made_end(&m);
}

/* Initializers as inputs, beside one that a tool made of a Constant node or
   that the exporter would have written as an input, too. */
static bool imports_beside(const char *other, const char **message) {
    Made m;
    made_start(&m, 11);
    m.model.producer_name = made_text(&m, "pytorch");
    made_input(&m, "x", DT_F32, "4,2");
    made_input(&m, "fc.weight", DT_F32, "2");
    made_f32(&m, "fc.weight", "2", 1);
    made_f32(&m, other, "2", 1);
    made_node(&m, "Mul", "x,fc.weight", "h");
    made_node(&m, "Mul", arena_printf(m.a, "h,%s", other), "y");
    made_output(&m, "y");
    bool good = made_import(&m) != NULL;
    *message = strdup(made_message(&m));
    made_end(&m);
    return good;
}

TEST_CASE(onnx_graph, initializers_as_inputs_beside_former_constants) {
    const char *message;
    CHECK(imports_beside("/up/Constant_output_0", &message));
    free((void *)(uintptr_t)message);
    CHECK(!imports_beside("up.weight", &message));
    CHECK_HAS(message, "have one name in the file");
    free((void *)(uintptr_t)message);
}
