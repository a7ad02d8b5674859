/* SPDX-License-Identifier: Apache-2.0 */
/* type_rule.h: rows of type_rule_test. */
#ifndef AMPC_TYPE_RULE_H
#define AMPC_TYPE_RULE_H

typedef struct Row {
    const char *inputs; /* of the graph */
    const char *line;   /* one node */
    const char *want;   /* types of the results, or "! part of the message" */
} Row;

extern const Row block_rows[]; /* blocks.c */
extern const int nblock_rows;

#endif
