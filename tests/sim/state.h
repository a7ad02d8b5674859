/* SPDX-License-Identifier: Apache-2.0 */
/* state.h: declarations that the files of the simulated driver share.

   Work is a separate graph: every queued operation knows its predecessors (the
   stream's previous one, events, nodes of a CUDA graph), and nothing runs
   before something waits for it. Then ready work is drawn at random until
   the awaited work is done. All of this is protected by one lock. */
#ifndef AMPC_TESTS_SIM_STATE_H
#define AMPC_TESTS_SIM_STATE_H

#include "tests/sim/engine.h"

/* Entry points with the names of driver.def: drv_Init is cuInit. */
#define CU(member, symbol, params)                                             \
    SIM_API CUresult drv_##member params __asm__(symbol);
#include "runtime/cuda/driver.def"
#undef CU

enum {
    CUDA_CAPTURE_MERGE = 902,
    CUDA_CAPTURE_UNMATCHED = 903,
    CUDA_CAPTURE_ISOLATION = 905,
    CUDA_CAPTURE_IMPLICIT = 906
};

/* ---- objects ------------------------------------------------------------- */

typedef enum ObjectKind {
    OBJ_CONTEXT,
    OBJ_MODULE,
    OBJ_STREAM,
    OBJ_EVENT,
    OBJ_GRAPH,
    OBJ_EXEC,
    OBJ_NKIND
} ObjectKind;
extern const char *const object_name[OBJ_NKIND];

/* The first member of everything that has a handle. */
typedef struct Object {
    ObjectKind kind;
    int number;
    CUcontext context;
    struct Object *next;
} Object;

/* A zeroed object of the current context, added to the list; NULL: out of
   memory. */
void *object_new(ObjectKind kind, size_t size);
bool object_is(ObjectKind kind, const void *handle);
void object_free(void *o); /* removes it from the list */
Object *object_first(void);

struct CUctx_st {
    Object o;
    CUdevice device;
    int retained;
    CUresult sticky; /* after a fault every call fails with it */
    struct CUstream_st *legacy;
};

/* ---- jobs: what is done, once or at every replay ------------------------- */

typedef struct Job {
    int refs;
    const char *name;
    int (*run)(void *data);
    void (*release)(void *data); /* may be NULL; includes data itself */
    void *data;
} Job;

/* Takes ownership of data, also if it fails (NULL). */
Job *job_new(const char *name, int (*run)(void *data), void *data,
             void (*release)(void *data));
void job_drop(Job *j);

/* ---- work: jobs queued --------------------------------------------------- */

typedef struct Work {
    int refs;
    bool done;
    CUcontext context;
    Job *job;           /* NULL: a marker */
    int waits;          /* for so many others */
    struct Work **next; /* work that waits for this one */
    int nnext, room;
    double time; /* when it was done, in ms */
} Work;

typedef struct WorkList {
    Work **w;
    int n, room;
} WorkList;

Work *work_add(CUcontext c, Job *j, const WorkList *after);
Work *work_keep(Work *w);
void work_drop(Work *w);             /* may be NULL */
bool list_add(WorkList *l, Work *w); /* borrowed; skips NULL and finished
                                        work */
void list_free(WorkList *l);
/* Runs work until w is done; NULL: all work. Returns the result of the context.
 */
CUresult work_wait(CUcontext c, Work *w);
void work_some(void); /* runs one piece of work, if there is any */
void work_forget(void);

/* ---- streams, events, capture -------------------------------------------- */

typedef struct Capture Capture;

typedef struct NodeSet {
    int *at;
    int n;
} NodeSet;

struct CUstream_st {
    Object o;
    bool blocking; /* with respect to the legacy stream */
    Work *tail;
    Capture *capture;
    NodeSet front; /* nodes that precede the next one */
};

struct CUevent_st {
    Object o;
    bool timing;
    Work *last;
    Capture *capture; /* recorded in a capture */
    NodeSet front;
};

typedef struct Node {
    Job *job;
    NodeSet after;
} Node;

struct CUgraph_st {
    Object o;
    Node *node;
    int n;
};

struct CUgraphExec_st {
    Object o;
    Node *node;
    int n;
    Work *last; /* launches of one exec run one after the other */
};

/* The stream that the caller's handle means (NULL: the legacy one). */
CUresult stream_of(CUstream s, CUstream *out);
/* Queues a job or adds it to the capture; takes ownership of the job. */
CUresult stream_add(CUstream s, Job *j);
CUresult stream_launch(CUfunction f, SimDim g, SimDim b, unsigned shared,
                       CUstream s, void **params, void **extra);
/* One side is the host's: its address is 0, and `host` is given. */
CUresult stream_copy(CUstream s, CUdeviceptr to, CUdeviceptr from, void *host,
                     size_t bytes);
CUresult stream_fill(CUstream s, CUdeviceptr to, unsigned char value,
                     size_t bytes);
CUresult stream_record(CUevent e, CUstream s);
CUresult stream_wait(CUstream s, CUevent e);
CUresult stream_graph(CUgraphExec x, CUstream s);
void stream_drop(CUstream s);
void event_drop(CUevent e);

/* ---- capture.c ----------------------------------------------------------- */

void nodes_free(Node *node, int n);
CUresult capture_begin(CUstream s, int mode);
CUresult capture_end(CUstream s, CUgraph *out);
CUresult graph_instantiate(CUgraph g, CUgraphExec *out);
void graph_drop(CUgraph g);
void exec_drop(CUgraphExec x);
int capture_status(CUstream s); /* CUstreamCaptureStatus */
CUresult capture_forbids(void); /* an unsafe call by this thread: 0 or 900 */
CUresult capture_add(CUstream s, Job *j);
CUresult capture_record(CUevent e, CUstream s);
CUresult capture_wait(CUstream s, CUevent e);
void capture_invalidate(Capture *c);
void capture_forget(void);

/* ---- memory -------------------------------------------------------------- */

void memory_open(bool open);
CUresult memory_alloc(size_t bytes, CUdeviceptr *p);
CUresult memory_free(CUdeviceptr p);
bool memory_is(CUdeviceptr p); /* inside of an allocation */
CUresult pinned_alloc(size_t bytes, void **p);
CUresult pinned_free(void *p);
bool pinned_has(const void *p, size_t bytes);
void memory_leaks(char *text, size_t size);
void memory_forget(void);

/* ---- the rest ------------------------------------------------------------ */

extern SimConfig sim_config;
CUcontext context_current(void);
void context_drop(CUcontext c); /* with everything that belongs to it */
void driver_forget(void);
void leak(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int call_enter(const char *entry); /* counts calls; returns a requested
                                      failure, or 0 */

#endif
