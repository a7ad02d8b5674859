/* SPDX-License-Identifier: Apache-2.0 */
/* export_weights.h: the weights that `ampc export` writes: those of a
   checkpoint, or those that the module begins with. */
#ifndef AMPC_FRONTEND_CLI_EXPORT_WEIGHTS_H
#define AMPC_FRONTEND_CLI_EXPORT_WEIGHTS_H

#include "codegen/module/section.h"
#include "frontend/cli/adapters.h"
#include "frontend/cli/cmd.h"
#include "runtime/files/safetensors.h"

/* Source of the weights. */
typedef struct Weights {
    Session *s;
    const SectionFile *module;
    StFile *file;  /* --load, or the file beside a module without weights */
    char *initial; /* else section "weights" */
    size_t ninitial;
    JsonSpan index;  /* header: their positions in it */
    bool averaged;   /* --averaged */
    int averages;    /* tensors that were one */
    const Module *m; /* of an .amp text: it has the weights that it begins with;
                        else NULL */
    Adapters adapters;
} Weights;

/* load: a checkpoint; NULL: none.  weights_close is due even after a failure,
   and returns the status. */
Status weights_open(Weights *w, const char *load);
Status weights_close(Weights *w, Status st);
/* An OnnxWeightFn; ctx: the Weights. */
Status weights_of(void *ctx, const char *name, const Type *type, void *data);
/* --adapter: the adapters alone, as PEFT has them. */
Status weights_adapters(Weights *w, const char *out);
/* The text of a section of the module; NULL: it has none. */
Status weights_text(const Weights *w, const char *name, char **text, size_t *n);

#endif
