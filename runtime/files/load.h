/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: a load in progress, shared by the files that load weights and
   checkpoints. */
#ifndef AMPC_FILES_LOAD_H
#define AMPC_FILES_LOAD_H

#include "runtime/files/checkpoint.h"

typedef struct LoadFile {
    StFile st;
    char *path; /* own copy */
    size_t path_bytes;
} LoadFile;

/* Source of a variable's value. */
typedef struct LoadSource {
    LoadFile *file;
    const StTensor *t; /* NULL: no file contains it */
    bool average;      /* .. of the variable */
} LoadSource;

/* Names for a message: their number, and the first few. */
typedef struct LoadNames {
    size_t count, n;
    char text[300];
} LoadNames;

/* A load in progress. */
typedef struct Load {
    ampc_session *s;
    const ampc_weights *from;
    LoadFile **files; /* in the order given */
    size_t nfile, room;
    char *text; /* the metadata JSON of a checkpoint, decoded */
    size_t text_bytes;
    JsonSpan meta;
    bool resume, torn;
    bool other; /* resume: another build of the compiler made the checkpoint */
    bool told;  /* and it names its model and options */
    int64_t micro;
    const char *summed; /* ":OBJECTIVE" that the scalars belong to, or NULL */
    uint64_t used;      /* bit per renaming: it has renamed a tensor */
    size_t want;        /* number of tensors that the module has, too */
    LoadNames left, missing;
    LoadNames fresh;     /* number of other shapes, in layers that
                            --replace-head made */
    LoadSource *sources; /* per variable */
    uint64_t *at;        /* per variable: offset in `stage` */
    char *stage;
    size_t stage_bytes;
    char *cursor; /* NULL: leave it */
} Load;

/* ---- load_files.c -------------------------------------------------------- */

const char *load_path(const Load *l);
ampc_status load_memory(Load *l);
ampc_status load_foreign(Load *l, const char *why);
ampc_status load_failed(Load *l, const StFile *f, ampc_status status);
void load_close(Load *l, LoadFile *f);
ampc_status load_open(Load *l);

/* ---- load_names.c -------------------------------------------------------- */

void load_names_add(LoadNames *l, const char *name);
bool load_wants(const Load *l, const PlanVar *v);
/* True if weight i is rounded to codes while it is loaded: then no file has
   its scales. */
bool load_quantizes(const Load *l, int i);
/* True if weight i is a magnitude of DoRA that no file has while one has the
   weight whose norms it begins with: it begins again. */
bool load_begins(const Load *l, uint32_t i);
/* Reports on a successful load: missing variables and unused tensors. */
void load_report(Load *l);
ampc_status load_resolve(Load *l);

#endif
