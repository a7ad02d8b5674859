/* SPDX-License-Identifier: Apache-2.0 */
/* manual.c: the descriptions of commands and options as tables, and `--help`.
 */
#include "frontend/cli/manual.h"

#include <string.h>

static const char targets_text[] =
    "Machines to make code for: cpu (all levels of this kind of processor), "
    "cpu:LEVEL, cpu:native (the best level of this machine: compiles in less "
    "time), cuda (sm_80, sm_90 and PTX), cuda:sm_NN, cuda:ptx. A session "
    "chooses the best level that its "
    "machine runs. Levels:"
#define ISA(E, number, name, prefix, arch, vectors, flags) " " name
#include "runtime/cpu/isa.def"
    ". Alone: c, a folder (-o DIR) or one file (-o FILE.c) of C11 for any "
    "machine with gcc or clang.";

bool option_is_of(const OptionText *o, const char *command) {
    return !strcmp(o->command, command);
}

const OptionText option_texts[] = {
#define GROUP(command, heading) {command, NULL, NULL, NULL, NULL, heading},
#define COMPILE(flag, kind, what, resume, value, preset, text)                 \
    {"ampc", flag, #kind, value, preset, text},
#define RUN(flag, kind, field, least, value, preset, text)                     \
    {"run", flag, #kind, value, preset, text},
#define OWN(command, flag, kind, field, value, preset, text)                   \
    {command, flag, #kind, value, preset, text},
#define AS_RUN(command, flag) {command, flag, "AS_RUN", NULL, NULL, NULL},
#include "frontend/cli/options.def"
    {0}};

const OptionText *option_described(const OptionText *o) {
    const OptionText *r = option_texts;
    if (!o->flag || o->text) return o;
    while (!r->flag || !option_is_of(r, "run") || strcmp(r->flag, o->flag)) r++;
    return r;
}

const CommandText command_texts[] = {
#define COMMAND(name, function, synopsis, summary, text)                       \
    {name, synopsis, summary, text},
#include "frontend/cli/commands.def"
    {0}};

bool option_names_file(const OptionText *o) {
    return !strcmp(o->kind, "PATH") || !strcmp(o->kind, "FILE");
}

bool option_repeats(const OptionText *o) {
    static const char *const kinds[] = {"ADDER", "LIST", "PAIRS", "PATHS"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(o->kind, kinds[i])) return true;
    return false;
}

bool option_has_words(const OptionText *o) {
    return o->value && strchr(o->value, '|') &&
           o->value[strspn(o->value,
                           "abcdefghijklmnopqrstuvwxyz0123456789|")] == '\0';
}

bool option_is_key(const OptionText *o) {
    return option_is_of(o, "ampc") && o->flag && !option_names_file(o) &&
           strcmp(o->kind, "PATHS") != 0;
}

/* ---- --help -------------------------------------------------------------- */

enum { WIDTH = 80, COLUMN = 26 };

/* Length of the next line: up to the last blank or comma within `room`, else up
   to the end of the first word. */
static size_t line_end(const char *text, size_t room) {
    size_t n = strlen(text), end = 0;
    if (n <= room) return n;
    for (size_t i = 0; i < n && (i <= room || !end); i++)
        if (text[i] == ' ' || (text[i] == ',' && i < room))
            end = i + (text[i] == ',');
    return end ? end : n;
}

/* Words in lines of WIDTH, indented by `at` columns; the cursor is already
   at that column. */
static void put_wrapped(StrBuf *sb, const char *text, int at) {
    while (*text) {
        size_t n = line_end(text, (size_t)(WIDTH - at));
        sb_printf(sb, "%.*s\n", (int)n, text);
        text += n + (text[n] == ' ');
        if (*text) sb_printf(sb, "%*s", at, "");
    }
}

static void put_option(StrBuf *sb, const OptionText *o) {
    StrBuf text = {0}, head = {0};
    sb_puts(&text, o->text);
    if (o->preset) sb_printf(&text, " Default: %s.", o->preset);
    sb_printf(&head, "  %s%s%s", o->flag, o->value ? " " : "",
              o->value ? o->value : "");
    if (head.len < COLUMN - 1)
        sb_printf(sb, "%-*s", COLUMN, head.data);
    else
        sb_printf(sb, "%s\n%*s", head.data, COLUMN, "");
    put_wrapped(sb, text.data, COLUMN);
    sb_free(&text);
    sb_free(&head);
}

static void put_synopsis(StrBuf *sb, const CommandText *c) {
    const char *head = "usage: ";
    for (const char *line = c->synopsis; line;) {
        const char *end = strchr(line, '\n');
        int n = end ? (int)(end - line) : (int)strlen(line);
        sb_printf(sb, "%s%.*s\n", head, n, line);
        head = "       ";
        line = end ? end + 1 : NULL;
    }
}

/* The compiler's page lists the other options. */
static void put_commands(StrBuf *sb) {
    sb_puts(sb, "\nCommands (ampc COMMAND --help says more)\n");
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, "  ampc %-*s%s\n", COLUMN - 7, c->name, c->summary);
    sb_printf(sb, "  %-*s%s\n", COLUMN - 2, "ampc --list-ops [NAME...]",
              "\n                          all ops, or how those are called");
    sb_printf(
        sb, "  %-*s%s\n", COLUMN - 2, "ampc --list-optimizers [NAME...]",
        "\n                          keys, defaults and sources, or formulas");
    sb_printf(sb, "  %-*s%s\n", COLUMN - 2, "ampc --list-passes",
              "all passes, in order");
    sb_printf(sb, "  %-*s%s\n", COLUMN - 2, "ampc --version", "the version");
}

void manual_help(const CommandText *c, StrBuf *sb) {
    put_synopsis(sb, c);
    sb_puts(sb, "\n");
    put_wrapped(sb, c->text, 0);
    if (c == command_texts) put_commands(sb);
    for (const OptionText *o = option_texts; o->command; o++) {
        if (!option_is_of(o, c->name)) continue;
        if (o->flag)
            put_option(sb, option_described(o));
        else
            sb_printf(sb, "\n%s\n", o->text);
    }
}
