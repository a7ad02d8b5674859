/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: for options_test.c and the files of folder options. */
#ifndef AMPC_TESTS_FRONTEND_OPTIONS_OPTIONS_H
#define AMPC_TESTS_FRONTEND_OPTIONS_OPTIONS_H

#include "frontend/cli/options_text.h"

/* An option, its value, and the fields of Options that it sets. */
typedef struct OptionRow {
    const char *option, *value, *want;
} OptionRow;

Status options_try(const char *option, const char *value, Diag *d);
void options_dump(const Options *o, StrBuf *sb);
extern const OptionRow options_settings[];
extern const int options_nsetting;

#endif
