/* SPDX-License-Identifier: Apache-2.0 */
/* names.c: names of programs and of the compiler's own variables; the table
   is runtime/program/names.def. */
#include "ir/graph/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const program_text[] = {
#define PROGRAM(id, text) text,
#include "runtime/program/names.def"
};

static const char *const output_text[] = {
#define OUTPUT(id, text) text,
#include "runtime/program/names.def"
};

static const char *const family_text[] = {
#define FAMILY(id, prefix) prefix,
#include "runtime/program/names.def"
};

bool name_is_own(const char *name) { return !strncmp(name, "ampc.", 5); }

/* ---- one for each objective ---------------------------------------------- */

Str name_for_objective(const char *text, Str objective) {
    return *objective ? internf("%s:%s", text, objective) : intern(text);
}

bool name_has_objective(const char *name, const char *text, Str *objective) {
    size_t n = strlen(text);
    if (strncmp(name, text, n) || (name[n] && name[n] != ':')) return false;
    *objective = intern(name[n] ? name + n + 1 : "");
    return true;
}

Str program_name(ProgramKind p, Str objective) {
    ASSERT(p < PROGRAM_NONE);
    return name_for_objective(program_text[p], objective);
}

ProgramKind program_of_name(const char *name, Str *objective, int64_t *batch) {
    int p = 0;
    const char *at = strrchr(name, '@');
    size_t digits = at ? strspn(at + 1, "0123456789") : 0;
    bool sized = digits && digits < 19 && !at[1 + digits] && at[1] != '0';
    *objective = intern("");
    *batch = sized ? strtoll(at + 1, NULL, 10) : 0;
    if (sized) name = intern_n(name, (size_t)(at - name));
    while (p < PROGRAM_NONE &&
           !name_has_objective(name, program_text[p], objective))
        p++;
    return (ProgramKind)p;
}

Str name_at_batch(Str name, int64_t batch) {
    return batch ? internf("%s@%" PRId64, name, batch) : name;
}

Str own_output(OwnOutput o, Str objective) {
    ASSERT(o < NUM_OWN_OUTPUTS);
    return name_for_objective(output_text[o], objective);
}

/* ---- of a parameter ------------------------------------------------------ */

Str family_name(Family f, Str of) {
    ASSERT(f < NUM_FAMILIES);
    return internf("%s%s", family_text[f], of);
}

bool family_has(Family f, Str name) {
    return !strncmp(name, family_text[f], strlen(family_text[f]));
}

Str family_member(Family f, Str name) {
    return family_has(f, name) ? intern(name + strlen(family_text[f])) : NULL;
}
