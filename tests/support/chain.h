/* SPDX-License-Identifier: Apache-2.0 */
/* chain.h: models of any length, to measure compilation.

   A chain of `layers` times matmul, add, tanh on f32[4,width], with
   different weights, as ONNX or as text. */
#ifndef AMPC_TESTS_SUPPORT_CHAIN_H
#define AMPC_TESTS_SUPPORT_CHAIN_H

#include "ir/base/base.h"

void chain_onnx(StrBuf *sb, int layers, int width);
void chain_amp(StrBuf *sb, int layers, int width);

#endif
