/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h: the declarations of libcuda, cuBLASLt and NCCL that the runtime
   uses, so that building needs no CUDA header.  Values are those of cuda.h,
   cublasLt.h and library_types.h (CUDA 12 and 13), where the same names without
   CUDA_ or LT_ can be looked up. */
#ifndef AMPC_CUDA_DRIVER_H
#define AMPC_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult; /* 0: success */
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_STUB_LIBRARY = 34,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_IMAGE = 200,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_NO_BINARY_FOR_GPU = 209,
    CUDA_INVALID_PTX = 218,
    CUDA_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_JIT_DISABLED = 223,
    CUDA_INVALID_HANDLE = 400,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_READY = 600,
    CUDA_ILLEGAL_ADDRESS = 700,
    CUDA_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_MISALIGNED_ADDRESS = 716,
    CUDA_LAUNCH_FAILED = 719,
    CUDA_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_CAPTURED_EVENT = 907,
    CUDA_STREAM_CAPTURE_WRONG_THREAD = 908
};

/* CUdevice_attribute, CUfunction_attribute, CUpointer_attribute, CUjit_option
   and flags */
enum {
    CUDA_ATTR_MAX_THREADS_PER_BLOCK = 1,
    CUDA_ATTR_MULTIPROCESSOR_COUNT = 16,
    CUDA_ATTR_L2_CACHE_SIZE = 38,
    CUDA_ATTR_COMPUTE_MAJOR = 75,
    CUDA_ATTR_COMPUTE_MINOR = 76,
    CUDA_ATTR_MAX_SHARED_OPTIN = 97,
    CUDA_FUNC_MAX_DYNAMIC_SHARED = 8,
    CUDA_POINTER_DEVICE_ORDINAL = 9,
    CUDA_JIT_ERROR_LOG = 5,
    CUDA_JIT_ERROR_LOG_BYTES = 6,
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_EVENT_DISABLE_TIMING = 2,
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_CAPTURE_ACTIVE = 1 /* CUstreamCaptureStatus */
};

/* ---- cuBLASLt ------------------------------------------------------------ */

typedef struct LtHandle_st *LtHandle;
typedef struct LtDesc_st *LtDesc;
typedef struct LtLayout_st *LtLayout;
typedef struct LtPref_st *LtPref;
typedef struct LtAlgo {
    uint64_t data[8];
} LtAlgo;
typedef struct LtHeuristic {
    LtAlgo algo;
    size_t workspace;
    int state; /* cublasStatus_t */
    float waves;
    int reserved[4];
} LtHeuristic;

enum { /* cublasStatus_t */
       LT_SUCCESS = 0,
       LT_NOT_INITIALIZED = 1,
       LT_ALLOC_FAILED = 3,
       LT_INVALID_VALUE = 7,
       LT_ARCH_MISMATCH = 8,
       LT_EXECUTION_FAILED = 13,
       LT_INTERNAL_ERROR = 14,
       LT_NOT_SUPPORTED = 15
};

enum { /* cudaDataType_t */
       LT_R_32F = 0,
       LT_R_64F = 1,
       LT_R_16F = 2,
       LT_R_16BF = 14,
       LT_R_8F_E4M3 = 28,
       LT_R_8F_E5M2 = 29
};

enum { /* cublasComputeType_t */
       LT_COMPUTE_32F = 68,
       LT_COMPUTE_64F = 70,
       LT_COMPUTE_32F_FAST_16BF = 75,
       LT_COMPUTE_32F_FAST_TF32 = 77
};

enum {
    LT_OP_N = 0,
    LT_OP_T = 1,
    LT_POINTER_HOST = 0,
    LT_POINTER_DEVICE = 1,
    LT_POINTER_SCALE = 2,  /* ours: LT_DESC_A_SCALE_POINTER in its place */
    LT_POINTER_BLOCKS = 3, /* ours: scales of blocks */
    LT_ORDER_COL = 0
};

enum { /* cublasLtMatmulDescAttributes_t */
       LT_DESC_POINTER_MODE = 2,
       LT_DESC_TRANSA = 3,
       LT_DESC_TRANSB = 4,
       LT_DESC_EPILOGUE = 7,
       LT_DESC_BIAS_POINTER = 8,
       LT_DESC_AUX_POINTER = 11,
       LT_DESC_AUX_LD = 12,
       LT_DESC_A_SCALE_POINTER = 17,
       LT_DESC_B_SCALE_POINTER = 18,
       LT_DESC_A_SCALE_MODE = 31,
       LT_DESC_B_SCALE_MODE = 32
};

enum { /* cublasLtMatmulMatrixScale_t */
       LT_SCALE_ONE = 0,
       LT_SCALE_VEC32_UE8M0 = 2
};

enum { /* cublasLtMatrixLayoutAttribute_t */
       LT_LAYOUT_ORDER = 1,
       LT_LAYOUT_BATCH_COUNT = 5,
       LT_LAYOUT_BATCH_STRIDE = 6
};

enum { /* cublasLtMatmulPreferenceAttributes_t */
       LT_PREF_MAX_WORKSPACE = 1,
       LT_PREF_REDUCTION_MASK = 3,
       LT_PREF_ALIGN_A = 5,
       LT_PREF_ALIGN_B = 6,
       LT_PREF_ALIGN_C = 7,
       LT_PREF_ALIGN_D = 8
};

enum { /* cublasLtEpilogue_t */
       LT_EPILOGUE_DEFAULT = 1,
       LT_EPILOGUE_RELU = 2,
       LT_EPILOGUE_BIAS = 4,
       LT_EPILOGUE_RELU_BIAS = 6,
       LT_EPILOGUE_GELU = 32,
       LT_EPILOGUE_AUX = 128, /* CUBLASLT_EPILOGUE_GELU_AUX_BIAS: 32 + 128 + 4
                               */
       LT_EPILOGUE_DGELU = 192
};

enum { /* cublasLtReductionScheme_t */
       LT_REDUCTION_INPLACE = 1,
       LT_REDUCTION_COMPUTE_TYPE = 2,
       LT_REDUCTION_OUTPUT_TYPE = 4
};

/* ---- NCCL ---------------------------------------------------------------- */

/* Values of nccl.h (2.14 and later), the names without NCCL_. */
typedef int NcclResult; /* 0: success */
typedef struct NcclComm_st *NcclComm;
typedef struct NcclId {
    char bytes[128];
} NcclId;

/* ncclConfig_t as of 2.14; later ones append. */
typedef struct NcclConfig {
    size_t size;
    unsigned magic, version;
    int blocking;
} NcclConfig;

enum { /* ncclResult_t */
       NCCL_SUCCESS = 0,
       NCCL_UNHANDLED_CUDA_ERROR = 1,
       NCCL_SYSTEM_ERROR = 2,
       NCCL_INTERNAL_ERROR = 3,
       NCCL_INVALID_ARGUMENT = 4,
       NCCL_INVALID_USAGE = 5,
       NCCL_REMOTE_ERROR = 6,
       NCCL_IN_PROGRESS = 7
};

enum { /* ncclDataType_t, ncclRedOp_t, ncclConfig_t */
       NCCL_INT8 = 0,
       NCCL_INT64 = 4,
       NCCL_FLOAT16 = 6,
       NCCL_FLOAT32 = 7,
       NCCL_FLOAT64 = 8,
       NCCL_BFLOAT16 = 9,
       NCCL_SUM = 0,
       NCCL_2_14 = 21400
};
#define NCCL_MAGIC 0xcafebeefu

#endif
