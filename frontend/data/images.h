/* SPDX-License-Identifier: Apache-2.0 */
/* images.h: pictures, and folders of them, as arrays. */
#ifndef AMPC_FRONTEND_DATA_IMAGES_H
#define AMPC_FRONTEND_DATA_IMAGES_H

#include "frontend/data/array.h"

/* A decoded picture: rows from the top, `channels` bytes a pixel: 1 grey, 3
   red, green, blue.  For free(). */
typedef struct Picture {
    int64_t width, height;
    int channels;
    unsigned char *pixels;
} Picture;

/* True if the file in memory begins as PNG and JPEG do. */
bool picture_is(const unsigned char *file, size_t n);
/* Decodes such a file; false: the reason is set. */
bool picture_decode(const unsigned char *file, size_t n, int channels,
                    Picture *p, char why[100]);
/* Resizes to width x height, as Pillow's BILINEAR: each pixel is a mean of
   the pixels that it covers, weighted by a triangle. NULL: out of memory;
   the caller frees it. */
unsigned char *picture_resize(const Picture *p, int64_t width, int64_t height);

/* FOLDER/CLASS/FILE, or FOLDER/FILE: reads it for input `want`: pictures
   resized to it as u8 or, for an input of integers, the number of each
   picture's class. Classes and files are sorted by the bytes of their names.
   known: the classes there are; NULL: those of the folder. */
Status images_open(Diag *d, const char *folder, const ampc_tensor_info *want,
                   const Classes *known, Array *a);
/* The pictures that a column of a table names, relative to the table's folder,
   in its order. *found: false if the input takes no pictures, or the file is
   no table, or the column holds numbers. */
Status images_of_table(Diag *d, const char *table, const char *column,
                       const ampc_tensor_info *want, Array *a, bool *found);
/* True if the input takes class numbers. */
bool takes_labels(const ampc_tensor_info *want);
/* The number of pictures, their sizes, and the classes, for people. */
Status images_tell(Diag *d, const char *folder, StrBuf *sb);

#endif
