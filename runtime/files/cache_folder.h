/* SPDX-License-Identifier: Apache-2.0 */
/* cache_folder.h: the folder for data that are kept between runs and can be
   made again, for the runtime inside a module and for `ampc` itself:
   $AMPC_CACHE_DIR ("none": no folder), else $XDG_CACHE_HOME/ampc, else
   ~/.cache/ampc if there is a home. A program with more rights than its user
   (setuid) ignores the variables. */
#ifndef AMPC_CACHE_FOLDER_H
#define AMPC_CACHE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

enum { CACHE_FILE_NAME = 96 }; /* room to append "/" and a name */

/* False: there is no such folder. It is not created. */
bool cache_folder(char *path, size_t size);
/* Creates the folders of the file `path`, for the user alone; returns
   whether files can be created in the last one. */
bool cache_folders_make(const char *path);

#endif
