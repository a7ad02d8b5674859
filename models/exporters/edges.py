# SPDX-License-Identifier: Apache-2.0
"""Small PyTorch models for exporters.py, each with something that an exporter takes apart or loses: quantisation,
queries that see no key, losses of probabilities, norms of zeros, ties, statistics.  edges() lists them with their data;
`own_loss` says that the model returns its loss."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Two(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3); s.more()
    def more(s): pass


# ---- quantisation ----

class QuantTensor(Two):
    def more(s): s.register_buffer("scale", torch.tensor([.01])); s.register_buffer("zero", torch.zeros(1, dtype=torch.int32))
    def forward(s, x): return s.m(F.relu(F.linear(x, torch.fake_quantize_per_tensor_affine(s.l.weight, s.scale, s.zero, -128, 127), s.l.bias)))

class QuantChannel(Two):
    axis = 0
    def more(s): s.register_buffer("scale", torch.full((4,), .003)); s.register_buffer("zero", torch.zeros(4, dtype=torch.int32))
    def forward(s, x): return s.m(torch.tanh(F.linear(x, torch.fake_quantize_per_channel_affine(s.l.weight, s.scale, s.zero, s.axis, -128, 127), s.l.bias)))

class QuantColumn(QuantChannel): axis = 1

class QuantNarrow(Two):
    def forward(s, x): return s.m(torch.fake_quantize_per_tensor_affine(s.l(x), .02, 0, 0, 127))

class QuantShifted(Two):
    def forward(s, x): return s.m(torch.fake_quantize_per_tensor_affine(s.l(x), .02, 100, 0, 255))

class QuantConv(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, padding=1); s.bn = nn.BatchNorm2d(4); s.l = nn.Linear(4, 2)
        s.register_buffer("scale", torch.rand(4) * .01 + .001); s.register_buffer("zero", torch.zeros(4, dtype=torch.int32))
    def forward(s, x):
        w = torch.fake_quantize_per_channel_affine(s.c.weight, s.scale, s.zero, 0, -128, 127)
        return s.l(F.relu(s.bn(F.conv2d(x, w, s.c.bias, padding=1))).mean((2, 3)))


# ---- transposed convolution ----

def transposed(name, *a, kind=nn.ConvTranspose2d, channels=(2, 3), **k):
    def init(s): nn.Module.__init__(s); torch.manual_seed(0); s.c = kind(*channels, *a, **k)
    return type(name, (nn.Module,), {"__init__": init, "forward": lambda s, x: s.c(x)})


# ---- attention ----

class Attend(nn.Module):
    options_of = {}
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.q = nn.Linear(4, 12); s.o = nn.Linear(4, 2)
        seen = torch.ones(5, 5).tril().bool(); seen[0] = False; seen[3] = False
        s.register_buffer("mask", s.mask_of(seen))
    def mask_of(s, seen): return seen
    def forward(s, x):
        q, k, v = (t.view(3, 5, 2, 2).transpose(1, 2) for t in s.q(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=s.mask, **s.options_of)
        return s.o(y.transpose(1, 2).reshape(3, 5, 4))

class AttendAdded(Attend):
    def mask_of(s, seen): return torch.zeros(5, 5).masked_fill(~seen, -torch.inf)

class AttendScaled(Attend): options_of = {"scale": 0.3}

class AttendInput(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.q = nn.Linear(4, 12); s.o = nn.Linear(4, 2)
    def forward(s, x):
        q, k, v = (t.view(3, 5, 2, 2).transpose(1, 2) for t in s.q(x).chunk(3, -1))
        seen = (x[:, None, :, :1] > 0) & (x[:, None, :, 0][:, :, None] > 0)
        return s.o(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(3, 5, 4))

class MultiHead(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.a = nn.MultiheadAttention(4, 2, batch_first=True); s.o = nn.Linear(4, 2)
        hidden = ~torch.ones(5, 5).tril().bool(); hidden[2] = True; s.register_buffer("mask", hidden)
    def forward(s, x): return s.o(s.a(x, x, x, attn_mask=s.mask, need_weights=False)[0])


class CrossAttend(nn.Module):
    """Two attentions with equal biases, one of them split where it is read."""
    def __init__(s):
        super().__init__(); torch.manual_seed(0)
        s.t = nn.TransformerDecoderLayer(4, 2, 8, dropout=0., batch_first=True, norm_first=True); s.o = nn.Linear(4, 2)
    def forward(s, x): return s.o(s.t(x, x[:, :3]).mean(1))


# ---- stops ----

class Siamese(Two):
    """cosine_similarity copies its norms on the line of detach()."""
    own_loss = True
    def forward(s, x):
        a, b = s.l(x), s.l(x.flip(1))
        return -(F.cosine_similarity(s.m(a), b.detach()[:, :3]).mean() + F.cosine_similarity(s.m(b), a.detach()[:, :3]).mean()) / 2

class HardChoice(Two):
    def forward(s, x):
        y = torch.softmax(s.l(x), -1); hard = F.one_hot(y.argmax(-1), 4).float()
        return s.m(hard - y.detach() + y)

class Reversed(Two):
    def forward(s, x): h = s.l(x); return s.m(2 * h.detach() - h)

class Binary(Two):
    def forward(s, x):
        w = s.l.weight; b = w.sign() * w.abs().mean()
        return s.m(torch.tanh(F.linear(x, w + (b - w).detach(), s.l.bias)))

class Equilibrium(Two):
    def forward(s, x):
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(5): z = torch.tanh(s.l(z) + x)
        return s.m(torch.tanh(s.l(z) + x))


# ---- normalisation, embeddings ----

def normalised(name, norm, options=()):
    def init(s):
        nn.Module.__init__(s); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.n = norm(); s.l = nn.Linear(4, 2)
    return type(name, (nn.Module,), {"__init__": init, "options": list(options), "forward": lambda s, x: s.l(F.relu(s.n(s.c(x))).mean((2, 3)))})

class NormTwice(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 3, 3, padding=1); s.n = nn.BatchNorm2d(3); s.l = nn.Linear(3, 2)
    def forward(s, x): return s.l(F.relu(s.n(s.c(s.n(x)))).mean((2, 3)))

class WeightNorm(Two):
    def more(s): s.l = torch.nn.utils.parametrizations.weight_norm(s.l)
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Padded(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e = nn.Embedding(7, 4, padding_idx=0); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(s.e(i).sum(1))

class Bag(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e = nn.EmbeddingBag(7, 4, mode="mean"); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(s.e(i))

class Average(Two):
    def more(s): s.register_buffer("ema", torch.zeros(4))
    def forward(s, x):
        h = s.l(x)
        if s.training:
            with torch.no_grad(): s.ema.mul_(.9).add_(h.mean(0), alpha=.1)
        return s.m(h - s.ema)

class Collected(Two):
    def more(s):
        s.extra = nn.ParameterDict({"a": nn.Parameter(torch.randn(4)), "b": nn.Parameter(torch.randn(4, 4))})
        s.last = nn.ParameterList([nn.Parameter(torch.ones(4))])
    def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.extra["b"] + s.extra["a"]) * s.last[0])


# ---- losses ----

T = lambda *v: torch.tensor(v)
square = lambda h: h.square().mean()
classes = lambda x: torch.where(x[:, 0] > 0, 1, 2)
positive = lambda x: (x > 0).float()
rows = T(0, 1, 0, 2, 1, 0)

LOSSES = {  # of h = Linear(x) and x
    "BceEnds": lambda h, x: F.binary_cross_entropy(torch.cat([torch.sigmoid(h), h * 0, 1 + 0 * h], 1), torch.full((6, 12), .3)),
    "BceClamped": lambda h, x: F.binary_cross_entropy(torch.clamp(h, 0, 1), positive(x)),
    "BceSaturated": lambda h, x: F.binary_cross_entropy(torch.sigmoid(h * 200), positive(x)),
    "BceWeighted": lambda h, x: F.binary_cross_entropy(torch.sigmoid(h * 50), positive(x), weight=T(.2, .9, .4, .6), reduction="sum"),
    "BceEach": lambda h, x: F.binary_cross_entropy(F.hardsigmoid(h * 3), positive(x), reduction="none").mean(),
    "BceLogits": lambda h, x: F.binary_cross_entropy_with_logits(h * 50, positive(x), pos_weight=T(1., 2., 3., 4.)),
    "CeSmoothed": lambda h, x: F.cross_entropy(h, classes(x), weight=T(1., 3., 2., 1.), label_smoothing=.2),
    "CeIgnored": lambda h, x: F.cross_entropy(h, classes(x), ignore_index=2, reduction="sum"),
    "CeSoft": lambda h, x: F.cross_entropy(h, F.softmax(x, 1), label_smoothing=.1),
    "NllWeighted": lambda h, x: F.nll_loss(F.log_softmax(h, 1), classes(x), weight=T(1., 3., 2., 1.)),
    "KlZeros": lambda h, x: F.kl_div(F.log_softmax(h, 1), F.softmax(x, 1) * (x > 0), reduction="batchmean"),
    "KlLogs": lambda h, x: F.kl_div(F.log_softmax(h, 1), F.log_softmax(x, 1), log_target=True, reduction="batchmean"),
    "SmoothL1": lambda h, x: F.smooth_l1_loss(h, x, beta=.3),
    "Huber": lambda h, x: F.huber_loss(h, x, delta=.3),
    "Poisson": lambda h, x: F.poisson_nll_loss(h, x.abs(), full=True),
    "MultiMargin": lambda h, x: F.multi_margin_loss(h, classes(x)),
    "MultiLabel": lambda h, x: F.multilabel_soft_margin_loss(h, positive(x)),
    "Hinge": lambda h, x: F.hinge_embedding_loss(h, torch.where(x > 0, 1., -1.)),
    "Ranking": lambda h, x: F.margin_ranking_loss(h[:, 0], h[:, 1], torch.sign(x[:, 0])),
    "SoftMargin": lambda h, x: F.soft_margin_loss(h, torch.sign(x)),
    "Norm1": lambda h, x: torch.linalg.vector_norm(F.relu(h - 5), ord=1, dim=1).sum() + square(h),
    "Norm2": lambda h, x: F.relu(h - 5).norm(dim=1).sum() + square(h),
    "Norm3": lambda h, x: torch.norm(F.relu(h) * 0, p=3, dim=1).mean() + square(h),
    "Norm3Rows": lambda h, x: torch.linalg.vector_norm(F.relu(h) - F.relu(h).detach(), ord=3, dim=1).sum() + h.mean(),
    "NormHalf": lambda h, x: F.relu(h - 5).norm(p=.5, dim=1).sum() + square(h),
    "NormMost": lambda h, x: torch.linalg.vector_norm(F.relu(h - 5), ord=float("inf"), dim=1).sum() + square(h),
    "Frobenius": lambda h, x: torch.linalg.matrix_norm(F.relu(h - 9)) + square(h),
    "UnitRows": lambda h, x: (F.normalize(F.relu(h - .6), dim=1) * x).sum() + square(h),
    "Sinc": lambda h, x: torch.sinc(F.relu(h - .2)).sum() + square(h),
    "StdMean": lambda h, x: sum(t.sum() for t in torch.std_mean(F.relu(h - .7), dim=1)) + square(h),
    "VarMean": lambda h, x: sum(t.sum() for t in torch.var_mean(F.relu(h - .7), dim=1, correction=0)) + square(h),
    "StdRows": lambda h, x: F.relu(h - 5).std(0).sum() + square(h),
    "Cosine": lambda h, x: F.cosine_similarity(F.relu(h - .5), x, dim=1).sum() + square(h),
    "CosinePairs": lambda h, x: F.cosine_embedding_loss(F.relu(h - .5), x, T(1., -1, 1, -1, 1, -1)) + square(h),
    "Triplet": lambda h, x: F.triplet_margin_loss(F.relu(h - .5), F.relu(h - .5), h.roll(1, 0)) + square(h),
    "RmsNoWeight": lambda h, x: (F.rms_norm(h, (4,)) * x).mean() * 5,
    "LayerNoWeight": lambda h, x: (F.layer_norm(h, (4,)) * x).mean() * 5,
    "Angle": lambda h, x: torch.atan2(F.relu(h - .5), F.relu(x - .2)).sum() + square(h),
    "XLogX": lambda h, x: torch.xlogy(F.relu(h), F.relu(h)).sum() + square(h),
    "HiddenScores": lambda h, x: (torch.softmax(h.masked_fill(x > 2, -1e9), 1) * x).sum() + square(h),
    "Divisor": lambda h, x: F.avg_pool2d(h[None, None], 2, divisor_override=3).square().sum(),
    "ScatterMost": lambda h, x: torch.zeros(3, 4).scatter_reduce(0, rows[:, None].expand(6, 4), h, "amax", include_self=False).square().sum(),
    "ScatterProduct": lambda h, x: torch.ones(3, 4).scatter_reduce(0, rows[:, None].expand(6, 4), h, "prod").square().sum(),
    "IndexAdd": lambda h, x: torch.zeros(3, 4).index_add(0, rows, h).square().sum() * .1,
    "IndexPut": lambda h, x: torch.zeros(3, 4).index_put((rows,), h, accumulate=True).square().sum() * .1,
    "ClampTensors": lambda h, x: torch.clamp(F.relu(h), T(0., 0., .1, .1), T(.5, .5, .5, .5)).sum() + square(h),
    "MaxOfRow": lambda h, x: F.relu(h - .1).max(1)[0].sum() + F.relu(h).amin(0).sum(),
    "MaxOfTwo": lambda h, x: torch.maximum(F.relu(h), F.relu(-h) * 0).sum() + square(h),
    "TopTwo": lambda h, x: F.relu(h).topk(2, 1)[0].sum() + square(h),
    "Sorted": lambda h, x: (F.relu(h).sort(1)[0] * T(1., 2., 3., 4.)).sum() + square(h),
    "Product": lambda h, x: F.relu(h).prod(1).sum() + square(h),
    "PowerZero": lambda h, x: F.relu(h).pow(1.5).sum() + F.relu(h).pow(0).sum() + square(h),
    "PowerOfTwo": lambda h, x: torch.pow(F.relu(h) + 1, h).sum() * .1,
    "RootOrNone": lambda h, x: torch.where(h > 0, torch.sqrt(h.clamp(min=1e-6)), h * 0).sum() + square(h),
    "Kinks": lambda h, x: sum(f(F.relu(h)).sum() for f in (F.elu, F.celu, F.selu, F.leaky_relu, F.relu6, F.hardswish, F.hardshrink, F.softshrink)) * .1,
    "Smooth": lambda h, x: (F.mish(h * 40) + F.softplus(h * 30) + F.silu(h * 100) + F.logsigmoid(h * 100) + F.tanhshrink(h)).sum() * .01,
    "Dropped": lambda h, x: F.dropout(h, 0.).sum() + square(F.alpha_dropout(h, 0.)),
}


def own_loss(name, f):
    def init(s): nn.Module.__init__(s); torch.manual_seed(0); s.l = nn.Linear(4, 4)
    return type(name, (nn.Module,), {"__init__": init, "forward": lambda s, x: f(s.l(x), x), "own_loss": True})


def edges():
    x4 = (lambda r: [torch.tensor(r.randn(6, 4), dtype=torch.float32)])
    image = (lambda r: [torch.tensor(r.rand(4, 3, 6, 6), dtype=torch.float32)])
    map2 = (lambda r: [torch.tensor(r.randn(2, 2, 5, 4), dtype=torch.float32)])
    signal = (lambda r: [torch.tensor(r.randn(2, 4, 5), dtype=torch.float32)])
    sequence = (lambda r: [torch.tensor(r.randn(3, 5, 4), dtype=torch.float32)])
    ids = (lambda r: [torch.tensor(r.randint(0, 7, (3, 5)))])
    return ([(m, x4) for m in (QuantTensor, QuantChannel, QuantColumn, QuantNarrow, QuantShifted, WeightNorm, Average, Collected, Siamese, HardChoice, Reversed, Binary, Equilibrium)] +
            [(QuantConv, image), (NormTwice, image), (Padded, ids), (Bag, ids)] +
            [(transposed("TransposedWide", 2, padding=3, output_padding=1, dilation=2), map2),
             (transposed("TransposedStride", 3, stride=2, padding=1, output_padding=1), map2),
             (transposed("TransposedBare", 2, output_padding=2, dilation=3), map2),
             (transposed("TransposedUneven", 3, stride=2, padding=1, output_padding=(1, 3), dilation=4), map2),
             (transposed("TransposedNoBias", 3, stride=2, output_padding=2, dilation=3, bias=False), map2),
             (transposed("TransposedGroups", 3, stride=2, padding=1, output_padding=2, dilation=3, groups=2, kind=nn.ConvTranspose1d, channels=(4, 6)), signal)] +
            [(m, sequence) for m in (Attend, AttendAdded, AttendScaled, AttendInput, MultiHead, CrossAttend)] +
            [(normalised("InstanceRunning", lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=.3)), image),
             *((normalised(f"{kind}{name}", lambda layer=layer, momentum=momentum: layer(4, affine=True, track_running_stats=True, momentum=momentum), options), image)
               for kind, layer in (("NormBatch", nn.BatchNorm2d), ("NormOfInstance", nn.InstanceNorm2d))
               for name, momentum, options in (("None", None, ["--batchnorm", "train:cumulative"]), ("Zero", 0., ["--batchnorm", "train:momentum"]), ("One", 1., ["--batchnorm", "train:momentum"]))),
             (normalised("NormUntracked", lambda: nn.BatchNorm2d(4, track_running_stats=False)), image),
             (normalised("GroupNorm", lambda: nn.GroupNorm(2, 4)), image)] +
            [(own_loss(k, f), x4) for k, f in LOSSES.items()])
