/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the pipeline's order as data, and the runner, which refuses other
   orders. */
#include <stdlib.h>
#include <string.h>

#include "ir/fn/optimizer.h"
#include "ir/text/text.h"
#include "tests/harness.h"
#include "tests/support/passed.h"

/* ---- the order ----------------------------------------------------------- */

enum { MOST = 64 };

static int copy_rows(PassRow *rows) {
    REQUIRE(pipeline_length <= MOST);
    memcpy(rows, pipeline, (size_t)pipeline_length * sizeof *rows);
    return pipeline_length;
}

static int index_of(const PassRow *rows, const char *name) {
    int i = 0;
    while (strcmp(rows[i].name, name)) REQUIRE(++i < pipeline_length);
    return i;
}

static void expect_defect(const PassRow *rows, int n, const char *want) {
    StrBuf why = {0};
    if (CHECK_MSG(pipeline_defect(rows, n, &why), "not seen: %s", want))
        CHECK_HAS(why.data, want);
    sb_free(&why);
}

TEST_CASE(pipeline, is_in_order) {
    StrBuf why = {0};
    CHECK_MSG(!pipeline_defect(pipeline, pipeline_length, &why), "%s",
              why.data ? why.data : "");
    CHECK_EQ_INT(pipeline[pipeline_length - 1].stage, STAGE_PLANNED);
}

TEST_CASE(pipeline, wrong_order_is_seen) {
    PassRow rows[MOST];
    int n = copy_rows(rows);
    int a = index_of(rows, "loss"), b = index_of(rows, "programs");
    rows[a] = pipeline[b];
    rows[b] = pipeline[a];
    expect_defect(rows, n, "loss must run before programs: every program");
    copy_rows(rows);
    a = index_of(rows, "schedule"), b = index_of(rows, "memplan");
    rows[a] = pipeline[b];
    rows[b] = pipeline[a];
    expect_defect(rows, n, "schedule (fused) comes after memplan (planned)");
    copy_rows(rows);
    a = index_of(rows, "autodiff");
    memmove(rows + a, rows + a + 1, (size_t)(n - a - 1) * sizeof *rows);
    expect_defect(rows, n - 1, "autodiff must run before optimizer");
    copy_rows(rows);
    rows[n - 1].side = PASS_COMMON;
    expect_defect(rows, n, "memplan (planned) comes after schedule");
}

/* ---- what is asked for --------------------------------------------------- */

static void expect_refused(const char *passes, const char *text, Status status,
                           const char *want) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o = options_of(a, FLAGS("--loss", "mse"));
    Module *m = parsed(a, text);
    CHECK_EQ_INT(run_passes(m, &d, &o, passes, false), status);
    if (CHECK_MSG(d.text.data, "%s: no message", passes))
        CHECK_HAS(d.text.data, want);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(pipeline, only_the_order_of_the_pipeline_runs) {
    static const char relu[] = "graph g(%x: f32[4]) {\n"
                               "  %y = relu %x\n  return %y\n}";
    expect_refused("fuse,simplify", relu, ERR_USAGE,
                   "'simplify' does not run after 'fuse'");
    expect_refused("autodiff,autodiff", relu, ERR_USAGE,
                   "'autodiff' does not run after 'autodiff'");
    expect_refused("fuse,nosuch", relu, ERR_USAGE, "no pass named 'nosuch'");
    expect_refused("fuse,,", relu, ERR_USAGE, "no pass named ''");
}

TEST_CASE(pipeline, a_pass_refuses_ir_of_another_stage) {
    static const char whole[] = "graph g(%x: f32[4]) {\n"
                                "  %y = softmax %x\n  return %y\n}";
    static const char grouped[] = "graph g(%x: f32[4]) {\n"
                                  "  group point { %y = relu %x }\n"
                                  "  return %y\n}";
    expect_refused("fuse", whole, ERR_USAGE,
                   "'fuse' reads IR of stage primitive, which pass 'canon'");
    expect_refused("simplify,cse,fuse", whole, ERR_USAGE,
                   "%y = softmax: is inlined by now");
    expect_refused("memplan", whole, ERR_USAGE,
                   "'memplan' reads IR of stage fused, which pass 'fuse'");
    expect_refused("dce", grouped, ERR_USAGE, "it is in groups already");
    static const char dead[] = "graph g(%x: f32[4]) {\n"
                               "  %y = relu %x\n  %z = exp %x\n"
                               "  return %y\n}";
    expect_refused("fuse", dead, ERR_USAGE, "dead nodes, which pass 'dce'");
    static const char call[] =
        "graph g(%p: f32[4], %g: f32[4], %rate: f32[], %ok: bool[]) {\n"
        "  %q, %b = sgd %p, %g, %ok, %rate : f32[4], f32[4]\n  return %q\n}";
    expect_refused("fuse", call, ERR_USAGE,
                   "a whole function, which pass 'inline'");
    static const char split[] = "graph g(%x: f32[4]) on cpu {\n"
                                "  %y = relu %x\n  return %y\n}\n"
                                "graph h(%x: f32[4]) {\n  return %x\n}";
    expect_refused("fuse", split, ERR_USAGE, "only some graphs are a target's");
}

/* A plan has at most 2^50 bytes, and 256 of these values have exactly as
   many. */
TEST_CASE(pipeline, memory_that_no_machine_has_is_refused) {
    StrBuf sb = {0};
    sb_puts(&sb, "graph predict(%v0: f32[1048576,1048576]) on cpu {\n");
    for (int i = 1; i <= 257; i++)
        sb_printf(
            &sb, "  group point { %%v%d = exp %%v%d : f32[1048576,1048576] }\n",
            i, i - 1);
    sb_puts(&sb, "  group row { %s = reduce_sum %v257 {axes=[1]} : "
                 "f32[1048576,1] }\n  return %s\n}");
    expect_refused("memplan", sb.data, ERR_USER,
                   "program 'predict' stores more than 1125899906842624 bytes");
    sb_free(&sb);
}

/* A text may contain any name; names made by the compiler must not collide
   with them. */
TEST_CASE(pipeline, names_of_the_compiler_are_refused) {
    static const char *const texts[][2] = {
        {"graph forward(%x: f32[4]) {\n  param %w: f32[4]\n"
         "  %y = mul %x, %w\n  return ampc.loss=%y\n}",
         "output 'ampc.loss' of graph forward"},
        {"graph forward(%x: f32[4]) {\n  param %w: f32[4]\n"
         "  %y = mul %x, %w\n  return %y\n}\n"
         "graph train(%x: f32[4]) {\n  return %x\n}",
         "graph train: a file with a graph forward"},
        {"graph predict(%x: f32[4]) {\n  shadow %s: bf16[4]\n"
         "  return %x\n}",
         "shadow 's' is not a copy of a variable; the copy of 'w' is called "
         "'ampc.bf16/w'"},
        {"graph train(%x: f32[4]) {\n  return %x\n}",
         "graph train has no output ampc.loss"},
        {"graph train(%x: f32[]) {\n  param %w: bf16[]\n"
         "  %y = mul %x, %w : f32[]\n  return ampc.loss=%y\n}",
         "parameter 'w' is bf16"},
        {"graph train(%x: f32[4]) {\n  param %w: f32[4]\n"
         "  %y = mul %x, %w\n  return ampc.loss=%y\n}",
         "graph train: the loss is not f32[]"},
        {"graph update(%x: f32[4]) {\n  return %x\n}",
         "the optimizer makes the program of that name"},
        {"graph train(%x: f32[]) {\n  param %w: f32[]\n"
         "  %y = mul %x, %w\n  return ampc.loss=%y, ampc.grad/w=%x\n}",
         "graph train is already differentiated"},
        {"graph train(%x: f32[]) {\n  param %w: f32[]\n"
         "  %y = mul %x, %w : f32[] !backward\n  return ampc.loss=%y\n}",
         "graph train is already differentiated"},
        {"graph \"train:d\"(%x: f32[4]) {\n  return %x\n}",
         "unknown objective 'd'"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_refused("loss,programs,autodiff,optimizer", texts[i][0],
                       ERR_USER, texts[i][1]);
}

/* ---- several objectives -------------------------------------------------- */

static void add_objective(Options *o, const char *name, const char *params,
                          const char *output, const char *optimizer) {
    Objective j = o->objectives.data[0];
    j.name = intern(name);
    j.loss = loss_default(LOSS_FN);
    j.loss.fn = fn_loss("mse");
    vec_push(o->arena, &j.loss.outputs, intern(output));
    j.optimizer = optimizer_default(o->arena, optimizer_find(NULL, optimizer));
    vec_push(o->arena, &j.params, intern(params));
    vec_push(o->arena, &o->objectives, j);
}

static bool writes(const Module *m, const char *graph, const char *var) {
    const Graph *g = module_graph(m, graph);
    REQUIRE(g != NULL);
    for (int i = 0; i < g->writes.len; i++)
        if (!strcmp(value_var(g, g->writes.data[i].var)->name, var))
            return true;
    return false;
}

/* Each has its own programs, counters, finite flag and state; the other's
   parameters are read and unchanged. */
TEST_CASE(pipeline, objectives_train_what_is_theirs) {
    static const char text[] = "graph forward(%x: f32[8,4]) {\n"
                               "  param %g.w: f32[4,4], %d.w: f32[4,3]\n"
                               "  %made = matmul %x, %g.w\n"
                               "  %seen = matmul %made, %d.w\n"
                               "  return %made, %seen\n}";
    Arena *a = arena_new();
    Diag d = {0};
    Options o = options_of(a, FLAGS("--precision", "bf16"));
    Module *m = parsed(a, text);
    add_objective(&o, "gen", "g.*", "made", "adamw");
    add_objective(&o, "dis", "d.*", "seen", "sgd");
    o.objectives.data++, o.objectives.len--; /* without the unnamed one */
    if (run_pipeline(m, &d, &o, STAGE_PRIMITIVE, false) != OK)
        FAIL("%s", d.text.data);
    CHECK(writes(m, "train:gen", "g.w") && writes(m, "train:dis", "d.w"));
    CHECK(!writes(m, "train:gen", "d.w") && !writes(m, "train:dis", "g.w"));
    CHECK(writes(m, "train:gen", "ampc.bf16/g.w"));
    CHECK(writes(m, "train:gen", "ampc.opt/g.w/exp_avg"));
    CHECK(!writes(m, "train:gen", "ampc.step:dis"));
    CHECK(writes(m, "update:dis", "ampc.skipped:dis"));
    CHECK(writes(m, "micro:dis", "ampc.grad/d.w"));
    CHECK(module_find_var(m, "ampc.opt/d.w/exp_avg") < 0);
    const Graph *g = module_graph(m, "train:dis"), *e = module_graph(m, "eval");
    REQUIRE(g && e);
    CHECK(is_value(graph_output(g, "ampc.applied:dis")));
    CHECK(is_value(graph_output(e, "ampc.loss_num:gen")));
    CHECK(is_value(graph_output(e, "ampc.loss_num:dis")));
    CHECK(module_graph(m, "predict") && module_graph(m, "refresh"));
    arena_free(a);
}

static char *text_after(const char *text, Stage first, bool common) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o = options_of(a, FLAGS("--loss", "mse"));
    Module *m = parsed(a, text);
    StrBuf sb = {0};
    if (run_pipeline(m, &d, &o, first, false) != OK ||
        (common && run_common(m, &d, &o, false) != OK) ||
        run_pipeline(m, &d, &o, STAGE_PLANNED, false) != OK)
        FAIL("%s", d.text.data);
    print_module(m, &sb);
    arena_free(a);
    return sb.data;
}

/* The pipeline, stopped anywhere, continues after the last pass that ran. */
TEST_CASE(pipeline, in_parts_is_the_same) {
    static const char text[] = "graph forward(%x: f32[8,4]) {\n"
                               "  param %w: f32[4,6]\n"
                               "  %y = matmul %x, %w\n"
                               "  %p = tanh %y\n"
                               "  return %p\n}";
    char *whole = text_after(text, STAGE_PLANNED, false);
    for (int stage = STAGE_TYPED; stage <= STAGE_PLANNED; stage++)
        for (int common = 0; common < 2; common++) {
            if (common && stage > STAGE_PRIMITIVE) continue;
            char *parts = text_after(text, (Stage)stage, common);
            CHECK_STR(parts, whole);
            free(parts);
        }
    free(whole);
}

/* Every list that leaves passes out either runs or is refused: none ends the
   process. */
TEST_CASE(pipeline, any_part_of_it_runs_or_is_refused) {
    static const char text[] = "graph forward(%x: f32[8,4]) {\n"
                               "  param %w: f32[4,3]\n"
                               "  %y = matmul %x, %w\n"
                               "  %p = softmax %y\n"
                               "  return %p\n}";
    for (int first = 0; first < pipeline_length; first++)
        for (int last = first; last < pipeline_length; last++) {
            Arena *a = arena_new();
            Diag d = {0};
            Options o = options_of(a, FLAGS("--loss", "mse"));
            Module *m = parsed(a, text);
            StrBuf names = {0};
            for (int i = first; i <= last; i++)
                sb_printf(&names, "%s%s", i > first ? "," : "",
                          pipeline[i].name);
            Status s = run_passes(m, &d, &o, names.data, false);
            CHECK_MSG(s == OK || d.errors > 0, "%s", names.data);
            sb_free(&names);
            sb_free(&d.text);
            arena_free(a);
        }
}

/* A frozen table that products read rounded is stored rounded, unless a
   program returns it unchanged. */
/* Files get the bits that were loaded, although products read a 16-bit copy. */
TEST_CASE(pipeline, frozen_weights_stay_wide) {
    static const char *const results[] = {"%y", "%y, %t"};
    for (int i = 0; i < 2; i++) {
        char text[400];
        Arena *a = arena_new();
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[8,64]) {\n"
                 "  frozen %%t: f32[64,32] = normal(1, 0.5)\n"
                 "  param %%w: f32[32,4] = normal(2, 0.5)\n"
                 "  %%h = matmul %%x, %%t\n  %%y = matmul %%h, %%w\n"
                 "  return %s\n}\n",
                 results[i]);
        Module *m = parsed(a, text);
        staged(a, m, STAGE_PLANNED,
               FLAGS("--precision", "bf16", "--loss", "mse:y", "--target",
                     "cpu:x86-64-v4"));
        int wide = 0, copies = 0;
        for (int k = 0; k < m->vars.len; k++) {
            const Var *v = &m->vars.data[k];
            DType d = type_get(v->type)->dtype;
            wide += v->kind == VAR_FROZEN && d == DT_F32;
            copies += !strcmp(v->name, "ampc.bf16/t") && d == DT_BF16;
        }
        CHECK_EQ_INT(wide, 1);
        CHECK_EQ_INT(copies, 1);
        arena_free(a);
    }
}
