/* SPDX-License-Identifier: Apache-2.0 */
/* manual_pages.c: commands and options as Markdown and as man pages.       */
#include <ctype.h>
#include <string.h>

#include "frontend/cli/manual.h"
#include "runtime/ampc.h"

/* ---- Markdown ------------------------------------------------------------ */

/* Puts a backslash before each character that Markdown would interpret. */
static void put_markdown(StrBuf *sb, const char *text) {
    for (bool code = false; *text; text++) {
        if (*text == '`') code = !code;
        if (!code && strchr("*_<>|[]", *text)) sb_puts(sb, "\\");
        sb_printf(sb, "%c", *text);
    }
}

static void put_option_markdown(StrBuf *sb, const OptionText *o) {
    sb_printf(sb, "#### `%s`\n\n`%s%s%s`  \n", o->flag, o->flag,
              o->value ? " " : "", o->value ? o->value : "");
    put_markdown(sb, o->text);
    if (o->preset) sb_printf(sb, " Default: `%s`.", o->preset);
    sb_puts(sb, "\n\n");
}

static void put_command_markdown(StrBuf *sb, const CommandText *c) {
    bool compiler = c == command_texts;
    sb_printf(sb, "## %s%s\n\n", compiler ? "" : "ampc ", c->name);
    sb_printf(sb, "```text\n%s\n```\n\n", c->synopsis);
    put_markdown(sb, c->text);
    sb_puts(sb, "\n\n");
    for (const OptionText *o = option_texts; o->command; o++) {
        if (!option_is_of(o, c->name)) continue;
        if (o->flag)
            put_option_markdown(sb, option_described(o));
        else
            sb_printf(sb, "### %s: %s\n\n", c->name, o->text);
    }
}

void manual_cli(StrBuf *sb) {
    sb_puts(sb,
            "# Command line\n\n<!-- made by `ampc manual cli` -->\n\n"
            "The same text is in `ampc --help`, `ampc COMMAND --help` and "
            "the man pages.\nExit status: 0 success; 1 an input is wrong; 2 "
            "wrong usage; 3 a bug of ours\n([exit codes](exit-codes.md)).\n\n"
            "The compiler's options are also keys of a `train` block of an "
            "[.amp file](language.md),\nwithout the dashes: `clip_norm = 1`. "
            "Not these, which name files:");
    for (const OptionText *o = option_texts; o->command; o++)
        if (o->flag && option_is_of(o, "ampc") && !option_is_key(o))
            sb_printf(sb, " `%s`", o->flag);
    sb_puts(sb, ".\n\n");
    for (const CommandText *c = command_texts; c->name; c++)
        put_command_markdown(sb, c);
    sb_puts(
        sb,
        "## Other words\n\n"
        "- `ampc --list-ops [NAME...]`: all ops, or how those are called "
        "([functions](functions.md), [ops](ops.md)).\n"
        "- `ampc --list-optimizers [NAME...]`: keys, defaults and sources of "
        "the optimizers, or their formulas.\n"
        "- `ampc --list-passes`: the passes, in order.\n"
        "- `ampc --version`: the version.\n"
        "- `ampc --help`, `ampc COMMAND --help`: this text.\n");
}

/* ---- man ----------------------------------------------------------------- */

/* Prints a dash as typed; no line may begin like a roff request. */
static void put_troff(StrBuf *sb, const char *text) {
    if (*text == '.' || *text == '\'') sb_puts(sb, "\\&");
    for (; *text; text++) {
        if (*text == '\\') sb_puts(sb, "\\e");
        if (*text == '-') sb_puts(sb, "\\-");
        if (!strchr("\\-`", *text)) sb_printf(sb, "%c", *text);
        if (*text == ',' && text[1] != ' ') sb_puts(sb, "\\:");
    }
    sb_puts(sb, "\n");
}

static void put_option_man(StrBuf *sb, const OptionText *o) {
    StrBuf head = {0};
    sb_printf(&head, "%s%s%s", o->flag, o->value ? " " : "",
              o->value ? o->value : "");
    sb_puts(sb, ".TP\n.B ");
    put_troff(sb, head.data);
    put_troff(sb, o->text);
    if (o->preset) {
        sb_puts(sb, "Default: ");
        put_troff(sb, o->preset);
    }
    sb_free(&head);
}

static void put_synopsis_man(StrBuf *sb, const char *text) {
    sb_puts(sb, ".SH SYNOPSIS\n");
    for (const char *line = text; line;) {
        const char *end = strchr(line, '\n');
        StrBuf one = {0};
        sb_printf(&one, "%.*s", end ? (int)(end - line) : (int)strlen(line),
                  line);
        put_troff(sb, one.data);
        sb_free(&one);
        line = end ? end + 1 : NULL;
        if (line) sb_puts(sb, ".br\n");
    }
}

static void put_others_man(StrBuf *sb) {
    sb_puts(sb, ".SH COMMANDS\n");
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, ".TP\n.BR ampc\\-%s (1)\n%s\n", c->name, c->summary);
    sb_puts(sb, ".TP\n.B ampc \\-\\-list\\-ops\nall ops\n"
                ".TP\n.B ampc \\-\\-list\\-passes\nall passes, in order\n");
}

void manual_man(const CommandText *c, StrBuf *sb) {
    bool compiler = c == command_texts;
    sb_puts(sb, compiler ? ".TH AMPC" : ".TH AMPC\\-");
    for (const char *p = c->name; *p && !compiler; p++)
        sb_printf(sb, "%c", toupper((unsigned char)*p));
    sb_printf(sb, " 1 \"\" \"ampc %s\" \"ampc manual\"\n", AMPC_VERSION);
    sb_printf(sb, ".nh\n.ad l\n.SH NAME\nampc%s%s \\- %s\n",
              compiler ? "" : "\\-", compiler ? "" : c->name, c->summary);
    put_synopsis_man(sb, c->synopsis);
    sb_puts(sb, ".SH DESCRIPTION\n");
    put_troff(sb, c->text);
    if (compiler) put_others_man(sb);
    for (const OptionText *o = option_texts; o->command; o++) {
        if (!option_is_of(o, c->name)) continue;
        if (!o->flag) sb_printf(sb, ".SH OPTIONS: %s\n", o->text);
        if (o->flag) put_option_man(sb, option_described(o));
    }
    sb_puts(sb, ".SH EXIT STATUS\n0 success; 1 an input is wrong; 2 wrong "
                "usage; 3 a bug of ours.\n.SH SEE ALSO\n");
    for (const CommandText *o = command_texts; o->name; o++)
        if (o != c)
            sb_printf(sb, ".BR ampc%s%s (1)\n", o == command_texts ? "" : "\\-",
                      o == command_texts ? "" : o->name);
}
