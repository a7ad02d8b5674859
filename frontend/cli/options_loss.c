/* SPDX-License-Identifier: Apache-2.0 */
/* options_loss.c: options of losses and objectives. */
#include "frontend/cli/options_spec.h"

#include <math.h>
#include <string.h>

#include "frontend/cli/options_text.h"

const char *const loss_words[] = {"auto", "none", "host", NULL};

const char *loss_word(const LossSpec *l) {
    return l->kind == LOSS_FN ? l->fn->loss : loss_words[l->kind];
}

static Status find_loss(Options *o, Spec *s, LossSpec *l) {
    const char **words = NEW_ARRAY(o->arena, const char *, fn_std_count() + 4);
    char *word = spec_next(s);
    int n = 0, i;
    for (int k = 0; loss_words[k]; k++) words[n++] = loss_words[k];
    for (int k = 0; k < fn_std_count(); k++)
        if (fn_std_at(k)->loss) words[n++] = fn_std_at(k)->loss;
    TRY(spec_pick(s, words, word, &i));
    *l = loss_default(i < LOSS_FN ? (LossKind)i : LOSS_FN);
    if (l->kind == LOSS_FN) l->fn = fn_loss(word);
    return OK;
}

/* The operands before `target` are outputs of the model. */
static int loss_outputs(const LossSpec *l) {
    if (l->kind != LOSS_FN) return 1;
    int target = fn_loss_target(l->fn);
    return target < 0 ? l->fn->info.in_min : target;
}

/* OUTPUT, or OUTPUT,OUTPUT.. for a loss of several outputs. */
static Status read_outputs(Options *o, const Spec *s, LossSpec *l, char *text) {
    int n = loss_outputs(l);
    for (char *comma; text; text = comma) {
        comma = n > 1 ? strchr(text, ',') : NULL;
        if (comma) *comma++ = 0;
        vec_push(o->arena, &l->outputs, intern(text));
    }
    if (l->outputs.len && l->outputs.len != n)
        return spec_error(s, "%s takes %d outputs, not %d: %s:OUTPUT,OUTPUT..",
                          loss_word(l), n, l->outputs.len, loss_word(l));
    return OK;
}

static SpecKey loss_spec_key(const FnAttr *a, double *real) {
    bool axis = a->kind == FA_AXIS, flag = a->kind == FA_BOOL;
    return (SpecKey){a->name, .real = real, .lo = axis ? -MAX_RANK : a->lo,
                     .hi = axis   ? MAX_RANK - 1
                           : flag ? 1
                                  : a->hi,
                     .whole = a->kind != FA_FLOAT};
}

/* The default of a key; NaN: it has none. A single loss ignores label -100,
   as PyTorch's do. In a sum, labels are ignored only where a key says so:
   otherwise the mean that evaluation reports would not be the sum of the
   terms' means. */
static double unsaid(Options *o, const LossSpec *l, const FnAttr *a,
                     bool single) {
    char msg[MSG_TEXT];
    Attr x;
    if (!strcmp(a->name, "ignore_index")) return single ? -100 : NAN;
    if (a->kind == FA_AXIS || !a->dflt) return NAN;
    Graph *g = graph_new(module_new(o->arena, ""), "defaults");
    Status st = fn_default(l->fn, g, NULL, 0, a, &x, msg);
    ASSERT(st == OK && "the default of a key is a number");
    return a->kind == FA_FLOAT ? x.u.f : (double)x.u.i;
}

static Status read_loss_keys(Options *o, Spec *s, LossSpec *l, bool single) {
    SpecKey keys[MAX_OP_ATTRS + 2] = {{0}};
    double value[MAX_OP_ATTRS];
    const FnAttr *attr[MAX_OP_ATTRS];
    Reals weights = {0};
    int n = 0;
    for (int i = 0; l->fn && i < l->fn->attrs.len; i++) {
        const FnAttr *a = &l->fn->attrs.data[i];
        if (a->kind == FA_STR) continue; /* reduction */
        attr[n] = a;
        value[n] = unsaid(o, l, a, single);
        keys[n] = loss_spec_key(a, &value[n]);
        n++;
    }
    for (int i = 0; l->fn && i < l->fn->operands.len; i++)
        if (!strcmp(l->fn->operands.data[i].name, "weight"))
            keys[n] = (SpecKey){"class_weights", .list = &weights, .hi = MOST};
    TRY(spec_keys(s, keys));
    l->class_weights = weights;
    for (int i = 0; i < n; i++) {
        LossKey k = {attr[i], value[i]};
        if (!isnan(value[i])) vec_push(o->arena, &l->keys, k);
    }
    return OK;
}

/* Cuts the text in front of its first ",KEY=", and returns KEY=..; NULL: it has
   no key. */
static char *cut_keys(char *text) {
    for (char *comma = text; comma && (comma = strchr(comma, ',')); comma++) {
        size_t n = strspn(comma + 1, "abcdefghijklmnopqrstuvwxyz_");
        if (!n || comma[1 + n] != '=') continue;
        *comma = 0;
        return comma + 1;
    }
    return NULL;
}

/* [FACTOR*]LOSS[,KEY=VALUE..][:OUTPUT][,KEY=VALUE..] */
static Status read_loss(Options *o, Spec *s, LossSpec *l, bool single) {
    char *star = strchr(s->text, '*'), *colon;
    double factor = 1;
    if (star && spec_starts_number(s->text)) {
        *star = 0;
        TRY(spec_number(s, "", s->text, &factor));
        if (!(fabs(factor) >= LEAST && fabs(factor) <= MOST))
            return spec_error(s, "the factor %s is not in [%g, %g]", s->text,
                              LEAST, MOST);
        s->text = star + 1;
    }
    colon = strchr(s->text, ':');
    if (colon) *colon = 0;
    char *behind = cut_keys(colon ? colon + 1 : NULL);
    TRY(find_loss(o, s, l));
    l->factor = factor;
    if (behind)
        s->text =
            s->text ? arena_printf(o->arena, "%s,%s", s->text, behind) : behind;
    TRY(read_outputs(o, s, l, colon ? colon + 1 : NULL));
    return read_loss_keys(o, s, l, single);
}

/* The text begins with a term of a sum: a loss, or a factor and a loss. */
static bool starts_term(const char *text) {
    const char *star = strchr(text, '*');
    if (star && spec_starts_number(text)) text = star + 1;
    text += strspn(text, " ");
    size_t n = strcspn(text, ",: +");
    return fn_loss(intern_n(text, n)) != NULL;
}

/* Cuts the text at the next plus sign before a term, and returns the text after
   the sign;
   NULL if no term follows. Names of outputs may hold plus signs, too. */
static char *next_term(char *text) {
    char *plus = text;
    while ((plus = strchr(plus, '+'))) {
        char *next = plus + 1 + strspn(plus + 1, " ");
        bool blanks = plus > text && plus[-1] == ' ' && plus[1] == ' ';
        if (blanks || starts_term(next)) {
            while (plus > text && plus[-1] == ' ') plus--;
            *plus = 0;
            return next;
        }
        plus++;
    }
    return NULL;
}

Status set_loss(Options *o, Spec *s) {
    Objective *j;
    TRY(spec_objective(o, s, &j));
    if (!s->nested && o->loss_given)
        return spec_error(s, "was given already; a sum is --loss \"A:OUTPUT + "
                             "0.5*B:OUTPUT\"; several losses in one module are "
                             "--objective NAME,loss=L,params=GLOB,..");
    o->loss_given = true;
    j->added.len = 0;
    bool sum = false;
    for (char *term = s->text, *next; term; term = next, sum = true) {
        LossSpec l;
        next = next_term(term);
        s->text = term;
        TRY(read_loss(o, s, &l, !sum && !next));
        bool alone = l.kind == LOSS_NONE || l.kind == LOSS_HOST;
        if (alone && (sum || next || l.factor != 1))
            return spec_error(s, "%s cannot be a term of a sum", loss_word(&l));
        if (sum)
            vec_push(o->arena, &j->added, l);
        else
            j->loss = l;
    }
    return OK;
}

/* FILE.amp: the optimizer that the file defines. */

static Status set_params(Options *o, Spec *s) {
    Objective *j;
    TRY(spec_objective(o, s, &j));
    vec_push(o->arena, &j->params, intern(spec_next(s)));
    return s->text ? spec_error(s, "params: unknown key '%s'", s->text) : OK;
}

/* The keys of --objective; a value extends to the next key. */
static const struct ObjectiveKey {
    const char *name;
    Setter *set;
} objective_keys[] = {{"loss", set_loss},
                      {"params", set_params},
                      {"optimizer", set_optimizer},
                      {"wrapper", add_wrapper},
                      {"param_group", set_param_group},
                      {"lr_schedule", set_schedule},
                      {"clip_norm", set_clip_norm},
                      {"clip_value", set_clip_value},
                      {"gradient", add_gradient}};

static const struct ObjectiveKey *objective_key(const char *text) {
    for (size_t i = 0; i < sizeof objective_keys / sizeof *objective_keys;
         i++) {
        size_t n = strlen(objective_keys[i].name);
        if (!strncmp(text, objective_keys[i].name, n) && text[n] == '=')
            return &objective_keys[i];
    }
    return NULL;
}

/* The first named objective replaces the unnamed one. */
static Status start_objective(Options *o, const Spec *s, const char *name) {
    Options fresh;
    size_t ok = strspn(name, "abcdefghijklmnopqrstuvwxyz_-."
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
    if (!*name || name[ok])
        return spec_error(
            s,
            "'%s': a name is letters, digits, '_', '-' and '.'; keys follow "
            "it: NAME,loss=L,params=GLOB",
            name);
    if (o->only_given)
        return spec_error(s, "cannot be combined with options for a single "
                             "objective; make them keys of each --objective");
    if (options_objective(o, intern(name)))
        return spec_error(s, "'%s' was given already", name);
    options_init(&fresh, o->arena);
    Objective j = fresh.objectives.data[0];
    j.name = intern(name);
    if (!*o->objectives.data[0].name) o->objectives.len = 0;
    vec_push(o->arena, &o->objectives, j);
    return OK;
}

/* NAME,loss=L,params=GLOB,optimizer=O,lr=..: text between two keys belongs
   to the first key. */
Status set_objective(Options *o, Spec *s) {
    TRY(start_objective(o, s, spec_next(s)));
    bool loss = false;
    while (s->text) {
        const struct ObjectiveKey *k = objective_key(s->text);
        if (!k)
            return spec_error(
                s,
                "unexpected '%.*s': no key (loss, params, optimizer, "
                "param_group, lr_schedule, clip_norm, clip_value) before it",
                (int)strcspn(s->text, ","), s->text);
        Spec part = {s->option, true,     s->loc,
                     s->d,      s->arena, s->text + strlen(k->name) + 1};
        do s->text = strchr(s->text, ',');
        while (s->text && !objective_key(++s->text));
        if (s->text) s->text[-1] = 0;
        loss |= k->set == set_loss;
        TRY(k->set(o, &part));
    }
    return loss ? OK : spec_error(s, "wants loss=");
}
