# SPDX-License-Identifier: Apache-2.0
"""PyTorch models for exporters.py as people write them: teachers, tables, masks, recurrent layers, adapters, quantised and
gated parts, modules within modules.  plain() lists them with their data."""
import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize
from edges import Two

randn = lambda *d: torch.randn(*d)


class Seq(nn.Module):
    """x: [3, 5, 4]."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.l = nn.Linear(4, 4); s.m = nn.Linear(4, 2); s.more()
    def more(s): pass


# ---- attention ----

class MhaFloatMask(Seq):
    def more(s): s.a = nn.MultiheadAttention(4, 2, batch_first=True); s.register_buffer("mask", torch.full((5, 5), -torch.inf).triu(1))
    def forward(s, x): return s.m(s.a(x, x, x, attn_mask=s.mask)[0])

class MhaPadding(Seq):
    def more(s): s.a = nn.MultiheadAttention(4, 2, batch_first=True, bias=False, add_bias_kv=False)
    def forward(s, x): return s.m(s.a(x, x, x, key_padding_mask=torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] + [True] * 4]))[0])

class MhaWeights(Seq):
    """The weights are read, too."""
    def more(s): s.a = nn.MultiheadAttention(4, 2, batch_first=True, kdim=4, vdim=4)
    def forward(s, x): y, w = s.a(s.l(x), x, x, average_attn_weights=False); return s.m(y) + w.mean((1, 3))[..., None]

class MhaKv(Seq):
    def more(s): s.a = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    def forward(s, x): return s.m(s.a(x, x, x, need_weights=False)[0])

class MhaKdim(Seq):
    def more(s): s.a = nn.MultiheadAttention(4, 2, kdim=3, vdim=2, batch_first=True)
    def forward(s, x): return s.m(s.a(x, x[..., :3], x[..., 1:3], need_weights=False)[0])

class Encoder(Seq):
    def more(s): s.e = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0., batch_first=True, activation="gelu"), 2, enable_nested_tensor=False, norm=nn.LayerNorm(4))
    def forward(s, x): return s.m(s.e(x, mask=nn.Transformer.generate_square_subsequent_mask(5), is_causal=True))

class PerceiverQueries(Seq):
    def more(s): s.latents = nn.Parameter(randn(3, 4)); s.q = nn.Linear(4, 4, bias=False)
    def forward(s, x):
        q = s.q(s.latents).expand(x.shape[0], -1, -1)
        return s.m(F.scaled_dot_product_attention(q, s.l(x), x))

class CausalSlice(Seq):
    """A mask of the greatest length, sliced, as GPT-2 has it."""
    def more(s): s.qkv = nn.Linear(4, 12); s.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 8, 8)); s.register_buffer("masked_bias", torch.tensor(-1e4), persistent=False)
    def forward(s, x):
        q, k, v = s.qkv(x).split(4, -1); n = x.shape[1]
        w = q @ k.transpose(1, 2) / math.sqrt(4)
        w = torch.where(s.bias[:, :n, :n].bool(), w, s.masked_bias)
        return s.m(w.softmax(-1) @ v)

class Bucketed(Seq):
    """T5's relative bias: an embedding of buckets of distances."""
    def more(s): s.rel = nn.Embedding(4, 1); s.qkv = nn.Linear(4, 12)
    def forward(s, x):
        q, k, v = s.qkv(x).chunk(3, -1); i = torch.arange(5); d = (i[None] - i[:, None]).abs().clamp(max=3)
        return s.m((q @ k.transpose(1, 2) + s.rel(d).squeeze(-1)).softmax(-1) @ v)

class LinearAttention(Seq):
    def forward(s, x):
        q = F.elu(s.l(x)) + 1; k = F.elu(x) + 1
        kv = torch.einsum("bnd,bne->bde", k, x)
        return s.m(torch.einsum("bnd,bde,bn->bne", q, kv, 1 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)))

class PooledQuery(Seq):
    def more(s): s.query = nn.Parameter(torch.zeros(4)); s.scale = nn.Parameter(torch.ones([]) * math.log(1 / .07))
    def forward(s, x):
        a = (x @ s.query * s.scale.exp()).softmax(-1)
        return s.m(torch.tanh((a[..., None] * s.l(x)).sum(1)))


# ---- recurrent ----

class GruState(Seq):
    def more(s): s.r = nn.GRU(4, 4, batch_first=True); s.h0 = nn.Parameter(randn(1, 1, 4))
    def forward(s, x): y, h = s.r(x, s.h0.expand(-1, 3, -1).contiguous()); return s.m(y[:, -1] + h[0])

class LstmState(Seq):
    def more(s): s.r = nn.LSTM(4, 4, batch_first=True, bias=False); s.register_buffer("h0", randn(1, 3, 4)); s.c0 = nn.Parameter(randn(1, 3, 4))
    def forward(s, x): y, (h, c) = s.r(x, (s.h0, s.c0)); return s.m(y.mean(1) + c[0])

class LstmProjectedWide(Seq):
    def more(s): s.r = nn.LSTM(4, 6, proj_size=4, batch_first=True)
    def forward(s, x): return s.m(s.r(x)[0])

class RnnRelu(Seq):
    def more(s): s.r = nn.RNN(4, 4, 2, nonlinearity="relu", bidirectional=True); s.o = nn.Linear(8, 4)
    def forward(s, x): return s.m(s.o(s.r(x.transpose(0, 1))[0]).mean(0))

class Cells(Seq):
    def more(s): s.g = nn.GRUCell(4, 4); s.c = nn.LSTMCell(4, 4)
    def forward(s, x):
        h = c = torch.zeros(3, 4); g = torch.zeros(3, 4)
        for t in range(3):
            g = s.g(x[:, t], g); h, c = s.c(g, (h, c))
        return s.m(h)

class Packed(Seq):
    def more(s): s.r = nn.GRU(4, 4, batch_first=True)
    def forward(s, x):
        p = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]), batch_first=True)
        y, h = s.r(p)
        return s.m(h[0])

class StateCarried(Seq):
    """A state that the forward keeps for the next batch, detached."""
    def more(s): s.r = nn.GRUCell(4, 4); s.register_buffer("h", torch.zeros(3, 4))
    def forward(s, x):
        h = s.r(x[:, 0], s.h)
        h = s.r(x[:, 1], h)
        s.h.copy_(h.detach())
        return s.m(h)


# ---- teachers, momentum, frozen parts ----

class EmaTeacher(Two):
    """The teacher follows within the forward."""
    own_loss = True
    options = ["--freeze", "t.*"]
    def more(s):
        s.t = nn.Linear(4, 4)
        for p in s.t.parameters(): p.requires_grad_(False)
    def forward(s, x):
        with torch.no_grad():
            for a, b in zip(s.t.parameters(), s.l.parameters()): a.mul_(.9).add_(b, alpha=.1)
            y = s.t(x)
        return F.mse_loss(torch.tanh(s.l(x)), y) + s.m(s.l(x)).square().mean()

class Queue(Two):
    """MoCo: keys of earlier batches, a buffer that the forward writes."""
    own_loss = True
    def more(s): s.register_buffer("queue", F.normalize(randn(3, 8), dim=0)); s.register_buffer("ptr", torch.zeros(1, dtype=torch.long))
    def forward(s, x):
        q = F.normalize(s.m(torch.tanh(s.l(x))), dim=1)
        k = F.normalize(s.m(torch.tanh(s.l(x.flip(1)))), dim=1).detach()
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ s.queue.clone().detach()], 1) / .2
        return F.cross_entropy(logits, torch.zeros(6, dtype=torch.long))

class FrozenTrunk(Two):
    options = ["--freeze", "trunk.*"]
    def more(s): s.trunk = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).requires_grad_(False)
    def forward(s, x): return s.m(torch.tanh(s.l(s.trunk(x))))

class NoGradTrunk(Two):
    def more(s): s.trunk = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    def forward(s, x):
        with torch.no_grad():
            f = s.trunk(x)
        return s.m(torch.tanh(s.l(f)))

class InferenceTrunk(Two):
    def more(s): s.trunk = nn.Linear(4, 4)
    def forward(s, x):
        f = s.trunk(x).detach()
        return s.m(torch.tanh(s.l(f) + f))

class Delta(Two):
    """What trains is added to what does not, both of one shape."""
    options = ["--freeze", "base"]
    def more(s): s.base = nn.Parameter(randn(4, 4), requires_grad=False); s.delta = nn.Parameter(torch.zeros(4, 4))
    def forward(s, x): return s.m(torch.tanh(x @ (s.base + s.delta)))

class BufferWeight(Two):
    """A fixed projection called weight."""
    def more(s): s.register_buffer("weight", randn(4, 4)); s.register_buffer("bias", randn(4))
    def forward(s, x): return s.m(torch.tanh(F.linear(s.l(x), s.weight, s.bias)))

class Functional(Two):
    def forward(s, x):
        p = {k: v * 1.5 for k, v in s.l.named_parameters()}
        return s.m(torch.tanh(torch.func.functional_call(s.l, p, (x,))))

class Maml(Two):
    """One step of a gradient, by hand, within the forward."""
    def forward(s, x):
        w, b = s.l.weight, s.l.bias; y = x @ w.T + b; d = 2 * (y - x) / y.numel()
        return s.m(torch.tanh(x @ (w - .5 * d.T @ x).T + b - .5 * d.sum(0)))

class Shared3(Two):
    def more(s): s.k = nn.Linear(4, 4); s.n = nn.Linear(4, 4); s.k.weight = s.n.weight = s.l.weight; s.n.bias = s.k.bias
    def forward(s, x): return s.m(torch.tanh(s.n(torch.tanh(s.k(torch.tanh(s.l(x)))))))

class Recurrence(Two):
    """One block several times."""
    def more(s): s.n = nn.LayerNorm(4); s.step = nn.Parameter(torch.tensor(.3))
    def forward(s, x):
        for _ in range(3): x = x + s.step * torch.tanh(s.l(s.n(x)))
        return s.m(x)


# ---- parametrizations, quantisation ----

class OrthogonalMap(Two):
    def more(s): nn.utils.parametrizations.orthogonal(s.l, orthogonal_map="cayley")
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class Standard(nn.Module):
    def __init__(s): super().__init__(); s.g = nn.Parameter(torch.ones(4, 1))
    def forward(s, w): return s.g * (w - w.mean(1, keepdim=True)) / (w.var(1, keepdim=True) + 1e-5).sqrt()

class StandardWeights(Two):
    def more(s): parametrize.register_parametrization(s.l, "weight", Standard())
    def forward(s, x): return s.m(torch.tanh(s.l(x)))

class LearnedStep(Two):
    """LSQ: the step of a quantiser trains, its rounding passes."""
    def more(s): s.step = nn.Parameter(torch.tensor(.1))
    def forward(s, x):
        w = s.l.weight / s.step
        q = (w.round() - w).detach() + w
        return s.m(torch.tanh(F.linear(x, q.clamp(-8, 7) * s.step, s.l.bias)))

class Ternary(Two):
    def forward(s, x):
        w = s.l.weight; scale = w.abs().mean().clamp(min=1e-5)
        t = w + ((w / scale).round().clamp(-1, 1) * scale - w).detach()
        a = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        xq = x + ((x * a).round().clamp(-128, 127) / a - x).detach()
        return s.m(torch.tanh(F.linear(xq, t, s.l.bias)))

class HardConcrete(Two):
    """Gates of L0 regularisation, at their mean."""
    def more(s): s.log_alpha = nn.Parameter(torch.tensor([-3., 0., 1., 4.]))
    def forward(s, x):
        g = (torch.sigmoid(s.log_alpha) * 1.2 - .1).clamp(0, 1)
        return s.m(torch.tanh(s.l(x)) * g)

class MaskedWeights(Two):
    """A supermask: scores train, weights do not."""
    options = ["--freeze", "l.weight"]
    def more(s): s.scores = nn.Parameter(randn(4, 4)); s.l.weight.requires_grad_(False)
    def forward(s, x):
        hard = (s.scores > s.scores.flatten().kthvalue(8)[0]).float() if False else (s.scores > 0).float()
        mask = hard + s.scores - s.scores.detach()
        return s.m(torch.tanh(F.linear(x, s.l.weight * mask, s.l.bias)))


# ---- gates, choices, kinks ----

class HardSwitch(Two):
    def forward(s, x):
        h = s.l(x)
        return s.m(torch.where(h.abs() > .5, h, torch.zeros_like(h)) + torch.where(x > 0, 1., -1.) * h)

class TopK(Two):
    def more(s): s.g = nn.Linear(4, 4)
    def forward(s, x):
        v, i = s.g(x).topk(2, -1)
        w = torch.zeros(6, 4).scatter(-1, i, v.softmax(-1))
        return s.m(torch.tanh(s.l(x)) * w)

class MaxOut(Two):
    def more(s): s.p = nn.Linear(4, 8)
    def forward(s, x): return s.m(s.p(x).view(6, 4, 2).max(-1)[0] + s.l(x).relu().amax(-1, keepdim=True))

class Margin(Two):
    """ArcFace: normalised weights, an angle, a margin for the true class."""
    own_loss = True
    def forward(s, x):
        c = F.linear(F.normalize(torch.tanh(s.l(x))), F.normalize(s.m.weight))
        t = torch.where(x[:, 0] > 0, 2, 0)
        a = torch.acos(c.clamp(-1 + 1e-7, 1 - 1e-7)) + F.one_hot(t, 3) * .2
        return F.cross_entropy(8 * a.cos(), t)

class Infonce(Two):
    own_loss = True
    def more(s): s.t = nn.Parameter(torch.tensor(2.))
    def forward(s, x):
        a, b = F.normalize(s.m(s.l(x)), dim=-1), F.normalize(s.m(s.l(x.roll(1, 1))), dim=-1)
        z = a @ b.T * s.t.exp(); y = torch.arange(6)
        return (F.cross_entropy(z, y) + F.cross_entropy(z.T, y)) / 2

class Supcon(Two):
    own_loss = True
    def forward(s, x):
        z = F.normalize(s.m(torch.tanh(s.l(x))), dim=-1); y = (x[:, 0] > 0)
        sim = z @ z.T / .5; off = ~torch.eye(6, dtype=torch.bool)
        sim = sim - sim.amax(1, keepdim=True).detach()
        logp = sim - torch.log((sim.exp() * off).sum(1, keepdim=True))
        same = (y[:, None] == y[None]) & off
        return -(logp * same).sum(1).div(same.sum(1).clamp(min=1)).mean()

class Vae(Two):
    own_loss = True
    def more(s): s.mu = nn.Linear(4, 3); s.var = nn.Linear(4, 3); s.d = nn.Linear(3, 4); s.register_buffer("noise", randn(6, 3))
    def forward(s, x):
        h = torch.tanh(s.l(x)); mu, v = s.mu(h), s.var(h)
        y = s.d(mu + (.5 * v).exp() * s.noise)
        return F.mse_loss(y, x, reduction="sum") / 6 - .5 * (1 + v - mu ** 2 - v.exp()).sum(1).mean()

class Ppo(Two):
    """Clipped ratios of a policy beside its old self."""
    own_loss = True
    def more(s): s.register_buffer("old", -torch.rand(6)); s.register_buffer("adv", randn(6)); s.v = nn.Linear(4, 1)
    def forward(s, x):
        h = torch.tanh(s.l(x)); d = torch.distributions.Categorical(logits=s.m(h)); a = torch.where(x[:, 0] > 0, 1, 0)
        r = (d.log_prob(a) - s.old).exp()
        return -torch.min(r * s.adv, r.clamp(.8, 1.2) * s.adv).mean() - .01 * d.entropy().mean() + .5 * (s.v(h)[:, 0] - s.adv).square().mean()

class Gumbels(Two):
    """gumbel_softmax(hard=True) with noise of its own."""
    def more(s): s.register_buffer("g", randn(6, 4))
    def forward(s, x):
        y = ((s.l(x) + s.g) / .7).softmax(-1)
        i = y.argmax(-1, keepdim=True)
        hard = torch.zeros_like(y).scatter(-1, i, 1.)
        ret = hard - y.detach() + y
        return s.m(ret)

class Penalty(Two):
    """Weights in the loss, and a norm that is clipped."""
    own_loss = True
    def forward(s, x):
        w = torch.cat([p.flatten() for p in s.parameters()])
        h = s.l(x); h = h * (1 / h.norm(dim=1, keepdim=True)).clamp(max=1)
        return s.m(h).square().mean() + .1 * w.abs().sum() + .01 * w.norm() + .1 * s.l.weight.norm(dim=0).max()


# ---- tables, embeddings, pictures ----

class Tables(nn.Module):
    def __init__(s):
        super().__init__(); torch.manual_seed(0); s.e = nn.Embedding(7, 4, padding_idx=2); s.pos = nn.Embedding(8, 4); s.seg = nn.Embedding(2, 4); s.n = nn.LayerNorm(4); s.o = nn.Linear(4, 2)
        s.register_buffer("position_ids", torch.arange(8)[None]); s.register_buffer("token_type_ids", torch.zeros(1, 8, dtype=torch.long), persistent=False)
    def forward(s, i):
        n = i.shape[1]
        h = s.n(s.e(i) + s.pos(s.position_ids[:, :n]) + s.seg(s.token_type_ids[:, :n]))
        keep = (i != 2).float()[..., None]
        return s.o((h * keep).sum(1) / keep.sum(1).clamp(min=1e-9))

class Bags(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.a = nn.EmbeddingBag(7, 4, mode="sum", padding_idx=1); s.b = nn.EmbeddingBag(7, 4, mode="max"); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(torch.tanh(s.a(i)) + s.b(i))

class MaxNorm(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.e = nn.Embedding(7, 4, max_norm=1.); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(s.e(i)).mean(1)

class OneHots(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w = nn.Parameter(randn(7, 4)); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(torch.tanh(F.one_hot(i, 7).float() @ s.w)).mean(1)

class Lookup(nn.Module):
    """Rows and columns of parameters and of buffers by index."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.w = nn.Parameter(randn(7, 4)); s.register_buffer("fixed", randn(7, 4)); s.l = nn.Linear(4, 2)
    def forward(s, i): return s.l(torch.tanh(s.w[i] * 2 + s.fixed[i] + s.w.index_select(0, i[0]) + s.w[1:3].sum(0))).mean(1)

class Squeeze(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect"); s.d = nn.Conv2d(4, 4, 3, groups=4, bias=False); s.a = nn.Linear(4, 2); s.b = nn.Linear(2, 4); s.l = nn.Linear(4, 2)
    def forward(s, x):
        h = F.silu(s.c(x)); g = torch.sigmoid(s.b(F.relu(s.a(h.mean((2, 3))))))
        return s.l(s.d(h * g[..., None, None]).amax((2, 3)))

class Upsampled(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3, 2, 1); s.u = nn.Upsample(scale_factor=2); s.p = nn.PixelShuffle(2); s.l = nn.Linear(4, 2); s.register_buffer("blur", torch.tensor([[1., 2, 1], [2, 4, 2], [1, 2, 1]])[None, None].repeat(4, 1, 1, 1) / 16)
    def forward(s, x):
        h = F.conv2d(s.u(torch.tanh(s.c(x))), s.blur, padding=1, groups=4)
        return s.l(h.mean((2, 3))) + s.p(h).mean((1, 2, 3))[:, None]

class Ghost(nn.Module):
    """BatchNorm of parts of a batch, and one without gain beside one with statistics of its own."""
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 4, 3); s.b = nn.BatchNorm2d(4); s.k = nn.BatchNorm2d(4, affine=False, momentum=.3); s.l = nn.Linear(4, 2)
    def forward(s, x):
        h = s.c(x)
        return s.l(torch.relu(torch.cat([s.b(p) for p in h.chunk(2)]) + s.k(h)).mean((2, 3)))

class SyncNorm(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.f = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(2)); s.n = nn.BatchNorm1d(4); s.l = nn.Linear(4, 2)
    def forward(s, x): return s.l(s.n(s.f(x)).mean(2))

class Groups3(nn.Module):
    def __init__(s): super().__init__(); torch.manual_seed(0); s.c = nn.Conv2d(3, 6, 1); s.g = nn.GroupNorm(3, 6, eps=1e-3); s.i = nn.InstanceNorm2d(6, affine=True); s.ln = nn.LayerNorm([6, 6], elementwise_affine=True); s.l = nn.Linear(6, 2)
    def forward(s, x): return s.l(s.ln(s.i(s.g(s.c(x)))).square().mean((2, 3)))

class Compiled(Two):
    def more(s): s.f = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    def forward(s, x): return s.m(torch.compile(s.f, backend="eager")(s.l(x)))

class Hooked(Two):
    def more(s): s.l.register_forward_hook(lambda m, a, y: y * 1.5); s.m.register_forward_pre_hook(lambda m, a: (torch.tanh(a[0]),))
    def forward(s, x): return s.m(s.l(x))

class Residuals(Two):
    """Numbers of every kind: Python's, NumPy's, math's, of the shape."""
    def forward(s, x):
        import numpy as np
        h = s.l(x) * x.shape[-1] ** -.5 + math.pi / 4
        h = h * np.float32(.7) + np.array([.1, .2, .3, .4], "f").sum() * torch.finfo(torch.float32).eps
        return s.m(h / math.sqrt(h.shape[1]) * torch.tensor(1.3).item() + torch.full((4,), .2) - torch.scalar_tensor(.1))

class Precisions(Two):
    def more(s): s.half = nn.Parameter(randn(4).half().float())
    def forward(s, x): return s.m(torch.tanh(s.l(x)).double().mul(.3).float() + s.half.double().float())

class Complexes(Two):
    def more(s): s.w = nn.Parameter(randn(3, 2))
    def forward(s, x): return s.m(torch.fft.irfft(torch.fft.rfft(s.l(x)) * torch.view_as_complex(s.w), n=4))

class Splines(Two):
    """A KAN layer: a grid that is a buffer, coefficients that train."""
    def more(s): s.register_buffer("grid", torch.linspace(-1, 1, 5)); s.coef = nn.Parameter(randn(4, 5, 3) * .3)
    def forward(s, x):
        b = torch.exp(-((torch.tanh(x)[..., None] - s.grid) / .5) ** 2)
        return torch.einsum("bik,iko->bo", b, s.coef) + s.m(F.silu(s.l(x)))

class Deq(Two):
    """A fixed point, its last step with the gradient."""
    def forward(s, x):
        z = torch.zeros(6, 4)
        with torch.no_grad():
            for _ in range(4): z = torch.tanh(s.l(z) + x)
        z = torch.tanh(s.l(z.requires_grad_(False)) + x)
        return s.m(z)


def plain():
    x4 = (lambda r: [torch.tensor(r.randn(6, 4), dtype=torch.float32)])
    image = (lambda r: [torch.tensor(r.rand(4, 3, 6, 6), dtype=torch.float32)])
    sequence = (lambda r: [torch.tensor(r.randn(3, 5, 4), dtype=torch.float32)])
    ids = (lambda r: [torch.tensor(r.randint(0, 7, (3, 5)))])
    return ([(m, sequence) for m in (MhaFloatMask, MhaPadding, MhaWeights, MhaKv, MhaKdim, Encoder, PerceiverQueries, CausalSlice, Bucketed, LinearAttention, PooledQuery,
                                     GruState, LstmState, LstmProjectedWide, RnnRelu, Cells, Packed, StateCarried)] +
            [(m, x4) for m in (EmaTeacher, Queue, FrozenTrunk, NoGradTrunk, InferenceTrunk, Delta, BufferWeight, Functional, Maml, Shared3, Recurrence, OrthogonalMap, StandardWeights,
                               LearnedStep, Ternary, HardConcrete, MaskedWeights, HardSwitch, TopK, MaxOut, Margin, Infonce, Supcon, Vae, Ppo, Gumbels, Penalty, Compiled, Hooked,
                               Residuals, Precisions, Complexes, Splines, Deq)] +
            [(m, ids) for m in (Tables, Bags, MaxNorm, OneHots, Lookup)] +
            [(m, image) for m in (Squeeze, Upsampled, Ghost, SyncNorm, Groups3)])
