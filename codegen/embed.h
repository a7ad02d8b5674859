/* SPDX-License-Identifier: Apache-2.0 */
/* embed.h: files that the build puts inside `ampc` (embed.sh, codegen/BUILD).

   embed_runtime_a   the static archive that every train.so is linked with: the
                     runtime (run loop, API, common part of runtime/cpu) and the
                     per-ISA routines three times (x86-64-v2, -v3, -v4).  All
                     objects are position-independent and hide their symbols.
                     The linker takes from it the objects that the module refers
                     to.
   embed_files       the headers and hand-written sources under runtime/ that
                     generated code includes; the rest of the runtime, for
                     --target c (portable.txt lists its files) and for modules
                     of other processors (flags.txt).  `name` is the path from
   the repository root ("runtime/program/plan.h"): written below a folder D and
   compiled with -ID, `#include "runtime/program/plan.h"` works.

   Both outlive main; nothing here is allocated. */
#ifndef AMPC_CODEGEN_EMBED_H
#define AMPC_CODEGEN_EMBED_H

#include <stddef.h>

typedef struct EmbedFile {
    const char *name;
    const char *data; /* size bytes and a NUL                               */
    size_t size;
} EmbedFile;

extern const unsigned char embed_runtime_a[];
extern const size_t embed_runtime_a_size;

extern const EmbedFile embed_files[]; /* sorted by name                     */
extern const size_t embed_nfile;

#endif
