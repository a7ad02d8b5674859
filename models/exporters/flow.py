# SPDX-License-Identifier: Apache-2.0
"""Models for exporters.py whose branches and trips depend on data.  PyTorch's own training is that of
`unrolled`, plain Python, where it has one."""


def bases():
    import torch, torch.nn as nn

    class Base(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3)
    return Base


def flow():
    """For ampc.torch.export: torch.cond and while_loop."""
    import torch, torch.nn as nn, torch.nn.functional as F
    from torch._higher_order_ops.while_loop import while_loop
    Base = bases()

    class Branch(Base):
        """The logarithm's branch, or the other one, where the logarithm and its slope are NaN."""
        def log(s, h): return torch.log(h) + torch.sqrt(h)
        def other(s, h): return torch.tanh(s.l(h))
        def start(s, x): return s.l(x) ** 2 + 0.1 if s.kind == "log" else s.l(x)
        def forward(s, x):
            h = s.start(x)
            return s.m(torch.cond(h.min() > 0, s.log, s.other, (h,)))
        def unrolled(s, x):
            h = s.start(x)
            return s.m(s.log(h) if h.min() > 0 else s.other(h))

    class BranchRow(Base):
        """A row that exists in one branch only."""
        def __init__(s): super().__init__(); s.t = nn.Embedding(5, 4)
        def start(s, x):
            i = (s.l(x).sum(1) * 100).abs().long() + 5
            return s.l(x), i
        def forward(s, x):
            h, i = s.start(x)
            return s.m(torch.cond(i.max() < 5, lambda h, i: h * s.t(i), lambda h, i: h + s.t(i * 0 + 2), (h, i)))
        def unrolled(s, x):
            h, i = s.start(x)
            return s.m(h * s.t(i) if i.max() < 5 else h + s.t(i * 0 + 2))

    class Trips(Base):
        """A counter is carried."""
        own_options = ["--max-trips", "7"]
        def goes(s, i, h): return (h.abs().max() > 0.3) & (i < 6)
        def forward(s, x):
            i, h = while_loop(s.goes, lambda i, h: (i + 1, 0.7 * torch.sin(s.l(h))), (torch.tensor(0), s.l(x)))
            return s.m(h) + i
        def unrolled(s, x):
            i, h = 0, s.l(x)
            while s.goes(i, h): i, h = i + 1, 0.7 * torch.sin(s.l(h))
            return s.m(h) + i

    class TripsNone(Trips):
        """No turn counts."""
        own_options = ["--max-trips", "*loop*=3"]
        def goes(s, i, h): return h.abs().max() > 300

    class TripsUnbounded(Trips):
        own_options = []

    class BranchRare(Base):
        """An operator whose translation by torch.onnx is another one, and no_grad, in a branch."""
        def rare(s, h, i):
            with torch.no_grad(): scale = 1 + h * h
            return torch.tanh(h) / scale + torch.zeros_like(h).scatter_reduce(0, i, h, "mean")
        def plain(s, h, i): return torch.tanh(h)
        def start(s, x): return s.l(x), torch.tensor([0, 2, 2, 1, 0, 2])[:, None].expand(6, 4)
        def forward(s, x):
            h, i = s.start(x)
            return s.m(torch.cond(h.sum() > s.level, s.rare, s.plain, (h, i)))
        def unrolled(s, x):
            h, i = s.start(x)
            return s.m(s.rare(h, i) if h.sum() > s.level else s.plain(h, i))

    kinds = [type("Rare" + k, (BranchRare,), {"level": v}) for k, v in (("taken", -99.), ("other", 99.))]
    kinds += [type("Branch" + k, (Branch,), {"kind": k}) for k in ("log", "other")]
    return [*kinds, BranchRow, Trips, TripsNone, TripsUnbounded]


def scripted():
    """For TorchScript's exporter: Loop and If of a script."""
    import torch
    Base = bases()

    class Repeated(Base):
        def forward(s, x):
            h, i = s.l(x), 0
            while bool(h.abs().max() > 0.3) and i < 6:
                h, i = 0.7 * torch.tanh(s.l(h)), i + 1
            if bool(h.sum() > 0): h = torch.log(h + 1)
            else: h = torch.exp(h)
            return s.m(h) + float(i)

    def make(): return torch.jit.script(Repeated())
    make.__name__, make.options = "Repeated", ["--max-trips", "7"]
    return [make]
