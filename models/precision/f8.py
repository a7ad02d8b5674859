#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--precision f8 beside torchao's emulation of float8 training (maintainers).

usage: f8.py AMPC [--steps N] [--blocks]

A perceptron of three layers learns classes of drawn points. PyTorch trains it in
fp32, under autocast in bf16, and there with a float8 layer of torchao
(tensorwise scales of the present numbers, emulate=True) in the middle, with --blocks
one of MXFP8 (scales of blocks of 32, RCEIL, emulated) beside --f8-scales block; ampc trains it in bf16 and f8, from the same weights on
the same batches, with the same SGD. Prints the losses of some steps and, over
all steps, the root mean square of the relative distances between the runs, and
how far the gradients of the first step are apart; status 1 if ampc's f8 is not
nearer to torchao's than torchao's is to bf16.

Needs torch, torchao (0.18), numpy and onnx."""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BATCH, WIDTH, CLASSES, RATE = 128, 256, 64, 0.5


class Blocks(nn.Module):
    """A linear layer whose three products read MXFP8."""

    def __init__(self, of):
        super().__init__()
        self.weight, self.bias = of.weight, of.bias

    def forward(self, x):
        from torchao.prototype.moe_training import mxfp8_linear as mx
        y = mx._to_mxfp8_then_scaled_mm(
            x.bfloat16(), self.weight.bfloat16(), mx.KernelPreference.EMULATED,
            mx.ScaleCalculationMode.RCEIL)
        return y + self.bias.bfloat16()


def network():
    torch.manual_seed(7)
    layers = []
    for i in range(3):
        layers += [nn.Linear(WIDTH, CLASSES if i == 2 else WIDTH), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def data(steps):
    rng = np.random.default_rng(5)
    centres = rng.standard_normal((CLASSES, WIDTH))
    y = rng.integers(0, CLASSES, steps * BATCH)
    x = centres[y] + rng.standard_normal((steps * BATCH, WIDTH))
    return x.astype(np.float32), y.astype(np.int64)


def in_torch(x, y, steps, precision, blocks):
    net = network()
    if precision == "f8" and blocks:
        net[2] = Blocks(net[2])
    elif precision == "f8":
        from torchao.float8 import Float8LinearConfig, \
            convert_to_float8_training
        convert_to_float8_training(
            net, config=Float8LinearConfig(emulate=True),
            module_filter_fn=lambda m, name: name == "2")
    opt = torch.optim.SGD(net.parameters(), lr=RATE)
    losses, first = [], None
    for i in range(steps):
        part = slice(i * BATCH, (i + 1) * BATCH)
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=precision != "fp32"):
            out = net(torch.from_numpy(x[part]))
        loss = F.cross_entropy(out.float(), torch.from_numpy(y[part]))
        opt.zero_grad()
        loss.backward()
        if first is None:
            first = [p.grad.detach().numpy().copy() for p in net.parameters()]
        opt.step()
        losses.append(loss.item())
    return np.array(losses), first


def in_ampc(ampc, folder, steps, precision, more):
    out = os.path.join(folder, precision + ".so")
    subprocess.run(
        [ampc, os.path.join(folder, "net.onnx"), "-o", out, "--quick",
         "--precision", precision, "--loss", "cross_entropy",
         "--optimizer", f"sgd,lr={RATE}", *more],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = os.path.join(folder, precision + ".jsonl")
    first = os.path.join(folder, precision + ".safetensors")
    feeds = ["--feed", "x=" + os.path.join(folder, "x.npy"),
             "--feed", "target=" + os.path.join(folder, "y.npy")]
    for n, more in ((1, ["--save", first]), (steps, ["--log", log])):
        subprocess.run([ampc, "run", out, *feeds, "--steps", str(n),
                        "--quiet", *more], check=True,
                       stdout=subprocess.DEVNULL)
    return log, first


def apart(a, b):
    return float(np.sqrt(np.mean(((a - b) / b) ** 2)))


def gradients_apart(a, b):
    off = sum(float(((p - q) ** 2).sum()) for p, q in zip(a, b))
    return (off / sum(float((q ** 2).sum()) for q in b)) ** 0.5


def main():
    import json

    from safetensors.numpy import load_file
    at = argparse.ArgumentParser(usage=__doc__)
    at.add_argument("ampc")
    at.add_argument("--steps", type=int, default=50)
    at.add_argument("--blocks", action="store_true")
    a = at.parse_args()
    ampc = os.path.abspath(a.ampc)
    x, y = data(a.steps)
    runs, grads = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        np.save(os.path.join(folder, "x.npy"), x)
        np.save(os.path.join(folder, "y.npy"), y)
        net = network()
        torch.onnx.export(net, (torch.from_numpy(x[:BATCH]),),
                          os.path.join(folder, "net.onnx"), input_names=["x"],
                          output_names=["logits"], dynamo=True, verbose=False)
        start = [p.detach().numpy() for p in net.parameters()]
        names = [n for n, _ in net.named_parameters()]
        for p in ("fp32", "bf16", "f8"):
            runs["torch " + p], grads["torch " + p] = in_torch(
                x, y, a.steps, p, a.blocks)
            more = ["--f8-scales", "block"] if a.blocks and p == "f8" else []
            log, first = in_ampc(ampc, folder, a.steps, p, more)
            with open(log, encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            runs["ampc " + p] = np.array(
                [r["loss"] for r in rows if "loss" in r and "step" in r])
            after = load_file(first)
            grads["ampc " + p] = [(s - after[n]) / RATE
                                  for n, s in zip(names, start)]
    print("step    " + "".join(f"{k:>12}" for k in runs))
    for i in sorted({0, 1, 9, 24, a.steps - 1} & set(range(a.steps))):
        print(f"{i + 1:4d}    " + "".join(f"{v[i]:12.6f}"
                                          for v in runs.values()))
    peer = "torch f8"
    print("\nbeside torch f8   loss of all steps   first gradient")
    for k in runs:
        if k != peer:
            print(f"{k:16} {apart(runs[k], runs[peer]):18.1e}"
                  f"{gradients_apart(grads[k], grads[peer]):17.1e}")
    near = gradients_apart(grads["ampc f8"], grads[peer])
    return near > gradients_apart(grads["torch bf16"], grads[peer])


if __name__ == "__main__":
    sys.exit(main())
