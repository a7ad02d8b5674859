/* SPDX-License-Identifier: Apache-2.0 */
/* leave.h: cleanup when `ampc` is interrupted, runs out of memory or has an
   internal error: removes its temporary folder and half-written files, and
   stops the compilers that it started. Without leave_install, as in tests, the
   functions work but nothing is cleaned up. */
#ifndef AMPC_PASSES_LEAVE_H
#define AMPC_PASSES_LEAVE_H

#include <stdbool.h>

/* Call before any other thread is started. */
void leave_install(void);

/* Between the two calls an interruption waits, for a limited time. Use them
   around code that creates a file and registers it, and around a save. */
void leave_hold(void);
void leave_release(void);

/* From now on the first SIGINT, SIGTERM or SIGHUP asks the program to end, and
   prints that line; the second ends it, unless both are SIGHUP. NULL: the first
   signal ends it, as before. */
void leave_on_request(const char *line);
/* The signal that asked the program to end; 0: none. */
int leave_requested(void);
/* Ends the process by that signal. */
void leave_as_requested(void);

/* One folder at a time; `pattern` is a template for mkdtemp. False: errno. */
bool leave_make_folder(char *pattern);
void leave_remove_folder(void); /* and all in it */

/* Registers a group of processes, or removes it when it has ended. */
void leave_group(long pgid, bool there);

#endif
