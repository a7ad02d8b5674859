"""PyTorch on a GPU beside ampc: milliseconds of one training step.

usage: bench_torch_gpu.py BATCH [STEPS]     (script/gpu-check calls it)

The networks are those of make_models.py; AdamW, cross-entropy, autocast, a
GradScaler in fp16, no TF32 in fp32; every step copies its batch from pinned
memory.  Eager, and torch.compile with CUDA graphs.  One line of JSON each: the
median of five rounds without a host read in between.
"""
import json
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from bench import cnn

ROUNDS = 5
WARM_STEPS = 20


def mlp():
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32),
                         nn.ReLU(), nn.Linear(32, 10))


def step_of(net, precision):
    """A function that trains one step on a batch in host memory."""
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step(x, t):
        x, t = x.cuda(non_blocking=True), t.cuda(non_blocking=True)
        opt.zero_grad()
        with torch.autocast("cuda", low or torch.bfloat16,
                            enabled=low is not None):
            loss = F.cross_entropy(net(x), t)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()

    return step


def milliseconds(step, x, t, steps):
    for _ in range(WARM_STEPS):
        step(x, t)
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step(x, t)
        torch.cuda.synchronize()
        rounds.append(1e3 * (time.perf_counter() - start) / steps)
    return statistics.median(rounds)


def measure(kind, precision, mode, batch, steps):
    torch.manual_seed(0)
    net = (cnn if kind == "cnn" else mlp)().cuda().train()
    if kind == "cnn":
        net = net.to(memory_format=torch.channels_last)
    if mode == "compile":
        net = torch.compile(net, mode="reduce-overhead")
    shape = (batch, 1, 28, 28) if kind == "cnn" else (batch, 784)
    x = torch.rand(shape).pin_memory()
    t = torch.randint(0, 10, (batch,)).pin_memory()
    return milliseconds(step_of(net, precision), x, t, steps)


def line(kind, precision, mode, batch, steps):
    out = {"check": "torch", "ok": True, "module": kind + "." + precision,
           "mode": mode, "batch": batch, "torch": torch.__version__}
    try:
        out["ms"] = round(measure(kind, precision, mode, batch, steps), 4)
    except Exception as e:  # no compiler for Triton, for one
        out["ok"] = mode == "compile"
        out["text"] = str(e).replace('"', "'").splitlines()[0][:200]
    return out


def main():
    batch = int(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for kind in ("cnn", "mlp"):
        for precision in ("fp32", "bf16", "fp16"):
            for mode in ("eager", "compile"):
                torch.compiler.reset()
                print(json.dumps(line(kind, precision, mode, batch, steps),
                                 separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
