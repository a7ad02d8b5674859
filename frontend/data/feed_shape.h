/* SPDX-License-Identifier: Apache-2.0 */
/* feed_shape.h: whether an array has the elements of an input in their order.
   Its shape may be the input's, with axes of 1 more or fewer, or with
   neighbouring axes as one (pictures of 28x28 as rows of 784); any other has
   as many elements, but means others by them.                               */
#ifndef AMPC_FRONTEND_DRIVER_FEED_SHAPE_H
#define AMPC_FRONTEND_DRIVER_FEED_SHAPE_H

#include "frontend/data/array.h"

bool shapes_agree(const int64_t *dim, int rank, const int64_t *other,
                  int other_rank);

/* An array of that many samples of `per` elements for an input; per 0: the same
   for all batches. */
typedef struct Fed {
    const Array *a;
    const ampc_tensor_info *want;
    int64_t per, samples;
    int64_t classes; /* as in Feed */
} Fed;

bool fed_lies_right(const Fed *f);
/* The transposition that would make it fit, if one does. */
void fed_hint(const Fed *f, StrBuf *sb);
/* "x: u8 500x3x32x32, divided by 255" and a line's end; nothing if the values
   are taken as they are.                                                    */
void fed_tells(const Fed *f, StrBuf *sb);

#endif
