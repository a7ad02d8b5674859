/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: the bytes of an array: a file, or a part of one, plain or
   packed. */
#ifndef AMPC_FRONTEND_DRIVER_SOURCE_H
#define AMPC_FRONTEND_DRIVER_SOURCE_H

#include "ir/base/base.h"

typedef struct SourcePacked SourcePacked;

typedef struct Source {
    Diag *d;
    const char *path;
    int fd;
    uint64_t base, size;  /* range of the bytes as stored in the file */
    SourcePacked *packed; /* NULL: plain; else it can be read only in order */
} Source;

/* A message about the file; always ERR_USER. */
Status source_bad(const Source *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Opens the whole file, and unpacks it if it is gzip. Call source_close even
   after a failure. */
Status source_open(Source *s);
/* The first bytes of a file. A pointer of Git LFS or a web page in its place is
   refused, but a page in a .txt may be the text to learn: a warning. */
Status source_begin(const Source *s, void *out, size_t n, size_t *got);
/* A part of a plain file, from its beginning. source_deflated: a deflated
   part that unpacks to `raw` bytes with that CRC-32. */
Status source_part(Source *s, uint64_t base, uint64_t size);
Status source_deflated(Source *s, uint64_t base, uint64_t size, uint64_t raw,
                       uint32_t crc);
void source_close(Source *s);

/* Reads n bytes from `at` on; *got: the number of bytes available. A packed
   source continues at its current position and ignores `at`. */
Status source_take(const Source *s, void *out, size_t n, uint64_t at,
                   size_t *got);
/* Reads exactly n bytes, or gives a message. */
Status source_get(const Source *s, void *out, size_t n, uint64_t at);
/* An upper bound of the number of bytes. */
uint64_t source_most(const Source *s);

/* A nameless file for a copy: no other process can open it, and it vanishes
   when the process ends; -1: errno. */
int source_copy(void);
bool source_put(int fd, const void *data, size_t n, uint64_t at);
Status source_copy_failed(const Source *s);

#endif
