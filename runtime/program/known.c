/* SPDX-License-Identifier: Apache-2.0 */
/* known.c: the table of names shared with the compiler (names.def). */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/api/session.h"

const char *const program_names[PROG_COUNT] = {
#define PROGRAM(id, text) text,
#include "runtime/program/names.def"
};

const char *const output_names[OUT_KNOWN] = {
#define OUTPUT(id, text) text,
#include "runtime/program/names.def"
};

static const struct KnownRow {
    const char *name;
    Section section;
    double least, most, count; /* most == count: whole numbers */
} known_rows[VAR_KNOWN] = {
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most)         \
    {text, IN_##section, least, most, COUNT_MAX},
#include "runtime/program/names.def"
};

static const char *const family_prefixes[] = {
#define FAMILY(id, prefix) prefix,
#include "runtime/program/names.def"
};

/* ---- programs ------------------------------------------------------------ */

bool program_is(const PlanProgram *p, ProgramId id) {
    size_t n = strlen(program_names[id]);
    return strncmp(p->name, program_names[id], n) == 0 &&
           (!p->name[n] || strchr(":@", p->name[n]));
}

/* What follows @ in the name, as in "train@T=64"; else "". */
static const char *program_size(const PlanProgram *p) {
    const char *at = strrchr(p->name, '@');
    return at ? at + 1 : "";
}

int64_t batch_of(const PlanProgram *p) {
    char *end;
    int64_t n = strtoll(program_size(p), &end, 10);
    return *end == '=' ? 0 : n;
}

bool size_is_other(const AmpcModule *m, int own, uint32_t i) {
    const char *name = m->programs[own].name;
    size_t n = strlen(name);
    return strncmp(m->programs[i].name, name, n) == 0 &&
           m->programs[i].name[n] == '@';
}

bool sizes_has(const ampc_session *s, ProgramId id, int program) {
    int own = s->own[id];
    return own >= 0 &&
           (program == own || size_is_other(s->m, own, (uint32_t)program));
}

bool sizes_several(const ampc_session *s) {
    int own = s->own[PROG_MICRO];
    for (uint32_t i = 0; own >= 0 && i < s->m->nprogram; i++)
        if (size_is_other(s->m, own, i)) return true;
    return false;
}

const char *sizes_text(const ampc_session *s, char buf[200]) {
    return s->m->sizes ? s->m->sizes->text(s, buf) : "";
}

const char *objective_of(const PlanProgram *p, ProgramId id) {
    const char *rest = p->name + strlen(program_names[id]);
    if (!program_is(p, id) || *program_size(p)) return NULL;
    return *rest ? rest + 1 : "";
}

static const char *objective_with(const AmpcModule *m, ProgramId id,
                                  uint32_t index) {
    for (uint32_t i = 0; i < m->nprogram; i++) {
        const char *name = objective_of(&m->programs[i], id);
        if (name && index-- == 0) return name;
    }
    return NULL;
}

/* A module need not have a program that does a whole step. */
const char *objective_at(const AmpcModule *m, uint32_t index) {
    ProgramId id = objective_with(m, PROG_TRAIN, 0) ? PROG_TRAIN : PROG_MICRO;
    return objective_with(m, id, index);
}

typedef int Find(const AmpcModule *m, const char *name);

/* Names that exist once for each objective end with ":OBJECTIVE". */
static int find_of(const ampc_session *s, Find *find, const char *name) {
    char own[1100];
    int n = snprintf(own, sizeof own, "%s:%s", name, s->objective);
    int i = *s->objective && n < (int)sizeof own ? find(s->m, own) : -1;
    return i < 0 ? find(s->m, name) : i;
}

void session_find_known(ampc_session *s) {
    for (int i = 0; i < PROG_COUNT; i++)
        s->program[i] = s->own[i] = find_of(s, find_program, program_names[i]);
    for (int i = 0; i < VAR_KNOWN; i++)
        s->known[i] = find_of(s, find_var, known_rows[i].name);
}

int find_output(const AmpcModule *m, int program, const char *name) {
    const PlanProgram *p = &m->programs[program];
    for (uint32_t i = 0; i < p->nout; i++)
        if (strcmp(m->tensors[p->out0 + i].name, name) == 0) return (int)i;
    return -1;
}

int find_known_output(const ampc_session *s, int program, KnownOutput o) {
    char own[1100];
    snprintf(own, sizeof own, "%s:%s", output_names[o], s->objective);
    int i = *s->objective ? find_output(s->m, program, own) : -1;
    return i < 0 ? find_output(s->m, program, output_names[o]) : i;
}

/* ---- rows ---------------------------------------------------------------- */

bool own_name(const char *name) { return strncmp(name, "ampc.", 5) == 0; }

/* The row for "ampc.step" or "ampc.step:OBJECTIVE". */
static const struct KnownRow *row_of(const char *name) {
    for (int i = 0; i < VAR_KNOWN; i++) {
        size_t n = strlen(known_rows[i].name);
        if (strncmp(name, known_rows[i].name, n) == 0 &&
            (name[n] == 0 || name[n] == ':'))
            return &known_rows[i];
    }
    return NULL;
}

bool is_known(const char *name, KnownVar v) {
    return row_of(name) == &known_rows[v];
}

static bool is_whole(const struct KnownRow *r) { return r->most == r->count; }

bool known_in_range(const char *name, double x) {
    const struct KnownRow *r = row_of(name);
    return !r || isinf(r->least) ||
           (x >= r->least && x <= r->most && !(is_whole(r) && x != floor(x)));
}

void known_range_text(const char *name, char *text, size_t n) {
    const struct KnownRow *r = row_of(name);
    *text = 0;
    if (r && !isinf(r->least))
        snprintf(text, n, "; it is a %snumber from %g to %g",
                 is_whole(r) ? "whole " : "", r->least, r->most);
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
