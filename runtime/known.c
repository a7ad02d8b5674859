/* known.c: the table of names that the compiler shares (names.def).         */
#include <float.h>
#include <math.h>
#include <string.h>

#include "runtime/session.h"

#define COUNT_MAX 9007199254740992.0 /* exact as a double */

const char *const program_names[PROG_COUNT] = {
#define PROGRAM(id, text) text,
#include "runtime/names.def"
};

const char *const output_names[OUT_KNOWN] = {
#define OUTPUT(id, text) text,
#include "runtime/names.def"
};

static const struct KnownRow {
    const char *name;
    Section section;
    double least, most;
} known_rows[VAR_KNOWN] = {
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most)         \
    {text, IN_##section, least, most},
#include "runtime/names.def"
};

static const char *const family_prefixes[] = {
#define FAMILY(id, prefix) prefix,
#include "runtime/names.def"
};

void session_find_known(ampc_session *s) {
    for (int i = 0; i < PROG_COUNT; i++)
        s->program[i] = find_program(s->m, program_names[i]);
    for (int i = 0; i < VAR_KNOWN; i++)
        s->known[i] = find_var(s->m, known_rows[i].name);
}

bool known_in_range(KnownVar v, double x) {
    const struct KnownRow *r = &known_rows[v];
    return isinf(r->least) || (x >= r->least && x <= r->most);
}

bool own_name(const char *name) { return strncmp(name, "ampc.", 5) == 0; }

/* The row of "ampc.step", or of "ampc.step:OBJECTIVE". */
static const struct KnownRow *row_of(const char *name) {
    for (int i = 0; i < VAR_KNOWN; i++) {
        size_t n = strlen(known_rows[i].name);
        if (strncmp(name, known_rows[i].name, n) == 0 &&
            (name[n] == 0 || name[n] == ':'))
            return &known_rows[i];
    }
    return NULL;
}

Section section_of_name(const char *name) {
    const size_t n = sizeof family_prefixes / sizeof *family_prefixes;
    const struct KnownRow *r = row_of(name);
    if (r) return r->section;
    if (!own_name(name)) return IN_COUNT;
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, family_prefixes[i], strlen(family_prefixes[i])) == 0)
            return IN_COUNT;
    return IN_STATE;
}
