/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_check_test.c: the program that script/gpu-check takes to a machine
   with a GPU, run on the simulated one. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/section.h"
#include "codegen/cost/roofline.h"
#include "runtime/cuda/peak.h"
#include "tests/support/cuda_gpu.h"

/* The program as Bazel built it, else built here. */
static const char *checker(void) {
    static char path[512];
    char *log = NULL;
    if (*path) return path;
    snprintf(path, sizeof path, "%s", test_data_path("tests/gpu_checker"));
    if (!access(path, X_OK)) return path;
    snprintf(path, sizeof path, "%s/gpu_checker", test_tmpdir());
    if (test_command(
            &log,
            "cc -std=c17 -O1 -I. tests/bench/gpu_*.c "
            "tests/support/device_check.c tests/support/device_repeat.c "
            "tests/support/device_feed.c runtime/program/dtype.c -o '%s' "
            "-ldl -lm -pthread",
            path))
        FAIL("%s", log);
    free(log);
    return path;
}

/* Runs it on the simulated GPU; returns its output, which the caller frees. */
static char *run(int want, const char *env, const char *arguments) {
    char *out = NULL;
    int rc = test_command(&out,
                          "AMPC_LIBCUDA='%s' AMPC_LIBCUBLASLT='%s' "
                          "AMPC_CACHE_DIR='%s' %s '%s' %s",
                          sim()->path, sim()->cublaslt, test_tmpdir(), env,
                          checker(), arguments);
    CHECK_MSG(rc == want, "gpu_check %s: status %d\n%s", arguments, rc, out);
    return out;
}

static void check_run(int want, const char *env, const char *arguments,
                      const char *says) {
    char *out = run(want, env, arguments);
    CHECK_HAS(out, says);
    free(out);
}

TEST_CASE(gpu_check, tells_what_the_machine_has) {
    check_run(0, "", "device", "\"cc\":\"9.0\"");
    check_run(0, "", "device", "\"cublaslt\":130100");
    check_run(3, "AMPC_SIM_DEVICES=-1", "device", "gpu_check: ");
    check_run(3, "AMPC_LIBCUDA=none", "device", "no NVIDIA driver");
    check_run(3, "AMPC_CHECK_DEVICE=cuda:7", "device", "no GPU 7 among 1");
    check_run(2, "", "devices", "usage");
}

/* Names as drivers give them; MFU is printed only for whole GPUs. */
TEST_CASE(gpu_check, peaks_go_by_the_name) {
    CHECK(peak_of("NVIDIA H100 80GB HBM3") == 989e12);
    CHECK(peak_of("NVIDIA H100 PCIe") == 756e12);
    CHECK(peak_of("NVIDIA H200") == 989e12);
    CHECK(peak_of("NVIDIA GH200 480GB") == 989e12);
    CHECK(peak_of("NVIDIA A100-SXM4-80GB") == 312e12);
    CHECK(peak_of("NVIDIA GeForce RTX 4090") == 165.2e12);
    CHECK(peak_of("NVIDIA A10") == 125e12 && peak_of("NVIDIA A10G") == 0);
    CHECK(peak_of("NVIDIA RTX A1000 Laptop GPU") == 0);
    CHECK(peak_of("NVIDIA L40S") == 362e12 && peak_of("NVIDIA L4") == 121e12);
    CHECK(peak_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == 0);
}

static int lines_with(const char *text, const char *what) {
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* A folder of the loader that has only cuBLASLt 13. */
TEST_CASE(gpu_check, passes_over_a_library_too_new_for_the_driver) {
    char env[700], *out = NULL;
    const char *dir = test_tmp("libraries");
    if (test_command(&out,
                     "mkdir -p '%s' && ln -sf '%s' '%s' && "
                     "ln -sf '%s' '%s'/libcublasLt.so.13",
                     dir, sim()->path, dir, sim()->cublaslt, dir))
        FAIL("%s", out);
    free(out);
    for (int driver = 12080; driver <= 13000; driver += 920) {
        snprintf(env, sizeof env,
                 "AMPC_LIBCUBLASLT= LD_LIBRARY_PATH='%s' AMPC_SIM_DRIVER=%d "
                 "AMPC_SIM_BLAS_VERSION=130987",
                 dir, driver);
        out = run(0, env, "device");
        CHECK_EQ_INT(lines_with(out, "\"cublaslt\":130987"), driver == 13000);
        free(out);
    }
}

TEST_CASE(gpu_check, lists_what_cublaslt_supports) {
    char *out = run(0, "", "gemm 16");
    int lines = 0;
    for (const char *p = out; (p = strchr(p, '\n')); p++) lines++;
    CHECK_EQ_INT(lines, 5 * 4 * 4 + 5 * 2); /* types, epilogues, sizes; NaN */
    CHECK_HAS(out, "\"size\":17,\"ok\":true,\"types\":\"bf16->f32\","
                   "\"epilogue\":\"relu_bias\",\"algorithms\":");
    CHECK_HAS(out, "\"gemm nan\",\"ok\":true,\"module\":\"f16->f16 relu\"");
    free(out);
}

/* The rooms of the Python files that script/gpu-check packs. */
static const char *const rooms[] = {"models/bench", "models/coverage"};

/* Our module of that name: its path in the tree, or NULL. */
static const char *module_of(const char *name, char path[128]) {
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        snprintf(path, 128, "%s/%s.py", rooms[i], name);
        if (!access(test_data_path(path), R_OK)) return path;
    }
    return NULL;
}

/* `name` is defined in the text of a Python module, or imported there. */
static bool has_definition(const char *text, const char *name) {
    static const char *const forms[] = {"\ndef %s(", "\nclass %s(",
                                        "\nclass %s:", "\n%s = "};
    char form[96];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(form, sizeof form, forms[i], name);
        if (strstr(text, form)) return true;
    }
    return false;
}

/* A line "from MODULE import A, B" with one of our modules. */
static void check_names(const char *path, const char *line) {
    char *text = test_read_file(test_data_path(path), NULL), name[64];
    const char *p = strstr(line, " import ");
    for (p = p ? p + 8 : ""; sscanf(p, " %60[A-Za-z0-9_]", name) == 1;) {
        CHECK_MSG(has_definition(text, name), "%s has no %s: %s", path, name,
                  line);
        p += strcspn(p, ",");
        p += *p == ',';
    }
    free(text);
}

/* What the Python file imports of ours is in the list, and defines the names.
 */
static void check_imports(const char *packed, const char *path) {
    char *text = test_read_file(test_data_path(path), NULL), *rest, at[128];
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        char name[64] = "";
        if (sscanf(line, " import %60[a-z0-9_]", name) != 1 &&
            sscanf(line, " from %60[a-z0-9_]", name) != 1)
            continue;
        if (!module_of(name, at)) continue;
        CHECK_MSG(strstr(packed, at), "script/gpu-check packs no %s: %s: %s",
                  at, path, line);
        if (!strncmp(line, "from ", 5)) check_names(at, line);
    }
    free(text);
}

TEST_CASE(gpu_check, packs_what_its_python_imports) {
    char *script = test_read_file(test_data_path("script/gpu-check"), NULL);
    char *packed = strstr(script, "cp script/gpu-check models/"), *rest;
    REQUIRE(packed && strchr(packed, '"'));
    CHECK_EQ_INT(lines_with(script, "--target cuda:sm_"), 0); /* all GPUs */
    *strchr(packed, '"') = '\0';
    char *words = strdup(packed);
    int files = 0;
    for (char *w = strtok_r(words, " \\\n", &rest); w;
         w = strtok_r(NULL, " \\\n", &rest)) {
        if (!strstr(w, ".py")) continue;
        check_imports(packed, w);
        files++;
    }
    CHECK_EQ_INT(files, 4);
    free(words);
    free(script);
}

/* MODULE.json, as script/gpu-check packs it. */
static void write_facts(const char *module) {
    Arena *a = arena_new();
    Diag d = {0};
    SectionFile f;
    StrBuf sb = {0};
    char *cost, path[512];
    size_t n;
    REQUIRE(sections_open(a, &d, module, &f) == OK);
    REQUIRE(sections_read(a, &d, &f, sections_find(&f, "cost"), &cost, &n) ==
            OK);
    roofline_put(a, cost, true, &sb);
    snprintf(path, sizeof path, "%.*s.json", (int)strlen(module) - 3, module);
    REQUIRE(test_write_file(path, sb.data, sb.len));
    sections_close(&f);
    sb_free(&sb);
    arena_free(a);
}

/* All matrix products of a step, equal ones once; a layer's product has its
   bias. */
static void check_products(const char *module, int want) {
    char arguments[600];
    int products = 0, lines = 0;
    snprintf(arguments, sizeof arguments, "products '%s'", module);
    char *out = run(0, "", arguments);
    for (const char *p = out; (p = strstr(p, "\"count\":")); lines++)
        products += atoi(p += 8);
    CHECK_EQ_INT(products, want);
    CHECK_EQ_INT(lines_with(out, "\"product\",\"module\":"), lines);
    CHECK_EQ_INT(lines_with(out, "\"ok\":true"), lines);
    CHECK_HAS(out, "\"m\":8,\"n\":");
    CHECK_HAS(out, "\"types\":\"bf16->bf16\",\"epilogue\":\"bias\"");
    CHECK_HAS(out, "\"types\":\"bf16->f32\",\"epilogue\":\"none\"");
    free(out);
}

/* Each step occurs once, and the totals contain all its bytes and FLOPs. */
static void check_steps(const char *module, const char *env) {
    char arguments[600];
    snprintf(arguments, sizeof arguments, "steps '%s' 2 y=3", module);
    check_run(1, env, arguments, "cannot be read");
    write_facts(module);
    char *out = run(0, env, arguments);
    const char *all = strstr(out, "\"check\":\"steps\",\"ok\":true");
    if (!all) FAIL("%s", out);
    int n = atoi(strstr(all, "\"steps\":") + 8);
    CHECK_MSG(n > 5 && lines_with(out, "\"check\":\"step\",\"ok\":true") == n,
              "%s", out);
    int products = lines_with(out, "\"how\":\"cublaslt\"");
    CHECK(products >= 5);
    CHECK(lines_with(out, "\"of_copy\":") == n);
    CHECK(strtod(strstr(all, "\"predicted_ms\":") + 15, NULL) > 0);
    free(out);
    check_products(module, products);
    snprintf(arguments, sizeof arguments, "time '%s' 2 y=3", module);
    check_run(0, env, arguments, "\"unit\":\"samples\",\"per_s\":");
}

/* Steps that the GPU leaves out (PLAN_GELU) have neither a time nor a fact. */
TEST_CASE(gpu_check, times_the_steps_that_run) {
    static const char text[] =
        "graph forward(%x: f32[16,24]) {\n  param %a: f32[24,32]\n"
        "  param %b: f32[32,8]\n  %g = matmul %x, %a\n  %h = gelu_tanh "
        "%g\n  %y = matmul %h, %b\n  %s = mul %y, %y\n  %l = reduce_mean %s "
        "{axes=[0,1], keepdims=0}\n  return %l\n}\n";
    Compiled c = compile_text_cuda(text, "--precision bf16", GPU_PTX);
    char env[600], arguments[600];
    sim_build_twins(c.cuda_dir);
    write_facts(c.path);
    snprintf(arguments, sizeof arguments, "steps '%s' 2 ''", c.path);
    for (int cc = 80; cc <= 90; cc += 10) {
        snprintf(env, sizeof env, "AMPC_SIM_TWINS='%s' AMPC_SIM_CC=%d",
                 c.cuda_dir, cc);
        char *out = run(0, env, arguments);
        CHECK_EQ_INT(lines_with(out, "\"how\":\"gelu\""), cc == 90 ? 2 : 0);
        free(out);
    }
    compiled_close(&c);
}

static const char mlp[] = "--precision bf16 --dim batch=8";

/* As script/gpu-check packs models of real size. */
static void check_gpu_alone(const char *env) {
    char path[512], arguments[600], *log;
    snprintf(path, sizeof path, "%s/gpu_alone.so", test_tmpdir());
    if (test_command(&log, "'%s' '%s' -o '%s' %s --target cuda:sm_90",
                     test_ampc(), test_data_path("tests/onnx/mlp.dyn.onnx"),
                     path, mlp))
        FAIL("%s", log);
    free(log);
    snprintf(arguments, sizeof arguments, "time '%s' 2 y=3", path);
    check_run(0, env, arguments, "\"unit\":\"samples\",\"per_s\":");
    check_run(1, "AMPC_CHECK_DEVICE=cpu", arguments, "\"ok\":false");
    remove(path);
}

TEST_CASE(gpu_check, checks_a_module) {
    static const char *const checks[][2] = {{"train", "bf16 forced 4"},
                                            {"train", "bf16 free 4"},
                                            {"train", "bf16 metrics 4"},
                                            {"graph", "4"},
                                            {"twice", "4"},
#ifndef __SANITIZE_ADDRESS__ /* the sanitizer keeps freed memory, and finds    \
                                leaks itself */
                                            {"leaks", "30"},
#endif
                                            {"threads", "4"},
                                            {"run", "2"}};
    Compiled c = compile_file_cuda(test_data_path("tests/onnx/mlp.dyn.onnx"),
                                   mlp, "cuda:sm_90");
    char feed[512], env[600], arguments[1100];
    sim_build_twins(c.cuda_dir);
    snprintf(env, sizeof env, "AMPC_SIM_TWINS='%s'", c.cuda_dir);
    snprintf(feed, sizeof feed, "%s/mlp.feed", test_tmpdir());
    DcRandom *random = dc_random_new(c.api, "train", 3, 1);
    REQUIRE(dc_file_write(feed, 2, dc_random_feed, random));
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        snprintf(arguments, sizeof arguments, "%s '%s' '%s' %s", checks[i][0],
                 c.path, feed, checks[i][1]);
        check_run(0, env, arguments, "\"ok\":true");
    }
    snprintf(arguments, sizeof arguments, "library '%s'", c.path);
    check_run(0, env, arguments, "libcublaslt_sim.so\n");
    snprintf(arguments, sizeof arguments, "time '%s' 2 target=3", c.path);
    check_run(0, env, arguments, "\"batch\":8,\"steps\":2,\"ms\":");
    check_steps(c.path, env);
    check_gpu_alone(env);
    snprintf(arguments, sizeof arguments, "train '%s' random:y=3 bf16 forced 3",
             c.path);
    check_run(0, env, arguments, "\"ok\":true");
    snprintf(arguments, sizeof arguments, "run '%s' none 2", c.path);
    check_run(1, env, arguments, "cannot be read");
    dc_random_free(random);
    compiled_close(&c);
}

/* ---- the script ---------------------------------------------------------- */

/* PyTorch: one line for another network than the module's, one for a step
   that is too slow. */
static const char python[] =
    "#!/bin/sh\n"
    "case $2 in *sys.prefix*) echo \"${0%/*}/prefix\" ;; esac\n"
    "[ $1 = -c ] && exit\n"
    "line() {\n"
    "  printf '{\"check\":\"torch\",\"ok\":true,\"module\":\"%s.bf16\",'"
    " $1\n"
    "  printf '\"mode\":\"eager\",\"batch\":8,\"parameters\":%s,' $2\n"
    "  printf '\"ms\":%s,\"mib\":77}\\n' $3\n"
    "}\n"
    "line gpt2 32 12345.5\n"
    "line vit 33 1\n";

static const char small_model[] = "graph forward(%x: f32[8,4]) {\n"
                                  "  param %w: f32[4,8] = 0.5\n"
                                  "  %y = matmul %x, %w : f32[8,8]\n"
                                  "  %q = mul %y, %y : f32[8,8]\n"
                                  "  %l = reduce_mean %q {axes=[0,1], "
                                  "keepdims=0} : f32[]\n"
                                  "  return %l\n}\n";

/* A folder as --bundle leaves it, of one model by all names. */
static void pack_bundle(const char *dir, const char *model) {
    static const char names[] =
        "eval \"$(sed -n '/^\\(models\\|tiled\\|precisions\\)=(/p\n"
        "/^\\(traces\\|shapes\\)=(/,/)$/p' gpu-check)\"\n"
        "for m in ${models[@]}; do echo model_$m.bf16; done\n"
        "for m in ${tiled[@]}; do echo tile_$m.bf16; done\n"
        "for s in \"${shapes[@]}\"; do set -- $s; echo shape_$1.$2; done\n"
        "for p in ${precisions[@]}; do\n"
        "  for t in ${traces[@]} speed_cnn speed_mlp; do echo $t.$p; done\n"
        "done\n"
        "echo shape_many_elements.fp32 shape_many_products.fp32\n"
        "echo cnn_ptx.bf16 ops\n";
    Compiled c = compile_text_cuda(
        model, "--precision fp32 --optimizer sgd,lr=0.01", "cuda:sm_90");
    char path[600], feed[600], list[600], *log = NULL;
    sim_build_twins(c.cuda_dir);
    write_facts(c.path);
    snprintf(path, sizeof path, "%s/python", test_tmpdir());
    REQUIRE(test_write_file(path, python, sizeof python - 1));
    snprintf(list, sizeof list, "%s/names", test_tmpdir());
    REQUIRE(test_write_file(list, names, sizeof names - 1));
    snprintf(feed, sizeof feed, "%s/x.feed", test_tmpdir());
    DcRandom *random = dc_random_new(c.api, "train", 3, 1);
    REQUIRE(dc_file_write(feed, 2, dc_random_feed, random));
    dc_random_free(random);
    if (test_command(&log,
                     "set -e; chmod +x '%s'; rm -rf '%s'; mkdir -p '%s'; "
                     "cp '%s' '%s' '%s' '%s'; cd '%s'; "
                     "mv gpu_checker checker; "
                     "echo 1.0 >VERSION; mkdir modules; so='%s'; "
                     "for m in $(bash '%s'); do "
                     "ln $so modules/$m.so; "
                     "ln ${so%%.so}.json modules/$m.json; "
                     "ln -f '%s' modules/${m%%.*}.feed; done; "
                     "cp -r '%s' twins",
                     path, dir, dir, test_data_path("script/gpu-check"),
                     checker(), path, dir, dir, c.path, list, feed, c.cuda_dir))
        FAIL("%s", log);
    free(log);
    compiled_close(&c);
}

/* cuBLASLt among the packages of the Python that has PyTorch. */
static void put_package(const char *dir) {
    char *log = NULL;
    if (test_command(&log,
                     "d='%s/prefix/lib/python3.11/site-packages/nvidia/cu13/"
                     "lib' && mkdir -p \"$d\" && ln -sf '%s' \"$d/\" && "
                     "ln -sf '%s' \"$d/libcublasLt.so.13\"",
                     dir, sim()->path, sim()->cublaslt))
        FAIL("%s", log);
    free(log);
}

TEST_CASE(gpu_check, the_script_prints_tables_beside_pytorch) {
    char dir[512], *out = NULL;
    bool toolkit =
        test_command(NULL, "ls /usr/local/cuda*/lib64/libcublasLt.so.1?") == 0;
    snprintf(dir, sizeof dir, "%s/bundle", test_tmpdir());
    pack_bundle(dir, small_model);
    put_package(dir);
    for (int again = 0; again < 2; again++) {
        free(out);
        int rc = test_command(
            &out,
            "cd '%s'; AMPC_LIBCUDA='%s' AMPC_LIBCUBLASLT='%s' "
            "AMPC_SIM_TWINS=$PWD/twins AMPC_CHECK_MODEL_STEPS=1 "
            "PYTHON=$PWD/python ./gpu-check --piece models --piece products "
            "--piece peer %s",
            dir, sim()->path, again && !toolkit ? "" : sim()->cublaslt,
            again ? "--out now --before results.jsonl" : "");
        CHECK_MSG(rc == 1, "status %d\n%s", rc, out);
    }
    CHECK_HAS(out, "\"check\":\"run\",\"ok\":true,\"date\":\"20");
    CHECK_HAS(out, "\"ampc\":\"1.0");
    CHECK_EQ_INT(lines_with(out, "modules find no cuBLASLt"), 0);
    CHECK_HAS(out, "| gpt2 bf16 | ");
    CHECK_HAS(out, " | 12345.5 | - | ");
    CHECK_HAS(out, " | 77 | - |\n");
    CHECK_HAS(out, "model_unet.bf16.so: ");
    CHECK_HAS(out, "\n| n | us | share % | GB/s | % of copy | TFLOP/s | % of "
                   "best | predicted / us | how | first |\n");
    CHECK_HAS(out, " | ampc MFU % | eager MFU % | compile MFU % | ampc MiB | "
                   "eager MiB | compile MiB |\n");
    CHECK_HAS(out, "| product of | n | m x n x k |");
    CHECK_HAS(out, "\n| twin | 1 | 1 |\n");
    CHECK_HAS(out, "FAILED twin vit.bf16: 8 samples and 33 parameters in "
                   "PyTorch, 8 samples and 32 parameters in ampc");
    CHECK_HAS(out, "| step of | before ms | now ms |");
    CHECK_HAS(out, "| model_gpt2.bf16.so | ");
    CHECK_HAS(out, "| launch of | place | before us | now us | first |");
    CHECK_MSG(lines_with(out, "FAILED") == 1, "%s", out);
    /* each piece's tables come before the next piece */
    const char *next = strstr(out, "-- products\n");
    const char *timed = strstr(out, "| step of | ampc ms ");
    CHECK(timed && next && timed < next &&
          strstr(next, "| step of | ampc ms "));
    free(out);
}

/* ncu and nvidia-smi, with their output formats. */
static const char ncu[] =
    "#!/bin/sh\n"
    "line() { echo \"\\\"$1\\\",\\\"9\\\",\\\"$2\\\",\\\"$3\\\",\\\"$4\\\"\"; "
    "}\n"
    "echo '==PROF== Connected'\n"
    "line ID 'Kernel Name' 'Metric Name' 'Metric Value'\n"
    "for i in 0 1 2 3 4 5 6 7; do\n"
    "  for m in $(echo $3 | tr , ' '); do line $i k$((i / 2)) $m 1,$((i + "
    "1))00; "
    "done\n"
    "done\n";
static const char smi[] = "#!/bin/sh\necho 'Simulated H100, 580, 1980 MHz'\n";

static void put_program(const char *dir, const char *name, const char *text) {
    char path[600], *log = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    REQUIRE(test_write_file(path, text, strlen(text)));
    if (test_command(&log, "chmod +x '%s'", path)) FAIL("%s", log);
    free(log);
}

/* A row of results in which all threads of a block take part. */
static const char folding_model[] =
    "graph forward(%x: f32[8,4]) {\n"
    "  param %w: f32[4,1500] = 0.5\n"
    "  %y = matmul %x, %w : f32[8,1500]\n"
    "  %e = exp %y : f32[8,1500]\n"
    "  %s = reduce_sum %e {axes=[1], keepdims=1} : f32[8,1]\n"
    "  %g = log %s : f32[8,1]\n"
    "  %l = reduce_mean %g {axes=[0,1], keepdims=0} : f32[]\n"
    "  return %l\n}\n";

/* Number of launches until the first step ends, which is not captured. */
static int launches_of_a_step(const char *dir) {
    char *out = NULL;
    int n = 0;
    if (test_command(&out,
                     "cd '%s'; AMPC_LIBCUDA='%s' AMPC_LIBCUBLASLT='%s' "
                     "AMPC_SIM_TWINS=$PWD/twins AMPC_SIM_REPORT=$PWD/report "
                     "./checker run modules/ops.so modules/ops.feed 1 && "
                     "cat report; rm -f report",
                     dir, sim()->path, sim()->cublaslt))
        FAIL("%s", out);
    const char *at = strstr(out, "launches ");
    if (!at || sscanf(at, "launches %d", &n) != 1) FAIL("%s", out);
    free(out);
    return n;
}

/* Imitates a faulty card: kernels that compute something else, a launch that
   a capture misses, barriers that do nothing. */
TEST_CASE(gpu_check, the_first_minute_finds_planted_mistakes) {
    static const struct {
        const char *what, *prepare, *env;
        int rc;
        const char *says;
    } cases[] = {
        {"no mistake", ":", "", 0, "| train forced | 7 | 0 |"},
        {"wrong kernels", "sed -i 's/LOG_F32(/TANH_F32(/' twins/*.cu", "", 1,
         "FAILED train forced shape_gpt2_layer.bf16.so"},
        {"a missing barrier", "sed -i 's/__syncthreads();//' twins/fold.cuh",
         "", 1, "FAILED train forced shape_gpt2_layer.bf16.so"},
        {"a launch that is not captured", ":",
         "AMPC_SIM_FAIL=cuLaunchKernel:%d:-1", 1, "FAILED graph "},
    };
    char dir[512], *out = NULL, *log = NULL;
    snprintf(dir, sizeof dir, "%s/first_minute", test_tmpdir());
    pack_bundle(dir, folding_model);
    put_program(dir, "ncu", ncu);
    put_program(dir, "nvidia-smi", smi);
    const int captured = launches_of_a_step(dir) + 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char env[100], twins[600];
        if (test_command(&log, "cd '%s'; rm -rf kept; cp -r twins kept; %s",
                         dir, cases[i].prepare))
            FAIL("%s", log);
        free(log);
        snprintf(twins, sizeof twins, "%s/twins", dir);
        if (strcmp(cases[i].prepare, ":")) sim_build_twins(twins);
        snprintf(env, sizeof env, cases[i].env, captured);
        int rc = test_command(
            &out,
            "cd '%s'; AMPC_LIBCUDA='%s' AMPC_LIBCUBLASLT='%s' PATH=$PWD:$PATH "
            "AMPC_SIM_TWINS=$PWD/twins PYTHON=none %s ./gpu-check --piece "
            "numbers --piece counters",
            dir, sim()->path, sim()->cublaslt, env);
        CHECK_MSG(rc == cases[i].rc, "%s: status %d\n%s", cases[i].what, rc,
                  out);
        CHECK_HAS(out, cases[i].says);
        CHECK_HAS(out, "\"check\":\"clocks\",\"ok\":true,\"module\":\"idle\","
                       "\"text\":\"Simulated H100, 580, 1980 MHz");
        CHECK_HAS(out, "| gpt2_4_layers | k3 | 2 | 3.5 | 3500 | 0.004 | 3500 | "
                       "3500 |");
        free(out);
        if (test_command(&log, "cd '%s'; rm -rf twins; mv kept twins", dir))
            FAIL("%s", log);
        free(log);
    }
}

/* compute-sanitizer, which finds something where it is asked to. */
static const char sanitizer[] =
    "#!/bin/sh\n"
    "tool=$2; shift 4\n"
    "\"$@\" || exit\n"
    "[ $tool != racecheck ] || { echo a race; exit 9; }\n";

/* Pieces that no other test runs; "leaks" would examine memory that the
   address sanitizer keeps. */
TEST_CASE(gpu_check, every_piece_of_the_script_runs) {
    char dir[512], path[600], *out = NULL;
    const char *leaks = "--piece leaks";
#ifdef __SANITIZE_ADDRESS__
    leaks = "";
#endif
    snprintf(dir, sizeof dir, "%s/pieces", test_tmpdir());
    pack_bundle(dir, small_model);
    snprintf(path, sizeof path, "%s/compute-sanitizer", dir);
    REQUIRE(test_write_file(path, sanitizer, sizeof sanitizer - 1));
    int rc = test_command(
        &out,
        "cd '%s'; chmod +x compute-sanitizer; AMPC_LIBCUDA='%s' "
        "AMPC_LIBCUBLASLT='%s' AMPC_SIM_TWINS=$PWD/twins PATH=$PWD:$PATH "
        "AMPC_CHECK_STEPS=1 AMPC_CHECK_GEMM=16 AMPC_CHECK_LEAKS=30 "
        "PYTHON=none ./gpu-check --piece ops --piece shapes --piece train "
        "--piece bits --piece sanitizer --piece gemm --piece speed --piece "
        "ways %s",
        dir, sim()->path, sim()->cublaslt, leaks);
    CHECK_MSG(rc == 1, "status %d\n%s", rc, out);
    static const char *const rows[] = {
        "ops | 3 | 0",        "train forced | 20 | 0", "train metrics | 6 | 0",
        "train free | 1 | 0", "threads | 1 | 0",       "graph | 14 | 0",
        "twice | 12 | 0",     "memcheck | 2 | 0",      "racecheck | 2 | 2",
        "synccheck | 2 | 0",  "initcheck | 2 | 0",     "gemm | 80 | 0",
        "gemm nan | 10 | 0",  "time | 11 | 0",         "leaks | 3 | 0"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows - (*leaks == 0); i++) {
        char row[80];
        snprintf(row, sizeof row, "\n| %s |\n", rows[i]);
        CHECK_MSG(strstr(out, row), "no '%s' in\n%s", rows[i], out);
    }
    CHECK_HAS(out, "FAILED racecheck cnn_dynamo_sgd_forced.bf16: status 9: a "
                   "race");
    CHECK_HAS(out, "no PyTorch with CUDA: no peer");
    CHECK_HAS(out, "| cnn bf16 | ");
    CHECK_MSG(lines_with(out, "FAILED") == 2, "%s", out);
    free(out);
}
