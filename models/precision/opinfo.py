#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses and gradients of PyTorch's own samples of its ops and modules (OpInfo and
ModuleInfo of torch.testing._internal) in fp32, of files that an exporter writes
(maintainers; needs torch 2.11, onnx, onnxscript, expecttest).

usage: opinfo.py [--plain] [--samples N] [--part K/N] [--record FILE.csv]
                 AMPC [NAME...]
       opinfo.py --table FILE.csv [SUMMARY.csv]

A sample's floating tensors are parameters, its loss is a weighted sum of what the op
returns.  A sample counts if its loss and gradient are finite, some parameter has a
gradient, and PyTorch's fp32 has two of its digits.  It is right if loss and gradient are at most 1e-5 from PyTorch's fp64, or at
most twice as far as PyTorch's fp32: distances of losses are relative to the sum of the
magnitudes of what the loss adds up, those of gradients to the sample's largest.  An op
is right if all of its samples are.

Files come from ampc.torch.export; with --plain from torch.onnx.export(dynamo=True,
optimize=False).  The samples of an op are one file, and a file each where that one is
not right.  --record writes a row for each sample; ops that FILE.csv has are not done
again.  --table prints its sums and what is not right, and writes a row for each op:
how many of its samples count, how many are right, the largest distances of those,
and why others are not."""
import argparse
import contextlib
import copy
import csv
import io
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings

HEADER = ["op", "sample", "result", "loss", "gradient", "torch_loss",
          "torch_gradient", "reason"]
LIMIT, SECONDS = 1e-5, 240


# ---- the table --------------------------------------------------------------

def rows(path):
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(f))


def sums(table):
    """(ops that count, ops that are right, {op: its first row that is not})"""
    ops = {r["op"] for r in table if r["result"] != "none"}
    wrong = {}
    for r in table:
        if r["result"] not in ("none", "right"):
            wrong.setdefault(r["op"], r)
    return len(ops), len(ops) - len(wrong), wrong


def show(table):
    ops, right, wrong = sums(table)
    for op, r in sorted(wrong.items()):
        print(f"| {op} | {r['result']} | {r['loss']} | {r['gradient']} | "
              f"{r['reason'][:150]} |")
    print(f"{right} of {ops} ops are right ({100 * right / max(ops, 1):.1f} %); "
          f"{sum(r['result'] == 'right' for r in table)} of "
          f"{sum(r['result'] != 'none' for r in table)} samples")


def summary(table, path):
    """A row for each op."""
    with open(path, "w", encoding="utf-8") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["op", "samples", "right", "loss", "gradient", "reason"])
        for op in sorted({r["op"] for r in table}):
            mine = [r for r in table if r["op"] == op and r["result"] != "none"]
            good = [r for r in mine if r["result"] == "right"]
            bad = [r for r in mine if r["result"] != "right"]
            far = [max((r[k] for r in good), key=float, default="")
                   for k in ("loss", "gradient")]
            if mine:
                why = bad and (bad[0]["reason"] or "the numbers differ: loss "
                               f"{bad[0]['loss']}, gradient {bad[0]['gradient']}")
                out.writerow([op, len(mine), len(good), *far,
                              re.sub(r"^.*?: no tr", "no tr", why or "")[:160]])


# ---- one sample -------------------------------------------------------------

def modules():
    import numpy as np
    import torch
    import losses
    import opinfo16
    return np, torch, losses, opinfo16


def of(make, w, double):
    """Loss, what it is relative to, and gradients by parameter."""
    np, torch, losses, base = modules()
    net = make()
    if double:
        net = net.double()
        if isinstance(net, base.OfModule):
            net.args = [a.double() if isinstance(a, torch.Tensor) and
                        a.is_floating_point() else a for a in net.args]
        w = w.double()
    torch.manual_seed(2)
    f = net(w)
    if not isinstance(f, torch.Tensor) or not f.requires_grad:
        return None
    f.backward()
    with torch.no_grad():
        torch.manual_seed(2)
        size = sum((v.reshape(-1) * w[:v.numel()]).abs().sum().item()
                   for v in net.results())
    g = {n: p.grad.numpy().astype("f8") for n, p in net.named_parameters()
         if p.grad is not None}
    return f.item(), size, g


def distance(x, want):
    import numpy as np
    loss, size, g = want
    most = max((np.abs(v).max() for v in g.values() if v.size), default=0)
    far = max((np.abs(x[2].get(n, 0) - v).max() for n, v in g.items() if v.size),
              default=0)
    return abs(x[0] - loss) / max(size, 1e-30), far / max(most, 1e-30)


def counts(want):
    import numpy as np
    return want and np.isfinite(want[0]) and want[2] and all(
        np.isfinite(v).all() for v in want[2].values()) and any(
            v.any() for v in want[2].values())


def together(nets):
    import torch

    class Several(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = torch.nn.ModuleList(nets)

        def forward(self, w):
            loss = 0
            for net in self.nets:
                loss = loss + net(w)
            return loss
    return Several()


def tiny(net, want):
    """A difference of parameters in fp32 has no digits of such a gradient."""
    most = max(abs(v).max() for v in want[2].values() if v.size)
    size = max(p.detach().abs().max().item() for p in net.parameters()
               if p.numel())
    return 0 < most < size * 2 ** -70


def rate_of(net, wants):
    """A power of 2: a step with it is much longer than the parameters, so that a
    difference of parameters has all digits of the gradient."""
    import numpy as np
    most = [max(np.abs(v).max() for v in x[2].values() if v.size) for x in wants]
    size = 1 + max(p.detach().nan_to_num().abs().max().item()
                   for p in net.parameters() if p.numel())
    most = [m for m in most if m] or [1.0]
    rate = np.log2(size / min(most)) + 24
    return float(2 ** np.floor(min(rate, 100 - np.log2(max(most)), 100)))


def trained(program, makes, wants, w, path, plain):
    """Loss of all, and gradients by parameter of each; those whose
    gradient is 0 in PyTorch are frozen."""
    np, torch, losses, base = modules()
    net = together([m() for m in makes])
    wanted = [f"nets.{k}.{n}" for k, x in enumerate(wants) for n, v in
              x[2].items() if v.any()]
    hide = io.StringIO()
    with contextlib.redirect_stdout(hide), contextlib.redirect_stderr(hide):
        if plain:
            torch.onnx.export(net, (w,), path, dynamo=True, optimize=False,
                              input_names=["w"], output_names=["loss"],
                              external_data=False, verbose=False)
        else:
            import ampc.torch
            ampc.torch.export(net, (w,), path, input_names=["w"],
                              output_names=["loss"], dynamic_shapes={"w": None})
    cc = os.path.join(os.path.dirname(path), "cc")
    with open(cc, "w", encoding="utf-8") as f:
        f.write('#!/bin/sh\nexec cc "$@" -O0\n')
    os.chmod(cc, 0o755)
    rate = rate_of(net, wants)
    import onnx
    there = {t.name for t in onnx.load(path).graph.initializer}
    parts = [x for n in wanted for x in ("--train", n)] + [
        x for n in there - set(wanted) if n.startswith("nets.")
        for x in ("--freeze", n)]
    done = subprocess.run(
        [program, path, "-o", path + ".so", "--precision", "fp32", "--optimizer",
         f"sgd,lr={rate}", "--target", "cpu:x86-64-v3", *parts],
        env=dict(os.environ, CC=cc), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("ampc: " + done.stderr)
    import ampc
    s = ampc.Module(path + ".so").session(device="cpu", threads=1)
    start = {n: s[n].astype("f8") for n in names(s)}
    for n, p in net.named_parameters():
        if n in start:
            s[n] = p.detach().numpy()
            start[n] = s[n].astype("f8")
    r = s.step(w=w.numpy())
    found = [{} for _ in makes]
    for n, v in start.items():
        _, k, own = n.split(".", 2)
        step = np.where(np.isnan(v), 0, v - s[n].astype("f8"))
        found[int(k)][own] = step / rate
    return r["loss"], found


def names(session):
    return [n for n in session.module.variables() if n.startswith("nets.")]


def short(e):
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(e))
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    told = [x for x in lines if "rror: " in x or "no translation" in x] or lines
    text = re.sub(r"/tmp/\S*/", "", told[0] if told else type(e).__name__)
    return f"{type(e).__name__}: {text}"[:240]


def judged(got, wants, own):
    """Whether each is right, with its distances; got: the loss of all."""
    loss, found = got
    out = []
    for k, (want, torchs) in enumerate(zip(wants, own)):
        alone = loss if len(wants) == 1 else want[0]
        ours = distance((alone, 0, found[k]), want)
        theirs = distance(torchs, want)
        out.append((all(o <= max(LIMIT, 2 * t) for o, t in zip(ours, theirs)),
                    ours, theirs))
    return out


def one(program, samples, w_of, plain, write):
    """All samples of an op; write(sample, result, distances, reason)."""
    kept = []
    for k, make in samples:
        try:
            w = w_of(make)
            want = of(make, w, True)
            own = of(make, w, False)
        except Exception as e:
            write(k, "none", None, short(e))
            continue
        if not counts(want) or not counts(own) or \
                max(distance(own, want)) > 1e-2:
            write(k, "none", None, "")
            continue
        kept.append((k, make, w, want, own))
    if not kept:
        return
    w = max((x[2] for x in kept), key=len)
    kept = [(k, m, of(m, w, True), of(m, w, False)) for k, m, *_ in kept]
    for k, m, want, _ in kept:
        if tiny(m(), want):
            write(k, "none", None, "gradients far below their parameters")
    kept = [x for x in kept if not tiny(x[1](), x[2])]
    if not kept:
        return

    def attempt(some):
        with tempfile.TemporaryDirectory() as folder:
            got = trained(program, [m for _, m, *_ in some],
                          [x[2] for x in some], w,
                          f"{folder}/m.onnx", plain)
        wants = [x[2] for x in some]
        all_ = sum(x[0] for x in wants)
        size = sum(x[1] for x in wants)
        theirs = abs(sum(x[3][0] for x in some) - all_)
        right = abs(got[0] - all_) <= max(LIMIT * size, 2 * theirs)
        return right, judged(got, wants, [x[3] for x in some])
    if len(kept) > 1:
        try:
            right, each = attempt(kept)
            if right and all(e[0] for e in each):
                for (k, *_), (_, ours, theirs) in zip(kept, each):
                    write(k, "right", ours + theirs, "")
                return
        except Exception:
            pass  # each alone tells why
    for x in kept:
        try:
            _, each = attempt([x])
            ok, ours, theirs = each[0]
            write(x[0], "right" if ok else "wrong", ours + theirs, "")
        except Exception as e:
            write(x[0], "refused", None, short(e))


def warm(folder):
    """What every export builds again is built once, before a process is forked.
    No operator with threads of its own runs: a forked process could not."""
    import torch
    import ampc.torch
    from torch.onnx._internal.exporter import _registration
    registry = _registration.ONNXRegistry
    build, built = registry.from_torchlib, {}

    def from_torchlib(_=None, **options):
        key = tuple(options.items())
        if key not in built:
            built[key] = build(**options)
        return copy.copy(built[key])
    registry.from_torchlib = from_torchlib
    path = os.path.join(folder, "w.onnx")
    ampc.torch.export(torch.nn.ReLU(), (torch.zeros(2, 2),), path)


def by_op(count, chosen):
    """{op: [(number, what makes the module)]}"""
    import opinfo16
    found = {}
    for name, make in opinfo16.all_samples(count, chosen):
        op, k = name.rsplit("/", 1)
        found.setdefault(op, []).append((int(k), make))
    return found


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--plain", action="store_true")
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--part", default="0/1")
    p.add_argument("--record")
    p.add_argument("--table")
    p.add_argument("ampc", nargs="?")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    if a.table:
        if a.ampc:
            summary(rows(a.table), a.ampc)
        return show(rows(a.table))
    np, torch, losses, base = modules()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    part, parts = map(int, a.part.split("/"))
    done = {r["op"] for r in rows(a.record)}
    out = open(a.record, "a", buffering=1, encoding="utf-8") if a.record else None
    writer = csv.writer(out or io.StringIO(), lineterminator="\n")
    if not done and out:
        writer.writerow(HEADER)
    table = rows(a.record)

    def w_of(make):
        n = max([v.numel() for v in make().results()] or [1])
        return losses.numbers("n_w", 0, (n,)) * .5 + 1

    with tempfile.TemporaryDirectory() as folder:
        warm(folder)
    for i, (op, samples) in enumerate(sorted(by_op(a.samples, a.names).items())):
        if i % parts != part or op in done:
            continue
        read, write = os.pipe()
        child = os.fork()
        if not child:  # an exporter that crashes ends one op
            signal.alarm(SECONDS)
            torch.set_num_threads(1)  # before autograd's threads: a new pool
            with os.fdopen(write, "w", buffering=1, encoding="utf-8") as f:
                to = csv.writer(f, lineterminator="\n")
                one(os.path.abspath(a.ampc), samples, w_of, a.plain,
                    lambda k, r, d, why: to.writerow(
                        [op, k, r] + [f"{v:.1e}" for v in d or ()] +
                        [""] * (0 if d else 4) + [why]))
            os._exit(0)
        os.close(write)
        with os.fdopen(read, encoding="utf-8") as f:
            got = list(csv.reader(f))
        _, status = os.waitpid(child, 0)
        have = {r[1] for r in got}
        got += [[op, str(k), "refused"] + [""] * 4 +
                [f"the process ended with {status}"] for k, _ in samples
                if status and str(k) not in have]
        for row in got:
            writer.writerow(row)
            table.append(dict(zip(HEADER, row)))
            if a.names:
                print("|", " | ".join(row), "|", flush=True)
    show(table)


if __name__ == "__main__":
    sys.exit(main())
