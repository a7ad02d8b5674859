/* SPDX-License-Identifier: Apache-2.0 */
/* report_names.h: kernels by what they do for the model. */
#ifndef AMPC_REPORT_NAMES_H
#define AMPC_REPORT_NAMES_H

#include "passes/device/flow.h"

/* PLANNED: "conv conv1 + relu", "gradient of fc1.weight", "adamw fc1.weight".
 */
void report_kernel_name(const Flow *f, int group, StrBuf *sb);

#endif
