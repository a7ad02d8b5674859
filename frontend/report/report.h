/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: reports on a module: text for people, JSON for tools. */
#ifndef AMPC_REPORT_H
#define AMPC_REPORT_H

#include "ir/base/facts.h"
#include "ir/ir.h"

typedef void ReportFn(const Module *m, bool json, StrBuf *sb);
/* report_params.c: what trains, what does not, and why; works at any stage */
ReportFn report_params;
/* One line: how much trains, what trains by a guess, and what looks like a
   parameter but does not train. */
void report_trained(const Module *m, StrBuf *sb);
/* From stage CAST on: nodes by the names that policy lines use: op, class,
   layer.
 */
ReportFn report_nodes;
ReportFn report_casts;  /* PLANNED: every cast and every stored value: where,
                           why, bytes per step */
ReportFn report_memory; /* PLANNED: bytes of the arena and of variables */
/* PLANNED: one line a group, and its note (EmitInput.compiled); why: the reason
   why GPU code is missing. */
void report_kernels(const Module *m, bool json, const char *const *notes,
                    const char *why, StrBuf *sb);
/* PLANNED: what trains; which attention is not fused; and, unless fp32, what
   is 16 bits and why the rest is not. */
void report_summary(const Module *m, StrBuf *sb);
/* PLANNED: the bytes that one step moves. */
int64_t report_bytes(const Module *m);

/* ---- for the files of this room ------------------------------------------ */

void fact_type(Facts *f, const char *key, TypeId t);
/* "forward", "backward", .. */
const char *report_part_of(const Node *n);

#endif
