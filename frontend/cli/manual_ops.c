/* SPDX-License-Identifier: Apache-2.0 */
/* manual_ops.c: the functions and layers (from their definitions, with the
   comments above them) and the ops (from the op table) as Markdown.         */
#include <ctype.h>
#include <string.h>

#include "frontend/cli/manual.h"
#include "ir/fn/fn.h"

/* ---- functions ----------------------------------------------------------- */

static bool starts_with(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

/* "# ---- losses ----" */
static bool is_section(const char *line) {
    return starts_with(line, "# ---- ");
}

/* The comment's text as one line; `*at` moves behind the comment. */
static void put_comment(StrBuf *sb, const char *const *lines, int *at) {
    for (; lines[*at][0] == '#' && !is_section(lines[*at]); ++*at) {
        const char *text = lines[*at] + 1;
        text += *text == ' ';
        sb_printf(sb, "%s%.*s", sb->len ? " " : "", (int)strcspn(text, "\n"),
                  text);
    }
}

/* The head of a definition in one line, without "def" and the body. */
static void put_head(StrBuf *sb, const char *const *lines, int at) {
    const char *p = lines[at] + strlen("def ");
    bool blank = false;
    for (;; p++) {
        if (*p == '{') return;
        if (!*p) {
            p = lines[++at];
            if (!p) return;
            p--;
            blank = true;
        } else if (isspace((unsigned char)*p)) {
            blank = true;
        } else {
            sb_printf(sb, "%s%c", blank && sb->len ? " " : "", *p);
            blank = false;
        }
    }
}

static void put_function(StrBuf *sb, const char *const *lines, int at,
                         const StrBuf *comment) {
    StrBuf head = {0};
    put_head(&head, lines, at);
    size_t name = strcspn(head.data, "(");
    sb_printf(sb, "### %.*s\n\n```text\n%s\n```\n\n", (int)name, head.data,
              head.data);
    if (comment->len) sb_printf(sb, "%s\n\n", comment->data);
    sb_free(&head);
}

/* The definitions of a text in order, under its section headings. */
static void put_functions(StrBuf *sb, const char *const *lines) {
    for (int i = 0; lines[i];) {
        StrBuf comment = {0};
        if (is_section(lines[i])) {
            const char *name = lines[i] + strlen("# ---- ");
            sb_printf(sb, "## %c%.*s\n\n", toupper((unsigned char)*name),
                      (int)(strstr(name, " ----") - name) - 1, name + 1);
        }
        if (lines[i][0] == '#' && !is_section(lines[i]))
            put_comment(&comment, lines, &i);
        if (lines[i] && starts_with(lines[i], "def "))
            put_function(sb, lines, i, &comment);
        if (lines[i]) i++;
        sb_free(&comment);
    }
}

void manual_functions(StrBuf *sb) {
    sb_puts(sb,
            "# Functions and layers\n\n<!-- made by `ampc manual functions` "
            "-->\n\n"
            "What an [.amp text](language.md) may call besides the "
            "[ops](ops.md). Operands are before the semicolon, attributes with "
            "their defaults after it, results after the arrow; `?` marks "
            "what may be left out. A function with a `class` is an op with a "
            "name of its own; its class says in which precision it runs "
            "([precision](../guide/precision.md)).\n\n"
            "## Layers\n\n"
            "Layers have parameters with the names and layouts of PyTorch's "
            "modules. `scope=\"NAME\"` names them.\n\n");
    put_functions(sb, layers_amp_lines);
    put_functions(sb, std_amp_lines);
    put_functions(sb, special_amp_lines);
    put_functions(sb, linalg_amp_lines);
    put_functions(sb, losses_amp_lines);
    put_functions(sb, microsoft_amp_lines);
    put_functions(sb, quantized_amp_lines);
}

/* ---- ops ----------------------------------------------------------------- */

static void put_count(StrBuf *sb, int least, int most) {
    if (most < 0)
        sb_printf(sb, "%d or more", least);
    else if (most > least)
        sb_printf(sb, "%d to %d", least, most);
    else
        sb_printf(sb, "%d", least);
}

static void put_attributes(StrBuf *sb, const OpInfo *o) {
    static const char *const kinds[] = {"int", "float", "ints", "str"};
    for (int i = 0; i < o->nattr; i++) {
        const AttrInfo *a = attr_get(o->attrs[i]);
        sb_printf(sb, "%s%s: %s", i ? ", " : "", a->text, kinds[a->kind]);
    }
    if (o->kind == KIND_GEN)
        sb_printf(sb, "%sshape: ints, dtype", o->nattr ? ", " : "");
}

/* A formula between backticks; a table splits at bars. */
static void put_formula(StrBuf *sb, const OpInfo *o) {
    if (o->kind != KIND_ELEM) return;
    sb_puts(sb, "`");
    for (const char *p = o->expr; *p; p++)
        sb_printf(sb, "%s%c", *p == '|' ? "\\" : "", *p);
    sb_puts(sb, "`");
}

void manual_ops(StrBuf *sb) {
    sb_puts(sb,
            "# Ops\n\n<!-- made by `ampc manual ops` -->\n\n"
            "The primitives of the IR, which an [.amp text](language.md) may "
            "call like [functions](functions.md). A class says in which "
            "precision an op runs ([precision](../guide/precision.md)). The "
            "formula of an element-wise op is C over its operands a, b, c; "
            "names in capitals are functions of `runtime/cpu/kmath.h`. Where "
            "the gradient is \"none\", no gradient passes. `matmul` takes 2 "
            "operands from a text; the compiler adds the others, scales of "
            "blocks, for GPUs.\n\n"
            "| op | operands | attributes | results | class | gradient | "
            "formula |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < NUM_OPS; i++) {
        const OpInfo *o = &op_info[i];
        if (i == OP_CALL) continue;
        sb_printf(sb, "| `%s` | ", o->text);
        put_count(sb, o->in_min, o->in_max);
        sb_puts(sb, " | ");
        put_attributes(sb, o);
        sb_puts(sb, " | ");
        put_count(sb, o->out_min, o->out_max);
        sb_printf(sb, " | %s | %s | ", amp_class_text[o->amp],
                  strcmp(o->grad_text, "none") ? "yes" : "none");
        put_formula(sb, o);
        sb_puts(sb, " |\n");
    }
}
