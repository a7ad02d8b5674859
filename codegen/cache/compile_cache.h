/* SPDX-License-Identifier: Apache-2.0 */
/* compile_cache.h: keeps results of the C compiler and NVRTC between runs of
   `ampc`, under the SHA-256 of all their inputs.

   Files lie in folder `objects` of the cache folder
   (runtime/files/cache_folder.h), which is used only if it is the user's own
   and nobody else may write there, because its files become code of a module.
   Above 1 GiB the files that were unused for the longest time are deleted. A
   failure here is not an error: the compiler runs.
 */
#ifndef AMPC_CODEGEN_CACHE_COMPILE_CACHE_H
#define AMPC_CODEGEN_CACHE_COMPILE_CACHE_H

#include <sha2.h>
#include <stdint.h>
#include <sys/types.h>

#include "ir/base/base.h"

typedef SHA2_CTX CompileKey;

/* `what` distinguishes kinds of results and versions of their format. */
CompileKey compile_key(const char *what);
void compile_key_add(CompileKey *k, const void *p, size_t n);
void compile_key_text(CompileKey *k, const char *s);
/* The size of a program or library, and its date. */
void compile_key_file(CompileKey *k, const char *path);

/* want: a folder, "none", or NULL: the default. Returns NULL if nothing is
   kept. */
const char *compile_cache_open(Arena *a, const char *want);
/* malloc'ed; NULL if it is not in the cache, or the folder is NULL. */
char *compile_cache_get(const char *folder, CompileKey key, size_t *n);
/* May be called from one thread only. */
void compile_cache_put(const char *folder, CompileKey key, const void *p,
                       size_t n);
/* Removes the files that were unused for the longest time until `most` bytes
   are left. */
void compile_cache_trim(const char *folder, int64_t most);
enum { COMPILE_CACHE_MOST = 1 << 30 };

#endif
