#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what the authors of --wrapper and --gradient noise compute, for
optimizers_test, beside the steps of make.py in this folder.

    pip install torch==2.15.0 numpy
    python3 tests/optimizers/make_wrappers.py > tests/optimizers/wrappers.txt

All is in doubles, but for random numbers: those of ampc, from Philox.  Lookahead is
michaelrzhang/lookahead (pullback_momentum none), SAM davda54/sam, whose
BatchNorm does not move its running statistics in the second forward pass; noise
is optax 0.2.8's add_noise.  Cases whose name begins with "net" train the small
network below, with two micro-batches a step if its name says so: then each has
its own ascent.
"""
import math

import numpy as np
import torch

from make import PLAIN, SHAPES, SKIPS, gradients, initial

NET = {"w1": (4, 4), "w2": (4, 2)}


class Lookahead:
    def __init__(self, base, params, k=5, alpha=0.8):
        self.base, self.params, self.k, self.alpha = base, params, k, alpha
        self.step_number = 0
        self.cached = [p.detach().clone() for p in params]

    def step(self):
        self.base.step()
        self.step_number += 1
        if self.step_number < self.k:
            return
        self.step_number = 0
        for p, slow in zip(self.params, self.cached):
            p.data.mul_(self.alpha).add_(slow, alpha=1 - self.alpha)
            slow.copy_(p.data)


def philox(seed, count, salt, n):
    """n words of 24 bits as numbers in [0, 1): Philox 4x32-10 (Salmon et al. 2011)."""
    words = []
    for block in range((n + 3) // 4):
        a, b, c, d = block, 0, count, salt
        k0, k1 = seed & 0xffffffff, seed >> 32
        for _ in range(10):
            p, q = a * 0xd2511f53, c * 0xcd9e8d57
            a, b, c, d = (q >> 32) ^ b ^ k0, q & 0xffffffff, (p >> 32) ^ d ^ k1, p & 0xffffffff
            k0, k1 = (k0 + 0x9e3779b9) & 0xffffffff, (k1 + 0xbb67ae85) & 0xffffffff
        words += [a, b, c, d]
    return np.array([w >> 8 for w in words[:n]]) / 2.0**24


def normal(count, salt, shape):
    n = math.prod(shape)
    u = philox(0, count, salt, 2 * n)
    x = np.sqrt(-2 * np.log(1 - u[:n])) * np.cos(2 * np.pi * u[n:])
    return torch.tensor(x).reshape(shape)


def show(step, tensors):
    if step not in (0, 4, 19):
        return
    for n, p in tensors.items():
        values = " ".join(f"{v:.17g}" for v in p.detach().flatten().tolist())
        print(f"at {step} {n} {values}")


def sums(name, options, optimizer, letters=PLAIN, eta=0.0, gamma=0.55, precision="fp32"):
    """The loss of optimizers_test: its gradients do not depend on parameters."""
    params = {n: torch.nn.Parameter(initial(n)) for n in SHAPES}
    made = optimizer(list(params.values()))
    print(f"case {name} {letters} {options} --precision {precision}")
    t = 0
    for i, letter in enumerate(letters):
        if letter == ".":
            for k, (n, g) in enumerate(gradients(i).items()):
                scale = math.sqrt(eta / (t + 1)**gamma)
                params[n].grad = g + normal(t, (3 << 29) + k, g.shape) * scale
            made.step()
            t += 1
        show(i, params)


def net_loss(params, bn, i):
    g = gradients(i)
    x, t = g["m"], g["c"].flatten()[:10].reshape(5, 2)
    y = torch.tanh(bn(x @ params["w1"])) @ params["w2"]
    return ((y - t)**2).mean()


def climb(params, rho, adaptive):
    """davda54/sam, first_step and the copies that second_step restores."""
    old = [p.detach().clone() for p in params]
    with torch.no_grad():
        norm = torch.stack([((p.abs() if adaptive else 1.0) * p.grad).norm()
                            for p in params]).norm()
        scale = rho / (norm + 1e-12)
        for p in params:
            p.add_((p**2 if adaptive else 1.0) * p.grad * scale)
            p.grad = None
    return old


def sharp_gradients(params, bn, i, rho, adaptive):
    everything = list(params.values()) + list(bn.parameters())
    for p in everything:
        p.grad = None
    bn.momentum = 0.1
    net_loss(params, bn, i).backward()
    old = climb(everything, rho, adaptive)
    bn.momentum = 0
    net_loss(params, bn, i).backward()
    for p, o in zip(everything, old):
        p.data.copy_(o)
    return [p.grad.clone() for p in everything]


def net(name, options, optimizer, rho, adaptive=False, clip=0, micro=1, letters=PLAIN,
        precision="fp32"):
    params = {n: torch.nn.Parameter(
        torch.tensor([((37 * i + 11) % 64 - 32) / 32 for i in range(math.prod(s))],
                     dtype=torch.float64).reshape(s)) for n, s in NET.items()}
    bn = torch.nn.BatchNorm1d(4).double()
    everything = list(params.values()) + list(bn.parameters())
    made = optimizer(everything)
    print(f"case net_{name} {letters} {options} --precision {precision}"
          + (f" --clip-norm {clip}" if clip else "")
          + (f" --accumulate {micro}" if micro > 1 else ""))
    for i in range(len(letters)):
        each = [sharp_gradients(params, bn, i * micro + k, rho, adaptive)
                for k in range(micro)]
        for k, p in enumerate(everything):
            p.grad = sum(g[k] for g in each) / micro
        if clip:
            torch.nn.utils.clip_grad_norm_(everything, clip)
        made.step()
        show(i, {**params, "bn.weight": bn.weight, "bn.bias": bn.bias,
                 "bn.running_mean": bn.running_mean, "bn.running_var": bn.running_var})


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def main():
    print(f"# tests/optimizers/make_wrappers.py: torch {torch.__version__}")
    of_adamw, of_sgd = "--optimizer adamw,lr=0.05", "--optimizer sgd,lr=0.1,momentum=0.9"
    sums("lookahead", of_adamw + " --wrapper lookahead", lambda p: Lookahead(adamw(p), p))
    sums("lookahead_fp16", of_sgd + " --wrapper lookahead,k=3,alpha=0.4",
         lambda p: Lookahead(sgd(p), p, 3, 0.4), SKIPS, precision="fp16")
    sums("noise", of_sgd + " --gradient noise,eta=0.3", sgd, eta=0.3)
    sums("noise_fp16", of_adamw + " --gradient noise,eta=0.01,gamma=1.0", adamw, SKIPS, eta=0.01,
         gamma=1.0, precision="fp16")
    net("sam", of_sgd + " --wrapper sam", sgd, 0.05)
    net("asam", of_adamw + " --wrapper sam,rho=0.5,adaptive", adamw, 0.5, True)
    net("sam_clip", of_sgd + " --wrapper sam,rho=0.1", sgd, 0.1, clip=0.8)
    net("sam_micro", of_sgd + " --wrapper sam,rho=0.2", sgd, 0.2, micro=2)
    net("sam_lookahead", of_sgd + " --wrapper sam,rho=0.1 --wrapper lookahead,k=4",
        lambda p: Lookahead(sgd(p), p, 4), 0.1)


if __name__ == "__main__":
    main()
