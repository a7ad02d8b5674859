/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.h: the meaning of token numbers: bytes, the lines of a file, or
   the plain numbers. */
#ifndef AMPC_FRONTEND_DATA_VOCABULARY_H
#define AMPC_FRONTEND_DATA_VOCABULARY_H

#include "ir/base/base.h"

typedef struct Vocabulary {
    int64_t size;           /* tokens of the model */
    bool bytes;             /* token i is byte i */
    VEC(const char *) line; /* texts of the tokens; NULL: bytes, or numbers */
    VEC(int) length;
    int *sorted; /* the tokens in the order of their texts */
} Vocabulary;

typedef struct Tokens {
    Arena *a;
    VEC(int64_t) at;
} Tokens;

/* file: a token a line, with \n, \t, \r, \\ for these characters; NULL:
   bytes for up to 256 tokens, else numbers. size: tokens of the model; -1: as
   many as the file has. */
Status vocabulary_open(Arena *a, Diag *d, const char *file, int64_t size,
                       Vocabulary *v);
/* Splits a text into tokens, the longest match first; numbers: "464, 3290".
   file: where the text is from; NULL: the prompt of --generate. */
Status vocabulary_encode(const Vocabulary *v, Diag *d, const char *file,
                         const char *text, Tokens *to);
void vocabulary_decode(const Vocabulary *v, int64_t token, StrBuf *sb);

#endif
