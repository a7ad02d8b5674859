/* SPDX-License-Identifier: Apache-2.0 */
/* kept.h: what a module keeps of its compilation, for commands that continue
   from it. */
#ifndef AMPC_FRONTEND_CLI_KEPT_H
#define AMPC_FRONTEND_CLI_KEPT_H

#include "codegen/section.h"
#include "frontend/cli/cmd.h"

/* The IR after a pass. */
Status kept_ir(Session *s, const SectionFile *f, const char *pass, Module **m);
/* The graphs of some programs of that module, with their variables only. */
Status kept_programs(Session *s, const ProgramKind *kinds, int n, Module **m);
/* The options with which the module was compiled, except files. */
Status kept_options(Session *s, const SectionFile *f, Options *o);

#endif
