/* SPDX-License-Identifier: Apache-2.0 */
/* graphs.c: graphs: names, hashes, copies, equal nodes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/ir/fixture.h"

/* ---- graphs -------------------------------------------------------------- */

Fixture ir_start(void) {
    Fixture f = {.a = arena_new()};
    f.m = module_new(f.a, "m");
    f.g = graph_new(f.m, "forward");
    f.b.g = f.g;
    f.x = graph_input(f.g, "x", ir_make(DT_F32, 2, 4, 3, 0));
    return f;
}

const char *name_of(const Fixture *f, ValueId v) {
    return value_get(f->g, v)->name;
}

TEST_CASE(graph, names_are_unique) {
    Fixture f = ir_start();
    TypeId t = type_scalar(DT_F32);
    CHECK_STR(name_of(&f, graph_input(f.g, "x", t)), "x.2");
    CHECK_STR(name_of(&f, graph_input(f.g, "x.3", t)), "x.3");
    CHECK_STR(name_of(&f, graph_input(f.g, "x", t)), "x.4");
    CHECK(same_value(graph_find_value(f.g, "x"), f.x));
    CHECK(!is_value(graph_find_value(f.g, "nothing")));
    arena_free(f.a);
}

TEST_CASE(graph, variables_keep_their_names) {
    Fixture f = ir_start();
    ValueId y = b1(&f.b, OP_RELU, f.x, DT_DEFAULT);
    CHECK_STR(name_of(&f, y), "x.relu");
    int w =
        module_var(f.m, VAR_PARAM, "x.relu", value_get(f.g, y)->type, NULL, 0);
    CHECK_EQ_INT(
        module_var(f.m, VAR_PARAM, "x.relu", value_get(f.g, y)->type, NULL, 0),
        w);
    CHECK(!is_value(graph_find_var(f.g, w)));
    ValueId v = graph_var(f.g, w);
    CHECK(same_value(graph_var(f.g, w), v));
    CHECK(same_value(graph_find_var(f.g, w), v));
    CHECK_STR(name_of(&f, v), "x.relu");
    CHECK_STR(name_of(&f, y), "x.relu.2");
    CHECK(same_value(graph_find_value(f.g, "x.relu"), v));
    CHECK_STR(name_of(&f, b1(&f.b, OP_RELU, f.x, DT_DEFAULT)), "x.relu.3");
    arena_free(f.a);
}

TEST_CASE(graph, scalars_are_shared_by_bits) {
    Fixture f = ir_start();
    ValueId zero = graph_scalar(f.g, DT_F32, 0);
    double v;
    CHECK(same_value(graph_scalar(f.g, DT_F32, 0), zero));
    CHECK(!same_value(graph_scalar(f.g, DT_F32, -0.0), zero));
    CHECK(!same_value(graph_scalar(f.g, DT_F64, 0), zero));
    ValueId nan = graph_scalar(f.g, DT_F32, (double)NAN);
    CHECK(same_value(graph_scalar(f.g, DT_F32, (double)NAN), nan));
    CHECK(value_is_splat(f.g, zero, &v) && v == 0);
    CHECK(!value_is_splat(f.g, f.x, &v));
    Tensor *t = tensor_new(f.a, ir_make(DT_F16, 1, 3, 0, 0));
    for (int i = 0; i < 3; i++) tensor_set(t, i, 0.5);
    ValueId c = graph_const(f.g, "c", t);
    CHECK(value_is_splat(f.g, c, &v) && v == 0.5);
    tensor_set(t, 2, 1);
    CHECK(!value_is_splat(f.g, c, &v));
    arena_free(f.a);
}

TEST_CASE(graph, count_uses) {
    Fixture f = ir_start();
    ValueId y = b1(&f.b, OP_EXP, f.x, DT_DEFAULT);
    ValueId z = b2(&f.b, OP_ADD, y, y, DT_DEFAULT);
    int w = module_var(f.m, VAR_BUFFER, "w", value_get(f.g, y)->type, NULL, 0);
    vec_push(f.a, &f.g->outputs, (Output){.name = intern("y"), .value = y});
    vec_push(f.a, &f.g->writes, (Write){.var = graph_var(f.g, w), .value = y});
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[y.i], 4);
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[z.i], 0);
    CHECK_EQ_INT(graph_use_counts(f.g, f.a)[f.x.i], 1);
    arena_free(f.a);
}

TEST_CASE(graph, clone_is_apart) {
    Fixture f = ir_start();
    ValueId y = b1(&f.b, OP_EXP, f.x, DT_DEFAULT);
    vec_push(f.a, &f.g->outputs, (Output){.name = intern("y"), .value = y});
    Graph *c = graph_clone(f.g, "copy");
    uint64_t h = graph_hash(f.g);
    Builder b = {.g = c};
    ValueId z = b1(&b, OP_EXP, f.x, DT_DEFAULT);
    CHECK_STR(value_get(c, z)->name, "x.exp.2");
    c->outputs.data[0].value = z;
    node_get(c, c->order.data[0])->in[0] = z;
    CHECK(graph_hash(f.g) == h);
    CHECK(graph_hash(c) != h);
    CHECK(module_graph(f.m, "copy") == c);
    module_remove_graph(f.m, "copy");
    CHECK(module_graph(f.m, "copy") == NULL);
    Module aside;
    Graph *other = graph_clone_aside(f.g, &aside, f.a);
    CHECK(other != f.g && other->module == &aside);
    CHECK(graph_hash(other) == h);
    CHECK_EQ_INT(aside.graphs.len, 1);
    CHECK_EQ_INT(f.m->graphs.len, 1);
    arena_free(f.a);
}

/* ---- the builder --------------------------------------------------------- */

/* The hash identifies a program: everything in its text changes the hash,
   except initial values of variables. */
TEST_CASE(graph, hash_tells_programs_apart) {
    static const char *const texts[] = {
        "graph g(%x: f32[4], %y: f32[4]) {\n  state %s: f32[4], %t: f32[4], "
        "%u: f32[4]\n"
        "  %a = add %x, %s\n  %b = sub %y, %t\n  write %s = %a\n"
        "  write %t = %b\n  return p=%a, q=%b\n}",
        "add %x, %s",
        "mul %x, %s",
        "add %x, %s",
        "add %s, %x",
        "add %x, %s",
        "add %x, 2",
        "add %x, %s",
        "add %x, 3",
        "sub %y, %t",
        "sub %y, %t !backward",
        "p=%a",
        "r=%a",
        "q=%b",
        "r=%b",
        "p=%a, q=%b",
        "p=%b, q=%a",
        "p=%a, q=%b",
        "p=%a",
        "write %s = %a",
        "write %s = %b",
        "write %t = %b",
        "write %t = %a",
        "write %t = %b",
        "write %u = %b",
        "write %s = %a\n",
        "",
        "%x: f32[4], %y",
        "%x: bf16[4], %y",
        "%x: f32[4], %y: f32[4]",
        "%y: f32[4], %x: f32[4]",
        "graph g",
        "graph h",
        "state %s",
        "param %s",
        "add %x, %s",
        "leaky_relu %x {alpha=0.1}",
        "add %x, %s",
        "leaky_relu %x {alpha=0.2}"};
    enum { N = 1 + sizeof texts / sizeof *texts / 2 };
    uint64_t hash[N];
    for (int i = 0; i < N; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        const char *from = i ? texts[2 * i - 1] : "graph",
                   *to = i ? texts[2 * i] : "graph";
        const char *at = strstr(texts[0], from);
        REQUIRE(at != NULL);
        char *text = arena_printf(a, "%.*s%s%s", (int)(at - texts[0]), texts[0],
                                  to, at + strlen(from));
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s\n%s", text, d.text.data);
        hash[i] = graph_hash(m->graphs.data[0]);
        for (int k = 0; k < i; k++)
            CHECK_MSG(hash[k] != hash[i], "%s is as with %s", text,
                      k ? texts[2 * k] : "nothing changed");
        arena_free(a);
    }
}

/* The name of a program gives its kind, its objective and its sizes. */
TEST_CASE(graph, programs_are_known_by_name) {
    static const struct {
        const char *name;
        ProgramKind kind;
        const char *objective, *size;
    } rows[] = {
        {"train", PROGRAM_TRAIN, "", ""},
        {"train:a", PROGRAM_TRAIN, "a", ""},
        {"train:a:b", PROGRAM_TRAIN, "a:b", ""},
        {"train:", PROGRAM_TRAIN, "", ""},
        {"trains", PROGRAM_NONE, "", ""},
        {"trai", PROGRAM_NONE, "", ""},
        {"", PROGRAM_NONE, "", ""},
        {"@7", PROGRAM_NONE, "", "7"},
        {"eval@64", PROGRAM_EVAL, "", "64"},
        {"eval:a@64", PROGRAM_EVAL, "a", "64"},
        {"eval@1", PROGRAM_EVAL, "", "1"},
        {"eval@9@8", PROGRAM_NONE, "", "8"},
        {"eval@", PROGRAM_NONE, "", ""},
        {"eval@0", PROGRAM_NONE, "", ""},
        {"eval@01", PROGRAM_NONE, "", ""},
        {"eval@10", PROGRAM_EVAL, "", "10"},
        {"eval@6a", PROGRAM_NONE, "", ""},
        {"eval@a6", PROGRAM_NONE, "", ""},
        {"eval@999999999999999999", PROGRAM_EVAL, "", "999999999999999999"},
        {"eval@1000000000000000000", PROGRAM_NONE, "", ""},
        {"train@T=64", PROGRAM_TRAIN, "", "T=64"},
        {"train:a@T=64,H_2=8", PROGRAM_TRAIN, "a", "T=64,H_2=8"},
        {"predict@8,T=64", PROGRAM_PREDICT, "", "8,T=64"},
        {"predict@8=64", PROGRAM_PREDICT, "", "8=64"},
        {"train@T=", PROGRAM_NONE, "", ""},
        {"train@T=0", PROGRAM_NONE, "", ""},
        {"train@=4", PROGRAM_NONE, "", ""},
        {"train@T=4,", PROGRAM_NONE, "", ""},
        {"train@T=4,8", PROGRAM_NONE, "", ""},
        {"train@T=4;U=8", PROGRAM_NONE, "", ""},
        {"train@8,", PROGRAM_NONE, "", ""},
        {"train@,T=8", PROGRAM_NONE, "", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Str objective, size;
        CHECK_EQ_INT(program_of_name(rows[i].name, &objective, &size),
                     rows[i].kind);
        CHECK_STR(size, rows[i].size);
        if (rows[i].kind != PROGRAM_NONE)
            CHECK_STR(objective, rows[i].objective);
    }
    CHECK_STR(name_at_size("eval", ""), "eval");
    CHECK_STR(name_at_size("eval", "12"), "eval@12");
    CHECK_EQ_INT(size_batch("12"), 12);
    CHECK_EQ_INT(size_batch("12,T=4"), 12);
    CHECK_EQ_INT(size_batch("12=4"), 0);
    CHECK_EQ_INT(size_batch("T=4"), 0);
    CHECK_EQ_INT(size_batch(""), 0);
    CHECK(size_has_dims("12,T=4") && !size_has_dims("12"));
    CHECK_STR(size_with_dim("12", "a:1", 3), "12,a_1=3");
    CHECK_STR(size_with_dim("", "s 77", 3), "s_77=3");
    CHECK_STR(program_name(PROGRAM_TRAIN, intern("")), "train");
    CHECK_STR(program_name(PROGRAM_TRAIN, intern("d")), "train:d");
}

/* Two lines that are one computation, or are not. */
TEST_CASE(graph, nodes_that_are_the_same) {
    static const struct {
        const char *one, *other;
        bool work, all;
    } rows[] = {
        {"add %x, %z", "add %x, %z", true, true},
        {"add %x, %z", "add %z, %x", true, false},
        {"add %x, %z", "add %x, %x", true, false},
        {"add %x, %z", "sub %x, %z", false, false},
        {"add %x, %z", "add %x, %z : bf16[4,4]", true, false},
        {"relu %x", "add %x, %x", false, false},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x {alpha=0.1}", true, true},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x {alpha=0.2}", false,
         false},
        {"leaky_relu %x {alpha=0.1}", "leaky_relu %x", false, false},
        {"clip %x {min=0, max=1}", "clip %x {min=0, max=2}", false, false},
        {"clip %x {min=0, max=1}", "clip %x {min=-1, max=1}", false, false},
        {"clip %x {min=0}", "clip %x {max=0}", false, false},
        {"transpose %x {perm=[1,0]}", "transpose %x {perm=[1,0]}", true, true},
        {"transpose %x {perm=[1,0]}", "transpose %x {perm=[0,1]}", false,
         false},
        {"reduce_sum %x {axes=[0]}", "reduce_sum %x {axes=[0,1]}", false,
         false},
        {"reduce_sum %x {axes=[0]}", "reduce_sum %x {axes=[1]}", false, false},
        {"reduce_sum %x {axes=[0]}", "reduce_max %x {axes=[0]}", false, false},
        {"softmax %x {axis=1}", "softmax %x {axis=1}", true, true},
        {"softmax %x {axis=1}", "log_softmax %x {axis=1}", false, false},
        {"exp %x", "exp %x !full", true, false},
        {"exp %x !full", "exp %x !full", true, true},
        {"exp %x !low", "exp %x !full", true, false},
        {"exp %x", "exp %x !again", true, false},
        {"exp %x", "exp %x !update", true, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        Module *m;
        char *text = arena_printf(a,
                                  "graph g(%%x: f32[4,4], %%z: f32[4,4]) {\n"
                                  "%%a = %s\n%%b = %s\nreturn %%a, %%b }",
                                  rows[i].one, rows[i].other);
        if (parse_module(a, &d, "t", text, strlen(text), &m) != OK)
            FAIL("%s", d.text.data);
        const Graph *g = m->graphs.data[0];
        const Node *one = node_at(g, 0), *other = node_at(g, 1);
        CHECK_MSG(node_same_work(one, other) == rows[i].work, "%s", text);
        CHECK_MSG(node_same(g, one, other) == rows[i].all, "%s", text);
        CHECK_MSG(node_same(g, other, one) == rows[i].all, "%s", text);
        if (rows[i].all) CHECK(node_hash(g, one) == node_hash(g, other));
        arena_free(a);
    }
}

/* Blocks beside graphs are found without parsing the graphs. */
TEST_CASE(text, blocks_are_cut_out) {
    static const struct {
        const char *text, *train, *policy, *onnx;
    } rows[] = {
        {"train m { loss = mse; lr=1 # why\n  epochs = 2\t \r\n}\n"
         "policy m { op Add low\n}",
         "loss = mse|lr=1|epochs = 2|", "op Add low|", NULL},
        {"train m { a = \"x;y#}\" ; }", "a = \"x;y#}\"|", "", NULL},
        {"train m { a = \"x\" }", "a = \"x\"|", "", NULL},
        {"train m{a}train m{b}", "a|b|", "", NULL},
        {"graph g() { train m { a } }", "", "", NULL},
        {"graph g() { { } } train m { a }", "a|", "", NULL},
        {"graph g() { train m { a }", "", "", NULL},
        {"model m = onnx(\"f.onnx\") train m { a }", "a|", "", "f.onnx"},
        {"model m(x: f32[2]) { y = onnx(\"f\") } train m { a }", "a|", "",
         NULL},
        {"train m { a }\ntrain m { \n", "", "", NULL},
        {"train m { a }\nmodel m = onnx(3)", "", "", NULL},
        {"def policy(x) -> y { y = x }\ntrain m { a }", "a|", "", NULL},
        {"dim train = 2\ndef f(x; policy = 1) -> y { y = x }\ntrain m { a }",
         "a|", "", NULL},
        {"model m(x: f32[4]) { for i in 0..4 { } }\ntrain m { a }", "a|", "",
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        Module *m;
        StrBuf got = {0};
        text_blocks(a, "f", rows[i].text, strlen(rows[i].text), &m);
        sb_puts(&got, "");
        for (int k = 0; k < m->settings.len; k++)
            sb_printf(&got, "%s|", m->settings.data[k].text);
        CHECK_STR(got.data, rows[i].train);
        got.len = 0;
        sb_puts(&got, "");
        for (int k = 0; k < m->policy.len; k++)
            sb_printf(&got, "%s|", m->policy.data[k].text);
        CHECK_STR(got.len ? got.data : "", rows[i].policy);
        CHECK_STR(m->onnx, rows[i].onnx);
        sb_free(&got);
        arena_free(a);
    }
}
