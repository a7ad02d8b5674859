/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_bisect_print.c: see cmd_bisect.h. */
#include "frontend/cli/cmd_bisect.h"

#include <math.h>

static const char *const cause_words[] = {
    [CAUSE_START] = "start", [CAUSE_IR] = "model",    [CAUSE_A] = "code of A",
    [CAUSE_B] = "code of B", [CAUSE_GROWN] = "grown",
};

static const char *const cause_text[] = {
    [CAUSE_START] = "they begin with other numbers",
    [CAUSE_IR] = "from equal operands the two modules compute something else",
    [CAUSE_A] = "A stores other numbers than its IR says: its code is at fault",
    [CAUSE_B] = "B stores other numbers than its IR says: its code is at fault",
    [CAUSE_GROWN] =
        "the operands agree within the tolerance; this op amplifies their "
        "difference",
};

/* The names of B's values with this mark, in the order of the programs. */
static int names_of(const Bisect *b, Mark mark, Arena *a, Str **names) {
    int n = 0, all = 0;
    for (int i = 0; i < b->side[1].seen.len; i++)
        all += b->side[1].seen.data[i].g->values.len;
    *names = NEW_ARRAY(a, Str, all);
    for (int i = 0; i < b->side[1].seen.len; i++) {
        const Seen *p = &b->side[1].seen.data[i];
        for (int v = 1; v < p->g->values.len; v++)
            if (p->told[v] == mark)
                (*names)[n++] = value_get(p->g, (ValueId){(uint32_t)v})->name;
    }
    return n;
}

static void put_numbers(const Part *p, StrBuf *sb) {
    static const char *const form[] = {
        [CAUSE_START] = "A has %.9g, B %.9g",
        [CAUSE_IR] = "A computes %.9g, B %.9g",
        [CAUSE_A] = "A stores %.9g, its IR gives %.9g",
        [CAUSE_B] = "B stores %.9g, its IR gives %.9g",
        [CAUSE_GROWN] = "A has %.9g, B %.9g",
    };
    sb_printf(sb, "in element %lld, which differs most, ",
              (long long)p->element);
    sb_printf(sb, form[p->cause], p->number[0], p->number[1]);
    sb_puts(sb, "\n");
}

static void put_where(const Part *p, StrBuf *sb) {
    if (p->program)
        sb_printf(sb, "step %lld, program %s, value %%", (long long)p->step,
                  p->program);
    else
        sb_puts(sb, "before the first step, variable ");
    sb_put_escaped(sb, p->value);
    if (p->node) {
        sb_puts(sb, " of node ");
        sb_put_escaped(sb, p->node);
    }
}

static void put_part(const Bisect *b, StrBuf *sb) {
    const Part *p = &b->part;
    put_where(p, sb);
    if (p->cause == CAUSE_IR)
        sb_printf(sb, ": %.2g apart, rounding explains %.2g\n", p->apart,
                  p->limit);
    else
        sb_printf(sb, ": %.2g apart (tolerance %g)\n", p->apart, p->limit);
    if (p->of) {
        sb_puts(sb, "%");
        sb_put_escaped(sb, p->of);
        sb_printf(sb, ", computed from it, is %.2g apart (tolerance %g)\n",
                  p->of_apart, b->tolerance);
    }
    sb_printf(sb, "%s\n", cause_text[p->cause]);
    put_numbers(p, sb);
    for (int i = 0; i < 2; i++)
        if (p->line[i]) sb_printf(sb, "  %c: %s\n", 'A' + i, p->line[i]);
}

static void put_marked(const Bisect *b, Mark mark, const char *what,
                       StrBuf *sb) {
    Str *names;
    int n = names_of(b, mark, b->s->arena, &names);
    if (n == 0) return;
    sb_puts(sb, what);
    for (int i = 0; i < n && sb_put_next(sb, i); i++) {
        sb_puts(sb, "%");
        sb_put_escaped(sb, names[i]);
    }
    sb_put_more(sb, n);
    sb_puts(sb, "\n");
}

void put_bisect_text(const Bisect *b, StrBuf *sb) {
    if (b->part.found)
        put_part(b, sb);
    else
        sb_printf(sb,
                  "no difference above %g in %lld steps: loss %.9g and "
                  "%.9g in the last\n",
                  b->tolerance, (long long)b->steps, b->side[0].metrics.loss,
                  b->side[1].metrics.loss);
    put_marked(b, MARK_NOISE,
               "left out, as nothing but rounding error (the exact value is 0 "
               "or near it): ",
               sb);
    put_marked(b, MARK_CHOSEN,
               "left out, as rounding decides which of nearly equal numbers "
               "they choose (both take A's choice in what is computed from "
               "them): ",
               sb);
}

static void put_field(StrBuf *sb, const char *key, const char *text) {
    sb_puts(sb, ",");
    sb_put_json_field(sb, key, text);
}

static void put_marked_json(const Bisect *b, Mark mark, const char *key,
                            StrBuf *sb) {
    Str *names;
    int n = names_of(b, mark, b->s->arena, &names);
    sb_printf(sb, ",\"%s\":[", key);
    for (int i = 0; i < n; i++) {
        if (i) sb_puts(sb, ",");
        sb_put_json_string(sb, names[i]);
    }
    sb_puts(sb, "]");
}

void put_bisect_json(const Bisect *b, StrBuf *sb) {
    const Part *p = &b->part;
    sb_printf(sb, "{\"part\":%s,\"tolerance\":%.9g",
              p->found ? "true" : "false", b->tolerance);
    if (p->found) {
        sb_printf(sb, ",\"step\":%lld", (long long)p->step);
        put_field(sb, "program", p->program);
        put_field(sb, "value", p->value);
        put_field(sb, "node", p->node);
        put_field(sb, "cause", cause_words[p->cause]);
        put_field(sb, "a", p->line[0]);
        put_field(sb, "b", p->line[1]);
        if (isfinite(p->apart)) sb_printf(sb, ",\"apart\":%.9g", p->apart);
        sb_printf(sb, ",\"limit\":%.9g,\"element\":%lld", p->limit,
                  (long long)p->element);
        for (int i = 0; i < 2; i++)
            if (isfinite(p->number[i]))
                sb_printf(sb, ",\"number_%c\":%.9g", 'a' + i, p->number[i]);
        if (p->of) put_field(sb, "of", p->of);
    }
    put_marked_json(b, MARK_NOISE, "rounding", sb);
    put_marked_json(b, MARK_CHOSEN, "chosen", sb);
    sb_puts(sb, "}\n");
}
