/* SPDX-License-Identifier: Apache-2.0 */
/* kept.h: what a module keeps of its compilation, for commands that go on from
   there. */
#ifndef AMPC_FRONTEND_CLI_KEPT_H
#define AMPC_FRONTEND_CLI_KEPT_H

#include "codegen/module/section.h"
#include "frontend/cli/cmd.h"

/* The IR after a pass. */
Status kept_ir(Session *s, const SectionFile *f, const char *pass, Module **m);
/* Of that module the graphs of some programs and their variables alone. */
Status kept_programs(Session *s, const ProgramKind *kinds, int n, Module **m);
/* The options that the module was compiled with, but for files. */
Status kept_options(Session *s, const SectionFile *f, Options *o);

#endif
