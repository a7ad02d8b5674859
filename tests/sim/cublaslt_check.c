/* SPDX-License-Identifier: Apache-2.0 */
/* cublaslt_check.c: cuBLASLt's requirements for a product.

   Products that the real library refuses are refused here with the same status.
   Where the library would read or write foreign memory, or race with itself,
   the call is refused, too, and the reason goes to the simulator's list of
   errors. */
#include "tests/sim/cublaslt_sim.h"

#include "tests/sim/sim.h"

#define REFUSE(status, text) return *why = (text), (status)

size_t lt_type_size(int type) {
    switch (type) {
    case LT_R_8F_E4M3:
    case LT_R_8F_E5M2: return 1;
    case LT_R_16F:
    case LT_R_16BF: return 2;
    case LT_R_32F: return 4;
    case LT_R_64F: return 8;
    default: return 0;
    }
}

/* ---- shapes and types ---------------------------------------------------- */

static bool layout_legal(const struct LtLayout_st *m) {
    const uint64_t most = INT32_MAX;
    return m->rows && m->cols && m->rows <= most && m->cols <= most &&
           m->ld >= (int64_t)m->rows && m->ld <= INT32_MAX && m->batch > 0 &&
           m->batch <= 65535 && m->stride >= 0 && m->stride < INT64_C(1) << 40;
}

uint64_t lt_extent(const struct LtLayout_st *m) {
    uint64_t last = (uint64_t)(m->batch - 1) * (uint64_t)m->stride +
                    (m->cols - 1) * (uint64_t)m->ld + m->rows;
    return last * lt_type_size(m->type);
}

bool lt_is_fast(int compute) {
    return compute == LT_COMPUTE_32F_FAST_TF32 ||
           compute == LT_COMPUTE_32F_FAST_16BF;
}

static int check_blocks(const LtProblem *p, const char **why) {
    if (p->desc.mode[0] == LT_SCALE_ONE && p->desc.mode[1] == LT_SCALE_ONE)
        return LT_SUCCESS;
    if (p->desc.mode[0] != LT_SCALE_VEC32_UE8M0 ||
        p->desc.mode[1] != LT_SCALE_VEC32_UE8M0)
        REFUSE(LT_NOT_SUPPORTED, "scales of A and B of two kinds");
    if (sim_capability() < 100)
        REFUSE(LT_NOT_SUPPORTED, "this GPU multiplies no scaled blocks");
    if (lt_k(p) % 32)
        REFUSE(LT_NOT_SUPPORTED, "K is no multiple of a block's 32");
    if (!p->desc.scales[0] || !p->desc.scales[1] || p->m[3].batch != 1)
        REFUSE(LT_INVALID_VALUE, "scaled blocks without scales, or a batch");
    return LT_SUCCESS;
}

/* GPUs from sm_89 on multiply numbers of 8 bits; of all layouts, the first
   operand transposed and the second not. Not on sm_100, which takes others. */
static int check_eights(const LtProblem *p, const char **why) {
    int a = p->m[0].type, b = p->m[1].type, out = p->m[3].type;
    if (!lt_is_eight(a) || !lt_is_eight(b))
        REFUSE(LT_NOT_SUPPORTED, "an operand of 8 bits and another");
    if (a == LT_R_8F_E5M2 && b == LT_R_8F_E5M2)
        REFUSE(LT_NOT_SUPPORTED, "both operands are e5m2");
    if (sim_capability() < 89)
        REFUSE(LT_NOT_SUPPORTED, "this GPU multiplies no numbers of 8 bits");
    if (!lt_is_half(out) && out != LT_R_32F)
        REFUSE(LT_NOT_SUPPORTED, "D of a product of 8 bits");
    if (p->m[2].type != out) REFUSE(LT_NOT_SUPPORTED, "C and D differ in type");
    if (p->desc.compute != LT_COMPUTE_32F || p->desc.scale != LT_R_32F)
        REFUSE(LT_NOT_SUPPORTED, "compute or scale type of 8 bits");
    if (p->desc.epilogue != LT_EPILOGUE_DEFAULT &&
        (p->desc.epilogue != LT_EPILOGUE_BIAS || !lt_is_half(out)))
        REFUSE(LT_NOT_SUPPORTED, "an epilogue of a product of 8 bits other "
                                 "than a bias of 16 bits");
    if (p->desc.transa != LT_OP_T || p->desc.transb != LT_OP_N)
        REFUSE(LT_NOT_SUPPORTED, "layouts other than TN for 8 bits");
    for (int i = 0; i < 4; i++)
        if (p->m[i].rows % 16 || p->m[i].cols % 16)
            REFUSE(LT_NOT_SUPPORTED, "sizes of 8 bits not multiples of 16");
    return check_blocks(p, why);
}

static int check_types(const LtProblem *p, const char **why) {
    int in = p->m[0].type, out = p->m[3].type;
    if (lt_is_eight(in) || lt_is_eight(p->m[1].type))
        return check_eights(p, why);
    if (p->desc.scales[0] || p->desc.scales[1] || p->desc.mode[0])
        REFUSE(LT_NOT_SUPPORTED, "a scale of A or B");
    bool wide = in == LT_R_64F;
    if (!lt_type_size(in) || !lt_type_size(out))
        REFUSE(LT_NOT_SUPPORTED, "an element type other than f16, bf16, f32, "
                                 "f64");
    if (p->m[1].type != in) REFUSE(LT_NOT_SUPPORTED, "A and B differ in type");
    if (p->m[2].type != out) REFUSE(LT_NOT_SUPPORTED, "C and D differ in type");
    bool fast = in == LT_R_32F && lt_is_fast(p->desc.compute);
    if ((!fast &&
         p->desc.compute != (wide ? LT_COMPUTE_64F : LT_COMPUTE_32F)) ||
        p->desc.scale != (wide ? LT_R_64F : LT_R_32F))
        REFUSE(LT_NOT_SUPPORTED, "compute or scale type does not go with the "
                                 "matrices");
    if (out != in && (wide || out != LT_R_32F))
        REFUSE(LT_NOT_SUPPORTED, "D is neither f32 nor of the type of A");
    return LT_SUCCESS;
}

/* GELU and its slope: results of 16 bits, as the runtime asks for. The header
   wants columns of GELU's operand a multiple of 8 apart; that operand has D's
   type. */
static int check_gelu(const LtProblem *p, const char **why) {
    const struct LtDesc_st *d = &p->desc;
    if (!lt_gelu(p)) return LT_SUCCESS;
    if (!lt_is_half(p->m[3].type) || p->m[3].batch != 1 ||
        d->pointer_mode != LT_POINTER_HOST)
        REFUSE(LT_NOT_SUPPORTED, "GELU of a product other than one of 16 bits");
    if (lt_has_aux(p) && (d->aux_ld % 8 || d->aux_ld < (int64_t)p->m[3].rows))
        REFUSE(LT_INVALID_VALUE, "columns of GELU's operand");
    return LT_SUCCESS;
}

static int check_desc(const LtProblem *p, const char **why) {
    const struct LtDesc_st *d = &p->desc;
    bool known = d->epilogue == LT_EPILOGUE_DEFAULT ||
                 d->epilogue == LT_EPILOGUE_RELU ||
                 d->epilogue == LT_EPILOGUE_BIAS ||
                 d->epilogue == LT_EPILOGUE_RELU_BIAS ||
                 d->epilogue == LT_EPILOGUE_DGELU ||
                 (d->epilogue & ~(LT_EPILOGUE_AUX | LT_EPILOGUE_BIAS)) ==
                     LT_EPILOGUE_GELU;
    if (d->transa != LT_OP_N && d->transa != LT_OP_T)
        REFUSE(LT_INVALID_VALUE, "transpose of A");
    if (d->transb != LT_OP_N && d->transb != LT_OP_T)
        REFUSE(LT_INVALID_VALUE, "transpose of B");
    if (d->pointer_mode != LT_POINTER_HOST &&
        d->pointer_mode != LT_POINTER_DEVICE)
        REFUSE(LT_INVALID_VALUE, "pointer mode");
    if (!known) REFUSE(LT_NOT_SUPPORTED, "epilogue");
    if (p->m[0].type == LT_R_64F && d->epilogue != LT_EPILOGUE_DEFAULT)
        REFUSE(LT_NOT_SUPPORTED, "an epilogue in f64");
    return check_gelu(p, why);
}

static int check_shapes(const LtProblem *p, const char **why) {
    const struct LtLayout_st *a = &p->m[0], *b = &p->m[1], *d = &p->m[3];
    uint64_t m = p->desc.transa ? a->cols : a->rows;
    uint64_t n = p->desc.transb ? b->rows : b->cols;
    uint64_t k = p->desc.transb ? b->cols : b->rows;
    if (k != lt_k(p)) REFUSE(LT_INVALID_VALUE, "K of A and B differ");
    if (d->rows != m || d->cols != n)
        REFUSE(LT_INVALID_VALUE, "D is not op(A) rows by op(B) columns");
    if (p->m[2].rows != m || p->m[2].cols != n)
        REFUSE(LT_INVALID_VALUE, "C and D differ in shape");
    for (int i = 0; i < 3; i++)
        if (p->m[i].batch != d->batch)
            REFUSE(LT_INVALID_VALUE, "batch counts differ");
    uint64_t matrix = (d->cols - 1) * (uint64_t)d->ld + d->rows;
    if (d->batch > 1 && (uint64_t)d->stride < matrix)
        REFUSE(LT_INVALID_VALUE, "matrices of D overlap");
    return LT_SUCCESS;
}

int lt_check_problem(const LtProblem *p, const char **why) {
    int s = check_types(p, why);
    if (s == LT_SUCCESS) s = check_desc(p, why);
    for (int i = 0; i < 4 && s == LT_SUCCESS; i++) {
        if (p->m[i].order != LT_ORDER_COL)
            REFUSE(LT_NOT_SUPPORTED, "an order other than COL");
        if (!layout_legal(&p->m[i]))
            REFUSE(LT_INVALID_VALUE, "rows, columns, leading dimension (at "
                                     "least the rows), batch count or stride");
    }
    return s == LT_SUCCESS ? check_shapes(p, why) : s;
}

/* ---- algorithms ---------------------------------------------------------- */

uint32_t lt_kind_reduction(int kind) {
    switch (kind) {
    case LT_KIND_OUTPUT: return LT_REDUCTION_OUTPUT_TYPE;
    case LT_KIND_COMPUTE: return LT_REDUCTION_COMPUTE_TYPE;
    case LT_KIND_INPLACE: return LT_REDUCTION_INPLACE;
    default: return 0;
    }
}

uint32_t lt_kind_align(int kind, int type) {
    if (kind == LT_KIND_LOOSE) return (uint32_t)lt_type_size(type);
    return kind == LT_KIND_COMPUTE ? 128 : 16;
}

size_t lt_kind_workspace(int kind, const LtProblem *p) {
    const struct LtLayout_st *d = &p->m[3];
    size_t cells = (size_t)d->rows * d->cols * (size_t)d->batch;
    size_t sum = p->m[0].type == LT_R_64F ? 8 : 4;
    switch (kind) {
    case LT_KIND_OUTPUT: return 3 * cells * lt_type_size(d->type);
    case LT_KIND_COMPUTE: return 2 * cells * sum;
    case LT_KIND_INPLACE: return (cells + 63) / 64 * 4;
    default: return 0;
    }
}

bool lt_kind_fits(int kind, const LtProblem *p) {
    if (kind == LT_KIND_LOOSE) return !lt_is_eight(p->m[0].type);
    for (int i = 0; i < 4; i++) {
        size_t size = lt_type_size(p->m[i].type);
        if ((size_t)p->m[i].ld * size % 16) return false;
        if (p->m[i].batch > 1 && (size_t)p->m[i].stride * size % 16)
            return false;
    }
    if (lt_has_bias(p) && p->desc.bias % 16) return false;
    if (lt_has_aux(p) && p->desc.aux % 16) return false;
    if (lt_kind_reduction(kind) && lt_k(p) < 8) return false;
    return p->desc.pointer_mode == LT_POINTER_HOST || kind == LT_KIND_PLAIN ||
           kind == LT_KIND_COMPUTE;
}

/* ---- addresses ----------------------------------------------------------- */

typedef struct Range {
    uint64_t at, bytes;
} Range;

static bool overlap(Range x, Range y) {
    return x.bytes && y.bytes && x.at < y.at + y.bytes && y.at < x.at + x.bytes;
}

static bool same_layout(const struct LtLayout_st *x,
                        const struct LtLayout_st *y) {
    return x->ld == y->ld && (x->batch == 1 || x->stride == y->stride);
}

static int check_overlap(const LtCall *c, const Range *m, Range bias, Range aux,
                         const char **why) {
    Range work = {c->workspace, lt_kind_workspace(c->kind, &c->p)};
    bool in_place = c->at[2] == c->at[3];
    if (overlap(m[0], m[3]) || overlap(m[1], m[3]) || overlap(bias, m[3]))
        REFUSE(LT_INVALID_VALUE, "D overlaps an operand");
    bool writes = c->p.desc.epilogue != LT_EPILOGUE_DGELU;
    if (overlap(aux, m[3]) || overlap(aux, work) ||
        (writes &&
         (overlap(aux, m[0]) || overlap(aux, m[1]) || overlap(aux, bias))))
        REFUSE(LT_INVALID_VALUE, "GELU's operand overlaps another matrix");
    if (in_place && !same_layout(&c->p.m[2], &c->p.m[3]))
        REFUSE(LT_INVALID_VALUE, "in place, but C and D differ in layout");
    if (!in_place && overlap(m[2], m[3]))
        REFUSE(LT_INVALID_VALUE, "D overlaps a part of C");
    for (int i = 0; i < 4; i++)
        if (overlap(work, m[i]))
            REFUSE(LT_INVALID_VALUE, "the workspace overlaps a matrix");
    if (overlap(work, bias))
        REFUSE(LT_INVALID_VALUE, "the workspace overlaps the bias");
    return LT_SUCCESS;
}

static int check_workspace(const LtCall *c, const char **why) {
    size_t need = lt_kind_workspace(c->kind, &c->p);
    if (need > c->workspace_bytes)
        REFUSE(LT_INVALID_VALUE, "workspace smaller than the algorithm's");
    if (!need) return LT_SUCCESS;
    if (c->workspace % 256)
        REFUSE(LT_INVALID_VALUE, "workspace not aligned to 256 bytes");
    if (!sim_device_range(c->workspace, need))
        REFUSE(LT_EXECUTION_FAILED, "workspace outside of device memory");
    return LT_SUCCESS;
}

static int check_scalars(const LtCall *c, const char **why) {
    size_t size = lt_type_size(c->p.desc.scale);
    if (c->p.desc.pointer_mode == LT_POINTER_HOST) return LT_SUCCESS;
    if (c->alpha_at % size || c->beta_at % size ||
        !sim_device_range(c->alpha_at, size) ||
        !sim_device_range(c->beta_at, size))
        REFUSE(LT_EXECUTION_FAILED, "alpha or beta outside of device memory");
    return LT_SUCCESS;
}

/* Tiles of 128 lines by 4 blocks, 16 bytes for each of 32 lines: four of
   blocks for that line, then for the line 32 below, and so on. */
uint64_t lt_block_at(const LtProblem *p, uint64_t i, uint64_t k) {
    uint64_t across = (lt_k(p) / 32 + 3) / 4;
    uint64_t tile = i / 128 * across + k / 32 / 4;
    return 512 * tile + 16 * (i % 32) + 4 * (i % 128 / 32) + k / 32 % 4;
}

static uint64_t block_lines(const LtProblem *p, int which) {
    return which ? p->m[3].cols : p->m[3].rows;
}

uint64_t lt_block_bytes(const LtProblem *p, int which) {
    uint64_t tiles = (block_lines(p, which) + 127) / 128;
    return tiles * ((lt_k(p) / 32 + 3) / 4) * 512;
}

/* Bytes of tiles beyond the matrix are 0, or the library reads what is there.
 */
static bool tails_are_zero(const LtProblem *p, int which) {
    const char *at = (const char *)(uintptr_t)p->desc.scales[which];
    uint64_t bytes = lt_block_bytes(p, which), zeros = 0, own = 0;
    for (uint64_t i = 0; i < bytes; i++) zeros += at[i] == 0;
    for (uint64_t i = 0; i < block_lines(p, which); i++)
        for (uint64_t k = 0; k < lt_k(p); k += 32)
            own += at[lt_block_at(p, i, k)] == 0;
    return zeros - own == bytes - block_lines(p, which) * (lt_k(p) / 32);
}

static int check_scales(const LtCall *c, const char **why) {
    for (int i = 0; i < 2; i++) {
        uint64_t at = c->p.desc.scales[i];
        bool blocks = lt_has_blocks(&c->p);
        uint64_t bytes = blocks ? lt_block_bytes(&c->p, i) : 4;
        if (!at) continue;
        if (at % (blocks ? 16 : 4) || !sim_device_range(at, bytes))
            REFUSE(LT_EXECUTION_FAILED, "scales outside of device memory");
    }
    return LT_SUCCESS;
}

int lt_check_tails(const LtCall *c, const char **why) {
    for (int i = 0; lt_has_blocks(&c->p) && i < 2; i++)
        if (!tails_are_zero(&c->p, i))
            REFUSE(LT_EXECUTION_FAILED, "scales beyond the matrix are not 0");
    return LT_SUCCESS;
}

int lt_check_call(const LtCall *c, const char **why) {
    Range m[4], bias = {0, 0}, aux = {0, 0};
    for (int i = 0; i < 4; i++) {
        m[i] = (Range){c->at[i], lt_extent(&c->p.m[i])};
        if (!m[i].at) REFUSE(LT_INVALID_VALUE, "a matrix is NULL");
        if (m[i].at % lt_kind_align(c->kind, c->p.m[i].type))
            REFUSE(LT_INVALID_VALUE, "a matrix is less aligned than the "
                                     "algorithm needs");
        if (!sim_device_range(m[i].at, m[i].bytes))
            REFUSE(LT_EXECUTION_FAILED, "a matrix reaches outside of device "
                                        "memory");
    }
    if (lt_has_bias(&c->p)) {
        size_t size = lt_type_size(c->p.m[3].type);
        bias = (Range){c->p.desc.bias, c->p.m[3].rows * size};
        if (!bias.at) REFUSE(LT_INVALID_VALUE, "the bias is NULL");
        if (bias.at % size) REFUSE(LT_INVALID_VALUE, "the bias is misaligned");
        if (!sim_device_range(bias.at, bias.bytes))
            REFUSE(LT_EXECUTION_FAILED, "the bias reaches outside of device "
                                        "memory");
    }
    if (lt_has_aux(&c->p)) {
        size_t size = lt_type_size(c->p.m[3].type);
        uint64_t ld = (uint64_t)c->p.desc.aux_ld;
        aux = (Range){c->p.desc.aux,
                      ((c->p.m[3].cols - 1) * ld + c->p.m[3].rows) * size};
        if (!aux.at) REFUSE(LT_INVALID_VALUE, "GELU's operand is NULL");
        if (!sim_device_range(aux.at, aux.bytes))
            REFUSE(LT_EXECUTION_FAILED, "GELU's operand reaches outside of "
                                        "device memory");
    }
    int s = check_scales(c, why);
    if (s == LT_SUCCESS) s = check_workspace(c, why);
    if (s == LT_SUCCESS) s = check_scalars(c, why);
    return s == LT_SUCCESS ? check_overlap(c, m, bias, aux, why) : s;
}
