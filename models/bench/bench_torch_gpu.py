# SPDX-License-Identifier: Apache-2.0
"""PyTorch on a GPU beside ampc: milliseconds of one training step.

usage: bench_torch_gpu.py small BATCH [STEPS]     (script/gpu-check calls it)
       bench_torch_gpu.py models NAME...

small: the networks of make_models.py; AdamW, cross-entropy, autocast, a
GradScaler in fp16, no TF32 in fp32.  models: those of real.py in bf16, images
channels_last, gradients clipped as by the .amp files beside AdamW; eager ones
first, so that a run that is cut off has them all.  $AMPC_CHECK_DEVICE: cuda:N.
Every step copies its batch from pinned memory.  Eager, and torch.compile with
CUDA graphs.  One line of JSON each: the median of five rounds without a host read
in between.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.nn as nn

import real
from bench_models import cnn
from networks import Loss

ROUNDS = 5
WARM_STEPS = 20
MODEL_STEPS = 5


def mlp():
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32),
                         nn.ReLU(), nn.Linear(32, 10))


def step_of(net, precision, sgd=False, clip=False):
    """A function that trains one step on a batch in host memory; net gives the
    loss."""
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    parameters = list(net.parameters())
    opt = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4,
                          fused=True) \
        if sgd else torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    def step(x, t):
        x, t = x.cuda(non_blocking=True), t.cuda(non_blocking=True)
        opt.zero_grad()
        with torch.autocast("cuda", low or torch.bfloat16,
                            enabled=low is not None):
            loss = net(x, t)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(opt)
        scaler.update()

    return step


def milliseconds(step, x, t, steps, warm):
    for _ in range(warm):
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


def count(net):
    return sum(p.numel() for p in net.parameters())


def small(kind, precision, mode, batch, steps):
    net = Loss((cnn if kind == "cnn" else mlp)()).cuda().train()
    if kind == "cnn":
        net = net.to(memory_format=torch.channels_last)
    if mode == "compile":
        net = torch.compile(net, mode="reduce-overhead")
    shape = (batch, 1, 28, 28) if kind == "cnn" else (batch, 784)
    x = torch.rand(shape).pin_memory()
    t = torch.randint(0, 10, (batch,)).pin_memory()
    return milliseconds(step_of(net, precision), x, t, steps, WARM_STEPS), \
        batch, count(net)


def model(name, mode):
    _, make, batch, optimizer = real.MODELS[name]
    x, t = (v.pin_memory() for v in batch())
    net = Loss(make()).cuda().train()
    if x.dim() == 4:
        net = net.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last).pin_memory()
    if mode == "compile":
        net = torch.compile(net, mode="reduce-overhead")
    sgd = optimizer.startswith("sgd")
    step = step_of(net, "bf16", sgd, clip=not sgd)
    return milliseconds(step, x, t, MODEL_STEPS, 2 * MODEL_STEPS), len(x), \
        count(net)


def line(name, mode, measure):
    """measure: milliseconds, the batch and how many numbers train."""
    out = {"check": "torch", "ok": True, "module": name, "mode": mode,
           "torch": torch.__version__, "cuda": torch.version.cuda,
           "cudnn": torch.backends.cudnn.version()}
    torch.manual_seed(0)
    torch.compiler.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        ms, out["batch"], out["parameters"] = measure()
        out["ms"] = round(ms, 4)
        out["mib"] = torch.cuda.max_memory_reserved() >> 20
    except Exception as e:  # no compiler for Triton, no room
        out["ok"] = (mode == "compile"
                     or isinstance(e, torch.OutOfMemoryError))
        out["text"] = (str(e) or repr(e)).replace('"', "'").splitlines()[0][:200]
    print(json.dumps(out, separators=(",", ":")), flush=True)


def main():
    what, arguments = sys.argv[1], sys.argv[2:]
    torch.cuda.set_device(os.environ.get("AMPC_CHECK_DEVICE", "cuda:0"))
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    if what == "models":
        for mode in ("eager", "compile"):
            for name in arguments:
                line(name + ".bf16", mode, lambda: model(name, mode))
        return
    batch = int(arguments[0])
    steps = int(arguments[1]) if len(arguments) > 1 else 200
    for kind in ("cnn", "mlp"):
        for precision in ("fp32", "bf16", "fp16"):
            for mode in ("eager", "compile"):
                line(kind + "." + precision, mode, lambda: small(
                    kind, precision, mode, batch, steps))


if __name__ == "__main__":
    main()
