/* SPDX-License-Identifier: Apache-2.0 */
/* Golden files: tests/golden/PASS/NAME.amp holds

     # RUN: ampc opt --pass NAME[,NAME...] [compile options]
     input text
     # ---- expect
     the text after the passes, or lines `# error: the message`

   (`# RUN: ampc fmt` only reads and prints.)  Every input and output is also
   printed, read and printed again.  To rewrite expectations:
     bazel run //tests/passes:golden_test -- --bless */
#include "frontend/cli/options_text.h"
#include "ir/text/text.h"
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static const char marker[] = "# ---- expect\n";

typedef struct Case {
    const char *path;
    char *text;
    char *expect; /* behind the marker */
    Arena *arena;
    Diag diag;
    Options opt;
    const char *passes;
    StrBuf got; /* the printed module, or `# error:` lines */
} Case;

/* ---- the RUN line -------------------------------------------------------- */

/* Splits a copy of the first line into words in place. */
static int split_run_line(Case *c, char **word, int max) {
    static const char run[] = "# RUN: ampc ";
    if (strncmp(c->text, run, sizeof run - 1) != 0) return 0;
    char *line = arena_dup(c->arena, c->text, strcspn(c->text, "\n") + 1);
    int n = 0;
    line[strcspn(c->text, "\n")] = 0;
    for (char *p = line + sizeof run - 1; *p && n < max;) {
        p += strspn(p, " ");
        if (!*p) break;
        word[n++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = 0;
    }
    return n;
}

static bool read_options(Case *c) {
    char *word[64];
    int n = split_run_line(c, word, 64);
    if (!CHECK_MSG(n > 0, "%s: the first line is no RUN line", c->path))
        return false;
    if (strcmp(word[0], "fmt") == 0) return CHECK(n == 1);
    if (!CHECK_MSG(strcmp(word[0], "opt") == 0, "ampc %s", word[0]))
        return false;
    for (int i = 1; i < n; i++) {
        const char *next = i + 1 < n ? word[i + 1] : NULL;
        bool used = strcmp(word[i], "--pass") == 0;
        if (used)
            c->passes = next;
        else if (!CHECK_MSG(
                     options_set(&c->opt, &c->diag, word[i], next, &used) == OK,
                     "%s: %s", c->path, c->diag.text.data))
            return false;
        i += used;
    }
    return CHECK_MSG(c->passes != NULL, "%s: no --pass", c->path);
}

/* ---- round trip ---------------------------------------------------------- */

static void check_round_trip(const Case *c, const Module *m) {
    StrBuf once = {0}, twice = {0};
    Diag d = {0};
    Module *back = NULL;
    print_module(m, &once);
    if (CHECK_MSG(parse_module(c->arena, &d, "printed", once.data, once.len,
                               &back) == OK,
                  "%s: the printed text is not read back: %s", c->path,
                  d.text.data)) {
        print_module(back, &twice);
        CHECK_STR(once.data, twice.data);
    }
    sb_free(&once);
    sb_free(&twice);
    sb_free(&d.text);
}

/* ---- running ------------------------------------------------------------- */

static Status run(Case *c) {
    Module *m;
    size_t n = c->expect ? (size_t)(c->expect - c->text) : strlen(c->text);
    TRY(parse_module(c->arena, &c->diag, "input", c->text, n, &m));
    TRY(verify_module(m, STAGE_TYPED, &c->diag));
    check_round_trip(c, m);
    if (c->passes) TRY(run_passes(m, &c->diag, &c->opt, c->passes, false));
    check_round_trip(c, m);
    print_module(m, &c->got);
    return OK;
}

/* Messages as `# error:` lines, without place and caret. */
static void put_errors(Case *c) {
    static const char word[] = "error: ";
    for (const char *p = c->diag.text.data; p && (p = strstr(p, word));) {
        p += sizeof word - 1;
        sb_printf(&c->got, "# error: %.*s\n", (int)strcspn(p, "\n"), p);
    }
}

static void bless(const Case *c) {
    StrBuf sb = {0};
    size_t n = c->expect ? (size_t)(c->expect - c->text) : strlen(c->text);
    sb_putn(&sb, c->text, n);
    if (!c->expect) sb_puts(&sb, marker);
    sb_puts(&sb, c->got.data);
    CHECK(test_write_file(c->path, sb.data, sb.len));
    sb_free(&sb);
}

static void compare(Case *c) {
    if (test_bless()) {
        bless(c);
        return;
    }
    if (!CHECK_MSG(c->expect, "%s: no line '%.13s'", c->path, marker)) return;
    if (!CHECK_STR(c->got.data, c->expect))
        harness_fail_at(c->path, 1,
                        "if the output is right:\n"
                        "  bazel run //tests/passes:golden_test -- "
                        "--bless");
}

static void run_case(void *arg) {
    Case c = {.path = arg, .arena = arena_new()};
    c.text = test_read_file(c.path, NULL);
    REQUIRE(c.text != NULL);
    char *at = strstr(c.text, marker);
    c.expect = at ? at + sizeof marker - 1 : NULL;
    options_init(&c.opt, c.arena);
    if (read_options(&c)) {
        Status s = run(&c);
        if (s != OK) put_errors(&c);
        compare(&c);
    }
    free(c.text);
    sb_free(&c.got);
    sb_free(&c.diag.text);
    arena_free(c.arena);
}

static void add_case(const char *path, const char *name, void *arg) {
    (void)arg;
    harness_register("golden", name, run_case, (void *)path);
}

static void register_cases(void) {
    test_each_file("tests/golden", ".amp", add_case, NULL);
}
TEST_REGISTRAR(register_cases);

/* ---- any pass on any text ------------------------------------------------ */

static void expect_status(const char *path, const char *text, size_t n,
                          const char *passes) {
    Arena *a = arena_new();
    Diag d = {0};
    Options o;
    Module *m;
    options_init(&o, a);
    if (parse_module(a, &d, path, text, n, &m) == OK &&
        verify_module(m, STAGE_TYPED, &d) == OK) {
        Status s = run_passes(m, &d, &o, passes, false);
        CHECK_MSG((s == OK) == (d.errors == 0), "%s: --pass %s", path, passes);
    }
    sb_free(&d.text);
    arena_free(a);
}

static void try_passes(const char *path, const char *name, void *arg) {
    static const char *const lists[] = {
        "autocast,autodiff", "autodiff,optimizer,inline,canon,inline,fuse",
        "inline,canon,dce,reduce,simplify,cse,dce,fuse,schedule,memplan",
        "loss,programs,autocast,autodiff,optimizer,inline,canon,reduce,inline,"
        "fuse"};
    char *text = test_read_file(path, NULL);
    (void)name, (void)arg;
    REQUIRE(text != NULL);
    char *end = strstr(text, marker);
    size_t n = end ? (size_t)(end - text) : strlen(text);
    for (int i = 0; i < pipeline_length; i++)
        expect_status(path, text, n, pipeline[i].name);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        expect_status(path, text, n, lists[i]);
    free(text);
}

/* An internal error would end the process. */
TEST_CASE(golden, any_pass_takes_or_refuses_any_input) {
    test_each_file("tests/golden", ".amp", try_passes, NULL);
}

/* The others add to a graph each time, or round twice. */
static bool leaves_its_own(const char *pass) {
    static const char *const others[] = {"autodiff", "samples",  "loss",
                                         "rules",    "autocast", "place",
                                         "schedule", "optimizer"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i], pass)) return false;
    return true;
}

/* Runs the file's passes, and the last one once more. */
static void run_again(const char *path, const char *name, void *arg) {
    Case c = {.path = path, .arena = arena_new()};
    Module *m;
    (void)name;
    c.text = test_read_file(path, NULL);
    REQUIRE(c.text != NULL);
    const char *end = strstr(c.text, marker);
    size_t n = end ? (size_t)(end - c.text) : strlen(c.text);
    options_init(&c.opt, c.arena);
    if (read_options(&c) && c.passes &&
        parse_module(c.arena, &c.diag, path, c.text, n, &m) == OK &&
        run_passes(m, &c.diag, &c.opt, c.passes, false) == OK) {
        const char *comma = strrchr(c.passes, ',');
        const char *last = comma ? comma + 1 : c.passes;
        StrBuf again = {0};
        print_module(m, &c.got);
        if (leaves_its_own(last)) {
            Status s = run_passes(m, &c.diag, &c.opt, last, false);
            print_module(m, &again);
            CHECK_MSG(s == OK && !strcmp(c.got.data, again.data),
                      "%s: %s changes what it made to\n%s", path, last,
                      again.data);
            ++*(int *)arg;
        }
        sb_free(&again);
    }
    free(c.text);
    sb_free(&c.got);
    sb_free(&c.diag.text);
    arena_free(c.arena);
}

TEST_CASE(golden, a_pass_leaves_what_it_made) {
    int n = 0;
    test_each_file("tests/golden", ".amp", run_again, &n);
    CHECK_MSG(n > 80, "%d files", n);
}

static void ignore_case(const char *path, const char *name, void *arg) {
    (void)path, (void)name, (void)arg;
}

TEST_CASE(golden, there_are_files) {
    CHECK(test_each_file("tests/golden", ".amp", ignore_case, NULL) > 0);
}
