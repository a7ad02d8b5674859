/* SPDX-License-Identifier: Apache-2.0 */
/* fuse.h: declarations shared by the files of pass fuse.

   fuse_prep.c    copies nodes so that fusion can place them well
   fuse_fit.c     may these nodes be one group (the promises of codegen.h)?
   fuse.c         which groups merge; node order */
#ifndef AMPC_PASSES_TARGET_FUSE_H
#define AMPC_PASSES_TARGET_FUSE_H

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
    bool *escapes;   /* per value: an output, written to a variable, or read by
                        a VIEW */
    int *position;   /* per node */
    int *cluster_of; /* by NodeId.i; -1: a VIEW */
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

#endif
