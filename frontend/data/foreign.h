/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: kinds of files that no reader takes, and the commands that convert
   them. */
#ifndef AMPC_FRONTEND_DATA_FOREIGN_H
#define AMPC_FRONTEND_DATA_FOREIGN_H

#include "frontend/data/source.h"

/* The path as it stands in a command that people copy into a shell. The file
   may be a stranger's: FILE stands for a name with letters that a shell or
   Python could take for more than a name. */
const char *name_to_copy(const char *path);

/* "a Parquet file, which is not read as it is: python3 -c ..", of the first n
   bytes of a file; false: it is of no kind that is known here. */
bool foreign_tell(const unsigned char *p, size_t n, const char *path,
                  StrBuf *sb);
/* The same of a zip archive, by the name of a member. */
bool foreign_member(const char *member, const char *path, StrBuf *sb);

#endif
