/* SPDX-License-Identifier: Apache-2.0 */
/* feed_shape.h: whether an array has the elements of an input in the same
   order. Its shape may equal the input's, have axes of length 1 more or
   fewer, or neighbouring axes merged (pictures of 28x28 as rows of 784).
   Other shapes with as many elements would assign them differently and are
   refused. */
#ifndef AMPC_FRONTEND_DRIVER_FEED_SHAPE_H
#define AMPC_FRONTEND_DRIVER_FEED_SHAPE_H

#include "frontend/data/array.h"

bool shapes_agree(const int64_t *dim, int rank, const int64_t *other,
                  int other_rank);

/* Compares an array of that many samples of `per` elements with an input;
   per 0: one array for all batches. */
typedef struct Fed {
    const Array *a;
    const ampc_tensor_info *want;
    int64_t per, samples;
    int64_t classes; /* as in Feed */
} Fed;

bool fed_lies_right(const Fed *f);
/* The transposition that would make the array fit, if one exists. */
void fed_hint(const Fed *f, StrBuf *sb);
/* "x: u8 500x3x32x32, divided by 255" and a line end; nothing if the values
   are used unchanged. Before it the classes, if they have names. */
void fed_tells(const Fed *f, StrBuf *sb);

#endif
