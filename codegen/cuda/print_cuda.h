/* print_cuda.h: what the print_cuda*.c files share. */
#ifndef AMPC_CODEGEN_CUDA_PRINT_CUDA_H
#define AMPC_CODEGEN_CUDA_PRINT_CUDA_H

#include "codegen/cuda/cuda.h"
#include "codegen/kernel/schedule.h"

/* A list of parameters or arguments, at least `indent` from the left. */
typedef struct List {
    StrBuf *sb;
    int indent;
    bool begun;
} List;
/* One item, on a new line where the line would get too long. */
void cu_item(List *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

typedef struct CuPrint {
    const Kernel *k;
    StrBuf *sb;
    Arena *arena;
    int cols[MAX_RANK], ncol;
    int rows[MAX_RANK], nrow;
    int64_t ncols, nrows; /* products of the extents */
    bool wide;            /* indices need 64 bits */
    bool used[MAX_RANK];  /* dims that an index mentions */
    int depth;            /* of indentation */
} CuPrint;

/* Ends with cu_end. */
CuPrint cu_begin(const Kernel *k, StrBuf *sb);
void cu_end(CuPrint *p);
void cu_line(CuPrint *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cu_enter(CuPrint *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
void cu_leave(CuPrint *p);
/* const v<id> = ..; place: of a load, NULL: b<buf>[index]. */
void cu_inst(CuPrint *p, int id, const char *place);
/* The stores, full ones or the others. */
void cu_stores(CuPrint *p, bool full);
bool cu_has_stores(const CuPrint *p, bool full);
/* Row values of one depth. */
void cu_row_insts(CuPrint *p, int depth);
/* Declares those of the n dims that are `used`, from their flat number, an
   unsigned variable `of`. */
void cu_dims(CuPrint *p, const char *of, const int *dim, int n,
             const bool *used);
void cu_mark_used(const KInst *in, bool *used);
/* Whether an index mentions one of the n dims. */
bool cu_any_used(const CuPrint *p, const int *dim, int n);
const char *cu_signed(const CuPrint *p);   /* type of indices */
const char *cu_unsigned(const CuPrint *p); /* of flat numbers */

const char *cu_buffer_type(const Kernel *k, int b);
void cu_params(const Kernel *k, List *l); /* "const float *b0", .. */
void cu_names(const Kernel *k, List *l);  /* "b0", .. */
/* Up to the parenthesis that opens the parameters. */
void cu_head(CuPrint *p, const char *name);

/* ---- print_cuda_flat.c --------------------------------------------------- */

void cu_put_flat(CuPrint *p); /* all but k<i>_many */

/* ---- print_cuda_reduce.c ------------------------------------------------- */

/* The body of a kernel that reduces and has rows. */
void cu_put_reduce(CuPrint *p);

#endif
