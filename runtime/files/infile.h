/* SPDX-License-Identifier: Apache-2.0 */
/* infile.h: reads from an offset of an open file until all bytes are read, and
   recognises files that often lie in another's place, for the runtime inside a
   module and for `ampc` itself. */
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

/* Names of such files, with the remedy. */
extern const char infile_pointer[], infile_page[];
enum { INFILE_BEGIN = 64 }; /* bytes that decide */

/* One of the two, by the first n bytes of a file; NULL: neither. */
const char *infile_instead(const void *bytes, uint64_t n);
/* For an open file. */
const char *infile_instead_of(int fd);

#endif
