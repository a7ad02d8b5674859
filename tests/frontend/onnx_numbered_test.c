/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_numbered_test.c: what trains in files of Keras on PyTorch, where
   TorchScript numbers the tensors and stores equal ones once. */
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"
#include "tests/support/onnx_util.h"

/* A model of the exporter with the input x[2,4]. */
static void begin_numbered(Made *m) {
    made_start(m, 18);
    made_by(m, "pytorch");
    made_input(m, "x", DT_F32, "2,4");
}

/* Keras on PyTorch: tensors have numbers, and equal ones are rebuilt from the
   first. A layer with two uses has one bias; the equal bias of another layer is
   separate. Other offsets stay. */
TEST_CASE(onnx_numbered, biases_of_numbered_tensors) {
    static const char first[] = "the bias of the product with 'onnx::MatMul_1'",
                      other[] = "the bias of the product with 'onnx::MatMul_3'";
    Made m;
    begin_numbered(&m);
    made_weights(&m, "onnx::MatMul_1 4,4; onnx::Add_2 4; onnx::MatMul_3 4,4; "
                     "onnx::Add_6 2,4; onnx::Mul_7 4; _torch_params.a/gain 4;");
    made_nodes(&m,
               "Identity onnx::Add_2 onnx::Add_4; "
               "Identity onnx::Add_2 onnx::Add_5; "
               "Identity onnx::MatMul_1 onnx::MatMul_8; "
               "Identity onnx::Add_2 onnx::Add_9; "
               "Identity onnx::Mul_7 onnx::Mul_10; "
               "MatMul x,onnx::MatMul_1 p; Transpose p q; "
               "Add onnx::Add_2,q r; MatMul r,onnx::MatMul_8 s; "
               "Add s,onnx::Add_4 t; MatMul t,onnx::MatMul_3 u; "
               "Add u,onnx::Add_5 v; MatMul v,onnx::MatMul_3 w; "
               "Add w,onnx::Add_9 z; Add z,onnx::Add_6 k; Mul k,onnx::Mul_7 l; "
               "Mul l,onnx::Mul_10 n; Mul n,_torch_params.a/gain y;");
    made_ints(&m, m.graph.node[6], "perm", 2, (int64_t[]){0, 1});
    for (int i = 0; i < 4; i++) m.graph.initializer[4]->float_data[i] = 1;
    made_becomes(&m, "onnx::Add_2", TRAINS, first);
    made_becomes(&m, "onnx::Add_5", TRAINS, other);
    made_becomes(&m, "onnx::Add_6", FROZEN, "its name is not a module path");
    made_becomes(&m, "onnx::Mul_7", FROZEN, "its name is not a module path");
    made_becomes(&m, "onnx::Mul_10", FROZEN, "its name is not a module path");
    made_becomes(&m, "_torch_params.a/gain", TRAINS,
                 "by guess: operand of Mul");
    Module *mod = made_import(&m);
    REQUIRE(mod != NULL);
    CHECK(!var_named(mod, "onnx::Add_4") && !var_named(mod, "onnx::Add_9"));
    CHECK(!var_named(mod, "onnx::MatMul_8"));
    made_end(&m);
}

/* Two gains, one an Identity of the other: separate if all elements are equal,
   however the file stores them. */
TEST_CASE(onnx_numbered, equal_gains_of_numbered_tensors) {
    static float ones[] = {1, 1, 1, 1}, first[] = {2, 1, 1, 1},
                 last[] = {1, 1, 1, 2};
    static const struct {
        const float *data;
        bool separate;
    } rows[] = {{ones, true}, {first, false}, {last, false}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        Made m;
        const float *data = rows[i / 2].data;
        begin_numbered(&m);
        made_weights(&m, "onnx::MatMul_1 4,4; onnx::Mul_2 4;");
        made_nodes(&m, "Identity onnx::Mul_2 onnx::Mul_3; Mul x,onnx::Mul_2 p; "
                       "MatMul p,onnx::MatMul_1 q; Mul q,onnx::Mul_3 y;");
        Onnx__TensorProto *t = m.graph.initializer[1];
        memcpy(t->float_data, data, sizeof ones);
        if (i % 2) {
            t->n_float_data = 0;
            t->has_raw_data = 1;
            t->raw_data.data = (uint8_t *)t->float_data;
            t->raw_data.len = sizeof ones;
        }
        Module *mod = made_import(&m);
        REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(&m)));
        CHECK_MSG((var_named(mod, "onnx::Mul_3") != NULL) ==
                      rows[i / 2].separate,
                  "row %d", (int)i);
        made_end(&m);
    }
}

/* Which additions to a product of a numbered weight are biases. */
TEST_CASE(onnx_numbered, additions_to_numbered_products) {
    static const struct {
        const char *dims, *nodes;
        Becomes becomes;
    } rows[] = {
        {"4", "MatMul x,onnx::MatMul_1 p; Add p,onnx::Add_2 y", TRAINS},
        {"1,4", "MatMul x,onnx::MatMul_1 p; Add onnx::Add_2,p y", TRAINS},
        {"2,1", "MatMul x,onnx::MatMul_1 p; Add p,onnx::Add_2 y", FROZEN},
        {"2,4", "MatMul x,onnx::MatMul_1 p; Add p,onnx::Add_2 y", FROZEN},
        {"4", "MatMul x,onnx::MatMul_1 p; Sub p,onnx::Add_2 y", FROZEN},
        {"4", "MatMul x,onnx::MatMul_1 p; Tanh p q; Add q,onnx::Add_2 y",
         FROZEN},
        {"4",
         "MatMul x,onnx::MatMul_1 p; Transpose p q; Transpose q r; "
         "Add r,onnx::Add_2 y",
         TRAINS},
        {"4", "Add x,onnx::Add_2 p; MatMul p,onnx::MatMul_1 y", FROZEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        begin_numbered(&m);
        made_weights(&m, "onnx::MatMul_1 4,4;");
        made_f32(&m, "onnx::Add_2", rows[i].dims, 0.5f);
        made_nodes(&m, rows[i].nodes);
        made_becomes(&m, "onnx::Add_2", rows[i].becomes,
                     rows[i].becomes == TRAINS
                         ? "the bias of the product with 'onnx::MatMul_1'"
                         : "its name is not a module path");
        made_end(&m);
    }
}

/* A bias along the channels of a convolution whose axes were moved. */
TEST_CASE(onnx_numbered, bias_of_a_numbered_convolution) {
    Made m;
    made_start(&m, 18);
    made_by(&m, "pytorch");
    made_input(&m, "x", DT_F32, "1,2,5");
    made_weights(&m, "onnx::Conv_1 3,2,2; onnx::Add_2 1,1,3; onnx::Add_3 4,1;");
    made_nodes(&m, "Conv x,onnx::Conv_1 p; Transpose p q; Add q,onnx::Add_2 r; "
                   "Add r,onnx::Add_3 y;");
    made_ints(&m, m.graph.node[1], "perm", 3, (int64_t[]){0, 2, 1});
    made_becomes(&m, "onnx::Add_3", FROZEN, "its name is not a module path");
    made_becomes(&m, "onnx::Add_2", TRAINS,
                 "the bias of the product with 'onnx::Conv_1'");
    made_end(&m);
}

/* One tensor has a name: the exporter computed those with numbers. */
TEST_CASE(onnx_numbered, a_numbered_offset_beside_names) {
    Made m;
    begin_numbered(&m);
    made_weights(&m, "onnx::MatMul_1 4,4; onnx::Add_2 4; fc.weight 4,4;");
    made_nodes(&m, "MatMul x,onnx::MatMul_1 p; Add p,onnx::Add_2 q; "
                   "MatMul q,fc.weight y;");
    made_becomes(&m, "onnx::Add_2", FROZEN, "its name is not a module path");
    made_end(&m);
}

/* Nothing can read an Identity whose result has no name. */
TEST_CASE(onnx_numbered, identity_without_a_result) {
    Made m;
    begin_numbered(&m);
    made_weights(&m, "onnx::MatMul_1 4,4; onnx::Add_2 4;");
    made_nodes(&m, "MatMul x,onnx::MatMul_1 p; Add p,onnx::Add_2 y; "
                   "Identity onnx::Add_2 k;");
    m.graph.node[2]->output[0] = made_text(&m, "");
    made_becomes(&m, "onnx::Add_2", TRAINS,
                 "the bias of the product with 'onnx::MatMul_1'");
    made_end(&m);
}

/* Keras computes relu(x) - slope relu(-x), and the exporter negates the slope.
 */
TEST_CASE(onnx_numbered, slopes_of_prelu) {
    static const struct {
        const char *nodes;
        Becomes becomes;
    } rows[] = {
        {"Neg p n; Relu n r; Mul onnx::Mul_2,r y", TRAINS},
        {"Neg p n; Transpose n s; Relu s r; Transpose r t; Mul t,onnx::Mul_2 y",
         TRAINS},
        {"Neg p n; Relu n r; Add onnx::Mul_2,r y", FROZEN},
        {"Neg p n; Tanh n r; Mul onnx::Mul_2,r y", FROZEN},
        {"Tanh p n; Relu n r; Mul onnx::Mul_2,r y", FROZEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char all[200];
        begin_numbered(&m);
        made_weights(&m, "onnx::MatMul_1 4,4; onnx::Mul_2 4;");
        snprintf(all, sizeof all, "MatMul x,onnx::MatMul_1 p; %s",
                 rows[i].nodes);
        made_nodes(&m, all);
        made_becomes(&m, "onnx::Mul_2", rows[i].becomes,
                     rows[i].becomes == TRAINS
                         ? "the slope of a PReLU, negated"
                         : "its name is not a module path");
        made_end(&m);
    }
}

/* Of a norm that the graph computes, but not of a folded one. */
TEST_CASE(onnx_numbered, gains_and_offsets_of_norms) {
    static const struct {
        const char *nodes;
        Becomes becomes;
    } rows[] = {
        {"Mul i,onnx::Mul_2 g; Mul p,g y", TRAINS},
        {"Mul onnx::Mul_2,i g; Mul p,g y", TRAINS},
        {"Mul i,k g; Mul p,g h; Add h,onnx::Mul_2 y", TRAINS},
        {"Div p,r h; Mul h,onnx::Mul_2 y", TRAINS},
        {"Mul p,k h; Add h,onnx::Mul_2 y", FROZEN},
        {"Mul p,r h; Mul h,onnx::Mul_2 y", FROZEN},
        {"Mul p,i h; Tanh h t; Mul t,onnx::Mul_2 y", FROZEN},
        {"Sub i,onnx::Mul_2 g; Mul p,g y", FROZEN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Made m;
        char all[300];
        begin_numbered(&m);
        made_weights(&m, "onnx::MatMul_1 4,4; onnx::Mul_2 4;");
        snprintf(all, sizeof all,
                 "MatMul x,onnx::MatMul_1 p; Mul p,p s; Sqrt s r; "
                 "Reciprocal r i; Tanh p k; %s",
                 rows[i].nodes);
        made_nodes(&m, all);
        made_becomes(&m, "onnx::Mul_2", rows[i].becomes,
                     rows[i].becomes == TRAINS
                         ? "the gain or the offset of a norm"
                         : "its name is not a module path");
        made_end(&m);
    }
}

/* A tensor with a name may be any that a layer multiplies. */
TEST_CASE(onnx_numbered, a_named_factor_of_a_norm) {
    Made m;
    begin_numbered(&m);
    made_weights(&m, "onnx::MatMul_1 4,4; _torch_params.cst/c 4;");
    made_nodes(&m, "MatMul x,onnx::MatMul_1 p; Mul p,p s; Sqrt s r; "
                   "Div p,r h; Mul h,_torch_params.cst/c y;");
    made_becomes(&m, "_torch_params.cst/c", TRAINS, "by guess: operand of Mul");
    made_end(&m);
}

/* PyTorch's options are no remedy for a user of Keras. */
TEST_CASE(onnx_numbered, warns_in_words_of_keras) {
    Made m;
    begin_numbered(&m);
    made_weights(&m, "onnx::MatMul_1 4,4;");
    made_nodes(&m, "MatMul x,onnx::MatMul_1 y;");
    Module *mod = made_import(&m);
    REQUIRE(CHECK_MSG(mod != NULL, "%s", made_message(&m)));
    CHECK_HAS(made_message(&m), "(Keras' export takes neither: ");
    made_end(&m);
}
