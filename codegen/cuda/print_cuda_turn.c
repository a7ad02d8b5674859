/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_turn.c: what kernels make of tiles in shared memory: transposed
   codes (turn.cuh), codes and scales of blocks (blocks.cuh). */
#include "codegen/cuda/print_cuda.h"
#include "runtime/cuda/tile.h"

#include <stdio.h>

static void put_tile_sizes(KPrint *p) {
    sb_printf(p->sb, "%d, " I64, cuda_tile_lines(p->k), cuda_tile_line(p->k));
}

/* The type of a tile's numbers in blocks.cuh. */
static const char *number_type(const KInst *in) {
    return dtype_info[in->dtype].cuda;
}

void cp_tiles(KPrint *p, int64_t from) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!kinst_has_tile(in)) continue;
        kp_line(p, "unsigned char *const t%d = shared + " I64 ";", id, from);
        from += cuda_tile_bytes(p->k, in);
    }
}

void cp_tile_line(KPrint *p, const char *line) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!kinst_has_tile(in)) continue;
        const char *type = dtype_info[kinst_dtype(p->k, in)].c;
        kp_text(p, "%s *const l%d = (%s *)(t%d + ", type, id, type, id);
        if (kinst_blocks(in))
            sb_printf(p->sb, "blocks_line<%s, " I64, number_type(in),
                      cuda_tile_line(p->k));
        else
            sb_puts(p->sb, "turn_line<"), put_tile_sizes(p);
        sb_printf(p->sb, ">(%s));\n", line);
    }
}

/* The buffer for one of the results from the blocks of store `of`; -1: none.
 */
static int block_buffer(KPrint *p, int of, KTile what) {
    const KInst *in = kinst_at(p->k, of);
    for (int id = of; id < p->k->insts.len; id++) {
        const KInst *x = kinst_at(p->k, id);
        if (!kinst_blocks(x) || x->in[0] != in->in[0] || x->dtype != in->dtype)
            continue;
        if (id > of && !x->shares) break; /* a tile of its own */
        if (x->tile == what) return x->buf;
    }
    return -1;
}

static void store_blocks(KPrint *p, int id, const CudaTile *tile) {
    const KInst *in = kinst_at(p->k, id);
    unsigned wants = 0;
    for (KTile t = TILE_CODES; t <= TILE_SUMS; t++)
        if (block_buffer(p, id, t) >= 0) wants |= 1u << (t - TILE_CODES);
    kp_text(p, "blocks_tile<BlocksOf<%s, ", number_type(in));
    put_tile_sizes(p);
    sb_printf(p->sb, ", " I64 ", " I64 ", %u>, %d>(\n", p->nrows, p->ncols,
              wants, cuda_shape(p->k).threads);
    kp_text(p, "    t%d", id);
    for (KTile t = TILE_CODES; t <= TILE_SUMS; t++)
        if (wants >> (t - TILE_CODES) & 1)
            sb_printf(p->sb, ", b%d", block_buffer(p, id, t));
        else
            sb_puts(p->sb, ", nullptr");
    sb_printf(p->sb, ", %s, %s);\n", tile->top, tile->left ? tile->left : "0");
}

static void store_turned(KPrint *p, int id, const CudaTile *tile) {
    char at[128];
    if (tile->left)
        snprintf(at, sizeof at, I64 "LL * %s + %s", p->nrows, tile->left,
                 tile->top);
    kp_text(p, "%s", "turn_tile<");
    put_tile_sizes(p);
    sb_printf(p->sb, ", " I64 ", %d>(\n", p->nrows, cuda_shape(p->k).threads);
    kp_line(p, "    t%d, b%d + (%s), %s, %s);", id, kinst_at(p->k, id)->buf,
            tile->left ? at : tile->top, tile->lines, tile->columns);
}

void cp_tile_store(KPrint *p, const CudaTile *tile) {
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (kinst_has_tile(in))
            (kinst_blocks(in) ? store_blocks : store_turned)(p, id, tile);
    }
}

/* A thread's elements of the tile, one after the other. */
static void put_tile_elements(KPrint *p, const KLoop *rows, const KLoop *cols) {
    const KLoop *some = kernel_loop(p->k, LOOP_SERIAL, LOOP_ALL);
    int64_t parts = cols->step / cuda_pack(p->k);
    const char *u = cp_unsigned(p), *e = some ? "e" : "threadIdx.x";
    char line[48];
    if (some)
        kp_enter(p, "for (unsigned e = threadIdx.x; e < " I64 "; e += %d)",
                 some->extent / cuda_pack(p->k), cuda_shape(p->k).threads);
    kp_line(p, "const unsigned c = %s %% " I64 " * %d;", e, parts,
            cuda_pack(p->k));
    kp_line(p, "const %s row = top + %s / " I64 ", column = left + c;", u, e,
            parts);
    bool cut = !some || p->nrows != rows->extent || p->ncols != cols->extent;
    if (cut)
        kp_enter(p, "if (row < " I64 " && column < " I64 ")", p->nrows,
                 p->ncols);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    kp_dims(p, "column", p->cols, p->ncol, p->used);
    snprintf(line, sizeof line, "%s / " I64, e, parts);
    cp_tile_line(p, line);
    kp_sweeps(p, kp_row_insts, cp_sweep);
    kp_stores(p, false);
    if (cut) kp_leave(p);
    if (some) kp_leave(p);
}

void cp_tile(KPrint *p) {
    const Kernel *k = p->k;
    const KLoop *rows = kernel_loop(k, LOOP_BLOCK, LOOP_ROWS),
                *cols = kernel_loop(k, LOOP_BLOCK, k->vec);
    const char *u = cp_unsigned(p);
    char lines[96], columns[96];
    kp_line(p, "BLOCK_SHARED(shared);");
    cp_tiles(p, 0);
    kp_line(p, "const %s top = %s / " I64 " * " I64 ";", u, p->block,
            loop_steps(cols), rows->step);
    kp_line(p, "const %s left = %s %% " I64 " * " I64 ";", u, p->block,
            loop_steps(cols), cols->step);
    put_tile_elements(p, rows, cols);
    kp_line(p, "__syncthreads();");
    snprintf(lines, sizeof lines,
             "(unsigned)(" I64 " - top < %d ? " I64 " - top : %d)", p->nrows,
             TURN_SIDE, p->nrows, TURN_SIDE);
    snprintf(columns, sizeof columns,
             "(unsigned)(" I64 " - left < " I64 " ? " I64 " - left : " I64 ")",
             p->ncols, cols->step, p->ncols, cols->step);
    cp_tile_store(p, &(CudaTile){"top", "left", lines, columns});
}
