/* SPDX-License-Identifier: Apache-2.0 */
/* report_params.c: what trains and what does not, with the reasons.         */
#include <string.h>

#include "frontend/report/report.h"
#include "passes/passes.h"

/* A variable of the model, or a constant of its file. */
typedef struct Row {
    Str name, why;
    const char *kind;
    TypeId type;
    bool trains, looks; /* looks: it could be a parameter */
} Row;

static int count_rows(const Module *m) { return m->vars.len + m->literals.len; }

/* false: the row is not printed. */
static bool row_at(const Module *m, int i, Row *r) {
    if (i >= m->vars.len) {
        const Literal *l = &m->literals.data[i - m->vars.len];
        *r = (Row){l->name, l->why, "const", l->type, false, l->reaches};
    } else {
        const Var *v = &m->vars.data[i];
        *r = (Row){v->name,
                   v->why,
                   var_kind_text[v->kind],
                   v->type,
                   v->kind == VAR_PARAM,
                   v->kind == VAR_FROZEN};
        if (v->kind != VAR_PARAM && v->kind != VAR_FROZEN &&
            v->kind != VAR_BUFFER)
            return false;
        if (name_is_own(v->name)) return false; /* scales of a weight */
    }
    if (!r->why) r->why = intern("");
    return true;
}

static void put_param(const Row *r, FactList *params) {
    Facts f = {.json = params->json};
    fact_name(&f, "name", r->name, NULL, NULL);
    fact_word(&f, "kind", r->kind, "%-7s");
    fact_type(&f, "type", r->type);
    fact_word(&f, "why", r->why, NULL);
    facts_put(&f, "{kind}{name}  {type}  {why}\n", fact_next(params));
}

void report_params(const Module *m, bool json, StrBuf *sb) {
    FactList params = fact_lines(json);
    int64_t trained = 0;
    Row r;
    for (int i = 0; i < count_rows(m); i++) {
        if (!row_at(m, i, &r)) continue;
        put_param(&r, &params);
        if (r.trains) trained += type_count(type_get(r.type));
    }
    fact_list_put(&params, sb);
    if (!json) sb_printf(sb, "%lld trained elements\n", (long long)trained);
}

/* ---- in one line --------------------------------------------------------- */

static bool is_guess(const Row *r) {
    return r->trains && !strncmp(r->why, GUESS, strlen(GUESS));
}

static bool is_odd(const Row *r) { return is_guess(r) || r->looks; }

/* Names of the rows from `first` on with the same reason, then the reason. */
static void put_reason(const Module *m, int first, const Row *of, StrBuf *sb) {
    enum { NAMES = 3 };
    int n = 0;
    Row r;
    for (int i = first; i < count_rows(m); i++) {
        if (!row_at(m, i, &r) || !is_odd(&r) || r.why != of->why) continue;
        if (n++ >= NAMES) continue;
        sb_puts(sb, n > 1 ? ", '" : "'");
        sb_put_escaped(sb, r.name);
        sb_puts(sb, "'");
    }
    if (n > NAMES) sb_printf(sb, " and %d more", n - NAMES);
    sb_printf(sb, " (%s)", is_guess(of) ? of->why + strlen(GUESS) : of->why);
}

static bool told_before(const Module *m, int i, const Row *of) {
    Row r;
    while (i-- > 0)
        if (row_at(m, i, &r) && is_odd(&r) && r.why == of->why) return true;
    return false;
}

static void put_odd(const Module *m, bool guesses, const char *what,
                    StrBuf *sb) {
    int n = 0, reasons = 0;
    Row r;
    for (int i = 0; i < count_rows(m); i++)
        n += row_at(m, i, &r) && is_odd(&r) && is_guess(&r) == guesses;
    if (!n) return;
    sb_printf(sb, "; %s %d: ", what, n);
    for (int i = 0; i < count_rows(m); i++) {
        if (!row_at(m, i, &r) || !is_odd(&r) || is_guess(&r) != guesses ||
            told_before(m, i, &r))
            continue;
        if (reasons++) sb_puts(sb, ", ");
        put_reason(m, i, &r, sb);
    }
}

void report_trained(const Module *m, StrBuf *sb) {
    int64_t n = 0, elements = 0;
    Row r;
    for (int i = 0; i < count_rows(m); i++) {
        if (!row_at(m, i, &r) || !r.trains) continue;
        n++;
        elements += type_count(type_get(r.type));
    }
    sb_printf(sb, "trains %lld tensor%s (%lld elements)", (long long)n,
              n == 1 ? "" : "s", (long long)elements);
    put_odd(m, true, "by guess", sb);
    put_odd(m, false, "not", sb);
    if (m->keeps) sb_printf(sb, "; %s", m->keeps);
    sb_puts(sb, "\n");
}
