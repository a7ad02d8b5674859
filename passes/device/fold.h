/* SPDX-License-Identifier: Apache-2.0 */
/* fold.h: folds on a GPU, as passes and codegen see them alike. */
#ifndef AMPC_PASSES_TARGET_FOLD_H
#define AMPC_PASSES_TARGET_FOLD_H

#include <stdbool.h>
#include <stdint.h>

enum { GPU_BLOCKS = 264 }; /* that keep it busy: 2 on each SM */

/* Rows that one kernel folds whatever their number and length, which it takes
   from the step, with a block for each: few, and no shorter than its threads.
 */
static inline bool folds_alike(int64_t rows, int64_t columns) {
    enum { LEAST = 256 };
    if (rows < 1 || columns < 1 || columns > INT32_MAX / 2) return false;
    return rows == 1 || (rows <= GPU_BLOCKS && columns >= LEAST);
}

#endif
