/* SPDX-License-Identifier: Apache-2.0 */
/* leave.h: what `ampc` takes back when it is interrupted, runs out of memory or
   meets a bug of its own: its temporary folder, half-written files, and the
   compilers that it started.

   Without leave_install, as in tests, the rest works and nothing is taken back.
   */
#ifndef AMPC_PASSES_LEAVE_H
#define AMPC_PASSES_LEAVE_H

#include <stdbool.h>

/* Before any other thread is started. */
void leave_install(void);

/* Between the two an interruption waits, but not for ever: around what makes
   something and tells of it, and around a save.                             */
void leave_hold(void);
void leave_release(void);

/* From here on the first SIGINT or SIGTERM asks the program to end, and prints
   that line; the next one ends it.  NULL: the first does, as before.         */
void leave_on_request(const char *line);
/* The signal that asked, 0: none did. */
int leave_requested(void);
/* Ends as that signal ends a program. */
void leave_as_requested(void);

/* One folder at a time; `pattern` as for mkdtemp.  False: errno. */
bool leave_make_folder(char *pattern);
void leave_remove_folder(void); /* and all in it */

/* A group of processes that was started, or has ended. */
void leave_group(long pgid, bool there);

#endif
