#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products or convolutions of ampc beside oneDNN and OpenBLAS, in turns.

usage: bench_kernels.py CPU_BENCH --gemm|--conv [--rounds N] [--seconds S] [--busy]
                        [--isa LEVEL] [--dtype f32,bf16]
(script/bench calls it; CPU_BENCH is //tests:cpu_bench)

Square shapes and those of the models of bench.py.  oneDNN is PyTorch's
(mkldnn_linear, whose weights lie as it wants them; conv2d and its gradients),
OpenBLAS is numpy's and has no bf16.  A figure is the median over N rounds, in
each of which every contender runs for about S seconds, GFLOP/s; a ratio is the
better peer's time over ours.  Behind our convolutions stands their share of our
own product of 1024 x 1024 x 1024, which runs in the same rounds.  --busy: one
thread and its processor time; --isa as in bench.py."""
import argparse
import math
import os
import statistics
import subprocess
import sys
import time

from bench import LEVELS, force_level

GEMM = [  # M, N, K, how the operands lie
    *((n, n, n, "NN") for n in (256, 512, 1024, 2048)),
    (128, 512, 784, "NT"), (512, 784, 128, "TN"),  # MLP
    (1024, 768, 256, "NT"), (1024, 256, 768, "NN"),  # GPT: attention's
    (1024, 1024, 256, "NT"), (1024, 256, 1024, "NT"), (1024, 256, 1024, "TN"),
    (1024, 1024, 256, "NN"),  # GPT: head
    (512, 344, 128, "NT"),  # LLaMA
    (1024, 576, 192, "NT"), (1024, 768, 192, "NT"), (192, 768, 1024, "TN"),
    (1024, 384, 128, "NT"), (1024, 128, 512, "NT"),  # BERT
    (32, 1024, 256, "NT"), (2048, 1024, 256, "NT"),  # LSTM
    (512, 512, 367, "NT"), (512, 256, 512, "NT"),  # DLRM
]
CONV = [  # images, channels, image, results, kernel, stride, pad
    (64, 1, 28, 16, 3, 1, 1), (64, 16, 14, 32, 3, 1, 1),  # CNN
    (16, 3, 32, 64, 3, 1, 1), (16, 64, 32, 64, 3, 1, 1),  # ResNet-18
    (16, 128, 16, 128, 3, 1, 1), (16, 256, 8, 256, 3, 1, 1),
    (16, 512, 4, 512, 3, 1, 1), (16, 64, 32, 128, 3, 2, 1),
    (16, 128, 16, 256, 3, 2, 1), (16, 256, 8, 512, 3, 2, 1),
    (16, 64, 32, 128, 1, 2, 0), (16, 256, 8, 512, 1, 2, 0),
    (4, 3, 224, 64, 7, 2, 3), (4, 256, 56, 64, 1, 1, 0),  # ResNet-50
    (4, 64, 56, 64, 3, 1, 1), (4, 512, 7, 2048, 1, 1, 0),
    (4, 32, 128, 32, 3, 1, 1), (4, 128, 32, 64, 3, 1, 1),  # U-Net
]
RATE = (1024, 1024, 1024, "NN")


# ---- a peer in a process of its own, that answers as cpu_bench does


def onednn(line):
    import torch
    kind, dtype, _, *shape = line
    d = torch.float32 if dtype == "f32" else torch.bfloat16
    if kind == "gemm":
        m, n, k = map(int, shape[:3])
        x = torch.rand(m, k, dtype=d).to_mkldnn()
        w = torch.rand(n, k, dtype=d).to_mkldnn()
        return lambda: torch._C._nn.mkldnn_linear(x, w)
    n, c, image, k, kernel, stride, pad = map(int, shape[1:])
    x, w = torch.rand(n, c, image, image, dtype=d), \
        torch.rand(k, c, kernel, kernel, dtype=d)
    if shape[0] == "fwd":
        return lambda: torch.conv2d(x, w, None, stride, pad)
    dy = torch.rand_like(torch.conv2d(x, w, None, stride, pad))
    mask = [shape[0] == "dgrad", shape[0] == "wgrad", False]
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)


def openblas(line):
    import numpy as np
    m, n, k = map(int, line[3:6])
    a, b = np.random.rand(m, k).astype("f4"), np.random.rand(k, n).astype("f4")
    if line[6][0] == "T":
        a = np.ascontiguousarray(a.T).T
    if line[6][1] == "T":
        b = np.ascontiguousarray(b.T).T
    c = np.empty((m, n), "f4")
    return lambda: np.matmul(a, b, out=c)


def answer(peer, busy):
    clock = time.process_time if busy else time.perf_counter
    if peer == "onednn":
        import torch
        torch.set_grad_enabled(False)
        if busy:
            torch.set_num_threads(1)
    call = {"onednn": onednn, "openblas": openblas}[peer]
    for line in sys.stdin:
        run, times, end = call(line.split()), [], clock() + float(line.split()[2])
        run()
        while len(times) < 5 or clock() < end:
            start = clock()
            run()
            times.append(clock() - start)
        print(1e3 * statistics.median(times), flush=True)


class Peer:
    def __init__(self, command):
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        return float(self.child.stdout.readline())

    def close(self):
        self.child.stdin.close()
        self.child.wait()


# ---- the table


def flops(kind, shape):
    if kind == "gemm":
        return 2 * math.prod(shape[:3])
    n, c, image, k, kernel, stride, pad = shape
    out = (image + 2 * pad - kernel) // stride + 1
    return 2 * n * c * k * (kernel * out) ** 2


def request(kind, dtype, seconds, shape):
    return " ".join(map(str, (kind, dtype, seconds, *shape)))


def jobs(kind):
    """Name, request's tail, shape."""
    if kind == "gemm":
        return [("%d x %d x %d %s" % s, s, s) for s in GEMM]
    return [("%dx%dx%d^2 to %d, %dx%d by %d %s" %
             (*s[:5], s[4], s[5], which), (which, *s), s)
            for s in CONV for which in ("fwd", "dgrad", "wgrad")]


def measure(team, options, dtype, kind, tail):
    """By contender its times."""
    lines = {"rate": request("gemm", dtype, options.seconds, RATE)} \
        if kind == "conv" else {}
    line = request(kind, dtype, options.seconds, tail)
    lines.update({name: line for name in team
                  if name != "openblas" or (kind, dtype) == ("gemm", "f32")})
    times = {name: [] for name in lines}
    for _ in range(options.rounds):
        for name, text in lines.items():
            times[name].append(team.get(name, team["ampc"]).ask(text))
    return times


def row(options, team, dtype, job):
    name, tail, shape = job
    times = measure(team, options, dtype, options.kind, tail)
    rate = {n: flops(options.kind, shape) / statistics.median(t) * 1e-6
            for n, t in times.items()}
    peers = [times[p] for p in ("openblas", "onednn") if p in times]
    ratio = statistics.median(min(t) / o for *t, o in
                              zip(*peers, times["ampc"]))
    cells = [name, dtype, "%.4g" % statistics.median(times["ampc"]),
             "%.0f" % rate["ampc"]]
    if options.kind == "conv":
        own = flops("gemm", RATE) / statistics.median(times["rate"]) * 1e-6
        cells.append("%.0f" % (100 * rate["ampc"] / own))
    else:
        cells.append("%.0f" % rate["openblas"] if "openblas" in rate else "-")
    cells += ["%.0f" % rate["onednn"], "%.2f" % ratio]
    print("| " + " | ".join(cells) + " |", flush=True)
    return ratio


def main():
    if sys.argv[1:2] == ["--peer"]:
        return answer(sys.argv[2], sys.argv[3] == "busy")
    p = argparse.ArgumentParser()
    p.add_argument("cpu_bench")
    which = p.add_mutually_exclusive_group(required=True)
    for kind in ("gemm", "conv"):
        which.add_argument("--" + kind, dest="kind", action="store_const",
                           const=kind)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--busy", action="store_true")
    p.add_argument("--isa", choices=LEVELS)
    p.add_argument("--dtype", default="f32,bf16")
    options = p.parse_args()
    how = "processor time of one thread" if options.busy else "all threads"
    if options.busy:
        os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    print(f"{how}, {options.rounds} rounds of {options.seconds} s,",
          force_level(options.isa))
    busy = "busy" if options.busy else "quiet"
    team = {"ampc": Peer([options.cpu_bench, "1" if options.busy else "0",
                          "serve"])}
    for peer in ("openblas", "onednn")[options.kind == "conv":]:
        team[peer] = Peer([sys.executable, __file__, "--peer", peer, busy])
    head = ["shape", "dtype", "ampc ms", "ampc GFLOP/s",
            "% of its product" if options.kind == "conv" else "OpenBLAS",
            "oneDNN", "better peer / ampc"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for dtype in options.dtype.split(","):
        ratios = [row(options, team, dtype, job) for job in jobs(options.kind)]
        print(f"\ngeometric mean in {dtype}: "
              f"{statistics.geometric_mean(ratios):.2f}; below 1: "
              f"{sum(r < 1 for r in ratios)} of {len(ratios)}\n")
    for peer in team.values():
        peer.close()


if __name__ == "__main__":
    main()
