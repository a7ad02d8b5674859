/* SPDX-License-Identifier: Apache-2.0 */
/* cache_folder.c: see cache_folder.h. */
#define _GNU_SOURCE
#include "runtime/files/cache_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cache_folder(char *path, size_t size) {
    const char *own = secure_getenv("AMPC_CACHE_DIR"),
               *xdg = secure_getenv("XDG_CACHE_HOME");
    const char *home = secure_getenv("HOME");
    int n = -1;
    if (own && !strcmp(own, "none")) return false;
    if (own && *own)
        n = snprintf(path, size, "%s", own);
    else if (xdg && *xdg)
        n = snprintf(path, size, "%s/ampc", xdg);
    else if (home && *home && access(home, W_OK) == 0) /* "/nonexistent" */
        n = snprintf(path, size, "%s/.cache/ampc", home);
    return n > 0 && (size_t)n + CACHE_FILE_NAME < size;
}

bool cache_folders_make(const char *path) {
    char folder[1024], *end = folder;
    if ((size_t)snprintf(folder, sizeof folder, "%s", path) >= sizeof folder)
        return false;
    for (char *p = folder + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(folder, 0700);
        *p = '/';
        end = p;
    }
    *end = 0;
    return access(folder, W_OK | X_OK) == 0;
}
