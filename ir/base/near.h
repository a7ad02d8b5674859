/* SPDX-License-Identifier: Apache-2.0 */
/* near.h: "did you mean": for an unknown word, finds the most similar known
   word. Every message that refuses a name calls it. */
#ifndef AMPC_IR_BASE_NEAR_H
#define AMPC_IR_BASE_NEAR_H

#include <stddef.h>

typedef struct Near {
    const char *word, *best; /* best NULL: no word is similar */
    int apart;               /* the distance of the best word */
} Near;

static inline Near near_to(const char *word) { return (Near){word, NULL, 0}; }
/* Compares with one of the known words; NULL is ignored. */
void near_offer(Near *n, const char *candidate);
/* "; did you mean 'x'?" or "", in `text`. */
enum { NEAR_TEXT = 160 };
const char *near_text(const Near *n, char text[NEAR_TEXT]);

#endif
