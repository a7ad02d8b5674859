/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h: data files as the inputs of a program, batch by batch.

   FILE may be FILE:PART where a format has parts (array.h).  The first axis of
   an array counts samples; tokens are cut in windows.  An input whose first
   axis is not the batch, such as the edges of a graph, is one array for all
   batches. A sample may have another shape if its elements have the same
   meaning and order (feed_shape.h). u8 data for a floating input is divided
   by 255, i8 data is taken unchanged; integers and floating numbers may
   change width if every value fits. All other differences are errors. */
#ifndef AMPC_FRONTEND_DRIVER_FEED_H
#define AMPC_FRONTEND_DRIVER_FEED_H

#include "frontend/data/feed_set.h"
#include "runtime/files/outfile.h"

/* Opens the specs "INPUT=FILE" of the inputs of `program`; all of its inputs
   must be among them, and specs of the module's other inputs are ignored.
   Files that `guard` reserves for output are not read. */
Status feeds_open(Diag *d, FileGuard *guard, const ampc_api *api,
                  const char *program, const RunList *specs, FeedSet *fs);
/* The same for a module of several sizes (feed_size.h): batches have the
   smallest that holds their samples. */
Status feeds_open_sizes(Diag *d, FileGuard *guard, const ampc_api *api,
                        const char *program, const RunList *specs,
                        const FeedHow *how, FeedSet *fs);
/* Opens FILE alone, for input `index` of `program`; fs->samples: the number of
   samples, -1: one array for all batches. Call feeds_free even after a failure.
 */
Status feed_try(Diag *d, FileGuard *guard, const ampc_api *api,
                const char *program, uint32_t index, const char *file,
                FeedSet *fs);
void feeds_free(FeedSet *fs);

/* If FILE exists, cuts FILE:PART after FILE and returns PART; else NULL. */
const char *file_part(char *file);

/* The facts that feed_shape.h needs. */
Fed feed_facts(const Feed *f, int64_t samples);

/* Converts the next batch directly into memory that the device reads, if
   there is such memory. */
void feeds_stage(FeedSet *fs, const ampc_api *api, ampc_session *s);

/* Loads samples order[first .. first + n) (order NULL: in file order); rows
   beyond n repeat the last one.                                             */
Status feeds_fill(Diag *d, FeedSet *fs, const int64_t *order, int64_t first,
                  int64_t n);

/* Leaves n samples of the batch to the inputs. */
void feeds_keep(FeedSet *fs, int64_t n);
/* The number of the sample's size, from 0 on in ascending order. */
Status feeds_size(Diag *d, FeedSet *fs, int64_t sample, int *size);

/* Elements [first, first + n) of an array, unchanged: u8 is not divided. */
void numbers_of(int dtype, const void *data, int64_t first, int64_t n,
                double *to);

#endif
