/* names.c: names of programs, and of the compiler's own variables and outputs;
   the table is runtime/names.def.                                           */
#include "ir/graph/names.h"
#include "ir/graph/ir_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const program_text[] = {
#define PROGRAM(id, text) text,
#include "runtime/names.def"
};

static const char *const output_text[] = {
#define OUTPUT(id, text) text,
#include "runtime/names.def"
};

static const char *const family_text[] = {
#define FAMILY(id, prefix) prefix,
#include "runtime/names.def"
};

static const struct OwnVarRow {
    const char *text;
    VarKind kind;
    DType dtype;
    int64_t elements;
    bool each; /* objective has one */
} own_rows[] = {
#define OBJECTIVE true
#define MODULE    false
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most)         \
    {text, VAR_##kind, DT_##dtype, n, each},
#include "runtime/names.def"
#undef OBJECTIVE
#undef MODULE
};

bool name_is_own(const char *name) { return !strncmp(name, "ampc.", 5); }

/* ---- one for each objective ---------------------------------------------- */

static Str with_objective(const char *text, Str objective) {
    return *objective ? internf("%s:%s", text, objective) : intern(text);
}

/* Whether `name` is `text` or text:OBJECTIVE. */
static bool is_of_objective(const char *name, const char *text,
                            Str *objective) {
    size_t n = strlen(text);
    if (strncmp(name, text, n) || (name[n] && name[n] != ':')) return false;
    *objective = intern(name[n] ? name + n + 1 : "");
    return true;
}

Str program_name(ProgramKind p, Str objective) {
    ASSERT(p < PROGRAM_NONE);
    return with_objective(program_text[p], objective);
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
           !is_of_objective(name, program_text[p], objective))
        p++;
    return (ProgramKind)p;
}

Str name_at_batch(Str name, int64_t batch) {
    return batch ? internf("%s@%" PRId64, name, batch) : name;
}

Str own_output(OwnOutput o, Str objective) {
    ASSERT(o < NUM_OWN_OUTPUTS);
    return with_objective(output_text[o], objective);
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

/* ---- variables ----------------------------------------------------------- */

static TypeId own_type(const struct OwnVarRow *r) {
    return type_make(r->dtype, r->elements > 0, &r->elements);
}

static Str own_name(OwnVar v, Str objective) {
    const struct OwnVarRow *r = &own_rows[v];
    ASSERT(v < NUM_OWN_VARS);
    return r->each ? with_objective(r->text, objective) : intern(r->text);
}

const char *own_var_text(OwnVar v) {
    ASSERT(v < NUM_OWN_VARS);
    return own_rows[v].text;
}

int module_own_var(Module *m, OwnVar v, Str objective, double fill) {
    const struct OwnVarRow *r = &own_rows[v];
    return module_var(m, r->kind, own_name(v, objective), own_type(r), NULL,
                      fill);
}

int module_find_own_var(const Module *m, OwnVar v, Str objective) {
    return module_find_name(m, own_name(v, objective));
}

/* For state, the last part says which. */
Family family_of(const Module *m, Str name, int *parameter) {
    for (int f = 0; f < NUM_FAMILIES; f++) {
        Str of = family_member((Family)f, name);
        if (!of) continue;
        if (f == FAMILY_OPT) {
            const char *slash = strrchr(of, '/');
            if (slash) of = intern_n(of, (size_t)(slash - of));
        }
        *parameter = module_find_name(m, of);
        return (Family)f;
    }
    *parameter = -1;
    return NUM_FAMILIES;
}

int shadow_source(const Module *m, const Var *shadow) {
    int parameter;
    Family f = family_of(m, shadow->name, &parameter);
    return f == FAMILY_BF16 || f == FAMILY_F16 ? parameter : -1;
}

const char *own_var_defect(const Module *m, const Var *v) {
    static const VarKind kinds[] = {[FAMILY_OPT] = VAR_STATE,
                                    [FAMILY_GRAD] = VAR_GRAD,
                                    [FAMILY_BF16] = VAR_SHADOW,
                                    [FAMILY_F16] = VAR_SHADOW};
    Str objective;
    int parameter;
    if (!name_is_own(v->name)) return NULL;
    Family f = family_of(m, v->name, &parameter);
    for (int i = 0; i < NUM_OWN_VARS && f == NUM_FAMILIES; i++) {
        const struct OwnVarRow *r = &own_rows[i];
        if (!is_of_objective(v->name, r->text, &objective)) continue;
        bool same = v->kind == r->kind && v->type.i == own_type(r).i;
        return same ? NULL : "has another kind or type";
    }
    if (f == NUM_FAMILIES || f >= sizeof kinds / sizeof *kinds)
        return "is none of the compiler's";
    if (parameter < 0) return "belongs to no variable";
    TypeId of = m->vars.data[parameter].type;
    DType low = f == FAMILY_BF16 ? DT_BF16 : DT_F16;
    if (kinds[f] == VAR_SHADOW)
        of = type_with_dtype(of, low);
    else if (dtype_is_16(type_get(of)->dtype))
        of = type_with_dtype(of, DT_F32);
    return v->kind == kinds[f] && v->type.i == of.i
               ? NULL
               : "has another kind or type";
}
