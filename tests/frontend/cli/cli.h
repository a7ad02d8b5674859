/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: for cli_test.c and the files of folder cli. */
#ifndef AMPC_TESTS_FRONTEND_CLI_CLI_H
#define AMPC_TESTS_FRONTEND_CLI_CLI_H

#include "runtime/ampc.h"

const char *cli_cnn(void);
void cli_check(int status, const char *says, const char *words);
void cli_check_text(int status, const char *says, const char *text,
                    const char *options);

#endif
