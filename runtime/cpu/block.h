/* SPDX-License-Identifier: Apache-2.0 */
/* block.h: how the routines divide their work, and the scratch memory for it.

   Compiled once: all ISA levels divide alike. Row blocks are multiples of
   BLOCK_ROWS and column blocks of BLOCK_COLS, which every register tile
   divides or ends at.  Cuts of a summed dimension depend on shapes only;
   cuts of rows and columns may depend on the number of threads.  AMX tiles
   want BLOCK_TALL rows, and BLOCK_UNIT pairs of the summed dimension.       */
#ifndef AMPC_CPU_BLOCK_H
#define AMPC_CPU_BLOCK_H

#include "runtime/cpu/kernels.h"

enum {
    BLOCK_ROWS = 8,
    BLOCK_COLS = 16,
    BLOCK_LANES = 16,
    BLOCK_TALL = 32,
    BLOCK_UNIT = 16,
    BLOCK_LINE = 64 /* bytes */
};

/* Contents of panels, and how they are multiplied: fp32; pairs of bf16 with
   vdpbf16ps; pairs of bf16 with AMX (tile.h, amx.h). */
enum { TILE_WIDENED, TILE_PAIRS, TILE_AMX };

/* LDTILECFG's 64 bytes: eight tiles of 16 rows of 64 bytes. */
typedef struct CpuTiles {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} CpuTiles;
extern const CpuTiles cpu_tiles;

/* The second function is for tests: 0 never, 1 whenever the machine has it, -1
   decides anew at the next call. The second call is for tests: 0 never, 1
   wherever the machine has it, -1
   decides anew at the next question.                                        */
int cpu_bf16_dot(void);
void cpu_bf16_dot_force(int how);

/* ---- matrix product ------------------------------------------------------ */

/* Three ways: B is packed whole before the products (`prepack`); or an item has
   all rows and packs its own columns of B (`columns`), and A is packed first if
   many items read the same part (`a_whole`); or each item packs the blocks that
   it needs. Kept panels of B are whole and are not in scratch memory. A is
   not packed if tiles can read it in place (`a_as_is`). With few threads, what
   all items read is packed by every worker for itself (`own`): panels that one
   core writes and another reads cost more between cores without a common
   cache. */
typedef struct GemmBlocks {
    int64_t batch;      /* product of batch_dim                          */
    int64_t k;          /* length of panels: elements or pairs */
    int64_t mc, nc, kc; /* block sizes                                   */
    int64_t mblocks, nblocks;
    int64_t nsplit, ksplit; /* slices of k, and the length of each           */
    int64_t items;          /* batch * nsplit * nblocks, or * mblocks        */
    int64_t grain;          /* number of items worth one hand-over */
    int prepack, columns, a_whole, a_as_is, own;
    size_t a, b;    /* bytes of panels */
    size_t acc;     /* bytes per worker                              */
    size_t partial; /* bytes shared: [nsplit][batch][m][n]           */
} GemmBlocks;

/* B is in memory, or in kept panels, or is computed while items pack the
   columns that they need: then it is never whole in memory. */
typedef enum GemmB { GEMM_B_READ, GEMM_B_KEPT, GEMM_B_MADE } GemmB;

void block_gemm(const LibGemm *g, int kind, int threads, GemmB b,
                GemmBlocks *p);

/* Bytes of panels of A and of B that all workers share; 0 if each has its
   own. */
size_t block_shared_a(const GemmBlocks *p);
size_t block_shared_b(const GemmBlocks *p);

/* Bytes of one worker: its panels, a line that tells whether these are packed,
   and accumulators. */
size_t block_worker(const GemmBlocks *p);

/* The product with a quantized weight, as if its matrix had the dtype of A. */
LibGemm gemm_of_quantized(const LibGemmQuantized *p);

/* Nonzero: C has so few rows that packing B would take longer than the
   product, which then reads B in place. Such a B is not kept, except fp32
   with contiguous rows, whose sums have the order of panels. */
enum { BLOCK_FEW = BLOCK_ROWS };
int block_gemm_is_few(const LibGemm *g);

/* The length of a sum over k elements in panels: in pairs except for
   TILE_WIDENED, and for AMX in whole tiles. */
int64_t block_length(int kind, int64_t k);

/* ---- scatter-add --------------------------------------------------------- */

enum { SCATTER_FEW = 65 };

/* Nonzero: rows are too short to be worth an inverted index. */
int scatter_is_few(const LibScatterAdd *s);

/* ---- sort ---------------------------------------------------------------- */

enum { SORT_DIGITS = 256, SORT_ROOM = 64, SORT_LONG = 1 << 15 };

/* The first k of each sorted row; an item has 8 bytes. */
typedef struct SortBlocks {
    int wide;       /* keys have 64 bits                                    */
    int selects;    /* the first k are found in one sweep; else rows are
                       sorted */
    int64_t parts;  /* parts of a row that all workers sort together; 0: one
                       worker sorts a row */
    int64_t room;   /* items of which a worker has two copies */
    int64_t memory; /* items of all workers                                 */
    int64_t found;  /* items found in parts, in two copies */
} SortBlocks;

SortBlocks sort_blocks(const LibArgsort *a, int threads);

/* ---- boxes --------------------------------------------------------------- */

enum { SUPPRESS_PARTS = 5 }; /* four coordinates and the area */

/* Floats of a worker for the boxes that it keeps. */
int64_t suppress_room(const LibSuppress *s);

#endif
