/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: the files that `ampc` writes (runtime/files/outfile.h), with
   its messages. */
#ifndef AMPC_PASSES_FILES_H
#define AMPC_PASSES_FILES_H

#include "ir/base/base.h"
#include "runtime/files/outfile.h"

/* The message of a failed call of outfile.h. */
Status file_failed(Diag *d, const char *path, const OutFile *o);

/* What is written must not be what is read, nor two files in one: a file that
   the command reads, or writes; NULL: none. */
Status file_reads(Diag *d, FileGuard *g, const char *path, const char *role);
Status file_writes(Diag *d, FileGuard *g, const char *path, const char *role);

/* A file as another one names it: in the folder of that, unless it says where.
 */
Str file_beside(const char *other, const char *name);

/* A folder for files, made unless it is there.  When this or file_text fails,
   nothing stays of what was made for that role.                             */
Status file_folder(Diag *d, const char *path, FileGuard *guard,
                   const char *role);

/* A file for people to read: not synced, since it is easily made again.    */
Status file_text(Diag *d, const char *path, const void *text, size_t n,
                 FileGuard *guard, const char *role);

#endif
