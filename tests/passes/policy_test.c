/* SPDX-License-Identifier: Apache-2.0 */
/* policy_test.c: the line of --amp-policy that a node follows. */
#include <string.h>

#include "tests/harness.h"
#include "tests/support/passed.h"

static const char text[] =
    "graph forward(%x: f32[4,4]) {\n"
    "  %blk.0.a = relu %x\n  %blk.0.b.c = exp %blk.0.a\n"
    "  %blk.1.a = relu %blk.0.b.c\n  %blk.10.a = softmax %blk.1.a\n"
    "  %head = relu %blk.10.a !low\n  return head=%head\n}\n";

enum { NODES = 5 };

/* The graph with those lines; NULL: refused; d has the message. */
static const Graph *under(Arena *a, Diag *d, const char *lines) {
    Module *m = parsed(a, text);
    REQUIRE(test_write_file(test_tmp("policy.txt"), lines, strlen(lines)));
    Options o = options_of(a, FLAGS("--amp-policy", test_tmp("policy.txt")));
    return run_passes(m, d, &o, "policy", false) == OK ? m->graphs.data[0]
                                                       : NULL;
}

/* One letter per node: its class, or - for none; equal digits: one region. */
TEST_CASE(policy, the_last_line_that_matches_wins) {
    static const struct {
        const char *lines, *classes, *regions;
    } cases[] = {
        {"", "----l", "-----"},
        {"op relu full", "f-f-l", "-----"},
        {"op ReLU full\nop relu any", "a-a-l", "-----"},
        {"op relu any\nop relu full\n", "f-f-l", "-----"},
        {"node blk.0.* full\nop relu low", "lfl-l", "-----"},
        {"op relu low\nnode blk.0.* full", "ffl-l", "-----"},
        {"node blk.1.* widest # and no more\n\n# op relu low", "--w-l",
         "-----"},
        {"node blk.1* follow", "--FFl", "-----"},
        {"op soft_max fullout\nop EXP low", "-l-ol", "-----"},
        {"checkpoint blk", "----l", "1111-"},
        {"checkpoint blk.*", "----l", "1123-"},
        {"checkpoint blk.*.?", "----l", "1234-"},
        {"checkpoint blk\ncheckpoint blk.1", "----l", "1121-"},
        {"checkpoint blk.1\ncheckpoint blk", "----l", "1111-"},
        {"checkpoint blk.*\ncheckpoint blk.0\nop exp low", "-l--l", "1123-"},
    };
    static const char letter[] = "lfowFa";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        char classes[NODES + 1] = "", regions[NODES + 1] = "";
        int met[NODES], n = 0;
        const Graph *g = under(a, &d, cases[i].lines);
        if (!g) FAIL("%s: %s", cases[i].lines, d.text.data);
        REQUIRE(g->order.len == NODES);
        for (int k = 0; k < NODES; k++) {
            const Loc *loc = &node_get(g, g->order.data[k])->loc;
            int r = 0;
            classes[k] = loc->amp ? letter[loc->amp - 1] : '-';
            while (r < n && met[r] != loc->region) r++;
            if (loc->region && r == n) met[n++] = loc->region;
            regions[k] = loc->region ? (char)('1' + r) : '-';
        }
        CHECK_STR(classes, cases[i].classes);
        CHECK_STR(regions, cases[i].regions);
        arena_free(a);
    }
}

TEST_CASE(policy, mistakes_have_a_line) {
    static const char *const cases[][2] = {
        {"op relu", ":1: error: 'op NAME CLASS', "},
        {"op relu low low", ":1: error: 'op NAME CLASS', "},
        {"\n\nnodes a low", ":3: error: 'op NAME CLASS', "},
        {"checkpoint a b", ":1: error: 'op NAME CLASS', "},
        {"op relu high",
         "'high' is not a class: fp32 (full), bf16 or fp16 (low), "
         "fullout, widest, "},
        {"op relu low\nop tanh low", ":2: error: no op of the model"},
        {"node head.* low", ":1: error: no node or layer of the model"},
        {"checkpoint lk", ":1: error: no part of the model is 'lk'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena *a = arena_new();
        Diag d = {0};
        CHECK_MSG(!under(a, &d, cases[i][0]), "%s", cases[i][0]);
        CHECK_HAS(d.text.data, cases[i][1]);
        sb_free(&d.text);
        arena_free(a);
    }
}

TEST_CASE(policy, rank_max_is_not_low) {
    Arena *a = arena_new();
    Diag d = {0};
    Module *m = parsed(a, "graph forward(%x: f32[4]) {\n"
                          "  %y = rank_max %x !low\n  return y=%y\n}\n");
    Options o = options_of(a, FLAGS("--precision", "bf16"));
    CHECK(run_passes(m, &d, &o, "policy", false) != OK);
    CHECK_HAS(d.text.data, ":2:8: error: rank_max reads f32");
    sb_free(&d.text);
    arena_free(a);
}

/* A node belongs to the layer of its first operand that is made of parameters
   alone, whatever reorders them; operands made of inputs, too, belong to none.
   Parameters of ampc and those without a layer in their name count as well,
   but name none. */
TEST_CASE(policy, a_layer_is_that_of_its_parameters) {
    static const char *const rows[][2] = {
        {"%y = mul %x, %w", "a"},
        {"%t = transpose %w {perm=[1,0]} %y = mul %x, %t", "a"},
        {"%s = add %w, %v %y = mul %x, %s", "a"},
        {"%s = add %v, %w %y = mul %x, %s", "b.c"},
        {"%s = add %w, %x %y = mul %x, %s", NULL},
        {"%s = add %x, %w %y = mul %x, %s", NULL},
        {"%s = add %x, %w %t = relu %s %y = mul %t, %v", "b.c"},
        {"%y = mul %x, %x", NULL},
        {"%y = mul %x, %plain", NULL},
        {"%c = full {value=1} : f32[4,4] %y = mul %x, %c", NULL},
        {"%c = mul %w, 2 %y = mul %x, %c", "a"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Arena *a = arena_new();
        char *spelt = arena_printf(a,
                                   "graph forward(%%x: f32[4,4]) {\n"
                                   "  param %%a.w: f32[4,4], %%b.c.w: f32[4,4]"
                                   ", %%plain: f32[4,4]\n  %s\n"
                                   "  return y=%%y\n}\n",
                                   rows[i][0]);
        StrBuf sb = {0};
        for (const char *p = spelt; *p; p++) { /* %w and %v for short */
            bool w = !strncmp(p, "%w", 2), v = !strncmp(p, "%v", 2);
            if (w || v)
                sb_puts(&sb, w ? "%a.w" : "%b.c.w"), p++;
            else
                sb_putn(&sb, p, 1);
        }
        const Graph *g = parsed(a, sb.data)->graphs.data[0];
        ValueId y = graph_find_value(g, "y");
        Str layer = node_layer(g, node_get(g, value_get(g, y)->def));
        CHECK_MSG(rows[i][1] ? layer && !strcmp(layer, rows[i][1]) : !layer,
                  "%s: %s", rows[i][0], layer ? layer : "none");
        sb_free(&sb);
        arena_free(a);
    }
}
