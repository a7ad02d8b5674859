/* SPDX-License-Identifier: Apache-2.0 */
/* options_text.h: compile options from and to text.                        */
#ifndef AMPC_FRONTEND_DRIVER_OPTIONS_TEXT_H
#define AMPC_FRONTEND_DRIVER_OPTIONS_TEXT_H

#include "ir/base/near.h"
#include "passes/options.h"

/* One option "--name" with its value (NULL for flags). *used_value tells the
   caller whether the value was consumed.  Returns ERR_USAGE with a message. */
Status options_set(Options *o, Diag *d, const char *name, const char *value,
                   bool *used_value);
/* True for an option of the compiler. */
bool options_known(const char *name);
/* The option of the compiler that does what a name says, here or in other
   trainers; NULL: none. */
const char *options_hint(const char *name);
/* Refuses a name that is not known. `near` may have compared it with further
   options. */
Status options_unknown(Options *o, Diag *d, const char *name, Near near);
/* "name = value" or "flag" of a `train` block; - and _ are the same there.
   A model may not name files. */
Status options_set_line(Options *o, Diag *d, const Setting *line);
/* The options given so far come from another source, so that they may be
   given again. */
void options_second_source(Options *o);
/* All options that were given, as section "options" of a module stores them:
   each option and its value end with a NUL. And the reverse: the options in
   such a section, except files. Options that this build lacks are refused. */
void options_words(const Options *o, StrBuf *sb);
/* A JSON object of everything that decides how training continues: the
   model, as a hash, and each option that was given. */
void options_said(const Options *o, uint64_t model, StrBuf *sb);
Status options_again(Options *o, Diag *d, const char *words, size_t n);
/* Every option as text, for the module's info (JSON object). */
void options_json(const Options *o, StrBuf *sb);
/* The main ones for people, a line each: "loss        mse". */
void options_lines(const Options *o, StrBuf *sb);

/* Values of --loss that are not functions; NULL ends them. */
extern const char *const loss_words[];

#endif
