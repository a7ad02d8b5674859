/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: what `ampc` does, for a person who waits for it. */
#ifndef AMPC_FRONTEND_CLI_PROGRESS_H
#define AMPC_FRONTEND_CLI_PROGRESS_H

/* On a terminal: from half a second on until progress_end, the last row says
   what doing() has named, and for how long. */
void progress_begin(void);
void progress_end(void);

#endif
