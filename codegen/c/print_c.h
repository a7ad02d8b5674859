/* SPDX-License-Identifier: Apache-2.0 */
/* print_c.h: the files that print kernels as C (print_c.c says how).

   print_c_values.c   values that are kept; folds
   print_c_inner.c    the innermost loop, and conversions of its elements
   print_c.c          sweeps, units, functions
   share_c.c          one function for kernels that differ in sizes */
#ifndef AMPC_CODEGEN_C_PRINT_C_H
#define AMPC_CODEGEN_C_PRINT_C_H

#include "codegen/kernel/print.h"

/* ---- print_c_values.c ---------------------------------------------------- */

int64_t pc_extent(const KPrint *p, int d);
bool pc_keeps(const KPrint *p, int id, KKeep keep);
bool pc_is_rows(const KPrint *p);
const char *pc_size_text(KPrint *p, int64_t n);
/* A loop's length as text: a small one as a number, others as a size that
   kernels may share. */
const char *pc_length_text(KPrint *p, int64_t n);
const char *pc_compute_c(const KPrint *p, int id);
/* The length of a piece that begins at c0: `step`, or less at the end. */
void pc_put_length(KPrint *p, int64_t e, int64_t step);
/* c1 or p1, its end. */
void pc_put_end(KPrint *p, char c, int64_t e, int64_t step);
void pc_ivdep(KPrint *p);
/* Copies v<id> from or to its element s<id> of the row. */
void pc_put_kept(KPrint *p, int id, bool load);
/* Copies v<id> from or to its element t<id> of the tile. */
void pc_put_in_tile(KPrint *p, int id, bool load);
/* t<id>: the elements of the tile that a KEEP_TILE load reads, one row of
   dim side after the other; they are read in memory order. */
void pc_put_tile_loads(KPrint *p);
/* Form rows: loads or recomputes the row values that instructions `of` read
   and do not compute themselves. */
void pc_put_row_operands(KPrint *p, const bool *of);
/* The n elements of v<id> from column c0 on. */
void pc_put_fold_call(KPrint *p, int id);
/* Accumulators of neighbouring rows: r<id>, of a run q<id>. */
void pc_put_start(const Nest *n, char acc);
void pc_put_accumulate(KPrint *p, char acc, const char *at, int id,
                       const char *value);

/* ---- print_c_inner.c ----------------------------------------------------- */

/* j counts from c0 on, in arrays. */
void pc_enter_neighbours(KPrint *p, const char *from, const char *to);
/* Opens a loop over all of a dim, over the current piece, or over the rows
   or columns of a tile. */
void pc_enter_loop(const Nest *n, int over);
/* Per instruction: full values that the sweep computes. *held: row values
   kept by earlier sweeps, or NULL. */
bool *pc_computed(const KPrint *p, const KSweep *s, const bool **held);
/* Prints the innermost loop over [from, to). */
void pc_put_range(Nest *n, const KLoop *l, const char *from, const char *to);

/* ---- print_c.c ----------------------------------------------------------- */

/* Prints the text after the function's head. */
void pc_body(const Kernel *k, StrBuf *sb);

#endif
