/* SPDX-License-Identifier: Apache-2.0 */
/* emit_cuda_test.c: plan steps for a GPU; needs no NVRTC. */
#include "codegen/cuda/cuda.h"
#include "frontend/cli/options_text.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/harness.h"

#include <string.h>

typedef struct Emitted {
    Arena *a;
    Diag d;
    Options opt;
    PlanSource src;
} Emitted;

static void set(Emitted *e, const char *name, const char *value) {
    bool used;
    if (options_set(&e->opt, &e->d, name, value, &used) != OK)
        FAIL("%s", e->d.text.data);
}

/* precision NULL: fp32, with a step for every node */
static const CudaSource *emit(Emitted *e, const char *text, const char *loss,
                              const char *precision) {
    EmitInput in = {.path = "m.so", .model_path = "m.amp"};
    Module *m;
    *e = (Emitted){.a = arena_new()};
    options_init(&e->opt, e->a);
    set(e, "--loss", loss);
    set(e, "--precision", precision ? precision : "fp32");
    if (!precision) set(e, "--no-fuse", NULL);
    set(e, "--target", "cuda:sm_80,cuda:ptx,cuda:sm_90,cuda:sm_80");
    if (parse_module(e->a, &e->d, "m.amp", text, strlen(text), &m) != OK ||
        run_pipeline(m, &e->d, &e->opt, STAGE_PLANNED, false) != OK ||
        emit_plan(m, &e->opt, &e->d, &in, e->a, &e->src) != OK)
        FAIL("%s", e->d.text.data);
    REQUIRE(e->src.cuda != NULL);
    return e->src.cuda;
}

static void end(Emitted *e) {
    sb_free(&e->src.text);
    sb_free(&e->d.text);
    arena_free(e->a);
}

/* The first group's step of that kind. */
static const PlanStep *first_step(const Emitted *e, PlanStepKind kind) {
    for (int i = 0; i < e->src.groups.len; i++) {
        const EmitGroup *g = &e->src.groups.data[i];
        if (!g->idle && g->step.kind == kind) return &g->step;
    }
    return NULL;
}

/* ---- products ------------------------------------------------------------ */

/* `body` computes %z from %x and %w. */
static void check_fused(const char *params, const char *body, const char *prec,
                        PlanProduct fused) {
    char text[600];
    Emitted e;
    snprintf(text, sizeof text,
             "graph forward(%%x: f32[8,6]) {\n  param %s\n%s  return %%z\n}\n",
             params, body);
    emit(&e, text, "none", prec);
    const PlanStep *s = first_step(&e, PLAN_PRODUCT);
    if (!s) FAIL("no product:\n%s", text);
    CHECK_MSG(s->fn == fused, "fused %u:\n%s", s->fn, text);
    CHECK_MSG(s->nref == 3 + (fused != PLAN_PRODUCT_PLAIN), "%s", text);
    end(&e);
}

TEST_CASE(emit_cuda, epilogues_that_round_alike_are_fused) {
    static const char w[] = "%w: f32[6,4]";
    static const char wb[] = "%w: f32[6,4], %b: f32[4]";
    static const char ws[] = "%w: f32[6,4], %s: f32[]";
    static const char wr[] = "%w: f32[6,4], %r: f32[8,4]";
    static const char product[] = "  %z = matmul %x, %w\n";
    static const char bias[] = "  %h = matmul %x, %w\n  %z = add %h, %b\n";
    static const char bias2[] = "  %h = matmul %x, %w\n  %z = add %b, %h\n";
    static const char rest[] = "  %h = matmul %x, %w\n  %z = add %h, %r\n";
    static const char rest2[] = "  %h = matmul %x, %w\n  %z = add %r, %h\n";
    static const char scale[] = "  %h = matmul %x, %w\n  %z = mul %h, %s\n";
    check_fused(w, product, "fp32", PLAN_PRODUCT_PLAIN);
    check_fused(wb, bias, "fp32", PLAN_PRODUCT_BIAS);
    check_fused(wb, bias2, "fp32", PLAN_PRODUCT_BIAS);
    check_fused(ws, scale, "fp32", PLAN_PRODUCT_SCALE);
    check_fused(wr, rest, "fp32", PLAN_PRODUCT_ADD);
    check_fused(wr, rest2, "bf16", PLAN_PRODUCT_ADD);
    /* an output is f32, and nothing is rounded before it */
    check_fused(wb, bias, "bf16", PLAN_PRODUCT_BIAS);
    /* the sum is rounded once, and its bias has 16 bits, too */
    check_fused("%w: f32[6,4], %b: f32[4], %v: f32[4,2]",
                "  %h = matmul %x, %w\n  %i = add %h, %b\n"
                "  %z = matmul %i, %v\n",
                "bf16", PLAN_PRODUCT_BIAS);
    /* the next op is a separate step */
    check_fused(wb, "  %h = matmul %x, %w\n  %i = add %h, %b\n  %z = relu %i\n",
                "fp32", PLAN_PRODUCT_BIAS);
    check_fused(ws, "  %h = matmul %x, %w\n  %i = mul %h, %s\n  %z = relu %i\n",
                "fp32", PLAN_PRODUCT_SCALE);
}

/* cuBLASLt documents nothing about relu and NaN. */
TEST_CASE(emit_cuda, other_work_is_in_other_steps) {
    check_fused("%w: f32[6,4]", "  %h = matmul %x, %w\n  %z = relu %h\n",
                "fp32", PLAN_PRODUCT_PLAIN);
    check_fused("%w: f32[6,4], %r: f32[8,4]",
                "  %h = matmul %x, %w\n  %i = add %h, %r\n  %z = relu %i\n",
                "fp32", PLAN_PRODUCT_PLAIN);
    check_fused("%w: f32[6,4], %b: f32[8,1]",
                "  %h = matmul %x, %w\n  %z = add %h, %b\n", "fp32",
                PLAN_PRODUCT_PLAIN);
    check_fused("%w: f32[6,4], %b: f32[4]",
                "  %h = matmul %x, %w\n  %z = sub %h, %b\n", "fp32",
                PLAN_PRODUCT_PLAIN);
    check_fused("%w: f32[6,4], %b: f32[4]",
                "  %h = matmul %x, %w\n  %z = mul %h, %b\n", "fp32",
                PLAN_PRODUCT_PLAIN);
}

/* cuBLASLt accepts 65,535 products in a batch; for more, our own kernel is
   used. */
TEST_CASE(emit_cuda, batches_of_products_have_a_limit) {
    for (int batch = 65535; batch <= 65536; batch++) {
        char text[300];
        Emitted e;
        snprintf(text, sizeof text,
                 "graph forward(%%x: f32[%d,2,3], %%y: f32[%d,3,4]) {\n"
                 "  %%z = matmul %%x, %%y\n  return %%z\n}\n",
                 batch, batch);
        emit(&e, text, "none", "fp32");
        CHECK_EQ_INT(first_step(&e, PLAN_PRODUCT) != NULL, batch == 65535);
        CHECK_EQ_INT(first_step(&e, PLAN_LAUNCH) != NULL, batch != 65535);
        end(&e);
    }
}

/* ---- launches ------------------------------------------------------------ */

static const char two_layers[] =
    "graph forward(%x: f32[8,6]) {\n"
    "  param %w: f32[6,4] = 0.5, %b: f32[4] = 0\n"
    "  param %v: f32[4,3] = 0.25, %c: f32[3] = 0\n"
    "  %h = matmul %x, %w\n  %i = add %h, %b\n  %r = relu %i\n"
    "  %j = matmul %r, %v\n  %z = add %j, %c\n  return %z\n}\n";

TEST_CASE(emit_cuda, updates_share_a_launch) {
    Emitted e;
    const CudaSource *c = emit(&e, two_layers, "cross_entropy", "fp32");
    const PlanStep *s = first_step(&e, PLAN_MANY);
    REQUIRE(s != NULL);
    CHECK(s->npar >= 4 && s->nref % s->npar == 0);
    int parts = 1;
    for (int i = 0; i < e.src.groups.len; i++) {
        const EmitGroup *g = &e.src.groups.data[i];
        parts += g->part && g->step.par0 == s->par0;
    }
    CHECK_EQ_INT(parts, s->npar);
    CHECK_HAS(c->kernels.data[s->fn].name, "_many");
    end(&e);
}

/* All gradients, whatever their shapes: weights of 256 rows or fewer, biases
   of one row, and the sums of rows. */
TEST_CASE(emit_cuda, norms_are_one_launch) {
    static const char text[] =
        "graph forward(%x: f32[8,600]) {\n"
        "  param %w: f32[600,500] = 0.5, %b: f32[500] = 0\n"
        "  param %v: f32[500,33] = 0.25, %c: f32[33] = 0\n"
        "  %h = matmul %x, %w\n  %i = add %h, %b\n  %r = relu %i\n"
        "  %j = matmul %r, %v\n  %z = add %j, %c\n  return %z\n}\n";
    for (int scaled = 0; scaled < 2; scaled++) {
        Emitted e;
        emit(&e, text, "cross_entropy", scaled ? "fp16" : "bf16");
        uint32_t tensors = 0, launches = 0, behind = 0;
        for (int i = 0; i < e.src.steps.len; i++) {
            const EmitStep *s = &e.src.steps.data[i];
            if (!strstr(s->step.name, "grad.reduce_sumsq") ||
                s->g->program != PROGRAM_TRAIN)
                continue;
            CHECK_EQ_INT(s->step.kind, PLAN_ROWS);
            tensors += s->step.npar / 2;
            launches++;
            for (int k = 0; k < s->n; k++) behind += s->s[k].behind != NULL;
            CHECK_EQ_INT(s->step.second, 1);
        }
        CHECK_EQ_INT(launches, 1);
        CHECK_EQ_INT(tensors, 4);
        CHECK_EQ_INT(behind, 2);
        end(&e);
    }
}

/* A micro-step adds to the gradients of weights as it multiplies: beta = 1. */
TEST_CASE(emit_cuda, products_add_to_gradients) {
    Emitted e;
    int sums = 0;
    emit(&e, two_layers, "cross_entropy", "bf16");
    for (int i = 0; i < e.src.steps.len; i++) {
        const EmitStep *s = &e.src.steps.data[i];
        if (s->g->program != PROGRAM_MICRO || s->step.kind != PLAN_PRODUCT ||
            s->step.fn != PLAN_PRODUCT_ADD)
            continue;
        CHECK_HAS(s->step.name, "ampc.grad/");
        sums++;
    }
    CHECK_EQ_INT(sums, 2); /* of %w and %v */
    end(&e);
}

/* A chain cannot share a launch: each step reads the result of the one before.
 */
TEST_CASE(emit_cuda, dependent_steps_do_not) {
    static const char chain[] =
        "graph forward(%x: f32[8]) {\n  param %w: f32[8] = 1\n"
        "  %a = add %x, %w\n  %b = add %a, %w\n  %z = add %b, %w\n"
        "  return %z\n}\n";
    Emitted e;
    emit(&e, chain, "none", NULL);
    CHECK(!first_step(&e, PLAN_MANY));
    end(&e);
}

/* ---- pointers ------------------------------------------------------------ */

/* The head of the kernel whose comment has that text. */
static const char *head_of(const CudaSource *c, const char *comment) {
    for (int i = 0; i < c->units.len; i++) {
        const char *at = strstr(c->units.data[i].text, comment);
        if (at) return strstr(at, "extern \"C\"");
    }
    FAIL("no %s", comment);
}

static bool head_has(const char *head, const char *what) {
    const char *at = strstr(head, what);
    return at && at < strchr(head, '{');
}

/* True if the first launch of a kernel whose comment has that text declares
   its operands disjoint. */
static bool is_restricted(const char *text, const char *comment) {
    Emitted e;
    const CudaSource *c = emit(&e, text, "none", NULL);
    const char *head = head_of(c, comment);
    CHECK(!strstr(head, "_many") || strstr(head, "_many") > strchr(head, '{'));
    bool all = head_has(head, "const float *__restrict__ b0") &&
               head_has(head, " float *__restrict__ b1");
    CHECK_MSG(all || !head_has(head, "__restrict__"), "%.200s", head);
    end(&e);
    return all;
}

/* .. and false if one of two launches of the kernel overwrites its operand. */
TEST_CASE(emit_cuda, what_lies_apart_is_restricted) {
#define BETWEEN(lines)                                                         \
    "graph forward(%x: f32[70,8], %y: f32[8,70]) {\n"                          \
    "  %a = transpose %x {perm=[1,0]}\n" lines                                 \
    "  %z = transpose %b {perm=[1,0]}\n"
    static const char apart[] =
        BETWEEN("  %b = neg %a\n") "  %s = sub %a, %b\n  return %z, %s\n}\n";
    static const char over[] = BETWEEN("  %b = neg %a\n") "  return %z\n}\n";
    static const char first_over[] = BETWEEN(
        "  %c = neg %a\n  %d = exp %c\n  %b = neg %d\n") "  %s = sub %d, %b\n  "
                                                         "return %z, %s\n}\n";
    static const char second_over[] = BETWEEN(
        "  %c = neg %a\n  %d = sub %a, %c\n  %b = neg %d\n") "  return %z\n}\n";
#undef BETWEEN
    CHECK(is_restricted(apart, "= neg"));
    CHECK(is_restricted(over, "= transpose"));
    CHECK(!is_restricted(over, "= neg"));
    CHECK(!is_restricted(first_over, "= neg"));
    CHECK(!is_restricted(second_over, "= neg"));
}

/* A result never overwrites an operand of the routine, but may overwrite an
   operand of its epilogue. */
TEST_CASE(emit_cuda, what_routines_read_is_restricted) {
    static const char conv[] =
        "graph forward(%x: f32[2,3,8,8], %r: f32[2,5,6,6]) {\n"
        "  param %w: f32[5,3,3,3]\n"
        "  %y = conv %x, %w\n  %z = add %y, %r\n  return %z\n}\n";
    Emitted e;
    const CudaSource *c = emit(&e, conv, "none", "fp32");
    const char *head = head_of(c, "= conv");
    CHECK(head_has(head, "const float *__restrict__ x, "
                         "const float *__restrict__ w, void *,"));
    CHECK(head_has(head, "const float *b0, float *b1)"));
    end(&e);
}

TEST_CASE(emit_cuda, architectures_newest_first_ptx_last) {
    static const char *const want[] = {"sm_90", "sm_80", "compute_80"};
    Emitted e;
    const CudaSource *c = emit(&e, two_layers, "cross_entropy", "fp32");
    CHECK_EQ_INT(c->archs.len, 3);
    for (int i = 0; i < c->archs.len; i++) CHECK_STR(c->archs.data[i], want[i]);
    end(&e);
}

static bool defines(const char *text, const char *kernel) {
    char word[64];
    snprintf(word, sizeof word, "%s(", kernel);
    for (const char *p = text; (p = strstr(p, word)); p++)
        if (p > text && (p[-1] == ' ' || p[-1] == '\n')) return true;
    return false;
}

/* Each kernel of the table is defined in its unit, and only there; every
   unit has a kernel. */
static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); n++) at++;
    return n;
}

/* Compiling is expensive: every kernel is launched by some step. */
TEST_CASE(emit_cuda, kernels_are_in_their_units) {
    Emitted e;
    const CudaSource *c = emit(&e, two_layers, "cross_entropy", "bf16");
    CHECK(c->units.len >= 2);
    for (int u = 0, n; u < c->units.len; u++) {
        for (int i = n = 0; i < c->kernels.len; i++)
            n += (int)c->kernels.data[i].unit == u;
        CHECK_MSG(n > 0, "unit %d is empty", u);
        CHECK_EQ_INT(count(c->units.data[u].text, "__global__"), n);
    }
    for (int i = 0; i < c->kernels.len; i++)
        for (int u = 0; u < c->units.len; u++) {
            const PlanCudaKernel *k = &c->kernels.data[i];
            bool found = defines(c->units.data[u].text, k->name);
            CHECK_MSG(found == ((int)k->unit == u), "%s", k->name);
        }
    end(&e);
}
