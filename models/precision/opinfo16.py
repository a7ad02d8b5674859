#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far PyTorch's own samples of its ops and modules (OpInfo and ModuleInfo of
torch.testing._internal) are from fp64 in 16 bits, of ampc and of torch.autocast
(maintainers; needs torch 2.11, onnx, onnxscript, expecttest).

usage: opinfo16.py [--samples N] [--seconds S] [--limit S] [--part K/N]
                   [--record FILE.csv] AMPC [NAME...]
       opinfo16.py --count FILE.csv     counts its rows, prints those out of bounds
       opinfo16.py --again FILE.csv AMPC      measures these once more, of samples

A sample's floating tensors are parameters, its loss is a weighted sum of what the
op returns, with five draws of weights.  For each sample that exports, compiles,
has a finite loss and gradient and is in fp32 what it is in PyTorch (to 1e-3;
exporters write some ops as others): the root mean square, over the draws, of the
distances of loss and gradient from fp64 that losses.py has.  Printed are samples
that are more than twice as far as autocast beyond four roundings of the loss.
Their roundings are the same in all five draws, so they run again with 20 draws of
their own numbers.  Printed are the root mean squares of the distances over both, the
geometric mean of losses.py's ratios over the 20, and the distances of a third model:
fp64 in which the operands of products are rounded to 16 bits and nothing else is.
What autocast is nearer than that, its other roundings have cancelled by chance.  Each
sample has a process of its own, which ends with it or after --limit seconds (60).
--record writes the distances of all samples that ran, and for each other one the
reason (STATES); samples that FILE.csv has are not done again, so that a run that
was stopped goes on.  All first samples of ops come before all second ones."""
import argparse
import collections
import contextlib
import csv
import gc
import io
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn as nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import losses

DRAWS, MORE_DRAWS = 5, 20
STATES = {  # of samples without distances
    "no gradient": "no floating tensor, or loss or gradient is 0 or not finite",
    "no peer": "PyTorch has no such op in fp64, for autocast or backward",
    "no file": "neither exporter writes it",
    "refused": "ampc does not compile the file",
    "other": "in fp32 the file is another model",
    "no step": "the module's step fails",
    "no time": "the time limit",
    "crashed": "the process ended, mostly within an exporter",
}
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
    """Loss and gradients by plain SGD; 0 of a parameter that the exporter left
    out because nothing reads its elements."""
    out, known = [], m.variables()
    for w in ws:
        s = m.session(device="cpu", threads=1)
        for n, v in start.items():
            if n in known:
                s[n] = v.numpy().reshape(s[n].shape)
        for _ in range(30):
            r = s.step(w=w.numpy())
            if r["applied"]:
                break
        out.append((r["loss"], {
            n: (v.double().numpy() - s[n].astype("f8").reshape(v.shape))
            / losses.RATE if n in known else np.zeros(v.shape)
            for n, v in start.items()}))
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


def more_draws(m, make, low, floor):
    """Over draws of the sample's own numbers: geometric means of the ratios, root
    mean squares of autocast's distances and of ampc's."""
    far = []
    for d, w in enumerate(weights(make(), MORE_DRAWS)):
        other = with_other_numbers(make, d)
        want, = in_fp64(other, [w])
        far.append([losses.distances(in_autocast(other, w, low), want),
                    losses.distances(stepped(m, [w], values(other()))[0], want)])
    theirs, ours = np.array(far).swapaxes(0, 1)
    return (losses.mean(ours / np.maximum(theirs, floor)),
            *np.sqrt((np.array([theirs, ours]) ** 2).mean(1)))


OPERANDS = {  # of products, by their places
    "mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2),
    "convolution": (0, 1), "convolution_backward": (0, 1, 2)}


class Rounded(TorchDispatchMode):
    """What a product reads, forward and backward, is rounded to 16 bits."""

    def __init__(self, low):
        super().__init__()
        self.low = low

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, name = list(args), func.overloadpacket.__name__
        first = args[0] if args else None
        for i in OPERANDS.get(name, ()):
            args[i] = args[i].to(self.low).to(torch.float64)
        out = func(*args, **(kwargs or {}))
        if name == "convolution_backward" and out[2] is not None:
            bias = first.sum([d for d in range(first.dim()) if d != 1])
            return (*out[:2], bias)  # no product
        return out


def in_rounded(make, ws, low):
    with Rounded(low), sdpa_kernel(SDPBackend.MATH):
        return in_fp64(make, ws)


class NotRun(Exception):
    """A state, and what was said."""


@contextlib.contextmanager
def or_else(state):
    try:
        yield
    except NotRun:
        raise
    except Exception as e:
        raise NotRun(state, f"{type(e).__name__}: .. {str(e).strip()[-300:]}")


def one(program, make, folder):
    """Distances of autocast and of ampc by precision, and what is known besides
    of those out of bounds: columns of HEADER from the seventh on."""
    path, far = f"{folder}/m.onnx", {}
    with or_else("no peer"):
        net = make()
        if not list(net.parameters()) or not net.results():
            raise NotRun("no gradient", "no floating parameter or result")
        ws, start = weights(net, DRAWS), values(net)
        want = in_fp64(make, ws)
    for loss, g in want:
        size = np.sqrt(sum((v ** 2).sum() for v in g.values()))
        if not (np.isfinite(loss) and loss and np.isfinite(size) and size):
            raise NotRun("no gradient", f"loss {loss}, gradient {size}")
    with or_else("no peer"):
        theirs = {p: rms([in_autocast(make, w, low) for w in ws], want)
                  for p, (low, _) in losses.LOW.items()}
    with or_else("no file"):
        export(make, ws[0], path)
    with or_else("refused"):
        modules = {p: losses.module(program, path, p, "--train", "*")
                   for p in losses.LOW}
    with or_else("no step"):
        for p in losses.LOW:
            far[p] = rms(stepped(modules[p], ws, start), want)
        bad = {p: is_bad(theirs[p], far[p], losses.LOW[p][1]) for p in far}
        if any(bad[p] or not (far[p] < 1e-2).all() for p in far):
            m = losses.module(program, path, "fp32", "--train", "*")
            if not (rms(stepped(m, ws, start), want) < 1e-3).all():
                raise NotRun("other", "")
        return {p: (theirs[p], far[p],
                    more(modules[p], make, ws, want, *losses.LOW[p])
                    if bad[p] else []) for p in far}


def more(m, make, ws, want, low, floor):
    ratio, theirs, ours = more_draws(m, make, low, floor)
    operands = rms(in_rounded(make, ws, low), want)
    return [*ratio, theirs[0], ours[0], theirs[1], ours[1], *operands]


def one_apart(limit, *args):
    """one() in a process of its own, with a time limit in seconds: an exporter
    that crashes or never ends ends one sample."""
    receive, send = multiprocessing.Pipe(False)

    def child():
        os.setsid()  # what it starts ends with it
        try:
            send.send(one(*args))
        except Exception as e:
            state = e.args if isinstance(e, NotRun) else ("crashed", repr(e))
            send.send(state)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    send.close()
    try:
        r = receive.recv() if receive.poll(limit) else ("no time", "")
    except EOFError:
        r = "crashed", ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return r


def is_bad(theirs, ours, floor):
    return not (ours <= np.maximum(2 * theirs, floor)).all()


HEADER = ["sample", "precision", "autocast_loss", "loss", "autocast_gradient",
          "gradient", "ratio_loss", "ratio_gradient", "autocast_loss_20", "loss_20",
          "autocast_gradient_20", "gradient_20", "operands_loss",
          "operands_gradient"]


def recorded(path):
    """Names of samples that the file has."""
    if not path or not os.path.exists(path):
        return set()
    with open(path) as f:
        return {row[0] for row in csv.reader(f)}


def rows_of(name, result):
    """Rows of the file."""
    if isinstance(result, tuple):
        return [[name, result[0]]]
    return [[name, precision] +
            [f"{v:.2e}" for v in (theirs[0], ours[0], theirs[1], ours[1])] +
            [f"{v:.3f}" for v in besides[:2]] + [f"{v:.2e}" for v in besides[2:]]
            for precision, (theirs, ours, besides) in result.items()]


TABLE = ("| sample | precision | loss: autocast | ampc | operands alone | of 20 draws: "
         "autocast | ampc | ratio | gradient: autocast | ampc | operands alone "
         "| of 20 draws: autocast | ampc | ratio |\n|" + "---|" * 14)


def printed(row):
    """A line of TABLE."""
    row = row + ["-"] * (len(HEADER) - len(row))
    return f"| `{row[0]}` | {row[1]} | " + " | ".join(
        row[i] for k in (0, 1) for i in (2 + 2 * k, 3 + 2 * k, 12 + k, 8 + 2 * k,
                                         9 + 2 * k, 6 + k)) + " |"


def count(path):
    """Prints how many samples there are in each state and which rows are more
    than twice as far as autocast."""
    with open(path) as f:
        rows = list(csv.reader(f))[1:]
    states = {r[0]: r[1] if len(r) == 2 else "ran" for r in rows}
    ops = {n.rsplit("/", 1)[0] for n in states}
    ran = {n.rsplit("/", 1)[0] for n, s in states.items() if s == "ran"}
    apart = {r[0] for r in rows if len(r) > 2 and
             max(float(r[3]), float(r[5])) > 1e-6}
    print(f"{len(states)} samples of {len(ops)} ops and modules; of {len(ran)} "
          f"some sample ran; {len(apart)} samples are farther than 1e-6")
    for s, n in collections.Counter(states.values()).most_common():
        print(f"  {n} {s}" + (f": {STATES[s]}" if s in STATES else ""))
    print(TABLE)
    for r in rows:
        if len(r) > 6:
            print(printed(r))


def again(program, path, limit):
    """Replaces rows that are out of bounds by what is measured now."""
    with open(path) as f:
        rows = list(csv.reader(f))[1:]
    names = {r[0] for r in rows if len(r) > 6}
    makers = dict(all_samples(4, {n.rsplit("/", 1)[0] for n in names}))
    print(TABLE, flush=True)
    for name in sorted(names):
        new = rows_of(name, run_sample(program, makers[name], limit))
        at = next(i for i, r in enumerate(rows) if r[0] == name)
        rows = [r for r in rows if r[0] != name]
        rows[at:at] = new
        for row in new:
            print(printed(row) if len(row) > 2 else row, flush=True)
        with open(path, "w") as f:
            csv.writer(f, lineterminator="\n").writerows([HEADER] + rows)


def run_sample(program, make, limit):
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):  # a forked PyTorch now and then ends by itself
            r = one_apart(limit, os.path.abspath(program), make, folder)
            if not isinstance(r, tuple) or r[0] != "crashed":
                break
    return r


def warm():
    """What every sample's process has from the start: the exporters' modules."""
    net = OfModule(nn.Linear(2, 2), [torch.ones(1, 2)], {})
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(
            io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(net, (torch.ones(2),), f"{folder}/m.onnx", dynamo=True,
                          external_data=False, verbose=False)
    gc.collect()
    gc.freeze()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--seconds", type=float, default=1e9)
    p.add_argument("--limit", type=float, default=60)
    p.add_argument("--part", default="0/1")
    p.add_argument("--record")
    p.add_argument("--count")
    p.add_argument("--again")
    p.add_argument("ampc", nargs="?")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    if a.count:
        return count(a.count)
    if not a.ampc:
        p.error("AMPC is missing")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if a.again:
        warm()
        return again(a.ampc, a.again, a.limit)
    k, parts = map(int, a.part.split("/"))
    end = time.time() + a.seconds
    done = recorded(a.record)
    all_ = samples(a.samples, a.names)
    warm()
    file = open(a.record, "a") if a.record else io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    if not done:
        out.writerow(HEADER)
    print(TABLE, flush=True)
    for i, (name, make) in enumerate(all_):
        if i % parts != k or name in done:
            continue
        if time.time() > end:
            print(f"stopped at {name}")
            break
        r = run_sample(a.ampc, make, a.limit)
        rows = rows_of(name, r)
        out.writerows(rows)
        file.flush()
        if isinstance(r, tuple) and a.names:
            print(f"{name}: {': '.join(r)}")
        for row in rows:
            if len(row) > 6 or (len(row) > 2 and a.names):
                print(printed(row), flush=True)
    if a.record:
        count(a.record)


if __name__ == "__main__":
    sys.exit(main())
