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

/* ---- sizes --------------------------------------------------------------- */

#define DIGITS  "0123456789"
#define LETTERS "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGITS

/* The length of a size at the start of the text: a number above 0 that fits an
   int64_t; 0: there is none. */
static size_t size_number(const char *text) {
    size_t n = strspn(text, DIGITS);
    return n < 19 && *text != '0' ? n : 0;
}

/* [N][,NAME=N].. */
static bool is_size(const char *text) {
    size_t n = size_number(text);
    if (n && !text[n]) return true;
    if (n && text[n] == ',') text += n + 1;
    for (;; text++) {
        size_t name = strspn(text, LETTERS);
        if (!name || text[name] != '=') return false;
        text += name + 1;
        n = size_number(text);
        text += n;
        if (!n || (*text && *text != ',')) return false;
        if (!*text) return true;
    }
}

ProgramKind program_of_name(const char *name, Str *objective, Str *size) {
    int p = 0;
    const char *at = strrchr(name, '@');
    bool sized = at && is_size(at + 1);
    *objective = intern("");
    *size = intern(sized ? at + 1 : "");
    if (sized) name = intern_n(name, (size_t)(at - name));
    while (p < PROGRAM_NONE &&
           !name_has_objective(name, program_text[p], objective))
        p++;
    return (ProgramKind)p;
}

Str name_at_size(Str name, Str size) {
    return *size ? internf("%s@%s", name, size) : name;
}

int64_t size_batch(Str size) {
    size_t n = size_number(size);
    return n && (!size[n] || size[n] == ',') ? strtoll(size, NULL, 10) : 0;
}

bool size_has_dims(Str size) { return strchr(size, '=') != NULL; }

Str size_with_dim(Str size, Str name, int64_t n) {
    StrBuf sb = {0};
    sb_puts(&sb, size);
    if (*size) sb_puts(&sb, ",");
    for (const char *c = name; *c; c++)
        sb_printf(&sb, "%c", strchr(LETTERS, *c) ? *c : '_');
    sb_printf(&sb, "=%" PRId64, n);
    Str s = intern(sb.data);
    sb_free(&sb);
    return s;
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
