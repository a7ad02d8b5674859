/* SPDX-License-Identifier: Apache-2.0 */
/* manual_shells.c: completions for bash, zsh and fish.                     */
#include <string.h>

#include "frontend/cli/manual.h"
#include "frontend/cli/options_text.h"
#include "ir/fn/optimizer.h"

/* All commands but a few take the compiler's options besides their own. */
static bool takes_compile_options(const char *command) {
    static const char *const others[] = {"run",    "export",  "audit",
                                         "manual", "version", "help"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(command, others[i])) return false;
    return true;
}

/* The compiler's options complete the compiler and the commands that take them;
   -o completes the compiler alone. */
static bool completes(const OptionText *o, const char *command) {
    if (!o->flag) return false;
    if (option_is_of(o, command)) return true;
    return option_is_of(o, "ampc") && takes_compile_options(command) &&
           strcmp(o->flag, "-o") != 0;
}

static void put_losses(StrBuf *sb) {
    for (int i = 0; loss_words[i]; i++) sb_printf(sb, "%s ", loss_words[i]);
    for (int i = 0; i < fn_std_count(); i++)
        if (fn_std_at(i)->loss) sb_printf(sb, "%s ", fn_std_at(i)->loss);
}

static void put_role(StrBuf *sb, OptimizerRole role) {
    for (const Fn *f = NULL; (f = optimizer_next(f, role));)
        sb_printf(sb, "%s ", f->info.text);
}

static void put_optimizers(StrBuf *sb) { put_role(sb, ROLE_OPTIMIZER); }

static void put_wrappers(StrBuf *sb) {
    put_role(sb, WRAPPER_BEFORE);
    put_role(sb, WRAPPER_AFTER);
}

static void put_precisions(StrBuf *sb) {
    sb_puts(sb, "fp32 bf16 fp16 O0 O1 O2 O3");
}

/* Options whose form does not list the words with which their value begins. */
static const struct {
    const char *flag;
    void (*put)(StrBuf *sb);
} named_values[] = {{"--loss", put_losses},
                    {"--optimizer", put_optimizers},
                    {"--wrapper", put_wrappers},
                    {"--precision", put_precisions}};
enum { NUM_NAMED = sizeof named_values / sizeof *named_values };

static bool has_words(const OptionText *o) {
    for (int i = 0; i < NUM_NAMED; i++)
        if (!strcmp(o->flag, named_values[i].flag)) return true;
    return option_has_words(o);
}

static void put_words(StrBuf *sb, const OptionText *o) {
    for (int i = 0; i < NUM_NAMED; i++)
        if (!strcmp(o->flag, named_values[i].flag)) {
            named_values[i].put(sb);
            return;
        }
    for (const char *p = o->value; *p; p++)
        sb_printf(sb, "%c", *p == '|' ? ' ' : *p);
}

static void put_command_names(StrBuf *sb) {
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, "%s ", c->name);
}

/* ---- bash ---------------------------------------------------------------- */

static void put_flags(StrBuf *sb, const char *command) {
    sb_printf(sb, "    %s) flags='", command);
    for (const OptionText *o = option_texts; o->command; o++)
        if (completes(o, command)) sb_printf(sb, "%s ", o->flag);
    sb_puts(sb, "--help' ;;\n");
}

void manual_bash(StrBuf *sb) {
    sb_puts(sb, "# Completion of ampc for bash, made by `ampc manual bash`.\n"
                "_ampc() {\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} flags words\n"
                "    local prev=${COMP_WORDS[COMP_CWORD - 1]} command=ampc\n"
                "    COMPREPLY=()\n"
                "    case ${COMP_WORDS[1]} in ");
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, "%s%s", c > command_texts + 1 ? "|" : "", c->name);
    sb_puts(sb, ") command=${COMP_WORDS[1]} ;; esac\n"
                "    case $command,$prev in\n");
    for (const OptionText *o = option_texts; o->command; o++) {
        if (!o->flag || !has_words(option_described(o))) continue;
        sb_printf(sb, "    %s,%s) words='",
                  option_is_of(o, "ampc") ? "*" : o->command, o->flag);
        put_words(sb, option_described(o));
        sb_puts(sb, "' ;;\n");
    }
    sb_puts(
        sb,
        "    manual,manual) words='cli functions ops man bash zsh fish' ;;\n"
        "    esac\n"
        "    case $command in\n");
    for (const CommandText *c = command_texts; c->name; c++)
        put_flags(sb, c->name);
    sb_puts(sb, "    esac\n"
                "    if [ \"$words\" ]; then\n"
                "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                "    elif [[ $cur = -* ]]; then\n"
                "        COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
                "    else\n"
                "        compopt -o filenames 2>/dev/null\n"
                "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
                "        [ \"$COMP_CWORD\" = 1 ] &&\n"
                "            COMPREPLY+=($(compgen -W '");
    put_command_names(sb);
    sb_puts(sb, "' -- \"$cur\"))\n"
                "    fi\n"
                "}\n"
                "complete -F _ampc ampc\n");
}

/* ---- zsh ----------------------------------------------------------------- */

/* A text between single quotes that zsh splits at colons and brackets. */
static void put_zsh(StrBuf *sb, const char *text) {
    for (; *text; text++) {
        if (*text == '\'') sb_puts(sb, "'\\'");
        if (strchr("[]:\\", *text)) sb_puts(sb, "\\");
        sb_printf(sb, "%c", *text);
    }
}

static void put_zsh_option(StrBuf *sb, const OptionText *o) {
    sb_printf(sb, "        '%s%s[", option_repeats(o) ? "*" : "", o->flag);
    put_zsh(sb, o->text);
    sb_puts(sb, "]");
    if (o->value) {
        sb_puts(sb, ":");
        put_zsh(sb, o->value);
        sb_puts(sb, ":");
        if (has_words(o)) {
            sb_puts(sb, "(");
            put_words(sb, o);
            sb_puts(sb, ")");
        } else if (option_names_file(o)) {
            sb_puts(sb, "_files");
        }
    }
    sb_puts(sb, "' \\\n");
}

void manual_zsh(StrBuf *sb) {
    sb_puts(sb, "#compdef ampc\n"
                "# Completion of ampc for zsh, made by `ampc manual zsh`.\n"
                "_ampc() {\n"
                "    local command=ampc\n"
                "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
                "        local -a commands=(\n");
    for (const CommandText *c = command_texts + 1; c->name; c++) {
        sb_printf(sb, "        '%s:", c->name);
        put_zsh(sb, c->summary);
        sb_puts(sb, "'\n");
    }
    sb_puts(sb, "        )\n"
                "        _describe command commands\n"
                "        _files\n"
                "        return\n"
                "    fi\n"
                "    case $words[2] in\n"
                "    ");
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, "%s%s", c > command_texts + 1 ? "|" : "", c->name);
    sb_puts(sb, ")\n"
                "        command=$words[2]\n"
                "        shift words\n"
                "        (( CURRENT-- ))\n"
                "        ;;\n"
                "    esac\n"
                "    case $command in\n");
    for (const CommandText *c = command_texts; c->name; c++) {
        sb_printf(sb, "    %s) _arguments \\\n", c->name);
        for (const OptionText *o = option_texts; o->command; o++)
            if (completes(o, c->name)) put_zsh_option(sb, option_described(o));
        sb_puts(
            sb,
            !strcmp(c->name, "manual")
                ? "        '1:page:(cli functions ops man bash zsh fish)' ;;\n"
                : "        '*:file:_files' ;;\n");
    }
    sb_puts(sb, "    esac\n"
                "}\n"
                "_ampc \"$@\"\n");
}

/* ---- fish ---------------------------------------------------------------- */

static void put_fish_text(StrBuf *sb, const char *text) {
    sb_puts(sb, "'");
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') sb_puts(sb, "\\");
        sb_printf(sb, "%c", *text);
    }
    sb_puts(sb, "'");
}

static void put_fish_option(StrBuf *sb, const char *command,
                            const OptionText *o) {
    if (!strcmp(command, "ampc"))
        sb_puts(sb, "complete -c ampc -n __ampc_compiles");
    else
        sb_printf(sb, "complete -c ampc -n '__fish_seen_subcommand_from %s'",
                  command);
    if (o->flag[1] == '-')
        sb_printf(sb, " -l %s", o->flag + 2);
    else
        sb_printf(sb, " -s %s", o->flag + 1);
    if (has_words(o)) {
        sb_puts(sb, " -x -a '");
        put_words(sb, o);
        sb_puts(sb, "'");
    } else if (o->value) {
        sb_puts(sb, option_names_file(o) ? " -r -F" : " -x");
    }
    sb_puts(sb, " -d ");
    put_fish_text(sb, o->text);
    sb_puts(sb, "\n");
}

void manual_fish(StrBuf *sb) {
    sb_puts(sb, "# Completion of ampc for fish, made by `ampc manual fish`.\n"
                "function __ampc_compiles\n"
                "    not __fish_seen_subcommand_from ");
    put_command_names(sb);
    sb_puts(sb, "\nend\n");
    for (const CommandText *c = command_texts + 1; c->name; c++) {
        sb_printf(sb, "complete -c ampc -n __fish_use_subcommand -a %s -d ",
                  c->name);
        put_fish_text(sb, c->summary);
        sb_puts(sb, "\n");
    }
    for (const CommandText *c = command_texts; c->name; c++)
        for (const OptionText *o = option_texts; o->command; o++)
            if (completes(o, c->name))
                put_fish_option(sb, c->name, option_described(o));
}
