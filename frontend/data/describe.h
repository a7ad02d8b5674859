/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: what is in a data file or folder, for people. */
#ifndef AMPC_FRONTEND_DATA_DESCRIBE_H
#define AMPC_FRONTEND_DATA_DESCRIBE_H

#include "ir/base/base.h"

/* The kind, arrays with their dtypes, shapes and values, and how `ampc run`
   reads them, for FILE or FILE:PART; every line ends with a newline. */
Status data_tell(Diag *d, const char *file, StrBuf *sb);

#endif
