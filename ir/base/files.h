/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: writes the files of `ampc` (runtime/files/outfile.h) and prints
   messages. */
#ifndef AMPC_PASSES_FILES_H
#define AMPC_PASSES_FILES_H

#include "ir/base/base.h"
#include "runtime/files/outfile.h"

/* The message of a failed call of outfile.h. */
Status file_failed(Diag *d, const char *path, const OutFile *o);

/* Registers a file that the command reads or writes (NULL: none). Fails if
   an output is also an input, or if two outputs are one file. */
Status file_reads(Diag *d, FileGuard *g, const char *path, const char *role);
Status file_writes(Diag *d, FileGuard *g, const char *path, const char *role);

/* The path of a file that is named in the file `other`: relative to the
   folder of `other`, unless absolute. */
Str file_beside(const char *other, const char *name);

/* The folder for temporary files: $TMPDIR, or /tmp. */
const char *temporary_place(void);

/* True if a name has that ending. */
bool has_suffix(const char *name, const char *suffix);

/* Makes the folder unless it exists. If this or file_text fails, everything
   made for that role is removed. */
Status file_folder(Diag *d, const char *path, FileGuard *guard,
                   const char *role);

/* Writes a file for people to read. It is not synced, since it is easily
   made again. */
Status file_text(Diag *d, const char *path, const void *text, size_t n,
                 FileGuard *guard, const char *role);

#endif
