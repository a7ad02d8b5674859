#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far PyTorch's own samples of its ops and modules (OpInfo and ModuleInfo of
torch.testing._internal) are from fp64 in 16 bits, of ampc and of torch.autocast
(maintainers; needs torch 2.11, onnx, onnxscript, expecttest).

usage: opinfo16.py [--samples N] [--seconds S] [--part K/N] [--record FILE.csv]
                   AMPC [NAME...]

A sample's floating tensors are parameters, its loss is a weighted sum of what the
op returns, with five draws of weights.  For each sample that exports, compiles,
has a finite loss and gradient and is in fp32 what it is in PyTorch (to 1e-3;
exporters write some ops as others): the root mean square, over the draws, of the
distances of loss and gradient from fp64 that losses.py has.  Printed are samples
that are more than twice as far as autocast beyond four roundings of the loss.
Their roundings are the same in all five draws, so they run again with 20 draws of
their own numbers: "again" are the geometric means of losses.py's ratios.  Printed
at the end how many there were, how many ran and how many of them were farther
than 1e-6.  --record writes the distances of all samples that ran, and "none" for
others; samples that FILE.csv has are not done again.  All first samples of ops
come before all second ones."""
import argparse
import contextlib
import csv
import io
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn as nn

import losses

DRAWS, MORE_DRAWS = 5, 20
SKIP = ("rand", "bernoulli", "dropout", "normal", "uniform", "empty", "poisson",
        "multinomial", "exponential", "cauchy", "geometric", "log_normal")


class OfOp(nn.Module):
    """The op with the floating tensors of a sample as parameters."""

    def __init__(self, op, sample):
        super().__init__()
        self.op, self.fixed, n = op, {}, 0
        self.process = sample.output_process_fn_grad
        self.parts = (sample.input,) + tuple(sample.args)
        self.kwargs = dict(sample.kwargs)

        def keep(v):
            nonlocal n
            if isinstance(v, (list, tuple)) and any(
                    isinstance(x, torch.Tensor) for x in v):
                return [keep(x) for x in v]
            if not isinstance(v, torch.Tensor):
                return ("value", v)
            n += 1
            if v.is_floating_point():
                self.register_parameter(f"p{n}", nn.Parameter(v.detach().clone()))
            else:
                self.register_buffer(f"p{n}", v.detach().clone())
            return ("name", f"p{n}")
        self.parts = [keep(v) for v in self.parts]
        self.kwargs = {k: keep(v) for k, v in self.kwargs.items()}

    def value(self, part):
        if isinstance(part, list):
            return [self.value(p) for p in part]
        kind, v = part
        return getattr(self, v) if kind == "name" else v

    def results(self):
        r = self.process(self.op(*[self.value(p) for p in self.parts], **{
            k: self.value(p) for k, p in self.kwargs.items()}))
        return [v for v in (r if isinstance(r, (tuple, list)) else [r])
                if isinstance(v, torch.Tensor) and v.is_floating_point()]

    def forward(self, w):
        f = 0
        for v in self.results():
            n = v.numel()
            f = f + (v.reshape(-1) * w[:n]).sum()
        return f


class OfModule(nn.Module):
    def __init__(self, net, args, kwargs):
        super().__init__()
        self.net, self.kwargs = net, kwargs
        self.args = [a.detach() if isinstance(a, torch.Tensor) else a
                     for a in args]
        for i, a in enumerate(self.args):
            if isinstance(a, torch.Tensor) and a.is_floating_point():
                self.register_parameter(f"x{i}", nn.Parameter(a.clone()))

    def results(self):
        r = self.net(*[getattr(self, f"x{i}", a) for i, a in
                       enumerate(self.args)], **self.kwargs)
        return [v for v in (r if isinstance(r, (tuple, list)) else [r])
                if isinstance(v, torch.Tensor) and v.is_floating_point()]

    forward = OfOp.forward


def has_elements(v):
    if isinstance(v, (list, tuple)):
        return all(has_elements(x) for x in v)
    return not isinstance(v, torch.Tensor) or v.numel() > 0


def samples(n, names):
    """By number within the op: name and what makes the module."""
    found = list(all_samples(n, names))
    return sorted(found, key=lambda f: int(f[0].rsplit("/", 1)[1]))


def all_samples(n, names):
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    for op in op_db:
        name = op.name + ("." + op.variant_test_name
                          if op.variant_test_name else "")
        if (names and name not in names) or any(s in name for s in SKIP):
            continue
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        try:
            torch.manual_seed(0)
            all_ = [x for x in op.sample_inputs("cpu", torch.float32,
                                                requires_grad=False)
                    if has_elements(x.input)]
        except Exception:
            continue
        step = max(1, len(all_) // n)
        for i, s in enumerate(all_[::step][:n]):
            yield f"{name}/{i}", lambda op=op, s=s: OfOp(op.op, s)
    for info in module_db:
        name = info.name
        if (names and name not in names) or any(s in name.lower() for s in SKIP):
            continue
        try:
            torch.manual_seed(0)
            all_ = list(info.module_inputs_func(info, "cpu", torch.float32,
                                                False, training=True))
        except Exception:
            continue
        step = max(1, len(all_) // n)
        for i, s in enumerate(all_[::step][:n]):
            def make(info=info, s=s):
                torch.manual_seed(1)
                a, k = s.constructor_input.args, s.constructor_input.kwargs
                f = s.forward_input
                return OfModule(info.module_cls(*a, **k), f.args, f.kwargs)
            yield f"{name}/{i}", make


def weights(net, draws):
    n = max(v.numel() for v in net.results())
    return [losses.numbers("n_w", d, (n,)) * .5 + 1 for d in range(draws)]


def backward(net, w, scale=1.):
    f = net(w)
    (f.float() * scale if f.dtype != torch.float64 else f).backward()
    return f.item(), {k: v / scale for k, v in losses.gradient(net).items()}


def stepped(m, ws, start):
    out = []
    for w in ws:
        s = m.session(device="cpu", threads=1)
        for n, v in start.items():
            s[n] = v.numpy().reshape(s[n].shape)
        for _ in range(30):
            r = s.step(w=w.numpy())
            if r["applied"]:
                break
        out.append((r["loss"], {
            n: (v.double().numpy() - s[n].astype("f8").reshape(v.shape))
            / losses.RATE for n, v in start.items()}))
    return out


def rms(got, want):
    return np.sqrt(np.mean([losses.distances(g, w) ** 2
                            for g, w in zip(got, want)], axis=0))


def in_fp64(make, ws):
    out = []
    for w in ws:
        full = make().double()
        if isinstance(full, OfModule):
            full.args = [a.double() if isinstance(a, torch.Tensor) and
                         a.is_floating_point() else a for a in full.args]
        out.append(backward(full, w.double()))
    return out


def in_autocast(make, w, low):
    scale = 65536. if low == torch.float16 else 1.
    while True:
        net = make()
        with torch.autocast("cpu", low):
            f = net(w)
        (f.float() * scale).backward()
        g = losses.gradient(net)
        if scale <= 1 or all(np.isfinite(v).all() for v in g.values()):
            return f.item(), {k: v / scale for k, v in g.items()}
        scale /= 2


def export(make, w, path):
    hide = io.StringIO()
    with contextlib.redirect_stdout(hide), contextlib.redirect_stderr(hide):
        try:
            torch.onnx.export(make(), (w,), path, dynamo=False,
                              training=torch.onnx.TrainingMode.TRAINING,
                              do_constant_folding=False, opset_version=18,
                              input_names=["w"], output_names=["loss"])
        except Exception:
            torch.onnx.export(make(), (w,), path, dynamo=True, optimize=False,
                              input_names=["w"], output_names=["loss"],
                              external_data=False, verbose=False)


def with_other_numbers(make, draw):
    """The sample, each parameter times about 1, with a deviation of 0.3."""
    def other():
        net, rng = make(), torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(1 + .3 * torch.randn(p.shape, generator=rng))
        return net
    return other


def values(net):
    return {n: p.detach().clone() for n, p in net.named_parameters()}


def mean_ratio(m, make, low, floor):
    """Geometric means of the ratios over draws of the sample's own numbers."""
    ratios = []
    for d, w in enumerate(weights(make(), MORE_DRAWS)):
        other = with_other_numbers(make, d)
        want, = in_fp64(other, [w])
        theirs = losses.distances(in_autocast(other, w, low), want)
        ours = losses.distances(stepped(m, [w], values(other()))[0], want)
        ratios.append(ours / np.maximum(theirs, floor))
    return losses.mean(np.array(ratios))


def one(program, make, folder):
    """Distances of autocast and of ampc by precision; "other": the file has
    another model; None: not to be told."""
    net = make()
    if not list(net.parameters()):
        return None
    ws, start = weights(net, DRAWS), values(net)
    want = in_fp64(make, ws)
    for loss, g in want:
        size = np.sqrt(sum((v ** 2).sum() for v in g.values()))
        if not (np.isfinite(loss) and loss and np.isfinite(size) and size):
            return None
    path, out = f"{folder}/m.onnx", {}
    export(make, ws[0], path)

    def module(precision):
        return losses.module(program, path, precision, "--train", "*")

    def far(m):
        return rms(stepped(m, ws, start), want)
    modules = {p: module(p) for p in losses.LOW}
    for p, (low, floor) in losses.LOW.items():
        theirs = [in_autocast(make, w, low) for w in ws]
        out[p] = rms(theirs, want), far(modules[p]), floor
    if any(is_bad(*o) or not (o[1] < 1e-2).all() for o in out.values()) and not (
            far(module("fp32")) < 1e-3).all():
        return "other"
    return {p: (*o, mean_ratio(modules[p], make, losses.LOW[p][0], o[2])
                if is_bad(*o) else None) for p, o in out.items()}


def one_apart(*args):
    """one() in a process of its own: an exporter that crashes ends one sample."""
    receive, send = multiprocessing.Pipe(False)

    def child():
        try:
            send.send(one(*args))
        except Exception as e:
            send.send(e)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    send.close()
    try:
        r = receive.recv()
    except EOFError:
        r = RuntimeError("the process crashed")
    process.join()
    if isinstance(r, Exception):
        raise r
    return r


def is_bad(theirs, ours, floor):
    return not (ours <= np.maximum(2 * theirs, floor)).all()


HEADER = ["sample", "precision", "autocast_loss", "loss", "autocast_gradient",
          "gradient", "ratio_loss", "ratio_gradient"]


def recorded(path):
    """Names of samples that the file has."""
    if not path or not os.path.exists(path):
        return set()
    with open(path) as f:
        return {row[0] for row in csv.reader(f)}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--seconds", type=float, default=1e9)
    p.add_argument("--part", default="0/1")
    p.add_argument("--record")
    p.add_argument("ampc")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    k, parts = map(int, a.part.split("/"))
    tried = ran = apart = over = other = 0
    end = time.time() + a.seconds
    done = recorded(a.record)
    out = csv.writer(open(a.record, "a", buffering=1) if a.record
                     else io.StringIO(),
                     lineterminator="\n")
    if not done:
        out.writerow(HEADER)
    print("| sample | precision | loss: autocast | ampc | gradient: autocast "
          "| ampc |\n|" + "---|" * 6, flush=True)
    for i, (name, make) in enumerate(samples(a.samples, a.names)):
        if i % parts != k or name in done:
            continue
        if time.time() > end:
            print(f"stopped at {name}")
            break
        tried += 1
        r = None
        with tempfile.TemporaryDirectory() as folder:
            try:
                r = one_apart(os.path.abspath(a.ampc), make, folder)
            except Exception as e:
                if a.names:
                    print(f"{name}: {type(e).__name__}: {str(e)[:300]}")
        other += r == "other"
        if not r or r == "other":
            out.writerow([name, r or "none"])
            continue
        ran += 1
        apart += any((ours > 1e-6).any() for _, ours, *_ in r.values())
        for precision, (theirs, ours, floor, ratio) in r.items():
            bad = ratio is not None
            over += bad
            out.writerow([name, precision] +
                         [f"{v:.2e}" for v in (theirs[0], ours[0], theirs[1],
                                               ours[1])] +
                         [f"{v:.3f}" for v in (ratio if bad else ())])
            if bad or a.names:
                print(f"| {name} | {precision} | {theirs[0]:.1e} | {ours[0]:.1e}"
                      f" | {theirs[1]:.1e} | {ours[1]:.1e} |"
                      + (f" again {ratio[0]:.2f} {ratio[1]:.2f}" if bad else ""),
                      flush=True)
    print(f"{tried} samples, {other} of another model in their file, {ran} ran, "
          f"{apart} farther than 1e-6 in either "
          f"precision; {over} more than twice as far as autocast", flush=True)


if __name__ == "__main__":
    sys.exit(main())
