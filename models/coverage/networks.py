# SPDX-License-Identifier: Apache-2.0
"""Networks written here, for zoo.py: with their losses, at tiny width."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, CLASSES = 64, 7


class Loss(nn.Module):
    """Cross-entropy over classes, over tokens or over pixels."""

    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, x, target):
        y = self.m(x)
        if y.dim() == 3:  # tokens
            y, target = y.reshape(-1, y.shape[-1]), target.reshape(-1)
        return F.cross_entropy(y, target)


class Features(nn.Module):
    """Mean square of every result, for models without classes."""

    def __init__(self, model, call=None):
        super().__init__()
        self.m, self.call = model, call or (lambda m, *x: m(*x))

    def forward(self, *x):
        y = self.call(self.m, *x)
        if isinstance(y, dict):
            y = list(y.values())
        if isinstance(y, torch.Tensor):
            y = [y]
        return sum((v.float() ** 2).mean() for v in y)


class Calls(nn.Module):
    """Logits of a model that wants its arguments by name."""

    def __init__(self, model, call):
        super().__init__()
        self.m, self.call = model, call

    def forward(self, x):
        return self.call(self.m, x)


# ---- data


def tokens(length=12, count=2):
    return lambda: [torch.randint(3, VOCABULARY, (count, length))
                    for _ in range(2)]


def sentences(length=12):  # one class each
    return lambda: [torch.randint(3, VOCABULARY, (2, length)),
                    torch.randint(0, CLASSES, (2,))]


def series():
    return [torch.randn(4, 7, 8), torch.randint(0, CLASSES, (4,))]


def rows():
    return [torch.randn(4, 8), torch.randint(0, CLASSES, (4,))]


def images(size=32, count=3, channels=3):
    return lambda: [torch.randn(count, channels, size, size),
                    torch.randint(0, CLASSES, (count,))]


def maps(size=16, count=2):
    return lambda: [torch.randn(count, 3, size, size),
                    torch.randint(0, CLASSES, (count, size, size))]


def pictures(size=32, count=2):  # without labels
    return lambda: [torch.randn(count, 3, size, size)]


# ---- models written here


class Recurrent(nn.Module):
    def __init__(self, kind, both, inputs=8, width=16, classes=CLASSES):
        super().__init__()
        self.r = getattr(nn, kind)(inputs, width, num_layers=1 if both else 2,
                                   bidirectional=both, batch_first=True)
        self.fc = nn.Linear(2 * width if both else width, classes)

    def forward(self, x):
        return self.fc(self.r(x)[0][:, -1])


class Neighbours(nn.Module):
    """Message passing over a list of edges, as of PyTorch Geometric: means over
    neighbours, then attention over edges."""

    def __init__(self, inputs=8, width=16):
        super().__init__()
        self.near, self.own = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.value = nn.Linear(width, width)
        self.score = nn.Linear(2 * width, 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x, edges, target):
        source, to = edges[0], edges[1]
        zeros = x.new_zeros(x.shape[0], 1)
        count = zeros.index_add(0, to, x.new_ones(to.shape[0], 1)).clamp(min=1)
        near = torch.zeros_like(x).index_add(0, to, x[source]) / count
        h = F.relu(self.near(near) + self.own(x))
        v = self.value(h)
        score = F.leaky_relu(self.score(torch.cat([v[source], v[to]], 1)), .2)
        most = zeros.expand(-1, 1).scatter_reduce(
            0, to[:, None], score.detach(), "amax", include_self=False)
        weight = torch.exp(score - most[to])
        total = zeros.index_add(0, to, weight)
        out = torch.zeros_like(v).index_add(0, to, v[source] * weight)
        return F.cross_entropy(self.head(h + out / total.clamp(min=1e-9)),
                               target)


class UNet(nn.Module):
    def __init__(self, mode, **how):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.c = nn.Conv2d(24, 8, 3, padding=1)
        self.d = nn.Conv2d(8, CLASSES, 1)
        self.how = dict(scale_factor=2, mode=mode, **how)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        up = F.interpolate(b, **self.how)
        return self.d(F.relu(self.c(torch.cat([up, a], 1))))


class UNetUp(nn.Module):
    """With transposed convolutions and BatchNorm, as the first of its kind."""

    def __init__(self, width=8):
        super().__init__()
        def double(a, b):
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b),
                nn.ReLU(), nn.Conv2d(b, b, 3, padding=1, bias=False),
                nn.BatchNorm2d(b), nn.ReLU())
        self.down = nn.ModuleList([double(3, width), double(width, 2 * width)])
        self.low = double(2 * width, 4 * width)
        self.up = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                                 nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.join = nn.ModuleList([double(4 * width, 2 * width),
                                   double(2 * width, width)])
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        skips = []
        for d in self.down:
            skips.append(d(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.low(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class Warp(nn.Module):
    """A spatial transformer with one transform for all images."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 3, 3, padding=1)
        self.by = nn.Parameter(torch.tensor([[.9, .1, 0], [-.1, .8, .1]]))
        self.f = nn.Conv2d(3, CLASSES, 1)

    def forward(self, x):
        h = self.c(x)
        grid = F.affine_grid(self.by.expand(x.shape[0], 2, 3), h.shape,
                             align_corners=False)
        return self.f(F.grid_sample(h, grid, align_corners=False))


class Encoder(nn.Module):
    """torch's own transformer layers."""

    def __init__(self, first):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0., "gelu",
                                           batch_first=True, norm_first=first)
        self.l = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.h = nn.Linear(32, VOCABULARY)

    def forward(self, x):
        return self.h(self.l(self.e(x)))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, 32)
        self.t = nn.Transformer(32, 4, 1, 1, 64, 0., batch_first=True)
        self.h = nn.Linear(32, VOCABULARY)

    def forward(self, x):
        y = self.e(x)
        return self.h(self.t(y, y.flip(1)))


class Tcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.ModuleList([
            nn.utils.parametrizations.weight_norm(
                nn.Conv1d(8, 8, 3, dilation=d)) for d in (1, 2, 4)])
        self.h = nn.Linear(8, CLASSES)

    def forward(self, x):
        h = x.transpose(1, 2)
        for c in self.c:
            h = h + F.relu(c(F.pad(h, (2 * c.dilation[0], 0))))
        return self.h(h[..., -1])


class Autoencoder(nn.Module):
    """Variational, with noise as an input."""

    def __init__(self):
        super().__init__()
        self.e = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.ELU(),
                               nn.Conv2d(8, 16, 4, 2, 1), nn.ELU())
        self.m, self.s = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 4, 1)
        self.d = nn.Sequential(nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.ELU(),
                               nn.ConvTranspose2d(8, 3, 4, 2, 1))

    def forward(self, x, noise):
        h = self.e(x)
        mean, log = self.m(h), self.s(h)
        y = self.d(mean + noise * torch.exp(0.5 * log))
        return F.mse_loss(y, x) + \
            -0.5 * (1 + log - mean ** 2 - log.exp()).mean()


class Graph(nn.Module):
    """Graph convolution over a dense adjacency."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x, adjacency, target):
        a = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1e-6)
        h = F.relu(self.a(a @ x))
        return F.cross_entropy(self.b(a @ h).flatten(0, 1), target.flatten())


class PixelShuffle(nn.Module):
    """Super-resolution (ESPCN)."""

    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.Tanh(),
                               nn.Conv2d(16, 12, 3, padding=1),
                               nn.PixelShuffle(2))

    def forward(self, x, target):
        return F.l1_loss(self.m(x), target)


class SelectiveScan(nn.Module):
    """A Mamba block, its scan written out over time."""

    def __init__(self, width=16, state=4):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, width)
        self.i = nn.Linear(width, 4 * width, False)
        self.c = nn.Conv1d(2 * width, 2 * width, 3, padding=2,
                           groups=2 * width)
        self.x = nn.Linear(2 * width, 2 * state + 2 * width, False)
        self.a = nn.Parameter(torch.arange(1., state + 1).log().repeat(
            2 * width, 1))
        self.d = nn.Parameter(torch.ones(2 * width))
        self.o = nn.Linear(2 * width, width, False)
        self.h = nn.Linear(width, VOCABULARY)
        self.state = state

    def forward(self, ids):
        e = self.e(ids)
        x, z = self.i(e).chunk(2, -1)
        x = F.silu(self.c(x.transpose(1, 2))[..., :ids.shape[1]])
        x = x.transpose(1, 2)
        dt, b, c = self.x(x).split([x.shape[-1], self.state, self.state], -1)
        dt = F.softplus(dt)
        decay = torch.exp(dt[..., None] * -self.a.exp())
        inner = dt[..., None] * b[:, :, None] * x[..., None]
        h, ys = torch.zeros_like(decay[:, 0]), []
        for t in range(ids.shape[1]):
            h = decay[:, t] * h + inner[:, t]
            ys.append((h * c[:, t, None]).sum(-1))
        y = torch.stack(ys, 1) + self.d * x
        return self.h(e + self.o(y * F.silu(z)))


class Capsules(nn.Module):
    """Routing by agreement, three rounds written out."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 5, 2)
        self.p = nn.Conv2d(16, 16, 3, 2)
        self.w = nn.Parameter(torch.randn(1, 36, CLASSES, 6, 4) * 0.1)

    @staticmethod
    def squash(v):
        n = (v * v).sum(-1, keepdim=True)
        return n / (1 + n) * v / torch.sqrt(n + 1e-8)

    def forward(self, x, target):
        u = self.p(F.relu(self.c(x))).reshape(x.shape[0], -1, 4)
        u = self.squash(u)
        hat = (self.w @ u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(x.shape[0], 36, CLASSES)
        for i in range(3):
            c = F.softmax(b, 2)
            v = self.squash((c[..., None] * hat).sum(1))
            if i < 2:
                b = b + (hat.detach() * v[:, None]).sum(-1)
        n = torch.linalg.vector_norm(v, dim=-1)
        t = F.one_hot(target, CLASSES).float()
        return (
            (t * F.relu(0.9 - n) ** 2 + 0.5 * (1 - t) * F.relu(n - 0.1) ** 2)
            .sum(-1)
            .mean()
        )


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.i = nn.Embedding(VOCABULARY, 16)
        self.f = nn.ModuleList(
            nn.Conv1d(16, 32, 2, dilation=d) for d in (1, 2, 4)
        )
        self.r = nn.ModuleList(nn.Conv1d(16, 32, 1) for _ in range(3))
        self.o = nn.Sequential(
            nn.ReLU(),
            nn.Conv1d(16, 16, 1),
            nn.ReLU(),
            nn.Conv1d(16, VOCABULARY, 1),
        )

    def forward(self, x):
        h, skip = self.i(x).transpose(1, 2), 0
        for f, r in zip(self.f, self.r):
            a, b = f(F.pad(h, (f.dilation[0], 0))).chunk(2, 1)
            a, k = r(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            h, skip = h + a, skip + k
        return self.o(skip).transpose(1, 2)


class Seq2Seq(nn.Module):
    """LSTM encoder, LSTM cell decoder with Bahdanau attention."""

    def __init__(self, w=16):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, w)
        self.enc = nn.LSTM(w, w, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(3 * w, w)
        self.q, self.k = nn.Linear(w, w, False), nn.Linear(2 * w, w, False)
        self.v = nn.Linear(w, 1, False)
        self.o = nn.Linear(3 * w, VOCABULARY)
        self.w = w

    def forward(self, x):
        m, (h, c) = self.enc(self.e(x))
        h, c = h[0], c[0]
        k, y, out = self.k(m), self.e(x.flip(1)), []
        for t in range(6):
            a = F.softmax(self.v(torch.tanh(k + self.q(h)[:, None])), 1)
            ctx = (a * m).sum(1)
            h, c = self.cell(torch.cat([y[:, t], ctx], 1), (h, c))
            out.append(self.o(torch.cat([h, ctx], 1)))
        return torch.stack(out, 1)


class ODE(nn.Module):
    """Neural ODE, eight Runge-Kutta steps."""

    def __init__(self):
        super().__init__()
        self.i, self.o = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        self.f = nn.Sequential(nn.Linear(17, 16), nn.Tanh(), nn.Linear(16, 16))

    def d(self, h, t):
        return self.f(torch.cat([h, torch.full_like(h[:, :1], t)], 1))

    def forward(self, x):
        h, dt = self.i(x), 1 / 8
        for k in range(8):
            t = k * dt
            a = self.d(h, t)
            b = self.d(h + dt / 2 * a, t + dt / 2)
            c = self.d(h + dt / 2 * b, t + dt / 2)
            e = self.d(h + dt * c, t + dt)
            h = h + dt / 6 * (a + 2 * b + 2 * c + e)
        return self.o(h)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList(
            nn.EmbeddingBag(VOCABULARY, 8, mode=m)
            for m in ("sum", "mean", "max")
        )
        self.b = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU()
        )
        self.t = nn.Sequential(
            nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1)
        )

    def forward(self, x, ids, target):
        z = self.b(x)
        v = torch.stack([z] + [e(ids[:, i]) for i, e in enumerate(self.e)], 1)
        p = v @ v.transpose(1, 2)
        i, j = torch.tril_indices(4, 4, -1)
        y = self.t(torch.cat([z, p[:, i, j]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(y, target)


class NeRF(nn.Module):
    """Positional encoding, volume rendering along rays."""

    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(
            nn.Linear(3 + 24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        )
        self.d, self.c = nn.Linear(32, 1), nn.Sequential(
            nn.Linear(32 + 3, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid()
        )

    def forward(self, o, d, rgb):
        t = torch.linspace(0.5, 2, 8)
        p = o[:, None] + d[:, None] * t[:, None]
        f = 2.0 ** torch.arange(4) * math.pi
        e = (p[..., None] * f).flatten(-2)
        h = self.a(torch.cat([p, e.sin(), e.cos()], -1))
        passed = F.relu(self.d(h)[..., 0]) * (t[1] - t[0])
        alpha = 1 - torch.exp(-passed)
        T = torch.exp(passed - passed.cumsum(1))
        c = self.c(
            torch.cat(
                [h, F.normalize(d, dim=-1)[:, None].expand(-1, 8, -1)], -1
            )
        )
        return F.mse_loss(((alpha * T)[..., None] * c).sum(1), rgb)


class Isomorphism(nn.Module):
    """Message passing over an edge list (GIN), mean pooling by graph."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
            for _ in range(2)
        )
        self.e = nn.Parameter(torch.zeros(2))
        self.o = nn.Linear(16, CLASSES)

    def forward(self, x, edges, graph, target):
        h = F.relu(self.a(x))
        for i, b in enumerate(self.b):
            m = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
            h = b((1 + self.e[i]) * h + m)
        n = torch.zeros(3, 1).index_add(0, graph, torch.ones(x.shape[0], 1))
        g = (
            torch.zeros(3, 16).scatter_add(0, graph[:, None].expand(-1, 16), h)
            / n
        )
        return F.cross_entropy(self.o(g), target)


class GAT(nn.Module):
    """Graph attention over an edge list: softmax over the edges of a node."""

    def __init__(self):
        super().__init__()
        self.w, self.a, self.o = (
            nn.Linear(8, 16, False),
            nn.Linear(32, 1, False),
            nn.Linear(16, CLASSES),
        )

    def forward(self, x, edges, target):
        h = self.w(x)
        src, dst = edges[0], edges[1]
        e = F.leaky_relu(self.a(torch.cat([h[src], h[dst]], 1)), 0.2).squeeze(1)
        most = torch.full((x.shape[0],), -1e9).scatter_reduce(0, dst, e, "amax")
        w = torch.exp(e - most[dst])
        z = torch.zeros(x.shape[0]).index_add(0, dst, w)
        out = torch.zeros_like(h).index_add(
            0, dst, (w / (z[dst] + 1e-9))[:, None] * h[src]
        )
        return F.cross_entropy(self.o(F.elu(out)), target)


class Triplet(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2),
            nn.PReLU(),
            nn.Conv2d(8, 16, 3, 2),
            nn.PReLU(),
            nn.Flatten(),
            nn.Linear(144, 16),
        )

    def forward(self, a, p, n):
        f = lambda x: F.normalize(self.m(x), dim=1)
        return F.triplet_margin_loss(f(a), f(p), f(n), margin=2.0)


class Contrastive(nn.Module):
    """SimCLR: InfoNCE over two views."""

    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(72, 16),
        )

    def forward(self, a, b):
        z = F.normalize(self.m(torch.cat([a, b])), dim=1)
        n = a.shape[0]
        sim = z @ z.T / 0.5
        sim = sim.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
        return F.cross_entropy(
            sim, torch.cat([torch.arange(n) + n, torch.arange(n)])
        )


class UViT(nn.Module):
    """U-ViT: time embedding, patch tokens, a long skip; predicts noise."""

    def __init__(self, w=32):
        super().__init__()
        L = lambda: nn.TransformerEncoderLayer(
            w, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.p, self.t = nn.Conv2d(3, w, 4, 4), nn.Sequential(
            nn.Linear(16, w), nn.SiLU(), nn.Linear(w, w)
        )
        self.pos = nn.Parameter(torch.randn(1, 17, w) * 0.02)
        self.a, self.b, self.c = L(), L(), L()
        self.k = nn.Linear(2 * w, w)
        self.o = nn.Linear(w, 48)
        self.n = nn.LayerNorm(w)
        self.register_buffer(
            "abar", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
        )

    def forward(self, x, t, noise):
        a = self.abar[t][:, None, None, None]
        y = a.sqrt() * x + (1 - a).sqrt() * noise
        f = torch.exp(-math.log(1e4) * torch.arange(8) / 8) * t[:, None].float()
        e = self.t(torch.cat([f.sin(), f.cos()], 1))
        h = (
            torch.cat([e[:, None], self.p(y).flatten(2).transpose(1, 2)], 1)
            + self.pos
        )
        h1 = self.a(h)
        h = self.b(h1)
        h = self.c(self.k(torch.cat([h, h1], -1)))
        h = (
            self.o(self.n(h))[:, 1:]
            .view(-1, 4, 4, 3, 4, 4)
            .permute(0, 3, 1, 4, 2, 5)
            .reshape(x.shape)
        )
        return F.mse_loss(h, noise)


class Denoiser(nn.Module):
    """DDPM block: group norm, SiLU, time shift, attention, skip by concat."""

    def __init__(self):
        super().__init__()
        self.t = nn.Linear(16, 16)
        self.i = nn.Conv2d(3, 16, 3, 1, 1)
        self.d = nn.Conv2d(16, 16, 3, 2, 1)
        self.g = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3))
        self.c = nn.ModuleList(nn.Conv2d(16, 16, 3, 1, 1) for _ in range(2))
        self.a = nn.MultiheadAttention(16, 2, batch_first=True)
        self.o = nn.Conv2d(32, 3, 3, 1, 1)

    def forward(self, x, t, noise):
        f = torch.exp(-math.log(1e4) * torch.arange(8) / 8) * t[:, None].float()
        e = self.t(torch.cat([f.sin(), f.cos()], 1))[..., None, None]
        h0 = self.i(x)
        h = self.d(h0)
        for g, c in zip(self.g, self.c):
            h = h + c(F.silu(g(h) + e))
        q = self.g[2](h).flatten(2).transpose(1, 2)
        h = h + self.a(q, q, q, need_weights=False)[0].transpose(1, 2).reshape(
            h.shape
        )
        h = F.interpolate(h, scale_factor=2.0)
        return F.mse_loss(self.o(torch.cat([h, h0], 1)), noise)


class MoE(nn.Module):
    """Top-2 of 4 experts, all computed, gates by softmax of the chosen."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, 16)
        self.g = nn.Linear(16, 4)
        self.x = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            for _ in range(4)
        )
        self.o = nn.Linear(16, VOCABULARY)

    def forward(self, x):
        h = self.e(x)
        g = self.g(h)
        v, i = g.topk(2, -1)
        w = torch.zeros_like(g).scatter(-1, i, F.softmax(v, -1))
        return self.o(
            h + sum(w[..., k : k + 1] * e(h) for k, e in enumerate(self.x))
        )


class AffineWarp(nn.Module):
    """Spatial transformer (grid_sample of an affine grid made by hand)."""

    def __init__(self):
        super().__init__()
        self.l = nn.Sequential(
            nn.Conv2d(3, 4, 5, 2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 6),
        )
        self.l[-1].weight.data.mul_(0.1)
        self.l[-1].bias.data.copy_(torch.tensor([1, 0, 0.05, 0, 1, 0.03]))
        self.c = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(1568, CLASSES),
        )

    def forward(self, x):
        th = self.l(x).view(-1, 2, 3)
        r = (torch.arange(16) * 2 + 1) / 16 - 1
        gx, gy = r[None].expand(16, 16), r[:, None].expand(16, 16)
        p = torch.stack([gx, gy, torch.ones(16, 16)], -1).view(1, -1, 3)
        g = (p @ th.transpose(1, 2)).view(-1, 16, 16, 2)
        return self.c(F.grid_sample(x, g, align_corners=False))


class Flow(nn.Module):
    """RealNVP couplings; likelihood of a standard normal."""

    def __init__(self):
        super().__init__()
        self.n = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 8))
            for _ in range(4)
        )

    def forward(self, x):
        det = 0
        for n in self.n:
            a, b = x.chunk(2, 1)
            k, t = n(a).chunk(2, 1)
            k = torch.tanh(k)
            x = torch.cat([b * k.exp() + t, a], 1)
            det = det + k.sum(1)
        return (0.5 * (x * x).sum(1) - det).mean()


class VQ(nn.Module):
    """VQ-VAE: nearest code, straight through."""

    def __init__(self):
        super().__init__()
        self.e = nn.Conv2d(3, 8, 4, 4)
        self.c = nn.Parameter(torch.randn(16, 8))
        self.d = nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, x):
        z = self.e(x).permute(0, 2, 3, 1)
        f = z.reshape(-1, 8)
        i = (
            (f * f).sum(1, keepdim=True)
            - 2 * f @ self.c.T
            + (self.c * self.c).sum(1)
        ).argmin(1)
        q = self.c[i].view(z.shape)
        y = self.d((z + (q - z).detach()).permute(0, 3, 1, 2))
        return (
            F.mse_loss(y, x)
            + F.mse_loss(q, z.detach())
            + 0.25 * F.mse_loss(z, q.detach())
        )


class Acoustic(nn.Module):
    """Conv + BiGRU acoustic model, per-frame loss."""

    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(8, 16, 3, 2, 1)
        self.r = nn.GRU(16, 12, 2, batch_first=True, bidirectional=True)
        self.o = nn.Linear(24, VOCABULARY)

    def forward(self, x, target):
        h = F.hardtanh(self.c(x), 0, 20).transpose(1, 2)
        return F.cross_entropy(self.o(self.r(h)[0]).transpose(1, 2), target)


class Perceiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.randn(4, 16))
        self.i = nn.Linear(8, 16)
        self.x = nn.MultiheadAttention(16, 4, batch_first=True)
        self.l = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
        self.o = nn.Linear(16, CLASSES)

    def forward(self, x):
        k = self.i(x)
        q = self.q.expand(x.shape[0], -1, -1)
        return self.o(self.l(self.x(q, k, k)[0]).mean(1))


class KAN(nn.Module):
    """Kolmogorov-Arnold layer of radial bases; SIREN readout."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 8, 5) * 0.2)
        self.b = nn.Linear(8, 16)
        self.o = nn.Linear(16, CLASSES)

    def forward(self, x):
        g = torch.exp(
            -(((x[..., None] - torch.linspace(-2, 2, 5)) * 1.25) ** 2)
        )
        return self.o(
            torch.sin(
                3 * (torch.einsum("bik,oik->bo", g, self.w) + self.b(F.silu(x)))
            )
        )


class Hyena(nn.Module):
    """Long convolution by FFT-free Toeplitz of a filter network."""

    def __init__(self, n=12):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, 16)
        self.i = nn.Linear(16, 48)
        self.f = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.o = nn.Linear(16, VOCABULARY)
        self.n = n

    def forward(self, x):
        q, k, v = self.i(self.e(x)).chunk(3, -1)
        t = torch.arange(self.n)
        h = self.f(t[:, None] / self.n) * torch.exp(-0.3 * t[:, None])
        d = t[:, None] - t
        T = torch.where((d >= 0)[..., None], h[d.clamp(min=0)], 0.0)
        return self.o(q * torch.einsum("tsc,bsc->btc", T, k * v))


class RetNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCABULARY, 16)
        self.q = nn.Linear(16, 48, False)
        self.g, self.o = nn.Linear(16, 16), nn.Linear(16, VOCABULARY)
        self.n = nn.GroupNorm(2, 16)

    def forward(self, x):
        h = self.e(x)
        b, n, w = h.shape
        q, k, v = (
            y.view(b, n, 2, 8).transpose(1, 2) for y in self.q(h).chunk(3, -1)
        )
        t = torch.arange(n)
        d = (t[:, None] - t).clamp(min=0)
        gam = 1 - 2.0 ** (-5 - torch.arange(2.0))
        m = torch.tril(gam[:, None, None] ** d)
        y = (q @ k.transpose(-1, -2) * m) @ v
        y = self.n(y.transpose(1, 2).reshape(b * n, w)).view(b, n, w)
        return self.o(F.silu(self.g(h)) * y + h)


class SpectralGAN(nn.Module):
    def __init__(self):
        super().__init__()
        sn = nn.utils.parametrizations.spectral_norm
        self.m = nn.Sequential(
            sn(nn.Conv2d(3, 8, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            sn(nn.Conv2d(8, 16, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            sn(nn.Linear(256, 1)),
        )

    def forward(self, x):
        return F.relu(1 - self.m(x)).mean()


class StyleMod(nn.Module):
    """StyleGAN2: modulated, demodulated grouped convolution."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.randn(1, 8, 8, 3, 3))
        self.a = nn.Linear(16, 8)
        self.x = nn.Parameter(torch.randn(1, 8, 4, 4))
        self.o = nn.Conv2d(8, 3, 1)

    def forward(self, z, y):
        b = z.shape[0]
        w = self.k * (self.a(z) + 1)[:, None, :, None, None]
        w = w * torch.rsqrt((w * w).sum((2, 3, 4), keepdim=True) + 1e-8)
        x = F.interpolate(
            self.x.expand(b, -1, -1, -1),
            scale_factor=2.0,
            mode="bilinear",
            align_corners=False,
        )
        x = F.conv2d(
            x.reshape(1, b * 8, 8, 8),
            w.reshape(b * 8, 8, 3, 3),
            padding=1,
            groups=b,
        ).view(b, 8, 8, 8)
        return F.mse_loss(torch.tanh(self.o(F.leaky_relu(x, 0.2))), y)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Conv2d(3, 16, 8, 8)
        self.t = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.c = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.n, self.k = nn.LayerNorm(16), nn.LayerNorm(16)
        self.o = nn.Linear(16, CLASSES)

    def forward(self, x):
        h = self.p(x).flatten(2).transpose(1, 2)
        h = h + self.t(self.n(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.c(self.k(h))
        return self.o(h.mean(1))


class Yolo(nn.Module):
    """Grid detector: box IoU, objectness and class losses."""

    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(16, 5 + CLASSES, 1),
        )

    def forward(self, x, box, has, kind):
        y = self.m(x).permute(0, 2, 3, 1)
        b = torch.cat([y[..., :2].sigmoid(), y[..., 2:4].exp()], -1)
        lo = torch.maximum(
            b[..., :2] - b[..., 2:] / 2, box[..., :2] - box[..., 2:] / 2
        )
        hi = torch.minimum(
            b[..., :2] + b[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2
        )
        i = (hi - lo).clamp(min=0).prod(-1)
        iou = i / (b[..., 2:].prod(-1) + box[..., 2:].prod(-1) - i)
        ce = F.cross_entropy(
            y[..., 5:].flatten(0, 2), kind.flatten(), reduction="none"
        ).view(has.shape)
        return (
            has * (1 - iou + ce)
        ).sum() / has.sum() + F.binary_cross_entropy_with_logits(y[..., 4], has)


class PINN(nn.Module):
    """Physics-informed: the derivative by a Jacobian written out (tanh net)."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(1, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 1),
        )

    def forward(self, t):
        h = torch.tanh(self.a(t))
        dh = (1 - h * h) * self.a.weight.T
        k = torch.tanh(self.b(h))
        dk = (1 - k * k) * (dh @ self.b.weight.T)
        u, du = self.c(k), dk @ self.c.weight.T
        return ((du + 2 * u - torch.sin(t)) ** 2).mean() + (
            (u[:1] - 1) ** 2
        ).mean()


def own():
    for kind in ("LSTM", "GRU", "RNN"):
        for both in (False, True):
            yield (kind.lower() + ("_both" if both else ""),
                   lambda k=kind, b=both: Loss(Recurrent(k, b)), series)
    for name, how in {
            "nearest": dict(mode="nearest"),
            "linear": dict(mode="bilinear", align_corners=False),
            "corners": dict(mode="bilinear", align_corners=True),
            "cubic": dict(mode="bicubic", align_corners=False)}.items():
        yield "unet_" + name, lambda h=how: Loss(UNet(**h)), maps()
    yield "unet_transposed", lambda: Loss(UNetUp()), maps()
    yield "warp", lambda: Loss(Warp()), maps()
    yield "encoder", lambda: Loss(Encoder(False)), tokens()
    yield "encoder_prenorm", lambda: Loss(Encoder(True)), tokens()
    yield "translator", lambda: Loss(Translator()), tokens()
    yield "tcn", lambda: Loss(Tcn()), series
    yield "vae", Autoencoder, lambda: [torch.randn(2, 3, 16, 16),
                                       torch.randn(2, 4, 4, 4)]
    yield "gcn", Graph, lambda: [
        torch.randn(2, 9, 8), (torch.rand(2, 9, 9) > .6).float(),
        torch.randint(0, CLASSES, (2, 9))]
    yield "neighbours", Neighbours, lambda: [
        torch.randn(9, 8), torch.randint(0, 9, (2, 20)),
        torch.randint(0, CLASSES, (9,))]
    yield "espcn", PixelShuffle, lambda: [torch.randn(2, 3, 8, 8),
                                          torch.randn(2, 3, 16, 16)]
    yield "selective_scan", lambda: Loss(SelectiveScan()), tokens(8)
    yield "cnn3d", lambda: Loss(nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(),
        nn.MaxPool3d(2), nn.Conv3d(8, 8, 3), nn.AdaptiveAvgPool3d(1),
        nn.Flatten(), nn.Linear(8, CLASSES))), \
        lambda: [torch.randn(2, 3, 8, 8, 8), torch.randint(0, CLASSES, (2,))]
    yield "norms", lambda: Loss(nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Mish(),
        nn.Conv2d(8, 8, 3, 2), nn.InstanceNorm2d(8, affine=True),
        nn.Hardswish(), nn.Conv2d(8, 8, 3), nn.LocalResponseNorm(3),
        nn.PReLU(8), nn.Flatten(), nn.Linear(128, CLASSES))), images(16)
    yield "capsules", Capsules, images(20)
    yield "wavenet", lambda: Loss(WaveNet()), tokens()
    yield "seq2seq", lambda: Loss(Seq2Seq()), tokens(6)
    yield "ode", lambda: Loss(ODE()), rows
    yield "dlrm", DLRM, lambda: [
        torch.randn(4, 4), torch.randint(0, VOCABULARY, (4, 3, 5)),
        torch.rand(4).round()]
    yield "nerf", NeRF, lambda: [torch.randn(4, 3), torch.randn(4, 3),
                                 torch.rand(4, 3)]
    yield "gin", Isomorphism, lambda: [
        torch.randn(9, 8), torch.randint(0, 9, (2, 20)),
        torch.arange(3).repeat_interleave(3), torch.randint(0, CLASSES, (3,))]
    yield "gat", GAT, lambda: [
        torch.randn(9, 8), torch.cat([torch.randint(0, 9, (2, 20)),
                                      torch.arange(9).repeat(2, 1)], 1),
        torch.randint(0, CLASSES, (9,))]
    yield "triplet", Triplet, lambda: [torch.randn(3, 3, 16, 16)
                                       for _ in range(3)]
    yield "simclr", Contrastive, lambda: [torch.randn(3, 3, 16, 16)
                                          for _ in range(2)]
    for name, make, size in (("uvit", UViT, 16), ("ddpm", Denoiser, 8)):
        yield name, make, lambda n=size: [
            torch.randn(2, 3, n, n), torch.randint(0, 100, (2,)),
            torch.randn(2, 3, n, n)]
    yield "moe", lambda: Loss(MoE()), tokens()
    yield "affine_warp", lambda: Loss(AffineWarp()), images(16)
    yield "flow", Flow, lambda: [torch.randn(4, 8)]
    yield "vqvae", VQ, pictures(16)
    yield "acoustic", Acoustic, lambda: [
        torch.randn(2, 8, 24), torch.randint(0, VOCABULARY, (2, 12))]
    yield "perceiver", lambda: Loss(Perceiver()), series
    yield "kan", lambda: Loss(KAN()), rows
    yield "hyena", lambda: Loss(Hyena()), tokens()
    yield "retnet", lambda: Loss(RetNet()), tokens()
    yield "spectral", SpectralGAN, pictures(16)
    yield "stylegan", StyleMod, lambda: [torch.randn(2, 16),
                                         torch.randn(2, 3, 8, 8)]
    yield "mixer", lambda: Loss(Mixer()), images()
    yield "yolo", Yolo, lambda: [
        torch.randn(2, 3, 16, 16), torch.rand(2, 4, 4, 4) + .2,
        torch.rand(2, 4, 4).round(), torch.randint(0, CLASSES, (2, 4, 4))]
    yield "pinn", PINN, lambda: [torch.rand(8, 1)]
