/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_train.h: who wrote a file, and the verdict of the rules on one of its
   initializers. */
#ifndef AMPC_FRONTEND_ONNX_ONNX_TRAIN_H
#define AMPC_FRONTEND_ONNX_ONNX_TRAIN_H

#include "frontend/onnx/onnx.h"

/* ---- who wrote the file ---------------------------------------------------
 */

typedef enum Exporter {
    DYNAMO = 1, /* PyTorch with torch.export: the file has a signature */
    SCRIPT = 2, /* PyTorch with TorchScript                              */
    JAX = 4,    /* jax2onnx: flax, equinox, Keras on JAX                 */
    TF = 8,     /* tf2onnx: TensorFlow, or Keras on it */
    SKLEARN = 16,
    STRIPPED = 32, /* PyTorch with torch.export, without its metadata */
    PADDLE = 64,   /* paddle2onnx, which does not write its name */
    OTHER = 128,
    ANY = 255
} Exporter;

/* ---- the rules ------------------------------------------------------------
 */

typedef enum Verdict {
    TRAINS,
    GUESSED, /* trains, and is named in the summary */
    FROZEN,
    TOLD, /* does not train; a warning says so */
    CODE  /* a constant */
} Verdict;

Exporter ox_exporter(const Ox *ox);
Verdict ox_verdict(Ox *ox, const OxInit *x, const OxName *name, Str *why);

#endif
