/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c: stream capture and graphs.

   A stream that is capturing has a front: the nodes after which its next node
   comes. An event recorded there remembers the front; a stream that waits for
   the event joins the capture. A forbidden call returns its error at once
   and makes the end of the capture fail with 901. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/state.h"

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2 };

struct Capture {
    CUstream origin;
    int mode;
    bool invalid;
    pthread_t thread;
    Node *node;
    int n, room;
    Capture *next;
};
static Capture *captures;

/* ---- sets of nodes ------------------------------------------------------- */

static bool set_add(NodeSet *s, int at) {
    for (int i = 0; i < s->n; i++)
        if (s->at[i] == at) return true;
    int *p = realloc(s->at, (size_t)(s->n + 1) * sizeof *p);
    if (!p) return false;
    s->at = p;
    p[s->n++] = at;
    return true;
}

static bool set_join(NodeSet *s, const NodeSet *o) {
    for (int i = 0; i < o->n; i++)
        if (!set_add(s, o->at[i])) return false;
    return true;
}

static void set_free(NodeSet *s) {
    free(s->at);
    *s = (NodeSet){NULL, 0};
}

void nodes_free(Node *node, int n) {
    for (int i = 0; i < n; i++) {
        job_drop(node[i].job);
        free(node[i].after.at);
    }
    free(node);
}

/* ---- what a capture takes ------------------------------------------------ */

void capture_invalidate(Capture *c) { c->invalid = true; }

static CUresult refuse(Capture *c, CUresult code) {
    c->invalid = true;
    return code;
}

static bool add_node(Capture *c, CUstream s, Job *j) {
    if (c->n == c->room) {
        int room = c->room ? 2 * c->room : 16;
        Node *p = realloc(c->node, (size_t)room * sizeof *p);
        if (!p) return false;
        c->node = p;
        c->room = room;
    }
    c->node[c->n++] = (Node){j, s->front};
    s->front = (NodeSet){NULL, 0};
    return set_add(&s->front, c->n - 1);
}

CUresult capture_add(CUstream s, Job *j) {
    Capture *c = s->capture;
    if (c->invalid) {
        job_drop(j);
        return CUDA_STREAM_CAPTURE_INVALIDATED;
    }
    if (add_node(c, s, j)) return CUDA_OK;
    return refuse(c, CUDA_OUT_OF_MEMORY);
}

CUresult capture_record(CUevent e, CUstream s) {
    if (s->capture->invalid) return CUDA_STREAM_CAPTURE_INVALIDATED;
    set_free(&e->front);
    e->capture = s->capture;
    return set_join(&e->front, &s->front)
               ? CUDA_OK
               : refuse(s->capture, CUDA_OUT_OF_MEMORY);
}

CUresult capture_wait(CUstream s, CUevent e) {
    Capture *c = s->capture;
    if (c && c->invalid) return CUDA_STREAM_CAPTURE_INVALIDATED;
    if (!e->capture)
        return e->last ? refuse(c, CUDA_CAPTURE_ISOLATION) : CUDA_OK;
    if (c && c != e->capture) {
        refuse(e->capture, 0);
        return refuse(c, CUDA_CAPTURE_MERGE);
    }
    if (s == s->o.context->legacy)
        return refuse(e->capture, CUDA_STREAM_CAPTURE_UNSUPPORTED);
    s->capture = e->capture;
    return set_join(&s->front, &e->front)
               ? CUDA_OK
               : refuse(s->capture, CUDA_OUT_OF_MEMORY);
}

CUresult capture_forbids(void) {
    CUresult rc = CUDA_OK;
    for (Capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (c->mode == MODE_RELAXED || (!mine && c->mode != MODE_GLOBAL))
            continue;
        c->invalid = true;
        rc = CUDA_STREAM_CAPTURE_UNSUPPORTED;
    }
    return rc;
}

uintptr_t sim_capture(CUstream s) {
    sim_lock();
    uintptr_t c = object_is(OBJ_STREAM, s) ? (uintptr_t)s->capture : 0;
    sim_unlock();
    return c;
}

bool sim_captures(void) {
    sim_lock();
    bool any = captures != NULL;
    sim_unlock();
    return any;
}

CUresult sim_unsafe(void) {
    sim_lock();
    CUresult rc = capture_forbids();
    sim_unlock();
    return rc;
}

int capture_status(CUstream s) {
    return !s->capture ? 0 : s->capture->invalid ? 2 : CUDA_CAPTURE_ACTIVE;
}

/* ---- begin and end ------------------------------------------------------- */

CUresult capture_begin(CUstream s, int mode) {
    if (mode < 0 || mode > MODE_RELAXED) return CUDA_INVALID_VALUE;
    if (s == s->o.context->legacy) return CUDA_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return refuse(s->capture, CUDA_INVALID_VALUE);
    Capture *c = calloc(1, sizeof *c);
    if (!c) return CUDA_OUT_OF_MEMORY;
    c->origin = s;
    c->mode = mode;
    c->thread = pthread_self();
    c->next = captures;
    captures = c;
    s->capture = c;
    return CUDA_OK;
}

/* True if the last node of the origin follows all others. */
static bool joined(const Capture *c) {
    bool *seen = calloc((size_t)c->n + 1, sizeof *seen);
    bool all = seen != NULL;
    const NodeSet *f = &c->origin->front;
    for (int i = 0; seen && i < f->n; i++) seen[f->at[i]] = true;
    for (int i = c->n; seen && i-- > 0;) {
        const NodeSet *a = &c->node[i].after;
        all = all && seen[i];
        for (int k = 0; k < a->n; k++) seen[a->at[k]] = true;
    }
    free(seen);
    return all;
}

/* Streams and events no longer belong to it. */
static void leave(const Capture *c) {
    for (Object *o = object_first(); o; o = o->next) {
        CUstream s = (CUstream)o;
        CUevent e = (CUevent)o;
        if (o->kind == OBJ_STREAM && s->capture == c) {
            s->capture = NULL;
            set_free(&s->front);
        } else if (o->kind == OBJ_EVENT && e->capture == c) {
            e->capture = NULL;
            set_free(&e->front);
        }
    }
}

static void capture_free(Capture *c) {
    leave(c);
    for (Capture **p = &captures; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    nodes_free(c->node, c->n);
    free(c);
}

CUresult capture_end(CUstream s, CUgraph *out) {
    Capture *c = s->capture;
    *out = NULL;
    if (!c) return CUDA_INVALID_VALUE;
    if (s != c->origin) return refuse(c, CUDA_CAPTURE_UNMATCHED);
    if (c->mode != MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return CUDA_STREAM_CAPTURE_WRONG_THREAD;
    CUresult rc = c->invalid   ? CUDA_STREAM_CAPTURE_INVALIDATED
                  : !joined(c) ? CUDA_STREAM_CAPTURE_UNJOINED
                               : CUDA_OK;
    if (!rc) *out = object_new(OBJ_GRAPH, sizeof **out);
    if (*out) {
        (*out)->node = c->node;
        (*out)->n = c->n;
        c->node = NULL;
        c->n = 0;
    }
    capture_free(c);
    return rc || *out ? rc : CUDA_OUT_OF_MEMORY;
}

void capture_forget(void) {
    while (captures) capture_free(captures);
}

/* ---- graphs -------------------------------------------------------------- */

/* Jobs do not change, so graph and exec share them. */
CUresult graph_instantiate(CUgraph g, CUgraphExec *out) {
    CUgraphExec x = object_new(OBJ_EXEC, sizeof *x);
    *out = NULL;
    if (x) x->node = calloc((size_t)g->n + 1, sizeof *x->node);
    if (!x || !x->node) {
        object_free(x);
        return CUDA_OUT_OF_MEMORY;
    }
    for (x->n = 0; x->n < g->n; x->n++) {
        x->node[x->n].job = g->node[x->n].job;
        x->node[x->n].job->refs++;
        set_join(&x->node[x->n].after, &g->node[x->n].after);
    }
    *out = x;
    return CUDA_OK;
}

void graph_drop(CUgraph g) {
    nodes_free(g->node, g->n);
    object_free(g);
}

void exec_drop(CUgraphExec x) {
    work_drop(x->last);
    nodes_free(x->node, x->n);
    object_free(x);
}
