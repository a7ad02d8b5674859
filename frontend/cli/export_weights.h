/* SPDX-License-Identifier: Apache-2.0 */
/* export_weights.h: the weights that `ampc export` writes: those of a
   checkpoint, or the module's initial weights. */
#ifndef AMPC_FRONTEND_CLI_EXPORT_WEIGHTS_H
#define AMPC_FRONTEND_CLI_EXPORT_WEIGHTS_H

#include "codegen/section.h"
#include "frontend/cli/adapters.h"
#include "frontend/cli/cmd.h"
#include "runtime/files/safetensors.h"

/* Source of the weights. */
typedef struct Weights {
    Session *s;
    const SectionFile *module;
    StFile *file;  /* --load, or the file beside a module that contains no
                      weights */
    char *initial; /* otherwise section "weights" */
    size_t ninitial;
    JsonSpan index;  /* header: positions of the weights in the file */
    bool averaged;   /* --averaged */
    int averages;    /* tensors that were merged into one */
    const Module *m; /* for an .amp text: the text, which has initial
                        weights; else NULL */
    Adapters adapters;
} Weights;

/* load: a checkpoint; NULL: no checkpoint. Call weights_close even after a
   failure; it returns the status. */
Status weights_open(Weights *w, const char *load);
Status weights_close(Weights *w, Status st);
/* An OnnxWeightFn; ctx: the Weights. */
Status weights_of(void *ctx, const char *name, const Type *type, void *data);
/* --adapter: writes only the adapters, in PEFT's form. */
Status weights_adapters(Weights *w, const char *out);
/* The text of a section of the module; NULL: the module lacks it. */
Status weights_text(const Weights *w, const char *name, char **text, size_t *n);

#endif
