/* safetensors.h: the file format, without meaning.

   u64 length of the header, JSON header, data.  The header maps each tensor's
   name to dtype, shape and data_offsets; the data holds no gaps.  A file is
   checked whole when it is opened; nothing of it is trusted.  What we write
   has a CRC-32 of all its bytes, its own eight digits taken as zeros, in
   __metadata__.ampc.crc32; files from elsewhere have none.                  */
#ifndef AMPC_SAFETENSORS_H
#define AMPC_SAFETENSORS_H

#include "runtime/json.h"
#include "runtime/session.h"

/* ---- text that grows ----------------------------------------------------- */

typedef struct Text {
    const ampc_session *s;
    char *p; /* NUL-terminated once something was put */
    size_t n, cap;
    bool failed; /* out of memory: later calls do nothing */
} Text;

void text_put(Text *t, const char *p, size_t n);
void text_printf(Text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void text_quoted(Text *t, const char *p); /* as a JSON string */
void text_free(Text *t);

/* What a tensor of that name is called in a file: the format keeps one name for
   itself.                                                                   */
const char *st_name(const char *name);

/* ---- reading ------------------------------------------------------------- */

typedef struct StTensor {
    JsonSpan name;
    uint32_t dtype, rank;
    int64_t dim[AMPC_MAX_RANK];
    uint64_t begin, end; /* in the data */
} StTensor;

typedef struct StFile {
    const char *path;
    int fd;
    uint64_t size, data; /* of the file; where the data begins */
    char *header;
    size_t header_bytes;
    JsonSpan metadata; /* object of strings; n = 0: none */
    StTensor *tensors;
    size_t ntensor;
    bool torn; /* absent, cut off or damaged: what was there may be elsewhere */
} StFile;

/* On failure nothing is left to close; f->torn stays. */
ampc_status st_open(ampc_session *s, const char *path, StFile *f);
/* Whether all bytes are those that were written; *there = false: the file has
   no checksum.                                                              */
ampc_status st_verify(ampc_session *s, StFile *f, bool *there);
void st_close(ampc_session *s, StFile *f);
/* Refuses a file that is not exactly that. */
ampc_status st_match(ampc_session *s, StFile *f, uint64_t bytes, uint32_t crc);
const StTensor *st_find(const StFile *f, const char *name);
ampc_status st_read(ampc_session *s, StFile *f, const StTensor *t, void *out);
/* Into a variable of that size. */
ampc_status st_read_var(ampc_session *s, StFile *f, const StTensor *t,
                        uint32_t var);

/* ---- writing ------------------------------------------------------------- */

typedef struct StItem {
    const char *name;
    uint32_t dtype, rank;
    const int64_t *dim;
    uint32_t var; /* whose bytes */
    uint64_t bytes;
} StItem;

/* A whole new file at the path, or the old one (outfile.h), which is kept as
   PATH.prev.  `metadata` becomes __metadata__.ampc.                         */
#define ST_PREVIOUS ".prev"
ampc_status st_write(ampc_session *s, const char *path, const StItem *items,
                     size_t nitem, const char *metadata);

#endif
