/* SPDX-License-Identifier: Apache-2.0 */
/* builder.c: the builder: names, attributes, dtypes, mistakes. */
#include <string.h>

#include "ir/fn/fn.h"
#include "ir/ir.h"
#include "tests/harness.h"
#include "tests/ir/ir/fixture.h"

TEST_CASE(builder, names_stay_short) {
    fn_library_read(); /* names of functions are dropped, too */
    Fixture f = ir_start();
    ValueId y = f.x;
    for (int i = 0; i < 4; i++) y = b1(&f.b, OP_EXP, y, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.exp.4");
    y = b1(&f.b, OP_TANH, y, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.tanh");
    y = b_cast(&f.b, y, DT_BF16);
    CHECK_STR(name_of(&f, y), "x.bf16");
    CHECK_STR(name_of(&f, b_cast(&f.b, y, DT_F32)), "x.f32");
    CHECK(same_value(b_cast(&f.b, y, DT_BF16), y));
    CHECK_STR(name_of(&f, b2(&f.b, OP_MUL, b_scalar(&f.b, DT_F32, 2), f.x,
                             DT_DEFAULT)),
              "x.mul");
    CHECK_STR(name_of(&f, b_full(&f.b, value_get(f.g, f.x)->type, 0)), "full");
    static const char *const derived[][2] = {{"q.exp", "q.neg"},
                                             {"q.exp.7", "q.neg"},
                                             {"q.7", "q.7.neg"},
                                             {"q.exp.", "q.exp..neg"},
                                             {"q.", "q..neg"},
                                             {".exp", ".exp.neg"},
                                             {"q.bf16", "q.neg"},
                                             {"q.grad", "q.grad.neg"},
                                             {"q.softmax", "q.neg"},
                                             {"q.layer_norm", "q.neg"},
                                             {"q.layer_norm.2", "q.neg"},
                                             {"q.exps", "q.exps.neg"},
                                             {"q.exp.7a", "q.exp.7a.neg"},
                                             {"q.r.mul.2", "q.r.neg"}};
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        y = graph_input(f.g, derived[i][0], value_get(f.g, f.x)->type);
        y = b1(&f.b, OP_NEG, y, DT_DEFAULT);
        const char *want = derived[i][1], *got = name_of(&f, y);
        size_t n = strlen(want); /* possibly with a number */
        CHECK_MSG(!strncmp(got, want, n) && (!got[n] || got[n] == '.'),
                  "%s: %s, not %s", derived[i][0], got, want);
    }
    f.b.suffix = ".grad";
    y = b1(&f.b, OP_NEG, f.x, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.grad");
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), "x.grad.2");
    CHECK_STR(name_of(&f, b_full(&f.b, value_get(f.g, f.x)->type, 0)),
              "full.grad");
    y = graph_input(f.g, "grad", value_get(f.g, f.x)->type);
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), "grad.grad");
    y = graph_input(f.g, ".grad", value_get(f.g, f.x)->type);
    CHECK_STR(name_of(&f, b1(&f.b, OP_NEG, y, DT_DEFAULT)), ".grad.grad");
    arena_free(f.a);
}

TEST_CASE(builder, attributes_have_one_form) {
    Fixture f = ir_start();
    int64_t axes[] = {-1, 0};
    Attr a[] = {attr_i(AK_keepdims, 0), attr_v(AK_axes, axes, 2)};
    ValueId y = build(&f.b, OP_REDUCE_SUM, &f.x, 1, a, 2, DT_DEFAULT, "y");
    const Node *n = node_get(f.g, value_get(f.g, y)->def);
    const int64_t *v;
    CHECK_EQ_INT(n->attrs[0].key, AK_axes);
    CHECK_EQ_INT(attr_ints(n, AK_axes, &v), 2);
    CHECK_EQ_INT(v[0], 0);
    CHECK_EQ_INT(v[1], 1);
    CHECK_EQ_INT(axes[0], -1); /* the caller's own entries stay unchanged */
    n = node_get(
        f.g, build_call(&f.b, fn_std("softmax"), &f.x, 1, NULL, 0, 1, NULL));
    CHECK_EQ_INT(attr_int(n, AK_axis), 1);
    CHECK(!attr_find(n, AK_k));
    static const char *const along[] = {"softmax", "cumprod", "topk"};
    int rank = value_type(f.g, f.x)->rank;
    for (int i = 0; i < 3; i++)
        for (int axis = -rank; axis < rank; axis++) {
            Attr given[] = {attr_i(AK_axis, axis), attr_i(AK_k, 1)};
            n = node_get(f.g, build_call(&f.b, fn_std(along[i]), &f.x, 1, given,
                                         i == 2 ? 2 : 1, i == 2 ? 2 : 1, NULL));
            REQUIRE(attr_find(n, AK_axis) != NULL);
            CHECK_EQ_INT(attr_int(n, AK_axis), axis < 0 ? axis + rank : axis);
        }
    arena_free(f.a);
}

TEST_CASE(builder, dtypes) {
    Fixture f = ir_start();
    ValueId low = b_cast(&f.b, f.x, DT_F16);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_ADD, low, f.x, DT_DEFAULT)),
                 DT_F32);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_ADD, low, f.x, DT_BF16)),
                 DT_BF16);
    CHECK_EQ_INT(value_dtype(f.g, b2(&f.b, OP_LESS, low, f.x, DT_DEFAULT)),
                 DT_BOOL);
    arena_free(f.a);
}

TEST_CASE(builder, shorthands) {
    Fixture f = ir_start();
    int64_t flat[] = {12}, perm[] = {1, 0}, axis[] = {0};
    ValueId y = b_reshape(&f.b, f.x, 1, flat);
    CHECK_EQ_INT(value_type(f.g, y)->rank, 1);
    CHECK(same_value(b_reshape(&f.b, y, 1, flat), y));
    y = b_transpose(&f.b, f.x, perm);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 3);
    y = b_matmul(&f.b, f.x, f.x, true, false, DT_DEFAULT);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 3);
    CHECK_EQ_INT(value_type(f.g, y)->dim[1], 3);
    y = b_reduce(&f.b, OP_REDUCE_MAX, f.x, axis, 1, true, DT_DEFAULT);
    CHECK_EQ_INT(value_type(f.g, y)->dim[0], 1);
    CHECK_EQ_INT(value_type(f.g, y)->dim[1], 3);
    arena_free(f.a);
}

TEST_CASE(builder, mistakes_are_messages) {
    Fixture f = ir_start();
    Diag d = {0};
    NodeId n;
    ValueId in[] = {f.x, f.x};
    f.b.loc = (Loc){.file = intern("m.onnx"), .node = intern("fc")};
    CHECK_EQ_INT(build_checked(&f.b, &d, callee_op(OP_MATMUL), in, 2, NULL, 0,
                               1, NULL, NULL, &n),
                 ERR_USER);
    CHECK_STR(d.text.data, "m.onnx: node 'fc': error: matmul: f32[4,3] and "
                           "f32[4,3]: inner dimensions 3 and 4\n");
    CHECK_EQ_INT(f.g->order.len, 0);
    sb_free(&d.text);
    arena_free(f.a);
}

/* The slice moves no elements: it takes the first elements of each row, all
   rows, without gaps. */
TEST_CASE(ir, a_slice_cuts_rows_where_it_begins_them) {
    static const struct {
        int64_t starts[2], sizes[2], steps[2];
        bool cuts;
    } rows[] = {
        {{0, 0}, {4, 3}, {1, 1}, true},  {{0, 0}, {4, 6}, {1, 1}, true},
        {{0, 0}, {4, 3}, {1, 2}, false}, {{0, 1}, {4, 3}, {1, 1}, false},
        {{0, 0}, {3, 3}, {1, 1}, false}, {{0, 0}, {2, 3}, {2, 1}, false},
        {{1, 0}, {3, 6}, {1, 1}, false}, {{0, 5}, {4, 6}, {1, -1}, false}};
    Arena *a = arena_new();
    Module *m = module_new(a, "m");
    Builder b = {.g = graph_new(m, "g")};
    ValueId x = graph_input(b.g, "x", type_make(DT_F32, 2, (int64_t[]){4, 6}));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Attr attrs[] = {attr_v(AK_starts, rows[i].starts, 2),
                        attr_v(AK_sizes, rows[i].sizes, 2),
                        attr_v(AK_steps, rows[i].steps, 2)};
        ValueId y = build(&b, OP_SLICE, &x, 1, attrs, 3, DT_DEFAULT, NULL);
        const Node *n = node_get(b.g, value_get(b.g, y)->def);
        CHECK_MSG(node_cuts_rows(b.g, n) == rows[i].cuts, "row %d", (int)i);
    }
    arena_free(a);
}

TEST_CASE(strings, formatted_texts_of_every_length) {
    char text[600];
    for (size_t n = 250; n < 262; n++) {
        memset(text, 'a', n);
        text[n - 1] = 'z';
        text[n] = 0;
        CHECK(internf("%s", text) == intern(text));
    }
    memset(text, 'b', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK(internf("%s", text) == intern(text));
}
