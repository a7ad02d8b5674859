/* SPDX-License-Identifier: Apache-2.0 */
/* adapters.h: what `ampc export` does with the adapters of --lora and --ia3,
   which the module lists in section "adapters" (passes/passes.h: adapters_put).

   W + alpha / rank * b a goes into the weights of an exported model, with DoRA
   after its outputs have the trained norms; IA3's factors multiply weight and
   bias; --adapter
   writes them alone, in the two files that PEFT reads.                       */
#ifndef AMPC_FRONTEND_CLI_ADAPTERS_H
#define AMPC_FRONTEND_CLI_ADAPTERS_H

#include "ir/ir.h"
#include "runtime/files/outfile.h"
#include "runtime/files/safetensors.h"

typedef struct Adapters {
    Arena *arena;
    Diag *diag;
    Adapter *at;
    int n;
    VEC(Str) trained; /* other parameters that train */
} Adapters;

/* Reads a parameter of an adapter as f32. */
typedef Status AdapterPart(void *ctx, const char *name, const Type *type,
                           float *out);

/* False: the text is not what adapters_put wrote. */
bool adapters_read(Arena *a, Diag *d, const char *text, size_t n,
                   Adapters *out);
/* Merges the adapter of a weight or bias, if it has one, into its elements. */
Status adapters_merge(const Adapters *x, const char *weight, const Type *type,
                      void *data, AdapterPart *part, void *ctx);
/* The two files, from checkpoint f, in a folder. */
Status adapters_write(const Adapters *x, StFile *f, const char *folder,
                      FileGuard *guard, AdapterPart *part, void *ctx);

#endif
