/* SPDX-License-Identifier: Apache-2.0 */
/* near.c: see near.h. */
#include "ir/base/near.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 64 };

static int least(int a, int b) { return a < b ? a : b; }

static bool near_same(char a, char b) {
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* Number of letters to insert, delete, change or swap with the next one,
   ignoring case; both words are shorter than LONGEST. */
static int distance(const char *a, const char *b) {
    int row[3][LONGEST + 1], n = (int)strlen(a), m = (int)strlen(b);
    for (int k = 0; k <= m; k++) row[0][k] = k;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3],
            *above = row[(i + 1) % 3];
        now[0] = i;
        for (int k = 1; k <= m; k++) {
            int change = up[k - 1] + !near_same(a[i - 1], b[k - 1]);
            now[k] = least(change, 1 + least(up[k], now[k - 1]));
            if (i > 1 && k > 1 && near_same(a[i - 1], b[k - 2]) &&
                near_same(a[i - 2], b[k - 1]))
                now[k] = least(now[k], above[k - 2] + 1);
        }
    }
    return row[n % 3][m];
}

void near_offer(Near *n, const char *candidate) {
    if (!candidate || !*n->word || !*candidate) return;
    size_t a = strlen(n->word), b = strlen(candidate);
    size_t shorter = a < b ? a : b, longer = a < b ? b : a;
    int most =
        (int)(shorter + 2) / 3; /* more differing letters: another word */
    if (longer >= LONGEST || longer - shorter > (size_t)most) return;
    int apart = distance(n->word, candidate);
    if (apart > most || (n->best && apart >= n->apart)) return;
    n->best = candidate;
    n->apart = apart;
}

const char *near_text(const Near *n, char text[NEAR_TEXT]) {
    *text = 0;
    if (n->best) snprintf(text, NEAR_TEXT, "; did you mean '%.100s'?", n->best);
    return text;
}
