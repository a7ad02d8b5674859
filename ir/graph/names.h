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
/* Sizes of a program other than the model's own: "8" for batches of 8,
   "T=64,H=8" for those of dimensions, "8,T=64" for both; "": the own sizes.
   program_of_name: PROGRAM_NONE: no program's name.  *objective: "" or its
   name; *size: that of NAME@SIZE. */
ProgramKind program_of_name(const char *name, Str *objective, Str *size);
/* "predict@8"; for the own sizes the name itself. */
Str name_at_size(Str name, Str size);
/* The batch among the sizes; 0: the module's own batch. */
int64_t size_batch(Str size);
/* True if a dimension is among the sizes. */
bool size_has_dims(Str size);
/* Appends NAME=N to the sizes, with a name of letters, digits and '_'. */
Str size_with_dim(Str size, Str name, int64_t n);
Str own_output(OwnOutput o, Str objective);

/* "ampc.grad/NAME"; whether a name has that form; and its NAME, or NULL. */
Str family_name(Family f, Str of);
bool family_has(Family f, Str name);
Str family_member(Family f, Str name);

#endif
