/* SPDX-License-Identifier: Apache-2.0 */
/* infile.h: reads from an offset of an open file until all bytes are read,
   for the runtime inside a module and for `ampc` itself. */
#ifndef AMPC_INFILE_H
#define AMPC_INFILE_H

#include <stdbool.h>
#include <stdint.h>

/* Reads n bytes from offset `at`.  Returns the number of bytes read, fewer
   than n only if the file ends, or -1 with errno. The file's position does
   not change. */
int64_t infile_read(int fd, void *out, uint64_t n, uint64_t at);

/* All n bytes came. */
bool infile_whole(int fd, void *out, uint64_t n, uint64_t at);

#endif
