/* SPDX-License-Identifier: Apache-2.0 */
/* sim_blas.h: for sim_blas_test.c and the files of folder sim_blas. */
#ifndef AMPC_TESTS_SIM_SIM_BLAS_SIM_BLAS_H
#define AMPC_TESTS_SIM_SIM_BLAS_SIM_BLAS_H

#include <string.h>

#include "tests/support/simulate.h"

typedef struct Driver {
#define CU(member, symbol, parameters) CUresult(*member) parameters;
#include "runtime/cuda/driver.def"
#undef CU
} Driver;

extern Driver blas_cu;

typedef struct Blas {
#define LT(member, symbol, parameters) int(*member) parameters;
#include "runtime/cuda/cublaslt.def"
#undef LT
    size_t (*Version)(void);
} Blas;

extern Blas blas_lt;

void blas_load(void);

typedef struct Gpu {
    CUcontext ctx;
    CUstream stream;
    LtHandle h;
} Gpu;

Gpu gpu_new(void);
Gpu gpu_new_of(int cc); /* a compute capability times 10; 0: the default */
void gpu_free(Gpu *g);
void to_device(const Gpu *g, CUdeviceptr to, const void *p, size_t n);
void from_device(const Gpu *g, void *to, CUdeviceptr p, size_t n);

typedef struct Shape {
    int in, out;             /* LT_R_* */
    int m, n, k, batch, pad; /* pad: elements added to the leading dimensions */
    bool ta, tb, device_scalars;
    uint32_t epilogue;
    float beta;
} Shape;

enum { MA, MB, MC, MD, BIAS, WORK, SCALARS, NBUF };

typedef struct Problem {
    Shape s;
    LtDesc desc;
    LtLayout layout[4];
    LtPref pref;
    CUdeviceptr at[NBUF];
    size_t bytes[NBUF];
    char *host[NBUF];
    double alpha;
} Problem;

int type_of(const Shape *s, int which);
void set_int(LtDesc d, int attribute, int value);
void make_layout(Problem *p, int which);
void set_workspace(Problem *p, uint64_t bytes, uint32_t mask);

/* Values in [-1, 1] that f16 and bf16 represent exactly, or not. */
void blas_fill(Problem *p, int buf, int type);

void put_scalars(Problem *p, const Gpu *g);
Problem problem_new(const Gpu *g, Shape s);
void problem_free(Problem *p);
int blas_offers(const Gpu *g, const Problem *p, LtHeuristic *r, int wanted);
int check_algo(const Gpu *g, const Problem *p, const LtAlgo *a);

/* The product with other matrices or another workspace than p's. */
int matmul_at(const Gpu *g, const Problem *p, const LtAlgo *a,
              const CUdeviceptr *at, size_t workspace);

int blas_matmul(const Gpu *g, const Problem *p, const LtAlgo *a);
void check_result(const Gpu *g, Problem *p, int algo);

extern const Shape blas_plain;

int blas_offered(const Gpu *g, const Problem *p);

#endif
