/* SPDX-License-Identifier: Apache-2.0 */
/* feed_size.h: data for a module of several sizes (--dim T=64|128).

   What lies behind the last element that is not the input's value of --pad only
   fills a sample up: a batch is cut to the smallest size that holds the rest
   of all its inputs, and the module fills it up again. */
#ifndef AMPC_FRONTEND_DATA_FEED_SIZE_H
#define AMPC_FRONTEND_DATA_FEED_SIZE_H

#include "frontend/data/feed_set.h"

/* Sets fs->sizes, if the program has several; fs->feed has n inputs, from the
   program's input `first` on. */
Status feed_sizes_open(Diag *d, const ampc_api *api, FeedSet *fs,
                       uint32_t first, uint32_t n);
/* "; --pad ..", what a file that fits no size can do; "": there is one size. */
const char *feed_sizes_hint(const FeedSet *fs, const Feed *f);
/* Takes a file of a smaller size of the module, and of any shorter axes if the
   input has a value of --pad. */
void feed_sizes_shrink(const FeedSet *fs, Feed *f);
/* Cuts the batch, of n samples; fs->whole: gives it its shapes alone. */
void feed_sizes_cut(FeedSet *fs, int64_t n);
/* Leaves n samples of the batch in the shape of input i. */
void feed_sizes_keep(FeedSet *fs, int i, int64_t n);
/* The smallest size that holds the first n samples of the batch. */
int feed_sizes_of(const FeedSet *fs, int64_t n);
/* Their number, in ascending order; 1 if fs->sizes is NULL. */
int feed_sizes_count(const FeedSet *fs);
/* The program that takes the files' shapes. */
const char *feed_program(const FeedSet *fs);
void feed_sizes_free(FeedSet *fs);

#endif
