/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: the file format, without meaning; needs no session.

   u64 length of the header, JSON header, data.  The header maps each tensor's
   name to dtype, shape and data_offsets; the data holds no gaps.  A file is
   checked whole when it is opened; nothing of it is trusted.  What we write
   has a CRC-32 of all its bytes, its own eight digits taken as zeros, in
   __metadata__.ampc.crc32; files from elsewhere have none.                  */
#ifndef AMPC_SAFETENSORS_H
#define AMPC_SAFETENSORS_H

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/files/json.h"
#include "runtime/program/plan.h"

#define ST_CRC_KEY "ampc.crc32"
enum { ST_CRC_DIGITS = 8 };

extern const char *const st_dtypes[AMPC_NDTYPE]; /* as files spell them */

/* What a tensor of that name is called in a file, which keeps one name for
   itself; and back.                                                         */
const char *st_name(const char *name);
const char *st_meant(const char *name);

typedef struct StTensor {
    JsonSpan name;
    uint32_t dtype, rank;
    int64_t dim[AMPC_MAX_RANK];
    uint64_t begin, end; /* in the data */
    bool foreign; /* of a dtype or a rank that ampc has not: as the file says */
    JsonSpan dtype_text, shape_text;
} StTensor;

typedef struct StFile {
    const char *path;
    const ampc_options *mem; /* its `alloc` and `free` are used */
    int fd;
    uint64_t size, data; /* of the file; where the data begins */
    char *header;
    size_t header_bytes;
    JsonSpan metadata; /* object of strings; n = 0: none */
    StTensor *tensors;
    size_t ntensor;
    bool torn; /* absent, cut off or damaged: what was there may be elsewhere */
    bool json; /* refused, but it may be the index of several such files */
    char why[900]; /* of the last call that failed, with the path */
} StFile;

/* On failure nothing is left to close; what the file was found to be stays. */
ampc_status st_open(const ampc_options *mem, const char *path, StFile *f);
/* Whether all bytes are those that were written; *there = false: the file has
   no checksum.                                                              */
ampc_status st_verify(StFile *f, bool *there);
void st_close(StFile *f);
/* Refuses a file that is not exactly that. */
ampc_status st_match(StFile *f, uint64_t bytes, uint32_t crc);
/* NULL: none, or two. */
const StTensor *st_find(const StFile *f, const char *name);
/* Bytes [at, at + n) of a tensor. */
ampc_status st_read(StFile *f, const StTensor *t, uint64_t at, uint64_t n,
                    void *out);

#endif
