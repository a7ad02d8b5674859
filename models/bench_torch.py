"""PyTorch eager beside ampc: milliseconds of one training step.

usage: bench_torch.py cnn|mlp fp32|bf16 BATCH STEPS     (script/bench calls it)

The networks are those of make_models.py; AdamW, cross-entropy; prints the
median step time after a warm-up.
"""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1568, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10))


def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256),
                         nn.ReLU(), nn.Linear(256, 10))


def main():
    kind, precision, batch, steps = sys.argv[1:5]
    batch, steps = int(batch), int(steps)
    torch.set_num_threads(torch.get_num_threads())
    torch.manual_seed(0)
    net = (cnn if kind == "cnn" else mlp)().train()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    shape = (batch, 1, 28, 28) if kind == "cnn" else (batch, 784)
    x, t = torch.rand(shape), torch.randint(0, 10, (batch,))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=precision == "bf16"):
            loss = F.cross_entropy(net(x), t)
        loss.backward()
        opt.step()
        loss.item()
        times.append(time.perf_counter() - start)
    print("%.3f" % (1e3 * statistics.median(times[steps // 5:])))


if __name__ == "__main__":
    main()
