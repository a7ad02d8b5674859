/* SPDX-License-Identifier: Apache-2.0 */
/* augment.h: changes samples before the module gets them: --augment
   INPUT=STEP,STEP... Kinds of steps are rows of a table in augment.c.

   Random choices depend only on the seed, the epoch, the sample and the kind
   of step. So a resumed run, several ranks, and two inputs such as a picture
   and its map of classes make the same choices. */
#ifndef AMPC_FRONTEND_DATA_AUGMENT_H
#define AMPC_FRONTEND_DATA_AUGMENT_H

#include "frontend/data/feed_set.h"

/* True if each "INPUT=STEPS" can be read. */
Status augment_check(Diag *d, const RunList *specs);
/* Takes the specs of the inputs of `fs`; the others must be inputs of
   `known` (NULL: there may be no others). training: also applies random
   steps. */
Status augment_open(Diag *d, const RunList *specs, const FeedSet *known,
                    bool training, int64_t seed, FeedSet *fs);
void augment_free(FeedSet *fs);
/* The first n rows of a batch; row i is sample order[first + i]. */
void augment_rows(FeedSet *fs, const int64_t *order, int64_t first, int64_t n);
/* "x: flip in training, normalize:0.5/0.25 also in evaluation" and a line
   end, for each spec. */
void augment_tells(const RunList *specs, StrBuf *sb);

#endif
