/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.h: a model of several random graphs with parameters, whose
   losses are added, data for it, and its gradients in double by the
   interpreter, compared with differences of the loss. */
#ifndef AMPC_TESTS_SUPPORT_RANDOM_MODEL_H
#define AMPC_TESTS_SUPPORT_RANDOM_MODEL_H

#include "ir/ir.h"
#include "tests/support/compiled.h"
#include "tests/support/update_rule.h"

enum { PARTS = 4, MOST_INPUTS = 4 * PARTS };

typedef struct Model Model;

/* One of the graphs: as part of the module, and alone for the oracle. */
typedef struct Part {
    Model *model;
    int number, first; /* number of its parameters, and the first one's index in
                          the model */
    int nparam;
    Module
        *alone;   /* the part alone: its parameters are inputs after the data */
    Graph *grads; /* its gradients */
} Part;

struct Model {
    Arena *a;
    Module *m;
    const char *text;
    Part part[PARTS];
    Str name[UPDATE_PARAMS];
    TypeId type[UPDATE_PARAMS];
    bool trains[UPDATE_PARAMS]; /* the loss depends on it */
    int nparam;
    UpdateTensors initial;
    Str input[MOST_INPUTS];
    TypeId input_type[MOST_INPUTS];
    int ninput;
};

typedef struct Batch {
    ampc_input in[MOST_INPUTS];
} Batch;

void random_model_make(Model *m, uint64_t seed); /* arena_free(m->a) ends it */
int random_model_elements(const Model *m, int param);
Batch random_batch(const Model *m, int number);
/* Gives o the initial state of the model. */
void random_model_begin(const Model *m, UpdateOracle *o, const UpdateRule *r);
/* Adds the batch's loss and gradients. */
void random_model_feed(const Model *m, UpdateOracle *o, const Batch *b);

#endif
