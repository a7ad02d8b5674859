/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: the file format, without meaning; needs no session.

   u64 length of the header, JSON header, data.  The header maps each tensor's
   name to dtype, shape and data_offsets; the data holds no gaps.  A file is
   checked completely when it is opened; nothing in it is trusted. Files
   written by ampc have a CRC-32 of all their bytes, with its own eight
   digits counted as zeros, in __metadata__.ampc.crc32; other files have
   none. */
#ifndef AMPC_SAFETENSORS_H
#define AMPC_SAFETENSORS_H

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/base/json.h"
#include "runtime/program/plan.h"

#define ST_CRC_KEY "ampc.crc32"
enum { ST_CRC_DIGITS = 8 };

/* The name that a tensor has in a file (the format reserves one name), and
   the reverse. */
const char *st_name_in_file(const char *name);
const char *st_name_of_tensor(const char *name);

typedef struct StTensor {
    JsonSpan name;
    uint32_t dtype, rank;
    int64_t dim[AMPC_MAX_RANK];
    uint64_t begin, end; /* in the data */
    bool foreign; /* dtype or rank that ampc does not support: as the file
                     says */
    JsonSpan dtype_text, shape_text;
} StTensor;

typedef struct StFile {
    const char *path;
    const ampc_options *mem; /* context for `alloc` and `free` */
    int fd;
    uint64_t size, data; /* size of the file; begin of the data */
    char *header;
    size_t header_bytes;
    JsonSpan metadata; /* object of strings; n = 0: none */
    StTensor *tensors;
    size_t ntensor;
    bool torn;     /* missing, truncated or damaged: an older copy may exist
                    */
    bool json;     /* refused; it may be an index of several such files */
    char why[900]; /* reason of the last failure, with the path */
} StFile;

/* After a failure nothing needs to be closed; the fields that describe the
   file stay set. */
ampc_status st_open(const ampc_options *mem, const char *path, StFile *f);
/* Checks all bytes against the file's checksum; *there = false: the file has
   none. */
ampc_status st_verify(StFile *f, bool *there);
void st_close(StFile *f);
/* Refuses a file with another size or checksum. */
ampc_status st_match(StFile *f, uint64_t bytes, uint32_t crc);
/* NULL if the file has no such tensor, or two of that name. */
const StTensor *st_find(const StFile *f, const char *name);
/* Bytes [at, at + n) of a tensor. */
ampc_status st_read(StFile *f, const StTensor *t, uint64_t at, uint64_t n,
                    void *out);

#endif
