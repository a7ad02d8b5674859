/* SPDX-License-Identifier: Apache-2.0 */
/* decisions_test.c: the compiler's decisions for whole models, in numbers that
   tests/decisions.txt records: launches by kind of kernel, casts, bytes,
   instructions, products and arenas of each program.

   A wrong decision that costs time or memory alone leaves all results as they
   are; here it changes a number. A change of the compiler that means to change
   them records them anew, and its commit shows what became of each model:
     bazel run //tests/codegen:decisions_test -- --bless */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/cost/cost.h"
#include "codegen/cuda/cuda.h"
#include "frontend/cli/options_text.h"
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "passes/passes.h"
#include "tests/harness.h"
#include "tests/support/random_model.h"

static const char record[] = "tests/decisions.txt";

/* A model of models/, or models drawn with seeds 1 to DRAWN, and options. */
typedef struct Row {
    const char *name, *model, *options;
} Row;

enum { DRAWN = 8 };

static const Row rows[] = {
    {"mlp_fp16", "mlp", "--dim B=256 --precision fp16 --target cpu,cuda:sm_80"},
    {"mlp_ranks", "mlp", "--dim B=64 --shard-optimizer --comm-bucket 100000"},
    {"cnn_bf16", "cnn", "--dim B=32 --target cpu,cuda:sm_90"},
    {"cnn_pytorch", "cnn",
     "--dim B=32 --placement pytorch --target cuda:sm_90"},
    {"cnn_O2", "cnn", "--dim B=32 --precision O2 --target cpu,cuda:sm_75"},
    {"cnn_f8", "cnn", "--dim B=32 --precision f8"},
    {"resnet_fp32", "resnet18",
     "--dim B=16 --precision fp32 --target cpu,cuda:sm_90"},
    {"resnet_bf16", "resnet18", "--dim B=16 --target cpu,cuda:sm_90"},
    {"resnet_frozen", "resnet18",
     "--dim B=16 --batchnorm frozen --freeze *layer1*"},
    {"unet_bf16", "unet", "--dim B=4 --target cpu,cuda:sm_90"},
    {"unet_kept", "unet", "--dim B=4 --keep f8 --remat 9000000"},
    {"vit_bf16", "vit", "--dim B=16 --dim L=3 --target cpu,cuda:sm_90"},
    {"vit_residuals", "vit",
     "--dim B=16 --dim L=3 --placement exact,residuals=20,head=0"},
    {"vit_inf", "vit", "--dim B=16 --dim L=3 --placement exact,residuals=inf"},
    {"gpt_bf16", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --target cpu,cuda:sm_90"},
    {"gpt_fp16", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --dim DROP=10 "
     "--precision fp16 --target cpu,cuda:sm_90"},
    {"gpt_f8", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --precision f8 --target "
     "cuda:sm_90"},
    {"gpt_f8_delayed", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --precision f8 --f8-scales "
     "delayed --target cuda:sm_90"},
    {"gpt_f8_block", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --precision f8 --f8-scales "
     "block --target cuda:sm_100"},
    {"gpt_budget", "gpt",
     "--dim B=2 --dim L=3 --dim VOCAB=4096 --remat 60000000"},
    {"gpt_rows", "gpt", "--dim B=2 --dim L=2 --dim VOCAB=4096 --logit-rows 4"},
    {"gpt_backward", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --clip-previous "
     "--optimizer-in-backward --gradient-dtype bf16 --state-dtype int8 "
     "--masters none"},
    {"gpt_lora", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --frozen-dtype nf4 "
     "--lora *attn*.weight,rank=4 --target cpu,cuda:sm_90"},
    {"gpt_accumulate", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --accumulate 4"},
    {"bert_bf16", "bert",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --target cpu,cuda:sm_90"},
    {"bert_fp32", "bert",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --precision fp32 "
     "--target cpu,cuda:sm_80"},
    {"llama_bf16", "llama", "--dim B=1 --dim L=2 --target cpu,cuda:sm_90"},
    {"wgan_bf16", "wgan_gp", "--dim B=64 --target cpu,cuda:sm_90"},
    {"byol", "recipes/byol", "--target cpu,cuda:sm_90"},
    {"contrastive", "recipes/contrastive", "--target cpu,cuda:sm_90"},
    {"crnn", "recipes/crnn", "--target cpu,cuda:sm_90"},
    {"ddpm", "recipes/ddpm", "--target cpu,cuda:sm_90"},
    {"detect", "recipes/detect", "--target cpu,cuda:sm_90"},
    {"distill", "recipes/distill", "--target cpu,cuda:sm_90"},
    {"dpo", "recipes/dpo", "--target cpu,cuda:sm_90"},
    {"flow", "recipes/flow", "--target cpu,cuda:sm_90"},
    {"gan", "recipes/gan", "--target cpu,cuda:sm_90"},
    {"graph", "recipes/graph", "--target cpu,cuda:sm_90"},
    {"lora", "recipes/lora", "--target cpu,cuda:sm_90"},
    {"pinn", "recipes/pinn", "--target cpu,cuda:sm_90"},
    {"ppo", "recipes/ppo", "--target cpu,cuda:sm_90"},
    {"prefix", "recipes/prefix", "--target cpu,cuda:sm_90"},
    {"qat", "recipes/qat", "--target cpu,cuda:sm_90"},
    {"segment", "recipes/segment", "--target cpu,cuda:sm_90"},
    {"series", "recipes/series", "--target cpu,cuda:sm_90"},
    {"vae", "recipes/vae", "--target cpu,cuda:sm_90"},
    {"gpt_tf32", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --precision fp32 --matmul-precision "
     "high --target cuda:sm_90"},
    {"gpt_ranks", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --clip-norm 1 --comm-dtype bf16 "
     "--shard-optimizer --target cpu,cuda:sm_90"},
    {"bert_sizes", "bert",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --batch-sizes 1,4"},
    {"gpt_muon", "gpt",
     "--dim B=2 --dim L=2 --dim VOCAB=4096 --optimizer muon --target "
     "cpu,cuda:sm_90"},
    {"mlp_looked", "mlp", "--dim B=64 --debug-nonfinite --precision fp16"},
    {"unet_budget", "unet", "--dim B=4 --remat 11000000 --target cuda:sm_90"},
    {"resnet_no_remat", "resnet18",
     "--dim B=8 --remat none --target cpu,cuda:sm_90"},
    {"resnet_budget", "resnet18",
     "--dim B=64 --remat 100000000 --target cuda:sm_90"},
    {"drawn_fp32", NULL, "--precision fp32 --target cpu,cuda:sm_90"},
    {"drawn_bf16", NULL, "--precision bf16 --target cpu,cuda:sm_90"},
    {"drawn_fp16", NULL, "--precision fp16 --target cpu,cuda:sm_90"},
    {"drawn_pytorch", NULL, "--placement pytorch --target cpu,cuda:sm_90"},
    {"drawn_remat", NULL, "--remat none --target cpu,cuda:sm_90"},
    {"drawn_sam", NULL, "--wrapper sam --clip-norm 1 --ema 0.99"},
};

/* ---- what a program costs ------------------------------------------------ */

typedef struct Kind {
    char name[16];
    int n;
} Kind;

/* Sums over the steps of a program, and over the models of a row. */
typedef struct Sums {
    char target[8], program[16];
    int launches, casts, nkind;
    double bytes, insts, mma;
    int64_t arena;
    Kind kind[40];
} Sums;

typedef struct Found {
    Sums of[40];
    int n;
} Found;

static Sums *sums_of(Found *f, const char *target, const char *program) {
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->of[i].target, target) &&
            !strcmp(f->of[i].program, program))
            return &f->of[i];
    REQUIRE(f->n < (int)(sizeof f->of / sizeof *f->of));
    Sums *s = &f->of[f->n++];
    *s = (Sums){0};
    snprintf(s->target, sizeof s->target, "%s", target);
    snprintf(s->program, sizeof s->program, "%s", program);
    return s;
}

static void add_kind(Sums *s, const char *name) {
    int i = 0;
    while (i < s->nkind && strcmp(s->kind[i].name, name)) i++;
    REQUIRE(i < (int)(sizeof s->kind / sizeof *s->kind));
    if (i == s->nkind)
        snprintf(s->kind[s->nkind++].name, sizeof s->kind[i].name, "%s", name);
    s->kind[i].n++;
}

static void add_graph(Found *f, const Graph *g) {
    if (g->target != TARGET_CPU && g->target != TARGET_CUDA) return;
    Sums *s = sums_of(f, g->target == TARGET_CUDA ? "cuda" : "cpu", g->name);
    s->arena += g->arena_bytes;
    for (int i = 0; i < g->order.len; i++)
        s->casts += node_get(g, g->order.data[i])->op == OP_CAST;
}

static void add_plan(Found *f, const Module *m, const PlanSource *src) {
    StrBuf cost = {0};
    StepCost c;
    cost_put(src, &cost);
    for (const char *at = cost.data; cost_next(&at, &c);) {
        if (c.since < 0) continue; /* of older GPUs alone */
        Sums *s = sums_of(f, c.target, c.program);
        s->launches += (int)c.launches;
        s->bytes += c.bytes;
        s->insts += c.insts;
        s->mma += c.mma;
        add_kind(s, c.how);
    }
    sb_free(&cost);
    for (int i = 0; i < m->graphs.len; i++) add_graph(f, m->graphs.data[i]);
}

/* ---- compiling ----------------------------------------------------------- */

static void set_options(Options *o, Diag *d, const char *words) {
    char *text = arena_dup(o->arena, words, strlen(words) + 1); /* o keeps it */
    for (char *w = strtok(text, " "); w;) {
        char *value = strtok(NULL, " ");
        bool used;
        if (options_set(o, d, w, value, &used) != OK)
            FAIL("%s %s: %s", w, value ? value : "", d->text.data);
        w = used ? strtok(NULL, " ") : value;
    }
}

static void add_model(Found *f, const Row *row, const char *path,
                      const char *text, size_t n) {
    Arena *a = arena_new();
    Diag d = {0};
    Options opt;
    Module *blocks, *m;
    PlanSource src = {0};
    EmitInput in = {.path = "m.so", .model_path = path};
    options_init(&opt, a);
    text_blocks(a, path, text, n, &blocks);
    for (int i = 0; i < blocks->settings.len; i++)
        REQUIRE(options_set_line(&opt, &d, &blocks->settings.data[i]) == OK);
    options_second_source(&opt);
    set_options(&opt, &d, row->options);
    if (import_amp(a, &d, path, text, n, &opt, false, &m) != OK ||
        run_pipeline(m, &d, &opt, STAGE_PLANNED, false) != OK ||
        emit_plan(m, &opt, &d, &in, a, &src) != OK)
        FAIL("%s %s: %s", path, row->options, d.text.data);
    add_plan(f, m, &src);
    sb_free(&src.text);
    sb_free(&src.index);
    sb_free(&d.text);
    arena_free(a);
}

static void compile_row(Found *f, const Row *row) {
    static Model drawn;
    char path[100];
    size_t n;
    *f = (Found){0};
    for (uint64_t seed = 1; !row->model && seed <= DRAWN; seed++) {
        random_model_make(&drawn, seed);
        add_model(f, row, "drawn.amp", drawn.text, strlen(drawn.text));
        arena_free(drawn.a);
    }
    if (!row->model) return;
    snprintf(path, sizeof path, "models/%s.amp", row->model);
    char *text = test_read_file(test_data_path(path), &n);
    REQUIRE(text != NULL);
    add_model(f, row, path, text, n);
    free(text);
}

/* ---- the record ---------------------------------------------------------- */

/* A line of a row begins with its name and a space. */
static bool is_of(const char *line, const Row *row) {
    size_t n = strlen(row->name);
    return !strncmp(line, row->name, n) && line[n] == ' ';
}

static void put_lines(const Found *f, const Row *row, StrBuf *sb) {
    for (int i = 0; i < f->n; i++) {
        const Sums *s = &f->of[i];
        sb_printf(sb,
                  "%s %s %s: launches %d, casts %d, bytes %.0f, "
                  "instructions %.0f, products %.0f, arena %lld;",
                  row->name, s->target, s->program, s->launches, s->casts,
                  s->bytes, s->insts, s->mma, (long long)s->arena);
        for (int k = 0; k < s->nkind; k++)
            sb_printf(sb, " %s %d", s->kind[k].name, s->kind[k].n);
        sb_puts(sb, "\n");
    }
}

/* The record's lines of this row, or the other lines. */
static void pick_lines(const char *text, const Row *row, bool of_row,
                       StrBuf *sb) {
    for (size_t n; *text; text += n) {
        n = strcspn(text, "\n");
        n += text[n] == '\n';
        if (is_of(text, row) == of_row) sb_putn(sb, text, n);
    }
}

static void bless_row(const char *text, const Row *row, const StrBuf *now) {
    StrBuf all = {0};
    pick_lines(text, row, false, &all);
    sb_puts(&all, now->data);
    CHECK(test_write_file(test_data_path(record), all.data, all.len));
    sb_free(&all);
}

static void check_row(void *arg) {
    const Row *row = arg;
    static Found f;
    StrBuf now = {0}, was = {0};
    size_t n;
    char *text = test_read_file(test_data_path(record), &n);
    REQUIRE(text != NULL);
    compile_row(&f, row);
    put_lines(&f, row, &now);
    pick_lines(text, row, true, &was);
    if (test_bless())
        bless_row(text, row, &now);
    else
        CHECK_MSG(was.data && !strcmp(was.data, now.data),
                  "%s: %s\nrecorded:\n%snow:\n%s"
                  "if that is meant: bazel run //tests/codegen:decisions_test "
                  "-- --bless",
                  row->model ? row->model : "drawn models", row->options,
                  was.data ? was.data : "", now.data);
    free(text);
    sb_free(&now);
    sb_free(&was);
}

static void register_rows(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        harness_register("decisions", rows[i].name, check_row,
                         (void *)&rows[i]);
}

TEST_REGISTRAR(register_rows);
