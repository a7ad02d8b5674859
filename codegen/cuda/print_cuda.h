/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda.h: kernels as CUDA C++.

   print_cuda.c       kernels, launches of many tensors, epilogues
   print_cuda_parts.c launch shapes, parameters, heads
   print_cuda_any.c   forms flat and fold
   print_cuda_rows.c  the other forms
   print_cuda_turn.c  codes that are stored in both layouts, or of blocks
   print_cuda_columns.c  a thread's elements of a row

   Blocks and threads compute their rows or elements at the top; a thread then
   runs the loop nest of print.h, each loop printed according to its kind.
     flat      a thread computes N neighbours (LOOP_UNROLLED), 16 bytes of the
               narrowest operand, 32 at most of the widest:
                 k<i>_at<N>  the computation; loads and stores are vectors
                 k<i>_block  one block's share: the last n % N elements,
                             k<i>_at<1>, go to as many threads of the last block
                 k<i>        one tensor
     fold      a block has a row, its threads the row's vectors one after the
               other:
                 k<i>_row<N>  the row, by vectors of N; 1 if they would not be
                              aligned in every row
                 k<i>_rows    row r of one tensor of a table
                 k<i>_<j>_many  and then k<j> on the results of all blocks of a
                                tensor, in the last block
     cols      one thread per element of the whole domain, or per N neighbours
     reducing  a row belongs to a team of threads; its thread t takes columns t,
               t + T, .. of the flattened columns in every sweep (LOOP_LANES),
   or N neighbours, so it overwrites only elements that it alone has read;
   values kept from an earlier sweep are in h<i>.  Partial results are folded in
   a fixed order (fold.cuh).  A team is neighbouring lanes of one warp or the
   block; form rows: neighbouring rows, one or N for each lane, T warps.  All
   threads of a team compute the row values; thread 0 stores them when all have
   read the row's inputs. Teams past the last row repeat it and store nothing.
     sums of columns beside the rows: teams of a block take its rows one after
               the other and add to sums of their own in shared memory, a<i>;
               the block's go to `sums`, from where k<i>_2 adds those of all
               blocks
     tiles     codes that are also stored transposed, and numbers that become
               codes of blocks: t<i> is the block's tile of them, l<i> a
               thread's row of it. Without reductions a block has 64 rows of
               some columns; otherwise 16 or 32 whole rows, as above, and then
               the next ones
     epilogue  a functor of one accumulator, or of N neighbours
   k<i>_many does the same for a table of tensors (PLAN_MANY); form fold has
   nothing else (PLAN_ROWS).

   All loads of an element come before its stores and are made by the thread
   that stores it, so outputs may share bytes with inputs; buffers that never do
   are __restrict__.
   Indices are 32-bit if the domain and all offsets fit. */
#ifndef AMPC_CODEGEN_CUDA_PRINT_CUDA_H
#define AMPC_CODEGEN_CUDA_PRINT_CUDA_H

#include "codegen/cuda/cuda.h"
#include "codegen/kernel/print.h"

/* ---- print_cuda_parts.c -------------------------------------------------- */

/* Notes the dims that an instruction's index mentions. */
void cp_mark_used(const KInst *in, bool *used);
/* True if the index mentions one of the n dims (KPrint.used). */
bool cp_any_used(const KPrint *p, const int *dim, int n);
const char *cp_unsigned(const KPrint *p);    /* type of element numbers */
const char *cp_type(const Kernel *k, int b); /* type of the buffer's elements */

/* A list of parameters or arguments, at least `indent` from the left. */
typedef struct CudaList {
    StrBuf *sb;
    int indent;
    bool begun;
} CudaList;
/* Prints one item, on a new line if the line would get too long. */
void cp_item(CudaList *l, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cp_buffers(const Kernel *k, CudaList *l);
/* Prints "extern "C" .. k<i><suffix>(" or "static .. k<i><name>(buffers..",
   without the further parameters. */
CudaList cp_head(KPrint *p, const char *suffix, int threads);
CudaList cp_device(KPrint *p, const char *name);
/* Prints const auto f<id>: the function that folds two values of a
   reduction. */
void cp_fold_function(KPrint *p, int id);

/* ---- print_cuda_any.c ---------------------------------------------------- */

/* Print k<i>_at and k<i>_block of form flat; then k<i>. */
void cp_flat_block(KPrint *p);
void cp_flat(KPrint *p, bool guarded);
/* Prints k<i>_row and k<i>_rows of form fold. */
void cp_fold(KPrint *p);

/* ---- print_cuda_rows.c --------------------------------------------------- */

/* A thread computes one element of the whole domain. */
void cp_elements(KPrint *p);
/* Prints a block's work on its rows. */
void cp_rows(KPrint *p);
/* k<i>_2: a warp sums 32 neighbouring columns of one of the sums. */
void cp_finish(KPrint *p, bool guarded);
void cp_sweep(KPrint *p, const KSweep *s);

/* ---- print_cuda_turn.c --------------------------------------------------- */

/* A block's work on a tile of the domain. */
void cp_tile(KPrint *p);
/* Declares t<id>, which begin `from` bytes behind the block's shared memory. */
void cp_tiles(KPrint *p, int64_t from);
/* Declares l<id>; `line` spells the row's number in the tile. */
void cp_tile_line(KPrint *p, const char *line);
/* Texts of a tile's first row and column (NULL: 0), and of the number of lines
   and columns inside. */
typedef struct CudaTile {
    const char *top, *left, *lines, *columns;
} CudaTile;
/* Stores what becomes of the tiles. */
void cp_tile_store(KPrint *p, const CudaTile *tile);

/* ---- print_cuda_columns.c ------------------------------------------------ */

/* The columns of a row are divided into slices; each warp of the block has
   one. */
bool cp_is_sliced(const KPrint *p);
/* Rows of a lane side by side; w<id>[u] holds the fold of row u. 1: one row,
   in v<id>. */
int cp_lane_rows(const KPrint *p);
/* The rows of a block that takes them one after the other: it adds up columns,
   or turns codes; NULL: it does not. */
const KLoop *cp_sum_rows(const KPrint *p);
/* Some teams are past the last row. */
bool cp_has_idle(const KPrint *p);
/* True if a sweep before s has copied load `id` to shared memory. */
bool cp_is_copied(const KPrint *p, const KSweep *s, int id);
/* Types of a row's columns: as counts and as indices. */
const char *cp_columns_unsigned(const KPrint *p);
/* The last vector of n elements in a row may be incomplete. */
bool cp_has_cut(const KPrint *p, int n);
/* The loop over a thread's columns c, of known length; returns the blocks that
   it opens.  index: c is mentioned. */
int cp_enter_columns(KPrint *p, bool index);
/* q<i>[j]: elements of the row that the thread loads before anything is
   stored. */
void cp_fetched(KPrint *p);
void cp_take_own_values(KPrint *p, bool sweep);
/* Computes the row values for n rows from i<vec> on, before the sweep. */
void cp_own_values(KPrint *p, int n);
/* Prints the sweep for n neighbours along dim vec from i<vec> on. */
void cp_neighbours(KPrint *p, const KSweep *s, int n, const char *first);

#endif
