/* SPDX-License-Identifier: Apache-2.0 */
/* json.h: a small strict JSON reader (RFC 8259) that allocates nothing.

   json_parse checks a whole text once; all other functions walk text that
   passed the check.  A JsonSpan is the text of one value.                   */
#ifndef AMPC_JSON_H
#define AMPC_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct JsonSpan {
    const char *p;
    size_t n;
} JsonSpan;

/* Checks a text that must be a single value; false if it is not JSON, or
   nested deeper than 32. */
bool json_parse(const char *text, size_t n, JsonSpan *value);

bool json_is_object(JsonSpan v);
bool json_is_array(JsonSpan v);
bool json_is_string(JsonSpan v);

typedef struct JsonIter {
    const char *p, *end;
} JsonIter;

/* Walks the members of an object or the items of an array (key is
   unchanged); other values have none. */
JsonIter json_iter(JsonSpan v);
bool json_next(JsonIter *it, JsonSpan *key, JsonSpan *value);

/* Finds a member of an object; false if it is absent. Among equal keys the
   first counts. */
bool json_get(JsonSpan object, const char *key, JsonSpan *value);

/* A string's characters as UTF-8. json_text writes at most cap bytes, ends
   with NUL, and returns the length; -1 if there is no room or the value is
   not a string or contains NUL. */
bool json_equals(JsonSpan string, const char *text);
int64_t json_text(JsonSpan string, char *buf, size_t cap);

/* True for well-formed UTF-8, which JSON files must have; json_parse accepts
   other bytes, too. */
bool json_is_utf8(const char *text, size_t n);

/* Integers without fraction or exponent; any numbers. The locale's decimal
   point must be '.'. */
bool json_int(JsonSpan v, int64_t *out);
bool json_double(JsonSpan v, double *out);

#endif
