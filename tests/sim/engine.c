/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c: blocks, threads, barriers.

   A thread starts on any free fiber and keeps it only while it waits, so that
   threads which never wait run one after the other on one stack. Whenever a
   thread ends or waits, the next one is drawn at random from those
   that may run and those that have not begun.  A fault ends the launch: its
   fibers are abandoned. */
#include "tests/sim/engine.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/fault.h"
#include "tests/sim/fiber.h"

enum { WARPS = SIM_MAX_THREADS / SIM_WARP };

typedef struct Thread {
    Fiber *fiber; /* while it waits */
    SimDim index;
    const char
        *where; /* place at which the thread waits; __syncthreads: the file */
    int line;
} Thread;

typedef struct Collective { /* lanes that have arrived so far */
    uint32_t mask, arrived;
    SimCombine *fn;
    const char *name;
} Collective;

typedef struct Warp {
    uint32_t alive;
    int nop;
    Collective op[SIM_WARP];
    void *request[SIM_WARP];
} Warp;

static struct {
    const SimLaunch *launch;
    SimNow *now;
    int n, live; /* number of threads of the block, and of those that have
                    not ended */
    int current;
    int ready[SIM_MAX_THREADS], nready;
    int waiting[SIM_MAX_THREADS], nwaiting;  /* at __syncthreads */
    int order[SIM_MAX_THREADS], begun, next; /* threads not begun */
    Fiber *parked[SIM_MAX_THREADS];
    int nparked;
    int result;
    bool running;
    Thread thread[SIM_MAX_THREADS];
    Warp warp[WARPS];
} e;

static Fiber fibers[SIM_MAX_THREADS];
static __thread Fiber outside; /* the caller's stack */
static Fiber *running;         /* the fiber that runs, or `outside` */

/* ---- who runs next ------------------------------------------------------- */

static void go_to(Fiber *f) {
    Fiber *from = running;
    if (f == from) return;
    running = f;
    sim_counts.switches++;
    fiber_switch(from, f);
}

static void take_over(int t) {
    e.current = t;
    e.now->thread = e.thread[t].index;
}

static Fiber *free_fiber(void) { return e.parked[--e.nparked]; }

static void describe_waiting(void) {
    int shown = 0;
    for (int t = 0; t < e.n && shown < 4; t++)
        if (e.thread[t].fiber) {
            sim_violation("  thread %d waits at %s:%d", t, e.thread[t].where,
                          e.thread[t].line);
            shown++;
        }
}

static void engine_fault(int code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));

/* Draws the thread to run; e.next >= 0: it must be started. */
static Fiber *draw(void) {
    int fresh = e.n - e.begun;
    e.next = -1;
    if (!e.nready && !fresh) {
        if (!e.live) return &outside;
        describe_waiting();
        engine_fault(CUDA_LAUNCH_FAILED,
                     "deadlock: %d of %d threads wait for others that will "
                     "not come",
                     e.live, e.n);
    }
    int i = (int)sim_random_below((uint64_t)(e.nready + fresh));
    if (i >= e.nready) {
        e.next = e.order[e.begun++];
        return NULL;
    }
    int t = e.ready[i];
    e.ready[i] = e.ready[--e.nready];
    take_over(t);
    Fiber *f = e.thread[t].fiber;
    e.thread[t].fiber = NULL;
    return f;
}

/* The current thread is already in the list where it will be found again. */
static void wait_turn(const char *where, int line) {
    Thread *t = &e.thread[e.current];
    t->fiber = running;
    t->where = where;
    t->line = line;
    Fiber *f = draw();
    go_to(f ? f : free_fiber());
}

/* ---- faults -------------------------------------------------------------- */

__attribute__((noreturn)) static void leave_launch(void) {
    running = &outside;
    Fiber dead = {0};
    dead.stack = fibers[0].stack;
    dead.size = fibers[0].size;
    fiber_switch(&dead, &outside);
    __builtin_unreachable();
}

static void engine_fault(int code, const char *fmt, ...) {
    const SimNow *n = e.now;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    sim_violation("%s, block %u, thread %u: %s", e.launch->kernel->name,
                  n->block.x, n->thread.x, text);
    e.result = code;
    leave_launch();
}

/* The point at which a signal handler resumes a fiber. */
static void landing(void) {
    const void *p = fault_address();
    size_t size;
    char *stack = fault_stack(&size);
    fiber_adopt(stack, size);
    if (fault_signal() == FAULT_ARITHMETIC)
        engine_fault(CUDA_LAUNCH_FAILED, "integer division by zero");
    if (fiber_guards(fibers, SIM_MAX_THREADS, p))
        engine_fault(CUDA_LAUNCH_FAILED, "stack overflow");
    engine_fault(CUDA_ILLEGAL_ADDRESS, "illegal address %p", p);
}

/* ---- barriers ------------------------------------------------------------ */

static void release_barrier(void) {
    for (int i = 0; i < e.nwaiting; i++) e.ready[e.nready++] = e.waiting[i];
    e.nwaiting = 0;
    sim_counts.barriers++;
}

static void engine_barrier(const char *file, int line) {
    if (e.nwaiting) {
        const Thread *o = &e.thread[e.waiting[0]];
        if (o->line != line || (o->where != file && strcmp(o->where, file)))
            engine_fault(CUDA_LAUNCH_FAILED,
                         "divergent __syncthreads: %s:%d, but thread %d waits "
                         "at %s:%d",
                         file, line, e.waiting[0], o->where, o->line);
    }
    e.waiting[e.nwaiting++] = e.current;
    if (e.nwaiting == e.live) release_barrier();
    wait_turn(file, line);
}

/* ---- warp collectives ---------------------------------------------------- */

static Collective *find_op(Warp *w, uint32_t mask, const char *name,
                           SimCombine *fn) {
    for (int i = 0; i < w->nop; i++) {
        Collective *c = &w->op[i];
        if (c->mask == mask && c->fn == fn) return c;
        if (c->mask & mask)
            engine_fault(CUDA_LAUNCH_FAILED,
                         "divergent warp: %s of lanes %08x, but lanes %08x "
                         "wait at %s of lanes %08x",
                         name, mask, c->arrived, c->name, c->mask);
    }
    w->op[w->nop] = (Collective){mask, 0, fn, name};
    return &w->op[w->nop++];
}

/* All lanes have arrived: answers them and lets them run. */
static void finish_op(Warp *w, Collective *c, int first) {
    uint32_t lanes = c->arrived;
    if (c->fn) c->fn(w->request, c->mask);
    for (int i = 0; i < SIM_WARP; i++)
        if (lanes >> i & 1) e.ready[e.nready++] = first + i;
    *c = w->op[--w->nop];
    sim_counts.collectives++;
}

static void check_lanes(const Warp *w, const Collective *c) {
    if (c->fn && (c->mask & ~w->alive))
        engine_fault(CUDA_LAUNCH_FAILED,
                     "%s: lanes %08x of mask %08x do not exist or have ended",
                     c->name, c->mask & ~w->alive, c->mask);
}

static void engine_warp(uint32_t mask, const char *name, SimCombine *fn,
                        void *request) {
    int lane = e.current % SIM_WARP;
    Warp *w = &e.warp[e.current / SIM_WARP];
    if (!(mask >> lane & 1))
        engine_fault(CUDA_LAUNCH_FAILED, "%s: lane %d is not in its mask %08x",
                     name, lane, mask);
    Collective *c = find_op(w, mask, name, fn);
    check_lanes(w, c);
    w->request[lane] = request;
    c->arrived |= 1u << lane;
    if (c->arrived == (mask & w->alive)) finish_op(w, c, e.current - lane);
    wait_turn(name, lane);
}

static uint32_t engine_active(void) {
    return e.warp[e.current / SIM_WARP].alive;
}

/* ---- threads ------------------------------------------------------------- */

/* The other threads may have waited only for this one. */
static void end_thread(void) {
    int lane = e.current % SIM_WARP;
    Warp *w = &e.warp[e.current / SIM_WARP];
    w->alive &= ~(1u << lane);
    for (int i = w->nop; i-- > 0;) {
        Collective *c = &w->op[i];
        if (!(c->mask >> lane & 1)) continue;
        check_lanes(w, c);
        if (c->arrived == (c->mask & w->alive))
            finish_op(w, c, e.current - lane);
    }
    if (--e.live == e.nwaiting && e.live) release_barrier();
}

static void fiber_main(void) {
    fiber_entered();
    for (;;) {
        const SimLaunch *l = e.launch;
        take_over(e.next);
        l->kernel->call(l->params);
        end_thread();
        Fiber *f = draw();
        if (!f) continue;
        e.parked[e.nparked++] = running;
        go_to(f);
    }
}

/* ---- blocks and launches ------------------------------------------------- */

static void begin_block(void) {
    for (int i = e.n - 1; i > 0; i--) {
        int j = (int)sim_random_below((uint64_t)i + 1), t = e.order[i];
        e.order[i] = e.order[j];
        e.order[j] = t;
    }
    for (int i = 0; i * SIM_WARP < e.n; i++) {
        int lanes = e.n - i * SIM_WARP;
        e.warp[i].alive = lanes >= SIM_WARP ? ~0u : (1u << lanes) - 1;
        e.warp[i].nop = 0;
    }
    e.live = e.n;
    e.nready = e.nwaiting = e.begun = 0;
    fault_fill_shared();
}

static void run_block(SimDim at) {
    e.now->block = at;
    begin_block();
    Fiber *f = draw();
    running = &outside;
    go_to(f ? f : free_fiber());
}

static void reset_fibers(void) {
    e.nparked = 0;
    for (int i = SIM_MAX_THREADS; i-- > 0;) {
        fiber_start(&fibers[i], i, fiber_main);
        e.parked[e.nparked++] = &fibers[i];
    }
}

static bool prepare(void) {
    static bool made;
    if (!made) {
        if (!fibers_make(fibers, SIM_MAX_THREADS)) return false;
        reset_fibers();
        made = true;
    }
    return true;
}

static void number_threads(SimDim b) {
    for (int i = 0; i < e.n; i++) {
        unsigned u = (unsigned)i;
        e.order[i] = i;
        e.thread[i] =
            (Thread){.index = {u % b.x, u / b.x % b.y, u / b.x / b.y}};
    }
}

/* Visits blocks in an order given by a random start and stride. */
static void run_blocks(SimDim g) {
    uint64_t n = (uint64_t)g.x * g.y * g.z, at = sim_random_below(n);
    uint64_t step = sim_random_below(n) | 1, a, b, r;
    do { /* until it has no common divisor with n */
        step += 2;
        for (a = n, b = step; (r = a % b) != 0; a = b, b = r) continue;
    } while (b != 1 && n > 1);
    for (uint64_t i = 0; i < n && !e.result; i++) {
        SimDim d = {(unsigned)(at % g.x), (unsigned)(at / g.x % g.y),
                    (unsigned)(at / g.x / g.y)};
        run_block(d);
        at = (at + step) % n;
    }
}

static const SimEngine functions = {engine_barrier, engine_warp, engine_active,
                                    engine_fault};

int sim_launch(const SimLaunch *l) {
    static _Alignas(64) char none[64];
    if (!prepare()) return CUDA_OUT_OF_MEMORY;
    SimTwinTable *t = l->twin->table;
    char *dynamic = l->shared ? fault_dynamic(l->shared) : none;
    if (!dynamic) return CUDA_OUT_OF_MEMORY;
    *t->engine = &functions;
    e.launch = l;
    e.now = t->now;
    e.n = (int)(l->block.x * l->block.y * l->block.z);
    e.result = 0;
    *e.now = (SimNow){{0}, {0}, l->block, l->grid, dynamic, l->shared};
    number_threads(l->block);
    fault_begin(t->shared, t->shared_end, landing);
    run_blocks(l->grid);
    fault_end();
    if (e.result) reset_fibers();
    sim_counts.launches++;
    return e.result;
}
