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

/* Whether the file in memory begins as PNG and JPEG do. */
bool picture_is(const unsigned char *file, size_t n);
/* Such a file; false: why. */
bool picture_decode(const unsigned char *file, size_t n, int channels,
                    Picture *p, char why[100]);
/* To width x height, as Pillow's BILINEAR: each pixel is a mean of the pixels
   that it covers, weighted by a triangle.  NULL: out of memory; for free(). */
unsigned char *picture_resize(const Picture *p, int64_t width, int64_t height);

/* FOLDER/CLASS/FILE, or FOLDER/FILE: what input `want` takes of it, pictures of
   its size as u8 or, if it takes integers, the number of each picture's class.
   Classes and files are in the order of their names' bytes. */
Status images_open(Diag *d, const char *folder, const ampc_tensor_info *want,
                   Array *a);
/* How many pictures of which sizes, and the classes, for people. */
Status images_tell(Diag *d, const char *folder, StrBuf *sb);

#endif
