/* SPDX-License-Identifier: Apache-2.0 */
/* feed_set.h: the inputs of a program and the files that feed them (feed.h). */
#ifndef AMPC_FRONTEND_DATA_FEED_SET_H
#define AMPC_FRONTEND_DATA_FEED_SET_H

#include "frontend/data/feed_shape.h"

typedef struct Feed {
    ampc_tensor_info want; /* the input */
    const char *file;
    char *path; /* path of FILE or FILE:PART; own copy */
    ArrayPick pick;
    Array a;
    int64_t per; /* elements per sample; 0: one value for all batches       */
    int64_t classes; /* the file has class numbers, and the input this many
                        probabilities for each; 0: the file has the input's
                        elements */
    char *batch;     /* converted rows */
    char *to; /* destination of converted rows: batch, or staged memory */
    struct Augment *augment; /* augment.h; NULL: none */
    char *raw; /* a batch in the file's dtype; NULL: the file has the input's
                  dtype */
} Feed;

typedef struct FeedSizes FeedSizes; /* feed_size.h */

/* How a run reads its files. */
typedef struct FeedHow {
    /* Classes have the numbers that they have in the set that trains, then
       those of the checkpoint, then of their own file. NULL: none such. */
    const struct FeedSet *like;
    const KnownClasses *recorded;
    const char *vocabulary; /* a file: the tokens of texts; NULL: bytes */
} FeedHow;

typedef struct FeedSet {
    const char *program;
    FeedHow how;
    Feed *feed;
    ampc_input *in; /* inputs for the API; valid after feeds_fill */
    int n;
    int64_t samples, batch;
    int64_t seed, epoch; /* seed of augment.h's random choices */
    FeedSizes *sizes;    /* NULL: one size */
    bool whole;          /* batches keep the files' shapes */
} FeedSet;

/* Values of an option that may be given several times. */
enum { RUN_MAX_LIST = 64 };
typedef struct RunList {
    const char *at[RUN_MAX_LIST];
    int n;
    const char *option; /* for messages; NULL: --feed */
} RunList;

#endif
