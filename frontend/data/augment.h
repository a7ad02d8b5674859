/* SPDX-License-Identifier: Apache-2.0 */
/* augment.h: what changes samples on their way to the module: --augment
   INPUT=STEP,STEP...  Kinds of steps are rows of a table in augment.c.

   Draws depend on the seed, the epoch, the sample and the kind of step alone: a
   resumed run has the same ones, so do several ranks, and so do two inputs, a
   picture and its map of classes. */
#ifndef AMPC_FRONTEND_DATA_AUGMENT_H
#define AMPC_FRONTEND_DATA_AUGMENT_H

#include "frontend/data/feed_set.h"

/* Whether each "INPUT=STEPS" can be read. */
Status augment_check(Diag *d, const RunList *specs);
/* Takes the specs of the inputs of `fs`; the others must be inputs of `known`
   (NULL: none other). training: also the steps that draw. */
Status augment_open(Diag *d, const RunList *specs, const FeedSet *known,
                    bool training, int64_t seed, FeedSet *fs);
void augment_free(FeedSet *fs);
/* The first n rows of a batch, samples order[first ..). */
void augment_rows(FeedSet *fs, const int64_t *order, int64_t first, int64_t n);
/* "x: flip in training, normalize:0.5/0.25 also in evaluation" and a line's
   end, for each spec. */
void augment_tells(const RunList *specs, StrBuf *sb);

#endif
