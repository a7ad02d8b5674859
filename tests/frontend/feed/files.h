/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: writes and opens data files for the cases of feed_test. */
#ifndef AMPC_TESTS_FRONTEND_FEED_FILES_H
#define AMPC_TESTS_FRONTEND_FEED_FILES_H

#include "frontend/data/feed.h"
#include "tests/harness.h"

void write_npy(const char *name, int dtype, int rank, const int64_t *dim,
               const void *data);

/* Opens an array file of these n bytes. */
Status read_bytes(const char *data, size_t n, Array *a, Diag *d);

/* The lowest `bytes` bytes of v in little-endian order. */
void put_number(StrBuf *sb, uint64_t v, int bytes);

/* A zip archive as written by numpy.savez: the local headers have their
   sizes in the 64-bit extension. */
typedef struct Zip {
    StrBuf file, directory;
    int n;
    bool wide; /* the directory has its sizes in the extension, too */
} Zip;

void zip_add(Zip *z, const char *name, const void *data, size_t n,
             bool deflate_it);
void zip_write(Zip *z, const char *name);

/* Opens `part` of a file for an input; pick_fails expects the message `why`. */
Status pick(const char *name, const char *part, const char *input,
            bool integers, Array *a, Diag *d);
void pick_fails(const char *name, const char *part, const char *input,
                const char *why);

#endif
