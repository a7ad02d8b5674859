/* npy.h: arrays in files: .npy (NumPy), IDX (as MNIST ships), either also
   gzipped.                                                                  */
#ifndef AMPC_FRONTEND_DRIVER_NPY_H
#define AMPC_FRONTEND_DRIVER_NPY_H

#include "ir/graph/base.h"

#define AMPC_NO_LOADER
#include "runtime/ampc.h"

typedef struct Array {
    ampc_dtype dtype;
    int rank;
    int64_t dim[AMPC_RANK_LIMIT];
    int64_t count; /* elements                                              */
    size_t bytes;
    char *data;   /* dense, row-major, this machine's byte order              */
    char *memory; /* what array_free frees; data lies inside                */
} Array;

size_t array_elem_bytes(int dtype); /* 0: no ampc_dtype */
const char *array_dtype_name(int dtype);

/* Tells formats apart by content. */
Status array_read(Diag *d, const char *path, Array *a);
void array_free(Array *a);

/* The header of a .npy file; bf16 has no type there: write it as f32.
   buf is freed by the caller (sb_free).                                     */
void npy_header(StrBuf *buf, int dtype, int rank, const int64_t *dim);

#endif
