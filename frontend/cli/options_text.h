/* SPDX-License-Identifier: Apache-2.0 */
/* options_text.h: compile options from and to text.                        */
#ifndef AMPC_FRONTEND_DRIVER_OPTIONS_TEXT_H
#define AMPC_FRONTEND_DRIVER_OPTIONS_TEXT_H

#include "passes/options.h"

/* One option "--name" with its value (NULL for flags). *used_value tells the
   caller whether the value was consumed.  ERR_USAGE with a message. */
Status options_set(Options *o, Diag *d, const char *name, const char *value,
                   bool *used_value);
/* "name = value" or "flag" of a `train` block; - and _ are one.  Files are not
   for a model to name. */
Status options_set_line(Options *o, Diag *d, const Setting *line);
/* Options given so far come from another source: they may be given again. */
void options_second_source(Options *o);
/* All that was taken, as section "options" of a module keeps it: each option
   and its value end with a NUL; and what such a section says, but for files.
   What is not of this build is refused. */
void options_words(const Options *o, StrBuf *sb);
/* A JSON object of what decides how training goes on: the model, by a number
   that it has, and each option that was given.                              */
void options_said(const Options *o, uint64_t model, StrBuf *sb);
Status options_again(Options *o, Diag *d, const char *words, size_t n);
/* Every option as text, for the module's info (JSON object). */
void options_json(const Options *o, StrBuf *sb);
/* The main ones for people, a line each: "loss        mse". */
void options_lines(const Options *o, StrBuf *sb);

/* Values of --loss that are not functions; NULL ends them. */
extern const char *const loss_words[];

#endif
