/* SPDX-License-Identifier: Apache-2.0 */
/* nvrtc_test.c: NVRTC compiles the CUDA code of the demo models to cubins of
   the right architecture with every kernel, without spills or warnings, and
   the same bytes twice. */
#define _POSIX_C_SOURCE 200809L
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/section.h"
#include "tests/support/compiled.h"

typedef struct Module {
    Arena *a;
    Diag d;
    SectionFile f;
} Module;

static const char *demo_options(const char *model) {
    return strstr(model, "cnn") ? "--dim batch=64 --loss cross_entropy"
                                : "--dim batch=32 --loss cross_entropy";
}

/* Compiles for all default architectures, without warnings. */
static char *compile_demo(const char *model, const char *name) {
    static char path[2][600];
    static int n;
    char *out, *to = path[n++ % 2];
    snprintf(to, sizeof *path, "%s/%s.so", test_tmpdir(), name);
    int rc = test_command(
        &out, "'%s' '%s' -o '%s' %s --target cpu:x86-64-v2,cuda", test_ampc(),
        test_data_path(model), to, demo_options(model));
    CHECK_MSG(rc == 0 && !strstr(out, "warning"), "%s: status %d\n%s", model,
              rc, out);
    free(out);
    return to;
}

static void open_module(Module *m, const char *path) {
    *m = (Module){.a = arena_new()};
    if (sections_open(m->a, &m->d, path, &m->f) != OK)
        FAIL("%s", m->d.text.data);
}

static void close_module(Module *m) {
    sections_close(&m->f);
    sb_free(&m->d.text);
    arena_free(m->a);
}

static char *read_section(Module *m, const PlanSection *s, size_t *n) {
    char *data;
    if (sections_read(m->a, &m->d, &m->f, s, &data, n) != OK)
        FAIL("%s", m->d.text.data);
    return data;
}

static char *read_named(Module *m, const char *name, size_t *n) {
    const PlanSection *s = sections_find(&m->f, name);
    if (!s) FAIL("no section %s", name);
    return read_section(m, s, n);
}

/* ---- images -------------------------------------------------------------- */

static const Elf64_Shdr *find_table(const char *elf, unsigned type) {
    Elf64_Ehdr h;
    memcpy(&h, elf, sizeof h);
    const Elf64_Shdr *s = (const void *)(elf + h.e_shoff);
    for (int i = 0; i < h.e_shnum; i++)
        if (s[i].sh_type == type) return &s[i];
    FAIL("a cubin without section type %u", type);
}

static bool has_function(const char *elf, const char *name) {
    Elf64_Ehdr h;
    memcpy(&h, elf, sizeof h);
    const Elf64_Shdr *all = (const void *)(elf + h.e_shoff);
    const Elf64_Shdr *t = find_table(elf, SHT_SYMTAB);
    const Elf64_Sym *sym = (const void *)(elf + t->sh_offset);
    const char *names = elf + all[t->sh_link].sh_offset;
    for (size_t i = 0; i < t->sh_size / sizeof *sym; i++)
        if (ELF64_ST_TYPE(sym[i].st_info) == STT_FUNC &&
            !strcmp(names + sym[i].st_name, name))
            return true;
    return false;
}

/* The architecture is the second byte of e_flags; the first before ELF ABI
   version 8 (CUDA 13). */
static int elf_arch(const Elf64_Ehdr *h) {
    bool new_abi = h->e_ident[EI_ABIVERSION] >= 8;
    return (int)(new_abi ? h->e_flags >> 8 : h->e_flags) & 0xff;
}

static void check_cubin(const char *data, size_t n, int arch) {
    Elf64_Ehdr h;
    REQUIRE(n > sizeof h);
    memcpy(&h, data, sizeof h);
    CHECK(!memcmp(h.e_ident, ELFMAG, SELFMAG));
    CHECK_EQ_INT(h.e_machine, 190); /* EM_CUDA */
    CHECK_EQ_INT(elf_arch(&h), arch);
}

static const char *ptxas(void) {
    static const char *const names[] = {"ptxas", "/usr/local/cuda/bin/ptxas"};
    for (int i = 0; i < 2; i++)
        if (test_command(NULL, "%s --version", names[i]) == 0) return names[i];
    return NULL;
}

/* In the version that a driver for CUDA 12.0 accepts; NVIDIA's own
   assembler, if it is installed, agrees that no kernel needs more. */
static void check_ptx(const char *data, size_t n) {
    const char *assembler = ptxas();
    char *out;
    REQUIRE(n > 1);
    CHECK(data[n - 1] == 0 && strlen(data) == n - 1);
    CHECK_HAS(data, ".version 8.0");
    CHECK_HAS(data, ".target sm_80");
    if (!assembler) return;
    REQUIRE(test_write_file(test_tmp("unit.ptx"), data, n - 1));
    int rc = test_command(&out, "%s -arch=sm_80 '%s' -o '%s'", assembler,
                          test_tmp("unit.ptx"), test_tmp("unit.cubin"));
    CHECK_MSG(rc == 0, "%s", out);
    free(out);
}

/* Name in `extern "C" __global__ void [__launch_bounds__(256)] k12(...`. */
static void kernel_name(const char *p, char *name, size_t size) {
    p += strspn(p, " \n");
    if (!strncmp(p, "__launch_bounds__", 17)) p = strchr(p, ')') + 1;
    p += strspn(p, " \n");
    snprintf(name, size, "%.*s", (int)strcspn(p, "("), p);
}

/* Every kernel of the unit's text is in the image. */
static void check_kernels(const char *text, const char *image, bool ptx,
                          const char *unit) {
    static const char start[] = "extern \"C\" __global__ void";
    int count = 0;
    for (const char *p = text; (p = strstr(p, start)); count++) {
        char name[64], entry[80];
        p += sizeof start - 1;
        kernel_name(p, name, sizeof name);
        snprintf(entry, sizeof entry, ".entry %s(", name);
        bool found =
            ptx ? strstr(image, entry) != NULL : has_function(image, name);
        CHECK_MSG(found, "%s is not in %s", name, unit);
    }
    CHECK(count > 0);
}

static void check_image(Module *m, const PlanSection *s) {
    char arch[32], twin[32];
    int unit = 0;
    size_t n, text_size;
    REQUIRE(sscanf(s->name, "cuda:%31[^:]:%d", arch, &unit) == 2);
    bool ptx = !strncmp(arch, "compute_", 8);
    char *data = read_section(m, s, &n);
    if (ptx)
        check_ptx(data, n);
    else
        check_cubin(data, n, atoi(arch + 3));
    snprintf(twin, sizeof twin, "txt:cuda:%d", unit);
    check_kernels(read_named(m, twin, &text_size), data, ptx, s->name);
}

/* "spill_stores":0 everywhere, and at least one */
static void check_spills(const char *json) {
    static const char *const keys[] = {"\"spill_stores\":", "\"spill_loads\":"};
    for (int k = 0; k < 2; k++) {
        const char *p = strstr(json, keys[k]);
        CHECK(p != NULL);
        for (; p; p = strstr(p + 1, keys[k]))
            CHECK_MSG(atoi(p + strlen(keys[k])) == 0, "%.200s", p - 100);
    }
}

static void check_demo(const char *model) {
    Module m;
    int images = 0;
    size_t n;
    require_nvrtc();
    open_module(&m, compile_demo(model, "first"));
    for (int i = 0; i < m.f.n; i++)
        if (!strncmp(m.f.dir[i].name, "cuda:", 5)) {
            check_image(&m, &m.f.dir[i]);
            images++;
        }
    CHECK(images >= 6); /* three architectures, two units or more */
    check_spills(read_named(&m, "json:kernels", &n));
    close_module(&m);
}

TEST_CASE(nvrtc, cnn_compiles) { check_demo("models/mnist_cnn.onnx"); }

TEST_CASE(nvrtc, mlp_compiles) { check_demo("models/mlp.onnx"); }

/* ---- targets ------------------------------------------------------------- */

TEST_CASE(nvrtc, same_bytes_twice) {
    size_t n[2];
    require_nvrtc();
    char *a = test_read_file(compile_demo("models/mlp.onnx", "one"), &n[0]);
    char *b = test_read_file(compile_demo("models/mlp.onnx", "two"), &n[1]);
    REQUIRE(a && b);
    CHECK_EQ_INT(n[0], n[1]);
    CHECK(n[0] == n[1] && !memcmp(a, b, n[0]));
    free(a);
    free(b);
}

static void check_refused(int status, const char *says, const char *target) {
    char *out;
    int rc = test_command(&out, "'%s' '%s' -o '%s/x.so' %s --target %s",
                          test_ampc(), test_data_path("models/mlp.onnx"),
                          test_tmpdir(), demo_options("mlp"), target);
    CHECK_MSG(rc == status, "%s: status %d\n%s", target, rc, out);
    CHECK_HAS(out, says);
    free(out);
}

TEST_CASE(nvrtc, unknown_architectures_are_listed) {
    require_nvrtc();
    check_refused(1, "cuda:sm_90", "cuda:sm_51");
    check_refused(1, "cuda:ptx", "cpu:x86-64-v2,cuda:sm_999");
    check_refused(2, "cuda:sm_NN", "cuda:hopper");
}

static int compile_mlp(const char *path, const char *target, char **out) {
    return test_command(out, "'%s' '%s' -o '%s' %s --target %s", test_ampc(),
                        test_data_path("models/mlp.onnx"), path,
                        demo_options("mlp"), target);
}

/* Blackwell, in NVRTC 12.8 and later. */
TEST_CASE(nvrtc, later_architectures_get_cubins) {
    char path[600], *out;
    Module m;
    int images = 0;
    require_nvrtc();
    snprintf(path, sizeof path, "%s/later.so", test_tmpdir());
    compile_mlp(path, "cuda:sm_51", &out); /* lists what it knows */
    bool known = strstr(out, "cuda:sm_100") && strstr(out, "cuda:sm_120");
    free(out);
    if (!known) SKIP("this NVRTC makes no code for sm_100 and sm_120");
    int rc = compile_mlp(path, "cuda:sm_100,cuda:sm_120", &out);
    CHECK_MSG(rc == 0, "status %d\n%s", rc, out);
    free(out);
    open_module(&m, path);
    for (int i = 0; i < m.f.n; i++) {
        const char *name = m.f.dir[i].name;
        if (strncmp(name, "cuda:", 5)) continue;
        check_image(&m, &m.f.dir[i]);
        images +=
            !strcmp(name, "cuda:sm_100:0") || !strcmp(name, "cuda:sm_120:0");
    }
    CHECK_EQ_INT(images, 2);
    close_module(&m);
}

/* A machine without any NVIDIA library trains a module with cubins. */
TEST_CASE(nvrtc, module_with_gpu_code_trains_on_the_cpu) {
    static const char text[] =
        "graph forward(%x: f32[4,3]) {\n  param %w: f32[3,2] = 0.5\n"
        "  %z = matmul %x, %w\n  return %z\n}\n";
    Compiled c = compile_text_cuda(text, "--loss mse", "cuda:sm_80");
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    ampc_session *s;
    char err[256];
    float x[12] = {1}, t[8] = {0};
    if (c.api->open(c.api->module, &o, &s, err, sizeof err)) FAIL("%s", err);
    ampc_input in[2] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                        ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    double first = step_ok(&c, s, in, 2).loss;
    CHECK(step_ok(&c, s, in, 2).loss < first);
    c.api->close(s);
    compiled_close(&c);
}

/* State after two optimizer steps on the CPU, for free(). */
static void *trained_state(Compiled c, size_t *bytes) {
    ampc_options o = {.size = sizeof o, .device = "cpu", .threads = 1};
    ampc_session *s;
    char err[256];
    float x[24], t[8] = {1, 0, 1};
    for (int i = 0; i < 24; i++) x[i] = (float)(i * 7 % 11) - 5;
    if (c.api->open(c.api->module, &o, &s, err, sizeof err)) FAIL("%s", err);
    ampc_input in[2] = {ampc_in("x", x, sizeof x, AMPC_DTYPE_F32),
                        ampc_in("target", t, sizeof t, AMPC_DTYPE_F32)};
    for (int i = 0; i < 4; i++) step_ok(&c, s, in, 2);
    void *all = read_all(&c, s, ~0u, bytes);
    c.api->close(s);
    compiled_close(&c);
    return all;
}

/* In a module that also has GPU code the steps are in another order, which
   changes no bit. */
TEST_CASE(nvrtc, gpu_code_changes_no_bit_on_the_cpu) {
    static const char text[] =
        "graph forward(%x: f32[4,6]) {\n"
        "  param %w: f32[6,5] = normal(1, 0.5), %b: f32[5] = 0\n"
        "  param %v: f32[5,2] = normal(2, 0.5), %c: f32[2] = 0\n"
        "  %h = matmul %x, %w\n  %i = add %h, %b\n  %r = tanh %i\n"
        "  %j = matmul %r, %v\n  %z = add %j, %c\n  return %z\n}\n";
    static const char options[] = "--loss mse --accumulate 2 --clip-norm 1";
    size_t n[2];
    void *with =
        trained_state(compile_text_cuda(text, options, "cuda:ptx"), &n[0]);
    void *without = trained_state(compile_text(text, options), &n[1]);
    CHECK_EQ_INT(n[0], n[1]);
    if (n[0] == n[1]) CHECK_MEM(with, without, n[0]);
    free(with);
    free(without);
}

/* PTX for target sm_80 equals the same PTX when compiled alone. */
TEST_CASE(nvrtc, ptx_alone_and_beside_a_cubin) {
    Module m[2];
    size_t n[2];
    char *ptx[2];
    Compiled c[2];
    static const char *const archs[2] = {"cuda:ptx", "cuda:ptx,cuda:sm_80"};
    for (int i = 0; i < 2; i++) {
        c[i] = compile_file_cuda(test_data_path("models/mlp.onnx"),
                                 demo_options("mlp"), archs[i]);
        open_module(&m[i], c[i].path);
        ptx[i] = read_named(&m[i], "cuda:compute_80:0", &n[i]);
    }
    check_ptx(ptx[0], n[0]);
    CHECK_STR(ptx[0], ptx[1]);
    CHECK(sections_find(&m[1].f, "cuda:sm_80:0") != NULL);
    for (int i = 0; i < 2; i++) {
        close_module(&m[i]);
        compiled_close(&c[i]);
    }
}

/* If another store writes the address after a single 16-bit store, such as
   `[%rd7+2]`, a vector was split. */
static void check_vectors(const char *ptx, const char *name) {
    static const char store[] = "st.global.u16 \t[";
    const char *entry = "";
    for (const char *p = ptx; *p; p += strcspn(p, "\n") + 1) {
        p += strspn(p, "\t ");
        int n = (int)strcspn(p, "\n");
        if (!strncmp(p, ".visible .entry ", 16)) entry = p + 16;
        if (strncmp(p, store, sizeof store - 1) != 0) continue;
        const char *by = memchr(p, '+', (size_t)n);
        CHECK_MSG(!by || atoi(by) != 2, "%s, %.8s ..: %.*s", name, entry, n, p);
    }
}

TEST_CASE(nvrtc, neighbours_are_stored_together) {
    Module m;
    int images = 0;
    Compiled c =
        compile_file_gpu_optimised(test_data_path("models/resnet18.amp"), "");
    open_module(&m, c.path);
    for (int k = 0; k < m.f.n; k++) {
        size_t n;
        if (strncmp(m.f.dir[k].name, "cuda:", 5) != 0) continue;
        check_vectors(read_section(&m, &m.f.dir[k], &n), m.f.dir[k].name);
        images++;
    }
    CHECK(images > 0);
    close_module(&m);
    compiled_close(&c);
}

/* In a tensor with more than 2^31 elements, indices need no 64-bit division,
   which would be a loop; shapes of products never need one. */
TEST_CASE(nvrtc, places_in_large_tensors_are_found_in_32_bits) {
    Module m;
    int kernels = 0;
    Compiled c = compile_file_gpu_optimised(
        test_data_path("models/gpt.amp"),
        "--dim B=64 --dim T=1024 --dim L=1 --dim D=64 --dim HEADS=1");
    open_module(&m, c.path);
    for (int k = 0; k < m.f.n; k++) {
        const char *entry = "";
        size_t n;
        if (strncmp(m.f.dir[k].name, "cuda:", 5) != 0) continue;
        for (const char *p = read_section(&m, &m.f.dir[k], &n); *p;
             p += strcspn(p, "\n") + 1) {
            p += strspn(p, "\t ");
            if (!strncmp(p, ".visible .entry ", 16)) {
                entry = p + 16;
                kernels += *entry == 'k';
            }
            bool divides =
                (!strncmp(p, "div.", 4) || !strncmp(p, "rem.", 4)) &&
                (!strncmp(p + 4, "s64", 3) || !strncmp(p + 4, "u64", 3));
            CHECK_MSG(!divides || *entry != 'k', "%.8s divides: %.40s", entry,
                      p);
        }
    }
    CHECK(kernels > 20);
    close_module(&m);
    compiled_close(&c);
}

/* Nothing is left to the driver to fuse, so that --quick has the same bits. */
TEST_CASE(nvrtc, quick_code_rounds_every_operation) {
    static const char *const unrounded[] = {"\tadd.f", "\tsub.f", "\tmul.f",
                                            "\tfma.f", "\tmad.f"};
    Module m;
    size_t n;
    Compiled c = compile_file_gpu(test_data_path("models/mlp.onnx"),
                                  demo_options("mlp"));
    open_module(&m, c.path);
    char *ptx = read_named(&m, "cuda:compute_80:0", &n);
    CHECK(strstr(ptx, "\tmul.rn.f32") && strstr(ptx, "\tadd.rn.f32"));
    for (size_t i = 0; i < sizeof unrounded / sizeof *unrounded; i++)
        CHECK_MSG(!strstr(ptx, unrounded[i]), "%s", unrounded[i]);
    close_module(&m);
    compiled_close(&c);
}

/* The text that --emit-cuda writes is the text in the module. */
TEST_CASE(nvrtc, emitted_text_is_what_was_compiled) {
    Module m;
    size_t n;
    char path[600];
    Compiled c = compile_file_cuda(test_data_path("models/mlp.onnx"),
                                   demo_options("mlp"), "cuda:sm_80");
    open_module(&m, c.path);
    snprintf(path, sizeof path, "%s/unit0.cu", c.cuda_dir);
    char *text = test_read_file(path, NULL);
    REQUIRE(text != NULL);
    CHECK_STR(text, read_named(&m, "txt:cuda:0", &n));
    snprintf(path, sizeof path, "%s/kmath.h", c.cuda_dir);
    char *header = test_read_file(path, NULL);
    CHECK(header != NULL);
    free(header);
    char *shown;
    CHECK_EQ_INT(
        test_command(&shown, "'%s' inspect '%s' --cuda", test_ampc(), c.path),
        0);
    CHECK_HAS(shown, text);
    free(shown);
    free(text);
    close_module(&m);
    compiled_close(&c);
}
