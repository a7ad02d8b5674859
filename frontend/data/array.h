/* SPDX-License-Identifier: Apache-2.0 */
/* array.h: arrays in files, read in windows: .npy, .npz (NumPy), safetensors,
   IDX (as MNIST ships), CIFAR's, tokens (.bin) and text (.csv); also gzipped,
   if a file is one array.

   Files are treated as hostile. The header decides how many bytes are read. Its
   sizes are checked against the file's size before anything is allocated, and
   no more bytes than that are unpacked. Small arrays are kept in memory; large
   ones are read in windows from the file itself or, if it is packed or in
   another order, from a nameless temporary copy.

   array.c  shapes and windows;  source.c  bytes of files
   npy.c, npz.c, idx.c, cifar.c, tensors.c, tokens.c, csv.c  a format each
   foreign.c  what is not read, and how to convert it
   describe.c what is in a file, for people
   classes.c  names of classes;  vocabulary.c  tokens of a text
   images.c, picture.c  folders of PNG and JPEG (images.h)                   */
#ifndef AMPC_FRONTEND_DRIVER_ARRAY_H
#define AMPC_FRONTEND_DRIVER_ARRAY_H

#include "frontend/data/classes.h"
#include "frontend/data/source.h"

#define AMPC_NO_LOADER
#include "runtime/ampc.h"
#include "runtime/program/dtype.h"

typedef struct Array {
    ampc_dtype dtype;
    int rank;
    int64_t dim[AMPC_RANK_LIMIT];
    int64_t count; /* elements */
    size_t bytes;
    char *memory; /* the whole file, or NULL: */
    int fd;       /* the file, or a copy; -1: none */
    uint64_t at;  /* offset of the data */
    bool swap;    /* the data are in the other byte order */
    bool windows; /* has no samples: the reader cuts windows as it needs them */
    bool text;    /* the numbers were written as text */
    Classes classes; /* what class numbers stand for */
} Array;

/* Selects an array of a file that has several, or how to read the file. */
typedef struct ArrayPick {
    const char *part; /* FILE:PART; the format decides what PART means; NULL:
                         not given */
    const char
        *input;    /* the input that it feeds; names the part if part is NULL */
    bool integers; /* text: read integers, not floats */
    bool labels;   /* the input takes class numbers: words of a table are names
                      of classes */
    const Classes *known;   /* the classes there are; NULL: those of the file */
    const char *vocabulary; /* a file: the tokens of a text; NULL: bytes */
} ArrayPick;

/* Recognises formats by content. pick may be NULL. On failure nothing is
   left to close.                                                            */
Status array_open(Diag *d, const char *path, const ArrayPick *pick, Array *a);
/* Elements [first, first + n), without gaps, row-major, in this machine's
   byte order. */
Status array_get(Diag *d, const char *path, const Array *a, int64_t first,
                 int64_t n, void *out);
void array_close(Array *a);

/* What FILE:PART can choose in a file; none: the file is one array. */
typedef struct ArrayPart {
    const char *part, *label; /* label: its name, if the part is a number */
} ArrayPart;
typedef struct ArrayParts {
    Arena *arena;
    const char *format;
    bool columns; /* part of a table, which is also an array as a whole */
    VEC(ArrayPart) list;
} ArrayParts;
Status array_parts(Diag *d, const char *path, ArrayParts *to);

/* ---- formats ------------------------------------------------------------- */

enum { ARRAY_HEAD = 1 << 16 }; /* no header is longer */

/* The facts of a header. */
typedef struct ArrayHead {
    ampc_dtype dtype;
    int rank;
    int64_t dim[AMPC_RANK_LIMIT];
    size_t data;   /* offset of the first element */
    bool big;      /* endian */
    bool columns;  /* Fortran order: the first index varies fastest */
    bool windows;  /* as in Array; the last element belongs to no window */
    char why[100]; /* reason of a refusal */
    /* for `find` */
    const unsigned char *head; /* the first bytes of the file */
    size_t head_bytes;
    bool found; /* set: all fields above are known; nothing is left to parse */
    int copy;   /* set: the elements begin at the start of this file; else -1 */
    bool text;  /* set: as in Array */
    Classes classes; /* set: as in Array, which then owns them */
} ArrayHead;

/* p: the first ARRAY_HEAD bytes of a file, or all of a shorter one. */
typedef struct ArrayFormat {
    const char *name;
    bool (*is)(const unsigned char *p, size_t n);
    const char *end; /* ending of a file name, for content without a mark (is
                        == NULL) */
    /* One of the two: reads a header; or, if a file has more than header and
       elements, finds the array. */
    bool (*parse)(const unsigned char *p, size_t n, ArrayHead *h);
    Status (*find)(Source *s, const ArrayPick *pick, ArrayHead *h);
    /* NULL: such a file has no parts. h: the first bytes of the file. */
    Status (*parts)(Source *s, const ArrayHead *h, ArrayParts *to);
} ArrayFormat;

extern const ArrayFormat npy_format, npz_format, idx_format, cifar_format,
    tensors_format, tokens_format, text_format, csv_format, tsv_format;

/* csv.c: the words of a table's column, chosen by its name. *found: false if it
   holds numbers. */
typedef struct CsvWords {
    Arena *a;
    VEC(const char *) at;
} CsvWords;
Status csv_words(Diag *d, const char *path, const char *column, CsvWords *to,
                 bool *found);
/* True if the file name, without a final .gz, has that ending. */
bool has_end(const char *path, const char *end);

/* tensors.c: memory for st_open of runtime/files/safetensors.h. */
extern const ampc_options safetensors_memory;

/* The header of a .npy file; .npy has no bf16: write f32. The caller frees
   buf (sb_free). */
void npy_header(StrBuf *buf, int dtype, int rank, const int64_t *dim);

#endif
