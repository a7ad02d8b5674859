/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the verifier: each check in verify.c's list fails on a graph that
   breaks it, and good graphs pass at every stage. */
#include <stdio.h>
#include <string.h>

#include "ir/ir.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/ir/verify/verify.h"

/* ---- graphs broken by hand ----------------------------------------------- */

const char verify_base[] = "graph g(%x: f32[4], %z: f32[4]) {\n"
                           "  state %s: f32[4]\n"
                           "  const %c: f32[4] = [1, 2, 3, 4]\n"
                           "  %a = add %x, %c\n"
                           "  %b = relu %a\n"
                           "  %r = reduce_sum %b {axes=[0], keepdims=0}\n"
                           "  write %s = %b\n"
                           "  return %b, %r\n"
                           "}\n";

Fixture verify_load(const char *text) {
    Fixture f = {.a = arena_new()};
    if (!CHECK_MSG(parse_module(f.a, &f.d, "t", text, strlen(text), &f.m) == OK,
                   "%s", f.d.text.data))
        harness_leave();
    f.g = f.m->graphs.data[0];
    return f;
}

static ValueId val(const Fixture *f, const char *name) {
    return graph_find_value(f->g, name);
}

Node *verify_node(const Fixture *f, const char *name) {
    return node_get(f->g, value_get(f->g, val(f, name))->def);
}

void verify_drop(Fixture *f) {
    sb_free(&f->d.text);
    arena_free(f->a);
}

void verify_refused(Fixture *f, const char *want) {
    if (CHECK_MSG(verify_module(f->m, STAGE_TYPED, &f->d) != OK, "not seen: %s",
                  want))
        CHECK_HAS(f->d.text.data, want);
    verify_drop(f);
}

TEST_CASE(verify, a_good_graph_passes) {
    Fixture f = verify_load(verify_base);
    for (int s = STAGE_TYPED; s <= STAGE_STEP; s++)
        CHECK(verify_module(f.m, (Stage)s, &f.d) == OK);
    CHECK(f.d.text.len == 0);
    verify_drop(&f);
}

TEST_CASE(verify, order) {
    Fixture f = verify_load(verify_base);
    vec_push(f.a, &f.g->order, f.g->order.data[0]);
    verify_refused(&f, "%a = add: occurs twice in the order");
    f = verify_load(verify_base);
    f.g->order.data[1] = (NodeId){77};
    verify_refused(&f, "node 77 in order does not exist");
    f = verify_load(verify_base);
    NodeId t = f.g->order.data[0];
    f.g->order.data[0] = f.g->order.data[1];
    f.g->order.data[1] = t;
    verify_refused(&f, "%b = relu: operand %a is used before its definition");
    f = verify_load(verify_base);
    f.g->order.len = 2; /* %r is removed, but still returned */
    verify_refused(&f, "output r is not defined");
}

TEST_CASE(verify, operands) {
    Fixture f = verify_load(verify_base);
    verify_node(&f, "b")->in[0] = (ValueId){1000};
    verify_refused(&f, "operand 0 is value 1000 of");
    f = verify_load(verify_base);
    verify_node(&f, "a")->in[1] = NO_VALUE;
    verify_refused(&f, "operand 1 is absent");
    f = verify_load(verify_base);
    verify_node(&f, "a")->in[1] = val(&f, "r");
    verify_refused(&f, "operand %r is used before its definition");
    f = verify_load(verify_base);
    f.g->inputs.len = 1;
    verify_node(&f, "a")->in[1] = val(&f, "z");
    verify_refused(&f, "operand %z is used before");
}

TEST_CASE(verify, results) {
    Fixture f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->def = value_get(f.g, val(&f, "a"))->def;
    verify_refused(&f, "%b = relu: result 0 does not point back");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->result = 1;
    verify_refused(&f, "does not point back");
    f = verify_load(verify_base);
    verify_node(&f, "b")->out[0] = NO_VALUE;
    verify_refused(&f, "result 0 is missing");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->name = NULL;
    verify_refused(&f, "result 0 has no name");
}

TEST_CASE(verify, types_and_attributes) {
    Fixture f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->type = type_scalar(DT_F32);
    verify_refused(&f, "declared f32[]");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->type =
        type_with_dtype(value_get(f.g, val(&f, "b"))->type, DT_I32);
    verify_refused(&f, "is f32[4], not i32");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->type = (TypeId){0};
    verify_refused(&f, "has no type");
    f = verify_load(verify_base);
    Attr foreign = attr_i(AK_group, 1);
    verify_node(&f, "b")->attrs = &foreign;
    verify_node(&f, "b")->nattr = 1;
    verify_refused(&f, "has no attribute 'group'");
    f = verify_load(verify_base);
    const Node *r = verify_node(&f, "r");
    Attr swapped[] = {r->attrs[1], r->attrs[0]};
    verify_node(&f, "r")->attrs = swapped;
    verify_refused(&f, "out of order");
}

/* Values of every kind. */
TEST_CASE(verify, every_value_has_a_type) {
    Fixture f = verify_load(verify_base);
    int n = f.g->values.len;
    verify_drop(&f);
    for (int i = 1; i < n; i++) {
        f = verify_load(verify_base);
        value_get(f.g, (ValueId){(uint32_t)i})->type = (TypeId){0};
        verify_refused(&f, "has no type");
    }
}

TEST_CASE(verify, names) {
    Fixture f = verify_load(verify_base);
    value_get(f.g, val(&f, "b"))->name = intern("x");
    verify_refused(&f, "%x names two values");
    f = verify_load(verify_base);
    f.g->outputs.data[1].name = intern("b");
    verify_refused(&f, "two outputs named b");
}

TEST_CASE(verify, variables_and_constants) {
    Fixture f = verify_load(verify_base);
    value_get(f.g, val(&f, "s"))->type = type_scalar(DT_F32);
    verify_refused(&f, "%s is f32[], the variable is f32[4]");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "s"))->var = 5;
    verify_refused(&f, "reads variable 5 of 1");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "s"))->name = intern("other");
    verify_refused(&f, "variable s is called %other");
    f = verify_load(verify_base);
    Value second = *value_get(f.g, val(&f, "s"));
    vec_push(f.a, &f.g->values, second);
    verify_refused(&f, "variable s has two values");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "c"))->data = NULL;
    verify_refused(&f, "c has no data");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "c"))->data = tensor_new(f.a, type_scalar(DT_F32));
    verify_refused(&f, "c is f32[4], its data f32[]");
    f = verify_load(verify_base);
    value_get(f.g, val(&f, "c"))->name = NULL;
    verify_refused(&f, "a constant of type f32[4] has no name");
    f = verify_load(verify_base);
    f.m->vars.data[0].init = tensor_new(f.a, type_scalar(DT_F32));
    verify_refused(&f, "its initial value f32[]");
}

/* Names reserved for the compiler. */
TEST_CASE(verify, names_of_the_compiler) {
    static const char *const wrong[][2] = {
        {"state %ampc.scale: f32[4]", "ampc.scale has another kind or type"},
        {"hyper %ampc.step: i64[]", "ampc.step has another kind or type"},
        {"state %ampc.rng: i64[3]", "ampc.rng has another kind or type"},
        {"param %ampc.mine: f32[4]",
         "ampc.mine is not one of the compiler's names"},
        {"state %ampc.check/w: f32[4]",
         "ampc.check/w is not one of the compiler's names"},
        {"grad %ampc.grad/v: f32[4]",
         "ampc.grad/v does not belong to a variable"},
        {"grad %ampc.grad/w: f32[5]", "ampc.grad/w has another kind or type"},
        {"shadow %ampc.bf16/w: f16[4]", "ampc.bf16/w has another kind"}};
    char text[300];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text,
                 "graph g(%%x: f32[4]) {\n  param %%w: f32[4]\n  %s\n"
                 "  return %%x\n}\n",
                 wrong[i][0]);
        Fixture f = verify_load(text);
        verify_refused(&f, wrong[i][1]);
    }
    Fixture f =
        verify_load("graph g(%x: f32[4]) {\n  param %w: f32[4]\n"
                    "  state %ampc.scale: f32[], %ampc.opt/w/exp_avg: f32[4]\n"
                    "  state %\"ampc.step:d\": i64[], %ampc.rng: i64[2]\n"
                    "  shadow %ampc.f16/w: f16[4]\n"
                    "  grad %ampc.grad/w: f32[4]\n  return %x\n}\n");
    CHECK_MSG(verify_module(f.m, STAGE_TYPED, &f.d) == OK, "%s",
              f.d.text.data ? f.d.text.data : "");
    verify_drop(&f);
    f = verify_load("graph g(%x: f32[4]) {\n  %y = relu %x\n  return %y\n}\n");
    value_get(f.g, val(&f, "x"))->name = intern("ampc.scale");
    verify_refused(&f, "input %ampc.scale: names that start with 'ampc.'");
}

TEST_CASE(verify, effects) {
    Fixture f = verify_load(verify_base);
    vec_push(f.a, &f.g->writes, f.g->writes.data[0]);
    verify_refused(&f, "%s is written twice");
    f = verify_load(verify_base);
    f.g->writes.data[0].var = val(&f, "x");
    verify_refused(&f, "a write to a value that is not a variable");
    f = verify_load(verify_base);
    f.g->writes.data[0].value = val(&f, "r");
    verify_refused(&f, "%s is f32[4], written with f32[]");
    f = verify_load(verify_base);
    vec_push(f.a, &f.g->inputs, f.g->inputs.data[0]);
    verify_refused(&f, "input 2 is listed twice");
    f = verify_load(verify_base);
    f.g->inputs.data[0] = val(&f, "c");
    verify_refused(&f, "input 0 is not an input value");
    f = verify_load(verify_base);
    vec_push(f.a, &f.m->graphs, f.g);
    Graph *copy = graph_clone(f.g, "g");
    (void)copy;
    verify_refused(&f, "two graphs named g");
}

/* ---- what each stage promises -------------------------------------------- */

/* A text in which `from` is replaced by `to` is refused with message `want`;
   unchanged, it passes. */
typedef struct Fault {
    const char *from, *to, *want;
} Fault;

static void check_stage(const char *text, Stage stage, DType low,
                        const Fault *faults, int n) {
    for (int i = -1; i < n; i++) {
        static const Fault none = {"", "", ""};
        const Fault *x = i < 0 ? &none : &faults[i];
        const char *at = strstr(text, x->from);
        char broken[4000];
        if (!CHECK_MSG(at, "no '%s'", x->from)) continue;
        snprintf(broken, sizeof broken, "%.*s%s%s", (int)(at - text), text,
                 x->to, at + strlen(x->from));
        Fixture f = verify_load(broken);
        f.m->low = low;
        Status s = verify_module(f.m, stage, &f.d);
        const char *said = f.d.text.data ? f.d.text.data : "accepted";
        if (i < 0)
            CHECK_MSG(s == OK, "%s", said);
        else if (CHECK_MSG(s != OK, "not seen: %s", x->want))
            CHECK_HAS(said, x->want);
        verify_drop(&f);
    }
}

#define CHECK_STAGE(text, stage, low, faults)                                  \
    check_stage(text, stage, low, faults, sizeof faults / sizeof *faults)

TEST_CASE(verify, cast_promises) {
    static const char text[] = "graph g(%x: bf16[2,3], %s: f32[3,4]) {\n"
                               "  param %w: f32[3,4]\n"
                               "  %w.bf16 = cast %w : bf16[3,4]\n"
                               "  %y = matmul %x, %w.bf16 : f32[2,4]\n"
                               "  %g = matmul %x, %s : f32[2,4] !backward\n"
                               "  %e = exp %w : f32[3,4]\n"
                               "  return %y, %g, %e\n}\n";
    static const Fault faults[] = {
        {"%x, %w.bf16", "%x, %w",
         "%y = matmul: operand 1 is f32, autocast to bf16"},
        {" !backward", "", "%g = matmul: operand 1 is f32"}};
    CHECK_STAGE(text, STAGE_CAST, DT_BF16, faults);
    CHECK_STAGE(text, STAGE_STEP, DT_BF16, faults);
    check_stage("graph g(%x: f32[2,3], %w: f32[3,4]) {\n"
                "  %y = matmul %x, %w\n  return %y\n}",
                STAGE_CAST, NUM_DTYPES, NULL, 0); /* autocast is off */
}

TEST_CASE(verify, diff_promises) {
    static const char text[] =
        "graph train(%x: f32[4]) {\n"
        "  param %w: f32[4]\n"
        "  frozen %c: f32[4]\n"
        "  %y = mul %x, %w\n"
        "  %l = reduce_sum %y {axes=[0], keepdims=0}\n"
        "  %g = expand 1 {shape=[4]} : f32[4] !backward\n"
        "  %w.grad = mul %g, %x : f32[4] !backward\n"
        "  return ampc.loss=%l, ampc.grad/w=%w.grad\n}\n";
    static const Fault faults[] = {
        {"ampc.loss=%l", "loss=%l", "a program that trains returns its loss"},
        {"ampc.loss=%l", "ampc.loss=%y", "the loss is f32[4], not f32[]"},
        {", ampc.grad/w=%w.grad", "", "it returns no gradient"},
        {"grad/w=%w.grad", "grad/w=%l", "is f32[], the parameter f32[4]"},
        {"grad/w=%w.grad", "grad/c=%w.grad", "'c' is not a parameter"},
        {"grad/w=%w.grad", "grad/v=%w.grad", "'v' is not a parameter"},
        {"mul %g, %x : f32[4] !backward", "mul %g, %x : f32[4]",
         "%w.grad = mul: forward reads backward, operand 0"},
        {"mul %g, %x : f32[4] !backward", "mul %x, %g : f32[4]",
         "%w.grad = mul: forward reads backward, operand 1"},
        {"mul %g, %x : f32[4]", "mul %g, %x : f16[4]",
         "is f16[4], the parameter f32[4]"}};
    CHECK_STAGE(text, STAGE_DIFF, NUM_DTYPES, faults);
}

#define COUNTERS                                                               \
    "  state %ampc.step: i64[], %ampc.tried: i64[]\n"                          \
    "  state %ampc.skipped: i64[], %ampc.bad_forward: i64[]\n"                 \
    "  state %ampc.skip_streak: i64[]\n"
#define COUNTED                                                                \
    "  write %ampc.step = %ampc.tried\n"                                       \
    "  write %ampc.tried = %ampc.step\n"                                       \
    "  write %ampc.skipped = %ampc.step\n"                                     \
    "  write %ampc.bad_forward = %ampc.step\n"                                 \
    "  write %ampc.skip_streak = %ampc.step\n"
#define SUMS                                                                   \
    "  state %ampc.micro: i32[], %ampc.loss_sum: f32[], %ampc.shares: f32[]\n"
#define SUMMED                                                                 \
    "  write %ampc.micro = %ampc.micro\n"                                      \
    "  write %ampc.loss_sum = %ampc.loss_sum\n"                                \
    "  write %ampc.shares = %ampc.shares\n"

/* The same errors in train and update. */
#define UPDATE(name, sums, summed)                                             \
    "graph " name "(%g: f32[4]) {\n"                                           \
    "  param %w: f32[4]\n"                                                     \
    "  state %ampc.opt/w/exp_avg: f32[4]\n"                                    \
    "  shadow %ampc.bf16/w: bf16[4]\n" COUNTERS sums                           \
    "  %n = reduce_sumsq %g {axes=[0]} : f64[1] !update\n"                     \
    "  %r = reshape %n {shape=[]} : f64[] !update\n"                           \
    "  %ok = isfinite %r : bool[] !update\n"                                   \
    "  %e = where %ok, %g, %ampc.opt/w/exp_avg : f32[4] !update\n"             \
    "  %d = add %w, %e : f32[4] !update\n"                                     \
    "  %new = where %ok, %d, %w : f32[4] !update\n"                            \
    "  %b = cast %new : bf16[4] !update\n" COUNTED summed                      \
    "  write %ampc.opt/w/exp_avg = %e\n"                                       \
    "  write %w = %new\n"                                                      \
    "  write %ampc.bf16/w = %b\n"                                              \
    "  return ampc.applied=%ok\n}\n"

static const Fault update_faults[] = {
    {"return ampc.applied=%ok", "return", "does not return the finite flag"},
    {"ampc.applied=%ok", "ampc.applied=%r", "not return the finite flag"},
    {"write %w = %new", "write %w = %g", "w is written whether gradients"},
    {"  write %w = %new",
     "  %half = mul %w, 0.5 : f32[4] !update\n  write %w = %half",
     "w is written whether gradients"},
    {"exp_avg = %e", "exp_avg = %g", "ampc.opt/w/exp_avg is written whether"},
    {"%d, %w : f32[4] !update", "%d, %w : f32[4]", "w is written by no update"},
    {"  write %ampc.bf16/w = %b\n", "", "it writes w and not ampc.bf16/w"},
    {"  write %w = %new\n", "", "it updates no parameter"},
    {"  write %ampc.skipped = %ampc.step\n", "",
     "it does not write ampc.skipped"}};

TEST_CASE(verify, step_promises) {
    static const char train[] = UPDATE("train", "", "");
    static const char update[] = UPDATE("update", SUMS, SUMMED);
    static const Fault more[] = {{"  write %ampc.micro = %ampc.micro\n", "",
                                  "it does not write ampc.micro"}};
    CHECK_STAGE(train, STAGE_STEP, NUM_DTYPES, update_faults);
    CHECK_STAGE(train, STAGE_PRIMITIVE, NUM_DTYPES, update_faults);
    CHECK_STAGE(update, STAGE_STEP, NUM_DTYPES, update_faults);
    CHECK_STAGE(update, STAGE_STEP, NUM_DTYPES, more);
    static const char micro[] =
        "graph micro(%x: f32[]) {\n" SUMS SUMMED "  return ampc.loss=%x\n}\n";
    static const Fault of_micro[] = {
        {"  write %ampc.loss_sum = %ampc.loss_sum\n", "",
         "it does not write ampc.loss_sum"},
        {"  write %ampc.shares = %ampc.shares\n", "",
         "it does not write ampc.shares"}};
    CHECK_STAGE(micro, STAGE_STEP, NUM_DTYPES, of_micro);
    static const char refresh[] = "graph refresh() {\n  param %w: f32[4]\n"
                                  "  shadow %ampc.f16/w: f16[4]\n"
                                  "  %h = cast %w : f16[4] !update\n"
                                  "  %v = relu %w : f32[4] !update\n"
                                  "  write %ampc.f16/w = %h\n  return\n}\n";
    static const Fault of_refresh[] = {{"write %ampc.f16/w = %h",
                                        "write %w = %v",
                                        "it writes w, which is not a copy"}};
    CHECK_STAGE(refresh, STAGE_STEP, NUM_DTYPES, of_refresh);
}

TEST_CASE(verify, primitive_promises) {
    static const char text[] = "graph g(%x: f32[2,4]) {\n"
                               "  %e = exp %x\n"
                               "  %s = reduce_sum %x {axes=[1], keepdims=1}\n"
                               "  return %e, %s\n}\n";
    static const Fault faults[] = {
        {"exp %x", "softmax %x {axis=1}", "%e = softmax: is inlined by now"},
        {"%e = exp %x", "%e, %f = split %x {axis=0, sizes=[1,1]}",
         "= split: is in slices by now"},
        {"keepdims=1", "keepdims=0", "%s = reduce_sum: reductions keep"}};
    CHECK_STAGE(text, STAGE_PRIMITIVE, NUM_DTYPES, faults);
}

/* The kernel of a tile whose columns are several axes sees one matrix. */
TEST_CASE(verify, columns_of_several_axes) {
    static const char text[] =
        "graph g(%x: f32[32,2,16], %b: f32[2,16]) on cuda {\n"
        "  group point {\n"
        "    %r = relu %x\n"
        "    %c = cast %r {user=1} : f8e4m3[32,2,16]\n"
        "    %t = transpose %c {perm=[1,2,0]}\n"
        "  }\n"
        "  return %c, %t\n}\n";
    static const char want[] = "%t = transpose: has columns of several axes";
    static const Fault faults[] = {
        {"relu %x", "add %x, %b", want},
        {"relu %x",
         "slice %x {starts=[0,1,0], sizes=[32,2,16], steps=[1,-1,1]}", want},
        {"relu %x", "iota {axis=0} : f32[32,2,16]", want}};
    CHECK_STAGE(text, STAGE_FUSED, NUM_DTYPES, faults);
}
