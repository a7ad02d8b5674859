/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_shapes.h: short names for the tables of cuda_cases.c and cuda_shapes.c.
 */
#ifndef AMPC_TESTS_SUPPORT_CUDA_SHAPES_H
#define AMPC_TESTS_SUPPORT_CUDA_SHAPES_H

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define F32      AMPC_F32
#define BF16     AMPC_BF16
#define F16      AMPC_F16
#define F64      AMPC_F64

#endif
