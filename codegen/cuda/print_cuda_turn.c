/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_turn.c: codes that a kernel stores in both layouts: the transposed
   one through tiles in shared memory (turn.cuh). */
#include "codegen/cuda/print_cuda.h"
#include "runtime/cuda/tile.h"

#include <stdio.h>

static void put_tile_sizes(KPrint *p) {
    sb_printf(p->sb, "%d, " I64, cuda_turn_lines(p->k), cuda_turn_line(p->k));
}

void cp_turn_tiles(KPrint *p, int64_t from) {
    int64_t bytes = cuda_turn_bytes(p->k);
    for (int id = 1; id < p->k->insts.len; id++) {
        if (!kinst_at(p->k, id)->turned) continue;
        kp_line(p, "unsigned char *const t%d = shared + " I64 ";", id, from);
        from += bytes;
    }
}

void cp_turn_line(KPrint *p, const char *line) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!in->turned) continue;
        kp_text(p, "%s *const l%d = (%s *)(t%d + turn_line<",
                cp_type(p->k, in->buf), id, cp_type(p->k, in->buf), id);
        put_tile_sizes(p);
        sb_printf(p->sb, ">(%s));\n", line);
    }
}

void cp_turn_store(KPrint *p, const char *at, const char *lines,
                   const char *columns) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!in->turned) continue;
        kp_text(p, "%s", "turn_tile<");
        put_tile_sizes(p);
        sb_printf(p->sb, ", " I64 ", %d>(\n", p->nrows,
                  cuda_shape(p->k).threads);
        kp_line(p, "    t%d, b%d + (%s), %s, %s);", id, in->buf, at, lines,
                columns);
    }
}

void cp_tile(KPrint *p) {
    const Kernel *k = p->k;
    const KLoop *rows = kernel_loop(k, LOOP_BLOCK, LOOP_ROWS),
                *cols = kernel_loop(k, LOOP_BLOCK, k->vec);
    int64_t parts = cols->step / cuda_pack(k);
    const char *u = cp_unsigned(p);
    char at[64], lines[96], columns[96];
    kp_line(p, "BLOCK_SHARED(shared);");
    cp_turn_tiles(p, 0);
    kp_line(p, "const %s top = %s / " I64 " * " I64 ";", u, p->block,
            loop_steps(cols), rows->step);
    kp_line(p, "const %s left = %s %% " I64 " * " I64 ";", u, p->block,
            loop_steps(cols), cols->step);
    kp_line(p, "const unsigned c = threadIdx.x %% " I64 " * %d;", parts,
            cuda_pack(k));
    kp_line(p, "const %s row = top + threadIdx.x / " I64 ", column = left + c;",
            u, parts);
    kp_enter(p, "if (row < " I64 " && column < " I64 ")", p->nrows, p->ncols);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    kp_dims(p, "column", p->cols, p->ncol, p->used);
    snprintf(lines, sizeof lines, "threadIdx.x / " I64, parts);
    cp_turn_line(p, lines);
    kp_sweeps(p, kp_row_insts, cp_sweep);
    kp_stores(p, false);
    kp_leave(p);
    kp_line(p, "__syncthreads();");
    snprintf(lines, sizeof lines,
             "(unsigned)(" I64 " - top < %d ? " I64 " - top : %d)", p->nrows,
             TURN_SIDE, p->nrows, TURN_SIDE);
    snprintf(columns, sizeof columns,
             "(unsigned)(" I64 " - left < " I64 " ? " I64 " - left : " I64 ")",
             p->ncols, cols->step, p->ncols, cols->step);
    snprintf(at, sizeof at, I64 "LL * left + top", p->nrows);
    cp_turn_store(p, at, lines, columns);
}
