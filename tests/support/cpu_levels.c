/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_levels.c: see cpu_levels.h. */
#include "tests/support/cpu_levels.h"

#include <string.h>

static const struct {
    int isa;
    const char *prefix;
    const AmpcCpuLib *own; /* NULL: it has the routines of the row with that
                              prefix */
} levels[] = {
#define ISA_HERE
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {number, prefix, &ampc_v##number##_level},
#include "runtime/cpu/isa.def"
};
enum { NLEVEL = sizeof levels / sizeof *levels };

const AmpcCpuLib *cpu_level(int isa) {
    static AmpcCpuLib shared[NLEVEL];
    int at = 0, of = 0;
    while (at < NLEVEL && levels[at].isa != isa) at++;
    if (at == NLEVEL || levels[at].own)
        return at < NLEVEL ? levels[at].own : NULL;
    while (of < NLEVEL && (!levels[of].own ||
                           strcmp(levels[of].prefix, levels[at].prefix) != 0))
        of++;
    if (of == NLEVEL) return NULL;
    shared[at] = *levels[of].own;
    shared[at].isa = isa;
    return &shared[at];
}
