/* SPDX-License-Identifier: Apache-2.0 */
/* print.h: declarations shared by the printers of C and of CUDA. */
#ifndef AMPC_CODEGEN_KERNEL_PRINT_H
#define AMPC_CODEGEN_KERNEL_PRINT_H

#include "codegen/kernel/schedule.h"

#include <inttypes.h>

#define I64 "%" PRId64

/* ---- scalar expressions (print_expr.c), for every printer ---------------- */

/* Spells an instruction that computes (K_OP, K_CVT, K_ROUND, K_PHILOX) in C or
   CUDA; operands are v<number>, constants are written out. */
void sb_put_kinst(StrBuf *sb, const Kernel *k, const KInst *in);
void sb_put_operand(StrBuf *sb, const Kernel *k, int id);
/* expr of an op of the table over operands spelled a and b. */
void sb_put_fold(StrBuf *sb, OpCode code, KType t, const char *a,
                 const char *b);
/* Prints a number in which kernels of equal text may differ (print_c.c):
   between marks if k->marks is set and the number is not small. Kind: 'i'
   int64_t, 'u' uint32_t. */
void sb_put_size(StrBuf *sb, const Kernel *k, char kind, int64_t n);
/* Start value of a reduction. */
const char *fold_start(OpCode code, KType t);
extern const char *const ktype_c[];      /* "uint8_t", "int64_t", ...       */
extern const char *const ktype_suffix[]; /* "_B8", "_I64", "_F32", "_F64"   */

/* ---- places (print_place.c), for every printer --------------------------- */

/* An index in terms of i<dim> and v<number>; `vec` spells the index of dim
   k->vec; NULL: as i<dim>. */
void sb_put_index(StrBuf *sb, const Kernel *k, const KIndex *at,
                  const char *vec);
/* Prints the address that a load or store uses: b<buf>, or its K_PLACE. */
void sb_put_buffer(StrBuf *sb, const Kernel *k, const KInst *in);
/* k->comment and the loops as a comment. */
void sb_put_kernel_comment(StrBuf *sb, const Kernel *k);

/* ---- a kernel being printed (print_place.c) ------------------------------ */

typedef struct KPrint {
    const Kernel *k;
    StrBuf *sb;
    Arena *arena;
    KSweeps sweeps;
    int cols[MAX_RANK], ncol;
    int rows[MAX_RANK], nrow;     /* form rows: dim vec and its side are left
                                     out */
    int side;                     /* kernel_side */
    int64_t ncols, nrows;         /* products of the extents, including vec */
    const KLoop *threads, *lanes; /* the innermost loops of their kind; NULL:
                                     none */
    const char *acc;              /* K_ACC */
    bool *piece; /* loads and stores that use element h<id>[piece_at], in
                    fp32; the stores round it later. NULL: none */
    const char *piece_at;
    const char *lane;    /* C: position in the current block; or NULL */
    char sums;           /* array to which sums of a block are added: t or u */
    bool in_order;       /* bf16 values of a piece are rounded in memory
                            order */
    bool *before;        /* instructions computed before this loop; or NULL */
    const char *block;   /* CUDA: the number of this block */
    bool wide;           /* indices need 64 bits */
    bool narrow_cols;    /* CUDA: column indices fit 32 bits */
    bool used[MAX_RANK]; /* dims that an index mentions */
    int depth;           /* levels of indentation */
} KPrint;

/* Ends with kp_end. */
KPrint kp_begin(const Kernel *k, StrBuf *sb);
void kp_end(KPrint *p);
/* Prints a line, the head of a block, its end, or the beginning of a line. */
void kp_line(KPrint *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void kp_enter(KPrint *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void kp_leave(KPrint *p);
void kp_text(KPrint *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Prints const v<id> = ..; place: the load's address, NULL: b<buf>[index]. */
void kp_inst(KPrint *p, int id, const char *place);
/* Prints the row values of one depth: values that the sweep with this depth
   may use and earlier sweeps could not. */
void kp_row_insts(KPrint *p, int depth);
/* The depth of the row values that are computed last. */
int kp_last_depth(const KPrint *p);
/* Prints all sweeps, and before each the row values that it may use. */
void kp_sweeps(KPrint *p, void row_values(KPrint *, int depth),
               void sweep(KPrint *, const KSweep *));
/* ---- the nest of a sweep ------------------------------------------------- */

/* The loops of a kernel around one element, as a printer spells them:
   loop[kind] opens a loop, calls kp_nest for its body, and closes it. */
typedef struct Nest {
    KPrint *p;
    const KSweep *s;
    const struct Spelling *spell;
    int depth; /* loops that are open */
    int cut;   /* the current piece [from, to) is a part of this dim; -1: no
                  piece */
    const char *from, *to;
} Nest;
typedef struct Spelling {
    void (*element)(Nest *n);
    void (*loop[LOOP_KINDS])(Nest *n, const KLoop *l);
} Spelling;
void kp_nest(Nest *n);
/* A loop that is spelled around all sweeps. */
void kp_loop_outside(Nest *n, const KLoop *l);

/* ---- stores and dims ----------------------------------------------------- */

/* Prints the statement of a K_STORE; place as above. */
void kp_store(KPrint *p, int id, const char *place);
/* Prints a K_ADD_UP: adds the operand to the sum of its column. */
void kp_add_up(KPrint *p, int id, const char *place);
/* Prints the full stores, or the others. */
void kp_stores(KPrint *p, bool full);
bool kp_has_stores(const KPrint *p, bool full);
/* Declares the indices of the n dims that are `used` (NULL: of all),
   computed from the flat index `of`. */
void kp_dims(KPrint *p, const char *of, const int *dim, int n,
             const bool *used);
const char *kp_signed(const KPrint *p); /* type of indices */

#endif
