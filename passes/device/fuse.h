/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.h: declarations shared by the files of pass fuse.

   fuse_prep.c       copies nodes so that fusion can place them well
   fuse_fit.c        may these nodes be one group (the promises of codegen.h)?
   fuse_clusters.c   clusters, their order, and the merge of two
   fuse_pays.c       which merges pay
   fuse_losses.c     a loss and its gradient as one group
   fuse.c            the merges, in order of worth; node order */
#ifndef AMPC_PASSES_TARGET_FUSE_H
#define AMPC_PASSES_TARGET_FUSE_H

#include "passes/device/guard.h"
#include "passes/passes.h"
#include "passes/device/target.h"

#define RANK_STEP (INT64_C(1) << 32) /* room for clusters that move */

typedef struct NodeList {
    NodeId *data;
    int len, cap;
} NodeList;

/* A group under construction. */
typedef struct Cluster {
    GroupKind kind;
    NodeList nodes; /* in graph order                                        */
    int64_t rank;   /* it grows along a topological order of clusters, */
    int prev, next; /* neighbours in that order; -1: the end */
    uint64_t pivots, behind, before; /* bit masks of pivots: inside,
                                        reachable, reaching */
    int part;  /* part of the step of its earliest node: forward 0, backward
                  1, update 2 */
    int chunk; /* Loc.chunk of its nodes */
    bool before_chunks, after_chunks; /* chunks read its results; it reads
                                         results of chunks */
    bool codes, back; /* forward makes codes there (codes.h); a part of the
                         backward pass is there */
    Guard guard;      /* of all of its nodes */
    bool dead;   /* merged away                                           */
    bool placed; /* in the result                                         */
} Cluster;

typedef struct Reached {
    int cluster;
    int64_t rank;
} Reached;

/* Some of the index maps at which a kernel computes a node: fuse_fit.c. */
typedef struct Places {
    uint32_t at[3];
    int n;
} Places;

typedef struct Fuse {
    Graph *g;
    const TargetInfo *target;
    Arena *a; /* pass scratch */
    UserIndex users;
    bool *escapes; /* per value: an output, written to a variable, or read by
                      a VIEW */
    const Guard *guard; /* of guards_of() */
    NodeList *waiting;  /* per value: the nodes whose condition it is;
                           NULL: no node has one */
    int *position;      /* per node */
    int *cluster_of;    /* by NodeId.i; -1: a VIEW */
    VEC(Cluster) clusters;
    int first;            /* first cluster in rank order */
    VEC(Reached) reached; /* clusters found by a search */
    int steps;            /* steps left in this search */
    int64_t steps_left;   /* steps left for all long searches together */
    NodeList joined;      /* scratch of a merge                              */
    VEC(int) placed;      /* clusters in their final order */
    bool *closed;  /* per node: all operands except constants are computed in
                      its cluster, and no other cluster reads them */
    int marked[2]; /* clusters whose nodes fuse_fit.c examines */
    unsigned *value_mark, stamp;
    unsigned *cluster_mark, cluster_stamp;
    int *depth;     /* per node: scratch of fuse_fit.c */
    Places *places; /* the same */
} Fuse;

static inline OpKind kind_of(const Graph *g, NodeId n) {
    return node_kind(node_get(g, n));
}

static inline Cluster *cluster(Fuse *f, int c) { return &f->clusters.data[c]; }

/* The node that computes v, or none. */
static inline NodeId maker_node(const Graph *g, ValueId v) {
    return g->values.data[v.i].def;
}

/* Cluster that computes v; -1: none (input, variable, constant, VIEW). */
static inline int maker(const Fuse *f, ValueId v) {
    return f->cluster_of[maker_node(f->g, v).i];
}

/* ---- fuse_prep.c --------------------------------------------------------- */

/* Gives every result that the host or a variable receives a buffer of its
   own, and (unless every node becomes a group) copies generators, expands
   and cheap element-wise nodes to each of their users. */
void fuse_prepare(Graph *g, Arena *scratch, bool copy_nodes);
/* The result of element-wise work that n, by cheap work with it and
   constants, converts to a wider type; or none. */
ValueId fuse_widened(const Graph *g, NodeId n);

/* ---- fuse_fit.c ---------------------------------------------------------- */

/* True if the nodes of clusters a and b (in graph order) can form one legal
   group of that kind. */
bool fuse_fits(Fuse *f, GroupKind kind, const NodeList *nodes, int a, int b);
/* Shape of the values that leave a POINT cluster; NULL if there is none. */
const Type *fuse_domain(Fuse *f, int cluster);
/* The first REDUCE node of the list along its rows, else the first REDUCE
   node, or none. */
NodeId fuse_reduce_node(const Graph *g, const NodeList *nodes);
bool fuse_same_reduction(const Graph *g, NodeId a, NodeId b);

/* ---- fuse_clusters.c ----------------------------------------------------- */

/* The readers of each value, and where nodes run. */
void fuse_index_users(Fuse *f);
void fuse_start_clusters(Fuse *f);
/* The values that chunks of rows (stream.c) read, and the readers of their
   results. */
void fuse_mark_chunks(Fuse *f);
/* Codes of state are long: twice as many nodes for rows of an update. */
int fuse_most_nodes(const Fuse *f, const Cluster *x);
/* The merged cluster keeps the number of a and has the greater kind (POINT <
   ROW < ANCHOR; a pool after an ANCHOR has that kind); fuse_fits refuses
   other combinations. */
bool fuse_merge(Fuse *f, int a, int b);

/* ---- fuse_pays.c --------------------------------------------------------- */

bool fuse_other_users(const Fuse *f, ValueId v, int a, int b);
int64_t fuse_bytes_of(const Fuse *f, ValueId v);
/* Work of a later part may join an earlier cluster only if this removes
   buffers at least as large as the buffers of its results, which then live for
   half a step. */
bool fuse_parts_agree(const Fuse *f, int a, int b);
/* True for a cluster c of one later node that turns a value, which nothing
   else in that part reads or keeps, into one of at most half its size (the
   mask of a relu): computed early, the smaller value is stored instead. */
int fuse_keeps_instead(Fuse *f, int c);
/* True if v needs a buffer anyway: the host, a VIEW, a library routine, several
   clusters or another chunk of rows read it. */
bool fuse_stored_anyway(const Fuse *f, ValueId v);
/* If the product is stored for other readers, too, an epilogue with a second
   result is worthwhile only if that result cannot better merge with its one
   reader. */
bool fuse_epilogue_pays(Fuse *f, int anchor, int c);
int64_t fuse_full_count(const Fuse *f, int row);
/* Element-wise work on rows costs nothing in a ROW cluster, and on small
   tensors a launch costs more than the work; other full work must share a
   tensor. Point-wise work of the update stays in one piece, unless all that
   it makes is read in the ROW cluster, or rows are blocks of state. */
bool fuse_row_neighbour_pays(Fuse *f, int row, int c);
/* True if the producer p may be computed inside consumer c: element by
   element, or for a short p that is read once at another index. */
bool fuse_chain_pays(Fuse *f, int p, int c);

/* ---- fuse_losses.c ------------------------------------------------------- */

/* A loss of rows and its gradient become one kernel, which still has the
   rows in registers or cache, if the gradient needs only rows and takes no
   more memory than the values that only the two read. (Its other parts,
   which would close cycles with the gradient, come later.) */
void fuse_join_losses(Fuse *f);

#endif
