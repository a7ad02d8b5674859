/* SPDX-License-Identifier: Apache-2.0 */
/* print_cuda_rows.c: kernels with constant extents: a thread's
   elements, and the rows that threads fold (print_cuda.h).                  */
#include "codegen/cuda/print_cuda.h"

#include <stdio.h>

/* ---- rows of a thread ---------------------------------------------------- */

/* The lane selects the row along dim `vec`, the block selects the other
   dims. */
static void put_rows_of_lanes(KPrint *p) {
    int vec = p->k->vec;
    const KLoop *block = kernel_loop(p->k, LOOP_BLOCK, vec);
    int64_t nb = loop_steps(block);
    const char *u = cp_unsigned(p);
    kp_text(p, "const %s r = ", u);
    if (nb > 1)
        sb_printf(p->sb, "%s %% " I64 " * " I64 " + ", p->block, nb,
                  block->step);
    sb_printf(p->sb, "threadIdx.x %% " I64, loop_steps(p->threads));
    if (cp_lane_rows(p) > 1) sb_printf(p->sb, " * %d", cp_lane_rows(p));
    sb_puts(p->sb, ";\n");
    if (cp_has_idle(p)) {
        kp_line(p, "const bool live = r < " I64 ";", block->extent);
        kp_line(p, "const %s i%d = live ? r : " I64 ";", kp_signed(p), vec,
                block->extent - 1);
    } else {
        kp_line(p, "const %s i%d = r;", kp_signed(p), vec);
    }
    if (cp_any_used(p, p->rows, p->nrow))
        kp_line(p, "const %s row = %s / " I64 ";", u, p->block, nb);
}

static void put_rows_of_teams(KPrint *p) {
    const char *u = cp_unsigned(p);
    const KLoop *some = cp_sum_rows(p);
    bool used = cp_any_used(p, p->rows, p->nrow), idle = cp_has_idle(p);
    bool teams = p->threads && p->threads->extent > 1;
    int64_t each = some ? some->extent : teams ? p->threads->extent : 1;
    if (!used && !idle) return;
    kp_text(p, "const %s %s = %s%s", u, idle ? "r" : "row",
            p->wide && each > 1 ? "(uint64_t)" : "", p->block);
    if (each > 1) sb_printf(p->sb, " * " I64, each);
    if (some) sb_puts(p->sb, " + at");
    if (teams) sb_printf(p->sb, " + threadIdx.x / " I64, p->lanes->step);
    sb_puts(p->sb, ";\n");
    if (idle) kp_line(p, "const bool live = r < " I64 ";", p->nrows);
    if (idle && used)
        kp_line(p, "const %s row = live ? r : " I64 ";", u, p->nrows - 1);
}

/* ---- sweeps -------------------------------------------------------------- */

static void put_cuda_element(Nest *n) {
    cp_neighbours(n->p, n->s, n->p->lanes ? 1 : cuda_pack(n->p->k), "");
}

/* Prints the end of part<depth>, and the vectors that a thread stores
   through it: whole ones without a check, and the row's last with one. */
static void put_parts(KPrint *p, const KSweep *s, const char *type, int pack,
                      int64_t step) {
    p->depth--;
    kp_line(p, "};");
    kp_line(p, "%s c%d = t * %d;", type, s->depth, pack);
    kp_line(p, "for (; c%d + %d <= " I64 "; c%d += " I64 ")", s->depth, pack,
            p->ncols, s->depth, step);
    kp_line(p, "    part%d(c%d, %d);", s->depth, s->depth, pack);
    kp_line(p, "if (c%d < " I64 ")", s->depth, p->ncols);
    kp_line(p, "    part%d(c%d, (int)(" I64 " - c%d));", s->depth, s->depth,
            p->ncols, s->depth);
}

/* A thread takes columns t, t + T, .., or n neighbours there; each fold is
   f<id>(a, b), its accumulator v<id>. Held values require a loop of known
   length.
 */
static void put_lanes(Nest *n, const KLoop *l) {
    KPrint *p = n->p;
    const KSweep *s = n->s;
    const bool *held = kernel_held(p->k, &p->sweeps, s, p->arena);
    bool *need = kernel_need(p->k, s, held, p->arena), used[MAX_RANK] = {0};
    bool holds = held != NULL, sums = false;
    int side = cp_lane_rows(p), pack = cuda_pack(p->k) / side; /* of columns */
    int64_t step = l->step * pack, loops = (p->ncols + step - 1) / step;
    char place[32];
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        const KInst *r = kinst_at(p->k, id);
        const char *type = ktype_c[r->compute];
        cp_fold_function(p, id);
        const char *start = fold_start(r->code, r->compute);
        if (side == 1) {
            kp_line(p, "%s v%d = %s;", type, id, start);
            continue;
        }
        kp_line(p, "%s w%d[%d];", type, id, side);
        kp_line(p, "UNROLL");
        kp_line(p, "for (int u = 0; u < %d; u++) w%d[u] = %s;", side, id,
                start);
    }
    for (int j = 0; j < s->roots.len; j++) need[s->roots.data[j]] = true;
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (!need[id]) continue;
        bool fetched = cuda_fetched(p->k, id);
        bool apart = in->op == K_ADD_UP || in->tile;
        sums |= apart;
        if ((!held || !held[id]) && !fetched && !cp_is_copied(p, s, id) &&
            !apart)
            cp_mark_used(in, used);
        holds |= fetched;
        if (in->keep != KEEP_ROW || fetched) continue;
        holds = true;
        if (!held || !held[id])
            kp_line(p, "%s h%d[" I64 "];", ktype_c[in->type], id, loops * pack);
    }
    if (p->ncols > 0) {
        const char *u = cp_columns_unsigned(p);
        bool cut = !holds && cp_has_cut(p, pack * side);
        int open = 1;
        snprintf(place, sizeof place, pack > 1 ? "j * %d" : "j", pack);
        if (holds) {
            bool index = sums;
            for (int i = 0; i < p->ncol; i++) index |= used[p->cols[i]];
            open = cp_enter_columns(p, index);
        } else if (cut) { /* the last vector is printed separately */
            kp_enter(p, "const auto part%d = [&](%s c, int left)", s->depth, u);
        } else if (pack > 1) {
            kp_enter(p, "for (%s c = t * %d; c < " I64 "; c += " I64 ")", u,
                     pack, p->ncols, step);
        } else {
            kp_enter(p, "for (%s c = t; c < " I64 "; c += " I64 ")", u,
                     p->ncols, step);
        }
        kp_dims(p, "c", p->cols, p->ncol, used);
        if (holds && cp_has_cut(p, pack * side))
            kp_line(p, "const int left = (int)(" I64 " - c);", p->ncols);
        cp_neighbours(p, s, pack * side, place);
        if (cut)
            put_parts(p, s, u, pack, step);
        else
            while (open--) kp_leave(p);
    }
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        if (side > 1) kp_line(p, "UNROLL");
        if (side > 1) kp_enter(p, "for (int u = 0; u < %d; u++)", side);
        kp_line(p,
                side > 1 ? "w%d[u] = fold_%s<" I64 ">(w%d[u], f%d);"
                         : "v%d = fold_%s<" I64 ">(v%d, f%d);",
                id,
                cp_is_sliced(p) ? "slices"
                : p->threads    ? "lanes"
                                : "block",
                l->step, id, id);
        if (side > 1) kp_leave(p);
    }
}

void cp_sweep(KPrint *p, const KSweep *s) {
    static const Spelling cuda = {.element = put_cuda_element,
                                  .loop = {[LOOP_BLOCK] = kp_loop_outside,
                                           [LOOP_SERIAL] = kp_loop_outside,
                                           [LOOP_THREAD] = kp_loop_outside,
                                           [LOOP_UNROLLED] = kp_loop_outside,
                                           [LOOP_LANES] = put_lanes}};
    Nest n = {.p = p, .s = s, .spell = &cuda};
    kp_nest(&n);
}

/* ---- kernels ------------------------------------------------------------- */

void cp_elements(KPrint *p) {
    int all[MAX_RANK];
    for (int d = 0; d < p->k->ndim; d++) all[d] = d;
    int n = cuda_pack(p->k);
    kp_text(p, "const %s e = %s%s%s * " I64 " + threadIdx.x", cp_unsigned(p),
            n > 1 ? "(" : "", p->wide ? "(uint64_t)" : "", p->block,
            loop_steps(p->threads));
    if (n > 1) sb_printf(p->sb, ") * %d", n);
    sb_puts(p->sb, ";\n");
    kp_line(p, "if (e >= " I64 ") return;", p->nrows * p->ncols);
    kp_dims(p, "e", all, p->k->ndim, p->used);
    kp_sweeps(p, kp_row_insts, cp_sweep);
    kp_stores(p, false);
}

/* Declares shared memory for copies of a row's loads; each copy is read by
   the thread that wrote it. */
static void put_shared(KPrint *p) {
    if (cuda_shared(p->k, 0) > 0) kp_line(p, "BLOCK_SHARED(shared);");
    for (int id = 1; id < p->k->insts.len; id++) {
        const KInst *in = kinst_at(p->k, id);
        if (in->keep != KEEP_SHARED) continue;
        const char *type = cp_type(p->k, in->buf);
        kp_line(p, "%s *const s%d = (%s *)(shared + " I64 ");", type, id, type,
                cuda_shared(p->k, id));
    }
}

/* ---- sums of columns ----------------------------------------------------- */

/* The instruction of a kernel's j-th sum. */
static int column_sum(const Kernel *k, int j) {
    int id = 1;
    while (kinst_at(k, id)->op != K_ADD_UP || j-- > 0) id++;
    return id;
}

/* Declares the sums of all teams, which begin at 0. */
static void put_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k);
    int n = kernel_column_sums(p->k);
    if (!n) return;
    kp_line(p, "float *const all = (float *)shared;");
    for (int j = 0; j < n; j++) {
        kp_text(p, "float *const a%d = all", column_sum(p->k, j));
        if (j) sb_printf(p->sb, " + " I64, j * teams * cols);
        if (teams > 1)
            sb_printf(p->sb, " + threadIdx.x / " I64 " * " I64, p->lanes->step,
                      cols);
        sb_puts(p->sb, ";\n");
    }
    kp_line(p,
            "for (unsigned c = threadIdx.x; c < " I64 "; c += %d) all[c] = 0;",
            n * teams * cols, cuda_shape(p->k).threads);
    kp_line(p, "__syncthreads();");
}

/* Adds up the sums of all teams of the block. */
static void put_block_sums(KPrint *p) {
    int64_t teams = p->threads ? p->threads->extent : 1;
    int64_t cols = cuda_sum_columns(p->k), blocks = cuda_shape(p->k).blocks;
    int n = kernel_column_sums(p->k);
    if (!n) return;
    kp_line(p, "__syncthreads();");
    kp_enter(p, "for (unsigned c = threadIdx.x; c < " I64 "; c += %d)",
             p->ncols, cuda_shape(p->k).threads);
    for (int j = 0; j < n; j++) {
        kp_line(p, "float v%d = all[c + " I64 "];", j, j * teams * cols);
        for (int64_t w = 1; w < teams; w++)
            kp_line(p, "v%d += all[c + " I64 "];", j, (j * teams + w) * cols);
        kp_line(p, "sums[(" I64 " + %s) * " I64 " + c] = v%d;", j * blocks,
                p->block, p->ncols, j);
    }
    kp_leave(p);
}

void cp_finish(KPrint *p, bool guarded) {
    enum { WARP = 32 };
    const Kernel *k = p->k;
    int64_t blocks = cuda_shape(k).blocks, side = (p->ncols - 1) / WARP + 1;
    int n = kernel_column_sums(k), slices = cuda_finish_shape(k).threads / WARP;
    CudaList l = cp_head(p, "_2", slices * WARP);
    cp_buffers(k, &l);
    cp_item(&l, "const float *__restrict__ sums");
    print_cuda_guard(guarded, p->sb);
    p->depth = 1;
    kp_line(
        p, "const unsigned c = blockIdx.x %% " I64 " * 32 + threadIdx.x %% 32;",
        side);
    kp_line(p, "const unsigned sum = blockIdx.x / " I64 ";", side);
    kp_line(p, "const auto f = [](float a, float b) -> float { return a + b; "
               "};");
    kp_line(p, "float v = 0;");
    kp_line(p, "if (c < " I64 ")", p->ncols);
    kp_line(p, "    for (unsigned s = threadIdx.x / 32; s < " I64 "; s += %d)",
            blocks, slices);
    kp_line(p, "        v += sums[(sum * " I64 " + s) * " I64 " + c];", blocks,
            p->ncols);
    kp_line(p, "v = fold_slices<%d>(v, f);", slices);
    kp_line(p, "if (threadIdx.x >= 32 || c >= " I64 ") return;", p->ncols);
    for (int j = 0; j < n; j++) {
        int id = column_sum(k, j), b = kinst_at(k, id)->buf;
        DType d = k->bufs.data[b].dtype;
        kp_line(p, "if (sum == %d) b%d[c] = %s%s(v);", j, b,
                dtype_is_low(d) ? "F32_TO_" : "",
                dtype_is_low(d) ? dtype_info[d].macro : "");
    }
    sb_puts(p->sb, "}\n\n");
}

/* ---- rows of a block ----------------------------------------------------- */

/* A team's work on n adjacent rows from i<vec> on: one sweep, then the row
   instructions of each (row_neighbours). */
static void put_side_by_side(KPrint *p, int n) {
    const KSweep *s = p->sweeps.data;
    cp_own_values(p, n);
    cp_sweep(p, s);
    kp_line(p, "__syncthreads();");
    kp_line(p, "if (t != 0) return;");
    kp_line(p, "UNROLL");
    kp_enter(p, "for (int u = 0; u < %d; u++)", n);
    kp_line(p, "const %s i%d = r + u;", kp_signed(p), p->k->vec);
    for (int j = 0; j < s->nfold; j++) {
        int id = s->roots.data[j];
        kp_line(p, "const %s v%d = w%d[u];",
                ktype_c[kinst_at(p->k, id)->compute], id, id);
    }
    cp_take_own_values(p, false);
    for (int depth = 1; depth <= kp_last_depth(p); depth++)
        kp_row_insts(p, depth);
    kp_stores(p, false);
    kp_leave(p);
}

/* The team's row in the tiles. */
static void put_line_of_team(KPrint *p) {
    char line[80], team[48] = "";
    int64_t lines = cuda_tile_lines(p->k);
    if (!lines) return;
    if (p->threads && p->threads->extent > 1)
        snprintf(team, sizeof team, " + threadIdx.x / " I64, p->lanes->step);
    snprintf(line, sizeof line, "at %% " I64 "%s", lines, team);
    cp_tile_line(p, line);
}

/* Stores the tiles once they are full. */
static void put_tiled_rows(KPrint *p, const KLoop *some) {
    char top[96], lines[32], columns[32];
    int64_t n = cuda_tile_lines(p->k);
    if (!n) return;
    snprintf(top, sizeof top, "%s%s * " I64 " + at / " I64 " * " I64,
             p->wide ? "(uint64_t)" : "", p->block, some->extent, n, n);
    snprintf(lines, sizeof lines, I64, n);
    snprintf(columns, sizeof columns, I64, p->ncols);
    kp_enter(p, "if ((at + " I64 ") %% " I64 " == 0)", some->step, n);
    kp_line(p, "__syncthreads();");
    cp_tile_store(p, &(CudaTile){top, NULL, lines, columns});
    kp_line(p, "__syncthreads();");
    kp_leave(p);
}

/* A team's work on one row. */
static void put_cuda_row(KPrint *p) {
    bool idle = cp_has_idle(p), shared = p->lanes->step > 1;
    if (cp_is_sliced(p))
        put_rows_of_lanes(p);
    else
        put_rows_of_teams(p);
    kp_dims(p, "row", p->rows, p->nrow, p->used);
    put_line_of_team(p);
    if (cp_lane_rows(p) > 1) {
        put_side_by_side(p, cp_lane_rows(p));
        return;
    }
    if (p->ncols > 0) cp_fetched(p);
    kp_sweeps(p, kp_row_insts, cp_sweep);
    if (!kp_has_stores(p, false)) return;
    if (shared)
        kp_line(p, p->threads && !cp_is_sliced(p) ? "__syncwarp();"
                                                  : "__syncthreads();");
    if (shared || idle)
        kp_enter(p, "if (%s%s%s)", shared ? "t == 0" : "",
                 shared && idle ? " && " : "", idle ? "live" : "");
    kp_stores(p, false);
    if (shared || idle) kp_leave(p);
}

void cp_rows(KPrint *p) {
    const KLoop *some = cp_sum_rows(p);
    if (p->ncols > 0) {
        kp_text(p, "const unsigned t = threadIdx.x");
        if (p->threads)
            sb_printf(p->sb, cp_is_sliced(p) ? " / " I64 : " %% " I64,
                      cp_is_sliced(p) ? loop_steps(p->threads)
                                      : p->lanes->step);
        sb_puts(p->sb, ";\n");
    }
    for (int b = 0; p->ncols == 0 && b < p->k->bufs.len; b++)
        if (!p->k->bufs.data[b].written) kp_line(p, "(void)b%d;", b);
    put_shared(p);
    if (!some) {
        put_cuda_row(p);
        return;
    }
    kp_line(p, "BLOCK_SHARED(shared);");
    put_sums(p);
    cp_tiles(p, cuda_shape(p->k).shared - cuda_tiles_bytes(p->k));
    kp_enter(p, "for (unsigned at = 0; at < " I64 "; at += " I64 ")",
             some->extent, some->step);
    if (cp_has_idle(p))
        kp_line(p, "if (%s%s * " I64 " + at >= " I64 ") break;",
                p->wide ? "(uint64_t)" : "", p->block, some->extent, p->nrows);
    put_cuda_row(p);
    put_tiled_rows(p, some);
    kp_leave(p);
    put_block_sums(p);
}
