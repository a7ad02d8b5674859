/* print_cuda.h: what the print_cuda*.c files share. */
#ifndef AMPC_CODEGEN_CUDA_PRINT_CUDA_H
#define AMPC_CODEGEN_CUDA_PRINT_CUDA_H

#include "codegen/cuda/cuda.h"
#include "codegen/kernel/print.h"

/* A list of parameters or arguments, at least `indent` from the left. */
typedef struct List {
    StrBuf *sb;
    int indent;
    bool begun;
} List;
/* One item, on a new line where the line would get too long. */
void cu_item(List *l, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* kp_begin, and what indices need. */
KPrint cu_begin(const Kernel *k, StrBuf *sb);
void cu_mark_used(const KInst *in, bool *used);
/* Whether an index mentions one of the n dims. */
bool cu_any_used(const KPrint *p, const int *dim, int n);
const char *cu_unsigned(const KPrint *p); /* of flat numbers */

const char *cu_buffer_type(const Kernel *k, int b);
void cu_params(const Kernel *k, List *l); /* "const float *b0", .. */
/* extern "C" k<index><suffix>, up to its parameters. */
List cu_head(KPrint *p, const char *suffix);

/* ---- print_cuda_flat.c --------------------------------------------------- */

void cu_put_flat(KPrint *p); /* all but k<i>_many */

/* ---- print_cuda_reduce.c ------------------------------------------------- */

/* The body of a kernel that reduces and has rows. */
void cu_put_reduce(KPrint *p);

#endif
