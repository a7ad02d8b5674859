/* SPDX-License-Identifier: Apache-2.0 */
/* near.h: "did you mean": of the words that there are, the one most like a word
   that is none of them.  Every message that refuses a name asks here.       */
#ifndef AMPC_IR_BASE_NEAR_H
#define AMPC_IR_BASE_NEAR_H

#include <stddef.h>

typedef struct Near {
    const char *word, *best; /* best NULL: none is like it */
    int apart;               /* the best one's distance    */
} Near;

static inline Near near_to(const char *word) { return (Near){word, NULL, 0}; }
/* One of the words that there are; NULL is none. */
void near_offer(Near *n, const char *candidate);
/* "; did you mean 'x'?" or "", in `text`. */
enum { NEAR_TEXT = 160 };
const char *near_text(const Near *n, char text[NEAR_TEXT]);

#endif
