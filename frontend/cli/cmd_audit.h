/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_audit.h: what `ampc audit` runs beside a module: its own training step,
   compiled anew from the IR that it keeps, with roundings that can be turned
   off (passes/common/twin.h); and what the command has measured.            */
#ifndef AMPC_FRONTEND_DRIVER_CMD_AUDIT_H
#define AMPC_FRONTEND_DRIVER_CMD_AUDIT_H

#include "codegen/section.h"
#include "frontend/cli/cmd.h"
#include "frontend/run/run_cmd.h"
#include "passes/common/twin.h"

/* A gradient as a range of the array that holds all gradients. */
typedef struct ReplicaGrad {
    Str name;
    int64_t at, count;
} ReplicaGrad;

typedef struct Replica {
    RunOptions opt;
    Run run;
    bool unfused; /* set before it is loaded: one kernel for each node. These
                     run longer than fused ones, but compile faster */
    TwinSites sites;
    VEC(ReplicaGrad) grads;
    int64_t count;  /* elements of all gradients together */
    ampc_input *in; /* the batch's inputs, and one switch for each rounding */
    char *on;       /* what these say */
} Replica;

/* Section "ir:place" of a module, or "ir:keep" if it has --keep f8; with policy
   lines, the IR before pass policy compiled with them up to that pass. */
Status audit_module(Session *s, const SectionFile *f, const Settings *lines,
                    Module **m);
/* Whether the module was compiled with limits of errors. */
Status audit_budget(Session *s, const SectionFile *f, bool *budget);
/* The bytes that a training step moves with these lines. */
Status audit_bytes(Session *s, const SectionFile *f, const Settings *lines,
                   int64_t *bytes);

/* Compiles m from pass `first` on for this machine's CPU, and opens it. */
Status replica_load(Session *s, Module *m, const char *first, int64_t threads,
                    Replica *r);
/* Finds the outputs "loss" and "grad/NAME" of the program. */
Status replica_grads(Session *s, Replica *r);
/* Copies a gradient of the last run into the array of all gradients. */
Status replica_grad(Session *s, const Replica *r, const ReplicaGrad *g,
                    float *grad);
/* The module's step with roundings as switches; m as audit_module returns
   it. */
Status replica_open(Session *s, Module *m, Str objective, int64_t threads,
                    Replica *r);
/* The variables of the module's session. */
Status replica_weights(Session *s, Replica *r, Run *from);
/* Runs one batch; roundings are on where on[i], or everywhere if on is NULL. */
Status replica_step(Session *s, Replica *r, const FeedSet *feed, const bool *on,
                    double *loss, float *grad);
void replica_close(Replica *r);

/* ---- the command --------------------------------------------------------- */

/* How far a step is from fp32: relative, root mean square over batches. */
typedef struct Apart {
    double loss, grad;
} Apart;

typedef struct Audit {
    Session *s;
    RunOptions opt;
    Run run; /* the module */
    SectionFile file;
    FeedSet feed;
    Replica step;
    Str objective;
    const char *policy; /* --policy FILE */
    int64_t batches;
    bool json, opened, budget;
    float *ref, *grad;   /* in fp32, batch by batch; of the current step */
    double *loss, *wide; /* loss of each batch: in 16 bits, in fp32 */
    double *param;       /* per gradient: difference */
    double *part; /* per gradient: its share of all in fp32, squared, at most */
    double own;   /* the loss of the module itself, first batch   */
    float scale, first_scale; /* of the loss: measured with, and the module's;
                                 0: none */
    bool overflows;           /* the gradient, at that scale, too */
    Apart all, first;         /* over all batches, in the first */
    Apart same;               /* .. without codes of 8 bits */
    int codes;                /* number of values that have these */
    Apart *alone;             /* per rounding, in the first batch */
    VEC(Str) nodes;           /* nodes of the lines */
    Settings lines;
    Apart less, estimate; /* with the lines: measured, and estimated from the
                             roundings */
    int64_t bytes, more;  /* bytes of a step, without and with the lines */
} Audit;

/* The part of the original difference that is left in a step: the larger of the
   parts in loss and gradient. */
double audit_left(const Audit *a, const Apart *x);
/* What a rounding adds to the squares of both, relative to all of them. */
double audit_weight(const Audit *a, int site, bool by_bytes);
/* The roundings, sorted by weight or by weight per byte, largest first. */
int *audit_order(const Audit *a, bool by_bytes);

void audit_put_text(const Audit *a, StrBuf *sb);
void audit_put_json(const Audit *a, StrBuf *sb);

#endif
