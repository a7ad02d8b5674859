/* SPDX-License-Identifier: Apache-2.0 */
/* options_spec.h: the value of a compile option, read piece by piece; specs of
   the form name,key=value,... share one reader.  Each option has a setter. */
#ifndef AMPC_FRONTEND_CLI_OPTIONS_SPEC_H
#define AMPC_FRONTEND_CLI_OPTIONS_SPEC_H

#include "ir/fn/fn.h"
#include "passes/options.h"

/* The value of an option, read piece by piece. */
typedef struct Spec {
    const char *option; /* for messages */
    bool nested;        /* the option is a key of --objective */
    Loc loc;            /* location in the text that sets it */
    Diag *d;
    Arena *arena;
    char *text; /* rest of the value, cut at commas; NULL: at the end */
} Spec;

/* The message "OPTION: ..", and the status that goes with it. */
PRINTF_LIKE(2, 3)
Status spec_error(const Spec *s, const char *fmt, ...);

/* Next comma-separated piece, or NULL. */
char *spec_next(Spec *s);

/* strtod and strtoll skip spaces and accept words; a number here must begin
   as a number. */
bool spec_starts_number(const char *text);
/* key: the key whose value the text is; "": the value of the option itself. */
Status spec_number(const Spec *s, const char *key, const char *text,
                   double *out);
Status spec_integer(const Spec *s, const char *text, int64_t lo, int64_t hi,
                    int64_t *out);

/* Numbers become f32, so that none may be above f32's range, or be below it
   unless 0. */
#define MOST  1e38
#define LEAST 1e-37
#define COUNT 1e15 /* integers that a double represents exactly */

typedef struct SpecKey {
    const char *name;
    double *real;
    int64_t *integer;
    bool *flag;
    double lo, hi;    /* legal values */
    bool open;        /* the range excludes hi */
    bool whole;       /* an integer */
    Reals *list;      /* separated by slashes */
    double *share;    /* "5%" goes there */
    const char *word; /* also accepts this word instead of a number, and
                         tells which was given */
    bool *said;
    const char *const *words; /* legal values; *choice: the index of the one
                                 given */
    int *choice;
} SpecKey;

Status spec_assign(const Spec *s, const SpecKey *k, char *value);
/* The rest of a spec: key=value pieces; a bare flag key means 1. */
Status spec_keys(Spec *s, const SpecKey *keys);

/* The index of the word in the list; spec_word: -1 if the word is not in it. */
int spec_word(const char *const *words, const char *w);
Status spec_pick(const Spec *s, const char *const *words, const char *word,
                 int *out);
/* The whole text as one of two words; *out: true for the second. */
Status spec_switch(const Spec *s, const char *off, const char *on, bool *out);

/* The whole text as a limit, which is above 0. */
Status spec_limit(const Spec *s, double *out);

/* The command line's entries of a list replace the model's entries. */
void over_model(int *len, int *of_model);

/* The objective to which the option belongs: the only one, or the one that
   --objective is reading. */
Status spec_objective(Options *o, const Spec *s, Objective **j);

/* ---- setters ------------------------------------------------------------- */

typedef Status Setter(Options *o, Spec *s);

/* One setter for each row of options.def that names it. */
#define DECLARE_SETTER(function) Setter function;
#define DECLARE_ADDER(function)  Setter function;
#define DECLARE_FLAG(field)
#define DECLARE_PATH(field)
#define DECLARE_PATHS(field)
#define COMPILE(flag, kind, what, resume, value, preset, text)                 \
    DECLARE_##kind(what)
#include "frontend/cli/options.def"
#undef DECLARE_SETTER
#undef DECLARE_ADDER
#undef DECLARE_FLAG
#undef DECLARE_PATH
#undef DECLARE_PATHS

/* ---- words, said again --------------------------------------------------- */

extern const char *const precision_words[];
extern const char *const lora_biases[];   /* by LoraBias */
extern const char *const frozen_dtypes[]; /* by FrozenDtype, from BF16 on */

/* The name of a loss, as the command line spells it. */
const char *loss_word(const LossSpec *l);
/* The name of a gradient transform on the command line; NULL: f is another
   function. */
const char *transform_word(const Fn *f);

#endif
