#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training step of thirteen models in ampc and in PyTorch, in turns.

usage: bench.py AMPC FOLDER [--rounds N] [--seconds S] [--busy] [--no-compile]
                [--peer fp32,bf16] [--inference | --scaling] [--isa LEVEL]
                [--cpu-bench PROGRAM] [NAME...]
(script/bench calls it; FOLDER keeps the exported models; names by beginning,
those of MORE and REAL in bench_models.py only so, as "real" for all of real
size; --peer: in what PyTorch runs;
--inference: predictions instead, beside ONNX Runtime; --scaling: steps of a
quarter of the batch, of it and of four times as much, by one thread, two, four
and so on up to all, beside the eager mode; --isa: a lower instruction set level
on both sides, v2, v3, v4-fma (no dot products of bf16) or v4-dot, but
for ONNX Runtime, which takes no such order.  Three models are torchvision's, of
MORE some timm's and transformers')

AdamW, dropout on where a model has it; PyTorch is its eager mode and
torch.compile, in bf16 by autocast.  Every contender of a model runs for about
S seconds in each of N rounds, one after the other; a figure is the median over
rounds of the median step, a ratio the median of the rounds' ratios, best of
PyTorch over ampc.  --busy is for machines that others use too: one thread
each, and a step's processor time instead of its duration.  Memory is the
largest resident set of the process.  With --cpu-bench a row ends with what all
threads together copied before each round, GB/s: in a virtual machine whose
processors move between groups of cores that share a cache, it tells where they
were (docs/benchmarks.md)."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

import bench_models
from bench_models import ALL, INPUTS, MODELS, entry, make, there_is

# Settings that restrict PyTorch (also compiled), oneDNN, MKL and OpenBLAS to a
# level.
LEVELS = {"v2": ("default", "SSE41", "SSE4_2", "Nehalem"),
          "v3": ("avx2", "AVX2", "AVX2", "Haswell"),
          "v4-fma": ("avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
          "v4-dot": ("avx512", "AVX512_CORE_BF16", "AVX512", "Cooperlake")}
LEVEL_OF = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA",
            "MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE")


def force_level(level):
    """For all processes from here on; a line that says so."""
    if not level:
        return "every library at the level that it chooses\n"
    orders = dict(zip(LEVEL_OF, map(str, LEVELS[level])), AMPC_ISA=level)
    os.environ.update(orders)
    return "level " + level + " by " + " ".join(
        f"{key}={orders[key]}" for key in sorted(orders)) + \
        " (ONNX Runtime: at the machine's own)\n"


# ---- a contender in a process of its own, that runs when it is told to


def peak_mb(pid):
    """ru_maxrss would count the process that this one was forked from."""
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        lines = []
    return max((int(line.split()[1]) / 1024 for line in lines
                if line.startswith("VmHWM")), default=0)


def torch_step(name, precision, mode):
    model, batch = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step_model = torch.compile(model) if mode == "compile" else model

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16,
                            enabled=precision == "bf16"):
            loss = step_model(*batch)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def onnxruntime_step(path, threads, inputs):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options,
                                           ["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def predict_step(path, threads, inputs):
    sys.path.append(os.path.join(os.path.dirname(__file__),
                                 "../../runtime/python"))
    import ampc
    session = ampc.Module(path).session("cpu", threads)
    return lambda: session.predict(**inputs)


def worker(name, precision, mode, busy, threads, folder):
    clock = time.process_time if busy == "busy" else time.perf_counter
    threads = int(threads)
    if threads:
        torch.set_num_threads(threads)
    if mode in ("eager", "compile"):
        step = torch_step(name, precision, mode)
    else:
        batch = make(name)[1]
        inputs = {x: data.numpy()
                  for x, data in zip(INPUTS[len(batch)], batch[:-1])}
        step = {"onnxruntime": onnxruntime_step, "predict": predict_step}[mode](
            plain(folder, name) if mode == "onnxruntime" else
            module(folder, plain(folder, name), precision), threads, inputs)

    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    step()
    for line in sys.stdin:
        times, end = [], clock() + float(line)
        while not times or clock() < end:
            start = clock()
            step()
            times.append(clock() - start)
        print(json.dumps({"ms": 1e3 * statistics.median(times),
                          "mb": peak_mb("self"), "first": first}), flush=True)


class Worker:
    def __init__(self, name, precision, mode, options, threads=0):
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--worker", name, precision, mode,
             "busy" if options.busy else "quiet",
             "1" if options.busy else str(threads), options.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)

    def run(self, seconds):
        try:
            self.child.stdin.write(f"{seconds}\n")
            self.child.stdin.flush()
            line = self.child.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else None

    def close(self):
        try:
            self.child.stdin.close()
        except BrokenPipeError:
            pass
        self.child.wait()


# ---- ampc


def plain(folder, name):
    return os.path.join(folder, name + ".plain.onnx")


def trained(folder, name):
    return os.path.join(folder, name + ".onnx")


def module(folder, path, precision):
    return f"{path[:-len('.onnx')]}.{precision}.so"


def compile_module(options, path, precision, *more):
    """Seconds it took."""
    start = time.perf_counter()
    subprocess.run([options.ampc, path, "-o",
                    module(options.folder, path, precision), "--precision",
                    precision, "--target", "cpu", *more],
                   check=True, capture_output=True,
                   env=dict(os.environ, AMPC_CACHE_DIR="none"))
    return time.perf_counter() - start


class Ampc:
    """`first`: the seconds that compiling its module took."""

    def __init__(self, options, name, precision, first, threads=0):
        folder, busy = options.folder, options.busy
        path = trained(folder, name)
        self.first = first
        self.command = [options.ampc, "run", module(folder, path, precision),
                        "--device", "cpu", "--quiet", "--threads",
                        "1" if busy else str(threads)]
        for x in INPUTS[len(entry(name)[2]())]:
            path = os.path.join(folder, f"{name}.{x}.npy")
            self.command += ["--feed", f"{x}={path}"]
        self.busy, self.mb = busy, 0
        self.least = self.steps = 20 if busy else 5  # a difference of two

    def call(self, steps):
        """Milliseconds of each step, and processor time of all."""
        with tempfile.NamedTemporaryFile() as log:
            child = subprocess.Popen(
                self.command + ["--steps", str(steps), "--log", log.name],
                stdout=subprocess.DEVNULL)
            while True:
                self.mb = max(self.mb, peak_mb(child.pid))
                pid, status, usage = os.wait4(child.pid, os.WNOHANG)
                if pid:
                    break
                time.sleep(0.01)
            child.returncode = status
            if status:
                sys.exit("ampc run failed")
            # Beside steps the log has lines of what happened, as a spike.
            lines = [json.loads(line) for line in open(log.name)]
            times = [line["ms"] for line in lines if "ms" in line]
        return times, 1e3 * (usage.ru_utime + usage.ru_stime)

    def run(self, seconds):
        times, total = self.call(self.steps + 3)
        ms = statistics.median(times[3:])
        if self.busy:  # what only starting takes is not of the step
            ms = (total - self.call(3)[1]) / self.steps
        self.steps = max(self.least,
                         min(2000, int(seconds * 1e3 / max(ms, 1e-3))))
        return {"ms": ms, "mb": self.mb, "first": self.first}

    def close(self):
        pass


def export(folder, name):
    path = trained(folder, name)
    if os.path.exists(path) and \
            os.path.getmtime(path) > os.path.getmtime(bench_models.__file__):
        return
    model, batch = make(name)
    names = INPUTS[len(batch)]
    for x, data in zip(names, batch):
        np.save(os.path.join(folder, f"{name}.{x}.npy"), data.numpy())
    how = dict(dynamo=True, optimize=False, verbose=False, external_data=False)
    torch.onnx.export(model.eval().m, tuple(batch[:-1]), plain(folder, name),
                      input_names=names[:-1], **how)
    torch.onnx.export(model.train(), tuple(batch), path, input_names=names,
                      **how)


# ---- the table


def median_of(results, key):
    values = [r[key] for r in results if r]
    return statistics.median(values) if values else math.nan


def ratio(ours, theirs):
    """Best contender of each round over ours."""
    pairs = []
    for i, r in enumerate(ours):
        best = [t[i]["ms"] for t in theirs if t[i]]
        if best:
            pairs.append(min(best) / r["ms"])
    return statistics.median(pairs) if pairs else math.nan


def training(options, name):
    team = {}
    for precision in ("fp32", "bf16", "fp16"):
        first = compile_module(options, trained(options.folder, name),
                               precision)
        team["ampc", precision] = Ampc(options, name, precision, first)
        for mode in ("eager", "compile")[:2 - options.no_compile]:
            if precision in options.peer.split(","):
                team[mode, precision] = Worker(name, precision, mode, options)
    return team


def inference(options, name):
    team = {("onnxruntime", "fp32"): Worker(name, "fp32", "onnxruntime",
                                            options)}
    for precision in ("fp32", "bf16"):
        compile_module(options, plain(options.folder, name), precision,
                       "--loss", "none")
        team["predict", precision] = Worker(name, precision, "predict", options)
    return team


def scaling(options, name):
    team = {}
    for precision in ("fp32", "bf16"):
        first = compile_module(options, trained(options.folder, name),
                               precision)
        for threads in thread_counts():
            team["ampc", precision, threads] = Ampc(options, name, precision,
                                                    first, threads)
            team["eager", precision, threads] = Worker(
                name, precision, "eager", options, threads)
    return team


def thread_counts():
    """One, two, four and so on, and all."""
    every = len(os.sched_getaffinity(0))
    return sorted({min(1 << i, every) for i in range(every.bit_length() + 1)})


def copy_rate(cpu_bench):
    """GB/s that all threads copy together."""
    said = subprocess.run([cpu_bench, str(len(os.sched_getaffinity(0))),
                           "peaks"], check=True, capture_output=True, text=True)
    return float(said.stdout.split("copy ")[1].split()[0])


def measure(options, name, make_team):
    export(options.folder, name)
    team = make_team(options, name)
    results = {key: [] for key in team}
    for member in team.values():
        member.run(0)  # warm; PyTorch compiles here
    copies = []
    for _ in range(options.rounds):
        if options.cpu_bench:
            copies.append("%.0f" % copy_rate(options.cpu_bench))
        for key, member in team.items():
            results[key].append(member.run(options.seconds))
    for member in team.values():
        member.close()
    results["copy"] = " ".join(copies) or "-"
    return results


HEAD = ["model (batch)", "precision", "ampc ms", "eager ms", "compile ms",
        "torch / ampc", "ampc / its fp32", "ampc MB", "torch MB", "compile s",
        "torch.compile s", "copy GB/s"]


INFERENCE_HEAD = ["model (batch)", "ampc fp32 ms", "ONNX Runtime fp32 ms",
                  "ONNX Runtime / ampc", "ampc bf16 ms", "bf16 / fp32",
                  "copy GB/s"]


def show(x, form):
    return "-" if math.isnan(x) else form % x


def rows(name, results):
    all_ratios = {"memory": []}
    for precision in ("fp32", "bf16", "fp16"):
        ours = results["ampc", precision]
        peers = {m: results[m, precision] for m in ("eager", "compile")
                 if (m, precision) in results}
        own = statistics.median(
            a["ms"] / b["ms"] for a, b in zip(ours, results["ampc", "fp32"]))
        all_ratios[precision] = ratio(ours, peers.values())
        peer = {m: peers.get(m, []) for m in ("eager", "compile")}
        if peer["eager"]:
            all_ratios["memory"].append(median_of(ours, "mb") /
                                        median_of(peer["eager"], "mb"))
        print("| " + " | ".join([
            ALL[name][0], precision, show(median_of(ours, "ms"), "%.4g"),
            show(median_of(peer["eager"], "ms"), "%.4g"),
            show(median_of(peer["compile"], "ms"), "%.4g"),
            show(all_ratios[precision], "%.2f"), "%.2f" % own,
            show(median_of(ours, "mb"), "%.0f"),
            show(median_of(peer["eager"], "mb"), "%.0f"),
            show(median_of(ours, "first"), "%.1f"),
            show(median_of(peer["compile"], "first"), "%.1f"),
            results["copy"]]) + " |",
            flush=True)
    return all_ratios


def inference_row(name, results):
    ours, half, peer = (results[key] for key in (
        ("predict", "fp32"), ("predict", "bf16"), ("onnxruntime", "fp32")))
    faster = ratio(ours, [peer])
    print("| " + " | ".join([
        ALL[name][0], show(median_of(ours, "ms"), "%.4g"),
        show(median_of(peer, "ms"), "%.4g"), show(faster, "%.2f"),
        show(median_of(half, "ms"), "%.4g"),
        show(1 / ratio(half, [ours]), "%.2f"), results["copy"]]) + " |",
        flush=True)
    return {"fp32": faster}


SCALING_HEAD = ["model", "samples", "threads"] + [
    f"{precision}{what}" for precision in ("fp32", "bf16")
    for what in (" ms", ", samples/s", ", of one thread", ", torch / ampc")] + [
    "copy GB/s"]


def scaling_rows(name, options):
    own, all_ratios = len(make(name)[1][0]), []
    for samples in (max(1, own // 4), own, 4 * own):
        results = measure(options, f"{name}@{samples}", scaling)
        for threads in thread_counts():
            line = [entry(name)[0].rpartition(" (")[0], str(samples),
                    str(threads)]
            ratios = {}
            for precision in ("fp32", "bf16"):
                ours, alone, peer = (results[key] for key in (
                    ("ampc", precision, threads), ("ampc", precision, 1),
                    ("eager", precision, threads)))
                ms = median_of(ours, "ms")
                ratios[precision] = ratio(ours, [peer])
                line += ["%.4g" % ms, "%.0f" % (1e3 * samples / ms),
                         "%.2f" % ratio(ours, [alone]),
                         show(ratios[precision], "%.2f")]
            line.append(results["copy"])
            print("| " + " | ".join(line) + " |", flush=True)
            all_ratios.append(ratios)
    return all_ratios


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(*sys.argv[2:])
    p = argparse.ArgumentParser()
    p.add_argument("ampc")
    p.add_argument("folder")
    p.add_argument("names", nargs="*")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.7)
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--busy", action="store_true")
    p.add_argument("--peer", default="fp32,bf16")
    kind = p.add_mutually_exclusive_group()
    kind.add_argument("--inference", action="store_true")
    kind.add_argument("--scaling", action="store_true")
    p.add_argument("--isa", choices=LEVELS)
    p.add_argument("--cpu-bench", help="the program that measures copies")
    options = p.parse_intermixed_args()
    if options.busy and options.scaling:
        p.error("--busy is of one thread: not with --scaling")
    wanted = tuple(options.names or MODELS)
    unknown = [w for w in wanted if not any(n.startswith(w) for n in ALL)]
    if unknown:
        p.error(f"no model begins with {', '.join(unknown)}; there are: "
                + " ".join(ALL))
    names = [n for n in ALL if n.startswith(wanted) and there_is(n)]
    how = "processor time of one thread" if options.busy else \
        "threads as the table says" if options.scaling else "all threads"
    what = "predictions" if options.inference else "AdamW"
    print(f"PyTorch {torch.__version__.split('+')[0]}, {what}, {how}, "
          f"{options.rounds} rounds of {options.seconds} s,",
          force_level(options.isa))
    head = INFERENCE_HEAD if options.inference else \
        SCALING_HEAD if options.scaling else HEAD
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    ratios = []
    for n in names:
        if options.scaling:
            ratios += scaling_rows(n, options)
        elif options.inference:
            ratios.append(inference_row(n, measure(options, n, inference)))
        else:
            ratios.append(rows(n, measure(options, n, training)))
    peer = "ONNX Runtime" if options.inference else "torch"
    for precision in ["fp32"] if options.inference else options.peer.split(","):
        mean = statistics.geometric_mean(r[precision] for r in ratios)
        print(f"\ngeometric mean of {peer} / ampc in {precision}: {mean:.2f}")
    memory = [m for r in ratios for m in r.get("memory", [])]
    if memory:
        print(f"\npeak memory, of PyTorch's: at most {max(memory):.2f}")


if __name__ == "__main__":
    main()
