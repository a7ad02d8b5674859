#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a second thread pays in short steps, process by process.

usage: small_steps.py AMPC FOLDER [--processes N] [--seconds S]
                      [--precision P] [--batch N...]

Compiles models/mlp.amp into FOLDER and starts N processes (20), one after the
other.  Each opens a session of one thread and a session of two, predicts with
them in turns for S seconds (1), and prints the medians and their ratio.  The
last line counts the processes in which two threads take at most 0.58 of the
time of one.  Batch 1 shows the latency; its ratio does not count.  Needs numpy
and a quiet machine of two cores at least; the line of each process ends with
the part of the time for which a core was taken away (/proc/self/schedstat)."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
GOAL, TURN = 0.58, 20


def waited():
    """Nanoseconds for which this thread could run and had no core."""
    with open("/proc/self/schedstat") as f:
        return int(f.read().split()[1])


def worker(path, batch, seconds):
    sys.path.append(os.path.join(ROOT, "runtime/python"))
    import ampc
    import numpy as np
    x = np.random.default_rng(0).random((batch, 784), np.float32)
    sessions = [ampc.Module(path).session("cpu", n) for n in (1, 2)]
    times = [[], []]
    for s in sessions:
        s.predict(x=x)
    start, lost = time.perf_counter(), waited()
    while time.perf_counter() < start + seconds:
        for s, ms in zip(sessions, times):
            for _ in range(TURN):
                before = time.perf_counter()
                s.predict(x=x)
                ms.append(1e3 * (time.perf_counter() - before))
    lost = 1e-9 * (waited() - lost) / (time.perf_counter() - start)
    print(json.dumps({"ms": [statistics.median(t) for t in times],
                      "least": [min(t) for t in times], "lost": lost}))


def compile_mlp(o, batch):
    path = os.path.join(o.folder, f"small.{batch}.so")
    subprocess.run([o.ampc, os.path.join(ROOT, "models/mlp.amp"), "-o", path,
                    "--dim", f"B={batch}", "--precision", o.precision,
                    "--target", "cpu:native"], check=True, capture_output=True)
    return path


def measure(o, batch):
    path, ratios = compile_mlp(o, batch), []
    for i in range(o.processes):
        done = subprocess.run([sys.executable, __file__, "--worker", path,
                               str(batch), str(o.seconds)], check=True,
                              capture_output=True, text=True)
        r = json.loads(done.stdout)
        (one, two), least = r["ms"], r["least"]
        ratios.append(two / one)
        print(f"| {batch} | {i + 1} | {one:.4f} | {two:.4f} | {two / one:.2f} "
              f"| {least[0]:.4f} | {least[1]:.4f} | {r['lost']:.2f} |",
              flush=True)
    return ratios


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    p = argparse.ArgumentParser()
    p.add_argument("ampc")
    p.add_argument("folder")
    p.add_argument("--processes", type=int, default=20)
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--precision", default="fp32")
    p.add_argument("--batch", type=int, nargs="+", default=[128, 1])
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    print("| batch | process | 1 thread, median ms | 2 threads, median ms | "
          "ratio | 1 thread, least ms | 2 threads, least ms | without a core |")
    print("|---" * 8 + "|")
    for batch in o.batch:
        ratios = measure(o, batch)
        good = sum(r <= GOAL for r in ratios)
        print(f"\nbatch {batch}: two threads take {min(ratios):.2f} to "
              f"{max(ratios):.2f} of the time of one, at most {GOAL} in {good} "
              f"of {o.processes} processes\n")


if __name__ == "__main__":
    main()
