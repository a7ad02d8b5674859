/* SPDX-License-Identifier: Apache-2.0 */
/* own_vars.c: the compiler's own variables in a module: their properties in
   names.def, and those that belong to a parameter. */
#include "ir/graph/ir_impl.h"
#include "runtime/program/quantized.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const struct OwnVarRow {
    const char *text;
    VarKind kind;
    DType dtype;
    int64_t elements;
    bool each; /* objective has one */
    OwnRange range;
} own_rows[] = {
#define OBJECTIVE true
#define MODULE    false
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most)         \
    {text, VAR_##kind, DT_##dtype, n, each, {least, most, (most) == COUNT_MAX}},
#include "runtime/program/names.def"
#undef OBJECTIVE
#undef MODULE
};

static TypeId own_type(const struct OwnVarRow *r) {
    return type_make(r->dtype, r->elements > 0, &r->elements);
}

static Str own_name(OwnVar v, Str objective) {
    const struct OwnVarRow *r = &own_rows[v];
    ASSERT(v < NUM_OWN_VARS);
    return r->each ? name_for_objective(r->text, objective) : intern(r->text);
}

const char *own_var_text(OwnVar v) {
    ASSERT(v < NUM_OWN_VARS);
    return own_rows[v].text;
}

OwnRange own_var_range(OwnVar v) {
    ASSERT(v < NUM_OWN_VARS);
    return own_rows[v].range;
}

int module_own_var(Module *m, OwnVar v, Str objective, double fill) {
    const struct OwnVarRow *r = &own_rows[v];
    return module_var(m, r->kind, own_name(v, objective), own_type(r), NULL,
                      fill);
}

ValueId graph_own_var(Graph *g, OwnVar v, double fill) {
    return graph_var(g, module_own_var(g->module, v, g->objective, fill));
}

int module_find_own_var(const Module *m, OwnVar v, Str objective) {
    return module_find_name(m, own_name(v, objective));
}

Str average_name(Str variable) {
    return internf("%s/average", family_name(FAMILY_OPT, variable));
}

static bool is_state(Str name, const char *end) {
    const char *slash = strrchr(name, '/');
    return family_has(FAMILY_OPT, name) && !strcmp(slash, end);
}

bool is_average(Str name) { return is_state(name, "/average"); }
bool is_evaluated(Str name) { return is_state(name, "/evaluated"); }

/* For state, the last part of the name identifies it. */
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

/* Properties of the variables of a family; families of outputs come last. */
static const VarKind family_kind[] = {
#define LOW(E, text, C, ...) [FAMILY_##E] = VAR_SHADOW,
#define STORED(...)
#include "runtime/program/dtypes.def"
    [FAMILY_OPT] = VAR_STATE,
    [FAMILY_GRAD] = VAR_GRAD,
    [FAMILY_INT8] = VAR_FROZEN,
    [FAMILY_INT4] = VAR_FROZEN,
    [FAMILY_NF4] = VAR_FROZEN};

static const DType family_dtype[] = {
#define LOW(E, text, C, ...) [FAMILY_##E] = DT_##E,
#define STORED(...)
#include "runtime/program/dtypes.def"
};

Family shadow_family(DType d) {
    int f = 0;
    while (family_kind[f] != VAR_SHADOW || family_dtype[f] != d) f++;
    return (Family)f;
}

int shadow_source(const Module *m, const Var *shadow) {
    int parameter;
    Family f = family_of(m, shadow->name, &parameter);
    return f < NUM_FAMILIES && family_kind[f] == VAR_SHADOW ? parameter : -1;
}

const char *own_var_defect(const Module *m, const Var *v) {
    Str objective;
    int parameter;
    if (!name_is_own(v->name)) return NULL;
    Family f = family_of(m, v->name, &parameter);
    for (int i = 0; i < NUM_OWN_VARS && f == NUM_FAMILIES; i++) {
        const struct OwnVarRow *r = &own_rows[i];
        if (!name_has_objective(v->name, r->text, &objective)) continue;
        bool same = v->kind == r->kind && v->type.i == own_type(r).i;
        return same ? NULL : "has another kind or type";
    }
    if (f == NUM_FAMILIES || f >= sizeof family_kind / sizeof *family_kind)
        return "is not one of the compiler's names";
    if (parameter < 0) return "does not belong to a variable";
    TypeId of = m->vars.data[parameter].type;
    if (family_kind[f] == VAR_FROZEN) { /* two 4-bit codes per byte */
        int64_t codes = type_count(type_get(of))
                        << (type_get(of)->dtype == DT_U8);
        int64_t blocks = quantized_blocks(codes);
        of = type_make(DT_F32, 1, &blocks);
    } else if (family_kind[f] == VAR_SHADOW)
        of = type_with_dtype(of, family_dtype[f]);
    else if (dtype_is_low(type_get(of)->dtype))
        of = type_with_dtype(of, DT_F32);
    bool same = f == FAMILY_OPT || v->type.i == of.i; /* state has its own */
    return v->kind == family_kind[f] && same ? NULL
                                             : "has another kind or type";
}
