/* SPDX-License-Identifier: Apache-2.0 */
/* levels.c: see levels.h. */
#include "codegen/levels.h"

#include <string.h>

const IsaLevel isa_levels[] = {
#define ISA(E, number, name, prefix, arch, vectors, flags)                     \
    {number, name, prefix, arch, vectors, flags, false},
#define ISA_SOURCE(E, number, name, prefix, vectors)                           \
    {number, name, prefix, NULL, vectors, "", true},
#include "runtime/cpu/isa.def"
    {0, NULL, NULL, NULL, NULL, NULL, false}};

bool isa_wanted(const Options *opt, const IsaLevel *l) {
    for (int i = 0; i < opt->targets.len; i++)
        if (!opt->targets.data[i].cuda && opt->targets.data[i].isa == l->isa)
            return true;
    return opt->targets.len == 0 && !l->source && isa_is_here(l->arch);
}

bool isa_compiled(const Options *opt, const IsaLevel *l) {
    for (const IsaLevel *x = isa_levels; l->flags && x->isa; x++)
        if (!strcmp(x->prefix, l->prefix) && isa_wanted(opt, x)) return true;
    return false;
}

const IsaLevel *isa_least(const Options *opt) {
    const IsaLevel *least = isa_levels;
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (isa_compiled(opt, l)) least = l;
    return least;
}

const IsaLevel *isa_source(const Options *opt) {
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (l->source && isa_wanted(opt, l)) return l;
    return NULL;
}

bool isa_is_here(const char *arch) { return !strcmp(arch, AMPC_ARCH); }

const char *isa_arch(const Options *opt) {
    for (const IsaLevel *l = isa_levels; l->isa; l++)
        if (l->arch && isa_wanted(opt, l)) return l->arch;
    return AMPC_ARCH;
}

Status isa_check(const Options *opt, Diag *d) {
    const IsaLevel *first = NULL;
    for (const IsaLevel *l = isa_levels; l->isa; l++) {
        if (!l->arch || !isa_wanted(opt, l)) continue;
        if (!first) first = l;
        if (!strcmp(first->arch, l->arch)) continue;
        return fail(d, (Loc){0},
                    "--target cpu:%s,cpu:%s: a module is for one kind of "
                    "processor; compile once more for the other",
                    first->name, l->name);
    }
    return OK;
}
