/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: what is in a data file or folder, for people. */
#ifndef AMPC_FRONTEND_DATA_DESCRIBE_H
#define AMPC_FRONTEND_DATA_DESCRIBE_H

#include "ir/base/base.h"

/* Kind, arrays with their dtypes, shapes and values, and how `ampc run` takes
   them, of FILE or FILE:PART; every line ends. */
Status data_tell(Diag *d, const char *file, StrBuf *sb);

#endif
