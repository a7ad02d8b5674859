/* SPDX-License-Identifier: Apache-2.0 */
/* picture.c: decodes with libpng and libjpeg, which report errors by
   longjmp. */
#include "frontend/data/images.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

/* A hostile file may claim any size: pictures with more pixels are refused. */
#define MOST_PIXELS ((int64_t)1 << 26)

static bool picture_refuse(char why[100], const char *text) {
    snprintf(why, 100, "%s", text);
    return false;
}

static bool make_picture_room(Picture *p, int64_t width, int64_t height,
                              char *why) {
    if (width < 1 || height < 1 || width > MOST_PIXELS / height)
        return picture_refuse(why, "more than 67 million pixels");
    p->width = width;
    p->height = height;
    p->pixels = malloc((size_t)(width * height * p->channels));
    return p->pixels || picture_refuse(why, "out of memory");
}

/* ---- PNG ----------------------------------------------------------------- */

typedef struct Bytes {
    const unsigned char *at;
    size_t left;
    char *why;
} Bytes;

static void png_failed(png_structp png, png_const_charp text) {
    const Bytes *b = png_get_error_ptr(png);
    snprintf(b->why, 100, "damaged PNG file: %.60s", text);
    png_longjmp(png, 1);
}

static void png_warned(png_structp png, png_const_charp text) {
    (void)png, (void)text;
}

static void png_take(png_structp png, png_bytep to, size_t n) {
    Bytes *b = png_get_io_ptr(png);
    if (n > b->left) png_error(png, "truncated");
    memcpy(to, b->at, n);
    b->at += n;
    b->left -= n;
}

/* Converts to 8 bits a channel, without alpha, palette or interlacing. */
static void png_plain(png_structp png, png_infop info, int channels) {
    int colour = png_get_color_type(png, info);
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    if (channels == 3 && !(colour & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(png);
    if (channels == 1 && (colour & PNG_COLOR_MASK_COLOR))
        png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, 0.299, 0.587);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
}

static bool png_decode(Bytes *b, Picture *p, png_structp png, png_infop info,
                       png_bytep **rows) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_set_read_fn(png, b, png_take);
    png_read_info(png, info);
    png_plain(png, info, p->channels);
    if (!make_picture_room(p, png_get_image_width(png, info),
                           png_get_image_height(png, info), b->why))
        return false;
    size_t row = (size_t)(p->width * p->channels);
    if (png_get_rowbytes(png, info) != row)
        return picture_refuse(b->why, "a PNG file of an unknown kind");
    *rows = malloc((size_t)p->height * sizeof **rows);
    if (!*rows) return picture_refuse(b->why, "out of memory");
    for (int64_t y = 0; y < p->height; y++)
        (*rows)[y] = p->pixels + (size_t)y * row;
    png_read_image(png, *rows);
    png_read_end(png, NULL);
    return true;
}

static bool decode_png(const unsigned char *file, size_t n, Picture *p,
                       char why[100]) {
    Bytes b = {file, n, why};
    png_bytep *rows = NULL;
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &b,
                                             png_failed, png_warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    bool ok = info ? png_decode(&b, p, png, info, &rows)
                   : picture_refuse(why, "out of memory");
    free(rows);
    png_destroy_read_struct(&png, &info, NULL);
    return ok;
}

/* ---- JPEG ---------------------------------------------------------------- */

typedef struct JpegErrors {
    struct jpeg_error_mgr manager; /* first member: libjpeg gets its address */
    jmp_buf leave;
    char *why;
} JpegErrors;

static void jpeg_failed(j_common_ptr j) {
    JpegErrors *e = (JpegErrors *)j->err;
    char text[JMSG_LENGTH_MAX];
    j->err->format_message(j, text);
    snprintf(e->why, 100, "damaged JPEG file: %.60s", text);
    longjmp(e->leave, 1);
}

/* A warning is not an error, unless the file is truncated: its missing rows
   would be grey. */
static void jpeg_warned(j_common_ptr j, int level) {
    if (level < 0 && j->err->msg_code == JWRN_JPEG_EOF) jpeg_failed(j);
}

static bool jpeg_decode(struct jpeg_decompress_struct *j, JpegErrors *e,
                        const unsigned char *file, size_t n, Picture *p) {
    if (setjmp(e->leave)) return false;
    jpeg_create_decompress(j);
    jpeg_mem_src(j, file, (unsigned long)n);
    jpeg_read_header(j, TRUE);
    if (j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK)
        return picture_refuse(e->why, "a CMYK picture: convert it to RGB");
    j->out_color_space = p->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    if (!make_picture_room(p, j->image_width, j->image_height, e->why))
        return false;
    jpeg_start_decompress(j);
    while (j->output_scanline < j->output_height) {
        JSAMPROW row = p->pixels + (size_t)j->output_scanline *
                                       (size_t)(p->width * p->channels);
        jpeg_read_scanlines(j, &row, 1);
    }
    jpeg_finish_decompress(j);
    return true;
}

static bool decode_jpeg(const unsigned char *file, size_t n, Picture *p,
                        char why[100]) {
    struct jpeg_decompress_struct j = {0};
    JpegErrors e = {.why = why};
    j.err = jpeg_std_error(&e.manager);
    e.manager.error_exit = jpeg_failed;
    e.manager.emit_message = jpeg_warned;
    bool ok = jpeg_decode(&j, &e, file, n, p);
    jpeg_destroy_decompress(&j);
    return ok;
}

static bool is_png(const unsigned char *file, size_t n) {
    static const unsigned char png[] = {0x89, 'P', 'N', 'G'};
    return n > 4 && !memcmp(file, png, sizeof png);
}

static bool is_jpeg(const unsigned char *file, size_t n) {
    static const unsigned char jpeg[] = {0xff, 0xd8, 0xff};
    return n > 4 && !memcmp(file, jpeg, sizeof jpeg);
}

bool picture_is(const unsigned char *file, size_t n) {
    return is_png(file, n) || is_jpeg(file, n);
}

bool picture_decode(const unsigned char *file, size_t n, int channels,
                    Picture *p, char why[100]) {
    *p = (Picture){.channels = channels};
    bool ok = is_png(file, n)    ? decode_png(file, n, p, why)
              : is_jpeg(file, n) ? decode_jpeg(file, n, p, why)
                                 : picture_refuse(why, "neither PNG nor JPEG");
    if (ok) return true;
    free(p->pixels);
    *p = (Picture){.channels = channels};
    return false;
}

/* ---- another size -------------------------------------------------------- */

/* One axis: out pixel i is the weighted mean of pixels [first, first + n). */
static void weigh(int64_t i, int64_t from, int64_t to, int64_t *first,
                  int64_t *n, double *weight) {
    double scale = (double)from / (double)to, wide = fmax(scale, 1), sum = 0;
    double centre = ((double)i + 0.5) * scale;
    int64_t lo = (int64_t)(centre - wide + 0.5);
    int64_t hi = (int64_t)(centre + wide + 0.5);
    if (lo < 0) lo = 0;
    if (hi > from) hi = from;
    for (int64_t k = lo; k < hi; k++) {
        double w = 1 - fabs(((double)k - centre + 0.5) / wide);
        weight[k - lo] = w > 0 ? w : 0;
        sum += weight[k - lo];
    }
    for (int64_t k = lo; k < hi; k++) weight[k - lo] /= sum;
    *first = lo;
    *n = hi - lo;
}

static unsigned char to_byte(double x) {
    return (unsigned char)(x < 0 ? 0 : x > 255 ? 255 : x + 0.5);
}

/* Resizes along one axis: `lines` lines of `from` pixels, `step` bytes
   apart; the lines are `line` bytes apart; each channel separately. */
typedef struct Axis {
    int64_t lines, from, to, step, line, out_step, out_line;
} Axis;

static void picture_resize_axis(const unsigned char *in, unsigned char *out,
                                const Axis *x, int channels, double *weight) {
    for (int64_t i = 0; i < x->to; i++) {
        int64_t first, n;
        weigh(i, x->from, x->to, &first, &n, weight);
        for (int64_t l = 0; l < x->lines; l++)
            for (int c = 0; c < channels; c++) {
                const unsigned char *p = in + l * x->line + first * x->step + c;
                double sum = 0;
                for (int64_t k = 0; k < n; k++)
                    sum += weight[k] * p[k * x->step];
                out[l * x->out_line + i * x->out_step + c] = to_byte(sum);
            }
    }
}

unsigned char *picture_resize(const Picture *p, int64_t width, int64_t height) {
    int64_t c = p->channels,
            longest = p->width > p->height ? p->width : p->height;
    unsigned char *half = malloc((size_t)(width * p->height * c));
    unsigned char *out = malloc((size_t)(width * height * c));
    double *weight = malloc((size_t)(longest + 4) * sizeof *weight);
    if (half && out && weight) {
        Axis across = {p->height,    p->width, width,    c,
                       p->width * c, c,        width * c};
        Axis down = {width, p->height, height, width * c, c, width * c, c};
        picture_resize_axis(p->pixels, half, &across, (int)c, weight);
        picture_resize_axis(half, out, &down, (int)c, weight);
    } else {
        free(out);
        out = NULL;
    }
    free(half);
    free(weight);
    return out;
}
