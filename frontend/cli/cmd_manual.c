/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_manual.c: `ampc manual`: prints pages, man pages and completions, made
   from the tables of options, commands, functions and ops. */
#include <string.h>

#include "frontend/cli/cmd.h"
#include "frontend/cli/manual.h"

/* The names of the commands, for scripts. */
static void put_commands(StrBuf *sb) {
    for (const CommandText *c = command_texts + 1; c->name; c++)
        sb_printf(sb, "%s\n", c->name);
}

/* Lists the compiler's options for programs: flag, form of the value,
   whether it may be repeated. */
static void put_options(StrBuf *sb) {
    for (const OptionText *o = option_texts; o->command; o++)
        if (o->flag && option_is_of(o, "ampc"))
            sb_printf(sb, "%s\t%s\t%s\n", o->flag, o->value ? o->value : "",
                      option_repeats(o) ? "many" : "one");
}

static const struct Page {
    const char *name;
    void (*put)(StrBuf *sb);
} pages[] = {{"cli", manual_cli},        {"functions", manual_functions},
             {"ops", manual_ops},        {"bash", manual_bash},
             {"zsh", manual_zsh},        {"fish", manual_fish},
             {"commands", put_commands}, {"options", put_options}};

/* Writes the page, or the man page of a command; false: unknown page. */
static bool put_manual_page(int argc, char **argv, StrBuf *sb) {
    if (argc >= 2 && argc <= 3 && !strcmp(argv[1], "man")) {
        const char *command = argc == 3 ? argv[2] : "ampc";
        for (const CommandText *c = command_texts; c->name; c++)
            if (!strcmp(c->name, command)) {
                manual_man(c, sb);
                return true;
            }
        return false;
    }
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (argc == 2 && !strcmp(argv[1], pages[i].name)) {
            pages[i].put(sb);
            return true;
        }
    return false;
}

int cmd_manual(int argc, char **argv) {
    StrBuf sb = {0};
    if (!put_manual_page(argc, argv, &sb)) {
        fprintf(stderr, "ampc: error: ampc manual prints cli, functions, ops, "
                        "man [COMMAND], bash, zsh, fish, commands or "
                        "options "
                        "(see ampc manual --help)\n");
        return ERR_USAGE;
    }
    fputs(sb.data, stdout);
    sb_free(&sb);
    return OK;
}
