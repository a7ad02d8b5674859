/* SPDX-License-Identifier: Apache-2.0 */
/* facts.h: what a report says of one thing, said once: a list of facts with
   keys. Tools read the list as an object of JSON; people read a line, in which
   {key} stands for a fact. */
#ifndef AMPC_FRONTEND_REPORT_FACTS_H
#define AMPC_FRONTEND_REPORT_FACTS_H

#include "ir/ir.h"

enum { MOST_FACTS = 16 };

typedef struct Facts {
    bool json;
    int n;
    const char *key[MOST_FACTS];
    size_t end[MOST_FACTS]; /* of the fact, in `text` */
    StrBuf text;
} Facts;

/* Each appends a fact. In the line, `words` is its text, with the value at the
   place of the conversion; NULL: the value alone. */

/* A word of ours; "" is not in the line. */
void fact_word(Facts *f, const char *key, const char *word, const char *words);
/* A name of the user's: is escaped and follows `words`; NULL: JSON has "", and
   the line has `none`. */
void fact_name(Facts *f, const char *key, const char *name, const char *words,
               const char *none);
void fact_type(Facts *f, const char *key, TypeId t);
void fact_int(Facts *f, const char *key, long long v, const char *words);
void fact_real(Facts *f, const char *key, double v, const char *json,
               const char *words);
/* The line has the words if it is true. */
void fact_bool(Facts *f, const char *key, bool yes, const char *words);

/* Prints the object, or the line with its facts, and frees the list. A fact
   that was not appended is not in the line. */
void facts_put(Facts *f, const char *line, StrBuf *sb);

#endif
