/* target_text.c: .amp text: what is read can be written and read again, and is
   compiled up to the sources or refused with a message.                     */
#include "tests/fuzz/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_text(Compile *c, const uint8_t *p, size_t n) {
    compile_begin(c, p, n);
    Status s =
        parse_module(c->a, &c->d, "input.amp", (const char *)p, n, &c->m);
    if (s == OK) s = verify_module(c->m, STAGE_TYPED, &c->d);
    compile_check(c, s);
    return s == OK;
}

/* What is printed is read, and printed the same. */
static void check_round_trip(const Compile *c) {
    StrBuf once = {0}, twice = {0};
    Diag d = {0};
    Module *back = NULL;
    print_module(c->m, &once);
    fuzz_check(parse_module(c->a, &d, "printed", once.data, once.len, &back) ==
                   OK,
               "the printed text is not read: %s\n%s", d.text.data, once.data);
    print_module(back, &twice);
    fuzz_check(!strcmp(once.data, twice.data), "two texts:\n%s\n%s", once.data,
               twice.data);
    sb_free(&once);
    sb_free(&twice);
    sb_free(&d.text);
}

/* A recipe over an ONNX file is no model until the driver has read that. */
void amp_run(const uint8_t *p, size_t n) {
    Compile c;
    if (read_text(&c, p, n) && !c.m->onnx) {
        check_round_trip(&c);
        if (compile_is_short(&c)) compile_all(&c);
    }
    compile_end(&c);
}

/* One to four passes that stand in order, chosen by the bytes. */
static void pass_names(const Compile *c, char names[200]) {
    uint64_t h = c->hash;
    int row = 0, n = 0;
    for (int k = 0; k < 4; k++, h >>= 8) {
        row += (int)(h % (k ? 4 : (uint64_t)pipeline_length));
        if (row >= pipeline_length) return;
        n += snprintf(names + n, (size_t)(200 - n), "%s%s", k ? "," : "",
                      pipeline[row++].name);
        if (h >> 4 & 1) return;
    }
}

void opt_run(const uint8_t *p, size_t n) {
    Compile c;
    char names[200] = "";
    if (read_text(&c, p, n) && !c.m->onnx) {
        pass_names(&c, names);
        Status s = run_passes(c.m, &c.d, &c.opt, names, false);
        compile_check(&c, s == ERR_USAGE ? ERR_USER : s);
        if (s == OK) {
            check_round_trip(&c);
            fuzz_taken();
        }
    }
    compile_end(&c);
}

/* A model, of one layer instead of many: those take a second and more. */
static void seed_model(const char *name) {
    static const char many[] = ", L = ";
    char path[4096];
    Diag d = {0};
    StrBuf sb = {0};
    size_t n;
    snprintf(path, sizeof path, "%s/models/%s.amp", fuzz_root(), name);
    char *text = read_file(&d, path, &n);
    fuzz_check(text != NULL, "%s", path);
    const char *layers = strstr(text, many), *rest = text;
    if (layers) {
        rest = layers + strlen(many);
        sb_putn(&sb, text, (size_t)(rest - text));
        sb_puts(&sb, "1");
        rest += strspn(rest, "0123456789");
    }
    sb_puts(&sb, rest);
    fuzz_seed(sb.data, sb.len);
    sb_free(&sb);
    free(text);
}

void amp_seeds(void) {
    fuzz_seed_files("tests/ops", ".amp");
    fuzz_seed_files("tests/golden/programs", ".amp");
    fuzz_seed_files("tests/golden/loss", ".amp");
    fuzz_seed_files("tests/golden/canon", ".amp");
    fuzz_seed_files("tests/golden/text", ".amp");
    seed_model("mlp");
    seed_model("cnn");
    seed_model("gpt");
    seed_model("llama");
    seed_model("vit");
    seed_model("bert");
    seed_model("wgan_gp");
}

void opt_seeds(void) {
    fuzz_seed_files("tests/golden", ".amp");
    fuzz_seed_files("tests/ops", ".amp");
}

const char *const *amp_words(void) {
#define NUMBERED(...)
    static const char *const words[] = {
#define OP(e, text, ...) text,
#include "ir/op/ops.def"
#define ATTR(name, kind, dflt) #name "=",
#include "ir/op/ops.def"
#define DTYPE(e, text, ...) text "[2,3]",
#include "ir/graph/dtypes.def"
#undef DTYPE
        "graph forward(%x: f32[2,3]) {\n",
        "  param %w: f32[3,4] = ",
        "  frozen %v: f32[3] = 1\n",
        "  buffer %b: f32[3] = 0\n",
        "  state %s: f32[] = 0\n",
        "  shadow %h: bf16[3,4]\n",
        "  const %c: f32[2] = {1, 2}\n",
        "  write %w = %w\n",
        "  return %x\n",
        "  group point {\n",
        "  group row {\n",
        "  group anchor {\n",
        "  group lib {\n",
        " beside ",
        " on cpu",
        " on cuda",
        " arena 4096",
        "def f(x, k=1) -> y class follow { y = x * k }\n",
        "dim B = 2\n",
        "model m(x: f32[B,3]) {\n",
        "  y = Linear(x, units=4, scope=\"fc\")\n",
        "  for i in 0..3 { x = x @ x }\n",
        "  if rank(x) == 2 { y = x } else { y = -x }\n",
        "  param w: f32[B,3] = kaiming\n",
        "  buffer v: f32[3] = ones\n",
        "  write v = v * 2\n",
        "  scope \"a.\" + 1 { y = relu(x) }\n",
        "  autocast off { y = softmax(x) }\n",
        "  return y = mean(x)\n",
        "def l(x; n = 1) -> y { y = x * n }\n",
        "train m { loss = mse }\n",
        "policy m { op relu full }\n",
        "model m = onnx(\"a.onnx\")\n",
        " for i in 0..9 ",
        " if x else y",
        "ampc.loss=",
        "!backward",
        "!update",
        " : f32[]",
        "0.5",
        "nan",
        "-inf",
        "[]",
        "{",
        "}",
        "(",
        ")",
        "%",
        "\"",
        "\\x00",
        "#",
        "=",
        "->",
        "..",
        "//",
        "/*",
        NULL};
    return words;
}

const char *const *opt_words(void) { return amp_words(); }
