/* SPDX-License-Identifier: Apache-2.0 */
/* print_tile.c: a matrix product and the element-wise kernel behind it as one
   kernel in CUDA Tile C++ (cuda.h).

   runtime/cuda/tile_product.cuh has the product; what is printed behind it is
   the kernel IR, an instruction a line, on tiles of the result instead of
   numbers. Every value is rounded where the IR says so. */
#include "codegen/cuda/cuda.h"
#include "codegen/embed.h"
#include "codegen/kernel/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what fits ----------------------------------------------------------- */

/* The parts of the product's result that an access walks. */
typedef enum Walk { WALK_ALL, WALK_COLUMNS, WALK_NUMBER, WALK_OTHER } Walk;

static Walk tile_walk(const Kernel *k, const LibGemm *p, const KIndex *at) {
    const int64_t *by = at->k;
    if (at->c || at->inst || k->ndim > 2) return WALK_OTHER;
    if (k->ndim == 1)
        return by[0] == 1 ? WALK_ALL : by[0] ? WALK_OTHER : WALK_NUMBER;
    if (by[0] == p->n && by[1] == 1) return WALK_ALL;
    if (by[0]) return WALK_OTHER;
    return by[1] == 1 ? WALK_COLUMNS : by[1] ? WALK_OTHER : WALK_NUMBER;
}

static bool tile_number(int64_t dtype) {
    return dtype == DT_F32 || dtype_is_low((DType)dtype);
}

static bool tile_has_function(const char *name, size_t n) {
    char define[40];
    snprintf(define, sizeof define, " %.*s_F32(", (int)n, name);
    for (size_t i = 0; i < embed_nfile; i++)
        if (!strcmp(embed_files[i].name, "runtime/cuda/tile_product.cuh"))
            return strstr(embed_files[i].data, define);
    return false;
}

/* True if the op's expression means the same for tiles: it adds and multiplies
   operands, and tile_product.cuh has its functions. */
static bool has_op(OpCode op) {
    const char *e = op_info[op].expr;
    if (!e) return false;
    for (size_t n; *e; e += n) {
        n = strspn(e, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        if (n ? !tile_has_function(e, n) : !strchr("abc+-* (),", *e))
            return false;
        n += !n;
    }
    return true;
}

static bool inst_fits(const Kernel *k, const LibGemm *p, const KInst *in) {
    if (in->type != KT_F32 && !kinst_stores(in)) return false;
    switch (in->op) {
    case K_CONST: return true;
    case K_LOAD:
        return !in->guard && !in->place &&
               tile_number(k->bufs.data[in->buf].dtype) &&
               tile_walk(k, p, &in->at) != WALK_OTHER;
    case K_STORE:
        return !in->tile && kinst_at(k, in->in[0])->full &&
               tile_number(k->bufs.data[in->buf].dtype) &&
               tile_walk(k, p, &in->at) == WALK_ALL;
    case K_OP: return in->full && in->compute == KT_F32 && has_op(in->code);
    case K_ROUND: return in->full && dtype_is_low(in->dtype);
    default: return false;
    }
}

/* tileiras unrolls everything: with several long functions values go to local
   memory, and it takes a minute. */
enum { MOST_LONG = 1 };

static bool kernel_fits(const LoweredStep *s, const LibGemm *p) {
    const Kernel *k = s->kernel;
    bool flat = k->form == KF_FLAT;
    if ((!flat && k->form != KF_COLS) || k->ndim < 1 || k->ndim > 2 ||
        kernel_reduces(k))
        return false;
    if (flat           ? s->pars[0] != p->m * p->n
        : k->ndim == 1 ? k->dim[0].extent != p->m * p->n
                       : k->dim[0].extent != p->m || k->dim[1].extent != p->n)
        return false;
    int longs = 0;
    for (int id = 1; id < k->insts.len; id++) {
        const KInst *in = kinst_at(k, id);
        if (!inst_fits(k, p, in)) return false;
        longs += kinst_is_long(in);
    }
    return longs <= MOST_LONG;
}

/* Rows of operands and results begin at 16 bytes, so that the GPU's unit for
   tiles of memory copies them; sizes fit tensor cores (32 x 32 x 16 at least:
   for less, tileiras takes multiply-adds of single numbers, and says
   nothing). */
static bool product_fits_tile(const LibGemm *p, uint32_t how) {
    enum { LEAST = 32, WHOLE = 8 };
    bool a = p->a_cs == 1 ? p->a_rs == p->k : p->a_rs == 1 && p->a_cs == p->m;
    bool b = p->b_cs == 1 ? p->b_rs == p->n : p->b_rs == 1 && p->b_cs == p->k;
    return dtype_is_low((DType)p->a_dtype) && p->a_dtype == p->b_dtype &&
           tile_number(p->c_dtype) && p->nbatch_dim == 0 && a && b &&
           (how == PLAN_PRODUCT_PLAIN || how == PLAN_PRODUCT_BIAS ||
            how == PLAN_PRODUCT_ADD) &&
           p->m >= LEAST && p->n >= LEAST && p->k >= LEAST &&
           p->n % WHOLE == 0 && p->k % WHOLE == 0 &&
           (p->a_cs == 1 || p->m % WHOLE == 0) && p->m * p->n <= INT32_MAX &&
           p->m * p->k <= INT32_MAX && p->k * p->n <= INT32_MAX;
}

/* ---- the text ------------------------------------------------------------ */

static int64_t tile_size(int64_t n, int64_t most) {
    while (most > 32 && most > n) most /= 2;
    return most;
}

typedef struct TilePrint {
    const TileStep *t;
    int number;
    StrBuf *sb;
} TilePrint;

static const char *tile_type(int64_t dtype) { return dtype_info[dtype].cuda; }

/* Members of T<number>; returns the number of blocks. */
static int64_t put_sizes_of(const TilePrint *x) {
    enum { COLUMNS = 128, DEPTH = 64 };
    const LibGemm *p = x->t->product;
    int64_t rows = tile_size(p->m, x->t->rows);
    int64_t columns = tile_size(p->n, COLUMNS);
    sb_printf(x->sb,
              "    typedef %s factor;\n"
              "    static constexpr int m = " I64 ", n = " I64 ", k = " I64
              ";\n"
              "    static constexpr int rows = " I64 ", columns = " I64
              ", depth = " I64 ";\n"
              "    static constexpr bool turn_a = %s, turn_b = %s;\n};\n\n",
              tile_type(p->a_dtype), p->m, p->n, p->k, rows, columns,
              tile_size(p->k, DEPTH), p->a_cs == 1 ? "false" : "true",
              p->b_cs == 1 ? "false" : "true");
    return ((p->m + rows - 1) / rows) * ((p->n + columns - 1) / columns);
}

static void put_tile_params(const TilePrint *x) {
    const TileStep *t = x->t;
    const char *of = tile_type(t->product->a_dtype);
    const char *y = tile_type(t->product->c_dtype);
    sb_printf(x->sb, "const %s *a, const %s *b", of, of);
    if (t->how != PLAN_PRODUCT_PLAIN) sb_printf(x->sb, ", const %s *add", y);
    if (t->kept) sb_printf(x->sb, ", %s *y", y);
    for (int b = 0; b < t->kernel->bufs.len; b++) {
        const KBuf *buf = &t->kernel->bufs.data[b];
        if (b != t->buf)
            sb_printf(x->sb, ", %s%s *b%d", buf->written ? "" : "const ",
                      tile_type(buf->dtype), b);
    }
}

/* y0: the product as it is stored. */
static void put_tile_product(const TilePrint *x) {
    const TileStep *t = x->t;
    int64_t to = t->product->c_dtype;
    sb_printf(x->sb,
              "    const auto at = tile_place<T%d>();\n"
              "    const auto sum = tile_product<T%d>(a, b, at);\n"
              "    const auto y0 = ",
              x->number, x->number);
    if (dtype_is_low((DType)to))
        sb_printf(x->sb, "ROUND_%s", dtype_info[to].macro);
    sb_puts(x->sb, "(sum");
    if (t->how != PLAN_PRODUCT_PLAIN)
        sb_printf(x->sb, " + %s<T%d>(add, at)",
                  t->how == PLAN_PRODUCT_BIAS ? "tile_columns" : "tile_all",
                  x->number);
    sb_puts(x->sb, ");\n");
    if (t->kept)
        sb_printf(x->sb, "    tile_store<T%d>(y, y0, at);\n", x->number);
}

static void put_tile_inst(const TilePrint *x, int id) {
    static const char *const load[] = {[WALK_ALL] = "tile_all",
                                       [WALK_COLUMNS] = "tile_columns",
                                       [WALK_NUMBER] = "tile_number"};
    const Kernel *k = x->t->kernel;
    const KInst *in = kinst_at(k, id);
    if (in->op == K_CONST) return;
    if (in->op == K_STORE) {
        sb_printf(x->sb, "    tile_store<T%d>(b%d, ", x->number, in->buf);
        sb_put_operand(x->sb, k, in->in[0]);
        sb_puts(x->sb, ", at);\n");
        return;
    }
    sb_printf(x->sb, "    const auto v%d = ", id);
    if (in->op == K_LOAD && in->buf == x->t->buf)
        sb_puts(x->sb, "y0");
    else if (in->op == K_LOAD)
        sb_printf(x->sb, "%s<T%d>(b%d, at)",
                  load[tile_walk(k, x->t->product, &in->at)], x->number,
                  in->buf);
    else
        sb_put_kinst(x->sb, k, in);
    sb_puts(x->sb, ";\n");
}

/* Returns the number of blocks. */
static int64_t print_tile(const TilePrint *x) {
    const LibGemm *p = x->t->product;
    const Kernel *k = x->t->kernel;
    sb_printf(x->sb, "/* %s[" I64 "," I64 "], sums of " I64 ", then:\n%s */\n",
              dtype_info[p->c_dtype].text, p->m, p->n, p->k,
              k->comment ? k->comment : "");
    sb_printf(x->sb, "struct T%d {\n", x->number);
    int64_t blocks = put_sizes_of(x);
    sb_printf(x->sb, "extern \"C\" __tile_global__ void t%d(", x->number);
    put_tile_params(x);
    sb_puts(x->sb, ")\n{\n");
    put_tile_product(x);
    for (int id = 1; id < k->insts.len; id++) put_tile_inst(x, id);
    sb_puts(x->sb, "}\n");
    return blocks;
}

/* ---- kernels ------------------------------------------------------------- */

static const char *tile_text(Arena *a, const TileStep *t, int number,
                             int64_t *blocks) {
    StrBuf sb = {0};
    *blocks = print_tile(&(TilePrint){t, number, &sb});
    const char *text = arena_dup(a, sb.data, sb.len + 1);
    sb_free(&sb);
    return text;
}

/* Kernels of equal text are one. */
uint32_t cuda_tile_add(Arena *a, CudaSource *c, const TileStep *t) {
    PlanTile x;
    const char *key = tile_text(a, t, 0, &x.blocks);
    for (int i = 0; i < c->tiles.len; i++)
        if (!strcmp(c->tile_keys.data[i], key)) return (uint32_t)i;
    x.name = arena_printf(a, "t%d", c->tiles.len);
    vec_push(a, &c->tile_keys, key);
    vec_push(a, &c->tile_bodies, tile_text(a, t, c->tiles.len, &x.blocks));
    vec_push(a, &c->tiles, x);
    return (uint32_t)c->tiles.len - 1;
}

/* Without tensor memory or wgmma, larger tiles leave too few registers. */
static int most_rows(const CudaArchs *archs) {
    enum { PLAIN = 120, SMALL = 64, LARGE = 128 };
    return archs->len && atoi(archs->data[0] + 3) >= PLAIN ? SMALL : LARGE;
}

bool cuda_tile_fits(Arena *a, const CudaSource *c, const LoweredStep *s,
                    TileStep *out) {
    static const int operand[] = {0, 1, 3};
    LoweredStep product = s[0];
    if (s[0].lib != PLAN_LIB_GEMM || s[1].nref + 4 > TILE_REFS ||
        !cuda_product(a, &s[0], &product))
        return false;
    *out = (TileStep){.product = (const void *)product.pars,
                      .how = s[0].epilogue ? product.fn : PLAN_PRODUCT_PLAIN,
                      .kernel = s[1].kernel,
                      .rows = most_rows(&c->tile_archs),
                      .buf = -1,
                      .result = product.refs[2]};
    out->nref = out->how == PLAN_PRODUCT_PLAIN ? 2 : 3;
    for (int i = 0; i < out->nref; i++) out->refs[i] = product.refs[operand[i]];
    return product_fits_tile(out->product, out->how) &&
           kernel_fits(&s[1], out->product);
}

void cuda_tile_refs(const LoweredStep *s, TileStep *t) {
    if (t->kept) {
        t->refs[t->nref] = t->result;
        t->written[t->nref++] = true;
    }
    for (int i = 0; i < s[1].nref; i++) {
        if (i == t->buf) continue;
        t->refs[t->nref] = s[1].refs[i];
        t->written[t->nref++] = t->kernel->bufs.data[i].written;
    }
}

void cuda_tile_unit(Arena *a, CudaSource *c) {
    StrBuf sb = {0};
    if (!c->tiles.len) return;
    sb_puts(&sb, "#include \"tile_product.cuh\"\n\n");
    for (int i = 0; i < c->tile_bodies.len; i++)
        sb_printf(&sb, "%s\n", c->tile_bodies.data[i]);
    c->tile_unit = (CudaUnit){arena_dup(a, sb.data, sb.len + 1), sb.len};
    sb_free(&sb);
}
