/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h: for kernel_test.c and the files of folder kernel. */
#ifndef AMPC_TESTS_CODEGEN_KERNEL_KERNEL_H
#define AMPC_TESTS_CODEGEN_KERNEL_KERNEL_H

#include "runtime/cpu/kernels.h"

#define MOVE(in, nodes)                                                        \
    { .text = "graph g(" in ") { group point { " nodes " } return %y }" }

#define ROW(in, nodes, out)                                                    \
    "graph g(" in ") { group row { " nodes " } return " out " }"

#endif
