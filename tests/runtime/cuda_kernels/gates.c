/* SPDX-License-Identifier: Apache-2.0 */
/* gates.c: gradients of convolutions that pass a batch norm's gate and are
   added up, compared with the CPU's gradient and sums in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/program/strip.h"
#include "tests/runtime/cuda_kernels/cuda_kernels.h"

enum { DY, W, X, MEAN, RSTD, GATE, GAIN, SHIFT, ADD, DX, SUMS, PRODUCTS, NBUF };

/* The gradient in fp32; of: absolute operands. */
static CudaBuf gates_plain(const CudaCase *c, const CudaBuf *b, bool absolute) {
    CudaCase plain = {.lib = PLAN_LIB_CONV_DGRAD, .p = c->p};
    CudaBuf out = {AMPC_F32, b[DX].count, NULL}, in[2];
    plain.p.conv.x_dtype = AMPC_F32;
    out.data = kernels_blank(&out);
    for (int i = 0; i < 2; i++) {
        in[i] = b[i];
        in[i].data = kernels_blank(&b[i]);
        for (int64_t j = 0; j < b[i].count; j++) {
            double x = kernels_get(b[i].data, b[i].dtype, j);
            kernels_put(in[i].data, b[i].dtype, j, absolute ? fabs(x) : x);
        }
    }
    void *data[] = {in[0].data, in[1].data, out.data};
    cpu_run(&plain, data);
    free(in[0].data);
    free(in[1].data);
    return out;
}

static float gates_number(const CudaBuf *b, int which, int64_t i) {
    return (float)kernels_get(b[which].data, b[which].dtype, i);
}

/* The norm of x at `at`; *open: the gate passes. */
static float gates_norm(const CudaCase *c, const CudaBuf *b, int64_t at,
                        int64_t channel, bool *open) {
    const LibConvDgradSums *p = &c->p.conv_dgrad_sums;
    float x = gates_number(b, X, at) * lib_float(p->scale);
    float norm =
        (x - gates_number(b, MEAN, channel)) * gates_number(b, RSTD, channel);
    float gate = p->gated ? gates_number(b, GATE, at)
                          : norm * gates_number(b, GAIN, channel) +
                                gates_number(b, SHIFT, channel);
    *open = !(gate <= 0);
    return norm;
}

static void gates_elements(const CudaCase *c, const CudaBuf *b) {
    const LibConvDgradSums *p = &c->p.conv_dgrad_sums;
    CudaBuf sum = gates_plain(c, b, false), size = gates_plain(c, b, true);
    int64_t plane = cuda_volume(p->in), open = 0;
    double unit = p->x_dtype == AMPC_BF16 ? 0x1p-8 : 0x1p-11;
    double terms = (double)(p->k / p->group * cuda_volume(p->kernel));
    for (int64_t at = 0; at < b[DX].count; at++) {
        bool passes;
        gates_norm(c, b, at, at / plane % p->c, &passes);
        double add = p->adds ? (double)gates_number(b, ADD, at) : 0;
        double want = passes ? kernels_get(sum.data, AMPC_F32, at) + add : 0;
        double got = kernels_get(b[DX].data, b[DX].dtype, at);
        double most = kernels_get(size.data, AMPC_F32, at) + fabs(add);
        open += passes;
        if (!CHECK_MSG(fabs(got - want) <=
                           (terms + 3) * 0x1p-23 * most + unit * fabs(want),
                       "%s: element %lld is %g, not %g", c->name, (long long)at,
                       got, want))
            break;
    }
    CHECK_MSG(open > 0 && open < b[DX].count, "%s: %lld of %lld pass", c->name,
              (long long)open, (long long)b[DX].count);
    free(sum.data);
    free(size.data);
}

/* Sums of the stored gradient. */
static void gates_strips(const CudaCase *c, const CudaBuf *b) {
    const LibConvDgradSums *p = &c->p.conv_dgrad_sums;
    int64_t plane = cuda_volume(p->in), columns = p->n * plane, i = 0;
    for (int64_t from = 0; from < columns; from += p->strip)
        for (int64_t k = 0; k < p->c; k++, i++) {
            double want[2] = {0}, size[2] = {0};
            bool passes;
            for (int64_t n = from; n < from + p->strip && n < columns; n++) {
                int64_t at = (n / plane * p->c + k) * plane + n % plane;
                double v = kernels_get(b[DX].data, b[DX].dtype, at);
                double of[] = {v, v * (double)gates_norm(c, b, at, k, &passes)};
                for (int j = 0; j < 2; j++)
                    want[j] += of[j], size[j] += fabs(of[j]);
            }
            for (int j = 0; j < 2; j++) {
                double got = kernels_get(b[SUMS + j].data, AMPC_F32, i);
                if (!CHECK_MSG(fabs(got - want[j]) <= 0x1p-18 * size[j],
                               "%s: channel %lld, strip from %lld: sum %d is "
                               "%g, not %g",
                               c->name, (long long)k, (long long)from, j, got,
                               want[j]))
                    return;
            }
        }
}

static void gates_run(SimTwin *t, int number, const CudaCase *c,
                      const CudaLib *lib) {
    enum { ORDERS = 2 };
    CudaBuf b[CUDA_MAX_BUFS];
    void *data[CUDA_MAX_BUFS], *own[CUDA_MAX_BUFS];
    int n = cuda_case_bufs(c, b);
    REQUIRE(n == NBUF);
    kernels_fill(c, b, n, DX);
    for (int i = 0; i < n; i++) data[i] = own[i] = b[i].data;
    for (unsigned seed = 0; seed < ORDERS; seed++) {
        sim()->seed(seed);
        gpu_run(t, number, lib, data, n);
        gates_elements(c, b);
        gates_strips(c, b);
    }
    for (int i = DX; i < n; i++) b[i].data = own[i] = kernels_blank(&b[i]);
    cpu_run(c, own);
    gates_elements(c, b);
    gates_strips(c, b);
    for (int i = 0; i < n; i++) free(own[i]);
    for (int i = DX; i < n; i++) free(data[i]);
}

/* Stride 1, planes of whole vectors of 4. */
static bool gates_takes(const LibConv *c) {
    return cuda_volume(c->stride) == 1 && cuda_volume(c->in) % 4 == 0 &&
           c->c / c->group > CONV_FEW_CHANNELS && c->n > 0;
}

TEST_CASE(cuda_kernels, conv_dgrad_sums) {
    static const float scale[] = {1, 64, 0.125f};
    int n = 0, windows = 0, all = cuda_nwindow + cuda_ngeometry;
    CudaCase *c = calloc((size_t)all, sizeof *c);
    CudaLib *lib = calloc((size_t)all, sizeof *lib);
    StrBuf sb = {0};
    print_cuda_head(&sb);
    for (int i = 0; i < all; i++) {
        const CudaGeometry *g = i < cuda_nwindow
                                    ? &cuda_windows[i]
                                    : &cuda_geometries[i - cuda_nwindow];
        LibConvDgradSums *p = &c[n].p.conv_dgrad_sums;
        size_t from = sb.len;
        if (!gates_takes(&g->c)) continue;
        c[n].name = g->name;
        c[n].lib = PLAN_LIB_CONV_DGRAD_SUMS;
        c[n].p.conv = g->c;
        p->x_dtype = p->w_dtype = p->y_dtype = n % 2 ? AMPC_F16 : AMPC_BF16;
        p->norm_dtype = n / 2 % 2 ? AMPC_F16 : AMPC_BF16;
        p->gate_dtype = p->add_dtype = p->x_dtype;
        p->strip = CONV_STRIP;
        p->scale = lib_bits(scale[n % 3]);
        p->gated = n % 4 < 2;
        p->adds = n % 3 < 2;
        p->sums_dtype = AMPC_F32;
        LoweredStep s = cuda_case_step(&c[n]);
        print_cuda_lib(&s, n, false, &sb, &lib[n]);
        windows += strstr(sb.data + from, "_sums_window<L") != NULL;
        n++;
    }
    CHECK_MSG(windows >= 3 && windows < n, "%d of %d by windows", windows, n);
    SimTwin *t = twin_of(sb.data);
    for (int i = 0; i < n; i++) gates_run(t, i, &c[i], &lib[i]);
    sim()->twin_close(t);
    sb_free(&sb);
    free(lib);
    free(c);
}
