/* SPDX-License-Identifier: Apache-2.0 */
/* kir.h: the kernel IR, one level below groups.

   A kernel is one loop nest over a domain, a list of buffers and a list of
   scalar instructions in SSA form.  They define what is computed, per element
   and per row. Its loops define how it runs: the target's schedule chooses them
   (schedule.h) and the printers print them.

   Domain       dims in row-major order, extents literal; each is a row dim or
                a column dim.  Reductions fold all column dims.
   Instruction  computes one scalar.  `full`: it depends on column dims (once
                per element), otherwise once per row.  `depth` counts the
                reductions below it: a kernel runs one sweep over the columns
                for every depth at which something is reduced, and one for the
                stores (kernel_sweeps).
   Registers    KT_B8 (0 or 1), KT_I64 (every integer dtype), KT_F32 (f32, f16,
                bf16), KT_F64.  A value is rounded to its declared dtype by
                K_ROUND, so fusion changes no rounding.
   Aliasing     All stores follow all loads of the same element, and stores of
                full values run in the last sweep.  An output may therefore
                share the bytes of an input that is only read at the element's
                own index.
   Order        Rows are independent; columns are folded in an order that
                depends on the extents only. */
#ifndef AMPC_CODEGEN_KERNEL_KIR_H
#define AMPC_CODEGEN_KERNEL_KIR_H

#include "codegen/codegen.h"
#include "ir/base/facts.h"

typedef enum KType { KT_B8, KT_I64, KT_F32, KT_F64 } KType;

typedef enum KOp {
    K_CONST,  /* f (floats) or i (integers, bool)                           */
    K_INDEX,  /* i64: `at`                                                  */
    K_LOAD,   /* buf[at], widened to the register; 0 where guard is false   */
    K_PLACE,  /* buf[at], widened to the register type; 0 where guard is
                 false */
    K_ACC,    /* epilogue: the fp32 accumulator of this element             */
    K_OP,     /* op_info[code].expr over in[], computed in type `compute`;
                 comparisons and tests give KT_B8 */
    K_CVT,    /* in[0] in another register type                             */
    K_ROUND,  /* in[0] rounded (floats) or wrapped (integers) to dtype      */
    K_PHILOX, /* uniform f32 in [0, 1): in = seed, counter, element; i = salt */
    K_REDUCE, /* in[0] folded over the columns by expr of `code`
                 (REDUCE_SUM, PROD, MAX, MIN) */
    K_STORE,  /* buf[at] = in[0], narrowed to the buffer's dtype            */
    K_ADD_UP  /* buf[at] = the sum of in[0] over all rows, in fp32 until it is
                 narrowed; `at` is the column's number */
} KOp;

/* c + sum k[d] * (loop index of dim d) + instruction `inst` (0: none). */
typedef struct KIndex {
    int64_t c, k[MAX_RANK];
    int inst, zero; /* zero: in place of padding, for indices are compared as
                       bytes */
} KIndex;

/* Values that must outlive the innermost loop, as the schedule decides. */
typedef enum KKeep {
    KEEP_NOT,
    KEEP_ROW,    /* kept for later sweeps over the columns of the row */
    KEEP_SHARED, /* K_LOAD: kept likewise, in the block's shared memory */
    KEEP_BLOCK,  /* one value for each neighbouring row of a block */
    KEEP_TILE,   /* K_LOAD: the whole tile is loaded before its first row */
    KEEP_BUFFER  /* K_REDUCE: the operand is folded in the array that holds
                    it */
} KKeep;

/* Stores of a whole matrix, whose numbers pass through tiles of the block's
   shared memory. */
typedef enum KTile {
    TILE_NOT,
    TILE_TURNED, /* codes of 8 bits, transposed */
    TILE_CODES,  /* codes of blocks along rows, scales; then along columns */
    TILE_SCALES,
    TILE_CODES_DOWN,
    TILE_SCALES_DOWN,
    TILE_SUMS /* sums of blocks along columns */
} KTile;

typedef struct KInst {
    KOp op;
    KType type;
    KType compute; /* K_OP: the operands' register type */
    OpCode code;
    DType dtype; /* K_ROUND; K_STORE of blocks: of in[0], in the tile */
    int in[3];   /* instruction numbers; 0 = none */
    int guard;   /* K_LOAD */
    int place;   /* K_LOAD: K_PLACE that says where buf lies; 0 = it is buf */
    int buf;
    KTile tile;  /* K_STORE */
    bool shares; /* K_STORE of blocks: an earlier one has that tile, too */
    bool low;    /* K_OP: by the function of op_low */
    KIndex at;
    int64_t i;
    double f;
    double p[2]; /* K_OP: P0, P1 */
    /* facts */
    uint32_t fits; /* bit d: dtype d can represent every value */
    uint32_t dims; /* bit d: the value depends on dim d */
    int depth;
    bool full;
    KKeep keep;
} KInst;

typedef struct KDim {
    int64_t extent;
    bool col;
} KDim;

/* Form fold: how the address moves from one row to the next. */
typedef enum KWalk { WALK_NOT, WALK_ONE, WALK_ROW } KWalk;

typedef struct KBuf {
    DType dtype;
    bool written;
    KWalk walk;
    bool apart; /* true: no launch lets it share bytes with another buffer if
                   one of the two is written; known when all launches are
                   known (emit_cuda.c) */
} KBuf;

typedef enum KForm {
    KF_FLAT, /* one column dim whose extent is par[0]                       */
    KF_FOLD, /* CUDA: par[0] rows of par[1] columns, the only dim; KBuf.walk
                moves the buffers from row to row */
    KF_COLS, /* rows are independent; inside, columns run as vectors */
    KF_ROWS, /* neighbours along row dim `vec` form vectors (some access is
                not contiguous along columns); an outer loop runs over
                columns */
    KF_EPILOGUE /* rows and columns of a tile; the row of an accumulator is
                   batch * tile_rows + row */
} KForm;

typedef enum KLoopKind {
    LOOP_SERIAL,
    LOOP_VECTOR, /* iterations are independent: vector instructions */
    LOOP_THREAD, /* divided among the threads (of a block) */
    LOOP_BLOCK,  /* divided among the blocks of a grid */
    LOOP_LANES,  /* a reduction in parts whose results are folded together */
    LOOP_UNROLLED,
    LOOP_KINDS
} KLoopKind;

enum { LOOP_ROWS = -2, LOOP_COLS = -3, LOOP_ALL = -4, MAX_LOOPS = 12 };

/* 0, step, 2 * step, .. below extent (0: the step has it) of one dim or of all
   rows, columns or elements as one number.  A loop over a dim that an outer
   loop cuts runs within the piece. */
typedef struct KLoop {
    KLoopKind kind;
    int over; /* a dim, or LOOP_ROWS, .. */
    int64_t extent, step;
} KLoop;

struct Kernel {
    KForm form;
    int ndim;
    KDim dim[MAX_RANK];
    VEC(KBuf) bufs;
    VEC(KInst) insts; /* [0] is the null instruction */
    int vec;          /* KF_ROWS: the row dim; otherwise the last column dim,
                         -1 = no loop */
    KLoop loop[MAX_LOOPS]; /* outermost first */
    int nloop;
    int64_t tile_rows;    /* KF_EPILOGUE; 0: there is one batch */
    int64_t block_shared; /* bytes that a block of a GPU has */
    int index; /* position in its list                              */
    uint64_t hash;
    const char *comment; /* the group for which it was first made */
    bool marks;          /* its text may be shared: sizes are printed by
                            sb_put_size */
};

/* ---- building (kir.c) ---------------------------------------------------- */

KType ktype_of(DType d);
DType dtype_of_ktype(KType t);   /* the dtype whose values this type holds
                                    exactly */
KInst kinst(KOp op, KType type); /* zeroed */
/* Truncates; saturates; gives 0 for NaN, like TO_I64 of kmath.h. */
int64_t int_of_float(double f);
/* Appends an instruction, or finds an equal one. Sets the derived fields
   (dims, values). */
int kernel_add(Arena *a, Kernel *k, const KInst *in);
/* The instructions that it reads: operands, guard, place, index; 0 = none. */
enum { KINST_READS = 6 };
static inline int kinst_read(const KInst *in, int j) {
    return j < 3    ? in->in[j]
           : j == 3 ? in->guard
           : j == 4 ? in->place
                    : in->at.inst;
}
static inline KInst *kinst_at(const Kernel *k, int id) {
    ASSERT(id > 0 && id < k->insts.len);
    return &k->insts.data[id];
}
/* Drops instructions that no store needs, and dims of extent 1. Merges
   neighbouring dims of one kind that every index walks as one dim (without
   reductions: dims of any kind; the last one that remains is the column). */
void kernel_finish(Arena *a, Kernel *k);
/* Afterwards no index depends on dim d. */
void kernel_remove_dim(Kernel *k, int d);
/* The loops, outermost first: "thread rows < 64", "vector i1 < 128"; without
   `extent` where the step has it. */
void kernel_loops(const Kernel *k, FactList *loops);

/* ---- reading ------------------------------------------------------------- */

/* Per instruction: true if it is a store or a store needs it. */
bool *kernel_live(Arena *a, const Kernel *k);
bool kernel_reduces(const Kernel *k);
/* True if the step has the extents. */
static inline bool kernel_any_length(const Kernel *k) {
    return k->form == KF_FLAT || k->form == KF_FOLD;
}
int kernel_col_dims(const Kernel *k, int *dim); /* the column dims in order;
                                                   returns their number */
int64_t kernel_rows(const Kernel *k);           /* product of the row dims */
int64_t kernel_cols(const Kernel *k);

/* Sweeps over the columns, in order of depth. Each has the K_REDUCE
   instructions (folds) and then the K_STORE instructions that it completes. Row
   instructions of depth d may run before the sweep with that depth; stores that
   are not full come last. Full stores join the last reducing sweep when their
   values are known by then, else they get a sweep of their own. Of stores that
   share a tile the first one stands for all. */
typedef struct KSweep {
    int depth, nfold;
    VEC(int) roots; /* the folds (nfold), then the stores */
} KSweep;
typedef struct KSweeps {
    KSweep *data;
    int len;
} KSweeps;
KSweeps kernel_sweeps(const Kernel *k, Arena *a);
/* Per instruction: full values that the sweep computes. cut (may be NULL):
   values kept by earlier sweeps, whose operands are not needed. */
bool *kernel_need(const Kernel *k, const KSweep *s, const bool *cut, Arena *a);
/* Per instruction: row values that sweeps before s keep for it; NULL if no
   values are kept. */
const bool *kernel_held(const Kernel *k, const KSweeps *all, const KSweep *s,
                        Arena *a);

/* Form cols: positions, ascending, at which the inner loop may be cut so that
   comparisons of its index with constants are constant in each part; 0: not
   worth it. */
enum { MAX_CUTS = 8 };
int kernel_cuts(const Kernel *k, int64_t *cut);
/* The kernel restricted to indices of dim (-1: any) in [from, to):
   conditions that are constant there are removed, and values that nothing
   needs become constants. Instructions keep their numbers. */
const Kernel *kernel_within(Arena *a, const Kernel *k, int dim, int64_t from,
                            int64_t to);
/* GPU, lanes with several neighbours of a row each: the only comparison of the
   column's index with a number of the row, which is false for all columns but
   one at most; 0: there is none, or it does not pay. And the kernel as it is
   for columns where it is false. */
int kernel_one_column(const Kernel *k);
const Kernel *kernel_other_columns(Arena *a, const Kernel *k, int one);
/* CPU: the kernel in parts [from, to) of row dim `dim`, if several loads are
   executed for some rows only (parts of a concatenation); else one part, the
   kernel itself. share: the fraction of all rows that a part has. */
enum { MAX_ROW_CUTS = 64 };
typedef struct KPart {
    const Kernel *k;
    int64_t from, to;
    double share;
} KPart;
typedef struct KParts {
    KPart *data;
    int len, cap, dim;
} KParts;
KParts kernel_row_parts(Arena *a, const Kernel *k);

/* Ends in a buffer. */
static inline bool kinst_stores(const KInst *in) {
    return in->op == K_STORE || in->op == K_ADD_UP;
}
/* True for an op whose function is expensive. */
static inline bool kinst_is_long(const KInst *in) {
    return in->op == K_OP && op_info[in->code].cost >= COST_LONG;
}
/* The number of sums over all rows that the kernel computes. */
int kernel_column_sums(const Kernel *k);
/* The number of tiles. */
int kernel_tiles(const Kernel *k);
static inline bool kinst_has_tile(const KInst *in) {
    return in->tile && !in->shares;
}
static inline bool kinst_blocks(const KInst *in) {
    return in->tile >= TILE_CODES;
}
/* The type of the element that an access of `in` moves: of blocks, the
   tile's. */
static inline DType kinst_dtype(const Kernel *k, const KInst *in) {
    return kinst_blocks(in) ? in->dtype : k->bufs.data[in->buf].dtype;
}
/* True if an instruction of its own computes the value once per row. */
bool kinst_is_row_value(const KInst *in);

/* ---- kernel set ---------------------------------------------------------- */

typedef VEC(Kernel *) KernelVec;

struct KernelSet {
    Arena *arena;
    TargetKind target;
    int64_t block_shared; /* of each kernel */
    KernelVec list[2];    /* kernels, epilogues */
    Kernel **slot;        /* hash table: open addressing, size a power of two */
    int cap;
};

/* Returns the set's kernel that equals k; if none does, adds a copy of k to
   the set. */
Kernel *kernel_set_add(KernelSet *ks, Kernel *k);

#endif
