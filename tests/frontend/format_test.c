/* SPDX-License-Identifier: Apache-2.0 */
/* format_test.c: the layout of `ampc fmt`: all .amp files of the repository
   have it, formatting again changes nothing, and the text keeps its meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "tests/harness.h"

static char *formatted(const char *text, size_t n) {
    StrBuf sb = {0};
    Diag d = {0};
    sb_puts(&sb, "");
    if (amp_format(&d, "m.amp", text, n, &sb) != OK) FAIL("%s", d.text.data);
    return sb.data;
}

static void check_refused(const char *text, size_t n, const char *want) {
    StrBuf sb = {0};
    Diag d = {0};
    CHECK(amp_format(&d, "m.amp", text, n, &sb) == ERR_USER);
    CHECK_STR(d.text.data, want);
    sb_free(&sb);
    sb_free(&d.text);
}

/* The IR of the model in a text; the caller frees it. */
static char *meaning(const char *text) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m;
    StrBuf sb = {0};
    if (parse_module(a, &d, "m.amp", text, strlen(text), &m) != OK)
        FAIL("%s", d.text.data);
    print_module(m, &sb);
    arena_free(a);
    char *graph = strstr(sb.data, "graph ");
    REQUIRE(graph);
    memmove(sb.data, graph, strlen(graph) + 1); /* after the definitions */
    return sb.data;
}

TEST_CASE(format, of_the_models_and_the_library) {
    static const char *const files[] = {
        "models/bert.amp",     "models/cnn.amp",      "models/finetune.amp",
        "models/gpt.amp",      "models/llama.amp",    "models/mlp.amp",
        "models/resnet18.amp", "models/resnet50.amp", "models/unet.amp",
        "models/vit.amp",      "models/wgan_gp.amp",  "models/wgan_gp_onnx.amp",
        "ir/fn/std.amp",       "ir/fn/layers.amp",    "ir/fn/microsoft.amp",
        "ir/fn/special.amp",   "ir/fn/linalg.amp"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        char *text = test_read_file(test_data_path(files[i]), &n);
        REQUIRE(text);
        char *got = formatted(text, n);
        CHECK_MSG(strlen(got) == n && !memcmp(got, text, n),
                  "%s: ampc fmt prints it otherwise", files[i]);
        free(text);
        free(got);
    }
}

/* Without optional blanks, and with too many. */
static const char ugly[] =
    "\n\n# a model\n"
    "dim B=2,H = 4 # symbols\n"
    "def two(x ; units:int,\n"
    "        a: float=0.5)->y {\n"
    "y=relu(Linear( x,units =units )*-a-(1-2))\n"
    "  }\n\n\n"
    "model   m(x:f32[B, 3]) {\n"
    "   checkpoint{ x=two(x,units=H) }\n"
    "# inside\n"
    "  for i in [1,2][0] .. 3 { x = x+x *i   # twice\n"
    "    }\n"
    "  if rank(x)==2 and not false{ h = [H,H][-1] }else{ h=1 }\n"
    "  param w:f32[4, h+1]=kaiming { lr_scale = 2 ,weight_decay=0 }\n"
    "  %r = relu  %x_1 : f32[2,4]\n"
    "  return logits=x@w ,\n"
    "       y = %r\n"
    "}\n"
    "train m {\n"
    "loss = mse:y\n"
    "  optimizer=sgd,  lr=0.1\n"
    "  target = cpu ; seed = 1\n"
    "}\n"
    "policy m{ op relu   full }\n\n";

static const char pretty[] =
    "# a model\n"
    "dim B = 2, H = 4  # symbols\n"
    "def two(x; units: int,\n"
    "        a: float = 0.5) -> y {\n"
    "  y = relu(Linear(x, units=units) * -a - (1 - 2))\n"
    "}\n"
    "\n"
    "model m(x: f32[B,3]) {\n"
    "  checkpoint { x = two(x, units=H) }\n"
    "  # inside\n"
    "  for i in [1, 2][0]..3 { x = x + x * i  # twice\n"
    "  }\n"
    "  if rank(x) == 2 and not false { h = [H, H][-1] } else { h = 1 }\n"
    "  param w: f32[4,h + 1] = kaiming {lr_scale=2, weight_decay=0}\n"
    "  %r = relu %x_1 : f32[2,4]\n"
    "  return logits = x @ w,\n"
    "       y = %r\n"
    "}\n"
    "train m {\n"
    "  loss      = mse:y\n"
    "  optimizer = sgd, lr=0.1\n"
    "  target = cpu ; seed = 1\n"
    "}\n"
    "policy m { op relu full }\n";

/* Blanks in one line of a model, before and after formatting. */
TEST_CASE(format, blanks_of_a_line) {
    static const char *const rows[][2] = {
        {"y=a+b", "y = a + b"},
        {"y=a- -b", "y = a - -b"},
        {"y=-a", "y = -a"},
        {"y=(-a)", "y = (-a)"},
        {"y=[-1,-a]", "y = [-1, -a]"},
        {"y=a*-b", "y = a * -b"},
        {"return-a", "return -a"},
        {"y=a and-b", "y = a and -b"},
        {"y=f( -a )", "y = f(-a)"},
        {"y=a//b % c@d", "y = a // b % c @ d"},
        {"y=a<b", "y = a < b"},
        {"y=a<=b", "y = a <= b"},
        {"y=a>=b", "y = a >= b"},
        {"y=a>b", "y = a > b"},
        {"y=a==b", "y = a == b"},
        {"y=a!=b", "y = a != b"},
        {"y=not a", "y = not a"},
        {"y=a or b", "y = a or b"},
        {"y=f(a,b=1)", "y = f(a, b=1)"},
        {"y=f(a , b = 1)", "y = f(a, b=1)"},
        {"y=f (a)", "y = f(a)"},
        {"y = x [1]", "y = x[1]"},
        {"y=f(a)[0]", "y = f(a)[0]"},
        {"y=[1][0]", "y = [1][0]"},
        {"y=(a)[0]", "y = (a)[0]"},
        {"y=a,b", "y = a, b"},
        {"a,b=f(x)", "a, b = f(x)"},
        {"for i in 0 .. 3 { y=a }", "for i in 0..3 { y = a }"},
        {"for i in[1]{ y=a }", "for i in [1] { y = a }"},
        {"if(a){ y=1 }else{ y=2 }", "if (a) { y = 1 } else { y = 2 }"},
        {"y=1e-3+2.5E+4", "y = 1e-3 + 2.5E+4"},
        {"y=1.5", "y = 1.5"},
        {"y=a.b", "y = a.b"},
        {"y=1:f32", "y = 1:f32"},
        {"param w:f32[a,b+1]=ones", "param w: f32[a,b + 1] = ones"},
        {"param w:bool[2]=0", "param w: bool[2] = 0"},
        {"buffer b:i64[2]", "buffer b: i64[2]"},
        {"state s:f16[2]{lr_scale = 2,weight_decay=0 }",
         "state s: f16[2] {lr_scale=2, weight_decay=0}"},
        {"frozen w:bf16[2 , 3]", "frozen w: bf16[2,3]"},
        {"y=f32 [2]", "y = f32[2]"},
        {"y=f32 [2, 3]", "y = f32[2,3]"},
        {"require a==b,\"x  y\",a", "require a == b, \"x  y\", a"},
        {"scope\"a\"{ y=b }", "scope \"a\" { y = b }"},
        {"autocast off{ y=a }", "autocast off { y = a }"},
        {"y=a#b", "y = a  #b"},
        {"#x", "#x"},
        {"y=\"#\"", "y = \"#\""},
        {"y=\"a\\\"b\"+c", "y = \"a\\\"b\" + c"},
        {"%y=relu   %x:f32[2]", "%y=relu %x:f32[2]"},
        {"y=%a.b-c", "y=%a.b-c"},
        {"y =  a%b", "y = a%b"},
        {"y=a % 2", "y = a % 2"},
        {"write b=x", "write b = x"},
        {"y=x if a else z", "y = x if a else z"},
        {"y=[i*2 for i in 0..3 if i!=1]",
         "y = [i * 2 for i in 0..3 if i != 1]"},
        {"y=f(a= =1)", "y = f(a= =1)"},
        {"return a-b=c-d", "return a-b = c - d"},
        {"return a--3/b.c =c,d-2- = x", "return a--3/b.c = c, d-2- = x"},
        {"return a - b-c=d", "return a - b-c = d"},
        {"dim a ..=1", "dim a.. = 1"},
        {"dim a. .b-c. = 1", "dim a. .b-c. = 1"},
        {"return a//b..2:1 = x[a-b]", "return a//b..2:1 = x[a - b]"},
        {"y=f()", "y = f()"},
        {"y=[]", "y = []"},
        {"y=f(g(a),h(b))", "y = f(g(a), h(b))"},
        {"y=a[1][2]", "y = a[1][2]"},
        {"y=a(b)-c", "y = a(b) - c"},
        {"y=a[1]-c", "y = a[1] - c"},
        {"y=3-c", "y = 3 - c"},
        {"y=\"a\"-c", "y = \"a\" - c"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[200], want[200];
        snprintf(text, sizeof text, "model m(x: f32[2]) {\n%s\n}\n",
                 rows[i][0]);
        snprintf(want, sizeof want, "model m(x: f32[2]) {\n  %s\n}\n",
                 rows[i][1]);
        char *got = formatted(text, strlen(text));
        char *again = formatted(got, strlen(got));
        CHECK_STR(got, want);
        CHECK_STR(again, want);
        free(got);
        free(again);
    }
}

/* Lines before and after formatting: blocks, continued lines, empty lines. */
TEST_CASE(format, lines) {
    static const char *const rows[][2] = {
        {"\n\na = 1\n\n\n\nb = 2\n\n", "a = 1\n\nb = 2\n"},
        {"a = 1  \t\r\n", "a = 1\n"},
        {"a = 1", "a = 1\n"},
        {"y = f(a,\n      b)\n", "y = f(a,\n      b)\n"},
        {"y = f(a,\nb)\n", "y = f(a,\n  b)\n"},
        {"y = f(a,\n b\n)\n", "y = f(a,\n  b\n)\n"},
        {"  y = f(a,\n     b)\nz = 1\n", "y = f(a,\n   b)\nz = 1\n"},
        {"y = a +\nb\nz = 1\n", "y = a +\n  b\nz = 1\n"},
        {"y = a and\nb\n", "y = a and\n  b\n"},
        {"y = a or # c\nb\n", "y = a or  # c\n  b\n"},
        {"y =\nb\n", "y =\n  b\n"},
        {"return a-b\n= x\n", "return a-b\n= x\n"},
        {"return a-b # c\n\n# d-e\n=x\n", "return a-b  # c\n\n# d-e\n= x\n"},
        {"return a-b\n== x\n", "return a - b\n==x\n"},
        {"y = a,\n# c\nb\nz = 1\n", "y = a,\n  # c\n  b\nz = 1\n"},
        {"if a {\nif b {\ny = 1\n}\n}\n",
         "if a {\n  if b {\n    y = 1\n  }\n}\n"},
        {"if a {\ny = 1\n} else {\ny = 2\n}\n",
         "if a {\n  y = 1\n} else {\n  y = 2\n}\n"},
        {"train m {\na=1\nlonger  = 2\n  # c\nb   = 3,  x=1\n}\nz=1\n",
         "train m {\n  a      = 1\n  longer = 2\n  # c\n  b      = 3, x=1\n}\n"
         "z = 1\n"},
        {"train m { a=1 }\ny=1\n", "train m { a = 1 }\ny = 1\n"},
        {"policy m {\nop  Add   low\n}\n", "policy m {\n  op Add low\n}\n"},
        {"dim A=1,B = 2\n", "dim A = 1, B = 2\n"},
        {"model m = onnx( \"f\" )\n", "model m = onnx(\"f\")\n"},
        {"def f(x?,y:float;n:int=3)->z class low{z=x}\n",
         "def f(x?, y: float; n: int = 3) -> z class low { z = x }\n"},
        {"def f(x)->y {\ny=x\n}grad(dy)->dx{\ndx=dy\n}\n",
         "def f(x) -> y {\n  y = x\n} grad (dy) -> dx {\n  dx = dy\n}\n"},
        {"graph g(%x: f32[2]) {\n  %y=relu   %x\n}\n",
         "graph g(%x: f32[2]) {\n  %y=relu %x\n}\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *got = formatted(rows[i][0], strlen(rows[i][0]));
        char *again = formatted(got, strlen(got));
        CHECK_STR(got, rows[i][1]);
        CHECK_STR(again, rows[i][1]);
        free(got);
        free(again);
    }
}

TEST_CASE(format, of_every_kind_of_line) {
    char *got = formatted(ugly, sizeof ugly - 1);
    char *again = formatted(got, strlen(got));
    CHECK_STR(got, pretty);
    CHECK_STR(again, pretty);
    free(got);
    free(again);
}

/* Shapes contain no blanks; lists do. */
TEST_CASE(format, shapes_of_every_type) {
    static const char *const types[] = {"f32",  "f64", "f16", "bf16",
                                        "bool", "i64", "i32", "u8"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char text[120], want[120];
        snprintf(text, sizeof text,
                 "model m(x: %s[2, 3]) {\n  y = f(x, [2,3])\n}\n", types[i]);
        snprintf(want, sizeof want,
                 "model m(x: %s[2,3]) {\n  y = f(x, [2, 3])\n}\n", types[i]);
        char *got = formatted(text, strlen(text));
        CHECK_STR(got, want);
        free(got);
    }
}

/* An entry on the same line as a block's closing brace stays there. */
TEST_CASE(format, entries_and_the_end_of_their_block) {
    static const char text[] = "train m {\nloss=mse\n  lr=1 }\n";
    char *got = formatted(text, sizeof text - 1);
    CHECK_STR(got, "train m {\n  loss = mse\n  lr=1 }\n");
    free(got);
}

static const char plain[] =
    "dim B=2\n"
    "def two(x;units:int)->y{y=relu( Linear(x,units =units)*-0.5)}\n"
    "model m(x:f32[B, 3]) {\n"
    "for i in 0 .. 2{ x=two(x,units=4-1,scope=\"s\"+i) }\n"
    "  param w : f32[3,4]=kaiming{lr_scale = 2}\n"
    "  return logits=x@w\n}\n";

TEST_CASE(format, keeps_what_a_text_says) {
    char *text = formatted(plain, sizeof plain - 1);
    char *want = meaning(plain), *got = meaning(text), *read = meaning(got);
    CHECK_STR(got, want);
    CHECK_STR(read, want); /* ampc fmt --expand */
    free(text);
    free(want);
    free(got);
    free(read);
}

/* Time is linear in the text: 100,000 comments took half a minute when each
   line searched for a word after all of them. */
TEST_CASE(format, many_comments) {
    StrBuf sb = {0};
    sb_puts(&sb, "model m(x: f32[2]) {\n  y = x\n");
    for (int i = 0; i < 100000; i++) sb_puts(&sb, "  # c\n");
    sb_puts(&sb, "  return z = y\n}\n");
    clock_t begin = clock();
    char *got = formatted(sb.data, sb.len);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    CHECK_MSG(seconds < 4, "%g s", seconds);
    CHECK(!strcmp(got, sb.data));
    free(got);
    sb_free(&sb);
}

/* Names as exporters write them; neither / nor : begins an operand with %. */
TEST_CASE(format, names_that_begin_with_a_mark) {
    static const char text[] = "graph forward(%/in: f32[2]) {\n"
                               "  %/relu/out_0 = relu %/in : f32[2]\n"
                               "  %:0 = relu %/relu/out_0 : f32[2]\n"
                               "  %-1 = relu %:0 : f32[2]\n"
                               "  %.1 = relu %-1 : f32[2]\n"
                               "  return y=%.1\n}\n";
    char *got = formatted(text, sizeof text - 1);
    char *want = meaning(text), *read = meaning(got);
    CHECK_STR(got, text);
    CHECK_STR(read, want);
    free(got);
    free(want);
    free(read);
}

/* Any bytes, at any nesting depth. */
TEST_CASE(format, of_hostile_texts) {
    static const char *const texts[] = {"",       "%",       "train", "# ",
                                        "\t\r\n", "1..2...", "x=-",   "def",
                                        "=",      ",,",      "{[()]}"};
    char deep[600];
    memset(deep, '(', sizeof deep);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *got = formatted(texts[i], strlen(texts[i]));
        char *again = formatted(got, strlen(got));
        CHECK_STR(again, got);
        free(got);
        free(again);
    }
    free(formatted("\0\xff%\0", 4));
    check_refused(deep, 3,
                  "m.amp:1:3: error: '(' is not closed\n  (((\n    ^\n");
    memset(deep + 300, ')', 300);
    free(formatted(deep, sizeof deep));
}

/* With the place, as in messages of the model's parser. */
TEST_CASE(format, of_texts_that_have_none) {
    static const char *const texts[][2] = {
        {"graph g() {\n  a\n", "m.amp:1:11: error: '{' is not closed\n  "
                               "graph g() {\n            ^\n"},
        {"a\n  f(1]", "m.amp:2:6: error: ']' closes another bracket\n    "
                      "f(1]\n       ^\n"},
        {"}", "m.amp:1:1: error: '}' closes no bracket\n  }\n  ^\n"},
        {"a = \"\\\"\n\"",
         "m.amp:1:5: error: '\"' has no end\n  a = \"\\\"\n      ^\n"},
        {"%\"x", "m.amp:1:1: error: '%' has no end\n  %\"x\n  ^\n"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_refused(texts[i][0], strlen(texts[i][0]), texts[i][1]);
}

/* Columns count characters, however many bytes they have. */
TEST_CASE(format, counts_characters) {
    static const char text[] = "a = \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8d\x8e\" ]";
    check_refused(text, sizeof text - 1,
                  "m.amp:1:11: error: ']' closes no bracket\n"
                  "  a = \"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8d\x8e\" ]\n"
                  "            ^\n");
}

/* A line that ends in one of these continues on a second, indented line; the
   line after that is not indented. */
TEST_CASE(format, lines_that_go_on) {
    static const char *const ends[] = {
        "x =",      "x = a +",  "x = a -",           "x = a *",
        "x = a /",  "x = a //", "x = a %",           "x = a @",
        "x = a ==", "x = a !=", "x = a <",           "x = a >",
        "x = a <=", "x = a >=", "x = a and",         "x = a or",
        "x = f(a,", "x = f(",   "x = [a,",           "x = g(f(a),",
        "x, y =",   "x,",       "x = a and not b or"};
    static const char *const starts[] = {"", "  ", "    ", "       ", "\t"};
    for (size_t i = 0; i < 5 * sizeof ends / sizeof *ends; i++) {
        const char *end = ends[i / 5], *close = "";
        int column = (int)strlen(starts[i % 5]);
        if (strchr(end, '[')) close = "]";
        if (strchr(end, '(')) close = ")";
        char text[200], want[200];
        snprintf(text, sizeof text, "def f(a) -> x {\n%s\n%sb%s\nz = 1\n}\n",
                 end, starts[i % 5], close);
        snprintf(want, sizeof want,
                 "def f(a) -> x {\n  %s\n%*sb%s\n  z = 1\n}\n", end,
                 2 + (column < 2 ? 2 : column), "", close);
        char *got = formatted(text, strlen(text));
        CHECK_STR(got, want);
        free(got);
    }
}

/* A complete line: the next line has the same indentation. */
TEST_CASE(format, lines_that_are_whole) {
    static const char *const lines[] = {"x = a",  "x = f(a)",  "x = [a, b]",
                                        "x = -a", "x = not a", "x = a[1]"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[200], want[200];
        snprintf(text, sizeof text, "def f(a) -> x {\n%s\n      b = 2\n}\n",
                 lines[i]);
        snprintf(want, sizeof want, "def f(a) -> x {\n  %s\n  b = 2\n}\n",
                 lines[i]);
        char *got = formatted(text, strlen(text));
        CHECK_STR(got, want);
        free(got);
    }
}

/* A blank may be repeated, and may be at the end of a line. */
TEST_CASE(format, any_number_of_blanks_is_one) {
    static const char *const files[] = {"models/gpt.amp", "models/unet.amp",
                                        "ir/fn/std.amp", "ir/fn/layers.amp"};
    unsigned state = 1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        StrBuf sb = {0};
        char *text = test_read_file(test_data_path(files[i]), &n);
        REQUIRE(text);
        for (char *line = text, *end; *line; line = end + 1) {
            end = strchr(line, '\n');
            REQUIRE(end);
            *end = 0;
            size_t indent = strspn(line, " ");
            bool bare = !strpbrk(line, "\"#");
            for (size_t k = 0; line[k]; k++) {
                sb_putn(&sb, line + k, 1);
                state = state * 1664525 + 1013904223;
                if (bare && k >= indent && line[k] == ' ')
                    for (unsigned m = state >> 30; m; m--) sb_puts(&sb, " ");
            }
            if (line[0]) sb_puts(&sb, state >> 31 ? "  " : "");
            sb_puts(&sb, "\n");
            *end = '\n';
        }
        char *got = formatted(sb.data, sb.len);
        CHECK_STR(got, text);
        free(got);
        free(text);
        sb_free(&sb);
    }
}
