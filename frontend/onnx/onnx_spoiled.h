/* SPDX-License-Identifier: Apache-2.0 */
/* onnx_spoiled.h: declarations that onnx_spoiled.c and onnx_merged.c share. */
#ifndef AMPC_FRONTEND_ONNX_SPOILED_H
#define AMPC_FRONTEND_ONNX_SPOILED_H

#include "frontend/onnx/onnx.h"

/* Parameters that an export lost, for a message. */
typedef struct Lost {
    StrBuf names;
    int count;
} Lost;

/* into: the tensor that has the parameter's elements, or NULL. */
void ox_lose(Ox *ox, Lost *l, Str name, Str into);
/* Without the optimiser every initializer has the exporter's mark. */
bool ox_was_optimised(const Ox *ox);
/* The initializer is in the file and is read there. */
bool ox_is_held(const Ox *ox, Str name);
void ox_merged_parameters(Ox *ox, Lost *lost);
void ox_warn_lifted(Ox *ox);

#endif
