/* SPDX-License-Identifier: Apache-2.0 */
/* facts.h: what a report says of one thing, said once: a list of facts with
   keys. Tools read the list as an object of JSON; people read a line, in which
   {key} stands for a fact. */
#ifndef AMPC_IR_BASE_FACTS_H
#define AMPC_IR_BASE_FACTS_H

#include "ir/base/base.h"

enum { MOST_FACTS = 64 };

typedef struct Facts {
    bool json;
    int n;
    const char *key[MOST_FACTS];
    const char *before[MOST_FACTS]; /* of a fact in the object */
    size_t end[MOST_FACTS];         /* of the fact, in `text` */
    StrBuf text;
} Facts;

/* Several things of one kind. */
typedef struct FactList {
    bool json, lines;
    const char *between;
    int n;
    StrBuf text;
} FactList;

/* Each appends a fact. In the line, `words` is its text, with the value at the
   place of the conversion; NULL: the value alone. */

/* A word of ours; "" is not in the line. */
void fact_word(Facts *f, const char *key, const char *word, const char *words);
/* A name of the user's: is escaped and follows `words`; NULL: JSON has "", and
   the line has `none`. */
void fact_name(Facts *f, const char *key, const char *name, const char *words,
               const char *none);
void fact_int(Facts *f, const char *key, long long v, const char *words);
/* The same values in both forms; and facts of one form alone. */
void fact_form(Facts *f, const char *key, const char *json, const char *words,
               ...) __attribute__((format(printf, 3, 5), format(printf, 4, 5)));
void fact_words(Facts *f, const char *key, const char *words, ...)
    PRINTF_LIKE(3, 4);
void fact_json(Facts *f, const char *key, const char *json, ...)
    PRINTF_LIKE(3, 4);
/* The line has the words if it is true. */
void fact_bool(Facts *f, const char *key, bool yes, const char *words);
/* A number with its key in a row of its own; `row` NULL: the line has none. */
void fact_row(Facts *f, const char *key, long long v, const char *row);
/* A text that is spelled already, which is freed: in JSON a value, or whole
   members without the key, if there are any. */
void fact_text(Facts *f, const char *key, StrBuf *value);
void fact_members(Facts *f, const char *key, StrBuf *members);
/* Facts of a part, as facts_put prints and frees them. */
void fact_part(Facts *f, const char *key, Facts *part, const char *line);
/* All things of the list, which is freed. */
void fact_list(Facts *f, const char *key, FactList *l);
/* In JSON the next fact begins a line. */
void fact_break(Facts *f);

/* Prints the object, or the line with its facts, and frees the list. A fact
   that was not appended is not in the line; NULL: the line is all facts. */
void facts_put(Facts *f, const char *line, StrBuf *sb);
/* The same, but the object without its braces. */
void facts_put_members(Facts *f, const char *line, StrBuf *sb);

/* A list of things that each have a line in both forms, and one of things
   that one of the texts separates. */
FactList fact_lines(bool json);
FactList fact_series(bool json, const char *between_json,
                     const char *between_words);
/* The place of the next thing; a word as the next thing. */
StrBuf *fact_next(FactList *l);
void fact_next_word(FactList *l, const char *word);
/* Prints the list, in JSON as a line, and frees it. */
void fact_list_put(FactList *l, StrBuf *sb);

#endif
