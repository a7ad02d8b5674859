/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: shows a waiting person what `ampc` is doing. */
#ifndef AMPC_FRONTEND_CLI_PROGRESS_H
#define AMPC_FRONTEND_CLI_PROGRESS_H

/* On a terminal, after half a second and until progress_end, the last row
   shows the text given to doing(), and for how long it has been running. */
void progress_begin(void);
void progress_end(void);

#endif
