/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: what kind of file the name of the output asks for. */
#include "codegen/codegen.h"
#include "ir/base/files.h"

bool emit_is_object(const char *path) {
    return has_suffix(path, ".o") || has_suffix(path, ".a");
}
