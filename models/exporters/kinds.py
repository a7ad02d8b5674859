# SPDX-License-Identifier: Apache-2.0
"""More PyTorch models for exporters.py, by kind: constants and parameters in every place a model keeps them, stops of the
gradient in every spelling, normalisations, parametrizations, losses inside the model.  kinds() lists them with their data."""
import copy
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from edges import Two

T = lambda *v: torch.tensor(v)
GLOBAL = torch.linspace(-1, 1, 16).view(4, 4)
GLOBAL_ROW = torch.linspace(.5, 1.5, 4)
randn = lambda *d: torch.randn(*d)


# ---- constants ----

class PlainRow(Two):
    def more(s): s.t = randn(4)
    def forward(s, x): return s.m(torch.tanh(s.l(x)) * s.t)

class PlainMatrix(Two):
    def more(s): s.t = randn(4, 4)
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.t))

class GlobalMatrix(Two):
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ GLOBAL) * GLOBAL_ROW)

class BufferMatrix(Two):
    def more(s): s.register_buffer("B", randn(4, 4))
    def forward(s, x): return s.m(torch.sin(s.l(x @ s.B)) + x)

class BufferNamedWeight(Two):
    def more(s):
        s.blur = nn.Module(); s.blur.register_buffer("weight", randn(4, 4)); s.blur.register_buffer("bias", randn(4))
    def forward(s, x): return s.m(torch.tanh(F.linear(s.l(x), s.blur.weight, s.blur.bias)))

class BufferHidden(Two):
    def more(s): s.register_buffer("B", randn(4, 4), persistent=False); s.b2 = nn.Buffer(randn(4), persistent=False)
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.B + s.b2))

class ListMatrix(Two):
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ torch.tensor([[.8, .6, 0, 0], [-.6, .8, 0, 0], [0, 0, 1., 0], [0, 0, .3, 1]])))

class ListWeights(Two):
    def more(s): s.levels = [.1, .2, .3, .4]
    def forward(s, x):
        h = s.l(x)
        return s.m(sum(w * torch.tanh(h + i) for i, w in enumerate(s.levels)))

class Cosines(Two):
    """A DCT matrix that the forward computes."""
    def forward(s, x):
        n = torch.arange(4, dtype=torch.float32)
        return s.m(torch.tanh(s.l(x) @ torch.cos(torch.pi / 4 * (n[:, None] + .5) * n)))

class Triangle(Two):
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ torch.tril(torch.ones(4, 4)) / torch.arange(1., 5.)))

class FromNumpy(Two):
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ torch.from_numpy(np.linspace(-1, 1, 16).astype("f").reshape(4, 4))))

class Lazy(Two):
    def forward(s, x):
        if not hasattr(s, "table"): s.table = torch.linspace(-1, 1, 16).view(4, 4)
        return s.m(torch.tanh(s.l(x) @ s.table))

class Doubles(Two):
    def more(s): s.register_buffer("k", torch.tensor(.7, dtype=torch.float64)); s.register_buffer("n", torch.tensor(3))
    def forward(s, x): return s.m(torch.tanh(s.l(x) * s.k) * s.n / 2)

class ScalarBuffer(Two):
    def more(s): s.register_buffer("k", torch.tensor(.7)); s.register_buffer("k1", torch.tensor([1.7])); s.register_buffer("k2", torch.tensor([[.3]]))
    def forward(s, x): return s.m(torch.tanh(s.l(x) * s.k + s.k1) / s.k2)

class FourierFeatures(Two):
    def more(s): s.register_buffer("freq", randn(2, 4)); s.p = nn.Linear(4, 4)
    def forward(s, x):
        f = 2 * torch.pi * x @ s.freq.T
        return s.m(torch.tanh(s.p(torch.cat([f.sin(), f.cos()], -1))) + s.l(x))

class Sobel(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, padding=1); s.l = nn.Linear(4, 2)
        s.register_buffer("kernel", torch.tensor([[-1., 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(4, 1, 3, 3).clone())
    def forward(s, x): return s.l(F.conv2d(torch.tanh(s.c(x)), s.kernel, groups=4).square().mean((2, 3)))

class SobelInside(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, padding=1); s.l = nn.Linear(4, 2)
    def forward(s, x):
        k = torch.tensor([[-1., 0, 1], [-2, 0, 2], [-1, 0, 1]]).repeat(4, 1, 1, 1)
        return s.l(F.conv2d(torch.tanh(s.c(x)), k, groups=4).square().mean((2, 3)))

class Gray(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(1, 4, 3); s.l = nn.Linear(4, 2); s.register_buffer("rgb", T(.299, .587, .114))
    def forward(s, x): return s.l(torch.tanh(s.c((x * s.rgb[:, None, None]).sum(1, keepdim=True) * 255 / 128 - 1)).mean((2, 3)))

class Standardised(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.l = nn.Linear(4, 2)
        s.register_buffer("shift", torch.rand(1, 3, 1, 1)); s.register_buffer("scale", torch.rand(1, 3, 1, 1) + .5)
    def forward(s, x): return s.l(torch.relu(s.c((x - s.shift) * s.scale)).mean((2, 3)))

class Anchors(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, padding=1)
        s.register_buffer("anchors", torch.rand(2) + 1); s.stride = 8
        y, x = torch.meshgrid(torch.arange(6.), torch.arange(6.), indexing="ij"); s.register_buffer("grid", torch.stack([x, y]))
    def forward(s, x):
        p = s.c(x)
        return torch.cat([(p[:, :2].sigmoid() * 2 - .5 + s.grid) * s.stride / 48, (p[:, 2:].sigmoid() * 2) ** 2 * s.anchors[:, None, None]], 1)

class PositionTable(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3); s.cls = nn.Parameter(randn(1, 1, 4))
        s.pos = nn.Parameter(randn(1, 6, 4) * .1); s.register_buffer("pe", randn(1, 9, 4))
    def forward(s, x):
        x = torch.cat([s.cls.expand(x.shape[0], -1, -1), s.l(x)], 1) + s.pos + s.pe[:, :6]
        return s.m(torch.tanh(x))[:, 0]

class RelativeBias(nn.Module):
    """As Swin: a table that trains, rows of it by an index that does not."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.qkv = nn.Linear(4, 12); s.o = nn.Linear(4, 2); s.table = nn.Parameter(randn(9, 2))
        i = torch.arange(5); s.register_buffer("index", i[:, None] - i + 4)
        s.register_buffer("attn_mask", torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(2).bool(), -100.))
    def forward(s, x):
        q, k, v = (t.view(3, 5, 2, 2).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
        a = q @ k.transpose(-1, -2) * 2 ** -.5 + s.table[s.index.view(-1)].view(5, 5, 2).permute(2, 0, 1) + s.attn_mask
        return s.o((a.softmax(-1) @ v).transpose(1, 2).reshape(3, 5, 4)).mean(1)

class Alibi(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.qkv = nn.Linear(4, 12); s.o = nn.Linear(4, 2)
    def forward(s, x):
        q, k, v = (t.view(3, 5, 2, 2).transpose(1, 2) for t in s.qkv(x).chunk(3, -1))
        slopes = torch.tensor([2 ** -(i + 1.) for i in range(2)]).view(2, 1, 1); n = torch.arange(5)
        bias = -(n[:, None] - n).abs() * slopes
        return s.o(F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(3, 2, 5, 5)).transpose(1, 2).reshape(3, 5, 4)).mean(1)

class RopeCached(Two):
    def more(s):
        f = torch.arange(6.)[:, None] / 10 ** (torch.arange(2.) / 2)
        s.register_buffer("cos_cached", f.cos().repeat(1, 2)); s.register_buffer("sin_cached", f.sin().repeat(1, 2))
    def forward(s, x):
        h = s.l(x)
        return s.m(h * s.cos_cached + torch.cat([-h[:, 2:], h[:, :2]], -1) * s.sin_cached)

class Bins(Two):
    """Distributional heads: the support is a buffer."""
    def more(s): s.register_buffer("support", torch.linspace(-1, 1, 3)); s.register_buffer("project", torch.arange(4.))
    def forward(s, x): return (s.m(torch.tanh(s.l(x))).softmax(-1) * s.support).sum(-1, keepdim=True) + s.l(x).softmax(1) @ s.project[:, None]

class ClassWeights(Two):
    own_loss = True
    def more(s): s.register_buffer("w", T(.5, 1., 2.)); s.crit = nn.CrossEntropyLoss(weight=T(1., 2., .5), ignore_index=1, label_smoothing=.1)
    def forward(s, x):
        t = torch.where(x[:, 0] > 0, 2, torch.where(x[:, 1] > 0, 1, 0)); y = s.m(torch.tanh(s.l(x)))
        return F.cross_entropy(y, t, weight=s.w) + s.crit(y, t)

class PosWeights(Two):
    own_loss = True
    def more(s): s.crit = nn.BCEWithLogitsLoss(pos_weight=T(1., 2., 3.), weight=T(.5, .6, .7), reduction="sum")
    def forward(s, x): return s.crit(s.m(torch.tanh(s.l(x))), (x[:, :3] > 0).float())


# ---- parameters in every place ----

class Temperature(Two):
    def more(s): s.log_t = nn.Parameter(torch.tensor(.2)); s.scale = nn.Parameter(torch.tensor([[1.3]])); s.shift = nn.Parameter(torch.zeros(1))
    def forward(s, x): return s.m(torch.tanh(s.l(x) / s.log_t.exp().clamp(max=100)) * s.scale + s.shift)

class Thresholds(Two):
    def more(s): s.t = nn.Parameter(torch.tensor(.1)); s.p = nn.Parameter(torch.tensor(1.5)); s.beta = nn.Parameter(torch.tensor(2.))
    def forward(s, x):
        h = s.l(x); h = torch.sign(h) * F.relu(h.abs() - s.t); h = h * torch.sigmoid(s.beta * h)
        return s.m((h.abs() + .1).pow(s.p))

class NamedLikeBuffers(Two):
    def more(s): s.mean = nn.Parameter(randn(4)); s.std = nn.Parameter(torch.rand(4) + .5); s.mask = nn.Parameter(randn(4)); s.pe = nn.Parameter(randn(6, 4)); s.eps = nn.Parameter(torch.tensor(.1))
    def forward(s, x): return s.m(torch.tanh((s.l(x) - s.mean) / s.std) * s.mask + s.pe * s.eps)

class InputNormalised(Two):
    """Learned mean and deviation of the input."""
    def more(s): s.mean = nn.Parameter(randn(4)); s.std = nn.Parameter(torch.rand(4) + .5)
    def forward(s, x): return s.m(torch.tanh(s.l((x - s.mean) / s.std)))

class InTuple(Two):
    def more(s): s.ws = (nn.Parameter(randn(4, 4)), nn.Parameter(randn(4)))
    def named(s): yield "lifted_tensor_0", "ws.0", s.ws[0]; yield "lifted_tensor_1", "ws.1", s.ws[1]
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.ws[0] + s.ws[1]))

class InNested(Two):
    def more(s): s.d = {"a": [{"w": nn.Parameter(randn(4, 4))}], "g": nn.Parameter(torch.tensor(.8))}
    def named(s): yield "lifted_tensor_0", "d.a.0.w", s.d["a"][0]["w"]; yield "lifted_tensor_1", "d.g", s.d["g"]
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.d["a"][0]["w"]) * s.d["g"])

class InObject(Two):
    def more(s): s.o = type("O", (), {})(); s.o.w = nn.Parameter(randn(4, 4)); s.o.t = randn(4)
    def named(s): yield "lifted_tensor_0", "o.w", s.o.w
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.o.w))

class Lists(Two):
    def more(s):
        s.ps = nn.ParameterList([nn.Parameter(randn(4)), nn.Parameter(torch.tensor(.3)), nn.Parameter(randn(4, 4))])
        s.md = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])})
    def forward(s, x):
        h = s.l(x)
        for f in s.md["a"]: h = h + torch.tanh(f(h))
        return s.m(torch.tanh(h @ s.ps[2] + s.ps[0]) * s.ps[1])

class Constants(Two):
    """Parameters of zeros and ones beside constants of zeros and ones."""
    def more(s): s.z = nn.Parameter(torch.zeros(4)); s.o = nn.Parameter(torch.ones(4)); s.one = nn.Parameter(torch.tensor(1.)); s.zero = nn.Parameter(torch.tensor(0.)); s.eye = nn.Parameter(torch.eye(4))
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.eye * s.o + s.z) * s.one + s.zero + torch.ones(4) * x * s.zero + torch.zeros(4))

class EqualParts(Two):
    def more(s):
        s.a = nn.Parameter(torch.full((4,), .5)); s.b = nn.Parameter(torch.full((4,), .5)); s.register_buffer("c", torch.full((4,), .5))
        s.n1 = nn.LayerNorm(4); s.n2 = nn.LayerNorm(4)
    def forward(s, x): return s.m(torch.tanh(s.n1(s.l(x)) * s.a + s.c) * s.b + s.n2(x) + torch.full((4,), .5))

class LayerScale(Two):
    def more(s): s.gamma = nn.Parameter(1e-2 * torch.ones(4)); s.rezero = nn.Parameter(torch.zeros(1)); s.f = nn.Linear(4, 4)
    def forward(s, x): h = s.l(x); h = h + s.gamma * torch.tanh(s.f(h)); return s.m(h + s.rezero * torch.relu(s.f(h)))

class Unused(Two):
    def more(s): s.u = nn.Linear(4, 4); s.p = nn.Parameter(randn(3))
    def forward(s, x): s.u(x); return s.m(torch.tanh(s.l(x)))

class LazyLayers(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.l = nn.LazyLinear(4); s.m = nn.LazyLinear(3); s.n = nn.LazyBatchNorm1d(); s(torch.zeros(6, 4))
    def forward(s, x): return s.m(torch.tanh(s.n(s.l(x))))

class FrozenBias(Two):
    options = ["--freeze", "l.bias", "--freeze", "m.weight"]
    def more(s): s.l.bias.requires_grad_(False); s.m.weight.requires_grad_(False)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class FrozenNorm(nn.Module):
    """Its statistics move, its gain and offset do not."""
    options = ["--freeze", "bn.weight", "--freeze", "bn.bias"]
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.bn = nn.BatchNorm2d(4); s.l = nn.Linear(4, 2)
        nn.init.normal_(s.bn.weight); nn.init.normal_(s.bn.bias)
        s.bn.weight.requires_grad_(False); s.bn.bias.requires_grad_(False)
    def forward(s, x): return s.l(torch.relu(s.bn(s.c(x))).mean((2, 3)))

class Pretrained(nn.Module):
    options = ["--freeze", "w.weight"]
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w = nn.Embedding.from_pretrained(randn(7, 4)); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(s.w(i)).mean(1)

class TiedHead(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e = nn.Embedding(7, 4); s.l = nn.Linear(4, 4); s.out = nn.Linear(4, 7, bias=False); s.out.weight = s.e.weight
    def forward(s, i): return s.out(torch.tanh(s.l(s.e(i))))

class TiedDecoder(Two):
    """A transposed weight, which the code names, beside a bias of zeros, which the exporter drops."""
    def more(s): s.b = nn.Parameter(torch.zeros(4))
    def forward(s, x): return s.m(F.linear(torch.tanh(s.l(x)), s.l.weight.t(), s.b))

class TiedAcross(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a = nn.Linear(4, 3); s.bias = nn.Parameter(randn(4))
    def forward(s, x): return F.linear(torch.tanh(s.a(x)), s.a.weight.t(), s.bias)

class TiedConv(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.d = nn.ConvTranspose2d(4, 3, 3); s.d.weight = s.c.weight
    def forward(s, x): return s.d(torch.tanh(s.c(x)))

class TiedModule(Two):
    def more(s): s.again = s.l; s.bias2 = s.l.bias
    def forward(s, x): return s.m(torch.tanh(s.again(torch.tanh(s.l(x))) + s.bias2))

class TiedMasked(Two):
    """MADE: a weight under a mask of 0 and 1."""
    def more(s): s.register_buffer("mask", torch.tril(torch.ones(4, 4)))
    def forward(s, x): return s.m(torch.tanh(F.linear(x, s.l.weight * s.mask, s.l.bias)))

class Lora(Two):
    options = ["--freeze", "l.*"]
    def more(s):
        s.A = nn.Parameter(randn(2, 4)); s.B = nn.Parameter(torch.zeros(4, 2)); s.scaling = 2.
        for p in s.l.parameters(): p.requires_grad_(False)
    def forward(s, x): return s.m(torch.tanh(s.l(x) + (x @ s.A.T @ s.B.T) * s.scaling))

class Mixture(Two):
    def more(s): s.experts = nn.Parameter(randn(3, 4, 4)); s.g = nn.Linear(4, 3)
    def forward(s, x): return s.m(torch.einsum("bi,eij,be->bj", s.l(x), s.experts, s.g(x).softmax(-1)))

class Hyper(Two):
    def more(s): s.h = nn.Linear(4, 16); s.z = nn.Parameter(randn(4))
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.h(s.z).view(4, 4)))


# ---- parametrizations ----

class OldWeightNorm(Two):
    def more(s): s.l = torch.nn.utils.weight_norm(s.l); s.m = torch.nn.utils.weight_norm(s.m, dim=None)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Spectral(Two):
    def more(s): s.l = torch.nn.utils.parametrizations.spectral_norm(s.l)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class OldSpectral(Two):
    def more(s): s.l = torch.nn.utils.spectral_norm(s.l)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Positive(nn.Module):
    def forward(s, w): return F.softplus(w)

class Symmetric(nn.Module):
    def forward(s, w): return w.triu() + w.triu(1).T

class Parametrized(Two):
    def more(s): nn.utils.parametrize.register_parametrization(s.m, "weight", Positive()); nn.utils.parametrize.register_parametrization(s.l, "weight", Symmetric())
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Pruned(Two):
    def more(s): from torch.nn.utils import prune; prune.random_unstructured(s.l, "weight", .5)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Standardisation(nn.Module):
    """Weights of a convolution, standardised."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.l = nn.Linear(4, 2); s.gain = nn.Parameter(torch.ones(4, 1, 1, 1))
    def forward(s, x):
        w = s.c.weight; v, m = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, correction=0)
        return s.l(torch.relu(F.conv2d(x, (w - m) * torch.rsqrt(v * 27 + 1e-4) * s.gain, s.c.bias)).mean((2, 3)))


# ---- stops ----

class TargetClone(Two):
    own_loss = True
    def forward(s, x):
        h = torch.tanh(s.l(x))
        target = h.detach().clone()
        return F.mse_loss(s.m(h), target[:, :3])

class CloneDetach(Two):
    own_loss = True
    def forward(s, x):
        h = torch.tanh(s.l(x))
        target = s.m(h).clone().detach()
        return F.mse_loss(s.m(h * 2), target)

class TargetOwnName(Two):
    own_loss = True
    def more(s): s.f = nn.Linear(4, 3)
    def forward(s, x):
        target = torch.tanh(s.f(x)).detach().clone()
        return F.mse_loss(s.m(torch.tanh(s.l(x))), target)

class Data(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        return s.m(h * h.data + s.l.weight.data[0])

class DetachedWeight(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        return s.m(h) + F.linear(h, s.m.weight.detach(), s.m.bias.detach())

class GradDisabled(Two):
    def forward(s, x):
        with torch.set_grad_enabled(False):
            t = torch.tanh(s.l(x))
        return s.m(t * s.l(x))

class GradNested(Two):
    def forward(s, x):
        with torch.no_grad():
            t = torch.tanh(s.l(x))
            with torch.enable_grad():
                u = torch.sigmoid(s.l(x))
            v = t * 2
        return s.m(v + u)

class Decorated(Two):
    @torch.no_grad()
    def target(s, x): return torch.softmax(s.l(x), -1)
    def forward(s, x): return s.m(s.l(x) * s.target(x))

class NoGradNoParams(Two):
    def forward(s, x):
        h = s.l(x)
        with torch.no_grad():
            w = torch.softmax(h, -1)
        return s.m(h * w)

class Teacher(Two):
    own_loss = True
    options = ["--freeze", "t.*"]
    def more(s): s.t = copy.deepcopy(s.l); [p.requires_grad_(False) for p in s.t.parameters()]
    def forward(s, x):
        with torch.no_grad():
            target = s.t(x)
        return F.mse_loss(torch.tanh(s.l(x)), target) + s.m(s.l(x)).square().mean()

class ByolDetach(Two):
    """A target network whose gradient stops, and that is no parameter of the optimizer."""
    own_loss = True
    options = ["--freeze", "t.*"]
    def more(s): s.t = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)); [p.requires_grad_(False) for p in s.t.parameters()]
    def forward(s, x):
        p = F.normalize(s.m(torch.tanh(s.l(x))), dim=-1)
        z = F.normalize(s.t(x).detach(), dim=-1)
        return 2 - 2 * (p * z).sum(-1).mean()

class SameTwice(Two):
    """One layer of a value and of its detached self: an optimiser sees equal nodes."""
    def forward(s, x):
        h = torch.tanh(s.l(x))
        a = s.m(h)
        b = s.m(h.detach())
        return a * 2 + b

class SameBranch(Two):
    own_loss = True
    def more(s): s.d = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    def forward(s, x):
        fake = s.m(torch.tanh(s.l(x)))
        loss_g = F.softplus(-s.d(fake)).mean()
        loss_d = F.softplus(s.d(fake.detach())).mean()
        return loss_g + loss_d

class SameInBlock(Two):
    own_loss = True
    def forward(s, x):
        y = s.m(torch.tanh(s.l(x)))
        with torch.no_grad():
            target = s.m(torch.tanh(s.l(x)))
        return F.mse_loss(y * 1.5, target)

class SameSoftmax(Two):
    own_loss = True
    def forward(s, x):
        y = s.m(s.l(x))
        p = y.softmax(-1)
        q = y.detach().softmax(-1)
        return -(q * p.log()).sum(-1).mean() + (p * p).mean()

class MaxShift(Two):
    def forward(s, x):
        h = s.l(x)
        e = (h - h.max(-1, keepdim=True)[0].detach()).exp()
        return s.m(e / e.sum(-1, keepdim=True))

class DetachView(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        k = h.detach().view(6, 2, 2).transpose(1, 2).reshape(6, 4)
        return s.m(h * k + h.detach().contiguous() * h)

class DetachSame(Two):
    """Operations that do nothing, and go, behind detach()."""
    def forward(s, x):
        h = torch.tanh(s.l(x))
        a = h.detach().reshape(6, 4)
        b = h.detach().contiguous().float().to(torch.float32)
        c = F.dropout(h.detach(), .5, training=False)
        return s.m(h * a + h * b * b + c * h)

class DetachThenSame(Two):
    """Behind detach(), what the optimiser drops, on lines of their own."""
    def forward(s, x):
        h = torch.tanh(s.l(x))
        d = h.detach()
        a = d.reshape(6, 4)
        b = d * 1.0
        c = b + 0.0
        return s.m(h * a + h * c)

class DetachInputs(Two):
    def forward(s, x):
        x = x.detach()
        return s.m(torch.tanh(s.l(x)) * x)

class DetachCat(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        y = torch.cat([h.detach(), h], -1)
        z = torch.stack([h, h.detach()], 1)
        w = torch.where(x > 0, h.detach(), h)
        return s.m(y[:, :4] * y[:, 4:] + z.prod(1) + w)

class DetachPart(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        a, b = h.chunk(2, -1)
        return s.m(torch.cat([a * b.detach(), b * a.detach()[:, :1]], -1))

class DetachLoop(Two):
    """Truncated: the state's gradient stops at each turn."""
    def forward(s, x):
        z = torch.zeros_like(x)
        for _ in range(3):
            z = torch.tanh(s.l(z.detach()) + x)
        return s.m(z)

class DetachAgain(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        d = h.detach().detach()
        e = d.detach() * h
        return s.m(e + d)

class Focal(Two):
    own_loss = True
    def forward(s, x):
        y = s.m(torch.tanh(s.l(x)))
        p = torch.sigmoid(y)
        w = ((1 - p) ** 2).detach()
        return F.binary_cross_entropy_with_logits(y, (x[:, :3] > 0).float(), weight=w)

class Advantage(Two):
    own_loss = True
    def more(s): s.v = nn.Linear(4, 1)
    def forward(s, x):
        h = torch.tanh(s.l(x))
        v = s.v(h)
        a = x.sum(1, keepdim=True) - v.detach()
        logp = torch.log_softmax(s.m(h), -1)
        return -(logp * a).mean() + .5 * F.mse_loss(v, x.sum(1, keepdim=True))

class Balanced(Two):
    """Weights of two losses by their own sizes."""
    own_loss = True
    def forward(s, x):
        h = torch.tanh(s.l(x))
        a = h.square().mean()
        b = s.m(h).square().mean()
        return a / a.detach() + b * (a / b).detach()

class SteClamp(Two):
    def forward(s, x):
        h = s.l(x)
        q = h.clamp(-.5, .5)
        q = h + (torch.round(q * 8) / 8 - h).detach()
        return s.m(q)

class SteSign(Two):
    def forward(s, x):
        h = s.l(x)
        b = torch.sign(h).detach() - torch.tanh(h).detach() + torch.tanh(h)
        return s.m(b)

class SteNoGrad(Two):
    def forward(s, x):
        h = s.l(x)
        with torch.no_grad():
            r = torch.round(h * 4) / 4 - h
        return s.m(h + r)

class RoundSte(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return torch.round(x * 4) / 4
    @staticmethod
    def backward(ctx, g): return g

class SteFunction(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        return s.m(RoundSte.apply(h))

class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g): return -g

class Reversal(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        return s.m(ReverseGrad.apply(h))

class ScaleGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k): ctx.k = k; return x * 1
    @staticmethod
    def backward(ctx, g): return g * ctx.k, None

class Scaled(Two):
    def forward(s, x):
        h = torch.tanh(s.l(x))
        return s.m(ScaleGrad.apply(h, .1))

class Codes(Two):
    """VQ with gather and commitment on lines of their own."""
    own_loss = True
    def more(s): s.code = nn.Embedding(5, 4)
    def forward(s, x):
        z = s.l(x)
        d = torch.cdist(z[None], s.code.weight[None])[0]
        i = d.argmin(1)
        q = s.code(i)
        commit = F.mse_loss(q.detach(), z)
        book = F.mse_loss(q, z.detach())
        q = z + (q - z).detach()
        return s.m(q).square().mean() + book + .25 * commit

class CodesMoving(Two):
    """VQ whose codebook is a moving average: no parameter."""
    own_loss = True
    def more(s): s.register_buffer("embed", randn(5, 4)); s.register_buffer("cluster_size", torch.ones(5)); s.register_buffer("embed_avg", s.embed.clone())
    def forward(s, x):
        z = s.l(x)
        i = (z[:, None] - s.embed).square().sum(-1).argmin(1)
        hot = F.one_hot(i, 5).float()
        q = hot @ s.embed
        if s.training:
            with torch.no_grad():
                s.cluster_size.mul_(.9).add_(hot.sum(0), alpha=.1)
                s.embed_avg.mul_(.9).add_(hot.T @ z, alpha=.1)
                s.embed.copy_(s.embed_avg / (s.cluster_size[:, None] + 1e-3))
        return s.m(z + (q - z).detach()).square().mean() + .25 * F.mse_loss(z, q.detach())

class Centre(Two):
    """DINO: a centre that moves, a sharpened target."""
    own_loss = True
    def more(s): s.register_buffer("centre", torch.zeros(1, 3))
    def forward(s, x):
        y = s.m(torch.tanh(s.l(x)))
        t = F.softmax((y.detach() - s.centre) / .5, -1)
        if s.training:
            s.centre.copy_(s.centre * .9 + y.detach().mean(0, keepdim=True) * .1)
        return -(t * F.log_softmax(y / .9, -1)).sum(-1).mean()

class Gumbel(Two):
    def forward(s, x):
        y = s.l(x).softmax(-1)
        i = y.max(-1, keepdim=True)[1]
        hard = torch.zeros_like(y).scatter_(-1, i, 1.0)
        return s.m(hard - y.detach() + y)

class TopGate(Two):
    """A switch: the chosen expert's probability scales, its load does not train."""
    own_loss = True
    def more(s): s.g = nn.Linear(4, 3)
    def forward(s, x):
        p = s.g(x).softmax(-1)
        top, i = p.max(-1)
        load = F.one_hot(i, 3).float().mean(0)
        y = s.m(torch.tanh(s.l(x))) * top[:, None]
        return y.square().mean() + 3 * (load * p.mean(0)).sum()

class Checkpointed(Two):
    def forward(s, x):
        h = torch.utils.checkpoint.checkpoint(lambda t: torch.tanh(s.l(t)), x, use_reentrant=False)
        return s.m(h + h.detach())


# ---- normalisation ----

def norm(name, make, before=None, channels=4, **k):
    def init(s):
        nn.Module.__init__(s); torch.manual_seed(0); s.c = nn.Conv2d(3, channels, 3); s.n = make(); s.l = nn.Linear(channels, 2)
        for p in s.n.parameters(): nn.init.normal_(p)
    return type(name, (nn.Module,), {"__init__": init, "forward": lambda s, x: s.l(F.relu(s.n(s.c(x))).mean((2, 3))), **k})

class FrozenArithmetic(nn.Module):
    """As torchvision's FrozenBatchNorm2d: four buffers."""
    def __init__(s, n):
        super().__init__()
        for k, v in dict(weight=torch.rand(n) + .5, bias=randn(n), running_mean=randn(n), running_var=torch.rand(n) + .5).items(): s.register_buffer(k, v)
    def forward(s, x):
        w, b, rv, rm = (t.reshape(1, -1, 1, 1) for t in (s.weight, s.bias, s.running_var, s.running_mean))
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)

class OwnNorm(nn.Module):
    """Batch normalisation in plain arithmetic, its statistics moved by hand."""
    def __init__(s, n): super().__init__(); s.g = nn.Parameter(torch.ones(n)); s.b = nn.Parameter(torch.zeros(n)); s.register_buffer("running_mean", torch.zeros(n)); s.register_buffer("running_var", torch.ones(n))
    def forward(s, x):
        m, v = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        if s.training:
            with torch.no_grad():
                s.running_mean.lerp_(m, .1)
                s.running_var.lerp_(v, .1)
        t = lambda a: a[None, :, None, None]
        return (x - t(m)) / t(v + 1e-5).sqrt() * t(s.g) + t(s.b)

class FunctionalNorm(nn.Module):
    def __init__(s, n): super().__init__(); s.g = nn.Parameter(torch.ones(n)); s.register_buffer("m", torch.zeros(n)); s.register_buffer("v", torch.ones(n))
    def forward(s, x): return F.batch_norm(x, s.m, s.v, s.g, None, training=s.training, momentum=.2)

class BatchOnly(nn.Module):
    def __init__(s, n): super().__init__(); s.w = nn.Parameter(torch.rand(n)); s.b = nn.Parameter(torch.rand(n))
    def forward(s, x): return F.batch_norm(x, None, None, s.w, s.b, training=True, eps=1e-3)

class PartEval(nn.Module):
    """A frozen backbone in a model that trains."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.bn = nn.BatchNorm2d(4); s.d = nn.Conv2d(4, 4, 2); s.bn2 = nn.BatchNorm2d(4); s.l = nn.Linear(4, 2)
        s.bn.running_mean.normal_(); s.bn.running_var.uniform_(.5, 1.5)
    def train(s, mode=True): super().train(mode); s.bn.eval(); return s
    def forward(s, x): return s.l(torch.relu(s.bn2(s.d(torch.relu(s.bn(s.c(x)))))).mean((2, 3)))

class Norm1d(Two):
    def more(s): s.n = nn.BatchNorm1d(4, momentum=.5, eps=1e-2)
    def forward(s, x): return s.m(torch.tanh(s.n(s.l(x))))

class NormSequence(Two):
    def more(s): s.n = nn.BatchNorm1d(5)
    def forward(s, x): return s.m(torch.tanh(s.n(s.l(x))))

class LayerNorms(Two):
    def more(s): s.a = nn.LayerNorm(4, bias=False); s.b = nn.LayerNorm(4, elementwise_affine=False, eps=1e-3); s.r = nn.RMSNorm(4); s.q = nn.RMSNorm(4, eps=1e-2)
    def forward(s, x): return s.m(s.q(s.r(s.b(torch.tanh(s.a(s.l(x))) * 2 + x))))

class Dropouts(nn.Module):
    """Those that do nothing: p = 0, training=False; and p = 1, which drops all."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.l = nn.Linear(4, 2)
    def forward(s, x):
        h = F.dropout(s.c(x), .5, training=False)
        h = F.dropout2d(h, 0., training=True) + F.dropout(h, 1., training=True) + F.alpha_dropout(h, .3, training=False) + F.feature_alpha_dropout(h, 0., training=True)
        return s.l(torch.tanh(h).mean((2, 3)))

class EvalDropout(Two):
    def more(s): s.d = nn.Dropout(.5)
    def train(s, mode=True): super().train(mode); s.d.eval(); return s
    def forward(s, x): return s.m(s.d(torch.tanh(s.l(x))))


# ---- losses and functions of h = l(x), x and the model ----

t3 = lambda x: torch.where(x[:, 0] > 0, 2, torch.where(x[:, 1] > 0, 1, 0))
sq = lambda h: h.square().mean()

FUNCTIONS = {
    "CeSmoothIgnore": lambda h, x: F.cross_entropy(h, t3(x), ignore_index=1, label_smoothing=.2, weight=T(1., 2., 3., 4.)),
    "CeSum": lambda h, x: F.cross_entropy(h, t3(x), reduction="sum", label_smoothing=.1) * .1,
    "CeNone": lambda h, x: (F.cross_entropy(h, t3(x), reduction="none", weight=T(1., 2., 3., 4.)) * x[:, 2].abs()).mean(),
    "CeSoftWeighted": lambda h, x: F.cross_entropy(h, F.softmax(x, 1), weight=T(1., 2., 3., 4.), reduction="sum") * .1,
    "CeMap": lambda h, x: F.cross_entropy(h.view(2, 4, 3), torch.where(x[:, 0] > 0, 2, -100).view(2, 3)),
    "Nll2d": lambda h, x: F.nll_loss(F.log_softmax(h.view(2, 4, 3, 1), 1), t3(x).view(2, 3, 1), ignore_index=0, reduction="sum") * .2,
    "Gaussian": lambda h, x: F.gaussian_nll_loss(h[:, :2], x[:, :2], F.softplus(h[:, 2:]), full=True, eps=1e-3),
    "GaussianBound": lambda h, x: F.gaussian_nll_loss(h[:, :2], x[:, :2], F.relu(h[:, 2:]), eps=.2),
    "TripletSwap": lambda h, x: F.triplet_margin_loss(h, x, h.roll(1, 0), swap=True, margin=.5, p=1.),
    "MultiLabelMargin": lambda h, x: F.multilabel_margin_loss(h, torch.tensor([[0, 2, -1, 1]] * 6)),
    "MarginWeighted": lambda h, x: F.multi_margin_loss(h, t3(x), p=2, margin=.5, weight=T(1., 2., 3., 4.)),
    "KlMean": lambda h, x: F.kl_div(F.log_softmax(h, 1), F.softmax(x, 1), reduction="mean") * 9,
    "PoissonProb": lambda h, x: F.poisson_nll_loss(F.softplus(h), x.abs(), log_input=False, eps=1e-3),
    "L1Zero": lambda h, x: F.l1_loss(F.relu(h), torch.zeros(6, 4), reduction="sum") * .1,
    "SmoothZero": lambda h, x: F.smooth_l1_loss(h, x, beta=0.) + F.huber_loss(h, x, delta=2., reduction="sum") * .1,
    "CosineMargin": lambda h, x: F.cosine_embedding_loss(h, x, T(1, -1, 1, -1, 1, -1), margin=.2),
    "Ctc": lambda h, x: F.ctc_loss(F.log_softmax(h.view(6, 1, 4), -1), torch.tensor([[1, 2, 2]]), torch.tensor([6]), torch.tensor([3])),
    "AvgPool": lambda h, x: sq(F.avg_pool1d(h[None], 3, 2, 1, count_include_pad=False)) + sq(F.avg_pool2d(h[None], 2, 1, 1, ceil_mode=True, divisor_override=5)),
    "AdaptivePool": lambda h, x: sq(F.adaptive_avg_pool2d(h[None], (4, 3))) + sq(F.adaptive_max_pool2d(h[None], (2, 3))),
    "LpPool": lambda h, x: sq(F.lp_pool2d(F.relu(h)[None], 2., 2)),
    "MaxTies": lambda h, x: F.max_pool1d(F.relu(h)[None], 2).sum() + F.relu(h).max() + sq(h),
    "Median": lambda h, x: F.relu(h).median(1)[0].sum() + h.kthvalue(2, 1)[0].sum(),
    "MaxAll": lambda h, x: F.relu(h - 9).max() + F.relu(h - 9).amax((0, 1)) + F.relu(h - 9).min() + sq(h),
    "MaxPair": lambda h, x: torch.max(h, h.clone()).sum() + torch.min(F.relu(h), F.relu(h) * 1.).sum(),
    "CumProd": lambda h, x: F.relu(h).cumprod(1).sum() + h.cumsum(0).square().mean(),
    "CumMax": lambda h, x: F.relu(h).cummax(1)[0].sum() + sq(h),
    "LogSum": lambda h, x: torch.logsumexp(h, 1).sum() + torch.logaddexp(h, x).sum() + h.logcumsumexp(1).sum() * .1,
    "Remainder": lambda h, x: (torch.remainder(h, x) * .3 + torch.fmod(h, .5) + h % 1.).sum() * .1 + torch.frac(h).sum() * .1,
    "Floors": lambda h, x: (h - h.floor() + torch.div(h, .5, rounding_mode="trunc") + h.trunc() + h.ceil()).square().mean(),
    "Lerp": lambda h, x: sq(torch.lerp(h, x, torch.sigmoid(h))) + sq(torch.lerp(h, x, .3)),
    "Hypot": lambda h, x: torch.hypot(F.relu(h), F.relu(h)).sum() + sq(h),
    "Copysign": lambda h, x: (torch.copysign(h, x) * x).sum() * .1 + sq(h),
    "NanToNum": lambda h, x: torch.nan_to_num(h / h.relu(), 0., 1., -1.).sum() * .1 + sq(h),
    "MaskedMean": lambda h, x: (h * (x > 0)).sum() / (x > 0).sum().clamp(min=1) + torch.where(x > 9, h.log(), h).mean(),
    "Cdist": lambda h, x: torch.cdist(h, h).sum() * .1 + sq(h),
    "CdistOne": lambda h, x: torch.cdist(h, x, p=1.).sum() * .01 + F.pairwise_distance(h, h.clone()).sum() + sq(h),
    "NormZero": lambda h, x: (h * 0).norm() + torch.linalg.norm(h * 0, dim=1).sum() + sq(h),
    "NormKeep": lambda h, x: sq(h / h.norm(dim=-1, keepdim=True).clamp(min=1.2)) + (h / (h.norm(p=1, dim=0) + 1)).square().mean(),
    "RootZero": lambda h, x: torch.sqrt(F.relu(h) + 1e-8).sum() * .01 + (F.relu(h) + 1e-3).rsqrt().mean() * .01,
    "PowNegative": lambda h, x: (h.abs() + .5).pow(-1.5).mean() + h.pow(3).mean() + (h * 0 + 2.).pow(h).mean() + 2. ** h.mean(),
    "PowTensor": lambda h, x: torch.pow(F.relu(h), torch.tensor([1., 2., 1.5, 3.])).mean() + torch.float_power(h, 2).mean().float(),
    "ClampSwap": lambda h, x: h.clamp(.5, -.5).sum() + h.clamp(min=0).clamp(max=0).sum() + sq(h),
    "ClampOnce": lambda h, x: h.clamp(-.3, .3).sum() + sq(h) + torch.clip(F.relu(h), 0, .5).sum() * .3,
    "ClampTwice": lambda h, x: (h.clamp(-.3, .3) * h.clamp(-.3, .3).detach()).sum() + sq(h),
    "VarOne": lambda h, x: h[:, :2].var(1).sum() + h.std((0, 1)) + h[None].var(0, correction=0).sum() + sq(h),
    "Quantile": lambda h, x: h.quantile(.3, dim=1).sum() + sq(h),
    "RenormSum": lambda h, x: h.renorm(2, 0, .5).sum() + sq(h),
    "Softmin": lambda h, x: (F.softmin(h, 1) * x).sum() + sq(h) + F.glu(h, 1).sum() * .1 + F.threshold(h, .1, -2.).mean(),
    "Shrink": lambda h, x: sq(F.hardshrink(h, .2)) + sq(F.softshrink(h, .1)) + F.hardtanh(F.relu(h), 0., .4).sum() * .1 + F.relu6(h * 20).mean() * .1,
    "RreluEval": lambda h, x: F.rrelu(h, training=False).sum() * .1 + F.prelu(h, T(.2)).sum() * .1 + sq(h),
    "Gelus": lambda h, x: (F.gelu(h) + F.gelu(h, approximate="tanh")).sum() * .1 + sq(h),
    "Index": lambda h, x: sq(h[T(0, 1, 1, 5)]) + sq(h.gather(1, t3(x)[:, None])) + sq(torch.index_select(h, 1, T(0, 0, 3))) + sq(h.take(T(0, 5, 5))),
    "ScatterAdd": lambda h, x: sq(torch.zeros(3, 4).scatter_add(0, torch.tensor([[0, 1, 0, 2, 1, 0]]).T.expand(6, 4), h)),
    "ScatterTwice": lambda h, x: sq(torch.zeros(3, 4).scatter(0, torch.tensor([[0, 1, 2, 2]]), h[:1]) + h[:3]),
    "MaskedScatter": lambda h, x: sq(h.masked_fill(x > 0, .3)) + sq(torch.where(x > 0, h, T(.1, .2, .3, .4))) + (h * F.one_hot(t3(x), 4)).sum() * .1,
    "InPlace": lambda h, x: sq(h.clone().mul_(2).add_(x).clamp_(min=0)),
    "Assign": lambda h, x: sq(torch.cat([h[:, :1] * 0, h[:, 1:]], 1).index_fill(1, T(2), .5)),
    "Matrices": lambda h, x: torch.linalg.det(h[:4] + 3 * torch.eye(4)) * .01 + torch.trace(h[:4]) + (h[:4] @ h[:4].T).tril().mean() + torch.diagonal(h).sum() * .1,
    "Inverse": lambda h, x: torch.linalg.inv(h[:4] + 3 * torch.eye(4)).sum() + torch.linalg.solve(h[:4] + 3 * torch.eye(4), x[:4]).sum(),
    "Interpolate": lambda h, x: sq(F.interpolate(h[None, None], scale_factor=2, mode="bilinear", align_corners=False)) + sq(F.interpolate(h[None], size=7, mode="linear", align_corners=True)) + sq(F.interpolate(h[None, None], size=(3, 3), mode="nearest")),
    "GridSample": lambda h, x: sq(F.grid_sample(h[None, None], x[None, None, :, :2] * .5, align_corners=False)),
    "Unfold": lambda h, x: sq(F.unfold(h[None, None], 2)) + sq(h.unfold(0, 3, 2)) + sq(F.pad(h, (1, 1), value=.3)) + sq(F.pad(h[None], (1, 1), mode="reflect")),
    "Roll": lambda h, x: sq(h.roll(1, 1) * h.flip(0)) + sq(torch.rot90(h) * 2) + sq(h.repeat_interleave(2, 0)) + sq(h.tile(2, 1)),
    "Bilinear": lambda h, x: F.bilinear(h, x, GLOBAL[None].expand(2, 4, 4) * 1.0).square().mean(),
    "Complex": lambda h, x: torch.fft.rfft(h, dim=1).abs().square().mean(),
    "Stft": lambda h, x: sq(torch.view_as_real(torch.fft.fft(h, dim=0))),
}


def of_function(name, f):
    def init(s): nn.Module.__init__(s); torch.manual_seed(0); s.l = nn.Linear(4, 4)
    return type(name, (nn.Module,), {"__init__": init, "forward": lambda s, x: f(s.l(x), x), "own_loss": True})


def kinds():
    x4 = (lambda r: [torch.tensor(r.randn(6, 4), dtype=torch.float32)])
    image = (lambda r: [torch.tensor(r.rand(4, 3, 6, 6), dtype=torch.float32)])
    sequence = (lambda r: [torch.tensor(r.randn(3, 5, 4), dtype=torch.float32)])
    ids = (lambda r: [torch.tensor(r.randint(0, 7, (3, 5)))])
    return ([(m, x4) for m in (PlainRow, PlainMatrix, GlobalMatrix, BufferMatrix, BufferNamedWeight, BufferHidden, ListMatrix, ListWeights, Cosines, Triangle, FromNumpy, Lazy,
                               Doubles, ScalarBuffer, FourierFeatures, RopeCached, Bins, ClassWeights, PosWeights, Temperature, Thresholds, NamedLikeBuffers, InputNormalised, InTuple,
                               InNested, InObject, Lists, Constants, EqualParts, LayerScale, Unused, LazyLayers, FrozenBias, TiedAcross, TiedDecoder, TiedModule, TiedMasked, Lora, Mixture, Hyper,
                               OldWeightNorm, Spectral, OldSpectral, Parametrized, Pruned,
                               TargetClone, CloneDetach, TargetOwnName, Data, DetachedWeight, GradDisabled, GradNested, Decorated, NoGradNoParams, Teacher, ByolDetach, SameTwice,
                               SameBranch, SameInBlock, SameSoftmax, MaxShift, DetachView, DetachSame, DetachThenSame, DetachInputs, DetachCat, DetachPart, DetachLoop, DetachAgain, Focal,
                               Advantage, Balanced, SteClamp, SteSign, SteNoGrad, SteFunction, Reversal, Scaled, Codes, CodesMoving, Centre, Gumbel, TopGate, Checkpointed,
                               Norm1d, LayerNorms, EvalDropout)] +
            [(m, image) for m in (Sobel, SobelInside, Gray, Standardised, Anchors, FrozenNorm, TiedConv, Standardisation, PartEval, Dropouts,
                                  norm("NormFrozenArithmetic", lambda: FrozenArithmetic(4)), norm("NormOwn", lambda: OwnNorm(4)), norm("NormFunctional", lambda: FunctionalNorm(4)),
                                  norm("NormBatchOnly", lambda: BatchOnly(4)), norm("NormCumulative", lambda: nn.BatchNorm2d(4, momentum=None)), norm("NormMomentumOne", lambda: nn.BatchNorm2d(4, momentum=1.)),
                                  norm("NormMomentumNone", lambda: nn.BatchNorm2d(4, momentum=0.)), norm("NormPlain", lambda: nn.BatchNorm2d(4, affine=False)),
                                  norm("NormPlainUntracked", lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False)), norm("NormInstance", lambda: nn.InstanceNorm2d(4)),
                                  norm("NormInstanceAffine", lambda: nn.InstanceNorm2d(4, affine=True, eps=1e-2)), norm("NormInstanceStats", lambda: nn.InstanceNorm2d(4, track_running_stats=True)),
                                  norm("NormGroupPlain", lambda: nn.GroupNorm(2, 4, affine=False)), norm("NormGroupOne", lambda: nn.GroupNorm(4, 4)), norm("NormLocal", lambda: nn.LocalResponseNorm(2)),
                                  norm("NormLayerMap", lambda: nn.LayerNorm((4, 4, 4))), norm("NormWide", lambda: nn.BatchNorm2d(4, eps=.5)))] +
            [(m, sequence) for m in (PositionTable, RelativeBias, Alibi, NormSequence)] +
            [(m, ids) for m in (Pretrained, TiedHead)] +
            [(of_function(k, f), x4) for k, f in FUNCTIONS.items()])
