#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What placement costs and saves: for each model the bytes that forward and
backward move, how far that is above the least of any choice of dtypes, and
above the least with residual streams in fp32, and how far its losses are from
those of fp32 (maintainers).

usage: placement.py [--precision P] [--runs N] AMPC[,AMPC...] [NAME...]
       placement.py --table [--runs N] AMPC [NAME...]
       placement.py --draws N [--precision P] [--runs N] AMPC [NAME...]
       placement.py --starts N [--precision P] AMPC [NAME...]
       with --placement P: of the modules in 16 bits (--draws: of several)

A row for each AMPC and one for PyTorch's autocast on the CPU.  Least: every
value in memory in 16 bits, once, but gradients of parameters, outputs, and
results of exp and log.  Distance: |loss - loss in fp32| / loss, over N (6)
batches of data and 12 steps of AdamW; mean and largest.

--table prints the table of docs/numerics.md: the largest distance over N runs
that begin 1e-6 apart in every weight, of ampc's losses from those of its fp32
and of autocast's from those of PyTorch's, in bf16 and fp16 (loss scale 1024),
and what is kept for backward.  With BatchNorm both load the weights of PyTorch's
fp32 before each step.

Runs that begin 1e-6 apart round alike, so a row of that table is nearly one
sample.  --draws repeats it over N data sets and weights and prints the ratios of
each placement: geometric mean, range, how many are at most 1, and all.  --starts
prints, for each placement, the root mean square of the distances over N starts
with data of their own, each step from the weights of PyTorch's fp32, and the
geometric mean of the ratios of ampc and autocast from the same start, with its
standard error."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

STEPS, VOCABULARY, TOKENS, BATCH = 12, 96, 64, 8
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


# ---- models -----------------------------------------------------------------

class MLP(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 128),
                         nn.ReLU(), nn.Linear(128, 10))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


class Residual(nn.Module):
    def __init__(self, c, k, stride):
        super().__init__()
        self.a = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.an, self.bn = nn.BatchNorm2d(k), nn.BatchNorm2d(k)
        self.down = None if (c, stride) == (k, 1) else nn.Sequential(
            nn.Conv2d(c, k, 1, stride, bias=False), nn.BatchNorm2d(k))

    def forward(self, x):
        y = self.bn(self.b(F.relu(self.an(self.a(x)))))
        return F.relu(y + (self.down(x) if self.down else x))


class ResNet18(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, padding=1, bias=False),
                                  nn.BatchNorm2d(c), nn.ReLU())
        sizes = [(c, c, 1), (c, c, 1), (c, 2 * c, 2), (2 * c, 2 * c, 1),
                 (2 * c, 4 * c, 2), (4 * c, 4 * c, 1), (4 * c, 8 * c, 2),
                 (8 * c, 8 * c, 1)]
        self.body = nn.Sequential(*(Residual(*s) for s in sizes))
        self.fc = nn.Linear(8 * c, 10)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


class RMSNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-5) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    """kind: gpt (causal, one product for q, k, v), llama (causal, rotary),
    bert (a mask, scores written out), vit (all see all)."""

    def __init__(self, c, heads, kind):
        super().__init__()
        self.heads, self.kind = heads, kind
        bias = kind != "llama"
        if kind == "gpt":
            self.qkv = nn.Linear(c, 3 * c)
        else:
            self.q, self.k, self.v = (nn.Linear(c, c, bias=bias)
                                      for _ in range(3))
        self.proj = nn.Linear(c, c, bias=bias)
        angles = torch.outer(torch.arange(TOKENS).float(),
                             1e4 ** (-torch.arange(0, 1, 2 * heads / c)))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, mask=None):
        b, t, c = x.shape
        qkv = (self.qkv(x).split(c, 2) if self.kind == "gpt" else
               (self.q(x), self.k(x), self.v(x)))
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in qkv)
        if self.kind == "llama":
            q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if self.kind == "bert":
            s = q @ k.transpose(-1, -2) / (c // self.heads) ** .5 + mask
            y = F.softmax(s, -1) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.kind in ("gpt", "llama"))
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """gain: of what it adds to the residual stream."""

    def __init__(self, c, heads, kind, gain=1):
        super().__init__()
        self.kind, self.gain = kind, gain
        norm = RMSNorm if kind == "llama" else nn.LayerNorm
        self.n1, self.n2 = norm(c), norm(c)
        self.attention = Attention(c, heads, kind)
        bias = kind != "llama"
        self.up = nn.Linear(c, 4 * c, bias=bias)
        self.gate = nn.Linear(c, 4 * c, bias=False) if not bias else None
        self.down = nn.Linear(4 * c, c, bias=bias)

    def feed(self, x):
        y = (F.silu(self.gate(x)) * self.up(x) if self.gate else
             F.gelu(self.up(x)))
        return self.down(y)

    def forward(self, x, mask=None):
        if self.kind == "bert":
            x = self.n1(x + self.attention(x, mask))
            return self.n2(x + self.feed(x))
        x = x + self.gain * self.attention(self.n1(x))
        return x + self.gain * self.feed(self.n2(x))


class Language(nn.Module):
    def __init__(self, kind, c=128, heads=4, layers=4, init=.02, gain=1):
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(VOCABULARY, c)
        self.places = nn.Embedding(TOKENS, c) if kind != "llama" else None
        self.blocks = nn.ModuleList(Block(c, heads, kind, gain)
                                    for _ in range(layers))
        self.norm = RMSNorm(c) if kind == "llama" else nn.LayerNorm(c)
        self.head = nn.Linear(c, VOCABULARY, bias=False)
        nn.init.normal_(self.words.weight, 0, init)
        if self.places:
            nn.init.normal_(self.places.weight, 0, init)

    def forward(self, ids):
        x, mask = self.words(ids), None
        if self.places:
            x = x + self.places(torch.arange(TOKENS))
        if self.kind == "bert":  # token 0 is padding
            mask = torch.where(ids == 0, torch.finfo(torch.float32).min, 0.)
            mask = mask[:, None, None, :]
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


class ViT(nn.Module):
    def __init__(self, c=96, layers=4):
        super().__init__()
        self.patch = nn.Conv2d(3, c, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, c))
        self.places = nn.Parameter(.02 * torch.randn(1, 17, c))
        self.blocks = nn.Sequential(*(Block(c, 3, "vit")
                                      for _ in range(layers)))
        self.norm, self.fc = nn.LayerNorm(c), nn.Linear(c, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1)
        return self.fc(self.norm(self.blocks(x + self.places))[:, 0])


class UNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        def twice(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(),
                                 nn.Conv2d(o, o, 3, padding=1), nn.ReLU())
        self.down, self.bottom = twice(3, c), twice(c, 2 * c)
        self.grow, self.up = nn.ConvTranspose2d(2 * c, c, 2, 2), twice(2 * c, c)
        self.head = nn.Conv2d(c, 10, 1)

    def forward(self, x):
        d = self.down(x)
        y = self.grow(self.bottom(F.max_pool2d(d, 2)))
        return self.head(self.up(torch.cat((y, d), 1))).movedim(1, -1)


def pixels(g):
    x = torch.randn(STEPS, BATCH, 3, 16, 16, generator=g)
    return x, (x.sum(2) * 2).long().clamp(-5, 4) + 5


def images(g, *shape):
    x = torch.randn(STEPS, 4 * BATCH, *shape, generator=g)
    return x, (x.flatten(2)[..., :10] + x.flatten(2)[..., 10:20]).argmax(-1)


def text(g):
    ids = torch.randint(0, VOCABULARY, (STEPS, BATCH, TOKENS + 1), generator=g)
    ids[..., 1:] = torch.where(ids[..., 1:] % 3 > 0,
                               (ids[..., :-1] + 1) % VOCABULARY, ids[..., 1:])
    return ids[..., :-1].contiguous(), ids[..., 1:].contiguous()


MODELS = {  # name: model, data, learning rate
    "mlp": (MLP, lambda g: images(g, 192), 1e-3),
    "cnn": (CNN, lambda g: images(g, 3, 16, 16), 1e-4),
    "resnet18": (ResNet18, lambda g: images(g, 3, 16, 16), 1e-4),
    "vit": (ViT, lambda g: images(g, 3, 16, 16), 1e-3),
    "gpt": (lambda: Language("gpt"), text, 1e-3),
    "llama": (lambda: Language("llama"), text, 1e-3),
    "bert": (lambda: Language("bert"), text, 1e-3),
    # residual streams of 1e5 to 1e6, and of 1e-3
    "loud": (lambda: Language("gpt", init=1e5, gain=1e5), text, 1e-3),
    "quiet": (lambda: Language("gpt", init=1e-3, gain=1e-3), text, 1e-3),
    "unet": (UNet, pixels, 1e-3),
}
FORCED = ("cnn", "resnet18")


# ---- losses -----------------------------------------------------------------

class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, target):
        y = self.net(x)
        return F.cross_entropy(y.flatten(0, -2).float(), target.flatten())


def torch_losses(make, data, rate, low):
    torch.manual_seed(1)
    model, losses = WithLoss(make()).train(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for x, t in zip(*data):
        optimizer.zero_grad()
        with torch.autocast("cpu", low or torch.bfloat16, enabled=bool(low)):
            loss = model(x, t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ampc(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(f"{' '.join(command)}: {r.stderr}")
    return r.stdout


def module_losses(so, folder, runs):
    losses = []
    for r in range(runs):
        feeds = []
        for n in ("x", "target"):
            feeds += ["--feed", f"{n}={folder}/{r}.{n}.npy"]
        ampc([f"{folder}/ampc", "run", so, "--device", "cpu", "--steps",
              str(STEPS), "--log", so + ".log", "--quiet", "--threads", "1"]
             + feeds)
        losses.append([json.loads(s)["loss"] for s in open(so + ".log")])
    return np.array(losses)


def distance(got, want):
    d = np.abs(np.array(got) - want) / want
    return f"{d.mean():.2e} {d.max():.2e}"


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


def compare(name, programs, precision, runs, placement):
    make, data, rate = MODELS[name]
    batches = [data(torch.Generator().manual_seed(r)) for r in range(runs)]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        model = WithLoss(make()).train()
        export(model, batches[0], folder, True)
        os.symlink(os.path.abspath(programs[0]), f"{folder}/ampc")
        for r, (x, t) in enumerate(batches):
            np.save(f"{folder}/{r}.x.npy", x.numpy().reshape(-1, *x.shape[2:]))
            np.save(f"{folder}/{r}.target.npy",
                    t.numpy().reshape(-1, *t.shape[2:]))
        want = module_losses(compile_(programs[0], folder, "fp32", "fp32",
                                      rate), folder, runs)
        for i, program in enumerate(programs):
            so = compile_(program, folder, f"low{i}", precision, rate,
                          "--placement", placement)
            moved, *least = step_bytes(program, so)
            got = module_losses(so, folder, runs)
            print(f"{name:9} {program[-24:]:24} {moved / 1e6:8.2f} "
                  + " ".join(f"{100 * (moved / b - 1):6.2f} %" for b in least)
                  + f"  {distance(got, want)}",
                  flush=True)
    fp32 = np.array([torch_losses(make, b, rate, None) for b in batches])
    got = [torch_losses(make, b, rate, LOW[precision]) for b in batches]
    print(f"{name:9} {'PyTorch autocast':24} {'':26}  {distance(got, fp32)}",
          flush=True)


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
        return [json.loads(s)["loss"] for s in open(so + ".log")]
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
    return max(np.abs((g - w) / w).max() for g, w in zip(got, want))


FLOOR = 5e-4  # of autocast's distance


class Draw:
    """Data and weights of a seed: runs that begin 1e-6 apart, and how far
    autocast's losses are from those of fp32 in them."""

    def __init__(self, name, seed, runs, precisions=tuple(LOW)):
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
        self.forced = [t[1] if name in FORCED else None for t in traces]
        self.theirs = {p: largest([torch_trace(make, s, self.data, rate, LOW[p],
                                               f)[0]
                                   for s, f in zip(self.starts, self.forced)],
                                  [t[0] for t in traces]) for p in precisions}

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


def far(low, full):
    """Root mean square of the relative distances of a run's losses."""
    return np.sqrt(np.mean(np.square((low - full) / full)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--precision", choices=sorted(LOW), default="bf16")
    p.add_argument("--runs", type=int, default=6)
    p.add_argument("--table", action="store_true")
    p.add_argument("--starts", type=int)
    p.add_argument("--draws", type=int)
    p.add_argument("--placement", action="append", default=[])
    p.add_argument("ampc")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    placements = a.placement or ["exact"]
    if a.draws:
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
    if a.table:
        print("| model | precision | ampc apart | autocast apart | ratio "
              "| kept MB | kept MB fp32 | ratio |\n|" + "---|" * 8)
        for name in a.names or MODELS:
            table(name, os.path.abspath(a.ampc), a.runs, placements[0])
        return
    print(f"{'model':9} {'program':24} {'MB/step':>8} {'above':>8} "
          f"{'streams':>8}  "
          f"{'mean':8} {'largest':8}")
    for name in a.names or MODELS:
        compare(name, a.ampc.split(","), a.precision, a.runs, placements[0])


if __name__ == "__main__":
    sys.exit(main())
