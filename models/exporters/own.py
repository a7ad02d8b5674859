# SPDX-License-Identifier: Apache-2.0
"""Models for exporters.py that torch.onnx.export loses something of, or has no
translation for: what ampc.torch.export keeps."""


def kept():
    import torch, torch.nn as nn, torch.nn.functional as F

    class Base(nn.Module):
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 3)

    class Surrogate(torch.autograd.Function):
        """A spike, with the gradient of a fast sigmoid."""
        @staticmethod
        def forward(ctx, x, slope):
            ctx.save_for_backward(x); ctx.slope = slope
            return (x > 0).float()
        @staticmethod
        def backward(ctx, dy):
            x, = ctx.saved_tensors
            return dy / (1 + ctx.slope * x.abs()) ** 2, None

    class Mixed(torch.autograd.Function):
        """Two inputs and results; a gradient that is no derivative."""
        @staticmethod
        def forward(a, b): return a @ b, a.sum(1)
        @staticmethod
        def setup_context(ctx, inputs, output): ctx.save_for_backward(*inputs)
        @staticmethod
        def backward(ctx, dy, dz):
            a, b = ctx.saved_tensors
            return 2 * (dy @ b.t()) - dz[:, None] * a, -0.5 * (a.t() @ dy)

    spike = Surrogate.apply

    class Spiking(Base):
        def forward(s, x):
            h = s.l(x); v = torch.zeros_like(h); out = 0
            for _ in range(3):
                v = 0.9 * v + h; spike = Surrogate.apply(v - 0.5, 10.0)
                v = v - spike.detach(); out = out + spike
            return s.m(out)

    class SpikingKept(Base):
        """A Function's apply that was kept before: in a variable, and with the module."""
        def __init__(s): super().__init__(); s.mix = Mixed.apply
        def forward(s, x):
            y, z = s.mix(spike(s.l(x), 10.0) + x, s.l.weight)
            return s.m(torch.tanh(y)) * z[:, None]

    class TwoResults(Base):
        def forward(s, x):
            y, z = Mixed.apply(s.l(x), s.l.weight)
            return s.m(torch.tanh(y)) * z[:, None]

    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return torch.sign(x)
        @staticmethod
        def backward(ctx, dy): return dy

    class Binarised(Base):
        def forward(s, x): return F.linear(torch.tanh(s.l(x)), Straight.apply(s.m.weight), s.m.bias)

    class Modes(nn.Module):
        """One normalisation is frozen, one trains."""
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.a = nn.BatchNorm1d(4); s.b = nn.BatchNorm1d(4); s.l = nn.Linear(4, 3)
            s.a.running_mean.uniform_(); s.a.running_var.uniform_(.5, 1)
        def modes(s): s.a.eval()
        def forward(s, x): return s.l(s.b(torch.tanh(s.a(x))))

    class AllFrozen(Modes):
        def modes(s): s.a.eval(); s.b.eval()

    class Averaged(Base):
        """Running statistics: means over all batches, those held, and none."""
        def __init__(s):
            super().__init__()
            s.a = nn.BatchNorm1d(4, momentum=None); s.b = nn.BatchNorm1d(4, momentum=0.); s.c = nn.BatchNorm1d(4, track_running_stats=False)
            for _ in range(3): s.a(torch.randn(6, 4))
        def forward(s, x): return s.m(s.c(torch.tanh(s.b(torch.tanh(s.a(s.l(x)))))))

    class FrozenPart(Base):
        def __init__(s):
            super().__init__(); s.d = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4), requires_grad=False)]
            s.l.bias.requires_grad_(False)
        def named(s): return [("lifted_tensor_0", "d.0", s.d[0]), ("lifted_tensor_1", "d.1", s.d[1])]
        def forward(s, x): return s.m(torch.tanh(s.l(x) @ s.d[0] + s.d[1]))

    class NoGradPlain(Base):
        def forward(s, x):
            h = torch.tanh(s.l(x))
            with torch.no_grad(): scale = h.abs().amax(1, keepdim=True) + h * h
            return s.m(h / (1 + scale))

    class Gammas(Base):
        def forward(s, x):
            h = s.l(x)
            return s.m(torch.lgamma(h.abs() + .3) + torch.digamma(2 * torch.sigmoid(h) + .5) + torch.lgamma(-.3 - .4 * torch.sigmoid(h)))

    class Erfinv(Base):
        def forward(s, x): return s.m(torch.erfinv(0.99 * torch.tanh(s.l(x))))

    class Running(Base):
        def forward(s, x):
            h = 1 + .1 * torch.tanh(s.l(x))
            return s.m(torch.cumprod(h, 1) + torch.logcumsumexp(h, 1) + h.prod(1, keepdim=True))

    class Ranked(Base):
        def forward(s, x):
            h = s.l(x)
            return s.m(h * h.median(1, keepdim=True)[0] + h.kthvalue(2, 1, keepdim=True)[0]) + h.median()

    class Distances(Base):
        def __init__(s): super().__init__(); del s.m; s.c = nn.Parameter(torch.randn(3, 4))
        def forward(s, x): return torch.cdist(s.l(x), s.c) + torch.cdist(s.l(x), s.c, p=1.0) + torch.cdist(s.l(x), s.c, p=3.0)

    class TimesTwo(Base):
        """A parameter beside an integer."""
        def forward(s, x): return F.linear(torch.tanh(F.hardshrink(s.l(x), 0.1)), s.m.weight * 2, s.m.bias)

    class Renorm(Base):
        def forward(s, x): return s.m(torch.renorm(s.l(x), 2, 0, 0.7))

    class ScatterMean(Base):
        def forward(s, x):
            i = torch.tensor([0, 2, 2, 1, 0, 2])[:, None].expand(6, 4)
            h = torch.tanh(s.l(x)); z = torch.zeros(4, 4)
            return s.m(z.scatter_reduce(0, i, h, "mean") + (z + 1).scatter_reduce(0, i, h * h, "mean", include_self=False))

    class Hardtanh(Base):
        def forward(s, x):
            h = s.l(x)
            return s.m(F.hardtanh(h - h.detach() + torch.round(2 * h).detach() / 2, -.5, .5))

    class Smoothed(Base):
        own_loss = True
        def forward(s, x): return F.cross_entropy(s.m(torch.tanh(s.l(x))), torch.tensor([0, 1, 2, 0, 1, 2]), label_smoothing=0.2)

    class Checkpoint(Base):
        def forward(s, x):
            from torch.utils.checkpoint import checkpoint
            return s.m(checkpoint(lambda v: torch.tanh(s.l(v)), x, use_reentrant=False))

    class Buffered(Base):
        """A running mean of its own, which the forward writes."""
        def __init__(s): super().__init__(); s.register_buffer("running_mean", torch.zeros(4))
        def forward(s, x):
            h = s.l(x)
            with torch.no_grad(): s.running_mean.mul_(0.9).add_(0.1 * h.mean(0))
            return s.m(torch.tanh(h - s.running_mean))

    class PickedMean(Base):
        own_loss = True
        def forward(s, x):
            t = torch.tensor([0, 1, 2, 0, 1, 2])
            each = F.cross_entropy(s.m(torch.tanh(s.l(x))), t, reduction="none")
            return each[x[:, 0] > 0.5].mean()

    class PickedRows(Base):
        """Labels and rows of one mask; a second one selects nothing."""
        own_loss = True
        def forward(s, x):
            t, mask = torch.tensor([0, 1, 2, 0, 1, 2]), x[:, 1] > 0
            return F.cross_entropy(s.m(torch.tanh(s.l(x[mask]))), t[mask]) + torch.log(s.l(x)[x[:, 0] > 9]).sum()

    class PickedElements(Base):
        """The divisor is the number of elements that are selected."""
        own_loss = True
        def forward(s, x):
            y = s.m(torch.tanh(s.l(x))); z = y.masked_select(x[:, :1] > 0)
            return z.pow(2).sum() / z.shape[0] + y[y > -9].mean()

    class Pointer(Base):
        """Softmax over the rows that are selected, and their weighted sum."""
        own_loss = True
        def forward(s, x):
            h = torch.tanh(s.l(x))[x[:, 2] > 0]
            return (torch.softmax(h @ s.m.weight[:1].t(), 0).t() @ h).pow(2).sum() + s.m.bias.sum() * 0.1

    class Masked(Base):
        """A mask selects no rows, all, or some."""
        own_loss, kind = True, ""
        def mask(s, x): return x[:, 0] > {"none": 99., "all": -99., "some": 0.}[s.kind]

    class LanguageModel(Masked):
        def __init__(s): super().__init__(); s.n = nn.LayerNorm(4)
        def forward(s, x):
            mask, t = s.mask(x), torch.tensor([0, 1, 2, 0, 1, 2])
            h = s.n(torch.tanh(s.l(x)))[mask]
            return F.cross_entropy(s.m(h), t[mask], reduction="sum") / mask.sum().clamp(min=1)

    class Detector(Masked):
        """Focal loss of anchors that are not ignored, boxes of those with an object."""
        def forward(s, x):
            some, used = s.mask(x), x[:, 1] > -0.7
            h = torch.tanh(s.l(x)); y = s.m(h)
            hot = F.one_hot(torch.tensor([0, 1, 2, 0, 1, 2]), 3).float() * some[:, None].float()
            p, z = y[used], hot[used]
            each = F.binary_cross_entropy_with_logits(p, z, reduction="none")
            sure = torch.exp(-each)
            focal = ((0.25 * z + 0.75 * (1 - z)) * (1 - sure) ** 2 * each).sum()
            box = F.smooth_l1_loss(h[some], x[some] * 0.3, reduction="sum")
            return (focal + box) / some.sum().clamp(min=1)

    class Nodes(Masked):
        """Two graph convolutions; a loss of the nodes that have a label."""
        def forward(s, x):
            a = torch.eye(6) * 0.5 + torch.roll(torch.eye(6), 1, 0) * 0.3 + torch.roll(torch.eye(6), 2, 1) * 0.2
            y, t, mask = a @ s.m(torch.relu(a @ s.l(x))), torch.tensor([2, 1, 0, 0, 1, 2]), s.mask(x)
            return F.nll_loss(torch.log_softmax(y, 1)[mask], t[mask], reduction="sum") / mask.sum().clamp(min=1)

    class PointerNet(Masked):
        def forward(s, x):
            h = torch.tanh(s.l(x)); own = h[s.mask(x)]
            return (torch.softmax(own @ s.m.weight.t(), 0).t() @ own).pow(2).sum() + s.m.bias.sum() * 0.1

    class Assigned(Masked):
        """Rows, elements and columns put where a mask selects, from a mask's own rows, another mask's, by their number."""
        def __init__(s): super().__init__(); s.token = nn.Parameter(torch.tensor([.3, -.2, .1, .5]))
        def forward(s, x):
            mask, h = s.mask(x), torch.tanh(s.l(x)); y = h.clone()
            y[mask] = s.token; y[~mask] = torch.exp(x[~mask] * 0.1) @ s.l.weight
            for k in range(2): y[mask] = y[mask] * (h[mask] + k)
            y[y > 0.4] = 0.4; y[:, torch.tensor([True, False, True, False])] = h[:, :2] * 2
            z = torch.zeros(6, 4).index_put((torch.where(mask)[0],), h[mask], accumulate=True)
            return s.m(y).pow(2).mean() + (z + y.masked_scatter(mask[:, None], h)).pow(2).mean()

    class GradientPastNoGrad(Base):
        """A gradient past factors that no_grad() computes."""
        own_loss = True
        def forward(s, x):
            x = x.clone().requires_grad_(True); h = torch.tanh(s.l(x))
            with torch.no_grad(): scale = h.abs().amax(1, keepdim=True) + s.m(h * h).mean(1, keepdim=True)
            g, = torch.autograd.grad((h * scale).sin().sum(), x, create_graph=True)
            return (s.m(h).square().mean() + g.square().mean()) / 2

    class GradientParts(Base):
        """Operators on the way whose backward is written in others, writes to views, and an input that is not read."""
        own_loss = True
        def __init__(s): super().__init__(); s.a = nn.GRU(4, 4, batch_first=True)
        def forward(s, x):
            x = x.clone().requires_grad_(True); other = torch.ones(3, requires_grad=True); h = s.l(x)
            h = s.a(h.reshape(3, 2, 4))[0].reshape(6, 4); y = h.clone(); y[:, 0] = h[:, 1] * h[:, 2]
            y = torch.lerp(y, h, torch.sigmoid(h)) + torch.cumprod(1 + h, 1)
            g, none = torch.autograd.grad(y.square().sum(), (x, other), create_graph=True, materialize_grads=True)
            return s.m(y).square().mean() + 0.1 * g.square().mean() + none.sum()

    class Written(Masked):
        """Parameters that forward writes to views of what it reads later."""
        kind = "some"
        def __init__(s): super().__init__(); s.p, s.q, s.r, s.k = (nn.Parameter(torch.tensor([.3, -.2, .1, .5]) + i) for i in range(4))
        def forward(s, x):
            y, mask = torch.tanh(s.l(x)).clone(), s.mask(x)
            y[:, 0] = s.p[0]; y[:, 1:3] += s.q[:2]; y[mask, 3] = s.k[0]; y[0] -= s.r
            y.view(-1)[4:8].mul_(s.k)
            return s.m(y).square().mean()

    class Spectrum(Base):
        """What trains before and between complex numbers alone."""
        own_loss = True
        def __init__(s): super().__init__(); s.p, s.q = nn.Parameter(torch.tensor([.3, -.2, .1, .5])), nn.Parameter(torch.tensor([.9, .4, -.7, .2]))
        def forward(s, x):
            z = torch.view_as_complex(s.l(x).reshape(6, 2, 2)) * torch.view_as_complex(s.q.reshape(2, 2))
            h = torch.fft.irfft(torch.fft.rfft(x * s.p), n=4)
            return torch.view_as_real(z).square().mean() + s.m(torch.tanh(h)).square().mean()

    def kinds(c): return [type(c.__name__ + k.title(), (c,), {"kind": k}) for k in ("none", "all", "some")]

    class GaussianProcess(nn.Module):
        """The negative log likelihood, by Cholesky."""
        own_loss = True
        def __init__(s):
            super().__init__(); torch.manual_seed(0)
            s.size = nn.Parameter(torch.zeros(4)); s.gain = nn.Parameter(torch.tensor(0.2)); s.noise = nn.Parameter(torch.tensor(-1.0))
        def forward(s, x):
            y = torch.tensor([[.3], [-1.1], [.8], [.1], [1.4], [-.6]]); z = x * torch.exp(s.size)
            k = torch.exp(s.gain - 0.5 * (z[:, None] - z[None]).pow(2).sum(-1)) + torch.exp(s.noise) * torch.eye(6)
            root = torch.linalg.cholesky(k)
            half = torch.linalg.solve_triangular(root, y, upper=False)
            return (0.5 * (half * half).sum() + torch.log(torch.diagonal(root)).sum() + 0.1 * (y.t() @ torch.cholesky_solve(y, root)).sum()) / 6

    class FourierOperator(Base):
        """A layer of a Fourier neural operator: weights of two modes, and a path beside them."""
        def __init__(s): super().__init__(); s.re = nn.Parameter(torch.randn(2) * .5); s.im = nn.Parameter(torch.randn(2) * .5)
        def forward(s, x):
            h = s.l(x); f = torch.view_as_real(torch.fft.rfft(h, dim=1))[:, :2]; re, im = f[..., 0], f[..., 1]
            f = torch.stack([re * s.re - im * s.im, re * s.im + im * s.re], -1)
            return s.m(F.gelu(h + torch.fft.irfft(torch.view_as_complex(F.pad(f, (0, 0, 0, 1))), n=4, dim=1)))

    class Solved(Base):
        """Solves, inverses, determinants, QR and LU of small matrices."""
        def forward(s, x):
            a = s.l.weight + 2 * torch.eye(4); q, r = torch.linalg.qr(torch.tanh(s.l(x))); p, low, up = torch.linalg.lu(a)
            h = torch.linalg.solve(a, x.t()).t() + q @ r[:, :1] + x @ torch.linalg.inv(a) + torch.linalg.slogdet(a)[1]
            return s.m(torch.tanh(0.3 * h + 0.1 * x @ low @ up.tanh() + 0.1 * x @ torch.linalg.pinv(s.m.weight)[:, :1]))

    class Spelled(Base):
        own_loss = True
        def forward(s, x):
            y = s.m(torch.tanh(s.l(x))).reshape(3, 2, 3).log_softmax(-1)
            return F.ctc_loss(y, torch.tensor([[1, 2], [2, 2]]), torch.tensor([3, 3]), torch.tensor([2, 1]))

    class Special(Base):
        def forward(s, x):
            h = torch.tanh(s.l(x)); q = torch.sigmoid(h)
            return s.m(0.01 * (torch.special.ndtri(q) + torch.special.log_ndtr(4 * h - 6) + torch.special.erfcx(h)
                               + torch.polygamma(1, 1 + q) + torch.polygamma(2, q - 1) + torch.logcumsumexp(h, 1)))

    class Decomposed(Base):
        """Eigenvalues and vectors, whose signs are free; singular values; exp."""
        def forward(s, x):
            a = s.l.weight + torch.diag(torch.tensor([0., 1., 2., 3.])); w, v = torch.linalg.eigh(a + a.t())
            u, d, vh = torch.linalg.svd(x[:5] @ a, full_matrices=False)
            h = s.l(x) * w @ v.abs() + d * (u.abs().sum(0) + vh.abs().sum(1)) @ torch.matrix_exp(0.3 * a)
            return s.m(torch.tanh(0.1 * h))

    class Rare(Base):
        """Operators that torch.onnx has no translation for, or only for some arguments."""
        def forward(s, x):
            h = torch.tanh(s.l(x)); i = torch.tensor([0, 2, 2, 1, 0, 2])
            y = torch.fmax(h, x) + torch.fmin(h * 2, x) + torch.copysign(h, x) + torch.fmod(h, 0.3 + x.abs())
            z = torch.zeros(3, 4).index_add(0, i, h, alpha=0.5) + torch.ones(3, 4).index_reduce(0, i, 1 + h * h, "prod")
            return s.m(torch.tanh(y)) + 0.1 * torch.nansum(z) * F.adaptive_max_pool2d(h[None], (3, 3))[0].mean() + h.nanmedian()

    class BagModes(Base):
        """Sums, means and maxima of bags, one of them empty; gradients divided by how often a row is read."""
        def __init__(s):
            super().__init__(); bag = lambda mode, **k: nn.EmbeddingBag(9, 4, mode=mode, **k)
            s.sum = bag("sum", scale_grad_by_freq=True); s.mean = bag("mean", padding_idx=2); s.max = bag("max")
            s.one = nn.Embedding(9, 4, scale_grad_by_freq=True, padding_idx=1)
        def forward(s, x):
            i = (x.abs() * 3).long().clamp(max=8); flat, at = i.reshape(-1), torch.tensor([0, 5, 5, 9, 13, 20])
            return s.m(torch.tanh(s.l(x) + s.sum(flat, at) + s.max(flat, at) + s.mean(i) + s.one(i).sum(1)))

    class Probable(Base):
        """torch.distributions, which check their arguments."""
        own_loss = True
        def forward(s, x):
            D, h = torch.distributions, s.l(x); mean, spread = h[:, :1], F.softplus(h[:, 1:2]) + .1; t = torch.sigmoid(x[:, :1])
            return -(D.Normal(mean, spread).log_prob(x[:, :1]) + D.Beta(spread, spread + 1).log_prob(t)
                     + D.Categorical(logits=s.m(x)).log_prob((t[:, 0] * 3).long())[:, None]).mean()

    class AttentionRanks(Base):
        """Attention without an axis of heads, and of one head alone; forward(*inputs)."""
        def forward(s, *inputs):
            x, = inputs; h = s.l(x); a = F.scaled_dot_product_attention
            pair = torch.stack([x, h], 1); three = a(h[:, None], pair, pair, attn_mask=x[:, None, :2])
            return s.m(torch.tanh(three[:, 0] + a(h, x, h, is_causal=True)))

    class Equation(Base):
        """A residual of a differential equation: torch.autograd.grad twice, of all samples and of one result."""
        own_loss = True
        def forward(s, x):
            x = x.clone().requires_grad_(True); y = s.m(torch.tanh(s.l(x))); ones = torch.ones_like(y[:, 0])
            d, = torch.autograd.grad(y[:, 0], x, ones, create_graph=True)
            dd, = torch.autograd.grad(d[:, 1], (x,), ones, create_graph=True)
            return (dd[:, 1] + y[:, 1] * d[:, 0] - y[:, 2]).square().mean() + y.square().mean()

    class Critic(Base):
        """The gradient penalty of a critic with convolutions and norms."""
        own_loss = True
        def __init__(s):
            super().__init__(); s.c = nn.Conv1d(2, 4, 2, padding=1, stride=2); s.n = nn.GroupNorm(2, 4); s.k = nn.LayerNorm(4)
        def forward(s, x):
            x = x.clone().requires_grad_(True); h = F.leaky_relu(s.n(s.c(x.reshape(6, 2, 2))), 0.2)
            y = s.m(s.k(s.l(F.avg_pool1d(h, 2).reshape(6, 4) + F.max_pool1d(h, 2).reshape(6, 4))))
            g = torch.autograd.grad(outputs=y, inputs=x, grad_outputs=torch.ones_like(y), create_graph=True, retain_graph=True)[0]
            return 0.05 * (g.norm(dim=1) - 1).square().mean() + y.square().mean()

    class Inner(Base):
        """A step of SGD inside of forward, through which the loss passes, and one that is held."""
        own_loss = True
        def forward(s, x):
            t = torch.tensor([0, 1, 2, 0, 1, 2]); loss = lambda w, v: F.cross_entropy(F.linear(torch.tanh(F.linear(x, w, s.l.bias)), v, s.m.bias), t)
            w, v = s.l.weight, s.m.weight
            for again in (True, False):
                dw, dv = torch.autograd.grad(loss(w, v), (w, v), create_graph=again); w, v = w - dw, v - dv
            return loss(w, v)

    class NoGradient(Base):
        """Labels by an argmax of another layer, one of which only the shape is read, and the gradient of a last layer."""
        own_loss = True
        def __init__(s): super().__init__(); s.t = nn.Linear(4, 3); s.o = nn.Linear(4, 2); s.e = nn.Linear(4, 1)
        def forward(s, x):
            t = s.t(x).argmax(1); x = x.clone().requires_grad_(True); h = torch.tanh(s.l(x))
            g, = torch.autograd.grad(s.e(h).sum(), x, create_graph=True)
            return F.cross_entropy(s.m(h) * torch.ones_like(s.o(x)).sum(), t) + g.square().mean()

    class PartsUnused(Base):
        """Gradients that may be None, of a gradient by torch.func, beside a teacher that forward writes."""
        own_loss = True
        def __init__(s): super().__init__(); s.t = nn.Linear(4, 3).requires_grad_(False)
        def forward(s, x):
            with torch.no_grad(): s.t.weight.mul_(0.9).add_(s.m.weight, alpha=0.1)
            g = torch.func.grad(lambda v: s.m(torch.tanh(s.l(v))).sin().sum())(x)
            found = torch.autograd.grad(g.square().sum() + s.l(x).sum(), [s.l.weight, s.m.weight, s.m.bias, s.t.weight], create_graph=True, allow_unused=True)
            return sum(v.square().mean() for v in found if v is not None) + (s.m(x) - s.t(x)).square().mean()

    import numpy as np
    x4 = (lambda r: [torch.tensor(r.randn(6, 4).astype(np.float32))])
    return [(c, x4) for c in (Spiking, SpikingKept, TwoResults, Binarised, Modes, AllFrozen, Averaged, FrozenPart, NoGradPlain, Gammas, Erfinv, Running, Ranked,
                              Distances, TimesTwo, Renorm, ScatterMean, Hardtanh, Smoothed, Checkpoint, Buffered, PickedMean, PickedRows, PickedElements, Pointer, Spelled,
                              Special, Decomposed, Rare, BagModes, Probable, AttentionRanks, Equation, Critic, Inner, NoGradient, PartsUnused, GradientPastNoGrad, GradientParts, Written, Spectrum, GaussianProcess, FourierOperator, Solved,
                              *kinds(LanguageModel), *kinds(Detector), *kinds(Nodes), *kinds(PointerNet), *kinds(Assigned))]
