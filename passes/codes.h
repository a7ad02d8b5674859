/* SPDX-License-Identifier: Apache-2.0 */
/* codes.h: values as codes of 8 bits (f8e4m3) with an fp32 scale for each row,
   which forward makes for backward (--keep f8).
   Before:  %d = mul %dy, %x : f32[4,128] !backward
   After:   %a = abs %x        %s = reduce_max (%a * 1/448) {axes=[1]}
            %i = where(%s > 0, min(1 / %s, 3e38), 0)
            %y = mul max(min(%a * %i, 448), 2^-9), sign(%x)
            %c = cast %y {user=1} : f8e4m3[4,128]
            %w = cast %c : f32 !backward              %z = mul %w, %s !backward
            %d = mul %dy, %z !backward
   A row is the last axis, or as many of the last axes as have 64 elements
   together; its largest magnitude gets the largest code. 2^-9 is the least
   magnitude of f8e4m3: only 0 has the code 0, and signs are kept, so that
   comparisons with 0 are exact. In a row with a number that is not finite no
   number is finite afterwards.                                              */
#ifndef AMPC_PASSES_CODES_H
#define AMPC_PASSES_CODES_H

#include "ir/ir.h"

typedef struct Codes {
    ValueId code, scale; /* 0: none */
} Codes;

/* Bytes of the codes and scales of a value of that type. */
int64_t codes_bytes(const Type *t);
/* Builds the codes of x. */
Codes codes_make(Builder *b, ValueId x);
/* Builds the f32 numbers for which codes stand. */
ValueId codes_read(Builder *b, Codes c);
/* The value whose code is `code`; NO_VALUE: it is no code. */
ValueId codes_value(const Graph *g, ValueId code);
/* The codes of v; 0: v has none. */
Codes codes_of(const Graph *g, const UserIndex *users, ValueId v);
/* The value from whose codes v was read, perhaps rounded to another dtype;
   NO_VALUE: v was not read from codes. */
ValueId codes_source(const Graph *g, ValueId v);

#endif
