/* SPDX-License-Identifier: Apache-2.0 */
/* manual.h: the options and commands as text.  One description of each (rows of
   options.def and commands.def) gives `--help`, the reference page, the man
   pages and the completions of shells.

   manual.c         the tables; --help
   manual_pages.c   Markdown and man pages
   manual_shells.c  completions for bash, zsh and fish
   manual_ops.c     the reference of functions and ops
   cmd_manual.c     `ampc manual`                                             */
#ifndef AMPC_FRONTEND_CLI_MANUAL_H
#define AMPC_FRONTEND_CLI_MANUAL_H

#include "ir/ir.h"

typedef struct OptionText {
    const char *command;
    const char *flag;   /* NULL: the row is a heading, `text` */
    const char *kind;   /* "SETTER", .. as in options.def */
    const char *value;  /* form of the value; NULL: the option has no value */
    const char *preset; /* default; NULL: none */
    const char *text;
} OptionText;

typedef struct CommandText {
    const char *name; /* "ampc": the compiler */
    const char *synopsis, *summary, *text;
} CommandText;

/* Rows in the order of options.def and commands.def; an entry of NULLs ends
   each table. */
extern const OptionText option_texts[];
extern const CommandText command_texts[];

/* True if the row belongs to the command. */
bool option_is_of(const OptionText *o, const char *command);
/* The row with the description: the row of `ampc run` for an option that
   another command shares. */
const OptionText *option_described(const OptionText *o);
/* True if a `train` block may hold the option. */
bool option_is_key(const OptionText *o);
/* True if the value is a path. */
bool option_names_file(const OptionText *o);
/* True if the option may be given more than once. */
bool option_repeats(const OptionText *o);
/* True if `value` lists words, with bars between them. */
bool option_has_words(const OptionText *o);

/* Text of `ampc COMMAND --help`. */
void manual_help(const CommandText *c, StrBuf *sb);
/* docs/reference/cli.md */
void manual_cli(StrBuf *sb);
void manual_man(const CommandText *c, StrBuf *sb);
void manual_bash(StrBuf *sb);
void manual_zsh(StrBuf *sb);
void manual_fish(StrBuf *sb);
/* docs/reference/functions.md and ops.md */
void manual_functions(StrBuf *sb);
void manual_ops(StrBuf *sb);

#endif
