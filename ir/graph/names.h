/* SPDX-License-Identifier: Apache-2.0 */
/* names.h: the names that the compiler gives, from the table that it shares
   with the runtime.                                                         */
#ifndef AMPC_IR_GRAPH_NAMES_H
#define AMPC_IR_GRAPH_NAMES_H

#include "ir/base/base.h"

/* The graph that a frontend builds; pass `programs` turns it into programs. */
#define FORWARD "forward"

typedef enum ProgramKind {
#define PROGRAM(id, text) PROGRAM_##id,
#include "runtime/program/names.def"
    PROGRAM_NONE
} ProgramKind;

typedef enum OwnVar {
#define VARIABLE(id, text, kind, dtype, n, each, section, least, most) OWN_##id,
#include "runtime/program/names.def"
    NUM_OWN_VARS
} OwnVar;

typedef enum OwnOutput {
#define OUTPUT(id, text) OUT_##id,
#include "runtime/program/names.def"
    NUM_OWN_OUTPUTS
} OwnOutput;

typedef enum Family {
#define FAMILY(id, prefix) FAMILY_##id,
#include "runtime/program/names.def"
    NUM_FAMILIES
} Family;

/* True if only the compiler may give the name. */
bool name_is_own(const char *name);

/* "TEXT", or "TEXT:OBJECTIVE" for a named objective; whether `name` has that
   form. */
Str name_for_objective(const char *text, Str objective);
bool name_has_objective(const char *name, const char *text, Str *objective);

/* "train", or "train:NAME" for a named objective. */
Str program_name(ProgramKind p, Str objective);
/* PROGRAM_NONE: no program's name.  *objective: "" or its name; *batch: 0, or
   the number of NAME@N. */
ProgramKind program_of_name(const char *name, Str *objective, int64_t *batch);
/* "predict@8": `name` for batches of 8; for a batch of 0 the name itself. */
Str name_at_batch(Str name, int64_t batch);
Str own_output(OwnOutput o, Str objective);

/* "ampc.grad/NAME"; whether a name has that form; and its NAME, or NULL. */
Str family_name(Family f, Str of);
bool family_has(Family f, Str name);
Str family_member(Family f, Str name);

#endif
