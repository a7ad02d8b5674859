/* SPDX-License-Identifier: Apache-2.0 */
/* run_data.c: what a run says of its data. */
#include <string.h>

#include "frontend/run/run_cmd.h"

void run_tell_data(const Run *r, const FeedSet *const *sets, int n,
                   StrBuf *sb) {
    for (int k = 0; k < n; k++)
        for (int i = 0; i < sets[k]->n; i++) {
            StrBuf line = {0};
            Fed fed = feed_facts(&sets[k]->feed[i], sets[k]->samples);
            fed_tells(&fed, &line);
            if (line.len && (!sb->len || !strstr(sb->data, line.data)))
                sb_putn(sb, line.data, line.len);
            sb_free(&line);
        }
    augment_tells(&r->opt->augment, sb);
}
