/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the verifier: each check in verify.c's list fails on a graph that
   breaks it, and good graphs pass at every stage. */
#include "ir/ir.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

/* ---- graphs broken by hand ----------------------------------------------- */

typedef struct Fixture {
    Arena *a;
    Module *m;
    Graph *g;
    Diag d;
} Fixture;

static const char base[] = "graph g(%x: f32[4], %z: f32[4]) {\n"
                           "  state %s: f32[4]\n"
                           "  const %c: f32[4] = [1, 2, 3, 4]\n"
                           "  %a = add %x, %c\n"
                           "  %b = relu %a\n"
                           "  %r = reduce_sum %b {axes=[0], keepdims=0}\n"
                           "  write %s = %b\n"
                           "  return %b, %r\n"
                           "}\n";

static Fixture load(const char *text) {
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

static Node *node(const Fixture *f, const char *name) {
    return node_get(f->g, value_get(f->g, val(f, name))->def);
}

static void drop(Fixture *f) {
    sb_free(&f->d.text);
    arena_free(f->a);
}

static void refused(Fixture *f, const char *want) {
    if (CHECK_MSG(verify_module(f->m, STAGE_TYPED, &f->d) != OK, "not seen: %s",
                  want))
        CHECK_HAS(f->d.text.data, want);
    drop(f);
}

TEST_CASE(verify, a_good_graph_passes) {
    Fixture f = load(base);
    for (int s = STAGE_TYPED; s <= STAGE_STEP; s++)
        CHECK(verify_module(f.m, (Stage)s, &f.d) == OK);
    CHECK(f.d.text.len == 0);
    drop(&f);
}

TEST_CASE(verify, order) {
    Fixture f = load(base);
    vec_push(f.a, &f.g->order, f.g->order.data[0]);
    refused(&f, "%a = add: occurs twice in the order");
    f = load(base);
    f.g->order.data[1] = (NodeId){77};
    refused(&f, "node 77 in order does not exist");
    f = load(base);
    NodeId t = f.g->order.data[0];
    f.g->order.data[0] = f.g->order.data[1];
    f.g->order.data[1] = t;
    refused(&f, "%b = relu: operand %a is used before its definition");
    f = load(base);
    f.g->order.len = 2; /* %r is removed, but still returned */
    refused(&f, "output r is not defined");
}

TEST_CASE(verify, operands) {
    Fixture f = load(base);
    node(&f, "b")->in[0] = (ValueId){1000};
    refused(&f, "operand 0 is value 1000 of");
    f = load(base);
    node(&f, "a")->in[1] = NO_VALUE;
    refused(&f, "operand 1 is absent");
    f = load(base);
    node(&f, "a")->in[1] = val(&f, "r");
    refused(&f, "operand %r is used before its definition");
    f = load(base);
    f.g->inputs.len = 1;
    node(&f, "a")->in[1] = val(&f, "z");
    refused(&f, "operand %z is used before");
}

TEST_CASE(verify, results) {
    Fixture f = load(base);
    value_get(f.g, val(&f, "b"))->def = value_get(f.g, val(&f, "a"))->def;
    refused(&f, "%b = relu: result 0 does not point back");
    f = load(base);
    value_get(f.g, val(&f, "b"))->result = 1;
    refused(&f, "does not point back");
    f = load(base);
    node(&f, "b")->out[0] = NO_VALUE;
    refused(&f, "result 0 is missing");
    f = load(base);
    value_get(f.g, val(&f, "b"))->name = NULL;
    refused(&f, "result 0 has no name");
}

TEST_CASE(verify, types_and_attributes) {
    Fixture f = load(base);
    value_get(f.g, val(&f, "b"))->type = type_scalar(DT_F32);
    refused(&f, "declared f32[]");
    f = load(base);
    value_get(f.g, val(&f, "b"))->type =
        type_with_dtype(value_get(f.g, val(&f, "b"))->type, DT_I32);
    refused(&f, "is f32[4], not i32");
    f = load(base);
    value_get(f.g, val(&f, "b"))->type = (TypeId){0};
    refused(&f, "has no type");
    f = load(base);
    Attr foreign = attr_i(AK_group, 1);
    node(&f, "b")->attrs = &foreign;
    node(&f, "b")->nattr = 1;
    refused(&f, "has no attribute 'group'");
    f = load(base);
    const Node *r = node(&f, "r");
    Attr swapped[] = {r->attrs[1], r->attrs[0]};
    node(&f, "r")->attrs = swapped;
    refused(&f, "out of order");
}

/* Values of every kind. */
TEST_CASE(verify, every_value_has_a_type) {
    Fixture f = load(base);
    int n = f.g->values.len;
    drop(&f);
    for (int i = 1; i < n; i++) {
        f = load(base);
        value_get(f.g, (ValueId){(uint32_t)i})->type = (TypeId){0};
        refused(&f, "has no type");
    }
}

TEST_CASE(verify, names) {
    Fixture f = load(base);
    value_get(f.g, val(&f, "b"))->name = intern("x");
    refused(&f, "%x names two values");
    f = load(base);
    f.g->outputs.data[1].name = intern("b");
    refused(&f, "two outputs named b");
}

TEST_CASE(verify, variables_and_constants) {
    Fixture f = load(base);
    value_get(f.g, val(&f, "s"))->type = type_scalar(DT_F32);
    refused(&f, "%s is f32[], the variable is f32[4]");
    f = load(base);
    value_get(f.g, val(&f, "s"))->var = 5;
    refused(&f, "reads variable 5 of 1");
    f = load(base);
    value_get(f.g, val(&f, "s"))->name = intern("other");
    refused(&f, "variable s is called %other");
    f = load(base);
    Value second = *value_get(f.g, val(&f, "s"));
    vec_push(f.a, &f.g->values, second);
    refused(&f, "variable s has two values");
    f = load(base);
    value_get(f.g, val(&f, "c"))->data = NULL;
    refused(&f, "c has no data");
    f = load(base);
    value_get(f.g, val(&f, "c"))->data = tensor_new(f.a, type_scalar(DT_F32));
    refused(&f, "c is f32[4], its data f32[]");
    f = load(base);
    value_get(f.g, val(&f, "c"))->name = NULL;
    refused(&f, "a constant of type f32[4] has no name");
    f = load(base);
    f.m->vars.data[0].init = tensor_new(f.a, type_scalar(DT_F32));
    refused(&f, "its initial value f32[]");
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
        Fixture f = load(text);
        refused(&f, wrong[i][1]);
    }
    Fixture f = load("graph g(%x: f32[4]) {\n  param %w: f32[4]\n"
                     "  state %ampc.scale: f32[], %ampc.opt/w/exp_avg: f32[4]\n"
                     "  state %\"ampc.step:d\": i64[], %ampc.rng: i64[2]\n"
                     "  shadow %ampc.f16/w: f16[4]\n"
                     "  grad %ampc.grad/w: f32[4]\n  return %x\n}\n");
    CHECK_MSG(verify_module(f.m, STAGE_TYPED, &f.d) == OK, "%s",
              f.d.text.data ? f.d.text.data : "");
    drop(&f);
    f = load("graph g(%x: f32[4]) {\n  %y = relu %x\n  return %y\n}\n");
    value_get(f.g, val(&f, "x"))->name = intern("ampc.scale");
    refused(&f, "input %ampc.scale: names that start with 'ampc.'");
}

TEST_CASE(verify, effects) {
    Fixture f = load(base);
    vec_push(f.a, &f.g->writes, f.g->writes.data[0]);
    refused(&f, "%s is written twice");
    f = load(base);
    f.g->writes.data[0].var = val(&f, "x");
    refused(&f, "a write to a value that is not a variable");
    f = load(base);
    f.g->writes.data[0].value = val(&f, "r");
    refused(&f, "%s is f32[4], written with f32[]");
    f = load(base);
    vec_push(f.a, &f.g->inputs, f.g->inputs.data[0]);
    refused(&f, "input 2 is listed twice");
    f = load(base);
    f.g->inputs.data[0] = val(&f, "c");
    refused(&f, "input 0 is not an input value");
    f = load(base);
    vec_push(f.a, &f.m->graphs, f.g);
    Graph *copy = graph_clone(f.g, "g");
    (void)copy;
    refused(&f, "two graphs named g");
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
        Fixture f = load(broken);
        f.m->low = low;
        Status s = verify_module(f.m, stage, &f.d);
        const char *said = f.d.text.data ? f.d.text.data : "accepted";
        if (i < 0)
            CHECK_MSG(s == OK, "%s", said);
        else if (CHECK_MSG(s != OK, "not seen: %s", x->want))
            CHECK_HAS(said, x->want);
        drop(&f);
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

/* ---- groups and the memory plan, as text --------------------------------- */

typedef struct Row {
    Stage stage;
    const char *head, *body;
    const char *want; /* NULL: passes */
} Row;

#define X "%x: f32[8,4]"

static const Row rows[] = {
    {STAGE_FUSED, X, "group point { %a = relu %x %b = exp %a } return %b",
     NULL},
    {STAGE_FUSED, X, "%a = relu %x return %a", "%a = relu: is in no group"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point { %b = exp %v } return %b",
     NULL},
    {STAGE_FUSED, X, "group point { %v = reshape %x {shape=[32]} } return %v",
     "a view is in no group"},
    {STAGE_FUSED, X, "group point { %a = softmax %x } return %a",
     "is inlined by now"},
    {STAGE_FUSED, X, "group point { } return", "group 0 is empty"},
    /* point */
    {STAGE_FUSED, X,
     "group point { %i = iota {axis=0} : f32[8,4] %a = add %x, %i "
     "%t = transpose %a {perm=[1,0]} } return %t",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x %t = transpose %a {perm=[1,0]} } "
     "return %a, %t",
     "f32[4,8] leaves a point group, so does f32[8,4]"},
    {STAGE_FUSED, X, "group point { %r = reduce_sum %x {axes=[1]} } return %r",
     "does not belong in a point group"},
    /* row */
    {STAGE_FUSED, X,
     "group row { %e = exp %x %s = reduce_sum %e {axes=[1]} %y = div %e, %s } "
     "return %y, %s",
     NULL},
    {STAGE_FUSED, X, "group row { %e = exp %x } return %e",
     "without a reduction"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=0} } return %s",
     "keep their dimensions"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%r = reduce_max %x {axes=[0]} } return %s, %r",
     "along one set of axes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%r = reduce_max %s {axes=[1]} } return %s, %r",
     "folds one shape, f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%e = expand %s {shape=[8,4]} %y = sub %x, %e } return %y",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} "
     "%y = add %s, 1 %f = full {value=1} : f32[4] } return %y, %f",
     "f32[4] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %m = matmul %x, %x {trans_b=1} "
     "%s = reduce_sum %m {axes=[1]} } return %s",
     "does not belong in a row group"},
    /* anchor */
    {STAGE_FUSED, X ", %b: f32[8]",
     "group anchor { %m = matmul %x, %x {trans_b=1} %a = add %m, %b } "
     "return %m, %a",
     NULL},
    {STAGE_FUSED, X, "group anchor { %a = relu %x } return %a",
     "without an anchor"},
    {STAGE_FUSED, X,
     "group anchor { %m = matmul %x, %x {trans_b=1} %n = matmul %m, %x } "
     "return %n",
     "a second anchor"},
    {STAGE_FUSED, X,
     "group anchor { %m = matmul %x, %x {trans_b=1} "
     "%t = transpose %m {perm=[1,0]} } return %t",
     "does not belong in an anchor group"},
    {STAGE_FUSED, X ", %b: f32[3,8,8]",
     "group anchor { %m = matmul %x, %x {trans_b=1} %a = add %m, %b } "
     "return %a",
     "f32[3,8,8] in an anchor group of f32[8,8]"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     NULL},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %x "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     "does not belong in an anchor group"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[2,2,1,1]",
     "group anchor { %c = conv %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} %r = relu %c } "
     "return %r, %p",
     "does not belong in an anchor group"},
    {STAGE_FUSED, "%x: f32[1,2,4,4], %w: f32[1,2,4,4]",
     "group anchor { %c = matmul %x, %w %p, %i = max_pool %c "
     "{kernel_shape=[2,2], strides=[2,2], sizes=[2,2]} } return %c, %p",
     "does not belong in an anchor group"},
    /* lib */
    {STAGE_FUSED, X, "group lib { %a = argmax %x {axis=1} } return %a", NULL},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} %b = argmax %x {axis=0} } "
     "return %a, %b",
     "a lib group is one library op"},
    {STAGE_FUSED, X, "group lib { %a = relu %x } return %a",
     "a lib group is one library op"},
    /* one launch */
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %x } "
     "return %a, %b",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %a } "
     "return %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point beside { %b = exp %v } return %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} } "
     "group point beside { %b = exp %x } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X, "group point beside { %b = exp %x } return %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} } "
     "group row after { %c = reduce_sum %a {axes=[0], keepdims=1} } "
     "return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %c = reduce_sum %x {axes=[0], keepdims=1} } "
     "return %a, %c",
     "a group of a launch has one after it at most"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row after { %c = reduce_max %a {axes=[0], keepdims=1} } "
     "return %b, %c",
     "a group of a launch has one after it at most"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} } "
     "group row after { %d = add %a, %b "
     "%c = reduce_sum %d {axes=[0], keepdims=1} } return %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row after { %c = reduce_sum %b {axes=[1], keepdims=1} } "
     "return %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} } "
     "group row after { %b = reduce_sum %a {axes=[0], keepdims=1} } "
     "group row beside { %c = reduce_max %x {axes=[1], keepdims=1} } "
     "return %b, %c",
     "a group after others must be the last of its launch"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point after { %b = exp %a } return %b",
     "only point or row groups share a launch"},
    /* memory: f32[8,4] is 128 bytes */
    {STAGE_PLANNED, X, "group point { %a = relu %x } return %a",
     "leaves its group and has no place"},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @256 } return %a",
     "ends at byte 384 of an arena of 256"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @64 } return %b",
     "%a and %b live at the same time and overlap"},
    /* in place: the operand is read only at the same index */
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %t = transpose %a {perm=[1,0]} : f32[4,8] @0 } return %t",
     "%a and %t live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } "
     "group point { %c = add %a, %b : f32[8,4] @128 } return %c",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : bf16[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "%v = reshape %a {shape=[32]} "
     "group point { %b = exp %x : f32[8,4] @0 } "
     "group point { %c = exp %v : f32[32] @128 } return %b, %c",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point { %c = exp %b : f32[8,4] @0 } return %c",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 %b = exp %x : f32[8,4] @0 } "
     "return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group lib { %a = argmax %x {axis=1} : i64[8,1] @0 } "
     "group lib { %b = argmax %x {axis=1} : i64[8,1] @0 } return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point beside { %c = exp %x : f32[8,4] @0 } return %b, %c",
     "%a and %c live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } "
     "group point { %b = exp %a : f32[8,4] @128 } "
     "group point beside { %c = exp %a : f32[8,4] @0 } return %b, %c",
     "%a and %c live at the same time"},
    {STAGE_PLANNED, X, /* other blocks still read %a */
     "group row { %a = reduce_sum %x {axes=[1], keepdims=1} : f32[8,1] @0 } "
     "group row beside { %b = reduce_max %x {axes=[1], keepdims=1} : f32[8,1] "
     "@64 } "
     "group row after { %c = reduce_sum %a {axes=[0], keepdims=1} : f32[1,1] "
     "@64 } return %b, %c",
     "%b and %c live at the same time"},
    /* homes */
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %m = add %s, %x : f32[8,4] @0 } "
     "group point beside { %n = add %s, %x : f32[8,4] @%s } write %s = %n "
     "return %m",
     "%s is read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = add %s, %x : f32[8,4] @%s } write %s = %n return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = add %s, %x : f32[8,4] @%s } return %n",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "group point { %o = relu %s : f32[8,4] @0 } write %s = %n return %o",
     "%s is still read after it is overwritten"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } write %s = %n "
     "return old=%s",
     "%s is still read after it is overwritten"},
    {STAGE_PLANNED, "",
     "state %s: f32[4,4] "
     "group point { %n = transpose %s {perm=[1,0]} : f32[4,4] @%s } "
     "write %s = %n return",
     "read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[32] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "%v = reshape %n {shape=[32]} write %s = %v return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: bf16[8,4] "
     "group point { %n = relu %x : f32[8,4] @%s } "
     "%v = reshape %n {shape=[32]} return %v",
     "its home is not written with it"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=1} "
     "%c = reduce_sum %x {axes=[0], keepdims=1} } return %s, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1], keepdims=1} "
     "%c = reduce_sum %x {axes=[0], keepdims=1} %d = neg %c } return %s, %d",
     "reads a sum over the rows of its group"},
    {STAGE_FUSED, "%x: f32[4,4]",
     "group anchor { %h = neg %x %y = matmul %h, %x } return %y",
     "reads what its own group makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = relu %a } "
     "return %a, %b",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = neg %x } "
     "group point beside { %c = relu %b } return %a, %c",
     "reads what its own launch makes"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } %v = reshape %a {shape=[32]} "
     "group point beside { %b = relu %v } return %b",
     "reads what its own launch makes"},
    /* launches */
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1]} } group row beside { %b = "
     "reduce_max %x {axes=[1]} } return %a, %b",
     NULL},
    {STAGE_FUSED, X,
     "group row { %a = reduce_sum %x {axes=[1]} } group point beside { %b "
     "= exp %x } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group point { %b = exp %x } group row beside { %a = reduce_sum %x "
     "{axes=[1]} } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group lib { %a = argmax %x {axis=1} } group lib beside { %b = "
     "argmax %x {axis=0} } return %a, %b",
     "only point or row groups share a launch"},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point { %b = exp %x } group "
     "point beside { %c = exp %a } return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group point { %a = relu %x } group point beside { %b = exp %x } "
     "group point { %c = exp %a } return %b, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,8], value=0} } return %s, %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,1]} } return %s, %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,9], value=0} } return %s, %p",
     "f32[8,13] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,4], value=1} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,0,3], mode=\"edge\"} } return %s, %p",
     "f32[8,7] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,1,0,3]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[1,0,0,4]} } return %s, %p",
     "f32[9,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %x "
     "{pads=[0,0,1,4]} } return %s, %p",
     "f32[9,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[0]} %p = pad %x "
     "{pads=[0,0,0,4]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[0,1]} %p = pad %x "
     "{pads=[0,0,0,4]} } return %s, %p",
     "f32[8,8] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %p = pad %s "
     "{pads=[0,0,0,4]} } return %s, %p",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %d = div %x, %s %p = pad "
     "%d {pads=[0,0,0,4]} } return %p",
     NULL},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %d = div %x, %s %p = pad "
     "%d {pads=[0,0,0,4]} %q = neg %p } return %q",
     "moves what a reduction of its group makes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %c = reduce_sum %x "
     "{axes=[0]} %t = reduce_max %x {axes=[1]} %y = add %s, %t } return "
     "%y, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, X,
     "group row { %c = reduce_max %x {axes=[0]} %s = reduce_max %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: i32[8,4]",
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x {axes=[1]} "
     "} return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f64[8,4]",
     "group row { %c = reduce_sum %x {axes=[0]} %s = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[0,1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[1,8,4]",
     "group row { %s = reduce_sum %x {axes=[2]} %c = reduce_sum %x "
     "{axes=[1]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[1,2]} %c = reduce_sum %x "
     "{axes=[0]} } return %s, %c",
     NULL},
    {STAGE_FUSED, "%x: f32[2,8,4]",
     "group row { %s = reduce_sum %x {axes=[1]} %c = reduce_sum %x "
     "{axes=[0,2]} } return %s, %c",
     "along one set of axes"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %e = exp %s %i = iota "
     "{axis=0} : f32[4,4] } return %e, %i",
     "f32[4,4] leaves a row group of f32[8,4]"},
    {STAGE_FUSED, X,
     "group row { %s = reduce_sum %x {axes=[1]} %e = exp %s %i = iota "
     "{axis=0} : f32[4,4] } return %e",
     NULL},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @128 } return %a",
     NULL},
    {STAGE_PLANNED, X, "group point { %a = relu %x : f32[8,4] @129 } return %a",
     "ends at byte 257 of an arena of 256"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%a : f32[8,4] @127 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @128 } group point { %b = exp "
     "%a : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%a : f32[8,4] @128 } group point { %c = exp %a : f32[8,4] @0 } "
     "return %b, %c",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %c = exp "
     "%a : f32[8,4] @0 } group point { %b = exp %x : f32[8,4] @0 } return "
     "%b, %c",
     "live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = exp "
     "%x : f32[8,4] @0 } return %a, %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group lib { %b = cumsum "
     "%a {axis=1} : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %b = "
     "matmul %a, %x : f32[4,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %m = "
     "matmul %x, %x %b = add %m, %a : f32[4,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, "%x: f32[4,4]",
     "group point { %a = relu %x : f32[4,4] @0 } group anchor { %m = "
     "matmul %a, %x %b = add %m, %a : f32[4,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %a {axes=[1]} %b = div %a, %s : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %x {axes=[1]} %t = slice %a {starts=[0,0], sizes=[8,4], "
     "steps=[1,1]} %b = div %t, %s : f32[8,4] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group row { %s = "
     "reduce_sum %x {axes=[1]} %t = slice %a {starts=[7,0], sizes=[8,4], "
     "steps=[-1,1]} %b = div %t, %s : f32[8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } group point { %t = slice "
     "%a {starts=[0,0], sizes=[8,4], steps=[1,1]} %b = exp %t : f32[8,4] "
     "@0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 } %v = reshape %a "
     "{shape=[4,8]} group point { %b = exp %v : f32[4,8] @0 } return %b",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : f32[8,4] @0 %b = exp %x : f32[8,4] "
     "@128 } group point { %c = add %a, %b : f32[8,4] @0 } group point { "
     "%d = add %c, %b : f32[8,4] @128 } return %d",
     NULL},
    {STAGE_PLANNED, X,
     "group point { %a = relu %x : bf16[8,4] @0 %b = exp %x : bf16[8,4] "
     "@64 } group point { %c = add %a, %b : f32[8,4] @0 } return %c",
     "live at the same time"},
    {STAGE_PLANNED, "%x: f32[8,4], %y: f32[2,8,4]",
     "group point { %a = relu %x : f32[8,4] @0 } group point { %b = add "
     "%a, %y : bf16[2,8,4] @0 } return %b",
     "%a and %b live at the same time"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] state %t: f32[8,4] group point { %n = relu %x : "
     "f32[8,4] @%s } write %t = %n return",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group point { %n = relu %x : f32[8,4] @%s } "
     "group point { %o = exp %x : f32[8,4] @0 } write %s = %o return %n",
     "its home is not written with it"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group point { %o = relu %s : f32[8,4] @0 } group "
     "point { %n = relu %x : f32[8,4] @%s } write %s = %n return %o",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group lib { %n = cumsum %s {axis=1} : f32[8,4] "
     "@%s } write %s = %n return",
     "read at other places than written"},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group row { %r = reduce_sum %s {axes=[1]} %n = "
     "div %s, %r : f32[8,4] @%s } write %s = %n return",
     NULL},
    {STAGE_PLANNED, X,
     "state %s: f32[8,4] group row { %r = reduce_sum %x {axes=[1]} : "
     "f32[8,1] @0 } group row beside { %q = reduce_sum %s {axes=[1]} %n = "
     "div %s, %q : f32[8,4] @%s } write %s = %n return %r",
     NULL},
};

static void check_row(const Row *r) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    char *text =
        arena_printf(a, "graph g(%s) arena 256 {\n%s\n}", r->head, r->body);
    if (CHECK_MSG(parse_module(a, &d, "t", text, strlen(text), &m) == OK, "%s",
                  d.text.data)) {
        Status s = verify_module(m, r->stage, &d);
        CHECK_MSG((s == OK) == (r->want == NULL), "%s\n%s", r->body,
                  d.text.data ? d.text.data : "accepted");
        if (s != OK && r->want) CHECK_HAS(d.text.data, r->want);
    }
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(verify, groups_and_memory) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i]);
}

/* A number beyond the last one of its kind is refused. */
TEST_CASE(verify, numbers_end) {
    Fixture f = load(base);
    node(&f, "b")->op = NUM_OPS;
    refused(&f, "op ");
    f = load(base);
    node(&f, "b")->in[0] = (ValueId){(uint32_t)f.g->values.len};
    refused(&f, "operand 0");
    f = load(base);
    node(&f, "b")->out[0] = (ValueId){(uint32_t)f.g->values.len};
    refused(&f, "result 0");
    f = load(base);
    f.g->order.data[1] = (NodeId){(uint32_t)f.g->nodes.len};
    refused(&f, "in order does not exist");
    f = load(base);
    f.g->order.data[1] = (NodeId){0};
    refused(&f, "in order does not exist");
    f = load(base);
    f.g->outputs.data[0].value = (ValueId){(uint32_t)f.g->values.len};
    refused(&f, "");
}

TEST_CASE(verify, torn_group) {
    Fixture f = load("graph g(%x: f32[4]) {\n"
                     "group point { %a = relu %x }\n"
                     "group point { %b = relu %a }\n"
                     "group point { %c = relu %b }\nreturn %c }");
    node(&f, "c")->group = 0;
    CHECK(verify_graph(f.g, STAGE_FUSED, &f.d) != OK);
    CHECK_HAS(f.d.text.data, "%c = relu: group 0 is torn apart");
    node(&f, "c")->group = 9;
    CHECK(verify_graph(f.g, STAGE_FUSED, &f.d) != OK);
    CHECK_HAS(f.d.text.data, "in group 9 of 3");
    drop(&f);
}
