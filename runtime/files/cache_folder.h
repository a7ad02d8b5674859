/* SPDX-License-Identifier: Apache-2.0 */
/* cache_folder.h: where things lie that are kept between runs and can be made
   again, for the runtime inside a module and for `ampc` itself:
   $AMPC_CACHE_DIR ("none": nowhere), else $XDG_CACHE_HOME/ampc, else
   ~/.cache/ampc where there is a home.  A program with more rights than its
   user reads none of the variables. */
#ifndef AMPC_CACHE_FOLDER_H
#define AMPC_CACHE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

enum { CACHE_FILE_NAME = 96 }; /* room left behind it: "/" and a name */

/* False: there is none.  Nothing is made. */
bool cache_folder(char *path, size_t size);
/* Makes the folders of the file `path`, for their user alone; whether files can
   be made in the last. */
bool cache_folders_make(const char *path);

#endif
