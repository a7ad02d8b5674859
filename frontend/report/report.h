/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: reports on a module: text for people, JSON for tools. */
#ifndef AMPC_REPORT_H
#define AMPC_REPORT_H

#include "ir/ir.h"

typedef void ReportFn(const Module *m, bool json, StrBuf *sb);
/* report_params.c: what trains, what does not, and why; at any stage */
ReportFn report_params;
/* One line: how much trains, what trains by guess, and what looks as if it
   would train but does not. */
void report_trained(const Module *m, StrBuf *sb);
/* From stage CAST on: nodes as policy lines call them: op, class, layer.
 */
ReportFn report_nodes;
ReportFn report_casts;  /* PLANNED: every cast and every value in memory:
                           where, why, bytes a step                          */
ReportFn report_memory; /* PLANNED: arena and variables, bytes               */
/* PLANNED: one line a group, and its note (EmitInput.compiled); why: the reason
   why GPU code is missing. */
void report_kernels(const Module *m, bool json, const char *const *notes,
                    const char *why, StrBuf *sb);
/* PLANNED: what trains; what attention is left in parts; and, but for fp32,
   what is 16 bits and why the rest is not. */
void report_summary(const Module *m, StrBuf *sb);
/* PLANNED: the bytes that a step of it moves. */
int64_t report_bytes(const Module *m);

/* The page (report_page.html), a line a string; the last is NULL. */
extern const char *const report_page_lines[];

#endif
