/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: kinds of files that no reader takes, and the commands that convert
   them. */
#ifndef AMPC_FRONTEND_DATA_FOREIGN_H
#define AMPC_FRONTEND_DATA_FOREIGN_H

#include "frontend/data/source.h"

/* The path as it appears in a command that people copy into a shell. A file
   name from a stranger could contain shell or Python code: the command then
   says FILE instead. */
const char *name_to_copy(const char *path);

/* "a Parquet file, which is not read as it is: python3 -c ..", from the
   first n bytes of a file; false: the kind is unknown. */
bool foreign_tell(const unsigned char *p, size_t n, const char *path,
                  StrBuf *sb);
/* The same for a zip archive, by the name of a member. */
bool foreign_member(const char *member, const char *path, StrBuf *sb);

#endif
