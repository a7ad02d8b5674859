/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tile_test.c: products with the kernels behind them as CUDA Tile kernels
   (--tile): what is printed runs on the simulated GPU (tests/sim/cuda_tile.h)
   and trains as the CPU does; older drivers run the steps that it replaces;
   tileiras computes the products on tensor cores and keeps nothing in local
   memory. */
#define _GNU_SOURCE
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/section.h"
#include "runtime/program/plan.h"
#include "tests/support/cuda_gpu.h"

/* Layers of `act`, a node %r of %h; sizes that fill no tile. */
#define LAYERS(act)                                                            \
    "graph forward(%x: f32[B,104]) {\n"                                        \
    "  param %a: f32[72,104] = normal(0, 0.1)\n"                               \
    "  param %c: f32[72] = normal(0, 0.1)\n"                                   \
    "  param %m: f32[72,136] = normal(0, 0.1)\n"                               \
    "  param %b: f32[136,40] = normal(0, 0.1)\n"                               \
    "  %g = matmul %x, %a {trans_b=1} : f32[B,72]\n"                           \
    "  %h = add %g, %c : f32[B,72]\n" act                                      \
    "  %t = matmul %r, %m : f32[B,136]\n"                                      \
    "  %u = gelu_tanh %t : f32[B,136]\n"                                       \
    "  %y = matmul %u, %b : f32[B,40]\n"                                       \
    "  %s = mul %y, %y : f32[B,40]\n"                                          \
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"                      \
    "  return %loss\n}\n"

static const struct {
    const char *name, *text, *precision;
} models[] = {
    {"gelu", LAYERS("  %r = gelu %h : f32[B,72]\n"), "bf16"},
    {"gelu_fp16", LAYERS("  %r = gelu %h : f32[B,72]\n"), "fp16"},
    {"silu",
     LAYERS("  %q = sigmoid %h : f32[B,72]\n  %r = mul %h, %q : f32[B,72]\n"),
     "bf16"},
    {"erf",
     LAYERS("  %q = erf %h : f32[B,72]\n  %r = mul %h, %q : f32[B,72]\n"),
     "bf16"},
    {"tanh", LAYERS("  %r = tanh %h : f32[B,72]\n"), "fp16"},
};

/* The toolkit that script/test has fetched. */
static const char *tools(void) {
    const char *dir = getenv("AMPC_TEST_TILE");
    if (!dir) SKIP("no CUDA Tile: AMPC_TEST_TILE is not set");
    return dir;
}

static Compiled compile_tile(const char *text, const char *options,
                             const char *archs) {
    char all[600];
    snprintf(all, sizeof all, "%s --tile '%s'", options, tools());
    return compile_text_cuda(text, all, archs);
}

/* Steps of program train that are Tile kernels. */
static int tiles_of(const Compiled *c) {
    const AmpcModule *m = (const void *)c->api->module;
    const PlanTarget *p = m->cuda->plan;
    int n = 0;
    for (uint32_t i = 0; i < m->nprogram; i++)
        for (uint32_t k = 0; k < p->runs[i].nstep; k++)
            n += !strcmp(m->programs[i].name, "train") &&
                 p->steps[p->runs[i].step0 + k].kind == PLAN_TILE;
    return n;
}

static const ampc_input *feed(void *ctx, int step, size_t *nin) {
    sim()->seed((uint64_t)step + 1);
    return dc_random_feed(ctx, step, nin);
}

/* Of a model above: two of forward, and the gradient by gelu_tanh's slope; of
   `large`: two of forward. */
enum { STEPS = 4, TILES = 3, LARGE_TILES = 2 };

/* Returns the number of cuBLASLt's products. */
static uint64_t train(const Compiled *c, const char *precision, bool refused,
                      const char *what) {
    DcReport report;
    SimStats stats;
    const AmpcModule *m = (const void *)c->api->module;
    sim()->reset(&(SimConfig){.seed = 1, .cc = 90, .twins = c->cuda_dir});
    if (refused)
        sim()->fail("cuModuleLoadDataEx", (int)m->cuda->nunit + 1,
                    CUDA_NO_BINARY_FOR_GPU, false);
    DcTraining t = {.steps = STEPS,
                    .forced = true,
                    .tolerance = dc_training_tolerance(precision),
                    .feed = feed,
                    .feed_ctx = dc_random_new(c->api, "train", 1, 1)};
    REQUIRE(t.feed_ctx != NULL);
    CHECK_MSG(dc_train(c->api, "cpu", "cuda", &t, &report), "%s: %s", what,
              report.text);
    sim()->stats(&stats);
    CHECK_MSG(dc_same_bits(c->api, "cuda", "AMPC_CUDA_GRAPH", "0", &t, &report),
              "%s, graph and eager: %s", what, report.text);
    gpu_clean(what);
    dc_random_free(t.feed_ctx);
    return stats.products;
}

TEST_CASE(cuda_tile, trains_as_the_cpu) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char options[64];
        snprintf(options, sizeof options, "--dim B=88 --precision %s",
                 models[i].precision);
        Compiled c = compile_tile(models[i].text, options, "cuda:sm_90");
        CHECK_EQ_INT(tiles_of(&c), TILES);
        gpu_for(&c, 1);
        uint64_t with = train(&c, models[i].precision, false, models[i].name);
        uint64_t without =
            train(&c, models[i].precision, true, "a driver that refuses");
        CHECK_EQ_INT(with + STEPS * TILES, without);
        setenv("AMPC_CUDA_TILE", "0", 1);
        CHECK_EQ_INT(train(&c, models[i].precision, false, "without"), without);
        unsetenv("AMPC_CUDA_TILE");
        compiled_close(&c);
    }
}

/* ---- what tileiras makes of them ----------------------------------------- */

/* Whole tiles, and as large as they become. */
static const char large[] =
    "graph forward(%x: bf16[256,512]) {\n"
    "  param %a: f32[512,768] = normal(0, 0.1)\n"
    "  param %c: f32[768] = normal(0, 0.1)\n"
    "  param %m: f32[640,768] = normal(0, 0.1)\n"
    "  param %b: f32[640,384] = normal(0, 0.1)\n"
    "  %g = matmul %x, %a : f32[256,768]\n"
    "  %h = add %g, %c : f32[256,768]\n"
    "  %r = gelu %h : f32[256,768]\n"
    "  %t = matmul %r, %m {trans_b=1} : f32[256,640]\n"
    "  %q = sigmoid %t : f32[256,640]\n"
    "  %u = mul %t, %q : f32[256,640]\n"
    "  %y = matmul %u, %b : f32[256,384]\n"
    "  %s = mul %y, %y : f32[256,384]\n"
    "  %loss = reduce_mean %s {axes=[0,1], keepdims=0}\n"
    "  return %loss\n}\n";

/* Checks that no kernel of the cubin has a frame, where values that find no
   register would go; returns the number of frames named. */
static int check_frames(const char *cubin, const char *arch) {
    enum { FRAME_SIZE = 0x11 };
    const Elf64_Ehdr *head = (const void *)cubin;
    const Elf64_Shdr *sec = (const void *)(cubin + head->e_shoff);
    const char *names = cubin + sec[head->e_shstrndx].sh_offset;
    int n = 0;
    for (int i = 0; i < head->e_shnum; i++) {
        const unsigned char *p =
            (const unsigned char *)cubin + sec[i].sh_offset;
        const unsigned char *end = p + sec[i].sh_size;
        if (strcmp(names + sec[i].sh_name, ".nv.info")) continue;
        while (end - p >= 4) {
            unsigned size = p[0] == 4 ? p[2] | (unsigned)p[3] << 8 : 0;
            uint32_t frame[2];
            if (p[0] == 4 && p[1] == FRAME_SIZE && size == sizeof frame) {
                memcpy(frame, p + 4, sizeof frame);
                CHECK_MSG(frame[1] == 0, "%s: %u bytes", arch, frame[1]);
                n++;
            }
            p += 4 + size;
        }
    }
    return n;
}

static void check_cubin(const Compiled *c, const char *arch) {
    Arena *a = arena_new();
    Diag d = {0};
    SectionFile f;
    char name[40], *data;
    size_t n;
    if (sections_open(a, &d, c->path, &f) != OK) FAIL("%s", d.text.data);
    snprintf(name, sizeof name, "tile:%s", arch);
    const PlanSection *s = sections_find(&f, name);
    REQUIRE(s && sections_read(a, &d, &f, s, &data, &n) == OK);
    CHECK(check_frames(data, arch) > 0);
    sections_close(&f);
    sb_free(&d.text);
    arena_free(a);
}

TEST_CASE(cuda_tile, products_use_tensor_cores_and_no_local_memory) {
    static const char *const archs[][2] = {
        {"sm_90", "SM90"}, {"sm_100", "SM100"}, {"sm_120", "SM80"}};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        char target[32], want[64], *out;
        snprintf(target, sizeof target, "cuda:%s", archs[i][0]);
        Compiled c = compile_tile(large, "--precision bf16", target);
        CHECK_EQ_INT(tiles_of(&c), LARGE_TILES);
        check_cubin(&c, archs[i][0]);
        REQUIRE(test_command(&out, "'%s' inspect '%s' --kernels", test_ampc(),
                             c.path) == 0);
        snprintf(want, sizeof want, ", %s: Tensor-core %s [", archs[i][0],
                 archs[i][1]);
        int lines = 0;
        for (char *at = out; (at = strstr(at, "CUDA Tile t")); lines++) {
            at += strlen("CUDA Tile t");
            CHECK_MSG(!strncmp(at + strcspn(at, ","), want, strlen(want)),
                      "%.99s", at);
        }
        CHECK(lines >= 2 * LARGE_TILES);
        free(out);
        compiled_close(&c);
    }
}

/* ---- mistakes ------------------------------------------------------------ */

static void refused(const char *options, const char *message) {
    char *out;
    REQUIRE(test_write_file(test_tmp("l.amp"), large, strlen(large)));
    CHECK_EQ_INT(test_command(&out, "cd '%s' && '%s' l.amp -o m.so %s",
                              test_tmpdir(), test_ampc(), options),
                 1);
    CHECK_HAS(out, message);
    free(out);
}

TEST_CASE(cuda_tile, mistakes_have_a_message) {
    require_nvrtc();
    refused("--precision bf16 --target cuda:sm_80 --tile .",
            "--tile is for GPUs from sm_90 on");
    refused("--precision bf16 --target cpu --tile .",
            "--tile is for GPUs from sm_90 on");
    refused("--precision bf16 --target cuda:sm_90 --tile .",
            "--tile .: no lib/libnvrtc.so.13 or lib64/libnvrtc.so.13 there");
    refused("--precision fp32 --target cuda:sm_90 --tile .", "--tile .: no ");
}

/* Files of these names, without content. */
TEST_CASE(cuda_tile, a_toolkit_without_a_tool_is_refused) {
    static const struct {
        const char *file, *message;
    } tools_in_order[] = {
        {"lib64/libnvrtc.so.13", "--tile kit: no bin/tileiras there"},
        {"bin/tileiras", "--tile kit: no bin/ptxas there"},
        {"bin/ptxas",
         "--tile kit: no nvvm/lib64/libnvvm.so or lib/libnvvm.so.4 there"},
    };
    char *out;
    require_nvrtc();
    for (size_t i = 0; i < sizeof tools_in_order / sizeof *tools_in_order;
         i++) {
        REQUIRE(test_command(&out,
                             "cd '%s' && mkdir -p kit/bin kit/lib64 && "
                             ": > kit/%s",
                             test_tmpdir(), tools_in_order[i].file) == 0);
        free(out);
        refused("--precision bf16 --target cuda:sm_90 --tile kit",
                tools_in_order[i].message);
    }
    CHECK_EQ_INT(test_command(&out, "cd '%s' && '%s' check l.amp --tile kit",
                              test_tmpdir(), test_ampc()),
                 1);
    CHECK_HAS(out, tools_in_order[2].message);
    free(out);
}

TEST_CASE(cuda_tile, a_folder_may_have_a_blank_in_its_name) {
    char *out;
    REQUIRE(test_write_file(test_tmp("l.amp"), large, strlen(large)));
    int rc = test_command(&out,
                          "cd '%s' && mkdir 'my kit' && cp -rs '%s'/. 'my kit' "
                          "&& '%s' l.amp -o m.so --precision bf16 --target "
                          "cuda:sm_90 --cache none --tile 'my kit'",
                          test_tmpdir(), tools(), test_ampc());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}

/* bin/tileiras ends by a signal the first time. */
TEST_CASE(cuda_tile, a_tool_that_a_signal_ends_starts_again) {
    static const char weak[] =
        "#!/bin/sh\nd=${0%/*}\n"
        "test -e \"$d/once\" || { : > \"$d/once\"; kill -SEGV $$; }\n"
        "exec \"$d/real\" \"$@\"\n";
    char *out;
    REQUIRE(test_write_file(test_tmp("l.amp"), large, strlen(large)));
    REQUIRE(test_write_file(test_tmp("weak.sh"), weak, strlen(weak)));
    int rc = test_command(&out,
                          "cd '%s' && mkdir weak && cp -rs '%s'/. weak && "
                          "mv weak/bin/tileiras weak/bin/real && "
                          "cp weak.sh weak/bin/tileiras && "
                          "chmod +x weak/bin/tileiras && '%s' l.amp -o m.so "
                          "--precision bf16 --target cuda:sm_90 --cache none "
                          "--tile weak && test -e weak/bin/once",
                          test_tmpdir(), tools(), test_ampc());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}

/* What the cache has of one GPU serves it alone: the module is the same when
   the cache has all. */
TEST_CASE(cuda_tile, the_cache_may_have_one_gpu_of_three) {
    char *out;
    const char *text = models[0].text;
    REQUIRE(test_write_file(test_tmp("s.amp"), text, strlen(text)));
    int rc = test_command(
        &out,
        "cd '%s' && make() { o=$1; shift; '%s' s.amp -o $o --dim B=96 "
        "--precision bf16 --cache kept --tile '%s' \"$@\"; } && "
        "make one.so --target cuda:sm_100 && "
        "make some.so --target cuda:sm_90,cuda:sm_100,cuda:sm_120 && "
        "make all.so --target cuda:sm_90,cuda:sm_100,cuda:sm_120 && "
        "cmp some.so all.so",
        test_tmpdir(), test_ampc(), tools());
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}

TEST_CASE(cuda_tile, no_product_for_it_warns) {
    char *out;
    REQUIRE(test_write_file(test_tmp("l.amp"), large, strlen(large)));
    CHECK_EQ_INT(test_command(&out,
                              "cd '%s' && '%s' l.amp -o m.so --precision fp32 "
                              "--target cuda:sm_90 --tile '%s'",
                              test_tmpdir(), test_ampc(), tools()),
                 0);
    CHECK_HAS(out, "warning: --tile: no product of this module becomes");
    free(out);
}
