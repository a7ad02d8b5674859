/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h: text from a module that predicts the next token: --generate. */
#ifndef AMPC_FRONTEND_RUN_GENERATE_H
#define AMPC_FRONTEND_RUN_GENERATE_H

#include "frontend/run/sample.h"

#define AMPC_NO_LOADER
#include "runtime/ampc.h"

/* Writes the prompt and the generated text to `out`, token by token.
   vocabulary: a file, or NULL; told: receives a line with the time that it
   took. */
Status generate(Diag *d, const ampc_api *api, ampc_session *s,
                const char *prompt, const char *vocabulary, const char *sample,
                FILE *out, StrBuf *told);

#endif
