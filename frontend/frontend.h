/* SPDX-License-Identifier: Apache-2.0 */
/* frontend.h: models in.

   import_onnx takes an ONNX file's bytes and gives a module with one graph,
   "forward": every shape a number (dimensions bound by opt->dims), shape
   arithmetic folded away, outputs in order under their ONNX names, module->vars
   filled with parameters, frozen tensors and buffers, each with the reason why
   it trains or does not.  BatchNormalization becomes batch_norm with
   training=1, and its running statistics become graph writes where training
   updates them; Dropout is one dropout node reading the state variable
   "ampc.rng".

   Errors are collected where possible: all unsupported ops are listed before
   the import fails. No input file can reach an assert. */
#ifndef AMPC_FRONTEND_FRONTEND_H
#define AMPC_FRONTEND_FRONTEND_H

#include "ir/ir.h"
#include "passes/options.h"
#include "runtime/files/outfile.h"

/* `path` is for messages and for locating external data. */
Status import_onnx(Arena *a, Diag *d, const char *path, const uint8_t *bytes,
                   size_t n, const Options *opt, Module **out);

/* Imports the model as a layer: its inputs have types in[0..nin), which bind
   its dimensions. */
Status import_onnx_layer(Arena *a, Diag *d, const char *path,
                         const uint8_t *bytes, size_t n, const Options *opt,
                         const TypeId *in, int nin, Module **out);

/* After the import: --max-trips of a loop that no model has. all: also one that
   names no loop. */
Status check_trips(Diag *d, Loc loc, const Options *opt, bool all);

/* Imports a text of the language: a model (graph "forward", or the only
   graph), or programs as a pass prints them. Applies the options for
   dropout, batch normalisation and training. passes: the text is for
   user-chosen passes; graphs keep their names. */
Status import_amp(Arena *a, Diag *d, const char *path, const char *text,
                  size_t n, const Options *opt, bool passes, Module **out);
/* Prints the text in the standard layout; comments stay. Any bytes are
   accepted. ERR_USER: a bracket or a string is not closed, or a closing
   bracket has no partner. */
Status amp_format(Diag *d, const char *file, const char *text, size_t n,
                  StrBuf *out);

/* Replaces *bytes by an ONNX file, in the arena, in which the parameters
   that PyTorch's exporter folded or merged are restored as far as possible.
   Files of other exporters, and other bytes, stay unchanged. */
Status onnx_unfold(Arena *a, Diag *d, const char *path, const Options *opt,
                   const uint8_t **bytes, size_t *n);

/* opt->heads: replaces *bytes by an ONNX file with new last layers, in the
   arena; bytes that are not an ONNX file stay unchanged. */
Status onnx_replace_heads(Arena *a, Diag *d, const char *path, Options *opt,
                          const uint8_t **bytes, size_t *n);

/* Appends the ONNX model of `n` bytes to `out`, without the data of tensors
   that are variables of m; false: the bytes are not an ONNX model. */
bool onnx_skeleton(const Module *m, const void *model, size_t n, StrBuf *out);

/* Fills `data` with the values of tensor `name`, converted to that type. */
typedef Status OnnxWeightFn(void *ctx, const char *name, const Type *type,
                            void *data);
/* Writes the skeleton with its tensors for inference: BatchNormalization and
   Dropout are not in training mode. `path`, the path of `out`, is for
   messages. */
Status onnx_export(Arena *a, Diag *d, const char *path, const void *skeleton,
                   size_t n, OnnxWeightFn *weight, void *ctx, OutFile *out);

/* Writes a graph of common stage PRIMITIVE as an ONNX model of opset 20 with
   the same results, roundings included. Its weights are the variables' initial
   values, or come from `weight` for parameters, frozen weights and buffers.
   Errors: ops that ONNX lacks, all listed; more than 2 GiB. */
Status onnx_emit(Arena *a, Diag *d, const char *path, const Graph *g,
                 OnnxWeightFn *weight, void *ctx, OutFile *out);

#endif
