#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How a step of several micro-batches is trained: as one batch of all their samples.

usage: accumulate.py FOLDER   (maintainers) writes FOLDER/expected.csv, with PyTorch
                              2.11; FOLDER/NAME.amp are the models

A window of A micro-batches of 4 samples is one batch in PyTorch; the last window of an
epoch has the samples that are left. A line is NAME, A, the losses of all steps of two
epochs, and then all elements of both weights. tests/whole/accumulate_test.c makes the
same data.
"""
import os
import sys

import torch
import torch.nn.functional as F

BATCH, SAMPLES, T, IN, H, C, LR = 4, 22, 3, 5, 6, 4, 0.2
WEIGHTS = [2.0, 1.5, 1.0, 0.5]


def numbers(shape, by, plus):
    n = torch.arange(torch.Size(shape).numel())
    return ((n * by + plus) % 64 / 32 - 1).reshape(shape).double()


x = numbers((SAMPLES, T, IN), 37, 5)
r = numbers((SAMPLES, T, C), 29, 3)
n = torch.arange(SAMPLES * T)
target = (n * 7 + n // 5) % C
# samples 4 to 7 and 12 to 21 have no label: micro-batches and whole steps without any
gone = ((n * 5) % 7 < 3) | (n // T // 4 == 1) | (n // T >= 12)
t = torch.where(gone, -100, target).reshape(SAMPLES, T)
m = torch.where(t >= 0, 1.0 + (n % 3).reshape(t.shape), 0.0).double()


def ce(y, t, **more):
    return F.cross_entropy(y.flatten(0, 1), t.flatten(), **more)


def each(y, t):
    return F.cross_entropy(y.transpose(1, 2), t.clamp(min=0), reduction="none")


LOSSES = {
    "labels": lambda w, y, x, r, t, m: ce(y, t),
    "weights": lambda w, y, x, r, t, m: ce(y, t, weight=torch.tensor(WEIGHTS).double()),
    "smooth": lambda w, y, x, r, t, m: ce(y, t, weight=torch.tensor(WEIGHTS).double(),
                                          label_smoothing=0.3),
    "nll": lambda w, y, x, r, t, m: F.nll_loss(y.log_softmax(2).flatten(0, 1), t.flatten()),
    "first": lambda w, y, x, r, t, m: F.cross_entropy(y[:, 0], t[:, 0]),
    "plain": lambda w, y, x, r, t, m: ce(y, t.clamp(min=0)),
    "mask": lambda w, y, x, r, t, m: (each(y, t) * m).sum() / m.sum(),
    "clamped": lambda w, y, x, r, t, m: (each(y, t) * m).mean() / m.mean().clamp(min=1e-6),
    "mse": lambda w, y, x, r, t, m: F.mse_loss(y, r),
    "huber": lambda w, y, x, r, t, m: F.huber_loss(y, r),
    "bce": lambda w, y, x, r, t, m: F.binary_cross_entropy_with_logits(y, r / 2 + 0.5),
    "by_hand": lambda w, y, x, r, t, m: ((y - r) ** 2).sum(2).mean(0).sum() * 0.3,
    "batch_mean": lambda w, y, x, r, t, m: ((y - r) ** 2).sum() / len(x),
    "sum": lambda w, y, x, r, t, m: F.mse_loss(y, r, reduction="sum") * 0.01,
    "two": lambda w, y, x, r, t, m: 0.5 * ce(y, t) + ce(y * y, t),
    "two_means": lambda w, y, x, r, t, m: F.mse_loss(y, r) + 0.1 * (y - r).abs().mean(),
    "decay": lambda w, y, x, r, t, m: ce(y, t) + 0.01 * (w * w).sum(),
}


def train(loss, a):
    w = numbers((IN, H), 11, 7).requires_grad_()
    v = numbers((H, C), 13, 2).requires_grad_()
    losses = []
    for _ in range(2):
        for at in range(0, SAMPLES, a * BATCH):
            part = slice(at, min(at + a * BATCH, SAMPLES))
            y = torch.tanh(x[part] @ w) @ v
            value = loss(w, y, x[part], r[part], t[part], m[part])
            if value.isnan():
                losses.append(0.0)  # no label counts: no step
                continue
            losses.append(value.item())
            for p, g in zip((w, v), torch.autograd.grad(value, (w, v))):
                p.data -= LR * g
    return losses + w.flatten().tolist() + v.flatten().tolist()


with open(os.path.join(sys.argv[1], "expected.csv"), "w") as f:
    for name, loss in LOSSES.items():
        for a in (1, 3):
            line = ",".join(f"{v:.9g}" for v in train(loss, a))
            f.write(f"{name},{a},{line}\n")
