/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h: writes ONNX files in protobuf's wire format, for models that no
   library would write; field numbers are those of onnx.proto. */
#ifndef AMPC_TESTS_SUPPORT_WIRE_H
#define AMPC_TESTS_SUPPORT_WIRE_H

#include "ir/base/base.h"

void wire_number(StrBuf *sb, int field, uint64_t n);
void wire_bytes(StrBuf *sb, int field, const void *p, size_t n);
void wire_text(StrBuf *sb, int field, const char *text);
/* Appends a message that was built separately; frees and empties it. */
void wire_message(StrBuf *sb, int field, StrBuf *message);

#endif
