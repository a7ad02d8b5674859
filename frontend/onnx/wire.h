/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h: a look at protobuf bytes before protobuf-c sees them.

   protobuf-c recurses without limit, says neither why nor where it failed,
   cuts strings at an embedded NUL and turns two bytes of an empty message into
   hundreds in memory.  wire_unpack walks the same fields first and refuses
   what would hurt.                                                          */
#ifndef AMPC_FRONTEND_ONNX_WIRE_H
#define AMPC_FRONTEND_ONNX_WIRE_H

#include <protobuf-c/protobuf-c.h>

#include "ir/base/base.h"

enum { WIRE_MAX_DEPTH = 64 };

typedef struct WireError {
    size_t offset; /* offset at which the walk stopped */
    const char *what;
} WireError;

/* The message, valid as long as the arena; NULL on failure: e->what has the
   reason, or is NULL if protobuf-c gave none. */
ProtobufCMessage *wire_unpack(Arena *a, const ProtobufCMessageDescriptor *d,
                              const uint8_t *p, size_t n, WireError *e);

/* True if the text stands anywhere in the bytes. */
bool wire_holds(const uint8_t *p, size_t n, const char *text);

#endif
