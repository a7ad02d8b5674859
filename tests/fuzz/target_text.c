/* SPDX-License-Identifier: Apache-2.0 */
/* target_text.c: accepted .amp text can be written and read again, keeps its
   meaning in a new layout, and is compiled up to the sources or refused with a
   message. */
#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "tests/fuzz/compile.h"
#include "tests/support/changed_graph.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Printed text reads back, and prints the same. */
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

static bool same_text(const StrBuf *x, const StrBuf *y) {
    return x->len == y->len && (!x->len || !memcmp(x->data, y->data, x->len));
}

/* Continued lines keep their distance from the start of the first line,
   which is not the definition's if that begins after something else. */
static bool same_but_columns(const StrBuf *x, const StrBuf *y) {
    const char *p = x->data, *q = y->data;
    for (; *p && *p == *q; p++, q++)
        if (*p == '\n') p += strspn(p + 1, " "), q += strspn(q + 1, " ");
    return *p == *q;
}

/* The text in the layout of `ampc fmt`, which must not change when laid out
   again; false: the text has no layout. */
static bool lay_out(const char *text, size_t n, StrBuf *once) {
    StrBuf twice = {0};
    Diag d = {0};
    Status s = amp_format(&d, "input.amp", text, n, once);
    fuzz_check(s == OK || (s == ERR_USER && d.errors), "format: status %d", s);
    if (s == OK && once->len) {
        Status again =
            amp_format(&d, "laid-out.amp", once->data, once->len, &twice);
        fuzz_check(again == OK && same_text(once, &twice),
                   "laid out twice: %s\n%s\n%s", d.text.data, once->data,
                   twice.data);
    }
    sb_free(&twice);
    sb_free(&d.text);
    return s == OK;
}

/* The module in those bytes, as text; its definitions are unchanged. *raw:
   some lines have no meaning yet. false: there is none. */
static bool read_and_print(const char *text, size_t n, StrBuf *sb, bool *raw) {
    Compile c = {.a = arena_new()};
    Status s = compile_parse(&c, (const uint8_t *)text, n);
    if (s == OK) {
        print_module(c.m, sb);
        *raw = c.m->settings.len || c.m->policy.len;
        if (!c.m->onnx) check_round_trip(&c);
    }
    compile_check(&c, s);
    compile_end(&c);
    return s == OK;
}

/* A text in a new layout has the same meaning. */
void text_run(const uint8_t *p, size_t n) {
    StrBuf text = {0}, said = {0}, again = {0}, x = {0}, y = {0};
    bool raw, module = read_and_print((const char *)p, n, &said, &raw);
    bool has = lay_out((const char *)p, n, &text);
    fuzz_check(has || !module || raw, "not laid out:\n%s", said.data);
    if (module && has) {
        fuzz_check(read_and_print(text.data, text.len, &again, &raw),
                   "no module:\n%s", text.data);
        bool laid = lay_out(said.data, said.len, &x) &&
                    lay_out(again.data, again.len, &y);
        fuzz_check(laid && same_but_columns(&x, &y), "another module:\n%s\n%s",
                   x.data, y.data);
        fuzz_taken();
    }
    StrBuf *all[] = {&text, &said, &again, &x, &y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) sb_free(all[i]);
}

/* The first graph, changed, unless it is too long. */
size_t graph_mutate(uint8_t *p, size_t n) {
    enum { MOST = 400 };
    Compile c = {.a = arena_new()};
    StrBuf sb = {0};
    if (compile_parse(&c, p, n) == OK && !c.m->onnx && c.m->graphs.len &&
        c.m->graphs.data[0]->order.len <= MOST) {
        const Module *m = changed_graph(c.a, c.m->graphs.data[0], fuzz_below);
        if (m) print_module(m, &sb);
    }
    size_t size = sb.len <= FUZZ_MOST ? sb.len : 0;
    if (size) memcpy(p, sb.data, size);
    sb_free(&sb);
    compile_end(&c);
    return size;
}

/* A recipe over an ONNX file is a model only when the driver has read that
   file. */
void amp_run(const uint8_t *p, size_t n) {
    Compile c;
    if (compile_read(&c, p, n) && !c.m->onnx) {
        check_round_trip(&c);
        if (compile_is_short(&c)) compile_all(&c);
    }
    compile_end(&c);
}

/* One to four passes in their order, chosen by the bytes. */
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
    if (compile_read(&c, p, n) && !c.m->onnx) {
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

/* [at, end) of the line `dim`: numbers above `most` become `most`, and
   widths twice that, so that heads can share them. */
static void put_small(StrBuf *sb, const char *at, const char *end, long most) {
    while (at < end) {
        char *behind = NULL;
        long n = *at >= '0' && *at <= '9' ? strtol(at, &behind, 10) : 0;
        if (behind)
            sb_printf(sb, "%ld", n <= most ? n : n < 64 ? most : 2 * most);
        else
            sb_putn(sb, at, 1);
        at = behind ? behind : at + 1;
    }
}

/* A model with one layer instead of many, which would take a second and
   more. Its other sizes are at most `most`. */
static void seed_model(const char *name, long most) {
    static const char dims[] = "\ndim ", many[] = ", L = ";
    char path[4096];
    Diag d = {0};
    StrBuf sb = {0};
    size_t n;
    snprintf(path, sizeof path, "%s/models/%s.amp", fuzz_root(), name);
    char *text = read_file(&d, path, &n);
    fuzz_check(text != NULL, "%s", path);
    const char *at = strstr(text, dims);
    const char *end = at ? strchr(at + 1, '\n') : NULL;
    fuzz_check(end != NULL, "no sizes: %s", path);
    const char *layers = strstr(at, many);
    if (layers && layers < end) layers += strlen(many);
    sb_putn(&sb, text, (size_t)(at - text));
    put_small(&sb, at, layers && layers < end ? layers : end, most);
    if (layers && layers < end) {
        sb_puts(&sb, "1");
        layers += strspn(layers, "0123456789");
        put_small(&sb, layers, end, most);
    }
    sb_puts(&sb, end);
    fuzz_seed(sb.data, sb.len);
    sb_free(&sb);
    free(text);
}

static void seed_models(long most) {
    static const char *const names[] = {"mlp", "cnn",  "gpt",    "llama",
                                        "vit", "bert", "wgan_gp"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        seed_model(names[i], most);
}

/* Seeds with the inputs of passes and with their expected results, which are IR
   as well. */
static void seed_golden(const void *p, size_t n) {
    static const char half[] = "# ---- expect";
    const char *text = p, *out = strstr(text, half);
    size_t first = out ? (size_t)(out - text) : n;
    fuzz_seed(text, first);
    if (out) fuzz_seed(out, n - first);
}

/* [at, end) in fp32, whatever its dtypes were. */
static void put_f32(StrBuf *sb, const char *at, const char *end) {
    static const char *const types[] = {"$T", "bf16", "f16"};
    while (at < end) {
        size_t n = 0;
        for (int i = 0; i < 3 && !n; i++)
            if (!strncmp(at, types[i], strlen(types[i]))) n = strlen(types[i]);
        if (n)
            sb_puts(sb, "f32");
        else
            sb_putn(sb, at, 1);
        at += n ? n : 1;
    }
}

/* Graphs of a test of ops or of a pass, each as a model in fp32. */
static void seed_graphs(const void *p, size_t n) {
    static const char begin[] = "graph ";
    const char *at = strstr(p, begin), *end = (const char *)p + n;
    while (at) {
        StrBuf sb = {0};
        const char *next = strstr(at + 1, "\ngraph ");
        at = strchr(at, '(');
        sb_puts(&sb, "graph forward");
        if (at) put_f32(&sb, at, next ? next : end);
        fuzz_seed(sb.data, sb.len);
        sb_free(&sb);
        at = next ? next + 1 : NULL;
    }
}

static void seed_golden_files(const char *folder) {
    fuzz_each_file(folder, ".amp", seed_golden);
}

void amp_seeds(void) {
    fuzz_seed_files("tests/ops", ".amp");
    seed_golden_files("tests/golden/programs");
    seed_golden_files("tests/golden/loss");
    seed_golden_files("tests/golden/canon");
    seed_golden_files("tests/golden/text");
    seed_models(INT_MAX);
}

void text_seeds(void) {
    amp_seeds();
    opt_seeds();
}

void opt_seeds(void) {
    seed_golden_files("tests/golden");
    fuzz_seed_files("tests/ops", ".amp");
}

void passes_seeds(void) {
    fuzz_each_file("tests/ops", ".amp", seed_graphs);
    fuzz_each_file("tests/golden", ".amp", seed_graphs);
    seed_models(4);
}

const char *const *amp_words(void) {
#define NUMBERED(...)
    static const char *const words[] = {
#define OP(e, text, ...) text,
#include "ir/op/ops.def"
#define ATTR(name, kind, dflt) #name "=",
#include "ir/op/ops.def"
#define DTYPE(e, text, ...) text "[2,3]",
#include "runtime/program/dtypes.def"
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

const char *const *text_words(void) { return amp_words(); }
const char *const *opt_words(void) { return amp_words(); }
const char *const *passes_words(void) { return amp_words(); }
