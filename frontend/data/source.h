/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: the bytes that an array is read from: a file, or a part of one, as
   they are or packed.                                                       */
#ifndef AMPC_FRONTEND_DRIVER_SOURCE_H
#define AMPC_FRONTEND_DRIVER_SOURCE_H

#include "ir/base/base.h"

typedef struct SourcePacked SourcePacked;

typedef struct Source {
    Diag *d;
    const char *path;
    int fd;
    uint64_t base, size;  /* range of the bytes as stored in the file */
    SourcePacked *packed; /* NULL: plain; else read in order only */
} Source;

/* A message about the file; always ERR_USER. */
Status source_bad(const Source *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The whole file, unpacked if it is gzip.  source_close is due even after a
   failure.                                                                  */
Status source_open(Source *s);
/* A part of a plain file, from its beginning. source_deflated: a deflated
   part that unpacks to `raw` bytes with that CRC-32. */
Status source_part(Source *s, uint64_t base, uint64_t size);
Status source_deflated(Source *s, uint64_t base, uint64_t size, uint64_t raw,
                       uint32_t crc);
void source_close(Source *s);

/* Reads n bytes from `at` on; *got: how many there were. A packed source
   continues at its present position and ignores `at`. */
Status source_take(const Source *s, void *out, size_t n, uint64_t at,
                   size_t *got);
/* All of them, or a message. */
Status source_get(const Source *s, void *out, size_t n, uint64_t at);
/* More than this is not in it. */
uint64_t source_most(const Source *s);

/* A nameless file for a copy, which no other process can open and which
   vanishes with the process; -1: errno. */
int source_copy(void);
bool source_put(int fd, const void *data, size_t n, uint64_t at);
Status source_copy_failed(const Source *s);

#endif
