/* SPDX-License-Identifier: Apache-2.0 */
/* section.h: the sections behind a module's ELF image (runtime/program/plan.h),
   written by emit_so.c, read by `ampc inspect` and `ampc export`.  For export:
   "model", the user's ONNX graph without the tensors that are variables (or
   "model.amp", the text), and "weights.json", where these are in "weights", as
   the header of a safetensors file says it.                                 */
#ifndef AMPC_CODEGEN_SECTION_H
#define AMPC_CODEGEN_SECTION_H

#include "ir/base/base.h"
#include "runtime/program/plan.h"

/* ---- writing ------------------------------------------------------------- */

typedef struct SectionText {
    const void *data;
    size_t n;
} SectionText;

/* Appends to `file`, which is positioned at its end. The first failed write
   is remembered and reported by section_finish. */
typedef struct SectionWriter {
    FILE *file;
    Arena *arena;
    uint64_t at;     /* bytes in the file so far    */
    uint64_t packed; /* bytes of texts, to be packed at the end */
    VEC(PlanSection) dir;
    VEC(SectionText) texts;
    bool failed;
} SectionWriter;

void section_begin(SectionWriter *w, const char *name); /* 64-byte aligned   */
void section_put(SectionWriter *w, const void *data, size_t n);
void section_pad(SectionWriter *w, uint64_t to); /* writes zeros up to that
                                                    size */
void section_end(SectionWriter *w);
/* Adds a text; all texts are packed together at the end, and `data` must
   live until then. The first texts are the fastest to unpack. */
void section_add_text(SectionWriter *w, const char *name, const void *data,
                      size_t n);
/* Writes texts, directory and tail; returns false with errno. */
bool section_finish(SectionWriter *w, uint64_t id);

/* ---- reading ------------------------------------------------------------- */

typedef struct SectionFile {
    const char *path;
    FILE *file;
    PlanSection *dir; /* names NUL-terminated */
    int n;
} SectionFile;

/* ERR_USER for a file that is not a module, is truncated or damaged. */
Status sections_open(Arena *a, Diag *d, const char *path, SectionFile *f);
void sections_close(SectionFile *f);
const PlanSection *sections_find(const SectionFile *f, const char *name);
/* The section's bytes, unpacked, NUL-terminated, in the arena. */
Status sections_read(Arena *a, Diag *d, const SectionFile *f,
                     const PlanSection *s, char **data, size_t *n);

#endif
