#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What placement costs and saves: for each model the bytes that forward and
backward move, how far that is above the least of any choice of dtypes, and
above the least with residual streams in fp32, and how far its losses are from
those of fp32 (maintainers).

usage: placement.py [--precision P] [--draws N] [--alone] AMPC[,AMPC...] [NAME...]
       placement.py --table [--runs N] AMPC [NAME...]
       placement.py --ratios [--draws N] [--precision P] [--runs N] AMPC [NAME...]
       placement.py --starts N [--precision P] AMPC [NAME...]
       placement.py --times N [--precision P] AMPC,AMPC [NAME...]
       placement.py --values [--precision P] AMPC,AMPC [NAME...]
       with --placement P: of the modules in 16 bits (--ratios: of several)

A row for each AMPC and, unless --alone, one for PyTorch's autocast on the CPU.  Least: every
value in memory in 16 bits, once, but gradients of parameters, outputs, and
results of exp and log.  Distance: the largest |loss - loss in fp32| / loss of 12
steps of AdamW, fp32 being PyTorch's; over N (6) draws of weights and data, its
geometric mean, the largest, and the geometric mean of what it is divided by that of
the first AMPC in the same draw, with its standard error.  Draws whose losses are not
all finite have no distance and are counted.

--table prints the table of docs/numerics.md: the largest distance over N (6) runs
that begin 1e-6 apart in every weight, of ampc's losses from those of its fp32
and of autocast's from those of PyTorch's, in bf16 and fp16 (loss scale 1024),
and what is kept for backward.  With BatchNorm both load the weights of PyTorch's
fp32 before each step.

Runs that begin 1e-6 apart round alike, so a row of that table is nearly one
sample.  --ratios repeats it over N data sets and weights and prints the ratios of
each placement: geometric mean, range, how many are at most 1, and all.  --starts
prints, for each placement, the root mean square of the distances over N starts
with data of their own, each step from the weights of PyTorch's fp32, and the
geometric mean of the ratios of ampc and autocast from the same start, with its
standard error.

--times prints the processor time of a step (one thread; user and system; the
difference between runs of many steps and of 12), in turns of all AMPC in each of N
rounds: the medians, and the median of the rounds' ratios to the first AMPC with
the quartiles.  --values prints the values of forward and backward that a step of
the last AMPC's module stores otherwise than one of the first's, and their reasons."""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

from placement_models import FORCED, MODELS, STEPS

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


# ---- losses -----------------------------------------------------------------

class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, target):
        y = self.net(x)
        return F.cross_entropy(y.flatten(0, -2).float(), target.flatten())


def ampc(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{' '.join(command)}: {r.stderr}")
    return r.stdout


# ---- bytes ------------------------------------------------------------------

def elements(type_):
    return np.prod([int(n) for n in re.findall(r"\d+", type_.split("[")[1])],
                   dtype=float)


def step_bytes(program, so):
    """What forward and backward move of the values that they store, and the
    least of it."""
    casts = json.loads(ampc([program, "inspect", so, "--casts", "--json"]))
    train = next(p for p in casts if p["program"] == "train")
    moved = least = streams = 0
    values = {v["value"]: v for v in train["values"]}
    for v in train["values"]:
        if v["part"] == "update":
            continue
        wide = v["type"].startswith("f32") and not (
            v["why"] in ("a gradient", "an output", "a variable") or
            v["op"] in ("exp", "log"))
        moved += v["bytes"]
        least += v["bytes"] / 2 if wide else v["bytes"]
        if v["why"] == "a residual stream":
            streams += v["bytes"] / 2
    for c in train["casts"]:  # a second form of a value is written for nothing
        of, name = c["value"], c["value"].removesuffix(".f32")
        kept = values.get(of) if of == name else values.get(
            name + ".f16", values.get(of))
        if c["bytes"] and c["part"] != "update" and kept:
            copy = 2 * elements(c["from"])
            least -= copy
            if kept["why"] == "a residual stream":
                streams += copy
    return moved, least, least + streams


# ---- rows -------------------------------------------------------------------

def compile_(program, folder, name, precision, rate, *more):
    so = f"{folder}/{name}.so"
    ampc([program, f"{folder}/m.onnx", "-o", so, "--precision", precision, *more,
          "--loss", "auto", "--optimizer", f"adamw,lr={rate},weight_decay=0.01",
          "--target", "cpu:x86-64-v3"])
    return so


# ---- the table ---------------------------------------------------------------

def torch_trace(make, start, data, rate, low=None, states=None):
    """Losses, and the weights before each step; these instead, if given."""
    model, losses, seen = WithLoss(make()).train(), [], []
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu", 1024, enabled=low == torch.float16)
    for i, (x, t) in enumerate(zip(*data)):
        if states:
            model.load_state_dict(states[i])
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        optimizer.zero_grad()
        with torch.autocast("cpu", low or torch.bfloat16, enabled=bool(low)):
            loss = model(x, t)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return np.array(losses), seen


def module_trace(program, so, folder, data, start, states=None):
    """The same of a module."""
    def run(first, steps, weights):
        for n, v in zip(("x", "target"), data):
            v = v[first:first + steps].numpy()
            np.save(f"{folder}/{n}.npy", v.reshape(-1, *v.shape[2:]))
        save_file({k: v.contiguous() for k, v in weights.items()
                   if v.is_floating_point()}, f"{folder}/w.safetensors")
        ampc([program, "run", so, "--device", "cpu", "--steps", str(steps),
              "--log", so + ".log", "--quiet", "--threads", "1", "--load",
              f"{folder}/w.safetensors"] + [w for n in ("x", "target") for w in
                                            ("--feed", f"{n}={folder}/{n}.npy")])
        with open(so + ".log") as f:  # null: not finite; other lines: spikes
            lines = [json.loads(s) for s in f]
        return [np.nan if s["loss"] is None else s["loss"] for s in lines
                if "loss" in s]
    if states:
        return np.array([run(i, 1, w)[0] for i, w in enumerate(states)])
    return np.array(run(0, STEPS, start))


def kept_bytes(program, so):
    memory = json.loads(ampc([program, "inspect", so, "--memory", "--json"]))
    train = next(p for p in memory["programs"] if p["program"] == "train")
    return sum(k["bytes"] for k in train["kept"].values()) / 1e6


def export(model, data, folder, dynamo):
    how = dict(dynamo=True, optimize=False, verbose=False) if dynamo else dict(
        dynamo=False, do_constant_folding=False, opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING)
    torch.onnx.export(model, tuple(v[0] for v in data), f"{folder}/m.onnx",
                      input_names=["x", "target"], **how)


def largest(got, want):
    """Not a number if a loss is none."""
    return np.max([np.abs((g - w) / w).max() for g, w in zip(got, want)])


FLOOR = 5e-4  # of autocast's distance


class Draw:
    """Data and weights of a seed: runs that begin 1e-6 apart, their losses in
    PyTorch's fp32, and how far autocast's are from these.  Free: no run loads
    weights of another after it has begun."""

    def __init__(self, name, seed, runs, precisions=tuple(LOW), free=False):
        make, data, rate = MODELS[name]
        self.data = data(torch.Generator().manual_seed(seed))
        torch.manual_seed(seed + 1)
        self.model, self.starts = WithLoss(make()).train(), []
        for r in range(runs):
            torch.manual_seed(seed * runs + r)
            self.starts.append({k: v * (1 + 1e-6 * torch.randn(v.shape))
                                if v.is_floating_point() else v.clone()
                                for k, v in self.model.state_dict().items()})
        traces = [torch_trace(make, s, self.data, rate) for s in self.starts]
        self.forced = [t[1] if name in FORCED and not free else None
                       for t in traces]
        self.full = [t[0] for t in traces]
        self.theirs = {p: largest([torch_trace(make, s, self.data, rate, LOW[p],
                                               f)[0]
                                   for s, f in zip(self.starts, self.forced)],
                                  self.full) for p in precisions}

    def losses(self, program, so, folder):
        return [module_trace(program, so, folder, self.data, s, w)
                for s, w in zip(self.starts, self.forced)]


def module(program, folder, name, precision, placement="exact"):
    scale = ["--loss-scale", "dynamic,init=1024"] * (precision == "fp16")
    low = ["--placement", placement] * (precision != "fp32")
    return compile_(program, folder, f"{placement}-{precision}", precision,
                    MODELS[name][2], *low, *scale)


def ways(name):
    """Exporters, and what a row of theirs is called."""
    forced = " (forced)" if name in FORCED else ""
    return [(True, name + forced)] + [(False, f"{name} (TorchScript)")] * (
        name == "gpt")


def table(name, program, runs, placement):
    draw = Draw(name, 0, runs)
    for dynamo, title in ways(name):
        with tempfile.TemporaryDirectory() as folder:
            export(draw.model, draw.data, folder, dynamo)
            full = module(program, folder, name, "fp32")
            want, whole = (draw.losses(program, full, folder),
                           kept_bytes(program, full))
            for p, theirs in draw.theirs.items():
                so = module(program, folder, name, p, placement)
                ours = largest(draw.losses(program, so, folder), want)
                kept = kept_bytes(program, so)
                print(f"| {title} | {p} | {ours:.1e} | {theirs:.1e} "
                      f"| {ours / max(theirs, FLOOR):.2f} "
                      f"| {kept:.2f} | {whole:.2f} | {kept / whole:.3f} |",
                      flush=True)


def draws(name, program, runs, n, precision, placements):
    """The table's ratios over n draws, a row for each placement."""
    all_ = [Draw(name, seed, runs, [precision]) for seed in range(n)]
    for dynamo, title in ways(name):
        with tempfile.TemporaryDirectory() as folder:
            export(all_[0].model, all_[0].data, folder, dynamo)
            full = module(program, folder, name, "fp32")
            want = [d.losses(program, full, folder) for d in all_]
            for placement in placements:
                so = module(program, folder, name, precision, placement)
                r = np.array([largest(d.losses(program, so, folder), w)
                              / max(d.theirs[precision], FLOOR)
                              for d, w in zip(all_, want)])
                print(f"| {title} | {placement} | {np.exp(np.log(r).mean()):.2f} "
                      f"| {r.min():.2f} | {r.max():.2f} | {(r <= 1).sum()} "
                      "| " + " ".join(f"{x:.2f}" for x in r) + " |", flush=True)


def compare(name, programs, precision, n, placement, alone):
    """A row for each program, and autocast's."""
    all_ = [Draw(name, seed, 1, [] if alone else [precision], free=True)
            for seed in range(n)]
    first = None
    with tempfile.TemporaryDirectory() as folder:
        export(all_[0].model, all_[0].data, folder, True)
        for program in programs:
            so = module(os.path.abspath(program), folder, name, precision,
                        placement)
            moved, *least = step_bytes(program, so)
            far = np.array([largest(d.losses(program, so, folder), d.full)
                            for d in all_])
            first = far if first is None else first
            print(f"{name:9} {program[-24:]:24} {moved / 1e6:8.2f} " +
                  " ".join(f"{100 * (moved / b - 1):6.2f} %" for b in least) +
                  f"  {spread(far, first)}", flush=True)
    if alone:
        return
    far = np.array([d.theirs[precision] for d in all_])
    print(f"{name:9} {'PyTorch autocast':24} {'':26}  {spread(far, first)}",
          flush=True)


def spread(far, first):
    """Of one distance a draw, and of the first program's distances."""
    ok = np.isfinite(far) & np.isfinite(first)
    lost = f"  {(~np.isfinite(far)).sum()} of {len(far)} draws not finite"
    lost = lost if not np.isfinite(far).all() else ""
    if not ok.any():
        return f"{'-':8} {'-':8} {'-':14}" + lost
    log = np.log(far[ok] / first[ok])
    ratio = np.exp(log.mean())
    error = ratio * log.std(ddof=1) / len(log)**.5 if len(log) > 1 else np.nan
    return (f"{np.exp(np.log(far[ok]).mean()):.2e} {far[ok].max():.2e} "
            f"{ratio:.3f} (+- {error:.3f})" + lost)


def starts(name, program, n, precision, placements):
    """Both from the same weights before each step, over n data sets and weights;
    the ratio of each, whose logarithms have a mean and its standard error."""
    make, data, rate = MODELS[name]
    ours, theirs = {p: [] for p in placements}, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(n):
            batches = data(torch.Generator().manual_seed(seed))
            torch.manual_seed(seed + 1)
            model = WithLoss(make()).train()
            if not seed:
                export(model, batches, folder, True)
                fp32 = module(program, folder, name, "fp32")
                so = {p: module(program, folder, name, precision, p)
                      for p in placements}
            start = {k: v.clone() for k, v in model.state_dict().items()}
            want, states = torch_trace(make, start, batches, rate)
            low, _ = torch_trace(make, start, batches, rate, LOW[precision],
                                 states)
            theirs.append(far(low, want))
            full = module_trace(program, fp32, folder, batches, start, states)
            for p, f in so.items():
                ours[p].append(far(module_trace(program, f, folder, batches,
                                                start, states), full))
    for p in placements:
        log = np.log(np.divide(ours[p], theirs))
        error = log.std(ddof=1) / n**.5 if n > 1 else np.nan
        a, b = (np.sqrt(np.mean(np.square(x))) for x in (ours[p], theirs))
        print(f"{name:9} {precision} {p:20} ampc {a:.2e}  autocast {b:.2e}  "
              f"ratio {a / b:.2f}; of pairs {np.exp(log.mean()):.2f} "
              f"(+- {np.exp(log.mean()) * error:.2f}), {(log <= 0).sum()} of "
              f"{n} at most 1", flush=True)


def stored(program, so):
    casts = json.loads(ampc([program, "inspect", so, "--casts", "--json"]))
    train = next(p for p in casts if p["program"] == "train")
    return {v["value"]: (v["type"], v["why"]) for v in train["values"]
            if v["part"] != "update"}


def values(name, programs, precision, placement):
    make, data, _ = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        export(WithLoss(make()).train(), data(torch.Generator().manual_seed(0)),
               folder, True)
        first, last = (stored(p, module(p, folder, name, precision, placement))
                       for p in (programs[0], programs[-1]))
    none = ("not stored", "")
    other = [v for v in sorted(set(first) | set(last))
             if first.get(v, none)[0] != last.get(v, none)[0]]
    print(f"{name} {precision}: {len(other)} of {len(last)} values")
    for v in other:
        print(f"  {v}: " + "; then ".join(" ".join(x.get(v, none)).strip()
                                         for x in (first, last)), flush=True)


def processor_time(command):
    def spent():
        u = resource.getrusage(resource.RUSAGE_CHILDREN)
        return u.ru_utime + u.ru_stime
    before = spent()
    ampc(command)
    return spent() - before


def times(name, programs, precision, rounds, placement):
    make, data, _ = MODELS[name]
    batches = data(torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        export(WithLoss(make()).train(), batches, folder, True)
        runs = []
        for i, program in enumerate(programs):
            so = f"{folder}/{i}.so"
            os.rename(module(program, folder, name, precision, placement), so)
            runs.append([os.path.abspath(program), "run", so, "--device", "cpu",
                         "--quiet", "--threads", "1"])
        for n, v in zip(("x", "target"), batches):
            np.save(f"{folder}/{n}.npy", v.numpy().reshape(-1, *v.shape[2:]))
            for r in runs:
                r += ["--feed", f"{n}={folder}/{n}.npy"]
        once = processor_time(runs[0] + ["--steps", str(STEPS)])
        more = STEPS * max(4, min(400, round(2 / max(once, .01))))  # seconds
        spent = np.array([[(processor_time(r + ["--steps", str(STEPS + more)]) -
                            processor_time(r + ["--steps", str(STEPS)])) / more
                           for r in runs] for _ in range(rounds)])
    for i, program in enumerate(programs):
        low, middle, high = np.quantile(spent[:, i] / spent[:, 0],
                                        [.25, .5, .75])
        print(f"{name:9} {precision} {program[-24:]:24} "
              f"{1e3 * np.median(spent[:, i]):9.3f} ms  {middle:.3f} "
              f"({low:.3f} to {high:.3f})", flush=True)


def far(low, full):
    """Root mean square of the relative distances of a run's losses."""
    return np.sqrt(np.mean(np.square((low - full) / full)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--precision", choices=sorted(LOW), default="bf16")
    p.add_argument("--runs", type=int, default=6)
    p.add_argument("--draws", type=int, default=6)
    p.add_argument("--alone", action="store_true")
    p.add_argument("--table", action="store_true")
    p.add_argument("--ratios", action="store_true")
    p.add_argument("--starts", type=int)
    p.add_argument("--times", type=int)
    p.add_argument("--values", action="store_true")
    p.add_argument("--placement", action="append", default=[])
    p.add_argument("ampc")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    placements = a.placement or ["exact"]
    if a.ratios:
        print(f"| model | placement | ratio | least | largest | at most 1 of "
              f"{a.draws} | each |\n|" + "---|" * 7)
        for name in a.names or MODELS:
            draws(name, os.path.abspath(a.ampc), a.runs, a.draws, a.precision,
                  placements)
        return
    if a.starts:
        for name in a.names or MODELS:
            starts(name, os.path.abspath(a.ampc), a.starts, a.precision,
                   placements)
        return
    if a.values:
        for name in a.names or MODELS:
            values(name, a.ampc.split(","), a.precision, placements[0])
        return
    if a.times:
        print(f"{'model':9} {'':4} {'program':24} {'a step':>12}  of the first's "
              "(quartiles)")
        for name in a.names or MODELS:
            times(name, a.ampc.split(","), a.precision, a.times, placements[0])
        return
    if a.table:
        print("| model | precision | ampc apart | autocast apart | ratio "
              "| kept MB | kept MB fp32 | ratio |\n|" + "---|" * 8)
        for name in a.names or MODELS:
            table(name, os.path.abspath(a.ampc), a.runs, placements[0])
        return
    print(f"{a.precision}, {a.draws} draws of weights and data, {STEPS} steps\n"
          f"{'model':9} {'program':24} {'MB/step':>8} {'above':>8} "
          f"{'streams':>8}  {'mean':8} {'largest':8} of the first's")
    for name in a.names or MODELS:
        compare(name, a.ampc.split(","), a.precision, a.draws, placements[0],
                a.alone)


if __name__ == "__main__":
    sys.exit(main())
