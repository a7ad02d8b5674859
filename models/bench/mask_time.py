#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step times of models whose loss counts the rows that a mask selects: written `x[mask]`, beside the
same model with the mask multiplied (maintainers; needs torch, onnx and the Python package of ampc).

usage: mask_time.py AMPC [NAME...]

Both files come from ampc.torch.export and train on one thread with equal data.  Prints, for masks
that select 15, 50 and 100 % of the rows, the processor time of a step with `x[mask]` divided by that
with the product: the median of pairs that run in turns, and the losses of both, which are equal."""
import statistics, subprocess, sys, tempfile, time
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import ampc, ampc.torch

PAIRS, SHARES = 15, (0.15, 0.5, 1.0)


class Masked(nn.Module):
    def __init__(s, picks):
        super().__init__(); torch.manual_seed(0)
        s.picks = picks

    def mean(s, each, mask):
        """The mean of the rows that the mask selects."""
        if s.picks: return each[mask].sum() / mask.sum().clamp(min=1)
        return (each * mask).sum() / mask.sum().clamp(min=1)


class LanguageModel(Masked):
    """Two layers of a transformer; the head and the loss see the masked words alone."""
    rows, words, width, of = (16, 64), 4000, 256, "16 x 64 words of 4,000, width 256"

    def __init__(s, picks):
        super().__init__(picks)
        s.embed = nn.Embedding(s.words, s.width); s.head = nn.Linear(s.width, s.words)
        layer = lambda: nn.TransformerEncoderLayer(s.width, 4, 4 * s.width, 0.0, batch_first=True, norm_first=True)
        s.layers = nn.ModuleList([layer(), layer()])

    def inputs(s, r):
        return {"ids": r.randint(0, s.words, s.rows), "target": r.randint(0, s.words, s.rows)}

    def forward(s, ids, target, mask):
        h = s.embed(ids)
        for layer in s.layers: h = layer(h)
        if s.picks: return F.cross_entropy(s.head(h[mask]), target[mask], reduction="sum") / mask.sum().clamp(min=1)
        each = F.cross_entropy(s.head(h).flatten(0, 1), target.flatten(), reduction="none")
        return s.mean(each, mask.flatten())


class Detector(Masked):
    """Four convolutions; focal loss of all anchors, boxes of those with an object."""
    rows, of = (2, 4096), "2 images of 64 x 64, 8,192 anchors"

    def __init__(s, picks):
        super().__init__(picks)
        s.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(c, 64, 3, padding=1), nn.ReLU()) for c in (3, 64, 64, 64)))
        s.kind, s.box = nn.Conv2d(64, 20, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)

    def inputs(s, r):
        return {"image": r.randn(2, 3, 64, 64), "boxes": r.randn(2, 4096, 4), "hot": (r.rand(2, 4096, 20) > .95) * 1.0}

    def forward(s, image, boxes, hot, mask):
        h = s.body(image); rows = lambda y: y.flatten(2).transpose(1, 2)
        y = rows(s.kind(h)); each = F.binary_cross_entropy_with_logits(y, hot, reduction="none")
        focal = (each * (1 - torch.exp(-each)) ** 2).mean()
        box = rows(s.box(h))
        if s.picks: return focal + F.smooth_l1_loss(box[mask], boxes[mask], reduction="sum") / mask.sum().clamp(min=1)
        return focal + s.mean(F.smooth_l1_loss(box, boxes, reduction="none").sum(-1), mask)


class Nodes(Masked):
    """Two graph convolutions over a dense matrix of neighbours; the loss of the nodes with a label."""
    rows, of = (1024,), "1,024 nodes of 256 features"

    def __init__(s, picks):
        super().__init__(picks)
        s.l, s.m = nn.Linear(256, 256), nn.Linear(256, 40)

    def inputs(s, r):
        near = (r.rand(1024, 1024) > .99) + np.eye(1024)
        return {"near": near / near.sum(1, keepdims=True), "x": r.randn(1024, 256), "target": r.randint(0, 40, 1024)}

    def forward(s, near, x, target, mask):
        y = torch.log_softmax(near @ s.m(torch.relu(near @ s.l(x))), 1)
        if s.picks: return F.nll_loss(y[mask], target[mask], reduction="sum") / mask.sum().clamp(min=1)
        return s.mean(F.nll_loss(y, target, reduction="none"), mask)


class Pointer(Masked):
    """A query looks at the places that are there: softmax over the selected rows."""
    rows, of = (4096,), "4,096 places of 128 features"

    def __init__(s, picks):
        super().__init__(picks)
        s.l, s.q = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128)), nn.Linear(128, 1)

    def inputs(s, r): return {"x": r.randn(4096, 64)}

    def forward(s, x, mask):
        h = torch.tanh(s.l(x))
        if s.picks:
            own = h[mask]
            return (torch.softmax(s.q(own), 0).t() @ own).pow(2).sum()
        score = torch.where(mask[:, None], s.q(h), -1e30)
        return (torch.softmax(score, 0).t() @ h).pow(2).sum()


def arrays(net, share):
    r = np.random.RandomState(1)
    given = {k: v.astype("f4") if v.dtype == np.float64 else v for k, v in net.inputs(r).items()}
    return {**given, "mask": r.rand(*net.rows) < share}


def session(binary, folder, make, picks):
    net = make(picks).train(); path = f"{folder}/{make.__name__}{picks}"
    given = {k: torch.tensor(v) for k, v in arrays(net, 0.5).items()}
    ampc.torch.export(net, given, path + ".onnx", dynamic_shapes={k: None for k in given})
    subprocess.run([binary, path + ".onnx", "-o", path + ".so", "--precision", "fp32", "--loss", "auto",
                    "--optimizer", "sgd,lr=0.01"], check=True, capture_output=True)
    return ampc.Module(path + ".so").session(device="cpu", threads=1)


def step(s, data):
    start = time.process_time(); loss = s.step(**data)["loss"]
    return time.process_time() - start, loss


def main():
    binary, names = sys.argv[1], sys.argv[2:]
    print("| model | " + " | ".join(f"{100 * s:.0f} % selected" for s in SHARES) + " | ms a step | losses apart |\n|---|" + "---|" * (len(SHARES) + 2))
    with tempfile.TemporaryDirectory() as folder:
        for make in (LanguageModel, Detector, Nodes, Pointer):
            if names and make.__name__ not in names: continue
            both = [session(binary, folder, make, picks) for picks in (True, False)]
            cells, apart, each = [], 0, 0
            for share in SHARES:
                data = arrays(make(True), share); ratio = []
                for s in both: step(s, data)
                for k in range(PAIRS):
                    (a, x), (b, y) = (step(s, data) for s in both)
                    ratio.append(a / b); each = 1000 * b; apart = max(apart, abs(x - y) / abs(y))
                cells.append(f"{statistics.median(ratio):.2f}")
            print(f"| {make.__name__}: {make.of} | {' | '.join(cells)} | {each:.0f} | {apart:.1e} |", flush=True)


if __name__ == "__main__": main()
