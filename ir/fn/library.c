/* SPDX-License-Identifier: Apache-2.0 */
/* library.c: reads the library, and looks up its functions. */
#include "ir/graph/fn_table.h"
#include "ir/fn/optimizer.h"

#include <string.h>

#include "ir/graph/ir_impl.h"

static const Fn *rules[NUM_OPS];

/* A definition or a rule. */
static Status read_one(Lexer *lx, Arena *a) {
    OpCode ops[MAX_RULE_OPS];
    Fn *f;
    int n;
    if (lex_is_word(lx, "def")) {
        TRY(parse_def(lx, a, NULL, &f));
        fn_table_add(f);
        return OK;
    }
    if (optimizer_begins(lx)) {
        const Fn *update, *part;
        TRY(parse_optimizer(lx, a, NULL, &update));
        for (int i = 0; (part = optimizer_part(update->optimizer, i)); i++)
            fn_table_add((Fn *)part);
        return OK;
    }
    Token at = lx->tok;
    if (!lex_is_word(lx, "gradient"))
        return lex_fail(lx, &at, "a definition or a gradient expected");
    TRY(parse_rule(lx, a, &f, ops, &n));
    for (int i = 0; i < n; i++) {
        if (rules[ops[i]]) return lex_fail(lx, &at, "a second rule");
        rules[ops[i]] = f;
    }
    return OK;
}

static Status read_text(Arena *a, Diag *d, const char *file, const char *text,
                        size_t n) {
    Lexer lx;
    TRY(lex_start(&lx, d, file, text, n));
    while (lx.tok.kind != T_EOF) TRY(read_one(&lx, a));
    return OK;
}

static Status read_fn_lines(Arena *a, Diag *d, const char *file,
                            const char *const *lines) {
    StrBuf text = {0};
    while (*lines) sb_puts(&text, *lines++);
    const char *kept = arena_dup(a, text.data, text.len + 1);
    Status s = read_text(a, d, file, kept, text.len);
    sb_free(&text);
    return s;
}

/* parse_def finds the functions above the one it reads. */
void fn_library_read(void) {
    static bool read;
    if (read) return;
    read = true;
    fn_table_begin();
    Arena *a = arena_new(); /* lives as long as the process */
    Diag d = {0};
    Status s = read_fn_lines(a, &d, "std.amp", std_amp_lines);
    for (int op = 0; op < NUM_OPS && s == OK; op++) {
        const char *dx = op_info[op].grad_text;
        if (strncmp(dx, "dx(", 3)) continue;
        Str rule = internf("gradient %s(x) -> y { dx = (%s }", op_info[op].text,
                           dx + 3);
        s = read_text(a, &d, "ops.def", rule, strlen(rule));
    }
    if (s == OK) s = read_fn_lines(a, &d, "special.amp", special_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "linalg.amp", linalg_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "losses.amp", losses_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "microsoft.amp", microsoft_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "quantized.amp", quantized_amp_lines);
    if (s == OK)
        s = read_fn_lines(a, &d, "optimizers.amp", optimizers_amp_lines);
    if (s == OK) s = read_fn_lines(a, &d, "layers.amp", layers_amp_lines);
    if (s != OK) fputs(d.text.data, stderr);
    ASSERT(s == OK && "the library can be read");
}

const Fn *op_gradient(OpCode op) {
    fn_library_read();
    return rules[op];
}

int fn_std_count(void) {
    fn_library_read();
    return fn_table_count();
}

const Fn *fn_std_at(int i) {
    fn_library_read();
    return fn_table_at(i);
}

const Fn *fn_find(const Module *m, const char *name, size_t n) {
    fn_library_read();
    return fn_table_find(m, name, n);
}

const Fn *fn_std(const char *name) { return fn_find(NULL, name, strlen(name)); }

const Fn *fn_loss(const char *name) {
    for (int i = 0; i < fn_std_count(); i++) {
        const Fn *f = fn_std_at(i);
        if (f->loss && !strcmp(f->loss, name)) return f;
    }
    return NULL;
}

int fn_loss_target(const Fn *loss) {
    for (int i = 0; i < loss->operands.len; i++)
        if (!strcmp(loss->operands.data[i].name, "target")) return i;
    return -1;
}

bool is_call(const Node *n, const char *name) {
    return n->fn && n->fn == fn_std(name);
}
