/* SPDX-License-Identifier: Apache-2.0 */
/* vocabulary.h: what token numbers stand for: bytes, the lines of a file, or
   nothing but the numbers. */
#ifndef AMPC_FRONTEND_RUN_VOCABULARY_H
#define AMPC_FRONTEND_RUN_VOCABULARY_H

#include "ir/base/base.h"

typedef struct Vocabulary {
    int64_t size;           /* tokens of the model */
    bool bytes;             /* token i is byte i */
    VEC(const char *) line; /* texts of the tokens; none: bytes, or numbers */
    VEC(int) length;
} Vocabulary;

typedef struct Tokens {
    Arena *a;
    VEC(int64_t) at;
} Tokens;

/* file: a token a line, with \n, \t, \r, \\ for these characters; NULL: bytes
   up to 256 tokens, else numbers. */
Status vocabulary_open(Arena *a, Diag *d, const char *file, int64_t size,
                       Vocabulary *v);
/* A text as tokens, the longest that fits first; numbers: "464, 3290". */
Status vocabulary_encode(const Vocabulary *v, Diag *d, const char *text,
                         Tokens *to);
void vocabulary_decode(const Vocabulary *v, int64_t token, StrBuf *sb);

#endif
