/* sum.c: sums over ranks inside a program, through the host's memory.        */
#include "runtime/cuda/gpu.h"

ampc_status gpu_sum_now(ampc_session *s, const GpuStep *t) {
    GpuDevice *d = gpu_of(s);
    uint64_t bytes = (uint64_t)t->sum->bytes;
    if (!s->opt.comm) return AMPC_OK;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        LibCopy part = *t->sum;
        n = bytes - at < GPU_BOUNCE ? bytes - at : GPU_BOUNCE;
        part.bytes = (int64_t)n;
        GPU(d->cu.MemcpyDtoHAsync(d->bounce, t->from + at, n, d->work),
            "copy to the host");
        GPU(d->cu.StreamSynchronize(d->work), "copy to the host");
        ampc_status status = comm_sum_now(s, d->bounce, &part);
        if (status != AMPC_OK) return status;
        GPU(d->cu.MemcpyHtoDAsync(t->from + at, d->bounce, n, d->work),
            "copy to the device");
        GPU(d->cu.StreamSynchronize(d->work), "copy to the device");
    }
    return AMPC_OK;
}
