/* SPDX-License-Identifier: Apache-2.0 */
/* run_data.c: what a run says of its data. */
#include <string.h>

#include "frontend/run/run_cmd.h"

/* The target of a language model begins one token later than its input. */
static void tell_same_tokens(const FeedSet *set, StrBuf *sb) {
    for (int i = 0; i < set->n; i++)
        for (int k = 0; k < set->n; k++) {
            const Feed *f = &set->feed[i], *other = &set->feed[k];
            if (i == k || !f->a.windows || !other->a.windows ||
                f->a.at != other->a.at || strcmp(f->path, other->path) != 0 ||
                strncmp(f->want.name, "target", 6) != 0)
                continue;
            sb_put_escaped(sb, f->want.name);
            sb_puts(sb, ": the same tokens as ");
            sb_put_escaped(sb, other->want.name);
            sb_puts(sb, "; FILE:+1 feeds the next token of each\n");
        }
}

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
    run_classes_tell(r, sb);
    tell_same_tokens(&r->train, sb);
    augment_tells(&r->opt->augment, sb);
}
