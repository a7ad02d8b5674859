/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h: data files as the inputs of a program, batch by batch.

   FILE may be FILE:PART where a format has parts (array.h).  The first axis of
   an array counts samples; tokens are cut in windows.  An input without the
   batch in its first axis, such as the edges of a graph, is one array for all
   batches.  A sample may have another shape if its elements are the same ones
   in the same order (feed_shape.h); u8 data for a floating input is divided by
   255, i8 data is taken as it is; integers and floating numbers may change
   width if every value fits; all other differences are errors. */
#ifndef AMPC_FRONTEND_DRIVER_FEED_H
#define AMPC_FRONTEND_DRIVER_FEED_H

#include "frontend/data/feed_set.h"
#include "runtime/files/outfile.h"

/* Opens the specs "INPUT=FILE" of the inputs of `program`; all of its inputs
   must be among them, and specs of the module's other inputs are ignored.
   Files that `guard` reserves for output are not read. */
Status feeds_open(Diag *d, FileGuard *guard, const ampc_api *api,
                  const char *program, const RunList *specs, FeedSet *fs);
/* FILE alone, for input `index` of `program`; fs->samples: the samples in it,
   -1: it is one value for all batches. feeds_free is due even after a failure.
 */
Status feed_try(Diag *d, FileGuard *guard, const ampc_api *api,
                const char *program, uint32_t index, const char *file,
                FeedSet *fs);
void feeds_free(FeedSet *fs);

/* Cuts FILE:PART behind FILE and returns PART, if FILE is there; else NULL. */
const char *file_part(char *file);

/* The facts that feed_shape.h asks for. */
Fed feed_facts(const Feed *f, int64_t samples);

/* Converts the next batch directly into memory that the device reads, if the
   device has such memory. */
void feeds_stage(FeedSet *fs, const ampc_api *api, ampc_session *s);

/* Loads samples order[first .. first + n) (order NULL: in file order); rows
   beyond n repeat the last one.                                             */
Status feeds_fill(Diag *d, FeedSet *fs, const int64_t *order, int64_t first,
                  int64_t n);

/* Elements [first, first + n) of an array as they are: u8 is not divided. */
void numbers_of(int dtype, const void *data, int64_t first, int64_t n,
                double *to);

#endif
