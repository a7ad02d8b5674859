/* SPDX-License-Identifier: Apache-2.0 */
/* outfile.h: writes files safely, for the runtime inside a module and for
   `ampc` itself.

   A new file is written without a name if the file system allows that, else
   under a random name beside its path; it is synced and then renamed. At any
   moment the path holds the complete old file or the complete new one. An
   existing path that is not a regular file is refused, also a symbolic link:
   devices are not replaced, and links are not followed. Nothing waits for a
   lock. Temporary files of a killed writer (.ampc-RANDOM) are removed by the
   next writer in the folder.

     OutFile o;
     bool ok = outfile_open(&o, path, 0666, NULL, NULL) &&
               outfile_write(&o, data, n) && outfile_commit(&o);
     if (!ok) { report(path, o.why); outfile_abort(&o); }                     */
#ifndef AMPC_OUTFILE_H
#define AMPC_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct FileGuard FileGuard;

typedef struct OutFile {
    bool open;
    int folder, fd;
    FILE *stream; /* a stream over fd, after outfile_stream was called */
    char name[256], tmp[32];
    bool named;       /* the folder that contains tmp */
    bool in_place;    /* opened by outfile_append */
    const char *keep; /* set by the caller: the old file is kept under the path
                         with this suffix */
    bool loose;       /* set by the caller: not synced, easily made again */
    char why[160];    /* the operation that failed, without the path */
} OutFile;

/* All functions return false on failure, with o->why, and errno 0 if the
   system reported no error. The caller must then call outfile_abort, which
   does nothing on a zeroed or closed OutFile. */

/* mode is subject to the umask.  guard may be NULL; role: see below. */
bool outfile_open(OutFile *o, const char *path, mode_t mode, FileGuard *guard,
                  const char *role);
/* Opens a file that is read while it grows: it is written in place, from its
   end if `goes_on`; one writer at a time. */
bool outfile_append(OutFile *o, const char *path, bool goes_on,
                    FileGuard *guard, const char *role);
/* A full disk and a limit on file sizes are failures, never a signal. */
bool outfile_write(OutFile *o, const void *data, uint64_t n);
/* Overwrites bytes already written. */
bool outfile_patch(OutFile *o, const void *data, size_t n, uint64_t at);
FILE *outfile_stream(OutFile *o); /* NULL: o->why */
/* Does everything that can fail for lack of space, so that several files can
   be completed before the first is renamed. */
bool outfile_ready(OutFile *o);
bool outfile_commit(OutFile *o);
/* Call before that: the file will take the path plus this suffix. */
bool outfile_suffix(OutFile *o, const char *suffix);
void outfile_abort(OutFile *o);

/* ---- the files of one command -------------------------------------------- */

/* Keeps outputs apart from inputs and from each other: by device and inode, and
   by folder and name.  role names the purpose of a file ("the model",
   "--report"); the pointer is kept, the text is not copied. */
FileGuard *file_guard_new(void); /* NULL: out of memory */
void file_guard_free(FileGuard *g);
/* Registers a file that is read; a missing file is allowed. These two
   functions fill `why` when they fail. */
bool file_guard_input(FileGuard *g, const char *path, const char *role,
                      char why[160]);
/* Checks and claims a path that is written later, and not through outfile_open
   with this guard.                                                          */
bool file_guard_claim(FileGuard *g, const char *path, const char *role,
                      char why[160]);

/* Registers a new file or folder; file_guard_undo removes everything made
   for `role`, the last first, and folders only if they are empty. */
void file_guard_made(FileGuard *g, const char *path, const char *role);
void file_guard_undo(FileGuard *g, const char *role);

/* ---- for a program that is interrupted ----------------------------------- */

/* fn is called with every temporary name that is created in a folder, or
   removed. */
typedef void OutFileHook(int folder, const char *tmp, bool there);
void outfile_set_hook(OutFileHook *fn);

#endif
