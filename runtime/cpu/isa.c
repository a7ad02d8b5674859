/* SPDX-License-Identifier: Apache-2.0 */
/* isa.c: see isa.h. */
#define _GNU_SOURCE
#include "runtime/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/glibc.h" /* last */

static const CpuIsaWord *isa_word(const char *name) {
    const CpuIsaWord *w = cpu_isa_words;
    while (w->name[0] && strcmp(w->name, name) != 0) w++;
    return w;
}

const char *cpu_isa_unknown(void) {
    const char *want = secure_getenv("AMPC_ISA");
    return want && *want && !isa_word(want)->name[0] ? want : NULL;
}

int cpu_isa_wanted(const char **how) {
    const char *want = secure_getenv("AMPC_ISA");
    const CpuIsaWord *w = isa_word(want ? want : "");
    *how = w->how;
    return w->name[0] ? w->level : -1;
}

const char *cpu_isa_name(int level) {
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    if (level == number) return name;
#include "runtime/cpu/isa.def"
    return "an unknown level";
}
