/* SPDX-License-Identifier: Apache-2.0 */
/* options_text.c: the table of compile options: reads them from text and
   prints them. Each row of options.def is an option. */
#include "frontend/cli/options_spec.h"

#include <stdlib.h>
#include <string.h>

#include "frontend/cli/options_text.h"
#include "ir/base/near.h"

/* ---- the table ----------------------------------------------------------- */

typedef enum RowKind { SETTER, ADDER, FLAG, PATH, PATHS } RowKind;

/* Meaning of a row's third column, by the row's kind. */
#define WHAT_SETTER(function) function, 0
#define WHAT_ADDER(function)  function, 0
#define WHAT_FLAG(field)      NULL, offsetof(Options, field)
#define WHAT_PATH(field)      NULL, offsetof(Options, field)
#define WHAT_PATHS(field)     NULL, offsetof(Options, field)

static const struct OptionRow {
    const char *name;
    RowKind kind; /* an ADDER may be repeated in a block */
    Setter *set;
    size_t field; /* FLAG: a bool, set true.  PATH: a Str, the unchanged
                     value; PATHS: a list of them */
    enum { SAME, FREE } resume; /* options.def */
} option_rows[] = {
#define COMPILE(flag, kind, what, resume, value, preset, text)                 \
    {flag, kind, WHAT_##kind(what), resume},
#include "frontend/cli/options.def"
};

/* Rows that a block may have once: each has a bit of Options.lines. */
enum {
    ONCE_FLAG = 1,
    ONCE_SETTER = 1,
    ONCE_ADDER = 0,
    ONCE_PATH = 0,
    ONCE_PATHS = 0,
    LINES = 0
#define COMPILE(flag, kind, what, resume, value, preset, text) +ONCE_##kind
#include "frontend/cli/options.def"
};
_Static_assert(LINES <= 64, "Options.lines");

static uint64_t once_bit(const struct OptionRow *row) {
    int n = 0;
    for (const struct OptionRow *r = option_rows; r < row; r++)
        n += r->kind == FLAG || r->kind == SETTER;
    return UINT64_C(1) << n;
}

/* Names of options in other trainers, and the option to use here. */
static const struct {
    const char *word, *here;
} elsewhere[] = {
    {"--amp", "--precision fp32|bf16|fp16"},
    {"--batch", "--dim NAME=N"},
    {"--batch-size", "--dim NAME=N"},
    {"--bf16", "--precision bf16"},
    {"--device", "--target; ampc run has --device"},
    {"--epochs", "ampc run OUT.so --epochs N"},
    {"--feed", "ampc run OUT.so --feed NAME=FILE"},
    {"--fp16", "--precision fp16"},
    {"--fp32", "--precision fp32; for one layer --amp-policy FILE with a line "
               "node LAYER fp32"},
    {"--learning-rate", "--optimizer O,lr=X"},
    {"--lr", "--optimizer O,lr=X; ampc run has --lr"},
    {"--momentum", "--optimizer sgd,momentum=X"},
    {"--output", "-o OUT.so"},
    {"--steps", "ampc run OUT.so --steps N"},
    {"--weight-decay", "--optimizer O,weight_decay=X"},
};

static const struct OptionRow *find_row(const char *name) {
    const struct OptionRow *r = option_rows;
    for (size_t i = 0; i < sizeof option_rows / sizeof *r; i++)
        if (!strcmp(r[i].name, name)) return &r[i];
    return NULL;
}

bool options_known(const char *name) { return find_row(name) != NULL; }

const char *options_hint(const char *name) {
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (!strcmp(elsewhere[i].word, name)) return elsewhere[i].here;
    return options_known(name) ? name : NULL;
}

/* `near` has compared the name with the options of the command alone. */
static Status unknown_option(const Spec *s, Near near) {
    const size_t words = sizeof elsewhere / sizeof *elsewhere;
    for (size_t i = 0; i < words; i++) {
        if (!strcmp(elsewhere[i].word, s->option))
            return spec_error(s, "unknown option; use %s", elsewhere[i].here);
        near_offer(&near, elsewhere[i].word);
    }
    for (size_t i = 0; i < sizeof option_rows / sizeof *option_rows; i++)
        near_offer(&near, option_rows[i].name);
    char text[NEAR_TEXT];
    for (size_t i = 0; i < words; i++)
        if (near.best == elsewhere[i].word)
            return spec_error(s, "unknown option%s: use %s",
                              near_text(&near, text), elsewhere[i].here);
    return spec_error(s, "unknown option%s (see ampc --help)",
                      near_text(&near, text));
}

Status options_unknown(Options *o, Diag *d, const char *name, Near near) {
    Spec s = {name, false, {0}, d, o->arena, NULL};
    return unknown_option(&s, near);
}

static Status add_path(Options *o, const Spec *s, Strs *to, const char *value) {
    const char *eq = strchr(value, '=');
    if (s->loc.file) return spec_error(s, "is an option of the command line");
    if (!eq || eq == value || !eq[1])
        return spec_error(s, "'%s' is not NAME=FILE", value);
    vec_push(o->arena, to, intern(value));
    return OK;
}

static Status apply_option(Options *o, Spec *s, const char *value,
                           bool *used_value) {
    const struct OptionRow *r = find_row(s->option);
    if (!r) return unknown_option(s, near_to(s->option));
    *used_value = r->kind != FLAG;
    if (*used_value && !value) return spec_error(s, "needs a value");
    if (s->loc.file && (r->kind == FLAG || r->kind == SETTER)) {
        if (o->lines & once_bit(r)) return spec_error(s, "is given twice");
        o->lines |= once_bit(r);
    }
    switch (r->kind) {
    case FLAG: *(bool *)((char *)o + r->field) = true; return OK;
    case PATH:
        if (!*value) return spec_error(s, "a path is missing");
        if (s->loc.file)
            return spec_error(s, "is an option of the command line");
        *(Str *)((char *)o + r->field) = intern(value);
        return OK;
    case PATHS: return add_path(o, s, (Strs *)((char *)o + r->field), value);
    case SETTER:
    case ADDER: break;
    }
    s->text = arena_dup(o->arena, value, strlen(value) + 1);
    return r->set(o, s);
}

static Status set_option(Options *o, Spec *s, const char *value,
                         bool *used_value) {
    TRY(apply_option(o, s, value, used_value));
    vec_push(o->arena, &o->said, intern(s->option));
    vec_push(o->arena, &o->said, intern(*used_value ? value : ""));
    return OK;
}

Status options_set(Options *o, Diag *d, const char *name, const char *value,
                   bool *used_value) {
    Spec s = {name, false, {0}, d, o->arena, NULL};
    return set_option(o, &s, value, used_value);
}

/* Removes blanks at both ends and after commas, and quotes around the whole
   text. */
static char *trim_value(char *v) {
    char *to, *from;
    v += strspn(v, " \t");
    size_t n = strlen(v);
    if (n >= 2 && v[0] == '"' && v[n - 1] == '"') {
        v[n - 1] = 0;
        return v + 1;
    }
    for (to = from = v; *from;) {
        *to++ = *from++;
        if (to[-1] == ',') from += strspn(from, " \t");
    }
    *to = 0;
    return v;
}

Status options_set_line(Options *o, Diag *d, const Setting *line) {
    char *text = arena_dup(o->arena, line->text, strlen(line->text) + 1);
    size_t n = strcspn(text, " \t=");
    char *value = text + n + strspn(text + n, " \t"), *name;
    bool given = *value == '=', used;
    if (given) value++;
    text[n] = 0;
    for (char *p = text; *p; p++)
        if (*p == '_') *p = '-';
    name = arena_printf(o->arena, "--%s", text);
    Spec s = {name, false, line->loc, d, o->arena, NULL};
    if (!given && *value) return spec_error(&s, "'=' expected after the name");
    TRY(set_option(o, &s, given ? trim_value(value) : NULL, &used));
    return used || !given ? OK : spec_error(&s, "takes no value");
}

void options_second_source(Options *o) {
    for (int i = 0; i < 2; i++) vec_push(o->arena, &o->said, intern(""));
    o->loss_given = o->only_given = false;
    o->model_dims = o->dims.len;
    o->model_frozen = o->batchnorm_frozen.len;
    o->model_targets = o->targets.len;
    o->model_batches = o->batch_sizes.len;
}

/* ---- said again ---------------------------------------------------------- */

/* "text:FILE" and the file's text stand before the options. */
#define TEXT_OF "text:"

static bool names_file(const char *option) {
    const struct OptionRow *r = find_row(option);
    return r && (r->kind == PATH || r->kind == PATHS);
}

/* Leaves out file names, which do not change any bit of a module. */
void options_words(const Options *o, StrBuf *sb) {
    for (int i = 0; i < o->texts.len; i++) {
        const OptionFile *t = &o->texts.data[i];
        sb_puts(sb, TEXT_OF);
        sb_putn(sb, t->name, strlen(t->name) + 1);
        sb_putn(sb, t->text, strlen(t->text) + 1);
    }
    for (int i = 0; i + 1 < o->said.len; i += 2)
        for (int k = 0; k < 2 && !names_file(o->said.data[i]); k++)
            sb_putn(sb, o->said.data[i + k], strlen(o->said.data[i + k]) + 1);
}

/* All values of row r; false if it was not given. For a file, the value is a
   hash of its contents.
 */
static bool said_of(const Options *o, const struct OptionRow *r,
                    StrBuf *value) {
    bool given = false;
    for (int i = 0; i + 1 < o->said.len; i += 2) {
        if (strcmp(o->said.data[i], r->name) != 0) continue;
        if (r->kind != ADDER) value->len = 0;
        if (r->kind == ADDER && given) sb_puts(value, "; ");
        sb_puts(value, o->said.data[i + 1]);
        given = true;
    }
    if (!given || r->kind != PATH) return given;
    Diag ignored = {0};
    size_t n;
    char *text = read_file(&ignored, value->data, &n);
    value->len = 0;
    sb_printf(value, "%016llx",
              (unsigned long long)(text ? hash_bytes(1, text, n) : 0));
    free(text);
    sb_free(&ignored.text);
    return true;
}

void options_said(const Options *o, uint64_t model, StrBuf *sb) {
    sb_printf(sb, "{\"the model\":\"%016llx\"", (unsigned long long)model);
    for (size_t i = 0; i < sizeof option_rows / sizeof *option_rows; i++) {
        StrBuf value = {0};
        if (option_rows[i].resume == SAME &&
            said_of(o, &option_rows[i], &value)) {
            sb_puts(sb, ",");
            sb_put_json_field(sb, option_rows[i].name, value.data);
        }
        sb_free(&value);
    }
    sb_puts(sb, "}");
}

Status options_again(Options *o, Diag *d, const char *words, size_t n) {
    for (const char *p = words, *end = words + n; p < end;) {
        const char *name = p, *value = p + strlen(p) + 1;
        bool used;
        p = value + (value < end ? strlen(value) + 1 : 0);
        if (!*name)
            options_second_source(o);
        else if (!strncmp(name, TEXT_OF, strlen(TEXT_OF)))
            vec_push(o->arena, &o->texts,
                     (OptionFile){intern(name + strlen(TEXT_OF)),
                                  value < end ? value : ""});
        else if (!names_file(name))
            TRY(options_set(o, d, name, value < end ? value : NULL, &used));
    }
    return OK;
}
